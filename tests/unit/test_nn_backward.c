/* Gradients of the layers around attention, in two independent steps. Formulas in double are
 * compared with central differences of the forward formulas in double. The library is compared with
 * the formulas, within a bound derived next to each.
 * */
#include "reference/bounds.h"
#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/guarded.h"
#include "support/machines.h"
#include "support/suite.h"
#include "support/tally.h"

#include <multihead/nn.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double u = 0x1p-24;

static mha_status linear_backward(mha_context *context, const mha_tensor *weight,
                                  const mha_tensor *x, const mha_tensor *dy, uint32_t flags,
                                  const mha_tensor *dx, const mha_tensor *dweight,
                                  const mha_tensor *dbias)
{
    return mha_linear_backward(context, &(mha_linear_gradients){sizeof(mha_linear_gradients), flags,
                                                                weight, x, dy, dx, dweight, dbias});
}

static mha_status norm_backward(mha_status (*run)(mha_context *, const mha_norm_gradients *),
                                mha_context *context, const mha_tensor *x,
                                const mha_tensor *residual, const mha_tensor *weight, float epsilon,
                                const mha_tensor *dy, uint32_t flags, const mha_tensor *dx,
                                const mha_tensor *dweight, const mha_tensor *dbias)
{
    return run(context, &(mha_norm_gradients){sizeof(mha_norm_gradients), flags, x, residual,
                                              weight, dy, dx, dweight, dbias, epsilon});
}

static guarded matrix(rng *r, int64_t rows, int64_t cols, double factor)
{
    static const unsigned layouts[] = {LAYOUT_CONTIGUOUS, LAYOUT_PAD, LAYOUT_PAD | LAYOUT_NEGATIVE};
    return guarded_filled(r, 2, (int64_t[]){rows, cols}, RNG_PICK(r, layouts), factor);
}

static guarded vector(rng *r, int64_t n, double factor)
{
    return guarded_filled(r, 1, &n, LAYOUT_CONTIGUOUS, factor);
}

static double at(const guarded *x, int64_t m, int64_t n)
{
    return (double)*(float *)guarded_element(&x->view, (int64_t[]){m, n});
}
static double at1(const guarded *x, int64_t n)
{
    return (double)((float *)x->view.data)[n];
}

/* Copies of an output's elements before a call. */
static double *copy_of(const guarded *x)
{
    int64_t rows = x->view.shape[0], cols = x->view.ndim == 2 ? x->view.shape[1] : 1;
    double *copy = malloc((size_t)(rows * cols + 1) * sizeof *copy);
    assert_non_null(copy);
    for (int64_t i = 0; i < rows * cols; i++)
        copy[i] = x->view.ndim == 2 ? at(x, i / cols, i % cols) : at1(x, i);
    return copy;
}

static void judge(tally *t, const char *what, const machine *m, double got, double exact,
                  double bound)
{
    if (!tally_compare(t, got, exact, bound))
        fail_msg("%s: %s is %.9g, exact %.9g, bound %.3g", m->name, what, got, exact, bound);
}

/* Portable C rounds a product and a sum twice; the other paths round once. */
static double products(const machine *m)
{
    return m->isa == MHA_ISA_PORTABLE ? 2 * u : u;
}

/* ---- linear -------------------------------------------------------------------------------- */

/* The bound of sum_i a_i b_i over blocks of 128, which are added to `start` in order: a chain of
 * 128 products, and an addition for each block (numerics.md 4). */
static double bound_sum(const machine *m, int64_t n, double absolute, double start)
{
    return products(m) * ((double)(n / 128) + 130) * absolute +
           u * (double)(n / 128 + 2) * (fabs(start) + absolute) + 1e-44 * (double)(n + 1);
}

typedef struct linear_case {
    int64_t M, K, N;
    guarded weight, x, dy, dx, dweight, dbias;
} linear_case;

static linear_case linear_make(rng *r)
{
    static const int64_t sizes[] = {0, 1, 3, 14, 15, 31, 32, 33, 64, 100, 129, 300};
    linear_case c = {.M = RNG_PICK(r, sizes), .K = RNG_PICK(r, sizes), .N = RNG_PICK(r, sizes)};
    c.weight = matrix(r, c.N, c.K, 1);
    c.x = matrix(r, c.M, c.K, 1);
    c.dy = matrix(r, c.M, c.N, 1);
    c.dx = matrix(r, c.M, c.K, 1);
    c.dweight = matrix(r, c.N, c.K, 1);
    c.dbias = vector(r, c.N, 1);
    return c;
}

static void linear_free(linear_case *c)
{
    guarded *all[] = {&c->weight, &c->x, &c->dy, &c->dx, &c->dweight, &c->dbias};
    for (int i = 0; i < 6; i++) guarded_free(all[i]);
}

static void linear_judge(const linear_case *c, const machine *m, bool add, const double *dx,
                         const double *dweight, const double *dbias, tally *t)
{
    for (int64_t e = 0; e < c->M * c->K; e += 1 + c->M * c->K / 500) {
        int64_t i = e / c->K, k = e % c->K;
        double sum = 0, absolute = 0, start = add ? dx[e] : 0;
        for (int64_t n = 0; n < c->N; n++) {
            sum += at(&c->dy, i, n) * at(&c->weight, n, k);
            absolute += fabs(at(&c->dy, i, n) * at(&c->weight, n, k));
        }
        judge(t, "dx", m, at(&c->dx, i, k), start + sum, bound_sum(m, c->N, absolute, start));
    }
    for (int64_t e = 0; e < c->N * c->K; e += 1 + c->N * c->K / 500) {
        int64_t n = e / c->K, k = e % c->K;
        double sum = 0, absolute = 0;
        for (int64_t i = 0; i < c->M; i++) {
            sum += at(&c->dy, i, n) * at(&c->x, i, k);
            absolute += fabs(at(&c->dy, i, n) * at(&c->x, i, k));
        }
        judge(t, "dweight", m, at(&c->dweight, n, k), dweight[e] + sum,
              bound_sum(m, c->M, absolute, dweight[e]));
    }
    for (int64_t n = 0; n < c->N; n++) { /* in double, rounded once */
        double sum = dbias[n];
        for (int64_t i = 0; i < c->M; i++) sum += at(&c->dy, i, n);
        judge(t, "dbias", m, at1(&c->dbias, n), sum, u * fabs(sum) + 1e-13 * (double)(c->M + 1));
    }
}

