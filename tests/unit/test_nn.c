/* Linear layers, activations and layer norm, compared with the double-precision reference within
 * derived bounds for each element; their bits, errors and memory. */
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

static guarded matrix(rng *r, int64_t rows, int64_t cols, unsigned layout, double factor)
{
    return guarded_filled(r, 2, (int64_t[]){rows, cols}, layout, factor);
}

static guarded vector(rng *r, int64_t n, double factor)
{
    return guarded_filled(r, 1, &n, LAYOUT_CONTIGUOUS, factor);
}

static float at(const guarded *x, int64_t m, int64_t n)
{
    return *(float *)guarded_element(&x->view, (int64_t[]){m, n});
}

/* ---- linear layers -------------------------------------------------------------------------- */

typedef struct linear_case {
    guarded x, weight, bias, y;
    bool has_bias;
    int64_t M, K, N;
} linear_case;

static linear_case linear_case_make(rng *r, int64_t M, int64_t K, int64_t N)
{
    static const unsigned layouts[] = {LAYOUT_CONTIGUOUS, LAYOUT_PAD, LAYOUT_PAD | LAYOUT_NEGATIVE};
    static const double factors[] = {1, 1, 1, 1e-3, 1e4, 1e-38};
    linear_case c = {.M = M, .K = K, .N = N, .has_bias = rng_chance(r, 0.7)};
    unsigned weight_layout = RNG_PICK(r, layouts);
    if (rng_chance(r, 0.3)) weight_layout |= LAYOUT_PAD | LAYOUT_LAST | LAYOUT_NEGATIVE;
    c.x = matrix(r, M, K, RNG_PICK(r, layouts), RNG_PICK(r, factors));
    c.weight = matrix(r, N, K, weight_layout, RNG_PICK(r, factors));
    c.bias = vector(r, N, RNG_PICK(r, factors));
    c.y = guarded_make(r, MHA_F32, 2, (int64_t[]){M, N}, RNG_PICK(r, layouts));
    return c;
}

static void linear_case_free(linear_case *c)
{
    guarded *all[] = {&c->x, &c->weight, &c->bias, &c->y};
    for (int i = 0; i < 4; i++) guarded_free(all[i]);
}

static void linear_run(mha_context *context, linear_case *c, mha_activation activation)
{
    mha_linear *linear = NULL;
    if (mha_linear_create(context, &c->weight.view, c->has_bias ? &c->bias.view : NULL, &linear) !=
            MHA_OK ||
        mha_linear_forward(context, linear, activation, &c->x.view, &c->y.view) != MHA_OK)
        fail_msg("M%lld K%lld N%lld: %s", (long long)c->M, (long long)c->K, (long long)c->N,
                 mha_error_detail());
    assert_true(guarded_gaps_intact(&c->y));
    mha_linear_destroy(linear);
}

static double activated(mha_activation activation, double x, double *bound)
{
    switch (activation) {
    case MHA_ACTIVATION_GELU: *bound = bound_gelu(x, *bound); return ref_gelu(x);
    case MHA_ACTIVATION_RELU: return x > 0 ? x : 0;
    case MHA_ACTIVATION_RELU2:
        *bound = *bound * (2 * fabs(x) + *bound) + 0x1p-24 * x * x + 0x1p-149;
        return x > 0 ? x * x : 0;
    case MHA_ACTIVATION_QUICK_GELU: { /* its slope is within -0.1 .. 1.1 */
        const double y = x / (1 + exp(-1.702 * x));
        *bound = 1.1 * *bound + 0x1p-24 * (fabs(y) + 1.1 * *bound) + 0x1p-149;
        return y;
    }
    case MHA_ACTIVATION_SILU: /* the slope is at most 1.1; as in test_nn_backward.c */
        *bound = 1.1 * *bound + (1.4 * fabs(x) + 9) * 0x1p-24 * fabs(x / (1 + exp(-x))) +
                 0x1p-125 * fabs(x) + 0x1p-149;
        return x / (1 + exp(-x));
    default: return x;
    }
}

static const mha_activation fusible[] = {MHA_ACTIVATION_NONE, MHA_ACTIVATION_GELU,
                                         MHA_ACTIVATION_RELU, MHA_ACTIVATION_RELU2,
                                         MHA_ACTIVATION_SILU, MHA_ACTIVATION_QUICK_GELU};

