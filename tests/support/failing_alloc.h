/* An allocator that counts, fails on demand, and detects leaks, wrong sizes and overruns. */
#ifndef TEST_FAILING_ALLOC_H
#define TEST_FAILING_ALLOC_H

#include <multihead/base.h>

typedef struct failing_alloc {
    int64_t calls;    /* number of calls of alloc, including failed ones */
    int64_t fail_at;  /* the call, counted from 0, that fails; -1: none */
    bool fail_after;  /* also fail every later call */
    int64_t live;     /* blocks that were not released */
    int64_t mistakes; /* wrong size at release, damaged guard bytes, alignment not a power of 2 */
    int64_t number;   /* of failing_from_here() */
} failing_alloc;

/* A new allocator, in which nothing fails. */
failing_alloc failing_alloc_make(void);

/* The library's allocator. state must outlive every block; one thread at a time. */
mha_allocator failing_alloc_interface(failing_alloc *state);

/* A context that uses this allocator. */
mha_status failing_context(failing_alloc *state, int32_t num_threads, mha_isa isa,
                           mha_context **context);

/* For failing_each(): count allocations from here on. */
void failing_from_here(failing_alloc *state);

/* Run something twice for each of its allocations: only that allocation fails, then that and all
 * later ones. run() gets a context of one thread, calls failing_from_here() after its preparations,
 * and returns the status of the rest. The test fails on any status except success and
 * MHA_ERR_NOMEM, and on leaks, including scratch. Returns the number of failures. */
int failing_each(mha_status (*run)(mha_context *context, failing_alloc *memory, void *user),
                 void *user);

#endif
