/* A transformer token by token: a forward call whose attention reads caches. */
#include "transformer/transformer_parts.h"

#include "base/checked.h"
#include "base/context.h"
#include "base/struct_copy.h"
#include "base/tensor.h"

#include <string.h>

struct mha_decoder {
    mha_allocator allocator;
    const mha_transformer *transformer;
    mha_activations *activations;
    mha_kv_cache **caches; /* [L] */
    int64_t batch, capacity, max_step, length;
};

static mha_status make_parts(mha_context *context, mha_decoder *d, const mha_decoder_desc *own)
{
    const mha_transformer_desc *t = &d->transformer->desc;
    mha_kv_cache_desc desc = {.struct_size = sizeof desc,
                              .batch = d->batch,
                              .capacity = d->capacity,
                              .head_dim = t->head_dim,
                              .type = own->cache_type,
                              .page_size = own->page_size};
    const size_t bytes = (size_t)t->num_layers * sizeof *d->caches;
    MHA_TRY(mhai_transformer_encode(context, d->transformer, d->capacity));
    d->caches = d->allocator.alloc(d->allocator.user, bytes, _Alignof(mha_kv_cache *));
    if (!d->caches) return mha_fail(MHA_ERR_NOMEM, "decoder: cannot allocate %zu bytes", bytes);
    memset(d->caches, 0, bytes);
    for (int64_t i = 0; i < t->num_layers; i++) {
        desc.kv_heads = mhai_transformer_heads_of(t, i, false).kv;
        if (desc.kv_heads > 0) MHA_TRY(mha_kv_cache_create(context, &desc, &d->caches[i]));
    }
    return mhai_activations_create(context, d->transformer, d->batch * d->max_step, 0, true,
                                   &d->activations);
}

static mha_status check_kind(const mha_transformer *t)
{
    if (mhai_transformer_has(t, MHA_TRANSFORMER_CAUSAL) &&
        !mhai_transformer_has(t, MHA_TRANSFORMER_CROSS))
        return MHA_OK;
    return mha_fail(MHA_ERR_UNSUPPORTED,
                    "mha_decoder_create: only transformers that are causal and have no "
                    "cross-attention are decoded step by step");
}

static mha_status check_desc(const mha_transformer *t, const mha_decoder_desc *desc,
                             mha_decoder_desc *own)
{
    int64_t tokens;
    *own = (mha_decoder_desc){0};
    if (desc)
        MHA_TRY(mhai_struct_copy("mha_decoder_desc", own, sizeof *own,
                                 offsetof(mha_decoder_desc, cache_type), desc));
    if (own->reserved || own->reserved2)
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_decoder_desc: reserved is %u, expected 0",
                        (unsigned)(own->reserved ? own->reserved : own->reserved2));
    if (own->page_size < 0)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_decoder_desc: page_size is %lld, expected 0 or more",
                        (long long)own->page_size);
    if (own->batch == 0) own->batch = 1;
    if (own->capacity == 0) own->capacity = t->desc.max_length;
    if (own->max_step == 0) own->max_step = own->capacity;
    if (own->capacity < 1 || own->capacity > t->desc.max_length || own->max_step < 1 ||
        own->max_step > own->capacity)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_decoder_desc: capacity is %lld, expected 1..%lld (max_length); "
                        "max_step is %lld, expected 1..capacity",
                        (long long)own->capacity, (long long)t->desc.max_length,
                        (long long)own->max_step);
    if (own->batch < 1 || !mhai_mul_i64(own->batch, own->max_step, &tokens) || tokens > INT32_MAX)
        return mha_fail(
            MHA_ERR_ARGUMENT,
            "mha_decoder_desc: batch is %lld, expected 1 or more, and at most %d tokens "
            "in a step of all",
            (long long)own->batch, INT32_MAX);
    return MHA_OK;
}

