/* JSON with this library's errors. Other code of the companion libraries must not
 * call jansson's loaders. */
#ifndef MHAI_JSON_FILE_H
#define MHAI_JSON_FILE_H

#include <multihead/base.h>

#include <jansson.h>

/* Parse size bytes of text from the file path. Duplicate keys are an error. The caller owns *root:
 * json_decref(). Errors: MHA_ERR_FORMAT with the byte offset, MHA_ERR_NOMEM. */
MHA_NODISCARD mha_status mhai_json_parse(const char *path, const char *text, size_t size,
                                         json_t **root);

/* Read and parse a file of at most limit bytes. Additional errors: MHA_ERR_FILE, MHA_ERR_SIZE. */
MHA_NODISCARD mha_status mhai_json_read(const char *path, size_t limit, json_t **root);

/* The same, but every number is read as a real. Tokenizer settings may contain integers beyond 64
 * bits, which mhai_json_read() rejects. */
MHA_NODISCARD mha_status mhai_json_read_reals(const char *path, size_t limit, json_t **root);

#endif
