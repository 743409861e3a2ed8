/* See text_model.h. */
#include "common/text_model.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------
 * Opening
 * --------------------------------------------------------------------------------------------- */

static cli_exit fail_status(const text_model *model, mha_status status)
{
    return cli_fail_status(model->command, status);
}

static mha_status describe(text_model *model)
{
    mha_model_info info = {.struct_size = sizeof info};
    mha_model *encoder = mha_model_encoder(model->model);
    MHA_TRY(mha_model_describe(model->model, &info));
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
    model->source = mha_model_vocabulary(encoder);
    mha_transformer_describe(model->encoder, &model->encoder_desc);
    if (model->source && model->vocabulary) return MHA_OK;
    return mha_fail(MHA_ERR_UNSUPPORTED,
                    "%s: an encoder-decoder needs whole words, as 'multihead "
                    "train' writes them",
                    model->folder);
}

cli_exit text_model_open(const char *command, const char *folder, int64_t threads,
                         text_model *model)
{
    *model = (text_model){.command = command, .folder = folder};
    model->name = maps_name_of_path(folder);
    if (!model->name) return cli_fail(CLI_NO_MEMORY, command, "out of memory: a name");
    const mha_context_desc desc = {.struct_size = sizeof desc, .num_threads = (int32_t)threads};
    mha_status status = mha_context_create(&desc, &model->context);
    if (status == MHA_OK) status = mha_model_load(model->context, folder, NULL, &model->model);
    if (status == MHA_OK) status = describe(model);
    return status == MHA_OK ? CLI_OK : fail_status(model, status);
}

cli_exit text_model_pick(const text_model *model, const args_texts *layers, const args_texts *heads,
                         maps_picks *picks)
{
    const int64_t *have = model->encoder ? NULL : model->desc.layer_heads;
    cli_exit code = maps_pick(model->command, layers, heads, model->layers, model->heads, picks);
    for (int64_t i = 0; code == CLI_OK && have && i < picks->layers * picks->heads; i++) {
        if (!picks->on[i] || i % picks->heads < have[i / picks->heads]) continue;
        picks->on[i] = 0;
        picks->count--;
    }
    if (code != CLI_OK || picks->count > 0) return code;
    return cli_fail(CLI_USAGE, model->command, "%s: pruned, and without the heads chosen",
                    model->folder);
}

void text_model_close(text_model *model)
{
    mha_model_destroy(model->model);
    mha_context_destroy(model->context);
    free(model->name);
    *model = (text_model){0};
}

/* ------------------------------------------------------------------------------------------------
 * Tokens
 * --------------------------------------------------------------------------------------------- */

const char *text_model_token(const text_model *model, int32_t id)
{
    const char *text = model->pieces ? mha_tokenizer_token(model->pieces, id)
                                     : mha_vocabulary_word(model->vocabulary, id);
    return text ? text : "?";
}

void text_tokens_free(text_tokens *tokens)
{
    maps_tokens_free(&tokens->list);
    free(tokens->ids);
    free(tokens->types);
    *tokens = (text_tokens){0};
}

static cli_exit make_room(const text_model *model, int64_t count, text_tokens *tokens)
{
    void *items = NULL, *ids = NULL, *types = NULL;
    cli_exit code = maps_alloc(model->command, count, sizeof(maps_token), &items);
    if (code == CLI_OK) code = maps_alloc(model->command, count, sizeof(int32_t), &ids);
    if (code == CLI_OK) code = maps_alloc(model->command, count, sizeof(int32_t), &types);
    tokens->list = (maps_tokens){.items = items, .count = items ? count : 0};
    tokens->ids = ids;
    tokens->types = types;
    return code;
}

/* The text of each token, once its id is known. */
static cli_exit add_texts(const text_model *model, text_tokens *tokens)
{
    for (int64_t i = 0; i < tokens->list.count; i++) {
        maps_token *token = &tokens->list.items[i];
        const char *text = text_model_token(model, token->id);
        token->text = maps_copy_text(text, strlen(text));
        if (!token->text)
            return cli_fail(CLI_NO_MEMORY, model->command, "out of memory: the text of a token");
        tokens->ids[i] = token->id;
        tokens->types[i] = token->type;
    }
    return CLI_OK;
}

static cli_exit fail_to_encode(const text_model *model, mha_status status)
{
    const bool text = status == MHA_ERR_UTF8 || status == MHA_ERR_FORMAT;
    if (!text) return fail_status(model, status);
    return cli_fail(CLI_BAD_INPUT, model->command, "%s%s%s", model->where, mha_error_detail(),
                    status == MHA_ERR_UTF8 ? "; save or type it as UTF-8" : "");
}

