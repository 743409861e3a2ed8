/* Elementary functions on vectors. The operations and their order are the same on every instruction
 * set, so results are bit-identical wherever vf_fma rounds once. The coefficients are minimax fits
 * for this library, rounded to f32. The stated errors are the errors of the rounded polynomials. */

/* 2^x for x <= 127. 0 below -126, because FMAs on subnormals stall. NaN remains NaN. The relative
 * error is 1.09e-7 for the polynomial, and below 3.5 u for the result (u = 2^-24). exp2(0) is
 * exactly 1, so that an empty key block can be skipped. */
static const float exp2_terms[] = {0x1.3cea88p-7f, 0x1.c6b752p-5f, 0x1.ebf9bcp-3f, 0x1.62e42ap-1f,
                                   1.0f};

/* Vectors to interleave. A single vector is a chain of 40 cycles, too long for out-of-order
 * execution to overlap with the next vectors. */
enum { EXP2_VECTORS = LANES16 > 1 ? LANES16 : 2 };
ALWAYS_INLINE void exp2_vectors(int count, vf x[])
{
    vf r[EXP2_VECTORS], p[EXP2_VECTORS];
    vn n[EXP2_VECTORS];
    UNROLL for (int i = 0; i < count; i++) n[i] = vf_nearest(x[i]);
    UNROLL for (int i = 0; i < count; i++) r[i] = vf_sub(x[i], vf_whole(n[i])); /* exact */
    UNROLL for (int i = 0; i < count; i++) p[i] = vf_set1(0x1.5bba14p-10f);
    UNROLL for (int term = 0; term < 5; term++) UNROLL for (int i = 0; i < count; i++) p[i] =
        vf_fma(p[i], r[i], vf_set1(exp2_terms[term]));
    UNROLL for (int i = 0; i < count; i++) x[i] =
        vf_zero_below(x[i], vf_set1(-126.0f), vf_times_power(p[i], n[i]));
}

ALWAYS_INLINE vf vf_exp2(vf x)
{
    exp2_vectors(1, &x);
    return x;
}

/* tanh(x). For |x| < 5/8, an odd polynomial (relative error 8.6e-9); otherwise (1 - e) / (1 + e)
 * with e = exp(-2 |x|), where cancellation is small. */
static inline vf vf_tanh(vf x)
{
    const vf one = vf_set1(1.0f);
    vf size = vf_abs(x), x2 = vf_mul(x, x);
    vf p = vf_set1(-0.00570498733f);
    p = vf_fma(p, x2, vf_set1(0.020639088f));
    p = vf_fma(p, x2, vf_set1(-0.0537397154f));
    p = vf_fma(p, x2, vf_set1(0.133314416f));
    p = vf_fma(p, x2, vf_set1(-0.333332807f));
    vf small = vf_fma(vf_mul(p, x2), x, x);
    vf e = vf_exp2(vf_mul(size, vf_set1(-0x1.715476p+1f))); /* -2 log2 e */
    vf large = vf_div(vf_sub(one, e), vf_add(one, e));
    large = vf_where_below(x, vf_zero(), vf_sub(vf_zero(), large), large);
    return vf_where_below(size, vf_set1(0.625f), small, large);
}

static inline float scalar_exp2(float x)
{
    float lanes[VF_LANES];
    vf_store(lanes, vf_exp2(vf_set1(x)));
    return lanes[0];
}

/* erfc(z) for z >= 1, as 2^(-z Q(z)). The fit has an absolute error of 4.2e-9. */
static inline vf erfc_tail(vf z)
{
    vf q = vf_set1(1.81477099e-05f);
    q = vf_fma(q, z, vf_set1(-0.000485233788f));
    q = vf_fma(q, z, vf_set1(0.00533463666f));
    q = vf_fma(q, z, vf_set1(-0.0344505869f));
    q = vf_fma(q, z, vf_set1(0.15346466f));
    q = vf_fma(q, z, vf_set1(0.916209877f));
    q = vf_fma(q, z, vf_set1(1.62832522f));
    return vf_exp2(vf_mul(vf_sub(vf_zero(), z), q));
}

/* erf(z) / z for |z| < 1, a polynomial in z^2. Relative error 5.4e-8. */
static inline vf erf_ratio(vf z2)
{
    vf p = vf_set1(-0.000563142123f);
    p = vf_fma(p, z2, vf_set1(0.0049175513f));
    p = vf_fma(p, z2, vf_set1(-0.0267113112f));
    p = vf_fma(p, z2, vf_set1(0.112801798f));
    p = vf_fma(p, z2, vf_set1(-0.37612325f));
    return vf_fma(p, z2, vf_set1(1.12837911f));
}

/* Phi(x) = erfc(-x / sqrt 2) / 2, the normal distribution. Both sides use the tail formula, so
 * there is no cancellation for x < 0. The fit is valid for |z| <= 4.2; above, erfc is below
 * 3e-9. */
static inline vf vf_normal(vf x)
{
    const vf one = vf_set1(1.0f), half = vf_set1(0.5f);
    vf z = vf_mul(vf_abs(x), vf_set1(0x1.6a09e6p-1f));
    vf erf_small = vf_mul(z, erf_ratio(vf_mul(z, z)));
    vf capped = vf_where_below(z, vf_set1(4.2f), z, vf_set1(4.2f));
    vf tail = vf_where_below(z, vf_set1(4.2f), erfc_tail(capped), vf_zero());
    vf erfc = vf_where_below(z, one, vf_sub(one, erf_small), tail);
    vf phi_negative = vf_mul(half, erfc); /* Phi(-|x|) */
    return vf_where_below(x, vf_zero(), phi_negative, vf_sub(one, phi_negative));
}

/* 1 / (1 + exp(-x)), computed from e = exp(-|x|), which cannot overflow. 0 below -87.3. */
static inline vf vf_sigmoid(vf x)
{
    const vf one = vf_set1(1.0f);
    vf e = vf_exp2(vf_mul(vf_abs(x), vf_set1(-0x1.715476p+0f)));
    return vf_div(vf_where_below(x, vf_zero(), e, one), vf_add(one, e));
}
