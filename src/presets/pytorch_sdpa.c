/* torch.nn.functional.scaled_dot_product_attention by PyTorch's conventions (presets.h).
 *
 * All tensors are seen through as many dimensions as out has, broadcast axes with a stride of 0;
 * the last four are one call of mha_attention_forward(), those before them are walked. */
#include "base/struct_copy.h"
#include "base/tensor.h"
#include "presets/preset.h"

#include <multihead/component.h>
#include <multihead/presets.h>

typedef struct sdpa {
    mha_pytorch_sdpa_args args;
    int dims;                          /* of out, 2 .. MHA_MAX_DIMS */
    int64_t shape[MHA_MAX_DIMS];       /* of out; rows of scores have keys instead of Dv */
    mha_tensor query, key, value, out; /* seen through `dims` dimensions */
    const mha_tensor *mask;            /* the caller's */
} sdpa;

static bool grouped(const sdpa *c)
{
    return c->args.flags & MHA_SDPA_ENABLE_GQA;
}

/* ---- shapes ---------------------------------------------------------------------------------- */

static int64_t dim_from_end(const mha_tensor *x, int i)
{
    return i <= x->ndim ? x->shape[x->ndim - i] : 1;
}

/* Leading dimensions broadcast; with grouped heads, those of the heads do not. */
static mha_status broadcast_shape(sdpa *c, const mha_tensor *query, const mha_tensor *key,
                                  const mha_tensor *value)
{
    const mha_tensor *all[] = {query, key, value};
    for (int i = 0; i < 3; i++)
        if (all[i]->ndim > c->dims) c->dims = all[i]->ndim;
    for (int i = 3; i <= c->dims; i++) { /* from the end */
        int64_t size = 1;
        for (int j = 0; j < 3; j++) {
            int64_t d = dim_from_end(all[j], i);
            if (i == 3 && grouped(c) && j > 0) continue;
            if (d != 1 && size != 1 && d != size)
                return mha_fail(MHA_ERR_SHAPE,
                                "query, key, value: dim -%d is %lld and %lld, it must be equal or "
                                "1%s",
                                i, (long long)size, (long long)d,
                                i == 3 ? "; grouped heads need MHA_SDPA_ENABLE_GQA" : "");
            if (d != 1) size = d;
        }
        c->shape[c->dims - i] = size;
    }
    c->shape[c->dims - 2] = dim_from_end(query, 2);
    c->shape[c->dims - 1] = dim_from_end(value, 1);
    return MHA_OK;
}

static mha_status check_groups(const mha_tensor *query, const mha_tensor *key,
                               const mha_tensor *value)
{
    if (query->ndim < 3 || key->ndim < 3 || value->ndim < 3)
        return mha_fail(MHA_ERR_SHAPE,
                        "query, key, value: grouped heads need 3 dimensions or more");
    int64_t heads = dim_from_end(query, 3), shared = dim_from_end(key, 3);
    if (dim_from_end(value, 3) != shared)
        return mha_fail(MHA_ERR_SHAPE, "key has %lld heads, value has %lld: they must be equal",
                        (long long)shared, (long long)dim_from_end(value, 3));
    if (shared == 0 ? heads != 0 : heads % shared != 0)
        return mha_fail(MHA_ERR_SHAPE,
                        "query has %lld heads, key has %lld: the first must be a multiple of the "
                        "second",
                        (long long)heads, (long long)shared);
    return MHA_OK;
}

static mha_status check_input(const char *name, const mha_tensor *x, int type)
{
    MHA_TRY(mhai_preset_check_input(name, x, type));
    if (x->ndim < 2)
        return mha_fail(MHA_ERR_SHAPE, "%s: has %d dimensions, expected 2 to %d", name,
                        (int)x->ndim, (int)MHA_MAX_DIMS);
    return MHA_OK;
}

