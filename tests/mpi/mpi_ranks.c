/* One rank of tests/mpi/run.py. Its argument selects the test:
 *
 *   messages   messages of all sizes between all pairs, trees, agreement; with a second transport over the caller's own
 * communicator
 *   large      a message of more than 1 GiB, which is sent in pieces
 *   silent     rank 2 sends nothing: the waits of ranks 1 and 0 end at the deadline, and both name rank 2; only ranks
 * that have exchanged messages receive a farewell
 *   broken     the second piece of a large message fails: the first one is cancelled
 *   wrong      rank 1 sends fewer bytes than expected
 *   abort      rank 1 aborts all, while the others wait without limit
 *
 * Prints one line and exits with 0 on success. */
#include "check.h"

#include <multihead/component.h>
#include <multihead/mpi.h>

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned char byte_of(int from, int to, size_t i)
{
    return (unsigned char)((size_t)from * 31 + (size_t)to * 7 + i * 13 + i / 251);
}

/* Every rank sends to every rank at the same time, then waits for all messages in a different
 * order. */
static void exchange(const mha_transport *t, size_t count)
{
    mha_transfer in[64], out[64];
    unsigned char *sent = malloc((size_t)t->size * count + 1);
    unsigned char *got = calloc((size_t)t->size * count + 1, 1);
    CHECK(sent && got && t->size <= 64);
    for (int r = 0; r < t->size; r++)
        for (size_t i = 0; i < count; i++) sent[(size_t)r * count + i] = byte_of(t->rank, r, i);
    for (int r = 0; r < t->size; r++) {
        if (r == t->rank) continue;
        CHECK(!t->receive(t->user, r, 7, got + (size_t)r * count, count, &in[r]));
        CHECK(!t->send(t->user, r, 7, sent + (size_t)r * count, count, &out[r]));
    }
    for (int r = t->size - 1; r >= 0; r--) {
        if (r == t->rank) continue;
        CHECK(!t->wait(t->user, &in[r]));
        CHECK(!t->wait(t->user, &out[r]));
        for (size_t i = 0; i < count; i++)
            CHECK(got[(size_t)r * count + i] == byte_of(r, t->rank, i));
    }
    free(sent);
    free(got);
}

static void messages(const mha_transport *t)
{
    static const size_t counts[] = {0, 1, 17, 4096, 70001, 3000000};
    int32_t shared = t->rank == t->size - 1 ? 4711 : 0, all[64];
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) exchange(t, counts[i]);
    CHECK(!mha_transport_broadcast(t, t->size - 1, &shared, sizeof shared) && shared == 4711);
    CHECK(!mha_transport_gather(t, 0, &t->rank, sizeof t->rank, all));
    for (int r = 0; t->rank == 0 && r < t->size; r++) CHECK(all[r] == r);
    CHECK(!mha_transport_agree(t, MHA_OK));
    if (t->size == 1) return;
    const bool fails = t->rank == t->size - 1;
    CHECK(mha_transport_agree(t, fails ? mha_fail(MHA_ERR_NOMEM, "none left") : MHA_OK) ==
          MHA_ERR_NOMEM);
    char expected[64];
    snprintf(expected, sizeof expected, "rank %d: none left", t->size - 1);
    CHECK(!strcmp(mha_error_detail(), expected));
    CHECK(mha_transport_same(t, "number", &t->rank, sizeof t->rank, MHA_OK) == MHA_ERR_ARGUMENT);
}

static void with_communicator(void)
{
    MPI_Comm comm;
    mha_mpi *mpi = NULL;
    mha_mpi_desc desc = {.struct_size = sizeof desc, .communicator = &comm};
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &comm);
    CHECK(!mha_mpi_start(&desc, &mpi));
    const mha_transport *t = mha_mpi_transport(mpi);
    int32_t first = rank;
    CHECK(!mha_transport_broadcast(t, 0, &first, sizeof first) && first % 2 == rank % 2);
    CHECK(first >= rank); /* counted from the last rank */
    messages(t);
    mha_mpi_finish(mpi);
    MPI_Comm_free(&comm);
}

static void large(const mha_transport *t)
{
    const size_t count = ((size_t)1 << 30) + 5;
    unsigned char *bytes = calloc(count, 1);
    mha_transfer transfer;
    CHECK(bytes && t->size == 2);
    for (size_t i = 0; t->rank == 0 && i < count; i += 4093) bytes[i] = byte_of(0, 1, i);
    if (t->rank == 0) bytes[count - 1] = 42;
    CHECK(!(t->rank == 0 ? t->send(t->user, 1, 0, bytes, count, &transfer)
                         : t->receive(t->user, 0, 0, bytes, count, &transfer)));
    CHECK(!t->wait(t->user, &transfer));
    for (size_t i = 0; i < count - 1; i += 4093) CHECK(bytes[i] == byte_of(0, 1, i));
    CHECK(bytes[count - 1] == 42);
    free(bytes);
}

/* ---- the transport's calls of MPI ------------------------------------------------------------ */

