/* Kernels of int8 arithmetic: the operations of docs/numerics.md 13.1, one by one, in f32 and in
 * integers, so everything but 2^x is compared bit by bit. */
#include "kernel_strip.h"

/* How an instruction set keeps small numbers: two of 16 bits a dword or four bytes. With bytes,
 * keys have 128 added, which the first term of a sum takes away again. */
typedef struct small_form {
    int group, offset;
} small_form;

static small_form form_of(const mhai_int8_kernels *k)
{
    return (small_form){k->group, k->group == 4 ? 128 : 0};
}

/* Number i of a dword. */
static int small_of(small_form form, int32_t dword, int64_t i, bool key)
{
    if (form.group == 2) return (int16_t)((uint32_t)dword >> (16 * i));
    const uint8_t byte = (uint8_t)((uint32_t)dword >> (8 * i));
    return key ? (int)byte - form.offset : (int8_t)byte;
}

static int32_t with_small(small_form form, int32_t dword, int64_t i, int small, bool key)
{
    const int bits = 32 / form.group;
    const uint32_t mask = form.group == 2 ? 65535 : 255;
    const uint32_t part = (uint32_t)(small + (key ? form.offset : 0)) & mask;
    return (int32_t)((uint32_t)dword | part << (bits * i));
}

/* To the nearest step, ties to even. */
static int steps_of(float x, float steps)
{
    return (int)nearbyintf(x * steps);
}

static const float least = 0x1p-80f; /* of a largest number that is not 0 */

static float exponent(kernel_test *t, int low, int high)
{
    return ldexpf(1, (int)rng_between(&t->r, low, high));
}

/* ---- packing ------------------------------------------------------------------------------- */

void check_int8_query(kernel_test *t)
{
    const int64_t n = kt_size(t, 256, 64);
    const bool wild = kt_chance(t, 0.3);
    const float scale = wild ? exponent(t, -100, 100) : 1;
    float *q = kt_floats(t, n), most = 0;
    for (int64_t i = 0; i < n; i++) {
        q[i] = kt_number(t) * scale;
        most = fabsf(q[i]) > most ? fabsf(q[i]) : most;
    }
    const bool fits = most < 0x1p93f, zero = !fits || most < least;
    const float steps = zero ? 0 : 127.0f / most;
    t->bytes = 5.0 * (double)n;
    EACH_INT8_TABLE(t, k)
    {
        const small_form form = form_of(k);
        int32_t *out = kt_scratch(t, MHA_I32, 1, k->row_stride, k->row_stride), sum = 0;
        float *unit = kt_output(t, MHA_F32, 1, 1, 1);
        int32_t *start = kt_scratch(t, MHA_I32, 1, 1, 1);
        KERNEL_CALL(t) k->int8_query(q, n, out, unit, start);
        for (int64_t i = 0; i < (n + k->group - 1) / k->group * k->group; i++) {
            const int expected = i < n && !zero ? steps_of(q[i], steps) : 0;
            kt_same(t, small_of(form, out[i / k->group], i % k->group, false), expected, "out", i,
                    0);
            sum += expected;
        }
        if (!fits)
            kt_same(t, (double)*unit, NAN, "unit", 0, 0);
        else
            kt_same(t, (double)*unit, zero ? 1 : (double)(most / 127.0f * 0x1p24f), "unit", 0, 0);
        kt_that(t, *start == -form.offset * sum, "start", *start, sum);
    }
}

/* 16 lanes by position, then lane i + i+8, + i+4, + i+2, + i+1. */
static float lanes_sum(float lanes[16])
{
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] = lanes[i] + lanes[i + half];
    return lanes[0];
}

