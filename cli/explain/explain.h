/* The parts of `multihead explain`: options -> a problem without data -> the library's plan ->
 * text, JSON, a picture.
 *
 * Letters as in attention.h: B sequences, H query and Hk key/value heads, T queries, S keys, D and
 * Dv head sizes, E width.
 */
#ifndef CLI_EXPLAIN_H
#define CLI_EXPLAIN_H

#include "common/config.h"

#include <multihead/attention.h>
#include <multihead/render.h>

typedef struct explain_options {
    config_options config;
    const char *q, *k, *v;            /* .npy files */
    int64_t queries, keys, value_dim; /* 0: not given */
    int64_t offset;                   /* EXPLAIN_NO_OFFSET: not given */
    int64_t sink_keys, shaw, t5, block_size, threads;
    args_real softcap, dropout;
    const char *blocks;
    int alibi, sink_logits, gates, dense_mask, dense_bias;
    int lse, probabilities, average, scores, statistics, column_sums; /* requested outputs */
    int dtype;                                                        /* f32, f16, bf16 */
    int path, compute, isa, strict;
    const char *svg, *pdf;
    int dark, json, quiet;
} explain_options;

#define EXPLAIN_NO_OFFSET INT64_MIN
enum { EXPLAIN_TENSORS = 18 /* other optional inputs and outputs */ };

typedef struct explain_problem {
    config config;
    int64_t B, H, Hk, T, S, D, Dv, E;
    int64_t left, right; /* the window; -1: open */
    mha_attention_desc desc;
    mha_tensor q, k, v, o, blocks, tensors[EXPLAIN_TENSORS];
    mha_attention_outputs outputs;
    uint8_t *kept; /* memory of the blocks, or NULL */
    int64_t block_rows, block_cols, kept_blocks;
    mha_attention_plan plan;
    int threads;
    int64_t l2_bytes;    /* cache of one core */
    int64_t mask_pairs;  /* pairs of B H T S that are visible, ignoring dense masks; -1: too many
                            rows and blocks to count */
    double pairs;        /* B H T S */
    double matrix_bytes; /* bytes of B H T S scores in f32 */
} explain_problem;

/* Make the problem that the options describe, and the library's plan for it. Errors are printed. */
cli_exit explain_make(const explain_options *options, explain_problem *problem);

/* Count the keys s0 <= s < s1 that query t sees, and the ones among them that are visible only
 * because they are exempt from the window. */
typedef struct explain_seen {
    int64_t seen, exempt;
} explain_seen;
explain_seen explain_visible(const explain_problem *problem, int64_t t, int64_t s0, int64_t s1);

void explain_print(const explain_problem *problem);
mha_status explain_write_json(const explain_problem *problem, const mha_sink *sink);

/* The picture, which does not depend on the machine or the threads. */
mha_status explain_draw(const explain_problem *problem, bool dark, bool pdf, const mha_sink *sink);

#endif
