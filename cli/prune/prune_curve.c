/* The order in which heads are removed, and the model's quality after each step: by importance, in
 * reverse, and in random orders. */
#include "common/arena.h"
#include "common/launched.h"
#include "common/signals.h"
#include "prune/prune.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- progress -------------------------------------------------------------------------------- */

/* Heads that may be removed. */
static int64_t heads_to_go(const prune_job *job)
{
    int64_t count = 0;
    for (int64_t l = 0; l < job->model.desc.num_layers; l++) {
        const int64_t more = mha_transformer_heads(&job->model.desc, l) - job->options->least;
        count += more > 0 ? more : 0;
    }
    return count;
}

/* The work of each stage in forward passes over the data; a backward pass counts as two. */
static void plan_stages(prune_job *job)
{
    const bool ablation = job->options->measure >= (int)MHA_IMPORTANCE_ABLATION;
    const int64_t step = job->options->step, go = heads_to_go(job);
    const int64_t rounds = (go + step - 1) / step, points = rounds + 1;
    double *work = job->work;
    work[PRUNE_MEASURING] = ablation ? 1 + (double)job->heads : 3;
    work[PRUNE_RANKING] = 0;
    for (int64_t left = go; left > 0; left -= step)
        work[PRUNE_RANKING] += ablation ? 1 + (double)(job->heads - go + left) : 3;
    work[PRUNE_REMOVING] = (2 + PRUNE_RANDOM) * (double)points;
    work[PRUNE_TIMING] = PRUNE_TIMES * (double)points;
    job->progress = progress_begin(job->options->quiet);
}

static void show_progress(prune_job *job, prune_stage stage, int64_t done, int64_t total)
{
    static const char *const names[] = {"measuring heads", "ranking heads", "removing heads",
                                        "timing smaller models"};
    double all = 0, before = 0;
    for (int i = 0; i < PRUNE_STAGES; i++) {
        all += job->work[i];
        before += i < (int)stage ? job->work[i] : 0;
    }
    before += job->work[stage] * (double)done / (double)total;
    progress_show(&job->progress, before / all, "%s: %" PRId64 " of %" PRId64, names[stage], done,
                  total);
}

static mha_status measuring(int64_t done, int64_t total, void *user)
{
    show_progress(user, PRUNE_MEASURING, done, total);
    return MHA_OK;
}

static mha_status ranking(int64_t done, int64_t total, void *user)
{
    show_progress(user, PRUNE_RANKING, done, total);
    return MHA_OK;
}

/* ---- the quality of a model ------------------------------------------------------------------ */

/* One pass: the losses of sequences, and sums over all their targets. */
typedef struct tally {
    const prune_data *data;
    double loss;
    int64_t rows, right;
} tally;

static bool is_right(const prune_data *d, const float *row, int64_t width, int32_t target)
{
    int32_t best = 0;
    for (int32_t k = 1; k < width; k++)
        if (row[k] > row[best]) best = k;
    return best == target || (d->class_of && d->class_of(best) == d->class_of(target));
}

static mha_status count_targets(mha_context *context, int64_t batch,
                                const mha_transformer_input *input, const mha_tensor *output,
                                const mha_tensor *output_gradient, double *losses, void *user)
{
    tally *all = user;
    const prune_data *d = all->data;
    mha_status status =
        mha_loss_targets(context, batch, input, output, output_gradient, losses, d->target_list);
    if (status != MHA_OK) return status;
    const mha_tensor *targets = d->target_list[batch];
    const int64_t T = output->shape[1], width = output->shape[2];
    for (int64_t b = 0; b < output->shape[0]; b++) {
        int64_t rows = 0;
        for (int64_t i = 0; i < input->lengths[b]; i++) {
            const int32_t target = ((const int32_t *)targets->data)[b * T + i];
            const float *row = (const float *)output->data + (b * T + i) * width;
            if (target < 0) continue;
            rows++;
            all->right += is_right(d, row, width, target);
        }
        all->rows += rows;
        all->loss += losses[b] * (double)rows;
    }
    return MHA_OK;
}

