/* The backward call of a module: the forward steps in reverse, on rows [B * T, width].
 *
 * It is checked like the forward call, whose outputs include q, k, v, heads and lse. Only the
 * inputs of norms are recomputed. */
#include "base/checked.h"
#include "base/convert.h"
#include "base/need.h"
#include "base/tensor.h"
#include "module/module_parts.h"

#include <multihead/component.h>
#include <multihead/module_backward.h>

#include <string.h>

enum { MAX_PARAMETERS = 12, MAX_OUTPUTS = 3 + MAX_PARAMETERS, INPUTS = 12 };

/* The gradients of a projection; data NULL: not requested. */
typedef struct target {
    mha_tensor weight, bias;
} target;

typedef struct call {
    mhai_forward f;
    mha_module_gradients out;
    mha_attention_gradients wanted;
    mha_attention_backward_call attend; /* the backward call of attention */
    mha_tensor out_gradient;            /* [B,T,E]; query, key and value have the same axes */
    mha_tensor query, key, value;
    target projection[MHAI_PROJECTIONS];
    float *vector[MHAI_VECTORS];
    mha_tensor sinks;
    float *heads, *dheads, *dq, *dk, *dv; /* rows */
    float *weight;                        /* gradient of one projection */
    mha_tensor view_dheads, view_dq, view_dk, view_dv;
} call;

static mha_status take(call *c, int64_t rows, int64_t cols, float **memory)
{
    MHA_TRY(mha_scratch_alloc(c->f.context, rows * cols, sizeof(float), memory));
    return MHA_OK;
}

static mha_tensor rows_of(float *data, int64_t rows, int64_t cols)
{
    return mha_tensor_contiguous(data, MHA_F32, 2, (int64_t[]){rows, cols});
}

/* ---- checks -------------------------------------------------------------------------------- */

/* View a tensor with a batch axis, which is added if it is missing. */
static mha_status view_of(const call *c, const char *name, const mha_tensor *given, mha_dtype type,
                          const int64_t shape[3], mha_tensor *view)
{
    const int first = c->f.unbatched ? 1 : 0;
    MHA_TRY(mhai_tensor_check(name, given, type, 3 - first, shape + first));
    MHA_TRY(mhai_tensor_check_last(name, given));
    *view = *given;
    if (!first) return MHA_OK;
    *view = mha_tensor_contiguous(given->data, type, 3, shape);
    view->stride[1] = given->stride[0];
    view->stride[0] = shape[1] * given->stride[0];
    return MHA_OK;
}

/* Run the checks of the forward call. They ignore data pointers while they measure scratch. */
static mha_status check_call(call *c, const mha_module_call *given, mha_module_call *own)
{
    static const char *const names[] = {"query", "key", "value", "q", "k", "v", "heads", "lse"};
    mha_module_outputs kept;
    MHA_TRY(mhai_struct_copy("mha_module_call", own, sizeof *own, sizeof *own, given));
    if (own->cache)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_module_backward: a call with a cache has no "
                                          "gradients, leave it NULL");
    if (!own->outputs)
        return mha_fail(MHA_ERR_NULL, "mha_module_backward: outputs is NULL, expected q, k, v, "
                                      "heads and lse of the forward call");
    MHA_TRY(mhai_struct_copy("mha_module_outputs", &kept, sizeof kept,
                             offsetof(mha_module_outputs, attention), own->outputs));
    const mha_tensor *all[] = {own->query, own->key, own->value, kept.q,
                               kept.k,     kept.v,   kept.heads, kept.lse};
    for (int i = 0; i < 8; i++) {
        if (!all[i])
            return mha_fail(MHA_ERR_NULL, "%s: is NULL; the gradients require it", names[i]);
        if (i < 3) MHA_TRY(mhai_tensor_check_real(names[i], all[i]));
        MHA_TRY(mhai_tensor_check(names[i], all[i], i < 3 ? all[i]->dtype : MHA_F32, all[i]->ndim,
                                  NULL));
    }
    kept.probabilities = kept.average_probabilities = NULL;
    kept.attention = NULL;
    own->outputs = &kept;
    own->out = NULL;
    c->f.measuring = true;
    MHA_TRY(mhai_module_check(&c->f, own));
    c->f.measuring = false;
    own->outputs = NULL;
    c->f.at.q = c->f.each[MHAI_OUT_Q], c->f.at.k = c->f.each[MHAI_OUT_K],
    c->f.at.v = c->f.each[MHAI_OUT_V];
    c->f.at.heads = c->f.each[MHAI_OUT_HEADS], c->f.lse = c->f.each[MHAI_OUT_LSE];
    return MHA_OK;
}

