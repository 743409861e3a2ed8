/* Recurrent layers: outputs compared with the recurrence in double within a derived bound; the same
 * bits for every division into calls, every number of threads and every instruction set; and the
 * map, M v = o. */
#include "support/expect.h"
#include "support/guarded.h"
#include "support/machines.h"
#include "support/shared_context.h"
#include "support/suite.h"
#include "support/tally.h"

#include <multihead/recurrent.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_B = 3 };

typedef struct trial {
    int64_t B, H, T, D, Dv;
    mha_recurrent_desc desc;
    guarded q, k, v, decay, strength, skip;
    int64_t lengths[MOST_B];
} trial;

/* ---- problems -------------------------------------------------------------------------------- */

static void each_element(const mha_tensor *view, rng *r, float (*number)(rng *r))
{
    int64_t index[MHA_MAX_DIMS] = {0};
    if (guarded_is_empty(view)) return;
    do *(float *)guarded_element(view, index) = number(r);
    while (guarded_next(view, index));
}

static float weak_decay(rng *r)
{
    return -0.1f * (float)rng_uniform(r);
}

static float any_decay(rng *r)
{
    const double kind = rng_uniform(r);
    return kind < 0.05   ? -INFINITY
           : kind < 0.1  ? -100.0f * (float)rng_uniform(r)
           : kind < 0.15 ? 0.0f
                         : -(float)rng_uniform(r);
}

static float any_strength(rng *r)
{
    return rng_chance(r, 0.1) ? 2.0f : (float)rng_uniform(r) * 2.0f;
}

/* Makes keys of unit length, as the header's bound requires. */
static void normalise(const mha_tensor *k)
{
    for (int64_t i = 0; i < k->shape[0] * k->shape[1] * k->shape[2]; i++) {
        const int64_t b = i / (k->shape[1] * k->shape[2]), h = i / k->shape[2] % k->shape[1];
        float *row =
            (float *)k->data + b * k->stride[0] + h * k->stride[1] + i % k->shape[2] * k->stride[2];
        double squares = 1e-12;
        for (int64_t d = 0; d < k->shape[3]; d++) squares += (double)row[d] * (double)row[d];
        for (int64_t d = 0; d < k->shape[3]; d++) row[d] = (float)((double)row[d] / sqrt(squares));
    }
}

static void trial_make(trial *to, rng *r)
{
    trial x = {.B = rng_between(r, 1, MOST_B), .desc = MHA_INIT(mha_recurrent_desc)};
    const int64_t shared = rng_between(r, 1, 2);
    x.H = shared * rng_between(r, 1, 2);
    x.T = rng_chance(r, 0.3) ? rng_between(r, 0, 20) : rng_between(r, 1, 300);
    x.D = rng_between(r, 1, 40);
    x.Dv = rng_between(r, 1, 70);
    if (rng_chance(r, 0.2)) x.D = 128 + rng_between(r, 0, 8);
    x.q = guarded_filled(r, 4, (int64_t[]){x.B, shared, x.T, x.D}, LAYOUT_PAD, 1);
    x.k = guarded_filled(r, 4, (int64_t[]){x.B, shared, x.T, x.D}, LAYOUT_SWAP, 1);
    x.v = guarded_filled(r, 4, (int64_t[]){x.B, x.H, x.T, x.Dv}, LAYOUT_CONTIGUOUS, 1);
    normalise(&x.k.view);
    if (rng_chance(r, 0.7)) x.desc.flags |= MHA_RECURRENT_DELTA;
    if (rng_chance(r, 0.8)) {
        const bool channels = rng_chance(r, 0.4);
        x.decay =
            guarded_make(r, MHA_F32, channels ? 4 : 3,
                         (int64_t[]){x.B, rng_chance(r, 0.2) ? 1 : x.H, x.T, x.D}, LAYOUT_PAD);
        each_element(&x.decay.view, r, rng_chance(r, 0.5) ? weak_decay : any_decay);
        x.desc.log_decay = &to->decay.view;
    }
    if (rng_chance(r, 0.8)) {
        x.strength = guarded_make(r, MHA_F32, 3, (int64_t[]){x.B, x.H, x.T}, LAYOUT_PAD);
        each_element(&x.strength.view, r, any_strength);
        x.desc.strength = &to->strength.view;
    }
    if (rng_chance(r, 0.3)) {
        x.skip =
            guarded_filled(r, 3, (int64_t[]){1, x.H, rng_chance(r, 0.5) ? 1 : x.T}, LAYOUT_PAD, 1);
        x.desc.skip = &to->skip.view;
    }
    for (int64_t b = 0; b < x.B; b++) x.lengths[b] = rng_between(r, 0, x.T);
    if (rng_chance(r, 0.3)) x.desc.lengths = to->lengths;
    *to = x;
}

static void trial_free(trial *x)
{
    guarded *all[] = {&x->q, &x->k, &x->v, &x->decay, &x->strength, &x->skip};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]->map) guarded_free(all[i]);
}

/* ---- the recurrence in double ----------------------------------------------------------------- */

static double broadcast(const mha_tensor *x, int64_t b, int64_t h, int64_t t, int64_t d)
{
    const int64_t index[4] = {b, h, t, d};
    int64_t at = 0;
    for (int i = 0; i < x->ndim; i++) at += x->shape[i] == 1 ? 0 : index[i] * x->stride[i];
    return (double)((const float *)x->data)[at];
}

static double element(const mha_tensor *x, int64_t heads, int64_t b, int64_t h, int64_t t,
                      int64_t d)
{
    return broadcast(x, b, h / (heads / x->shape[1]), t, d);
}

typedef struct exact {
    double *s;    /* [D][Dv] */
    double error; /* bound of the norm of the error of s */
} exact;

static double norm(const double *x, int64_t n)
{
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += x[i] * x[i];
    return sqrt(squares);
}

