/* multihead: attention with the conventions of other libraries.
 *
 * The library's own conventions are in attention.h and module.h. Each function here is a peer's
 * operator with that peer's arguments, defaults, mask semantics, shapes and special values, so that
 * code written for it gets the same numbers. docs/presets.md compares all of them with ours in one
 * table. Two things are the same for all:
 *
 *   - Booleans are MHA_U8 tensors, 0 false and everything else true; what true means depends on
 *     the other library.
 *   - A key that a query does not see is skipped, not multiplied by 0: NaN or infinity in a masked
 *     key or value never reaches a result (in the peers 0 * NaN is NaN). A non-finite element of
 *     a visible key or of the query makes the row NaN.
 *
 * Float masks may hold anything that is not NaN or +infinity; -inf masks. Finite values below
 * -1e38, which some programs use for "masked", are rescaled (x -> x / 2 - 5e37) so that they
 * stay finite internally: a row whose keys all have the lowest float gives their mean, as in the
 * peers. A copy of the mask is made in the context's scratch only if that is needed or two masks
 * are combined; otherwise masks are read in place.
 *
 * Letters as in attention.h: B batch, H query heads, Hk key/value heads, T queries, S keys, D and
 * Dv head sizes.
 *
 * Stability: stable from 1.0 (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_PRESETS_H
#define MULTIHEAD_PRESETS_H

#include <multihead/attention.h>
#include <multihead/module.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- PyTorch: torch.nn.functional.scaled_dot_product_attention ------------------------------- */

/* mha_pytorch_sdpa_args.flags */
enum {
    MHA_SDPA_IS_CAUSAL = 1 << 0,   /* is_causal=True */
    MHA_SDPA_SCALE_GIVEN = 1 << 1, /* scale is a number, even 0; without it scale=None */
    MHA_SDPA_ENABLE_GQA = 1 << 2   /* enable_gqa=True */
};

/* The keyword arguments; zero everywhere is PyTorch's default. */
typedef struct mha_pytorch_sdpa_args {
    uint32_t struct_size;
    uint32_t flags;
    const mha_tensor *attn_mask; /* u8: true attends; float: is added; NULL: None */
    float scale;
    float dropout_p;       /* 0 .. 1 */
    uint64_t dropout_seed; /* of our generator; PyTorch's gives other numbers */
} mha_pytorch_sdpa_args;

/**
 * F.scaled_dot_product_attention(query, key, value, ...) of PyTorch 2.13 on a CPU.
 *
 *   query [..., H, T, D] in   key [..., Hk, S, D] in   value [..., Hk, S, Dv] in
 *   out   [..., H, T, Dv] out      2 to 6 dimensions; the number of each may differ
 *
 * args may be NULL. Leading dimensions, the heads' included, broadcast against each other as in
 * PyTorch. With MHA_SDPA_ENABLE_GQA the third dimension from the end holds heads, H a multiple
 * of Hk, and query head h reads head h / (H / Hk); without the flag different numbers of heads are
 * an error, unless one is 1. attn_mask has any number of dimensions and broadcasts to
 * [..., H, T, S]. is_causal keeps keys s <= t (aligned top-left, whatever T and S). scale may be 0
 * or negative. A query without a visible key gives 0.
 *
 * Where ours differs: is_causal together with attn_mask is always an error, as PyTorch documents
 * (its flash kernel, chosen for 4 dimensions and equal head sizes, computes both; its math kernel
 * refuses). is_causal with a scale of 0 or less follows the formula (flash: NaN). Masks of 0 and 1
 * dimensions are always accepted (PyTorch: not with flash). Without keys out has the shape above
 * (PyTorch drops the leading dimensions of value). Grouped key and value need the same
 * number of heads. D must not be 0. A scale that is not finite is an error.
 *
 * Memory   everything is borrowed for the call; out must not overlap anything. Scratch as
 *          mha_attention_forward(), and a copy of the mask as described at the top.
 * Errors   MHA_ERR_NULL, _ARGUMENT, _SHAPE, _DTYPE, _STRIDE, _OVERLAP, _SIZE, _NOMEM, _UNSUPPORTED
 *          (unknown flags). On error no output byte is written.
 * Threads  one call at a time per context. Bits as mha_attention_forward().
 * Accuracy as mha_attention_forward().
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_pytorch_sdpa_forward(
    mha_context *context, const mha_pytorch_sdpa_args *args, const mha_tensor *query,
    const mha_tensor *key, const mha_tensor *value, const mha_tensor *out);

/* ---- PyTorch: torch.nn.MultiheadAttention.forward -------------------------------------------- */

