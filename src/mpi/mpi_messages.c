/* Messages over MPI. Transfers start without blocking, and are tested until they complete or the
 * deadline passes. */
#include "mpi/mpi_parts.h"

#include <multihead/component.h>

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* MPI counts are int, which limits the bytes of a message. */
enum { PIECE = 1 << 30 };

/* A waiting rank yields its processor. After SPIN_SECONDS it assumes that the other rank is
 * computing, and sleeps between tests. Ranks that share a machine thus compute at full speed.
 * During a sleep of 50 us, a 10 Gb/s link delivers 60 KB, which fits in socket buffers. */
static const double SPIN_SECONDS = 0.002;
static const struct timespec PAUSE = {.tv_nsec = 50000};

/* Seconds for which a failing rank waits for reports. Each waiting rank replies within one
 * sleep. */
static const double MOST_GRACE = 1;

/* A transfer in words[0]; NULL: it is complete. */
typedef struct pieces {
    int32_t other;
    bool sends;
    size_t count, bytes;
    MPI_Request requests[];
} pieces;

mha_status mhai_mpi_check(int32_t other, const char *what, int error)
{
    char text[MPI_MAX_ERROR_STRING] = "unknown error";
    int length;
    if (error == MPI_SUCCESS) return MHA_OK;
    MPI_Error_string(error, text, &length);
    text[strcspn(text, "\r\n")] = '\0';
    if (other < 0) return mha_fail(MHA_ERR_RANK, "%s: %s", what, text);
    return mha_fail(MHA_ERR_RANK, "rank %d cannot be reached: %s: %s", (int)other, what, text);
}

static mha_status check_usable(const mha_mpi *mpi, int32_t other)
{
    if (other < 0 || other >= mpi->transport.size)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_transport: rank %d of %d", (int)other,
                        (int)mpi->transport.size);
    return *mpi->lost ? mha_fail(MHA_ERR_RANK, "%s", mpi->lost) : MHA_OK;
}

/* Remember the error: after one failed call, all later calls fail. */
static mha_status keep(mha_mpi *mpi, mha_status status)
{
    if (status != MHA_OK) snprintf(mpi->lost, sizeof mpi->lost, "%s", mha_error_detail());
    return status;
}

static pieces *of(const mha_transfer *transfer)
{
    return (pieces *)(uintptr_t)transfer->words[0];
}

static void forget(mha_transfer *transfer)
{
    free(of(transfer));
    *transfer = (mha_transfer){{0}};
}

/* Start one request for each piece. MPI does not write to the bytes of sends. */
static mha_status begin(mha_mpi *mpi, int32_t other, int32_t tag, bool sends, void *bytes,
                        size_t count, mha_transfer *transfer)
{
    const size_t most = count / PIECE + 1;
    *transfer = (mha_transfer){{0}};
    MHA_TRY(check_usable(mpi, other));
    mha_status status = MHA_OK;
    pieces *p = malloc(sizeof *p + most * sizeof *p->requests);
    if (!p) return mha_fail(MHA_ERR_NOMEM, "mha_transport: out of memory for a message");
    *p = (pieces){.other = other, .sends = sends, .bytes = count};
    transfer->words[0] = (uint64_t)(uintptr_t)p;
    for (size_t at = 0; status == MHA_OK && (p->count == 0 || at < count); at += PIECE) {
        const int size = (int)(count - at < PIECE ? count - at : PIECE);
        unsigned char *piece = size > 0 ? (unsigned char *)bytes + at : NULL;
        MPI_Request *request = &p->requests[p->count];
        const int error = sends ? MPI_Isend(piece, size, MPI_BYTE, other, tag, mpi->comm, request)
                                : MPI_Irecv(piece, size, MPI_BYTE, other, tag, mpi->comm, request);
        status = keep(mpi, mhai_mpi_check(other, sends ? "MPI_Isend" : "MPI_Irecv", error));
        p->count += status == MHA_OK;
    }
    if (status != MHA_OK) mhai_mpi_cancel(mpi, transfer);
    return status;
}

mha_status mhai_mpi_send(void *user, int32_t to, int32_t tag, const void *bytes, size_t count,
                         mha_transfer *transfer)
{
    return begin(user, to, tag, true, (void *)(uintptr_t)bytes, count, transfer);
}

mha_status mhai_mpi_receive(void *user, int32_t from, int32_t tag, void *bytes, size_t count,
                            mha_transfer *transfer)
{
    return begin(user, from, tag, false, bytes, count, transfer);
}

/* Complete pieces from the last to the first; the first p->count pieces remain. */
static mha_status advance(pieces *p)
{
    while (p->count > 0) {
        MPI_Status status;
        int done = 0, size = 0;
        const int error = MPI_Test(&p->requests[p->count - 1], &done, &status);
        MHA_TRY(mhai_mpi_check(p->other, p->sends ? "sending" : "receiving", error));
        if (!done) return MHA_OK;
        const size_t expected = p->count == p->bytes / PIECE + 1 ? p->bytes % PIECE : PIECE;
        if (!p->sends) {
            MHA_TRY(
                mhai_mpi_check(p->other, "MPI_Get_count", MPI_Get_count(&status, MPI_BYTE, &size)));
            if ((size_t)size != expected)
                return mha_fail(MHA_ERR_RANK, "rank %d sent %d bytes, expected %zu", (int)p->other,
                                size, expected);
        }
        p->count--;
    }
    return MHA_OK;
}

