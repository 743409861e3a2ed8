/* The backward call of a transformer: the forward steps in reverse. Each step adds its contribution
 * to the gradient of the stream, which is a single buffer. */
#include "transformer/transformer_call.h"
#include "transformer/transformer_parts.h"

#include "base/checked.h"
#include "base/math.h"
#include "base/need.h"
#include "base/tensor.h"
#include "nn/nn_check.h"

#include <multihead/backward.h>

#include <math.h>
#include <string.h>

typedef struct call {
    mha_context *context;
    const mha_transformer *t;
    mha_transformer_input input;
    mha_activations *a;
    mha_transformer_gradients out;
    float *dx;            /* [tokens,E] the gradient of the stream */
    float *dy;            /* [tokens,E] the gradient of a step's output; same as
                           * dx in a plain block */
    float *din;           /* [tokens,E] the gradient of a step's input */
    float *wide;          /* [tokens, widest] for projected rows or the feed-forward layer */
    float *also;          /* same size, for heads and activations */
    float *memory;        /* [memory rows, 2 Hk D] */
    float *gates, *sinks; /* [H] */
    float *t5;            /* room for the largest table */
    float **lent;    /* [L] the gradient of keys and values that later layers use; NULL: none do */
    float *borrowed; /* room for that of one layer */
    float *base;     /* [tokens,E] the gradient of the first stream from layers' inputs, or NULL */
} call;

static mha_tensor stream(const call *c, const float *data)
{
    const int64_t width = c->t->desc.embed_dim;
    return mhai_transformer_rows(data, mhai_tokens(c->a), width, width);
}

static mha_status take(const call *c, int64_t rows, int64_t cols, float **memory)
{
    MHA_TRY(mha_scratch_alloc(c->context, rows * cols, sizeof(float), memory));
    return MHA_OK;
}

/* ---- norms, linear layers -------------------------------------------------------------------- */

/* The gradient of the parameters at this offset; NULL if not requested. */
static float *place_of(const call *c, int64_t offset)
{
    return c->out.parameters ? c->out.parameters + offset : NULL;
}

/* Backpropagate dy through norm(x), and store or add the result in dx. */
static mha_status norm_rows(const call *c, const mhai_place_norm *place, const float *x,
                            const float *dy, int64_t rows, uint32_t flags, float *dx)
{
    const int64_t width = place->width;
    const bool all = c->out.parameters, centred = c->t->desc.norm != MHA_NORM_RMS;
    const bool biased = place->bias >= 0;
    mha_tensor in = mhai_transformer_rows(x, rows, width, width);
    mha_tensor upper = mhai_transformer_rows(dy, rows, width, width);
    mha_tensor lower = mhai_transformer_rows(dx, rows, width, width);
    mha_tensor weight =
        mhai_transformer_vector(mhai_transformer_numbers(c->t, place->weight), width);
    mha_tensor dweight = mhai_transformer_vector(place_of(c, place->weight), width);
    mha_tensor dbias = mhai_transformer_vector(place_of(c, biased ? place->bias : 0), width);
    const mha_norm_gradients norms = {.struct_size = sizeof norms,
                                      .flags = flags,
                                      .x = &in,
                                      .weight = &weight,
                                      .dy = &upper,
                                      .dx = &lower,
                                      .dweight = all ? &dweight : NULL,
                                      .dbias = all && biased ? &dbias : NULL,
                                      .epsilon = c->t->desc.norm_epsilon};
    return centred ? mha_layer_norm_backward(c->context, &norms)
                   : mha_rms_norm_backward(c->context, &norms);
}

static mha_status norm(const call *c, const mhai_place_norm *place, const float *x, const float *dy,
                       uint32_t flags, float *dx)
{
    return norm_rows(c, place, x, dy, mhai_tokens(c->a), flags, dx);
}

/* Compute the gradients of the parameters and of the input (dx; NULL: not requested). */
static mha_status linear(const call *c, const mhai_place_linear *place, const mha_tensor *x,
                         const mha_tensor *dy, uint32_t flags, const mha_tensor *dx)
{
    const bool all = c->out.parameters;
    const mha_scratch_mark mark = mha_scratch_top(c->context);
    mha_tensor weight;
    MHA_TRY(mhai_transformer_matrix(c->context, c->t, place->weight, place->outputs, place->inputs,
                                    &weight));
    mha_tensor dweight = mhai_transformer_rows(place_of(c, place->weight), place->outputs,
                                               place->inputs, place->inputs);
    mha_tensor dbias =
        mhai_transformer_vector(place_of(c, place->bias < 0 ? 0 : place->bias), place->outputs);
    MHA_TRY(mha_linear_backward(
        c->context, &(mha_linear_gradients){.struct_size = sizeof(mha_linear_gradients),
                                            .flags = flags,
                                            .weight = &weight,
                                            .x = x,
                                            .dy = dy,
                                            .dx = dx,
                                            .dweight = all ? &dweight : NULL,
                                            .dbias = !all || place->bias < 0 ? NULL : &dbias}));
    mha_scratch_release(c->context, mark);
    return MHA_OK;
}

/* ---- steps --------------------------------------------------------------------------------- */

/* dy = residual_scale dx, if they differ. */
static void scale_stream(const call *c)
{
    const int64_t count = mhai_tokens(c->a) * c->t->desc.embed_dim;
    for (int64_t i = 0; c->dy != c->dx && i < count; i++)
        c->dy[i] = c->t->desc.residual_scale * c->dx[i];
}

/* Begin a step: backpropagate through the post-norm or the branch norm. */
static mha_status begin_step(const call *c, const mhai_place_step *place,
                             const mhai_kept_step *step)
{
    const bool branch = mhai_step_norms_branch(place);
    if (step->z && !branch) MHA_TRY(norm(c, &place->norm, step->z, c->dx, 0, c->dx));
    if (!mhai_transformer_has(c->t, MHA_TRANSFORMER_PARALLEL)) scale_stream(c);
    return step->z && branch ? norm(c, &place->post, step->z, c->dy, 0, c->dy) : MHA_OK;
}

