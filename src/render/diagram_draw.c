/* Drawing a diagram on a canvas. */
#include "diagram.h"
#include "layout.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- Colours --------------------------------------------------------------------------------- */

/* Tones of an ink: areas, soft and half-strong cells, lines, texts. Contrast of text on area, and
 * of text on the card, is at least 7 to 1 in both themes. */
typedef struct tones {
    uint32_t area, soft, half, line, text;
} tones;

static const tones light_inks[] = {
    {0xeceef1, 0xd9dce1, 0x8b909a, 0x33363d, 0x1b1b1f}, /* text */
    {0xf2f3f5, 0xf2f3f5, 0xb6bac2, 0x8b909a, 0x555a64}, /* muted */
    {0xeef0f4, 0xdadde3, 0xb5bac4, 0x7d8490, 0x363b45}, /* grey */
    {0xe2eefb, 0xbfdaf6, 0x7db0e8, 0x2a6fbb, 0x123f70}, /* blue */
    {0xfdebd6, 0xf9d4ab, 0xf0b06a, 0xc4680f, 0x6e3604}, /* orange */
    {0xdff3e5, 0xb4e2c3, 0x7ccb97, 0x278852, 0x154a2d}, /* green */
    {0xeee6f9, 0xd8c8f0, 0xb79be0, 0x7748b4, 0x432374}, /* purple */
    {0xfbe3e8, 0xf4c2cc, 0xea9aaa, 0xbf3b57, 0x741a30}, /* rose */
};
static const tones dark_inks[] = {
    {0x2b2f36, 0x444952, 0x7b818c, 0xd3d6db, 0xf0f1f3}, /* text */
    {0x23262c, 0x23262c, 0x4b515b, 0x7b818c, 0xb4b8c0}, /* muted */
    {0x2a2e35, 0x3f444d, 0x5d646f, 0x959ca8, 0xe3e6ea}, /* grey */
    {0x1a2d46, 0x2a5079, 0x3f78b5, 0x6caaea, 0xd3e6fb}, /* blue */
    {0x3a2913, 0x704a1e, 0xb0702a, 0xeba04f, 0xfce5c8}, /* orange */
    {0x17341f, 0x285c3b, 0x3f8f5d, 0x62c48a, 0xd2f1de}, /* green */
    {0x2d2342, 0x4f3b74, 0x7657ab, 0xb590ea, 0xe9dcfb}, /* purple */
    {0x401d28, 0x702f3f, 0xa8465c, 0xec8299, 0xfcdae1}, /* rose */
};

static const tones *tones_of(const mhai_diagram *m, int ink)
{
    return m->diagram.dark ? &dark_inks[ink] : &light_inks[ink];
}

/* ---- Elements -------------------------------------------------------------------------------- */

typedef struct pen {
    const mhai_canvas *canvas;
    const mhai_diagram *diagram;
} pen;

static void rect(const pen *p, const double at[4], double radius, uint32_t fill,
                 const mhai_color *edge)
{
    const mhai_box box = {at[0], at[1],         at[2], at[3], radius, mhai_color_of(fill),
                          edge,  .crisp = false};
    p->canvas->rect(p->canvas->user, &box);
}

/* A line of text in its final place; style holds MHA_MARK_ flags. */
static void text(const pen *p, double x, double y, double size, uint32_t style, uint32_t color,
                 const char *words)
{
    const mhai_pen own = {.x = x,
                          .y = y,
                          .size = size,
                          .anchor = style & MHA_MARK_MIDDLE ? MHAI_MIDDLE
                                    : style & MHA_MARK_END  ? MHAI_END
                                                            : MHAI_START,
                          .color = mhai_color_of(color),
                          .bold = style & MHA_MARK_BOLD,
                          .mono = style & MHA_MARK_MONO};
    if (*words) p->canvas->text(p->canvas->user, &own, words);
}

/* Estimated width in em. Fixed-width faces take 0.62 per character; bold faces are 8 % wider. */
static double width_em(const char *words, uint32_t style)
{
    double em =
        style & MHA_MARK_MONO ? 0.62 * (double)mha_text_columns(words) : mhai_text_em(words);
    return style & MHA_MARK_BOLD ? 1.08 * em : em;
}

/* ---- Marks ----------------------------------------------------------------------------------- */

enum { BOX_LINES = 6 };

/* The lines of a box's text or detail. */
typedef struct box_text {
    mhai_text line[BOX_LINES];
    int count;
    double size;
    uint32_t style;
} box_text;

