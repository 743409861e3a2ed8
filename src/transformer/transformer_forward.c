/* The forward call of a transformer. Each step reads the stream, adds its result, and saves the
 * activations for the backward call. */
#include "transformer/transformer_call.h"

#include "base/checked.h"
#include "base/math.h"
#include "base/need.h"
#include "base/scratch.h"
#include "nn/matmul.h"
#include "nn/nn_check.h"

#include <math.h>
#include <string.h>

/* Padding in a decoder step is not validated. */
static bool is_padding(const mhai_call *c, int64_t b, int64_t t)
{
    return c->step && (t < c->step->firsts[b] || t - c->step->firsts[b] >= c->step->counts[b]);
}

/* Look up the rows of a table for indices [B,T]. Without indices, and for padding, use row 0. */
static mha_status load_numbers(const mhai_call *c, const char *name, const mha_tensor *from,
                               int64_t count, int32_t *to)
{
    const int64_t length = c->a->T;
    for (int64_t i = 0; i < mhai_tokens(c->a); i++) {
        const int64_t b = i / length, t = i % length;
        to[i] = !from || is_padding(c, b, t)
                    ? 0
                    : ((const int32_t *)from->data)[b * from->stride[0] + t * from->stride[1]];
        if (from && (to[i] < 0 || to[i] >= count))
            return mha_fail(MHA_ERR_ARGUMENT, "%s[%lld,%lld] is %d, expected 0..%lld", name,
                            (long long)b, (long long)t, (int)to[i], (long long)count - 1);
    }
    return MHA_OK;
}

/* Look up the rows of the position table, and of encodings. */
static void load_positions(const mhai_call *c)
{
    const mha_transformer_desc *d = &c->t->desc;
    const int64_t *places = c->step ? c->step->places.data : NULL;
    mha_activations *a = c->a;
    int32_t counted = 0;
    for (int64_t b = 0; a->starts && b < a->B && a->T > 0; b++)
        a->starts[b] = mhai_transformer_start(c->t, c->input.lengths ? c->input.lengths[b] : a->T);
    for (int64_t i = 0; i < mhai_tokens(a); i++) {
        if (i % a->T == 0) counted = 0;
        if (d->flags & MHA_TRANSFORMER_PADDING)
            a->positions[i] = a->ids[i] == d->padding_token ? 0 : ++counted;
        else
            a->positions[i] = (int32_t)(places ? places[i] : i % a->T);
    }
}

static mha_status load_tokens(const mhai_call *c)
{
    const mha_transformer_desc *d = &c->t->desc;
    mha_activations *a = c->a;
    MHA_TRY(load_numbers(c, "tokens", c->input.tokens, d->vocab_size, a->ids));
    load_positions(c);
    return load_numbers(c, "token_types", c->input.token_types, d->type_count, a->types);
}

/* ---- functions that forward and backward share ---------------------------------------------- */

static mha_tensor heads_view(const float *data, int64_t batch, int64_t length, int64_t heads,
                             int64_t head_dim, int64_t width)
{
    mha_tensor rows = mhai_transformer_rows(data, batch * length, heads * head_dim, width);
    mha_tensor view = mha_tensor_bthd(rows.data, batch, length, heads, head_dim);
    view.stride[0] = length * width;
    view.stride[2] = width;
    return view;
}

mhai_qkv mhai_transformer_qkv(const mha_activations *a, int64_t layer, bool cross, const float *qkv,
                              const float *memory)
{
    const mha_transformer_desc *d = &a->transformer->desc;
    const mhai_heads heads = mhai_transformer_heads_of(d, layer, cross);
    const int64_t D = d->head_dim, wide = heads.kv * D;
    if (cross)
        return (mhai_qkv){heads_view(qkv, a->B, a->T, heads.q, D, heads.q * D),
                          heads_view(memory, a->B, a->S, heads.kv, D, 2 * wide),
                          heads_view(memory + wide, a->B, a->S, heads.kv, D, 2 * wide)};
    const mhai_mix mix = mhai_transformer_mix(d, layer);
    const int64_t lender = mhai_transformer_lender(d, layer);
    const mhai_mix from = mhai_transformer_mix(d, lender);
    const float *kv = mix.borrows ? a->layers[lender].self.qkv : qkv;
    return (mhai_qkv){heads_view(qkv + mix.at_q, a->B, a->T, mix.q, mix.D, mix.width),
                      heads_view(kv + from.at_k, a->B, a->T, from.k, from.D, from.width),
                      heads_view(kv + from.at_v, a->B, a->T, from.v, from.Dv, from.width)};
}

typedef struct add_job {
    int64_t count;
    const float *x, *y;
    float scale, *sum;
} add_job;

/* Floats per work item: adding this many takes about as long as waking a thread. */
enum { ADDED = 1 << 15 };

static void add_piece(void *argument, int64_t piece, int worker)
{
    const add_job job = *(const add_job *)argument;
    (void)worker;
    const int64_t end = mhai_min_i64((piece + 1) * ADDED, job.count);
    for (int64_t i = piece * ADDED; i < end; i++) job.sum[i] = job.x[i] + job.scale * job.y[i];
}

