/* multihead: a whole transformer, forward and backward: embeddings, blocks of attention and
 * feed-forward layers with residual connections, and an output over the vocabulary.
 *
 *   x = embed_scale tokens_table[token] (+ positions) (+ types_table[type]) (+ W_features f)  [B,T,E]
 *   each layer:   x = x + attention(norm(x))                        pre-norm
 *                (x = x + attention(norm(x), memory))               with cross-attention
 *                 x = x + feed_forward(norm(x))
 *   logits = norm(x) W_out^T (+ b)                                  [B,T,V]
 *
 * Post-norm blocks compute x = norm(x + f(x)) instead and have no norm at the end (Vaswani et al.
 * 2017). Blocks with branch norms compute x = x + norm'(f(norm(x))) (Gemma 2), or
 * x = x + norm'(f(x)) (OLMo 2). Parallel blocks compute both parts from the same x:
 * x = x + attention(norm(x)) + feed_forward(norm'(x)) (GPT-NeoX), or with one norm for both
 * (Cohere). The feed-forward layer is
 * W_down g(W_up x), or gated, W_down (g(W_gate x) * W_up x).
 * With ff_dim 0 or MHA_LAYER_NO_FEED_FORWARD a layer has no feed-forward part; it may also have
 * routed experts (mha_experts_desc). With a residual scale r, x = x + r f(norm(x)); with a logit scale l,
 * logits = l (norm(x) W_out^T + b) (Granite). With a logit softcap c, logits become c tanh(logits / c).
 *
 * One flat array holds every parameter, so an optimizer is a single loop; a table lists their
 * names and shapes. Alternatively the parameters stay in a source, such as a file, and are read
 * from it as needed (mha_transformer_create_from()). Gradients are an array of the same
 * layout. Results are bit-identical for any number of threads.
 *
 * Example, given mha_context *context, mha_tensor tokens, mha_tensor logits:
 *
 *   mha_transformer_desc desc = MHA_INIT(mha_transformer_desc);
 *   desc.flags = MHA_TRANSFORMER_CAUSAL, desc.norm = MHA_NORM_RMS;
 *   desc.positions = MHA_ENCODING_ROTARY, desc.feed_forward = MHA_FEED_FORWARD_SWIGLU;
 *   desc.vocab_size = 1000, desc.max_length = 256, desc.embed_dim = 128;
 *   desc.num_layers = 4, desc.num_heads = 8, desc.ff_dim = 512;
 *   mha_transformer_init init = MHA_INIT(mha_transformer_init);
 *   mha_transformer_input input = MHA_INIT(mha_transformer_input);
 *   input.tokens = &tokens;
 *   mha_transformer *model = NULL;
 *   mha_status status = mha_transformer_create(context, &desc, &model);
 *   if (!status) status = mha_transformer_initialise(context, model, &init);
 *   if (!status) status = mha_transformer_forward(context, model, &input, NULL, &logits, NULL, NULL);
 *   mha_transformer_destroy(model);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_TRANSFORMER_H
#define MULTIHEAD_TRANSFORMER_H

#include <multihead/attention.h>
#include <multihead/cache.h>
#include <multihead/nn.h>
#include <multihead/position.h>
#include <multihead/transport.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mha_norm {
    MHA_NORM_NONE = 0,
    MHA_NORM_LAYER = 1, /* weight and, unless MHA_TRANSFORMER_NO_NORM_BIAS, bias */
    MHA_NORM_RMS = 2    /* weight */
} mha_norm;
/* Initializers for an array of the names of an enum's values, in order, as in config.json. */
#define MHA_NORM_NAMES "none", "layer", "rms"

typedef enum mha_position_encoding {
    MHA_ENCODING_NONE = 0,
    /* a table [max_length,E], one row longer with MHA_TRANSFORMER_PADDING, added to the
     * embeddings */
    MHA_ENCODING_LEARNED = 1,
    MHA_ENCODING_SINUSOIDAL = 2, /* added likewise, fixed (Vaswani et al. 2017, section 3.5) */
    MHA_ENCODING_ROTARY = 3      /* queries and keys are rotated, halves paired as in Llama */
} mha_position_encoding;
#define MHA_ENCODING_NAMES "none", "learned", "sinusoidal", "rotary"

typedef enum mha_feed_forward {
    MHA_FEED_FORWARD_GELU = 0,
    MHA_FEED_FORWARD_RELU = 1,
    MHA_FEED_FORWARD_SWIGLU = 2,     /* gated, with SiLU (Llama) */
    MHA_FEED_FORWARD_GELU_TANH = 3,  /* MHA_ACTIVATION_GELU_TANH (GPT-2) */
    MHA_FEED_FORWARD_GEGLU = 4,      /* gated, with GELU */
    MHA_FEED_FORWARD_GEGLU_TANH = 5, /* gated, with MHA_ACTIVATION_GELU_TANH (Gemma) */
    MHA_FEED_FORWARD_RELU2 = 6,      /* MHA_ACTIVATION_RELU2 (Nemotron-H) */
    /* gated, (clip(W_up x, -7, 7) + 1) g sigmoid(1.702 g) with g = min(W_gate x, 7) (gpt-oss). Forward
     * calls and decoders only */
    MHA_FEED_FORWARD_SWIGLU_CLAMPED = 7,
    MHA_FEED_FORWARD_SILU = 8,      /* MHA_ACTIVATION_SILU (Marian) */
    MHA_FEED_FORWARD_QUICK_GELU = 9 /* MHA_ACTIVATION_QUICK_GELU (CLIP) */
} mha_feed_forward;
#define MHA_FEED_FORWARD_NAMES                                                               \
    "gelu", "relu", "swiglu", "gelu_tanh", "geglu", "geglu_tanh", "relu2", "swiglu_clamped", \
        "silu", "quick_gelu"

/** Whether a feed-forward layer has W_gate. Memory none. Errors none. Threads any. Since 0.1 */
MHA_API bool mha_feed_forward_gated(mha_feed_forward kind);

/* mha_transformer_desc.flags */
enum {
    MHA_TRANSFORMER_CAUSAL = 1 << 0,         /* a token sees itself and earlier ones */
    MHA_TRANSFORMER_POST_NORM = 1 << 1,      /* a norm follows each sum and none precedes a block */
    MHA_TRANSFORMER_EMBEDDING_NORM = 1 << 2, /* a norm on the embeddings (BERT) */
    MHA_TRANSFORMER_BIAS = 1 << 3,           /* linear layers have biases, except the output */
    MHA_TRANSFORMER_CROSS = 1 << 4,          /* layers also attend to a memory */
    MHA_TRANSFORMER_TIED = 1 << 5,           /* W_out is the token embedding */
    MHA_TRANSFORMER_NO_OUTPUT = 1 << 6,      /* the output is the last x, normalised if pre-norm */
    MHA_TRANSFORMER_QKV_BIAS = 1 << 7,       /* biases of q, k and v only (Qwen 2) */
    MHA_TRANSFORMER_OUT_BIAS = 1 << 8,       /* of W_o only */
    MHA_TRANSFORMER_FF_BIAS = 1 << 9,        /* of feed-forward layers only */
    MHA_TRANSFORMER_BRANCH_NORM = 1 << 10,   /* another norm on a block's output before the sum
                                                (Gemma 2) */
    MHA_TRANSFORMER_PARALLEL = 1 << 11,      /* attention and feed-forward read the same x
                                                (GPT-NeoX) */
    /* Positions skip padding_token, which gets row 0 of the learned table wherever it occurs
     * (RoBERTa). Not with MHA_TRANSFORMER_CAUSAL */
    MHA_TRANSFORMER_PADDING = 1 << 12,
    /* With MHA_TRANSFORMER_BRANCH_NORM: blocks read x itself, without a norm before them (OLMo 2) */
    MHA_TRANSFORMER_NO_INPUT_NORM = 1 << 13,
    MHA_TRANSFORMER_NO_NORM_BIAS = 1 << 14, /* with MHA_NORM_LAYER: norms have no bias (Cohere) */
    /* With MHA_TRANSFORMER_PARALLEL: both parts read the same norm of x, self_attn_norm (Cohere) */
    MHA_TRANSFORMER_ONE_NORM = 1 << 15,
    MHA_TRANSFORMER_LOGIT_BIAS = 1 << 16,   /* the output has a bias, also if tied (Marian) */
    MHA_TRANSFORMER_RELATIVE_NORM = 1 << 17 /* a norm on the embeddings of distances (DeBERTa v2) */
};

