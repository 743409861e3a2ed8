/* See grid.h. */
#include <multihead/grid.h>

#include "base/checked.h"
#include "base/need.h"
#include "base/tensor.h"

#include <math.h>

/* Patches in a direction; products of two cannot overflow. */
enum { MOST_EDGE = 1 << 15 };

static mha_status check(const mha_grid *grid, const mha_tensor *map)
{
    MHA_TRY(mhai_check_range("mha_grid: rows", grid->rows, 1, MOST_EDGE));
    MHA_TRY(mhai_check_range("mha_grid: cols", grid->cols, 1, MOST_EDGE));
    MHA_TRY(mhai_check_range("mha_grid: first", grid->first, 0, INT32_MAX));
    MHA_TRY(mhai_check_range("mha_grid: registers", grid->registers, 0, grid->first));
    const int64_t tokens = grid->first + grid->rows * grid->cols;
    return mhai_tensor_check("map", map, MHA_F32, 2, (const int64_t[]){tokens, tokens});
}

/* Add the measures of a row of weights with this stride; NULL: uniform weights. */
static void add_row(const mha_grid *grid, int64_t query, const float *w, int64_t stride,
                    mha_grid_measures *sums, int64_t *rows)
{
    const int64_t P = grid->rows * grid->cols, cls = grid->first - grid->registers;
    const double uniform = 1 / (double)(grid->first + P);
    const int64_t r = query / grid->cols, c = query % grid->cols;
    mha_grid_measures own = {0};
    double all = 0;
    for (int64_t k = 0; k < grid->first; k++)
        *(k < cls ? &sums->cls : &sums->registers) += w ? (double)w[k * stride] : uniform;
    for (int64_t k = 0; k < P; k++) {
        const double v = w ? (double)w[(grid->first + k) * stride] : uniform;
        const int64_t down = k / grid->cols - r, right = k % grid->cols - c;
        all += v;
        own.distance += v * sqrt((double)(down * down + right * right));
        if (down >= -1 && down <= 1 && right >= -1 && right <= 1) own.local += v;
        if (down == 0) own.same_row += v;
        if (right == 0) own.same_col += v;
    }
    if (!(all > 0)) return;
    sums->distance += own.distance / all;
    sums->local += own.local / all;
    sums->same_row += own.same_row / all;
    sums->same_col += own.same_col / all;
    ++*rows;
}

static void measure(const mha_grid *grid, const mha_tensor *map, mha_grid_measures *to)
{
    const int64_t P = grid->rows * grid->cols;
    mha_grid_measures sums = {0};
    int64_t rows = 0;
    for (int64_t q = 0; q < P; q++) {
        const float *w = map ? (const float *)map->data + (grid->first + q) * map->stride[0] : NULL;
        add_row(grid, q, w, map ? map->stride[1] : 0, &sums, &rows);
    }
    *to = (mha_grid_measures){sums.distance / (double)rows, sums.local / (double)rows,
                              sums.same_row / (double)rows, sums.same_col / (double)rows,
                              sums.cls / (double)P,         sums.registers / (double)P};
}

mha_status mha_grid_measure(const mha_grid *grid, const mha_tensor *map,
                            mha_grid_measures *measures, mha_grid_measures *chance)
{
    MHA_NEED("mha_grid_measure", grid, map, measures);
    MHA_TRY(check(grid, map));
    measure(grid, map, measures);
    if (chance) measure(grid, NULL, chance);
    return MHA_OK;
}
