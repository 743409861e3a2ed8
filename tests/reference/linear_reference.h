/* The formulas of multihead/linear_attention.h in double precision, with error bounds of the library.
 *
 * A row is a mean of values with weights phi(q) . phi(k), summed over single keys without the
 * library's running state. Only the bound follows the library's order of rounding.
 */
#ifndef TEST_LINEAR_REFERENCE_H
#define TEST_LINEAR_REFERENCE_H

#include <multihead/linear_attention.h>

/* One row of features, in double. */
typedef void (*linref_map)(const double *x, int64_t head_dim, double *features,
                           int64_t feature_dim);

/* A call. Masks, offsets, lengths, ragged starts and the state before are read from desc. */
typedef struct linref {
    const mha_linear_attention_desc *desc;
    const mha_tensor *q, *k, *v;
    linref_map map;   /* elu + 1 if NULL */
    double map_error; /* relative error of a feature of the library's map */
    int64_t features; /* F */
} linref;

/* Query t of sequence b sees keys 0 .. result-1. */
int64_t linref_visible(const linref *a, int64_t b, int64_t t);

/* Row [b,h,t] of o, and bounds of its Dv elements. */
void linref_row(const linref *a, int64_t b, int64_t h, int64_t t, double *o, double *bound);

/* The state after all keys of [b,hk]: s [F,Dv], z [F], with bounds. */
void linref_state(const linref *a, int64_t b, int64_t hk, double *s, double *s_bound, double *z,
                  double *z_bound);

#endif
