/* Kernels of linear layers in int8 arithmetic: the single operations of docs/numerics.md 13, in f32
 * and integers. All bits are compared. */
#include "kernel_strip.h"

#include "reference/half_reference.h"

/* An instruction set's format of small numbers: two 16-bit numbers per dword, or four bytes. Byte
 * weights have an offset of 128, which the first term of a sum subtracts. */
typedef struct small_form {
    int group, offset;
} small_form;

static small_form form_of(const mhai_int8_kernels *k)
{
    return (small_form){k->group, k->group == 4 ? 128 : 0};
}

/* Number i of a dword. */
static int small_of(small_form form, int32_t dword, int64_t i)
{
    if (form.group == 2) return (int16_t)((uint32_t)dword >> (16 * i));
    return (int8_t)((uint32_t)dword >> (8 * i));
}

static int32_t with_small(small_form form, int32_t dword, int64_t i, int small)
{
    const int bits = 32 / form.group;
    const uint32_t mask = form.group == 2 ? 65535 : 255;
    const uint32_t part = (uint32_t)small & mask;
    return (int32_t)((uint32_t)dword | part << (bits * i));
}

/* Rounds to the nearest step, ties to even. */
static int steps_of(float x, float steps)
{
    return (int)nearbyintf(x * steps);
}

static const float least = 0x1p-80f; /* if the largest number is not 0 */

static float exponent(kernel_test *t, int low, int high)
{
    return ldexpf(1, (int)rng_between(&t->r, low, high));
}

