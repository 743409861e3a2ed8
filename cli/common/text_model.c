/* See text_model.h. */
#include "common/text_model.h"

#include "common/arena.h"
#include "common/contexts.h"
#include "common/launched.h"
#include "common/whole_words.h"

#include <multihead/component.h>
#include <multihead/render.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------
 * Opening
 * --------------------------------------------------------------------------------------------- */

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

static void destroy_model(void *model)
{
    mha_model_destroy(model);
}

static void destroy_activations(void *activations)
{
    mha_activations_destroy(activations);
}

cli_exit text_model_open(const char *command, const char *folder, int64_t threads, bool spread,
                         text_model *model)
{
    const mha_model_options how = {.struct_size = sizeof how,
                                   .flags = spread ? 0 : MHA_MODEL_UNDIVIDED,
                                   .transport = ranks_together()};
    *model =
        (text_model){.command = command, .folder = folder, .ranks = spread ? how.transport : NULL};
    CLI_TRY(maps_name_of_path(command, folder, &model->name));
    CLI_TRY(context_make(command, MHA_ISA_AUTO, threads, &model->context));
    CLI_TRY(cli_check(command, mha_model_load(model->context, folder, &how, &model->model)));
    CLI_TRY(arena_keep(command, model->model, destroy_model));
    return cli_check(command, describe(model));
}