static void linear(void)
{
    machines all = machines_make(2);
    tally tallies[MOST_MACHINES] = {{0}};
    for (int i = 0; i < rng_cases(60, 1500); i++)
        for (int j = 0; j < all.count; j++) {
            rng r = rng_make(rng_run_seed(), (uint64_t)i);
            linear_case c = linear_make(&r);
            bool add = rng_chance(&r, 0.5);
            double *dx = copy_of(&c.dx), *dweight = copy_of(&c.dweight), *dbias = copy_of(&c.dbias);
            tallies[j].name = all.each[j].name;
            expect_ok(linear_backward(all.each[j].context, &c.weight.view, &c.x.view, &c.dy.view,
                                      add ? MHA_GRADIENT_ADD : 0, &c.dx.view, &c.dweight.view,
                                      &c.dbias.view));
            assert_true(guarded_gaps_intact(&c.dx) && guarded_gaps_intact(&c.dweight));
            linear_judge(&c, &all.each[j], add, dx, dweight, dbias, &tallies[j]);
            free(dx), free(dweight), free(dbias);
            linear_free(&c);
        }
    for (int j = 0; j < all.count; j++) tally_judge(&tallies[j]);
}

/* A call for a single gradient is bit-identical to a call for all three, for any number of
 * threads. */
static void linear_bits(void)
{
    for (int i = 0; i < 10; i++) {
        linear_case c[4];
        for (int j = 0; j < 4; j++) {
            rng r = rng_make(rng_run_seed(), 1000 + (uint64_t)i);
            c[j] = linear_make(&r);
            machines all = machines_make(j == 0 ? 1 : j == 1 ? 3 : 8);
            mha_context *context = all.each[0].context;
            const mha_tensor *dx = &c[j].dx.view, *dw = &c[j].dweight.view, *db = &c[j].dbias.view;
            if (j < 3) {
                expect_ok(linear_backward(context, &c[j].weight.view, &c[j].x.view, &c[j].dy.view,
                                          0, dx, dw, db));
            } else {
                expect_ok(linear_backward(context, &c[j].weight.view, NULL, &c[j].dy.view, 0, dx,
                                          NULL, NULL));
                expect_ok(linear_backward(context, &c[j].weight.view, &c[j].x.view, &c[j].dy.view,
                                          0, NULL, dw, NULL));
                expect_ok(linear_backward(context, &c[j].weight.view, NULL, &c[j].dy.view, 0, NULL,
                                          NULL, db));
            }
            assert_true(guarded_same_bits(&c[0].dx.view, dx, false));
            assert_true(guarded_same_bits(&c[0].dweight.view, dw, false));
            assert_true(guarded_same_bits(&c[0].dbias.view, db, false));
        }
        for (int j = 0; j < 4; j++) linear_free(&c[j]);
    }
}

/* ---- activations --------------------------------------------------------------------------- */

static double phi(double x)
{
    return exp(-x * x / 2) / sqrt(2 * 3.141592653589793);
}
static double gelu_slope(double x)
{
    return erfc(-x / sqrt(2.0)) / 2 + x * phi(x);
}
static double silu(double x)
{
    return x / (1 + exp(-x));
}
static double silu_slope(double x)
{
    double s = 1 / (1 + exp(-x));
    return s * (1 + x * (1 - s));
}

/* (1 + tanh(z)) / 2 = 1 / (1 + exp(-2 z)), which has no cancellation. */
static double gelu_argument(double x)
{
    return 1.5957691216057308 * (x + 0.044715 * x * x * x);
}
static double gelu_tanh(double x)
{
    return x / (1 + exp(-gelu_argument(x)));
}
static double gelu_tanh_slope(double x)
{
    double s = 1 / (1 + exp(-gelu_argument(x))), rest = 1 / (1 + exp(gelu_argument(x)));
    return s + x * s * rest * 1.5957691216057308 * (1 + 3 * 0.044715 * x * x);
}

/* The formulas of slopes equal differences of the functions. */
static void formulas_of_slopes_are_right(void)
{
    for (double x = -12; x <= 12; x += 0.37) {
        double h = 1e-4;
        double gelu = (ref_gelu(x + h) - ref_gelu(x - h)) / (2 * h);
        double swish = (silu(x + h) - silu(x - h)) / (2 * h);
        assert_true(fabs(gelu - gelu_slope(x)) < 1e-7);
        assert_true(fabs(swish - silu_slope(x)) < 1e-7);
        double gelu2 = (gelu_tanh(x + h) - gelu_tanh(x - h)) / (2 * h);
        double z = 0.7978845608028654 * (x + 0.044715 * x * x * x);
        assert_true(fabs(gelu2 - gelu_tanh_slope(x)) < 1e-7);
        assert_true(fabs(gelu_tanh(x) - 0.5 * x * (1 + tanh(z))) < 1e-14);
    }
}

/* Phi has the forward call's error. The density's exponent x^2 / 2 has three roundings, its
 * exponential an error of 3.5 u, and two products and a sum follow. */
