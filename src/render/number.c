/* Numbers as text: plain decimals by integer arithmetic, other forms by printf's digits. */
#include "number.h"

#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double tens[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9};

static int not_finite(double value, char *text)
{
    if (isfinite(value)) return 0;
    snprintf(text, MHAI_NUMBER_BYTES, "%s", isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
    return 1;
}

void mhai_number_fixed(double value, int decimals, char text[MHAI_NUMBER_BYTES])
{
    if (not_finite(value, text)) return;
    if (fabs(value) > 9e8) {
        mhai_number_short(value, 6, text);
        return;
    }
    /* |value| * 10^9 < 9e17 fits an int64_t. */
    int64_t scaled = llround(fabs(value) * tens[decimals]);
    int64_t unit = (int64_t)tens[decimals];
    const char *sign = value < 0 && scaled ? "-" : "";
    if (decimals == 0)
        snprintf(text, MHAI_NUMBER_BYTES, "%s%" PRId64, sign, scaled);
    else
        snprintf(text, MHAI_NUMBER_BYTES, "%s%" PRId64 ".%0*" PRId64, sign, scaled / unit, decimals,
                 scaled % unit);
}

static void strip_zeros(char *text)
{
    if (!strchr(text, '.')) return;
    size_t end = strlen(text);
    while (text[end - 1] == '0') end--;
    if (text[end - 1] == '.') end--;
    text[end] = 0;
}

/* Write a positive value with `digits` digits as "d.ddd", and return its decimal exponent. printf
 * rounds correctly over the whole range, including subnormal numbers, where powers of ten are
 * inexact. Only its decimal point depends on the locale, and may have any length. */
static int scientific(double value, int digits, char mantissa[MHAI_NUMBER_BYTES])
{
    char text[MHAI_NUMBER_BYTES];
    snprintf(text, sizeof text, "%.*e", digits - 1, value);
    const char *exponent = strchr(text, 'e');
    const size_t behind = (size_t)digits - 1;
    mantissa[0] = text[0];
    mantissa[1] = behind ? '.' : 0;
    memcpy(mantissa + 2, exponent - behind, behind);
    mantissa[2 + behind] = 0;
    return atoi(exponent + 1);
}

void mhai_number_short(double value, int digits, char text[MHAI_NUMBER_BYTES])
{
    if (not_finite(value, text)) return;
    if (value == 0) {
        snprintf(text, MHAI_NUMBER_BYTES, "0");
        return;
    }
    char mantissa[MHAI_NUMBER_BYTES];
    const int exponent = scientific(fabs(value), digits, mantissa),
              decimals = digits - 1 - exponent;
    const char *sign = value < 0 ? "-" : "";
    if (exponent < -4 || exponent >= 6) {
        strip_zeros(mantissa);
        snprintf(text, MHAI_NUMBER_BYTES, "%s%.24se%d", sign, mantissa, exponent);
        return;
    }
    mhai_number_fixed(value, decimals < 0 ? 0 : decimals, text);
    strip_zeros(text);
}

void mhai_number_cell(double value, double greatest, char text[MHAI_NUMBER_BYTES])
{
    if (greatest == 0 || (greatest >= 0.01 && greatest < 9.995))
        mhai_number_fixed(value, 2, text);
    else if (greatest >= 9.995 && greatest < 99.95)
        mhai_number_fixed(value, 1, text);
    else if (greatest >= 99.95 && greatest < 99999.5)
        mhai_number_fixed(value, 0, text);
    else
        mhai_number_short(value, 2, text);
}
