/* multihead run --trace: attention step by step. The library computes the numbers (run_board.c).
 * This file prints them as tables and writes out the first row. */
#include "run/run_trace.h"
#include "common/words.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- One row written out --------------------------------------------------------------------- */

static int64_t sample_query(const run_board *board)
{
    return run_entry(&board->rows, board->row);
}

static int64_t sample_key(const run_board *board)
{
    return run_entry(&board->columns, board->column);
}

/* q0.k1 = 1*2 + ... = 3 */
static void write_product(const run_board *board, const mha_tensor *q, const mha_tensor *k)
{
    if (q->shape[1] > RUN_WRITTEN_OUT || board->problem->desc.shaw_keys || !board->visible) return;
    cli_print("    q%" PRId64 ".k%" PRId64 " =", sample_query(board), sample_key(board));
    run_print_product(q, sample_query(board), k, sample_key(board),
                      run_at(&board->now[BOARD_PRODUCTS], board->row, board->column));
}

/* Print " + " between the terms of the keys that the row sees: e^0, or 0.1 v0. */
static void write_terms(const run_board *board, board_step step, const char *before,
                        const char *after)
{
    const char *plus = "";
    for (int64_t c = 0; c < board->columns.shape[0]; c++) {
        if (run_at(&board->now[BOARD_MASKED], board->row, c) == -(double)INFINITY) continue;
        cli_print("%s%s%.4g", plus, before, run_at(&board->now[step], board->row, c));
        if (*after) cli_print("%s%" PRId64, after, run_entry(&board->columns, c));
        plus = " + ";
    }
}

/* q0 to k1: e^2 / (e^0 + e^2) = 0.881 */
static void write_softmax(const run_board *board)
{
    const mha_tensor *sink = board->problem->desc.sink_logits;
    if (!board->visible || board->visible > RUN_WRITTEN_OUT) return;
    cli_print("    q%" PRId64 " to k%" PRId64 ": e^%.4g / (", sample_query(board),
              sample_key(board), run_at(&board->now[BOARD_MASKED], board->row, board->column));
    write_terms(board, BOARD_MASKED, "e^", "");
    if (sink)
        cli_print(" + e^%.4g of the sink",
                  (double)((const float *)sink->data)[board->head * sink->stride[0]]);
    cli_print(") = %.4g\n", run_at(&board->now[BOARD_WEIGHTS], board->row, board->column));
}

/* o0 = 0.1 v0 + 0.9 v1 */
static void write_sum(const run_board *board)
{
    const mha_attention_desc *desc = &board->problem->desc;
    if (!board->visible || board->visible > RUN_WRITTEN_OUT || desc->shaw_values) return;
    cli_print("    o%" PRId64 " = %s", sample_query(board), desc->gates ? "gate (" : "");
    write_terms(board, run_board_has(board, BOARD_DROPPED) ? BOARD_DROPPED : BOARD_WEIGHTS, "",
                " v");
    cli_print("%s\n", desc->gates ? ")" : "");
}

/* ---- The steps ------------------------------------------------------------------------------- */

/* Print a step's table; its title is already printed. */
static void print_step(const run_board *board, board_step step)
{
    const bool weights = step == BOARD_WEIGHTS || step == BOARD_DROPPED;
    run_print_scores(board, &board->now[step], weights ? &board->now[BOARD_MASKED] : NULL,
                     weights ? board->keys : 0);
}

#define STEP(board, step, ...)                                      \
    do {                                                            \
        run_title(board, board->queries, board->keys, __VA_ARGS__); \
        print_step(board, step);                                    \
    } while (0)

/* List the given inputs that are added to capped scores or hide keys. */
typedef struct part {
    bool given;
    const char *text;
} part;

static int join(char *text, size_t size, const char *between, const part *parts, size_t count)
{
    int any = 0;
    *text = '\0';
    for (size_t i = 0; i < count; i++) {
        const size_t used = strlen(text);
        if (parts[i].given)
            snprintf(text + used, size - used, "%s%s", any++ ? between : "", parts[i].text);
    }
    return any;
}