void mhai_transformer_add(mha_context *context, int64_t count, const float *x, float scale,
                          const float *y, float *sum)
{
    add_job job = {count, x, y, scale, sum};
    const int64_t pieces = mhai_ceil_div(count, ADDED);
    if (pieces >= 4)
        mha_parallel_for(context, pieces, add_piece, &job);
    else
        for (int64_t i = 0; i < pieces; i++) add_piece(&job, i, 0);
}

mha_tensor mhai_transformer_heads(const mha_activations *a, int64_t layer, bool cross,
                                  const float *data)
{
    const mha_transformer_desc *d = &a->transformer->desc;
    const int64_t H = mhai_transformer_heads_of(d, layer, cross).q;
    const int64_t D = cross ? d->head_dim : mhai_transformer_mix(d, layer).Dv;
    return heads_view(data, a->B, a->T, H, D, H * D);
}

mha_tensor mhai_transformer_lse(const mha_activations *a, mhai_heads heads, const float *lse)
{
    mha_tensor rows = mhai_transformer_rows(lse, a->B * heads.q, a->T, a->T);
    return mha_tensor_contiguous(rows.data, MHA_F32, 3, (const int64_t[]){a->B, heads.q, a->T});
}

void mhai_transformer_attention(mha_context *context, const mha_activations *a,
                                const mha_transformer_input *input, int64_t layer, bool cross,
                                mhai_call_attention *made)
{
    const mha_transformer *t = a->transformer;
    const mhai_kept_attention *kept = cross ? &a->layers[layer].cross : &a->layers[layer].self;
    const mha_tensor *gates = cross ? input->cross_gates : input->gates;
    const mhai_heads heads = mhai_transformer_heads_of(&t->desc, layer, cross);
    const mhai_qkv qkv = mhai_transformer_qkv(a, layer, cross, kept->qkv, kept->memory);
    mhai_attend *x = &made->attend;
    *x = cross ? t->layers[layer].cross.attend : t->layers[layer].self.attend;
    x->context = context;
    x->borrows = !cross && mhai_transformer_lender(&t->desc, layer) != layer;
    if (!cross) x->query_positions.starts = x->key_positions.starts = a->starts;
    x->outputs.struct_size = sizeof x->outputs;
    x->desc.key_lengths = cross ? input->memory_lengths : input->lengths;
    x->desc.dropout = input->dropout;
    x->desc.dropout_seed =
        input->dropout_seed + UINT64_C(0x9E3779B97F4A7C15) * (uint64_t)(2 * layer + cross);
    x->q = qkv.q;
    x->k = qkv.k;
    x->v = qkv.v;
    x->heads = mhai_transformer_heads(a, layer, cross, kept->heads);
    made->lse = mhai_transformer_lse(a, heads, kept->lse);
    if (kept->relative) x->desc.bias = &kept->bias;
    if (!gates) return;
    made->gates = mhai_transformer_vector(mhai_nn_row(gates, layer), heads.q);
    x->desc.gates = &made->gates;
}

/* ---- steps --------------------------------------------------------------------------------- */

mha_status mhai_call_norm(const mhai_call *c, const mhai_place_norm *place, const float *x,
                          const float *residual, int64_t rows, float *y)
{
    const int64_t width = place->width;
    const float epsilon = c->t->desc.norm_epsilon;
    mha_tensor in = mhai_transformer_rows(x, rows, width, width);
    mha_tensor added = mhai_transformer_rows(residual, rows, width, width);
    mha_tensor out = mhai_transformer_rows(y, rows, width, width);
    mha_tensor weight =
        mhai_transformer_vector(mhai_transformer_numbers(c->t, place->weight), width);
    const mha_tensor *also = residual ? &added : NULL;
    if (c->t->desc.norm == MHA_NORM_RMS)
        return mha_rms_norm(c->context, &in, also, &weight, epsilon, &out);
    if (place->bias < 0) return mha_layer_norm(c->context, &in, also, &weight, NULL, epsilon, &out);
    mha_tensor bias = mhai_transformer_vector(mhai_transformer_numbers(c->t, place->bias), width);
    return mha_layer_norm(c->context, &in, also, &weight, &bias, epsilon, &out);
}

static mha_status norm(const mhai_call *c, const mhai_place_norm *place, const float *x,
                       const float *residual, float *y)
{
    return mhai_call_norm(c, place, x, residual, mhai_tokens(c->a), y);
}

mha_status mhai_call_project_to(const mhai_call *c, const mhai_place_linear *place,
                                mha_activation activation, const float *x, int64_t rows,
                                int64_t stride, float *y)
{
    mha_tensor in = mhai_transformer_rows(x, rows, place->inputs, place->inputs);
    mha_tensor out = mhai_transformer_rows(y, rows, place->outputs, stride);
    return mha_linear_forward(c->context, place->packed, activation, &in, &out);
}

mha_status mhai_call_project(const mhai_call *c, const mhai_place_linear *place,
                             mha_activation activation, const float *x, int64_t rows, float *y)
{
    return mhai_call_project_to(c, place, activation, x, rows, place->outputs, y);
}

/* Compute the input of a step: the stream or, with pre-norm, its norm. */
static mha_status begin_step(const mhai_call *c, const mhai_place_step *place,
                             const mhai_kept_step *step)
{
    return mhai_step_norms_input(c->t, place) ? norm(c, &place->norm, step->from, NULL, step->in)
                                              : MHA_OK;
}

