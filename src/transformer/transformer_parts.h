/* A transformer's internals: offsets of parameters, and the activations that a forward call
 * keeps. */
#ifndef MHAI_TRANSFORMER_PARTS_H
#define MHAI_TRANSFORMER_PARTS_H

#include "attend/attend.h"

#include <multihead/cache.h>
#include <multihead/component.h>
#include <multihead/recurrent.h>
#include <multihead/transformer.h>

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { MHAI_NOWHERE = -1 };

/* Offsets into the flat array; MHAI_NOWHERE: absent. */
typedef struct mhai_place_norm {
    int64_t weight, bias;
    int64_t width;
} mhai_place_norm;

/* norm: before a function, or after its sum (post-norm). post: on its output (branch norm). */
typedef struct mhai_place_step {
    mhai_place_norm norm, post;
} mhai_place_step;

typedef struct mhai_place_linear {
    int64_t weight, bias;
    int64_t inputs, outputs;
    mha_linear *packed;
} mhai_place_linear;

/* Self-attention projects q, k and v at once: their weights are contiguous. */
typedef struct mhai_place_attention {
    mhai_place_step step;
    mhai_attend attend; /* the layer's settings; points to the tensors below */
    int64_t q_norm, k_norm, sinks, slopes, t5, distances;
    mha_tensor sink_logits, alibi_slopes, t5_table, cosines, sines;
    mhai_place_linear in;     /* q, k, v and gates; in cross-attention only q */
    mhai_place_linear memory; /* k, v of the memory; packed NULL in self-attention */
    mhai_place_linear out;
    /* Of latent attention: `in` is W_q or W_qa, `down` W_kva; queries.packed NULL: no W_qb. Of Kimi
     * delta attention: `down` is W_ga and W_fa, `gates` W_gb, `decays` W_fb */
    mhai_place_linear down, queries, keys, values, gates, decays;
    mhai_place_linear positions; /* W_pk and W_pq; outputs 0: none */
    int64_t latent_norm, query_norm;
    int64_t conv;                 /* of a mixer other than attention */
    int64_t decay, shift, o_norm; /* of a recurrent mixer */
    int64_t conv_bias, skip;      /* of a state space */
} mhai_place_attention;

/* A layer's input beside the stream. Absent: out.outputs is 0. */
typedef struct mhai_place_input {
    mhai_place_step step; /* only post */
    int64_t table;
    mhai_place_linear project, gate, out;
    mhai_place_norm norm; /* of the projection */
} mhai_place_input;

typedef struct mhai_place_layer {
    mhai_place_attention self, cross; /* cross.in.packed NULL: none */
    mhai_place_input input;
    int64_t scale; /* of the stream after the layer; MHAI_NOWHERE: none */
    mhai_place_step ff;
    mhai_place_linear up, down; /* up: gate and up together if gated; packed NULL: none. With
                                 * experts, the layers of the shared expert */
    mhai_place_linear router;   /* outputs 0: no experts; its last output may be the shared gate */
    int64_t score_bias;
    int64_t experts;       /* the first parameter of the first expert: each has gate, up and down */
    int64_t expert_biases; /* likewise, the offset of biases [2 F + E] of each */
} mhai_place_layer;

/* One row per position: [max_length,E] sinusoidal, or [max_length,rotary_dim] cosines and sines. If
 * rotations depend on the length of a sequence, max_length rows for longer sequences follow.
 * Layers with the same rotation share a table. Computing all rows of a long table would be too
 * expensive for a short text. Activations and decoders compute the rows that they may need when
 * they are created; rows never change afterwards. */
typedef struct mhai_encoding {
    struct mhai_encoding *next;
    size_t bytes;
    int64_t width;
    mha_layer_desc rotation; /* only its rotation fields are used */
    const float *factors;    /* [2,width/2] with MHA_ROPE_SCALING_LONG */
    pthread_mutex_t growing;
    int64_t rows; /* rows computed so far; guarded by growing */
    float values[];
} mhai_encoding;

