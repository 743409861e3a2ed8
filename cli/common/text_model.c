/* See text_model.h. */
#include "common/text_model.h"

#include "common/arena.h"
#include "common/contexts.h"
#include "common/launched.h"
#include "common/progress.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------
 * Opening
 * --------------------------------------------------------------------------------------------- */

static bool reads_audio(const text_model *model)
{
    const mha_model *encoder = mha_model_encoder(model->model);
    mha_audio_input input = {.struct_size = sizeof input};
    return mha_model_audio_input(encoder ? encoder : model->model, &input) == MHA_OK;
}

static mha_status describe(uint32_t flags, text_model *model)
{
    mha_model_info info = {.struct_size = sizeof info};
    mha_model *encoder = mha_model_encoder(model->model);
    if (reads_audio(model))
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        encoder ? "%s: its encoder reads audio; use 'generate --audio', "
                                  "'view --audio' or the Python package"
                                : "%s: the encoder reads audio; use 'view --audio' or the Python "
                                  "package",
                        model->folder);
    MHA_TRY(mha_model_describe(model->model, &info));
    if (info.patch_size > 0 && !(flags & MHA_MODEL_IMAGES))
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "%s: the model reads images, not texts; give --image FILE to view or heads",
                        model->folder);
    snprintf(model->architecture, sizeof model->architecture, "%s", info.architecture);
    model->net = mha_model_transformer(model->model);
    model->pieces = mha_model_tokenizer(model->model);
    model->vocabulary = mha_model_vocabulary(model->model);
    mha_transformer_describe(model->net, &model->desc);
    model->layers = info.layers;
    model->heads = info.heads;
    model->max_length = info.max_positions;
    model->causal = model->desc.flags & MHA_TRANSFORMER_CAUSAL;
    model->pairs = encoder || (model->pieces && info.type_vocab_size > 1);
    if (!encoder) return MHA_OK;
    model->encoder = mha_model_transformer(encoder);
    if (model->pieces || (mha_model_vocabulary(encoder) && model->vocabulary)) return MHA_OK;
    return mha_fail(MHA_ERR_UNSUPPORTED,
                    "%s: encoder and decoder must both have a word-level vocabulary, as 'multihead "
                    "train' writes it",
                    model->folder);
}

ARENA_RELEASE(destroy_model, mha_model_destroy)

cli_exit text_model_open(const char *folder, int64_t threads, bool spread, text_model *model)
{
    return text_model_open_for(folder, threads, spread ? 0 : MHA_MODEL_UNDIVIDED, model);
}

static cli_exit load(const char *folder, int64_t threads, uint32_t flags, text_model *model)
{
    const bool spread = !(flags & MHA_MODEL_UNDIVIDED);
    const mha_model_options how = {
        .struct_size = sizeof how, .flags = flags, .transport = ranks_together()};
    *model = (text_model){.folder = folder, .ranks = spread ? how.transport : NULL};
    CLI_TRY(maps_name_of_path(folder, &model->name));
    CLI_TRY(context_make(MHA_ISA_AUTO, threads, &model->context));
    CLI_TRY(cli_check(mha_model_load(model->context, folder, &how, &model->model)));
    return arena_keep(model->model, destroy_model);
}

cli_exit text_model_open_for(const char *folder, int64_t threads, uint32_t flags, text_model *model)
{
    CLI_TRY(load(folder, threads, flags, model));
    return cli_check(describe(flags, model));
}

cli_exit text_model_open_audio(const char *folder, int64_t threads, text_model *model)
{
    mha_model_info info = {.struct_size = sizeof info};
    CLI_TRY(load(folder, threads, MHA_MODEL_UNDIVIDED, model));
    if (!reads_audio(model))
        return cli_fail(CLI_UNSUPPORTED, "--audio: %s does not read audio", folder);
    CLI_TRY(cli_check(mha_model_describe(model->model, &info)));
    snprintf(model->architecture, sizeof model->architecture, "%s", info.architecture);
    model->layers = info.layers;
    model->heads = info.heads;
    mha_transformer_describe(mha_model_transformer(model->model), &model->desc);
    model->max_length = model->desc.max_length; /* info also counts the encoder's rows */
    return CLI_OK;
}

