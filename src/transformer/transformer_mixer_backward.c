/* The backward pass of gated heads and of all mixers except attention, between their projections.
 * Forward calls overwrite projected rows and heads in place, so both are recomputed here. Sums over
 * tokens have fixed blocks, so results do not depend on the number of threads. */
#include "transformer/transformer_call.h"

#include "base/checked.h"
#include "base/math.h"
#include "base/tensor.h"
#include "nn/nn_check.h"

#include <multihead/backward.h>

#include <math.h>

enum { BLOCK = 64 }; /* tokens of a partial sum */

/* Rows of a layer in progress. `sums` [blocks][count] are the gradients of small parameters. */
typedef struct rows_job {
    const mhai_mixer_back *m;
    mhai_mix mix;
    const mhai_place_attention *place;
    const mhai_kept_attention *kept;
    float *raw;   /* [tokens, width] the projected rows */
    float *mixed; /* [tokens, (q + k) D] q and k before their norm */
    double *sums;
    int64_t count;
} rows_job;

static rows_job job_of(const mhai_mixer_back *m)
{
    return (rows_job){.m = m,
                      .mix = mhai_transformer_mix(&m->call.t->desc, m->layer),
                      .place = &m->call.t->layers[m->layer].self,
                      .kept = &m->call.a->layers[m->layer].self};
}

static int64_t end_of(const rows_job *job, int64_t block)
{
    return mhai_min_i64((block + 1) * BLOCK, mhai_tokens(job->m->call.a));
}

static mha_status run_blocks(rows_job *job, int64_t count,
                             void (*rows)(void *argument, int64_t block, int worker))
{
    const mhai_call *c = &job->m->call;
    const int64_t blocks = mhai_ceil_div(mhai_tokens(c->a), BLOCK);
    job->count = count;
    MHA_TRY(mha_scratch_zeros(c->context, blocks * count, sizeof(double), &job->sums));
    mha_parallel_for(c->context, blocks, rows, job);
    return MHA_OK;
}

/* Add the sums first .. first + count - 1 of all blocks. */
static void add_sums(const rows_job *job, int64_t first, int64_t count, float *to)
{
    const int64_t blocks = mhai_ceil_div(mhai_tokens(job->m->call.a), BLOCK);
    for (int64_t i = 0; to && i < count; i++) {
        double sum = 0;
        for (int64_t block = 0; block < blocks; block++)
            sum += job->sums[block * job->count + first + i];
        to[i] = (float)((double)to[i] + sum);
    }
}

static float *parameters_at(const rows_job *job, int64_t offset)
{
    return job->m->parameters ? job->m->parameters + offset : NULL;
}

/* ---- gates ----------------------------------------------------------------------------------- */

static void gate_attention(const rows_job *job, int64_t row)
{
    const mhai_mix *mix = &job->mix;
    const float *o = job->kept->heads + row * mix->out;
    const float *gate = job->kept->qkv + row * mix->width + mix->gates;
    float *dy = job->m->dheads + row * mix->out;
    float *dgate = job->m->drows + row * mix->width + mix->gates;
    for (int64_t i = 0; i < mix->out; i++) {
        const double s = mhai_sigmoid((double)gate[i]), d = (double)dy[i];
        dgate[i] = (float)(d * (double)o[i] * s * (1 - s));
        dy[i] = (float)(d * s);
    }
}

/* silu(g), or sigmoid(g) of Kimi delta attention, and its derivative. */
static double delta_gate(const mhai_mix *mix, double g, double *slope)
{
    const double s = mhai_sigmoid(g), factor = mix->rank > 0 ? 1 : g;
    *slope = factor * s * (1 - s) + (mix->rank > 0 ? 0 : s);
    return factor * s;
}

/* y = open n w gate(g), n = o r, r = 1 / sqrt(mean(o^2) + epsilon). sums receives dw, then dopen of
 * each head. */