void check_int8_keys(kernel_test *t)
{
    const int keys = (int)kt_size(t, MHAI_KEY_BLOCK, MHAI_KEY_BLOCK);
    const int64_t dim = kt_size(t, 100, 64), padded = (dim + 15) / 16 * 16;
    const int64_t whole = (keys + 63) / 64 * 64;
    const float scale = kt_chance(t, 0.2) ? exponent(t, -90, 40) : 1;
    float *k_rows = kt_plain(t, (size_t)(keys * dim) * sizeof(float));
    float *mean = kt_plain(t, (size_t)padded * sizeof(float));
    for (int64_t i = 0; i < keys * dim; i++)
        k_rows[i] = kt_number(t) * scale + (i % dim == 1 ? 3 : 0);
    if (kt_chance(t, 0.2)) k_rows[rng_between(&t->r, 0, keys * dim - 1)] = 3e38f;
    for (int64_t d = 0; d < dim; d++) {
        float lanes[16] = {0};
        for (int j = 0; j < keys; j++) lanes[j % 16] = lanes[j % 16] + k_rows[j * dim + d];
        const float all = lanes_sum(lanes) * (1.0f / (float)keys);
        mean[d] = fabsf(all) < 0x1p126f ? all : 0;
    }
    float *in = strip_panels(t, k_rows, keys, dim, true, 0);
    for (int64_t j = keys; j < (keys + 31) / 32 * 32; j++)
        for (int64_t d = 0; d < dim; d++) in[(j / 32 * dim + d) * 32 + j % 32] = 0;
    t->bytes = 5.0 * (double)(keys * dim);
    EACH_INT8_TABLE(t, k)
    {
        const small_form form = form_of(k);
        const int64_t dwords = (dim + k->group - 1) / k->group;
        uint8_t *bad = kt_scratch(t, MHA_U8, 1, keys, keys);
        memset(bad, 0, (size_t)keys);
        bool any = false, expected_any = false;
        const mhai_int8_keys pack = {.in = in,
                                     .keys = keys,
                                     .head_dim = dim,
                                     .out =
                                         kt_scratch(t, MHA_I32, 1, whole * dwords, whole * dwords),
                                     .mean = kt_output(t, MHA_F32, 1, padded, padded),
                                     .unit = kt_output(t, MHA_F32, 1, whole, whole),
                                     .bad = bad,
                                     .any_bad = &any};
        KERNEL_CALL(t) k->int8_keys(&pack);
        for (int64_t d = 0; d < padded; d++)
            kt_same(t, (double)pack.mean[d], (double)mean[d], "mean", d, 0);
        for (int64_t j = 0; j < whole; j++) {
            float most = 0;
            for (int64_t d = 0; j < keys && d < dim; d++)
                most = fmaxf(most, fabsf(k_rows[j * dim + d] - mean[d]));
            const bool out_of_range = !(most < 0x1p126f), zero = out_of_range || most < least;
            if (j < keys) kt_that(t, bad[j] == out_of_range, "bad", j, 0);
            expected_any |= out_of_range;
            kt_same(t, (double)pack.unit[j], zero ? 0 : (double)(most / 127.0f * 0x1p-24f), "unit",
                    j, 0);
            for (int64_t d = 0; j < keys && d < dim; d++) {
                const int32_t dword = pack.out[(j / 32 * dwords + d / k->group) * 32 + j % 32];
                kt_same(t, small_of(form, dword, d % k->group, true),
                        zero ? 0 : steps_of(k_rows[j * dim + d] - mean[d], 127.0f / most), "out", j,
                        d);
            }
        }
        kt_that(t, any == expected_any, "any_bad", any, 0);
    }
}

