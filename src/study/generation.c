/* Generation token by token after a prompt: prefill, sampling, end tokens, stop texts. */
#include <multihead/audio.h>
#include <multihead/component.h>
#include <multihead/generation.h>

#include "study/study.h"

#include <float.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct mha_generation {
    mha_model *model;
    mha_decoder *decoder;
    mha_text_writer *writer; /* NULL without a tokenizer */
    mha_sampling sampling;
    float *logits;      /* [vocab] */
    int64_t vocab;      /* V, which may include ids without tokens */
    int64_t choices;    /* ids of V that are tokens */
    int64_t made, most; /* new tokens */
    int64_t limit;      /* tokens of a text */
    int32_t *ends;      /* [end_count] owned by the caller */
    int64_t end_count;
    int32_t token; /* the last new one */
    mha_generation_state state;
    bool finished; /* the rest of the text was returned */
};

enum { PIECE = 512 }; /* tokens of a prompt per step, in addition to a window */

void mha_generation_destroy(mha_generation *generation)
{
    if (!generation) return;
    mha_decoder_destroy(generation->decoder);
    mha_text_writer_destroy(generation->writer);
    free(generation->logits);
    free(generation->ends);
    free(generation);
}

void mha_generation_stop(mha_generation *generation)
{
    if (generation->state == MHA_GENERATION_CONTINUES) generation->state = MHA_GENERATION_STOPPED;
}

const mha_decoder *mha_generation_decoder(const mha_generation *generation)
{
    return generation->decoder;
}

/* Process the next tokens; with `last`, also compute the logits after the last token. */
static mha_status step(mha_context *context, mha_generation *g, const int32_t *tokens,
                       int64_t count, bool last)
{
    const mha_tensor ids =
        mha_tensor_contiguous((void *)(uintptr_t)tokens, MHA_I32, 2, /* only read */
                              (const int64_t[]){1, count});
    const mha_tensor logits =
        mha_tensor_contiguous(g->logits, MHA_F32, 3, (const int64_t[]){1, 1, g->vocab});
    return mha_decoder_step(context, g->decoder, &ids, last ? &logits : NULL);
}

static mha_status check(mha_model *model, const mha_generation_desc *d)
{
    const mha_model *encoder = mha_model_encoder(model);
    const char *error =
        d->reserved                                    ? "a reserved field is set"
        : d->prompt_count < 1                          ? "an empty prompt"
        : encoder && d->source_count < 1 && !d->memory ? "no source for the encoder"
        : (!encoder && (d->source_count != 0 || d->memory)) || (d->source_count != 0 && d->memory)
            ? "a source without an encoder, or two sources"
        : d->max_tokens < 0                     ? "max_tokens below 0"
        : d->end_count < 0 || d->stop_count < 0 ? "a negative count"
        : d->stop_count > 0 && mha_token_count(model) == 0
            ? "stop texts for a model without tokenizer"
        : d->cache && (d->cache->batch || d->cache->capacity || d->cache->max_step)
            ? "batch, capacity or max_step of the cache"
            : NULL;
    if (error) return mha_fail(MHA_ERR_ARGUMENT, "mha_generation_create: %s", error);
    mha_audio_input audio_input = {.struct_size = sizeof audio_input};
    if (encoder && d->source_count > 0 && mha_model_audio_input(encoder, &audio_input) == MHA_OK)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_generation_create: the encoder reads audio: give "
                                          "memory, not source");
    MHA_NEED_AS("mha_generation_create", "prompt, ends, source", d->prompt,
                d->ends || d->end_count == 0, d->source || d->source_count == 0);
    return MHA_OK;
}

/* Encode the source, and give its rows to the decoder. */
static mha_status encode(mha_context *context, mha_generation *g, const mha_generation_desc *d)
{
    const mha_tokens source = {.count = d->source_count,
                               .ids = (int32_t *)(uintptr_t)d->source}; /* only read */
    mha_room room = {0};
    mha_tensor memory;
    mha_status status = mhai_encode(context, mha_model_transformer(mha_model_encoder(g->model)),
                                    &source, &room, &memory);
    if (status == MHA_OK) status = mha_decoder_set_memory(context, g->decoder, &memory, NULL);
    mha_room_release(&room, 0);
    return status;
}

/* Process the prompt without logits, except for its last token. */
static mha_status begin(mha_context *context, mha_generation *g, const mha_generation_desc *d)
{
    const mha_transformer *net = mha_model_transformer(g->model);
    const int64_t first = d->prompt_count - 1, left = g->limit - d->prompt_count;
    mha_decoder_desc cache = {.struct_size = sizeof cache};
    if (d->cache) cache = *d->cache;
    cache.flags |= MHA_DECODER_WINDOWS;
    cache.capacity = d->prompt_count + (g->most < left ? g->most : left);
    cache.max_step = first > 0 ? first : 1;
    if (cache.window > 0 && cache.max_step > PIECE) cache.max_step = PIECE;
    cache.memory_capacity =
        d->memory && d->memory->ndim == 3 ? d->memory->shape[1] : d->source_count;
    MHA_TRY(mha_decoder_create(context, net, &cache, &g->decoder));
    if (d->source_count > 0) MHA_TRY(encode(context, g, d));
    if (d->memory) MHA_TRY(mha_decoder_set_memory(context, g->decoder, d->memory, NULL));
    for (int64_t at = 0, n; at < first; at += n) {
        n = first - at < cache.max_step ? first - at : cache.max_step;
        MHA_TRY(step(context, g, d->prompt + at, n, false));
    }
    return step(context, g, d->prompt + first, 1, true);
}