/* mha_layer_desc.flags */
enum {
    MHA_LAYER_SCALE_GIVEN = 1 << 0,      /* use scale as given, even 0 */
    MHA_LAYER_WINDOW = 1 << 1,           /* left_keys, right_keys and sink_keys apply */
    MHA_LAYER_QK_NORM = 1 << 2,          /* q and k are normalised, before they are rotated */
    MHA_LAYER_SINKS = 1 << 3,            /* learned sink logits */
    MHA_LAYER_ALIBI = 1 << 4,            /* slopes, initially mha_alibi_slopes() */
    MHA_LAYER_NO_ROPE = 1 << 5,          /* no rotation in this layer */
    MHA_LAYER_ROPE_INTERLEAVED = 1 << 6, /* MHA_ROPE_INTERLEAVED; default MHA_ROPE_HALVES */
    /* Each head's output is multiplied by sigmoid(W_g x) before W_o (Qiu et al. 2025, Gated
     * Attention) */
    MHA_LAYER_OUTPUT_GATE = 1 << 7,
    /* With MHA_LAYER_QK_NORM: one norm spans the queries, or the keys, of all heads (OLMoE),
     * with a weight for each of their elements */
    MHA_LAYER_QK_NORM_ROW = 1 << 8,
    /* The layer has no feed-forward part, though ff_dim is not 0 (Nemotron-H). Also with a mixer
     * other than attention */
    MHA_LAYER_NO_FEED_FORWARD = 1 << 9,
    /* Blocks of this layer alone compute x = x + norm'(f(x)), in a transformer with pre-norm (OLMo
     * Hybrid) */
    MHA_LAYER_BRANCH_NORM = 1 << 10,
    MHA_LAYER_ROPE_EXACT_RAMP = 1 << 11, /* with YARN: the ends of the ramp of r are not rounded */
    /* Attention reads x itself, without a norm before it, in a transformer with pre-norm (the first
     * layer of ModernBERT) */
    MHA_LAYER_NO_ATTENTION_NORM = 1 << 12,
    MHA_LAYER_CONTENT_TO_POSITION = 1 << 13, /* the term q_i a_r of relative_rows */
    MHA_LAYER_POSITION_TO_CONTENT = 1 << 14, /* the term b_r k_j */
    /* a and b are the layer's own keys and queries of embed_relative: W_k and W_q (DeBERTa v3) */
    MHA_LAYER_RELATIVE_SHARED = 1 << 15,
    /* a and b of all heads are the rows of a table [R,D] of the layer (BERT's relative_key) */
    MHA_LAYER_RELATIVE_TABLE = 1 << 16,
    /* With MHA_LAYER_QK_NORM: v is normalised too, each head separately and without a weight (Gemma 4) */
    MHA_LAYER_V_NORM = 1 << 17,
    /* The stream after the layer is multiplied by a number, which is not learned (Gemma 4) */
    MHA_LAYER_OUTPUT_SCALE = 1 << 18
};

/* The mechanism that mixes the tokens of a layer. */
typedef enum mha_mixer {
    MHA_MIXER_ATTENTION = 0,
    /* A gated delta net (Yang et al. 2025), whose heads have a state instead of keys and values. With
     * x = norm(stream), and q and k shared by the heads of a group:
     *
     *   q, k, v = silu(conv(W_q x, W_k x, W_v x))      conv: mha_short_convolution() over tokens
     *   q, k    = q / sqrt(|q|^2 + 1e-6), k likewise
     *   b = strength_scale sigmoid(W_b x)                                           for each head
     *   log a = -exp(A_log) log(1 + exp(W_a x + dt_bias))
     *   o       = mha_recurrent_forward(q, k, v) with MHA_RECURRENT_DELTA
     *   heads   = rms_norm(o) o_norm * silu(W_g x)     for each head separately, and then W_o
     *
     * With gate_rank r it is Kimi delta attention (Kimi Team 2025, arXiv 2510.26692), which decays
     * each channel of a key separately:
     *
     *   W_g     = W_gb W_ga, and W_a = W_fb W_fa         W_ga and W_fa: [r, E]
     *   log a, W_a x, dt_bias: [heads, key_dim]          A_log: [heads]
     *   heads   = rms_norm(o) o_norm * sigmoid(W_g x)
     *
     * The layer's heads are those of v, each value_dim wide; its kv_heads are those of q and k,
     * each key_dim wide. Needs MHA_TRANSFORMER_CAUSAL and MHA_NORM_RMS */
    MHA_MIXER_GATED_DELTA = 1,
    /* A short convolution between two gates (LFM2), W_o (W_c x * conv(W_b x * W_x x)). It mixes each of
     * the E channels separately, so the layer has no heads (layer_heads is 0) and no map. Needs
     * MHA_TRANSFORMER_CAUSAL */
    MHA_MIXER_SHORT_CONVOLUTION = 2,
    /* A state space (Mamba-2, Dao and Gu 2024). With x = norm(stream), and q and k (C and B there)
     * shared by the heads of a group:
     *
     *   v, k, q = silu(conv(W_v x, W_k x, W_q x) + conv.bias)
     *   b = clip(log(1 + exp(W_a x + dt_bias)))    log a = -exp(A_log) b      for each head
     *   o       = mha_recurrent_forward(q, k, v) with scale 1 and skip D
     *   heads   = rms_norm(o * silu(W_g x)) o_norm     over all channels of a group, and then W_o
     *
     * b is clipped to step_least .. step_most, where its gradient is 0. Heads, sizes and requirements
     * are those of a gated delta net */
    MHA_MIXER_STATE_SPACE = 3
} mha_mixer;

/* How the frequencies f_i = base^(-2 i / R) of a rotation are scaled, with n = rope_original_length
 * and s = rope_factor: position pos rotates pair i by pos f'_i. */
typedef enum mha_rope_scaling {
    MHA_ROPE_SCALING_LINEAR = 0, /* f' = f / s (Chen et al. 2023) */
    /* A pair turns n f / (2 pi) times in n positions. f' = f / s below rope_low turns, f above
     * rope_high, and in between a mean of the two, weighted by the turns (Llama 3.1) */
    MHA_ROPE_SCALING_LLAMA3 = 1,
    /* f'_i = f_i (1 - r_i) + f_i / s r_i; r rises from 0 to 1 between the i that turn rope_high and
     * rope_low times in n positions, rounded outwards. Cosines and sines are multiplied by
     * rope_amplitude (YaRN, Peng et al. 2023, section 3) */
    MHA_ROPE_SCALING_YARN = 2,
    /* f' = f / d, with divisors d (mha_transformer_desc.rope_factors) for sequences of at most n
     * tokens, and others for longer ones. Cosines and sines are multiplied by rope_amplitude
     * (LongRoPE, Ding et al. 2024) */
    MHA_ROPE_SCALING_LONG = 3
} mha_rope_scaling;

/* mha_experts_desc.flags */
enum {
    MHA_EXPERTS_SIGMOID = 1 << 0,     /* scores are sigmoids, not a softmax over all experts */
    MHA_EXPERTS_NORMALISED = 1 << 1,  /* weights of a token's experts are divided by their sum */
    MHA_EXPERTS_SCORE_BIAS = 1 << 2,  /* a bias affects the choice, not the weights */
    MHA_EXPERTS_SHARED_GATE = 1 << 3, /* the shared expert's output times sigmoid(W_s x) */
    /* The router and the matrices of experts have biases (gpt-oss); without a shared expert */
    MHA_EXPERTS_BIAS = 1 << 4,
    MHA_EXPERTS_GROUP_PAIRS = 1 << 5 /* with groups: a group's score, see below */
};

/* A feed-forward layer of routed experts (Shazeer et al. 2017; Fedus et al. 2022). Each expert is
 * a gated feed-forward layer, and each token uses `used` of them. With x = norm(stream):
 *
 *   s = softmax(W_r x), or sigmoid(W_r x)                         for each expert
 *   chosen: the `used` experts with the largest s + score_bias; the first of equal ones
 *           With groups of consecutive experts, only experts of the groups_used groups with the
 *           largest scores (DeepSeek-V2 and V3): the largest s + score_bias of a group or, with
 *           MHA_EXPERTS_GROUP_PAIRS, the sum of the two largest
 *   w = s                               or s / (sum of the chosen s + sum_epsilon)
 *   y = shared(x) [sigmoid(W_s x)] + scale sum of w expert(x) over the chosen, in order
 *
 * A matrix of an expert is read only if a token chose the expert. Needs a gated feed_forward.
 * Forward calls and decoders only */
typedef struct mha_experts_desc {
    int64_t count;      /* 0: the layer has none, and the rest is 0. At most MHA_EXPERTS_MOST */
    int64_t used;       /* 1 .. count */
    int64_t ff_dim;     /* F of each expert; 0: that of the transformer */
    int64_t shared_dim; /* F of the shared expert, which every token uses; 0: none */
    float scale;        /* 0: 1 */
    float sum_epsilon;  /* with MHA_EXPERTS_NORMALISED */
    uint32_t flags;
    uint16_t groups, groups_used; /* 0: 1, all experts are one group; groups divides count */
} mha_experts_desc;
enum { MHA_EXPERTS_MOST = 1 << 16 };

/* The mixer of one layer, and its experts. mha_attention_desc (attention.h), mha_rope_desc and
 * mha_qk_norm() (position.h) give the formulas of the fields of self-attention. All zero: plain
 * attention. */