/* The memory to which a step's function writes its result. */
static float *added_by(const mhai_place_step *place, const mhai_kept_step *step, float *next)
{
    return mhai_step_norms_branch(place) && step->z ? step->z : next;
}

/* next = x + y, where y is at added_by(). With post-norm, the sum is normalised; with branch norm,
 * y is normalised before the addition. */
static mha_status end_step(const mhai_call *c, const mhai_place_step *place,
                           const mhai_kept_step *step, float *next)
{
    const int64_t count = mhai_tokens(c->a) * c->t->desc.embed_dim;
    const float scale = c->t->desc.residual_scale;
    if (mhai_transformer_has(c->t, MHA_TRANSFORMER_POST_NORM)) {
        if (!step->z && !(scale < 1 || scale > 1))
            return norm(c, &place->norm, next, step->x, next);
        float *z = step->z ? step->z : next;
        mhai_transformer_add(c->context, count, step->x, scale, next, z);
        return norm(c, &place->norm, z, NULL, next);
    }
    if (mhai_step_norms_branch(place))
        MHA_TRY(norm(c, &place->post, added_by(place, step, next), NULL, next));
    mhai_transformer_add(c->context, count, step->x, scale, next, next);
    return MHA_OK;
}

/* Add (1 - gate) times each head's mean. The heads are already multiplied by their gates. */
static void add_means(const mhai_call *c, float *heads, int64_t layer)
{
    const mhai_mix mix = mhai_transformer_mix(&c->t->desc, layer);
    const int64_t D = mix.Dv, H = mix.out / D;
    const float *gates = mhai_nn_row(c->input.gates, layer);
    const float *means = mhai_nn_row(c->input.head_means, layer);
    for (int64_t i = 0; i < mhai_tokens(c->a); i++)
        for (int64_t k = 0; k < H * D; k++) {
            const float closed = 1 - gates[k / D];
            if (closed < 0 || closed > 0) heads[i * H * D + k] += closed * means[k];
        }
}

mha_tensor mhai_call_layer_part(const mha_tensor *wanted, int64_t layer)
{
    mha_tensor part = *wanted;
    part.data = (float *)part.data + layer * part.stride[0];
    part.ndim = 4;
    memmove(part.shape, part.shape + 1, 4 * sizeof part.shape[0]);
    memmove(part.stride, part.stride + 1, 4 * sizeof part.stride[0]);
    return part;
}

/* Set the outputs of pruned heads to 0. */
static void clear_part(const mha_tensor *wanted, int64_t layer, int64_t heads)
{
    const mha_tensor part = mhai_call_layer_part(wanted, layer);
    const int64_t rows = part.shape[2], missing = part.shape[1] - heads;
    for (int64_t i = 0; i < part.shape[0] * missing * rows; i++) {
        const int64_t b = i / (missing * rows), h = heads + i / rows % missing;
        float *to = (float *)part.data + b * part.stride[0] + h * part.stride[1] +
                    i % rows * part.stride[2];
        for (int64_t k = 0; k < part.shape[3]; k++) to[k * part.stride[3]] = 0;
    }
}

/* A layer without heads only adds its output bias. */
static mha_status only_bias(const mhai_call *c, const mhai_place_attention *place,
                            const mhai_kept_attention *kept, float *next)
{
    const int64_t width = c->t->desc.embed_dim;
    const float *bias =
        place->out.bias < 0 ? NULL : mhai_transformer_numbers(c->t, place->out.bias);
    float *y = added_by(&place->step, &kept->step, next);
    for (int64_t i = 0; i < mhai_tokens(c->a) * width; i++) y[i] = bias ? bias[i % width] : 0;
    return end_step(c, &place->step, &kept->step, next);
}

void mhai_transformer_narrow(int64_t window, int64_t sink_keys, mha_attention_desc *desc)
{
    const bool own = desc->flags & MHA_ATTENTION_WINDOW && desc->left_keys >= 0;
    if (window == 0 || (own && desc->left_keys < window)) return;
    desc->flags |= MHA_ATTENTION_WINDOW;
    desc->left_keys = window - 1;
    desc->right_keys = 0;
    desc->sink_keys = own ? mhai_max_i64(desc->sink_keys, sink_keys) : sink_keys;
}

static void prepare_step(const mha_transformer_desc *d, const mhai_step *s, int64_t layer,
                         bool cross, mhai_attend *x)
{
    if (cross) {
        x->cache = s->memory[layer];
        x->k.ndim = x->v.ndim = 0;
        return;
    }
    x->cache = s->caches[mhai_transformer_lender(d, layer)];
    x->firsts = s->firsts;
    x->counts = s->counts;
    x->query_positions = x->key_positions = (mha_positions){.ids = &s->places};
    x->desc.q_offsets = s->offsets;
    mhai_transformer_narrow(s->window, s->sink_keys, &x->desc);
    if (!s->sinks) return;
    if (x->desc.left_keys == s->window - 1) x->sinks = &s->sinks[layer];
    if (!x->rotates) return;
    x->query_positions = x->key_positions = (mha_positions){0};
    x->rope.cos_table = &s->sinks[layer].cosines;
    x->rope.sin_table = &s->sinks[layer].sines;
}

