/* Random programs on a cache - append, decode, attend, truncate, fork, reset, and calls that must
 * fail - beside a model that keeps every position in plain arrays of double. After each step the
 * lengths and the pages are those of the model; attention has the bits of mha_attention_forward() on
 * contiguous f32 tensors of the numbers that the model says are stored. */
#include "reference/half_reference.h"
#include "support/machines.h"
#include "support/rng.h"
#include "support/suite.h"

#include <multihead/cache.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_B = 4, MOST_GROUP = 8, MOST_STEP = 40 };

typedef struct program {
    rng r;
    mha_context *context;
    mha_kv_cache *cache;
    mha_kv_cache_desc desc;
    int64_t group;
    /* the model */
    double *k, *v; /* [B][capacity][Hk][D], [B][capacity][Hk][Dv], as stored */
    int64_t lengths[MOST_B];
} program;

static void *zeros(int64_t count, size_t size)
{
    void *memory = calloc((size_t)(count > 0 ? count : 1), size);
    assert_non_null(memory);
    return memory;
}

/* ---- what is stored ------------------------------------------------------------------------- */

/* x becomes what the type makes of it, from the formula in cache.h. */
static void stored(mha_dtype type, double *x, int64_t n)
{
    double most = 0;
    bool finite = true;
    for (int64_t i = 0; i < n; i++) {
        if (type == MHA_F16 || type == MHA_BF16) x[i] = half_value(type, half_nearest(type, x[i]));
        finite = finite && isfinite(x[i]);
        most = fmax(most, fabs(x[i]));
    }
    if (type != MHA_I8) return;
    int power;
    const double part = frexp((double)((float)most / 127.0f), &power); /* part in [1/2, 1) */
    const double s = ldexp(ceil(ldexp(part, 17)), power - 17);
    for (int64_t i = 0; i < n; i++)
        x[i] = !finite                 ? NAN
               : most < ldexp(1, -100) ? 0
                                       : rint((double)((float)x[i] / (float)s)) * s;
}

static double *row_of(const program *p, double *x, int64_t b, int64_t position, int64_t width)
{
    return x + (b * p->desc.capacity + position) * p->desc.kv_heads * width;
}

/* n new rows of every head of every sequence as a tensor, and in the model behind what it holds if
 * counts[b] says so. */
static mha_tensor new_rows(program *p, int64_t n, const int64_t *counts, double *model,
                           int64_t width)
{
    static const mha_dtype types[] = {MHA_F32, MHA_F16, MHA_BF16};
    const int64_t B = p->desc.batch, Hk = p->desc.kv_heads, gap = rng_between(&p->r, 0, 3);
    const mha_dtype type = rng_chance(&p->r, 0.6) ? MHA_F32 : RNG_PICK(&p->r, types);
    const bool spoilt = rng_chance(&p->r, 0.03);
    const int64_t shape[] = {B, n, Hk, width + gap};
    mha_tensor x =
        mha_tensor_contiguous(zeros(B * n * Hk * (width + gap), sizeof(float)), type, 4, shape);
    double *row = zeros(width, sizeof *row);
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < n; t++)
            for (int64_t h = 0; h < Hk; h++) {
                const int64_t at = ((b * n + t) * Hk + h) * (width + gap);
                for (int64_t i = 0; i < width; i++) {
                    float value = rng_normal(&p->r) * (i == 0 ? 20 : 1);
                    if (spoilt && rng_chance(&p->r, 0.01)) value = INFINITY;
                    if (type == MHA_F32)
                        ((float *)x.data)[at + i] = value;
                    else
                        ((uint16_t *)x.data)[at + i] = half_nearest(type, (double)value);
                    row[i] = type == MHA_F32 ? (double)value
                                             : half_value(type, half_nearest(type, (double)value));
                }
                if (t >= counts[b]) continue;
                stored(p->desc.type, row, width);
                memcpy(row_of(p, model, b, p->lengths[b] + t, width) + h * width, row,
                       (size_t)width * sizeof *row);
            }
    free(row);
    x.shape[1] = Hk, x.shape[2] = n, x.shape[3] = width;
    const int64_t heads = x.stride[2];
    x.stride[2] = x.stride[1], x.stride[1] = heads;
    return x;
}

