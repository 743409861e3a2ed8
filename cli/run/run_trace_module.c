/* A module's steps around its heads: x W_q^T and so on, and concat(heads) W_o^T. */
#include "common/arena.h"
#include "run/run_trace.h"

#include <inttypes.h>
#include <stdio.h>

enum { MOST_WRITTEN_OUT = 8 };

/* [T,W] or [B,T,W] as [B,1,T,W]. */
static mha_tensor rows_of(const mha_tensor *tokens)
{
    int n = tokens->ndim;
    int64_t shape[] = {n == 3 ? tokens->shape[0] : 1, 1, tokens->shape[n - 2],
                       tokens->shape[n - 1]};
    return mha_tensor_contiguous(tokens->data, tokens->dtype, 4, shape);
}

/* The rows of a matrix, as many as are shown. */
static cli_exit print_matrix(const run_board *board, char letter, const mha_tensor *matrix)
{
    mha_tensor view = rows_of(matrix), rows;
    int64_t count = view.shape[2], most = run_limit(board);
    if (matrix->ndim == 2) view.stride[0] = 0; /* the same for every sequence */
    if (count > most) count = most;
    CLI_TRY(run_array_make(MHA_I64, 1, &count, &rows));
    for (int64_t i = 0; i < count; i++) ((int64_t *)rows.data)[i] = i;
    CLI_TRY(run_print_rows(board, letter, &view, 0, 0, &rows));
    if (count < view.shape[2]) cli_print("    ...\n");
    return CLI_OK;
}

/* q1[0] = x1.w0 = 1*1 + ... = 3: the first number of y that is not 0, or the first. */
static void write_product(const run_board *board, const char *letters, const mha_tensor *from,
                          const mha_tensor *weight, const mha_tensor *to, int64_t first,
                          const mha_tensor *rows)
{
    const mha_tensor x = rows_of(from), w = rows_of(weight), y = rows_of(to);
    int64_t width = x.shape[3], b = board->batch, r = 0, column = 0;
    if (width > MOST_WRITTEN_OUT || rows->shape[0] == 0 || y.shape[3] == 0) return;
    const int64_t *numbers = rows->data;
    for (int64_t i = rows->shape[0] * y.shape[3] - 1; i >= 0; i--) {
        if (run_element(&y, b, 0, first + numbers[i / y.shape[3]], i % y.shape[3]) == 0) continue;
        r = i / y.shape[3];
        column = i % y.shape[3];
    }
    int64_t t = numbers[r];
    cli_print("    %c%" PRId64 "[%" PRId64 "] = %c%" PRId64 ".w%" PRId64 " =", letters[1], t,
              column, letters[0], t, column);
    for (int64_t e = 0; e < width; e++)
        cli_print("%s %.4g*%.4g", e ? " +" : "", run_element(&x, b, 0, first + t, e),
                  run_element(&w, 0, 0, column, e));
    cli_print(" = %.4g\n", run_element(&y, b, 0, first + t, column));
}

/* letters: of the rows of what is projected, and of its product. */
typedef struct projection {
    const char *letters, *name;
    int which;
} projection;

static cli_exit show_projection(const run_board *board, const projection *p, int *number)
{
    const run_module *module = &board->problem->module;
    const mha_tensor *from = p->which ? &module->memory : &module->x;
    const mha_tensor *weight = &module->weights[p->which], *to = &module->projected[p->which];
    const mha_tensor *rows = p->which ? &board->columns : &board->rows, view = rows_of(to);
    int64_t first = p->which ? board->first_key : board->first_query;
    int64_t size = board->problem->q.shape[3], heads = weight->shape[0] / size;
    char text[256], columns[96] = "";
    if (heads > 1)
        snprintf(columns, sizeof columns,
                 ": %" PRId64 " columns for each of %" PRId64 " heads, side by side", size, heads);
    snprintf(text, sizeof text, "%s = %c W_%c^T%s", p->name, p->letters[0], p->letters[1], columns);
    run_print_title(number, text, p->which ? board->keys : board->queries, weight->shape[0]);
    cli_print("    the rows of W_%c   [%" PRId64 ", %" PRId64 "]\n", p->letters[1],
              weight->shape[0], weight->shape[1]);
    CLI_TRY(print_matrix(board, 'w', weight));
    cli_print("\n");
    CLI_TRY(run_print_rows(board, p->letters[1], &view, 0, first, rows));
    write_product(board, p->letters, from, weight, to, first, rows);
    return CLI_OK;
}

static cli_exit show_tokens(const run_board *board, int *number)
{
    const run_module *module = &board->problem->module;
    const mha_tensor x = rows_of(&module->x), memory = rows_of(&module->memory);
    const bool sums = board->options->sinusoidal;
    const mha_tensor plain = sums ? rows_of(&module->plain_x) : x;
    run_print_title(number, "Tokens x: a row for each", board->queries, x.shape[3]);
    CLI_TRY(run_print_rows(board, 'x', &plain, 0, board->first_query, &board->rows));
    if (sums) {
        run_print_title(number,
                        "Positions p: column 2i of row t is sin(t / 10000^(2i/E)), 2i + 1 its cos",
                        module->encoding.shape[0], x.shape[3]);
        CLI_TRY(print_matrix(board, 'p', &module->encoding));
        run_print_title(number, "Their sum, x from here on", board->queries, x.shape[3]);
        CLI_TRY(run_print_rows(board, 'x', &x, 0, board->first_query, &board->rows));
    }
    if (!board->options->memory) return CLI_OK;
    run_print_title(number, "Memory m, which keys and values are made of", board->keys,
                    memory.shape[3]);
    return run_print_rows(board, 'm', &memory, 0, board->first_key, &board->columns);
}

cli_exit run_trace_projections(const run_board *board)
{
    const bool cross = board->options->memory;
    const projection parts[] = {{"xq", "Queries q", 0},
                                {cross ? "mk" : "xk", "Keys k", 1},
                                {cross ? "mv" : "xv", "Values v", 2}};
    int number = 0;
    cli_print("\nProjections, of all heads at once\n");
    CLI_TRY(show_tokens(board, &number));
    for (int i = 0; i < 3; i++) CLI_TRY(show_projection(board, &parts[i], &number));
    return CLI_OK;
}

cli_exit run_trace_mixing(const run_board *board, const run_results *results)
{
    const run_problem *p = board->problem;
    const mha_tensor *weight = &p->module.weights[3], *out = &results->saved[0];
    const int64_t shape[] = {p->q.shape[0], p->q.shape[2], p->q.shape[1] * p->v.shape[3]};
    const mha_tensor heads = mha_tensor_contiguous(results->arrays[0].data, MHA_F32, 3, shape);
    const mha_tensor concat = rows_of(&heads), y = rows_of(out);
    int number = 0;
    cli_print("\nAll heads\n");
    run_print_title(&number, "Concatenated, c: the o of each head, side by side", board->queries,
                    shape[2]);
    CLI_TRY(run_print_rows(board, 'c', &concat, 0, board->first_query, &board->rows));
    run_print_title(&number, "Output y = c W_o^T: every head takes part in every number",
                    board->queries, y.shape[3]);
    cli_print("    the rows of W_o   [%" PRId64 ", %" PRId64 "]\n", weight->shape[0],
              weight->shape[1]);
    CLI_TRY(print_matrix(board, 'w', weight));
    cli_print("\n");
    CLI_TRY(run_print_rows(board, 'y', &y, 0, board->first_query, &board->rows));
    write_product(board, "cy", &heads, weight, out, board->first_query, &board->rows);
    return CLI_OK;
}
