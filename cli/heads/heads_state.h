/* What 'multihead heads --state FILE' keeps: the sums over texts and over repeated random tokens, and
 * fingerprints of what they were measured on, so that a later run continues with the same bits or
 * reports what differs (docs/heads-corpus.md). */
#ifndef CLI_HEADS_STATE_H
#define CLI_HEADS_STATE_H

#include "heads/heads.h"

/* The file as words of 8 bytes, little-endian: these, the fingerprints after 0, 1, ... texts, the tokens
 * that texts have, a check of all of them, then states of head_state.h. */
typedef enum heads_state_word {
    STATE_MAGIC,
    STATE_VERSION,
    STATE_PRODUCER, /* the version of multihead */
    STATE_MODEL,
    STATE_WITHOUT, /* heads that are left out */
    STATE_RANKS,   /* of tokens by frequency in all texts */
    STATE_RANDOM,  /* the random sequences that were measured */
    STATE_TEXTS,   /* that were measured */
    STATE_TOKENS,  /* of these */
    STATE_LOST_LINKS,
    STATE_SEQUENCES, /* random ones that were measured */
    STATE_KINDS,     /* of tokens in texts */
    STATE_OF_TEXTS,  /* bytes of its state; 0: none */
    STATE_OF_RANDOM,
    STATE_WORDS
} heads_state_word;

typedef struct heads_state {
    const char *path;           /* NULL: nothing is kept, and every call does nothing */
    double every, due;          /* seconds */
    uint64_t word[STATE_WORDS]; /* of this run, as far as it has come */
    uint64_t *prints;           /* [texts + 1] fingerprints after so many texts */
    int64_t *lengths;           /* [texts] tokens of each */
    uint64_t was[STATE_WORDS];  /* of the file; all 0: there was none */
    const uint8_t *were;        /* its fingerprints, and kinds of tokens */
    char *file;                 /* its bytes, until its states are taken */
    const char *of_texts, *of_random;
    bool kept; /* everything measured is in the file */
} heads_state;

uint64_t heads_state_mix(uint64_t print, uint64_t word);

/* Fingerprints of model and options; the file, if there is one, is read, and refused if these are others. */
cli_exit heads_state_begin(const heads_options *options, const heads_found *found,
                           heads_state *state);

/* Texts that the file has, in found->of.texts and its corpus, which are new; *done of them. The
 * fingerprints of this run are known. */
cli_exit heads_state_take_texts(heads_state *state, const heads_options *options,
                                heads_found *found, int64_t texts, int64_t *done);

/* Random sequences that the file has, was[STATE_SEQUENCES], when word[STATE_RANDOM] is their
 * fingerprint. */
cli_exit heads_state_take_random(heads_state *state, heads_found *found);

/* Without texts: all that the file has. */
cli_exit heads_state_show(const heads_state *state, const heads_options *options,
                          heads_found *found);

/* Save now, or if it is time: a failure warns, and the next try may succeed. */
void heads_state_save(heads_state *state, const heads_found *found);
void heads_state_save_if_due(heads_state *state, const heads_found *found);

/* Read sums and add them to those of this run, which are of the same description, or refuse. */
mha_status heads_state_merge(const heads_found *found, const void *bytes, size_t size,
                             mha_head_measures *measures, mha_head_corpus *corpus);

/* At the end: what could not be saved is an error. */
cli_exit heads_state_end(heads_state *state, const heads_found *found);

#endif
