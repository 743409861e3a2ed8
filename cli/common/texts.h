/* Texts: whole files, and the sentences that lessons on attention use. */
#ifndef CLI_TEXTS_H
#define CLI_TEXTS_H

#include "common/exits.h"

#include <jansson.h>
#include <stddef.h>

/* A whole file, or stdin for "-", whatever kind of file it is; ends with a NUL that *size does not
 * count. Errors are printed. */
cli_exit texts_read_file(const char *command, const char *path, char **bytes, size_t *size);

/* A regular file, no device and no pipe, of at most limit bytes; in the arena, with a zero byte behind. */
cli_exit texts_read_regular(const char *command, const char *path, size_t limit, char **bytes,
                            size_t *size);

/* The same of text that must be UTF-8; a byte order mark at its beginning is left out. */
cli_exit texts_read_utf8(const char *command, const char *path, const char **text, size_t *size);

/* A JSON value, in the arena; *root NULL: malformed, as *error says, and the caller prints it. flags are
 * jansson's. */
cli_exit texts_json(const char *command, const char *path, const char *text, size_t size,
                    size_t flags, json_t **root, json_error_t *error);

/* The built-in sentence of a name, or of a number from 1; static text. Errors are printed. */
cli_exit texts_example(const char *command, const char *name, const char **text);

/* Sentence number index from 0; NULL after the last one. */
const char *texts_example_at(int index);

#endif