/* ---- attention ------------------------------------------------------------------------------ */

static mha_tensor whole_of(const program *p, double *model, int64_t longest, int64_t width)
{
    const int64_t B = p->desc.batch, Hk = p->desc.kv_heads;
    float *x = zeros(B * Hk * longest * width, sizeof *x);
    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < Hk; h++)
            for (int64_t s = 0; s < p->lengths[b]; s++)
                for (int64_t i = 0; i < width; i++)
                    x[((b * Hk + h) * longest + s) * width + i] =
                        (float)(row_of(p, model, b, s, width) + h * width)[i];
    return mha_tensor_contiguous(x, MHA_F32, 4, (const int64_t[]){B, Hk, longest, width});
}

/* What the program at hand computes with, for a message. */
static char place[160];

static void expect_same(const float *got, const float *expected, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (memcmp(got + i, expected + i, sizeof *got) != 0 &&
            !(isnan(got[i]) && isnan(expected[i])))
            fail_msg("%s: element %lld of %lld is %.9g, expected %.9g", place, (long long)i,
                     (long long)n, (double)got[i], (double)expected[i]);
}

/* T queries of every sequence, where they stand by themselves or anywhere. */
static void attend(program *p, int64_t T)
{
    const int64_t B = p->desc.batch, H = p->desc.kv_heads * p->group, D = p->desc.head_dim,
                  Dv = p->desc.value_head_dim;
    mha_attention_desc d = {.struct_size = sizeof d};
    int64_t offsets[MOST_B], longest = 0;
    float slopes[2 * MOST_GROUP];
    const mha_tensor slope = mha_tensor_contiguous(slopes, MHA_F32, 1, (const int64_t[]){H});
    for (int64_t i = 0; i < H; i++) slopes[i] = fabsf(rng_normal(&p->r));
    for (int64_t b = 0; b < B; b++) {
        longest = p->lengths[b] > longest ? p->lengths[b] : longest;
        offsets[b] = p->lengths[b] - T;
    }
    if (rng_chance(&p->r, 0.8)) d.flags |= MHA_ATTENTION_CAUSAL;
    if (rng_chance(&p->r, 0.2)) {
        d.flags |= MHA_ATTENTION_WINDOW;
        d.left_keys = rng_between(&p->r, 0, longest + 1);
        d.right_keys = d.flags & MHA_ATTENTION_CAUSAL ? 0 : rng_between(&p->r, 0, 9);
        d.sink_keys = rng_between(&p->r, 0, 4);
    }
    if (rng_chance(&p->r, 0.1)) d.alibi_slopes = &slope;
    if (rng_chance(&p->r, 0.1)) d.path = MHA_PATH_PLAIN;
    if (!d.path && !d.alibi_slopes && rng_chance(&p->r, 0.1)) d.compute = MHA_COMPUTE_BF16;
    if (!d.path && !d.alibi_slopes && !d.compute && rng_chance(&p->r, 0.1))
        d.compute = MHA_COMPUTE_INT8;
    float *q = zeros(B * H * T * D, sizeof *q), *o[2], *lse[2];
    for (int64_t i = 0; i < B * H * T * D; i++) q[i] = rng_normal(&p->r);
    const mha_tensor qt = mha_tensor_contiguous(q, MHA_F32, 4, (const int64_t[]){B, H, T, D});
    const mha_tensor k = whole_of(p, p->k, longest, D), v = whole_of(p, p->v, longest, Dv);
    const bool reads = d.flags || d.alibi_slopes, anywhere = rng_chance(&p->r, 0.2);
    if (anywhere)
        for (int64_t b = 0; b < B; b++) offsets[b] = rng_between(&p->r, -T, longest + 3);
    for (int i = 0; i < 2; i++) {
        mha_attention_desc own = d;
        o[i] = zeros(B * H * T * Dv, sizeof(float));
        lse[i] = zeros(B * H * T, sizeof(float));
        const mha_tensor ot =
            mha_tensor_contiguous(o[i], MHA_F32, 4, (const int64_t[]){B, H, T, Dv});
        const mha_tensor lt = mha_tensor_contiguous(lse[i], MHA_F32, 3, (const int64_t[]){B, H, T});
        const mha_attention_outputs outputs = {.struct_size = sizeof outputs, .lse = &lt};
        if (reads && (i == 1 || anywhere)) own.q_offsets = offsets;
        if (i == 1) own.key_lengths = p->lengths;
        const mha_status status =
            i == 0 ? mha_kv_cache_attention(p->context, p->cache, &own, &qt, &ot, &outputs)
                   : mha_attention_forward(p->context, &own, &qt, &k, &v, &ot, &outputs);
        if (status != MHA_OK) fail_msg("attention %d: %s", i, mha_error_detail());
    }
    snprintf(place, sizeof place,
             "%lld queries, group %lld, head size %lld %lld, %s, pages of %lld, flags %x, path %d, "
             "compute %d, lengths to %lld",
             (long long)T, (long long)p->group, (long long)D, (long long)Dv,
             mha_dtype_name(p->desc.type), (long long)p->desc.page_size, (unsigned)d.flags,
             (int)d.path, (int)d.compute, (long long)longest);
    expect_same(o[0], o[1], B * H * T * Dv);
    expect_same(lse[0], lse[1], B * H * T);
    for (int i = 0; i < 2; i++) free(o[i]), free(lse[i]);
    free(q), free(k.data), free(v.data);
}

