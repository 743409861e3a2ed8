/* Text through FreeType: outlines without hinting, so that turned and scaled text looks alike and
 * does not depend on how FreeType was built. */
#include "font.h"

#include "text.h"

#include <multihead/component.h>

#include <ft2build.h>
#include FT_FREETYPE_H
#include FT_OUTLINE_H

#include <math.h>
#include <stdlib.h>

struct mhai_font {
    FT_Library library;
    FT_Face face;
    bool no_memory;
};

/* Whether FreeType did what it should. A face may lack something, memory must not. */
static bool done(mhai_font *font, FT_Error error)
{
    if (FT_ERROR_BASE(error) == FT_Err_Out_Of_Memory) font->no_memory = true;
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
        if (done(font, FT_New_Face(font->library, places[i], 0, &font->face))) return MHA_OK;
    return mha_fail(MHA_ERR_FILE,
                    "PNG: no font found: apt install fonts-dejavu-core, or set MHA_FONT "
                    "to a TrueType file");
}

mha_status mhai_font_open(const char *file, mhai_font **font)
{
    *font = NULL;
    mhai_font *made = calloc(1, sizeof *made);
    if (!made || FT_Init_FreeType(&made->library) != 0) {
        free(made);
        return mha_fail(MHA_ERR_NOMEM, "PNG: cannot start FreeType");
    }
    mha_status status = open_face(made, file);
    if (status && made->no_memory) status = mhai_font_check(made);
    if (status)
        mhai_font_close(made);
    else
        *font = made;
    return status;
}

void mhai_font_close(mhai_font *font)
{
    if (!font) return;
    if (font->face) FT_Done_Face(font->face);
    FT_Done_FreeType(font->library);
    free(font);
}

mha_status mhai_font_check(const mhai_font *font)
{
    return font->no_memory ? mha_fail(MHA_ERR_NOMEM, "PNG: out of memory for its text") : MHA_OK;
}

/* The glyph of a code point in the slot, an outline; false if there is nothing to draw (marks and
 * joiners that the face does not know). */
static bool load_glyph(mhai_font *font, uint32_t code)
{
    FT_UInt glyph = FT_Get_Char_Index(font->face, code);
    if (!glyph && mhai_text_code_columns(code) == 0) return false;
    return done(font, FT_Load_Glyph(font->face, glyph, FT_LOAD_NO_HINTING | FT_LOAD_NO_BITMAP));
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

/* Draw the glyph in the slot with its origin at (x, y); the slot's outline already carries the
 * fraction of the position. */
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
    /* FreeType's y points up, so a clockwise turn of ours is one of -angle there. */
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
