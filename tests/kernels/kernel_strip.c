#include "kernel_strip.h"

#include "reference/half_reference.h"
#include "reference/kinds_reference.h"

/* ---- a case -------------------------------------------------------------------------------- */

float strip_bf16(float x)
{
    const float most = (float)half_value(MHA_BF16, 0x7F7F);
    const float nearest = (float)half_value(MHA_BF16, half_nearest(MHA_BF16, (double)x));
    if (fabsf(x) < 0x1p-50f) return 0;
    return fabsf(nearest) > most ? copysignf(most, x) : nearest;
}

static void round_to_bf16(unsigned with, float *x, int64_t n)
{
    for (int64_t i = 0; (with & WITH_BF16) && i < n; i++) x[i] = strip_bf16(x[i]);
}

/* Packs x [rows][cols] into panels of keys or of values. Elements that are not finite become 0. */
static float *strip_panels(kernel_test *t, const float *x, int64_t rows, int64_t cols, bool keys,
                           int64_t wide)
{
    const int64_t tall = keys ? (rows + 31) / 32 : wide / 32;
    float *out = keys ? kt_input(t, MHA_F32, tall, cols * 32, cols * 32)
                      : kt_input(t, MHA_F32, tall, rows * 32, (int64_t)MHAI_KEY_BLOCK * MHAI_PANEL);
    for (int64_t r = 0; r < rows; r++) /* padding of a key panel stays 0xFF: it must not be read */
        for (int64_t c = 0; c < (keys ? cols : wide); c++) {
            const float value = c < cols && isfinite(x[r * cols + c]) ? x[r * cols + c] : 0.0f;
            if (keys)
                out[(r / 32 * cols + c) * 32 + r % 32] = value;
            else
                out[(c / 32 * MHAI_KEY_BLOCK + r) * 32 + c % 32] = value;
        }
    return out;
}

static float *rows_of(kernel_test *t, const float *x, int64_t rows, int64_t cols, int64_t stride,
                      int64_t more)
{
    float *out = kt_input(t, MHA_F32, rows + more, cols, stride);
    for (int64_t r = 0; r < rows + more; r++)
        for (int64_t c = 0; c < cols; c++)
            out[r * stride + c] = r < rows ? x[r * cols + c] : kt_number(t);
    return out;
}

static void poison_rows(kernel_test *t, float *x, int64_t rows, int64_t cols, uint8_t *bad)
{
    static const float strange[] = {NAN, INFINITY, -INFINITY};
    for (int64_t r = 0; r < rows; r++) {
        if (!kt_chance(t, 0.1)) continue;
        x[r * cols + rng_between(&t->r, 0, cols - 1)] = RNG_PICK(&t->r, strange);
        bad[r] = 1;
    }
}

mha_dtype strip_run_type(kernel_test *t)
{
    return kt_chance(t, 0.3) ? MHA_I8 : kt_type(t);
}

/* One position: f32, f16 or bf16, or integers times a scale of 17 bits. An element that is not
 * finite makes the scale NaN.
 * */
static void store_position(mha_dtype type, float *x, int64_t cols, int64_t step, int64_t at,
                           unsigned char *run, float *scale)
{
    float most = 0;
    for (int64_t c = 0; c < cols && type == MHA_I8; c++)
        most = isfinite(x[c]) ? fmaxf(most, fabsf(x[c])) : NAN;
    for (int64_t c = 0; c < cols && type == MHA_I8; c++)
        if (!isfinite(x[c])) most = NAN;
    if (type == MHA_I8) {
        uint32_t bits;
        *scale = most / 127;
        memcpy(&bits, scale, sizeof bits);
        bits = (bits + 127) & ~(uint32_t)127;
        memcpy(scale, &bits, sizeof bits);
        if (!isfinite(most)) *scale = NAN;
    }
    for (int64_t c = 0; c < cols; c++) {
        const int64_t i = at + c * step;
        if (type == MHA_I8) {
            const float n = *scale > 0 ? nearbyintf(x[c] / *scale) : 0;
            ((int8_t *)run)[i] = (int8_t)n;
            x[c] = (float)((int8_t *)run)[i] * *scale; /* no -0 */
        } else if (type == MHA_F32) {
            ((float *)(void *)run)[i] = x[c];
        } else {
            ((uint16_t *)(void *)run)[i] = half_nearest(type, (double)x[c]);
            x[c] = (float)half_value(type, half_nearest(type, (double)x[c]));
        }
    }
}

