/* Caches with a window, and batches padded on the left. Texts of any length fit in the header's
 * number of pages, results are bit-identical to separate calls, and errors are reported. */
#include "support/expect.h"
#include "support/guarded.h"
#include "support/machines.h"
#include "support/rng.h"
#include "support/shared_context.h"
#include "support/suite.h"

#include <multihead/cache.h>

#include <math.h>
#include <string.h>

enum { D = 16, MOST = 70 };

static mha_kv_cache *make(mha_context *context, const mha_kv_cache_desc *desc)
{
    mha_kv_cache *cache;
    expect_ok(mha_kv_cache_create(context, desc, &cache));
    return cache;
}

/* One head's numbers for n positions; their values do not matter. */
static mha_tensor some_rows(int64_t batch, int64_t n)
{
    static float numbers[D];
    mha_tensor x = mha_tensor_contiguous(numbers, MHA_F32, 4, (const int64_t[]){batch, 1, n, D});
    x.stride[0] = x.stride[1] = x.stride[2] = 0;
    return x;
}

/* Texts of any length, appended in pieces of up to max_append, fit in the default number of pages, but not in one less.
 * */
static void test_pages_for_any_length(void)
{
    rng r = rng_make(rng_run_seed(), 1);
    const int64_t cases = rng_cases(60, 1000);
    for (int64_t i = 0; i < cases; i++) {
        mha_kv_cache_desc d = {.struct_size = sizeof d,
                               .batch = 1,
                               .kv_heads = 1,
                               .capacity = 3000,
                               .head_dim = D,
                               .type = MHA_I8,
                               .page_size = rng_between(&r, 1, 40),
                               .window = rng_between(&r, 1, 100),
                               .sink_keys = rng_between(&r, 0, 30),
                               .max_append = rng_between(&r, 0, MOST)};
        mha_kv_cache *cache = make(context_with(1), &d);
        mha_kv_cache_describe(cache, &d);
        assert_int_equal(d.pages,
                         (d.sink_keys + d.page_size - 1) / d.page_size +
                             (d.window - 1 + d.max_append + d.page_size - 1) / d.page_size + 1);
        int64_t least = d.pages;
        for (int64_t length = 0, n; length < d.capacity; length += n) {
            n = rng_chance(&r, 0.5) ? d.max_append : rng_between(&r, 1, d.max_append);
            if (n > d.capacity - length) n = d.capacity - length;
            const mha_tensor x = some_rows(1, n);
            expect_ok(mha_kv_cache_append(cache, &x, &x, NULL));
            if (mha_kv_cache_free_pages(cache) < least) least = mha_kv_cache_free_pages(cache);
        }
        assert_true(least <= 2);
        mha_kv_cache_destroy(cache);
    }
}

