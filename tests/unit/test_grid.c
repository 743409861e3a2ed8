/* Measures of patches, computed here by plain loops from positions, and misuse. */
#include "support/expect.h"
#include "support/rng.h"
#include "support/suite.h"

#include <multihead/grid.h>

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

RUN_TESTS(TEST(random_maps), TEST(by_hand), TEST(misuse))
