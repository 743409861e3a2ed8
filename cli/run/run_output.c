/* What `multihead run` computes and where it goes. One list says which outputs there are, which
 * axes they have and which option writes them. */
#include "common/arena.h"
#include "common/commands.h"
#include "common/files.h"
#include "common/json_out.h"
#include "common/signals.h"
#include "common/words.h"
#include "run/run.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Axes: B H T as in attention.h, of the tensor q; h and r the heads and rows that were picked; S
 * the keys of the longest sequence; N all keys of a sequence's tensor; V the size of values; O the
 * offsets; K of the top. */
static const struct {
    const char *option, *axes;
    size_t path, field; /* in run_options; in mha_attention_outputs, 0: o itself */
    mha_dtype dtype;
} outputs[] = {
#define OUTPUT(option_, axes_, path_, field_, dtype_)                           \
    {                                                                           \
        .option = option_, .axes = axes_, .path = offsetof(run_options, path_), \
        .field = offsetof(mha_attention_outputs, field_), .dtype = dtype_       \
    }
    {.option = "--out", .axes = "BHTV", .path = offsetof(run_options, out)},
    OUTPUT("--lse", "BHT", lse, lse, MHA_F32),
    OUTPUT("--probabilities", "BhrS", probabilities, probabilities, MHA_F32),
    OUTPUT("--average", "BTS", average, average_probabilities, MHA_F32),
    OUTPUT("--scores", "BhrS", scores, scores, MHA_F32),
    OUTPUT("--entropy", "BHT", entropy, entropy, MHA_F32),
    OUTPUT("--largest-weight", "BHT", largest_weight, largest_weight, MHA_F32),
    OUTPUT("--largest-key", "BHT", largest_key, largest_key, MHA_I64),
    OUTPUT("--first-token", "BHT", first_token, first_token, MHA_F32),
    OUTPUT("--diagonal", "BHT", diagonal, diagonal, MHA_F32),
    OUTPUT("--offset-mass", "BHTO", offset_mass, offset_mass, MHA_F32),
    OUTPUT("--top-keys", "BHTK", top_keys, top_keys, MHA_I64),
    OUTPUT("--top-weights", "BHTK", top_weights, top_weights, MHA_F32),
    OUTPUT("--column-sums", "BHN", column_sums, column_sums, MHA_F32),
#undef OUTPUT
};

enum { OUTPUT_COUNT = sizeof outputs / sizeof *outputs };

static const char *path_of(const run_options *options, int i)
{
    return *(const char *const *)(const void *)((const char *)options + outputs[i].path);
}

bool run_has_files(const run_options *options)
{
    for (int i = 0; i < OUTPUT_COUNT; i++)
        if (path_of(options, i)) return true;
    return options->json != NULL;
}

/* ---- Whether they can be had ----------------------------------------------------------------- */

typedef struct named_path {
    const char *option, *path;
} named_path;

static int list_paths(const run_options *options, named_path *paths)
{
    int count = 0;
    for (int i = 0; i < OUTPUT_COUNT; i++)
        if (path_of(options, i))
            paths[count++] = (named_path){outputs[i].option, path_of(options, i)};
    if (options->json) paths[count++] = (named_path){"--json", options->json};
    return count;
}

/* All outputs but --json are .npy: a name that says otherwise is a slip. */
static cli_exit check_name(const run_options *options, const named_path *output)
{
    static const char *const others[] = {".safetensors", ".npz", ".pt", ".csv", ".txt", ".json"};
    size_t length = strlen(output->path);
    for (size_t i = 0; i < sizeof others / sizeof *others && output->path != options->json; i++) {
        size_t bytes = strlen(others[i]);
        if (length > bytes && !strcmp(output->path + length - bytes, others[i]))
            return cli_fail(CLI_USAGE, RUN, "%s %s: a .npy file is written; name it so",
                            output->option, output->path);
    }
    return CLI_OK;
}

static cli_exit check_stdout(const run_options *options, const named_path *output,
                             const char **on_stdout)
{
    if (strcmp(output->path, "-") != 0) return CLI_OK;
    if (*on_stdout)
        return cli_fail(CLI_USAGE, RUN, "%s and %s both write to stdout; one of them needs a file",
                        *on_stdout, output->option);
    if (output->path != options->json && isatty(STDOUT_FILENO))
        return cli_fail(CLI_USAGE, RUN, "%s -: stdout is a terminal; name a file, or use a pipe",
                        output->option);
    *on_stdout = output->option;
    return CLI_OK;
}

const char *run_writes(const run_options *options, const char *path)
{
    named_path paths[OUTPUT_COUNT + 1];
    int count = list_paths(options, paths);
    for (int i = 0; i < count; i++)
        if (files_same(paths[i].path, path)) return paths[i].option;
    return NULL;
}

