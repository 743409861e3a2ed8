/* A font file, for text in pixels and in a PDF. */
#ifndef MHAI_RENDER_FONT_H
#define MHAI_RENDER_FONT_H

#include "canvas.h"

#include <cairo.h>

typedef struct mhai_font mhai_font;

/* file NULL: $MHA_FONT, then well-known places. Free with mhai_font_close(); NULL is fine there. */
mha_status mhai_font_open(const char *file, mhai_font **font);
void mhai_font_close(mhai_font *font);

/* Coverage 0..255 of a bitmap whose upper left pixel is (x, y). */
typedef void (*mhai_font_blend)(void *user, int64_t x, int64_t y, int width, int height,
                                const unsigned char *coverage, int stride);

/* Draw a line of text: positions and size of the pen are in pixels here. Glyphs that the face lacks
 * are drawn as its box. */
void mhai_font_draw(mhai_font *font, const mhai_pen *pen, const char *text, mhai_font_blend blend,
                    void *user);

/* If memory is short, FreeType and cairo omit parts and report success; only errno, which
 * mhai_font_open() clears, shows it. Call this before other code sets errno. */
void mhai_font_note(mhai_font *font);

/* MHA_ERR_NOMEM if something was omitted because memory was short. */
mha_status mhai_font_check(const mhai_font *font);

/* For cairo, owned by the font; NULL: short of memory. mono: its face of fixed width, if there is one. */
cairo_font_face_t *mhai_font_face(mhai_font *font, bool mono);

/* The part of a line that cairo accepts: valid UTF-8, without marks and joiners that the face
 * lacks. */
void mhai_font_text(const mhai_font *font, const char *text, char *shown, size_t size);

#endif
