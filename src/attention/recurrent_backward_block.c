/* A block in the backward pass of a recurrent layer (recurrent.h has the formulas of blocks). With
 * G the gradient with respect to S' and Y = (dO; -dW):
 *
 *   dU    = pairs_q^T dO + out G     dW = diag(strength) (dU + pairs_k^T (-dW)), from the last row
 *   din   = Y S^T     dout = U G^T        dpairs = Y U^T
 *   G     = diag(end) G + in^T Y
 *
 * A decay enters `in`, the pairs (through the earlier key) and `end`. The gradient of its logarithm is the sum of
 * these terms. Token i adds the terms with the factor a_i: later rows from S, earlier keys to S', S to S', and pairs
 * around i. A difference of sums would keep the rounding errors of terms without the factor, which are larger by
 * 1 / a_i. */
#include "attention/recurrent_backward.h"
#include "base/checked.h"
#include "base/convert.h"

static void product(const mhai_back_place *at, int64_t rows, mhai_gemm g)
{
    mhai_recurrent_product(at->x->kernels, rows, MHAI_GEMM_BLOCK, g);
}

/* Store a row of values in panels of `rows` rows. */
static void put_row(const float *row, int64_t wide, int64_t rows, int64_t i, float *panels)
{
    for (int64_t c = 0; c < wide; c += MHAI_PANEL)
        memcpy(panels + (c * rows) + i * MHAI_PANEL, row + c, MHAI_PANEL * sizeof *row);
}

/* out += a row of factors times the rows of panels. */
static void add_rows(const mhai_back_place *at, const float *factors, int64_t stride, int64_t count,
                     const float *panels, int64_t rows, float *out)
{
    const int64_t wide = at->x->call.sizes.panels * MHAI_PANEL;
    product(at, 1,
            (mhai_gemm){.inner = count,
                        .panels = at->x->call.sizes.panels,
                        .x = factors,
                        .x_stride = stride,
                        .transposed = true,
                        .w = panels,
                        .panel_stride = rows * MHAI_PANEL,
                        .out = out,
                        .out_stride = wide});
}

static void read_row(const mhai_back_place *at, const mha_tensor *x, int64_t i, float *row)
{
    const int64_t Dv = at->x->call.sizes.Dv, wide = at->x->call.sizes.panels * MHAI_PANEL;
    memset(row + Dv, 0, (size_t)(wide - Dv) * sizeof *row);
    mhai_widen(x->dtype, mhai_recurrent_row(&at->x->call, x, at->b, at->h, at->t + i), Dv, row);
}

/* Load the block, and compute W and U from the state before it. */
static void write_block(const mhai_back_place *at, bool queries, const float *s)
{
    const mhai_recurrent *call = &at->x->call;
    mhai_back_work *w = at->w;
    const mhai_recurrent_block *block = &w->x;
    const int64_t D = call->sizes.D, wide = call->sizes.panels * MHAI_PANEL;
    mhai_recurrent_block_load(call, at->x->kernels, at->b, at->h, at->t, queries, &w->x);
    if (call->delta)
        product(at, MHAI_BLOCK,
                (mhai_gemm){.inner = D,
                            .panels = call->sizes.panels,
                            .x = block->in + MHAI_BLOCK * D,
                            .x_stride = D,
                            .w = s,
                            .panel_stride = D * MHAI_PANEL,
                            .first = true,
                            .out = w->w,
                            .out_stride = wide});
    memset(w->u, 0, (size_t)(MHAI_BLOCK * wide) * sizeof(float));
    for (int64_t i = 0; i < block->tokens; i++) {
        float *row = w->w + i * wide;
        if (call->delta && i > 0)
            add_rows(at, block->pairs + (MHAI_BLOCK + i) * MHAI_BLOCK, 1, i, w->u, MHAI_BLOCK, row);
        read_row(at, &call->v, i, w->row);
        for (int64_t c = 0; c < wide; c++) {
            row[c] = call->delta ? w->row[c] - row[c] : w->row[c];
            w->row[c] = block->strength[i] * row[c];
        }
        put_row(w->row, wide, MHAI_BLOCK, i, w->u);
    }
}

