#include "support/small_model.h"
#include "support/expect.h"

#include "support/layers.h"
#include "support/shared_context.h"
#include "support/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void draw_desc(rng *r, uint32_t flags, mha_layer_desc *layers, mha_transformer_desc *d)
{
    *d = (mha_transformer_desc){.struct_size = sizeof *d,
                                .flags = flags,
                                .vocab_size = rng_between(r, 8, SMALL_WIDTH),
                                .max_length = 16,
                                .num_layers = rng_between(r, 1, SMALL_LAYERS),
                                .num_heads = rng_chance(r, 0.5) ? 2 : SMALL_HEADS,
                                .head_dim = rng_chance(r, 0.5) ? 4 : SMALL_SIZE,
                                .ff_dim = rng_chance(r, 0.2) ? 0 : rng_between(r, 1, 20),
                                .norm = (mha_norm)rng_between(r, 0, 2),
                                .positions = (mha_position_encoding)rng_between(r, 0, 3),
                                .feed_forward = (mha_feed_forward)rng_between(r, 0, 5)};
    d->embed_dim = 4 * rng_between(r, 2, 6);
    if (rng_chance(r, 0.4)) d->kv_heads = d->num_heads / 2;
    blocks_draw(r, d);
    if (d->norm && rng_chance(r, 0.3)) d->flags |= MHA_TRANSFORMER_EMBEDDING_NORM;
    if (rng_chance(r, 0.3)) d->residual_scale = 0.5f, d->logit_scale = 1.5f;
    layers_draw(r, d, layers);
    if (rng_chance(r, 0.5)) d->layers = layers;
}

static void draw_batch(small_model *m, rng *r)
{
    m->B = rng_between(r, 1, SMALL_B);
    m->T = rng_between(r, 2, SMALL_T);
    m->width = m->desc.flags & MHA_TRANSFORMER_NO_OUTPUT ? m->desc.embed_dim : m->desc.vocab_size;
    for (int64_t i = 0; i < m->B * m->T; i++)
        m->ids[i] = (int32_t)rng_between(r, 0, m->desc.vocab_size - 1);
    for (int64_t b = 0; b < m->B; b++) m->lengths[b] = rng_between(r, 1, m->T);
    m->tokens = mha_tensor_contiguous(m->ids, MHA_I32, 2, (int64_t[]){m->B, m->T});
    m->output =
        mha_tensor_contiguous(m->output_data, MHA_F32, 3, (int64_t[]){m->B, m->T, m->width});
    m->input = (mha_transformer_input){.struct_size = sizeof m->input, .tokens = &m->tokens};
    if (rng_chance(r, 0.5)) m->input.lengths = m->lengths;
}

mha_transformer *random_transformer(mha_context *context, rng *r, mha_transformer_desc *desc)
{
    mha_transformer *t = NULL;
    if (mha_transformer_create(context, desc, &t) != MHA_OK) fail_msg("%s", mha_error_detail());
    mha_transformer_describe(t, desc);
    const mha_transformer_init init = {
        .struct_size = sizeof init, .seed = rng_next(r), .embedding_std = 1, .position_std = 0.5};
    expect_ok(mha_transformer_initialise(context, t, &init));
    float *data = mha_transformer_data(t);
    for (int64_t i = 0; i < mha_transformer_size(t); i++) data[i] += 0.1f * rng_normal(r);
    expect_ok(mha_transformer_update(context, t));
    return t;
}

