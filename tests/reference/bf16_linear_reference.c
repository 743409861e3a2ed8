#include "reference/bf16_linear_reference.h"

#include "reference/half_reference.h"

#include <math.h>
#include <stdbool.h>

enum { CHAIN = 128 };

static double rounded(float x)
{
    return fabsf(x) < 0x1p-50f ? 0 : half_value(MHA_BF16, half_nearest(MHA_BF16, (double)x));
}

static bool in_range(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(x[i]) < 0x1p59f)) return false;
    return true;
}

/* Sums inputs first .. end; in each pair, the second input precedes the first. */
static float chain_sum(const float *w, const float *x, int64_t first, int64_t end)
{
    float sum = 0;
    for (int64_t i = first; i < end; i++) {
        const int64_t other = (i - first) % 2 ? i - 1 : i + 1, k = other < end ? other : i;
        sum = fmaf((float)rounded(x[k]), (float)rounded(w[k]), sum);
    }
    return sum;
}

/* Sums inputs first .. end in steps of 32, each with a chain over its even inputs and one over its odd inputs. */
static float steps_sum(const float *w, const float *x, int64_t first, int64_t end)
{
    float sum = 0;
    for (int64_t i = first; i < end; i += 32) {
        float chain[2] = {0, 0};
        for (int64_t k = i; k < i + 32 && k < end; k++)
            chain[k % 2] = fmaf((float)rounded(x[k]), (float)rounded(w[k]), chain[k % 2]);
        const float step = chain[0] + chain[1];
        sum = sum + step;
    }
    return sum;
}

bf16_linear_output bf16_linear_reference(const float *w, const float *x, int64_t inputs, float bias,
                                         bf16_order order)
{
    const bool tiles = order == BF16_TILES;
    const int64_t block = tiles ? 256 : CHAIN;
    bf16_linear_output out = {.y = bias, .exact = (double)bias};
    double size = fabs((double)bias), lost = 0;
    if (!in_range(w, inputs) || !in_range(x, inputs))
        return (bf16_linear_output){.y = NAN, .exact = NAN};
    for (int64_t first = 0; first < inputs; first += block)
        out.y += (tiles ? steps_sum : chain_sum)(w, x, first,
                                                 first + block < inputs ? first + block : inputs);
    for (int64_t i = 0; i < inputs; i++) {
        const double a = (double)x[i], b = (double)w[i];
        out.exact += a * b;
        size += fabs(rounded(x[i]) * rounded(w[i]));
        lost += fabs(a - rounded(x[i])) * fabs(rounded(w[i])) + fabs(a) * fabs(b - rounded(w[i]));
    }
    const int64_t inside = tiles ? 24 : inputs < CHAIN ? inputs : CHAIN;
    const double roundings = (double)(inside + inputs / block + 2);
    out.bound = lost * (1 + 1e-9) + 1.001 * roundings * 0x1p-24 * size;
    return out;
}
