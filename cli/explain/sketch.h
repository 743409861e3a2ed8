/* Marks of a diagram's panel: boxes, arrows, texts, with the memory of the texts. */
#ifndef CLI_SKETCH_H
#define CLI_SKETCH_H

#include <multihead/render.h>

enum { SKETCH_MOST = 640, SKETCH_TEXT = 128 };

typedef struct sketch {
    mha_mark marks[SKETCH_MOST];
    char texts[SKETCH_MOST][SKETCH_TEXT];
    int64_t count, text_count;
} sketch;

/* A text with the lifetime of the sketch, truncated to SKETCH_TEXT bytes. */
const char *sketch_text(sketch *s, const char *format, ...) MHA_PRINTF(2, 3);

/* Add a mark at x, y with width and height, for the caller to fill in. Callers stay below
 * SKETCH_MOST marks; beyond that the last mark is overwritten. */
mha_mark *sketch_add(sketch *s, mha_mark_kind kind, mha_ink ink, double x, double y, double width,
                     double height);

mha_mark *sketch_box(sketch *s, mha_ink ink, double x, double y, double width, double height,
                     const char *text, const char *detail);
mha_mark *sketch_line(sketch *s, mha_ink ink, double x, double y, double to_x, double to_y,
                      uint32_t flags);

/* size 0: the default. */
void sketch_words(sketch *s, mha_ink ink, double x, double y, uint32_t flags, double size,
                  const char *format, ...) MHA_PRINTF(7, 8);

#endif
