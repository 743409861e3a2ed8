/* All outputs of mha_attention_outputs in guarded memory, for any selection. */
#ifndef TEST_EXTRAS_H
#define TEST_EXTRAS_H

#include "support/kinds.h"

/* Each output: enumerator, field, dtype. */
#define EXTRAS_LIST(X)                               \
    X(EXTRA_LSE, lse, MHA_F32)                       \
    X(EXTRA_P, probabilities, MHA_F32)               \
    X(EXTRA_AVERAGE, average_probabilities, MHA_F32) \
    X(EXTRA_SCORES, scores, MHA_F32)                 \
    X(EXTRA_ENTROPY, entropy, MHA_F32)               \
    X(EXTRA_LARGEST_WEIGHT, largest_weight, MHA_F32) \
    X(EXTRA_LARGEST_KEY, largest_key, MHA_I64)       \
    X(EXTRA_FIRST, first_token, MHA_F32)             \
    X(EXTRA_DIAGONAL, diagonal, MHA_F32)             \
    X(EXTRA_OFFSETS, offset_mass, MHA_F32)           \
    X(EXTRA_TOP_KEYS, top_keys, MHA_I64)             \
    X(EXTRA_TOP_WEIGHTS, top_weights, MHA_F32)       \
    X(EXTRA_COLUMNS, column_sums, MHA_F32)
#define EXTRAS_ENUM(name, field, dtype) name,
enum { EXTRAS_LIST(EXTRAS_ENUM) EXTRAS_COUNT, EXTRAS_ALL = (1 << EXTRAS_COUNT) - 1 };

enum { EXTRAS_MOST_HEADS = 8, EXTRAS_MOST_ROWS = 200, EXTRAS_MOST_OFFSETS = 6 };

/* The requested contents of the outputs. */
typedef struct extras_request {
    int64_t heads[EXTRAS_MOST_HEADS], rows[EXTRAS_MOST_ROWS], offsets[EXTRAS_MOST_OFFSETS];
    int64_t heads_count, rows_count, offsets_count; /* heads_count, rows_count -1: all */
    int64_t top;
    mha_score_stage stage;
    bool dropped;
} extras_request;

/* A random request: all or some heads and rows, with repetitions, and a few offsets, some of them
 * far away. */
extras_request extras_some(rng *r, const kinds_case *c);

typedef struct extras {
    guarded o, each[EXTRAS_COUNT];
    unsigned has; /* bits 1 << EXTRA_... */
    extras_request request;
    mha_attention_outputs outputs; /* points into this struct: must not be copied */
} extras;

const char *extras_name(int i);
void extras_make(extras *x, rng *r, const kinds_case *c, const extras_request *request,
                 unsigned which, unsigned layout);
void extras_free(extras *x);
mha_status extras_run(mha_context *context, const kinds_case *c, mha_path path, extras *x);

/* Whether no memory between the elements was written. */
bool extras_intact(const extras *x);

/* Index of the first common output that differs, EXTRAS_COUNT for o, or -1. */
int extras_differ(const extras *a, const extras *b, bool nan_alike);

#endif
