/* Titles and tables of numbers in a trace: see run_table.h, run_trace.h. */
#include "common/arena.h"
#include "run/run_trace.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

enum { DIGITS = 3 };

/* "q12" right-aligned in width. */
static void print_label(char letter, int64_t number, int width)
{
    char text[32];
    snprintf(text, sizeof text, "%c%" PRId64, letter, number);
    cli_print("%*s", width, text);
}

static int label_width(char letter, const int64_t *numbers, int64_t count)
{
    int width = 0;
    char text[32];
    for (int64_t i = 0; i < count; i++) {
        int length = snprintf(text, sizeof text, "%c%" PRId64, letter, numbers ? numbers[i] : i);
        if (length > width) width = length;
    }
    return width;
}

static void print_heads(const run_table *t, int margin, const run_format *format, int sum_width)
{
    if (!t->column && !t->sums) return;
    cli_print("%*s", margin, "");
    for (int64_t c = 0; c < t->column_count; c++) {
        cli_print("  ");
        if (t->column)
            print_label(t->column, t->columns ? t->columns[c] : c, format->width);
        else
            cli_print("%*s", format->width, "");
    }
    if (t->cut) cli_print("  ...");
    if (t->sums) cli_print("   | %*s", sum_width, "sum");
    cli_print("\n");
}

static void print_cell(const run_format *format, double number)
{
    cli_print("  ");
    if (isinf(number) && number < 0)
        cli_print("%*s", format->width, ".");
    else
        run_print_number(format, number);
}

void run_print_table(const run_table *t)
{
    run_format format = run_format_of(t->numbers, t->row_count * t->column_count, DIGITS, true);
    run_format sums = {.style = 'f', .digits = DIGITS, .width = 5};
    int heads = t->column ? label_width(t->column, t->columns, t->column_count) : 0;
    if (format.width < heads) format.width = heads;
    if (t->sums) sums = run_format_of(t->sums, t->row_count, DIGITS, false);
    if (sums.width < 3) sums.width = 3;
    int labels = label_width(t->row, t->rows, t->row_count);
    print_heads(t, labels + 4, &format, sums.width);
    for (int64_t r = 0; r < t->row_count; r++) {
        cli_print("    ");
        print_label(t->row, t->rows ? t->rows[r] : r, labels);
        for (int64_t c = 0; c < t->column_count; c++)
            print_cell(&format, t->numbers[r * t->column_count + c]);
        if (t->cut) cli_print("  ...");
        if (t->sums) {
            cli_print("   | ");
            run_print_number(&sums, t->sums[r]);
        }
        cli_print("\n");
    }
}

/* ---- Titles ---------------------------------------------------------------------------------- */

void run_print_heading(int *number, const char *text)
{
    cli_print("\n %d. %s\n", ++*number, text);
}

void run_print_title(int *number, const char *text, int64_t rows, int64_t columns)
{
    cli_print("\n %d. %s   [%" PRId64 ", %" PRId64 "]\n", ++*number, text, rows, columns);
}

/* ---- Rows of tensors ------------------------------------------------------------------------- */

int64_t run_limit(const run_board *board)
{
    return board->options->trace_limit ? board->options->trace_limit : 16;
}

double run_element(const mha_tensor *tensor, int64_t b, int64_t h, int64_t t, int64_t d)
{
    int64_t at = b * tensor->stride[0] + h * tensor->stride[1] + t * tensor->stride[2] +
                 d * tensor->stride[3];
    double number = 0;
    char *place = (char *)tensor->data + (size_t)at * mha_dtype_size(tensor->dtype);
    mha_tensor from = mha_tensor_contiguous(place, tensor->dtype, 0, NULL);
    mha_tensor to = mha_tensor_contiguous(&number, MHA_F64, 0, NULL);
    return mha_tensor_convert(&from, &to) == MHA_OK ? number : (double)NAN;
}

cli_exit run_print_rows(const run_board *board, char letter, const mha_tensor *tensor, int64_t head,
                        int64_t first, const mha_tensor *rows)
{
    int64_t width = tensor->shape[3], most = run_limit(board);
    run_table t = {.row = letter,
                   .rows = rows->data,
                   .row_count = rows->shape[0],
                   .column_count = width < most ? width : most,
                   .cut = width > most};
    const size_t mark = arena_mark();
    CLI_TRY(ARENA_ALLOC(RUN, t.row_count * t.column_count, &t.numbers));
    for (int64_t r = 0; r < t.row_count; r++)
        for (int64_t c = 0; c < t.column_count; c++)
            t.numbers[r * t.column_count + c] =
                run_element(tensor, board->batch, head, first + t.rows[r], c);
    run_print_table(&t);
    arena_release(mark);
    return CLI_OK;
}
