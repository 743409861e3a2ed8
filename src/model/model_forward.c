/* The forward call of a model. It validates the batch and all outputs before it writes anything.
 * The outputs of a layer are copied as soon as the transformer has computed that layer. */
#include "model/model.h"

#include <multihead/component.h>

#include <stdio.h>
#include <string.h>

static mha_status check_reserved(const char *name, uint32_t reserved)
{
    if (reserved == 0) return MHA_OK;
    return mha_fail(MHA_ERR_UNSUPPORTED, "%s: reserved is %u, expected 0", name,
                    (unsigned)reserved);
}

typedef struct model_call {
    mha_context *context;
    const mha_model *model;
    int64_t B, T;
    const int32_t *ids, *type_ids; /* [B,T]; type_ids may be NULL */
    const int64_t *lengths;        /* [B], may be NULL */
    const float *features;         /* [B,T,F], may be NULL */
    mha_model_outputs want;
} model_call;

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

/* The outputs of one layer, and the byte ranges of their memory. */
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

/* Elements do not share memory if each axis, in order of increasing stride, steps over the span of
 * all smaller ones. Compute the lowest address and the end. */
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
            return mha_fail(MHA_ERR_OVERLAP, "%s overlaps %s: use separate memory", own->name,
                            other->name);
    all->count++;
    return MHA_OK;
}

static mha_status check_attention(const model_call *pass, int64_t layer, spans *all)
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
    mha_transformer_desc d;
    mha_transformer_describe(pass->model->transformer, &d);
    const mha_layer_desc *of = d.layers ? &d.layers[layer] : NULL;
    const bool delta = of && of->key_dim > 0, latent = of && of->latent_dim > 0;
    const int64_t B = pass->B, T = pass->T;
    const int64_t D = delta ? of->key_dim : mha_transformer_head_dim(&d, layer);
    const int64_t Dv = delta || latent ? of->value_dim : D;
    const int64_t H = mha_transformer_heads(&d, layer);
    const int64_t Hk = mha_transformer_kv_heads(&d, layer);
    const int64_t map[] = {B, H, T, T}, mean[] = {B, T, T}, row[] = {B, H, T};
    const int64_t query[] = {B, delta ? Hk : H, T, D}, key[] = {B, Hk, T, D};
    const int64_t value[] = {B, delta ? H : Hk, T, Dv}, heads[] = {B, H, T, Dv};
    if (delta && w.lse)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_module_outputs: lse of layer %lld, which %s and has none",
                        (long long)layer, mha_layer_difference(of));
    MHA_TRY(check_output("probabilities", layer, w.probabilities, 4, map, all));
    MHA_TRY(check_output("average_probabilities", layer, w.average_probabilities, 3, mean, all));
    MHA_TRY(check_output("lse", layer, w.lse, 3, row, all));
    MHA_TRY(check_output("q", layer, w.q, 4, query, all));
    MHA_TRY(check_output("k", layer, w.k, 4, key, all));
    MHA_TRY(check_output("v", layer, w.v, 4, value, all));
    return check_output("heads", layer, w.heads, 4, heads, all);
}

static mha_status check_outputs(const mha_model_info *info, const model_call *pass)
{
    const mha_model_outputs *want = &pass->want;
    const int64_t shape[] = {pass->B, pass->T, info->hidden_size};
    for (int64_t l = 0; l < info->layers; l++) {
        spans all = {.count = 0};
        MHA_TRY(check_attention(pass, l, &all));
        if (want->hidden && l == 0) {
            spans first = all; /* hidden[0] may share memory with hidden[1], which
                                * is written later */
            MHA_TRY(check_output("hidden[0]", -1, want->hidden[0], 3, shape, &first));
        }
        if (want->hidden)
            MHA_TRY(check_output("hidden state", l, want->hidden[l + 1], 3, shape, &all));
        if (l == info->layers - 1)
            MHA_TRY(check_output("last_hidden", -1, want->last_hidden, 3, shape, &all));
    }
    return MHA_OK;
}

/* ---- the run ------------------------------------------------------------------------------- */

/* Copy rows between two tensors of the same shape, with 1 to 3 leading axes. */
static void copy_rows(const mha_tensor *from, const mha_tensor *to)
{
    const int last = to->ndim - 1;
    int64_t rows = 1;
    for (int i = 0; i < last; i++) rows *= to->shape[i];
    for (int64_t row = 0; row < rows; row++) {
        int64_t rest = row, at = 0, start = 0;
        for (int i = last - 1; i >= 0; i--) {
            at += rest % to->shape[i] * to->stride[i];
            start += rest % to->shape[i] * from->stride[i];
            rest /= to->shape[i];
        }
        memcpy((float *)to->data + at, (const float *)from->data + start,
               (size_t)to->shape[last] * sizeof(float));
    }
}

static void give(const mha_tensor *wanted, const mha_tensor *from)
{
    if (wanted) copy_rows(from, wanted);
}