cli_exit text_model_pick(const text_model *model, const args_texts *layers, const args_texts *heads,
                         maps_picks *picks)
{
    const int64_t *have = model->encoder ? NULL : model->desc.layer_heads;
    CLI_TRY(maps_pick(model->command, layers, heads, model->layers, model->heads, picks));
    for (int64_t i = 0; have && i < picks->layers * picks->heads; i++) {
        if (!picks->on[i] || i % picks->heads < have[i / picks->heads]) continue;
        picks->on[i] = 0;
        picks->count--;
    }
    if (picks->count > 0) return CLI_OK;
    return cli_fail(CLI_USAGE, model->command, "%s: pruned, and without the heads chosen",
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

/* The bytes of a token of BPE; false: it is another kind. */
static bool token_bytes(const text_model *model, int32_t id, const char **bytes, size_t *count,
                        int *special)
{
    mha_tokenizer_info info = {.struct_size = sizeof info};
    return model->pieces && mha_tokenizer_describe(model->pieces, &info) == MHA_OK &&
           info.kind != MHA_TOKENIZER_WORDPIECE &&
           mha_tokenizer_token_bytes(model->pieces, id, bytes, count, special) == MHA_OK;
}

static bool all_spaces(const char *bytes, size_t count)
{
    size_t at = 0;
    while (at < count && bytes[at] == ' ') at++;
    return at == count;
}

/* Spaces that are all of a token can be seen; bytes of a part of a character are numbers. */
static cli_exit label_bytes(const text_model *model, const char *bytes, size_t count, char **label)
{
    static const char *const blanks[][2] = {{"\n", "\\n"}, {"\t", "\\t"}, {"\r", "\\r"}};
    const char *at = bytes, *end = bytes + count;
    size_t used = 0, room = count * 6 + 1;
    bool hidden;
    CLI_TRY(ARENA_ALLOC(model->command, (int64_t)room, label));
    const bool spaces = all_spaces(bytes, count);
    if (!spaces && *at == ' ') at++;
    while (at < end) {
        const char *from = at;
        const bool stray = mha_text_next(&at, end, &hidden) == 0xFFFD && at - from == 1;
        const char *shown = spaces ? "\u2423" : NULL;
        for (int i = 0; i < 3; i++)
            if (*from == *blanks[i][0]) shown = blanks[i][1];
        if (shown)
            used += (size_t)snprintf(*label + used, room - used, "%s", shown);
        else if (stray)
            used += (size_t)snprintf(*label + used, room - used, "<0x%02X>",
                                     (unsigned)(unsigned char)*from);
        else
            used += (size_t)snprintf(*label + used, room - used, "%.*s", (int)(at - from), from);
    }
    return CLI_OK;
}

cli_exit text_model_token(const text_model *model, int32_t id, char **text)
{
    const char *bytes;
    size_t count;
    int special = 1;
    if (token_bytes(model, id, &bytes, &count, &special) && !special)
        return label_bytes(model, bytes, count, text);
    bytes = model->pieces ? mha_tokenizer_token(model->pieces, id)
                          : mha_vocabulary_word(model->vocabulary, id);
    if (!bytes) bytes = "?";
    return arena_text(model->command, bytes, strlen(bytes), text);
}

bool text_model_is_word(const text_model *model, int32_t id)
{
    const char *bytes;
    size_t count, length = 0;
    int special;
    if (token_bytes(model, id, &bytes, &count, &special)) {
        if (special || count == 0 || bytes[0] != ' ') return false;
        bytes++;
        count--;
    } else {
        bytes = model->pieces ? mha_tokenizer_token(model->pieces, id)
                              : mha_vocabulary_word(model->vocabulary, id);
        count = bytes ? strlen(bytes) : 0;
    }
    while (length < count && bytes[length] >= 'a' && bytes[length] <= 'z') length++;
    return length > 1 && length == count;
}

static cli_exit make_room(const text_model *model, int64_t count, text_tokens *tokens)
{
    CLI_TRY(ARENA_ALLOC(model->command, count, &tokens->list.items));
    CLI_TRY(ARENA_ALLOC(model->command, count, &tokens->ids));
    tokens->list.count = count;
    return ARENA_ALLOC(model->command, count, &tokens->types);
}

/* The text of each token, once its id is known. */
static cli_exit add_texts(const text_model *model, text_tokens *tokens)
{
    for (int64_t i = 0; i < tokens->list.count; i++) {
        maps_token *token = &tokens->list.items[i];
        CLI_TRY(text_model_token(model, token->id, &token->text));
        tokens->ids[i] = token->id;
        tokens->types[i] = token->type;
    }
    return CLI_OK;
}

void text_model_where(text_model *model, const char *file, int64_t line)
{
    char number[32] = "";
    if (file && !strcmp(file, "-")) file = "stdin";
    if (line > 0) snprintf(number, sizeof number, "line %" PRId64 ": ", line);
    model->where[0] = '\0';
    if (file) snprintf(model->where, sizeof model->where, "%.120s: %s", file, number);
}

static cli_exit fail_to_encode(const text_model *model, mha_status status)
{
    const bool text = status == MHA_ERR_UTF8 || status == MHA_ERR_FORMAT;
    if (!text) return cli_fail_status(model->command, status);
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

/* Nobody counts the rest. */
static cli_exit too_long(const text_model *model, const text_limits *limits, int64_t most)
{
    return cli_fail(CLI_BAD_INPUT, model->command,
                    "%sthe text has too many tokens, the limit is %" PRId64 "%s; shorten it%s",
                    model->where, most, limits->most ? "" : " (the model's positions)",
                    limits->fixed ? "" : ", or add --truncate");
}

static cli_exit take_pieces(const text_model *model, const text_limits *limits, int64_t most,
                            const mha_encoding *encoding, bool pair, text_tokens *tokens)
{
    CLI_TRY(make_room(model, encoding->count, tokens));
    for (int64_t i = 0; i < encoding->count; i++)
        tokens->list.items[i] = (maps_token){.id = encoding->ids[i],
                                             .type = encoding->type_ids[i],
                                             .begin = encoding->begin[i],
                                             .end = encoding->end[i],
                                             .sequence = encoding->sequence[i],
                                             .special = encoding->special[i] != 0};
    tokens->dropped = encoding->dropped[0] + encoding->dropped[1];
    if (tokens->dropped > 0 && !limits->truncate) return too_long(model, limits, most);
    CLI_TRY(add_texts(model, tokens));
    CLI_TRY(check_not_empty(model, tokens, 0, encoding->dropped[0]));
    return pair ? check_not_empty(model, tokens, 1, encoding->dropped[1]) : CLI_OK;
}

static cli_exit encode_pieces(const text_model *model, const text_limits *limits, int64_t most,
                              const char *text, size_t bytes, const char *pair, size_t pair_bytes,
                              text_tokens *tokens)
{
    mha_encoding encoding = {.struct_size = sizeof encoding};
    const mha_encode_options options = {.struct_size = sizeof options,
                                        .flags = limits->truncate ? 0 : MHA_ENCODE_STOP,
                                        .max_length = most,
                                        .truncation = MHA_TRUNCATE_LONGEST_FIRST};
    mha_status status =
        mha_tokenizer_encode(model->pieces, &options, text, bytes, pair, pair_bytes, &encoding);
    if (status != MHA_OK) return fail_to_encode(model, status);
    const cli_exit code = take_pieces(model, limits, most, &encoding, pair, tokens);
    mha_encoding_free(&encoding);
    return code;
}

/* Words are divided by a byte at least, and one token more may stand in front. */
static cli_exit encode_words(const text_model *model, const mha_vocabulary *vocabulary,
                             const text_limits *limits, int64_t most, const char *text,
                             size_t bytes, text_tokens *tokens)
{
    int64_t room = (int64_t)bytes + 1; /* every byte a token, behind the one that begins */
    if (!limits->truncate && room > most) room = most;
    int32_t *ids;
    int64_t *begin, *end, count = 0;
    CLI_TRY(ARENA_ALLOC(model->command, room, &ids));
    CLI_TRY(ARENA_ALLOC(model->command, room, &begin));
    CLI_TRY(ARENA_ALLOC(model->command, room, &end));
    mha_status status =
        whole_words_locate(vocabulary, model->folder, text, bytes, ids, begin, end, room, &count);
    if (status == MHA_ERR_SIZE) return too_long(model, limits, most);
    if (status != MHA_OK) return fail_to_encode(model, status);
    const int64_t kept = limits->truncate && count > most ? most : count;
    CLI_TRY(make_room(model, kept, tokens));
    for (int64_t i = 0; i < kept; i++)
        tokens->list.items[i] = (maps_token){.id = ids[i],
                                             .begin = begin[i],
                                             .end = end[i],
                                             .sequence = begin[i] < 0 ? -1 : 0,
                                             .special = begin[i] < 0};
    arena_drop(ids), arena_drop(begin), arena_drop(end); /* of every byte of the text */
    tokens->dropped = count - kept;
    CLI_TRY(add_texts(model, tokens));
    return check_not_empty(model, tokens, 0, tokens->dropped);
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
    CLI_TRY(find_limit(model, limits, &most));
    if (pair && !model->pairs)
        return cli_fail(CLI_UNSUPPORTED, model->command,
                        "%s: the model knows no second text%s; give one", model->folder,
                        model->pieces && !model->causal
                            ? " (one type of token: its type_vocab_size is 1)"
                            : "");
    if (!model->pieces)
        return encode_words(model, model->vocabulary, limits, most, text, bytes, tokens);
    return encode_pieces(model, limits, most, text, bytes, pair, pair_bytes, tokens);
}

cli_exit text_model_encode_source(const text_model *model, const text_limits *limits,
                                  const char *text, size_t bytes, text_tokens *tokens)
{
    int64_t most;
    *tokens = (text_tokens){0};
    CLI_TRY(find_limit(model, limits, &most));
    return encode_words(model, model->source, limits, most, text, bytes, tokens);
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
                          const text_visit *visit)
{
    sequence s;
    make_sequence(tokens, &model->desc, &s);
    s.input.outputs = visit->outputs;
    s.input.after_layer = visit->after_layer;
    s.input.after_layer_user = visit->user;
    s.input.gates = visit->gates;
    s.input.last_hidden = visit->last_hidden;
    s.input.patches = visit->patches;
    s.input.patch_count = visit->patch_count;
    return mha_transformer_forward(model->context, model->net, &s.input, NULL, NULL, NULL, NULL);
}

cli_exit text_model_activations(const text_model *model, int64_t tokens, mha_activations **room)
{
    *room = NULL;
    CLI_TRY(cli_check(model->command,
                      mha_activations_create(model->context, model->net, tokens, 0, room)));
    return arena_keep(model->command, *room, destroy_activations);
}

cli_exit text_model_keep(const text_model *model, const text_tokens *tokens, mha_activations **kept)
{
    sequence s;
    make_sequence(tokens, &model->desc, &s);
    CLI_TRY(text_model_activations(model, tokens->list.count, kept));
    return cli_check(model->command, mha_transformer_forward(model->context, model->net, &s.input,
                                                             *kept, NULL, NULL, NULL));
}

cli_exit text_model_run_cross(const text_model *model, const text_tokens *source,
                              const text_tokens *target, const mha_tensor *cross_probabilities)
{
    const int64_t shape[] = {1, source->list.count, model->encoder_desc.embed_dim};
    float *memory;
    sequence first, second;
    CLI_TRY(arena_alloc(model->command, shape[1], (size_t)shape[2] * sizeof(float), &memory));
    const mha_tensor rows = mha_tensor_contiguous(memory, MHA_F32, 3, shape);
    make_sequence(source, &model->encoder_desc, &first);
    make_sequence(target, &model->desc, &second);
    second.input.memory = &rows;
    mha_status status = mha_transformer_forward(model->context, model->encoder, &first.input, NULL,
                                                &rows, NULL, NULL);
    if (status == MHA_OK)
        status = mha_transformer_forward(model->context, model->net, &second.input, NULL, NULL,
                                         NULL, cross_probabilities);
    return cli_check(model->command, status);
}
