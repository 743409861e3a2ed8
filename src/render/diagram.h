/* A diagram, checked and laid out. */
#ifndef MHAI_RENDER_DIAGRAM_H
#define MHAI_RENDER_DIAGRAM_H

#include "canvas.h"
#include "sink.h"
#include "text.h"

enum { MHAI_DIAGRAM_CAPTION_LINES = 6, MHAI_DIAGRAM_HEAD_LINES = 4 };

/* A card on the page. */
typedef struct mhai_card {
    mha_diagram_panel panel; /* checked */
    double x, y, width, height;
    double drawing_x, drawing_y; /* the origin of its marks */
    mhai_text caption[MHAI_DIAGRAM_CAPTION_LINES];
    int caption_lines;
} mhai_card;

typedef struct mhai_diagram {
    mha_diagram diagram; /* checked */
    mhai_card *cards;    /* [panel_count] */
    double width, height;
    mhai_text subtitle[MHAI_DIAGRAM_HEAD_LINES], footnote[MHAI_DIAGRAM_HEAD_LINES];
    int subtitle_lines, footnote_lines;
} mhai_diagram;

/* Check and lay out; free also after a failure. */
mha_status mhai_diagram_make(const mha_diagram *diagram, mhai_diagram *out);
void mhai_diagram_free(mhai_diagram *diagram);

/* Mark i of a checked panel. */
mha_mark mhai_diagram_mark(const mha_diagram *diagram, const mha_diagram_panel *panel, int64_t i);

/* Sizes of faces and distances, in units of the drawing. */
enum {
    MHAI_DIAGRAM_MARGIN = 24,
    MHAI_DIAGRAM_GAP = 18, /* between cards */
    MHAI_DIAGRAM_PAD = 22, /* in a card */
    MHAI_DIAGRAM_TITLE = 25,
    MHAI_DIAGRAM_SUBTITLE = 14,
    MHAI_DIAGRAM_SUBTITLE_LINE = 20,
    MHAI_DIAGRAM_CARD_TITLE = 17,
    MHAI_DIAGRAM_CAPTION = 13,
    MHAI_DIAGRAM_CAPTION_LINE = 18,
    MHAI_DIAGRAM_FOOT = 12,
    MHAI_DIAGRAM_FOOT_LINE = 16
};

#endif