static void show_masked(run_board *board)
{
    const mha_attention_desc *desc = &board->problem->desc;
    const part parts[] = {
        {desc->flags & MHA_ATTENTION_CAUSAL, "causal: keys after the query's position"},
        {desc->key_lengths, "lengths: padding"},
        {desc->key_begins, "begins: padding"},
        {desc->flags & MHA_ATTENTION_WINDOW, "window: keys outside it"},
        {desc->query_documents, "documents: keys of other documents"},
        {desc->keep_blocks, "blocks that are not kept"},
        {desc->keep_mask, "keep-mask: keys where it is false"},
    };
    char text[512];
    if (join(text, sizeof text, "; ", parts, sizeof parts / sizeof *parts))
        STEP(board, BOARD_MASKED, "Masked, a dot is hidden (%s)", text);
}

static void show_biased(run_board *board)
{
    const mha_attention_desc *desc = &board->problem->desc;
    const part parts[] = {{desc->bias, " the bias"},
                          {desc->alibi_slopes, " ALiBi's -slope * distance"},
                          {desc->t5_table, " T5's table entry of the distance"}};
    char text[256];
    if (!join(text, sizeof text, ",", parts, sizeof parts / sizeof *parts)) return;
    run_trace_distances(board);
    STEP(board, BOARD_BIASED, "Biased: plus%s", text);
}

/* Print q, k and v (NULL: omitted) of the shown rows. */
static void print_vectors(const run_board *board, const mha_tensor *q, const mha_tensor *k,
                          const mha_tensor *v)
{
    run_print_rows(board, 'q', q, &board->rows);
    cli_print("\n");
    run_print_rows(board, 'k', k, &board->columns);
    if (!v) return;
    cli_print("\n");
    run_print_rows(board, 'v', v, &board->columns);
}

static mha_tensor of_query(const run_board *board, const mha_tensor *tensor)
{
    return run_view(tensor, board->batch, board->head, board->first_query);
}

static mha_tensor of_key(const run_board *board, const mha_tensor *tensor)
{
    return run_view(tensor, board->batch, board->kv_head, board->first_key);
}

static void show_inputs(run_board *board, const mha_tensor *q, const mha_tensor *k)
{
    const run_problem *p = board->problem;
    const bool norm = p->options->qk_norm, rope = p->options->rope;
    const int64_t t = board->queries, keys = board->keys, size = p->q.shape[3];
    const mha_tensor plain_q = of_query(board, &p->plain_q), plain_k = of_key(board, &p->plain_k);
    const mha_tensor v = of_key(board, &p->v);
    run_title(board, -1, 0,
              "Queries q [%" PRId64 ", %" PRId64 "], keys k [%" PRId64 ", %" PRId64
              "] and values v [%" PRId64 ", %" PRId64 "]: a row for each token",
              t, size, keys, size, keys, p->v.shape[3]);
    print_vectors(board, &plain_q, &plain_k, &v);
    if (!norm && !rope && !p->options->dtype) return;
    run_title(board, -1, 0, "%s",
              norm && rope ? "Norms of q and k divided out, then RoPE: rotated by position"
              : norm       ? "Norms of q and k divided out"
              : rope       ? "RoPE: q and k rotated by the positions of their tokens"
                           : "q and k as --dtype rounds them");
    print_vectors(board, q, k, NULL);
    if (rope && !norm) run_trace_rope(board);
}

static void show_scores(run_board *board, const mha_tensor *q, const mha_tensor *k)
{
    const mha_attention_desc *desc = &board->problem->desc;
    const double scale = (double)desc->scale, cap = (double)desc->softcap;
    if (desc->shaw_keys) run_trace_shaw(board);
    STEP(board, BOARD_PRODUCTS, "%s",
         desc->shaw_keys ? "Scores: each query times each key plus Shaw's row of the distance, "
                           "q.(k + a)"
                         : "Scores: each query times each key, q.k");
    write_product(board, q, k);
    if (desc->flags & MHA_ATTENTION_SCALE_GIVEN || desc->scale != 0)
        STEP(board, BOARD_SCALED, "Scaled: times %.6g", scale);
    else
        STEP(board, BOARD_SCALED, "Scaled: times 1 / sqrt(%" PRId64 ") = %.6g", q->shape[1],
             1 / sqrt((double)q->shape[1]));
    if (run_board_has(board, BOARD_CAPPED))
        STEP(board, BOARD_CAPPED, "Capped: %.6g tanh(score / %.6g)", cap, cap);
    show_biased(board);
    show_masked(board);
}

