#!/usr/bin/env python3
"""Print src/base/math_tables.h: the constants of src/base/math.c. Needs mpmath (1.3 was used).

    tools/make_math.py | clang-format --assume-filename=x.h > src/base/math_tables.h

Polynomials are interpolated at Chebyshev nodes, with at most twice the error of the best
polynomial. The comment of each polynomial gives its largest error at 10,000 points.
"""
from mpmath import mp, mpf, chebyfit, cos, exp, floor, ldexp, log, nint, pi, polyval, sin, sqrt, tanh

mp.prec = 1400


def cut(x, bits_below):
    """x rounded to a multiple of 2^-bits_below, and the rest."""
    high = ldexp(nint(ldexp(x, bits_below)), -bits_below)
    return high, x - high


def number(x):
    return float(x).hex().replace('0x1.0000000000000p', '0x1p') if x else '0.0'


def define(name, x, comment=''):
    print(f'#define {name} {number(x)}' + (f' /* {comment} */' if comment else ''))


def table(head, rows):
    print(f'{head} = {{')
    for row in rows:
        print(f'    {row},')
    print('};')


def polynomial(name, function, left, right, terms, weight, what):
    """Coefficients, lowest first, of function on [left, right]; weight converts its error into that of the result, in
    units of 2^-53."""
    with mp.workprec(300):
        found = [mpf(float(c)) for c in chebyfit(function, [left, right], terms)]
        worst = max(abs((polyval(found, x) - function(x)) * weight(x))
                    for x in (left + (right - left) * (i + mpf('0.5')) / 10000 for i in range(10000)))
    print(f'/* {what}; error {float(ldexp(worst, 53)):.1g} ulp of 1. */')
    rows = [number(c) for c in reversed(found)]
    table(f'static const double {name}[{terms}]', [', '.join(rows[i:i + 3]) for i in range(0, terms, 3)])


def series(terms):
    """The sum of terms(n) from n = 0 until they are negligible; avoids cancellation at small x."""
    total, n = mpf(0), 0
    while True:
        term = terms(n)
        total += term
        if abs(term) <= abs(total) * mpf(2) ** -290:
            return total
        n += 1


print('/* Made by tools/make_math.py: the constants of math.c. */')
print('#ifndef MHAI_MATH_TABLES_H\n#define MHAI_MATH_TABLES_H\n\n#include <stdint.h>\n')

print('/* ---- exp: 2^(j / 32) as a sum of two, and ln 2 / 32 as one of 37 bits and the rest */')
define('EXP_PER_LN2', 32 / log(2))
high, low = cut(log(2) / 32, 42)
define('LN2_32_HIGH', high)
define('LN2_32_LOW', low)
define('LN2', log(2))
powers = []
for j in range(32):
    value = mpf(2) ** (mpf(j) / 32)
    powers.append(f'{{{number(mpf(float(value)))}, {number(value - mpf(float(value)))}}}')
table('static const double exp_table[32][2]', [', '.join(powers[i:i + 2]) for i in range(0, 32, 2)])
r = log(2) / 64 * mpf('1.001')
polynomial('exp_terms', lambda x: series(lambda n: x ** n / mp.factorial(n + 2)), -r, r, 5,
           lambda x: x * x, '(e^r - 1 - r) / r^2, |r| <= ln 2 / 64')

print('\n/* ---- log: of j / 64, with 64 / j; HIGH is a multiple of 2^-43 */')
high, low = cut(log(2), 43)
define('LN2_HIGH', high)
define('LN2_LOW', low)
rows = []
for j in range(45, 92):
    high, low = cut(log(mpf(j) / 64), 43)
    rows.append(f'{{{number(mpf(64) / j)}, {number(high)}, {number(low)}}}')
print('enum { LOG_FIRST = 45 };')
table('static const double log_table[][3]', rows)
r = mpf(1) / 128 / (mpf(45) / 64)
polynomial('log_terms', lambda x: series(lambda n: (-1) ** (n + 1) * x ** n / (n + 2)), -r, r, 7,
           lambda x: x, '(log(1 + r) - r) / r^2, |r| <= 1 / 90, relative')

print('\n/* ---- tanh */')
polynomial('tanh_terms', lambda z: (tanh(sqrt(z)) / sqrt(z) - 1) / z, mpf(2) ** -40, mpf(1) / 64, 7,
           lambda z: z, '(tanh(x) / x - 1) / x^2 of z = x^2, |x| <= 1 / 8')

print('\n/* ---- sin and cos: pi / 2 in parts of 33 bits (the last is longer), and as a sum of two */')
rest = pi / 2
for part in range(1, 5):
    high, rest = cut(rest, 33 * part - 1) if part < 4 else (rest, 0)
    define(f'HALF_PI_{part}', high)
define('HALF_PI_HIGH', mpf(float(pi / 2)))
define('HALF_PI_LOW', pi / 2 - mpf(float(pi / 2)))
define('PER_HALF_PI', 2 / pi)
top = (pi / 4) ** 2 * mpf('1.0001')
polynomial('sin_terms', lambda z: series(lambda n: (-1) ** (n + 1) * z ** n / mp.factorial(2 * n + 3)),
           0, top, 7, lambda z: z, '(sin(x) / x - 1) / x^2 of z = x^2, |x| <= pi / 4')
polynomial('cos_terms', lambda z: series(lambda n: (-1) ** n * z ** n / mp.factorial(2 * n + 4)),
           0, top, 7, lambda z: z * z, '(cos(x) - 1 + x^2 / 2) / x^4 of z = x^2')
print('/* The bits of 2 / pi after the point, 64 zeros before them. */')
bits = int(floor(ldexp(2 / pi, 64 * 19)))
words = [0] + [bits >> 64 * (18 - i) & (2 ** 64 - 1) for i in range(19)]
table('static const uint64_t two_over_pi[]', [', '.join(f'0x{word:016X}' for word in words[i:i + 4])
                                              for i in range(0, len(words), 4)])
print('\n#endif')
