/* From options to a problem: every array that they name is read, and the descriptor filled. */
#include "common/arena.h"
#include "run/run.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

cli_exit run_array_load(const run_options *options, const run_problem *problem, const char *option,
                        const char *text, run_kind kind, mha_tensor *array)
{
    return run_random_is(text) ? run_random_make(options, problem, option, text, kind, array)
           : problem->heads_only && kind != RUN_INDEX
               ? run_array_peek(option, text, kind, array)
               : run_array_read(option, text, kind, options->quiet, array);
}

static cli_exit load(const run_options *options, const run_problem *problem, const char *option,
                     const char *text, run_kind kind, const mha_tensor **tensor)
{
    mha_tensor *array;
    CLI_TRY(ARENA_ALLOC(RUN, 1, &array));
    *tensor = array;
    return run_array_load(options, problem, option, text, kind, array);
}

/* ---- q, k, v --------------------------------------------------------------------------------- */

/* The letters of an array of ndim axes, last ones first in importance. */
static const char *axes_of(const run_options *options, int ndim)
{
    static const char *const names[2][3] = {{"[T,D]", "[H,T,D]", "[B,H,T,D]"},
                                            {"[T,D]", "[T,H,D]", "[B,T,H,D]"}};
    static const char *const split[] = {"[T,H*D]", "[B,T,H*D]"};
    return options->heads ? split[ndim - 2] : names[options->layout][ndim - 2];
}

static cli_exit check_axes(const run_options *options, const char *option, const char *name,
                           const mha_tensor *array)
{
    int most = options->heads ? 3 : 4;
    if (array->ndim >= 2 && array->ndim <= most) return CLI_OK;
    char shape[128];
    run_shape_text(array, shape, sizeof shape);
    if (options->heads)
        return cli_fail(CLI_BAD_INPUT, RUN,
                        "%s (%s): has shape %s, expected [B,T,H*D] or [T,H*D] to split into heads; "
                        "leave --heads out if the heads have an axis already",
                        name, option, shape);
    return cli_fail(CLI_BAD_INPUT, RUN, "%s (%s): has shape %s, expected %s, %s or %s", name,
                    option, shape, axes_of(options, 4), axes_of(options, 3), axes_of(options, 2));
}

/* An array of 2 to 4 axes as [B,H,T,D]. */
static cli_exit view_array(const run_options *options, const char *option, const char *name,
                           const mha_tensor *array, int64_t heads, mha_tensor *view)
{
    CLI_TRY(check_axes(options, option, name, array));
    int n = array->ndim;
    int64_t width = array->shape[n - 1];
    if (options->heads && width % heads != 0)
        return cli_fail(CLI_BAD_INPUT, RUN,
                        "%s (%s): its last axis is %" PRId64 ", which %" PRId64 " heads do not "
                        "divide; change --heads%s",
                        name, option, width, heads,
                        strcmp(option, "--q") != 0 ? " or --kv-heads" : "");
    int64_t d = options->heads ? width / heads : width;
    bool time_first = options->heads || options->layout == RUN_BTHD;
    int64_t h = options->heads ? heads : n == 2 ? 1 : array->shape[time_first ? n - 2 : n - 3];
    int64_t t = array->shape[options->heads || n == 2 || !time_first ? n - 2 : n - 3];
    int64_t b = n == (options->heads ? 3 : 4) ? array->shape[0] : 1;
    int64_t shape[] = {b, h, t, d};
    *view = mha_tensor_contiguous(array->data, array->dtype, 4, shape);
    if (time_first) {
        view->stride[1] = d;
        view->stride[2] = h * d;
    }
    return CLI_OK;
}

static cli_exit load_inputs(const run_options *options, mha_context *context, run_problem *problem,
                            const mha_tensor *arrays[3])
{
    if (options->module) return run_module_make(options, context, problem, arrays);
    if (options->example) {
        mha_tensor *made;
        CLI_TRY(ARENA_ALLOC(RUN, 3, &made));
        for (int i = 0; i < 3; i++) arrays[i] = &made[i];
        return run_example_arrays(&made[0], &made[1], &made[2]);
    }
    /* What turns q and k knows f32 only. */
    run_kind turned = options->rope || options->qk_norm ? RUN_REAL : RUN_FLOAT;
    if (options->x) {
        CLI_TRY(load(options, problem, "--x", options->x, turned, &arrays[0]));
        arrays[1] = arrays[2] = arrays[0];
        return CLI_OK;
    }
    CLI_TRY(load(options, problem, "--q", options->q, turned, &arrays[0]));
    CLI_TRY(load(options, problem, "--k", options->k, turned, &arrays[1]));
    return load(options, problem, "--v", options->v, RUN_FLOAT, &arrays[2]);
}

