/* Each cell of block patterns compared with its definition; properties of random parts; misuse. */
#include "reference/kinds_reference.h"
#include "support/expect.h"
#include "support/guarded.h"
#include "support/shared_context.h"
#include "support/suite.h"

#include <multihead/attention.h>
#include <multihead/patterns.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 48 };

static uint8_t cell(const mha_tensor *x, int64_t h, int64_t r, int64_t c)
{
    int64_t whole[3] = {h, r, c};
    return *(uint8_t *)guarded_element(x, x->ndim == 3 ? whole : whole + 1);
}

static guarded blocks_make(rng *r, int64_t heads, int64_t rows, int64_t cols)
{
    unsigned layout = guarded_random_layout(r, false);
    if (heads == 0) return guarded_make(r, MHA_U8, 2, (int64_t[]){rows, cols}, layout);
    return guarded_make(r, MHA_U8, 3, (int64_t[]){heads, rows, cols}, layout);
}

/* ---- the papers' definitions ----------------------------------------------------------------- */

/* Whether c is in {j : j <= i} and in one of the sets of Child et al., sections 4.2 and 4.3. */
static bool child_strided(int64_t i, int64_t c, int64_t l)
{
    for (int64_t j = i - l; j <= i; j++) /* A(1) = {t, t+1, ..., i}, t = max(0, i - l) */
        if (j >= 0 && j == c) return true;
    for (int64_t j = i; j >= 0; j -= l) /* A(2) = {j : (i - j) mod l = 0} */
        if (j == c) return true;
    return false;
}

static bool child_fixed(int64_t i, int64_t c, int64_t l, int64_t summary)
{
    if (c > i) return false;
    if (i / l == c / l) return true;          /* A(1) = {j : floor(j/l) = floor(i/l)} */
    for (int64_t t = l - summary; t < l; t++) /* A(2) = {j : j mod l in {t, ..., l}} */
        if (c % l == t) return true;
    return false;
}

static bool longformer(int64_t i, int64_t c, int64_t side, int64_t global)
{
    return llabs(i - c) <= side || i < global || c < global;
}

typedef struct drawn {
    mha_pattern_desc desc;
    guarded blocks;
    int64_t rows, cols, kept;
} drawn;

static drawn fill(rng *r, int64_t rows, int64_t cols, mha_pattern_desc desc)
{
    drawn x = {.desc = desc, .rows = rows, .cols = cols, .blocks = blocks_make(r, 0, rows, cols)};
    x.desc.struct_size = sizeof x.desc;
    if (mha_pattern_fill(&x.desc, &x.blocks.view, &x.kept) != MHA_OK)
        fail_msg("%s", mha_error_detail());
    assert_true(guarded_gaps_intact(&x.blocks));
    return x;
}

#define EXPECT_EACH(x, is_kept)                                           \
    do {                                                                  \
        int64_t count_ = 0;                                               \
        for (int64_t i = 0; i < (x).rows; i++)                            \
            for (int64_t c = 0; c < (x).cols; c++) {                      \
                int want_ = (is_kept);                                    \
                assert_int_equal(cell(&(x).blocks.view, 0, i, c), want_); \
                count_ += want_;                                          \
            }                                                             \
        assert_int_equal((x).kept, count_);                               \
        guarded_free(&(x).blocks);                                        \
    } while (0)

static void published_patterns(void)
{
    rng r = rng_make(rng_run_seed(), 1);
    for (int n = 0; n < 200; n++) {
        int64_t rows = rng_between(&r, 0, MOST), l = rng_between(&r, 1, 12);
        int64_t cols = rng_chance(&r, 0.5) ? rows : rng_between(&r, 0, MOST);
        int64_t summary = rng_between(&r, 0, l), side = rng_between(&r, 0, 5);
        int64_t global = rng_between(&r, 0, 3);
        drawn x = fill(&r, rows, cols,
                       (mha_pattern_desc){.flags = MHA_PATTERN_CAUSAL | MHA_PATTERN_LOCAL,
                                          .stride = l,
                                          .left_blocks = l});
        EXPECT_EACH(x, child_strided(i, c, l));
        x = fill(
            &r, rows, cols,
            (mha_pattern_desc){.flags = MHA_PATTERN_CAUSAL, .fixed = l, .fixed_summary = summary});
        EXPECT_EACH(x, child_fixed(i, c, l, summary));
        x = fill(&r, rows, cols,
                 (mha_pattern_desc){.flags = MHA_PATTERN_LOCAL,
                                    .left_blocks = side,
                                    .right_blocks = side,
                                    .global_rows = global,
                                    .global_cols = global});
        EXPECT_EACH(x, longformer(i, c, side, global));
        x = fill(&r, rows, cols, (mha_pattern_desc){0});
        EXPECT_EACH(x, false);
        x = fill(&r, rows, cols, (mha_pattern_desc){.flags = MHA_PATTERN_LOCAL});
        EXPECT_EACH(x, i == c);
        x = fill(&r, rows, cols, (mha_pattern_desc){.stride = l});
        EXPECT_EACH(x, llabs(i - c) % l == 0);
        x = fill(&r, rows, cols, (mha_pattern_desc){.stride = 1, .flags = MHA_PATTERN_CAUSAL});
        EXPECT_EACH(x, c <= i);
    }
}

