/* Predict the next token of a text. The decoder and its cache are kept for the next step. This file
 * also reports the size of the cache. */
#include "show/live.h"

#include <multihead/cache.h>
#include <multihead/component.h>
#include <multihead/sampling.h>

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the size of the cache ------------------------------------------------------------------- */

const char *const mhai_live_caches[] = {"f32", "f16", "bf16", "int8", NULL};
static const mha_dtype cache_types[] = {MHA_F32, MHA_F16, MHA_BF16, MHA_I8};

/* The heads of a layer, or its key/value heads, that have cached keys. */
int64_t mhai_live_heads_of(const mha_transformer_desc *d, int64_t layer, bool kv)
{
    if (d->layers && d->layers[layer].mixer) return 0;
    if (kv && d->layers && d->layers[layer].kv_back > 0) return 0; /* cached for another layer */
    return kv ? mha_transformer_kv_heads(d, layer) : mha_transformer_heads(d, layer);
}

/* The bytes of one position of one head: k, v and their scales. */
static mha_status position_bytes(mha_dtype type, int64_t head_dim, int64_t *bytes)
{
    enum { RUN = 16 }; /* positions that a cache allocates together */
    const mha_kv_cache_desc desc = {.struct_size = sizeof desc,
                                    .batch = 1,
                                    .kv_heads = 1,
                                    .capacity = RUN,
                                    .head_dim = head_dim,
                                    .type = type};
    mha_kv_cache_sizes sizes = {.struct_size = sizeof sizes};
    MHA_TRY(mha_kv_cache_count(&desc, &sizes));
    *bytes = sizes.page_bytes / RUN;
    return MHA_OK;
}

/* The bytes of one position of all heads. */
static mha_status all_bytes(const mha_transformer_desc *d, mha_dtype type, bool kv, int64_t *bytes)
{
    *bytes = 0;
    for (int64_t l = 0; l < d->num_layers; l++) {
        int64_t each;
        MHA_TRY(position_bytes(type, mha_transformer_head_dim(d, l), &each));
        *bytes += mhai_live_heads_of(d, l, kv) * each;
    }
    return MHA_OK;
}

static void put_heads(const mha_transformer_desc *d, const char *name, bool kv, mha_json *json)
{
    mha_json_array(json, name);
    for (int64_t l = 0; l < d->num_layers; l++)
        mha_json_integer(json, NULL, mhai_live_heads_of(d, l, kv));
    mha_json_end(json);
}

/* Whether heads differ in size. */
static bool mixes_sizes(const mha_transformer_desc *d)
{
    bool mixes = false;
    for (int64_t l = 0; l < d->num_layers; l++)
        mixes = mixes || mha_transformer_head_dim(d, l) != d->head_dim;
    return mixes;
}

/* Tokens of a call, tokens of the smallest cache, and copies of recurrent states in a large one. */
enum { STEP = 64, LEAST_ROOM = 256, COPIES = 8 };

static int64_t room_for(const mha_live *live, int64_t tokens)
{
    const int64_t most = live->options.max_tokens;
    int64_t room = LEAST_ROOM;
    while (room < tokens) room *= 2;
    return room < most ? room : most;
}

/* Tokens between copies of recurrent states: going back repeats fewer tokens. */
static int64_t interval_of(int64_t room)
{
    return room / COPIES < STEP ? STEP : room / COPIES;
}

/* The bytes of the recurrent states after these tokens, with the copies kept until then. */
static mha_status state_bytes(const mhai_live_asked *a, int64_t tokens, int64_t *bytes)
{
    const mhai_live_decoding *x = &a->live->decoding;
    const bool made = x->decoder && x->of == a->transformer && x->room >= tokens;
    const int64_t room = made ? x->room : room_for(a->live, tokens);
    const mha_decoder_desc desc = {
        .struct_size = sizeof desc, .capacity = tokens, .state_interval = interval_of(room)};
    mha_decoder_sizes sizes = {.struct_size = sizeof sizes};
    MHA_TRY(mha_decoder_count(a->transformer, &desc, &sizes));
    *bytes = sizes.state_bytes;
    return MHA_OK;
}