/* Divide the gradient of a parameter among the projections that it contains. */
static mha_status read_parameter(call *c, int64_t index, const mha_tensor *gradient)
{
    const mha_module *module = c->f.module;
    mha_module_parameter p;
    mhai_module_place place;
    if (!mha_module_parameter_at(module, index, &p) || !mhai_module_place_at(module, index, &place))
        return mha_fail(MHA_ERR_ARGUMENT, "parameters: this module has no number %lld",
                        (long long)index);
    if (!gradient) return MHA_OK;
    MHA_TRY(mhai_tensor_check(p.name, gradient, MHA_F32, p.ndim, p.shape));
    MHA_TRY(mhai_tensor_check_last(p.name, gradient));
    if (place.vector) {
        c->vector[place.first] = gradient->data;
        return MHA_OK;
    }
    int64_t row = 0;
    for (int i = place.first; i < place.first + place.count; i++) {
        mha_tensor *to = place.weight ? &c->projection[i].weight : &c->projection[i].bias;
        *to = *gradient;
        to->shape[0] = module->projection[i]->outputs;
        to->data = (float *)gradient->data + row * gradient->stride[0];
        row += to->shape[0];
    }
    return MHA_OK;
}

/* Check that outputs overlap neither inputs nor each other. Gradients of inputs may be the same
 * tensor if they are accumulated. */
static mha_status check_overlap(const call *c, const mha_module_call *own)
{
    const mha_tensor *outputs[MAX_OUTPUTS] = {c->out.query, c->out.key, c->out.value};
    const mha_tensor *inputs[INPUTS] = {own->query,
                                        own->key,
                                        own->value,
                                        &c->out_gradient,
                                        &c->f.at.q,
                                        &c->f.at.k,
                                        &c->f.at.v,
                                        &c->f.at.heads,
                                        &c->f.lse,
                                        c->wanted.lse_gradient,
                                        c->wanted.probabilities_gradient,
                                        c->wanted.average_probabilities_gradient};
    const bool added = c->out.flags & MHA_GRADIENT_ADD;
    for (int64_t i = 0; i < c->out.parameters_count; i++) outputs[3 + i] = c->out.parameters[i];
    for (int64_t i = 0; i < 3 + c->out.parameters_count; i++) {
        if (!outputs[i]) continue;
        MHA_TRY(mhai_tensor_check_output("gradient", outputs[i]));
        for (int j = 0; j < INPUTS; j++)
            if (inputs[j])
                MHA_TRY(mhai_tensor_check_disjoint("gradient", outputs[i], "an input", inputs[j]));
        for (int64_t j = 0; j < i; j++)
            if (!(added && i < 3 && outputs[j] && outputs[j]->data == outputs[i]->data))
                MHA_TRY(mhai_tensor_check_disjoint("gradient", outputs[i], "another gradient",
                                                   outputs[j]));
    }
    return MHA_OK;
}

