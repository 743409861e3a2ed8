/* Gradients of linear attention, compared with a reference in double that sums pairs without a
 * running state. Central differences verify the reference.
 *
 * The library's features are f32 with a relative error of 2.5 u, all other values are double, and
 * the result rounds once. Each gradient is a sum of products of at most four features and one
 * division by a sum of products of two, so 12 * 3 u of the sum of magnitudes bounds it
 * generously. */
#include "reference/reference.h"
#include "support/expect.h"
#include "support/machines.h"
#include "support/rng.h"
#include "support/shared_context.h"
#include "support/suite.h"
#include "support/tally.h"

#include <multihead/backward.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { Q, K, V, STATE_S, STATE_Z, INPUTS };
static const char *const names[] = {"q", "k", "v", "state_s", "state_z"};
static const double u = 0x1p-24;

typedef struct problem {
    int64_t B, H, Hk, T, S, D, Dv;
    bool causal, state;
    int64_t offsets[3], lengths[3];
    int64_t count[INPUTS], o_count;
    double *in[INPUTS], *g; /* contiguous; each number is exact in f32 */
} problem;

static void make(problem *x, rng *r, bool small)
{
    memset(x, 0, sizeof *x);
    x->B = rng_between(r, 1, small ? 1 : 3);
    x->Hk = rng_between(r, 1, 2);
    x->H = x->Hk * rng_between(r, 1, 3);
    x->T = rng_between(r, 0, small ? 4 : 40);
    x->S = rng_between(r, 0, small ? 5 : 150);
    x->D = rng_between(r, 1, small ? 3 : 20);
    x->Dv = rng_between(r, 1, small ? 3 : 40);
    x->causal = rng_chance(r, 0.6);
    x->state = rng_chance(r, 0.5);
    for (int64_t b = 0; b < x->B; b++) {
        x->offsets[b] = x->causal ? rng_between(r, -3, x->S + 1) : 0;
        x->lengths[b] = rng_chance(r, 0.5) ? x->S : rng_between(r, 0, x->S);
    }
    const int64_t counts[] = {x->B * x->H * x->T * x->D, x->B * x->Hk * x->S * x->D,
                              x->B * x->Hk * x->S * x->Dv, x->B * x->Hk * x->D * x->Dv,
                              x->B * x->Hk * x->D};
    x->o_count = x->B * x->H * x->T * x->Dv;
    for (int i = 0; i < INPUTS; i++) {
        x->count[i] = i < STATE_S || x->state ? counts[i] : 0;
        x->in[i] = ref_doubles(counts[i]);
        for (int64_t j = 0; j < x->count[i]; j++) {
            double value = (double)rng_normal(r);
            x->in[i][j] = i == STATE_Z ? (double)(float)(0.1 + fabs(value)) : value;
        }
    }
    x->g = ref_doubles(x->o_count);
    for (int64_t j = 0; j < x->o_count; j++) x->g[j] = (double)rng_normal(r);
}

static void unmake(problem *x)
{
    for (int i = 0; i < INPUTS; i++) free(x->in[i]);
    free(x->g);
}

/* ---- the reference --------------------------------------------------------------------------- */

static double phi(double x)
{
    return x > 0 ? x + 1 : exp(x);
}
static double slope(double x)
{
    return x > 0 ? 1 : exp(x);
}

static int64_t visible(const problem *x, int64_t b, int64_t t)
{
    int64_t end = x->causal ? t + x->offsets[b] + 1 : x->S;
    end = end < x->lengths[b] ? end : x->lengths[b];
    return end < 0 ? 0 : end;
}

static double sign(double x, bool magnitudes)
{
    return magnitudes ? fabs(x) : x;
}

/* The indices of a row's data. */
typedef struct place {
    int64_t keys;
    const double *q, *k, *v, *s, *z, *g;
} place;

static place place_of(const problem *x, int64_t b, int64_t h, int64_t t)
{
    int64_t kv = b * x->Hk + h / (x->H / x->Hk), row = (b * x->H + h) * x->T + t;
    return (place){visible(x, b, t),
                   x->in[Q] + row * x->D,
                   x->in[K] + kv * x->S * x->D,
                   x->in[V] + kv * x->S * x->Dv,
                   x->in[STATE_S] + kv * x->D * x->Dv,
                   x->in[STATE_Z] + kv * x->D,
                   x->g + row * x->Dv};
}

