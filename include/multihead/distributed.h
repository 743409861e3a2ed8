/* multihead: one attention over several ranks, with the bits of one process.
 *
 * The queries, keys and values of a sequence lie over ranks in pieces, which the caller cuts as it
 * likes. Each rank calls with its own rows and gets its own rows of the result: for any number of
 * ranks and any cuts the same bits as mha_attention_forward() and _backward() of the whole.
 *
 * How. A row's softmax goes over blocks of 512 keys from key 0 on, and what a block adds depends on
 * those before it. So blocks travel in the order of keys, from the rank that has them to all that
 * need them, and each rank folds each block into its rows: a pipeline through the ranks in which
 * the next blocks are on their way while one is computed. A rank keeps its rows, their sums, and a
 * few blocks. (A rotating ring, which begins with the rank's own keys, merges in another order, and
 * changes bits with the number of ranks.)
 *
 *   - every rank reads from and sends to others at most S keys and values once
 *   - a causal mask or a window spares what no row of a rank and of those after it sees
 *   - with a causal mask, pieces that go to and fro give all ranks as many pairs (mha_split_pieces())
 *
 * Before that, the forward may exchange heads for rows: C ranks that follow each other send each other rows, so
 * that each has H / C heads and all rows of the C ranks (Jacobs et al. 2023, DeepSpeed-Ulysses, 3). Keys of a head
 * then pass size / C ranks instead of size, and none if C is size (mha_distributed_forward()).
 *
 * Few queries of many keys, as in decoding: mha_distributed_decode() leaves keys and values where they are
 * and sends the sums of rows.
 *
 * Letters as in attention.h; T and S are those of the whole.
 *
 * Example, given mha_context *context, const mha_transport *ranks, int64_t n, mha_tensor q,
 * mha_tensor k, mha_tensor v, mha_tensor o:
 *
 *   mha_piece pieces[8]; // of this rank; q, k, v and o hold the rows of these pieces
 *   int64_t count = 0;
 *   mha_status status = mha_split_pieces(n, ranks->rank, ranks->size, 4, pieces, &count);
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

/* Where a cut of queries costs the backward nothing: at multiples of so many rows from each sequence's first. */
enum { MHA_SPLIT_ROWS = 112 };

/**
 * Cut `length` rows for `size` ranks, and say which pieces rank `rank` has, ascending. Cuts are at
 * multiples of MHA_SPLIT_ROWS; of a short sequence some pieces are empty.
 *
 *   folds 0    one piece a rank, in the order of ranks
 *   folds F    zigzag: 2 F size pieces go to the ranks to and fro, 0 .. size - 1, size - 1 .. 0, F times
 *
 * With a causal mask zigzag gives all ranks as many pairs. In the forward all ranks see a block of keys at
 * about the same time, so that computing takes up to 1 + 1 / (2 F) times as long as the pairs of a rank do: 4
 * is a good number. In the backward every piece is a visit of each block, and 1 is enough.
 *
 *   pieces [1 or 2 folds] out    count out: how many these are, of which some may be empty
 *
 * Memory   none.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (length, rank, size, folds).   Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_split_pieces(int64_t length, int32_t rank, int32_t size,
                                                  int64_t folds, mha_piece *pieces, int64_t *count);

/* mha_sequence_split.flags, the same at all ranks */
enum {
    MHA_SEQUENCE_KEEP_HEADS = 1 << 0 /* the forward does not exchange heads (below) */
};

/* What this rank has of the whole. The pieces of all ranks together are each row once. */
typedef struct mha_sequence_split {
    uint32_t struct_size;
    uint32_t flags;
    const mha_transport *transport;
    int64_t queries, keys;         /* T and S; of a ragged batch the packed axes */
    const mha_piece *query_pieces; /* ascending; q and o have the rows of the first, then those of
                                      the next */
    const mha_piece *key_pieces;   /* likewise of k and v */
    int64_t query_piece_count, key_piece_count;
} mha_sequence_split;