struct mha_transformer {
    mha_allocator allocator;
    mha_transformer_desc desc; /* every default filled in */
    mha_parameter *parameters;
    int64_t parameter_count;
    float *data; /* all parameters; NULL with a source */
    int64_t size;
    mha_transformer_source source; /* read NULL: none */
    atomic_int *owners;            /* with a source: the number of owners */
    float *held;                   /* with a source: the parameters held in memory, in order */
    int64_t held_count;
    int64_t *held_at;                 /* [parameters] index in `held`; MHAI_NOWHERE: the parameter
                                       * is read from the source */
    int64_t most_inputs;              /* of a linear layer whose weight is read from the source;
                                         0: none */
    int64_t tokens, positions, types; /* offsets of the tables */
    int64_t relative;                 /* the table of embeddings of distances */
    mhai_place_norm embed_norm, norm, relative_norm;
    mhai_place_layer *layers;
    mhai_place_linear project;   /* of embeddings of another width; outputs 0: none */
    mhai_place_linear features;  /* outputs 0: tokens have none */
    mhai_place_linear output;    /* if tied, weight is the token embedding */
    int64_t *head_lists;         /* [2][L] the target of desc.layer_heads and layer_kv_heads, or
                                    NULL */
    mha_layer_desc *layer_descs; /* [L] the target of desc.layers, or NULL */
    mhai_encoding *encodings;    /* a list; NULL: positions need none */
    float *rope_factors;         /* [2][pairs] the target of desc.rope_factors, or NULL */
    int64_t pairs;               /* of a rotation with MHA_ROPE_SCALING_LONG; 0: no layer has it */
    int64_t border;              /* longer sequences have the other rotation */
    int32_t *ranks; /* [L + 1] the rank of each layer, and of the output; NULL: this one */
    uint64_t hash;  /* with ranks: hash of the data that all ranks must share */
};

/* Add an owner to a transformer with a source; NULL if it has none. Every owner calls destroy. */
mha_transformer *mhai_transformer_share(const mha_transformer *t);

/* The parameter that contains the element at an offset of the flat array. */
int64_t mhai_transformer_parameter_at(const mha_transformer *t, int64_t offset);

/* The elements at an offset of the flat array. Their parameter must be held in memory. */
float *mhai_transformer_numbers(const mha_transformer *t, int64_t offset);

/* The matrix at an offset: in the flat array, or read into the context's scratch. */
MHA_NODISCARD mha_status mhai_transformer_matrix(mha_context *context, const mha_transformer *t,
                                                 int64_t offset, int64_t rows, int64_t cols,
                                                 mha_tensor *matrix);

/* Read part of the rows of `cols` elements that begin at an offset; they may span contiguous
 * matrices. */
void mhai_transformer_read_rows(const mha_transformer *t, int64_t offset, int64_t cols, int64_t row,
                                int64_t rows, int64_t column, int64_t columns, float *to);

/* Read a part of the matrix that begins with parameter number `at`. Implements mhai_rows.read
 * (matmul.h). */
void mhai_transformer_read_matrix(const void *user, int64_t at, int64_t row, int64_t rows,
                                  int64_t column, int64_t columns, float *to);

const void *mhai_transformer_find_rows(const void *user, int64_t at, int64_t row, int64_t rows,
                                       mha_dtype *type, int64_t *stride);

bool mhai_transformer_read_coded(const void *user, int64_t at, int64_t row, int64_t *rows,
                                 int64_t column, int64_t columns, mha_coded *to);

static inline bool mhai_transformer_has(const mha_transformer *t, uint32_t flag)
{
    return t->desc.flags & flag;
}

/* Whether a norm follows the last layer. */
static inline bool mhai_transformer_pre_norm(const mha_transformer *t)
{
    return t->desc.norm != MHA_NORM_NONE && !mhai_transformer_has(t, MHA_TRANSFORMER_POST_NORM);
}

/* Whether a step reads the normalised stream, and whether a norm follows its function. */
static inline bool mhai_step_norms_input(const mha_transformer *t, const mhai_place_step *place)
{
    return place->norm.weight >= 0 && !mhai_transformer_has(t, MHA_TRANSFORMER_POST_NORM);
}
static inline bool mhai_step_norms_branch(const mhai_place_step *place)
{
    return place->post.weight >= 0;
}

/* Whether a norm follows the function of a step of any layer. */
static inline bool mhai_transformer_norms_branches(const mha_transformer_desc *d)
{
    return mha_transformer_norms_follow(d) && !(d->flags & MHA_TRANSFORMER_POST_NORM);
}