/* mha_pytorch_mha_args.flags */
enum {
    MHA_PYTORCH_BATCH_FIRST = 1 << 0, /* the module was made with batch_first=True */
    MHA_PYTORCH_IS_CAUSAL = 1 << 1,   /* is_causal=True: a hint that attn_mask is the causal mask */
    MHA_PYTORCH_PER_HEAD = 1 << 2,    /* average_attn_weights=False */
    MHA_PYTORCH_TRAINING = 1 << 3     /* the module is in training mode: dropout is active */
};

/* The arguments of forward; zero everywhere is PyTorch's default. need_weights is true if weights
 * is not NULL. */
typedef struct mha_pytorch_mha_args {
    uint32_t struct_size;
    uint32_t flags;
    const mha_tensor *query;            /* [T,B,E ], [B,T,E ] if batch_first, or [T,E ] */
    const mha_tensor *key;              /* [S,B,Ek], [B,S,Ek],                or [S,Ek] */
    const mha_tensor *value;            /* [S,B,Ev], [B,S,Ev],                or [S,Ev] */
    const mha_tensor *key_padding_mask; /* [B,S] or [S]; u8: true masks; float: is added */
    const mha_tensor *attn_mask; /* [T,S], or [B*H,T,S] with the heads of a sequence adjacent;
                                    u8: true masks; float: is added */
    float dropout;               /* of the module, 0 .. 1 */
    uint32_t reserved;           /* 0 */
    uint64_t dropout_seed;       /* of our generator; PyTorch's gives other numbers */
} mha_pytorch_mha_args;

/**
 * nn.MultiheadAttention.forward of PyTorch 2.13: module holds the parameters and the choice of
 * add_bias_kv, add_zero_attn, bias, kdim and vdim (module.h; state.h loads PyTorch's parameters).
 *
 *   out      [T,B,E], [B,T,E] if batch_first, or [T,E] out
 *   weights  [B,T,S'] out, or [B,H,T,S'] with MHA_PYTORCH_PER_HEAD; without B if query is [T,E].
 *            S' counts the columns of bias_k and of the zeros. NULL: need_weights=False
 *
 * True in a boolean mask masks, which is the opposite of scaled_dot_product_attention. Two float
 * masks are added; a boolean one applies in addition to a float one. bias_k and the zeros are never
 * masked. Dropout is active with MHA_PYTORCH_TRAINING only; weights and their averages are then
 * those after dropout.
 *
 * A query without a visible key: with weights, its weights are NaN in that head and in the average,
 * and all of its out is NaN. Without weights its heads are 0, and out is W_o applied to them.
 *
 * is_causal needs an attn_mask. Where PyTorch replaces the mask by the hint (no weights, no
 * key_padding_mask) the mask's values are not read and keys s <= t are visible; its two or three
 * axes may then have any length (with a batch axis in query).
 *
 * Where ours differs: PyTorch's inference fast path (eval, no gradients, one batch-first tensor for
 * query, key and value, an even number of heads) gives NaN in rows without keys even without
 * weights, and ignores is_causal; this function follows all other calls. With bias_k or zeros the
 * hint does not replace the mask (PyTorch: the causal mask then hides these as well, but with
 * weights it does not).
 *
 * Memory   everything is borrowed for the call; out and weights must not overlap anything. Scratch
 *          as mha_module_run(), and: [B,H,T] if there is a mask and weights; a copy of a float mask
 *          as described at the top, [B,T,S] or [B,H,T,S] where two are added that contain values
 *          other than 0 and -inf; [B,H,T,S'] for averages of weights after dropout.
 * Errors   MHA_ERR_NULL, _ARGUMENT, _SHAPE, _DTYPE, _STRIDE, _OVERLAP, _SIZE, _NOMEM, _UNSUPPORTED
 *          (unknown flags). On error no output byte is written.
 * Threads  one call at a time per context; any number on one module.
 * Accuracy as mha_module_run().
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_pytorch_mha_forward(mha_context *context,
                                                         const mha_module *module,
                                                         const mha_pytorch_mha_args *args,
                                                         const mha_tensor *out,
                                                         const mha_tensor *weights);

/* ---- ONNX: the operator Attention of the default domain -------------------------------------- */

/* mha_onnx_attention_attributes.flags */
enum {
    MHA_ONNX_IS_CAUSAL = 1 << 0,   /* is_causal = 1 */
    MHA_ONNX_SCALE_GIVEN = 1 << 1, /* scale is given, even 0; without it 1/sqrt(head_size) */
    MHA_ONNX_WINDOW = 1 << 2       /* left_window_size and right_window_size apply; else both -1 */
};

/* qk_matmul_output_mode, with the meaning of onnx 1.22 and later (1.18 to 1.21 had 1 and 2
 * swapped) */
typedef enum mha_onnx_qk_mode {
    MHA_ONNX_QK_RAW = 0,          /* scale * Q K^T of every pair, masks ignored */
    MHA_ONNX_QK_CAPPED = 1,       /* RAW after softcap */
    MHA_ONNX_QK_BIASED = 2,       /* CAPPED with mask and bias; -inf where a key is masked */
    MHA_ONNX_QK_PROBABILITIES = 3 /* after softmax; 0 in a row without a visible key */
} mha_onnx_qk_mode;

