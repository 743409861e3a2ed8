/* See grid.h. */
#include "analysis/grid.h"

#include "base/checked.h"
#include "base/need.h"
#include "base/tensor.h"

#include <math.h>

/* Patches in a direction; products of two cannot overflow. */
enum { MOST_EDGE = 1 << 15 };

mha_status mhai_grid_check(const mha_grid *grid)
{
    MHA_TRY(mhai_check_range("mha_grid: rows", grid->rows, 1, MOST_EDGE));
    MHA_TRY(mhai_check_range("mha_grid: cols", grid->cols, 1, MOST_EDGE));
    MHA_TRY(mhai_check_range("mha_grid: first", grid->first, 0, INT32_MAX));
    return mhai_check_range("mha_grid: registers", grid->registers, 0, grid->first);
}

static double at(const mhai_patch_row *row, int64_t key, double uniform)
{
    if (row->doubles) return row->doubles[key];
    return row->floats ? (double)row->floats[key * row->stride] : uniform;
}

bool mhai_grid_row(const mha_grid *grid, int64_t patch, mhai_patch_row row, mha_grid_measures *to)
{
    const int64_t P = grid->rows * grid->cols, cls = grid->first - grid->registers;
    const double uniform = 1 / (double)(grid->first + P);
    const int64_t r = patch / grid->cols, c = patch % grid->cols;
    mha_grid_measures own = {0};
    double all = 0;
    for (int64_t k = 0; k < grid->first; k++)
        *(k < cls ? &own.cls : &own.registers) += at(&row, k, uniform);
    for (int64_t k = 0; k < P; k++) {
        const double v = at(&row, grid->first + k, uniform);
        const int64_t down = k / grid->cols - r, right = k % grid->cols - c;
        all += v;
        own.distance += v * sqrt((double)(down * down + right * right));
        if (down >= -1 && down <= 1 && right >= -1 && right <= 1) own.local += v;
        if (down == 0) own.same_row += v;
        if (right == 0) own.same_col += v;
    }
    if (all > 0) {
        own.distance /= all;
        own.local /= all;
        own.same_row /= all;
        own.same_col /= all;
    }
    *to = own;
    return all > 0;
}

static void measure(const mha_grid *grid, const mha_tensor *map, mha_grid_measures *to)
{
    const int64_t P = grid->rows * grid->cols;
    mha_grid_measures sums = {0}, own;
    int64_t rows = 0;
    for (int64_t q = 0; q < P; q++) {
        mhai_patch_row row = {0};
        if (map) row.floats = (const float *)map->data + (grid->first + q) * map->stride[0];
        if (map) row.stride = map->stride[1];
        const bool counts = mhai_grid_row(grid, q, row, &own);
        sums.cls += own.cls;
        sums.registers += own.registers;
        if (!counts) continue;
        sums.distance += own.distance;
        sums.local += own.local;
        sums.same_row += own.same_row;
        sums.same_col += own.same_col;
        rows++;
    }
    *to = (mha_grid_measures){sums.distance / (double)rows, sums.local / (double)rows,
                              sums.same_row / (double)rows, sums.same_col / (double)rows,
                              sums.cls / (double)P,         sums.registers / (double)P};
}

mha_status mha_grid_measure(const mha_grid *grid, const mha_tensor *map,
                            mha_grid_measures *measures, mha_grid_measures *chance)
{
    MHA_NEED("mha_grid_measure", grid, map, measures);
    MHA_TRY(mhai_grid_check(grid));
    const int64_t tokens = grid->first + grid->rows * grid->cols;
    MHA_TRY(mhai_tensor_check("map", map, MHA_F32, 2, (const int64_t[]){tokens, tokens}));
    measure(grid, map, measures);
    if (chance) measure(grid, NULL, chance);
    return MHA_OK;
}