static double weight(const problem *x, const place *p, int64_t s)
{
    double sum = 0;
    for (int64_t i = 0; i < x->D; i++) sum += phi(p->q[i]) * phi(p->k[s * x->D + i]);
    return sum;
}

/* m, and g . o; with `magnitudes`, the sum of the magnitudes of its terms. */
static double normalize(const problem *x, const place *p, bool magnitudes, double *go)
{
    double m = 0, sum = 0;
    for (int64_t s = 0; s < p->keys; s++) {
        double w = weight(x, p, s);
        m += w;
        for (int64_t d = 0; d < x->Dv; d++)
            sum += w * sign(p->v[s * x->Dv + d] * p->g[d], magnitudes);
    }
    for (int64_t i = 0; x->state && i < x->D; i++) {
        m += phi(p->q[i]) * p->z[i];
        for (int64_t d = 0; d < x->Dv; d++)
            sum += phi(p->q[i]) * sign(p->s[i * x->Dv + d] * p->g[d], magnitudes);
    }
    *go = m > 0 ? sum / m : 0;
    return m;
}

static void add_key(const problem *x, const place *p, int64_t s, double m, double go,
                    bool magnitudes, double *da, double *dk, double *dv)
{
    double w = weight(x, p, s), along = 0;
    for (int64_t d = 0; d < x->Dv; d++) {
        along += sign(p->g[d] * p->v[s * x->Dv + d], magnitudes);
        dv[s * x->Dv + d] += w / m * sign(p->g[d], magnitudes);
    }
    double dw = (magnitudes ? along + go : along - go) / m;
    for (int64_t i = 0; i < x->D; i++) {
        double key = p->k[s * x->D + i];
        da[i] += dw * phi(key);
        dk[s * x->D + i] += dw * phi(p->q[i]) * slope(key);
    }
}

static void add_row(const problem *x, int64_t b, int64_t h, int64_t t, bool magnitudes,
                    double *out[INPUTS])
{
    place p = place_of(x, b, h, t);
    int64_t kv = b * x->Hk + h / (x->H / x->Hk), row = (b * x->H + h) * x->T + t;
    double go, m = normalize(x, &p, magnitudes, &go), *da = ref_doubles(x->D);
    if (m > 0) {
        for (int64_t s = 0; s < p.keys; s++)
            add_key(x, &p, s, m, go, magnitudes, da, out[K] + kv * x->S * x->D,
                    out[V] + kv * x->S * x->Dv);
        for (int64_t i = 0; x->state && i < x->D; i++) {
            double a = phi(p.q[i]) / m;
            for (int64_t d = 0; d < x->Dv; d++) {
                da[i] += sign(p.s[i * x->Dv + d] * p.g[d], magnitudes) / m;
                out[STATE_S][(kv * x->D + i) * x->Dv + d] += a * sign(p.g[d], magnitudes);
            }
            da[i] += (magnitudes ? 1 : -1) * go * p.z[i] / m;
            out[STATE_Z][kv * x->D + i] += (magnitudes ? 1 : -1) * a * go;
        }
    }
    for (int64_t i = 0; i < x->D; i++) out[Q][row * x->D + i] += da[i] * slope(p.q[i]);
    free(da);
}

static void reference(const problem *x, bool magnitudes, double *out[INPUTS])
{
    for (int64_t b = 0; b < x->B; b++)
        for (int64_t h = 0; h < x->H; h++)
            for (int64_t t = 0; t < x->T; t++) add_row(x, b, h, t, magnitudes, out);
}

static double loss(const problem *x)
{
    double sum = 0;
    for (int64_t b = 0; b < x->B; b++)
        for (int64_t h = 0; h < x->H; h++)
            for (int64_t t = 0; t < x->T; t++) {
                place p = place_of(x, b, h, t);
                double go;
                if (normalize(x, &p, false, &go) > 0) sum += go;
            }
    return sum;
}

