/* Exact counts of attention's parameters, operations and memory: pure arithmetic, no printing.
 *
 *   E width   H query heads   Hk key/value heads   D head size   N tokens   B sequences   L layers
 *
 *   parameters   W_q [H D, E]   W_k, W_v [Hk D, E]   W_o [E, H D], and optionally one bias per row
 *   FLOPs        projections 2 B N (in) (out);  scores and weighted sum 2 D per visible pair each;
 *                softmax 5 per visible pair (maximum, subtraction, exp, sum, division)
 *   bytes        attention matrix B H N N;  keys and values 2 B Hk D N
 */
#ifndef CLI_COUNTS_H
#define CLI_COUNTS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct counts_shape {
    int64_t embed, heads, kv_heads, head_dim; /* E, H, Hk, D */
    int64_t layers;                           /* attention modules, L */
    int64_t cached;                           /* layers that cache keys and values in decoding */
    int64_t batch, length;                    /* B, N */
    int64_t left, right;                      /* keys visible before and after a query's own; -1:
                                                 all */
    int64_t element_bytes;                    /* bytes of an element of the matrix and the cache */
    bool qkv_bias, out_bias;
} counts_shape;

typedef struct counts_parameters {
    int64_t q, k, v, o, biases, all;
} counts_parameters;

typedef struct counts_flops {
    int64_t q, k, v, scores, softmax, sum, o, all;
} counts_flops;

/* Counts of one layer, unless the name says otherwise. */
typedef struct counts {
    counts_parameters parameters;
    counts_flops flops;
    int64_t pairs, visible_pairs; /* query-key pairs of one head of one sequence */
    int64_t matrix_bytes;
    int64_t cache_bytes;        /* all N tokens */
    int64_t window_cache_bytes; /* with the most tokens that a window needs; otherwise
                                   cache_bytes */
    int64_t token_bytes;        /* one token of one sequence, all cached layers */
    int64_t all_parameters, all_flops, all_matrix_bytes; /* all layers */
    int64_t all_kv_bytes;                                /* keys and values of all layers */
    int64_t all_cache_bytes, all_window_cache_bytes;     /* sums over the layers with a cache */
} counts;

/* False if a count exceeds 2^63 - 1, or a size is not positive. */
bool counts_of(const counts_shape *shape, counts *result);

/* A number of key/value heads to illustrate sharing: the shape's own if it shares, otherwise the
 * divisor of H nearest to 8 that is neither 1 nor H; 0 if there is none. */
int64_t counts_group_example(const counts_shape *shape);

#endif