mha_status mhai_live_cache(mhai_live_asked *a, int64_t tokens, mha_json *json)
{
    const mha_transformer_desc *d = a->desc, *loaded = &a->live->desc;
    const mha_dtype type = cache_types[a->request.cache];
    int64_t each, states, all, kv, before;
    if (!mha_transformer_predicts(d)) {
        mha_json_null(json, "cache");
        return MHA_OK;
    }
    MHA_TRY(position_bytes(type, d->head_dim, &each));
    MHA_TRY(state_bytes(a, tokens, &states));
    MHA_TRY(all_bytes(d, type, false, &all));
    MHA_TRY(all_bytes(d, type, true, &kv));
    MHA_TRY(all_bytes(loaded, type, true, &before));
    mha_json_object(json, "cache");
    mha_json_text(json, "type", mhai_live_caches[a->request.cache]);
    mha_json_integer(json, "number_bytes", (int64_t)mha_dtype_size(type));
    if (mixes_sizes(d))
        mha_json_null(json, "head_dim");
    else
        mha_json_integer(json, "head_dim", d->head_dim);
    mha_json_integer(json, "head_bytes", each);
    put_heads(d, "heads", false, json);
    put_heads(d, "kv_heads", true, json);
    mha_json_integer(json, "tokens", tokens);
    mha_json_integer(json, "state_bytes", states);
    mha_json_integer(json, "bytes", states + tokens * kv);
    mha_json_integer(json, "bytes_loaded", states + tokens * before);
    mha_json_integer(json, "bytes_all_heads", states + tokens * all);
    mha_json_end(json);
    return MHA_OK;
}

/* ---- the decoder ----------------------------------------------------------------------------- */

void mhai_live_forget_decoder(mha_live *live)
{
    mha_decoder_destroy(live->decoding.decoder);
    free(live->decoding.ids);
    live->decoding = (mhai_live_decoding){0};
}

static mha_status make_decoder(mhai_live_asked *a)
{
    mha_live *live = a->live;
    mhai_live_decoding *x = &live->decoding;
    mhai_live_forget_decoder(live);
    x->of = a->transformer;
    x->type = a->request.cache;
    x->room = room_for(live, a->trial.count);
    const mha_decoder_desc desc = {.struct_size = sizeof desc,
                                   .capacity = x->room,
                                   .max_step = x->room < STEP ? x->room : STEP,
                                   .cache_type = cache_types[x->type],
                                   .state_interval = interval_of(x->room)};
    x->ids = calloc((size_t)x->room, sizeof *x->ids);
    if (!x->ids) return MHA_NO_MEMORY("a cache");
    return mha_decoder_create(live->context, a->transformer, &desc, &x->decoder);
}

/* Keep the tokens that the cache shares with the text, with recurrent states up to a copy of the
 * states, and discard the rest of the cache. The last token is not kept, because its logits are
 * requested. *kept is the number of tokens kept. */
static mha_status keep_common(mhai_live_asked *a, int64_t *kept)
{
    mhai_live_decoding *x = &a->live->decoding;
    const int64_t length = mha_decoder_length(x->decoder);
    int64_t n = 0;
    while (n < length && n < a->trial.count - 1 && x->ids[n] == a->trial.tokens[n]) n++;
    *kept = mha_decoder_restorable(x->decoder, 0, n);
    return *kept < length ? mha_decoder_truncate(x->decoder, *kept) : MHA_OK;
}

static mha_status step(mhai_live_asked *a, int64_t first, int64_t count, float *logits)
{
    mhai_live_decoding *x = &a->live->decoding;
    const int64_t V = a->desc->vocab_size;
    memcpy(x->ids + first, a->trial.tokens + first, (size_t)count * sizeof *x->ids);
    const mha_tensor ids = mha_tensor_contiguous(x->ids + first, MHA_I32, 2, (int64_t[]){1, count});
    const mha_tensor out = mha_tensor_contiguous(logits, MHA_F32, 3, (int64_t[]){1, count, V});
    return mha_decoder_step(a->live->context, x->decoder, &ids, logits ? &out : NULL);
}

