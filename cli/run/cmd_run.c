/* multihead run: attention of arrays in files. Options and their help are the table below; the work
 * is in run_*.c. */
#include "common/commands.h"
#include "common/contexts.h"
#include "common/option_rows.h"
#include "run/run.h"

#include <inttypes.h>
#include <stdio.h>
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

/* cache_options.h, after "none". */
const char *const run_caches[] = {"none", "f32", "f16", "bf16", "int8", "int8-channel", NULL};

#define HEADING(title) ROW_HEADING(title)
#define FLAG(name_, field_, help_) ROW_FLAG(0, name_, run_options, field_, 1, help_)
#define TEXT(name_, field_, value_, help_) ROW_TEXT(name_, run_options, field_, value_, help_)
#define NUMBER(name_, field_, least_, most_, help_) \
    ROW_NUMBER(name_, run_options, field_, least_, most_, help_)
#define CHOICE(name_, field_, choices_, help_) \
    ROW_CHOICE(name_, run_options, field_, choices_, help_)
#define REAL(name_, field_, help_)                                     \
    {                                                                  \
        .kind = ARGS_REAL, .name = name_, .value = "X", .help = help_, \
        .field = offsetof(run_options, field_)                         \
    }

static const char outputs_heading[] = "Outputs (.npy; FILE may be - for stdout)";

