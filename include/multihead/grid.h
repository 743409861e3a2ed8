/* multihead: measures of heads whose tokens are the patches of an image (mha_picture in image.h).
 *
 * P patches lie in rows and columns; `first` tokens, CLS and registers, precede them. With w[q,k] the
 * weight of patch q on token k, and v[q,k] the weights on patches alone, divided by their sum:
 *
 *   distance    mean over q of the sum over patches k of v[q,k] |q - k|, in patches (Dosovitskiy et al.
 *               2021, mean attention distance)
 *   local       mean of the sum of v[q,k] over the patches at most one row and one column away, q itself
 *               included (d'Ascoli et al. 2021)
 *   same_row    mean of the sum of v[q,k] over the patches in the row of q; same_col likewise
 *   cls         mean of w[q,CLS]
 *   registers   mean of the sum of w[q,k] over the registers (Darcet et al. 2024)
 *
 * The last two are 0 if the model has no such tokens. Their counterparts under a head that attends to all
 * tokens equally are the chance levels. Measures of texts, such as attention to the previous token, have
 * no meaning for patches.
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_GRID_H
#define MULTIHEAD_GRID_H

#include <multihead/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* All measures: name in programs and files, and on pages. */
#define MHA_GRID_MEASURE_LIST(X)             \
    X(distance, "mean distance in patches")  \
    X(local, "on itself and its neighbours") \
    X(same_row, "on its own row")            \
    X(same_col, "on its own column")         \
    X(cls, "on CLS")                         \
    X(registers, "on registers")

/* This struct does not grow. */
typedef struct mha_grid_measures {
#define MHA_GRID_FIELD(name, text) double name;
    MHA_GRID_MEASURE_LIST(MHA_GRID_FIELD)
#undef MHA_GRID_FIELD
} mha_grid_measures;

/* The tokens of an image: `first` tokens, whose last `registers` are registers, then rows cols
 * patches. */
typedef struct mha_grid {
    int64_t rows, cols, first, registers;
} mha_grid;

/**
 * Measure a head.
 *
 *   map f32 [T,T] in, any strides, T = first + rows cols    *chance out; may be NULL
 *
 * Rows without weight on patches are left out of the first four measures; they are NaN if all are.
 *
 * Memory   none.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (a size of the grid); MHA_ERR_SHAPE, MHA_ERR_DTYPE.
 * Threads  any.   Accuracy  sums in double, in order.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_grid_measure(const mha_grid *grid, const mha_tensor *map,
                                                  mha_grid_measures *measures,
                                                  mha_grid_measures *chance);

#ifdef __cplusplus
}
#endif
#endif