/* Keys of a run as integers times powers of two, one for each channel. An element that is not
 * finite makes its channel NaN for the whole run. */
static void store_channels(float *x, int rows, int64_t cols, unsigned char *run, int8_t *powers)
{
    for (int64_t c = 0; c < cols; c++) {
        float most = 0;
        int power = 0;
        for (int r = 0; r < rows; r++)
            most = isfinite(x[r * cols + c]) ? fmaxf(most, fabsf(x[r * cols + c])) : INFINITY;
        for (int r = 0; r < rows; r++)
            if (!isfinite(x[r * cols + c])) most = INFINITY;
        frexpf(most / 127, &power);
        power = power < -126 ? -126 : power > 120 ? 120 : power;
        powers[c] = (int8_t)(isfinite(most) ? power : MHAI_BAD_POWER);
        for (int r = 0; r < rows; r++) {
            float n = isfinite(most) ? nearbyintf(ldexpf(x[r * cols + c], -power)) : 0;
            n = n > 127 ? 127 : n < -127 ? -127 : n;
            ((int8_t *)run)[c * 16 + r] = (int8_t)n;
            x[r * cols + c] = isfinite(most) ? ldexpf((float)(int)n, power) : NAN; /* no -0 */
        }
    }
}

mhai_run *strip_runs(kernel_test *t, mha_dtype type, float *x, int64_t rows, int64_t cols,
                     bool keys)
{
    const bool channels = keys && type == MHA_I8 && kt_chance(t, 0.5);
    const int64_t count = (rows + 15) / 16, all = count + MHAI_RUNS_AHEAD;
    mhai_run *runs = kt_plain(t, (size_t)all * sizeof *runs);
    for (int64_t i = 0; i < count; i++) {
        unsigned char *at = kt_input(t, type, 16, cols, cols); /* initially 0xFF */
        if (channels) {
            int8_t *powers = kt_input(t, MHA_I8, 1, cols, cols);
            store_channels(x + 16 * i * cols, (int)(rows - 16 * i < 16 ? rows - 16 * i : 16), cols,
                           at, powers);
            runs[i] = (mhai_run){.at = at, .powers = powers, .type = type};
            continue;
        }
        float *scale = kt_input(t, MHA_F32, 1, 16, 16);
        for (int64_t r = 16 * i; r < rows && r < 16 * (i + 1); r++)
            store_position(type, x + r * cols, cols, keys ? 16 : 1, keys ? r % 16 : r % 16 * cols,
                           at, scale + r % 16);
        runs[i] = (mhai_run){.at = at, .scale = scale, .type = type};
    }
    for (int64_t i = count; i < all; i++) runs[i] = runs[count - 1];
    return runs;
}

block_case strip_block(kernel_test *t, unsigned with, int keys, int64_t dim, int64_t panels)
{
    block_case b = {
        .keys = keys, .dim = dim, .panels = panels, .cols = panels * 32, .value_dim = panels * 32};
    float *k = kt_plain(t, (size_t)(keys * dim) * sizeof(float));
    float *v = kt_plain(t, (size_t)(keys * b.cols) * sizeof(float));
    kt_fill(t, k, keys * dim);
    kt_fill(t, v, keys * b.cols);
    round_to_bf16(with, k, keys * dim);
    round_to_bf16(with, v, keys * b.cols);
    if ((with & WITH_POISON) && kt_chance(t, 0.4)) {
        b.poisoned = true;
        uint8_t *bad_key = kt_input(t, MHA_U8, 1, keys, keys);
        uint8_t *bad_value = kt_input(t, MHA_U8, 1, keys, keys);
        memset(bad_key, 0, (size_t)keys);
        memset(bad_value, 0, (size_t)keys);
        if (kt_chance(t, 0.5)) poison_rows(t, k, keys, dim, bad_key);
        poison_rows(t, v, keys, b.cols, bad_value);
        b.bad_key = bad_key;
        b.bad_value = bad_value;
    }
    b.k = k;
    b.v = v;
    if (with & WITH_ROWS) {
        b.readable = keys + (kt_chance(t, 0.5) ? rng_between(&t->r, 0, 60) : 0);
        b.k_stride = kt_stride(t, dim);
        if (kt_chance(t, 0.5)) b.value_dim -= rng_between(&t->r, 0, 31);
        float *columns = kt_plain(t, (size_t)(keys * b.value_dim) * sizeof(float));
        for (int64_t j = 0; j < keys; j++)
            memcpy(columns + j * b.value_dim, v + j * b.cols, (size_t)b.value_dim * sizeof(float));
        b.v_stride = kt_stride(t, b.value_dim);
        b.k_rows = rows_of(t, k, keys, dim, b.k_stride, b.readable - keys);
        b.v_rows = rows_of(t, columns, keys, b.value_dim, b.v_stride, b.readable - keys);
    } else {
        b.k_panels = strip_panels(t, k, keys, dim, true, 0);
        b.v_panels = strip_panels(t, v, keys, b.cols, false, b.cols);
        b.v_stride = kt_stride(t, b.cols);
        if (b.poisoned) b.v_rows = rows_of(t, v, keys, b.cols, b.v_stride, 0);
    }
    return b;
}

