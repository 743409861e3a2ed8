/* The report's maps as base64 of little-endian numbers, and the choice of their precision.
 *
 *   32 bits  the float itself; a masked cell is the NaN 0x7FC0A5A5
 *   16, 8    q = round(top * sqrt(|v| / m)), m the map's greatest magnitude; the two highest
 *            codes are "not finite" and "masked". With negative values codes run from -mid to mid,
 *            and mid is added.
 *
 * The square root concentrates the codes near 0, like attention weights. The error of a value is at
 * most sqrt(|v| m) / top + m / (4 top^2).
 */
#include "html.h"

#include <multihead/component.h>
#include <multihead/json.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t masked_float = 0x7FC0A5A5;
enum {
    LEAST_FRAMES = 8,
    FRAME_BITS = 8,
    MAP_TEXT = 96 /* bytes of a frame's map besides its data */
};

/* -- lists of maps ---------------------------------------------------------------------------- */

mha_panel mhai_html_twin(const mha_figure *figure, int64_t i)
{
    mha_panel panel = mhai_figure_panel(figure, i);
    panel.values = panel.twin;
    panel.row_stride = panel.twin_stride;
    return panel;
}

mha_panel mhai_html_frame(const mhai_html_page *page, int64_t frame, int64_t i)
{
    mha_panel panel = mhai_figure_panel(&page->figure, i);
    const float *const *maps = page->report.frames[frame].maps;
    panel.values = maps ? maps[i] : NULL;
    panel.row_stride = page->figure.cols;
    return panel;
}

mha_status mhai_html_survey(const mha_figure *figure, const mha_panel *panel, mha_extent *extent)
{
    mha_figure one = *figure;
    mhai_ranges ranges;
    one.panels = panel;
    one.panel_size = sizeof *panel;
    one.panel_count = 1;
    one.range = MHA_RANGE_SHARED;
    one.scale = MHA_SCALE_LINEAR;
    mha_status status = mhai_ranges_make(&one, &ranges);
    if (!status) *extent = ranges.extent;
    mhai_ranges_free(&ranges);
    return status;
}

/* -- precision -------------------------------------------------------------------------------- */

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* The size of the base64 of one map. All panels have at most 2^31 cells, so nothing overflows. */
static int64_t coded_size(const mhai_html_coding *coding, int bits)
{
    return 4 * ceil_div(coding->rows * coding->cols * (bits / 8), 3);
}

static int64_t count_twins(const mha_figure *f)
{
    int64_t count = 0;
    for (int64_t i = 0; i < f->panel_count; i++) count += mhai_html_twin(f, i).values != NULL;
    return count;
}

/* The size of a frame: its maps, and its label with up to 6 bytes per character in JSON. */
static int64_t size_of_frame(const mhai_html_page *page, const mhai_html_coding *coding)
{
    const mha_report *report = &page->report;
    size_t longest = 0;
    for (int64_t i = 0; i < report->frame_count; i++) {
        size_t length = report->frames[i].label ? strlen(report->frames[i].label) : 0;
        longest = length > longest ? length : longest;
    }
    return page->figure.panel_count * (coded_size(coding, FRAME_BITS) + MAP_TEXT) + MAP_TEXT +
           6 * (int64_t)longest;
}

/* The smallest step whose frames take at most half of `most`; 0 if fewer than LEAST_FRAMES (or all)
 * would remain. The first and the last frame are kept for every step, so steps beyond their
 * distance save nothing. *size is the size of the frames. */
static int64_t step_of_frames(const mhai_html_page *page, const mhai_html_coding *coding,
                              int64_t most, int64_t *size)
{
    int64_t frames = page->report.frame_count;
    int64_t least = frames < LEAST_FRAMES ? frames : LEAST_FRAMES;
    int64_t each = size_of_frame(page, coding);
    *size = 0;
    if (frames == 0) return 1;
    for (int64_t step = 1; step == 1 || step < frames; step++) {
        int64_t kept = ceil_div(frames - 1, step) + 1;
        if (kept < least) return 0;
        *size = kept * each;
        if (kept <= most / 2 / each) return step;
    }
    return 0;
}

