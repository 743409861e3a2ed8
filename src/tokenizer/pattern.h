/* Regular expressions of tokenizer.json, through PCRE2.
 *
 * The patterns are written for Oniguruma. Constructs that PCRE2 interprets differently are rejected
 * by name, so every accepted pattern has the same meaning. Matching time is bounded: the number of
 * steps for all matches of a text has a limit, which grows with its length. Exceeding it is an
 * error. Built-in patterns need no limit. */
#ifndef MHAI_PATTERN_H
#define MHAI_PATTERN_H

#include "io/vector.h"

typedef struct mhai_pattern mhai_pattern;

/* Compile a pattern of size bytes. Built-in patterns are not compared with Oniguruma's rules. where
 * names the source in messages. Errors: MHA_ERR_UNSUPPORTED, MHA_ERR_FORMAT, MHA_ERR_NOMEM. */
MHA_NODISCARD mha_status mhai_pattern_make(const mha_allocator *allocator, const char *where,
                                           const char *text, size_t size, bool own,
                                           mhai_pattern **pattern);
void mhai_pattern_free(mhai_pattern *pattern);

/* A character that PCRE2 classifies as Oniguruma (Unicode 16) classifies c; usually c itself. */
int32_t mhai_pattern_stand_in(int32_t c);

/* The state of one thread. Must be zeroed before mhai_matcher_make(). */
typedef struct mhai_matcher {
    void *general, *data, *context;
    mhai_vector subject;         /* the text that PCRE2 sees */
    const char *text;            /* starting at byte base */
    const mhai_pattern *pattern; /* current pattern */
    size_t base, last;
    uint64_t steps, most_steps;
} mhai_matcher;

MHA_NODISCARD mha_status mhai_matcher_make(const mha_allocator *allocator, mhai_matcher *matcher);
void mhai_matcher_free(mhai_matcher *matcher);

/* Set the text, bytes [from, to), which must be valid UTF-8 and remain unchanged until the next
 * call. Every byte adds to the limit of steps. The matcher must not be moved. */
MHA_NODISCARD mha_status mhai_matcher_text(mhai_matcher *matcher, const char *text, size_t from,
                                           size_t to);

/* Find the first match at or after byte at, as if bytes [begin, end) were the whole text. If there
 * is none, *from is end. Errors: MHA_ERR_SIZE (too many steps), MHA_ERR_NOMEM. */
MHA_NODISCARD mha_status mhai_matcher_next(mhai_matcher *matcher, const mhai_pattern *pattern,
                                           size_t begin, size_t at, size_t end, size_t *from,
                                           size_t *to);

#endif