/* The attributes; zero everywhere is ONNX's default, of the newest opset. */
typedef struct mha_onnx_attention_attributes {
    uint32_t struct_size;
    uint32_t flags;
    int32_t opset;             /* 23, 24 or 25; 0: 25. Later ones without a new Attention are 25 */
    int32_t softmax_precision; /* ONNX's number of a type: 0 not given, 1 float, 10 float16,
                                          11 double, 16 bfloat16 */
    int64_t q_num_heads, kv_num_heads;           /* with 3-D inputs; else 0 */
    int64_t left_window_size, right_window_size; /* opset 25 */
    float scale;                                 /* >= 0 */
    float softcap;                               /* 0: none */
    mha_onnx_qk_mode qk_matmul_output_mode;
} mha_onnx_attention_attributes;

/* The inputs by name; optional ones are NULL if absent. There are P past keys, and S + P are
 * attended to. */
typedef struct mha_onnx_attention_inputs {
    uint32_t struct_size;
    uint32_t reserved;            /* 0 */
    const mha_tensor *q, *k, *v;  /* [B,H,T,D] [B,Hk,S,D] [B,Hk,S,Dv], or [B,T,H*D] and so on */
    const mha_tensor *attn_mask;  /* 1 to 4 dims, u8: true attends; float: is added */
    const mha_tensor *past_key;   /* [B,Hk,P,D] */
    const mha_tensor *past_value; /* [B,Hk,P,Dv] */
    const mha_tensor *nonpad_kv_seqlen; /* i64 [B], opset 24 and later; not with a past */
} mha_onnx_attention_inputs;

/* The outputs; NULL: not requested (y is required). */
typedef struct mha_onnx_attention_outputs {
    uint32_t struct_size;
    uint32_t reserved;                  /* 0 */
    const mha_tensor *y;                /* [B,H,T,Dv], or [B,T,H*Dv] if q is 3-D */
    const mha_tensor *present_key;      /* [B,Hk,P+S,D], for 3-D inputs too */
    const mha_tensor *present_value;    /* [B,Hk,P+S,Dv] */
    const mha_tensor *qk_matmul_output; /* [B,H,T,P+S] f32 */
} mha_onnx_attention_outputs;

/**
 * The ONNX operator Attention, opsets 23 to 25, as onnx 1.23 defines it.
 *
 *   y = softmax(softcap(scale * q [past_key; k]^T) + mask) [past_value; v]
 *
 * H is a multiple of Hk; query head h reads head h / (H / Hk). attn_mask broadcasts to [B,H,T,P+S]
 * from the right. From opset 24 its last dimension may be shorter than P+S: the keys beyond it are
 * masked (so a last dimension of 1 keeps key 0 only, as in onnx's reference; opset 23 broadcasts
 * it). Query t is at position t + offset: offset is P with a past, nonpad_kv_seqlen[b] - T with
 * that input, which may be negative, else 0. is_causal keeps keys s <= t + offset; a window keeps
 * t + offset - left .. t + offset + right, both ends included, -1 open; all
 * masks apply together. Keys at nonpad_kv_seqlen[b] and beyond are masked. A query without a
 * visible key gives 0.
 *
 * Where ours differs: q, k, v, past and y have one element type (ONNX's T1 and T2 may differ; no
 * double). scale is applied once to the product, not its square root to both sides; a negative one,
 * whose root is NaN, is an error. Softmax is computed in f32, and in double if softmax_precision is
 * double; float16 and bfloat16 would permit less and get f32. qk_matmul_output is f32 and, at mode
 * 0, not capped (onnx 1.23's reference evaluator caps it; the operator's specification does not).
 *
 * Memory   everything is borrowed for the call; no output may overlap anything. Scratch as
 *          mha_attention_forward(), [B] offsets, a copy of the mask where it is short or as
 *          described at the top, and the concatenated keys and values if there is a past but the
 *          presents are not requested.
 * Errors   MHA_ERR_NULL, _ARGUMENT, _SHAPE, _DTYPE, _STRIDE, _OVERLAP, _SIZE, _NOMEM, _UNSUPPORTED
 *          (unknown flags; an input or attribute that the opset does not have). On error no output
 *          byte is written.
 * Threads  one call at a time per context. Bits as mha_attention_forward().
 * Accuracy as mha_attention_forward(); qk_matmul_output as its scores.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_onnx_attention(mha_context *context,
                                                    const mha_onnx_attention_attributes *attributes,
                                                    const mha_onnx_attention_inputs *inputs,
                                                    const mha_onnx_attention_outputs *outputs);

#ifdef __cplusplus
}
#endif
#endif