static mha_status fill(mha_context *context, mha_model *model, const mha_generation_desc *d,
                       mha_generation *g)
{
    mha_transformer_desc net = {.struct_size = sizeof net};
    const bool streaming = d->cache && d->cache->flags & MHA_DECODER_STREAMING;
    mha_transformer_describe(mha_model_transformer(model), &net);
    if (mha_model_encoder(model)) net.flags &= ~(uint32_t)MHA_TRANSFORMER_CROSS;
    if (!mha_transformer_predicts(&net))
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "the model does not predict the next token: an encoder, the decoder of an "
                        "encoder-decoder, or saved without its output layer");
    *g = (mha_generation){.model = model,
                          .vocab = net.vocab_size,
                          .choices = mha_token_count(model),
                          .most = d->max_tokens,
                          .limit = streaming ? INT32_MAX : net.max_length,
                          .sampling = {.struct_size = sizeof g->sampling}};
    if (d->prompt_count > g->limit)
        return mha_fail(MHA_ERR_SIZE,
                        "the prompt has %" PRId64 " tokens, the model takes %" PRId64
                        "; shorten it, or use a window with streaming",
                        d->prompt_count, g->limit);
    if (d->sampling) g->sampling = *d->sampling;
    if (g->choices > 0)
        MHA_TRY(mha_text_writer_create(model, d->stops, d->stop_count, &g->writer));
    else
        g->choices = g->vocab;
    g->logits = calloc((size_t)g->vocab, sizeof *g->logits);
    g->ends = malloc((size_t)d->end_count * sizeof *g->ends + 1);
    if (!g->logits || !g->ends) return mha_fail(MHA_ERR_NOMEM, "out of memory for a generation");
    g->end_count = d->end_count;
    if (d->end_count > 0) memcpy(g->ends, d->ends, (size_t)d->end_count * sizeof *g->ends);
    return begin(context, g, d);
}

mha_status mha_generation_create(mha_context *context, mha_model *model,
                                 const mha_generation_desc *desc, mha_generation **generation)
{
    MHA_NEED("mha_generation_create", context, model, desc, generation);
    mha_generation_desc d;
    MHA_TRY(mha_struct_read("mha_generation_desc", &d, sizeof d,
                            offsetof(mha_generation_desc, source), desc, desc->struct_size));
    if (d.prompt_count == 0) d.prompt_count = mha_model_start_tokens(model, &d.prompt);
    MHA_TRY(check(model, &d));
    mha_generation *made = calloc(1, sizeof *made);
    if (!made) return mha_fail(MHA_ERR_NOMEM, "out of memory for a generation");
    const mha_status status = fill(context, model, &d, made);
    if (status == MHA_OK)
        *generation = made;
    else
        mha_generation_destroy(made);
    return status;
}

static bool among(const int32_t *ends, int64_t count, int32_t token)
{
    for (int64_t i = 0; i < count; i++)
        if (ends[i] == token) return true;
    return false;
}

/* Choose the next token, g->token, or end the generation by g->state. */
static mha_status choose(mha_context *context, mha_generation *g)
{
    const int32_t *ends;
    const int64_t count = mha_model_end_tokens(g->model, &ends);
    if (g->made > 0) MHA_TRY(step(context, g, &g->token, 1, true));
    const int32_t *never;
    for (int first = 0; first <= (g->made == 0); first++)
        for (int64_t i = mha_model_suppressed_tokens(g->model, first, &never); i-- > 0;)
            g->logits[never[i]] = -FLT_MAX;
    const mha_status status = mha_sample_token(context, &g->sampling, (uint64_t)g->made, g->logits,
                                               g->choices, &g->token);
    if (status == MHA_ERR_NUMERIC)
        return mha_fail(status, "the model's logits are not finite: its weights are damaged, or "
                                "too large for 32 bits; download the model again");
    MHA_TRY(status);
    if (among(ends, count, g->token) || among(g->ends, g->end_count, g->token))
        g->state = MHA_GENERATION_END_TOKEN;
    else
        g->made++;
    return MHA_OK;
}

mha_status mha_generation_next(mha_context *context, mha_generation *generation,
                               mha_generation_step *out)
{
    mha_generation *g = generation;
    bool stopped = false;
    MHA_NEED_AS("mha_generation_next", "context, generation, step", context, g, out);
    MHA_TRY(mha_struct_check_size("mha_generation_step", out->struct_size, sizeof *out));
    *out = (mha_generation_step){.struct_size = out->struct_size, .token = -1, .text = ""};
    if (g->state == MHA_GENERATION_CONTINUES && g->made == g->most)
        g->state = MHA_GENERATION_MAX_TOKENS;
    if (g->state == MHA_GENERATION_CONTINUES && g->made > 0 &&
        mha_decoder_length(g->decoder) == g->limit)
        g->state = MHA_GENERATION_FULL;
    if (g->state == MHA_GENERATION_CONTINUES) {
        MHA_TRY(choose(context, g));
        out->token = g->token;
    }
    out->state = g->state;
    if (g->state == MHA_GENERATION_CONTINUES) {
        if (!g->writer) return MHA_OK;
        MHA_TRY(mha_text_writer_add(g->writer, g->token, &out->text, &out->bytes, &stopped));
        if (stopped) g->state = MHA_GENERATION_STOP_TEXT;
        return MHA_OK;
    }
    if (g->finished || !g->writer) return MHA_OK;
    g->finished = true;
    return mha_text_writer_end(g->writer, &out->text, &out->bytes);
}
