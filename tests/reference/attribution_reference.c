#include "reference/attribution_reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void reference_head_out(const double *weight, int64_t E, int64_t width, int64_t h, int64_t D,
                        const double *z, double *out)
{
    for (int64_t e = 0; e < E; e++) {
        out[e] = 0;
        for (int64_t d = 0; d < D; d++) out[e] += weight[e * width + h * D + d] * z[d];
    }
}

double reference_dot(const double *a, const double *b, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

double reference_norm(const double *x, int64_t count)
{
    return sqrt(reference_dot(x, x, count));
}

void reference_product(const double *a, const double *b, int64_t n, int64_t k, int64_t m, double *c)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < m; j++) {
            c[i * m + j] = 0;
            for (int64_t x = 0; x < k; x++) c[i * m + j] += a[i * k + x] * b[x * m + j];
        }
}

void reference_turn(const double *a, int64_t rows, int64_t cols, double *out)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) out[j * rows + i] = a[i * cols + j];
}

double reference_composition(const double *a, const double *b, int64_t n)
{
    double *c = malloc((size_t)(n * n) * sizeof *c);
    if (!c) abort();
    reference_product(a, b, n, n, n, c);
    double below = reference_norm(a, n * n) * reference_norm(b, n * n);
    double score = below == 0 ? 0 : reference_norm(c, n * n) / below;
    free(c);
    return score;
}

void reference_rollout(const double *maps, int64_t H, int64_t T, const double *before,
                       double *after)
{
    double *mixed = malloc((size_t)(T * T) * sizeof *mixed);
    if (!mixed) abort();
    for (int64_t i = 0; i < T; i++) {
        double total = 0;
        for (int64_t j = 0; j < T; j++) {
            double sum = 0;
            for (int64_t h = 0; h < H; h++) sum += maps[(h * T + i) * T + j];
            mixed[i * T + j] = sum / (double)H + (i == j ? 1 : 0);
            total += mixed[i * T + j];
        }
        for (int64_t j = 0; j < T; j++) mixed[i * T + j] /= total;
    }
    if (before)
        reference_product(mixed, before, T, T, T, after);
    else
        memcpy(after, mixed, (size_t)(T * T) * sizeof *after);
    free(mixed);
}

reference_stream reference_stream_make(int64_t E, int64_t most)
{
    reference_stream s = {E, 0, calloc((size_t)(most * E), sizeof(double)),
                          calloc((size_t)E, sizeof(double))};
    if (!s.terms || !s.error) abort();
    return s;
}

void reference_stream_free(reference_stream *s)
{
    free(s->terms);
    free(s->error);
}

double *reference_stream_add(reference_stream *s)
{
    return s->terms + s->count++ * s->E;
}

void reference_stream_norm(reference_stream *s, const double *x, const double *weight,
                           const double *bias, double epsilon, int centred, int64_t bias_term,
                           double rounding)
{
    const int64_t E = s->E;
    double mean = 0, squares = 0;
    for (int64_t e = 0; centred && e < E; e++) mean += x[e] / (double)E;
    for (int64_t e = 0; e < E; e++) squares += (x[e] - mean) * (x[e] - mean);
    const double scale = 1 / sqrt(squares / (double)E + epsilon);
    for (int64_t k = 0; k < s->count; k++) {
        double *term = s->terms + k * E, own = 0;
        for (int64_t e = 0; centred && e < E; e++) own += term[e] / (double)E;
        for (int64_t e = 0; e < E; e++) term[e] = weight[e] * (term[e] - own) * scale;
    }
    double error = 0;
    for (int64_t e = 0; centred && e < E; e++) error += s->error[e] / (double)E;
    for (int64_t e = 0; e < E; e++) {
        const double y = weight[e] * (x[e] - mean) * scale + (bias ? bias[e] : 0);
        s->error[e] = fabs(weight[e]) * (s->error[e] + error) * scale + rounding * fabs(y);
        if (bias) s->terms[bias_term * E + e] += bias[e];
    }
}
