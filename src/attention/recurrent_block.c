/* Blocks of a recurrent layer: the terms of 32 tokens for the backward pass and the map. If the
 * tokens' decays are at most one, all decays here are at most one. */
#include "attention/recurrent.h"
#include "base/checked.h"
#include "base/convert.h"

#include <string.h>

void mhai_recurrent_product(const mhai_kernels *kernels, int64_t rows, int64_t block, mhai_gemm g)
{
    const mhai_gemm all = g;
    g.cols = g.panels * MHAI_PANEL;
    for (int64_t i = 0; i < rows && g.panels > 0; i += kernels->tile_rows)
        for (int64_t k = 0; k < all.inner; k += block) {
            g.rows = (int)mhai_min_i64(kernels->tile_rows, rows - i);
            g.inner = mhai_min_i64(block, all.inner - k);
            g.x = all.x + (all.transposed ? k * all.x_stride + i : i * all.x_stride + k);
            g.w = all.w + k * MHAI_PANEL;
            g.first = all.first && k == 0;
            g.out = all.out + i * all.out_stride;
            kernels->gemm_strip(&g);
        }
}

mhai_recurrent_block mhai_recurrent_block_parts(const mhai_recurrent *call, void *memory,
                                                size_t *bytes)
{
    const int64_t D = call->sizes.D, each = call->channels ? D : 1;
    mhai_carver c = {memory, 0};
    mhai_recurrent_block x = {.x = mhai_carve(&c, 2 * MHAI_BLOCK * D, sizeof(float))};
    x.in = mhai_carve(&c, 2 * MHAI_BLOCK * D, sizeof(float));
    x.out = mhai_carve(&c, MHAI_BLOCK * D, sizeof(float));
    x.pairs = mhai_carve(&c, (int64_t)2 * MHAI_BLOCK * MHAI_BLOCK, sizeof(float));
    x.panels = mhai_carve(&c, D * MHAI_PANEL, sizeof(float));
    x.decay = mhai_carve(&c, MHAI_BLOCK * each, sizeof(double));
    x.end = mhai_carve(&c, each, sizeof(double));
    x.since = mhai_carve(&c, D, sizeof(double));
    *bytes = c.used;
    return x;
}

static void load_rows(const mhai_recurrent *call, int64_t b, int64_t h, int64_t t, bool queries,
                      mhai_recurrent_block *x)
{
    const int64_t D = call->sizes.D;
    const size_t rest = (size_t)((MHAI_BLOCK - x->tokens) * D) * sizeof(float);
    float *keys = x->x + MHAI_BLOCK * D;
    memset(x->x + x->tokens * D, 0, rest);
    memset(keys + x->tokens * D, 0, rest);
    for (int64_t i = 0; i < MHAI_BLOCK; i++)
        x->strength[i] =
            i < x->tokens ? (float)mhai_recurrent_number(&call->strength, b, h, t + i, 1) : 0;
    for (int64_t i = 0; i < x->tokens; i++) {
        float *q = x->x + i * D;
        mhai_widen(call->k.dtype, mhai_recurrent_row(call, &call->k, b, h, t + i), D, keys + i * D);
        if (!queries) continue;
        mhai_widen(call->q.dtype, mhai_recurrent_row(call, &call->q, b, h, t + i), D, q);
        for (int64_t d = 0; d < D; d++) q[d] *= call->scale;
    }
}

/* Multiply a row by its decays: one, or one per channel. */
static void decay_row(int64_t D, bool channels, const float *x, const double *decay, float *out)
{
    const float one = (float)decay[0];
    if (channels)
        for (int64_t d = 0; d < D; d++) out[d] = x[d] * (float)decay[d];
    else
        for (int64_t d = 0; d < D; d++) out[d] = x[d] * one;
}

static void decay_rows(const mhai_recurrent *call, bool queries, mhai_recurrent_block *x)
{
    const int64_t D = call->sizes.D, each = call->channels ? D : 1;
    double *since = x->since;
    for (int64_t d = 0; d < each; d++) since[d] = 1;
    for (int64_t i = 0; i < MHAI_BLOCK; i++) {
        for (int64_t d = 0; d < each && i < x->tokens; d++) since[d] *= x->decay[i * each + d];
        for (int64_t row = queries ? i : MHAI_BLOCK + i; row < 2 * MHAI_BLOCK; row += MHAI_BLOCK)
            decay_row(D, call->channels, x->x + row * D, since, x->in + row * D);
    }
    memcpy(x->end, since, (size_t)each * sizeof *since);
    for (int64_t d = 0; d < each; d++) since[d] = 1;
    for (int64_t i = MHAI_BLOCK - 1; i >= 0; i--) {
        decay_row(D, call->channels, x->x + (MHAI_BLOCK + i) * D, since, x->out + i * D);
        for (int64_t d = 0; d < each && i < x->tokens; d++) since[d] *= x->decay[i * each + d];
    }
}