static const args_option option_table[] = {
    HEADING("Inputs"),
    TEXT("q", q, "FILE", "queries [B,H,T,D], [H,T,D] or [T,D]"),
    TEXT("k", k, "FILE", "keys [B,Hk,S,D]; H is a multiple of Hk"),
    TEXT("v", v, "FILE", "values [B,Hk,S,Dv]"),
    TEXT("x", x, "FILE", "one array as all three"),
    NUMBER("heads", heads, 1, 1 << 20, "split the last axis of [B,T,H*D] into heads"),
    NUMBER("kv-heads", kv_heads, 1, 1 << 20, "the same for keys and values; default: as --heads"),
    CHOICE("layout", layout, layouts, "order of the axes; default bhtd"),
    CHOICE("dtype", dtype, dtypes, "of q, k, v and o; default: the files', o float32"),
    FLAG("example", example, "a built-in problem of three tokens, traced"),
    HEADING("Module (the example's weights, or random ones by --seed)"),
    FLAG("module", module,
         "x is [B,T,E]: project it to q, k and v, and the\nconcatenated heads by W_o"),
    TEXT("memory", memory, "FILE",
         "cross-attention: project this [B,S,E] to k and v;\n'example' with --example"),
    FLAG("sinusoidal", sinusoidal, "add sinusoidal position encodings to x"),
    HEADING("Mask (ARRAY: a file, or a list such as 3,5)"),
    FLAG("causal", causal, "hide keys after the query's position"),
    NUMBER("offset", offset, INT64_MIN / 4, INT64_MAX / 4, "query t is at key position t + N"),
    TEXT("offsets", offsets, "ARRAY", "one offset per sequence"),
    TEXT("lengths", lengths, "ARRAY", "valid keys per sequence; the rest is padding"),
    TEXT("begins", begins, "ARRAY", "first valid key per sequence: padding on the left"),
    TEXT("window", window, "L,R", "keys visible before and after; -1: all of them"),
    NUMBER("sink-keys", sink_keys, 0, INT64_MAX / 4, "first keys that the window does not hide"),
    TEXT("global-keys", global_keys, "ARRAY", "[B,S] bool: keys the window does not hide"),
    TEXT("global-queries", global_queries, "ARRAY", "[B,T] bool: queries it does not restrict"),
    TEXT("documents", documents, "ARRAY", "[B,T] ids: a query sees its own document only"),
    TEXT("query-documents", query_documents, "ARRAY", "separately for queries and keys:"),
    TEXT("key-documents", key_documents, "ARRAY", "[B,T] and [B,S]"),
    TEXT("keep-blocks", keep_blocks, "FILE", "[B,H,rows,columns] bool, of blocks"),
    TEXT("block-size", block_size, "QxK", "queries and keys per block, such as 64x64"),
    TEXT("keep-mask", keep_mask, "FILE", "[B,H,T,S] bool, true: visible; broadcasts"),
    TEXT("query-starts", query_starts, "ARRAY",
         "sequences packed without padding: 0,3,8 means two,\nof 3 and 5 queries"),
    TEXT("key-starts", key_starts, "ARRAY", "the same for keys; default: as --query-starts"),
    HEADING("Scores and weights"),
    REAL("scale", scale, "factor of q.k; default 1/sqrt(D)"),
    REAL("softcap", softcap, "X tanh(score / X)"),
    TEXT("bias", bias, "FILE", "[B,H,T,S], added to scores; broadcasts"),
    FLAG("alibi", alibi, "ALiBi with the published slopes"),
    TEXT("alibi-slopes", alibi_slopes, "ARRAY", "[H] or [B,H]: ALiBi with these slopes"),
    TEXT("t5-table", t5_table, "FILE", "[buckets,H], T5's relative bias"),
    NUMBER("t5-max-distance", t5_max_distance, 1, INT64_MAX / 4, "default 128"),
    FLAG("t5-one-sided", t5_one_sided, "one-sided buckets, as in decoders"),
    TEXT("shaw-keys", shaw_keys, "FILE", "[2 k + 1, D], Shaw's positions on keys"),
    TEXT("shaw-values", shaw_values, "FILE", "[2 k + 1, Dv], and on values"),
    TEXT("sink-logits", sink_logits, "ARRAY", "[H], an extra logit in each denominator"),
    TEXT("gates", gates, "ARRAY", "[H] or [B,H], factors of the heads' outputs"),
    REAL("dropout", dropout, "drop weights with this probability"),
    NUMBER("seed", seed, 0, INT64_MAX, "of dropout, random arrays and weights; default 0"),
    FLAG("linear", linear, "linear attention (elu + 1) instead of softmax"),
    HEADING("Transforms of q and k"),
    CHOICE("qk-norm", qk_norm, norms, "divide each by its root mean square or length"),
    REAL("qk-epsilon", qk_epsilon, "of that norm; default 1e-6"),
    FLAG("rope", rope, "rotary position embedding"),
    CHOICE("rope-pairing", rope_pairing, pairings,
           "elements rotated together; default interleaved, as\npublished; Llama uses halves"),
    REAL("rope-base", rope_base, "default 10000"),
    NUMBER("rope-dim", rope_dim, 2, 1 << 20, "elements to rotate; default: all of D"),
    REAL("rope-scale", rope_scale, "positions are divided by X"),
    TEXT("positions", positions, "ARRAY", "[T] or [B,T]; default 0, 1, 2, ... from the offset"),
    TEXT("key-positions", key_positions, "ARRAY", "[S] or [B,S]; default 0, 1, 2, ..."),
    HEADING(outputs_heading),
    {.kind = ARGS_TEXT,
     .letter = 'o',
     .name = "out",
     .value = "FILE",
     .help = "o, with the axes of q",
     .field = offsetof(run_options, out)},
    TEXT("lse", lse, "FILE", "[B,H,T] log of the sum of exp(score)"),
    TEXT("probabilities", probabilities, "FILE", "[B,H,T,S] the weights"),
    TEXT("average", average, "FILE", "[B,T,S], their mean over heads"),
    TEXT("scores", scores, "FILE", "[B,H,T,S] what softmax sees, -inf: hidden"),
    CHOICE("score-stage", score_stage, stages,
           "of --scores; raw: scale q.k, capped: after softcap;\ndefault biased"),
    TEXT("pick-heads", pick_heads, "LIST", "heads of weights and scores to write: 0,2-4"),
    TEXT("pick-rows", pick_rows, "LIST", "queries of weights and scores to write"),
    FLAG("after-dropout", after_dropout, "weights after dropout"),
    TEXT("entropy", entropy, "FILE", "[B,H,T] of each row of weights, in nats"),
    TEXT("largest-weight", largest_weight, "FILE", "[B,H,T]"),
    TEXT("largest-key", largest_key, "FILE", "[B,H,T] int64, the key with the largest weight"),
    TEXT("first-token", first_token, "FILE", "[B,H,T] weight of key 0"),
    TEXT("diagonal", diagonal, "FILE", "[B,H,T] weight of the query's own position"),
    TEXT("offset-mass", offset_mass, "FILE", "[B,H,T,n] weight of keys at n relative offsets"),
    TEXT("mass-offsets", mass_offsets, "ARRAY", "the n offsets; default -1, the previous key"),
    TEXT("top-keys", top_keys, "FILE", "[B,H,T,K] int64, the keys of largest weight"),
    TEXT("top-weights", top_weights, "FILE", "[B,H,T,K] and their weights"),
    NUMBER("top", top, 1, 1 << 30, "K; default 5"),
    TEXT("column-sums", column_sums, "FILE", "[B,H,S] what each key receives from all queries"),
    TEXT("json", json, "FILE", "what ran and what was written, as JSON"),
    HEADING("Trace"),
    FLAG("trace", trace, "print each step, as on a blackboard"),
    TEXT("trace-head", trace_heads, "LIST", "heads, counted from 0: 3 or 0,2-4"),
    TEXT("trace-row", trace_rows, "LIST", "queries, likewise"),
    TEXT("trace-key", trace_keys, "LIST", "keys, likewise"),
    NUMBER("trace-sequence", trace_sequence, 0, INT64_MAX / 4, "of the batch; default 0"),
    NUMBER("trace-limit", trace_limit, 1, 1000, "rows and columns shown at most; default 16"),
    CHOICE("cache", cache, run_caches,
           "decode the tokens one by one from a KV cache of this\ntype; causal"),
    HEADING("Execution"),
    CHOICE("path", path, paths, "default auto: tiled where possible"),
    CHOICE("compute", compute, computes, "default f32; bf16 is faster, less accurate"),
    FLAG("strict", strict, "fail instead of falling back to another path"),
    CHOICE("isa", isa, isas, "instruction set; default the best"),
    NUMBER("threads", threads, 1, 1024, "default: as many as this process may use"),
    ROW_FLAG('q', "quiet", run_options, quiet, 1, "no notes on stderr"),
    {.kind = ARGS_FLAG, .letter = 'h', .name = "help", .help = "this text"},
};