static cli_exit make_inputs(const run_options *options, mha_context *context, run_problem *problem)
{
    const mha_tensor *arrays[3] = {0};
    const char *x = options->x ? options->x : options->example ? "the example" : NULL;
    const char *names[] = {x ? x : options->q, x ? x : options->k, x ? x : options->v};
    const char *flags[] = {x ? "--x" : "--q", x ? "--x" : "--k", x ? "--x" : "--v"};
    mha_tensor *views[] = {&problem->q, &problem->k, &problem->v};
    CLI_TRY(load_inputs(options, context, problem, arrays));
    for (int i = 0; i < 3; i++) {
        int64_t heads = i > 0 && options->kv_heads ? options->kv_heads : options->heads;
        CLI_TRY(view_array(options, flags[i], names[i], arrays[i], heads, views[i]));
    }
    problem->q_name = names[0];
    problem->k_name = names[1];
    problem->v_name = names[2];
    problem->split = options->heads > 0;
    problem->batch_axis = arrays[0]->ndim == (problem->split ? 3 : 4);
    problem->head_axis = problem->split || arrays[0]->ndim > 2;
    problem->plain_q = problem->q;
    problem->plain_k = problem->k;
    return CLI_OK;
}

/* ---- The descriptor's arrays ----------------------------------------------------------------- */

/* Arrays that the descriptor takes as tensors: it checks their shapes itself. */
static const struct {
    const char *option;
    size_t text, field; /* in run_options; in mha_attention_desc */
    run_kind kind;
} tensors[] = {
#define TENSOR(option_, text_, field_, kind_)                        \
    {                                                                \
        .option = option_, .text = offsetof(run_options, text_),     \
        .field = offsetof(mha_attention_desc, field_), .kind = kind_ \
    }
    TENSOR("--keep-mask", keep_mask, keep_mask, RUN_KEEP),
    TENSOR("--bias", bias, bias, RUN_FLOAT),
    TENSOR("--global-keys", global_keys, global_keys, RUN_KEEP),
    TENSOR("--global-queries", global_queries, global_queries, RUN_KEEP),
    TENSOR("--documents", documents, query_documents, RUN_INDEX32),
    TENSOR("--documents", documents, key_documents, RUN_INDEX32),
    TENSOR("--query-documents", query_documents, query_documents, RUN_INDEX32),
    TENSOR("--key-documents", key_documents, key_documents, RUN_INDEX32),
    TENSOR("--keep-blocks", keep_blocks, keep_blocks, RUN_KEEP),
    TENSOR("--alibi-slopes", alibi_slopes, alibi_slopes, RUN_REAL),
    TENSOR("--t5-table", t5_table, t5_table, RUN_REAL),
    TENSOR("--shaw-keys", shaw_keys, shaw_keys, RUN_REAL),
    TENSOR("--shaw-values", shaw_values, shaw_values, RUN_REAL),
    TENSOR("--sink-logits", sink_logits, sink_logits, RUN_REAL),
    TENSOR("--gates", gates, gates, RUN_REAL),
#undef TENSOR
};

static const char *text_at(const run_options *options, size_t field)
{
    return *(const char *const *)(const void *)((const char *)options + field);
}

static cli_exit load_tensors(const run_options *options, run_problem *problem)
{
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        const char *text = text_at(options, tensors[i].text);
        if (!text) continue;
        const mha_tensor **field = (void *)((char *)&problem->desc + tensors[i].field);
        CLI_TRY(load(options, problem, tensors[i].option, text, tensors[i].kind, field));
    }
    return CLI_OK;
}

