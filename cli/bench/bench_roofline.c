/* The roofline plot (Williams, Waterman and Patterson 2009): operations per second against
 * operations per byte, both logarithmic. The roof is bounded by memory on the left and by
 * multiply-adds on the right. Each row is a box. Its distance from the roof shows the performance
 * that is missing. */
#include "bench/bench.h"
#include "common/commands.h"
#include "common/words.h"

#include <multihead/attention.h>
#include <multihead/component.h>
#include <multihead/render.h>

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

enum { MOST_ROWS = 64, MOST_MARKS = 60 + 3 * MOST_ROWS };

static const double left = 70, top = 20, width = 640, line_height = 15;

typedef struct plot {
    mha_mark marks[MOST_MARKS];
    char texts[MOST_MARKS][40];
    int64_t count;
    double x_lo, x_hi, y_lo, y_hi; /* decades */
    double height;
} plot;

static double x_of(const plot *p, double intensity)
{
    return left + width * (log10(intensity) - p->x_lo) / (p->x_hi - p->x_lo);
}

static double y_of(const plot *p, double gflops)
{
    return top + p->height * (p->y_hi - log10(gflops)) / (p->y_hi - p->y_lo);
}

static void put(plot *p, mha_mark mark)
{
    if (p->count < MOST_MARKS) p->marks[p->count++] = mark;
}

static void put_line(plot *p, double x0, double y0, double x1, double y1, mha_ink ink)
{
    put(p, (mha_mark){.kind = MHA_MARK_LINE,
                      .ink = ink,
                      .flags = ink == MHA_INK_GREY ? MHA_MARK_DASHED : 0,
                      .x = x0,
                      .y = y0,
                      .width = x1 - x0,
                      .height = y1 - y0});
}

static void put_label(plot *p, double x, double y, uint32_t flags, mha_ink ink, const char *text)
{
    put(p, (mha_mark){.kind = MHA_MARK_TEXT,
                      .ink = ink,
                      .flags = flags,
                      .x = x,
                      .y = y,
                      .size = 11,
                      .text = text});
}

/* Put a short text, whose memory the plot owns. */
static void put_text(plot *p, double x, double y, uint32_t flags, const char *format, ...)
    MHA_PRINTF(5, 6);

static void put_text(plot *p, double x, double y, uint32_t flags, const char *format, ...)
{
    if (p->count == MOST_MARKS) return;
    char *text = p->texts[p->count];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof p->texts[0], format, arguments);
    va_end(arguments);
    put_label(p, x, y, flags, MHA_INK_MUTED, text);
}

/* Operations per byte of traffic from memory if memory limits the work, otherwise per byte of the
 * tensors that it reads and writes once. */
static double intensity_of(const bench_work *work)
{
    const bench_shape *s = &work->shape;
    if (work->bytes > 0) return work->flops / work->bytes;
    if (s->kind == BENCH_GEMM)
        return work->flops / (4.0 * (double)(s->rows * (s->inputs + s->outputs)) +
                              4.0 * (double)s->inputs * (double)s->outputs);
    const double size = 4.0 * (double)(s->batch * s->head_dim);
    const double queries = (double)(s->heads * s->queries), keys = (double)(s->kv_heads * s->keys);
    if (s->kind == BENCH_MODULE) {
        const double embed = (double)(s->heads * s->head_dim);
        return work->flops / (2 * size * queries + 16 * embed * embed);
    }
    return work->flops / (size * (s->kind == BENCH_BACKWARD ? 4 : 2) * (queries + keys));
}

static void set_axes(plot *p, const bench_report *report)
{
    const double peak = 1e-9 * report->machine.fma_peak;
    p->height = line_height * report->count > 380 ? line_height * report->count : 380;
    p->x_lo = -1, p->x_hi = 4;
    p->y_hi = ceil(log10(peak > 1 ? peak : 1) + 0.1);
    p->y_lo = p->y_hi - 3;
    for (int i = 0; i < report->count; i++) {
        const double gflops = 1e-9 * report->rows[i].work.flops / report->rows[i].result.median;
        const double x = log10(intensity_of(&report->rows[i].work)), y = log10(gflops);
        if (x < p->x_lo) p->x_lo = floor(x);
        if (x > p->x_hi) p->x_hi = ceil(x);
        if (y < p->y_lo) p->y_lo = floor(y);
        if (y > p->y_hi) p->y_hi = ceil(y);
    }
}