static void gate_delta(const rows_job *job, int64_t row, double *sums)
{
    const mhai_mix *mix = &job->mix;
    const mhai_call *c = &job->m->call;
    const float *weight = mhai_transformer_numbers(c->t, job->place->o_norm);
    const float *open = mhai_nn_row(c->input.gates, job->m->layer);
    const double epsilon = (double)c->t->desc.layers[job->m->layer].head_norm_epsilon;
    const int64_t Dv = mix->Dv;
    for (int64_t h = 0; h < mix->v; h++) {
        const int64_t at = row * mix->out + h * Dv, gate = row * mix->width + mix->gates + h * Dv;
        const float *o = job->kept->heads + at, *g = job->kept->qkv + gate;
        float *dy = job->m->dheads + at, *dg = job->m->drows + gate;
        const double opened = open ? (double)open[h] : 1;
        double squares = 0, along = 0;
        for (int64_t d = 0; d < Dv; d++) squares += (double)o[d] * (double)o[d];
        const double r = 1 / sqrt(squares / (double)Dv + epsilon);
        for (int64_t d = 0; d < Dv; d++) {
            const double n = (double)o[d] * r, w = (double)weight[d], up = (double)dy[d];
            double slope;
            const double factor = delta_gate(mix, (double)g[d], &slope);
            sums[d] += up * opened * n * factor;
            sums[Dv + h] += up * n * w * factor;
            dg[d] = (float)(up * opened * n * w * slope);
            along += up * opened * w * factor * n;
        }
        for (int64_t d = 0; d < Dv; d++) {
            double slope;
            const double factor = delta_gate(mix, (double)g[d], &slope);
            const double dn = (double)dy[d] * opened * (double)weight[d] * factor;
            dy[d] = (float)(r * (dn - (double)o[d] * r * along / (double)Dv));
        }
    }
}

/* y = open n w, n = x r, x = o silu(g), r = 1 / sqrt(mean(x^2) + epsilon) over the channels of a
 * group. sums: of dw, then of each head's dopen. */
static void gate_space(const rows_job *job, int64_t row, double *sums)
{
    const mhai_mix *mix = &job->mix;
    const mhai_call *c = &job->m->call;
    const float *weight = mhai_transformer_numbers(c->t, job->place->o_norm);
    const float *open = mhai_nn_row(c->input.gates, job->m->layer);
    const float *o = job->kept->heads + row * mix->out;
    const float *gate = job->kept->qkv + row * mix->width + mix->gates;
    float *dy = job->m->dheads + row * mix->out;
    float *dgate = job->m->drows + row * mix->width + mix->gates;
    const int64_t channels = mix->out / mix->k;
    for (int64_t first = 0; first < mix->out; first += channels) {
        double squares = 0, along = 0; /* along: the dot product of dn and x */
        for (int64_t i = first; i < first + channels; i++) {
            const double x = (double)o[i] * (double)gate[i] * mhai_sigmoid((double)gate[i]);
            squares += x * x;
            along += (double)dy[i] * (open ? (double)open[i / mix->Dv] : 1) * (double)weight[i] * x;
        }
        const double r = 1 / sqrt(squares / (double)channels + (double)c->t->desc.norm_epsilon);
        for (int64_t i = first; i < first + channels; i++) {
            const double s = mhai_sigmoid((double)gate[i]), silu = (double)gate[i] * s;
            const double opened = open ? (double)open[i / mix->Dv] : 1, up = (double)dy[i];
            const double n = (double)o[i] * silu * r, w = (double)weight[i];
            const double dx = r * (up * opened * w - n * r * along / (double)channels);
            sums[i] += up * opened * n;
            sums[mix->out + i / mix->Dv] += up * n * w;
            dgate[i] = (float)(dx * (double)o[i] * (s + silu * (1 - s)));
            dy[i] = (float)(dx * silu);
        }
    }
}

static void gate_rows(void *argument, int64_t block, int worker)
{
    const rows_job *job = argument;
    (void)worker;
    for (int64_t row = block * BLOCK; row < end_of(job, block); row++)
        if (job->mix.mixer == MHA_MIXER_STATE_SPACE)
            gate_space(job, row, job->sums + block * job->count);
        else if (job->mix.mixer)
            gate_delta(job, row, job->sums + block * job->count);
        else
            gate_attention(job, row);
}

/* Replace the gated heads by the heads before their gates. */
static mha_status ungate(const mhai_mixer_back *m, const rows_job *job)
{
    mhai_call_attention attention;
    if (job->mix.mixer) return mhai_delta_run(&m->call, m->layer);
    mhai_transformer_attention(m->call.context, m->call.a, &m->call.input, m->layer, false,
                               &attention);
    attention.attend.outputs.lse = &attention.lse;
    return mhai_attend_run(&attention.attend);
}

