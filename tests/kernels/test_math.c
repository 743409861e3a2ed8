/* src/base/math.h: errors, compared with long double functions of the C library, which share no
 * code with math.h; exact results; and the bits, which are the same on every machine. */
#include "base/math.h"

#include "support/rng.h"
#include "support/suite.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static double sine(double x)
{
    double s, c;
    mhai_sin_cos(x, &s, &c);
    return s;
}

static double cosine(double x)
{
    double s, c;
    mhai_sin_cos(x, &s, &c);
    return c;
}

static double power_of(double x, double y)
{
    return mhai_power(mhai_log_two(x), y);
}

typedef struct function {
    const char *name;
    double (*ours)(double);
    long double (*exact)(long double);
    double bound;           /* stated in math.h */
    double near[2], far[2]; /* ranges of arguments, besides every exponent */
    uint64_t digest;
    double values[7][2]; /* x and the bits of f(x); ends with NaN */
} function;

/* clang-format off */
static const function functions[] = {
    {"exp", mhai_exp, expl, 0.55, {-1, 1}, {-745.2, 709.8}, 0xB5839730264CFB1E,
     {{0, 1}, {-0.0, 1}, {710, INFINITY}, {INFINITY, INFINITY}, {-746, 0}, {-INFINITY, 0}, {NAN, 0}}},
    {"exp2", mhai_exp2, exp2l, 0.55, {-1, 1}, {-1075, 1024}, 0x29AA033A846008E4,
     {{-8, 0x1p-8}, {1023, 0x1p1023}, {-1074, 0x1p-1074}, {1024, INFINITY}, {-1076, 0}, {-INFINITY, 0}, {NAN, 0}}},
    {"log", mhai_log, logl, 0.55, {0.9, 1.1}, {0, DBL_MAX}, 0x61E54C5856ACFFB9,
     {{1, 0}, {0, -INFINITY}, {-0.0, -INFINITY}, {INFINITY, INFINITY}, {NAN, 0}}},
    {"log1p", mhai_log1p, log1pl, 0.55, {-0.9, 1}, {-1, 1e18}, 0xC7F4EEB88C441769,
     {{0, 0}, {-0.0, -0.0}, {-1, -INFINITY}, {INFINITY, INFINITY}, {0x1p-1074, 0x1p-1074}, {NAN, 0}}},
    {"tanh", mhai_tanh, tanhl, 0.6, {-0.3, 0.3}, {-21, 21}, 0xF75A1B428CBAC067,
     {{0, 0}, {-0.0, -0.0}, {INFINITY, 1}, {-INFINITY, -1}, {0x1p-1074, 0x1p-1074}, {NAN, 0}}},
    {"sin", sine, sinl, 0.9, {-10, 10}, {-0x1p31, 0x1p31}, 0x590E608715E2C6BB,
     {{0, 0}, {-0.0, -0.0}, {0x1p-1074, 0x1p-1074}, {NAN, 0}}},
    {"cos", cosine, cosl, 0.9, {-10, 10}, {-0x1p31, 0x1p31}, 0xC3B7137C610E4143,
     {{0, 1}, {-0.0, 1}, {0x1p-1074, 1}, {NAN, 0}}},
};
/* clang-format on */
enum { FUNCTIONS = sizeof functions / sizeof *functions };
static const uint64_t pow_digest = 0x1FAA0610CEC1380A, turns_digest = 0x541AD05382F3E884;

static uint64_t bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static double any_number(rng *r)
{
    double x;
    do {
        const uint64_t bits = rng_next(r);
        memcpy(&x, &bits, sizeof x);
    } while (!isfinite(x));
    return x;
}

static double between(rng *r, const double range[2])
{
    return range[0] + (range[1] - range[0]) * rng_uniform(r);
}

static double some_argument(rng *r, const function *f, int64_t i)
{
    return i % 4 < 2 ? between(r, f->near) : i % 4 == 2 ? between(r, f->far) : any_number(r);
}

/* The error in units in the last place of `exact` as a double. */
static double error_of(double ours, long double exact)
{
    int exponent;
    if (isnan(ours) || isnan(exact)) return isnan(ours) && isnan(exact) ? 0 : INFINITY;
    if (isinf((double)exact) || isinf(ours)) return (double)exact == ours ? 0 : INFINITY;
    (void)frexpl(exact, &exponent);
    const int unit = exponent - DBL_MANT_DIG, least = DBL_MIN_EXP - DBL_MANT_DIG;
    return (double)fabsl(ldexpl((long double)ours - exact, unit < least ? -least : -unit));
}

