/* Ranks as threads of this process: a transport (multihead/transport.h) over queues in memory, for tests of several
 * ranks without a launcher. */
#ifndef TEST_THREAD_RANKS_H
#define TEST_THREAD_RANKS_H

#include <multihead/transport.h>

enum { MOST_THREAD_RANKS = 16 };

typedef struct thread_ranks_count {
    int64_t messages, bytes;
} thread_ranks_count;

typedef struct thread_ranks_counts {
    int64_t messages, bytes;                                                 /* sent by all ranks */
    thread_ranks_count sent[MOST_THREAD_RANKS], received[MOST_THREAD_RANKS]; /* by each rank */
} thread_ranks_counts;

typedef void thread_rank_fn(void *user, const mha_transport *transport);

/* Run fn on `size` ranks concurrently and wait for all of them. lost: a rank whose messages no
 * longer arrive after `after` sends, so that its partners get MHA_ERR_RANK; -1: none. Returns the
 * messages sent. Unreceived messages fail the test. */
thread_ranks_counts thread_ranks_run(int size, thread_rank_fn *fn, void *user, int lost,
                                     int64_t after);

#endif
