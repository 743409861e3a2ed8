/* Distances between heads: rows, outputs and clusters computed by hand; random ones compared with
 * simple loops over the outputs; merging, blocks, threads and errors. */
#include "support/expect.h"
#include "support/rng.h"
#include "support/shared_context.h"
#include "support/suite.h"

#include <multihead/head_distances.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mha_context *one, *several;

static void expect(double got, double exact, double most)
{
    if (!(fabs(got - exact) <= most)) fail_msg("%.17g, expected %.17g", got, exact);
}

static mha_head_distances *make(mha_context *context, int64_t heads, int64_t width,
                                const mha_tensor *weight)
{
    mha_head_distances *d = NULL;
    if (mha_head_distances_create(context, heads, width, weight, &d) != MHA_OK)
        fail_msg("%s", mha_error_detail());
    return d;
}

/* ---- by hand
 * ------------------------------------------------------------------------------------- */

static void test_maps(void)
{
    /* Rows of head 0 and head 1. The first two are equal. The second two are disjoint: JS = log 2.
     * The third are (1/2 1/2) and (1 0): m = (3/4 1/4), KL(p,m) = 1/2 log 2/3 + 1/2 log 2 = 1/2 log
     * 4/3, KL(q,m) = log 4/3, JS = 3/4 log 4/3. A fourth row without visible keys does not count.
     * The fifth, (1/4 1/4) with a sink, is (1/2 1/2) like the third.
     */
    float p[2][5][4] = {{{.25f, .25f, .5f, 0}, {1, 0, 0, 0}, {.5f, .5f}, {0}, {.25f, .25f}},
                        {{.25f, .25f, .5f, 0}, {0, .5f, 0, .5f}, {1, 0}, {1}, {1, 0}}};
    const mha_tensor rows = mha_tensor_contiguous(p, MHA_F32, 3, (int64_t[]){2, 5, 4});
    mha_head_distances *d = make(one, 2, 0, NULL);
    expect_ok(mha_head_distances_rows(d, &rows));
    const mha_head_pair pair = mha_head_distances_pair(d, 0, 1);
    assert_int_equal(pair.map_rows, 4);
    expect(pair.maps, (0 + 1 + 2 * .75 * log(4. / 3) / log(2)) / 4, 1e-14);
    expect(mha_head_distances_pair(d, 1, 1).maps, 0, 0);
    assert_int_equal(mha_head_distances_pair(d, 0, 2).map_rows, 0);
    mha_head_distances_destroy(d);
}

static void test_outputs(void)
{
    /* Three rows of outputs of width 2. Head 1 is twice head 0; head 2 is head 0 rotated by a right
     * angle. Every cosine with head 2 is 0. Alignment is invariant to rotation and therefore 1. */
    float z[3][3][2] = {
        {{1, 0}, {0, 1}, {1, 1}}, {{2, 0}, {0, 2}, {2, 2}}, {{0, 1}, {-1, 0}, {-1, 1}}};
    const mha_tensor out = mha_tensor_contiguous(z, MHA_F32, 3, (int64_t[]){3, 3, 2});
    mha_head_distances *d = make(one, 3, 2, NULL);
    expect_ok(mha_head_distances_outputs(d, &out));
    expect(mha_head_distances_pair(d, 0, 1).cosine, 1, 1e-15);
    expect(mha_head_distances_pair(d, 0, 1).cka, 1, 1e-15);
    expect(mha_head_distances_pair(d, 2, 0).cosine, 0, 1e-15);
    expect(mha_head_distances_pair(d, 2, 0).cka, 1, 1e-15);
    assert_int_equal(mha_head_distances_pair(d, 0, 1).output_rows, 3);
    mha_head_distances_destroy(d);
}

static void test_clusters(void)
{
    /* Items at 0, 1, 3, 10. Items 0 and 1 join at distance 1; 3 has the mean distance 2.5 from
     * them; 10 has the mean distance 26/3 from the three. */
    const double at[] = {0, 1, 3, 10};
    double distance[16];
    int64_t cluster[4], count = -1;
    for (int i = 0; i < 16; i++) distance[i] = fabs(at[i / 4] - at[i % 4]);
    const struct {
        double cut;
        int64_t count, cluster[4];
    } cases[] = {{0.5, 4, {0, 1, 2, 3}}, {1, 3, {0, 0, 1, 2}},   {2.4, 3, {0, 0, 1, 2}},
                 {2.5, 2, {0, 0, 0, 1}}, {8.6, 2, {0, 0, 0, 1}}, {8.7, 1, {0, 0, 0, 0}}};
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
        expect_ok(mha_head_clusters(one, 4, distance, cases[n].cut, cluster, &count));
        assert_int_equal(count, cases[n].count);
        assert_memory_equal(cluster, cases[n].cluster, sizeof cluster);
    }
    expect_ok(mha_head_clusters(one, 0, NULL, 1, NULL, &count));
    assert_int_equal(count, 0);
}

/* Two pairs of three items have distance 1, which equals `cut`. The pair with the first members is
 * joined, and the third item is farther from that cluster. */