/* out = diag(end) s. */
static void decay_state(const mhai_back *x, const double *end, const float *s, float *out)
{
    const int64_t D = x->call.sizes.D;
    for (int64_t i = 0; i < x->call.sizes.panels * D; i++) {
        const float a = (float)end[x->call.channels ? i % D : 0];
        for (int64_t c = 0; c < MHAI_PANEL; c++)
            out[i * MHAI_PANEL + c] = a * s[i * MHAI_PANEL + c];
    }
}

/* s += x^T rows, for x [count][D] and rows in panels. */
static void join_rows(const mhai_back_place *at, const float *x, int64_t count, const float *rows,
                      int64_t panel_rows, float *s)
{
    const int64_t D = at->x->call.sizes.D;
    for (int64_t p = 0; p < at->x->call.sizes.panels; p++)
        product(at, D,
                (mhai_gemm){.inner = count,
                            .panels = 1,
                            .x = x,
                            .x_stride = D,
                            .transposed = true,
                            .w = rows + p * panel_rows * MHAI_PANEL,
                            .out = s + p * D * MHAI_PANEL,
                            .out_stride = MHAI_PANEL});
}

void mhai_back_advance(const mhai_back_place *at, const float *s, float *next)
{
    write_block(at, false, s);
    decay_state(at->x, at->w->x.end, s, next);
    join_rows(at, at->w->x.out, MHAI_BLOCK, at->w->u, MHAI_BLOCK, next);
}

/* ---- a block backward ------------------------------------------------------------------------ */

/* dU, then Y = (dO; -dW). */
static void back_writes(const mhai_back_place *at)
{
    const mhai_recurrent *call = &at->x->call;
    const mhai_back_work *w = at->w;
    const mhai_recurrent_block *x = &w->x;
    const int64_t D = call->sizes.D, panels = call->sizes.panels, wide = panels * MHAI_PANEL;
    memset(w->y, 0, (size_t)(MHAI_BACK_PAIR * wide) * sizeof(float));
    for (int64_t i = 0; i < x->tokens; i++) {
        read_row(at, &call->o, i, w->row);
        put_row(w->row, wide, MHAI_BACK_PAIR, i, w->y);
    }
    mhai_gemm g = {.inner = D,
                   .panels = panels,
                   .x = x->out,
                   .x_stride = D,
                   .w = w->g,
                   .panel_stride = D * MHAI_PANEL,
                   .first = true,
                   .out = w->du,
                   .out_stride = wide};
    product(at, MHAI_BLOCK, g);
    g.inner = MHAI_BLOCK, g.x = x->pairs, g.x_stride = MHAI_BLOCK, g.transposed = true;
    g.w = w->y, g.panel_stride = MHAI_BACK_PAIR * MHAI_PANEL, g.first = false;
    product(at, MHAI_BLOCK, g);
    for (int64_t i = x->tokens - 1; i >= 0; i--) {
        const int64_t later = x->tokens - 1 - i, row = MHAI_BLOCK + i;
        if (call->delta && later > 0)
            add_rows(at, x->pairs + (row + 1) * MHAI_BLOCK + i, MHAI_BLOCK, later,
                     w->y + (row + 1) * MHAI_PANEL, MHAI_BACK_PAIR, w->du + i * wide);
        for (int64_t c = 0; c < wide; c++) w->row[c] = -x->strength[i] * w->du[i * wide + c];
        put_row(w->row, wide, MHAI_BACK_PAIR, row, w->y);
    }
}

/* out = rows, in panels of panel_rows, times the transpose of a state. */
static void turn_product(const mhai_back_place *at, const float *rows, int64_t panel_rows,
                         int64_t count, const float *s, float *out)
{
    const int64_t D = at->x->call.sizes.D, deep = mhai_round_up(D, MHAI_PANEL);
    memset(out, 0, (size_t)(count * deep) * sizeof *out);
    for (int64_t p = 0; p < at->x->call.sizes.panels; p++) {
        at->x->kernels->pack_panels(&(mhai_pack){.out = at->w->turned,
                                                 .in = s + p * D * MHAI_PANEL,
                                                 .stride = MHAI_PANEL,
                                                 .rows = D,
                                                 .cols = MHAI_PANEL});
        product(at, count,
                (mhai_gemm){.inner = MHAI_PANEL,
                            .panels = deep / MHAI_PANEL,
                            .x = rows + p * panel_rows * MHAI_PANEL,
                            .x_stride = MHAI_PANEL,
                            .w = at->w->turned,
                            .panel_stride = MHAI_PANEL * MHAI_PANEL,
                            .out = out,
                            .out_stride = deep});
    }
}

