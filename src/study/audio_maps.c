/* Maps of audio: self-attention of its encoder, cross-attention and self-attention of its decoder. */
#include "study/study.h"

#include <multihead/audio.h>
#include <multihead/component.h>
#include <multihead/maps.h>

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CELLS = 200, LABEL = 24, FRAMES_PER_ROW = 2 };

/* A run in progress. */
typedef struct audio_run {
    mha_context *context;
    mha_model *model, *encoder; /* equal for an encoder alone */
    const mha_audio_maps_desc *desc;
    mha_audio_input input;
    mha_transformer_desc net, sound; /* of the maps' transformer, and of the encoder */
    mha_maps *maps;
    mha_room room;     /* until the run ends */
    const float *mel;  /* [M,F] */
    mha_tensor memory; /* [1,S,E] */
    int64_t cell;      /* rows of a cell */
    int64_t cells;     /* of the audio, and ... */
    bool silence;      /* ... one after it */
} audio_run;

/* The rows [from,to) of a cell of time. */
static void span(const audio_run *r, int64_t cell, int64_t *from, int64_t *to)
{
    const bool last = cell == r->cells;
    *from = cell * r->cell;
    *to = last || *from + r->cell > r->input.rows ? r->input.rows : *from + r->cell;
}

/* ---- labels ---------------------------------------------------------------------------------- */

static void keep_free(void *memory)
{
    free(memory);
}

static mha_status make_tokens(audio_run *r, int64_t count, size_t bytes, mha_tokens *tokens,
                              char **text)
{
    MHA_TRY(mhai_tokens_make(count, bytes, tokens, text));
    return mha_room_keep(&r->maps->memory, tokens->memory, keep_free);
}

static mha_status make_times(audio_run *r, mha_tokens *tokens)
{
    const int64_t count = r->cells + r->silence;
    char *text;
    MHA_TRY(make_tokens(r, count, (size_t)count * LABEL, tokens, &text));
    for (int64_t i = 0; i < count; i++, text += LABEL) {
        const bool silence = i == r->cells;
        if (silence)
            mha_format(text, LABEL, "silence");
        else
            mha_format(text, LABEL, "%.2f", (double)(i * r->cell) / 50);
        tokens->labels[i] = text;
        tokens->special[i] = silence;
        tokens->sequence[i] = silence ? -1 : 0;
        tokens->begin[i] = tokens->end[i] = -1;
    }
    return MHA_OK;
}

static mha_status make_words(audio_run *r, mha_tokens *tokens)
{
    const mha_audio_maps_desc *d = r->desc;
    const bool known = mha_token_count(r->model) > 0;
    size_t bytes = 0;
    char *text;
    for (int64_t i = 0; i < d->id_count; i++)
        bytes += LABEL + mha_token_label(r->model, d->ids[i], NULL, 0);
    MHA_TRY(make_tokens(r, d->id_count, bytes, tokens, &text));
    for (int64_t i = 0; i < d->id_count; i++) {
        const size_t size = LABEL + mha_token_label(r->model, d->ids[i], NULL, 0);
        mha_token_label(r->model, d->ids[i], text, size);
        if (!known || !strcmp(text, "?")) mha_format(text, size, "%" PRId32, d->ids[i]);
        tokens->labels[i] = text;
        tokens->ids[i] = d->ids[i];
        tokens->special[i] = known && mha_token_is_special(r->model, d->ids[i]);
        tokens->sequence[i] = tokens->special[i] ? -1 : 0;
        tokens->begin[i] = tokens->end[i] = -1;
        text += size;
    }
    return MHA_OK;
}

/* ---- cells of time --------------------------------------------------------------------------- */

/* Sum the columns of one row into cells. */
static void add_row(const audio_run *r, const float *row, bool times, double share, float *to)
{
    for (int64_t c = 0; c < r->maps->cols.count; c++) {
        int64_t from = c, end = c + 1;
        double sum = 0;
        if (times) span(r, c, &from, &end);
        for (int64_t s = from; s < end; s++) sum += (double)row[s];
        to[c] = (float)((double)to[c] + sum * share);
    }
}

/* Copy the maps of all heads from [L,1,H,T,S]; rows and columns that are times become cells. */
static mha_status take_maps(audio_run *r, const mha_tensor *all, bool row_times, bool col_times)
{
    mha_maps *m = r->maps;
    const int64_t H = m->heads, T = all->shape[3], S = all->shape[4];
    const int64_t size = m->rows.count * m->cols.count;
    for (int64_t l = 0; l < m->layers; l++) {
        if (mha_maps_count(m, l) == 0) continue;
        MHA_TRY(mha_room_alloc(&m->memory, H, (size_t)size * sizeof(float), &m->layer[l]));
        for (int64_t i = 0; i < H * m->rows.count; i++) {
            int64_t from = i % m->rows.count, end = from + 1;
            if (row_times) span(r, i % m->rows.count, &from, &end);
            for (int64_t t = from; t < end; t++)
                add_row(r, (const float *)all->data + ((l * H + i / m->rows.count) * T + t) * S,
                        col_times, 1.0 / (double)(end - from), m->layer[l] + i * m->cols.count);
        }
    }
    return MHA_OK;
}

