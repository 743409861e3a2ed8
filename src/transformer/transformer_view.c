/* Views of the activations of a forward call, and of parameters by name. */
#include "base/need.h"
#include "transformer/transformer_parts.h"

#include <stdio.h>
#include <string.h>

/* A view [B,T,width] of activations. */
static mha_tensor tokens_view(const mha_activations *a, const float *data, int64_t width)
{
    mha_tensor rows = mhai_transformer_rows(data, a->B * a->T, width, width);
    return mha_tensor_contiguous(rows.data, MHA_F32, 3, (const int64_t[]){a->B, a->T, width});
}

static void view_step(const mha_activations *a, const mhai_kept_step *step, const float *next,
                      mha_layer_view *view)
{
    const int64_t width = a->transformer->desc.embed_dim;
    view->stream = tokens_view(a, step->x, width);
    view->input = tokens_view(a, step->in, width);
    const bool post = mhai_transformer_has(a->transformer, MHA_TRANSFORMER_POST_NORM);
    if (step->z || !post) view->sum = tokens_view(a, post ? step->z : next, width);
    view->next = tokens_view(a, next, width);
}

static void view_attention(const mha_activations *a, const mhai_kept_attention *kept, int64_t layer,
                           bool cross, const mhai_attend *attend, mha_layer_view *view)
{
    const mhai_heads heads = mhai_transformer_heads_of(&a->transformer->desc, layer, cross);
    if (heads.q == 0) return; /* a layer without heads */
    const mhai_qkv qkv = mhai_transformer_qkv(a, layer, cross, kept->qkv, kept->memory);
    view->q = qkv.q;
    view->k = qkv.k;
    view->v = qkv.v;
    view->heads = mhai_transformer_heads(a, layer, cross, kept->heads);
    view->concatenated = tokens_view(a, kept->heads, view->heads.shape[1] * view->heads.shape[3]);
    if (!cross) view->mixer = mhai_transformer_mix(&a->transformer->desc, layer).mixer;
    if (view->mixer) {
        mhai_recurrent_view(a, layer, view);
        return;
    }
    view->lse = mhai_transformer_lse(a, heads, kept->lse);
    view->attention = attend->desc;
    if (kept->relative) view->attention.bias = &kept->bias;
    view->attention.struct_size = sizeof view->attention;
}

static mha_status check_kept(const mha_activations *a, const char *name, uint32_t given,
                             size_t size)
{
    if (given != size)
        return mha_fail(MHA_ERR_ARGUMENT, "%s: struct_size is %u, set it to sizeof(%s)", name,
                        (unsigned)given, name);
    if (a->T >= 0) return MHA_OK;
    return mha_fail(MHA_ERR_ARGUMENT, "activations: they hold no batch, call "
                                      "mha_transformer_forward() first");
}

static mha_status check_part(const mha_transformer *t, int64_t layer, mha_layer_part part)
{
    if (layer < 0 || layer >= t->desc.num_layers)
        return mha_fail(MHA_ERR_ARGUMENT, "there is no layer %lld, the last is %lld",
                        (long long)layer, (long long)t->desc.num_layers - 1);
    if ((unsigned)part > MHA_PART_FEED_FORWARD)
        return mha_fail(MHA_ERR_ARGUMENT, "layers have no part %d", (int)part);
    if (part == MHA_PART_CROSS_ATTENTION && !mhai_transformer_has(t, MHA_TRANSFORMER_CROSS))
        return mha_fail(MHA_ERR_ARGUMENT, "this transformer has no cross-attention");
    if (part == MHA_PART_FEED_FORWARD && !mha_transformer_feeds(&t->desc, layer))
        return mha_fail(MHA_ERR_ARGUMENT, "layer %lld has no feed-forward part", (long long)layer);
    return MHA_OK;
}