cli_exit text_model_pick(const text_model *model, const args_texts *layers, const args_texts *heads,
                         maps_picks *picks)
{
    const int64_t *have = model->encoder ? NULL : model->desc.layer_heads;
    CLI_TRY(maps_pick(layers, heads, model->layers, model->heads, picks));
    for (int64_t i = 0; have && i < picks->layers * picks->heads; i++) {
        if (!picks->on[i] || i % picks->heads < have[i / picks->heads]) continue;
        picks->on[i] = 0;
        picks->count--;
    }
    if (picks->count > 0) return CLI_OK;
    return cli_fail(CLI_USAGE, "%s: the selected heads have been pruned; choose others",
                    model->folder);
}

void text_model_close(text_model *model)
{
    arena_drop(model->model);
    arena_drop(model->context);
    *model = (text_model){0};
}

/* ------------------------------------------------------------------------------------------------
 * Tokens
 * --------------------------------------------------------------------------------------------- */

cli_exit text_model_token_of(const mha_model *model, int32_t id, char **text)
{
    const size_t size = mha_token_label(model, id, NULL, 0) + 1;
    CLI_TRY(ARENA_ALLOC((int64_t)size, text));
    mha_token_label(model, id, *text, size);
    return CLI_OK;
}

cli_exit text_model_token(const text_model *model, int32_t id, char **text)
{
    return text_model_token_of(model->model, id, text);
}

void text_model_where(text_model *model, const char *file, int64_t line)
{
    char number[32] = "";
    if (file && !strcmp(file, "-")) file = "stdin";
    if (line > 0) snprintf(number, sizeof number, "line %" PRId64 ": ", line);
    model->where[0] = '\0';
    if (file) snprintf(model->where, sizeof model->where, "%.120s: %s", file, number);
}

static cli_exit check_not_empty(const text_model *model, const mha_tokens *tokens, int sequence)
{
    for (int64_t i = 0; i < tokens->count; i++)
        if (tokens->sequence[i] == sequence) return CLI_OK;
    if (tokens->dropped[sequence] > 0)
        return cli_fail(CLI_USAGE,
                        "%s--truncate leaves no token of the %s text; raise --max-tokens",
                        model->where, sequence == 0 ? "first" : "second");
    return cli_fail(CLI_BAD_INPUT, "%s%s", model->where,
                    sequence == 0 ? "the text is empty; give at least one word"
                                  : "the second text is empty; give at least one word, or leave "
                                    "it out");
}

ARENA_RELEASE(free_tokens, mha_tokens_free)

cli_exit text_read(const text_request *request, mha_tokens **tokens)
{
    char words[512];
    mha_tokens_options how = request->how;
    how.struct_size = sizeof how;
    how.advise_words = words;
    snprintf(words, sizeof words, "'multihead heads %.400s --words' lists them", request->folder);
    CLI_TRY(ARENA_ALLOC(1, tokens));
    (*tokens)->struct_size = sizeof **tokens;
    const mha_status status = mha_tokens_read(request->model, &how, request->text, request->bytes,
                                              request->pair, request->pair_bytes, *tokens);
    const char *where = request->where, *detail = mha_error_detail();
    switch (status) {
    case MHA_OK: return arena_keep(*tokens, free_tokens);
    case MHA_ERR_UNSUPPORTED: return cli_fail(CLI_UNSUPPORTED, "%s: %s", request->folder, detail);
    case MHA_ERR_UTF8:
        return cli_fail(CLI_BAD_INPUT, "%s%s; save or type it as UTF-8", where, detail);
    case MHA_ERR_FORMAT:
    case MHA_ERR_SIZE: return cli_fail(CLI_BAD_INPUT, "%s%s", where, detail);
    default: return cli_fail_status(status);
    }
}

/* Warn if most of a text is unknown to the tokenizer, whose settings may then be wrong. */
static void warn_of_unknown(const text_model *model, const mha_model *reader,
                            const mha_tokens *tokens)
{
    mha_tokenizer_info info = {.struct_size = sizeof info, .unk_id = -1};
    int64_t unknown = 0, own = 0;
    const mha_tokenizer *tokenizer = mha_model_tokenizer(reader);
    if (!tokenizer || mha_tokenizer_describe(tokenizer, &info) != MHA_OK || info.unk_id < 0) return;
    for (int64_t i = 0; i < tokens->count; i++) {
        own += tokens->sequence[i] >= 0;
        unknown += tokens->ids[i] == info.unk_id;
    }
    if (2 * unknown <= own) return;
    cli_warn("%s%" PRId64 " of %" PRId64 " tokens of the text are unknown to the tokenizer%s",
             model->where, unknown, own,
             info.lowercase ? ", which lowercases; for a vocabulary with capital letters, set "
                              "\"do_lower_case\": false in tokenizer_config.json"
                            : "");
}

