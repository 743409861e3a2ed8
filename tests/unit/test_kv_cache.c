/* The key/value cache: prefill and decoding in pieces of any size are bit-identical to one call
 * with the whole sequence, lengths and capacity are correct, and errors change nothing. */
#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/guarded.h"
#include "support/machines.h"
#include "support/shared_context.h"
#include "support/suite.h"

#include <multihead/cache.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_B = 3, MOST_H = 8 };

/* ---- problems ------------------------------------------------------------------------------- */

typedef struct story {
    int64_t B, H, Hk, N, D, Dv; /* N: positions of the longest sequence */
    guarded q, k, v, slopes, table;
    int64_t lengths[MOST_B];
    mha_attention_desc desc; /* for whole sequences; points into the story */
} story;

static guarded normal_tensor(rng *r, int ndim, const int64_t *shape, unsigned layout)
{
    return guarded_filled(r, ndim, shape, layout, 1);
}

enum { LENGTHS = 1, WINDOW = 2, ALIBI = 4, SHAW = 8, SOFTCAP = 16, PLAIN = 32, KINDS = 64 };

/* The story must not be copied afterwards, because desc points into it. */
static void story_make(story *x, rng *r, int64_t N, unsigned kind)
{
    static const int64_t widths[] = {8, 16, 24, 33};
    *x = (story){.B = rng_between(r, 1, MOST_B), .Hk = rng_between(r, 1, 2), .N = N};
    x->H = x->Hk * rng_between(r, 1, 4);
    x->D = RNG_PICK(r, widths);
    x->Dv = RNG_PICK(r, widths);
    x->desc = (mha_attention_desc){.struct_size = sizeof x->desc, .flags = MHA_ATTENTION_CAUSAL};
    for (int64_t b = 0; b < x->B; b++)
        x->lengths[b] = kind & LENGTHS && b > 0 ? rng_between(r, 0, N) : N;
    x->desc.key_lengths = x->lengths;
    x->q = normal_tensor(r, 4, (int64_t[]){x->B, x->H, N, x->D}, guarded_random_layout(r, true));
    x->k = normal_tensor(r, 4, (int64_t[]){x->B, x->Hk, N, x->D}, guarded_random_layout(r, true));
    x->v = normal_tensor(r, 4, (int64_t[]){x->B, x->Hk, N, x->Dv}, guarded_random_layout(r, true));
    x->slopes = normal_tensor(r, 1, (int64_t[]){x->H}, LAYOUT_CONTIGUOUS);
    x->table = normal_tensor(r, 2, (int64_t[]){7, x->D}, LAYOUT_CONTIGUOUS);
    if (kind & WINDOW) {
        x->desc.flags |= MHA_ATTENTION_WINDOW;
        x->desc.left_keys = rng_between(r, 0, N);
        x->desc.sink_keys = rng_between(r, 0, 4);
    }
    if (kind & ALIBI) x->desc.alibi_slopes = &x->slopes.view;
    if (kind & SHAW) x->desc.shaw_keys = &x->table.view;
    if (kind & SOFTCAP) x->desc.softcap = 5;
    if (kind & PLAIN) x->desc.path = MHA_PATH_PLAIN;
}

static void story_free(story *x)
{
    guarded *all[] = {&x->q, &x->k, &x->v, &x->slopes, &x->table};
    for (int i = 0; i < 5; i++) guarded_free(all[i]);
}

static mha_kv_cache *cache_of(mha_context *context, const story *x, int64_t capacity)
{
    const mha_kv_cache_desc desc = {.struct_size = sizeof desc,
                                    .batch = x->B,
                                    .kv_heads = x->Hk,
                                    .capacity = capacity,
                                    .head_dim = x->D,
                                    .value_head_dim = x->Dv};
    mha_kv_cache *cache;
    expect_ok(mha_kv_cache_create(context, &desc, &cache));
    return cache;
}

typedef struct rows {
    guarded o, lse;
} rows;

static rows rows_make(const story *x, rng *r)
{
    return (rows){guarded_make(r, MHA_F32, 4, (int64_t[]){x->B, x->H, x->N, x->Dv}, LAYOUT_SWAP),
                  guarded_make(r, MHA_F32, 3, (int64_t[]){x->B, x->H, x->N}, LAYOUT_CONTIGUOUS)};
}

static void rows_free(rows *y)
{
    guarded_free(&y->o);
    guarded_free(&y->lse);
}