/* Rows of a longer pattern: an offset shifts them, even before the first column. */
static void offsets(void)
{
    enum { FAR = 60 };
    rng r = rng_make(rng_run_seed(), 2);
    for (int n = 0; n < 100; n++) {
        int64_t offset = rng_between(&r, -20, 20), l = rng_between(&r, 1, 9);
        mha_pattern_desc d = {.flags = MHA_PATTERN_LOCAL | (n % 2 ? MHA_PATTERN_CAUSAL : 0),
                              .offset = offset,
                              .left_blocks = rng_between(&r, 0, 6),
                              .global_cols = n % 3,
                              .stride = n % 5 ? 0 : l,
                              .fixed = n % 4 ? l : 0};
        d.fixed_summary = d.fixed ? rng_between(&r, 0, l) : 0;
        drawn part = fill(&r, 30, 40, d);
        EXPECT_EACH(part,
                    (!(d.flags & MHA_PATTERN_CAUSAL) || c <= i + offset) &&
                        ((i + offset - c >= 0 && i + offset - c <= d.left_blocks) ||
                         c < d.global_cols || (d.stride && (i + offset - c + FAR * l) % l == 0) ||
                         (d.fixed && ((i + offset + FAR * l) / l == (c + FAR * l) / l ||
                                      c % l >= l - d.fixed_summary))));
    }
}

/* ---- random ---------------------------------------------------------------------------------- */

/* Random blocks are added to the other ones: n per row, or all remaining blocks. */
static void random_counts(void)
{
    rng r = rng_make(rng_run_seed(), 3);
    for (int n = 0; n < 200; n++) {
        int64_t heads = rng_between(&r, 1, 3), rows = rng_between(&r, 1, 20), cols = 24;
        const mha_pattern_desc rest = {.struct_size = sizeof rest,
                                       .flags = n % 2 ? MHA_PATTERN_CAUSAL : 0,
                                       .global_cols = rng_between(&r, 0, 3),
                                       .stride = rng_between(&r, 0, 9)};
        mha_pattern_desc all = rest;
        all.random_blocks = rng_between(&r, 1, 30);
        all.seed = rng_next(&r);
        guarded fixed = blocks_make(&r, heads, rows, cols), x = blocks_make(&r, heads, rows, cols);
        guarded again = blocks_make(&r, heads, rows, cols);
        int64_t kept, total = 0;
        expect_ok(mha_pattern_fill(&rest, &fixed.view, NULL));
        expect_ok(mha_pattern_fill(&all, &x.view, &kept));
        expect_ok(mha_pattern_fill(&all, &again.view, NULL));
        assert_true(guarded_same_bits(&x.view, &again.view, false));
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < rows; i++) {
                int64_t before = 0, after = 0, room = 0;
                for (int64_t c = 0; c < cols; c++) {
                    bool open = !(n % 2) || c <= i, held = cell(&fixed.view, h, i, c);
                    assert_true(!held || cell(&x.view, h, i, c));
                    assert_true(open || !cell(&x.view, h, i, c));
                    before += held, after += cell(&x.view, h, i, c), room += open && !held;
                }
                assert_int_equal(after - before,
                                 room < all.random_blocks ? room : all.random_blocks);
                total += after;
            }
        assert_int_equal(kept, total);
        guarded_free(&fixed);
        guarded_free(&x);
        guarded_free(&again);
    }
}

