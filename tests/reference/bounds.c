/* See bounds.h. Letters as in docs/numerics.md; scores and their errors are in units of log2 e, as in the kernels. */
#include "reference/bounds.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const double log2e = 1.4426950408889634, ln2 = 0.6931471805599453;

/* The reference's own rounding, as a factor of bounds that are sums of many terms. */
static const double reference_slack = 1 + 0x1p-24;

static double *doubles(int64_t count)
{
    double *memory = calloc((size_t)(count > 0 ? count : 1), sizeof *memory);
    if (memory) return memory;
    fprintf(stderr, "bounds: no memory\n");
    abort();
}

bound_arith bound_arith_tiled(mha_isa isa, bool default_scale)
{
    const double u = 0x1p-24;
    return (bound_arith){.u = u,
                         .tiny = 0x1p-150,
                         .exponential = 3.5 * u,
                         .scale = default_scale ? 2 * u : u, /* 1/sqrt(D), then times log2 e */
                         .bias = 0.23 * u,                   /* log2 e in f32 */
                         .flush = -126,
                         .key_block = 512,
                         .sum_depth = 31 + 4, /* 16 lanes of 32 keys, then a tree */
                         .fused = isa != MHA_ISA_PORTABLE,
                         .out_u = u,
                         .out_tiny = 0x1p-150};
}

bound_arith bound_arith_bf16(mha_isa isa, bool default_scale)
{
    bound_arith arith = bound_arith_tiled(isa, default_scale);
    arith.weight = 0x1p-8;
    arith.pairs = true;
    return arith;
}

bound_arith bound_arith_plain(bool default_scale)
{
    /* Twice the error of double arithmetic, for the library and for the reference. */
    const double u = 0x1p-52;
    return (bound_arith){.u = u,
                         .tiny = 0x1p-1000,
                         .exponential = 2 * u,
                         .scale = default_scale ? 0x1p-24 : u, /* 1/sqrt(D) rounded to f32 */
                         .bias = 0,
                         .flush = -1000,
                         .key_block = INT64_MAX / 2,
                         .sum_depth = INFINITY,
                         .fused = false,
                         .out_u = 0x1p-24,
                         .out_tiny = 0x1p-150};
}

bound_row bound_row_make(int64_t keys, int64_t value_dim)
{
    return (bound_row){.p = doubles(keys), .o = doubles(value_dim)};
}

void bound_row_free(bound_row *bound)
{
    free(bound->p);
    free(bound->o);
    *bound = (bound_row){0};
}

/* A growing sum in exact arithmetic, and the running error bound of the rounded sum (section 2). */
typedef struct running {
    double value, error;
} running;

static inline void running_add(running *r, double product, double product_error,
                               const bound_arith *a)
{
    if (!a->fused) product_error += a->u * (fabs(product) + product_error) + a->tiny;
    r->value += product;
    r->error += product_error;
    r->error += a->u * (fabs(r->value) + r->error) + a->tiny;
}

/* ---- attention ------------------------------------------------------------------------------ */

/* Data of one row for the steps below. */
typedef struct row_work {
    const ref_attention *a;
    const bound_arith *arith;
    const ref_row *row;
    int64_t b, h, hk, t;
    double *score_error; /* [S], e_s */
    double *epsilon;     /* [S], relative error of p_s before the division */
    double *block_max;   /* [blocks], running maximum after each block */
    double *block_tail;  /* [blocks], log of the amplification of an error by later rescalings */
    int64_t blocks;
    double largest_error; /* E, largest e_s */
    double epsilon_mean;  /* sum p_s epsilon_s */
    double theta;         /* relative error of summing l */
} row_work;

static double at(const mha_tensor *x, int64_t b, int64_t h, int64_t t, int64_t d)
{
    return x ? ref_element(x, (int64_t[]){b, h, t, d}) : 0;
}

