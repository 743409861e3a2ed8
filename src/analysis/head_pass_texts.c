/* Texts for a corpus pass: ranks of tokens, words of tokens, and repeated random tokens. */
#include "base/checked.h"
#include "base/need.h"
#include "base/split_mix.h"

#include <multihead/component.h>
#include <multihead/head_pass.h>

#include <stdlib.h>
#include <string.h>

/* ---- ranks ----------------------------------------------------------------------------------- */

typedef struct counted {
    int64_t id, count;
} counted;

static int by_count(const void *a, const void *b)
{
    const counted *x = a, *y = b;
    if (x->count != y->count) return x->count < y->count ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static void rank(int64_t vocab_size, const int64_t *counts, counted *all, int64_t *ranks,
                 int64_t *kinds)
{
    int64_t used = 0;
    for (int64_t id = 0; id < vocab_size; id++)
        if (counts[id] > 0) all[used++] = (counted){id, counts[id]};
    if (used > 0) qsort(all, (size_t)used, sizeof *all, by_count);
    if (vocab_size > 0) memset(ranks, 0, (size_t)vocab_size * sizeof *ranks);
    for (int64_t i = 0; i < used; i++) ranks[all[i].id] = i;
    if (kinds) *kinds = used;
}

mha_status mha_head_pass_ranks(mha_context *context, int64_t vocab_size, const int64_t *counts,
                               int64_t *ranks, int64_t *kinds)
{
    void *all;
    MHA_NEED("mha_head_pass_ranks", context, counts, ranks);
    MHA_TRY(mhai_check_range("mha_head_pass_ranks: vocab_size", vocab_size, 0, INT64_MAX));
    for (int64_t id = 0; id < vocab_size; id++)
        MHA_TRY(mhai_check_entry("mha_head_pass_ranks: counts", id, counts[id], 0, INT64_MAX));
    const mha_scratch_mark mark = mha_scratch_top(context);
    const mha_status status = mha_scratch_alloc(context, vocab_size, sizeof(counted), &all);
    if (status == MHA_OK) rank(vocab_size, counts, all, ranks, kinds);
    return mha_scratch_end(context, mark, status);
}

/* ---- words ----------------------------------------------------------------------------------- */

mha_status mha_head_pass_words(int64_t tokens, const int64_t *token_begin, int64_t words,
                               const int64_t *word_begin, const int64_t *word_end, int64_t *word_of,
                               int64_t *number)
{
    int64_t at = 0, count = 0, last = -1;
    if (tokens < 0 || words < 0)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_head_pass_words: %lld tokens, %lld words; expected 0 or more",
                        (long long)tokens, (long long)words);
    if ((tokens > 0 && (!token_begin || !word_of)) ||
        (words > 0 && (!word_begin || !word_end || !number)))
        return mha_fail(MHA_ERR_NULL, "mha_head_pass_words: an array of %s is NULL",
                        tokens > 0 && (!token_begin || !word_of) ? "tokens" : "words");
    for (int64_t w = 0; w < words; w++) number[w] = -1;
    for (int64_t i = 0; i < tokens; i++) {
        const int64_t begin = token_begin[i];
        while (at < words && begin >= 0 && word_end[at] <= begin) at++;
        const int64_t word = at < words && begin >= word_begin[at] ? at : -1;
        if (word >= 0 && number[word] < 0) number[word] = count++, last = word;
        word_of[i] = word >= 0 && word == last ? number[word] : -1;
        last = word;
    }
    return MHA_OK;
}

/* ---- repeated random tokens ------------------------------------------------------------------ */

static int64_t below(uint64_t *state, int64_t n)
{
    return (int64_t)((mhai_split_mix(state) >> 32) * (uint64_t)n >> 32);
}

/* Shuffle the pool, but only as far as its first `block` elements. */
static void shuffle(const mha_repeated_tokens *d, int64_t pool_count, int32_t *pool)
{
    uint64_t seed = d->seed, mixed = mhai_split_mix(&seed) ^ d->sequence,
             state = mhai_split_mix(&mixed);
    for (int64_t i = 0; i < d->block; i++) {
        const int64_t other = i + below(&state, pool_count - i);
        const int32_t kept = pool[i];
        pool[i] = pool[other];
        pool[other] = kept;
    }
}

static mha_status check_repeated(const mha_repeated_tokens *d, int64_t pool_count)
{
    int64_t tokens;
    if (d->reserved || d->first < -1 || d->last < -1)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_repeated_tokens: first is %lld, last %lld, reserved %u; expected ids "
                        "or -1, and 0",
                        (long long)d->first, (long long)d->last, (unsigned)d->reserved);
    if (d->block < 1 || d->repeats < 1 || d->block > pool_count || pool_count > INT64_C(1) << 32)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_repeated_tokens: %lld times %lld of %lld tokens; expected 1 or more, "
                        "and at most the pool's",
                        (long long)d->repeats, (long long)d->block, (long long)pool_count);
    if (!mhai_mul_i64(d->block, d->repeats, &tokens) || tokens > INT64_MAX - 2)
        return mha_fail(MHA_ERR_SIZE, "mha_repeated_tokens: %lld times %lld tokens are too many",
                        (long long)d->repeats, (long long)d->block);
    return MHA_OK;
}

mha_status mha_head_pass_repeated(const mha_repeated_tokens *desc, int64_t pool_count,
                                  int32_t *pool, int32_t *tokens, uint8_t *special, int64_t *count)
{
    mha_repeated_tokens d;
    int64_t n = 0;
    MHA_NEED("mha_head_pass_repeated", desc, pool, tokens, special, count);
    MHA_TRY(mhai_struct_copy("mha_repeated_tokens", &d, sizeof d, sizeof d, desc));
    MHA_TRY(check_repeated(&d, pool_count));
    shuffle(&d, pool_count, pool);
    if (d.first >= 0) tokens[n++] = d.first;
    for (int64_t i = 0; i < d.block * d.repeats; i++) tokens[n++] = pool[i % d.block];
    if (d.last >= 0) tokens[n++] = d.last;
    memset(special, 0, (size_t)n);
    if (d.first >= 0) special[0] = 1;
    if (d.last >= 0) special[n - 1] = 1;
    *count = n;
    return MHA_OK;
}