/* Prepare a layer's attention after q, k and v are projected. */
static mha_status prepare(const mhai_call *c, int64_t layer, bool cross, mhai_call_attention *made)
{
    const mha_tensor *wanted = cross ? c->cross_probabilities : c->probabilities;
    mhai_attend *x = &made->attend;
    mhai_transformer_attention(c->context, c->a, &c->input, layer, cross, made);
    if (c->step) {
        prepare_step(&c->t->desc, c->step, layer, cross, x);
        return MHA_OK;
    }
    MHA_TRY(mhai_call_read_outputs(cross || !c->input.outputs ? NULL : c->input.outputs[layer],
                                   layer, &x->outputs));
    if (wanted && x->outputs.probabilities)
        return mha_fail(MHA_ERR_ARGUMENT, "probabilities of layer %lld: requested twice",
                        (long long)layer);
    x->outputs.lse = &made->lse;
    if (!wanted) return MHA_OK;
    made->probabilities = mhai_call_layer_part(wanted, layer);
    made->probabilities.shape[1] = x->q.shape[1];
    x->outputs.probabilities = &made->probabilities;
    return MHA_OK;
}

static mha_status project_memory(mha_context *context, const mhai_place_linear *place,
                                 const mha_tensor *memory, float *to)
{
    const int64_t rows = memory->shape[0] * memory->shape[1];
    mha_tensor in = mhai_transformer_rows(memory->data, rows, place->inputs, memory->stride[1]);
    mha_tensor out = mhai_transformer_rows(to, rows, place->outputs, place->outputs);
    return mha_linear_forward(context, place->packed, MHA_ACTIVATION_NONE, &in, &out);
}

mha_status mhai_transformer_project_memory(mha_context *context, const mha_transformer *t,
                                           int64_t layer, const mha_tensor *memory, float *rows,
                                           mha_tensor *k, mha_tensor *v)
{
    const int64_t B = memory->shape[0], S = memory->shape[1], D = t->desc.head_dim;
    const int64_t kv = t->desc.kv_heads * D;
    *k = heads_view(rows, B, S, t->desc.kv_heads, D, 2 * kv);
    *v = heads_view(rows + kv, B, S, t->desc.kv_heads, D, 2 * kv);
    return project_memory(context, &t->layers[layer].cross.memory, memory, rows);
}

/* Compute the heads from the rows of q, k, v and gates. */
static mha_status run_heads(const mhai_call *c, const mhai_kept_attention *kept, int64_t layer,
                            bool cross)
{
    const bool delta = !cross && mhai_transformer_mix(&c->t->desc, layer).mixer;
    mhai_call_attention attention;
    if (delta) {
        MHA_TRY(mhai_delta_position(c, layer));
    } else {
        MHA_TRY(prepare(c, layer, cross, &attention));
        MHA_TRY(mhai_attend_position(&attention.attend));
    }
    if (!cross) mhai_transformer_patch(c->a, &c->input, layer, false);
    if (!cross && kept->relative) MHA_TRY(mhai_relative_run(c, layer));
    const bool expands =
        c->step && c->step->latent && !cross && mhai_transformer_latent(&c->t->desc, layer);
    MHA_TRY(delta     ? mhai_delta_run(c, layer)
            : expands ? mhai_latent_attend(c, layer, &attention.attend)
                      : mhai_attend_run(&attention.attend));
    if (!cross) mhai_gate_heads(c, layer);
    if (c->input.head_means && !cross) add_means(c, kept->heads, layer);
    if (!cross) mhai_transformer_patch(c->a, &c->input, layer, true);
    return MHA_OK;
}

static mha_status attend(const mhai_call *c, const mhai_place_attention *place,
                         const mhai_kept_attention *kept, int64_t layer, bool cross, float *next)
{
    const mha_tensor *wanted = cross ? c->cross_probabilities : c->probabilities;
    const mhai_heads count = mhai_transformer_heads_of(&c->t->desc, layer, cross);
    const int64_t rows = mhai_tokens(c->a);
    const mhai_mix mix = mhai_transformer_mix(&c->t->desc, layer);
    const bool convolves = !cross && mix.mixer == MHA_MIXER_SHORT_CONVOLUTION;
    if (wanted) clear_part(wanted, layer, count.q);
    if (count.q == 0 && !convolves) return only_bias(c, place, kept, next);
    MHA_TRY(begin_step(c, &place->step, &kept->step));
    MHA_TRY(!cross && mhai_transformer_latent(&c->t->desc, layer)
                ? mhai_latent_project(c, layer)
                : mhai_call_project_to(c, &place->in, MHA_ACTIVATION_NONE, kept->step.in, rows,
                                       cross ? place->in.outputs : mix.width, kept->qkv));
    if (cross && !c->step)
        MHA_TRY(project_memory(c->context, &place->memory, c->input.memory, kept->memory));
    MHA_TRY(convolves ? mhai_convolution_run(c, layer) : run_heads(c, kept, layer, cross));
    MHA_TRY(mhai_call_project(c, &place->out, MHA_ACTIVATION_NONE, kept->heads, rows,
                              added_by(&place->step, &kept->step, next)));
    return end_step(c, &place->step, &kept->step, next);
}

/* The activation of gpt-oss, of a row of gate and up. */
typedef struct clamped_job {
    int64_t F;
    const float *up;
    float *act;
} clamped_job;

