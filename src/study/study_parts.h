/* A study: measuring is in study.c, the saved state in study_state.c, ranks in study_ranks.c. */
#ifndef MHAI_STUDY_PARTS_H
#define MHAI_STUDY_PARTS_H

#include "study/study.h"

#include <multihead/component.h>

/* A round is a range of texts or of random sequences. The ranks divide it into runs of about equal
 * numbers of tokens. */
typedef struct mhai_round {
    int64_t end;                 /* the same on all ranks */
    int64_t first, last;         /* this rank's part; first >= last: none */
    double work, began, seconds; /* in tokens; start time; time to measure it */
    bool open;                   /* not merged yet */
} mhai_round;

/* A state consists of 8-byte little-endian words: the words below, a fingerprint of the options and
 * one after each text, the ids of the kinds of tokens, and a checksum of all words. States of
 * head_state.h follow. */
typedef enum mhai_state_word {
    STATE_MAGIC,
    STATE_VERSION,
    STATE_PRODUCER, /* the version of multihead */
    STATE_MODEL,
    STATE_GATES,
    STATE_RANKS,  /* ranks of tokens by frequency in all texts */
    STATE_RANDOM, /* the measured random sequences */
    STATE_TEXTS,  /* measured texts, ... */
    STATE_TOKENS, /* ... their tokens, ... */
    STATE_LOST_LINKS,
    STATE_SEQUENCES, /* ... and random sequences */
    STATE_KINDS,
    STATE_OF_TEXTS, /* bytes; 0: none */
    STATE_OF_RANDOM,
    STATE_WORDS
} mhai_state_word;

/* The contents of a state, until the study takes them. */
typedef struct mhai_saved {
    uint64_t word[STATE_WORDS]; /* all 0: no state */
    uint64_t *prints, *kinds;   /* [texts + 1] fingerprints, [kinds] */
    mha_head_measures *texts, *random;
    mha_head_corpus *corpus;
} mhai_saved;

struct mha_study {
    mha_context *context;
    mha_transformer *net;
    mha_transformer_desc net_desc;
    mha_model *model;
    mha_model *encoder; /* of an encoder-decoder; NULL: none */
    int64_t vocab_size; /* of the keys' tokens */
    mha_study_desc desc;
    mha_study_state state; /* state of desc; zeros: none */
    mha_study_found found;
    mha_random_tokens plan;
    mha_room room;
    int64_t *heads;           /* [L] */
    int64_t *counts, *ranks;  /* [V] */
    int64_t *kind_of, *id_of; /* [V], [kinds] */
    int64_t rare_rank;
    int64_t counted, sequences; /* texts and random sequences to measure */
    int64_t places;             /* capacity of: */
    int64_t *lengths;           /* [counted] tokens of each text */
    uint64_t *prints;           /* [counted + 1], with a state */
    uint64_t print_of_random;   /* fingerprint of the random sequences so far */
    bool random;                /* the current items are random sequences, not texts */
    mhai_saved saved;
    mhai_round round;
    mha_study_progress progress;
};

/* Discard the results of texts or of random sequences, and create them anew. */
MHA_NODISCARD mha_status mhai_study_renew(mha_study *s);

/* ---- study_state.c; without a state all calls do nothing ------------------------------------- */

MHA_NODISCARD mha_status mhai_state_read(mha_study *s);
void mhai_saved_destroy(mhai_saved *saved);

/* Add the text to the fingerprints. */
void mhai_state_count(mha_study *s, const mha_tokens *tokens, const mha_study_links *links);
void mhai_state_draw(mha_study *s, const mha_tokens *tokens);

/* Reject a state of other texts or sequences; merge its results, and continue after them. */
MHA_NODISCARD mha_status mhai_state_take_texts(mha_study *s);
MHA_NODISCARD mha_status mhai_state_take_random(mha_study *s);

/* ---- study_ranks.c --------------------------------------------------------------------------- */

MHA_NODISCARD mha_status mhai_study_agree(const mha_study *s, mha_status status);

/* Whether this rank measures the current item. */
bool mhai_study_mine(const mha_study *s);

/* The ranks that divide the items; NULL: one process, or ranks that divide the layers. */
const mha_transport *mhai_study_dealt(const mha_study *s);

/* At the end of a round merge the results of all ranks, and begin the next round. */
MHA_NODISCARD mha_status mhai_study_round(mha_study *s);

#endif
