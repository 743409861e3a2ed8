/* `multihead run --trace`: the shown part of the problem, its numbers at every step, which the
 * library computes (run_board.c), and the functions that print them. */
#ifndef CLI_RUN_TRACE_H
#define CLI_RUN_TRACE_H

#include "run/run.h"

/* The steps with numbers [heads,rows,keys]. */
typedef enum board_step {
    BOARD_PRODUCTS, /* q.k */
    BOARD_SCALED,   /* times the scale */
    BOARD_CAPPED,   /* after softcap */
    BOARD_BIASED,   /* after bias, ALiBi and T5, before other masks */
    BOARD_MASKED,   /* input of softmax: -inf where hidden */
    BOARD_WEIGHTS,  /* after softmax */
    BOARD_DROPPED,  /* after dropout */
    BOARD_STEPS
} board_step;

typedef struct run_board {
    const run_problem *problem;
    int64_t limit;                   /* maximum number of rows and columns shown */
    int64_t sequence;                /* the shown sequence */
    int64_t batch;                   /* the sequence's index in the tensors; 0: packed */
    int64_t first_query, first_key;  /* the sequence's first row in the tensors */
    int64_t queries, keys;           /* the sequence's number of rows */
    mha_tensor heads, rows, columns; /* i64, the shown rows and columns, counted within the
                                        sequence */
    mha_tensor steps[BOARD_STEPS];   /* [B,heads,rows,longest] f32; empty: not part of this
                                      * problem */
    mha_tensor o;                    /* [B,H,T,Dv] */
    /* The current position of the trace: */
    int64_t head, kv_head;        /* numbers of the shown head and of its key/value head */
    mha_tensor now[BOARD_STEPS];  /* its steps, [rows,longest] */
    int64_t row, column, visible; /* the row that is written out, its key of largest weight, and the
                                   * number of keys that it sees; 0: no row */
    int title;                    /* the number of the last step */
} run_board;

/* Choose the shown part and compute it; select the n-th shown head. */
cli_exit run_board_make(const run_problem *problem, run_board *board);
void run_board_turn(run_board *board, int64_t head);

/* Whether a step is part of this problem. */
bool run_board_has(const run_board *board, board_step step);

/* Print "\n 2. text" and a shape; no shape if rows is -1. */
void run_title(run_board *board, int64_t rows, int64_t columns, const char *format, ...)
    MHA_PRINTF(4, 5);

/* A view of rows and columns from row `first` on: of a head of a sequence in [B,H,T,D], of a
 * sequence in [B,T,D], or of a matrix. */
mha_tensor run_view(const mha_tensor *tensor, int64_t batch, int64_t head, int64_t first);

/* One element of a view of any floating type. */
double run_at(const mha_tensor *view, int64_t row, int64_t column);

/* Print rows of a view, named by a letter. rows NULL: the first rows. */
void run_print_rows(const run_board *board, char letter, const mha_tensor *view,
                    const mha_tensor *rows);

/* Print queries by keys of a view with one row for each shown row. A dot marks cells where `hide`
 * (if any) is -inf. Each row ends with the sum of its first `summed` numbers (0: no sum). */
void run_print_scores(const run_board *board, const mha_tensor *view, const mha_tensor *hide,
                      int64_t summed);

void run_print_pairs(const run_board *board, run_number *at, run_sum *sum, const void *of);

/* " 1*2 + 3*4 = 11": row i of a times row j of b. */
void run_print_product(const mha_tensor *a, int64_t i, const mha_tensor *b, int64_t j,
                       double product);
enum { RUN_WRITTEN_OUT = 8 }; /* maximum number of terms */

/* --module: x, W_q, W_k, W_v before the heads; W_o after them. */
void run_trace_projections(run_board *board);
void run_trace_mixing(run_board *board, const run_results *results);

/* Print the effect of positions: RoPE's angles, Shaw's rows, ALiBi's penalty and T5's bucket of
 * each pair. */
void run_trace_rope(const run_board *board);
void run_trace_shaw(run_board *board);
void run_trace_distances(run_board *board);

/* --cache: print the tokens, one at a time. */
cli_exit run_trace_cache(run_board *board);

#endif
