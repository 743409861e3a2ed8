/* Cases from lessons and papers: shapes, sums and parameter counts, with results compared to the formulas. examples/
 * has the same cases as programs (docs/textbook.md). */
#include "support/expect.h"
#include "support/guarded.h"
#include "support/machines.h"
#include "support/module_call.h"
#include "support/shared_context.h"
#include "support/suite.h"

#include <multihead/module.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

static float *normal(rng *r, int64_t count)
{
    float *x = test_malloc((size_t)count * sizeof *x);
    for (int64_t i = 0; i < count; i++) x[i] = rng_normal(r);
    return x;
}

static mha_tensor tensor(float *x, int ndim, const int64_t *shape)
{
    return mha_tensor_contiguous(x, MHA_F32, ndim, shape);
}

/* Checks that rows of `length` are weights: nonnegative numbers with the sum 1. A row of n such
 * weights sums to 1 within (n + 40) u for one key block (docs/numerics.md 3.7: theta + 2 u), and
 * each rounds once. */
static void check_weights(const float *p, int64_t rows, int64_t length)
{
    for (int64_t i = 0; i < rows; i++) {
        double sum = 0;
        for (int64_t s = 0; s < length; s++) {
            assert_true(p[i * length + s] >= 0);
            sum += (double)p[i * length + s];
        }
        assert_true(fabs(sum - 1) <= (double)(length + 40) * 0x1p-24);
    }
}

/* (2, 8, 10, 64): weights (2, 8, 10, 10) whose rows sum to 1. */
static void weights_of_a_batch(void)
{
    enum { B = 2, H = 8, T = 10, D = 64 };
    machines all = machines_make(1);
    rng r = rng_make(rng_run_seed(), 1);
    const int64_t shape[] = {B, H, T, D}, p_shape[] = {B, H, T, T};
    float *x[4], *p = test_malloc(sizeof(float) * B * H * T * T);
    mha_tensor t[4], weights = tensor(p, 4, p_shape);
    for (int i = 0; i < 4; i++) {
        x[i] = normal(&r, (int64_t)B * H * T * D);
        t[i] = tensor(x[i], 4, shape);
    }
    const mha_attention_outputs outputs = {.struct_size = sizeof outputs,
                                           .probabilities = &weights};
    for (int m = 0; m < all.count; m++) {
        const mha_attention_desc desc = {.struct_size = sizeof desc, .path = all.each[m].path};
        expect_ok(mha_attention_forward(all.each[m].context, &desc, &t[0], &t[1], &t[2], &t[3],
                                        &outputs));
        check_weights(p, (int64_t)B * H * T, T);
    }
    for (int i = 0; i < 4; i++) test_free(x[i]);
    test_free(p);
}

/* x (3, 5, 16) with 2 heads gives weights (3, 2, 5, 5), and no other shape is accepted. */
static void weights_of_a_module(void)
{
    enum { B = 3, T = 5, E = 16, H = 2 };
    machines all = machines_make(1);
    rng r = rng_make(rng_run_seed(), 2);
    float *x = normal(&r, B * T * E), *w = normal(&r, 3 * E * E), y[B * T * E], p[B * H * T * T];
    mha_tensor X = tensor(x, 3, (int64_t[]){B, T, E}), Y = tensor(y, 3, (int64_t[]){B, T, E});
    mha_tensor W = tensor(w, 2, (int64_t[]){3 * E, E});
    for (int m = 0; m < all.count; m++) {
        const mha_module_desc desc = {.struct_size = sizeof desc, .embed_dim = E, .num_heads = H};
        const mha_attention_desc path = {.struct_size = sizeof path, .path = all.each[m].path};
        mha_tensor P = tensor(p, 4, (int64_t[]){B, H, T, T});
        const mha_module_outputs outputs = {.struct_size = sizeof outputs, .probabilities = &P};
        mha_context *context = all.each[m].context;
        mha_module *module;
        expect_ok(mha_module_create(context, &desc, &module));
        expect_ok(mha_module_set_parameter(module, "in_proj_weight", &W));
        expect_ok(mha_module_run(context, module, MODULE_CALL(&path, &X, &X, &X, &Y, &outputs)));
        check_weights(p, B * H * T, T);
        for (int axis = 0; axis < 4; axis++) {
            P = tensor(p, 4, (int64_t[]){B, H, T, T});
            P.shape[axis]--;
            assert_int_equal(
                mha_module_run(context, module, MODULE_CALL(&path, &X, &X, &X, &Y, &outputs)),
                MHA_ERR_SHAPE);
        }
        mha_module_destroy(module);
    }
    test_free(x);
    test_free(w);
}

/* ---- parameters ------------------------------------------------------------------------------ */

