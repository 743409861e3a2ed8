/* Regular expressions as tokenizer.json has them, through PCRE2.
 *
 * The patterns are written for Oniguruma. What it reads otherwise than PCRE2 is refused by name, so
 * that a pattern means the same here or is not taken. Matching is bounded: all matches of a text
 * together may take a number of steps that grows with its length; a pattern that needs more is an
 * error, not an endless loop. Our own patterns need no bound. */
#ifndef MHAI_PATTERN_H
#define MHAI_PATTERN_H

#include "io/vector.h"

typedef struct mhai_pattern mhai_pattern;

/* Compile size bytes of text, which are not compared with Oniguruma's way if they are our own. where
 * is what messages call the place they come from. Errors:
 * MHA_ERR_UNSUPPORTED, MHA_ERR_FORMAT, MHA_ERR_NOMEM. */
MHA_NODISCARD mha_status mhai_pattern_make(const mha_allocator *allocator, const char *where,
                                           const char *text, size_t size, bool own,
                                           mhai_pattern **pattern);
void mhai_pattern_free(mhai_pattern *pattern);

/* A character of the general category that Oniguruma, which knows Unicode 16, gives to c; as a rule c
 * itself. */
int32_t mhai_pattern_stand_in(int32_t c);

/* What one thread needs to match; all zero before mhai_matcher_make(). */
typedef struct mhai_matcher {
    void *general, *data, *context;
    mhai_vector subject;         /* the text as PCRE2 is shown it */
    const char *text;            /* from byte base on */
    const mhai_pattern *pattern; /* at work */
    size_t base, last;
    uint64_t steps, most_steps;
} mhai_matcher;

MHA_NODISCARD mha_status mhai_matcher_make(const mha_allocator *allocator, mhai_matcher *matcher);
void mhai_matcher_free(mhai_matcher *matcher);

/* Set the text: bytes [from, to), which are valid UTF-8 and borrowed until the next one. Every byte
 * set allows more steps. The matcher must not be moved. */
MHA_NODISCARD mha_status mhai_matcher_text(mhai_matcher *matcher, const char *text, size_t from,
                                           size_t to);

/* The first match at byte at or behind it, as if bytes [begin, end) were all of the text. *from is
 * end if there is none. Errors: MHA_ERR_SIZE (too many steps), MHA_ERR_NOMEM. */
MHA_NODISCARD mha_status mhai_matcher_next(mhai_matcher *matcher, const mhai_pattern *pattern,
                                           size_t begin, size_t at, size_t end, size_t *from,
                                           size_t *to);

#endif