static bool sees_nothing(const run_board *board)
{
    const mha_tensor *weights = &board->now[BOARD_WEIGHTS];
    for (int64_t r = 0; r < board->rows.shape[0]; r++) {
        double sum = 0;
        for (int64_t s = 0; s < board->keys; s++) sum += run_at(weights, r, s);
        if (sum == 0) return true;
    }
    return false;
}

static void show_weights(run_board *board)
{
    const mha_attention_desc *desc = &board->problem->desc;
    const double dropout = (double)desc->dropout;
    STEP(board, BOARD_WEIGHTS, "Softmax: e^score divided by the row's sum%s",
         desc->sink_logits     ? ", to which the sink adds"
         : sees_nothing(board) ? "; a row that sees no key is 0"
                               : "; each row sums to 1");
    write_softmax(board);
    if (dropout < 1 && run_board_has(board, BOARD_DROPPED))
        STEP(board, BOARD_DROPPED,
             "Dropout: weights become 0 with probability %.6g, the others are divided by %.6g",
             dropout, 1 - dropout);
    else if (run_board_has(board, BOARD_DROPPED))
        STEP(board, BOARD_DROPPED, "Dropout: weights become 0 with probability %.6g", dropout);
}

static void show_head(run_board *board)
{
    const run_problem *p = board->problem;
    const mha_tensor q = of_query(board, &p->q), k = of_key(board, &p->k);
    const mha_tensor o = of_query(board, &board->o);
    cli_print("\nHead %" PRId64, board->head);
    if (p->q.shape[1] != p->k.shape[1]) cli_print(", with key/value head %" PRId64, board->kv_head);
    cli_print("\n");
    show_inputs(board, &q, &k);
    show_scores(board, &q, &k);
    show_weights(board);
    run_title(board, board->queries, o.shape[1], "Output o: each row's weights times %s",
              p->desc.gates         ? "the values, times the gate"
              : p->desc.shaw_values ? "v plus Shaw's row of the distance"
                                    : "the values");
    run_print_rows(board, 'o', &o, &board->rows);
    write_sum(board);
}

/* ---- The trace ------------------------------------------------------------------------------- */

static void show_opening(const run_board *board)
{
    const run_problem *p = board->problem;
    const mha_attention_desc *desc = &p->desc;
    const int64_t heads = p->q.shape[1], size = p->q.shape[3], value_size = p->v.shape[3];
    const int64_t offset = desc->q_offsets ? desc->q_offsets[board->sequence] : desc->q_offset;
    const struct {
        const char *what;
        int64_t shown, count;
    } parts[] = {{"heads", board->heads.shape[0], heads},
                 {"queries", board->rows.shape[0], board->queries},
                 {"keys", board->columns.shape[0], board->keys},
                 {"numbers of a query or key", board->limit, size},
                 {"numbers of a value", board->limit, value_size}};
    bool any = false;
    cli_print("Attention step by step: %so = softmax(q k^T * scale) v\n",
              p->options->module ? "y = concat(heads) W_o^T, each head " : "");
    if (run_sequences(p) > 1)
        cli_print("Sequence %" PRId64 " of %" PRId64 "; ", board->sequence, run_sequences(p));
    cli_print("%" PRId64 " head%s, %" PRId64 " queries, %" PRId64 " keys, head size %" PRId64
              ", values of %" PRId64 "\n",
              heads, words_s(heads), board->queries, board->keys, size, value_size);
    if (offset != 0) cli_print("Query q<t> is at key position t + %" PRId64 "\n", offset);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (parts[i].shown >= parts[i].count) continue;
        cli_print("%s%" PRId64 " of %" PRId64 " %s", any ? ", " : "Shown: ", parts[i].shown,
                  parts[i].count, parts[i].what);
        any = true;
    }
    if (any)
        cli_print("; everything is computed.\nOthers: --trace-head, --trace-row, --trace-key LIST; "
                  "more: --trace-limit N\n");
}

cli_exit run_trace(const run_problem *p, const run_results *results)
{
    run_board board;
    CLI_TRY(run_board_make(p, &board));
    show_opening(&board);
    if (p->options->module) run_trace_projections(&board);
    for (int64_t head = 0; head < board.heads.shape[0]; head++) {
        run_board_turn(&board, head);
        show_head(&board);
    }
    if (p->options->module) run_trace_mixing(&board, results);
    return p->options->cache ? run_trace_cache(&board) : CLI_OK;
}
