/* The division of rows among ranks. */
#ifndef MHAI_SPLIT_H
#define MHAI_SPLIT_H

#include <multihead/distributed.h>

/* A piece of any rank. */
typedef struct mhai_owned {
    int64_t begin, end; /* rows, counted over all ranks */
    int64_t local;      /* index of the first row at its rank */
    int32_t rank;
} mhai_owned;

typedef struct mhai_split {
    const mha_transport *t;
    mha_sequence_split given;
    mhai_owned *queries, *keys; /* of all ranks, ascending */
    int64_t query_count, key_count;
    int64_t rows, key_rows; /* number of rows at this rank */
} mhai_split;

/* Check this rank's pieces, store them in split->given, and count its rows. */
MHA_NODISCARD mha_status mhai_split_check(const mha_sequence_split *given, mhai_split *split);

/* Gather the pieces of all ranks in scratch. A collective call, after the checks. */
MHA_NODISCARD mha_status mhai_split_make(mha_context *context, mhai_split *split);

/* Whether a piece has rows of sequence b. */
static inline bool mhai_split_has_rows(const mha_attention_desc *desc, int64_t b,
                                       const mhai_owned *piece)
{
    return !desc->query_starts ||
           (piece->begin < desc->query_starts[b + 1] && desc->query_starts[b] < piece->end);
}

/* Copy rows of a tensor [.,.,rows,.] to another of the same type. shape is the shape of a row,
 * [.,.,-,.]. Axes with stride 0 are broadcast. */
void mhai_copy_rows(const mha_tensor *to, int64_t to_row, const mha_tensor *from, int64_t from_row,
                    const int64_t *shape, int64_t rows);

#endif