static mha_status gates_backward(const mhai_mixer_back *m)
{
    rows_job job = job_of(m);
    const mhai_mix *mix = &job.mix;
    const int64_t weights = mix->mixer == MHA_MIXER_STATE_SPACE ? mix->out : mix->Dv;
    MHA_TRY(ungate(m, &job));
    MHA_TRY(run_blocks(&job, mix->mixer ? weights + mix->v : 0, gate_rows));
    if (!mix->mixer) return MHA_OK;
    add_sums(&job, 0, weights, parameters_at(&job, job.place->o_norm));
    add_sums(&job, weights, mix->v, m->dgates);
    return MHA_OK;
}

/* ---- the convolution ------------------------------------------------------------------------- */

static mha_status project_again(rows_job *job)
{
    const mhai_call *c = &job->m->call;
    const mhai_place_linear *in = &job->place->in;
    const int64_t tokens = mhai_tokens(c->a), width = job->mix.width;
    MHA_TRY(mha_scratch_alloc(c->context, mhai_times(tokens, width), sizeof(float), &job->raw));
    const mha_tensor x = mhai_transformer_rows(job->kept->step.in, tokens, in->inputs, in->inputs);
    const mha_tensor y = mhai_transformer_rows(job->raw, tokens, in->outputs, width);
    MHA_TRY(mha_linear_forward(c->context, in->packed, MHA_ACTIVATION_NONE, &x, &y));
    return job->mix.rank > 0 ? mhai_delta_expand(c, job->m->layer, false, job->raw) : MHA_OK;
}

/* View `channels` elements of each row; rows are `width` floats apart. */
static mha_tensor sequences(const mhai_call *c, const float *rows, int64_t channels, int64_t width)
{
    const int64_t shape[] = {c->a->B, c->a->T, width};
    const mha_tensor all = mhai_transformer_vector(rows, 0);
    mha_tensor x = mha_tensor_contiguous(all.data, MHA_F32, 3, shape);
    x.shape[2] = channels;
    return x;
}

/* Replace the gradient of the convolution's output in drows by the gradient of its input. */
static mha_status convolution_backward(const rows_job *job, uint32_t flags)
{
    const mhai_call *c = &job->m->call;
    const mhai_mix *mix = &job->mix;
    const int64_t taps = c->t->desc.layers[job->m->layer].conv_kernel;
    const mha_tensor x = sequences(c, job->raw + mix->first, mix->channels, mix->width),
                     dx = sequences(c, job->m->drows + mix->first, mix->channels, mix->width),
                     weight =
                         mhai_transformer_rows(mhai_transformer_numbers(c->t, job->place->conv),
                                               mix->channels, taps, taps),
                     dweight = mhai_transformer_rows(parameters_at(job, job->place->conv),
                                                     mix->channels, taps, taps);
    const bool biased = mix->mixer == MHA_MIXER_STATE_SPACE;
    const int64_t at = biased ? job->place->conv_bias : 0;
    const mha_tensor bias =
                         mhai_transformer_vector(mhai_transformer_numbers(c->t, at), mix->channels),
                     dbias = mhai_transformer_vector(parameters_at(job, at), mix->channels);
    return mha_short_convolution_backward(
        c->context,
        &(mha_convolution_gradients){.struct_size = sizeof(mha_convolution_gradients),
                                     .flags = flags,
                                     .x = &x,
                                     .weight = &weight,
                                     .dy = &dx,
                                     .dx = &dx,
                                     .dweight = job->m->parameters ? &dweight : NULL,
                                     .bias = biased ? &bias : NULL,
                                     .dbias = biased && job->m->parameters ? &dbias : NULL});
}

/* Compute the gradients of c and of the convolution's output, for heads = c conv(b x). */
static void open_rows(void *argument, int64_t block, int worker)
{
    const rows_job *job = argument;
    const int64_t E = job->mix.channels;
    (void)worker;
    for (int64_t i = block * BLOCK * E; i < end_of(job, block) * E; i++) {
        const int64_t at = i / E * 3 * E + i % E;
        const float *kept = job->kept->qkv + at, dy = job->m->dheads[i];
        float *to = job->m->drows + at;
        to[E] = dy * kept[2 * E];
        to[2 * E] = dy * kept[E];
    }
}