/* Check the gradients of attention's outputs. Attention itself checks their shapes. */
static mha_status check_loss(const call *c)
{
    const mha_attention_gradients *w = &c->wanted;
    const mha_tensor *all[] = {w->lse_gradient, w->probabilities_gradient,
                               w->average_probabilities_gradient};
    static const char *const names[] = {"lse_gradient", "probabilities_gradient",
                                        "average_probabilities_gradient"};
    for (int i = 0; i < 3; i++)
        if (all[i]) MHA_TRY(mhai_tensor_check(names[i], all[i], MHA_F32, all[i]->ndim, NULL));
    if ((all[1] || all[2]) &&
        (c->f.module->desc.flags & (MHA_MODULE_BIAS_KV | MHA_MODULE_ZERO_ATTN)))
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_module_backward: gradients of probabilities do "
                                             "not support the columns of bias_k and of the zeros");
    return MHA_OK;
}

static mha_status read_attention(call *c)
{
    const uint32_t flags = c->f.module->desc.flags;
    mha_attention_gradients *w = &c->wanted;
    *w = (mha_attention_gradients){.struct_size = sizeof *w};
    if (c->out.attention)
        MHA_TRY(mhai_struct_copy("mha_attention_gradients", w, sizeof *w,
                                 offsetof(mha_attention_gradients, lse_gradient),
                                 c->out.attention));
    w->struct_size = sizeof *w;
    if (w->q || w->k || w->v)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_module_gradients: q, k and v of attention are the "
                                          "module's own, leave them NULL");
    if (w->sink_logits && (flags & MHA_MODULE_SINKS))
        return mha_fail(MHA_ERR_ARGUMENT, "sink_logits: the module has its own sinks; request the "
                                          "gradient of the parameter sinks");
    if ((w->gates || w->scale) && (flags & MHA_MODULE_BIAS_KV))
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_module_backward: gradients of gates and scale do not support bias_k");
    return check_loss(c);
}

static mha_status read_gradients(call *c, const mha_tensor *out_gradient,
                                 const mha_module_gradients *given)
{
    const mha_module_desc *d = &c->f.module->desc;
    const int64_t B = c->f.B, T = c->f.T, S = c->f.S;
    MHA_TRY(mhai_struct_copy("mha_module_gradients", &c->out, sizeof c->out, sizeof c->out, given));
    MHA_TRY(mhai_check_flags("mha_module_gradients", c->out.flags, MHA_GRADIENT_ADD));
    if ((d->flags & MHA_MODULE_QK_NORM) && d->qk_norm != MHA_QK_NORM_RMS)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_module_backward: MHA_QK_NORM_L2 has no gradient; use MHA_QK_NORM_RMS");
    MHA_TRY(mhai_check_range("parameters_count", c->out.parameters_count, 0, MAX_PARAMETERS));
    if (c->out.parameters_count > 0 && !c->out.parameters)
        return mha_fail(MHA_ERR_NULL, "mha_module_gradients: parameters is NULL");
    MHA_TRY(mhai_tensor_check_real("out_gradient", out_gradient));
    MHA_TRY(view_of(c, "out_gradient", out_gradient, out_gradient->dtype,
                    (int64_t[]){B, T, d->embed_dim}, &c->out_gradient));
    if (c->out.query)
        MHA_TRY(view_of(c, "query gradient", c->out.query, MHA_F32, (int64_t[]){B, T, d->embed_dim},
                        &c->query));
    if (c->out.key)
        MHA_TRY(view_of(c, "key gradient", c->out.key, MHA_F32, (int64_t[]){B, S, d->key_dim},
                        &c->key));
    if (c->out.value)
        MHA_TRY(view_of(c, "value gradient", c->out.value, MHA_F32, (int64_t[]){B, S, d->value_dim},
                        &c->value));
    for (int64_t i = 0; i < c->out.parameters_count; i++)
        MHA_TRY(read_parameter(c, i, c->out.parameters[i]));
    return read_attention(c);
}

/* ---- scratch ------------------------------------------------------------------------------- */

