/* Convert options to a problem: read every array and fill the descriptor. */
#include "common/arena.h"
#include "common/words.h"
#include "run/run.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

static cli_exit load(const run_problem *p, const char *option, const char *text, run_kind kind,
                     const mha_tensor **tensor)
{
    mha_tensor *array;
    CLI_TRY(ARENA_ALLOC(1, &array));
    *tensor = array;
    return run_array_read(p, option, text, kind, array);
}

/* ---- q, k, v --------------------------------------------------------------------------------- */

static cli_exit check_axes(const run_options *o, const char *option, const char *name,
                           const mha_tensor *array)
{
    static const char *const layouts[] = {"[B,H,T,D], [H,T,D] or [T,D]",
                                          "[B,T,H,D], [T,H,D] or [T,D]"};
    if (array->ndim >= 2 && array->ndim <= (o->heads ? 3 : 4)) return CLI_OK;
    return RUN_BAD_INPUT("%s (%s): has shape %s, expected %s", name, option,
                         run_shape_of(array).text,
                         o->heads ? "[B,T,H*D] or [T,H*D] to split into heads; omit --heads if the "
                                    "heads already have an axis"
                                  : layouts[o->layout]);
}

/* View an array of 2 to 4 axes as [B,H,T,D]. */
static cli_exit view_array(const run_problem *p, const char *option, const char *name,
                           const mha_tensor *array, int64_t heads, mha_tensor *view)
{
    CLI_TRY(check_axes(p->options, option, name, array));
    const int n = array->ndim;
    const bool split = heads > 0;
    const int64_t *shape = array->shape, width = shape[n - 1];
    if (split && width % heads != 0)
        return RUN_BAD_INPUT("%s (%s): its last axis is %" PRId64 ", which %" PRId64
                             " heads do not divide; change --heads%s",
                             name, option, width, heads,
                             strcmp(option, "--q") != 0 ? " or --kv-heads" : "");
    const int64_t d = split ? width / heads : width;
    const int64_t h = split ? heads : n == 2 ? 1 : shape[p->time_first ? n - 2 : n - 3];
    const int64_t t = shape[split || n == 2 || !p->time_first ? n - 2 : n - 3];
    const int64_t b = n == (split ? 3 : 4) ? shape[0] : 1;
    *view = mha_tensor_contiguous(array->data, array->dtype, 4, (int64_t[]){b, h, t, d});
    if (p->time_first) {
        view->stride[1] = d;
        view->stride[2] = h * d;
    }
    return CLI_OK;
}

static cli_exit make_inputs(run_problem *p)
{
    static const char *const flags[] = {"--q", "--k", "--v"};
    const run_options *o = p->options;
    const char *const texts[] = {o->q, o->k, o->v};
    const char *x = o->x ? o->x : o->example ? "the example" : NULL;
    mha_tensor *const views[] = {&p->q, &p->k, &p->v}, arrays[3];
    p->time_first = o->heads || o->layout;
    if (o->module) CLI_TRY(run_module_make(p));
    for (int i = 0; i < 3; i++) {
        const char *flag = x ? "--x" : flags[i];
        /* The rotation of q and k supports f32 only. */
        const run_kind kind = i < 2 && (o->rope || o->qk_norm) ? RUN_F32 : RUN_REAL;
        p->names[i] = x ? x : texts[i];
        arrays[i] = i == 0 ? (mha_tensor){0} : arrays[0];
        if (o->module)
            arrays[i] = p->module.projected[i];
        else if (o->example)
            CLI_TRY(run_example_make(RUN_EXAMPLE_Q + i, 0, &arrays[i]));
        else if (i == 0 || !x)
            CLI_TRY(run_array_read(p, flag, p->names[i], kind, &arrays[i]));
        CLI_TRY(view_array(p, flag, p->names[i], &arrays[i],
                           i > 0 && o->kv_heads ? o->kv_heads : o->heads, views[i]));
    }
    p->batch_axis = arrays[0].ndim == (o->heads ? 3 : 4);
    p->head_axis = o->heads || arrays[0].ndim > 2;
    p->plain_q = p->q;
    p->plain_k = p->k;
    return CLI_OK;
}

/* ---- The descriptor's arrays ----------------------------------------------------------------- */

