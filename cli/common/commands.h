/* The subcommands: each receives the arguments after its name and returns the exit code. Help, man
 * pages and completions are generated from its page.
 *
 * To add a subcommand, create cmd_<name>.c in a new folder and add a line to this list.
 */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "common/args.h"

#include <multihead/multihead.h>

#define CLI_QUOTE(x) #x
#define CLI_TEXT_OF(x) CLI_QUOTE(x)
#define CLI_VERSION                \
    CLI_TEXT_OF(MHA_VERSION_MAJOR) \
    "." CLI_TEXT_OF(MHA_VERSION_MINOR) "." CLI_TEXT_OF(MHA_VERSION_PATCH) MHA_VERSION_SUFFIX

/* Parts that a build may lack. */
#ifdef CLI_HAS_SERVE
#define CLI_LEFT_OUT ""
#else
#define CLI_LEFT_OUT " (without serve)"
#endif

/* All subcommands: name, purpose. */
#define CLI_COMMANDS(X)                                                   \
    X(view, "draw what every head of a model attends to")                 \
    X(serve, "show heads in a browser while you type; switch them off")   \
    X(page, "write the serve page as one HTML file that runs the model")  \
    X(heads, "measure what every head of a model does over texts")        \
    X(ablate, "measure the effect of ablating each head of a model")      \
    X(circuits, "show what heads read and write, from the weights alone") \
    X(count, "count parameters, operations and bytes of attention")       \
    X(run, "compute attention of arrays in .npy or .safetensors files")   \
    X(explain, "show how a problem would be computed and why; draw it")   \
    X(train, "train a small transformer and watch its heads specialise")  \
    X(prune, "remove heads from a model, least important first")          \
    X(generate, "continue a text with a model, token by token")           \
    X(perplexity, "measure how well a model predicts a text")             \
    X(bench, "measure attention as a fraction of the machine's peak")     \
    X(selftest, "check the fast kernels against plain arithmetic")        \
    X(help, "explain a subcommand, 'exit-codes' or 'scores'")

#define CLI_COMMAND(name, summary)      \
    extern const args_page name##_page; \
    cli_exit cmd_##name(int count, char *const *arguments);
CLI_COMMANDS(CLI_COMMAND)
#undef CLI_COMMAND

typedef struct cli_command {
    const char *name, *summary;
    const args_page *page;
    cli_exit (*run)(int count, char *const *arguments);
} cli_command;

/* In the order of the list; NULL after the last. */
const cli_command *cli_command_at(int i);

/* Whether it may run on several ranks (launched.h). */
bool cli_command_knows_ranks(const cli_command *command);

/* The subcommand of that name; an error suggests the nearest one. */
cli_exit cli_command_find(const char *name, const cli_command **command);

#endif
