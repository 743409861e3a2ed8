/* `multihead run --trace`: the part of the problem that is shown and its numbers at every step,
 * all from the library (run_board.c), and how the parts of a trace write them. */
#ifndef CLI_RUN_TRACE_H
#define CLI_RUN_TRACE_H

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
    const run_problem *problem;
    int64_t limit;                   /* rows and columns shown at most */
    int64_t sequence;                /* shown */
    int64_t batch;                   /* its index in the tensors: 0 where they are packed */
    int64_t first_query, first_key;  /* where it begins in them */
    int64_t queries, keys;           /* how many it has */
    mha_tensor heads, rows, columns; /* i64, shown, counted within the sequence */
    mha_tensor steps[BOARD_STEPS];   /* [B,heads,rows,longest] f32; empty: not part of this */
    mha_tensor o;                    /* [B,H,T,Dv] */
    /* Where the trace is: */
    int64_t head, kv_head;        /* numbers of the head that is shown and the one it reads */
    mha_tensor now[BOARD_STEPS];  /* its steps, [rows,longest] */
    int64_t row, column, visible; /* the row that is written out, its key of largest weight, and how
                                        many keys it sees; 0: none is */
    int title;                    /* the last one's number */
} run_board;

/* Choose what is shown and compute it; go to the n-th head shown. */
cli_exit run_board_make(const run_problem *problem, run_board *board);
void run_board_turn(run_board *board, int64_t head);

/* Whether a step is part of this problem. */
bool run_board_has(const run_board *board, board_step step);

/* "\n 2. text", and behind it a shape; the text alone where rows is -1. */
void run_title(run_board *board, int64_t rows, int64_t columns, const char *format, ...)
    MHA_PRINTF(4, 5);

/* The rows and columns from row `first` on of a sequence and head of [B,H,T,D], of a sequence of
 * [B,T,D], or of a matrix. */
mha_tensor run_view(const mha_tensor *tensor, int64_t batch, int64_t head, int64_t first);

/* One of its numbers, whatever its floating type. */
double run_at(const mha_tensor *view, int64_t row, int64_t column);

/* Rows of a view, named by a letter; NULL: the first ones. */
void run_print_rows(const run_board *board, char letter, const mha_tensor *view,
                    const mha_tensor *rows);

/* Queries by keys, both of those shown: of a view that has one row for each row shown, with a
 * dot where `hide` (if any) is -inf, and at the end of a row the sum of so many numbers (0: no
 * sum). */
void run_print_scores(const run_board *board, const mha_tensor *view, const mha_tensor *hide,
                      int64_t summed);

void run_print_pairs(const run_board *board, run_number *at, run_sum *sum, const void *of);

/* " 1*2 + 3*4 = 11": row i of a times row j of b. */
void run_print_product(const mha_tensor *a, int64_t i, const mha_tensor *b, int64_t j,
                       double product);
enum { RUN_WRITTEN_OUT = 8 }; /* terms at most */

/* --module: x, W_q, W_k, W_v before the heads; W_o after them. */
void run_trace_projections(run_board *board);
void run_trace_mixing(run_board *board, const run_results *results);

/* What positions do: RoPE's angles, Shaw's rows, ALiBi's penalty and T5's bucket of each pair. */
void run_trace_rope(const run_board *board);
void run_trace_shaw(run_board *board);
void run_trace_distances(run_board *board);

/* --cache: the tokens one by one. */
cli_exit run_trace_cache(run_board *board);

#endif
