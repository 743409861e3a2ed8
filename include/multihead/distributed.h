/* multihead: one attention over several ranks, bit-identical to one process.
 *
 * The queries, keys and values of a sequence are divided among ranks in pieces, which the caller
 * may cut anywhere. Each rank passes its own rows and receives its own rows of the result. For any
 * number of ranks and any cuts the results are bit-identical to mha_attention_forward() and
 * _backward() of the whole sequence.
 *
 * Method. Ranks exchange heads for rows (Jacobs et al. 2023, DeepSpeed-Ulysses, 3): each rank
 * receives all rows of its share of the heads, computes them as one process would, and sends the
 * results to the owners of the rows. No sum is divided between ranks.
 *
 *   - the heads are divided into C parts; rank r has part r mod C
 *   - with more ranks than parts, the ranks with the same g = r / C are group g. Ranks with the
 *     same part share its heads: each group has the queries of its ranks' pieces, and every rank
 *     has all keys and values of its heads
 *   - with a causal mask, pieces in alternating order balance the groups (mha_split_pieces())
 *
 * For few queries and many keys, as in decoding, use mha_distributed_decode(): keys and values stay
 * at their ranks, and the sums of rows are sent.
 *
 * Letters as in attention.h; T and S count the whole sequence.
 *
 * Example, given mha_context *context, const mha_transport *ranks, int64_t n, mha_tensor q,
 * mha_tensor k, mha_tensor v, mha_tensor o:
 *
 *   mha_piece pieces[2]; // of this rank; q, k, v and o hold the rows of these pieces
 *   int64_t count = 0;
 *   mha_status status = mha_split_pieces(n, ranks->rank, ranks->size, 1, pieces, &count);
 *   mha_sequence_split split = MHA_INIT(mha_sequence_split);
 *   split.transport = ranks, split.queries = split.keys = n;
 *   split.query_pieces = split.key_pieces = pieces;
 *   split.query_piece_count = split.key_piece_count = count;
 *   mha_attention_desc causal = MHA_INIT(mha_attention_desc);
 *   causal.flags = MHA_ATTENTION_CAUSAL;
 *   if (!status)
 *       status = mha_distributed_forward(context, &split, &causal, &q, &k, &v, &o, NULL);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_DISTRIBUTED_H
#define MULTIHEAD_DISTRIBUTED_H

#include <multihead/backward.h>
#include <multihead/cache.h>
#include <multihead/nn.h>
#include <multihead/transport.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Rows begin .. end - 1 of a sequence, or of the packed axis of a ragged batch. */
typedef struct mha_piece {
    int64_t begin, end; /* begin <= end */
} mha_piece;

/* Rows per tile: cuts at multiples of it from the start of each sequence are the fastest. */
enum { MHA_SPLIT_ROWS = 112 };

/**
 * Cut `length` rows for `size` ranks, and list the pieces of rank `rank`, ascending. Cuts are at multiples
 * of MHA_SPLIT_ROWS; some pieces of a short sequence are empty.
 *
 *   folds 0    one piece per rank, in the order of ranks
 *   folds F    zigzag: 2 F size pieces go to ranks 0 .. size - 1, then size - 1 .. 0, F times
 *
 * The division matters only with more ranks than parts of heads: with a causal mask 1 fold gives all ranks
 * the same number of pairs.
 *
 *   pieces [1 or 2 folds] out    *count out: the number of pieces, empty ones included
 *
 * Memory   none.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (length, rank, size, folds).   Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_split_pieces(int64_t length, int32_t rank, int32_t size,
                                                  int64_t folds, mha_piece *pieces, int64_t *count);

/* The rows of this rank. The pieces of all ranks together must contain each row exactly once. */
typedef struct mha_sequence_split {
    uint32_t struct_size;
    uint32_t flags; /* 0 */
    const mha_transport *transport;
    int64_t queries, keys;         /* T and S; of a ragged batch the packed axes */
    const mha_piece *query_pieces; /* ascending; q and o hold the rows of the first piece, then
                                      those of the next */
    const mha_piece *key_pieces;   /* likewise for k and v */
    int64_t query_piece_count, key_piece_count;
} mha_sequence_split;

