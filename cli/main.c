/* The program: find the subcommand, pass it its arguments and release the arena. */
#include "common/arena.h"
#include "common/commands.h"
#include "common/launched.h"
#include "common/signals.h"
#include "help/help.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static cli_exit run_command(const char *name, int count, char *const *arguments)
{
    const cli_command *command;
    bool done;
    CLI_TRY(cli_command_find(name, &command));
    cli_running = command->name;
    CLI_TRY(args_help(command->name, command->summary, command->page, count, arguments, &done));
    if (done) return CLI_OK;
    if (ranks_transport() && !cli_command_knows_ranks(command))
        return cli_fail(CLI_USAGE,
                        "started on %d ranks, but this subcommand runs on one; start it without a "
                        "launcher",
                        (int)ranks_transport()->size);
    return command->run(count, arguments);
}

/* An opened file must never get the number of a standard stream that the caller closed. The
 * replacement of stdout rejects writes, so lost data is still an error. */
static void occupy_standard_streams(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 2 ? O_WRONLY : O_RDONLY) < 0) return;
}

int main(int count, char **arguments)
{
    occupy_standard_streams();
    signal(SIGPIPE, SIG_IGN); /* a write to a closed pipe fails */
    signal(SIGXFSZ, SIG_IGN); /* also beyond the limit on file sizes (ulimit -f) */
    const char *first = count > 1 ? arguments[1] : "";
    cli_exit code = ranks_begin(count, arguments);
    if (code != CLI_OK) {
        /* the error is already reported */
    } else if (count < 2) {
        help_overview(stderr);
        code = CLI_USAGE;
    } else if (!strcmp(first, "--version")) {
        cli_print("multihead " CLI_VERSION CLI_LEFT_OUT "\n");
    } else if (!strcmp(first, "-h") || !strcmp(first, "--help")) {
        help_overview(stdout);
    } else if (first[0] == '-') {
        code = cli_fail(CLI_USAGE, "unknown option '%s'; options of a subcommand follow its name",
                        first);
    } else {
        code = run_command(first, count - 2, arguments + 2);
    }
    arena_close();
    code = ranks_end(cli_finish_stdout(code));
    if (code == CLI_OK && !ranks_transport()) signals_end();
    return (int)code;
}
