/* Transcription window by window (transcription.h). */
#include "study/transcription.h"

#include <multihead/component.h>

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* The state of decoding, besides mhai_transcription. */
typedef struct decoding {
    mhai_transcription t;
    mha_decoder *decoder;
    mha_sampling sampling;
    float *mel, *window, *logits; /* [M,frames], [M,2 S], [V] */
    int64_t frames;               /* of the audio */
    int32_t *tokens;              /* [max_length] of the window */
    int64_t prompt_count, most;   /* most: new tokens of a window */
    int64_t language;             /* position in the prompt that is not yet known; -1: none */
    int64_t drawn;
} decoding;

/* ---- the first tokens ------------------------------------------------------------------------ */

static mha_status add_token(decoding *c, int64_t token)
{
    if (c->prompt_count == c->t.net.max_length)
        return mha_fail(MHA_ERR_SIZE, "the prompt has more than the model's %" PRId64 " positions",
                        c->t.net.max_length);
    c->tokens[c->prompt_count++] = (int32_t)token;
    return MHA_OK;
}

static mha_status make_prompt(decoding *c)
{
    const mha_transcription_desc *d = c->t.desc;
    const mha_speech_settings *s = &c->t.settings;
    const int32_t silent = s->first_timestamp - 1, *starts;
    c->language = -1;
    for (int64_t i = 0; i < d->prompt_count; i++) {
        if (d->prompt[i] < 0 || d->prompt[i] >= c->t.net.vocab_size)
            return mha_fail(MHA_ERR_ARGUMENT,
                            "prompt[%" PRId64 "] is %" PRId32 ", expected 0 to %" PRId64, i,
                            d->prompt[i], c->t.net.vocab_size - 1);
        MHA_TRY(add_token(c, d->prompt[i]));
    }
    if (d->prompt_count == 0) {
        if (mha_model_start_tokens(c->t.model, &starts) == 0)
            return mha_fail(MHA_ERR_UNSUPPORTED, "the model names no decoder_start_token_id, with "
                                                 "which the decoder begins; give a prompt");
        MHA_TRY(add_token(c, starts[0]));
        for (int64_t i = 0; i < s->prompt_count; i++) {
            if (s->prompt[i] < 0 && s->language_count == 0) continue;
            if (s->prompt[i] < 0) c->language = c->prompt_count;
            MHA_TRY(add_token(c, s->prompt[i]));
        }
    }
    const bool last = s->first_timestamp >= 0 && c->tokens[c->prompt_count - 1] == silent;
    if (c->t.timestamps && last) c->prompt_count--;
    if (c->t.timestamps || last || d->prompt_count > 0 || s->first_timestamp < 0) return MHA_OK;
    return add_token(c, silent);
}

/* ---- a window -------------------------------------------------------------------------------- */

static mha_status step(decoding *c, const int32_t *tokens, int64_t count, bool last)
{
    const mha_tensor ids =
        mha_tensor_contiguous((void *)(uintptr_t)tokens, MHA_I32, 2, /* only read */
                              (const int64_t[]){1, count});
    const mha_tensor logits =
        mha_tensor_contiguous(c->logits, MHA_F32, 3, (const int64_t[]){1, 1, c->t.net.vocab_size});
    return mha_decoder_step(c->t.context, c->decoder, &ids, last ? &logits : NULL);
}

/* Encode the window at a frame: features after the audio are 0, as in openai/whisper. */
static mha_status encode(decoding *c, const mhai_window *w)
{
    const mha_audio_input *input = &c->t.input;
    const int64_t wide = input->frames;
    for (int64_t m = 0; m < input->bins; m++)
        for (int64_t f = 0; f < wide; f++) {
            const bool inside = w->seek + f < c->frames;
            c->window[m * wide + f] = inside ? c->mel[m * c->frames + w->seek + f] : 0;
        }
    const mha_tensor features =
        mha_tensor_contiguous(c->window, MHA_F32, 2, (int64_t[]){input->bins, wide});
    MHA_TRY(mha_model_encode_audio(c->t.context, mha_model_encoder(c->t.model), &features,
                                   &c->t.memory, NULL));
    MHA_TRY(mha_decoder_truncate(c->decoder, 0));
    return mha_decoder_set_memory(c->t.context, c->decoder, &c->t.memory, NULL);
}

