/* multihead: message transport between the ranks of a computation. A rank is one of several
 * processes (or threads, in tests) that make the same calls together. The library uses
 * point-to-point messages only; it computes reductions itself, in an order that does not depend on
 * the number of ranks.
 *
 * mpi.h (libmultihead-mpi) is a transport over MPI. Any other message layer may implement these
 * contracts.
 *
 * Example, given const mha_transport *transport, const char *options, size_t size:
 *
 *   mha_status status = mha_transport_same(transport, "options", options, size, MHA_OK);
 *   double sums[4] = {0};
 *   if (!status) status = mha_transport_broadcast(transport, 0, sums, sizeof sums); // from rank 0
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

/* A message in flight; its contents are private to the transport. */
typedef struct mha_transfer {
    uint64_t words[4];
} mha_transfer;

/* The functions return MHA_OK, or mha_fail(MHA_ERR_RANK, ...) with the other rank's number and the
 * cause. After that, or after a collective call with different errors at different ranks, the
 * transport must not be used again. They are called by one thread at a time. count may be 0. */
typedef struct mha_transport {
    uint32_t struct_size;
    int32_t rank, size; /* 0 <= rank < size */
    int32_t most_tag;   /* the largest tag, at least 32767 */
    void *user;

    /* Begin to send to, or to receive from, another rank. Between two ranks messages of one tag
     * arrive in the order in which they were sent, and the sizes of both sides agree. Neither waits
     * for the other side. bytes must stay unchanged and in place until wait() has
     * returned for the transfer. tag is 0 .. most_tag. */
    mha_status (*send)(void *user, int32_t to, int32_t tag, const void *bytes, size_t count,
                       mha_transfer *transfer);
    mha_status (*receive)(void *user, int32_t from, int32_t tag, void *bytes, size_t count,
                          mha_transfer *transfer);
    /* Return when the transfer is complete, or MHA_ERR_RANK if the other rank is lost. */
    mha_status (*wait)(void *user, mha_transfer *transfer);
    /* Cancel a pending transfer after a failure. A receive then writes nothing more; a send may
     * still read its bytes, which must stay valid. */
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
 * Send `count` bytes of the rank `root` to all others, by a binomial tree. All ranks make the call.
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
 * Agree on a status: each rank passes its own, and all return the status and the mha_error_detail()
 * of the lowest rank that failed, preceded by "rank 3:". Collective calls begin with it, so that no
 * rank waits for a rank that failed its checks. After MHA_ERR_RANK no message is sent: the rank
 * returns its own status, whose detail names the lost rank.
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
 * Agree, and compare `count` bytes of all ranks. If a rank differs from rank 0, all return
 * MHA_ERR_ARGUMENT with its number and `what`: "rank 2 has another description".
 *
 * Memory   none.   Errors  as mha_transport_agree(); MHA_ERR_ARGUMENT.   Threads  one.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_transport_same(const mha_transport *transport,
                                                    const char *what, const void *bytes,
                                                    size_t count, mha_status status);

/* A transport of some ranks of another one, such as a row or column of a grid. Do not copy it:
 * transport points into it. */
typedef struct mha_transport_part {
    mha_transport transport; /* for calls of these ranks; rank and size count within them */
    const mha_transport *whole;
    const int32_t *ranks; /* [transport.size] of whole */
} mha_transport_part;

/**
 * Make a transport of some ranks of another one. Each of these ranks makes the call with the same
 * list; no message is sent. Two ranks may share several parts and the whole, if both make their
 * calls in the same order. Error details number ranks within the part.
 *
 *   ranks [count] in   different ranks of whole, including this one, in any order
 *
 * Memory   fills *part; borrows whole and ranks as long as it is used; needs no destruction.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (the struct; a list without this rank, or with a rank
 *          that is repeated or not in whole).   Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_transport_part_make(const mha_transport *whole,
                                                         const int32_t *ranks, int32_t count,
                                                         mha_transport_part *part);

#ifdef __cplusplus
}
#endif
#endif
