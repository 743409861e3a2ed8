/* The context owns the thread pool and the scratch stack. */
#ifndef MHAI_CONTEXT_H
#define MHAI_CONTEXT_H

#include "base/pool.h"
#include "base/scratch.h"

#include <multihead/base.h>

struct mha_context {
    mha_allocator allocator;
    mha_isa isa;
    int num_threads;
    int64_t l2;                            /* L2 bytes per core, for block sizes */
    mha_parallel_for_fn host_parallel_for; /* NULL: use the pool */
    void *host_user;
    mhai_pool *pool; /* NULL: one thread, or the host's parallel-for */
    mhai_scratch scratch;
};

#endif
