#include "reference/bounds.h"

#include <math.h>
#include <stdlib.h>

static bool default_scale(const ref_attention *a)
{
    return a->desc->scale == 0 && !(a->desc->flags & MHA_ATTENTION_SCALE_GIVEN);
}

static bound_arith tiled(const ref_attention *a, mha_isa isa)
{
    const double u = 0x1p-24;
    return (bound_arith){.u = u,
                         .tiny = 0x1p-150,
                         .exponential = 3.5 * u,
                         .scale = default_scale(a) ? 2 * u : u, /* 1/sqrt(D), then times log2 e */
                         .flush = -126,
                         .key_block = 512,
                         .sum_depth = 31 + 4, /* 16 lanes of 32 keys, then a tree */
                         .fused = isa != MHA_ISA_PORTABLE,
                         .out_u = u,
                         .out_tiny = 0x1p-150};
}

bound_arith bound_arith_bf16(const ref_attention *a, mha_isa isa)
{
    bound_arith arith = tiled(a, isa);
    arith.weight = 0x1p-8;
    arith.pairs = true;
    return arith;
}

static bound_arith plain(const ref_attention *a)
{
    /* Twice the error of double arithmetic, for the library and for the reference. */
    const double u = 0x1p-52;
    return (bound_arith){.u = u,
                         .tiny = 0x1p-1000,
                         .exponential = 2 * u,
                         .scale = default_scale(a) ? 0x1p-24 : u, /* 1/sqrt(D) rounded to f32 */
                         .flush = -1000,
                         .key_block = INT64_MAX / 2,
                         .sum_depth = INFINITY,
                         .fused = false,
                         .out_u = 0x1p-24,
                         .out_tiny = 0x1p-150};
}

bound_arith bound_arith_of(const ref_attention *a, mha_path path, mha_isa isa)
{
    const bool wide =
        a->q->shape[3] > MHA_TILED_MAX_HEAD_DIM || a->v->shape[3] > MHA_TILED_MAX_HEAD_DIM;
    return path == MHA_PATH_PLAIN || wide ? plain(a) : tiled(a, isa);
}

bound_row bound_row_make(int64_t keys, int64_t value_dim)
{
    return (bound_row){.p = ref_doubles(keys), .o = ref_doubles(value_dim)};
}

void bound_row_free(bound_row *bound)
{
    free(bound->p);
    free(bound->o);
    *bound = (bound_row){0};
}

double bound_linear(const mha_tensor *x, const mha_tensor *x_error, const mha_tensor *weight,
                    const mha_tensor *bias, bool fused, int64_t m, int64_t n)
{
    const bound_arith r = {.u = 0x1p-24, .tiny = 0x1p-150, .fused = fused};
    bound_chain total = {bias ? ref_element(bias, &n) : 0, 0};
    for (int64_t from = 0; from < x->shape[1]; from += 128) {
        int64_t to = from + 128 < x->shape[1] ? from + 128 : x->shape[1];
        bound_chain block = {0, 0};
        for (int64_t k = from; k < to; k++) {
            double w = ref_element(weight, (int64_t[]){n, k});
            double wrong = x_error ? fabs(w) * ref_element(x_error, (int64_t[]){m, k}) : 0;
            bound_chain_add(&block, ref_element(x, (int64_t[]){m, k}) * w, wrong, &r);
        }
        total.value += block.value;
        total.error += block.error;
        total.error += r.u * (fabs(total.value) + total.error);
    }
    return total.error * bound_slack;
}

double bound_gelu(double x, double x_error)
{
    /* The slope of x Phi(x) is at most 1.129 (section 6). */
    return 1.13 * x_error + 5 * 0x1p-24 * (fabs(x) + x_error) + 0x1p-149;
}

void bound_layer_norm(const mha_tensor *x, const mha_tensor *residual, const mha_tensor *weight,
                      const mha_tensor *bias, double epsilon, int64_t m, const double *y,
                      double *bound)
{
    const double u = 0x1p-24;
    int64_t n = x->shape[1];
    double mean = 0, size = 0, squares = 0, variance = 0;
    double *z = ref_doubles(n);
    for (int64_t i = 0; i < n; i++) {
        z[i] = ref_element(x, (int64_t[]){m, i});
        if (residual) z[i] += ref_element(residual, (int64_t[]){m, i});
        mean += z[i] / (double)n;
        size += fabs(z[i]) / (double)n;
        squares += z[i] * z[i] / (double)n;
    }
    for (int64_t i = 0; i < n; i++) variance += (z[i] - mean) * (z[i] - mean) / (double)n;
    double sigma = sqrt(variance + epsilon);
    double wrong = residual ? u : 0;        /* relative error of each z */
    double own = (double)(n + 8) * 0x1p-52; /* error of both sums in double */
    double moved = (wrong + own) * sqrt(squares) + (residual ? 0x1p-150 : 0);
    for (int64_t i = 0; i < n; i++) {
        double w = fabs(ref_element(weight, &i)), c = fabs(z[i] - mean);
        double centred = (wrong + own) * (fabs(z[i]) + size) + (residual ? 0x1p-149 : 0);
        double scaled = sigma > 2 * moved
                            ? w / (sigma - moved) * (centred + c * (moved / sigma + own))
                            : INFINITY;
        double added = own * (w * c / sigma + fabs(ref_element(bias, &i)));
        bound[i] = (scaled + added) * (1 + u) + u * fabs(y[i]) + 0x1p-150;
    }
    free(z);
}
