/* multihead generate: continue a text, token by token, with a cache of keys and values. */
#include "common/arena.h"
#include "common/cache_options.h"
#include "common/commands.h"
#include "common/contexts.h"
#include "common/launched.h"
#include "common/option_rows.h"
#include "common/signals.h"
#include "common/text_model.h"
#include "generate/generate_audio.h"
#include "generate/generate_stream.h"

#include <multihead/generation.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct generate_options {
    args_real temperature, top_p, min_p;
    int64_t top_k, seed, max_tokens, threads;
    args_texts stops;
    cache_options cache;
    int ids, chat, stats, quiet, compute, words;
    const char *audio;
} generate_options;

static const char *const computes[] = {"f32", "int8", "bf16", "tiles", NULL}; /* mha_compute */

static const args_option option_table[] = {
    ROW_HEADING("Sampling (default: greedy, the most likely token)"),
    ROW_REAL(
        "temperature", generate_options, temperature,
        "divide logits by X: below 1 sharpens the distribution,\nabove 1 flattens it; 0 is greedy"),
    ROW_NUMBER("top-k", generate_options, top_k, 1, INT64_C(1) << 31,
               "sample from the N most likely tokens only"),
    ROW_REAL("top-p", generate_options, top_p,
             "sample from the most likely tokens whose\nprobabilities add up to X, above 0 to 1"),
    ROW_REAL("min-p", generate_options, min_p,
             "sample from tokens at least X times as likely as\nthe most likely one"),
    ROW_NUMBER("seed", generate_options, seed, 0, INT64_MAX,
               "seed the sampling; default 0. The same seed gives the\nsame text for any number of "
               "threads",
               .needs = "--temperature, --top-k, --top-p or --min-p"),
    ROW_HEADING("Length"),
    ROW_NUMBER("max-tokens", generate_options, max_tokens, 0, INT64_C(1) << 31,
               "generate at most N tokens; default 64. With --audio\nin each window of 30 s; "
               "default: all positions"),
    ROW_TEXTS(0, "stop", generate_options, stops, "TEXT", "stop before this text; may be repeated"),
    ROW_HEADING("The cache of keys and values"),
    CACHE_ROWS(generate_options, cache, "text"),
    ROW_HEADING("Other"),
    ROW_FLAG(
        0, "chat", generate_options, chat, 1,
        "answer TEXT as the user's turn of a chat, in ChatML\n(SmolLM2, Qwen) or Llama 3 format"),
    ROW_FLAG(0, "stats", generate_options, stats, 1,
             "print the end tokens, tokens per second and the size\nof the cache on stderr"),
    ROW_TEXT("audio", generate_options, audio, "FILE.wav",
             "transcribe a recording with Whisper (mono, 16 kHz);\n"
             "TEXT then replaces the model's first tokens",
             .excludes = "--stop --chat"),
    ROW_FLAG(0, "word-timestamps", generate_options, words, 1,
             "print each word with its begin and end in seconds;\nwith --stats also how well each "
             "head follows the audio",
             .needs = "--audio FILE.wav", .excludes = "--ids"),
    ROW_FLAG(
        0, "ids", generate_options, ids, 1,
        "read and print token ids instead of text, for models\nwhose tokenizer is not supported"),
    ROW_CHOICE("compute", generate_options, compute, computes,
               "set the arithmetic of linear layers; default f32. int8\n(for weights stored in "
               "blocks: Q4_0, Q8_0, Q4_K ...)\nand bf16 are faster but less accurate; tiles: "
               "bf16\nas AMX computes it, with the same result everywhere"),
    ROW_THREADS(generate_options),
    ROW_QUIET(generate_options, "print no notes on stderr, only errors"),
    ROW_HELP,
};

