#include "support/thread_ranks.h"

#include "support/suite.h"

#include <multihead/component.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct message {
    struct message *next;
    int32_t tag;
    size_t count;
    unsigned char bytes[];
} message;

typedef struct world world;

typedef struct rank_thread {
    world *all;
    mha_transport transport;
    pthread_t thread;
    int64_t sends;
    bool gone; /* protected by the mutex: the rank has finished or is lost */
} rank_thread;

struct world {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int size, lost;
    int64_t after;
    thread_rank_fn *fn;
    void *user;
    thread_ranks_counts counts;
    message *first[MOST_THREAD_RANKS][MOST_THREAD_RANKS]; /* [from][to] queues */
    int64_t left;                                         /* messages in the queues */
    rank_thread ranks[MOST_THREAD_RANKS];
};

/* The words of a transfer. FROM 0: a message was sent; otherwise receive from rank FROM - 1 with
 * this address, size and tag. */
enum { FROM, TO_BYTES, COUNT, TAG };

static mha_status send_message(void *user, int32_t to, int32_t tag, const void *bytes, size_t count,
                               mha_transfer *transfer)
{
    rank_thread *own = user;
    world *w = own->all;
    message *m = malloc(sizeof *m + count);
    if (!m) return mha_fail(MHA_ERR_NOMEM, "out of memory");
    *transfer = (mha_transfer){{0}};
    m->next = NULL;
    m->tag = tag;
    m->count = count;
    if (count > 0) memcpy(m->bytes, bytes, count);
    pthread_mutex_lock(&w->mutex);
    const bool arrives = own->transport.rank != w->lost || own->sends++ < w->after;
    if (arrives) {
        message **at = &w->first[own->transport.rank][to];
        while (*at) at = &(*at)->next;
        *at = m;
        w->left++;
        w->counts.messages++;
        w->counts.bytes += (int64_t)count;
        thread_ranks_count *ends[] = {&w->counts.sent[own->transport.rank],
                                      &w->counts.received[to]};
        for (int i = 0; i < 2; i++) ends[i]->messages++, ends[i]->bytes += (int64_t)count;
    } else {
        own->gone = true;
    }
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
    if (!arrives) free(m);
    return arrives ? MHA_OK : mha_fail(MHA_ERR_RANK, "rank %d is lost", (int)own->transport.rank);
}

static mha_status receive_message(void *user, int32_t from, int32_t tag, void *bytes, size_t count,
                                  mha_transfer *transfer)
{
    (void)user;
    *transfer =
        (mha_transfer){{(uint64_t)from + 1, (uint64_t)(uintptr_t)bytes, count, (uint64_t)tag}};
    return MHA_OK;
}

/* With the mutex held, take the message for a transfer, if there is one. */
static mha_status take(rank_thread *own, const mha_transfer *x, bool *complete)
{
    world *w = own->all;
    const int from = (int)x->words[FROM] - 1;
    message **at = &w->first[from][own->transport.rank];
    while (*at && (*at)->tag != (int32_t)x->words[TAG]) at = &(*at)->next;
    message *m = *at;
    mha_status status = MHA_OK;
    *complete = m != NULL;
    if (!m && w->ranks[from].gone) return mha_fail(MHA_ERR_RANK, "rank %d is gone", from);
    if (!m) return MHA_OK;
    *at = m->next;
    w->left--;
    if (m->count != x->words[COUNT])
        status = mha_fail(MHA_ERR_RANK, "rank %d sent %zu bytes, expected %zu", from, m->count,
                          (size_t)x->words[COUNT]);
    else if (m->count > 0)
        memcpy((void *)(uintptr_t)x->words[TO_BYTES], m->bytes, m->count);
    free(m);
    return status;
}

static mha_status wait_message(void *user, mha_transfer *x)
{
    rank_thread *own = user;
    bool complete = x->words[FROM] == 0;
    mha_status status = MHA_OK;
    pthread_mutex_lock(&own->all->mutex);
    while (status == MHA_OK && !complete) {
        status = take(own, x, &complete);
        if (status == MHA_OK && !complete) pthread_cond_wait(&own->all->changed, &own->all->mutex);
    }
    pthread_mutex_unlock(&own->all->mutex);
    if (complete) *x = (mha_transfer){{0}};
    return status;
}

/* wait() receives, and sent memory is copied, so nothing has to be cancelled. */
static void cancel_message(void *user, mha_transfer *transfer)
{
    (void)user;
    *transfer = (mha_transfer){{0}};
}

static void *run_rank(void *argument)
{
    rank_thread *own = argument;
    world *w = own->all;
    w->fn(w->user, &own->transport);
    pthread_mutex_lock(&w->mutex);
    own->gone = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

thread_ranks_counts thread_ranks_run(int size, thread_rank_fn *fn, void *user, int lost,
                                     int64_t after)
{
    world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    assert_in_range(size, 1, MOST_THREAD_RANKS);
    *w = (world){.size = size, .lost = lost, .after = after, .fn = fn, .user = user};
    assert_int_equal(pthread_mutex_init(&w->mutex, NULL), 0);
    assert_int_equal(pthread_cond_init(&w->changed, NULL), 0);
    for (int r = 0; r < size; r++) {
        rank_thread *own = &w->ranks[r];
        own->all = w;
        own->transport = (mha_transport){.struct_size = sizeof own->transport,
                                         .rank = r,
                                         .size = size,
                                         .most_tag = 32767,
                                         .user = own,
                                         .send = send_message,
                                         .receive = receive_message,
                                         .wait = wait_message,
                                         .cancel = cancel_message};
    }
    for (int r = 0; r < size; r++)
        assert_int_equal(pthread_create(&w->ranks[r].thread, NULL, run_rank, &w->ranks[r]), 0);
    for (int r = 0; r < size; r++) pthread_join(w->ranks[r].thread, NULL);
    const thread_ranks_counts counts = w->counts;
    if (lost < 0) assert_int_equal(w->left, 0);
    for (int i = 0; i < size * MOST_THREAD_RANKS; i++)
        for (message *m = w->first[i / MOST_THREAD_RANKS][i % MOST_THREAD_RANKS], *next; m;
             m = next)
            next = m->next, free(m);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mutex);
    free(w);
    return counts;
}