/* dpairs = Y U^T, computed like a product with a state of BLOCK rows. */
static void pair_gradients(const mhai_back_place *at, int64_t rows)
{
    const mhai_back_work *w = at->w;
    memset(w->dpairs, 0, (size_t)MHAI_BACK_PAIR * MHAI_BLOCK * sizeof(float));
    for (int64_t p = 0; p < at->x->call.sizes.panels; p++) {
        at->x->kernels->pack_panels(&(mhai_pack){.out = w->turned,
                                                 .in = w->u + p * MHAI_BLOCK * MHAI_PANEL,
                                                 .stride = MHAI_PANEL,
                                                 .rows = MHAI_BLOCK,
                                                 .cols = MHAI_PANEL});
        product(at, rows,
                (mhai_gemm){.inner = MHAI_PANEL,
                            .panels = 1,
                            .x = w->y + p * MHAI_BACK_PAIR * MHAI_PANEL,
                            .x_stride = MHAI_PANEL,
                            .w = w->turned,
                            .out = w->dpairs,
                            .out_stride = MHAI_BLOCK});
    }
}

/* Add the terms of din and dout from pairs within the block, with decays per head. din becomes the
 * gradient of x as the later token of a pair, dout the gradient of keys as the earlier token. */
static void join_pairs(const mhai_back_place *at)
{
    const mhai_back_work *w = at->w;
    const mhai_recurrent_block *x = &w->x;
    const int64_t D = at->x->call.sizes.D, deep = mhai_round_up(D, MHAI_PANEL);
    double weight[MHAI_BLOCK] = {0};
    for (int64_t i = 0; i < MHAI_BLOCK; i++) {
        for (int64_t j = 0; j < i && i < x->tokens; j++) weight[j] *= x->decay[i];
        weight[i] = 1;
        for (int64_t j = 0; j < MHAI_BLOCK; j++) {
            w->dpairs[i * MHAI_BLOCK + j] *= (float)weight[j];
            w->dpairs[(MHAI_BLOCK + i) * MHAI_BLOCK + j] *= j < i ? (float)weight[j] : 0;
        }
    }
    for (int64_t i = 0; i < MHAI_BACK_PAIR; i++) {
        memset(w->row + D, 0, (size_t)(deep - D) * sizeof(float));
        memcpy(w->row, x->x + i * D, (size_t)D * sizeof(float));
        put_row(w->row, deep, MHAI_BACK_PAIR, i, w->keyed);
    }
    mhai_gemm g = {.inner = MHAI_BLOCK,
                   .panels = deep / MHAI_PANEL,
                   .x = w->dpairs,
                   .x_stride = MHAI_BLOCK,
                   .w = w->keyed + MHAI_BLOCK * MHAI_PANEL,
                   .panel_stride = MHAI_BACK_PAIR * MHAI_PANEL,
                   .out = w->din,
                   .out_stride = deep};
    product(at, MHAI_BACK_PAIR, g);
    g.inner = MHAI_BACK_PAIR, g.transposed = true, g.w = w->keyed, g.out = w->dout;
    product(at, MHAI_BLOCK, g);
}

/* Add the terms of pairs whose later row is i, and whose keys have decayed to it, to the gradients of the decays between
 * them. */
static void add_channel_pairs(const mhai_back_place *at, int64_t i, const float *keys)
{
    const mhai_back_work *w = at->w;
    const int64_t D = at->x->call.sizes.D;
    const float *pq = w->dpairs + i * MHAI_BLOCK, *pk = pq + MHAI_BLOCK * MHAI_BLOCK;
    const float *q = w->x.x + i * D, *k = q + MHAI_BLOCK * D;
    memset(w->slope, 0, (size_t)D * sizeof *w->slope);
    for (int64_t j = 0; j < i; j++)
        for (int64_t d = 0; d < D; d++) {
            w->slope[d] += (double)(pq[j] * q[d] + pk[j] * k[d]) * (double)keys[j * D + d];
            w->decays[(j + 1) * D + d] += w->slope[d];
        }
}

