/* Patching between two prompts, head by head: either a head's whole output, or only its
 * effect along paths to some receivers. Both prompts run once. Each patched run then restarts
 * at the sender's layer. */
#include "analysis/effect_parts.h"

#include "base/need.h"
#include "base/tensor.h"

#include <math.h>
#include <string.h>

typedef struct patching_job {
    mha_patching desc;
    mha_effect_text from;
    bool path;
    float *stream, *heads, *qkv; /* data of the patched prompt */
    float *from_heads, *from_qkv;
    float *received; /* inputs of the receivers after the sender, in the layout of qkv */
    double *to_values, *values;
} patching_job;

/* The first row of a part of a head, in blocks as in mhai_effect_kept. *stride is the
 * distance between rows. */
static const float *part_at(const mhai_effect_run *r, const float *heads, const float *qkv,
                            mha_patch_part part, int64_t layer, int64_t head, int64_t *stride)
{
    const mhai_mix mix = mhai_effect_mix(r, layer);
    if (part == MHA_PATCH_OUTPUT) {
        *stride = mhai_effect_wide(r, layer);
        return heads + mhai_effect_block(r, layer, r->heads) + head * mix.Dv;
    }
    *stride = mix.width;
    const int64_t begin = part == MHA_PATCH_QUERY ? head * mix.D
                          : part == MHA_PATCH_KEY ? (mix.q + head) * mix.D
                                                  : (mix.q + mix.k) * mix.D + head * mix.Dv;
    return qkv + mhai_effect_block(r, layer, r->qkv) + begin;
}

static void patch_part(mhai_effect_run *r, const float *heads, const float *qkv,
                       mha_patch_part part, int64_t layer, int64_t head, const uint8_t *rows)
{
    int64_t stride;
    const float *values = part_at(r, heads, qkv, part, layer, head, &stride);
    mhai_effect_patch(r, &r->texts[0], part, layer, head, values, stride, rows);
}

static int64_t count_of(const mhai_effect_run *r, mha_patch_part part, int64_t layer)
{
    const mhai_mix mix = mhai_effect_mix(r, layer);
    if (mix.borrows && (part == MHA_PATCH_KEY || part == MHA_PATCH_VALUE)) return 0;
    return part == MHA_PATCH_OUTPUT  ? mhai_effect_heads_of(r, layer).q
           : part == MHA_PATCH_QUERY ? mix.q
           : part == MHA_PATCH_KEY   ? mix.k
                                     : mix.v;
}

static mha_status pass_from(mhai_effect_run *r, const patching_job *job, int64_t layer)
{
    layer = mhai_transformer_start_layer(r->d, layer);
    return mhai_effect_pass(r, &r->texts[0], layer,
                            job->stream + mhai_effect_block(r, layer, r->d->embed_dim));
}

/* ---- checks ---------------------------------------------------------------------------------- */

static mha_status check_receivers(const mhai_effect_run *r, const patching_job *job)
{
    const mha_patching *desc = &job->desc;
    const int64_t most = r->d->num_layers * 3 * r->d->num_heads;
    if (!job->path && (desc->receivers || desc->receiver_count))
        return mha_fail(MHA_ERR_ARGUMENT, "mha_patching: receivers belong to mha_path_patching()");
    if (desc->receiver_count < 0 || desc->receiver_count > most ||
        (desc->receiver_count > 0 && !desc->receivers))
        return mha_fail(MHA_ERR_ARGUMENT, "mha_patching: %lld receivers at %s, expected 0..%lld",
                        (long long)desc->receiver_count, desc->receivers ? "an address" : "NULL",
                        (long long)most);
    for (int64_t k = 0; k < desc->receiver_count; k++) {
        const mha_path_receiver *x = &desc->receivers[k];
        if (x->reserved || x->part < MHA_PATCH_QUERY || x->part > MHA_PATCH_VALUE || x->layer < 0 ||
            x->layer >= r->d->num_layers || x->head < 0 ||
            x->head >= count_of(r, x->part, x->layer))
            return mha_fail(MHA_ERR_ARGUMENT,
                            "receivers[%lld]: layer %lld, head %lld, part %d: no such receiver "
                            "(parts are queries, keys and values)",
                            (long long)k, (long long)x->layer, (long long)x->head, (int)x->part);
    }
    return MHA_OK;
}

