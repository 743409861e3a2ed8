/* Internals of mha_head_corpus, and its functions for head_row.c and head_measures.c.
 *
 * Every sum over texts is an int64 in fixed point, so results do not depend on the order or
 * division of work. A row is added to its head's own sums, which one thread owns. Values that need
 * all heads of a text are held in `now` until the text ends.
 *
 * head_corpus.c        creation, merging, the end of a text
 *   head_corpus_rows.c   a row, a layer, its values
 *   head_corpus_read.c   the public calls that read
 */
#ifndef MHAI_HEAD_CORPUS_H
#define MHAI_HEAD_CORPUS_H

#include "analysis/head_measures.h"

#include <multihead/head_corpus.h>

/* Units of fixed point. */
#define MHAI_CORPUS_SHARE 0x1p24
#define MHAI_CORPUS_NATS 0x1p16
#define MHAI_CORPUS_TOKENS 0x1p10
#define MHAI_CORPUS_MASS 0x1p20

typedef struct mhai_corpus_best { /* in the current text */
    double value;
    int64_t row, key;
    bool there;
} mhai_corpus_best;

typedef struct mhai_corpus_score { /* a score of a head */
    mhai_exact value;
    int64_t rows, texts;
    int64_t bin[MHA_HEAD_CORPUS_BINS];
    int64_t binned;           /* number of rows in the histogram */
    double smallest, largest; /* among the rows in the histogram */
    int64_t held[2];          /* number of places: largest, smallest */
    double now_value;         /* sums of the current text */
    int64_t now_rows, now_fixed;
    mhai_corpus_best now_best[2];
} mhai_corpus_score;

typedef struct mhai_corpus_position {
    int64_t rows, entropy, distance;
} mhai_corpus_position;

typedef struct mhai_corpus_head {
    mhai_corpus_score score[MHA_MEASURES];
    mhai_corpus_position position[MHA_HEAD_CORPUS_POSITIONS];
    int64_t rest, moved, rest_rows, moved_rows;
    int64_t written, written_rows; /* over all tokens */
} mhai_corpus_head;

typedef struct mhai_corpus_sum { /* for a bootstrap replicate, or for a permutation */
    int64_t value, rows;
} mhai_corpus_sum;

/* The data that a head needs when a row is added. */
typedef struct mhai_corpus_seen {
    mhai_corpus_head *head;
    const float *norms; /* [S] ||W_O[h] v_j||, or NULL */
    int64_t *written;   /* [vocab], or NULL */
    int64_t *row_count; /* [vocab] of the layer; set only for its first head */
    const int64_t *ids; /* token ids of keys */
} mhai_corpus_seen;

struct mha_head_corpus {
    mha_context *context;
    mha_allocator allocator;
    int64_t layers, heads, most_heads; /* heads: in all layers together */
    int64_t *first_head;               /* [layers + 1] */
    int64_t vocab, places, replicates, permutations;
    uint64_t seed;
    int64_t texts, number; /* number: index of the current text; -1: equal to texts */
    bool open;
    mha_head_measures *measures; /* the measures it is attached to, or NULL */

    mhai_corpus_head *head;     /* [heads] */
    mha_head_place *place;      /* [heads][MHA_MEASURES][2][places] */
    mhai_corpus_sum *replicate; /* [replicates][heads][MHA_MEASURES] */
    mhai_corpus_sum *permutation;
    int64_t *read, *written;                   /* [heads][vocab] */
    int64_t *expected, *key_count, *row_count; /* [layers][vocab] */

    mhai_corpus_seen *seen;                    /* [most_heads] for the current layer */
    float **gram;                              /* [layers] [H][Dv][Dv], allocated when needed */
    int64_t *gram_size;                        /* [layers] in floats */
    float *norms;                              /* [most_heads][norm_keys] for the current layer */
    int64_t norm_bytes, norm_keys, norm_layer; /* norm_layer -1: none */
    int64_t *order;                            /* [heads] a permutation */
};

/* Sums and counts of a head, per position and over all rows. They stay within
 * MHAI_SUM_MOST and MHAI_COUNT_MOST. */
#define MHAI_CORPUS_POSITION(SUM, COUNT, i) \
    COUNT(position[i].rows) SUM(position[i].entropy) SUM(position[i].distance)
#define MHAI_CORPUS_REST(SUM, COUNT) \
    SUM(rest) SUM(moved) SUM(written) COUNT(rest_rows) COUNT(moved_rows) COUNT(written_rows)

/* Arrays by token, with their lengths. Elements stay within MHAI_SUM_MOST and MHAI_COUNT_MOST. */
#define MHAI_CORPUS_TOKEN_SUMS(X)   \
    X(read, c->heads * c->vocab)    \
    X(written, c->heads * c->vocab) \
    X(expected, c->layers * c->vocab)
#define MHAI_CORPUS_TOKEN_COUNTS(X)    \
    X(key_count, c->layers * c->vocab) \
    X(row_count, c->layers * c->vocab)

/* head_corpus.c */
MHA_NODISCARD mha_status mhai_corpus_begin(mha_head_corpus *c, const mha_heads_text *text);
void mhai_corpus_end(mha_head_corpus *c);
void mhai_corpus_drop(mha_head_corpus *c); /* discards an unfinished text */
double mhai_corpus_unit(mha_head_measure which);
bool mhai_corpus_comes_first(const mha_head_place *a, const mha_head_place *b, int side);

/* head_corpus_rows.c: set up a layer before its first row; add a row's score; add a row's weight on
 * the first token and the norm of the output that it contributes; add a finished map of a layer */
void mhai_corpus_layer(mha_head_corpus *c, const mhai_head_text *text, int64_t layer);
void mhai_corpus_row(mhai_corpus_seen *seen, mha_head_measure which, double value,
                     const mhai_head_fact *fact, int64_t key);
void mhai_corpus_moved(mhai_corpus_seen *seen, const mhai_head_fact *fact, const double *a);
void mhai_corpus_map(mha_head_corpus *c, const mhai_head_text *text, int64_t layer, int64_t h,
                     const mhai_head_map *map);

#endif