static mha_status check_mask(const sdpa *c)
{
    const mha_tensor *mask = c->mask;
    if (!mask) return MHA_OK;
    MHA_TRY(mhai_preset_check_mask("attn_mask", mask, c->query.dtype));
    if (c->args.flags & MHA_SDPA_IS_CAUSAL)
        return mha_fail(MHA_ERR_ARGUMENT, "attn_mask must not be set when is_causal is; build one "
                                          "mask, or call mha_attention_forward()");
    if (mask->ndim > c->dims)
        return mha_fail(MHA_ERR_SHAPE, "attn_mask: has %d dimensions, the result has %d",
                        (int)mask->ndim, c->dims);
    for (int i = 1; i <= mask->ndim; i++) {
        int64_t d = dim_from_end(mask, i);
        int64_t full = i == 1 ? dim_from_end(&c->key, 2) : c->shape[c->dims - i];
        if (d != 1 && d != full)
            return mha_fail(MHA_ERR_SHAPE,
                            "attn_mask: dim -%d is %lld, it must be 1 or %lld to broadcast", i,
                            (long long)d, (long long)full);
    }
    return MHA_OK;
}

/* x through c->dims dimensions; the last `own` are its own. */
static mha_tensor widen(const sdpa *c, const mha_tensor *x, int own)
{
    mha_tensor wide = *x;
    wide.ndim = c->dims;
    for (int i = 1; i <= c->dims; i++) { /* from the end */
        bool there = i <= x->ndim, repeated = i > own && dim_from_end(x, i) == 1;
        wide.shape[c->dims - i] = i > own ? c->shape[c->dims - i] : x->shape[x->ndim - i];
        wide.stride[c->dims - i] = there && !repeated ? x->stride[x->ndim - i] : 0;
    }
    return wide;
}

static mha_status check_call(sdpa *c, const mha_tensor *query, const mha_tensor *key,
                             const mha_tensor *value, const mha_tensor *out)
{
    const uint32_t known = MHA_SDPA_IS_CAUSAL | MHA_SDPA_SCALE_GIVEN | MHA_SDPA_ENABLE_GQA;
    if (c->args.flags & ~known)
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_pytorch_sdpa_args: flags 0x%x are unknown",
                        (unsigned)(c->args.flags & ~known));
    if (!(c->args.dropout_p >= 0 && c->args.dropout_p <= 1))
        return mha_fail(MHA_ERR_ARGUMENT, "dropout_p is %g, expected 0..1",
                        (double)c->args.dropout_p);
    MHA_TRY(check_input("query", query, -1));
    MHA_TRY(check_input("key", key, (int)query->dtype));
    MHA_TRY(check_input("value", value, (int)query->dtype));
    if (grouped(c)) MHA_TRY(check_groups(query, key, value));
    MHA_TRY(broadcast_shape(c, query, key, value));
    c->query = widen(c, query, 2);
    c->key = widen(c, key, grouped(c) ? 3 : 2);
    c->value = widen(c, value, grouped(c) ? 3 : 2);
    MHA_TRY(mhai_preset_check_output("out", out, query->dtype, c->dims, c->shape));
    c->out = *out;
    MHA_TRY(check_mask(c));
    MHA_TRY(mhai_tensor_check_disjoint("out", out, "query", query));
    MHA_TRY(mhai_tensor_check_disjoint("out", out, "key", key));
    MHA_TRY(mhai_tensor_check_disjoint("out", out, "value", value));
    return mhai_tensor_check_disjoint("out", out, "attn_mask", c->mask);
}

/* ---- slices ---------------------------------------------------------------------------------- */

/* The four-dimensional part at an index of the dimensions before it; axes that are missing are 1.
 */