static void test_equal_distances(void)
{
    static const struct {
        double ab, ac, bc;
        int64_t cluster[3];
    } rows[] = {{1, 2, 1, {0, 0, 1}}, {1, 1, 2, {0, 0, 1}}, {2, 1, 1, {0, 1, 0}}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const double ab = rows[i].ab, ac = rows[i].ac, bc = rows[i].bc;
        const double distance[] = {0, ab, ac, ab, 0, bc, ac, bc, 0};
        int64_t cluster[3], count = -1;
        expect_ok(mha_head_clusters(one, 3, distance, 1, cluster, &count));
        assert_int_equal(count, 2);
        assert_memory_equal(cluster, rows[i].cluster, sizeof cluster);
    }
}

/* ---- random heads
 * ----------------------------------------------------------------------------------- */

enum { HEADS = 4, ROWS = 23, KEYS = 19, WIDTH = 3, MODEL = 7 };

typedef struct sample {
    float p[HEADS][ROWS][KEYS], z[HEADS][ROWS][WIDTH], weight[MODEL][HEADS][WIDTH];
} sample;

static void make_sample(sample *x, rng *r)
{
    for (int h = 0; h < HEADS; h++)
        for (int t = 0; t < ROWS; t++) {
            double sum = 0;
            for (int j = 0; j < KEYS; j++)
                sum += x->p[h][t][j] = j <= t && rng_chance(r, 0.7) ? (float)rng_uniform(r) : 0;
            for (int j = 0; j < KEYS && sum > 0; j++) x->p[h][t][j] /= (float)sum;
            for (int c = 0; c < WIDTH; c++) x->z[h][t][c] = rng_normal(r);
        }
    for (int e = 0; e < MODEL; e++)
        for (int h = 0; h < HEADS; h++)
            for (int c = 0; c < WIDTH; c++) x->weight[e][h][c] = rng_normal(r);
    if (rng_chance(r, 0.5)) memcpy(x->z[1], x->z[0], sizeof x->z[0]);
}

/* W_O as [HEADS, WIDTH, MODEL] */
static mha_tensor weight_of(sample *x)
{
    mha_tensor w = mha_tensor_contiguous(x->weight, MHA_F32, 3, (int64_t[]){HEADS, WIDTH, MODEL});
    w.stride[0] = WIDTH, w.stride[1] = 1, w.stride[2] = (int64_t)HEADS * WIDTH;
    return w;
}

static double kl(const double *a, const double *b)
{
    double sum = 0;
    for (int j = 0; j < KEYS; j++)
        if (a[j] > 0) sum += a[j] * log(a[j] / ((a[j] + b[j]) / 2));
    return sum;
}

static double plain_maps(const sample *x, int g, int h)
{
    double total = 0, rows = 0;
    for (int t = 0; t < ROWS; t++) {
        double a[KEYS], b[KEYS], sa = 0, sb = 0;
        for (int j = 0; j < KEYS; j++) sa += (double)x->p[g][t][j], sb += (double)x->p[h][t][j];
        if (!(sa > 0) || !(sb > 0)) continue;
        for (int j = 0; j < KEYS; j++)
            a[j] = (double)x->p[g][t][j] / sa, b[j] = (double)x->p[h][t][j] / sb;
        total += (kl(a, b) + kl(b, a)) / 2 / log(2);
        rows++;
    }
    return rows > 0 ? total / rows : 0;
}

static void plain_out(const sample *x, int h, double out[ROWS][MODEL])
{
    for (int t = 0; t < ROWS; t++)
        for (int e = 0; e < MODEL; e++) {
            out[t][e] = 0;
            for (int c = 0; c < WIDTH; c++)
                out[t][e] += (double)x->z[h][t][c] * (double)x->weight[e][h][c];
        }
}

static double plain_cosine(double a[ROWS][MODEL], double b[ROWS][MODEL])
{
    double total = 0;
    for (int t = 0; t < ROWS; t++) {
        double ab = 0, aa = 0, bb = 0;
        for (int e = 0; e < MODEL; e++)
            ab += a[t][e] * b[t][e], aa += a[t][e] * a[t][e], bb += b[t][e] * b[t][e];
        total += ab / sqrt(aa * bb);
    }
    return total / ROWS;
}

/* ||X'Y||^2 of centred columns */
static double plain_alignment(double x[ROWS][MODEL], double y[ROWS][MODEL])
{
    double total = 0;
    for (int i = 0; i < MODEL; i++)
        for (int j = 0; j < MODEL; j++) {
            double mean_x = 0, mean_y = 0, sum = 0;
            for (int t = 0; t < ROWS; t++) mean_x += x[t][i] / ROWS, mean_y += y[t][j] / ROWS;
            for (int t = 0; t < ROWS; t++) sum += (x[t][i] - mean_x) * (y[t][j] - mean_y);
            total += sum * sum;
        }
    return total;
}

