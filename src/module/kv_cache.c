/* The contiguous f32 cache: keys [B,Hk,capacity,D], then values [B,Hk,capacity,Dv], in one block.
 * The attention kernels count their key blocks from each sequence's key 0, so a row gets the same
 * bits whether its keys came at once or one by one; nothing here has to see to that. */
#include "module/kv_cache.h"

#include "base/checked.h"
#include "base/context.h"
#include "base/convert.h"
#include "base/struct_copy.h"
#include "base/tensor.h"

#include <multihead/component.h>

#include <string.h>

enum { ALIGNMENT = 64 };

struct mha_kv_cache {
    mha_allocator allocator;
    mha_kv_cache_desc desc; /* every default filled in */
    int64_t *lengths;       /* [B] */
    float *keys, *values;   /* parts of one block, which begins at keys */
    size_t bytes;
};

/* ---- life ---------------------------------------------------------------------------------- */

static mha_status check_positive(const char *name, int64_t value)
{
    if (value < 1)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_kv_cache_desc: %s is %lld, expected 1 or more", name,
                        (long long)value);
    return MHA_OK;
}

/* Fill in the defaults, and count the bytes of the keys, and of both. */
static mha_status check_desc(mha_kv_cache_desc *d, size_t *key_bytes, size_t *bytes)
{
    if (d->reserved != 0)
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_kv_cache_desc: reserved is %u, expected 0",
                        (unsigned)d->reserved);
    if (d->value_head_dim == 0) d->value_head_dim = d->head_dim;
    MHA_TRY(check_positive("batch", d->batch));
    MHA_TRY(check_positive("kv_heads", d->kv_heads));
    MHA_TRY(check_positive("capacity", d->capacity));
    MHA_TRY(check_positive("head_dim", d->head_dim));
    MHA_TRY(check_positive("value_head_dim", d->value_head_dim));
    int64_t rows, keys, values, all;
    if (!mhai_mul_i64(d->batch, d->kv_heads, &rows) || !mhai_mul_i64(rows, d->capacity, &rows) ||
        !mhai_mul_i64(rows, d->head_dim, &keys) ||
        !mhai_mul_i64(rows, d->value_head_dim, &values) || !mhai_add_i64(keys, values, &all) ||
        all > PTRDIFF_MAX / 32)
        return mha_fail(MHA_ERR_SIZE,
                        "cache: %lld sequences of %lld heads of %lld positions of %lld + %lld "
                        "floats do not fit in the address space",
                        (long long)d->batch, (long long)d->kv_heads, (long long)d->capacity,
                        (long long)d->head_dim, (long long)d->value_head_dim);
    *key_bytes = (size_t)keys * sizeof(float);
    *bytes = (size_t)all * sizeof(float);
    return MHA_OK;
}

static mha_status allocate(const mha_allocator *a, size_t bytes, size_t alignment, void **memory)
{
    *memory = a->alloc(a->user, bytes, alignment);
    if (!*memory) return mha_fail(MHA_ERR_NOMEM, "cache: cannot allocate %zu bytes", bytes);
    return MHA_OK;
}

mha_status mha_kv_cache_create(mha_context *context, const mha_kv_cache_desc *desc,
                               mha_kv_cache **cache)
{
    if (!context || !desc || !cache)
        return mha_fail(MHA_ERR_NULL, "mha_kv_cache_create: %s is NULL",
                        !context ? "context"
                        : !desc  ? "desc"
                                 : "cache");
    mha_kv_cache_desc d;
    size_t key_bytes = 0, bytes = 0;
    void *memory;
    mha_status status;
    MHA_TRY(mhai_struct_copy("mha_kv_cache_desc", &d, sizeof d, sizeof d, desc));
    MHA_TRY(check_desc(&d, &key_bytes, &bytes));
    const mha_allocator *a = &context->allocator;
    MHA_TRY(allocate(a, sizeof(mha_kv_cache), _Alignof(mha_kv_cache), &memory));
    mha_kv_cache *made = memory;
    *made = (mha_kv_cache){.allocator = *a, .desc = d, .bytes = bytes};
    MHA_TRY_GOTO(allocate(a, (size_t)d.batch * sizeof(int64_t), _Alignof(int64_t), &memory), fail);
    made->lengths = memory;
    MHA_TRY_GOTO(allocate(a, bytes, ALIGNMENT, &memory), fail);
    made->keys = memory;
    made->values = made->keys + key_bytes / sizeof(float);
    mha_kv_cache_reset(made);
    *cache = made;
    return MHA_OK;
fail:
    mha_kv_cache_destroy(made);
    return status;
}