/* Divide lines at \n, and shrink the face until the widest line fits, but at most to two thirds. */
static void box_text_make(const char *raw, double width, double size, uint32_t style, box_text *out)
{
    double widest = 0;
    *out = (box_text){.size = size, .style = style | MHA_MARK_MIDDLE};
    while (raw && *raw && out->count < BOX_LINES) {
        char piece[MHAI_TEXT_BYTES];
        size_t length = strcspn(raw, "\n"),
               kept = length < sizeof piece ? length : sizeof piece - 1;
        memcpy(piece, raw, kept);
        piece[kept] = 0;
        mhai_text_visible(piece, 0, MHAI_TEXT_PROSE, &out->line[out->count]);
        double em = width_em(out->line[out->count++].text, style);
        if (em > widest) widest = em;
        raw += length + (raw[length] == '\n');
    }
    if (widest * size > width) out->size = fmax(width / widest, size * 2 / 3);
    double room = width / out->size;
    for (int i = 0; i < out->count; i++) {
        double em = width_em(out->line[i].text, style);
        if (em > room) mhai_text_cut_em(&out->line[i], room * mhai_text_em(out->line[i].text) / em);
    }
}

static double box_text_draw(const pen *p, const box_text *t, double x, double top, uint32_t color)
{
    for (int i = 0; i < t->count; i++) {
        text(p, x, top + 0.8 * t->size, t->size, t->style, color, t->line[i].text);
        top += 1.3 * t->size;
    }
    return top;
}

static void draw_box(const pen *p, const mha_mark *m)
{
    const tones *ink = tones_of(p->diagram, (int)m->ink);
    bool full = m->flags & MHA_MARK_FULL;
    double shorter = m->width < m->height ? m->width : m->height;
    const mhai_color edge = mhai_color_of(ink->line);
    rect(p, (const double[4]){m->x, m->y, m->width, m->height}, shorter < 32 ? shorter / 4 : 8,
         full ? ink->half : ink->area, &edge);
    box_text name, detail;
    double size = m->size > 0 ? m->size : 13, width = m->width - 10;
    box_text_make(m->text, width, size, m->flags & (MHA_MARK_BOLD | MHA_MARK_MONO), &name);
    box_text_make(m->detail, width, size * 0.86, MHA_MARK_MONO, &detail);
    double height = 1.3 * (name.count * name.size + detail.count * detail.size) - 0.25 * name.size;
    double top = m->y + (m->height - height) / 2, middle = m->x + m->width / 2;
    uint32_t color = full && !p->diagram->diagram.dark ? 0x101318 : ink->text;
    top = box_text_draw(p, &name, middle, top, color);
    box_text_draw(p, &detail, middle, top, color);
}

/* The head of an arrow at x, y that points to (dx, dy), a unit vector. */
static void arrow_head(const pen *p, double x, double y, double dx, double dy, uint32_t color)
{
    const double length = 8, half = 4;
    const double xy[6] = {x,
                          y,
                          x - length * dx + half * dy,
                          y - length * dy - half * dx,
                          x - length * dx - half * dy,
                          y - length * dy + half * dx};
    p->canvas->triangle(p->canvas->user, xy, mhai_color_of(color));
}

/* The direction in which a line arrives. */
static void arrival(const mha_mark *m, double *dx, double *dy)
{
    double length = sqrt(m->width * m->width + m->height * m->height);
    *dx = *dy = 0;
    if (m->flags & MHA_MARK_ACROSS)
        *dx = m->width < 0 ? -1 : 1;
    else if (m->flags & MHA_MARK_DOWN)
        *dy = m->height < 0 ? -1 : 1;
    else if (length > 0)
        *dx = m->width / length, *dy = m->height / length;
}

static void draw_line(const pen *p, const mha_mark *m)
{
    const tones *ink = tones_of(p->diagram, (int)m->ink);
    double dx, dy, x1 = m->x + m->width, y1 = m->y + m->height;
    arrival(m, &dx, &dy);
    bool arrow = m->flags & MHA_MARK_ARROW;
    double end_x = arrow ? x1 - 6 * dx : x1, end_y = arrow ? y1 - 6 * dy : y1;
    const bool across = m->flags & MHA_MARK_ACROSS,
               curve = m->flags & (MHA_MARK_ACROSS | MHA_MARK_DOWN);
    const double middle_x = (m->x + end_x) / 2, middle_y = (m->y + end_y) / 2;
    const double straight[4] = {m->x, m->y, end_x, end_y};
    const double bent[8] = {m->x,
                            m->y,
                            across ? middle_x : m->x,
                            across ? m->y : middle_y,
                            across ? middle_x : end_x,
                            across ? end_y : middle_y,
                            end_x,
                            end_y};
    const mhai_stroke stroke = {.color = mhai_color_of(ink->line),
                                .width = m->size > 0 ? m->size : 1.6,
                                .dashes = {m->flags & MHA_MARK_DASHED ? 5 : 0, 4}};
    p->canvas->path(p->canvas->user, curve ? bent : straight, curve ? 4 : 2, curve, &stroke);
    if (arrow) arrow_head(p, x1, y1, dx, dy, ink->line);
}

