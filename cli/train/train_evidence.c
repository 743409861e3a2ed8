/* See train_evidence.h. */
#include "train/train_evidence.h"

#include "common/arena.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* ---- curves -------------------------------------------------------------------------------- */

/* A column of the curve as a line of the current chart. */
static void add_line(const train_run *run, int column, const char *name, train_evidence *e)
{
    double *x = e->numbers + e->used, *y = x + run->looks;
    for (int64_t i = 0; i < run->looks; i++) {
        const double *point = run->curve + i * TRAIN_CURVE_COLUMNS;
        x[i] = point[TRAIN_CURVE_STEP];
        y[i] = point[column];
    }
    e->used += 2 * run->looks;
    e->series[e->series_used++] = (mha_series){.name = name, .x = x, .y = y, .count = run->looks};
}

static void make_curves(const train_run *run, train_evidence *e)
{
    const train_task *task = run->model.task;
    add_line(run, TRAIN_CURVE_LOSS, "of the step", e);
    add_line(run, TRAIN_CURVE_HELD_OUT, "held out", e);
    e->curves[0] = (mha_curve){.title = "Loss",
                               .caption = "The loss of a step has the task's weights; on held-out "
                                          "data every word counts equally.",
                               .x_axis = "step",
                               .y_axis = "loss (nats)",
                               .series = e->series,
                               .series_count = 2,
                               .timeline = true};
    if (task->kinds[1]) {
        for (int kind = 0; kind < TRAIN_KINDS && task->kinds[kind]; kind++)
            add_line(run, TRAIN_CURVE_KIND + kind, task->kinds[kind], e);
    } else {
        add_line(run, TRAIN_CURVE_RIGHT, "right", e);
    }
    if (!task->text) add_line(run, TRAIN_CURVE_BEST, "weight of the best head", e);
    e->curves[1] =
        (mha_curve){.title = "Right on held-out data",
                    .caption = task->text ? "The most likely next word."
                                          : "Also the weight of the head that attends most to the "
                                            "correct word, for its weakest kind.",
                    .x_axis = "step",
                    .y_axis = "share",
                    .series = e->series + 2,
                    .series_count = e->series_used - 2,
                    .timeline = true};
    e->extra.curves = e->curves;
    e->extra.curve_count = run->looks > 0 ? EVIDENCE_CURVES : 0;
}

/* ---- columns ------------------------------------------------------------------------------- */

static double *add_column(const char *name, const char *about, bool ascending, int64_t heads,
                          train_evidence *e)
{
    double *values = e->numbers + e->used;
    e->used += heads;
    e->columns[e->extra.column_count++] =
        (mha_column){.name = name, .about = about, .values = values, .ascending = ascending};
    return values;
}

static void add_kinds(const train_task *task, const train_finding *found, int64_t L, int64_t H,
                      train_evidence *e)
{
    for (int kind = 0; kind < TRAIN_KINDS && (kind == 0 || (task->kinds[1] && task->kinds[kind]));
         kind++) {
        const char *name = task->kinds[1] ? task->kinds[kind] : "";
        snprintf(e->names[kind], sizeof e->names[kind], "right%s%s", *name ? ", " : "", name);
        double *right = add_column(e->names[kind], "weight on the right tokens, held-out data",
                                   false, L * H, e);
        for (int64_t i = 0; i < L * H; i++) right[i] = train_right(&found->all, kind, i / H, i % H);
    }
}

static void make_columns(const train_run *run, const train_finding *found, int64_t L, int64_t H,
                         train_evidence *e)
{
    const train_task *task = run->model.task;
    if (!task->text) add_kinds(task, found, L, H, e);
    if (!run->model.encoder) {
        double *before = add_column("before", "weight on the previous token", false, L * H, e);
        for (int64_t i = 0; i < L * H; i++) before[i] = train_previous(&found->all, i / H, i % H);
    }
    double *left = task->text
                       ? add_column("without it", "perplexity with this head off", false, L * H, e)
                       : add_column("without it", "accuracy with this head off", true, L * H, e);
    for (int64_t i = 0; i < L * H; i++) left[i] = found->left[i];
    e->extra.columns = e->columns;
}

/* ---- frames -------------------------------------------------------------------------------- */

static void add_frame(double step, const float *maps, int64_t heads, int64_t cells,
                      train_evidence *e)
{
    const int64_t k = e->extra.frame_count++;
    snprintf(e->labels[k], sizeof e->labels[k], "step %.0f", step);
    for (int64_t i = 0; i < heads; i++) e->panels[k * heads + i] = maps + i * cells;
    e->frames[k] = (mha_frame){.label = e->labels[k], .at = step, .maps = &e->panels[k * heads]};
}

/* Make frames of the snapshots and of the final maps, which the figure shows. */
static void make_frames(const train_run *run, int example, int64_t heads, train_evidence *e)
{
    const train_frames *f = &run->frames;
    const double last = (double)(run->best ? run->best_step : run->model.step);
    if (f->count == 0) return;
    const int64_t cells = f->size[example] / heads;
    for (int64_t k = 0; k < f->count && f->steps[k] < last; k++)
        add_frame(f->steps[k], f->maps[example] + k * f->size[example], heads, cells, e);
    add_frame(last, run->model.probabilities, heads, cells, e);
    e->extra.frames = e->frames;
}

cli_exit train_evidence_make(const train_run *run, const train_finding *found, int example,
                             train_evidence *e)
{
    mha_transformer_desc d;
    mha_transformer_describe(run->model.decoder, &d);
    const int64_t heads = d.num_layers * d.num_heads;
    *e = (train_evidence){0};
    CLI_TRY(ARENA_ALLOC(EVIDENCE_SERIES * 2 * run->looks + EVIDENCE_COLUMNS * heads, &e->numbers));
    CLI_TRY(arena_alloc((TRAIN_MOST_FRAMES + 1) * heads, sizeof(float *), &e->panels));
    make_curves(run, e);
    make_columns(run, found, d.num_layers, d.num_heads, e);
    make_frames(run, example, heads, e);
    return CLI_OK;
}
