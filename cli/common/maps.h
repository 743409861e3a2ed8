/* Attention maps as the program holds them, wherever they come from, and which of them are wanted.
 *
 * Letters as in attention.h: L layers, H heads, T rows (queries), S columns (keys). Heads are
 * counted from 0 and written L0H3. All memory is the arena's.
 */
#ifndef CLI_MAPS_H
#define CLI_MAPS_H

#include "common/args.h"

#include <multihead/study.h>

#include <stdint.h>

/* Which heads are wanted. */
typedef struct maps_picks {
    int64_t layers, heads, count; /* L, H, and how many are on */
    uint8_t *on;                  /* [L,H] */
} maps_picks;

typedef struct attention_maps {
    char *name;         /* of the model or the file, for the title */
    char *architecture; /* NULL where there is no model */
    char *text[2];      /* the input, ending in NUL, and its bytes; NULL: none */
    size_t text_bytes[2];
    int64_t layers, heads;   /* L, H of the source */
    maps_picks picks;        /* the heads that are wanted */
    mha_tokens rows, cols;   /* T, S; cols.labels is rows.labels where they are the same tokens */
    const char **shown;      /* [T] what pictures write of rows; NULL, as each may be: the label */
    float **layer;           /* [L] each [H,T,S], or NULL: not requested */
    float **twin;            /* [L] each [H,T,S] or NULL: ||alpha f(x)||; NULL: none */
    float **queries, **keys; /* [L] each [H,T,channels] and [H,S,channels], or NULL; NULL: none */
    int64_t channels;
    double *score_scales; /* [L] of q . k before softmax; 0: 1 / sqrt(channels); NULL: none */
    bool causal;          /* a row cannot see the columns behind it */
    int64_t cell;         /* a cell is the largest weight of cell x cell tokens; 0: one token */
    mha_tokens tokens;    /* those of the text, where cell > 1 */
    bool contrast;        /* weights in text[0] less those in text[1], whose tokens are other */
    mha_tokens other;     /* as many as rows; else empty */
} attention_maps;

/* Tokens of no model: no label yet, -1 for whatever may be unknown. */
cli_exit maps_make_tokens(const char *command, int64_t count, mha_tokens *tokens);

/* Make the [H,T,S] array of a layer. */
cli_exit maps_add_layer(const char *command, attention_maps *maps, int64_t layer);

/* The last part of a path, as a title: "models/bert/" gives "bert". */
cli_exit maps_name_of_path(const char *command, const char *path, char **name);

/* --layer "0,2-3" and --head "1,4-5", "4.11", "L4H11": a plain head number counts in every layer
 * chosen, the others name their layer. Neither given: all. */
cli_exit maps_pick(const char *command, const args_texts *layers, const args_texts *heads,
                   int64_t layer_count, int64_t head_count, maps_picks *picks);

/* True if every layer has the same heads on, or none: a rectangle. */
bool maps_picks_rectangular(const maps_picks *picks);

/* Heads that are on in a layer. */
int64_t maps_picks_in_layer(const maps_picks *picks, int64_t layer);

#endif