/**
 * Attention forward over all ranks of split->transport: every rank makes the call, with the same
 * descriptor except for inputs over queries, with the same types, and with the same outputs.
 *
 *   q [B,H,t,D] in    k [B,Hk,s,D] in    v [B,Hk,s,Dv] in    o [B,H,t,Dv] out
 *
 * with the t and s rows that this rank has. In desc
 *   - inputs over queries (keep_mask, bias, global_queries, query_documents) have the t rows of
 *     this rank, and all S columns
 *   - inputs over keys alone (global_keys, key_documents), keep_blocks, and all lengths, starts and
 *     offsets are whole on every rank
 * outputs have t rows, except column_sums [B,H,s], the sums of this rank's keys over all queries.
 * Lists of rows are supported only with one piece.
 *
 * The number of parts C divides the number of ranks and H, and divides Hk or is a multiple of it.
 * The call chooses the C that minimises the largest scratch of any rank, or the largest such C. C
 * is 1, so that rows stay at their ranks, if probabilities, average_probabilities or scores are
 * requested.
 *
 * column_sums are sums over queries. With more ranks than parts, the sums of a part's heads are
 * passed from piece to piece in the order of queries, in double, and ranks add to them one after
 * the other.
 *
 * Memory   borrowed for the call. Scratch, for h = H / C heads and hk = max(Hk / C, 1) key/value heads:
 *            S keys and values of hk heads
 *            C > 1: for h heads and all rows of a group, the queries, results and inputs over
 *            queries; each rank of a group holds the whole of an input that all heads share
 *            the longest message to and from another rank
 *            that of mha_attention_forward() of these rows
 *            column_sums: B h S floats, and with more ranks than parts as many doubles
 * Errors   the same on all ranks, with the number of the failed rank in mha_error_detail(): as
 *          mha_attention_forward(); MHA_ERR_ARGUMENT (pieces that overlap or leave gaps; ranks
 *          whose descriptors, types or outputs differ); MHA_ERR_UNSUPPORTED (flags); MHA_ERR_RANK.
 *          On error no output byte is written; with MHA_ERR_RANK outputs may be partly written.
 * Threads  one call at a time per context and transport.
 * Accuracy as mha_attention_forward().
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_distributed_forward(mha_context *context,
                                                         const mha_sequence_split *split,
                                                         const mha_attention_desc *desc,
                                                         const mha_tensor *q, const mha_tensor *k,
                                                         const mha_tensor *v, const mha_tensor *o,
                                                         const mha_attention_outputs *outputs);

/* The work of this rank in a call; assumes that o is f32. */
typedef struct mha_distributed_plan {
    const char *reason;                       /* how work is divided, one sentence, static text */
    int64_t head_parts;                       /* C, the number of parts of the heads */
    int64_t messages_sent, messages_received; /* by this rank: rows, keys, values, results */
    double bytes_sent, bytes_received;        /* likewise */
    double pairs; /* that this rank computes: visible_pairs of its rows and heads */
    size_t scratch_bytes;
} mha_distributed_plan;