static mha_module *module_of(mha_context *context, int64_t E, int64_t H, int64_t Hk)
{
    const mha_module_desc desc = {.struct_size = sizeof desc,
                                  .flags = MHA_MODULE_NO_QKV_BIAS | MHA_MODULE_NO_OUT_BIAS,
                                  .embed_dim = E,
                                  .num_heads = H,
                                  .kv_heads = Hk};
    mha_module *module;
    if (mha_module_create(context, &desc, &module) != MHA_OK) fail_msg("%s", mha_error_detail());
    return module;
}

static int64_t elements_of(const mha_module *module, const char *name)
{
    mha_module_parameter p;
    for (int64_t i = 0; mha_module_parameter_at(module, i, &p); i++) {
        int64_t count = 1;
        for (int d = 0; d < p.ndim; d++) count *= p.shape[d];
        if (strcmp(p.name, name) == 0) return count;
    }
    return -1;
}

/* The last case takes 2.4 GB and is only in long runs; tests/cli/count.py always includes it. */
static void parameters(void)
{
    static const int64_t cases[][4] = {/* E, H, Hk, parameters */
                                       {512, 8, 8, 1048576},
                                       {768, 12, 12, 2359296},
                                       {4096, 32, 8, 41943040},
                                       {12288, 96, 96, 603979776}};
    mha_context *context = context_with(0);
    for (int i = 0; i < (rng_long_run() ? 4 : 3); i++) {
        mha_module *module = module_of(context, cases[i][0], cases[i][1], cases[i][2]);
        assert_int_equal(mha_module_parameter_count(module), cases[i][3]);
        assert_int_equal(elements_of(module, "out_proj.weight"), cases[i][0] * cases[i][0]);
        if (cases[i][0] == 512) assert_int_equal(elements_of(module, "out_proj.weight"), 262144);
        mha_module_destroy(module);
    }
}

/* ---- grouped heads at full width ------------------------------------------------------------- */

enum { GB = 2, GT = 10, GE = 4096, GH = 32, GHK = 8, GD = GE / GH };

/* Weights with little memory: both strides of the tensor are 1, so that element [n, k] is base[n +
 * k] of a vector. Each element is -1, 0 or 1 times 2^-6, and inputs are -1, 0 or 1. So every
 * partial sum of a projection is a multiple of 2^-6 below 2^7, and exact in any order. */
typedef struct hankel {
    float *base;
    int64_t rows;
} hankel;

static hankel hankel_make(rng *r, int64_t rows)
{
    hankel x = {test_malloc((size_t)(rows + GE) * sizeof *x.base), rows};
    for (int64_t i = 0; i < rows + GE; i++) x.base[i] = (float)rng_between(r, -1, 1) / 64;
    return x;
}

static mha_tensor hankel_tensor(const hankel *x)
{
    mha_tensor t = tensor(x->base, 2, (int64_t[]){x->rows, GE});
    t.stride[0] = t.stride[1] = 1;
    return t;
}

/* A row of x times the weight's row n; *size is sum |x w|. */
static double product(const double *x, const hankel *w, int64_t n, double *size)
{
    double sum = 0;
    *size = 0;
    for (int64_t k = 0; k < GE; k++) {
        double term = x[k] * (double)w->base[n + k];
        sum += term;
        *size += fabs(term);
    }
    return sum;
}

/* The output of one head for the last token of a sequence, and its bound by docs/numerics.md 3.8,
 * with delta = max (D + 3) u |scale| sum |q k|: (exp(2 delta) - 1 + 600 u) max |v|. Only attention
 * rounds. */
typedef struct head {
    double q[GD], k[GT][GD], v[GT][GD], o[GD], o_error;
} head;

static void attend(head *x)
{
    const double u = 0x1p-24, scale = 1 / sqrt(GD);
    double score[GT], delta = 0, sum = 0, most = -INFINITY, value = 0;
    for (int s = 0; s < GT; s++) {
        double size = 0;
        score[s] = 0;
        for (int d = 0; d < GD; d++) {
            score[s] += scale * x->q[d] * x->k[s][d];
            size += scale * fabs(x->q[d] * x->k[s][d]);
            value = fmax(value, fabs(x->v[s][d]));
        }
        delta = fmax(delta, (GD + 3) * u * size);
        most = fmax(most, score[s]);
    }
    for (int s = 0; s < GT; s++) sum += score[s] = exp(score[s] - most);
    for (int d = 0; d < GD; d++) x->o[d] = 0;
    for (int s = 0; s < GT; s++)
        for (int d = 0; d < GD; d++) x->o[d] += score[s] / sum * x->v[s][d];
    x->o_error = (expm1(2 * delta) + 600 * u) * value;
}

static void fill_head(head *x, const double *input, const hankel w[3], int64_t h)
{
    double size;
    int64_t hk = h / (GH / GHK);
    for (int64_t d = 0; d < GD; d++) {
        x->q[d] = product(input + (GT - 1) * GE, &w[0], h * GD + d, &size);
        for (int s = 0; s < GT; s++) {
            x->k[s][d] = product(input + s * GE, &w[1], hk * GD + d, &size);
            x->v[s][d] = product(input + s * GE, &w[2], hk * GD + d, &size);
        }
    }
}