/* One token; writes o [Dv] and its error bounds. */
static void exact_step(const trial *x, exact *e, int64_t b, int64_t h, int64_t t, double *o,
                       double *bound)
{
    const int64_t D = x->D, Dv = x->Dv;
    const double u = 0x1p-24, scale = 1 / sqrt((double)D),
                 strength = x->desc.strength ? broadcast(x->desc.strength, b, h, t, 0) : 1;
    const double skip = x->desc.skip ? broadcast(x->desc.skip, b, h, t, 0) : 0;
    double most = 0, k[256], write[256], q_norm = 0, passed = 0;
    for (int64_t d = 0; d < D; d++) {
        const double a = x->desc.log_decay ? exp(broadcast(x->desc.log_decay, b, h, t, d)) : 1;
        if (a > most) most = a;
        for (int64_t c = 0; c < Dv; c++) e->s[d * Dv + c] *= a;
        k[d] = element(&x->k.view, x->H, b, h, t, d);
    }
    for (int64_t c = 0; c < Dv; c++) {
        write[c] = element(&x->v.view, x->H, b, h, t, c);
        for (int64_t d = 0; d < D && x->desc.flags & MHA_RECURRENT_DELTA; d++)
            write[c] -= e->s[d * Dv + c] * k[d];
        write[c] *= strength;
    }
    for (int64_t d = 0; d < D; d++)
        for (int64_t c = 0; c < Dv; c++) e->s[d * Dv + c] += k[d] * write[c];
    e->error = most * e->error +
               3 * (double)(D + 80) * u * (norm(e->s, D * Dv) + norm(k, D) * norm(write, Dv));
    for (int64_t d = 0; d < D; d++) {
        const double q = element(&x->q.view, x->H, b, h, t, d);
        q_norm += q * q;
    }
    for (int64_t c = 0; c < Dv; c++) {
        o[c] = 0;
        for (int64_t d = 0; d < D; d++)
            o[c] += scale * element(&x->q.view, x->H, b, h, t, d) * e->s[d * Dv + c];
        const double value = skip * element(&x->v.view, x->H, b, h, t, c);
        o[c] += value;
        passed = fmax(passed, fabs(value));
    }
    *bound = scale * sqrt(q_norm) * e->error + u * passed + 1e-30;
}

static int64_t length_of(const trial *x, int64_t b)
{
    return x->desc.lengths ? x->desc.lengths[b] : x->T;
}

static void check_outputs(const trial *x, const mha_tensor *o, const mha_tensor *s, tally *near)
{
    double *memory = calloc((size_t)(x->D * x->Dv), sizeof *memory), row[256], bound;
    for (int64_t i = 0; i < x->B * x->H; i++) {
        const int64_t b = i / x->H, h = i % x->H;
        exact e = {.s = memory};
        memset(memory, 0, (size_t)(x->D * x->Dv) * sizeof *memory);
        for (int64_t t = 0; t < length_of(x, b); t++) {
            exact_step(x, &e, b, h, t, row, &bound);
            for (int64_t c = 0; c < x->Dv; c++)
                tally_compare(near, element(o, x->H, b, h, t, c), row[c], bound);
        }
        for (int64_t t = length_of(x, b); t < x->T; t++)
            tally_compare(near, element(o, x->H, b, h, t, 0), 0, 0);
        for (int64_t d = 0; s && d < x->D; d++)
            for (int64_t c = 0; c < x->Dv; c++)
                tally_compare(near, element(s, x->H, b, h, d, c), e.s[d * x->Dv + c],
                              e.error + 0x1p-23 * fabs(e.s[d * x->Dv + c]) + 1e-30);
    }
    free(memory);
}

/* ---- tests ------------------------------------------------------------------------------------ */

static mha_recurrent_state *state_of(mha_context *context, const trial *x)
{
    mha_recurrent_state_desc desc = MHA_INIT(mha_recurrent_state_desc);
    mha_recurrent_state *state = NULL;
    desc.batch = x->B, desc.heads = x->H, desc.head_dim = x->D, desc.value_dim = x->Dv;
    expect_ok(mha_recurrent_state_create(context, &desc, &state));
    return state;
}

static guarded output_of(const trial *x, rng *r)
{
    return guarded_make(r, MHA_F32, 4, (int64_t[]){x->B, x->H, x->T, x->Dv}, LAYOUT_PAD);
}

static void outputs_and_states_are_within_the_bound(void)
{
    tally near = {.name = "o and S"};
    for (int i = 0, end = rng_cases(60, 600); i < end; i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)i);
        trial x;
        trial_make(&x, &r);
        guarded o = output_of(&x, &r), s;
        mha_context *context = machines_context(2, i);
        mha_recurrent_state *state = state_of(context, &x);
        s = guarded_make(&r, MHA_F32, 4, (int64_t[]){x.B, x.H, x.D, x.Dv}, LAYOUT_LAST);
        expect_ok(mha_recurrent_forward(context, &x.desc, &x.q.view, &x.k.view, &x.v.view, state,
                                        &o.view));
        expect_ok(mha_recurrent_state_read(state, &s.view));
        check_outputs(&x, &o.view, &s.view, &near);
        assert_true(guarded_gaps_intact(&o) && guarded_gaps_intact(&s));
        for (int64_t b = 0; b < x.B; b++)
            assert_int_equal(mha_recurrent_state_lengths(state)[b], length_of(&x, b));
        mha_recurrent_state_destroy(state);
        guarded_free(&o);
        guarded_free(&s);
        trial_free(&x);
    }
    assert_int_equal(near.exceeded, 0);
    tally_judge(&near);
}

/* A call for some tokens of a trial. */
static void run_part(mha_context *context, const trial *x, int64_t from, int64_t count,
                     mha_recurrent_state *state, const mha_tensor *o)
{
    mha_recurrent_desc desc = x->desc;
    int64_t lengths[MOST_B];
    const mha_tensor q = guarded_slice(&x->q.view, 2, from, count),
                     k = guarded_slice(&x->k.view, 2, from, count),
                     v = guarded_slice(&x->v.view, 2, from, count),
                     part = guarded_slice(o, 2, from, count);
    mha_tensor decay, strength, skip;
    if (desc.log_decay)
        decay = guarded_slice(desc.log_decay, 2, from, count), desc.log_decay = &decay;
    if (desc.strength)
        strength = guarded_slice(desc.strength, 2, from, count), desc.strength = &strength;
    if (desc.skip && desc.skip->shape[2] > 1)
        skip = guarded_slice(desc.skip, 2, from, count), desc.skip = &skip;
    for (int64_t b = 0; desc.lengths && b < x->B; b++) {
        lengths[b] = x->lengths[b] - from;
        if (lengths[b] < 0) lengths[b] = 0;
        if (lengths[b] > count) lengths[b] = count;
    }
    if (desc.lengths) desc.lengths = lengths;
    expect_ok(mha_recurrent_forward(context, &desc, &q, &k, &v, state, &part));
}

