/* Kernels of attention's tiles from panels. */
#include "kernel_strip.h"

static strip_case make_tile(kernel_test *t, unsigned with)
{
    const int rows = kt_rows(t), keys = (int)kt_size(t, MHAI_KEY_BLOCK, MHAI_KEY_BLOCK);
    const int64_t dim = kt_chance(t, 0.4) ? 16 * rng_between(&t->r, 1, 5) : kt_size(t, 80, 64);
    block_case *b = kt_plain(t, sizeof *b);
    *b = strip_block(t, with, keys, dim, t->timed ? 2 : rng_between(&t->r, 1, 3));
    if (!t->timed && kt_chance(t, 0.5)) b->value_dim -= rng_between(&t->r, 1, 31);
    return strip_make(t, with, b, rows);
}

void check_tile_forward(kernel_test *t)
{
    const strip_case c =
        make_tile(t, WITH_POISON | WITH_DROPOUT | WITH_RUNS | WITH_TERMS | WITH_MASK);
    const strip_row **rows = strip_rows(t, &c);
    const int64_t cols = c.block->cols;
    const bool alpha = kt_chance(t, 0.3), scores = kt_chance(t, 0.3);
    const bool fetch = c.block->dim % 16 == 0 && kt_chance(t, 0.3);
    const float *nowhere = kt_nowhere(t);
    t->flops = strip_flops(&c) + 2.0 * c.rows * (double)((c.end - c.begin) * cols);
    EACH_TABLE(t, k)
    {
        mhai_tile_mask mask;
        mhai_poison poison;
        mhai_fetch ahead = {.l2 = kt_chance(t, 0.5),
                            .runs = {{nowhere, 64, 48}, {nowhere, 70, 16}, {nowhere, 64, 32}}};
        mhai_tile tile = strip_tile(t, &c, &mask, &poison);
        tile.o = kt_in_out(t, MHA_F32, c.rows, cols, cols, c.o);
        tile.m = kt_in_out(t, MHA_F32, 1, c.rows, c.rows, c.m);
        tile.l = kt_in_out(t, MHA_F32, 1, c.rows, c.rows, c.l);
        if (alpha) tile.alpha = kt_output(t, MHA_F32, 1, c.rows, c.rows);
        if (scores)
            tile.scores =
                (float *)kt_output(t, MHA_F32, c.rows, c.end - c.begin, MHAI_SCORE_STRIDE) -
                c.begin;
        if (fetch) tile.fetch = &ahead;
        KERNEL_CALL(t) k->tile_forward(&tile);
        for (int r = 0; r < c.rows; r++) {
            const float *s = tile.s + r * MHAI_SCORE_STRIDE;
            const bool gaps = c.masked && c.mask.runs > 0;
            strip_expect(t, &c, rows[r], r, (double)tile.m[r], (double)tile.l[r], tile.o + r * cols,
                         s, alpha ? tile.alpha + r : NULL);
            if (t->exact[t->table] && !gaps) kt_bits_of(t, s + c.begin, c.end - c.begin);
            for (int j = c.begin; scores && j < c.end; j++) {
                const score *x = &rows[r]->scores[j];
                const double got = (double)tile.scores[r * MHAI_SCORE_STRIDE + j];
                kt_close(t, got,
                         x->hidden ? -INFINITY
                         : x->nan  ? NAN
                                   : x->y,
                         x->hidden ? 0 : x->error, "scores", r, j);
            }
        }
    }
}

/* With given m and l, 2^(y - m) / l has one more quotient. Entropy and largest have the bounds of
 * docs/numerics.md 3.13. */
