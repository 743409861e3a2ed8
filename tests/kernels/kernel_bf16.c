/* Kernels of bf16 arithmetic: bit-exact conversions of numbers for every memory layout, and a strip
 * of bf16 numbers, whose weights round once more (docs/numerics.md 15). */
#include "kernel_strip.h"

#include "reference/half_reference.h"

/* Kernels with and without the instruction, if both exist. */
static bool some_pairs(kernel_test *t, const mhai_kernels *k)
{
    return mhai_kernels_have_pairs(k) && (t->timed || kt_chance(t, 0.5));
}

/* Element i along the inner dimension, with stride `step`; zeros may have any sign. */
static double element_of(bool pairs, const float *x, int64_t step, int64_t i, int64_t n)
{
    if (!pairs) return (double)x[(n % 2 == 1 && i == n - 1 ? i : i ^ 1) * step] + 0.0;
    uint16_t pair[2];
    memcpy(pair, x + i / 2 * step, sizeof pair);
    return half_value(MHA_BF16, pair[i % 2]) + 0.0;
}

static float wild_number(kernel_test *t)
{
    return kt_number(t) * (kt_chance(t, 0.1) ? ldexpf(1, (int)rng_between(&t->r, -130, 126)) : 1);
}

/* The missing second element of a last pair is 0 in memory. */
static void check_padding(kernel_test *t, bool pairs, const float *x, int64_t step, int64_t n)
{
    if (pairs && n % 2 == 1) kt_same(t, element_of(pairs, x, step, n, n + 1), 0, "padding", n, 0);
}

void check_bf16_row(kernel_test *t)
{
    const int64_t n = kt_size(t, 256, 64);
    float *x = kt_floats(t, n), most = 0;
    for (int64_t i = 0; i < n; i++) {
        x[i] = kt_chance(t, 0.5) ? wild_number(t) : kt_number(t);
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    }
    if (!t->timed && kt_chance(t, 0.1)) x[rng_between(&t->r, 0, n - 1)] = NAN;
    for (int64_t i = 0; i < n; i++)
        if (isnan(x[i])) most = INFINITY;
    t->bytes = 8.0 * (double)n;
    EACH_TABLE(t, k)
    {
        const bool pairs = some_pairs(t, k);
        float *row = kt_scratch(t, MHA_F32, 1, n, n);
        bool fits;
        KERNEL_CALL(t)
        {
            memcpy(row, x, (size_t)n * sizeof *x);
            k->bf16_row(row, n, pairs, &fits);
        }
        kt_that(t, fits == (most < 0x1p59f), "fits", 0, 0);
        for (int64_t i = 0; i < n; i++)
            kt_same(t, element_of(pairs, row, 1, i, n), fits ? (double)strip_bf16(x[i]) : 0, "row",
                    i, 0);
        check_padding(t, pairs, row, 1, n);
    }
}

/* Rows of a type. Unless `bad` is NULL, some of them are not finite or too large. */
static void *wild_rows(kernel_test *t, mha_dtype type, int64_t rows, int64_t cols, int64_t stride)
{
    void *x = kt_input(t, type, rows, cols, stride);
    kt_fill_typed(t, type, x, rows, cols, stride, kt_chance(t, 0.3) ? 0.01 : 0);
    const bool wild = kt_chance(t, 0.4);
    for (int64_t r = 0; wild && r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            const float number = wild_number(t);
            if (type == MHA_F32)
                ((float *)x)[r * stride + c] = number;
            else
                ((uint16_t *)x)[r * stride + c] = half_nearest(type, (double)number);
        }
    return x;
}

/* Packs x [rows][cols] as keys (rows are columns of panels), possibly after packing as floats, or
 * as values; `in` is key `first`. */
static void check_packed(kernel_test *t, bool keys, bool packed, int64_t rows, int64_t cols,
                         int64_t first)
{
    const bool in_runs = !packed && kt_chance(t, 0.4);
    const mha_dtype type = in_runs ? MHA_F32 : kt_type(t);
    const int64_t stride = in_runs ? cols : kt_stride(t, cols),
                  inner = keys ? cols : (rows + 15) / 16 * 16;
    const int64_t panels = ((keys ? rows : cols) + 31) / 32;
    const int64_t panel = keys ? cols * MHAI_PANEL : (int64_t)MHAI_KEY_BLOCK * MHAI_PANEL;
    void *x = wild_rows(t, type, rows, cols, stride);
    const mhai_run *runs = NULL;
    if (in_runs) {
        const float *floats = x;
        x = kt_plain(t, (size_t)(rows * cols) * sizeof(float));
        memcpy(x, floats, (size_t)(rows * cols) * sizeof(float));
        runs = strip_runs(t, strip_run_type(t), x, rows, cols, keys);
    }
    t->bytes = 2.0 * (double)(rows * cols) * (double)mha_dtype_size(type);
    EACH_TABLE(t, k)
    {
        const bool pairs = some_pairs(t, k);
        float *out =
            kt_scratch(t, MHA_F32, panels, keys ? panel : (first + inner) * MHAI_PANEL, panel);
        uint8_t *bad = kt_output(t, MHA_U8, 1, rows, rows);
        bool any = false, some = false;
        const mhai_pack pack = {.out = out,
                                .in = runs ? NULL : x,
                                .runs = runs,
                                .type = type,
                                .stride = stride,
                                .rows = rows,
                                .cols = cols,
                                .bad = bad,
                                .any_bad = &any,
                                .whole = keys};
        KERNEL_CALL(t)
        {
            for (int64_t r = 0; packed && r < rows; r++)
                for (int64_t c = 0; c < cols; c++)
                    out[r / 32 * panel + c * MHAI_PANEL + r % 32] =
                        (float)kt_element(type, x, r * stride + c);
            if (packed)
                k->bf16_panel(&pack, pairs);
            else if (keys)
                k->bf16_keys(&pack, pairs);
            else
                k->bf16_values(&pack, first, pairs);
        }
        for (int64_t r = 0; r < rows; r++) {
            bool odd = false;
            for (int64_t c = 0; c < cols; c++)
                odd |= !(fabs(kt_element(type, x, r * stride + c)) < (keys ? 0x1p59 : INFINITY));
            for (int64_t c = 0; c < cols; c++) {
                const float from = (float)kt_element(type, x, r * stride + c);
                const bool left_out = keys ? odd : !isfinite(from);
                const int64_t i = keys ? c : first + r, column = keys ? r : c;
                kt_same(t,
                        element_of(pairs, out + column / 32 * panel + column % 32, MHAI_PANEL, i,
                                   keys ? cols : first + inner),
                        left_out ? 0 : (double)strip_bf16(from), "packed", r, c);
            }
            kt_same(t, (double)bad[r], odd ? 1 : 0, "bad", r, 0);
            some |= odd;
        }
        for (int64_t r = rows; !keys && r < inner; r++)
            for (int64_t c = 0; c < cols; c++)
                kt_same(t,
                        element_of(pairs, out + c / 32 * panel + c % 32, MHAI_PANEL, first + r,
                                   first + inner),
                        0, "padding", r, c);
        for (int64_t r = 0; keys && r < rows; r++)
            check_padding(t, pairs, out + r / 32 * panel + r % 32, MHAI_PANEL, cols);
        kt_that(t, any == some, "any_bad", 0, 0);
    }
}