static bool told[8];                   /* ranks that were sent farewells */
static int receives_left = 1000000000; /* calls before a failure */
static int cancelled;

int MPI_Isend(const void *bytes, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    if (!bytes && to < 8) told[to] = true;
    return PMPI_Isend(bytes, count, type, to, tag, comm, request);
}

int MPI_Irecv(void *bytes, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    if (receives_left-- <= 0) return MPI_ERR_OTHER;
    return PMPI_Irecv(bytes, count, type, from, tag, comm, request);
}

int MPI_Cancel(MPI_Request *request)
{
    cancelled++;
    return PMPI_Cancel(request);
}

/* If the receive of the second piece of a message fails, the first is cancelled, and its memory is
 * not written. */
static void broken(const mha_transport *t)
{
    const size_t count = ((size_t)1 << 30) + 5;
    unsigned char *bytes = calloc(count, 1);
    mha_transfer transfer;
    CHECK(bytes);
    receives_left = 1;
    CHECK(t->receive(t->user, 1, 0, bytes, count, &transfer) == MHA_ERR_RANK);
    CHECK(cancelled == 1);
    CHECK(!t->wait(t->user, &transfer)); /* no receive was posted */
    CHECK(t->receive(t->user, 1, 0, bytes, 1, &transfer) == MHA_ERR_RANK);
    free(bytes);
}

/* Ranks 0 and 1 exchange a message; the others do not. */
static void meet(const mha_transport *t)
{
    char byte = 0;
    CHECK(!(t->rank == 1 ? mha_transport_send(t, 0, &byte, 1)
                         : mha_transport_receive(t, 1, &byte, 1)));
}

/* Checks that the wait for the next rank ends with the number of the lost rank, and that every
 * later call fails. */
static void lost(const mha_transport *t, const char *sentence)
{
    char bytes[16];
    mha_transfer transfer, later;
    CHECK(!t->receive(t->user, t->rank + 1, 0, bytes, sizeof bytes, &transfer));
    CHECK(t->wait(t->user, &transfer) == MHA_ERR_RANK);
    CHECK(strstr(mha_error_detail(), sentence));
    CHECK(t->receive(t->user, 1, 0, bytes, sizeof bytes, &later) == MHA_ERR_RANK);
    CHECK(mha_transport_agree(t, MHA_OK) == MHA_ERR_RANK);
}

int main(int count, char **arguments)
{
    const char *what = count == 2 ? arguments[1] : "";
    mha_mpi *mpi = NULL;
    const bool silent = !strcmp(what, "silent"), wrong = !strcmp(what, "wrong");
    const mha_mpi_desc desc = {.struct_size = sizeof desc, .deadline = silent ? 0.5 : 0};
    mha_mpi_desc bad = desc;
    bad.deadline = -1;
    CHECK(mha_mpi_start(&bad, &mpi) == MHA_ERR_ARGUMENT);
    bad = desc;
    bad.reserved = 1;
    CHECK(mha_mpi_start(&bad, &mpi) == MHA_ERR_UNSUPPORTED && !mpi);
    CHECK(mha_mpi_start(&desc, NULL) == MHA_ERR_NULL);
    CHECK(!mha_mpi_start(&desc, &mpi));
    const mha_transport *t = mha_mpi_transport(mpi);
    CHECK(strstr(mha_mpi_library(mpi), "MPI"));
    if (!strcmp(what, "messages")) {
        messages(t);
        with_communicator();
    } else if (!strcmp(what, "large")) {
        large(t);
    } else if (!strcmp(what, "broken")) {
        if (t->rank == 0) broken(t);
    } else if (silent && t->rank == 0) {
        meet(t);
        lost(t, "rank 2 is lost: rank 1 waited for it in vain");
        CHECK(told[1] && !told[2] && !told[3]);
    } else if (silent && t->rank == 1) {
        meet(t);
        lost(t, "rank 2 is lost: receiving 16 bytes was not complete after 0.5 seconds");
    } else if (wrong && t->rank == 1) {
        mha_transfer transfer;
        CHECK(!t->send(t->user, 0, 0, "short", 5, &transfer));
        CHECK(!t->wait(t->user, &transfer));
    } else if (wrong && t->rank == 0) {
        lost(t, "rank 1 sent 5 bytes, expected 16");
    } else if (!strcmp(what, "abort")) {
        char bytes[4];
        mha_transfer transfer;
        if (t->rank == 1) mha_mpi_abort(mpi, 8);
        CHECK(!t->receive(t->user, 1, 0, bytes, sizeof bytes, &transfer));
        CHECK(!t->wait(t->user, &transfer));
    }
    printf("rank %d of %d: %s\n", t->rank, t->size, what);
    fflush(stdout);
    if (silent || wrong ||
        !strcmp(
            what,
            "broken")) { /* without MPI_Finalize(): mpirun ends all ranks when the first one exits */
        MPI_Barrier(MPI_COMM_WORLD);
        _Exit(0);
    }
    mha_mpi_finish(mpi);
    return 0;
}