static double bound_gelu_slope(double x)
{
    double of_phi = fabs(x) > 1e-6 ? bound_gelu(x, 0) / fabs(x) : 4 * u;
    return of_phi + fabs(x) * phi(x) * (3.4 * x * x / 2 + 9) * u + 2 * u * fabs(gelu_slope(x)) +
           1e-37;
}

/* z, the sigmoid's argument, has an error of at most 4 u, and the sigmoid of at most (1.4 |z| + 6)
 * u (see below). */
static double bound_gelu_tanh(double x)
{
    const double z = gelu_argument(x);
    const double rest = 1 / (1 + exp(fmin(z, 700)));
    return (rest * (6 * fabs(z) + 6) + 7) * u * fabs(gelu_tanh(x)) + 0x1p-125 * fabs(x) + 1e-44;
}

/* s + x s (1 - s) z' has three factors with the errors of s and 1 - s, a linear factor with an
 * error of 4 u, and a sum. */
static double bound_gelu_tanh_slope(double x)
{
    const double line = 1.5957691216057308 * (1 + 3 * 0.044715 * x * x);
    const double z = gelu_argument(x);
    const double s = 1 / (1 + exp(-z)), rest = 1 / (1 + exp(z));
    const double es = s * (rest * (6 * fabs(z) + 4) + 3) * u + 0x1p-125;
    return es + fabs(x) * line * (es * (s + rest) + 9 * s * rest * u) +
           u * fabs(gelu_tanh_slope(x));
}

static double relu(double x)
{
    return x > 0 ? x : 0;
}
static double relu_slope(double x)
{
    return x > 0;
}
static double relu2(double x)
{
    return x > 0 ? x * x : 0;
}
static double bound_relu2(double x)
{
    return u * relu2(x) + 1e-44;
}
static double relu2_slope(double x)
{
    return x > 0 ? 2 * x : 0;
}
static double quick_gelu(double x)
{
    return x / (1 + exp(-1.702 * x));
}
static double bound_quick_gelu(double x)
{
    return u * fabs(quick_gelu(x)) * (1 + 1e-9) + 1e-44;
}
static double quick_gelu_slope(double x)
{
    const double s = 1 / (1 + exp(-1.702 * x));
    return s + 1.702 * x * s * (1 - s);
}
/* The terms cancel near -0.9; they are computed in double. */
static double bound_quick_gelu_slope(double x)
{
    return 0x1p-50 * (1 + fabs(x));
}

/* The sigmoid's exponent is rounded twice (1.4 u |g|), its exponential has an error of at most 3.5
 * u, and a sum and a quotient follow; es is the total. Products follow and, in the slope, 1 - s
 * with an absolute error of s es. */
static double bound_silu(double g)
{
    return ((1.4 * fabs(g) + 6) * u + 3 * u) * fabs(silu(g)) + 0x1p-125 * fabs(g);
}
static double bound_silu_slope(double g)
{
    const double s = 1 / (1 + exp(-g)), es = (1.4 * fabs(g) + 6) * u;
    const double slope = (1 + fabs(g) * (1 - s)) * (es + 4 * u) + fabs(g) * (s * es + 2 * u);
    return s * slope + 0x1p-125 * fabs(g) + 1e-37;
}
static double no_error(double x)
{
    (void)x;
    return 0;
}
static double bound_gelu_here(double x)
{
    return bound_gelu(x, 0);
}

static const struct activation_kind {
    mha_activation kind;
    double (*value)(double), (*bound)(double), (*slope)(double), (*slope_bound)(double);
} kinds[] = {
    {MHA_ACTIVATION_GELU, ref_gelu, bound_gelu_here, gelu_slope, bound_gelu_slope},
    {MHA_ACTIVATION_RELU, relu, no_error, relu_slope, no_error},
    {MHA_ACTIVATION_GELU_TANH, gelu_tanh, bound_gelu_tanh, gelu_tanh_slope, bound_gelu_tanh_slope},
    {MHA_ACTIVATION_RELU2, relu2, bound_relu2, relu2_slope, no_error},
    {MHA_ACTIVATION_SILU, silu, bound_silu, silu_slope, bound_silu_slope},
    {MHA_ACTIVATION_QUICK_GELU, quick_gelu, bound_quick_gelu, quick_gelu_slope,
     bound_quick_gelu_slope}};

enum { KINDS = sizeof kinds / sizeof kinds[0] };

static void activations(void)
{
    machines all = machines_make(2);
    for (int j = 0; j < all.count; j++) {
        const machine *m = &all.each[j];
        tally t = {.name = m->name};
        for (int i = 0; i < rng_cases(40, 500); i++) {
            rng r = rng_make(rng_run_seed(), 2000 + (uint64_t)i);
            int64_t M = rng_between(&r, 0, 9), N = rng_between(&r, 0, 70);
            guarded x = matrix(&r, M, N, 3), dy = matrix(&r, M, N, 1), dx = matrix(&r, M, N, 1);
            const struct activation_kind *k = &kinds[rng_between(&r, 0, KINDS - 1)];
            expect_ok(mha_activation_forward(m->context, k->kind, &x.view, &dx.view));
            for (int64_t e = 0; e < M * N; e++) {
                double v = at(&x, e / N, e % N);
                judge(&t, "y", m, at(&dx, e / N, e % N), k->value(v), k->bound(v));
            }
            expect_ok(mha_activation_backward(m->context, k->kind, &x.view, &dy.view, &dx.view));
            for (int64_t e = 0; e < M * N; e++) {
                double v = at(&x, e / N, e % N), d = at(&dy, e / N, e % N);
                judge(&t, "dx", m, at(&dx, e / N, e % N), d * k->slope(v),
                      fabs(d) * k->slope_bound(v) + u * fabs(d * k->slope(v)));
            }
            assert_true(guarded_gaps_intact(&dx));
            /* In place. */
            guarded own = matrix(&r, M, N, 1);
            for (int64_t e = 0; e < M * N; e++)
                *(float *)guarded_element(&own.view, (int64_t[]){e / N, e % N}) =
                    (float)at(&dy, e / N, e % N);
            expect_ok(mha_activation_backward(m->context, k->kind, &x.view, &own.view, &own.view));
            assert_true(guarded_same_bits(&own.view, &dx.view, false));
            guarded_free(&x), guarded_free(&dy), guarded_free(&dx), guarded_free(&own);
        }
        tally_judge(&t);
    }
}

