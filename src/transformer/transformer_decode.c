/* A transformer token by token: a forward call whose attention reads caches. All caches of
 * self-attention hold the same positions of the same sequences: a change is checked for all of
 * them before it is applied to the first. */
#include "transformer/transformer_parts.h"

#include "base/checked.h"
#include "base/context.h"
#include "base/need.h"
#include "base/tensor.h"
#include "cache/kv_cache.h"

#include <stddef.h>
#include <string.h>

struct mha_decoder {
    mha_allocator allocator;
    const mha_transformer *transformer;
    mha_decoder_desc desc; /* every default filled in */
    mha_activations *activations;
    mha_kv_cache **caches;    /* [2][L] of self- and cross-attention; NULL: the layer has none */
    int64_t *lengths;         /* [B] */
    bool has_memory;          /* the memory was set */
    mhai_attend_sinks *sinks; /* [L] with MHA_DECODER_STREAMING; otherwise NULL */
    float *sink_keys;         /* holds the sinks of all layers */
    float *rotations;         /* rotations of a step's rows, in every encoding */
    mhai_states states;
    int32_t *history; /* [B][capacity] tokens, if rotations depend on the length */
    int64_t *starts;  /* [B] likewise: the row of position 0 in encodings */
};

/* ---- description --------------------------------------------------------------------------- */

static mha_status check_kind(const mha_transformer *t, const mha_decoder_desc *own)
{
    if (own->window > 0 && mhai_states_layer(t) >= 0)
        return mha_fail(
            MHA_ERR_UNSUPPORTED,
            "mha_decoder_desc: window is %lld, but layer %lld %s, whose state holds all tokens; "
            "leave it 0",
            (long long)own->window, (long long)mhai_states_layer(t),
            mha_layer_difference(&t->desc.layers[mhai_states_layer(t)]));
    const bool cross = mhai_transformer_has(t, MHA_TRANSFORMER_CROSS);
    if (!mhai_transformer_has(t, MHA_TRANSFORMER_CAUSAL))
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_decoder_create: only causal transformers can be decoded step by step");
    if (cross == (own->memory_capacity > 0)) return MHA_OK;
    return mha_fail(
        MHA_ERR_ARGUMENT,
        cross ? "mha_decoder_desc: memory_capacity is %lld; this transformer has cross-attention, "
                "set it to the maximum number of rows of a sequence's memory"
              : "mha_decoder_desc: memory_capacity is %lld; this transformer has no "
                "cross-attention, leave it 0",
        (long long)own->memory_capacity);
}

static mha_status check_room(const mha_transformer *t, mha_decoder_desc *own)
{
    int64_t tokens;
    if (own->batch == 0) own->batch = 1;
    if (own->capacity == 0) own->capacity = t->desc.max_length;
    if (own->max_step == 0) own->max_step = own->capacity;
    if (own->state_copies == 0 && own->state_interval > 0)
        own->state_copies = own->capacity / own->state_interval;
    own->state_copies = mhai_min_i64(own->state_copies, own->capacity);
    const bool streams = own->flags & MHA_DECODER_STREAMING;
    const int64_t most = streams ? INT32_MAX : t->desc.max_length;
    if (own->capacity < 1 || own->capacity > most || own->max_step < 1 ||
        own->max_step > own->capacity)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_decoder_desc: capacity is %lld, expected 1..%lld%s; max_step is %lld, "
                        "expected 1..capacity",
                        (long long)own->capacity, (long long)most, streams ? "" : " (max_length)",
                        (long long)own->max_step);
    if (own->batch < 1 || !mhai_mul_i64(own->batch, own->max_step, &tokens) || tokens > INT32_MAX)
        return mha_fail(
            MHA_ERR_ARGUMENT,
            "mha_decoder_desc: batch is %lld, expected 1 or more, and at most %d tokens "
            "in a step of all",
            (long long)own->batch, INT32_MAX);
    return MHA_OK;
}

/* Sinks that move require rotations, the only position encoding that depends only on distances. */
static mha_status check_streaming(const mha_transformer *t, const mha_decoder_desc *own)
{
    if (own->window == 0 || own->window > t->desc.max_length - own->sink_keys)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_decoder_desc: MHA_DECODER_STREAMING needs a window; window %lld and "
                        "sink_keys %lld must be %lld (max_length) together, or less",
                        (long long)own->window, (long long)own->sink_keys,
                        (long long)t->desc.max_length);
    if (t->desc.positions == MHA_ENCODING_LEARNED || t->desc.positions == MHA_ENCODING_SINUSOIDAL)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_decoder_create: MHA_DECODER_STREAMING takes models with rotary "
                        "positions; this one adds positions to its tokens");
    if (t->pairs > 0)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_decoder_create: MHA_DECODER_STREAMING takes rotations that do not "
                        "depend on the length of a sequence (MHA_ROPE_SCALING_LONG)");
    for (int64_t i = 0; i < t->desc.num_layers; i++) {
        const mhai_attend *x = &t->layers[i].self.attend;
        if (mhai_transformer_lender(&t->desc, i) != i)
            return mha_fail(MHA_ERR_UNSUPPORTED,
                            "mha_decoder_create: MHA_DECODER_STREAMING takes models whose layers "
                            "have their own keys; layer %lld uses those of layer %lld",
                            (long long)i, (long long)mhai_transformer_lender(&t->desc, i));
        if (x->desc.alibi_slopes || x->desc.t5_table || x->desc.shaw_keys || x->desc.shaw_values)
            return mha_fail(MHA_ERR_UNSUPPORTED,
                            "mha_decoder_create: MHA_DECODER_STREAMING takes models with rotary "
                            "positions; layer %lld has others",
                            (long long)i);
    }
    return MHA_OK;
}

