/* Packing into panels, and matrix products of packed operands. */
#include "kernel_strip.h"

/* ---- packing ------------------------------------------------------------------------------- */

typedef struct pack_case {
    mha_dtype type;
    int64_t rows, cols, stride;
    void *in;
    const mhai_run *runs; /* NULL: rows */
    bool *bad;            /* [rows], whether the row is bad by definition */
    bool any, half, whole, asked;
} pack_case;

static pack_case make_pack(kernel_test *t, int64_t most_rows, int64_t typical_rows, bool keys)
{
    pack_case c = {.type = kt_type(t),
                   .rows = kt_size(t, most_rows, typical_rows),
                   .cols = kt_size(t, 100, 64),
                   .half = kt_chance(t, 0.5),
                   .whole = kt_chance(t, 0.5),
                   .asked = t->timed || kt_chance(t, 0.8)};
    if (kt_chance(t, 0.2)) c.cols = 16 * rng_between(&t->r, 1, 6);
    c.stride = kt_stride(t, c.cols);
    c.in = kt_input(t, c.type, c.rows, c.cols, c.stride);
    kt_fill_typed(t, c.type, c.in, c.rows, c.cols, c.stride, kt_chance(t, 0.4) ? 0.003 : 0);
    if (kt_chance(t, 0.5)) {
        c.type = MHA_F32;
        c.stride = c.cols;
        c.in = kt_plain(t, (size_t)(c.rows * c.cols) * sizeof(float));
        kt_fill_typed(t, c.type, c.in, c.rows, c.cols, c.cols, kt_chance(t, 0.4) ? 0.003 : 0);
        c.runs = strip_runs(t, strip_run_type(t), c.in, c.rows, c.cols, keys);
    }
    c.bad = kt_plain(t, (size_t)c.rows);
    for (int64_t r = 0; r < c.rows; r++)
        for (int64_t i = 0; i < c.cols; i++)
            c.bad[r] |= !isfinite(kt_element(c.type, c.in, r * c.stride + i));
    for (int64_t r = 0; r < c.rows; r++) c.any |= c.bad[r];
    t->bytes = 8.0 * (double)(c.rows * c.cols);
    return c;
}

/* The converted element. */
static double packed(const pack_case *c, int64_t row, int64_t col, bool whole)
{
    if (row >= c->rows || col >= c->cols) return 0;
    const double x = kt_element(c->type, c->in, row * c->stride + col);
    if (!c->asked) return x;
    return (whole && c->bad[row]) || !isfinite(x) ? 0 : x;
}

static void expect_flags(kernel_test *t, const pack_case *c, const uint8_t *bad, bool any, bool was)
{
    for (int64_t r = 0; c->asked && r < c->rows; r++)
        kt_that(t, bad[r] == (c->bad[r] ? 1 : 0), "bad", r, 0);
    kt_that(t, any == (was || (c->asked && c->any)), "any_bad", any, was);
}

static mhai_pack pack_of(const pack_case *c, float *out, uint8_t *bad, bool *any, bool whole)
{
    return (mhai_pack){.out = out,
                       .in = c->runs ? NULL : c->in,
                       .runs = c->runs,
                       .type = c->type,
                       .stride = c->stride,
                       .rows = c->rows,
                       .cols = c->cols,
                       .bad = c->asked ? bad : NULL,
                       .any_bad = any,
                       .whole = whole,
                       .half = c->half};
}

void check_pack_panels(kernel_test *t)
{
    const pack_case c = make_pack(t, 130, 512, true);
    const int64_t panels = (c.rows + 31) / 32;
    EACH_TABLE(t, k)
    {
        float *out = kt_scratch(t, MHA_F32, 1, panels * c.cols * 32, panels * c.cols * 32);
        uint8_t *bad = kt_scratch(t, MHA_U8, 1, c.rows, c.rows);
        const bool was = kt_chance(t, 0.2);
        bool any = was;
        const mhai_pack pack = pack_of(&c, out, bad, &any, c.whole);
        KERNEL_CALL(t) k->pack_panels(&pack);
        for (int64_t r = 0; r < panels * 32; r++) {
            if (c.half && r % 32 >= 16 && r / 32 * 32 + 16 >= c.rows) continue;
            for (int64_t i = 0; i < c.cols; i++)
                kt_same(t, (double)out[(r / 32 * c.cols + i) * 32 + r % 32],
                        packed(&c, r, i, c.whole), "out", r, i);
        }
        expect_flags(t, &c, bad, any, was);
    }
}