const args_page generate_page = {
    .usage = "generate [options] MODEL [TEXT]",
    .examples = "multihead generate demo \"the animal didn't cross the street because it\"\n"
                "multihead generate demo --temperature 0.8 --top-p 0.9 --seed 7\n"
                "multihead generate smollm2.gguf --chat \"What is attention?\" --stats\n"
                "multihead generate t5-small \"translate English to German: Hello.\"\n"
                "multihead generate whisper-tiny --audio talk.wav --word-timestamps\n"
                "multihead generate llama-folder \"Once upon a time\" --stop \".\" --min-p 0.1",
    .notes = "MODEL is a Hugging Face folder, a GGUF file or a folder from 'multihead train'.\n"
             "Without TEXT, generation starts from the beginning-of-text token. An\n"
             "encoder-decoder (BART, T5, Marian) reads TEXT and writes another text. It stops\n"
             "before a --stop text, when the model runs out of positions, or at an end token:\n"
             "one named in config.json, generation_config.json, the tokenizer or a GGUF file\n"
             "(eos, eot, eom, as in llama.cpp); --stats lists them. The text is written to\n"
             "stdout as it is generated. On several ranks (mpirun), each rank holds the\n"
             "weights of some layers; the text is the same.\n"
             "\n"
             "Sampling applies temperature, top k, top p and min p in this order. Without\n"
             "--temperature, any of the last three sets it to 1. --chat adds no system turn;\n"
             "to use one, write the whole chat into TEXT, without --chat. docs/caches.md\n"
             "compares the types of cache.",
    .takes = "MODEL [TEXT]",
    .spare = "put quotes around the text",
    ARGS_OPTIONS(option_table),
};

/* ---- A generation in progress ---------------------------------------------------------------- */

typedef struct run {
    const char *folder;
    mha_context *context;
    mha_model *model;
    mha_transformer_desc desc;
    const mha_vocabulary *vocabulary; /* the model's; NULL with --ids or other tokenizers */
    const mha_tokenizer *tokenizer;   /* NULL: none */
    const int32_t *ends;              /* [end_count] the tokens that end a text */
    int64_t end_count;
    int32_t turn_end;  /* ends an answer of a chat; -1: none */
    double seconds[2]; /* time of the prompt, and of the new tokens */
    mha_generation *generation;
    mha_sampling how;
    bool quiet;
    int32_t *ids; /* [room] the prompt */
    int64_t count, room;
    int32_t *source; /* [source_count] the text of an encoder; NULL: the model has none */
    int64_t source_count;
    bool begun; /* the current line is not empty */
} run;

ARENA_RELEASE(destroy_generation, mha_generation_destroy)
ARENA_RELEASE(destroy_model, mha_model_destroy)

/* Print one token of a model without a tokenizer. */
static void show_word(run *r, int32_t id)
{
    const bool characters =
        r->vocabulary && mha_vocabulary_splitting(r->vocabulary) == MHA_SPLIT_CHARACTERS;
    if (characters && id == mha_vocabulary_begin(r->vocabulary)) return;
    if (r->begun && !characters) cli_print(" ");
    const char *word = r->vocabulary ? mha_vocabulary_word(r->vocabulary, id) : NULL;
    if (word && characters && (!strcmp(word, "\n") || !strcmp(word, "\t")))
        cli_print(*word == '\n' ? "\n" : "\t"); /* characters of a text, unchanged */
    else if (word)
        cli_print("%s", word);
    else
        cli_print("%" PRId32, id);
    r->begun = true;
}

/* Numbers between white space. */
static cli_exit read_ids(run *r, const char *text)
{
    static const char blanks[] = " \t\n\r";
    for (const char *end; *(text += strspn(text, blanks)); text = end) {
        int64_t id;
        if (!args_whole(text, blanks, &id, &end) || id < 0 || id >= r->desc.vocab_size)
            return cli_fail(
                CLI_USAGE,
                "--ids: '%.20s' does not begin with a token, a number from 0 to %" PRId64, text,
                r->desc.vocab_size - 1);
        if (r->count == r->room)
            return cli_fail(CLI_BAD_INPUT,
                            "--ids: the model takes %" PRId64 " tokens, TEXT has more; shorten it",
                            r->room);
        r->ids[r->count++] = (int32_t)id;
    }
    return CLI_OK;
}

