/* A small thread pool for one context. */
#ifndef MHAI_POOL_H
#define MHAI_POOL_H

#include <multihead/base.h>

typedef struct mhai_pool mhai_pool;

/* Create a pool of up to `workers` threads. The caller is worker 0. The pool is smaller if the
 * system cannot create a thread. Returns NULL only if out of memory. */
mhai_pool *mhai_pool_create(const mha_allocator *allocator, int workers);
void mhai_pool_destroy(mhai_pool *pool);

/* Whether all other threads are polling. Starting a run then costs almost nothing, while waking
 * threads takes ten microseconds or more. The answer may be outdated on return. */
bool mhai_pool_is_awake(mhai_pool *pool);

/* Call body(argument, item, worker) once for each item < items. Returns when all are done. */
void mhai_pool_run(mhai_pool *pool, int64_t items, mha_parallel_body body, void *argument);

#endif
