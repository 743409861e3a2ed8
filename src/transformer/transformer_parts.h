/* Inside a transformer: where its parameters lie, and what a forward call keeps of a batch. */
#ifndef MHAI_TRANSFORMER_PARTS_H
#define MHAI_TRANSFORMER_PARTS_H

#include <multihead/cache.h>
#include <multihead/component.h>
#include <multihead/transformer.h>

#include <pthread.h>

enum { MHAI_NOWHERE = -1 };

/* Offsets into the flat array; MHAI_NOWHERE: there is none. */
typedef struct mhai_place_norm {
    int64_t weight, bias;
} mhai_place_norm;

typedef struct mhai_place_linear {
    int64_t weight, bias;
    int64_t inputs, outputs;
    mha_linear *packed;
} mhai_place_linear;

/* Self-attention projects q, k and v at once: their weights lie one after the other. */
typedef struct mhai_place_attention {
    mhai_place_norm norm;
    mhai_place_linear in;     /* q, k, v; in cross-attention q alone */
    mhai_place_linear memory; /* k, v of the memory; packed NULL in self-attention */
    mhai_place_linear out;
} mhai_place_attention;

typedef struct mhai_place_layer {
    mhai_place_attention self, cross; /* cross.in.packed NULL: none */
    mhai_place_norm ff_norm;
    mhai_place_linear up, down; /* up: gate and up together in SwiGLU; packed NULL: none */
} mhai_place_layer;

/* A row for each position: [max_length,E] sinusoidal, or [max_length,D] cosines and sines. A table
 * of a million positions is no price for a short text: rows are made when activations or a decoder
 * are, which know how many they may need, and are never written again. */
typedef struct mhai_encoding {
    pthread_mutex_t growing;
    int64_t rows; /* made so far; guarded by growing */
    float values[];
} mhai_encoding;

struct mha_transformer {
    mha_allocator allocator;
    mha_transformer_desc desc; /* every default filled in */
    mha_parameter *parameters;
    int64_t parameter_count;
    float *data;
    int64_t size;
    int64_t tokens, positions, types; /* offsets of the tables */
    mhai_place_norm embed_norm, norm;
    mhai_place_layer *layers;
    mhai_place_linear output; /* weight is that of the tokens if tied */
    int64_t *head_lists;      /* [2][L] what desc.layer_heads and layer_kv_heads are, or NULL */
    mhai_encoding *encoding;  /* NULL: positions need none */
    size_t encoding_bytes;
};

static inline bool mhai_transformer_has(const mha_transformer *t, uint32_t flag)
{
    return t->desc.flags & flag;
}

/* Norms in front of functions, not after them, and one at the end. */
static inline bool mhai_transformer_pre_norm(const mha_transformer *t)
{
    return t->desc.norm != MHA_NORM_NONE && !mhai_transformer_has(t, MHA_TRANSFORMER_POST_NORM);
}

/* ---- what a forward call keeps -----------------------------------------------------------------
 */

/* A function between residual connections. x is the stream before it; in what it reads, which is x
 * itself without pre-norm; z the sum after it, before a post-norm. */
typedef struct mhai_kept_step {
    float *x, *in, *z; /* [tokens,E]; z NULL unless post-norm, and in passing */
} mhai_kept_step;

typedef struct mhai_kept_attention {
    mhai_kept_step step;
    float *qkv;    /* [tokens, (H + 2 Hk) D]; in cross-attention [tokens, H D] */
    float *memory; /* cross-attention: [memory rows, 2 Hk D] */
    float *heads;  /* [tokens, H D] */
    float *lse;    /* [B,H,T] */
} mhai_kept_attention;

typedef struct mhai_kept_layer {
    mhai_kept_attention self, cross;
    mhai_kept_step ff;
    float *up, *act; /* [tokens, F or 2 F], [tokens, F]; up NULL in passing unless SwiGLU */
} mhai_kept_layer;