static mha_coded *make_coded(kernel_test *t, int run, int64_t column, int64_t columns)
{
    mha_coded *coded = kt_input(t, MHA_U8, 1, sizeof *coded, sizeof *coded);
    coded->run = run;
    for (int64_t r = 0; r < MHA_CODED_ROWS; r++) {
        for (int64_t i = 0; i < columns; i++)
            coded->number[(column + i) / 4][r][i % 4] = (int8_t)rng_between(&t->r, -128, 127);
        for (int64_t i = column / run; i < (column + columns) / run; i++) {
            const float power = ldexpf(1, (int)rng_between(&t->r, -40, 10));
            coded->scale[i][r] = power * (float)rng_between(&t->r, -65535, 65535);
            coded->offset[i][r] = kt_chance(t, 0.5) ? -0.0f : kt_number(t);
        }
    }
    return coded;
}

void check_pack_coded(kernel_test *t)
{
    const int run = kt_chance(t, 0.5) ? 16 : 32;
    const int64_t columns = t->timed ? 128 : run * rng_between(&t->r, 1, 128 / run);
    const int64_t column = kt_chance(t, 0.5) ? 128 : 0;
    const mha_coded *coded = make_coded(t, run, column, columns);
    t->bytes = 5.0 * (double)(MHA_CODED_ROWS * columns);
    EACH_TABLE(t, k)
    {
        float *panel = kt_output(t, MHA_F32, 1, columns * 32, columns * 32);
        KERNEL_CALL(t) k->pack_coded(coded, column, columns, panel);
        for (int64_t i = 0; i < columns; i++)
            for (int64_t r = 0; r < 32; r++) {
                const int64_t at = (column + i) / run;
                const float product =
                    (float)coded->number[(column + i) / 4][r][i % 4] * coded->scale[at][r];
                kt_same(t, (double)panel[i * 32 + r], (double)(product + coded->offset[at][r]),
                        "panel", r, i);
            }
    }
}

void check_pack_values(kernel_test *t)
{
    const pack_case c = make_pack(t, 512, 512, false);
    const int64_t panels = (c.cols + 31) / 32, padded = (c.rows + 15) / 16 * 16;
    const bool half = c.half && c.cols % 32 == 16;
    EACH_TABLE(t, k)
    {
        float *out =
            kt_scratch(t, MHA_F32, panels, padded * 32, (int64_t)MHAI_KEY_BLOCK * MHAI_PANEL);
        uint8_t *bad = kt_scratch(t, MHA_U8, 1, c.rows, c.rows);
        const bool was = kt_chance(t, 0.2);
        bool any = was;
        const mhai_pack pack = pack_of(&c, out, bad, &any, false);
        KERNEL_CALL(t) k->pack_values(&pack);
        for (int64_t i = 0; i < (half ? c.cols : panels * 32); i++)
            for (int64_t r = 0; r < padded; r++)
                kt_same(t, (double)out[(i / 32 * MHAI_KEY_BLOCK + r) * 32 + i % 32],
                        packed(&c, r, i, false), "out", r, i);
        expect_flags(t, &c, bad, any, was);
    }
}

/* ---- products ------------------------------------------------------------------------------ */

double kt_product(const float *a, int64_t a_step, const float *b, int64_t b_step, int64_t inner,
                  double *size)
{
    double sum = 0;
    *size = 0;
    for (int64_t i = 0; i < inner; i++) {
        const double x = (double)a[i * a_step] * (double)b[i * b_step];
        sum += x;
        *size += fabs(x);
    }
    return sum;
}

double kt_product_bound(int64_t inner, double size, double result)
{
    return (double)inner * (u * size + 2 * tiny) + u * fabs(result) + tiny;
}