/**
 * Attention forward over all ranks of split->transport: every rank makes the call, with the same
 * descriptor but for what is over queries.
 *
 *   q [B,H,t,D] in    k [B,Hk,s,D] in    v [B,Hk,s,Dv] in    o [B,H,t,Dv] out
 *
 * with the t and s rows that this rank has. In desc
 *   - what is over queries (keep_mask, bias, global_queries, query_documents) has the t rows that
 *     this rank has, and all S columns
 *   - what is over keys alone (global_keys, key_documents), keep_blocks, and all lengths, starts
 *     and offsets are those of the whole, on every rank
 * outputs have t rows, but column_sums [B,H,s]: what the keys of this rank receive from all queries.
 * Lists of rows only with one piece. scores and column_sums are wanted by all ranks or by none.
 *
 * Without outputs other than lse, on the tiled path in f32, keys and values pass through; otherwise
 * every rank gathers all of them first (mha_distributed_explain() says which and why).
 *
 * Heads are exchanged if the only output besides o is lse, nothing in desc is over queries (keep_mask, bias,
 * global_queries, query_documents), and some number of ranks C divides size, H, and Hk or is a multiple of it. Of
 * all such C the one is taken whose rank receives the fewest bytes, those of 16 blocks for each further rank with
 * the same heads counted too, since they are under way at once; if 1 takes the fewest, heads stay. What is
 * exchanged arrives before the first row is computed, and results leave after the last: on slow links, and with many
 * queries for each key/value head, MHA_SEQUENCE_KEEP_HEADS may be faster, and it takes less memory.
 *
 * column_sums adds up over queries: the sums of all keys, in double, go from piece to piece in the order of
 * queries, and each rank adds its own. They go in turns of some key/value heads, so that ranks of pieces that
 * follow each other work at once; with few heads (B Hk) they wait for each other.
 *
 * Memory   borrowed for the call. Scratch: with keys that pass through Dv + 2 floats for each
 *          row of q and head, and nine to 19 blocks of keys and values; else S keys and values, and that of
 *          mha_attention_forward() for the rows here. column_sums: B H S doubles, and at most as many
 *          floats. Heads that are exchanged: as much again as q, k, v and o of this rank, more if there are
 *          more parts than key/value heads; and copies of those whose rows of a head are not contiguous.
 * Errors   as mha_attention_forward(), at all ranks alike, with the number of the rank in
 *          mha_error_detail(); MHA_ERR_ARGUMENT (pieces that overlap or leave gaps; ranks whose
 *          descriptors differ); MHA_ERR_UNSUPPORTED (flags); MHA_ERR_RANK. On error no output byte
 *          is written; but with MHA_ERR_RANK, if there are column_sums or heads are exchanged, other outputs
 *          may be written in part.
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
    bool streamed;      /* keys pass through; false: they are gathered, or all here */
    const char *reason; /* why, one sentence, static text */
    int64_t parcels;    /* blocks of keys that travel as one message, of all ranks */
    int64_t messages_sent, messages_received; /* by this rank: rows, keys, values, column sums */
    double bytes_sent, bytes_received;        /* likewise */
    double pairs; /* that this rank computes: visible_pairs of its rows and heads */
    size_t scratch_bytes;
    int64_t head_parts; /* ranks that exchange heads with each other; 1: none do */
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
 * every rank; with MHA_GRADIENTS_ACCUMULATE each adds it to what it has. q, o, o_gradient and bias have the
 * same types at all ranks, and a bias whose gradient is wanted the same axes but for that of queries. If
 * each rank has one query, a bias with one row is taken to be one for all of them.
 *
 * Queries stay at their ranks. Blocks of 256 keys of a head visit them in the order of query heads and
 * queries, with the sums of their gradients, and come home; what a row of q adds up, it adds in the
 * order of keys. Both are the orders of one process. It sums MHA_SPLIT_ROWS queries at a time, counted from
 * each sequence's first: of those that a cut divides, the rank with the first one is sent copies of the
 * others and of their inputs, and sends back their gradients.
 *
 * Sums of parameters go from piece to piece at the end, in the order of sequences, heads and queries, and
 * from the last to all: 8 bytes for each number of all of them, once for each piece; once for each piece and
 * head, if among them are gradients of the scale or of Shaw's tables, which are sums over heads.
 *
 * The gradient of a bias, and gradients by probabilities, take walks of their own over all keys and values,
 * which every rank gathers first: a bias with rows of its own is as large as they are. The sums of one
 * that all queries share go from piece to piece in the order of one process, for each head if heads share
 * it, too; other keys and heads meanwhile. If keys share it as well (a number for a head, or for all),
 * ranks compute one after the other what one thread of one process would.
 *
 * Memory   borrowed for the call. Scratch: as mha_attention_backward() of the rows here, and D + 2
 *          floats for each row of q and head, and as many more as Shaw's tables have rows; for each
 *          MHA_SPLIT_ROWS rows of a head the sums of parameters; where a cut divides MHA_SPLIT_ROWS queries,
 *          two copies of these and of what is over them; with gradients of the bias or by probabilities
 *          S keys and values, and 8 bytes for each number of a shared bias; blocks on their way from the
 *          context's allocator, at most about 64 times 256 (3 D + 3 Dv) floats for each thread.
 * Errors   as mha_attention_backward(), at all ranks alike; as mha_distributed_forward();
 *          MHA_ERR_UNSUPPORTED (the plain path). With MHA_ERR_RANK and MHA_ERR_NOMEM gradients may
 *          be written in part.
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