enum { FUSIBLE = sizeof fusible / sizeof fusible[0] };

/* Every element, or an even sample of a large output. */
static void linear_compare(const linear_case *c, const machine *m, mha_activation activation,
                           tally *t)
{
    const mha_tensor *bias = c->has_bias ? &c->bias.view : NULL;
    bool fused = m->isa != MHA_ISA_PORTABLE;
    int64_t step = 1 + c->M * c->N * c->K / 400000;
    for (int64_t e = 0; e < c->M * c->N; e += step) {
        int64_t i = e / c->N, n = e % c->N;
        double exact = ref_linear(&c->x.view, &c->weight.view, bias, i, n);
        double bound = bound_linear(&c->x.view, NULL, &c->weight.view, bias, fused, i, n);
        exact = activated(activation, exact, &bound);
        if (!tally_compare(t, (double)at(&c->y, i, n), exact, bound))
            fail_msg("%s: M%lld K%lld N%lld activation %d: y[%lld,%lld] is %.9g, exact %.9g, "
                     "bound %.3g",
                     m->name, (long long)c->M, (long long)c->K, (long long)c->N, (int)activation,
                     (long long)i, (long long)n, (double)at(&c->y, i, n), exact, bound);
    }
}

static const int64_t sizes[] = {0,  1,  2,  5,  6,  7,   13,  14,  15,  16,  17,
                                31, 32, 33, 64, 65, 100, 127, 128, 129, 257, 700};

static void linear_layers(void)
{
    machines all = machines_make(2);
    /* Long sums have a separate tally, because short ones reach their bounds easily. */
    tally tallies[MOST_MACHINES] = {{0}}, long_sums = {.name = "sums of 64 inputs and more"};
    int cases = rng_cases(150, 3000);
    for (int i = 0; i < cases; i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)i);
        int64_t M = RNG_PICK(&r, sizes), K = RNG_PICK(&r, sizes), N = RNG_PICK(&r, sizes);
        if (i == 0) M = 300, K = 400, N = 70; /* several blocks of rows, of inputs and of panels */
        while (M * K * N > 20000000) *(rng_chance(&r, 0.5) ? &M : &N) /= 2;
        linear_case c = linear_case_make(&r, M, K, N);
        mha_activation activation = fusible[rng_between(&r, 0, FUSIBLE - 1)];
        guarded avx2 = guarded_make(&r, MHA_F32, 2, (int64_t[]){M, N}, LAYOUT_CONTIGUOUS);
        for (int m = 0; m < all.count; m++) {
            if (all.each[m].path == MHA_PATH_PLAIN) continue; /* has no portable path */
            tallies[m].name = all.each[m].name;
            guarded_clear(&c.y);
            linear_run(all.each[m].context, &c, activation);
            linear_compare(&c, &all.each[m], activation, K < 64 ? &tallies[m] : &long_sums);
            for (int64_t k = 0; k < M * N; k++) {
                float *kept = guarded_element(&avx2.view, (int64_t[]){k / N, k % N});
                float now = at(&c.y, k / N, k % N);
                if (all.each[m].isa == MHA_ISA_AVX2) *kept = now;
                if (all.each[m].isa == MHA_ISA_AVX512 && mha_isa_available(MHA_ISA_AVX2))
                    assert_memory_equal(kept, &now, sizeof now);
            }
        }
        guarded_free(&avx2);
        linear_case_free(&c);
    }
    for (int m = 0; m < all.count; m++)
        if (tallies[m].name) {
            tally_judge(&tallies[m]);
        }
    tally_judge(&long_sums);
}

/* A row's bits do not depend on the other rows, the number of threads or the layout. */
static void linear_bits(void)
{
    machines one = machines_make(1), many = machines_make(3);
    for (int i = 0; i < rng_cases(40, 500); i++) {
        rng r = rng_make(rng_run_seed(), 10000 + (uint64_t)i);
        int64_t M = rng_between(&r, 1, 120), K = RNG_PICK(&r, sizes), N = RNG_PICK(&r, sizes);
        linear_case c = linear_case_make(&r, M, K, N);
        int64_t from = rng_between(&r, 0, M - 1), rows = rng_between(&r, 1, M - from);
        mha_activation activation = fusible[rng_between(&r, 0, FUSIBLE - 1)];
        for (int m = 0; m < one.count; m++) {
            linear_case part = c;
            linear_run(one.each[m].context, &c, activation);
            part.M = rows;
            part.x.view = guarded_slice(&c.x.view, 0, from, rows);
            part.y = guarded_make(&r, MHA_F32, 2, (int64_t[]){rows, N}, LAYOUT_PAD);
            linear_run(many.each[m].context, &part, activation);
            mha_tensor whole = guarded_slice(&c.y.view, 0, from, rows);
            assert_true(guarded_same_bits(&part.y.view, &whole, false));
            guarded_free(&part.y);
        }
        linear_case_free(&c);
    }
}

