/* The backward pass of a tile. */
#include "kernel_strip.h"

/* x = g . (v + shaw) is a chain and one more addition. The other bounds are from docs/numerics.md
 * 11: p: the error of a power, because lse is exact here;   c = gate, k = dropout's factor
 *   s = c p k: two roundings;   x = p (c k x - delta): three for c k x, two for the difference and
 *   its product. */
typedef struct pair {
    double p, p_error, x, x_error, kept;
} pair;

typedef struct back_case {
    strip_case strip;
    block_case *values; /* v is in `keys` */
    float *g, *lse, *delta, *gate;
    int *ends;
    mhai_shaw_back shaw;
    bool has_shaw, has_share;
} back_case;

static back_case make_back(kernel_test *t)
{
    back_case c = {.has_shaw = kt_chance(t, 0.2), .has_share = kt_chance(t, 0.6)};
    const int rows = kt_rows(t), keys = (int)kt_size(t, MHAI_KEY_BLOCK, 256);
    block_case *b = kt_plain(t, sizeof *b);
    c.values = kt_plain(t, sizeof *c.values);
    *b = strip_block(t, 0, keys, kt_size(t, 80, 64), 1);
    *c.values = strip_block(t, 0, keys, kt_size(t, 80, 64), 1);
    c.strip = strip_make(t, WITH_DROPOUT | WITH_RUNS | WITH_TERMS | WITH_MASK, b, rows);
    kt_fill(t, c.g = kt_floats(t, rows * c.values->dim), rows * c.values->dim);
    kt_fill(t, c.gate = kt_floats(t, rows), rows);
    kt_fill(t, c.delta = kt_floats(t, rows), rows);
    c.lse = kt_floats(t, rows);
    if (!c.strip.masked && kt_chance(t, 0.6)) { /* causal rows without a mask */
        c.ends = kt_input(t, MHA_I32, 1, rows, rows);
        for (int r = 0; r < rows; r++)
            c.ends[r] = (int)rng_between(&t->r, c.strip.begin, c.strip.end);
    }
    for (int r = 0; r < rows; r++) {
        if (kt_chance(t, 0.1)) c.delta[r] = NAN;
        const int64_t last = c.shaw.last = 20;
        float *table = kt_floats(t, last + 1);
        kt_fill(t, table, last + 1);
        c.shaw.table[r] = table;
        c.shaw.center[r] = rng_between(&t->r, -c.strip.end, 10);
    }
    return c;
}

/* Keys beyond a row's end are hidden too. */
static bool is_hidden(const back_case *c, const strip_row *x, int row, int key)
{
    return x->scores[key].hidden || (c->ends && key >= c->ends[row]);
}

static pair pair_of(const back_case *c, const strip_row *x, int row, int key)
{
    const block_case *v = c->values;
    pair a = {.kept = strip_dropped(&c->strip, row, key)};
    double size = 0;
    for (int64_t d = 0; d < v->dim; d++) {
        const double term = (double)c->g[row * v->dim + d] * (double)v->k[key * v->dim + d];
        a.x += term;
        size += fabs(term);
    }
    if (c->has_shaw) {
        int64_t i = c->shaw.center[row] + key;
        i = i < 0 ? 0 : i > c->shaw.last ? c->shaw.last : i;
        a.x += (double)c->shaw.table[row][i];
    }
    a.x_error = (double)v->dim * (u * size + 2 * tiny) + u * fabs(a.x) + tiny;
    a.p = strip_power(&x->scores[key], (double)c->lse[row], &a.p_error);
    return a;
}

