/* multihead: multi-head attention. This page shows the calls that most programs need; each header
 * that it names is the manual of its part.
 *
 * Example, given float *q, float *k, float *v, float *o, mha_tensor weight, mha_tensor tokens, mha_tensor out:
 * a program creates one context (threads, scratch memory) and uses it for all calls.
 *
 *   mha_context *context = NULL;
 *   mha_status status = mha_context_create(NULL, &context);
 *
 * Attention over contiguous floats, q [heads, queries, head_dim], k and v [kv_heads, keys, head_dim].
 * For strides, other types, masks and positions, attention.h has mha_attention_forward():
 *
 *   mha_attention_sizes sizes = MHA_INIT(mha_attention_sizes);
 *   sizes.heads = 8, sizes.kv_heads = 2, sizes.queries = 16, sizes.keys = 64, sizes.head_dim = 32;
 *   sizes.flags = MHA_ATTENTION_CAUSAL;
 *   if (!status) status = mha_attention_floats(context, &sizes, q, k, v, o);
 *
 * A module: attention with its projections; parameters have PyTorch's names (module.h):
 *
 *   mha_module_desc desc = MHA_INIT(mha_module_desc);
 *   desc.embed_dim = 256, desc.num_heads = 8;
 *   mha_module *module = NULL;
 *   if (!status) status = mha_module_create(context, &desc, &module);
 *   if (!status) status = mha_module_set_parameter(module, "in_proj_weight", &weight);
 *
 * A cache of keys and values for generation (cache.h). A module call with a cache appends the new
 * tokens, which attend to all earlier ones:
 *
 *   mha_kv_cache *cache = NULL;
 *   if (!status) status = mha_module_cache_create(context, module, 1, 1024, &cache);
 *   mha_module_call call = MHA_INIT(mha_module_call);
 *   call.query = call.key = call.value = &tokens, call.out = &out, call.cache = cache;
 *   if (!status) status = mha_module_run(context, module, &call);
 *
 * A model from a Hugging Face folder or a GGUF file (model.h in libmultihead-model). transformer.h and
 * sampling.h predict its next tokens:
 *
 *   mha_model *model = NULL;
 *   if (!status) status = mha_model_load(context, "all-MiniLM-L6-v2", NULL, &model);
 *
 * Destroy every object at the end. mha_error_detail() explains a status other than MHA_OK:
 *
 *   if (status) fprintf(stderr, "%s: %s\n", mha_status_text(status), mha_error_detail());
 *   mha_model_destroy(model);
 *   mha_kv_cache_destroy(cache);
 *   mha_module_destroy(module);
 *   mha_context_destroy(context);
 *
 * examples/multihead.c is a complete program. This header includes the core of the compute library,
 * which is stable from 1.0; include every other header by its name. In header comments, docs/ means
 * share/doc/multihead/docs of an installation.
 *
 * Stability: stable from 1.0 (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_MULTIHEAD_H
#define MULTIHEAD_MULTIHEAD_H

/* The build reads these lines. */
#define MHA_VERSION_MAJOR 0
#define MHA_VERSION_MINOR 1
#define MHA_VERSION_PATCH 0
#define MHA_VERSION_SUFFIX "" /* "-rc1" of a release candidate */

#include <multihead/attention.h>
#include <multihead/backward.h>
#include <multihead/base.h>
#include <multihead/cache.h>
#include <multihead/linear_attention.h>
#include <multihead/merge.h>
#include <multihead/module.h>
#include <multihead/module_backward.h>
#include <multihead/position.h>

#endif
