/* Maps, and which heads of them are wanted.
 *
 * Letters as in attention.h: L layers, H heads, T rows (queries), S columns (keys). Heads are
 * counted from 0 and written L0H3. All memory is the arena's.
 */
#ifndef CLI_MAPS_H
#define CLI_MAPS_H

#include "common/args.h"

#include <multihead/maps.h>

#include <stdint.h>

/* Which heads are wanted. */
typedef struct maps_picks {
    int64_t layers, heads, count; /* L, H, and how many are on */
    uint8_t *on;                  /* [L,H] */
} maps_picks;

/* Maps to fill, freed when the subcommand ends. */
cli_exit maps_new(const char *command, mha_maps **maps);

/* Tokens of no model: no label yet, -1 for whatever may be unknown. */
cli_exit maps_make_tokens(const char *command, int64_t count, mha_tokens *tokens);

/* Make the [H,T,S] array of a layer. */
cli_exit maps_add_layer(const char *command, mha_maps *maps, int64_t layer);

/* The last part of a path, as a title: "models/bert/" gives "bert". */
cli_exit maps_name_of_path(const char *command, const char *path, char **name);

/* --layer "0,2-3" and --head "1,4-5", "4.11", "L4H11": a plain head number counts in every layer
 * chosen, the others name their layer. Neither given: all. */
cli_exit maps_pick(const char *command, const args_texts *layers, const args_texts *heads,
                   int64_t layer_count, int64_t head_count, maps_picks *picks);

/* True if every layer has the same heads on, or none: a rectangle. */
bool maps_rectangular(const mha_maps *maps);

/* Heads that are on. */
int64_t maps_count(const mha_maps *maps);

#endif
