/* See linear_reference.h. u is the unit roundoff of f32, and `tiny` is the largest error of a
 * subnormal result. */
#include "reference/linear_reference.h"

#include "reference/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double u = 0x1p-24, tiny = 0x1p-150;

/* Row t of head h of sequence b, also in a ragged batch. */
static double at(const mha_tensor *x, const int64_t *starts, int64_t b, int64_t h, int64_t t,
                 int64_t d)
{
    return ref_element(x, (int64_t[]){starts ? 0 : b, h, starts ? starts[b] + t : t, d});
}

static void features_of(const linref *a, const mha_tensor *x, const int64_t *starts, int64_t b,
                        int64_t h, int64_t t, double *features)
{
    const int64_t D = x->shape[3];
    double *row = ref_doubles(D);
    for (int64_t d = 0; d < D; d++) row[d] = at(x, starts, b, h, t, d);
    if (a->map) a->map(row, D, features, a->features);
    for (int64_t d = 0; !a->map && d < D; d++) features[d] = row[d] > 0 ? row[d] + 1 : exp(row[d]);
    free(row);
}

int64_t linref_visible(const linref *a, int64_t b, int64_t t)
{
    const mha_linear_attention_desc *d = a->desc;
    int64_t end = d->key_starts ? d->key_starts[b + 1] - d->key_starts[b] : a->k->shape[2];
    if (d->key_lengths) end = d->key_lengths[b];
    if (!(d->flags & MHA_LINEAR_ATTENTION_CAUSAL)) return end;
    int64_t last = t + (d->q_offsets ? d->q_offsets[b] : d->q_offset);
    return last < 0 ? 0 : last + 1 < end ? last + 1 : end;
}

/* ---- the formula ----------------------------------------------------------------------------- */

typedef struct weighted {
    double *sum, total; /* [Dv] sums of weight times value, and of weights */
} weighted;

static void add_state(const linref *a, int64_t b, int64_t hk, const double *query, weighted *w)
{
    const mha_tensor *s = a->desc->state_s, *z = a->desc->state_z;
    for (int64_t i = 0; s && i < a->features; i++) {
        w->total += query[i] * ref_element(z, (int64_t[]){b, hk, i});
        for (int64_t d = 0; d < a->v->shape[3]; d++)
            w->sum[d] += query[i] * ref_element(s, (int64_t[]){b, hk, i, d});
    }
}

static void formula(const linref *a, int64_t b, int64_t hk, int64_t keys, const double *query,
                    double *o)
{
    const int64_t Dv = a->v->shape[3];
    weighted w = {.sum = ref_doubles(Dv)};
    double *key = ref_doubles(a->features);
    add_state(a, b, hk, query, &w);
    for (int64_t s = 0; s < keys; s++) {
        double weight = 0;
        features_of(a, a->k, a->desc->key_starts, b, hk, s, key);
        for (int64_t i = 0; i < a->features; i++) weight += query[i] * key[i];
        w.total += weight;
        for (int64_t d = 0; d < Dv; d++)
            w.sum[d] += weight * at(a->v, a->desc->key_starts, b, hk, s, d);
    }
    for (int64_t d = 0; d < Dv; d++) o[d] = w.total == 0 ? 0 : w.sum[d] / w.total;
    free(w.sum);
    free(key);
}

/* ---- the bound ------------------------------------------------------------------------------- */

/* An exact sum of terms, and the error bound of the rounded sum. */
typedef struct running {
    double value, error;
} running;

static void running_add(running *r, double term, double term_error)
{
    r->value += term;
    r->error += term_error;
    r->error += u * (fabs(r->value) + r->error) + tiny;
}

/* The error of the rounded product of a feature and a number, which both have errors. */
static double product_error(double x, double x_error, double y, double y_error)
{
    double most = (fabs(x) + x_error) * (fabs(y) + y_error);
    return most - fabs(x * y) + u * most + tiny;
}

typedef struct state {
    running *s, *z; /* [F][Dv], [F] */
} state;