/* The log-mel features of each cell, between the least and the greatest of the audio. */
static mha_status take_track(audio_run *r)
{
    mha_maps *m = r->maps;
    const int64_t M = r->input.bins, F = r->input.frames, wide = r->cells + r->silence;
    double least = HUGE_VAL, greatest = -HUGE_VAL;
    double *means;
    uint8_t *track;
    MHA_TRY(MHA_ROOM_ALLOC(&r->room, M * wide, &means));
    MHA_TRY(MHA_ROOM_ALLOC(&m->memory, M * wide, &track));
    for (int64_t i = 0; i < M * r->cells; i++) {
        const int64_t bin = i / r->cells, c = i % r->cells;
        int64_t from, end;
        double sum = 0;
        span(r, c, &from, &end);
        for (int64_t f = from * FRAMES_PER_ROW; f < end * FRAMES_PER_ROW; f++)
            sum += (double)r->mel[bin * F + f];
        sum /= (double)((end - from) * FRAMES_PER_ROW);
        means[bin * wide + c] = sum;
        if (sum < least) least = sum;
        if (sum > greatest) greatest = sum;
    }
    for (int64_t i = 0; i < M * wide; i++) {
        const double x = (means[(M - 1 - i / wide) * wide + i % wide] - least) / (greatest - least);
        const bool silence = i % wide == r->cells;
        track[i] = greatest > least && !silence ? (uint8_t)(255 * x + 0.5) : 0;
    }
    m->track = track;
    m->track_rows = M;
    return MHA_OK;
}

/* ---- the run --------------------------------------------------------------------------------- */

/* Allocate [L,1,H,T,S] for the maps of a transformer. */
static mha_status allocate(audio_run *r, int64_t T, int64_t S, mha_tensor *all)
{
    const int64_t L = r->net.num_layers, H = r->net.num_heads;
    void *data;
    if (T > 0 && S > 0 && L * H > INT64_MAX / 8 / T / S) return MHA_NO_MEMORY("maps");
    MHA_TRY(mha_room_alloc(&r->room, L * H, (size_t)(T * S) * sizeof(float), &data));
    *all = mha_tensor_contiguous(data, MHA_F32, 5, (const int64_t[]){L, 1, H, T, S});
    return MHA_OK;
}

/* Encode the samples; all NULL: without maps. */
static mha_status encode(audio_run *r, const mha_tensor *all)
{
    const int64_t E = r->sound.embed_dim, S = r->input.rows;
    float *mel, *rows;
    MHA_TRY(MHA_ROOM_ALLOC(&r->room, r->input.bins * r->input.frames, &mel));
    MHA_TRY(MHA_ROOM_ALLOC(&r->room, S * E, &rows));
    const mha_tensor features =
        mha_tensor_contiguous(mel, MHA_F32, 2, (const int64_t[]){r->input.bins, r->input.frames});
    r->memory = mha_tensor_contiguous(rows, MHA_F32, 3, (const int64_t[]){1, S, E});
    r->mel = mel;
    MHA_TRY(mha_log_mel(r->context, r->desc->samples, r->desc->count, &features));
    return mha_model_encode_audio(r->context, r->encoder, &features, &r->memory, all);
}

static mha_status run_encoder(audio_run *r)
{
    mha_tensor all;
    MHA_TRY(make_times(r, &r->maps->rows));
    r->maps->cols = r->maps->rows;
    r->maps->flags = MHA_MAPS_SAME;
    MHA_TRY(allocate(r, r->input.rows, r->input.rows, &all));
    MHA_TRY(encode(r, &all));
    MHA_TRY(take_maps(r, &all, true, true));
    return take_track(r);
}