/* e_s (section 3.1) has the rounding of q * c, the chain over d, the scale, and the bias. */
static double score_error(const row_work *w, int64_t s)
{
    const ref_attention *a = w->a;
    const bound_arith *r = w->arith;
    double c = fabs(ref_scale(a->desc, a->q->shape[3])) * log2e;
    running sum = {0, 0};
    for (int64_t d = 0; d < a->q->shape[3]; d++) {
        double q = at(a->q, w->b, w->h, w->t, d), k = at(a->k, w->b, w->hk, s, d);
        double qe = at(a->q_error, w->b, w->h, w->t, d), ke = at(a->k_error, w->b, w->hk, s, d);
        double moved = (fabs(q) + qe) * (fabs(k) + ke) - fabs(q * k);
        double rounded = r->u * fabs(q * k * c) + r->tiny * (fabs(k) + fabs(q * k));
        running_add(&sum, q * k * c, moved * c + rounded, r);
    }
    double error = sum.error + r->scale * (fabs(sum.value) + sum.error);
    if (!a->desc || !a->desc->bias) return error;
    double bias = ref_broadcast(a->desc->bias, w->b, w->h, w->t, s) * log2e;
    if (!r->fused) error += r->u * fabs(bias);
    error += r->bias * fabs(bias);
    return error + r->u * (fabs(sum.value + bias) + error) + r->tiny;
}

/* Running maxima and, for each block, the errors of later rescalings (3.3). A maximum that rises by
 * less than the errors may not rise in the library. */
static void follow_blocks(row_work *w)
{
    const bound_arith *r = w->arith;
    for (int64_t i = 0; i < w->blocks; i++) w->block_max[i] = -INFINITY;
    w->largest_error = 0;
    for (int64_t s = 0; s < w->row->keys; s++) {
        double y = w->row->score[s] * log2e;
        if (y == -INFINITY) continue;
        w->score_error[s] = score_error(w, s);
        double *max = &w->block_max[s / r->key_block];
        *max = fmax(*max, y);
        w->largest_error = fmax(w->largest_error, w->score_error[s]);
    }
    for (int64_t i = 1; i < w->blocks; i++) {
        double own = w->block_max[i], before = w->block_max[i - 1];
        bool may_rise = own > before - 2 * w->largest_error && before > -INFINITY;
        w->block_max[i] = fmax(own, before);
        w->block_tail[i] =
            may_rise
                ? r->exponential + ln2 * r->u * (w->block_max[i] - before + 2 * w->largest_error)
                : 0;
    }
    double tail = 0;
    for (int64_t i = w->blocks - 1; i >= 0; i--) {
        double own = w->block_tail[i];
        w->block_tail[i] = tail;
        tail += own;
    }
}

/* The logarithm of the relative error of 2^(y - max) for a y with this error (3.2). */
static double exponential_log(const row_work *w, double distance, double error)
{
    const bound_arith *r = w->arith;
    return ln2 * (error + r->u * (distance + 2 * w->largest_error)) + r->exponential * 1.0001;
}

/* If the number is flushed to zero, now or at the end, the error may be the whole number. */
static bool may_flush(const row_work *w, double y)
{
    double last = w->block_max[w->blocks - 1];
    return y - last < w->arith->flush + 2 * w->largest_error + 1e-3;
}

/* epsilon_s, sum p_s epsilon_s and theta (3.3, 3.4). */
static void weigh(row_work *w)
{
    const bound_arith *r = w->arith;
    int64_t touched = 0;
    w->epsilon_mean = 0;
    for (int64_t s = 0, last = -1; s < w->row->keys; s++) {
        if (w->row->score[s] == -INFINITY) continue;
        int64_t block = s / r->key_block;
        touched += block != last;
        last = block;
        double y = w->row->score[s] * log2e;
        double log_error = exponential_log(w, w->block_max[block] - y, w->score_error[s]);
        w->epsilon[s] = expm1(log_error + w->block_tail[block]) + (may_flush(w, y) ? 1 : 0);
        w->epsilon_mean += w->row->p[s] * w->epsilon[s];
    }
    /* Each later block adds one addition; n terms never have more than n - 1. */
    double roundings = fmin((double)(w->row->visible - 1), r->sum_depth + (double)(touched - 1));
    w->theta = roundings * r->u / (1 - roundings * r->u);
}

