/* The backward pass of recurrent layers. Central differences of the loss verify a reference in
 * double, token by token; the library is within bounds in norms (docs/numerics.md 16). */
#include "reference/reference.h"
#include "support/expect.h"
#include "support/machines.h"
#include "support/rng.h"
#include "support/shared_context.h"
#include "support/suite.h"
#include "support/tally.h"

#include <multihead/recurrent.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { Q, K, V, DECAY, STRENGTH, SKIP, INITIAL, INPUTS, O = INPUTS, STATE, ALL };
static const char *const names[] = {"q", "k", "v", "log_decay", "strength", "skip", "initial"};
static const double u = 0x1p-24;

typedef struct problem {
    int64_t B, H, T, D, Dv, lengths[3];
    bool delta, given[ALL];
    int64_t shape[ALL][4], count[ALL];
    double *in[ALL]; /* contiguous f32 numbers; for O and STATE, the gradients */
} problem;

static double decay_number(rng *r)
{
    const double kind = rng_uniform(r);
    return (double)(float)(kind < 0.04  ? -INFINITY
                           : kind < 0.1 ? -80 * rng_uniform(r)
                           : kind < 0.5 ? -0.1 * rng_uniform(r)
                                        : -rng_uniform(r));
}

static void set_shape(problem *x, int i, int64_t b, int64_t h, int64_t t, int64_t d)
{
    const int64_t shape[4] = {b, h, t, d};
    memcpy(x->shape[i], shape, sizeof shape);
    x->count[i] = b * h * t * d;
}

static void fill(problem *x, rng *r, bool smooth)
{
    for (int i = 0; i < ALL; i++) {
        x->in[i] = ref_doubles(x->count[i]);
        for (int64_t j = 0; j < x->count[i]; j++)
            x->in[i][j] = i != DECAY && i != STRENGTH ? (double)rng_normal(r)
                          : i == STRENGTH
                              ? (double)(float)(rng_chance(r, 0.1) ? 0 : 2 * rng_uniform(r))
                          : smooth ? (double)(float)-rng_uniform(r)
                                   : decay_number(r);
    }
    for (int64_t row = 0; row < x->count[K] / x->D; row++) {
        double squares = 1e-12, *k = x->in[K] + row * x->D;
        for (int64_t d = 0; d < x->D; d++) squares += k[d] * k[d];
        for (int64_t d = 0; d < x->D; d++) k[d] = (double)(float)(k[d] / sqrt(squares));
    }
}

static void make(problem *x, rng *r, bool small)
{
    *x = (problem){.B = rng_between(r, 1, small ? 1 : 3), .delta = rng_chance(r, 0.7)};
    const int64_t group = rng_between(r, 1, 2);
    x->H = group * rng_between(r, 1, 2);
    x->T = rng_between(r, 0, small ? 5 : 140);
    x->D = rng_between(r, 1, small ? 3 : 36);
    x->Dv = rng_between(r, 1, small ? 3 : 40);
    for (int i = 0; i < ALL; i++) x->given[i] = i < DECAY || i == O || rng_chance(r, 0.7);
    set_shape(x, Q, x->B, x->H / group, x->T, x->D);
    set_shape(x, K, x->B, rng_chance(r, 0.5) ? x->H : 1, x->T, x->D);
    set_shape(x, V, x->B, x->H, x->T, x->Dv);
    set_shape(x, DECAY, rng_chance(r, 0.3) ? 1 : x->B, rng_chance(r, 0.3) ? 1 : x->H, x->T,
              rng_chance(r, 0.5) ? x->D : 1);
    set_shape(x, STRENGTH, x->B, rng_chance(r, 0.3) ? 1 : x->H, rng_chance(r, 0.2) ? 1 : x->T, 1);
    set_shape(x, SKIP, 1, x->H, rng_chance(r, 0.5) ? 1 : x->T, 1);
    set_shape(x, INITIAL, x->B, x->H, x->D, x->Dv);
    set_shape(x, O, x->B, x->H, x->T, x->Dv);
    set_shape(x, STATE, x->B, x->H, x->D, x->Dv);
    for (int64_t b = 0; b < x->B; b++)
        x->lengths[b] = rng_chance(r, 0.5) ? x->T : rng_between(r, 0, x->T);
    fill(x, r, small);
}

