/* The parts of a trace: what is shown before, within and after the steps of run_trace.c, and how. */
#ifndef CLI_RUN_TRACE_H
#define CLI_RUN_TRACE_H

#include "run/run_board.h"
#include "run/run_table.h"

/* "\n 2. text", and behind it a shape. */
void run_print_heading(int *number, const char *text);
void run_print_title(int *number, const char *text, int64_t rows, int64_t columns);

/* Rows and columns shown at most. */
int64_t run_limit(const run_board *board);

/* One number of [B,H,T,D], whatever its floating type. */
double run_element(const mha_tensor *tensor, int64_t b, int64_t h, int64_t t, int64_t d);

/* The rows of one head of a tensor, named by a letter; first is where the sequence begins in it. */
cli_exit run_print_rows(const run_board *board, char letter, const mha_tensor *tensor, int64_t head,
                        int64_t first, const mha_tensor *rows);

/* --module: x, W_q, W_k, W_v before the heads; W_o after them. */
cli_exit run_trace_projections(const run_board *board);
cli_exit run_trace_mixing(const run_board *board, const run_results *results);

/* What positions do: RoPE's angles, Shaw's rows, ALiBi's penalty and T5's bucket of each pair. */
void run_trace_rope(const run_board *board, int64_t head);
cli_exit run_trace_shaw(const run_board *board, int *number);
cli_exit run_trace_distances(const run_board *board, int64_t head, int *number);

/* --cache: the tokens one by one. */
cli_exit run_trace_cache(const run_board *board, mha_context *context);

/* A table of queries by keys, without its numbers. */
run_table run_trace_pairs(const run_board *board);

#endif
