#include "support/gguf_writer.h"

#include "support/suite.h"

#include <stdlib.h>
#include <string.h>

void gguf_raw(gguf_writer *w, const void *bytes, size_t size)
{
    if (w->size + size > w->room) {
        w->room = 2 * (w->size + size);
        w->bytes = realloc(w->bytes, w->room);
        assert_non_null(w->bytes);
    }
    if (size > 0) memcpy(w->bytes + w->size, bytes, size);
    w->size += size;
}

void gguf_u32(gguf_writer *w, uint32_t value)
{
    gguf_raw(w, &value, sizeof value);
}

void gguf_u64(gguf_writer *w, uint64_t value)
{
    gguf_raw(w, &value, sizeof value);
}

void gguf_string(gguf_writer *w, const char *text)
{
    gguf_u64(w, strlen(text));
    gguf_raw(w, text, strlen(text));
}

void gguf_pad(gguf_writer *w, size_t alignment)
{
    while (w->size % alignment != 0) gguf_raw(w, "", 1);
}

void gguf_begin(gguf_writer *w, uint32_t version, uint64_t tensors, uint64_t keys)
{
    gguf_raw(w, "GGUF", 4);
    gguf_u32(w, version);
    gguf_u64(w, tensors);
    gguf_u64(w, keys);
}

void gguf_key(gguf_writer *w, const char *key, uint32_t type)
{
    gguf_string(w, key);
    gguf_u32(w, type);
}

void gguf_key_u32(gguf_writer *w, const char *key, uint32_t value)
{
    gguf_key(w, key, GGUF_U32);
    gguf_u32(w, value);
}

void gguf_key_f32(gguf_writer *w, const char *key, float value)
{
    gguf_key(w, key, GGUF_F32);
    gguf_raw(w, &value, sizeof value);
}

void gguf_key_string(gguf_writer *w, const char *key, const char *value)
{
    gguf_key(w, key, GGUF_STRING);
    gguf_string(w, value);
}

void gguf_key_array(gguf_writer *w, const char *key, uint32_t type, uint64_t count)
{
    gguf_key(w, key, GGUF_ARRAY);
    gguf_u32(w, type);
    gguf_u64(w, count);
}

void gguf_tensor(gguf_writer *w, const char *name, uint32_t ndim, const uint64_t *dims,
                 uint32_t type, uint64_t offset)
{
    gguf_string(w, name);
    gguf_u32(w, ndim);
    gguf_raw(w, dims, ndim * sizeof *dims);
    gguf_u32(w, type);
    gguf_u64(w, offset);
}
