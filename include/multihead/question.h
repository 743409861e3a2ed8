/* multihead: rank heads by their attention from one word of a text to another, and by the effect of
 * ablating them (libmultihead-model).
 *
 * Example, given mha_context *context, const mha_transformer *transformer, mha_tokens tokens, const
 * char *text:
 *
 *   mha_question question = MHA_INIT(mha_question);
 *   mha_answer answer;
 *   mha_status status = mha_tokens_find_word(&tokens, text, strlen(text), "it", &question.from);
 *   if (!status) status = mha_tokens_find_word(&tokens, text, strlen(text), "animal", &question.to);
 *   if (!status) status = mha_question_ask(context, transformer, &tokens, &question, &answer);
 *   if (!status) mha_answer_free(&answer);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_QUESTION_H
#define MULTIHEAD_QUESTION_H

#include <multihead/study.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Tokens first .. first + count - 1. */
typedef struct mha_token_span {
    int64_t first, count;
} mha_token_span;

/**
 * Find a word among the tokens of a text, ignoring case. A word such as "didn't" may span several tokens.
 * "it:2" is the second occurrence of "it"; "[CLS]" is a special token by name.
 *
 *   tokens, text [bytes]   from mha_tokens_read() without a pair, with labels
 *
 * Memory   none.
 * Errors   MHA_ERR_NULL; MHA_ERR_FORMAT (no such word); MHA_ERR_ARGUMENT (several occurrences and no
 *          number; fewer occurrences than the number).
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_tokens_find_word(const mha_tokens *tokens, const char *text,
                                                      size_t bytes, const char *word,
                                                      mha_token_span *span);

typedef struct mha_question {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    mha_token_span from, to;
    const uint8_t *heads; /* [L,H] not 0: measure this head; NULL: all */
    /* Called before each of the total runs with one head ablated; the call stops and returns any status
     * other than MHA_OK */
    mha_status (*progress)(int64_t done, int64_t total, void *user);
    void *progress_user;
} mha_question;

/* Measures that rank the heads. */
typedef enum mha_answer_measure {
    MHA_ANSWER_WEIGHT = 0, /* attention weight: mean over the rows of `from`, sum over `to` */
    MHA_ANSWER_SHARE = 1,  /* likewise for ||alpha f(x)||, as a share of each row's sum */
    MHA_ANSWER_EFFECT = 2  /* change of the prediction when the head is ablated (attribution.h) */
} mha_answer_measure;

enum { MHA_ANSWER_MEASURES = 3 };

typedef struct mha_answer_head {
    int64_t layer, head;
    double value[MHA_ANSWER_MEASURES];
    int64_t rank[MHA_ANSWER_MEASURES]; /* from 1; ties are ordered by layer and head */
} mha_answer_head;

typedef struct mha_answer {
    double chance;          /* the weight under uniform attention over the visible keys */
    mha_answer_head *heads; /* [count], by layer and head */
    int64_t *order[MHA_ANSWER_MEASURES]; /* [count] indices into heads, best first */
    int64_t count;
    /* The token that the last row of `from` predicts. Effects are changes of its log-probability;
     * -1: the transformer has no output layer */
    int32_t predicted;
    double probability; /* probability of predicted */
} mha_answer;

/**
 * Measure and rank the heads of a question.
 *
 * Memory   the caller frees *answer with mha_answer_free(); from the C library.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (struct_size; `to` comes after `from` in a causal transformer);
 *          MHA_ERR_NOMEM; those of mha_transformer_head_attribution(). After an error there is
 *          nothing to free.
 * Threads  one call per context.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_question_ask(mha_context *context,
                                                  const mha_transformer *transformer,
                                                  const mha_tokens *tokens,
                                                  const mha_question *question, mha_answer *answer);

/** Free an answer and clear it; NULL is allowed. Memory frees all. Errors none. Threads any. Since 0.1 */
MHA_API void mha_answer_free(mha_answer *answer);

#ifdef __cplusplus
}
#endif
#endif