static void unmake(problem *x)
{
    for (int i = 0; i < ALL; i++) free(x->in[i]);
}

/* ---- the reference --------------------------------------------------------------------------- */

/* The index of an element of an input from indices of all axes. */
static int64_t at(const problem *x, int i, int64_t b, int64_t h, int64_t t, int64_t d)
{
    const int64_t *shape = x->shape[i], head = h / (x->H / shape[1]);
    return (((shape[0] == 1 ? 0 : b) * shape[1] + head) * shape[2] + (shape[2] == 1 ? 0 : t)) *
               shape[3] +
           (shape[3] == 1 ? 0 : d);
}

/* One head of a sequence, token by token. */
typedef struct head {
    const problem *x;
    int64_t b, h;
    double *s, *before; /* [T + 1][D Dv] states, and [T][D Dv] states after only the decay */
    double *w, *u;      /* [T][Dv] */
    double *error;      /* [T + 1] bounds of the norm of a state's error */
} head;

static double get(const head *y, int i, int64_t t, int64_t d)
{
    const problem *x = y->x;
    if (!x->given[i]) return i == STRENGTH ? 1 : 0;
    return x->in[i][at(x, i, y->b, y->h, t, d)];
}

static double norm(const double *x, int64_t n)
{
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += x[i] * x[i];
    return sqrt(squares);
}

static double row_norm(const head *y, int i, int64_t t, int64_t n)
{
    double squares = 0;
    for (int64_t d = 0; d < n; d++) squares += get(y, i, t, d) * get(y, i, t, d);
    return sqrt(squares);
}

static double rounding(const problem *x)
{
    return 3 * (double)(x->D + x->Dv + 80) * u;
}

static double most_decay(const head *y, int64_t t)
{
    double most = 0;
    for (int64_t d = 0; d < y->x->D; d++) most = fmax(most, exp(get(y, DECAY, t, d)));
    return most;
}

static void forward_token(const head *y, int64_t t)
{
    const int64_t D = y->x->D, Dv = y->x->Dv, n = D * Dv;
    double *before = y->before + t * n, *after = y->s + (t + 1) * n, *w = y->w + t * Dv,
           *write = y->u + t * Dv;
    for (int64_t i = 0; i < n; i++) before[i] = exp(get(y, DECAY, t, i / Dv)) * y->s[t * n + i];
    for (int64_t c = 0; c < Dv; c++) {
        w[c] = get(y, V, t, c);
        for (int64_t d = 0; d < D && y->x->delta; d++) w[c] -= before[d * Dv + c] * get(y, K, t, d);
        write[c] = get(y, STRENGTH, t, 0) * w[c];
    }
    for (int64_t i = 0; i < n; i++) after[i] = before[i] + get(y, K, t, i / Dv) * write[i % Dv];
    y->error[t + 1] = most_decay(y, t) * y->error[t] +
                      rounding(y->x) * (norm(after, n) + row_norm(y, K, t, D) * norm(write, Dv));
}

static head head_make(const problem *x, int64_t b, int64_t h)
{
    const int64_t n = x->D * x->Dv, T = x->lengths[b];
    head y = {.x = x, .b = b, .h = h};
    y.s = ref_doubles((T + 1) * n), y.before = ref_doubles(T * n);
    y.w = ref_doubles(T * x->Dv), y.u = ref_doubles(T * x->Dv), y.error = ref_doubles(T + 1);
    for (int64_t i = 0; i < n; i++)
        y.s[i] = x->given[INITIAL] ? x->in[INITIAL][at(x, INITIAL, b, h, i / x->Dv, i % x->Dv)] : 0;
    for (int64_t t = 0; t < T; t++) forward_token(&y, t);
    return y;
}