static void parts_of_any_sizes_have_the_bits_of_the_whole(void)
{
    for (int i = 0, end = rng_cases(60, 600); i < end; i++) {
        rng r = rng_make(rng_run_seed(), 10000 + (uint64_t)i);
        trial x;
        trial_make(&x, &r);
        guarded whole = output_of(&x, &r), parts = output_of(&x, &r);
        mha_context *context = machines_context(1, i), *other = machines_context(3, i);
        mha_recurrent_state *state = state_of(other, &x);
        expect_ok(mha_recurrent_forward(context, &x.desc, &x.q.view, &x.k.view, &x.v.view, NULL,
                                        &whole.view));
        const int64_t most = rng_chance(&r, 0.3) ? 1 : rng_between(&r, 1, 90);
        for (int64_t t = 0, count; t < x.T; t += count) {
            count = rng_between(&r, 1, most);
            if (count > x.T - t) count = x.T - t;
            run_part(other, &x, t, count, state, &parts.view);
        }
        assert_true(guarded_same_bits(&whole.view, &parts.view, false));
        mha_recurrent_state_destroy(state);
        guarded_free(&whole);
        guarded_free(&parts);
        trial_free(&x);
    }
}

/* Row t of the map, from the query backward in double, and a bound of the library's error: the error of r is added for
 * each block of 32 keys (docs/numerics.md 16.2). */
static void exact_map_row(const trial *x, int64_t b, int64_t h, int64_t t, double *row,
                          double *bound)
{
    const int64_t D = x->D;
    const double c = 3 * (double)(D + 80) * 0x1p-24, scale = 1 / sqrt((double)D);
    double r[256], k[256], error = 0;
    for (int64_t d = 0; d < D; d++) r[d] = scale * element(&x->q.view, x->H, b, h, t, d);
    for (int64_t j = t; j >= 0; j--) {
        const double strength = x->desc.strength ? broadcast(x->desc.strength, b, h, j, 0) : 1;
        double dot = 0, most = 0;
        if (j == t || j % 32 == 31) error += c * norm(r, D);
        const double skip = j == t && x->desc.skip ? broadcast(x->desc.skip, b, h, j, 0) : 0;
        for (int64_t d = 0; d < D; d++) {
            k[d] = element(&x->k.view, x->H, b, h, j, d);
            dot += r[d] * k[d];
        }
        row[j] = strength * dot + skip;
        bound[j] = strength * norm(k, D) * error + 0x1p-24 * fabs(skip) + 1e-30;
        for (int64_t d = 0; d < D; d++) {
            const double a = x->desc.log_decay ? exp(broadcast(x->desc.log_decay, b, h, j, d)) : 1;
            if (x->desc.flags & MHA_RECURRENT_DELTA) r[d] -= strength * dot * k[d];
            r[d] *= a;
            if (a > most) most = a;
        }
        error *= most;
    }
}

/* Rows of the map, and their products with the values. */
typedef struct product {
    const trial *x;
    const mha_tensor *o;
    tally *near, *outputs;
    int64_t rows;
} product;

static mha_status multiply_rows(void *user, int64_t b, int64_t row, const mha_tensor *p)
{
    product *m = user;
    const trial *x = m->x;
    double wanted[512], bound[512];
    m->rows += p->shape[1];
    for (int64_t i = 0; i < x->H * p->shape[1]; i++) {
        const int64_t t = i % p->shape[1], h = i / p->shape[1];
        exact_map_row(x, b, h, row + t, wanted, bound);
        for (int64_t j = 0; j < p->shape[2]; j++)
            tally_compare(m->near, broadcast(p, h, t, j, 0), j <= row + t ? wanted[j] : 0,
                          j <= row + t ? bound[j] : 0);
        for (int64_t c = 0; c < x->Dv; c++) {
            double sum = 0, size = 1e-9;
            for (int64_t j = 0; j <= row + t; j++) {
                const double value = element(&x->v.view, x->H, b, h, j, c);
                sum += broadcast(p, h, t, j, 0) * value;
                size += (bound[j] + 0x1p-23 * fabs(wanted[j])) * fabs(value);
            }
            tally_compare(m->outputs, sum, element(m->o, x->H, b, h, row + t, c), size);
        }
    }
    return MHA_OK;
}

/* The recurrence in double, as a tensor of f64. */
static void exact_outputs(const trial *x, const mha_tensor *o)
{
    double *memory = calloc((size_t)(x->D * x->Dv), sizeof *memory), row[256], bound;
    for (int64_t i = 0; i < x->B * x->H; i++) {
        exact e = {.s = memory};
        memset(memory, 0, (size_t)(x->D * x->Dv) * sizeof *memory);
        for (int64_t t = 0; t < length_of(x, i / x->H); t++) {
            exact_step(x, &e, i / x->H, i % x->H, t, row, &bound);
            for (int64_t c = 0; c < x->Dv; c++)
                ((float *)o->data)[(i * x->T + t) * x->Dv + c] = (float)row[c];
        }
    }
    free(memory);
}

