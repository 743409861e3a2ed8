/* How far the library may be from kinds_attention_row(): section 3.10 of docs/numerics.md,
 * evaluated for each element with its own sums. */
#ifndef TEST_KINDS_BOUNDS_H
#define TEST_KINDS_BOUNDS_H

#include "reference/bounds.h"
#include "reference/kinds_reference.h"

/* The bounds of the row that kinds_attention_row() has filled in; bound->sum is not set. bound must
 * have room for the row. */
void kinds_bound_row(const ref_attention *a, const bound_arith *arith, int64_t b, int64_t h,
                     int64_t t, const kinds_row *row, bound_row *bound);

/* How far the library's score of a pair may be from the reference's, in natural units; before:
 * likewise, before the cap. */
double kinds_score_error(const ref_attention *a, const bound_arith *arith, int64_t b, int64_t h,
                         int64_t t, int64_t s, double *before);

/* Of a score at a stage, natural units, as mha_attention_outputs.scores gives it; x is the
 * reference's of that pair. */
double kinds_bound_score(const ref_attention *a, const bound_arith *arith, int64_t b, int64_t h,
                         int64_t t, int64_t s, mha_score_stage stage, const kinds_score *x);

/* Of the row's entropy; bound holds what kinds_bound_row() gave for it. Infinite where the errors
 * of the scores are too large to say anything. */
double kinds_bound_entropy(const kinds_row *row, const bound_row *bound);

#endif
