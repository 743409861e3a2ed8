/* A TrueType face, for drawing text into pixels. */
#ifndef MHAI_RENDER_FONT_H
#define MHAI_RENDER_FONT_H

#include "canvas.h"

typedef struct mhai_font mhai_font;

/* file NULL: $MHA_FONT, then well-known places. Free with mhai_font_close(); NULL is fine there. */
mha_status mhai_font_open(const char *file, mhai_font **font);
void mhai_font_close(mhai_font *font);

/* Coverage 0..255 of a bitmap whose upper left pixel is (x, y). */
typedef void (*mhai_font_blend)(void *user, int64_t x, int64_t y, int width, int height,
                                const unsigned char *coverage, int stride);

/* Draw a line of text: positions and size of the pen are in pixels here. Glyphs that the face does
 * not have are its box. */
void mhai_font_draw(mhai_font *font, const mhai_pen *pen, const char *text, mhai_font_blend blend,
                    void *user);

/* MHA_ERR_NOMEM if something was left out because memory was short. */
mha_status mhai_font_check(const mhai_font *font);

#endif
