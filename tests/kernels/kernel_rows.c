/* Kernels of single rows: scaling, activations, exponentials, norms, rotation, deltas. */
#include "kernel_test.h"

#include "reference/half_reference.h"

#include <float.h>

/* The error of a comparison of a double reference with sums of n terms in double. */
static double of_double(int64_t n, double size)
{
    return ((double)n + 20) * 0x1p-52 * size;
}

/* ---- scaling and finishing ----------------------------------------------------------------- */

/* A product of two f32 is exact in double. Rounding it gives the product in f32. */
static void expect_scaled(kernel_test *t, mha_dtype type, const void *in, int64_t at, int64_t n,
                          double factor, const float *out, int64_t row)
{
    bool finite = true;
    for (int64_t i = 0; i < n; i++) finite &= isfinite(kt_element(type, in, at + i)) != 0;
    for (int64_t i = 0; i < n; i++)
        kt_same(t, (double)out[i],
                finite ? (double)(float)(kt_element(type, in, at + i) * factor) : 0.0, "out", row,
                i);
}

void check_scale_row(kernel_test *t)
{
    const int64_t n = kt_size(t, 200, 128);
    const mha_dtype type = kt_type(t);
    const float factor = rng_normal(&t->r);
    void *in = kt_input(t, type, 1, n, n);
    kt_fill_typed(t, type, in, 1, n, n, kt_chance(t, 0.3) ? 0.02 : 0);
    bool all = true;
    for (int64_t i = 0; i < n; i++) all &= isfinite(kt_element(type, in, i)) != 0;
    t->bytes = 8.0 * (double)n;
    EACH_TABLE(t, k)
    {
        float *out = kt_output(t, MHA_F32, 1, n, n);
        bool finite = !all;
        KERNEL_CALL(t) k->scale_row(out, type, in, n, factor, &finite);
        expect_scaled(t, type, in, 0, n, (double)factor, out, 0);
        kt_that(t, finite == all, "finite", 0, 0);
    }
}

void check_scale_rows(kernel_test *t)
{
    const int64_t rows = kt_size(t, 30, 64), n = kt_size(t, 100, 64), stride = kt_stride(t, n);
    const mha_dtype type = kt_type(t);
    const float factor = rng_normal(&t->r);
    void *in = kt_input(t, type, rows, n, stride);
    kt_fill_typed(t, type, in, rows, n, stride, kt_chance(t, 0.3) ? 0.01 : 0);
    t->bytes = 8.0 * (double)(rows * n);
    EACH_TABLE(t, k)
    {
        float *out = kt_output(t, MHA_F32, rows, n, n);
        const mhai_pack pack = {
            .out = out, .in = in, .type = type, .stride = stride, .rows = rows, .cols = n};
        KERNEL_CALL(t) k->scale_rows(&pack, factor);
        for (int64_t r = 0; r < rows; r++)
            expect_scaled(t, type, in, r * stride, n, (double)factor, out + r * n, r);
    }
}

/* Each operation rounds to f32, like the code here, then to the type. */
void check_finish_row(kernel_test *t)
{
    const int64_t n = kt_size(t, 200, 128);
    const mha_dtype type = kt_type(t);
    const float sum = kt_chance(t, 0.2) ? 0.0f : fabsf(rng_normal(&t->r)) + 0.01f;
    const float gate = kt_chance(t, 0.5) ? 1.0f : kt_number(t);
    float *in = kt_floats(t, n);
    kt_fill_typed(t, MHA_F32, in, 1, n, n, kt_chance(t, 0.3) ? 0.05 : 0);
    if (sum == 0) memset(in, 0, (size_t)n * sizeof *in);
    t->bytes = 8.0 * (double)n;
    EACH_TABLE(t, k)
    {
        void *out = kt_output(t, type, 1, n, n);
        KERNEL_CALL(t) k->finish_row(type, out, in, n, sum, gate);
        for (int64_t i = 0; i < n; i++) {
            const float ratio = sum == 0 ? 0.0f : in[i] / sum, gated = ratio * gate;
            const float x = gated == 0 ? 0.0f : gated; /* never -0 in f32; a type may round to it */
            const double expected =
                type == MHA_F32 ? (double)x : half_value(type, half_nearest(type, (double)x));
            kt_same(t, kt_element(type, out, i), expected, "out", 0, i);
        }
    }
}

