/* multihead: the multi-head attention module, projections included.
 *
 *   q = query W_q^T + b_q      k = key W_k^T + b_k      v = value W_v^T + b_v
 *   head_h = attention(q_h, k_h / (H/Hk), v_h / (H/Hk))
 *   out = concat(head_0 .. head_{H-1}) W_o^T + b_o          (Vaswani et al. 2017, section 3.2.2)
 *
 * Weights are stored as PyTorch stores them, [outputs, inputs]. Letters as in attention.h, and
 *   E   width of query and out (embed_dim)      Ek, Ev   widths of key and value
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_MODULE_H
#define MULTIHEAD_MODULE_H

#include <multihead/attention.h>

#ifdef __cplusplus
extern "C" {
#endif

/* mha_module_desc.flags */
enum {
    MHA_MODULE_NO_QKV_BIAS = 1 << 0, /* no b_q, b_k, b_v */
    MHA_MODULE_NO_OUT_BIAS = 1 << 1, /* no b_o */
    MHA_MODULE_BIAS_KV = 1 << 2,     /* one more key and value, learned: bias_k, bias_v */
    MHA_MODULE_ZERO_ATTN = 1 << 3    /* and one of zeros, the last */
};

typedef struct mha_module_desc {
    uint32_t struct_size;
    uint32_t flags;
    int64_t embed_dim;      /* E, required */
    int64_t num_heads;      /* H, required */
    int64_t kv_heads;       /* Hk, divides H; 0: H */
    int64_t head_dim;       /* D; 0: E / H, which must then be whole */
    int64_t value_head_dim; /* Dv; 0: D */
    int64_t key_dim;        /* Ek; 0: E */
    int64_t value_dim;      /* Ev; 0: E */
} mha_module_desc;

/* Parameters and their packed copies. Never changes during a forward call, so any number of
 * threads may use one module, each with its own context. */
typedef struct mha_module mha_module;

/**
 * Make a module with all parameters zero.
 *
 * Memory   the caller owns *module; memory comes from the context's allocator, which must outlive
 *          the module (the context need not).
 * Errors   MHA_ERR_NULL, _ARGUMENT, _SIZE, _NOMEM; MHA_ERR_SHAPE if embed_dim is not a multiple of
 *          num_heads and head_dim is 0, or num_heads not one of kv_heads.
 * Threads  as mha_context_create().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_module_create(mha_context *context,
                                                   const mha_module_desc *desc,
                                                   mha_module **module);

/** Destroy a module; NULL is fine. Memory frees all. Errors none. Threads nobody uses it.
 * Since 0.1 */
MHA_API void mha_module_destroy(mha_module *module);

/** The module's description with every default filled in. Memory fills *desc. Errors none.
 * Threads any. Since 0.1 */
MHA_API void mha_module_describe(const mha_module *module, mha_module_desc *desc);

/**
 * Set a parameter by its PyTorch name:
 *
 *   in_proj_weight [3 H*D, E]                     q, k, v in this order, if the three weights have
 *                                                 one shape (Hk = H, Dv = D, Ek = Ev = E)
 *   q_proj_weight  [H*D, E]    k_proj_weight [Hk*D, Ek]    v_proj_weight [Hk*Dv, Ev]
 *   in_proj_bias   [H*D + Hk*D + Hk*Dv]           q, k, v in this order
 *   q_proj.weight, q_proj.bias and so on          the same, one linear layer each
 *   out_proj.weight [E, H*Dv]  out_proj.bias [E]
 *   bias_k [1, 1, Hk*D]        bias_v [1, 1, Hk*Dv]                 with MHA_MODULE_BIAS_KV
 *
 * f32, any strides.
 *
 * Memory   copied (packed); the caller may free value at once.
 * Errors   MHA_ERR_NULL, _ARGUMENT (unknown name, or a parameter that the module does not have),
 *          _SHAPE, _DTYPE, _SIZE.   Threads  nobody else uses the module.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_module_set_parameter(mha_module *module, const char *name,
                                                          const mha_tensor *value);

/**
 * The other way: a parameter, by any of its names, with the bits that were set.
 *
 *   value: f32, the parameter's shape, any strides; written
 *
 * Memory   fills the caller's tensor.
 * Errors   as mha_module_set_parameter(), and MHA_ERR_STRIDE (elements of value share memory). On
 *          error nothing is written.   Threads  any, while nobody sets.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_module_get_parameter(const mha_module *module,
                                                          const char *name,
                                                          const mha_tensor *value);

/* A parameter as the module's state_dict has it. */
typedef struct mha_module_parameter {
    const char *name; /* static text */
    int32_t ndim;
    int64_t shape[MHA_MAX_DIMS];
} mha_module_parameter;