typedef struct mha_layer_desc {
    uint32_t struct_size;
    uint32_t flags;
    float scale;              /* 0: 1 / sqrt(D), unless MHA_LAYER_SCALE_GIVEN */
    float softcap;            /* 0: none */
    int64_t left_keys;        /* with MHA_LAYER_WINDOW; -1: unlimited */
    int64_t right_keys;       /* likewise */
    int64_t sink_keys;        /* number of first keys exempt from the window */
    mha_qk_norm_kind qk_norm; /* with MHA_LAYER_QK_NORM; MHA_QK_NORM_L2 in forward calls only */
    float qk_norm_epsilon;    /* 0: 1e-6, or 1e-12 for MHA_QK_NORM_L2 */
    int64_t t5_buckets;       /* 0: no T5 bias; one-sided if the transformer is causal */
    int64_t t5_max_distance;  /* 0: 128 */
    int64_t rotary_dim;       /* number of rotated elements; even, 0: D */
    float rope_base;          /* 0: that of the transformer */
    float rope_factor;        /* 0: 1; at least 1e-6 with LLAMA3 or YARN, 1 with LONG */
    mha_rope_scaling rope_scaling;
    float rope_low, rope_high; /* with LLAMA3 and YARN; 0: 1, and 4 with LLAMA3 or 32 with YARN */
    float rope_amplitude;      /* with YARN; 0: 0.1 ln rope_factor + 1, at least 1. LONG; 0: 1 */
    int64_t rope_original_length; /* context length in training; required except with LINEAR */
    /* For a gated delta net or state space; a short convolution uses only mixer and conv_kernel.
     * All other fields except experts, and all flags except MHA_LAYER_NO_FEED_FORWARD, are then 0.
     * The sizes are required. Latent attention has a value_dim */
    mha_mixer mixer;
    int32_t conv_kernel; /* 1 .. MHA_CONVOLUTION_MOST */
    int64_t key_dim, value_dim;
    mha_experts_desc experts;    /* in place of a feed-forward layer of ff_dim */
    float step_least, step_most; /* of a state space; step_most 0: infinite */
    /* Of a gated delta net: a factor of its strengths, 0: 1, at most 2; and the epsilon of the norm
     * of its heads, or of the norms of latents, 0: norm_epsilon */
    float strength_scale, head_norm_epsilon;
    /* Latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) if latent_dim r is not 0. All heads
     * expand one latent vector c of each token to their keys and values. With x = norm(stream), and
     * the number s = shared_dim of leading elements of a key that all heads share:
     *
     *   q_h = W_q,h x, or W_qb,h rms_norm(W_qa x)           [D]; W_qa x: [query_latent_dim]
     *   c, p = W_kva x                                      [r], [s]
     *   k_h = (p, W_kb,h rms_norm(c))                       [D]
     *   v_h = W_vb,h rms_norm(c)                            [value_dim]
     *
     * rotary_dim is at most s, which is its default. Each head has its own key and value: kv_heads is
     * num_heads. Without norms of queries and keys and output gates */
    int64_t latent_dim, query_latent_dim, shared_dim;
    int64_t gate_rank; /* of a gated delta net: Kimi delta attention; 0: none */
    /* Content-position terms of the scores if the number of rows R is not 0 (DeBERTa, He et al. 2021,
     * section 3; Shaw et al. 2018). For query i, key j and a head, each term if its flag is set:
     *
     *   score = scale (q_i k_j + q_i a_r + b_r k_j)     r = clip(bucket(i - j) + R div 2, 0, R - 1)
     *   a_r   = W_pk e_r, b_r = W_pq e_r                with biases as those of q and k
     *   bucket(x) = x or, with relative_buckets n, m = n div 2, most = relative_max_distance and
     *               |x| > m, sign(x) (ceil((m - 1) ln(|x| / m) / ln((most - 1) / m)) + m)
     *               in f32, as published
     *
     * e_r is a row of embed_relative [R,E], which all layers share. The terms are a bias [B,H,T,T] of
     * the layer's attention: scores include it at MHA_SCORES_BIASED, and activations have
     * H min(max_tokens, max_length) more floats for each token and layer. Queries and keys are those
     * after patches. Only without MHA_TRANSFORMER_CAUSAL, cross-attention, softcap,
     * norms of queries and keys, output gates, rotations and latents; kv_heads is num_heads */
    int64_t relative_rows, relative_buckets, relative_max_distance;
    int64_t head_dim; /* D of this layer, without latents; 0: that of the transformer */
    int64_t ff_dim;   /* F of this layer, without experts; 0: that of the transformer */
    /* The layer projects only queries, and attends to the keys and values of the layer kv_back layers
     * before it, which has its own (Gemma 4). Both have the same head_dim, window and number of key/value
     * heads. A decoder caches them once. 0: the layer has its own */
    int64_t kv_back;
    int64_t rope_pairs; /* pairs of higher number are not rotated; 0: rotary_dim / 2 */
    /* Width P of an input of the layer beside the stream (Gemma 4); 0: none. With x0 the stream before the
     * first layer, g the activation of the feed-forward layers, which are gated, the layer ends with
     *
     *   p = (sqrt(P) input_table[token] + norm(W_p x0 / sqrt(E))) / sqrt(2)                  [P]
     *   x = x + norm'(W_o (g(W_g x) * p))
     *
     * Needs pre-norm with MHA_NORM_RMS, without cross-attention and parallel blocks */
    int64_t input_dim;
} mha_layer_desc;

/** How a layer differs from attention with its own keys and values and heads of the usual size, without
 * output gates and latents, whose blocks alone change the stream: a phrase for messages, "is a gated delta
 * net". NULL if it does not differ. Memory static. Errors none. Threads any. Since 0.1 */
MHA_API const char *mha_layer_difference(const mha_layer_desc *layer);

/** Why a layer has no gradients, as a phrase for messages: "has routed experts". NULL if it has
 * gradients. Memory static. Errors none. Threads any. Since 0.1 */
MHA_API const char *mha_layer_forward_only(const mha_layer_desc *layer);

/** Why no head of a layer can be removed, as a phrase for messages: "is a gated delta net". NULL if
 * heads can be removed. Memory static. Errors none. Threads any. Since 0.1 */
MHA_API const char *mha_layer_keeps_heads(const mha_layer_desc *layer);

typedef struct mha_transformer_desc {
    uint32_t struct_size;
    uint32_t flags;
    int64_t vocab_size; /* V, required */
    int64_t max_length; /* of a sequence, required */
    int64_t embed_dim;  /* E, required */
    int64_t num_layers; /* L, required */
    int64_t num_heads;  /* H, required */
    int64_t kv_heads;   /* 0: H */
    int64_t head_dim;   /* 0: E / H */
    int64_t ff_dim;     /* F; 0: no feed-forward layers */
    int64_t memory_dim; /* width of the memory; 0: E. Only with MHA_TRANSFORMER_CROSS */
    mha_norm norm;
    mha_position_encoding positions;
    mha_feed_forward feed_forward;
    float norm_epsilon;    /* 0: 1e-5 */
    float rope_base;       /* 0: 10000 */
    int32_t padding_token; /* with MHA_TRANSFORMER_PADDING; else 0 */
    /* [L] heads of each layer's self-attention, 0 .. num_heads; requires head_dim. NULL: num_heads.
     * A layer without heads adds only its output bias; its only other attention parameters are
     * those of a post-norm. Gates, probabilities and all other arrays with an axis H have room for
     * num_heads. Copied; mha_transformer_describe() returns the transformer's copy */
    const int64_t *layer_heads;
    /* [L], each a divisor of the layer's heads; NULL: kv_heads, or the layer's heads if kv_heads
     * equals num_heads */
    const int64_t *layer_kv_heads;
    /* Token types (BERT's segments): a table [type_count,E] whose row is added to the embedding of
     * each token; 0: none. With types, the sum of the tables' rows is rounded only once */
    int64_t type_count;
    /* [L], all of the same struct_size: further settings of each layer's self-attention; NULL:
     * none. Copied, like layer_heads */
    const mha_layer_desc *layers;
    float embed_scale;    /* 0: 1; sqrt(E) in Gemma */
    float logit_softcap;  /* 0: none */
    float residual_scale; /* multiplies the output of each block; 0: 1 */
    float logit_scale;    /* 0: 1 */
    /* [2,R/2] with MHA_ROPE_SCALING_LONG: the divisors for short and for long sequences. Layers with
     * this scaling have the same rotary_dim R and rope_original_length. Copied, like layers */
    const float *rope_factors;
    float cross_scale; /* of the scores of cross-attention; 0: 1 / sqrt(D) */
    /* Width of the tables of embeddings and of their norm; 0: E. Another width is projected to E:
     * x = W_p norm(embedding) + b (ALBERT); b exists with MHA_TRANSFORMER_BIAS. Not with
     * MHA_TRANSFORMER_TIED and sinusoidal positions */
    int64_t token_dim;
    /* Width of the features of each token, such as the pixels of a patch (ViT): W_features times a
     * token's row of mha_transformer_input.features is added to its embedding, and the sum is
     * rounded once. 0: none */
    int64_t feature_dim;
    /* With MHA_ENCODING_ROTARY, rotations by the row and column of a patch (DINOv3). The first grid_first
     * tokens are not rotated; the others fill grid_rows rows of grid_cols. With R rotated elements, the angle
     * of pair i < R / 4 is 2 pi y f_i, that of pair R / 4 + i is 2 pi x f_i, f_i = rope_base^(-4 i / R),
     * y = (2 r + 1) / grid_rows - 1 in row r, x likewise in its column. max_length is grid_first +
     * grid_rows grid_cols. 0: rotations by position */
    int64_t grid_rows, grid_cols, grid_first;
} mha_transformer_desc;

/** The phrase of the first layer for which `of`, one of the three functions above, has one; NULL:
 * none. *layer, unless it is NULL, becomes that layer. Memory static. Errors none. Threads any.
 * Since 0.1 */
MHA_API const char *mha_transformer_phrase(const mha_transformer_desc *desc,
                                           const char *(*of)(const mha_layer_desc *layer),
                                           int64_t *layer);

/* Parameters, and packed copies of the matrices. */
typedef struct mha_transformer mha_transformer;

