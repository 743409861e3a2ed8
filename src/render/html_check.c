/* Checking a caller's report. */
#include "chart.h"
#include "html.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum {
    MOST_BYTES = 10000000,
    MOST_LISTS = 64,
    MOST_FRAMES = 10000,
    MOST_CHANNELS = 1 << 16,
    MOST_CHOICES = 1000000,
    MOST_TRACK_ROWS = 1024
};

mha_curve mhai_html_curve(const mha_report *report, int64_t i)
{
    mha_curve curve = {0};
    size_t size = report->curve_size < sizeof curve ? report->curve_size : sizeof curve;
    memcpy(&curve, (const char *)report->curves + (size_t)i * report->curve_size, size);
    return curve;
}

static mha_status check_counts(const mha_report *own)
{
    const struct {
        const char *name;
        int64_t count, most;
        const void *list;
    } lists[] = {{"facts", own->fact_count, INT64_MAX, own->facts},
                 {"special", own->special_count, INT64_MAX, own->special},
                 {"curves", own->curve_count, MOST_LISTS, own->curves},
                 {"columns", own->column_count, MOST_LISTS, own->columns},
                 {"line_panels", own->line_panel_count, INT64_MAX, own->line_panels},
                 {"choices", own->choice_count, MOST_CHOICES, own->choices},
                 {"frames", own->frame_count, MOST_FRAMES, own->frames}};
    if (own->most_bytes < 0 || own->cell_tokens < 0 || own->token_count < 0)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "report: most_bytes, cell_tokens or token_count is negative");
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        if (lists[i].count < 0)
            return mha_fail(MHA_ERR_ARGUMENT, "report: the count of %s is negative", lists[i].name);
        if (lists[i].count > lists[i].most)
            return mha_fail(MHA_ERR_SIZE, "report: %" PRId64 " %s, at most %" PRId64,
                            lists[i].count, lists[i].name, lists[i].most);
        if (lists[i].count && !lists[i].list)
            return mha_fail(MHA_ERR_NULL, "report: %s is NULL", lists[i].name);
    }
    return MHA_OK;
}

static mha_status check_curve(const mha_report *own, int64_t i, int64_t *points)
{
    mha_curve curve;
    const char *at = (const char *)own->curves + (size_t)i * own->curve_size;
    return mhai_curve_read("report", at, own->curve_size, i, points, &curve);
}

static mha_status check_tokens(const mha_report *own, const mha_figure *figure)
{
    if (!own->tokens && !own->token_count) return MHA_OK;
    if (!own->tokens) return mha_fail(MHA_ERR_NULL, "report: tokens is NULL");
    int64_t each = own->cell_tokens ? own->cell_tokens : 1;
    int64_t blocks = own->token_count / each + (own->token_count % each != 0);
    if (blocks != figure->rows || blocks != figure->cols)
        return mha_fail(MHA_ERR_SHAPE,
                        "report: %" PRId64 " tokens in blocks of %" PRId64 " are %" PRId64
                        " cells per side, the figure has %" PRId64 " x %" PRId64,
                        own->token_count, each, blocks, figure->rows, figure->cols);
    return MHA_OK;
}

static bool is_within(int64_t at, int64_t count)
{
    return at >= 0 && at < count;
}

static mha_status check_panels(const mha_figure *figure)
{
    for (int64_t i = 0; i < figure->panel_count; i++) {
        const mha_panel panel = mhai_figure_panel(figure, i);
        if (!panel.queries && !panel.keys) continue;
        if (!panel.queries || !panel.keys)
            return mha_fail(MHA_ERR_NULL,
                            "panel %" PRId64 ": set both queries and keys, or neither", i);
        if (panel.channels < 1 || panel.channels > MOST_CHANNELS)
            return mha_fail(MHA_ERR_SIZE, "panel %" PRId64 ": %" PRId64 " channels, expected 1..%d",
                            i, panel.channels, MOST_CHANNELS);
        if (!isfinite(panel.score_scale))
            return mha_fail(MHA_ERR_ARGUMENT, "panel %" PRId64 ": score_scale is not finite", i);
    }
    return MHA_OK;
}

