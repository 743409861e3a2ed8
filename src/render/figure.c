/* Checking a caller's figure. */
#include "figure.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PANELS = 1 << 16, MOST_MEASURES = 64 };
static const int64_t most_cells = INT64_C(1) << 31;

mha_panel mhai_figure_panel(const mha_figure *figure, int64_t i)
{
    mha_panel panel = {0};
    size_t size = figure->panel_size < sizeof panel ? figure->panel_size : sizeof panel;
    memcpy(&panel, (const char *)figure->panels + (size_t)i * figure->panel_size, size);
    if (!panel.row_stride) panel.row_stride = figure->cols;
    if (!panel.mask_stride) panel.mask_stride = figure->cols;
    if (!panel.twin_stride) panel.twin_stride = figure->cols;
    if (panel.score_scale == 0 && panel.channels > 0)
        panel.score_scale = 1 / sqrt((double)panel.channels);
    return panel;
}

static mha_status check_panel(const mha_figure *f, int64_t i)
{
    mha_panel panel;
    const char *at = (const char *)f->panels + (size_t)i * f->panel_size;
    MHA_TRY(mha_struct_read("mha_panel", &panel, sizeof panel, 0, at, f->panel_size));
    if (!panel.values && f->rows && f->cols)
        return mha_fail(MHA_ERR_NULL, "panel %" PRId64 ": values is NULL", i);
    if ((panel.row_stride && panel.row_stride < f->cols) ||
        (panel.mask_stride && panel.mask_stride < f->cols) ||
        (panel.twin_stride && panel.twin_stride < f->cols))
        return mha_fail(MHA_ERR_SHAPE,
                        "panel %" PRId64 ": a stride is shorter than %" PRId64 " cols", i, f->cols);
    if (panel.group < 0 || panel.group >= f->group_count)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "panel %" PRId64 ": group is %" PRId64 ", expected 0..%" PRId64, i,
                        panel.group, f->group_count - 1);
    if (panel.measure_count < 0 || panel.measure_count > MOST_MEASURES)
        return mha_fail(MHA_ERR_ARGUMENT, "panel %" PRId64 ": %" PRId64 " measures, expected 0..%d",
                        i, panel.measure_count, MOST_MEASURES);
    if (panel.measure_count && !panel.measures)
        return mha_fail(MHA_ERR_NULL, "panel %" PRId64 ": measures is NULL", i);
    if (panel.mark && (panel.mark[0] < 0 || panel.mark[0] >= f->rows || panel.mark[1] < 0 ||
                       panel.mark[1] >= f->cols))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "panel %" PRId64 ": the mark is at row %" PRId64 ", column %" PRId64
                        ", outside of %" PRId64 " x %" PRId64,
                        i, panel.mark[0], panel.mark[1], f->rows, f->cols);
    return MHA_OK;
}

static mha_status check_sizes(const mha_figure *f)
{
    if (f->rows < 0 || f->cols < 0 || f->panel_count < 0 || f->group_count < 0 || f->columns < 0)
        return mha_fail(MHA_ERR_SHAPE, "figure: rows, cols, panel_count, group_count and columns "
                                       "must not be negative");
    if (f->panel_count > MOST_PANELS || f->group_count > MOST_PANELS)
        return mha_fail(MHA_ERR_SIZE, "figure: more than %d panels or groups", MOST_PANELS);
    int64_t panels = f->panel_count ? f->panel_count : 1;
    if (f->rows > most_cells || f->cols > most_cells ||
        (f->cols && f->rows > most_cells / f->cols / panels))
        return mha_fail(MHA_ERR_SIZE, "figure: more than 2^31 cells, draw fewer panels");
    if (f->panel_count && !f->panels) return mha_fail(MHA_ERR_NULL, "figure: panels is NULL");
    return MHA_OK;
}