static void run_whole(mha_context *context, const story *x, rows *y)
{
    const mha_attention_outputs outputs = {.struct_size = sizeof outputs, .lse = &y->lse.view};
    expect_ok(mha_attention_forward(context, &x->desc, &x->q.view, &x->k.view, &x->v.view,
                                    &y->o.view, &outputs));
}

/* ---- pieces --------------------------------------------------------------------------------- */

/* Appends positions from .. from+count-1 of every sequence that has them, and attends with their
 * queries. */
static void run_piece(mha_context *context, mha_kv_cache *cache, const story *x, rows *y,
                      int64_t from, int64_t count)
{
    mha_tensor q = guarded_slice(&x->q.view, 2, from, count);
    mha_tensor k = guarded_slice(&x->k.view, 2, from, count);
    mha_tensor v = guarded_slice(&x->v.view, 2, from, count);
    mha_tensor o = guarded_slice(&y->o.view, 2, from, count);
    mha_tensor lse = guarded_slice(&y->lse.view, 2, from, count);
    const mha_attention_outputs outputs = {.struct_size = sizeof outputs, .lse = &lse};
    mha_attention_desc d = x->desc;
    int64_t counts[MOST_B], before[MOST_B];
    bool even = true;
    for (int64_t b = 0; b < x->B; b++) {
        int64_t left = x->lengths[b] - from;
        counts[b] = left < 0 ? 0 : left < count ? left : count;
        before[b] = mha_kv_cache_lengths(cache)[b];
        even = even && counts[b] == count;
    }
    d.key_lengths = NULL;
    if (!even) d.q_offsets = before; /* otherwise the default: the last `count` positions */
    expect_ok(mha_kv_cache_append(cache, &k, &v, even ? NULL : counts));
    for (int64_t b = 0; b < x->B; b++)
        assert_int_equal(mha_kv_cache_lengths(cache)[b], before[b] + counts[b]);
    mha_status status = mha_kv_cache_attention(context, cache, &d, &q, &o, &outputs);
    if (status != MHA_OK) print_error("%s\n", mha_error_detail());
    expect_ok(status);
}

/* Compares the rows at valid positions of their sequence. */
static void assert_same_rows(const story *x, const rows *a, const rows *b)
{
    for (int64_t i = 0; i < x->B; i++) {
        mha_tensor part[4] = {a->o.view, b->o.view, a->lse.view, b->lse.view};
        for (int j = 0; j < 4; j++) {
            part[j] = guarded_slice(&part[j], 0, i, 1);
            part[j] = guarded_slice(&part[j], 2, 0, x->lengths[i]);
        }
        assert_true(guarded_same_bits(&part[0], &part[1], false));
        assert_true(guarded_same_bits(&part[2], &part[3], false));
    }
    assert_true(guarded_gaps_intact(&b->o) && guarded_gaps_intact(&b->lse));
}

/* A prefill, then pieces of at most `longest` tokens. */
static void decode(mha_context *context, const story *x, rng *r, int64_t prefill, int64_t longest,
                   rows *y)
{
    mha_kv_cache *cache = cache_of(context, x, x->N + rng_between(r, 0, 3));
    for (int64_t from = 0, count = prefill; from < x->N; from += count) {
        if (from > 0 || prefill == 0) count = rng_between(r, 1, longest);
        if (count > x->N - from) count = x->N - from;
        run_piece(context, cache, x, y, from, count);
    }
    mha_kv_cache_destroy(cache);
}

static void test_pieces_equal_whole(void)
{
    machines all = machines_make(2);
    int count = rng_long_run() ? 600 : rng_whole_sample() ? 48 : 16;
    for (int i = 0; i < count; i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)i);
        int64_t N = rng_between(&r, 1, i % 4 == 0 ? 600 : 60);
        story x;
        story_make(&x, &r, N, (unsigned)rng_between(&r, 0, KINDS - 1));
        const machine *m = &all.each[rng_between(&r, 0, all.count - 1)];
        rows whole = rows_make(&x, &r), pieces = rows_make(&x, &r);
        run_whole(m->context, &x, &whole);
        decode(m->context, &x, &r, rng_between(&r, 0, N), i % 2 ? 1 : 40, &pieces);
        assert_same_rows(&x, &whole, &pieces);
        rows_free(&whole);
        rows_free(&pieces);
        story_free(&x);
    }
}

