/* multihead run --trace: attention step by step, as on a blackboard. The numbers are the library's
 * (run_board.c); here they are put under each other, and the first row's are written out. */
#include "run/run_trace.h"
#include "common/arena.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_WRITTEN_OUT = 8 };

/* ---- Scores and weights ---------------------------------------------------------------------- */

static bool weights(board_step step)
{
    return step == BOARD_WEIGHTS || step == BOARD_DROPPED;
}

static bool hidden(const run_board *board, int64_t head, int64_t row, int64_t column)
{
    double score = run_board_at(board, BOARD_MASKED, head, row, column);
    return isinf(score) && score < 0;
}

run_table run_trace_pairs(const run_board *board)
{
    return (run_table){.row = 'q',
                       .column = 'k',
                       .rows = board->rows.data,
                       .columns = board->columns.data,
                       .row_count = board->rows.shape[0],
                       .column_count = board->columns.shape[0],
                       .cut = board->columns.shape[0] < board->keys};
}

static cli_exit print_step(const run_board *board, board_step step, int64_t head)
{
    run_table t = run_trace_pairs(board);
    const size_t mark = arena_mark();
    CLI_TRY(ARENA_ALLOC(RUN, t.row_count * t.column_count, &t.numbers));
    if (weights(step)) CLI_TRY(ARENA_ALLOC(RUN, t.row_count, &t.sums));
    for (int64_t r = 0; r < t.row_count; r++) {
        for (int64_t c = 0; c < t.column_count; c++)
            t.numbers[r * t.column_count + c] = weights(step) && hidden(board, head, r, c)
                                                    ? -(double)INFINITY
                                                    : run_board_at(board, step, head, r, c);
        if (t.sums) t.sums[r] = run_board_row_sum(board, step, head, r);
    }
    run_print_table(&t);
    arena_release(mark);
    return CLI_OK;
}

/* ---- One row written out --------------------------------------------------------------------- */

static int64_t visible_count(const run_board *board, int64_t head, int64_t row)
{
    int64_t count = 0;
    for (int64_t c = 0; c < board->columns.shape[0]; c++) count += !hidden(board, head, row, c);
    return count;
}

/* The row that is written out: the first one shown that sees two keys, else one; and its key of
 * largest weight. False if there is none, or if not all keys are on the board. */
static bool find_sample(const run_board *board, int64_t head, int64_t *row, int64_t *column)
{
    int64_t columns = board->columns.shape[0];
    if (columns != board->keys || board->options->trace_keys) return false;
    int64_t best = 0;
    for (int64_t r = 0; r < board->rows.shape[0] && best < 2; r++) {
        int64_t count = visible_count(board, head, r);
        if (count <= best) continue;
        best = count;
        *row = r;
    }
    double most = 0;
    for (int64_t c = 0; best > 0 && c < columns; c++) {
        double weight = run_board_at(board, BOARD_WEIGHTS, head, *row, c);
        if (!(weight > most)) continue;
        most = weight;
        *column = c;
    }
    return most > 0; /* not if the row is NaN */
}

static int64_t number_of(const mha_tensor *list, int64_t i)
{
    return ((const int64_t *)list->data)[i];
}

/* q0.k1 = 1*2 + ... = 3 */
static void write_product(const run_board *board, int64_t head, int64_t kv_head)
{
    const run_problem *p = board->problem;
    int64_t row, column, size = p->q.shape[3];
    if (size > MOST_WRITTEN_OUT || p->desc.shaw_keys || !find_sample(board, head, &row, &column))
        return;
    int64_t q = number_of(&board->rows, row), k = number_of(&board->columns, column);
    int64_t h = number_of(&board->heads, head);
    cli_print("    q%" PRId64 ".k%" PRId64 " =", q, k);
    for (int64_t d = 0; d < size; d++)
        cli_print("%s %.4g*%.4g", d ? " +" : "",
                  run_element(&p->q, board->batch, h, board->first_query + q, d),
                  run_element(&p->k, board->batch, kv_head, board->first_key + k, d));
    cli_print(" = %.4g\n", run_board_at(board, BOARD_PRODUCTS, head, row, column));
}

