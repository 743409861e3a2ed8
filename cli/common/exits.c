/* Exit codes and messages. Data goes to stdout, everything here to stderr. */
#include "common/exits.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The one table from library status to exit code. A status that it lacks is an internal error. */
static const struct {
    mha_status status;
    cli_exit code;
} exit_of_status[] = {
    {MHA_OK, CLI_OK},
    {MHA_ERR_ARGUMENT, CLI_USAGE}, /* from the command line or the environment */
    {MHA_ERR_FILE, CLI_NO_INPUT},
    {MHA_ERR_FORMAT, CLI_BAD_INPUT},
    {MHA_ERR_UTF8, CLI_BAD_INPUT},
    {MHA_ERR_MODEL, CLI_BAD_INPUT},
    {MHA_ERR_NUMERIC, CLI_BAD_INPUT},
    {MHA_ERR_SHAPE, CLI_BAD_INPUT}, /* arrays with contradictory shapes */
    {MHA_ERR_SIZE, CLI_BAD_INPUT},
    {MHA_ERR_WRITE, CLI_NO_OUTPUT},
    {MHA_ERR_CALLBACK, CLI_NO_OUTPUT},
    {MHA_ERR_NOMEM, CLI_NO_MEMORY},
    {MHA_ERR_UNSUPPORTED, CLI_UNSUPPORTED},
    {MHA_ERR_RANK, CLI_NO_RANK},
};

const char *cli_running;

static struct {
    char *room;
    size_t size;
} kept;
/* The code of the last cli_fail(). A callback can only return MHA_ERR_CALLBACK through the library,
 * which has no exit code, so the code is stored here. */
static cli_exit reported;

void cli_fail_into(char *room, size_t size)
{
    kept.room = room;
    kept.size = size;
    reported = CLI_OK;
    if (room) room[0] = '\0';
}

cli_exit cli_fail(cli_exit code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (kept.room)
        vsnprintf(kept.room, kept.size, format, arguments);
    else
        cli_print_line(stderr, cli_running, "", format, arguments);
    va_end(arguments);
    reported = code;
    return code;
}

cli_exit cli_fail_status(mha_status status)
{
    cli_exit code = CLI_INTERNAL;
    for (size_t i = 0; i < sizeof exit_of_status / sizeof *exit_of_status; i++)
        if (exit_of_status[i].status == status) code = exit_of_status[i].code;
    if (status == MHA_ERR_CALLBACK) return reported != CLI_OK ? reported : code;
    const char *detail = *mha_error_detail() ? mha_error_detail() : mha_status_text(status);
    const size_t own = cli_running ? strlen(cli_running) : 0; /* named below */
    if (own > 0 && !strncmp(detail, cli_running, own) && !strncmp(detail + own, ": ", 2))
        detail += own + 2;
    const bool says = code != CLI_NO_MEMORY || strstr(detail, "memory");
    return cli_fail(code, "%s%s", detail, says ? "" : ": out of memory");
}

mha_status cli_status_of(cli_exit code)
{
    for (size_t i = 0; i < sizeof exit_of_status / sizeof *exit_of_status; i++)
        if (exit_of_status[i].code == code) return exit_of_status[i].status;
    return MHA_ERR_OVERLAP; /* this status is not in the table, so it becomes CLI_INTERNAL */
}

cli_exit cli_check(mha_status status)
{
    return status == MHA_OK ? CLI_OK : cli_fail_status(status);
}

void cli_warn(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    cli_print_line(stderr, cli_running, "warning: ", format, arguments);
    va_end(arguments);
}

void cli_note(bool quiet, const char *format, ...)
{
    if (quiet) return;
    va_list arguments;
    va_start(arguments, format);
    cli_print_line(stderr, NULL, NULL, format, arguments);
    va_end(arguments);
}

/* Whether stdout is a pipe without a reader. errno is lost if an earlier print failed. */
static bool reader_is_gone(void)
{
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&out, 1, 0) == 1 && out.revents & (POLLERR | POLLHUP);
}

cli_exit cli_finish_stdout(cli_exit code)
{
    errno = 0;
    bool failed = fflush(stdout) != 0 || ferror(stdout);
    if (!failed || code != CLI_OK) return code;
    const int error = errno;
    if (error == EPIPE || reader_is_gone()) return CLI_NO_OUTPUT;
    return cli_fail(CLI_NO_OUTPUT, "stdout: cannot write: %s",
                    error ? strerror(error) : "write error");
}
