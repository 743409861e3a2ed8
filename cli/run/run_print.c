/* Numbers of `multihead run` as text: shapes, aligned columns, arrays as NumPy prints them. */
#include "run/run.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

const char *run_shape_text(const mha_tensor *tensor, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < tensor->ndim && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%" PRId64, i ? ", " : "",
                                 tensor->shape[i]);
    if (used < size) snprintf(text + used, size - used, "]");
    return text;
}

/* ---- Columns --------------------------------------------------------------------------------- */

/* No minus before a nought, nor before a NaN: its sign says nothing and differs by machine. */
static double unsigned_where_idle(double number)
{
    return number == 0 ? 0 : isnan(number) ? (double)NAN : number;
}

static int print_width(const run_format *format, double number)
{
    char text[64];
    number = unsigned_where_idle(number);
    return snprintf(text, sizeof text, format->style == 'f' ? "%.*f" : "%.*e", format->digits,
                    number);
}

/* Whole numbers without a point; else as many digits as asked for; powers of ten where that would
 * show nothing but noughts or be too wide. */
run_format run_format_of(const double *numbers, int64_t count, int digits, bool dots)
{
    const double most_fixed = 1e6;
    run_format format = {.style = 'f', .digits = 0, .width = 1};
    double largest = 0, power = 1;
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(numbers[i])) continue;
        largest = fmax(largest, fabs(numbers[i]));
        if (numbers[i] != floor(numbers[i])) format.digits = digits;
    }
    for (int i = 0; i < digits; i++) power *= 10;
    bool tiny = largest > 0 && largest < 10 / power;
    if (largest >= most_fixed || tiny) {
        format.style = 'e';
        format.digits = digits;
    }
    for (int64_t i = 0; i < count; i++) {
        bool dot = dots && isinf(numbers[i]) && numbers[i] < 0;
        int width = dot ? 1 : print_width(&format, numbers[i]);
        if (width > format.width) format.width = width;
    }
    return format;
}

void run_print_number(const run_format *format, double number)
{
    number = unsigned_where_idle(number);
    if (format->style == 'f')
        cli_print("%*.*f", format->width, format->digits, number);
    else
        cli_print("%*.*e", format->width, format->digits, number);
}

/* ---- Arrays ---------------------------------------------------------------------------------- */

/* As NumPy does, but sooner: of long arrays the first and last three of each axis. A line of 10
 * numbers fits a terminal. */
enum { MOST_WHOLE = 256, MOST_COLUMNS = 10, EDGE = 3, MOST_SHOWN = 2048 };

/* The walk is made twice: first the numbers are collected to learn their width, then printed. */
typedef struct array_walk {
    const mha_tensor *tensor;
    run_format format;
    bool cut, printing;
    double numbers[MOST_SHOWN];
    int64_t count;
} array_walk;

static void visit(array_walk *walk, int axis, int64_t at)
{
    const mha_tensor *tensor = walk->tensor;
    if (axis == tensor->ndim) {
        double number = (double)((const float *)tensor->data)[at];
        if (walk->printing)
            run_print_number(&walk->format, number);
        else if (walk->count < MOST_SHOWN)
            walk->numbers[walk->count++] = number;
        return;
    }
    int64_t n = tensor->shape[axis];
    bool last = axis + 1 == tensor->ndim;
    bool cut = (walk->cut && n > 2 * EDGE) || (last && n > MOST_COLUMNS);
    if (walk->printing) cli_print("[");
    for (int64_t i = 0; i < n; i++) {
        if (walk->printing && i > 0) {
            for (int line = last ? 0 : tensor->ndim - 1 - axis; line > 0; line--) cli_print("\n");
            cli_print("%*s", last ? 1 : axis + 1, "");
        }
        if (cut && i == EDGE) {
            if (walk->printing) cli_print("...");
            i = n - EDGE - 1;
            continue;
        }
        visit(walk, axis + 1, at + i * tensor->stride[axis]);
    }
    if (walk->printing) cli_print("]");
}

void run_print_array(const mha_tensor *tensor)
{
    int64_t count = 1;
    for (int i = 0; i < tensor->ndim; i++) count *= tensor->shape[i];
    array_walk walk = {.tensor = tensor, .cut = count > MOST_WHOLE};
    visit(&walk, 0, 0);
    walk.format = run_format_of(walk.numbers, walk.count, 4, false);
    walk.printing = true;
    visit(&walk, 0, 0);
    cli_print("\n");
}
