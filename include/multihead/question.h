/* multihead: which heads look from one word of a text at another, and what is lost without them
 * (libmultihead-model): words become tokens, heads become a ranking.
 *
 *   mha_tokens_find_word(&tokens, text, bytes, "it", &question.from);
 *   mha_tokens_find_word(&tokens, text, bytes, "animal", &question.to);
 *   mha_question_ask(context, transformer, &tokens, &question, &answer);
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
 * Find a word among the tokens of a text, whatever its capitals: "didn't", which may be several tokens;
 * "it:2", the second of its places; a special token by its name, "[CLS]".
 *
 *   tokens, text [bytes]   of mha_tokens_read() without a pair, with labels and places
 *
 * Memory   none.
 * Errors   MHA_ERR_NULL; MHA_ERR_FORMAT (no such word); MHA_ERR_ARGUMENT (it is there more than once, and
 *          the word does not say which; no such place).
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_tokens_find_word(const mha_tokens *tokens, const char *text,
                                                      size_t bytes, const char *word,
                                                      mha_token_span *span);

typedef struct mha_question {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    mha_token_span from, to;
    const uint8_t *heads; /* [L,H] not 0: this head; NULL: all */
    /* Called before each of total runs without a head; a status other than MHA_OK ends the call */
    mha_status (*progress)(int64_t done, int64_t total, void *user);
    void *progress_user;
} mha_question;

/* What heads are ranked by. */
typedef enum mha_answer_measure {
    MHA_ANSWER_WEIGHT = 0, /* mean over the rows of `from` of the sum over the columns of `to` */
    MHA_ANSWER_SHARE = 1,  /* the same of ||alpha f(x)||, as a part of each row's sum */
    MHA_ANSWER_EFFECT = 2  /* what changes without the head (attribution.h) */
} mha_answer_measure;

enum { MHA_ANSWER_MEASURES = 3 };

typedef struct mha_answer_head {
    int64_t layer, head;
    double value[MHA_ANSWER_MEASURES];
    int64_t rank[MHA_ANSWER_MEASURES]; /* from 1, ties by layer and head */
} mha_answer_head;

typedef struct mha_answer {
    double chance;          /* the weight that a row which looks at all it sees alike would have */
    mha_answer_head *heads; /* [count], by layer and head */
    int64_t *order[MHA_ANSWER_MEASURES]; /* [count] positions in heads, the best first */
    int64_t count;
    int32_t
        predicted; /* the token that the last row of `from` predicts, and effects are of; -1: the
                           transformer has no output */
    double probability; /* of it */
} mha_answer;

/**
 * Measure every head that a question is about.
 *
 * Memory   the caller frees *answer with mha_answer_free(); from the C library.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (struct_size; `to` comes after `from` in a causal transformer);
 *          MHA_ERR_NOMEM; those of mha_transformer_head_attribution(). Nothing is then to be freed.
 * Threads  one call per context.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_question_ask(mha_context *context,
                                                  const mha_transformer *transformer,
                                                  const mha_tokens *tokens,
                                                  const mha_question *question, mha_answer *answer);

/** Free an answer and clear it; NULL is fine. Memory frees. Errors none. Threads any. Since 0.1 */
MHA_API void mha_answer_free(mha_answer *answer);

#ifdef __cplusplus
}
#endif
#endif
