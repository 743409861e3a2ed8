/* Elementary functions (math.h).
 *
 * exp uses Tang's tables (ACM TOMS 15, 1989). log uses a table of logarithms of short numbers,
 * as Tang's does (ACM TOMS 16, 1990), with a reduced argument in two parts. sin and cos use
 * the reduction of Cody and Waite (1980), and for large arguments the reduction of Payne and Hanek
 * (SIGNUM 18, 1983). Double-double operations are from Dekker (1971) and Knuth, and exact unless an
 * error is stated. */
#include "base/math.h"

#include "base/math_tables.h"

#include <multihead/component.h>

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

_Static_assert(FLT_EVAL_METHOD == 0, "double arithmetic must be that of double");

typedef mhai_two two;

/* Requires |a| >= |b| or a = 0. */
static inline two two_sum(double a, double b)
{
    const double sum = a + b;
    return (two){sum, a - sum + b};
}

static inline two two_product(double a, double b)
{
    const double split = 0x1p27 + 1, ac = split * a, bc = split * b;
    const double a1 = ac - (ac - a), b1 = bc - (bc - b), a2 = a - a1, b2 = b - b1, product = a * b;
    return (two){product, a1 * b1 - product + a1 * b2 + a2 * b1 + a2 * b2};
}

/* Relative error about 2^-102. */
static two multiply(two a, two b)
{
    const two product = two_product(a.high, b.high);
    return two_sum(product.high, product.low + (a.high * b.low + a.low * b.high));
}

static uint64_t bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static double from_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Adding this constant rounds numbers below 2^51 to integers, in the low bits of the sum. */
static const double shift = 0x1.8p52;

/* p[0] + p[1] x + ... The number of terms is odd and at least 3. Even and odd powers form separate
 * chains, which halves the latency. */
static inline double polynomial(const double *p, int terms, double x)
{
    const double square = x * x;
    double even = p[terms - 1], odd = p[terms - 2];
    for (int i = terms - 3; i > 0; i -= 2) {
        even = even * square + p[i];
        odd = odd * square + p[i - 1];
    }
    return even * square + p[0] + x * odd;
}

/* ---- exp ------------------------------------------------------------------------------------- */

/* 2^n (high + low), with a relative error of 2^-58. */
typedef struct power {
    two value; /* from 0.98 to 2 */
    int64_t n;
} power;

/* 2^(k / 32) e^r for |r| < 0.0109, where shifted = k + shift. */
static inline power table_times(double shifted, double r)
{
    const int64_t k = (int64_t)(bits_of(shifted) - bits_of(shift));
    const double *row = exp_table[k & 31];
    const double more = r + r * r * polynomial(exp_terms, 5, r);
    return (power){{row[0], row[1] + row[0] * more}, (k - (k & 31)) / 32};
}

/* e^(x + low) for |x| < 1100, |low| < 2^-40. */
static inline power exp_of(double x, double low)
{
    const double shifted = x * EXP_PER_LN2 + shift, k = shifted - shift;
    /* k < 2^16, so its product with a 37-bit number is exact */
    return table_times(shifted, x - k * LN2_32_HIGH - (k * LN2_32_LOW - low));
}

/* 2^n, -1022 <= n <= 1023 */
static inline double power_of_2(int64_t n)
{
    return from_bits((uint64_t)(1023 + n) << 52);
}

static inline double finish(power p)
{
    const double y = p.value.high + p.value.low;
    if (p.n < -1021 || p.n > 1022) return ldexp(y, (int)p.n);
    return y * power_of_2(p.n);
}

double mhai_exp(double x)
{
    if (!(fabs(x) < 800)) return x > 0 ? x * INFINITY : x < 0 ? 0 : x;
    return finish(exp_of(x, 0));
}

double mhai_exp2(double x)
{
    if (!(fabs(x) < 1100)) return x > 0 ? x * INFINITY : x < 0 ? 0 : x;
    const double shifted = x * 32 + shift;
    return finish(table_times(shifted, (x - (shifted - shift) * 0x1p-5) * LN2));
}

/* ---- log ------------------------------------------------------------------------------------- */

/* log x for finite x > 0, not normalised. high is a multiple of 2^-43, so sums of high parts are
 * exact below 2^10. low has an error of at most 2^-62 of the result. */