static void expect_back(kernel_test *t, const back_case *c, const strip_row *x, int row,
                        const mhai_tile_back *back)
{
    const strip_case *s = &c->strip;
    const float *p = back->tile.s + row * MHAI_SCORE_STRIDE;
    const float *dx = back->x + row * MHAI_SCORE_STRIDE;
    const double gate = (double)c->gate[row], delta = (double)c->delta[row];
    double share = 0, share_error = 0, share_size = 0;
    for (int j = s->begin; j < s->end; j++) {
        if (is_hidden(c, x, row, j)) {
            kt_close(t, (double)p[j], 0, 0, "s of what is hidden", row, j);
            kt_close(t, (double)dx[j], 0, 0, "x of what is hidden", row, j);
            continue;
        }
        if (s->masked && s->mask.softcap > 0)
            kt_close(t, (double)back->slope[row * MHAI_SCORE_STRIDE + j], x->scores[j].slope,
                     x->scores[j].slope_error, "slope", row, j);
        const pair a = pair_of(c, x, row, j);
        const double passed = gate * a.kept * a.x, inner = passed - delta;
        const double inner_error =
            fabs(gate) * a.kept * a.x_error + 3 * u * fabs(passed) + u * fabs(inner) + 2 * tiny;
        const double exact = gate * a.p * a.kept;
        kt_close(t, (double)p[j], isnan(delta) ? NAN : exact,
                 fabs(gate) * a.kept * a.p_error + 3 * u * fabs(exact) + tiny * (2 + fabs(gate)),
                 "s", row, j);
        kt_close(t, (double)dx[j], a.p * inner,
                 a.p_error * fabs(inner) + (a.p + a.p_error) * inner_error + u * a.p * fabs(inner) +
                     tiny,
                 "x", row, j);
        share += a.p * a.kept * a.x;
        share_size += (a.p + a.p_error) * a.kept * fabs(a.x);
        share_error += a.kept * (a.p_error * fabs(a.x) + (a.p + a.p_error) * a.x_error) + 2 * tiny;
    }
    if (back->share)
        kt_close(t, (double)back->share[row], isnan(delta) ? NAN : share,
                 share_error + 39 * u * share_size, "share", row, 0);
}

void check_tile_backward(kernel_test *t)
{
    back_case c = make_back(t);
    const strip_case *s = &c.strip;
    const strip_row **pairs = strip_rows(t, s);
    const int64_t stride = MHAI_SCORE_STRIDE;
    for (int r = 0; r < s->rows; r++) {
        double sum = 0, error;
        for (int j = s->begin; j < s->end; j++)
            if (!is_hidden(&c, pairs[r], r, j)) sum += strip_power(&pairs[r]->scores[j], 0, &error);
        c.lse[r] = sum > 0 ? (float)log2(sum) + (kt_chance(t, 0.5) ? 1 : 0) : INFINITY;
    }
    t->flops = 2.0 * s->rows * (double)((s->end - s->begin) * (s->block->dim + c.values->dim));
    EACH_TABLE(t, k)
    {
        mhai_tile_mask mask;
        mhai_tile_back back = {.tile = strip_tile(t, s, &mask, NULL),
                               .value_dim = c.values->dim,
                               .g = c.g,
                               .v = c.values->k_panels,
                               .x = kt_scratch(t, MHA_F32, s->rows, stride, stride),
                               .lse = c.lse,
                               .delta = c.delta,
                               .gate = c.gate,
                               .ends = c.ends,
                               .shaw = c.has_shaw ? &c.shaw : NULL};
        back.tile.v = NULL;
        if (s->masked && s->mask.softcap > 0)
            back.slope = kt_scratch(t, MHA_F32, s->rows, stride, stride);
        if (c.has_share) back.share = kt_output(t, MHA_F32, 1, s->rows, s->rows);
        KERNEL_CALL(t) k->tile_backward(&back);
        for (int r = 0; r < s->rows; r++) {
            if (t->exact[t->table]) {
                kt_bits_of(t, back.tile.s + r * stride + s->begin, s->end - s->begin);
                kt_bits_of(t, back.x + r * stride + s->begin, s->end - s->begin);
            }
            expect_back(t, &c, pairs[r], r, &back);
        }
    }
}
