/* GGUF models in several files, which are opened as one. */
#ifndef MHAI_GGUF_SPLIT_H
#define MHAI_GGUF_SPLIT_H

#include <multihead/gguf.h>

/* The number of files: 1 unless the model is split. */
int64_t mhai_gguf_parts(const mha_gguf *file);

/* The path of a part of the file that was opened as `path`, for free(); NULL: no memory. */
char *mhai_gguf_part_path(const mha_gguf *file, const char *path, int64_t part);

/* The number of bytes before the first tensor's data in a part; SIZE_MAX without tensors. */
size_t mhai_gguf_part_header(const mha_gguf *file, int64_t part);

#endif
