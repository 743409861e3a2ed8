/* Block patterns: each row of blocks is a union of intervals, residues and a random sample.
 *
 * The sample takes each free block of a row, in order, with probability needed / left (selection
 * sampling; Knuth, The Art of Computer Programming 2, 3.4.2). It needs no memory, and all subsets
 * of the right size are equally likely, up to the 32 bits of a draw. */
#include "base/checked.h"
#include "base/need.h"
#include "base/philox.h"
#include "base/tensor.h"

#include <multihead/component.h>
#include <multihead/patterns.h>

/* Replaces the sequence index in the random stream of attention's dropout. No sequence has this
 * index, so patterns and dropout may share a seed. */
static const uint32_t NO_BATCH = 0x70617474;

/* ---- checks ---------------------------------------------------------------------------------- */

static mha_status check_numbers(const mha_pattern_desc *d)
{
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {{"mha_pattern_desc: left_blocks", d->left_blocks},
                   {"mha_pattern_desc: right_blocks", d->right_blocks},
                   {"mha_pattern_desc: global_rows", d->global_rows},
                   {"mha_pattern_desc: global_cols", d->global_cols},
                   {"mha_pattern_desc: stride", d->stride},
                   {"mha_pattern_desc: fixed", d->fixed},
                   {"mha_pattern_desc: fixed_summary", d->fixed_summary},
                   {"mha_pattern_desc: random_blocks", d->random_blocks}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        MHA_TRY(mhai_check_range(numbers[i].name, numbers[i].value, 0, INT32_MAX));
    if (d->offset > INT32_MAX || d->offset < -INT32_MAX)
        return mha_fail(MHA_ERR_SIZE, "mha_pattern_desc: offset is %lld, expected %d..%d",
                        (long long)d->offset, -INT32_MAX, INT32_MAX);
    return MHA_OK;
}

static mha_status check_desc(const mha_pattern_desc *d)
{
    const uint32_t known = MHA_PATTERN_CAUSAL | MHA_PATTERN_LOCAL | MHA_PATTERN_ADD;
    MHA_TRY(mhai_check_flags("mha_pattern_desc", d->flags, known));
    MHA_TRY(check_numbers(d));
    if (!(d->flags & MHA_PATTERN_LOCAL) && (d->left_blocks || d->right_blocks))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_pattern_desc: left_blocks %lld and right_blocks %lld require the flag "
                        "MHA_PATTERN_LOCAL",
                        (long long)d->left_blocks, (long long)d->right_blocks);
    if (d->flags & MHA_PATTERN_CAUSAL && d->right_blocks > 0)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_pattern_desc: right_blocks is %lld, but a causal row sees no later "
                        "block; set 0",
                        (long long)d->right_blocks);
    if (d->fixed_summary > d->fixed)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_pattern_desc: fixed_summary is %lld, expected 0..%lld, the blocks of "
                        "a fixed group",
                        (long long)d->fixed_summary, (long long)d->fixed);
    return MHA_OK;
}

/* Check the tensor, and add a head axis if it has none. */
static mha_status check_blocks(const mha_tensor *given, mha_tensor *blocks)
{
    if (!given) return mha_fail(MHA_ERR_NULL, "keep_blocks: is NULL");
    if (given->ndim != 2 && given->ndim != 3)
        return mha_fail(MHA_ERR_SHAPE, "keep_blocks: has %d dimensions, expected 2 or 3",
                        (int)given->ndim);
    MHA_TRY(mhai_tensor_check("keep_blocks", given, MHA_U8, given->ndim, NULL));
    MHA_TRY(mhai_tensor_check_output("keep_blocks", given));
    *blocks = *given;
    if (given->ndim == 2) {
        blocks->ndim = 3;
        blocks->shape[0] = 1, blocks->stride[0] = 0;
        for (int i = 0; i < 2; i++)
            blocks->shape[i + 1] = given->shape[i], blocks->stride[i + 1] = given->stride[i];
    }
    for (int i = 0; i < 3; i++)
        if (blocks->shape[i] > INT32_MAX)
            return mha_fail(MHA_ERR_SIZE, "keep_blocks: dim %d is %lld, at most %d",
                            i - 3 + given->ndim, (long long)blocks->shape[i], INT32_MAX);
    return MHA_OK;
}