/* value and slope of a gate's activation, with bounds of their errors, products included. */
typedef struct unit {
    double value, value_bound, slope, slope_bound;
} unit;

/* y = activation(gate) up has the activation's error and one rounding. Its gradients have the
 * errors of values and slopes and two roundings. */
static unit unit_of(const struct activation_kind *k, double g)
{
    const double value = k->value(g), slope = k->slope(g);
    return (unit){value, k->bound(g) + 2 * u * fabs(value), slope,
                  k->slope_bound(g) + 3 * u * fabs(slope)};
}

static unit silu_of(double g)
{
    return (unit){silu(g), bound_silu(g), silu_slope(g), bound_silu_slope(g)};
}

/* One random case of activation k, or of mha_swiglu(). */
static void check_gated(const machine *m, rng *r, const struct activation_kind *k, tally *t)
{
    const int64_t M = rng_between(r, 0, 9), N = rng_between(r, 0, 700);
    guarded gate = matrix(r, M, N, k ? 3 : rng_chance(r, 0.2) ? 60 : 2), up = matrix(r, M, N, 1);
    guarded dy = matrix(r, M, N, 1), y = matrix(r, M, N, 1);
    guarded dgate = matrix(r, M, N, 1), dup = matrix(r, M, N, 1);
    guarded *every[] = {&gate, &up, &dy, &y, &dgate, &dup};
    expect_ok(k ? mha_glu(m->context, k->kind, &gate.view, &up.view, &y.view)
                : mha_swiglu(m->context, &gate.view, &up.view, &y.view));
    for (int over = 0; over < 2; over++) { /* then over its inputs */
        const mha_tensor *g = over ? &gate.view : &dgate.view;
        const mha_tensor *w = !over ? &dup.view : k ? &dy.view : &up.view;
        expect_ok(k ? mha_glu_backward(m->context, k->kind, &gate.view, &up.view, &dy.view, g, w)
                    : mha_swiglu_backward(m->context, &gate.view, &up.view, &dy.view, g, w));
        for (int64_t e = 0; !over && e < M * N; e++) {
            const double v = at(&up, e / N, e % N), d = at(&dy, e / N, e % N);
            const double x = at(&gate, e / N, e % N);
            const unit c = k ? unit_of(k, x) : silu_of(x);
            judge(t, "y", m, at(&y, e / N, e % N), c.value * v, c.value_bound * fabs(v) + 1e-44);
            judge(t, "dup", m, at(&dup, e / N, e % N), c.value * d,
                  c.value_bound * fabs(d) + 1e-44);
            judge(t, "dgate", m, at(&dgate, e / N, e % N), d * v * c.slope,
                  c.slope_bound * fabs(d * v) + 1e-44);
        }
        assert_true(guarded_same_bits(g, &dgate.view, false));
        assert_true(guarded_same_bits(w, &dup.view, false));
    }
    assert_true(guarded_gaps_intact(&y) && guarded_gaps_intact(&dup));
    for (int e = 0; e < 6; e++) guarded_free(every[e]);
}

static void gated_units(void)
{
    machines all = machines_make(2);
    for (int j = 0; j < all.count; j++)
        for (int swiglu = 0; swiglu < 2; swiglu++) {
            tally t = {.name = all.each[j].name};
            for (int i = 0; i < rng_cases(40, 500); i++) {
                rng r = rng_make(rng_run_seed(), (swiglu ? 3000 : 5000) + (uint64_t)i);
                check_gated(&all.each[j], &r, swiglu ? NULL : &kinds[rng_between(&r, 0, KINDS - 1)],
                            &t);
            }
            tally_judge(&t);
        }
}

/* ---- norms --------------------------------------------------------------------------------- */

enum { MOST = 80 };

typedef struct norm_sums {
    double mean, scale;
} norm_sums;

static norm_sums measure(const double *z, int64_t n, bool centred, double epsilon)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) sum += z[i];
    double mean = centred ? sum / (double)n : 0;
    for (int64_t i = 0; i < n; i++) squares += (z[i] - mean) * (z[i] - mean);
    return (norm_sums){mean, 1 / sqrt(squares / (double)n + epsilon)};
}

static void norm_gradient(const double *z, const double *weight, const double *dy, int64_t n,
                          bool centred, double epsilon, double *dz)
{
    norm_sums m = measure(z, n, centred, epsilon);
    double g = 0, gn = 0;
    for (int64_t i = 0; i < n; i++) {
        g += dy[i] * weight[i] / (double)n;
        gn += dy[i] * weight[i] * (z[i] - m.mean) * m.scale / (double)n;
    }
    for (int64_t i = 0; i < n; i++)
        dz[i] = m.scale * (dy[i] * weight[i] - (centred ? g : 0) - (z[i] - m.mean) * m.scale * gn);
}

/* sum_i dy_i y_i, whose gradient is dz. */
static double norm_objective(const double *z, const double *weight, const double *dy, int64_t n,
                             bool centred, double epsilon)
{
    norm_sums m = measure(z, n, centred, epsilon);
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += dy[i] * (z[i] - m.mean) * m.scale * weight[i];
    return sum;
}