static void clamp_row(void *argument, int64_t row, int worker)
{
    const clamped_job *job = argument;
    const int64_t F = job->F;
    const float *gate = job->up + row * 2 * F, *up = gate + F;
    (void)worker;
    for (int64_t i = 0; i < F; i++) {
        const double g = gate[i] > 7 ? 7 : (double)gate[i];
        const double u = up[i] > 7 ? 7 : up[i] < -7 ? -7 : (double)up[i];
        job->act[row * F + i] = (float)((u + 1) * g * mhai_sigmoid(1.702 * g));
    }
}

mha_status mhai_call_gated(const mhai_call *c, int64_t rows, int64_t F, float *up, float *act)
{
    if (c->t->desc.feed_forward == MHA_FEED_FORWARD_SWIGLU_CLAMPED) {
        mha_parallel_for(c->context, rows, clamp_row, &(clamped_job){F, up, act});
        return MHA_OK;
    }
    const mha_tensor first = mhai_transformer_rows(up, rows, F, 2 * F);
    const mha_tensor second = mhai_transformer_rows(up + F, rows, F, 2 * F);
    const mha_tensor to = mhai_transformer_rows(act, rows, F, F);
    if (c->t->desc.feed_forward == MHA_FEED_FORWARD_SWIGLU)
        return mha_swiglu(c->context, &first, &second, &to);
    return mha_glu(c->context, mhai_transformer_activation(c->t), &first, &second, &to);
}

static mha_status run_dense(const mhai_call *c, int64_t layer, float *y)
{
    const mhai_place_layer *place = &c->t->layers[layer];
    const mhai_kept_layer *kept = &c->a->layers[layer];
    const int64_t rows = mhai_tokens(c->a), F = mhai_transformer_ff(&c->t->desc, layer);
    const mha_activation activation = mhai_transformer_activation(c->t);
    if (!kept->up) {
        MHA_TRY(mhai_call_project(c, &place->up, activation, kept->ff.in, rows, kept->act));
    } else {
        MHA_TRY(mhai_call_project(c, &place->up, MHA_ACTIVATION_NONE, kept->ff.in, rows, kept->up));
        const mha_tensor up = mhai_transformer_rows(kept->up, rows, F, F);
        const mha_tensor act = mhai_transformer_rows(kept->act, rows, F, F);
        MHA_TRY(mhai_transformer_gated(c->t)
                    ? mhai_call_gated(c, rows, F, kept->up, kept->act)
                    : mha_activation_forward(c->context, activation, &up, &act));
    }
    return mhai_call_project(c, &place->down, MHA_ACTIVATION_NONE, kept->act, rows, y);
}

static mha_status feed_forward(const mhai_call *c, int64_t layer, float *next)
{
    const mhai_place_layer *place = &c->t->layers[layer];
    const mhai_kept_layer *kept = &c->a->layers[layer];
    float *y = added_by(&place->ff, &kept->ff, next);
    if (kept->ff.in != kept->self.step.in) MHA_TRY(begin_step(c, &place->ff, &kept->ff));
    MHA_TRY(mhai_transformer_experts(&c->t->desc, layer) ? mhai_experts_run(c, layer, y)
                                                         : run_dense(c, layer, y));
    return end_step(c, &place->ff, &kept->ff, next);
}

/* The tokens' rows of a layer's own table, and the norm of the projection of the first stream. */
static mha_status read_input(const mhai_call *c, int64_t layer)
{
    const mhai_place_input *place = &c->t->layers[layer].input;
    const mhai_kept_input *kept = &c->a->layers[layer].input;
    const int64_t rows = mhai_tokens(c->a), P = place->norm.width;
    const double unit = 1 / sqrt((double)c->t->desc.embed_dim), scale = sqrt((double)P);
    MHA_TRY(mhai_call_project(c, &place->project, MHA_ACTIVATION_NONE, c->a->base, rows,
                              kept->projected));
    for (int64_t i = 0; i < rows * P; i++)
        kept->projected[i] = (float)(unit * (double)kept->projected[i]);
    MHA_TRY(norm(c, &place->norm, kept->projected, NULL, kept->act));
    for (int64_t i = 0; i < rows; i++) {
        float *p = kept->up + (2 * i + 1) * P;
        mhai_transformer_read_rows(c->t, place->table, P, c->a->ids[i], 1, 0, P, p);
        for (int64_t k = 0; k < P; k++)
            p[k] = (float)((scale * (double)p[k] + (double)kept->act[i * P + k]) * sqrt(0.5));
    }
    return MHA_OK;
}

/* Add a layer's input beside the stream. */
static mha_status add_input(const mhai_call *c, int64_t layer, float *next)
{
    const mhai_place_input *place = &c->t->layers[layer].input;
    const mhai_kept_input *kept = &c->a->layers[layer].input;
    const int64_t rows = mhai_tokens(c->a), P = place->norm.width;
    MHA_TRY(read_input(c, layer));
    MHA_TRY(mhai_call_project_to(c, &place->gate, MHA_ACTIVATION_NONE, kept->step.in, rows, 2 * P,
                                 kept->up));
    MHA_TRY(mhai_call_gated(c, rows, P, kept->up, kept->act));
    MHA_TRY(mhai_call_project(c, &place->out, MHA_ACTIVATION_NONE, kept->act, rows,
                              added_by(&place->step, &kept->step, next)));
    return end_step(c, &place->step, &kept->step, next);
}

