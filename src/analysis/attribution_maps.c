/* Maps beyond attention weights: norm-based (Kobayashi et al. 2020), and rollout across layers
 * (Abnar and Zuidema 2020).
 *
 * ||sum_h a_h f_h||^2 = sum_hg a_h a_g (f_h . f_g): the dot products f_h . f_g of a key are
 * computed once. A cell of the layer's map then costs H^2 instead of H E. */
#include "analysis/attribution.h"

#include "base/checked.h"
#include "base/need.h"

#include <math.h>
#include <stdio.h>

typedef struct map_job {
    mhai_attribution_writer writer; /* its heads are the value vectors */
    mha_norm_maps out;
    int64_t S, T, b;
    double *rows;  /* [threads][H,E] */
    double *norms; /* [H,S] of sequence b */
    double *dots;  /* [S][H,H], or NULL */
} map_job;

/* ---- norm-based maps ----------------------------------------------------------------------- */

static void measure_key(void *argument, int64_t s, int worker)
{
    const map_job *job = argument;
    const mhai_attribution_writer *w = &job->writer;
    double *rows = job->rows + worker * w->H * w->E;
    mhai_attribution_write(w, job->b, s, rows);
    for (int64_t h = 0; h < w->H; h++) {
        for (int64_t g = 0; job->dots && g <= h; g++) {
            const double dot = mhai_attribution_dot(rows + h * w->E, rows + g * w->E, w->E);
            job->dots[(s * w->H + h) * w->H + g] = job->dots[(s * w->H + g) * w->H + h] = dot;
        }
        const double norm = sqrt(mhai_attribution_dot(rows + h * w->E, rows + h * w->E, w->E));
        job->norms[h * job->S + s] = norm;
        if (job->out.values) *mhai_attribution_at(job->out.values, job->b, h, s) = (float)norm;
    }
}

/* The weight of a head at a cell. */
static double weight_of(const map_job *job, int64_t h, int64_t t, int64_t s)
{
    return (double)mhai_attribution_at(job->out.probabilities, job->b, h, t)[s];
}

static void put_layer_row(const map_job *job, int64_t t)
{
    const int64_t H = job->writer.H;
    float *out = mhai_attribution_at(job->out.layer, job->b, t, 0);
    for (int64_t s = 0; s < job->S; s++) {
        const double *dots = job->dots + s * H * H;
        double sum = 0;
        for (int64_t h = 0; h < H; h++) {
            const double weight = weight_of(job, h, t, s);
            double part = 0;
            for (int64_t g = 0; g < H; g++) part += weight_of(job, g, t, s) * dots[h * H + g];
            sum += weight * part;
        }
        out[s] = sum < 0 ? 0 : (float)sqrt(sum); /* may be negative after rounding */
    }
}

/* The layer's row is computed first, because the heads may overwrite the probabilities. */
static void put_map_row(void *argument, int64_t t, int worker)
{
    const map_job *job = argument;
    (void)worker;
    if (job->out.layer) put_layer_row(job, t);
    for (int64_t h = 0; job->out.heads && h < job->writer.H; h++) {
        float *out = mhai_attribution_at(job->out.heads, job->b, h, t);
        for (int64_t s = 0; s < job->S; s++)
            out[s] = (float)(fabs(weight_of(job, h, t, s)) * job->norms[h * job->S + s]);
    }
}

static bool same_view(const mha_tensor *a, const mha_tensor *b)
{
    if (!a || !b || a->data != b->data || a->ndim != b->ndim) return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->shape[i] > 1 && a->stride[i] != b->stride[i]) return false;
    return true;
}

static mha_status check_maps(const map_job *job, const mha_tensor *weight)
{
    const mhai_attribution_writer *w = &job->writer;
    const int64_t B = w->heads.shape[0], S = w->heads.shape[2];
    const mha_norm_maps *out = &job->out;
    const mha_tensor *probabilities = out->probabilities;
    if (probabilities) {
        MHA_TRY(mhai_tensor_check("probabilities", probabilities, MHA_F32, 4,
                                  (int64_t[]){B, w->H, -1, S}));
        MHA_TRY(mhai_tensor_check_last("probabilities", probabilities));
    } else if (out->heads || out->layer) {
        return mha_fail(MHA_ERR_NULL, "probabilities: is NULL; heads and layer require it");
    }
    const int64_t T = probabilities ? probabilities->shape[2] : 0;
    const bool in_place = same_view(out->heads, probabilities);
    const mha_tensor *all[] = {&w->heads,   weight,     out->gates,
                               out->values, out->layer, in_place ? NULL : probabilities};
    MHA_TRY(mhai_attribution_output("values", out->values, 3, (int64_t[]){B, w->H, S}, all, 3));
    MHA_TRY(mhai_tensor_check_disjoint("values", out->values, "probabilities", probabilities));
    MHA_TRY(mhai_attribution_output("layer", out->layer, 3, (int64_t[]){B, T, S}, all, 4));
    MHA_TRY(mhai_tensor_check_disjoint("layer", out->layer, "probabilities", probabilities));
    return mhai_attribution_output("heads", out->heads, 4, (int64_t[]){B, w->H, T, S}, all, 6);
}

static mha_status take_map_scratch(mha_context *context, map_job *job)
{
    const mhai_attribution_writer *w = &job->writer;
    const int64_t rows = mhai_times(w->H, w->E), norms = mhai_times(w->H, job->S);
    MHA_TRY(mha_scratch_alloc(context, mhai_times(rows, mha_context_threads(context)),
                              sizeof(double), &job->rows));
    MHA_TRY(mha_scratch_alloc(context, norms, sizeof(double), &job->norms));
    if (!job->out.layer) return MHA_OK;
    return mha_scratch_alloc(context, mhai_times(norms, w->H), sizeof(double), &job->dots);
}