static void norm_formulas(void)
{
    for (int i = 0; i < 100; i++) {
        rng r = rng_make(rng_run_seed(), 4000 + (uint64_t)i);
        int64_t n = rng_between(&r, 2, 20);
        bool centred = rng_chance(&r, 0.5);
        double z[MOST], weight[MOST], dy[MOST], dz[MOST], largest = 0;
        for (int64_t k = 0; k < n; k++) {
            z[k] = (double)rng_normal(&r);
            weight[k] = (double)rng_normal(&r);
            dy[k] = (double)rng_normal(&r);
        }
        norm_gradient(z, weight, dy, n, centred, 1e-2, dz);
        for (int64_t k = 0; k < n; k++) largest = fmax(largest, fabs(dz[k]));
        for (int64_t k = 0; k < n; k++) {
            double h = 1e-4, old = z[k];
            z[k] = old + h;
            double above = norm_objective(z, weight, dy, n, centred, 1e-2);
            z[k] = old - h;
            double below = norm_objective(z, weight, dy, n, centred, 1e-2);
            z[k] = old;
            assert_true(fabs((above - below) / (2 * h) - dz[k]) < 1e-6 * (largest + 1));
        }
    }
}

typedef struct norm_case {
    int64_t M, N;
    bool centred, add, in_place, has_residual;
    guarded x, residual, weight, bias, dy, dx, dweight, dbias, y;
} norm_case;

static norm_case norm_make(rng *r)
{
    norm_case c = {.M = rng_between(r, 0, 200), .N = rng_between(r, 0, MOST)};
    c.centred = rng_chance(r, 0.5), c.add = rng_chance(r, 0.5);
    c.in_place = rng_chance(r, 0.3), c.has_residual = rng_chance(r, 0.5);
    c.x = matrix(r, c.M, c.N, 1);
    c.residual = matrix(r, c.M, c.N, 3);
    c.weight = vector(r, c.N, 1);
    c.bias = vector(r, c.N, 1);
    c.dy = matrix(r, c.M, c.N, 1);
    c.dx = matrix(r, c.M, c.N, 1);
    c.y = matrix(r, c.M, c.N, 1);
    c.dweight = vector(r, c.N, 1);
    c.dbias = vector(r, c.N, 1);
    return c;
}

static void norm_free(norm_case *c)
{
    guarded *all[] = {&c->x,  &c->residual, &c->weight, &c->bias, &c->dy,
                      &c->dx, &c->dweight,  &c->dbias,  &c->y};
    for (int i = 0; i < 9; i++) guarded_free(all[i]);
}

static const float epsilon = 1e-5f;

static mha_status norm_run(mha_context *context, norm_case *c)
{
    const mha_tensor *residual = c->has_residual ? &c->residual.view : NULL;
    const mha_tensor *dx = c->in_place ? &c->dy.view : &c->dx.view;
    uint32_t flags = c->add ? MHA_GRADIENT_ADD : 0;
    if (c->centred)
        return norm_backward(mha_layer_norm_backward, context, &c->x.view, residual,
                             &c->weight.view, epsilon, &c->dy.view, flags, dx, &c->dweight.view,
                             &c->dbias.view);
    return norm_backward(mha_rms_norm_backward, context, &c->x.view, residual, &c->weight.view,
                         epsilon, &c->dy.view, flags, dx, &c->dweight.view, NULL);
}

/* The library computes in double (2^-53, a few hundred operations on sums of at most 200 terms) and
 * rounds once. */
static void norm_judge(const norm_case *c, const machine *m, const double *dy, const double *dx,
                       const double *dweight, const double *dbias, tally *t)
{
    double z[MOST], weight[MOST], dz[MOST], sum[MOST] = {0}, total[MOST] = {0}, size[MOST] = {0};
    for (int64_t k = 0; k < c->N; k++) weight[k] = at1(&c->weight, k);
    for (int64_t i = 0; i < c->M; i++) {
        double most = 0;
        for (int64_t k = 0; k < c->N; k++)
            z[k] = c->has_residual
                       ? (double)((float)at(&c->x, i, k) + (float)at(&c->residual, i, k))
                       : at(&c->x, i, k);
        norm_sums s = measure(z, c->N, c->centred, (double)epsilon);
        norm_gradient(z, weight, dy + i * c->N, c->N, c->centred, (double)epsilon, dz);
        for (int64_t k = 0; k < c->N; k++) {
            double n = (z[k] - s.mean) * s.scale;
            sum[k] += dy[i * c->N + k] * n;
            total[k] += dy[i * c->N + k];
            size[k] += fabs(dy[i * c->N + k]) * (1 + fabs(n)) * (1 + s.scale);
            most = fmax(most, fabs(dy[i * c->N + k] * weight[k]));
        }
        for (int64_t k = 0; k < c->N; k++) {
            double start = c->add ? (c->in_place ? dy : dx)[i * c->N + k] : 0;
            double got = at(c->in_place ? &c->dy : &c->dx, i, k);
            judge(t, "dx", m, got, start + dz[k],
                  u * fabs(start + dz[k]) +
                      1e-12 * (1 + most) * s.scale * (1 + s.scale) * (1 + fabs(z[k])));
        }
    }
    for (int64_t k = 0; k < c->N; k++) {
        double exact = dweight[k] + sum[k];
        judge(t, "dweight", m, at1(&c->dweight, k), exact, u * fabs(exact) + 1e-12 * (1 + size[k]));
        exact = dbias[k] + (c->centred ? total[k] : 0);
        judge(t, "dbias", m, at1(&c->dbias, k), exact, u * fabs(exact) + 1e-12 * (1 + size[k]));
    }
}

