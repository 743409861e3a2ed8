/* From a caller's arguments to a checked problem: nothing below this file checks anything. */
#include "attention/attn.h"

#include "base/checked.h"
#include "base/struct_copy.h"
#include "base/tensor.h"

#include <multihead/component.h>

#include <math.h>

typedef struct named {
    const char *name;
    const mha_tensor *tensor;
} named;

static mha_status check_tensor(const char *name, const mha_tensor *given, int ndim,
                               const int64_t *shape, bool need_data, mha_tensor *tensor)
{
    static float nothing; /* stands for memory that is never touched: a valid address to add to */
    if (!given) return mha_fail(MHA_ERR_NULL, "%s: is NULL", name);
    *tensor = *given;
    if (!need_data && !tensor->data) tensor->data = &nothing;
    MHA_TRY(mhai_tensor_check(name, tensor, MHA_F32, ndim, shape));
    if (!tensor->data) tensor->data = &nothing; /* no elements */
    return mhai_tensor_check_last(name, tensor);
}

static mha_status check_output(const char *name, const mha_tensor *given, int ndim,
                               const int64_t *shape, bool need_data, mha_tensor *tensor)
{
    MHA_TRY(check_tensor(name, given, ndim, shape, need_data, tensor));
    return mhai_tensor_check_output(name, tensor);
}

/* Strides of a tensor of up to four dimensions as seen through [B,H,T,S], right-aligned. */
static mha_status check_broadcast(const char *name, const mha_tensor *given, mha_dtype dtype,
                                  bool need_data, const mhai_attn_problem *p,
                                  mhai_attn_broadcast *broadcast)
{
    const int64_t full[4] = {p->B, p->H, p->T, p->S};
    if (!given) return MHA_OK;
    if (given->ndim < 0 || given->ndim > 4)
        return mha_fail(MHA_ERR_SHAPE, "%s: has %d dimensions, expected 0..4", name,
                        (int)given->ndim);
    for (int i = 0; i < given->ndim; i++) {
        int axis = 4 - given->ndim + i;
        if (given->shape[i] != 1 && given->shape[i] != full[axis])
            return mha_fail(MHA_ERR_SHAPE,
                            "%s: dim %d is %lld, it must be 1 or %lld to broadcast to "
                            "[%lld,%lld,%lld,%lld]",
                            name, i, (long long)given->shape[i], (long long)full[axis],
                            (long long)full[0], (long long)full[1], (long long)full[2],
                            (long long)full[3]);
        broadcast->stride[axis] = given->shape[i] == 1 ? 0 : given->stride[i];
    }
    static double nothing; /* as in check_tensor() */
    mha_tensor tensor = *given;
    if (!need_data && !tensor.data) tensor.data = &nothing;
    MHA_TRY(mhai_tensor_check(name, &tensor, dtype, tensor.ndim, NULL));
    broadcast->data = tensor.data;
    return MHA_OK;
}

static mha_status check_lengths(const mhai_attn_problem *p)
{
    for (int64_t b = 0; p->key_lengths && b < p->B; b++)
        if (p->key_lengths[b] < 0 || p->key_lengths[b] > p->S)
            return mha_fail(MHA_ERR_ARGUMENT, "key_lengths[%lld] is %lld, expected 0..%lld",
                            (long long)b, (long long)p->key_lengths[b], (long long)p->S);
    return MHA_OK;
}

static mha_status check_desc(const mha_attention_desc *desc, bool need_data, mhai_attn_problem *p)
{
    const uint32_t known = MHA_ATTENTION_CAUSAL | MHA_ATTENTION_SCALE_GIVEN | MHA_ATTENTION_STRICT;
    if (desc->flags & ~known)
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_attention_desc: flags 0x%x are unknown",
                        (unsigned)(desc->flags & ~known));
    if (desc->path != MHA_PATH_AUTO && desc->path != MHA_PATH_TILED && desc->path != MHA_PATH_PLAIN)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_attention_desc: path is %d, expected 0, 1 or 2",
                        (int)desc->path);
    p->causal = desc->flags & MHA_ATTENTION_CAUSAL;
    p->strict = desc->flags & MHA_ATTENTION_STRICT;
    p->scale = desc->scale;
    if (p->scale == 0 && !(desc->flags & MHA_ATTENTION_SCALE_GIVEN))
        p->scale = p->D > 0 ? (float)(1.0 / sqrt((double)p->D)) : 1.0f;
    if (!isfinite(p->scale))
        return mha_fail(MHA_ERR_ARGUMENT, "mha_attention_desc: scale is not finite");
    if (!p->causal && (desc->q_offset != 0 || desc->q_offsets))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_attention_desc: a q_offset needs the flag MHA_ATTENTION_CAUSAL");
    if (desc->q_offset != 0 && desc->q_offsets)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_attention_desc: set q_offset or q_offsets, not both");
    p->q_offset = desc->q_offset;
    p->q_offsets = desc->q_offsets;
    p->key_lengths = desc->key_lengths;
    MHA_TRY(check_lengths(p));
    MHA_TRY(check_broadcast("keep_mask", desc->keep_mask, MHA_U8, need_data, p, &p->keep));
    return check_broadcast("bias", desc->bias, MHA_F32, need_data, p, &p->bias);
}

