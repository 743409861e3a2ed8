/* See backward_bounds.h. Every gradient is linear in the numbers of a backward_share, so its bound is backward_add()
 * with their errors and the magnitudes of their factors. */
#include "reference/backward_bounds.h"

#include "reference/kinds_bounds.h"

#include <math.h>

static const double slack = 1 + 0x1p-20; /* covers the reference's error and second-order terms */
static const double f32_u = 0x1p-24;

typedef struct work {
    const ref_attention *a;
    const bound_arith *r;
    const backward_loss *loss;
    backward_arrays *bound;
    double q_steps, k_steps; /* maximum roundings of a term of dq, of dk or dv */
    bound_row row;           /* the forward call's bounds of the current row */
    int64_t b, h, t;         /* indices of the row */
    kinds_row exact;
    double sum_wrong, sum_size; /* error of the row's sum p w, and sum p |w| */
} work;

static double gradient_at(const work *w, const backward_pair *p, int64_t d)
{
    return ref_element(w->loss->o, (int64_t[]){p->at.batch, p->h, p->at.q0 + p->t, d});
}

/* The relative error of p = exp(score - lse), with the forward call's f32 lse. */
static double weight_error(const work *w, double score, double lse, double score_error)
{
    double lse_error = w->row.lse + 2 * w->r->u * fabs(lse);
    double distance = fabs(score - lse) + score_error + lse_error;
    double error = score_error + lse_error + w->r->u * distance + w->r->exponential;
    bool flushed = score - lse < w->r->flush * 0.6931471805599453 + 1 + error;
    return expm1(fmin(error, 700)) + (flushed ? 1 : 0);
}

/* sum p w is in double. It has the error of p, and dropout rounds p once more. */
static void bound_weights(work *w, const backward_pair *p)
{
    w->sum_wrong = w->sum_size = 0;
    if (!w->loss->probabilities && !w->loss->average) return;
    for (int64_t s = 0; s < w->exact.keys; s++) {
        if (!(w->exact.p[s] > 0)) continue;
        double before, size = w->exact.p[s] * fabs(backward_weight(w->loss, w->a, p->b, p->h, p->t,
                                                                   s, w->exact.factor[s]));
        double score_error = kinds_score_error(w->a, w->r, p->b, p->h, p->t, s, &before);
        double relative = weight_error(w, w->exact.score[s], w->exact.lse, score_error);
        w->sum_wrong += size * (relative + 2 * w->r->u * (1 + relative));
        w->sum_size += size;
    }
}

/* Stores the forward call's bounds of a row while its pairs are visited. */
static void enter_row(work *w, const backward_pair *p)
{
    if (w->b == p->b && w->h == p->h && w->t == p->t) return;
    w->b = p->b, w->h = p->h, w->t = p->t;
    kinds_attention_row(w->a, p->b, p->h, p->t, &w->exact);
    kinds_bound_row(w->a, w->r, p->b, p->h, p->t, &w->exact, &w->row);
    bound_weights(w, p);
}

/* delta has the errors of o and sum p w, and its own rounding. */
static double delta_error(const work *w, const backward_pair *p)
{
    double error = w->sum_wrong, size = w->sum_size;
    if (w->loss->lse)
        size += fabs(ref_element(w->loss->lse, (int64_t[]){p->at.batch, p->h, p->at.q0 + p->t}));
    for (int64_t d = 0; d < w->exact.value_dim; d++) {
        error += fabs(gradient_at(w, p, d)) * w->row.o[d];
        size += fabs(gradient_at(w, p, d) * w->exact.o[d]);
    }
    return error + 0x1p-40 * size + w->r->u * (fabs(p->delta) + error) + w->r->tiny;
}

/* x = g . (v + shaw) has chains of Dv products and one more addition. */
static double x_error(const work *w, const backward_pair *p)
{
    double size = 0, Dv = (double)w->exact.value_dim;
    const mha_tensor *table = w->a->desc->shaw_values;
    int64_t row = table ? kinds_shaw_row(w->a, table, p->b, p->t, p->s) : 0;
    for (int64_t d = 0; d < w->exact.value_dim; d++) {
        double v = ref_element(w->a->v, (int64_t[]){p->at.batch, p->hk, p->at.k0 + p->s, d});
        double shaw = table ? ref_element(table, (int64_t[]){row, d}) : 0;
        size += fabs(gradient_at(w, p, d)) * (fabs(v) + fabs(shaw));
    }
    return (Dv + 2) * w->r->u * size + (Dv + 2) * w->r->tiny;
}

