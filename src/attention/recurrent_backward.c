/* The backward of a recurrent layer, block by block from the last (recurrent.h has the blocks' formulas).
 * With G the gradient with respect to S' and Y = (dO; -dW):
 *
 *   dU    = pairs_q^T dO + out G          dW = diag(strength) (dU + pairs_k^T (-dW)), from the last row
 *   din   = Y S^T     dout = U G^T        dpairs = Y U^T
 *   G     = diag(end) G + in^T Y
 *
 * A decay multiplies a query or a key in `in`, the earlier key of a pair, or both in `end`: its logarithm's gradient is
 * the sum of x dx over later rows, minus that of keys as earlier ones, plus the term of `end`.
 *
 * States before every stage of blocks are kept, then those of one stage: O(sqrt(T)) memory. */
#include "attention/recurrent.h"
#include "base/checked.h"
#include "base/context.h"
#include "base/convert.h"
#include "base/need.h"
#include "base/struct_copy.h"
#include "base/tensor.h"

#include <multihead/component.h>

enum { PAIR = 2 * MHAI_BLOCK, MADE = 6 };

/* A requested gradient: of each head and token, then summed where heads share the input. */
typedef struct sink {
    const mha_tensor *wanted; /* NULL: not requested */
    mha_tensor each;          /* [B,H,T,W] */
    bool shared;
} sink;

typedef enum made { MADE_Q, MADE_K, MADE_V, MADE_DECAY, MADE_STRENGTH, MADE_STATE } made;

typedef struct back {
    mhai_recurrent call; /* its o is the gradient of o */
    const mhai_kernels *kernels;
    const mha_tensor *initial, *state_gradient; /* NULL: 0 */
    sink to[MADE];
    bool add;
    int64_t blocks, stage; /* of the longest sequence; blocks of a stage */
    unsigned char *memory;
    size_t worker_bytes;
} back;

typedef struct workspace {
    mhai_recurrent_block x;
    float *states, *stage; /* states before stages, and before each block of one */
    float *g;              /* G, as states: [panels][D][32] */
    float *y;              /* [panels][2 BLOCK][32] */
    float *u;              /* [panels][BLOCK][32] */
    float *w, *du;         /* [BLOCK][wide] */
    float *turned;         /* S^T or G^T: [panels][deep / 32][32][32]; U^T: [wide][32] */
    float *din, *dout;     /* [2 BLOCK][deep], [BLOCK][deep] */
    float *dpairs;         /* [2 BLOCK][BLOCK] */
    float *keyed;          /* x in panels: [deep / 32][2 BLOCK][32] */
    float *row;            /* [max(wide, deep)] */
    double *slope, *far;   /* [D] */
} workspace;

static int64_t state_floats(const back *x)
{
    return x->call.sizes.panels * x->call.sizes.D * MHAI_PANEL;
}

static workspace carve(const back *x, void *memory, size_t *bytes)
{
    const int64_t D = x->call.sizes.D, wide = x->call.sizes.panels * MHAI_PANEL,
                  deep = mhai_round_up(D, MHAI_PANEL), state = state_floats(x);
    workspace w = {.x = mhai_recurrent_block_parts(&x->call, memory, bytes)};
    mhai_carver c = {memory, *bytes};
    w.states = mhai_carve(&c, mhai_times(mhai_ceil_div(x->blocks, x->stage), state), sizeof(float));
    w.stage = mhai_carve(&c, mhai_times(x->stage, state), sizeof(float));
    w.g = mhai_carve(&c, state, sizeof(float));
    w.y = mhai_carve(&c, PAIR * wide, sizeof(float));
    w.u = mhai_carve(&c, MHAI_BLOCK * wide, sizeof(float));
    w.w = mhai_carve(&c, MHAI_BLOCK * wide, sizeof(float));
    w.du = mhai_carve(&c, MHAI_BLOCK * wide, sizeof(float));
    w.turned = mhai_carve(&c, wide * deep, sizeof(float));
    w.din = mhai_carve(&c, PAIR * deep, sizeof(float));
    w.dout = mhai_carve(&c, MHAI_BLOCK * deep, sizeof(float));
    w.dpairs = mhai_carve(&c, (int64_t)PAIR * MHAI_BLOCK, sizeof(float));
    w.keyed = mhai_carve(&c, PAIR * deep, sizeof(float));
    w.row = mhai_carve(&c, mhai_max_i64(wide, deep), sizeof(float));
    w.slope = mhai_carve(&c, D, sizeof(double));
    w.far = mhai_carve(&c, D, sizeof(double));
    *bytes = c.used;
    return w;
}