/* The error of a = 2^(old - max) is u |old - max| from the difference, and 3.5 u. One rounding
 * follows (two without FMA). See docs/numerics.md 3.2 and 3.3. */
void check_join_row(kernel_test *t)
{
    const int64_t n = 32 * rng_between(&t->r, 1, 4);
    const float max = kt_chance(t, 0.1) ? -INFINITY : 3 * rng_normal(&t->r);
    const float old = kt_chance(t, 0.1) || max == -INFINITY ? -INFINITY
                      : kt_chance(t, 0.3)                   ? max
                      : kt_chance(t, 0.1)                   ? max - 200
                                                            : max - fabsf(4 * rng_normal(&t->r));
    const double distance = old == -INFINITY ? INFINITY : (double)max - (double)old;
    const double a = exp2(-distance), floor = distance > 125.9 ? a : 0;
    const double error = distance == 0 || a == 0 ? 0 : a * (u * distance * ln2 + 3.5 * u) + floor;
    float *sums = kt_floats(t, n), *before = kt_floats(t, n);
    const float sum = fabsf(rng_normal(&t->r)), l0 = fabsf(rng_normal(&t->r));
    kt_fill(t, sums, n);
    kt_fill(t, before, n);
    t->bytes = 12.0 * (double)n;
    EACH_TABLE(t, k)
    {
        float *o = kt_in_out(t, MHA_F32, 1, n, n, before), *l = kt_output(t, MHA_F32, 1, 1, 1);
        *l = l0;
        KERNEL_CALL(t) k->join_row(o, sums, n, old, max, sum, l);
        const double exact_l = (double)l0 * a + (double)sum;
        kt_close(t, (double)*l, exact_l, (double)l0 * (error + u * a) + u * exact_l + 2 * tiny, "l",
                 0, 0);
        for (int64_t i = 0; i < n; i++) {
            const double x = (double)before[i], exact = x * a + (double)sums[i];
            kt_close(t, (double)o[i], exact, fabs(x) * (error + u * a) + u * fabs(exact) + 2 * tiny,
                     "o", 0, i);
        }
    }
}

/* p has the error of tile_probabilities: u |s - m| ln 2 from the difference, 3.5 u, and the
 * quotient's rounding. A sum follows. */
void check_add_probabilities(kernel_test *t)
{
    const int64_t n = kt_size(t, 300, 512);
    const bool empty = kt_chance(t, 0.1), nan = kt_chance(t, 0.1);
    float *s = kt_floats(t, n), *before = kt_floats(t, n);
    float m = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        s[i] = empty || kt_chance(t, 0.2) ? -INFINITY
               : kt_chance(t, 0.1)        ? -140.0f
                                          : 5 * rng_normal(&t->r);
        m = s[i] > m ? s[i] : m;
        before[i] = fabsf(rng_normal(&t->r));
    }
    const float l = nan ? NAN : m == -INFINITY ? 0.0f : 1 + fabsf(rng_normal(&t->r));
    t->bytes = 12.0 * (double)n;
    EACH_TABLE(t, k)
    {
        float *out = kt_in_out(t, MHA_F32, 1, n, n, before);
        KERNEL_CALL(t) k->add_probabilities(out, s, n, m, l);
        for (int64_t i = 0; i < n; i++) {
            const double p = s[i] == -INFINITY ? 0 : exp2((double)s[i] - (double)m) / (double)l;
            const double exact = (double)before[i] + p;
            const double h = u * (ln2 * ((double)m - (double)s[i]) + 4.5);
            kt_close(
                t, (double)out[i], exact,
                p == 0 ? 0 : p * h + u * exact + tiny + ((double)s[i] - (double)m < -125.9 ? p : 0),
                "out", 0, i);
        }
    }
}

