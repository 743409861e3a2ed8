/* elu(x) + 1. The code has no branches, so that the compiler vectorises it. It uses no fma, so that
 * the result is bit-identical on all machines.
 *
 *   exp(x) = 2^n e^r    n = round(x log2 e), r = x - n ln 2, |r| <= 0.3466
 *
 * e^r is computed by its Taylor series up to r^7. The remainder is below r^8 / 8! e^|r|, a relative
 * error of 0.13 u. ln 2 is split into two parts. The first has 9 bits, so that its product with n
 * and the difference from x are exact; r has an error of at most 0.3 u. The sums add 0.75 u and the
 * last addition adds 1 u, which gives 2.2 u in total. Scaling by 2^n is exact if the result is
 * normal, which the bound of -87 ensures. */
#include "attention/feature_map.h"

#include <string.h>

/* x <= 0. Numbers below -87 are replaced by -87. The result for NaN is unspecified. */
static inline float exp_of(float x)
{
    const float round_to_int = 12582912.0f; /* 1.5 * 2^23: the unit in the last place is 1 */
    const float ln2_first = 0.693359375f, ln2_rest = -2.12194440e-4f;
    x = x > -87.0f ? x : -87.0f;
    float shifted = x * 1.44269504f + round_to_int;
    float n = shifted - round_to_int;
    float r = (x - n * ln2_first) - n * ln2_rest;
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = 1.0f + (r + r * r * p);
    uint32_t bits, power;
    memcpy(&bits, &p, sizeof bits);
    memcpy(&power, &shifted, sizeof power);
    bits += power << 23; /* n is in the low bits of shifted */
    memcpy(&p, &bits, sizeof p);
    return p;
}

void mhai_feature_map_elu(void *user, const float *rows, int64_t count, int64_t head_dim,
                          float *features, int64_t feature_dim)
{
    (void)user;
    (void)feature_dim;
    for (int64_t i = 0; i < count * head_dim; i++) {
        float x = rows[i], below = exp_of(x < 0.0f ? x : 0.0f), above = x + 1.0f;
        float not_finite = x - x; /* 0, or NaN */
        features[i] = (x > 0.0f ? above : below) + not_finite;
    }
}
