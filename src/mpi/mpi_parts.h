/* Internal to libmultihead-mpi: the communicator, and pending transfers. */
#ifndef MHAI_MPI_PARTS_H
#define MHAI_MPI_PARTS_H

#include <multihead/mpi.h>

#include <mpi.h>

struct mha_mpi {
    mha_transport transport;
    MPI_Comm comm, farewells;
    int32_t *waited_for; /* [size] the rank that each failed rank has reported; -1: none */
    bool *met;           /* [size] a message to or from the rank was completed */
    double deadline;
    bool finalises; /* this library initialised MPI and finalises it */
    char lost[512]; /* the error of the first failed call, which all later calls return; empty:
                     * none */
    char library[128];
};

/* The functions of the transport. */
mha_status mhai_mpi_send(void *user, int32_t to, int32_t tag, const void *bytes, size_t count,
                         mha_transfer *transfer);
mha_status mhai_mpi_receive(void *user, int32_t from, int32_t tag, void *bytes, size_t count,
                            mha_transfer *transfer);
mha_status mhai_mpi_wait(void *user, mha_transfer *transfer);
void mhai_mpi_cancel(void *user, mha_transfer *transfer);

/* Returns MHA_OK for MPI_SUCCESS, otherwise MHA_ERR_RANK with the message "rank 3: operation: MPI's
 * text". other is -1 if no rank is involved. */
mha_status mhai_mpi_check(int32_t other, const char *what, int error);

#endif