/* rows x cols random numbers at a stride; gaps between rows are 7. */
static mha_tensor numbers(rng *r, float **data, int64_t rows, int64_t cols, int64_t stride)
{
    *data = malloc((size_t)(rows * stride) * sizeof **data);
    assert_non_null(*data);
    for (int64_t i = 0; i < rows * stride; i++)
        (*data)[i] = i % stride < cols ? (float)rng_normal(r) : 7;
    mha_tensor view = mha_tensor_contiguous(*data, MHA_F32, 2, (int64_t[]){rows, cols});
    view.stride[0] = stride;
    return view;
}

/* Outputs whose rows are a page apart are summed in separate memory. The bits equal those of other
 * strides, and gaps between rows are not written. */
static void linear_pages_apart(void)
{
    enum { M = 130, K = 300, N = 1000, STRIDES = 2 };
    static const int64_t strides[STRIDES] = {1024, 1040};
    machines all = machines_make(2);
    for (int m = 0; m < all.count; m++) {
        float *data[STRIDES][6];
        for (int s = 0; s < STRIDES; s++) {
            rng r = rng_make(rng_run_seed(), 20000);
            mha_context *context = all.each[m].context;
            mha_tensor x = numbers(&r, &data[s][0], M, K, K), w = numbers(&r, &data[s][1], N, K, K);
            mha_tensor y = numbers(&r, &data[s][2], M, N, strides[s]);
            mha_linear *linear;
            expect_ok(mha_linear_create(context, &w, NULL, &linear));
            assert_int_equal(mha_linear_forward(context, linear, MHA_ACTIVATION_NONE, &x, &y), 0);
            mha_linear_destroy(linear);
            /* [M,K] times [K,N], and [K,M] transposed times [M,N], accumulated. */
            mha_tensor wide = numbers(&r, &data[s][3], K, N, N);
            mha_tensor dx = numbers(&r, &data[s][4], M, N, strides[s]);
            mha_tensor dw = numbers(&r, &data[s][5], K, N, strides[s]);
            expect_ok(mha_linear_backward(
                context, &(mha_linear_gradients){.struct_size = sizeof(mha_linear_gradients),
                                                 .flags = MHA_GRADIENT_ADD,
                                                 .weight = &wide,
                                                 .x = &y,
                                                 .dy = &x,
                                                 .dx = &dx,
                                                 .dweight = &dw}));
        }
        for (int i = 2; i < 6; i++)
            for (int64_t row = 0; i != 3 && row < (i == 5 ? K : M); row++) {
                const float *apart = data[0][i] + row * 1024, *other = data[1][i] + row * 1040;
                assert_memory_equal(apart, other, N * sizeof(float));
                for (int64_t c = N; c < 1024; c++) assert_true(apart[c] == 7);
            }
        for (int i = 0; i < STRIDES * 6; i++) free(data[i / 6][i % 6]);
    }
}

