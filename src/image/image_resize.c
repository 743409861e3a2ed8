/* Resizing as Pillow computes it, so that patches equal those of Python programs. */
#include "image/image.h"

#include <multihead/component.h>

#include <math.h>
#include <stdlib.h>

/* Weights are integers of 2^-22: a sum of 8-bit pixels with weights of sum 1 then has 30 bits, and
 * 2 remain for weights beyond 1 and for the sign. */
enum { BITS = 22 };

/* One axis: output i is a sum over `counts[i]` inputs from firsts[i] on. */
typedef struct axis {
    int64_t size, most; /* outputs, and weights per output */
    int64_t *firsts, *counts;
    double *weights; /* [size,most] */
} axis;

static double filter_at(double x, bool cubic)
{
    const double a = -0.5;
    x = fabs(x);
    if (!cubic) return x < 1 ? 1 - x : 0;
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static void fill_output(int64_t i, int64_t from, double scale, double stretch, bool cubic, axis *x)
{
    const double centre = ((double)i + 0.5) * scale, support = (cubic ? 2 : 1) * stretch;
    int64_t first = (int64_t)(centre - support + 0.5), end = (int64_t)(centre + support + 0.5);
    double *w = x->weights + i * x->most, sum = 0;
    if (first < 0) first = 0;
    if (end > from) end = from;
    for (int64_t k = 0; k < end - first; k++) {
        w[k] = filter_at(((double)(k + first) - centre + 0.5) * (1 / stretch), cubic);
        sum += w[k];
    }
    for (int64_t k = 0; k < end - first && (sum < 0 || sum > 0); k++) w[k] /= sum;
    x->firsts[i] = first;
    x->counts[i] = end - first;
}

static mha_status make_axis(int64_t from, int64_t to, bool cubic, axis *x)
{
    const double scale = (double)from / (double)to, stretch = scale > 1 ? scale : 1;
    *x = (axis){.size = to, .most = (int64_t)ceil((cubic ? 2 : 1) * stretch) * 2 + 1};
    x->firsts = calloc((size_t)to, sizeof *x->firsts);
    x->counts = calloc((size_t)to, sizeof *x->counts);
    x->weights = calloc((size_t)(to * x->most), sizeof *x->weights);
    if (!x->firsts || !x->counts || !x->weights) return MHA_NO_MEMORY("image");
    for (int64_t i = 0; i < to; i++) fill_output(i, from, scale, stretch, cubic, x);
    return MHA_OK;
}

static void free_axis(axis *x)
{
    free(x->firsts);
    free(x->counts);
    free(x->weights);
}

static void round_weights(const axis *x, int32_t *to)
{
    for (int64_t i = 0; i < x->size * x->most; i++) {
        const double w = x->weights[i] * (1 << BITS);
        to[i] = (int32_t)(w < 0 ? w - 0.5 : w + 0.5);
    }
}

static uint8_t clip(int64_t sum)
{
    const int64_t value = sum < 0 ? 0 : sum >> BITS;
    return value > 255 ? 255 : (uint8_t)value;
}

/* Resample rows of pixels: output i of row y is at to + i step + y stride, its inputs likewise with
 * from_step and from_stride. */
typedef struct layout {
    int64_t rows, step, stride, from_step, from_stride;
} layout;

static void run_bytes(const axis *x, const int32_t *weights, const uint8_t *from, layout l,
                      uint8_t *to)
{
    for (int64_t y = 0; y < l.rows; y++)
        for (int64_t i = 0; i < x->size; i++) {
            const uint8_t *in = from + y * l.from_stride + x->firsts[i] * l.from_step;
            int64_t sum[3] = {1 << (BITS - 1), 1 << (BITS - 1), 1 << (BITS - 1)};
            for (int64_t k = 0; k < x->counts[i]; k++)
                for (int c = 0; c < 3; c++)
                    sum[c] += (int64_t)weights[i * x->most + k] * in[k * l.from_step + c];
            for (int c = 0; c < 3; c++) to[y * l.stride + i * l.step + c] = clip(sum[c]);
        }
}

static void run_floats(const axis *x, const float *from, layout l, float *to)
{
    for (int64_t y = 0; y < l.rows; y++)
        for (int64_t i = 0; i < x->size; i++) {
            const float *in = from + y * l.from_stride + x->firsts[i] * l.from_step;
            double sum[3] = {0};
            for (int64_t k = 0; k < x->counts[i]; k++)
                for (int c = 0; c < 3; c++)
                    sum[c] += x->weights[i * x->most + k] * (double)in[k * l.from_step + c];
            for (int c = 0; c < 3; c++) to[y * l.stride + i * l.step + c] = (float)sum[c];
        }
}

static layout along_rows(int64_t rows, int64_t from, int64_t to)
{
    return (layout){rows, 3, 3 * to, 3, 3 * from};
}

static layout along_columns(int64_t width)
{
    return (layout){width, 3 * width, 3, 3 * width, 3};
}

/* Resize one axis; the other keeps its size. */
static mha_status pass_bytes(const mha_image *from, int64_t width, int64_t height, bool cubic,
                             mha_image *to)
{
    const bool rows = width != from->width;
    axis x = {0};
    int32_t *weights = NULL;
    mha_image made = {0};
    mha_status status = mhai_image_make(width, height, &made);
    if (status == MHA_OK)
        status = make_axis(rows ? from->width : from->height, rows ? width : height, cubic, &x);
    if (status == MHA_OK) {
        weights = calloc((size_t)(x.size * x.most), sizeof *weights);
        if (!weights) status = MHA_NO_MEMORY("image");
    }
    if (status == MHA_OK) {
        round_weights(&x, weights);
        run_bytes(&x, weights, from->pixels,
                  rows ? along_rows(height, from->width, width) : along_columns(width),
                  made.pixels);
        *to = made;
    } else {
        free(made.pixels);
    }
    free(weights);
    free_axis(&x);
    return status;
}

mha_status mhai_image_resize(const mha_image *from, int64_t width, int64_t height, bool cubic,
                             mha_image *to)
{
    mha_image wide = {0};
    if (width == from->width || height == from->height)
        return pass_bytes(from, width, height, cubic, to);
    MHA_TRY(pass_bytes(from, width, from->height, cubic, &wide));
    const mha_status status = pass_bytes(&wide, width, height, cubic, to);
    free(wide.pixels);
    return status;
}

mha_status mhai_image_resize_floats(const mha_image *from, double factor, int64_t width,
                                    int64_t height, bool cubic, float **to)
{
    axis x = {0}, y = {0};
    const int64_t count = from->width * from->height * 3;
    float *given = calloc((size_t)count, sizeof *given);
    float *wide = calloc((size_t)(width * from->height * 3), sizeof *wide);
    *to = calloc((size_t)(width * height * 3), sizeof **to);
    mha_status status = given && wide && *to ? MHA_OK : MHA_NO_MEMORY("image");
    if (status == MHA_OK) status = make_axis(from->width, width, cubic, &x);
    if (status == MHA_OK) status = make_axis(from->height, height, cubic, &y);
    if (status == MHA_OK) {
        for (int64_t i = 0; i < count; i++) given[i] = (float)(from->pixels[i] * factor);
        run_floats(&x, given, along_rows(from->height, from->width, width), wide);
        run_floats(&y, wide, along_columns(width), *to);
    }
    free(given);
    free(wide);
    free_axis(&x);
    free_axis(&y);
    return status;
}
