/* multihead: the multi-head attention module, projections included.
 *
 *   q = query W_q^T + b_q      k = key W_k^T + b_k      v = value W_v^T + b_v
 *   head_h = attention(q_h, k_h / (H/Hk), v_h / (H/Hk))
 *   out = concat(head_0 .. head_{H-1}) W_o^T + b_o          (Vaswani et al. 2017, section 3.2.2)
 *
 * Weights have PyTorch's layout, [outputs, inputs]. Letters as in attention.h, and
 *   E   width of query and out (embed_dim)      Ek, Ev   widths of key and value
 *
 * Example, given mha_context *context, mha_tensor weight, mha_tensor tokens, mha_tensor out:
 *
 *   mha_module_desc desc = MHA_INIT(mha_module_desc);
 *   desc.flags = MHA_MODULE_NO_QKV_BIAS | MHA_MODULE_NO_OUT_BIAS;
 *   desc.embed_dim = 256, desc.num_heads = 8;
 *   mha_module *module = NULL;
 *   mha_status status = mha_module_create(context, &desc, &module);
 *   if (!status) status = mha_module_set_parameter(module, "in_proj_weight", &weight); // ...
 *   mha_module_call call = MHA_INIT(mha_module_call);
 *   call.query = call.key = call.value = &tokens, call.out = &out; // self-attention
 *   if (!status) status = mha_module_run(context, module, &call);
 *   mha_module_destroy(module);
 *
 * Stability: stable from 1.0 (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_MODULE_H
#define MULTIHEAD_MODULE_H

#include <multihead/attention.h>
#include <multihead/cache.h>
#include <multihead/position.h>

#ifdef __cplusplus
extern "C" {
#endif

/* mha_module_desc.flags */
enum {
    MHA_MODULE_NO_QKV_BIAS = 1 << 0, /* no b_q, b_k, b_v */
    MHA_MODULE_NO_OUT_BIAS = 1 << 1, /* no b_o */
    MHA_MODULE_BIAS_KV = 1 << 2,     /* an extra learned key and value: bias_k, bias_v */
    MHA_MODULE_ZERO_ATTN = 1 << 3,   /* a final key and value, all zeros */
    MHA_MODULE_SINKS = 1 << 4,       /* learned sink logits (attention.h): sinks */
    MHA_MODULE_ROPE = 1 << 5,        /* q and k are rotated by their positions */
    MHA_MODULE_QK_NORM = 1 << 6      /* q and k are normalised, before any rotation:
                                        q_norm.weight, k_norm.weight */
};

typedef struct mha_module_desc {
    uint32_t struct_size;
    uint32_t flags;
    int64_t embed_dim;      /* E, required */
    int64_t num_heads;      /* H, required */
    int64_t kv_heads;       /* Hk, divides H; 0: H */
    int64_t head_dim;       /* D; 0: E / H, which must be an integer */
    int64_t value_head_dim; /* Dv; 0: D */
    int64_t key_dim;        /* Ek; 0: E */
    int64_t value_dim;      /* Ev; 0: E */
    /* With MHA_MODULE_ROPE: like the fields of mha_rope_desc (position.h). */
    mha_rope_pairing rope_pairing;
    /* With MHA_MODULE_QK_NORM: like the arguments of mha_qk_norm(). */
    mha_qk_norm_kind qk_norm;
    int64_t rotary_dim;            /* even; 0: D */
    double rope_base, rope_factor; /* 0: 10000, 1 */
    float qk_norm_epsilon;         /* 0: 1e-6, or 1e-12 for MHA_QK_NORM_L2 */
    uint32_t reserved;             /* 0 */
} mha_module_desc;

/* Parameters and their packed copies. A forward call does not change a module, so any number of
 * threads may use one module, each with its own context. */
typedef struct mha_module mha_module;

/**
 * Create a module with all parameters zero, except q_norm.weight and k_norm.weight, which are 1.
 *
 * Memory   the caller owns *module; memory comes from the context's allocator, which must outlive
 *          the module (the context need not).
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (struct_size, a size, a setting of RoPE or the norm, or
 *          one of them without its flag), MHA_ERR_UNSUPPORTED, MHA_ERR_SIZE, MHA_ERR_NOMEM;
 *          MHA_ERR_SHAPE if embed_dim is not a multiple of num_heads and head_dim is 0, or
 *          num_heads is not a multiple of kv_heads.
 * Threads  as mha_context_create().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_module_create(mha_context *context,
                                                   const mha_module_desc *desc,
                                                   mha_module **module);

/** Destroy a module; NULL: a no-op. Memory frees all. Errors none. Threads no other thread may be
 * using it. Since 0.1 */
MHA_API void mha_module_destroy(mha_module *module);

/** The module's description with every default filled in. Memory fills *desc. Errors none.
 * Threads any. Since 0.1 */
MHA_API void mha_module_describe(const mha_module *module, mha_module_desc *desc);