/* Decodes one token at a time across two key blocks of 512, on each instruction set, for each kind
 * of score. */
static void test_decode_crosses_blocks(void)
{
    static const unsigned kinds[] = {0, LENGTHS | WINDOW, LENGTHS | ALIBI, SHAW | SOFTCAP};
    machines all = machines_make(1);
    for (int m = 0; m < all.count; m++)
        for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
            if (!rng_takes(m * 4 + (int64_t)i, 2)) continue;
            rng r = rng_make(rng_run_seed(), 1000 + i);
            story x;
            bool plain = all.each[m].path == MHA_PATH_PLAIN;
            story_make(&x, &r, 1040, kinds[i] | (plain ? PLAIN : 0));
            rows whole = rows_make(&x, &r), steps = rows_make(&x, &r);
            run_whole(all.each[m].context, &x, &whole);
            decode(all.each[m].context, &x, &r, 500, 1, &steps);
            assert_same_rows(&x, &whole, &steps);
            rows_free(&whole);
            rows_free(&steps);
            story_free(&x);
        }
}

/* A rejected draft, and the contents before a reset, have no effect. */
static void test_truncate_and_reset(void)
{
    rng r = rng_make(rng_run_seed(), 2000);
    story x, draft;
    story_make(&x, &r, 40, 0);
    draft = x;
    draft.k = normal_tensor(&r, 4, (int64_t[]){x.B, x.Hk, x.N, x.D}, LAYOUT_CONTIGUOUS);
    draft.v = normal_tensor(&r, 4, (int64_t[]){x.B, x.Hk, x.N, x.Dv}, LAYOUT_CONTIGUOUS);
    *(float *)draft.k.view.data = NAN;
    rows whole = rows_make(&x, &r), other = rows_make(&x, &r), steps = rows_make(&x, &r);
    mha_context *context = machines_context(2, 0);
    run_whole(context, &x, &whole);
    mha_kv_cache *cache = cache_of(context, &x, 40);
    run_piece(context, cache, &draft, &other, 0, 40);
    mha_kv_cache_reset(cache);
    run_piece(context, cache, &x, &steps, 0, 17);
    run_piece(context, cache, &draft, &other, 17, 9);
    for (int64_t b = 0; b < x.B; b++) expect_ok(mha_kv_cache_truncate(cache, b, 17));
    for (int64_t t = 17; t < 40; t++) run_piece(context, cache, &x, &steps, t, 1);
    assert_same_rows(&x, &whole, &steps);
    assert_int_equal(mha_kv_cache_truncate(cache, x.B, 0), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_kv_cache_truncate(cache, -1, 0), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_kv_cache_truncate(cache, 0, 41), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_kv_cache_truncate(cache, 0, -1), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_kv_cache_truncate(NULL, 0, 0), MHA_ERR_NULL);
    assert_int_equal(mha_kv_cache_lengths(cache)[0], 40);
    mha_kv_cache_destroy(cache);
    rows_free(&whole);
    rows_free(&other);
    rows_free(&steps);
    guarded_free(&draft.k);
    guarded_free(&draft.v);
    story_free(&x);
}

/* Cross-attention: keys are appended once, and any number of unordered queries read them. */
static void test_cross_attention(void)
{
    for (int i = 0; i < 20; i++) {
        rng r = rng_make(rng_run_seed(), 3000 + (uint64_t)i);
        story x;
        story_make(&x, &r, rng_between(&r, 1, 80), LENGTHS | (i % 2 ? SOFTCAP : 0));
        mha_context *context = machines_context(2, i);
        x.desc.flags = 0;
        rows whole = rows_make(&x, &r), cached = rows_make(&x, &r);
        run_whole(context, &x, &whole);
        mha_kv_cache *cache = cache_of(context, &x, x.N);
        expect_ok(mha_kv_cache_append(cache, &x.k.view, &x.v.view, x.lengths));
        mha_attention_desc d = x.desc;
        d.key_lengths = NULL;
        bool defaults = !(i % 2); /* no other option is set, so desc may be NULL */
        for (int64_t t = 0; t < x.N; t++) {
            mha_tensor q = guarded_slice(&x.q.view, 2, t, 1);
            mha_tensor o = guarded_slice(&cached.o.view, 2, t, 1);
            expect_ok(mha_kv_cache_attention(context, cache, defaults ? NULL : &d, &q, &o, NULL));
        }
        assert_true(guarded_same_bits(&whole.o.view, &cached.o.view, false));
        mha_kv_cache_destroy(cache);
        rows_free(&whole);
        rows_free(&cached);
        story_free(&x);
    }
}

