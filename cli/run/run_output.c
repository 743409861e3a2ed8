/* The outputs of `multihead run`, by the list in run.h. */
#include "common/arena.h"
#include "common/files.h"
#include "common/signals.h"
#include "common/words.h"
#include "run/run.h"

#include <multihead/json.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { DEFAULT_TOP = 5 };

/* o is first. --json is last, because it is not an array. */
static const struct {
    const char *option, *axes;
    size_t path, field; /* in run_options; in mha_attention_outputs */
    mha_dtype dtype;
} outputs[] = {
#define OUTPUT(field_, option_, axes_, dtype_, help)   \
    {.option = "--" option_,                           \
     .axes = axes_,                                    \
     .path = offsetof(run_options, field_),            \
     .field = offsetof(mha_attention_outputs, field_), \
     .dtype = dtype_},
    {.option = "--out", .axes = "BHTV", .path = offsetof(run_options, out)},
    RUN_OUTPUTS(OUTPUT){.option = "--json", .path = offsetof(run_options, json)}};

static const char *path_of(const run_options *o, int i)
{
    return *(const char *const *)(const void *)((const char *)o + outputs[i].path);
}

bool run_has_files(const run_options *o)
{
    bool any = false;
    for (int i = 0; i <= RUN_OUTPUT_COUNT; i++) any |= path_of(o, i) != NULL;
    return any;
}

/* ---- Checks of outputs ----------------------------------------------------------------------- */

/* All outputs except --json are .npy; another extension is a mistake. */
static cli_exit check_name(const char *option, const char *path)
{
    static const char *const others[] = {".safetensors", ".npz", ".pt", ".csv", ".txt", ".json"};
    const char *end = strrchr(path, '.');
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (end && end > path && !strcmp(end, others[i]))
            return RUN_USAGE("%s: \"%s\" must end in .npy", option, path);
    if (!strcmp(path, "-") && isatty(STDOUT_FILENO))
        return RUN_USAGE("%s -: stdout is a terminal; name a file, or use a pipe", option);
    return CLI_OK;
}

const char *run_writes(const run_options *o, const char *path)
{
    for (int i = 0; i <= RUN_OUTPUT_COUNT; i++)
        if (path_of(o, i) && files_same(path_of(o, i), path)) return outputs[i].option;
    return NULL;
}

cli_exit run_check_outputs(const run_options *o)
{
    const char *on_stdout = o->trace ? "--trace" : NULL;
    for (int i = 0; i <= RUN_OUTPUT_COUNT; i++) {
        const char *path = path_of(o, i), *option = outputs[i].option;
        if (!path) continue;
        const char *other = run_writes(o, path);
        if (other && strcmp(other, option) != 0)
            return RUN_USAGE("%s and %s both write '%s'", other, option, path);
        if (!strcmp(path, "-") && on_stdout)
            return RUN_USAGE("%s and %s both write to stdout; one of them needs a file", on_stdout,
                             option);
        if (i < RUN_OUTPUT_COUNT) CLI_TRY(check_name(option, path));
        if (!strcmp(path, "-"))
            on_stdout = option;
        else
            CLI_TRY(cli_check(files_check_place(path)));
    }
    return CLI_OK;
}

/* ---- Computing ------------------------------------------------------------------------------- */

static int64_t axis_length(const run_problem *p, char axis)
{
    const mha_attention_outputs *wanted = &p->wanted;
    switch (axis) {
    case 'h': return wanted->heads ? wanted->heads_count : p->q.shape[1];
    case 'r': return wanted->rows ? wanted->rows_count : p->q.shape[2];
    case 'N': return p->k.shape[2];
    case 'O': return wanted->offsets_count;
    case 'K': return p->options->top ? p->options->top : DEFAULT_TOP;
    case 'B': return p->q.shape[0];
    case 'H': return p->q.shape[1];
    case 'T': return p->q.shape[2];
    case 'S': return run_longest(p);
    default: return p->v.shape[3];
    }
}

/* Make an array with these axes, saved without the axes that q's file lacks. */
static cli_exit make_output(const run_problem *p, const char *axes, mha_dtype dtype,
                            mha_tensor *array, mha_tensor *saved)
{
    int64_t shape[MHA_MAX_DIMS], kept[MHA_MAX_DIMS];
    int ndim = (int)strlen(axes), kept_ndim = 0;
    for (int i = 0; i < ndim; i++) {
        const bool absent = (axes[i] == 'B' && !p->batch_axis) || (axes[i] == 'H' && !p->head_axis);
        shape[i] = axis_length(p, axes[i]);
        if (!absent || shape[i] != 1) kept[kept_ndim++] = shape[i];
    }
    CLI_TRY(run_array_make(dtype, ndim, shape, array));
    *saved = mha_tensor_contiguous(array->data, dtype, kept_ndim, kept);
    return CLI_OK;
}

