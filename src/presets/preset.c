/* What the presets share; see preset.h. */
#include "presets/preset.h"

#include "base/half.h"
#include "base/tensor.h"

#include <multihead/component.h>

#include <math.h>
#include <string.h>

/* ---- checks ---------------------------------------------------------------------------------- */

mha_status mhai_preset_check_input(const char *name, const mha_tensor *x, int type)
{
    MHA_TRY(mhai_tensor_check_real(name, x));
    if (x->ndim < 0 || x->ndim > MHA_MAX_DIMS)
        return mha_fail(MHA_ERR_SHAPE, "%s: has %d dimensions, expected at most %d", name,
                        (int)x->ndim, (int)MHA_MAX_DIMS);
    MHA_TRY(mhai_tensor_check(name, x, type < 0 ? x->dtype : (mha_dtype)type, x->ndim, NULL));
    return mhai_tensor_check_last(name, x);
}

mha_status mhai_preset_check_output(const char *name, const mha_tensor *x, mha_dtype type, int ndim,
                                    const int64_t *shape)
{
    MHA_TRY(mhai_tensor_check(name, x, type, ndim, shape));
    MHA_TRY(mhai_tensor_check_last(name, x));
    return mhai_tensor_check_output(name, x);
}

mha_status mhai_preset_check_mask(const char *name, const mha_tensor *mask, mha_dtype type)
{
    if (mask->dtype != MHA_U8 && mask->dtype != MHA_F32 && mask->dtype != type)
        return mha_fail(MHA_ERR_DTYPE,
                        "%s: dtype is %s, expected u8 (a boolean), f32 or that of "
                        "the inputs, %s",
                        name, mha_dtype_name(mask->dtype), mha_dtype_name(type));
    if (mask->ndim < 0 || mask->ndim > MHA_MAX_DIMS)
        return mha_fail(MHA_ERR_SHAPE, "%s: has %d dimensions, expected at most %d", name,
                        (int)mask->ndim, (int)MHA_MAX_DIMS);
    return mhai_tensor_check(name, mask, mask->dtype, mask->ndim, NULL);
}

/* ---- elements -------------------------------------------------------------------------------- */

bool mhai_preset_is_empty(const mha_tensor *x)
{
    for (int i = 0; i < x->ndim; i++)
        if (x->shape[i] == 0) return true;
    return false;
}

float mhai_preset_load(const mha_tensor *x, int64_t offset)
{
    if (x->dtype == MHA_F32) return ((const float *)x->data)[offset];
    uint16_t half = ((const uint16_t *)x->data)[offset];
    return x->dtype == MHA_F16 ? mhai_f16_to_f32(half) : mhai_bf16_to_f32(half);
}

bool mhai_preset_next(const mha_tensor *x, int axes, int64_t *index)
{
    for (int i = axes - 1; i >= 0; i--) {
        if (++index[i] < x->shape[i]) return true;
        index[i] = 0;
    }
    return false;
}

int64_t mhai_preset_offset(const mha_tensor *x, int axes, const int64_t *index)
{
    int64_t offset = 0;
    for (int i = 0; i < axes; i++) offset += index[i] * x->stride[i];
    return offset;
}

/* ---- masks ----------------------------------------------------------------------------------- */

/* Below this values are moved: to at most -2.3e38 / log2 e they may go (attention.h), and moved by
 * half the lowest float is -2.2e38. */
static const float low = -1e38f;

float mhai_preset_move(float x)
{
    return x < low && x > -INFINITY ? x * 0.5f + low * 0.5f : x;
}

float mhai_preset_restore(float x)
{
    if (!(x < low) || x == -INFINITY) return x;
    double original = 2.0 * (double)x - (double)low;
    return original < -0x1.fffffep127 ? -0x1.fffffep127f : (float)original;
}

/* The same elements, but what is repeated only once. */
static mha_tensor once(const mha_tensor *mask)
{
    mha_tensor view = *mask;
    for (int i = 0; i < view.ndim; i++)
        if (view.stride[i] == 0 && view.shape[i] > 1) view.shape[i] = 1;
    return view;
}

