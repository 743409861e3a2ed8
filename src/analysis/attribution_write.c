/* The vectors that heads write: out_h[t] = W_O[h] z_h[t], one token at a time, in double. Threads
 * process blocks of tokens. Sums over tokens are kept per block and added in order. */
#include "analysis/attribution.h"

#include "base/checked.h"
#include "base/need.h"
#include "transformer/transformer_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TOKENS = 64 }; /* tokens per block */

/* ---- shared -------------------------------------------------------------------------------- */

const char *mhai_attribution_part(mha_layer_part part)
{
    return part == MHA_PART_SELF_ATTENTION    ? "self_attn"
           : part == MHA_PART_CROSS_ATTENTION ? "cross_attn"
                                              : "mlp";
}

mha_status mhai_attribution_weight(mha_context *context, const mha_transformer *t, int64_t layer,
                                   const char *name, bool optional, mha_tensor *weight)
{
    char full[64];
    *weight = (mha_tensor){0};
    if (layer >= 0)
        snprintf(full, sizeof full, "layers.%lld.%s", (long long)layer, name);
    else
        snprintf(full, sizeof full, "%s", name);
    for (int64_t i = 0; i < t->parameter_count; i++) {
        const mha_parameter *p = &t->parameters[i];
        if (strcmp(p->name, full) != 0) continue;
        const int64_t cols = p->ndim == 2 ? p->shape[1] : 1;
        MHA_TRY(mhai_transformer_matrix(context, t, p->offset, p->shape[0], cols, weight));
        weight->ndim = p->ndim;
        return MHA_OK;
    }
    if (optional) return MHA_OK;
    return mha_fail(MHA_ERR_ARGUMENT, "the transformer has no parameter %s", full);
}

mha_status mhai_attribution_last(mha_context *context, const mha_transformer *t, int64_t layer,
                                 const char *name, bool optional, mha_tensor *weight)
{
    const float scale = t->desc.residual_scale;
    float *to;
    MHA_TRY(mhai_attribution_weight(context, t, layer, name, optional, weight));
    if (weight->ndim == 0 || !(scale < 1 || scale > 1)) return MHA_OK;
    const int64_t rows = weight->shape[0], cols = weight->ndim == 2 ? weight->shape[1] : 1;
    MHA_TRY(mha_scratch_alloc(context, mhai_times(rows, cols), sizeof *to, &to));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < cols; k++)
            to[i * cols + k] = scale * ((float *)weight->data)[i * weight->stride[0] + k];
    *weight = mha_tensor_contiguous(to, MHA_F32, weight->ndim, weight->shape);
    return MHA_OK;
}

mha_status mhai_attribution_check(const mha_transformer *t, const mha_activations *a,
                                  mha_layer_part part)
{
    MHA_NEED_AS("attribution", "transformer, activations", t, a);
    if (a->transformer != t)
        return mha_fail(MHA_ERR_ARGUMENT, "activations: created for another transformer");
    if (part != MHA_PART_SELF_ATTENTION && part != MHA_PART_CROSS_ATTENTION)
        return mha_fail(MHA_ERR_ARGUMENT, "part is %d, expected self-attention or cross-attention",
                        (int)part);
    return MHA_OK;
}

mha_status mhai_attribution_output(const char *name, const mha_tensor *tensor, int ndim,
                                   const int64_t *shape, const mha_tensor *const *inputs, int count)
{
    if (!tensor) return MHA_OK;
    MHA_TRY(mhai_tensor_check(name, tensor, MHA_F32, ndim, shape));
    MHA_TRY(mhai_tensor_check_last(name, tensor));
    MHA_TRY(mhai_tensor_check_output(name, tensor));
    for (int i = 0; i < count; i++)
        MHA_TRY(mhai_tensor_check_disjoint(name, tensor, "an input or another output", inputs[i]));
    return MHA_OK;
}

