/* Few queries against key blocks that threads or ranks share (attn_split.c describes the
 * passes). A stretch is a run of consecutive key blocks: all of them, or those of a rank. */
#ifndef MHAI_ATTN_SPLIT_H
#define MHAI_ATTN_SPLIT_H

#include "attention/attn_tiles.h"

typedef struct mhai_attn_stretch {
    const mhai_attn_walk *walk;
    float *parts;          /* [items][blocks][mhai_attn_split_part()] */
    int64_t first, blocks; /* index of its first block in the sequence; number of blocks */
    const float *before;   /* [items][chunk_rows] the rows' maxima over all earlier keys, -inf if
                              there are none; NULL: no keys are earlier */
} mhai_attn_stretch;

/* Floats that a block of a chunk keeps for the next pass. */
int64_t mhai_attn_split_part(const mhai_attn_problem *p, const mhai_attn_tiling *tiling);

/* Run the first pass. Returns false if an element is not finite; the stretch then needs the
 * general path. */
bool mhai_attn_stretch_scores(mha_context *context, const mhai_attn_stretch *stretch);

/* After the first pass: maxima [items][chunk_rows] over the keys of the stretch, -inf for a row
 * that sees none. */
void mhai_attn_stretch_maxima(const mhai_attn_stretch *stretch, float *maxima);

/* Run the second pass, once `before` is set. Returns false likewise. */
bool mhai_attn_stretch_values(mha_context *context, const mhai_attn_stretch *stretch);

/* Join the blocks of the item's chunk, in order. Its rows must have joined all earlier keys. */
void mhai_attn_stretch_join(const mhai_attn_stretch *stretch, int64_t item,
                            const mhai_attn_chunk *c, mhai_attn_workspace *w);

/* Compute all chunks of a problem whose threads share key blocks. finish is called with the
 * results of each chunk, as after a walk. *done false: an element is not finite, and finish has
 * not been called. */
MHA_NODISCARD mha_status mhai_attn_split(mha_context *context, const mhai_attn_walk *walk,
                                         void (*finish)(void *user, const mhai_attn_chunk *c,
                                                        mhai_attn_workspace *w),
                                         void *user, bool *done);

#endif
