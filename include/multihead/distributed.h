/* multihead: one attention over several ranks, with the bits of one process.
 *
 * The queries, keys and values of a sequence lie over ranks in pieces, which the caller cuts as it
 * likes. Each rank calls with its own rows and gets its own rows of the result: for any number of
 * ranks and any cuts the same bits as mha_attention_forward() and _backward() of the whole.
 *
 * How. Ranks exchange heads for rows (Jacobs et al. 2023, DeepSpeed-Ulysses, 3): each rank receives all rows of its
 * share of the heads, makes the call of one process, and sends the results to the owners of the rows. No sum is over
 * two ranks, so that the bits do not depend on them.
 *
 *   - the heads are divided into C parts; rank r has part r mod C
 *   - if there are more ranks than parts, the ranks r / C = g are group g. The ranks with the same part share its heads:
 *     each group has the queries of its ranks' pieces, and every rank has all keys and values of its heads
 *   - with a causal mask, pieces in alternating order give all groups as many pairs (mha_split_pieces())
 *
 * Few queries of many keys, as in decoding: mha_distributed_decode() leaves keys and values where they are
 * and sends the sums of rows.
 *
 * Letters as in attention.h; T and S are those of the whole.
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

/* Where cuts of queries are best taken: at multiples of so many rows from each sequence's first. */
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

/* What this rank has of the whole. The pieces of all ranks together are each row once. */
typedef struct mha_sequence_split {
    uint32_t struct_size;
    uint32_t flags; /* 0 */
    const mha_transport *transport;
    int64_t queries, keys;         /* T and S; of a ragged batch the packed axes */
    const mha_piece *query_pieces; /* ascending; q and o have the rows of the first, then those of
                                      the next */
    const mha_piece *key_pieces;   /* likewise of k and v */
    int64_t query_piece_count, key_piece_count;
} mha_sequence_split;

/**
 * Attention forward over all ranks of split->transport: every rank makes the call, with the same
 * descriptor except for inputs over queries, with the same types, and with the same outputs.
 *
 *   q [B,H,t,D] in    k [B,Hk,s,D] in    v [B,Hk,s,Dv] in    o [B,H,t,Dv] out
 *
 * with the t and s rows that this rank has. In desc
 *   - what is over queries (keep_mask, bias, global_queries, query_documents) has the t rows that
 *     this rank has, and all S columns
 *   - what is over keys alone (global_keys, key_documents), keep_blocks, and all lengths, starts
 *     and offsets are those of the whole, on every rank
 * outputs have t rows, but column_sums [B,H,s]: what the keys of this rank receive from all queries.
 * Lists of rows only with one piece.
 *
 * The number of parts C divides the number of ranks and H, and divides Hk or is a multiple of it. Of these the one is
 * taken for which the rank with the most needs the least scratch, and of equals the largest. C is 1, so that rows
 * stay at their ranks, if probabilities, average_probabilities or scores are wanted.
 *
 * column_sums adds up over queries. With more ranks than parts the sums of a part's heads go from piece to piece in
 * the order of queries, in double, and ranks add to them one after the other.
 *
 * Memory   borrowed for the call. Scratch, for h = H / C heads and hk = max(Hk / C, 1) key/value heads:
 *            S keys and values of hk heads
 *            C > 1: of h heads, the queries, results and what the descriptor has over queries, of all rows of a group;
 *            an input that all heads share is whole at each rank of a group
 *            the longest message to and from another rank
 *            that of mha_attention_forward() of these rows
 *            column_sums: B h S floats, and with more ranks than parts as many doubles
 * Errors   as mha_attention_forward(), at all ranks alike, with the number of the rank in
 *          mha_error_detail(); MHA_ERR_ARGUMENT (pieces that overlap or leave gaps; ranks whose
 *          descriptors, types or outputs differ); MHA_ERR_UNSUPPORTED (flags); MHA_ERR_RANK. On error no output byte
 *          is written; but with MHA_ERR_RANK outputs may be written in part.
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

/* What a call of this rank would do; o is taken to be f32. */
typedef struct mha_distributed_plan {
    const char *reason;                       /* who computes what, one sentence, static text */
    int64_t head_parts;                       /* C, into which heads are divided */
    int64_t messages_sent, messages_received; /* by this rank: rows, keys, values, results */
    double bytes_sent, bytes_received;        /* likewise */
    double pairs; /* that this rank computes: visible_pairs of its rows and heads */
    size_t scratch_bytes;
} mha_distributed_plan;