enum {
    OPTION_COUNT = sizeof option_table / sizeof *option_table,
    DEFAULT_HEADS = 2 /* of the example as a module */
};

const args_page run_page = {
    .command = RUN,
    .summary = "compute attention of arrays in .npy or .safetensors files",
    .usage = "run --q FILE --k FILE --v FILE [options]\n"
             "run --x FILE [options]\n"
             "run --x FILE --module --heads H [options]\n"
             "run --example [options]",
    .examples = "multihead run --example --causal\n"
                "multihead run --example --module --heads 2 --kv-heads 1\n"
                "multihead run --example --cache f32\n"
                "multihead run --x random:5x8 --heads 2 --t5-table random:8xH --trace\n"
                "multihead run --q q.npy --k k.npy --v v.npy --causal --out o.npy\n"
                "multihead run --x x.npy --heads 8 --rope --window 128,0 --out o.npy\n"
                "multihead run --q q.npy --k k.npy --v v.npy --lengths 7,5 --entropy e.npy\n"
                "multihead run --x w.safetensors:x --softcap 30 --lse l.npy --json -\n"
                "multihead run --x x.npy --heads 4 --alibi --trace --trace-head 2",
    .notes = "FILE is a .npy file, FILE.safetensors:NAME, or random:SHAPE, such as random:5x8:\n"
             "halves from -2 to 2. Computation is in float32.\n"
             "Masks and score terms broadcast to the shape given, as in NumPy. Without output\n"
             "options the result is printed. Letters: B sequences, H heads, Hk key/value\n"
             "heads, T queries, S keys, D the size of a head. docs/program.md is the manual.",
    .options = option_table,
    .option_count = OPTION_COUNT,
};