mha_status mhai_attribution_begin(mha_context *context, const mha_tensor *heads,
                                  const mha_tensor *weight, const mha_tensor *gates,
                                  mhai_attribution_writer *writer)
{
    if (!context) return mha_fail(MHA_ERR_NULL, "attribution: context is NULL");
    MHA_TRY(mhai_tensor_check("heads", heads, MHA_F32, 4, NULL));
    MHA_TRY(mhai_tensor_check_last("heads", heads));
    MHA_TRY(mhai_tensor_check("weight", weight, MHA_F32, 2, NULL));
    MHA_TRY(mhai_tensor_check_last("weight", weight));
    const int64_t Hk = heads->shape[1], Dv = heads->shape[3], columns = weight->shape[1];
    if (Hk == 0 ? columns != 0 : Dv == 0 || columns % Dv != 0 || columns / Dv % Hk != 0)
        return mha_fail(MHA_ERR_SHAPE,
                        "weight: %lld columns, expected a multiple of Hk Dv = %lld x %lld of heads",
                        (long long)columns, (long long)Hk, (long long)Dv);
    const int64_t H = Hk == 0 ? 0 : columns / Dv;
    if (gates) {
        MHA_TRY(mhai_tensor_check("gates", gates, MHA_F32, 1, &H));
        MHA_TRY(mhai_tensor_check_last("gates", gates));
    }
    *writer = (mhai_attribution_writer){.heads = *heads,
                                        .gates = gates ? gates->data : NULL,
                                        .H = H,
                                        .group = Hk == 0 ? 1 : H / Hk,
                                        .Dv = Dv,
                                        .E = weight->shape[0]};
    return MHA_OK;
}

mha_status mhai_attribution_transpose(mha_context *context, const mha_tensor *weight,
                                      mhai_attribution_writer *writer)
{
    const int64_t rows = writer->E, columns = weight->shape[1];
    float *out;
    MHA_TRY(mha_scratch_alloc(context, mhai_times(rows, columns), sizeof(float), &out));
    for (int64_t e = 0; e < rows; e++) {
        const float *row = (const float *)weight->data + e * weight->stride[0];
        for (int64_t i = 0; i < columns; i++) out[i * rows + e] = row[i];
    }
    writer->weight = out;
    return MHA_OK;
}

void mhai_attribution_write(const mhai_attribution_writer *w, int64_t b, int64_t t, double *out)
{
    for (int64_t h = 0; h < w->H; h++) {
        const float *z = mhai_attribution_at(&w->heads, b, h / w->group, t);
        const double gate = w->gates ? (double)w->gates[h] : 1;
        double *row = out + h * w->E;
        for (int64_t e = 0; e < w->E; e++) row[e] = 0;
        for (int64_t d = 0; d < w->Dv; d++) {
            const float *column = w->weight + (h * w->Dv + d) * w->E;
            const double found = (double)z[d] * gate;
            for (int64_t e = 0; e < w->E; e++) row[e] += found * (double)column[e];
        }
    }
}

/* ---- the terms of every head (view --desk) --------------------------------------------------- */

typedef struct write_job {
    mhai_attribution_writer writer;
    mha_head_writing out;
    const float *bias;
    const int64_t *lengths;
    int64_t T, blocks; /* blocks per sequence */
    double *rows;      /* [threads][H,E] */
    double *norms;     /* [threads][H] */
    double *cosines;   /* [B blocks][H,H], each followed by its counts */
} write_job;

static void put_terms(const write_job *job, int64_t b, int64_t t, const double *rows)
{
    const mhai_attribution_writer *w = &job->writer;
    for (int64_t h = 0; job->out.written && h < w->H; h++) {
        float *out = mhai_attribution_at(job->out.written, b, h, t);
        for (int64_t e = 0; e < w->E; e++) out[e] = (float)rows[h * w->E + e];
    }
    if (!job->out.output) return;
    float *out = mhai_attribution_at(job->out.output, b, t, 0);
    for (int64_t e = 0; e < w->E; e++) {
        double sum = 0;
        for (int64_t h = 0; h < w->H; h++) sum += rows[h * w->E + e];
        out[e] = (float)(job->bias ? sum + (double)job->bias[e] : sum);
    }
}

static void put_norms(const write_job *job, int64_t b, int64_t t, const double *norms)
{
    const int64_t H = job->writer.H;
    double sum = 0;
    for (int64_t h = 0; h < H; h++) sum += norms[h];
    for (int64_t h = 0; h < H; h++) {
        if (job->out.norms) *mhai_attribution_at(job->out.norms, b, h, t) = (float)norms[h];
        if (job->out.shares)
            *mhai_attribution_at(job->out.shares, b, h, t) = sum == 0 ? 0 : (float)(norms[h] / sum);
    }
}