static mha_status check_inputs(const mha_tensor *q, const mha_tensor *k, const mha_tensor *v,
                               bool need_data, mhai_attn_problem *p)
{
    MHA_TRY(check_tensor("q", q, 4, NULL, need_data, &p->q));
    p->B = p->q.shape[0], p->H = p->q.shape[1], p->T = p->q.shape[2], p->D = p->q.shape[3];
    MHA_TRY(check_tensor("k", k, 4, (int64_t[]){p->B, -1, -1, p->D}, need_data, &p->k));
    p->Hk = p->k.shape[1], p->S = p->k.shape[2];
    MHA_TRY(check_tensor("v", v, 4, (int64_t[]){p->B, p->Hk, p->S, -1}, need_data, &p->v));
    p->Dv = p->v.shape[3];
    if (p->D == 0) return mha_fail(MHA_ERR_SHAPE, "q: dim 3, the head size, is 0");
    if (p->Hk == 0 ? p->H != 0 : p->H % p->Hk != 0)
        return mha_fail(MHA_ERR_SHAPE,
                        "q has %lld heads, k has %lld: the first must be a multiple of the second",
                        (long long)p->H, (long long)p->Hk);
    p->group = p->Hk ? p->H / p->Hk : 0;
    /* Row counts are added and multiplied below, in any order; keep them far from overflow, even
     * where another length is 0. */
    int64_t pairs = 1;
    bool fits = true;
    for (int i = 0; i < 4; i++)
        fits = fits && mhai_mul_i64(pairs, mhai_max_i64(1, i < 3 ? p->q.shape[i] : p->S), &pairs);
    if (!fits || pairs > INT64_MAX / 4)
        return mha_fail(MHA_ERR_SIZE, "q, k: B H T S overflows 64 bits");
    return MHA_OK;
}

/* Every output against every input and the other outputs. */
static mha_status check_overlap(const mhai_attn_problem *p, const mha_attention_desc *desc)
{
    const named outputs[] = {{"o", &p->o}, {"lse", &p->lse}, {"probabilities", &p->probabilities}};
    const named inputs[] = {{"q", &p->q},
                            {"k", &p->k},
                            {"v", &p->v},
                            {"keep_mask", desc->keep_mask},
                            {"bias", desc->bias}};
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < 5; j++)
            MHA_TRY(mhai_tensor_check_disjoint(outputs[i].name, outputs[i].tensor, inputs[j].name,
                                               inputs[j].tensor));
        for (int j = 0; j < i; j++)
            MHA_TRY(mhai_tensor_check_disjoint(outputs[i].name, outputs[i].tensor, outputs[j].name,
                                               outputs[j].tensor));
    }
    return MHA_OK;
}

static mha_status choose_path(mha_path asked, mhai_attn_problem *p)
{
    bool fits = p->D <= MHA_TILED_MAX_HEAD_DIM && p->Dv <= MHA_TILED_MAX_HEAD_DIM;
    if (asked == MHA_PATH_TILED && !fits && p->strict)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "path tiled takes head sizes up to %d, not %lld and %lld; use path auto or "
                        "plain, or clear MHA_ATTENTION_STRICT",
                        (int)MHA_TILED_MAX_HEAD_DIM, (long long)p->D, (long long)p->Dv);
    p->path = asked == MHA_PATH_PLAIN || !fits ? MHA_PATH_PLAIN : MHA_PATH_TILED;
    p->reason = asked == MHA_PATH_PLAIN ? "plain was asked for"
                : !fits                 ? "a head size above 256 is beyond the tiled path"
                                        : "the tiled path takes this problem";
    if (asked == MHA_PATH_AUTO && !fits && p->strict)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "head sizes %lld and %lld would fall back to path plain; ask for plain, or "
                        "clear MHA_ATTENTION_STRICT",
                        (long long)p->D, (long long)p->Dv);
    return MHA_OK;
}

mha_status mhai_attn_check(const mha_attention_desc *desc, const mha_tensor *q, const mha_tensor *k,
                           const mha_tensor *v, const mha_tensor *o,
                           const mha_attention_outputs *outputs, bool need_data,
                           mhai_attn_problem *problem)
{
    mha_attention_desc own;
    mha_attention_outputs wanted;
    MHA_TRY(mhai_struct_copy("mha_attention_desc", &own, sizeof own, sizeof own, desc));
    MHA_TRY(
        mhai_struct_copy("mha_attention_outputs", &wanted, sizeof wanted, sizeof wanted, outputs));
    if (wanted.reserved != 0)
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_attention_outputs: reserved is %u, expected 0",
                        (unsigned)wanted.reserved);
    mhai_attn_problem p = {0};
    MHA_TRY(check_inputs(q, k, v, need_data, &p));
    MHA_TRY(check_desc(&own, need_data, &p));
    const int64_t o_shape[] = {p.B, p.H, p.T, p.Dv}, p_shape[] = {p.B, p.H, p.T, p.S};
    if (o || need_data) MHA_TRY(check_output("o", o, 4, o_shape, need_data, &p.o));
    if (wanted.lse) MHA_TRY(check_output("lse", wanted.lse, 3, o_shape, need_data, &p.lse));
    if (wanted.probabilities)
        MHA_TRY(check_output("probabilities", wanted.probabilities, 4, p_shape, need_data,
                             &p.probabilities));
    if (need_data) MHA_TRY(check_overlap(&p, &own));
    MHA_TRY(choose_path(own.path, &p));
    *problem = p;
    return MHA_OK;
}

int64_t mhai_attn_row_end(const mhai_attn_problem *p, int64_t b, int64_t t)
{
    int64_t length = p->key_lengths ? p->key_lengths[b] : p->S;
    if (!p->causal) return length;
    int64_t offset = p->q_offsets ? p->q_offsets[b] : p->q_offset;
    /* Beyond these the answer is "all" or "none"; clamped, nothing overflows. */
    offset = mhai_max_i64(-p->T, mhai_min_i64(offset, p->S));
    return mhai_max_i64(0, mhai_min_i64(length, t + offset + 1));
}