void check_int8_values(kernel_test *t)
{
    const int keys = (int)kt_size(t, MHAI_KEY_BLOCK, MHAI_KEY_BLOCK);
    const int64_t panels = t->timed ? 2 : rng_between(&t->r, 1, 3), cols = panels * 32;
    const int64_t padded = (keys + 15) / 16 * 16, whole = (keys + 63) / 64 * 64;
    const float scale = kt_chance(t, 0.2) ? exponent(t, -90, 100) : 1;
    float *v = kt_plain(t, (size_t)(whole * cols) * sizeof(float));
    for (int64_t i = 0; i < keys * cols; i++) v[i] = kt_number(t) * scale;
    float *in = strip_panels(t, v, padded, cols, false, cols);
    t->bytes = 5.0 * (double)(keys * cols);
    EACH_INT8_TABLE(t, k)
    {
        const small_form form = form_of(k);
        const int64_t block = MHAI_KEY_BLOCK / k->group * 32;
        const mhai_int8_values pack = {
            .in = in,
            .keys = keys,
            .panels = panels,
            .out = kt_scratch(t, MHA_I32, panels, whole / k->group * 32, block),
            .unit = kt_output(t, MHA_F32, 1, cols, cols)};
        KERNEL_CALL(t) k->int8_values(&pack);
        for (int64_t c = 0; c < cols; c++) {
            float most = 0;
            for (int j = 0; j < keys; j++) most = fmaxf(most, fabsf(v[j * cols + c]));
            const bool zero = most < least;
            kt_same(t, (double)pack.unit[c], zero ? 0 : (double)(most / 127.0f * 0x1p-8f), "unit",
                    c, 0);
            for (int64_t j = 0; j < whole; j++)
                kt_same(t,
                        small_of(form, pack.out[c / 32 * block + j / k->group * 32 + c % 32],
                                 j % k->group, false),
                        zero ? 0 : steps_of(v[j * cols + c], 127.0f / most), "out", j, c);
        }
    }
}

/* ---- forward ------------------------------------------------------------------------------- */

typedef struct small_case {
    strip_case strip;
    int *q, *k, *v; /* [rows][dim], [512][dim], [512][cols] */
    float *q_unit, *k_unit, *v_unit, *mean;
} small_case;

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

static small_case make_small(kernel_test *t)
{
    small_case c;
    const int rows = kt_rows(t), keys = (int)kt_size(t, MHAI_KEY_BLOCK, MHAI_KEY_BLOCK);
    block_case *b = kt_plain(t, sizeof *b);
    *b = strip_block(t, WITH_POISON, keys, kt_size(t, 100, 64),
                     t->timed ? 2 : rng_between(&t->r, 1, 3));
    c.strip = strip_make(t, WITH_RUNS | WITH_MASK, b, rows);
    const int64_t whole = MHAI_KEY_BLOCK, padded = (b->dim + 15) / 16 * 16;
    c.q = smalls(t, rows * b->dim);
    c.k = smalls(t, whole * b->dim);
    c.v = smalls(t, whole * b->cols);
    c.q_unit = units(t, rows, 0x1p15f); /* with k_unit and products of 127: scores of some units */
    c.k_unit = units(t, whole, 0x1p-31f);
    c.v_unit = units(t, b->cols, 0x1p-14f);
    c.mean = kt_floats(t, padded);
    kt_fill(t, c.mean, padded);
    for (int64_t d = b->dim; d < padded; d++) c.mean[d] = 0;
    for (int64_t j = keys; j < whole; j++) {
        c.k_unit[j] = 0;
        for (int64_t i = 0; i < b->cols; i++) c.v[j * b->cols + i] = 0;
    }
    for (int r = 0; r < rows; r++)
        if (kt_chance(t, 0.03)) c.q_unit[r] = NAN;
    return c;
}

