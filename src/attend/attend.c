/* The steps between the projections of q, k and v and the output projection. */
#include "attend/attend.h"

#include "base/checked.h"
#include "cache/kv_cache.h"

#include <multihead/component.h>
#include <multihead/nn.h>

#include <string.h>

/* ---- norm, rotation ------------------------------------------------------------------------ */

static mha_status rotate(const mhai_attend *a, const mha_tensor *x, const mha_positions *positions,
                         uint32_t flags)
{
    if (!a->rotates) return MHA_OK;
    mha_rope_desc rope = a->rope;
    rope.flags = flags;
    rope.positions = *positions;
    return mha_rope_apply(a->context, &rope, x, x);
}

/* View the weight of a norm [D] as a read-only tensor. */
static mha_tensor view_weight(const float *weight, int64_t D)
{
    union {
        const float *in;
        void *out;
    } pointer = {weight};
    return mha_tensor_contiguous(pointer.out, MHA_F32, 1, &D);
}

/* The vectors that a norm normalises: one per head, or one per token for all its heads. */
static mha_tensor normed(const mhai_attend *a, const mha_tensor *x)
{
    mha_tensor rows = *x;
    if (!a->norms_row) return rows;
    rows.shape[3] *= rows.shape[1];
    rows.shape[1] = 1;
    return rows;
}

static mha_status normalise(const mhai_attend *a, const mha_tensor *given, const float *weight)
{
    if (!weight) return MHA_OK;
    const mha_tensor x = normed(a, given), w = view_weight(weight, x.shape[3]);
    return mha_qk_norm(a->context, a->qk_norm, a->qk_norm_epsilon, &x, &w, &x);
}

mha_status mhai_attend_check(mha_context *context, const mhai_attend *a, int64_t D)
{
    const mha_tensor none = mha_tensor_contiguous(NULL, MHA_F32, 4, (int64_t[]){1, 1, 0, D});
    if (a->rotates) MHA_TRY(mha_rope_apply(context, &a->rope, &none, &none));
    if (!a->q_norm) return MHA_OK;
    return mha_qk_norm(context, a->qk_norm, a->qk_norm_epsilon, &none, NULL, &none);
}

/* Whether queries and keys of a token are contiguous and have the same position, so that
 * one call can rotate both. */
static bool joined(const mhai_attend *a, const mha_tensor *q, const mha_tensor *k)
{
    const mha_positions *x = &a->query_positions, *y = &a->key_positions;
    return q->ndim && k->ndim && q->shape[2] == k->shape[2] && q->stride[0] == k->stride[0] &&
           q->stride[1] == k->stride[1] && q->stride[2] == k->stride[2] &&
           (float *)q->data + q->shape[1] * q->stride[1] == (float *)k->data &&
           x->start == y->start && x->starts == y->starts && x->ids == y->ids;
}

static mha_status rotate_both(const mhai_attend *a, const mha_tensor *q, const mha_tensor *k,
                              uint32_t flags)
{
    if (joined(a, q, k)) {
        mha_tensor both = *q;
        both.shape[1] += k->shape[1];
        return rotate(a, &both, &a->query_positions, flags);
    }
    if (q->ndim) MHA_TRY(rotate(a, q, &a->query_positions, flags));
    return k->ndim ? rotate(a, k, &a->key_positions, flags) : MHA_OK;
}

/* ---- sinks that move ----------------------------------------------------------------------- */

static float *sink_row(const mhai_attend *a, int64_t b, int64_t h, int64_t j)
{
    return a->sinks->keys + ((b * a->k.shape[1] + h) * a->sinks->count + j) * a->k.shape[3];
}

/* Store the new keys that are sinks, before they are rotated. */
static void keep_sinks(const mhai_attend *a)
{
    const mha_tensor *k = &a->k;
    for (int64_t b = 0; b < k->shape[0]; b++)
        for (int64_t t = a->firsts[b]; t < a->firsts[b] + a->counts[b]; t++)
            for (int64_t h = 0; a->desc.q_offsets[b] + t < a->sinks->count && h < k->shape[1]; h++)
                memcpy(sink_row(a, b, h, a->desc.q_offsets[b] + t),
                       (const float *)k->data + b * k->stride[0] + h * k->stride[1] +
                           t * k->stride[2],
                       (size_t)k->shape[3] * sizeof(float));
}

/* The shift of the sinks for a row. Padding uses the shift of the nearest row. */
static int64_t shift_of(const mhai_attend *a, int64_t b, int64_t t)
{
    const int64_t first = a->firsts[b], last = first + mhai_max_i64(a->counts[b], 1) - 1;
    const int64_t row = mhai_max_i64(first, mhai_min_i64(t, last));
    return mhai_max_i64(0, a->desc.q_offsets[b] + row + 1 - a->sinks->count - a->sinks->window);
}

