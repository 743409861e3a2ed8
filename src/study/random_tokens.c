/* Repeated sequences of random words of a model. */
#include "study/study.h"

#include <multihead/component.h>

#include <stdlib.h>
#include <string.h>

enum { BLOCK = 25, REPEATS = 4, SEED = 1 };

/* Find the special tokens around every text of a model. */
static mha_status find_ends(const mhai_reader *reader, mha_repeated_tokens *how)
{
    mha_encoding none = {.struct_size = sizeof none};
    if (reader->words) how->first = reader->begin;
    if (reader->words) return MHA_OK;
    MHA_TRY(mha_tokenizer_encode(reader->pieces, NULL, "", 0, NULL, 0, &none));
    if (none.count > 0) how->first = none.ids[0];
    if (none.count > 1) how->last = none.ids[none.count - 1];
    mha_encoding_free(&none);
    return MHA_OK;
}

mha_status mha_random_tokens_plan(const mha_model *model, mha_random_tokens *plan)
{
    mhai_reader reader;
    mha_repeated_tokens how = {.struct_size = sizeof how,
                               .block = BLOCK,
                               .repeats = REPEATS,
                               .first = -1,
                               .last = -1,
                               .seed = SEED};
    MHA_NEED("mha_random_tokens_plan", model, plan);
    MHA_TRY(mha_struct_check_size("mha_random_tokens", plan->struct_size, sizeof *plan));
    MHA_TRY(mhai_reader_make(model, &reader));
    MHA_TRY(find_ends(&reader, &how));
    const int64_t words = mha_token_count(model);
    int64_t count = 0;
    int32_t *pool = calloc((size_t)words + 1, sizeof *pool);
    if (!pool) return mha_fail(MHA_ERR_NOMEM, "out of memory for random tokens");
    for (int64_t id = 0; id < words; id++)
        if (mhai_is_word(&reader, (int32_t)id)) pool[count++] = (int32_t)id;
    if (how.block > count) how.block = count;
    const int64_t most = reader.info.max_positions - 2;
    while (how.block * how.repeats > most && how.block > 0)
        how.repeats > 2 ? how.repeats-- : how.block--;
    *plan = (mha_random_tokens){
        .struct_size = plan->struct_size, .how = how, .pool = pool, .pool_count = count};
    return MHA_OK;
}

void mha_random_tokens_free(mha_random_tokens *plan)
{
    if (!plan) return;
    free(plan->pool);
    *plan = (mha_random_tokens){.struct_size = plan->struct_size};
}

mha_status mha_random_tokens_draw(mha_random_tokens *plan, mha_tokens *tokens)
{
    MHA_NEED("mha_random_tokens_draw", plan, tokens);
    MHA_TRY(mha_struct_check_size("mha_tokens", tokens->struct_size, sizeof *tokens));
    mha_tokens made = {.struct_size = sizeof made};
    int64_t many;
    if (__builtin_mul_overflow(plan->how.block, plan->how.repeats, &many) || many < 0 ||
        many > INT64_MAX - 2)
        many = 0; /* rejected below */
    MHA_TRY(mhai_tokens_make(many + 2, 0, &made, NULL));
    const mha_status status = mha_head_pass_repeated(&plan->how, plan->pool_count, plan->pool,
                                                     made.ids, made.special, &made.count);
    if (status != MHA_OK) {
        mha_tokens_free(&made);
        return status;
    }
    plan->how.sequence++;
    memset(made.begin, 0xFF, (size_t)made.count * sizeof *made.begin); /* -1 */
    memset(made.end, 0xFF, (size_t)made.count * sizeof *made.end);
    memset(made.sequence, 0xFF, (size_t)made.count);
    mha_tokens_sentences(made.count, NULL, made.special, made.separators, made.sentences);
    made.struct_size = tokens->struct_size;
    *tokens = made;
    return MHA_OK;
}
