/* multihead: a module's parameters in files, as PyTorch's state_dict in safetensors.
 *
 * The names are those of mha_module_parameter_at(): in_proj_weight, in_proj_bias, bias_k, bias_v,
 * out_proj.weight, out_proj.bias, and q_proj_weight, k_proj_weight, v_proj_weight in place of
 * in_proj_weight where torch.nn.MultiheadAttention has them. So in Python
 *
 *   module.load_state_dict(safetensors.torch.load_file("state.safetensors"))
 *
 * reads the files saved here, and files of safetensors.torch.save_file(module.state_dict(), ...)
 * can be loaded here.
 *
 * Example, given mha_module *module:
 *
 *   mha_status status =
 *       mha_module_load_state(module, "model.safetensors", "encoder.layers.0.self_attn.");
 *   if (!status) status = mha_module_save_state(module, "layer0.safetensors", NULL);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_STATE_H
#define MULTIHEAD_STATE_H

#include <multihead/module.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Load every parameter of a module from a safetensors file.
 *
 *   prefix   of every name in the file, such as "encoder.layers.0.self_attn."; NULL: none. Tensors
 *            without it are ignored
 *
 * Tensors are f32; f16, bf16 and f64 are converted. Loading is strict, like load_state_dict():
 * every parameter must be present, and no other tensor with the prefix. On an error the module is
 * unchanged.
 *
 * Memory   copied; the file is closed again. Conversions allocate memory during the call.
 * Errors   as mha_safetensors_open(); MHA_ERR_NULL; MHA_ERR_MODEL: a tensor is missing, unexpected,
 *          or of another shape, always with its name; MHA_ERR_UNSUPPORTED (another dtype);
 *          MHA_ERR_SIZE, MHA_ERR_NOMEM.
 * Threads  no other thread may be using the module.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_module_load_state(mha_module *module, const char *path,
                                                       const char *prefix);

/**
 * Save every parameter of a module to a safetensors file of f32 tensors, whole or not at all.
 *
 *   prefix   prepended to every name; NULL: none
 *
 * Memory   as much as the parameters, during the call.
 * Errors   MHA_ERR_NULL; MHA_ERR_UTF8 (the prefix); MHA_ERR_WRITE (an older file of that name is
 *          then unchanged); MHA_ERR_NOMEM.
 * Threads  any, while no parameter changes.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_module_save_state(const mha_module *module, const char *path,
                                                       const char *prefix);

#ifdef __cplusplus
}
#endif
#endif