/* Without causal, features that use positions still treat the queries as the last ones. */
static void test_positions(void)
{
    static const unsigned kinds[] = {WINDOW, ALIBI, SHAW, SHAW};
    enum { N = 30, T = 3, VALUES_ALONE = 3 };
    machines all = machines_make(1);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        rng r = rng_make(rng_run_seed(), 5000 + i);
        story x;
        story_make(&x, &r, N, kinds[i]);
        mha_context *context = all.each[i % (size_t)all.count].context;
        rows whole = rows_make(&x, &r), cached = rows_make(&x, &r);
        mha_kv_cache *cache = cache_of(context, &x, N);
        mha_tensor q = guarded_slice(&x.q.view, 2, N - T, T);
        mha_tensor want = guarded_slice(&whole.o.view, 2, 0, T);
        mha_tensor got = guarded_slice(&cached.o.view, 2, 0, T);
        expect_ok(mha_kv_cache_append(cache, &x.k.view, &x.v.view, NULL));
        x.desc.flags &= ~(uint32_t)MHA_ATTENTION_CAUSAL;
        x.desc.key_lengths = NULL;
        if (kinds[i] == WINDOW) x.desc.left_keys = 4;
        guarded values = normal_tensor(&r, 2, (int64_t[]){7, x.Dv}, LAYOUT_CONTIGUOUS);
        if (i == VALUES_ALONE) x.desc.shaw_keys = NULL, x.desc.shaw_values = &values.view;
        expect_ok(mha_kv_cache_attention(context, cache, &x.desc, &q, &got, NULL));
        x.desc.q_offset = N - T;
        expect_ok(mha_attention_forward(context, &x.desc, &q, &x.k.view, &x.v.view, &want, NULL));
        assert_true(guarded_same_bits(&want, &got, false));
        guarded_free(&values);
        mha_kv_cache_destroy(cache);
        rows_free(&whole);
        rows_free(&cached);
        story_free(&x);
    }
}

/* Probabilities have as many columns as the longest sequence has keys, and an empty cache gives
 * 0. */
static void test_outputs_and_empty(void)
{
    enum { B = 2, H = 4, HK = 2, D = 4, N = 6 };
    mha_context *context = context_with(0);
    const mha_kv_cache_desc desc = {
        .struct_size = sizeof desc, .batch = B, .kv_heads = HK, .capacity = 9, .head_dim = D};
    mha_kv_cache *cache;
    expect_ok(mha_kv_cache_create(context, &desc, &cache));
    mha_kv_cache_desc told;
    mha_kv_cache_describe(cache, &told);
    assert_true(told.value_head_dim == D && told.struct_size == sizeof told && told.capacity == 9);
    assert_true(told.page_size == 9 && told.pages == B && told.type == MHA_F32);
    mha_kv_cache_sizes sizes = {.struct_size = sizeof sizes};
    expect_ok(mha_kv_cache_count(&desc, &sizes));
    assert_int_equal(sizes.page_bytes, HK * 16 * (D + D) * 4); /* runs of 16 */
    assert_int_equal(mha_kv_cache_bytes(cache), sizes.total_bytes);
    assert_int_equal(sizes.total_bytes, B * sizes.page_bytes + sizes.table_bytes);
    float x[B * HK * N * D] = {0}, o[B * H * D], p[B * H * N];
    mha_tensor kv = mha_tensor_contiguous(x, MHA_F32, 4, (int64_t[]){B, HK, N, D});
    mha_tensor q = mha_tensor_contiguous(x, MHA_F32, 4, (int64_t[]){B, H, 1, D});
    mha_tensor ot = mha_tensor_contiguous(o, MHA_F32, 4, (int64_t[]){B, H, 1, D});
    mha_tensor pt = mha_tensor_contiguous(p, MHA_F32, 4, (int64_t[]){B, H, 1, N});
    const mha_attention_desc causal = {.struct_size = sizeof causal, .flags = MHA_ATTENTION_CAUSAL};
    const mha_attention_outputs outputs = {.struct_size = sizeof outputs, .probabilities = &pt};
    memset(o, 0x5A, sizeof o);
    expect_ok(mha_kv_cache_attention(context, cache, &causal, &q, &ot, NULL));
    for (int i = 0; i < B * H * D; i++) assert_true(o[i] == 0);
    expect_ok(mha_kv_cache_append(cache, &kv, &kv, (int64_t[]){N, 3}));
    expect_ok(mha_kv_cache_attention(context, cache, &causal, &q, &ot, &outputs));
    for (int b = 0; b < B; b++) /* all keys are equal */
        for (int s = 0; s < N; s++) {
            float want = b == 0 ? 1.0f / N : s < 3 ? 1.0f / 3 : 0;
            assert_true(fabsf(p[b * H * N + s] - want) < 1e-6f);
        }
    mha_kv_cache_destroy(cache);
    mha_kv_cache_destroy(NULL);
}

