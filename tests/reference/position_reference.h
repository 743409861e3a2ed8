/* The formulas of multihead/position.h for single elements, by simple loops: an independent
 * reference. It neither calls the library nor shares code with it. Angles and sums are computed in
 * long double, which is wider than the library's double on most machines, and returned as double.
 * Each function also returns the header's bound. */
#ifndef TEST_POSITION_REFERENCE_H
#define TEST_POSITION_REFERENCE_H

#include <multihead/position.h>

/* A value and the error bound of the library. */
typedef struct ref_bounded {
    double exact, bound;
} ref_bounded;

/* The position of token t of sequence b. */
int64_t ref_position(const mha_positions *positions, int64_t b, int64_t t);

/* Element [b,h,t,d] of the rotated x. desc may be NULL. */
ref_bounded ref_rope(const mha_rope_desc *desc, const mha_tensor *x, const int64_t index[4]);

/* Element e of row pos of the sinusoidal encoding of width E. */
ref_bounded ref_sinusoid(int64_t pos, int64_t e, int64_t E);

/* The slope of head h, by the recursion of the published code. */
double ref_alibi_slope(int64_t h, int64_t heads);

/* Element [b,h,t,d] of the normalised x; weight may be NULL. */
ref_bounded ref_qk_norm(mha_qk_norm_kind kind, double epsilon, const mha_tensor *x,
                        const mha_tensor *weight, const int64_t index[4]);

#endif
