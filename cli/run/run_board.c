/* The numbers of a trace; see run_trace.h. Each step is one call of the library, which returns the
 * scores at that stage. */
#include "run/run_trace.h"

#include <inttypes.h>
#include <math.h>

enum { DEFAULT_LIMIT = 16, DEFAULT_HEADS = 4 };

/* ---- The selection --------------------------------------------------------------------------- */

/* Choose the given list, or the first heads, rows or keys. */
static cli_exit choose(const run_problem *p, const char *option, const char *text, const char *what,
                       int64_t count, int64_t most, mha_tensor *list)
{
    return text ? run_list_read(p, option, text, what, count, list)
                : run_array_count(count < most ? count : most, list);
}

static cli_exit choose_all(run_board *board)
{
    const run_problem *p = board->problem;
    const run_options *o = p->options;
    const mha_attention_desc *desc = &p->desc;
    const int64_t b = board->sequence = o->trace_sequence;
    if (b >= run_sequences(p))
        return RUN_USAGE("--trace-sequence: there is no sequence %" PRId64
                         "; sequences are 0 to %" PRId64,
                         b, run_sequences(p) - 1);
    board->limit = o->trace_limit ? o->trace_limit : DEFAULT_LIMIT;
    board->batch = p->ragged ? 0 : b;
    board->first_query = p->ragged ? desc->query_starts[b] : 0;
    board->first_key = p->ragged ? desc->key_starts[b] : 0;
    board->queries = p->ragged ? desc->query_starts[b + 1] - board->first_query : p->q.shape[2];
    board->keys = p->ragged ? desc->key_starts[b + 1] - board->first_key : p->k.shape[2];
    CLI_TRY(choose(p, "--trace-head", o->trace_heads, "head", p->q.shape[1], DEFAULT_HEADS,
                   &board->heads));
    CLI_TRY(choose(p, "--trace-row", o->trace_rows, "query", board->queries, board->limit,
                   &board->rows));
    return choose(p, "--trace-key", o->trace_keys, "key", board->keys, board->limit,
                  &board->columns);
}

/* ---- The numbers of a step ------------------------------------------------------------------- */

bool run_board_has(const run_board *board, board_step step)
{
    const mha_attention_desc *desc = &board->problem->desc;
    switch (step) {
    case BOARD_CAPPED: return desc->softcap != 0;
    case BOARD_BIASED: return desc->bias || desc->alibi_slopes || desc->t5_table;
    case BOARD_DROPPED: return desc->dropout != 0;
    default: return true;
    }
}

/* The descriptor of a step: products before the scale, biases before the mask. */
static mha_attention_desc desc_of(const run_board *board, board_step step)
{
    mha_attention_desc desc = board->problem->desc;
    if (step == BOARD_PRODUCTS) {
        desc.flags |= MHA_ATTENTION_SCALE_GIVEN;
        desc.scale = 1;
    }
    if (step != BOARD_BIASED) return desc;
    desc.flags &= ~(uint32_t)(MHA_ATTENTION_CAUSAL | MHA_ATTENTION_WINDOW);
    desc.key_lengths = desc.key_begins = NULL;
    desc.sink_keys = desc.left_keys = desc.right_keys = desc.block_queries = desc.block_keys = 0;
#define UNMASK(field, type, axes, stage) UNMASK_##stage(field)
#define UNMASK_MASK(field) desc.field = NULL;
#define UNMASK_BIAS(field)
#define UNMASK_DISTANCE(field)
#define UNMASK_PRODUCT(field)
#define UNMASK_RESULT(field)
    MHA_ATTENTION_INPUTS(UNMASK)
    if (!desc.alibi_slopes && !desc.t5_table && !desc.shaw_keys && !desc.shaw_values) {
        desc.q_offset = 0; /* not used after this */
        desc.q_offsets = NULL;
    }
    return desc;
}

