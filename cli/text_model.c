/* See text_model.h. */
#include "text_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ------------------------------------------------------------------------------------------------
 * Opening
 * --------------------------------------------------------------------------------------------- */

/* "folder/part"; the caller frees it. */
static char *join(const char *folder, const char *part)
{
    size_t bytes = strlen(folder) + strlen(part) + 2;
    char *path = malloc(bytes);
    if (path) snprintf(path, bytes, "%s/%s", folder, part);
    return path;
}

static bool is_there(const char *folder, const char *part)
{
    struct stat status;
    char *path = join(folder, part);
    bool found = path && stat(path, &status) == 0;
    free(path);
    return found;
}

static cli_exit fail_status(const text_model *model, mha_status status)
{
    return cli_fail_status(model->command, status);
}

/* WordPiece, or the words of 'multihead train'. */
static cli_exit load_words(text_model *model, const char *folder, int64_t vocab_size)
{
    mha_status status = mha_tokenizer_load(folder, NULL, &model->pieces);
    int64_t count = 0;
    if (status == MHA_ERR_UNSUPPORTED &&
        mha_vocabulary_load(folder, &model->vocabulary) == MHA_OK) {
        status = MHA_OK;
        count = mha_vocabulary_count(model->vocabulary);
    } else if (status == MHA_ERR_UNSUPPORTED) { /* the first error says more */
        status = mha_tokenizer_load(folder, NULL, &model->pieces);
    }
    if (status == MHA_OK && model->pieces) {
        mha_tokenizer_info info = {.struct_size = sizeof info};
        status = mha_tokenizer_describe(model->pieces, &info);
        count = info.vocab_size;
    }
    if (status != MHA_OK) return fail_status(model, status);
    if (count <= vocab_size) return CLI_OK;
    return cli_fail(CLI_BAD_INPUT, model->command,
                    "%s: the tokenizer has %" PRId64 " tokens, config.json's vocab_size is %" PRId64
                    "; they belong to different models",
                    folder, count, vocab_size);
}

static void describe_net(text_model *model)
{
    mha_transformer_describe(model->net, &model->desc);
    model->layers = model->desc.num_layers;
    model->heads = model->desc.num_heads;
    model->max_length = model->desc.max_length;
    model->causal = model->desc.flags & MHA_TRANSFORMER_CAUSAL;
}

static cli_exit load_segments(text_model *model, int64_t *vocab_size)
{
    mha_model_info info = {.struct_size = sizeof info};
    mha_status status = mha_model_describe(model->segments, &info);
    if (status != MHA_OK) return fail_status(model, status);
    snprintf(model->architecture, sizeof model->architecture, "%s", info.architecture);
    model->layers = info.layers;
    model->heads = info.heads;
    model->max_length = info.max_positions;
    model->pairs = info.type_vocab_size > 1;
    *vocab_size = info.vocab_size;
    return CLI_OK;
}

static cli_exit check_memory(const text_model *model)
{
    if (!(model->desc.flags & MHA_TRANSFORMER_CROSS)) return CLI_OK;
    return cli_fail(CLI_UNSUPPORTED, model->command,
                    "%s: is the decoder of an encoder-decoder, which needs its encoder: give the "
                    "folder that holds both",
                    model->folder);
}

/* One model. */
static cli_exit load_one(text_model *model, unsigned flags)
{
    mha_status status = MHA_ERR_UNSUPPORTED;
    const mha_model_options options = {.struct_size = sizeof options,
                                       .flags = MHA_MODEL_NO_TOKENIZER};
    mha_model_shape shape = {.struct_size = sizeof shape};
    if (flags & TEXT_MODEL_SEGMENTS)
        status = mha_model_load(model->context, model->folder, &options, &model->segments);
    if (status == MHA_ERR_UNSUPPORTED) /* another kind: its own error, if it has one, says more */
        status = mha_checkpoint_load(model->context, model->folder, &model->net);
    if (status != MHA_OK) return fail_status(model, status);
    cli_exit code = CLI_OK;
    int64_t vocab_size = 0;
    if (model->segments) {
        code = load_segments(model, &vocab_size);
    } else {
        describe_net(model);
        vocab_size = model->desc.vocab_size;
        code = check_memory(model);
        status = mha_model_read_shape(model->folder, &shape);
        if (code == CLI_OK && status != MHA_OK) code = fail_status(model, status);
        snprintf(model->architecture, sizeof model->architecture, "%s", shape.architecture);
    }
    return code == CLI_OK ? load_words(model, model->folder, vocab_size) : code;
}