static void rows_of_the_map_times_values_are_the_outputs(void)
{
    tally near = {.name = "M"}, outputs = {.name = "M v"};
    for (int i = 0, end = rng_cases(30, 300); i < end; i++) {
        rng r = rng_make(rng_run_seed(), 20000 + (uint64_t)i);
        trial x;
        trial_make(&x, &r);
        guarded o =
            guarded_make(&r, MHA_F32, 4, (int64_t[]){x.B, x.H, x.T, x.Dv}, LAYOUT_CONTIGUOUS);
        product m = {.x = &x, .o = &o.view, .near = &near, .outputs = &outputs};
        int64_t rows = 0;
        exact_outputs(&x, &o.view);
        expect_ok(mha_recurrent_visit_rows(machines_context(2, i), &x.desc, &x.q.view, &x.k.view,
                                           x.H, rng_between(&r, 0, 20), multiply_rows, &m));
        for (int64_t b = 0; b < x.B; b++) rows += length_of(&x, b);
        assert_int_equal(m.rows, rows);
        guarded_free(&o);
        trial_free(&x);
    }
    assert_int_equal(near.exceeded + outputs.exceeded, 0);
    tally_judge(&near);
    tally_judge(&outputs);
}

/* Copy rows to [H,T,T] of one sequence. */
static mha_status keep_rows(void *user, int64_t b, int64_t row, const mha_tensor *p)
{
    float *to = user;
    const int64_t T = p->shape[2], rows = p->shape[1];
    for (int64_t h = 0; h < p->shape[0] && b == 0; h++)
        memcpy(to + (h * T + row) * T, (float *)p->data + h * rows * T,
               (size_t)(rows * T) * sizeof(float));
    return MHA_OK;
}

static void rows_have_the_same_bits_in_blocks_of_any_size(void)
{
    for (int i = 0, end = rng_cases(15, 100); i < end; i++) {
        rng r = rng_make(rng_run_seed(), 25000 + (uint64_t)i);
        trial x;
        trial_make(&x, &r);
        const size_t bytes = (size_t)(x.H * x.T * x.T) * sizeof(float);
        float *whole = calloc(bytes + 1, 1), *parts = calloc(bytes + 1, 1);
        expect_ok(mha_recurrent_visit_rows(machines_context(1, i), &x.desc, &x.q.view, &x.k.view,
                                           x.H, 0, keep_rows, whole));
        expect_ok(mha_recurrent_visit_rows(machines_context(3, i), &x.desc, &x.q.view, &x.k.view,
                                           x.H, rng_between(&r, 1, 70), keep_rows, parts));
        assert_memory_equal(whole, parts, bytes);
        free(whole), free(parts);
        trial_free(&x);
    }
}

/* ---- long maps -------------------------------------------------------------------------------- */

enum { LONG_T = 4096, LONG_D = 7, LONG_H = 4, LONG_ROWS = 3 };

/* Heads that share q and k. Head 0 has strengths up to 1, the others up to 2. Decays are near 1, near 0 in head 2, and of
 * both kinds in head 3. */
typedef struct long_text {
    trial x;
    int64_t rows[LONG_ROWS];
    double (*exact)[LONG_H][LONG_T]; /* [LONG_ROWS] */
    double (*o)[LONG_H][8];          /* [T], in double */
    int64_t compared;
    tally map, outputs;
} long_text;

static void long_make(long_text *y, rng *r)
{
    trial *x = &y->x;
    *x = (trial){.B = 1, .H = LONG_H, .D = LONG_D, .Dv = 3, .desc = MHA_INIT(mha_recurrent_desc)};
    x->T = LONG_T - rng_between(r, 0, 63);
    const int64_t shared[] = {1, 1, x->T, x->D}, own[] = {1, x->H, x->T, x->Dv};
    x->q = guarded_filled(r, 4, shared, LAYOUT_CONTIGUOUS, 1);
    x->k = guarded_filled(r, 4, shared, LAYOUT_CONTIGUOUS, 1);
    x->v = guarded_filled(r, 4, own, LAYOUT_CONTIGUOUS, 1);
    x->decay = guarded_make(r, MHA_F32, 3, own, LAYOUT_CONTIGUOUS);
    x->strength = guarded_make(r, MHA_F32, 3, own, LAYOUT_CONTIGUOUS);
    normalise(&x->q.view), normalise(&x->k.view);
    float *decay = x->decay.view.data, *strength = x->strength.view.data;
    for (int64_t i = 0; i < x->H * x->T; i++) {
        const int64_t h = i / x->T;
        const bool strong = h == 2 || (h == 3 && rng_chance(r, 0.02));
        decay[i] = !strong               ? -1e-3f * (float)rng_uniform(r)
                   : rng_chance(r, 0.02) ? -INFINITY
                                         : -1 - 20 * (float)rng_uniform(r);
        strength[i] = h == 0 ? (float)rng_uniform(r) : any_strength(r);
    }
    x->desc.flags = MHA_RECURRENT_DELTA;
    x->desc.log_decay = &x->decay.view, x->desc.strength = &x->strength.view;
    const int64_t rows[] = {x->T - 1, rng_between(r, 1000, 2500), rng_between(r, 0, 99)};
    memcpy(y->rows, rows, sizeof rows);
}

static double product_of(const trial *x, const guarded *a, int64_t i, int64_t j)
{
    const float *row = (const float *)a->view.data + i * LONG_D,
                *key = (const float *)x->k.view.data + j * LONG_D;
    double sum = 0;
    for (int d = 0; d < LONG_D; d++) sum += (double)row[d] * (double)key[d];
    return sum;
}

/* Row t of (Q K^T o G) (I + tril(diag(b) (K K^T o G), -1))^-1 diag(b), by substitution from the last key. G is a running
 * product, so decays may be 0. */
static void solve_row(const trial *x, int64_t t, double (*y)[LONG_T])
{
    const float *strength = x->strength.view.data, *decay = x->decay.view.data;
    double(*a)[LONG_T] = calloc(LONG_H, sizeof *a), g[LONG_H];
    for (int64_t i = 0; i < LONG_H * x->T; i++) a[i / x->T][i % x->T] = exp((double)decay[i]);
    for (int h = 0; h < LONG_H; h++) g[h] = 1 / sqrt((double)LONG_D);
    for (int64_t j = t; j >= 0; j--) {
        const double qk = product_of(x, &x->q, t, j);
        for (int h = 0; h < LONG_H; h++) y[h][j] = qk * g[h], g[h] *= a[h][j];
    }
    for (int64_t i = t; i >= 0; i--) {
        for (int h = 0; h < LONG_H; h++) g[h] = y[h][i] *= (double)strength[h * x->T + i];
        for (int64_t j = i - 1; j >= 0; j--) {
            const double kk = product_of(x, &x->k, i, j);
            for (int h = 0; h < LONG_H; h++) g[h] *= a[h][j + 1], y[h][j] -= kk * g[h];
        }
    }
    free(a);
}