/* The same for bf16, with rows and panels from bf16_row and bf16_keys, in pairs if supported. */
static void check_gemm_bf16(kernel_test *t)
{
    const int rows = kt_rows(t);
    const int64_t inputs = kt_size(t, MHAI_GEMM_BLOCK, 0), cols = kt_size(t, 130, 0);
    const int64_t panels = (cols + 31) / 32, out_stride = kt_stride(t, cols);
    const float *x = kt_numbers(t, rows, inputs, inputs), *w = kt_numbers(t, cols, inputs, inputs);
    const float *before = kt_numbers(t, rows, cols, out_stride);
    EACH_TABLE(t, k)
    {
        const bool pairs = mhai_kernels_have_pairs(k);
        const int64_t inner = pairs ? (inputs + 1) / 2 : inputs;
        float *a = kt_scratch(t, MHA_F32, rows, inputs, inputs);
        float *b = kt_scratch(t, MHA_F32, panels, inputs * MHAI_PANEL, inputs * MHAI_PANEL);
        float *out = kt_in_out(t, MHA_F32, rows, cols, out_stride, before);
        uint8_t *bad = kt_scratch(t, MHA_U8, 1, cols, cols);
        bool fits, any;
        memcpy(a, x, (size_t)(rows * inputs) * sizeof *x);
        for (int r = 0; r < rows; r++) k->bf16_row(a + r * inputs, inputs, pairs, &fits);
        k->bf16_keys(&(mhai_pack){.out = b,
                                  .in = w,
                                  .stride = inputs,
                                  .rows = cols,
                                  .cols = inputs,
                                  .bad = bad,
                                  .any_bad = &any,
                                  .whole = true},
                     pairs);
        k->gemm_strip(&(mhai_gemm){.rows = rows,
                                   .inner = inner,
                                   .panels = panels,
                                   .cols = cols,
                                   .x = a,
                                   .x_stride = inputs,
                                   .pairs = pairs,
                                   .gather = kt_scratch(t, MHA_F32, 1, MHAI_GATHER, MHAI_GATHER),
                                   .w = b,
                                   .panel_stride = inputs * MHAI_PANEL,
                                   .out = out,
                                   .out_stride = out_stride});
        for (int r = 0; r < rows; r++)
            for (int64_t j = 0; j < cols; j++) {
                double exact = (double)before[r * out_stride + j], size = 0;
                for (int64_t i = 0; i < inputs; i++) {
                    const double term = (double)strip_bf16(x[r * inputs + i]) *
                                        (double)strip_bf16(w[j * inputs + i]);
                    exact += term;
                    size += fabs(term);
                }
                kt_close(t, (double)out[r * out_stride + j], exact,
                         kt_product_bound(inputs, size, exact), "out", r, j);
            }
    }
}

void check_gemm_strip(kernel_test *t)
{
    if (!t->timed && kt_chance(t, 0.2)) {
        check_gemm_bf16(t);
        return;
    }
    const int rows = kt_rows(t);
    const int64_t inner = kt_size(t, 200, 128), cols = kt_size(t, 130, 512);
    const int64_t panels = (cols + 31) / 32,
                  panel_stride = inner * 32 + (kt_chance(t, 0.3) ? 64 : 0);
    const bool transposed = kt_chance(t, 0.4), gather = kt_chance(t, 0.4);
    const bool first = kt_chance(t, 0.5), from = !first && kt_chance(t, 0.4);
    const int64_t x_rows = transposed ? inner : rows, x_cols = transposed ? rows : inner;
    int64_t x_stride = kt_stride(t, x_cols);
    const int64_t out_stride = kt_stride(t, cols), from_stride = kt_stride(t, cols);
    if (kt_chance(t, 0.3)) x_stride = x_cols > 16 || kt_chance(t, 0.5) ? MHAI_SCORE_STRIDE : 16;
    float *x = kt_numbers(t, x_rows, x_cols, x_stride);
    float *w = kt_numbers(t, panels, inner * 32, panel_stride);
    float *bias = first && kt_chance(t, 0.7) ? kt_floats(t, cols) : NULL;
    float *before = kt_numbers(t, rows, cols, out_stride);
    float *added = kt_numbers(t, rows, cols, from_stride);
    const float *nowhere = kt_nowhere(t);
    const bool fetches = kt_chance(t, 0.4);
    if (bias) kt_fill(t, bias, cols);
    t->flops = 2.0 * (double)(rows * inner * cols);
    EACH_TABLE(t, k)
    {
        float *out = first || from ? kt_output(t, MHA_F32, rows, cols, out_stride)
                                   : kt_in_out(t, MHA_F32, rows, cols, out_stride, before);
        float *space = gather ? kt_scratch(t, MHA_F32, 1, MHAI_GATHER, MHAI_GATHER) : NULL;
        const mhai_gemm gemm = {.rows = rows,
                                .inner = inner,
                                .panels = panels,
                                .cols = cols,
                                .x = x,
                                .x_stride = x_stride,
                                .transposed = transposed,
                                .gather = space,
                                .w = w,
                                .panel_stride = panel_stride,
                                .bias = bias,
                                .first = first,
                                .out = out,
                                .out_stride = out_stride,
                                .from = from ? added : NULL,
                                .from_stride = from_stride,
                                .next_w = fetches ? nowhere : NULL,
                                .next_x = fetches ? nowhere : NULL,
                                .next_rows = rows,
                                .next_stride = 64,
                                .next_lines = 2};
        KERNEL_CALL(t) k->gemm_strip(&gemm);
        for (int r = 0; r < rows; r++)
            for (int64_t j = 0; j < cols; j++) {
                double size;
                const double start = first  ? bias ? (double)bias[j] : 0
                                     : from ? (double)added[r * from_stride + j]
                                            : (double)before[r * out_stride + j];
                const double exact =
                    start + kt_product(x + (transposed ? r : r * x_stride),
                                       transposed ? x_stride : 1,
                                       w + j / 32 * panel_stride + j % 32, 32, inner, &size);
                kt_close(t, (double)out[r * out_stride + j], exact,
                         kt_product_bound(inner, size, exact), "out", r, j);
            }
    }
}