/* The same with decays per channel, using sums that decay from row to row. */
static void join_channel_pairs(const mhai_back_place *at)
{
    const mhai_back_work *w = at->w;
    const mhai_recurrent_block *x = &w->x;
    const int64_t D = at->x->call.sizes.D, deep = mhai_round_up(D, MHAI_PANEL);
    float *keys = w->keyed, *sums = w->keyed + MHAI_BLOCK * D; /* [BLOCK][D] each */
    memset(sums, 0, (size_t)(MHAI_BLOCK * D) * sizeof *sums);
    for (int64_t i = 0; i < x->tokens; i++) {
        const double *a = x->decay + i * D;
        const float *pq = w->dpairs + i * MHAI_BLOCK, *pk = pq + MHAI_BLOCK * MHAI_BLOCK;
        float *q = w->din + i * deep, *k = q + MHAI_BLOCK * deep;
        memcpy(keys + i * D, x->x + (MHAI_BLOCK + i) * D, (size_t)D * sizeof *keys);
        for (int64_t j = 0; j < i; j++)
            for (int64_t d = 0; d < D; d++) {
                const float key = keys[j * D + d] * (float)a[d];
                keys[j * D + d] = key;
                q[d] += pq[j] * key;
                k[d] += pk[j] * key;
            }
        for (int64_t d = 0; d < D; d++) q[d] += pq[i] * keys[i * D + d];
        if (at->x->to[MHAI_BACK_DECAY].wanted) add_channel_pairs(at, i, keys);
    }
    for (int64_t i = x->tokens - 1; i >= 0; i--) {
        const double *a = x->decay + i * D;
        const float *pq = w->dpairs + i * MHAI_BLOCK, *pk = pq + MHAI_BLOCK * MHAI_BLOCK;
        const float *q = x->x + i * D, *k = q + MHAI_BLOCK * D;
        for (int64_t d = 0; d < D; d++) w->dout[i * deep + d] += sums[i * D + d] + pq[i] * q[d];
        for (int64_t j = 0; j < i; j++)
            for (int64_t d = 0; d < D; d++)
                sums[j * D + d] = (sums[j * D + d] + pq[j] * q[d] + pk[j] * k[d]) * (float)a[d];
    }
}

/* Multiply din and dout by the decays that `in` and `out` contain. */
static void decay_gradients(const mhai_back_place *at)
{
    const mhai_back_work *w = at->w;
    const mhai_recurrent_block *x = &w->x;
    const int64_t D = at->x->call.sizes.D, deep = mhai_round_up(D, MHAI_PANEL);
    const bool channels = at->x->call.channels;
    const int64_t each = channels ? D : 1;
    for (int64_t d = 0; d < each; d++) w->slope[d] = 1;
    for (int64_t i = 0; i < x->tokens; i++) {
        for (int64_t d = 0; d < each; d++) w->slope[d] *= x->decay[i * each + d];
        for (int64_t row = i; row < MHAI_BACK_PAIR; row += MHAI_BLOCK)
            for (int64_t d = 0; d < D; d++)
                w->din[row * deep + d] *= (float)w->slope[channels ? d : 0];
    }
    for (int64_t d = 0; d < each; d++) w->slope[d] = 1;
    for (int64_t i = x->tokens - 1; i >= 0; i--) {
        for (int64_t d = 0; d < D; d++) w->dout[i * deep + d] *= (float)w->slope[channels ? d : 0];
        for (int64_t d = 0; d < each; d++) w->slope[d] *= x->decay[i * each + d];
    }
}
/* ---- results --------------------------------------------------------------------------------- */