/* Two sequences of up to 40 positions, and three heads. Keys and values are in runs of 16. Runs and
 * powers of channels are rounded up to 64 bytes each. Scales of 16 positions take 64 bytes. A page
 * of 24 has two runs. Tables have two lengths and the pages for each sequence, and two numbers for
 * each page; their sum is rounded up to 64. */
static void test_sizes_by_hand(void)
{
    static const struct {
        mha_kv_cache_desc desc;
        mha_kv_cache_sizes sizes;
    } by_hand[] = {/* 16 * 5 floats and 16 * 7 floats; 2 * (16 + 8) + 4 * 8 bytes of tables */
                   {{.head_dim = 5, .value_head_dim = 7, .page_size = 24},
                    {.pages = 4,
                     .page_bytes = 3 * 2 * (320 + 448),
                     .table_bytes = 128,
                     .total_bytes = 4 * 4608 + 128}},
                   {{.head_dim = 5, .value_head_dim = 7, .page_size = 24, .type = MHA_I8},
                    {.pages = 4,
                     .page_bytes = 3 * 2 * (128 + 128 + 2 * 64),
                     .scale_bytes = 4 * 3 * 2 * 2 * 64,
                     .table_bytes = 128,
                     .total_bytes = 4 * 2304 + 128}},
                   {{.head_dim = 70,
                     .value_head_dim = 7,
                     .page_size = 32,
                     .type = MHA_I8,
                     .key_scales = MHA_KV_SCALES_CHANNEL},
                    {.pages = 4,
                     .page_bytes = 3 * 2 * (1152 + 128 + 128 + 64),
                     .scale_bytes = 4 * 3 * 2 * (128 + 64),
                     .table_bytes = 128,
                     .total_bytes = 4 * 8832 + 128}},
                   /* A window adds one empty page. 2 * (16 + 8) + 9 * 8 */
                   {{.head_dim = 5,
                     .value_head_dim = 7,
                     .page_size = 24,
                     .type = MHA_F16,
                     .pages = 9,
                     .window = 20},
                    {.pages = 9,
                     .page_bytes = 3 * 2 * (192 + 256),
                     .table_bytes = 128,
                     .total_bytes = 10 * 2688 + 128}},
                   /* One page of 40 for each sequence, of three runs. 2 * (16 + 4) + 2 * 8 */
                   {{.head_dim = 64, .type = MHA_I8},
                    {.pages = 2,
                     .page_bytes = 3 * 3 * 2 * (1024 + 64),
                     .scale_bytes = 2 * 3 * 3 * 2 * 64,
                     .table_bytes = 64,
                     .total_bytes = 2 * 19584 + 64}}};
    for (size_t i = 0; i < sizeof by_hand / sizeof *by_hand; i++) {
        mha_kv_cache_desc desc = by_hand[i].desc;
        mha_kv_cache_sizes expected = by_hand[i].sizes, sizes = {.struct_size = sizeof sizes};
        desc.struct_size = sizeof desc, expected.struct_size = sizeof sizes;
        desc.batch = 2, desc.kv_heads = 3, desc.capacity = 40;
        expect_ok(mha_kv_cache_count(&desc, &sizes));
        assert_int_equal(sizes.pages, expected.pages);
        assert_int_equal(sizes.page_bytes, expected.page_bytes);
        assert_int_equal(sizes.scale_bytes, expected.scale_bytes);
        assert_int_equal(sizes.table_bytes, expected.table_bytes);
        assert_int_equal(sizes.total_bytes, expected.total_bytes);
    }
}

