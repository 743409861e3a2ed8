/* The report of a pruning: importances as a map of layers x heads, the step at which each head is
 * removed, and charts over the number of remaining heads. */
#include "common/arena.h"
#include "common/commands.h"
#include "common/words.h"
#include "prune/prune.h"

#include <inttypes.h>
#include <stdio.h>

enum { CHARTS = 4, SERIES = 8, LISTS = 9, LABEL_BYTES = 32, TEXT_BYTES = 256 };

/* The memory of the report. */
typedef struct page {
    const prune_job *job;
    float *importance, *turn; /* [L,H] */
    uint8_t *missing;         /* [L,H] set where layers have fewer heads */
    char (*labels)[LABEL_BYTES];
    const char **label_list; /* [L + H] */
    double *numbers;         /* [LISTS * points]: value_at() */
    mha_series series[SERIES];
    mha_curve curves[CHARTS];
    char detail[TEXT_BYTES], size[TEXT_BYTES];
} page;

/* The curves over the number of remaining heads, fewest first. */
static double value_at(const prune_point *p, int list)
{
    double random[2] = {0, 0};
    for (int i = 0; i < PRUNE_RANDOM; i++) {
        random[0] += p->random[i].measure / PRUNE_RANDOM;
        random[1] += p->random[i].loss / PRUNE_RANDOM;
    }
    const double values[LISTS] = {(double)p->heads, p->ours.measure,       p->reversed.measure,
                                  random[0],        p->ours.loss,          p->reversed.loss,
                                  random[1],        (double)p->parameters, 1000 * p->seconds};
    return values[list];
}

static const double *list_of(page *g, int list)
{
    const int64_t count = g->job->point_count;
    double *numbers = g->numbers + list * count;
    for (int64_t i = 0; i < count; i++) numbers[i] = value_at(&g->job->points[count - 1 - i], list);
    return numbers;
}

static void add_chart(page *g, int chart, const char *title, const char *y_axis, int first_list,
                      int count)
{
    static const char *const names[] = {"least important first", "most important first",
                                        "mean of 5 random orders"};
    mha_series *series = &g->series[chart < 2 ? 3 * chart : 4 + chart];
    for (int k = 0; k < count; k++)
        series[k] = (mha_series){.name = count > 1 ? names[k] : y_axis,
                                 .x = g->numbers,
                                 .y = list_of(g, first_list + k),
                                 .count = g->job->point_count,
                                 .baseline = k == 2};
    g->curves[chart] = (mha_curve){.title = title,
                                   .x_axis = "heads left",
                                   .y_axis = y_axis,
                                   .series = series,
                                   .series_count = count};
}

static void add_charts(page *g)
{
    list_of(g, 0);
    add_chart(g, 0, "Remaining heads", prune_measured(g->job), 1, 3);
    add_chart(g, 1, "Loss", g->job->data.predicts ? "nats" : "1 - cosine", 4, 3);
    add_chart(g, 2, "Size", "parameters", 7, 1);
    add_chart(g, 3, "Time", "milliseconds", 8, 1);
    g->curves[3].caption = "One forward pass over the data, with the heads removed.";
}

static void add_maps(page *g)
{
    const prune_job *job = g->job;
    const int64_t L = job->model.desc.num_layers, H = job->model.desc.num_heads;
    for (int64_t i = 0; i < L * H; i++) {
        g->importance[i] = (float)job->importance[i];
        g->turn[i] = (float)(job->count + 1);
        g->missing[i] = i % H >= mha_transformer_heads(&job->model.desc, i / H);
    }
    for (int64_t k = 0; k < job->count; k++) g->turn[job->order[k]] = (float)(k + 1);
    for (int64_t i = 0; i < L + H; i++) {
        snprintf(g->labels[i], LABEL_BYTES, i < L ? "L%" PRId64 : "H%" PRId64, i < L ? i : i - L);
        g->label_list[i] = g->labels[i];
    }
}

static void add_words(page *g)
{
    const prune_job *job = g->job;
    const int64_t H = job->model.desc.num_heads;
    const prune_point *kept = &job->points[job->chosen], *all = &job->points[0];
    const int64_t last = job->count ? job->order[job->count - 1] : 0;
    snprintf(g->detail, TEXT_BYTES,
             "With %" PRId64 " of %" PRId64
             " remaining heads the %s is %.4g, with all of them %.4g.\n"
             "Of the removable heads, L%" PRId64 "H%" PRId64 " is removed last.",
             kept->heads, all->heads, prune_measured(job), kept->ours.measure, all->ours.measure,
             last / H, last % H);
    snprintf(g->size, TEXT_BYTES, "%" PRId64 " sequence%s, %" PRId64 " tokens", job->data.sequences,
             words_s(job->data.sequences), job->data.tokens);
}

static mha_status write_page(page *g, const mha_sink *sink)
{
    const prune_job *job = g->job;
    const mha_transformer_desc *d = &job->model.desc;
    const char *measure = mha_importance_name((mha_importance)job->options->measure);
    const mha_fact facts[] = {{"model", job->model.name}, {"data", g->size}, {"measure", measure}};
    const mha_panel panel = {.values = g->importance,
                             .name = "Importance",
                             .note = measure,
                             .detail = g->detail,
                             .masked = g->missing,
                             .twin = g->turn};
    const mha_figure figure = {.struct_size = sizeof figure,
                               .panel_size = sizeof panel,
                               .title = "Removable heads",
                               .row_axis = "layer",
                               .col_axis = "head",
                               .rows = d->num_layers,
                               .cols = d->num_heads,
                               .row_labels = g->label_list,
                               .col_labels = g->label_list + d->num_layers,
                               .panels = &panel,
                               .panel_count = 1,
                               .value_name = "importance"};
    const mha_report report = {.struct_size = sizeof report,
                               .facts = facts,
                               .fact_count = sizeof facts / sizeof *facts,
                               .producer = "multihead " CLI_VERSION,
                               .curve_size = sizeof(mha_curve),
                               .curves = g->curves,
                               .curve_count = CHARTS,
                               .twin_name = "when removed",
                               .twin_value = "turn"};
    return mha_render_html(&figure, &report, sink);
}

mha_status prune_write_html(const void *user, const mha_sink *sink)
{
    const prune_job *job = user;
    const int64_t L = job->model.desc.num_layers, H = job->model.desc.num_heads;
    page g = {.job = job,
              .importance = arena_try(L * H, sizeof(float)),
              .turn = arena_try(L * H, sizeof(float)),
              .missing = arena_try(L * H, 1),
              .labels = arena_try(L + H, LABEL_BYTES),
              .label_list = arena_try(L + H, sizeof(char *)),
              .numbers = arena_try(job->point_count * LISTS, sizeof(double))};
    if (!g.importance || !g.turn || !g.missing || !g.labels || !g.label_list || !g.numbers)
        return MHA_ERR_NOMEM;
    add_charts(&g);
    add_maps(&g);
    add_words(&g);
    return write_page(&g, sink);
}
