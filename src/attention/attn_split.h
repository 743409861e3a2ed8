/* Attention of a few queries whose key blocks are shared by threads or ranks (see attn_split.c for
 * the passes). A stretch is a run of consecutive key blocks: all blocks, or the blocks of one
 * rank. */
#ifndef MHAI_ATTN_SPLIT_H
#define MHAI_ATTN_SPLIT_H

#include "attention/attn_tiles.h"

typedef struct mhai_attn_stretch {
    const mhai_attn_walk *walk;
    float *parts;          /* [items][blocks][mhai_attn_split_part()] */
    int64_t first, blocks; /* index of its first block in the sequence; number of blocks */
    const float *before;   /* [items][chunk_rows] maxima of rows over all earlier keys, -inf if they
                            * see none; NULL: the stretch is the first */
} mhai_attn_stretch;

/* Number of floats kept per chunk and block for the next pass. */
int64_t mhai_attn_split_part(const mhai_attn_problem *p, const mhai_attn_tiling *tiling);

/* Run the first pass. Returns false if an element is not finite, so that the stretch
 * needs the general path. */
bool mhai_attn_stretch_scores(mha_context *context, const mhai_attn_stretch *stretch);

/* After the first pass, get the maxima [items][chunk_rows] over the keys of the stretch; -inf
 * for rows that see none. */
void mhai_attn_stretch_maxima(const mhai_attn_stretch *stretch, float *maxima);

/* Run the second pass. `before` must be set. Returns false like the first pass. */
bool mhai_attn_stretch_values(mha_context *context, const mhai_attn_stretch *stretch);

/* Join the blocks of the item's chunk in order. All earlier keys must be joined already. */
void mhai_attn_stretch_join(const mhai_attn_stretch *stretch, int64_t item,
                            const mhai_attn_chunk *c, mhai_attn_workspace *w);

/* Compute all chunks of a problem whose key blocks are shared by threads. finish is
 * called with each chunk, as after a walk. If an element is not finite, *done is false
 * and finish was not called. */
MHA_NODISCARD mha_status mhai_attn_split(mha_context *context, const mhai_attn_walk *walk,
                                         void (*finish)(void *user, const mhai_attn_chunk *c,
                                                        mhai_attn_workspace *w),
                                         void *user, bool *done);

#endif
