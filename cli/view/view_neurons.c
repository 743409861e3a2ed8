/* The queries and keys behind the maps of a report, as attention saw them. */
#include "common/arena.h"
#include "common/text_model.h"
#include "view/view.h"

#include <multihead/component.h>

#include <inttypes.h>

cli_exit view_want_neurons(const view_options *options, const text_model *model,
                           attention_maps *maps)
{
    if (!options->neurons) return CLI_OK;
    if (model->encoder)
        return cli_fail(CLI_UNSUPPORTED, VIEW,
                        "--neurons shows self-attention; give the encoder alone: %s/encoder",
                        options->model);
    const mha_transformer_desc *d = &model->desc;
    maps->channels = d->head_dim ? d->head_dim : d->embed_dim / d->num_heads;
    const int64_t count = maps->heads * maps->rows.count * maps->channels;
    CLI_TRY(ARENA_ALLOC(VIEW, maps->layers, &maps->queries));
    CLI_TRY(ARENA_ALLOC(VIEW, maps->layers, &maps->keys));
    CLI_TRY(ARENA_ALLOC(VIEW, maps->layers, &maps->score_scales));
    for (int64_t l = 0; l < maps->layers; l++) {
        if (maps_picks_in_layer(&maps->picks, l) == 0) continue;
        CLI_TRY(ARENA_ALLOC(VIEW, count, &maps->queries[l]));
        CLI_TRY(ARENA_ALLOC(VIEW, count, &maps->keys[l]));
    }
    return CLI_OK;
}

/* One head of [1,H,T,D], whatever its strides. */
static void copy_head(const mha_tensor *from, int64_t head, float *to)
{
    const float *data = (const float *)from->data + head * from->stride[1];
    const int64_t T = from->shape[2], D = from->shape[3];
    for (int64_t t = 0; t < T; t++)
        for (int64_t d = 0; d < D; d++)
            to[t * D + d] = data[t * from->stride[2] + d * from->stride[3]];
}

mha_status view_take_neurons(const mha_activations *kept, int64_t layer, attention_maps *maps)
{
    mha_layer_view view = {.struct_size = sizeof view};
    MHA_TRY(mha_activations_layer(kept, layer, MHA_PART_SELF_ATTENTION, &view));
    if (view.q.ndim == 0) return MHA_OK; /* a layer without heads */
    const int64_t H = view.q.shape[1], T = view.q.shape[2], D = view.q.shape[3];
    const int64_t group = H / view.k.shape[1]; /* heads that share a key */
    if (D != maps->channels || T != maps->rows.count)
        return mha_fail(MHA_ERR_SHAPE, "queries of layer %" PRId64 " have an unexpected size",
                        layer);
    for (int64_t h = 0; h < H; h++) {
        copy_head(&view.q, h, maps->queries[layer] + h * T * D);
        copy_head(&view.k, h / group, maps->keys[layer] + h * T * D);
    }
    maps->score_scales[layer] = (double)view.attention.scale;
    return MHA_OK;
}
