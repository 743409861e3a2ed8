/* What the schemes of positions do to the pairs that a trace shows. */
#include "common/arena.h"
#include "run/run_trace.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* ---- Distances ------------------------------------------------------------------------------- */

/* Key position - query position of the n-th row and column shown. */
static int64_t distance(const run_board *board, int64_t row, int64_t column)
{
    const mha_attention_desc *desc = &board->problem->desc;
    int64_t offset = desc->q_offsets ? desc->q_offsets[board->sequence] : desc->q_offset;
    return ((const int64_t *)board->columns.data)[column] -
           ((const int64_t *)board->rows.data)[row] - offset;
}

/* A table of what stands for each pair. */
static cli_exit print_pairs(const run_board *board, double (*number)(const void *user, int64_t s_t),
                            const void *user)
{
    run_table t = run_trace_pairs(board);
    const size_t mark = arena_mark();
    CLI_TRY(ARENA_ALLOC(RUN, t.row_count * t.column_count, &t.numbers));
    for (int64_t r = 0; r < t.row_count; r++)
        for (int64_t c = 0; c < t.column_count; c++)
            t.numbers[r * t.column_count + c] = number(user, distance(board, r, c));
    run_print_table(&t);
    arena_release(mark);
    return CLI_OK;
}

/* An element of a tensor that broadcasts: its last axis is `last`, the one before it `first`. */
static double broadcast(const mha_tensor *tensor, int64_t first, int64_t last)
{
    int n = tensor->ndim;
    int64_t at = n > 0 && tensor->shape[n - 1] > 1 ? last * tensor->stride[n - 1] : 0;
    if (n > 1 && tensor->shape[n - 2] > 1) at += first * tensor->stride[n - 2];
    return (double)((const float *)tensor->data)[at];
}

/* The rows of a table [rows,width], as many as are shown. */
static cli_exit print_entries(const run_board *board, char letter, const mha_tensor *table,
                              int64_t first_column, int64_t columns)
{
    run_table t = {.row = letter, .row_count = table->shape[0], .column_count = columns};
    int64_t most = run_limit(board);
    if (t.row_count > most) t.row_count = most;
    t.cut = columns > most;
    if (t.cut) t.column_count = most;
    const size_t mark = arena_mark();
    CLI_TRY(ARENA_ALLOC(RUN, t.row_count * t.column_count, &t.numbers));
    for (int64_t r = 0; r < t.row_count; r++)
        for (int64_t c = 0; c < t.column_count; c++)
            t.numbers[r * t.column_count + c] = broadcast(table, r, first_column + c);
    run_print_table(&t);
    if (t.row_count < table->shape[0]) cli_print("    ...\n");
    arena_release(mark);
    return CLI_OK;
}

/* ---- ALiBi and T5 ---------------------------------------------------------------------------- */

static double penalty(const void *slope, int64_t distance)
{
    return -*(const double *)slope * fabs((double)distance);
}

static cli_exit show_alibi(const run_board *board, int64_t h, int *number)
{
    char text[128];
    double slope = broadcast(board->problem->desc.alibi_slopes, board->sequence, h);
    snprintf(text, sizeof text, "ALiBi: -slope |s - t|, the slope of head %" PRId64 " is %.6g", h,
             slope);
    run_print_title(number, text, board->queries, board->keys);
    return print_pairs(board, penalty, &slope);
}

static double bucket(const void *user, int64_t distance)
{
    const mha_attention_desc *desc = user;
    int64_t found;
    mha_status status = mha_t5_bucket(distance, desc->t5_table->shape[0], desc->t5_max_distance,
                                      desc->flags & MHA_ATTENTION_T5_ONE_SIDED, &found);
    return status == MHA_OK ? (double)found : (double)NAN;
}

static cli_exit show_t5(const run_board *board, int64_t h, int *number)
{
    const mha_attention_desc *desc = &board->problem->desc;
    char text[128];
    snprintf(text, sizeof text,
             "T5: the bucket of each distance s - t, and the buckets b of head %" PRId64, h);
    run_print_title(number, text, board->queries, board->keys);
    CLI_TRY(print_pairs(board, bucket, desc));
    cli_print("\n");
    return print_entries(board, 'b', desc->t5_table, h, 1);
}

cli_exit run_trace_distances(const run_board *board, int64_t head, int *number)
{
    const mha_attention_desc *desc = &board->problem->desc;
    int64_t h = ((const int64_t *)board->heads.data)[head];
    if (desc->alibi_slopes) CLI_TRY(show_alibi(board, h, number));
    return desc->t5_table ? show_t5(board, h, number) : CLI_OK;
}

/* ---- Shaw ------------------------------------------------------------------------------------ */

static double clipped(const void *user, int64_t distance)
{
    int64_t most = *(const int64_t *)user;
    return (double)((distance < -most ? -most : distance > most ? most : distance) + most);
}

cli_exit run_trace_shaw(const run_board *board, int *number)
{
    const mha_tensor *keys = board->problem->desc.shaw_keys;
    const int64_t most = keys->shape[0] / 2;
    char text[256];
    snprintf(text, sizeof text,
             "Shaw: the row of each distance, s - t clipped to -%" PRId64 " .. %" PRId64
             ", plus %" PRId64 "; and the rows a",
             most, most, most);
    run_print_title(number, text, board->queries, board->keys);
    CLI_TRY(print_pairs(board, clipped, &most));
    cli_print("\n");
    return print_entries(board, 'a', keys, 0, keys->shape[1]);
}

/* ---- RoPE ------------------------------------------------------------------------------------ */

/* The angles of one position; and the first pair of the first row shown that is not at 0, turned. */
void run_trace_rope(const run_board *board, int64_t head)
{
    const run_options *o = board->options;
    const run_problem *p = board->problem;
    const int64_t turned = o->rope_dim ? o->rope_dim : p->q.shape[3], half = turned / 2;
    const double base = o->rope_base.given ? o->rope_base.value : 10000;
    const double scale = o->rope_scale.given ? o->rope_scale.value : 1;
    const bool halves = o->rope_pairing == MHA_ROPE_HALVES;
    cli_print("    radians per position, of the pair of elements");
    for (int64_t i = 0; i < half && i < 4; i++)
        cli_print("%s %" PRId64 " and %" PRId64 ": %.4g", i ? "," : "", halves ? i : 2 * i,
                  halves ? i + half : 2 * i + 1,
                  mha_exp(-2.0 * (double)i / (double)turned * mha_log(base)) / scale);
    cli_print("%s\n", half > 4 ? ", ..." : "");
    if (o->positions || o->offsets || p->ragged || board->rows.shape[0] == 0) return;
    const int64_t *rows = board->rows.data, second = halves ? half : 1;
    int64_t t = rows[0];
    for (int64_t r = 1; r < board->rows.shape[0] && t + o->offset == 0; r++) t = rows[r];
    double x = run_element(&p->plain_q, board->batch, head, t, 0);
    double y = run_element(&p->plain_q, board->batch, head, t, second);
    double angle = (double)(t + o->offset) / scale;
    cli_print("    q%" PRId64 ", elements 0 and %" PRId64 ", by %.4g: %.4g cos - %.4g sin = %.4g, "
              "%.4g sin + %.4g cos = %.4g\n",
              t, second, angle, x, y, run_element(&p->q, board->batch, head, t, 0), x, y,
              run_element(&p->q, board->batch, head, t, second));
}