/* The sums of o (3.5), scaled so that the final sum is o. */
static void output_chain(const row_work *w, running *block, running *total, double *spread,
                         double *moved)
{
    const bound_arith *r = w->arith;
    const int64_t dv = w->row->value_dim;
    double most = 0;
    for (int64_t s = 0, current = -1; s <= w->row->keys; s++) {
        if (s < w->row->keys && w->row->score[s] == -INFINITY) continue;
        int64_t here = s < w->row->keys ? s / r->key_block : -2;
        for (int64_t d = 0; here != current && d < dv; d++) { /* o = o a + block sum */
            double rescaling = r->fused ? 0 : r->u * (fabs(total[d].value) + total[d].error);
            total[d].value += block[d].value;
            total[d].error += block[d].error + rescaling;
            total[d].error += r->u * (fabs(total[d].value) + total[d].error) + 2 * r->tiny;
            block[d] = (running){0, 0};
        }
        current = here;
        if (here == -2) break;
        most = fmax(most, w->epsilon[s]);
        for (int64_t d = 0; d < dv; d++) {
            double v = at(w->a->v, w->b, w->hk, s, d), ve = at(w->a->v_error, w->b, w->hk, s, d);
            running_add(&block[d], w->row->p[s] * v, 0, r);
            spread[d] += w->row->p[s] * w->epsilon[s] * fabs(v - w->row->o[d]);
            moved[d] += w->row->p[s] * (1 + w->epsilon[s]) * ve;
            /* partial sums use p with its error: second order */
            total[d].error +=
                (double)w->row->visible * r->u * w->row->p[s] * fabs(v) * fmin(w->epsilon[s], 1);
        }
    }
}

static void bound_outputs(const row_work *w, double *bound)
{
    const bound_arith *r = w->arith;
    const int64_t dv = w->row->value_dim;
    running *block = calloc((size_t)(dv + 1), sizeof *block);
    running *total = calloc((size_t)(dv + 1), sizeof *total);
    double *spread = doubles(dv), *moved = doubles(dv);
    if (!block || !total) abort();
    output_chain(w, block, total, spread, moved);
    double wrong = w->epsilon_mean + w->theta;
    for (int64_t d = 0; d < dv; d++) {
        double o = fabs(w->row->o[d]);
        double error =
            wrong < 0.5
                ? (spread[d] + total[d].error + moved[d] + o * w->theta * (1 + w->epsilon_mean)) /
                      (1 - wrong)
                : INFINITY;
        if (wrong >= 0.5) { /* o is still a mean of visible values (3.6) */
            double farthest = 0;
            for (int64_t s = 0; s < w->row->keys; s++)
                if (w->row->score[s] != -INFINITY)
                    farthest = fmax(farthest, fabs(at(w->a->v, w->b, w->hk, s, d) - w->row->o[d]) +
                                                  at(w->a->v_error, w->b, w->hk, s, d));
            error = farthest * (1 + (double)(w->row->visible + 40) * r->u) +
                    o * (double)(w->row->visible + 40) * r->u;
        }
        bound[d] = (error + r->out_u * (o + error)) * reference_slack + 2 * r->out_tiny;
    }
    free(block);
    free(total);
    free(spread);
    free(moved);
}

/* p = 2^(score - m) / l with the final m and l, and the sum of p, in which errors of scores cancel
 * (3.7). */
static void bound_probabilities(const row_work *w, bound_row *bound)
{
    const bound_arith *r = w->arith;
    double wrong = fmin(w->epsilon_mean + w->theta, 0.999999);
    double top = w->block_max[w->blocks - 1];
    bound->sum = w->theta + 2 * r->out_u;
    for (int64_t s = 0; s < w->row->keys; s++) {
        bound->p[s] = 0;
        if (w->row->score[s] == -INFINITY) continue;
        double y = w->row->score[s] * log2e, p = w->row->p[s];
        int64_t block = s / r->key_block;
        double relative = expm1(exponential_log(w, top - y, w->score_error[s]));
        relative = (1 + relative) * (1 + r->out_u) / (1 - wrong) - 1;
        if (may_flush(w, y)) relative += 1;
        bound->p[s] = fmin(p * relative, 1 + 4 * r->out_u) * reference_slack + r->out_tiny;
        double differs = w->block_tail[block] == 0
                             ? 0
                             : exponential_log(w, top - y, 0) + w->block_tail[block] +
                                   exponential_log(w, w->block_max[block] - y, 0);
        bound->sum +=
            p * expm1(differs) * (1 + relative) + (may_flush(w, y) ? 0x1p-125 : 0) + r->out_tiny;
    }
}

static void bound_lse(const row_work *w, bound_row *bound)
{
    double wrong = w->epsilon_mean + w->theta + w->epsilon_mean * w->theta;
    double mean = wrong < 0.5 ? -log1p(-wrong) : INFINITY;
    /* The sum's error is at most the worst term's error. No terms are below 2^-130. */
    double most = exponential_log(w, 130, w->largest_error) + w->block_tail[0] + 1.01 * w->theta;
    double error = fmin(mean, most);
    const double lse = fabs(w->row->lse);
    bound->lse =
        (error + w->arith->out_u * (lse + error) + 0x1p-48 * (lse + 1000)) * reference_slack +
        w->arith->out_tiny;
}