#define CALL(macro, ...) macro(__VA_ARGS__)
#define ROW(field, type, axes, stage) CALL(NAMED_ROW, field, type, axes, RUN_INPUT_##field)
#define NAMED_ROW(field_, type, axes, name, ...)    \
    {.word = #field_,                               \
     .option = "--" name,                           \
     .shape = RUN_AXES_##axes,                      \
     .text = offsetof(run_options, field_),         \
     .field = offsetof(mha_attention_desc, field_), \
     .kind = RUN_##type},
const run_input run_inputs[] = {MHA_ATTENTION_INPUTS(ROW)};

const char *run_input_text(const run_options *o, const run_input *input, const char **option)
{
    const char *text = *(const char *const *)(const void *)((const char *)o + input->text);
    const bool both = !text && o->documents && strstr(input->word, "_documents");
    *option = both ? "--documents" : input->option;
    return both ? o->documents : text;
}

/* Load the tensors; the library checks them. */
static cli_exit load_tensors(run_problem *p)
{
    for (int i = 0; i < RUN_INPUT_COUNT; i++) {
        const mha_tensor **field = (void *)((char *)&p->desc + run_inputs[i].field);
        const char *option, *text = run_input_text(p->options, &run_inputs[i], &option);
        if (text) CLI_TRY(load(p, option, text, (run_kind)run_inputs[i].kind, field));
    }
    return CLI_OK;
}

/* Read integers along one axis. If *count is -1, any number of integers is allowed, and *count is
 * set to it. */
static cli_exit load_numbers(const run_problem *p, const char *option, const char *text,
                             int64_t *count, const int64_t **numbers)
{
    const mha_tensor *tensor;
    if (!text) return CLI_OK;
    CLI_TRY(load(p, option, text, RUN_I64, &tensor));
    const int64_t given = tensor->shape[0];
    if (tensor->ndim != 1)
        return RUN_BAD_INPUT("%s (%s): has shape %s, expected one axis", text, option,
                             run_shape_of(tensor).text);
    if (*count >= 0 && given != *count)
        return RUN_BAD_INPUT("%s (%s): %" PRId64 " number%s, expected %" PRId64
                             ", one for each sequence",
                             text, option, given, words_s(given), *count);
    *count = given;
    *numbers = tensor->data;
    return CLI_OK;
}

static cli_exit load_sequences(run_problem *p)
{
    const run_options *o = p->options;
    mha_attention_desc *desc = &p->desc;
    int64_t queries = -1, keys = -1;
    CLI_TRY(load_numbers(p, "--query-starts", o->query_starts, &queries, &desc->query_starts));
    CLI_TRY(load_numbers(p, "--key-starts", o->key_starts ? o->key_starts : o->query_starts, &keys,
                         &desc->key_starts));
    p->ragged = o->query_starts != NULL;
    if (p->ragged && (queries != keys || queries < 2))
        return RUN_BAD_INPUT("--query-starts: %" PRId64 " and --key-starts: %" PRId64
                             " numbers; both need one more than there are sequences, as 0,3,8 for "
                             "two",
                             queries, keys);
    desc->sequences = p->ragged ? queries - 1 : 0;
    int64_t count = run_sequences(p);
    CLI_TRY(load_numbers(p, "--lengths", o->lengths, &count, &desc->key_lengths));
    CLI_TRY(load_numbers(p, "--begins", o->begins, &count, &desc->key_begins));
    return load_numbers(p, "--offsets", o->offsets, &count, &desc->q_offsets);
}

int64_t run_sequences(const run_problem *p)
{
    return p->ragged ? p->desc.sequences : p->q.shape[0];
}

int64_t run_longest(const run_problem *p)
{
    int64_t most = p->ragged ? 0 : p->k.shape[2];
    for (int64_t b = 0; p->ragged && b < p->desc.sequences; b++) {
        int64_t keys = p->desc.key_starts[b + 1] - p->desc.key_starts[b];
        if (keys > most) most = keys;
    }
    return most;
}

/* ---- The descriptor's numbers ---------------------------------------------------------------- */

/* Parse "A,B" or "AxB"; text NULL: absent. */
static bool read_pair(const char *text, const char *between, int64_t *a, int64_t *b)
{
    const char *rest;
    return !text ||
           (args_whole(text, between, a, &rest) && *rest && args_whole(rest + 1, "", b, &rest));
}

static cli_exit fill_float(const char *option, const args_real *real, float *field)
{
    if (fabs(real->value) > (double)FLT_MAX)
        return RUN_USAGE("%s %g: at most %g fits into float32", option, real->value,
                         (double)FLT_MAX);
    *field = (float)real->value;
    return CLI_OK;
}

static cli_exit fill_numbers(run_problem *p)
{
    const run_options *o = p->options;
    mha_attention_desc *desc = &p->desc;
    *desc = (mha_attention_desc){.struct_size = sizeof *desc,
                                 .path = (mha_path)o->path,
                                 .compute = o->compute ? MHA_COMPUTE_BF16 : MHA_COMPUTE_F32,
                                 .q_offset = o->offset,
                                 .sink_keys = o->sink_keys,
                                 .t5_max_distance = o->t5_max_distance,
                                 .dropout_seed = (uint64_t)o->seed};
    if (o->causal) desc->flags |= MHA_ATTENTION_CAUSAL;
    if (o->strict) desc->flags |= MHA_ATTENTION_STRICT;
    if (o->window) desc->flags |= MHA_ATTENTION_WINDOW;
    if (o->scale.given) desc->flags |= MHA_ATTENTION_SCALE_GIVEN;
    if (o->t5_one_sided) desc->flags |= MHA_ATTENTION_T5_ONE_SIDED;
    if (!read_pair(o->window, ",", &desc->left_keys, &desc->right_keys))
        return RUN_USAGE("--window %s: expected two numbers, the keys visible before and after a "
                         "query, such as --window 4,0; -1: no limit",
                         o->window);
    if (!read_pair(o->block_size, "x", &desc->block_queries, &desc->block_keys))
        return RUN_USAGE("--block-size %s: expected queries and keys per block, such as 64x64",
                         o->block_size);
    CLI_TRY(fill_float("--scale", &o->scale, &desc->scale));
    CLI_TRY(fill_float("--softcap", &o->softcap, &desc->softcap));
    return fill_float("--dropout", &o->dropout, &desc->dropout);
}

/* --alibi: the published slopes. */
static cli_exit fill_slopes(run_problem *p)
{
    int64_t elements, heads = p->q.shape[1];
    /* An empty array has no elements, so its number of heads is not bounded. */
    if (!p->options->alibi || mha_tensor_count(&p->q, &elements) != MHA_OK || elements == 0)
        return CLI_OK;
    mha_tensor *slopes;
    CLI_TRY(ARENA_ALLOC(1, &slopes));
    p->desc.alibi_slopes = slopes;
    *slopes = mha_tensor_contiguous(NULL, MHA_F32, 1, &heads);
    if (p->heads_only) return CLI_OK;
    CLI_TRY(run_array_make(MHA_F32, 1, &heads, slopes));
    return cli_check(mha_alibi_slopes(heads, slopes->data));
}

static cli_exit load_list(const run_problem *p, const char *option, const char *text,
                          const char *what, int64_t limit, const int64_t **numbers, int64_t *count)
{
    mha_tensor list;
    if (!text) return CLI_OK;
    CLI_TRY(run_list_read(p, option, text, what, limit, &list));
    *numbers = list.data;
    *count = list.shape[0];
    return CLI_OK;
}

/* The requested rows and heads of the optional outputs. */
static cli_exit fill_wanted(run_problem *p)
{
    /* In the order of the choices of --score-stage. */
    static const mha_score_stage stages[] = {MHA_SCORES_BIASED, MHA_SCORES_RAW, MHA_SCORES_CAPPED};
    const run_options *o = p->options;
    mha_attention_outputs *wanted = &p->wanted;
    *wanted = (mha_attention_outputs){.struct_size = sizeof *wanted,
                                      .score_stage = o->scores ? stages[o->score_stage] : 0,
                                      .offsets_count = -1};
    if (o->after_dropout) wanted->flags |= MHA_OUTPUT_DROPPED_PROBABILITIES;
    CLI_TRY(load_list(p, "--pick-heads", o->pick_heads, "head", p->q.shape[1], &wanted->heads,
                      &wanted->heads_count));
    CLI_TRY(load_list(p, "--pick-rows", o->pick_rows, "row", p->q.shape[2], &wanted->rows,
                      &wanted->rows_count));
    CLI_TRY(load_numbers(p, "--mass-offsets",
                         o->mass_offsets  ? o->mass_offsets
                         : o->offset_mass ? "-1"
                                          : NULL,
                         &wanted->offsets_count, &wanted->offsets));
    if (!o->offset_mass) wanted->offsets_count = 0;
    return CLI_OK;
}

/* ---- RoPE ------------------------------------------------------------------------------------ */

/* Positions of ragged tensors: each sequence begins at 0, or at --offset(s). */
static cli_exit ragged_positions(const run_problem *p, const int64_t *starts, int64_t rows,
                                 const int64_t *offsets, int64_t offset, const mha_tensor **ids)
{
    mha_tensor *made;
    CLI_TRY(ARENA_ALLOC(1, &made));
    CLI_TRY(run_array_make(MHA_I64, 1, &rows, made));
    int64_t *id = made->data, t = 0;
    for (int64_t b = 0; b < p->desc.sequences; b++) {
        /* The check of the descriptor rejects starts that decrease or exceed the length. */
        if (t < starts[b]) t = starts[b];
        for (int64_t begin = t; t < starts[b + 1] && t < rows; t++)
            id[t] = (int64_t)((uint64_t)(t - begin) + (uint64_t)(offsets ? offsets[b] : offset));
    }
    *ids = made;
    return CLI_OK;
}

/* Read positions [T] or [B,T]; either axis may be 1. */
static cli_exit load_positions(const run_problem *p, const char *option, const char *text,
                               int64_t rows, const mha_tensor **ids)
{
    CLI_TRY(load(p, option, text, RUN_I64, ids));
    const mha_tensor *t = *ids;
    const int64_t b = p->q.shape[0], last = t->ndim > 0 ? t->shape[t->ndim - 1] : 1;
    const int64_t first = t->ndim == 2 ? t->shape[0] : 1;
    if (t->ndim <= 2 && (last == 1 || last == rows) && (first == 1 || first == b)) return CLI_OK;
    return RUN_BAD_INPUT("%s (%s): has shape %s, expected [%" PRId64 "] or [%" PRId64 ", %" PRId64
                         "]: a position for each token",
                         text, option, run_shape_of(t).text, rows, b, rows);
}

/* Queries are at --positions, or at t + offset. Keys are at --key-positions, or at the queries'
 * positions if --positions covers every key, or at s. */
static cli_exit find_positions(const run_problem *p, mha_positions *of_q, mha_positions *of_k)
{
    const run_options *o = p->options;
    const mha_attention_desc *desc = &p->desc;
    const int64_t queries = p->q.shape[2], keys = p->k.shape[2];
    *of_q = *of_k = (mha_positions){0};
    if (o->positions) {
        CLI_TRY(load_positions(p, "--positions", o->positions, queries, &of_q->ids));
        if (queries == keys) of_k->ids = of_q->ids;
    } else if (p->ragged) {
        CLI_TRY(ragged_positions(p, desc->query_starts, queries, desc->q_offsets, o->offset,
                                 &of_q->ids));
    } else {
        of_q->starts = desc->q_offsets;
        of_q->start = desc->q_offsets ? 0 : o->offset;
    }
    if (o->key_positions)
        return load_positions(p, "--key-positions", o->key_positions, keys, &of_k->ids);
    if (of_k->ids || !p->ragged) return CLI_OK;
    return ragged_positions(p, desc->key_starts, keys, NULL, 0, &of_k->ids);
}

static cli_exit turn(const run_problem *p, const mha_positions *positions, mha_tensor *x)
{
    const run_options *o = p->options;
    const mha_rope_desc rope = {.struct_size = sizeof rope,
                                .pairing = (mha_rope_pairing)o->rope_pairing,
                                .rotary_dim = o->rope_dim,
                                .base = o->rope_base.value,
                                .factor = o->rope_scale.value,
                                .positions = *positions};
    const mha_tensor from = *x;
    CLI_TRY(run_array_make(MHA_F32, 4, from.shape, x));
    return run_check(p, mha_rope_apply(p->context, &rope, &from, x));
}

/* ---- Norms and types ------------------------------------------------------------------------- */

/* --qk-norm of q or k, without weights. */
static cli_exit norm(const run_problem *p, mha_tensor *x)
{
    /* In the order of the choices. */
    static const mha_qk_norm_kind kinds[] = {MHA_QK_NORM_RMS, MHA_QK_NORM_RMS, MHA_QK_NORM_L2};
    const args_real *epsilon = &p->options->qk_epsilon;
    const mha_tensor from = *x;
    CLI_TRY(run_array_make(MHA_F32, 4, from.shape, x));
    return run_check(p,
                     mha_qk_norm(p->context, kinds[p->options->qk_norm],
                                 epsilon->given ? (float)epsilon->value : 1e-6f, &from, NULL, x));
}

mha_dtype run_o_dtype(const run_options *o)
{
    static const mha_dtype types[] = {MHA_F32, MHA_F32, MHA_F16, MHA_BF16}; /* the choices */
    return types[o->dtype];
}

/* --dtype: convert the tensors to that type; with heads_only, change only their types. */
static cli_exit convert_all(run_problem *p)
{
    mha_tensor *const all[] = {&p->q, &p->k, &p->v};
    const mha_dtype dtype = run_o_dtype(p->options);
    for (int i = 0; i < 3 && p->options->dtype; i++) {
        const mha_tensor from = *all[i];
        if (p->heads_only)
            all[i]->dtype = dtype;
        else if (from.dtype != dtype)
            CLI_TRY(run_array_convert(&from, dtype, all[i]));
    }
    return CLI_OK;
}

/* ---- The whole problem ----------------------------------------------------------------------- */

/* Read all arrays and numbers from files and options. */
static cli_exit gather(run_problem *p)
{
    CLI_TRY(fill_numbers(p));
    CLI_TRY(make_inputs(p));
    CLI_TRY(load_sequences(p));
    CLI_TRY(load_tensors(p));
    CLI_TRY(fill_slopes(p));
    return fill_wanted(p);
}

static cli_exit transform(run_problem *p)
{
    mha_positions of_q, of_k;
    if (p->options->qk_norm) CLI_TRY(norm(p, &p->q));
    if (p->options->qk_norm) CLI_TRY(norm(p, &p->k));
    if (!p->options->rope) return CLI_OK;
    CLI_TRY(find_positions(p, &of_q, &of_k));
    CLI_TRY(turn(p, &of_q, &p->q));
    return turn(p, &of_k, &p->k);
}

/* The descriptor stores only the offsets that attention reads; other offsets apply to RoPE
 * alone. */
static void settle_offsets(run_problem *p)
{
    const run_options *o = p->options;
    mha_attention_desc *desc = &p->desc;
    const bool read = desc->flags & (MHA_ATTENTION_CAUSAL | MHA_ATTENTION_WINDOW) ||
                      desc->alibi_slopes || desc->t5_table || desc->shaw_keys ||
                      desc->shaw_values || o->diagonal || o->offset_mass;
    if (!o->rope || read) return;
    desc->q_offset = 0;
    desc->q_offsets = NULL;
}

/* Check shapes from the files' headers, before reading any element. */
static cli_exit check_heads(const run_options *options, mha_context *context)
{
    run_problem p = {.options = options, .context = context, .heads_only = true};
    mha_attention_plan plan;
    const size_t mark = arena_mark();
    CLI_TRY(gather(&p));
    CLI_TRY(convert_all(&p));
    settle_offsets(&p);
    if (!options->linear)
        CLI_TRY(run_check(
            &p, mha_attention_explain(context, &p.desc, &p.q, &p.k, &p.v, NULL, NULL, &plan)));
    arena_release(mark);
    return CLI_OK;
}

cli_exit run_problem_make(const run_options *options, mha_context *context, run_problem *p)
{
    const mha_attention_desc *desc = &p->desc;
    CLI_TRY(check_heads(options, context));
    *p = (run_problem){.options = options, .context = context};
    CLI_TRY(gather(p));
    CLI_TRY(transform(p));
    CLI_TRY(convert_all(p));
    settle_offsets(p);
    p->linear =
        (mha_linear_attention_desc){.struct_size = sizeof p->linear,
                                    .flags = options->causal ? MHA_LINEAR_ATTENTION_CAUSAL : 0,
                                    .q_offset = desc->q_offset,
                                    .q_offsets = desc->q_offsets,
                                    .key_lengths = desc->key_lengths,
                                    .query_starts = desc->query_starts,
                                    .key_starts = desc->key_starts,
                                    .sequences = desc->sequences};
    return CLI_OK;
}
