/* multihead run: attention of arrays in files. The table below holds the options and their help;
 * run_*.c does the work. */
#include "common/commands.h"
#include "common/contexts.h"
#include "common/option_rows.h"
#include "run/run.h"

#include <inttypes.h>
#include <string.h>

#define ISA_NAME(name, value, text) text,

static const char *const isas[] = {MHA_ISA_LIST(ISA_NAME) NULL};
static const char *const paths[] = {"auto", "tiled", "plain", NULL}; /* mha_path */
static const char *const computes[] = {"f32", "bf16", NULL};
static const char *const layouts[] = {"bhtd", "bthd", NULL};              /* run_layout */
static const char *const dtypes[] = {"auto", "f32", "f16", "bf16", NULL}; /* run_o_dtype() */
static const char *const norms[] = {"none", "rms", "l2", NULL};
static const char *const stages[] = {"biased", "raw", "capped", NULL};
static const char *const pairings[] = {"interleaved", "halves", NULL}; /* mha_rope_pairing */

/* The types of cache_options.h, after "none". */
const char *const run_caches[] = {"none", "f32", "f16", "bf16", "int8", "int8-channel", NULL};

#define PICKED "--probabilities FILE or --scores FILE"

/* Properties of an option: allowed with --linear; not allowed with --cache; an output file; allowed with
 * --delta. */
enum { LINEAR = 1, NO_CACHE = 2, WRITTEN = 4, DELTA = 8 };

/* Rows with these properties. Further fields of the option may follow. */
#define FLAG(name, field, help, ...) \
    ROW_FLAG(0, name, run_options, field, 1, help, .marks = __VA_ARGS__)
#define TEXT(name, field, value, help, ...) \
    ROW_TEXT(name, run_options, field, value, help, .marks = __VA_ARGS__)
#define REAL(name, field, help, ...) ROW_REAL(name, run_options, field, help, .marks = __VA_ARGS__)
#define NUMBER(name, field, least, most, help, ...) \
    ROW_NUMBER(name, run_options, field, least, most, help, .marks = __VA_ARGS__)
#define CHOICE(name, field, choices, help, ...) \
    ROW_CHOICE(name, run_options, field, choices, help, .marks = __VA_ARGS__)