/* Offset of the table of learned positions. */
static inline int64_t mhai_position_rows(const mha_transformer_desc *d)
{
    return d->max_length + (d->flags & MHA_TRANSFORMER_PADDING ? 1 : 0);
}

/* ---- activations ----------------------------------------------------------------------------- */

/* A residual branch, attention or feed-forward; all arrays are [tokens,E].
 * x: the stream before it.
 * from: its input before the norm; in a parallel block, the input of the block.
 * in: its input; without pre-norm, the same as from. With MHA_TRANSFORMER_ONE_NORM, the
 * feed-forward layer shares that of attention, unless the layer has no heads.
 * z: the input of a norm after it: the sum before a post-norm, the function's output before a
 * branch norm. NULL without such a norm, or if the call keeps no activations. */
typedef struct mhai_kept_step {
    float *x, *from, *in, *z;
} mhai_kept_step;

typedef struct mhai_kept_attention {
    mhai_kept_step step;
    /* [tokens, mhai_mix.width]; in cross-attention [tokens, H D]. Persists while later layers run if
     * they use its keys and values */
    float *qkv;
    float *memory; /* cross-attention: [memory rows, 2 Hk D] */
    float *heads;  /* [tokens, mhai_mix.out] */
    /* Of latent attention: W_kva x [tokens, r + s] and the norm of its c [tokens, r]; W_qa x and its
     * norm, both [tokens, query_latent_dim]. Of Kimi delta attention: W_ga x and W_fa x [tokens, 2 r] */
    float *down, *latent, *query_down, *query_latent;
    float *lse;      /* [B,H,T]; NULL in mixers other than attention */
    float *relative; /* [B,H,T,T] the content-position terms; NULL: none */
    mha_tensor bias; /* a view of them: mhai_relative_view() */
} mhai_kept_attention;

/* The routing of a layer's tokens, and memory for the tokens of one expert, or of the shared
 * expert. */
typedef struct mhai_kept_experts {
    float *scores;   /* [tokens, mhai_place_layer.router.outputs] */
    float *weights;  /* [tokens, used] */
    int32_t *chosen; /* [tokens, used], ascending */
    int64_t *rows;   /* [tokens] indices in `chosen` of one expert's tokens */
    float *in, *out; /* [tokens, E] of these tokens */
} mhai_kept_experts;

typedef struct mhai_kept_input {
    mhai_kept_step step;
    float *projected; /* [tokens, P] W_p x0 / sqrt(E) */
    float *up, *act;  /* [tokens, 2 P] W_g x and p, [tokens, P] */
} mhai_kept_input;

typedef struct mhai_kept_layer {
    mhai_kept_attention self, cross;
    mhai_kept_input input;
    mhai_kept_step ff;
    float *up, *act; /* [tokens, F or 2 F], [tokens, F]; up: NULL if passing and not gated */
    mhai_kept_experts experts;
} mhai_kept_layer;

struct mha_activations {
    mha_allocator allocator;
    const mha_transformer *transformer;
    int64_t max_tokens, max_memory;
    int64_t B, T, S; /* the batch of the activations; T = -1: none */
    bool passing;    /* layers alternate between two pieces of memory: for a call without
                        gradient */
    int64_t first;   /* the first layer that the call ran */
    bool given;      /* the caller gave the stream before that layer */
    int64_t layer;   /* the last layer computed */
    float *memory;   /* holds all floats below */
    size_t bytes;
    int32_t *ids, *positions, *types; /* [tokens] */
    int64_t *starts;                  /* [B] the row of position 0 in encodings; NULL: 0 */
    float *embedded; /* the sum before an embedding norm or a projection; otherwise NULL */
    float *narrow;   /* the projection's input, if it is not `embedded`; otherwise NULL */
    float *base;     /* the stream before the first layer, if a layer reads it; otherwise NULL */
    mhai_kept_layer *layers;
    float *x, *last; /* the stream after the last layer, and after the final norm */
    float *gradient; /* [tokens,E] working memory of the backward call */
};

/* The address of a layer's activations, which are contiguous. */
float *mhai_activations_piece(const mha_activations *a, int64_t layer, int64_t *floats);

