/* The seed of each training attempt, and the allocation of batches. */
#include "common/arena.h"
#include "train/train.h"

uint64_t train_try_seed(uint64_t seed, int64_t attempt)
{
    if (attempt == 0) return seed;
    random_source r = random_make(seed, 0x7472790000000000u + (uint64_t)attempt);
    return random_next(&r);
}

cli_exit train_batch_make(int64_t most, int64_t longest, int64_t probes, train_batch *batch)
{
    const int64_t tokens = most * longest;
    *batch = (train_batch){.most = most, .longest = longest, .probe_room = most * probes};
    CLI_TRY(ARENA_ALLOC(tokens, &batch->tokens));
    CLI_TRY(ARENA_ALLOC(tokens, &batch->targets));
    CLI_TRY(ARENA_ALLOC(tokens, &batch->source));
    CLI_TRY(ARENA_ALLOC(tokens, &batch->weights));
    CLI_TRY(ARENA_ALLOC(most, &batch->lengths));
    CLI_TRY(ARENA_ALLOC(most, &batch->source_lengths));
    return ARENA_ALLOC(batch->probe_room, &batch->probes);
}