/* Bit-identical to gemm_strip with the same weights in a panel. */
void check_gemm_stored(kernel_test *t)
{
    const int rows = kt_rows(t);
    const int64_t inner = kt_size(t, MHAI_GEMM_BLOCK, MHAI_GEMM_BLOCK),
                  cols = kt_size(t, MHAI_STORED_COLUMNS, MHAI_STORED_COLUMNS);
    const int64_t panels = (cols + MHAI_PANEL - 1) / MHAI_PANEL, panel_size = inner * MHAI_PANEL;
    const int64_t x_stride = kt_stride(t, inner), stride = kt_stride(t, inner);
    const int64_t out_stride = kt_stride(t, cols);
    const bool first = kt_chance(t, 0.5);
    const mha_dtype type = kt_chance(t, 0.5) ? MHA_F16 : MHA_BF16;
    float *x = kt_numbers(t, rows, inner, x_stride);
    void *w = kt_input(t, type, cols, inner, stride);
    float *panel = kt_plain(t, (size_t)(panels * panel_size) * sizeof(float));
    float *bias = first && kt_chance(t, 0.7) ? kt_floats(t, cols) : NULL;
    float *before = kt_numbers(t, rows, cols, out_stride);
    const float *nowhere = kt_nowhere(t);
    kt_fill_typed(t, type, w, cols, inner, stride, 0);
    for (int64_t j = 0; j < cols; j++)
        for (int64_t i = 0; i < inner; i++)
            panel[j / MHAI_PANEL * panel_size + i * MHAI_PANEL + j % MHAI_PANEL] =
                (float)kt_element(type, w, j * stride + i);
    if (bias) kt_fill(t, bias, cols);
    t->flops = 2.0 * (double)(rows * inner * cols);
    t->bytes = 2.0 * (double)(inner * cols);
    EACH_TABLE(t, k)
    {
        float *out = kt_in_out(t, MHA_F32, rows, cols, out_stride, before);
        float *packed = kt_scratch(t, MHA_F32, rows, cols, out_stride);
        mhai_gemm gemm = {.rows = rows,
                          .inner = inner,
                          .panels = panels,
                          .panel_stride = panel_size,
                          .cols = cols,
                          .x = x,
                          .x_stride = x_stride,
                          .bias = bias,
                          .first = first,
                          .out = out,
                          .out_stride = out_stride};
        KERNEL_CALL(t)
        k->gemm_stored(&(mhai_gemm_stored){
            .gemm = gemm, .w = w, .type = type, .stride = stride, .next = nowhere});
        memcpy(packed, before, (size_t)((rows - 1) * out_stride + cols) * sizeof(float));
        gemm.w = panel;
        gemm.out = packed;
        k->gemm_strip(&gemm);
        for (int r = 0; !t->timed && r < rows; r++)
            for (int64_t j = 0; j < cols; j++) {
                double size;
                const double start =
                    first ? bias ? (double)bias[j] : 0 : (double)before[r * out_stride + j];
                const double exact =
                    start + kt_product(x + r * x_stride, 1,
                                       panel + j / MHAI_PANEL * panel_size + j % MHAI_PANEL,
                                       MHAI_PANEL, inner, &size);
                const float got = out[r * out_stride + j];
                kt_close(t, (double)got, exact, kt_product_bound(inner, size, exact), "out", r, j);
                kt_that(t, memcmp(&got, &packed[r * out_stride + j], sizeof got) == 0,
                        "the bits of gemm_strip", r, j);
            }
    }
}

