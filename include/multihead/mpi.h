/* multihead: a transport over MPI (libmultihead-mpi, the only part of multihead that requires an
 * MPI library: Open MPI, MPICH).
 *
 * Only the thread that called mha_mpi_start() sends and receives (MPI_THREAD_FUNNELED). Transfers
 * above 1 GiB are split into several messages. A wait polls MPI_Test and yields the processor;
 * after 2 ms it sleeps 50 microseconds between calls.
 *
 * Example, given mha_status (*work)(const mha_transport *ranks):
 *
 *   mha_mpi *mpi = NULL;
 *   mha_status status = mha_mpi_start(NULL, &mpi); // all processes that mpirun started
 *   if (!status) status = work(mha_mpi_transport(mpi));
 *   mha_mpi_finish(mpi);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_MPI_H
#define MULTIHEAD_MPI_H

#include <multihead/transport.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The library's own communicator, and its messages in flight. */
typedef struct mha_mpi mha_mpi;

typedef struct mha_mpi_desc {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    /* The address of an MPI_Comm whose ranks take part; NULL: MPI_COMM_WORLD. It is duplicated */
    const void *communicator;
    /* Seconds to wait for a rank before it counts as lost; 0: 300. It must exceed the longest time
     * that any rank computes while another waits for it. It detects broken network connections: if
     * a process ends, mpirun ends all others within a second. A rank that times out sends the
     * number of the rank that it waited for to the ranks with which it has exchanged messages.
     * Waiting ranks then stop too, and all report the last rank of this chain of waits */
    double deadline;
} mha_mpi_desc;

/**
 * Join the ranks. All of them make the call.
 *
 * If MPI is not initialised, the call initialises it and mha_mpi_finish() finalises it. A program that
 * calls MPI_Init() itself must do so before this call, and finalise MPI after mha_mpi_finish().
 *
 *   desc   NULL: all defaults
 *
 * Memory   the caller owns *mpi.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (deadline), MHA_ERR_UNSUPPORTED (reserved); MHA_ERR_RANK
 *          (an error of MPI, with its text; MPI is finalised); MHA_ERR_NOMEM. A failing MPI_Init()
 *          ends the process: before initialisation MPI has no other error handling.
 * Threads  one thread of a process, the same for all calls with this transport.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_mpi_start(const mha_mpi_desc *desc, mha_mpi **mpi);

/**
 * The transport of the ranks. An error of the transport is final (MHA_ERR_RANK, with the other rank's number:
 * an error of MPI, or a wait beyond the deadline). Every later call fails immediately, and the memory of
 * incomplete transfers must stay valid until the process ends.
 *
 * Memory   lives as long as mpi.   Errors  none; NULL for NULL.   Threads  as mha_mpi_start().
 * Since  0.1
 */
MHA_API const mha_transport *mha_mpi_transport(const mha_mpi *mpi);

/** The version string of the MPI library in one line: "Open MPI v4.1.4, ...". Memory lives as long as mpi. Errors
 * none; "" for NULL. Threads any. Since 0.1 */
MHA_API const char *mha_mpi_library(const mha_mpi *mpi);

/**
 * Leave the ranks, and finalise MPI if mha_mpi_start() initialised it. All ranks make the call, after
 * every transfer is complete; it may wait for the others. After an error of the transport it only
 * frees memory.
 *
 * Memory   frees all; NULL: a no-op.   Errors  none.   Threads  as mha_mpi_start().   Since  0.1
 */
MHA_API void mha_mpi_finish(mha_mpi *mpi);

/**
 * End the processes of all ranks on all machines, this one included, with an exit status. A program calls it
 * when a rank is lost and the others may be waiting. It returns only if mpi is NULL.
 *
 * Memory   none.   Errors  none.   Threads  as mha_mpi_start().   Since  0.1
 */
MHA_API void mha_mpi_abort(mha_mpi *mpi, int exit_status);

#ifdef __cplusplus
}
#endif
#endif
