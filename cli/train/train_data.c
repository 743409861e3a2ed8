/* The seed of each training attempt, the allocation of batches, and batches of sentences. */
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

void train_put(train_sentence *s, int word)
{
    s->words[s->length++] = word;
}

int train_one_of(random_source *r, int first, int64_t count)
{
    return first + (int)random_below(r, count);
}

static void set_sentence(train_batch *batch, int64_t b, const train_sentence *s, int32_t end,
                         int64_t targets)
{
    const bool all = s->answer < 0;
    for (int64_t i = 0; i < batch->T; i++) {
        const int64_t at = b * batch->T + i;
        const bool counts = all && i + 1 < s->length;
        batch->tokens[at] = i < s->length ? s->words[i] : end;
        batch->targets[at] = counts ? s->words[i + 1] : -1;
        batch->weights[at] = counts ? 1.0f / (float)targets : 0;
    }
    const int64_t probed = b * batch->T + s->probe.row;
    if (!all) batch->targets[probed] = s->answer;
    batch->weights[probed] += 1.0f / (float)batch->B;
    batch->lengths[b] = s->length;
    batch->probes[b] = s->probe;
    batch->probes[b].b = b;
}

void train_draw_sentences(const train_ask *ask,
                          void (*make)(random_source *r, train_split split, train_sentence *s),
                          train_batch *batch)
{
    enum { MOST = 256 };
    train_sentence sentences[MOST];
    int64_t targets = 0;
    batch->B = batch->probe_count = ask->count < MOST ? ask->count : MOST;
    batch->T = batch->S = 0;
    for (int64_t b = 0; b < batch->B; b++) {
        make(ask->random, ask->split, &sentences[b]);
        targets += sentences[b].length - 1;
        if (sentences[b].length > batch->T) batch->T = sentences[b].length;
    }
    for (int64_t b = 0; b < batch->B; b++)
        set_sentence(batch, b, &sentences[b], (int32_t)ask->task->end, targets);
}