float *mhai_transformer_next(const mha_activations *a, int64_t layer, int step)
{
    const mha_transformer_desc *d = &a->transformer->desc;
    const bool cross = d->flags & MHA_TRANSFORMER_CROSS, ff = mha_transformer_feeds(d, layer);
    if (step == 0 && cross) return a->layers[layer].cross.step.x;
    if (step <= 1 && ff) return a->layers[layer].ff.x;
    if (step <= 2 && mhai_transformer_has_input(d, layer)) return a->layers[layer].input.step.x;
    return layer + 1 < d->num_layers ? a->layers[layer + 1].self.step.x : a->x;
}

typedef struct embed_job {
    const mha_activations *a;
    const mha_transformer *t;
    const float *positions, *types; /* tables; may be NULL */
    bool features;                  /* x holds the projected features */
    int64_t width;
    float scale, *x;
} embed_job;

/* Add the tables' rows to the projected features in double, and round once. */
static void add_row(const embed_job *job, int64_t row, const float *position, const float *type,
                    float *x)
{
    enum { PIECE = 64 };
    float token[PIECE];
    for (int64_t at = 0; at < job->width; at += PIECE) {
        const int64_t n = mhai_min_i64(PIECE, job->width - at);
        mhai_transformer_read_rows(job->t, job->t->tokens, job->width, job->a->ids[row], 1, at, n,
                                   token);
        for (int64_t i = at; i < at + n; i++)
            x[i] = (float)((double)x[i] + (double)job->scale * (double)token[i - at] +
                           (position ? (double)position[i] : 0) + (type ? (double)type[i] : 0));
    }
}

/* Add three numbers in double and round once. For two, f32 gives the same sum. */
static void embed_row(void *argument, int64_t row, int worker)
{
    const embed_job *job = argument;
    (void)worker;
    const int64_t width = job->width;
    const float *position = job->positions ? job->positions + job->a->positions[row] * width : NULL;
    const float *type = job->types ? job->types + job->a->types[row] * width : NULL;
    float *x = job->x + row * width;
    if (job->features) {
        add_row(job, row, position, type, x);
        return;
    }
    mhai_transformer_read_rows(job->t, job->t->tokens, width, job->a->ids[row], 1, 0, width, x);
    for (int64_t i = 0; i < width; i++) x[i] *= job->scale;
    for (int64_t i = 0; i < width && position && !type; i++) x[i] += position[i];
    for (int64_t i = 0; i < width && type; i++)
        x[i] = (float)((double)x[i] + (position ? (double)position[i] : 0) + (double)type[i]);
}

static mha_status embed(const mhai_call *c)
{
    const mha_transformer *t = c->t;
    const mha_transformer_desc *d = &t->desc;
    float *first = c->a->embedded ? c->a->embedded : c->a->layers[0].self.step.x;
    embed_job job = {.a = c->a,
                     .t = t,
                     .positions = d->positions == MHA_ENCODING_LEARNED
                                      ? mhai_transformer_numbers(t, t->positions)
                                  : d->positions == MHA_ENCODING_SINUSOIDAL ? t->encodings->values
                                                                            : NULL,
                     .types = d->type_count > 0 ? mhai_transformer_numbers(t, t->types) : NULL,
                     .features = d->feature_dim > 0,
                     .width = d->token_dim,
                     .scale = d->embed_scale,
                     .x = first};
    float *x = c->a->layers[0].self.step.x, *in = c->a->narrow ? c->a->narrow : first;
    if (job.features) {
        const mha_tensor from = mhai_transformer_features(&c->input);
        const mha_tensor to =
            mhai_transformer_rows(first, mhai_tokens(c->a), d->token_dim, d->token_dim);
        MHA_TRY(
            mha_linear_forward(c->context, t->features.packed, MHA_ACTIVATION_NONE, &from, &to));
    }
    mha_parallel_for(c->context, mhai_tokens(c->a), embed_row, &job);
    if (t->embed_norm.weight >= 0)
        MHA_TRY(norm(c, &t->embed_norm, first, NULL, c->a->narrow ? in : x));
    if (t->project.outputs > 0)
        MHA_TRY(mhai_call_project(c, &t->project, MHA_ACTIVATION_NONE, in, mhai_tokens(c->a), x));
    if (c->a->base) memcpy(c->a->base, x, (size_t)(mhai_tokens(c->a) * d->embed_dim) * sizeof *x);
    return MHA_OK;
}

/* Compute the stream before the first layer of the run. */
static mha_status begin_stream(const mhai_call *c)
{
    const mha_tensor *from = c->input.stream;
    const int64_t width = c->t->desc.embed_dim, length = c->a->T;
    if (!from || c->a->base) MHA_TRY(embed(c));
    if (!from) return MHA_OK;
    for (int64_t i = 0; i < mhai_tokens(c->a); i++)
        memcpy(c->a->layers[c->a->first].self.step.x + i * width,
               (const float *)from->data + i / length * from->stride[0] +
                   i % length * from->stride[1],
               (size_t)width * sizeof(float));
    return MHA_OK;
}

static void write_rows(const mhai_call *c, const mha_tensor *to)
{
    const int64_t width = c->t->desc.embed_dim;
    for (int64_t i = 0; i < mhai_tokens(c->a); i++)
        memcpy((float *)to->data + i / c->a->T * to->stride[0] + i % c->a->T * to->stride[1],
               c->a->last + i * width, (size_t)width * sizeof(float));
}