/* Read a text, or ids, into r->ids. */
static cli_exit read_tokens(run *r, const mha_model *model, uint32_t flags, const char *text)
{
    const text_request request = {.folder = r->folder,
                                  .where = "",
                                  .model = model,
                                  .how = {.flags = MHA_TOKENS_PLAIN | flags, .max_tokens = -1},
                                  .text = text,
                                  .bytes = strlen(text)};
    mha_tokens *tokens;
    if (!r->tokenizer && !r->vocabulary) {
        CLI_TRY(read_ids(r, text));
    } else {
        CLI_TRY(text_read(&request, &tokens));
        if (tokens->count > r->room)
            return cli_fail(CLI_BAD_INPUT,
                            "text: it has %" PRId64 " tokens, the model takes %" PRId64
                            "; shorten it",
                            tokens->count, r->room);
        for (int64_t i = 0; i < tokens->count; i++) r->ids[r->count++] = tokens->ids[i];
        arena_drop(tokens);
    }
    return CLI_OK;
}

static void add_starts(run *r)
{
    const int32_t *starts;
    const int64_t count = mha_model_start_tokens(r->model, &starts);
    for (int64_t i = 0; i < count; i++) r->ids[r->count++] = starts[i];
}

/* TEXT is that of the encoder; the decoder begins with its start tokens. */
static cli_exit read_source(run *r, const mha_model *encoder, const char *text)
{
    CLI_TRY(read_tokens(r, encoder, 0, text));
    if (strspn(text, " \t\r\n") == strlen(text))
        return cli_fail(CLI_USAGE, "%s is an encoder-decoder; give TEXT, which its encoder reads",
                        r->folder);
    r->source = r->ids;
    r->source_count = r->count;
    r->count = 0;
    CLI_TRY(ARENA_ALLOC(r->room, &r->ids));
    if (r->tokenizer || r->vocabulary) return read_tokens(r, r->model, MHA_TOKENS_PROMPT, "");
    add_starts(r);
    return CLI_OK;
}

static cli_exit read_text(run *r, const char *text)
{
    const mha_model *encoder = mha_model_encoder(r->model);
    CLI_TRY(encoder ? read_source(r, encoder, text)
                    : read_tokens(r, r->model, MHA_TOKENS_PROMPT, text));
    if (r->count > 0) return CLI_OK;
    if (encoder)
        return cli_fail(CLI_BAD_INPUT,
                        "%s names no decoder_start_token_id, with which the decoder begins",
                        r->folder);
    return cli_fail(CLI_USAGE,
                    "this model has no beginning-of-text token to start from; give TEXT");
}

/* Wrap the prompt in the chat template, and set the token that ends the answer. */
static cli_exit make_prompt(run *r, const generate_options *options, const char *folder,
                            const char **text)
{
    char *chat;
    r->end_count = mha_model_end_tokens(r->model, &r->ends);
    r->turn_end = -1;
    if (options->stops.count > 0 && !r->tokenizer)
        return cli_fail(CLI_USAGE,
                        "--stop: %s generates whole words or characters; use --max-tokens", folder);
    if (!options->chat) return CLI_OK;
    if (mha_model_encoder(r->model))
        return cli_fail(CLI_UNSUPPORTED, "--chat: %s is an encoder-decoder, no chat model", folder);
    if (!r->tokenizer)
        return cli_fail(CLI_UNSUPPORTED, "--chat: %s has no tokenizer of a chat model", folder);
    CLI_TRY(generate_chat(r->tokenizer, folder, *text, &chat, &r->turn_end));
    *text = chat;
    return CLI_OK;
}

/* Describe the model. Returns whether it predicts the next token, given a source if it has an
 * encoder. */
static bool predicts(run *r)
{
    mha_transformer_describe(mha_model_transformer(r->model), &r->desc);
    if (mha_model_encoder(r->model)) r->desc.flags &= ~(uint32_t)MHA_TRANSFORMER_CROSS;
    return mha_transformer_predicts(&r->desc);
}

