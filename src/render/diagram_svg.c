/* Diagrams as SVG 1.1, with presentation attributes only. */
#include "diagram.h"
#include "layout.h"
#include "svg.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- Colours --------------------------------------------------------------------------------- */

/* Tones of an ink: areas, soft and half-strong cells, lines, texts. Contrast of text on area, and
 * of text on the card, is at least 7 to 1 in both themes. */
typedef struct tones {
    const char *area, *soft, *half, *line, *text;
} tones;

static const tones light_inks[] = {
    {"#eceef1", "#d9dce1", "#8b909a", "#33363d", "#1b1b1f"}, /* text */
    {"#f2f3f5", "#f2f3f5", "#b6bac2", "#8b909a", "#555a64"}, /* muted */
    {"#eef0f4", "#dadde3", "#b5bac4", "#7d8490", "#363b45"}, /* grey */
    {"#e2eefb", "#bfdaf6", "#7db0e8", "#2a6fbb", "#123f70"}, /* blue */
    {"#fdebd6", "#f9d4ab", "#f0b06a", "#c4680f", "#6e3604"}, /* orange */
    {"#dff3e5", "#b4e2c3", "#7ccb97", "#278852", "#154a2d"}, /* green */
    {"#eee6f9", "#d8c8f0", "#b79be0", "#7748b4", "#432374"}, /* purple */
    {"#fbe3e8", "#f4c2cc", "#ea9aaa", "#bf3b57", "#741a30"}, /* rose */
};
static const tones dark_inks[] = {
    {"#2b2f36", "#444952", "#7b818c", "#d3d6db", "#f0f1f3"}, /* text */
    {"#23262c", "#23262c", "#4b515b", "#7b818c", "#b4b8c0"}, /* muted */
    {"#2a2e35", "#3f444d", "#5d646f", "#959ca8", "#e3e6ea"}, /* grey */
    {"#1a2d46", "#2a5079", "#3f78b5", "#6caaea", "#d3e6fb"}, /* blue */
    {"#3a2913", "#704a1e", "#b0702a", "#eba04f", "#fce5c8"}, /* orange */
    {"#17341f", "#285c3b", "#3f8f5d", "#62c48a", "#d2f1de"}, /* green */
    {"#2d2342", "#4f3b74", "#7657ab", "#b590ea", "#e9dcfb"}, /* purple */
    {"#401d28", "#702f3f", "#a8465c", "#ec8299", "#fcdae1"}, /* rose */
};

static const tones *tones_of(const mhai_diagram *m, int ink)
{
    return m->diagram.dark ? &dark_inks[ink] : &light_inks[ink];
}

static const char *page_color(const mhai_diagram *m)
{
    return m->diagram.dark ? "#0e1014" : "#f4f5f7";
}

/* The same as the paper of figures, so that they have no edge on a card. */
static const char *card_color(const mhai_diagram *m)
{
    return m->diagram.dark ? "#15171b" : "#ffffff";
}

static const char *edge_color(const mhai_diagram *m)
{
    return m->diagram.dark ? "#2d3138" : "#dfe2e7";
}

/* ---- Elements -------------------------------------------------------------------------------- */

typedef struct pen {
    mhai_writer *writer;
    const mhai_diagram *diagram;
    const mha_sink *sink;
    int figures; /* drawn so far: their ids get numbers */
} pen;

static void attribute(pen *p, const char *name, double value)
{
    mhai_sink_print(p->writer, " %s=\"", name);
    mhai_sink_real(p->writer, value);
    mhai_sink_text(p->writer, "\"");
}

static void rect(pen *p, const double at[4], double radius, const char *fill, const char *stroke)
{
    static const char *const names[] = {"x", "y", "width", "height"};
    mhai_sink_text(p->writer, "<rect");
    for (int i = 0; i < 4; i++) attribute(p, names[i], at[i]);
    if (radius > 0) attribute(p, "rx", radius);
    mhai_sink_print(p->writer, " fill=\"%s\"", fill);
    if (stroke) mhai_sink_print(p->writer, " stroke=\"%s\" stroke-width=\"1.5\"", stroke);
    mhai_sink_text(p->writer, "/>\n");
}

/* A line of text as it is to stand; style holds MHA_MARK_ flags. */
static void text(pen *p, double x, double y, double size, uint32_t style, const char *color,
                 const char *words)
{
    if (!*words) return;
    mhai_sink_text(p->writer, "<text");
    attribute(p, "x", x);
    attribute(p, "y", y);
    attribute(p, "font-size", size);
    if (style & MHA_MARK_MIDDLE) mhai_sink_text(p->writer, " text-anchor=\"middle\"");
    if (style & MHA_MARK_END) mhai_sink_text(p->writer, " text-anchor=\"end\"");
    if (style & MHA_MARK_BOLD) mhai_sink_text(p->writer, " font-weight=\"600\"");
    if (style & MHA_MARK_MONO)
        mhai_sink_text(p->writer, " font-family=\"ui-monospace, 'DejaVu Sans Mono', monospace\"");
    mhai_sink_print(p->writer, " fill=\"%s\">", color);
    mhai_sink_escaped(p->writer, words);
    mhai_sink_text(p->writer, "</text>\n");
}

