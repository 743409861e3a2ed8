/* Numbers of `multihead run` as text: shapes, arrays as NumPy prints them, tables. */
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

/* How the numbers of one array are printed, so that they stand under each other. */
typedef struct number_format {
    int digits; /* behind the point: as asked for, once a number is not whole */
    int width;  /* of the widest */
    bool power; /* 1.2e+03 */
    double largest;
} number_format;

/* No minus before a nought, nor before a NaN: its sign says nothing and differs by machine. */
static int format_number(const number_format *format, double number, char *text, size_t size)
{
    number = number == 0 ? 0 : isnan(number) ? (double)NAN : number;
    return snprintf(text, size, format->power ? "%*.*e" : "%*.*f", format->width, format->digits,
                    number);
}

static void print_number(const number_format *format, double number)
{
    char text[400];
    format_number(format, number, text, sizeof text);
    cli_print("%s", text);
}

/* First every number is looked at, then the kind of format is chosen, then widths are measured. */
static void look(number_format *format, double number, int digits)
{
    if (!isfinite(number)) return;
    format->largest = fmax(format->largest, fabs(number));
    if (number != floor(number)) format->digits = digits;
}

/* Whole numbers without a point; else as many digits as asked for; powers of ten where that would
 * show nothing but noughts or be too wide. */
static void choose(number_format *format, int digits)
{
    const double most_fixed = 1e6;
    double least_fixed = 10;
    for (int i = 0; i < digits; i++) least_fixed /= 10;
    format->power =
        format->largest >= most_fixed || (format->largest > 0 && format->largest < least_fixed);
    if (format->power) format->digits = digits;
}

static void widen(number_format *format, int width)
{
    if (width > format->width) format->width = width;
}

static void measure(number_format *format, double number)
{
    const number_format narrow = {.digits = format->digits, .power = format->power};
    char text[400];
    widen(format, format_number(&narrow, number, text, sizeof text));
}

/* ---- Arrays ---------------------------------------------------------------------------------- */

/* As NumPy does, but sooner: of long arrays the first and last three of each axis. A line of 10
 * numbers fits a terminal. */
enum { MOST_WHOLE = 256, MOST_COLUMNS = 10, EDGE = 3, ARRAY_DIGITS = 4 };

/* What is done with each number. */
typedef struct array_walk {
    const mha_tensor *tensor;
    number_format format;
    bool cut;
    enum { LOOK, MEASURE, PRINT } task;
} array_walk;

static void visit_number(array_walk *walk, double number)
{
    switch (walk->task) {
    case LOOK: look(&walk->format, number, ARRAY_DIGITS); break;
    case MEASURE: measure(&walk->format, number); break;
    case PRINT: print_number(&walk->format, number); break;
    }
}

static void visit(array_walk *walk, int axis, int64_t at)
{
    const mha_tensor *tensor = walk->tensor;
    const bool printing = walk->task == PRINT;
    if (axis == tensor->ndim) {
        visit_number(walk, (double)((const float *)tensor->data)[at]);
        return;
    }
    const int64_t n = tensor->shape[axis];
    const bool last = axis + 1 == tensor->ndim;
    const bool cut = (walk->cut && n > 2 * EDGE) || (last && n > MOST_COLUMNS);
    if (printing) cli_print("[");
    for (int64_t i = 0; i < n; i++) {
        if (printing && i > 0) {
            for (int line = last ? 0 : tensor->ndim - 1 - axis; line > 0; line--) cli_print("\n");
            cli_print("%*s", last ? 1 : axis + 1, "");
        }
        if (cut && i == EDGE) {
            if (printing) cli_print("...");
            i = n - EDGE - 1;
            continue;
        }
        visit(walk, axis + 1, at + i * tensor->stride[axis]);
    }
    if (printing) cli_print("]");
}

void run_print_array(const mha_tensor *tensor)
{
    int64_t count = 1;
    for (int i = 0; i < tensor->ndim; i++) count *= tensor->shape[i];
    array_walk walk = {.tensor = tensor, .cut = count > MOST_WHOLE, .format = {.width = 1}};
    visit(&walk, 0, 0);
    choose(&walk.format, ARRAY_DIGITS);
    walk.task = MEASURE;
    visit(&walk, 0, 0);
    walk.task = PRINT;
    visit(&walk, 0, 0);
    cli_print("\n");
}

/* ---- Tables ---------------------------------------------------------------------------------- */

enum { TABLE_DIGITS = 3 };

/* "q12", right-aligned in width; the columns that it takes. */
static int print_label(char letter, const mha_tensor *numbers, int64_t i, int width, bool print)
{
    char text[32];
    int length =
        snprintf(text, sizeof text, "%c%" PRId64, letter, numbers ? run_entry(numbers, i) : i);
    if (print) cli_print("%*s", width, text);
    return length;
}

static bool is_dot(double number)
{
    return isinf(number) && number < 0;
}

/* The formats of the numbers and of the sums. */
static void choose_formats(const run_table *t, number_format *format, number_format *sums)
{
    *format = (number_format){.width = 1};
    *sums = (number_format){.width = 3};
    for (int64_t r = 0; r < t->row_count; r++) {
        for (int64_t c = 0; c < t->column_count; c++) look(format, t->at(t, r, c), TABLE_DIGITS);
        if (t->sum) look(sums, t->sum(t, r), TABLE_DIGITS);
    }
    choose(format, TABLE_DIGITS);
    choose(sums, TABLE_DIGITS);
    for (int64_t r = 0; r < t->row_count; r++) {
        for (int64_t c = 0; c < t->column_count; c++)
            if (!is_dot(t->at(t, r, c))) measure(format, t->at(t, r, c));
        if (t->sum) measure(sums, t->sum(t, r));
    }
    for (int64_t c = 0; t->column && c < t->column_count; c++)
        widen(format, print_label(t->column, t->columns, c, 0, false));
}

static void print_heads(const run_table *t, int margin, int width, int sum_width)
{
    if (!t->column && !t->sum) return;
    cli_print("%*s", margin, "");
    for (int64_t c = 0; c < t->column_count; c++) {
        cli_print("  ");
        if (t->column)
            print_label(t->column, t->columns, c, width, true);
        else
            cli_print("%*s", width, "");
    }
    if (t->cut) cli_print("  ...");
    if (t->sum) cli_print("   | %*s", sum_width, "sum");
    cli_print("\n");
}

static void print_row(const run_table *t, int64_t r, const number_format *format)
{
    for (int64_t c = 0; c < t->column_count; c++) {
        const double number = t->at(t, r, c);
        cli_print("  ");
        if (is_dot(number))
            cli_print("%*s", format->width, ".");
        else
            print_number(format, number);
    }
    if (t->cut) cli_print("  ...");
}

void run_print_table(const run_table *t)
{
    number_format format, sums;
    int labels = 0;
    choose_formats(t, &format, &sums);
    for (int64_t r = 0; r < t->row_count; r++) {
        int width = print_label(t->row, t->rows, r, 0, false);
        if (width > labels) labels = width;
    }
    print_heads(t, labels + 4, format.width, sums.width);
    for (int64_t r = 0; r < t->row_count; r++) {
        cli_print("    ");
        print_label(t->row, t->rows, r, labels, true);
        print_row(t, r, &format);
        if (t->sum) {
            cli_print("   | ");
            print_number(&sums, t->sum(t, r));
        }
        cli_print("\n");
    }
}