/* The address of key 0, for values that are readable only from key `from` to `end`. */
static const void *row_terms(kernel_test *t, mha_dtype type, int64_t from, int64_t end,
                             int64_t stride, bool drops)
{
    void *x = kt_input(t, type, end - from, 1, stride);
    for (int64_t j = 0; j < end - from; j++) {
        const float value = drops && kt_chance(t, 0.2) ? -INFINITY : kt_number(t);
        if (type == MHA_F32)
            ((float *)x)[j * stride] = value;
        else
            ((uint16_t *)x)[j * stride] = half_nearest(type, (double)value);
    }
    return (const void *)((uintptr_t)x - (uintptr_t)(from * stride) * mha_dtype_size(type));
}

static const uint8_t *row_keep(kernel_test *t, int64_t from, int64_t end, int64_t stride)
{
    static const uint8_t values[] = {0, 0, 1, 255, 128, 2};
    uint8_t *x = kt_input(t, MHA_U8, end - from, 1, stride);
    for (int64_t j = 0; j < end - from; j++) x[j * stride] = RNG_PICK(&t->r, values);
    return (const uint8_t *)((uintptr_t)x - (uintptr_t)(from * stride));
}

static void make_runs(kernel_test *t, strip_case *c)
{
    mhai_tile_mask *m = &c->mask;
    int key = c->begin;
    while (key < c->end && m->runs < MHAI_MAX_RUNS) {
        int end = key + 32 * (int)rng_between(&t->r, 1, 3);
        if (m->runs == MHAI_MAX_RUNS - 1 || end >= c->end) end = c->end;
        m->run_begin[m->runs] = key;
        m->run_end[m->runs++] = end;
        if (end == c->end) return;
        key = end + 32 * (int)rng_between(&t->r, 1, 3);
        if (key >= c->end) { /* the last run ends the tile */
            m->run_end[m->runs - 1] = c->end;
            return;
        }
    }
}

/* All rows have bias, bytes and terms, or none has, like in attention. */
static void make_mask(kernel_test *t, unsigned with, strip_case *c)
{
    static const mha_dtype types[] = {MHA_F32, MHA_F16, MHA_BF16};
    mhai_tile_mask *m = &c->mask;
    const bool terms = (with & WITH_TERMS) != 0;
    const bool shaw = terms && kt_chance(t, 0.2), bias = kt_chance(t, 0.4);
    const bool relative = kt_chance(t, 0.25), keep = kt_chance(t, 0.4);
    const bool intervals = kt_chance(t, 0.6);
    m->softcap = terms && kt_chance(t, 0.2) ? 2 + 20 * (float)rng_uniform(&t->r) : 0;
    m->bias_type = RNG_PICK(&t->r, types);
    m->bias_stride = kt_chance(t, 0.7) ? 1 : rng_between(&t->r, 2, 3);
    m->keep_stride = kt_chance(t, 0.7) ? 1 : rng_between(&t->r, 2, 3);
    m->shaw_last = rng_between(&t->r, 0, 40);
    for (int r = 0; r < c->rows; r++) {
        m->begin[r] = intervals ? (int)rng_between(&t->r, c->begin, c->end) : c->begin;
        m->end[r] = intervals ? (int)rng_between(&t->r, m->begin[r], c->end) : c->end;
        if (bias) m->bias[r] = row_terms(t, m->bias_type, c->begin, c->end, m->bias_stride, true);
        if (keep) m->keep[r] = row_keep(t, c->begin, c->end, m->keep_stride);
        if (relative && m->begin[r] < m->end[r])
            m->relative[r] = row_terms(t, MHA_F32, m->begin[r], m->end[r], 1, false);
        else if (relative)
            m->relative[r] = kt_nowhere(t);
        if (shaw) m->shaw[r] = row_terms(t, MHA_F32, 0, m->shaw_last + 1, 1, false);
        m->shaw_center[r] = rng_between(&t->r, -c->end, 20);
    }
    if ((with & WITH_RUNS) && kt_chance(t, 0.3)) make_runs(t, c);
}