/**
 * Create a transformer whose matrices and biases are 0 and whose norms are 1.
 *
 * Memory   the caller owns *transformer; memory comes from the context's allocator, which must
 *          outlive it (the context need not). Rotary positions take tables of max_length D floats,
 *          or twice that with MHA_ROPE_SCALING_LONG, sinusoidal positions of max_length E;
 *          activations and decoders touch only the rows that they need.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT, MHA_ERR_SHAPE, MHA_ERR_SIZE, MHA_ERR_UNSUPPORTED,
 *          MHA_ERR_NOMEM.
 * Threads  as mha_context_create().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_transformer_create(mha_context *context,
                                                        const mha_transformer_desc *desc,
                                                        mha_transformer **transformer);

/* mha_transformer_source.flags */
enum { MHA_SOURCE_PACK = 1 << 0 /* read matrices once and pack them: 4 bytes per number */ };

/* A source of parameters that are not in an array of f32, such as a file with fewer bits per number
 * or another order. */
typedef struct mha_transformer_source {
    uint32_t struct_size;
    uint32_t flags;
    /* Read columns column .. column + columns - 1 of rows row .. row + rows - 1 of parameter number
     * `parameter` into `to` [rows,columns], contiguous. A vector has one column. Several
     * threads call it concurrently. Ranges lie inside the parameter. Calls with the same range must
     * return the same numbers. It cannot fail: do all checks earlier */
    void (*read)(const void *user, int64_t parameter, int64_t row, int64_t rows, int64_t column,
                 int64_t columns, float *to);
    void (*release)(void *user); /* called by mha_transformer_destroy(); may be NULL */
    void *user;
    /* The same numbers as mha_coded: at most MHA_CODED_ROWS rows (other rows of *to are not used)
     * and at most MHA_CODED_COLUMNS columns, starting at a multiple of that, in whole runs. Returns
     * false if they cannot be coded; all columns of a row must give the same answer. NULL: no row
     * can be coded */
    bool (*read_coded)(const void *user, int64_t parameter, int64_t row, int64_t rows,
                       int64_t column, int64_t columns, mha_coded *to);
    mha_compute compute; /* the arithmetic of linear layers, see below */
    uint32_t reserved;   /* 0 */
    /* Returns the address of rows row .. row + rows - 1 in memory of *type, MHA_F16 or MHA_BF16,
     * with adjacent columns and rows *stride elements apart, valid as long as the source; products
     * then read them in place, with the same bits. Returns NULL if there is no such address.
     * find_rows may be NULL */
    const void *(*find_rows)(const void *user, int64_t parameter, int64_t row, int64_t rows,
                             mha_dtype *type, int64_t *stride);
    /* Ranks over which layers are spread, see below; NULL: one process. It must outlive the
     * transformer */
    const mha_transport *transport;
} mha_transformer_source;

/* With compute = MHA_COMPUTE_INT8 a linear layer y = x W^T + b is computed as follows for the rows
 * of W that can be coded:
 *
 *   in each row of x, for inputs 32 i .. 32 i + 31:
 *     unit = max |x| / 127       x8 = round(x (127 / max |x|)), to nearest, ties to even
 *   y = b, and then for each run of inputs, in order (mha_coded in base.h; sums over the run):
 *     y = y + sum(number x8) (scale unit)
 *     y = y + offset (unit sum(x8))                  where mha_coded.has_offsets
 *
 * Sums are exact integers; every f32 operation is rounded separately, none is fused. A run of 16
 * uses the unit of its group of 32 inputs. Groups of 32 inputs that are all below 2^-80 count as 0;
 * a row of x with an element that is not finite, or of magnitude 2^93 or more, gives a row of NaN.
 *
 * Accuracy  |y - exact| <= sum |w| (0.5001 unit + 2^-80) + (n + 4) 2^-24 (|b| + sum of the
 *           magnitudes of the n terms above) + 2^-120: docs/numerics.md 13 has the derivation
 *           and measurements on a model.
 * Bits      the same on every instruction set including portable C, for any number of threads and
 *           of rows in a call, and any division into strips.
 *
 * Rows that cannot be coded are computed in f32.
 *
 * With compute = MHA_COMPUTE_BF16 all linear layers are those of mha_linear_create_bf16() (nn.h),
 * whatever type their weights are stored in. Rows of bf16 are multiplied in place (find_rows). With
 * MHA_COMPUTE_TILES they are those of mha_linear_create_tiles().
 *
 * Everything else (attention, norms, embeddings) is computed in f32. Only forward calls, decoders
 * and views are supported: mha_transformer_backward() returns an error. A transformer pruned or
 * copied from one of these computes in f32. */

/* With a transport, each rank computes a run of consecutive layers (pipeline parallelism). Runs are
 * in order, and their numbers of parameters are as nearly equal as whole layers allow; the output
 * counts as the last layer. With more ranks than layers some ranks have none. A rank reads only the
 * matrices of its own layers; the first also reads the token embedding, and every rank reads all
 * other parameters. On each rank a decoder has only the caches of that rank's layers.
 *
 * All ranks make the same calls (forward calls, decoders, mha_transformer_logits()) with the same
 * arguments, and each returns results bit-identical to those of one process. Ranks wait for each
 * other inside a call. If one cannot continue, all return its status, with "rank 3: " before the
 * detail; statuses are exchanged at the beginning and the end of a call. The stream is sent from
 * rank to rank. If a call exposes its layers (after_layer, outputs, probabilities, kept
 * activations), each layer's results are broadcast to all ranks. A forward call also compares
 * transformers, tokens, lengths and dropout between ranks (MHA_ERR_ARGUMENT). After MHA_ERR_RANK,
 * an error of the transport, the transformer must not be used again.
 *
 * Creating transformers and activations is local to a rank. The next call of every rank begins with
 * mha_transport_agree(), which reports a rank that failed there. mha_transformer_backward() returns
 * an error. A transformer pruned or copied from a spread one is not spread. */

/**
 * Create a transformer whose matrices and token embedding stay in their source: each product reads
 * blocks of rows that fit in a cache, once for all tokens of a call. Everything else (norms,
 * biases, positions, types, ...) is read by mha_transformer_update(), which must be called before
 * the first use. Before that call the source may look up the parameters' names
 * (mha_transformer_parameter()). Results are bit-identical to a transformer with the same numbers
 * in an array.
 *
 * Such a transformer supports forward and backward calls, decoders, pruning, inspection and saving.
 * It cannot be initialised or trained, since mha_transformer_data() is NULL; a copy made by
 * mha_transformer_copy() can.
 *
 * Memory   as mha_transformer_create(), without the array and, unless MHA_SOURCE_PACK, the packed
 *          matrices; source is copied. source->user must stay valid until release() is called,
 *          which happens when this transformer and those pruned from it are destroyed; if
 *          mha_transformer_create_from() fails, release() is not called. Unless MHA_SOURCE_PACK,
 *          forward calls take 1 MiB + 392 KiB of scratch per thread, more if 32 rows exceed 1 MiB.
 *          With MHA_COMPUTE_INT8 they take 832 bytes for every 256 inputs of a token, and 585 KiB
 *          and 32 rows per thread if that exceeds the scratch above. With MHA_COMPUTE_BF16 they
 *          also take the size of the inputs of all tokens, and of 32 rows per thread. With
 *          MHA_COMPUTE_TILES they take the former and 48 KiB per thread. Backward calls take the
 *          size of one matrix.
 * Errors   as mha_transformer_create(); MHA_ERR_NULL (source, read); MHA_ERR_UNSUPPORTED (flags,
 *          reserved); MHA_ERR_ARGUMENT (compute; one other than MHA_COMPUTE_F32 with
 *          MHA_SOURCE_PACK; MHA_COMPUTE_INT8 without read_coded).
 * Threads  as mha_context_create().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_transformer_create_from(mha_context *context,
                                                             const mha_transformer_desc *desc,
                                                             const mha_transformer_source *source,
                                                             mha_transformer **transformer);

/** Destroy a transformer; NULL: a no-op. Memory frees all. Errors none. Threads no other thread may
 * be using it. Since 0.1 */
MHA_API void mha_transformer_destroy(mha_transformer *transformer);

/** Whether transformers of this description predict the next token: causal, with logits, without
 * cross-attention. Memory none. Errors none. Threads any. Since 0.1 */
MHA_API bool mha_transformer_predicts(const mha_transformer_desc *desc);

/** Whether a norm follows a block of any layer, so that the block does not add to the last stream
 * directly: MHA_TRANSFORMER_POST_NORM, MHA_TRANSFORMER_BRANCH_NORM or MHA_LAYER_BRANCH_NORM. Memory
 * none. Errors none. Threads any. Since 0.1 */
MHA_API bool mha_transformer_norms_follow(const mha_transformer_desc *desc);

/** Whether the attention of a layer reads a norm of the stream, in a description from
 * mha_transformer_describe(). Memory none. Errors none. Threads any. Since 0.1 */
MHA_API bool mha_transformer_norms_input(const mha_transformer_desc *desc, int64_t layer);

/** Likewise, whether a norm of the output of a layer's blocks is added to the stream (branch norm).
 * Memory none. Errors none. Threads any. Since 0.1 */
MHA_API bool mha_transformer_norms_branch(const mha_transformer_desc *desc, int64_t layer);

/** Whether a layer has a feed-forward part, in a description from mha_transformer_describe(). Memory
 * none. Errors none. Threads any. Since 0.1 */
MHA_API bool mha_transformer_feeds(const mha_transformer_desc *desc, int64_t layer);

/** The number of heads of a layer, in a description from mha_transformer_describe(). Memory none.
 * Errors none. Threads any. Since 0.1 */
