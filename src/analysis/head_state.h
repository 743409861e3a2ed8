/* Internals of states. The same code writes, counts and reads the words, so writing and reading
 * cannot differ.
 *
 * head_state_words.c    words to a sink and from memory; their check
 *   head_state.c          the public calls, the description, mha_head_measures
 *   head_state_corpus.c   mha_head_corpus
 */
#ifndef MHAI_HEAD_STATE_H
#define MHAI_HEAD_STATE_H

#include "analysis/head_corpus.h"
#include "analysis/head_measures.h"

#include <multihead/head_state.h>

enum { MHAI_STATE_BUFFER = 8192 };

typedef struct mhai_state_io {
    const mha_sink *sink; /* NULL: words are counted or read, not written */
    const uint8_t *from;  /* [count] words to read; NULL: not reading */
    int64_t at, count;    /* in words */
    uint64_t check;       /* checksum of the words so far */
    mha_status status;    /* the first error; all later reads give 0 */
    const char *what;     /* name of the current item, for messages */
    size_t held;          /* number of bytes in buffer */
    uint8_t buffer[MHAI_STATE_BUFFER];
} mhai_state_io;

/* Write *x as the next word, or read it. Words that are read must be in low .. high. */
void mhai_state_word(mhai_state_io *io, uint64_t *x);
void mhai_state_number(mhai_state_io *io, int64_t *x, int64_t low, int64_t high);
void mhai_state_numbers(mhai_state_io *io, int64_t *x, int64_t count, int64_t low, int64_t high);
void mhai_state_real(mhai_state_io *io, double *x); /* must be finite */
void mhai_state_flush(mhai_state_io *io);
void mhai_state_fail(mhai_state_io *io, const char *why);
uint64_t mhai_state_mix(uint64_t check, uint64_t word);

/* A sum of a score over this many rows. When read, each term must be
 * within the range of its kind. */
void mhai_state_sum(mhai_state_io *io, mhai_exact *sum, int64_t rows, mha_measure_kind kind);

/* head_state_corpus.c: the sums of a corpus, and its description. */
void mhai_state_corpus(mhai_state_io *io, mha_head_corpus *c);
void mhai_state_corpus_desc(mhai_state_io *io, mha_head_corpus_desc *desc);

/* The minimum number of words of a corpus with this description, for this many heads and layers;
 * false if it exceeds int64. */
bool mhai_state_corpus_words(const mha_head_corpus_desc *desc, int64_t heads, int64_t layers,
                             int64_t *words);

#endif
