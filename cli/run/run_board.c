/* The numbers of a trace: see run_board.h. Each step is one call of the library, which is asked for
 * the scores at that stage. */
#include "run/run_board.h"

#include <inttypes.h>
#include <string.h>

enum { DEFAULT_LIMIT = 16, DEFAULT_HEADS = 4 };

/* ---- What is shown --------------------------------------------------------------------------- */

/* A list, or the first ones. */
static cli_exit choose(const char *option, const char *text, const char *what, int64_t count,
                       int64_t most, mha_tensor *list)
{
    if (text) return run_list_read(option, text, what, count, list);
    int64_t shown = count < most ? count : most;
    CLI_TRY(run_array_make(MHA_I64, 1, &shown, list));
    for (int64_t i = 0; i < shown; i++) ((int64_t *)list->data)[i] = i;
    return CLI_OK;
}

static cli_exit find_sequence(run_board *board)
{
    const run_problem *problem = board->problem;
    const mha_attention_desc *desc = &problem->desc;
    int64_t count = problem->ragged ? desc->sequences : problem->q.shape[0];
    int64_t b = board->sequence = board->options->trace_sequence;
    if (b >= count)
        return cli_fail(CLI_USAGE, RUN,
                        "--trace-sequence: there is no sequence %" PRId64
                        "; they are 0 to %" PRId64,
                        b, count - 1);
    board->batch = problem->ragged ? 0 : b;
    board->first_query = problem->ragged ? desc->query_starts[b] : 0;
    board->first_key = problem->ragged ? desc->key_starts[b] : 0;
    board->queries =
        problem->ragged ? desc->query_starts[b + 1] - desc->query_starts[b] : problem->q.shape[2];
    board->keys =
        problem->ragged ? desc->key_starts[b + 1] - desc->key_starts[b] : problem->k.shape[2];
    return CLI_OK;
}

static cli_exit choose_all(run_board *board)
{
    const run_options *options = board->options;
    int64_t limit = options->trace_limit ? options->trace_limit : DEFAULT_LIMIT;
    CLI_TRY(find_sequence(board));
    CLI_TRY(choose("--trace-head", options->trace_heads, "head", board->problem->q.shape[1],
                   DEFAULT_HEADS, &board->heads));
    CLI_TRY(
        choose("--trace-row", options->trace_rows, "query", board->queries, limit, &board->rows));
    CLI_TRY(choose("--trace-key", options->trace_keys, "key", board->keys, limit, &board->columns));
    CLI_TRY(run_array_make(MHA_I64, 1, board->rows.shape, &board->tensor_rows));
    for (int64_t i = 0; i < board->rows.shape[0]; i++)
        ((int64_t *)board->tensor_rows.data)[i] =
            board->first_query + ((const int64_t *)board->rows.data)[i];
    return CLI_OK;
}

/* ---- Its numbers ----------------------------------------------------------------------------- */

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

/* The descriptor of a step: the products come before the scale, biases before the mask. */
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
    desc.keep_mask = desc.keep_blocks = desc.query_documents = desc.key_documents = NULL;
    desc.global_keys = desc.global_queries = NULL;
    desc.sink_keys = desc.left_keys = desc.right_keys = desc.block_queries = desc.block_keys = 0;
    if (!desc.alibi_slopes && !desc.t5_table && !desc.shaw_keys && !desc.shaw_values) {
        desc.q_offset = 0; /* nothing is left that reads it */
        desc.q_offsets = NULL;
    }
    return desc;
}

static cli_exit compute(mha_context *context, run_board *board, board_step step)
{
    static const mha_score_stage stages[] = {
        [BOARD_PRODUCTS] = MHA_SCORES_RAW,  [BOARD_SCALED] = MHA_SCORES_RAW,
        [BOARD_CAPPED] = MHA_SCORES_CAPPED, [BOARD_BIASED] = MHA_SCORES_BIASED,
        [BOARD_MASKED] = MHA_SCORES_BIASED, [BOARD_WEIGHTS] = MHA_SCORES_RAW,
        [BOARD_DROPPED] = MHA_SCORES_RAW};
    const run_problem *p = board->problem;
    bool weights = step == BOARD_WEIGHTS || step == BOARD_DROPPED;
    int64_t shape[] = {p->q.shape[0], board->heads.shape[0], board->rows.shape[0], run_longest(p)};
    CLI_TRY(run_array_make(MHA_F32, 4, shape, &board->steps[step]));
    mha_attention_desc desc = desc_of(board, step);
    const mha_tensor *tensor = &board->steps[step];
    mha_attention_outputs wanted = {
        .struct_size = sizeof wanted,
        .flags = step == BOARD_DROPPED ? MHA_OUTPUT_DROPPED_PROBABILITIES : 0,
        .scores = weights ? NULL : tensor,
        .probabilities = weights ? tensor : NULL,
        .score_stage = stages[step],
        .heads = board->heads.data,
        .heads_count = shape[1],
        .rows = board->tensor_rows.data,
        .rows_count = shape[2]};
    mha_status status =
        mha_attention_forward(context, &desc, &p->q, &p->k, &p->v, &board->o, &wanted);
    return status == MHA_OK ? CLI_OK : run_fail(board->options, p, status);
}

cli_exit run_board_make(const run_options *options, mha_context *context,
                        const run_problem *problem, run_board *board)
{
    *board = (run_board){.options = options, .problem = problem};
    int64_t shape[] = {problem->q.shape[0], problem->q.shape[1], problem->q.shape[2],
                       problem->v.shape[3]};
    CLI_TRY(choose_all(board));
    CLI_TRY(run_array_make(run_o_dtype(options), 4, shape, &board->o));
    /* The last call is that of the problem itself, whose o stays. */
    for (int step = 0; step < BOARD_STEPS; step++)
        if (run_board_has(board, (board_step)step))
            CLI_TRY(compute(context, board, (board_step)step));
    return CLI_OK;
}

static const float *row_at(const run_board *board, board_step step, int64_t head, int64_t row)
{
    const mha_tensor *tensor = &board->steps[step];
    return (const float *)tensor->data + board->batch * tensor->stride[0] +
           head * tensor->stride[1] + row * tensor->stride[2];
}

double run_board_at(const run_board *board, board_step step, int64_t head, int64_t row,
                    int64_t column)
{
    int64_t key = ((const int64_t *)board->columns.data)[column];
    return (double)row_at(board, step, head, row)[key];
}

double run_board_row_sum(const run_board *board, board_step step, int64_t head, int64_t row)
{
    double sum = 0;
    for (int64_t s = 0; s < board->keys; s++) sum += (double)row_at(board, step, head, row)[s];
    return sum;
}