/* The data with the loss that measures quality: of the targets, or the cosine of embeddings. */
static mha_importance_data data_of(const prune_data *d, tally *all)
{
    mha_importance_data data = {.struct_size = sizeof data,
                                .batches = d->batches,
                                .inputs = d->input_list,
                                .loss = d->predicts ? count_targets : mha_loss_cosine,
                                .user = d->predicts ? (void *)all : (void *)d->embedding_list};
    *all = (tally){.data = d};
    return data;
}

/* loss: the mean over sequences, if no targets were counted. */
static prune_quality quality_from(const tally *all, double loss)
{
    if (!all->data->predicts || all->rows == 0) return (prune_quality){loss, 1 - loss};
    return (prune_quality){all->loss / (double)all->rows, (double)all->right / (double)all->rows};
}

cli_exit prune_measure(const prune_job *job, const mha_transformer *net, prune_quality *quality)
{
    tally all;
    double loss = 0;
    const mha_importance_data data = data_of(&job->data, &all);
    CLI_TRY(cli_check(mha_gated_loss(job->model.context, net, &data, NULL, &loss)));
    *quality = quality_from(&all, loss);
    return CLI_OK;
}

/* Time the fastest of several passes with heads removed. */
static cli_exit measure_time(prune_job *job, const float *gates, prune_point *point)
{
    const mha_transformer_desc *d = &job->model.desc;
    const int64_t shape[] = {d->num_layers, d->num_heads};
    const mha_tensor keep = mha_tensor_contiguous((void *)(uintptr_t)gates, MHA_F32, 2, shape);
    mha_transformer *net = NULL;
    const size_t mark = arena_mark();
    CLI_TRY(cli_check(mha_transformer_prune(job->model.context, job->model.net, &keep, &net)));
    CLI_TRY(prune_keep(net));
    point->parameters = mha_transformer_size(net);
    for (int i = 0; i < PRUNE_TIMES; i++) {
        prune_quality unused;
        const double from = seconds_now();
        CLI_TRY(prune_measure(job, net, &unused));
        const double seconds = seconds_now() - from;
        if (i == 0 || seconds < point->seconds) point->seconds = seconds;
    }
    arena_release(mark);
    return CLI_OK;
}

/* ---- orders ---------------------------------------------------------------------------------- */

cli_exit prune_order(prune_job *job)
{
    const prune_options *o = job->options;
    const prune_data *d = &job->data;
    const int64_t all = job->model.desc.num_layers * job->model.desc.num_heads;
    const bool ablation = o->measure >= (int)MHA_IMPORTANCE_ABLATION;
    const mha_importance_desc desc = {.struct_size = sizeof desc,
                                      .flags = o->normalise ? MHA_IMPORTANCE_NORMALISE : 0,
                                      .kind = (mha_importance)o->measure};
    mha_importance_data data = {.struct_size = sizeof data,
                                .batches = d->batches,
                                .inputs = d->input_list,
                                .loss = d->predicts ? mha_loss_targets
                                        : ablation  ? mha_loss_cosine
                                                    : mha_loss_direction,
                                .user = (void *)(d->predicts ? d->target_list
                                                 : ablation  ? d->embedding_list
                                                             : d->direction_list),
                                .progress = measuring,
                                .progress_user = job,
                                .transport = ranks_transport()};
    CLI_TRY(ARENA_ALLOC(all, &job->order));
    CLI_TRY(ARENA_ALLOC(all, &job->scores));
    CLI_TRY(ARENA_ALLOC(all, &job->importance));
    plan_stages(job);
    mha_status status = mha_head_importance(job->model.context, job->model.net, &desc, &data,
                                            job->importance, NULL);
    data.progress = ranking;
    mha_head_order_call call = {.struct_size = sizeof call,
                                .step = o->step,
                                .least = o->least,
                                .order = job->order,
                                .scores = job->scores};
    if (status == MHA_OK)
        status = mha_head_order(job->model.context, job->model.net, &desc, &data, &call);
    job->count = call.count;
    return ranks_check(status);
}