/* A row's draw does not depend on the number of rows and heads, and all draws differ. */
static void random_rows_are_their_own(void)
{
    enum { H = 3, ROWS = 20, COLS = 64 };
    rng r = rng_make(rng_run_seed(), 4);
    const mha_pattern_desc d = {.struct_size = sizeof d, .random_blocks = 20, .seed = rng_next(&r)};
    guarded whole = blocks_make(&r, H, ROWS, COLS), part = blocks_make(&r, 0, ROWS - 7, COLS);
    expect_ok(mha_pattern_fill(&d, &whole.view, NULL));
    expect_ok(mha_pattern_fill(&d, &part.view, NULL));
    static uint8_t rows[H * ROWS][COLS];
    for (int i = 0; i < H * ROWS; i++)
        for (int c = 0; c < COLS; c++) rows[i][c] = cell(&whole.view, i / ROWS, i % ROWS, c);
    for (int i = 0; i < ROWS - 7; i++)
        for (int c = 0; c < COLS; c++) assert_int_equal(cell(&part.view, 0, i, c), rows[i][c]);
    for (int i = 0; i < H * ROWS; i++)
        for (int j = 0; j < i; j++) assert_true(memcmp(rows[i], rows[j], COLS) != 0);
    guarded_free(&whole);
    guarded_free(&part);
}

/* Each free column is drawn equally often: in n k / m of n rows, within six standard deviations of
 * the binomial distribution, for any seed. Neighbours are drawn together with the frequency of
 * draws without replacement: k (k - 1) / m (m - 1). */
static void random_is_even(void)
{
    enum { ROWS = 4000, COLS = 10, K = 3 };
    rng r = rng_make(rng_run_seed(), 5);
    const mha_pattern_desc d = {.struct_size = sizeof d, .random_blocks = K, .seed = rng_next(&r)};
    guarded x = blocks_make(&r, 0, ROWS, COLS);
    expect_ok(mha_pattern_fill(&d, &x.view, NULL));
    for (int c = 0; c < COLS; c++) {
        double count = 0, both = 0, p = (double)K / COLS, pair = p * (K - 1) / (COLS - 1);
        for (int64_t i = 0; i < ROWS; i++) {
            bool here = cell(&x.view, 0, i, c);
            count += here;
            both += here && cell(&x.view, 0, i, (c + 1) % COLS);
        }
        assert_true(fabs(count - ROWS * p) < 6 * sqrt(ROWS * p * (1 - p)));
        assert_true(fabs(both - ROWS * pair) < 6 * sqrt(ROWS * pair * (1 - pair)));
    }
    guarded_free(&x);
}

/* The generator's words determine the draws as the header documents. The test recomputes them from
 * the reference's Philox. */
static void random_is_philox(void)
{
    enum { ROWS = 6, COLS = 37, K = 9 };
    rng r = rng_make(rng_run_seed(), 6);
    const mha_pattern_desc d = {.struct_size = sizeof d, .random_blocks = K, .seed = rng_next(&r)};
    drawn x = {.blocks = blocks_make(&r, 0, ROWS, COLS)};
    expect_ok(mha_pattern_fill(&d, &x.blocks.view, NULL));
    for (uint32_t i = 0; i < ROWS; i++) {
        uint64_t needed = K;
        for (uint32_t c = 0; c < COLS; c++) {
            const uint32_t counter[4] = {c / 4, i, 0, 0x70617474};
            const uint32_t key[2] = {(uint32_t)d.seed, (uint32_t)(d.seed >> 32)};
            uint32_t word[4];
            kinds_philox(counter, key, word);
            bool taken = ((uint64_t)word[c % 4] * (COLS - c)) >> 32 < needed;
            assert_int_equal(cell(&x.blocks.view, 0, i, c), taken);
            needed -= taken;
        }
        assert_int_equal(needed, 0);
    }
    guarded_free(&x.blocks);
}

/* ---- unions, and attention with patterns ----------------------------------------------------- */

static void unions(void)
{
    rng r = rng_make(rng_run_seed(), 7);
    for (int n = 0; n < 100; n++) {
        int64_t rows = rng_between(&r, 0, MOST), cols = rng_between(&r, 0, MOST), kept, both;
        const mha_pattern_desc a = {.struct_size = sizeof a, .stride = rng_between(&r, 1, 9)};
        mha_pattern_desc b = {.struct_size = sizeof b,
                              .flags = MHA_PATTERN_LOCAL,
                              .left_blocks = rng_between(&r, 0, 4)};
        mha_pattern_desc joined = b;
        joined.stride = a.stride;
        guarded x = blocks_make(&r, 0, rows, cols), y = blocks_make(&r, 0, rows, cols);
        int64_t index[MHA_MAX_DIMS] = {0};
        expect_ok(mha_pattern_fill(&a, &x.view, NULL));
        if (!guarded_is_empty(&x.view)) /* any byte but 0 is kept */
            do *(uint8_t *)guarded_element(&x.view, index) *= 7;
            while (guarded_next(&x.view, index));
        b.flags |= MHA_PATTERN_ADD;
        expect_ok(mha_pattern_fill(&b, &x.view, &kept));
        expect_ok(mha_pattern_fill(&joined, &y.view, &both));
        assert_true(guarded_same_bits(&x.view, &y.view, false));
        assert_int_equal(kept, both);
        guarded_free(&x);
        guarded_free(&y);
    }
}