/* Fill *a for one call, in the context's scratch. */
MHA_NODISCARD mha_status mhai_activations_pass(mha_context *context, const mha_transformer *t,
                                               int64_t tokens, int64_t memory_rows,
                                               mha_activations *a);

/* mha_activations_create() with checked arguments. */
MHA_NODISCARD mha_status mhai_activations_create(mha_context *context, const mha_transformer *t,
                                                 int64_t max_tokens, int64_t max_memory,
                                                 bool passing, mha_activations **activations);

/* A view [rows, cols] of contiguous memory, or of a part of wider rows. */
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

/* The heads of a layer's mixer: numbers and sizes of heads of q, k and v, which are consecutive in
 * rows of `width` floats (in a state space in the order v, k, q). After them, a row has gates [out]
 * and, in a recurrent mixer, strengths and decays [v]. Rows of a short convolution are b, c and
 * x. */
typedef struct mhai_mix {
    mha_mixer mixer;
    bool gated;
    int64_t q, k, v, D, Dv;
    int64_t at_q, at_k, at_v;
    int64_t out;                      /* the width of W_o's input */
    int64_t gates, strengths, decays; /* their places in a row */
    int64_t each;                     /* decays of a head: 1, or D */
    int64_t rank;                     /* of the gates of Kimi delta attention; 0: another mixer */
    int64_t width;
    int64_t first, channels; /* of its convolution, in a row */
    bool borrows;            /* rows have no k and v: the layer uses those of an earlier one */
} mhai_mix;

/* The layer whose keys and values a layer uses. */
static inline int64_t mhai_transformer_lender(const mha_transformer_desc *d, int64_t layer)
{
    return d->layers ? layer - d->layers[layer].kv_back : layer;
}

/* Whether a later layer uses the keys and values of this one. */
static inline bool mhai_transformer_lends(const mha_transformer_desc *d, int64_t layer)
{
    for (int64_t i = layer + 1; d->layers && i < d->num_layers; i++)
        if (i - d->layers[i].kv_back == layer) return true;
    return false;
}

/* The last layer, at most `layer`, from which a call can begin without the keys and values of earlier
 * layers. */
static inline int64_t mhai_transformer_start_layer(const mha_transformer_desc *d, int64_t layer)
{
    for (int64_t i = d->num_layers - 1; d->layers && i >= layer; i--)
        if (i - d->layers[i].kv_back < layer) layer = i - d->layers[i].kv_back;
    return layer;
}

/* Whether a layer has an input beside the stream; layer -1: any layer. */
static inline bool mhai_transformer_has_input(const mha_transformer_desc *d, int64_t layer)
{
    for (int64_t i = 0; layer < 0 && d->layers && i < d->num_layers; i++)
        if (d->layers[i].input_dim > 0) return true;
    return layer >= 0 && d->layers && d->layers[layer].input_dim > 0;
}

/* F of a layer. */
static inline int64_t mhai_transformer_ff(const mha_transformer_desc *d, int64_t layer)
{
    return d->layers && d->layers[layer].ff_dim > 0 ? d->layers[layer].ff_dim : d->ff_dim;
}

/* A layer with latent attention and heads; NULL: it is another. */
static inline const mha_layer_desc *mhai_transformer_latent(const mha_transformer_desc *d,
                                                            int64_t layer)
{
    const mha_layer_desc *l = d->layers ? &d->layers[layer] : NULL;
    return l && l->latent_dim > 0 && mhai_transformer_heads_of(d, layer, false).q > 0 ? l : NULL;
}

/* The name of a mixer in parameter names. */
static inline const char *mhai_mixer_name(mha_mixer mixer)
{
    static const char *const names[] = {"self_attn", "delta_net", "short_conv", "state_space"};
    return names[mixer];
}