/* The two parts of an encoder-decoder belong together. */
static cli_exit check_parts(text_model *model)
{
    mha_transformer_describe(model->encoder, &model->encoder_desc);
    const mha_transformer_desc *e = &model->encoder_desc, *d = &model->desc;
    if (d->flags & MHA_TRANSFORMER_CROSS && !(e->flags & MHA_TRANSFORMER_CROSS) &&
        e->flags & MHA_TRANSFORMER_NO_OUTPUT &&
        (d->memory_dim ? d->memory_dim : d->embed_dim) == e->embed_dim &&
        d->vocab_size == e->vocab_size)
        return CLI_OK;
    return cli_fail(CLI_BAD_INPUT, model->command,
                    "%s: encoder and decoder do not belong together: the decoder must attend to "
                    "rows as wide as the encoder's, of the same vocabulary",
                    model->folder);
}

/* Such folders are ours: whole words. */
static cli_exit load_both_words(text_model *model, const char *encoder, const char *decoder)
{
    mha_status status = mha_vocabulary_load(encoder, &model->source);
    if (status == MHA_OK) status = mha_vocabulary_load(decoder, &model->vocabulary);
    if (status != MHA_OK) return fail_status(model, status);
    if (mha_vocabulary_count(model->source) <= model->desc.vocab_size &&
        mha_vocabulary_count(model->vocabulary) <= model->desc.vocab_size)
        return CLI_OK;
    return cli_fail(CLI_BAD_INPUT, model->command,
                    "%s: more words than the models know; they belong to different models",
                    model->folder);
}

static cli_exit load_both(text_model *model)
{
    char *encoder = join(model->folder, "encoder"), *decoder = join(model->folder, "decoder");
    cli_exit code = encoder && decoder
                        ? CLI_OK
                        : cli_fail(CLI_NO_MEMORY, model->command, "out of memory: a name");
    mha_status status = MHA_OK;
    if (code == CLI_OK) status = mha_checkpoint_load(model->context, encoder, &model->encoder);
    if (code == CLI_OK && status == MHA_OK)
        status = mha_checkpoint_load(model->context, decoder, &model->net);
    if (status != MHA_OK) code = fail_status(model, status);
    if (code == CLI_OK) {
        describe_net(model);
        model->pairs = true;
        snprintf(model->architecture, sizeof model->architecture, "encoder-decoder");
        code = check_parts(model);
        if (model->encoder_desc.max_length < model->max_length)
            model->max_length = model->encoder_desc.max_length;
    }
    if (code == CLI_OK) code = load_both_words(model, encoder, decoder);
    free(encoder);
    free(decoder);
    return code;
}

cli_exit text_model_open(const char *command, const char *folder, int64_t threads, unsigned flags,
                         text_model *model)
{
    *model = (text_model){.command = command, .folder = folder};
    model->name = maps_name_of_path(folder);
    if (!model->name) return cli_fail(CLI_NO_MEMORY, command, "out of memory: a name");
    const mha_context_desc desc = {.struct_size = sizeof desc, .num_threads = (int32_t)threads};
    mha_status status = mha_context_create(&desc, &model->context);
    if (status != MHA_OK) return cli_fail_status(command, status);
    const bool both = !is_there(folder, "config.json") && is_there(folder, "encoder/config.json") &&
                      is_there(folder, "decoder/config.json");
    return both ? load_both(model) : load_one(model, flags);
}