static cli_exit check_not_empty(const text_model *model, const text_tokens *tokens, int sequence,
                                int64_t dropped)
{
    for (int64_t i = 0; i < tokens->list.count; i++)
        if (tokens->list.items[i].sequence == sequence) return CLI_OK;
    if (dropped > 0)
        return cli_fail(CLI_USAGE, model->command,
                        "%s--truncate leaves no token of the %s text; raise --max-tokens",
                        model->where, sequence == 0 ? "first" : "second");
    return cli_fail(CLI_BAD_INPUT, model->command, "%s%s", model->where,
                    sequence == 0 ? "the text is empty; give at least one word"
                                  : "the second text is empty; give at least one word, or leave "
                                    "it out");
}

static cli_exit check_length(const text_model *model, const text_limits *limits, int64_t count,
                             int64_t most)
{
    if (count <= most) return CLI_OK;
    return cli_fail(CLI_BAD_INPUT, model->command,
                    "%sthe text has %" PRId64 " tokens, the limit is %" PRId64
                    "%s; shorten it, or add --truncate",
                    model->where, count, most, limits->most ? "" : " (the model's positions)");
}

static cli_exit take_pieces(const text_model *model, const mha_encoding *encoding,
                            text_tokens *tokens)
{
    cli_exit code = make_room(model, encoding->count, tokens);
    for (int64_t i = 0; i < encoding->count && code == CLI_OK; i++)
        tokens->list.items[i] = (maps_token){.id = encoding->ids[i],
                                             .type = encoding->type_ids[i],
                                             .begin = encoding->begin[i],
                                             .end = encoding->end[i],
                                             .sequence = encoding->sequence[i],
                                             .special = encoding->special[i] != 0};
    tokens->dropped = encoding->dropped[0] + encoding->dropped[1];
    return code == CLI_OK ? add_texts(model, tokens) : code;
}

static cli_exit encode_pieces(const text_model *model, const text_limits *limits, int64_t most,
                              const char *text, size_t bytes, const char *pair, size_t pair_bytes,
                              text_tokens *tokens)
{
    mha_encoding encoding = {.struct_size = sizeof encoding};
    mha_encode_options options = {.struct_size = sizeof options};
    if (limits->truncate) {
        options.max_length = most;
        options.truncation = MHA_TRUNCATE_LONGEST_FIRST;
    }
    mha_status status =
        mha_tokenizer_encode(model->pieces, &options, text, bytes, pair, pair_bytes, &encoding);
    if (status != MHA_OK) return fail_to_encode(model, status);
    cli_exit code = take_pieces(model, &encoding, tokens);
    if (code == CLI_OK) code = check_not_empty(model, tokens, 0, encoding.dropped[0]);
    if (code == CLI_OK && pair) code = check_not_empty(model, tokens, 1, encoding.dropped[1]);
    mha_encoding_free(&encoding);
    return code;
}

/* Words are divided by a byte at least, and one token more may stand in front. */
static cli_exit encode_words(const text_model *model, const mha_vocabulary *vocabulary,
                             const text_limits *limits, int64_t most, const char *text,
                             size_t bytes, text_tokens *tokens)
{
    const int64_t room = (int64_t)bytes + 1; /* every byte a token, behind the one that begins */
    void *ids = NULL, *begin = NULL, *end = NULL;
    int64_t count = 0;
    cli_exit code = maps_alloc(model->command, room, sizeof(int32_t), &ids);
    if (code == CLI_OK) code = maps_alloc(model->command, room, sizeof(int64_t), &begin);
    if (code == CLI_OK) code = maps_alloc(model->command, room, sizeof(int64_t), &end);
    if (code == CLI_OK) {
        mha_status status =
            mha_vocabulary_locate(vocabulary, text, bytes, ids, begin, end, room, &count);
        if (status != MHA_OK) code = fail_to_encode(model, status);
    }
    const int64_t kept = limits->truncate && count > most ? most : count;
    if (code == CLI_OK) code = make_room(model, kept, tokens);
    for (int64_t i = 0; i < kept && code == CLI_OK; i++) {
        const int64_t from = ((const int64_t *)begin)[i];
        tokens->list.items[i] = (maps_token){.id = ((const int32_t *)ids)[i],
                                             .begin = from,
                                             .end = ((const int64_t *)end)[i],
                                             .sequence = from < 0 ? -1 : 0,
                                             .special = from < 0};
    }
    tokens->dropped = count - kept;
    if (code == CLI_OK) code = add_texts(model, tokens);
    if (code == CLI_OK) code = check_not_empty(model, tokens, 0, tokens->dropped);
    free(ids);
    free(begin);
    free(end);
    return code;
}