void check_tile_probabilities(kernel_test *t)
{
    const strip_case c = make_tile(t, WITH_POISON | WITH_RUNS | WITH_TERMS | WITH_MASK);
    const strip_row **rows = strip_rows(t, &c);
    const bool wanted = kt_chance(t, 0.6), entropy = kt_chance(t, 0.7);
    float *m = kt_floats(t, c.rows), *l = kt_floats(t, c.rows), *log_l = kt_floats(t, c.rows);
    for (int r = 0; r < c.rows; r++) {
        double sum = 0, error;
        m[r] = (float)rows[r]->max;
        for (int j = c.begin; rows[r]->any && j < c.end; j++)
            sum += strip_power(&rows[r]->scores[j], (double)m[r], &error);
        l[r] = rows[r]->nan ? NAN : sum > 0 && sum < 1 ? 1 : (float)sum;
        log_l[r] = (float)log2((double)l[r]);
    }
    t->flops = strip_flops(&c);
    EACH_TABLE(t, k)
    {
        mhai_tile_mask mask;
        mhai_poison poison;
        mhai_tile_statistics statistics = {.log_sum = entropy ? log_l : NULL};
        mhai_tile tile = strip_tile(t, &c, &mask, &poison);
        tile.v = NULL;
        tile.m = m;
        tile.l = l;
        if (wanted) tile.statistics = &statistics;
        KERNEL_CALL(t) k->tile_probabilities(&tile);
        for (int r = 0; r < c.rows; r++) {
            const float *s = tile.s + r * MHAI_SCORE_STRIDE;
            double sum = 0, sum_error = 0, largest = 0, largest_error = 0;
            if (t->exact[t->table]) kt_bits_of(t, s + c.begin, c.end - c.begin);
            for (int j = c.begin; j < c.end; j++) {
                const score *x = &rows[r]->scores[j];
                double error;
                if (rows[r]->nan) {
                    kt_same(t, (double)s[j], x->hidden ? 0 : NAN, "p of what is not finite", r, j);
                    continue;
                }
                const double divisor = l[r] == 0 ? 1 : (double)l[r];
                const double p = strip_power(x, rows[r]->any ? (double)m[r] : 0, &error) / divisor;
                error = error / divisor + u * p + (p > 0 ? tiny : 0);
                kt_close(t, (double)s[j], p, error, "p", r, j);
                largest = fmax(largest, p);
                largest_error = fmax(largest_error, error);
                if (p == 0) continue;
                const double log_p = -log(p);
                sum += p * log_p;
                sum_error += error * fabs(log_p) +
                             (p + error) * (x->error * ln2 +
                                            u * (3 * fabs(log_p) + 2 * fabs((double)log_l[r])));
            }
            if (!wanted || rows[r]->nan) continue;
            kt_close(t, (double)statistics.largest[r], largest, largest_error, "largest", r, 0);
            if (entropy)
                kt_close(t, (double)statistics.entropy[r], sum,
                         sum_error + 42 * u * (fabs(sum) + sum_error) + tiny, "entropy", r, 0);
        }
    }
}

/* The conversion to natural units has a constant (0.05 u) and a product. */
void check_tile_masked_scores(kernel_test *t)
{
    const strip_case c = make_tile(t, WITH_POISON | WITH_RUNS | WITH_TERMS | WITH_MASK);
    const strip_row **rows = strip_rows(t, &c);
    t->flops = strip_flops(&c);
    EACH_TABLE(t, k)
    {
        mhai_tile_mask mask;
        mhai_poison poison;
        mhai_tile tile = strip_tile(t, &c, &mask, &poison);
        tile.v = NULL;
        KERNEL_CALL(t) k->tile_masked_scores(&tile);
        for (int r = 0; r < c.rows; r++) {
            const float *s = tile.s + r * MHAI_SCORE_STRIDE;
            if (t->exact[t->table]) kt_bits_of(t, s + c.begin, c.end - c.begin);
            for (int j = c.begin; j < c.end; j++) {
                const score *x = &rows[r]->scores[j];
                const double exact = x->hidden ? -INFINITY : x->nan ? NAN : x->y * ln2;
                kt_close(t, (double)s[j], exact,
                         x->hidden ? 0 : x->error * ln2 + 1.05 * u * fabs(exact) + tiny, "score", r,
                         j);
            }
        }
    }
}

void check_tile_drop(kernel_test *t)
{
    strip_case c = make_tile(t, 0);
    const double part = kt_chance(t, 0.2) ? 0 : 0.3;
    float *before = kt_input(t, MHA_F32, c.rows, MHAI_SCORE_STRIDE, MHAI_SCORE_STRIDE);
    for (int64_t i = 0; i < c.rows * (int64_t)MHAI_SCORE_STRIDE; i++)
        before[i] = (float)rng_uniform(&t->r);
    c.drops = true;
    c.dropout = (mhai_dropout){.seed = {11, 12},
                               .threshold = (uint32_t)(part * 0x1p32),
                               .scale = (float)(1 / (1 - part)),
                               .key = 1024,
                               .batch = 1};
    for (int r = 0; r < c.rows; r++) c.dropout.query[r] = 3 * (uint32_t)r, c.dropout.head[r] = 1;
    t->bytes = 8.0 * c.rows * (double)(c.end - c.begin);
    EACH_TABLE(t, k)
    {
        mhai_tile_mask mask;
        mhai_poison poison;
        mhai_tile tile = strip_tile(t, &c, &mask, &poison);
        memcpy(tile.s, before, (size_t)c.rows * MHAI_SCORE_STRIDE * sizeof(float));
        tile.k = tile.v = tile.q = NULL;
        KERNEL_CALL(t) k->tile_drop(&tile);
        for (int r = 0; r < c.rows; r++)
            for (int j = c.begin; j < c.end; j++) {
                const int64_t at = r * (int64_t)MHAI_SCORE_STRIDE + j;
                kt_same(t, (double)tile.s[at],
                        (double)(float)((double)before[at] * strip_dropped(&c, r, j)), "s", r, j);
            }
    }
}
