/* Rank heads by their attention from one word to another, from the library's measures. */
#include <multihead/attribution.h>
#include <multihead/component.h>
#include <multihead/question.h>

#include <math.h>
#include <stdlib.h>

static mha_status check(const mha_question *q, int64_t tokens, bool causal)
{
    const mha_token_span spans[] = {q->from, q->to};
    for (int i = 0; i < 2; i++)
        if (spans[i].first < 0 || spans[i].count < 1 || spans[i].count > tokens - spans[i].first)
            return mha_fail(MHA_ERR_ARGUMENT, "question: a word is not in the text of %lld tokens",
                            (long long)tokens);
    if (!causal || q->to.first < q->from.first + q->from.count) return MHA_OK;
    return mha_fail(MHA_ERR_ARGUMENT,
                    "question: `to` comes after `from`, and this model attends only "
                    "to earlier tokens; swap the words");
}

static double chance(const mha_question *q, int64_t tokens, bool causal)
{
    double sum = 0;
    for (int64_t t = q->from.first; t < q->from.first + q->from.count; t++) {
        const int64_t seen = causal ? t + 1 : tokens;
        int64_t there = 0;
        for (int64_t s = q->to.first; s < q->to.first + q->to.count; s++) there += s < seen;
        sum += (double)there / (double)seen / (double)q->from.count;
    }
    return sum;
}

/* Values that are not finite come last. */
static bool comes_before(double a, double b)
{
    return isfinite(a) && (!isfinite(b) || a > b);
}

static void rank(mha_answer *a, int by)
{
    int64_t *at = a->order[by];
    for (int64_t i = 0; i < a->count; i++) { /* insertion sort: a few hundred heads */
        int64_t j = i;
        for (; j > 0 && comes_before(a->heads[i].value[by], a->heads[at[j - 1]].value[by]); j--)
            at[j] = at[j - 1];
        at[j] = i;
    }
    for (int64_t i = 0; i < a->count; i++) a->heads[at[i]].rank[by] = i + 1;
}

/* List the requested heads that exist in their layer. */
static void list_heads(const mha_transformer_desc *d, const uint8_t *wanted, const double *values,
                       mha_answer *a)
{
    const int64_t all = d->num_layers * d->num_heads;
    for (int64_t i = 0; i < all; i++) {
        const int64_t layer = i / d->num_heads, head = i % d->num_heads;
        if ((wanted && !wanted[i]) || head >= mha_transformer_heads(d, layer)) continue;
        mha_answer_head *to = &a->heads[a->count++];
        *to = (mha_answer_head){.layer = layer, .head = head};
        for (int by = 0; by < MHA_ANSWER_MEASURES; by++) to->value[by] = values[by * all + i];
    }
    for (int by = 0; by < MHA_ANSWER_MEASURES; by++) rank(a, by);
}

static mha_status measure(mha_context *context, const mha_transformer *t, const mha_tokens *tokens,
                          const mha_question *q, int64_t heads, double *values, mha_answer *a)
{
    const mha_tensor ids =
        mha_tensor_contiguous(tokens->ids, MHA_I32, 1, (const int64_t[]){tokens->count});
    const mha_head_attribution_desc desc = {.struct_size = sizeof desc,
                                            .from_first = q->from.first,
                                            .from_count = q->from.count,
                                            .to_first = q->to.first,
                                            .to_count = q->to.count,
                                            .heads = q->heads,
                                            .progress = q->progress,
                                            .progress_user = q->progress_user};
    mha_head_attribution found = {.struct_size = sizeof found,
                                  .weights = values,
                                  .shares = values + heads,
                                  .effects = values + 2 * heads};
    MHA_TRY(mha_transformer_head_attribution(context, t, &ids, &desc, &found));
    a->predicted = (int32_t)found.predicted;
    a->probability = found.probability;
    return MHA_OK;
}

mha_status mha_question_ask(mha_context *context, const mha_transformer *transformer,
                            const mha_tokens *tokens, const mha_question *given, mha_answer *answer)
{
    mha_question q;
    mha_transformer_desc d = {.struct_size = sizeof d};
    MHA_NEED_AS("question", "context, transformer, tokens, question, answer", context, transformer,
                tokens, given, answer);
    *answer = (mha_answer){.predicted = -1};
    MHA_TRY(mha_struct_read("mha_question", &q, sizeof q, sizeof q, given, given->struct_size));
    mha_transformer_describe(transformer, &d);
    const bool causal = d.flags & MHA_TRANSFORMER_CAUSAL;
    const int64_t heads = d.num_layers * d.num_heads;
    MHA_TRY(check(&q, tokens->count, causal));
    double *values = calloc((size_t)heads, MHA_ANSWER_MEASURES * sizeof *values);
    int64_t *order = calloc((size_t)heads, MHA_ANSWER_MEASURES * sizeof *order);
    answer->heads = calloc((size_t)heads, sizeof *answer->heads);
    answer->order[0] = order;
    mha_status status =
        values && order && answer->heads
            ? measure(context, transformer, tokens, &q, heads, values, answer)
            : mha_fail(MHA_ERR_NOMEM, "question: out of memory for %lld heads", (long long)heads);
    if (status == MHA_OK) {
        for (int by = 0; by < MHA_ANSWER_MEASURES; by++) answer->order[by] = order + by * heads;
        answer->chance = chance(&q, tokens->count, causal);
        list_heads(&d, q.heads, values, answer);
    } else {
        mha_answer_free(answer);
    }
    free(values);
    return status;
}

void mha_answer_free(mha_answer *answer)
{
    if (!answer) return;
    free(answer->heads);
    free(answer->order[0]);
    *answer = (mha_answer){.predicted = -1};
}