/* Rotate the sinks to positions shift, shift + 1, ... */
static mha_status rotate_sinks(const mhai_attend *a, int64_t shift, const mha_tensor *k,
                               float *turns)
{
    const int64_t count = k->shape[2], width = a->sinks->width;
    mhai_attend own = *a;
    mha_tensor cosines =
        mha_tensor_contiguous(turns, MHA_F32, 3, (const int64_t[]){1, count, width});
    MHA_TRY(a->sinks->turn(a->sinks->encoding, a->context, shift, count, turns));
    cosines.shape[2] = width / 2;
    mha_tensor sines = cosines;
    sines.data = turns + width / 2;
    own.rope.cos_table = &cosines;
    own.rope.sin_table = &sines;
    return rotate(&own, k, &(mha_positions){0}, 0);
}

static mha_status place_sinks(const mhai_attend *a, int64_t b, int64_t shift, float *room)
{
    const int64_t Hk = a->k.shape[1], D = a->k.shape[3];
    const int64_t count = mhai_min_i64(a->sinks->count, mha_kv_cache_lengths(a->cache)[b]);
    mha_tensor k =
        mha_tensor_contiguous(room, MHA_F32, 4, (const int64_t[]){1, Hk, a->sinks->count, D});
    memcpy(room, sink_row(a, b, 0, 0), (size_t)(Hk * a->sinks->count * D) * sizeof *room);
    k.shape[2] = count;
    MHA_TRY(rotate_sinks(a, shift, &k, room + Hk * a->sinks->count * D));
    for (int64_t h = 0; h < Hk; h++)
        for (int64_t j = 0; j < count; j++)
            mhai_kv_replace_key(a->cache, b, h, j, MHA_F32, room + (h * a->sinks->count + j) * D);
    return MHA_OK;
}

/* Attend with rows t .. end - 1, for which the sinks have the same positions. */
static mha_status attend_part(const mhai_attend *a, int64_t t, int64_t end, int64_t *numbers,
                              float *room)
{
    const int64_t B = a->q.shape[0];
    mha_attention_desc desc = a->desc;
    mha_tensor q = a->q, heads = a->heads;
    int64_t *offsets = numbers, *firsts = numbers + B;
    q.data = (float *)q.data + t * q.stride[2];
    heads.data = (float *)heads.data + t * heads.stride[2];
    q.shape[2] = heads.shape[2] = end - t;
    for (int64_t b = 0; b < B; b++) {
        offsets[b] = a->desc.q_offsets[b] + t;
        firsts[b] = mhai_max_i64(0, a->firsts[b] - t);
        if (a->rotates && a->sinks->count > 0) MHA_TRY(place_sinks(a, b, shift_of(a, b, t), room));
    }
    desc.q_offsets = offsets;
    return mhai_kv_cache_attend(a->context, a->cache, &desc, firsts, &q, &heads, &a->outputs);
}

/* Whether the sinks have the same positions for row t as for the row before. */
static bool same_places(const mhai_attend *a, int64_t t)
{
    for (int64_t b = 0; b < a->q.shape[0]; b++)
        if (shift_of(a, b, t) != shift_of(a, b, t - 1)) return false;
    return true;
}

static mha_status attend_moving(const mhai_attend *a)
{
    const int64_t B = a->q.shape[0], T = a->q.shape[2];
    const int64_t floats = a->sinks->count * (a->k.shape[1] * a->k.shape[3] + a->sinks->width);
    void *numbers, *room;
    const mha_scratch_mark mark = mha_scratch_top(a->context);
    MHA_TRY(mha_scratch_alloc(a->context, 2 * B, sizeof(int64_t), &numbers));
    MHA_TRY(mha_scratch_alloc(a->context, floats, sizeof(float), &room));
    mha_status status = MHA_OK;
    for (int64_t t = 0, end; t < T && status == MHA_OK; t = end) {
        for (end = t + 1; end < T && same_places(a, end);) end++;
        status = attend_part(a, t, end, numbers, room);
    }
    return mha_scratch_end(a->context, mark, status);
}

/* ---- queries and keys ---------------------------------------------------------------------- */

mha_status mhai_attend_position(const mhai_attend *a)
{
    static const mha_tensor none;
    const mha_tensor *k = a->borrows ? &none : &a->k;
    if (a->q.ndim) MHA_TRY(normalise(a, &a->q, a->q_norm));
    if (k->ndim) MHA_TRY(normalise(a, k, a->k_norm));
    if (k->ndim && a->norms_values)
        MHA_TRY(mha_qk_norm(a->context, a->qk_norm, a->qk_norm_epsilon, &a->v, NULL, &a->v));
    if (a->sinks) keep_sinks(a);
    return rotate_both(a, &a->q, k, 0);
}