/* The most likely language after the start token. */
static mha_status find_language(decoding *c)
{
    const mha_speech_settings *s = &c->t.settings;
    MHA_TRY(step(c, c->tokens, c->language, true));
    int32_t best = s->languages[0];
    for (int64_t i = 1; i < s->language_count; i++)
        if (c->logits[s->languages[i]] > c->logits[best]) best = s->languages[i];
    c->tokens[c->language] = best;
    c->language = -1;
    return mha_decoder_truncate(c->decoder, 0);
}

/* The end token that follows all text tokens. */
static int64_t end_of_text(const decoding *c)
{
    const int32_t *ends;
    int64_t last = 0;
    for (int64_t i = mha_model_end_tokens(c->t.model, &ends); i-- > 0;)
        if (ends[i] > last && ends[i] < c->t.settings.first_timestamp) last = ends[i];
    return last;
}

static void forbid(decoding *c, int64_t from, int64_t to)
{
    for (int64_t i = from < 0 ? 0 : from; i < to; i++) c->logits[i] = -FLT_MAX;
}

/* Whether all timestamps together are more likely than any other token. */
static bool is_timestamp_likely(const decoding *c)
{
    const int64_t first = c->t.settings.first_timestamp;
    float text = -FLT_MAX, most = -FLT_MAX;
    double sum = 0;
    for (int64_t i = 0; i < c->t.net.vocab_size; i++) {
        float *highest = i < first ? &text : &most;
        if (c->logits[i] > *highest) *highest = c->logits[i];
    }
    for (int64_t i = first; i < c->t.net.vocab_size; i++)
        sum += mha_exp((double)c->logits[i] - (double)most);
    return most > -FLT_MAX && (double)most + mha_log(sum) > (double)text;
}

/* The rules of timestamps, after the new tokens [count]. */
static void apply_timestamps(decoding *c, const int32_t *tokens, int64_t count)
{
    const mha_speech_settings *s = &c->t.settings;
    const int64_t first = s->first_timestamp, all = c->t.net.vocab_size;
    const bool last = count > 0 && tokens[count - 1] >= first;
    const bool before = count < 2 || tokens[count - 2] >= first;
    int64_t least = first;
    forbid(c, first - 1, first);
    if (last && before)
        forbid(c, first, all);
    else if (last)
        forbid(c, 0, end_of_text(c));
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] >= first) least = tokens[i] + (last && !before ? 0 : 1);
    forbid(c, first, least);
    if (count == 0) {
        forbid(c, 0, first);
        if (s->latest_start >= 0 && s->latest_start < all - first)
            forbid(c, first + s->latest_start + 1, all);
    }
    if (is_timestamp_likely(c)) forbid(c, 0, first);
}

static mha_status choose(decoding *c, const mhai_window *w, int32_t *token)
{
    const int64_t all = c->t.net.vocab_size, known = mha_token_count(c->t.model);
    const int64_t first = c->t.settings.first_timestamp;
    const int32_t *never;
    for (int k = 0; k <= (w->count == 0); k++)
        for (int64_t i = mha_model_suppressed_tokens(c->t.model, k, &never); i-- > 0;)
            c->logits[never[i]] = -FLT_MAX;
    if (known > 0) forbid(c, known, first >= known ? first : all);
    if (c->t.timestamps) apply_timestamps(c, w->tokens + w->prompt_count, w->count);
    return mha_sample_token(c->t.context, &c->sampling, (uint64_t)c->drawn++, c->logits, all,
                            token);
}

static bool is_end(const mha_model *model, int32_t token)
{
    const int32_t *ends;
    for (int64_t i = mha_model_end_tokens(model, &ends); i-- > 0;)
        if (ends[i] == token) return true;
    return false;
}

static mha_status decode(decoding *c, mhai_window *w)
{
    int32_t token;
    MHA_TRY(encode(c, w));
    if (c->language >= 0) MHA_TRY(find_language(c));
    if (c->prompt_count > 1) MHA_TRY(step(c, c->tokens, c->prompt_count - 1, false));
    MHA_TRY(step(c, c->tokens + c->prompt_count - 1, 1, true));
    while (w->count < c->most) {
        MHA_TRY(choose(c, w, &token));
        w->ended = is_end(c->t.model, token);
        if (w->ended) return MHA_OK;
        w->tokens[w->prompt_count + w->count++] = token;
        if (w->count < c->most) MHA_TRY(step(c, &token, 1, true));
    }
    c->t.made->full = true;
    return MHA_OK;
}

/* ---- all windows ----------------------------------------------------------------------------- */

