/* Random attention descriptors: every kind of mask, score term, sink, gate, dropout and ragged batch, alone and in
 * combination. */
#ifndef TEST_KINDS_H
#define TEST_KINDS_H

#include "support/problem.h"

/* The features of a descriptor: name, bit. */
#define KINDS_LIST(X)    \
    X(CAUSAL, 0)         \
    X(OFFSETS, 1)        \
    X(LENGTHS, 2)        \
    X(KEEP, 3)           \
    X(BIAS, 4)           \
    X(WINDOW, 5)         \
    X(SINK_KEYS, 6)      \
    X(GLOBAL_KEYS, 7)    \
    X(GLOBAL_QUERIES, 8) \
    X(DOCUMENTS, 9)      \
    X(BLOCKS, 10)        \
    X(CALLBACK, 11)      \
    X(SOFTCAP, 12)       \
    X(DROPOUT, 13)       \
    X(ALIBI, 14)         \
    X(T5, 15)            \
    X(SHAW_KEYS, 16)     \
    X(SHAW_VALUES, 17)   \
    X(SINK_LOGITS, 18)   \
    X(GATES, 19)         \
    X(RAGGED, 20)        \
    X(BEGINS, 21)
enum {
#define KINDS_ENUM(name, bit) KIND_##name = 1 << (bit),
    KINDS_LIST(KINDS_ENUM)
#undef KINDS_ENUM
        KINDS_COUNT = 22,
    KINDS_ALL = (1 << KINDS_COUNT) - 1,
    /* The kinds that determine visibility, except keep_mask and bias. */
    KINDS_SYMBOLIC = KIND_CAUSAL | KIND_LENGTHS | KIND_BEGINS | KIND_WINDOW | KIND_SINK_KEYS |
                     KIND_GLOBAL_KEYS | KIND_GLOBAL_QUERIES | KIND_DOCUMENTS | KIND_BLOCKS |
                     KIND_CALLBACK
};

enum { KINDS_MOST_SEQUENCES = 8, KINDS_MOST_INPUTS = 20 };

/* A mask computed by a hash, for kinds_callback(). */
typedef struct kinds_hash {
    uint64_t seed;
    unsigned keep_of_8; /* number of kept pairs out of eight */
} kinds_hash;
void kinds_callback(void *user, int64_t b, int64_t h, int64_t query, int64_t queries, int64_t key,
                    int64_t keys, uint8_t *keep, int64_t keep_stride);

/* Lengths of each sequence; of a ragged batch, the maximum. */
typedef struct kinds_shape {
    int64_t B, H, Hk, T, S, D, Dv;
    unsigned kinds;
    bool plain_layout;
} kinds_shape;

typedef struct kinds_case {
    kinds_shape shape;
    problem_shape result; /* for outcome_make() */
    mha_attention_desc desc;
    guarded q, k, v, inputs[KINDS_MOST_INPUTS];
    int input_count;
    int64_t offsets[KINDS_MOST_SEQUENCES], lengths[KINDS_MOST_SEQUENCES];
    int64_t begins[KINDS_MOST_SEQUENCES];
    int64_t query_starts[KINDS_MOST_SEQUENCES + 1], key_starts[KINDS_MOST_SEQUENCES + 1];
    kinds_hash hash;
    char text[800];
} kinds_case;

/* The case must not be copied afterwards, because desc points into it. Kinds are made consistent (a
 * sink key needs a window, a ragged batch has no blocks, ...). */
void kinds_make(kinds_case *c, rng *r, const kinds_shape *shape);
void kinds_free(kinds_case *c);

/* A random shape, with one kind or several; lengths sometimes exceed a key block. */
kinds_shape kinds_some_shape(rng *r);

outcome kinds_outcome(const kinds_case *c, rng *r, unsigned layout);
mha_status kinds_run(mha_context *context, const kinds_case *c, mha_path path, outcome *x);

#endif
