/* Bounds of the difference between the library and the reference: the derivations of
 * docs/numerics.md, evaluated for each element with its own sums. Section numbers refer to that
 * page. */
#ifndef TEST_BOUNDS_H
#define TEST_BOUNDS_H

#include "reference/reference.h"

#include <math.h>

/* Parameters of the arithmetic. */
typedef struct bound_arith {
    double u;               /* relative error of an operation */
    double tiny;            /* absolute error of an operation with a subnormal result */
    double exponential;     /* relative error of the exponential */
    double scale;           /* relative error of the factor that multiplies q k */
    double flush;           /* exponent of 2 below which an exponential becomes 0 */
    int64_t key_block;      /* keys per softmax step */
    double sum_depth;       /* maximum additions of a term in a block's sum of p */
    bool fused;             /* a * b + c is one rounding */
    double out_u, out_tiny; /* rounding of a finished result */
    double weight;          /* relative error of p; below 2^-50, p may become 0 */
    bool pairs;             /* chains process the second of each pair first */
} bound_arith;

/* The arithmetic of a call: plain for MHA_PATH_PLAIN and for heads beyond the tiled path. */
bound_arith bound_arith_of(const ref_attention *a, mha_path path, mha_isa isa);

/* Tiled attention in bf16 arithmetic, for inputs that are exact in bf16. */
bound_arith bound_arith_bf16(const ref_attention *a, mha_isa isa);

typedef struct bound_row {
    double *p; /* [S] */
    double *o; /* [Dv] */
    double lse;
    double sum; /* bound of |sum_s p[s] - 1|, for any errors of the scores */
} bound_row;

bound_row bound_row_make(int64_t keys, int64_t value_dim);
void bound_row_free(bound_row *bound);

/* The reference's own rounding, as a factor of bounds that are sums of many terms. */
static const double bound_slack = 1 + 0x1p-24;

/* A growing sum in exact arithmetic, and the running error bound of the rounded sum (section 2). */
typedef struct bound_chain {
    double value, error;
} bound_chain;

static inline void bound_chain_add(bound_chain *r, double product, double product_error,
                                   const bound_arith *a)
{
    if (!a->fused) product_error += a->u * (fabs(product) + product_error) + a->tiny;
    r->value += product;
    r->error += product_error;
    r->error += a->u * (fabs(r->value) + r->error) + a->tiny;
}

/* The bound of |library - ref_linear()|; x_error (f64, shape of x) may be NULL. */
double bound_linear(const mha_tensor *x, const mha_tensor *x_error, const mha_tensor *weight,
                    const mha_tensor *bias, bool fused, int64_t m, int64_t n);

/* The bound of |library - ref_gelu(x)| if the library's x has an error of at most x_error. */
double bound_gelu(double x, double x_error);

/* The bounds of |library - ref_layer_norm()| for the whole row m; y is the reference's. */
void bound_layer_norm(const mha_tensor *x, const mha_tensor *residual, const mha_tensor *weight,
                      const mha_tensor *bias, double epsilon, int64_t m, const double *y,
                      double *bound);

#endif
