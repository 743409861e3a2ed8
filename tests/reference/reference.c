#include "reference/reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

double *ref_doubles(int64_t count)
{
    double *memory = calloc((size_t)(count > 0 ? count : 1), sizeof *memory);
    if (memory) return memory;
    fprintf(stderr, "reference: no memory\n");
    abort();
}

double ref_element(const mha_tensor *x, const int64_t *index)
{
    int64_t offset = 0;
    for (int i = 0; i < x->ndim; i++) offset += index[i] * x->stride[i];
    switch (x->dtype) {
    case MHA_F32: return (double)((const float *)x->data)[offset];
    case MHA_F64: return ((const double *)x->data)[offset];
    case MHA_U8: return (double)((const uint8_t *)x->data)[offset];
    default: return NAN;
    }
}

double ref_scale(const mha_attention_desc *desc, int64_t head_dim)
{
    bool given = desc && (desc->scale != 0 || (desc->flags & MHA_ATTENTION_SCALE_GIVEN));
    return given ? (double)desc->scale : 1 / sqrt((double)head_dim);
}

double ref_linear(const mha_tensor *x, const mha_tensor *weight, const mha_tensor *bias, int64_t m,
                  int64_t n)
{
    double sum = bias ? ref_element(bias, &n) : 0;
    for (int64_t k = 0; k < x->shape[1]; k++)
        sum += ref_element(x, (int64_t[]){m, k}) * ref_element(weight, (int64_t[]){n, k});
    return sum;
}

void ref_layer_norm(const mha_tensor *x, const mha_tensor *residual, const mha_tensor *weight,
                    const mha_tensor *bias, double epsilon, int64_t m, double *y)
{
    int64_t n = x->shape[1];
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < n; i++) {
        y[i] = ref_element(x, (int64_t[]){m, i});
        if (residual) y[i] += ref_element(residual, (int64_t[]){m, i});
        mean += y[i] / (double)n;
    }
    for (int64_t i = 0; i < n; i++) variance += (y[i] - mean) * (y[i] - mean) / (double)n;
    for (int64_t i = 0; i < n; i++)
        y[i] = (y[i] - mean) / sqrt(variance + epsilon) * ref_element(weight, &i) +
               ref_element(bias, &i);
}

double ref_gelu(double x)
{
    return 0.5 * x * erfc(-x * 0.70710678118654752440);
}