static mha_status check_desc(const mha_transformer *t, const mha_decoder_desc *desc,
                             mha_decoder_desc *own)
{
    MHA_TRY(mhai_struct_copy("mha_decoder_desc", own, sizeof *own,
                             offsetof(mha_decoder_desc, cache_type), desc));
    if (t->desc.feature_dim > 0)
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_decoder_create: this transformer needs features "
                                             "(mha_transformer_input.features); a decoder takes "
                                             "only tokens");
    MHA_TRY(mhai_check_flags("mha_decoder_desc", own->flags,
                             MHA_DECODER_WINDOWS | MHA_DECODER_STREAMING | MHA_DECODER_LATENT));
    MHA_TRY(
        mhai_check_reserved("mha_decoder_desc", own->reserved2 ? own->reserved2 : own->reserved3));
    MHA_TRY(mhai_check_range("mha_decoder_desc: page_size", own->page_size, 0, INT64_MAX));
    MHA_TRY(mhai_check_range("mha_decoder_desc: pages", own->pages, 0, INT64_MAX));
    MHA_TRY(mhai_check_range("mha_decoder_desc: window", own->window, 0, INT64_MAX));
    MHA_TRY(mhai_check_range("mha_decoder_desc: sink_keys", own->sink_keys, 0, INT64_MAX));
    MHA_TRY(
        mhai_check_range("mha_decoder_desc: state_interval", own->state_interval, 0, INT64_MAX));
    MHA_TRY(mhai_check_range("mha_decoder_desc: state_copies", own->state_copies, 0, INT64_MAX));
    MHA_TRY(
        mhai_check_range("mha_decoder_desc: memory_capacity", own->memory_capacity, 0, INT64_MAX));
    if (own->sink_keys > 0 && own->window == 0)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_decoder_desc: sink_keys is %lld, but there is no window to be exempt "
                        "from; set window",
                        (long long)own->sink_keys);
    if (own->flags & MHA_DECODER_LATENT && own->window > 0)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_decoder_desc: window is %lld; leave it 0 with MHA_DECODER_LATENT",
                        (long long)own->window);
    MHA_TRY(check_kind(t, own));
    if (own->flags & MHA_DECODER_STREAMING) MHA_TRY(check_streaming(t, own));
    return check_room(t, own);
}

/* Describe the cache of a layer; false: it has none. */
static bool describe_cache(const mha_transformer *t, const mha_decoder_desc *d, int64_t layer,
                           bool cross, mha_kv_cache_desc *cache)
{
    mha_attention_desc sees = t->layers[layer].self.attend.desc;
    if (cross && !mhai_transformer_has(t, MHA_TRANSFORMER_CROSS)) return false;
    const mhai_mix mix = mhai_transformer_mix(&t->desc, layer);
    if (!cross && (mix.mixer || mix.borrows)) return false;
    *cache = (mha_kv_cache_desc){.struct_size = sizeof *cache,
                                 .batch = d->batch,
                                 .kv_heads = mhai_transformer_heads_of(&t->desc, layer, cross).kv,
                                 .capacity = cross ? d->memory_capacity : d->capacity,
                                 .head_dim = cross ? t->desc.head_dim : mix.D,
                                 .value_head_dim = cross ? 0 : mix.Dv,
                                 .type = d->cache_type,
                                 .key_scales = d->key_scales};
    if (cross) return true;
    const mha_layer_desc *latent =
        d->flags & MHA_DECODER_LATENT ? mhai_transformer_latent(&t->desc, layer) : NULL;
    if (latent) {
        cache->kv_heads = cache->head_dim = 1; /* the key is unused */
        cache->value_head_dim = latent->latent_dim + latent->shared_dim;
        cache->key_scales = MHA_KV_SCALES_POSITION;
        sees.flags &= ~(uint32_t)MHA_ATTENTION_WINDOW;
    }
    cache->page_size = d->page_size;
    cache->pages = d->pages;
    mhai_transformer_narrow(d->window, d->sink_keys, &sees);
    if (d->flags & MHA_DECODER_WINDOWS && sees.flags & MHA_ATTENTION_WINDOW) {
        cache->window = sees.left_keys + 1; /* 0: unlimited */
        cache->sink_keys = sees.sink_keys;
    } else if (d->window > 0) {
        cache->window = d->window;
        cache->sink_keys = mhai_max_i64(d->sink_keys, sees.sink_keys);
    }
    if (cache->window >= d->capacity || cache->sink_keys >= d->capacity)
        cache->window = 0; /* nothing will be discarded */
    if (cache->window > 0)
        cache->max_append = d->max_step;
    else
        cache->sink_keys = 0;
    return cache->kv_heads > 0;
}