static int *smalls(kernel_test *t, int64_t n)
{
    int *x = kt_plain(t, (size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = (int)rng_between(&t->r, -127, 127) / (kt_chance(t, 0.2) ? 50 : 1);
    return x;
}

static float *units(kernel_test *t, int64_t n, float size)
{
    float *x = kt_floats(t, n);
    for (int64_t i = 0; i < n; i++) x[i] = size * (0.2f + (float)rng_uniform(&t->r));
    return x;
}

/* 32 inputs by the definition in transformer.h. */
static void expect_block(kernel_test *t, const float *x, int64_t count, bool in_range,
                         small_form form, const int32_t *small, const mhai_int8_block *block)
{
    float most = 0;
    int sum[3] = {0};
    for (int64_t i = 0; i < count; i++) most = fmaxf(most, fabsf(x[i]));
    const bool zero = most < least;
    const float unit = zero ? 0 : most / 127.0f;
    for (int64_t i = 0; i < MHAI_INT8_BLOCK; i++) {
        const int expected = i < count && in_range && !zero ? steps_of(x[i], 127.0f / most) : 0;
        kt_same(t, small_of(form, small[i / form.group], i % form.group), expected, "small", i, 0);
        sum[0] += expected;
        sum[1 + i / 16] += expected;
    }
    kt_same(t, (double)block->unit, in_range ? (double)unit : NAN, "unit", 0, 0);
    for (int i = 0; in_range && i < 3; i++) {
        kt_same(t, (double)block->sum[i], (double)(unit * (float)sum[i]), "sum", i, 0);
        kt_that(t, block->start[i] == -form.offset * sum[i], "start", block->start[i], sum[i]);
    }
}

void check_int8_inputs(kernel_test *t)
{
    const int64_t n = t->timed ? 256 : 16 * rng_between(&t->r, 1, 16);
    const int64_t blocks = (n + MHAI_INT8_BLOCK - 1) / MHAI_INT8_BLOCK;
    float *x = kt_floats(t, n);
    bool in_range = true;
    for (int64_t i = 0; i < n; i++) x[i] = kt_number(t);
    if (kt_chance(t, 0.3))
        for (int64_t i = 0; i < n; i++) x[i] *= exponent(t, -100, 80);
    if (kt_chance(t, 0.2)) {
        static const float wild[] = {NAN, INFINITY, -INFINITY, 0x1p93f, -0x1p100f, 0x1.fffffep92f};
        const int64_t which = rng_between(&t->r, 0, 5);
        x[rng_between(&t->r, 0, n - 1)] = wild[which];
        in_range = which == 5;
    }
    t->bytes = 5.0 * (double)n;
    EACH_INT8_TABLE(t, k)
    {
        const small_form form = form_of(k);
        const int64_t dwords = blocks * MHAI_INT8_BLOCK / k->group;
        int32_t *small = kt_scratch(t, MHA_I32, 1, dwords, dwords);
        mhai_int8_block *block = kt_scratch(t, MHA_I32, 1, 8 * blocks, 8 * blocks);
        KERNEL_CALL(t) k->int8_inputs(x, n, small, block);
        for (int64_t i = 0; i < blocks; i++)
            expect_block(t, x + 32 * i, n - 32 * i < 32 ? n - 32 * i : 32, in_range, form,
                         small + i * MHAI_INT8_BLOCK / k->group, &block[i]);
    }
}

static mha_coded *make_coded(kernel_test *t)
{
    mha_coded *w = kt_input(t, MHA_U8, 1, sizeof *w, sizeof *w);
    w->run = kt_chance(t, 0.5) ? 16 : 32;
    w->has_offsets = kt_chance(t, 0.5);
    for (int i = 0; i < MHA_CODED_COLUMNS; i++)
        for (int r = 0; r < MHA_CODED_ROWS; r++) {
            w->number[i / 4][r][i % 4] = (int8_t)rng_between(&t->r, -128, 127);
            if (i % 16 != 0) continue;
            w->scale[i / 16][r] = kt_number(t);
            w->offset[i / 16][r] = w->has_offsets ? kt_number(t) : -0.0f;
        }
    return w;
}

void check_int8_product(kernel_test *t)
{
    const mha_coded *w = make_coded(t);
    const int64_t rows = t->timed ? 14 : rng_between(&t->r, 1, 40);
    const int64_t inputs = t->timed ? 256 : w->run * rng_between(&t->r, 1, 256 / w->run);
    const int64_t cols = t->timed ? 32 : rng_between(&t->r, 1, 32), stride = kt_stride(t, cols);
    const bool bias = kt_chance(t, 0.5);
    const int64_t from_stride = bias ? 0 : stride;
    int *x = smalls(t, rows * MHA_CODED_COLUMNS);
    float *unit = units(t, rows * MHAI_INT8_BLOCKS, 0.01f);
    float *from = kt_numbers(t, bias ? 1 : rows, cols, stride);
    t->flops = 2.0 * (double)(rows * inputs * 32);
    EACH_INT8_TABLE(t, k)
    {
        const small_form form = form_of(k);
        const int64_t blocks = rows * MHAI_INT8_BLOCKS;
        int32_t *small = kt_scratch(t, MHA_I32, rows, MHA_CODED_COLUMNS / k->group, k->row_stride);
        mhai_int8_block *block = kt_scratch(t, MHA_I32, 1, 8 * blocks, 8 * blocks);
        for (int64_t i = 0; i < blocks; i++) {
            int sum[3] = {0};
            for (int64_t e = 0; e < 32; e++) {
                const int64_t row = i / MHAI_INT8_BLOCKS, at = i % MHAI_INT8_BLOCKS * 32 + e;
                int32_t *to = &small[row * k->row_stride + at / k->group];
                if (at % k->group == 0) *to = 0;
                const int number = x[row * MHA_CODED_COLUMNS + at];
                *to = with_small(form, *to, at % k->group, number);
                sum[0] += number;
                sum[1 + e / 16] += number;
            }
            block[i].unit = unit[i];
            for (int e = 0; e < 3; e++) {
                block[i].sum[e] = unit[i] * (float)sum[e];
                block[i].start[e] = -form.offset * sum[e];
            }
        }
        float *out = kt_output(t, MHA_F32, rows, cols, stride);
        const mhai_int8_product p = {.rows = rows,
                                     .w = w,
                                     .inputs = inputs,
                                     .cols = cols,
                                     .x = small,
                                     .blocks = block,
                                     .from = from,
                                     .from_stride = from_stride,
                                     .out = out,
                                     .out_stride = stride};
        KERNEL_CALL(t) k->int8_product(&p);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < cols; c++) {
                float y = from[r * from_stride + c];
                for (int64_t run = 0; run * w->run < inputs; run++) {
                    int sum = 0, only = 0;
                    for (int64_t i = run * w->run; i < (run + 1) * w->run; i++) {
                        sum += w->number[i / 4][c][i % 4] * x[r * MHA_CODED_COLUMNS + i];
                        only += x[r * MHA_CODED_COLUMNS + i];
                    }
                    const float step = unit[r * MHAI_INT8_BLOCKS + run * w->run / 32];
                    const float scale = w->scale[run][c] * step, term = (float)sum * scale;
                    y = y + term;
                    const float shift = step * (float)only, added = w->offset[run][c] * shift;
                    if (w->has_offsets) y = y + added;
                }
                kt_same(t, (double)out[r * stride + c], (double)y, "out", r, c);
            }
    }
}

/* ---- tiles of bf16 --------------------------------------------------------------------------- */

static int32_t pair_of(uint16_t first, uint16_t second)
{
    return (int32_t)(first | (uint32_t)second << 16);
}

/* Pairs of numbers with up to 8 bits, of very different sizes, so that sums round and cancel. */
static void fill_pairs(kernel_test *t, int32_t *pairs, float *values, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t half[2];
        for (int k = 0; k < 2; k++) {
            float *x = &values[2 * i + k];
            *x = (float)rng_between(&t->r, -255, 255);
            if (kt_chance(t, 0.3)) *x *= exponent(t, -20, 20);
            half[k] = (uint16_t)(half_nearest(MHA_BF16, (double)*x));
        }
        pairs[i] = pair_of(half[0], half[1]);
    }
}