static cli_exit encode(const text_model *model, const mha_model *reader, const text_limits *limits,
                       const char *text, size_t bytes, const char *pair, size_t pair_bytes,
                       mha_tokens **tokens)
{
    const text_request request = {
        .where = model->where,
        .folder = model->folder,
        .model = reader,
        .how = {.flags = limits->truncate ? MHA_TOKENS_TRUNCATE : 0,
                .max_tokens = limits->most,
                .advise_long = "or add --truncate"},
        .text = text,
        .bytes = bytes,
        .pair = pair,
        .pair_bytes = pair_bytes,
    };
    if (limits->most > model->max_length)
        return cli_fail(CLI_USAGE, "--max-tokens %" PRId64 ": the model takes at most %" PRId64,
                        limits->most, model->max_length);
    CLI_TRY(text_read(&request, tokens));
    warn_of_unknown(model, reader, *tokens);
    CLI_TRY(check_not_empty(model, *tokens, 0));
    return pair ? check_not_empty(model, *tokens, 1) : CLI_OK;
}

cli_exit text_model_encode(const text_model *model, const text_limits *limits, const char *text,
                           size_t bytes, const char *pair, size_t pair_bytes, mha_tokens **tokens)
{
    return encode(model, model->model, limits, text, bytes, pair, pair_bytes, tokens);
}

cli_exit text_model_encode_source(const text_model *model, const text_limits *limits,
                                  const char *text, size_t bytes, mha_tokens **tokens)
{
    return encode(model, mha_model_encoder(model->model), limits, text, bytes, NULL, 0, tokens);
}

ARENA_RELEASE(free_audio, mha_audio_free)

cli_exit text_read_audio(const char *path, mha_audio **audio)
{
    CLI_TRY(ARENA_ALLOC(1, audio));
    (*audio)->struct_size = sizeof **audio;
    CLI_TRY(cli_check(mha_audio_read(path, *audio)));
    return arena_keep(*audio, free_audio);
}

cli_exit text_model_read_image(const text_model *model, const char *path, mha_tokens **tokens)
{
    mha_image image = {.struct_size = sizeof image};
    CLI_TRY(ARENA_ALLOC(1, tokens));
    (*tokens)->struct_size = sizeof **tokens;
    CLI_TRY(cli_check(mha_image_load(path, &image)));
    const mha_status status = mha_tokens_read_image(model->model, &image, *tokens);
    mha_image_free(&image);
    if (status == MHA_ERR_UNSUPPORTED)
        return cli_fail(CLI_UNSUPPORTED, "%s: %s; give a text", model->folder, mha_error_detail());
    CLI_TRY(cli_check(status));
    return arena_keep(*tokens, free_tokens);
}

/* ------------------------------------------------------------------------------------------------
 * Runs
 * --------------------------------------------------------------------------------------------- */

void text_show_study(progress *shown, const mha_study_progress *at)
{
    const double layers = (double)at->layers;
    const double here = ((double)at->layer + (double)at->row / (double)at->rows) / layers;
    char token[64] = "";
    if (at->rows > 1000)
        snprintf(token, sizeof token, ", token %" PRId64 " of %" PRId64, at->row, at->rows);
    progress_show(shown, ((double)at->number + here) / (double)at->count,
                  "%s %" PRId64 " of %" PRId64 ", layer %" PRId64 " of %" PRId64 "%s",
                  at->random ? "random tokens" : "text", at->number + 1, at->count, at->layer + 1,
                  at->layers, token);
}

mha_status text_model_run(const text_model *model, const mha_tokens *tokens,
                          const text_visit *visit)
{
    const int64_t shape[] = {1, tokens->count};
    const mha_tensor ids = mha_tensor_contiguous(tokens->ids, MHA_I32, 2, shape),
                     types = mha_tensor_contiguous(tokens->types, MHA_I32, 2, shape);
    const mha_transformer_input input = {
        .struct_size = sizeof input,
        .tokens = &ids,
        .token_types = model->desc.type_count && tokens->types ? &types : NULL,
        .after_layer = visit->after_layer,
        .after_layer_user = visit->user,
        .gates = visit->gates};
    return mha_transformer_forward(model->context, model->net, &input, NULL, NULL, NULL, NULL);
}