static mha_tensor slice(const mha_tensor *x, int dims, const int64_t *index)
{
    int before = dims > 4 ? dims - 4 : 0, missing = dims < 4 ? 4 - dims : 0;
    mha_tensor part = {.dtype = x->dtype, .ndim = 4, .data = x->data};
    if (x->data)
        part.data = (char *)x->data +
                    mhai_preset_offset(x, before, index) * (int64_t)mha_dtype_size(x->dtype);
    for (int i = 0; i < 4; i++) {
        part.shape[i] = i < missing ? 1 : x->shape[before + i - missing];
        part.stride[i] = i < missing ? 0 : x->stride[before + i - missing];
    }
    return part;
}

/* Of a mask, which may have fewer dimensions and axes of 1. */
static mha_tensor slice_mask(const sdpa *c, const mha_tensor *mask, const int64_t *index)
{
    mha_tensor wide = *mask;
    if (mask->ndim <= 4) return wide;
    int64_t own[MHA_MAX_DIMS] = {0};
    for (int i = 0; i < mask->ndim - 4; i++)
        own[i] = mask->shape[i] == 1 ? 0 : index[c->dims - mask->ndim + i];
    return slice(mask, mask->ndim, own);
}

/* A separate stream for the dropout of each slice. */
static uint64_t seed_of_slice(const sdpa *c, int64_t number)
{
    return c->args.dropout_seed + (uint64_t)number * 0x9E3779B97F4A7C15u;
}

static mha_status run(mha_context *context, const sdpa *c)
{
    const int before = c->dims > 4 ? c->dims - 4 : 0;
    const bool empty = mhai_preset_is_empty(&c->out);
    int64_t index[MHA_MAX_DIMS] = {0}, slices = !empty;
    for (int i = 0; i < before; i++) slices *= c->shape[i]; /* at most the elements of out */
    mhai_preset_mask mask;
    MHA_TRY(mhai_preset_mask_make(context, empty ? NULL : c->mask, -1, &mask));
    for (int64_t i = 0; i < slices || i == 0; i++) {
        mha_attention_desc desc = {.struct_size = sizeof desc,
                                   .scale = c->args.scale,
                                   .dropout = c->args.dropout_p,
                                   .dropout_seed = seed_of_slice(c, i)};
        if (c->args.flags & MHA_SDPA_IS_CAUSAL) desc.flags |= MHA_ATTENTION_CAUSAL;
        if (c->args.flags & MHA_SDPA_SCALE_GIVEN) desc.flags |= MHA_ATTENTION_SCALE_GIVEN;
        mha_tensor q = slice(&c->query, c->dims, index), k = slice(&c->key, c->dims, index);
        mha_tensor v = slice(&c->value, c->dims, index), o = slice(&c->out, c->dims, index);
        mha_tensor dense = slice_mask(c, &mask.view, index);
        if (mask.keep) desc.keep_mask = &dense;
        if (mask.bias) desc.bias = &dense;
        if (slices != 1 && i == 0) /* nothing to do, or much */
            MHA_TRY(mhai_preset_prepare(context, &desc, &q, &k, &v, &o, NULL));
        if (slices == 0) break;
        MHA_TRY(mha_attention_forward(context, &desc, &q, &k, &v, &o, NULL));
        mhai_preset_next(&c->out, before, index);
    }
    return MHA_OK;
}

mha_status mha_pytorch_sdpa_forward(mha_context *context, const mha_pytorch_sdpa_args *args,
                                    const mha_tensor *query, const mha_tensor *key,
                                    const mha_tensor *value, const mha_tensor *out)
{
    if (!context) return mha_fail(MHA_ERR_NULL, "mha_pytorch_sdpa_forward: context is NULL");
    sdpa call = {0};
    MHA_TRY(mhai_struct_copy("mha_pytorch_sdpa_args", &call.args, sizeof call.args,
                             sizeof call.args, args));
    call.mask = call.args.attn_mask;
    MHA_TRY(check_call(&call, query, key, value, out));
    mha_scratch_mark mark = mha_scratch_top(context);
    mha_status status = run(context, &call);
    mha_scratch_release(context, mark);
    return status;
}
