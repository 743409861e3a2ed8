/* Texts: whole files, and the sentences that lessons on attention use. */
#ifndef CLI_TEXTS_H
#define CLI_TEXTS_H

#include "common/exits.h"

#include <jansson.h>
#include <stddef.h>

/* Remove a leading byte order mark. */
void texts_unmark(char *bytes, size_t *size);

/* A whole text file, or stdin for "-", without a byte order mark; ends with a NUL that *size does
 * not count. Errors are printed. */
cli_exit texts_read_file(const char *path, char **bytes, size_t *size);

/* A regular file (no device, no pipe) of at most limit bytes; in the arena, NUL-terminated. */
cli_exit texts_read_regular(const char *path, size_t limit, char **bytes, size_t *size);

/* As texts_read_file(), validated as UTF-8. */
cli_exit texts_read_utf8(const char *path, const char **text, size_t *size);

/* A JSON value in the arena; *root NULL: malformed, described in *error for the caller to print.
 * flags are jansson's. */
cli_exit texts_json(const char *path, const char *text, size_t size, size_t flags, json_t **root,
                    json_error_t *error);

/* The built-in sentence of a name, or of a number from 1; static text. Errors are printed. */
cli_exit texts_example(const char *name, const char **text);

/* Sentence number index from 0; NULL after the last one. */
const char *texts_example_at(int index);

#endif
