/* multihead explain: the path that an attention problem would take, the reason, its cost, and a
 * picture of its steps. Nothing is computed. */
#include "common/commands.h"
#include "common/files.h"
#include "explain/explain.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define ISA_NAME(name, value, text) text,

static const char *const isas[] = {MHA_ISA_LIST(ISA_NAME) NULL};     /* mha_isa */
static const char *const dtypes[] = {"f32", "f16", "bf16", NULL};    /* explain_problem.dtype */
static const char *const paths[] = {"auto", "tiled", "plain", NULL}; /* mha_path */
static const char *const computes[] = {"f32", "bf16", NULL};

static const args_option option_table[] = {
    ROW_HEADING("The problem"),
    CONFIG_ROWS(explain_options),
    ROW_NUMBER("value-dim", explain_options, value_dim, 1, CONFIG_MOST,
               "head size Dv of values; default: D"),
    ROW_NUMBER("batch", explain_options, config.batch, 1, CONFIG_MOST, "sequences B; default 1"),
    ROW_NUMBER("length", explain_options, config.length, 1, CONFIG_MOST,
               "queries and keys; default: the model's, else 1024"),
    ROW_NUMBER("queries", explain_options, queries, 1, CONFIG_MOST,
               "queries T; default: the length"),
    ROW_NUMBER("keys", explain_options, keys, 1, CONFIG_MOST, "keys S; default: the length"),
    ROW_TEXT("q", explain_options, q, "FILE.npy",
             "take all sizes from arrays; queries [B,H,T,D], [H,T,D]\nor [T,D]"),
    ROW_TEXT("k", explain_options, k, "FILE.npy", "keys, likewise; default: as q",
             .needs = "--q FILE.npy"),
    ROW_TEXT("v", explain_options, v, "FILE.npy", "values, likewise; default: as k",
             .needs = "--q FILE.npy"),
    ROW_HEADING("The mask"),
    ROW_FLAG(0, "causal", explain_options, config.causal, 1,
             "hide keys after the query's position"),
    ROW_FLAG(0, "no-causal", explain_options, config.causal, 2, "let every query see every key"),
    ROW_NUMBER("offset", explain_options, offset, -CONFIG_MOST, CONFIG_MOST,
               "place query t at key position t + N; default 0"),
    ROW_TEXT("window", explain_options, config.window, "W",
             "let a causal query see W keys, including its own; L,R:\nL before and R after it (-1: "
             "all)"),
    ROW_NUMBER("sink-keys", explain_options, sink_keys, 0, CONFIG_MOST,
               "keep the first N keys visible outside the window"),
    ROW_TEXT("blocks", explain_options, blocks, "PATTERN",
             "compute only these blocks: local=N, global=N,\nstride=N, fixed=N, random=N, "
             "separated by commas"),
    ROW_NUMBER("block-size", explain_options, block_size, 1, CONFIG_MOST,
               "keys and queries per block; default 64", .needs = "--blocks PATTERN"),
    ROW_FLAG(0, "dense-mask", explain_options, dense_mask, 1, "add a mask of one byte per pair"),
    ROW_HEADING("Scores and outputs"),
    ROW_REAL("softcap", explain_options, softcap, "cap scores: X tanh(score / X)"),
    ROW_FLAG(0, "alibi", explain_options, alibi, 1, "add ALiBi slopes"),
    ROW_NUMBER("t5", explain_options, t5, 0, 1 << 20, "add a T5 table of N buckets"),
    ROW_NUMBER("shaw", explain_options, shaw, 0, 1 << 20,
               "add Shaw's relative positions, clipped at distance N"),
    ROW_FLAG(0, "dense-bias", explain_options, dense_bias, 1, "add a bias, one number per score"),
    ROW_FLAG(0, "sink-logits", explain_options, sink_logits, 1,
             "add an extra logit to each softmax"),
    ROW_FLAG(0, "gates", explain_options, gates, 1, "multiply each head's output by a factor"),
    ROW_REAL("dropout", explain_options, dropout, "drop weights with this probability"),
    ROW_FLAG(0, "lse", explain_options, lse, 1, "request each row's log-sum-exp"),
    ROW_FLAG(0, "probabilities", explain_options, probabilities, 1, "request all weights"),
    ROW_FLAG(0, "average", explain_options, average, 1,
             "request the mean of the weights over heads"),
    ROW_FLAG(0, "scores", explain_options, scores, 1, "request all scores"),
    ROW_FLAG(
        0, "statistics", explain_options, statistics, 1,
        "request per row: entropy, largest weight and its key,\nweight of the first key and of "
        "the diagonal"),
    ROW_FLAG(0, "column-sums", explain_options, column_sums, 1,
             "request the total weight of each key"),
    ROW_HEADING("Execution"),
    ROW_CHOICE("dtype", explain_options, dtype, dtypes,
               "set the type of q, k, v and o; default f32"),
    ROW_CHOICE("path", explain_options, path, paths,
               "select the path; default auto: tiled if possible"),
    ROW_CHOICE("compute", explain_options, compute, computes,
               "set the arithmetic; default f32; bf16 is faster and\nless accurate"),
    ROW_FLAG(0, "strict", explain_options, strict, 1,
             "fail instead of falling back to another path"),
    ROW_CHOICE("isa", explain_options, isa, isas,
               "select the instruction set; default auto: the best"),
    ROW_NUMBER("threads", explain_options, threads, 1, 1024,
               "use N threads; default: MHA_THREADS, else all CPUs"),
    ROW_HEADING("Output"),
    ROW_TEXT("svg", explain_options, svg, "FILE",
             "draw shapes step by step, shared heads, the mask and\npositions; - is stdout",
             .ending = ".svg"),
    ROW_TEXT("pdf", explain_options, pdf, "FILE", "write the drawing as PDF, for papers",
             .ending = ".pdf"),
    ROW_FLAG(0, "dark", explain_options, dark, 1, "draw on a dark background",
             .needs = "--svg FILE or --pdf FILE"),
    ROW_FLAG(0, "json", explain_options, json, 1, "print the report as JSON"),
    ROW_QUIET(explain_options, "print no notes on stderr"),
    ROW_FLAG('h', "help", explain_options, json, 0, "print this text"),
};

