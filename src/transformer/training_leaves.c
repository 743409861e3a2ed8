/* See training_leaves.h. In a small model, each thread computes whole leaves. In a large model, all
 * threads work on one leaf at a time. */
#include "transformer/training_leaves.h"

#include "base/checked.h"
#include "base/split_mix.h"

#include <multihead/component.h>
#include <multihead/nn.h>

#include <stdio.h>
#include <string.h>

enum { MOST_ABREAST = 32 };

static mha_tensor sequences(const mha_tensor *x, int64_t begin, int64_t end)
{
    mha_tensor part = *x;
    part.data = (char *)x->data + (size_t)(begin * x->stride[0]) * mha_dtype_size(x->dtype);
    part.shape[0] = end - begin;
    return part;
}

/* Sequences begin .. end - 1 of an input. The result points to *tokens and *types. */
static mha_transformer_input input_of(const mha_transformer_input *all, int64_t begin, int64_t end,
                                      mha_tensor *tokens, mha_tensor *types)
{
    mha_transformer_input part = *all;
    uint64_t state = all->dropout_seed ^ ((uint64_t)begin << 32);
    *tokens = sequences(all->tokens, begin, end);
    part.tokens = tokens;
    if (all->token_types) {
        *types = sequences(all->token_types, begin, end);
        part.token_types = types;
    }
    if (all->lengths) part.lengths = all->lengths + begin;
    /* Dropout numbers sequences from 0 in each call, so each leaf gets its own seed. */
    if (begin > 0) part.dropout_seed = mhai_split_mix(&state);
    return part;
}

/* A leaf of a batch. */
typedef struct leaf {
    mha_transformer_input input, source;
    mha_tensor tokens, types, source_tokens, source_types;
    mha_tensor memory, memory_gradient, logits; /* [b,..] */
    mha_tensor rows, targets, weights;          /* [b T,V], [b T] */
} leaf;

/* Without weights, every row has weight *mean, because a leaf cannot average over the batch. */
static void cut(const mhai_views *v, const mhai_desk *desk, int64_t begin, int64_t end,
                const float *mean, leaf *part)
{
    const int64_t T = v->input.tokens->shape[1], rows = (end - begin) * T;
    *part = (leaf){.logits = v->logits, .rows = v->rows, .targets = v->targets};
    part->input = input_of(&v->input, begin, end, &part->tokens, &part->types);
    part->logits.data = part->rows.data = desk->logits;
    part->logits.shape[0] = end - begin;
    part->rows.shape[0] = rows;
    part->targets = sequences(&v->targets, begin * T, end * T);
    if (v->batch.weights)
        part->weights = sequences(&v->weights, begin * T, end * T);
    else
        part->weights = (mha_tensor){.data = (void *)(uintptr_t)mean,
                                     .dtype = MHA_F32,
                                     .ndim = 1,
                                     .shape = {rows},
                                     .stride = {0}};
    if (!v->batch.source) return;
    part->source = input_of(&v->source, begin, end, &part->source_tokens, &part->source_types);
    part->memory = v->memory;
    part->memory_gradient = v->memory_gradient;
    part->memory.data = desk->memory;
    part->memory_gradient.data = desk->memory_gradient;
    part->memory.shape[0] = part->memory_gradient.shape[0] = end - begin;
    part->input.memory = &part->memory;
    part->input.memory_lengths = part->source.lengths;
}

/* Compute the loss of a leaf and the gradient [size] of the parameters. */
static mha_status learn_leaf(const mha_trainer *t, const mhai_desk *desk, leaf *part,
                             float *gradient, double *loss)
{
    const mha_transformer *encoder = t->encoder.net;
    mha_transformer_gradients out = {.struct_size = sizeof out,
                                     .parameters = gradient,
                                     .memory = encoder ? &part->memory_gradient : NULL};
    memset(gradient, 0, (size_t)t->size * sizeof *gradient);
    if (encoder)
        MHA_TRY(mha_transformer_forward(desk->context, encoder, &part->source, desk->encoder_kept,
                                        &part->memory, NULL, NULL));
    MHA_TRY(mha_transformer_forward(desk->context, t->main.net, &part->input, desk->kept,
                                    &part->logits, NULL, NULL));
    MHA_TRY(mha_cross_entropy(desk->context, &part->rows, &part->targets, &part->weights, loss,
                              NULL, &part->rows));
    if (encoder) {
        const int64_t *s = part->memory.shape;
        memset(desk->memory_gradient, 0, (size_t)(s[0] * s[1] * s[2]) * sizeof(float));
    }
    MHA_TRY(mha_transformer_backward(desk->context, t->main.net, &part->input, desk->kept,
                                     &part->logits, &out));
    if (!encoder) return MHA_OK;
    out = (mha_transformer_gradients){.struct_size = sizeof out,
                                      .parameters = gradient + t->main.size};
    return mha_transformer_backward(desk->context, encoder, &part->source, desk->encoder_kept,
                                    &part->memory_gradient, &out);
}

