/* Elementary functions in double from + - * / and integers alone, so that their bits depend neither
 * on the processor nor on the C library, which chooses variants by it. src/ calls these, not libm's
 * (tools/check_style.py); sqrt, fma, floor, ldexp and the like are exact and stay libm's.
 *
 * The error is in units in the last place of the result. docs/numerics.md, section 14, derives it;
 * tests/kernels/test_math.c tests it. NaN in, NaN out; signs of zeros, infinities and subnormals
 * as C's Annex F says, unless a function says otherwise. */
#ifndef MHAI_MATH_H
#define MHAI_MATH_H

double mhai_exp(double x);   /* 0.55; 0.77 where subnormal; exp(0) = 1 */
double mhai_exp2(double x);  /* 0.55; 0.77 where subnormal; whole x exactly */
double mhai_log(double x);   /* 0.55 */
double mhai_log1p(double x); /* 0.55 */
double mhai_tanh(double x);  /* 0.6 */

/* A number as an unevaluated sum; the second part is at most half an ulp of the first. */
typedef struct mhai_two {
    double high, low;
} mhai_two;

/* x^y for finite x > 0 and |y| <= 1; many y may share the logarithm: 0.55. */
mhai_two mhai_log_two(double x);
double mhai_power(mhai_two log_x, double y);

/* 0.9 each for every finite x; NaN for infinities. */
void mhai_sin_cos(double x, double *sine, double *cosine);

/* cos(2 pi x) for |x| < 2^51, to 2^-52. */
double mhai_cos_turns(double x);

#endif