const args_page explain_page = {
    .usage = "explain [options] --embed E --heads H\n"
             "explain [options] --like NAME\n"
             "explain [options] MODEL\n"
             "explain [options] --q Q.npy [--k K.npy] [--v V.npy]",
    .examples = "multihead explain --embed 512 --heads 8 --length 10\n"
                "multihead explain --like llama-2-70b --svg attention.svg\n"
                "multihead explain --like mistral-7b --length 32768\n"
                "multihead explain --heads 32 --kv-heads 8 --head-dim 128 \\\n"
                "    --queries 1 --keys 4096 --causal --offset 4095\n"
                "multihead explain --heads 8 --head-dim 300",
    .notes = "MODEL is a Hugging Face folder (only config.json is read) or a GGUF file. Sizes\n"
             "are per layer; all layers are alike. Nothing is computed. Paths: tiled (online\n"
             "softmax over blocks of keys) or plain (row by row, in double precision).\n"
             "Operations are 2 (D + Dv) per visible pair. Below about 20 operations per byte,\n"
             "memory bandwidth is the limit, unless everything fits in L2.",
    .takes = "[MODEL]",
    .spare = "give one MODEL at a time",
    ARGS_OPTIONS(option_table),
};

/* ---- The run --------------------------------------------------------------------------------- */

typedef struct drawing {
    const explain_problem *problem;
    bool dark, pdf;
} drawing;

static mha_status draw_picture(const void *user, const mha_sink *sink)
{
    const drawing *d = user;
    return explain_draw(d->problem, d->dark, d->pdf, sink);
}

static mha_status draw_json(const void *user, const mha_sink *sink)
{
    return explain_write_json(user, sink);
}

static bool is_stdout(const char *path)
{
    return path && !strcmp(path, "-");
}

static cli_exit write_picture(const explain_options *options, const explain_problem *problem,
                              const char *path, bool pdf)
{
    const drawing d = {problem, options->dark, pdf};
    if (!path) return CLI_OK;
    CLI_TRY(cli_check(files_draw(path, draw_picture, &d)));
    cli_note(options->quiet || is_stdout(path), "wrote %s: a drawing of %s", path,
             problem->config.name);
    return CLI_OK;
}

static cli_exit write_outputs(const explain_options *options, const explain_problem *problem)
{
    CLI_TRY(write_picture(options, problem, options->svg, false));
    CLI_TRY(write_picture(options, problem, options->pdf, true));
    if (options->json) return cli_check(files_draw("-", draw_json, problem));
    if (!is_stdout(options->svg) && !is_stdout(options->pdf)) explain_print(problem);
    return CLI_OK;
}

static cli_exit check(const explain_options *options, const args_line *line)
{
    if (!!options->json + is_stdout(options->svg) + is_stdout(options->pdf) > 1)
        return cli_fail(CLI_USAGE,
                        "only one of --json, --svg - and --pdf - can write to stdout; name a file "
                        "for the drawing");
    return args_check(&explain_page, line);
}

cli_exit cmd_explain(int count, char *const *arguments)
{
    explain_options options = {.offset = EXPLAIN_NO_OFFSET};
    args_line line = {0};
    CLI_TRY(args_parse(&explain_page, count, arguments, &options, &line));
    CLI_TRY(check(&options, &line));
    if (line.plain.count) options.config.model = line.plain.items[0];
    if (options.config.like && !strcmp(options.config.like, "list")) {
        config_print_models();
        return CLI_OK;
    }
    explain_problem problem;
    CLI_TRY(explain_make(&options, &problem));
    return write_outputs(&options, &problem);
}
