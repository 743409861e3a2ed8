/* Error bounds of the library against kinds_attention_row(): section 3 of docs/numerics.md, evaluated for each element
 * with its own sums. */
#ifndef TEST_KINDS_BOUNDS_H
#define TEST_KINDS_BOUNDS_H

#include "reference/bounds.h"
#include "reference/kinds_reference.h"

/* The bounds of the row that kinds_attention_row() has filled in; bound->sum is that of a row without a sink. bound must
 * have memory for the row. */
void kinds_bound_row(const ref_attention *a, const bound_arith *arith, int64_t b, int64_t h,
                     int64_t t, const kinds_row *row, bound_row *bound);

/* Calls `check` for random rows of the case within a budget of work, at least two. It gets memory for a row of the
 * reference and its bounds. */
typedef void kinds_check_fn(void *user, int64_t b, int64_t h, int64_t t, kinds_row *row,
                            bound_row *bound);
void kinds_check_rows(const kinds_case *c, rng *r, double work, kinds_check_fn *check, void *user);

/* Bound of a pair's score against the reference, in natural units; before: likewise, before the cap. */
double kinds_score_error(const ref_attention *a, const bound_arith *arith, int64_t b, int64_t h,
                         int64_t t, int64_t s, double *before);

/* Bound of a score at a stage, in natural units, as in mha_attention_outputs.scores; x is the reference's score. */
double kinds_bound_score(const ref_attention *a, const bound_arith *arith, int64_t b, int64_t h,
                         int64_t t, int64_t s, mha_score_stage stage, const kinds_score *x);

/* Bound of the row's entropy; `bound` is the result of kinds_bound_row(). Infinite if the errors of the scores are too
 * large. */
double kinds_bound_entropy(const kinds_row *row, const bound_row *bound);

#endif
