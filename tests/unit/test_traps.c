/* docs/traps.md: mistakes in lesson code. Each mistake is implemented here and compared with the
 * library. The page has the numbers of both, with three decimals: NEAR is half a unit of the last
 * decimal. */
#include "support/expect.h"
#include "support/module_call.h"
#include "support/rng.h"
#include "support/shared_context.h"
#include "support/suite.h"

#include <multihead/module.h>

#include <math.h>

#define NEAR 0.0005

enum { T = 3, E = 4, H = 2, D = 2 }; /* sizes of `multihead run --example --module` */

static float tokens[T][E] = {{1, 0, 1, 0}, {0, 2, 0, 1}, {1, 1, 0, 0}};
static float weights[4][E][E] = {{{1, 0, 0, 1}, {0, 1, 1, 0}, {1, 1, 0, 0}, {0, 0, 1, -1}},
                                 {{0, 1, 0, 1}, {1, 0, 0, 0}, {0, 0, 1, 1}, {1, 0, -1, 0}},
                                 {{0, 1, 0, 0}, {1, 0, 1, 0}, {0, 0, 0, 1}, {1, 0, 0, -1}},
                                 {{1, 0, 1, 0}, {0, 1, 0, 1}, {1, 0, -1, 0}, {0, 1, 0, -1}}};

/* One head: `multihead run --example`. */
static float queries[T][E] = {{0, 2, 0, 0}, {1, 1, 0, 0}, {0, 0, 2, 2}};
static float keys[T][E] = {{2, 0, 0, 0}, {0, 2, 0, 0}, {0, 0, 2, 2}};
static float values[T][E] = {{1, 0, 0, 10}, {0, 1, 0, 20}, {0, 0, 1, 30}};

/* ---- correct results by the library ---------------------------------------------------------- */

static mha_tensor view(float *numbers, int64_t t, int64_t d)
{
    return mha_tensor_contiguous(numbers, MHA_F32, 4, (int64_t[]){1, 1, t, d});
}

/* Attention of `count` queries of the example from query `first` on. */
static void attend(const mha_attention_desc *desc, int64_t first, int64_t count, float o[][E],
                   float p[][T])
{
    const mha_tensor q = view(queries[first], count, E), k = view(keys[0], T, E);
    const mha_tensor v = view(values[0], T, E), out = view(o[0], count, E);
    const mha_tensor weight = view(p ? p[0] : NULL, count, T);
    const mha_attention_outputs wanted = {.struct_size = sizeof wanted, .probabilities = &weight};
    expect_ok(mha_attention_forward(context_with(1), desc, &q, &k, &v, &out, p ? &wanted : NULL));
}

/* The example's module on these tokens: out, and the projected q, k, v as [H,T,D]. */
static void run_module(float x[T][E], float out[T][E], float projected[3][H][T][D])
{
    static const char *const names[] = {"q_proj.weight", "k_proj.weight", "v_proj.weight",
                                        "out_proj.weight"};
    mha_context *context = context_with(1);
    const mha_module_desc desc = {.struct_size = sizeof desc,
                                  .flags = MHA_MODULE_NO_QKV_BIAS | MHA_MODULE_NO_OUT_BIAS,
                                  .embed_dim = E,
                                  .num_heads = H};
    mha_module *module;
    expect_ok(mha_module_create(context, &desc, &module));
    for (int i = 0; i < 4; i++) {
        const mha_tensor w = mha_tensor_contiguous(weights[i], MHA_F32, 2, (int64_t[]){E, E});
        expect_ok(mha_module_set_parameter(module, names[i], &w));
    }
    const int64_t shape[] = {1, T, E}, heads[] = {1, H, T, D};
    const mha_tensor in = mha_tensor_contiguous(x, MHA_F32, 3, shape);
    const mha_tensor y = mha_tensor_contiguous(out, MHA_F32, 3, shape);
    mha_tensor parts[3];
    for (int i = 0; i < 3; i++) parts[i] = mha_tensor_contiguous(projected[i], MHA_F32, 4, heads);
    const mha_module_outputs wanted = {
        .struct_size = sizeof wanted, .q = &parts[0], .k = &parts[1], .v = &parts[2]};
    expect_ok(mha_module_run(context, module, MODULE_CALL(NULL, &in, &in, &in, &y, &wanted)));
    mha_module_destroy(module);
}

/* ---- parts of the wrong computations --------------------------------------------------------- */

static void near_row(const float *found, const double *shown, int count)
{
    for (int i = 0; i < count; i++) {
        if (!(fabs((double)found[i] - shown[i]) <= NEAR))
            fail_msg("element %d is %g, the page says %g", i, (double)found[i], shown[i]);
    }
}

