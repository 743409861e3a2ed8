/* Linear layers in int8 arithmetic for one instruction set, and the table of their kernels.
 * Included by isa/int8_*.c. All code here must be static, as in table_tmpl.c.
 *
 * Activations are quantised in blocks of 32 with a common unit, and multiplied by the quantised
 * weights of a file. Each lane is an output, so nothing is summed across lanes. */
#include "base/half.h"
#include "kernels/int8.h"

#include <string.h>

#include "kernels/tmpl/types_tmpl.c"

enum {
    BLOCK_COLS = SUM_VECTORS * VF_LANES,
    /* Dwords between rows of activations. It is a constant, so that the strides of 14 rows need no
     * registers, and not a power of two, so that rows do not share cache sets. */
    ROW_STRIDE = MHA_CODED_COLUMNS / GROUP + 16
};

static const float int8_least = 0x1p-80f;      /* smaller blocks become 0, so that
                                                * units are not subnormal */
static const float int8_input_limit = 0x1p93f; /* keeps units * scales and sums finite */

ALWAYS_INLINE vf int8_load(const float *x, int64_t left)
{
    return left > 0 ? vf_load(x) : vf_zero();
}

/* Round 16 inputs times `steps` to integers; returns their sum. */
ALWAYS_INLINE int32_t int8_round(const float *x, int64_t left, vf steps, int32_t *out)
{
    vi sum = vi_zero();
    UNROLL for (int i = 0; i < 16; i += VF_LANES)
    {
        const vi small = vf_int(vf_mul(int8_load(x + i, left), steps));
        store_small(out + i / GROUP, small);
        sum = vi_add(sum, small);
    }
    return vi_total(sum);
}

ALWAYS_INLINE void int8_round_block(const float *x, int64_t left, int32_t *out,
                                    mhai_int8_block *block)
{
    vf most[LANES16];
    UNROLL for (int i = 0; i < LANES16; i++) most[i] = vf_max(
        vf_abs(vf_load(x + i * VF_LANES)), vf_abs(int8_load(x + 16 + i * VF_LANES, left - 16)));
    const float max = vf_max16(most);
    const bool zero = max < int8_least;
    const float unit = zero ? 0.0f : max / 127.0f;
    const vf steps = vf_set1(zero ? 0.0f : 127.0f / max);
    const int32_t first = int8_round(x, left, steps, out),
                  second = int8_round(x + 16, left - 16, steps, out + 16 / GROUP);
    *block = (mhai_int8_block){
        .unit = unit,
        .sum = {unit * (float)(first + second), unit * (float)first, unit * (float)second},
        .start = {-WEIGHT_OFFSET * (first + second), -WEIGHT_OFFSET * first,
                  -WEIGHT_OFFSET * second}};
}

static bool int8_in_range(const float *x, int64_t n)
{
    vf sum[LANES16], most[LANES16];
    UNROLL for (int i = 0; i < LANES16; i++) sum[i] = most[i] = vf_zero();
    for (int64_t i = 0; i < n; i += 16) UNROLL for (int k = 0; k < LANES16; k++)
        {
            const vf part = vf_load(x + i + k * VF_LANES);
            sum[k] = vf_fma(part, vf_zero(), sum[k]);
            most[k] = vf_max(vf_abs(part), most[k]);
        }
    return vf_sum16(sum) == 0 && vf_max16(most) < int8_input_limit;
}

static void int8_inputs(const float *x, int64_t n, int32_t *small, mhai_int8_block *blocks)
{
    const int64_t count = (n + MHAI_INT8_BLOCK - 1) / MHAI_INT8_BLOCK;
    if (!int8_in_range(x, n)) {
        memset(small, 0, (size_t)(count * MHAI_INT8_BLOCK / GROUP) * sizeof *small);
        for (int64_t i = 0; i < count; i++)
            blocks[i] = (mhai_int8_block){.unit = __builtin_nanf("")};
        return;
    }
    for (int64_t i = 0; i < count; i++)
        int8_round_block(x + i * MHAI_INT8_BLOCK, n - i * MHAI_INT8_BLOCK,
                         small + i * (MHAI_INT8_BLOCK / GROUP), &blocks[i]);
}

/* ---- products -------------------------------------------------------------------------------- */

/* Up to BLOCK_ROWS rows of BLOCK_COLS outputs, starting at `lane`. */
typedef struct int8_strip {
    const mha_coded *w;
    int64_t inputs;
    int lane;
    const int32_t *x;
    const mhai_int8_block *blocks;
    float (*y)[MHAI_PANEL];
} int8_strip;

/* For one run: y += sum * (scale * unit) + offset * shift, where shift = unit * the sum of the
 * quantised numbers. Each operation is rounded. */
ALWAYS_INLINE void int8_join(bool has_offsets, const int8_strip *t, int64_t run, int row, int j,
                             vi sum, float unit, float shift)
{
    const int at = t->lane + j * VF_LANES;
    float *to = t->y[row] + at;
    vf y = vf_load(to);
    y = vf_add(y, vf_mul(vi_float(sum), vf_mul(vf_load(t->w->scale[run] + at), vf_set1(unit))));
    if (has_offsets) y = vf_add(y, vf_mul(vf_load(t->w->offset[run] + at), vf_set1(shift)));
    vf_store(to, y);
}

