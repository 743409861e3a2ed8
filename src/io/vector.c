/* See vector.h. Vectors double their capacity, so appending takes amortised constant time. */
#include "io/vector.h"

#include <multihead/component.h>

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64, FIRST_CAPACITY = 16 };

static void *library_alloc(void *user, size_t bytes, size_t alignment)
{
    (void)user;
    if (bytes > SIZE_MAX - alignment) return NULL;
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void library_release(void *user, void *memory, size_t bytes)
{
    (void)user;
    (void)bytes;
    free(memory);
}

mha_allocator mhai_vector_allocator(mha_allocator wanted)
{
    return wanted.alloc ? wanted : (mha_allocator){library_alloc, library_release, NULL};
}

/* Allocators need not support size 0. */
static size_t bytes_of(size_t count, size_t size)
{
    return count > 0 && size > 0 ? count * size : 1;
}

void *mhai_vector_alloc(const mha_allocator *allocator, size_t count, size_t size)
{
    if (size > 0 && count > PTRDIFF_MAX / size) return NULL;
    return allocator->alloc(allocator->user, bytes_of(count, size), ALIGNMENT);
}

void mhai_vector_release(const mha_allocator *allocator, void *memory, size_t count, size_t size)
{
    if (memory) allocator->release(allocator->user, memory, bytes_of(count, size));
}

mhai_vector mhai_vector_make(const mha_allocator *allocator, size_t size)
{
    return (mhai_vector){.allocator = allocator, .size = size};
}

void mhai_vector_free(mhai_vector *vector)
{
    if (!vector->allocator) return; /* never initialised */
    mhai_vector_release(vector->allocator, vector->items, vector->capacity, vector->size);
    *vector = mhai_vector_make(vector->allocator, vector->size);
}

static mha_status reserve(mhai_vector *vector, size_t count)
{
    size_t capacity = vector->capacity > 0 ? vector->capacity : FIRST_CAPACITY;
    while (capacity < count) capacity = capacity > SIZE_MAX / 2 ? count : 2 * capacity;
    void *items = mhai_vector_alloc(vector->allocator, capacity, vector->size);
    if (!items)
        return mha_fail(MHA_ERR_NOMEM, "tokenizer: cannot allocate %zu items of %zu bytes",
                        capacity, vector->size);
    if (vector->items) memcpy(items, vector->items, vector->count * vector->size);
    mhai_vector_release(vector->allocator, vector->items, vector->capacity, vector->size);
    vector->items = items;
    vector->capacity = capacity;
    return MHA_OK;
}

mha_status mhai_vector_add(mhai_vector *vector, size_t count, void **first)
{
    if (count > SIZE_MAX - vector->count)
        return mha_fail(MHA_ERR_NOMEM, "tokenizer: cannot allocate %zu items more", count);
    if (vector->count + count > vector->capacity) MHA_TRY(reserve(vector, vector->count + count));
    /* Avoid arithmetic on NULL when nothing is appended to an empty vector. */
    *first = vector->items ? (char *)vector->items + vector->count * vector->size : NULL;
    vector->count += count;
    return MHA_OK;
}

mha_status mhai_vector_append(mhai_vector *vector, const void *items, size_t count)
{
    void *place = NULL;
    MHA_TRY(mhai_vector_add(vector, count, &place));
    if (count > 0) memcpy(place, items, count * vector->size);
    return MHA_OK;
}

mha_status mhai_vector_push(mhai_vector *vector, const void *item)
{
    return mhai_vector_append(vector, item, 1);
}

/* Header of a block, before its items. */
typedef struct block_head {
    mha_allocator allocator;
    size_t bytes;
} block_head;

enum { HEAD = (sizeof(block_head) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT };

mha_status mhai_vector_block_make(const mha_allocator *allocator, size_t count, size_t size,
                                  size_t extra, void **memory, void **items)
{
    block_head *head = NULL;
    if (extra < PTRDIFF_MAX - HEAD && (size == 0 || count <= (PTRDIFF_MAX - HEAD - extra) / size))
        head = mhai_vector_alloc(allocator, HEAD + extra + count * size, 1);
    if (!head)
        return mha_fail(MHA_ERR_NOMEM, "tokenizer: cannot allocate %zu items of %zu bytes", count,
                        size);
    *head = (block_head){*allocator, HEAD + extra + count * size};
    *memory = head;
    *items = (char *)head + HEAD;
    return MHA_OK;
}

void mhai_vector_block_free(void *memory)
{
    if (!memory) return;
    const block_head head = *(block_head *)memory;
    mhai_vector_release(&head.allocator, memory, head.bytes, 1);
}

void *mhai_vector_block_of(void *items)
{
    return (char *)items - HEAD;
}