/* o has the memory layout of q; *view shows it as [B,H,T,V]. */
static cli_exit make_o(const run_problem *p, mha_tensor *array, mha_tensor *view, mha_tensor *saved)
{
    const int64_t h = p->q.shape[1], t = p->q.shape[2], d = p->v.shape[3];
    CLI_TRY(make_output(p, p->time_first ? "BTHV" : "BHTV", run_o_dtype(p->options), array, saved));
    *view = *array;
    if (!p->time_first) return CLI_OK;
    view->shape[1] = h;
    view->shape[2] = t;
    view->stride[1] = d;
    view->stride[2] = h * d;
    if (!p->options->heads) return CLI_OK;
    const int64_t flat[] = {p->q.shape[0], t, h * d};
    const int skipped = !p->batch_axis && flat[0] == 1;
    *saved = mha_tensor_contiguous(array->data, array->dtype, 3 - skipped, flat + skipped);
    return CLI_OK;
}

/* Allocate every requested output, and both arrays of --top. */
static cli_exit make_outputs(const run_problem *p, run_results *results,
                             mha_attention_outputs *wanted)
{
    const run_options *o = p->options;
    *wanted = p->wanted;
    for (int i = 1; i < RUN_OUTPUT_COUNT; i++) {
        const bool top = strchr(outputs[i].axes, 'K') && (o->top_keys || o->top_weights);
        const mha_tensor **field = (void *)((char *)wanted + outputs[i].field);
        if (!path_of(o, i) && !top) continue;
        CLI_TRY(make_output(p, outputs[i].axes, outputs[i].dtype, &results->arrays[i],
                            &results->saved[i]));
        *field = &results->arrays[i];
    }
    return CLI_OK;
}

/* NumPy has no bfloat16: such an o is saved as float32, which represents it exactly. */
static cli_exit widen_o(run_results *results)
{
    const mha_tensor narrow = results->saved[0];
    if (narrow.dtype != MHA_BF16) return CLI_OK;
    CLI_TRY(run_array_convert(&narrow, MHA_F32, &results->saved[0]));
    arena_drop(results->arrays[0].data);
    results->arrays[0] = results->saved[0];
    return CLI_OK;
}

/* Check the problem, and the outputs unless they are NULL. */
static cli_exit plan(const run_problem *p, const mha_attention_outputs *wanted,
                     run_results *results)
{
    if (p->options->linear) return CLI_OK;
    return run_check(p, mha_attention_explain(p->context, &p->desc, &p->q, &p->k, &p->v, NULL,
                                              wanted, &results->plan));
}

cli_exit run_compute(const run_problem *p, run_results *results)
{
    mha_tensor o;
    mha_attention_outputs wanted;
    *results = (run_results){0};
    CLI_TRY(plan(p, NULL, results));
    CLI_TRY(make_o(p, &results->arrays[0], &o, &results->saved[0]));
    CLI_TRY(make_outputs(p, results, &wanted));
    CLI_TRY(plan(p, &wanted, results));
    double begin = seconds_now();
    mha_status status =
        p->options->linear
            ? mha_linear_attention_forward(p->context, &p->linear, &p->q, &p->k, &p->v, &o, NULL)
            : mha_attention_forward(p->context, &p->desc, &p->q, &p->k, &p->v, &o, &wanted);
    results->seconds = seconds_now() - begin;
    CLI_TRY(run_check(p, status));
    if (!p->options->module) return widen_o(results);
    const mha_tensor heads = results->saved[0];
    return run_module_out(p, &heads, &results->saved[0]);
}

/* ---- Writing --------------------------------------------------------------------------------- */

static const char *type_text(const mha_tensor *array)
{
    return array->dtype == MHA_I64 ? "int64" : array->dtype == MHA_F16 ? "float16" : "float32";
}

static void json_plan(mha_json *json, const mha_attention_plan *plan)
{
    mha_json_text(json, "path", plan->path == MHA_PATH_TILED ? "tiled" : "plain");
    mha_json_text(json, "reason", plan->reason);
    mha_json_text(json, "compute", mha_compute_name(plan->compute));
    mha_json_text(json, "isa", mha_isa_name(plan->isa));
    mha_json_integer(json, "visible_pairs", plan->visible_pairs);
    mha_json_decimals(json, "flops", plan->flops, 0);
    mha_json_decimals(json, "bytes", plan->bytes, 0);
    mha_json_integer(json, "scratch_bytes", (int64_t)plan->scratch_bytes);
}