/* GELU over the whole range, after a layer that is the identity. */
static void gelu_everywhere(void)
{
    machines all = machines_make(1);
    rng r = rng_make(rng_run_seed(), 20000);
    enum { POINTS = 40000 };
    guarded x = guarded_make(&r, MHA_F32, 2, (int64_t[]){POINTS, 1}, LAYOUT_CONTIGUOUS);
    guarded y = guarded_make(&r, MHA_F32, 2, (int64_t[]){POINTS, 1}, LAYOUT_CONTIGUOUS);
    guarded weight = vector(&r, 1, 1);
    weight.view = mha_tensor_contiguous(weight.view.data, MHA_F32, 2, (int64_t[]){1, 1});
    *(float *)weight.view.data = 1;
    float *points = x.view.data, *values = y.view.data;
    for (int64_t i = 0; i < POINTS; i++) {
        double place = (double)i / POINTS;
        points[i] = (float)(i % 2 ? (place - 0.5) * 16 : (place - 0.5) * exp(90 * (place - 0.95)));
    }
    static const float special[] = {0.0f, -0.0f, 0x1p-149f, -0x1p-149f, 1e30f, -1e30f, 3e38f};
    memcpy(points, special, sizeof special);
    for (int m = 0; m < all.count; m++) {
        mha_linear *linear;
        tally t = {.name = all.each[m].name};
        assert_int_equal(mha_linear_create(all.each[m].context, &weight.view, NULL, &linear), 0);
        expect_ok(
            mha_linear_forward(all.each[m].context, linear, MHA_ACTIVATION_GELU, &x.view, &y.view));
        for (int64_t i = 0; i < POINTS; i++)
            if (!tally_compare(&t, (double)values[i], ref_gelu((double)points[i]),
                               bound_gelu((double)points[i], 0)))
                fail_msg("%s: gelu(%.9g) is %.9g, exact %.9g", t.name, (double)points[i],
                         (double)values[i], ref_gelu((double)points[i]));
        tally_print(&t);
        mha_linear_destroy(linear);
    }
    guarded_free(&x);
    guarded_free(&y);
    guarded_free(&weight);
}

static void linear_errors(void)
{
    rng r = rng_make(rng_run_seed(), 30000);
    mha_context *context = machines_context(1, 0);
    linear_case c = linear_case_make(&r, 4, 6, 5);
    mha_linear *linear = NULL, *none = NULL;
    struct {
        mha_tensor w, b, x, y;
        const mha_tensor *bias;
        mha_activation kind;
    } t = {c.weight.view, c.bias.view, c.x.view, c.y.view, &t.b, MHA_ACTIVATION_NONE};
#define CREATE(context, w, linear) mha_linear_create(context, w, t.bias, linear)
#define ROW(...) expect_spoiled(t, CREATE(context, &t.w, &none), __VA_ARGS__)
    expect_error(CREATE(NULL, &t.w, &none), MHA_ERR_NULL, "context");
    expect_error(CREATE(context, NULL, &none), MHA_ERR_NULL, "weight");
    expect_error(CREATE(context, &t.w, NULL), MHA_ERR_NULL, "linear");
    ROW(MHA_ERR_DTYPE, "weight", t.w.dtype = MHA_F16);
    ROW(MHA_ERR_SHAPE, "weight", t.w.ndim = 1);
    ROW(MHA_ERR_NULL, "weight", t.w.data = NULL);
    ROW(MHA_ERR_SHAPE, "bias", t.b.shape[0] = 4);
    ROW(MHA_ERR_DTYPE, "bias", t.b.dtype = MHA_I8);
    ROW(MHA_ERR_SIZE, "weight", t.w.shape[0] = t.w.shape[1] = (int64_t)1 << 40,
        t.w.stride[0] = t.w.stride[1] = 0, t.bias = NULL);
#undef ROW
#undef CREATE
    assert_null(none);
    expect_ok(mha_linear_create(context, &c.weight.view, NULL, &linear));
    guarded_snapshot(&c.y);
#define FORWARD(context, linear, x, y) mha_linear_forward(context, linear, t.kind, x, y)
#define ROW(...) expect_spoiled(t, FORWARD(context, linear, &t.x, &t.y), __VA_ARGS__)
    expect_error(FORWARD(NULL, linear, &t.x, &t.y), MHA_ERR_NULL, "context");
    expect_error(FORWARD(context, NULL, &t.x, &t.y), MHA_ERR_NULL, "linear");
    expect_error(FORWARD(context, linear, NULL, &t.y), MHA_ERR_NULL, "x");
    expect_error(FORWARD(context, linear, &t.x, NULL), MHA_ERR_NULL, "y");
    ROW(MHA_ERR_ARGUMENT, "activation", t.kind = (mha_activation)9);
    ROW(MHA_ERR_SHAPE, "x", t.x.shape[1] = 7);
    ROW(MHA_ERR_SHAPE, "y", t.y.shape[0] = 3);
    ROW(MHA_ERR_DTYPE, "y", t.y.dtype = MHA_F64);
    ROW(MHA_ERR_STRIDE, "x", t.x.stride[1] = 2);
    ROW(MHA_ERR_STRIDE, "y", t.y.stride[0] = 0);
    ROW(MHA_ERR_OVERLAP, "y overlaps x", t.y.data = t.x.data);
#undef ROW
#undef FORWARD
    assert_true(guarded_unchanged(&c.y));
    mha_linear_destroy(linear);
    mha_linear_destroy(NULL);
    linear_case_free(&c);
}