/**
 * Set a parameter by its PyTorch name:
 *
 *   in_proj_weight [3 H*D, E]                     q, k, v in this order, if the three weights have
 *                                                 the same shape (Hk = H, Dv = D, Ek = Ev = E)
 *   q_proj_weight  [H*D, E]    k_proj_weight [Hk*D, Ek]    v_proj_weight [Hk*Dv, Ev]
 *   in_proj_bias   [H*D + Hk*D + Hk*Dv]           q, k, v in this order
 *   q_proj.weight, q_proj.bias and so on          the same, one linear layer each
 *   out_proj.weight [E, H*Dv]  out_proj.bias [E]
 *   bias_k [1, 1, Hk*D]        bias_v [1, 1, Hk*Dv]                 with MHA_MODULE_BIAS_KV
 *   q_norm.weight [D]          k_norm.weight [D]                    with MHA_MODULE_QK_NORM
 *   sinks [H]                                                       with MHA_MODULE_SINKS
 *
 * f32, f16 or bf16, which are widened exactly; any strides.
 *
 * Memory   copied (packed); the caller may free value at once.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (unknown name, or a parameter that the module does not
 *          have), MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_SIZE; MHA_ERR_NOMEM after
 *          mha_module_borrow_parameter() only. On error the module is unchanged.
 * Threads  no other thread may be using the module.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_module_set_parameter(mha_module *module, const char *name,
                                                          const mha_tensor *value);

/**
 * Use a weight in the caller's memory, by any of its names: for weights that change often, as in
 * training. Every call reads the current values, so an optimizer may change them in place without
 * another call. Any earlier packed copy is freed.
 *
 *   value: f32, f16 or bf16, the weight's shape, each row contiguous, rows any distance apart
 *
 * Results are bit-identical to mha_module_set_parameter(). Each call packs the weight with all
 * threads, a few rows at a time so that they stay in cache. This makes the call 3 % slower for 512
 * query rows (batch times length), 10 % for 128. Setting a weight takes a fifth of the time of such
 * a call, on one thread. f16 and bf16 are read in place, with half the memory traffic. For
 * generating text, one token at a time, set f32 weights. Biases and vectors are small: set them.
 *
 * Memory   value's memory is borrowed until the weight is borrowed or set again, or the module is
 *          destroyed, and must not change during a call. mha_module_scratch() includes the scratch
 *          that calls then need.
 * Errors   as mha_module_set_parameter(); MHA_ERR_ARGUMENT (not a weight), MHA_ERR_STRIDE.
 * Threads  no other thread may be using the module.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_module_borrow_parameter(mha_module *module, const char *name,
                                                             const mha_tensor *value);

/**
 * Get a parameter, by any of its names, with the bits that were set.
 *
 *   value: f32, the parameter's shape, any strides; written
 *
 * Memory   fills the caller's tensor.
 * Errors   as mha_module_set_parameter(), and MHA_ERR_STRIDE (elements of value share memory). On
 *          error nothing is written.   Threads  any, while no parameter is being set.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_module_get_parameter(const mha_module *module,
                                                          const char *name,
                                                          const mha_tensor *value);

/* A parameter as in the module's state_dict. */
typedef struct mha_module_parameter {
    const char *name; /* static text */
    int32_t ndim;
    int64_t shape[MHA_MAX_DIMS];
} mha_module_parameter;

/**
 * Iterate over the parameters, index = 0, 1, ..., until the function returns false: first those in
 * the state_dict of PyTorch's nn.MultiheadAttention, with its names and order (in_proj_weight if
 * the three weights have the same shape, else q_proj_weight, k_proj_weight, v_proj_weight; biases
 * are always combined in in_proj_bias), then those that the PyTorch class does not have. Every
 * parameter occurs once.
 *
 * Memory   fills *parameter.   Errors   false beyond the last one, or if a pointer is NULL.
 * Threads  any.                Since    0.1
 */
MHA_API bool mha_module_parameter_at(const mha_module *module, int64_t index,
                                     mha_module_parameter *parameter);

/** The number of parameters, counting elements. Memory none. Errors none. Threads any.
 * Since 0.1 */
MHA_API int64_t mha_module_parameter_count(const mha_module *module);

/* Outputs besides out; NULL: not requested. All f32, any strides with a contiguous last axis. S
 * includes the columns of bias_k and of the zeros, which are last, if the module has them. In a
 * ragged batch S is that of the longest sequence. */
typedef struct mha_module_outputs {
    uint32_t struct_size;
    uint32_t reserved;                       /* 0 */
    const mha_tensor *probabilities;         /* [B,H,T,S] */
    const mha_tensor *average_probabilities; /* [B,T,S], the mean over heads */
    const mha_tensor *q;                     /* [B,H ,T,D ] projected, normalised and rotated */
    const mha_tensor *k;                     /* [B,Hk,S,D ] likewise, without bias_k and zeros */
    const mha_tensor *v;                     /* [B,Hk,S,Dv] */
    const mha_tensor *heads;                 /* [B,H ,T,Dv] the input of W_o */
    const mha_tensor *lse;                   /* [B,H,T] */
    /* Further outputs of attention (attention.h). Their tensors always have the batch axis. Do not
     * request an output both here and above. Not with MHA_MODULE_BIAS_KV or _ZERO_ATTN. */
    const mha_attention_outputs *attention;
} mha_module_outputs;