/* Keep the prompt, in which the language is known after the first window. */
static mha_status keep_prompt(decoding *c)
{
    int32_t *prompt;
    MHA_TRY(MHA_ROOM_ALLOC(c->t.room, c->prompt_count, &prompt));
    memcpy(prompt, c->tokens, (size_t)c->prompt_count * sizeof *prompt);
    c->t.made->prompt = prompt;
    c->t.made->prompt_count = c->prompt_count;
    return MHA_OK;
}

static mha_status run(decoding *c)
{
    const int64_t wide = c->t.input.frames;
    for (int64_t seek = 0, next; seek < c->frames; seek = next) {
        mhai_window w = {.seek = seek,
                         .tokens = c->tokens,
                         .prompt_count = c->prompt_count,
                         .frames = c->frames - seek < wide ? c->frames - seek : wide};
        const int64_t spoken = (c->t.desc->count + MHA_AUDIO_HOP - 1) / MHA_AUDIO_HOP - seek;
        w.rows = (spoken < wide ? spoken : wide) / MHAI_FRAMES_PER_ROW;
        MHA_TRY(decode(c, &w));
        if (!c->t.made->prompt) MHA_TRY(keep_prompt(c));
        if (c->t.desc->flags & MHA_TRANSCRIBE_WORDS) MHA_TRY(mhai_transcription_times(&c->t, &w));
        MHA_TRY(mhai_transcription_add(&c->t, &w, &next));
        const int64_t done = next * MHA_AUDIO_HOP, all = c->t.desc->count;
        if (c->t.desc->progress)
            MHA_TRY(c->t.desc->progress(c->t.desc->progress_user, c->t.made,
                                        done < all && next < c->frames ? done : all));
    }
    return MHA_OK;
}

static mha_status take_memory(decoding *c, mha_room *room)
{
    const mha_audio_input *input = &c->t.input;
    const int64_t S = input->rows, E = c->t.net.memory_dim;
    float *rows;
    MHA_TRY(MHA_ROOM_ALLOC(room, c->t.net.max_length, &c->tokens));
    MHA_TRY(MHA_ROOM_ALLOC(room, input->bins * input->frames, &c->window));
    MHA_TRY(MHA_ROOM_ALLOC(room, c->t.net.vocab_size, &c->logits));
    MHA_TRY(MHA_ROOM_ALLOC(room, S * E, &rows));
    c->t.memory = mha_tensor_contiguous(rows, MHA_F32, 3, (const int64_t[]){1, S, E});
    MHA_TRY(MHA_ROOM_ALLOC(room, input->bins * c->frames, &c->mel));
    const mha_tensor mel =
        mha_tensor_contiguous(c->mel, MHA_F32, 2, (const int64_t[]){input->bins, c->frames});
    return mha_log_mel(c->t.context, c->t.desc->samples, c->t.desc->count, &mel);
}

static void destroy_decoder(void *decoder)
{
    mha_decoder_destroy(decoder);
}

static void destroy_writer(void *writer)
{
    mha_text_writer_destroy(writer);
}

static mha_status make_decoder(decoding *c, mha_room *room)
{
    const mha_transcription_desc *d = c->t.desc;
    mha_decoder_desc cache = {.struct_size = sizeof cache};
    const int64_t left = c->t.net.max_length - c->prompt_count;
    if (d->cache) cache = *d->cache;
    if (left < 1)
        return mha_fail(MHA_ERR_SIZE,
                        "the prompt has %" PRId64 " tokens, which leave no position "
                        "of %" PRId64,
                        c->prompt_count, c->t.net.max_length);
    c->most = d->max_tokens > 0 && d->max_tokens < left ? d->max_tokens : left;
    cache.capacity = c->prompt_count + c->most;
    cache.max_step = c->prompt_count;
    cache.memory_capacity = c->t.input.rows;
    MHA_TRY(
        mha_decoder_create(c->t.context, mha_model_transformer(c->t.model), &cache, &c->decoder));
    return mha_room_keep(room, c->decoder, destroy_decoder);
}

