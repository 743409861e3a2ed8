/* Random numbers and batches. */
#include "train.h"

#include "maps.h"

#include <stdlib.h>

/* SplitMix64 (Steele, Lea and Flood 2014), the streams kept apart by its own mixing. */
uint64_t train_random_next(train_random *r)
{
    uint64_t z = r->state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

train_random train_random_make(uint64_t seed, uint64_t stream)
{
    train_random a = {seed};
    train_random b = {train_random_next(&a) ^ stream};
    return (train_random){train_random_next(&b)};
}

int64_t train_random_below(train_random *r, int64_t n)
{
    return (int64_t)(((train_random_next(r) >> 32) * (uint64_t)n) >> 32);
}

bool train_random_chance(train_random *r, double probability)
{
    return (double)(train_random_next(r) >> 11) * 0x1p-53 < probability;
}

uint64_t train_try_seed(uint64_t seed, int64_t attempt)
{
    if (attempt == 0) return seed;
    train_random r = train_random_make(seed, 0x7472790000000000u + (uint64_t)attempt);
    return train_random_next(&r);
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