/* in * factor is exact in double, and the reference's sum is exact too. */
void check_write_rows(kernel_test *t)
{
    const int64_t rows = kt_size(t, 20, 64), cols = kt_size(t, 100, 64);
    const int64_t in_stride = kt_stride(t, cols), out_stride = kt_stride(t, cols);
    const float factor = kt_chance(t, 0.2) ? 0.0f : kt_number(t);
    const bool add = kt_chance(t, 0.5);
    float *in = kt_numbers(t, rows, cols, in_stride);
    float *before = kt_numbers(t, rows, cols, out_stride);
    t->bytes = 8.0 * (double)(rows * cols);
    EACH_TABLE(t, k)
    {
        float *out = add ? kt_in_out(t, MHA_F32, rows, cols, out_stride, before)
                         : kt_output(t, MHA_F32, rows, cols, out_stride);
        const mhai_write write = {.rows = rows,
                                  .cols = cols,
                                  .in = in,
                                  .in_stride = in_stride,
                                  .out = out,
                                  .out_stride = out_stride,
                                  .factor = factor,
                                  .add = add};
        KERNEL_CALL(t) k->write_rows(&write);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = 0; i < cols; i++) {
                const double start = add ? (double)before[r * out_stride + i] : 0.0;
                const float x = (float)(start + (double)in[r * in_stride + i] * (double)factor);
                kt_same(t, (double)out[r * out_stride + i], x == 0 ? 0.0 : (double)x, "out", r, i);
            }
    }
}

/* ---- activations --------------------------------------------------------------------------- */

/* From far below the range where values vanish to far above the range where they are linear. Timed
 * calls use the range that GELU does not change, because GELU is applied to its own output. */
static void fill_activations(kernel_test *t, float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = t->timed            ? 7.0f
               : kt_chance(t, 0.1) ? 60 * rng_normal(&t->r)
               : kt_chance(t, 0.1) ? (float)rng_between(&t->r, -120, 120)
                                   : 2 * kt_number(t);
}

static double phi(double x)
{
    return exp(-0.5 * x * x) * 0.39894228040143267794;
}