static mha_status begin(decoding *c, mha_room *room)
{
    const mha_transcription_desc *d = c->t.desc;
    const int64_t window = c->t.input.frames * MHA_AUDIO_HOP;
    c->t.timestamps = d->flags & MHA_TRANSCRIBE_TIMESTAMPS || d->count > window;
    if (c->t.timestamps && c->t.settings.first_timestamp < 0)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "%s needs timestamps, and generation_config.json has no "
                        "no_timestamps_token_id; %s",
                        d->count > window ? "audio longer than a window" : "this transcript",
                        d->count > window ? "give shorter audio" : "transcribe without them");
    /* Without timestamps, silence follows the audio, as in transformers. */
    c->frames = (d->count + MHA_AUDIO_HOP - 1) / MHA_AUDIO_HOP;
    if (c->frames < 2) c->frames = 2; /* the least that mha_log_mel() takes */
    if (!c->t.timestamps) c->frames = c->t.input.frames;
    c->sampling = (mha_sampling){.struct_size = sizeof c->sampling};
    if (d->sampling) c->sampling = *d->sampling;
    MHA_TRY(take_memory(c, room));
    MHA_TRY(make_prompt(c));
    MHA_TRY(make_decoder(c, room));
    if (mha_token_count(c->t.model) == 0) return MHA_OK;
    MHA_TRY(mha_text_writer_create(c->t.model, NULL, 0, &c->t.writer));
    return mha_room_keep(room, c->t.writer, destroy_writer);
}

static mha_status check(const mhai_transcription *t, const mha_transcription_desc *d)
{
    const uint32_t known = MHA_TRANSCRIBE_WORDS | MHA_TRANSCRIBE_TIMESTAMPS;
    if (d->flags & ~known)
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_transcribe: flags has unknown bits");
    if (d->count < 0 || d->prompt_count < 0 || d->head_count < 0 || d->max_tokens < 0)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_transcribe: a negative count");
    if (d->count == 0) return mha_fail(MHA_ERR_ARGUMENT, "samples: there are none to transcribe");
    if (d->cache && (d->cache->batch || d->cache->capacity || d->cache->max_step))
        return mha_fail(MHA_ERR_ARGUMENT, "mha_transcribe: batch, capacity or max_step of cache");
    MHA_NEED_AS("mha_transcribe", "samples, prompt, heads", d->samples,
                d->prompt || d->prompt_count == 0, d->heads || d->head_count == 0);
    for (int64_t i = 0; i < 2 * d->head_count; i++) {
        const int64_t below = i % 2 ? t->net.num_heads : t->net.num_layers;
        if (d->heads[i] < 0 || d->heads[i] >= below)
            return mha_fail(MHA_ERR_ARGUMENT,
                            "heads[%" PRId64 "]: %s %" PRId32 ", expected 0 to %" PRId64, i / 2,
                            i % 2 ? "head" : "layer", d->heads[i], below - 1);
    }
    if (d->flags & MHA_TRANSCRIBE_WORDS && mha_token_count(t->model) == 0)
        return mha_fail(MHA_ERR_UNSUPPORTED, "times of words need the model's tokenizer");
    return MHA_OK;
}

mha_status mha_transcribe(mha_context *context, mha_model *model,
                          const mha_transcription_desc *desc, mha_transcript *transcript)
{
    mha_transcription_desc d;
    mha_room room = {0};
    MHA_NEED("mha_transcribe", context, model, desc, transcript);
    MHA_TRY(mha_struct_check_size("mha_transcript", transcript->struct_size, sizeof *transcript));
    MHA_TRY(
        mha_struct_read("mha_transcription_desc", &d, sizeof d, sizeof d, desc, desc->struct_size));
    mha_transcript made = {.struct_size = transcript->struct_size, .text = ""};
    decoding c = {.t = {.context = context,
                        .model = model,
                        .desc = &d,
                        .settings = {.struct_size = sizeof c.t.settings},
                        .input = {.struct_size = sizeof c.t.input},
                        .made = &made,
                        .room = &made.memory}};
    MHA_TRY(mha_model_speech_settings(model, &c.t.settings));
    MHA_TRY(mha_model_audio_input(mha_model_encoder(model), &c.t.input));
    mha_transformer_describe(mha_model_transformer(model), &c.t.net);
    MHA_TRY(check(&c.t, &d));
    mha_status status = begin(&c, &room);
    if (status == MHA_OK) status = run(&c);
    mha_room_release(&room, 0);
    if (status == MHA_OK)
        *transcript = made;
    else
        mha_room_release(&made.memory, 0);
    return status;
}

void mha_transcript_free(mha_transcript *transcript)
{
    if (!transcript) return;
    mha_room_release(&transcript->memory, 0);
    *transcript = (mha_transcript){.struct_size = transcript->struct_size};
}
