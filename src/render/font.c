/* Text from one named font file, so that no setting of the machine (fontconfig) changes a picture.
 * Outlines are not hinted, so that text keeps its shape when rotated or scaled, and does not depend
 * on the build of FreeType. FreeType draws the pixels, because cairo before 1.18 puts glyphs on whole
 * pixels, and cairo 1.16 aborts if memory runs out while it fills outlines. A PDF contains text. */
#include "font.h"

#include "text.h"

#include <multihead/component.h>

#include <cairo-ft.h>
#include FT_OUTLINE_H

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct mhai_font {
    FT_Library library;
    FT_Face face;
    bool no_memory;
    const char *path;
    cairo_font_face_t *cairo; /* created for the first PDF */
    mhai_font *mono;          /* created like cairo; this font if no face has a fixed width */
};

enum { HOW = FT_LOAD_NO_HINTING | FT_LOAD_NO_BITMAP };

void mhai_font_note(mhai_font *font)
{
    if (errno == ENOMEM) font->no_memory = true;
}

/* Whether a FreeType call succeeded. A missing glyph is not an error, but lack of memory is. */
static bool done(mhai_font *font, FT_Error error)
{
    if (FT_ERROR_BASE(error) == FT_Err_Out_Of_Memory) font->no_memory = true;
    mhai_font_note(font); /* before another call sets errno */
    return error == 0;
}

static const char *const places[] = {
    "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf",   /* Debian, Ubuntu */
    "/usr/share/fonts/dejavu-sans-fonts/DejaVuSans.ttf", /* Fedora */
    "/usr/share/fonts/dejavu/DejaVuSans.ttf",
    "/usr/share/fonts/TTF/DejaVuSans.ttf", /* Arch */
    "/usr/local/share/fonts/dejavu/DejaVuSans.ttf",
    "/usr/share/fonts/truetype/noto/NotoSans-Regular.ttf",
    "/usr/share/fonts/truetype/liberation/LiberationSans-Regular.ttf",
    "/usr/share/fonts/truetype/freefont/FreeSans.ttf",
    "/System/Library/Fonts/Supplemental/Arial Unicode.ttf",
};

static mha_status open_named(mhai_font *font, const char *file, const char *who)
{
    if (!done(font, FT_New_Face(font->library, file, 0, &font->face)))
        return mha_fail(MHA_ERR_FILE, "%s: cannot read the font %s, name a TrueType file", who,
                        file);
    font->path = file;
    if (!FT_IS_SCALABLE(font->face))
        return mha_fail(MHA_ERR_FILE, "%s: %s is not a scalable font", who, file);
    return MHA_OK;
}

static mha_status open_face(mhai_font *font, const char *file)
{
    const char *environment = getenv("MHA_FONT");
    if (file && *file) return open_named(font, file, "font_file");
    if (environment && *environment) return open_named(font, environment, "MHA_FONT");
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (done(font, FT_New_Face(font->library, font->path = places[i], 0, &font->face)))
            return MHA_OK;
    return mha_fail(MHA_ERR_FILE,
                    "PNG, PDF: no font found: apt install fonts-dejavu-core, or set MHA_FONT "
                    "to a TrueType file");
}

mha_status mhai_font_open(const char *file, mhai_font **font)
{
    *font = NULL;
    errno = 0;
    mhai_font *made = calloc(1, sizeof *made);
    if (!made || FT_Init_FreeType(&made->library) != 0) {
        free(made);
        return mha_fail(MHA_ERR_NOMEM, "PNG, PDF: cannot start FreeType");
    }
    mhai_font_note(made); /* it omits modules if memory is short */
    mha_status status = open_face(made, file);
    if (made->no_memory) status = mhai_font_check(made);
    if (status)
        mhai_font_close(made);
    else
        *font = made;
    return status;
}

static void end(void *font)
{
    FT_Done_FreeType(((mhai_font *)font)->library); /* also frees the face */
    free(font);
}

void mhai_font_close(mhai_font *font)
{
    if (!font) return;
    if (font->mono != font) mhai_font_close(font->mono);
    if (font->cairo)
        cairo_font_face_destroy(font->cairo); /* cairo keeps the file open while the face is used */
    else
        end(font);
}

mha_status mhai_font_check(const mhai_font *font)
{
    const mhai_font *mono = font->mono;
    return font->no_memory || (mono && mono->no_memory)
               ? mha_fail(MHA_ERR_NOMEM, "picture: out of memory")
               : MHA_OK;
}

/* Load the outline of a code point into the slot; false if there is nothing to draw (marks and
 * joiners that the face lacks). */
static bool load_glyph(mhai_font *font, uint32_t code)
{
    FT_UInt glyph = FT_Get_Char_Index(font->face, code);
    if (!glyph && mhai_text_code_columns(code) == 0) return false;
    return done(font, FT_Load_Glyph(font->face, glyph, HOW));
}