static inline mhai_mix mhai_transformer_mix(const mha_transformer_desc *d, int64_t layer)
{
    const mhai_heads heads = mhai_transformer_heads_of(d, layer, false);
    const mha_layer_desc *l = d->layers ? &d->layers[layer] : NULL;
    mhai_mix mix = {
        .q = heads.q, .k = heads.kv, .v = heads.kv, .D = d->head_dim, .Dv = d->head_dim};
    if (l) {
        mix.mixer = l->mixer;
        mix.gated = l->flags & MHA_LAYER_OUTPUT_GATE;
        mix.borrows = l->kv_back > 0;
        if (l->head_dim > 0) mix.D = mix.Dv = l->head_dim;
        if (l->latent_dim > 0) mix.Dv = l->value_dim;
    }
    if (mix.mixer == MHA_MIXER_SHORT_CONVOLUTION) {
        mix.out = mix.channels = d->embed_dim;
        mix.first = 2 * d->embed_dim;
        mix.width = 3 * d->embed_dim;
        return mix;
    }
    if (mix.mixer) {
        mix.gated = true;
        mix.q = heads.kv;
        mix.v = heads.q;
        mix.D = l->key_dim;
        mix.Dv = l->value_dim;
        mix.rank = l->gate_rank;
        mix.each = mix.rank > 0 ? mix.D : 1;
    }
    mix.out = heads.q * mix.Dv;
    mix.gates = mix.channels = (mix.q + mix.k) * mix.D + mix.v * mix.Dv;
    mix.at_k = mix.q * mix.D;
    mix.at_v = mix.at_k + mix.k * mix.D;
    if (mix.borrows) mix.gates = mix.channels = mix.at_k;
    if (mix.mixer == MHA_MIXER_STATE_SPACE) {
        mix.at_v = 0;
        mix.at_k = mix.out;
        mix.at_q = mix.at_k + mix.k * mix.D;
    }
    /* in Kimi delta attention, `in` projects the strengths but neither gates nor decays, which follow */
    mix.strengths = mix.rank > 0 ? mix.channels : mix.gates + mix.out;
    if (mix.rank > 0) mix.gates += mix.v;
    mix.decays = mix.gates + mix.out + (mix.rank > 0 ? 0 : mix.v);
    mix.width = mix.mixer ? mix.decays + mix.v * mix.each : mix.gates + (mix.gated ? mix.out : 0);
    return mix;
}

/* The head of an element of W_V or W_O; 0 also for elements that belong to no head. */
static inline int64_t mhai_transformer_head_of(const mha_transformer_desc *d,
                                               const mha_parameter *p, int64_t element)
{
    const bool rows = strstr(p->name, ".v_proj.weight"), cols = strstr(p->name, ".o_proj.weight");
    if (!rows && !cols) return 0;
    const mhai_mix mix = mhai_transformer_mix(d, p->layer);
    if (mix.v == 0) return 0;
    return (rows ? element / p->shape[1] : element % p->shape[1]) / mix.Dv;
}

/* Reject a layer that a function cannot compute: a mixer other than attention, or a gate. */
MHA_NODISCARD mha_status mhai_transformer_plain_mixers(const char *function,
                                                       const mha_transformer *t);
/* Report a layer for which mha_transformer_phrase() has a phrase, and what follows from it. */
MHA_NODISCARD mha_status mhai_transformer_reject(const char *function, const mha_transformer *t,
                                                 const char *(*of)(const mha_layer_desc *layer),
                                                 const char *so);
/* The same for layers whose heads are not weights times values alone: those above, but not latent
 * attention. mhai_layer_beyond_values() gives the phrase. */
const char *mhai_layer_beyond_values(const mha_layer_desc *layer);
MHA_NODISCARD mha_status mhai_transformer_weighs_values(const char *function,
                                                        const mha_transformer *t);
/* Reject layers without gradients. */
MHA_NODISCARD mha_status mhai_transformer_trains(const char *function, const mha_transformer *t);

/* q [B,H,T,D], k and v [B,Hk,S,D] of the activations of an attention step, or of gradients with
 * the same layout. */
typedef struct mhai_qkv {
    mha_tensor q, k, v;
} mhai_qkv;
mhai_qkv mhai_transformer_qkv(const mha_activations *a, int64_t layer, bool cross, const float *qkv,
                              const float *memory);
mha_tensor mhai_transformer_heads(const mha_activations *a, int64_t layer, bool cross,
                                  const float *data);
/* The other inputs [B,H,T] of a recurrent mixer, in rows of its projection. */
void mhai_delta_gates(const mha_activations *a, int64_t layer, float *rows, mha_tensor *log_decay,
                      mha_tensor *strength);
