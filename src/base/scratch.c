/* See scratch.h. */
#include "base/scratch.h"

#include "base/checked.h"
#include "base/context.h"
#include "base/poison.h"

enum { ALIGNMENT = 64, SMALLEST_BLOCK = 64 * 1024 };

/* With AddressSanitizer, a red zone of equal size follows each piece. Sizes and offsets do not
 * include red zones, so offset n of a block is at n * SPREAD. */
enum { SPREAD = 1 + MHAI_RED_ZONES };

static unsigned char *at(const mhai_scratch *scratch, size_t block, size_t offset)
{
    return scratch->block[block].memory + SPREAD * offset;
}

static void *take_block(mhai_scratch *scratch, size_t bytes)
{
    if (bytes > SIZE_MAX / SPREAD) return NULL;
    void *memory = scratch->allocator.alloc(scratch->allocator.user, SPREAD * bytes, ALIGNMENT);
    if (memory) MHAI_POISON(memory, SPREAD * bytes);
    return memory;
}

/* Poison the pieces at offsets >= from, until they are allocated again. */
static void poison_from(const mhai_scratch *scratch, size_t block, size_t from)
{
    MHAI_POISON(at(scratch, block, from), SPREAD * (scratch->block[block].used - from));
}

static void free_block(mhai_scratch *scratch, size_t i)
{
    if (scratch->block[i].memory) {
        MHAI_UNPOISON(scratch->block[i].memory, SPREAD * scratch->block[i].bytes);
        scratch->allocator.release(scratch->allocator.user, scratch->block[i].memory,
                                   SPREAD * scratch->block[i].bytes);
    }
    scratch->block[i].memory = NULL;
    scratch->block[i].bytes = scratch->block[i].used = 0;
}

static mha_status push_block(mhai_scratch *scratch, size_t bytes)
{
    size_t i = scratch->blocks;
    if (i == MHAI_SCRATCH_BLOCKS)
        return mha_fail(MHA_ERR_NOMEM, "scratch: more than %d blocks in the first call",
                        (int)MHAI_SCRATCH_BLOCKS);
    /* Doubling limits the number of blocks during the first call. */
    size_t last = i > 0 ? scratch->block[i - 1].bytes : SMALLEST_BLOCK / 2;
    size_t want = last <= SIZE_MAX / 2 && bytes < 2 * last ? 2 * last : bytes;
    void *memory = take_block(scratch, want);
    if (!memory && want > bytes) {
        want = bytes;
        memory = take_block(scratch, want);
    }
    if (!memory) return mha_fail(MHA_ERR_NOMEM, "scratch: cannot allocate %zu bytes", bytes);
    scratch->block[i].memory = memory;
    scratch->block[i].bytes = want;
    scratch->block[i].used = 0;
    scratch->blocks++;
    return MHA_OK;
}

/* Replace the blocks of an empty stack with one of their total size. If that fails, the next call
 * allocates blocks again. */
static void merge_blocks(mhai_scratch *scratch)
{
    size_t total = 0;
    for (size_t i = 0; i < scratch->blocks; i++) total += scratch->block[i].bytes;
    mhai_scratch_free(scratch);
    void *memory = take_block(scratch, total);
    if (!memory) return;
    scratch->block[0].memory = memory;
    scratch->block[0].bytes = total;
    scratch->blocks = 1;
}

mha_status mhai_scratch_reserve(mhai_scratch *scratch, size_t bytes)
{
    if (scratch->blocks == 1 && scratch->block[0].bytes >= bytes) return MHA_OK;
    for (size_t i = 0; i < scratch->blocks; i++)
        if (scratch->block[i].used > 0)
            return mha_fail(MHA_ERR_ARGUMENT, "mha_context_reserve: scratch is in use; reserve "
                                              "before mha_scratch_alloc() or after the release");
    mhai_scratch_free(scratch);
    return bytes > 0 ? push_block(scratch, bytes) : MHA_OK;
}

void mhai_scratch_free(mhai_scratch *scratch)
{
    for (size_t i = 0; i < scratch->blocks; i++) free_block(scratch, i);
    scratch->blocks = 0;
}

mha_scratch_mark mha_scratch_top(const mha_context *context)
{
    const mhai_scratch *scratch = &context->scratch;
    if (scratch->blocks == 0) return (mha_scratch_mark){0, 0};
    size_t top = scratch->blocks - 1;
    return (mha_scratch_mark){top, scratch->block[top].used};
}

mha_status mha_scratch_alloc(mha_context *context, int64_t count, size_t size, void *pointer)
{
    mhai_scratch *scratch = &context->scratch;
    void *memory = NULL;
    size_t bytes;
    memcpy(pointer, &memory, sizeof memory); /* pointers of all types have the same
                                              * representation */
    if (count < 0 || (uint64_t)count > SIZE_MAX || !mhai_mul_size((size_t)count, size, &bytes) ||
        bytes > PTRDIFF_MAX - ALIGNMENT)
        return mha_fail(MHA_ERR_SIZE, "scratch: %lld elements of %zu bytes do not fit in memory",
                        (long long)count, size);
    const size_t asked = bytes;
    bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (bytes == 0) bytes = ALIGNMENT;
    size_t top = scratch->blocks - 1; /* without blocks, this wraps around and is not used */
    if (scratch->blocks == 0 || scratch->block[top].bytes - scratch->block[top].used < bytes) {
        MHA_TRY(push_block(scratch, bytes));
        top = scratch->blocks - 1;
    }
    memory = at(scratch, top, scratch->block[top].used);
    memcpy(pointer, &memory, sizeof memory);
    scratch->block[top].used += bytes;
    MHAI_POISON(memory, SPREAD * bytes); /* may have been unpoisoned by mhai_scratch_spare() */
    MHAI_UNPOISON(memory, asked);
    return MHA_OK;
}

mha_status mha_scratch_zeros(mha_context *context, int64_t count, size_t size, void *pointer)
{
    void *memory;
    MHA_TRY(mha_scratch_alloc(context, count, size, pointer));
    memcpy(&memory, pointer, sizeof memory);
    memset(memory, 0, (size_t)count * size);
    return MHA_OK;
}

mha_status mhai_scratch_ensure(mha_context *context, int64_t count, size_t size)
{
    void *memory;
    const mha_scratch_mark mark = mha_scratch_top(context);
    MHA_TRY(mha_scratch_alloc(context, count, size, &memory));
    mha_scratch_release(context, mark);
    return MHA_OK;
}

void *mhai_scratch_spare(mha_context *context, size_t bytes)
{
    const mhai_scratch *scratch = &context->scratch;
    if (scratch->blocks == 0) return NULL;
    const size_t top = scratch->blocks - 1, used = scratch->block[top].used;
    if (scratch->block[top].bytes - used < bytes) return NULL;
    MHAI_UNPOISON(at(scratch, top, used), bytes);
    return at(scratch, top, used);
}

void mha_scratch_release(mha_context *context, mha_scratch_mark mark)
{
    mhai_scratch *scratch = &context->scratch;
    if (scratch->blocks == 0) return;
    for (size_t i = mark.block + 1; i < scratch->blocks; i++) {
        poison_from(scratch, i, 0);
        scratch->block[i].used = 0;
    }
    poison_from(scratch, mark.block, mark.used);
    scratch->block[mark.block].used = mark.used;
    if (mark.block == 0 && mark.used == 0 && scratch->blocks > 1) merge_blocks(scratch);
}

mha_status mha_scratch_end(mha_context *context, mha_scratch_mark mark, mha_status status)
{
    mha_scratch_release(context, mark);
    return status;
}