mha_status mha_decoder_create(mha_context *context, const mha_transformer *transformer,
                              const mha_decoder_desc *desc, mha_decoder **decoder)
{
    if (!context || !transformer || !decoder)
        return mha_fail(MHA_ERR_NULL, "mha_decoder_create: %s is NULL",
                        !context       ? "context"
                        : !transformer ? "transformer"
                                       : "decoder");
    mha_decoder_desc own;
    MHA_TRY(check_kind(transformer));
    MHA_TRY(check_desc(transformer, desc, &own));
    const mha_allocator *a = &context->allocator;
    mha_decoder *made = a->alloc(a->user, sizeof *made, _Alignof(mha_decoder));
    if (!made) return mha_fail(MHA_ERR_NOMEM, "decoder: cannot allocate %zu bytes", sizeof *made);
    *made = (mha_decoder){.allocator = *a,
                          .transformer = transformer,
                          .batch = own.batch,
                          .capacity = own.capacity,
                          .max_step = own.max_step};
    mha_status status = make_parts(context, made, &own);
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
    const int64_t layers = d->transformer->desc.num_layers;
    for (int64_t i = 0; d->caches && i < layers; i++) mha_kv_cache_destroy(d->caches[i]);
    if (d->caches) a.release(a.user, d->caches, (size_t)layers * sizeof *d->caches);
    mha_activations_destroy(d->activations);
    a.release(a.user, d, sizeof *d);
}

int64_t mha_decoder_length(const mha_decoder *d)
{
    return d->length;
}

size_t mha_decoder_cache_bytes(const mha_decoder *d)
{
    size_t bytes = 0;
    for (int64_t i = 0; i < d->transformer->desc.num_layers; i++)
        if (d->caches[i]) bytes += mha_kv_cache_bytes(d->caches[i]);
    return bytes;
}

/* Back to a length that every cache has. */
static mha_status cut(const mha_decoder *d, int64_t length)
{
    for (int64_t i = 0; i < d->transformer->desc.num_layers; i++)
        for (int64_t b = 0; b < d->batch; b++)
            if (d->caches[i] && mha_kv_cache_lengths(d->caches[i])[b] > length)
                MHA_TRY(mha_kv_cache_truncate(d->caches[i], b, length));
    return MHA_OK;
}

mha_status mha_decoder_truncate(mha_decoder *d, int64_t length)
{
    if (!d) return mha_fail(MHA_ERR_NULL, "mha_decoder_truncate: decoder is NULL");
    if (length < 0 || length > d->length)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_decoder_truncate: length is %lld, expected 0..%lld",
                        (long long)length, (long long)d->length);
    MHA_TRY(cut(d, length));
    d->length = length;
    return MHA_OK;
}

mha_status mha_decoder_step(mha_context *context, mha_decoder *d, const mha_tensor *tokens,
                            const mha_tensor *output)
{
    if (!context || !d)
        return mha_fail(MHA_ERR_NULL, "mha_decoder_step: %s is NULL",
                        context ? "decoder" : "context");
    MHA_TRY(mhai_tensor_check("tokens", tokens, MHA_I32, 2, (const int64_t[]){d->batch, -1}));
    const int64_t count = tokens->shape[1], most = d->capacity;
    if (count < 1 || count > d->max_step)
        return mha_fail(count < 1 ? MHA_ERR_ARGUMENT : MHA_ERR_SIZE,
                        "tokens: a step of %lld, this decoder takes 1..%lld", (long long)count,
                        (long long)d->max_step);
    if (count > most - d->length)
        return mha_fail(MHA_ERR_SIZE,
                        "tokens: %lld behind %lld are more than its capacity, %lld; "
                        "mha_decoder_truncate() makes room",
                        (long long)count, (long long)d->length, (long long)most);
    mha_status status = mhai_transformer_step(context, d->transformer, d->activations, tokens,
                                              d->caches, d->length, output);
    if (status == MHA_OK)
        d->length += count;
    else
        MHA_TRY(cut(d, d->length));
    return status;
}