/* Estimated width in em: faces of fixed width are 0.62 wide, bold ones 8 % wider. */
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

/* Lines are divided at \n; the face shrinks until the widest fits, to two thirds at most. */
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

static double box_text_draw(pen *p, const box_text *t, double x, double top, const char *color)
{
    for (int i = 0; i < t->count; i++) {
        text(p, x, top + 0.8 * t->size, t->size, t->style, color, t->line[i].text);
        top += 1.3 * t->size;
    }
    return top;
}

static void draw_box(pen *p, const mha_mark *m)
{
    const tones *ink = tones_of(p->diagram, (int)m->ink);
    bool full = m->flags & MHA_MARK_FULL;
    double shorter = m->width < m->height ? m->width : m->height;
    rect(p, (const double[4]){m->x, m->y, m->width, m->height}, shorter < 32 ? shorter / 4 : 8,
         full ? ink->half : ink->area, ink->line);
    box_text name, detail;
    double size = m->size > 0 ? m->size : 13, width = m->width - 10;
    box_text_make(m->text, width, size, m->flags & (MHA_MARK_BOLD | MHA_MARK_MONO), &name);
    box_text_make(m->detail, width, size * 0.86, MHA_MARK_MONO, &detail);
    double height = 1.3 * (name.count * name.size + detail.count * detail.size) - 0.25 * name.size;
    double top = m->y + (m->height - height) / 2, middle = m->x + m->width / 2;
    const char *color = full && !p->diagram->diagram.dark ? "#101318" : ink->text;
    top = box_text_draw(p, &name, middle, top, color);
    box_text_draw(p, &detail, middle, top, color);
}

/* The head of an arrow at x, y that points to (dx, dy), a unit vector. */
static void arrow_head(pen *p, double x, double y, double dx, double dy, const char *color)
{
    const double length = 8, half = 4;
    const double xy[6] = {x,
                          y,
                          x - length * dx + half * dy,
                          y - length * dy - half * dx,
                          x - length * dx - half * dy,
                          y - length * dy + half * dx};
    mhai_sink_text(p->writer, "<polygon points=\"");
    for (int i = 0; i < 6; i++) {
        if (i) mhai_sink_text(p->writer, " ");
        mhai_sink_real(p->writer, xy[i]);
    }
    mhai_sink_print(p->writer, "\" fill=\"%s\"/>\n", color);
}

