/* Bounds of the difference between the library and kinds_attention_row(): section 3 of
 * docs/numerics.md, evaluated for each element with its own sums. */
#ifndef TEST_KINDS_BOUNDS_H
#define TEST_KINDS_BOUNDS_H

#include "reference/bounds.h"
#include "reference/kinds_reference.h"

/* The bounds of the row that kinds_attention_row() has computed. bound->sum applies to rows without
 * a sink. `bound` must have memory for the row. */
void kinds_bound_row(const ref_attention *a, const bound_arith *arith, int64_t b, int64_t h,
                     int64_t t, const kinds_row *row, bound_row *bound);

/* Calls `check` for at least two random rows of the case, within a budget of work. `row` and `bound`
 * are memory for the reference. */
typedef void kinds_check_fn(void *user, int64_t b, int64_t h, int64_t t, kinds_row *row,
                            bound_row *bound);
void kinds_check_rows(const kinds_case *c, rng *r, double budget, kinds_check_fn *check,
                      void *user);

/* The bound of a pair's score, in natural units; `before` is the bound before the cap. */
double kinds_score_error(const ref_attention *a, const bound_arith *arith, int64_t b, int64_t h,
                         int64_t t, int64_t s, double *before);

/* The bound of a score at a stage of mha_attention_outputs.scores, in natural units; x is the
 * reference's score. */
double kinds_bound_score(const ref_attention *a, const bound_arith *arith, int64_t b, int64_t h,
                         int64_t t, int64_t s, mha_score_stage stage, const kinds_score *x);

/* The bound of the row's entropy; `bound` is the result of kinds_bound_row(). It is infinite if the
 * errors of the scores are too large. */
double kinds_bound_entropy(const kinds_row *row, const bound_row *bound);

#endif