/* ---- helpers --------------------------------------------------------------------------------- */

static void *alloc_locked(void *user, size_t bytes, size_t alignment)
{
    mha_trainer *t = user;
    pthread_mutex_lock(&t->helpers.mutex);
    void *memory = t->allocator.alloc(t->allocator.user, bytes, alignment);
    pthread_mutex_unlock(&t->helpers.mutex);
    return memory;
}

static void release_locked(void *user, void *memory, size_t bytes)
{
    mha_trainer *t = user;
    pthread_mutex_lock(&t->helpers.mutex);
    t->allocator.release(t->allocator.user, memory, bytes);
    pthread_mutex_unlock(&t->helpers.mutex);
}

/* Number of floats of a workspace, not counting its activations. */
static int64_t desk_floats(const mha_trainer *t)
{
    return t->helpers.tokens * t->main.d.vocab_size +
           2 * t->helpers.source * t->encoder.d.embed_dim;
}

static void desk_free(mha_trainer *t, mhai_desk *desk)
{
    mha_activations_destroy(desk->kept);
    mha_activations_destroy(desk->encoder_kept);
    if (desk->logits)
        t->allocator.release(t->allocator.user, desk->logits,
                             (size_t)desk_floats(t) * sizeof *desk->logits);
    mha_context_destroy(desk->context);
}

void mhai_helpers_free(mha_trainer *t)
{
    mhai_helpers *h = &t->helpers;
    if (!h->desks) return;
    for (int64_t i = 0; i < h->count; i++) desk_free(t, &h->desks[i]);
    t->allocator.release(t->allocator.user, h->desks, (size_t)h->count * sizeof *h->desks);
    pthread_mutex_destroy(&h->mutex);
    *h = (mhai_helpers){.count = 0};
}

static mha_status desk_make(mha_trainer *t, mhai_desk *desk)
{
    const mhai_helpers *h = &t->helpers;
    const mha_context_desc d = {.struct_size = sizeof d,
                                .num_threads = 1,
                                .isa = mha_context_isa(t->context),
                                .allocator = {alloc_locked, release_locked, t}};
    MHA_TRY(mha_context_create(&d, &desk->context));
    MHA_TRY(mha_activations_create(desk->context, t->main.net, h->tokens, h->source, &desk->kept));
    if (t->encoder.net)
        MHA_TRY(mha_activations_create(desk->context, t->encoder.net, h->source, 0,
                                       &desk->encoder_kept));
    const size_t bytes = (size_t)desk_floats(t) * sizeof *desk->logits;
    desk->logits = t->allocator.alloc(t->allocator.user, bytes, 64);
    if (!desk->logits)
        return mha_fail(MHA_ERR_NOMEM, "mha_trainer_step: cannot allocate %zu bytes", bytes);
    desk->memory = desk->logits + h->tokens * t->main.d.vocab_size;
    desk->memory_gradient = desk->memory + h->source * t->encoder.d.embed_dim;
    return MHA_OK;
}

/* Make `count` workspaces, each large enough for the largest leaf of this batch. */
static mha_status helpers_make(mha_trainer *t, int64_t count, int64_t tokens, int64_t source)
{
    mhai_helpers *h = &t->helpers;
    mha_status status = MHA_OK;
    if (count <= h->count && tokens <= h->tokens && source <= h->source) return MHA_OK;
    const int64_t most[] = {mhai_max_i64(tokens, h->tokens), mhai_max_i64(source, h->source)};
    count = mhai_max_i64(count, h->count);
    mhai_helpers_free(t);
    const size_t bytes = (size_t)count * sizeof *h->desks;
    mhai_desk *desks = t->allocator.alloc(t->allocator.user, bytes, _Alignof(mhai_desk));
    if (!desks)
        return mha_fail(MHA_ERR_NOMEM, "mha_trainer_step: cannot allocate %zu bytes", bytes);
    memset(desks, 0, bytes);
    if (pthread_mutex_init(&h->mutex, NULL) != 0) {
        t->allocator.release(t->allocator.user, desks, bytes);
        return mha_fail(MHA_ERR_NOMEM, "mha_trainer_step: cannot create a mutex");
    }
    h->desks = desks;
    h->count = count;
    h->tokens = most[0];
    h->source = most[1];
    for (int64_t i = 0; i < count && status == MHA_OK; i++) status = desk_make(t, &desks[i]);
    if (status != MHA_OK) mhai_helpers_free(t);
    return status;
}

/* ---- all leaves of a rank -------------------------------------------------------------------- */