cli_exit text_model_pick(const text_model *model, const args_texts *layers, const args_texts *heads,
                         maps_picks *picks)
{
    const int64_t *have = model->net && !model->encoder ? model->desc.layer_heads : NULL;
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
    mha_vocabulary_destroy(model->source);
    mha_vocabulary_destroy(model->vocabulary);
    mha_tokenizer_destroy(model->pieces);
    mha_model_destroy(model->segments);
    mha_transformer_destroy(model->encoder);
    mha_transformer_destroy(model->net);
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
    if (pair && !(model->segments && model->pairs))
        return cli_fail(CLI_UNSUPPORTED, model->command,
                        "%s: the model knows no second text%s; give one", model->folder,
                        model->segments ? " (its type_vocab_size is 1)" : "");
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

/* A forward pass of one sequence; output is [T, V] or, without an output layer, [T, E]. */
static mha_status forward(const text_model *model, const mha_transformer *net,
                          const mha_transformer_desc *desc, const text_tokens *tokens,
                          const mha_tensor *memory, float *output, const mha_tensor *probabilities,
                          const mha_tensor *cross, mha_activations **kept)
{
    const int64_t T = tokens->list.count;
    const int64_t S = memory ? memory->shape[1] : 0;
    const int64_t width =
        desc->flags & MHA_TRANSFORMER_NO_OUTPUT ? desc->embed_dim : desc->vocab_size;
    const mha_tensor ids = mha_tensor_contiguous(tokens->ids, MHA_I32, 2, (const int64_t[]){1, T});
    const mha_tensor out =
        mha_tensor_contiguous(output, MHA_F32, 3, (const int64_t[]){1, T, width});
    const mha_transformer_input input = {
        .struct_size = sizeof input, .tokens = &ids, .memory = memory};
    mha_status status = mha_activations_create(model->context, net, T, S, kept);
    if (status != MHA_OK) return status;
    return mha_transformer_forward(model->context, net, &input, *kept, &out, probabilities, cross);
}

static cli_exit make_output(const text_model *model, const mha_transformer_desc *desc,
                            int64_t count, float **output)
{
    void *memory;
    const int64_t width =
        desc->flags & MHA_TRANSFORMER_NO_OUTPUT ? desc->embed_dim : desc->vocab_size;
    cli_exit code = maps_alloc(model->command, count, (size_t)width * sizeof(float), &memory);
    *output = memory;
    return code;
}

cli_exit text_model_run(const text_model *model, const text_tokens *tokens,
                        const mha_tensor *probabilities, mha_activations **kept)
{
    float *output;
    *kept = NULL;
    cli_exit code = make_output(model, &model->desc, tokens->list.count, &output);
    if (code != CLI_OK) return code;
    mha_status status =
        forward(model, model->net, &model->desc, tokens, NULL, output, probabilities, NULL, kept);
    free(output);
    return status == MHA_OK ? CLI_OK : fail_status(model, status);
}

cli_exit text_model_run_cross(const text_model *model, const text_tokens *source,
                              const text_tokens *target, const mha_tensor *cross_probabilities)
{
    float *memory = NULL, *output = NULL;
    mha_activations *first = NULL, *second = NULL;
    mha_status status = MHA_OK;
    cli_exit code = make_output(model, &model->encoder_desc, source->list.count, &memory);
    if (code == CLI_OK) code = make_output(model, &model->desc, target->list.count, &output);
    if (code == CLI_OK) {
        const int64_t shape[] = {1, source->list.count, model->encoder_desc.embed_dim};
        const mha_tensor rows = mha_tensor_contiguous(memory, MHA_F32, 3, shape);
        status = forward(model, model->encoder, &model->encoder_desc, source, NULL, memory, NULL,
                         NULL, &first);
        if (status == MHA_OK)
            status = forward(model, model->net, &model->desc, target, &rows, output, NULL,
                             cross_probabilities, &second);
        if (status != MHA_OK) code = fail_status(model, status);
    }
    mha_activations_destroy(second);
    mha_activations_destroy(first);
    free(output);
    free(memory);
    return code;
}