/* Without a tokenizer, input and output are token ids. */
static cli_exit load_model(run *r, const generate_options *options, const char *folder)
{
    mha_model_options how = {.struct_size = sizeof how,
                             .flags = options->ids ? MHA_MODEL_NO_TOKENIZER : 0,
                             .compute = (mha_compute)options->compute,
                             .transport = ranks_transport()};
    char detail[512];
    mha_status status = mha_model_load(r->context, folder, &how, &r->model);
    if (status == MHA_OK) return arena_keep(r->model, destroy_model);
    if (options->ids || (status != MHA_ERR_UNSUPPORTED && status != MHA_ERR_FILE))
        return cli_fail_status(status);
    snprintf(detail, sizeof detail, "%s", mha_error_detail());
    how.flags = MHA_MODEL_NO_TOKENIZER;
    bool fine = mha_model_load(r->context, folder, &how, &r->model) == MHA_OK;
    fine = fine && predicts(r);
    mha_model_destroy(r->model);
    return cli_fail(status == MHA_ERR_FILE ? CLI_NO_INPUT : CLI_UNSUPPORTED, "%s%s", detail,
                    fine ? "; with --ids no tokenizer is needed" : "");
}

static cli_exit load(run *r, const generate_options *options, const char *folder)
{
    r->folder = folder;
    CLI_TRY(context_make(MHA_ISA_AUTO, options->threads, &r->context));
    CLI_TRY(load_model(r, options, folder));
    r->vocabulary = mha_model_vocabulary(r->model);
    if (!predicts(r))
        return cli_fail(CLI_UNSUPPORTED,
                        "%s: the model does not predict the next token (an encoder, or saved "
                        "without its output layer); give a causal one",
                        folder);
    if (options->ids) return CLI_OK;
    r->tokenizer = mha_model_tokenizer(r->model);
    return CLI_OK;
}

/* A text has at most one token per byte, plus special tokens. */
static cli_exit make_room(run *r, const generate_options *options, const char *text)
{
    const int64_t most = (int64_t)strlen(text) + 16;
    r->room = options->cache.streaming && most > r->desc.max_length ? most : r->desc.max_length;
    return ARENA_ALLOC(r->room, &r->ids);
}

static cli_exit begin(run *r, const generate_options *options)
{
    mha_decoder_desc cache = {.struct_size = sizeof cache};
    CLI_TRY(cache_fill(&options->cache, &cache));
    const mha_generation_desc desc = {.struct_size = sizeof desc,
                                      .prompt = r->ids,
                                      .prompt_count = r->count,
                                      .max_tokens = options->max_tokens,
                                      .ends = &r->turn_end,
                                      .end_count = r->turn_end >= 0,
                                      .stops = options->stops.items,
                                      .stop_count = options->stops.count,
                                      .sampling = &r->how,
                                      .cache = &cache,
                                      .source = r->source,
                                      .source_count = r->source_count};
    CLI_TRY(cli_check(mha_generation_create(r->context, r->model, &desc, &r->generation)));
    return arena_keep(r->generation, destroy_generation);
}

/* End the line before anything is printed on stderr, which may be the same terminal. */
static cli_exit end_line(const run *r)
{
    if (r->begun) cli_print("\n");
    return cli_finish_stdout(CLI_OK);
}

/* Echo the prompt as given, without its chat template. */
static cli_exit show_prompt(run *r, const char *text)
{
    if (r->source) return CLI_OK;
    if (text) generate_print(text, strlen(text));
    for (int64_t i = 0; !r->tokenizer && i < r->count; i++) show_word(r, r->ids[i]);
    if (text) r->begun = true;
    return cli_finish_stdout(CLI_OK);
}

static bool is_named_end(const run *r, int32_t id)
{
    for (int64_t i = 0; i < r->end_count; i++)
        if (r->ends[i] == id) return true;
    return false;
}

static void note_end(const run *r, int32_t id)
{
    const char *text = r->tokenizer    ? mha_tokenizer_token(r->tokenizer, id)
                       : r->vocabulary ? mha_vocabulary_word(r->vocabulary, id)
                                       : NULL;
    cli_note(false, "ends at token %" PRId32 "%s%s", id, text ? " " : "", text ? text : "");
}

