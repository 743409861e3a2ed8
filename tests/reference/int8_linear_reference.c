#include "reference/int8_linear_reference.h"

#include <math.h>

enum { BLOCK = 32 };

/* 32 inputs, or the last ones, with one scale. */
typedef struct rounded {
    int small[BLOCK];
    float unit;
} rounded;

static rounded round_block(const float *x, int64_t count)
{
    rounded b = {.unit = 0};
    float most = 0;
    for (int64_t i = 0; i < count; i++) most = fmaxf(most, fabsf(x[i]));
    if (most < 0x1p-80f) return b;
    const float steps = 127.0f / most;
    b.unit = most / 127.0f;
    for (int64_t i = 0; i < count; i++) {
        const float scaled = x[i] * steps;
        b.small[i] = (int)lrintf(scaled);
    }
    return b;
}

static bool in_range(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(x[i]) < 0x1p93f)) return false;
    return true;
}

/* The contribution of a run: one or two terms, and their magnitudes. */
static double add_run(const int8_linear_row *w, int64_t run, const rounded *b, int64_t first,
                      float *y)
{
    int64_t sum = 0, only = 0;
    for (int64_t i = 0; i < w->run; i++) {
        sum += w->number[run * w->run + i] * b->small[first + i];
        only += b->small[first + i];
    }
    const float scale = w->scale[run] * b->unit, term = (float)sum * scale;
    *y = *y + term;
    if (!w->has_offsets) return fabs((double)term);
    const float shift = b->unit * (float)only, added = w->offset[run] * shift;
    *y = *y + added;
    return fabs((double)term) + fabs((double)added);
}

int8_linear_output int8_linear_reference(const int8_linear_row *w, const float *x, float bias)
{
    int8_linear_output out = {.y = bias, .exact = (double)bias};
    double steps = 0, size = fabs((double)bias);
    rounded b;
    if (!in_range(x, w->inputs)) return (int8_linear_output){.y = NAN, .exact = NAN};
    for (int64_t i = 0; i < w->inputs; i += w->run) {
        const int64_t left = w->inputs - i / BLOCK * BLOCK;
        if (i % BLOCK == 0) b = round_block(x + i, left < BLOCK ? left : BLOCK);
        size += add_run(w, i / w->run, &b, i % BLOCK, &out.y);
        for (int64_t k = i; k < i + w->run; k++) {
            const double weight =
                (double)w->number[k] * (double)w->scale[i / w->run] + (double)w->offset[i / w->run];
            out.exact += weight * (double)x[k];
            steps += fabs(weight) * (0.5001 * (double)b.unit + 0x1p-80);
        }
    }
    const double terms = (double)(w->inputs / w->run * (w->has_offsets ? 2 : 1));
    out.bound = steps + (terms + 4) * 0x1p-24 * size + 0x1p-120;
    return out;
}