/* ---- steps ---------------------------------------------------------------------------------- */

static int64_t pages_for(const program *p, int64_t length)
{
    return (length + p->desc.page_size - 1) / p->desc.page_size;
}

/* How many sequences hold a page; those that append to it, if counts says so. */
static int64_t holders(const program *p, int32_t page, const int64_t *counts)
{
    int64_t holders = 0;
    for (int64_t b = 0; b < p->desc.batch; b++) {
        int64_t count;
        const int32_t *held = mha_kv_cache_pages(p->cache, b, &count);
        for (int64_t i = 0; i < count; i++)
            holders += held[i] == page &&
                       (!counts || (counts[b] > 0 && i == p->lengths[b] / p->desc.page_size));
    }
    return holders;
}

/* New pages, and for each page that several hold and write to a copy for all of them but the last. */
static int64_t pages_needed(const program *p, const int64_t *counts)
{
    int64_t needed = 0;
    for (int32_t page = 0; page < p->desc.pages; page++) {
        const int64_t all = holders(p, page, NULL), writers = holders(p, page, counts);
        needed += writers < all ? writers : all > 0 ? all - 1 : 0;
    }
    for (int64_t b = 0; b < p->desc.batch; b++)
        needed += pages_for(p, p->lengths[b] + counts[b]) - pages_for(p, p->lengths[b]);
    return needed;
}

static bool append(program *p, int64_t n, bool all)
{
    int64_t counts[MOST_B];
    bool fits = true;
    for (int64_t b = 0; b < p->desc.batch; b++) {
        counts[b] = all ? n : rng_between(&p->r, 0, n);
        const int64_t room = p->desc.capacity - p->lengths[b];
        if (!all && counts[b] > room) counts[b] = room;
        fits = fits && counts[b] <= room;
    }
    const mha_status expected = !fits ? MHA_ERR_SIZE
                                : pages_needed(p, counts) > mha_kv_cache_free_pages(p->cache)
                                    ? MHA_ERR_NOMEM
                                    : MHA_OK;
    int64_t kept[MOST_B] = {0};
    const mha_tensor k = new_rows(p, n, expected == MHA_OK ? counts : kept, p->k, p->desc.head_dim);
    const mha_tensor v =
        new_rows(p, n, expected == MHA_OK ? counts : kept, p->v, p->desc.value_head_dim);
    const mha_status status = mha_kv_cache_append(p->cache, &k, &v, all ? NULL : counts);
    if (status != expected)
        fail_msg("append: status %d, expected %d: %s", (int)status, (int)expected,
                 mha_error_detail());
    for (int64_t b = 0; status == MHA_OK && b < p->desc.batch; b++) p->lengths[b] += counts[b];
    free(k.data), free(v.data);
    return status == MHA_OK;
}