static void linear_memory(void)
{
    rng r = rng_make(rng_run_seed(), 40000);
    linear_case c = linear_case_make(&r, 40, 300, 70);
    for (int64_t n = 0;; n++) {
        failing_alloc memory = failing_alloc_make();
        memory.fail_at = n;
        mha_context *context = NULL;
        mha_linear *linear = NULL;
        guarded_snapshot(&c.y);
        mha_status status = failing_context(&memory, 2, MHA_ISA_AUTO, &context);
        if (status == MHA_OK)
            status = mha_linear_create(context, &c.weight.view, &c.bias.view, &linear);
        if (status == MHA_OK) {
            int64_t calls = memory.calls;
            status = mha_linear_forward(context, linear, MHA_ACTIVATION_GELU, &c.x.view, &c.y.view);
            assert_int_equal(memory.calls, calls);
        }
        if (status != MHA_OK) {
            assert_int_equal(status, MHA_ERR_NOMEM);
            assert_null(linear);
            assert_true(*mha_error_detail() && guarded_unchanged(&c.y));
        }
        mha_linear_destroy(linear);
        mha_context_destroy(context);
        assert_int_equal(memory.live, 0);
        assert_int_equal(memory.mistakes, 0);
        if (status == MHA_OK) {
            printf("  %lld allocations, each one refused\n", (long long)n);
            assert_true(n >= 4);
            break;
        }
    }
    linear_case_free(&c);
}

/* ---- layer norm ----------------------------------------------------------------------------- */

typedef struct norm_case {
    guarded x, residual, weight, bias, y;
    bool has_residual, has_bias;
    float epsilon;
} norm_case;

static norm_case norm_case_make(rng *r, int64_t M, int64_t N)
{
    static const float epsilons[] = {1e-12f, 1e-5f, 0.1f};
    static const double factors[] = {1, 1, 1e-3, 1e6};
    double factor = RNG_PICK(r, factors), shift = rng_chance(r, 0.3) ? 300 * factor : 0;
    norm_case c = {.has_residual = rng_chance(r, 0.5), .epsilon = RNG_PICK(r, epsilons)};
    c.x = matrix(r, M, N, rng_chance(r, 0.5) ? LAYOUT_PAD : LAYOUT_CONTIGUOUS, factor);
    for (int64_t i = 0; i < M * N; i++)
        *(float *)guarded_element(&c.x.view, (int64_t[]){i / N, i % N}) += (float)shift;
    c.residual = matrix(r, M, N, LAYOUT_PAD | LAYOUT_NEGATIVE, factor);
    c.weight = vector(r, N, 1);
    c.bias = vector(r, N, 1);
    c.has_bias = rng_chance(r, 0.7);
    for (int64_t n = 0; n < N && !c.has_bias; n++)
        *(float *)guarded_element(&c.bias.view, (int64_t[]){n}) = 0;
    c.y = guarded_make(r, MHA_F32, 2, (int64_t[]){M, N}, LAYOUT_PAD);
    return c;
}

static void norm_case_free(norm_case *c)
{
    guarded *all[] = {&c->x, &c->residual, &c->weight, &c->bias, &c->y};
    for (int i = 0; i < 5; i++) guarded_free(all[i]);
}

static mha_status norm_run(mha_context *context, const norm_case *c, const mha_tensor *y)
{
    return mha_layer_norm(context, &c->x.view, c->has_residual ? &c->residual.view : NULL,
                          &c->weight.view, c->has_bias ? &c->bias.view : NULL, c->epsilon, y);
}