static void close_rows(void *argument, int64_t block, int worker)
{
    const rows_job *job = argument;
    const int64_t E = job->mix.channels;
    (void)worker;
    for (int64_t i = block * BLOCK * E; i < end_of(job, block) * E; i++) {
        const int64_t at = i / E * 3 * E + i % E;
        float *to = job->m->drows + at;
        to[0] = to[2 * E] * job->raw[at + E];
        to[2 * E] *= job->kept->qkv[at];
    }
}

/* Replace x by the convolution's input b x. x overwrites c, which is no longer needed. */
static void move_rows(void *argument, int64_t block, int worker)
{
    const rows_job *job = argument;
    const int64_t E = job->mix.channels;
    (void)worker;
    for (int64_t i = block * BLOCK * E; i < end_of(job, block) * E; i++) {
        float *row = job->raw + i / E * 3 * E + i % E;
        row[E] = row[2 * E];
        row[2 * E] *= row[0];
    }
}

static mha_status short_convolution_backward(const mhai_mixer_back *m)
{
    rows_job job = job_of(m);
    MHA_TRY(project_again(&job));
    MHA_TRY(run_blocks(&job, 0, open_rows));
    MHA_TRY(run_blocks(&job, 0, move_rows));
    MHA_TRY(convolution_backward(&job, 0));
    return run_blocks(&job, 0, close_rows);
}

/* ---- recurrent mixers ------------------------------------------------------------------------ */

/* The backward pass of y = x r, r = 1 / sqrt(|x|^2 + 1e-6). */
static void unit_backward(int64_t D, const float *x, float *dy)
{
    double squares = 1e-6, along = 0;
    for (int64_t d = 0; d < D; d++) {
        squares += (double)x[d] * (double)x[d];
        along += (double)x[d] * (double)dy[d];
    }
    const double r = 1 / sqrt(squares);
    for (int64_t d = 0; d < D; d++)
        dy[d] = (float)(r * ((double)dy[d] - (double)x[d] * along / squares));
}

/* log a = -exp(A_log) step(x_a + shift), and b = scale sigmoid(x_b), or the step itself in a state space.
 * sums receives the gradient of A_log, then of shift. */
static void position_rows(void *argument, int64_t block, int worker)
{
    const rows_job *job = argument;
    const mhai_mix *mix = &job->mix;
    const mha_transformer *t = job->m->call.t;
    const mha_layer_desc *layer = &t->desc.layers[job->m->layer];
    const double scale = (double)layer->strength_scale;
    const bool delta = mix->mixer == MHA_MIXER_GATED_DELTA;
    const float *rate = mhai_transformer_numbers(t, job->place->decay);
    const float *shift = mhai_transformer_numbers(t, job->place->shift);
    const int64_t heads = delta ? mix->q + mix->k : 0;
    double *sums = job->sums + block * job->count;
    (void)worker;
    for (int64_t row = block * BLOCK; row < end_of(job, block); row++) {
        const float *kept = job->kept->qkv + row * mix->width;
        const float *raw = job->raw + row * mix->width;
        float *d = job->m->drows + row * mix->width;
        for (int64_t h = 0; h < heads; h++)
            unit_backward(mix->D, job->mixed + (row * heads + h) * mix->D, d + h * mix->D);
        for (int64_t i = 0; i < mix->v * mix->each; i++) {
            const int64_t h = i / mix->each, at = delta ? mix->decays + i : mix->strengths + h;
            const double da = (double)d[mix->decays + i], db = (double)d[mix->strengths + h];
            double slope;
            mhai_delta_step(layer, (double)raw[at] + (double)shift[i], &slope);
            const double x = (da * -mha_exp((double)rate[h]) + (delta ? 0 : db)) * slope;
            sums[h] += da * (double)kept[mix->decays + i];
            sums[mix->v + i] += x;
            d[at] = (float)x;
        }
        for (int64_t i = mix->strengths; delta && i < mix->strengths + mix->v; i++) {
            const double b = (double)kept[i];
            d[i] = (float)((double)d[i] * b * (1 - b / scale));
        }
    }
}

