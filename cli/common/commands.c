/* The table of subcommands: see commands.h. */
#include "common/commands.h"

#include <string.h>

static const cli_command commands[] = {
#define ROW(name, summary) {#name, summary, &name##_page, cmd_##name},
    CLI_COMMANDS(ROW)
#undef ROW
};

enum { COMMAND_COUNT = sizeof commands / sizeof *commands };

const cli_command *cli_command_at(int i)
{
    return i < COMMAND_COUNT ? &commands[i] : NULL;
}

bool cli_command_knows_ranks(const cli_command *command)
{
    static const char *const names[] = {"train", "heads",    "circuits",   "prune",
                                        "view",  "generate", "perplexity", "help"};
    bool knows = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        knows |= !strcmp(command->name, names[i]);
    return knows;
}

cli_exit cli_command_find(const char *name, const cli_command **command)
{
    const char *names[COMMAND_COUNT];
    for (int i = 0; i < COMMAND_COUNT; i++) {
        names[i] = commands[i].name;
        *command = &commands[i];
        if (!strcmp(names[i], name)) return CLI_OK;
    }
    const char *near = mha_nearest_name(name, names, COMMAND_COUNT);
    if (near) return cli_fail(CLI_USAGE, "unknown subcommand '%s'; did you mean '%s'?", name, near);
    return cli_fail(CLI_USAGE, "unknown subcommand '%s'; 'multihead --help' lists them", name);
}