static mha_status write_logits(const mhai_call *c, const mha_tensor *output)
{
    const int64_t width = c->t->desc.embed_dim, length = c->a->T;
    const bool joined = output->stride[0] == length * output->stride[1] || c->a->B == 1;
    const int64_t pieces = joined ? 1 : c->a->B, rows = mhai_tokens(c->a) / pieces;
    for (int64_t i = 0; i < pieces; i++) {
        mha_tensor in = mhai_transformer_rows(c->a->last + i * rows * width, rows, width, width);
        mha_tensor out = mhai_transformer_rows((float *)output->data + i * output->stride[0], rows,
                                               output->shape[2], output->stride[1]);
        MHA_TRY(mhai_transformer_logits(c->context, c->t, &in, &out));
    }
    return MHA_OK;
}

static mha_status write_output(const mhai_call *c, const mha_tensor *output)
{
    if (!mhai_call_has_end(c)) return MHA_OK;
    if (mhai_transformer_pre_norm(c->t)) MHA_TRY(norm(c, &c->t->norm, c->a->x, NULL, c->a->last));
    if (c->input.last_hidden) write_rows(c, c->input.last_hidden);
    if (!output) return MHA_OK;
    if (mhai_transformer_has(c->t, MHA_TRANSFORMER_NO_OUTPUT))
        write_rows(c, output);
    else if (mhai_spread_mine(c->t, c->t->desc.num_layers))
        return write_logits(c, output);
    return MHA_OK;
}

static mha_status run_layer(const mhai_call *c, int64_t i)
{
    const mha_transformer_desc *d = &c->t->desc;
    const mhai_place_layer *place = &c->t->layers[i];
    const mhai_kept_layer *kept = &c->a->layers[i];
    MHA_TRY(attend(c, &place->self, &kept->self, i, false, mhai_transformer_next(c->a, i, 0)));
    if (d->flags & MHA_TRANSFORMER_CROSS)
        MHA_TRY(attend(c, &place->cross, &kept->cross, i, true, mhai_transformer_next(c->a, i, 1)));
    if (mha_transformer_feeds(d, i))
        MHA_TRY(feed_forward(c, i, mhai_transformer_next(c->a, i, MHA_PART_FEED_FORWARD)));
    float *end = mhai_transformer_next(c->a, i, MHAI_LAYER_END);
    if (mhai_transformer_has_input(d, i)) MHA_TRY(add_input(c, i, end));
    if (place->scale < 0) return MHA_OK;
    const float scale = *mhai_transformer_numbers(c->t, place->scale);
    for (int64_t k = 0; k < mhai_tokens(c->a) * d->embed_dim; k++) end[k] *= scale;
    return MHA_OK;
}

/* status: whether this rank can continue. After an error, a rank stops computing, but still sends
 * and receives everything that the other ranks expect. */
static mha_status forward(mhai_call *c, const mha_tensor *output, mha_status status)
{
    const mha_transformer *t = c->t;
    mha_activations *a = c->a;
    a->first = c->input.first_layer;
    a->given = c->input.stream;
    mhai_relative_view(a);
    if (status == MHA_OK && (mhai_spread_mine(t, a->first) || !a->passing))
        status = begin_stream(c);
    for (int64_t i = a->first; i < t->desc.num_layers && (status == MHA_OK || t->ranks); i++) {
        if (status == MHA_OK && mhai_spread_mine(t, i)) status = run_layer(c, i);
        MHA_TRY(mhai_call_hand_on(c, i));
        a->layer = i;
        if (status == MHA_OK && c->input.after_layer && mhai_call_sees(c, i))
            status = c->input.after_layer(c->input.after_layer_user, a, i);
    }
    return status == MHA_OK ? write_output(c, output) : status;
}

/* Tokens per piece. Shorter pieces let the last rank start earlier, but matrix
 * products are slower per row. */
enum { PIECE = 64 };

/* Pipeline the tokens of a step through the ranks: while a rank computes one piece, the rank
 * before it computes the next. */
static mha_status forward_pieces(mhai_call *c, const mha_tensor *output)
{
    const mhai_step *whole = c->step;
    mha_activations *a = c->a;
    const mha_activations kept = *a;
    mha_status status = MHA_OK;
    for (int64_t at = 0; at < kept.T && status != MHA_ERR_RANK; at += PIECE) {
        const int64_t count = mhai_min_i64(PIECE, kept.T - at), offset = whole->offsets[0] + at;
        mhai_step step = *whole;
        mha_tensor part = output ? *output : (mha_tensor){0};
        step.counts = &count;
        step.offsets = &offset;
        step.places.data = (int64_t *)whole->places.data + at;
        step.places.shape[1] = part.shape[1] = count;
        if (output) part.data = (float *)output->data + at * output->stride[1];
        a->T = count;
        a->ids = kept.ids + at;
        a->positions = kept.positions + at;
        a->types = kept.types + at;
        c->step = &step;
        status = forward(c, output ? &part : NULL, status);
    }
    a->T = kept.T;
    a->ids = kept.ids;
    a->positions = kept.positions;
    a->types = kept.types;
    c->step = whole;
    return status;
}