void expect_slope(mha_context *context, mha_transformer *t, const mha_tensor *tokens,
                  const mha_tensor *numbers, const mha_parameter *p, rng *r, float step,
                  double share, const float *gradient)
{
    const int64_t terms = numbers->shape[0] * numbers->shape[1] * numbers->shape[2];
    const float *factor = numbers->data;
    float *at = mha_transformer_data(t) + p->offset;
    float *before = calloc((size_t)(2 * p->count + terms), sizeof *before);
    float *signs = before + p->count, *out = signs + p->count;
    const mha_tensor all = mha_tensor_contiguous(out, MHA_F32, 3, numbers->shape);
    const mha_transformer_input input = {.struct_size = sizeof input, .tokens = tokens};
    double loss[2] = {0, 0}, given = 0, squares = 0, noise = 0;
    assert_non_null(before);
    for (int64_t i = 0; i < p->count; i++) {
        before[i] = at[i];
        signs[i] = rng_chance(r, 0.5) ? 1 : -1;
        given += (double)signs[i] * (double)gradient[i];
        squares += (double)gradient[i] * (double)gradient[i];
    }
    for (int k = 0; k < 2; k++) {
        for (int64_t i = 0; i < p->count; i++) at[i] = before[i] + (k ? step : -step) * signs[i];
        expect_ok(mha_transformer_update(context, t));
        expect_ok(mha_transformer_forward(context, t, &input, NULL, &all, NULL, NULL));
        for (int64_t i = 0; i < terms; i++) {
            const double term = (double)out[i] * (double)factor[i];
            loss[k] += term;
            noise += term * term;
        }
    }
    memcpy(at, before, (size_t)p->count * sizeof *at);
    expect_ok(mha_transformer_update(context, t));
    free(before);
    const double slope = (loss[1] - loss[0]) / (2 * (double)step);
    const double bound = share * sqrt(squares) + 0x1p-21 * sqrt(noise) / (double)step;
    if (!(squares > 0 && fabs(slope - given) <= bound))
        fail_msg("%s: slope %g, gradient %g of norm %g, bound %g", p->name, slope, given,
                 sqrt(squares), bound);
}

float *loss_gradient(mha_transformer *t, const mha_tensor *tokens, const mha_tensor *numbers)
{
    const size_t size = (size_t)mha_transformer_size(t);
    const int64_t rows = numbers->shape[0] * numbers->shape[1];
    float *gradient[2] = {calloc(size, sizeof(float)), calloc(size, sizeof(float))};
    float *out = calloc((size_t)(rows * numbers->shape[2]), sizeof *out);
    const mha_tensor all = mha_tensor_contiguous(out, MHA_F32, 3, numbers->shape);
    const mha_transformer_input input = {.struct_size = sizeof input, .tokens = tokens};
    assert_true(gradient[0] && gradient[1] && out);
    for (int k = 0; k < 2; k++) {
        mha_context *context = context_with(k ? 3 : 1);
        mha_activations *a = NULL;
        const mha_transformer_gradients into = {.struct_size = sizeof into,
                                                .parameters = gradient[k]};
        expect_ok(mha_activations_create(context, t, rows, 0, &a));
        expect_ok(mha_transformer_forward(context, t, &input, a, &all, NULL, NULL));
        expect_ok(mha_transformer_backward(context, t, &input, a, numbers, &into));
        mha_activations_destroy(a);
    }
    assert_memory_equal(gradient[0], gradient[1], size * sizeof(float));
    free(gradient[1]);
    free(out);
    return gradient[0];
}

mha_transformer *normal_transformer(mha_context *context, rng r, float deviation,
                                    const mha_transformer_desc *desc)
{
    mha_transformer *t = NULL;
    expect_ok(mha_transformer_create(context, desc, &t));
    float *data = mha_transformer_data(t);
    for (int64_t i = 0; i < mha_transformer_size(t); i++) data[i] = deviation * rng_normal(&r);
    expect_ok(mha_transformer_update(context, t));
    return t;
}

mha_tensor fixed_tokens(int32_t *ids, int64_t B, int64_t T, int64_t vocab_size)
{
    rng r = rng_make(6, 0);
    for (int64_t i = 0; i < B * T; i++) ids[i] = (int32_t)rng_between(&r, 0, vocab_size - 1);
    return mha_tensor_contiguous(ids, MHA_I32, 2, (const int64_t[]){B, T});
}

small_model *small_model_make(mha_context *context, rng *r, uint32_t flags)
{
    mha_layer_desc layers[SMALL_LAYERS];
    small_model *m = calloc(1, sizeof *m);
    assert_non_null(m);
    draw_desc(r, flags, layers, &m->desc);
    m->t = random_transformer(context, r, &m->desc);
    draw_batch(m, r);
    return m;
}

void small_model_free(small_model *m)
{
    mha_transformer_destroy(m->t);
    free(m);
}

void small_model_run(mha_context *context, small_model *m, mha_activations *a)
{
    if (mha_transformer_forward(context, m->t, &m->input, a, &m->output, NULL, NULL) != MHA_OK)
        fail_msg("%s", mha_error_detail());
}