static void head_free(head *y)
{
    free(y->s), free(y->before), free(y->w), free(y->u), free(y->error);
}

static double loss(const problem *x)
{
    double sum = 0;
    for (int64_t i = 0; i < x->B * x->H; i++) {
        head y = head_make(x, i / x->H, i % x->H);
        const int64_t n = x->D * x->Dv, T = x->lengths[y.b];
        for (int64_t j = 0; j < T * n; j++)
            sum += get(&y, Q, j / n, j % n / x->Dv) * y.s[n + j] * get(&y, O, j / n, j % x->Dv) /
                   sqrt((double)x->D);
        for (int64_t j = 0; j < T * x->Dv; j++)
            sum += get(&y, SKIP, j / x->Dv, 0) * get(&y, V, j / x->Dv, j % x->Dv) *
                   get(&y, O, j / x->Dv, j % x->Dv);
        for (int64_t j = 0; j < n && x->given[STATE]; j++)
            sum += y.s[T * n + j] * x->in[STATE][at(x, STATE, y.b, y.h, j / x->Dv, j % x->Dv)];
        head_free(&y);
    }
    return sum;
}

/* The gradients of a token, with G at y->g, and the bounds of their errors. */
typedef struct gradients {
    double *g, error; /* G and the bound of its error's norm */
    double slide;     /* the error of the sums of log_decay's gradient in the block */
    double *out[INPUTS], *bound[INPUTS];
} gradients;

static void add(const head *y, gradients *z, int i, int64_t t, int64_t d, double value,
                double bound)
{
    if (!y->x->given[i]) return;
    const int64_t index = at(y->x, i, y->b, y->h, t, d);
    z->out[i][index] += value;
    z->bound[i][index] += bound;
}

static void back_decay(const head *y, gradients *z, int64_t t)
{
    const int64_t D = y->x->D, Dv = y->x->Dv, n = D * Dv;
    const double *before = y->before + t * n, c = rounding(y->x);
    const double size = norm(z->g, n) * norm(before, n);
    for (int64_t d = 0; d < D; d++) {
        double sum = 0;
        for (int64_t j = 0; j < Dv; j++) sum += z->g[d * Dv + j] * before[d * Dv + j];
        add(y, z, DECAY, t, d, sum,
            (z->slide + c * size) / (double)(y->x->shape[DECAY][3] == 1 ? D : 1));
    }
    for (int64_t i = 0; i < n; i++) z->g[i] *= exp(get(y, DECAY, t, i / Dv));
    z->error *= most_decay(y, t);
}