/* row q0, key k1: e^2 / (e^0 + e^2) = 0.881 */
static void write_softmax(const run_board *board, int64_t head)
{
    const run_problem *p = board->problem;
    int64_t row, column;
    if (!find_sample(board, head, &row, &column) ||
        visible_count(board, head, row) > MOST_WRITTEN_OUT)
        return;
    cli_print("    q%" PRId64 " to k%" PRId64 ": e^%.4g / (", number_of(&board->rows, row),
              number_of(&board->columns, column),
              run_board_at(board, BOARD_MASKED, head, row, column));
    const char *plus = "";
    for (int64_t c = 0; c < board->columns.shape[0]; c++) {
        if (hidden(board, head, row, c)) continue;
        cli_print("%se^%.4g", plus, run_board_at(board, BOARD_MASKED, head, row, c));
        plus = " + ";
    }
    if (p->desc.sink_logits) {
        const mha_tensor *sink = p->desc.sink_logits;
        int64_t h = number_of(&board->heads, head);
        cli_print(" + e^%.4g of the sink",
                  (double)((const float *)sink->data)[h * sink->stride[0]]);
    }
    cli_print(") = %.4g\n", run_board_at(board, BOARD_WEIGHTS, head, row, column));
}

/* o0 = 0.1 v0 + 0.9 v1 */
static void write_sum(const run_board *board, int64_t head)
{
    int64_t row, column;
    board_step step = run_board_has(board, BOARD_DROPPED) ? BOARD_DROPPED : BOARD_WEIGHTS;
    if (!find_sample(board, head, &row, &column) ||
        visible_count(board, head, row) > MOST_WRITTEN_OUT || board->problem->desc.shaw_values)
        return;
    bool gated = board->problem->desc.gates;
    cli_print("    o%" PRId64 " = %s", number_of(&board->rows, row), gated ? "gate (" : "");
    const char *plus = "";
    for (int64_t c = 0; c < board->columns.shape[0]; c++) {
        if (hidden(board, head, row, c)) continue;
        cli_print("%s%.4g v%" PRId64, plus, run_board_at(board, step, head, row, c),
                  number_of(&board->columns, c));
        plus = " + ";
    }
    cli_print("%s\n", gated ? ")" : "");
}

/* ---- The steps ------------------------------------------------------------------------------- */

static void step_title(const run_board *board, int *number, const char *text)
{
    run_print_title(number, text, board->queries, board->keys);
}

static void scale_title(const run_board *board, char *text, size_t size)
{
    const run_problem *p = board->problem;
    if (p->desc.flags & MHA_ATTENTION_SCALE_GIVEN || p->desc.scale != 0)
        snprintf(text, size, "Scaled: times %.6g", (double)p->desc.scale);
    else
        snprintf(text, size, "Scaled: times 1 / sqrt(%" PRId64 ") = %.6g", p->q.shape[3],
                 1 / sqrt((double)p->q.shape[3]));
}

static void bias_title(const run_board *board, char *text, size_t size)
{
    const mha_attention_desc *desc = &board->problem->desc;
    snprintf(text, size, "Biased: plus%s%s%s%s%s", desc->bias ? " the bias" : "",
             desc->bias && (desc->alibi_slopes || desc->t5_table) ? "," : "",
             desc->alibi_slopes ? " ALiBi's -slope * distance" : "",
             desc->alibi_slopes && desc->t5_table ? "," : "",
             desc->t5_table ? " T5's table entry of the distance" : "");
}

/* What hides keys; false if nothing does. */
static bool mask_title(const run_board *board, char *text, size_t size)
{
    const mha_attention_desc *desc = &board->problem->desc;
    const struct {
        bool given;
        const char *text;
    } parts[] = {
        {desc->flags & MHA_ATTENTION_CAUSAL, "causal: keys after the query's position"},
        {desc->key_lengths, "lengths: padding"},
        {desc->key_begins, "begins: padding"},
        {desc->flags & MHA_ATTENTION_WINDOW, "window: keys too far away"},
        {desc->query_documents, "documents: keys of another one"},
        {desc->keep_blocks, "blocks that are not kept"},
        {desc->keep_mask, "keep-mask: keys where it is false"},
    };
    size_t used = (size_t)snprintf(text, size, "Masked, a dot is hidden (");
    bool any = false;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!parts[i].given) continue;
        used += (size_t)snprintf(text + used, size - used, "%s%s", any ? "; " : "", parts[i].text);
        any = true;
    }
    snprintf(text + used, size - used, ")");
    return any;
}

