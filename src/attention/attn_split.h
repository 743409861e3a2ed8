/* Few queries against blocks of keys that threads, or ranks, share (attn_split.c has the passes). A
 * stretch is a run of consecutive blocks of keys that lie together: all of them, or those of a rank. */
#ifndef MHAI_ATTN_SPLIT_H
#define MHAI_ATTN_SPLIT_H

#include "attention/attn_tiles.h"

typedef struct mhai_attn_stretch {
    const mhai_attn_walk *walk;
    float *parts;          /* [items][blocks][mhai_attn_split_part()] */
    int64_t first, blocks; /* index of its first block in the sequence; number of blocks */
    const float *before;   /* [items][chunk_rows] the rows' maxima over all earlier keys, -inf where
                              there are none; NULL: no keys are earlier */
} mhai_attn_stretch;

/* Floats that a block of a chunk keeps for the next pass. */
int64_t mhai_attn_split_part(const mhai_attn_problem *p, const mhai_attn_tiling *tiling);

/* The first pass; false: an element is not finite, and the stretch needs the general path. */
bool mhai_attn_stretch_scores(mha_context *context, const mhai_attn_stretch *stretch);

/* After it: maxima [items][chunk_rows] over the keys of the stretch, -inf where a row sees none. */
void mhai_attn_stretch_maxima(const mhai_attn_stretch *stretch, float *maxima);

/* The second pass, likewise, once `before` is set. */
bool mhai_attn_stretch_values(mha_context *context, const mhai_attn_stretch *stretch);

/* Join the blocks of the item's chunk, whose rows have joined all earlier keys, in order. */
void mhai_attn_stretch_join(const mhai_attn_stretch *stretch, int64_t item,
                            const mhai_attn_chunk *c, mhai_attn_workspace *w);

/* Compute all chunks of a problem whose threads share key blocks; finish is called with the
 * results of each chunk as after a walk. *done false: an element is not finite, and finish has
 * not been called. */
MHA_NODISCARD mha_status mhai_attn_split(mha_context *context, const mhai_attn_walk *walk,
                                         void (*finish)(void *user, const mhai_attn_chunk *c,
                                                        mhai_attn_workspace *w),
                                         void *user, bool *done);

#endif
