/* Memory from an mha_allocator, and growing arrays. */
#ifndef MHAI_VECTOR_H
#define MHAI_VECTOR_H

#include <multihead/base.h>

/* Use the C library's allocator if wanted has no functions. */
mha_allocator mhai_vector_allocator(mha_allocator wanted);

/* Allocate count items of size bytes, uninitialised. Returns NULL if out of memory or if the
 * product overflows. A count of 0 also returns memory. */
void *mhai_vector_alloc(const mha_allocator *allocator, size_t count, size_t size);

/* Free memory from mhai_vector_alloc(), given the same count and size. memory may be NULL. */
void mhai_vector_release(const mha_allocator *allocator, void *memory, size_t count, size_t size);

/* An array of equal items, which are plain bytes and may be moved. */
typedef struct mhai_vector {
    const mha_allocator *allocator; /* must outlive the vector */
    void *items;
    size_t size; /* size of one item */
    size_t count, capacity;
} mhai_vector;

mhai_vector mhai_vector_make(const mha_allocator *allocator, size_t size);
void mhai_vector_free(mhai_vector *vector);

/* Append count uninitialised items. *first points to them until the next append.
 * Errors: MHA_ERR_NOMEM. */
MHA_NODISCARD mha_status mhai_vector_add(mhai_vector *vector, size_t count, void **first);

/* Append a copy of one item. Errors: MHA_ERR_NOMEM. */
MHA_NODISCARD mha_status mhai_vector_push(mhai_vector *vector, const void *item);

/* Append a copy of count items. Errors: MHA_ERR_NOMEM. */
MHA_NODISCARD mha_status mhai_vector_append(mhai_vector *vector, const void *items, size_t count);

/* Allocate memory that stores its own size. *items has room for count items of size bytes, and
 * extra bytes. Free *memory with mhai_vector_block_free(). Errors: MHA_ERR_NOMEM. */
MHA_NODISCARD mha_status mhai_vector_block_make(const mha_allocator *allocator, size_t count,
                                                size_t size, size_t extra, void **memory,
                                                void **items);
void mhai_vector_block_free(void *memory);

/* The memory to which items belong. */
void *mhai_vector_block_of(void *items);

#endif