/* recurrent.h has the bound for an element of M. */
static mha_status compare_long_rows(void *user, int64_t b, int64_t row, const mha_tensor *p)
{
    long_text *y = user;
    const trial *x = &y->x;
    const double c = 3 * (double)(LONG_D + 80) * 0x1p-24 / sqrt((double)LONG_D);
    for (int n = 0; n < LONG_ROWS * LONG_H; n++) {
        const int64_t t = y->rows[n / LONG_H], h = n % LONG_H;
        double sums[3] = {0}, bounds[3] = {1e-9, 1e-9, 1e-9}, g = 1;
        if (t < row || t >= row + p->shape[1]) continue;
        y->compared++;
        for (int64_t j = t; j >= 0; j--) {
            const double m = broadcast(p, h, t - row, j, 0);
            const double bound =
                c * (double)((t - j) / 32 + 2) * g * broadcast(x->desc.strength, b, h, j, 0) +
                1e-30;
            tally_compare(&y->map, m, y->exact[n / LONG_H][h][j], bound);
            g *= exp(broadcast(x->desc.log_decay, b, h, j, 0));
            for (int d = 0; d < 3; d++) {
                const double value = broadcast(&x->v.view, b, h, j, d);
                sums[d] += m * value, bounds[d] += bound * fabs(value);
            }
        }
        for (int d = 0; d < 3; d++) tally_compare(&y->outputs, sums[d], y->o[t][h][d], bounds[d]);
    }
    return MHA_OK;
}

/* Rows of M are solutions of triangular systems in double, and M v = o, for texts of 4096 tokens. */
static void long_maps_solve_triangular_systems(void)
{
    long_text y = {.map = {.name = "M, long"}, .outputs = {.name = "M v, long"}};
    tally near = {.name = "o, long"};
    y.exact = calloc(LONG_ROWS, sizeof *y.exact), y.o = calloc(LONG_T, sizeof *y.o);
    for (int i = 0, end = rng_cases(1, 8); i < end; i++) {
        rng r = rng_make(rng_run_seed(), 70000 + (uint64_t)i);
        long_make(&y, &r);
        guarded o = output_of(&y.x, &r);
        mha_context *context = machines_context(2, i);
        for (int n = 0; n < LONG_ROWS; n++) solve_row(&y.x, y.rows[n], y.exact[n]);
        for (int h = 0; h < LONG_H; h++) {
            double s[LONG_D * 3] = {0}, bound;
            exact e = {.s = s};
            for (int64_t t = 0; t < y.x.T; t++) exact_step(&y.x, &e, 0, h, t, y.o[t][h], &bound);
        }
        expect_ok(mha_recurrent_forward(context, &y.x.desc, &y.x.q.view, &y.x.k.view, &y.x.v.view,
                                        NULL, &o.view));
        check_outputs(&y.x, &o.view, NULL, &near);
        expect_ok(mha_recurrent_visit_rows(context, &y.x.desc, &y.x.q.view, &y.x.k.view, LONG_H, 0,
                                           compare_long_rows, &y));
        assert_int_equal(y.compared, (i + 1) * LONG_ROWS * LONG_H);
        guarded_free(&o);
        trial_free(&y.x);
    }
    free(y.exact), free(y.o);
    assert_int_equal(near.exceeded + y.map.exceeded + y.outputs.exceeded, 0);
    tally_judge(&near);
    tally_judge(&y.map);
    tally_judge(&y.outputs);
}

static void nothing_of_later_tokens_reaches_earlier_ones(void)
{
    for (int i = 0, end = rng_cases(20, 200); i < end; i++) {
        rng r = rng_make(rng_run_seed(), 30000 + (uint64_t)i);
        trial x;
        trial_make(&x, &r);
        guarded whole = output_of(&x, &r), spoiled = output_of(&x, &r);
        mha_context *context = machines_context(2, i);
        if (x.T > 1) {
            const int64_t t = rng_between(&r, 1, x.T - 1);
            expect_ok(mha_recurrent_forward(context, &x.desc, &x.q.view, &x.k.view, &x.v.view, NULL,
                                            &whole.view));
            mha_tensor *const all[] = {&x.q.view, &x.k.view, &x.v.view};
            mha_tensor late = guarded_slice(all[i % 3], 2, t, 1);
            int64_t index[4] = {0};
            do *(float *)guarded_element(&late, index) = NAN;
            while (guarded_next(&late, index));
            expect_ok(mha_recurrent_forward(context, &x.desc, &x.q.view, &x.k.view, &x.v.view, NULL,
                                            &spoiled.view));
            const mha_tensor a = guarded_slice(&whole.view, 2, 0, t),
                             b = guarded_slice(&spoiled.view, 2, 0, t);
            assert_true(guarded_same_bits(&a, &b, false));
        }
        guarded_free(&whole);
        guarded_free(&spoiled);
        trial_free(&x);
    }
}

