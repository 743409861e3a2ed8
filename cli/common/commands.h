/* The subcommands: each gets the arguments that follow its name and returns the exit code. Each
 * answers --help by itself. Their list is in main.c. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "common/exits.h"

#include <multihead/multihead.h>

#define CLI_QUOTE(x) #x
#define CLI_TEXT_OF(x) CLI_QUOTE(x)
#define CLI_VERSION                \
    CLI_TEXT_OF(MHA_VERSION_MAJOR) \
    "." CLI_TEXT_OF(MHA_VERSION_MINOR) "." CLI_TEXT_OF(MHA_VERSION_PATCH)

cli_exit cmd_view(int count, char *const *arguments);
cli_exit cmd_heads(int count, char *const *arguments);
cli_exit cmd_count(int count, char *const *arguments);
cli_exit cmd_run(int count, char *const *arguments);
cli_exit cmd_explain(int count, char *const *arguments);
cli_exit cmd_train(int count, char *const *arguments);
cli_exit cmd_generate(int count, char *const *arguments);
cli_exit cmd_bench(int count, char *const *arguments);
cli_exit cmd_prune(int count, char *const *arguments);
cli_exit cmd_selftest(int count, char *const *arguments);
cli_exit cmd_help(int count, char *const *arguments);

#endif