/* A call with a pattern computes the pairs of the kept blocks. */
static void patterns_in_attention(void)
{
    enum { T = 70, BLOCK = 16, N = 5, D = 4 };
    mha_context *context = context_with(0);
    static float x[T * D], o[T * D], p[T * T];
    uint8_t blocks[N * N];
    for (int i = 0; i < T * D; i++) x[i] = (float)(i % 7);
    const mha_tensor xt = mha_tensor_contiguous(x, MHA_F32, 4, (int64_t[]){1, 1, T, D});
    const mha_tensor ot = mha_tensor_contiguous(o, MHA_F32, 4, (int64_t[]){1, 1, T, D});
    const mha_tensor pt = mha_tensor_contiguous(p, MHA_F32, 4, (int64_t[]){1, 1, T, T});
    const mha_tensor bt = mha_tensor_contiguous(blocks, MHA_U8, 2, (int64_t[]){N, N});
    const mha_pattern_desc pattern = {.struct_size = sizeof pattern,
                                      .flags = MHA_PATTERN_LOCAL,
                                      .left_blocks = 1,
                                      .right_blocks = 1,
                                      .random_blocks = 1,
                                      .seed = 3};
    const mha_attention_desc desc = {.struct_size = sizeof desc,
                                     .keep_blocks = &bt,
                                     .block_queries = BLOCK,
                                     .block_keys = BLOCK};
    const mha_attention_outputs outputs = {.struct_size = sizeof outputs, .probabilities = &pt};
    int64_t kept;
    expect_ok(mha_pattern_fill(&pattern, &bt, &kept));
    assert_int_equal(kept, 13 + 5);
    expect_ok(mha_attention_forward(context, &desc, &xt, &xt, &xt, &ot, &outputs));
    for (int t = 0; t < T; t++)
        for (int s = 0; s < T; s++)
            assert_true((p[t * T + s] != 0) == blocks[t / BLOCK * N + s / BLOCK]);
}

/* Blocks with gaps, and with any end of the last block, are bit-identical to the same pairs in a
 * keep_mask. */
static void gaps(void)
{
    enum { T = 9, KEYS = 128, BLOCK = 32, D = 4 };
    rng r = rng_make(rng_run_seed(), 8);
    static float x[KEYS * D], o[2][T * D], lse[2][T];
    for (int i = 0; i < KEYS * D; i++) x[i] = rng_normal(&r);
    for (int isa = MHA_ISA_PORTABLE; isa <= MHA_ISA_AVX512; isa++) {
        if (!mha_isa_available((mha_isa)isa)) continue;
        mha_context *context;
        const mha_context_desc wanted = {.struct_size = sizeof wanted, .isa = (mha_isa)isa};
        expect_ok(mha_context_create(&wanted, &context));
        for (int64_t S = KEYS - BLOCK + 1; S <= KEYS; S++) {
            uint8_t blocks[KEYS / BLOCK] = {1, 0, 0, 1}, keep[KEYS];
            for (int64_t i = 0; i < S; i++) keep[i] = blocks[i / BLOCK];
            const mha_tensor bt = mha_tensor_contiguous(blocks, MHA_U8, 2, (int64_t[]){1, 4});
            const mha_tensor mt = mha_tensor_contiguous(keep, MHA_U8, 2, (int64_t[]){1, S});
            const mha_tensor q = mha_tensor_contiguous(x, MHA_F32, 4, (int64_t[]){1, 1, T, D});
            const mha_tensor k = mha_tensor_contiguous(x, MHA_F32, 4, (int64_t[]){1, 1, S, D});
            for (int i = 0; i < 2; i++) {
                const mha_attention_desc desc = {.struct_size = sizeof desc,
                                                 .keep_blocks = i ? NULL : &bt,
                                                 .keep_mask = i ? &mt : NULL,
                                                 .block_queries = i ? 0 : 64,
                                                 .block_keys = i ? 0 : BLOCK};
                const mha_tensor ot = mha_tensor_contiguous(o[i], MHA_F32, 4, q.shape);
                const mha_tensor lt = mha_tensor_contiguous(lse[i], MHA_F32, 3, q.shape);
                const mha_attention_outputs out = {.struct_size = sizeof out, .lse = &lt};
                expect_ok(mha_attention_forward(context, &desc, &q, &k, &k, &ot, &out));
            }
            assert_memory_equal(o[0], o[1], sizeof o[0]);
            assert_memory_equal(lse[0], lse[1], sizeof lse[0]);
        }
        mha_context_destroy(context);
    }
}