/* Floats of the sinks of all layers before layer i; 0 if sinks do not move. */
static int64_t sink_floats(const mha_transformer *t, const mha_decoder_desc *d, int64_t i)
{
    int64_t numbers = 0;
    if (!(d->flags & MHA_DECODER_STREAMING)) return 0;
    while (i-- > 0)
        numbers +=
            mhai_transformer_heads_of(&t->desc, i, false).kv * mhai_transformer_mix(&t->desc, i).D;
    return numbers * d->batch * d->sink_keys;
}

/* ---- creation and destruction -------------------------------------------------------------- */

static mha_status allocate(const mha_decoder *d, int64_t count, size_t size, void *pointer)
{
    return mhai_take_for("decoder", &d->allocator, count, size, pointer);
}

static mha_status turn(const void *encoding, mha_context *context, int64_t begin, int64_t rows,
                       float *rotations)
{
    return mhai_transformer_turns(context, encoding, false, begin, rows, rotations);
}

/* Floats of the rotations (cosines, sines) of a step's rows, in every encoding. */
static int64_t rotation_floats(const mha_decoder *d)
{
    int64_t width = 0;
    for (const mhai_encoding *e = d->transformer->encodings; e; e = e->next) width += e->width;
    return d->sinks ? d->desc.batch * d->desc.max_step * width : 0;
}

/* The sinks of layer i, and the location of its rotations. */
static mhai_attend_sinks sinks_of(const mha_decoder *d, int64_t i)
{
    const mha_transformer *t = d->transformer;
    const mhai_place_attention *place = &t->layers[i].self;
    mhai_attend_sinks sinks = {.keys = d->sink_keys + sink_floats(t, &d->desc, i),
                               .count = d->desc.sink_keys,
                               .window = d->desc.window};
    float *rotations = d->rotations;
    if (!place->attend.rotates) return sinks;
    for (const mhai_encoding *e = t->encodings; e; e = e->next) {
        if (place->cosines.data == e->values) {
            sinks.turn = turn;
            sinks.encoding = e;
            sinks.width = e->width;
            sinks.cosines.data = rotations;
        }
        rotations += d->desc.batch * d->desc.max_step * e->width;
    }
    return sinks;
}

static mha_status make_sinks(mha_decoder *d)
{
    const int64_t layers = d->transformer->desc.num_layers;
    if (!(d->desc.flags & MHA_DECODER_STREAMING)) return MHA_OK;
    MHA_TRY(allocate(d, layers, sizeof *d->sinks, &d->sinks));
    MHA_TRY(allocate(d, sink_floats(d->transformer, &d->desc, layers), sizeof *d->sink_keys,
                     &d->sink_keys));
    MHA_TRY(allocate(d, rotation_floats(d), sizeof *d->rotations, &d->rotations));
    for (int64_t i = 0; i < layers; i++) d->sinks[i] = sinks_of(d, i);
    return MHA_OK;
}

static mha_status make_parts(mha_context *context, mha_decoder *d)
{
    const mha_transformer *t = d->transformer;
    const int64_t layers = t->desc.num_layers;
    mha_kv_cache_desc cache;
    MHA_TRY(mhai_transformer_encode(context, t, d->desc.capacity));
    MHA_TRY(allocate(d, d->desc.batch, sizeof *d->lengths, &d->lengths));
    MHA_TRY(allocate(d, 2 * layers, sizeof *d->caches, &d->caches));
    for (int64_t i = 0; i < 2 * layers; i++)
        if (mhai_spread_mine(t, i % layers) &&
            describe_cache(t, &d->desc, i % layers, i >= layers, &cache))
            MHA_TRY(mha_kv_cache_create(context, &cache, &d->caches[i]));
    if (t->pairs > 0 && d->desc.capacity > t->border) {
        MHA_TRY(allocate(d, d->desc.batch * d->desc.capacity, sizeof *d->history, &d->history));
        MHA_TRY(allocate(d, d->desc.batch, sizeof *d->starts, &d->starts));
    }
    MHA_TRY(make_sinks(d));
    MHA_TRY(mhai_states_make(context, t, &d->desc, &d->states));
    return mhai_activations_create(context, t, d->desc.batch * d->desc.max_step, 0, true,
                                   &d->activations);
}

