/* How a training step divides its batch, and in which order it adds gradients. Neither depends on
 * the assignment to ranks, so the result is bit-identical to that of one process.
 *
 * A batch is divided into L leaves, each of whole sequences. In the tree over them, a node of level
 * k covers those of the leaves j 2^k to (j + 1) 2^k - 1 that exist. It is the sum of its two
 * halves, or equal to its first half if the second has no leaves.
 *
 * Each rank adds its own leaves as far as the tree allows. The nodes that remain are partial sums:
 * their siblings belong to other ranks. Rank r owns a piece of the gradient. It receives that piece
 * of every partial sum, completes the tree, and sends the result to all ranks. */
#ifndef MHAI_TRAINING_TREE_H
#define MHAI_TRAINING_TREE_H

#include <multihead/transport.h>

enum {
    MHAI_MOST_LEAVES = 1024,
    MHAI_MOST_PARTS = 24
}; /* a range of leaves has at most 2 * 10 nodes */

/* The sum of leaves begin .. end - 1. */
typedef struct mhai_node {
    int64_t begin, end;
    float *gradient; /* [count] */
    double loss;
} mhai_node;

/* Adjacent nodes, no two of which are siblings. */
typedef struct mhai_nodes {
    int64_t leaves; /* leaves of the whole tree */
    int64_t count;
    mhai_node nodes[MHAI_MOST_PARTS];
} mhai_nodes;

/* The number of leaves of a batch of `sequences` sequences of `length` tokens, for a gradient of
 * `size` floats. slices: as in mha_trainer_desc. */
int64_t mhai_tree_leaves(int64_t sequences, int64_t length, int64_t size, int64_t slices);

/* Whether a gradient of `size` floats fits in a core's cache. */
bool mhai_tree_small(int64_t size);

/* The first index of share i of n. Used to divide sequences among leaves,
 * and leaves among ranks. */
int64_t mhai_tree_share(int64_t count, int64_t n, int64_t i);

/* The peak number of nodes while leaves begin .. end - 1 are added one by one. */
int64_t mhai_tree_depth(int64_t leaves, int64_t begin, int64_t end);

/* Append a node and add all siblings. The caller owns the node's gradient. A sum overwrites the
 * gradient of its first half. */
void mhai_tree_add(mha_context *context, mhai_nodes *to, mhai_node node, int64_t size);

/* Add the partial sums of all ranks. Every rank gets the result in gradient [size] and *loss.
 * own->nodes[0].gradient may be gradient. Uses scratch of the context. */
MHA_NODISCARD mha_status mhai_tree_reduce(mha_context *context, const mha_transport *transport,
                                          const mhai_nodes *own, int64_t size, float *gradient,
                                          double *loss);

#endif
