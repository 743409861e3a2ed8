/* multihead perplexity: measure how well a causal model with a KV cache predicts a text. */
#include "common/arena.h"
#include "common/commands.h"
#include "common/contexts.h"
#include "common/launched.h"
#include "common/option_rows.h"
#include "common/progress.h"
#include "common/signals.h"
#include "common/text_model.h"
#include "common/texts.h"
#include "perplexity/perplexity.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const computes[] = {"f32", "int8", "bf16", "tiles", NULL}; /* mha_compute */

static const args_option option_table[] = {
    ROW_HEADING("The text"),
    ROW_TEXT("text", perplexity_options, text, "FILE", "read this text (required); - is stdin"),
    ROW_NUMBER("tokens", perplexity_options, tokens, 2, INT64_C(1) << 31,
               "read only the first N tokens; default: all"),
    ROW_NUMBER(
        "context", perplexity_options, context, 2, INT64_C(1) << 31,
        "cut a longer text into independent contexts of N\ntokens; default: the model's limit"),
    ROW_HEADING("The cache"),
    CACHE_ROWS(perplexity_options, cache, "result"),
    ROW_HEADING("Other"),
    ROW_CHOICE("compute", perplexity_options, compute, computes,
               "set the arithmetic of linear layers; default f32. int8\n(for weights stored in "
               "blocks: Q4_0, Q8_0, Q4_K ...)\nand bf16 are faster but less accurate; tiles: "
               "bf16\nas AMX computes it, with the same result everywhere"),
    ROW_NUMBER("chunk", perplexity_options, chunk, 1, INT64_C(1) << 20,
               "process N tokens per step; default 128. The result is\nthe same, except with "
               "--cache int8-channel"),
    ROW_FLAG(0, "json", perplexity_options, json, 1,
             "print one object with the loss of each token"),
    ROW_THREADS(perplexity_options),
    ROW_QUIET(perplexity_options, "print no progress or notes on stderr"),
    ROW_HELP,
};

const args_page perplexity_page = {
    .usage = "perplexity [options] MODEL --text FILE",
    .examples = "multihead perplexity novel --text novel.txt\n"
                "multihead perplexity smollm2.gguf --text book.txt --tokens 4096 --cache int8\n"
                "multihead perplexity smollm2.gguf --text book.txt --json | jq .perplexity",
    .notes = "Perplexity is exp of the mean negative log-likelihood of each token given those\n"
             "before it in its context; a context's first token is not predicted. MODEL is a\n"
             "Hugging Face folder, a GGUF file, or a folder from 'multihead train'. Ctrl-C\n"
             "stops with the result so far. On several ranks (mpirun), each rank holds the\n"
             "weights of some layers.\n"
             "\n"
             "The number after +- is the standard error of the mean loss, assuming that the\n"
             "losses of tokens are independent. The standard error of the perplexity is that\n"
             "of the mean loss times the perplexity. Losses are sums in double precision over\n"
             "f32 logits. All numbers except the speed are the same for any number of threads.",
    .takes = "MODEL",
    .spare = "give the text as a file: --text FILE",
    ARGS_OPTIONS(option_table),
};

/* ---- The model and the text ------------------------------------------------------------------ */

ARENA_RELEASE(destroy_decoder, mha_decoder_destroy)
ARENA_RELEASE(destroy_model, mha_model_destroy)

static cli_exit load(perplexity_run *r)
{
    const mha_model_options how = {.struct_size = sizeof how,
                                   .compute = (mha_compute)r->options->compute,
                                   .transport = ranks_transport()};
    CLI_TRY(context_make(MHA_ISA_AUTO, r->options->threads, &r->context));
    CLI_TRY(cli_check(mha_model_load(r->context, r->folder, &how, &r->model)));
    CLI_TRY(arena_keep(r->model, destroy_model));
    mha_transformer_describe(mha_model_transformer(r->model), &r->desc);
    if (!mha_transformer_predicts(&r->desc))
        return cli_fail(
            CLI_UNSUPPORTED,
            "%s: the model does not predict the next token (an encoder, or the decoder of "
            "an encoder-decoder); give a causal one",
            r->folder);
    const int64_t most = r->options->cache.streaming ? INT32_MAX : r->desc.max_length;
    r->limit = r->options->context ? r->options->context : most;
    if (r->limit <= most) return CLI_OK;
    return cli_fail(CLI_USAGE,
                    "--context %" PRId64 ": the model takes %" PRId64 " tokens; lower it", r->limit,
                    most);
}

static cli_exit read_text(perplexity_run *r)
{
    const char *path = r->options->text, *text;
    const char *name = strcmp(path, "-") != 0 ? path : "stdin";
    char where[160];
    size_t size;
    mha_tokens *tokens;
    CLI_TRY(texts_read_utf8(path, &text, &size));
    snprintf(where, sizeof where, "%.120s: ", name);
    const text_request request = {.folder = r->folder,
                                  .where = where,
                                  .model = r->model,
                                  .how = {.flags = MHA_TOKENS_PLAIN, .max_tokens = -1},
                                  .text = text,
                                  .bytes = size};
    CLI_TRY(text_read(&request, &tokens));
    r->ids = tokens->ids;
    r->count = tokens->count;
    if (r->count < 2)
        return cli_fail(CLI_BAD_INPUT,
                        "%s: has %" PRId64 " tokens; give a text of at least 2, since the first is "
                        "not predicted",
                        name, r->count);
    if (r->options->tokens > 0 && r->count > r->options->tokens) r->count = r->options->tokens;
    return CLI_OK;
}

