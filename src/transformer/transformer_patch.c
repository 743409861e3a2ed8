/* Patches: values that replace outputs of heads, or the stream before the first layer. */
#include "transformer/transformer_parts.h"

#include "base/need.h"
#include "base/tensor.h"

#include <stdio.h>
#include <string.h>

/* Read patch i. The caller's struct may be shorter or longer. */
static mha_status read_patch(const mha_transformer_input *input, int64_t i, mha_head_patch *own)
{
    const unsigned char *first = (const unsigned char *)input->patches;
    return mha_struct_read("mha_head_patch", own, sizeof *own, sizeof *own,
                           first + i * input->patches->struct_size, input->patches->struct_size);
}

static mha_status check_patch(const mha_transformer *t, const mha_transformer_input *input,
                              int64_t i)
{
    const int64_t *tokens = input->tokens->shape;
    mha_head_patch p;
    char name[48], layer[64];
    MHA_TRY(read_patch(input, i, &p));
    snprintf(name, sizeof name, "patches[%lld]", (long long)i);
    if ((unsigned)p.part > MHA_PATCH_VALUE)
        return mha_fail(MHA_ERR_ARGUMENT, "%s: part %d is unknown", name, (int)p.part);
    snprintf(layer, sizeof layer, "%s: layer", name);
    MHA_TRY(mhai_check_range(layer, p.layer, input->first_layer, t->desc.num_layers - 1));
    const mhai_mix mix = mhai_transformer_mix(&t->desc, p.layer);
    const int64_t heads = mhai_transformer_heads_of(&t->desc, p.layer, false).q;
    const int64_t count = p.part == MHA_PATCH_OUTPUT  ? heads
                          : p.part == MHA_PATCH_QUERY ? mix.q
                          : p.part == MHA_PATCH_KEY   ? mix.k
                                                      : mix.v;
    const bool values = p.part == MHA_PATCH_OUTPUT || p.part == MHA_PATCH_VALUE;
    const int64_t shape[] = {tokens[0], tokens[1], values ? mix.Dv : mix.D};
    if (mix.borrows && (p.part == MHA_PATCH_KEY || p.part == MHA_PATCH_VALUE))
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "%s: layer %lld uses the keys and values of layer %lld; patch them there",
                        name, (long long)p.layer,
                        (long long)mhai_transformer_lender(&t->desc, p.layer));
    if (p.head < 0 || p.head >= count)
        return mha_fail(MHA_ERR_ARGUMENT, "%s: head is %lld, layer %lld has %lld%s", name,
                        (long long)p.head, (long long)p.layer, (long long)count,
                        count < heads ? " key/value heads" : "");
    MHA_TRY(mhai_tensor_check(name, p.values, MHA_F32, 3, shape));
    return mhai_tensor_check_last(name, p.values);
}

static mha_status check_stream(const mha_transformer *t, const mha_transformer_input *input)
{
    const int64_t shape[] = {input->tokens->shape[0], input->tokens->shape[1], t->desc.embed_dim};
    MHA_TRY(mhai_check_range("first_layer", input->first_layer, 0, t->desc.num_layers - 1));
    if (input->first_layer > 0 && !input->stream)
        return mha_fail(MHA_ERR_NULL, "first_layer is %lld, but stream, which it reads, is NULL",
                        (long long)input->first_layer);
    const int64_t start = mhai_transformer_start_layer(&t->desc, input->first_layer);
    if (start < input->first_layer)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "first_layer is %lld, but a later layer uses keys and values of an earlier "
                        "one; begin with layer %lld",
                        (long long)input->first_layer, (long long)start);
    if (!input->stream) return MHA_OK;
    MHA_TRY(mhai_tensor_check("stream", input->stream, MHA_F32, 3, shape));
    return mhai_tensor_check_last("stream", input->stream);
}

mha_status mhai_transformer_check_patches(const mha_transformer *t,
                                          const mha_transformer_input *input)
{
    MHA_TRY(check_stream(t, input));
    MHA_TRY(mhai_check_range("patch_count", input->patch_count, 0, INT64_MAX));
    if (input->patch_count > 0 && !input->patches)
        return mha_fail(MHA_ERR_NULL, "patches is NULL, but patch_count is %lld",
                        (long long)input->patch_count);
    for (int64_t i = 0; i < input->patch_count; i++) MHA_TRY(check_patch(t, input, i));
    return MHA_OK;
}

mha_status mhai_transformer_patches_apart(const mha_transformer_input *input, const char *name,
                                          const mha_tensor *written)
{
    for (int64_t i = 0; i < input->patch_count; i++) {
        mha_head_patch p;
        MHA_TRY(read_patch(input, i, &p));
        MHA_TRY(mhai_tensor_check_disjoint(name, written, "the values of a patch", p.values));
    }
    return MHA_OK;
}

/* Destination of a patch. Row i is at offset i * stride. */
static float *place_of(const mha_activations *a, const mha_head_patch *p, int64_t *stride)
{
    const mhai_mix mix = mhai_transformer_mix(&a->transformer->desc, p->layer);
    const mhai_kept_attention *kept = &a->layers[p->layer].self;
    *stride = p->part == MHA_PATCH_OUTPUT ? mix.out : mix.width;
    switch (p->part) {
    case MHA_PATCH_OUTPUT: return kept->heads + p->head * mix.Dv;
    case MHA_PATCH_KEY: return kept->qkv + mix.at_k + p->head * mix.D;
    case MHA_PATCH_VALUE: return kept->qkv + mix.at_v + p->head * mix.Dv;
    default: return kept->qkv + mix.at_q + p->head * mix.D;
    }
}

static void put(const mha_activations *a, const mha_head_patch *p)
{
    const mha_tensor *from = p->values;
    int64_t stride;
    float *to = place_of(a, p, &stride);
    for (int64_t i = 0; i < a->B * a->T; i++)
        if (!p->rows || p->rows[i])
            memcpy(to + i * stride,
                   (const float *)from->data + i / a->T * from->stride[0] +
                       i % a->T * from->stride[1],
                   (size_t)from->shape[2] * sizeof(float));
}

void mhai_transformer_patch(const mha_activations *a, const mha_transformer_input *input,
                            int64_t layer, bool output)
{
    mha_head_patch p;
    for (int64_t i = 0; i < input->patch_count; i++)
        if (read_patch(input, i, &p) == MHA_OK && p.layer == layer &&
            (p.part == MHA_PATCH_OUTPUT) == output)
            put(a, &p);
}
