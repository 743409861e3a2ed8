/* Numbers as text by integer arithmetic. */
#include "number.h"

#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
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

/* The decimal exponent that `value` has after it was rounded to `digits` digits. */
static int rounded_exponent(double value, int digits)
{
    int exponent = (int)floor(log10(fabs(value)));
    double mantissa = fabs(value) / pow(10, exponent);
    if (mantissa < 1) {
        mantissa *= 10;
        exponent--;
    }
    return llround(mantissa * tens[digits - 1]) >= (int64_t)tens[digits] ? exponent + 1 : exponent;
}

void mhai_number_short(double value, int digits, char text[MHAI_NUMBER_BYTES])
{
    if (not_finite(value, text)) return;
    if (value == 0) {
        snprintf(text, MHAI_NUMBER_BYTES, "0");
        return;
    }
    int exponent = rounded_exponent(value, digits);
    if (exponent >= -4 && exponent < 6) {
        int decimals = digits - 1 - exponent;
        mhai_number_fixed(value, decimals < 0 ? 0 : decimals > 9 ? 9 : decimals, text);
        strip_zeros(text);
        return;
    }
    char mantissa[MHAI_NUMBER_BYTES];
    mhai_number_fixed(value / pow(10, exponent), digits - 1, mantissa);
    strip_zeros(mantissa);
    snprintf(text, MHAI_NUMBER_BYTES, "%.24se%d", mantissa, exponent);
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