void mha_kv_cache_destroy(mha_kv_cache *cache)
{
    if (!cache) return;
    mha_allocator a = cache->allocator;
    if (cache->keys) a.release(a.user, cache->keys, cache->bytes);
    if (cache->lengths)
        a.release(a.user, cache->lengths, (size_t)cache->desc.batch * sizeof(int64_t));
    a.release(a.user, cache, sizeof *cache);
}

void mha_kv_cache_describe(const mha_kv_cache *cache, mha_kv_cache_desc *desc)
{
    *desc = cache->desc;
    desc->struct_size = sizeof *desc;
}

size_t mha_kv_cache_bytes(const mha_kv_cache *cache)
{
    return cache->bytes;
}

/* ---- lengths ------------------------------------------------------------------------------- */

const int64_t *mha_kv_cache_lengths(const mha_kv_cache *cache)
{
    return cache->lengths;
}

void mha_kv_cache_reset(mha_kv_cache *cache)
{
    memset(cache->lengths, 0, (size_t)cache->desc.batch * sizeof(int64_t));
}

void mhai_kv_cache_cut(mha_kv_cache *cache, int64_t b, int64_t length)
{
    cache->lengths[b] = length;
}

mha_status mha_kv_cache_truncate(mha_kv_cache *cache, int64_t b, int64_t length)
{
    if (!cache) return mha_fail(MHA_ERR_NULL, "mha_kv_cache_truncate: cache is NULL");
    if (b < 0 || b >= cache->desc.batch)
        return mha_fail(MHA_ERR_ARGUMENT, "cache: there is no sequence %lld, expected 0..%lld",
                        (long long)b, (long long)(cache->desc.batch - 1));
    if (length < 0 || length > cache->lengths[b])
        return mha_fail(MHA_ERR_ARGUMENT,
                        "cache: sequence %lld holds %lld positions, it cannot be cut to %lld",
                        (long long)b, (long long)cache->lengths[b], (long long)length);
    cache->lengths[b] = length;
    return MHA_OK;
}

/* ---- append -------------------------------------------------------------------------------- */

mha_status mhai_kv_cache_check_counts(const mha_kv_cache *cache, int64_t n, const int64_t *counts)
{
    const int64_t capacity = cache->desc.capacity;
    for (int64_t b = 0; b < cache->desc.batch; b++) {
        int64_t count = counts ? counts[b] : n;
        if (count < 0 || count > n)
            return mha_fail(MHA_ERR_ARGUMENT, "counts[%lld] is %lld, expected 0..%lld",
                            (long long)b, (long long)count, (long long)n);
        if (count > capacity - cache->lengths[b])
            return mha_fail(MHA_ERR_SIZE,
                            "cache: sequence %lld holds %lld of %lld positions, %lld more do not "
                            "fit; truncate or reset it, or make a larger cache",
                            (long long)b, (long long)cache->lengths[b], (long long)capacity,
                            (long long)count);
    }
    return MHA_OK;
}

/* Rows 0 .. count-1 of every head of sequence b, behind those that it holds. */
static void copy_rows(const mha_kv_cache *cache, int64_t b, int64_t count, const mha_tensor *from,
                      float *to)
{
    const int64_t heads = cache->desc.kv_heads, width = from->shape[3];
    const int64_t size = (int64_t)mha_dtype_size(from->dtype);
    for (int64_t h = 0; count > 0 && h < heads; h++) {
        const char *in =
            (const char *)from->data + (b * from->stride[0] + h * from->stride[1]) * size;
        float *out = to + ((b * heads + h) * cache->desc.capacity + cache->lengths[b]) * width;
        for (int64_t t = 0; t < count; t++)
            mhai_widen(from->dtype, in + t * from->stride[2] * size, width, out + t * width);
    }
}