static double advance(FT_Face face)
{
    return (double)face->glyph->linearHoriAdvance / 65536;
}

static double line_width(mhai_font *font, const char *text)
{
    double width = 0;
    uint32_t code;
    while ((code = mhai_text_next(&text)) != 0)
        if (load_glyph(font, code)) width += advance(font->face);
    return width;
}

/* Draw the glyph in the slot with its origin at (x, y); the outline in the slot already includes
 * the fraction of the position. */
static void draw_glyph(mhai_font *font, const mhai_pen *pen, double x, double y,
                       mhai_font_blend blend, void *user)
{
    FT_GlyphSlot slot = font->face->glyph;
    if (pen->bold)
        done(font, FT_Outline_Embolden(&slot->outline, (FT_Pos)lround(pen->size * 64 / 22)));
    if (!done(font, FT_Render_Glyph(slot, FT_RENDER_MODE_NORMAL))) return;
    const FT_Bitmap *bitmap = &slot->bitmap;
    if (bitmap->pixel_mode != FT_PIXEL_MODE_GRAY || !bitmap->buffer) return;
    blend(user, (int64_t)floor(x) + slot->bitmap_left, (int64_t)floor(y) - slot->bitmap_top,
          (int)bitmap->width, (int)bitmap->rows, bitmap->buffer, bitmap->pitch);
}

void mhai_font_draw(mhai_font *font, const mhai_pen *pen, const char *text, mhai_font_blend blend,
                    void *user)
{
    FT_Face face = font->face;
    if (!done(font, FT_Set_Char_Size(face, 0, (FT_F26Dot6)lround(pen->size * 64), 72, 72))) return;
    FT_Set_Transform(face, NULL, NULL);
    double radians = pen->angle * acos(-1) / 180, cosine = cos(radians), sine = sin(radians);
    double at = 0;
    if (pen->anchor != MHAI_START) at = -line_width(font, text) / (pen->anchor == MHAI_END ? 1 : 2);
    /* FreeType's y axis points up, so a clockwise rotation is one by -angle there. */
    FT_Matrix turn = {(FT_Fixed)lround(cosine * 65536), (FT_Fixed)lround(sine * 65536),
                      (FT_Fixed)lround(-sine * 65536), (FT_Fixed)lround(cosine * 65536)};
    uint32_t code;
    while ((code = mhai_text_next(&text)) != 0) {
        double x = pen->x + at * cosine, y = pen->y + at * sine;
        FT_Vector fraction = {(FT_Pos)lround((x - floor(x)) * 64),
                              (FT_Pos)lround((floor(y) - y) * 64)};
        FT_Set_Transform(face, &turn, &fraction);
        if (!load_glyph(font, code)) continue;
        at += advance(face);
        draw_glyph(font, pen, x, y, blend, user);
    }
}

/* ---- For a PDF ------------------------------------------------------------------------------- */

/* The fixed-width face in the folder of DejaVu Sans. */
static void open_mono(mhai_font *font)
{
    static const char sans[] = "DejaVuSans.ttf";
    const size_t length = strlen(font->path), tail = sizeof sans - 1;
    char path[512];
    font->mono = font;
    if (length < tail || strcmp(font->path + length - tail, sans) || length > sizeof path - 8)
        return;
    snprintf(path, sizeof path, "%.*sMono.ttf", (int)(length - 4), font->path);
    mhai_font *mono;
    mhai_font_note(font);
    const mha_status status = mhai_font_open(path, &mono);
    if (status == MHA_OK) font->mono = mono;
    if (status == MHA_ERR_NOMEM) font->no_memory = true;
}

cairo_font_face_t *mhai_font_face(mhai_font *font, bool mono)
{
    static const cairo_user_data_key_t key;
    if (mono && !font->mono) open_mono(font);
    if (mono && font->mono != font) return mhai_font_face(font->mono, false);
    if (font->cairo) return font->cairo;
    cairo_font_face_t *made = cairo_ft_font_face_create_for_ft_face(font->face, HOW);
    if (cairo_font_face_set_user_data(made, &key, font, end)) {
        font->no_memory = true;
        cairo_font_face_destroy(made);
        return NULL;
    }
    return font->cairo = made;
}

void mhai_font_text(const mhai_font *font, const char *text, char *shown, size_t size)
{
    char *to = shown;
    for (uint32_t code; (code = mhai_text_next(&text)) != 0 && to + 4 < shown + size;) {
        if (mhai_text_code_columns(code) == 0 && !FT_Get_Char_Index(font->face, code)) continue;
        if (code >= 0xFDD0 && code <= 0xFDEF)
            code = 0xFFFD; /* not characters: cairo rejects
                                                                them */
        to += mhai_text_encode(code, to);
    }
    *to = 0;
}
