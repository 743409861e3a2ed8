/* Exit codes and messages. Data goes to stdout, everything here to stderr. */
#include "exits.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The one table from a library status to an exit code. What is not here is a fault of ours. */
static const struct {
    mha_status status;
    cli_exit code;
} exit_of_status[] = {
    {MHA_OK, CLI_OK},
    {MHA_ERR_ARGUMENT, CLI_USAGE}, /* what the command line or the environment said */
    {MHA_ERR_FILE, CLI_NO_INPUT},
    {MHA_ERR_FORMAT, CLI_BAD_INPUT},
    {MHA_ERR_UTF8, CLI_BAD_INPUT},
    {MHA_ERR_MODEL, CLI_BAD_INPUT},
    {MHA_ERR_NUMERIC, CLI_BAD_INPUT},
    {MHA_ERR_SIZE, CLI_BAD_INPUT},
    {MHA_ERR_WRITE, CLI_NO_OUTPUT},
    {MHA_ERR_CALLBACK, CLI_NO_OUTPUT},
    {MHA_ERR_NOMEM, CLI_NO_MEMORY},
    {MHA_ERR_UNSUPPORTED, CLI_UNSUPPORTED},
};

/* The code point at text if it must not reach a terminal as it is, and its bytes: controls of both
 * sets, and the marks that turn the direction of writing, which make one name look like another.
 * A file's name may hold any of them. */
static unsigned hidden_character(const unsigned char *text, int *bytes)
{
    unsigned c = text[0];
    *bytes = 1;
    if (c < 0x20 || c == 0x7f) return c;
    if ((c == 0xC2 || c == 0xD8) && (text[1] & 0xC0) == 0x80) {
        *bytes = 2;
        c = (c & 31) << 6 | (text[1] & 63u);
        return c < 0xA0 || c == 0x61C ? c : 0;
    }
    if (c != 0xE2 || (text[1] != 0x80 && text[1] != 0x81) || (text[2] & 0xC0) != 0x80) return 0;
    *bytes = 3;
    c = 0x2000 | (text[1] & 63u) << 6 | (text[2] & 63u);
    bool turns = c == 0x200E || c == 0x200F || (c >= 0x2028 && c <= 0x202E);
    return turns || (c >= 0x2066 && c <= 0x2069) ? c : 0;
}

/* A line of messages on stderr, whatever it quotes. */
static void put_line(const char *line)
{
    for (const unsigned char *at = (const unsigned char *)line; *at;) {
        int bytes;
        unsigned hidden = hidden_character(at, &bytes);
        if (!hidden)
            putc(*at++, stderr);
        else if (fprintf(stderr, hidden < 0x80 ? "\\x%02x" : "\\u%04x", hidden) > 0)
            at += bytes;
        else
            break;
    }
    putc('\n', stderr);
}

/* kind NULL: a note, without the program's name before it. */
static void print_line(const char *command, const char *kind, const char *format, va_list arguments)
    MHA_PRINTF(3, 0);

static void print_line(const char *command, const char *kind, const char *format, va_list arguments)
{
    char line[1024];
    vsnprintf(line, sizeof line, format, arguments);
    if (kind)
        fprintf(stderr, "multihead: %s%s%s", command ? command : "", command ? ": " : "", kind);
    put_line(line);
}

cli_exit cli_fail(cli_exit code, const char *command, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print_line(command, "", format, arguments);
    va_end(arguments);
    return code;
}

cli_exit cli_fail_status(const char *command, mha_status status)
{
    cli_exit code = CLI_INTERNAL;
    for (size_t i = 0; i < sizeof exit_of_status / sizeof *exit_of_status; i++)
        if (exit_of_status[i].status == status) code = exit_of_status[i].code;
    if (status == MHA_ERR_CALLBACK) return code;
    const char *detail = mha_error_detail();
    return cli_fail(code, command, "%s", *detail ? detail : mha_status_text(status));
}

void cli_warn(const char *command, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print_line(command, "warning: ", format, arguments);
    va_end(arguments);
}

void cli_note(bool quiet, const char *format, ...)
{
    if (quiet) return;
    va_list arguments;
    va_start(arguments, format);
    print_line(NULL, NULL, format, arguments);
    va_end(arguments);
}

cli_exit cli_finish_stdout(const char *command, cli_exit code)
{
    errno = 0;
    bool failed = fflush(stdout) != 0 || ferror(stdout);
    if (!failed || code != CLI_OK) return code;
    if (errno == EPIPE) return CLI_NO_OUTPUT;
    return cli_fail(CLI_NO_OUTPUT, command, "stdout: cannot write: %s",
                    errno ? strerror(errno) : "write error");
}