ALWAYS_INLINE void int8_run(int rows, const int8_strip *t, int64_t run, int fours)
{
    enum { PARTS = 4 / GROUP };
    const int part = fours == 8 ? 0 : 1 + (int)(run % 2);
    const mhai_int8_block *block = t->blocks + run * fours / 8;
    const int32_t *number = (const int32_t *)(const void *)t->w->number[run * fours];
    const int32_t *x = t->x + run * fours * PARTS;
    vi_sums sum[BLOCK_ROWS][SUM_VECTORS];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < SUM_VECTORS; j++) sum[r][j] =
        vi_sums_set1(WEIGHT_OFFSET != 0 ? block[r * MHAI_INT8_BLOCKS].start[part] : 0);
    for (int i = 0; i < fours; i++) UNROLL for (int p = 0; p < PARTS; p++)
        {
            vi column[SUM_VECTORS];
            UNROLL for (int j = 0; j < SUM_VECTORS; j++) column[j] =
                vi_weights(vi_load(number + i * MHAI_PANEL + t->lane + j * VF_LANES), p);
            UNROLL for (int r = 0; r < rows; r++)
            {
                const vi row = vi_set1(x[r * ROW_STRIDE + i * PARTS + p]);
                UNROLL for (int j = 0; j < SUM_VECTORS; j++) sum[r][j] =
                    vi_dot(sum[r][j], row, column[j]);
            }
        }
#define JOIN(has_offsets)                                                              \
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < SUM_VECTORS; j++) \
        int8_join(has_offsets, t, run, r, j, vi_sums_total(sum[r][j]),                 \
                  block[r * MHAI_INT8_BLOCKS].unit, block[r * MHAI_INT8_BLOCKS].sum[part]);
    if (t->w->has_offsets) {
        JOIN(true)
    } else {
        JOIN(false)
    }
#undef JOIN
}

ALWAYS_INLINE void int8_runs(int rows, const int8_strip *t)
{
    const int fours = t->w->run / 4;
    for (int64_t run = 0; run * fours * 4 < t->inputs; run++) int8_run(rows, t, run, fours);
}

#define INT8_RUNS(n)                                                \
    case n:                                                         \
        if (n <= BLOCK_ROWS) int8_runs(n <= BLOCK_ROWS ? n : 1, t); \
        return;
/* clang-format off */
static __attribute__((noinline)) void int8_linear_block(int rows, const int8_strip *t)
{
    switch (rows) {
        INT8_RUNS(1) INT8_RUNS(2) INT8_RUNS(3) INT8_RUNS(4) INT8_RUNS(5)
        INT8_RUNS(6) INT8_RUNS(7) INT8_RUNS(8) INT8_RUNS(9) INT8_RUNS(10)
        INT8_RUNS(11) INT8_RUNS(12) INT8_RUNS(13) INT8_RUNS(14)
    }
}
/* clang-format on */
_Static_assert(BLOCK_ROWS <= 14, "add cases above");

/* Accumulates the outputs of a strip in a local buffer, because rows in memory may be pages
 * apart. `block` computes `cols` columns. */
static void int8_strip_rows(const mhai_int8_product *p, int64_t row, int rows,
                            void (*block)(int rows, const int8_strip *t), int cols)
{
    _Alignas(64) float y[MHAI_MAX_ROWS][MHAI_PANEL];
    for (int r = 0; r < rows; r++)
        for (int64_t i = 0; i < MHAI_PANEL; i += VF_LANES)
            vf_store(y[r] + i,
                     i < p->cols ? vf_load_n(p->from + (row + r) * p->from_stride + i, p->cols - i)
                                 : vf_zero());
    for (int lane = 0; lane < MHAI_PANEL; lane += cols)
        block(rows, &(int8_strip){.w = p->w,
                                  .inputs = p->inputs,
                                  .lane = lane,
                                  .x = p->x + row * ROW_STRIDE,
                                  .blocks = p->blocks + row * MHAI_INT8_BLOCKS,
                                  .y = y});
    for (int r = 0; r < rows; r++)
        for (int64_t i = 0; i < p->cols; i += VF_LANES)
            vf_store_n(p->out + (row + r) * p->out_stride + i, p->cols - i, vf_load(y[r] + i));
}

#ifdef MHAI_SIMD_TILES_H
#include "kernels/tmpl/int8_tiles_tmpl.c"
enum { STRIP_ROWS = TILE_STRIPS * TILE_ROWS_MOST };
#else
enum { STRIP_ROWS = BLOCK_ROWS };
#endif

static void int8_product(const mhai_int8_product *p)
{
#ifdef MHAI_SIMD_TILES_H
    if (p->rows >= TILE_ROWS_LEAST) {
        int8_tile_product(p);
        return;
    }
#endif
    for (int64_t row = 0, rows; row < p->rows; row += rows) {
        rows =
            block_rows((int)(p->rows - row < 2 * BLOCK_ROWS ? p->rows - row : 2 * BLOCK_ROWS + 1));
        int8_strip_rows(p, row, (int)rows, int8_linear_block, BLOCK_COLS);
    }
}

#include "kernels/tmpl/bf16_product_tmpl.c"

#define TABLE_(suffix) mhai_int8_kernels_##suffix
#define TABLE(suffix) TABLE_(suffix)
extern const mhai_int8_kernels TABLE(MHAI_ISA_SUFFIX);
const mhai_int8_kernels TABLE(MHAI_ISA_SUFFIX) = {
    .group = GROUP,
    .row_stride = ROW_STRIDE,
    .strip_rows = STRIP_ROWS,
#define MHAI_KERNEL(name, arguments) .name = name,
#include "kernels/int8.inc"
#undef MHAI_KERNEL
};