strip_case strip_make(kernel_test *t, unsigned with, const block_case *b, int rows)
{
    strip_case c = {.block = b, .rows = rows, .end = b->keys};
    if (kt_chance(t, 0.5)) {
        c.end = (int)rng_between(&t->r, 1, b->keys);
        c.begin = 32 * (int)rng_between(&t->r, 0, (c.end - 1) / 32);
    }
    float *q = kt_floats(t, rows * b->dim);
    float *m = kt_floats(t, rows), *l = kt_floats(t, rows);
    float *o = kt_floats(t, rows * b->cols);
    kt_fill(t, q, rows * b->dim);
    kt_fill(t, o, rows * b->cols);
    round_to_bf16(with, q, rows * b->dim);
    if (with & WITH_BF16) c.weight = 0x1p-8;
    for (int r = 0; r < rows; r++) {
        const bool none = kt_chance(t, 0.3);
        m[r] = none ? -INFINITY : 6 * rng_normal(&t->r);
        l[r] = none ? 0 : 1 + fabsf(rng_normal(&t->r));
        for (int64_t i = 0; none && i < b->cols; i++) o[r * b->cols + i] = 0;
    }
    c.q = q, c.o = o, c.m = m, c.l = l;
    if (b->poisoned) {
        uint8_t *bad = kt_input(t, MHA_U8, 1, rows, rows);
        for (int r = 0; r < rows; r++) bad[r] = kt_chance(t, 0.1);
        c.bad_query = bad;
        c.poisoned = true;
    }
    c.masked = c.poisoned || ((with & WITH_MASK) && kt_chance(t, 0.7));
    for (int r = 0; r < rows; r++) c.mask.begin[r] = c.begin, c.mask.end[r] = c.end;
    if (c.masked && (with & WITH_MASK)) make_mask(t, with, &c);
    if ((with & WITH_DROPOUT) && kt_chance(t, 0.25)) {
        c.drops = true;
        c.dropout = (mhai_dropout){.seed = {(uint32_t)rng_next(&t->r), 7},
                                   .threshold = 1u << 30,
                                   .scale = 4.0f / 3.0f,
                                   .key = 512 * rng_between(&t->r, 0, 4),
                                   .batch = 3};
        for (int r = 0; r < rows; r++) c.dropout.query[r] = (uint32_t)r + 5, c.dropout.head[r] = 2;
    }
    return c;
}

mhai_tile strip_tile(kernel_test *t, const strip_case *c, mhai_tile_mask *mask, mhai_poison *poison)
{
    const block_case *b = c->block;
    *mask = c->mask;
    if (c->poisoned) {
        *poison = (mhai_poison){.bad_query = c->bad_query,
                                .bad_key = b->bad_key,
                                .bad_value = b->bad_value,
                                .values = b->v_rows,
                                .value_stride = b->v_stride,
                                .value_dim = b->cols};
        poison->visible = kt_scratch(t, MHA_U8, 1, MHAI_MAX_ROWS * MHAI_KEY_BLOCK,
                                     MHAI_MAX_ROWS * MHAI_KEY_BLOCK);
        mask->poison = poison;
    }
    return (mhai_tile){.rows = c->rows,
                       .begin = c->begin,
                       .end = c->end,
                       .head_dim = b->dim,
                       .value_panels = b->panels,
                       .value_dim = b->value_dim,
                       .q = c->q,
                       .k = b->k_panels,
                       .v = b->v_panels,
                       .s = kt_scratch(t, MHA_F32, c->rows, MHAI_SCORE_STRIDE, MHAI_SCORE_STRIDE),
                       .mask = c->masked ? mask : NULL,
                       .dropout = c->drops ? &c->dropout : NULL};
}

