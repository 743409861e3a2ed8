/* Sums of doubles without rounding, so that results do not depend on the order of terms. A sum is a
 * 256-bit fixed-point number in two's complement, in units of 2^-128. It can hold 2^27 terms of up
 * to 2^100, or more terms that are smaller. Bits of a term below one unit are truncated; terms of
 * at least 2^-76 have no such bits. */
#ifndef MHAI_EXACT_SUM_H
#define MHAI_EXACT_SUM_H

#include <math.h>
#include <stdint.h>

enum { MHAI_EXACT_PARTS = 4, MHAI_EXACT_UNIT = -128 };

typedef struct mhai_exact {
    uint64_t part[MHAI_EXACT_PARTS]; /* least significant first */
} mhai_exact;

static inline void mhai_exact_join(mhai_exact *sum, const mhai_exact *more)
{
    uint64_t carry = 0;
    for (int i = 0; i < MHAI_EXACT_PARTS; i++) {
        const uint64_t part = sum->part[i] + more->part[i];
        const uint64_t whole = part + carry;
        carry = part < more->part[i] || whole < part;
        sum->part[i] = whole;
    }
}

static inline mhai_exact mhai_exact_negative(const mhai_exact *sum)
{
    mhai_exact result = {{1, 0, 0, 0}}, inverse;
    for (int i = 0; i < MHAI_EXACT_PARTS; i++) inverse.part[i] = ~sum->part[i];
    mhai_exact_join(&result, &inverse);
    return result;
}

static inline void mhai_exact_add(mhai_exact *sum, double value)
{
    int exponent;
    uint64_t bits = (uint64_t)(frexp(fabs(value), &exponent) * 0x1p53);
    int shift = exponent - 53 - MHAI_EXACT_UNIT;
    if (shift < 0) bits = shift > -64 ? bits >> -shift : 0, shift = 0;
    mhai_exact more = {{0}};
    more.part[shift / 64] = bits << shift % 64;
    if (shift % 64 > 0) more.part[shift / 64 + 1] = bits >> (64 - shift % 64);
    if (value < 0) more = mhai_exact_negative(&more);
    mhai_exact_join(sum, &more);
}

/* The sum, rounded to the nearest double, ties to even. */
static inline double mhai_exact_value(const mhai_exact *sum)
{
    const int negative = sum->part[MHAI_EXACT_PARTS - 1] >> 63 != 0;
    const mhai_exact size = negative ? mhai_exact_negative(sum) : *sum;
    int top = MHAI_EXACT_PARTS - 1, shift = 0;
    while (top > 0 && size.part[top] == 0) top--;
    uint64_t bits = size.part[top], rest = 0;
    for (; top > 0 && !(bits >> 63); shift++) /* the highest 64 bits */
        bits = bits << 1 | (size.part[top - 1] >> (63 - shift) & 1);
    if (top > 0) rest = shift < 64 ? size.part[top - 1] << shift : 0;
    for (int i = 0; i < top - 1; i++) rest |= size.part[i];
    const double value = ldexp((double)(bits | (rest != 0)), MHAI_EXACT_UNIT + 64 * top - shift);
    return negative ? -value : value;
}

#endif
