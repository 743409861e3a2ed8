/* Inside libmultihead-mpi: the communicator, and transfers that are on their way. */
#ifndef MHAI_MPI_PARTS_H
#define MHAI_MPI_PARTS_H

#include <multihead/mpi.h>

#include <mpi.h>

struct mha_mpi {
    mha_transport transport;
    MPI_Comm comm, farewells;
    int32_t *waited_for; /* [size] what ranks that gave up have said; -1: nothing */
    bool *met;           /* [size] a message to or from it was complete */
    double deadline;
    bool finalises; /* MPI was initialised here */
    char lost[512]; /* what the first call that failed said, as all others do; empty: none has */
    char library[128];
};

/* The functions of the transport. */
mha_status mhai_mpi_send(void *user, int32_t to, int32_t tag, const void *bytes, size_t count,
                         mha_transfer *transfer);
mha_status mhai_mpi_receive(void *user, int32_t from, int32_t tag, void *bytes, size_t count,
                            mha_transfer *transfer);
mha_status mhai_mpi_wait(void *user, mha_transfer *transfer);
void mhai_mpi_cancel(void *user, mha_transfer *transfer);
mha_status mhai_mpi_test(void *user, mha_transfer *transfer, bool *complete);

/* MHA_OK for MPI_SUCCESS, or MHA_ERR_RANK: "rank 3: what it was: MPI's text". other -1: nobody's. */
mha_status mhai_mpi_check(int32_t other, const char *what, int error);

#endif
