/* The source of rows: for every descriptor and block size, each row is bit-identical to
 * mha_attention_outputs.probabilities, and rows arrive once and in order. Each cell of pooled rows
 * is the largest weight of its block.
 *
 * The default is a sample; MHA_TEST_LONG=1 tests 3,000 descriptors. */
#include "support/expect.h"
#include "support/extras.h"
#include "support/machines.h"
#include "support/suite.h"

#include <multihead/heads.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SAMPLE = 150, ALL = 3000 };

static machines all;

static int make_machines(void **state)
{
    (void)state;
    all = machines_make(2);
    return 0;
}

typedef struct watch {
    const kinds_case *c;
    const mha_tensor *p; /* [B,H,T,S], from one call */
    int64_t next_b, next_row, rows;
    int64_t stop_after; /* rows until the callback fails; -1: it never fails */
} watch;

static int64_t first_query(const kinds_case *c, int64_t b)
{
    return c->desc.query_starts ? c->desc.query_starts[b] : 0;
}

static int64_t queries(const kinds_case *c, int64_t b)
{
    return c->desc.query_starts ? c->desc.query_starts[b + 1] - c->desc.query_starts[b]
                                : c->result.T;
}

static void compare_row(const watch *w, int64_t b, int64_t h, int64_t row, const float *got,
                        int64_t keys)
{
    const int64_t batch = w->c->desc.query_starts ? 0 : b;
    for (int64_t s = 0; s < w->p->shape[3]; s++) {
        const int64_t index[] = {batch, h, first_query(w->c, b) + row, s};
        const float *whole = guarded_element(w->p, index), none = 0;
        /* in ragged batches, keys beyond the sequence are not passed, and p is 0 */
        if (memcmp(s < keys ? &got[s] : &none, whole, sizeof none) != 0)
            fail_msg("b%lld h%lld t%lld s%lld: %g, not %g\n  %s", (long long)b, (long long)h,
                     (long long)row, (long long)s, s < keys ? (double)got[s] : 0., (double)*whole,
                     w->c->text);
    }
}

static mha_status take(void *user, int64_t b, int64_t row, const mha_tensor *p)
{
    watch *w = user;
    while (w->next_b < b) {
        assert_int_equal(w->next_row, queries(w->c, w->next_b));
        w->next_b++;
        w->next_row = 0;
    }
    assert_int_equal(b, w->next_b);
    assert_int_equal(row, w->next_row);
    for (int64_t h = 0; h < p->shape[0]; h++)
        for (int64_t r = 0; r < p->shape[1]; r++)
            compare_row(w, b, h, row + r, (float *)p->data + h * p->stride[0] + r * p->stride[1],
                        p->shape[2]);
    w->next_row += p->shape[1];
    w->rows += p->shape[1];
    return w->stop_after >= 0 && w->rows > w->stop_after ? MHA_ERR_CALLBACK : MHA_OK;
}

static void try_case(const kinds_case *c, rng *r, const machine *m)
{
    const extras_request request = {.heads_count = -1, .rows_count = -1, .top = 1};
    const int64_t sizes[] = {0, 1, 2, 7, 64, 100000};
    extras whole;
    extras_make(&whole, r, c, &request, 1 << EXTRA_P, LAYOUT_CONTIGUOUS);
    if (extras_run(m->context, c, m->path, &whole) != MHA_OK) fail_msg("%s", mha_error_detail());
    mha_attention_desc desc = c->desc;
    desc.path = m->path;
    watch w = {.c = c, .p = &whole.each[EXTRA_P].view, .stop_after = -1};
    if (mha_attention_visit_rows(m->context, &desc, &c->q.view, &c->k.view, RNG_PICK(r, sizes),
                                 take, &w) != MHA_OK)
        fail_msg("%s: %s\n  %s", m->name, mha_error_detail(), c->text);
    int64_t rows = 0, sequences = desc.query_starts ? desc.sequences : c->result.B;
    for (int64_t b = 0; b < sequences && c->result.H > 0; b++) rows += queries(c, b);
    if (c->result.H > 0) assert_int_equal(w.rows, rows);
    extras_free(&whole);
}

static void test_any_descriptor(void)
{
    for (int n = 0; n < rng_cases(SAMPLE, ALL); n++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)n);
        kinds_case c;
        const kinds_shape shape = kinds_some_shape(&r);
        kinds_make(&c, &r, &shape);
        try_case(&c, &r, &all.each[n % all.count]);
        kinds_free(&c);
    }
}