static mha_status check(const mhai_effect_run *r, patching_job *job)
{
    const mha_patching *desc = &job->desc;
    if ((unsigned)desc->part > MHA_PATCH_VALUE || (job->path && desc->part != MHA_PATCH_OUTPUT))
        return mha_fail(MHA_ERR_ARGUMENT, "mha_patching: part %d%s", (int)desc->part,
                        job->path ? ", expected MHA_PATCH_OUTPUT for path patching"
                                  : " is unknown");
    MHA_TRY(check_receivers(r, job));
    MHA_TRY(mhai_tensor_check("from", desc->from, MHA_I32, 2, r->texts[0].tokens->shape));
    job->from = r->texts[0];
    job->from.tokens = desc->from;
    return MHA_OK;
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* Run both prompts and compute their measures. */
static mha_status run_both(mhai_effect_run *r, const patching_job *job, double *from_values)
{
    r->kept = (mhai_effect_kept){.heads = job->from_heads, .qkv = job->from_qkv};
    MHA_TRY(mhai_effect_pass(r, &job->from, 0, NULL));
    MHA_TRY(mhai_effect_score(r, &job->from, from_values));
    r->kept = (mhai_effect_kept){.stream = job->stream, .heads = job->heads, .qkv = job->qkv};
    MHA_TRY(mhai_effect_pass(r, &r->texts[0], 0, NULL));
    r->kept = (mhai_effect_kept){0};
    return mhai_effect_score(r, &r->texts[0], job->to_values);
}

static mha_status activation(mhai_effect_run *r, const patching_job *job, int64_t layer,
                             int64_t head, double *values)
{
    r->patch_count = 0;
    patch_part(r, job->from_heads, job->from_qkv, job->desc.part, layer, head, job->desc.rows);
    MHA_TRY(pass_from(r, job, layer));
    return mhai_effect_score(r, &r->texts[0], values);
}

/* Run from the sender's layer on. The sender has its output on the other prompt; all other heads
 * keep their own output. */
static mha_status send(mhai_effect_run *r, const patching_job *job, int64_t layer, int64_t head)
{
    r->patch_count = 0;
    for (int64_t l = layer; l < r->d->num_layers; l++)
        for (int64_t h = 0; h < mhai_effect_heads_of(r, l).q; h++)
            patch_part(r, job->heads, NULL, MHA_PATCH_OUTPUT, l, h, NULL);
    patch_part(r, job->from_heads, NULL, MHA_PATCH_OUTPUT, layer, head, job->desc.rows);
    r->kept = (mhai_effect_kept){.qkv = job->received};
    const mha_status status = pass_from(r, job, layer);
    r->kept = (mhai_effect_kept){0};
    return status;
}

static mha_status path(mhai_effect_run *r, const patching_job *job, int64_t layer, int64_t head,
                       double *values)
{
    const mha_patching *desc = &job->desc;
    int64_t first = r->d->num_layers; /* first layer with a receiver after the sender */
    for (int64_t k = 0; k < desc->receiver_count; k++)
        if (desc->receivers[k].layer > layer && desc->receivers[k].layer < first)
            first = desc->receivers[k].layer;
    if (desc->receiver_count > 0 && first == r->d->num_layers) {
        memcpy(values, job->to_values, (size_t)desc->measures * sizeof *values);
        return MHA_OK;
    }
    MHA_TRY(send(r, job, layer, head));
    if (desc->receiver_count == 0) return mhai_effect_score(r, &r->texts[0], values);
    r->patch_count = 0;
    for (int64_t k = 0; k < desc->receiver_count; k++)
        if (desc->receivers[k].layer > layer)
            patch_part(r, NULL, job->received, desc->receivers[k].part, desc->receivers[k].layer,
                       desc->receivers[k].head, NULL);
    MHA_TRY(pass_from(r, job, first));
    return mhai_effect_score(r, &r->texts[0], values);
}

static mha_status run_heads(mhai_effect_run *r, const patching_job *job)
{
    const int64_t H = r->d->num_heads, M = job->desc.measures, all = r->d->num_layers * H;
    for (int64_t k = 0; k < all; k++) {
        double *values = job->values + k * M;
        if (job->desc.progress) MHA_TRY(job->desc.progress(k, all, job->desc.progress_user));
        if (k % H >= count_of(r, job->desc.part, k / H))
            for (int64_t m = 0; m < M; m++) values[m] = NAN;
        else
            MHA_TRY(job->path ? path(r, job, k / H, k % H, values)
                              : activation(r, job, k / H, k % H, values));
    }
    return MHA_OK;
}

static mha_status take_scratch(const mhai_effect_run *r, patching_job *job)
{
    const int64_t rows = r->d->num_layers * r->rows;
    MHA_TRY(mhai_effect_floats(r, rows, r->d->embed_dim, &job->stream));
    MHA_TRY(mhai_effect_floats(r, rows, r->heads, &job->heads));
    MHA_TRY(mhai_effect_floats(r, rows, r->heads, &job->from_heads));
    MHA_TRY(mhai_effect_floats(r, rows, r->qkv, &job->from_qkv));
    MHA_TRY(mhai_effect_floats(r, rows, r->qkv, &job->qkv));
    return job->path ? mhai_effect_floats(r, rows, r->qkv, &job->received) : MHA_OK;
}

static mha_status run(mhai_effect_run *r, mha_context *context, const mha_transformer *t,
                      patching_job *job, double *to_values, double *from_values)
{
    const mha_effect_data data = {.struct_size = sizeof data,
                                  .texts = 1,
                                  .measures = job->desc.measures,
                                  .text = &job->desc.to};
    MHA_TRY(mhai_effect_begin(r, context, t, &data));
    MHA_TRY(check(r, job));
    MHA_TRY(take_scratch(r, job));
    MHA_TRY(mha_scratch_alloc(context, 2 * job->desc.measures, sizeof(double), &job->to_values));
    double *from = job->to_values + job->desc.measures;
    MHA_TRY(run_both(r, job, from));
    const size_t bytes = (size_t)job->desc.measures * sizeof(double);
    if (to_values) memcpy(to_values, job->to_values, bytes);
    if (from_values) memcpy(from_values, from, bytes);
    return run_heads(r, job);
}

static mha_status patching(const char *function, mha_context *context, const mha_transformer *t,
                           const mha_patching *desc, bool is_path, double *to_values,
                           double *from_values, double *values)
{
    MHA_NEED_AS(function, "context, transformer, values", context, t, values);
    patching_job job = {.path = is_path, .values = values};
    mhai_effect_run r;
    MHA_TRY(mhai_struct_copy("mha_patching", &job.desc, sizeof job.desc, sizeof job.desc, desc));
    const mha_scratch_mark mark = mha_scratch_top(context);
    return mha_scratch_end(context, mark, run(&r, context, t, &job, to_values, from_values));
}

mha_status mha_activation_patching(mha_context *context, const mha_transformer *transformer,
                                   const mha_patching *desc, double *to_values, double *from_values,
                                   double *values)
{
    return patching("mha_activation_patching", context, transformer, desc, false, to_values,
                    from_values, values);
}

mha_status mha_path_patching(mha_context *context, const mha_transformer *transformer,
                             const mha_patching *desc, double *to_values, double *from_values,
                             double *values)
{
    return patching("mha_path_patching", context, transformer, desc, true, to_values, from_values,
                    values);
}