/* End a step: add the gradient of its input, din, to the gradient of the stream. */
static mha_status end_step(const call *c, const mhai_place_step *place, const mhai_kept_step *step)
{
    if (mhai_step_norms_input(c->t, place))
        return norm(c, &place->norm, step->from, c->din, MHA_GRADIENT_ADD, c->dx);
    mhai_transformer_add(c->context, mhai_tokens(c->a) * c->t->desc.embed_dim, c->dx, 1, c->din,
                         c->dx);
    return MHA_OK;
}

static void add_gates(const call *c, const mha_tensor *to, int64_t layer, mhai_heads heads)
{
    float *row = mhai_nn_row(to, layer);
    for (int64_t h = 0; h < heads.q; h++) row[h] += c->gates[h];
}

/* Per head and token, add the dot product of output and gradient. Both are rows [H D]. */
static void add_heads(const call *c, const float *heads, const float *gradient, int64_t layer)
{
    const mha_activations *a = c->a;
    const mhai_mix mix = mhai_transformer_mix(&c->t->desc, layer);
    const int64_t D = mix.Dv, H = mix.out / D;
    const mha_tensor *to = c->out.heads;
    for (int64_t b = 0; b < a->B; b++)
        for (int64_t h = 0; h < H; h++)
            for (int64_t i = 0; i < a->T; i++) {
                const int64_t at = ((b * a->T + i) * H + h) * D;
                double sum = 0;
                for (int64_t k = 0; k < D; k++)
                    sum += (double)heads[at + k] * (double)gradient[at + k];
                ((float *)to->data)[layer * to->stride[0] + b * to->stride[1] + h * to->stride[2] +
                                    i * to->stride[3]] += (float)sum;
            }
}

/* Backpropagate through a layer's rotation and norms, whose inputs are projected again. */
static mha_status position(const call *c, const mhai_place_attention *place,
                           const mhai_kept_attention *kept, const mhai_attend *x, int64_t layer,
                           const mhai_qkv *gradient)
{
    mhai_qkv read = {.q = {.ndim = 0}};
    mhai_attend_norm q = {&read.q, NULL}, k = {&read.k, NULL};
    const mha_scratch_mark mark = mha_scratch_top(c->context);
    if (x->q_norm || x->norms_values) {
        const int64_t rows = mhai_tokens(c->a), inputs = place->in.inputs;
        float *memory;
        MHA_TRY(take(c, rows, place->in.outputs, &memory));
        mha_tensor in = mhai_transformer_rows(kept->step.in, rows, inputs, inputs);
        mha_tensor out = mhai_transformer_rows(memory, rows, place->in.outputs, place->in.outputs);
        MHA_TRY(mha_linear_forward(c->context, place->in.packed, MHA_ACTIVATION_NONE, &in, &out));
        read = mhai_transformer_qkv(c->a, layer, false, memory, NULL);
        q.weight = place_of(c, place->q_norm);
        k.weight = place_of(c, place->k_norm);
    }
    MHA_TRY(mhai_attend_position_backward(x, &gradient->q, &gradient->k, &q, &k));
    MHA_TRY(mhai_attend_values_backward(x, &read.v, &gradient->v));
    mha_scratch_release(c->context, mark);
    return MHA_OK;
}

/* Add to the caller's gradient. Attention itself would overwrite it. */
static void add_numbers(const call *c, int64_t offset, const mha_tensor *numbers)
{
    const int64_t count = numbers->shape[0] * (numbers->ndim > 1 ? numbers->shape[1] : 1);
    float *to = place_of(c, offset);
    for (int64_t i = 0; i < count; i++) to[i] += ((const float *)numbers->data)[i];
}

/* Add the gradient [tokens, H D] of the heads' outputs. */
static void add_outputs(const call *c, const float *gradient, int64_t layer)
{
    const mha_tensor *to = c->out.head_outputs;
    const int64_t T = c->a->T, wide = mhai_transformer_mix(&c->t->desc, layer).out;
    for (int64_t i = 0; i < mhai_tokens(c->a); i++) {
        float *row = (float *)to->data + layer * to->stride[0] + i / T * to->stride[1] +
                     i % T * to->stride[2];
        for (int64_t k = 0; k < wide; k++) row[k * to->stride[3]] += gradient[i * wide + k];
    }
}

/* Backpropagate from the bias of content-position terms to queries and keys in c->wide, and to the
 * parameters. */
static mha_status relative(const call *c, const mhai_place_attention *place, int64_t layer,
                           float *dbias)
{
    const mhai_call forward = {.context = c->context, .t = c->t, .input = c->input, .a = c->a};
    const mha_transformer *t = c->t;
    const int64_t E = t->desc.embed_dim;
    mhai_relative_gradient to;
    float *memory;
    MHA_TRY(mhai_relative_backward(&forward, layer, dbias, c->wide, c->out.parameters, &to));
    if (!to.projected) return MHA_OK;
    const mhai_place_linear *by = place->positions.outputs > 0 ? &place->positions : &place->in;
    const float *table = mhai_transformer_numbers(t, t->relative) + to.first * E;
    MHA_TRY(take(c, to.count, E, &memory));
    const mha_tensor in = mhai_transformer_rows(to.embeddings, to.count, E, E);
    const mha_tensor dy = mhai_transformer_rows(to.projected, to.count, by->outputs, by->outputs);
    const mha_tensor dx = mhai_transformer_rows(memory, to.count, E, E);
    MHA_TRY(linear(c, by, &in, &dy, 0, &dx));
    if (t->relative_norm.weight >= 0)
        MHA_TRY(norm_rows(c, &t->relative_norm, table, memory, to.count, 0, memory));
    mhai_transformer_add(c->context, to.count * E, place_of(c, t->relative) + to.first * E, 1,
                         memory, place_of(c, t->relative) + to.first * E);
    return MHA_OK;
}