static cli_exit show_inputs(const run_board *board, int64_t h, int64_t hk, int *number)
{
    const run_problem *p = board->problem;
    char text[256];
    const int64_t t = board->queries, keys = board->keys;
    snprintf(text, sizeof text,
             "Queries q [%" PRId64 ", %" PRId64 "], keys k [%" PRId64 ", %" PRId64
             "] and values v [%" PRId64 ", %" PRId64 "]: a row for each token",
             t, p->q.shape[3], keys, p->k.shape[3], keys, p->v.shape[3]);
    run_print_heading(number, text);
    CLI_TRY(run_print_rows(board, 'q', &p->plain_q, h, board->first_query, &board->rows));
    cli_print("\n");
    CLI_TRY(run_print_rows(board, 'k', &p->plain_k, hk, board->first_key, &board->columns));
    cli_print("\n");
    CLI_TRY(run_print_rows(board, 'v', &p->v, hk, board->first_key, &board->columns));
    bool norm = board->options->qk_norm, rope = board->options->rope;
    if (!norm && !rope && !board->options->dtype) return CLI_OK;
    run_print_heading(number, norm && rope
                                  ? "Norms of q and k divided out, then RoPE: turned by position"
                              : norm ? "Norms of q and k divided out"
                              : rope ? "RoPE: q and k turned by the positions of their tokens"
                                     : "q and k as --dtype rounds them");
    CLI_TRY(run_print_rows(board, 'q', &p->q, h, board->first_query, &board->rows));
    cli_print("\n");
    CLI_TRY(run_print_rows(board, 'k', &p->k, hk, board->first_key, &board->columns));
    if (rope && !norm) run_trace_rope(board, h);
    return CLI_OK;
}

static cli_exit show_scores(const run_board *board, int64_t head, int64_t hk, int *number)
{
    const mha_attention_desc *desc = &board->problem->desc;
    char text[512];
    if (desc->shaw_keys) CLI_TRY(run_trace_shaw(board, number));
    step_title(board, number,
               desc->shaw_keys ? "Scores: each query times each key plus Shaw's row of the "
                                 "distance, q.(k + a)"
                               : "Scores: each query times each key, q.k");
    CLI_TRY(print_step(board, BOARD_PRODUCTS, head));
    write_product(board, head, hk);
    scale_title(board, text, sizeof text);
    step_title(board, number, text);
    CLI_TRY(print_step(board, BOARD_SCALED, head));
    if (run_board_has(board, BOARD_CAPPED)) {
        snprintf(text, sizeof text, "Capped: %.6g tanh(score / %.6g)", (double)desc->softcap,
                 (double)desc->softcap);
        step_title(board, number, text);
        CLI_TRY(print_step(board, BOARD_CAPPED, head));
    }
    if (run_board_has(board, BOARD_BIASED)) {
        CLI_TRY(run_trace_distances(board, head, number));
        bias_title(board, text, sizeof text);
        step_title(board, number, text);
        CLI_TRY(print_step(board, BOARD_BIASED, head));
    }
    if (mask_title(board, text, sizeof text)) {
        step_title(board, number, text);
        CLI_TRY(print_step(board, BOARD_MASKED, head));
    }
    return CLI_OK;
}

static bool sees_nothing(const run_board *board, int64_t head)
{
    bool nothing = false;
    for (int64_t r = 0; r < board->rows.shape[0]; r++)
        nothing |= run_board_row_sum(board, BOARD_WEIGHTS, head, r) == 0;
    return nothing;
}

static cli_exit show_dropout(const run_board *board, int64_t head, int *number)
{
    double share = (double)board->problem->desc.dropout;
    char text[256];
    snprintf(text, sizeof text, "Dropout: weights become 0 with probability %.6g%s", share,
             share < 1 ? ", the others are" : "");
    if (share < 1) {
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, " divided by %.6g", 1 - share);
    }
    step_title(board, number, text);
    return print_step(board, BOARD_DROPPED, head);
}

