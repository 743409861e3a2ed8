/* The curve as a picture: the model's quality against the number of remaining heads. */
#include "common/arena.h"
#include "prune/prune.h"

enum { ORDERS = 2 + PRUNE_RANDOM };

static double quality_at(const prune_point *p, int order)
{
    return order == 0   ? p->ours.measure
           : order == 1 ? p->reversed.measure
                        : p->random[order - 2].measure;
}

static mha_status write_chart(const prune_job *job, bool pdf, const mha_sink *sink)
{
    static const char *const names[ORDERS] = {"least important first", "most important first",
                                              "5 random orders"}; /* for all of them */
    const int64_t count = job->point_count;
    mha_series series[ORDERS];
    double *numbers = arena_try((1 + ORDERS) * count, sizeof *numbers);
    if (!numbers) return MHA_ERR_NOMEM;
    for (int64_t i = 0; i < count; i++) { /* x ascends */
        const prune_point *p = &job->points[count - 1 - i];
        numbers[i] = (double)p->heads;
        for (int k = 0; k < ORDERS; k++) numbers[(1 + k) * count + i] = quality_at(p, k);
    }
    for (int k = 0; k < ORDERS; k++)
        series[k] = (mha_series){.name = names[k],
                                 .x = numbers,
                                 .y = numbers + (1 + k) * count,
                                 .count = count,
                                 .baseline = k > 1};
    const mha_curve curve = {.title = job->model.name,
                             .x_axis = "heads left",
                             .y_axis = prune_measured(job),
                             .series = series,
                             .series_count = ORDERS};
    const mha_chart chart = {.struct_size = sizeof chart,
                             .curve_size = sizeof curve,
                             .curve = &curve,
                             .x_falls = true,
                             .pdf = pdf};
    return mha_render_chart(&chart, sink);
}

mha_status prune_write_svg(const void *job, const mha_sink *sink)
{
    return write_chart(job, false, sink);
}

mha_status prune_write_pdf(const void *job, const mha_sink *sink)
{
    return write_chart(job, true, sink);
}