static mha_status make(mha_context *context, const mha_transformer *t, const mha_decoder_desc *own,
                       mha_decoder **decoder)
{
    const mha_allocator *a = &context->allocator;
    mha_decoder *made;
    MHA_TRY(mhai_take_for("decoder", a, 1, sizeof *made, &made));
    *made = (mha_decoder){.allocator = *a, .transformer = t, .desc = *own};
    *decoder = made;
    return make_parts(context, made);
}

mha_status mha_decoder_create(mha_context *context, const mha_transformer *transformer,
                              const mha_decoder_desc *desc, mha_decoder **decoder)
{
    MHA_NEED("mha_decoder_create", context, transformer, decoder);
    mha_decoder_desc own;
    mha_decoder *made = NULL;
    mha_status status = check_desc(transformer, desc, &own);
    if (status == MHA_OK) status = make(context, transformer, &own, &made);
    status = mhai_spread_same(transformer, "transformer or decoder", &own, sizeof own, status);
    if (status == MHA_OK)
        *decoder = made;
    else
        mha_decoder_destroy(made);
    return status;
}

void mha_decoder_destroy(mha_decoder *d)
{
    if (!d) return;
    const mha_allocator a = d->allocator;
    mhai_states_free(&d->states);
    const int64_t caches = 2 * d->transformer->desc.num_layers;
    for (int64_t i = 0; d->caches && i < caches; i++) mha_kv_cache_destroy(d->caches[i]);
    mhai_give(&a, d->caches, caches, sizeof *d->caches);
    mhai_give(&a, d->rotations, rotation_floats(d), sizeof *d->rotations);
    mhai_give(&a, d->sink_keys, sink_floats(d->transformer, &d->desc, caches / 2),
              sizeof *d->sink_keys);
    mhai_give(&a, d->sinks, caches / 2, sizeof *d->sinks);
    mhai_give(&a, d->lengths, d->desc.batch, sizeof *d->lengths);
    mhai_give(&a, d->starts, d->desc.batch, sizeof *d->starts);
    mhai_give(&a, d->history, d->desc.batch * d->desc.capacity, sizeof *d->history);
    mha_activations_destroy(d->activations);
    mhai_give(&a, d, 1, sizeof *d);
}

const int64_t *mha_decoder_lengths(const mha_decoder *d)
{
    return d->lengths;
}

int64_t mha_decoder_length(const mha_decoder *d)
{
    int64_t longest = 0;
    for (int64_t b = 0; b < d->desc.batch; b++) longest = mhai_max_i64(longest, d->lengths[b]);
    return longest;
}

/* ---- sizes --------------------------------------------------------------------------------- */

mha_status mha_decoder_count(const mha_transformer *transformer, const mha_decoder_desc *desc,
                             mha_decoder_sizes *sizes)
{
    mha_decoder_sizes all = {.struct_size = sizeof all};
    mha_decoder_desc own;
    mha_kv_cache_desc cache;
    MHA_NEED("mha_decoder_count", transformer, sizes);
    if (sizes->struct_size != sizeof all)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_decoder_sizes: struct_size is %u, expected %zu",
                        (unsigned)sizes->struct_size, sizeof all);
    MHA_TRY(check_desc(transformer, desc, &own));
    const int64_t layers = transformer->desc.num_layers;
    for (int64_t i = 0; i < 2 * layers; i++) {
        mha_kv_cache_sizes one = {.struct_size = sizeof one};
        if (!describe_cache(transformer, &own, i % layers, i >= layers, &cache)) continue;
        MHA_TRY(mha_kv_cache_count(&cache, &one));
        if (!mhai_add_i64(all.total_bytes, one.total_bytes, &all.total_bytes))
            return mha_fail(MHA_ERR_SIZE, "decoder: its caches do not fit in the address space");
        all.table_bytes += one.table_bytes;
        all.scale_bytes += one.scale_bytes;
        if (i >= layers) all.memory_bytes += one.total_bytes;
    }
    all.state_bytes = mhai_states_bytes(transformer, &own);
    if (!mhai_add_i64(all.total_bytes, all.state_bytes, &all.total_bytes))
        return mha_fail(MHA_ERR_SIZE, "decoder: its states do not fit in the address space");
    all.total_bytes += sink_floats(transformer, &own, layers) * (int64_t)sizeof(float);
    *sizes = all;
    return MHA_OK;
}

size_t mha_decoder_cache_bytes(const mha_decoder *d)
{
    mha_decoder_sizes sizes = {.struct_size = sizeof sizes};
    return mha_decoder_count(d->transformer, &d->desc, &sizes) == MHA_OK ? (size_t)sizes.total_bytes
                                                                         : 0;
}

/* ---- lengths ------------------------------------------------------------------------------- */

static mha_status check_sequence(const char *function, const mha_decoder *d, int64_t b)
{
    if (b >= 0 && b < d->desc.batch) return MHA_OK;
    return mha_fail(MHA_ERR_ARGUMENT, "%s: there is no sequence %lld, expected 0..%lld", function,
                    (long long)b, (long long)(d->desc.batch - 1));
}