static cli_exit show_weights(const run_board *board, int64_t head, int *number)
{
    step_title(board, number,
               board->problem->desc.sink_logits
                   ? "Softmax: e^score divided by the row's sum, to which the sink adds"
               : sees_nothing(board, head)
                   ? "Softmax: e^score divided by the row's sum; a row that sees no key is 0"
                   : "Softmax: e^score divided by the row's sum; each row sums to 1");
    CLI_TRY(print_step(board, BOARD_WEIGHTS, head));
    write_softmax(board, head);
    return run_board_has(board, BOARD_DROPPED) ? show_dropout(board, head, number) : CLI_OK;
}

static cli_exit show_head(const run_board *board, int64_t head)
{
    const run_problem *p = board->problem;
    int64_t h = number_of(&board->heads, head), hk = h / (p->q.shape[1] / p->k.shape[1]);
    int number = 0;
    cli_print("\nHead %" PRId64, h);
    if (p->q.shape[1] != p->k.shape[1]) cli_print(", with key/value head %" PRId64, hk);
    cli_print("\n");
    CLI_TRY(show_inputs(board, h, hk, &number));
    CLI_TRY(show_scores(board, head, hk, &number));
    CLI_TRY(show_weights(board, head, &number));
    run_print_title(&number,
                    p->desc.gates ? "Output o: each row's weights times the values, times the gate"
                    : p->desc.shaw_values
                        ? "Output o: each row's weights times v plus Shaw's row of the distance"
                        : "Output o: each row's weights times the values",
                    board->queries, p->v.shape[3]);
    CLI_TRY(run_print_rows(board, 'o', &board->o, h, board->first_query, &board->rows));
    write_sum(board, head);
    return CLI_OK;
}

/* ---- All of it ------------------------------------------------------------------------------- */

static void say_part(const char *what, int64_t shown, int64_t count, bool *any)
{
    if (shown >= count) return;
    cli_print("%s%" PRId64 " of %" PRId64 " %s", *any ? ", " : "Shown: ", shown, count, what);
    *any = true;
}

static void show_opening(const run_board *board)
{
    const run_problem *p = board->problem;
    int64_t sequences = p->ragged ? p->desc.sequences : p->q.shape[0];
    cli_print("Attention step by step: %so = softmax(q k^T * scale) v\n",
              board->options->module ? "y = concat(heads) W_o^T, each head " : "");
    if (sequences > 1)
        cli_print("Sequence %" PRId64 " of %" PRId64 "; ", board->sequence, sequences);
    cli_print("%" PRId64 " head%s, %" PRId64 " queries, %" PRId64 " keys, head size %" PRId64
              ", values of %" PRId64 "\n",
              p->q.shape[1], p->q.shape[1] == 1 ? "" : "s", board->queries, board->keys,
              p->q.shape[3], p->v.shape[3]);
    const mha_attention_desc *desc = &p->desc;
    int64_t offset = desc->q_offsets ? desc->q_offsets[board->sequence] : desc->q_offset;
    if (offset != 0) cli_print("Query q<t> is at key position t + %" PRId64 "\n", offset);
    bool any = false;
    int64_t most = run_limit(board);
    say_part("heads", board->heads.shape[0], p->q.shape[1], &any);
    say_part("queries", board->rows.shape[0], board->queries, &any);
    say_part("keys", board->columns.shape[0], board->keys, &any);
    say_part("numbers of a query or key", most, p->q.shape[3], &any);
    say_part("numbers of a value", most, p->v.shape[3], &any);
    if (any)
        cli_print("; all is computed.\nOthers: --trace-head, --trace-row, --trace-key LIST; more: "
                  "--trace-limit N\n");
}

cli_exit run_trace(const run_options *options, mha_context *context, const run_problem *problem,
                   const run_results *results)
{
    run_board board;
    CLI_TRY(run_board_make(options, context, problem, &board));
    show_opening(&board);
    if (options->module) CLI_TRY(run_trace_projections(&board));
    for (int64_t head = 0; head < board.heads.shape[0]; head++) CLI_TRY(show_head(&board, head));
    if (options->module) CLI_TRY(run_trace_mixing(&board, results));
    return options->cache ? run_trace_cache(&board, context) : CLI_OK;
}
