/* Outputs of heads, norm-based maps, composition and rollout by their definitions, in double, with explicit vectors and
 * matrices. Shares no code with the library. */
#ifndef ATTRIBUTION_REFERENCE_H
#define ATTRIBUTION_REFERENCE_H

#include <stdint.h>

/* out [E] = W[:, h D .. h D + D - 1] z, W [E,width]. */
void reference_head_out(const double *weight, int64_t E, int64_t width, int64_t h, int64_t D,
                        const double *z, double *out);

double reference_norm(const double *x, int64_t count);
double reference_dot(const double *a, const double *b, int64_t count);

/* ||A B|| / (||A|| ||B||) in Frobenius norms, for n x n matrices; 0 if one matrix is 0. */
double reference_composition(const double *a, const double *b, int64_t n);

/* c [n,m] = a [n,k] b [k,m]; optionally, a is [k,n] and transposed first. */
void reference_product(const double *a, const double *b, int64_t n, int64_t k, int64_t m,
                       double *c);
void reference_turn(const double *a, int64_t rows, int64_t cols, double *out);

/* maps [H,T,T], before [T,T] or NULL, after [T,T]. */
void reference_rollout(const double *maps, int64_t H, int64_t T, const double *before,
                       double *after);

/* The stream of one token as a sum of named vectors, with a bound of the forward pass's rounding. */
typedef struct reference_stream {
    int64_t E, count;
    double *terms; /* [most,E] */
    double *error; /* [E] */
} reference_stream;

reference_stream reference_stream_make(int64_t E, int64_t most);
void reference_stream_free(reference_stream *s);
double *reference_stream_add(reference_stream *s); /* a new term of zeros */

/* Passes every term through a norm of x [E], with x's mean and standard deviation. The bias is
 * added to term `bias_term`. `rounding` is the relative error of the norm's result. */
void reference_stream_norm(reference_stream *s, const double *x, const double *weight,
                           const double *bias, double epsilon, int centred, int64_t bias_term,
                           double rounding);

#endif