static void back_token(const head *y, gradients *z, int64_t t)
{
    const int64_t D = y->x->D, Dv = y->x->Dv, n = D * Dv;
    const double *s = y->s + (t + 1) * n, *before = y->before + t * n, c = rounding(y->x),
                 scale = 1 / sqrt((double)D), b = get(y, STRENGTH, t, 0),
                 q = scale * row_norm(y, Q, t, D), o = row_norm(y, O, t, Dv),
                 k = row_norm(y, K, t, D), g_end = norm(z->g, n), s_end = norm(s, n);
    if (t == y->x->lengths[y->b] - 1 || t % 32 == 31) /* a sum from the later blocks */
        z->slide = y->error[t + 1] * g_end + z->error * s_end + c * g_end * s_end;
    double du[64];
    for (int64_t d = 0; d < D; d++) {
        double sum = 0;
        for (int64_t j = 0; j < Dv; j++) {
            sum += s[d * Dv + j] * get(y, O, t, j);
            z->g[d * Dv + j] += scale * get(y, Q, t, d) * get(y, O, t, j);
        }
        add(y, z, Q, t, d, scale * sum, scale * o * (y->error[t + 1] + c * norm(s, n)));
    }
    z->error += c * (norm(z->g, n) + q * o);
    for (int64_t j = 0; j < Dv; j++) {
        du[j] = 0;
        for (int64_t d = 0; d < D; d++) du[j] += z->g[d * Dv + j] * get(y, K, t, d);
    }
    const double g = norm(z->g, n), du_error = k * (z->error + c * g), size = norm(du, Dv),
                 w = norm(y->w + t * Dv, Dv), write = norm(y->u + t * Dv, Dv),
                 old = norm(before, n), old_error = most_decay(y, t) * y->error[t] + c * old,
                 w_error = k * old_error + c * (w + row_norm(y, V, t, Dv));
    double dot = 0, passed = 0;
    for (int64_t j = 0; j < Dv; j++) {
        dot += du[j] * y->w[t * Dv + j];
        passed += get(y, O, t, j) * get(y, V, t, j);
        add(y, z, V, t, j, b * du[j] + get(y, SKIP, t, 0) * get(y, O, t, j), b * du_error);
    }
    add(y, z, SKIP, t, 0, passed, u * o * row_norm(y, V, t, Dv));
    add(y, z, STRENGTH, t, 0, dot, w * du_error + size * w_error + c * size * w);
    const double k_error =
        z->error * write + g * b * w_error + c * g * write +
        (y->x->delta ? b * (old * du_error + old_error * size + c * old * size) : 0);
    for (int64_t d = 0; d < D; d++) {
        double sum = 0;
        for (int64_t j = 0; j < Dv; j++) {
            sum += z->g[d * Dv + j] * y->u[t * Dv + j];
            if (y->x->delta) sum -= b * before[d * Dv + j] * du[j];
        }
        add(y, z, K, t, d, sum, k_error);
    }
    z->slide +=
        q * o * (y->error[t + 1] + c * s_end) + k * (k_error + c * (g * write + b * old * size));
    for (int64_t i = 0; i < n && y->x->delta; i++) z->g[i] -= b * get(y, K, t, i / Dv) * du[i % Dv];
    z->error += c * b * k * size;
    back_decay(y, z, t);
}

static void reference(const problem *x, double *out[INPUTS], double *bound[INPUTS])
{
    const int64_t n = x->D * x->Dv;
    for (int64_t i = 0; i < x->B * x->H; i++) {
        head y = head_make(x, i / x->H, i % x->H);
        gradients z = {.g = ref_doubles(n)};
        memcpy(z.out, out, sizeof z.out), memcpy(z.bound, bound, sizeof z.bound);
        for (int64_t j = 0; j < n && x->given[STATE]; j++)
            z.g[j] = x->in[STATE][at(x, STATE, y.b, y.h, j / x->Dv, j % x->Dv)];
        for (int64_t t = x->lengths[y.b] - 1; t >= 0; t--) back_token(&y, &z, t);
        for (int64_t j = 0; j < n; j++) add(&y, &z, INITIAL, j / x->Dv, j % x->Dv, z.g[j], z.error);
        free(z.g);
        head_free(&y);
    }
}

static void allocate(const problem *x, double *out[INPUTS])
{
    for (int i = 0; i < INPUTS; i++) out[i] = ref_doubles(x->count[i]);
}

static void release(double *out[INPUTS])
{
    for (int i = 0; i < INPUTS; i++) free(out[i]);
}

static void gradients_are_differences(void)
{
    int64_t compared = 0;
    for (int n = 0; n < rng_cases(60, 1000); n++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)n);
        problem x;
        double *exact[INPUTS], *bound[INPUTS];
        make(&x, &r, true);
        allocate(&x, exact), allocate(&x, bound);
        reference(&x, exact, bound);
        for (int i = 0; i < INPUTS; i++)
            for (int64_t j = 0; j < x.count[i] && x.given[i]; j++) {
                double *number = &x.in[i][j], old = *number, f[4];
                for (int k = 0; k < 4; k++) {
                    *number = old + (k % 2 ? -1e-3 : 1e-3) * (k / 2 + 1);
                    f[k] = loss(&x);
                }
                *number = old;
                const double expected = (8 * (f[0] - f[1]) - (f[2] - f[3])) / 12e-3;
                if (!(fabs(exact[i][j] - expected) <= 1e-7 * (1 + fabs(expected) + fabs(f[0]))))
                    fail_msg("%s[%lld] is %.12g, by differences %.12g", names[i], (long long)j,
                             exact[i][j], expected);
                compared++;
            }
        release(exact), release(bound);
        unmake(&x);
    }
    if (rng_whole_sample()) assert_true(compared > 500);
}