static void print_stats(const run *r, int64_t made)
{
    for (int64_t i = 0; i < r->end_count; i++) note_end(r, r->ends[i]);
    if (r->turn_end >= 0 && !is_named_end(r, r->turn_end)) note_end(r, r->turn_end);
    const mha_decoder *decoder = mha_generation_decoder(r->generation);
    cli_note(false,
             "prompt: %" PRId64 " tokens in %.2f s (%.1f/s); generated: %" PRId64
             " in %.2f s (%.1f/s); cache: %" PRId64 " tokens, room %.1f MB",
             r->count, r->seconds[0], (double)r->count / r->seconds[0], made, r->seconds[1],
             (double)made / r->seconds[1], mha_decoder_length(decoder),
             (double)mha_decoder_cache_bytes(decoder) * 1e-6);
}

/* Write new tokens until one ends the text or a signal arrives. *made is their number. */
static cli_exit write_tokens(run *r, mha_generation_step *step, int64_t *made)
{
    for (*made = 0; step->state == MHA_GENERATION_CONTINUES;) {
        if (signals_came()) mha_generation_stop(r->generation);
        const mha_status status = mha_generation_next(r->context, r->generation, step);
        if (status != MHA_OK) {
            CLI_TRY(end_line(r));
            return status == MHA_ERR_NUMERIC ? cli_fail(CLI_BAD_INPUT, "%s", mha_error_detail())
                                             : cli_fail_status(status);
        }
        const bool token = step->state == MHA_GENERATION_CONTINUES;
        *made += token;
        if (r->tokenizer) {
            r->begun |= token;
            generate_print(step->text, step->bytes);
        } else if (token) {
            show_word(r, step->token);
        }
        CLI_TRY(cli_finish_stdout(CLI_OK));
    }
    return CLI_OK;
}

static cli_exit generate(run *r, const char *text, const generate_options *options)
{
    mha_generation_step step = {.struct_size = sizeof step};
    int64_t made = 0;
    double from = seconds_now();
    CLI_TRY(begin(r, options));
    r->seconds[0] = seconds_now() - from;
    /* Before the first token a signal may end the process at once. With several ranks the launcher
     * ends all processes. */
    if (!ranks_transport()) signals_hold();
    CLI_TRY(show_prompt(r, text));
    from = seconds_now();
    CLI_TRY(write_tokens(r, &step, &made));
    r->seconds[1] = seconds_now() - from;
    CLI_TRY(end_line(r));
    signals_postpone();
    if (step.state == MHA_GENERATION_FULL)
        cli_note(r->quiet,
                 "the model's %" PRId64 " positions are used up; models with rotary positions can "
                 "continue with --window N --streaming",
                 r->desc.max_length);
    if (options->stats) print_stats(r, made);
    return CLI_OK;
}

/* ---- The command line ------------------------------------------------------------------------ */

static cli_exit check_options(const generate_options *options, run *r)
{
    const bool chance = options->temperature.given || options->top_p.given || options->top_k ||
                        options->min_p.given;
    r->how = (mha_sampling){.struct_size = sizeof r->how,
                            .temperature = options->temperature.given ? options->temperature.value
                                           : chance                   ? 1
                                                                      : 0,
                            .top_k = options->top_k,
                            .top_p = options->top_p.given ? options->top_p.value : 1,
                            .min_p = options->min_p.value,
                            .seed = (uint64_t)options->seed};
    r->quiet = options->quiet;
    if (r->how.temperature < 0 || r->how.temperature > 1e6)
        return cli_fail(CLI_USAGE, "--temperature %g: expected 0 to 1000000", r->how.temperature);
    if (!(r->how.top_p > 0) || r->how.top_p > 1)
        return cli_fail(CLI_USAGE, "--top-p %g: expected more than 0, at most 1", r->how.top_p);
    if (!(r->how.min_p >= 0) || r->how.min_p > 1)
        return cli_fail(CLI_USAGE, "--min-p %g: expected 0 to 1", r->how.min_p);
    return CLI_OK;
}

