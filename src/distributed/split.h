/* Who has which rows, and the parcels in which keys travel. */
#ifndef MHAI_SPLIT_H
#define MHAI_SPLIT_H

#include "attention/attn_fold.h"

#include <multihead/distributed.h>

/* A piece of some rank. */
typedef struct mhai_owned {
    int64_t begin, end; /* rows of the whole */
    int64_t local;      /* the first one's row at its rank */
    int32_t rank;
} mhai_owned;

/* Whole blocks of keys of one or more sequences, which travel together: at most MHAI_KEY_BLOCK rows.
 * Its owner is the rank with its first row. */
typedef struct mhai_parcel {
    int64_t first, rows;
    int32_t owner;
} mhai_parcel;

/* Of a parcel at this rank: who sends it here, and whom it is sent to; -1: nobody. */
typedef struct mhai_way {
    int32_t before, after;
} mhai_way;

typedef struct mhai_split {
    const mha_transport *t;
    mha_sequence_split given;
    mhai_owned *queries, *keys; /* of all ranks, ascending */
    int64_t query_count, key_count;
    mhai_parcel *parcels;
    int64_t parcel_count;
    mhai_way *ways;         /* [parcels] */
    uint8_t *needed;        /* [parcels][ranks] */
    int64_t threads;        /* of the rank with the most */
    int64_t rows, key_rows; /* at this rank */
} mhai_split;

/* Check what this rank gave, which becomes split->given, and count its rows. */
MHA_NODISCARD mha_status mhai_split_check(const mha_sequence_split *given, mhai_split *split);

/* Tell all ranks of the pieces, and cut the keys into parcels; from the context's scratch. All ranks
 * call it with what they have checked, and a descriptor that is everywhere the same. all: every rank
 * with queries needs every key, visible or not. */
MHA_NODISCARD mha_status mhai_split_make(mha_context *context, const mha_attention_desc *desc,
                                         int64_t batch, bool all, mhai_split *split);

/* Whether a row of a piece may see one of the keys from key on of sequence b: by causal and window alone,
 * so that true says little. */
bool mhai_split_sees(const mha_attention_desc *desc, int64_t b, const mhai_owned *piece,
                     int64_t key, int64_t keys);

/* Whether it has rows of that sequence. */
static inline bool mhai_split_has_rows(const mha_attention_desc *desc, int64_t b,
                                       const mhai_owned *piece)
{
    return !desc->query_starts ||
           (piece->begin < desc->query_starts[b + 1] && desc->query_starts[b] < piece->end);
}

/* Rows of a tensor [.,.,rows,.] to those of another one of the same type; shape: of a row, [.,.,-,.]. An
 * axis with a stride of 0 broadcasts. */
void mhai_copy_rows(const mha_tensor *to, int64_t to_row, const mha_tensor *from, int64_t from_row,
                    const int64_t *shape, int64_t rows);

static inline bool mhai_split_needs(const mhai_split *s, int64_t parcel, int32_t rank)
{
    return s->needed[parcel * s->t->size + rank];
}

#endif