static void test_refusals(void)
{
    mha_context *context = all.each[0].context;
    float numbers[2 * 6 * 4] = {0};
    mha_tensor q = mha_tensor_contiguous(numbers, MHA_F32, 4, (int64_t[]){1, 2, 6, 4});
    mha_tensor k = q, odd = mha_tensor_contiguous(numbers, MHA_F32, 4, (int64_t[]){1, 2, 8, 3});
    const mha_attention_desc flags = {.struct_size = sizeof flags, .flags = 1u << 30};
    assert_int_equal(mha_attention_visit_rows(NULL, NULL, &q, &k, 0, take, NULL), MHA_ERR_NULL);
    assert_int_equal(mha_attention_visit_rows(context, NULL, NULL, &k, 0, take, NULL),
                     MHA_ERR_NULL);
    assert_int_equal(mha_attention_visit_rows(context, NULL, &q, NULL, 0, take, NULL),
                     MHA_ERR_NULL);
    assert_int_equal(mha_attention_visit_rows(context, NULL, &q, &k, 0, NULL, NULL), MHA_ERR_NULL);
    assert_int_equal(mha_attention_visit_rows(context, NULL, &q, &k, -1, take, NULL),
                     MHA_ERR_ARGUMENT);
    assert_int_equal(mha_attention_visit_rows(context, NULL, &q, &odd, 0, take, NULL),
                     MHA_ERR_SHAPE);
    assert_int_equal(mha_attention_visit_rows(context, &flags, &q, &k, 0, take, NULL),
                     MHA_ERR_UNSUPPORTED);
}

/* The callback's error ends the visit immediately, and the scratch is free again. */
static void test_stops(void)
{
    rng r = rng_make(1, 1);
    kinds_case c;
    const kinds_shape shape = {.B = 2, .H = 2, .Hk = 1, .T = 9, .S = 9, .D = 4, .Dv = 4};
    kinds_make(&c, &r, &shape);
    const extras_request request = {.heads_count = -1, .rows_count = -1, .top = 1};
    extras whole;
    extras_make(&whole, &r, &c, &request, 1 << EXTRA_P, LAYOUT_CONTIGUOUS);
    mha_context *context = all.each[0].context;
    expect_ok(extras_run(context, &c, MHA_PATH_AUTO, &whole));
    watch w = {.c = &c, .p = &whole.each[EXTRA_P].view, .stop_after = 4};
    assert_int_equal(mha_attention_visit_rows(context, &c.desc, &c.q.view, &c.k.view, 2, take, &w),
                     MHA_ERR_CALLBACK);
    assert_int_equal(w.rows, 6);
    expect_ok(mha_context_reserve(context, 1)); /* fails if scratch is in use */
    extras_free(&whole);
    kinds_free(&c);
}

/* ---- pooling --------------------------------------------------------------------------------- */

/* The largest weight of a block, or NaN if one is NaN. */
static float block_of(const mha_tensor *p, int64_t h, int64_t i, int64_t j, int64_t cell)
{
    float most = 0;
    for (int64_t t = i * cell; t < (i + 1) * cell && t < p->shape[1]; t++)
        for (int64_t s = j * cell; s < (j + 1) * cell && s < p->shape[2]; s++) {
            const float weight = *(float *)guarded_element(p, (int64_t[]){h, t, s});
            if (isnan(weight)) return weight;
            if (fabsf(weight) > fabsf(most)) most = weight;
        }
    return most;
}

/* Pools a random number of rows per call, from the first row to the last. */
static void pool_all(rng *r, mha_context *context, const mha_tensor *p, int64_t cell,
                     const uint8_t *heads, const mha_tensor *maps)
{
    for (int64_t row = 0, rows; row < p->shape[1]; row += rows) {
        rows = rng_between(r, 1, p->shape[1] - row);
        const mha_tensor part = guarded_slice(p, 1, row, rows);
        if (mha_attention_pool_rows(context, &part, row, cell, heads, maps) != MHA_OK)
            fail_msg("%s", mha_error_detail());
    }
}

