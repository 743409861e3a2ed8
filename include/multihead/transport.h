/* multihead: how the ranks of a computation reach each other. A rank is one of several processes (or
 * threads, in tests) that make the same calls together; the library sends messages between two of
 * them and nothing else: sums and maxima are its own, in orders that do not depend on how many ranks
 * there are.
 *
 * mpi.h (libmultihead-mpi) makes a transport of MPI. Any other message layer will do that keeps the
 * contracts below.
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_TRANSPORT_H
#define MULTIHEAD_TRANSPORT_H

#include <multihead/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A message on its way; what is in it belongs to the transport. */
typedef struct mha_transfer {
    uint64_t words[4];
} mha_transfer;

/* The functions return MHA_OK, or mha_fail(MHA_ERR_RANK, ...) with the other rank's number and the
 * cause; after that, or after an error of a call that all ranks make which is not the same at all of
 * them, the ranks no longer know what comes next, and the transport is of no more use. They are called by
 * one thread at a time. count may be 0. */
typedef struct mha_transport {
    uint32_t struct_size;
    int32_t rank, size; /* 0 <= rank < size */
    int32_t most_tag;   /* the largest tag, at least 32767 */
    void *user;

    /* Begin to send to, or to receive from, another rank. Between two ranks messages of one tag
     * arrive in the order in which they were sent, and the sizes of both sides agree. Neither waits
     * for the other side. bytes stays as it is, and in place, until wait() has returned for the
     * transfer. tag is 0 .. most_tag. */
    mha_status (*send)(void *user, int32_t to, int32_t tag, const void *bytes, size_t count,
                       mha_transfer *transfer);
    mha_status (*receive)(void *user, int32_t from, int32_t tag, void *bytes, size_t count,
                          mha_transfer *transfer);
    /* Return when the transfer is complete. A wait that a lost rank would make endless ends with
     * MHA_ERR_RANK. */
    mha_status (*wait)(void *user, mha_transfer *transfer);
    /* Whether it is complete, at once; if so, wait() returns at once too. NULL: not known. Called
     * between two pieces of work, so that messages proceed meanwhile. */
    mha_status (*test)(void *user, mha_transfer *transfer, bool *complete);
    /* After a failure: a transfer that was begun and not waited for is given up. A receive writes
     * nothing from then on; what is sent may still be read, so that its memory must stay. */
    void (*cancel)(void *user, mha_transfer *transfer);
} mha_transport;

/** Send to a rank, or receive from it, with tag 0, and wait. Memory none. Errors those of the transport.
 * Threads one. Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_transport_send(const mha_transport *transport, int32_t to,
                                                    const void *bytes, size_t count);
/** See mha_transport_send(). Memory none. Errors those of the transport. Threads one. Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_transport_receive(const mha_transport *transport, int32_t from,
                                                       void *bytes, size_t count);

/**
 * Send `count` bytes of the rank `root` to all others: a binomial tree. All ranks make the call.
 *
 *   bytes in at root, out elsewhere
 *
 * Memory   none.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (the struct, root, count); those of the transport.
 * Threads  one.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_transport_broadcast(const mha_transport *transport,
                                                         int32_t root, void *bytes, size_t count);

/**
 * Collect `count` bytes of each rank at `root`, in the order of ranks. All ranks make the call.
 *
 *   bytes [count] in    all [size, count] out at root; elsewhere not read, NULL
 *
 * Memory   none.   Errors  as mha_transport_broadcast().   Threads  one.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_transport_gather(const mha_transport *transport, int32_t root,
                                                      const void *bytes, size_t count, void *all);

/**
 * Agree on whether to go on: each rank brings its own status, and all return the same one, that of
 * the lowest rank that failed, whose mha_error_detail() becomes everybody's, preceded by "rank 3:".
 * A call that all ranks make begins with it, so that none waits for one that has refused. After
 * MHA_ERR_RANK no message is sent: the rank returns its own status, whose text names who is lost.
 *
 *   status in   with mha_error_detail() of the caller if it is not MHA_OK
 *
 * Memory   none.
 * Errors   the status agreed on; MHA_ERR_NULL, MHA_ERR_ARGUMENT (transport); those of the
 *          transport.
 * Threads  one.   Cost  two messages up and down a tree.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_transport_agree(const mha_transport *transport,
                                                     mha_status status);

/**
 * Agree, and compare `count` bytes of all ranks: MHA_ERR_ARGUMENT at all of them if those of some
 * rank are not those of rank 0, with its number and `what`: "rank 2 has another description".
 *
 * Memory   none.   Errors  as mha_transport_agree(); MHA_ERR_ARGUMENT.   Threads  one.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_transport_same(const mha_transport *transport,
                                                    const char *what, const void *bytes,
                                                    size_t count, mha_status status);

/* Some ranks of a transport, which is then one of its own: a row or a column of a grid of ranks. Not to be
 * copied: transport points into it. */
typedef struct mha_transport_part {
    mha_transport transport; /* for calls of these ranks; rank and size count within them */
    const mha_transport *whole;
    const int32_t *ranks; /* [transport.size] of whole */
} mha_transport_part;

/**
 * Make a transport of some ranks of another one. Each of these ranks makes the call with the same list; no
 * message is sent. Two ranks may be together in any number of parts, and in the whole, as long as both
 * make their calls in the same order. Messages of errors count ranks within the part.
 *
 *   ranks [count] in   different ranks of whole, this one among them, in any order
 *
 * Memory   fills *part; borrows whole and ranks as long as it is used; frees nothing afterwards.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (the struct; a list without this rank, or with one that
 *          is not in whole or is there twice).   Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_transport_part_make(const mha_transport *whole,
                                                         const int32_t *ranks, int32_t count,
                                                         mha_transport_part *part);

#ifdef __cplusplus
}
#endif
#endif
