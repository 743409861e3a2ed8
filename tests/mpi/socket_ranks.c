/* The interface of libmultihead-mpi for ranks that are processes of one machine, without MPI: the program loads this
 * library by MHA_MPI_LIBRARY. tests/support/socket_ranks.py starts the ranks and joins each pair by a socket pair. No
 * deadline is needed: a process that exits closes its sockets, which the others notice.
 *
 *   MHA_TEST_RANKS_SOCKETS  one descriptor per rank, -1 for the process's own: "5,-1,6" for rank 1 of 3
 *   MHA_TEST_RANKS_COUNTS   a descriptor: mha_mpi_finish() writes the rank and its number of messages
 *   MHA_TEST_RANKS_SIGNAL   "RANK:K:SIGNAL": the rank raises the signal at the K-th message that it begins to send or
 * receive, counted from 1. Half of a sent message is then in flight
 */
#include <multihead/component.h>
#include <multihead/mpi.h>

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>

enum { MOST_RANKS = 64 };

typedef struct header {
    int64_t tag;
    uint64_t count;
} header;

/* A send, a receive, or a message that arrived before its receive. */
typedef struct item {
    struct item *next;
    struct peer *peer;
    header head;
    size_t done; /* bytes written including the header, or read excluding it */
    size_t arrived;
    unsigned char *bytes;
    bool sends, complete, cancelled;
} item;

typedef struct peer {
    int rank, socket;
    bool gone;
    item *sends, *receives, *early; /* in the order of their start or arrival */
    item *arriving;
    header head; /* header of the arriving message */
    size_t head_done;
} peer;

struct mha_mpi {
    mha_transport transport;
    long long messages, signal_at;
    int signal;
    bool broken;
    peer peers[MOST_RANKS];
};

static void append(item **queue, item *x)
{
    while (*queue) queue = &(*queue)->next;
    x->next = NULL;
    *queue = x;
}

static void take(item **queue, const item *x)
{
    while (*queue && *queue != x) queue = &(*queue)->next;
    if (*queue) *queue = x->next;
}

/* Removes the first message with this tag from the queue. Returns NULL if there is none. */
static item *take_first(item **queue, int64_t tag)
{
    item *x = *queue;
    while (x && x->head.tag != tag) x = x->next;
    if (x) take(queue, x);
    return x;
}

/* Completes a receive with its message. */
static void fill(item *receive, item *message)
{
    receive->arrived = message->head.count;
    receive->complete = true;
    if (receive->arrived == receive->head.count && receive->arrived > 0)
        memcpy(receive->bytes, message->bytes, receive->arrived);
    free(message->bytes);
    free(message);
}

static item *make_item(peer *p, header head, void *bytes)
{
    item *x = calloc(1, sizeof *x);
    if (!x) abort();
    x->peer = p, x->head = head, x->bytes = bytes;
    return x;
}

/* Reads available bytes, up to `count`. An empty socket is not an error. */
static size_t read_some(peer *p, void *bytes, size_t count)
{
    const ssize_t done = recv(p->socket, bytes, count, MSG_DONTWAIT);
    p->gone = done == 0 || (done < 0 && errno != EAGAIN && errno != EINTR);
    return done > 0 ? (size_t)done : 0;
}

/* Reads all available messages. */
static void pull(peer *p)
{
    for (size_t more = 1; more > 0 && !p->gone;) {
        item *x = p->arriving;
        if (x)
            x->done += more = read_some(p, x->bytes + x->done, x->head.count - x->done);
        else
            p->head_done += more = read_some(p, (unsigned char *)&p->head + p->head_done,
                                             sizeof p->head - p->head_done);
        if (!x && p->head_done == sizeof p->head) {
            unsigned char *bytes = malloc(p->head.count + 1);
            if (!bytes) abort();
            x = p->arriving = make_item(p, p->head, bytes);
            p->head_done = 0;
        }
        if (x && x->done == x->head.count) {
            item *receive = take_first(&p->receives, x->head.tag);
            p->arriving = NULL;
            if (receive)
                fill(receive, x);
            else
                append(&p->early, x);
        }
    }
}

