/* Start and end of the transport over MPI. */
#include "mpi/mpi_parts.h"

#include <multihead/component.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double DEADLINE = 300;

static mha_status read_desc(const mha_mpi_desc *desc, mha_mpi_desc *d)
{
    MHA_TRY(mha_struct_read("mha_mpi_desc", d, sizeof *d, sizeof *d, desc,
                            desc ? desc->struct_size : 0));
    if (d->reserved != 0)
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_mpi_desc: reserved is %u, expected 0",
                        (unsigned)d->reserved);
    if (!(d->deadline >= 0) || !isfinite(d->deadline))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_mpi_desc: deadline is %g, expected seconds, or 0 for 300",
                        d->deadline);
    if (d->deadline <= 0) d->deadline = DEADLINE;
    return MHA_OK;
}

/* Initialise MPI, unless the program has done so. */
static mha_status initialise(bool *finalises)
{
    int there = 0, gone = 0, level;
    *finalises = false;
    MHA_TRY(mhai_mpi_check(-1, "MPI_Finalized", MPI_Finalized(&gone)));
    if (gone)
        return mha_fail(
            MHA_ERR_RANK,
            "mha_mpi_start: MPI is finalised and cannot be initialised again in this process");
    MHA_TRY(mhai_mpi_check(-1, "MPI_Initialized", MPI_Initialized(&there)));
    if (there) return MHA_OK;
    MHA_TRY(mhai_mpi_check(-1, "MPI_Init_thread",
                           MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level)));
    *finalises = true;
    return MHA_OK;
}

static int32_t find_most_tag(MPI_Comm comm)
{
    void *value = NULL;
    int there = 0;
    if (MPI_Comm_get_attr(comm, MPI_TAG_UB, &value, &there) != MPI_SUCCESS || !there) return 32767;
    return *(const int *)value;
}

static mha_status join(mha_mpi *mpi, MPI_Comm from)
{
    int rank, size, length;
    char name[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    MHA_TRY(mhai_mpi_check(-1, "MPI_Comm_dup", MPI_Comm_dup(from, &mpi->comm)));
    MHA_TRY(mhai_mpi_check(-1, "MPI_Comm_set_errhandler",
                           MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN)));
    MHA_TRY(mhai_mpi_check(-1, "MPI_Comm_rank", MPI_Comm_rank(mpi->comm, &rank)));
    MHA_TRY(mhai_mpi_check(-1, "MPI_Comm_size", MPI_Comm_size(mpi->comm, &size)));
    MHA_TRY(mhai_mpi_check(-1, "MPI_Get_library_version", MPI_Get_library_version(name, &length)));
    MHA_TRY(mhai_mpi_check(-1, "MPI_Comm_dup", MPI_Comm_dup(mpi->comm, &mpi->farewells)));
    mpi->waited_for = malloc((size_t)size * sizeof *mpi->waited_for);
    mpi->met = calloc((size_t)size, sizeof *mpi->met);
    if (!mpi->waited_for || !mpi->met) return MHA_NO_MEMORY("mha_mpi_start");
    for (int r = 0; r < size; r++) mpi->waited_for[r] = -1;
    name[strcspn(name, "\r\n")] = '\0';
    for (char *tab = name; (tab = strchr(tab, '\t'));) *tab = ' ';
    snprintf(mpi->library, sizeof mpi->library, "%.*s", (int)sizeof mpi->library - 1, name);
    mpi->transport = (mha_transport){.struct_size = sizeof mpi->transport,
                                     .rank = rank,
                                     .size = size,
                                     .most_tag = find_most_tag(mpi->comm),
                                     .user = mpi,
                                     .send = mhai_mpi_send,
                                     .receive = mhai_mpi_receive,
                                     .wait = mhai_mpi_wait,
                                     .cancel = mhai_mpi_cancel};
    return MHA_OK;
}

mha_status mha_mpi_start(const mha_mpi_desc *desc, mha_mpi **mpi)
{
    mha_mpi_desc d = {0};
    mha_status status;
    MPI_Comm from = MPI_COMM_WORLD;
    if (!mpi) return mha_fail(MHA_ERR_NULL, "mha_mpi_start: mpi is NULL");
    MHA_TRY(read_desc(desc, &d));
    mha_mpi *m = calloc(1, sizeof *m);
    if (!m) return mha_fail(MHA_ERR_NOMEM, "mha_mpi_start: cannot allocate %zu bytes", sizeof *m);
    m->comm = m->farewells = MPI_COMM_NULL;
    m->deadline = d.deadline;
    MHA_TRY_GOTO(initialise(&m->finalises), fail);
    if (d.communicator) memcpy(&from, d.communicator, sizeof from);
    MHA_TRY_GOTO(join(m, from), fail);
    *mpi = m;
    return MHA_OK;
fail:
    mha_mpi_finish(m);
    return status;
}

const mha_transport *mha_mpi_transport(const mha_mpi *mpi)
{
    return mpi ? &mpi->transport : NULL;
}

const char *mha_mpi_library(const mha_mpi *mpi)
{
    return mpi ? mpi->library : "";
}

void mha_mpi_finish(mha_mpi *mpi)
{
    if (!mpi) return;
    if (!*mpi->lost && mpi->comm != MPI_COMM_NULL) MPI_Comm_free(&mpi->comm);
    if (!*mpi->lost && mpi->farewells != MPI_COMM_NULL) MPI_Comm_free(&mpi->farewells);
    if (!*mpi->lost && mpi->finalises) MPI_Finalize();
    free(mpi->waited_for);
    free(mpi->met);
    free(mpi);
}

void mha_mpi_abort(mha_mpi *mpi, int exit_status)
{
    if (mpi) MPI_Abort(mpi->comm, exit_status);
}
