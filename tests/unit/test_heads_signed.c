/* Scores of signed maps: handmade heads of recurrent layers, and the differences between a signed
 * map and the shares of its magnitudes. */
#include "support/expect.h"
#include "support/one_context.h"
#include "support/rng.h"
#include "support/suite.h"

#include <multihead/heads.h>
#include <multihead/recurrent.h>

#include <math.h>
#include <string.h>

enum { N = 96, SYMBOLS = 12, WIDTH = SYMBOLS + 1, TEXTS = 8 };

/* Layer 0 has the delta rule; layer 1 does not. */
enum {
    OVERWRITES, /* keys: previous tokens, queries: tokens; a write replaces earlier ones */
    FORGETS,    /* one key for all tokens, a decay of 0.2, little erasing */
    REMEMBERS,  /* the same without a decay, with random strengths */
    REFLECTS,   /* b = 2 negates earlier writes at every token */
    DELTAS,
    SUMS = DELTAS, /* OVERWRITES without erasing */
    HEADS
};

typedef struct problem {
    int64_t ids[N];
    float q[HEADS][N][WIDTH], k[HEADS][N][WIDTH], log_decay[HEADS][N], strength[HEADS][N];
} problem;

static void make(problem *x, rng *r)
{
    memset(x, 0, sizeof *x);
    for (int64_t t = 0; t < N; t++) do
            x->ids[t] = rng_between(r, 0, SYMBOLS - 1);
        while (t > 0 && x->ids[t] == x->ids[t - 1]);
    for (int64_t t = 0; t < N; t++)
        for (int h = 0; h < HEADS; h++) {
            const bool by_token = h == OVERWRITES || h == SUMS;
            x->q[h][t][by_token ? x->ids[t] : 0] = 1;
            x->k[h][t][!by_token ? 0 : t > 0 ? x->ids[t - 1] : SYMBOLS] = 1;
            x->log_decay[h][t] = h == FORGETS ? logf(0.2f) : 0;
            x->strength[h][t] = by_token         ? 1
                                : h == REFLECTS  ? 2
                                : h == REMEMBERS ? (float)(1e-4 * (1 + rng_uniform(r)))
                                                 : 1e-3f;
        }
}

typedef struct feed {
    mha_head_measures *m;
    int64_t layer;
} feed;

static mha_status give(void *user, int64_t b, int64_t row, const mha_tensor *p)
{
    const feed *to = user;
    (void)b;
    return mha_head_measures_rows(to->m, to->layer, row, p);
}

static void add_layer(mha_head_measures *m, problem *x, int64_t layer)
{
    const int64_t first = layer ? SUMS : 0, heads = layer ? HEADS - DELTAS : DELTAS;
    const int64_t shape[] = {1, heads, N, WIDTH};
    const mha_tensor q = mha_tensor_contiguous(x->q[first], MHA_F32, 4, shape),
                     k = mha_tensor_contiguous(x->k[first], MHA_F32, 4, shape),
                     log_decay = mha_tensor_contiguous(x->log_decay[first], MHA_F32, 3, shape),
                     strength = mha_tensor_contiguous(x->strength[first], MHA_F32, 3, shape);
    const mha_recurrent_desc desc = {.struct_size = sizeof desc,
                                     .flags = layer ? 0 : MHA_RECURRENT_DELTA,
                                     .log_decay = &log_decay,
                                     .strength = &strength};
    expect_ok(mha_head_measures_signed(m, layer));
    if (mha_recurrent_visit_rows(context, &desc, &q, &k, heads, 0, give, &(feed){m, layer}))
        fail_msg("%s", mha_error_detail());
}

static mha_head_measures *measure(void)
{
    static problem x;
    const int64_t heads[] = {DELTAS, HEADS - DELTAS};
    const mha_head_measures_desc desc = {.struct_size = sizeof desc, .layers = 2, .heads = heads};
    rng r = rng_make(rng_run_seed(), 0);
    mha_head_measures *m = NULL;
    expect_ok(mha_head_measures_create(context, &desc, &m));
    for (int n = 0; n < TEXTS; n++) {
        make(&x, &r);
        const mha_heads_text text = {.struct_size = sizeof text,
                                     .flags = MHA_HEADS_CAUSAL,
                                     .queries = N,
                                     .keys = N,
                                     .ids = x.ids};
        expect_ok(mha_head_measures_begin(m, &text));
        add_layer(m, &x, 0);
        add_layer(m, &x, 1);
        expect_ok(mha_head_measures_end(m));
    }
    return m;
}

static mha_head_score score_of(const mha_head_measures *m, int head, mha_head_measure which)
{
    return mha_head_measures_score(m, head == SUMS, head == SUMS ? 0 : head, which);
}

