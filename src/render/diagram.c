/* Diagrams: check the caller's structs and place the cards. */
#include "diagram.h"

#include "figure.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PANELS = 1 << 10, MOST_MARKS = 1 << 16, DEFAULT_WIDTH = 1200 };
static const int64_t most_cells = INT64_C(1) << 20;
static const double most_length = 1e6;

/* ---- Checks ---------------------------------------------------------------------------------- */

mha_mark mhai_diagram_mark(const mha_diagram *diagram, const mha_diagram_panel *panel, int64_t i)
{
    mha_mark mark = {0};
    size_t size = diagram->mark_size < sizeof mark ? diagram->mark_size : sizeof mark;
    memcpy(&mark, (const char *)panel->marks + (size_t)i * diagram->mark_size, size);
    return mark;
}

static bool length_is_good(double length)
{
    return isfinite(length) && fabs(length) <= most_length;
}

static mha_status check_cells(const mha_mark *m, int64_t p, int64_t i)
{
    if (m->rows < 0 || m->cols < 0)
        return mha_fail(MHA_ERR_SHAPE, "panel %" PRId64 ", mark %" PRId64 ": negative grid", p, i);
    if (m->rows > most_cells || (m->cols && m->rows > most_cells / m->cols))
        return mha_fail(MHA_ERR_SIZE,
                        "panel %" PRId64 ", mark %" PRId64
                        ": a grid of more than 2^20 cells; reduce it or draw a figure",
                        p, i);
    if (!m->cells && m->rows && m->cols)
        return mha_fail(MHA_ERR_NULL, "panel %" PRId64 ", mark %" PRId64 ": cells is NULL", p, i);
    for (int64_t c = 0; c < m->rows * m->cols; c++)
        if ((m->cells[c] & ~MHA_CELL_SOFT) > MHA_INK_ROSE)
            return mha_fail(MHA_ERR_ARGUMENT,
                            "panel %" PRId64 ", mark %" PRId64 ": cell %" PRId64 " is not an ink",
                            p, i, c);
    return MHA_OK;
}

static mha_status check_mark(const mha_diagram *d, const mha_diagram_panel *panel, int64_t p,
                             int64_t i)
{
    mha_mark m;
    const char *at = (const char *)panel->marks + (size_t)i * d->mark_size;
    MHA_TRY(mha_struct_read("mha_mark", &m, sizeof m, 0, at, d->mark_size));
    if ((int)m.kind < 0 || m.kind > MHA_MARK_FIGURE || (int)m.ink < 0 || m.ink > MHA_INK_ROSE)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "panel %" PRId64 ", mark %" PRId64 ": kind %d or ink %d is unknown", p, i,
                        (int)m.kind, (int)m.ink);
    if (!length_is_good(m.x) || !length_is_good(m.y) || !length_is_good(m.width) ||
        !length_is_good(m.height) || !length_is_good(m.size) || m.size < 0)
        return mha_fail(
            MHA_ERR_ARGUMENT,
            "panel %" PRId64 ", mark %" PRId64 ": a length is not finite, or beyond 10^6", p, i);
    if (m.kind != MHA_MARK_LINE && (m.width < 0 || m.height < 0))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "panel %" PRId64 ", mark %" PRId64 ": width and height must not be "
                        "negative",
                        p, i);
    if (m.kind == MHA_MARK_TEXT && (m.flags & MHA_MARK_MIDDLE) && (m.flags & MHA_MARK_END))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "panel %" PRId64 ", mark %" PRId64 ": MHA_MARK_MIDDLE and MHA_MARK_END "
                        "exclude each other",
                        p, i);
    if (m.kind == MHA_MARK_FIGURE && !m.figure)
        return mha_fail(MHA_ERR_NULL, "panel %" PRId64 ", mark %" PRId64 ": figure is NULL", p, i);
    mha_figure figure;
    if (m.kind == MHA_MARK_FIGURE) MHA_TRY(mhai_figure_check(m.figure, &figure));
    return m.kind == MHA_MARK_CELLS ? check_cells(&m, p, i) : MHA_OK;
}

static mha_status check_panel(const mha_diagram *d, int64_t p, mha_diagram_panel *panel)
{
    const char *at = (const char *)d->panels + (size_t)p * d->panel_size;
    MHA_TRY(mha_struct_read("mha_diagram_panel", panel, sizeof *panel, 0, at, d->panel_size));
    if (!length_is_good(panel->width) || !length_is_good(panel->height) || panel->width < 0 ||
        panel->height < 0)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "panel %" PRId64 ": width and height must be finite, 0 .. 10^6", p);
    if (panel->mark_count < 0)
        return mha_fail(MHA_ERR_SHAPE, "panel %" PRId64 ": mark_count is negative", p);
    if (panel->mark_count > MOST_MARKS)
        return mha_fail(MHA_ERR_SIZE, "panel %" PRId64 ": more than %d marks", p, MOST_MARKS);
    if (panel->mark_count && !panel->marks)
        return mha_fail(MHA_ERR_NULL, "panel %" PRId64 ": marks is NULL", p);
    for (int64_t i = 0; i < panel->mark_count; i++) MHA_TRY(check_mark(d, panel, p, i));
    return MHA_OK;
}

