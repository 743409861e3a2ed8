/* See training_tree.h. */
#include "transformer/training_tree.h"

#include "base/checked.h"
#include "ranks/rank_messages.h"

#include <multihead/component.h>

#include <string.h>

/* Defaults: at most LEAVES leaves, each with at least LEAST tokens (LEAST_LARGE in a large model).
 * In the demo's model, leaves of 64 tokens cost nothing, because the gradient stays in a core's
 * cache. With 20 million parameters, each addition goes to memory: a step takes 6 to 8 % longer
 * with leaves of 256 tokens, and 2 % longer with 512 (docs/training.md). */
enum { LEAVES = 8, LEAST = 64, LEAST_LARGE = 512, LARGE = 1 << 20 };

enum { PIECE = 16384 /* floats per work item */ };

bool mhai_tree_small(int64_t size)
{
    return size < LARGE;
}

int64_t mhai_tree_leaves(int64_t sequences, int64_t length, int64_t size, int64_t slices)
{
    const int64_t tokens = sequences * length / (mhai_tree_small(size) ? LEAST : LEAST_LARGE);
    const int64_t most = slices > 0 ? slices : mhai_min_i64(LEAVES, tokens);
    return mhai_max_i64(mhai_min_i64(sequences, most), 1);
}

int64_t mhai_tree_share(int64_t count, int64_t n, int64_t i)
{
    return count / n * i + count % n * i / n;
}

/* ---- sums ------------------------------------------------------------------------------------ */

typedef struct add_job {
    float *to;
    const float *from;
    int64_t size;
} add_job;

static void add_piece(void *argument, int64_t item, int worker)
{
    const add_job *job = argument;
    const int64_t end = mhai_min_i64((item + 1) * PIECE, job->size);
    (void)worker;
    for (int64_t i = item * PIECE; i < end; i++) job->to[i] += job->from[i];
}

/* Whether x and y are the two halves of a node. y follows x. */
static bool are_halves(int64_t leaves, const mhai_node *x, const mhai_node *y)
{
    const int64_t size = x->end - x->begin; /* x has a right neighbour, so its
                                             * size is a power of two */
    return x->begin % (2 * size) == 0 && (y->end - y->begin == size || y->end == leaves);
}

void mhai_tree_add(mha_context *context, mhai_nodes *to, mhai_node node, int64_t size)
{
    to->nodes[to->count++] = node;
    while (to->count > 1) {
        mhai_node *x = &to->nodes[to->count - 2], *y = x + 1;
        if (!are_halves(to->leaves, x, y)) return;
        add_job job = {x->gradient, y->gradient, size};
        if (size > 0) mha_parallel_for(context, mhai_ceil_div(size, PIECE), add_piece, &job);
        x->loss += y->loss;
        x->end = y->end;
        to->count--;
    }
}

/* Add leaves begin .. end - 1 to nodes. Return the peak number of nodes. */
static int64_t count_nodes(int64_t begin, int64_t end, mhai_nodes *nodes)
{
    int64_t most = 0;
    for (int64_t i = begin; i < end; i++) {
        most = mhai_max_i64(most, nodes->count + 1);
        mhai_tree_add(NULL, nodes, (mhai_node){.begin = i, .end = i + 1}, 0);
    }
    return most;
}

int64_t mhai_tree_depth(int64_t leaves, int64_t begin, int64_t end)
{
    mhai_nodes nodes = {.leaves = leaves};
    return count_nodes(begin, end, &nodes);
}

/* ---- between ranks --------------------------------------------------------------------------- */

typedef struct exchange {
    mha_context *context;
    const mha_transport *transport;
    const mhai_nodes *own;
    int64_t size, parts; /* floats of the gradient; nodes of all ranks */
    mha_transfer *transfers;
    int64_t begun;
    float *arrived; /* [parts][own piece] */
} exchange;

/* Pieces are aligned to 16 floats. */
static int64_t piece_begin(const exchange *x, int32_t rank)
{
    const int64_t lines = mhai_ceil_div(x->size, 16);
    return mhai_min_i64(16 * mhai_tree_share(lines, x->transport->size, rank), x->size);
}

static int64_t piece_size(const exchange *x, int32_t rank)
{
    return piece_begin(x, rank + 1) - piece_begin(x, rank);
}

/* The partial sums of a rank, without their gradients. */
static mhai_nodes nodes_of(const exchange *x, int32_t rank)
{
    const int64_t leaves = x->own->leaves, ranks = x->transport->size;
    mhai_nodes nodes = {.leaves = leaves};
    count_nodes(mhai_tree_share(leaves, ranks, rank), mhai_tree_share(leaves, ranks, rank + 1),
                &nodes);
    return nodes;
}

static mha_status send_floats(exchange *x, int32_t to, const float *from, int64_t count)
{
    const mha_transport *t = x->transport;
    if (count == 0) return MHA_OK;
    return t->send(t->user, to, 0, from, (size_t)count * sizeof *from, &x->transfers[x->begun++]);
}

static mha_status receive_floats(exchange *x, int32_t from, float *to, int64_t count)
{
    const mha_transport *t = x->transport;
    if (count == 0) return MHA_OK;
    return t->receive(t->user, from, 0, to, (size_t)count * sizeof *to, &x->transfers[x->begun++]);
}

