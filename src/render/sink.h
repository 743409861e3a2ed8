/* Writing to a sink: buffered, with a sticky status, and numbers independent of the locale. */
#ifndef MHAI_RENDER_SINK_H
#define MHAI_RENDER_SINK_H

#include <multihead/render.h>

/* After the first failure nothing else reaches the sink. mhai_sink_flush() returns the status.
 */
typedef struct mhai_writer {
    const mha_sink *sink;
    mha_status status;
    size_t used;
    char block[8192];
} mhai_writer;

void mhai_sink_open(mhai_writer *writer, const mha_sink *sink);
void mhai_sink_bytes(mhai_writer *writer, const void *bytes, size_t count);
void mhai_sink_text(mhai_writer *writer, const char *text);

/* printf for strings and integers; floating point goes through mhai_sink_real(). At most 1000 bytes
 * per call: use mhai_sink_text() for longer texts. */
void mhai_sink_print(mhai_writer *writer, const char *format, ...) MHA_PRINTF(2, 3);

/* Write a coordinate with at most 2 decimals and no trailing zeros. */
void mhai_sink_real(mhai_writer *writer, double value);

/* Write text for XML or HTML, both element content and attributes. & < > " ' are escaped. Invalid
 * UTF-8, characters that XML 1.0 forbids and control characters become U+FFFD. */
void mhai_sink_escaped(mhai_writer *writer, const char *text);

/* Write a text between open and close, or nothing if it is NULL. */
void mhai_sink_element(mhai_writer *writer, const char *open, const char *text, const char *close);

void mhai_sink_base64(mhai_writer *writer, const void *bytes, size_t count);

/* The writer as a sink, which is valid until the writer is moved. */
mha_sink mhai_sink_of(mhai_writer *writer);

mha_status mhai_sink_flush(mhai_writer *writer);

/* Allocate count zeroed elements of size bytes. Returns NULL if the size overflows or memory runs
 * out. count 0 returns a pointer that can be freed. */
void *mhai_sink_alloc(int64_t count, size_t size);

#endif
