/* The experts of each token, as a table for each layer. */
#include "common/print.h"
#include "view/view.h"

#include <inttypes.h>
#include <string.h>

/* Whether a layer has experts and is selected. */
static bool is_shown(const maps_picks *picks, const mha_maps *maps, int64_t layer)
{
    return maps->routes.layer[layer].count > 0 &&
           memchr(picks->on + layer * picks->heads, 1, (size_t)picks->heads);
}

static cli_exit pick(const view_options *options, const mha_maps *maps, maps_picks *picks)
{
    return maps_pick(&options->layers, &options->heads, maps->layers, maps->heads, picks);
}

cli_exit view_check_experts(const view_options *options, const mha_maps *maps)
{
    maps_picks picks;
    if (!options->experts) return CLI_OK;
    CLI_TRY(pick(options, maps, &picks));
    for (int64_t l = 0; l < maps->routes.layers; l++)
        if (is_shown(&picks, maps, l)) return CLI_OK;
    return maps->routes.layers > 0
               ? cli_fail(CLI_USAGE, "--experts: the selected layers have no experts; omit --layer "
                                     "and --head for all layers")
               : cli_fail(CLI_UNSUPPORTED, "--experts: no layer of %s has experts", options->model);
}

static void print_token(const mha_layer_routes *layer, const char *label, int64_t t)
{
    cli_print("  %-16s", label);
    for (int64_t k = t * layer->used; k < (t + 1) * layer->used; k++)
        cli_print(" %5" PRId32 " %.2f", layer->experts[k], (double)layer->weights[k]);
    cli_print("\n");
}

cli_exit view_print_experts(const view_options *options, const mha_maps *maps)
{
    maps_picks picks;
    CLI_TRY(pick(options, maps, &picks));
    const mha_tokens *tokens = maps->cell > 1 ? &maps->tokens : &maps->rows;
    for (int64_t l = 0; l < maps->routes.layers; l++) {
        const mha_layer_routes *layer = &maps->routes.layer[l];
        if (!is_shown(&picks, maps, l)) continue;
        cli_print("layer %" PRId64 ": %" PRId64 " of %" PRId64 " experts per token, with weights\n",
                  l, layer->used, layer->count);
        for (int64_t t = 0; t < maps->routes.tokens; t++) print_token(layer, tokens->labels[t], t);
    }
    return CLI_OK;
}