/**
 * Report what mha_distributed_forward() would do with the same arguments, with the same checks: all
 * ranks make the call. Data pointers of tensors are not read.
 *
 * Memory   fills *plan.   Errors  as mha_distributed_forward().   Threads  as that.   Since  0.1
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
 *   gradients            q and what is given of lse and probabilities have rows as q (and all S columns);
 *                        k and v as k; bias as the bias: a row for each query here, or one for all;
 *                        alibi_slopes, t5_table, shaw_keys, shaw_values, sink_logits, gates and scale
 *                        are those of the whole
 *
 * All ranks want and give the same ones, with the same flags. What is not over queries or keys comes whole to
 * every rank; with MHA_GRADIENTS_ACCUMULATE each adds it to what it has. A bias whose gradient is wanted has the same
 * axes at all ranks except that of queries. If each rank has one query, a bias with one row is taken to be one for all
 * of them.
 *
 * The number of parts C is chosen as in the forward; it is 1 if the gradient of a bias is wanted. Cuts of queries are
 * moved to multiples of MHA_SPLIT_ROWS from each sequence's first, and the rows sent accordingly.
 *
 * If every rank has key/value heads of its own (C is the number of ranks and divides Hk) and no gradient is wanted that
 * is a sum over queries (of parameters, of a bias), each rank makes the call of one process. Otherwise it walks twice:
 * over the queries of its heads and group, for their dq and the sums of parameters; then over blocks of 256 keys, which
 * are dealt to the ranks that share a key/value head. For these the query heads arrive one after the other, since the
 * gradient of a key is a sum over them. Both walks compute the scores of their pairs.
 *
 * Sums of parameters go from rank to rank at the end, in the order of sequences, heads and pieces, and
 * from the last to all: 8 bytes for each number of all of them, once for each sequence, rank and piece; and for each
 * head, if among them are gradients of the scale or of Shaw's tables, which are sums over heads. Those of a bias that
 * queries share, 2,048 bytes for each 256 keys, go likewise for each head: ranks compute them one after the other, and
 * at once as far as heads or sequences have elements of their own.
 *
 * Memory   borrowed for the call. Scratch, for h = H / C heads and hk = max(Hk / C, 1) key/value heads, rows of a group:
 *            as in the forward; o, gradients and their copies on the way too
 *            8 bytes for each row of q and head, twice; for each MHA_SPLIT_ROWS rows of a head the sums of parameters
 *            of one head, all T rows of q, o_gradient, lse, and what the descriptor has over queries
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

/* Where cuts of keys are taken: at multiples of the block of a softmax step. */
enum { MHA_SPLIT_KEYS = 512 };

/* Keys from the end of the piece before (the first: from key 0) to `end` lie at `rank`. */
typedef struct mha_key_piece {
    int64_t end; /* a multiple of MHA_SPLIT_KEYS, or the end of the last piece; ascending */
    int64_t rank;
} mha_key_piece;

/* Which rank has which keys and values of the text, and those of this rank: the rows of its pieces, one
 * after the other, in a cache or in k and v. Of a batch the cuts are those of all sequences.
 *
 * Growing. Whoever has the last piece appends the keys and values of new tokens to its cache, and all ranks
 * raise the piece's end; when it is as long as it should be, a new piece begins at another rank:
 *
 *   rank of position n = n / run % size      run a multiple of MHA_SPLIT_KEYS
 *
 * deals runs of positions around, so that no rank holds more than a run above the others. The sums go
 * from piece to piece, so long runs are better: a quarter of the expected length over size, say. */
typedef struct mha_key_split {
    uint32_t struct_size;
    uint32_t flags; /* 0 */
    const mha_transport *transport;
    const mha_key_piece *pieces; /* of all ranks in the order of keys; the same at every rank */
    int64_t piece_count;
    const mha_kv_cache *cache; /* no window; or NULL, and both of: */
    const mha_tensor *k, *v;   /* [B,Hk,s,D], [B,Hk,s,Dv], s the rows of this rank's pieces */
} mha_key_split;

/**
 * Attention forward of queries that all ranks have, on keys and values that lie over ranks. Every rank makes
 * the call, with the same q, desc and pieces, and gets the whole result: the bits of
 * mha_kv_cache_attention(), or of mha_attention_forward(), of one process that has all keys.
 *
 *   q [B,H,T,D] in    o [B,H,T,Dv] out    outputs: lse only, or none
 *
 * S is the end of the last piece. What is over keys has all S columns. key_lengths [B] are those of the whole
 * (NULL: S, all of them); a cache holds of each sequence what of its length lies in the pieces of its rank.
 * With a cache queries stand where mha_kv_cache_attention() puts them.
 *
 * How. With up to 56 rows (T times query heads of a key/value head; 29 with Dv 32, 55 with Dv 64; 12 with up
 * to 512 keys, or with sink_keys, documents, global keys or a callback), all ranks work at once: scores of their keys; an exchange of maxima, a number
 * for each row and piece; then exp and products with the values, each with the maximum of all keys up to
 * its block, as one process would. Then the rows' sums, Dv + 2 numbers for each, go from piece to piece in
 * the order of keys, and each rank adds what its blocks came to; the last one sends them to all.
 * Otherwise (more rows, keep_blocks, dropout, shaw_values, f16 and bf16 tensors, Dv that is no multiple of
 * 32, elements that are not finite) ranks work one after the other: each folds its keys into the sums that
 * reach it.
 * Keys and values never move, and but for the maxima nothing that is sent depends on their number.
 *
 * Memory   borrowed for the call. Scratch: Dv + 2 floats for each row; if ranks work at once also a float for
 *          each row and piece, twice, and 530 + Dv for each row and block of this rank.
 * Errors   those of the call that one process would make, at all ranks alike, with the number of the rank in
 *          mha_error_detail(); MHA_ERR_ARGUMENT (pieces; ranks whose q, descriptors or pieces differ; a
 *          cache that holds another number of positions), MHA_ERR_SHAPE, MHA_ERR_UNSUPPORTED (other
 *          outputs, ragged batches, a cache with a window, the plain path, bf16 arithmetic, flags), MHA_ERR_RANK. On error no output byte is written.
 * Threads  as mha_distributed_forward(); the cache does not change meanwhile.
 * Accuracy as mha_attention_forward().
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_distributed_decode(mha_context *context,
                                                        const mha_key_split *keys,
                                                        const mha_attention_desc *desc,
                                                        const mha_tensor *q, const mha_tensor *o,
                                                        const mha_attention_outputs *outputs);

/* What such a call would do, if everything is finite. */
typedef struct mha_decode_plan {
    bool at_once;       /* ranks work on their keys at once; false: one after the other */
    const char *reason; /* why, one sentence, static text */
    int64_t hops;       /* of the sums from rank to rank, one after the other */
    int64_t messages_sent, messages_received; /* by this rank, beside those of agreeing */
    double bytes_sent, bytes_received;        /* likewise */
    size_t scratch_bytes;
} mha_decode_plan;