/* Write a gradient of log_decay. `sums` has one element, or one per channel. */
static void write_decay(const mhai_back_place *at, int64_t i, const double *sums)
{
    const mhai_back_sink *to = &at->x->to[MHAI_BACK_DECAY];
    const int64_t each = at->x->call.channels ? at->x->call.sizes.D : 1;
    float *out = mhai_back_row(to, at, i);
    for (int64_t d = 0; d < each; d++)
        mhai_back_write(at->x, to, out + d * to->each.stride[3],
                        at->w->x.decay[i * each + d] == 0 ? 0 : sums[d]);
}

static double dot(const float *x, const float *y, int64_t n)
{
    double sum = 0;
    for (int64_t d = 0; d < n; d++) sum += (double)x[d] * (double)y[d];
    return sum;
}

/* The gradients for decays per head, before din and dout contain the pairs of the block. */
static void write_decays(const mhai_back_place *at)
{
    const mhai_back_work *w = at->w;
    const int64_t D = at->x->call.sizes.D, deep = mhai_round_up(D, MHAI_PANEL);
    const float *q = w->x.x, *k = q + MHAI_BLOCK * D, *later_k = w->din + MHAI_BLOCK * deep;
    double later = 0, earlier[MHAI_BLOCK + 1] = {0}, pairs[MHAI_BLOCK] = {0};
    for (int64_t d = 0; d < D; d++) earlier[0] += w->far[d];
    for (int64_t i = 0; i < w->x.tokens; i++)
        earlier[i + 1] = earlier[i] + dot(k + i * D, w->dout + i * deep, D);
    for (int64_t i = w->x.tokens - 1; i >= 0; i--) {
        const float *p = w->x.pairs + i * MHAI_BLOCK, *dp = w->dpairs + i * MHAI_BLOCK;
        const int64_t keys = MHAI_BLOCK * MHAI_BLOCK;
        later += dot(q + i * D, w->din + i * deep, D) + dot(k + i * D, later_k + i * deep, D);
        double sum = later + earlier[i];
        for (int64_t j = 0; j < i; j++) {
            pairs[j] += (double)p[j] * (double)dp[j] + (double)p[keys + j] * (double)dp[keys + j];
            sum += pairs[j];
        }
        write_decay(at, i, &sum);
    }
}

/* The same for decays per channel, in w->decays, without the pairs. */
static void begin_channel_decays(const mhai_back_place *at)
{
    const mhai_back_work *w = at->w;
    const int64_t D = at->x->call.sizes.D, deep = mhai_round_up(D, MHAI_PANEL);
    memset(w->slope, 0, (size_t)D * sizeof(double));
    for (int64_t i = w->x.tokens - 1; i >= 0; i--) {
        const float *q = w->x.x + i * D, *k = q + MHAI_BLOCK * D, *dq = w->din + i * deep,
                    *later = dq + MHAI_BLOCK * deep;
        for (int64_t d = 0; d < D; d++) {
            w->slope[d] += (double)q[d] * (double)dq[d] + (double)k[d] * (double)later[d];
            w->decays[i * D + d] = w->slope[d];
        }
    }
    for (int64_t i = 0; i < w->x.tokens; i++) {
        const float *k = w->x.x + (MHAI_BLOCK + i) * D, *earlier = w->dout + i * deep;
        for (int64_t d = 0; d < D; d++) {
            w->decays[i * D + d] += w->far[d];
            w->far[d] += (double)k[d] * (double)earlier[d];
        }
    }
}

/* Compute sum_c G S' for each channel, before G moves to the block's beginning. */
static void far_decays(const mhai_back_place *at, const float *s)
{
    const mhai_back_work *w = at->w;
    const int64_t D = at->x->call.sizes.D;
    memset(w->far, 0, (size_t)D * sizeof(double));
    for (int64_t p = 0; p < at->x->call.sizes.panels; p++)
        for (int64_t d = 0; d < D; d++) {
            const int64_t row = (p * D + d) * MHAI_PANEL;
            double lane[4] = {0};
            for (int64_t c = 0; c < MHAI_PANEL; c += 4)
                for (int64_t l = 0; l < 4; l++)
                    lane[l] += (double)w->g[row + c + l] * (double)s[row + c + l];
            w->far[d] +=
                w->x.end[at->x->call.channels ? d : 0] * (lane[0] + lane[1] + (lane[2] + lane[3]));
        }
}

