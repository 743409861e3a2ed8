/* Text: decoding, visible forms of labels, and widths, independent of the locale. */
#ifndef MHAI_RENDER_TEXT_H
#define MHAI_RENDER_TEXT_H

#include <multihead/render.h>

/* Return the next code point of *text and advance *text past it. At the end, return 0 without
 * advancing. A byte outside well-formed UTF-8 gives U+FFFD and advances by one. */
uint32_t mhai_text_next(const char **text);

/* Write a code point as UTF-8, not terminated. Returns the length, 1..4. */
int mhai_text_encode(uint32_t code, char bytes[4]);

/* Columns on a terminal: 0, 1 or 2. */
int mhai_text_code_columns(uint32_t code);

/* The visible form of a label or a line of prose, always short enough for a picture. */
enum { MHAI_TEXT_BYTES = 384 };
typedef struct mhai_text {
    char text[MHAI_TEXT_BYTES];
} mhai_text;

typedef enum mhai_text_style {
    MHAI_TEXT_LABEL, /* a token: spaces and control characters become visible */
    MHAI_TEXT_ASCII, /* a token, with ASCII only */
    MHAI_TEXT_PROSE, /* a title: spaces are kept, line ends become spaces */
    MHAI_TEXT_ASCII_PROSE
} mhai_text_style;

/* The visible form of raw, truncated with an ellipsis. raw NULL gives the index. */
void mhai_text_visible(const char *raw, int64_t index, mhai_text_style style, mhai_text *visible);

/* Truncate to a number of terminal columns. A truncated text ends in an ellipsis ("~" for
 * ASCII). */
void mhai_text_cut_columns(mhai_text *text, int64_t columns, bool ascii);

/* Estimated width in em of a wide proportional sans-serif face (DejaVu Sans, Verdana), so that
 * layouts fit any face that the reader has. */
double mhai_text_em(const char *text);

/* Truncate to a width in em, with an ellipsis if truncated. */
void mhai_text_cut_em(mhai_text *text, double em);

/* Break prose into at most `most` lines no wider than limit, in em or in terminal columns, at
 * spaces if possible; the last line ends in an ellipsis if text remains. Returns the number of
 * lines, 0 for NULL and for an empty text. */
typedef enum mhai_text_unit {
    MHAI_TEXT_EM,
    MHAI_TEXT_COLUMNS,
    MHAI_TEXT_ASCII_COLUMNS
} mhai_text_unit;
int mhai_text_wrap(const char *raw, double limit, mhai_text_unit unit, mhai_text *lines, int most);

#endif
