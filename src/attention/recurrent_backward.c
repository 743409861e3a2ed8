/* The backward pass of a recurrent layer, block by block from the last to the first.
 *
 * A stage is a run of blocks. The states before all stages are stored. The states before single
 * blocks are stored for one stage at a time. This takes O(sqrt(T)) memory. */
#include "attention/recurrent_backward.h"
#include "base/checked.h"
#include "base/context.h"
#include "base/need.h"
#include "base/tensor.h"

#include <multihead/component.h>

static mhai_back_work carve(const mhai_back *x, void *memory, size_t *bytes)
{
    const int64_t D = x->call.sizes.D, wide = x->call.sizes.panels * MHAI_PANEL,
                  deep = mhai_round_up(D, MHAI_PANEL), state = mhai_back_state_floats(x);
    mhai_back_work w = {.x = mhai_recurrent_block_parts(&x->call, memory, bytes)};
    mhai_carver c = {memory, *bytes};
    w.states = mhai_carve(&c, mhai_times(mhai_ceil_div(x->blocks, x->stage), state), sizeof(float));
    w.stage = mhai_carve(&c, mhai_times(x->stage, state), sizeof(float));
    w.g = mhai_carve(&c, state, sizeof(float));
    w.y = mhai_carve(&c, MHAI_BACK_PAIR * wide, sizeof(float));
    w.u = mhai_carve(&c, MHAI_BLOCK * wide, sizeof(float));
    w.w = mhai_carve(&c, MHAI_BLOCK * wide, sizeof(float));
    w.du = mhai_carve(&c, MHAI_BLOCK * wide, sizeof(float));
    w.turned = mhai_carve(&c, wide * deep, sizeof(float));
    w.din = mhai_carve(&c, MHAI_BACK_PAIR * deep, sizeof(float));
    w.dout = mhai_carve(&c, MHAI_BLOCK * deep, sizeof(float));
    w.dpairs = mhai_carve(&c, (int64_t)MHAI_BACK_PAIR * MHAI_BLOCK, sizeof(float));
    w.keyed = mhai_carve(&c, MHAI_BACK_PAIR * deep, sizeof(float));
    w.row = mhai_carve(&c, mhai_max_i64(wide, deep), sizeof(float));
    w.slope = mhai_carve(&c, D, sizeof(double));
    w.far = mhai_carve(&c, D, sizeof(double));
    if (x->call.channels) w.decays = mhai_carve(&c, MHAI_BLOCK * D, sizeof(double));
    *bytes = c.used;
    return w;
}

/* ---- a head ---------------------------------------------------------------------------------- */

static float *state_element(const mha_tensor *x, int64_t b, int64_t h, int64_t d, int64_t c)
{
    return (float *)x->data + b * x->stride[0] + h * x->stride[1] + d * x->stride[2] +
           c * x->stride[3];
}

static void load_state(const mhai_back *x, const mha_tensor *from, int64_t b, int64_t h, float *s)
{
    const int64_t D = x->call.sizes.D;
    memset(s, 0, (size_t)mhai_back_state_floats(x) * sizeof *s);
    for (int64_t d = 0; from && d < D; d++)
        for (int64_t c = 0; c < x->call.sizes.Dv; c++)
            s[(c / MHAI_PANEL * D + d) * MHAI_PANEL + c % MHAI_PANEL] =
                *state_element(from, b, h, d, c);
}

static void write_state(const mhai_back *x, int64_t b, int64_t h, const float *g)
{
    const mhai_back_sink *to = &x->to[MHAI_BACK_STATE];
    const int64_t D = x->call.sizes.D;
    for (int64_t d = 0; to->wanted && d < D; d++)
        for (int64_t c = 0; c < x->call.sizes.Dv; c++)
            mhai_back_write(x, to, state_element(to->wanted, b, h, d, c),
                            (double)g[(c / MHAI_PANEL * D + d) * MHAI_PANEL + c % MHAI_PANEL]);
}

/* Write the gradients of tokens beyond a sequence's length. */
static void write_unused(const mhai_back_place *at)
{
    for (int i = 0; i < MHAI_BACK_STATE; i++) {
        const mhai_back_sink *to = &at->x->to[i];
        for (int64_t d = 0; to->wanted && d < to->each.shape[3]; d++)
            mhai_back_write(at->x, to, mhai_back_row(to, at, 0) + d * to->each.stride[3], 0);
    }
}