/* Each score reports its own heads, and no others. */
static void test_scores_of_heads_made_by_hand(void)
{
    static const struct {
        mha_head_measure measure;
        unsigned own;
    } detectors[] = {{MHA_MEASURE_INDUCTION, 1u << OVERWRITES | 1u << SUMS},
                     {MHA_MEASURE_INDUCTION_LATEST, 1u << OVERWRITES},
                     {MHA_MEASURE_CONFIDENCE, 1u << OVERWRITES},
                     {MHA_MEASURE_NEAR, 1u << FORGETS},
                     {MHA_MEASURE_BROAD, 1u << REMEMBERS | 1u << REFLECTS},
                     {MHA_MEASURE_PREVIOUS, 0},
                     {MHA_MEASURE_DUPLICATE, 0}};
    mha_head_measures *m = measure();
    for (size_t d = 0; d < sizeof detectors / sizeof detectors[0]; d++)
        for (int h = 0; h < HEADS; h++) {
            const mha_head_score s = score_of(m, h, detectors[d].measure);
            const bool own = detectors[d].own & (1u << h);
            const bool part = detectors[d].measure == MHA_MEASURE_CONFIDENCE ||
                              (h == SUMS && detectors[d].measure == MHA_MEASURE_INDUCTION_LATEST) ||
                              (h == SUMS && detectors[d].measure == MHA_MEASURE_BROAD);
            if (s.rows == 0 ||
                (own ? !(s.value >= 0.95) : !(s.value < (part ? 0.85 : s.chance + 0.25))))
                fail_msg("head %d: %s is %g, chance %g, %lld rows", h,
                         mha_measure_describe(detectors[d].measure).name, s.value, s.chance,
                         (long long)s.rows);
        }
    for (int h = 0; h < HEADS; h++) {
        const mha_head_score s = score_of(m, h, MHA_MEASURE_NEGATIVE);
        assert_true(s.rows > 0 && fabs(s.value - (h == REFLECTS ? 0.49 : 0)) < 0.02);
        assert_int_equal(score_of(m, h, MHA_MEASURE_SINK).rows, 0);
    }
    assert_true(fabs(score_of(m, FORGETS, MHA_MEASURE_DISTANCE).value - 0.2 / 0.8) < 0.02);
    mha_head_measures_destroy(m);
}

static void test_roles_of_heads_made_by_hand(void)
{
    static const mha_role expected[HEADS] = {[OVERWRITES] = MHA_ROLE_INDUCTION,
                                             [FORGETS] = MHA_ROLE_SELF,
                                             [REMEMBERS] = MHA_ROLE_BROAD,
                                             [REFLECTS] = MHA_ROLE_BROAD,
                                             [SUMS] = MHA_ROLE_INDUCTION};
    mha_head_measures *m = measure();
    for (int h = 0; h < HEADS; h++) {
        mha_head_role roles[32];
        const int64_t count = mha_head_measures_roles(m, h == SUMS, h == SUMS ? 0 : h, roles, 32);
        for (int64_t n = 0; n < count; n++)
            if (roles[n].role != expected[h] &&
                !(h == FORGETS && roles[n].role == MHA_ROLE_POSITIONAL))
                fail_msg("head %d: %s", h, roles[n].evidence);
        assert_true(count > 0 && count <= 1 + (h == FORGETS));
    }
    mha_head_measures_destroy(m);
}

/* ---- a signed map and the shares of its magnitudes
 * -------------------------------------------- */

static double cosine(const float *x, int64_t i, int64_t j)
{
    double ij = 0, ii = 0, jj = 0;
    for (int64_t c = 0; c < WIDTH; c++) {
        const double a = (double)x[i * WIDTH + c], b = (double)x[j * WIDTH + c];
        ij += a * b, ii += a * a, jj += b * b;
    }
    return ij / sqrt(ii * jj);
}

/* Pearson's correlation with the cosines, over j < t. */
static double correlation(const float *inputs, const double *row, int64_t t)
{
    double a = 0, c = 0, aa = 0, cc = 0, ac = 0;
    for (int64_t j = 0; j < t; j++) a += row[j] / (double)t, c += cosine(inputs, t, j) / (double)t;
    for (int64_t j = 0; j < t; j++) {
        const double x = row[j] - a, y = cosine(inputs, t, j) - c;
        aa += x * x, cc += y * y, ac += x * y;
    }
    return ac / sqrt(aa * cc);
}