static void norms(void)
{
    machines all = machines_make(3);
    tally t = {.name = "norms"};
    for (int i = 0; i < rng_cases(60, 1000); i++) {
        const machine *m = &all.each[i % all.count];
        rng r = rng_make(rng_run_seed(), 5000 + (uint64_t)i);
        norm_case c = norm_make(&r);
        double *dy = copy_of(&c.dy), *dx = copy_of(&c.dx);
        double *dweight = copy_of(&c.dweight), *dbias = copy_of(&c.dbias);
        expect_ok(norm_run(m->context, &c));
        assert_true(guarded_gaps_intact(&c.dx) && guarded_gaps_intact(&c.dy));
        norm_judge(&c, m, dy, dx, dweight, dbias, &t);
        free(dy), free(dx), free(dweight), free(dbias);
        norm_free(&c);
    }
    tally_judge(&t);
}

/* The forward call of RMS norm computes in double and rounds once. */
static void rms_forward(void)
{
    machines all = machines_make(2);
    tally t = {.name = "rms norm"};
    for (int i = 0; i < 50; i++) {
        rng r = rng_make(rng_run_seed(), 6000 + (uint64_t)i);
        norm_case c = norm_make(&r);
        const machine *m = &all.each[i % all.count];
        const mha_tensor *residual = c.has_residual ? &c.residual.view : NULL;
        expect_ok(
            mha_rms_norm(m->context, &c.x.view, residual, &c.weight.view, epsilon, &c.y.view));
        for (int64_t row = 0; row < c.M; row++) {
            double z[MOST];
            for (int64_t k = 0; k < c.N; k++)
                z[k] = c.has_residual
                           ? (double)((float)at(&c.x, row, k) + (float)at(&c.residual, row, k))
                           : at(&c.x, row, k);
            norm_sums s = measure(z, c.N, false, (double)epsilon);
            for (int64_t k = 0; k < c.N; k++) {
                double exact = z[k] * s.scale * at1(&c.weight, k);
                judge(&t, "y", m, at(&c.y, row, k), exact, u * fabs(exact) * (1 + 1e-6) + 1e-45);
            }
        }
        assert_true(guarded_gaps_intact(&c.y));
        norm_free(&c);
    }
    tally_judge(&t);
}

static void norm_bits(void)
{
    for (int i = 0; i < 10; i++) {
        norm_case c[3];
        for (int j = 0; j < 3; j++) {
            rng r = rng_make(rng_run_seed(), 7000 + (uint64_t)i);
            c[j] = norm_make(&r);
            machines all = machines_make(j == 0 ? 1 : j == 1 ? 2 : 8);
            expect_ok(norm_run(all.each[0].context, &c[j]));
            assert_true(guarded_same_bits(&c[0].dx.view, &c[j].dx.view, false));
            assert_true(guarded_same_bits(&c[0].dy.view, &c[j].dy.view, false));
            assert_true(guarded_same_bits(&c[0].dweight.view, &c[j].dweight.view, false));
            assert_true(guarded_same_bits(&c[0].dbias.view, &c[j].dbias.view, false));
        }
        for (int j = 0; j < 3; j++) norm_free(&c[j]);
    }
}

/* ---- embedding ----------------------------------------------------------------------------- */

static guarded some_ids(rng *r, int64_t count, int64_t low, int64_t high)
{
    guarded g = guarded_make(r, MHA_I32, 1, &count, LAYOUT_CONTIGUOUS);
    for (int64_t i = 0; i < count; i++)
        ((int32_t *)g.view.data)[i] = (int32_t)rng_between(r, low, high);
    return g;
}

/* Sums of f32 in the order of rows equal a loop's to the bit. */
static void embeddings(void)
{
    for (int i = 0; i < 60; i++) {
        rng r = rng_make(rng_run_seed(), 8000 + (uint64_t)i);
        int64_t V = rng_between(&r, 1, 20), M = rng_between(&r, 0, 60), N = rng_between(&r, 0, 50);
        bool add = rng_chance(&r, 0.5);
        guarded table = matrix(&r, V, N, 1), y = matrix(&r, M, N, 1);
        guarded dtable = matrix(&r, V, N, 1), ids = some_ids(&r, M, 0, V - 1);
        mha_context *context = machines_context(3, i);
        double *before = copy_of(&y), *sums = copy_of(&dtable);
        expect_ok(
            mha_embedding(context, &table.view, &ids.view, add ? MHA_GRADIENT_ADD : 0, &y.view));
        for (int64_t e = 0; e < M * N; e++) {
            double from = at(&table, ((int32_t *)ids.view.data)[e / N], e % N);
            float exact = add ? (float)before[e] + (float)from : (float)from;
            assert_true(at(&y, e / N, e % N) == (double)exact);
        }
        expect_ok(mha_embedding_backward(context, &ids.view, &y.view, &dtable.view));
        for (int64_t e = 0; e < M * N; e++) {
            double *sum = &sums[((int32_t *)ids.view.data)[e / N] * N + e % N];
            *sum = (double)((float)*sum + (float)at(&y, e / N, e % N));
        }
        for (int64_t e = 0; e < V * N; e++) assert_true(at(&dtable, e / N, e % N) == sums[e]);
        assert_true(guarded_gaps_intact(&y) && guarded_gaps_intact(&dtable));
        free(before), free(sums);
        guarded *every[] = {&table, &y, &dtable, &ids};
        for (int k = 0; k < 4; k++) guarded_free(every[k]);
    }
}

/* ---- cross-entropy ------------------------------------------------------------------------- */

typedef struct loss_case {
    int64_t M, V;
    bool weighted;
    guarded logits, targets, weights, losses, dlogits;
} loss_case;

static loss_case loss_make(rng *r)
{
    loss_case c = {.M = rng_between(r, 1, 40), .V = rng_between(r, 1, 150)};
    c.weighted = rng_chance(r, 0.5);
    c.logits = matrix(r, c.M, c.V, rng_chance(r, 0.2) ? 50 : 3);
    c.targets = some_ids(r, c.M, rng_chance(r, 0.5) ? -1 : 0, c.V - 1);
    c.weights = vector(r, c.M, 1);
    c.losses = vector(r, c.M, 1);
    c.dlogits = matrix(r, c.M, c.V, 1);
    return c;
}