struct mha_activations {
    mha_allocator allocator;
    const mha_transformer *transformer;
    int64_t max_tokens, max_memory;
    int64_t B, T, S; /* the batch that is kept; T = -1: none */
    bool passing;    /* layers take turns in two pieces of memory: for a call, not for a gradient */
    int64_t layer;   /* the last one done */
    float *memory;   /* all floats below */
    size_t bytes;
    int32_t *ids, *positions, *types; /* [tokens] */
    float *embedded;                  /* before the norm on embeddings; else NULL */
    mhai_kept_layer *layers;
    float *x, *last; /* the stream after the last layer, and with its norm */
    float *gradient; /* [tokens,E] working memory of the backward call */
};

/* Fill *a for one call, in the context's scratch. */
MHA_NODISCARD mha_status mhai_activations_pass(mha_context *context, const mha_transformer *t,
                                               int64_t tokens, int64_t memory_rows,
                                               mha_activations *a);

/* [rows, cols] of contiguous memory, and of a part of wider rows. */
mha_tensor mhai_transformer_rows(const float *data, int64_t rows, int64_t cols, int64_t stride);
mha_tensor mhai_transformer_vector(const float *data, int64_t count);

/* The numbers of heads of a layer's attention. */
typedef struct mhai_heads {
    int64_t q, kv;
} mhai_heads;

static inline mhai_heads mhai_transformer_heads_of(const mha_transformer_desc *d, int64_t layer,
                                                   bool cross)
{
    if (cross || !d->layer_heads) return (mhai_heads){d->num_heads, d->kv_heads};
    return (mhai_heads){d->layer_heads[layer], d->layer_kv_heads[layer]};
}

/* q [B,H,T,D], k and v [B,Hk,S,D] of what an attention step keeps, or of gradients laid out alike.
 */
typedef struct mhai_qkv {
    mha_tensor q, k, v;
} mhai_qkv;
mhai_qkv mhai_transformer_qkv(const mha_activations *a, mhai_heads heads, bool cross,
                              const float *qkv, const float *memory);
mha_tensor mhai_transformer_heads(const mha_activations *a, mhai_heads heads, const float *data);
mha_tensor mhai_transformer_lse(const mha_activations *a, mhai_heads heads, const float *lse);

/* sum = x + y, which may be x or y. */
void mhai_transformer_add(mha_context *context, int64_t count, const float *x, const float *y,
                          float *sum);

/* Where step 0, 1 or 2 (an mha_layer_part) of a layer writes the stream: where the one after it
 * reads, so that the order of steps is that of memory. */
float *mhai_transformer_next(const mha_activations *a, int64_t layer, int step);

/* The attention of one layer of a call. Holds what desc points to. */
typedef struct mhai_call_attention {
    mha_attention_desc desc;
    mha_tensor gates;
} mhai_call_attention;
void mhai_transformer_attention(const mha_transformer *t, const mha_transformer_input *input,
                                int64_t layer, bool cross, mhai_call_attention *made);

/* Have rows of the encoding for positions below count, or as many as there are. */
MHA_NODISCARD mha_status mhai_transformer_encode(mha_context *context, const mha_transformer *t,
                                                 int64_t count);

/* Turn q and k of tokens that begin at position start, or back. */
MHA_NODISCARD mha_status mhai_transformer_turn(mha_context *context, const mha_transformer *t,
                                               const mhai_qkv *qkv, int64_t start, bool back);

/* A forward call whose tokens stand behind what caches hold: `start` positions of every sequence,
 * one cache for each layer. The caches are longer afterwards, some of them also after an error. */
MHA_NODISCARD mha_status mhai_transformer_step(mha_context *context, const mha_transformer *t,
                                               mha_activations *a, const mha_tensor *tokens,
                                               mha_kv_cache *const *caches, int64_t start,
                                               const mha_tensor *output);

/* Check a call's input against transformer and activations. */
MHA_NODISCARD mha_status mhai_transformer_check(const char *function, const mha_transformer *t,
                                                const mha_transformer_input *given,
                                                mha_transformer_input *input);

/* Number of floats of the feed-forward layer's first product: F or 2 F. */
static inline int64_t mhai_transformer_up(const mha_transformer *t)
{
    return t->desc.feed_forward == MHA_FEED_FORWARD_SWIGLU ? 2 * t->desc.ff_dim : t->desc.ff_dim;
}

#endif