/* Process all but the last token without logits. */
static mha_status decode(mhai_live_asked *a, float *logits, int64_t *kept)
{
    mhai_live_decoding *x = &a->live->decoding;
    const int64_t last = a->trial.count - 1;
    if (!x->decoder || x->of != a->transformer || x->type != a->request.cache || x->room <= last)
        MHA_TRY(make_decoder(a));
    MHA_TRY(keep_common(a, kept));
    for (int64_t t = *kept, n; t < last; t += n) {
        n = last - t < STEP ? last - t : STEP;
        MHA_TRY(step(a, t, n, NULL));
    }
    return step(a, last, 1, logits);
}

/* ---- a token --------------------------------------------------------------------------------- */

typedef struct generating {
    mha_text_writer *writer;
    int32_t *ids, *types; /* the tokens, and room for MOST_TOKENS more */
    float *logits;
    int32_t id;
    double p;
    int64_t kept, computed;
    bool cached, ended;
    char *text; /* the appended text */
    size_t bytes;
} generating;

enum { MOST_TOKENS = 4 }; /* bytes of a character in UTF-8 */

/* Decoding is impossible with gates, patches and noise, which apply to the whole text, and without
 * a causal mask. */
static bool can_decode(const mhai_live_asked *a)
{
    return mha_transformer_predicts(a->desc) && a->trial.off_count + a->trial.patched_count == 0 &&
           !(a->trial.noise > 0);
}

static mha_status compute_logits(mhai_live_asked *a, generating *g)
{
    int64_t kept = 0;
    g->cached = can_decode(a);
    if (g->cached) {
        const mha_status status = decode(a, g->logits, &kept);
        if (status != MHA_OK) mhai_live_forget_decoder(a->live);
        MHA_TRY(status);
    } else {
        MHA_TRY(mha_trials_logits(a->trials, &a->trial, g->logits));
    }
    if (g->computed == 0) g->kept = kept;
    g->computed += a->trial.count - kept;
    return MHA_OK;
}

static double chance(const float *logits, int64_t count, int32_t id)
{
    double sum = 0;
    for (int64_t v = 0; v < count; v++) sum += mha_exp((double)logits[v] - (double)logits[id]);
    return 1 / sum;
}

bool mhai_live_predicts(const mha_transformer_desc *d)
{
    mha_transformer_desc single = *d;
    single.flags &= ~(uint32_t)MHA_TRANSFORMER_CROSS;
    return mha_transformer_predicts(&single);
}

/* Tokens that a target never contains; `first` follows the start tokens. */
static void suppress(const mhai_live_asked *a, bool first, float *logits)
{
    const int32_t *never;
    for (int begins = 0; begins <= first; begins++)
        for (int64_t i = mha_model_suppressed_tokens(a->live->model, begins, &never); i-- > 0;)
            logits[never[i]] = -FLT_MAX;
}

static mha_status choose(mhai_live_asked *a, generating *g)
{
    const int64_t starts = mha_model_start_tokens(a->live->model, NULL);
    suppress(a, a->trial.count <= starts, g->logits);
    const mhai_live_request *r = &a->request;
    const int64_t tokens = mha_token_count(a->live->model), V = a->desc->vocab_size;
    const mha_sampling how = {.struct_size = sizeof how,
                              .temperature = !r->draws            ? 0
                                             : r->temperature > 0 ? r->temperature
                                                                  : 1,
                              .top_k = r->draws ? r->top_k : 0,
                              .seed = (uint64_t)r->seed};
    const int32_t *ends;
    const int64_t end_count = mha_model_end_tokens(a->live->model, &ends);
    MHA_TRY(mha_sample_token(a->live->context, &how, (uint64_t)a->trial.count, g->logits,
                             tokens > 0 ? tokens : V, &g->id));
    g->p = chance(g->logits, V, g->id);
    for (int64_t i = 0; i < end_count; i++) g->ended = g->ended || ends[i] == g->id;
    return MHA_OK;
}