static cli_exit compute(run_board *board, const int64_t *rows, board_step step)
{
    const run_problem *p = board->problem;
    const bool weights = step == BOARD_WEIGHTS || step == BOARD_DROPPED;
    const int64_t shape[] = {p->q.shape[0], board->heads.shape[0], board->rows.shape[0],
                             run_longest(p)};
    const mha_attention_desc desc = desc_of(board, step);
    mha_tensor *tensor = &board->steps[step];
    CLI_TRY(run_array_make(MHA_F32, 4, shape, tensor));
    const mha_attention_outputs wanted = {
        .struct_size = sizeof wanted,
        .flags = step == BOARD_DROPPED ? MHA_OUTPUT_DROPPED_PROBABILITIES : 0,
        .scores = weights ? NULL : tensor,
        .probabilities = weights ? tensor : NULL,
        .score_stage = step == BOARD_CAPPED                           ? MHA_SCORES_CAPPED
                       : step == BOARD_BIASED || step == BOARD_MASKED ? MHA_SCORES_BIASED
                                                                      : MHA_SCORES_RAW,
        .heads = board->heads.data,
        .heads_count = shape[1],
        .rows = rows,
        .rows_count = shape[2]};
    return run_check(
        p, mha_attention_forward(p->context, &desc, &p->q, &p->k, &p->v, &board->o, &wanted));
}

cli_exit run_board_make(const run_problem *p, run_board *board)
{
    const int64_t shape[] = {p->q.shape[0], p->q.shape[1], p->q.shape[2], p->v.shape[3]};
    mha_tensor rows; /* in the library's numbering */
    *board = (run_board){.problem = p};
    CLI_TRY(choose_all(board));
    CLI_TRY(run_array_make(MHA_I64, 1, board->rows.shape, &rows));
    for (int64_t i = 0; i < rows.shape[0]; i++)
        ((int64_t *)rows.data)[i] = board->first_query + run_entry(&board->rows, i);
    CLI_TRY(run_array_make(run_o_dtype(p->options), 4, shape, &board->o));
    /* The last call computes the problem itself and writes o. */
    for (int step = 0; step < BOARD_STEPS; step++)
        if (run_board_has(board, (board_step)step))
            CLI_TRY(compute(board, rows.data, (board_step)step));
    return CLI_OK;
}

/* Choose the row to write out: the first shown row that sees two keys, or else one key, and its key
 * of largest weight. No row is chosen if the weight is NaN or if not all keys are shown.
 * */
static void find_sample(run_board *board)
{
    const int64_t columns = board->columns.shape[0];
    double most = 0;
    board->visible = 0;
    if (columns != board->keys || board->problem->options->trace_keys) return;
    for (int64_t r = 0; r < board->rows.shape[0] && board->visible < 2; r++) {
        int64_t count = 0;
        for (int64_t c = 0; c < columns; c++)
            count += run_at(&board->now[BOARD_MASKED], r, c) != -(double)INFINITY;
        if (count <= board->visible) continue;
        board->visible = count;
        board->row = r;
    }
    for (int64_t c = 0; board->visible > 0 && c < columns; c++) {
        double weight = run_at(&board->now[BOARD_WEIGHTS], board->row, c);
        if (!(weight > most)) continue;
        most = weight;
        board->column = c;
    }
    if (!(most > 0)) board->visible = 0;
}

void run_board_turn(run_board *board, int64_t head)
{
    const run_problem *p = board->problem;
    board->title = 0;
    board->head = run_entry(&board->heads, head);
    board->kv_head = board->head / (p->q.shape[1] / p->k.shape[1]);
    for (int step = 0; step < BOARD_STEPS; step++)
        if (board->steps[step].data)
            board->now[step] = run_view(&board->steps[step], board->batch, head, 0);
    find_sample(board);
}

/* ---- Writing --------------------------------------------------------------------------------- */

void run_title(run_board *board, int64_t rows, int64_t columns, const char *format, ...)
{
    va_list arguments;
    cli_print("\n %d. ", ++board->title);
    va_start(arguments, format);
    cli_print_list(stdout, format, arguments);
    va_end(arguments);
    if (rows >= 0) cli_print("   [%" PRId64 ", %" PRId64 "]", rows, columns);
    cli_print("\n");
}