static void step_append(program *p)
{
    append(p, rng_between(&p->r, 0, MOST_STEP), false);
}

static void step_chunk(program *p)
{
    const int64_t n = rng_between(&p->r, 1, MOST_STEP);
    if (append(p, n, true)) attend(p, n);
}

static void step_long(program *p)
{
    append(p, rng_between(&p->r, 1, p->desc.capacity), rng_chance(&p->r, 0.5));
}

static void step_decode(program *p)
{
    if (append(p, 1, true)) attend(p, 1);
}

static void step_attend(program *p)
{
    attend(p, rng_between(&p->r, 1, rng_chance(&p->r, 0.8) ? 5 : MOST_STEP));
}

static void step_truncate(program *p)
{
    const int64_t b = rng_between(&p->r, 0, p->desc.batch - 1);
    const int64_t length = rng_between(&p->r, 0, p->lengths[b]);
    assert_int_equal(mha_kv_cache_truncate(p->cache, b, length), MHA_OK);
    p->lengths[b] = length;
}

/* Sequence `to` of the model. */
static void become(program *p, int64_t from, int64_t to, int64_t length)
{
    const int64_t kv[] = {p->desc.head_dim, p->desc.value_head_dim};
    for (int i = 0; i < 2; i++) {
        double *model = i == 0 ? p->k : p->v;
        memmove(row_of(p, model, to, 0, kv[i]), row_of(p, model, from, 0, kv[i]),
                (size_t)(length * p->desc.kv_heads * kv[i]) * sizeof *model);
    }
    p->lengths[to] = length;
}

static void step_fork(program *p)
{
    const int64_t from = rng_between(&p->r, 0, p->desc.batch - 1),
                  to = rng_between(&p->r, 0, p->desc.batch - 1);
    const int64_t length =
        rng_chance(&p->r, 0.5) ? p->lengths[from] : rng_between(&p->r, 0, p->lengths[from]);
    if (from == to) return;
    assert_int_equal(mha_kv_cache_fork(p->cache, from, to, length), MHA_OK);
    become(p, from, to, length);
}

/* The pages of another sequence, or its own, by their numbers. */
static void step_assign(program *p)
{
    const int64_t from = rng_between(&p->r, 0, p->desc.batch - 1),
                  to = rng_between(&p->r, 0, p->desc.batch - 1);
    const int64_t length = rng_between(&p->r, 0, p->lengths[from]);
    int64_t held;
    const int32_t *pages = mha_kv_cache_pages(p->cache, from, &held);
    assert_int_equal(mha_kv_cache_assign(p->cache, to, pages, pages_for(p, length), length),
                     MHA_OK);
    become(p, from, to, length);
}

static void step_reset(program *p)
{
    mha_kv_cache_reset(p->cache);
    memset(p->lengths, 0, sizeof p->lengths);
}