static mha_status check_options(const mha_figure *f)
{
    if (strcmp(mha_cmap_name(f->cmap), "?") == 0)
        return mha_fail(MHA_ERR_ARGUMENT, "figure: unknown cmap %d", (int)f->cmap);
    if (strcmp(mha_scale_name(f->scale), "?") == 0)
        return mha_fail(MHA_ERR_ARGUMENT, "figure: unknown scale %d", (int)f->scale);
    if ((int)f->range < 0 || f->range > MHA_RANGE_FIXED)
        return mha_fail(MHA_ERR_ARGUMENT, "figure: unknown range %d", (int)f->range);
    if ((int)f->print_values < 0 || f->print_values > MHA_VALUES_NEVER)
        return mha_fail(MHA_ERR_ARGUMENT, "figure: unknown print_values %d", (int)f->print_values);
    if (f->range == MHA_RANGE_FIXED && !(isfinite(f->lo) && isfinite(f->hi) && f->lo < f->hi))
        return mha_fail(MHA_ERR_ARGUMENT, "figure: a fixed range requires finite lo < hi");
    if (f->range == MHA_RANGE_FIXED && f->scale == MHA_SCALE_LOG && f->hi <= 0)
        return mha_fail(MHA_ERR_ARGUMENT, "figure: a log scale requires hi above 0");
    if (f->pixel_ratio != 0 && !(f->pixel_ratio >= 1 && f->pixel_ratio <= 8))
        return mha_fail(MHA_ERR_ARGUMENT, "figure: pixel_ratio must be 1..8, or 0 for the default");
    if (f->backdrop && (f->backdrop_zoom < 1 || f->backdrop_zoom > 1 << 15 ||
                        f->rows * f->cols > (1 << 28) / f->backdrop_zoom / f->backdrop_zoom))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "figure: backdrop_zoom is %lld, expected 1..32768 and at "
                        "most 2^28 pixels",
                        (long long)f->backdrop_zoom);
    return MHA_OK;
}

mha_status mhai_figure_check(const mha_figure *figure, mha_figure *own)
{
    if (!figure) return mha_fail(MHA_ERR_NULL, "figure is NULL");
    MHA_TRY(mha_struct_read("mha_figure", own, sizeof *own, offsetof(mha_figure, rows), figure,
                            figure->struct_size));
    if (!own->panel_size) return mha_fail(MHA_ERR_ARGUMENT, "figure: panel_size is not set");
    MHA_TRY(check_sizes(own));
    MHA_TRY(check_options(own));
    if (own->group_count == 0) {
        own->group_count = 1;
        own->group_names = NULL;
    }
    for (int64_t i = 0; i < own->panel_count; i++) MHA_TRY(check_panel(own, i));
    return MHA_OK;
}

bool mhai_figure_signed(const mha_figure *figure)
{
#define SIGNED_CASE(name, value, text, is_signed) \
    if (figure->cmap == name) return is_signed;
    MHA_CMAP_LIST(SIGNED_CASE)
#undef SIGNED_CASE
    return false;
}

mha_status mha_figure_extent(const mha_figure *figure, int64_t panel, mha_extent *extent)
{
    if (!extent) return mha_fail(MHA_ERR_NULL, "mha_figure_extent: extent is NULL");
    mha_figure own;
    MHA_TRY(mhai_figure_check(figure, &own));
    if (panel < -1 || panel >= own.panel_count)
        return mha_fail(MHA_ERR_ARGUMENT, "panel is %" PRId64 ", the figure has %" PRId64, panel,
                        own.panel_count);
    mhai_ranges ranges;
    /* no ranks: sorting is unnecessary */
    own.scale = own.scale == MHA_SCALE_RANK ? MHA_SCALE_LINEAR : own.scale;
    mha_status status = mhai_ranges_make(&own, &ranges);
    if (!status) *extent = panel < 0 ? ranges.extent : mhai_ranges_at(&ranges, panel)->extent;
    mhai_ranges_free(&ranges);
    return status;
}