void prune_gates(const prune_job *job, const int64_t *order, int64_t removed, float *gates)
{
    const int64_t all = job->model.desc.num_layers * job->model.desc.num_heads;
    for (int64_t k = 0; k < all; k++) gates[k] = 1;
    for (int64_t k = 0; k < removed; k++) gates[order[k]] = 0;
}

/* All heads, in random order. */
static void shuffle(const prune_job *job, uint64_t seed, int64_t *heads)
{
    const int64_t H = job->model.desc.num_heads;
    random_source r = random_make((uint64_t)job->options->seed, 1 + seed);
    int64_t count = 0;
    for (int64_t l = 0; l < job->model.desc.num_layers; l++)
        for (int64_t h = 0; h < mha_transformer_heads(&job->model.desc, l); h++)
            heads[count++] = l * H + h;
    for (int64_t k = count - 1; k > 0; k--) {
        const int64_t other = random_below(&r, k + 1), kept = heads[k];
        heads[k] = heads[other];
        heads[other] = kept;
    }
}

/* ---- the curve ------------------------------------------------------------------------------- */

/* The result of a point that this rank measured. */
typedef struct point_found {
    prune_quality quality;
    int64_t known;
} point_found;

/* A measured order: number 0 by importance, 1 reversed, then the random ones. */
typedef struct order_run {
    prune_job *job;
    int number;
    int64_t *order, count, first; /* the first point to measure; earlier ones are known */
    tally all;
    int64_t *removed;               /* [points] */
    double *losses;                 /* [points] */
    point_found *found, *all_found; /* [points], [ranks, points] */
} order_run;

static mha_status make_order(order_run *run)
{
    const prune_job *job = run->job;
    const int64_t least = job->options->least;
    if (run->number == 1)
        return mha_head_order_reverse(job->model.net, job->order, job->count, least, run->order,
                                      &run->count);
    if (run->number > 1) shuffle(job, (uint64_t)run->number, run->order);
    const int64_t *from = run->number == 0 ? job->order : run->order;
    const int64_t count = run->number == 0 ? job->count : job->heads;
    return mha_head_order_limit(job->model.net, from, count, least, run->order, &run->count);
}

static prune_quality *quality_of(prune_point *point, int i)
{
    return i == 0 ? &point->ours : i == 1 ? &point->reversed : &point->random[i - 2];
}

/* Store the sums of a point's result after it has been measured. */
static mha_status take_point(int64_t done, int64_t total, void *user)
{
    order_run *run = user;
    prune_job *job = run->job;
    const int64_t p = run->first + done - 1;
    (void)total;
    show_progress(job, PRUNE_REMOVING, run->number * job->point_count + p + 1,
                  (2 + PRUNE_RANDOM) * job->point_count);
    run->found[p] = (point_found){quality_from(&run->all, 0), 1};
    run->all = (tally){.data = run->all.data};
    return MHA_OK;
}

/* Send the sums of each point from the rank that measured it to rank 0. */
static cli_exit gather_points(order_run *run)
{
    const mha_transport *t = ranks_transport();
    const int64_t count = run->job->point_count;
    const size_t bytes = (size_t)count * sizeof *run->found;
    const point_found *all = t ? run->all_found : run->found;
    if (t)
        CLI_TRY(ranks_check(
            mha_transport_gather(t, 0, run->found, bytes, ranks_first() ? run->all_found : NULL)));
    for (int64_t i = 0; ranks_first() && i < count * (t ? t->size : 1); i++)
        if (all[i].known) *quality_of(&run->job->points[i % count], run->number) = all[i].quality;
    return CLI_OK;
}