static void wrong_pages(program *p, int64_t b)
{
    const int64_t size = p->desc.page_size, capacity = p->desc.capacity;
    int64_t held;
    const int32_t *own = mha_kv_cache_pages(p->cache, b, &held);
    int32_t pages[] = {held > 0 ? own[0] : 0, 0};
    pages[1] = pages[0];
    assert_int_equal(mha_kv_cache_assign(p->cache, b, pages, 1, 0), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_kv_cache_assign(p->cache, b, pages, 0, -1), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_kv_cache_assign(p->cache, b, pages, 2, capacity + 1), MHA_ERR_SIZE);
    assert_int_equal(mha_kv_cache_assign(p->cache, -1, pages, 1, 1), MHA_ERR_ARGUMENT);
    if (size < capacity) /* a page twice, or one that nobody holds */
        assert_int_equal(mha_kv_cache_assign(p->cache, b, pages, 2, size + 1), MHA_ERR_ARGUMENT);
    for (int32_t page = 0; page < p->desc.pages; page++)
        if (holders(p, page, NULL) == 0)
            assert_int_equal(mha_kv_cache_assign(p->cache, b, &page, 1, 1), MHA_ERR_ARGUMENT);
    pages[0] = (int32_t)p->desc.pages;
    assert_int_equal(mha_kv_cache_assign(p->cache, b, pages, 1, 1), MHA_ERR_ARGUMENT);
    pages[0] = -1;
    assert_int_equal(mha_kv_cache_assign(p->cache, b, pages, 1, 1), MHA_ERR_ARGUMENT);
}

/* Refused, and nothing changes. */
static void step_wrong(program *p)
{
    const int64_t B = p->desc.batch, b = rng_between(&p->r, 0, B - 1);
    const int64_t too_long = p->lengths[b] + 1;
    assert_int_equal(mha_kv_cache_truncate(p->cache, b, too_long), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_kv_cache_truncate(p->cache, b, -1), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_kv_cache_truncate(p->cache, B, 0), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_kv_cache_fork(p->cache, b, b, 0), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_kv_cache_fork(p->cache, b, B, 0), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_kv_cache_fork(p->cache, -1, b, 0), MHA_ERR_ARGUMENT);
    wrong_pages(p, b);
    if (B > 1)
        assert_int_equal(mha_kv_cache_fork(p->cache, b, (b + 1) % B, too_long), MHA_ERR_ARGUMENT);
}

typedef struct step {
    void (*run)(program *p);
    int weight;
} step;

/* A new operation is a row here. */
static const step steps[] = {{step_append, 4}, {step_chunk, 4},    {step_long, 2}, {step_decode, 6},
                             {step_attend, 3}, {step_truncate, 3}, {step_fork, 4}, {step_assign, 2},
                             {step_reset, 1},  {step_wrong, 1}};
enum { STEPS = sizeof steps / sizeof *steps };

static void take_step(program *p)
{
    int all = 0;
    for (int i = 0; i < STEPS; i++) all += steps[i].weight;
    int64_t at = rng_between(&p->r, 0, all - 1);
    int i = 0;
    for (; at >= steps[i].weight; i++) at -= steps[i].weight;
    steps[i].run(p);
}

/* ---- programs ------------------------------------------------------------------------------- */

static void expect_state(const program *p)
{
    int64_t held = 0;
    for (int64_t b = 0; b < p->desc.batch; b++) {
        int64_t count;
        mha_kv_cache_pages(p->cache, b, &count);
        assert_int_equal(mha_kv_cache_lengths(p->cache)[b], p->lengths[b]);
        assert_int_equal(count, pages_for(p, p->lengths[b]));
    }
    for (int32_t page = 0; page < p->desc.pages; page++) held += holders(p, page, NULL) > 0;
    assert_int_equal(held + mha_kv_cache_free_pages(p->cache), p->desc.pages);
}

