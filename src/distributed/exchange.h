/* Roles of the ranks, and the exchange of inputs and results.
 *
 * A call is divided among ranks in two ways. Heads are divided into `parts`; rank r has part r mod
 * parts (Jacobs et al. 2023, DeepSpeed-Ulysses, section 3). Ranks with the same g = r / parts form
 * group g. Together they hold the queries of their pieces, and each computes all these rows for its
 * heads. Every rank has all keys and values of its heads. */
#ifndef MHAI_EXCHANGE_H
#define MHAI_EXCHANGE_H

#include "distributed/distributed.h"

/* Which rows of a tensor a rank computes or needs. */
typedef enum mhai_extent {
    MHAI_GROUP_QUERIES, /* queries of its group */
    MHAI_EVERY_QUERY,
    MHAI_EVERY_KEY,
    MHAI_SHARED_KEYS, /* blocks of keys, divided among ranks with the same key/value head */
    MHAI_COLUMN_KEYS, /* all keys, for the group with the last query */
    MHAI_EXTENTS
} mhai_extent;

typedef struct mhai_roles {
    const mhai_split *s;
    int64_t heads, kv_heads;
    int32_t parts;
    int32_t sharers;                /* number of ranks with the same key/value head */
    mhai_owned *rows[MHAI_EXTENTS]; /* ascending; rank is the group or sharer, -1: all */
    int64_t count[MHAI_EXTENTS];
} mhai_roles;

/* Allocate scratch for the roles, for any number of parts. backward: also for roles of keys. */
MHA_NODISCARD mha_status mhai_roles_take(mha_context *context, const mhai_split *split,
                                         const mha_attention_desc *desc, int64_t heads,
                                         int64_t kv_heads, bool backward, mhai_roles *roles);

/* Choose the number of parts that minimises the scratch of the rank that needs most. Ties go to the
 * largest number. Either the heads divide into whole groups or each group divides into equal parts;
 * otherwise there is one part. cost lists the tensors of the current roles and adds up their
 * scratch. backward: if pieces divide a chunk of MHA_SPLIT_ROWS queries, it belongs to the group of
 * its first row. All ranks must call it. */
typedef mha_status mhai_cost_fn(void *user, size_t *bytes);
MHA_NODISCARD mha_status mhai_roles_choose(mhai_roles *roles, const mha_attention_desc *desc,
                                           bool backward, bool keeps_heads, mhai_cost_fn *cost,
                                           void *user);

/* The heads of a rank, and its index among the ranks that share its keys. */
mha_head_piece mhai_roles_heads(const mhai_roles *roles, int32_t rank);
int32_t mhai_roles_sharer(const mhai_roles *roles, int32_t rank);

/* Number of rows of an extent at this rank. */
int64_t mhai_roles_rows(const mhai_roles *roles, mhai_extent extent);

static inline int32_t mhai_roles_group(const mhai_roles *roles)
{
    return roles->s->t->rank / roles->parts;
}

/* ---- tensors --------------------------------------------------------------------------------- */

typedef enum mhai_heads { MHAI_NO_HEADS, MHAI_QUERY_HEADS, MHAI_KEY_HEADS } mhai_heads;

/* A tensor with rows. Its owners have the rows of their pieces, with all heads. A rank
 * computes with `local`. */
typedef struct mhai_moved {
    mha_tensor owned;     /* this rank's rows, as [.,.,rows,columns] */
    int64_t shape[4];     /* [.,.,-,columns], equal on all ranks */
    int ndim;             /* of local */
    bool columns;         /* the last axis is columns, not rows */
    bool brings, returns; /* sent before the computation; returned after it */
    mhai_extent extent;
    mhai_heads heads;
    mha_tensor local; /* contiguous, in scratch */
} mhai_moved;

enum { MHAI_MOST_MOVED = 20 };
typedef struct mhai_exchange {
    const mhai_roles *roles;
    mhai_moved moved[MHAI_MOST_MOVED];
    int count;
    int64_t step; /* use only this query head of a rank's heads; -1: all */
    unsigned char *room[2];
    int64_t messages[2]; /* numbers sent and received */
    double bytes[2];
} mhai_exchange;

/* Add a tensor. All ranks must add the same tensors. Returns its index, or -1 for NULL. */
int mhai_exchange_add(mhai_exchange *e, const mha_tensor *x, int ndim, bool columns,
                      mhai_extent extent, mhai_heads heads);

/* Add a mask that differs by row. Returns -1 if there is none. */
int mhai_exchange_add_mask(mhai_exchange *e, mha_attention_desc *desc, const mhai_masks *masks,
                           int i, mhai_extent extent);

/* The local tensor at an index; NULL for -1. */
const mha_tensor *mhai_exchange_at(const mhai_exchange *e, int index);

/* After all tensors are added: determine the shapes, then the bytes of
 * scratch, then allocate it. */
void mhai_exchange_shape(mhai_exchange *e);
MHA_NODISCARD mha_status mhai_exchange_bytes(const mhai_exchange *e, size_t *bytes);
MHA_NODISCARD mha_status mhai_exchange_take(mha_context *context, mhai_exchange *e);

/* Add up the messages and bytes of mhai_exchange_move(). */
void mhai_exchange_count(mhai_exchange *e, bool back);

/* Send rows to the ranks that compute with them. back: return results to the owners. */
MHA_NODISCARD mha_status mhai_exchange_move(mhai_exchange *e, bool back);

#endif
