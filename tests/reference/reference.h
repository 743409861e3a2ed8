/* The formulas of the public headers in double precision, by simple loops: an independent
 * reference. It neither calls the library nor shares code with it. It uses only the library's
 * structs for tensors and masks, so that both have the same description of a problem. Inputs must
 * be finite if the formula reads them. */
#ifndef TEST_REFERENCE_H
#define TEST_REFERENCE_H

#include <multihead/attention.h>

/* The inputs of an attention call: f32 or f64 tensors of multihead/attention.h. */
typedef struct ref_attention {
    const mha_attention_desc *desc;
    const mha_tensor *q, *k, *v;
    /* Error bounds of the inputs, f64, in the shapes of q, k and v, or NULL for exact inputs. Only
     * the bounds use them. */
    const mha_tensor *q_error, *k_error, *v_error;
} ref_attention;

/* Zeros; stops the process if there is no memory. */
double *ref_doubles(int64_t count);

/* An element of an f32, f64 or u8 tensor with the given ndim. */
double ref_element(const mha_tensor *x, const int64_t *index);

/* The descriptor's scale. */
double ref_scale(const mha_attention_desc *desc, int64_t head_dim);

/* sum_k x[m,k] weight[n,k] + bias[n]; bias may be NULL. */
double ref_linear(const mha_tensor *x, const mha_tensor *weight, const mha_tensor *bias, int64_t m,
                  int64_t n);

/* Row m of layer norm: n values into y. residual may be NULL. */
void ref_layer_norm(const mha_tensor *x, const mha_tensor *residual, const mha_tensor *weight,
                    const mha_tensor *bias, double epsilon, int64_t m, double *y);

double ref_gelu(double x); /* x Phi(x) */

#endif