/* ---- What fits together ---------------------------------------------------------------------- */

static bool is_given(const run_options *options, const args_option *option)
{
    const void *field = (const char *)options + option->field;
    switch (option->kind) {
    case ARGS_FLAG:
    case ARGS_CHOICE: return *(const int *)field != 0;
    case ARGS_NUMBER: return *(const int64_t *)field != 0;
    case ARGS_REAL: return ((const args_real *)field)->given;
    case ARGS_TEXT: return *(const char *const *)field != NULL;
    case ARGS_TEXTS: return ((const args_texts *)field)->count > 0;
    case ARGS_HEADING: break;
    }
    return false;
}

/* Linear attention has no scores: all options of scores, most of masks, and what is made of
 * weights, would be ignored. */
static cli_exit check_linear(const run_options *options)
{
    static const char *const known[] = {"q",
                                        "k",
                                        "v",
                                        "x",
                                        "heads",
                                        "kv-heads",
                                        "layout",
                                        "example",
                                        "module",
                                        "memory",
                                        "sinusoidal",
                                        "seed",
                                        "causal",
                                        "offset",
                                        "offsets",
                                        "lengths",
                                        "linear",
                                        "rope",
                                        "rope-base",
                                        "rope-dim",
                                        "rope-pairing",
                                        "rope-scale",
                                        "out",
                                        "positions",
                                        "query-starts",
                                        "key-starts",
                                        "key-positions",
                                        "json",
                                        "isa",
                                        "threads",
                                        "quiet",
                                        "dtype",
                                        "qk-norm",
                                        "qk-epsilon",
                                        "help"};
    for (int i = 0; i < OPTION_COUNT; i++) {
        bool allowed = option_table[i].kind == ARGS_HEADING || !is_given(options, &option_table[i]);
        for (size_t j = 0; j < sizeof known / sizeof *known && !allowed; j++)
            allowed = !strcmp(known[j], option_table[i].name);
        if (!allowed)
            return cli_fail(CLI_USAGE, RUN,
                            "--%s conflicts with --linear, which has no softmax: leave one out",
                            option_table[i].name);
    }
    return CLI_OK;
}

static bool any_random(const run_options *options)
{
    for (int i = 0; i < OPTION_COUNT; i++) {
        const void *field = (const char *)options + option_table[i].field;
        if (option_table[i].kind == ARGS_TEXT && run_random_is(*(const char *const *)field))
            return true;
    }
    return false;
}