/* The diagonal of the newest query is its own key, also without a causal mask. */
static void test_diagonal(void)
{
    enum { B = 2, H = 2, D = 4, N = 6, T = 2 };
    rng r = rng_make(rng_run_seed(), 5000);
    mha_context *context = context_with(0);
    mha_kv_cache *cache;
    const mha_kv_cache_desc desc = {
        .struct_size = sizeof desc, .batch = B, .kv_heads = H, .capacity = N, .head_dim = D};
    expect_ok(mha_kv_cache_create(context, &desc, &cache));
    float x[B * H * N * D], o[B * H * T * D], p[B][H][T][N], diagonal[B][H][T], before[B][H][T][1];
    for (int i = 0; i < B * H * N * D; i++) x[i] = rng_normal(&r);
    const int64_t lengths[B] = {N, 4}, back[] = {-1};
    const mha_tensor kv = mha_tensor_contiguous(x, MHA_F32, 4, (int64_t[]){B, H, N, D});
    const mha_tensor q = mha_tensor_contiguous(x, MHA_F32, 4, (int64_t[]){B, H, T, D});
    const mha_tensor ot = mha_tensor_contiguous(o, MHA_F32, 4, q.shape);
    const mha_tensor pt = mha_tensor_contiguous(p, MHA_F32, 4, (int64_t[]){B, H, T, N});
    const mha_tensor dt = mha_tensor_contiguous(diagonal, MHA_F32, 3, q.shape);
    const mha_tensor bt = mha_tensor_contiguous(before, MHA_F32, 4, (int64_t[]){B, H, T, 1});
    const mha_attention_outputs outputs = {.struct_size = sizeof outputs,
                                           .probabilities = &pt,
                                           .diagonal = &dt,
                                           .offset_mass = &bt,
                                           .offsets = back,
                                           .offsets_count = 1};
    expect_ok(mha_kv_cache_append(cache, &kv, &kv, lengths));
    expect_ok(mha_kv_cache_attention(context, cache, NULL, &q, &ot, &outputs));
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++)
            for (int t = 0; t < T; t++) {
                int64_t own = lengths[b] - T + t;
                assert_true(p[b][h][t][own] > 0 && diagonal[b][h][t] == p[b][h][t][own]);
                assert_true(before[b][h][t][0] == p[b][h][t][own - 1]);
            }
    mha_kv_cache_destroy(cache);
}

/* ---- errors --------------------------------------------------------------------------------- */

/* A full cache is unchanged: its contents still give the same bits. */
static void test_overflow(void)
{
    rng r = rng_make(rng_run_seed(), 4000);
    mha_context *context = machines_context(1, 0);
    story x;
    do {
        story_make(&x, &r, 12, 0);
        if (x.B == 2) break;
        story_free(&x);
    } while (true);
    mha_kv_cache *cache = cache_of(context, &x, 12);
    mha_tensor k = guarded_slice(&x.k.view, 2, 0, 8), v = guarded_slice(&x.v.view, 2, 0, 8);
    expect_ok(mha_kv_cache_append(cache, &k, &v, (int64_t[]){3, 8}));
    rows before = rows_make(&x, &r), after = rows_make(&x, &r);
    mha_attention_desc d = x.desc;
    d.key_lengths = NULL;
    expect_ok(mha_kv_cache_attention(context, cache, &d, &x.q.view, &before.o.view, NULL));
    /* The first sequence has room, the second does not. */
    assert_int_equal(mha_kv_cache_append(cache, &k, &v, (int64_t[]){2, 5}), MHA_ERR_SIZE);
    assert_string_equal(mha_error_detail(),
                        "cache: sequence 1 holds 8 of 12 positions, 5 more do not fit; truncate or "
                        "reset it, or make a larger cache");
    assert_int_equal(mha_kv_cache_append(cache, &k, &v, NULL), MHA_ERR_SIZE);
    assert_int_equal(mha_kv_cache_append(cache, &k, &v, (int64_t[]){2, 9}), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_kv_cache_append(cache, &k, &v, (int64_t[]){-1, 2}), MHA_ERR_ARGUMENT);
    mha_tensor longer = guarded_slice(&x.v.view, 2, 0, 7);
    assert_int_equal(mha_kv_cache_append(cache, &k, &longer, NULL), MHA_ERR_SHAPE);
    assert_int_equal(mha_kv_cache_lengths(cache)[0], 3);
    assert_int_equal(mha_kv_cache_lengths(cache)[1], 8);
    expect_ok(mha_kv_cache_attention(context, cache, &d, &x.q.view, &after.o.view, NULL));
    assert_true(guarded_same_bits(&before.o.view, &after.o.view, false));
    expect_ok(mha_kv_cache_append(cache, &k, &v, (int64_t[]){8, 4})); /* just fits */
    mha_kv_cache_destroy(cache);
    rows_free(&before);
    rows_free(&after);
    story_free(&x);
}