static mhai_int8_tile small_tile(kernel_test *t, const small_case *c, const mhai_int8_kernels *k)
{
    const block_case *b = c->strip.block;
    const small_form form = form_of(k);
    const int64_t dwords = (b->dim + k->group - 1) / k->group, tall = MHAI_KEY_BLOCK / k->group;
    int32_t *q = kt_scratch(t, MHA_I32, c->strip.rows, dwords, k->row_stride);
    int32_t *keys = kt_scratch(t, MHA_I32, 1, 16 * dwords * 32, 16 * dwords * 32);
    int32_t *v = kt_scratch(t, MHA_I32, 1, b->panels * tall * 32, b->panels * tall * 32);
    int32_t *start = kt_scratch(t, MHA_I32, 1, c->strip.rows, c->strip.rows);
    memset(keys, 0, (size_t)(16 * dwords * 32) * sizeof *keys);
    memset(v, 0, (size_t)(b->panels * tall * 32) * sizeof *v);
    for (int r = 0; r < c->strip.rows; r++) {
        memset(q + r * k->row_stride, 0, (size_t)dwords * sizeof *q);
        start[r] = 0;
        for (int64_t d = 0; d < b->dim; d++) {
            int32_t *at = q + r * k->row_stride + d / k->group;
            *at = with_small(form, *at, d % k->group, c->q[r * b->dim + d], false);
            start[r] -= form.offset * c->q[r * b->dim + d];
        }
    }
    for (int64_t j = 0; j < MHAI_KEY_BLOCK; j++) {
        for (int64_t d = 0; d < dwords * k->group; d++) {
            int32_t *at = keys + (j / 32 * dwords + d / k->group) * 32 + j % 32;
            *at = with_small(form, *at, d % k->group, d < b->dim ? c->k[j * b->dim + d] : 0,
                             d < b->dim);
        }
        for (int64_t i = 0; i < b->cols; i++) {
            int32_t *at = v + (i / 32 * tall + j / k->group) * 32 + i % 32;
            *at = with_small(form, *at, j % k->group, c->v[j * b->cols + i], false);
        }
    }
    return (mhai_int8_tile){.q = q,
                            .q_unit = c->q_unit,
                            .q_start = start,
                            .k = keys,
                            .mean = c->mean,
                            .k_unit = c->k_unit,
                            .v = v,
                            .v_unit = c->v_unit};
}

/* The weight of a key at distance x below the largest score. */
static int weight_of(float distance)
{
    const float limited = fmaxf(distance, -32768.0f);
    const int x = (int)nearbyintf(limited), n = (x - (x & 2047)) / 2048, f = 16 * (x & 2047);
    const int y = ((f * (((f * 5385 + 16384) >> 15) + 10868) + 16384) >> 15) + 16320;
    return n < -9 ? 0 : (y * (1 << (n + 9)) + 16384) >> 15;
}

/* The scores of a row, -inf where they are hidden; their unit. */
static float scores_of(const small_case *c, const strip_row *x, int row, float *s)
{
    static const float constant = 1.44269504f; /* log2 e, rounded */
    const strip_case *strip = &c->strip;
    const block_case *b = strip->block;
    const mhai_tile_mask *m = &strip->mask;
    const bool terms = strip->masked && (m->bias[row] || m->relative[row]);
    const float unit = isnan(c->q_unit[row]) ? 1 : c->q_unit[row];
    for (int j = strip->begin; j < strip->end; j++) {
        int sum = 0;
        for (int64_t d = 0; d < b->dim; d++) sum += c->q[row * b->dim + d] * c->k[j * b->dim + d];
        s[j] = (float)sum * c->k_unit[j];
        if (x->scores[j].hidden) s[j] = -INFINITY;
        if (!terms || x->scores[j].hidden) continue;
        s[j] = s[j] * unit;
        if (m->bias[row]) {
            const float term = (float)kt_element(m->bias_type, m->bias[row], j * m->bias_stride);
            const float scaled = term * constant;
            s[j] = s[j] + scaled;
        }
        if (m->relative[row]) {
            const float scaled = m->relative[row][j] * constant;
            s[j] = s[j] + scaled;
        }
    }
    return terms ? 1 : unit;
}

/* What the mean of the keys adds: 16 lanes over d. */
static float mean_part(const small_case *c, int row)
{
    const int64_t dim = c->strip.block->dim;
    float lanes[16] = {0};
    for (int64_t d = 0; d < dim; d++) {
        const float term = c->strip.q[row * dim + d] * c->mean[d];
        lanes[d % 16] = lanes[d % 16] + term;
    }
    return lanes_sum(lanes);
}