/* Subnormal results are rounded twice. */
static double bound_of(double bound, long double exact)
{
    return fabsl(exact) < (long double)DBL_MIN ? 0.77 : bound;
}

static void check(const char *name, double x, double y, double ours, long double exact,
                  double bound, double *worst)
{
    const double error = error_of(ours, exact);
    if (error > *worst && fabsl(exact) >= (long double)DBL_MIN) *worst = error;
    if (!(error <= bound_of(bound, exact)))
        fail_msg("%s(%a, %a) is %a, wrong by %g units in the last place, bound %g", name, x, y,
                 ours, error, bound);
}

/* Needs a long double that is wider than double, like on x86 and, in software, on Arm. */
static void skip_without_oracle(void)
{
    if (LDBL_MANT_DIG < 64) skip();
}

static void errors_are_within_bounds(void **state)
{
    const function *f = *state;
    double worst = 0;
    skip_without_oracle();
    rng r = rng_make(rng_run_seed(), (uint64_t)(f - functions));
    for (int64_t i = 0, n = rng_cases(40000, 4000000); i < n; i++) {
        const double x = some_argument(&r, f, i);
        check(f->name, x, 0, f->ours(x), f->exact((long double)x), f->bound, &worst);
    }
    for (int exponent = DBL_MIN_EXP - DBL_MANT_DIG; exponent < DBL_MAX_EXP; exponent++)
        for (int sign = -1; sign <= 1; sign += 2) {
            const double x = ldexp(sign * (1 + rng_uniform(&r)), exponent);
            check(f->name, x, 0, f->ours(x), f->exact((long double)x), f->bound, &worst);
        }
    printf("%s: largest error %.3f units in the last place\n", f->name, worst);
    if (rng_whole_sample()) assert_true(worst > 0.45);
}

/* Large numbers, and numbers very near multiples of pi / 2, from continued fractions. The first is
 * the nearest of all doubles, and for the last one, the middle word of the product overflows. They
 * reveal any error in 2 / pi. */
static void angles_keep_their_digits(void **state)
{
    static const double angles[] = {0x1.6ac5b262ca1ffp+849, 0x1.921fb54442d18p+0,
                                    0x1.fffffp+19,          0x1p20,
                                    0x1.921fb54442d18p+20,  DBL_MAX,
                                    0x1.065c829d68730p+39,  0x1.782b7a20df6d4p+69,
                                    0x1.99caa5236feeap+77,  0x1.f19e5d71b26bap+85,
                                    0x1.66bd5424e5655p+92,  0x1.504cac51f1eafp+134,
                                    0x1.0539b48d14c55p+183, 0x1.e7e44a78ac18cp+197,
                                    0x1.741b6813300bap+218, 0x1.33322fd48b212p+224,
                                    0x1.69eab0985179bp+246, 0x1.b2196364d750bp+253,
                                    0x1.c45cd11154dfdp+295, 0x1.6dd6b29edc33ap+421,
                                    0x1.db41f3cb71d7bp+680, 0x1.01b5d89b91aeap+707,
                                    0x1.52f4fe34c0e00p+800, 0x1.cfe482285f8edp+862,
                                    0x1.9abf499df9d6cp+897, 0x1.c309215988102p+924,
                                    0x1.4117573397d42p+939, 0x1.e1987122b7e06p+952,
                                    0x1.408e81423ea13p+974, 0x1.36bf9a50c0440p+1008,
                                    0x1.eb3c429c1357ep+160};
    const function *f = *state;
    double worst = 0;
    skip_without_oracle();
    for (size_t i = 0; i < sizeof angles / sizeof *angles; i++)
        for (int sign = -1; sign <= 1; sign += 2)
            check(f->name, sign * angles[i], 0, f->ours(sign * angles[i]),
                  f->exact((long double)(sign * angles[i])), f->bound, &worst);
    for (int64_t i = 1, n = rng_cases(20000, 2000000); i < n; i++) {
        const double x = (double)i * (i % 2 ? 1.5707963267948966 : 52707178.53);
        check(f->name, x, 0, f->ours(x), f->exact((long double)x), f->bound, &worst);
    }
}