static state state_of(const linref *a, int64_t b, int64_t hk, int64_t keys)
{
    const int64_t F = a->features, Dv = a->v->shape[3];
    state r = {calloc((size_t)(F * Dv + 1), sizeof *r.s), calloc((size_t)F, sizeof *r.z)};
    double *key = ref_doubles(F);
    if (!r.s || !r.z) abort();
    for (int64_t i = 0; a->desc->state_s && i < F; i++) {
        r.z[i].value = ref_element(a->desc->state_z, (int64_t[]){b, hk, i});
        for (int64_t d = 0; d < Dv; d++)
            r.s[i * Dv + d].value = ref_element(a->desc->state_s, (int64_t[]){b, hk, i, d});
    }
    for (int64_t s = 0; s < keys; s++) {
        features_of(a, a->k, a->desc->key_starts, b, hk, s, key);
        for (int64_t i = 0; i < F; i++) {
            double error = a->map_error * key[i] + tiny;
            running_add(&r.z[i], key[i], error);
            for (int64_t d = 0; d < Dv; d++) {
                double v = at(a->v, a->desc->key_starts, b, hk, s, d);
                running_add(&r.s[i * Dv + d], key[i] * v, product_error(key[i], error, v, 0));
            }
        }
    }
    free(key);
    return r;
}

static void state_free(state *r)
{
    free(r->s);
    free(r->z);
}

/* phi(q) . z, in sixteen lanes and four folds. */
static running normalizer(const linref *a, const state *r, const double *query)
{
    running total = {0, 0};
    double terms = ceil((double)a->features / 16) + 4, size = 0;
    for (int64_t i = 0; i < a->features; i++) {
        double error =
            product_error(query[i], a->map_error * query[i] + tiny, r->z[i].value, r->z[i].error);
        total.value += query[i] * r->z[i].value;
        total.error += error;
        size += fabs(query[i] * r->z[i].value) + error;
    }
    total.error += terms * u / (1 - terms * u) * size + terms * tiny;
    return total;
}

/* Column d of phi(q) S has chains of 256 features, then their sum. Fused products have fewer
 * roundings than the bound assumes. */
static running numerator(const linref *a, const state *r, const double *query, int64_t d)
{
    const int64_t Dv = a->v->shape[3];
    running total = {0, 0}, chain = {0, 0};
    for (int64_t i = 0; i < a->features; i++) {
        const running *s = &r->s[i * Dv + d];
        running_add(&chain, query[i] * s->value,
                    product_error(query[i], a->map_error * query[i] + tiny, s->value, s->error));
        if ((i + 1) % 256 != 0 && i + 1 < a->features) continue;
        running_add(&total, chain.value, chain.error);
        chain = (running){0, 0};
    }
    return total;
}

void linref_row(const linref *a, int64_t b, int64_t h, int64_t t, double *o, double *bound)
{
    int64_t hk = h / (a->q->shape[1] / a->k->shape[1]), keys = linref_visible(a, b, t);
    double *query = ref_doubles(a->features);
    features_of(a, a->q, a->desc->query_starts, b, h, t, query);
    formula(a, b, hk, keys, query, o);
    state r = state_of(a, b, hk, keys);
    running below = normalizer(a, &r, query);
    for (int64_t d = 0; d < a->v->shape[3]; d++) {
        running above = numerator(a, &r, query, d);
        double least = below.value - below.error;
        double error = least > 0 ? (above.error + fabs(o[d]) * below.error) / least : INFINITY;
        bound[d] = below.value == 0 ? 0 : error + u * (fabs(o[d]) + error) + tiny;
    }
    state_free(&r);
    free(query);
}

void linref_state(const linref *a, int64_t b, int64_t hk, double *s, double *s_bound, double *z,
                  double *z_bound)
{
    mha_linear_attention_desc all = *a->desc;
    linref whole = *a;
    all.flags = 0;
    whole.desc = &all;
    state r = state_of(a, b, hk, linref_visible(&whole, b, 0));
    for (int64_t i = 0; i < a->features * a->v->shape[3]; i++) {
        s[i] = r.s[i].value;
        s_bound[i] = r.s[i].error;
    }
    for (int64_t i = 0; i < a->features; i++) {
        z[i] = r.z[i].value;
        z_bound[i] = r.z[i].error;
    }
    state_free(&r);
}
