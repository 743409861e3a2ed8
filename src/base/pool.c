/* A pool of POSIX threads.
 *
 * The caller is worker 0. The others sleep on a condition variable between runs. Each worker first
 * takes the items of its own share, from an atomic counter, and then helps with other shares.
 * Consecutive runs of the same shape therefore find weights and rows in the same core's cache.
 *
 * Workers poll for a short time before they sleep. The caller does the same at the end of a run.
 * This matters because the runs of a training step follow each other faster than a sleeping thread
 * wakes. After polling atomic variables, threads lock the mutex as if they had slept. C11 threads
 * are not used: glibc builds them on internals that the thread sanitizer cannot see.
 *
 * Sleeping workers are kept off the caller's CPU. Otherwise Linux in a virtual machine may wake
 * them there although another CPU is idle, and move them only milliseconds later. After a pause, a
 * run of a few milliseconds then takes longer with two threads than with one.
 *
 * After a fork, the child has none of the threads, and the mutex may be locked. The pool therefore
 * stores the process id, and starts again if it runs in another process. */
#define _GNU_SOURCE /* sched_getcpu, pthread_setaffinity_np */
#include "base/pool.h"

#include "base/cpu.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct worker {
    mhai_pool *pool;
    pthread_t thread;
    int index;
    bool asleep; /* under the mutex, like kept_off */
    bool kept_off;
#if defined(__linux__)
    cpu_set_t allowed; /* its affinity before it was kept off the caller's CPU */
#endif
    int64_t end; /* end of this worker's share of the items */
    /* The next item of the share; in its own cache line. */
    _Alignas(64) _Atomic int64_t next;
} worker;

struct mhai_pool {
    mha_allocator allocator;
    pid_t owner;
    int capacity; /* requested workers, including the caller */
    int started;  /* threads that exist */
    pthread_mutex_t mutex;
    pthread_cond_t wake, done;
    bool polls;                  /* there is a processor for each worker, so idle threads poll */
    _Atomic uint64_t generation; /* written under the mutex, like the next three */
    _Atomic int busy;            /* threads still working on the current run */
    _Atomic bool quit;
    mha_parallel_body body;
    void *argument;
    int64_t step;
    _Atomic int polling; /* number of idle threads that poll */
    worker workers[];    /* [capacity]; the caller is the first */
};

/* Process the remaining items of a share. */
static void work_on(mhai_pool *pool, worker *share, int index)
{
    for (;;) {
        int64_t item = atomic_fetch_add_explicit(&share->next, pool->step, memory_order_relaxed);
        if (item >= share->end) return;
        const int64_t left = share->end - item, step = left < pool->step ? left : pool->step;
        for (const int64_t end = item + step; item < end; item++)
            pool->body(pool->argument, item, index);
    }
}

static void work(mhai_pool *pool, int index)
{
    const int workers = pool->started + 1;
    for (int i = 0; i < workers; i++) work_on(pool, &pool->workers[(index + i) % workers], index);
}

static void share_out(mhai_pool *pool, int64_t items)
{
    const int64_t workers = pool->started + 1, each = items / workers, more = items % workers;
    int64_t begin = 0;
    for (int64_t i = 0; i < workers; i++) {
        atomic_store_explicit(&pool->workers[i].next, begin, memory_order_relaxed);
        begin += each + (i < more);
        pool->workers[i].end = begin;
    }
}

/* The time to poll is about ten times the cost of sleeping and waking. POLLS_PER_READ: polls per
 * read of the clock. */
enum { POLL_MICROSECONDS = 50, POLLS_PER_READ = 32 };

static int64_t microseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static bool has_news(mhai_pool *pool, uint64_t seen)
{
    return atomic_load_explicit(&pool->generation, memory_order_relaxed) != seen ||
           atomic_load_explicit(&pool->quit, memory_order_relaxed);
}

static bool is_done(mhai_pool *pool)
{
    return atomic_load_explicit(&pool->busy, memory_order_relaxed) == 0;
}

/* Poll for at most POLL_MICROSECONDS. A worker waits for a run other than `seen`, the caller for
 * the end of its run. */
static void poll_briefly(mhai_pool *pool, uint64_t seen, bool caller)
{
    if (!pool->polls) return;
    for (const int64_t end = microseconds() + POLL_MICROSECONDS; microseconds() < end;)
        for (int i = 0; i < POLLS_PER_READ; i++) {
            if (caller ? is_done(pool) : has_news(pool, seen)) return;
            pause_briefly();
        }
}

#if defined(__linux__)
/* With more workers, keeping them off would cost the caller more time than it saves. */
enum { MOST_KEPT_OFF = 15 };

static void keep_off(worker *w, int processor)
{
    if (pthread_getaffinity_np(w->thread, sizeof w->allowed, &w->allowed) != 0) return;
    cpu_set_t others = w->allowed;
    CPU_CLR((size_t)processor, &others);
    w->kept_off =
        CPU_COUNT(&others) > 0 && pthread_setaffinity_np(w->thread, sizeof others, &others) == 0;
}