static mha_status take_layer(void *user, const mha_activations *activations, int64_t layer)
{
    const model_call *p = user;
    const mha_model_outputs *want = &p->want;
    mha_layer_view view = {.struct_size = sizeof view}, last = view;
    MHA_TRY(mha_activations_layer(activations, layer, MHA_PART_SELF_ATTENTION, &view));
    mha_transformer_desc d;
    mha_transformer_describe(p->model->transformer, &d);
    const bool ff = mha_transformer_feeds(&d, layer);
    if (ff) MHA_TRY(mha_activations_layer(activations, layer, MHA_PART_FEED_FORWARD, &last));
    if (want->attention && want->attention[layer] && view.q.data) {
        mha_module_outputs w;
        MHA_TRY(mha_struct_read("mha_module_outputs", &w, sizeof w,
                                offsetof(mha_module_outputs, attention), want->attention[layer],
                                want->attention[layer]->struct_size));
        const mha_tensor lse = view.lse;
        give(w.lse, &lse);
        give(w.q, &view.q);
        give(w.k, &view.k);
        give(w.v, &view.v);
        give(w.heads, &view.heads);
    }
    if (want->hidden && layer == 0) give(want->hidden[0], &view.stream);
    if (want->hidden) give(want->hidden[layer + 1], ff ? &last.next : &view.next);
    return want->after_layer ? want->after_layer(want->after_layer_user, layer) : MHA_OK;
}

/* The requested outputs of the layers' attention. */
static mha_status want_of_layers(const model_call *p, const mha_attention_outputs *const **list)
{
    const int64_t layers = p->model->info.layers;
    *list = NULL;
    if (!p->want.attention) return MHA_OK;
    mha_attention_outputs *outputs;
    MHA_TRY(mha_scratch_alloc(p->context, layers, sizeof(mha_attention_outputs), &outputs));
    const mha_attention_outputs **pointers;
    MHA_TRY(mha_scratch_alloc(p->context, layers, sizeof *list, &pointers));
    for (int64_t l = 0; l < layers; l++) {
        const mha_module_outputs *given = p->want.attention[l];
        pointers[l] = NULL;
        if (!given) continue;
        mha_module_outputs w;
        MHA_TRY(mha_struct_read("mha_module_outputs", &w, sizeof w,
                                offsetof(mha_module_outputs, attention), given,
                                given->struct_size));
        outputs[l] = (mha_attention_outputs){.struct_size = sizeof outputs[l],
                                             .probabilities = w.probabilities,
                                             .average_probabilities = w.average_probabilities};
        pointers[l] = &outputs[l];
    }
    *list = pointers;
    return MHA_OK;
}

/* Copy the lengths, since an output may overwrite the caller's. */
static mha_status copy_lengths(const model_call *p, const int64_t **lengths)
{
    void *memory;
    *lengths = NULL;
    if (!p->lengths) return MHA_OK;
    MHA_TRY(mha_scratch_alloc(p->context, p->B, sizeof **lengths, &memory));
    memcpy(memory, p->lengths, (size_t)p->B * sizeof **lengths);
    *lengths = memory;
    return MHA_OK;
}

/* The transformer only reads them. */
static mha_tensor view_numbers(const model_call *p, const int32_t *numbers)
{
    union {
        const int32_t *in;
        void *out;
    } pointer = {numbers};
    return mha_tensor_contiguous(pointer.out, MHA_I32, 2, (const int64_t[]){p->B, p->T});
}

static mha_status run(const model_call *p)
{
    mha_transformer_desc d;
    mha_transformer_describe(p->model->transformer, &d);
    const mha_tensor tokens = view_numbers(p, p->ids), types = view_numbers(p, p->type_ids);
    union {
        const float *in;
        void *out;
    } rows = {p->features};
    const mha_tensor features =
        mha_tensor_contiguous(rows.out, MHA_F32, 3, (const int64_t[]){p->B, p->T, d.feature_dim});
    union {
        const model_call *in;
        void *out;
    } user = {p};
    mha_transformer_input input = {.struct_size = sizeof input,
                                   .tokens = &tokens,
                                   .token_types = p->type_ids && d.type_count ? &types : NULL,
                                   .features = p->features ? &features : NULL,
                                   .last_hidden = p->want.last_hidden,
                                   .after_layer = take_layer,
                                   .after_layer_user = user.out};
    MHA_TRY(copy_lengths(p, &input.lengths));
    MHA_TRY(want_of_layers(p, &input.outputs));
    return mha_transformer_forward(p->context, p->model->transformer, &input, NULL, NULL, NULL,
                                   NULL);
}

mha_status mha_model_forward(mha_context *context, const mha_model *model, const mha_batch *batch,
                             const mha_model_outputs *outputs)
{
    MHA_NEED("mha_model_forward", context, model, batch);
    mha_batch own;
    if (model->encoder)
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_model_forward: an encoder-decoder takes two "
                                             "texts; run its transformers");
    if (model->audio_stem)
        return mha_fail(
            MHA_ERR_UNSUPPORTED,
            "mha_model_forward: this encoder reads audio; call mha_model_encode_audio()");
    model_call pass = {.context = context, .model = model};
    MHA_TRY(mha_struct_read("mha_batch", &own, sizeof own, offsetof(mha_batch, features), batch,
                            batch->struct_size));
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
    pass.features = own.features;
    MHA_TRY(check_outputs(&model->info, &pass));
    if (pass.B * pass.T == 0) return MHA_OK;
    const mha_scratch_mark mark = mha_scratch_top(context);
    return mha_scratch_end(context, mark, run(&pass));
}