static void path_point(pen *p, const char *command, double x, double y)
{
    mhai_sink_text(p->writer, command);
    mhai_sink_real(p->writer, x);
    mhai_sink_text(p->writer, " ");
    mhai_sink_real(p->writer, y);
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

static void draw_line(pen *p, const mha_mark *m)
{
    const tones *ink = tones_of(p->diagram, (int)m->ink);
    double dx, dy, x1 = m->x + m->width, y1 = m->y + m->height;
    arrival(m, &dx, &dy);
    bool arrow = m->flags & MHA_MARK_ARROW;
    double end_x = arrow ? x1 - 6 * dx : x1, end_y = arrow ? y1 - 6 * dy : y1;
    mhai_sink_text(p->writer, "<path d=\"");
    path_point(p, "M", m->x, m->y);
    if (m->flags & (MHA_MARK_ACROSS | MHA_MARK_DOWN)) {
        bool across = m->flags & MHA_MARK_ACROSS;
        double middle_x = (m->x + end_x) / 2, middle_y = (m->y + end_y) / 2;
        path_point(p, "C", across ? middle_x : m->x, across ? m->y : middle_y);
        path_point(p, " ", across ? middle_x : end_x, across ? end_y : middle_y);
        path_point(p, " ", end_x, end_y);
    } else {
        path_point(p, "L", end_x, end_y);
    }
    mhai_sink_print(p->writer, "\" fill=\"none\" stroke=\"%s\"", ink->line);
    attribute(p, "stroke-width", m->size > 0 ? m->size : 1.6);
    if (m->flags & MHA_MARK_DASHED) mhai_sink_text(p->writer, " stroke-dasharray=\"5 4\"");
    mhai_sink_text(p->writer, "/>\n");
    if (arrow) arrow_head(p, x1, y1, dx, dy, ink->line);
}

static void draw_text(pen *p, const mha_mark *m)
{
    enum { MOST_LINES = 12 };
    mhai_text lines[MOST_LINES];
    double size = m->size > 0 ? m->size : 13;
    const char *color = tones_of(p->diagram, (int)m->ink)->text;
    int count = 1;
    if (m->width > 0)
        count = mhai_text_wrap(m->text, m->width / size, MHAI_TEXT_EM, lines, MOST_LINES);
    else
        mhai_text_visible(m->text ? m->text : "", 0, MHAI_TEXT_PROSE, &lines[0]);
    for (int i = 0; i < count; i++)
        text(p, m->x, m->y + i * 1.35 * size, size, m->flags, color, lines[i].text);
}

/* Large cells stand apart; of small ones, runs of equal ones are one rectangle. */
static void draw_cells(pen *p, const mha_mark *m)
{
    double width = m->cols ? m->width / (double)m->cols : 0;
    double height = m->rows ? m->height / (double)m->rows : 0;
    double gap = width >= 7 && height >= 7 ? 1 : 0;
    mhai_sink_print(p->writer, "<g%s>\n", gap > 0 ? "" : " shape-rendering=\"crispEdges\"");
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
    mhai_sink_text(p->writer, "</g>\n");
}

static mha_status draw_figure(pen *p, const mha_mark *m, double x, double y)
{
    mha_figure own;
    mhai_layout made;
    MHA_TRY(mhai_figure_check(m->figure, &own));
    own.struct_size = sizeof own;
    own.dark = p->diagram->diagram.dark;
    char suffix[32];
    snprintf(suffix, sizeof suffix, "-%d", ++p->figures);
    const double place[4] = {x + m->x, y + m->y, m->width, m->height};
    mha_status status = mhai_sink_flush(p->writer);
    if (status) return status;
    status = mhai_layout_make(&own, &made);
    const mhai_svg_frame frame = {.inside = true, .suffix = suffix, .place = place};
    if (!status)
        status = m->flags & MHA_MARK_BARE ? mhai_svg_cells(&made, &frame, p->sink)
                                          : mhai_svg_write(&made, &frame, p->sink);
    mhai_layout_free(&made);
    return status;
}

static mha_status draw_marks(pen *p, const mhai_card *card)
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

static void open_document(pen *p)
{
    const mhai_diagram *m = p->diagram;
    const char *title = m->diagram.title;
    mhai_sink_text(p->writer, "<svg xmlns=\"http://www.w3.org/2000/svg\" "
                              "xmlns:xlink=\"http://www.w3.org/1999/xlink\" version=\"1.1\"");
    attribute(p, "width", m->width);
    attribute(p, "height", m->height);
    mhai_sink_text(p->writer, " viewBox=\"0 0 ");
    mhai_sink_real(p->writer, m->width);
    mhai_sink_text(p->writer, " ");
    mhai_sink_real(p->writer, m->height);
    mhai_sink_text(p->writer, "\" role=\"img\" "
                              "font-family=\"system-ui, 'DejaVu Sans', sans-serif\">\n<title>");
    mhai_sink_escaped(p->writer, title && *title ? title : "Diagram");
    mhai_sink_text(p->writer, "</title>\n");
    rect(p, (const double[4]){0, 0, m->width, m->height}, 0, page_color(m), NULL);
}

static double draw_lines(pen *p, const mhai_text *lines, int count, const double at[2],
                         const double face[2], const char *color)
{
    for (int i = 0; i < count; i++)
        text(p, at[0], at[1] + i * face[1], face[0], 0, color, lines[i].text);
    return at[1] + count * face[1];
}

static void draw_head(pen *p)
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

static mha_status draw_card(pen *p, const mhai_card *card)
{
    const mhai_diagram *m = p->diagram;
    double x = card->x + MHAI_DIAGRAM_PAD, y = card->y + MHAI_DIAGRAM_PAD;
    rect(p, (const double[4]){card->x, card->y, card->width, card->height}, 12, card_color(m),
         edge_color(m));
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

static mha_status write_diagram(const mhai_diagram *m, const mha_sink *sink)
{
    mhai_writer writer;
    mhai_sink_open(&writer, sink);
    pen p = {.writer = &writer, .diagram = m, .sink = sink};
    open_document(&p);
    draw_head(&p);
    for (int64_t i = 0; i < m->diagram.panel_count; i++) MHA_TRY(draw_card(&p, &m->cards[i]));
    mhai_sink_text(&writer, "</svg>\n");
    return mhai_sink_flush(&writer);
}

mha_status mha_render_diagram(const mha_diagram *diagram, const mha_sink *sink)
{
    if (!sink || !sink->write) return mha_fail(MHA_ERR_NULL, "mha_render_diagram: sink is NULL");
    mhai_diagram made;
    mha_status status = mhai_diagram_make(diagram, &made);
    if (!status) status = write_diagram(&made, sink);
    mhai_diagram_free(&made);
    return status;
}