static mha_status check_diagram(const mha_diagram *diagram, mha_diagram *own)
{
    if (!diagram) return mha_fail(MHA_ERR_NULL, "diagram is NULL");
    MHA_TRY(mha_struct_read("mha_diagram", own, sizeof *own, 3 * sizeof(uint32_t), diagram,
                            diagram->struct_size));
    if (!own->panel_size || !own->mark_size)
        return mha_fail(MHA_ERR_ARGUMENT, "diagram: panel_size and mark_size are not set");
    if (!length_is_good(own->width) || own->width < 0)
        return mha_fail(MHA_ERR_ARGUMENT, "diagram: width must be finite, 0 .. 10^6");
    if (own->panel_count < 0) return mha_fail(MHA_ERR_SHAPE, "diagram: panel_count is negative");
    if (own->panel_count > MOST_PANELS)
        return mha_fail(MHA_ERR_SIZE, "diagram: more than %d panels", MOST_PANELS);
    if (own->panel_count && !own->panels) return mha_fail(MHA_ERR_NULL, "diagram: panels is NULL");
    if (own->width == 0) own->width = DEFAULT_WIDTH;
    return MHA_OK;
}

/* ---- Layout ---------------------------------------------------------------------------------- */

static double card_least_width(const mhai_card *card)
{
    return card->panel.width + 2 * MHAI_DIAGRAM_PAD;
}

/* Place the cards first .. end in one row from x = margin; they share the remaining width. */
static double place_row(mhai_diagram *m, int64_t first, int64_t end, double y)
{
    double used = MHAI_DIAGRAM_GAP * (double)(end - first - 1), x = MHAI_DIAGRAM_MARGIN,
           tallest = 0;
    for (int64_t i = first; i < end; i++) used += card_least_width(&m->cards[i]);
    double more = (m->width - 2 * MHAI_DIAGRAM_MARGIN - used) / (double)(end - first);
    for (int64_t i = first; i < end; i++) {
        mhai_card *card = &m->cards[i];
        card->x = x;
        card->y = y;
        card->width = card_least_width(card) + more;
        double inner = card->width - 2 * MHAI_DIAGRAM_PAD;
        card->caption_lines =
            mhai_text_wrap(card->panel.caption, inner / MHAI_DIAGRAM_CAPTION, MHAI_TEXT_EM,
                           card->caption, MHAI_DIAGRAM_CAPTION_LINES);
        double head = (card->panel.title ? 28 : 0) +
                      card->caption_lines * MHAI_DIAGRAM_CAPTION_LINE +
                      (card->panel.title || card->caption_lines ? 14 : 0);
        card->drawing_x = x + (card->width - card->panel.width) / 2;
        card->drawing_y = y + MHAI_DIAGRAM_PAD + head;
        card->height = 2 * MHAI_DIAGRAM_PAD + head + card->panel.height;
        if (card->height > tallest) tallest = card->height;
        x += card->width + MHAI_DIAGRAM_GAP;
    }
    for (int64_t i = first; i < end; i++) m->cards[i].height = tallest;
    return tallest;
}

static void place_cards(mhai_diagram *m, double y)
{
    int64_t count = m->diagram.panel_count;
    for (int64_t first = 0, end; first < count; first = end) {
        double used = card_least_width(&m->cards[first]);
        for (end = first + 1; end < count; end++) {
            used += MHAI_DIAGRAM_GAP + card_least_width(&m->cards[end]);
            if (used > m->width - 2 * MHAI_DIAGRAM_MARGIN) break;
        }
        y += place_row(m, first, end, y) + MHAI_DIAGRAM_GAP;
    }
    m->height = y - (count ? MHAI_DIAGRAM_GAP : 0);
}

static void layout(mhai_diagram *m)
{
    const mha_diagram *d = &m->diagram;
    m->width = d->width;
    for (int64_t i = 0; i < d->panel_count; i++) {
        double needed = card_least_width(&m->cards[i]) + 2 * MHAI_DIAGRAM_MARGIN;
        if (needed > m->width) m->width = needed;
    }
    double inner = m->width - 2 * MHAI_DIAGRAM_MARGIN, y = MHAI_DIAGRAM_MARGIN;
    if (d->title) y += MHAI_DIAGRAM_TITLE + 6;
    m->subtitle_lines = mhai_text_wrap(d->subtitle, inner / MHAI_DIAGRAM_SUBTITLE, MHAI_TEXT_EM,
                                       m->subtitle, MHAI_DIAGRAM_HEAD_LINES);
    m->footnote_lines = mhai_text_wrap(d->footnote, inner / MHAI_DIAGRAM_FOOT, MHAI_TEXT_EM,
                                       m->footnote, MHAI_DIAGRAM_HEAD_LINES);
    y += m->subtitle_lines * MHAI_DIAGRAM_SUBTITLE_LINE;
    if (d->title || m->subtitle_lines) y += 14;
    place_cards(m, y);
    m->height += MHAI_DIAGRAM_MARGIN;
    if (m->footnote_lines) m->height += m->footnote_lines * MHAI_DIAGRAM_FOOT_LINE;
}

mha_status mhai_diagram_make(const mha_diagram *diagram, mhai_diagram *out)
{
    memset(out, 0, sizeof *out);
    MHA_TRY(check_diagram(diagram, &out->diagram));
    out->cards = mhai_sink_alloc(out->diagram.panel_count, sizeof *out->cards);
    if (!out->cards) return mha_fail(MHA_ERR_NOMEM, "diagram: no memory for the cards");
    for (int64_t i = 0; i < out->diagram.panel_count; i++)
        MHA_TRY(check_panel(&out->diagram, i, &out->cards[i].panel));
    layout(out);
    return MHA_OK;
}

void mhai_diagram_free(mhai_diagram *diagram)
{
    free(diagram->cards);
    diagram->cards = NULL;
}
