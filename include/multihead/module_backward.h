/* multihead: the gradients of the multi-head attention module.
 *
 * With dO the gradient of a loss with respect to out, and attention's gradients as in backward.h:
 *
 *   dheads = dO W_o        dW_o += dO^T heads        db_o += sum of the rows of dO
 *   dq, dk, dv             attention backward, then back through rotation and norm
 *   dquery = dq W_q        dW_q += dq^T query        db_q += sum of the rows of dq
 *   dkey, dvalue           likewise
 *
 * Gradients of parameters always accumulate (clear them before the first batch). Bits are the same
 * for any number of threads, and do not depend on the other requested gradients.
 *
 * Example, given mha_context *context, mha_module *module, mha_module_call call, mha_tensor dout,
 * mha_tensor dtokens:
 *
 *   mha_module_gradients gradients = MHA_INIT(mha_module_gradients);
 *   gradients.query = &dtokens; // call is that of mha_module_run()
 *   mha_status status = mha_module_backward(context, module, &call, &dout, &gradients);
 *
 * Stability: stable from 1.0 (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_MODULE_BACKWARD_H
#define MULTIHEAD_MODULE_BACKWARD_H

#include <multihead/backward.h>
#include <multihead/module.h>
#include <multihead/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The requested gradients, f32 with a contiguous last axis; NULL: not requested. */
typedef struct mha_module_gradients {
    uint32_t struct_size;
    uint32_t flags;                        /* 0, or MHA_GRADIENT_ADD: for query, key and value */
    const mha_tensor *query, *key, *value; /* of the inputs' shapes; overwritten, or added to. If
                                              added to, they may be one tensor (self-attention) */
    const mha_tensor *const *parameters;   /* [parameters_count], in the order and of the shapes of
                                              mha_module_parameter_at(); entries may be NULL */
    int64_t parameters_count;
    /* Gradients of the tensors in the call's descriptor: bias, tables, gates, ... q, k and v stay
     * NULL. The flags apply only to the gradients in this struct. If a loss depends on the call's
     * lse, probabilities or their average, pass its gradients here, with the batch axis. Gradients
     * of probabilities are not supported with MHA_MODULE_BIAS_KV or _ZERO_ATTN. */
    const mha_attention_gradients *attention;
} mha_module_gradients;

/**
 * The gradients of mha_module_run(), after that call.
 *
 *   call           unchanged, with the outputs q, k, v, heads and lse that it wrote; out is not
 *                  read. The module's parameters are unchanged too
 *   out_gradient   [B,T,E] in; f32, f16 or bf16, as the call's inputs
 *
 * Memory   everything is borrowed for the call. Gradients must not overlap inputs or each other.
 *          Scratch from the context: q, k, v and heads twice, and the largest weight.
 * Errors   as mha_module_run(); MHA_ERR_ARGUMENT for a cache, or the gradient of an input that is
 *          not given; MHA_ERR_UNSUPPORTED for MHA_QK_NORM_L2, for gradients of gates and scale with
 *          MHA_MODULE_BIAS_KV, and for gradients of probabilities with MHA_MODULE_BIAS_KV or
 *          _ZERO_ATTN. Nothing is then written, except that after MHA_ERR_NOMEM the gradients are
 *          unspecified.
 * Threads  one call at a time per context; parameters must not change meanwhile.
 * Accuracy as mha_linear_backward() (nn.h) and mha_attention_backward().
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_module_backward(mha_context *context, const mha_module *module,
                                                     const mha_module_call *call,
                                                     const mha_tensor *out_gradient,
                                                     const mha_module_gradients *gradients);

#ifdef __cplusplus
}
#endif
#endif