/* Leaves computed at the same time, each with a workspace and a gradient. */
typedef struct group {
    mha_trainer *t;
    const mhai_views *v;
    int64_t leaves, first;
    float mean;
    mhai_desk *desks;
    mhai_node *nodes;
    struct {
        mha_status status;
        char detail[512];
    } * ends;
} group;

static mha_status learn_one(const group *g, int64_t i)
{
    const int64_t B = g->v->input.tokens->shape[0];
    mhai_node *node = &g->nodes[i];
    leaf part;
    cut(g->v, &g->desks[i], mhai_tree_share(B, g->leaves, node->begin),
        mhai_tree_share(B, g->leaves, node->end), &g->mean, &part);
    return learn_leaf(g->t, &g->desks[i], &part, node->gradient, &node->loss);
}

/* Copy the error text, because it is thread-local. */
static void learn_item(void *argument, int64_t item, int worker)
{
    const group *g = argument;
    (void)worker;
    g->ends[item].status = learn_one(g, item);
    if (g->ends[item].status != MHA_OK)
        snprintf(g->ends[item].detail, sizeof g->ends[item].detail, "%s", mha_error_detail());
}

/* The first buffer that no sum uses. Buffer 0 is the trainer's own gradient. */
static float *unused(float *const *buffers, const mhai_nodes *own, const mhai_node *next,
                     int64_t count)
{
    for (;; buffers++) {
        bool used = false;
        for (int64_t i = 0; i < own->count; i++) used |= own->nodes[i].gradient == *buffers;
        for (int64_t i = 0; i < count; i++) used |= next[i].gradient == *buffers;
        if (!used) return *buffers;
    }
}

/* The number of leaves to compute at the same time. More than one helps only if the gradient stays
 * in cache, and only if the leaves occupy at least half of the threads. */
static int64_t abreast(const mha_trainer *t, int64_t count)
{
    const int64_t threads = mha_context_threads(t->context);
    if (count < 2 || threads < 2 || threads > 2 * count || !mhai_tree_small(t->size)) return 1;
    return mhai_min_i64(mhai_min_i64(threads, count), MOST_ABREAST);
}

static mha_status take(mha_trainer *t, int64_t count, float **buffers)
{
    buffers[0] = t->gradient;
    for (int64_t i = 1; i < count; i++) {
        MHA_TRY(mha_scratch_alloc(t->context, t->size, sizeof(float), &buffers[i]));
    }
    return MHA_OK;
}

/* Compute the next `count` leaves and add them to the sums. */
static mha_status learn_group(group *g, int64_t count, float *const *buffers, mhai_nodes *own)
{
    for (int64_t i = 0; i < count; i++)
        g->nodes[i] = (mhai_node){.begin = g->first + i,
                                  .end = g->first + i + 1,
                                  .gradient = unused(buffers, own, g->nodes, i)};
    if (count == 1) MHA_TRY(learn_one(g, 0));
    if (count > 1) mha_parallel_for(g->t->context, count, learn_item, g);
    for (int64_t i = 0; i < count; i++) {
        if (count > 1 && g->ends[i].status != MHA_OK)
            return mha_fail(g->ends[i].status, "%s", g->ends[i].detail);
        mhai_tree_add(g->t->context, own, g->nodes[i], g->t->size);
    }
    g->first += count;
    return MHA_OK;
}

mha_status mhai_leaves_learn(mha_trainer *t, const mhai_views *v, mhai_nodes *own)
{
    const int64_t *shape = v->input.tokens->shape, L = own->leaves;
    const int64_t ranks = t->transport.size, first = mhai_tree_share(L, ranks, t->transport.rank);
    const int64_t end = mhai_tree_share(L, ranks, t->transport.rank + 1);
    const int64_t wide = abreast(t, end - first), most = mhai_ceil_div(shape[0], L);
    float *buffers[MHAI_MOST_PARTS + MOST_ABREAST];
    mhai_node nodes[MOST_ABREAST];
    mhai_desk own_desk = {t->context, t->main.kept, t->encoder.kept,
                          t->logits,  t->memory,    t->memory_gradient};
    MHA_TRY(take(t, mhai_tree_depth(L, first, end) + wide - 1, buffers));
    if (wide > 1)
        MHA_TRY(helpers_make(t, wide, most * shape[1],
                             v->batch.source ? most * v->source.tokens->shape[1] : 0));
    group g = {.t = t,
               .v = v,
               .leaves = L,
               .first = first,
               .mean = v->counted > 0 ? 1.0f / (float)v->counted : 0,
               .desks = wide > 1 ? t->helpers.desks : &own_desk,
               .nodes = nodes};
    MHA_TRY(mha_scratch_alloc(t->context, wide, sizeof *g.ends, &g.ends));
    while (g.first < end) MHA_TRY(learn_group(&g, mhai_min_i64(wide, end - g.first), buffers, own));
    return MHA_OK;
}
