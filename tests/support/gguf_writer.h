/* GGUF files for tests, written field by field, so that any field can be wrong. Memory grows as
 * needed. A failed allocation ends the test. */
#ifndef GGUF_WRITER_H
#define GGUF_WRITER_H

#include <stddef.h>
#include <stdint.h>

/* The value types written by the functions below. */
enum { GGUF_U32 = 4, GGUF_F32 = 6, GGUF_STRING = 8, GGUF_ARRAY = 9 };

typedef struct gguf_writer {
    unsigned char *bytes; /* to free with free() */
    size_t size, room;
} gguf_writer;

void gguf_raw(gguf_writer *w, const void *bytes, size_t size);
void gguf_u32(gguf_writer *w, uint32_t value);
void gguf_u64(gguf_writer *w, uint64_t value);
void gguf_string(gguf_writer *w, const char *text); /* its length and bytes */
void gguf_pad(gguf_writer *w, size_t alignment);    /* zeros up to a multiple */

/* Write the magic number and counts. */
void gguf_begin(gguf_writer *w, uint32_t version, uint64_t tensors, uint64_t keys);

/* Write complete values, or the beginning of an array, whose elements follow. */
void gguf_key(gguf_writer *w, const char *key, uint32_t type);
void gguf_key_u32(gguf_writer *w, const char *key, uint32_t value);
void gguf_key_f32(gguf_writer *w, const char *key, float value);
void gguf_key_string(gguf_writer *w, const char *key, const char *value);
void gguf_key_array(gguf_writer *w, const char *key, uint32_t type, uint64_t count);

void gguf_tensor(gguf_writer *w, const char *name, uint32_t ndim, const uint64_t *dims,
                 uint32_t type, uint64_t offset);

#endif