/* Check that every layer can truncate sequence b to this length. */
static mha_status check_length(const char *function, const mha_decoder *d, int64_t b,
                               int64_t length)
{
    if (length < 0 || length > d->lengths[b])
        return mha_fail(MHA_ERR_ARGUMENT, "%s: length is %lld, expected 0..%lld", function,
                        (long long)length, (long long)d->lengths[b]);
    for (int64_t i = 0; i < d->transformer->desc.num_layers; i++)
        if (d->caches[i]) MHA_TRY(mhai_kv_pages_check_truncate(d->caches[i], b, length));
    if (!d->states.now || length == 0 || length == d->lengths[b]) return MHA_OK;
    const mhai_delta_copy *copy = mhai_states_until(&d->states, b, length);
    if (copy && copy->length == length) return MHA_OK;
    const int64_t layer = mhai_states_layer(d->transformer);
    return mha_fail(MHA_ERR_UNSUPPORTED,
                    "%s: layer %lld %s, and the decoder keeps no copy of its state at %lld tokens; "
                    "truncate sequence %lld to %lld (mha_decoder_restorable()) and repeat the "
                    "other tokens, or set state_interval",
                    function, (long long)layer,
                    mha_layer_difference(&d->transformer->desc.layers[layer]), (long long)length,
                    (long long)b, (long long)(copy ? copy->length : 0));
}

/* Truncate to a length that every layer can restore. */
static mha_status cut(mha_decoder *d, int64_t b, int64_t length)
{
    for (int64_t i = 0; i < d->transformer->desc.num_layers; i++)
        if (d->caches[i] && mha_kv_cache_lengths(d->caches[i])[b] > length)
            MHA_TRY(mha_kv_cache_truncate(d->caches[i], b, length));
    MHA_TRY(mhai_states_restore(&d->states, b, b, length, length == d->lengths[b]));
    d->lengths[b] = length;
    return MHA_OK;
}

mha_status mha_decoder_truncate(mha_decoder *d, int64_t length)
{
    if (!d) return mha_fail(MHA_ERR_NULL, "mha_decoder_truncate: decoder is NULL");
    const int64_t longest = mha_decoder_length(d);
    MHA_TRY(mhai_check_range("mha_decoder_truncate: length", length, 0, longest));
    mha_status status = MHA_OK;
    for (int64_t b = 0; b < d->desc.batch && status == MHA_OK; b++)
        if (d->lengths[b] > length) status = check_length("mha_decoder_truncate", d, b, length);
    MHA_TRY(mhai_spread_agree(d->transformer, status));
    for (int64_t b = 0; b < d->desc.batch; b++)
        if (d->lengths[b] > length) MHA_TRY(cut(d, b, length));
    return MHA_OK;
}

mha_status mha_decoder_truncate_sequence(mha_decoder *d, int64_t b, int64_t length)
{
    static const char *const name = "mha_decoder_truncate_sequence";
    if (!d) return mha_fail(MHA_ERR_NULL, "%s: decoder is NULL", name);
    MHA_TRY(check_sequence(name, d, b));
    MHA_TRY(mhai_spread_agree(d->transformer, check_length(name, d, b, length)));
    return cut(d, b, length);
}

mha_status mha_decoder_fork(mha_decoder *d, int64_t from, int64_t to, int64_t length)
{
    static const char *const name = "mha_decoder_fork";
    if (!d) return mha_fail(MHA_ERR_NULL, "%s: decoder is NULL", name);
    MHA_TRY(check_sequence(name, d, from));
    MHA_TRY(check_sequence(name, d, to));
    if (from == to)
        return mha_fail(MHA_ERR_ARGUMENT, "%s: sequence %lld cannot be forked to itself", name,
                        (long long)to);
    if (d->sinks)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "%s: sinks that move with the window (MHA_DECODER_STREAMING) cannot be "
                        "shared; give each sequence its tokens",
                        name);
    MHA_TRY(mhai_spread_agree(d->transformer, check_length(name, d, from, length)));
    const int64_t layers = d->transformer->desc.num_layers;
    for (int64_t i = 0; i < 2 * layers; i++) {
        mha_kv_cache *cache = d->caches[i];
        if (!cache) continue;
        const int64_t rows = i < layers ? length : mha_kv_cache_lengths(cache)[from];
        MHA_TRY(mha_kv_cache_fork(cache, from, to, rows));
    }
    MHA_TRY(mhai_states_restore(&d->states, from, to, length, length == d->lengths[from]));
    d->lengths[to] = length;
    if (d->history) {
        memcpy(d->history + to * d->desc.capacity, d->history + from * d->desc.capacity,
               (size_t)length * sizeof *d->history);
        d->starts[to] = d->starts[from];
    }
    return MHA_OK;
}