static program program_make(uint64_t number)
{
    static const int64_t widths[] = {1, 8, 16, 24, 32, 33, 64, 128};
    static const int64_t sizes[] = {1, 2, 5, 15, 16, 17, 32, 48, 64, 70};
    static const mha_dtype types[] = {MHA_F32, MHA_F16, MHA_BF16, MHA_I8};
    program p = {.r = rng_make(rng_run_seed(), number)};
    p.context = machines_context((int)rng_between(&p.r, 1, 4), (int64_t)number);
    p.group = rng_between(&p.r, 1, MOST_GROUP);
    p.desc = (mha_kv_cache_desc){.struct_size = sizeof p.desc,
                                 .batch = rng_between(&p.r, 1, MOST_B),
                                 .kv_heads = rng_between(&p.r, 1, 2),
                                 .capacity = rng_chance(&p.r, 0.2) ? rng_between(&p.r, 500, 1300)
                                                                   : rng_between(&p.r, 1, 150),
                                 .head_dim = RNG_PICK(&p.r, widths),
                                 .value_head_dim = RNG_PICK(&p.r, widths),
                                 .type = RNG_PICK(&p.r, types)};
    if (rng_chance(&p.r, 0.8)) p.desc.page_size = RNG_PICK(&p.r, sizes);
    if (rng_chance(&p.r, 0.3)) p.desc.pages = rng_between(&p.r, 1, 40);
    mha_kv_cache_sizes counted = {.struct_size = sizeof counted};
    assert_int_equal(mha_kv_cache_count(&p.desc, &counted), MHA_OK);
    assert_int_equal(mha_kv_cache_create(p.context, &p.desc, &p.cache), MHA_OK);
    assert_true(mha_kv_cache_bytes(p.cache) == (size_t)counted.total_bytes);
    mha_kv_cache_describe(p.cache, &p.desc);
    const int64_t rows = p.desc.batch * p.desc.capacity * p.desc.kv_heads;
    p.k = zeros(rows * p.desc.head_dim, sizeof *p.k);
    p.v = zeros(rows * p.desc.value_head_dim, sizeof *p.v);
    return p;
}

static void test_random_programs(void **unused)
{
    (void)unused;
    int first, end;
    rng_range(60, 5000, &first, &end);
    for (int i = first; i < end; i++) {
        program p = program_make((uint64_t)i);
        const int count = p.desc.capacity > 200 ? 12 : 30;
        for (int n = 0; n < count; n++) {
            take_step(&p);
            expect_state(&p);
        }
        mha_kv_cache_destroy(p.cache);
        free(p.k), free(p.v);
    }
}

/* A million appends and rollbacks take no memory, and the last result is as the first. */
static void test_no_growth(void **unused)
{
    (void)unused;
    const mha_kv_cache_desc desc = {.struct_size = sizeof desc,
                                    .batch = 2,
                                    .kv_heads = 1,
                                    .capacity = 40,
                                    .head_dim = 2,
                                    .page_size = 3,
                                    .pages = 16};
    mha_context *context = machines_context(1, 0);
    mha_kv_cache *cache;
    float x[4] = {1, 2, 3, 4};
    const mha_tensor t = mha_tensor_contiguous(x, MHA_F32, 4, (const int64_t[]){2, 1, 1, 2});
    assert_int_equal(mha_kv_cache_create(context, &desc, &cache), MHA_OK);
    rng r = rng_make(rng_run_seed(), 1);
    const int64_t steps_left = rng_cases(100000, 1000000);
    for (int64_t i = 0; i < steps_left; i++) {
        const int64_t b = i % 2, length = mha_kv_cache_lengths(cache)[b];
        if (mha_kv_cache_append(cache, &t, &t, NULL) == MHA_OK && i % 7 != 0) continue;
        if (i % 3 == 0) assert_int_equal(mha_kv_cache_fork(cache, b, 1 - b, length / 2), MHA_OK);
        assert_int_equal(mha_kv_cache_truncate(cache, b, rng_between(&r, 0, length)), MHA_OK);
    }
    for (int64_t b = 0; b < 2; b++) assert_int_equal(mha_kv_cache_truncate(cache, b, 0), MHA_OK);
    assert_int_equal(mha_kv_cache_free_pages(cache), 16);
    mha_kv_cache_destroy(cache);
}

RUN_TESTS(TEST(test_random_programs), TEST(test_no_growth))