/**
 * Report what mha_distributed_forward() would do with the same arguments, with the same checks: all
 * ranks make the call. Data pointers of tensors are not read.
 *
 * Memory   fills *plan.   Errors, Threads  as mha_distributed_forward().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_distributed_explain(
    mha_context *context, const mha_sequence_split *split, const mha_attention_desc *desc,
    const mha_tensor *q, const mha_tensor *k, const mha_tensor *v,
    const mha_attention_outputs *outputs, mha_distributed_plan *plan);

/**
 * Attention backward over all ranks: the gradients of mha_attention_backward().
 *
 *   attention, q, k, v   as in mha_distributed_forward()
 *   o, lse, o_gradient   rows as q
 *   gradients            those of q, lse and probabilities have the rows of q (and all S columns),
 *                        those of k and v the rows of k. The gradient of the bias has a row for each
 *                        query of this rank, or one for all. Those of alibi_slopes, t5_table,
 *                        shaw_keys, shaw_values, sink_logits, gates and scale are whole on every rank
 *
 * All ranks request and pass the same gradients, with the same flags. Every rank receives the whole
 * of a gradient without an axis of queries or keys; with MHA_GRADIENTS_ACCUMULATE each rank adds it
 * to its own. A bias whose gradient is requested has the same axes at all ranks except that of
 * queries. If each rank has one query, a bias with one row counts as shared by all queries.
 *
 * The number of parts C is chosen as in the forward; it is 1 if the gradient of a bias is
 * requested. Cuts of queries are moved to multiples of MHA_SPLIT_ROWS from each sequence's first,
 * and the rows sent accordingly.
 *
 * Each rank makes one call of mha_attention_backward() if every rank has its own key/value heads (C
 * is the number of ranks and divides Hk) and no requested gradient is a sum over queries (of
 * parameters, of a bias). Otherwise it makes two passes: first over the queries of its heads and
 * group, for their dq and the sums of parameters; then over blocks of 256 keys, which are divided
 * among the ranks that share a key/value head. In the second pass the query heads arrive one after
 * the other, since the gradient of a key is a sum over them. Both passes compute the scores of
 * their pairs.
 *
 * At the end, sums of parameters are passed from rank to rank in the order of sequences, heads and
 * pieces, and broadcast by the last: 8 bytes per element, once for each sequence, rank and piece.
 * If they include gradients of the scale or of Shaw's tables, which are sums over heads, this is
 * also repeated for each head. Sums of a bias that queries share, 2,048 bytes for each 256 keys,
 * are passed likewise for each head. Ranks add to a sum one after the other; sums of different
 * heads and sequences proceed in parallel.
 *
 * Memory   borrowed for the call. Scratch, for h = H / C heads and hk = max(Hk / C, 1) key/value heads, rows of a group:
 *            as in the forward; also o, gradients and their copies in transit
 *            8 bytes for each row of q and head, twice; for each MHA_SPLIT_ROWS rows of a head the sums of parameters
 *            of one head, all T rows of q, o_gradient, lse, and inputs over queries
 *            the rank's keys of one key/value head, 4 (D + Dv) bytes each, and those of hk heads as they are returned
 *            that of mha_attention_backward() of these rows
 * Errors   as mha_attention_backward(), at all ranks alike; as mha_distributed_forward();
 *          MHA_ERR_UNSUPPORTED (the plain path). With MHA_ERR_RANK gradients may be written in part.
 * Threads  as mha_distributed_forward().   Accuracy  as mha_attention_backward().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_distributed_backward(mha_context *context,
                                                          const mha_sequence_split *split,
                                                          const mha_attention_backward_call *call);

/* ---- few queries, many keys: decoding -------------------------------------------------------- */

/* Cuts of keys are at multiples of the block of a softmax step. */
enum { MHA_SPLIT_KEYS = 512 };

/* `rank` holds the keys from the end of the previous piece (or from key 0) to `end`. */
typedef struct mha_key_piece {
    int64_t end; /* a multiple of MHA_SPLIT_KEYS, or the end of the last piece; ascending */
    int64_t rank;
} mha_key_piece;

/* The division of keys and values among ranks, and this rank's own rows: those of its pieces, one
 * after the other, in a cache or in k and v. All sequences of a batch have the same cuts.
 *
 * Growing. The rank with the last piece appends the keys and values of new tokens to its cache, and
 * all ranks increase the piece's end. When the piece is long enough, a new piece begins at another
 * rank. The rule
 *
 *   rank of position n = n / run % size      run a multiple of MHA_SPLIT_KEYS
 *
 * balances the ranks to within one run. The sums are passed from piece to piece, so longer runs are
 * faster: for example a quarter of the expected length divided by size. */
typedef struct mha_key_split {
    uint32_t struct_size;
    uint32_t flags; /* 0 */
    const mha_transport *transport;
    const mha_key_piece *pieces; /* of all ranks in the order of keys; the same at every rank */
    int64_t piece_count;
    const mha_kv_cache *cache; /* without a window; NULL: k and v instead */
    const mha_tensor *k, *v;   /* [B,Hk,s,D], [B,Hk,s,Dv], s the rows of this rank's pieces */
} mha_key_split;