mhai_html_coding mhai_html_choose_coding(const mhai_html_page *page, int64_t most)
{
    static const int bits[] = {32, 16, 8};
    const mha_figure *f = &page->figure;
    mhai_html_coding coding = {0};
    int64_t longest = f->rows > f->cols ? f->rows : f->cols;
    int64_t maps = f->panel_count + count_twins(f);
    for (int64_t pool = 1; pool == 1 || pool <= longest; pool += 1 + pool / 16) {
        coding = (mhai_html_coding){pool, ceil_div(f->rows, pool),  ceil_div(f->cols, pool),
                                    8,    page->report.frame_count, page->coding.neuron_bits};
        int64_t frames, step = step_of_frames(page, &coding, most, &frames);
        for (size_t i = 0; step && i < sizeof bits / sizeof *bits; i++)
            if (maps * coded_size(&coding, bits[i]) <= most - frames) {
                coding.bits = bits[i];
                coding.frame_step = step;
                return coding;
            }
    }
    return coding;
}

int64_t mhai_html_next_frame(const mhai_html_page *page, int64_t frame)
{
    int64_t count = page->report.frame_count, step = page->coding.frame_step;
    if (frame >= count - 1) return count;
    return step < count - 1 - frame ? frame + step : count - 1;
}

/* -- writing a map ---------------------------------------------------------------------------- */

static void put(uint8_t *out, uint32_t value, int bits)
{
    for (int i = 0; i < bits / 8; i++) out[i] = (uint8_t)(value >> (8 * i));
}

static uint32_t code_of(double value, mhai_cell kind, double greatest, bool negative, int bits)
{
    uint32_t last = bits == 8 ? 255 : 65535;
    if (kind == MHAI_CELL_MASKED) return last;
    if (kind == MHAI_CELL_NOT_FINITE) return last - 1;
    double root = greatest > 0 ? sqrt(fabs(value) / greatest) : 0;
    double middle = (last - 3) / 2;
    if (negative) return (uint32_t)lround(middle + (value < 0 ? -root : root) * middle);
    return (uint32_t)lround(root * (last - 2));
}

static uint32_t float_bits(float value, mhai_cell kind)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (kind == MHAI_CELL_MASKED) return masked_float;
    return isnan(value) ? 0x7FC00000 : bits;
}

/* A float that is not finite is written unchanged. Blocks are never exact, so this does not apply
 * to them. */
static uint32_t exact_bits(const mha_panel *panel, const mhai_html_coding *coding,
                           const mhai_cells *cells, int64_t i)
{
    mhai_cell kind = (mhai_cell)cells->kind[i];
    if (kind != MHAI_CELL_NOT_FINITE) return float_bits(cells->value[i], kind);
    float value = coding->pool > 1
                      ? NAN
                      : panel->values[i / cells->cols * panel->row_stride + i % cells->cols];
    return float_bits(value, kind);
}

mha_status mhai_html_coder_open(const mhai_html_page *page, mhai_html_coder *coder)
{
    const mhai_html_coding *coding = &page->coding;
    *coder = (mhai_html_coder){0};
    MHA_TRY(mhai_cells_alloc(coding->rows, coding->cols, &coder->cells));
    coder->bytes = mhai_sink_alloc(coding->rows * coding->cols, (size_t)coding->bits / 8);
    return coder->bytes ? MHA_OK : mha_fail(MHA_ERR_NOMEM, "report: no memory for a panel's data");
}

void mhai_html_coder_write(mhai_html_coder *coder, const mhai_html_page *page,
                           const mha_panel *panel, const mha_extent *extent, int bits,
                           mha_json *json)
{
    const mhai_html_coding *coding = &page->coding;
    mhai_cells *cells = &coder->cells;
    size_t step = (size_t)bits / 8;
    double greatest = fmax(fabs(extent->least), fabs(extent->greatest));
    mhai_cells_fill(&page->figure, panel, coding->pool, coding->pool, cells);
    for (int64_t i = 0; i < cells->rows * cells->cols; i++) {
        uint32_t code = bits == 32 ? exact_bits(panel, coding, cells, i)
                                   : code_of((double)cells->value[i], (mhai_cell)cells->kind[i],
                                             greatest, page->negative, bits);
        put(coder->bytes + (size_t)i * step, code, bits);
    }
    mha_json_base64(json, "data", coder->bytes, (size_t)(cells->rows * cells->cols) * step);
}

void mhai_html_coder_close(mhai_html_coder *coder)
{
    mhai_cells_free(&coder->cells);
    free(coder->bytes);
}