/* A snapshot restores its token, and another state continues with the same bits. */
static void states_are_copied_written_and_reset(void)
{
    rng r = rng_make(rng_run_seed(), 40000);
    mha_context *context = context_with(2);
    trial x;
    trial_make(&x, &r);
    while (x.T < 40 || x.desc.lengths) trial_free(&x), trial_make(&x, &r);
    guarded first = output_of(&x, &r), second = output_of(&x, &r);
    mha_recurrent_state *a = state_of(context, &x), *b = state_of(context, &x);
    run_part(context, &x, 0, 30, a, &first.view);
    for (int64_t i = 0; i < x.B; i++) expect_ok(mha_recurrent_state_copy(a, i, b, i));
    run_part(context, &x, 30, x.T - 30, a, &first.view);
    run_part(context, &x, 30, x.T - 30, b, &second.view);
    const mha_tensor late = guarded_slice(&first.view, 2, 30, x.T - 30),
                     again = guarded_slice(&second.view, 2, 30, x.T - 30);
    assert_true(guarded_same_bits(&late, &again, false));
    mha_recurrent_state_reset(a);
    assert_int_equal(mha_recurrent_state_lengths(a)[0], 0);
    run_part(context, &x, 0, x.T, a, &second.view);
    assert_true(guarded_same_bits(&first.view, &second.view, false));
    assert_true(mha_recurrent_state_bytes(a) >= (size_t)(x.B * x.H * x.D * x.Dv) * sizeof(float));
    /* Writing and reading do not change S, and S contributes q S. */
    guarded s = guarded_filled(&r, 4, (int64_t[]){x.B, x.H, x.D, x.Dv}, LAYOUT_CONTIGUOUS, 1),
            read = guarded_make(&r, MHA_F32, 4, (int64_t[]){x.B, x.H, x.D, x.Dv}, LAYOUT_PAD);
    expect_ok(mha_recurrent_state_write(a, &s.view));
    expect_ok(mha_recurrent_state_read(a, &read.view));
    assert_true(guarded_same_bits(&s.view, &read.view, false));
    run_part(context, &x, 0, 1, a, &second.view);
    for (int64_t c = 0; c < x.Dv; c++) {
        double sum = 0, terms = 0, write = element(&x.v.view, x.H, 0, 0, 0, c), size = fabs(write);
        const double strength = x.desc.strength ? broadcast(x.desc.strength, 0, 0, 0, 0) : 1;
        for (int64_t d = 0; d < x.D; d++) {
            const double decayed =
                broadcast(&s.view, 0, 0, d, c) *
                (x.desc.log_decay ? exp(broadcast(x.desc.log_decay, 0, 0, 0, d)) : 1);
            if (x.desc.flags & MHA_RECURRENT_DELTA)
                write -= decayed * element(&x.k.view, x.H, 0, 0, 0, d);
            size += fabs(decayed);
        }
        for (int64_t d = 0; d < x.D; d++) {
            const double decayed =
                broadcast(&s.view, 0, 0, d, c) *
                (x.desc.log_decay ? exp(broadcast(x.desc.log_decay, 0, 0, 0, d)) : 1);
            const double q = element(&x.q.view, x.H, 0, 0, 0, d),
                         k = element(&x.k.view, x.H, 0, 0, 0, d) * strength;
            sum += q * (decayed + k * write);
            terms += fabs(q) * (fabs(decayed) + fabs(k) * size);
        }
        const double skip = x.desc.skip ? broadcast(x.desc.skip, 0, 0, 0, 0) : 0;
        const double passed = skip * element(&x.v.view, x.H, 0, 0, 0, c);
        const double wanted = sum / sqrt((double)x.D) + passed;
        /* the roundings of exact_step() */
        assert_true(fabs(element(&second.view, x.H, 0, 0, 0, c) - wanted) <=
                    3 * (double)(x.D + 80) * 0x1p-24 *
                        (terms / sqrt((double)x.D) + fabs(passed) + 1e-30));
    }
    mha_recurrent_state_destroy(a);
    mha_recurrent_state_destroy(b);
    guarded_free(&first), guarded_free(&second), guarded_free(&s), guarded_free(&read);
    trial_free(&x);
}

/* ---- a small call ------------------------------------------------------------------------------ */

enum { FEW_H = 2, FEW_T = 90, FEW_D = 3, FEW_DV = 5 };

typedef struct small {
    float q[FEW_H * FEW_T * FEW_D], k[FEW_H * FEW_T * FEW_D], v[FEW_H * FEW_T * FEW_DV];
    float decay[FEW_H * FEW_T], strength[FEW_H * FEW_T], o[FEW_H * FEW_T * FEW_DV];
} small;

/* Numbers exact in f16 and bf16. */
static void fill_small(rng *r, float *x, size_t count, float offset)
{
    for (size_t i = 0; i < count; i++) x[i] = offset + (float)rng_between(r, -8, 8) / 16;
}

static void small_make(small *x, rng *r)
{
    fill_small(r, x->q, FEW_H * FEW_T * FEW_D, 0.03125f);
    fill_small(r, x->k, FEW_H * FEW_T * FEW_D, 0.03125f);
    fill_small(r, x->v, FEW_H * FEW_T * FEW_DV, 0.03125f);
    fill_small(r, x->decay, FEW_H * FEW_T, -0.5f);
    fill_small(r, x->strength, FEW_H * FEW_T, 0.75f);
}

/* A tensor [1,H,T,last], or [1,H,T] if `last` is 0: the layouts of a small call. */
static mha_tensor few(void *data, mha_dtype dtype, int64_t last)
{
    return mha_tensor_contiguous(data, dtype, last ? 4 : 3, (int64_t[]){1, FEW_H, FEW_T, last});
}

static void small_run(mha_context *context, small *x, bool delta)
{
    const mha_tensor q = few(x->q, MHA_F32, FEW_D), k = few(x->k, MHA_F32, FEW_D),
                     v = few(x->v, MHA_F32, FEW_DV), o = few(x->o, MHA_F32, FEW_DV),
                     decay = few(x->decay, MHA_F32, 0), strength = few(x->strength, MHA_F32, 0);
    mha_recurrent_desc desc = MHA_INIT(mha_recurrent_desc);
    desc.flags = delta ? MHA_RECURRENT_DELTA : 0;
    desc.log_decay = &decay, desc.strength = &strength;
    expect_ok(mha_recurrent_forward(context, &desc, &q, &k, &v, NULL, &o));
}

/* A non-finite number at token AT of head 1 affects only outputs of its head from that token on, of
 * its channel (v) or of its token (q). The others keep their bits. */