static mha_status run(mha_context *context, const mha_tensor *weight, map_job *job)
{
    MHA_TRY(mhai_attribution_transpose(context, weight, &job->writer));
    MHA_TRY(take_map_scratch(context, job));
    for (job->b = 0; job->b < job->writer.heads.shape[0]; job->b++) {
        mha_parallel_for(context, job->S, measure_key, job);
        mha_parallel_for(context, job->T, put_map_row, job);
    }
    return MHA_OK;
}

mha_status mha_attention_norm_maps(mha_context *context, const mha_tensor *v,
                                   const mha_tensor *weight, const mha_norm_maps *maps)
{
    map_job job = {0};
    MHA_NEED("mha_attention_norm_maps", maps);
    MHA_TRY(mhai_struct_copy("mha_norm_maps", &job.out, sizeof job.out, sizeof job.out, maps));
    MHA_TRY(mhai_check_reserved("mha_norm_maps", job.out.reserved));
    MHA_TRY(mhai_attribution_begin(context, v, weight, job.out.gates, &job.writer));
    MHA_TRY(check_maps(&job, weight));
    job.S = v->shape[2];
    job.T = job.out.probabilities ? job.out.probabilities->shape[2] : 0;
    mha_scratch_mark mark = mha_scratch_top(context);
    return mha_scratch_end(context, mark, run(context, weight, &job));
}

mha_status mha_layer_norm_maps(mha_context *context, const mha_transformer *transformer,
                               const mha_activations *activations, int64_t layer,
                               mha_layer_part part, const mha_norm_maps *maps)
{
    mha_layer_view view = {.struct_size = sizeof view};
    mha_tensor weight;
    char name[32];
    MHA_TRY(mhai_attribution_check(transformer, activations, part));
    MHA_TRY(mha_activations_layer(activations, layer, part, &view));
    const mha_layer_desc *layers = transformer->desc.layers;
    const char *difference = layers ? mhai_layer_beyond_values(&layers[layer]) : NULL;
    if (difference && part == MHA_PART_SELF_ATTENTION)
        return mha_fail(
            MHA_ERR_UNSUPPORTED,
            "mha_layer_norm_maps: layer %lld %s; only layers that attend without output "
            "gates are supported",
            (long long)layer, difference);
    if (!context) return mha_fail(MHA_ERR_NULL, "mha_layer_norm_maps: context is NULL");
    const mha_scratch_mark mark = mha_scratch_top(context);
    snprintf(name, sizeof name, "%s.o_proj.weight", mhai_attribution_part(part));
    mha_status status = mhai_attribution_last(context, transformer, layer, name, false, &weight);
    if (status == MHA_OK) status = mha_attention_norm_maps(context, &view.v, &weight, maps);
    return mha_scratch_end(context, mark, status);
}

/* ---- rollout ------------------------------------------------------------------------------- */

typedef struct rollout_job {
    mha_tensor maps, after;
    const mha_tensor *before;
    double *rows; /* [threads][2][T] */
} rollout_job;

static void roll_row(void *argument, int64_t item, int worker)
{
    const rollout_job *job = argument;
    const int64_t H = job->maps.shape[1], T = job->maps.shape[3];
    const int64_t b = item / T, t = item % T;
    double *mixed = job->rows + worker * 2 * T, *sum = mixed + T, total = 0;
    for (int64_t s = 0; s < T; s++) {
        double mean = 0;
        for (int64_t h = 0; h < H; h++) mean += (double)mhai_attribution_at(&job->maps, b, h, t)[s];
        mixed[s] = (H > 0 ? mean / (double)H : 0) + (s == t);
        total += mixed[s];
        sum[s] = 0;
    }
    for (int64_t j = 0; j < T; j++) {
        const double weight = mixed[j] / total;
        if (!job->before) {
            sum[j] = weight;
            continue;
        }
        if (weight == 0) continue; /* half of the cells of causal maps */
        const float *row = mhai_attribution_at(job->before, b, j, 0);
        for (int64_t s = 0; s < T; s++) sum[s] += weight * (double)row[s];
    }
    float *out = mhai_attribution_at(&job->after, b, t, 0);
    for (int64_t s = 0; s < T; s++) out[s] = (float)sum[s];
}

mha_status mha_rollout_step(mha_context *context, const mha_tensor *maps, const mha_tensor *before,
                            const mha_tensor *after)
{
    if (!context) return mha_fail(MHA_ERR_NULL, "mha_rollout_step: context is NULL");
    MHA_TRY(mhai_tensor_check("maps", maps, MHA_F32, 4, NULL));
    const int64_t B = maps->shape[0], T = maps->shape[3], shape[] = {B, T, T};
    MHA_TRY(mhai_tensor_check("maps", maps, MHA_F32, 4, (int64_t[]){-1, -1, T, -1}));
    MHA_TRY(mhai_tensor_check_last("maps", maps));
    if (before) {
        MHA_TRY(mhai_tensor_check("before", before, MHA_F32, 3, shape));
        MHA_TRY(mhai_tensor_check_last("before", before));
    }
    if (!after) return mha_fail(MHA_ERR_NULL, "after: is NULL");
    MHA_TRY(
        mhai_attribution_output("after", after, 3, shape, (const mha_tensor *[]){maps, before}, 2));
    rollout_job job = {*maps, *after, before, NULL};
    mha_scratch_mark mark = mha_scratch_top(context);
    MHA_TRY(mha_scratch_alloc(context, 2 * T * mha_context_threads(context), sizeof(double),
                              &job.rows));
    mha_parallel_for(context, B * T, roll_row, &job);
    mha_scratch_release(context, mark);
    return MHA_OK;
}