static void bound_pair(void *user, const backward_pair *p)
{
    work *w = user;
    const double u = w->r->u, tiny = w->r->tiny;
    if (p->p == 0) return; /* exp underflowed in double and in the library */
    enter_row(w, p);
    double before, score_error = kinds_score_error(w->a, w->r, p->b, p->h, p->t, p->s, &before);
    double relative = weight_error(w, p->score, p->lse, score_error), x_wrong = x_error(w, p);
    double passed = fabs(p->gate * p->factor), dp = passed * fabs(p->x);
    double inner = fabs(p->gate * p->factor * p->x - p->delta), given = fabs(p->w);
    double inner_wrong = passed * x_wrong * (1 + 4 * u) + 3 * u * dp + delta_error(w, p) + tiny;
    inner_wrong += u * (inner + inner_wrong);
    double ds_wrong =
        p->p * (relative * inner + (1 + relative) * (inner_wrong * (1 + u) + u * inner)) + tiny;
    if (given > 0) /* p w uses a separate p; the sum is in double and rounded */
        ds_wrong += p->p * given * (relative + 2 * u * (1 + relative)) + 2 * u * fabs(p->ds);
    double cap = (double)w->a->desc->softcap, slope_wrong = 0;
    if (cap > 0) slope_wrong = 16 * u + 0.7699 * before / cap;
    double dx = fabs(p->ds) * p->slope;
    double dx_wrong = ds_wrong * (p->slope + slope_wrong) + fabs(p->ds) * slope_wrong + u * dx;
    double kept = p->p * p->factor, kept_wrong = kept * (relative + 4 * u * (1 + relative)) + tiny;
    double keys = (double)w->exact.keys;
    const backward_share share = {.ds = ds_wrong + 4 * u * fabs(p->ds),
                                  .dx_q = dx_wrong + w->q_steps * u * dx,
                                  .dx_k = dx_wrong + w->k_steps * u * dx,
                                  .dx_c = dx_wrong + w->q_steps * u * dx,
                                  .w = fabs(p->gate) * kept_wrong +
                                       w->k_steps * u * fabs(p->gate) * kept,
                                  .gate = kept_wrong * (fabs(p->x) + x_wrong) + kept * x_wrong +
                                          (keys + 4) * u * kept * fabs(p->x)};
    backward_add(w->a, w->loss->o, p, &share, true, w->bound);
}

/* Gradients of sinks are exp(sink - lse) delta, in double on every path. */
static void bound_sink(void *user, int64_t b, int64_t h, int64_t t, const kinds_row *row,
                       double delta)
{
    work *w = user;
    if (!w->a->desc->sink_logits || row->sink_p == 0) return;
    backward_pair p = {.at = kinds_sequence_at(w->a, b), .b = b, .h = h, .t = t, .delta = delta};
    enter_row(w, &p);
    double relative = expm1(fmin(w->row.lse * 1.001 + 1e-12, 700)), wrong = delta_error(w, &p);
    w->bound->of[BACKWARD_SINKS][h] +=
        row->sink_p * (relative * (fabs(delta) + wrong) + wrong + 1e-12 * fabs(delta));
}

/* The relative error of a sum's factor. In the plain path, the factor is the scale, by default
 * 1/sqrt(D) rounded to f32; otherwise it has a few roundings of f32. */
static double factor_error(const bound_arith *arith, int which)
{
    if (arith->u > 0x1p-30) return 4 * arith->u;
    return which == BACKWARD_Q || which == BACKWARD_K || which == BACKWARD_SHAW_K ? arith->scale
                                                                                  : 0;
}

void backward_bounds(const ref_attention *a, const bound_arith *arith, const backward_loss *loss,
                     const backward_arrays *exact, backward_arrays *bound)
{
    const mha_tensor *keys = a->desc->shaw_keys, *values = a->desc->shaw_values;
    double group = (double)(a->q->shape[1] / (a->k->shape[1] ? a->k->shape[1] : 1));
    double rows = (double)a->q->shape[2], columns = (double)a->k->shape[2];
    double tables = (keys ? (double)keys->shape[0] : 0) + (values ? (double)values->shape[0] : 0);
    int64_t longest = 0;
    for (int64_t b = 0; b < kinds_sequences(a); b++)
        if (kinds_sequence_at(a, b).S > longest) longest = kinds_sequence_at(a, b).S;
    work w = {.a = a, .r = arith, .loss = loss, .bound = bound, .b = -1};
    /* dq has chains of up to 256 keys, then blocks. Shaw's sums have every key, then the table's
     * rows. */
    w.q_steps = fmin(columns, 256) + columns / 256 + 8 + (keys ? columns + tables : 0);
    /* dk and dv have chains of up to 112 queries, then chunks of every head of the group. Shaw's
     * tables have the sums by distance first, and sums over chunks in double. */
    w.k_steps = fmin(rows, 112) + group * (rows / 112 + 1) + 8 + (tables > 0 ? columns : 0);
    w.exact = kinds_row_make(longest, a->v->shape[3]);
    w.row = bound_row_make(longest, a->v->shape[3]);
    backward_walk(a, loss, bound_pair, bound_sink, &w);
    for (int i = 0; i < BACKWARD_COUNT; i++) {
        const double factor = factor_error(arith, i);
        for (int64_t j = 0; j < bound->count[i]; j++) {
            double *x = &bound->of[i][j];
            *x += f32_u * (fabs(exact->of[i][j]) + *x) + 0x1p-149;
            *x += factor * fabs(exact->of[i][j]);
            *x *= slack;
        }
    }
    kinds_row_free(&w.exact);
    bound_row_free(&w.row);
}