static cli_exit check_numbers(const char *option, const char *text, const mha_tensor *tensor,
                              int64_t count)
{
    char shape[128];
    run_shape_text(tensor, shape, sizeof shape);
    if (tensor->ndim != 1)
        return cli_fail(CLI_BAD_INPUT, RUN, "%s (%s): has shape %s, expected one axis", text,
                        option, shape);
    if (count >= 0 && tensor->shape[0] != count)
        return cli_fail(CLI_BAD_INPUT, RUN,
                        "%s (%s): %" PRId64 " number%s, expected %" PRId64
                        ", one for each sequence",
                        text, option, tensor->shape[0], tensor->shape[0] == 1 ? "" : "s", count);
    return CLI_OK;
}

/* Whole numbers in one axis; count -1: any number of them. */
static cli_exit load_numbers(const run_options *options, run_problem *problem, const char *option,
                             const char *text, int64_t count, const int64_t **numbers,
                             int64_t *given)
{
    if (!text) return CLI_OK;
    const mha_tensor *tensor;
    mha_tensor head;
    if (run_random_is(text))
        return run_random_make(options, problem, option, text, RUN_INDEX, &head);
    CLI_TRY(run_array_peek(option, text, RUN_INDEX, &head));
    CLI_TRY(check_numbers(option, text, &head, count));
    CLI_TRY(load(options, problem, option, text, RUN_INDEX, &tensor));
    CLI_TRY(check_numbers(option, text, tensor, count)); /* files may change */
    *numbers = tensor->data;
    if (given) *given = tensor->shape[0];
    return CLI_OK;
}

static cli_exit load_sequences(const run_options *options, run_problem *problem)
{
    mha_attention_desc *desc = &problem->desc;
    int64_t queries = 0, keys = 0;
    CLI_TRY(load_numbers(options, problem, "--query-starts", options->query_starts, -1,
                         &desc->query_starts, &queries));
    CLI_TRY(load_numbers(options, problem, "--key-starts",
                         options->key_starts ? options->key_starts : options->query_starts, -1,
                         &desc->key_starts, &keys));
    problem->ragged = options->query_starts != NULL;
    if (problem->ragged && (queries != keys || queries < 2))
        return cli_fail(CLI_BAD_INPUT, RUN,
                        "--query-starts: %" PRId64 " and --key-starts: %" PRId64
                        " numbers; both need one more than there are sequences, as 0,3,8 for two",
                        queries, keys);
    desc->sequences = problem->ragged ? queries - 1 : 0;
    int64_t count = problem->ragged ? desc->sequences : problem->q.shape[0];
    CLI_TRY(load_numbers(options, problem, "--lengths", options->lengths, count, &desc->key_lengths,
                         NULL));
    CLI_TRY(load_numbers(options, problem, "--begins", options->begins, count, &desc->key_begins,
                         NULL));
    return load_numbers(options, problem, "--offsets", options->offsets, count, &desc->q_offsets,
                        NULL);
}

/* ---- The descriptor's numbers ---------------------------------------------------------------- */

/* "A,B" or "AxB". */
static bool read_pair(const char *text, char between, int64_t *a, int64_t *b)
{
    const char *rest;
    return args_whole(text, (const char[]){between, 0}, a, &rest) && *rest &&
           args_whole(rest + 1, "", b, &rest);
}

static cli_exit fill_pairs(const run_options *options, mha_attention_desc *desc)
{
    if (options->window && !read_pair(options->window, ',', &desc->left_keys, &desc->right_keys))
        return cli_fail(
            CLI_USAGE, RUN,
            "--window %s: expected two numbers, the keys visible before and after a query, "
            "as --window 4,0; -1 is all of them",
            options->window);
    if (options->window) desc->flags |= MHA_ATTENTION_WINDOW;
    if (options->block_size &&
        !read_pair(options->block_size, 'x', &desc->block_queries, &desc->block_keys))
        return cli_fail(CLI_USAGE, RUN,
                        "--block-size %s: expected queries and keys per block, such as 64x64",
                        options->block_size);
    return CLI_OK;
}

static cli_exit fill_float(const char *option, const args_real *real, float *field)
{
    if (fabs(real->value) > (double)FLT_MAX)
        return cli_fail(CLI_USAGE, RUN, "%s %g: at most %g fits into float32", option, real->value,
                        (double)FLT_MAX);
    *field = (float)real->value;
    return CLI_OK;
}

/* True if something reads the position of a query, so that an offset has a meaning for scores. */
static bool reads_positions(const run_options *options, const mha_attention_desc *desc)
{
    return desc->flags & (MHA_ATTENTION_CAUSAL | MHA_ATTENTION_WINDOW) || desc->alibi_slopes ||
           desc->t5_table || desc->shaw_keys || desc->shaw_values || options->diagonal ||
           options->offset_mass;
}

