/* What `multihead run --trace` has before it writes: the part of the problem that is shown, and its
 * numbers at every step, all from the library. */
#ifndef CLI_RUN_BOARD_H
#define CLI_RUN_BOARD_H

#include "run/run.h"

/* The steps whose numbers are [heads,rows,keys]. */
typedef enum board_step {
    BOARD_PRODUCTS, /* q.k */
    BOARD_SCALED,   /* times the scale */
    BOARD_CAPPED,   /* after softcap */
    BOARD_BIASED,   /* after bias, ALiBi, T5; nothing hidden but by the bias itself */
    BOARD_MASKED,   /* what softmax sees: -inf where hidden */
    BOARD_WEIGHTS,  /* after softmax */
    BOARD_DROPPED,  /* after dropout */
    BOARD_STEPS
} board_step;

typedef struct run_board {
    const run_options *options;
    const run_problem *problem;
    int64_t sequence;                /* shown */
    int64_t batch;                   /* its index in the tensors: 0 where they are packed */
    int64_t first_query, first_key;  /* where it begins in them */
    int64_t queries, keys;           /* how many it has */
    mha_tensor heads, rows, columns; /* i64, shown, counted within the sequence */
    mha_tensor tensor_rows;          /* rows as the library counts them */
    mha_tensor steps[BOARD_STEPS];   /* [B,heads,rows,longest] f32; empty: not part of this */
    mha_tensor o;                    /* [B,H,T,Dv] */
} run_board;

/* Choose what is shown and compute it. */
cli_exit run_board_make(const run_options *options, mha_context *context,
                        const run_problem *problem, run_board *board);

/* Whether a step is part of this problem. */
bool run_board_has(const run_board *board, board_step step);

/* The number of a step, for the n-th head, row and column shown. */
double run_board_at(const run_board *board, board_step step, int64_t head, int64_t row,
                    int64_t column);

/* Sum over all keys of a row, shown or not. */
double run_board_row_sum(const run_board *board, board_step step, int64_t head, int64_t row);

#endif