/* ---- the reference ------------------------------------------------------------------------- */

static bool in_runs(const mhai_tile_mask *m, int key)
{
    for (int i = 0; i < m->runs; i++)
        if (key >= m->run_begin[i] && key < m->run_end[i]) return true;
    return m->runs == 0;
}

static int64_t clip(int64_t i, int64_t last)
{
    return i < 0 ? 0 : i > last ? last : i;
}

/* The terms of docs/numerics.md 3.1 and 3.10, with exact q and a-priori bounds of the other terms:
 *   chain  dim u sum |q k|;  shaw  u |x|;  cap  10.8 u |C tanh|, and the slope (at most 1) of
 * before; slope 1 - tanh^2: 16 u and 0.77 e / C (section 11); a term b log2 e: 0.23 u of the
 * constant, u of the sum, and u of the product without FMA. */
static score strip_score(const strip_case *c, int row, int key)
{
    const block_case *b = c->block;
    const mhai_tile_mask *m = &c->mask;
    const double cap = (double)m->softcap;
    score s = {.slope = 1};
    double size = 0;
    for (int64_t d = 0; d < b->dim; d++) {
        const double k = (double)b->k[key * b->dim + d];
        const double x = (double)c->q[row * b->dim + d] * (isfinite(k) ? k : 0);
        s.y += x;
        size += fabs(x);
    }
    s.error = (double)b->dim * (u * size + 2 * tiny);
    if (!c->masked) return s;
    if (m->shaw[row]) {
        s.y += (double)m->shaw[row][clip(m->shaw_center[row] + key, m->shaw_last)];
        s.error += u * (fabs(s.y) + s.error) + tiny;
    }
    if (cap > 0) {
        const double flat = tanh(s.y / cap);
        s.slope = 1 - flat * flat;
        s.slope_error = 16 * u + 0.77 * s.error / cap;
        s.y = cap * log2_e * flat;
        s.error = s.error * log2_e + 10.8 * u * fabs(s.y) + tiny * (1 + 3 * cap * log2_e);
    }
    double term = m->bias[row] ? kt_element(m->bias_type, m->bias[row], key * m->bias_stride) : 0;
    s.hidden = key < m->begin[row] || key >= m->end[row] || !in_runs(m, key) || term == -INFINITY ||
               (m->keep[row] && m->keep[row][key * m->keep_stride] == 0);
    if (s.hidden) return s;
    for (int i = 0; i < 2; i++) {
        s.y += term * log2_e;
        s.error +=
            1.23 * u * fabs(term) * log2_e + (term == 0 ? 0 : u * (fabs(s.y) + s.error)) + tiny;
        term = m->relative[row] ? (double)m->relative[row][key] : 0;
    }
    s.nan = c->poisoned && (c->bad_query[row] || b->bad_key[key]);
    return s;
}

/* 2^(y - m) of a score with error s.error, and its error (docs/numerics.md 3.2). By section 3.9,
 * results below 2^-126 are flushed. */
double strip_power(const score *s, double m, double *error)
{
    if (s->hidden) return *error = 0;
    const double away = s->y - m, p = exp2(away);
    const double h = expm1(ln2 * (s->error + u * (fabs(away) + s->error)) + 3.5 * u);
    *error = p * h + (away - s->error < -125.9 ? p : 0);
    return p;
}

/* p after dropout. */
double strip_dropped(const strip_case *c, int row, int key)
{
    const mhai_dropout *d = &c->dropout;
    uint32_t word[4];
    if (!c->drops) return 1;
    const uint32_t counter[4] = {(uint32_t)((d->key + key) / 4), d->query[row], d->head[row],
                                 d->batch};
    kinds_philox(counter, d->seed, word);
    return word[key % 4] < d->threshold ? 0 : (double)d->scale;
}

