/* Heads for rows: ranks that follow each other send each other rows, so that each has fewer heads and all
 * their rows. What then goes through the ranks, and how many there are for it, is less by that factor (Jacobs
 * et al. 2023, DeepSpeed-Ulysses, 3; together with a ring: Fang and Zhao 2024, USP). */
#ifndef MHAI_EXCHANGE_H
#define MHAI_EXCHANGE_H

#include "distributed/distributed.h"

enum {
    MHAI_EXCHANGE_Q,
    MHAI_EXCHANGE_K,
    MHAI_EXCHANGE_V,
    MHAI_EXCHANGE_O,
    MHAI_EXCHANGE_LSE,
    MHAI_EXCHANGE_ALL
};

typedef struct mhai_exchange {
    const mhai_split *s;
    const mhai_slice_call *given;
    int32_t parts;      /* so many ranks exchange heads; 1: none do */
    bool wants_lse;     /* some rank does */
    mha_head_piece own; /* heads of this rank */

    /* The call of these heads, over the ranks that have them too. */
    mha_transport_part same_heads;
    mha_sequence_split split;
    mhai_slice_call call;
    mha_tensor inputs[5]; /* of its descriptor, cut */

    /* Of each tensor the rows here, of all heads, and those of all parts, of own heads: in both, rows of a head
     * and piece are contiguous. apart: the caller's are not, so that these are a copy. */
    mha_tensor here[MHAI_EXCHANGE_ALL], whole[MHAI_EXCHANGE_ALL];
    bool apart[MHAI_EXCHANGE_ALL];
    mha_tensor lse, lse_here; /* [B,H,T] as [B,H,T,1]; of whoever wants none */

    mha_transfer *transfers; /* [room] */
    int64_t room, count;     /* those begun */
    int64_t messages[2];     /* sent and received, of all of it */
    double bytes[2];
} mhai_exchange;

/* Into how many parts to divide heads, the same number at all ranks; all make the call, with a split that is
 * made. received: the most bytes of keys and values that this rank would receive otherwise. */
MHA_NODISCARD mha_status mhai_exchange_choose(const mhai_slice_call *call, const mhai_split *split,
                                              double received, mhai_exchange *exchange);

/* The call of own heads, and scratch for it unless it is only explained. */
MHA_NODISCARD mha_status mhai_exchange_make(mha_context *context, bool need_data,
                                            mhai_exchange *exchange);

/* Bytes of scratch that _make() takes. */
MHA_NODISCARD mha_status mhai_exchange_bytes(const mhai_exchange *exchange, size_t *bytes);

/* Send queries, keys and values to whoever computes their heads; and results home. */
MHA_NODISCARD mha_status mhai_exchange_rows(mhai_exchange *exchange);
MHA_NODISCARD mha_status mhai_exchange_return(mhai_exchange *exchange);

#endif