static void draw_text(const pen *p, const mha_mark *m)
{
    enum { MOST_LINES = 12 };
    mhai_text lines[MOST_LINES];
    double size = m->size > 0 ? m->size : 13;
    uint32_t color = tones_of(p->diagram, (int)m->ink)->text;
    int count = 1;
    if (m->width > 0)
        count = mhai_text_wrap(m->text, m->width / size, MHAI_TEXT_EM, lines, MOST_LINES);
    else
        mhai_text_visible(m->text ? m->text : "", 0, MHAI_TEXT_PROSE, &lines[0]);
    for (int i = 0; i < count; i++)
        text(p, m->x, m->y + i * 1.35 * size, size, m->flags, color, lines[i].text);
}

/* Draw large cells separately, and a run of equal small cells as one rectangle. */
static void draw_cells(const pen *p, const mha_mark *m)
{
    double width = m->cols ? m->width / (double)m->cols : 0;
    double height = m->rows ? m->height / (double)m->rows : 0;
    double gap = width >= 7 && height >= 7 ? 1 : 0;
    p->canvas->group(p->canvas->user, 0, 0, gap == 0);
    for (int64_t r = 0; r < m->rows; r++)
        for (int64_t c = 0, end; c < m->cols; c = end) {
            uint8_t cell = m->cells[r * m->cols + c];
            for (end = c + 1; gap == 0 && end < m->cols; end++)
                if (m->cells[r * m->cols + end] != cell) break;
            if (!(cell & ~MHA_CELL_SOFT)) continue;
            const tones *ink = tones_of(p->diagram, cell & ~MHA_CELL_SOFT);
            rect(p,
                 (const double[4]){m->x + (double)c * width, m->y + (double)r * height,
                                   (double)(end - c) * width - gap, height - gap},
                 gap > 0 ? 1.5 : 0, cell & MHA_CELL_SOFT ? ink->soft : ink->half, NULL);
        }
    p->canvas->end_group(p->canvas->user);
}

static mha_status draw_figure(const pen *p, const mha_mark *m, double x, double y)
{
    mha_figure own;
    mhai_layout made;
    MHA_TRY(mhai_figure_check(m->figure, &own));
    own.struct_size = sizeof own;
    own.dark = p->diagram->diagram.dark;
    const double place[4] = {x + m->x, y + m->y, m->width, m->height};
    mha_status status = mhai_layout_make(&own, &made);
    if (!status)
        status = m->flags & MHA_MARK_BARE ? mhai_draw_cells(&made, p->canvas, place)
                                          : p->canvas->figure(p->canvas->user, &made, place);
    mhai_layout_free(&made);
    return status;
}

static mha_status draw_marks(const pen *p, const mhai_card *card)
{
    for (int64_t i = 0; i < card->panel.mark_count; i++) {
        mha_mark m = mhai_diagram_mark(&p->diagram->diagram, &card->panel, i);
        if (m.kind == MHA_MARK_FIGURE) {
            MHA_TRY(draw_figure(p, &m, card->drawing_x, card->drawing_y));
            continue;
        }
        m.x += card->drawing_x;
        m.y += card->drawing_y;
        switch (m.kind) {
        case MHA_MARK_BOX: draw_box(p, &m); break;
        case MHA_MARK_LINE: draw_line(p, &m); break;
        case MHA_MARK_TEXT: draw_text(p, &m); break;
        case MHA_MARK_CELLS: draw_cells(p, &m); break;
        case MHA_MARK_FIGURE: break;
        }
    }
    return MHA_OK;
}

/* ---- The page -------------------------------------------------------------------------------- */

