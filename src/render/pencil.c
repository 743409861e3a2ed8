/* ANSI colours: 24 bits, or the nearest of the 6 x 6 x 6 cube and the 24 greys. */
#include "pencil.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mhai_pencil_open(mhai_pencil *pencil, const mha_sink *sink, mha_terminal_color mode)
{
    memset(pencil, 0, sizeof *pencil);
    mhai_sink_open(&pencil->writer, sink);
    pencil->mode = mode;
}

static void reset(mhai_pencil *pencil)
{
    if (pencil->styled) mhai_sink_text(&pencil->writer, "\x1b[0m");
    pencil->styled = pencil->has_front = pencil->has_back = false;
}

/* Write the pending spaces, in the terminal's own colours. */
static void catch_up(mhai_pencil *pencil)
{
    if (!pencil->spaces) return;
    reset(pencil);
    for (; pencil->spaces; pencil->spaces--) mhai_sink_text(&pencil->writer, " ");
}

void mhai_pencil_text(mhai_pencil *pencil, const char *text)
{
    if (!*text) return;
    catch_up(pencil);
    reset(pencil);
    mhai_sink_text(&pencil->writer, text);
}

void mhai_pencil_bold(mhai_pencil *pencil, const char *text)
{
    if (!*text) return;
    catch_up(pencil);
    reset(pencil);
    if (pencil->mode) {
        mhai_sink_text(&pencil->writer, "\x1b[1m");
        pencil->styled = true;
    }
    mhai_sink_text(&pencil->writer, text);
    reset(pencil);
}

static int cube_level(int v)
{
    return v < 48 ? 0 : v < 115 ? 1 : (v - 35) / 40;
}

static int distance(const mhai_color *c, int r, int g, int b)
{
    int dr = c->rgb[0] - r, dg = c->rgb[1] - g, db = c->rgb[2] - b;
    return dr * dr + dg * dg + db * db;
}

/* The index of xterm's 256 colours that is nearest. */
static int nearest_256(const mhai_color *c)
{
    static const int levels[6] = {0, 95, 135, 175, 215, 255};
    int r = cube_level(c->rgb[0]), g = cube_level(c->rgb[1]), b = cube_level(c->rgb[2]);
    int mean = (c->rgb[0] + c->rgb[1] + c->rgb[2]) / 3;
    int grey = mean < 8 ? 0 : mean > 238 ? 23 : (mean - 3) / 10;
    int shade = 8 + 10 * grey;
    if (distance(c, shade, shade, shade) < distance(c, levels[r], levels[g], levels[b]))
        return 232 + grey;
    return 16 + 36 * r + 6 * g + b;
}

static void set_color(mhai_pencil *pencil, int what, const mhai_color *c)
{
    if (pencil->mode == MHA_TERMINAL_TRUECOLOR)
        mhai_sink_print(&pencil->writer, "\x1b[%d;2;%d;%d;%dm", what, c->rgb[0], c->rgb[1],
                        c->rgb[2]);
    else
        mhai_sink_print(&pencil->writer, "\x1b[%d;5;%dm", what, nearest_256(c));
    pencil->styled = true;
}

/* Set one of the two colours if it changes. */
static void change(mhai_pencil *pencil, int what, const mhai_color *to, bool *has, mhai_color *now)
{
    if (!to || (*has && memcmp(to, now, sizeof *now) == 0)) return;
    set_color(pencil, what, to);
    *has = true;
    *now = *to;
}

void mhai_pencil_paint(mhai_pencil *pencil, const char *text, const mhai_color *front,
                       const mhai_color *back)
{
    catch_up(pencil);
    if (pencil->mode) {
        if ((pencil->has_front && !front) || (pencil->has_back && !back)) reset(pencil);
        change(pencil, 38, front, &pencil->has_front, &pencil->front);
        change(pencil, 48, back, &pencil->has_back, &pencil->back);
    }
    mhai_sink_text(&pencil->writer, text);
}

void mhai_pencil_spaces(mhai_pencil *pencil, int64_t count)
{
    if (count > 0) pencil->spaces += count;
}

void mhai_pencil_line(mhai_pencil *pencil)
{
    pencil->spaces = 0;
    reset(pencil);
    mhai_sink_text(&pencil->writer, "\n");
}