/* ---- the library ----------------------------------------------------------------------------- */

typedef struct call {
    mha_recurrent_desc desc;
    mha_tensor in[ALL], out[INPUTS];
    mha_recurrent_gradients gradients;
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
    memset(c, 0, sizeof *c);
    for (int i = 0; i < ALL; i++) {
        const int ndim =
            i == STRENGTH || i == SKIP || (i == DECAY && x->shape[i][3] == 1 && x->D > 1) ? 3 : 4;
        c->in[i] = floats(x->in[i], x->count[i], ndim, x->shape[i]);
        if (i < INPUTS) c->out[i] = floats(NULL, x->count[i], ndim, x->shape[i]);
    }
    c->desc = (mha_recurrent_desc){.struct_size = sizeof c->desc,
                                   .flags = x->delta ? MHA_RECURRENT_DELTA : 0,
                                   .lengths = x->lengths};
    if (x->given[DECAY]) c->desc.log_decay = &c->in[DECAY];
    if (x->given[STRENGTH]) c->desc.strength = &c->in[STRENGTH];
    if (x->given[SKIP]) c->desc.skip = &c->in[SKIP];
    c->gradients = (mha_recurrent_gradients){
        .struct_size = sizeof c->gradients, .q = &c->out[Q], .k = &c->out[K], .v = &c->out[V]};
    if (x->given[DECAY]) c->gradients.log_decay = &c->out[DECAY];
    if (x->given[STRENGTH]) c->gradients.strength = &c->out[STRENGTH];
    if (x->given[SKIP]) c->gradients.skip = &c->out[SKIP];
    if (x->given[INITIAL]) c->gradients.initial = &c->out[INITIAL];
    if (x->given[STATE]) c->gradients.state = &c->in[STATE];
}

static void dispose(call *c)
{
    for (int i = 0; i < ALL; i++) free(c->in[i].data);
    for (int i = 0; i < INPUTS; i++) free(c->out[i].data);
}

static mha_status backward(mha_context *context, const problem *x, const call *c)
{
    return mha_recurrent_backward(context, &c->desc, &c->in[Q], &c->in[K], &c->in[V],
                                  x->given[INITIAL] ? &c->in[INITIAL] : NULL, &c->in[O],
                                  &c->gradients);
}

static void compare(const problem *x, const call *c, bool accumulated, double *exact[INPUTS],
                    double *bound[INPUTS], tally *cards)
{
    for (int i = 0; i < INPUTS; i++)
        for (int64_t j = 0; j < x->count[i] && x->given[i]; j++) {
            const double wanted = exact[i][j] + (accumulated ? 0.5 : 0),
                         got = (double)((const float *)c->out[i].data)[j];
            if (!tally_compare(&cards[i], got, wanted,
                               bound[i][j] + 1.001 * u * fabs(wanted) + 1e-30))
                fail_msg("d%s[%lld] is %.9g, exact %.9g, bound %.3g; seed %llu", names[i],
                         (long long)j, got, wanted, bound[i][j],
                         (unsigned long long)rng_run_seed());
        }
}