/* 2^x of a rounded difference: 3.5 u, and the last factor 1 / 255 is rounded and multiplied. */
static void expect_small(kernel_test *t, const small_case *c, const strip_row *x, int row,
                         const mhai_tile *tile)
{
    const strip_case *strip = &c->strip;
    const block_case *b = strip->block;
    float s[MHAI_KEY_BLOCK], top = -INFINITY;
    const float unit = scores_of(c, x, row, s);
    const double before = (double)strip->m[row], m = (double)tile->m[row];
    for (int j = strip->begin; j < strip->end; j++) top = s[j] > top ? s[j] : top;
    if (x->nan || (x->any && isnan(c->q_unit[row]))) {
        kt_same(t, (double)tile->l[row], NAN, "l of what is not finite", row, 0);
        return;
    }
    const float product = top * unit, block = product + mean_part(c, row);
    kt_same(t, m, x->any ? fmax((double)block, before) : before, "m", row, 0);
    const double a = !x->any ? 1 : exp2(before - m),
                 part = x->any ? exp2((double)block - m) / 255 : 0;
    const double a_error =
        a == 1 || a == 0 ? 0 : a * u * (ln2 * (m - before) + 3.5) + (m - before > 125.9 ? a : 0);
    const double part_error = part * u * (ln2 * (m - (double)block) + 5.5) +
                              (x->any && m - (double)block > 125.9 ? part : 0);
    int weight[MHAI_KEY_BLOCK], sum = 0;
    for (int j = strip->begin; j < strip->end; j++) {
        const float away = s[j] - top, step = unit * 2048.0f;
        weight[j] = x->scores[j].hidden ? 0 : weight_of(away * step);
        sum += weight[j];
    }
    const double l0 = (double)strip->l[row], l = l0 * a + sum * part;
    kt_close(t, (double)tile->l[row], l,
             l0 * (a_error + u * a) + sum * (part_error + u * part) + u * l + tiny, "l", row, 0);
    for (int64_t i = 0; i < b->cols; i++) {
        const double o0 = (double)strip->o[row * b->cols + i];
        int total = 0;
        bool infinite = false;
        for (int j = strip->begin; j < strip->end; j++) {
            total += weight[j] * c->v[j * b->cols + i];
            infinite |= !isfinite(b->v[j * b->cols + i]) && !x->scores[j].hidden;
        }
        const double got = (double)tile->o[row * b->cols + i];
        const double sums = total * (double)c->v_unit[i] * 256;
        const double exact = o0 * a + sums * part;
        if (infinite)
            kt_that(t, !isfinite(got), "o of values that are not finite", row, i);
        else
            kt_close(t, got, exact,
                     fabs(o0) * (a_error + u * a) + fabs(sums) * (part_error + 2 * u * part) +
                         u * fabs(exact) + 2 * tiny,
                     "o", row, i);
    }
}

void check_int8_forward(kernel_test *t)
{
    const small_case c = make_small(t);
    const strip_case *strip = &c.strip;
    const strip_row **rows = strip_rows(t, strip);
    const int64_t cols = strip->block->cols;
    t->flops =
        strip_flops(strip) + 2.0 * strip->rows * (double)((strip->end - strip->begin) * cols);
    EACH_INT8_TABLE(t, k)
    {
        mhai_tile_mask mask;
        mhai_poison poison;
        const mhai_int8_tile small = small_tile(t, &c, k);
        mhai_tile tile = strip_tile(t, strip, &mask, &poison);
        tile.k = tile.v = NULL;
        tile.o = kt_in_out(t, MHA_F32, strip->rows, cols, cols, strip->o);
        tile.m = kt_in_out(t, MHA_F32, 1, strip->rows, strip->rows, strip->m);
        tile.l = kt_in_out(t, MHA_F32, 1, strip->rows, strip->rows, strip->l);
        KERNEL_CALL(t) k->int8_forward(&tile, &small);
        for (int r = 0; r < strip->rows; r++) expect_small(t, &c, rows[r], r, &tile);
    }
}

/* ---- linear layers --------------------------------------------------------------------------- */

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
        kt_same(t, small_of(form, small[i / form.group], i % form.group, false), expected, "small",
                i, 0);
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
                *to = with_small(form, *to, at % k->group, number, false);
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
