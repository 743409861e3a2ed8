/* One row of a map of patches, for mha_grid_measure() and mha_head_measures. */
#ifndef MHAI_ANALYSIS_GRID_H
#define MHAI_ANALYSIS_GRID_H

#include <multihead/grid.h>

/* The weights of a patch on all tokens; both NULL: equal ones, of sum 1. */
typedef struct mhai_patch_row {
    const float *floats;
    int64_t stride;
    const double *doubles; /* contiguous */
} mhai_patch_row;

/* Check the sizes; then first + rows cols cannot overflow. */
MHA_NODISCARD mha_status mhai_grid_check(const mha_grid *grid);

/* Measure the row of a patch. Returns false if it has no weight on patches; only cls and registers are
 * then set. */
bool mhai_grid_row(const mha_grid *grid, int64_t patch, mhai_patch_row row, mha_grid_measures *to);

#endif