cli_exit run_check_outputs(const run_options *options)
{
    named_path paths[OUTPUT_COUNT + 1];
    int count = list_paths(options, paths);
    const char *on_stdout = options->trace ? "--trace" : NULL;
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < i; j++)
            if (files_same(paths[i].path, paths[j].path))
                return cli_fail(CLI_USAGE, RUN, "%s and %s both write '%s'", paths[j].option,
                                paths[i].option, paths[i].path);
        CLI_TRY(check_name(options, &paths[i]));
        CLI_TRY(check_stdout(options, &paths[i], &on_stdout));
        if (strcmp(paths[i].path, "-") != 0 && files_check_place(paths[i].path) != MHA_OK)
            return cli_fail_status(RUN, MHA_ERR_WRITE);
    }
    return CLI_OK;
}

/* ---- Computing ------------------------------------------------------------------------------- */

int64_t run_longest(const run_problem *problem)
{
    const mha_attention_desc *desc = &problem->desc;
    int64_t most = problem->ragged ? 0 : problem->k.shape[2];
    for (int64_t b = 0; problem->ragged && b < desc->sequences; b++) {
        int64_t keys = desc->key_starts[b + 1] - desc->key_starts[b];
        if (keys > most) most = keys;
    }
    return most;
}

static int64_t axis_length(const run_options *options, const run_problem *problem, char axis)
{
    const mha_attention_outputs *wanted = &problem->wanted;
    switch (axis) {
    case 'h': return wanted->heads ? wanted->heads_count : problem->q.shape[1];
    case 'r': return wanted->rows ? wanted->rows_count : problem->q.shape[2];
    case 'N': return problem->k.shape[2];
    case 'O': return wanted->offsets_count;
    case 'K': return options->top ? options->top : RUN_DEFAULT_TOP;
    case 'B': return problem->q.shape[0];
    case 'H': return problem->q.shape[1];
    case 'T': return problem->q.shape[2];
    case 'S': return run_longest(problem);
    default: return problem->v.shape[3];
    }
}

/* The axes as they are saved: without those that the file of q has not. */
static mha_tensor saved_view(const run_problem *problem, const mha_tensor *whole, const char *axes)
{
    mha_tensor saved = *whole;
    saved.ndim = 0;
    for (int i = 0; i < whole->ndim; i++) {
        bool absent =
            (axes[i] == 'B' && !problem->batch_axis) || (axes[i] == 'H' && !problem->head_axis);
        if (absent && whole->shape[i] == 1) continue;
        saved.shape[saved.ndim] = whole->shape[i];
        saved.stride[saved.ndim++] = whole->stride[i];
    }
    return saved;
}

/* o has the layout of q: its memory is in that order, and *view shows it as [B,H,T,V]. */
static cli_exit make_o(const run_options *options, const run_problem *problem, mha_tensor *array,
                       mha_tensor *view, mha_tensor *saved)
{
    bool time_first = problem->split || options->layout == RUN_BTHD;
    int64_t b = problem->q.shape[0], h = problem->q.shape[1], t = problem->q.shape[2];
    int64_t d = problem->v.shape[3];
    int64_t shape[] = {b, time_first ? t : h, time_first ? h : t, d};
    CLI_TRY(run_array_make(run_o_dtype(options), 4, shape, array));
    *view = *array;
    *saved = saved_view(problem, array, time_first ? "BTHV" : "BHTV");
    if (time_first) {
        view->shape[1] = h;
        view->shape[2] = t;
        view->stride[1] = d;
        view->stride[2] = h * d;
    }
    if (problem->split) {
        int64_t flat[] = {b, t, h * d};
        mha_tensor all = mha_tensor_contiguous(array->data, view->dtype, 3, flat);
        *saved = saved_view(problem, &all, "BTW");
    }
    return CLI_OK;
}

static cli_exit make_output(const run_options *options, const run_problem *problem, int i,
                            run_results *results)
{
    int64_t shape[MHA_MAX_DIMS];
    int ndim = (int)strlen(outputs[i].axes);
    for (int axis = 0; axis < ndim; axis++)
        shape[axis] = axis_length(options, problem, outputs[i].axes[axis]);
    CLI_TRY(run_array_make(outputs[i].dtype, ndim, shape, &results->arrays[i]));
    results->saved[i] = saved_view(problem, &results->arrays[i], outputs[i].axes);
    return CLI_OK;
}

