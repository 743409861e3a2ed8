/* A call with a cache: append new keys and values, attend to all cached keys, or both. Every step
 * that can fail precedes the change of the cache, except attention. Its scratch is reserved
 * beforehand, and if it fails, the lengths are restored. */
#include "base/checked.h"
#include "base/context.h"
#include "cache/kv_cache.h"
#include "module/module_parts.h"

#include <multihead/component.h>

#include <string.h>

/* ---- checks -------------------------------------------------------------------------------- */

static mha_status check_size(const char *name, int64_t cache, int64_t module)
{
    if (cache == module) return MHA_OK;
    return mha_fail(
        MHA_ERR_SHAPE,
        "cache: %s is %lld, this call has %lld; create it with mha_module_cache_create()", name,
        (long long)cache, (long long)module);
}

static mha_status check_cache(const mhai_forward *f)
{
    const mha_module_desc *d = &f->module->desc;
    mha_kv_cache_desc c;
    mha_kv_cache_describe(f->at.cache, &c);
    MHA_TRY(check_size("batch", c.batch, f->B));
    MHA_TRY(check_size("kv_heads", c.kv_heads, d->kv_heads));
    MHA_TRY(check_size("head_dim", c.head_dim, d->head_dim));
    return check_size("value_head_dim", c.value_head_dim, d->value_head_dim);
}

/* Reject lengths and positions in the descriptor, which the cache determines. */
static mha_status check_desc(const mhai_forward *f)
{
    const mha_attention_desc *d = &f->at.desc;
    if (d->key_lengths)
        return mha_fail(MHA_ERR_ARGUMENT, "key_lengths: those of a call with a cache are the "
                                          "cache's own, leave them NULL");
    if (d->query_starts || d->key_starts || d->sequences)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "query_starts: a cache does not support ragged batches");
    if (f->has_keys && (d->q_offset != 0 || d->q_offsets))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "q_offset: new tokens follow the contents of the cache; leave it 0");
    if (f->has_keys && f->has_query && f->T != f->S)
        return mha_fail(MHA_ERR_SHAPE,
                        "query has length %lld, key has length %lld: a step with a cache takes "
                        "query, key and value of the same tokens",
                        (long long)f->T, (long long)f->S);
    return MHA_OK;
}

/* ---- preparation ----------------------------------------------------------------------------- */

/* Determine the lengths before and after the call, and the first position of queries. Also runs
 * while scratch is measured. */
static mha_status take_lengths(mhai_forward *f)
{
    const mha_attention_desc *d = &f->at.desc;
    const int64_t *held = mha_kv_cache_lengths(f->at.cache);
    MHA_TRY(mhai_module_take(f, 3 * f->B, sizeof(int64_t), &f->lengths));
    if (f->measuring)
        MHA_TRY(mha_scratch_alloc(f->context, 3 * f->B, sizeof(int64_t), &f->lengths));
    f->new_lengths = f->lengths + f->B;
    f->query_starts = f->new_lengths + f->B;
    f->columns = 0;
    for (int64_t b = 0; b < f->B; b++) {
        f->lengths[b] = held[b];
        f->new_lengths[b] = held[b] + (!f->has_keys ? 0 : f->at.counts ? f->at.counts[b] : f->S);
        f->query_starts[b] = f->has_keys        ? held[b]
                             : d->q_offsets     ? d->q_offsets[b]
                             : d->q_offset != 0 ? d->q_offset
                                                : held[b] - f->T;
        f->columns = mhai_max_i64(f->columns, f->new_lengths[b]);
    }
    return MHA_OK;
}

mha_status mhai_module_cached_prepare(mhai_forward *f)
{
    MHA_TRY(check_cache(f));
    MHA_TRY(check_desc(f));
    const mhai_kv_rows rows = {.n = f->S, .counts = f->at.counts};
    if (f->has_keys) MHA_TRY(mhai_kv_cache_check_rows(f->at.cache, &rows));
    if (f->at.counts && !f->has_keys)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_module_call: counts require key and value, which are appended");
    MHA_TRY(take_lengths(f));
    if (!f->has_keys || !f->has_query) return MHA_OK;
    f->at.desc.flags |= MHA_ATTENTION_CAUSAL;
    f->at.desc.q_offsets = f->query_starts;
    return MHA_OK;
}

mha_status mhai_module_cached_plan(mhai_forward *f, mha_attention_plan *plan)
{
    if (!f->has_query) return MHA_OK;
    MHA_TRY(mhai_kv_cache_explain(f->context, f->at.cache, f->new_lengths, &f->at.desc, &f->at.q,
                                  &f->at.heads, &f->at.outputs, plan));
    size_t more = ((size_t)f->B + 16) * sizeof(int64_t); /* additional scratch of attention with the
                                                          * cache */
    if (plan->scratch_bytes > PTRDIFF_MAX - more)
        return mha_fail(MHA_ERR_SIZE, "module: its scratch overflows 64 bits");
    plan->scratch_bytes += more;
    f->attention_bytes = plan->scratch_bytes;
    return MHA_OK;
}

/* ---- the work ------------------------------------------------------------------------------ */

/* Reserve scratch. The context keeps it, so allocating the same amount again cannot fail. */
static mha_status reserve(mhai_forward *f)
{
    return mhai_scratch_ensure(f->context, (int64_t)f->attention_bytes, 1);
}

mha_status mhai_module_cached_attend(mhai_forward *f)
{
    if (f->has_query) MHA_TRY(reserve(f));
    const mha_status status = mhai_attend_run(&f->at);
    for (int64_t b = 0; status != MHA_OK && f->has_keys && b < f->B; b++)
        mhai_kv_pages_truncate(f->at.cache, b, f->lengths[b]);
    return status;
}

/* ---- a cache for a module ------------------------------------------------------------------ */

mha_status mha_module_cache_create(mha_context *context, const mha_module *module, int64_t batch,
                                   int64_t capacity, mha_kv_cache **cache)
{
    if (!module) return mha_fail(MHA_ERR_NULL, "mha_module_cache_create: module is NULL");
    const mha_module_desc *d = &module->desc;
    const mha_kv_cache_desc desc = {.struct_size = sizeof desc,
                                    .batch = batch,
                                    .kv_heads = d->kv_heads,
                                    .capacity = capacity,
                                    .head_dim = d->head_dim,
                                    .value_head_dim = d->value_head_dim};
    return mha_kv_cache_create(context, &desc, cache);
}
