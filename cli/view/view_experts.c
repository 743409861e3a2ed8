/* The experts of each token, as a table for each layer. */
#include "common/print.h"
#include "view/view.h"

#include <inttypes.h>

cli_exit view_check_experts(const view_options *options, const mha_maps *maps)
{
    if (!options->experts || maps->routes.layers > 0) return CLI_OK;
    return cli_fail(CLI_UNSUPPORTED, "--experts: no layer of %s has experts", options->model);
}

/* Layers without a selected head are omitted if layers are selected. */
static bool is_shown(const view_options *options, const mha_maps *maps, int64_t layer)
{
    return maps->routes.layer[layer].count > 0 &&
           (options->layers.count == 0 || mha_maps_count(maps, layer) > 0);
}

static void print_token(const mha_layer_routes *layer, const char *label, int64_t t)
{
    cli_print("  %-16s", label);
    for (int64_t k = t * layer->used; k < (t + 1) * layer->used; k++)
        cli_print(" %5" PRId32 " %.2f", layer->experts[k], (double)layer->weights[k]);
    cli_print("\n");
}

void view_print_experts(const view_options *options, const mha_maps *maps)
{
    const mha_tokens *tokens = maps->cell > 1 ? &maps->tokens : &maps->rows;
    for (int64_t l = 0; l < maps->routes.layers; l++) {
        const mha_layer_routes *layer = &maps->routes.layer[l];
        if (!is_shown(options, maps, l)) continue;
        cli_print("layer %" PRId64 ": %" PRId64 " of %" PRId64 " experts per token, with weights\n",
                  l, layer->used, layer->count);
        for (int64_t t = 0; t < maps->routes.tokens; t++) print_token(layer, tokens->labels[t], t);
    }
}
