/* How the program ends and reports: exit codes, one-line errors, notes on stderr. */
#ifndef CLI_EXITS_H
#define CLI_EXITS_H

#include "common/print.h"

#include <stdbool.h>

/* The one list of exit codes: name, value, text. They are documented and must not change, because
 * scripts rely on them. */
#define CLI_EXIT_LIST(X)                                                                \
    X(CLI_OK, 0, "success")                                                             \
    X(CLI_INTERNAL, 1, "unexpected: a bug in the program, or a failed selftest")        \
    X(CLI_USAGE, 2, "the command line or an environment variable is wrong")             \
    X(CLI_NO_INPUT, 3, "an input file or folder is missing or cannot be read")          \
    X(CLI_BAD_INPUT, 4,                                                                 \
      "an input's content cannot be used: malformed, contradictory, empty, "            \
      "too long, not UTF-8")                                                            \
    X(CLI_UNSUPPORTED, 5, "an unsupported kind of model, file or machine")              \
    X(CLI_NO_OUTPUT, 6, "an output cannot be written; no message if a pipe was closed") \
    X(CLI_NO_MEMORY, 7, "out of memory")                                                \
    X(CLI_NO_RANK, 8, "another rank of the run is lost or cannot be reached")

typedef enum cli_exit {
#define CLI_EXIT_ENUM(name, value, text) name = value,
    CLI_EXIT_LIST(CLI_EXIT_ENUM)
#undef CLI_EXIT_ENUM
} cli_exit;

/* The subcommand that main() runs, for messages; NULL before there is one. */
extern const char *cli_running;

/* Return the exit code of a call that failed. */
#define CLI_TRY(call)                              \
    do {                                           \
        const cli_exit try_code_ = (call);         \
        if (try_code_ != CLI_OK) return try_code_; \
    } while (0)

/* Print "multihead: command: message" on stderr and return code. */
cli_exit cli_fail(cli_exit code, const char *format, ...) MHA_PRINTF(2, 3);

/* The same for a failed library call, with its detail; exits.c maps the status to the exit code.
 * MHA_ERR_CALLBACK prints nothing: only the program's own callbacks return it, after they have
 * reported the error or if there is none. */
cli_exit cli_fail_status(mha_status status);

/* Redirect the messages of cli_fail() into room, truncated to size bytes including the NUL. room
 * NULL: to stderr again. For subcommands that report errors to a client. */
void cli_fail_into(char *room, size_t size);

/* The library status that cli_fail_status() maps back to this code. */
mha_status cli_status_of(cli_exit code);

/* CLI_OK for MHA_OK, else cli_fail_status(). */
cli_exit cli_check(mha_status status);

/* "multihead: command: warning: ..." on stderr. */
void cli_warn(const char *format, ...) MHA_PRINTF(1, 2);

/* Print a line on stderr, unless quiet. */
void cli_note(bool quiet, const char *format, ...) MHA_PRINTF(2, 3);

/* Flush stdout. A failed write is an error, except to a closed pipe. */
cli_exit cli_finish_stdout(cli_exit code);

#endif