static void test_refusals(void)
{
    mha_context *context = context_with(1);
    mha_kv_cache_desc d = {.struct_size = sizeof d,
                           .batch = 2,
                           .kv_heads = 1,
                           .capacity = 1000,
                           .head_dim = D,
                           .window = 20,
                           .sink_keys = 3};
    mha_kv_cache *cache;
    expect_spoiled(d, mha_kv_cache_create(context, &d, &cache), MHA_ERR_ARGUMENT, "window -1",
                   d.window = -1);
    expect_spoiled(d, mha_kv_cache_create(context, &d, &cache), MHA_ERR_ARGUMENT, "require window",
                   d.window = 0);
    d.page_size = 8;
    cache = make(context, &d);
    mha_tensor rows = some_rows(2, 20);
    for (int i = 0; i < 5; i++) expect_ok(mha_kv_cache_append(cache, &rows, &rows, NULL));
    /* 100 positions; the last append saw positions from 80 - 19 = 61 on, so that pages from
     * position 56 on exist */
    expect_error(mha_kv_cache_truncate(cache, 0, 70), MHA_ERR_ARGUMENT,
                 "has discarded positions before 56, which the window of 20 includes at 70; "
                 "truncate it to 75 or more, or to at most 8");
    expect_error(mha_kv_cache_fork(cache, 0, 1, 74), MHA_ERR_ARGUMENT, "75 or more");
    int64_t count;
    const int32_t *pages = mha_kv_cache_pages(cache, 0, &count);
    expect_error(mha_kv_cache_assign(cache, 1, pages, 9, 72), MHA_ERR_ARGUMENT,
                 "pages[6] is discarded, but the window of 20");
    int32_t table[13];
    memcpy(table, pages, sizeof table); /* the sinks' page, six discarded pages, and others */
    table[9] = table[1];
    expect_error(mha_kv_cache_assign(cache, 1, table, 13, 100), MHA_ERR_ARGUMENT,
                 "pages[9] is discarded");
    table[0] = table[1];
    expect_error(
        mha_kv_cache_assign(cache, 1, table, 13, 100), MHA_ERR_ARGUMENT,
        "pages[0] is discarded, but the window of 20 or the sinks include it at 100, or a page "
        "before it is not discarded; only those from pages[1]");
    assert_int_equal(mha_kv_cache_lengths(cache)[0], 100);
    rows = some_rows(2, 300);
    expect_error(mha_kv_cache_append(cache, &rows, &rows, NULL), MHA_ERR_NOMEM,
                 "larger max_append");
    const mha_tensor q = some_rows(2, 4);
    float out[2 * 4 * D], scores[2 * 4 * 100];
    const mha_tensor o = mha_tensor_contiguous(out, MHA_F32, 4, (const int64_t[]){2, 1, 4, D});
    mha_tensor s = mha_tensor_contiguous(scores, MHA_F32, 4, (const int64_t[]){2, 1, 4, 100});
    mha_attention_outputs outputs = {.struct_size = sizeof outputs, .scores = &s};
    mha_attention_desc a = {.struct_size = sizeof a, .flags = MHA_ATTENTION_CAUSAL};
    unsigned char byte = 0;
    const mha_tensor flags = mha_tensor_contiguous(&byte, MHA_U8, 2, (const int64_t[]){1, 1});
#define CALL mha_kv_cache_attention(context, cache, &a, &q, &o, NULL)
    expect_error(mha_kv_cache_attention(context, cache, &a, &q, &o, &outputs), MHA_ERR_UNSUPPORTED,
                 "MHA_SCORES_BIASED");
    expect_spoiled(a, CALL, MHA_ERR_ARGUMENT, "a position and 19 left_keys",
                   a.flags |= MHA_ATTENTION_WINDOW, a.left_keys = 20);
    expect_spoiled(a, CALL, MHA_ERR_ARGUMENT, "and 3 sink_keys", a.flags |= MHA_ATTENTION_WINDOW,
                   a.sink_keys = 4);
    expect_spoiled(a, CALL, MHA_ERR_ARGUMENT, "left_keys is -1", a.flags |= MHA_ATTENTION_WINDOW,
                   a.left_keys = -1);
    expect_spoiled(a, CALL, MHA_ERR_UNSUPPORTED, "global_keys", a.flags |= MHA_ATTENTION_WINDOW,
                   a.global_keys = &flags);
    expect_spoiled(a, CALL, MHA_ERR_ARGUMENT, "left_keys", a.left_keys = 4);
    expect_spoiled(
        a, CALL, MHA_ERR_ARGUMENT,
        "is at position 74 and sees 19 earlier positions, but those before 56 were discarded",
        a.q_offset = 74);
    a.q_offset = 75;
    expect_ok(CALL);
    outputs.score_stage = MHA_SCORES_BIASED;
    expect_ok(mha_kv_cache_attention(context, cache, &a, &q, &o, &outputs));
    expect_ok(mha_kv_cache_truncate(cache, 0, 8));
    expect_ok(mha_kv_cache_fork(cache, 0, 1, 5));
    mha_kv_cache_destroy(cache);
}

/* Discarded pages are released: after branches are created and removed, every page exists once. */
static void test_discarded_in_branches(void)
{
    const mha_kv_cache_desc d = {.struct_size = sizeof d,
                                 .batch = 2,
                                 .kv_heads = 1,
                                 .capacity = 100,
                                 .head_dim = D,
                                 .page_size = 4,
                                 .pages = 5,
                                 .window = 4,
                                 .sink_keys = 1};
    mha_kv_cache *cache = make(context_with(1), &d);
    const mha_tensor rows = some_rows(2, 20);
    int64_t count;
    for (int i = 0; i < 6; i++) { /* five pages; the last two and the sinks' remain */
        expect_ok(mha_kv_cache_append(cache, &rows, &rows, (int64_t[]){20, 0}));
        const int32_t *pages = mha_kv_cache_pages(cache, 0, &count);
        for (int64_t j = 0; j < count; j++) {
            assert_in_range(pages[j], 0, 4);
            for (int64_t k = 0; k < j; k++) assert_int_not_equal(pages[j], pages[k]);
        }
        expect_ok(mha_kv_cache_append(cache, &rows, &rows, (int64_t[]){1, 0}));
        if (i < 4) expect_ok(mha_kv_cache_fork(cache, 0, 1, 20 + i % 2));
        if (i % 3 == 0) expect_ok(mha_kv_cache_assign(cache, 1, pages, 6, 21));
        expect_ok(mha_kv_cache_truncate(cache, 0, 0));
        expect_ok(mha_kv_cache_truncate(cache, 1, 0));
        assert_int_equal(mha_kv_cache_free_pages(cache), 5);
    }
    mha_kv_cache_destroy(cache);
}

