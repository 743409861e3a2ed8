/* Seeds of tries, and batches. */
#include "train/train.h"

#include "common/maps.h"

#include <stdlib.h>

uint64_t train_try_seed(uint64_t seed, int64_t attempt)
{
    if (attempt == 0) return seed;
    random_source r = random_make(seed, 0x7472790000000000u + (uint64_t)attempt);
    return random_next(&r);
}

cli_exit train_batch_make(int64_t most, int64_t longest, int64_t probes, train_batch *batch)
{
    void *memory;
    const int64_t tokens = most * longest;
    *batch = (train_batch){.most = most, .longest = longest, .probe_room = most * probes};
    cli_exit code = maps_alloc(TRAIN, 3 * tokens, sizeof(int32_t), &memory);
    if (code != CLI_OK) return code;
    batch->tokens = memory;
    batch->targets = batch->tokens + tokens;
    batch->source = batch->targets + tokens;
    code = maps_alloc(TRAIN, tokens, sizeof(float), &memory);
    batch->weights = memory;
    if (code == CLI_OK) code = maps_alloc(TRAIN, 2 * most, sizeof(int64_t), &memory);
    batch->lengths = memory;
    if (code == CLI_OK) {
        batch->source_lengths = batch->lengths + most;
        code = maps_alloc(TRAIN, batch->probe_room, sizeof(train_probe), &memory);
        batch->probes = memory;
    }
    if (code != CLI_OK) train_batch_free(batch);
    return code;
}

void train_batch_free(train_batch *batch)
{
    free(batch->tokens);
    free(batch->weights);
    free(batch->lengths);
    free(batch->probes);
    *batch = (train_batch){0};
}
