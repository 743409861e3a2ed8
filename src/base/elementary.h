/* Elementary functions in double from + - * / alone, so that what training computes does not depend
 * on the C library. Each is good to a few units in the last place over the range it is used on. */
#ifndef MHAI_ELEMENTARY_H
#define MHAI_ELEMENTARY_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* log x for finite x > 0 that is not subnormal: x = 2^e m with m in [0.7, 1.42),
 * log m = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.18: the first term left out is below
 * 2 s^25 / 25 < 2e-20. */
static inline double mhai_log(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int e = (int)(bits >> 52) - 1023;
    bits = (bits & 0xFFFFFFFFFFFFFu) | (UINT64_C(1023) << 52);
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m > 1.4142135623730951) {
        m /= 2;
        e++;
    }
    double s = (m - 1) / (m + 1), s2 = s * s, sum = 0;
    for (int k = 23; k >= 3; k -= 2) sum = (sum + 1.0 / k) * s2;
    return e * 0.6931471805599453 + 2 * (s + s * sum);
}

/* sin and cos of |x| <= pi / 4 by their series, to 1e-17. */
static inline double mhai_sin_small(double x)
{
    double x2 = x * x, sum = 0;
    for (int k = 19; k >= 3; k -= 2) sum = (sum + 1) * -x2 / (k * (k - 1));
    return x + x * sum;
}
static inline double mhai_cos_small(double x)
{
    double x2 = x * x, sum = 0;
    for (int k = 20; k >= 2; k -= 2) sum = (sum + 1) * -x2 / (k * (k - 1));
    return 1 + sum;
}

/* cos(2 pi x) for 0 <= x < 2^51: eighths of a turn. */
static inline double mhai_turn_cos(double x)
{
    const double turn = 6.283185307179586;
    double part = x - floor(x); /* exact */
    if (part > 0.5) part = 1 - part;
    if (part > 0.25)
        return part > 0.375 ? -mhai_cos_small((0.5 - part) * turn)
                            : -mhai_sin_small((part - 0.25) * turn);
    return part > 0.125 ? mhai_sin_small((0.25 - part) * turn) : mhai_cos_small(part * turn);
}

#endif