static mha_status forward(const run_options *options, mha_context *context,
                          const run_problem *problem, const mha_tensor *o,
                          const mha_attention_outputs *wanted)
{
    const run_problem *p = problem;
    return options->linear
               ? mha_linear_attention_forward(context, &p->linear, &p->q, &p->k, &p->v, o, NULL)
               : mha_attention_forward(context, &p->desc, &p->q, &p->k, &p->v, o, wanted);
}

/* Memory for every output asked for, and for both halves of the top. */
static cli_exit make_outputs(const run_options *options, const run_problem *problem,
                             run_results *results, mha_attention_outputs *wanted)
{
    *wanted = problem->wanted;
    for (int i = 1; i < OUTPUT_COUNT; i++) {
        bool top = strchr(outputs[i].axes, 'K') && (options->top_keys || options->top_weights);
        if (!path_of(options, i) && !top) continue;
        CLI_TRY(make_output(options, problem, i, results));
        const mha_tensor **field = (void *)((char *)wanted + outputs[i].field);
        *field = &results->arrays[i];
    }
    return CLI_OK;
}

/* Checks all but the outputs if these are NULL, and then all. */
static mha_status plan(const run_options *options, const mha_context *context,
                       const run_problem *problem, const mha_attention_outputs *wanted,
                       mha_attention_plan *out)
{
    if (options->linear) return MHA_OK;
    return mha_attention_explain(context, &problem->desc, &problem->q, &problem->k, &problem->v,
                                 NULL, wanted, out);
}

/* NumPy has no bfloat16: such an o is saved as float32, which holds its numbers exactly. */
static cli_exit widen_o(run_results *results)
{
    if (results->saved[0].dtype != MHA_BF16) return CLI_OK;
    mha_tensor wide;
    CLI_TRY(run_array_convert(&results->saved[0], MHA_F32, &wide));
    arena_drop(results->arrays[0].data);
    results->arrays[0] = wide;
    results->saved[0] = wide;
    return CLI_OK;
}

cli_exit run_compute(const run_options *options, mha_context *context, const run_problem *problem,
                     run_results *results)
{
    *results =
        (run_results){.isa = mha_context_isa(context), .threads = mha_context_threads(context)};
    mha_tensor o;
    mha_attention_outputs wanted;
    mha_status status = plan(options, context, problem, NULL, &results->plan);
    if (status != MHA_OK) return run_fail(options, problem, status);
    CLI_TRY(make_o(options, problem, &results->arrays[0], &o, &results->saved[0]));
    CLI_TRY(make_outputs(options, problem, results, &wanted));
    status = plan(options, context, problem, &wanted, &results->plan);
    double begin = seconds_now();
    if (status == MHA_OK) status = forward(options, context, problem, &o, &wanted);
    results->seconds = seconds_now() - begin;
    if (status != MHA_OK) return run_fail(options, problem, status);
    if (!options->module) return widen_o(results);
    mha_tensor heads = results->saved[0];
    return run_module_out(context, problem, &heads, &results->saved[0]);
}

/* ---- Writing --------------------------------------------------------------------------------- */

const char *run_dtype_text(mha_dtype dtype)
{
    return dtype == MHA_I64   ? "int64"
           : dtype == MHA_F32 ? "float32"
           : dtype == MHA_F16 ? "float16"
                              : mha_dtype_name(dtype);
}

static void json_shape(json_out *json, const mha_tensor *tensor)
{
    char shape[128];
    json_print(json, "%s", run_shape_text(tensor, shape, sizeof shape));
}

static void json_input(json_out *json, const char *key, const char *name, const mha_tensor *view)
{
    json_print(json, "    \"%s\": {\"file\": ", key);
    json_text(json, name);
    json_print(json, ", \"shape\": ");
    json_shape(json, view);
    json_print(json, "}%s\n", strcmp(key, "v") != 0 ? "," : "");
}

static void json_plan(json_out *json, const run_options *options, const run_results *results)
{
    const mha_attention_plan *plan = &results->plan;
    json_print(json, "  \"kind\": \"%s\",\n", options->linear ? "linear" : "softmax");
    if (options->linear) return;
    json_print(json, "  \"path\": \"%s\",\n", plan->path == MHA_PATH_TILED ? "tiled" : "plain");
    json_print(json, "  \"reason\": \"%s\",\n", plan->reason);
    json_print(json, "  \"compute\": \"%s\",\n", mha_compute_name(plan->compute));
    json_print(json, "  \"isa\": \"%s\",\n", mha_isa_name(plan->isa));
    json_print(json, "  \"visible_pairs\": %" PRId64 ",\n", plan->visible_pairs);
    json_print(json, "  \"flops\": %.17g,\n  \"bytes\": %.17g,\n", plan->flops, plan->bytes);
    json_print(json, "  \"scratch_bytes\": %zu,\n", plan->scratch_bytes);
}

