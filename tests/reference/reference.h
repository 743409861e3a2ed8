/* The formulas of the public headers in double precision, by plain loops: an independent reference.
 *
 * Neither calls the library nor shares code with it. Only its structs for tensors and masks are used, so that both
 * sides get the same description of a problem. Inputs must be finite wherever the formula reads them. */
#ifndef TEST_REFERENCE_H
#define TEST_REFERENCE_H

#include <multihead/attention.h>

/* The inputs of an attention call: f32 or f64 tensors as in multihead/attention.h. */
typedef struct ref_attention {
    const mha_attention_desc *desc; /* NULL: all defaults */
    const mha_tensor *q, *k, *v;
    /* Error bounds of the inputs, f64, shapes as q, k, v; NULL: exact. Used by the bounds only. */
    const mha_tensor *q_error, *k_error, *v_error;
} ref_attention;

/* One query row of the result. score is in natural units, -inf where the query does not see s. */
typedef struct ref_row {
    int64_t keys, value_dim, visible; /* S, Dv, number of keys that the query sees */
    double *score, *p;                /* [S] */
    double *o;                        /* [Dv] */
    double lse;
} ref_row;

/* Memory for rows of the given sizes; stops the process if there is none. */
ref_row ref_row_make(int64_t keys, int64_t value_dim);
void ref_row_free(ref_row *row);

/* Element of an f32, f64 or u8 tensor with the given ndim. */
double ref_element(const mha_tensor *x, const int64_t *index);

/* An element of a tensor that broadcasts to [B,H,T,S]. */
double ref_broadcast(const mha_tensor *x, int64_t b, int64_t h, int64_t t, int64_t s);

/* The descriptor's scale. */
double ref_scale(const mha_attention_desc *desc, int64_t head_dim);

/* True if query t of head h in sequence b sees key s. */
bool ref_sees(const ref_attention *a, int64_t b, int64_t h, int64_t t, int64_t s);

/* The row of query t of head h in sequence b. */
void ref_attention_row(const ref_attention *a, int64_t b, int64_t h, int64_t t, ref_row *row);

/* sum_k x[m,k] weight[n,k] + bias[n]; bias may be NULL. */
double ref_linear(const mha_tensor *x, const mha_tensor *weight, const mha_tensor *bias, int64_t m,
                  int64_t n);

/* Row m of layer norm: n values into y. residual may be NULL. */
void ref_layer_norm(const mha_tensor *x, const mha_tensor *residual, const mha_tensor *weight,
                    const mha_tensor *bias, double epsilon, int64_t m, double *y);

double ref_gelu(double x); /* x Phi(x) */

#endif