/* Writes as many bytes as the socket accepts, at most `most` bytes of the first send. */
static void push(peer *p, size_t most)
{
    while (p->sends && !p->gone) {
        item *x = p->sends;
        const bool in_head = x->done < sizeof x->head;
        const size_t whole = sizeof x->head + x->head.count, end = most < whole ? most : whole;
        const size_t left = (in_head ? sizeof x->head : end) - x->done;
        const unsigned char *from =
            in_head ? (unsigned char *)&x->head + x->done : x->bytes + (x->done - sizeof x->head);
        const ssize_t done =
            left > 0 ? send(p->socket, from, left, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
        if (done < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (done < 0) { /* messages sent before its exit remain valid */
            pull(p);
            p->gone = true;
            return;
        }
        x->done += (size_t)done;
        if (x->done < whole && x->done >= end) return;
        if (x->done < whole) continue;
        take(&p->sends, x);
        x->arrived = x->head.count;
        x->complete = true;
        if (x->cancelled) free(x);
    }
}

/* Waits until a socket is ready, then reads and writes. */
static void progress(mha_mpi *mpi)
{
    struct pollfd fds[MOST_RANKS];
    peer *of[MOST_RANKS];
    nfds_t count = 0;
    for (int r = 0; r < mpi->transport.size; r++) {
        peer *p = &mpi->peers[r];
        if (p->gone) continue;
        fds[count] =
            (struct pollfd){.fd = p->socket, .events = p->sends ? POLLIN | POLLOUT : POLLIN};
        of[count++] = p;
    }
    if (poll(fds, count, -1) <= 0) return;
    for (nfds_t i = 0; i < count; i++) {
        if (fds[i].revents & ~POLLOUT) pull(of[i]);
        if (fds[i].revents & POLLOUT) push(of[i], SIZE_MAX);
    }
}

static mha_status check_usable(const mha_mpi *mpi, int32_t other)
{
    if (other < 0 || other >= mpi->transport.size || other == mpi->transport.rank)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_transport: rank %d of %d", (int)other,
                        (int)mpi->transport.size);
    if (mpi->broken) return mha_fail(MHA_ERR_RANK, "nobody says which rank was lost");
    return MHA_OK;
}

static mha_status begin_send(void *user, int32_t to, int32_t tag, const void *bytes, size_t count,
                             mha_transfer *transfer)
{
    mha_mpi *mpi = user;
    void *from;
    memcpy(&from, &bytes, sizeof from); /* a send does not write to it */
    *transfer = (mha_transfer){{0}};
    MHA_TRY(check_usable(mpi, to));
    item *x = make_item(&mpi->peers[to], (header){tag, count}, from);
    x->sends = true;
    append(&x->peer->sends, x);
    transfer->words[0] = (uintptr_t)x;
    if (++mpi->messages == mpi->signal_at) {
        push(x->peer, sizeof x->head + count / 2);
        raise(mpi->signal);
    }
    push(x->peer, SIZE_MAX);
    return MHA_OK;
}

static mha_status begin_receive(void *user, int32_t from, int32_t tag, void *bytes, size_t count,
                                mha_transfer *transfer)
{
    mha_mpi *mpi = user;
    *transfer = (mha_transfer){{0}};
    MHA_TRY(check_usable(mpi, from));
    item *x = make_item(&mpi->peers[from], (header){tag, count}, bytes);
    item *message = take_first(&x->peer->early, tag);
    if (message)
        fill(x, message);
    else
        append(&x->peer->receives, x);
    transfer->words[0] = (uintptr_t)x;
    if (++mpi->messages == mpi->signal_at) raise(mpi->signal);
    return MHA_OK;
}

static mha_status settle(mha_mpi *mpi, mha_transfer *transfer, bool *complete)
{
    item *x = (item *)(uintptr_t)transfer->words[0];
    *complete = true;
    if (!x) return MHA_OK;
    MHA_TRY(check_usable(mpi, x->peer->rank));
    const bool wrong = x->complete && x->arrived != x->head.count;
    *complete = x->complete && !wrong;
    mpi->broken = wrong || (!x->complete && x->peer->gone);
    if (wrong)
        return mha_fail(MHA_ERR_RANK, "rank %d sent %zu bytes, expected %zu", x->peer->rank,
                        x->arrived, (size_t)x->head.count);
    if (mpi->broken)
        return mha_fail(MHA_ERR_RANK, "rank %d is lost: its process has ended", x->peer->rank);
    if (!*complete) return MHA_OK;
    free(x);
    *transfer = (mha_transfer){{0}};
    return MHA_OK;
}

static mha_status wait_transfer(void *user, mha_transfer *transfer)
{
    for (;;) {
        bool complete;
        MHA_TRY(settle(user, transfer, &complete));
        if (complete) return MHA_OK;
        progress(user);
    }
}

/* A partly sent message stays in the queue, and its memory must remain valid. */
static void cancel_transfer(void *user, mha_transfer *transfer)
{
    item *x = (item *)(uintptr_t)transfer->words[0];
    (void)user;
    *transfer = (mha_transfer){{0}};
    if (!x) return;
    x->cancelled = x->sends && !x->complete;
    if (x->cancelled) return;
    take(&x->peer->receives, x);
    free(x);
}

static mha_status read_variables(mha_mpi *mpi)
{
    const char *at = getenv("MHA_TEST_RANKS_SOCKETS"), *when = getenv("MHA_TEST_RANKS_SIGNAL");
    int rank = -1, size = 0;
    for (char *end; at && *at && size < MOST_RANKS; at = *end ? end + 1 : end) {
        peer *p = &mpi->peers[size];
        p->rank = size++;
        p->socket = (int)strtol(at, &end, 10);
        p->gone = p->socket < 0;
        if (p->gone) rank = p->rank;
    }
    if (rank < 0) return mha_fail(MHA_ERR_RANK, "MHA_TEST_RANKS_SOCKETS: no list with a -1 in it");
    mpi->transport.rank = rank;
    mpi->transport.size = size;
    if (when && strtol(when, NULL, 10) == rank &&
        sscanf(when, "%*d:%lld:%d", &mpi->signal_at, &mpi->signal) != 2)
        return mha_fail(MHA_ERR_ARGUMENT, "MHA_TEST_RANKS_SIGNAL: '%s'", when);
    return MHA_OK;
}

mha_status mha_mpi_start(const mha_mpi_desc *desc, mha_mpi **mpi)
{
    (void)desc;
    mha_mpi *m = calloc(1, sizeof *m);
    if (!m) return mha_fail(MHA_ERR_NOMEM, "out of memory");
    m->transport = (mha_transport){.struct_size = sizeof m->transport,
                                   .most_tag = 32767,
                                   .user = m,
                                   .send = begin_send,
                                   .receive = begin_receive,
                                   .wait = wait_transfer,
                                   .cancel = cancel_transfer};
    const mha_status status = read_variables(m);
    if (status != MHA_OK)
        free(m);
    else
        *mpi = m;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* ranks exit with the test that started them */
    return status;
}

const mha_transport *mha_mpi_transport(const mha_mpi *mpi)
{
    return &mpi->transport;
}

const char *mha_mpi_library(const mha_mpi *mpi)
{
    (void)mpi;
    return "sockets of a test";
}

static bool all_gone(const mha_mpi *mpi)
{
    for (int r = 0; r < mpi->transport.size; r++)
        if (!mpi->peers[r].gone) return false;
    return true;
}

/* Waits until each rank has finished or exited, like MPI_Finalize(). */
void mha_mpi_finish(mha_mpi *mpi)
{
    const char *counts = getenv("MHA_TEST_RANKS_COUNTS");
    if (!mpi) return;
    for (int r = 0; r < mpi->transport.size && !mpi->broken; r++) {
        while (mpi->peers[r].sends && !mpi->peers[r].gone) progress(mpi);
        if (r != mpi->transport.rank) shutdown(mpi->peers[r].socket, SHUT_WR);
    }
    while (!mpi->broken && !all_gone(mpi)) progress(mpi);
    if (counts)
        dprintf((int)strtol(counts, NULL, 10), "%d %lld\n", mpi->transport.rank, mpi->messages);
    for (int r = 0; r < mpi->transport.size && !mpi->broken; r++) {
        if (!mpi->peers[r].early && !mpi->peers[r].receives) continue;
        fprintf(stderr, "rank %d finishes with messages of rank %d unread\n", mpi->transport.rank,
                r);
        _Exit(99);
    }
    free(mpi);
}

void mha_mpi_abort(mha_mpi *mpi, int exit_status)
{
    (void)mpi;
    _Exit(exit_status);
}