static mha_status take_rows(call *c)
{
    const mha_module_desc *d = &c->f.module->desc;
    const int64_t B = c->f.B, T = c->f.T, S = c->f.S, H = d->num_heads, Hk = d->kv_heads;
    int64_t largest = 0;
    for (int i = 0; i < MHAI_PROJECTIONS; i++)
        largest = mhai_max_i64(largest, c->f.module->projection[i]->inputs *
                                            c->f.module->projection[i]->outputs);
    MHA_TRY(take(c, B * T, H * d->value_head_dim, &c->heads));
    MHA_TRY(take(c, B * T, H * d->value_head_dim, &c->dheads));
    MHA_TRY(take(c, B * T, H * d->head_dim, &c->dq));
    MHA_TRY(take(c, B * S, Hk * d->head_dim, &c->dk));
    MHA_TRY(take(c, B * S, Hk * d->value_head_dim, &c->dv));
    MHA_TRY(take(c, 1, largest, &c->weight));
    c->view_dheads = mha_tensor_bthd(c->dheads, B, T, H, d->value_head_dim);
    c->view_dq = mha_tensor_bthd(c->dq, B, T, H, d->head_dim);
    c->view_dk = mha_tensor_bthd(c->dk, B, S, Hk, d->head_dim);
    c->view_dv = mha_tensor_bthd(c->dv, B, S, Hk, d->value_head_dim);
    return MHA_OK;
}

/* Set the module's sinks, and the tensors to which attention writes its gradients. */
static mha_status prepare_attention(call *c)
{
    const mha_module *module = c->f.module;
    const int64_t H = module->desc.num_heads;
    mha_attention_gradients *w = &c->wanted;
    w->q = &c->view_dq, w->k = &c->view_dk, w->v = &c->view_dv;
    if (w->flags & MHA_GRADIENTS_ACCUMULATE) { /* only the caller's tensors accumulate, so clear
                                                * these */
        memset(c->dq, 0, (size_t)(c->f.B * c->f.T * H * module->desc.head_dim) * sizeof(float));
        memset(c->dk, 0,
               (size_t)(c->f.B * c->f.S * module->projection[MHAI_K]->outputs) * sizeof(float));
        memset(c->dv, 0,
               (size_t)(c->f.B * c->f.S * module->projection[MHAI_V]->outputs) * sizeof(float));
    }
    if (module->desc.flags & MHA_MODULE_SINKS) {
        float *memory;
        c->f.sinks = mha_tensor_contiguous(module->vector[MHAI_SINKS], MHA_F32, 1, &H);
        c->f.at.desc.sink_logits = &c->f.sinks;
        MHA_TRY(take(c, 1, H, &memory));
        memset(memory, 0, (size_t)H * sizeof(float));
        c->sinks = mha_tensor_contiguous(memory, MHA_F32, 1, &H);
        w->sink_logits = &c->sinks;
    }
    c->attend = (mha_attention_backward_call){.struct_size = sizeof c->attend,
                                              .attention = &c->f.at.desc,
                                              .q = &c->f.at.q,
                                              .k = &c->f.at.k,
                                              .v = &c->f.at.v,
                                              .o = &c->f.at.heads,
                                              .lse = &c->f.lse,
                                              .o_gradient = &c->view_dheads,
                                              .gradients = w};
    mha_attention_plan plan;
    return mha_attention_backward_explain(c->f.context, &c->attend, &plan);
}

/* ---- steps --------------------------------------------------------------------------------- */

static void *row_at(const mha_tensor *x, int64_t row) /* row of a tensor [B,L,width] */
{
    const int64_t at = row / x->shape[1] * x->stride[0] + row % x->shape[1] * x->stride[1];
    return (char *)x->data + at * (int64_t)mha_dtype_size(x->dtype);
}

static bool one_run(const mha_tensor *x)
{
    return x->stride[1] >= x->shape[2] &&
           (x->shape[0] <= 1 || x->stride[0] == x->shape[1] * x->stride[1]);
}