static mha_status wait_all(exchange *x)
{
    const mha_transport *t = x->transport;
    for (int64_t i = 0; i < x->begun; i++) MHA_TRY(t->wait(t->user, &x->transfers[i]));
    x->begun = 0;
    return MHA_OK;
}

/* Send every rank its piece of each partial sum. Each rank starts with a different partner, so that
 * they do not all send to rank 0 first. */
static mha_status scatter(exchange *x)
{
    const mha_transport *t = x->transport;
    const int64_t piece = piece_size(x, t->rank);
    for (int32_t i = 1; i < t->size; i++) {
        const int32_t to = (int32_t)(((int64_t)t->rank + i) % t->size);
        for (int64_t k = 0; k < x->own->count; k++)
            MHA_TRY(send_floats(x, to, x->own->nodes[k].gradient + piece_begin(x, to),
                                piece_size(x, to)));
    }
    float *at = x->arrived;
    for (int32_t r = 0; r < t->size; r++) {
        const int64_t parts = nodes_of(x, r).count;
        for (int64_t k = 0; k < parts; k++, at += piece)
            if (r != t->rank)
                MHA_TRY(receive_floats(x, r, at, piece));
            else if (piece > 0)
                memcpy(at, x->own->nodes[k].gradient + piece_begin(x, r),
                       (size_t)piece * sizeof *at);
    }
    return wait_all(x);
}

/* Continue the tree over the partial sums of all ranks, in the order of their leaves. */
static void fold(const exchange *x, float *gradient)
{
    const mha_transport *t = x->transport;
    const int64_t piece = piece_size(x, t->rank);
    mhai_nodes sums = {.leaves = x->own->leaves};
    float *at = x->arrived;
    for (int32_t r = 0; r < t->size; r++) {
        const mhai_nodes theirs = nodes_of(x, r);
        for (int64_t k = 0; k < theirs.count; k++, at += piece) {
            mhai_node node = theirs.nodes[k];
            node.gradient = at;
            mhai_tree_add(x->context, &sums, node, piece);
        }
    }
    if (piece > 0)
        memcpy(gradient + piece_begin(x, t->rank), sums.nodes[0].gradient,
               (size_t)piece * sizeof *gradient);
}

static mha_status spread(exchange *x, float *gradient)
{
    const mha_transport *t = x->transport;
    const int64_t piece = piece_size(x, t->rank);
    for (int32_t i = 1; i < t->size; i++) {
        const int32_t to = (int32_t)(((int64_t)t->rank + i) % t->size);
        const int32_t from = (int32_t)(((int64_t)t->rank + t->size - i) % t->size);
        MHA_TRY(send_floats(x, to, gradient + piece_begin(x, t->rank), piece));
        MHA_TRY(receive_floats(x, from, gradient + piece_begin(x, from), piece_size(x, from)));
    }
    return wait_all(x);
}

/* Rank 0 adds the losses, one number per node. all: [size][MHAI_MOST_PARTS]. */
static mha_status add_losses(const exchange *x, double *all, double *loss)
{
    const mha_transport *t = x->transport;
    double mine[MHAI_MOST_PARTS] = {0};
    for (int64_t k = 0; k < x->own->count; k++) mine[k] = x->own->nodes[k].loss;
    MHA_TRY(mha_transport_gather(t, 0, mine, sizeof mine, all));
    mhai_nodes sums = {.leaves = x->own->leaves};
    for (int32_t r = 0; t->rank == 0 && r < t->size; r++) {
        const mhai_nodes theirs = nodes_of(x, r);
        for (int64_t k = 0; k < theirs.count; k++) {
            mhai_node node = theirs.nodes[k];
            node.loss = all[r * MHAI_MOST_PARTS + k];
            mhai_tree_add(x->context, &sums, node, 0);
        }
    }
    *loss = sums.nodes[0].loss;
    return mha_transport_broadcast(t, 0, loss, sizeof *loss);
}

static mha_status prepare(exchange *x, double **losses)
{
    const mha_transport *t = x->transport;
    for (int32_t r = 0; r < t->size; r++) x->parts += nodes_of(x, r).count;
    /* sends to each rank: own nodes, and a piece of the result; receives from each rank: its nodes,
     * and a piece of the result */
    const int64_t transfers = (int64_t)t->size * (x->own->count + 2) + x->parts;
    MHA_TRY(mha_scratch_alloc(x->context, transfers, sizeof *x->transfers, &x->transfers));
    MHA_TRY(
        mha_scratch_alloc(x->context, (int64_t)t->size * MHAI_MOST_PARTS, sizeof **losses, losses));
    return mha_scratch_alloc(x->context, x->parts * piece_size(x, t->rank), sizeof *x->arrived,
                             &x->arrived);
}

mha_status mhai_tree_reduce(mha_context *context, const mha_transport *transport,
                            const mhai_nodes *own, int64_t size, float *gradient, double *loss)
{
    exchange x = {.context = context, .transport = transport, .own = own, .size = size};
    const mha_scratch_mark mark = mha_scratch_top(context);
    double *losses = NULL;
    mha_status status = mha_transport_agree(transport, prepare(&x, &losses));
    if (status == MHA_OK) status = scatter(&x);
    if (status == MHA_OK) {
        fold(&x, gradient);
        status = spread(&x, gradient);
    }
    if (status == MHA_OK) status = add_losses(&x, losses, loss);
    return mha_scratch_end(context, mark, status);
}
