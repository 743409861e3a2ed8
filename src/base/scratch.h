/* The scratch stack: a few blocks, merged into one when the stack is empty. In the steady state
 * there is a single block, and nothing is allocated. */
#ifndef MHAI_SCRATCH_H
#define MHAI_SCRATCH_H

#include <multihead/base.h>
#include <multihead/component.h>

enum { MHAI_SCRATCH_BLOCKS = 32 };

typedef struct mhai_scratch {
    mha_allocator allocator;
    struct {
        unsigned char *memory;
        size_t bytes, used;
    } block[MHAI_SCRATCH_BLOCKS];
    size_t blocks; /* number in use; the last block is the top */
} mhai_scratch;

/* Make the empty stack a single free block of at least `bytes`. */
MHA_NODISCARD mha_status mhai_scratch_reserve(mhai_scratch *scratch, size_t bytes);

/* The free part of the top block; NULL if it is smaller than `bytes`. It stays free: the next
 * allocation may return the same memory. */
void *mhai_scratch_spare(mha_context *context, size_t bytes);

/* Allocate and release, so that a later allocation of this size at this mark cannot fail. */
MHA_NODISCARD mha_status mhai_scratch_ensure(mha_context *context, int64_t count, size_t size);

void mhai_scratch_free(mhai_scratch *scratch);

#endif