mha_status mha_decoder_keep(mha_context *context, mha_decoder *d, int64_t b)
{
    MHA_NEED_AS("mha_decoder_keep", "context, decoder", context, d);
    MHA_TRY(check_sequence("mha_decoder_keep", d, b));
    if (!d->states.now) return MHA_OK;
    if (d->desc.state_copies == 0)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_decoder_keep: mha_decoder_desc.state_copies is 0; set it to the "
                        "number of copies to keep for a sequence");
    return mhai_spread_agree(d->transformer,
                             mhai_states_keep(context, &d->states, b, d->lengths[b]));
}

int64_t mha_decoder_restorable(const mha_decoder *d, int64_t b, int64_t length)
{
    if (!d || b < 0 || b >= d->desc.batch) return 0;
    int64_t before;
    length = mhai_max_i64(0, mhai_min_i64(length, d->lengths[b]));
    do {
        before = length;
        for (int64_t i = 0; i < d->transformer->desc.num_layers; i++)
            if (d->caches[i]) length = mhai_kv_pages_restorable(d->caches[i], b, length);
        if (!d->states.now || length == d->lengths[b]) continue;
        const mhai_delta_copy *copy = mhai_states_until(&d->states, b, length);
        length = copy ? copy->length : 0;
    } while (length < before);
    return length;
}

/* ---- memory -------------------------------------------------------------------------------- */

static mha_status check_memory(const mha_decoder *d, const mha_tensor *memory,
                               const int64_t *lengths)
{
    if (d->desc.memory_capacity == 0)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_decoder_set_memory: this transformer has no "
                                          "cross-attention");
    MHA_TRY(mhai_transformer_check_memory(d->transformer, d->desc.batch, memory, lengths));
    if (memory->shape[1] <= d->desc.memory_capacity) return MHA_OK;
    return mha_fail(MHA_ERR_SIZE,
                    "memory: %lld rows of a sequence are more than memory_capacity, %lld",
                    (long long)memory->shape[1], (long long)d->desc.memory_capacity);
}

/* Reserve scratch for one layer's keys and values and for the projections, so that nothing can fail
 * after the first layer has changed. */
static mha_status reserve_memory(mha_context *context, const mha_transformer *t, int64_t rows,
                                 float **kv)
{
    MHA_TRY(mha_scratch_alloc(
        context, rows, (size_t)(2 * t->desc.kv_heads * t->desc.head_dim) * sizeof(float), kv));
    return mhai_scratch_ensure(context, (int64_t)mhai_transformer_product_bytes(context, t, rows),
                               1);
}

static mha_status store_memory(mha_context *context, mha_decoder *d, const mha_tensor *memory,
                               const int64_t *lengths)
{
    const mha_transformer *t = d->transformer;
    mha_tensor k, v;
    float *rows = NULL;
    mha_status status = check_memory(d, memory, lengths);
    if (status == MHA_OK)
        status = reserve_memory(context, t, memory->shape[0] * memory->shape[1], &rows);
    MHA_TRY(mhai_spread_agree(t, status));
    d->has_memory = false;
    for (int64_t i = 0; i < t->desc.num_layers; i++) {
        mha_kv_cache *cache = d->caches[t->desc.num_layers + i];
        if (!cache) continue;
        MHA_TRY(mhai_transformer_project_memory(context, t, i, memory, rows, &k, &v));
        mha_kv_cache_reset(cache);
        MHA_TRY(mha_kv_cache_append(cache, &k, &v, lengths));
    }
    d->has_memory = true;
    return MHA_OK;
}

mha_status mha_decoder_set_memory(mha_context *context, mha_decoder *d, const mha_tensor *memory,
                                  const int64_t *memory_lengths)
{
    MHA_NEED_AS("mha_decoder_set_memory", "context, decoder", context, d);
    const mha_scratch_mark mark = mha_scratch_top(context);
    return mha_scratch_end(context, mark, store_memory(context, d, memory, memory_lengths));
}

/* ---- a step -------------------------------------------------------------------------------- */

static mha_status check_tokens(const mha_decoder *d, const mha_tensor *tokens)
{
    MHA_TRY(mhai_tensor_check("tokens", tokens, MHA_I32, 2, (const int64_t[]){d->desc.batch, -1}));
    const int64_t count = tokens->shape[1];
    if (count < 1 || count > d->desc.max_step)
        return mha_fail(count < 1 ? MHA_ERR_ARGUMENT : MHA_ERR_SIZE,
                        "tokens: a step of %lld, this decoder takes 1..%lld", (long long)count,
                        (long long)d->desc.max_step);
    if (!mhai_transformer_has(d->transformer, MHA_TRANSFORMER_CROSS) || d->has_memory)
        return MHA_OK;
    return mha_fail(MHA_ERR_ARGUMENT, "mha_decoder_step: this transformer attends to a memory; "
                                      "call mha_decoder_set_memory() first");
}