/* A view of keys, and of values after them, in rows [tokens, 2 kv D]. */
static void view_lent(const call *c, int64_t layer, float *rows, mhai_qkv *to)
{
    const mhai_mix mix = mhai_transformer_mix(&c->t->desc, layer);
    const int64_t wide = mix.k * mix.D;
    to->k = mha_tensor_bthd(rows, c->a->B, c->a->T, mix.k, mix.D);
    to->k.stride[0] = 2 * wide * c->a->T;
    to->k.stride[2] = 2 * wide;
    to->v = to->k;
    to->v.data = rows + wide;
}

/* to += from, for vectors [B,Hk,T,D]. */
static void add_vectors(const mha_tensor *to, const mha_tensor *from)
{
    for (int64_t b = 0; b < to->shape[0]; b++)
        for (int64_t h = 0; h < to->shape[1]; h++)
            for (int64_t t = 0; t < to->shape[2]; t++) {
                float *y =
                    (float *)to->data + b * to->stride[0] + h * to->stride[1] + t * to->stride[2];
                const float *x = (const float *)from->data + b * from->stride[0] +
                                 h * from->stride[1] + t * from->stride[2];
                for (int64_t i = 0; i < to->shape[3]; i++) y[i] += x[i];
            }
}

/* Add the gradient of borrowed keys and values to that of their layer, or to a layer's own the gradients
 * that later layers left. */
static void settle(const call *c, int64_t layer, const mhai_qkv *gradient)
{
    const int64_t lender = mhai_transformer_lender(&c->t->desc, layer);
    mhai_qkv sum;
    if (!c->lent || !c->lent[lender]) return;
    view_lent(c, lender, c->lent[lender], &sum);
    add_vectors(lender == layer ? &gradient->k : &sum.k, lender == layer ? &sum.k : &gradient->k);
    add_vectors(lender == layer ? &gradient->v : &sum.v, lender == layer ? &sum.v : &gradient->v);
}

/* Backpropagate through attention: from the heads (c->also) to q, k and v. */
static mha_status attention(const call *c, const mhai_place_attention *place,
                            const mhai_kept_attention *kept, int64_t layer, bool cross)
{
    const mha_activations *a = c->a;
    const mha_tensor *dgates = cross ? c->out.cross_gates : c->out.gates;
    const mhai_heads count = mhai_transformer_heads_of(&c->t->desc, layer, cross);
    mhai_call_attention described;
    mhai_transformer_attention(c->context, a, &c->input, layer, cross, &described);
    const mhai_attend *x = &described.attend;
    const bool sinks = x->desc.sink_logits && c->out.parameters;
    const bool t5 = x->desc.t5_table && c->out.parameters;
    mhai_qkv gradient = mhai_transformer_qkv(a, layer, cross, c->wide, c->memory);
    if (x->borrows) view_lent(c, layer, c->borrowed, &gradient);
    mha_tensor dheads = mhai_transformer_heads(a, layer, cross, c->also);
    mha_tensor gates = mhai_transformer_vector(c->gates, count.q);
    mha_tensor dsinks = mhai_transformer_vector(c->sinks, count.q), dt5 = place->t5_table;
    dt5.data = c->t5;
    const mha_scratch_mark mark = mha_scratch_top(c->context);
    mha_tensor dbias = kept->bias;
    if (kept->relative)
        MHA_TRY(mha_scratch_alloc(c->context, a->B * count.q * a->T * a->T, sizeof(float),
                                  &dbias.data));
    const mha_attention_gradients wanted = {.struct_size = sizeof wanted,
                                            .q = &gradient.q,
                                            .k = &gradient.k,
                                            .v = &gradient.v,
                                            .gates = dgates ? &gates : NULL,
                                            .bias = kept->relative ? &dbias : NULL,
                                            .sink_logits = sinks ? &dsinks : NULL,
                                            .t5_table = t5 ? &dt5 : NULL};
    MHA_TRY(mha_attention_backward(
        c->context,
        &(mha_attention_backward_call){.struct_size = sizeof(mha_attention_backward_call),
                                       .attention = &x->desc,
                                       .q = &x->q,
                                       .k = &x->k,
                                       .v = &x->v,
                                       .o = &x->heads,
                                       .lse = &described.lse,
                                       .o_gradient = &dheads,
                                       .gradients = &wanted}));
    if (dgates) add_gates(c, dgates, layer, count);
    if (sinks) add_numbers(c, place->sinks, &dsinks);
    if (t5) add_numbers(c, place->t5, &dt5);
    if (kept->relative) MHA_TRY(relative(c, place, layer, dbias.data));
    mha_scratch_release(c->context, mark);
    if (cross) return MHA_OK;
    settle(c, layer, &gradient);
    return position(c, place, kept, x, layer, &gradient);
}

/* Backpropagate from the heads' gradient in c->also to the gradient of the projected rows. */
static mha_status mixer(const call *c, const mhai_place_attention *place,
                        const mhai_kept_attention *kept, int64_t layer, bool cross)
{
    const mhai_mix mix = mhai_transformer_mix(&c->t->desc, layer);
    mhai_mixer_back back = {
        .call = {.context = c->context, .t = c->t, .input = c->input, .a = c->a},
        .layer = layer,
        .parameters = c->out.parameters,
        .dheads = c->also,
        .drows = c->wide,
        .dgates = c->out.gates && mix.mixer ? mhai_nn_row(c->out.gates, layer) : NULL};
    back.call.input.outputs = NULL;
    if (!cross && (mix.gated || mix.mixer)) MHA_TRY(mhai_mixer_backward(&back));
    return cross || !mix.mixer ? attention(c, place, kept, layer, cross) : MHA_OK;
}

/* ---- latent attention ------------------------------------------------------------------------ */

