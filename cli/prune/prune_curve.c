/* In which order heads go, and what the model is worth as they do: in our order, in the reverse of
 * it, and in random orders. */
#include "prune/prune.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int64_t prune_heads_of(const prune_job *job, int64_t layer)
{
    const mha_transformer_desc *d = &job->model.desc;
    return d->layer_heads ? d->layer_heads[layer] : d->num_heads;
}

void prune_progress(const prune_job *job, int64_t done, int64_t total)
{
    if (!job->terminal) return;
    cli_print_to(stderr, "\r\033[K%s: %" PRId64 " of %" PRId64, job->doing, done, total);
    if (done >= total) cli_print_to(stderr, "\r\033[K");
}

static mha_status progress(int64_t done, int64_t total, void *user)
{
    prune_progress(user, done, total);
    return MHA_OK;
}

/* ---- what a model is worth ------------------------------------------------------------------- */

/* A pass: the loss of sequences, and sums over all their targets. */
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

/* Data for losses that importance is not measured on. */
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

cli_exit prune_measure(prune_job *job, const mha_transformer *net, const float *gates,
                       prune_quality *quality)
{
    const mha_transformer_desc *d = &job->model.desc;
    const int64_t shape[] = {d->num_layers, d->num_heads};
    float *copy = NULL;
    void *memory;
    tally all;
    double loss = 0;
    const mha_importance_data data = data_of(&job->data, &all);
    cli_exit code = maps_alloc(PRUNE, shape[0] * shape[1], sizeof *copy, &memory);
    if (code != CLI_OK) return code;
    copy = memory;
    if (gates) memcpy(copy, gates, (size_t)(shape[0] * shape[1]) * sizeof *copy);
    const mha_tensor view = mha_tensor_contiguous(copy, MHA_F32, 2, shape);
    mha_status status = mha_gated_loss(job->model.context, net, &data, gates ? &view : NULL, &loss);
    free(copy);
    if (status != MHA_OK) return cli_fail_status(PRUNE, status);
    if (job->data.predicts && all.rows > 0)
        *quality =
            (prune_quality){all.loss / (double)all.rows, (double)all.right / (double)all.rows};
    else
        *quality = (prune_quality){loss, 1 - loss};
    return CLI_OK;
}