static void non_finite_numbers_reach_what_the_header_says(void)
{
    enum { AT = 70, INPUTS = 5 };
    static small clean, spoiled;
    rng r = rng_make(rng_run_seed(), 50000);
    mha_context *context = context_with(1);
    small_make(&clean, &r);
    for (int i = 0; i < 2 * 2 * INPUTS; i++) {
        const int input = i % INPUTS;
        const bool delta = i / INPUTS % 2;
        const float bad = i / INPUTS / 2 ? INFINITY : NAN;
        spoiled = clean;
        float *const to[INPUTS] = {spoiled.q + (FEW_T + AT) * FEW_D,
                                   spoiled.k + (FEW_T + AT) * FEW_D,
                                   spoiled.v + (FEW_T + AT) * FEW_DV + 2,
                                   spoiled.decay + FEW_T + AT, spoiled.strength + FEW_T + AT};
        *to[input] = bad;
        small_run(context, &clean, delta);
        small_run(context, &spoiled, delta);
        for (int64_t at = 0; at < FEW_H * FEW_T * FEW_DV; at++) {
            const int64_t c = at % FEW_DV, t = at / FEW_DV % FEW_T, h = at / FEW_DV / FEW_T;
            const bool reached =
                h == 1 && (input == 0 ? t == AT : t >= AT) && (input != 2 || c == 2);
            assert_true(reached ? !isfinite(spoiled.o[at])
                                : !memcmp(&spoiled.o[at], &clean.o[at], sizeof(float)));
        }
    }
}

/* The f16 or bf16 bits of a number that is exact in both. */
static uint16_t half_of(float x, mha_dtype dtype)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (dtype == MHA_BF16) return (uint16_t)(bits >> 16);
    return x == 0 ? 0
                  : (uint16_t)((bits >> 16 & 0x8000) |
                               (((bits >> 23 & 255) - 112) << 10 | (bits >> 13 & 0x3ff)));
}

/* The same numbers in f16 or bf16 give the same bits. o in 16 bits is within half a unit in its
 * last place. */
static void inputs_of_16_bits_give_the_bits_of_f32(void)
{
    static small x;
    static uint16_t q[FEW_H * FEW_T * FEW_D], k[FEW_H * FEW_T * FEW_D], v[FEW_H * FEW_T * FEW_DV],
        halves[FEW_H * FEW_T * FEW_DV];
    static float o[FEW_H * FEW_T * FEW_DV];
    rng r = rng_make(rng_run_seed(), 60000);
    mha_context *context = context_with(2);
    small_make(&x, &r);
    small_run(context, &x, true);
    for (int i = 0; i < 2; i++) {
        const mha_dtype dtype = i ? MHA_BF16 : MHA_F16;
        for (int64_t n = 0; n < FEW_H * FEW_T * FEW_D; n++)
            q[n] = half_of(x.q[n], dtype), k[n] = half_of(x.k[n], dtype);
        for (int64_t n = 0; n < FEW_H * FEW_T * FEW_DV; n++) v[n] = half_of(x.v[n], dtype);
        const mha_tensor given[] = {few(q, dtype, FEW_D), few(k, dtype, FEW_D),
                                    few(v, dtype, FEW_DV)},
                         wide = few(o, MHA_F32, FEW_DV), narrow = few(halves, MHA_BF16, FEW_DV),
                         decay = few(x.decay, MHA_F32, 0), strength = few(x.strength, MHA_F32, 0);
        mha_recurrent_desc desc = MHA_INIT(mha_recurrent_desc);
        desc.flags = MHA_RECURRENT_DELTA, desc.log_decay = &decay, desc.strength = &strength;
        expect_ok(
            mha_recurrent_forward(context, &desc, &given[0], &given[1], &given[2], NULL, &wide));
        assert_memory_equal(o, x.o, sizeof o);
        expect_ok(
            mha_recurrent_forward(context, &desc, &given[0], &given[1], &given[2], NULL, &narrow));
        for (int64_t n = 0; n < FEW_H * FEW_T * FEW_DV; n++) {
            const uint32_t bits = (uint32_t)halves[n] << 16;
            float value;
            memcpy(&value, &bits, sizeof value);
            assert_true(fabsf(value - o[n]) <= 0x1p-8f * fabsf(o[n]) + 0x1p-134f);
        }
    }
}

/* Axes without elements may have any length; sizes of states do not wrap. */
static void sizes_beyond_memory(void)
{
    const int64_t far = INT64_C(1) << 40;
    mha_context *context = context_with(1);
    float one = 1;
    mha_tensor q = mha_tensor_contiguous(NULL, MHA_F32, 4, (int64_t[]){far, far, 0, 3}),
               o = mha_tensor_contiguous(NULL, MHA_F32, 4, (int64_t[]){far, far, 0, 2});
    for (int i = 0; i < 4; i++) q.stride[i] = o.stride[i] = 0;
    expect_ok(mha_recurrent_forward(context, NULL, &q, &q, &o, NULL, &o));
    q = mha_tensor_contiguous(&one, MHA_F32, 4, (int64_t[]){1, 1, far, 1});
    q.stride[2] = 0;
    o = mha_tensor_contiguous(NULL, MHA_F32, 4, (int64_t[]){1, 1, far, 0});
    expect_ok(mha_recurrent_forward(context, NULL, &q, &q, &o, NULL, &o));
    mha_recurrent_state_desc size = MHA_INIT(mha_recurrent_state_desc);
    mha_recurrent_state *state = NULL;
    size.batch = size.heads = far, size.head_dim = 1;
    expect_error(mha_recurrent_state_create(context, &size, &state), MHA_ERR_SIZE, "heads");
    size.heads = 1, size.head_dim = INT64_MAX;
    expect_error(mha_recurrent_state_create(context, &size, &state), MHA_ERR_SIZE, "too large");
    size.head_dim = 1, size.value_dim = INT64_MAX;
    expect_error(mha_recurrent_state_create(context, &size, &state), MHA_ERR_SIZE, "too large");
    assert_null(state);
}

static mha_status no_rows(void *user, int64_t b, int64_t row, const mha_tensor *p)
{
    (void)b, (void)row, (void)p;
    return user ? MHA_ERR_CALLBACK : MHA_OK;
}

typedef struct call {
    mha_recurrent_desc desc;
    mha_tensor q, k, v, o, decay, strength;
    mha_recurrent_state *state;
    int64_t lengths[2];
} call;

static mha_status make_call(mha_context *context, call *c)
{
    return mha_recurrent_forward(context, &c->desc, &c->q, &c->k, &c->v, c->state, &c->o);
}