/* ---- a block forward --------------------------------------------------------------------------- */

/* A head's block at token t. */
typedef struct place {
    const back *x;
    workspace *w;
    int64_t b, h, t;
} place;

static void product(const place *at, int64_t rows, mhai_gemm g)
{
    mhai_recurrent_product(at->x->kernels, rows, MHAI_GEMM_BLOCK, g);
}

/* A row of values into panels of `rows` rows. */
static void put_row(const float *row, int64_t wide, int64_t rows, int64_t i, float *panels)
{
    for (int64_t c = 0; c < wide; c += MHAI_PANEL)
        memcpy(panels + (c * rows) + i * MHAI_PANEL, row + c, MHAI_PANEL * sizeof *row);
}

/* Add a row of factors times rows of panels to a row. */
static void add_rows(const place *at, const float *factors, int64_t stride, int64_t count,
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

static void read_row(const place *at, const mha_tensor *x, int64_t i, float *row)
{
    const int64_t Dv = at->x->call.sizes.Dv, wide = at->x->call.sizes.panels * MHAI_PANEL;
    memset(row + Dv, 0, (size_t)(wide - Dv) * sizeof *row);
    mhai_widen(x->dtype, mhai_recurrent_row(&at->x->call, x, at->b, at->h, at->t + i), Dv, row);
}

/* Load the block, and compute W and U from the state before it. */
static void write_block(const place *at, bool queries, const float *s)
{
    const mhai_recurrent *call = &at->x->call;
    workspace *w = at->w;
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

/* out = diag(end) s */
static void decay_state(const back *x, const double *end, const float *s, float *out)
{
    const int64_t D = x->call.sizes.D;
    for (int64_t i = 0; i < x->call.sizes.panels * D; i++) {
        const float a = (float)end[x->call.channels ? i % D : 0];
        for (int64_t c = 0; c < MHAI_PANEL; c++)
            out[i * MHAI_PANEL + c] = a * s[i * MHAI_PANEL + c];
    }
}

/* s += x^T rows, for x [count][D] and rows in panels. */
static void join_rows(const place *at, const float *x, int64_t count, const float *rows,
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

static void advance(const place *at, const float *s, float *next)
{
    write_block(at, false, s);
    decay_state(at->x, at->w->x.end, s, next);
    join_rows(at, at->w->x.out, MHAI_BLOCK, at->w->u, MHAI_BLOCK, next);
}

/* ---- a block backward -------------------------------------------------------------------------- */

/* dU, then Y = (dO; -dW). */
static void back_writes(const place *at)
{
    const mhai_recurrent *call = &at->x->call;
    const workspace *w = at->w;
    const mhai_recurrent_block *x = &w->x;
    const int64_t D = call->sizes.D, panels = call->sizes.panels, wide = panels * MHAI_PANEL;
    memset(w->y, 0, (size_t)(PAIR * wide) * sizeof(float));
    for (int64_t i = 0; i < x->tokens; i++) {
        read_row(at, &call->o, i, w->row);
        put_row(w->row, wide, PAIR, i, w->y);
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
    g.w = w->y, g.panel_stride = PAIR * MHAI_PANEL, g.first = false;
    product(at, MHAI_BLOCK, g);
    for (int64_t i = x->tokens - 1; i >= 0; i--) {
        const int64_t later = x->tokens - 1 - i, row = MHAI_BLOCK + i;
        if (call->delta && later > 0)
            add_rows(at, x->pairs + (row + 1) * MHAI_BLOCK + i, MHAI_BLOCK, later,
                     w->y + (row + 1) * MHAI_PANEL, PAIR, w->du + i * wide);
        for (int64_t c = 0; c < wide; c++) w->row[c] = -x->strength[i] * w->du[i * wide + c];
        put_row(w->row, wide, PAIR, row, w->y);
    }
}

/* out = rows, in panels of panel_rows, times the transpose of a state. */
static void turn_product(const place *at, const float *rows, int64_t panel_rows, int64_t count,
                         const float *s, float *out)
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

/* dpairs = Y U^T, which is a product with one more state of BLOCK rows. */
static void pair_gradients(const place *at, int64_t rows)
{
    const workspace *w = at->w;
    memset(w->dpairs, 0, (size_t)PAIR * MHAI_BLOCK * sizeof(float));
    for (int64_t p = 0; p < at->x->call.sizes.panels; p++) {
        at->x->kernels->pack_panels(&(mhai_pack){.out = w->turned,
                                                 .in = w->u + p * MHAI_BLOCK * MHAI_PANEL,
                                                 .stride = MHAI_PANEL,
                                                 .rows = MHAI_BLOCK,
                                                 .cols = MHAI_PANEL});
        product(at, rows,
                (mhai_gemm){.inner = MHAI_PANEL,
                            .panels = 1,
                            .x = w->y + p * PAIR * MHAI_PANEL,
                            .x_stride = MHAI_PANEL,
                            .w = w->turned,
                            .out = w->dpairs,
                            .out_stride = MHAI_BLOCK});
    }
}

/* The part of din and dout that comes from within the block: din becomes the gradient of x as the later of
 * a pair, dout that of keys as the earlier one. Decays per head. */
static void join_pairs(const place *at)
{
    const workspace *w = at->w;
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
    for (int64_t i = 0; i < PAIR; i++) {
        memset(w->row + D, 0, (size_t)(deep - D) * sizeof(float));
        memcpy(w->row, x->x + i * D, (size_t)D * sizeof(float));
        put_row(w->row, deep, PAIR, i, w->keyed);
    }
    mhai_gemm g = {.inner = MHAI_BLOCK,
                   .panels = deep / MHAI_PANEL,
                   .x = w->dpairs,
                   .x_stride = MHAI_BLOCK,
                   .w = w->keyed + MHAI_BLOCK * MHAI_PANEL,
                   .panel_stride = PAIR * MHAI_PANEL,
                   .out = w->din,
                   .out_stride = deep};
    product(at, PAIR, g);
    g.inner = PAIR, g.transposed = true, g.w = w->keyed, g.out = w->dout;
    product(at, MHAI_BLOCK, g);
}

/* The same with decays per channel, as sums that decay from row to row. */
static void join_channel_pairs(const place *at)
{
    const workspace *w = at->w;
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

/* din and dout times the decays that made `in` and `out`. */
static void decay_gradients(const place *at)
{
    const workspace *w = at->w;
    const mhai_recurrent_block *x = &w->x;
    const int64_t D = at->x->call.sizes.D, deep = mhai_round_up(D, MHAI_PANEL);
    const bool channels = at->x->call.channels;
    const int64_t each = channels ? D : 1;
    for (int64_t d = 0; d < each; d++) w->slope[d] = 1;
    for (int64_t i = 0; i < x->tokens; i++) {
        for (int64_t d = 0; d < each; d++) w->slope[d] *= x->decay[i * each + d];
        for (int64_t row = i; row < PAIR; row += MHAI_BLOCK)
            for (int64_t d = 0; d < D; d++)
                w->din[row * deep + d] *= (float)w->slope[channels ? d : 0];
    }
    for (int64_t d = 0; d < each; d++) w->slope[d] = 1;
    for (int64_t i = x->tokens - 1; i >= 0; i--) {
        for (int64_t d = 0; d < D; d++) w->dout[i * deep + d] *= (float)w->slope[channels ? d : 0];
        for (int64_t d = 0; d < each; d++) w->slope[d] *= x->decay[i * each + d];
    }
}

/* ---- results ----------------------------------------------------------------------------------- */

static float *row_of(const sink *to, const place *at, int64_t i)
{
    const mha_tensor *x = &to->each;
    return (float *)x->data + at->b * x->stride[0] + at->h * x->stride[1] +
           (at->t + i) * x->stride[2];
}

static void write(const back *x, const sink *to, float *out, double value)
{
    *out = (float)(x->add && !to->shared ? (double)*out + value : value) + 0.0f;
}

/* The gradient of log_decay, from the last token to the first; far: the part of the end's decay. */
static void write_decays(const place *at)
{
    const back *x = at->x;
    const workspace *w = at->w;
    const sink *to = &x->to[MADE_DECAY];
    const int64_t D = x->call.sizes.D, deep = mhai_round_up(D, MHAI_PANEL);
    const int64_t each = x->call.channels ? D : 1;
    memcpy(w->slope, w->far, (size_t)D * sizeof(double));
    for (int64_t i = w->x.tokens - 1; i >= 0; i--) {
        const float *q = w->x.x + i * D, *k = q + MHAI_BLOCK * D, *dq = w->din + i * deep,
                    *later = dq + MHAI_BLOCK * deep, *earlier = w->dout + i * deep;
        double sum = 0;
        for (int64_t d = 0; d < D; d++) {
            w->slope[d] += (double)q[d] * (double)dq[d] + (double)k[d] * (double)later[d] -
                           (double)k[d] * (double)earlier[d];
            sum += w->slope[d];
        }
        float *out = row_of(to, at, i);
        for (int64_t d = 0; d < each; d++)
            write(x, to, out + d * to->each.stride[3],
                  w->x.decay[i * each + d] == 0 ? 0
                  : each == 1                   ? sum
                                                : w->slope[d]);
    }
}

/* sum_c G S' of each channel, before G moves on. */
static void far_decays(const place *at, const float *s)
{
    const workspace *w = at->w;
    const int64_t D = at->x->call.sizes.D, deep = mhai_round_up(D, MHAI_PANEL);
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
    for (int64_t i = 0; i < w->x.tokens; i++)
        for (int64_t d = 0; d < D; d++)
            w->far[d] += (double)w->x.out[i * D + d] * (double)w->dout[i * deep + d];
}

static void write_rows(const place *at)
{
    const back *x = at->x;
    const workspace *w = at->w;
    const int64_t D = x->call.sizes.D, deep = mhai_round_up(D, MHAI_PANEL), Dv = x->call.sizes.Dv,
                  wide = x->call.sizes.panels * MHAI_PANEL;
    for (int64_t i = 0; i < w->x.tokens; i++) {
        const float *dq = w->din + i * deep, *later = dq + MHAI_BLOCK * deep;
        const sink *q = &x->to[MADE_Q], *k = &x->to[MADE_K], *v = &x->to[MADE_V],
                   *strength = &x->to[MADE_STRENGTH];
        for (int64_t d = 0; q->wanted && d < D; d++)
            write(x, q, row_of(q, at, i) + d, (double)x->call.scale * (double)dq[d]);
        for (int64_t d = 0; k->wanted && d < D; d++)
            write(x, k, row_of(k, at, i) + d, (double)later[d] + (double)w->dout[i * deep + d]);
        for (int64_t c = 0; v->wanted && c < Dv; c++)
            write(x, v, row_of(v, at, i) + c,
                  -(double)w
                       ->y[(c / MHAI_PANEL * PAIR + MHAI_BLOCK + i) * MHAI_PANEL + c % MHAI_PANEL]);
        if (!strength->wanted) continue;
        double sum = 0;
        for (int64_t c = 0; c < Dv; c++)
            sum += (double)w->du[i * wide + c] * (double)w->w[i * wide + c];
        write(x, strength, row_of(strength, at, i), sum);
    }
}

static void back_block(const place *at, const float *s)
{
    const back *x = at->x;
    const workspace *w = at->w;
    const int64_t rows = x->call.delta ? PAIR : MHAI_BLOCK;
    const int64_t deep = mhai_round_up(x->call.sizes.D, MHAI_PANEL);
    write_block(at, true, s);
    back_writes(at);
    memset(w->din, 0, (size_t)(PAIR * deep) * sizeof(float));
    turn_product(at, w->y, PAIR, rows, s, w->din);
    turn_product(at, w->u, MHAI_BLOCK, MHAI_BLOCK, w->g, w->dout);
    pair_gradients(at, rows);
    if (x->to[MADE_DECAY].wanted) far_decays(at, s);
    decay_gradients(at);
    if (x->call.channels)
        join_channel_pairs(at);
    else
        join_pairs(at);
    if (x->to[MADE_DECAY].wanted) write_decays(at);
    write_rows(at);
    decay_state(x, w->x.end, w->g, w->g);
    join_rows(at, w->x.in, rows, w->y, PAIR, w->g);
}

/* ---- a head ------------------------------------------------------------------------------------ */

static float *state_element(const mha_tensor *x, int64_t b, int64_t h, int64_t d, int64_t c)
{
    return (float *)x->data + b * x->stride[0] + h * x->stride[1] + d * x->stride[2] +
           c * x->stride[3];
}

static void load_state(const back *x, const mha_tensor *from, int64_t b, int64_t h, float *s)
{
    const int64_t D = x->call.sizes.D;
    memset(s, 0, (size_t)state_floats(x) * sizeof *s);
    for (int64_t d = 0; from && d < D; d++)
        for (int64_t c = 0; c < x->call.sizes.Dv; c++)
            s[(c / MHAI_PANEL * D + d) * MHAI_PANEL + c % MHAI_PANEL] =
                *state_element(from, b, h, d, c);
}

static void write_state(const back *x, int64_t b, int64_t h, const float *g)
{
    const sink *to = &x->to[MADE_STATE];
    const int64_t D = x->call.sizes.D;
    for (int64_t d = 0; to->wanted && d < D; d++)
        for (int64_t c = 0; c < x->call.sizes.Dv; c++)
            write(x, to, state_element(to->wanted, b, h, d, c),
                  (double)g[(c / MHAI_PANEL * D + d) * MHAI_PANEL + c % MHAI_PANEL]);
}

/* Tokens beyond a sequence's length. */
static void write_unused(const place *at)
{
    for (int i = 0; i < MADE_STATE; i++) {
        const sink *to = &at->x->to[i];
        for (int64_t d = 0; to->wanted && d < to->each.shape[3]; d++)
            write(at->x, to, row_of(to, at, 0) + d * to->each.stride[3], 0);
    }
}

static void run_head(void *argument, int64_t item, int worker)
{
    const back *x = argument;
    size_t bytes;
    workspace w = carve(x, x->memory + (size_t)worker * x->worker_bytes, &bytes);
    place at = {.x = x, .w = &w, .b = item / x->call.H, .h = item % x->call.H};
    const int64_t state = state_floats(x), length = mhai_recurrent_length(&x->call, at.b),
                  blocks = mhai_ceil_div(length, MHAI_BLOCK);
    float *next = w.stage;
    load_state(x, x->initial, at.b, at.h, next);
    for (int64_t i = 0; i < blocks; i++) {
        float *s = i % x->stage ? w.stage : w.states + i / x->stage * state;
        if (i % x->stage == 0) memcpy(s, next, (size_t)state * sizeof *s);
        at.t = i * MHAI_BLOCK;
        if (i + 1 < blocks && i / x->stage < (blocks - 1) / x->stage) advance(&at, s, next);
    }
    load_state(x, x->state_gradient, at.b, at.h, w.g);
    for (int64_t end = blocks, begin; end > 0; end = begin) {
        begin = (end - 1) / x->stage * x->stage;
        memcpy(w.stage, w.states + begin / x->stage * state, (size_t)state * sizeof(float));
        for (int64_t i = begin; i + 1 < end; i++) {
            at.t = i * MHAI_BLOCK;
            advance(&at, w.stage + (i - begin) * state, w.stage + (i - begin + 1) * state);
        }
        for (int64_t i = end - 1; i >= begin; i--) {
            at.t = i * MHAI_BLOCK;
            back_block(&at, w.stage + (i - begin) * state);
        }
    }
    write_state(x, at.b, at.h, w.g);
    for (at.t = length; at.t < x->call.T; at.t++) write_unused(&at);
}

/* ---- shared inputs ----------------------------------------------------------------------------- */

/* Sum the heads that share head `item` of a gradient, in order. */
static void sum_element(const back *x, const sink *to, const int64_t *at, const int64_t *times)
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
    const back *x;
    const sink *to;
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
static mha_status place_sink(mha_context *context, const back *x, int64_t width, sink *to)
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

/* ---- the call ---------------------------------------------------------------------------------- */

static const char *const names[MADE] = {"gradients.q",        "gradients.k",
                                        "gradients.v",        "gradients.log_decay",
                                        "gradients.strength", "gradients.initial"};

static mha_status check_sink(const back *x, int which, const mha_tensor *given,
                             const mha_tensor *input)
{
    const mha_tensor *more[] = {&x->call.o, x->initial, x->state_gradient};
    static const char *const more_names[] = {"o_gradient", "initial", "state_gradient"};
    if (!given) return MHA_OK;
    if (!input) return mha_fail(MHA_ERR_ARGUMENT, "%s: the call has no such input", names[which]);
    MHA_TRY(mhai_tensor_check(names[which], given, MHA_F32, input->ndim, input->shape));
    if (which < MADE_DECAY) MHA_TRY(mhai_tensor_check_last(names[which], given));
    MHA_TRY(mhai_recurrent_check_output(names[which], given, &x->call));
    for (int i = 0; i < 3; i++)
        MHA_TRY(mhai_tensor_check_disjoint(names[which], given, more_names[i], more[i]));
    for (int i = 0; i < which; i++)
        MHA_TRY(mhai_tensor_check_disjoint(names[which], given, names[i], x->to[i].wanted));
    return MHA_OK;
}

static mha_status check_gradients(const mha_recurrent_desc *desc,
                                  const mha_recurrent_gradients *given, back *x)
{
    mha_recurrent_gradients g;
    MHA_TRY(mhai_struct_copy("mha_recurrent_gradients", &g, sizeof g, sizeof g, given));
    if (g.flags & ~(uint32_t)MHA_GRADIENTS_ACCUMULATE)
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_recurrent_gradients: flags 0x%x are unknown",
                        (unsigned)(g.flags & ~(uint32_t)MHA_GRADIENTS_ACCUMULATE));
    x->add = g.flags & MHA_GRADIENTS_ACCUMULATE;
    const int64_t state[4] = {x->call.B, x->call.H, x->call.sizes.D, x->call.sizes.Dv};
    const mha_tensor *const states[] = {x->initial, g.state};
    for (int i = 0; i < 2; i++)
        if (states[i])
            MHA_TRY(
                mhai_tensor_check(i ? "gradients.state" : "initial", states[i], MHA_F32, 4, state));
    x->state_gradient = g.state;
    const mha_tensor *wanted[MADE] = {g.q, g.k, g.v, g.log_decay, g.strength, g.initial};
    const mha_tensor *inputs[MADE] = {&x->call.q,
                                      &x->call.k,
                                      &x->call.v,
                                      desc ? desc->log_decay : NULL,
                                      desc ? desc->strength : NULL,
                                      x->initial};
    for (int i = 0; i < MADE; i++) {
        MHA_TRY(check_sink(x, i, wanted[i], inputs[i]));
        x->to[i].wanted = wanted[i];
    }
    return MHA_OK;
}

static mha_status run(mha_context *context, back *x)
{
    const mhai_recurrent *call = &x->call;
    const int64_t D = call->sizes.D;
    const int64_t width[MADE_STATE] = {D, D, call->sizes.Dv, call->channels ? D : 1, 1};
    x->blocks = mhai_ceil_div(call->T, MHAI_BLOCK);
    for (x->stage = 1; x->stage * x->stage < x->blocks;) x->stage++;
    carve(x, NULL, &x->worker_bytes);
    for (int i = 0; i < MADE_STATE; i++) MHA_TRY(place_sink(context, x, width[i], &x->to[i]));
    MHA_TRY(mha_scratch_alloc(context, context->num_threads, x->worker_bytes, &x->memory));
    mha_parallel_for(context, call->B * call->H, run_head, x);
    for (int i = 0; i < MADE_STATE; i++) {
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
    back x = {.initial = initial};
    MHAI_NEED("mha_recurrent_backward", context, q, k, v, o_gradient, gradients);
    x.kernels = mhai_kernels_for(context->isa);
    MHA_TRY(mhai_recurrent_check(desc, q, k, v, o_gradient, 0, &x.call));
    MHA_TRY(check_gradients(desc, gradients, &x));
    const mha_scratch_mark mark = mha_scratch_top(context);
    const mha_status status = run(context, &x);
    mha_scratch_release(context, mark);
    return status;
}
