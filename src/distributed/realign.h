/* Chunks of queries that several pieces share, for the backward, whose sums over a chunk are one chain. Such
 * a chunk is computed at the rank with its first row, in copies of all its rows; what comes of it goes
 * back. All other rows stay where they are. */
#ifndef MHAI_REALIGN_H
#define MHAI_REALIGN_H

#include "distributed/split.h"

/* The backward's tensors over queries; from MHAI_OVER_KEEP_MASK on they may broadcast. */
enum {
    MHAI_OVER_Q,
    MHAI_OVER_O,
    MHAI_OVER_LSE,
    MHAI_OVER_O_GRADIENT,
    MHAI_OVER_LSE_GRADIENT,
    MHAI_OVER_PROBABILITIES, /* their gradient, as lse's; and that of their average */
    MHAI_OVER_AVERAGE,
    MHAI_OVER_DQ,
    MHAI_OVER_DBIAS,
    MHAI_OVER_KEEP_MASK,
    MHAI_OVER_BIAS,
    MHAI_OVER_GLOBAL_QUERIES,
    MHAI_OVER_QUERY_DOCUMENTS,
    MHAI_OVER_ALL
};

/* NULL: there is none. */
typedef struct mhai_over_queries {
    const mha_tensor *each[MHAI_OVER_ALL];
} mhai_over_queries;

/* A chunk that this rank computes, in scratch. */
typedef struct mhai_joined {
    mha_tensor own[MHAI_OVER_ALL];
    mhai_over_queries over;
} mhai_joined;

/* Rows of a chunk that one piece has, of this rank or on their way from it or to it. */
typedef struct mhai_joined_part {
    int64_t joined;      /* which of the chunks here; if it is */
    int64_t first, rows; /* in the chunk */
    int64_t local;       /* of the piece's rank */
    int32_t from, to;    /* the ranks of the piece and of the chunk */
    bool pending;
    char *bytes;
    mha_transfer transfer;
} mhai_joined_part;

typedef struct mhai_realign {
    const mhai_split *s;
    mhai_over_queries given;
    bool accumulate;                 /* gradients: they travel both ways */
    int64_t shape[MHAI_OVER_ALL][4]; /* of a row of a chunk */
    mhai_joined *joined;
    mhai_joined_part *parts;
    int64_t joined_count, part_count;
} mhai_realign;

/* Whether pieces share a chunk: the same at all ranks. */
bool mhai_realign_needed(const mha_attention_desc *desc, const mhai_split *split);

/* Agree on status, take scratch, and make the split's queries what ranks compute: pieces of whole chunks that
 * they have, and chunks (local -1) in the order of joined. All ranks call it, whatever their status. */
MHA_NODISCARD mha_status mhai_realign_make(mha_context *context, const mha_attention_desc *desc,
                                           const mhai_over_queries *given, bool accumulate,
                                           mha_status status, mhai_split *split,
                                           mhai_realign *realign);

/* Bring the rows of chunks together; and the gradients of q and of the bias home. */
MHA_NODISCARD mha_status mhai_realign_join(mhai_realign *realign);
MHA_NODISCARD mha_status mhai_realign_return(mhai_realign *realign);

#endif
