/* Maps, and the selection of their heads.
 *
 * Letters as in attention.h: L layers, H heads, T rows (queries), S columns (keys). Heads are
 * counted from 0 and written L0H3. All memory is the arena's.
 */
#ifndef CLI_MAPS_H
#define CLI_MAPS_H

#include "common/args.h"

#include <multihead/maps.h>

#include <stdint.h>

/* The selected heads. */
typedef struct maps_picks {
    int64_t layers, heads, count; /* L, H, and the number of selected heads */
    uint8_t *on;                  /* [L,H] */
} maps_picks;

/* Maps to fill, freed when the subcommand ends. */
cli_exit maps_new(mha_maps **maps);

/* Tokens without a model: no labels yet, -1 for unknown fields. */
cli_exit maps_make_tokens(int64_t count, mha_tokens *tokens);

/* Allocate the [H,T,S] array of a layer. */
cli_exit maps_add_layer(mha_maps *maps, int64_t layer);

/* The last part of a path, as a title: "models/bert/" gives "bert". */
cli_exit maps_name_of_path(const char *path, char **name);

/* --layer "0,2-3" and --head "1,4-5", "4.11", "L4H11": a plain head number applies to every
 * selected layer; the other forms name their layer. Without both options all heads are selected.
 * layers NULL: heads is the list of --without. */
cli_exit maps_pick(const args_texts *layers, const args_texts *heads, int64_t layer_count,
                   int64_t head_count, maps_picks *picks);

/* Whether every layer has the same heads selected, or none: a rectangle. */
bool maps_rectangular(const mha_maps *maps);

/* Number of selected heads. */
int64_t maps_count(const mha_maps *maps);

#endif