static void layer_norm(void)
{
    static const int64_t widths[] = {1, 2, 3, 16, 17, 64, 384, 1000};
    machines one = machines_make(1), many = machines_make(3);
    tally t = {.name = "layer norm"};
    double exact[1000], bound[1000];
    for (int i = 0; i < rng_cases(150, 3000); i++) {
        rng r = rng_make(rng_run_seed(), 50000 + (uint64_t)i);
        int64_t M = rng_between(&r, 0, 20), N = RNG_PICK(&r, widths);
        norm_case c = norm_case_make(&r, M, N);
        guarded again = guarded_make(&r, MHA_F32, 2, (int64_t[]){M, N}, LAYOUT_CONTIGUOUS);
        expect_ok(norm_run(one.each[0].context, &c, &c.y.view));
        assert_true(guarded_gaps_intact(&c.y));
        expect_ok(norm_run(many.each[many.count - 1].context, &c, &again.view));
        assert_true(guarded_same_bits(&c.y.view, &again.view, false));
        const mha_tensor *residual = c.has_residual ? &c.residual.view : NULL;
        for (int64_t m = 0; m < M; m++) {
            ref_layer_norm(&c.x.view, residual, &c.weight.view, &c.bias.view, (double)c.epsilon, m,
                           exact);
            bound_layer_norm(&c.x.view, residual, &c.weight.view, &c.bias.view, (double)c.epsilon,
                             m, exact, bound);
            for (int64_t n = 0; n < N; n++)
                if (!tally_compare(&t, (double)at(&c.y, m, n), exact[n], bound[n]))
                    fail_msg("layer norm %lldx%lld%s: y[%lld,%lld] is %.9g, exact %.9g, bound %.3g",
                             (long long)M, (long long)N, residual ? " with residual" : "",
                             (long long)m, (long long)n, (double)at(&c.y, m, n), exact[n],
                             bound[n]);
        }
        /* In place, on x and on the residual. */
        guarded *in_place = c.has_residual && rng_chance(&r, 0.5) ? &c.residual : &c.x;
        expect_ok(norm_run(one.each[0].context, &c, &in_place->view));
        assert_true(guarded_same_bits(&c.y.view, &in_place->view, false));
        guarded_free(&again);
        norm_case_free(&c);
    }
    tally_judge(&t);
}

static void layer_norm_errors(void)
{
    rng r = rng_make(rng_run_seed(), 60000);
    mha_context *context = machines_context(1, 0);
    norm_case c = norm_case_make(&r, 3, 8);
    struct {
        mha_tensor x, z, w, b, y;
        float epsilon;
    } t = {c.x.view, c.residual.view, c.weight.view, c.bias.view, c.y.view, 1e-5f};
    guarded_snapshot(&c.y);
#define NORM(context, x, w, b, y) mha_layer_norm(context, x, &t.z, w, b, t.epsilon, y)
#define ROW(...) expect_spoiled(t, NORM(context, &t.x, &t.w, &t.b, &t.y), __VA_ARGS__)
    expect_error(NORM(NULL, &t.x, &t.w, &t.b, &t.y), MHA_ERR_NULL, "context");
    expect_error(NORM(context, NULL, &t.w, &t.b, &t.y), MHA_ERR_NULL, "x");
    expect_error(NORM(context, &t.x, NULL, &t.b, &t.y), MHA_ERR_NULL, "weight");
    expect_error(NORM(context, &t.x, &t.w, &t.b, NULL), MHA_ERR_NULL, "y");
    ROW(MHA_ERR_ARGUMENT, "epsilon", t.epsilon = -1e-5f);
    ROW(MHA_ERR_ARGUMENT, "epsilon", t.epsilon = NAN);
    ROW(MHA_ERR_ARGUMENT, "epsilon", t.epsilon = INFINITY);
    ROW(MHA_ERR_SHAPE, "weight", t.w.shape[0] = 7);
    ROW(MHA_ERR_SHAPE, "bias", t.b.shape[0] = 9);
    ROW(MHA_ERR_SHAPE, "residual", t.z.shape[0] = 2);
    ROW(MHA_ERR_SHAPE, "y", t.y.shape[1] = 9);
    ROW(MHA_ERR_DTYPE, "x", t.x.dtype = MHA_BF16);
    ROW(MHA_ERR_STRIDE, "x", t.x.stride[1] = 2);
    ROW(MHA_ERR_STRIDE, "y", t.y.stride[0] = 3);
    ROW(MHA_ERR_OVERLAP, "y overlaps x", t.y.data = (float *)t.x.data + 1);
    ROW(MHA_ERR_OVERLAP, "y overlaps weight", t.y.data = t.w.data);
#undef ROW
#undef NORM
    assert_true(guarded_unchanged(&c.y));
    norm_case_free(&c);
}

RUN_TESTS(TEST(linear_layers), TEST(linear_bits), TEST(gelu_everywhere), TEST(linear_errors),
          TEST(linear_memory), TEST(layer_norm), TEST(layer_norm_errors), TEST(linear_pages_apart))