/**
 * The parameters one by one, index = 0, 1, ..., until the answer is false: those, under those
 * names, in that order, which a state_dict of PyTorch's nn.MultiheadAttention has (in_proj_weight
 * if the three weights have one shape, else q_proj_weight, k_proj_weight, v_proj_weight; biases are
 * always joined in in_proj_bias), and what that class has not. Every parameter occurs once.
 *
 * Memory   fills *parameter.   Errors   false beyond the last one, or for a NULL.
 * Threads  any.                Since    0.1
 */
MHA_API bool mha_module_parameter_at(const mha_module *module, int64_t index,
                                     mha_module_parameter *parameter);

/** The number of parameters, each element counted. Memory none. Errors none. Threads any.
 * Since 0.1 */
MHA_API int64_t mha_module_parameter_count(const mha_module *module);

/* Outputs beside out; NULL means not wanted. All f32, any strides with a contiguous last axis. S
 * counts the columns of bias_k and of the zeros, if the module has them: they come last. In a
 * ragged batch it is the longest sequence's. */
typedef struct mha_module_outputs {
    uint32_t struct_size;
    uint32_t reserved;                       /* 0 */
    const mha_tensor *probabilities;         /* [B,H,T,S] */
    const mha_tensor *average_probabilities; /* [B,T,S], the mean over heads */
    const mha_tensor *q;                     /* [B,H ,T,D ] after the projection */
    const mha_tensor *k;                     /* [B,Hk,S,D ] without bias_k and zeros */
    const mha_tensor *v;                     /* [B,Hk,S,Dv] */
    const mha_tensor *heads;                 /* [B,H ,T,Dv] what W_o mixes */
    const mha_tensor *lse;                   /* [B,H,T] */
    /* What else attention can tell (attention.h): its tensors have the batch axis always, and
     * nothing is given both here and there. Not with MHA_MODULE_BIAS_KV or _ZERO_ATTN. */
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
    const mha_tensor *out;               /* [B,T,E ] out */
    const mha_module_outputs *outputs;   /* NULL: none */
} mha_module_call;

/**
 * The whole module: project, attend, mix.
 *
 *   query [B,T,E] in    key [B,S,Ek] in    value [B,S,Ev] in    out [B,T,E] out    f32
 *
 * Self-attention passes the same tensor three times. attention describes mask, scale and path.
 * Strides are free, last axis contiguous: mha_tensor_tbe() views [T,B,E] memory. Without a batch
 * axis, query [T,E], key [S,Ek], value [S,Ev] and out [T,E], every output lacks it too (as
 * probabilities [H,T,S]), and B is 1.
 *
 * The key of MHA_MODULE_BIAS_KV and that of zeros are seen by every query, whatever the masks
 * (causal, lengths, windows, documents, blocks, keep_mask, callback, ragged batches): dense masks
 * and biases have S columns without them. They stand at no position: nothing is added to their
 * scores, which are softcap(scale q bias_k) and 0. Dropout knows them as keys S and S + 1. A query
 * that sees no other key sees them.
 *
 * Memory   borrowed for the call; scratch from the context, of the size of q, k, v and the heads
 *          (mha_module_scratch()).
 * Errors   as mha_attention_forward(); MHA_ERR_SHAPE names key and value lengths that differ.
 *          On error no output byte is written.
 * Threads  one call at a time per context.
 * Accuracy projections as mha_linear_forward() (nn.h), attention as mha_attention_forward(); with
 *          bias_k the errors of all scores are larger by 2^-24 |lse|.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_module_run(mha_context *context, const mha_module *module,
                                                const mha_module_call *call);

/**
 * mha_module_run() of a call with these fields.
 *
 * Memory, Errors, Threads, Accuracy   as there.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_module_forward(mha_context *context, const mha_module *module,
                                                    const mha_attention_desc *attention,
                                                    const mha_tensor *query, const mha_tensor *key,
                                                    const mha_tensor *value, const mha_tensor *out,
                                                    const mha_module_outputs *outputs);

/**
 * The scratch that mha_module_run() of the same call takes at most; checks the call all the same.
 * Data pointers of tensors may be NULL and are not read, nor is out needed.
 *
 * Memory   fills *bytes, for mha_context_reserve().   Errors   as mha_module_run(), except _OVERLAP
 *          and _NOMEM.   Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_module_scratch(mha_context *context, const mha_module *module,
                                                    const mha_module_call *call, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