MHA_API int64_t mha_transformer_heads(const mha_transformer_desc *desc, int64_t layer);

/** The number of key/value heads of a layer. Memory none. Errors none. Threads any. Since 0.1 */
MHA_API int64_t mha_transformer_kv_heads(const mha_transformer_desc *desc, int64_t layer);

/** The size D of the heads of a layer, also if desc lacks defaults. A mixer other than attention may have
 * others. Memory none. Errors none. Threads any. Since 0.1 */
MHA_API int64_t mha_transformer_head_dim(const mha_transformer_desc *desc, int64_t layer);

/** The largest total width of the heads of a layer: H D, or more if a mixer has wider heads. desc
 * must have every default filled in. Memory none. Errors none. Threads any. Since 0.1 */
MHA_API int64_t mha_transformer_heads_width(const mha_transformer_desc *desc);

/** The description with every default filled in. Memory fills the whole struct as this header
 * declares it. Errors none. Threads any. Since 0.1 */
MHA_API void mha_transformer_describe(const mha_transformer *transformer,
                                      mha_transformer_desc *desc);

/* ---- parameters ------------------------------------------------------------------------------ */

/* The kind of a parameter determines its initialisation and whether weight decay applies. */
typedef enum mha_parameter_kind {
    MHA_PARAMETER_MATRIX = 0,    /* [outputs, inputs]; the only kind that decays */
    MHA_PARAMETER_EMBEDDING = 1, /* tokens, positions, types */
    MHA_PARAMETER_BIAS = 2,      /* also T5's tables and sinks: all are initially 0 */
    MHA_PARAMETER_NORM = 3,
    MHA_PARAMETER_CONSTANT =
        4 /* ALiBi's slopes, scales of layers: not learned, their gradient is 0 */
} mha_parameter_kind;

typedef struct mha_parameter {
    char name[64]; /* "layers.0.self_attn.q_proj.weight", ... */
    mha_parameter_kind kind;
    int64_t layer;  /* -1: none */
    int64_t offset; /* of its first element in the flat array */
    int64_t count;
    int ndim;
    int64_t shape[2];
} mha_parameter;

/** The number of parameters (named arrays). Memory none. Errors none. Threads any. Since 0.1 */
MHA_API int64_t mha_transformer_parameters(const mha_transformer *transformer);

/** The number of elements of all parameters. Memory none. Errors none. Threads any. Since 0.1 */
MHA_API int64_t mha_transformer_size(const mha_transformer *transformer);

/**
 * Parameter number index, in the order of the flat array:
 *
 *   embed_tokens.weight [V,E]    embed_positions.weight [max_length,E], or one row more (padding)
 *   embed_types.weight [type_count,E]         embed_features.weight [token_dim,feature_dim]
 *   embed_relative.weight [R,E]               relative_norm.weight .bias, by mha_layer_desc
 *   embed_norm.weight .bias                   embed_proj.weight [E,token_dim] .bias, if token_dim is
 *                                             not E; rows of the tables above are then token_dim wide
 *   layers.N.self_attn_norm.weight .bias      self_attn_post_norm likewise, with branch norms
 *   layers.N.self_attn.q_proj.weight .bias    k_proj v_proj o_proj
 *   layers.N.self_attn.q_norm.weight [D]      k_norm.weight [D]        by mha_layer_desc; [H D] and
 *                                             [Hk D] with MHA_LAYER_QK_NORM_ROW
 *                                             with kv_back, no k_proj, v_proj and k_norm
 *   layers.N.self_attn.sinks [H]              alibi_slopes [H]
 *   layers.N.self_attn.relative_attention_bias.weight [t5_buckets,H]
 *   layers.N.self_attn.position_k_proj.weight .bias    position_q_proj likewise: W_pk and W_pq
 *   layers.N.self_attn.distance_embedding.weight [R,D] with MHA_LAYER_RELATIVE_TABLE
 *   layers.N.self_attn.g_proj.weight .bias    with MHA_LAYER_OUTPUT_GATE
 *   layers.N.self_attn.q_proj.weight .bias    or q_a_proj, q_b_proj.weight, q_a_norm.weight; then
 *                                             kv_a_proj.weight .bias, kv_a_norm.weight, k_b_proj.weight,
 *                                             v_b_proj.weight, o_proj, in latent attention
 *   layers.N.delta_net.q_proj.weight          k_proj v_proj g_proj b_proj a_proj o_proj, in place of
 *   layers.N.delta_net.conv.weight [C,K]      self_attn in a gated delta net; C: q, k and v
 *   layers.N.delta_net.A_log [H] dt_bias [H]  o_norm.weight [value_dim]
 *   layers.N.delta_net.g_a_proj.weight        f_a_proj g_b_proj f_b_proj, in place of g_proj a_proj, and
 *                                             dt_bias [H key_dim], in Kimi delta attention
 *   layers.N.state_space.v_proj.weight        k_proj q_proj g_proj a_proj o_proj, likewise in a state
 *   layers.N.state_space.conv.weight [C,K]    space; conv.bias [C]; C: v, k and q
 *   layers.N.state_space.A_log [H]            dt_bias [H] D [H] o_norm.weight [H value_dim]
 *   layers.N.short_conv.b_proj.weight         c_proj x_proj o_proj, in place of self_attn in a short
 *   layers.N.short_conv.conv.weight [E,K]     convolution
 *   layers.N.cross_attn_norm, cross_attn      likewise
 *   layers.N.mlp_norm, mlp_post_norm          likewise; no mlp_norm with MHA_TRANSFORMER_ONE_NORM
 *   layers.N.mlp.gate_proj.weight .bias (gated)     up_proj, down_proj likewise
 *   layers.N.mlp.router.weight [count,E]      shared_expert_gate.weight [1,E], score_bias [count],
 *   layers.N.mlp.experts.K.gate_proj.weight   up_proj, down_proj likewise; shared_expert likewise:
 *                                             in place of the line above in a layer of experts
 *   layers.N.mlp.experts.K.gate_proj.bias     up_proj, down_proj likewise, and router.bias [count],
 *                                             with MHA_EXPERTS_BIAS, after the matrices of all
 *   layers.N.input.table.weight [V,P]         with input_dim: input_table, W_p [P,E] and its norm [P],
 *   layers.N.input.proj.weight .norm.weight   W_g [P,E], W_o [E,P], and norm'
 *   layers.N.input.gate_proj.weight           o_proj.weight, then layers.N.input_post_norm.weight
 *   layers.N.output.scale [1]                 with MHA_LAYER_OUTPUT_SCALE
 *   norm.weight .bias                         lm_head.weight [V,E] .bias [V]
 *
 * Memory   fills *parameter.   Errors  MHA_ERR_NULL, MHA_ERR_ARGUMENT.   Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_transformer_parameter(const mha_transformer *transformer,
                                                           int64_t index, mha_parameter *parameter);

/** The flat array itself, mha_transformer_size() floats; NULL for a transformer with a source.
 * After a change call mha_transformer_update(). Memory owned by the transformer. Errors none.
 * Threads as the transformer. Since 0.1 */
MHA_API float *mha_transformer_data(mha_transformer *transformer);

/**
 * Read rows row .. row + rows - 1 of a parameter, from the array or the source.
 *
 *   to [rows, columns] out, contiguous; a vector has one column
 *
 * Memory   nothing is allocated.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (another transformer's parameter, no such rows).
 * Threads  any, while no thread changes the transformer.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_transformer_read(const mha_transformer *transformer,
                                                      const mha_parameter *parameter, int64_t row,
                                                      int64_t rows, float *to);

/**
 * Apply changed parameters: pack the matrices again. With a source, read everything except the
 * matrices and the token embedding.
 *
 * Memory   nothing is allocated; with a source, scratch from the context.
 * Errors   MHA_ERR_NULL, those of mha_module_set_parameter(); with a source MHA_ERR_NOMEM.
 * Threads  no other thread may be using the transformer.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_transformer_update(mha_context *context,
                                                        mha_transformer *transformer);

typedef struct mha_transformer_init {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    uint64_t seed;
    double embedding_std; /* 0: 1 / sqrt(E) */
    double position_std;  /* of learned positions; 0: they start as 0 */
    double head_grade;    /* head h's W_V and W_O are multiplied by head_grade^h; 0: 1 */
} mha_transformer_init;

/**
 * Draw random parameters: matrices N(0, 1 / inputs), those that write to the residual stream
 * (o_proj, down_proj) scaled further by 1 / sqrt(parts of layers that write to it); embeddings with
 * embedding_std and position_std; biases 0, norms 1. For mixers other than attention: convolutions
 * N(0, 1 / K), A_log = ln U(1, 16), D = 1, dt_bias such that log(1 + exp(dt_bias)) is log-uniform
 * in 0.001 .. 0.1 (Dao and Gu 2024). Philox draws each number from the seed and its index: the same
 * on every machine. Calls mha_transformer_update().
 *
 * Memory   nothing is allocated.   Errors  MHA_ERR_NULL, MHA_ERR_ARGUMENT, MHA_ERR_UNSUPPORTED.
 * Threads  no other thread may be using the transformer.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_transformer_initialise(mha_context *context,
                                                            mha_transformer *transformer,
                                                            const mha_transformer_init *init);

/* ---- forward, backward ----------------------------------------------------------------------- */

/* The results that a forward call keeps for a backward call and for inspection of heads. */
typedef struct mha_activations mha_activations;

