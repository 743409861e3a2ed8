#include "reference/reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static double *doubles(int64_t count)
{
    double *memory = malloc((size_t)(count > 0 ? count : 1) * sizeof *memory);
    if (memory) return memory;
    fprintf(stderr, "reference: no memory\n");
    abort();
}

ref_row ref_row_make(int64_t keys, int64_t value_dim)
{
    return (ref_row){.keys = keys,
                     .value_dim = value_dim,
                     .score = doubles(keys),
                     .p = doubles(keys),
                     .o = doubles(value_dim)};
}

void ref_row_free(ref_row *row)
{
    free(row->score);
    free(row->p);
    free(row->o);
    *row = (ref_row){0};
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

double ref_broadcast(const mha_tensor *x, int64_t b, int64_t h, int64_t t, int64_t s)
{
    const int64_t full[4] = {b, h, t, s};
    int64_t index[MHA_MAX_DIMS] = {0};
    for (int i = 0; i < x->ndim; i++) /* axes are aligned at the right */
        index[i] = x->shape[i] == 1 ? 0 : full[4 - x->ndim + i];
    return ref_element(x, index);
}

double ref_scale(const mha_attention_desc *desc, int64_t head_dim)
{
    bool given = desc && (desc->scale != 0 || (desc->flags & MHA_ATTENTION_SCALE_GIVEN));
    return given ? (double)desc->scale : 1 / sqrt((double)head_dim);
}

bool ref_sees(const ref_attention *a, int64_t b, int64_t h, int64_t t, int64_t s)
{
    const mha_attention_desc *desc = a->desc;
    if (!desc) return true;
    if (desc->flags & MHA_ATTENTION_CAUSAL) {
        int64_t offset = desc->q_offsets ? desc->q_offsets[b] : desc->q_offset;
        if (s - t > offset) return false;
    }
    if (desc->key_lengths && s >= desc->key_lengths[b]) return false;
    if (desc->keep_mask && ref_broadcast(desc->keep_mask, b, h, t, s) == 0) return false;
    return !(desc->bias && ref_broadcast(desc->bias, b, h, t, s) == -INFINITY);
}

static double score(const ref_attention *a, int64_t b, int64_t h, int64_t t, int64_t s)
{
    int64_t hk = h / (a->q->shape[1] / a->k->shape[1]);
    double dot = 0;
    for (int64_t d = 0; d < a->q->shape[3]; d++)
        dot += ref_element(a->q, (int64_t[]){b, h, t, d}) *
               ref_element(a->k, (int64_t[]){b, hk, s, d});
    double bias = a->desc && a->desc->bias ? ref_broadcast(a->desc->bias, b, h, t, s) : 0;
    return ref_scale(a->desc, a->q->shape[3]) * dot + bias;
}

void ref_attention_row(const ref_attention *a, int64_t b, int64_t h, int64_t t, ref_row *row)
{
    int64_t hk = h / (a->q->shape[1] / a->k->shape[1]);
    double max = -INFINITY, sum = 0;
    row->visible = 0;
    for (int64_t s = 0; s < row->keys; s++) {
        bool sees = ref_sees(a, b, h, t, s);
        row->visible += sees;
        row->score[s] = sees ? score(a, b, h, t, s) : -INFINITY;
        if (row->score[s] > max) max = row->score[s];
    }
    for (int64_t s = 0; s < row->keys; s++) {
        row->p[s] = row->score[s] == -INFINITY ? 0 : exp(row->score[s] - max);
        sum += row->p[s];
    }
    for (int64_t d = 0; d < row->value_dim; d++) row->o[d] = 0;
    for (int64_t s = 0; s < row->keys; s++) {
        if (row->score[s] == -INFINITY) continue; /* the value is not even read */
        row->p[s] /= sum;
        for (int64_t d = 0; d < row->value_dim; d++)
            row->o[d] += row->p[s] * ref_element(a->v, (int64_t[]){b, hk, s, d});
    }
    row->lse = row->visible ? max + log(sum) : -INFINITY;
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