static void powers_are_within_bounds(void)
{
    double worst = 0;
    skip_without_oracle();
    rng r = rng_make(rng_run_seed(), FUNCTIONS);
    for (int64_t i = 0, n = rng_cases(40000, 4000000); i < n; i++) {
        const double x = i % 2 ? fabs(any_number(&r)) : ldexp(1 + rng_uniform(&r), (int)(i % 40));
        const double y = (double)rng_between(&r, -64, 64) / 64 * (i % 3 ? 1 : rng_uniform(&r));
        if (x == 0) continue;
        check("pow", x, y, power_of(x, y), powl((long double)x, (long double)y), 0.55, &worst);
        assert_true(power_of(x, 1) == x && power_of(x, 0) == 1);
    }
    printf("pow: largest error %.3f units in the last place\n", worst);
    assert_true(power_of(0x1p-1074, 0.5) == 0x1p-537 && power_of(10000, -0.5) == 0.01);
}

static void turns_are_within_bounds(void)
{
    const long double turn = 6.283185307179586476925286766559L;
    double worst = 0;
    for (int i = -8; i <= 8; i++) {
        static const double quarters[] = {1, 0, -1, 0};
        assert_true(mhai_cos_turns(i / 4.0) == quarters[i & 3]);
    }
    skip_without_oracle();
    rng r = rng_make(rng_run_seed(), FUNCTIONS + 1);
    for (int64_t i = 0, n = rng_cases(40000, 4000000); i < n; i++) {
        const double x = 4 * rng_uniform(&r) - 2;
        const double error = (double)fabsl((long double)mhai_cos_turns(x) -
                                           cosl(turn * ((long double)x - roundl((long double)x))));
        worst = fmax(worst, error);
    }
    assert_true(worst <= 0x1p-52);
}

static void special_values_are_exact(void **state)
{
    const function *f = *state;
    for (int i = 0; !isnan(f->values[i][0]); i++)
        if (bits_of(f->ours(f->values[i][0])) != bits_of(f->values[i][1]))
            fail_msg("%s(%g) is %a", f->name, f->values[i][0], f->ours(f->values[i][0]));
    assert_true(isnan(f->ours(NAN)));
    if (f->ours == mhai_log) assert_true(isnan(mhai_log(-1)) && isnan(mhai_log(-INFINITY)));
    if (f->ours == mhai_log1p) assert_true(isnan(mhai_log1p(-1.5)));
    if (f->exact == sinl || f->exact == cosl)
        assert_true(isnan(f->ours(INFINITY)) && isnan(f->ours(-INFINITY)));
}

/* FNV-1a over bytes, lowest first. */
static void digest(uint64_t *hash, double value)
{
    const uint64_t bits = isnan(value) ? 0x7FF8 : bits_of(value);
    for (int i = 0; i < 64; i += 8) *hash = (*hash ^ (bits >> i & 255)) * 0x100000001B3u;
}

static const uint64_t digest_start = 0xCBF29CE484222325u;

static void bits_are_those_of_every_machine(void **state)
{
    const function *f = *state;
    uint64_t hash = digest_start;
    rng r = rng_make(1, (uint64_t)(f - functions));
    for (int64_t i = 0; i < 4000; i++) digest(&hash, f->ours(some_argument(&r, f, i)));
    if (hash != f->digest) fail_msg("%s: digest 0x%016llX", f->name, (unsigned long long)hash);
}

static void bits_of_powers_and_turns(void)
{
    uint64_t powers = digest_start, turns = digest_start;
    for (int i = 0; i < 4000; i++) {
        digest(&powers, power_of(1 + 10 * (double)i, -(double)(i % 64) / 64));
        digest(&turns, mhai_cos_turns((double)i / 3999));
    }
    if (powers != pow_digest || turns != turns_digest)
        fail_msg("digests 0x%016llX, 0x%016llX", (unsigned long long)powers,
                 (unsigned long long)turns);
}

#define TEST_OF(test, function)                                          \
    {                                                                    \
#test, test, NULL, NULL, (void *)(uintptr_t)&functions[function] \
    }
#define TESTS_OF(test)                                                                        \
    TEST_OF(test, 0), TEST_OF(test, 1), TEST_OF(test, 2), TEST_OF(test, 3), TEST_OF(test, 4), \
        TEST_OF(test, 5), TEST_OF(test, 6)

RUN_TESTS(TESTS_OF(errors_are_within_bounds), TESTS_OF(special_values_are_exact),
          TESTS_OF(bits_are_those_of_every_machine), TEST_OF(angles_keep_their_digits, 5),
          TEST_OF(angles_keep_their_digits, 6), TEST(powers_are_within_bounds),
          TEST(turns_are_within_bounds), TEST(bits_of_powers_and_turns))
