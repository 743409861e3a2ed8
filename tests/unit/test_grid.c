/* Measures of patches, computed here by plain loops from positions; scores and roles of heads over images;
 * misuse. */
#include "support/expect.h"
#include "support/one_context.h"
#include "support/rng.h"
#include "support/suite.h"

#include <multihead/grid.h>
#include <multihead/heads.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 60 };

static const char *const names[] = {
#define NAME(name, text) #name,
    MHA_GRID_MEASURE_LIST(NAME)};

typedef struct found {
    double values[6];
} found;

/* The same sums, patch by patch. */
static found expected(const mha_grid *g, const float *map, int64_t stride)
{
    found f = {{0}};
    const int64_t P = g->rows * g->cols;
    for (int64_t qr = 0; qr < g->rows; qr++)
        for (int64_t qc = 0; qc < g->cols; qc++) {
            const float *w = map + (g->first + qr * g->cols + qc) * stride;
            double patches = 0, sums[4] = {0};
            for (int64_t k = 0; k < g->first; k++)
                f.values[k < g->first - g->registers ? 4 : 5] += (double)w[k] / (double)P;
            for (int64_t kr = 0; kr < g->rows; kr++)
                for (int64_t kc = 0; kc < g->cols; kc++) {
                    const double v = (double)w[g->first + kr * g->cols + kc];
                    patches += v;
                    sums[0] += v * hypot((double)(kr - qr), (double)(kc - qc));
                    sums[1] += llabs(kr - qr) < 2 && llabs(kc - qc) < 2 ? v : 0;
                    sums[2] += kr == qr ? v : 0;
                    sums[3] += kc == qc ? v : 0;
                }
            for (int i = 0; i < 4; i++) f.values[i] += sums[i] / patches / (double)P;
        }
    return f;
}

static void compare(const mha_grid_measures *measures, const found *wanted)
{
    double values[6];
    memcpy(values, measures, sizeof values);
    for (int i = 0; i < 6; i++)
        if (!(fabs(values[i] - wanted->values[i]) <= 1e-12 * (1 + fabs(wanted->values[i]))))
            fail_msg("%s is %.17g, expected %.17g", names[i], values[i], wanted->values[i]);
}

static void random_maps(void)
{
    for (int i = 0; i < rng_cases(40, 400); i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)i);
        static float data[MOST * (MOST + 1)];
        mha_grid g = {.rows = rng_between(&r, 1, 7), .cols = rng_between(&r, 1, 7)};
        g.first = rng_between(&r, 0, 5);
        g.registers = rng_between(&r, 0, g.first);
        const int64_t T = g.first + g.rows * g.cols, stride = T + rng_between(&r, 0, 1);
        mha_grid_measures measures, chance;
        for (int64_t k = 0; k < T * stride; k++) data[k] = (float)rng_between(&r, 1, 1000);
        mha_tensor map = {data, MHA_F32, 2, {T, T}, {stride, 1}};
        expect_ok(mha_grid_measure(&g, &map, &measures, &chance));
        const found wanted = expected(&g, data, stride);
        compare(&measures, &wanted);
        for (int64_t k = 0; k < T * stride; k++) data[k] = 1;
        found uniform = expected(&g, data, stride);
        uniform.values[4] /= (double)T; /* of weights of sum 1 */
        uniform.values[5] /= (double)T;
        compare(&chance, &uniform);
    }
}

/* All weight on the patch below, and on CLS in the last row of patches. */
static void by_hand(void)
{
    float data[7 * 7] = {0};
    const mha_grid g = {.rows = 3, .cols = 2, .first = 1};
    const int64_t shape[] = {7, 7};
    const mha_tensor map = mha_tensor_contiguous(data, MHA_F32, 2, shape);
    mha_grid_measures m;
    for (int q = 0; q < 6; q++) data[(1 + q) * 7 + (q < 4 ? 1 + q + 2 : 0)] = 1;
    expect_ok(mha_grid_measure(&g, &map, &m, NULL));
    const found wanted = {{1, 1, 0, 1, 2.0 / 6, 0}};
    compare(&m, &wanted); /* rows without weight on patches do not count */
    memset(data, 0, sizeof data);
    expect_ok(mha_grid_measure(&g, &map, &m, NULL));
    assert_true(isnan(m.distance) && m.cls <= 0);
}

