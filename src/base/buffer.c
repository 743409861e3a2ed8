/* A sink that writes to memory. */
#include <multihead/component.h>
#include <multihead/sink.h>

#include <stdlib.h>
#include <string.h>

static mha_status buffer_write(void *user, const void *bytes, size_t count)
{
    mha_buffer *buffer = user;
    if (count > SIZE_MAX / 4 - buffer->size)
        return mha_fail(MHA_ERR_NOMEM, "buffer: %zu more bytes do not fit in memory", count);
    size_t need = buffer->size + count + 1;
    if (need > buffer->capacity) {
        size_t capacity = need < 4096 ? 4096 : need + need / 2;
        char *grown = realloc(buffer->data, capacity);
        if (!grown) return mha_fail(MHA_ERR_NOMEM, "buffer: cannot allocate %zu bytes", capacity);
        buffer->data = grown;
        buffer->capacity = capacity;
    }
    memcpy(buffer->data + buffer->size, bytes, count);
    buffer->size += count;
    buffer->data[buffer->size] = 0;
    return MHA_OK;
}

mha_sink mha_buffer_sink(mha_buffer *buffer)
{
    return (mha_sink){buffer_write, buffer};
}

void mha_buffer_free(mha_buffer *buffer)
{
    if (!buffer) return;
    free(buffer->data);
    *buffer = (mha_buffer){0};
}