/* An option that means nothing without another one. */
static cli_exit check_option_conflicts(const run_options *o)
{
    const struct {
        bool given, wanted;
        const char *option, *needed;
    } rules[] = {
        {o->kv_heads, o->heads || (o->module && o->example), "--kv-heads", "--heads"},
        {o->block_size, o->keep_blocks, "--block-size", "--keep-blocks FILE"},
        {o->keep_blocks, o->block_size, "--keep-blocks", "--block-size QxK, as 64x64"},
        {o->t5_one_sided, o->t5_table, "--t5-one-sided", "--t5-table FILE"},
        {o->t5_max_distance, o->t5_table, "--t5-max-distance", "--t5-table FILE"},
        {o->query_documents, o->key_documents, "--query-documents", "--key-documents"},
        {o->key_documents, o->query_documents, "--key-documents", "--query-documents"},
        {o->key_starts, o->query_starts, "--key-starts", "--query-starts"},
        {o->seed, o->dropout.given || o->module || any_random(o), "--seed",
         "--dropout X, --module or a random array"},
        {o->memory, o->module, "--memory", "--module"},
        {o->sinusoidal, o->module, "--sinusoidal", "--module"},
        {o->module && !o->example, o->heads, "--module", "--heads N, so that E is split"},
        {o->qk_epsilon.given, o->qk_norm, "--qk-epsilon", "--qk-norm rms"},
        {o->rope_base.given, o->rope, "--rope-base", "--rope"},
        {o->rope_scale.given, o->rope, "--rope-scale", "--rope"},
        {o->rope_dim, o->rope, "--rope-dim", "--rope"},
        {o->rope_pairing, o->rope, "--rope-pairing", "--rope"},
        {o->positions, o->rope, "--positions", "--rope"},
        {o->key_positions, o->rope, "--key-positions", "--rope"},
        {o->score_stage, o->scores, "--score-stage", "--scores FILE"},
        {o->pick_heads, o->scores || o->probabilities, "--pick-heads",
         "--probabilities FILE or --scores FILE"},
        {o->pick_rows, o->scores || o->probabilities, "--pick-rows",
         "--probabilities FILE or --scores FILE"},
        {o->after_dropout, o->probabilities || o->average, "--after-dropout",
         "--probabilities FILE or --average FILE"},
        {o->mass_offsets, o->offset_mass, "--mass-offsets", "--offset-mass FILE"},
        {o->top, o->top_keys || o->top_weights, "--top", "--top-keys FILE or --top-weights FILE"},
        {o->trace_heads, o->trace, "--trace-head", "--trace"},
        {o->trace_rows, o->trace, "--trace-row", "--trace"},
        {o->trace_keys, o->trace, "--trace-key", "--trace"},
        {o->trace_sequence, o->trace, "--trace-sequence", "--trace"},
        {o->trace_limit, o->trace, "--trace-limit", "--trace"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].given && !rules[i].wanted)
            return cli_fail(CLI_USAGE, RUN, "%s requires %s", rules[i].option, rules[i].needed);
    if (o->alibi && o->alibi_slopes)
        return cli_fail(CLI_USAGE, RUN, "--alibi and --alibi-slopes exclude each other");
    if (o->documents && o->query_documents)
        return cli_fail(CLI_USAGE, RUN,
                        "--documents names queries and keys: leave it out, or --query-documents "
                        "and --key-documents");
    if (o->offset && o->offsets)
        return cli_fail(CLI_USAGE, RUN,
                        "--offset is for all sequences, --offsets for each: give one of them");
    return CLI_OK;
}

static cli_exit check_inputs(const run_options *options)
{
    const char *const names[] = {"q", "k", "v"};
    const char *const files[] = {options->q, options->k, options->v};
    int given = 0;
    for (int i = 0; i < 3; i++) given += files[i] != NULL;
    if (options->example && (given || options->x))
        return cli_fail(CLI_USAGE, RUN, "--example has arrays of its own: leave it or --%s out",
                        options->x   ? "x"
                        : options->q ? "q"
                        : options->k ? "k"
                                     : "v");
    if (options->x && given)
        return cli_fail(CLI_USAGE, RUN,
                        "--x is queries, keys and values at once: leave it or --%s out",
                        options->q   ? "q"
                        : options->k ? "k"
                                     : "v");
    if (options->module && (given || options->layout || options->dtype))
        return cli_fail(CLI_USAGE, RUN,
                        "--module projects x to q, k and v in float32: leave --%s out",
                        options->layout  ? "layout"
                        : options->dtype ? "dtype"
                        : options->q     ? "q"
                        : options->k     ? "k"
                                         : "v");
    if (!options->module && (options->example || options->x) && options->kv_heads &&
        options->kv_heads != options->heads)
        return cli_fail(CLI_USAGE, RUN,
                        "--kv-heads %" PRId64
                        ": the keys are the queries here, and have their %" PRId64
                        " heads; give --q, --k and --v, or --module",
                        options->kv_heads, options->heads);
    if (options->example || options->x) return CLI_OK;
    if (given == 0)
        return cli_fail(CLI_USAGE, RUN,
                        "no arrays: give --q, --k and --v, or --x for all three, or --example");
    for (int i = 0; i < 3; i++)
        if (!files[i])
            return cli_fail(CLI_USAGE, RUN,
                            "--%s FILE.npy is missing; --x FILE.npy is one array as "
                            "queries, keys and values",
                            names[i]);
    return CLI_OK;
}