static double draw_lines(const pen *p, const mhai_text *lines, int count, const double at[2],
                         const double face[2], uint32_t color)
{
    for (int i = 0; i < count; i++)
        text(p, at[0], at[1] + i * face[1], face[0], 0, color, lines[i].text);
    return at[1] + count * face[1];
}

static void draw_head(const pen *p)
{
    const mhai_diagram *m = p->diagram;
    double y = MHAI_DIAGRAM_MARGIN;
    if (m->diagram.title) {
        mhai_text title;
        mhai_text_visible(m->diagram.title, 0, MHAI_TEXT_PROSE, &title);
        mhai_text_cut_em(&title, (m->width - 2 * MHAI_DIAGRAM_MARGIN) / MHAI_DIAGRAM_TITLE / 1.08);
        text(p, MHAI_DIAGRAM_MARGIN, y + 22, MHAI_DIAGRAM_TITLE, MHA_MARK_BOLD,
             tones_of(m, MHA_INK_TEXT)->text, title.text);
        y += MHAI_DIAGRAM_TITLE + 6;
    }
    draw_lines(p, m->subtitle, m->subtitle_lines,
               (const double[2]){MHAI_DIAGRAM_MARGIN, y + MHAI_DIAGRAM_SUBTITLE},
               (const double[2]){MHAI_DIAGRAM_SUBTITLE, MHAI_DIAGRAM_SUBTITLE_LINE},
               tones_of(m, MHA_INK_MUTED)->text);
    double foot =
        m->height - MHAI_DIAGRAM_MARGIN / 2.0 - (m->footnote_lines - 1) * MHAI_DIAGRAM_FOOT_LINE;
    draw_lines(p, m->footnote, m->footnote_lines, (const double[2]){MHAI_DIAGRAM_MARGIN, foot},
               (const double[2]){MHAI_DIAGRAM_FOOT, MHAI_DIAGRAM_FOOT_LINE},
               tones_of(m, MHA_INK_MUTED)->text);
}

static mha_status draw_card(const pen *p, const mhai_card *card)
{
    const mhai_diagram *m = p->diagram;
    double x = card->x + MHAI_DIAGRAM_PAD, y = card->y + MHAI_DIAGRAM_PAD;
    /* The colour of figures' paper, so that figures have no edge on a card. */
    const mhai_color edge = mhai_color_of(m->diagram.dark ? 0x2d3138 : 0xdfe2e7);
    rect(p, (const double[4]){card->x, card->y, card->width, card->height}, 12,
         m->diagram.dark ? 0x15171b : 0xffffff, &edge);
    if (card->panel.title) {
        mhai_text title;
        mhai_text_visible(card->panel.title, 0, MHAI_TEXT_PROSE, &title);
        mhai_text_cut_em(&title,
                         (card->width - 2 * MHAI_DIAGRAM_PAD) / MHAI_DIAGRAM_CARD_TITLE / 1.08);
        text(p, x, y + 14, MHAI_DIAGRAM_CARD_TITLE, MHA_MARK_BOLD, tones_of(m, MHA_INK_TEXT)->text,
             title.text);
        y += 28;
    }
    draw_lines(p, card->caption, card->caption_lines,
               (const double[2]){x, y + MHAI_DIAGRAM_CAPTION - 2},
               (const double[2]){MHAI_DIAGRAM_CAPTION, MHAI_DIAGRAM_CAPTION_LINE},
               tones_of(m, MHA_INK_MUTED)->text);
    return draw_marks(p, card);
}

static mha_status draw(const void *what, const mhai_canvas *canvas)
{
    const mhai_diagram *m = what;
    const pen p = {canvas, m};
    rect(&p, (const double[4]){0, 0, m->width, m->height}, 0, m->diagram.dark ? 0x0e1014 : 0xf4f5f7,
         NULL);
    draw_head(&p);
    for (int64_t i = 0; i < m->diagram.panel_count; i++) MHA_TRY(draw_card(&p, &m->cards[i]));
    return MHA_OK;
}

mha_status mha_render_diagram(const mha_diagram *diagram, const mha_sink *sink)
{
    mhai_diagram made;
    mha_status status = mhai_diagram_make(diagram, &made);
    const char *title = made.diagram.title;
    const mhai_sheet sheet = {.picture = made.diagram.pdf ? MHAI_PDF : MHAI_SVG,
                              .title = title && *title ? title : "Diagram",
                              .width = made.width,
                              .height = made.height,
                              .draw = draw,
                              .what = &made};
    if (!status) status = mhai_sheet_write(&sheet, sink);
    mhai_diagram_free(&made);
    return status;
}