static void random_problems(void)
{
    tally cards[INPUTS] = {{0}};
    for (int n = 0, end = rng_cases(60, 1000); n < end; n++) {
        rng r = rng_make(rng_run_seed(), 1000000 + (uint64_t)n);
        problem x;
        double *exact[INPUTS], *bound[INPUTS];
        call first, second;
        make(&x, &r, false);
        allocate(&x, exact), allocate(&x, bound);
        reference(&x, exact, bound);
        prepare(&first, &x), prepare(&second, &x);
        expect_ok(backward(machines_context(1, n), &x, &first));
        compare(&x, &first, false, exact, bound, cards);
        /* Every number of threads gives the same bits. */
        expect_ok(backward(machines_context(3, n), &x, &second));
        for (int i = 0; i < INPUTS; i++)
            assert_memory_equal(first.out[i].data, second.out[i].data,
                                (size_t)x.count[i] * sizeof(float));
        for (int i = 0; i < INPUTS; i++)
            for (int64_t j = 0; j < x.count[i]; j++) ((float *)second.out[i].data)[j] = 0.5f;
        second.gradients.flags = MHA_GRADIENTS_ACCUMULATE;
        expect_ok(backward(machines_context(1, n), &x, &second));
        compare(&x, &second, true, exact, bound, cards);
        /* A single gradient has the same bits. */
        mha_recurrent_gradients only = MHA_INIT(mha_recurrent_gradients);
        only.k = &second.out[K], only.state = first.gradients.state;
        second.gradients = only;
        expect_ok(backward(machines_context(1, n), &x, &second));
        assert_memory_equal(first.out[K].data, second.out[K].data,
                            (size_t)x.count[K] * sizeof(float));
        dispose(&first), dispose(&second);
        release(exact), release(bound);
        unmake(&x);
    }
    for (int i = 0; i < INPUTS; i++) {
        cards[i].name = names[i];
        assert_int_equal(cards[i].exceeded, 0);
        tally_print(&cards[i]);
    }
}

/* With positive inputs and without the delta rule, no term of a gradient is negative, so that its error is relative to
 * itself: a chain of c for each block, and two more. Decays of e^-12 must not change that, although the terms that do
 * not contain them are 160,000 times as large. */
static void gradients_of_strong_decays_are_exact(void)
{
    enum { BLOCKS = 3 };
    for (int n = 0; n < rng_cases(4, 60); n++) {
        rng r = rng_make(rng_run_seed(), 2000000 + (uint64_t)n);
        problem x;
        double *exact[INPUTS], *bound[INPUTS];
        call c;
        do make(&x, &r, false);
        while ((!x.given[DECAY] || x.D == 1 || (x.shape[DECAY][3] > 1) != (n % 2 > 0) || x.T < 40 ||
                x.T > 32 * BLOCKS) &&
               (unmake(&x), true));
        x.delta = false;
        for (int i = 0; i < ALL; i++)
            for (int64_t j = 0; j < x.count[i]; j++)
                x.in[i][j] = i == DECAY ? (double)(float)(-12 * rng_uniform(&r)) : fabs(x.in[i][j]);
        allocate(&x, exact), allocate(&x, bound);
        reference(&x, exact, bound);
        prepare(&c, &x);
        expect_ok(backward(machines_context(2, n), &x, &c));
        for (int64_t j = 0; j < x.count[DECAY]; j++) {
            const double got = (double)((const float *)c.out[DECAY].data)[j],
                         wanted = exact[DECAY][j];
            if (!(fabs(got - wanted) <= (BLOCKS + 2) * rounding(&x) * wanted + 1e-30))
                fail_msg("dlog_decay[%lld] is %.9g, exact %.9g", (long long)j, got, wanted);
        }
        dispose(&c);
        release(exact), release(bound);
        unmake(&x);
    }
}

