/* Blocks of keys on their way past the queries, for the backward: each with its keys, values, and the
 * sums of their gradients. A block visits the ranks in the order of query heads and queries, which is the
 * order of the sums, and comes home to its owner. */
#ifndef MHAI_RELAY_H
#define MHAI_RELAY_H

#include "distributed/distributed.h"
#include "distributed/ring.h"

#include "attention/attn_backward_fold.h"

/* Consecutive stages of one rank; a stage is a piece of queries with a query head of the group. */
typedef struct mhai_relay_visit {
    int32_t rank;
    int64_t begin, end; /* stages: head of the group * pieces + piece */
    int64_t ordinal;    /* among the visits of its rank */
} mhai_relay_visit;

/* A block of a key/value head of a sequence. */
typedef struct mhai_relay_block {
    int64_t b, hk, key, rows, first; /* as in mhai_backward_block */
    int64_t parcel;                  /* of the ring's, that it is in */
} mhai_relay_block;

typedef struct mhai_relay {
    mha_context *context;
    const mhai_split *s;
    const mha_attention_desc *desc;
    mhai_ring *ring;
    int64_t D, Dv, group;    /* padded; query heads of a key/value head */
    size_t k_bytes, v_bytes; /* of a row */
    mhai_relay_visit *visits;
    int64_t visit_count;
    mhai_relay_block *blocks;        /* in the order in which they start */
    int64_t block_count, ahead;      /* ahead: blocks that an owner may have on their way */
    int64_t tags;                    /* of a block: one for each visit of a rank, and two */
    uint8_t *seen;                   /* [blocks][pieces] */
    const mhai_backward_fold *folds; /* of this rank's pieces */
    /* The sums of a block that is home again: rows of this rank's keys from local on. */
    void (*home)(void *user, const mhai_relay_block *block, int64_t local, int64_t rows,
                 const float *dk, const float *dv);
    void *user;
} mhai_relay;

/* Cut blocks and visits, in scratch. */
MHA_NODISCARD mha_status mhai_relay_make(mha_context *context, const mhai_split *split,
                                         const mhai_slice_common *common,
                                         const mha_attention_desc *desc, mhai_relay *relay);

/* All blocks past all queries, and home. */
MHA_NODISCARD mha_status mhai_relay_run(mhai_relay *relay);

#endif