static void misuse(void)
{
    float data[25] = {0};
    mha_grid g = {.rows = 2, .cols = 2, .first = 1, .registers = 1};
    mha_tensor map = mha_tensor_contiguous(data, MHA_F32, 2, (const int64_t[]){5, 5});
    mha_grid_measures m;
#define CALL mha_grid_measure(&g, &map, &m, NULL)
    expect_ok(CALL);
    expect_spoiled(g, CALL, MHA_ERR_ARGUMENT, "rows", g.rows = 0);
    expect_spoiled(g, CALL, MHA_ERR_ARGUMENT, "cols", g.cols = INT64_MAX);
    expect_spoiled(g, CALL, MHA_ERR_ARGUMENT, "first", g.first = -1);
    expect_spoiled(g, CALL, MHA_ERR_ARGUMENT, "registers", g.registers = 2);
    expect_spoiled(map, CALL, MHA_ERR_SHAPE, "map", map.shape[0] = 4);
    expect_spoiled(map, CALL, MHA_ERR_DTYPE, "map", map.dtype = MHA_F16);
    expect_error(mha_grid_measure(NULL, &map, &m, NULL), MHA_ERR_NULL, "NULL");
    expect_error(mha_grid_measure(&g, NULL, &m, NULL), MHA_ERR_NULL, "NULL");
    expect_error(mha_grid_measure(&g, &map, NULL, NULL), MHA_ERR_NULL, "NULL");
}

/* ---- heads over images ----------------------------------------------------------------------- */

enum { IMAGES = 3, NEAR = 0, ROW, COLUMN, CLS, REGISTERS, SELF, ANY, HEADS };

/* The relative weight that a head's query q gives to token k. */
static double wanted_weight(const mha_grid *g, int head, int64_t q, int64_t k, rng *r)
{
    const int64_t first = g->first, cls = first - g->registers, patch = k - first, own = q - first;
    const bool row = patch / g->cols == own / g->cols, col = patch % g->cols == own % g->cols;
    const double noise = 0.001 * (1 + rng_uniform(r));
    if (head == ANY) return rng_uniform(r);
    if (k < first) return noise + (head == CLS ? k < cls : head == REGISTERS && k >= cls);
    if (head == SELF) return noise + (patch == own) * 10;
    const bool near =
        llabs(patch / g->cols - own / g->cols) < 2 && llabs(patch % g->cols - own % g->cols) < 2;
    return noise + ((head == NEAR && near) || (head == ROW && row) || (head == COLUMN && col));
}

static void fill(const mha_grid *g, int64_t T, rng *r, float *maps)
{
    for (int h = 0; h < HEADS; h++)
        for (int64_t q = 0; q < T; q++) {
            double sum = 0;
            float *row = maps + (h * T + q) * T;
            for (int64_t k = 0; k < T; k++) sum += row[k] = (float)wanted_weight(g, h, q, k, r);
            for (int64_t k = 0; k < T; k++) row[k] = (float)(row[k] / sum);
        }
}

static void add_image(mha_head_measures *m, const mha_grid *g, int64_t T, float *maps)
{
    int64_t ids[100] = {0};
    const mha_heads_text text = {.struct_size = sizeof text,
                                 .queries = T,
                                 .keys = T,
                                 .ids = ids, /* not used */
                                 .grid = g};
    const mha_tensor p = mha_tensor_contiguous(maps, MHA_F32, 3, (const int64_t[]){HEADS, T, T});
    expect_ok(mha_head_measures_begin(m, &text));
    expect_ok(mha_head_measures_rows(m, 0, 0, &p));
    expect_ok(mha_head_measures_end(m));
}

static mha_head_measures *make(void)
{
    mha_head_measures_desc desc = {.struct_size = sizeof desc, .layers = 1};
    mha_head_measures *m;
    desc.heads = (const int64_t[]){HEADS};
    expect_ok(mha_head_measures_create(context, &desc, &m));
    return m;
}

