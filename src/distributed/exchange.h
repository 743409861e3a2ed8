/* Which rank computes what, and how its inputs reach it and its results return.
 *
 * A call of one process is shared out. Heads are divided into `parts`; rank r has those of part r mod parts (Jacobs
 * et al. 2023, DeepSpeed-Ulysses, 3). The ranks r / parts = g are group g: together they have the queries that their
 * pieces have, each of them all these rows of its heads. Every rank has all keys and values of its heads. */
#ifndef MHAI_EXCHANGE_H
#define MHAI_EXCHANGE_H

#include "distributed/distributed.h"

/* Rows that a rank computes of a tensor, or needs. */
typedef enum mhai_extent {
    MHAI_GROUP_QUERIES, /* those of its group */
    MHAI_EVERY_QUERY,
    MHAI_EVERY_KEY,
    MHAI_SHARED_KEYS, /* blocks of keys, dealt over the ranks that have the same key/value head */
    MHAI_COLUMN_KEYS, /* all keys, of the group with the last query */
    MHAI_EXTENTS
} mhai_extent;

typedef struct mhai_roles {
    const mhai_split *s;
    int64_t heads, kv_heads;
    int32_t parts;
    int32_t sharers;                /* ranks that have the same key/value head */
    mhai_owned *rows[MHAI_EXTENTS]; /* ascending; rank: of the group or sharer, -1: of all */
    int64_t count[MHAI_EXTENTS];
} mhai_roles;

/* Take scratch for the roles of any number of parts. backward: for its keys too. */
MHA_NODISCARD mha_status mhai_roles_take(mha_context *context, const mhai_split *split,
                                         const mha_attention_desc *desc, int64_t heads,
                                         int64_t kv_heads, bool backward, mhai_roles *roles);

/* Have as many parts, as let the rank with the most take the least scratch; of equals the most; or 1. Heads
 * divide into whole groups, or each group into as many parts as any other. cost: list the tensors of the roles that
 * are set, and add up their scratch. backward: a chunk of MHA_SPLIT_ROWS queries that pieces divide is all of its
 * first row's group. All ranks call it. */
typedef mha_status mhai_cost_fn(void *user, size_t *bytes);
MHA_NODISCARD mha_status mhai_roles_choose(mhai_roles *roles, const mha_attention_desc *desc,
                                           bool backward, bool keeps_heads, mhai_cost_fn *cost,
                                           void *user);

/* Of a rank: its heads, and its number among those that share its keys. */
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

/* A tensor of rows: its owners have those of their pieces and all heads, `local` is what a rank computes with. */
typedef struct mhai_moved {
    mha_tensor owned;     /* rows here, as [.,.,rows,columns] */
    int64_t shape[4];     /* [.,.,-,columns], the same at all ranks */
    int ndim;             /* of local */
    bool columns;         /* its last axis is not that of rows */
    bool brings, returns; /* before the computation, after it */
    mhai_extent extent;
    mhai_heads heads;
    mha_tensor local; /* contiguous, in scratch */
} mhai_moved;

enum { MHAI_MOST_MOVED = 20 };
typedef struct mhai_exchange {
    const mhai_roles *roles;
    mhai_moved moved[MHAI_MOST_MOVED];
    int count;
    int64_t step; /* of a rank's query heads only this one; -1: all */
    unsigned char *room[2];
    int64_t messages[2]; /* sent and received */
    double bytes[2];
} mhai_exchange;

/* Add a tensor, the same ones at all ranks; NULL: none. Its place in the list is returned, or -1. */
int mhai_exchange_add(mhai_exchange *e, const mha_tensor *x, int ndim, bool columns,
                      mhai_extent extent, mhai_heads heads);

/* Likewise a mask that differs by row; -1: there is none. */
int mhai_exchange_add_mask(mhai_exchange *e, mha_attention_desc *desc, const mhai_masks *masks,
                           int i, mhai_extent extent);

/* Its tensor here; NULL: index -1. */
const mha_tensor *mhai_exchange_at(const mhai_exchange *e, int index);

/* When all are added: find shapes, then bytes of scratch, then take it. */
void mhai_exchange_shape(mhai_exchange *e);
MHA_NODISCARD mha_status mhai_exchange_bytes(const mhai_exchange *e, size_t *bytes);
MHA_NODISCARD mha_status mhai_exchange_take(mha_context *context, mhai_exchange *e);

/* Count what _move() would send and receive. */
void mhai_exchange_count(mhai_exchange *e, bool back);

/* Bring rows to whoever computes with them; back: results to the owners. */
MHA_NODISCARD mha_status mhai_exchange_move(mhai_exchange *e, bool back);

#endif