/* Backpropagate dy [tokens,width] through the norm of a latent, to the leading elements of dx. */
static mha_status latent_norm(const call *c, const mha_layer_desc *l, int64_t weight,
                              const mha_tensor *x, const mha_tensor *dy, const mha_tensor *dx)
{
    const mha_tensor by =
        mhai_transformer_vector(mhai_transformer_numbers(c->t, weight), dy->shape[1]);
    const mha_tensor dby = mhai_transformer_vector(place_of(c, weight), dy->shape[1]);
    return mha_rms_norm_backward(c->context,
                                 &(mha_norm_gradients){.struct_size = sizeof(mha_norm_gradients),
                                                       .x = x,
                                                       .weight = &by,
                                                       .dy = dy,
                                                       .dx = dx,
                                                       .dweight = c->out.parameters ? &dby : NULL,
                                                       .epsilon = l->head_norm_epsilon});
}

/* The gradients of keys in c->wide, divided into those of W_kb's outputs and, summed over heads, of
 * the shared elements. */
static void split_keys(const call *c, mhai_mix mix, int64_t s, const mha_tensor *own,
                       const mha_tensor *shared)
{
    for (int64_t i = 0; i < own->shape[0]; i++) {
        const float *from = c->wide + i * mix.width + mix.at_k;
        for (int64_t k = 0; k < s; k++) {
            double sum = 0;
            for (int64_t h = 0; h < mix.k; h++) sum += (double)from[h * mix.D + k];
            mhai_nn_row(shared, i)[k] = (float)sum;
        }
        for (int64_t h = 0; h < mix.k; h++)
            memcpy(mhai_nn_row(own, i) + h * (mix.D - s), from + h * mix.D + s,
                   (size_t)(mix.D - s) * sizeof *from);
    }
}

/* Add to din the gradient through the queries in c->wide. */
static mha_status latent_queries(const call *c, const mha_layer_desc *l,
                                 const mhai_place_attention *place, const mhai_kept_attention *kept,
                                 const mha_tensor *dq, const mha_tensor *din)
{
    const int64_t rows = mhai_tokens(c->a), rq = l->query_latent_dim;
    const mha_tensor in = stream(c, kept->step.in);
    float *memory;
    if (rq == 0) return linear(c, &place->in, &in, dq, MHA_GRADIENT_ADD, din);
    MHA_TRY(take(c, rows, rq, &memory));
    const mha_tensor dlatent = mhai_transformer_rows(memory, rows, rq, rq);
    const mha_tensor latent = mhai_transformer_rows(kept->query_latent, rows, rq, rq);
    const mha_tensor down = mhai_transformer_rows(kept->query_down, rows, rq, rq);
    MHA_TRY(linear(c, &place->queries, &latent, dq, 0, &dlatent));
    MHA_TRY(latent_norm(c, l, place->query_norm, &down, &dlatent, &dlatent));
    return linear(c, &place->in, &in, &dlatent, MHA_GRADIENT_ADD, din);
}

/* Backpropagate from queries, keys and values in c->wide to the step's input. */
static mha_status latent(const call *c, const mhai_place_attention *place,
                         const mhai_kept_attention *kept, int64_t layer, const mha_tensor *din)
{
    const mha_layer_desc *l = &c->t->desc.layers[layer];
    const mhai_mix mix = mhai_transformer_mix(&c->t->desc, layer);
    const int64_t rows = mhai_tokens(c->a), r = l->latent_dim, wide = r + l->shared_dim;
    const int64_t own = place->keys.outputs;
    const mha_scratch_mark mark = mha_scratch_top(c->context);
    float *memory;
    MHA_TRY(take(c, rows, own + r + wide, &memory));
    const mha_tensor in = stream(c, kept->step.in);
    const mha_tensor dkeys = mhai_transformer_rows(memory, rows, own, own);
    const mha_tensor dlatent = mhai_transformer_rows(memory + rows * own, rows, r, r);
    const mha_tensor ddown = mhai_transformer_rows(memory + rows * (own + r), rows, wide, wide);
    mha_tensor dc = ddown, dshared = ddown;
    dc.shape[1] = r;
    dshared.data = (float *)ddown.data + r;
    const mha_tensor down = mhai_transformer_rows(kept->down, rows, r, wide);
    const mha_tensor made = mhai_transformer_rows(kept->latent, rows, r, r);
    const mha_tensor dq = mhai_transformer_rows(c->wide + mix.at_q, rows, mix.q * mix.D, mix.width);
    const mha_tensor dv = mhai_transformer_rows(c->wide + mix.at_v, rows, mix.out, mix.width);
    split_keys(c, mix, l->shared_dim, &dkeys, &dshared);
    MHA_TRY(linear(c, &place->keys, &made, &dkeys, 0, &dlatent));
    MHA_TRY(linear(c, &place->values, &made, &dv, MHA_GRADIENT_ADD, &dlatent));
    MHA_TRY(latent_norm(c, l, place->latent_norm, &down, &dlatent, &dc));
    MHA_TRY(linear(c, &place->down, &in, &ddown, 0, din));
    MHA_TRY(latent_queries(c, l, place, kept, &dq, din));
    mha_scratch_release(c->context, mark);
    return MHA_OK;
}