/* Bit-identical to pack_coded and gemm_strip. */
void check_gemm_coded(kernel_test *t)
{
    enum { COLS = MHAI_STORED_COLUMNS, PANELS = COLS / MHAI_PANEL };
    const int run = kt_chance(t, 0.5) ? 16 : 32;
    const int64_t inner = t->timed ? 128 : run * rng_between(&t->r, 1, 128 / run);
    const int64_t column = kt_chance(t, 0.5) ? 128 : 0;
    const bool first = kt_chance(t, 0.5);
    const mha_coded *rows[PANELS];
    float *x = kt_floats(t, inner);
    float *bias = first && kt_chance(t, 0.7) ? kt_floats(t, COLS) : NULL;
    float *before = kt_numbers(t, 1, COLS, COLS);
    for (int p = 0; p < PANELS; p++) rows[p] = make_coded(t, run, column, inner);
    kt_fill(t, x, inner);
    if (bias) kt_fill(t, bias, COLS);
    t->flops = 2.0 * (double)(inner * COLS);
    t->bytes = (double)(inner * COLS);
    EACH_TABLE(t, k)
    {
        float *out = kt_in_out(t, MHA_F32, 1, COLS, COLS, before);
        float panels[PANELS * MHAI_GEMM_BLOCK * MHAI_PANEL], packed[COLS];
        mhai_gemm gemm = {.rows = 1,
                          .inner = inner,
                          .panels = PANELS,
                          .panel_stride = inner * MHAI_PANEL,
                          .cols = COLS,
                          .x = x,
                          .x_stride = inner,
                          .bias = bias,
                          .first = first,
                          .out = out,
                          .out_stride = COLS};
        KERNEL_CALL(t) k->gemm_coded(&gemm, rows, column);
        memcpy(packed, before, sizeof packed);
        for (int p = 0; p < PANELS; p++)
            k->pack_coded(rows[p], column, inner, panels + p * inner * MHAI_PANEL);
        gemm.w = panels;
        gemm.out = packed;
        k->gemm_strip(&gemm);
        for (int j = 0; !t->timed && j < COLS; j++)
            kt_same(t, (double)out[j], (double)packed[j], "out", 0, j);
    }
}

void check_add_product(kernel_test *t)
{
    const int64_t rows = kt_size(t, 40, 64), inner = kt_size(t, 150, 112),
                  cols = kt_size(t, 80, 64);
    const int64_t panels = (cols + 31) / 32,
                  panel_stride = inner * 32 + (kt_chance(t, 0.3) ? 32 : 0);
    const bool transposed = kt_chance(t, 0.5), half = (cols - 1) % 32 < 16;
    const int64_t a_rows = transposed ? inner : rows, a_cols = transposed ? rows : inner;
    const int64_t a_stride =
        kt_chance(t, 0.4) || t->timed ? MHAI_SCORE_STRIDE : kt_stride(t, a_cols);
    const int64_t out_stride = kt_stride(t, panels * 32);
    float *a = kt_numbers(t, a_rows, a_cols, a_stride);
    float *b = kt_numbers(t, panels, inner * 32, panel_stride);
    float *before = kt_numbers(t, rows, panels * 32, out_stride);
    t->flops = 2.0 * (double)(rows * inner * cols);
    EACH_TABLE(t, k)
    {
        /* Optional elements are not registered as outputs. They are compared explicitly. */
        float *out = kt_scratch(t, MHA_F32, rows, panels * 32, out_stride);
        for (int64_t r = 0; r < rows; r++)
            memcpy(out + r * out_stride, before + r * out_stride,
                   (size_t)panels * 32 * sizeof *out);
        const mhai_product add = {.rows = rows,
                                  .inner = inner,
                                  .cols = cols,
                                  .a = a,
                                  .a_stride = a_stride,
                                  .transposed = transposed,
                                  .b = b,
                                  .panel_stride = panel_stride,
                                  .out = out,
                                  .out_stride = out_stride};
        KERNEL_CALL(t) k->add_product(&add);
        const int64_t sure = half ? panels * 32 - 16 : panels * 32;
        for (int64_t r = 0; r < rows; r++) {
            kt_bits_of(t, out + r * out_stride, sure);
            for (int64_t j = 0; j < panels * 32; j++) {
                double size;
                const double start = (double)before[r * out_stride + j];
                const double exact =
                    start + kt_product(a + (transposed ? r : r * a_stride),
                                       transposed ? a_stride : 1,
                                       b + j / 32 * panel_stride + j % 32, 32, inner, &size);
                const double got = (double)out[r * out_stride + j];
                if (j >= sure && got == start) continue;
                kt_close(t, got, exact, kt_product_bound(inner, size, exact), "out", r, j);
            }
        }
    }
}
