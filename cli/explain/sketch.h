/* Marks of a diagram's panel as they are thought of: boxes, arrows, words; texts are kept here. */
#ifndef CLI_SKETCH_H
#define CLI_SKETCH_H

#include <multihead/render.h>

enum { SKETCH_MOST = 640, SKETCH_TEXT = 128 };

typedef struct sketch {
    mha_mark marks[SKETCH_MOST];
    char texts[SKETCH_MOST][SKETCH_TEXT];
    int64_t count, text_count;
} sketch;

/* A text that lives as long as the sketch, cut at SKETCH_TEXT. */
const char *sketch_text(sketch *s, const char *format, ...) MHA_PRINTF(2, 3);

/* A mark to fill in. Callers stay below SKETCH_MOST; beyond it the last one is overwritten. */
mha_mark *sketch_add(sketch *s, mha_mark_kind kind, mha_ink ink, double x, double y);

mha_mark *sketch_box(sketch *s, mha_ink ink, const double at[4], const char *text,
                     const char *detail);
mha_mark *sketch_line(sketch *s, mha_ink ink, const double from_to[4], uint32_t flags);
mha_mark *sketch_words(sketch *s, mha_ink ink, double x, double y, uint32_t flags,
                       const char *text);

#endif
