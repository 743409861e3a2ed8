/* Elementary functions in double, computed with + - * / and integer operations only. Results
 * therefore depend neither on the processor nor on the C library, which selects its variants by
 * processor. src/ must call these instead of libm (tools/check_style.py), except for functions that
 * are exact or correctly rounded, such as sqrt, fma, floor and ldexp.
 *
 * Error bounds are in units in the last place of the result. docs/numerics.md, section 14, derives
 * them, and tests/kernels/test_math.c tests them. NaN propagates. Zeros, infinities and subnormals
 * follow Annex F of C unless noted. */
#ifndef MHAI_MATH_H
#define MHAI_MATH_H

double mhai_exp(double x);   /* 0.55; subnormal: 0.77; exp(0) = 1 */
double mhai_exp2(double x);  /* 0.55; subnormal: 0.77; exact for integers */
double mhai_log(double x);   /* 0.55 */
double mhai_log1p(double x); /* 0.55 */
double mhai_tanh(double x);  /* 0.6 */

static inline double mhai_sigmoid(double x)
{
    return 1 / (1 + mhai_exp(-x));
}

/* An unevaluated sum of two numbers. The second is at most half an ulp of the first. */
typedef struct mhai_two {
    double high, low;
} mhai_two;

/* x^y = mhai_power(mhai_log_two(x), y) for finite x > 0 and |y| <= 1: 0.55. A logarithm can
 * be used for several y. */
mhai_two mhai_log_two(double x);
double mhai_power(mhai_two log_x, double y);

/* 0.9 each for finite x; NaN for infinities. */
void mhai_sin_cos(double x, double *sine, double *cosine);

/* cos(2 pi x) for |x| < 2^51; absolute error 2^-52. */
double mhai_cos_turns(double x);

#endif