/* Row i of dv and dskip. */
static void write_values(const mhai_back_place *at, int64_t i)
{
    const mhai_back *x = at->x;
    const mhai_back_work *w = at->w;
    const mhai_back_sink *v = &x->to[MHAI_BACK_V], *dskip = &x->to[MHAI_BACK_SKIP];
    const double skip = mhai_recurrent_number(&x->call.skip, at->b, at->h, at->t + i, 0);
    double sum = 0;
    if (dskip->wanted) read_row(at, &x->call.v, i, w->row);
    for (int64_t c = 0; c < x->call.sizes.Dv; c++) {
        const float *dw = w->y + (c / MHAI_PANEL * MHAI_BACK_PAIR + MHAI_BLOCK + i) * MHAI_PANEL,
                    *out = dw - MHAI_BLOCK * MHAI_PANEL;
        const double gradient = (double)out[c % MHAI_PANEL];
        if (v->wanted)
            mhai_back_write(x, v, mhai_back_row(v, at, i) + c,
                            (x->call.skip.ndim > 0 ? skip * gradient : 0) -
                                (double)dw[c % MHAI_PANEL]);
        if (dskip->wanted) sum += gradient * (double)w->row[c];
    }
    if (dskip->wanted) mhai_back_write(x, dskip, mhai_back_row(dskip, at, i), sum);
}

static void write_rows(const mhai_back_place *at)
{
    const mhai_back *x = at->x;
    const mhai_back_work *w = at->w;
    const int64_t D = x->call.sizes.D, deep = mhai_round_up(D, MHAI_PANEL), Dv = x->call.sizes.Dv,
                  wide = x->call.sizes.panels * MHAI_PANEL;
    for (int64_t i = 0; i < w->x.tokens; i++) {
        const float *dq = w->din + i * deep, *later = dq + MHAI_BLOCK * deep;
        const mhai_back_sink *q = &x->to[MHAI_BACK_Q], *k = &x->to[MHAI_BACK_K],
                             *strength = &x->to[MHAI_BACK_STRENGTH];
        for (int64_t d = 0; q->wanted && d < D; d++)
            mhai_back_write(x, q, mhai_back_row(q, at, i) + d,
                            (double)x->call.scale * (double)dq[d]);
        for (int64_t d = 0; k->wanted && d < D; d++)
            mhai_back_write(x, k, mhai_back_row(k, at, i) + d,
                            (double)later[d] + (double)w->dout[i * deep + d]);
        write_values(at, i);
        if (!strength->wanted) continue;
        double sum = 0;
        for (int64_t c = 0; c < Dv; c++)
            sum += (double)w->du[i * wide + c] * (double)w->w[i * wide + c];
        mhai_back_write(x, strength, mhai_back_row(strength, at, i), sum);
    }
}

void mhai_back_block(const mhai_back_place *at, const float *s)
{
    const mhai_back *x = at->x;
    const mhai_back_work *w = at->w;
    const int64_t rows = x->call.delta ? MHAI_BACK_PAIR : MHAI_BLOCK;
    const int64_t deep = mhai_round_up(x->call.sizes.D, MHAI_PANEL);
    write_block(at, true, s);
    back_writes(at);
    memset(w->din, 0, (size_t)(MHAI_BACK_PAIR * deep) * sizeof(float));
    turn_product(at, w->y, MHAI_BACK_PAIR, rows, s, w->din);
    turn_product(at, w->u, MHAI_BLOCK, MHAI_BLOCK, w->g, w->dout);
    pair_gradients(at, rows);
    const bool decays = x->to[MHAI_BACK_DECAY].wanted;
    if (decays) far_decays(at, s);
    decay_gradients(at);
    if (decays && !x->call.channels) write_decays(at);
    if (decays && x->call.channels) begin_channel_decays(at);
    if (x->call.channels)
        join_channel_pairs(at);
    else
        join_pairs(at);
    for (int64_t i = 0; decays && x->call.channels && i < w->x.tokens; i++)
        write_decay(at, i, w->decays + i * x->call.sizes.D);
    write_rows(at);
    decay_state(x, w->x.end, w->g, w->g);
    join_rows(at, w->x.in, rows, w->y, MHAI_BACK_PAIR, w->g);
}
