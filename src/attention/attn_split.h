/* Few queries against blocks of keys that threads, or ranks, share (attn_split.c has the passes). A
 * stretch is a run of consecutive blocks of keys that lie together: all of them, or those of a rank. */
#ifndef MHAI_ATTN_SPLIT_H
#define MHAI_ATTN_SPLIT_H

#include "attention/attn_tiles.h"

typedef struct mhai_attn_stretch {
    const mhai_attn_walk *walk;
    float *parts;          /* [items][blocks][mhai_attn_split_part()] */
    int64_t first, blocks; /* the number of its first block among all of a sequence; how many */
    const float *before;   /* [items][chunk_rows] the rows' maxima over all earlier keys, -inf where
                              there are none; NULL: no keys are earlier */
} mhai_attn_stretch;

/* Floats that a block of a chunk leaves for the next pass. */
int64_t mhai_attn_split_part(const mhai_attn_problem *p, const mhai_attn_tiling *tiling);

/* The first pass; false: something is not finite, and the stretch must be done in the usual way. */
bool mhai_attn_stretch_scores(mha_context *context, const mhai_attn_stretch *stretch);

/* After it: maxima [items][chunk_rows] over the keys of the stretch, -inf where a row sees none. */
void mhai_attn_stretch_maxima(const mhai_attn_stretch *stretch, float *maxima);

/* The second pass, likewise, once `before` is there. */
bool mhai_attn_stretch_values(mha_context *context, const mhai_attn_stretch *stretch);

/* The blocks of item's chunk, whose rows have met all earlier keys, one after the other. */
void mhai_attn_stretch_join(const mhai_attn_stretch *stretch, int64_t item,
                            const mhai_attn_chunk *c, mhai_attn_workspace *w);

/* All chunks of a problem whose threads share key blocks; finish is called with the results of each
 * as a walk would leave them. *done false: something is not finite, and nothing has been finished.
 */
MHA_NODISCARD mha_status mhai_attn_split(mha_context *context, const mhai_attn_walk *walk,
                                         void (*finish)(void *user, const mhai_attn_chunk *c,
                                                        mhai_attn_workspace *w),
                                         void *user, bool *done);

#endif