/* ---- misuse ---------------------------------------------------------------------------------- */

static void misuse_is_refused(void)
{
    static const struct {
        mha_pattern_desc desc;
        mha_status status;
        const char *text;
    } cases[] = {
        {{.left_blocks = 1}, MHA_ERR_ARGUMENT, "left_blocks 1 and right_blocks 0 require the flag"},
        {{.flags = MHA_PATTERN_LOCAL, .left_blocks = -1}, MHA_ERR_ARGUMENT, "left_blocks is -1"},
        {{.flags = MHA_PATTERN_LOCAL, .right_blocks = -3}, MHA_ERR_ARGUMENT, "right_blocks is -3"},
        {{.flags = MHA_PATTERN_LOCAL | MHA_PATTERN_CAUSAL, .right_blocks = 2},
         MHA_ERR_ARGUMENT,
         "right_blocks is 2"},
        {{.global_rows = -1}, MHA_ERR_ARGUMENT, "global_rows is -1"},
        {{.global_cols = INT64_MIN}, MHA_ERR_ARGUMENT, "global_cols is -9223372036854775808"},
        {{.stride = -4}, MHA_ERR_ARGUMENT, "stride is -4"},
        {{.fixed = INT64_MAX}, MHA_ERR_ARGUMENT, "fixed is 9223372036854775807"},
        {{.fixed = 4, .fixed_summary = 5}, MHA_ERR_ARGUMENT, "fixed_summary is 5, expected 0..4"},
        {{.fixed_summary = 1}, MHA_ERR_ARGUMENT, "fixed_summary is 1, expected 0..0"},
        {{.random_blocks = -2}, MHA_ERR_ARGUMENT, "random_blocks is -2"},
        {{.offset = INT64_MAX}, MHA_ERR_SIZE, "offset is 9223372036854775807"},
        {{.flags = 1u << 9}, MHA_ERR_UNSUPPORTED, "flags 0x200"},
    };
    uint8_t memory[16];
    int64_t kept = 77;
    memset(memory, 0x5A, sizeof memory);
    mha_tensor x = mha_tensor_contiguous(memory, MHA_U8, 2, (int64_t[]){4, 4});
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mha_pattern_desc d = cases[i].desc;
        d.struct_size = sizeof d;
        expect_row(i, mha_pattern_fill(&d, &x, &kept), cases[i].status, cases[i].text);
    }
    mha_pattern_desc d = {.struct_size = sizeof d, .stride = 2};
    assert_int_equal(mha_pattern_fill(NULL, &x, &kept), MHA_ERR_NULL);
    assert_int_equal(mha_pattern_fill(&d, NULL, &kept), MHA_ERR_NULL);
    d.struct_size = 0;
    assert_int_equal(mha_pattern_fill(&d, &x, &kept), MHA_ERR_ARGUMENT);
    d.struct_size = sizeof d;
    x.dtype = MHA_F32;
    assert_int_equal(mha_pattern_fill(&d, &x, &kept), MHA_ERR_DTYPE);
    x.dtype = MHA_U8, x.ndim = 4;
    assert_int_equal(mha_pattern_fill(&d, &x, &kept), MHA_ERR_SHAPE);
    x.ndim = 2, x.stride[0] = 0;
    assert_int_equal(mha_pattern_fill(&d, &x, &kept), MHA_ERR_STRIDE);
    x.stride[0] = 4, x.data = NULL;
    assert_int_equal(mha_pattern_fill(&d, &x, &kept), MHA_ERR_NULL);
    x.shape[0] = INT64_C(1) << 40, x.shape[1] = 0;
    assert_int_equal(mha_pattern_fill(&d, &x, &kept), MHA_ERR_SIZE);
    assert_non_null(strstr(mha_error_detail(), "dim 0 is 1099511627776"));
    for (int i = 0; i < 16; i++) assert_int_equal(memory[i], 0x5A);
    assert_int_equal(kept, 77);
    x.shape[0] = 3; /* nothing to write, and no memory needed */
    expect_ok(mha_pattern_fill(&d, &x, &kept));
    assert_int_equal(kept, 0);
}

RUN_TESTS(TEST(published_patterns), TEST(offsets), TEST(random_counts),
          TEST(random_rows_are_their_own), TEST(random_is_even), TEST(random_is_philox),
          TEST(unions), TEST(patterns_in_attention), TEST(gaps), TEST(misuse_is_refused))