/* Check the texts before loading a model. */
static cli_exit check_text_options(const generate_options *options, bool text)
{
    if (options->audio && options->max_tokens == 0)
        return cli_fail(CLI_USAGE, "--max-tokens 0: with --audio expected at least 1");
    if (options->ids && options->stops.count > 0)
        return cli_fail(CLI_USAGE, "--stop needs text, but --ids prints ids; use --max-tokens");
    if (options->ids && options->chat)
        return cli_fail(CLI_USAGE,
                        "--chat needs text, but TEXT is numbers with --ids; omit one of them");
    if (options->chat && !text)
        return cli_fail(
            CLI_USAGE,
            "--chat: TEXT, the user's turn, is missing: multihead generate MODEL --chat TEXT");
    return CLI_OK;
}

/* Transcribe. TEXT, if given, is the beginning of the decoder's text. */
static cli_exit transcribe(run *r, const generate_options *options, const char *text,
                           const mha_audio *audio)
{
    mha_decoder_desc cache = {.struct_size = sizeof cache};
    mha_speech_settings known = {.struct_size = sizeof known};
    CLI_TRY(cache_fill(&options->cache, &cache));
    CLI_TRY(cli_check(mha_model_speech_settings(r->model, &known)));
    const bool stamps = options->words && known.first_timestamp >= 0; /* as openai/whisper does */
    if (*text) CLI_TRY(read_tokens(r, r->model, MHA_TOKENS_PROMPT, text));
    const audio_job job = {.folder = r->folder,
                           .context = r->context,
                           .model = r->model,
                           .ids = options->ids,
                           .stats = options->stats,
                           .quiet = r->quiet,
                           .desc = {.struct_size = sizeof job.desc,
                                    .flags = (options->words ? MHA_TRANSCRIBE_WORDS : 0) |
                                             (stamps ? MHA_TRANSCRIBE_TIMESTAMPS : 0),
                                    .prompt = r->ids,
                                    .prompt_count = r->count,
                                    .max_tokens = options->max_tokens > 0 ? options->max_tokens : 0,
                                    .sampling = &r->how,
                                    .cache = &cache}};
    return generate_audio(&job, audio);
}

static cli_exit check_audio(const run *r, const mha_audio *audio)
{
    const mha_model *encoder = mha_model_encoder(r->model);
    mha_audio_input input = {.struct_size = sizeof input};
    const bool reads_audio = encoder && mha_model_audio_input(encoder, &input) == MHA_OK;
    if (reads_audio == (audio != NULL)) return CLI_OK;
    return cli_fail(CLI_USAGE,
                    reads_audio ? "%s reads audio: give --audio FILE.wav"
                                : "--audio: %s reads text; omit it",
                    r->folder);
}

cli_exit cmd_generate(int argument_count, char *const *arguments)
{
    generate_options options = {.max_tokens = -1, .cache = CACHE_DEFAULTS};
    args_line line = {0};
    mha_audio *audio = NULL;
    run r = {0};
    CLI_TRY(args_parse(&generate_page, argument_count, arguments, &options, &line));
    CLI_TRY(args_check(&generate_page, &line));
    CLI_TRY(check_options(&options, &r));
    CLI_TRY(check_text_options(&options, line.plain.count > 1));
    if (options.audio) CLI_TRY(text_read_audio(options.audio, &audio));
    CLI_TRY(load(&r, &options, line.plain.items[0]));
    const char *text = line.plain.count > 1 ? line.plain.items[1] : "";
    const char *shown = r.tokenizer && !options.chat ? text : NULL;
    CLI_TRY(check_audio(&r, audio));
    CLI_TRY(make_prompt(&r, &options, line.plain.items[0], &text));
    CLI_TRY(make_room(&r, &options, text));
    if (audio) return transcribe(&r, &options, text, audio);
    if (options.max_tokens < 0) options.max_tokens = 64;
    CLI_TRY(read_text(&r, text));
    return generate(&r, shown, &options);
}
