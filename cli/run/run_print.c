/* Print the numbers of `multihead run`: shapes, arrays as NumPy prints them, tables. */
#include "run/run.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

run_shape run_shape_of(const mha_tensor *tensor)
{
    run_shape shape = {"["};
    size_t used = 1;
    for (int i = 0; i < tensor->ndim && used < sizeof shape.text; i++)
        used += (size_t)snprintf(shape.text + used, sizeof shape.text - used, "%s%" PRId64,
                                 i ? ", " : "", tensor->shape[i]);
    if (used < sizeof shape.text) snprintf(shape.text + used, sizeof shape.text - used, "]");
    return shape;
}

/* ---- Columns --------------------------------------------------------------------------------- */

/* The common format of the numbers of one array, which aligns them. Each number is visited three
 * times: to inspect it, to measure its width and to print it. */
typedef struct number_format {
    int most_digits, digits; /* decimals: the maximum; the number in use, 0 if all are integers */
    int width;               /* width of the widest number */
    bool power;              /* 1.2e+03 */
    double largest;
    enum { LOOK, MEASURE, PRINT, DONE } turn;
} number_format;

static void take(number_format *format, double number)
{
    char text[400];
    /* Print no minus before zero or NaN: a NaN's sign differs by machine. */
    const double shown = number == 0 ? 0 : isnan(number) ? (double)NAN : number;
    if (format->turn == LOOK) {
        if (!isfinite(number)) return;
        format->largest = fmax(format->largest, fabs(number));
        if (number != floor(number)) format->digits = format->most_digits;
        return;
    }
    const int width = snprintf(text, sizeof text, format->power ? "%*.*e" : "%*.*f",
                               format->turn == PRINT ? format->width : 0, format->digits, shown);
    if (format->turn == PRINT)
        cli_print("%s", text);
    else if (width > format->width)
        format->width = width;
}

/* Choose the format: integers without a point; else the requested decimals; scientific if these
 * would print only zeros or be too wide. */
static void turn(number_format *format)
{
    const double most_fixed = 1e6;
    double least_fixed = 10;
    if (format->turn++ != LOOK) return;
    for (int i = 0; i < format->most_digits; i++) least_fixed /= 10;
    format->power =
        format->largest >= most_fixed || (format->largest > 0 && format->largest < least_fixed);
    if (format->power) format->digits = format->most_digits;
}

/* ---- Arrays ---------------------------------------------------------------------------------- */

/* As in NumPy, long axes show the first and last three elements, but the limit is lower. A line of
 * 10 numbers fits a terminal. */
enum { MOST_WHOLE = 256, MOST_COLUMNS = 10, EDGE = 3 };

static void visit(number_format *format, const mha_tensor *tensor, bool long_one, int axis,
                  int64_t at)
{
    const bool printing = format->turn == PRINT;
    if (axis == tensor->ndim) {
        take(format, (double)((const float *)tensor->data)[at]);
        return;
    }
    const int64_t n = tensor->shape[axis];
    const bool last = axis + 1 == tensor->ndim;
    const bool cut = (long_one && n > 2 * EDGE) || (last && n > MOST_COLUMNS);
    if (printing) cli_print("[");
    for (int64_t i = 0; i < n; i++) {
        if (printing && i > 0) {
            for (int line = last ? 0 : tensor->ndim - 1 - axis; line > 0; line--) cli_print("\n");
            cli_print("%*s", last ? 1 : axis + 1, "");
        }
        if (!cut || i != EDGE) {
            visit(format, tensor, long_one, axis + 1, at + i * tensor->stride[axis]);
            continue;
        }
        if (printing) cli_print("...");
        i = n - EDGE - 1;
    }
    if (printing) cli_print("]");
}

void run_print_array(const mha_tensor *tensor)
{
    int64_t count = 1;
    for (int i = 0; i < tensor->ndim; i++) count *= tensor->shape[i];
    for (number_format f = {.most_digits = 4, .width = 1}; f.turn != DONE; turn(&f))
        visit(&f, tensor, count > MOST_WHOLE, 0, 0);
    cli_print("\n");
}

/* ---- Tables ---------------------------------------------------------------------------------- */

/* Write "q12", right-aligned in *width. With measure, *width becomes its length. */
static void label(char letter, const mha_tensor *numbers, int64_t i, bool measure, int *width)
{
    char text[32];
    const int used =
        snprintf(text, sizeof text, "%c%" PRId64, letter, numbers ? run_entry(numbers, i) : i);
    if (!measure)
        cli_print("%*s", *width, text);
    else if (used > *width)
        *width = used;
}

static void print_heads(const run_table *t, int margin, int width, int sum_width)
{
    if (!t->column && !t->sum) return;
    cli_print("%*s", margin, "");
    for (int64_t c = 0; c < t->column_count; c++) {
        cli_print("  ");
        if (t->column)
            label(t->column, t->columns, c, false, &width);
        else
            cli_print("%*s", width, "");
    }
    if (t->cut) cli_print("  ...");
    if (t->sum) cli_print("   | %*s", sum_width, "sum");
    cli_print("\n");
}

static void take_row(const run_table *t, int64_t r, number_format *format, number_format *sums)
{
    const bool printing = format->turn == PRINT;
    for (int64_t c = 0; c < t->column_count; c++) {
        const double number = t->at(t, r, c);
        const bool dot = isinf(number) && number < 0;
        if (printing) cli_print("  ");
        if (printing && dot) cli_print("%*s", format->width, ".");
        if (!dot) take(format, number);
    }
    if (printing && t->cut) cli_print("  ...");
    if (printing && t->sum) cli_print("   | ");
    if (t->sum) take(sums, t->sum(t, r));
}

void run_print_table(const run_table *t)
{
    number_format format = {.most_digits = 3, .width = 1}, sums = {.most_digits = 3, .width = 3};
    int labels = 0;
    for (int64_t r = 0; r < t->row_count; r++) label(t->row, t->rows, r, true, &labels);
    for (int64_t c = 0; t->column && c < t->column_count; c++)
        label(t->column, t->columns, c, true, &format.width);
    for (; format.turn != DONE; turn(&format), turn(&sums)) {
        const bool printing = format.turn == PRINT;
        if (printing) print_heads(t, labels + 4, format.width, sums.width);
        for (int64_t r = 0; r < t->row_count; r++) {
            if (printing) cli_print("    ");
            if (printing) label(t->row, t->rows, r, false, &labels);
            take_row(t, r, &format, &sums);
            if (printing) cli_print("\n");
        }
    }
}
