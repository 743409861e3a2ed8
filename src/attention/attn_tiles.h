/* Between the driver of the tiled path and its masks: one worker's memory, the chunk it works on,
 * the key block at hand, and a strip of rows against that block. */
#ifndef MHAI_ATTN_TILES_H
#define MHAI_ATTN_TILES_H

#include "attention/attn.h"

/* One worker's memory. Row arrays have an entry for each row of the chunk. */
typedef struct mhai_attn_workspace {
    float *q, *o, *m, *l;  /* [rows][D], [rows][Dv padded], [rows] twice */
    float *k, *v, *s;      /* packed block, strip of scores */
    int64_t *head, *query; /* [rows] h and t */
    mhai_attn_range *limit,
        *window;        /* [rows] keys within causal and length; and within the window */
    uint8_t *bad_query; /* [rows] not finite */
    uint8_t *bad_key, *bad_value, *visible;
    uint8_t *keep;        /* [MHAI_MAX_ROWS][MHAI_KEY_BLOCK] composed mask of a strip */
    float *relative;      /* terms by distance, a table for each run of rows of one head */
    int64_t *relative_at; /* [rows] where in it a row's entry for the block's key 0 is */
    float *shaw_keys;     /* [rows][2k+1 padded] q times the table, in units of scores */
    float *shaw_values;   /* [rows][2k+1 padded] p summed by distance */
    float *shaw_panels;   /* a packed table */
    size_t bytes;
} mhai_attn_workspace;

typedef struct mhai_attn_chunk {
    mhai_attn_sequence seq;
    int64_t hk;
    int64_t first, rows;    /* of the key/value head's rows */
    mhai_attn_range limit;  /* hull of the rows' limits */
    mhai_attn_range window; /* hull of the rows' windows that are not empty */
    bool global_query;      /* some row is not bound by the window */
    bool bad_query;         /* some query is not finite */
} mhai_attn_chunk;

/* A key block, and what of it the whole chunk shares. Keys count from the block's first. */
typedef struct mhai_attn_block {
    int64_t key; /* its first key in the sequence */
    int keys;
    int exempt_begin, exempt_end; /* hull of the keys that no window hides */
    bool exempt_solid;            /* every key of that hull is one */
    int32_t least_document, greatest_document;
    bool packed, bad; /* packed yet; with something that is not finite */
} mhai_attn_block;

/* A strip against a block: everything that a kernel call points to. */
typedef struct mhai_attn_strip {
    mhai_tile tile;
    mhai_tile_mask mask;
    mhai_poison poison;
    int64_t first; /* row of the chunk */
    bool masked;   /* the tile needs the mask */
} mhai_attn_strip;

mhai_attn_block mhai_attn_block_at(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                                   int64_t key);

/* False if the window and its exemptions hide the whole block from the whole chunk. */
bool mhai_attn_block_seen(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                          const mhai_attn_block *block);

/* Fill in the strip's ranges and masks; false if no row sees a key of the block. */
bool mhai_attn_mask_strip(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                          const mhai_attn_workspace *w, const mhai_attn_block *block,
                          mhai_attn_strip *strip);

#endif