static mha_status forward_all(mhai_call *c, const mha_tensor *output)
{
    const mha_transformer *t = c->t;
    const bool pieces = t->ranks && c->step && c->step->divides;
    if (mhai_tokens(c->a) == 0) return MHA_OK;
    const mha_status status = pieces ? forward_pieces(c, output) : forward(c, output, MHA_OK);
    if (status != MHA_ERR_RANK && output && !mhai_transformer_has(t, MHA_TRANSFORMER_NO_OUTPUT) &&
        t->ranks)
        MHA_TRY(mhai_spread_tensor(t, t->ranks[t->desc.num_layers], output));
    return status;
}

/* Run the call on all ranks. status: whether this rank can take part. */
static mha_status run(mhai_call *c, const mha_tensor *output, mha_status status)
{
    if (status == MHA_OK) status = load_tokens(c);
    MHA_TRY(mhai_call_begin(c, output, status));
    status = forward_all(c, output);
    return status == MHA_ERR_RANK ? status : mhai_spread_agree(c->t, status);
}

size_t mhai_transformer_product_bytes(const mha_context *context, const mha_transformer *t,
                                      int64_t rows)
{
    return t->most_inputs > 0
               ? mhai_matmul_rows_bytes(context, t->source.compute, rows, t->most_inputs)
               : 0;
}

/* Check the requested outputs of every layer, and reserve scratch for the largest output.
 * Afterwards the call cannot fail once it has written an output. */
static mha_status reserve(const mhai_call *c)
{
    const mha_transformer_desc *d = &c->t->desc;
    mha_attention_plan plan;
    size_t most = 0;
    mhai_relative_view(c->a);
    for (int64_t i = 0; mhai_tokens(c->a) > 0 && i < 2 * d->num_layers; i++) {
        const bool cross = i % 2;
        mhai_call_attention attention;
        const mhai_attend *x = &attention.attend;
        if ((cross && !(d->flags & MHA_TRANSFORMER_CROSS)) ||
            mhai_transformer_heads_of(d, i / 2, cross).q == 0)
            continue;
        if (!cross && mhai_transformer_mix(d, i / 2).mixer) {
            MHA_TRY(mhai_delta_check_outputs(c, i / 2));
            continue;
        }
        MHA_TRY(prepare(c, i / 2, cross, &attention));
        MHA_TRY(mha_attention_explain(c->context, &x->desc, &x->q, &x->k, &x->v, &x->heads,
                                      &x->outputs, &plan));
        if (plan.scratch_bytes > most) most = plan.scratch_bytes;
        const bool relative = !cross && c->a->layers[i / 2].self.relative;
        const size_t terms = relative ? mhai_relative_bytes(c, i / 2) : 0;
        if (terms > most) most = terms;
    }
    if (most > PTRDIFF_MAX) return mha_fail(MHA_ERR_SIZE, "attention: its scratch does not fit");
    const size_t products = mhai_transformer_product_bytes(
        c->context, c->t, mhai_max_i64(mhai_tokens(c->a), c->a->B * c->a->S));
    if (most < products) most = products;
    return mhai_scratch_ensure(c->context, (int64_t)most, 1);
}

/* Prepare a call whose activations are in scratch. */
static mha_status prepare_passing(mhai_call *c, const mha_transformer_input *input,
                                  const mha_tensor *output)
{
    mha_activations *own = c->a;
    MHA_TRY(mhai_call_check(c, input, output));
    const int64_t B = own->B, T = own->T, S = own->S;
    MHA_TRY(mhai_activations_pass(c->context, c->t, B * T, B * S, own));
    own->B = B;
    own->T = T;
    own->S = S;
    return reserve(c);
}

static mha_status forward_in_passing(mhai_call *c, const mha_transformer_input *input,
                                     const mha_tensor *output)
{
    mha_activations own = {.transformer = c->t, .max_tokens = INT32_MAX, .max_memory = INT32_MAX};
    c->a = &own;
    return run(c, output, prepare_passing(c, input, output));
}

mha_status mha_transformer_forward(mha_context *context, const mha_transformer *transformer,
                                   const mha_transformer_input *input, mha_activations *activations,
                                   const mha_tensor *output, const mha_tensor *probabilities,
                                   const mha_tensor *cross_probabilities)
{
    MHA_NEED("mha_transformer_forward", context, transformer);
    mhai_call c = {.context = context,
                   .t = transformer,
                   .a = activations,
                   .probabilities = probabilities,
                   .cross_probabilities = cross_probabilities};
    if (!activations) {
        const mha_scratch_mark mark = mha_scratch_top(context);
        const mha_status status = forward_in_passing(&c, input, output);
        mha_scratch_release(context, mark);
        return status;
    }
    const mha_status status = run(&c, output, mhai_call_check(&c, input, output));
    if (status != MHA_OK) activations->T = -1; /* mark the activations as invalid */
    return status;
}

mha_status mhai_transformer_step(mha_context *context, const mha_transformer *t, mha_activations *a,
                                 const mha_tensor *tokens, const mhai_step *step,
                                 const mha_tensor *output, mha_status status)
{
    mhai_call c = {.context = context, .t = t, .input = {.tokens = tokens}, .a = a, .step = step};
    if (status == MHA_OK) status = mhai_call_check_outputs(&c, output);
    status = run(&c, output, status);
    a->T = -1; /* keys of earlier tokens are missing, so there is no backward call */
    return status;
}