/* The data of draw_json(). */
typedef struct json_job {
    const run_problem *problem;
    const run_results *results;
} json_job;

static mha_status draw_json(const void *user, const mha_sink *sink)
{
    static const char *const names[] = {"q", "k", "v"};
    const json_job *job = user;
    const run_problem *p = job->problem;
    const mha_tensor *const views[] = {&p->q, &p->k, &p->v};
    mha_json json = {.sink = sink};
    files_begin_json(&json, "multihead-run");
    mha_json_object(&json, "inputs");
    mha_json_lines(&json, 4);
    for (int i = 0; i < 3; i++) {
        mha_json_object(&json, names[i]);
        mha_json_text(&json, "file", p->names[i]);
        mha_json_integers(&json, "shape", views[i]->shape, 4);
        mha_json_end(&json);
    }
    mha_json_end(&json);
    mha_json_text(&json, "kind", p->options->linear ? "linear" : "softmax");
    if (!p->options->linear) json_plan(&json, &job->results->plan);
    mha_json_array(&json, "outputs");
    for (int i = 0; i < RUN_OUTPUT_COUNT; i++) {
        const mha_tensor *saved = &job->results->saved[i];
        if (!path_of(p->options, i)) continue;
        mha_json_lines(&json, 4);
        mha_json_object(&json, NULL);
        mha_json_text(&json, "output", outputs[i].option + 2);
        mha_json_text(&json, "file", path_of(p->options, i));
        mha_json_text(&json, "dtype", type_text(saved));
        mha_json_integers(&json, "shape", saved->shape, saved->ndim);
        mha_json_end(&json);
    }
    mha_json_end(&json);
    mha_json_end(&json);
    return mha_json_finish(&json);
}

cli_exit run_write(const run_problem *p, const run_results *results)
{
    const run_options *o = p->options;
    const json_job job = {p, results};
    for (int i = 0; i <= RUN_OUTPUT_COUNT; i++) {
        const char *path = path_of(o, i);
        if (!path) continue;
        const bool array = i < RUN_OUTPUT_COUNT;
        CLI_TRY(cli_check(array ? files_write_npy(path, &results->saved[i])
                                : files_draw(path, draw_json, &job)));
        if (strcmp(path, "-") != 0)
            cli_note(o->quiet, "wrote %s%s%s%s%s", path, array ? ": " : "",
                     array ? type_text(&results->saved[i]) : "", array ? " " : "",
                     array ? run_shape_of(&results->saved[i]).text : "");
    }
    return CLI_OK;
}

/* ---- The computation that ran ---------------------------------------------------------------- */

void run_say(const run_problem *p, const run_results *results)
{
    const mha_attention_plan *plan = &results->plan;
    const bool quiet = p->options->quiet;
    const int64_t b = run_sequences(p), h = p->q.shape[1], hk = p->k.shape[1];
    const int threads = mha_context_threads(p->context);
    char shared[64] = "", ran[64];
    if (h != hk) snprintf(shared, sizeof shared, " on %" PRId64 " key/value heads", hk);
    cli_note(quiet,
             "%" PRId64 " sequence%s, %" PRId64 " head%s%s, %" PRId64 " queries, %" PRId64
             " keys%s, head size %" PRId64 ", values of %" PRId64,
             b, words_s(b), h, words_s(h), shared, p->q.shape[2], p->k.shape[2],
             p->ragged ? " in all" : "", p->q.shape[3], p->v.shape[3]);
    snprintf(ran, sizeof ran, "%d thread%s: %.3g ms", threads, words_s(threads),
             1e3 * results->seconds);
    if (p->options->linear)
        cli_note(quiet, "linear attention (elu + 1), %s", ran);
    else
        cli_note(quiet, "path %s (%s), %s, %s, %s",
                 plan->path == MHA_PATH_TILED ? "tiled" : "plain", plan->reason,
                 mha_isa_name(plan->isa), ran, words_flops(plan->flops).text);
}

cli_exit run_print_result(const run_problem *p, const run_results *results)
{
    const mha_tensor *saved = &results->saved[0];
    mha_tensor wide;
    CLI_TRY(run_array_convert(saved, MHA_F32, &wide));
    cli_print("%s %s %s\n", p->options->module ? "out" : "o", type_text(saved),
              run_shape_of(saved).text);
    run_print_array(&wide);
    return CLI_OK;
}
