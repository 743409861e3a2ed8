/* The effects of positional schemes on the shown pairs. */
#include "run/run_trace.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- Distances ------------------------------------------------------------------------------- */

/* Print a value for each pair, by the distance of its positions. */
typedef struct pairs {
    const run_board *board;
    double (*number)(const void *of, int64_t distance);
    const void *of;
} pairs;

static double pair_at(const run_table *t, int64_t row, int64_t column)
{
    const pairs *p = t->of;
    const mha_attention_desc *desc = &p->board->problem->desc;
    const int64_t offset = desc->q_offsets ? desc->q_offsets[p->board->sequence] : desc->q_offset;
    return p->number(p->of, run_entry(t->columns, column) - run_entry(t->rows, row) - offset);
}

static void print_pairs(const run_board *board, double (*number)(const void *of, int64_t distance),
                        const void *of)
{
    const pairs p = {board, number, of};
    run_print_pairs(board, pair_at, NULL, &p);
}

/* ---- ALiBi and T5 ---------------------------------------------------------------------------- */

static double penalty(const void *slope, int64_t distance)
{
    return -*(const double *)slope * fabs((double)distance);
}

/* The slope of the current head; slopes broadcast to [B,H]. */
static double slope_of(const run_board *board)
{
    const mha_tensor *slopes = board->problem->desc.alibi_slopes;
    const int n = slopes->ndim;
    int64_t at = n > 0 && slopes->shape[n - 1] > 1 ? board->head * slopes->stride[n - 1] : 0;
    if (n > 1 && slopes->shape[n - 2] > 1) at += board->sequence * slopes->stride[n - 2];
    return (double)((const float *)slopes->data)[at];
}

static double bucket(const void *of, int64_t distance)
{
    const mha_attention_desc *desc = of;
    int64_t found;
    mha_status status = mha_t5_bucket(distance, desc->t5_table->shape[0], desc->t5_max_distance,
                                      desc->flags & MHA_ATTENTION_T5_ONE_SIDED, &found);
    return status == MHA_OK ? (double)found : (double)NAN;
}

void run_trace_distances(run_board *board)
{
    const mha_attention_desc *desc = &board->problem->desc;
    if (desc->alibi_slopes) {
        const double slope = slope_of(board);
        run_title(board, board->queries, board->keys,
                  "ALiBi: -slope |s - t|, the slope of head %" PRId64 " is %.6g", board->head,
                  slope);
        print_pairs(board, penalty, &slope);
    }
    if (!desc->t5_table) return;
    mha_tensor column = *desc->t5_table; /* column of this head */
    column.data = (float *)column.data + board->head * column.stride[1];
    column.shape[1] = 1;
    run_title(board, board->queries, board->keys,
              "T5: the bucket of each distance s - t, and the buckets b of head %" PRId64,
              board->head);
    print_pairs(board, bucket, desc);
    cli_print("\n");
    run_print_rows(board, 'b', &column, NULL);
}

/* ---- Shaw ------------------------------------------------------------------------------------ */

static double clipped(const void *of, int64_t distance)
{
    const int64_t most = *(const int64_t *)of;
    return (double)((distance < -most ? -most : distance > most ? most : distance) + most);
}

void run_trace_shaw(run_board *board)
{
    const mha_tensor *keys = board->problem->desc.shaw_keys;
    const int64_t most = keys->shape[0] / 2;
    run_title(board, board->queries, board->keys,
              "Shaw: the row of each distance, s - t clipped to -%" PRId64 " .. %" PRId64
              ", plus %" PRId64 "; and the rows a",
              most, most, most);
    print_pairs(board, clipped, &most);
    cli_print("\n");
    run_print_rows(board, 'a', keys, NULL);
}

/* ---- RoPE ------------------------------------------------------------------------------------ */

/* Print the angles of one position, and the rotation of the first pair of the first shown row that
 * is not at position 0. */
void run_trace_rope(const run_board *board)
{
    const run_problem *p = board->problem;
    const run_options *o = p->options;
    const int64_t turned = o->rope_dim ? o->rope_dim : p->q.shape[3], half = turned / 2;
    const double base = o->rope_base.given ? o->rope_base.value : 10000;
    const double scale = o->rope_scale.given ? o->rope_scale.value : 1;
    const bool halves = o->rope_pairing == MHA_ROPE_HALVES;
    const int64_t rows = board->rows.shape[0], second = halves ? half : 1;
    cli_print("    radians per position, of the pair of elements");
    for (int64_t i = 0; i < half && i < 4; i++)
        cli_print("%s %" PRId64 " and %" PRId64 ": %.4g", i ? "," : "", halves ? i : 2 * i,
                  halves ? i + half : 2 * i + 1,
                  mha_exp(-2.0 * (double)i / (double)turned * mha_log(base)) / scale);
    cli_print("%s\n", half > 4 ? ", ..." : "");
    if (o->positions || o->offsets || p->ragged || rows == 0) return;
    int64_t t = run_entry(&board->rows, 0);
    for (int64_t r = 1; r < rows && t + o->offset == 0; r++) t = run_entry(&board->rows, r);
    const mha_tensor before = run_view(&p->plain_q, board->batch, board->head, 0);
    const mha_tensor after = run_view(&p->q, board->batch, board->head, 0);
    const double x = run_at(&before, t, 0), y = run_at(&before, t, second);
    cli_print("    q%" PRId64 ", elements 0 and %" PRId64 ", by %.4g: %.4g cos - %.4g sin = %.4g, "
              "%.4g sin + %.4g cos = %.4g\n",
              t, second, (double)(t + o->offset) / scale, x, y, run_at(&after, t, 0), x, y,
              run_at(&after, t, second));
}
