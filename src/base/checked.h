/* Arithmetic on sizes with overflow checks (false: the result does not fit), and allocation of
 * arrays and of blocks that are divided into parts. */
#ifndef MHAI_CHECKED_H
#define MHAI_CHECKED_H

#include <multihead/component.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline bool mhai_mul_i64(int64_t a, int64_t b, int64_t *result)
{
    return !__builtin_mul_overflow(a, b, result);
}

static inline bool mhai_add_i64(int64_t a, int64_t b, int64_t *result)
{
    return !__builtin_add_overflow(a, b, result);
}

static inline bool mhai_mul_size(size_t a, size_t b, size_t *result)
{
    return !__builtin_mul_overflow(a, b, result);
}

static inline int64_t mhai_min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t mhai_max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t mhai_ceil_div(int64_t a, int64_t b) /* a >= 0, b > 0; cannot overflow */
{
    return a / b + (a % b != 0);
}

static inline int64_t mhai_round_up(int64_t a, int64_t b)
{
    return mhai_ceil_div(a, b) * b;
}

/* Allocate count zeroed elements of size bytes, aligned to a cache line. Returns NULL if out of
 * memory. A count of 0 allocates one byte. Release it with mhai_give() and the same count and
 * size. */
static inline void *mhai_take(const mha_allocator *a, int64_t count, size_t size)
{
    size_t bytes;
    if (count < 0 || !mhai_mul_size((size_t)count, size, &bytes) || bytes > PTRDIFF_MAX)
        return NULL;
    void *memory = a->alloc(a->user, bytes ? bytes : 1, 64);
    if (memory) memset(memory, 0, bytes);
    return memory;
}

/* mhai_take() into *pointer, which may have any pointer type. Errors name `what`. */
static inline mha_status mhai_take_for(const char *what, const mha_allocator *a, int64_t count,
                                       size_t size, void *pointer)
{
    void *memory = mhai_take(a, count, size);
    memcpy(pointer, &memory, sizeof memory);
    if (memory) return MHA_OK;
    const bool fits = count >= 0 && (uint64_t)count <= PTRDIFF_MAX / (size ? size : 1);
    return mha_fail(fits ? MHA_ERR_NOMEM : MHA_ERR_SIZE,
                    "%s: cannot allocate %lld elements of %zu bytes", what, (long long)count, size);
}

/* a b for nonnegative factors. INT64_MAX on overflow; allocating that size fails. */
static inline int64_t mhai_times(int64_t a, int64_t b)
{
    int64_t product;
    return mhai_mul_i64(a, b, &product) ? product : INT64_MAX;
}

static inline void mhai_give(const mha_allocator *a, void *memory, int64_t count, size_t size)
{
    const size_t bytes = (size_t)count * size;
    if (memory) a->release(a->user, memory, bytes ? bytes : 1);
}

/* Divides a block of memory into parts. If memory is NULL, it only computes `used`. */
typedef struct mhai_carver {
    unsigned char *memory;
    size_t used;
} mhai_carver;

/* Get the next part: count elements, rounded up to whole cache lines. On overflow, `used` becomes
 * PTRDIFF_MAX; allocating that size fails. */
static inline void *mhai_carve(mhai_carver *c, int64_t count, size_t size)
{
    void *part = c->memory ? c->memory + c->used : NULL;
    const int64_t bytes = mhai_times(count, (int64_t)size);
    const bool fits = c->used < PTRDIFF_MAX && bytes < PTRDIFF_MAX - 64 - (int64_t)c->used;
    c->used = fits ? c->used + (size_t)mhai_round_up(bytes, 64) : PTRDIFF_MAX;
    return part;
}

#endif