/* The tensor of mha_layer_view that a patch replaces. */
typedef enum mha_patch_part {
    MHA_PATCH_OUTPUT = 0, /* z, the output of the head; replaces the gated output */
    MHA_PATCH_QUERY = 1,  /* q, after rotation and norms */
    MHA_PATCH_KEY = 2,    /* k likewise */
    MHA_PATCH_VALUE = 3   /* v */
} mha_patch_part;

/* Values that replace a tensor of a head of self-attention (activation patching). */
typedef struct mha_head_patch {
    uint32_t struct_size;
    mha_patch_part part;
    int64_t layer;
    int64_t head; /* for keys and values the key/value head, shared by all heads of its group */
    const mha_tensor
        *values;         /* f32 [B,T,D] in, last axis contiguous; strides of B and T may be 0 */
    const uint8_t *rows; /* [B T], 1: patch this row; NULL: all rows */
} mha_head_patch;

/* mha_transformer_input.flags */
enum {
    /* With a transformer spread over ranks: write outputs and call after_layer only on the rank
     * that has the layer, so that only the stream is sent */
    MHA_INPUT_OWN_LAYERS = 1 << 0
};

typedef struct mha_transformer_input {
    uint32_t struct_size;
    uint32_t flags;
    const mha_tensor *tokens;      /* i32 [B,T] */
    const int64_t *lengths;        /* [B], 0 .. T; NULL: T. Later ids are checked and ignored */
    const mha_tensor *memory;      /* f32 [B,S,memory_dim], with MHA_TRANSFORMER_CROSS */
    const int64_t *memory_lengths; /* [B]; NULL: S */
    const mha_tensor *gates;       /* f32 [L,H], multiply each head's output; NULL: 1 */
    const mha_tensor *cross_gates; /* likewise for cross-attention */
    float dropout;                 /* of attention probabilities; 0 outside training */
    uint64_t dropout_seed;         /* a new one for each step; each layer derives its own from it */
    /* f32 [L,mha_transformer_heads_width()] in, for mean ablation by gates: the gated output of a
     * self-attention head is gate z + (1 - gate) mean at every token; NULL: mean 0. A gated delta
     * net has value_dim numbers per head. Forward calls only */
    const mha_tensor *head_means;
    const mha_tensor *token_types; /* i32 [B,T], with type_count; NULL: all 0 */
    const mha_tensor *last_hidden; /* f32 [B,T,E] out: the input of W_out; or NULL. Forward
                                      calls only */
    /* [L] pointers, each NULL or further outputs of that layer's self-attention (attention.h), with
     * as many heads as the layer has; lse is in mha_layer_view. A layer without heads writes
     * nothing. Outputs of different layers may share memory. Forward calls only */
    const mha_attention_outputs *const *outputs;
    /* Called when a layer is done; mha_activations_layer() of this layer gives views of it. A
     * status other than MHA_OK ends the call and is returned. No other use of activations is allowed.
     * Forward calls only */
    mha_status (*after_layer)(void *user, const mha_activations *activations, int64_t layer);
    void *after_layer_user;
    /* [patch_count], all of the same struct_size, applied in this order: a later patch of the same
     * rows wins. Forward calls only */
    const mha_head_patch *patches;
    int64_t patch_count;
    /* Layers before this one are not run: the call begins with `stream`, the residual stream before
     * this layer (mha_layer_view.stream). Outputs of earlier layers are not written. Results are
     * bit-identical to running all layers. Forward calls only */
    int64_t first_layer;
    const mha_tensor *stream; /* f32 [B,T,E] in, last axis contiguous; NULL: the embeddings */
    /* f32 [B,T,feature_dim] in, sequences without gaps between them. Required with feature_dim unless
     * `stream` is set */
    const mha_tensor *features;
} mha_transformer_input;

/**
 * Create activations for batches of up to max_tokens = B T tokens (and, with cross-attention,
 * max_memory = B S rows of memory).
 *
 * Memory   the caller owns *activations: about (2 to 4 x E + 3 to 4 x F + heads) L floats for each
 *          token, more with mha_layer_desc.relative_rows; from the context's allocator, which must outlive it.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT, MHA_ERR_SIZE, MHA_ERR_NOMEM.
 * Threads  as mha_context_create().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_activations_create(mha_context *context,
                                                        const mha_transformer *transformer,
                                                        int64_t max_tokens, int64_t max_memory,
                                                        mha_activations **activations);

/** Destroy; NULL: a no-op. Memory frees all. Errors none. Threads no other thread may be using it.
 * Since 0.1 */
MHA_API void mha_activations_destroy(mha_activations *activations);

/**
 * Run the transformer forward.
 *
 *   output [B,T,V] out, the logits; with MHA_TRANSFORMER_NO_OUTPUT [B,T,E]; NULL: not computed
 *   probabilities [L,B,H,T,T] out, of self-attention, 0 for heads that a layer does not have;
 *   cross_probabilities [L,B,H,T,S] out; or NULL
 *
 * Rows beyond a sequence's length are computed, but are meaningless. With activations NULL, for
 * inference, the call uses memory for two layers at a time and keeps nothing. after_layer then has
 * views of its own layer only, without the sum before a post-norm.
 *
 * Memory   activations are overwritten; scratch from the context, including the activations of two
 *          layers if activations is NULL.
 * Errors   MHA_ERR_NULL, MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_STRIDE, MHA_ERR_OVERLAP,
 *          MHA_ERR_NOMEM; MHA_ERR_ARGUMENT (a token, a length, T > max_length); MHA_ERR_SIZE (more
 *          tokens than the activations hold). Outputs are then unspecified; without activations
 *          they are untouched unless after_layer failed.
 * Threads  one call per context and activations.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_transformer_forward(
    mha_context *context, const mha_transformer *transformer, const mha_transformer_input *input,
    mha_activations *activations, const mha_tensor *output, const mha_tensor *probabilities,
    const mha_tensor *cross_probabilities);

/**
 * Logits of chosen rows, bit-identical to those of mha_transformer_forward(): for long texts, where
 * all T V logits are not needed.
 *
 *   hidden [M,E] in, rows of mha_transformer_input.last_hidden    logits [M,V] out
 *
 * Memory   scratch from the context.
 * Errors   MHA_ERR_NULL, MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_STRIDE, MHA_ERR_OVERLAP,
 *          MHA_ERR_NOMEM; MHA_ERR_UNSUPPORTED (no output: MHA_TRANSFORMER_NO_OUTPUT).
 * Threads  one call per context.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_transformer_logits(mha_context *context,
                                                        const mha_transformer *transformer,
                                                        const mha_tensor *hidden,
                                                        const mha_tensor *logits);

/* ---- inspecting the activations -------------------------------------------------------------- */

/* The functions between a layer's residual connections. */
typedef enum mha_layer_part {
    MHA_PART_SELF_ATTENTION = 0,
    MHA_PART_CROSS_ATTENTION = 1,
    MHA_PART_FEED_FORWARD = 2
} mha_layer_part;

/* Inputs and results of a part, as views of the activations. H, Hk and D are this layer's. A tensor
 * that the part lacks has ndim 0 and no data. S is T in self-attention, the length of the memory in
 * cross-attention.
 */
typedef struct mha_layer_view {
    uint32_t struct_size; /* in: sizeof(mha_layer_view) */
    mha_mixer mixer;
    mha_tensor stream;       /* [B,T,E] x, the residual stream before the part */
    mha_tensor input;        /* [B,T,E] its input: norm(x), or x without pre-norm; in a parallel
                                block the input of both parts is the stream before the block */
    mha_tensor sum;          /* [B,T,E] x + f(...), before a post-norm, after a branch norm */
    mha_tensor next;         /* [B,T,E] the stream after the part: sum, or its norm if post-norm.
                              * After the last part, with what input_dim and
                              * MHA_LAYER_OUTPUT_SCALE add */
    mha_tensor q;            /* [B,H,T,D] the input of attention: q and k are rotated */
    mha_tensor k, v;         /* [B,Hk,S,D] */
    mha_tensor lse;          /* [B,H,T] */
    mha_tensor heads;        /* [B,H,T,D] each head's output, times its gates */
    mha_tensor concatenated; /* [B,T,H D] the same memory, heads side by side: the input of W_o */
    mha_tensor hidden;       /* [B,T,F] of a feed-forward layer without experts: W_down's input */
    /* How heads are computed from q, k and v, without gates, dropout and lengths: for
     * mha_attention_visit_rows(). Its tensors are the transformer's */
    mha_attention_desc attention;
    /* For a gated delta net or state space, f32 [B,H,T]; with a gate_rank, log_decay is [B,H,T,key_dim]. The
     * tensors above are then the inputs of its recurrence, q and k [B,Hk,T,key_dim] and v
     * [B,H,T,value_dim], without lse */
    mha_tensor log_decay, strength;
    /* Of a feed-forward layer with experts, [B,T,used]: the numbers of each token's experts (i32),
     * in ascending order, and their weights (f32) times scale */
    mha_tensor experts, expert_weights;
    mha_tensor skip; /* of a state space, f32 [1,H,1]: D */
} mha_layer_view;