/* Check that every sequence has room for its rows in every layer. */
static mha_status check_rows(const mha_decoder *d, const mhai_kv_rows *rows)
{
    const int64_t capacity = d->desc.capacity;
    for (int64_t b = 0; b < d->desc.batch; b++) {
        int64_t count;
        MHA_TRY(mhai_kv_check_sequence(rows, b, &count));
        if (count > capacity - d->lengths[b])
            return mha_fail(MHA_ERR_SIZE,
                            "tokens: sequence %lld holds %lld, %lld more exceed the decoder's "
                            "capacity, %lld; mha_decoder_truncate() makes room",
                            (long long)b, (long long)d->lengths[b], (long long)count,
                            (long long)capacity);
    }
    for (int64_t i = 0; i < d->transformer->desc.num_layers; i++)
        if (d->caches[i]) MHA_TRY(mhai_kv_cache_check_rows(d->caches[i], rows));
    return MHA_OK;
}

/* Record the rows of each sequence and their positions, in the context's scratch. */
static mha_status place_rows(mha_context *context, const mha_decoder *d, const mhai_kv_rows *rows,
                             mhai_step *step)
{
    const int64_t B = d->desc.batch, n = rows->n;
    void *memory;
    MHA_TRY(mha_scratch_alloc(context, B * (n + 3), sizeof(int64_t), &memory));
    int64_t *firsts = memory, *counts = firsts + B, *offsets = counts + B, *places = offsets + B;
    for (int64_t b = 0; b < B; b++) {
        firsts[b] = mhai_kv_first(rows, b);
        counts[b] = mhai_kv_count(rows, b);
        offsets[b] = d->lengths[b] - firsts[b];
        for (int64_t t = 0; t < n; t++)
            places[b * n + t] =
                mhai_min_i64(mhai_max_i64(offsets[b] + t, 0), d->desc.capacity - 1) +
                (d->starts ? d->starts[b] : 0);
    }
    *step =
        (mhai_step){.caches = d->caches,
                    .memory = d->caches + d->transformer->desc.num_layers,
                    .firsts = firsts,
                    .counts = counts,
                    .offsets = offsets,
                    .places = mha_tensor_contiguous(places, MHA_I64, 2, (const int64_t[]){B, n}),
                    .window = d->desc.window,
                    .sink_keys = d->desc.sink_keys,
                    .sinks = d->sinks,
                    .divides = B == 1 && counts[0] == n && !d->sinks &&
                               d->desc.key_scales != MHA_KV_SCALES_CHANNEL,
                    .states = &d->states,
                    .latent = d->desc.flags & MHA_DECODER_LATENT};
    return MHA_OK;
}

/* Compute the rotations of a step's rows, once per encoding; padding has none. */
static mha_status compute_rotations(mha_context *context, mha_decoder *d, const mhai_step *step,
                                    int64_t n)
{
    float *rotations = d->rotations;
    for (const mhai_encoding *e = d->transformer->encodings; e; e = e->next) {
        for (int64_t b = 0; b < d->desc.batch; b++) {
            const int64_t first = mhai_min_i64(n, mhai_max_i64(0, -step->offsets[b]));
            float *rows = rotations + b * n * e->width;
            memset(rows, 0, (size_t)(first * e->width) * sizeof *rows);
            MHA_TRY(mhai_transformer_turns(context, e, false, step->offsets[b] + first, n - first,
                                           rows + first * e->width));
        }
        rotations += d->desc.batch * d->desc.max_step * e->width;
    }
    for (int64_t i = 0; i < d->transformer->desc.num_layers; i++) {
        mhai_attend_sinks *x = &d->sinks[i];
        x->cosines = mha_tensor_contiguous(x->cosines.data, MHA_F32, 3,
                                           (const int64_t[]){d->desc.batch, n, x->width});
        x->cosines.shape[2] = x->width / 2;
        x->sines = x->cosines;
        if (x->width > 0) x->sines.data = (float *)x->cosines.data + x->width / 2;
    }
    return MHA_OK;
}

static mha_status check_step(const mha_decoder *d, const mha_tensor *tokens,
                             const mhai_kv_rows *rows)
{
    MHA_TRY(check_tokens(d, tokens));
    return check_rows(d, rows);
}

static mha_status prepare_step(mha_context *context, mha_decoder *d, const mhai_kv_rows *rows,
                               mhai_step *step)
{
    MHA_TRY(place_rows(context, d, rows, step));
    for (int64_t b = 0; b < d->desc.batch; b++)
        MHA_TRY(mhai_states_prepare(context, &d->states, b, d->lengths[b], step->counts[b]));
    return d->sinks ? compute_rotations(context, d, step, rows->n) : MHA_OK;
}

/* Record the tokens of a step. */
static void remember(const mha_decoder *d, const mha_tensor *tokens, const mhai_step *step,
                     int64_t b)
{
    int32_t *to = d->history + b * d->desc.capacity + d->lengths[b];
    const int32_t *from = (const int32_t *)tokens->data + b * tokens->stride[0];
    for (int64_t i = 0; i < step->counts[b]; i++)
        to[i] = from[(step->firsts[b] + i) * tokens->stride[1]];
}

