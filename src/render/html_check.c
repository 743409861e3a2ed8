/* Checking a caller's report. */
#include "chart.h"
#include "html.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <string.h>

enum { MOST_BYTES = 10000000, MOST_LISTS = 64, MOST_FRAMES = 10000 };

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
    if (own->first_panel < 0 ||
        own->first_panel >= (figure->panel_count > 0 ? figure->panel_count : 1))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "report: first_panel is %" PRId64 ", the figure has %" PRId64,
                        own->first_panel, figure->panel_count);
    MHA_TRY(check_lists(own));
    MHA_TRY(check_tokens(own, figure));
    if (!own->most_bytes) own->most_bytes = MOST_BYTES;
    if (!own->cell_tokens) own->cell_tokens = 1;
    return MHA_OK;
}
