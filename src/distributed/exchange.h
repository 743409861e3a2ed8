/* Roles of the ranks, and the exchange of inputs and results.
 *
 * The call of one process is divided. Heads are divided into `parts`; rank r has part r mod parts
 * (Jacobs et al. 2023, DeepSpeed-Ulysses, 3). The ranks with the same g = r / parts are group g.
 * Together they have the queries of their pieces; each computes all these rows of its heads. Every
 * rank has all keys and values of its heads. */
#ifndef MHAI_EXCHANGE_H
#define MHAI_EXCHANGE_H

#include "distributed/distributed.h"

/* The rows of a tensor that a rank computes, or needs. */
typedef enum mhai_extent {
    MHAI_GROUP_QUERIES, /* of its group */
    MHAI_EVERY_QUERY,
    MHAI_EVERY_KEY,
    MHAI_SHARED_KEYS, /* blocks of keys, divided among the ranks with the same key/value head */
    MHAI_COLUMN_KEYS, /* all keys, in the group with the last query */
    MHAI_EXTENTS
} mhai_extent;

typedef struct mhai_roles {
    const mhai_split *s;
    int64_t heads, kv_heads;
    int32_t parts;
    int32_t sharers;                /* ranks with the same key/value head */
    mhai_owned *rows[MHAI_EXTENTS]; /* ascending; rank: number of the group or sharer, -1: all */
    int64_t count[MHAI_EXTENTS];
} mhai_roles;

/* Allocate scratch for the roles, for any number of parts. backward: including roles for keys. */
MHA_NODISCARD mha_status mhai_roles_take(mha_context *context, const mhai_split *split,
                                         const mha_attention_desc *desc, int64_t heads,
                                         int64_t kv_heads, bool backward, mhai_roles *roles);

/* Choose the number of parts that minimises the scratch of the rank with the most; among equals the
 * largest. Heads divide into whole groups, or each group into equally many parts; otherwise there
 * is one part. cost: list the tensors of the current roles, and add up their scratch. backward: a
 * chunk of MHA_SPLIT_ROWS queries that is cut by pieces belongs to the group of its first row. All
 * ranks must call it. */
typedef mha_status mhai_cost_fn(void *user, size_t *bytes);
MHA_NODISCARD mha_status mhai_roles_choose(mhai_roles *roles, const mha_attention_desc *desc,
                                           bool backward, bool keeps_heads, mhai_cost_fn *cost,
                                           void *user);

/* A rank's heads, and its number among the ranks that share its keys. */
mha_head_piece mhai_roles_heads(const mhai_roles *roles, int32_t rank);
int32_t mhai_roles_sharer(const mhai_roles *roles, int32_t rank);

/* Rows of an extent that this rank has. */
int64_t mhai_roles_rows(const mhai_roles *roles, mhai_extent extent);

static inline int32_t mhai_roles_group(const mhai_roles *roles)
{
    return roles->s->t->rank / roles->parts;
}

/* ---- tensors --------------------------------------------------------------------------------- */

typedef enum mhai_heads { MHAI_NO_HEADS, MHAI_QUERY_HEADS, MHAI_KEY_HEADS } mhai_heads;

/* A tensor with rows. Its owners have all heads of the rows of their pieces. `local` is the part
 * with which a rank computes. */
typedef struct mhai_moved {
    mha_tensor owned;     /* rows of this rank, as [.,.,rows,columns] */
    int64_t shape[4];     /* [.,.,-,columns], the same on all ranks */
    int ndim;             /* of local */
    bool columns;         /* its last axis is not that of rows */
    bool brings, returns; /* sent before the computation; sent back after it */
    mhai_extent extent;
    mhai_heads heads;
    mha_tensor local; /* contiguous, in scratch */
} mhai_moved;

enum { MHAI_MOST_MOVED = 20 };
typedef struct mhai_exchange {
    const mhai_roles *roles;
    mhai_moved moved[MHAI_MOST_MOVED];
    int count;
    int64_t step; /* only this query head of a rank's heads; -1: all */
    unsigned char *room[2];
    int64_t messages[2]; /* sent and received */
    double bytes[2];
} mhai_exchange;

/* Add a tensor; all ranks must add the same ones. Returns its index, or -1 for NULL. */
int mhai_exchange_add(mhai_exchange *e, const mha_tensor *x, int ndim, bool columns,
                      mhai_extent extent, mhai_heads heads);

/* Likewise for a mask that differs by row; returns -1 if there is none. */
int mhai_exchange_add_mask(mhai_exchange *e, mha_attention_desc *desc, const mhai_masks *masks,
                           int i, mhai_extent extent);

/* The local tensor at an index; NULL for -1. */
const mha_tensor *mhai_exchange_at(const mhai_exchange *e, int index);

/* Once all tensors are added: determine the shapes, then the bytes of scratch, then allocate it. */
void mhai_exchange_shape(mhai_exchange *e);
MHA_NODISCARD mha_status mhai_exchange_bytes(const mhai_exchange *e, size_t *bytes);
MHA_NODISCARD mha_status mhai_exchange_take(mha_context *context, mhai_exchange *e);

/* Add up the messages and bytes of mhai_exchange_move(). */
void mhai_exchange_count(mhai_exchange *e, bool back);

/* Send rows to the ranks that compute with them; if `back`, send results to the owners. */
MHA_NODISCARD mha_status mhai_exchange_move(mhai_exchange *e, bool back);

#endif