static cli_exit make_room(perplexity_run *r)
{
    const perplexity_options *o = r->options;
    if (o->cache.streaming && r->limit > r->count) r->limit = r->count;
    const int64_t capacity = r->count < r->limit ? r->count : r->limit;
    mha_decoder_desc desc = {.struct_size = sizeof desc,
                             .flags = MHA_DECODER_WINDOWS,
                             .capacity = capacity,
                             .max_step = o->chunk < capacity ? o->chunk : capacity};
    CLI_TRY(cache_fill(&o->cache, &desc));
    CLI_TRY(cli_check(
        mha_decoder_create(r->context, mha_model_transformer(r->model), &desc, &r->decoder)));
    CLI_TRY(arena_keep(r->decoder, destroy_decoder));
    CLI_TRY(ARENA_ALLOC(r->count, &r->losses));
    return ARENA_ALLOC(desc.max_step * r->desc.vocab_size, &r->logits);
}

/* ---- Measuring ------------------------------------------------------------------------------- */

/* log sum_v exp(logits[v]) - logits[target]; NaN: a logit is not finite. */
static double loss_of(const float *logits, int64_t count, int32_t target)
{
    float most = logits[0];
    double sum = 0;
    for (int64_t v = 0; v < count; v++) {
        if (!isfinite(logits[v])) return NAN;
        if (logits[v] > most) most = logits[v];
    }
    for (int64_t v = 0; v < count; v++) sum += mha_exp((double)logits[v] - (double)most);
    return mha_log(sum) + ((double)most - (double)logits[target]);
}

/* Run the next tokens of a context that ends before `end`, as many as a step takes. */
static cli_exit step(perplexity_run *r, int64_t end)
{
    const int64_t at = r->done, left = end - at, V = r->desc.vocab_size;
    const int64_t n = left < r->options->chunk ? left : r->options->chunk;
    const mha_tensor tokens =
        mha_tensor_contiguous(r->ids + at, MHA_I32, 2, (const int64_t[]){1, n});
    const mha_tensor logits =
        mha_tensor_contiguous(r->logits, MHA_F32, 3, (const int64_t[]){1, n, V});
    CLI_TRY(cli_check(mha_decoder_step(r->context, r->decoder, &tokens, &logits)));
    for (int64_t i = at; i < at + n && i + 1 < end; i++) {
        r->losses[i + 1] = loss_of(r->logits + (i - at) * V, V, r->ids[i + 1]);
        if (isnan(r->losses[i + 1]))
            return cli_fail(CLI_BAD_INPUT,
                            "the model's logits are not finite: its weights are damaged, or too "
                            "large for 32 bits; download the model again");
        r->sum += r->losses[i + 1];
        r->predicted++;
    }
    r->done += n;
    return CLI_OK;
}

/* Run until all tokens are measured or a signal arrives. */
static cli_exit measure(perplexity_run *r)
{
    progress shown = progress_begin(r->options->quiet);
    const double from = seconds_now();
    cli_exit code = CLI_OK;
    while (code == CLI_OK && r->done < r->count && !signals_came()) {
        const int64_t begin = r->done - r->done % r->limit, left = r->count - begin;
        if (r->done == begin) {
            r->losses[begin] = NAN; /* not predicted */
            CLI_TRY(cli_check(mha_decoder_truncate(r->decoder, 0)));
        }
        code = step(r, begin + (left < r->limit ? left : r->limit));
        r->seconds = seconds_now() - from;
        if (r->predicted > 0)
            progress_show(&shown, (double)r->done / (double)r->count,
                          "%" PRId64 " of %" PRId64 " tokens, perplexity %.2f so far", r->done,
                          r->count, mha_exp(r->sum / (double)r->predicted));
    }
    progress_clear(&shown);
    return code;
}

/* Compute the mean and standard error of the losses, and exp() of both, by the first derivative. */
static void conclude(perplexity_run *r)
{
    const double n = (double)r->predicted;
    double squares = 0;
    r->mean = r->sum / n;
    for (int64_t i = 0; i < r->done; i++)
        if (!isnan(r->losses[i])) squares += (r->losses[i] - r->mean) * (r->losses[i] - r->mean);
    r->mean_error = n > 1 ? sqrt(squares / (n - 1) / n) : NAN;
    r->perplexity = mha_exp(r->mean);
    r->error = r->perplexity * r->mean_error;
}

/* ---- The command line ------------------------------------------------------------------------ */

const char *perplexity_cache_name(const perplexity_run *run)
{
    return cache_names[run->options->cache.type];
}

const char *perplexity_compute_name(const perplexity_run *run)
{
    return computes[run->options->compute];
}

static cli_exit report(perplexity_run *r)
{
    if (r->done < r->count)
        cli_note(r->options->quiet, "interrupted: %" PRId64 " of %" PRId64 " tokens were measured",
                 r->done, r->count);
    if (r->predicted > 0) {
        conclude(r);
        CLI_TRY(r->options->json ? perplexity_write_json(r) : perplexity_print(r));
    }
    signals_postpone();
    return CLI_OK;
}

cli_exit cmd_perplexity(int argument_count, char *const *arguments)
{
    perplexity_options options = {.chunk = 128, .cache = CACHE_DEFAULTS};
    args_line line = {0};
    perplexity_run r = {.options = &options};
    CLI_TRY(args_parse(&perplexity_page, argument_count, arguments, &options, &line));
    if (!options.text)
        return cli_fail(CLI_USAGE, "--text is missing: multihead perplexity MODEL --text FILE");
    r.folder = line.plain.items[0];
    CLI_TRY(load(&r));
    CLI_TRY(read_text(&r));
    CLI_TRY(make_room(&r));
    if (!ranks_transport()) signals_hold(); /* with several ranks the launcher ends all */
    CLI_TRY(measure(&r));
    return report(&r);
}