/* Whether the transfer is complete, without blocking. */
static mha_status test(mha_mpi *mpi, mha_transfer *transfer, bool *complete)
{
    pieces *p = of(transfer);
    *complete = true;
    if (!p) return MHA_OK;
    MHA_TRY(check_usable(mpi, p->other));
    const mha_status status = keep(mpi, advance(p));
    *complete = status == MHA_OK && p->count == 0;
    mpi->met[p->other] |= *complete;
    if (*complete) forget(transfer);
    return status;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Cancel the transfer: late messages of a lost rank must not arrive in reused memory. */
static void cancel(pieces *p)
{
    for (size_t i = 0; !p->sends && i < p->count; i++)
        if (p->requests[i] != MPI_REQUEST_NULL) MPI_Cancel(&p->requests[i]);
}

void mhai_mpi_cancel(void *user, mha_transfer *transfer)
{
    pieces *p = of(transfer);
    (void)user;
    if (!p) return;
    cancel(p);
    for (size_t i = 0; i < p->count; i++)
        if (p->requests[i] != MPI_REQUEST_NULL) MPI_Request_free(&p->requests[i]);
    forget(transfer);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* A failing rank sends an empty message to every rank with which it has communicated. The tag is
 * the rank that it waited for. A waiting rank fails when it receives the message. Other ranks
 * receive none: they may be unreachable, and Open MPI ends the process if it cannot connect.
 * Returns a rank that has failed, or -1. */
static int32_t receive_reports(mha_mpi *mpi)
{
    int32_t who = -1;
    MPI_Status s;
    for (int there = 1; there;) {
        if (MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, mpi->farewells, &there, &s) != MPI_SUCCESS ||
            !there ||
            MPI_Recv(NULL, 0, MPI_BYTE, s.MPI_SOURCE, s.MPI_TAG, mpi->farewells,
                     MPI_STATUS_IGNORE) != MPI_SUCCESS)
            break;
        who = s.MPI_SOURCE;
        mpi->waited_for[who] = s.MPI_TAG;
    }
    return who;
}

static void say(mha_mpi *mpi, int32_t other)
{
    mpi->waited_for[mpi->transport.rank] = other;
    for (int32_t r = 0; r < mpi->transport.size; r++) {
        MPI_Request request;
        if (mpi->met[r] && r != mpi->transport.rank &&
            MPI_Isend(NULL, 0, MPI_BYTE, r, other, mpi->farewells, &request) == MPI_SUCCESS)
            MPI_Request_free(&request);
    }
}

/* Find the lost rank by following the reports of `first`, the rank that failed first. The chain of
 * waiting ranks ends at the lost rank, which has reported nothing. If the chain is a cycle, report
 * the rank that this rank waited for. */
static mha_status give_up(mha_mpi *mpi, const pieces *p, int32_t first)
{
    const double until = now() + (mpi->deadline < MOST_GRACE ? mpi->deadline : MOST_GRACE);
    int32_t waits = first, steps = 0;
    say(mpi, p->other);
    for (receive_reports(mpi); now() < until; receive_reports(mpi)) nanosleep(&PAUSE, NULL);
    while (mpi->waited_for[mpi->waited_for[waits]] >= 0 && steps++ < mpi->transport.size)
        waits = mpi->waited_for[waits];
    const int32_t lost = mpi->waited_for[waits];
    if (steps <= mpi->transport.size && waits != mpi->transport.rank)
        return mha_fail(MHA_ERR_RANK,
                        "rank %d is lost: rank %d waited for it in vain; it has ended, hangs, or "
                        "the network is cut (deadline in mha_mpi_desc)",
                        (int)lost, (int)waits);
    return mha_fail(MHA_ERR_RANK,
                    "rank %d is lost: %s %zu bytes was not complete after %g seconds; it has "
                    "ended, hangs, or the network is cut (deadline in mha_mpi_desc)",
                    (int)p->other, p->sends ? "sending" : "receiving", p->bytes, mpi->deadline);
}

mha_status mhai_mpi_wait(void *user, mha_transfer *transfer)
{
    mha_mpi *mpi = user;
    pieces *p = of(transfer);
    double begin_time = 0;
    int32_t first = -1;
    while (first < 0) {
        bool complete;
        MHA_TRY(test(mpi, transfer, &complete));
        if (complete) return MHA_OK;
        const double t = now();
        if (begin_time <= 0) begin_time = t;
        if (t - begin_time > mpi->deadline) {
            first = mpi->transport.rank;
        } else if (t - begin_time > SPIN_SECONDS) {
            nanosleep(&PAUSE, NULL);
            first = receive_reports(mpi);
        } else {
            sched_yield();
        }
    }
    cancel(p);
    return keep(mpi, give_up(mpi, p, first));
}