static void view_hidden(const mha_activations *a, int64_t layer, mha_layer_view *view)
{
    const mhai_kept_layer *kept = &a->layers[layer];
    const mha_experts_desc *x = mhai_transformer_experts(&a->transformer->desc, layer);
    if (!x) {
        view->hidden = tokens_view(a, kept->act, mhai_transformer_ff(&a->transformer->desc, layer));
        return;
    }
    view->expert_weights = tokens_view(a, kept->experts.weights, x->used);
    view->experts = view->expert_weights;
    view->experts.data = kept->experts.chosen;
    view->experts.dtype = MHA_I32;
}

mha_status mha_activations_layer(const mha_activations *a, int64_t layer, mha_layer_part part,
                                 mha_layer_view *view)
{
    MHA_NEED_AS("mha_activations_layer", "activations, view", a, view);
    MHA_TRY(check_kept(a, "mha_layer_view", view->struct_size, sizeof *view));
    MHA_TRY(check_part(a->transformer, layer, part));
    if (a->passing && layer != a->layer)
        return mha_fail(MHA_ERR_ARGUMENT, "layer %lld is not kept: this call keeps layer %lld only",
                        (long long)layer, (long long)a->layer);
    if (layer < a->first)
        return mha_fail(MHA_ERR_ARGUMENT, "layer %lld is not kept: the call began with layer %lld",
                        (long long)layer, (long long)a->first);
    const mhai_kept_layer *kept = &a->layers[layer];
    const float *next = mhai_transformer_next(a, layer, (int)part);
    *view = (mha_layer_view){.struct_size = sizeof *view};
    if (part == MHA_PART_FEED_FORWARD) {
        view_step(a, &kept->ff, next, view);
        view->next = tokens_view(a, mhai_transformer_next(a, layer, MHAI_LAYER_END),
                                 a->transformer->desc.embed_dim);
        view_hidden(a, layer, view);
        return MHA_OK;
    }
    const bool cross = part == MHA_PART_CROSS_ATTENTION;
    const mhai_kept_attention *attention = cross ? &kept->cross : &kept->self;
    view_step(a, &attention->step, next, view);
    const mhai_place_layer *place = &a->transformer->layers[layer];
    view_attention(a, attention, layer, cross, cross ? &place->cross.attend : &place->self.attend,
                   view);
    return MHA_OK;
}

mha_status mha_activations_stream(const mha_activations *a, mha_stream_view *view)
{
    MHA_NEED_AS("mha_activations_stream", "activations, view", a, view);
    MHA_TRY(check_kept(a, "mha_stream_view", view->struct_size, sizeof *view));
    if (a->passing)
        return mha_fail(MHA_ERR_ARGUMENT, "the ends of the stream are not kept by this call");
    const int64_t width = a->transformer->desc.embed_dim;
    const float *first = a->layers[0].self.step.x;
    *view = (mha_stream_view){.struct_size = sizeof *view,
                              .last = tokens_view(a, a->x, width),
                              .normed = tokens_view(a, a->last, width)};
    if (a->first == 0) view->first = tokens_view(a, first, width);
    const bool normed = a->embedded && a->transformer->project.outputs == 0;
    if (!a->given) view->embedded = tokens_view(a, normed ? a->embedded : first, width);
    return MHA_OK;
}

mha_status mha_transformer_find(const mha_transformer *t, int64_t layer, const char *name,
                                mha_parameter *parameter)
{
    char prefix[32] = "";
    MHA_NEED_AS("mha_transformer_find", "transformer, name, parameter", t, name, parameter);
    if (layer >= 0) snprintf(prefix, sizeof prefix, "layers.%lld.", (long long)layer);
    const size_t length = strlen(prefix);
    for (int64_t i = 0; i < t->parameter_count; i++) {
        const mha_parameter *p = &t->parameters[i];
        if (strncmp(p->name, prefix, length) != 0 || strcmp(p->name + length, name) != 0) continue;
        *parameter = *p;
        return MHA_OK;
    }
    return mha_fail(MHA_ERR_ARGUMENT, "there is no parameter %s%s", prefix, name);
}