/* A batch padded on the left in one cache is compared with each sequence in a separate cache. */
static void check_padded(rng *r, int64_t number)
{
    enum { B = 3 };
    static const mha_dtype types[] = {MHA_F32, MHA_F16, MHA_BF16, MHA_I8};
    mha_context *context = machines_context((int)rng_between(r, 1, 3), number);
    mha_kv_cache_desc d = {.struct_size = sizeof d,
                           .batch = B,
                           .kv_heads = 2,
                           .capacity = 3 * MOST,
                           .head_dim = D,
                           .type = RNG_PICK(r, types),
                           .page_size = rng_between(r, 0, 20)};
    const mha_attention_desc a = {.struct_size = sizeof a, .flags = MHA_ATTENTION_CAUSAL};
    mha_kv_cache *all = make(context, &d), *one[B];
    d.batch = 1;
    for (int b = 0; b < B; b++) one[b] = make(context, &d);
    for (int turn = 0; turn < 3; turn++) {
        const int64_t n = rng_between(r, 1, MOST), kv[] = {B, 2, n, D}, heads[] = {B, 4, n, D};
        guarded k = guarded_filled(r, 4, kv, guarded_random_layout(r, true), 1),
                v = guarded_filled(r, 4, kv, guarded_random_layout(r, true), 1),
                q = guarded_filled(r, 4, heads, guarded_random_layout(r, true), 1),
                o = guarded_make(r, MHA_F32, 4, heads, LAYOUT_CONTIGUOUS),
                own = guarded_make(r, MHA_F32, 4, heads, LAYOUT_CONTIGUOUS);
        int64_t firsts[B];
        for (int b = 0; b < B; b++) firsts[b] = rng_between(r, 0, n);
        expect_ok(mha_kv_cache_append_rows(all, &k.view, &v.view, firsts, NULL));
        expect_ok(mha_kv_cache_attention(context, all, &a, &q.view, &o.view, NULL));
        for (int b = 0; b < B; b++) {
            mha_tensor part[5], *whole[] = {&k.view, &v.view, &q.view, &o.view, &own.view};
            for (int i = 0; i < 5; i++) {
                const mha_tensor sequence = guarded_slice(whole[i], 0, b, 1);
                part[i] = guarded_slice(&sequence, 2, firsts[b], n - firsts[b]);
                if (i < 3 || turn > 0) continue;
                const mha_tensor padding = guarded_slice(&sequence, 2, 0, firsts[b]);
                int64_t index[MHA_MAX_DIMS] = {0};
                if (i == 3 && !guarded_is_empty(&padding)) do
                        assert_true(*(const float *)guarded_element(&padding, index) == 0);
                    while (guarded_next(&padding, index));
            }
            expect_ok(mha_kv_cache_append(one[b], &part[0], &part[1], NULL));
            expect_ok(mha_kv_cache_attention(context, one[b], &a, &part[2], &part[4], NULL));
            assert_true(guarded_same_bits(&part[3], &part[4], false));
            assert_int_equal(mha_kv_cache_lengths(all)[b], mha_kv_cache_lengths(one[b])[0]);
        }
        guarded *made[] = {&k, &v, &q, &o, &own};
        for (int i = 0; i < 5; i++) guarded_free(made[i]);
    }
    mha_kv_cache_destroy(all);
    for (int b = 0; b < B; b++) mha_kv_cache_destroy(one[b]);
}

static void test_padded_on_the_left(void)
{
    const int64_t cases = rng_cases(40, 1000);
    for (int64_t i = 0; i < cases; i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)(100 + i));
        check_padded(&r, i);
    }
    /* Sequences without rows. */
    const mha_kv_cache_desc d = {
        .struct_size = sizeof d, .batch = 2, .kv_heads = 1, .capacity = 9, .head_dim = D};
    mha_kv_cache *cache = make(context_with(1), &d);
    const mha_tensor x = some_rows(2, 4);
    expect_error(mha_kv_cache_append_rows(cache, &x, &x, (int64_t[]){0, 5}, NULL), MHA_ERR_ARGUMENT,
                 "firsts[1] is 5, expected 0..4");
    expect_error(mha_kv_cache_append_rows(cache, &x, &x, (int64_t[]){-1, 0}, NULL),
                 MHA_ERR_ARGUMENT, "firsts[0] is -1, expected 0..4");
    expect_error(mha_kv_cache_append_rows(cache, &x, &x, (int64_t[]){INT64_MIN, 0}, NULL),
                 MHA_ERR_ARGUMENT, "firsts[0] is -9223372036854775808, expected 0..4");
    expect_error(mha_kv_cache_append_rows(cache, &x, &x, (int64_t[]){0, 3}, (int64_t[]){4, 2}),
                 MHA_ERR_ARGUMENT, "counts[1] is 2, expected 0..1");
    mha_kv_cache_destroy(cache);
    /* Padding begins before position 0. This must not overflow for the longest window. */
    mha_kv_cache_desc longest = d;
    longest.window = INT64_MAX;
    cache = make(context_with(1), &longest);
    expect_ok(mha_kv_cache_append_rows(cache, &x, &x, (int64_t[]){0, 3}, NULL));
    mha_kv_cache_destroy(cache);
}

RUN_TESTS(TEST(test_pages_for_any_length), TEST(test_refusals), TEST(test_discarded_in_branches),
          TEST(test_padded_on_the_left))
