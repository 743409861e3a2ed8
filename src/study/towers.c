/* The two towers of an encoder-decoder: rows of a source, and the text that the model writes for it. */
#include "study/study.h"

#include <multihead/audio.h>
#include <multihead/component.h>
#include <multihead/generation.h>

#include <stdlib.h>
#include <string.h>

enum { LONGEST = 512 }; /* tokens that are generated unless the caller sets a limit */

mha_status mhai_encoder_reads_texts(const mha_model *encoder, const char *caller)
{
    mha_audio_input input = {.struct_size = sizeof input};
    if (mha_model_audio_input(encoder, &input) != MHA_OK) return MHA_OK;
    return mha_fail(MHA_ERR_UNSUPPORTED, "%s: the model's encoder reads audio, not tokens", caller);
}

mha_status mhai_encode(mha_context *context, const mha_transformer *encoder,
                       const mha_tokens *source, mha_room *room, mha_tensor *memory)
{
    mha_transformer_desc desc;
    mhai_sequence read;
    mha_transformer_describe(encoder, &desc);
    mha_tensor rows =
        mha_tensor_contiguous(NULL, MHA_F32, 3, (int64_t[]){1, source->count, desc.embed_dim});
    MHA_TRY(
        mha_room_alloc(room, source->count, (size_t)desc.embed_dim * sizeof(float), &rows.data));
    *memory = rows;
    mhai_sequence_make(source, &desc, &read);
    return mha_transformer_forward(context, encoder, &read.input, NULL, memory, NULL, NULL);
}

/* ---- the text that the model writes ---------------------------------------------------------- */

/* The ids that follow `count` start tokens; at most `most` in all. */
static mha_status write_on(mha_context *context, mha_generation *g, int64_t most, int32_t *ids,
                           int64_t *count)
{
    mha_generation_step step = {.struct_size = sizeof step};
    while (*count < most) {
        MHA_TRY(mha_generation_next(context, g, &step));
        if (step.state != MHA_GENERATION_CONTINUES) break;
        ids[(*count)++] = step.token;
    }
    return MHA_OK;
}

static mha_status take(const mha_model *model, const int32_t *ids, int64_t count, int64_t starts,
                       mha_tokens *tokens)
{
    mha_tokens made;
    size_t bytes = 0;
    char *text;
    for (int64_t i = 0; i < count; i++) bytes += mha_token_label(model, ids[i], NULL, 0) + 1;
    MHA_TRY(mhai_tokens_make(count, bytes, &made, &text));
    for (int64_t i = 0; i < count; i++) {
        made.ids[i] = ids[i];
        made.begin[i] = made.end[i] = -1;
        made.special[i] = i < starts || mha_token_is_special(model, ids[i]);
        made.sequence[i] = made.special[i] ? -1 : 0;
        made.labels[i] = text;
        text += mha_token_label(model, ids[i], text, SIZE_MAX) + 1;
    }
    mha_tokens_sentences(count, made.labels, made.special, made.separators, made.sentences);
    *tokens = made;
    return MHA_OK;
}

mha_status mha_tokens_generate(mha_context *context, mha_model *model, const mha_tokens *source,
                               int64_t max_tokens, mha_tokens *tokens)
{
    mha_model_info info = {.struct_size = sizeof info};
    mha_generation *generation = NULL;
    MHA_NEED("mha_tokens_generate", context, model, source, tokens);
    MHA_TRY(mha_struct_check_size("mha_tokens", tokens->struct_size, sizeof *tokens));
    MHA_TRY(mha_model_describe(model, &info));
    mha_tokens starts = {.struct_size = sizeof starts};
    const mha_tokens_options prompt = {.struct_size = sizeof prompt, .flags = MHA_TOKENS_PROMPT};
    MHA_TRY(mha_tokens_read(model, &prompt, "", 0, NULL, 0, &starts));
    if (starts.count == 0)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_tokens_generate: the model has no token with which "
                        "a target begins (decoder_start_token_id); give one");
    int64_t count = starts.count, most = max_tokens;
    if (most <= 0 || most > info.max_positions)
        most = info.max_positions < LONGEST ? info.max_positions : LONGEST;
    if (most < count) most = count;
    int32_t *ids = malloc((size_t)most * sizeof *ids + 1);
    if (ids && count > 0) memcpy(ids, starts.ids, (size_t)count * sizeof *ids);
    const mha_generation_desc desc = {.struct_size = sizeof desc,
                                      .prompt = ids,
                                      .prompt_count = count,
                                      .max_tokens = most - count,
                                      .source = source->ids,
                                      .source_count = source->count};
    mha_status status = ids ? mha_generation_create(context, model, &desc, &generation)
                            : mha_fail(MHA_ERR_NOMEM, "out of memory for a target");
    if (status == MHA_OK) status = write_on(context, generation, most, ids, &count);
    if (status == MHA_OK) status = take(model, ids, count, starts.count, tokens);
    mha_tokens_free(&starts);
    mha_generation_destroy(generation);
    free(ids);
    return status;
}