/* A tensor [B,L,width] as f32 rows: in place, or copied to scratch. */
static mha_status read_rows(call *c, const mha_tensor *x, mha_tensor *rows)
{
    const int64_t count = x->shape[0] * x->shape[1], width = x->shape[2];
    *rows = rows_of(x->data, count, width);
    rows->stride[0] = x->stride[1];
    if (x->dtype == MHA_F32 && one_run(x)) return MHA_OK;
    float *copy;
    MHA_TRY(take(c, count, width, &copy));
    for (int64_t i = 0; i < count; i++) mhai_widen(x->dtype, row_at(x, i), width, copy + i * width);
    *rows = rows_of(copy, count, width);
    return MHA_OK;
}

/* Compute the gradients of y = x W^T + b from dy [rows, outputs]. dx NULL: not requested. */
static mha_status linear(call *c, int projection, const mha_tensor *x, const mha_tensor *dy,
                         uint32_t flags, const mha_tensor *dx)
{
    const mha_linear *layer = c->f.module->projection[projection];
    const target *to = &c->projection[projection];
    mha_tensor weight = rows_of(c->weight, layer->outputs, layer->inputs);
    if (layer->lent.data && layer->lent.dtype == MHA_F32)
        weight = layer->lent;
    else if (dx)
        mhai_linear_get_weight(layer, &weight, 0);
    return mha_linear_backward(
        c->f.context, &(mha_linear_gradients){.struct_size = sizeof(mha_linear_gradients),
                                              .flags = flags,
                                              .weight = &weight,
                                              .x = x,
                                              .dy = dy,
                                              .dx = dx,
                                              .dweight = to->weight.data ? &to->weight : NULL,
                                              .dbias = to->bias.data ? &to->bias : NULL});
}

/* Backpropagate through an input projection. */
static mha_status project(call *c, int projection, const mha_tensor *x, float *dy,
                          const mha_tensor *dx)
{
    const int64_t rows = x->shape[0] * x->shape[1];
    const mha_tensor upper = rows_of(dy, rows, c->f.module->projection[projection]->outputs);
    const bool added = c->out.flags & MHA_GRADIENT_ADD;
    mha_tensor in, lower;
    mha_scratch_mark mark = mha_scratch_top(c->f.context);
    MHA_TRY(read_rows(c, x, &in));
    if (!dx->data || one_run(dx)) {
        lower = rows_of(dx->data, rows, x->shape[2]);
        lower.stride[0] = dx->stride[1];
        MHA_TRY(linear(c, projection, &in, &upper, added ? MHA_GRADIENT_ADD : 0,
                       dx->data ? &lower : NULL));
    } else {
        float *memory;
        MHA_TRY(take(c, rows, x->shape[2], &memory));
        lower = rows_of(memory, rows, x->shape[2]);
        MHA_TRY(linear(c, projection, &in, &upper, 0, &lower));
        for (int64_t i = 0; i < rows; i++) {
            float *to = row_at(dx, i);
            const float *from = memory + i * x->shape[2];
            for (int64_t j = 0; j < x->shape[2]; j++) to[j] = added ? to[j] + from[j] : from[j];
        }
    }
    mha_scratch_release(c->f.context, mark);
    return MHA_OK;
}

/* Project q or k again, to get the input of its norm. */
static mha_status norm_input(call *c, int projection, const mha_tensor *x, const mha_tensor *like,
                             mha_tensor *view)
{
    const mha_linear *layer = c->f.module->projection[projection];
    const int64_t rows = x->shape[0] * x->shape[1];
    float *memory;
    mha_tensor in;
    MHA_TRY(read_rows(c, x, &in));
    MHA_TRY(take(c, rows, layer->outputs, &memory));
    MHA_TRY(
        mhai_linear_run(c->f.context, layer, in.data, in.stride[0], rows, memory, layer->outputs));
    *view = *like;
    view->data = memory;
    return MHA_OK;
}