static void loss_free(loss_case *c)
{
    guarded *all[] = {&c->logits, &c->targets, &c->weights, &c->losses, &c->dlogits};
    for (int i = 0; i < 5; i++) guarded_free(all[i]);
}

/* For each row, the exponent x - max is rounded twice and its factor once (2.4 u |x - max|), the
 * exponential has an error of at most 3.5 u, the sum has V/16 + 5 additions, and products follow.
 * Numbers below 2^-126 become 0. */
static void loss_judge(const loss_case *c, const machine *m, double loss, tally *t)
{
    const int32_t *target = c->targets.view.data;
    int64_t counted = 0;
    for (int64_t i = 0; i < c->M; i++) counted += target[i] >= 0;
    double total = 0, total_bound = 1e-300;
    for (int64_t i = 0; i < c->M; i++) {
        double max = -INFINITY, sum = 0, error = ((double)c->V / 16 + 5) * u;
        for (int64_t v = 0; v < c->V; v++) max = fmax(max, at(&c->logits, i, v));
        for (int64_t v = 0; v < c->V; v++) sum += exp(at(&c->logits, i, v) - max);
        for (int64_t v = 0; v < c->V; v++) {
            double d = at(&c->logits, i, v) - max;
            error += exp(d) / sum * (2.4 * fabs(d) + 3.5) * u + 0x1p-126;
        }
        double weight = c->weighted ? at1(&c->weights, i) : (double)(1 / (float)counted);
        double row = target[i] < 0 ? 0 : log(sum) + max - at(&c->logits, i, target[i]);
        if (target[i] < 0) weight = 0;
        judge(t, "row loss", m, at1(&c->losses, i), row, error + u * fabs(row));
        total += weight * row;
        total_bound += fabs(weight) * error + 1e-15 * fabs(weight * row);
        for (int64_t v = 0; v < c->V; v++) {
            double d = at(&c->logits, i, v) - max, p = exp(d) / sum;
            double exact = weight * (p - (v == target[i]));
            double bound =
                fabs(weight) * (p * ((2.4 * fabs(d) + 7) * u + error) + 0x1p-125) + u * fabs(exact);
            judge(t, "dlogits", m, at(&c->dlogits, i, v), exact, bound);
        }
    }
    judge(t, "loss", m, loss, total, total_bound);
}

static void cross_entropy(void)
{
    machines all = machines_make(2);
    tally tallies[MOST_MACHINES] = {{0}};
    for (int i = 0; i < rng_cases(60, 1000); i++)
        for (int j = 0; j < all.count; j++) {
            rng r = rng_make(rng_run_seed(), 9000 + (uint64_t)i);
            loss_case c = loss_make(&r);
            const mha_tensor *weights = c.weighted ? &c.weights.view : NULL;
            double loss = 0, alone = 0;
            tallies[j].name = all.each[j].name;
            mha_context *context = all.each[j].context;
            expect_ok(mha_cross_entropy(context, &c.logits.view, &c.targets.view, weights, &loss,
                                        &c.losses.view, &c.dlogits.view));
            loss_judge(&c, &all.each[j], loss, &tallies[j]);
            assert_true(guarded_gaps_intact(&c.dlogits));
            expect_ok(mha_cross_entropy(context, &c.logits.view, &c.targets.view, weights, &alone,
                                        NULL, NULL));
            assert_true(alone == loss);
            expect_ok(mha_cross_entropy(context, &c.logits.view, &c.targets.view, weights, &alone,
                                        NULL, &c.logits.view));
            assert_true(guarded_same_bits(&c.logits.view, &c.dlogits.view, false));
            loss_free(&c);
        }
    for (int j = 0; j < all.count; j++) tally_judge(&tallies[j]);
}

/* ---- misuse -------------------------------------------------------------------------------- */