mha_tensor run_view(const mha_tensor *tensor, int64_t batch, int64_t head, int64_t first)
{
    mha_tensor view = {.dtype = tensor->dtype, .ndim = 2};
    const int n = tensor->ndim;
    int64_t at = first * tensor->stride[n - 2];
    if (n > 2) at += batch * tensor->stride[0];
    if (n > 3) at += head * tensor->stride[1];
    for (int i = 0; i < 2; i++) {
        view.shape[i] = tensor->shape[n - 2 + i];
        view.stride[i] = tensor->stride[n - 2 + i];
    }
    view.shape[0] -= first;
    view.data = (char *)tensor->data + (size_t)at * mha_dtype_size(tensor->dtype);
    return view;
}

double run_at(const mha_tensor *view, int64_t row, int64_t column)
{
    const int64_t at = row * view->stride[0] + column * view->stride[1];
    double number = 0;
    char *place = (char *)view->data + (size_t)at * mha_dtype_size(view->dtype);
    const mha_tensor from = mha_tensor_contiguous(place, view->dtype, 0, NULL);
    const mha_tensor to = mha_tensor_contiguous(&number, MHA_F64, 0, NULL);
    return mha_tensor_convert(&from, &to) == MHA_OK ? number : (double)NAN;
}

static double row_at(const run_table *t, int64_t row, int64_t column)
{
    return run_at(t->of, t->rows ? run_entry(t->rows, row) : row, column);
}

void run_print_rows(const run_board *board, char letter, const mha_tensor *view,
                    const mha_tensor *rows)
{
    const int64_t width = view->shape[1], count = rows ? rows->shape[0] : view->shape[0];
    const bool all = rows || count <= board->limit;
    const run_table t = {.row = letter,
                         .rows = rows,
                         .row_count = all ? count : board->limit,
                         .column_count = width < board->limit ? width : board->limit,
                         .cut = width > board->limit,
                         .at = row_at,
                         .of = view};
    run_print_table(&t);
    if (!all) cli_print("    ...\n");
}

typedef struct scores {
    const mha_tensor *view, *hide;
    int64_t summed;
} scores;

static double score_at(const run_table *t, int64_t row, int64_t column)
{
    const scores *of = t->of;
    const int64_t key = run_entry(t->columns, column);
    const bool hidden = of->hide && run_at(of->hide, row, key) == -(double)INFINITY;
    return hidden ? -(double)INFINITY : run_at(of->view, row, key);
}

static double score_sum(const run_table *t, int64_t row)
{
    const scores *of = t->of;
    double sum = 0;
    for (int64_t s = 0; s < of->summed; s++) sum += run_at(of->view, row, s);
    return sum;
}

void run_print_pairs(const run_board *board, run_number *at, run_sum *sum, const void *of)
{
    const run_table t = {.row = 'q',
                         .column = 'k',
                         .rows = &board->rows,
                         .columns = &board->columns,
                         .row_count = board->rows.shape[0],
                         .column_count = board->columns.shape[0],
                         .cut = board->columns.shape[0] < board->keys,
                         .at = at,
                         .sum = sum,
                         .of = of};
    run_print_table(&t);
}

void run_print_scores(const run_board *board, const mha_tensor *view, const mha_tensor *hide,
                      int64_t summed)
{
    const scores of = {view, hide, summed};
    run_print_pairs(board, score_at, summed ? score_sum : NULL, &of);
}

void run_print_product(const mha_tensor *a, int64_t i, const mha_tensor *b, int64_t j,
                       double product)
{
    for (int64_t d = 0; d < a->shape[1]; d++)
        cli_print("%s %.4g*%.4g", d ? " +" : "", run_at(a, i, d), run_at(b, j, d));
    cli_print(" = %.4g\n", product);
}