/* Rows from the two lists of run.h. Masks and biases of shape [B,H,T,S] are not allowed with a cache. */
#define CALL(macro, ...) macro(__VA_ARGS__)
#define INPUT(field, type, axes, stage) CALL(INPUT_ROW, field, type, axes, stage, RUN_INPUT_##field)
#define INPUT_ROW(field, type, axes, stage, name, value, text, needs_) \
    TEXT(name, field, value, RUN_AXES_##axes NOTE_##type text, MARKS_##stage, .needs = needs_),
#define NOTE_U8 ", bool: "
#define NOTE_I32 ", ids: "
#define NOTE_F32 ": "
#define NOTE_REAL ": "
#define MARKS_MASK NO_CACHE
#define MARKS_BIAS NO_CACHE
#define MARKS_DISTANCE 0
#define MARKS_PRODUCT 0
#define MARKS_RESULT 0
#define OUTPUT(field, name, axes, type, help) TEXT(name, field, "FILE", help, WRITTEN),

static const args_option option_table[] = {
    ROW_HEADING("Inputs"),
    TEXT("q", q, "FILE", "read queries [B,H,T,D], [H,T,D] or [T,D]", LINEAR),
    TEXT("k", k, "FILE", "read keys [B,Hk,S,D]; H is a multiple of Hk", LINEAR),
    TEXT("v", v, "FILE", "read values [B,Hk,S,Dv]", LINEAR),
    TEXT("x", x, "FILE", "use one array as queries, keys and values", LINEAR),
    NUMBER("heads", heads, 1, 1 << 20, "split the last axis of [B,T,H*D] into heads", LINEAR),
    NUMBER("kv-heads", kv_heads, 1, 1 << 20, "split keys and values likewise; default: --heads",
           LINEAR, .needs = "--heads"),
    CHOICE("layout", layout, layouts, "set the order of the axes; default bhtd", LINEAR,
           .excludes = "--module --example", .why = "its arrays are x or built in"),
    CHOICE("dtype", dtype, dtypes,
           "set the type of q, k, v and o; default: the type in\nthe files, o float32", LINEAR,
           .excludes = "--module", .why = "it projects in float32"),
    FLAG("example", example, "trace a built-in problem of three tokens", LINEAR | DELTA),
    FLAG("delta", delta,
         "trace linear attention, decays and the delta rule on\nfour built-in tokens", DELTA,
         .needs = "--example"),
    ROW_HEADING("Module (the example's weights, or random ones seeded by --seed)"),
    FLAG("module", module, "project x [B,T,E] to q, k and v, and the concatenated\nheads by W_o",
         LINEAR, .needs = "--heads N"),
    TEXT("memory", memory, "FILE",
         "project this array [B,S,E] to k and v, for\ncross-attention; with --example: 'example'",
         LINEAR | NO_CACHE, .needs = "--module"),
    FLAG("sinusoidal", sinusoidal, "add sinusoidal position encodings to x", LINEAR,
         .needs = "--module"),
    ROW_HEADING("Mask (ARRAY: a file, or a list such as 3,5)"),
    FLAG("causal", causal, "hide keys after the query's position", LINEAR),
    NUMBER("offset", offset, INT64_MIN / 4, INT64_MAX / 4, "place query t at key position t + N",
           LINEAR | NO_CACHE, .excludes = "--offsets",
           .why = "give one for all sequences or one for each"),
    TEXT("offsets", offsets, "ARRAY", "set one offset per sequence", LINEAR | NO_CACHE),
    TEXT("lengths", lengths, "ARRAY",
         "set the number of valid keys per sequence; the rest is\npadding", LINEAR | NO_CACHE),
    TEXT("begins", begins, "ARRAY", "set the first valid key per sequence (left padding)",
         NO_CACHE),
    TEXT("window", window, "L,R", "show L keys before and R after a query; -1: all", 0),
    NUMBER("sink-keys", sink_keys, 0, INT64_MAX / 4,
           "keep the first N keys visible outside the window", 0),
    TEXT("documents", documents, "ARRAY", "set document ids [B,T]; hide keys of other documents",
         NO_CACHE, .excludes = "--query-documents",
         .why = "--documents is for both queries and keys"),
    TEXT("block-size", block_size, "QxK", "set the block size, queries x keys, such as 64x64", 0,
         .needs = "--keep-blocks FILE"),
    TEXT("query-starts", query_starts, "ARRAY",
         "pack sequences without padding: 0,3,8 is two\nsequences of 3 and 5 queries",
         LINEAR | NO_CACHE),
    TEXT("key-starts", key_starts, "ARRAY", "pack keys likewise; default: --query-starts", LINEAR,
         .needs = "--query-starts"),
    ROW_HEADING("Scores and weights"),
    REAL("scale", scale, "multiply q.k by X; default 1/sqrt(D)", 0),
    REAL("softcap", softcap, "cap scores: X tanh(score / X)", 0),
    FLAG("alibi", alibi, "add ALiBi with the slopes of the paper", 0, .excludes = "--alibi-slopes"),
    NUMBER("t5-max-distance", t5_max_distance, 1, INT64_MAX / 4,
           "set the largest bucketed distance; default 128", 0, .needs = "--t5-table FILE"),
    FLAG("t5-one-sided", t5_one_sided, "use one-sided buckets, as in decoders", 0,
         .needs = "--t5-table FILE"),
    REAL("dropout", dropout, "drop weights with this probability", NO_CACHE),
    NUMBER("seed", seed, 0, INT64_MAX, "seed dropout, random arrays and weights; default 0",
           LINEAR),
    FLAG("linear", linear, "use linear attention (elu + 1) instead of softmax", LINEAR | NO_CACHE),
    ROW_HEADING("Arrays of masks, scores and outputs; they broadcast"),
    MHA_ATTENTION_INPUTS(INPUT) ROW_HEADING("Transforms of q and k"),
    CHOICE("qk-norm", qk_norm, norms, "divide each vector by its root mean square or L2 norm",
           LINEAR),
    REAL("qk-epsilon", qk_epsilon, "set the epsilon of that norm; default 1e-6", LINEAR,
         .needs = "--qk-norm rms"),
    FLAG("rope", rope, "apply rotary position embedding", LINEAR),
    CHOICE("rope-pairing", rope_pairing, pairings,
           "select the pairs to rotate; default interleaved, as\n"
           "in the paper; Llama uses halves",
           LINEAR, .needs = "--rope"),
    REAL("rope-base", rope_base, "set the base of the frequencies; default 10000", LINEAR,
         .needs = "--rope"),
    NUMBER("rope-dim", rope_dim, 2, 1 << 20, "rotate N elements; default: all of D", LINEAR,
           .needs = "--rope"),
    REAL("rope-scale", rope_scale, "divide positions by X", LINEAR, .needs = "--rope"),
    TEXT("positions", positions, "ARRAY",
         "set positions [T] or [B,T]; default 0, 1, 2, ... from\nthe offset", LINEAR,
         .needs = "--rope"),
    TEXT("key-positions", key_positions, "ARRAY",
         "set key positions [S] or [B,S]; default 0, 1, 2, ...", LINEAR, .needs = "--rope"),
    ROW_HEADING("Outputs (.npy; FILE may be - for stdout)"),
    TEXT("out", out, "FILE", "write o, with the axes of q", LINEAR | WRITTEN, .letter = 'o'),
    RUN_OUTPUTS(OUTPUT) TEXT("json", json, "FILE", "write a description of the computation as JSON",
                             LINEAR | WRITTEN, .ending = ".json"),
    CHOICE("score-stage", score_stage, stages,
           "write --scores raw (scale q.k), capped (after softcap)\nor biased (the default)", 0,
           .needs = "--scores FILE"),
    TEXT("pick-heads", pick_heads, "LIST", "write weights and scores of these heads: 0,2-4", 0,
         .needs = PICKED),
    TEXT("pick-rows", pick_rows, "LIST", "write weights and scores of these queries", 0,
         .needs = PICKED),
    FLAG("after-dropout", after_dropout, "write weights after dropout", 0,
         .needs = "--probabilities FILE or --average FILE"),
    TEXT("mass-offsets", mass_offsets, "ARRAY", "set the n offsets; default -1, the previous key",
         0, .needs = "--offset-mass FILE"),
    NUMBER("top", top, 1, 1 << 30, "set K, the number of keys; default 5", 0,
           .needs = "--top-keys FILE or --top-weights FILE"),
    ROW_HEADING("Trace"),
    FLAG("trace", trace, "print each step with its numbers", DELTA),
    TEXT("trace-head", trace_heads, "LIST", "trace these heads, counted from 0: 3 or 0,2-4", 0,
         .needs = "--trace"),
    TEXT("trace-row", trace_rows, "LIST", "trace these queries", 0, .needs = "--trace"),
    TEXT("trace-key", trace_keys, "LIST", "trace these keys", 0, .needs = "--trace"),
    NUMBER("trace-sequence", trace_sequence, 0, INT64_MAX / 4,
           "trace sequence N of the batch; default 0", 0, .needs = "--trace"),
    NUMBER("trace-limit", trace_limit, 1, 1000, "show at most N rows and columns; default 16", 0,
           .needs = "--trace"),
    CHOICE("cache", cache, run_caches,
           "decode the tokens one by one with a KV cache of this\ntype; causal", 0,
           .needs = "--trace, which shows each step"),
    ROW_HEADING("Execution"),
    CHOICE("path", path, paths, "select the path; default auto: tiled if possible", 0),
    CHOICE("compute", compute, computes,
           "set the arithmetic; default f32; bf16 is faster and\nless accurate", 0),
    FLAG("strict", strict, "fail instead of falling back to another path", 0),
    CHOICE("isa", isa, isas, "select the instruction set; default: the best", LINEAR | DELTA),
    NUMBER("threads", threads, 1, 1024, "use N threads; default: all available CPUs",
           LINEAR | DELTA),
    ROW_QUIET(run_options, "print no notes on stderr", .marks = LINEAR | DELTA),
    ROW_FLAG('h', "help", run_options, quiet, 0, "print this text", .marks = LINEAR | DELTA),
};

enum { DEFAULT_HEADS = 2 /* heads of the example for --module */ };

const args_page run_page = {
    .usage = "run --q FILE --k FILE --v FILE [options]\n"
             "run --x FILE [options]\n"
             "run --x FILE --module --heads H [options]\n"
             "run --example [options]",
    .examples = "multihead run --example --causal\n"
                "multihead run --example --module --heads 2 --kv-heads 1\n"
                "multihead run --example --cache f32\n"
                "multihead run --example --delta\n"
                "multihead run --x random:5x8 --heads 2 --t5-table random:8xH --trace\n"
                "multihead run --q q.npy --k k.npy --v v.npy --causal --out o.npy\n"
                "multihead run --x x.npy --heads 8 --rope --window 128,0 --out o.npy\n"
                "multihead run --q q.npy --k k.npy --v v.npy --lengths 7,5 --entropy e.npy\n"
                "multihead run --x w.safetensors:x --softcap 30 --lse l.npy --json -\n"
                "multihead run --x x.npy --heads 4 --alibi --trace --trace-head 2",
    .notes = "FILE is a .npy file, FILE.safetensors:NAME, or random:SHAPE, such as random:5x8:\n"
             "multiples of 0.5 from -2 to 2. Computation is in float32. Masks and score terms\n"
             "broadcast as in NumPy to the shapes shown. Without output options run prints the\n"
             "result. Letters: B sequences, H heads, Hk key/value heads, T queries, S keys, D\n"
             "the size of a head, Dv that of a value. random:8xH takes H from the other\n"
             "arrays. A key is visible if every mask allows it. Outputs have the axes of q. No\n"
             "file is written until all are computed. A trace shows four heads unless\n"
             "--trace-head selects others. float64 and large integers are rounded, with a\n"
             "note. include/multihead/attention.h defines every term.",
    .takes = "",
    .spare = "an array needs a name: --q FILE, or --x FILE",
    ARGS_OPTIONS(option_table),
};

/* ---- Conflicts of options -------------------------------------------------------------------- */

static const char *text_of(const run_options *o, const args_option *option)
{
    const void *field = (const char *)o + option->field;
    return option->kind == ARGS_TEXT ? *(const char *const *)field : NULL;
}

static bool any_random(const run_options *o)
{
    bool any = false;
    for (size_t i = 0; i < run_page.option_count; i++)
        any |= run_random_is(text_of(o, &option_table[i]));
    return any;
}

/* Check a given option against the others. */
static cli_exit check_option(const run_options *o, const args_option *option)
{
    const char *text = text_of(o, option);
    const char *output = text && !(option->marks & WRITTEN) ? run_writes(o, text) : NULL;
    if (o->linear && !(option->marks & LINEAR))
        return RUN_USAGE("--%s conflicts with --linear, which has no softmax: omit one",
                         option->name);
    if (o->delta && !(option->marks & DELTA))
        return RUN_USAGE("--%s conflicts with --delta, whose problem is built in: omit one",
                         option->name);
    if (o->cache && option->marks & NO_CACHE)
        return RUN_USAGE("--%s conflicts with --cache, which decodes causal self-attention token "
                         "by token: omit one",
                         option->name);
    /* An output must not overwrite an input. */
    if (output)
        return RUN_USAGE("%s writes to %s, the file of --%s: name another one", output, text,
                         option->name);
    return CLI_OK;
}

static cli_exit check_inputs(const run_options *o)
{
    const char *const names = "qkv";
    const char *const files[] = {o->q, o->k, o->v};
    const char *first = o->q ? "q" : o->k ? "k" : o->v ? "v" : NULL;
    if (o->example && (first || o->x))
        return RUN_USAGE("--example has its own arrays: omit --example or --%s",
                         o->x ? "x" : first);
    if (o->x && first) return RUN_USAGE("--x replaces --q, --k and --v: omit --x or --%s", first);
    if (o->module && first)
        return RUN_USAGE("--module projects --x to q, k and v: omit --%s", first);
    if (!o->module && (o->example || o->x) && o->kv_heads && o->kv_heads != o->heads)
        return RUN_USAGE("--kv-heads %" PRId64
                         ": without --module, --x gives queries and keys the same %" PRId64
                         " heads; give --q, --k and --v, or --module",
                         o->kv_heads, o->heads);
    if (o->example || o->x) return CLI_OK;
    if (!first)
        return RUN_USAGE("no arrays: give --q, --k and --v, or --x for all three, or --example");
    for (int i = 0; i < 3; i++)
        if (!files[i])
            return RUN_USAGE("--%c FILE.npy is missing; give it, or --x FILE.npy for queries, keys "
                             "and values",
                             names[i]);
    return CLI_OK;
}

static cli_exit check(run_options *o, args_line *line)
{
    /* The example is meant for the terminal. */
    if (o->example && !o->linear && !run_has_files(o)) o->trace = 1;
    if (o->example && o->module && !o->heads) o->heads = DEFAULT_HEADS;
    if (o->trace) args_imply(&run_page, "trace", line);
    if (o->heads) args_imply(&run_page, "heads", line);
    CLI_TRY(args_check(&run_page, line));
    if (o->seed && !o->dropout.given && !o->module && !any_random(o))
        return RUN_USAGE("--seed requires --dropout X, --module or a random array");
    CLI_TRY(check_inputs(o));
    for (size_t i = 0; i < run_page.option_count; i++)
        if (line->given[i]) CLI_TRY(check_option(o, &option_table[i]));
    if (o->cache) o->causal = 1; /* decoding is causal */
    return run_check_outputs(o);
}

/* ---- The run --------------------------------------------------------------------------------- */

static cli_exit run(const run_options *o)
{
    mha_context *context = NULL;
    run_problem problem;
    run_results results;
    CLI_TRY(context_make((mha_isa)o->isa, o->threads, &context));
    if (o->delta) {
        CLI_TRY(run_delta(context));
        return cli_finish_stdout(CLI_OK);
    }
    CLI_TRY(run_problem_make(o, context, &problem));
    CLI_TRY(run_compute(&problem, &results));
    CLI_TRY(run_write(&problem, &results));
    if (o->trace) CLI_TRY(run_trace(&problem, &results));
    if (!o->trace && !run_has_files(o)) CLI_TRY(run_print_result(&problem, &results));
    CLI_TRY(cli_finish_stdout(CLI_OK));
    run_say(&problem, &results);
    return CLI_OK;
}

cli_exit cmd_run(int count, char *const *arguments)
{
    run_options options = {0};
    args_line line = {0};
    CLI_TRY(args_parse(&run_page, count, arguments, &options, &line));
    CLI_TRY(check(&options, &line));
    return run(&options);
}