static double normal(double x)
{
    return 0.5 * erfc(-x * 0.70710678118654752440);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* The exponent of e = exp(-|x|) has two roundings (of the constant and of the product), so de/e = 2
 * u |x| + 3.5 u. The relative change of s = 1/(1+e), or e/(1+e) below 0, is de/e times sigmoid(-x)
 * in both cases. Sum and quotient round. e is 0 below 2^-126. */
static double sigmoid_error(double x)
{
    return sigmoid(x) * u * (sigmoid(-x) * (2 * fabs(x) + 3.5) + 2) + 0x1p-125;
}

/* docs/numerics.md 6: the sigmoid's argument 2 z has an error of 4 u, and one product follows. */
static double gelu_argument(double x)
{
    return 1.5957691216057308 * (x + 0.044715 * x * x * x);
}

static double gelu_sigmoid_error(double x)
{
    const double z = gelu_argument(x);
    return sigmoid_error(z) + (fabs(z) < 1000 ? sigmoid(z) * sigmoid(-z) * 4 * u * fabs(z) : 0);
}

/* The exact form: docs/numerics.md 6, 5 u |x| + 2 t. */
static void check_gelu(kernel_test *t, bool tanh)
{
    const int64_t n = kt_size(t, 300, 1024);
    float *x = kt_floats(t, n);
    fill_activations(t, x, n);
    t->bytes = 8.0 * (double)n;
    EACH_TABLE(t, k)
    {
        float *y = kt_in_out(t, MHA_F32, 1, n, n, x);
        KERNEL_CALL(t)(tanh ? k->activate_gelu_tanh : k->activate_gelu)(y, n);
        for (int64_t i = 0; i < n; i++) {
            const double v = (double)x[i];
            const double exact = v * (tanh ? sigmoid(gelu_argument(v)) : normal(v));
            const double error =
                tanh ? fabs(v) * gelu_sigmoid_error(v) + u * fabs(exact) : 5 * u * fabs(v);
            kt_close(t, (double)y[i], exact, error + 2 * tiny, "y", 0, i);
        }
    }
}

void check_activate_gelu(kernel_test *t)
{
    check_gelu(t, false);
}

void check_activate_gelu_tanh(kernel_test *t)
{
    check_gelu(t, true);
}

/* slope = Phi(x) + x phi(x). Phi has an error of 4 u (docs/numerics.md 6 without the last product).
 * In phi, x^2 and its product with a rounded constant have an error of 3 u of the exponent x^2 / 2,
 * the exponential adds 3.5 u, and the factor 2 u. phi is flushed below 2^-126. The sum and the
 * product with dy round once each. */
static double gelu_slope(double v, double *error)
{
    const double slope = normal(v) + v * phi(v);
    *error = 4 * u + fabs(v) * (phi(v) * u * (5.5 + 1.5 * v * v) + 0x1p-125) + u * fabs(slope);
    return slope;
}

/* slope = s + b z' with b = x s (1 - s): b has three roundings and the errors of s and 1 - s, z'
 * has an error of 4 u, and the sum rounds. */
static double gelu_tanh_slope(double v, double *error)
{
    const double z = gelu_argument(v);
    const double s = sigmoid(z), rest = sigmoid(-z), e = gelu_sigmoid_error(v);
    const double line = 1.5957691216057308 * (1 + 3 * 0.044715 * fmin(v * v, 1024));
    const double slope = s + v * s * rest * line;
    const double bend = fabs(v) * (e * (s + rest + e) + 3 * u * s * rest + u * s * e);
    *error = line * bend + 5 * u * fabs(v) * s * rest * line + e + u * fabs(slope) + tiny;
    return slope;
}

static void check_gelu_slope(kernel_test *t, bool tanh)
{
    const int64_t n = kt_size(t, 300, 1024);
    const bool in_place = kt_chance(t, 0.5);
    float *x = kt_floats(t, n), *dy = kt_floats(t, n);
    fill_activations(t, x, n);
    kt_fill(t, dy, n);
    t->bytes = 12.0 * (double)n;
    EACH_TABLE(t, k)
    {
        float *dx = in_place ? kt_in_out(t, MHA_F32, 1, n, n, dy) : kt_output(t, MHA_F32, 1, n, n);
        KERNEL_CALL(t)
        (tanh ? k->gelu_tanh_backward : k->gelu_backward)(dx, x, in_place ? dx : dy, n);
        for (int64_t i = 0; i < n; i++) {
            const double v = (double)x[i], d = (double)dy[i];
            double error, slope = (tanh ? gelu_tanh_slope : gelu_slope)(v, &error);
            kt_close(t, (double)dx[i], d * slope, fabs(d) * error + u * fabs(d * slope) + 2 * tiny,
                     "dx", 0, i);
        }
    }
}

void check_gelu_backward(kernel_test *t)
{
    check_gelu_slope(t, false);
}

void check_gelu_tanh_backward(kernel_test *t)
{
    check_gelu_slope(t, true);
}

void check_swiglu(kernel_test *t)
{
    const int64_t n = kt_size(t, 700, 1024);
    float *gate = kt_floats(t, n), *up = kt_floats(t, n);
    fill_activations(t, gate, n);
    kt_fill(t, up, n);
    t->bytes = 12.0 * (double)n;
    EACH_TABLE(t, k)
    {
        float *y = kt_output(t, MHA_F32, 1, n, n);
        KERNEL_CALL(t) k->swiglu(y, gate, up, n);
        for (int64_t i = 0; i < n; i++) {
            const double g = (double)gate[i], w = (double)up[i], exact = g * sigmoid(g) * w;
            kt_close(t, (double)y[i], exact,
                     fabs(g * w) * sigmoid_error(g) + 2 * u * fabs(exact) + tiny * (2 + fabs(w)),
                     "y", 0, i);
        }
    }
}

/* dup = dy gate s, and dgate = dy up s (1 + gate (1 - s)). In dgate, the rounding and the error of
 * 1 - s are multiplied by gate. */
void check_swiglu_backward(kernel_test *t)
{
    const int64_t n = kt_size(t, 700, 1024);
    float *gate = kt_floats(t, n), *up = kt_floats(t, n), *dy = kt_floats(t, n);
    const int dgate_is = t->timed ? 3 : (int)rng_between(&t->r, 0, 3);
    const int dup_is = t->timed ? 3 : (dgate_is + (int)rng_between(&t->r, 1, 3)) % 4;
    fill_activations(t, gate, n);
    kt_fill(t, up, n);
    kt_fill(t, dy, n);
    t->bytes = 20.0 * (double)n;
    EACH_TABLE(t, k)
    {
        const float *in[3] = {gate, up, dy};
        float *dgate = dgate_is < 3 ? kt_in_out(t, MHA_F32, 1, n, n, in[dgate_is])
                                    : kt_output(t, MHA_F32, 1, n, n);
        float *dup = dup_is < 3 ? kt_in_out(t, MHA_F32, 1, n, n, in[dup_is])
                                : kt_output(t, MHA_F32, 1, n, n);
        if (dgate_is < 3) in[dgate_is] = dgate;
        if (dup_is < 3) in[dup_is] = dup;
        KERNEL_CALL(t) k->swiglu_backward(dgate, dup, in[0], in[1], in[2], n);
        for (int64_t i = 0; i < n; i++) {
            const double g = (double)gate[i], w = (double)up[i], d = (double)dy[i];
            const double s = sigmoid(g), e = sigmoid_error(g), rest = 1 - s;
            const double inner = 1 + g * rest, slope = s * inner;
            const double inner_error = fabs(g) * (e + u * rest) + u * (1 + fabs(inner));
            const double slope_error = e * fabs(inner) + s * inner_error + u * fabs(slope);
            kt_close(t, (double)dup[i], d * g * s,
                     fabs(d * g) * e + 2 * u * fabs(d * g * s) + tiny * (2 + fabs(d)), "dup", 0, i);
            kt_close(t, (double)dgate[i], d * w * slope,
                     fabs(d * w) * slope_error + 2 * u * fabs(d * w * slope) +
                         tiny * (2 + fabs(slope)),
                     "dgate", 0, i);
        }
    }
}

/* In p, the difference and its product with a rounded log2 e have an error of 2.3 u |x - max|, and
 * the exponential adds 3.5 u. The sum has 16 lanes and a tree: ceil(n / 16) + 4 additions of
 * positive terms. */
void check_exp_row(kernel_test *t)
{
    const int64_t n = kt_size(t, 400, 1024);
    const bool in_place = kt_chance(t, 0.4);
    float *x = kt_floats(t, n);
    double top = -INFINITY, total = 0, total_error = 0;
    for (int64_t i = 0; i < n; i++) {
        x[i] = i > 0 && kt_chance(t, 0.1) ? -INFINITY
               : kt_chance(t, 0.1)        ? -100 * fabsf(rng_normal(&t->r))
                                          : 4 * kt_number(t);
        top = fmax(top, (double)x[i]);
    }
    t->bytes = 8.0 * (double)n;
    EACH_TABLE(t, k)
    {
        float *p = in_place ? kt_in_out(t, MHA_F32, 1, n, n, x) : kt_output(t, MHA_F32, 1, n, n);
        float *max = kt_output(t, MHA_F32, 1, 1, 1), *sum = kt_output(t, MHA_F32, 1, 1, 1);
        KERNEL_CALL(t) k->exp_row(p, in_place ? p : x, n, max, sum);
        kt_that(t, (double)*max == top, "the maximum", 0, 0);
        total = total_error = 0;
        for (int64_t i = 0; i < n; i++) {
            const double away = top - (double)x[i], exact = exp(-away);
            const double bound =
                exact == 0 ? 0 : exact * u * (2.3 * away + 3.5) + (away > 87.2 ? exact : 0);
            kt_close(t, (double)p[i], exact, bound, "p", 0, i);
            total += exact;
            total_error += bound;
        }
        kt_close(t, (double)*sum, total,
                 total_error + ((double)((n + 15) / 16) + 4) * u * (total + total_error), "sum", 0,
                 0);
    }
}

/* ---- norms --------------------------------------------------------------------------------- */

typedef struct norm_case {
    int rows;
    int64_t n, z_stride, y_stride;
    bool centred;
    double epsilon;
    float *z, *weight, *bias;
} norm_case;

static norm_case make_norm(kernel_test *t, bool with_bias)
{
    norm_case c = {.rows = t->timed ? 16 : (int)rng_between(&t->r, 1, MHAI_MAX_ROWS),
                   .n = kt_size(t, 200, 512),
                   .centred = kt_chance(t, 0.5) || t->timed,
                   .epsilon = 1e-5};
    c.z_stride = kt_stride(t, c.n);
    c.y_stride = kt_stride(t, c.n);
    c.z = kt_input(t, MHA_F32, c.rows, c.n, c.z_stride);
    kt_fill_rows(t, c.z, c.rows, c.n, c.z_stride);
    for (int r = 0; kt_chance(t, 0.3) && r < c.rows; r++)
        for (int64_t i = 0; i < c.n; i++) c.z[r * c.z_stride + i] += 100.0f;
    kt_fill(t, c.weight = kt_floats(t, c.n), c.n);
    if (with_bias && c.centred && !kt_chance(t, 0.3)) kt_fill(t, c.bias = kt_floats(t, c.n), c.n);
    return c;
}

/* The mean of a row, 1 / sigma, and the largest |z - mean|. */
static void measure(const norm_case *c, int row, double *mean, double *scale, double *size)
{
    const float *z = c->z + row * c->z_stride;
    double sum = 0, squares = 0;
    for (int64_t i = 0; c->centred && i < c->n; i++) sum += (double)z[i];
    *mean = sum / (double)c->n;
    *size = 0;
    for (int64_t i = 0; i < c->n; i++) {
        const double away = (double)z[i] - *mean;
        squares += away * away;
        *size = fmax(*size, fabs(away) + fabs((double)z[i]));
    }
    *scale = 1 / sqrt(squares / (double)c->n + c->epsilon);
}

static mhai_norm_strip norm_of(const norm_case *c, const float *z, float *y, int64_t y_stride)
{
    return (mhai_norm_strip){.rows = c->rows,
                             .n = c->n,
                             .centred = c->centred,
                             .epsilon = c->epsilon,
                             .z = z,
                             .z_stride = c->z_stride,
                             .weight = c->weight,
                             .bias = c->bias,
                             .y = y,
                             .y_stride = y_stride};
}

/* The kernel computes in double and rounds once: u |y| (docs/numerics.md 7). */
void check_norm_strip(kernel_test *t)
{
    const norm_case c = make_norm(t, true);
    const bool in_place = kt_chance(t, 0.4);
    t->bytes = 8.0 * (double)(c.rows * c.n);
    EACH_TABLE(t, k)
    {
        const int64_t stride = in_place ? c.z_stride : c.y_stride;
        float *y = in_place ? kt_in_out(t, MHA_F32, c.rows, c.n, stride, c.z)
                            : kt_output(t, MHA_F32, c.rows, c.n, stride);
        const mhai_norm_strip strip = norm_of(&c, in_place ? y : c.z, y, stride);
        KERNEL_CALL(t) k->norm_strip(&strip);
        for (int r = 0; r < c.rows; r++) {
            double mean, scale, size;
            measure(&c, r, &mean, &scale, &size);
            for (int64_t i = 0; i < c.n; i++) {
                const double w = (double)c.weight[i], b = c.bias ? (double)c.bias[i] : 0;
                const double exact = ((double)c.z[r * c.z_stride + i] - mean) * scale * w + b;
                kt_close(t, (double)y[r * stride + i], exact,
                         u * fabs(exact) + tiny +
                             of_double(c.n, size * scale * (1 + size * scale) * fabs(w) + fabs(b)),
                         "y", r, i);
            }
        }
    }
}

/* With n the normed row and g = dy weight: dx = (g - mean(g) - n mean(g n)) / sigma, mean(g) only
 * if centred. The kernel computes in double and rounds once. */
void check_norm_strip_backward(kernel_test *t)
{
    const norm_case c = make_norm(t, false);
    const int64_t dy_stride = kt_stride(t, c.n);
    const bool add = kt_chance(t, 0.4), in_place = !add && kt_chance(t, 0.4);
    const bool sums = t->timed || kt_chance(t, 0.7), wanted = !sums || !kt_chance(t, 0.2);
    const int64_t stride = in_place ? dy_stride : c.y_stride;
    float *dy = kt_numbers(t, c.rows, c.n, dy_stride);
    float *before = kt_numbers(t, c.rows, c.n, stride);
    double *sums_before = kt_input(t, MHA_F64, 1, 2 * c.n, 2 * c.n);
    for (int64_t i = 0; i < 2 * c.n; i++) sums_before[i] = (double)kt_number(t);
    t->bytes = 12.0 * (double)(c.rows * c.n);
    EACH_TABLE(t, k)
    {
        float *dx = kt_in_out(t, MHA_F32, c.rows, c.n, stride, in_place ? dy : before);
        double *total = kt_in_out(t, MHA_F64, 1, 2 * c.n, 2 * c.n, sums_before);
        mhai_norm_strip_back strip = {.norm = norm_of(&c, c.z, wanted ? dx : NULL, stride),
                                      .dy = in_place ? dx : dy,
                                      .dy_stride = dy_stride,
                                      .add = add,
                                      .sums = sums ? total : NULL};
        strip.norm.bias = NULL;
        KERNEL_CALL(t) k->norm_strip_backward(&strip);
        double *exact_sums = kt_plain(t, (size_t)(4 * c.n) * sizeof(double));
        for (int64_t i = 0; i < 2 * c.n; i++) exact_sums[i] = sums_before[i];
        for (int64_t i = 0; i < 2 * c.n; i++) exact_sums[2 * c.n + i] = fabs(sums_before[i]);
        for (int r = 0; r < c.rows; r++) {
            double mean, scale, size, mean_g = 0, mean_gn = 0, most = 0;
            measure(&c, r, &mean, &scale, &size);
            for (int64_t i = 0; i < c.n; i++) {
                const double d = (double)dy[r * dy_stride + i], g = d * (double)c.weight[i];
                const double n = ((double)c.z[r * c.z_stride + i] - mean) * scale;
                if (c.centred) mean_g += g / (double)c.n;
                mean_gn += g * n / (double)c.n;
                most = fmax(most, fabs(g));
                exact_sums[i] += sums ? d * n : 0;
                exact_sums[c.n + i] += sums && c.centred ? d : 0;
                exact_sums[2 * c.n + i] += fabs(d) * size * scale * (1 + size * scale);
                exact_sums[3 * c.n + i] += fabs(d);
            }
            for (int64_t i = 0; i < c.n; i++) {
                const double g = (double)dy[r * dy_stride + i] * (double)c.weight[i];
                const double n = ((double)c.z[r * c.z_stride + i] - mean) * scale;
                const double old = (double)(in_place ? dy : before)[r * stride + i];
                const double exact =
                    !wanted ? old : (g - mean_g - n * mean_gn) * scale + (add ? old : 0);
                const double s = 1 + size * scale;
                kt_close(t, (double)dx[r * stride + i], exact,
                         !wanted ? 0
                                 : u * fabs(exact) + tiny +
                                       of_double(c.n, 4 * most * scale * s * s * s + fabs(old)),
                         "dx", r, i);
            }
        }
        for (int64_t i = 0; i < 2 * c.n; i++)
            kt_close(t, total[i], exact_sums[i],
                     sums ? of_double(c.n + c.rows, exact_sums[2 * c.n + i]) : 0, "sums", i / c.n,
                     i % c.n);
    }
}

/* ---- rotation and deltas ------------------------------------------------------------------- */

void check_rope_halves(kernel_test *t)
{
    const int64_t heads = kt_size(t, 6, 8), pairs = kt_size(t, 70, 32);
    const int64_t mate = pairs + (kt_chance(t, 0.3) ? rng_between(&t->r, 1, 9) : 0);
    const int64_t x_stride = kt_stride(t, mate + pairs), y_stride = kt_stride(t, mate + pairs);
    const bool in_place = kt_chance(t, 0.4);
    const int64_t stride = in_place ? x_stride : y_stride;
    float *x = kt_input(t, MHA_F32, heads, mate + pairs, x_stride);
    double *cosine = kt_input(t, MHA_F64, 1, pairs, pairs);
    double *sine = kt_input(t, MHA_F64, 1, pairs, pairs);
    for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < pairs; i++)
            x[h * x_stride + i] = kt_number(t), x[h * x_stride + mate + i] = kt_number(t);
    for (int64_t i = 0; i < pairs; i++)
        cosine[i] = cos(0.37 * (double)i), sine[i] = sin(0.37 * (double)i);
    t->bytes = 16.0 * (double)(heads * pairs);
    EACH_TABLE(t, k)
    {
        float *y = in_place ? kt_in_out(t, MHA_F32, heads, mate + pairs, stride, x)
                            : kt_output(t, MHA_F32, heads, mate + pairs, stride);
        const mhai_turn turn = {.heads = heads,
                                .pairs = pairs,
                                .mate = mate,
                                .x = in_place ? y : x,
                                .x_stride = x_stride,
                                .y = y,
                                .y_stride = stride,
                                .cosine = cosine,
                                .sine = sine};
        KERNEL_CALL(t) k->rope_halves(&turn);
        for (int64_t h = 0; h < heads; h++) {
            const float *from = x + h * x_stride, *to = y + h * stride;
            for (int64_t i = 0; i < pairs; i++) {
                const double a = (double)from[i], b = (double)from[mate + i];
                const double real = a * cosine[i] - b * sine[i];
                const double imaginary = a * sine[i] + b * cosine[i];
                const double slack = tiny + of_double(0, fabs(a) + fabs(b));
                kt_close(t, (double)to[i], real, u * fabs(real) + slack, "y", h, i);
                kt_close(t, (double)to[mate + i], imaginary, u * fabs(imaginary) + slack, "y", h,
                         mate + i);
            }
            for (int64_t i = pairs; i < mate; i++) /* still 0xFFFFFFFF */
                kt_that(t, memcmp(&to[i], &(uint32_t){UINT32_MAX}, 4) == 0, "gap of y", h, i);
        }
    }
}

