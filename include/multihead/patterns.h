/* multihead: published block patterns, written into a keep_blocks tensor (attention.h).
 *
 * A pattern determines for each block row r and block column c whether the block is computed. Row r
 * is at column i = r + offset; blocks are square (block_queries == block_keys) wherever a part uses
 * i. A block is kept if any part that is set keeps it:
 *
 *   local     i - left_blocks <= c <= i + right_blocks            Longformer, BigBird
 *   global    r < global_rows or c < global_cols                  Longformer, BigBird (the first)
 *   stride    (i - c) mod stride == 0                             Child et al. 2019, strided
 *   fixed     floor(c / fixed) == floor(i / fixed), or
 *             c mod fixed >= fixed - fixed_summary                Child et al. 2019, fixed
 *   random    random_blocks more in each row, drawn from the rest Big Bird
 *
 * and with MHA_PATTERN_CAUSAL only if c <= i. The published patterns of
 *
 *   Child, Gray, Radford, Sutskever 2019, "Generating Long Sequences with Sparse Transformers":
 *     strided   causal, stride = l, left_blocks = l   (both heads' patterns in one)
 *     fixed     causal, fixed = l, fixed_summary = c
 *   Beltagy, Peters, Cohan 2020, "Longformer": left_blocks = right_blocks = w / 2, global_rows =
 *     global_cols = the number of leading blocks with global tokens
 *   Zaheer et al. 2020, "Big Bird": the same with left_blocks = right_blocks = 1 and random_blocks
 *
 * each take a few fields of a descriptor. To combine patterns, set several parts in one descriptor,
 * or call with MHA_PATTERN_ADD on a tensor that already holds a pattern. MHA_PATTERN_CAUSAL drops
 * whole blocks; use MHA_ATTENTION_CAUSAL for the triangle inside the diagonal's blocks.
 *
 * Example, given mha_tensor keep_blocks, int64_t *kept:
 *
 *   mha_pattern_desc longformer = MHA_INIT(mha_pattern_desc);
 *   longformer.flags = MHA_PATTERN_LOCAL;
 *   longformer.left_blocks = longformer.right_blocks = 2;
 *   longformer.global_rows = longformer.global_cols = 1;
 *   mha_status status = mha_pattern_fill(&longformer, &keep_blocks, kept);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_PATTERNS_H
#define MULTIHEAD_PATTERNS_H

#include <multihead/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* mha_pattern_desc.flags */
enum {
    MHA_PATTERN_CAUSAL = 1 << 0, /* c <= i */
    MHA_PATTERN_LOCAL = 1 << 1,  /* left_blocks and right_blocks apply */
    MHA_PATTERN_ADD = 1 << 2     /* keep the blocks that the tensor already keeps */
};

/* Zero everywhere: no block is kept. */
typedef struct mha_pattern_desc {
    uint32_t struct_size;
    uint32_t flags;
    int64_t offset;                    /* of row 0, in blocks; may be negative */
    int64_t left_blocks, right_blocks; /* beside the block at i, which is kept too; only with
                                          MHA_PATTERN_LOCAL, right_blocks 0 if causal */
    int64_t global_rows, global_cols;
    int64_t stride;        /* 0: none */
    int64_t fixed;         /* 0: none */
    int64_t fixed_summary; /* 0 .. fixed */
    int64_t random_blocks; /* per row, without replacement; all remaining blocks if there are
                              fewer */
    uint64_t seed;
} mha_pattern_desc;

/**
 * Write a pattern: 1 where a block is kept, 0 where not.
 *
 *   keep_blocks [rows,cols] or [H,rows,cols] out    u8, any strides    kept out, may be NULL
 *
 * With H heads, all have the same pattern except for the random part. A row's random blocks are
 * drawn uniformly among those that no part keeps, by Philox 4x32-10 from (seed, head, row): a row
 * does not depend on the number of other rows or heads. *kept is the number of kept blocks in the
 * tensor, including those kept before MHA_PATTERN_ADD.
 *
 * Memory   borrowed for the call; nothing is allocated.   Cost  O(H rows cols).
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (a number outside 0 .. 2^31 - 1; right_blocks with
 *          causal; left_blocks or right_blocks without their flag; fixed_summary beyond fixed),
 *          MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_STRIDE, MHA_ERR_SIZE (H, rows, cols or |offset|
 *          from 2^31 on), MHA_ERR_UNSUPPORTED (an unknown flag). On error neither the tensor nor
 *          *kept is written.
 * Threads  any.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_pattern_fill(const mha_pattern_desc *desc,
                                                  const mha_tensor *keep_blocks, int64_t *kept);

#ifdef __cplusplus
}
#endif
#endif