static mha_status check_views(const mha_report *own, const mha_figure *figure)
{
    if ((int)own->view < 0 || own->view > MHA_VIEW_NEURONS)
        return mha_fail(MHA_ERR_ARGUMENT, "report: unknown view %d", (int)own->view);
    if (own->view == MHA_VIEW_NEURONS && (figure->panel_count == 0 || own->first_panel < 0 ||
                                          !mhai_figure_panel(figure, own->first_panel).queries))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "report: the view of neurons requires queries and keys of first_panel");
    if (own->first_cell &&
        (!is_within(own->first_row, figure->rows) || !is_within(own->first_col, figure->cols)))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "report: first_row, first_col are %" PRId64 ", %" PRId64
                        ", the figure has %" PRId64 " x %" PRId64,
                        own->first_row, own->first_col, figure->rows, figure->cols);
    for (int64_t i = 0; i < own->line_panel_count; i++)
        if (!is_within(own->line_panels[i], figure->panel_count))
            return mha_fail(MHA_ERR_ARGUMENT,
                            "report: line_panels[%" PRId64 "] is %" PRId64
                            ", the figure has %" PRId64 " panels",
                            i, own->line_panels[i], figure->panel_count);
    if (!is_within(own->second_row, figure->rows + 1) ||
        !is_within(own->second_col, figure->cols + 1))
        return mha_fail(MHA_ERR_ARGUMENT, "report: second_row or second_col is outside the figure");
    return MHA_OK;
}

static mha_status check_choice(const mha_report *own, int64_t i, int64_t rows, int64_t *numbers)
{
    const mha_choice *c = &own->choices[i];
    if (own->cell_tokens > 1)
        return mha_fail(MHA_ERR_UNSUPPORTED, "report: choices of rows that are blocks of tokens");
    if (!c->numbers || !c->weights)
        return mha_fail(MHA_ERR_NULL, "choice %" PRId64 ": numbers or weights is NULL", i);
    if (c->used < 1 || c->used > c->count)
        return mha_fail(MHA_ERR_ARGUMENT, "choice %" PRId64 ": %" PRId64 " of %" PRId64 " are used",
                        i, c->used, c->count);
    if (rows > 0 && c->used > (MOST_CHOICES - *numbers) / rows)
        return mha_fail(MHA_ERR_SIZE, "report: choices have more than %d numbers", MOST_CHOICES);
    *numbers += rows * c->used;
    for (int64_t k = 0; k < rows * c->used; k++)
        if (!is_within(c->numbers[k], c->count))
            return mha_fail(MHA_ERR_ARGUMENT,
                            "choice %" PRId64 ": number %" PRId32 ", expected 0 .. %" PRId64, i,
                            c->numbers[k], c->count - 1);
    return MHA_OK;
}

static mha_status check_choices(const mha_report *own, const mha_figure *figure)
{
    int64_t numbers = 0;
    for (int64_t i = 0; i < own->choice_count; i++)
        MHA_TRY(check_choice(own, i, figure->rows, &numbers));
    return MHA_OK;
}

static mha_status check_lists(const mha_report *own)
{
    int64_t points = 0;
    if (own->curve_count && !own->curve_size)
        return mha_fail(MHA_ERR_ARGUMENT, "report: curve_size is not set");
    for (int64_t i = 0; i < own->curve_count; i++) MHA_TRY(check_curve(own, i, &points));
    for (int64_t i = 0; i < own->column_count; i++)
        if (!own->columns[i].values)
            return mha_fail(MHA_ERR_NULL, "report: the values of column %" PRId64 " are NULL", i);
    return MHA_OK;
}

mha_status mhai_html_check(const mha_report *report, const mha_figure *figure, mha_report *own)
{
    MHA_TRY(mha_struct_read("mha_report", own, sizeof *own, sizeof(uint32_t), report,
                            report ? report->struct_size : 0));
    MHA_TRY(check_counts(own));
    if (own->first_panel < -1 ||
        own->first_panel >= (figure->panel_count > 0 ? figure->panel_count : 1))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "report: first_panel is %" PRId64 ", the figure has %" PRId64,
                        own->first_panel, figure->panel_count);
    MHA_TRY(check_lists(own));
    MHA_TRY(check_choices(own, figure));
    MHA_TRY(check_tokens(own, figure));
    MHA_TRY(check_panels(figure));
    MHA_TRY(check_views(own, figure));
    if (own->track && (own->track_rows < 1 || own->track_rows > MOST_TRACK_ROWS))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "report: track_rows is %" PRId64 ", expected 1 to %d with track",
                        own->track_rows, (int)MOST_TRACK_ROWS);
    if (!own->most_bytes) own->most_bytes = MOST_BYTES;
    if (!own->cell_tokens) own->cell_tokens = 1;
    return MHA_OK;
}