/* Recompute q and k before their norm. */
static mha_status mix_again(rows_job *job)
{
    const mhai_call *c = &job->m->call;
    const mhai_mix *mix = &job->mix;
    const int64_t channels = (mix->q + mix->k) * mix->D;
    const int64_t taps = c->t->desc.layers[job->m->layer].conv_kernel;
    MHA_TRY(mha_scratch_alloc(c->context, mhai_times(mhai_tokens(c->a), channels), sizeof(float),
                              &job->mixed));
    const mha_tensor x = sequences(c, job->raw, channels, mix->width),
                     y = sequences(c, job->mixed, channels, channels),
                     weight = mhai_transformer_rows(
                         mhai_transformer_numbers(c->t, job->place->conv), channels, taps, taps);
    return mha_short_convolution(c->context, MHA_CONVOLUTION_SILU, &x, &weight, NULL, NULL, &y);
}

/* dskip: [H], overwritten; not used without a skip term. */
static mha_status recurrence_backward(const rows_job *job, const mha_tensor *dskip)
{
    const mhai_call *c = &job->m->call;
    const int64_t layer = job->m->layer;
    const mhai_qkv qkv = mhai_transformer_qkv(c->a, layer, false, job->kept->qkv, NULL),
                   to = mhai_transformer_qkv(c->a, layer, false, job->m->drows, NULL);
    const mha_tensor dheads = mhai_transformer_heads(c->a, layer, false, job->m->dheads);
    mha_tensor ddecay, dstrength;
    mha_layer_view view = {.struct_size = sizeof view};
    mhai_recurrent_view(c->a, layer, &view);
    mhai_delta_gates(c->a, layer, job->m->drows, &ddecay, &dstrength);
    mha_recurrent_desc desc = mhai_recurrent_of(&view);
    desc.lengths = c->input.lengths;
    const mha_recurrent_gradients gradients = {.struct_size = sizeof gradients,
                                               .q = &to.q,
                                               .k = &to.k,
                                               .v = &to.v,
                                               .log_decay = &ddecay,
                                               .strength = &dstrength,
                                               .skip = desc.skip ? dskip : NULL};
    return mha_recurrent_backward(c->context, &desc, &qkv.q, &qkv.k, &qkv.v, NULL, &dheads,
                                  &gradients);
}

static mha_status recurrent_backward(const mhai_mixer_back *m)
{
    rows_job job = job_of(m);
    const int64_t heads = job.mix.v, decays = heads * job.mix.each;
    float *skips;
    MHA_TRY(mha_scratch_alloc(m->call.context, heads, sizeof(float), &skips));
    const mha_tensor dskip =
        mha_tensor_contiguous(skips, MHA_F32, 3, (const int64_t[]){1, heads, 1});
    MHA_TRY(recurrence_backward(&job, &dskip));
    MHA_TRY(project_again(&job));
    if (job.mix.mixer == MHA_MIXER_GATED_DELTA) MHA_TRY(mix_again(&job));
    MHA_TRY(run_blocks(&job, heads + decays, position_rows));
    add_sums(&job, 0, heads, parameters_at(&job, job.place->decay));
    add_sums(&job, heads, decays, parameters_at(&job, job.place->shift));
    if (job.mix.mixer == MHA_MIXER_STATE_SPACE) {
        float *skip = parameters_at(&job, job.place->skip);
        for (int64_t h = 0; skip && h < heads; h++) skip[h] += skips[h];
    }
    return convolution_backward(&job, MHA_CONVOLUTION_SILU);
}

mha_status mhai_mixer_backward(const mhai_mixer_back *m)
{
    const mhai_mix mix = mhai_transformer_mix(&m->call.t->desc, m->layer);
    const mha_scratch_mark mark = mha_scratch_top(m->call.context);
    if (mix.gated) MHA_TRY(gates_backward(m));
    if (mix.mixer == MHA_MIXER_SHORT_CONVOLUTION)
        MHA_TRY(short_convolution_backward(m));
    else if (mix.mixer)
        MHA_TRY(recurrent_backward(m));
    mha_scratch_release(m->call.context, mark);
    return MHA_OK;
}