/* Add to din the gradient through the gates and decays in c->wide of Kimi delta attention. */
static mha_status ranked_gates(const call *c, const mhai_place_attention *place,
                               const mhai_kept_attention *kept, int64_t layer,
                               const mha_tensor *din)
{
    const mhai_mix mix = mhai_transformer_mix(&c->t->desc, layer);
    const int64_t rows = mhai_tokens(c->a), r = mix.rank;
    const mha_scratch_mark mark = mha_scratch_top(c->context);
    const mha_tensor in = stream(c, kept->step.in);
    float *memory;
    if (r == 0) return MHA_OK;
    MHA_TRY(take(c, rows, 2 * r, &memory));
    for (int i = 0; i < 2; i++) {
        const mhai_place_linear *by = i == 0 ? &place->gates : &place->decays;
        const float *from = c->wide + (i == 0 ? mix.gates : mix.decays);
        const mha_tensor x = mhai_transformer_rows(kept->down + i * r, rows, r, 2 * r);
        const mha_tensor dy = mhai_transformer_rows(from, rows, by->outputs, mix.width);
        const mha_tensor dx = mhai_transformer_rows(memory + i * r, rows, r, 2 * r);
        MHA_TRY(linear(c, by, &x, &dy, 0, &dx));
    }
    const mha_tensor down = mhai_transformer_rows(memory, rows, 2 * r, 2 * r);
    MHA_TRY(linear(c, &place->down, &in, &down, MHA_GRADIENT_ADD, din));
    mha_scratch_release(c->context, mark);
    return MHA_OK;
}

/* A layer without heads only adds a bias. */
static mha_status only_bias(const call *c, const mhai_place_attention *place)
{
    const int64_t width = c->t->desc.embed_dim, rows = mhai_tokens(c->a);
    float *bias = place->out.bias < 0 ? NULL : place_of(c, place->out.bias);
    for (int64_t k = 0; bias && k < width; k++) {
        double sum = 0;
        for (int64_t i = 0; i < rows; i++) sum += (double)c->dy[i * width + k];
        bias[k] += (float)sum;
    }
    return MHA_OK;
}

static mha_status attend(const call *c, const mhai_place_attention *place,
                         const mhai_kept_attention *kept, int64_t layer, bool cross)
{
    const int64_t rows = mhai_tokens(c->a);
    const bool heads_given = mhai_transformer_heads_of(&c->t->desc, layer, cross).q > 0;
    MHA_TRY(begin_step(c, &place->step, &kept->step));
    if (place->out.outputs == 0) return only_bias(c, place);
    mha_tensor dy = stream(c, c->dy), din = stream(c, c->din), in = stream(c, kept->step.in);
    mha_tensor heads =
        mhai_transformer_rows(kept->heads, rows, place->out.inputs, place->out.inputs);
    mha_tensor dheads = mhai_transformer_rows(c->also, rows, place->out.inputs, place->out.inputs);
    MHA_TRY(linear(c, &place->out, &heads, &dy, 0, &dheads));
    if (c->out.heads && !cross && heads_given) add_heads(c, kept->heads, c->also, layer);
    if (c->out.head_outputs && !cross && heads_given) add_outputs(c, c->also, layer);
    MHA_TRY(mixer(c, place, kept, layer, cross));
    if (cross) {
        const mha_tensor *m = c->input.memory, *dm = c->out.memory;
        const int64_t count = c->a->B * c->a->S, width = place->memory.inputs;
        mha_tensor memory = mhai_transformer_rows(m->data, count, width, m->stride[1]);
        mha_tensor dkv =
            mhai_transformer_rows(c->memory, count, place->memory.outputs, place->memory.outputs);
        mha_tensor dmemory = mhai_transformer_rows(dm ? dm->data : c->memory, count, width,
                                                   dm ? dm->stride[1] : width);
        MHA_TRY(linear(c, &place->memory, &memory, &dkv, MHA_GRADIENT_ADD, dm ? &dmemory : NULL));
    }
    mha_tensor dqkv = mhai_transformer_rows(c->wide, rows, place->in.outputs,
                                            cross ? place->in.outputs
                                                  : mhai_transformer_mix(&c->t->desc, layer).width);
    MHA_TRY(!cross && mhai_transformer_latent(&c->t->desc, layer)
                ? latent(c, place, kept, layer, &din)
                : linear(c, &place->in, &in, &dqkv, 0, &din));
    if (!cross) MHA_TRY(ranked_gates(c, place, kept, layer, &din));
    return end_step(c, &place->step, &kept->step);
}

/* Backpropagate from the first product of a gated layer, whose units are dact, to rows [2 F]. */
static mha_status gated(const call *c, int64_t F, const float *up, const mha_tensor *dact,
                        float *dup)
{
    const int64_t rows = mhai_tokens(c->a);
    const mha_tensor first = mhai_transformer_rows(up, rows, F, 2 * F);
    const mha_tensor second = mhai_transformer_rows(up + F, rows, F, 2 * F);
    const mha_tensor dfirst = mhai_transformer_rows(dup, rows, F, 2 * F);
    const mha_tensor dsecond = mhai_transformer_rows(dup + F, rows, F, 2 * F);
    if (c->t->desc.feed_forward == MHA_FEED_FORWARD_SWIGLU)
        return mha_swiglu_backward(c->context, &first, &second, dact, &dfirst, &dsecond);
    return mha_glu_backward(c->context, mhai_transformer_activation(c->t), &first, &second, dact,
                            &dfirst, &dsecond);
}

static mha_status feed_forward(const call *c, int64_t layer)
{
    const mhai_place_layer *place = &c->t->layers[layer];
    const mhai_kept_layer *kept = &c->a->layers[layer];
    const mha_transformer_desc *d = &c->t->desc;
    const int64_t rows = mhai_tokens(c->a), F = mhai_transformer_ff(d, layer);
    const int64_t wide = mhai_transformer_up(c->t, layer);
    MHA_TRY(begin_step(c, &place->ff, &kept->ff));
    mha_tensor dy = stream(c, c->dy), din = stream(c, c->din), in = stream(c, kept->ff.in);
    mha_tensor act = mhai_transformer_rows(kept->act, rows, F, F);
    mha_tensor dact = mhai_transformer_rows(c->also, rows, F, F);
    mha_tensor first = mhai_transformer_rows(kept->up, rows, F, wide);
    mha_tensor dfirst = mhai_transformer_rows(c->wide, rows, F, wide);
    MHA_TRY(linear(c, &place->down, &act, &dy, 0, &dact));
    MHA_TRY(mhai_transformer_gated(c->t)
                ? gated(c, F, kept->up, &dact, c->wide)
                : mha_activation_backward(c->context, mhai_transformer_activation(c->t), &first,
                                          &dact, &dfirst));
    mha_tensor dup = mhai_transformer_rows(c->wide, rows, wide, wide);
    MHA_TRY(linear(c, &place->up, &in, &dup, 0, &din));
    return end_step(c, &place->ff, &kept->ff);
}