static void test_create_errors(void)
{
    mha_context *context = context_with(0);
    mha_kv_cache *cache = NULL;
    mha_kv_cache_desc d = {
        .struct_size = sizeof d, .batch = 1, .kv_heads = 1, .capacity = 1, .head_dim = 1};
#define REFUSE(status, part, ...) \
    expect_spoiled(d, mha_kv_cache_create(context, &d, &cache), status, part, __VA_ARGS__)
    expect_error(mha_kv_cache_create(NULL, &d, &cache), MHA_ERR_NULL, "context");
    expect_error(mha_kv_cache_create(context, NULL, &cache), MHA_ERR_NULL, "desc");
    expect_error(mha_kv_cache_create(context, &d, NULL), MHA_ERR_NULL, "cache");
    REFUSE(MHA_ERR_ARGUMENT, "struct_size is 0", d.struct_size = 0);
    REFUSE(MHA_ERR_UNSUPPORTED, "reserved is 1", d.reserved = 1);
    REFUSE(MHA_ERR_ARGUMENT, "batch is 0", d.batch = 0);
    REFUSE(MHA_ERR_ARGUMENT, "kv_heads is -1", d.kv_heads = -1);
    REFUSE(MHA_ERR_ARGUMENT, "capacity is 0", d.capacity = 0);
    REFUSE(MHA_ERR_ARGUMENT, "head_dim is -9223372036854775808", d.head_dim = INT64_MIN);
    REFUSE(MHA_ERR_ARGUMENT, "value_head_dim is -5", d.value_head_dim = -5);
    REFUSE(MHA_ERR_SIZE, "9223372036854775807 positions", d.capacity = INT64_MAX);
    REFUSE(MHA_ERR_SIZE, "1 sequences of 4611686018427387904 heads", d.kv_heads = INT64_C(1) << 62);
    REFUSE(MHA_ERR_SIZE, "9223372036854775807 + 9223372036854775807 numbers",
           d.head_dim = INT64_MAX);
    REFUSE(MHA_ERR_SIZE, "1 + 4611686018427387904 numbers", d.value_head_dim = INT64_C(1) << 62);
    REFUSE(MHA_ERR_SIZE, "2147483648 sequences of up to 1 pages", d.batch = INT64_C(1) << 31);
    REFUSE(MHA_ERR_SIZE, "2147483646 in total: increase page_size", d.capacity = INT32_MAX,
           d.page_size = 1);
    REFUSE(MHA_ERR_SIZE, "pages is 2147483647", d.pages = INT32_MAX);
    REFUSE(MHA_ERR_ARGUMENT, "pages is -1", d.pages = -1);
#undef REFUSE
    assert_null(cache);
}

/* The arguments of both calls; each case makes one invalid. */
typedef struct arguments {
    mha_context *context;
    mha_kv_cache *cache;
    mha_attention_desc desc;
    mha_tensor k, v, q, o;
    const mha_tensor *kp, *vp, *qp, *op;
} arguments;

