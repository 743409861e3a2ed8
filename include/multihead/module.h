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
    MHA_MODULE_NO_OUT_BIAS = 1 << 1  /* no b_o */
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
 *   in_proj_weight [3E,E]  in_proj_bias [3E]      q, k, v in this order (needs H*D = E = Ek = Ev,
 *                                                 Hk = H, Dv = D)
 *   q_proj_weight  [H*D, E]    k_proj_weight [Hk*D, Ek]    v_proj_weight [Hk*Dv, Ev]
 *   q_proj.weight, q_proj.bias and so on          the same, one linear layer each
 *   out_proj.weight [E, H*Dv]  out_proj.bias [E]
 *
 * f32, any strides.
 *
 * Memory   copied (packed); the caller may free value at once.
 * Errors   MHA_ERR_NULL, _ARGUMENT (unknown name, or a bias that the module does not have), _SHAPE,
 *          _DTYPE, _SIZE.   Threads  nobody else uses the module.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_module_set_parameter(mha_module *module, const char *name,
                                                          const mha_tensor *value);

/* Outputs beside out; NULL means not wanted. All f32, any strides with a contiguous last axis. */
typedef struct mha_module_outputs {
    uint32_t struct_size;
    uint32_t reserved;                       /* 0 */
    const mha_tensor *probabilities;         /* [B,H,T,S] */
    const mha_tensor *average_probabilities; /* [B,T,S], the mean over heads */
    const mha_tensor *q;                     /* [B,H ,T,D ] after the projection */
    const mha_tensor *k;                     /* [B,Hk,S,D ] */
    const mha_tensor *v;                     /* [B,Hk,S,Dv] */
    const mha_tensor *heads;                 /* [B,H ,T,Dv] what W_o mixes */
    const mha_tensor *lse;                   /* [B,H,T] */
} mha_module_outputs;

/**
 * The whole module: project, attend, mix.
 *
 *   query [B,T,E] in    key [B,S,Ek] in    value [B,S,Ev] in    out [B,T,E] out    f32
 *
 * Self-attention passes the same tensor three times. attention describes mask, scale and path
 * (NULL: all defaults). Strides are free, last axis contiguous.
 *
 * Memory   borrowed for the call; scratch from the context, of the size of q, k, v and the heads.
 * Errors   as mha_attention_forward(); MHA_ERR_SHAPE names key and value lengths that differ.
 *          On error no output byte is written.
 * Threads  one call at a time per context.
 * Accuracy projections as mha_linear_forward() (nn.h), attention as mha_attention_forward().
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_module_forward(mha_context *context, const mha_module *module,
                                                    const mha_attention_desc *attention,
                                                    const mha_tensor *query, const mha_tensor *key,
                                                    const mha_tensor *value, const mha_tensor *out,
                                                    const mha_module_outputs *outputs);

#ifdef __cplusplus
}
#endif
#endif