/* The other inputs of a recurrent mixer's recurrence: log_decay, strength and skip of a view. */
void mhai_recurrent_view(const mha_activations *a, int64_t layer, mha_layer_view *view);
/* The recurrence of this view. It points to tensors of *view. */
mha_recurrent_desc mhai_recurrent_of(const mha_layer_view *view);
mha_tensor mhai_transformer_lse(const mha_activations *a, mhai_heads heads, const float *lse);

/* sum = x + scale y; sum may be x or y. */
void mhai_transformer_add(mha_context *context, int64_t count, const float *x, float scale,
                          const float *y, float *sum);

/* The stream after step 0, 1 or 2 (an mha_layer_part) of a layer, which is the input of the next
 * step, or after all steps. */
enum { MHAI_LAYER_END = 3 };
float *mhai_transformer_next(const mha_activations *a, int64_t layer, int step);

/* The attention of one layer of a call, from its activations. It holds the tensors to which desc
 * and outputs point. */
typedef struct mhai_call_attention {
    mhai_attend attend;
    mha_tensor gates, lse, probabilities;
} mhai_call_attention;
void mhai_transformer_attention(mha_context *context, const mha_activations *a,
                                const mha_transformer_input *input, int64_t layer, bool cross,
                                mhai_call_attention *made);

/* transformer_layers.c: read d->layers, fill in defaults, and report whether all settings are
 * defaults; copy the factors of rotations; make the attention of each layer after its parameters
 * are placed; compute rows of the encodings for positions below count, or for all. */
MHA_NODISCARD mha_status mhai_transformer_read_layers(const mha_transformer_desc *d,
                                                      mha_layer_desc *own, bool *plain);
MHA_NODISCARD mha_status mhai_transformer_copy_factors(mha_transformer *t);
MHA_NODISCARD mha_status mhai_transformer_make_layers(mha_context *context, mha_transformer *t);
/* Rows of positions [begin, begin + rows) of a rotary encoding, cosines and then sines in each; also
 * beyond max_length. longer: those of long sequences. */
MHA_NODISCARD mha_status mhai_transformer_turns(mha_context *context, const mhai_encoding *e,
                                                bool longer, int64_t begin, int64_t rows,
                                                float *first);
/* The row of position 0 in encodings, for a sequence of this many tokens. */
static inline int64_t mhai_transformer_start(const mha_transformer *t, int64_t length)
{
    return t->pairs > 0 && length > t->border ? t->desc.max_length : 0;
}

MHA_NODISCARD mha_status mhai_transformer_encode(mha_context *context, const mha_transformer *t,
                                                 int64_t count);
void mhai_transformer_free_encodings(mha_transformer *t);

/* transformer_logits.c: logits [rows,V] of rows of the stream, bit-identical to those of a
 * forward call. */
MHA_NODISCARD mha_status mhai_transformer_logits(mha_context *context, const mha_transformer *t,
                                                 const mha_tensor *hidden,
                                                 const mha_tensor *logits);

/* transformer_patch.c: check the replacements of heads and of the first layers, and that no
 * output overlaps them; apply the patches of a layer to its output, or to its queries, keys and
 * values. */
MHA_NODISCARD mha_status mhai_transformer_check_patches(const mha_transformer *t,
                                                        const mha_transformer_input *input);
MHA_NODISCARD mha_status mhai_transformer_patches_apart(const mha_transformer_input *input,
                                                        const char *name,
                                                        const mha_tensor *written);
void mhai_transformer_patch(const mha_activations *a, const mha_transformer_input *input,
                            int64_t layer, bool output);

/* A layer's state for a sequence, and the number of tokens that its convolution has processed. */
typedef struct mhai_delta_state {
    mha_recurrent_state *state; /* NULL: of a short convolution, or none */
    float *inputs;              /* [K-1, channels]; NULL: the layer has no state */
    int64_t floats, length;
} mhai_delta_state;

/* A copy of all layers' states of a sequence of this length. */
typedef struct mhai_delta_copy {
    int64_t length, owners;   /* sequences that list it */
    mhai_delta_state *layers; /* [L] */
} mhai_delta_copy;

/* transformer_states.c: the states of a decoder's sequences. */
typedef struct mhai_states {
    mha_allocator allocator;
    const mha_transformer *transformer;
    int64_t batch, interval, most; /* B; tokens between copies; copies of a sequence */
    mhai_delta_state *now;         /* [L][B]; NULL: no layer has a state */
    mhai_delta_copy **copies;      /* [B][most] in ascending order of their lengths */
    int64_t *counts;               /* [B] */
} mhai_states;

