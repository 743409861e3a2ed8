/* Texts: whole files, and the sentences that lessons on attention use. */
#ifndef CLI_TEXTS_H
#define CLI_TEXTS_H

#include "common/exits.h"

#include <jansson.h>
#include <stddef.h>

/* Remove a leading byte order mark. */
void texts_unmark(char *bytes, size_t *size);

/* A whole text file, or stdin for "-", without a byte order mark; ends with a NUL that is not
 * counted in *size. Errors are printed. */
cli_exit texts_read_file(const char *path, char **bytes, size_t *size);

/* A regular file (not a device or a pipe) of at most limit bytes, in the arena, NUL-terminated. */
cli_exit texts_read_regular(const char *path, size_t limit, char **bytes, size_t *size);

/* As texts_read_file(), validated as UTF-8. */
cli_exit texts_read_utf8(const char *path, const char **text, size_t *size);

/* Parse JSON into the arena. If the text is malformed, *root is NULL and *error describes it for
 * the caller to print. flags are jansson's. */
cli_exit texts_json(const char *path, const char *text, size_t size, size_t flags, json_t **root,
                    json_error_t *error);

/* The built-in sentence with a name or a number from 1. The text is static. Errors are printed. */
cli_exit texts_example(const char *name, const char **text);

/* The built-in sentence number index, from 0; NULL after the last one. */
const char *texts_example_at(int index);

#endif
