/* The norm-based twin of each map of a report: ||alpha f(x)||, the length of what arrives. */
#include "text_model.h"
#include "view.h"

#include <multihead/attribution.h>

#include <stdlib.h>

/* Beyond this a twin would cost the maps their precision: both fit into a report of 10 MB in 16
 * bits a cell. */
static bool fits(const attention_maps *maps, int64_t heads)
{
    const int64_t most = 1500000, tokens = maps->rows.count;
    return heads > 0 && tokens > 0 && tokens <= most / heads / tokens;
}

/* The twins of a layer's maps; both [H,T,T]. */
static mha_status make_twin(const text_model *model, const mha_activations *kept, int64_t layer,
                            float *weights, float *twin)
{
    mha_layer_view view = {.struct_size = sizeof view};
    mha_status status = mha_activations_layer(kept, layer, MHA_PART_SELF_ATTENTION, &view);
    if (status != MHA_OK || view.q.ndim == 0) return status; /* a layer without heads */
    const int64_t T = view.q.shape[2], shape[] = {1, view.q.shape[1], T, T};
    const mha_tensor from = mha_tensor_contiguous(weights, MHA_F32, 4, shape);
    const mha_tensor to = mha_tensor_contiguous(twin, MHA_F32, 4, shape);
    const mha_norm_maps maps = {.struct_size = sizeof maps, .heads = &to};
    return mha_layer_norm_maps(model->context, model->net, kept, layer, MHA_PART_SELF_ATTENTION,
                               NULL, &from, &maps);
}

static cli_exit make_twins(const text_model *model, const mha_activations *kept,
                           const maps_picks *picks, attention_maps *maps)
{
    const int64_t cells = maps->heads * maps->rows.count * maps->rows.count;
    void *memory;
    cli_exit code = maps_alloc(VIEW, maps->layers, sizeof(float *), &memory);
    maps->twin = memory;
    for (int64_t l = 0; l < maps->layers && code == CLI_OK; l++) {
        if (maps_picks_in_layer(picks, l) == 0) continue;
        code = maps_alloc(VIEW, cells, sizeof(float), &memory);
        maps->twin[l] = memory;
        if (code != CLI_OK) break;
        mha_status status = make_twin(model, kept, l, maps->layer[l], maps->twin[l]);
        if (status != MHA_OK) code = cli_fail_status(VIEW, status);
    }
    return code;
}

/* What the maps were made by may be a model that keeps no values; the numbers of the maps are the
 * same with and without a report, so it is loaded again for the twins alone. */
cli_exit view_add_twins(const view_options *options, const text_model *model,
                        const text_tokens *tokens, const maps_picks *picks, attention_maps *maps)
{
    text_model again = {0};
    mha_activations *kept = NULL;
    if (!options->html || options->contrast || maps->text[1] || model->encoder || maps->cell > 1 ||
        !fits(maps, picks->count))
        return CLI_OK;
    cli_exit code = CLI_OK;
    if (!model->net) code = text_model_open(VIEW, options->model, options->threads, 0, &again);
    const text_model *used = model->net ? model : &again;
    if (code == CLI_OK) code = text_model_run(used, tokens, NULL, &kept);
    if (code == CLI_OK) code = make_twins(used, kept, picks, maps);
    mha_activations_destroy(kept);
    text_model_close(&again);
    return code;
}