/* No-op if there are more workers than processors, because no CPU is free then. */
static void keep_sleepers_off(mhai_pool *pool)
{
    const int here = pool->polls ? sched_getcpu() : -1;
    if (here < 0 || here >= CPU_SETSIZE || pool->started > MOST_KEPT_OFF) return;
    for (int i = 1; i <= pool->started; i++)
        if (pool->workers[i].asleep) keep_off(&pool->workers[i], here);
}

/* Restore the affinity of a worker that is awake. */
static void restore_affinity(worker *self)
{
    if (self->kept_off) (void)sched_setaffinity(0, sizeof self->allowed, &self->allowed);
    self->kept_off = false;
}
#else
static void keep_sleepers_off(mhai_pool *pool)
{
    (void)pool;
}

static void restore_affinity(worker *self)
{
    (void)self;
}
#endif

static void *worker_main(void *argument)
{
    worker *self = argument;
    mhai_pool *pool = self->pool;
    uint64_t seen = 0;
    pthread_mutex_lock(&pool->mutex);
    for (;;) {
        self->asleep = true;
        while (!pool->quit && pool->generation == seen)
            pthread_cond_wait(&pool->wake, &pool->mutex);
        self->asleep = false;
        restore_affinity(self);
        if (pool->quit) break;
        seen = pool->generation;
        pthread_mutex_unlock(&pool->mutex);
        work(pool, self->index);
        pthread_mutex_lock(&pool->mutex);
        pool->polling++;
        if (--pool->busy == 0) pthread_cond_signal(&pool->done);
        pthread_mutex_unlock(&pool->mutex);
        poll_briefly(pool, seen, false);
        pthread_mutex_lock(&pool->mutex);
        pool->polling--;
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

/* Create the synchronisation objects and threads of a pool in this process. Workers block signals,
 * so that the host's handlers run in the host's threads. */
static void start(mhai_pool *pool)
{
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    pool->owner = getpid();
    pool->generation = 0;
    pool->busy = 0;
    pool->quit = false;
    pool->started = 0;
    pool->polling = 0;
    pool->polls = pool->capacity <= mhai_cpu_count();
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 1; i < pool->capacity; i++) {
        pool->workers[i].pool = pool;
        pool->workers[i].index = i;
        pool->workers[i].asleep = false;
        pool->workers[i].kept_off = false;
        if (pthread_create(&pool->workers[i].thread, NULL, worker_main, &pool->workers[i]) != 0)
            break;
        pool->started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static size_t pool_bytes(int capacity)
{
    return sizeof(mhai_pool) + (size_t)capacity * sizeof(worker);
}

mhai_pool *mhai_pool_create(const mha_allocator *allocator, int workers)
{
    mhai_pool *pool = allocator->alloc(allocator->user, pool_bytes(workers), _Alignof(mhai_pool));
    if (!pool) return NULL;
    memset(pool, 0, pool_bytes(workers));
    pool->allocator = *allocator;
    pool->capacity = workers;
    start(pool);
    return pool;
}

void mhai_pool_destroy(mhai_pool *pool)
{
    if (!pool) return;
    if (pool->owner == getpid()) {
        pthread_mutex_lock(&pool->mutex);
        pool->quit = true;
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->mutex);
        for (int i = 1; i <= pool->started; i++) pthread_join(pool->workers[i].thread, NULL);
        pthread_mutex_destroy(&pool->mutex);
        pthread_cond_destroy(&pool->wake);
        pthread_cond_destroy(&pool->done);
    }
    mha_allocator allocator = pool->allocator;
    allocator.release(allocator.user, pool, pool_bytes(pool->capacity));
}

bool mhai_pool_is_awake(mhai_pool *pool)
{
    return pool->owner == getpid() &&
           atomic_load_explicit(&pool->polling, memory_order_relaxed) == pool->started;
}

void mhai_pool_run(mhai_pool *pool, int64_t items, mha_parallel_body body, void *argument)
{
    if (pool->owner != getpid()) start(pool); /* in a forked child */
    if (pool->started == 0) {
        for (int64_t item = 0; item < items; item++) body(argument, item, 0);
        return;
    }
    pthread_mutex_lock(&pool->mutex);
    pool->body = body;
    pool->argument = argument;
    /* Take several small items at a time. 64 steps per thread keep the load balanced. */
    pool->step = items / ((int64_t)(pool->started + 1) * 64);
    if (pool->step < 1) pool->step = 1;
    share_out(pool, items);
    pool->busy = pool->started;
    pool->generation++;
    keep_sleepers_off(pool);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
    work(pool, 0);
    poll_briefly(pool, 0, true);
    pthread_mutex_lock(&pool->mutex);
    while (pool->busy > 0) pthread_cond_wait(&pool->done, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
}