static cli_exit measure_order(order_run *run)
{
    prune_job *job = run->job;
    mha_importance_data data = data_of(&job->data, &run->all);
    data.progress = take_point;
    data.progress_user = run;
    data.transport = ranks_transport();
    memset(run->found, 0, (size_t)job->point_count * sizeof *run->found);
    run->first = run->number > 0; /* without removed heads all orders are equal */
    if (run->first) *quality_of(job->points, run->number) = job->points->ours;
    for (int64_t p = 0; p < job->point_count; p++) run->removed[p] = job->points[p].removed;
    mha_status status = make_order(run);
    const mha_head_curve_call call = {.struct_size = sizeof call,
                                      .order = run->order,
                                      .count = run->count,
                                      .removed = run->removed + run->first,
                                      .points = job->point_count - run->first,
                                      .losses = run->losses + run->first};
    if (status == MHA_OK) status = mha_head_curve(job->model.context, job->model.net, &data, &call);
    CLI_TRY(ranks_check(status));
    if (job->data.predicts) return gather_points(run);
    for (int64_t p = run->first; p < job->point_count; p++)
        *quality_of(&job->points[p], run->number) = quality_from(&run->all, run->losses[p]);
    return CLI_OK;
}

static cli_exit make_points(prune_job *job)
{
    const int64_t step = job->options->step, count = (job->count + step - 1) / step + 1;
    const int64_t wanted = job->options->keep >= 0 ? job->heads - job->options->keep : 0;
    CLI_TRY(ARENA_ALLOC(count + 1, &job->points));
    for (int64_t at = 0, p = 0;; at += step) {
        if (at > job->count) at = job->count;
        if (p > 0 && wanted > job->points[p - 1].removed && wanted < at) /* a point in between */
            job->points[p++].removed = wanted;
        job->points[p++].removed = at;
        job->point_count = p;
        if (at == job->count) break;
    }
    for (int64_t p = 0; p < job->point_count; p++)
        job->points[p].heads = job->heads - job->points[p].removed;
    return CLI_OK;
}

cli_exit prune_curve(prune_job *job)
{
    const int64_t all = job->model.desc.num_layers * job->model.desc.num_heads;
    order_run run = {.job = job};
    float *gates;
    CLI_TRY(make_points(job));
    CLI_TRY(ARENA_ALLOC(all, &run.order));
    CLI_TRY(ARENA_ALLOC(job->point_count, &run.removed));
    CLI_TRY(ARENA_ALLOC(job->point_count, &run.losses));
    CLI_TRY(ARENA_ALLOC(job->point_count, &run.found));
    if (ranks_transport())
        CLI_TRY(ARENA_ALLOC(job->point_count * ranks_transport()->size, &run.all_found));
    CLI_TRY(ARENA_ALLOC(all, &gates));
    for (; run.number < 2 + PRUNE_RANDOM; run.number++) CLI_TRY(measure_order(&run));
    ranks_release();
    if (!ranks_first()) return CLI_OK;
    for (int64_t p = 0; p < job->point_count; p++) {
        prune_gates(job, job->order, job->points[p].removed, gates);
        CLI_TRY(measure_time(job, gates, &job->points[p]));
        show_progress(job, PRUNE_TIMING, p + 1, job->point_count);
    }
    progress_clear(&job->progress);
    return CLI_OK;
}

/* Choose the point to save: the requested number of heads, or the last point before the measure
 * falls below a share of its original value. */
cli_exit prune_choose(prune_job *job)
{
    const prune_options *o = job->options;
    if (o->keep >= 0) {
        const int64_t wanted = job->heads - o->keep;
        for (job->chosen = 0; job->chosen < job->point_count; job->chosen++)
            if (job->points[job->chosen].removed == wanted) return CLI_OK;
        return cli_fail(CLI_USAGE,
                        "--keep %" PRId64 ": there are %" PRId64
                        " heads, and --min-per-layer allows at most %" PRId64 " to be removed",
                        o->keep, job->heads, job->count);
    }
    const double least = (o->stop.given ? o->stop.value : 0.9) * job->points[0].ours.measure;
    job->chosen = 0;
    while (job->chosen + 1 < job->point_count && job->points[job->chosen + 1].ours.measure >= least)
        job->chosen++;
    return CLI_OK;
}