/**
 * Attention forward of queries that all ranks have, on keys and values that are divided among
 * ranks. Every rank makes the call with the same q, desc and pieces, and receives the whole result.
 * It is bit-identical to mha_kv_cache_attention() or mha_attention_forward() of one process with
 * all keys.
 *
 *   q [B,H,T,D] in    o [B,H,T,Dv] out    outputs: lse only, or none
 *
 * S is the end of the last piece. Inputs over keys have all S columns. key_lengths [B] are those of
 * the whole (NULL: S). A cache holds the positions of each sequence that are in the pieces of its
 * rank. With a cache the positions of queries are those of mha_kv_cache_attention().
 *
 * Method. With few rows, all ranks work at the same time. A row is one of the T queries of one
 * query head of a key/value head; the limit is 56 rows (29 with Dv 32, 55 with Dv 64; 12 with up to
 * 512 keys, with Dv that is not a multiple of 32, or with sink_keys, documents, global keys or a
 * callback). Each rank computes the scores of its keys. Ranks exchange maxima, a float for each row and piece. Each computes exp and
 * products with the values, with the maximum of all keys up to each block, as one process would.
 * Then the rows' sums, Dv + 2 numbers each, are passed from piece to piece in the order of keys.
 * Each rank adds the results of its blocks, and the last one broadcasts the sums.
 *
 * Otherwise (more rows, keep_blocks, dropout, shaw_values, f16 and bf16 tensors, a
 * cache with Dv that is not a multiple of 16, elements that are not finite) ranks work one after the other: each adds the
 * terms of its keys to the sums that it receives. Keys and values are never sent. The amount of
 * data sent does not depend on the number of keys, except for the maxima.
 *
 * Memory   borrowed for the call. Scratch: Dv + 2 floats for each row; if ranks work at once also a float for
 *          each row and piece, twice, and 530 + Dv for each row and block of this rank (Dv rounded up to 32).
 * Errors   those of the call that one process would make, at all ranks alike, with the number of the rank in
 *          mha_error_detail(); MHA_ERR_ARGUMENT (pieces; ranks whose q, descriptors or pieces differ; a
 *          cache with a wrong number of positions), MHA_ERR_SHAPE, MHA_ERR_UNSUPPORTED (other outputs,
 *          ragged batches, a cache with a window, the plain path, bf16 arithmetic, flags),
 *          MHA_ERR_RANK. On error no output byte is written.
 * Threads  as mha_distributed_forward(); the cache does not change meanwhile.
 * Accuracy as mha_attention_forward().
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_distributed_decode(mha_context *context,
                                                        const mha_key_split *keys,
                                                        const mha_attention_desc *desc,
                                                        const mha_tensor *q, const mha_tensor *o,
                                                        const mha_attention_outputs *outputs);

/* The work of mha_distributed_decode(), if all values are finite. */
typedef struct mha_decode_plan {
    bool at_once;       /* ranks work on their keys at once; false: one after the other */
    const char *reason; /* why, one sentence, static text */
    int64_t hops;       /* sequential messages of sums from rank to rank */
    int64_t messages_sent, messages_received; /* by this rank, without those that compare
                                                 arguments */
    double bytes_sent, bytes_received;        /* likewise */
    size_t scratch_bytes;
} mha_decode_plan;

/**
 * Report what mha_distributed_decode() would do with the same arguments, with the same checks: all ranks
 * make the call. Data pointers of tensors are not read.
 *
 * Memory   fills *plan.   Errors, Threads  as mha_distributed_decode().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_distributed_decode_explain(
    mha_context *context, const mha_key_split *keys, const mha_attention_desc *desc,
    const mha_tensor *q, const mha_attention_outputs *outputs, mha_decode_plan *plan);

/* ---- heads ----------------------------------------------------------------------------------- */

