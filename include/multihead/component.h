/* multihead: services for code built on a context: error text, scratch memory, rooms (memory
 * released together), parallel loops, and elementary functions with the same bits on every machine.
 *
 * For the library's own companions (model, render) and for callbacks that report errors. Users who
 * only compute attention do not need it.
 *
 * Example, given mha_context *context, const float *x, int64_t count, float *y:
 *
 *   double *e = NULL;
 *   const mha_scratch_mark mark = mha_scratch_top(context);
 *   mha_status status = mha_scratch_alloc(context, count, sizeof *e, &e);
 *   for (int64_t i = 0; !status && i < count; i++) e[i] = mha_exp(x[i]);
 *   for (int64_t i = 0; !status && i < count; i++) y[i] = (float)e[i];
 *   mha_scratch_release(context, mark);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_COMPONENT_H
#define MULTIHEAD_COMPONENT_H

#include <multihead/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Set this thread's error detail and return status: `return mha_fail(MHA_ERR_SHAPE, "k: ...",
 * ...)`. The text is one line that states what is wrong, where, and how to fix it, without a final
 * full stop; texts longer than 511 bytes are cut at a UTF-8 boundary, and control characters become
 * '?'.
 *
 * Memory   thread-local, never allocated.   Errors   none.   Threads  any.   Since  0.1
 */
MHA_API mha_status mha_fail(mha_status status, const char *format, ...) MHA_PRINTF(2, 3);

/**
 * snprintf() in the locale "C", whatever the host's.
 *
 * Memory   writes size bytes of text at most.   Errors  as snprintf().   Threads  any.   Since  0.1
 */
MHA_API int mha_format(char *text, size_t size, const char *format, ...) MHA_PRINTF(3, 4);

/* "what: out of memory", as an error. */
#define MHA_NO_MEMORY(what) mha_fail(MHA_ERR_NOMEM, "%s: out of memory", (what))

/** "function: name is NULL" as an error, where name is entry `index` of the list `names`. Memory none.
 * Errors MHA_ERR_NULL. Threads any. Since 0.1 */
MHA_API mha_status mha_need_fail(const char *function, const char *names, size_t index);

/* Return that error for the first of these variables that is NULL. MHA_NEED_AS uses the given
 * names. */
#define MHA_NEED(function, ...) MHA_NEED_AS(function, #__VA_ARGS__, __VA_ARGS__)
#define MHA_NEED_AS(function, names, ...)                                    \
    do {                                                                     \
        const bool need_[] = {__VA_ARGS__};                                  \
        for (size_t at_ = 0; at_ < sizeof need_ / sizeof *need_; at_++)      \
            if (!need_[at_]) return mha_need_fail((function), (names), at_); \
    } while (0)

/* Pass an error up unchanged. */
#define MHA_TRY(call)                                          \
    do {                                                       \
        mha_status mha_try_status_ = (call);                   \
        if (mha_try_status_ != MHA_OK) return mha_try_status_; \
    } while (0)

/* As MHA_TRY, for functions with a clean-up: sets status, which must be in scope, and jumps. */
#define MHA_TRY_GOTO(call, label)         \
    do {                                  \
        status = (call);                  \
        if (status != MHA_OK) goto label; \
    } while (0)

/**
 * Check a struct_size by the rule of base.h: a multiple of 8, at least `least` and at most
 * 4096.
 *
 * Memory   none.   Errors   MHA_ERR_ARGUMENT.   Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_struct_check_size(const char *name, uint32_t size,
                                                       size_t least);

/**
 * Read a struct that may grow: copy `size` bytes of the caller's struct (NULL: all defaults) into
 * own, which has own_size. Fields that the caller does not know become zero; fields that the
 * library does not know must be zero. size is the caller's sizeof, first_size that of the struct's
 * first version.
 *
 * Memory   borrows both.
 * Errors   MHA_ERR_ARGUMENT (as mha_struct_check_size()); MHA_ERR_UNSUPPORTED (an unknown field is
 *          set).
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_struct_read(const char *name, void *own, size_t own_size,
                                                 size_t first_size, const void *caller,
                                                 uint32_t size);

/* Scratch is a stack: take a mark, allocate, release back to the mark. */
typedef struct mha_scratch_mark {
    size_t block, used;
} mha_scratch_mark;

/** The current top of the context's scratch stack. Memory none. Errors none. Threads one.
 * Since 0.1 */