/* From the gradient of p in c->wide to the layer's table and the first stream. */
static mha_status read_input(const call *c, int64_t layer)
{
    const mhai_place_input *place = &c->t->layers[layer].input;
    const mhai_kept_input *kept = &c->a->layers[layer].input;
    const int64_t rows = mhai_tokens(c->a), P = place->norm.width;
    const double unit = 1 / sqrt((double)c->t->desc.embed_dim), scale = sqrt((double)P / 2);
    float *dp = c->also;
    const mha_tensor ids = mha_tensor_contiguous(c->a->ids, MHA_I32, 1, &rows);
    const mha_tensor down = mhai_transformer_rows(dp, rows, P, P), base = stream(c, c->a->base),
                     dbase = stream(c, c->base);
    const mha_tensor table =
        mhai_transformer_rows(place_of(c, place->table), c->t->desc.vocab_size, P, P);
    for (int64_t i = 0; i < rows * P; i++)
        dp[i] = (float)(scale * (double)c->wide[(2 * (i / P) + 1) * P + i % P]);
    if (c->out.parameters) MHA_TRY(mha_embedding_backward(c->context, &ids, &down, &table));
    for (int64_t i = 0; i < rows * P; i++)
        dp[i] = (float)(sqrt(0.5) * (double)c->wide[(2 * (i / P) + 1) * P + i % P]);
    MHA_TRY(norm(c, &place->norm, kept->projected, dp, 0, dp));
    for (int64_t i = 0; i < rows * P; i++) dp[i] = (float)(unit * (double)dp[i]);
    return linear(c, &place->project, &base, &down, MHA_GRADIENT_ADD, &dbase);
}

static mha_status layer_input(const call *c, int64_t layer)
{
    const mhai_place_input *place = &c->t->layers[layer].input;
    const mhai_kept_input *kept = &c->a->layers[layer].input;
    const int64_t rows = mhai_tokens(c->a), P = place->norm.width;
    MHA_TRY(begin_step(c, &place->step, &kept->step));
    const mha_tensor dy = stream(c, c->dy), din = stream(c, c->din), in = stream(c, kept->step.in);
    const mha_tensor act = mhai_transformer_rows(kept->act, rows, P, P);
    const mha_tensor dact = mhai_transformer_rows(c->also, rows, P, P);
    const mha_tensor dgate = mhai_transformer_rows(c->wide, rows, P, 2 * P);
    MHA_TRY(linear(c, &place->out, &act, &dy, 0, &dact));
    MHA_TRY(gated(c, P, kept->up, &dact, c->wide));
    MHA_TRY(linear(c, &place->gate, &in, &dgate, 0, &din));
    MHA_TRY(end_step(c, &place->step, &kept->step));
    return read_input(c, layer);
}

/* The gradient of the logits before scale and softcap. For a softcap, the logits are recomputed in
 * scratch. */
static mha_status through_softcap(const call *c, const mha_tensor *last, mha_tensor *dlogits)
{
    const int64_t rows = dlogits->shape[0], width = dlogits->shape[1];
    const double cap = (double)c->t->desc.logit_softcap, scale = (double)c->t->desc.logit_scale;
    float *memory;
    if (!(cap > 0) && !(scale < 1) && !(scale > 1)) return MHA_OK;
    MHA_TRY(take(c, rows, width, &memory));
    mha_tensor logits = mhai_transformer_rows(memory, rows, width, width);
    if (cap > 0)
        MHA_TRY(mha_linear_forward(c->context, c->t->output.packed, MHA_ACTIVATION_NONE, last,
                                   &logits));
    for (int64_t i = 0; i < rows; i++) {
        const float *dy = mhai_nn_row(dlogits, i);
        float *x = mhai_nn_row(&logits, i);
        for (int64_t k = 0; k < width; k++) {
            const double flat = cap > 0 ? mhai_tanh(scale * (double)x[k] / cap) : 0;
            x[k] = (float)((double)dy[k] * scale * (1 - flat * flat));
        }
    }
    *dlogits = logits;
    return MHA_OK;
}

/* Backpropagate from the output to the stream after the last layer. */
static mha_status begin(const call *c, const mha_tensor *output_gradient)
{
    const int64_t rows = mhai_tokens(c->a);
    mha_tensor dlast = stream(c, c->dx), last = stream(c, c->a->last);
    if (mhai_transformer_has(c->t, MHA_TRANSFORMER_NO_OUTPUT)) {
        for (int64_t i = 0; i < rows; i++)
            memcpy(mhai_nn_row(&dlast, i),
                   (const float *)output_gradient->data + i / c->a->T * output_gradient->stride[0] +
                       i % c->a->T * output_gradient->stride[1],
                   (size_t)c->t->desc.embed_dim * sizeof(float));
    } else {
        mha_tensor dlogits = mhai_transformer_rows(
            output_gradient->data, rows, output_gradient->shape[2], output_gradient->stride[1]);
        MHA_TRY(through_softcap(c, &last, &dlogits));
        MHA_TRY(linear(c, &c->t->output, &last, &dlogits, 0, &dlast));
    }
    if (!mhai_transformer_pre_norm(c->t)) return MHA_OK;
    return norm(c, &c->t->norm, c->a->x, c->dx, 0, c->dx);
}

