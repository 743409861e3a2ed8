/* The program: finds the subcommand, hands it its arguments and ends what it leaves in the arena.
 *
 * A new subcommand is a file cmd_<name>.c and a line in the list of commands.h.
 */
#include "common/arena.h"
#include "common/commands.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static cli_exit cmd_help(int count, char *const *arguments);

static const struct {
    const char *name, *summary;
    const args_page *page;
    cli_exit (*run)(int count, char *const *arguments);
} commands[] = {
#define ROW(name, summary) {#name, summary, &name##_page, cmd_##name},
    CLI_COMMANDS(ROW)
#undef ROW
        {"help", "explain a subcommand, or 'exit-codes'", NULL, cmd_help},
};

enum { COMMAND_COUNT = sizeof commands / sizeof *commands };

static void print_overview(FILE *file)
{
    cli_print_to(file,
                 "multihead " CLI_VERSION ": see what the heads of multi-head attention attend to\n"
                 "\n"
                 "Usage:\n"
                 "  multihead SUBCOMMAND [options] [arguments]\n"
                 "\n"
                 "Examples:\n"
                 "  multihead view MODEL \"The cat sat on the mat\"\n"
                 "  multihead view MODEL --example animal -o report.html\n"
                 "  multihead heads MODEL --text letters.txt --sort role\n"
                 "  multihead run --example --causal\n"
                 "  multihead explain --like llama-2-70b --svg attention.svg\n"
                 "  multihead help view\n"
                 "\n"
                 "Subcommands:\n");
    for (int i = 0; i < COMMAND_COUNT; i++)
        cli_print_to(file, "  %-10s %s\n", commands[i].name, commands[i].summary);
    cli_print_to(file, "\n"
                       "Options:\n"
                       "  -h, --help     show this help, or that of a subcommand\n"
                       "      --version  print the version\n");
}

static void print_exit_codes(void)
{
    cli_print("Exit codes:\n");
#define PRINT_EXIT(name, value, text) cli_print("  %d  %s\n", value, text);
    CLI_EXIT_LIST(PRINT_EXIT)
#undef PRINT_EXIT
}

static cli_exit unknown_command(const char *word)
{
    const char *names[COMMAND_COUNT];
    for (int i = 0; i < COMMAND_COUNT; i++) names[i] = commands[i].name;
    const char *near = args_nearest(word, names, COMMAND_COUNT);
    if (near)
        return cli_fail(CLI_USAGE, NULL, "unknown subcommand '%s'; did you mean '%s'?", word, near);
    return cli_fail(CLI_USAGE, NULL, "unknown subcommand '%s'; 'multihead --help' lists them",
                    word);
}

static cli_exit run_command(const char *name, int count, char *const *arguments)
{
    int i = 0;
    bool done = false;
    while (i < COMMAND_COUNT && strcmp(commands[i].name, name) != 0) i++;
    if (i == COMMAND_COUNT) return unknown_command(name);
    if (commands[i].page) CLI_TRY(args_help(commands[i].page, count, arguments, &done));
    return done ? CLI_OK : commands[i].run(count, arguments);
}

static cli_exit cmd_help(int count, char *const *arguments)
{
    char flag[] = "--help", *help[] = {flag};
    const char *topic = count > 0 ? arguments[0] : "help";
    if (count > 1)
        return cli_fail(CLI_USAGE, "help", "one topic at a time: a subcommand or 'exit-codes'");
    if (!strcmp(topic, "exit-codes")) {
        print_exit_codes();
    } else if (!strcmp(topic, "help") || topic[0] == '-') {
        print_overview(stdout);
    } else {
        return run_command(topic, 1, help);
    }
    return CLI_OK;
}

/* A file that is opened must never get the number of a standard stream that the caller closed.
 * stdout's stand-in cannot be written to, so that lost data is still an error. */
static void occupy_standard_streams(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 2 ? O_WRONLY : O_RDONLY) < 0) return;
}

int main(int count, char **arguments)
{
    occupy_standard_streams();
    signal(SIGPIPE, SIG_IGN); /* a closed pipe becomes a failed write */
    signal(SIGXFSZ, SIG_IGN); /* and so does a limit on the size of files (ulimit -f) */
    const char *first = count > 1 ? arguments[1] : "";
    cli_exit code = CLI_OK;
    if (count < 2) {
        print_overview(stderr);
        code = CLI_USAGE;
    } else if (!strcmp(first, "--version")) {
        cli_print("multihead " CLI_VERSION "\n");
    } else if (!strcmp(first, "-h") || !strcmp(first, "--help")) {
        code = cmd_help(0, NULL);
    } else if (first[0] == '-') {
        code =
            cli_fail(CLI_USAGE, NULL,
                     "unknown option '%s'; options of a subcommand stand behind its name", first);
    } else {
        code = run_command(first, count - 2, arguments + 2);
    }
    arena_close();
    return (int)cli_finish_stdout(NULL, code);
}