static void allocate(const problem *x, double *out[INPUTS])
{
    for (int i = 0; i < INPUTS; i++)
        out[i] = ref_doubles(x->count[i] > 0 ? x->count[i] : x->B * x->Hk * x->D * x->Dv);
}

static void release(double *out[INPUTS])
{
    for (int i = 0; i < INPUTS; i++) free(out[i]);
}

/* Fourth order; elu + 1 has a kink at 0 in its second derivative, so numbers near 0 are skipped. */
static void gradients_are_differences(void)
{
    int64_t compared = 0;
    for (int n = 0; n < rng_cases(100, 3000); n++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)n);
        problem x;
        double *exact[INPUTS];
        make(&x, &r, true);
        allocate(&x, exact);
        reference(&x, false, exact);
        for (int i = 0; i < INPUTS; i++)
            for (int64_t j = 0; j < x.count[i]; j++) {
                double *at = &x.in[i][j], old = *at, f[4];
                if (i <= K && fabs(old) < 1e-2) continue;
                for (int k = 0; k < 4; k++) {
                    *at = old + (k % 2 ? -1e-3 : 1e-3) * (k / 2 + 1);
                    f[k] = loss(&x);
                }
                *at = old;
                double expected = (8 * (f[0] - f[1]) - (f[2] - f[3])) / 12e-3;
                if (!(fabs(exact[i][j] - expected) <=
                      1e-6 * fabs(expected) + 1e-9 * (1 + fabs(f[0]))))
                    fail_msg("%s[%lld] is %.12g, by differences %.12g", names[i], (long long)j,
                             exact[i][j], expected);
                compared++;
            }
        release(exact);
        unmake(&x);
    }
    if (rng_whole_sample()) assert_true(compared > 500);
}

/* ---- the library ----------------------------------------------------------------------------- */

typedef struct call {
    mha_linear_attention_desc desc;
    mha_tensor in[INPUTS], g, out[INPUTS];
    mha_linear_attention_gradients gradients;
} call;

static mha_tensor floats(const double *from, int64_t count, int ndim, const int64_t *shape)
{
    float *memory = malloc(((size_t)count + 1) * sizeof *memory);
    assert_non_null(memory);
    for (int64_t i = 0; i < count; i++) memory[i] = from ? (float)from[i] : 0.5f;
    return mha_tensor_contiguous(memory, MHA_F32, ndim, shape);
}

static void prepare(call *c, const problem *x)
{
    const int64_t shapes[INPUTS][4] = {{x->B, x->H, x->T, x->D},
                                       {x->B, x->Hk, x->S, x->D},
                                       {x->B, x->Hk, x->S, x->Dv},
                                       {x->B, x->Hk, x->D, x->Dv},
                                       {x->B, x->Hk, x->D, 0}};
    const int64_t o[4] = {x->B, x->H, x->T, x->Dv};
    memset(c, 0, sizeof *c);
    for (int i = 0; i < INPUTS; i++) {
        c->in[i] = floats(x->in[i], x->count[i], i == STATE_Z ? 3 : 4, shapes[i]);
        c->out[i] = floats(NULL, x->count[i], i == STATE_Z ? 3 : 4, shapes[i]);
    }
    c->g = floats(x->g, x->o_count, 4, o);
    c->desc = (mha_linear_attention_desc){.struct_size = sizeof c->desc,
                                          .flags = x->causal ? MHA_LINEAR_ATTENTION_CAUSAL : 0,
                                          .q_offsets = x->causal ? x->offsets : NULL,
                                          .key_lengths = x->lengths};
    c->gradients = (mha_linear_attention_gradients){
        .struct_size = sizeof c->gradients, .q = &c->out[Q], .k = &c->out[K], .v = &c->out[V]};
    if (!x->state) return;
    c->desc.state_s = &c->in[STATE_S];
    c->desc.state_z = &c->in[STATE_Z];
    c->gradients.state_s = &c->out[STATE_S];
    c->gradients.state_z = &c->out[STATE_Z];
}

static void dispose(call *c)
{
    for (int i = 0; i < INPUTS; i++) {
        free(c->in[i].data);
        free(c->out[i].data);
    }
    free(c->g.data);
}