void check_bf16_product(kernel_test *t)
{
    const int64_t rows = t->timed ? 32 : rng_between(&t->r, 1, 70);
    const int64_t pairs = t->timed ? MHAI_TILE_PAIRS : MHAI_TILE_STEP * rng_between(&t->r, 0, 8);
    const int64_t cols = t->timed ? 32 : rng_between(&t->r, 1, 32), stride = kt_stride(t, cols);
    const int64_t x_stride = pairs + (t->timed ? 16 : rng_between(&t->r, 0, 20));
    const bool bias = kt_chance(t, 0.5);
    const int64_t from_stride = bias ? 0 : stride;
    int32_t *x = kt_input(t, MHA_I32, rows, pairs, x_stride);
    int32_t *w = kt_input(t, MHA_I32, 1, pairs * MHAI_PANEL, pairs * MHAI_PANEL);
    float *xs = kt_plain(t, (size_t)(rows * pairs * 2 + 1) * sizeof *xs);
    float *ws = kt_plain(t, (size_t)(pairs * MHAI_PANEL * 2 + 1) * sizeof *ws);
    for (int64_t r = 0; r < rows; r++) fill_pairs(t, x + r * x_stride, xs + r * pairs * 2, pairs);
    fill_pairs(t, w, ws, pairs * MHAI_PANEL);
    float *from = kt_numbers(t, bias ? 1 : rows, cols, stride);
    t->flops = 4.0 * (double)(rows * pairs * 32);
    EACH_INT8_TABLE(t, k)
    {
        float *out = kt_output(t, MHA_F32, rows, cols, stride);
        const mhai_bf16_product p = {.rows = rows,
                                     .pairs = pairs,
                                     .cols = cols,
                                     .x = x,
                                     .x_stride = x_stride,
                                     .w = w,
                                     .from = from,
                                     .from_stride = from_stride,
                                     .out = out,
                                     .out_stride = stride};
        KERNEL_CALL(t) k->bf16_product(&p);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < cols; c++) {
                float sum = 0;
                for (int64_t i = 0; i < pairs; i += MHAI_TILE_STEP) {
                    float half[2] = {0, 0};
                    for (int64_t e = 2 * i; e < 2 * (i + MHAI_TILE_STEP); e++)
                        half[e % 2] = fmaf(xs[r * pairs * 2 + e],
                                           ws[(e / 2 * MHAI_PANEL + c) * 2 + e % 2], half[e % 2]);
                    const float both = half[0] + half[1];
                    sum = sum + both;
                }
                kt_same(t, (double)out[r * stride + c], (double)(from[r * from_stride + c] + sum),
                        "out", r, c);
            }
    }
}