/* ---- one row --------------------------------------------------------------------------------- */

typedef struct pattern_row {
    const mha_pattern_desc *desc;
    uint8_t *cell; /* column c is at cell[c * stride] */
    int64_t stride, cols;
    int64_t head, row, i; /* i: the row's own column */
} pattern_row;

static int64_t modulo(int64_t a, int64_t b) /* 0 .. b-1 for b > 0 */
{
    int64_t rest = a % b;
    return rest < 0 ? rest + b : rest;
}

static bool keeps(const pattern_row *x, int64_t c)
{
    const mha_pattern_desc *d = x->desc;
    int64_t left = x->i - c; /* negative: to the right */
    if (d->flags & MHA_PATTERN_CAUSAL && left < 0) return false;
    if (d->flags & MHA_PATTERN_LOCAL && left <= d->left_blocks && -left <= d->right_blocks)
        return true;
    if (x->row < d->global_rows || c < d->global_cols) return true;
    if (d->stride && modulo(left, d->stride) == 0) return true;
    if (!d->fixed) return false;
    int64_t first = x->i - modulo(x->i, d->fixed); /* first block of the row's group */
    return (c >= first && c - first < d->fixed) || c % d->fixed >= d->fixed - d->fixed_summary;
}

static bool free_to_draw(const pattern_row *x, int64_t c)
{
    return x->cell[c * x->stride] == 0 && (!(x->desc->flags & MHA_PATTERN_CAUSAL) || c <= x->i);
}

static void draw(const pattern_row *x)
{
    int64_t left = 0, group = -1;
    for (int64_t c = 0; c < x->cols; c++) left += free_to_draw(x, c);
    int64_t needed = mhai_min_i64(x->desc->random_blocks, left);
    const uint32_t key[2] = {(uint32_t)x->desc->seed, (uint32_t)(x->desc->seed >> 32)};
    uint32_t word[4] = {0};
    for (int64_t c = 0; needed > 0; c++) {
        if (!free_to_draw(x, c)) continue;
        if (c / 4 != group) {
            group = c / 4;
            mhai_dropout_words(word, key, NO_BATCH, (uint32_t)x->head, (uint32_t)x->row, group);
        }
        /* true with probability needed / left, in 32 bits; certain if all
         * remaining blocks are needed */
        if (((uint64_t)word[c % 4] * (uint64_t)left) >> 32 < (uint64_t)needed) {
            x->cell[c * x->stride] = 1;
            needed--;
        }
        left--;
    }
}

static int64_t fill_row(const pattern_row *x)
{
    int64_t kept = 0;
    for (int64_t c = 0; c < x->cols; c++) {
        uint8_t *cell = x->cell + c * x->stride;
        bool before = x->desc->flags & MHA_PATTERN_ADD && *cell != 0;
        *cell = before || keeps(x, c);
    }
    if (x->desc->random_blocks > 0) draw(x);
    for (int64_t c = 0; c < x->cols; c++) kept += x->cell[c * x->stride];
    return kept;
}

mha_status mha_pattern_fill(const mha_pattern_desc *desc, const mha_tensor *keep_blocks,
                            int64_t *kept)
{
    mha_pattern_desc d;
    mha_tensor blocks;
    int64_t count, total = 0;
    if (!desc) return mha_fail(MHA_ERR_NULL, "mha_pattern_desc: is NULL");
    MHA_TRY(mhai_struct_copy("mha_pattern_desc", &d, sizeof d, sizeof d, desc));
    MHA_TRY(check_desc(&d));
    MHA_TRY(check_blocks(keep_blocks, &blocks));
    MHA_TRY(mha_tensor_count(&blocks, &count));
    for (int64_t h = 0; count > 0 && h < blocks.shape[0]; h++)
        for (int64_t r = 0; r < blocks.shape[1]; r++) {
            uint8_t *cell = (uint8_t *)blocks.data + h * blocks.stride[0] + r * blocks.stride[1];
            total += fill_row(&(pattern_row){.desc = &d,
                                             .cell = cell,
                                             .stride = blocks.stride[2],
                                             .cols = blocks.shape[2],
                                             .head = h,
                                             .row = r,
                                             .i = r + d.offset});
        }
    if (kept) *kept = total;
    return MHA_OK;
}