static mha_status backward(mha_context *context, const call *c)
{
    return mha_linear_attention_backward(context, &c->desc, &c->in[Q], &c->in[K], &c->in[V], &c->g,
                                         &c->gradients);
}

static void compare(const problem *x, const call *c, bool accumulated, double *exact[INPUTS],
                    double *size[INPUTS], tally *cards)
{
    for (int i = 0; i < INPUTS; i++)
        for (int64_t j = 0; j < x->count[i]; j++) {
            double wanted = exact[i][j] + (accumulated ? 0.5 : 0);
            double bound = 36 * u * size[i][j] + 1.001 * u * fabs(wanted) + 0x1p-149;
            double got = (double)((const float *)c->out[i].data)[j];
            if (!tally_compare(&cards[i], got, wanted, bound))
                fail_msg("d%s[%lld] is %.9g, exact %.9g, bound %.3g; seed %llu", names[i],
                         (long long)j, got, wanted, bound, (unsigned long long)rng_run_seed());
        }
}

/* Both ways of writing, and one thread or three, give the same bits, within the bounds. */
static void random_problems(void)
{
    machines one = machines_make(1), three = machines_make(3);
    tally cards[INPUTS] = {{0}};
    for (int n = 0; n < rng_cases(60, 2000); n++) {
        rng r = rng_make(rng_run_seed(), 1000000 + (uint64_t)n);
        problem x;
        double *exact[INPUTS], *size[INPUTS];
        make(&x, &r, false);
        allocate(&x, exact);
        allocate(&x, size);
        reference(&x, false, exact);
        reference(&x, true, size);
        for (int m = 0; m < one.count; m++) {
            call a, b;
            prepare(&a, &x);
            prepare(&b, &x);
            bool accumulated = rng_chance(&r, 0.3);
            if (accumulated) a.gradients.flags = b.gradients.flags = MHA_GRADIENTS_ACCUMULATE;
            expect_ok(backward(one.each[m].context, &a));
            expect_ok(backward(three.each[m].context, &b));
            compare(&x, &a, accumulated, exact, size, cards);
            for (int i = 0; i < INPUTS; i++)
                assert_memory_equal(a.out[i].data, b.out[i].data,
                                    (size_t)x.count[i] * sizeof(float));
            dispose(&a);
            dispose(&b);
        }
        release(exact);
        release(size);
        unmake(&x);
    }
    for (int i = 0; i < INPUTS; i++) {
        cards[i].name = names[i];
        tally_judge(&cards[i]);
    }
}

/* ---- maps, poison, errors -------------------------------------------------------------------- */

/* elu + 1 as a caller's map. */
static void own_map(void *user, const float *rows, int64_t count, int64_t head_dim, float *features,
                    int64_t feature_dim)
{
    (void)user, (void)feature_dim;
    for (int64_t i = 0; i < count * head_dim; i++) features[i] = (float)phi((double)rows[i]);
}

static void own_gradient(void *user, const float *rows, int64_t count, int64_t head_dim,
                         const float *feature_gradients, int64_t feature_dim, float *row_gradients)
{
    (void)user, (void)feature_dim;
    for (int64_t i = 0; i < count * head_dim; i++)
        row_gradients[i] = (float)((double)feature_gradients[i] * slope((double)rows[i]));
}

static void a_map_of_the_caller(void)
{
    rng r = rng_make(rng_run_seed(), 3);
    mha_context *context = context_with(0);
    problem x;
    call c;
    double *exact[INPUTS], *size[INPUTS];
    tally cards[INPUTS] = {{0}};
    make(&x, &r, false);
    allocate(&x, exact);
    allocate(&x, size);
    reference(&x, false, exact);
    reference(&x, true, size);
    prepare(&c, &x);
    c.desc.feature_map = own_map;
    assert_int_equal(backward(context, &c), MHA_ERR_UNSUPPORTED);
    assert_non_null(strstr(mha_error_detail(), "feature_map_gradient"));
    c.gradients.feature_map_gradient = own_gradient;
    expect_ok(backward(context, &c));
    compare(&x, &c, false, exact, size, cards);
    dispose(&c);
    release(exact);
    release(size);
    unmake(&x);
}