static void run_head(void *argument, int64_t item, int worker)
{
    const mhai_back *x = argument;
    size_t bytes;
    mhai_back_work w = carve(x, x->memory + (size_t)worker * x->worker_bytes, &bytes);
    mhai_back_place at = {.x = x, .w = &w, .b = item / x->call.H, .h = item % x->call.H};
    const int64_t state = mhai_back_state_floats(x), length = mhai_recurrent_length(&x->call, at.b),
                  blocks = mhai_ceil_div(length, MHAI_BLOCK);
    float *next = w.stage;
    load_state(x, x->initial, at.b, at.h, next);
    for (int64_t i = 0; i < blocks; i++) {
        float *s = i % x->stage ? w.stage : w.states + i / x->stage * state;
        if (i % x->stage == 0) memcpy(s, next, (size_t)state * sizeof *s);
        at.t = i * MHAI_BLOCK;
        if (i + 1 < blocks && i / x->stage < (blocks - 1) / x->stage)
            mhai_back_advance(&at, s, next);
    }
    load_state(x, x->state_gradient, at.b, at.h, w.g);
    for (int64_t end = blocks, begin; end > 0; end = begin) {
        begin = (end - 1) / x->stage * x->stage;
        memcpy(w.stage, w.states + begin / x->stage * state, (size_t)state * sizeof(float));
        for (int64_t i = begin; i + 1 < end; i++) {
            at.t = i * MHAI_BLOCK;
            mhai_back_advance(&at, w.stage + (i - begin) * state,
                              w.stage + (i - begin + 1) * state);
        }
        for (int64_t i = end - 1; i >= begin; i--) {
            at.t = i * MHAI_BLOCK;
            mhai_back_block(&at, w.stage + (i - begin) * state);
        }
    }
    write_state(x, at.b, at.h, w.g);
    for (at.t = length; at.t < x->call.T; at.t++) write_unused(&at);
}

/* ---- shared inputs --------------------------------------------------------------------------- */

/* Sum the heads that share head `item` of a gradient, in order. */
static void sum_element(const mhai_back *x, const mhai_back_sink *to, const int64_t *at,
                        const int64_t *times)
{
    double sum = 0;
    const mha_tensor *each = &to->each;
    for (int64_t b = at[0] * times[0]; b < (at[0] + 1) * times[0]; b++)
        for (int64_t h = at[1] * times[1]; h < (at[1] + 1) * times[1]; h++)
            for (int64_t t = at[2] * times[2]; t < (at[2] + 1) * times[2]; t++)
                for (int64_t d = at[3] * times[3]; d < (at[3] + 1) * times[3]; d++)
                    sum += (double)((float *)each->data)[b * each->stride[0] + h * each->stride[1] +
                                                         t * each->stride[2] + d];
    float *out = (float *)to->wanted->data;
    for (int i = 0; i < to->wanted->ndim; i++) out += at[i] * to->wanted->stride[i];
    *out = (float)(x->add ? (double)*out + sum : sum) + 0.0f;
}

typedef struct joining {
    const mhai_back *x;
    const mhai_back_sink *to;
} joining;

static void join_head(void *argument, int64_t item, int worker)
{
    (void)worker;
    const joining *j = argument;
    const mha_tensor *out = j->to->wanted, *each = &j->to->each;
    int64_t shape[4] = {1, 1, 1, 1}, times[4];
    for (int i = 0; i < out->ndim; i++) shape[i] = out->shape[i];
    for (int i = 0; i < 4; i++) times[i] = shape[i] ? each->shape[i] / shape[i] : 0;
    int64_t at[4] = {item / shape[1], item % shape[1], 0, 0};
    for (at[2] = 0; at[2] < shape[2]; at[2]++)
        for (at[3] = 0; at[3] < shape[3]; at[3]++) sum_element(j->x, j->to, at, times);
}

/* The destination of a gradient: the caller's tensor, or memory per head to be summed. */
static mha_status place_sink(mha_context *context, const mhai_back *x, int64_t width,
                             mhai_back_sink *to)
{
    const int64_t shape[4] = {x->call.B, x->call.H, x->call.T, width};
    const mha_tensor *out = to->wanted;
    void *memory;
    int64_t count = 1;
    if (!out) return MHA_OK;
    for (int i = 0; i < 4; i++) {
        const int64_t length = i < out->ndim ? out->shape[i] : 1;
        to->shared = to->shared || length != shape[i];
        to->each.shape[i] = shape[i];
        to->each.stride[i] = i < out->ndim ? out->stride[i] : 1;
        if (!mhai_mul_i64(count, shape[i], &count))
            return mha_fail(MHA_ERR_SIZE, "gradients of %lld heads do not fit",
                            (long long)x->call.H);
    }
    to->each.data = out->data;
    if (!to->shared) return MHA_OK;
    MHA_TRY(mha_scratch_alloc(context, count, sizeof(float), &memory));
    to->each = mha_tensor_contiguous(memory, MHA_F32, 4, shape);
    return MHA_OK;
}

/* ---- the call -------------------------------------------------------------------------------- */

static const char *const names[MHAI_BACK_MADE] = {
    "gradients.q",        "gradients.k",    "gradients.v",      "gradients.log_decay",
    "gradients.strength", "gradients.skip", "gradients.initial"};