/* ---- attention ----------------------------------------------------------------------------- */

mha_status mhai_attend_run(const mhai_attend *a)
{
    if (!a->cache)
        return mha_attention_forward(a->context, &a->desc, &a->q, &a->k, &a->v, &a->heads,
                                     &a->outputs);
    if (a->k.ndim && !a->borrows)
        MHA_TRY(mha_kv_cache_append_rows(a->cache, &a->k, &a->v, a->firsts, a->counts));
    if (!a->q.ndim) return MHA_OK;
    if (a->sinks) return attend_moving(a);
    return mhai_kv_cache_attend(a->context, a->cache, &a->desc, a->firsts, &a->q, &a->heads,
                                &a->outputs);
}

/* ---- backward ------------------------------------------------------------------------------ */

/* Copy vectors [B,H,T,D] to rows [B*T*H,D], or back. The rows of a token are contiguous. */
static void copy_vectors(const mha_tensor *x, float *rows, bool out)
{
    const size_t bytes = (size_t)x->shape[3] * sizeof(float);
    for (int64_t b = 0; b < x->shape[0]; b++)
        for (int64_t t = 0; t < x->shape[2]; t++)
            for (int64_t h = 0; h < x->shape[1]; h++, rows += x->shape[3]) {
                float *vector =
                    (float *)x->data + b * x->stride[0] + h * x->stride[1] + t * x->stride[2];
                memcpy(out ? rows : vector, out ? vector : rows, bytes);
            }
}

static mha_status normalise_back(const mhai_attend *a, const mha_tensor *given, const float *weight,
                                 const mhai_attend_norm *norm)
{
    const mha_tensor gradient = normed(a, given), *dx = &gradient;
    const int64_t D = dx->shape[3], count = dx->shape[0] * dx->shape[1] * dx->shape[2];
    void *memory;
    if (!weight) return MHA_OK;
    const mha_tensor input = normed(a, norm->input);
    const mha_scratch_mark mark = mha_scratch_top(a->context);
    MHA_TRY(mha_scratch_alloc(a->context, 2 * count * D, sizeof(float), &memory));
    float *inputs = memory, *gradients = inputs + count * D;
    copy_vectors(&input, inputs, true);
    copy_vectors(dx, gradients, true);
    const int64_t shape[] = {count, D};
    const mha_tensor x = mha_tensor_contiguous(inputs, MHA_F32, 2, shape);
    const mha_tensor dy = mha_tensor_contiguous(gradients, MHA_F32, 2, shape);
    const mha_tensor w = view_weight(weight, D);
    const mha_tensor dw = mha_tensor_contiguous(norm->weight, MHA_F32, 1, &D);
    MHA_TRY(mha_rms_norm_backward(a->context,
                                  &(mha_norm_gradients){.struct_size = sizeof(mha_norm_gradients),
                                                        .x = &x,
                                                        .weight = &w,
                                                        .dy = &dy,
                                                        .dx = &dy,
                                                        .dweight = norm->weight ? &dw : NULL,
                                                        .epsilon = a->qk_norm_epsilon}));
    copy_vectors(dx, gradients, false);
    mha_scratch_release(a->context, mark);
    return MHA_OK;
}

mha_status mhai_attend_position_backward(const mhai_attend *a, const mha_tensor *dq,
                                         const mha_tensor *dk, const mhai_attend_norm *q_norm,
                                         const mhai_attend_norm *k_norm)
{
    static const mha_tensor none;
    if (a->borrows) dk = &none;
    MHA_TRY(rotate_both(a, dq, dk, MHA_ROPE_INVERSE));
    MHA_TRY(normalise_back(a, dq, a->q_norm, q_norm));
    return dk->ndim ? normalise_back(a, dk, a->k_norm, k_norm) : MHA_OK;
}

mha_status mhai_attend_values_backward(const mhai_attend *a, const mha_tensor *v,
                                       const mha_tensor *dv)
{
    mhai_attend own = *a;
    float *ones;
    own.norms_row = false;
    if (!a->norms_values || a->borrows) return MHA_OK;
    const mha_scratch_mark mark = mha_scratch_top(a->context);
    MHA_TRY(mha_scratch_alloc(a->context, dv->shape[3], sizeof *ones, &ones));
    for (int64_t i = 0; i < dv->shape[3]; i++) ones[i] = 1;
    const mha_status status = normalise_back(&own, dv, ones, &(mhai_attend_norm){v, NULL});
    return mha_scratch_end(a->context, mark, status);
}