/* Multiply every stride-th row of x, starting at `first`, by the panel of keys. */
static void pair_rows(const mhai_recurrent *call, const mhai_kernels *kernels, int64_t first,
                      int64_t stride, int64_t rows, const mhai_recurrent_block *x)
{
    const int64_t D = call->sizes.D;
    mhai_recurrent_product(kernels, rows, MHAI_GEMM_BLOCK,
                           (mhai_gemm){.inner = D,
                                       .panels = 1,
                                       .x = x->x + first * D,
                                       .x_stride = stride * D,
                                       .w = x->panels,
                                       .first = true,
                                       .out = x->pairs + first * MHAI_BLOCK,
                                       .out_stride = stride * MHAI_BLOCK});
}

/* Decay products by factors of at most one, without quotients of accumulated decays. */
static void decay_pairs(const mhai_recurrent_block *x, int64_t begin)
{
    double weight[MHAI_BLOCK] = {0};
    for (int64_t i = 0; i < MHAI_BLOCK; i++) {
        for (int64_t j = 0; j < i && i < x->tokens; j++) weight[j] *= x->decay[i];
        weight[i] = 1;
        for (int64_t row = begin + i; row < 2 * MHAI_BLOCK; row += MHAI_BLOCK)
            for (int64_t j = 0; j < MHAI_BLOCK; j++) {
                float *p = x->pairs + row * MHAI_BLOCK + j;
                *p = j <= i ? *p * (float)weight[j] : 0; /* a later key may be NaN */
            }
    }
}

/* The same with decays per channel: the panel is decayed from row to row. */
static void channel_pairs(const mhai_recurrent *call, const mhai_kernels *kernels, int64_t begin,
                          const mhai_recurrent_block *x)
{
    const int64_t D = call->sizes.D, rows = begin ? 1 : 2;
    memset(x->panels, 0, (size_t)(D * MHAI_PANEL) * sizeof(float));
    for (int64_t i = 0; i < x->tokens; i++) {
        for (int64_t d = 0; d < D; d++) {
            const float a = (float)x->decay[i * D + d];
            float *keys = x->panels + d * MHAI_PANEL;
            for (int64_t j = 0; j < MHAI_PANEL; j++) keys[j] *= a;
            keys[i] = x->x[(MHAI_BLOCK + i) * D + d];
        }
        pair_rows(call, kernels, begin + i, MHAI_BLOCK, rows, x);
    }
}

void mhai_recurrent_block_load(const mhai_recurrent *call, const mhai_kernels *kernels, int64_t b,
                               int64_t h, int64_t t, bool queries, mhai_recurrent_block *x)
{
    const int64_t D = call->sizes.D, each = call->channels ? D : 1;
    const int64_t begin = queries ? 0 : MHAI_BLOCK;
    x->tokens = mhai_min_i64(MHAI_BLOCK, mhai_recurrent_length(call, b) - t);
    load_rows(call, b, h, t, queries, x);
    for (int64_t i = 0; i < x->tokens; i++)
        mhai_recurrent_decays(call, b, h, t + i, x->decay + i * each);
    decay_rows(call, queries, x);
    if (call->channels) {
        memset(x->pairs, 0, (size_t)(2 * MHAI_BLOCK * MHAI_BLOCK) * sizeof(float));
        channel_pairs(call, kernels, begin, x);
    } else {
        kernels->pack_panels(&(mhai_pack){.out = x->panels,
                                          .in = x->x + MHAI_BLOCK * D,
                                          .stride = D,
                                          .rows = MHAI_BLOCK,
                                          .cols = D});
        pair_rows(call, kernels, begin, 1, 2 * MHAI_BLOCK - begin, x);
        decay_pairs(x, begin);
    }
    for (int64_t i = 0; i < MHAI_BLOCK; i++) x->pairs[(MHAI_BLOCK + i) * MHAI_BLOCK + i] = 0;
}
