/* See failing_alloc.h. A block has guard bytes, the caller's memory, and guard bytes again. The
 * record for release precedes them.
 * */
#include "support/failing_alloc.h"
#include "support/expect.h"

#include "support/suite.h"

#include <multihead/component.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 64, GUARD_BYTE = 0xC3 };

typedef struct record {
    void *base; /* returned by malloc() */
    size_t bytes;
} record;

static void *failing_alloc_take(void *user, size_t bytes, size_t alignment)
{
    failing_alloc *state = user;
    int64_t call = state->calls++;
    if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
        state->mistakes++;
        return NULL;
    }
    bool fails = state->fail_at >= 0 &&
                 (call == state->fail_at || (state->fail_after && call > state->fail_at));
    if (fails || bytes > SIZE_MAX / 2 - alignment) return NULL;
    unsigned char *base = malloc(sizeof(record) + bytes + alignment + 2 * GUARD);
    if (!base) return NULL;
    uintptr_t at = (uintptr_t)base + sizeof(record) + GUARD;
    unsigned char *memory = base + (((at + alignment - 1) & ~(alignment - 1)) - (uintptr_t)base);
    memset(memory - GUARD, GUARD_BYTE, GUARD);
    memset(memory, 0xFF, bytes); /* NaN: reveals reads of unwritten memory */
    memset(memory + bytes, GUARD_BYTE, GUARD);
    record kept = {base, bytes};
    memcpy(memory - GUARD - sizeof kept, &kept, sizeof kept);
    state->live++;
    return memory;
}

static bool guard_intact(const unsigned char *guard)
{
    for (int i = 0; i < GUARD; i++)
        if (guard[i] != GUARD_BYTE) return false;
    return true;
}

static void failing_alloc_give(void *user, void *memory, size_t bytes)
{
    failing_alloc *state = user;
    if (!memory) {
        state->mistakes++;
        return;
    }
    unsigned char *start = memory;
    record kept;
    memcpy(&kept, start - GUARD - sizeof kept, sizeof kept);
    if (kept.bytes != bytes || !guard_intact(start - GUARD) || !guard_intact(start + kept.bytes))
        state->mistakes++;
    state->live--;
    free(kept.base);
}

failing_alloc failing_alloc_make(void)
{
    return (failing_alloc){.fail_at = -1};
}

mha_allocator failing_alloc_interface(failing_alloc *state)
{
    return (mha_allocator){failing_alloc_take, failing_alloc_give, state};
}

mha_status failing_context(failing_alloc *state, int32_t num_threads, mha_isa isa,
                           mha_context **context)
{
    const mha_context_desc desc = {.struct_size = sizeof desc,
                                   .num_threads = num_threads,
                                   .isa = isa,
                                   .allocator = failing_alloc_interface(state)};
    return mha_context_create(&desc, context);
}

void failing_from_here(failing_alloc *state)
{
    state->fail_at = state->calls + state->number;
}

int failing_each(mha_status (*run)(mha_context *context, failing_alloc *memory, void *user),
                 void *user)
{
    int refused = 0;
    bool more = true;
    for (int64_t n = 0; more; n++) {
        failing_alloc memory = failing_alloc_make();
        mha_context *context = NULL;
        memory.number = n / 2;
        memory.fail_after = n % 2;
        expect_ok(failing_context(&memory, 1, MHA_ISA_AUTO, &context));
        const mha_status status = run(context, &memory, user);
        assert_true(memory.fail_at >= 0);
        more = memory.calls > memory.fail_at;
        const mha_scratch_mark left = mha_scratch_top(context);
        assert_true(left.block == 0 && left.used == 0);
        mha_context_destroy(context);
        assert_true(memory.live == 0 && memory.mistakes == 0);
        assert_true(status == MHA_OK || status == MHA_ERR_NOMEM);
        refused += status != MHA_OK;
    }
    printf("  %d refusals\n", refused);
    return refused;
}