static inline two log_parts(double x)
{
    int n = 0;
    uint64_t bits = bits_of(x);
    if (bits >> 52 == 0) bits = bits_of(x * 0x1p54), n = -54;
    /* x = 2^n z with z >= 45.5 / 64. j / 64 is the nearest to z, with j from 45 or 46 to 91. */
    const uint64_t least = 0x3FE6C00000000000u;
    const uint64_t over = bits - least;
    n += (int)((int64_t)over >> 52);
    const double z = from_bits((over & 0xFFFFFFFFFFFFFu) + least);
    const double shifted = z * 64 + shift, near = shifted - shift,
                 f = z - near * 0x1p-6; /* exact */
    const double *row = log_table[(bits_of(shifted) & 127) - LOG_FIRST];
    /* r = f 64 / j in two parts. The remainder is exact, because r_high j has 44 bits. */
    const double r = f * row[0], r_high = r + 0x1.8p9 - 0x1.8p9;
    const double r_low = (f - r_high * (near * 0x1p-6)) * row[0];
    return (two){n * LN2_HIGH + row[1] + r_high,
                 row[2] + n * LN2_LOW + (r_low + r * r * polynomial(log_terms, 7, r))};
}

/* log of x that is not positive and finite. */
static double log_special(double x)
{
    return x == 0 ? -INFINITY : x > 0 ? x : x < 0 ? NAN : x;
}

static bool is_ordinary(double x)
{
    return x > 0 && x <= DBL_MAX;
}

double mhai_log(double x)
{
    if (!is_ordinary(x)) return log_special(x);
    const two y = log_parts(x);
    return y.high + y.low;
}

double mhai_log1p(double x)
{
    if (!(x > -1 && x <= DBL_MAX)) return x == -1 ? -INFINITY : x < -1 ? NAN : x;
    if (fabs(x) < 0x1p-27) return x - x * x * (0.5 - x / 3); /* the next term is x^4 / 4 */
    const two sum = fabs(x) < 1 ? two_sum(1, x) : two_sum(x, 1);
    const two y = log_parts(sum.high);
    return y.high + (y.low + sum.low / sum.high);
}

mhai_two mhai_log_two(double x)
{
    const two y = log_parts(x);
    return two_sum(y.high, y.low);
}

double mhai_power(mhai_two log_x, double y)
{
    const two product = two_product(log_x.high, y);
    return finish(exp_of(product.high, product.low + log_x.low * y));
}

/* ---- tanh ------------------------------------------------------------------------------------ */

/* (E - 1) / (E + 1) with E = e^2|x|. Both are in two parts, and the quotient is
 * corrected by its remainder. */
double mhai_tanh(double x)
{
    const double size = fabs(x);
    if (isnan(x)) return x;
    if (size < 0.125) return copysign(size + size * (x * x * polynomial(tanh_terms, 7, x * x)), x);
    if (size >= 20) return copysign(1, x); /* 1 - 2^-56 */
    const power p = exp_of(2 * size, 0);
    const double scale = power_of_2(p.n);
    const two e = two_sum(p.value.high * scale, p.value.low * scale);
    const two above = two_sum(e.high, -1), below = two_sum(e.high, 1);
    const double quotient = above.high / below.high;
    const two product = two_product(quotient, below.high);
    const double rest = above.high - product.high - product.low +
                        (above.low + e.low - quotient * (below.low + e.low));
    return copysign(quotient + rest / below.high, x);
}

/* ---- sin, cos -------------------------------------------------------------------------------- */

/* sin(x.high + x.low) for |x| up to slightly above pi / 4. */
static double small_sin(two x)
{
    const double z = x.high * x.high;
    return x.high + (x.high * z * polynomial(sin_terms, 7, z) + x.low * (1 - z / 2));
}

static double small_cos(two x)
{
    const double z = x.high * x.high, half = z / 2, most = 1 - half;
    return most + (1 - most - half + (z * z * polynomial(cos_terms, 7, z) - x.high * x.low));
}

/* x = n pi / 2 + the result, for |x| < 2^20 (Cody and Waite). The products of n and 33-bit numbers
 * and the first difference are exact. The last part has a rounding error below 2^-130. */