static void test_pool(void)
{
    const float odd[] = {NAN, INFINITY, 0};
    for (int n = 0; n < rng_cases(SAMPLE, ALL); n++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)n);
        const int64_t H = rng_between(&r, 1, 4), T = rng_between(&r, 1, 40),
                      S = rng_between(&r, 1, 40), cell = rng_between(&r, 1, 12);
        const int64_t shape[] = {H, (T + cell - 1) / cell + rng_between(&r, 0, 1),
                                 (S + cell - 1) / cell + rng_between(&r, 0, 1)};
        guarded p = guarded_filled(&r, 3, (int64_t[]){H, T, S}, guarded_random_layout(&r, true), 1);
        guarded maps = guarded_filled(&r, 3, shape, guarded_random_layout(&r, false), 0);
        const bool all_heads = rng_chance(&r, .5);
        uint8_t heads[4];
        for (int h = 0; h < 4; h++) heads[h] = rng_chance(&r, .5);
        if (n % 3 == 0) guarded_sprinkle(&r, &p.view, .01, odd, 3);
        pool_all(&r, machines_context(2, n), &p.view, cell, all_heads ? NULL : heads, &maps.view);
        int64_t at[3] = {0};
        do {
            const float want =
                all_heads || heads[at[0]] ? block_of(&p.view, at[0], at[1], at[2], cell) : 0;
            const float got = *(float *)guarded_element(&maps.view, at);
            if (isnan(want) ? !isnan(got) : got != want)
                fail_msg("head %lld, cell %lld, %lld of %lld tokens: %g, expected %g",
                         (long long)at[0], (long long)at[1], (long long)at[2], (long long)cell,
                         (double)got, (double)want);
        } while (guarded_next(&maps.view, at));
        assert_true(guarded_gaps_intact(&maps));
        guarded_free(&p);
        guarded_free(&maps);
    }
}

static void test_pool_refusals(void)
{
    mha_context *x = all.each[0].context;
    float numbers[2 * 4 * 6] = {0}, cells[2 * 2 * 3];
    for (int i = 0; i < 12; i++) cells[i] = -1;
    const mha_tensor p = mha_tensor_contiguous(numbers, MHA_F32, 3, (int64_t[]){2, 4, 6});
    const mha_tensor maps = mha_tensor_contiguous(cells, MHA_F32, 3, (int64_t[]){2, 2, 3});
    mha_tensor same = maps, half = maps, gap = maps, heads = maps, alias = maps;
    same.data = numbers;
    half.dtype = MHA_F16;
    gap.stride[2] = 2;
    heads.shape[0] = 1;
    alias.stride[0] = 0;
    const struct {
        mha_context *context;
        const mha_tensor *p;
        int64_t row, cell;
        const mha_tensor *maps;
        mha_status status;
    } each[] = {
        {NULL, &p, 0, 2, &maps, MHA_ERR_NULL},   {x, NULL, 0, 2, &maps, MHA_ERR_NULL},
        {x, &p, 0, 2, NULL, MHA_ERR_NULL},       {x, &p, 0, 0, &maps, MHA_ERR_ARGUMENT},
        {x, &p, -1, 2, &maps, MHA_ERR_ARGUMENT}, {x, &p, INT64_MAX, 2, &maps, MHA_ERR_ARGUMENT},
        {x, &p, 1, 2, &maps, MHA_ERR_SHAPE}, /* row 4 is in the third row of cells */
        {x, &p, 0, 1, &maps, MHA_ERR_SHAPE},     {x, &p, 0, 2, &heads, MHA_ERR_SHAPE},
        {x, &p, 0, 2, &half, MHA_ERR_DTYPE},     {x, &p, 0, 2, &gap, MHA_ERR_STRIDE},
        {x, &p, 0, 2, &alias, MHA_ERR_STRIDE},   {x, &p, 0, 2, &same, MHA_ERR_OVERLAP}};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        const mha_status got = mha_attention_pool_rows(each[i].context, each[i].p, each[i].row,
                                                       each[i].cell, NULL, each[i].maps);
        if (got != each[i].status) fail_msg("%zu: %d, %s", i, (int)got, mha_error_detail());
    }
    for (int i = 0; i < 12; i++) assert_true(cells[i] == -1);
    expect_ok(mha_attention_pool_rows(x, &p, 0, INT64_MAX, NULL, &maps));
    expect_ok(mha_attention_pool_rows(x, &p, 0, 2, NULL, &maps));
}

RUN_TESTS_BETWEEN(make_machines, NULL, TEST(test_any_descriptor), TEST(test_refusals),
                  TEST(test_stops), TEST(test_pool), TEST(test_pool_refusals))
