/* How a training step divides its batch, and the order in which gradients are added. Neither
 * depends on which rank computes a part, so the result is bit-identical to that of one process.
 *
 * A batch has L leaves of whole sequences. In the tree over them, a node of level k covers the
 * existing leaves from j 2^k up to (j + 1) 2^k. It is the sum of its two halves, or its first half
 * if there is no second. Each rank adds its leaves as far as the tree allows; the remaining
 * partial sums are nodes whose siblings belong to other ranks. Rank r owns a piece of the
 * gradient: it collects that piece of all partial sums, continues the tree, and sends the result
 * to all. */
#ifndef MHAI_TRAINING_TREE_H
#define MHAI_TRAINING_TREE_H

#include <multihead/transport.h>

enum {
    MHAI_MOST_LEAVES = 1024,
    MHAI_MOST_PARTS = 24
}; /* a range of leaves has at most 2 * 10 nodes */

/* A sum over leaves begin .. end - 1. */
typedef struct mhai_node {
    int64_t begin, end;
    float *gradient; /* [count] */
    double loss;
} mhai_node;

/* Adjacent nodes that the tree does not add to each other. */
typedef struct mhai_nodes {
    int64_t leaves; /* of the tree */
    int64_t count;
    mhai_node nodes[MHAI_MOST_PARTS];
} mhai_nodes;

/* The number of leaves for `sequences` sequences of `length` tokens and a gradient of `size`
 * floats. slices: as in mha_trainer_desc. */
int64_t mhai_tree_leaves(int64_t sequences, int64_t length, int64_t size, int64_t slices);

/* Whether a gradient of `size` floats stays in a core's cache. */
bool mhai_tree_small(int64_t size);

/* The beginning of share i of n. Leaves share sequences; ranks share leaves. */
int64_t mhai_tree_share(int64_t count, int64_t n, int64_t i);

/* The maximum number of nodes while leaves begin .. end - 1 are added one by one. */
int64_t mhai_tree_depth(int64_t leaves, int64_t begin, int64_t end);

/* Append a node, and perform all additions that are then possible. Its gradient is memory of the
 * caller; a sum replaces its first half. */
void mhai_tree_add(mha_context *context, mhai_nodes *to, mhai_node node, int64_t size);

/* Add the partial sums of all ranks: the result is in gradient [size] and *loss on each rank.
 * own->nodes[0].gradient may be gradient. Scratch from the context. */
MHA_NODISCARD mha_status mhai_tree_reduce(mha_context *context, const mha_transport *transport,
                                          const mhai_nodes *own, int64_t size, float *gradient,
                                          double *loss);

#endif