/* Scores are means over images of what mha_grid_measure() finds; those of texts have no rows. */
static void scores_of_images(void)
{
    enum { T = 2 + 7 * 8 };
    static float maps[HEADS * T * T];
    const mha_grid g = {.rows = 7, .cols = 8, .first = 2, .registers = 1};
    const int64_t shape[] = {T, T};
    double sums[2][HEADS][6] = {{{0}}};
    rng r = rng_make(rng_run_seed(), 77);
    mha_head_measures *m = make();
    for (int i = 0; i < IMAGES; i++) {
        fill(&g, T, &r, maps);
        add_image(m, &g, T, maps);
        for (int h = 0; h < HEADS; h++) {
            const mha_tensor map = mha_tensor_contiguous(maps + h * T * T, MHA_F32, 2, shape);
            mha_grid_measures pair[2];
            double values[2][6];
            expect_ok(mha_grid_measure(&g, &map, &pair[0], &pair[1]));
            memcpy(values, pair, sizeof values);
            for (int n = 0; n < 12; n++) sums[n / 6][h][n % 6] += values[n / 6][n % 6] / IMAGES;
        }
    }
    for (int h = 0; h < HEADS; h++)
        for (int n = 0; n < MHA_MEASURES; n++) {
            const mha_head_score s = mha_head_measures_score(m, 0, h, (mha_head_measure)n);
            const bool any = n == MHA_MEASURE_SELF || n == MHA_MEASURE_CONFIDENCE ||
                             (n >= MHA_MEASURE_ENTROPY && n <= MHA_MEASURE_BROAD) ||
                             n == MHA_MEASURE_VERTICAL || n == MHA_MEASURE_HORIZONTAL;
            const int at = n - MHA_MEASURE_PATCH_DISTANCE;
            assert_int_equal(s.rows, any || at >= 0 ? IMAGES * 7 * 8 : 0);
            if (at < 0) continue;
            if (fabs(s.value - sums[0][h][at]) > 1e-12 || fabs(s.chance - sums[1][h][at]) > 1e-12)
                fail_msg("%s of head %d is %.15g, chance %.15g; expected %.15g, %.15g", names[at],
                         h, s.value, s.chance, sums[0][h][at], sums[1][h][at]);
        }
    mha_head_measures_destroy(m);
}

static void roles_of_images(void)
{
    enum { T = 3 + 9 * 9 };
    static const mha_role wanted[] = {MHA_ROLE_PATCHES, MHA_ROLE_ROW,       MHA_ROLE_COLUMN,
                                      MHA_ROLE_CLS,     MHA_ROLE_REGISTERS, MHA_ROLE_SELF};
    static float maps[HEADS * T * T];
    const mha_grid g = {.rows = 9, .cols = 9, .first = 3, .registers = 2};
    rng r = rng_make(rng_run_seed(), 78);
    mha_head_measures *m = make();
    fill(&g, T, &r, maps);
    add_image(m, &g, T, maps);
    for (int h = 0; h < ANY; h++) {
        mha_head_role role;
        if (mha_head_measures_roles(m, 0, h, &role, 1) != 1 || role.role != wanted[h])
            fail_msg("head %d is not %s alone", h, mha_role_describe(wanted[h]).name);
    }
    mha_head_measures_destroy(m);
}

static void misuse_of_heads(void)
{
    const mha_grid g = {.rows = 2, .cols = 2, .first = 1};
    mha_grid bad = {.rows = 0, .cols = 2};
    mha_heads_text text = {.struct_size = sizeof text, .queries = 5, .keys = 5, .grid = &g};
    mha_head_measures *m = make();
#define BEGIN mha_head_measures_begin(m, &text)
    expect_spoiled(text, BEGIN, MHA_ERR_ARGUMENT, "grid has 5 tokens", text.keys = 4);
    expect_spoiled(text, BEGIN, MHA_ERR_ARGUMENT, "grid has 5 tokens", text.q_offset = 1);
    expect_spoiled(text, BEGIN, MHA_ERR_ARGUMENT, "no flags", text.flags = MHA_HEADS_CAUSAL);
    expect_spoiled(text, BEGIN, MHA_ERR_ARGUMENT, "rows", text.grid = &bad);
    mha_head_measures_destroy(m);
}

RUN_TESTS_BETWEEN(context_begin, NULL, TEST(random_maps), TEST(by_hand), TEST(misuse),
                  TEST(scores_of_images), TEST(roles_of_images), TEST(misuse_of_heads))