static cli_exit find_limit(const text_model *model, const text_limits *limits, int64_t *most)
{
    *most = limits->most ? limits->most : model->max_length;
    if (*most <= model->max_length) return CLI_OK;
    return cli_fail(CLI_USAGE, model->command,
                    "--max-tokens %" PRId64 ": the model takes at most %" PRId64, *most,
                    model->max_length);
}

cli_exit text_model_encode(const text_model *model, const text_limits *limits, const char *text,
                           size_t bytes, const char *pair, size_t pair_bytes, text_tokens *tokens)
{
    int64_t most;
    *tokens = (text_tokens){0};
    cli_exit code = find_limit(model, limits, &most);
    if (code != CLI_OK) return code;
    if (pair && !model->pairs)
        return cli_fail(CLI_UNSUPPORTED, model->command,
                        "%s: the model knows no second text%s; give one", model->folder,
                        model->pieces && !model->causal
                            ? " (one type of token: its type_vocab_size is 1)"
                            : "");
    code = model->pieces
               ? encode_pieces(model, limits, most, text, bytes, pair, pair_bytes, tokens)
               : encode_words(model, model->vocabulary, limits, most, text, bytes, tokens);
    return code == CLI_OK ? check_length(model, limits, tokens->list.count, most) : code;
}

cli_exit text_model_encode_source(const text_model *model, const text_limits *limits,
                                  const char *text, size_t bytes, text_tokens *tokens)
{
    int64_t most;
    *tokens = (text_tokens){0};
    cli_exit code = find_limit(model, limits, &most);
    if (code == CLI_OK)
        code = encode_words(model, model->source, limits, most, text, bytes, tokens);
    return code == CLI_OK ? check_length(model, limits, tokens->list.count, most) : code;
}

/* ------------------------------------------------------------------------------------------------
 * Runs
 * --------------------------------------------------------------------------------------------- */

/* The batch of one sequence that a call reads. */
typedef struct sequence {
    mha_tensor ids, types;
    mha_transformer_input input;
} sequence;

static void make_sequence(const text_tokens *tokens, const mha_transformer_desc *desc, sequence *s)
{
    const int64_t shape[] = {1, tokens->list.count};
    s->ids = mha_tensor_contiguous(tokens->ids, MHA_I32, 2, shape);
    s->types = mha_tensor_contiguous(tokens->types, MHA_I32, 2, shape);
    s->input = (mha_transformer_input){.struct_size = sizeof s->input,
                                       .tokens = &s->ids,
                                       .token_types =
                                           desc->type_count && tokens->types ? &s->types : NULL};
}

mha_status text_model_run(const text_model *model, const text_tokens *tokens,
                          const mha_attention_outputs *const *outputs,
                          mha_status (*after_layer)(void *user, const mha_activations *activations,
                                                    int64_t layer),
                          void *user)
{
    sequence s;
    make_sequence(tokens, &model->desc, &s);
    s.input.outputs = outputs;
    s.input.after_layer = after_layer;
    s.input.after_layer_user = user;
    return mha_transformer_forward(model->context, model->net, &s.input, NULL, NULL, NULL, NULL);
}

cli_exit text_model_keep(const text_model *model, const text_tokens *tokens, mha_activations **kept)
{
    sequence s;
    *kept = NULL;
    make_sequence(tokens, &model->desc, &s);
    mha_status status =
        mha_activations_create(model->context, model->net, tokens->list.count, 0, kept);
    if (status == MHA_OK)
        status =
            mha_transformer_forward(model->context, model->net, &s.input, *kept, NULL, NULL, NULL);
    return status == MHA_OK ? CLI_OK : fail_status(model, status);
}

cli_exit text_model_run_cross(const text_model *model, const text_tokens *source,
                              const text_tokens *target, const mha_tensor *cross_probabilities)
{
    const int64_t shape[] = {1, source->list.count, model->encoder_desc.embed_dim};
    void *memory;
    sequence first, second;
    cli_exit code = maps_alloc(model->command, shape[1], (size_t)shape[2] * sizeof(float), &memory);
    if (code != CLI_OK) return code;
    const mha_tensor rows = mha_tensor_contiguous(memory, MHA_F32, 3, shape);
    make_sequence(source, &model->encoder_desc, &first);
    make_sequence(target, &model->desc, &second);
    second.input.memory = &rows;
    mha_status status = mha_transformer_forward(model->context, model->encoder, &first.input, NULL,
                                                &rows, NULL, NULL);
    if (status == MHA_OK)
        status = mha_transformer_forward(model->context, model->net, &second.input, NULL, NULL,
                                         NULL, cross_probabilities);
    free(memory);
    return status == MHA_OK ? CLI_OK : fail_status(model, status);
}