static void draw_axes(plot *p)
{
    for (double x = p->x_lo; x <= p->x_hi + 0.5; x++) {
        const double at = x_of(p, pow(10, x));
        put_line(p, at, top, at, top + p->height, MHA_INK_GREY);
        put_text(p, at, top + p->height + 18, MHA_MARK_MIDDLE, "%g", pow(10, x));
    }
    for (double y = p->y_lo; y <= p->y_hi + 0.5; y++) {
        const double at = y_of(p, pow(10, y));
        put_line(p, left, at, left + width, at, MHA_INK_GREY);
        put_text(p, left - 8, at + 4, MHA_MARK_END, "%g", pow(10, y));
    }
    put_label(p, left + width / 2, top + p->height + 40, MHA_MARK_MIDDLE, MHA_INK_MUTED,
              "operations per byte");
    put_label(p, left - 60, top - 8, 0, MHA_INK_MUTED, "GFLOP/s");
}

/* The roof: it rises with the memory bandwidth up to the peak of multiply-adds. */
static void draw_roof(plot *p, const bench_machine *m)
{
    const double peak = 1e-9 * m->fma_peak, slope = 1e-9 * m->bandwidth, knee = peak / slope;
    double low = pow(10, p->x_lo);
    if (low * slope < pow(10, p->y_lo)) low = pow(10, p->y_lo) / slope;
    put_line(p, x_of(p, low), y_of(p, low * slope), x_of(p, knee), y_of(p, peak), MHA_INK_ORANGE);
    put_line(p, x_of(p, knee), y_of(p, peak), left + width, y_of(p, peak), MHA_INK_BLUE);
    put_text(p, x_of(p, knee) + 8, y_of(p, peak) - 8, 0, "%.0f GFLOP/s of multiply-adds", peak);
    put_text(p, x_of(p, 2 * low) + 12, y_of(p, 2 * low * slope) + 4, 0, "memory, %.1f GB/s", slope);
}

static void draw_rows(plot *p, const bench_report *report)
{
    static const mha_ink inks[BENCH_KINDS] = {MHA_INK_BLUE, MHA_INK_ROSE, MHA_INK_ORANGE,
                                              MHA_INK_PURPLE, MHA_INK_GREEN};
    for (int i = 0; i < report->count && i < MOST_ROWS; i++) {
        const bench_row *row = &report->rows[i];
        const double gflops = 1e-9 * row->work.flops / row->result.median;
        const double x = x_of(p, intensity_of(&row->work)), y = y_of(p, gflops);
        const double legend = left + width + 30, line = top + line_height * i;
        put(p, (mha_mark){.kind = MHA_MARK_BOX,
                          .ink = inks[row->work.shape.kind],
                          .flags = MHA_MARK_FULL,
                          .x = x - 4,
                          .y = y - 4,
                          .width = 8,
                          .height = 8});
        put_text(p, legend, line + 9, MHA_MARK_MONO, "%3.0f %%",
                 100 * row->limit / row->result.median);
        put_label(p, legend + 48, line + 9, 0, inks[row->work.shape.kind], row->work.name);
    }
}

mha_status bench_write_roofline(const bench_report *report, bool pdf, const mha_sink *sink)
{
    static const char title[] = "Roofline";
    char subtitle[120];
    plot p = {0};
    if (!(report->machine.fma_peak > 0))
        return mha_fail(MHA_ERR_UNSUPPORTED, "the peak of this processor is unknown: no roof");
    set_axes(&p, report);
    draw_axes(&p);
    draw_roof(&p, &report->machine);
    draw_rows(&p, report);
    snprintf(subtitle, sizeof subtitle, "%s, %d thread%s; medians; %% is of the roof",
             mha_isa_name(report->machine.isa), report->machine.threads,
             words_s(report->machine.threads));
    const mha_diagram_panel panel = {.width = left + width + 400,
                                     .height = p.height + 80,
                                     .marks = p.marks,
                                     .mark_count = p.count};
    const mha_diagram diagram = {.struct_size = sizeof diagram,
                                 .panel_size = sizeof(mha_diagram_panel),
                                 .mark_size = sizeof(mha_mark),
                                 .title = title,
                                 .subtitle = subtitle,
                                 .footnote = "multihead " CLI_VERSION,
                                 .panels = &panel,
                                 .panel_count = 1,
                                 .pdf = pdf};
    return mha_render_diagram(&diagram, sink);
}