/* Add to the gradients of the embedding tables. */
static mha_status finish(const call *c)
{
    const mha_transformer *t = c->t;
    const int64_t rows = mhai_tokens(c->a), width = t->desc.token_dim;
    float *narrow = c->dx;
    if (!c->out.parameters) return MHA_OK;
    if (c->base)
        mhai_transformer_add(c->context, rows * t->desc.embed_dim, c->dx, 1, c->base, c->dx);
    if (t->project.outputs > 0) {
        const mha_tensor dy = stream(c, c->dx);
        const mha_tensor in =
            mhai_transformer_rows(c->a->narrow ? c->a->narrow : c->a->embedded, rows, width, width);
        MHA_TRY(take(c, rows, width, &narrow));
        const mha_tensor below = mhai_transformer_rows(narrow, rows, width, width);
        MHA_TRY(linear(c, &t->project, &in, &dy, 0, &below));
    }
    if (t->embed_norm.weight >= 0)
        MHA_TRY(norm(c, &t->embed_norm, c->a->embedded, narrow, 0, narrow));
    mha_tensor dx = mhai_transformer_rows(narrow, rows, width, width);
    if (t->features.outputs > 0) {
        const mha_tensor features = mhai_transformer_features(&c->input);
        MHA_TRY(linear(c, &t->features, &features, &dx, 0, NULL));
    }
    mha_tensor ids = mha_tensor_contiguous(c->a->ids, MHA_I32, 1, &rows);
    mha_tensor positions = mha_tensor_contiguous(c->a->positions, MHA_I32, 1, &rows);
    mha_tensor table;
    if (t->desc.type_count > 0) {
        mha_tensor types = mha_tensor_contiguous(c->a->types, MHA_I32, 1, &rows);
        table =
            mhai_transformer_rows(c->out.parameters + t->types, t->desc.type_count, width, width);
        MHA_TRY(mha_embedding_backward(c->context, &types, &dx, &table));
    }
    if (t->desc.positions == MHA_ENCODING_LEARNED) {
        table = mhai_transformer_rows(c->out.parameters + t->positions,
                                      mhai_position_rows(&t->desc), width, width);
        MHA_TRY(mha_embedding_backward(c->context, &positions, &dx, &table));
    }
    table = mhai_transformer_rows(c->out.parameters + t->tokens, t->desc.vocab_size, width, width);
    const float scale = t->desc.embed_scale;
    for (int64_t i = 0; (scale < 1 || scale > 1) && i < rows * width; i++) narrow[i] *= scale;
    return mha_embedding_backward(c->context, &ids, &dx, &table);
}

/* ---- the call ------------------------------------------------------------------------------ */

static mha_status check_batches(const char *name, const mha_tensor *x)
{
    MHA_TRY(mhai_tensor_check_last(name, x));
    if (x->shape[0] > 1 && x->stride[0] != x->shape[1] * x->stride[1])
        return mha_fail(MHA_ERR_STRIDE, "%s: sequences must follow each other without gaps", name);
    return MHA_OK;
}

static mha_status check_gates(const call *c, const char *name, const mha_tensor *gates,
                              const mha_tensor *given)
{
    if (!gates) return MHA_OK;
    if (!given)
        return mha_fail(MHA_ERR_ARGUMENT, "%s: is requested, but the input has no gates", name);
    return mhai_nn_out_matrix(name, gates, c->t->desc.num_layers, c->t->desc.num_heads);
}

static mha_status check_heads(const call *c)
{
    const mha_tensor *heads = c->out.heads;
    const int64_t shape[] = {c->t->desc.num_layers, c->a->B, c->t->desc.num_heads, c->a->T};
    const mha_tensor *outputs = c->out.head_outputs;
    const int64_t wide[] = {shape[0], shape[1], shape[3], mha_transformer_heads_width(&c->t->desc)};
    if (heads) MHA_TRY(mhai_tensor_check("heads", heads, MHA_F32, 4, shape));
    if (heads) MHA_TRY(mhai_tensor_check_output("heads", heads));
    if (!outputs) return MHA_OK;
    MHA_TRY(mhai_tensor_check("head_outputs", outputs, MHA_F32, 4, wide));
    return mhai_tensor_check_output("head_outputs", outputs);
}

static mha_status check_call(call *c, const mha_transformer_input *input,
                             const mha_tensor *output_gradient,
                             const mha_transformer_gradients *gradients)
{
    const mha_transformer_desc *d = &c->t->desc;
    const mha_activations *a = c->a;
    MHA_TRY(mhai_transformer_check("mha_transformer_backward", c->t, input, &c->input));
    if (a->transformer != c->t || a->B != c->input.tokens->shape[0] ||
        a->T != c->input.tokens->shape[1] || (c->input.memory && a->S != c->input.memory->shape[1]))
        return mha_fail(
            MHA_ERR_ARGUMENT,
            "activations: they hold another batch; call mha_transformer_forward() first");
    MHA_TRY(mhai_struct_copy("mha_transformer_gradients", &c->out, sizeof c->out,
                             offsetof(mha_transformer_gradients, head_outputs), gradients));
    MHA_TRY(mhai_check_reserved("mha_transformer_gradients", c->out.reserved));
    if (c->input.head_means)
        return mha_fail(
            MHA_ERR_UNSUPPORTED,
            "head_means are for forward calls only: the heads' own outputs are not kept");
    if (c->input.patch_count > 0 || c->input.stream || a->given)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "patches, first_layer and stream are for forward calls only: the values "
                        "that they replace are not kept");
    const int64_t shape[] = {a->B, a->T,
                             d->flags & MHA_TRANSFORMER_NO_OUTPUT ? d->embed_dim : d->vocab_size};
    MHA_TRY(mhai_tensor_check("output_gradient", output_gradient, MHA_F32, 3, shape));
    MHA_TRY(check_batches("output_gradient", output_gradient));
    MHA_TRY(check_gates(c, "gates", c->out.gates, c->input.gates));
    MHA_TRY(check_gates(c, "cross_gates", c->out.cross_gates, c->input.cross_gates));
    MHA_TRY(check_heads(c));
    if (!c->out.memory) return MHA_OK;
    if (!c->input.memory)
        return mha_fail(MHA_ERR_ARGUMENT, "memory: is requested, but the input has no memory");
    MHA_TRY(
        mhai_tensor_check("memory gradient", c->out.memory, MHA_F32, 3, c->input.memory->shape));
    MHA_TRY(mhai_tensor_check_output("memory gradient", c->out.memory));
    return check_batches("memory gradient", c->out.memory);
}