static void feed(mha_head_distances *d, sample *x, int64_t block)
{
    for (int64_t row = 0; row < ROWS; row += block) {
        const int64_t count = block < ROWS - row ? block : ROWS - row;
        mha_tensor p = mha_tensor_contiguous(x->p, MHA_F32, 3, (int64_t[]){HEADS, ROWS, KEYS});
        mha_tensor z = mha_tensor_contiguous(x->z, MHA_F32, 3, (int64_t[]){HEADS, ROWS, WIDTH});
        p.data = &x->p[0][row][0], z.data = &x->z[0][row][0];
        p.shape[1] = z.shape[1] = count;
        expect_ok(mha_head_distances_rows(d, &p));
        expect_ok(mha_head_distances_outputs(d, &z));
    }
}

static void compare_pair(const sample *x, const mha_head_distances *d, int g, int h)
{
    static double a[ROWS][MODEL], b[ROWS][MODEL];
    const mha_head_pair pair = mha_head_distances_pair(d, g, h);
    plain_out(x, g, a);
    plain_out(x, h, b);
    /* The values are ratios of sums of a few hundred products in double, and 1e-12 is far above
     * their rounding. A cosine divides by lengths of vectors of three numbers, which are not below
     * 1e-4 of the usual size. */
    expect(pair.maps, plain_maps(x, g, h), 1e-12);
    expect(pair.cosine, plain_cosine(a, b), 1e-10);
    expect(pair.cka, plain_alignment(a, b) / sqrt(plain_alignment(a, a) * plain_alignment(b, b)),
           1e-10);
}

static void test_random(void)
{
    static sample x;
    for (int n = 0; n < rng_cases(30, 500); n++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)n);
        make_sample(&x, &r);
        const mha_tensor weight = weight_of(&x);
        mha_head_distances *d = make(one, HEADS, WIDTH, &weight);
        mha_head_distances *other = make(several, HEADS, WIDTH, &weight);
        feed(d, &x, ROWS);
        feed(other, &x, rng_between(&r, 1, 9));
        for (int g = 0; g < HEADS; g++)
            for (int h = 0; h < HEADS; h++) {
                const mha_head_pair a = mha_head_distances_pair(d, g, h),
                                    b = mha_head_distances_pair(other, g, h);
                assert_memory_equal(&a, &b, sizeof a);
                compare_pair(&x, d, g, h);
            }
        mha_head_distances_destroy(d);
        mha_head_distances_destroy(other);
    }
}

/* ---- other functions ------------------------------------------------------------------------- */

static void test_redundant(void)
{
    mha_head_pair pair = {.maps = 0.05, .cosine = -0.95, .map_rows = 3, .output_rows = 3};
    assert_true(mha_head_pair_is_redundant(&pair, 0.1, 0.9));
    pair.cosine = 0.5; /* the same map, different outputs */
    assert_false(mha_head_pair_is_redundant(&pair, 0.1, 0.9));
    pair.cosine = 0.95, pair.maps = 0.5;
    assert_false(mha_head_pair_is_redundant(&pair, 0.1, 0.9));
    pair.maps = 0, pair.output_rows = 0;
    assert_false(mha_head_pair_is_redundant(&pair, 0.1, 0.9));
}

static void test_refusals(void)
{
    float numbers[8] = {0.5f, NAN, -1, 1, 1, 1, 1, 1};
    double distances[4] = {0, NAN, 1, 0};
    int64_t cluster[2], count = 7;
    mha_head_distances *d = NULL;
    const mha_tensor p = mha_tensor_contiguous(numbers, MHA_F32, 3, (int64_t[]){2, 2, 2});
    const mha_tensor three = mha_tensor_contiguous(numbers, MHA_F32, 3, (int64_t[]){3, 1, 2});
    assert_int_equal(mha_head_distances_create(NULL, 1, 0, NULL, &d), MHA_ERR_NULL);
    assert_int_equal(mha_head_distances_create(one, 0, 0, NULL, &d), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_head_distances_create(one, 2, 0, &p, &d), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_head_distances_create(one, 2, 2, &p, &d), MHA_ERR_NUMERIC);
    d = make(one, 2, 0, NULL);
    assert_int_equal(mha_head_distances_rows(d, NULL), MHA_ERR_NULL);
    assert_int_equal(mha_head_distances_rows(d, &three), MHA_ERR_SHAPE);
    assert_int_equal(mha_head_distances_rows(d, &p), MHA_ERR_NUMERIC);
    assert_int_equal(mha_head_distances_outputs(d, &p), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_head_distances_pair(d, 0, 1).map_rows, 0);
    mha_head_distances_destroy(d);
    mha_head_distances_destroy(NULL);
    assert_int_equal(mha_head_clusters(one, 2, distances, 1, cluster, &count), MHA_ERR_NUMERIC);
    assert_int_equal(mha_head_clusters(one, 5000, distances, 1, cluster, &count), MHA_ERR_SIZE);
    assert_int_equal(count, 7);
}

static int make_contexts(void **state)
{
    (void)state;
    one = context_with(1);
    several = context_with(3);
    return 0;
}

RUN_TESTS_BETWEEN(make_contexts, NULL, TEST(test_maps), TEST(test_outputs), TEST(test_clusters),
                  TEST(test_equal_distances), TEST(test_random), TEST(test_redundant),
                  TEST(test_refusals))