static void add_cosines(const write_job *job, const double *rows, const double *norms, double *sums)
{
    const int64_t H = job->writer.H, E = job->writer.E;
    double *counts = sums + H * H;
    for (int64_t h = 0; h < H; h++)
        for (int64_t g = 0; g <= h; g++) {
            if (norms[h] == 0 || norms[g] == 0) continue; /* NaN propagates */
            sums[h * H + g] +=
                mhai_attribution_dot(rows + h * E, rows + g * E, E) / norms[h] / norms[g];
            counts[h * H + g] += 1;
        }
}

static void write_block(void *argument, int64_t item, int worker)
{
    const write_job *job = argument;
    const mhai_attribution_writer *w = &job->writer;
    const int64_t b = item / job->blocks, first = item % job->blocks * TOKENS;
    const int64_t last = mhai_min_i64(job->T, first + TOKENS);
    double *rows = job->rows + worker * w->H * w->E, *norms = job->norms + worker * w->H;
    double *sums = job->cosines ? job->cosines + item * 2 * w->H * w->H : NULL;
    for (int64_t t = first; t < last; t++) {
        mhai_attribution_write(w, b, t, rows);
        for (int64_t h = 0; h < w->H; h++)
            norms[h] = sqrt(mhai_attribution_dot(rows + h * w->E, rows + h * w->E, w->E));
        put_terms(job, b, t, rows);
        put_norms(job, b, t, norms);
        if (sums && (!job->lengths || t < job->lengths[b])) add_cosines(job, rows, norms, sums);
    }
}

static void put_cosines(const write_job *job, int64_t items)
{
    const int64_t H = job->writer.H;
    for (int64_t h = 0; h < H; h++)
        for (int64_t g = 0; g <= h; g++) {
            double sum = 0, count = 0;
            for (int64_t i = 0; i < items; i++) {
                sum += job->cosines[i * 2 * H * H + h * H + g];
                count += job->cosines[i * 2 * H * H + H * H + h * H + g];
            }
            const float mean = count > 0 ? (float)(sum / count) : 0;
            *mhai_attribution_at(job->out.cosines, h, g, 0) = mean;
            *mhai_attribution_at(job->out.cosines, g, h, 0) = mean;
        }
}

static mha_status check_writing(const mhai_attribution_writer *w, const mha_tensor *weight,
                                const mha_tensor *bias, const mha_tensor *gates,
                                const mha_head_writing *out)
{
    const int64_t B = w->heads.shape[0], T = w->heads.shape[2];
    const mha_tensor *all[] = {&w->heads,  weight,      bias,         gates,      out->written,
                               out->norms, out->shares, out->cosines, out->output};
    MHA_TRY(
        mhai_attribution_output("written", out->written, 4, (int64_t[]){B, w->H, T, w->E}, all, 4));
    MHA_TRY(mhai_attribution_output("norms", out->norms, 3, (int64_t[]){B, w->H, T}, all, 5));
    MHA_TRY(mhai_attribution_output("shares", out->shares, 3, (int64_t[]){B, w->H, T}, all, 6));
    MHA_TRY(mhai_attribution_output("cosines", out->cosines, 2, (int64_t[]){w->H, w->H}, all, 7));
    MHA_TRY(mhai_attribution_output("output", out->output, 3, (int64_t[]){B, T, w->E}, all, 8));
    return MHA_OK;
}

static mha_status take_scratch(mha_context *context, write_job *job, int64_t items)
{
    const int64_t threads = mha_context_threads(context), H = job->writer.H, E = job->writer.E;
    MHA_TRY(mha_scratch_alloc(context, mhai_times(threads, mhai_times(H, E)), sizeof(double),
                              &job->rows));
    MHA_TRY(mha_scratch_alloc(context, threads * H, sizeof(double), &job->norms));
    if (!job->out.cosines) return MHA_OK;
    return mha_scratch_zeros(context, mhai_times(items, mhai_times(2 * H, H)), sizeof(double),
                             &job->cosines);
}

static mha_status run(mha_context *context, const mha_tensor *weight, write_job *job)
{
    const int64_t B = job->writer.heads.shape[0];
    job->T = job->writer.heads.shape[2];
    job->blocks = mhai_ceil_div(job->T, TOKENS);
    const int64_t items = mhai_times(B, job->blocks);
    MHA_TRY(mhai_attribution_transpose(context, weight, &job->writer));
    MHA_TRY(take_scratch(context, job, items));
    mha_parallel_for(context, items, write_block, job);
    if (job->out.cosines) put_cosines(job, items);
    return MHA_OK;
}