/* Decoding is causal self-attention of whole sequences, token by token. */
static cli_exit check_cache(run_options *options)
{
    const struct {
        bool given;
        const char *option;
    } others[] = {
        {options->linear, "linear"},
        {options->memory, "memory"},
        {options->query_starts, "query-starts"},
        {options->offset || options->offsets, options->offset ? "offset" : "offsets"},
        {options->lengths, "lengths"},
        {options->begins, "begins"},
        {options->documents || options->query_documents, "documents"},
        {options->keep_blocks, "keep-blocks"},
        {options->keep_mask, "keep-mask"},
        {options->global_keys, "global-keys"},
        {options->global_queries, "global-queries"},
        {options->bias, "bias"},
        {options->dropout.given, "dropout"},
    };
    if (!options->trace)
        return cli_fail(CLI_USAGE, RUN, "--cache requires --trace, which shows each step");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i].given)
            return cli_fail(
                CLI_USAGE, RUN,
                "--%s conflicts with --cache, which decodes causal self-attention token "
                "by token: leave one out",
                others[i].option);
    options->causal = 1;
    return CLI_OK;
}

/* Results must not take the place of what they were made from. Inputs stand before the heading of
 * the outputs. */
static cli_exit check_inputs_stay(const run_options *options)
{
    for (int i = 0; strcmp(option_table[i].name, outputs_heading) != 0; i++) {
        if (option_table[i].kind != ARGS_TEXT || !is_given(options, &option_table[i])) continue;
        const void *field = (const char *)options + option_table[i].field;
        const char *path = *(const char *const *)field, *output = run_writes(options, path);
        if (output)
            return cli_fail(CLI_USAGE, RUN, "%s writes to %s, the file of --%s: name another one",
                            output, path, option_table[i].name);
    }
    return CLI_OK;
}

static cli_exit check(run_options *options)
{
    /* The example is there to be looked at. */
    if (options->example && !options->linear && !run_has_files(options)) options->trace = 1;
    CLI_TRY(check_option_conflicts(options));
    CLI_TRY(check_inputs(options));
    if (options->module && !options->heads) options->heads = DEFAULT_HEADS;
    if (options->cache) CLI_TRY(check_cache(options));
    if (options->linear) CLI_TRY(check_linear(options));
    CLI_TRY(check_inputs_stay(options));
    return run_check_outputs(options);
}

/* ---- The run --------------------------------------------------------------------------------- */

static cli_exit run(const run_options *options)
{
    mha_context *context = NULL;
    run_problem problem = {0};
    run_results results = {0};
    CLI_TRY(context_make(RUN, (mha_isa)options->isa, options->threads, &context));
    CLI_TRY(run_problem_make(options, context, &problem));
    CLI_TRY(run_compute(options, context, &problem, &results));
    CLI_TRY(run_write(options, &problem, &results));
    if (options->trace) CLI_TRY(run_trace(options, context, &problem, &results));
    if (!options->trace && !run_has_files(options)) CLI_TRY(run_print_result(options, &results));
    CLI_TRY(cli_finish_stdout(RUN, CLI_OK));
    run_say(options, &problem, &results);
    return CLI_OK;
}

cli_exit cmd_run(int count, char *const *arguments)
{
    run_options options = {0};
    args_texts plain = {0};
    CLI_TRY(args_parse(&run_page, count, arguments, &options, &plain));
    if (plain.count > 0)
        return cli_fail(CLI_USAGE, RUN,
                        "unexpected argument '%s'; arrays have names: --q %s, or --x %s",
                        plain.items[0], plain.items[0], plain.items[0]);
    CLI_TRY(check(&options));
    return run(&options);
}
