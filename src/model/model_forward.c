/* The public forward call: everything about a batch and its outputs is checked here, all of it
 * before the first byte is written, and then the architecture runs. */
#include "model/arch.h"

#include <multihead/component.h>

#include <stdio.h>
#include <string.h>

static mha_status check_reserved(const char *name, uint32_t reserved)
{
    if (reserved == 0) return MHA_OK;
    return mha_fail(MHA_ERR_UNSUPPORTED, "%s: reserved is %u, expected 0", name,
                    (unsigned)reserved);
}

/* ---- inputs -------------------------------------------------------------------------------- */

static mha_status check_sizes(const mha_model_info *info, const mha_batch *batch)
{
    int64_t tokens;
    if (batch->batch < 0 || batch->length < 0)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_batch: batch is %lld, length is %lld; neither can be "
                        "negative",
                        (long long)batch->batch, (long long)batch->length);
    if (batch->length > info->max_positions)
        return mha_fail(MHA_ERR_SIZE, "%lld tokens, the model takes at most %lld; shorten the text",
                        (long long)batch->length, (long long)info->max_positions);
    if (__builtin_mul_overflow(batch->batch, batch->length, &tokens))
        return mha_fail(MHA_ERR_SIZE, "mha_batch: batch times length overflows 64 bits");
    if (tokens > 0 && !batch->ids) return mha_fail(MHA_ERR_NULL, "mha_batch: ids is NULL");
    return MHA_OK;
}

static mha_status check_entries(const char *name, const int32_t *entries, const mha_batch *batch,
                                int64_t limit)
{
    for (int64_t i = 0; entries && i < batch->batch * batch->length; i++)
        if (entries[i] < 0 || entries[i] >= limit)
            return mha_fail(MHA_ERR_ARGUMENT,
                            "mha_batch: %s of sequence %lld, token %lld is %d, the model has "
                            "0..%lld; use the model's own tokenizer",
                            name, (long long)(i / batch->length), (long long)(i % batch->length),
                            (int)entries[i], (long long)(limit - 1));
    return MHA_OK;
}

static mha_status check_batch(const mha_model_info *info, const mha_batch *batch)
{
    MHA_TRY(check_sizes(info, batch));
    MHA_TRY(check_entries("id", batch->ids, batch, info->vocab_size));
    MHA_TRY(check_entries("type id", batch->type_ids, batch, info->type_vocab_size));
    for (int64_t b = 0; batch->lengths && b < batch->batch; b++)
        if (batch->lengths[b] < 0 || batch->lengths[b] > batch->length)
            return mha_fail(MHA_ERR_ARGUMENT,
                            "mha_batch: length of sequence %lld is %lld, expected "
                            "0..%lld",
                            (long long)b, (long long)batch->lengths[b], (long long)batch->length);
    return MHA_OK;
}

/* ---- outputs ------------------------------------------------------------------------------- */

enum { LAYER_OUTPUTS = 9 };

/* The outputs that one layer writes, and the bytes that they lie in. */
typedef struct span {
    char name[64];
    uintptr_t begin, end;
} span;

typedef struct spans {
    span span[LAYER_OUTPUTS];
    int count;
} spans;

static mha_status check_shape(const char *name, const mha_tensor *tensor, int ndim,
                              const int64_t *shape)
{
    if (tensor->dtype != MHA_F32)
        return mha_fail(MHA_ERR_DTYPE, "%s: dtype is %s, expected f32", name,
                        mha_dtype_name(tensor->dtype));
    if (tensor->ndim != ndim)
        return mha_fail(MHA_ERR_SHAPE, "%s: has %d dimensions, expected %d", name,
                        (int)tensor->ndim, ndim);
    for (int i = 0; i < ndim; i++)
        if (tensor->shape[i] != shape[i])
            return mha_fail(MHA_ERR_SHAPE, "%s: dim %d is %lld, expected %lld", name, i,
                            (long long)tensor->shape[i], (long long)shape[i]);
    return MHA_OK;
}

/* Axes from the smallest stride up must each step over all that the smaller ones span; then no two
 * elements share memory. Gives the lowest and one past the highest element. */
static mha_status check_strides(const char *name, const mha_tensor *tensor, int64_t *low,
                                int64_t *high)
{
    const int64_t limit = PTRDIFF_MAX / 64;
    int64_t reached = 1;
    bool used[MHA_MAX_DIMS] = {false};
    *low = 0;
    for (int done = 0; done < tensor->ndim; done++) {
        int next = -1;
        int64_t step = 0;
        for (int i = 0; i < tensor->ndim; i++) {
            int64_t s = tensor->stride[i];
            if (s < -limit || s > limit)
                return mha_fail(MHA_ERR_SIZE, "%s: stride %lld is too large", name, (long long)s);
            s = s < 0 ? -s : s;
            if (!used[i] && (next < 0 || s < step)) next = i, step = s;
        }
        used[next] = true;
        int64_t reach, steps = tensor->shape[next] - 1;
        if (steps == 0) continue;
        if (step < reached)
            return mha_fail(MHA_ERR_STRIDE, "%s: output elements share memory along dim %d", name,
                            next);
        if (__builtin_mul_overflow(step, steps, &reach) || reach > limit - reached)
            return mha_fail(MHA_ERR_SIZE, "%s: reaches beyond the address space", name);
        reached += reach;
        if (tensor->stride[next] < 0) *low -= reach;
    }
    *high = *low + reached;
    return MHA_OK;
}

