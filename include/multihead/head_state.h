/* multihead: serialise a measurement of heads, to resume it later or to merge it elsewhere.
 *
 * A state holds the descriptions and the sums, over all ended texts, of a mha_head_measures and of
 * the mha_head_corpus attached to it. Every sum is restored with the same bits, so that resuming or
 * merging from a state is bit-identical to doing so without one.
 *
 * Format: 8-byte little-endian integers: "MHAHEADS", version 1, total bytes, descriptions, sums,
 * and a checksum h of all preceding integers. h begins as 0xCBF29CE484222325; each integer w makes
 * h = (h ^ w) 0x9E3779B97F4A7C15, then h = h ^ (h >> 32), modulo 2^64. Each step is invertible, so
 * that any change of a single integer is detected. It is not a cryptographic checksum; reading
 * validates every value against the ranges that measuring, merging and the scores need. Equal
 * measurements have equal bytes.
 *
 * Other versions of the format are rejected.
 *
 * Example, given mha_context *context, const mha_head_measures *measures, const mha_sink *sink,
 * const void *bytes, size_t size:
 *
 *   mha_head_measures *resumed = NULL;
 *   mha_head_corpus *corpus = NULL;
 *   mha_status status = mha_head_state_write(measures, sink); // save
 *   if (!status) status = mha_head_state_read(context, bytes, size, NULL, &resumed, &corpus); // load
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
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (a text is open); the status of the sink.
 * Threads  any while nothing is added.
 * Accuracy exact.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_state_write(const mha_head_measures *measures,
                                                      const mha_sink *sink);

/**
 * Read a state from memory.
 *
 *   bytes [size] in     of any alignment; untrusted
 *   *used out           length of the state in bytes; NULL: the state must fill `size` bytes
 *   *measures out       as mha_head_measures_create() makes them
 *   *corpus out         attached to *measures; NULL: the state has none
 *
 * Values for mha_head_corpus_values() are not saved: they are set again with the first text of each
 * layer, as mha_head_pass_run() does.
 *
 * Memory   the caller owns *measures and *corpus, as after mha_head_measures_create() and
 *          mha_head_corpus_create(); at most a few times `size`, also for malformed bytes.
 * Errors   MHA_ERR_NULL; MHA_ERR_FORMAT (not a state, truncated, corrupt, out of range; the detail
 *          has the field and the byte offset); MHA_ERR_UNSUPPORTED (another version, or other
 *          scores); MHA_ERR_SIZE, MHA_ERR_NOMEM. Nothing is then written to the outputs.
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