/* status: that of the checks. */
static mha_status take_rows(mha_context *context, mha_decoder *d, const mha_tensor *tokens,
                            const mhai_kv_rows *rows, const mha_tensor *output, mha_status status)
{
    mhai_step step;
    if (status == MHA_OK) status = prepare_step(context, d, rows, &step);
    status = mhai_transformer_step(context, d->transformer, d->activations, tokens, &step, output,
                                   status);
    for (int64_t b = 0; b < d->desc.batch; b++)
        if (status == MHA_OK) {
            if (d->history) remember(d, tokens, &step, b);
            d->lengths[b] += step.counts[b];
        } else {
            MHA_TRY(cut(d, b, mhai_states_ahead(&d->states, b, d->lengths[b]) ? 0 : d->lengths[b]));
        }
    return status;
}

/* Append the first lengths[b] recorded tokens to every sequence b again, in as few steps as fit. */
static mha_status recompute(mha_context *context, mha_decoder *d, const int64_t *lengths,
                            int64_t longest, int32_t *ids, int64_t *counts)
{
    const int64_t B = d->desc.batch, most = mhai_min_i64(d->desc.max_step, longest);
    mha_status status = MHA_OK;
    for (int64_t at = 0; at < longest && status == MHA_OK; at += most) {
        const int64_t n = mhai_min_i64(most, longest - at);
        for (int64_t b = 0; b < B; b++) {
            counts[b] = mhai_min_i64(n, mhai_max_i64(0, lengths[b] - at));
            memcpy(ids + b * n, d->history + b * d->desc.capacity + at,
                   (size_t)counts[b] * sizeof *ids);
        }
        const mha_tensor tokens = mha_tensor_contiguous(ids, MHA_I32, 2, (const int64_t[]){B, n});
        const mha_scratch_mark mark = mha_scratch_top(context);
        status = take_rows(context, d, &tokens, &(mhai_kv_rows){n, NULL, counts}, NULL, MHA_OK);
        mha_scratch_release(context, mark);
    }
    return status;
}

/* The row of position 0 in encodings, for sequence b after this step. */
static int64_t start_of(const mha_decoder *d, const mhai_kv_rows *rows, int64_t b)
{
    const int64_t count = mhai_kv_count(rows, b);
    return count == 0 ? d->starts[b]
                      : mhai_transformer_start(d->transformer, d->lengths[b] + count);
}

/* Compute the keys and values of the sequences whose rotation changes in this step again. */
static mha_status turn_over(mha_context *context, mha_decoder *d, const mhai_kv_rows *rows)
{
    const int64_t B = d->desc.batch;
    int64_t longest = 0, *lengths;
    int32_t *ids;
    for (int64_t b = 0; b < B; b++) {
        const int64_t start = start_of(d, rows, b);
        if (start != d->starts[b]) longest = mhai_max_i64(longest, d->lengths[b]);
        if (d->lengths[b] == 0) d->starts[b] = start;
    }
    if (longest == 0) return MHA_OK;
    mha_status status =
        mha_scratch_zeros(context, B * mhai_min_i64(d->desc.max_step, longest), sizeof *ids, &ids);
    if (status == MHA_OK) status = mha_scratch_zeros(context, 2 * B, sizeof *lengths, &lengths);
    MHA_TRY(mhai_spread_agree(d->transformer, status));
    for (int64_t b = 0; b < B; b++) {
        const int64_t start = start_of(d, rows, b);
        if (start == d->starts[b]) continue;
        lengths[b] = d->lengths[b];
        d->starts[b] = start;
        MHA_TRY(cut(d, b, 0));
    }
    status = recompute(context, d, lengths, longest, ids, lengths + B);
    for (int64_t b = 0; b < B && status != MHA_OK; b++)
        if (lengths[b] > 0) MHA_TRY(cut(d, b, 0));
    return status;
}

mha_status mha_decoder_step(mha_context *context, mha_decoder *d, const mha_tensor *tokens,
                            const mha_tensor *output)
{
    return mha_decoder_step_rows(context, d, tokens, NULL, NULL, output);
}

mha_status mha_decoder_step_rows(mha_context *context, mha_decoder *d, const mha_tensor *tokens,
                                 const int64_t *firsts, const int64_t *counts,
                                 const mha_tensor *output)
{
    MHA_NEED_AS("mha_decoder_step", "context, decoder", context, d);
    const mhai_kv_rows rows = {tokens ? tokens->shape[1] : 0, firsts, counts};
    const mha_scratch_mark mark = mha_scratch_top(context);
    mha_status status = check_step(d, tokens, &rows);
    if (d->history) {
        status = mhai_spread_agree(d->transformer, status);
        if (status == MHA_OK) status = turn_over(context, d, &rows);
    }
    if (!d->history || status == MHA_OK)
        status = take_rows(context, d, tokens, &rows, output, status);
    return mha_scratch_end(context, mark, status);
}