/**
 * Views of a part of a layer after the last mha_transformer_forward(). They are read-only, and
 * parts share memory: `next` of one part is `stream` of the following one.
 *
 * Memory   fills *view; borrowed until the activations' next forward or backward call.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (struct_size, no such layer, a part that the layer lacks,
 *          activations without a batch, or without this layer: first_layer).
 * Threads  any, while no call uses the activations.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_activations_layer(const mha_activations *activations,
                                                       int64_t layer, mha_layer_part part,
                                                       mha_layer_view *view);

/* The two ends of the stream, all [B,T,E]. */
typedef struct mha_stream_view {
    uint32_t struct_size; /* in: sizeof(mha_stream_view) */
    uint32_t reserved;
    /* The sum of the tables, before a norm on embeddings, or their projection, which is the same as
     * first; ndim 0 if the stream was given (mha_transformer_input.stream) */
    mha_tensor embedded;
    mha_tensor first;  /* the stream before the first layer; ndim 0 if it was not run */
    mha_tensor last;   /* after the last layer, before the final norm */
    mha_tensor normed; /* after the final norm; the same as last if there is none; the input
                            of W_out */
} mha_stream_view;

/** Views of the ends of the stream. Memory, Errors, Threads as mha_activations_layer().
 * Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_activations_stream(const mha_activations *activations,
                                                        mha_stream_view *view);

/**
 * Find a parameter by its name (mha_transformer_parameter() lists them); with layer >= 0, by its
 * name without the prefix "layers.N.": "self_attn.o_proj.weight".
 *
 * Memory   fills *parameter.   Errors  MHA_ERR_NULL; MHA_ERR_ARGUMENT if there is none.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_transformer_find(const mha_transformer *transformer,
                                                      int64_t layer, const char *name,
                                                      mha_parameter *parameter);

/* The rotation of queries and keys in a layer with rotary positions: pair i turns by
 * pos frequencies[i], and the first rotary_dim elements are multiplied by amplitude. */
typedef struct mha_layer_rotation {
    uint32_t struct_size; /* in: sizeof(mha_layer_rotation) */
    mha_rope_pairing pairing;
    int64_t rotary_dim;  /* number of leading elements of a head that rotate; 0: none */
    double amplitude;    /* 1, except for YaRN and LongRoPE */
    double *frequencies; /* in: room for D / 2 numbers, or NULL; [rotary_dim / 2] out */
} mha_layer_rotation;

/**
 * The rotation of a layer's self-attention, with its scaling (mha_rope_scaling); with
 * MHA_ROPE_SCALING_LONG that of short sequences.
 *
 * Memory   fills *rotation and the array that its frequencies point to.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (struct_size, no such layer).
 * Threads  any.   Accuracy  relative error of frequencies at most 2^-48.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_transformer_rotation(const mha_transformer *transformer,
                                                          int64_t layer,
                                                          mha_layer_rotation *rotation);

/* The requested gradients. All are accumulated: added to the arrays' contents. */
typedef struct mha_transformer_gradients {
    uint32_t struct_size;
    uint32_t reserved;             /* 0 */
    float *parameters;             /* mha_transformer_size() floats; NULL: not requested */
    const mha_tensor *memory;      /* [B,S,memory_dim]; NULL: not requested */
    const mha_tensor *gates;       /* [L,H]; NULL: not requested */
    const mha_tensor *cross_gates; /* [L,H] */
    /* f32 [L,B,H,T], of self-attention: a head's output times the gradient with respect to it,
     * summed over its elements. If the gates are 1, its sum over the tokens of a sequence is the
     * gradient with respect to the gate in that sequence */
    const mha_tensor *heads;
    /* f32 [L,B,T,mha_transformer_heads_width()], of self-attention: the gradient with respect to
     * the outputs of the heads, side by side as in mha_layer_view.concatenated */
    const mha_tensor *head_outputs;
} mha_transformer_gradients;

/**
 * The gradients of a loss whose gradient with respect to the output is output_gradient, after
 * mha_transformer_forward() with the same input and activations (which are consumed).
 *
 *   output_gradient in, with the shape of output
 *
 * Memory   scratch from the context.
 * Errors   as mha_transformer_forward(), MHA_ERR_ARGUMENT if activations hold another batch; the
 *          gradients are then unspecified.
 * Threads  one call per context and activations.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_transformer_backward(
    mha_context *context, const mha_transformer *transformer, const mha_transformer_input *input,
    mha_activations *activations, const mha_tensor *output_gradient,
    const mha_transformer_gradients *gradients);

/* ---- fewer heads ----------------------------------------------------------------------------- */

/**
 * Create a smaller transformer without some heads of self-attention: their rows of W_q, W_k and W_v
 * and their columns of W_o are removed. It computes the same function as the old one with the gates
 * of these heads at 0; with num_heads head_dim <= 128 the results are bit-identical.
 *
 *   keep f32 [L,H] in, 1: keep, 0: remove
 *
 * A key/value head is removed with the last head that reads it. If the remaining groups differ in
 * size, key/value heads are repeated so that all groups have one size, a common divisor of their
 * sizes: the result is exact, but no key/value heads are saved. num_heads becomes the largest
 * number of remaining heads in a layer, unless there is cross-attention, which keeps all its heads.
 *
 * Memory   the caller owns *pruned, as from mha_transformer_create(). If this transformer has a
 *          source, *pruned has one that reads from this transformer, whose memory is then freed
 *          when both are destroyed, in any order.
 * Errors   MHA_ERR_NULL, MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_STRIDE, MHA_ERR_NOMEM;
 *          MHA_ERR_ARGUMENT (keep is neither 0 nor 1). *pruned is then unchanged.
 * Threads  one call per context.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_transformer_prune(mha_context *context,
                                                       const mha_transformer *transformer,
                                                       const mha_tensor *keep,
                                                       mha_transformer **pruned);

/**
 * Share keys and values among neighbouring heads (grouped queries, Ainslie et al. 2023, 2.1): each
 * group gets one key/value head, whose W_k, W_v and biases are the means of the group's. The result
 * is a different function, which needs further training.
 *
 *   kv_heads  of every layer with heads: a divisor of its number of heads
 *
 * Memory   as mha_transformer_prune().
 * Errors   MHA_ERR_NULL, MHA_ERR_NOMEM; MHA_ERR_SHAPE (not a divisor).
 * Threads  one call per context.   Accuracy  means in double, rounded once.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_transformer_share_kv(mha_context *context,
                                                          const mha_transformer *transformer,
                                                          int64_t kv_heads,
                                                          mha_transformer **shared);

/**
 * Create a transformer with the same parameters and another description: no mask, a window, another scale,
 * other positions or another base of the rotation. It computes a different function.
 *
 *   desc  that of mha_transformer_describe(), changed; its parameters must exist, in the same shapes
 *
 * Memory   as mha_transformer_prune(); desc is copied.
 * Errors   MHA_ERR_NULL, MHA_ERR_NOMEM; MHA_ERR_SHAPE (other layers or heads, a parameter of another shape); those
 *          of mha_transformer_create(); MHA_ERR_ARGUMENT (a parameter that does not exist).
 * Threads  one call per context.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_transformer_vary(mha_context *context,
                                                      const mha_transformer *transformer,
                                                      const mha_transformer_desc *desc,
                                                      mha_transformer **varied);

/**
 * A copy with an array (mha_transformer_data()), which can be changed or trained, even if the
 * transformer has a source.
 *
 * Memory   the caller owns *copy, as from mha_transformer_create().
 * Errors   MHA_ERR_NULL, MHA_ERR_NOMEM.
 * Threads  one call per context.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_transformer_copy(mha_context *context,
                                                      const mha_transformer *transformer,
                                                      mha_transformer **copy);

/* ---- decoding -------------------------------------------------------------------------------- */

/* The state of a causal transformer while decoding: the keys and values of each layer for several
 * sequences of different lengths. With MHA_TRANSFORMER_CROSS also the keys and values of the
 * memory, which are computed once. */
typedef struct mha_decoder mha_decoder;

/* mha_decoder_desc.flags */
enum {
    /* Layers with a sliding window cache only that window (Gemma, Mistral):
     * mha_kv_cache_desc.window. Results are bit-identical */
    MHA_DECODER_WINDOWS = 1 << 0,
    /* Positions are those in the cache (StreamingLLM, Xiao et al. 2024): sinks stay adjacent to the
     * window, as if the discarded tokens did not exist, so a text may be longer than max_length. A
     * token at position i sees sink j at distance min(i, sink_keys + window - 1) - j. Requires
     * rotary positions and window + sink_keys <= max_length. Steps of any size give the same bits;
     * a step beyond the window attends token by token. Does not support forks. */
    MHA_DECODER_STREAMING = 1 << 1,
    /* Layers with latent attention cache rms_norm(c) and the rotated p of a token: latent_dim + shared_dim
     * numbers instead of num_heads (head_dim + value_dim). A step expands those of all earlier tokens
     * again, with latent_dim num_heads (head_dim - shared_dim + value_dim) multiply-adds for each.
     * Results are bit-identical. Scratch holds the keys and values of one sequence in a layer. Not with
     * a window */
    MHA_DECODER_LATENT = 1 << 2
};