static void misuse_is_refused(void)
{
    rng r = rng_make(1, 2);
    problem x;
    call c;
    mha_context *context = context_with(1);
    do make(&x, &r, true), prepare(&c, &x);
    while ((x.T == 0 || x.H == 1 || !x.given[DECAY] || !x.given[INITIAL] || !x.given[STATE]) &&
           (dispose(&c), unmake(&x), true));
    expect_ok(backward(context, &x, &c));
    expect_error(mha_recurrent_backward(context, &c.desc, &c.in[Q], &c.in[K], &c.in[V], NULL,
                                        &c.in[O], NULL),
                 MHA_ERR_NULL, "gradients is NULL");
    expect_error(mha_recurrent_backward(context, &c.desc, &c.in[Q], &c.in[K], &c.in[V], NULL,
                                        &c.in[O], &c.gradients),
                 MHA_ERR_ARGUMENT, "gradients.initial: the call has no such input");
    expect_spoiled(c, backward(context, &x, &c), MHA_ERR_ARGUMENT, "gradients.log_decay",
                   c.desc.log_decay = NULL);
    expect_spoiled(c, backward(context, &x, &c), MHA_ERR_UNSUPPORTED, "flags 0x40",
                   c.gradients.flags = 64);
    expect_spoiled(c, backward(context, &x, &c), MHA_ERR_SHAPE, "gradients.q", c.out[Q].shape[3]++);
    expect_spoiled(c, backward(context, &x, &c), MHA_ERR_SHAPE, "initial",
                   c.in[INITIAL].shape[1]++);
    expect_spoiled(c, backward(context, &x, &c), MHA_ERR_SHAPE, "gradients.state",
                   c.in[STATE].shape[1]++);
    expect_spoiled(c, backward(context, &x, &c), MHA_ERR_DTYPE, "gradients.v",
                   c.out[V].dtype = MHA_F16);
    expect_spoiled(c, backward(context, &x, &c), MHA_ERR_OVERLAP, "o_gradient",
                   c.out[V].data = c.in[O].data);
    expect_spoiled(c, backward(context, &x, &c), MHA_ERR_OVERLAP, "gradients.q",
                   c.out[K].data = c.out[Q].data);
    dispose(&c);
    unmake(&x);
}

/* States of 2^64 bytes are rejected. */
static void sizes_that_overflow_are_refused(void)
{
    enum { WIDE = 1 << 20 };
    float *row = calloc(WIDE, sizeof *row);
    assert_non_null(row);
    mha_tensor x =
        mha_tensor_contiguous(row, MHA_F32, 4, (int64_t[]){1, 1, INT64_C(1) << 49, WIDE});
    const mha_recurrent_gradients none = MHA_INIT(mha_recurrent_gradients);
    for (int i = 0; i < 3; i++) x.stride[i] = 0;
    expect_error(mha_recurrent_backward(context_with(1), NULL, &x, &x, &x, NULL, &x, &none),
                 MHA_ERR_SIZE, "do not fit");
    free(row);
}

/* A shared gradient of no sequences is 0. */
static void no_sequences_give_zeros(void)
{
    float decays[6] = {0}, out[6] = {1, 1, 1, 1, 1, 1};
    const mha_tensor none = mha_tensor_contiguous(NULL, MHA_F32, 4, (int64_t[]){0, 2, 3, 4}),
                     decay = mha_tensor_contiguous(decays, MHA_F32, 3, (int64_t[]){1, 2, 3}),
                     to = mha_tensor_contiguous(out, MHA_F32, 3, (int64_t[]){1, 2, 3});
    mha_recurrent_desc desc = MHA_INIT(mha_recurrent_desc);
    mha_recurrent_gradients wanted = MHA_INIT(mha_recurrent_gradients);
    desc.log_decay = &decay;
    wanted.log_decay = &to;
    expect_ok(
        mha_recurrent_backward(context_with(2), &desc, &none, &none, &none, NULL, &none, &wanted));
    for (int i = 0; i < 6; i++) assert_true(out[i] == 0);
}

RUN_TESTS(TEST(gradients_are_differences), TEST(random_problems),
          TEST(gradients_of_strong_decays_are_exact), TEST(misuse_is_refused),
          TEST(no_sequences_give_zeros), TEST(sizes_that_overflow_are_refused))
