/* All text that people read on stdout and stderr.
 *
 * Formats are trusted: they may contain line ends and terminal controls. Arguments may come from
 * anywhere (a token, a folder's name, a config.json): characters that a terminal would interpret or
 * hide (mha_text_next() in json.h), including line ends, are written as \x1b, \u202e or \U000e0041,
 * so that no name starts a new line. Bytes that are not UTF-8 are written as \xff.
 * tools/check_style.py rejects any other writes to the two streams in cli/. Data (JSON, CSV, SVG,
 * arrays) goes through files.c.
 */
#ifndef CLI_PRINT_H
#define CLI_PRINT_H

#include <multihead/base.h>

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

/* Write the visible form of the code point at *text, and advance *text. The operation is idempotent. */
enum { CLI_SHOWN_BYTES = 16 };
void cli_show(const char **text, const char *end, char shown[CLI_SHOWN_BYTES]);

/* printf() of d i u x c s e f g and %%, with flags - + 0, width, precision and l ll z j. A width
 * is in terminal columns of the visible form; a precision is in bytes and never splits a
 * character. Returns the columns written, all lines together. */
int cli_print(const char *format, ...) MHA_PRINTF(1, 2);
int cli_print_to(FILE *file, const char *format, ...) MHA_PRINTF(2, 3);
int cli_print_list(FILE *file, const char *format, va_list arguments) MHA_PRINTF(2, 0);

/* Print a line "multihead: command: kind message". Parts that are NULL are omitted; if kind is
 * NULL, so is the program's name. A line of up to a kilobyte is one write, so that lines of several
 * ranks do not mix. */
void cli_print_line(FILE *file, const char *command, const char *kind, const char *format,
                    va_list arguments) MHA_PRINTF(4, 0);

/* Suppress everything on stderr from here on. */
void cli_print_silence(bool silent);

/* Print text on stdout after label, wrapped at spaces to the width. Continuation lines are indented
 * by the label's columns. */
void cli_print_wrapped(const char *label, const char *text, int64_t width);

/* Print text on stdout, truncated with an ellipsis to at most `columns` columns. */
void cli_print_cut(const char *text, int64_t columns, bool ascii);

#endif
