/* Checks of the kernels of recurrent layers. */
#include "kernel_test.h"

/* One product in double, then rounded to f32: bit-identical everywhere. */
void check_scale_double(kernel_test *t)
{
    const int64_t n = kt_size(t, 300, 128);
    const bool each = kt_chance(t, 0.4);
    double *factors = kt_input(t, MHA_F64, 1, each ? n : 1, each ? n : 1);
    for (int64_t i = 0; i < (each ? n : 1); i++) factors[i] = (double)kt_number(t) / 3;
    float *in = kt_floats(t, n);
    kt_fill(t, in, n);
    const bool in_place = kt_chance(t, 0.4);
    t->bytes = 8.0 * (double)n;
    EACH_TABLE(t, k)
    {
        float *out = in_place ? kt_in_out(t, MHA_F32, 1, n, n, in) : kt_output(t, MHA_F32, 1, n, n);
        KERNEL_CALL(t) k->scale_double(out, in_place ? out : in, n, factors, each);
        for (int64_t i = 0; i < n && !t->timed; i++)
            kt_same(t, (double)out[i], (double)(float)((double)in[i] * factors[each ? i : 0]),
                    "out", 0, i);
    }
}

typedef struct strip_case {
    int first, rows;
    int64_t cols, u_stride;
    float *erase, *read, *value, *erased, *out, *u;
    double *strength;
} strip_case;

/* [rows][32], whose elements that a row must not read are NaN. */
static float *draw_products(kernel_test *t, int first, int rows, int own)
{
    float *x = kt_numbers(t, rows, MHAI_PANEL, MHAI_PANEL);
    for (int r = 0; r < rows; r++)
        for (int j = first + r + own; j < MHAI_PANEL; j++) x[r * MHAI_PANEL + j] = NAN;
    return x;
}

static strip_case draw_strip(kernel_test *t)
{
    strip_case c = {.first = t->timed ? 0 : (int)rng_between(&t->r, 0, MHAI_PANEL - 1)};
    c.rows = t->timed ? 16 : (int)rng_between(&t->r, 1, MHAI_PANEL - c.first);
    c.cols = MHAI_PANEL * (t->timed ? 4 : rng_between(&t->r, 1, 5));
    c.u_stride = kt_stride(t, (int64_t)(c.first + c.rows) * MHAI_PANEL);
    if (!kt_chance(t, 0.3)) c.erase = draw_products(t, c.first, c.rows, 0);
    c.read = draw_products(t, c.first, c.rows, 1);
    c.value = kt_numbers(t, c.rows, c.cols, c.cols);
    c.erased = kt_numbers(t, c.rows, c.cols, c.cols);
    c.out = kt_numbers(t, c.rows, c.cols, c.cols);
    const int64_t panels = c.cols / MHAI_PANEL;
    c.u = kt_numbers(t, panels, (int64_t)(c.first + c.rows) * MHAI_PANEL, c.u_stride);
    c.strength = kt_input(t, MHA_F64, 1, c.rows, c.rows);
    for (int r = 0; r < c.rows; r++) c.strength[r] = (double)kt_number(t);
    return c;
}

static double u_at(const strip_case *c, const float *u_rows, int64_t row, int64_t col)
{
    return (double)u_rows[col / MHAI_PANEL * c->u_stride + row * MHAI_PANEL + col % MHAI_PANEL];
}

/* start + a chain of n products of a row with rows of u. */
static void judge_sum(kernel_test *t, const strip_case *c, const float *u_rows,
                      const float *products, int n, double start, int64_t row, int64_t col,
                      double given, const char *name)
{
    const float *column = u_rows + col / MHAI_PANEL * c->u_stride + col % MHAI_PANEL;
    double size;
    const double sum =
        start + kt_product(products + row * MHAI_PANEL, 1, column, MHAI_PANEL, n, &size);
    kt_close(t, given, sum, kt_product_bound(n, size, sum), name, row, col);
}

/* Each step of the contract, from the numbers that the kernel wrote in the step before. */
void check_recurrent_strip(kernel_test *t)
{
    const strip_case c = draw_strip(t);
    const int64_t panels = c.cols / MHAI_PANEL, all = (int64_t)(c.first + c.rows) * MHAI_PANEL;
    t->flops = 2.0 * c.rows * (c.rows + 2.0 * c.first) * (double)c.cols;
    EACH_TABLE(t, k)
    {
        float *erased = kt_in_out(t, MHA_F32, c.rows, c.cols, c.cols, c.erased);
        float *out = kt_in_out(t, MHA_F32, c.rows, c.cols, c.cols, c.out);
        float *rows = kt_in_out(t, MHA_F32, panels, all, c.u_stride, c.u);
        const mhai_recurrent_strip strip = {.first = c.first,
                                            .rows = c.rows,
                                            .cols = c.cols,
                                            .erase = c.erase,
                                            .read = c.read,
                                            .value = c.value,
                                            .strength = c.strength,
                                            .erased = c.erase ? erased : NULL,
                                            .out = out,
                                            .u = rows,
                                            .u_stride = c.u_stride};
        KERNEL_CALL(t) k->recurrent_strip(&strip);
        for (int64_t r = 0; r < c.rows && !t->timed; r++)
            for (int64_t i = 0; i < c.cols; i++) {
                const int64_t at = r * c.cols + i;
                const double less = c.erase ? (double)erased[at] : 0;
                if (c.erase)
                    judge_sum(t, &c, rows, c.erase, c.first + (int)r, (double)c.erased[at], r, i,
                              less, "erased");
                kt_same(t, u_at(&c, rows, c.first + r, i),
                        (double)(float)(c.strength[r] * ((double)c.value[at] - less)), "u", r, i);
                judge_sum(t, &c, rows, c.read, c.first + (int)r + 1, (double)c.out[at], r, i,
                          (double)out[at], "out");
            }
    }
}