/* The first layer with a state; -1: there is none. */
int64_t mhai_states_layer(const mha_transformer *t);
/* Bytes of all states and copies. */
int64_t mhai_states_bytes(const mha_transformer *t, const mha_decoder_desc *d);
MHA_NODISCARD mha_status mhai_states_make(mha_context *context, const mha_transformer *t,
                                          const mha_decoder_desc *desc, mhai_states *s);
void mhai_states_free(mhai_states *s);

/* Before a step of `count` tokens: allocate the copies that the step fills. If the step fails, discard
 * those beyond `length`. */
MHA_NODISCARD mha_status mhai_states_prepare(mha_context *context, mhai_states *s, int64_t b,
                                             int64_t length, int64_t count);
/* Copy the states of sequence b, which has `length` tokens. */
MHA_NODISCARD mha_status mhai_states_keep(mha_context *context, mhai_states *s, int64_t b,
                                          int64_t length);
/* Copy the inputs of the convolution, and the length. */
void mhai_delta_keep_inputs(const mhai_delta_state *from, mhai_delta_state *to);
/* The first copy beyond this length, and the last copy up to it; NULL: none. */
const mhai_delta_copy *mhai_states_after(const mhai_states *s, int64_t b, int64_t length);
const mhai_delta_copy *mhai_states_until(const mhai_states *s, int64_t b, int64_t length);
/* Discard the copies beyond this length. */
void mhai_states_discard(mhai_states *s, int64_t b, int64_t length);
/* Whether a layer has processed tokens beyond this length, in a step that failed. */
bool mhai_states_ahead(const mhai_states *s, int64_t b, int64_t length);
/* Make the states and copies of `to` those of `from` at this length: 0, that of a copy, or, with
 * `current`, the present one. */
MHA_NODISCARD mha_status mhai_states_restore(mhai_states *s, int64_t from, int64_t to,
                                             int64_t length, bool current);

/* The state of a decoder's step, in addition to the state of a forward call. */
typedef struct mhai_step {
    mha_kv_cache *const *caches;    /* [L] of self-attention */
    mha_kv_cache *const *memory;    /* [L] of cross-attention, already filled */
    const int64_t *firsts, *counts; /* [B] rows of each sequence */
    const int64_t *offsets;         /* [B] the position of row 0 */
    mha_tensor places;              /* i64 [B,n] positions; for padding, also rows of the tables */
    int64_t window, sink_keys;      /* of the decoder */
    const mhai_attend_sinks *sinks; /* [L]; NULL: sinks do not move */
    bool divides; /* one sequence, whose rows may be divided into several bit-identical steps */
    const mhai_states *states;
    bool latent; /* caches of latent attention hold latents */
} mhai_step;

/* A forward call whose tokens follow those in the caches. Their rows are appended to the caches;
 * after an error, some rows may have been appended. status: whether this rank can take part. */
MHA_NODISCARD mha_status mhai_transformer_step(mha_context *context, const mha_transformer *t,
                                               mha_activations *a, const mha_tensor *tokens,
                                               const mhai_step *step, const mha_tensor *output,
                                               mha_status status);

/* transformer_spread.c: layers divided among ranks. For a transformer on one rank, each function is
 * a no-op and returns the status that it receives. */

/* Assign layers to ranks. */
MHA_NODISCARD mha_status mhai_spread_make(mha_transformer *t);

/* After the parameters are read: compute the hash that ranks compare. */
void mhai_spread_hash(mha_transformer *t);

/* Whether this rank computes a layer; L: the output. */
static inline bool mhai_spread_mine(const mha_transformer *t, int64_t layer)
{
    return !t->ranks || t->ranks[layer] == t->source.transport->rank;
}

/* Agree on whether all ranks can continue. */
MHA_NODISCARD mha_status mhai_spread_agree(const mha_transformer *t, mha_status status);

/* Agree on the status, and check that all ranks have the same transformer and bytes. */
MHA_NODISCARD mha_status mhai_spread_same(const mha_transformer *t, const char *what,
                                          const void *bytes, size_t count, mha_status status);