static void misuse_is_refused(void)
{
    mha_context *x = machines_context(1, 0);
    rng r = rng_make(rng_run_seed(), 1);
    guarded a = guarded_filled(&r, 2, (int64_t[]){4, 6}, 0, 1),
            b = guarded_filled(&r, 2, (int64_t[]){4, 6}, 0, 1);
    guarded w = guarded_filled(&r, 2, (int64_t[]){6, 3}, 0, 1), n = vector(&r, 6, 1),
            k = vector(&r, 3, 1);
    guarded out = guarded_filled(&r, 2, (int64_t[]){4, 3}, 0, 1), ids = some_ids(&r, 4, 0, 3);
    guarded_snapshot(&out), guarded_snapshot(&b);
    const mha_tensor *A = &a.view, *B = &b.view, *W = &w.view, *OUT = &out.view, *IDS = &ids.view;
    expect_error(linear_backward(NULL, W, OUT, A, 0, OUT, NULL, NULL), MHA_ERR_NULL, "context");
    expect_error(linear_backward(x, W, NULL, A, 2, OUT, NULL, NULL), MHA_ERR_UNSUPPORTED, "2");
    expect_error(linear_backward(x, W, NULL, OUT, 0, OUT, NULL, NULL), MHA_ERR_SHAPE, "dy");
    expect_error(linear_backward(x, W, NULL, A, 0, B, NULL, NULL), MHA_ERR_SHAPE, "dx");
    expect_error(linear_backward(x, W, NULL, A, 0, NULL, W, NULL), MHA_ERR_NULL, "x");
    expect_error(linear_backward(x, W, OUT, A, 0, NULL, W, NULL), MHA_ERR_OVERLAP, "weight");
    expect_error(linear_backward(x, W, NULL, A, 0, NULL, NULL, &k.view), MHA_ERR_SHAPE, "dbias");
    expect_error(mha_activation_backward(x, MHA_ACTIVATION_NONE, A, A, B), MHA_ERR_ARGUMENT, "0");
    expect_error(mha_activation_backward(x, MHA_ACTIVATION_GELU, A, B, A), MHA_ERR_OVERLAP, "x");
    expect_error(mha_activation_forward(x, MHA_ACTIVATION_GELU, A, OUT), MHA_ERR_SHAPE, "y");
    expect_error(mha_swiglu(x, A, OUT, B), MHA_ERR_SHAPE, "up");
    expect_error(mha_swiglu_backward(x, A, A, A, B, B), MHA_ERR_OVERLAP, "dgate");
    expect_error(mha_rms_norm(x, A, NULL, &k.view, 0, B), MHA_ERR_SHAPE, "weight");
    expect_error(
        norm_backward(mha_rms_norm_backward, x, A, NULL, &n.view, NAN, A, 0, B, NULL, NULL),
        MHA_ERR_ARGUMENT, "epsilon");
    expect_error(norm_backward(mha_rms_norm_backward, x, A, NULL, &n.view, 0, A, 0, B, NULL, OUT),
                 MHA_ERR_UNSUPPORTED, "dbias");
    expect_error(
        norm_backward(mha_layer_norm_backward, x, A, NULL, &n.view, 0, A, 4, B, NULL, NULL),
        MHA_ERR_UNSUPPORTED, "4");
    expect_error(
        norm_backward(mha_layer_norm_backward, x, A, NULL, &n.view, 0, B, 0, A, NULL, NULL),
        MHA_ERR_OVERLAP, "dx overlaps x");
    expect_error(
        norm_backward(mha_layer_norm_backward, x, A, NULL, &n.view, 0, B, 0, NULL, &n.view, NULL),
        MHA_ERR_OVERLAP, "dweight overlaps weight");
    expect_error(mha_embedding(x, A, A, 0, B), MHA_ERR_DTYPE, "ids");
    int32_t *third = (int32_t *)ids.view.data + 2;
    expect_spoiled(*third, mha_embedding(x, A, IDS, 0, B), MHA_ERR_ARGUMENT,
                   "ids[2] is 4, expected 0..3", *third = 4);
    expect_spoiled(*third, mha_embedding_backward(x, IDS, A, B), MHA_ERR_ARGUMENT, "ids[2]",
                   *third = 4);
    expect_spoiled(*third, mha_cross_entropy(x, A, IDS, NULL, NULL, NULL, B), MHA_ERR_ARGUMENT,
                   "targets[2] is -2, expected -1..5", *third = -2);
    expect_error(mha_cross_entropy(x, A, IDS, &n.view, NULL, NULL, B), MHA_ERR_SHAPE, "weights");
    expect_error(mha_cross_entropy(x, A, IDS, NULL, NULL, NULL, OUT), MHA_ERR_SHAPE, "dlogits");
    assert_true(guarded_unchanged(&out) && guarded_unchanged(&b));
    guarded *every[] = {&a, &b, &w, &n, &k, &out, &ids};
    for (int i = 0; i < 7; i++) guarded_free(every[i]);
}

/* If any allocation fails, the call reports an error and writes nothing. */
static void failed_allocations_are_reported(void)
{
    int refused = 0;
    for (int64_t fail_at = 0, finished = 0; finished < 3; fail_at++) {
        finished = 0;
        for (int kind = 0; kind < 3; kind++) {
            failing_alloc allocator = failing_alloc_make();
            mha_context *context;
            expect_ok(failing_context(&allocator, 1, MHA_ISA_AUTO, &context));
            rng r = rng_make(2, 77); /* sizes that are not 0: each must allocate */
            linear_case l = linear_make(&r);
            norm_case n = norm_make(&r);
            loss_case c = loss_make(&r);
            guarded *outputs[] = {&l.dx,      &l.dweight, &l.dbias,  &n.dx,     &n.dy,
                                  &n.dweight, &n.dbias,   &c.losses, &c.dlogits};
            for (int i = 0; i < 9; i++) guarded_snapshot(outputs[i]);
            allocator.calls = 0, allocator.fail_at = fail_at, allocator.fail_after = true;
            mha_status status =
                kind == 0   ? linear_backward(context, &l.weight.view, &l.x.view, &l.dy.view, 0,
                                              &l.dx.view, &l.dweight.view, &l.dbias.view)
                : kind == 1 ? norm_run(context, &n)
                            : mha_cross_entropy(context, &c.logits.view, &c.targets.view, NULL,
                                                NULL, &c.losses.view, &c.dlogits.view);
            /* A failure is harmless when scratch is merged on release. The library may then try a
             * smaller block, so all later allocations fail too. */
            assert_true(status == MHA_OK || status == MHA_ERR_NOMEM);
            assert_true(status == MHA_OK || allocator.calls > fail_at);
            for (int i = 0; status != MHA_OK && i < 9; i++)
                assert_true(guarded_unchanged(outputs[i]));
            refused += status == MHA_ERR_NOMEM;
            finished += allocator.calls <= fail_at;
            mha_context_destroy(context);
            assert_int_equal(allocator.live, 0);
            assert_int_equal(allocator.mistakes, 0);
            linear_free(&l), norm_free(&n), loss_free(&c);
        }
    }
    assert_true(refused >= 3);
}

RUN_TESTS(TEST(linear), TEST(linear_bits), TEST(formulas_of_slopes_are_right), TEST(activations),
          TEST(gated_units), TEST(norm_formulas), TEST(norms), TEST(rms_forward), TEST(norm_bits),
          TEST(embeddings), TEST(cross_entropy), TEST(misuse_is_refused),
          TEST(failed_allocations_are_reported))