/* Backpropagate through rotation and norms of q and k. */
static mha_status position(call *c)
{
    mha_tensor q, k;
    const mha_scratch_mark mark = mha_scratch_top(c->f.context);
    if (c->f.at.q_norm) {
        MHA_TRY(norm_input(c, MHAI_Q, &c->f.query, &c->view_dq, &q));
        MHA_TRY(norm_input(c, MHAI_K, &c->f.key, &c->view_dk, &k));
    }
    MHA_TRY(mhai_attend_position_backward(&c->f.at, &c->view_dq, &c->view_dk,
                                          &(mhai_attend_norm){&q, c->vector[MHAI_Q_NORM]},
                                          &(mhai_attend_norm){&k, c->vector[MHAI_K_NORM]}));
    mha_scratch_release(c->f.context, mark);
    return MHA_OK;
}

/* Backpropagate from out to the heads. */
static mha_status mix(call *c)
{
    const mhai_forward *f = &c->f;
    const int64_t rows = f->B * f->T, width = f->module->projection[MHAI_O]->inputs;
    const int64_t Dv = f->module->desc.value_head_dim;
    for (int64_t i = 0; i < rows; i++) {
        mhai_module_row r = {.b = i / f->T, .t = i % f->T};
        for (; r.h < f->module->desc.num_heads; r.h++)
            memcpy(c->heads + i * width + r.h * Dv, mhai_module_row_of(&f->at.heads, &r),
                   (size_t)Dv * sizeof(float));
    }
    const mha_tensor heads = rows_of(c->heads, rows, width);
    const mha_tensor dheads = rows_of(c->dheads, rows, width);
    mha_tensor upper;
    mha_scratch_mark mark = mha_scratch_top(f->context);
    MHA_TRY(read_rows(c, &c->out_gradient, &upper));
    MHA_TRY(linear(c, MHAI_O, &heads, &upper, 0, &dheads));
    mha_scratch_release(f->context, mark);
    return MHA_OK;
}

static mha_status compute(call *c)
{
    mhai_forward *f = &c->f;
    MHA_TRY(mix(c));
    MHA_TRY(mha_attention_backward(f->context, &c->attend));
    MHA_TRY(mhai_module_extra_backward(f, &c->view_dheads, c->wanted.lse_gradient, &c->view_dq,
                                       c->vector[MHAI_BIAS_K], c->vector[MHAI_BIAS_V]));
    float *sinks = c->vector[MHAI_SINKS];
    for (int64_t h = 0; sinks && h < f->module->desc.num_heads; h++)
        sinks[h] += ((const float *)c->sinks.data)[h];
    MHA_TRY(position(c));
    MHA_TRY(project(c, MHAI_Q, &f->query, c->dq, &c->query));
    MHA_TRY(project(c, MHAI_K, &f->key, c->dk, &c->key));
    return project(c, MHAI_V, &f->value, c->dv, &c->value);
}

static mha_status run(call *c, const mha_module_call *given, const mha_tensor *out_gradient,
                      const mha_module_gradients *gradients)
{
    mha_module_call own;
    MHA_TRY(check_call(c, given, &own));
    MHA_TRY(read_gradients(c, out_gradient, gradients));
    MHA_TRY(check_overlap(c, &own));
    MHA_TRY(mhai_module_position_prepare(&c->f, &own));
    MHA_TRY(take_rows(c));
    MHA_TRY(prepare_attention(c));
    return compute(c);
}

mha_status mha_module_backward(mha_context *context, const mha_module *module,
                               const mha_module_call *given, const mha_tensor *out_gradient,
                               const mha_module_gradients *gradients)
{
    MHA_NEED_AS("mha_module_backward", "context, module, call, out_gradient, gradients", context,
                module, given, out_gradient, gradients);
    call c = {.f = {.context = context, .module = module}};
    mha_scratch_mark mark = mha_scratch_top(context);
    return mha_scratch_end(context, mark, run(&c, given, out_gradient, gradients));
}
