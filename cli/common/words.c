/* See words.h. Texts are returned by value, so that they can be arguments of a call. */
#include "common/words.h"

#include "common/print.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

words words_count(int64_t n)
{
    char digits[WORDS_BYTES];
    words w = {""};
    int length = snprintf(digits, sizeof digits, "%" PRId64, n), at = 0;
    for (int i = 0; i < length && at < WORDS_BYTES - 2; i++) {
        w.text[at++] = digits[i];
        int left = length - 1 - i;
        if (left > 0 && left % 3 == 0 && digits[i] != '-') w.text[at++] = ',';
    }
    w.text[at] = 0;
    return w;
}

/* Format three digits, in the unit that keeps the value below step. */
static words scaled(double value, double step, const char *const *units, int count)
{
    words w;
    int unit = 0;
    while (unit < count - 1 && value >= step * 0.9995) {
        value /= step;
        unit++;
    }
    int decimals = value >= 99.95 || value == floor(value) ? 0 : value >= 9.995 ? 1 : 2;
    if (value >= 1e6) /* beyond the last unit */
        snprintf(w.text, sizeof w.text, "%.3g %s", value, units[unit]);
    else
        snprintf(w.text, sizeof w.text, "%.*f%s%s", decimals, value, *units[unit] ? " " : "",
                 units[unit]);
    return w;
}

words words_bytes(double bytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    return scaled(bytes, 1024, units, sizeof units / sizeof *units);
}

words words_rough(double n)
{
    static const char *const units[] = {"", "thousand", "million", "billion", "trillion"};
    return scaled(n, 1000, units, sizeof units / sizeof *units);
}

words words_flops(double flops)
{
    static const char *const units[] = {"FLOP",  "kFLOP", "MFLOP", "GFLOP",
                                        "TFLOP", "PFLOP", "EFLOP"};
    return scaled(flops, 1000, units, sizeof units / sizeof *units);
}

const char *words_s(int64_t n)
{
    return n == 1 ? "" : "s";
}

void words_print(const char *label, const char *text)
{
    enum { WIDTH = 88 };
    cli_print_wrapped(label, text, WIDTH);
}