void bound_attention_row(const ref_attention *a, const bound_arith *arith, int64_t b, int64_t h,
                         int64_t t, const ref_row *row, bound_row *bound)
{
    for (int64_t d = 0; d < row->value_dim; d++) bound->o[d] = 0;
    for (int64_t s = 0; s < row->keys; s++) bound->p[s] = 0;
    bound->lse = bound->sum = 0;
    if (row->visible == 0) return; /* o = 0, p = 0 and lse = -inf are exact */
    int64_t blocks = (row->keys - 1) / arith->key_block + 1;
    row_work w = {.a = a,
                  .arith = arith,
                  .row = row,
                  .b = b,
                  .h = h,
                  .hk = h / (a->q->shape[1] / a->k->shape[1]),
                  .t = t,
                  .score_error = doubles(row->keys),
                  .epsilon = doubles(row->keys),
                  .block_max = doubles(blocks),
                  .block_tail = doubles(blocks),
                  .blocks = blocks};
    follow_blocks(&w);
    weigh(&w);
    bound_outputs(&w, bound->o);
    bound_probabilities(&w, bound);
    bound_lse(&w, bound);
    free(w.score_error);
    free(w.epsilon);
    free(w.block_max);
    free(w.block_tail);
}

/* ---- layers --------------------------------------------------------------------------------- */

double bound_linear(const mha_tensor *x, const mha_tensor *x_error, const mha_tensor *weight,
                    const mha_tensor *bias, bool fused, int64_t m, int64_t n)
{
    const bound_arith r = {.u = 0x1p-24, .tiny = 0x1p-150, .fused = fused};
    running total = {bias ? ref_element(bias, &n) : 0, 0};
    for (int64_t from = 0; from < x->shape[1]; from += 128) {
        int64_t to = from + 128 < x->shape[1] ? from + 128 : x->shape[1];
        running block = {0, 0};
        for (int64_t k = from; k < to; k++) {
            double w = ref_element(weight, (int64_t[]){n, k});
            double wrong = x_error ? fabs(w) * ref_element(x_error, (int64_t[]){m, k}) : 0;
            running_add(&block, ref_element(x, (int64_t[]){m, k}) * w, wrong, &r);
        }
        total.value += block.value;
        total.error += block.error;
        total.error += r.u * (fabs(total.value) + total.error);
    }
    return total.error * reference_slack;
}

double bound_gelu(double x, double x_error)
{
    /* The slope of x Phi(x) is at most 1.129 (section 6). */
    return 1.13 * x_error + 5 * 0x1p-24 * (fabs(x) + x_error) + 0x1p-149;
}

void bound_layer_norm(const mha_tensor *x, const mha_tensor *residual, const mha_tensor *weight,
                      const mha_tensor *bias, double epsilon, int64_t m, const double *y,
                      double *bound)
{
    const double u = 0x1p-24;
    int64_t n = x->shape[1];
    double mean = 0, size = 0, squares = 0, variance = 0;
    double *z = doubles(n);
    for (int64_t i = 0; i < n; i++) {
        z[i] = ref_element(x, (int64_t[]){m, i});
        if (residual) z[i] += ref_element(residual, (int64_t[]){m, i});
        mean += z[i] / (double)n;
        size += fabs(z[i]) / (double)n;
        squares += z[i] * z[i] / (double)n;
    }
    for (int64_t i = 0; i < n; i++) variance += (z[i] - mean) * (z[i] - mean) / (double)n;
    double sigma = sqrt(variance + epsilon);
    double wrong = residual ? u : 0;        /* relative error of each z */
    double own = (double)(n + 8) * 0x1p-52; /* error of both sums in double */
    double moved = (wrong + own) * sqrt(squares) + (residual ? 0x1p-150 : 0);
    for (int64_t i = 0; i < n; i++) {
        double w = fabs(ref_element(weight, &i)), c = fabs(z[i] - mean);
        double centred = (wrong + own) * (fabs(z[i]) + size) + (residual ? 0x1p-149 : 0);
        double scaled = sigma > 2 * moved
                            ? w / (sigma - moved) * (centred + c * (moved / sigma + own))
                            : INFINITY;
        double added = own * (w * c / sigma + fabs(ref_element(bias, &i)));
        bound[i] = (scaled + added) * (1 + u) + u * fabs(y[i]) + 0x1p-150;
    }
    free(z);
}