/* One call. */
typedef struct mha_module_call {
    uint32_t struct_size;
    uint32_t reserved;                   /* 0 */
    const mha_attention_desc *attention; /* mask, scale, path, ...; NULL: all defaults */
    const mha_tensor *query;             /* [B,T,E ] in */
    const mha_tensor *key;               /* [B,S,Ek] in */
    const mha_tensor *value;             /* [B,S,Ev] in */
    const mha_tensor *out;               /* [B,T,E ] out; NULL: compute outputs.heads only */
    const mha_module_outputs *outputs;   /* NULL: none */
    /* With MHA_MODULE_ROPE: positions of tokens. NULL: key s at s, query t at t + q_offset, as
     * for masks; with a cache, positions after its contents; in a ragged batch, from each
     * sequence's start. */
    const mha_positions *query_positions, *key_positions;
    mha_kv_cache *cache;   /* NULL: none */
    const int64_t *counts; /* [B] with a cache: see mha_module_run(); NULL: all */
} mha_module_call;

/**
 * Run the module: project, attend, mix.
 *
 *   query [B,T,E] in    key [B,S,Ek] in    value [B,S,Ev] in    out [B,T,E] out
 *
 * each f32, f16 or bf16: inputs are widened exactly, into scratch, and out is rounded once from
 * f32; everything in between and all other outputs are f32. Self-attention passes the same tensor
 * three times. attention describes mask, scale, path, window, softcap, ALiBi, T5, Shaw and so on.
 * Any strides, last axis contiguous: mha_tensor_tbe() views [T,B,E] memory. If query [T,E], key
 * [S,Ek], value [S,Ev] and out [T,E] have no batch axis, neither does any output (probabilities are
 * [H,T,S]), and B is 1. out may be NULL if outputs.heads is requested: W_o is not applied and need
 * not be set. This is for ranks that each compute some of the heads (distributed.h).
 *
 * After the projection q and k are normalised and then rotated, if the module has these steps.
 *
 * The keys that MHA_MODULE_BIAS_KV and MHA_MODULE_ZERO_ATTN add are visible to every query: no mask
 * applies to them (causal, lengths, windows, documents, blocks, keep_mask, callback, ragged
 * batches), and dense masks and biases have no columns for them. They have no position: they are
 * not normalised or rotated, and nothing is added to their scores, which are softcap(scale q
 * bias_k) and 0. For dropout the first is key 2^34 - 1. A query that sees no other key still sees
 * these.
 *
 * With a cache (mha_module_cache_create(), of the same B) a call does one of three things:
 *
 *   query, key, value, out   a step of generation: the T = S new tokens are projected and appended,
 *                            and attend causally to everything in the cache. The first counts[b]
 *                            of them belong to sequence b; later rows of out are meaningless
 *   key, value               append only: an encoder's output, once, for cross-attention
 *   query, out               attend only, to everything in the cache, or as call.attention says;
 *                            the queries are at the last T positions unless q_offset is given.
 *                            mha_kv_cache_append() stores keys and values that are already
 *                            projected (static_k and static_v of PyTorch's functional form)
 *
 * S in outputs is then the longest length, but outputs k and v hold only the new keys. Steps of any
 * size, down to one token, are bit-identical to the causal sequence in one call.
 *
 * Memory   borrowed for the call; scratch from the context, of the combined size of q, k, v, the
 *          heads and all tensors that are not f32 (mha_module_scratch()).
 * Errors   as mha_attention_forward(); MHA_ERR_SHAPE names key and value lengths that differ, or
 *          sizes of a cache that are not the module's; MHA_ERR_SIZE if a cache is full;
 *          MHA_ERR_ARGUMENT if both the module and attention have sinks, for positions without
 *          RoPE, and for fields that the cache determines (key_lengths, a step's q_offset). On
 *          error no output byte is written, and a cache is unchanged.
 * Threads  one call at a time per context, and per cache if it is appended to.
 * Accuracy projections as mha_linear_forward() (nn.h), norm and rotation as in position.h,
 *          attention as mha_attention_forward(); with bias_k the errors of all scores are larger by
 *          2^-24 |lse|.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_module_run(mha_context *context, const mha_module *module,
                                                const mha_module_call *call);

/**
 * The maximum scratch of mha_module_run() with the same call, with the same checks. Data pointers
 * of tensors may be NULL and are not read; out may be NULL.
 *
 * Memory   fills *bytes, for mha_context_reserve().
 * Errors   as mha_module_run(), except MHA_ERR_OVERLAP.   Threads  as there.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_module_scratch(mha_context *context, const mha_module *module,
                                                    const mha_module_call *call, size_t *bytes);

/**
 * Create an empty cache for the module's keys and values, of `capacity` positions for each of
 * `batch` sequences. cache.h declares its other functions (lengths, truncate, reset).
 *
 * Memory, Errors, Threads   as mha_kv_cache_create().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_module_cache_create(mha_context *context,
                                                         const mha_module *module, int64_t batch,
                                                         int64_t capacity, mha_kv_cache **cache);

#ifdef __cplusplus
}
#endif
#endif