/* Compares the output of the last token of sequence 1 with the formula in double. */
static void check_last_token(const float *x, const float *y, const hankel w[4])
{
    double *input = test_malloc(sizeof(double) * GT * GE),
           *joined = test_malloc(sizeof(double) * GE);
    double *error = test_malloc(sizeof(double) * GE), worst = 0;
    head *one = test_malloc(sizeof *one);
    for (int i = 0; i < GT * GE; i++) input[i] = (double)x[GT * GE + i];
    for (int64_t h = 0; h < GH; h++) {
        fill_head(one, input, w, h);
        attend(one);
        for (int d = 0; d < GD; d++) {
            joined[h * GD + d] = one->o[d];
            error[h * GD + d] = one->o_error;
        }
    }
    for (int64_t n = 0; n < GE; n++) {
        double size, exact = product(joined, &w[3], n, &size), bound = 160 * 0x1p-24 * size;
        for (int64_t k = 0; k < GE; k++) bound += fabs((double)w[3].base[n + k]) * error[k] * 1.001;
        double got = (double)y[(2 * GT - 1) * GE + n];
        worst = fmax(worst, fabs(got - exact) / bound);
        if (fabs(got - exact) > bound)
            fail_msg("output %lld: %.9g, exact %.9g, bound %.3g", (long long)n, got, exact, bound);
    }
    printf("  grouped heads: largest error / bound %.1e\n", worst);
    assert_true(worst > 1e-5); /* the bound assumes 4096 errors without cancellation */
    test_free(input);
    test_free(joined);
    test_free(error);
    test_free(one);
}

/* 32 query heads share 8 key/value heads: 41,943,040 parameters for x (2, 10, 4096). */
static void grouped_heads(void)
{
    static const char *const names[] = {"q_proj_weight", "k_proj_weight", "v_proj_weight",
                                        "out_proj.weight"};
    static const int64_t rows[] = {GE, GHK * GD, GHK * GD, GE};
    rng r = rng_make(rng_run_seed(), 3);
    mha_context *context = context_with(0);
    mha_module *module = module_of(context, GE, GH, GHK);
    hankel w[4];
    for (int i = 0; i < 4; i++) {
        w[i] = hankel_make(&r, rows[i]);
        mha_tensor t = hankel_tensor(&w[i]);
        assert_int_equal(elements_of(module, names[i]), rows[i] * GE);
        expect_ok(mha_module_set_parameter(module, names[i], &t));
    }
    float *x = normal(&r, GB * GT * GE), *y = normal(&r, GB * GT * GE);
    for (int i = 0; i < GB * GT * GE; i++) x[i] = (float)rng_between(&r, -1, 1);
    mha_tensor X = tensor(x, 3, (int64_t[]){GB, GT, GE}), Y = tensor(y, 3, X.shape);
    expect_ok(mha_module_run(context, module, MODULE_CALL(NULL, &X, &X, &X, &Y, NULL)));
    check_last_token(x, y, w);
    for (int i = 0; i < 4; i++) test_free(w[i].base);
    test_free(x);
    test_free(y);
    mha_module_destroy(module);
}

/* ---- Shaw's tables --------------------------------------------------------------------------- */

/* Clipped at 128, a table has 257 rows; each query's mean of clipped distances shows all of them.
 */
static void shaw_rows(void)
{
    enum { CLIP = 128, ROWS = 2 * CLIP + 1, T = 300 };
    machines all = machines_make(1);
    float q[T] = {0}, table[ROWS], o[T];
    for (int i = 0; i < ROWS; i++) table[i] = (float)(i - CLIP);
    const int64_t shape[] = {1, 1, T, 1};
    mha_tensor x = tensor(q, 4, shape), y = tensor(o, 4, shape);
    mha_tensor rows = tensor(table, 2, (int64_t[]){ROWS, 1});
    for (int m = 0; m < all.count; m++) {
        const mha_attention_desc desc = {
            .struct_size = sizeof desc, .path = all.each[m].path, .shaw_values = &rows};
        rows.shape[0] = ROWS;
        expect_ok(mha_attention_forward(all.each[m].context, &desc, &x, &x, &x, &y, NULL));
        for (int t = 0; t < T; t++) {
            double sum = 0;
            for (int s = 0; s < T; s++) {
                int distance = s - t;
                sum += distance < -CLIP ? -CLIP : distance > CLIP ? CLIP : distance;
            }
            assert_true(fabs((double)o[t] - sum / T) < 700 * 0x1p-24 * CLIP);
        }
        rows.shape[0] = ROWS - 1;
        assert_int_equal(mha_attention_forward(all.each[m].context, &desc, &x, &x, &x, &y, NULL),
                         MHA_ERR_SHAPE);
    }
}

RUN_TESTS(TEST(weights_of_a_batch), TEST(weights_of_a_module), TEST(parameters),
          TEST(grouped_heads), TEST(shaw_rows))