static void test_call_errors(void)
{
    enum { B = 2, H = 4, HK = 2, D = 4, T = 2 };
    float x[B * H * T * D] = {0}, o[B * H * T * D];
    const int64_t n[3] = {1, 1, 1};
    const mha_kv_cache_desc desc = {
        .struct_size = sizeof desc, .batch = B, .kv_heads = HK, .capacity = 8, .head_dim = D};
    arguments a = {.context = context_with(0),
                   .desc = {.struct_size = sizeof a.desc, .flags = MHA_ATTENTION_CAUSAL},
                   .k = mha_tensor_contiguous(x, MHA_F32, 4, (int64_t[]){B, HK, T, D}),
                   .q = mha_tensor_contiguous(x, MHA_F32, 4, (int64_t[]){B, H, T, D})};
    expect_ok(mha_kv_cache_create(a.context, &desc, &a.cache));
    a.v = a.k, a.o = a.q, a.o.data = o;
    a.kp = &a.k, a.vp = &a.v, a.qp = &a.q, a.op = &a.o;
#define REFUSE(status, part, ...) \
    expect_spoiled(a, mha_kv_cache_append(a.cache, a.kp, a.vp, NULL), status, part, __VA_ARGS__)
    REFUSE(MHA_ERR_NULL, "cache is NULL", a.cache = NULL);
    REFUSE(MHA_ERR_NULL, "k: is NULL", a.kp = NULL);
    REFUSE(MHA_ERR_NULL, "v: is NULL", a.vp = NULL);
    REFUSE(MHA_ERR_DTYPE, "k: dtype is f64", a.k.dtype = MHA_F64);
    REFUSE(MHA_ERR_STRIDE, "v: the last axis has stride 2", a.v.stride[3] = 2);
    REFUSE(MHA_ERR_SHAPE, "k: dim 1 is 1, expected 2", a.k.shape[1] = a.v.shape[1] = 1);
#undef REFUSE
    assert_int_equal(mha_kv_cache_lengths(a.cache)[0], 0);
    expect_ok(mha_kv_cache_append(a.cache, &a.k, &a.v, NULL));
    memset(o, 0x5A, sizeof o);
#define ATTEND() mha_kv_cache_attention(a.context, a.cache, &a.desc, a.qp, a.op, NULL)
#define REFUSE(status, part, ...) expect_spoiled(a, ATTEND(), status, part, __VA_ARGS__)
    REFUSE(MHA_ERR_NULL, "context is NULL", a.context = NULL);
    REFUSE(MHA_ERR_NULL, "cache is NULL", a.cache = NULL);
    REFUSE(MHA_ERR_NULL, "q: is NULL", a.qp = NULL);
    REFUSE(MHA_ERR_NULL, "o: is NULL", a.op = NULL);
    REFUSE(MHA_ERR_ARGUMENT, "key_lengths are the cache's own", a.desc.key_lengths = n);
    REFUSE(MHA_ERR_UNSUPPORTED, "ragged batches", a.desc.query_starts = n);
    REFUSE(MHA_ERR_SHAPE, "q: dim 0 is 1, expected 2", a.q.shape[0] = 1);
    REFUSE(MHA_ERR_SHAPE, "q has 3 heads, k has 2", a.q.shape[1] = 3);
    REFUSE(MHA_ERR_OVERLAP, "o overlaps q", a.op = &a.q);
    for (size_t i = 0; i < sizeof o; i++) assert_true(((unsigned char *)o)[i] == 0x5A);
    expect_ok(ATTEND());
#undef REFUSE
#undef ATTEND
    mha_kv_cache_destroy(a.cache);
}

static mha_status made_and_used(mha_context *context, failing_alloc *memory, void *user)
{
    enum { B = 2, D = 4 };
    float x[B * D] = {0}, o[B * D];
    mha_tensor t = mha_tensor_contiguous(x, MHA_F32, 4, (int64_t[]){B, 1, 1, D}), ot = t;
    const mha_kv_cache_desc small = {
        .struct_size = sizeof small, .batch = B, .kv_heads = 1, .capacity = 3, .head_dim = D};
    mha_kv_cache *cache = NULL;
    (void)user;
    ot.data = o;
    memset(o, 0x5A, sizeof o);
    memory->fail_after = true;
    failing_from_here(memory);
    mha_status status = mha_kv_cache_create(context, &small, &cache);
    assert_true(!cache == (status != MHA_OK));
    if (status == MHA_OK) {
        const int64_t calls = memory->calls;
        expect_ok(mha_kv_cache_append(cache, &t, &t, NULL));
        assert_int_equal(memory->calls, calls); /* appending allocates no memory */
        status = mha_kv_cache_attention(context, cache, NULL, &t, &ot, NULL);
        assert_true(status == MHA_OK || ((unsigned char *)o)[0] == 0x5A);
    }
    mha_kv_cache_destroy(cache);
    return status;
}

static void failed_allocations_are_reported(void)
{
    assert_true(failing_each(made_and_used, NULL) >= 4); /* three of the cache, one of scratch */
}

RUN_TESTS(TEST(test_pieces_equal_whole), TEST(test_decode_crosses_blocks),
          TEST(test_truncate_and_reset), TEST(test_cross_attention), TEST(test_positions),
          TEST(test_outputs_and_empty), TEST(test_sizes_by_hand), TEST(test_diagonal),
          TEST(test_overflow), TEST(test_create_errors), TEST(test_call_errors),
          TEST(failed_allocations_are_reported))
