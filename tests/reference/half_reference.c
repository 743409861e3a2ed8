#include "reference/half_reference.h"

#include <math.h>

/* The number of fraction bits, and the exponent of the least normal number. */
typedef struct format {
    int fraction, least;
} format;

static format format_of(mha_dtype type)
{
    return type == MHA_F16 ? (format){10, -14} : (format){7, -126};
}

double half_value(mha_dtype type, uint16_t bits)
{
    const format f = format_of(type);
    int fraction = bits & ((1 << f.fraction) - 1), exponent = (bits & 0x7FFF) >> f.fraction;
    int last = 0x7FFF >> f.fraction;
    double size;
    if (exponent == last)
        size = fraction ? (double)NAN : (double)INFINITY;
    else if (exponent == 0)
        size = ldexp(fraction, f.least - f.fraction);
    else
        size = ldexp(fraction + (1 << f.fraction), f.least + exponent - 1 - f.fraction);
    return bits & 0x8000 ? -size : size;
}

uint16_t half_nearest(mha_dtype type, double x)
{
    const format f = format_of(type);
    const int infinity = 0x7FFF >> f.fraction << f.fraction;
    int sign = signbit(x) ? 0x8000 : 0, exponent;
    if (isnan(x)) return (uint16_t)(sign | 0x7FFF);
    if (isinf(x)) return (uint16_t)(sign | infinity);
    frexp(x, &exponent); /* |x| is in [2^(exponent-1), 2^exponent) */
    exponent = exponent - 1 < f.least || x == 0 ? f.least : exponent - 1;
    double units = rint(ldexp(fabs(x), f.fraction - exponent)); /* ties to even */
    if (exponent > -f.least + 1) return (uint16_t)(sign | infinity);
    /* A full fraction carries into the exponent, up to infinity. */
    int bits = (int)units + ((exponent - f.least) << f.fraction);
    return (uint16_t)(sign | (bits < infinity ? bits : infinity));
}

bool half_is_nan(mha_dtype type, uint16_t bits)
{
    return isnan(half_value(type, bits));
}

bool half_same(mha_dtype type, uint16_t a, uint16_t b)
{
    return a == b || (half_is_nan(type, a) && half_is_nan(type, b));
}