static mha_status check_sink(const mhai_back *x, int which, const mha_tensor *given,
                             const mha_tensor *input)
{
    const mha_tensor *more[] = {&x->call.o, x->initial, x->state_gradient};
    static const char *const more_names[] = {"o_gradient", "initial", "state_gradient"};
    if (!given) return MHA_OK;
    if (!input) return mha_fail(MHA_ERR_ARGUMENT, "%s: the call has no such input", names[which]);
    MHA_TRY(mhai_tensor_check(names[which], given, MHA_F32, input->ndim, input->shape));
    if (which < MHAI_BACK_DECAY) MHA_TRY(mhai_tensor_check_last(names[which], given));
    MHA_TRY(mhai_recurrent_check_output(names[which], given, &x->call));
    for (int i = 0; i < 3; i++)
        MHA_TRY(mhai_tensor_check_disjoint(names[which], given, more_names[i], more[i]));
    for (int i = 0; i < which; i++)
        MHA_TRY(mhai_tensor_check_disjoint(names[which], given, names[i], x->to[i].wanted));
    return MHA_OK;
}

static mha_status check_gradients(const mha_recurrent_desc *desc,
                                  const mha_recurrent_gradients *given, mhai_back *x)
{
    mha_recurrent_gradients g;
    MHA_TRY(mhai_struct_copy("mha_recurrent_gradients", &g, sizeof g,
                             offsetof(mha_recurrent_gradients, skip), given));
    MHA_TRY(mhai_check_flags("mha_recurrent_gradients", g.flags, MHA_GRADIENTS_ACCUMULATE));
    x->add = g.flags & MHA_GRADIENTS_ACCUMULATE;
    const int64_t state[4] = {x->call.B, x->call.H, x->call.sizes.D, x->call.sizes.Dv};
    const mha_tensor *const states[] = {x->initial, g.state};
    for (int i = 0; i < 2; i++)
        if (states[i])
            MHA_TRY(
                mhai_tensor_check(i ? "gradients.state" : "initial", states[i], MHA_F32, 4, state));
    x->state_gradient = g.state;
    const mha_tensor *wanted[MHAI_BACK_MADE] = {g.q,        g.k,    g.v,      g.log_decay,
                                                g.strength, g.skip, g.initial};
    const mha_tensor *inputs[MHAI_BACK_MADE] = {&x->call.q,
                                                &x->call.k,
                                                &x->call.v,
                                                desc ? desc->log_decay : NULL,
                                                desc ? desc->strength : NULL,
                                                x->call.skip.ndim > 0 ? desc->skip : NULL,
                                                x->initial};
    for (int i = 0; i < MHAI_BACK_MADE; i++) {
        MHA_TRY(check_sink(x, i, wanted[i], inputs[i]));
        x->to[i].wanted = wanted[i];
    }
    return MHA_OK;
}

static mha_status run(mha_context *context, mhai_back *x)
{
    const mhai_recurrent *call = &x->call;
    const int64_t D = call->sizes.D;
    const int64_t width[MHAI_BACK_STATE] = {D, D, call->sizes.Dv, call->channels ? D : 1, 1, 1};
    x->blocks = mhai_ceil_div(call->T, MHAI_BLOCK);
    for (x->stage = 1; x->stage * x->stage < x->blocks;) x->stage++;
    carve(x, NULL, &x->worker_bytes);
    for (int i = 0; i < MHAI_BACK_STATE; i++) MHA_TRY(place_sink(context, x, width[i], &x->to[i]));
    MHA_TRY(mha_scratch_alloc(context, context->num_threads, x->worker_bytes, &x->memory));
    mha_parallel_for(context, call->B * call->H, run_head, x);
    for (int i = 0; i < MHAI_BACK_STATE; i++) {
        joining j = {x, &x->to[i]};
        if (!j.to->wanted || !j.to->shared) continue;
        mha_parallel_for(context, j.to->wanted->shape[0] * j.to->wanted->shape[1], join_head, &j);
    }
    return MHA_OK;
}

mha_status mha_recurrent_backward(mha_context *context, const mha_recurrent_desc *desc,
                                  const mha_tensor *q, const mha_tensor *k, const mha_tensor *v,
                                  const mha_tensor *initial, const mha_tensor *o_gradient,
                                  const mha_recurrent_gradients *gradients)
{
    mhai_back x = {.initial = initial};
    MHA_NEED("mha_recurrent_backward", context, q, k, v, o_gradient, gradients);
    x.kernels = mhai_kernels_for(context->isa);
    MHA_TRY(mhai_recurrent_check(desc, q, k, v, o_gradient, 0, &x.call));
    MHA_TRY(check_gradients(desc, gradients, &x));
    const mha_scratch_mark mark = mha_scratch_top(context);
    return mha_scratch_end(context, mark, run(context, &x));
}