static void misuse_is_refused(void)
{
    static float memory[6][2 * 4 * 5 * 3];
    mha_context *context = context_with(1);
    const int64_t qk[] = {2, 2, 5, 3}, vo[] = {2, 4, 5, 2}, row[] = {2, 4, 5};
    call c = {.desc = MHA_INIT(mha_recurrent_desc)};
    c.q = mha_tensor_contiguous(memory[0], MHA_F32, 4, qk);
    c.k = mha_tensor_contiguous(memory[1], MHA_F32, 4, qk);
    c.v = mha_tensor_contiguous(memory[2], MHA_F32, 4, vo);
    c.o = mha_tensor_contiguous(memory[3], MHA_F32, 4, vo);
    c.decay = mha_tensor_contiguous(memory[4], MHA_F32, 3, row);
    c.strength = mha_tensor_contiguous(memory[5], MHA_F32, 3, row);
    c.desc.log_decay = &c.decay, c.desc.strength = &c.strength, c.desc.lengths = c.lengths;
    mha_recurrent_state_desc size = MHA_INIT(mha_recurrent_state_desc);
    size.batch = 2, size.heads = 4, size.head_dim = 3, size.value_dim = 2;
    expect_ok(mha_recurrent_state_create(context, &size, &c.state));
    mha_recurrent_state *state = c.state;
    expect_ok(make_call(context, &c));
    expect_spoiled(c, make_call(NULL, &c), MHA_ERR_NULL, "context is NULL", (void)0);
    expect_spoiled(c, make_call(context, &c), MHA_ERR_UNSUPPORTED, "flags 0x40", c.desc.flags = 64);
    expect_spoiled(c, make_call(context, &c), MHA_ERR_UNSUPPORTED, "reserved is 1",
                   c.desc.reserved = 1);
    expect_spoiled(c, make_call(context, &c), MHA_ERR_ARGUMENT, "scale", c.desc.scale = NAN);
    expect_spoiled(c, make_call(context, &c), MHA_ERR_ARGUMENT, "lengths[1] is 6",
                   c.lengths[1] = 6);
    expect_spoiled(c, make_call(context, &c), MHA_ERR_SHAPE, "k", c.k.shape[2] = 4);
    expect_spoiled(c, make_call(context, &c), MHA_ERR_SHAPE, "q: 3 heads", c.q.shape[1] = 3);
    expect_spoiled(c, make_call(context, &c), MHA_ERR_SHAPE, "o", c.o.shape[3] = 1);
    expect_spoiled(c, make_call(context, &c), MHA_ERR_DTYPE, "v", c.v.dtype = MHA_I32);
    expect_spoiled(c, make_call(context, &c), MHA_ERR_SHAPE, "log_decay: axis 1 has length 3",
                   c.decay.shape[1] = 3);
    expect_spoiled(c, make_call(context, &c), MHA_ERR_DTYPE, "strength",
                   c.strength.dtype = MHA_F64);
    expect_spoiled(c, make_call(context, &c), MHA_ERR_STRIDE, "o", c.o.stride[2] = 0);
    expect_spoiled(c, make_call(context, &c), MHA_ERR_OVERLAP, "o", c.o.data = c.v.data);
    expect_error(mha_recurrent_state_copy(state, 0, state, 2), MHA_ERR_ARGUMENT, "to 2 of 2");
    size.heads = 1;
    expect_ok(mha_recurrent_state_create(context, &size, &c.state));
    expect_error(make_call(context, &c), MHA_ERR_SHAPE, "state: [2,1,3,2], expected [2,4,3,2]");
    expect_error(mha_recurrent_state_copy(state, 0, c.state, 0), MHA_ERR_SHAPE, "expected [1,3,2]");
    mha_recurrent_state_destroy(c.state);
    size.heads = 0;
    expect_error(mha_recurrent_state_create(context, &size, &c.state), MHA_ERR_ARGUMENT,
                 "heads is 0");
    /* A chunk keeps its kind of decay. */
    c.state = state;
    c.lengths[0] = c.lengths[1] = 5;
    expect_ok(make_call(context, &c));
    c.decay = mha_tensor_contiguous(memory[4], MHA_F32, 4, (int64_t[]){1, 1, 5, 3});
    expect_error(make_call(context, &c), MHA_ERR_ARGUMENT,
                 "log_decay: is per channel, expected per head");
    /* ... of the sequences that a call continues. */
    c.lengths[0] = c.lengths[1] = 0;
    expect_ok(make_call(context, &c));
    c.desc.log_decay = NULL;
    c.lengths[0] = 5;
    expect_ok(make_call(context, &c));
    assert_int_equal(mha_recurrent_state_lengths(state)[0], 10);
    assert_int_equal(mha_recurrent_state_lengths(state)[1], 5);
    expect_error(mha_recurrent_visit_rows(context, &c.desc, &c.q, &c.k, 4, 0, no_rows, &c),
                 MHA_ERR_CALLBACK, "");
    expect_error(mha_recurrent_visit_rows(context, &c.desc, &c.q, &c.k, 3, 0, no_rows, NULL),
                 MHA_ERR_SHAPE, "q: 2 heads");
    expect_error(mha_recurrent_visit_rows(context, &c.desc, &c.q, &c.k, 4, -1, no_rows, NULL),
                 MHA_ERR_ARGUMENT, "block_rows is -1");
    mha_recurrent_state_destroy(state);
    mha_recurrent_state_destroy(NULL);
}

RUN_TESTS(TEST(outputs_and_states_are_within_the_bound),
          TEST(parts_of_any_sizes_have_the_bits_of_the_whole),
          TEST(rows_of_the_map_times_values_are_the_outputs),
          TEST(rows_have_the_same_bits_in_blocks_of_any_size),
          TEST(long_maps_solve_triangular_systems),
          TEST(nothing_of_later_tokens_reaches_earlier_ones),
          TEST(states_are_copied_written_and_reset),
          TEST(non_finite_numbers_reach_what_the_header_says),
          TEST(inputs_of_16_bits_give_the_bits_of_f32), TEST(sizes_beyond_memory),
          TEST(misuse_is_refused))