static mha_status append(mhai_live_asked *a, const char *text, size_t bytes, generating *g)
{
    MHA_TRY(mha_room_grow(&a->room, (int64_t)(g->bytes + bytes + 1), 1, &g->text));
    memcpy(g->text + g->bytes, text, bytes);
    g->bytes += bytes;
    g->text[g->bytes] = 0;
    return MHA_OK;
}

/* Generate tokens until their text consists of complete characters. */
static mha_status generate_text(mhai_live_asked *a, generating *g)
{
    const char *text;
    size_t bytes;
    bool stopped;
    for (int64_t t = 0; t < a->trial.count; t++)
        MHA_TRY(mha_text_writer_add(g->writer, g->ids[t], &text, &bytes, &stopped));
    for (int i = 0; i < MOST_TOKENS && g->bytes == 0; i++) {
        if (a->trial.count >= a->live->options.max_tokens)
            return mha_fail(MHA_ERR_SIZE,
                            "the text has %" PRId64 " tokens, the maximum; shorten it",
                            a->trial.count);
        MHA_TRY(compute_logits(a, g));
        MHA_TRY(choose(a, g));
        if (g->ended || mha_token_is_special(a->live->model, g->id)) return MHA_OK;
        g->ids[a->trial.count++] = g->id;
        MHA_TRY(mha_text_writer_add(g->writer, g->id, &text, &bytes, &stopped));
        MHA_TRY(append(a, text, bytes, g));
    }
    if (g->bytes > 0) return MHA_OK;
    MHA_TRY(mha_text_writer_end(g->writer, &text, &bytes));
    return append(a, text, bytes, g);
}

static mha_status generate(mhai_live_asked *a, generating *g)
{
    const int64_t T = a->trial.count;
    if (!mhai_live_predicts(&a->live->desc))
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "this model has an encoder and does not predict the next token");
    MHA_TRY(MHA_ROOM_ALLOC(&a->room, T + MOST_TOKENS, &g->ids));
    MHA_TRY(MHA_ROOM_ALLOC(&a->room, T + MOST_TOKENS, &g->types));
    MHA_TRY(MHA_ROOM_ALLOC(&a->room, a->desc->vocab_size, &g->logits));
    MHA_TRY(append(a, "", 0, g));
    memcpy(g->ids, a->trial.tokens, (size_t)T * sizeof *g->ids);
    memcpy(g->types, a->trial.types, (size_t)T * sizeof *g->types);
    a->trial.tokens = g->ids;
    a->trial.types = g->types;
    MHA_TRY(mha_text_writer_create(a->live->model, NULL, 0, &g->writer));
    const mha_status status = generate_text(a, g);
    mha_text_writer_destroy(g->writer);
    return status;
}

mha_status mhai_live_generate(mhai_live_asked *a)
{
    const double start = mhai_live_seconds();
    mha_json json = {.sink = a->sink, .compact = true};
    generating g = {0};
    MHA_TRY(generate(a, &g));
    mha_json_object(&json, NULL);
    mha_json_integer(&json, "id", g.id);
    MHA_TRY(mhai_live_label(a, g.id, &json));
    mha_json_text(&json, "appended", g.text);
    mha_json_bool(&json, "ended", g.ended);
    mha_json_number(&json, "p", g.p);
    mha_json_integer(&json, "kept", g.kept);
    mha_json_integer(&json, "computed", g.computed);
    if (g.cached)
        MHA_TRY(mhai_live_cache(a, g.kept + g.computed, &json));
    else
        mha_json_null(&json, "cache");
    mha_json_number(&json, "seconds", mhai_live_seconds() - start);
    mha_json_end(&json);
    return mha_json_finish(&json);
}