MHA_API mha_scratch_mark mha_scratch_top(const mha_context *context);

/**
 * count elements of size bytes on the scratch stack, aligned to 64 bytes, uninitialised.
 *
 *   pointer  the address of a pointer to any type, which is set
 *
 * Memory   valid until mha_scratch_release() to an older mark. In a steady state nothing is
 *          allocated: the stack keeps its size.
 * Errors   MHA_ERR_SIZE (count negative or the product overflows), MHA_ERR_NOMEM; the pointer is
 *          then NULL. A count of 0 gives a valid pointer.
 * Threads  the thread that owns the context.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_scratch_alloc(mha_context *context, int64_t count, size_t size,
                                                   void *pointer);

/** mha_scratch_alloc() of bytes that are 0. Memory, Errors and Threads as there. Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_scratch_zeros(mha_context *context, int64_t count, size_t size,
                                                   void *pointer);

/** Free everything allocated since mark. Memory stays reserved by the context. Errors none. Threads
 * one. Since 0.1 */
MHA_API void mha_scratch_release(mha_context *context, mha_scratch_mark mark);

/** mha_scratch_release(), and return status. Memory, Errors and Threads as there. Since 0.1 */
MHA_API mha_status mha_scratch_end(mha_context *context, mha_scratch_mark mark, mha_status status);

/* A room is an arena: memory, and objects with a destructor, that are released together in reverse
 * order. All zero: empty. */
typedef struct mha_room {
    struct mha_room_piece *last;
    size_t count; /* of entries: a mark for mha_room_release() */
} mha_room;

/** Allocate count zeroed elements of size bytes, at least one byte. pointer is the address of a pointer
 * of any type, NULL after an error. Memory lives as long as the room. Errors MHA_ERR_NOMEM. Threads one
 * per room. Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_room_alloc(mha_room *room, int64_t count, size_t size,
                                                void *pointer);

/* The same for elements of the pointer's type. */
#define MHA_ROOM_ALLOC(room, count, pointer) \
    mha_room_alloc(room, count, sizeof **(pointer), pointer)

/** Reallocate *pointer, which is NULL or memory of the room; new bytes are not zeroed. After an error
 * *pointer is unchanged. Memory, Errors, Threads as mha_room_alloc(). Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_room_grow(mha_room *room, int64_t count, size_t size,
                                               void *pointer);

/** Copy bytes and append a NUL. Memory, Errors, Threads as mha_room_alloc(). Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_room_text(mha_room *room, const char *text, size_t bytes,
                                               char **copy);

/** Call release(thing) when the room is released, or at once after an error. thing NULL: a no-op.
 * Memory, Errors, Threads as mha_room_alloc(). Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_room_keep(mha_room *room, void *thing,
                                               void (*release)(void *thing));

/** Release one object or allocation early; one that is not in the room is ignored. Memory frees it.
 * Errors none. Threads one per room. Since 0.1 */
MHA_API void mha_room_drop(mha_room *room, const void *thing);

/** Release everything added since room->count was mark, the last first; 0: everything. Memory frees
 * it. Errors none. Threads one per room. Since 0.1 */
MHA_API void mha_room_release(mha_room *room, size_t mark);

/**
 * Run body(argument, item, worker) for every item < items on the context's threads, and return when
 * all have finished. worker < mha_context_threads() and is not shared by two bodies at a time.
 * Items are taken dynamically: results must not depend on the worker that runs an item. A body must
 * not call mha_parallel_for() on the same context.
 *
 * Memory   none.   Errors  none.   Threads  the thread that owns the context.   Since  0.1
 */
MHA_API void mha_parallel_for(mha_context *context, int64_t items, mha_parallel_body body,
                              void *argument);

/**
 * exp(x), log(x), cos(2 pi x) for |x| < 2^51, with the same bits on every machine: libm's depend on
 * the processor and on the C library. Within one unit in the last place, the cosine within 2^-52;
 * zeros, infinities and NaN as in C.
 *
 * Memory   none.   Errors  none.   Threads  any.   Since  0.1
 */
MHA_API double mha_exp(double x);
/** See mha_exp(). Memory none. Errors none. Threads any. Since 0.1 */
MHA_API double mha_log(double x);
/** See mha_exp(). Memory none. Errors none. Threads any. Since 0.1 */
MHA_API double mha_cos_turns(double x);

#ifdef __cplusplus
}
#endif
#endif