typedef struct mha_decoder_desc {
    uint32_t struct_size;
    uint32_t flags;
    int64_t batch;        /* B, sequences; 0: 1 */
    int64_t capacity;     /* maximum tokens per sequence, at most max_length; 0: max_length */
    int64_t max_step;     /* maximum tokens per sequence and step; 0: capacity */
    mha_dtype cache_type; /* of cached keys and values (cache.h); MHA_F32 (0), MHA_F16, MHA_BF16
                             or MHA_I8 */
    uint32_t reserved2;   /* 0 */
    int64_t page_size;    /* positions per page of the caches; 0: capacity */
    int64_t pages;        /* per layer, for all sequences; 0: enough to fill them */
    /* A token attends to the last `window` tokens, including itself, and to the first sink_keys of
     * its sequence. Tokens that no later token sees are discarded. Layers with a smaller window
     * keep that window. 0: none */
    int64_t window;
    int64_t sink_keys;
    /* Maximum rows of a sequence's memory: required with MHA_TRANSFORMER_CROSS, else 0. Its caches
     * have one page per sequence */
    int64_t memory_capacity;
    mha_kv_scales key_scales; /* for MHA_I8 */
    uint32_t reserved3;       /* 0 */
    /* Layers with states (mha_layer_desc.mixer) cannot be truncated like keys and values. The decoder
     * copies the states of a sequence whenever its length becomes a multiple of state_interval, and in
     * mha_decoder_keep(). Truncation to the length of a copy restores it. To return to any length, a
     * sequence repeats fewer than state_interval tokens. Results are bit-identical. A sequence keeps its last
     * state_copies copies; 0: capacity / state_interval, or none. Without such layers both are ignored */
    int64_t state_interval; /* 0: only mha_decoder_keep() copies */
    int64_t state_copies;
} mha_decoder_desc;

/* The memory of a decoder's caches, in bytes; with several ranks, the sum over all ranks. */
typedef struct mha_decoder_sizes {
    uint32_t struct_size;
    uint32_t reserved;
    int64_t memory_bytes; /* of the caches of cross-attention */
    int64_t scale_bytes;
    int64_t table_bytes;
    int64_t total_bytes; /* all, including the above */
    int64_t state_bytes; /* of layers with states: B (1 + state_copies) sets of states */
} mha_decoder_sizes;

/**
 * Create a decoder. desc may be NULL.
 *
 * Memory   the caller owns *decoder; the bytes of mha_decoder_count(), touched as they are used,
 *          and activations of two layers for B max_step tokens; from the context's allocator, which
 *          must outlive it. The transformer must outlive it too.
 * Errors   MHA_ERR_NULL, MHA_ERR_DTYPE; MHA_ERR_ARGUMENT (a number; sink_keys without window;
 *          memory_capacity without cross-attention, or 0 with it); MHA_ERR_UNSUPPORTED (not causal,
 *          unknown flags, or a field of a newer library is set); MHA_ERR_SIZE, MHA_ERR_NOMEM.
 * Threads  as mha_context_create().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_decoder_create(mha_context *context,
                                                    const mha_transformer *transformer,
                                                    const mha_decoder_desc *desc,
                                                    mha_decoder **decoder);

/**
 * The memory that the caches of a decoder would take. It counts the states without alignment, and
 * as many copies of them as a decoder can keep. A copy is allocated when it is made.
 *
 * Memory   fills *sizes, whose struct_size must be set.
 * Errors   as mha_decoder_create(), except MHA_ERR_NOMEM.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_decoder_count(const mha_transformer *transformer,
                                                   const mha_decoder_desc *desc,
                                                   mha_decoder_sizes *sizes);

/** Destroy; NULL: a no-op. Memory frees all. Errors none. Threads no other thread may be using it.
 * Since 0.1 */
MHA_API void mha_decoder_destroy(mha_decoder *decoder);

/** The number of tokens of each sequence, [B]. Memory owned by the decoder and updated with it. Errors
 * none. Threads any while no step is running. Since 0.1 */
MHA_API const int64_t *mha_decoder_lengths(const mha_decoder *decoder);

/** The number of tokens of the longest sequence. Memory none. Errors none. Threads any while no step
 * is running. Since 0.1 */
MHA_API int64_t mha_decoder_length(const mha_decoder *decoder);

/** total_bytes of mha_decoder_count(). Memory none. Errors none. Threads any. Since 0.1 */
MHA_API size_t mha_decoder_cache_bytes(const mha_decoder *decoder);

/**
 * Truncate every longer sequence to its first `length` tokens: after a rejected draft, or to 0 for
 * new sequences. The memory of cross-attention is kept. With layers that have states, a sequence can
 * keep its length, be emptied, or return to the length of a copy (state_interval). To reach another
 * length, truncate to mha_decoder_restorable() and step through the tokens after it.
 *
 * Memory   frees copies of states beyond `length`.
 * Errors   MHA_ERR_NULL; MHA_ERR_UNSUPPORTED (no copy of the states); MHA_ERR_ARGUMENT if every sequence
 *          is shorter, or if a sequence has discarded tokens that its window would include
 *          afterwards. Every sequence is then unchanged.
 * Threads  no other thread may be using the decoder.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_decoder_truncate(mha_decoder *decoder, int64_t length);

/** mha_decoder_truncate() of sequence b. Memory likewise. Errors likewise; MHA_ERR_ARGUMENT if there is no
 * sequence b. Threads likewise. Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_decoder_truncate_sequence(mha_decoder *decoder, int64_t b,
                                                               int64_t length);

/**
 * Make sequence `to` the first `length` tokens of sequence `from`, with its memory
 * (mha_kv_cache_fork()): a branch, or a prompt that several sequences share. The previous content
 * of `to` is discarded. Both share the copies of states up to `length`.
 *
 * Memory   none.   Errors   as mha_decoder_truncate_sequence(); MHA_ERR_ARGUMENT if both are the same.
 * Threads  no other thread may be using the decoder.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_decoder_fork(mha_decoder *decoder, int64_t from, int64_t to,
                                                  int64_t length);

/**
 * Keep a copy of the states of sequence b at its present length, for a later truncation or fork. It
 * replaces the oldest of state_copies copies. Without layers that have states: a no-op.
 *
 * Memory   a copy, counted by mha_decoder_count(); none if this length already has one.
 * Errors   MHA_ERR_NULL; MHA_ERR_NOMEM (the oldest copy may be lost); MHA_ERR_ARGUMENT (state_copies is 0;
 *          there is no sequence b).
 * Threads  one call per context and decoder.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_decoder_keep(mha_context *context, mha_decoder *decoder,
                                                  int64_t b);

/** The greatest length, at most `length`, to which sequence b can be truncated; 0 if there is no sequence
 * b. Memory none. Errors none. Threads as mha_decoder_lengths(). Since 0.1 */
MHA_API int64_t mha_decoder_restorable(const mha_decoder *decoder, int64_t b, int64_t length);

/**
 * Set the memory that later steps attend to (MHA_TRANSFORMER_CROSS). The keys and values of each
 * layer are computed here, once. A later call replaces the memory; cached self-attention keys and
 * values of earlier tokens remain those computed with the earlier memory.
 *
 *   memory f32 [B,S,memory_dim], S <= memory_capacity    memory_lengths [B], 0 .. S; NULL: S
 *
 * Memory   scratch from the context; memory is not used afterwards.
 * Errors   as mha_transformer_forward(); MHA_ERR_ARGUMENT (no cross-attention); MHA_ERR_SIZE (S).
 *          The previous memory is then kept.
 * Threads  one call per context and decoder.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_decoder_set_memory(mha_context *context, mha_decoder *decoder,
                                                        const mha_tensor *memory,
                                                        const int64_t *memory_lengths);

/** mha_decoder_step_rows() of all rows: the next n tokens of every sequence. Memory, Errors, Threads
 * as there. Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_decoder_step(mha_context *context, mha_decoder *decoder,
                                                  const mha_tensor *tokens,
                                                  const mha_tensor *output);

/**
 * Process the next tokens of every sequence: sequence b takes the rows firsts[b] .. firsts[b] +
 * counts[b] - 1 of tokens. The other rows are padding, on the left or right; a paused sequence has
 * only padding.
 *
 *   tokens i32 [B,n], 1 <= n <= max_step; padding may hold any numbers
 *   firsts [B], 0 .. n; NULL: 0    counts [B], 0 .. n - firsts[b]; NULL: n - firsts[b]
 *   output [B,n,V] out, or [B,n,E], as mha_transformer_forward(); rows of padding are unspecified;
 *                  NULL: not computed
 *
 * With MHA_ROPE_SCALING_LONG the first step in which a sequence has more than rope_original_length
 * tokens, or no longer has, first computes the keys and values of its earlier tokens again, and makes
 * only the copies of states that state_interval requires. The outputs of earlier steps are those of
 * the sequence as it was then.
 *
 * Positions count the tokens of a sequence; padding has no position and is never stored. The
 * results of a sequence are bit-identical to a decoder with this sequence alone, however its tokens
 * are divided into steps, and with f32 caches to mha_transformer_forward() of the whole sequence.
 * With MHA_KV_SCALES_CHANNEL they depend on the steps (cache.h).
 *
 * Memory   scratch from the context.
 * Errors   as mha_transformer_forward(); MHA_ERR_ARGUMENT (firsts, counts; no memory was set);
 *          MHA_ERR_SIZE (more than max_step tokens, or a sequence longer than the capacity);
 *          MHA_ERR_NOMEM also if too few pages are free. The decoder is then unchanged and output
 *          unspecified, but copies of states that new ones would replace may be lost. A sequence is emptied if a layer with a state had begun the step. All
 *          sequences whose earlier keys were being computed again are emptied.
 * Threads  one call per context and decoder.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_decoder_step_rows(mha_context *context, mha_decoder *decoder,
                                                       const mha_tensor *tokens,
                                                       const int64_t *firsts, const int64_t *counts,
                                                       const mha_tensor *output);

#ifdef __cplusplus
}
#endif
#endif
