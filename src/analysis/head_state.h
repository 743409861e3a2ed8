/* Inside states: words that are written, counted or read by the same steps, so that the two directions
 * cannot differ.
 *
 *   head_state_words.c    words into a sink and out of memory; their check
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
    const mha_sink *sink; /* NULL: words are only counted, or read */
    const uint8_t *from;  /* [count] of the words that are read; NULL: none are */
    int64_t at, count;    /* words */
    uint64_t check;       /* of the words until now */
    mha_status status;    /* the first failure; what is then read is 0 */
    const char *what;     /* being read, for messages */
    size_t held;          /* bytes in buffer */
    uint8_t buffer[MHAI_STATE_BUFFER];
} mhai_state_io;

/* The next word: *x is written, or set. A word that is read lies in low .. high. */
void mhai_state_word(mhai_state_io *io, uint64_t *x);
void mhai_state_number(mhai_state_io *io, int64_t *x, int64_t low, int64_t high);
void mhai_state_numbers(mhai_state_io *io, int64_t *x, int64_t count, int64_t low, int64_t high);
void mhai_state_real(mhai_state_io *io, double *x); /* finite */
void mhai_state_flush(mhai_state_io *io);
void mhai_state_fail(mhai_state_io *io, const char *why);
uint64_t mhai_state_mix(uint64_t check, uint64_t word);

/* A sum over this many rows of a score, each within the range of its kind. */
void mhai_state_sum(mhai_state_io *io, mhai_exact *sum, int64_t rows, mha_measure_kind kind);

/* head_state_corpus.c: the sums of a corpus; its description (*texts and desc are read). */
void mhai_state_corpus(mhai_state_io *io, mha_head_corpus *c);
void mhai_state_corpus_desc(mhai_state_io *io, mha_head_corpus_desc *desc);

/* Minimum number of words of a corpus with this description, for this many heads and layers; false: more than an int64
 * holds. */
bool mhai_state_corpus_words(const mha_head_corpus_desc *desc, int64_t heads, int64_t layers,
                             int64_t *words);

#endif