static const strip_row *row_of(kernel_test *t, const strip_case *c, int row)
{
    strip_row *r = kt_plain(t, sizeof *r);
    r->max = -INFINITY;
    for (int j = c->begin; j < c->end; j++) {
        const score s = r->scores[j] = strip_score(c, row, j);
        if (s.hidden) continue;
        r->any = true;
        r->nan |= s.nan;
        r->max = fmax(r->max, s.y);
        r->error = fmax(r->error, s.error);
    }
    return r;
}

const strip_row **strip_rows(kernel_test *t, const strip_case *c)
{
    const strip_row **rows = kt_plain(t, (size_t)c->rows * sizeof *rows);
    for (int r = 0; r < c->rows; r++) rows[r] = row_of(t, c, r);
    return rows;
}

/* The maximum does not round. All other values are relative to the kernel's maximum, so that its
 * error does not propagate. The sum has 16 lanes of at most 32 terms, a tree of 4 levels, and one
 * FMA (3.4). o has one chain over the keys and one FMA. */
void strip_expect(kernel_test *t, const strip_case *c, const strip_row *x, int row, double m,
                  double l, const float *o, const float *s, const float *alpha)
{
    const block_case *b = c->block;
    const double before = (double)c->m[row], l0 = (double)c->l[row];
    const double top = fmax(before, x->max);
    if (x->nan) {
        kt_same(t, l, NAN, "l of what is not finite", row, 0);
        for (int64_t i = 0; !c->drops && i < b->value_dim;
             i++) /* dropout may omit the key from o */
            kt_same(t, (double)o[i], NAN, "o of what is not finite", row, i);
        return;
    }
    kt_close(t, m, top, before - x->error >= x->max ? 0 : x->error, "m", row, 0);
    const double reference = isinf(m) ? 0 : m;
    const double a = exp2(before - reference), distance = reference - before;
    const double a_error = before == -INFINITY || distance == 0
                               ? 0
                               : a * u * (ln2 * distance + 3.5) + (distance > 125.9 ? a : 0);
    if (alpha) kt_close(t, (double)*alpha, a, a_error, "alpha", row, 0);
    double sum = 0, sum_error = 0, p[MHAI_KEY_BLOCK], p_error[MHAI_KEY_BLOCK];
    for (int j = c->begin; j < c->end; j++) {
        p[j] = strip_power(&x->scores[j], reference, &p_error[j]);
        sum += p[j];
        sum_error += p_error[j];
        const double factor = strip_dropped(c, row, j);
        const bool gap = c->masked && !in_runs(&c->mask, j);
        if (s && !gap)
            kt_close(t, (double)s[j], p[j] * factor, p_error[j] * factor + 2 * u * p[j] * factor,
                     "s", row, j);
        p[j] *= factor;
        p_error[j] = p_error[j] * factor + (c->drops ? 2 * u * p[j] : 0);
        p_error[j] += c->weight * (p[j] + p_error[j]);
        if (c->weight > 0 && p[j] < 0x1p-49) p_error[j] += p[j];
    }
    const double exact_l = l0 * a + sum;
    kt_close(t, l, exact_l,
             sum_error + 36 * u * (sum + sum_error) + l0 * (a_error + u * a) + u * exact_l + tiny,
             "l", row, 0);
    for (int64_t i = 0; i < b->value_dim; i++) {
        const double o0 = (double)c->o[row * b->cols + i];
        double exact = o0 * a, size = 0, error = fabs(o0) * (a_error + u * a) + tiny;
        bool infinite = false;
        for (int j = c->begin; j < c->end; j++) {
            const double v = (double)b->v[j * b->cols + i];
            if (!isfinite(v)) {
                infinite |= !x->scores[j].hidden;
                continue;
            }
            exact += p[j] * v;
            size += (p[j] + p_error[j]) * fabs(v);
            error += p_error[j] * fabs(v);
        }
        error += (double)(c->end - c->begin) * (u * size + 2 * tiny) + u * fabs(exact);
        if (infinite)
            kt_that(t, !isfinite(o[i]), "o of values that are not finite", row, i);
        else
            kt_close(t, (double)o[i], exact, error, "o", row, i);
    }
}

double strip_flops(const strip_case *c)
{
    return 2.0 * c->rows * (double)((c->end - c->begin) * c->block->dim);
}