static float dot(const float *a, const float *b, int count)
{
    float sum = 0;
    for (int i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

/* In-place softmax of `count` numbers at distance `stride`. */
static void softmax(float *row, int count, int stride)
{
    float top = -INFINITY, sum = 0;
    for (int i = 0; i < count; i++) top = fmaxf(top, row[i * stride]);
    for (int i = 0; i < count; i++) sum += row[i * stride] = expf(row[i * stride] - top);
    for (int i = 0; i < count; i++) row[i * stride] /= sum;
}

static void scores_of_example(float scores[T][T], float scale)
{
    for (int t = 0; t < T; t++)
        for (int s = 0; s < T; s++) scores[t][s] = scale * dot(queries[t], keys[s], E);
}

/* x W^T, [T,E]. */
static void project(float x[T][E], int which, float y[T][E])
{
    for (int t = 0; t < T; t++)
        for (int e = 0; e < E; e++) y[t][e] = dot(x[t], weights[which][e], E);
}

/* One head of size D, with the given rows. */
static void attend_plainly(const float *const q[T], const float *const k[T],
                           const float *const v[T], float o[T][D])
{
    for (int t = 0; t < T; t++) {
        float p[T];
        for (int s = 0; s < T; s++) p[s] = dot(q[t], k[s], D) / sqrtf(D);
        softmax(p, T, 1);
        for (int d = 0; d < D; d++) {
            o[t][d] = 0;
            for (int s = 0; s < T; s++) o[t][d] += p[s] * v[s][d];
        }
    }
}

/* ---- the traps ------------------------------------------------------------------------------- */

/* Heads are slices of the input. q, k and v are equal, so scores are symmetric, and a row's largest
 * score is often its own. */
static void views_of_the_input(void)
{
    float out[T][E], projected[3][H][T][D];
    run_module(tokens, out, projected);
    for (int h = 0; h < H; h++)
        for (int t = 0; t < T; t++)
            for (int s = 0; s < T; s++)
                assert_true(dot(&tokens[t][h * D], &tokens[s][h * D], D) ==
                            dot(&tokens[s][h * D], &tokens[t][h * D], D));
    /* the page: q0.k1 and q1.k0 of head 0 */
    assert_true(dot(&tokens[0][0], &tokens[1][0], D) == 0);
    assert_true(dot(projected[0][0][0], projected[1][0][1], D) == 3);
    assert_true(dot(projected[0][0][1], projected[1][0][0], D) == 2);
}

/* Dropout of the output sets single numbers to 0. Dropout of weights omits whole values, so the two
 * equal columns of v stay equal. */
static void dropout_of_the_output(void)
{
    float zeros[2] = {0}, v[4] = {1, 1, 3, 3}; /* two keys with a weight of 1/2 each */
    unsigned seen = 0, torn = 0;
    rng r = rng_make(7, 0);
    for (uint64_t seed = 0; seed < 64; seed++) {
        float o[2];
        const mha_attention_desc desc = {
            .struct_size = sizeof desc, .dropout = 0.5F, .dropout_seed = seed};
        const mha_tensor q = view(zeros, 1, 1), k = view(zeros, 2, 1), values_of = view(v, 2, 2);
        const mha_tensor out = view(o, 1, 2);
        expect_ok(mha_attention_forward(context_with(1), &desc, &q, &k, &values_of, &out, NULL));
        assert_true(o[0] == o[1]);
        assert_true(o[0] == 0 || o[0] == 1 || o[0] == 3 || o[0] == 4);
        seen |= 1U << (int)o[0];
        float wrong[2];
        for (int d = 0; d < 2; d++) wrong[d] = rng_chance(&r, 0.5) ? 0 : 2 * 2.0F;
        torn += wrong[0] != wrong[1];
    }
    assert_int_equal(seen, 1U << 0 | 1U << 1 | 1U << 3 | 1U << 4);
    assert_true(torn > 0); /* out of 64, each with probability 1/2 */
}

/* A row without visible keys: -1e9 absorbs the scores, so the weights of the hidden keys are 1/3
 * each; -inf gives NaN. */
static void large_negative_numbers(void)
{
    float scores[T][T], o[T][E], p[T][T];
    uint8_t none[T] = {0};
    const mha_tensor keep = mha_tensor_contiguous(none, MHA_U8, 1, (int64_t[]){T});
    const mha_attention_desc desc = {.struct_size = sizeof desc, .keep_mask = &keep};
    scores_of_example(scores, 0.5F);
    for (int s = 0; s < T; s++) scores[2][s] += -1e9F;
    softmax(scores[2], T, 1);
    near_row(scores[2], (const double[]){0.333, 0.333, 0.333}, T);
    for (int s = 0; s < T; s++) scores[1][s] = -INFINITY;
    softmax(scores[1], T, 1);
    assert_true(isnan(scores[1][0]));
    attend(&desc, 0, T, o, p);
    for (int t = 0; t < T; t++) {
        for (int s = 0; s < T; s++) assert_true(p[t][s] == 0);
        for (int e = 0; e < E; e++) assert_true(o[t][e] == 0);
    }
}

/* If the scale is applied after the softmax, weights are too sharp, and rows sum to 1 / sqrt(D). */
static void scale_after_softmax(void)
{
    float wrong[T][T], o[T][E], p[T][T], sum = 0;
    scores_of_example(wrong, 1);
    softmax(wrong[0], T, 1);
    for (int s = 0; s < T; s++) sum += wrong[0][s] *= 0.5F; /* 1 / sqrt(4) */
    near_row(wrong[0], (const double[]){0.009, 0.482, 0.009}, T);
    near_row(&sum, (const double[]){0.5}, 1);
    attend(NULL, 0, T, o, p);
    near_row(p[0], (const double[]){0.107, 0.787, 0.107}, T);
}

/* [T,E] is read as [H,T,D] without a transpose: head 0 gets both halves of token 0 and one half of
 * token 1, and never sees token 2. */
static void reshaped_outputs(float x[T][E], float y[T][E])
{
    float q[T][E], k[T][E], v[T][E], o[H][T][D];
    project(x, 0, q);
    project(x, 1, k);
    project(x, 2, v);
    for (int h = 0; h < H; h++) {
        const float *rows[3][T];
        for (int t = 0; t < T; t++) {
            const int at = (h * T + t) * D; /* index into [H,T,D]; correct is t * E + h * D */
            rows[0][t] = &q[0][0] + at;
            rows[1][t] = &k[0][0] + at;
            rows[2][t] = &v[0][0] + at;
        }
        attend_plainly(rows[0], rows[1], rows[2], o[h]);
    }
    for (int t = 0; t < T; t++) /* the same mistake for the output */
        for (int e = 0; e < E; e++) y[t][e] = dot(&o[0][0][0] + t * E, weights[3][e], E);
}

static void heads_by_reshape(void)
{
    float changed[T][E], wrong[2][T][E], right[2][T][E], projected[3][H][T][D];
    memcpy(changed, tokens, sizeof changed);
    changed[2][0] = 5; /* a different token 2 */
    reshaped_outputs(tokens, wrong[0]);
    reshaped_outputs(changed, wrong[1]);
    run_module(tokens, right[0], projected);
    run_module(changed, right[1], projected);
    assert_memory_equal(wrong[0][0], wrong[1][0], sizeof wrong[0][0]);
    assert_true(fabsf(right[0][0][1] - right[1][0][1]) > 7);
    near_row(right[0][0], (const double[]){1.769, 0.897, 1.103, 0.231}, E);
    near_row(right[1][0], (const double[]){1.132, 8.874, 1.026, -0.069}, E);
    near_row(wrong[0][0], (const double[]){2.691, 0.981, 0, 0}, E);
}

/* Softmax over the queries: columns sum to 1, rows do not. */
static void softmax_over_queries(void)
{
    float wrong[T][T], sums[T], o[T][E], p[T][T];
    scores_of_example(wrong, 0.5F);
    for (int s = 0; s < T; s++) softmax(&wrong[0][s], T, T);
    for (int t = 0; t < T; t++) sums[t] = wrong[t][0] + wrong[t][1] + wrong[t][2];
    near_row(sums, (const double[]){0.895, 0.839, 1.267}, T);
    attend(NULL, 0, T, o, p);
    for (int t = 0; t < T; t++)
        assert_true(fabs((double)p[t][0] + (double)p[t][1] + (double)p[t][2] - 1) < 4 * 0x1p-24);
}

/* In masks, true means "hide" in some libraries, and "keep" in others and in this one. Key 2 is
 * padding. */
static void polarity(void)
{
    uint8_t hide[T] = {0, 0, 1}, keep[T] = {1, 1, 0};
    float o[T][E];
    mha_tensor mask = mha_tensor_contiguous(hide, MHA_U8, 1, (int64_t[]){T});
    const mha_attention_desc desc = {.struct_size = sizeof desc, .keep_mask = &mask};
    attend(&desc, 0, T, o, NULL);
    for (int t = 0; t < T; t++) near_row(o[t], (const double[]){0, 0, 1, 30}, E); /* padding only */
    mask.data = keep;
    attend(&desc, 0, T, o, NULL);
    near_row(o[0], (const double[]){0.119, 0.881, 0, 18.808}, E);
}

/* With one query and three keys, a causal mask aligned at the top left shows only key 0. */
static void alignment(void)
{
    float o[1][E];
    mha_attention_desc desc = {.struct_size = sizeof desc, .flags = MHA_ATTENTION_CAUSAL};
    attend(&desc, 2, 1, o, NULL);
    near_row(o[0], (const double[]){1, 0, 0, 10}, E);
    desc.q_offset = T - 1;
    attend(&desc, 2, 1, o, NULL);
    near_row(o[0], (const double[]){0.018, 0.018, 0.965, 29.470}, E);
}

RUN_TESTS(TEST(views_of_the_input), TEST(dropout_of_the_output), TEST(large_negative_numbers),
          TEST(scale_after_softmax), TEST(heads_by_reshape), TEST(softmax_over_queries),
          TEST(polarity), TEST(alignment))