/* Products are exact in double, and the chain is the loop below. The bits are the same on every
 * instruction set. */
void check_row_deltas(kernel_test *t)
{
    const int rows = t->timed ? 16 : (int)rng_between(&t->r, 1, MHAI_MAX_ROWS);
    const int64_t head_dim = kt_size(t, 150, 64), value_dim = kt_size(t, 150, 64);
    const int64_t q_stride = kt_stride(t, head_dim), o_stride = kt_stride(t, value_dim);
    const int64_t g_stride = kt_stride(t, value_dim);
    const double bad = kt_chance(t, 0.3) ? 0.002 : 0;
    float *q = kt_input(t, MHA_F32, rows, head_dim, q_stride);
    float *o = kt_input(t, MHA_F32, rows, value_dim, o_stride);
    float *g = kt_input(t, MHA_F32, rows, value_dim, g_stride);
    kt_fill_typed(t, MHA_F32, q, rows, head_dim, q_stride, bad);
    kt_fill_typed(t, MHA_F32, o, rows, value_dim, o_stride, bad);
    kt_fill_typed(t, MHA_F32, g, rows, value_dim, g_stride, bad);
    t->bytes = 4.0 * (double)(rows * (head_dim + 2 * value_dim));
    EACH_TABLE(t, k)
    {
        double *delta = kt_scratch(t, MHA_F64, 1, MHAI_MAX_ROWS, MHAI_MAX_ROWS);
        uint8_t *flags = kt_scratch(t, MHA_U8, 1, rows, rows);
        bool *finite = (bool *)flags;
        const mhai_deltas deltas = {.rows = rows,
                                    .head_dim = head_dim,
                                    .value_dim = value_dim,
                                    .q = q,
                                    .o = o,
                                    .g = g,
                                    .q_stride = q_stride,
                                    .o_stride = o_stride,
                                    .g_stride = g_stride};
        KERNEL_CALL(t) k->row_deltas(&deltas, delta, finite);
        for (int r = 0; r < rows; r++) {
            double sum = 0;
            bool all = true;
            for (int64_t i = 0; i < value_dim; i++) {
                const double a = (double)o[r * o_stride + i], b = (double)g[r * g_stride + i];
                if (a != 0) sum += a * b;
                all &= isfinite(a) && isfinite(b);
            }
            for (int64_t i = 0; i < head_dim; i++) all &= isfinite(q[r * q_stride + i]) != 0;
            kt_that(t, finite[r] == all, "finite", r, 0);
            if (isfinite(sum)) kt_same(t, delta[r], sum == 0 ? 0.0 : sum, "delta", r, 0);
        }
    }
}
