/* Column sums (mha_attention_outputs.column_sums) over ranks: the sums of all keys go from piece to piece of
 * queries, in the order of queries, in turns of some heads; who has the last piece gives each rank those
 * of its keys. */
#ifndef MHAI_COLUMNS_H
#define MHAI_COLUMNS_H

#include "distributed/distributed.h"

typedef struct mhai_columns {
    const mhai_split *s;
    mha_tensor to;               /* [B,H,keys of this rank] */
    int64_t batch, heads, group; /* B, H, and query heads for each key/value head */
    int64_t sequences;           /* B, or of a ragged batch */
    const int64_t *key_starts;
    int64_t total; /* sums, B H S; 0: none are wanted, or there are none */
    int64_t turns;
    mhai_attn_columns part; /* of this rank's slices */
    int64_t piece;          /* of split->queries: the one of the slice at work; -1: none yet */
    mha_transfer *sends;    /* [turns] */
    bool *sending;          /* [turns] */
    float *message;         /* the sums of some rank's keys, [B][H][its keys] */
} mhai_columns;

/* Check the output, and have the slices add to the sums. need_data: take scratch too. */
MHA_NODISCARD mha_status mhai_columns_make(mha_context *context, const mhai_slice_call *call,
                                           const mhai_split *split, mhai_slice *slices,
                                           int64_t slice_count, bool need_data,
                                           mhai_columns *columns);

/* Add what this rank will send and receive, and the scratch that it takes. */
void mhai_columns_count(const mhai_columns *columns, int64_t messages[2], double bytes[2]);
MHA_NODISCARD mha_status mhai_columns_bytes(const mhai_columns *columns, size_t *bytes);

/* Slices come in order; before each: */
void mhai_columns_next(mhai_columns *columns, const mhai_slice *slice);

/* When they are done: round the sums, hand them out, and write the output. */
MHA_NODISCARD mha_status mhai_columns_finish(mhai_columns *columns);

/* After a failure: give up what is on its way. */
void mhai_columns_abandon(mhai_columns *columns);

#endif