/**
 * Report what mha_distributed_decode() would do with the same arguments, with the same checks: all ranks
 * make the call. Data pointers of tensors are not read.
 *
 * Memory   fills *plan.   Errors  as mha_distributed_decode().   Threads  as that.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_distributed_decode_explain(
    mha_context *context, const mha_key_split *keys, const mha_attention_desc *desc,
    const mha_tensor *q, const mha_attention_outputs *outputs, mha_decode_plan *plan);

/* ---- heads ----------------------------------------------------------------------------------- */

/* Heads over ranks: each rank computes its own ones, by the calls of one process, and what needs all of
 * them is brought together. No sum is divided: weights of projections are cut by their outputs, so that
 * each output is the sum of one process.
 *
 *   q, k, v   of own heads: a module of these heads, with their rows of W_q, W_k and W_v. Or own heads
 *             of the caller's tensors, and of the descriptor's tensors over heads
 *   heads     mha_attention_forward(), with first_head for dropout; of a module the output heads
 *   out       mha_distributed_mix(): all heads to all ranks, own rows of W_o, all outputs to all ranks
 *
 * Backward, with cuts at key/value heads: heads' gradient = that of out times own columns of W_o, then
 * mha_attention_backward() of own heads. Gradients of own rows of W_q, W_k, W_v, W_o need nothing of other
 * ranks but the gathered heads; that of the input is a sum over all heads, so the gradients of q, k, v
 * are gathered before it.
 *
 * A grid of ranks divides heads and sequence: a part (mha_transport_part_make()) for the ranks of the same
 * heads, to which mha_distributed_forward() is given, and one for the ranks of the same rows, for the mix. */
typedef struct mha_head_piece {
    int64_t begin, end;       /* query heads */
    int64_t kv_begin, kv_end; /* key/value heads that they read */
} mha_head_piece;

/**
 * Divide heads among `size` ranks, and say which ones rank `rank` has. Ranks of up to kv_heads have whole
 * groups, which differ by one at most; more ranks have parts of one group each, and more than heads
 * none. In a piece each key/value head has as many query heads as any other, so that it is an attention.
 *
 * Memory   fills *piece.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (heads, kv_heads, rank, size).   Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_split_heads(int64_t heads, int64_t kv_heads, int32_t rank,
                                                 int32_t size, mha_head_piece *piece);

/**
 * Bring pieces of a tensor together: all ranks have the whole afterwards. Every rank makes the call.
 *
 *   piece in    along `axis` any number of elements; the pieces lie in the order of ranks
 *   whole out   the same in all other axes, as many along it as all pieces together
 *
 * f32, f16 or bf16, the same at all ranks, any strides; bits are copied.
 *
 * How. Pieces go round, from each rank to the next: size - 1 messages a rank, and it receives what it does
 * not have once.
 *
 * Memory   borrowed for the call, they may not overlap. Scratch: as many bytes as whole.
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
 * Mix heads that lie over ranks: out = concat(all heads) W_o^T + b_o, as in module.h, at all ranks. Every
 * rank makes the call.
 *
 *   heads [B,h,T,Dv] in    those of this rank, in the order of ranks; h may be 0
 *   w_o in                 a linear layer of this rank's rows of W_o and b_o: [e, H Dv]; in the order of ranks,
 *                          together all E. Any division will do
 *   out [B,T,E] out        f32, as heads; any strides, last axis contiguous
 *
 * Has the bits of mha_linear_forward() of the whole W_o. Two gathers: of B T (H - h) Dv and of B T (E - e)
 * numbers received.
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
