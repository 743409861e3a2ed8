/* Keys and values on their way through the ranks, parcel after parcel in the order of keys. */
#ifndef MHAI_RING_H
#define MHAI_RING_H

#include "distributed/split.h"

/* Parcels that a rank holds at once: one at hand, and those that arrive or leave meanwhile. The way of a
 * parcel past all ranks takes longer than the work on it, so that the more ranks there are, the more
 * parcels have to be under way. */
enum { MHAI_RING_FEWEST = 6, MHAI_RING_MOST = 16 };

/* As many may be handed out at once, so that rows are loaded and stored less often. */
enum { MHAI_RING_HELD = 4, MHAI_RING_SLOTS = MHAI_RING_MOST + MHAI_RING_HELD - 1 };

typedef struct mhai_ring_slot {
    int64_t parcel; /* -1: free */
    bool receiving, sending;
    mha_transfer in, out;
    unsigned char *bytes;
} mhai_ring_slot;

/* Rows of a parcel that are not its owner's: brought there before the parcels travel. */
typedef struct mhai_ring_fragment {
    int64_t parcel, first, rows;
    int32_t rank; /* who has them */
    bool pending;
    unsigned char *bytes;
    mha_transfer transfer;
} mhai_ring_fragment;

typedef struct mhai_ring {
    const mhai_split *s;
    mha_tensor k, v; /* of this rank */
    mhai_ring_slot slots[MHAI_RING_SLOTS];
    int32_t slot_count;
    mhai_ring_fragment *fragments; /* that this rank sends or is sent, in the order of rows */
    int64_t fragment_count;
    /* Parcels below these, as far as they concern this rank: are no longer in use; have been handed out;
     * have been started; are here, and have been sent on. */
    int64_t done, next, ahead, passed;
} mhai_ring;

/* Bytes of scratch that a ring takes. */
MHA_NODISCARD mha_status mhai_ring_bytes(const mhai_split *s, const mha_tensor *k,
                                         const mha_tensor *v, size_t *bytes);

/* Count what this rank will send and receive of keys and values. */
void mhai_ring_count(const mhai_split *s, const mha_tensor *k, const mha_tensor *v,
                     int64_t messages[2], double bytes[2]);

/* Take scratch for blocks that several ranks have; for parcels on their way; and join the former. */
MHA_NODISCARD mha_status mhai_ring_take(mha_context *context, const mhai_split *s,
                                        const mha_tensor *k, const mha_tensor *v, mhai_ring *ring);
MHA_NODISCARD mha_status mhai_ring_take_slots(mha_context *context, mhai_ring *ring);
MHA_NODISCARD mha_status mhai_ring_begin(mhai_ring *ring);

/* The next parcel that this rank needs, in the order of keys, and those after it that are here already, `most`
 * in all; *count 0: there is none. Their memory is the ring's until the next call. */
MHA_NODISCARD mha_status mhai_ring_next(mhai_ring *ring, int64_t most, mhai_attn_keys *keys,
                                        int64_t *count);

/* After a failure: give up what is on its way. */
void mhai_ring_abandon(mhai_ring *ring);

/* Rows of one head of this rank's parcels, from their row `first` of the whole on, once begun. */
void mhai_ring_rows(const mhai_ring *ring, int64_t parcel, int64_t batch, int64_t head,
                    int64_t first, int64_t rows, void *k, void *v);

/* Let messages proceed, between two pieces of work. */
MHA_NODISCARD mha_status mhai_ring_poll(mhai_ring *ring);

#endif