void check_bf16_keys(kernel_test *t)
{
    check_packed(t, true, false, kt_size(t, 100, 64), kt_size(t, 130, 64), 0);
}

void check_bf16_panel(kernel_test *t)
{
    check_packed(t, true, true, kt_size(t, 100, 64), kt_size(t, 130, 64), 0);
}

void check_bf16_values(kernel_test *t)
{
    const int64_t rows = kt_size(t, 100, 64), cols = kt_size(t, 130, 64);
    check_packed(t, false, false, rows, cols,
                 32 * rng_between(&t->r, 0, (MHAI_KEY_BLOCK - 112) / 32));
}

/* A block's keys or values in the format of a table's kernels. */
static float *bf16_of(kernel_test *t, const mhai_kernels *k, bool pairs, const block_case *b,
                      bool keys)
{
    const int64_t cols = keys ? b->dim : b->cols, panels = ((keys ? b->keys : cols) + 31) / 32;
    const int64_t panel = (keys ? cols : MHAI_KEY_BLOCK) * MHAI_PANEL;
    const int64_t inner = keys ? cols : (b->keys + 15) / 16 * 16;
    float *out = kt_scratch(t, MHA_F32, panels, inner * MHAI_PANEL, panel);
    uint8_t *bad = kt_scratch(t, MHA_U8, 1, b->keys, b->keys);
    bool any;
    const mhai_pack pack = {.out = out,
                            .in = keys ? b->k : b->v,
                            .stride = cols,
                            .rows = b->keys,
                            .cols = cols,
                            .bad = bad,
                            .any_bad = &any};
    if (keys)
        k->bf16_keys(&pack, pairs);
    else
        k->bf16_values(&pack, 0, pairs);
    return out;
}

/* q is four times as large; the factor compensates. */
void check_bf16_forward(kernel_test *t)
{
    const unsigned with = WITH_POISON | WITH_DROPOUT | WITH_TERMS | WITH_MASK | WITH_BF16;
    const int rows = kt_rows(t);
    const block_case b = strip_block(t, with, (int)kt_size(t, MHAI_KEY_BLOCK, MHAI_KEY_BLOCK),
                                     kt_size(t, 130, 64), kt_size(t, 3, 2));
    strip_case c = strip_make(t, with, &b, rows);
    for (int r = 0; r < rows; r++) c.mask.shaw[r] = NULL;
    const strip_row **expected = strip_rows(t, &c);
    const int64_t cols = b.cols;
    t->flops = strip_flops(&c) + 2.0 * rows * (double)((c.end - c.begin) * cols);
    EACH_TABLE(t, k)
    {
        const bool pairs = some_pairs(t, k);
        mhai_tile_mask mask;
        mhai_poison poison;
        mhai_tile tile = strip_tile(t, &c, &mask, &poison);
        float *q = kt_scratch(t, MHA_F32, rows, b.dim, b.dim);
        bool fits;
        for (int r = 0; r < rows; r++) {
            for (int64_t d = 0; d < b.dim; d++) q[r * b.dim + d] = 4 * c.q[r * b.dim + d];
            k->bf16_row(q + r * b.dim, b.dim, pairs, &fits);
        }
        tile.q = q;
        tile.factor = 0.25f;
        tile.pairs = pairs;
        tile.k = bf16_of(t, k, pairs, &b, true);
        tile.v = bf16_of(t, k, pairs, &b, false);
        tile.o = kt_in_out(t, MHA_F32, rows, cols, cols, c.o);
        tile.m = kt_in_out(t, MHA_F32, 1, rows, rows, c.m);
        tile.l = kt_in_out(t, MHA_F32, 1, rows, rows, c.l);
        KERNEL_CALL(t) k->bf16_forward(&tile);
        for (int r = 0; r < rows; r++)
            strip_expect(t, &c, expected[r], r, (double)tile.m[r], (double)tile.l[r],
                         tile.o + r * cols, NULL, NULL);
    }
}
