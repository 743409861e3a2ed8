/* The experts that each token of a text uses. */
#include "study/routes.h"

#include "study/study.h"

#include <multihead/component.h>
#include <multihead/json.h>

#include <inttypes.h>
#include <string.h>

mha_status mhai_routes_make(const mha_transformer_desc *d, int64_t tokens, mha_room *room,
                            mha_routes *routes)
{
    *routes = (mha_routes){.struct_size = sizeof *routes};
    for (int64_t l = 0; d->layers && l < d->num_layers; l++) {
        const mha_experts_desc *x = &d->layers[l].experts;
        if (x->count == 0) continue;
        if (!routes->layer) MHA_TRY(MHA_ROOM_ALLOC(room, d->num_layers, &routes->layer));
        mha_layer_routes *to = &routes->layer[l];
        *to = (mha_layer_routes){.count = x->count, .used = x->used};
        MHA_TRY(MHA_ROOM_ALLOC(room, tokens * x->used, &to->experts));
        MHA_TRY(MHA_ROOM_ALLOC(room, tokens * x->used, &to->weights));
    }
    if (!routes->layer) return MHA_OK;
    routes->layers = d->num_layers;
    routes->tokens = tokens;
    return MHA_OK;
}

mha_status mhai_routes_take(const mha_routes *routes, const mha_activations *kept, int64_t layer)
{
    mha_layer_view view = {.struct_size = sizeof view};
    if (routes->layers == 0 || routes->layer[layer].count == 0) return MHA_OK;
    const mha_layer_routes *to = &routes->layer[layer];
    const size_t count = (size_t)(routes->tokens * to->used);
    MHA_TRY(mha_activations_layer(kept, layer, MHA_PART_FEED_FORWARD, &view));
    if (view.experts.shape[1] != routes->tokens || view.experts.shape[2] != to->used)
        return mha_fail(MHA_ERR_SHAPE, "routes: layer %" PRId64 " has an unexpected size", layer);
    memcpy(to->experts, view.experts.data, count * sizeof *to->experts);
    memcpy(to->weights, view.expert_weights.data, count * sizeof *to->weights);
    return MHA_OK;
}

static mha_status after_layer(void *user, const mha_activations *kept, int64_t layer)
{
    return mhai_routes_take(user, kept, layer);
}

mha_status mha_routes_measure(mha_context *context, const mha_transformer *transformer,
                              const mha_tokens *tokens, mha_routes *routes)
{
    mha_transformer_desc d = {.struct_size = sizeof d};
    MHA_NEED("mha_routes_measure", context, transformer, tokens, routes);
    MHA_TRY(mha_struct_check_size("mha_routes", routes->struct_size, sizeof *routes));
    if (tokens->count < 1 || tokens->count > INT32_MAX)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_routes_measure: count is %" PRId64 ", expected 1..%" PRId32,
                        tokens->count, INT32_MAX);
    mha_transformer_describe(transformer, &d);
    if (d.flags & MHA_TRANSFORMER_CROSS)
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_routes_measure: the transformer has a memory");
    mha_room room = {0};
    mha_routes made;
    mha_status status = mhai_routes_make(&d, tokens->count, &room, &made);
    if (status == MHA_OK && made.layers > 0) {
        mhai_sequence s;
        mhai_sequence_make(tokens, &d, &s);
        s.input.after_layer = after_layer;
        s.input.after_layer_user = &made;
        status = mha_transformer_forward(context, transformer, &s.input, NULL, NULL, NULL, NULL);
    }
    if (status == MHA_OK) {
        *routes = made;
        routes->memory = room;
    } else {
        mha_room_release(&room, 0);
    }
    return status;
}

void mha_routes_free(mha_routes *routes)
{
    if (!routes) return;
    mha_room_release(&routes->memory, 0);
    *routes = (mha_routes){.struct_size = routes->struct_size};
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void put_token(mha_json *json, const mha_layer_routes *layer, int64_t t)
{
    mha_json_array(json, NULL);
    for (int64_t k = t * layer->used; k < (t + 1) * layer->used; k++)
        mha_json_integer(json, NULL, layer->experts[k]);
    mha_json_end(json);
}

void mhai_routes_write_json(const mha_routes *routes, mha_json *json)
{
    if (routes->layers == 0) return;
    mha_json_array(json, "experts");
    mha_json_lines(json, 4);
    for (int64_t l = 0; l < routes->layers; l++) {
        const mha_layer_routes *layer = &routes->layer[l];
        if (layer->count == 0) continue;
        mha_json_object(json, NULL);
        mha_json_integer(json, "layer", l);
        mha_json_integer(json, "count", layer->count);
        mha_json_integer(json, "used", layer->used);
        mha_json_array(json, "experts");
        for (int64_t t = 0; t < routes->tokens; t++) put_token(json, layer, t);
        mha_json_end(json);
        mha_json_array(json, "weights");
        for (int64_t t = 0; t < routes->tokens; t++)
            mha_json_floats(json, NULL, layer->weights + t * layer->used, layer->used);
        mha_json_end(json);
        mha_json_end(json);
    }
    mha_json_end(json);
}
