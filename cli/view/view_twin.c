/* The norm-based twin of each map of a report: ||alpha f(x)||, the length of what arrives. */
#include "common/arena.h"
#include "common/text_model.h"
#include "view/view.h"

#include <multihead/attribution.h>
#include <multihead/component.h>

/* Beyond this a twin would cost the maps their precision: both fit into a report of 10 MB in 16
 * bits a cell. */
static bool fits(const attention_maps *maps, int64_t heads)
{
    const int64_t most = 1500000, tokens = maps->rows.count;
    return heads > 0 && tokens > 0 && tokens <= most / heads / tokens;
}

cli_exit view_want_twins(const view_options *options, attention_maps *maps)
{
    const int64_t cells = maps->heads * maps->rows.count * maps->rows.count;
    if (!options->html || options->contrast || maps->text[1] || !fits(maps, maps->picks.count))
        return CLI_OK;
    CLI_TRY(ARENA_ALLOC(VIEW, maps->layers, &maps->twin));
    for (int64_t l = 0; l < maps->layers; l++)
        if (maps_picks_in_layer(&maps->picks, l) > 0)
            CLI_TRY(ARENA_ALLOC(VIEW, cells, &maps->twin[l]));
    return CLI_OK;
}

mha_status view_make_twin(const text_model *model, const mha_activations *kept, int64_t layer,
                          attention_maps *maps)
{
    mha_layer_view view = {.struct_size = sizeof view};
    MHA_TRY(mha_activations_layer(kept, layer, MHA_PART_SELF_ATTENTION, &view));
    if (view.q.ndim == 0) return MHA_OK; /* a layer without heads */
    const int64_t T = view.q.shape[2], shape[] = {1, view.q.shape[1], T, T};
    const mha_tensor from = mha_tensor_contiguous(maps->layer[layer], MHA_F32, 4, shape);
    const mha_tensor to = mha_tensor_contiguous(maps->twin[layer], MHA_F32, 4, shape);
    const mha_norm_maps made = {.struct_size = sizeof made, .probabilities = &from, .heads = &to};
    return mha_layer_norm_maps(model->context, model->net, kept, layer, MHA_PART_SELF_ATTENTION,
                               &made);
}
