/* The formulas of the public headers in double precision, by simple loops: an independent
 * reference. It neither calls the library nor shares code with it. It uses only the library's
 * structs for tensors and masks, so that both have the same description of a problem. Inputs must
 * be finite if the formula reads them. */
#ifndef TEST_REFERENCE_H
#define TEST_REFERENCE_H

#include <multihead/attention.h>

/* The inputs of an attention call: f32 or f64 tensors of multihead/attention.h. */
typedef struct ref_attention {
    const mha_attention_desc *desc; /* all defaults if NULL */
    const mha_tensor *q, *k, *v;
    /* Error bounds of the inputs, f64, in the shapes of q, k and v, or NULL for exact inputs. Only
     * the bounds use them. */
    const mha_tensor *q_error, *k_error, *v_error;
} ref_attention;

/* One query row of the result. score is in natural units, and -inf if the query does not see s. */
typedef struct ref_row {
    int64_t keys, value_dim, visible; /* S, Dv, number of keys that the query sees */
    double *score, *p;                /* [S] */
    double *o;                        /* [Dv] */
    double lse;
} ref_row;

/* Allocates memory for rows of the given sizes, and stops the process on failure. */
ref_row ref_row_make(int64_t keys, int64_t value_dim);
void ref_row_free(ref_row *row);

/* An element of an f32, f64 or u8 tensor with the given ndim. */
double ref_element(const mha_tensor *x, const int64_t *index);

/* An element of a tensor that broadcasts to [B,H,T,S]. */
double ref_broadcast(const mha_tensor *x, int64_t b, int64_t h, int64_t t, int64_t s);

/* The descriptor's scale. */
double ref_scale(const mha_attention_desc *desc, int64_t head_dim);

/* Whether query t of head h in sequence b sees key s. */
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