static cli_exit fill_numbers(const run_options *options, run_problem *problem)
{
    mha_attention_desc *desc = &problem->desc;
    desc->struct_size = sizeof *desc;
    if (options->causal) desc->flags |= MHA_ATTENTION_CAUSAL;
    if (options->strict) desc->flags |= MHA_ATTENTION_STRICT;
    if (options->scale.given) desc->flags |= MHA_ATTENTION_SCALE_GIVEN;
    if (options->t5_one_sided) desc->flags |= MHA_ATTENTION_T5_ONE_SIDED;
    desc->path = (mha_path)options->path;
    desc->compute = options->compute ? MHA_COMPUTE_BF16 : MHA_COMPUTE_F32;
    desc->q_offset = options->offset;
    desc->sink_keys = options->sink_keys;
    desc->t5_max_distance = options->t5_max_distance;
    desc->dropout_seed = (uint64_t)options->seed;
    CLI_TRY(fill_pairs(options, desc));
    CLI_TRY(fill_float("--scale", &options->scale, &desc->scale));
    CLI_TRY(fill_float("--softcap", &options->softcap, &desc->softcap));
    return fill_float("--dropout", &options->dropout, &desc->dropout);
}

/* --alibi: the published slopes. */
static cli_exit fill_slopes(const run_options *options, run_problem *problem)
{
    int64_t elements, heads = problem->q.shape[1];
    /* Only elements vouch for a number of heads. */
    if (!options->alibi || mha_tensor_count(&problem->q, &elements) != MHA_OK || elements == 0)
        return CLI_OK;
    mha_tensor *slopes;
    CLI_TRY(ARENA_ALLOC(RUN, 1, &slopes));
    problem->desc.alibi_slopes = slopes;
    *slopes = mha_tensor_contiguous(NULL, MHA_F32, 1, &heads);
    if (problem->heads_only) return CLI_OK;
    CLI_TRY(run_array_make(MHA_F32, 1, &heads, slopes));
    return cli_check(RUN, mha_alibi_slopes(heads, slopes->data));
}

/* ---- RoPE ------------------------------------------------------------------------------------ */

/* Ragged: each sequence begins at 0 again, or where --offset(s) say. */
static cli_exit ragged_positions(run_problem *problem, const int64_t *starts, int64_t rows,
                                 const int64_t *offsets, int64_t offset, const mha_tensor **ids)
{
    mha_tensor *made;
    CLI_TRY(ARENA_ALLOC(RUN, 1, &made));
    CLI_TRY(run_array_make(MHA_I64, 1, &rows, made));
    int64_t *id = made->data, t = 0;
    for (int64_t b = 0; b < problem->desc.sequences; b++) {
        /* Starts that fall or run over are refused later, by the descriptor's check. */
        if (t < starts[b]) t = starts[b];
        for (int64_t begin = t; t < starts[b + 1] && t < rows; t++)
            id[t] = (int64_t)((uint64_t)(t - begin) + (uint64_t)(offsets ? offsets[b] : offset));
    }
    *ids = made;
    return CLI_OK;
}

static cli_exit turn(const run_options *options, mha_context *context, run_problem *problem,
                     const mha_positions *positions, mha_tensor *x)
{
    mha_rope_desc rope = {.struct_size = sizeof rope,
                          .pairing = (mha_rope_pairing)options->rope_pairing,
                          .rotary_dim = options->rope_dim,
                          .base = options->rope_base.value,
                          .factor = options->rope_scale.value,
                          .positions = *positions};
    mha_tensor turned;
    CLI_TRY(run_array_make(MHA_F32, 4, x->shape, &turned));
    mha_status status = mha_rope_apply(context, &rope, x, &turned);
    if (status != MHA_OK) return run_fail(options, problem, status);
    *x = turned;
    return CLI_OK;
}

