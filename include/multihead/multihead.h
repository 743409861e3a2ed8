/* multihead: multi-head attention. This header includes all of the compute library; the companions
 * for model folders and pictures have headers of their own: model.h, tokenizer.h, render.h.
 *
 * docs/ in comments of the headers is share/doc/multihead/docs of an installation.
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

#include <multihead/ablation.h>
#include <multihead/attention.h>
#include <multihead/attribution.h>
#include <multihead/backward.h>
#include <multihead/base.h>
#include <multihead/cache.h>
#include <multihead/distributed.h>
#include <multihead/head_corpus.h>
#include <multihead/head_distances.h>
#include <multihead/head_pass.h>
#include <multihead/head_state.h>
#include <multihead/heads.h>
#include <multihead/importance.h>
#include <multihead/linear_attention.h>
#include <multihead/merge.h>
#include <multihead/module.h>
#include <multihead/module_backward.h>
#include <multihead/nn.h>
#include <multihead/optimizer.h>
#include <multihead/patterns.h>
#include <multihead/position.h>
#include <multihead/sampling.h>
#include <multihead/sink.h>
#include <multihead/training.h>
#include <multihead/transformer.h>
#include <multihead/transport.h>

#endif