/* Query 0 sees keys 0 and 1, query 1 sees all three, and key 3 is beyond the length. Non-finite
 * numbers in query 1, its dO or key 2 do not affect query 0, and non-finite numbers in key 3 affect
 * nothing. */
static void poison_stays(void)
{
    float q[2] = {0.5f, -1}, k[4] = {1, -0.5f, 2, NAN}, v[4] = {1, 2, 3, INFINITY}, g[2] = {1, 2};
    float d[10], clean[10] = {0};
    const int64_t length = 3;
    mha_context *context = context_with(0);
    for (int spoil = -1; spoil < 4; spoil++) {
        float *const bad[] = {q + 1, g + 1, k + 2, v + 2};
        float kept = 0;
        if (spoil >= 0) kept = *bad[spoil], *bad[spoil] = NAN;
        const mha_tensor queries = mha_tensor_contiguous(q, MHA_F32, 4, (int64_t[]){1, 1, 2, 1});
        const mha_tensor keys = mha_tensor_contiguous(k, MHA_F32, 4, (int64_t[]){1, 1, 4, 1});
        const mha_tensor values = mha_tensor_contiguous(v, MHA_F32, 4, (int64_t[]){1, 1, 4, 1});
        const mha_tensor o = mha_tensor_contiguous(g, MHA_F32, 4, (int64_t[]){1, 1, 2, 1});
        const mha_tensor dq = mha_tensor_contiguous(d, MHA_F32, 4, queries.shape);
        const mha_tensor dk = mha_tensor_contiguous(d + 2, MHA_F32, 4, keys.shape);
        const mha_tensor dv = mha_tensor_contiguous(d + 6, MHA_F32, 4, keys.shape);
        const mha_linear_attention_desc desc = {.struct_size = sizeof desc,
                                                .flags = MHA_LINEAR_ATTENTION_CAUSAL,
                                                .q_offset = 1,
                                                .key_lengths = &length};
        const mha_linear_attention_gradients wanted = {
            .struct_size = sizeof wanted, .q = &dq, .k = &dk, .v = &dv};
        expect_ok(
            mha_linear_attention_backward(context, &desc, &queries, &keys, &values, &o, &wanted));
        if (spoil < 0)
            memcpy(clean, d, sizeof d);
        else
            *bad[spoil] = kept;
        assert_true(d[0] == clean[0] && isfinite(d[0]));
        assert_true(d[5] == 0 && d[9] == 0);
        for (int i = 1; i < 5; i++) assert_true(spoil < 0 ? isfinite(d[i]) : isnan(d[i]));
    }
}

static void misuse_is_refused(void)
{
    rng r = rng_make(1, 9);
    mha_context *context = context_with(0);
    problem x;
    call c;
    do {
        make(&x, &r, false);
        if (x.state || x.T < 2 || x.S < 2) unmake(&x);
    } while (x.state || x.T < 2 || x.S < 2);
    prepare(&c, &x);
    assert_int_equal(backward(NULL, &c), MHA_ERR_NULL);
    c.gradients.state_z = &c.out[STATE_Z];
    assert_int_equal(backward(context, &c), MHA_ERR_ARGUMENT);
    c.gradients.state_z = NULL;
    c.gradients.flags = 4;
    assert_int_equal(backward(context, &c), MHA_ERR_UNSUPPORTED);
    c.gradients.flags = 0;
    c.gradients.k = &c.out[Q];
    assert_true(backward(context, &c) == MHA_ERR_SHAPE || x.T == x.S);
    c.gradients.k = &c.in[K];
    assert_int_equal(backward(context, &c), MHA_ERR_OVERLAP);
    c.gradients.k = &c.out[K];
    c.g.shape[2]--;
    assert_int_equal(backward(context, &c), MHA_ERR_SHAPE);
    c.g.shape[2]++;
    expect_ok(backward(context, &c));
    dispose(&c);
    unmake(&x);
}

RUN_TESTS(TEST(gradients_are_differences), TEST(random_problems), TEST(a_map_of_the_caller),
          TEST(poison_stays), TEST(misuse_is_refused))