static mha_status check_output(const char *name, int64_t layer, const mha_tensor *tensor, int ndim,
                               const int64_t *shape, spans *all)
{
    if (!tensor) return MHA_OK;
    int64_t count = 0, low = 0, high = 0;
    span *own = &all->span[all->count];
    if (layer < 0)
        snprintf(own->name, sizeof own->name, "%s", name);
    else
        snprintf(own->name, sizeof own->name, "%s of layer %lld", name, (long long)layer);
    MHA_TRY(check_shape(own->name, tensor, ndim, shape));
    MHA_TRY(mha_tensor_count(tensor, &count));
    if (count == 0) return MHA_OK;
    if (!tensor->data) return mha_fail(MHA_ERR_NULL, "%s: data is NULL", own->name);
    if ((uintptr_t)tensor->data % sizeof(float) != 0 ||
        (shape[ndim - 1] > 1 && tensor->stride[ndim - 1] != 1))
        return mha_fail(MHA_ERR_STRIDE, "%s: the last axis must be contiguous and aligned",
                        own->name);
    MHA_TRY(check_strides(own->name, tensor, &low, &high));
    own->begin = (uintptr_t)tensor->data + (uintptr_t)(low * (int64_t)sizeof(float));
    own->end = (uintptr_t)tensor->data + (uintptr_t)(high * (int64_t)sizeof(float));
    for (const span *other = all->span; other < own; other++)
        if (own->begin < other->end && other->begin < own->end)
            return mha_fail(MHA_ERR_OVERLAP, "%s overlaps %s: give it memory of its own", own->name,
                            other->name);
    all->count++;
    return MHA_OK;
}

static mha_status check_attention(const mha_model_info *info, const mhai_pass *pass, int64_t layer,
                                  spans *all)
{
    mha_module_outputs w;
    const mha_module_outputs *given = pass->want.attention ? pass->want.attention[layer] : NULL;
    if (!given) return MHA_OK;
    MHA_TRY(mha_struct_read("mha_module_outputs", &w, sizeof w,
                            offsetof(mha_module_outputs, attention), given, given->struct_size));
    MHA_TRY(check_reserved("mha_module_outputs", w.reserved));
    if (w.attention)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_module_outputs: attention of layer %lld is set, but a model gives the "
                        "module's own outputs only",
                        (long long)layer);
    const int64_t B = pass->B, T = pass->T, H = info->heads, Hk = info->kv_heads;
    const int64_t D = info->head_dim;
    const int64_t map[] = {B, H, T, T}, mean[] = {B, T, T}, row[] = {B, H, T};
    const int64_t query[] = {B, H, T, D}, key[] = {B, Hk, T, D};
    MHA_TRY(check_output("probabilities", layer, w.probabilities, 4, map, all));
    MHA_TRY(check_output("average_probabilities", layer, w.average_probabilities, 3, mean, all));
    MHA_TRY(check_output("lse", layer, w.lse, 3, row, all));
    MHA_TRY(check_output("q", layer, w.q, 4, query, all));
    MHA_TRY(check_output("k", layer, w.k, 4, key, all));
    MHA_TRY(check_output("v", layer, w.v, 4, key, all));
    return check_output("heads", layer, w.heads, 4, query, all);
}

static mha_status check_outputs(const mha_model_info *info, const mhai_pass *pass)
{
    const mha_model_outputs *want = &pass->want;
    const int64_t shape[] = {pass->B, pass->T, info->hidden_size};
    spans first = {.count = 0};
    if (want->hidden) MHA_TRY(check_output("hidden[0]", -1, want->hidden[0], 3, shape, &first));
    for (int64_t l = 0; l < info->layers; l++) {
        spans all = {.count = 0};
        MHA_TRY(check_attention(info, pass, l, &all));
        if (want->hidden)
            MHA_TRY(check_output("hidden state", l, want->hidden[l + 1], 3, shape, &all));
        if (l == info->layers - 1)
            MHA_TRY(check_output("last_hidden", -1, want->last_hidden, 3, shape, &all));
    }
    return MHA_OK;
}

mha_status mha_model_forward(mha_context *context, const mha_model *model, const mha_batch *batch,
                             const mha_model_outputs *outputs)
{
    if (!context || !model || !batch)
        return mha_fail(MHA_ERR_NULL, "mha_model_forward: %s is NULL",
                        !context ? "context"
                        : !model ? "model"
                                 : "batch");
    mha_batch own;
    mhai_pass pass = {.context = context};
    MHA_TRY(mha_struct_read("mha_batch", &own, sizeof own, sizeof own, batch, batch->struct_size));
    MHA_TRY(mha_struct_read("mha_model_outputs", &pass.want, sizeof pass.want, sizeof pass.want,
                            outputs, outputs ? outputs->struct_size : 0));
    MHA_TRY(check_reserved("mha_batch", own.reserved));
    MHA_TRY(check_reserved("mha_model_outputs", pass.want.reserved));
    MHA_TRY(check_batch(&model->info, &own));
    pass.B = own.batch;
    pass.T = own.length;
    pass.ids = own.ids;
    pass.type_ids = own.type_ids;
    pass.lengths = own.lengths;
    MHA_TRY(check_outputs(&model->info, &pass));
    return model->arch->forward(model, &pass);
}