/* [T] or [B,T], or 1 in place of either. */
static cli_exit load_positions(const run_options *options, run_problem *problem, const char *option,
                               const char *text, int64_t rows, const mha_tensor **ids)
{
    CLI_TRY(load(options, problem, option, text, RUN_INDEX, ids));
    const mha_tensor *t = *ids;
    int64_t b = problem->q.shape[0], last = t->ndim > 0 ? t->shape[t->ndim - 1] : 1;
    int64_t first = t->ndim == 2 ? t->shape[0] : 1;
    if (t->ndim <= 2 && (last == 1 || last == rows) && (first == 1 || first == b)) return CLI_OK;
    char shape[128];
    return cli_fail(CLI_BAD_INPUT, RUN,
                    "%s (%s): has shape %s, expected [%" PRId64 "] or [%" PRId64 ", %" PRId64
                    "]: a position for each token",
                    text, option, run_shape_text(t, shape, sizeof shape), rows, b, rows);
}

/* Where queries stand: --positions, or t + offset; and keys: --key-positions, or the same as
 * queries where --positions names every key too, or s. */
static cli_exit find_positions(const run_options *options, run_problem *problem,
                               mha_positions *of_q, mha_positions *of_k)
{
    const mha_attention_desc *desc = &problem->desc;
    *of_q =
        (mha_positions){.starts = desc->q_offsets, .start = desc->q_offsets ? 0 : options->offset};
    *of_k = (mha_positions){0};
    if (options->positions) {
        *of_q = (mha_positions){0};
        CLI_TRY(load_positions(options, problem, "--positions", options->positions,
                               problem->q.shape[2], &of_q->ids));
        if (problem->q.shape[2] == problem->k.shape[2]) of_k->ids = of_q->ids;
    } else if (problem->ragged) {
        *of_q = (mha_positions){0};
        CLI_TRY(ragged_positions(problem, desc->query_starts, problem->q.shape[2], desc->q_offsets,
                                 options->offset, &of_q->ids));
    }
    if (options->key_positions)
        CLI_TRY(load_positions(options, problem, "--key-positions", options->key_positions,
                               problem->k.shape[2], &of_k->ids));
    else if (!of_k->ids && problem->ragged)
        CLI_TRY(
            ragged_positions(problem, desc->key_starts, problem->k.shape[2], NULL, 0, &of_k->ids));
    return CLI_OK;
}

static cli_exit apply_rope(const run_options *options, mha_context *context, run_problem *problem)
{
    mha_positions of_q, of_k;
    CLI_TRY(find_positions(options, problem, &of_q, &of_k));
    CLI_TRY(turn(options, context, problem, &of_q, &problem->q));
    return turn(options, context, problem, &of_k, &problem->k);
}

/* ---- Norms and types ------------------------------------------------------------------------- */

/* --qk-norm of q or k, without weights. */
static cli_exit norm(const run_options *options, mha_context *context, run_problem *problem,
                     mha_tensor *x)
{
    /* In the order of the choices. */
    static const mha_qk_norm_kind kinds[] = {MHA_QK_NORM_RMS, MHA_QK_NORM_RMS, MHA_QK_NORM_L2};
    double epsilon = options->qk_epsilon.given ? options->qk_epsilon.value : 1e-6;
    mha_tensor made;
    CLI_TRY(run_array_make(MHA_F32, 4, x->shape, &made));
    mha_status status =
        mha_qk_norm(context, kinds[options->qk_norm], (float)epsilon, x, NULL, &made);
    if (status != MHA_OK) return run_fail(options, problem, status);
    *x = made;
    return CLI_OK;
}

mha_dtype run_o_dtype(const run_options *options)
{
    static const mha_dtype types[] = {MHA_F32, MHA_F32, MHA_F16, MHA_BF16}; /* the choices */
    return types[options->dtype];
}

static cli_exit convert(mha_dtype dtype, mha_tensor *x)
{
    if (x->dtype == dtype) return CLI_OK;
    const mha_tensor from = *x;
    return run_array_convert(&from, dtype, x);
}

/* --dtype: the tensors as they would be stored in that type. */
static cli_exit convert_all(const run_options *options, run_problem *problem)
{
    if (!options->dtype) return CLI_OK;
    mha_dtype dtype = run_o_dtype(options);
    CLI_TRY(convert(dtype, &problem->q));
    CLI_TRY(convert(dtype, &problem->k));
    return convert(dtype, &problem->v);
}

/* ---- All of it ------------------------------------------------------------------------------- */

static cli_exit load_list(const char *option, const char *text, const char *what, int64_t limit,
                          const int64_t **numbers, int64_t *count)
{
    if (!text) return CLI_OK;
    mha_tensor list;
    CLI_TRY(run_list_read(option, text, what, limit, &list));
    *numbers = list.data;
    *count = list.shape[0];
    return CLI_OK;
}