/* Does a float mask hold a value that must be moved? */
static bool holds_low(const mha_tensor *mask)
{
    int64_t index[MHA_MAX_DIMS] = {0};
    const int rows = mask->ndim - 1;
    if (mask->dtype == MHA_F16 || mhai_preset_is_empty(mask)) return false;
    if (mask->ndim == 0)
        return mhai_preset_move(mhai_preset_load(mask, 0)) != mhai_preset_load(mask, 0);
    do {
        int64_t at = mhai_preset_offset(mask, rows, index);
        bool found = false;
        for (int64_t s = 0; s < mask->shape[rows]; s++) {
            float x = mhai_preset_load(mask, at + s * mask->stride[rows]);
            found |= x < low && x > -INFINITY;
        }
        if (found) return true;
    } while (mhai_preset_next(mask, rows, index));
    return false;
}

/* One row of the copy, extended to its width. */
static void copy_row(const mha_tensor *mask, int64_t from, const mha_tensor *copy, int64_t to)
{
    const int last = mask->ndim - 1;
    int64_t given = mask->ndim ? mask->shape[last] : 1, step = mask->ndim ? mask->stride[last] : 0;
    int64_t width = mask->ndim ? copy->shape[last] : 1;
    for (int64_t s = 0; s < width; s++) {
        bool there = s < given;
        if (copy->dtype == MHA_U8)
            ((uint8_t *)copy->data)[to + s] =
                there && ((const uint8_t *)mask->data)[from + s * step] != 0;
        else
            ((float *)copy->data)[to + s] =
                there ? mhai_preset_move(mhai_preset_load(mask, from + s * step)) : -INFINITY;
    }
}

static mha_status copy_mask(mha_context *context, const mha_tensor *mask, int64_t width,
                            mha_tensor *copy)
{
    const mha_dtype type = mask->dtype == MHA_U8 ? MHA_U8 : MHA_F32;
    mha_tensor from = once(mask), shaped = from;
    int64_t count, index[MHA_MAX_DIMS] = {0};
    if (width >= 0) shaped.shape[from.ndim - 1] = width;
    MHA_TRY(mha_tensor_count(&shaped, &count));
    void *memory;
    MHA_TRY(mha_scratch_alloc(context, count, mha_dtype_size(type), &memory));
    *copy = mha_tensor_contiguous(memory, type, shaped.ndim, shaped.shape);
    if (mhai_preset_is_empty(copy)) return MHA_OK;
    const int rows = from.ndim ? from.ndim - 1 : 0;
    do {
        copy_row(&from, mhai_preset_offset(&from, rows, index), copy,
                 mhai_preset_offset(copy, rows, index));
    } while (mhai_preset_next(&from, rows, index));
    return MHA_OK;
}

mha_status mhai_preset_mask_make(mha_context *context, const mha_tensor *mask, int64_t width,
                                 mhai_preset_mask *made)
{
    *made = (mhai_preset_mask){0};
    if (!mask) return MHA_OK;
    bool extend = width >= 0 && mask->shape[mask->ndim - 1] != width;
    made->view = *mask;
    mha_tensor distinct = once(mask);
    made->moved = mask->dtype != MHA_U8 && holds_low(&distinct);
    if (extend || made->moved) MHA_TRY(copy_mask(context, mask, extend ? width : -1, &made->view));
    if (mask->dtype == MHA_U8)
        made->keep = &made->view;
    else
        made->bias = &made->view;
    return MHA_OK;
}

/* ---- calls ----------------------------------------------------------------------------------- */

mha_status mhai_preset_prepare(mha_context *context, const mha_attention_desc *desc,
                               const mha_tensor *q, const mha_tensor *k, const mha_tensor *v,
                               const mha_tensor *o, const mha_attention_outputs *outputs)
{
    enum { ALIGNMENTS = 4096 }; /* room for a few allocations' own rounding */
    mha_attention_plan plan;
    void *memory;
    MHA_TRY(mha_attention_explain(context, desc, q, k, v, o, outputs, &plan));
    /* As long as something is allocated the scratch keeps its blocks, and the last one, which
     * serves the next call, has the size asked for here. */
    MHA_TRY(mha_scratch_alloc(context, 1, 1, &memory));
    mha_scratch_mark mark = mha_scratch_top(context);
    size_t bytes =
        plan.scratch_bytes < SIZE_MAX - ALIGNMENTS ? plan.scratch_bytes + ALIGNMENTS : SIZE_MAX;
    MHA_TRY(mha_scratch_alloc(context, 1, bytes, &memory));
    mha_scratch_release(context, mark);
    return MHA_OK;
}
