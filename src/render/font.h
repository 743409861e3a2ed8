/* A font file, for text in pixels and in a PDF. */
#ifndef MHAI_RENDER_FONT_H
#define MHAI_RENDER_FONT_H

#include "canvas.h"

#include <cairo.h>

typedef struct mhai_font mhai_font;

/* Open a font. file NULL: $MHA_FONT, otherwise well-known places. Free it with mhai_font_close(),
 * which accepts NULL. */
mha_status mhai_font_open(const char *file, mhai_font **font);
void mhai_font_close(mhai_font *font);

/* Coverage 0..255 of a bitmap whose upper left pixel is (x, y). */
typedef void (*mhai_font_blend)(void *user, int64_t x, int64_t y, int width, int height,
                                const unsigned char *coverage, int stride);

/* Draw a line of text. The pen's position and size are in pixels here. Glyphs that the face lacks
 * are drawn as its box. */
void mhai_font_draw(mhai_font *font, const mhai_pen *pen, const char *text, mhai_font_blend blend,
                    void *user);

/* If memory runs out, FreeType and cairo omit parts and report success. Only errno, which
 * mhai_font_open() clears, shows the error. Call this before other code sets errno. */
void mhai_font_note(mhai_font *font);

/* Returns MHA_ERR_NOMEM if something was omitted because memory ran out. */
mha_status mhai_font_check(const mhai_font *font);

/* A face for cairo, owned by the font; NULL: out of memory. mono: the fixed-width face, if there is
 * one. */
cairo_font_face_t *mhai_font_face(mhai_font *font, bool mono);

/* The part of a line that cairo accepts: valid UTF-8, without marks and joiners that the face
 * lacks. */
void mhai_font_text(const mhai_font *font, const char *text, char *shown, size_t size);

#endif