static mha_status run_decoder(audio_run *r)
{
    const bool self = r->desc->flags & MHA_MAPS_SELF;
    const int64_t T = r->desc->id_count;
    mha_tensor all;
    MHA_TRY(make_words(r, &r->maps->rows));
    if (self)
        r->maps->cols = r->maps->rows;
    else
        MHA_TRY(make_times(r, &r->maps->cols));
    r->maps->flags = self ? MHA_MAPS_SAME | MHA_MAPS_CAUSAL | MHA_MAPS_DECODER : MHA_MAPS_CROSS;
    MHA_TRY(allocate(r, T, self ? T : r->input.rows, &all));
    MHA_TRY(encode(r, NULL));
    const mha_tensor ids =
        mha_tensor_contiguous((void *)(uintptr_t)r->desc->ids, MHA_I32, 2, /* only read */
                              (const int64_t[]){1, T});
    const mha_transformer_input input = {
        .struct_size = sizeof input, .tokens = &ids, .memory = &r->memory};
    MHA_TRY(mha_transformer_forward(r->context, mha_model_transformer(r->model), &input, NULL, NULL,
                                    self ? &all : NULL, self ? NULL : &all));
    MHA_TRY(take_maps(r, &all, false, !self));
    return self ? MHA_OK : take_track(r);
}

static mha_status begin(audio_run *r)
{
    const mha_audio_maps_desc *d = r->desc;
    mha_maps *m = r->maps;
    mha_model_info info = {.struct_size = sizeof info};
    const int64_t rows = (d->count + 2 * MHA_AUDIO_HOP - 1) / (2 * MHA_AUDIO_HOP);
    const int64_t heard = rows < 1 ? 1 : rows > r->input.rows ? r->input.rows : rows;
    uint8_t *on;
    char *kind;
    MHA_TRY(mha_model_describe(r->model, &info));
    MHA_TRY(mha_room_text(&m->memory, info.architecture, strlen(info.architecture), &kind));
    m->kind = kind;
    m->layers = r->net.num_layers;
    m->heads = r->net.num_heads;
    r->cell = d->cell > 0 ? d->cell : (heard + MOST_CELLS - 1) / MOST_CELLS;
    if (r->cell > r->input.rows) r->cell = r->input.rows;
    r->cells = (heard + r->cell - 1) / r->cell;
    r->silence = r->cells * r->cell < r->input.rows;
    MHA_TRY(MHA_ROOM_ALLOC(&m->memory, m->layers, &m->layer));
    MHA_TRY(MHA_ROOM_ALLOC(&m->memory, m->layers * m->heads, &on));
    for (int64_t i = 0; i < m->layers * m->heads; i++) on[i] = !d->on || d->on[i];
    m->on = on;
    return MHA_OK;
}

static mha_status check(const audio_run *r, const mha_audio_maps_desc *d)
{
    if (d->flags & ~(uint32_t)MHA_MAPS_SELF)
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_maps_run_audio: flags has unknown bits");
    if (d->count < 0 || d->id_count < 0 || d->cell < 0 || (d->ids && d->id_count == 0))
        return mha_fail(MHA_ERR_ARGUMENT, "mha_maps_run_audio: a negative or missing count");
    MHA_NEED_AS("mha_maps_run_audio", "samples, ids", d->samples || d->count == 0,
                d->ids || !(d->flags & MHA_MAPS_SELF));
    if (d->ids && r->model == r->encoder)
        return mha_fail(MHA_ERR_UNSUPPORTED, "the encoder alone reads no text; omit it");
    for (int64_t i = 0; d->ids && i < d->id_count; i++)
        if (d->ids[i] < 0 || d->ids[i] >= r->net.vocab_size)
            return mha_fail(MHA_ERR_ARGUMENT,
                            "ids[%" PRId64 "] is %" PRId32 ", expected 0 to %" PRId64, i, d->ids[i],
                            r->net.vocab_size - 1);
    return MHA_OK;
}

mha_status mha_maps_run_audio(mha_context *context, mha_model *model,
                              const mha_audio_maps_desc *desc, mha_maps *maps)
{
    mha_audio_maps_desc d;
    MHA_NEED("mha_maps_run_audio", context, model, desc, maps);
    MHA_TRY(mha_struct_check_size("mha_maps", maps->struct_size, sizeof *maps));
    MHA_TRY(
        mha_struct_read("mha_audio_maps_desc", &d, sizeof d, sizeof d, desc, desc->struct_size));
    mha_model *encoder = mha_model_encoder(model);
    audio_run r = {.context = context,
                   .model = model,
                   .encoder = encoder ? encoder : model,
                   .desc = &d,
                   .input = {.struct_size = sizeof r.input},
                   .maps = maps};
    MHA_TRY(mha_model_audio_input(r.encoder, &r.input));
    mha_transformer_describe(mha_model_transformer(d.ids ? model : r.encoder), &r.net);
    mha_transformer_describe(mha_model_transformer(r.encoder), &r.sound);
    MHA_TRY(check(&r, &d));
    maps->memory = (mha_room){0};
    mha_status status = begin(&r);
    if (status == MHA_OK) status = d.ids ? run_decoder(&r) : run_encoder(&r);
    mha_room_release(&r.room, 0);
    if (status != MHA_OK) mha_maps_free(maps);
    return status;
}