/* Head 0 of layer 0 is signed; layer 1 has the shares of its magnitudes. */
static void test_scores_are_those_of_the_sizes(void)
{
    static double m[2][N][N];
    static float inputs[N * WIDTH];
    static problem x;
    const int64_t heads[] = {1, 1};
    const mha_head_measures_desc desc = {.struct_size = sizeof desc, .layers = 2, .heads = heads};
    rng r = rng_make(rng_run_seed(), 1);
    double negative = 0, similar = 0;
    mha_head_measures *measures = NULL;
    make(&x, &r);
    for (int64_t i = 0; i < N * WIDTH; i++) inputs[i] = rng_normal(&r);
    for (int64_t t = 0; t < N; t++) {
        double sum = 0, below = 0;
        for (int64_t j = 0; j <= t; j++) {
            m[0][t][j] = 100 * (double)rng_normal(&r);
            sum += fabs(m[0][t][j]);
            if (m[0][t][j] < 0) below -= m[0][t][j];
        }
        for (int64_t j = 0; j <= t; j++) m[1][t][j] = fabs(m[0][t][j]) / sum;
        if (t > 0) negative += below / sum / (N - 1);
        if (t > 1) similar += correlation(inputs, m[0][t], t) / (N - 2);
    }
    const mha_heads_text text = {.struct_size = sizeof text,
                                 .flags = MHA_HEADS_CAUSAL,
                                 .queries = N,
                                 .keys = N,
                                 .ids = x.ids};
    const mha_tensor vectors =
        mha_tensor_contiguous(inputs, MHA_F32, 2, (const int64_t[]){N, WIDTH});
    expect_ok(mha_head_measures_create(context, &desc, &measures));
    expect_ok(mha_head_measures_begin(measures, &text));
    for (int64_t l = 0; l < 2; l++) {
        const mha_tensor p = mha_tensor_contiguous(m[l], MHA_F64, 3, (const int64_t[]){1, N, N});
        expect_ok(mha_head_measures_inputs(measures, l, &vectors));
        if (l == 0) expect_ok(mha_head_measures_signed(measures, l));
        expect_ok(mha_head_measures_rows(measures, l, 0, &p));
    }
    expect_ok(mha_head_measures_end(measures));
    for (int n = 0; n < MHA_MEASURES; n++) {
        const mha_head_score a = mha_head_measures_score(measures, 0, 0, (mha_head_measure)n),
                             b = mha_head_measures_score(measures, 1, 0, (mha_head_measure)n);
        if (n == MHA_MEASURE_SINK)
            assert_true(a.rows == 0 && b.rows == N);
        else if (n == MHA_MEASURE_NEGATIVE)
            assert_true(a.rows == N - 1 && b.rows == 0 && fabs(a.value - negative) < 1e-12);
        else if (n == MHA_MEASURE_COSINE)
            assert_true(a.rows == N - 2 && fabs(a.value - similar) < 1e-12);
        else
            assert_memory_equal(&a, &b, sizeof a);
    }
    mha_head_measures_destroy(measures);
}

static void test_misuse(void)
{
    const int64_t heads[] = {1};
    const mha_head_measures_desc desc = {.struct_size = sizeof desc, .layers = 1, .heads = heads};
    const mha_heads_text text = {.struct_size = sizeof text, .queries = 2, .keys = 2};
    float rows[] = {1, -2, NAN, 1};
    const mha_tensor p = mha_tensor_contiguous(rows, MHA_F32, 3, (const int64_t[]){1, 2, 2}),
                     first = mha_tensor_contiguous(rows, MHA_F32, 3, (const int64_t[]){1, 1, 2});
    mha_head_measures *m = NULL;
    expect_ok(mha_head_measures_create(context, &desc, &m));
    assert_int_equal(mha_head_measures_signed(NULL, 0), MHA_ERR_NULL);
    assert_int_equal(mha_head_measures_signed(m, 0), MHA_ERR_ARGUMENT);
    expect_ok(mha_head_measures_begin(m, &text));
    assert_int_equal(mha_head_measures_signed(m, 1), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_head_measures_rows(m, 0, 0, &first), MHA_ERR_NUMERIC);
    expect_ok(mha_head_measures_signed(m, 0));
    assert_int_equal(mha_head_measures_rows(m, 0, 0, &p), MHA_ERR_NUMERIC);
    assert_non_null(strstr(mha_error_detail(), "row 1: a weight of a signed map is not finite"));
    expect_ok(mha_head_measures_rows(m, 0, 0, &first));
    assert_int_equal(mha_head_measures_signed(m, 0), MHA_ERR_ARGUMENT);
    mha_head_measures_destroy(m);
}

RUN_TESTS_BETWEEN(context_begin, NULL, TEST(test_scores_of_heads_made_by_hand),
                  TEST(test_roles_of_heads_made_by_hand), TEST(test_scores_are_those_of_the_sizes),
                  TEST(test_misuse))