/* Heads over ranks: each rank computes its own heads by the calls of one process, and the results
 * are gathered where all heads are needed. No sum is divided: weights of projections are cut by
 * their outputs, so that each output is summed as in one process.
 *
 *   q, k, v   of this rank's heads: from a module of these heads, with their rows of W_q, W_k and
 *             W_v, or slices of the caller's tensors, and of the descriptor's tensors over heads
 *   heads     mha_attention_forward(), with first_head for dropout; of a module the output heads
 *   out       mha_distributed_mix(): all heads to all ranks, own rows of W_o, all outputs to all ranks
 *
 * Backward, with cuts at key/value heads: heads' gradient = that of out times own columns of W_o, then
 * mha_attention_backward() of own heads. Gradients of own rows of W_q, W_k, W_v, W_o need only the
 * gathered heads of other ranks. The gradient of the input is a sum over all heads, so the gradients of q,
 * k, v are gathered first.
 *
 * A grid of ranks divides heads and sequence with two parts (mha_transport_part_make()): the ranks of the
 * same heads, for mha_distributed_forward(), and the ranks of the same rows, for the mix. */
typedef struct mha_head_piece {
    int64_t begin, end;       /* query heads */
    int64_t kv_begin, kv_end; /* key/value heads that they read */
} mha_head_piece;

/**
 * Divide heads among `size` ranks, and return the piece of rank `rank`. Up to kv_heads ranks have
 * whole groups, whose numbers differ by at most one. With more ranks, each has a part of one group;
 * ranks beyond the number of heads have none. In a piece all key/value heads have the same number
 * of query heads.
 *
 * Memory   fills *piece.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (heads, kv_heads, rank, size).   Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_split_heads(int64_t heads, int64_t kv_heads, int32_t rank,
                                                 int32_t size, mha_head_piece *piece);

/**
 * Gather the pieces of a tensor, so that all ranks have the whole tensor. Every rank makes the
 * call.
 *
 *   piece in    any number of elements along `axis`; pieces are in the order of ranks
 *   whole out   the same size in all other axes; along `axis` the sum of all pieces
 *
 * f32, f16 or bf16, the same at all ranks, any strides; bits are copied.
 *
 * Method. Pieces are passed around a ring: each rank sends size - 1 messages, and receives each
 * missing piece once.
 *
 * Memory   borrowed for the call; piece and whole must not overlap. Scratch: as many bytes as
 *          whole.
 * Errors   at all ranks alike, with the number of the rank: MHA_ERR_NULL, MHA_ERR_ARGUMENT (axis;
 *          ranks that differ), MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_STRIDE, MHA_ERR_OVERLAP,
 *          MHA_ERR_SIZE, MHA_ERR_NOMEM, MHA_ERR_RANK. On error nothing is written.
 * Threads  as mha_distributed_forward().   Accuracy  exact.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_distributed_gather(mha_context *context,
                                                        const mha_transport *transport, int axis,
                                                        const mha_tensor *piece,
                                                        const mha_tensor *whole);

/**
 * Mix heads that are divided among ranks: out = concat(all heads) W_o^T + b_o, as in module.h, at
 * all ranks. Every rank makes the call.
 *
 *   heads [B,h,T,Dv] in    those of this rank, in the order of ranks; h may be 0
 *   w_o in                 a linear layer of this rank's rows of W_o and b_o: [e, H Dv]; in the order of ranks,
 *                          together all E, divided in any way
 *   out [B,T,E] out        f32, as heads; any strides, last axis contiguous
 *
 * Bit-identical to mha_linear_forward() with the whole W_o. Each rank receives B T (H - h) Dv floats in a
 * first gather, and B T (E - e) in a second.
 *
 * Memory   borrowed for the call. Scratch: B T (2 H Dv + e + E) floats.
 * Errors   as mha_distributed_gather(); MHA_ERR_SHAPE (w_o).
 * Threads  as mha_distributed_forward().   Accuracy  as mha_linear_forward().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_distributed_mix(mha_context *context,
                                                     const mha_transport *transport,
                                                     const mha_tensor *heads, const mha_linear *w_o,
                                                     const mha_tensor *out);

#ifdef __cplusplus
}
#endif
#endif
