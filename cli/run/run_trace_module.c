/* The steps of a module around its heads: x W_q^T and so on, and concat(heads) W_o^T. */
#include "run/run_trace.h"

#include <inttypes.h>

/* Write q1[0] = x1.w0 = 1*1 + ... = 3 for the first number of y that is not 0, or else the first
 * number. */
static void write_product(const char *letters, const mha_tensor *x, const mha_tensor *weight,
                          const mha_tensor *y, const mha_tensor *rows)
{
    const int64_t width = y->shape[1], count = rows->shape[0] * width;
    int64_t i = 0;
    if (x->shape[1] > RUN_WRITTEN_OUT || count == 0) return;
    while (i < count && run_at(y, run_entry(rows, i / width), i % width) == 0) i++;
    if (i == count) i = 0;
    const int64_t t = run_entry(rows, i / width), column = i % width;
    cli_print("    %c%" PRId64 "[%" PRId64 "] = %c%" PRId64 ".w%" PRId64 " =", letters[1], t,
              column, letters[0], t, column);
    run_print_product(x, t, weight, column, run_at(y, t, column));
}

/* y = x W^T: print W, y, and the sum behind one element of y. letters: the names of the rows of x
 * and y. */
static void show_product(run_board *board, const char *letters, char name, const mha_tensor *x,
                         const mha_tensor *weight, const mha_tensor *y, const mha_tensor *rows)
{
    cli_print("    the rows of W_%c   [%" PRId64 ", %" PRId64 "]\n", name, weight->shape[0],
              weight->shape[1]);
    run_print_rows(board, 'w', weight, NULL);
    cli_print("\n");
    run_print_rows(board, letters[1], y, rows);
    write_product(letters, x, weight, y, rows);
}

static mha_tensor view_of(const run_board *board, const mha_tensor *tensor, bool keys)
{
    return run_view(tensor, board->batch, 0, keys ? board->first_key : board->first_query);
}

static void show_projection(run_board *board, int which, const char *letters, const char *name)
{
    const run_module *module = &board->problem->module;
    const bool keys = which > 0;
    const mha_tensor *weight = &module->weights[which];
    const mha_tensor x = view_of(board, keys ? &module->memory : &module->x, keys);
    const mha_tensor y = view_of(board, &module->projected[which], keys);
    const int64_t size = board->problem->q.shape[3], heads = weight->shape[0] / size;
    const int64_t rows = keys ? board->keys : board->queries;
    if (heads > 1)
        run_title(board, rows, weight->shape[0],
                  "%s = %c W_%c^T: %" PRId64 " columns for each of %" PRId64 " heads, side by side",
                  name, letters[0], letters[1], size, heads);
    else
        run_title(board, rows, weight->shape[0], "%s = %c W_%c^T", name, letters[0], letters[1]);
    show_product(board, letters, letters[1], &x, weight, &y, keys ? &board->columns : &board->rows);
}

void run_trace_projections(run_board *board)
{
    const run_options *o = board->problem->options;
    const run_module *module = &board->problem->module;
    const mha_tensor x = view_of(board, &module->x, false);
    const mha_tensor plain = o->sinusoidal ? view_of(board, &module->plain_x, false) : x;
    const mha_tensor memory = view_of(board, &module->memory, true);
    cli_print("\nProjections, of all heads at once\n");
    run_title(board, board->queries, x.shape[1], "Tokens x, one per row");
    run_print_rows(board, 'x', &plain, &board->rows);
    if (o->sinusoidal) {
        run_title(board, module->encoding.shape[0], x.shape[1],
                  "Positions p: column 2i of row t is sin(t / 10000^(2i/E)), 2i + 1 its cos");
        run_print_rows(board, 'p', &module->encoding, NULL);
        run_title(board, board->queries, x.shape[1], "Their sum, x from here on");
        run_print_rows(board, 'x', &x, &board->rows);
    }
    if (o->memory) {
        run_title(board, board->keys, memory.shape[1], "Memory m, the input of keys and values");
        run_print_rows(board, 'm', &memory, &board->columns);
    }
    show_projection(board, 0, "xq", "Queries q");
    show_projection(board, 1, o->memory ? "mk" : "xk", "Keys k");
    show_projection(board, 2, o->memory ? "mv" : "xv", "Values v");
}

void run_trace_mixing(run_board *board, const run_results *results)
{
    const run_problem *p = board->problem;
    const int64_t shape[] = {p->q.shape[0], p->q.shape[2], p->q.shape[1] * p->v.shape[3]};
    const mha_tensor heads = mha_tensor_contiguous(results->arrays[0].data, MHA_F32, 3, shape);
    const mha_tensor c = view_of(board, &heads, false);
    const mha_tensor y = view_of(board, &results->saved[0], false);
    board->title = 0;
    cli_print("\nAll heads\n");
    run_title(board, board->queries, c.shape[1],
              "Concatenated, c: the o of each head, side by side");
    run_print_rows(board, 'c', &c, &board->rows);
    run_title(board, board->queries, y.shape[1],
              "Output y = c W_o^T: every head contributes to every number");
    show_product(board, "cy", 'o', &c, &p->module.weights[3], &y, &board->rows);
}