/* The shortest of three passes, heads really gone. */
static cli_exit measure_time(prune_job *job, const float *gates, prune_point *point)
{
    const mha_transformer_desc *d = &job->model.desc;
    const int64_t shape[] = {d->num_layers, d->num_heads};
    const mha_tensor keep = mha_tensor_contiguous((void *)(uintptr_t)gates, MHA_F32, 2, shape);
    mha_transformer *net = NULL;
    mha_status status = mha_transformer_prune(job->model.context, job->model.net, &keep, &net);
    if (status != MHA_OK) return cli_fail_status(PRUNE, status);
    cli_exit code = CLI_OK;
    point->parameters = mha_transformer_size(net);
    for (int i = 0; i < 3 && code == CLI_OK; i++) {
        struct timespec from, to;
        prune_quality unused;
        clock_gettime(CLOCK_MONOTONIC, &from);
        code = prune_measure(job, net, NULL, &unused);
        clock_gettime(CLOCK_MONOTONIC, &to);
        const double seconds =
            (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
        if (i == 0 || seconds < point->seconds) point->seconds = seconds;
    }
    mha_transformer_destroy(net);
    return code;
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
    const mha_importance_data data = {.struct_size = sizeof data,
                                      .batches = d->batches,
                                      .inputs = d->input_list,
                                      .loss = d->predicts ? mha_loss_targets
                                              : ablation  ? mha_loss_cosine
                                                          : mha_loss_direction,
                                      .user = (void *)(d->predicts ? d->target_list
                                                       : ablation  ? d->embedding_list
                                                                   : d->direction_list),
                                      .progress = progress,
                                      .progress_user = job};
    void *order = NULL, *scores = NULL, *importance = NULL;
    cli_exit code = maps_alloc(PRUNE, all, sizeof(int64_t), &order);
    if (code == CLI_OK) code = maps_alloc(PRUNE, all, sizeof(double), &scores);
    if (code == CLI_OK) code = maps_alloc(PRUNE, all, sizeof(double), &importance);
    job->order = order, job->scores = scores, job->importance = importance;
    if (code != CLI_OK) return code;
    job->doing = "measuring heads";
    mha_status status = mha_head_importance(job->model.context, job->model.net, &desc, &data,
                                            job->importance, NULL);
    if (status == MHA_OK)
        status = mha_head_order(job->model.context, job->model.net, &desc, &data, o->step, o->least,
                                job->order, &job->count, job->scores);
    return status == MHA_OK ? CLI_OK : cli_fail_status(PRUNE, status);
}

void prune_gates(const prune_job *job, const int64_t *order, int64_t removed, float *gates)
{
    const int64_t all = job->model.desc.num_layers * job->model.desc.num_heads;
    for (int64_t k = 0; k < all; k++) gates[k] = 1;
    for (int64_t k = 0; k < removed; k++) gates[order[k]] = 0;
}

/* Heads of `from` in its order, but for those whose layer would be left with too few. */
static void keep_floor(const prune_job *job, const int64_t *from, int64_t count, int64_t *left,
                       int64_t *order)
{
    const int64_t H = job->model.desc.num_heads;
    int64_t made = 0;
    for (int64_t l = 0; l < job->model.desc.num_layers; l++) left[l] = prune_heads_of(job, l);
    for (int64_t k = 0; k < count; k++)
        if (left[from[k] / H] > job->options->least) {
            left[from[k] / H]--;
            order[made++] = from[k];
        }
}

/* All heads, in random order. */
static void shuffle(const prune_job *job, uint64_t seed, int64_t *heads)
{
    const int64_t H = job->model.desc.num_heads;
    random_source r = random_make((uint64_t)job->options->seed, 1 + seed);
    int64_t count = 0;
    for (int64_t l = 0; l < job->model.desc.num_layers; l++)
        for (int64_t h = 0; h < prune_heads_of(job, l); h++) heads[count++] = l * H + h;
    for (int64_t k = count - 1; k > 0; k--) {
        const int64_t other = random_below(&r, k + 1), kept = heads[k];
        heads[k] = heads[other];
        heads[other] = kept;
    }
}

/* The most important first: those that never go, then our order backwards. */
static void reverse(const prune_job *job, int64_t *heads)
{
    const int64_t H = job->model.desc.num_heads;
    int64_t count = 0;
    for (int64_t l = 0; l < job->model.desc.num_layers; l++)
        for (int64_t h = 0; h < prune_heads_of(job, l); h++) {
            bool goes = false;
            for (int64_t k = 0; k < job->count && !goes; k++) goes = job->order[k] == l * H + h;
            if (!goes) heads[count++] = l * H + h;
        }
    for (int64_t k = job->count - 1; k >= 0; k--) heads[count++] = job->order[k];
}

/* ---- the curve ------------------------------------------------------------------------------- */

/* Number i of the orders that are compared: 0 ours, 1 reversed, then the random ones. */
static void make_order(const prune_job *job, int i, int64_t *work, int64_t *left, int64_t *order)
{
    if (i == 0) {
        memcpy(order, job->order, (size_t)job->count * sizeof *order);
        return;
    }
    if (i == 1)
        reverse(job, work);
    else
        shuffle(job, (uint64_t)i, work);
    keep_floor(job, work, job->heads, left, order);
}

static prune_quality *quality_of(prune_point *point, int i)
{
    return i == 0 ? &point->ours : i == 1 ? &point->reversed : &point->random[i - 2];
}

static cli_exit measure_order(prune_job *job, int i, const int64_t *order, float *gates)
{
    cli_exit code = CLI_OK;
    for (int64_t p = 0; p < job->point_count && code == CLI_OK; p++) {
        prune_point *point = &job->points[p];
        prune_progress(job, i * job->point_count + p + 1, (2 + PRUNE_RANDOM) * job->point_count);
        if (i > 0 && p == 0) { /* nothing is gone yet */
            *quality_of(point, i) = point->ours;
            continue;
        }
        prune_gates(job, order, point->removed, gates);
        code = prune_measure(job, job->model.net, gates, quality_of(point, i));
        if (i == 0 && code == CLI_OK) code = measure_time(job, gates, point);
    }
    return code;
}

static cli_exit make_points(prune_job *job)
{
    const int64_t step = job->options->step, count = (job->count + step - 1) / step + 1;
    const int64_t wanted = job->options->keep >= 0 ? job->heads - job->options->keep : 0;
    void *memory;
    cli_exit code = maps_alloc(PRUNE, count + 1, sizeof *job->points, &memory);
    job->points = memory;
    for (int64_t at = 0, p = 0; code == CLI_OK; at += step) {
        if (at > job->count) at = job->count;
        if (p > 0 && wanted > job->points[p - 1].removed && wanted < at) /* one in between */
            job->points[p++].removed = wanted;
        job->points[p++].removed = at;
        job->point_count = p;
        if (at == job->count) break;
    }
    for (int64_t p = 0; p < job->point_count; p++)
        job->points[p].heads = job->heads - job->points[p].removed;
    return code;
}

cli_exit prune_curve(prune_job *job)
{
    const int64_t all = job->model.desc.num_layers * job->model.desc.num_heads;
    void *order = NULL, *work = NULL, *left = NULL, *gates = NULL;
    cli_exit code = make_points(job);
    if (code == CLI_OK) code = maps_alloc(PRUNE, all, sizeof(int64_t), &order);
    if (code == CLI_OK) code = maps_alloc(PRUNE, all, sizeof(int64_t), &work);
    if (code == CLI_OK)
        code = maps_alloc(PRUNE, job->model.desc.num_layers, sizeof(int64_t), &left);
    if (code == CLI_OK) code = maps_alloc(PRUNE, all, sizeof(float), &gates);
    job->doing = "removing heads";
    for (int i = 0; i < 2 + PRUNE_RANDOM && code == CLI_OK; i++) {
        make_order(job, i, work, left, order);
        code = measure_order(job, i, order, gates);
    }
    free(order);
    free(work);
    free(left);
    free(gates);
    return code;
}

/* The point that is kept: as many heads as asked for, or the last before the measure falls below a
 * part of what it was. */
cli_exit prune_choose(prune_job *job)
{
    const prune_options *o = job->options;
    if (o->keep >= 0) {
        const int64_t wanted = job->heads - o->keep;
        for (job->chosen = 0; job->chosen < job->point_count; job->chosen++)
            if (job->points[job->chosen].removed == wanted) return CLI_OK;
        return cli_fail(CLI_USAGE, PRUNE,
                        "%" PRId64 " heads cannot be kept: there are %" PRId64
                        ", of which --min-per-layer lets at most %" PRId64 " go",
                        o->keep, job->heads, job->count);
    }
    const double least = (o->stop.given ? o->stop.value : 0.9) * job->points[0].ours.measure;
    job->chosen = 0;
    while (job->chosen + 1 < job->point_count && job->points[job->chosen + 1].ours.measure >= least)
        job->chosen++;
    return CLI_OK;
}