static void json_outputs(json_out *json, const run_options *options, const run_results *results)
{
    bool first = true;
    json_print(json, "  \"outputs\": [");
    for (int i = 0; i < OUTPUT_COUNT; i++) {
        const char *path = path_of(options, i);
        if (!path) continue;
        json_print(json, "%s\n    {\"output\": \"%s\", \"file\": ", first ? "" : ",",
                   outputs[i].option + 2);
        json_text(json, path);
        json_print(json,
                   ", \"dtype\": \"%s\", \"shape\": ", run_dtype_text(results->saved[i].dtype));
        json_shape(json, &results->saved[i]);
        json_print(json, "}");
        first = false;
    }
    json_print(json, "%s]\n}\n", first ? "" : "\n  ");
}

/* What draw_json() tells of. */
typedef struct json_job {
    const run_options *options;
    const run_problem *problem;
    const run_results *results;
} json_job;

static mha_status draw_json(const void *user, const mha_sink *sink)
{
    const json_job *job = user;
    const run_problem *problem = job->problem;
    json_out json = {.sink = sink};
    json_print(&json, "{\n  \"format\": \"multihead-run\",\n  \"version\": 1,\n");
    json_print(&json, "  \"producer\": \"multihead " CLI_VERSION "\",\n  \"inputs\": {\n");
    json_input(&json, "q", problem->q_name, &problem->q);
    json_input(&json, "k", problem->k_name, &problem->k);
    json_input(&json, "v", problem->v_name, &problem->v);
    json_print(&json, "  },\n");
    json_plan(&json, job->options, job->results);
    json_outputs(&json, job->options, job->results);
    return json.status;
}

cli_exit run_write(const run_options *options, const run_problem *problem,
                   const run_results *results)
{
    char shape[128];
    for (int i = 0; i < OUTPUT_COUNT; i++) {
        const char *path = path_of(options, i);
        if (!path) continue;
        mha_status status = files_write_npy(path, &results->saved[i]);
        CLI_TRY(cli_check(RUN, status));
        if (strcmp(path, "-") != 0)
            cli_note(options->quiet, "wrote %s: %s %s", path,
                     run_dtype_text(results->saved[i].dtype),
                     run_shape_text(&results->saved[i], shape, sizeof shape));
    }
    if (!options->json) return CLI_OK;
    const json_job job = {options, problem, results};
    mha_status status = files_draw(options->json, draw_json, &job);
    CLI_TRY(cli_check(RUN, status));
    if (strcmp(options->json, "-") != 0) cli_note(options->quiet, "wrote %s", options->json);
    return CLI_OK;
}

/* ---- What ran -------------------------------------------------------------------------------- */

void run_say(const run_options *options, const run_problem *problem, const run_results *results)
{
    const mha_attention_plan *plan = &results->plan;
    int64_t b = problem->ragged ? problem->desc.sequences : problem->q.shape[0];
    int64_t h = problem->q.shape[1], hk = problem->k.shape[1];
    char shared[64] = "";
    if (h != hk) snprintf(shared, sizeof shared, " on %" PRId64 " key/value heads", hk);
    cli_note(options->quiet,
             "%" PRId64 " sequence%s, %" PRId64 " head%s%s, %" PRId64 " queries, %" PRId64
             " keys%s, head size %" PRId64 ", values of %" PRId64,
             b, b == 1 ? "" : "s", h, h == 1 ? "" : "s", shared, problem->q.shape[2],
             problem->k.shape[2], problem->ragged ? " in all" : "", problem->q.shape[3],
             problem->v.shape[3]);
    if (options->linear)
        cli_note(options->quiet, "linear attention (elu + 1), %d thread%s: %.3g ms",
                 results->threads, results->threads == 1 ? "" : "s", 1e3 * results->seconds);
    else
        cli_note(options->quiet, "path %s (%s), %s, %d thread%s: %.3g ms, %s",
                 plan->path == MHA_PATH_TILED ? "tiled" : "plain", plan->reason,
                 mha_isa_name(plan->isa), results->threads, results->threads == 1 ? "" : "s",
                 1e3 * results->seconds, words_flops(plan->flops).text);
}

cli_exit run_print_result(const run_options *options, const run_results *results)
{
    char shape[128];
    mha_tensor wide;
    CLI_TRY(run_array_convert(&results->saved[0], MHA_F32, &wide));
    cli_print("%s %s %s\n", options->module ? "out" : "o", run_dtype_text(results->saved[0].dtype),
              run_shape_text(&results->saved[0], shape, sizeof shape));
    run_print_array(&wide);
    return CLI_OK;
}