mha_status mha_heads_write(mha_context *context, const mha_tensor *heads, const mha_tensor *weight,
                           const mha_tensor *bias, const mha_tensor *gates, const int64_t *lengths,
                           const mha_head_writing *outputs)
{
    write_job job = {.lengths = lengths};
    if (!outputs) return mha_fail(MHA_ERR_NULL, "mha_heads_write: outputs is NULL");
    MHA_TRY(
        mhai_struct_copy("mha_head_writing", &job.out, sizeof job.out, sizeof job.out, outputs));
    MHA_TRY(mhai_check_reserved("mha_head_writing", job.out.reserved));
    MHA_TRY(mhai_attribution_begin(context, heads, weight, gates, &job.writer));
    if (bias) {
        MHA_TRY(mhai_tensor_check("bias", bias, MHA_F32, 1, &job.writer.E));
        MHA_TRY(mhai_tensor_check_last("bias", bias));
        job.bias = bias->data;
    }
    for (int64_t b = 0; lengths && b < heads->shape[0]; b++)
        MHA_TRY(mhai_check_entry("lengths", b, lengths[b], 0, heads->shape[2]));
    MHA_TRY(check_writing(&job.writer, weight, bias, gates, &job.out));
    mha_scratch_mark mark = mha_scratch_top(context);
    return mha_scratch_end(context, mark, run(context, weight, &job));
}

mha_status mha_layer_write(mha_context *context, const mha_transformer *transformer,
                           const mha_activations *activations, int64_t layer, mha_layer_part part,
                           const int64_t *lengths, const mha_head_writing *outputs)
{
    mha_layer_view view = {.struct_size = sizeof view};
    mha_tensor weight, bias;
    char name[32];
    MHA_TRY(mhai_attribution_check(transformer, activations, part));
    MHA_TRY(mha_activations_layer(activations, layer, part, &view));
    if (!context) return mha_fail(MHA_ERR_NULL, "mha_layer_write: context is NULL");
    const mha_scratch_mark mark = mha_scratch_top(context);
    const char *prefix = view.mixer ? mhai_mixer_name(view.mixer) : mhai_attribution_part(part);
    snprintf(name, sizeof name, "%s.o_proj.weight", prefix);
    mha_status status = mhai_attribution_last(context, transformer, layer, name, false, &weight);
    snprintf(name, sizeof name, "%s.o_proj.bias", prefix);
    if (status == MHA_OK)
        status = mhai_attribution_last(context, transformer, layer, name, true, &bias);
    if (status == MHA_OK)
        status = mha_heads_write(context, &view.heads, &weight, bias.ndim ? &bias : NULL, NULL,
                                 lengths, outputs);
    return mha_scratch_end(context, mark, status);
}

mha_status mha_head_weight_norms(const mha_tensor *weight, const mha_tensor *map)
{
    MHA_TRY(mhai_tensor_check("weight", weight, MHA_F32, 2, NULL));
    MHA_TRY(mhai_tensor_check_last("weight", weight));
    MHA_TRY(mhai_tensor_check("map", map, MHA_F32, 2, (int64_t[]){-1, weight->shape[0]}));
    MHA_TRY(mhai_attribution_output("map", map, 2, map->shape, &weight, 1));
    const int64_t H = map->shape[0], columns = weight->shape[1];
    if (H == 0 ? columns != 0 : columns % H != 0)
        return mha_fail(MHA_ERR_SHAPE, "weight: %lld columns for the %lld heads of map",
                        (long long)columns, (long long)H);
    for (int64_t e = 0; e < weight->shape[0]; e++)
        for (int64_t h = 0; h < H; h++) {
            const int64_t Dv = columns / H;
            const float *row = (const float *)weight->data + e * weight->stride[0] + h * Dv;
            double sum = 0;
            for (int64_t d = 0; d < Dv; d++) sum += (double)row[d] * (double)row[d];
            ((float *)map->data)[h * map->stride[0] + e * map->stride[1]] = (float)sqrt(sum);
        }
    return MHA_OK;
}