/* Broadcast the elements of rank `root`. */
MHA_NODISCARD mha_status mhai_spread_tensor(const mha_transformer *t, int32_t root,
                                            const mha_tensor *tensor);

/* Scratch bytes of a linear layer for this many input rows. */
size_t mhai_transformer_product_bytes(const mha_context *context, const mha_transformer *t,
                                      int64_t rows);

/* Apply a decoder's window (0: none) to a layer's attention, unless the layer's own is narrower. */
void mhai_transformer_narrow(int64_t window, int64_t sink_keys, mha_attention_desc *desc);

/* Project checked memory [B,S,memory_dim] to keys and values of one layer's cross-attention: views
 * of rows [B S, 2 Hk D]. */
MHA_NODISCARD mha_status mhai_transformer_project_memory(mha_context *context,
                                                         const mha_transformer *t, int64_t layer,
                                                         const mha_tensor *memory, float *rows,
                                                         mha_tensor *k, mha_tensor *v);
MHA_NODISCARD mha_status mhai_transformer_check_memory(const mha_transformer *t, int64_t batch,
                                                       const mha_tensor *memory,
                                                       const int64_t *lengths);

/* Check a call's input against the transformer. */
MHA_NODISCARD mha_status mhai_transformer_check(const char *function, const mha_transformer *t,
                                                const mha_transformer_input *given,
                                                mha_transformer_input *input);

static inline bool mhai_transformer_gated(const mha_transformer *t)
{
    return mha_feed_forward_gated(t->desc.feed_forward);
}

/* Activations of feed-forward layers; SwiGLU is separate. */
static inline mha_activation mhai_transformer_activation(const mha_transformer *t)
{
    switch (t->desc.feed_forward) {
    case MHA_FEED_FORWARD_RELU: return MHA_ACTIVATION_RELU;
    case MHA_FEED_FORWARD_RELU2: return MHA_ACTIVATION_RELU2;
    case MHA_FEED_FORWARD_QUICK_GELU: return MHA_ACTIVATION_QUICK_GELU;
    case MHA_FEED_FORWARD_SILU: return MHA_ACTIVATION_SILU;
    case MHA_FEED_FORWARD_GELU_TANH:
    case MHA_FEED_FORWARD_GEGLU_TANH: return MHA_ACTIVATION_GELU_TANH;
    default: return MHA_ACTIVATION_GELU;
    }
}

/* The features of a call's input, [B T, feature_dim]. */
static inline mha_tensor mhai_transformer_features(const mha_transformer_input *input)
{
    const mha_tensor *x = input->features;
    return mhai_transformer_rows(x->data, x->shape[0] * x->shape[1], x->shape[2], x->stride[1]);
}

/* Number of floats of a feed-forward layer's first product: F or 2 F. */
static inline int64_t mhai_transformer_up(const mha_transformer *t, int64_t layer)
{
    return (mhai_transformer_gated(t) ? 2 : 1) * mhai_transformer_ff(&t->desc, layer);
}

/* transformer_relative.c: content-position terms. mhai_relative_check() checks a layer's description.
 * mhai_relative_rows() reports the rows of the table that layers share; 0: none. mhai_relative_view() makes
 * the views of a call's terms. */
MHA_NODISCARD mha_status mhai_relative_check(const mha_transformer_desc *d, int64_t layer,
                                             const mha_layer_desc *l);
MHA_NODISCARD mha_status mhai_relative_rows(const mha_transformer_desc *d, int64_t *rows);
void mhai_relative_view(const mha_activations *a);

/* transformer_experts.c. mhai_transformer_experts() returns the experts of a layer, or NULL if it
 * has none. mhai_experts_check() checks a description and fills in defaults.
 * mhai_transformer_dense() rejects a transformer with experts, which `function` cannot compute. */
static inline const mha_experts_desc *mhai_transformer_experts(const mha_transformer_desc *d,
                                                               int64_t layer)
{
    return d->layers && d->layers[layer].experts.count > 0 ? &d->layers[layer].experts : NULL;
}
MHA_NODISCARD mha_status mhai_experts_check(const mha_transformer_desc *d, mha_experts_desc *x);
MHA_NODISCARD mha_status mhai_transformer_dense(const char *function, const mha_transformer *t);

#endif
