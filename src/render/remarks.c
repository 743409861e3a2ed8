/* The notes under a figure. */
#include "layout.h"
#include "number.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void add(mhai_remarks *remarks, const char *format, ...) MHA_PRINTF(2, 3);

/* Append a sentence. */
static void add(mhai_remarks *remarks, const char *format, ...)
{
    size_t used = strlen(remarks->text), size = sizeof remarks->text;
    if (used + 3 >= size) return;
    if (used) used += (size_t)snprintf(remarks->text + used, size - used, "; ");
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(remarks->text + used, size - used, format, arguments);
    va_end(arguments);
}

static const char *ordinal(int64_t n)
{
    int64_t tens = n / 10 % 10, ones = n % 10;
    if (tens == 1) return "th";
    return ones == 1 ? "st" : ones == 2 ? "nd" : ones == 3 ? "rd" : "th";
}

static void add_steps(mhai_remarks *remarks, int64_t rows, int64_t cols)
{
    if (rows > 1 && rows == cols)
        add(remarks, "every %" PRId64 "%s label is shown", rows, ordinal(rows));
    else if (rows > 1)
        add(remarks, "every %" PRId64 "%s row label is shown", rows, ordinal(rows));
    if (cols > 1 && rows != cols)
        add(remarks, "every %" PRId64 "%s column label is shown", cols, ordinal(cols));
}

void mhai_remarks_make(const mha_figure *figure, const mhai_ranges *ranges,
                       const mhai_remarks_about *about, mhai_remarks *remarks)
{
    const mha_extent *e = &ranges->extent;
    remarks->text[0] = 0;
    if (about->pool_rows > 1 || about->pool_cols > 1)
        add(remarks, "1 %s = %" PRId64 "x%" PRId64 " cells, %s", about->unit, about->pool_rows,
            about->pool_cols, mhai_figure_signed(figure) ? "the largest in magnitude" : "max");
    add_steps(remarks, about->row_step, about->col_step);
    if (e->clipped_lo || e->clipped_hi) {
        char least[MHAI_NUMBER_BYTES], greatest[MHAI_NUMBER_BYTES];
        mhai_number_short(e->least, 3, least);
        mhai_number_short(e->greatest, 3, greatest);
        add(remarks, "clipped at the arrows: values go from %s to %s", least, greatest);
    }
    if (e->not_finite)
        add(remarks, "%" PRId64 " %s not finite (NaN or infinite), drawn as %s", e->not_finite,
            e->not_finite == 1 ? "cell is" : "cells are", about->bad);
    if (about->no_values) add(remarks, "values are not printed: too many cells");
}