/* Room for the gradients of shared keys and values, and of the first stream. */
static mha_status take_lent(call *c)
{
    const mha_transformer_desc *d = &c->t->desc;
    const int64_t rows = mhai_tokens(c->a), E = d->embed_dim;
    int64_t most = 0;
    void *list;
    if (c->a->base) MHA_TRY(mha_scratch_zeros(c->context, rows * E, sizeof *c->base, &c->base));
    for (int64_t i = 0; i < d->num_layers; i++) {
        const mhai_mix mix = mhai_transformer_mix(d, i);
        if (!mhai_transformer_lends(d, i)) continue;
        if (!c->lent) {
            MHA_TRY(mha_scratch_zeros(c->context, d->num_layers, sizeof *c->lent, &list));
            c->lent = list;
        }
        const int64_t wide = 2 * mix.k * mix.D;
        MHA_TRY(mha_scratch_zeros(c->context, rows * wide, sizeof(float), &c->lent[i]));
        most = mhai_max_i64(most, wide);
    }
    return take(c, rows, most, &c->borrowed);
}

static mha_status take_scratch(call *c)
{
    const mha_transformer_desc *d = &c->t->desc;
    const int64_t rows = mhai_tokens(c->a), kv = 2 * d->kv_heads * d->head_dim;
    int64_t heads = d->num_heads * d->head_dim, buckets = 0, wide = heads;
    for (int64_t i = 0; i < d->num_layers; i++) {
        const mhai_mix mix = mhai_transformer_mix(d, i);
        heads = mhai_max_i64(heads, mhai_max_i64(mix.out, mhai_transformer_ff(d, i)));
        wide = mhai_max_i64(wide, mhai_max_i64(mix.width, mhai_transformer_up(c->t, i)));
        const int64_t P = d->layers ? d->layers[i].input_dim : 0;
        heads = mhai_max_i64(heads, P);
        wide = mhai_max_i64(wide, 2 * P);
    }
    MHA_TRY(take_lent(c));
    c->dx = c->dy = c->a->gradient;
    if (mhai_transformer_norms_branches(d) || d->flags & MHA_TRANSFORMER_PARALLEL || c->a->base ||
        d->residual_scale < 1 || d->residual_scale > 1)
        MHA_TRY(take(c, rows, d->embed_dim, &c->dy));
    MHA_TRY(take(c, rows, d->embed_dim, &c->din));
    MHA_TRY(take(c, rows, wide, &c->wide));
    MHA_TRY(take(c, rows, heads, &c->also));
    MHA_TRY(take(c, c->a->B * c->a->S, kv, &c->memory));
    for (int64_t i = 0; d->layers && i < d->num_layers; i++)
        buckets = mhai_max_i64(buckets, d->layers[i].t5_buckets);
    MHA_TRY(take(c, buckets, d->num_heads, &c->t5));
    MHA_TRY(take(c, 1, d->num_heads, &c->sinks));
    return take(c, 1, d->num_heads, &c->gates);
}

static mha_status backward(call *c, const mha_tensor *output_gradient)
{
    const mha_transformer_desc *d = &c->t->desc;
    if (mhai_tokens(c->a) == 0) return MHA_OK;
    MHA_TRY(take_scratch(c));
    MHA_TRY(begin(c, output_gradient));
    for (int64_t i = d->num_layers - 1; i >= 0; i--) {
        const mhai_place_layer *place = &c->t->layers[i];
        const mhai_kept_layer *kept = &c->a->layers[i];
        if (place->scale >= 0) {
            const float scale = *mhai_transformer_numbers(c->t, place->scale);
            for (int64_t k = 0; k < mhai_tokens(c->a) * d->embed_dim; k++) c->dx[k] *= scale;
        }
        if (mhai_transformer_has_input(d, i)) MHA_TRY(layer_input(c, i));
        if (d->flags & MHA_TRANSFORMER_PARALLEL) scale_stream(c); /* both parts add to one stream */
        if (mha_transformer_feeds(d, i)) MHA_TRY(feed_forward(c, i));
        if (d->flags & MHA_TRANSFORMER_CROSS)
            MHA_TRY(attend(c, &place->cross, &kept->cross, i, true));
        MHA_TRY(attend(c, &place->self, &kept->self, i, false));
    }
    return finish(c);
}

mha_status mha_transformer_backward(mha_context *context, const mha_transformer *transformer,
                                    const mha_transformer_input *input,
                                    mha_activations *activations, const mha_tensor *output_gradient,
                                    const mha_transformer_gradients *gradients)
{
    MHA_NEED("mha_transformer_backward", context, transformer, activations, gradients);
    if (transformer->source.compute != MHA_COMPUTE_F32)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_transformer_backward: compute %s is forward only; load the model with "
                        "MHA_COMPUTE_F32",
                        mha_compute_name(transformer->source.compute));
    if (transformer->ranks)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_transformer_backward: the layers of this transformer are spread over "
                        "ranks, which is forward only; to train on several ranks set "
                        "mha_trainer_desc.transport");
    MHA_TRY(mhai_transformer_trains("mha_transformer_backward", transformer));
    call c = {.context = context, .t = transformer, .a = activations};
    MHA_TRY(check_call(&c, input, output_gradient, gradients));
    mha_scratch_mark mark = mha_scratch_top(context);
    return mha_scratch_end(context, mark, backward(&c, output_gradient));
}