/* Which part of the optional outputs is wanted. */
static cli_exit fill_wanted(const run_options *options, run_problem *problem)
{
    /* In the order of the choices of --score-stage. */
    static const mha_score_stage stages[] = {MHA_SCORES_BIASED, MHA_SCORES_RAW, MHA_SCORES_CAPPED};
    mha_attention_outputs *wanted = &problem->wanted;
    *wanted =
        (mha_attention_outputs){.struct_size = sizeof *wanted,
                                .score_stage = options->scores ? stages[options->score_stage] : 0};
    if (options->after_dropout) wanted->flags |= MHA_OUTPUT_DROPPED_PROBABILITIES;
    CLI_TRY(load_list("--pick-heads", options->pick_heads, "head", problem->q.shape[1],
                      &wanted->heads, &wanted->heads_count));
    CLI_TRY(load_list("--pick-rows", options->pick_rows, "row", problem->q.shape[2], &wanted->rows,
                      &wanted->rows_count));
    if (!options->offset_mass) return CLI_OK;
    return load_numbers(options, problem, "--mass-offsets",
                        options->mass_offsets ? options->mass_offsets : "-1", -1, &wanted->offsets,
                        &wanted->offsets_count);
}

static void fill_linear(run_problem *problem)
{
    const mha_attention_desc *desc = &problem->desc;
    problem->linear = (mha_linear_attention_desc){
        .struct_size = sizeof problem->linear,
        .flags = desc->flags & MHA_ATTENTION_CAUSAL ? MHA_LINEAR_ATTENTION_CAUSAL : 0,
        .q_offset = desc->q_offset,
        .q_offsets = desc->q_offsets,
        .key_lengths = desc->key_lengths,
        .query_starts = desc->query_starts,
        .key_starts = desc->key_starts,
        .sequences = desc->sequences};
}

/* All arrays and numbers, as far as they stand in files and options. */
static cli_exit gather(const run_options *options, mha_context *context, run_problem *problem)
{
    CLI_TRY(fill_numbers(options, problem));
    CLI_TRY(make_inputs(options, context, problem));
    CLI_TRY(load_sequences(options, problem));
    CLI_TRY(load_tensors(options, problem));
    CLI_TRY(fill_slopes(options, problem));
    return fill_wanted(options, problem);
}

/* What is left of offsets once positions have been turned. */
static void settle_offsets(const run_options *options, mha_attention_desc *desc)
{
    if (desc->q_offsets && !options->offset) desc->q_offset = 0;
    if (options->rope && !reads_positions(options, desc)) { /* the offset was RoPE's */
        desc->q_offset = 0;
        desc->q_offsets = NULL;
    }
}

/* Do the shapes fit? Asked of the heads of the files, before an element is read. */
static cli_exit check_heads(const run_options *options, mha_context *context)
{
    run_problem problem = {.heads_only = true};
    mha_attention_plan plan;
    const size_t mark = arena_mark();
    CLI_TRY(gather(options, context, &problem));
    if (!options->linear) {
        mha_tensor *const inputs[] = {&problem.q, &problem.k, &problem.v};
        for (int i = 0; i < 3 && options->dtype; i++) inputs[i]->dtype = run_o_dtype(options);
        settle_offsets(options, &problem.desc);
        mha_status status = mha_attention_explain(context, &problem.desc, &problem.q, &problem.k,
                                                  &problem.v, NULL, NULL, &plan);
        if (status != MHA_OK) return run_fail(options, &problem, status);
    }
    arena_release(mark);
    return CLI_OK;
}

cli_exit run_problem_make(const run_options *options, mha_context *context, run_problem *problem)
{
    *problem = (run_problem){0};
    CLI_TRY(check_heads(options, context));
    CLI_TRY(gather(options, context, problem));
    if (options->qk_norm) CLI_TRY(norm(options, context, problem, &problem->q));
    if (options->qk_norm) CLI_TRY(norm(options, context, problem, &problem->k));
    if (options->rope) CLI_TRY(apply_rope(options, context, problem));
    CLI_TRY(convert_all(options, problem));
    settle_offsets(options, &problem->desc);
    fill_linear(problem);
    return CLI_OK;
}