static two reduce(double x, uint32_t *n)
{
    const double shifted = x * PER_HALF_PI + shift, k = shifted - shift;
    *n = (uint32_t)bits_of(shifted);
    const double first = x - k * HALF_PI_1, b = -k * HALF_PI_2, c = -k * HALF_PI_3;
    const double s = first + b, sb = s - first, s_low = first - (s - sb) + (b - sb);
    const double t = s + c, tc = t - s, t_low = s - (t - tc) + (c - tc);
    return two_sum(t, s_low + t_low - k * HALF_PI_4);
}

/* Return the high word of a product, and store the low word. */
static uint64_t wide_product(uint64_t a, uint64_t b, uint64_t *low)
{
    const uint64_t a1 = a >> 32, a0 = a & UINT32_MAX, b1 = b >> 32, b0 = b & UINT32_MAX;
    const uint64_t middle = a1 * b0 + (a0 * b0 >> 32), other = a0 * b1 + (middle & UINT32_MAX);
    *low = a * b;
    return a1 * b1 + (middle >> 32) + (other >> 32);
}

/* 64 bits of two_over_pi, starting at bit `from`. */
static uint64_t some_bits(int from)
{
    const uint64_t *word = two_over_pi + from / 64;
    return from % 64 ? word[0] << from % 64 | word[1] >> (64 - from % 64) : word[0];
}

/* The same for 2^20 <= x < 2^1024 (Payne and Hanek). For x = m 2^e, skip the bits of 2 / pi
 * that contribute multiples of 4. The next 192 bits suffice, because no x is within 2^-62
 * of a multiple of pi / 2. */
static two reduce_large(double x, uint32_t *n)
{
    const uint64_t bits = bits_of(x), m = (bits & 0xFFFFFFFFFFFFFu) | UINT64_C(1) << 52;
    const int e = (int)(bits >> 52) - 1075, from = 64 + e - 2;
    uint64_t word[3], low, high;
    high = wide_product(m, some_bits(from + 128), &word[0]);
    const uint64_t carry = wide_product(m, some_bits(from + 64), &low);
    word[1] = low + high;
    word[2] = m * some_bits(from) + carry + (word[1] < low);
    *n = (uint32_t)(word[2] >> 62);
    /* the fraction of a quarter turn, 52 bits at a time */
    double a = (double)(word[2] >> 10 & 0xFFFFFFFFFFFFFu) * 0x1p-52;
    const double b = (double)((word[2] & 0x3FF) << 42 | word[1] >> 22) * 0x1p-104;
    const double c = (double)((word[1] & 0x3FFFFF) << 30 | word[0] >> 34) * 0x1p-156;
    if (a >= 0.5) a -= 1, ++*n;
    const two ab = two_sum(a, b);
    return multiply(two_sum(ab.high, ab.low + c), (two){HALF_PI_HIGH, HALF_PI_LOW});
}

void mhai_sin_cos(double x, double *sine, double *cosine)
{
    const double size = fabs(x);
    uint32_t n = 0;
    if (!(size <= DBL_MAX)) {
        *sine = *cosine = x - x;
        return;
    }
    two part = {size, 0};
    if (size > 0.7853) part = size < 0x1p20 ? reduce(size, &n) : reduce_large(size, &n);
    const double s = small_sin(part), c = small_cos(part);
    const double a = n & 1 ? c : s, b = n & 1 ? s : c;
    const bool minus = (n & 2) != 0;
    *sine = copysign(1, x) * (minus ? -a : a);
    *cosine = minus != ((n & 1) != 0) ? -b : b;
}

double mhai_cos_turns(double x)
{
    const double part = fabs(x - (x + shift - shift)),
                 turn = 4 * HALF_PI_HIGH; /* 2 pi; the product is exact */
    if (part > 0.375) return -small_cos((two){(0.5 - part) * turn, 0});
    if (part > 0.125) return small_sin((two){(0.25 - part) * turn, 0});
    return small_cos((two){part * turn, 0});
}

/* ---- public functions ------------------------------------------------------------------------ */

double mha_exp(double x)
{
    return mhai_exp(x);
}

double mha_log(double x)
{
    return mhai_log(x);
}

double mha_cos_turns(double x)
{
    return mhai_cos_turns(x);
}