mha_status mha_kv_cache_append(mha_kv_cache *cache, const mha_tensor *k, const mha_tensor *v,
                               const int64_t *counts)
{
    if (!cache) return mha_fail(MHA_ERR_NULL, "mha_kv_cache_append: cache is NULL");
    const mha_kv_cache_desc *d = &cache->desc;
    MHA_TRY(mhai_tensor_check_real("k", k));
    MHA_TRY(mhai_tensor_check_real("v", v));
    MHA_TRY(mhai_tensor_check("k", k, k->dtype, 4,
                              (int64_t[]){d->batch, d->kv_heads, -1, d->head_dim}));
    const int64_t n = k->shape[2];
    MHA_TRY(mhai_tensor_check("v", v, v->dtype, 4,
                              (int64_t[]){d->batch, d->kv_heads, n, d->value_head_dim}));
    MHA_TRY(mhai_tensor_check_last("k", k));
    MHA_TRY(mhai_tensor_check_last("v", v));
    MHA_TRY(mhai_kv_cache_check_counts(cache, n, counts));
    for (int64_t b = 0; b < d->batch; b++) {
        int64_t count = counts ? counts[b] : n;
        copy_rows(cache, b, count, k, cache->keys);
        copy_rows(cache, b, count, v, cache->values);
        cache->lengths[b] += count;
    }
    return MHA_OK;
}

/* ---- attention ----------------------------------------------------------------------------- */

static int64_t longest_of(const mha_kv_cache *cache)
{
    int64_t longest = 0;
    for (int64_t b = 0; b < cache->desc.batch; b++)
        longest = mhai_max_i64(longest, cache->lengths[b]);
    return longest;
}

void mhai_kv_cache_view(const mha_kv_cache *cache, mha_tensor *keys, mha_tensor *values)
{
    const mha_kv_cache_desc *d = &cache->desc;
    *keys = mha_tensor_contiguous(cache->keys, MHA_F32, 4,
                                  (int64_t[]){d->batch, d->kv_heads, d->capacity, d->head_dim});
    *values =
        mha_tensor_contiguous(cache->values, MHA_F32, 4,
                              (int64_t[]){d->batch, d->kv_heads, d->capacity, d->value_head_dim});
    keys->shape[2] = values->shape[2] = longest_of(cache);
}

/* Something in the call depends on where a query stands. */
static bool reads_positions(const mha_attention_desc *d)
{
    return (d->flags & (MHA_ATTENTION_CAUSAL | MHA_ATTENTION_WINDOW)) || d->alibi_slopes ||
           d->t5_table || d->shaw_keys || d->shaw_values;
}

static mha_status check_call(const mha_kv_cache *cache, const mha_attention_desc *d,
                             const mha_tensor *q)
{
    if (d->key_lengths)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_kv_cache_attention: key_lengths are the cache's own; "
                        "leave them NULL");
    if (d->query_starts || d->key_starts || d->sequences)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_kv_cache_attention: a ragged batch does not go with a cache");
    MHA_TRY(mhai_tensor_check_real("q", q));
    return mhai_tensor_check("q", q, q->dtype, 4,
                             (int64_t[]){cache->desc.batch, -1, -1, cache->desc.head_dim});
}

mha_status mha_kv_cache_attention(mha_context *context, const mha_kv_cache *cache,
                                  const mha_attention_desc *desc, const mha_tensor *q,
                                  const mha_tensor *o, const mha_attention_outputs *outputs)
{
    if (!context || !cache)
        return mha_fail(MHA_ERR_NULL, "mha_kv_cache_attention: %s is NULL",
                        context ? "cache" : "context");
    mha_attention_desc d;
    mha_attention_outputs wanted;
    mha_tensor keys, values;
    void *memory;
    MHA_TRY(mhai_struct_copy("mha_attention_desc", &d, sizeof d,
                             offsetof(mha_attention_desc, left_keys), desc));
    d.struct_size = sizeof d;
    MHA_TRY(mhai_struct_copy("mha_attention_outputs", &wanted, sizeof wanted,
                             offsetof(mha_attention_outputs, average_probabilities), outputs));
    MHA_TRY(check_call(cache, &d, q));
    mhai_kv_cache_view(cache, &keys, &values);
    mha_scratch_mark mark = mha_scratch_top(context);
    MHA_TRY(mha_scratch_alloc(context, cache->desc.batch, sizeof(int64_t), &memory));
    int64_t *offsets = memory;
    for (int64_t b = 0; b < cache->desc.batch; b++) offsets[b] = cache->lengths[b] - q->shape[2];
    d.key_lengths = cache->lengths;
    bool reads = reads_positions(&d) || wanted.diagonal || wanted.offset_mass;
    if (reads && d.q_offset == 0 && !d.q_offsets) d.q_offsets = offsets;
    mha_status status = mha_attention_forward(context, &d, q, &keys, &values, o, outputs);
    mha_scratch_release(context, mark);
    return status;
}
