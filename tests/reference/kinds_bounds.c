/* See kinds_bounds.h. Scores and their errors are in natural units; e, E, eps, theta and F are the
 * symbols of docs/numerics.md, and section numbers refer to it. */
#include "reference/kinds_bounds.h"

#include <math.h>
#include <stdlib.h>

static const double f32_u = 0x1p-24, log2e_error = 0.23;

typedef struct work {
    const ref_attention *a;
    const bound_arith *r;
    const kinds_row *row;
    kinds_sequence at;
    int64_t b, h, hk, t, blocks;
    double *error, *eps; /* [keys] e_s, and the relative error of p_s before the division */
    double *top, *tail;  /* [blocks + 1]; entry 0 is the sink, which precedes all blocks */
    double largest;      /* E */
    double eps_mean, eps_sink, theta;
} work;

static double at4(const mha_tensor *x, int64_t b, int64_t h, int64_t t, int64_t d)
{
    return x ? ref_element(x, (int64_t[]){b, h, t, d}) : 0;
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* The chain over d of q with a key or with a row of the Shaw table (3.1). */
static double chain_error(const work *w, const mha_tensor *x, int64_t i, bool table)
{
    const bound_arith *r = w->r;
    double c = fabs(ref_scale(w->a->desc, w->a->q->shape[3]));
    bound_chain sum = {0, 0};
    const int64_t D = w->a->q->shape[3];
    for (int64_t i_d = 0; i_d < D + r->pairs; i_d++) {
        const int64_t d = r->pairs ? i_d ^ 1 : i_d;
        if (d >= D) continue;
        double q = at4(w->a->q, w->at.batch, w->h, w->at.q0 + w->t, d);
        double k = table ? ref_element(x, (int64_t[]){i, d}) : at4(x, w->at.batch, w->hk, i, d);
        double q_wrong = at4(w->a->q_error, w->at.batch, w->h, w->at.q0 + w->t, d);
        double k_wrong = table ? 0 : at4(w->a->k_error, w->at.batch, w->hk, i, d);
        double moved = (fabs(q) + q_wrong) * (fabs(k) + k_wrong) - fabs(q * k);
        double rounded = r->u * fabs(q * k * c) + r->tiny * (fabs(k) + fabs(q * k));
        bound_chain_add(&sum, q * k * c, moved * c + rounded, r);
    }
    return sum.error + r->scale * (fabs(sum.value) + sum.error);
}

/* softcap tanh(x / softcap): incoming errors are scaled by the slope at the nearer end. The
 * roundings of x / softcap (2 u, and x tanh'(x) <= tanh(x)), of tanh (6.5 u) and of the product
 * follow. */
static double cap_error(const work *w, const kinds_score *x, double error)
{
    const bound_arith *r = w->r;
    double cap = (double)w->a->desc->softcap;
    double nearest = fmax(0, fabs(x->before_cap) - error) / cap, slope = 1 / cosh(nearest);
    double own = (2 + 6.5 + 2 + log2e_error) * r->u * fabs(x->capped);
    return error * slope * slope * (1 + 9 * r->u) + own * (1 + 9 * r->u) + 4 * r->tiny * (1 + cap);
}

/* ALiBi and T5 are f32 on every path. |s - i| (above 2^24), the product and the sum round. */
static double relative_error(const work *w, const kinds_score *x)
{
    const mha_attention_desc *desc = w->a->desc;
    double alibi = desc->alibi_slopes ? 2 * f32_u * fabs(x->alibi) : 0;
    bool both = desc->alibi_slopes && desc->t5_table;
    return alibi + (both ? f32_u * (fabs(x->alibi + x->t5) + alibi) : 0) + 0x1p-149;
}

/* An addition of a term in natural units: fma(term, log2 e, score). */
static double joined(const work *w, double sum, double error, double term)
{
    const bound_arith *r = w->r;
    error += log2e_error * r->u * fabs(term);
    if (!r->fused) error += r->u * fabs(term) + r->tiny;
    return error + r->u * (fabs(sum) + error) + r->tiny;
}

static double score_error(const work *w, int64_t s, double *before)
{
    const mha_attention_desc *desc = w->a->desc;
    kinds_score x = kinds_score_at(w->a, w->b, w->h, w->t, s);
    double error = chain_error(w, w->a->k, w->at.k0 + s, false);
    if (desc->shaw_keys) {
        int64_t i = kinds_shaw_row(w->a, desc->shaw_keys, w->b, w->t, s);
        error += chain_error(w, desc->shaw_keys, i, true);
        error += w->r->u * (fabs(x.before_cap) + error) + w->r->tiny;
    }
    *before = error;
    if (desc->softcap > 0) error = cap_error(w, &x, error);
    double sum = x.capped;
    if (desc->bias) error = joined(w, sum += x.bias, error, x.bias);
    if (desc->alibi_slopes || desc->t5_table) {
        error += relative_error(w, &x);
        error = joined(w, sum + x.alibi + x.t5, error, x.alibi + x.t5);
    }
    return error;
}

/* ---- the softmax ----------------------------------------------------------------------------- */

/* Running maxima, beginning with the sink, and the logarithm of the amplification by later
 * rescalings (3.3). A maximum that rises by less than the errors may not rise in the library. */
static void follow_blocks(work *w)
{
    const bound_arith *r = w->r;
    for (int64_t i = 0; i <= w->blocks; i++) w->top[i] = -INFINITY;
    w->top[0] = w->row->sink;
    w->largest = w->row->sink == -INFINITY ? 0 : 2 * r->u * fabs(w->row->sink);
    for (int64_t s = 0; s < w->row->keys; s++) {
        if (w->row->score[s] == -INFINITY) continue;
        double before;
        w->error[s] = score_error(w, s, &before);
        w->largest = fmax(w->largest, w->error[s]);
        double *top = &w->top[1 + s / r->key_block];
        *top = fmax(*top, w->row->score[s]);
    }
    for (int64_t i = 1; i <= w->blocks; i++) {
        double own = w->top[i], before = w->top[i - 1];
        bool may_rise = own > before - 2 * w->largest && before > -INFINITY;
        w->top[i] = fmax(own, before);
        if (may_rise) w->tail[i] = r->exponential + r->u * (w->top[i] - before + 2 * w->largest);
    }
    double tail = 0;
    for (int64_t i = w->blocks; i >= 0; i--) {
        double own = w->tail[i];
        w->tail[i] = tail;
        tail += own;
    }
}

/* The logarithm of the relative error of exp(score - max) for a score with this error (3.2). */
static double exponential_log(const work *w, double distance, double error)
{
    return error + w->r->u * (distance + 2 * w->largest) + w->r->exponential * 1.0001;
}

/* Flushed to zero, now or at the end: the error may be the whole number. */
static bool may_flush(const work *w, double score)
{
    return score - w->top[w->blocks] < w->r->flush * 0.6931471805599453 + 2 * w->largest + 1e-3;
}

static double weight_error(const work *w, int64_t block, double score, double error)
{
    double log_error = exponential_log(w, w->top[block] - score, error) + w->tail[block];
    return expm1(log_error) + (may_flush(w, score) ? 1 : 0);
}

/* eps_s, sum p_s eps_s and theta (3.3, 3.4). */
static void weigh(work *w)
{
    const bound_arith *r = w->r;
    const kinds_row *row = w->row;
    bool sink = row->sink > -INFINITY;
    int64_t touched = 0, terms = row->visible + sink;
    if (sink) w->eps_sink = weight_error(w, 0, row->sink, 2 * r->u * fabs(row->sink));
    w->eps_mean = row->sink_p * w->eps_sink;
    for (int64_t s = 0, last = -1; s < row->keys; s++) {
        if (row->score[s] == -INFINITY) continue;
        int64_t block = s / r->key_block;
        touched += block != last;
        last = block;
        w->eps[s] = weight_error(w, 1 + block, row->score[s], w->error[s]);
        w->eps_mean += row->p[s] * w->eps[s];
    }
    /* Each later block adds one; n terms never have more than n - 1. */
    double roundings = fmin((double)(terms - 1), r->sum_depth + (double)(touched - 1) + sink);
    roundings = fmax(roundings, 0);
    w->theta = roundings * r->u / (1 - roundings * r->u);
}

/* The rounding of a weight: half a step of bf16, or the whole weight if it may be too small for
 * bf16 in its block. */
static double weight_rounding(const work *w, int64_t s)
{
    const double away = w->row->score[s] - w->top[1 + s / w->r->key_block];
    return away < -49 * 0.6931471805599453 + 2 * w->largest ? 1 : w->r->weight;
}

/* ---- outputs --------------------------------------------------------------------------------- */

/* Element d of the sums over keys (F in 3.5), and the effect of the weights' errors: sum p eps
 * |k v - o|, where k is the factor of dropout. The factor and its product round (2 u). */
static double sum_error(const work *w, int64_t d, bool shaw)
{
    const bound_arith *r = w->r;
    const kinds_row *row = w->row;
    const bool drops = w->a->desc->dropout > 0;
    bound_chain block = {0, 0}, total = {0, 0};
    double spread = row->sink_p * w->eps_sink * fabs(row->ungated[d]), second = 0;
    const int64_t end = row->keys + (r->pairs && row->keys % 2);
    for (int64_t i = 0, current = -1; i <= end; i++) {
        const int64_t s = r->pairs && i < end ? i ^ 1 : i;
        if (i < end && (s >= row->keys || row->score[s] == -INFINITY)) continue;
        int64_t here = i < end ? s / r->key_block : -2;
        if (here != current) { /* o = o a + block sum */
            if (!r->fused) total.error += r->u * (fabs(total.value) + total.error);
            total.value += block.value;
            total.error += block.error;
            total.error += r->u * (fabs(total.value) + total.error) + 2 * r->tiny;
            block = (bound_chain){0, 0};
        }
        current = here;
        if (here == -2) break;
        double p = row->p[s] * row->factor[s];
        double v = at4(w->a->v, w->at.batch, w->hk, w->at.k0 + s, d);
        double whole = shaw ? kinds_value(w->a, w->b, w->h, w->t, s, d) : v;
        bound_chain_add(&block, p * v, 0, r);
        spread += w->eps[s] * row->p[s] * fabs(row->factor[s] * whole - row->ungated[d]);
        spread += p * (1 + w->eps[s]) * at4(w->a->v_error, w->at.batch, w->hk, w->at.k0 + s, d);
        if (drops) spread += 2.001 * r->u * p * fabs(whole) * (1 + w->eps[s]);
        /* partial sums are those of the wrong p: second order */
        second += (double)row->visible * r->u * p * fabs(v) * fmin(w->eps[s], 1);
        if (r->weight > 0) second += weight_rounding(w, s) * p * fabs(v) * (1 + w->eps[s]);
    }
    return spread + total.error + second;
}

/* Shaw's values: p is summed by distance, one key at a time (n additions and a rescaling per block,
 * at most two roundings). A chain over the distances follows, in blocks of 128 that are added to o.
 * `bins` is the sum of p at each distance, and `visits` is its number of keys. */
static double shaw_error(const work *w, int64_t d, const double *bins, const double *visits)
{
    const bound_arith *r = w->r;
    const mha_tensor *table = w->a->desc->shaw_values;
    bound_chain block = {0, 0}, total = {fabs(w->row->ungated[d]), 0};
    for (int64_t i = 0; i <= table->shape[0]; i++) {
        if (i % 128 == 0 || i == table->shape[0]) {
            total.value += fabs(block.value);
            total.error += block.error;
            total.error += r->u * (total.value + total.error) + r->tiny;
            block = (bound_chain){0, 0};
        }
        if (i == table->shape[0]) break;
        double wrong = (visits[i] + 2 * (double)w->blocks) * r->u;
        double value = ref_element(table, (int64_t[]){i, d});
        bound_chain_add(&block, bins[i] * value,
                        1.001 * wrong * bins[i] * fabs(value) + r->tiny * fabs(value), r);
    }
    return total.error;
}

/* With large errors of scores, o is still a weighted mean of visible values, and of 0 if there is a
 * sink: no farther from the exact one than any of them (3.6). Roundings are of the values' size. */
static double loose_error(const work *w, int64_t d)
{
    const double o = w->row->ungated[d];
    const double roundings = (double)(w->row->visible + 60) * w->r->u;
    double size = fabs(o), farthest = w->row->sink > -INFINITY ? size : 0;
    for (int64_t s = 0; s < w->row->keys; s++) {
        if (w->row->score[s] == -INFINITY) continue;
        const double factor = w->row->factor[s];
        const double value = factor * kinds_value(w->a, w->b, w->h, w->t, s, d);
        const double error = factor * at4(w->a->v_error, w->at.batch, w->hk, w->at.k0 + s, d);
        farthest = fmax(farthest, fabs(value - o) + error);
        size = fmax(size, fabs(value) + error);
    }
    return farthest + (4 * roundings + w->r->weight) * size;
}

static void bound_outputs(const work *w, double *bound)
{
    const bound_arith *r = w->r;
    const kinds_row *row = w->row;
    const mha_tensor *table = w->a->desc->shaw_values;
    double *bins = ref_doubles(table ? table->shape[0] : 0),
           *visits = ref_doubles(table ? table->shape[0] : 0);
    for (int64_t s = 0; table && s < row->keys; s++) {
        if (row->score[s] == -INFINITY) continue;
        int64_t i = kinds_shaw_row(w->a, table, w->b, w->t, s);
        bins[i] += row->p[s] * row->factor[s];
        visits[i]++;
    }
    double wrong = w->eps_mean + w->theta, gate = fabs(kinds_gate(w->a, w->b, w->h));
    for (int64_t d = 0; d < row->value_dim; d++) {
        double o = fabs(row->ungated[d]), error;
        if (wrong < 0.5) {
            error = sum_error(w, d, table != NULL) + o * w->theta * (1 + w->eps_mean);
            if (table) error += shaw_error(w, d, bins, visits);
            error /= 1 - wrong;
        } else {
            error = loose_error(w, d);
        }
        double rounded = error + r->out_u * (o + error) + r->out_tiny; /* the division */
        rounded = rounded * gate + (w->a->desc->gates ? r->out_u * gate * (o + rounded) : 0);
        bound[d] = rounded * bound_slack + 2 * r->out_tiny;
    }
    free(bins);
    free(visits);
}

/* p = exp(score - m) / l with the final m and l, and their sum, in which errors of scores cancel (3.7). */
static void bound_probabilities(const work *w, bound_row *bound)
{
    const bound_arith *r = w->r;
    double wrong = fmin(w->eps_mean + w->theta, 0.999999), top = w->top[w->blocks];
    bound->sum = w->theta + 2 * r->out_u;
    for (int64_t s = 0; s < w->row->keys; s++) {
        bound->p[s] = 0;
        double score = w->row->score[s];
        if (score == -INFINITY) continue;
        int64_t block = 1 + s / r->key_block;
        double relative = exp(exponential_log(w, top - score, w->error[s]));
        relative = relative * (1 + r->out_u) / (1 - wrong) - 1;
        if (may_flush(w, score)) relative += 1;
        bound->p[s] = fmin(w->row->p[s] * relative, 1 + 4 * r->out_u) * bound_slack + r->out_tiny;
        double differs = w->tail[block] == 0 ? 0
                                             : exponential_log(w, top - score, 0) + w->tail[block] +
                                                   exponential_log(w, w->top[block] - score, 0);
        bound->sum += w->row->p[s] * expm1(differs) * (1 + relative) +
                      (may_flush(w, score) ? 0x1p-125 : 0) + r->out_tiny;
    }
}

static void bound_lse(const work *w, bound_row *bound)
{
    double wrong = w->eps_mean + w->theta + w->eps_mean * w->theta;
    double mean = wrong < 0.5 ? -log1p(-wrong) : INFINITY;
    /* The sum's error is at most that of its worst term; there are none beyond e^-90. */
    double most = exponential_log(w, 100, w->largest) + w->tail[0] + 1.01 * w->theta;
    double error = fmin(mean, most), lse = fabs(w->row->lse);
    bound->lse = (error + w->r->out_u * (lse + error) + 0x1p-48 * (lse + 1000)) * bound_slack +
                 w->r->out_tiny;
}

void kinds_bound_row(const ref_attention *a, const bound_arith *arith, int64_t b, int64_t h,
                     int64_t t, const kinds_row *row, bound_row *bound)
{
    for (int64_t d = 0; d < row->value_dim; d++) bound->o[d] = 0;
    for (int64_t s = 0; s < row->keys; s++) bound->p[s] = 0;
    bound->lse = bound->sum = 0;
    if (row->visible == 0) { /* lse is -inf or the sink, converted to units of log2 e and back */
        if (row->sink > -INFINITY) bound->lse = 3 * f32_u * fabs(row->sink) + 0x1p-149;
        return;
    }
    int64_t blocks = (row->keys - 1) / arith->key_block + 1;
    work w = {.a = a,
              .r = arith,
              .row = row,
              .at = kinds_sequence_at(a, b),
              .b = b,
              .h = h,
              .hk = h / (a->q->shape[1] / a->k->shape[1]),
              .t = t,
              .blocks = blocks,
              .error = ref_doubles(row->keys),
              .eps = ref_doubles(row->keys),
              .top = ref_doubles(blocks + 1),
              .tail = ref_doubles(blocks + 1)};
    follow_blocks(&w);
    weigh(&w);
    bound_outputs(&w, bound->o);
    bound_probabilities(&w, bound);
    bound_lse(&w, bound);
    free(w.error);
    free(w.eps);
    free(w.top);
    free(w.tail);
}

static work work_of(const ref_attention *a, const bound_arith *arith, int64_t b, int64_t h,
                    int64_t t)
{
    return (work){.a = a,
                  .r = arith,
                  .at = kinds_sequence_at(a, b),
                  .b = b,
                  .h = h,
                  .hk = h / (a->q->shape[1] / a->k->shape[1]),
                  .t = t};
}

double kinds_score_error(const ref_attention *a, const bound_arith *arith, int64_t b, int64_t h,
                         int64_t t, int64_t s, double *before)
{
    const work w = work_of(a, arith, b, h, t);
    return score_error(&w, s, before);
}

double kinds_bound_score(const ref_attention *a, const bound_arith *arith, int64_t b, int64_t h,
                         int64_t t, int64_t s, mha_score_stage stage, const kinds_score *x)
{
    const work w = work_of(a, arith, b, h, t);
    double raw, error = score_error(&w, s, &raw), value = x->sum;
    if (stage == MHA_SCORES_RAW) error = raw, value = x->before_cap;
    if (stage == MHA_SCORES_CAPPED) {
        error = a->desc->softcap > 0 ? cap_error(&w, x, raw) : raw;
        value = x->capped;
    }
    /* The tiled path multiplies by ln 2, which f32 represents with an error of 0.05 u, and the
     * product rounds. The plain path rounds. */
    return (error + 1.05 * f32_u * (fabs(value) + error)) * bound_slack + 0x1p-148;
}

/* The error of sum p (-log p) is the error of p times -log p, and p times the error of -log p = log
 * l + m - s. The latter is at most the logarithm of p's relative error, the error of lse, and three
 * roundings of positive parts. A sum of positive terms follows: 36 roundings in a block, sums of
 * blocks in double, and the product with ln 2. */
double kinds_bound_entropy(const kinds_row *row, const bound_row *bound)
{
    double sum = 0, error = 0;
    for (int64_t s = 0; s < row->keys; s++) {
        double p = row->p[s], wrong = bound->p[s];
        if (p <= 0) continue;
        if (wrong >= 0.5) return INFINITY;
        double log_p = -log(p), relative = fmin(wrong / p, 2);
        sum += p * log_p;
        error += wrong * (log_p + relative);
        error += (p + wrong) * (relative + bound->lse + 3 * f32_u * log_p);
    }
    return (error + 42 * f32_u * (sum + error)) * bound_slack + 0x1p-120;
}

void kinds_check_rows(const kinds_case *c, rng *r, double budget, kinds_check_fn *check, void *user)
{
    const kinds_shape *n = &c->shape;
    const ref_attention a = kinds_reference(c);
    const double row_work = (double)(n->S + 1) * (double)(n->D + 2 * n->Dv + 20);
    const int64_t rows = n->B * n->H * n->T, most = 2 + (int64_t)(budget / row_work);
    kinds_row row = kinds_row_make(n->S, n->Dv);
    bound_row bound = bound_row_make(n->S, n->Dv);
    for (int64_t i = 0; i < most && i < rows; i++) {
        const int64_t at = rows <= most ? i : i == 0 ? rows - 1 : rng_between(r, 0, rows - 1);
        const int64_t b = at / n->H / n->T, t = at % n->T;
        if (t < kinds_sequence_at(&a, b).T) check(user, b, at / n->T % n->H, t, &row, &bound);
    }
    kinds_row_free(&row);
    bound_row_free(&bound);
}
