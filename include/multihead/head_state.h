/* multihead: a measurement of heads as bytes, to go on with later or to merge elsewhere.
 *
 * A state is what a mha_head_measures and the mha_head_corpus that is attached to it have summed
 * over the texts that have ended, with the description of both. What is read back has the same
 * bits in every sum: reading and going on is as if nobody had stopped, and reading and merging is
 * merging.
 *
 *   mha_head_state_write(measures, mha_file_sink(file))        a process that stops
 *   mha_head_state_read(context, bytes, size, NULL, &measures, &corpus)        one that goes on
 *
 * A state is a row of integers of 8 bytes, little-endian: "MHAHEADS", the version 1, the bytes of
 * all, the description, the sums, and a check of all before it, h: from 0xCBF29CE484222325 on, each
 * integer w makes h = (h ^ w) 0x9E3779B97F4A7C15, then h = h ^ (h >> 32), all modulo 2^64. Each step
 * has an inverse, so that no change of a single integer goes unnoticed; it is no defence against
 * purpose, and reading needs none: whatever the bytes are, what is read is within the ranges that
 * measuring, merging and the scores need. Equal measurements have equal bytes.
 *
 * Another version of the format is refused, not read.
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_HEAD_STATE_H
#define MULTIHEAD_HEAD_STATE_H

#include <multihead/head_corpus.h>
#include <multihead/heads.h>
#include <multihead/sink.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Bytes that mha_head_state_write() writes now; 0 for NULL. Memory none. Errors none. Threads any
 * while nothing is added. Since 0.1 */
MHA_API int64_t mha_head_state_bytes(const mha_head_measures *measures);

/**
 * Write measures and the corpus attached to it, if there is one.
 *
 * Memory   none; the sink gets pieces of at most 8 KiB.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (a text is open); what the sink returns.
 * Threads  any while nothing is added.
 * Accuracy exact.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_state_write(const mha_head_measures *measures,
                                                      const mha_sink *sink);

/**
 * Read a state from memory.
 *
 *   bytes [size] in     of any alignment; they may come from anywhere
 *   *used out           bytes that the state takes, from the first on; NULL: all of them must
 *   *measures out       as mha_head_measures_create() makes them
 *   *corpus out         attached to *measures; NULL: the state has none
 *
 * Values for mha_head_corpus_values() are not kept: the first text of each layer gives its weight
 * again, as mha_head_pass_run() does.
 *
 * Memory   the caller owns *measures and *corpus, as mha_head_measures_create() and
 *          mha_head_corpus_create() say; at most a few times `size`, whatever the bytes are.
 * Errors   MHA_ERR_NULL; MHA_ERR_FORMAT (no state, cut off, altered, out of range: what and at
 *          which byte); MHA_ERR_UNSUPPORTED (of another version, or with other scores);
 *          MHA_ERR_SIZE, MHA_ERR_NOMEM. Nothing is then written to the outputs.
 * Threads  one call at a time per context.
 * Accuracy exact.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_state_read(mha_context *context, const void *bytes,
                                                     size_t size, size_t *used,
                                                     mha_head_measures **measures,
                                                     mha_head_corpus **corpus);

#ifdef __cplusplus
}
#endif
#endif
