/* Measures of heads on 4 x 4 maps computed by hand. Weights are eighths, and chances are thirds and
 * quarters. Sums are therefore exact up to a few roundings, and the bound is 1e-12.
 *
 * Roman numerals below number the rows of a map; keys are a b c d. */
#include "support/expect.h"
#include "support/one_context.h"
#include "support/suite.h"

#include <multihead/heads.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int make_context(void **state)
{
    (void)state;
    context = context_with(2);
    return 0;
}

static mha_head_measures *make(int64_t heads)
{
    static const char *const names[] = {"subject"};
    mha_head_measures *m = NULL;
    const mha_head_measures_desc desc = {.struct_size = sizeof desc,
                                         .layers = 1,
                                         .heads = &heads,
                                         .rare_rank = -1,
                                         .names = names,
                                         .relations = 1};
    expect_ok(mha_head_measures_create(context, &desc, &m));
    return m;
}

/* One text, one layer of one head. */
static mha_head_measures *measure(mha_heads_text text, const float *map)
{
    mha_head_measures *m = make(1);
    float copy[64];
    const size_t floats = (size_t)(text.queries * text.keys);
    assert_true(floats <= 64);
    memcpy(copy, map, floats * sizeof *copy);
    const mha_tensor p =
        mha_tensor_contiguous(copy, MHA_F32, 3, (int64_t[]){1, text.queries, text.keys});
    text.struct_size = sizeof text;
    expect_ok(mha_head_measures_begin(m, &text));
    if (text.queries > 0) {
        mha_status status = mha_head_measures_rows(m, 0, 0, &p);
        if (status != MHA_OK) fail_msg("%s", mha_error_detail());
    }
    expect_ok(mha_head_measures_end(m));
    return m;
}

static void expect(const mha_head_measures *m, mha_head_measure which, double value, double chance,
                   int64_t rows)
{
    const mha_head_score s = mha_head_measures_score(m, 0, 0, which);
    if (fabs(s.value - value) > 1e-12 || fabs(s.chance - chance) > 1e-12 || s.rows != rows)
        fail_msg("%s: %.15g, chance %.15g, %lld rows; expected %.15g, %.15g, %lld",
                 mha_measure_describe(which).name, s.value, s.chance, (long long)s.rows, value,
                 chance, (long long)rows);
}

/* ---- causal ------------------------------------------------------------------------------------
 */

/*         a     b     c     d          N
 *   i     1                            1   counts for `sink` alone
 *   ii   1/4   3/4                     2
 *   iii  1/2   1/4   1/4               3
 *   iv   1/8   1/8   1/2   1/4         4
 * chances 1/2, 1/3, 1/4: their mean is 13/36. */
static const float causal[16] = {1,   0,    0,    0, .25f,  .75f,  0,   0,
                                 .5f, .25f, .25f, 0, .125f, .125f, .5f, .25f};

static void test_causal_places(void)
{
    const uint8_t separators[] = {0, 0, 1, 0};
    mha_head_measures *m = measure(
        (mha_heads_text){
            .flags = MHA_HEADS_CAUSAL, .queries = 4, .keys = 4, .separators = separators},
        causal);
    const double mean = 13.0 / 36;
    expect(m, MHA_MEASURE_PREVIOUS, (.25 + .25 + .5) / 3, mean, 3);
    expect(m, MHA_MEASURE_NEXT, 0, 0, 0); /* no row sees it */
    expect(m, MHA_MEASURE_SELF, (.75 + .25 + .25) / 3, mean, 3);
    expect(m, MHA_MEASURE_FIRST, (.25 + .5 + .125) / 3, mean, 3);
    expect(m, MHA_MEASURE_SINK, (1 + .25 + .5 + .125) / 4, (1 + .5 + 1. / 3 + .25) / 4, 4);
    /* rows iii and iv see the separator c */
    expect(m, MHA_MEASURE_SEPARATOR, (.25 + .5) / 2, (1. / 3 + .25) / 2, 2);
    /* largest of a b d: 3/4, 1/2, 1/4 */
    expect(m, MHA_MEASURE_CONFIDENCE, 1.5 / 3, mean, 3);
    /* within 2: all keys of ii and iii, so only iv counts: b c d */
    expect(m, MHA_MEASURE_NEAR, 7. / 8, 3. / 4, 1);
    /* rows ii to iv: 1/4, 1/4 + 2/2, 1/2 + 2/8 + 3/8; with uniform weights 1/2, 1, 3/2 */
    expect(m, MHA_MEASURE_DISTANCE, (.25 + 1.25 + 1.125) / 3, 1, 3);
    mha_head_measures_destroy(m);
}

static void test_causal_entropy(void)
{
    mha_head_measures *m =
        measure((mha_heads_text){.flags = MHA_HEADS_CAUSAL, .queries = 4, .keys = 4}, causal);
    /* -1/4 log 1/4 - 3/4 log 3/4 = 2 log 2 - 3/4 log 3; iii: 3/2 log 2; iv: 2 (3/8) log 2 + 1/2 log
     * 2
     * + 1/2 log 2 = 7/4 log 2 */
    const double two = log(2), three = log(3);
    const double ii = 2 * two - .75 * three, iii = 1.5 * two, iv = 1.75 * two;
    expect(m, MHA_MEASURE_ENTROPY, (ii + iii + iv) / 3, (two + three + 2 * two) / 3, 3);
    expect(m, MHA_MEASURE_EVENNESS, (ii / two + iii / three + iv / (2 * two)) / 3, 1, 3);
    /* 0.811, 0.946, 0.875: all above 0.78; one above 0.9, none below 0.6 */
    expect(m, MHA_MEASURE_BROAD, 1, 1, 3);
    expect(m, MHA_MEASURE_HORIZONTAL, 0, 0, 3);
    mha_head_measures_destroy(m);
}

static void test_causal_offsets(void)
{
    mha_head_measures *m =
        measure((mha_heads_text){.flags = MHA_HEADS_CAUSAL, .queries = 4, .keys = 4}, causal);
    mha_head_offset o = mha_head_measures_offset(m, 0, 0, -2); /* iii to a, iv to b */
    assert_true(fabs(o.mass.value - (.5 + .125) / 2) < 1e-12);
    assert_true(fabs(o.mass.chance - (1. / 3 + .25) / 2) < 1e-12);
    assert_int_equal(o.mass.rows, 2);
    /* largest weights: in row ii at b (offset 0), in iii at a (-2), in iv at c (-1) */
    assert_true(fabs(o.largest.value - .5) < 1e-12);
    assert_true(fabs(mha_head_measures_offset(m, 0, 0, -1).largest.value - 1. / 3) < 1e-12);
    assert_true(fabs(mha_head_measures_offset(m, 0, 0, 0).largest.value - 1. / 3) < 1e-12);
    assert_int_equal(mha_head_measures_offset(m, 0, 0, 1).mass.rows, 0);
    /* corrected scores: offset 0 has (5/12 - 13/36) / (1 - 13/36) = 2/23 = 0.087; -1 is below
     * chance; -2 has (5/16 - 7/24) / (1 - 7/24) = 1/34 = 0.029; -3 has only one row */
    expect(m, MHA_MEASURE_DIAGONAL, 1.25 / 3, 13. / 36, 3);
    assert_int_equal(mha_head_measures_details(m, 0, 0).diagonal_offset, 0);
    /* (1/2 - 7/24) / (17/24) = 5/17 is larger than (1/3 - 13/36) */
    expect(m, MHA_MEASURE_POSITIONAL, .5, 7. / 24, 2);
    assert_int_equal(mha_head_measures_details(m, 0, 0).positional_offset, -2);
    mha_head_measures_destroy(m);
}

static void test_causal_columns(void)
{
    mha_head_measures *m =
        measure((mha_heads_text){.flags = MHA_HEADS_CAUSAL, .queries = 4, .keys = 4}, causal);
    /* Columns seen by at least 3/2 of ii, iii, iv: a b (3 rows), c (2 rows). Means: a 7/24, b 9/24,
     * c 3/8 = 9/24; densest b, then c, a. b: (3/8 - 13/36) / (23/36) = 1/46 = 0.02.
     * b and c have the mass 9/8 + 3/4 = 15/8 of 3 rows = 5/8, and the chance 13/12 + 7/12 = 5/3 of
     * 3 = 5/9, which is better. All three are not allowed: no column would remain outside. */
    expect(m, MHA_MEASURE_VERTICAL, 5. / 8, 5. / 9, 3);
    const mha_head_details d = mha_head_measures_details(m, 0, 0);
    assert_int_equal(d.columns, 2);
    assert_int_equal(d.column[0], 1);
    assert_int_equal(d.column[1], 2);
    assert_int_equal(d.column_text, 0);
    /* 9 pairs are visible (rows ii to iv), and an eighth of them is 9/8. columns: b c of density
     * 3/8: 9/8 * 3/8 over 3 rows = 9/64.
     * diagonals: 0: 5/4 of 3; -1: 1 of 3; -2: 5/8 of 2; -3: 1/8. The first is the densest: 9/8 *
     * 5/12 / 3 = 5/32. blocks of 16 x 16 of a 4 x 4 map are its cells: 3/4, and 1/8 of 1/2: 13/16 /
     * 3 = 13/48 */
    expect(m, MHA_MEASURE_FAMILY_VERTICAL, 9. / 64, .125, 3);
    expect(m, MHA_MEASURE_FAMILY_DIAGONAL, 5. / 32, .125, 3);
    expect(m, MHA_MEASURE_FAMILY_BLOCK, 13. / 48, .125, 3);
    mha_head_measures_destroy(m);
}

static void test_causal_repeats(void)
{
    const int64_t ids[] = {7, 8, 7, 7}; /* a, c and d are one token */
    mha_head_measures *m = measure(
        (mha_heads_text){.flags = MHA_HEADS_CAUSAL, .queries = 4, .keys = 4, .ids = ids}, causal);
    /* iii: copy a 1/2, chance 1/3. iv: copies a and c 5/8, chance 2/4 */
    expect(m, MHA_MEASURE_DUPLICATE, (.5 + .625) / 2, (1. / 3 + .5) / 2, 2);
    /* followers: iii: b 1/4. iv: b 1/8; d, which followed c, is iv itself */
    expect(m, MHA_MEASURE_INDUCTION, (.25 + .125) / 2, (1. / 3 + .25) / 2, 2);
    expect(m, MHA_MEASURE_INDUCTION_MEAN, (.25 + .125) / 2, (1. / 3 + .25) / 2, 2);
    mha_head_measures_destroy(m);
}

static void test_causal_rare(void)
{
    const int64_t ranks[] = {3, 5, 900, 4};
    mha_head_measures *m = measure(
        (mha_heads_text){.flags = MHA_HEADS_CAUSAL, .queries = 4, .keys = 4, .ranks = ranks},
        causal);
    /* c: 1/4 of three keys, 1/2 of four */
    expect(m, MHA_MEASURE_RARE, .375, (1. / 3 + .25) / 2, 2);
    /* three columns count; b is the densest (equal to c, but earlier): rank 5 is the second */
    expect(m, MHA_MEASURE_RAREST, 0, 1. / 3, 1);
    expect(m, MHA_MEASURE_RAREST_TWO, 1, 2. / 3, 1);
    mha_head_measures_destroy(m);
}

/* ---- both directions ---------------------------------------------------------------------------
 */

/*         a     b     c     d
 *   i    1/2   1/2
 *   ii   1/2   1/4   1/4
 *   iii              1/2   1/2
 *   iv   1/8   1/8   1/4   1/2 */
static const float full[16] = {.5f, .5f, 0,   0,   .5f,   .25f,  .25f, 0,
                               0,   0,   .5f, .5f, .125f, .125f, .25f, .5f};

/* Of offsets with equal scores, the nearest one is chosen, and of two equally near ones the earlier
 * one. */
static void test_equal_offsets(void)
{
    enum { N = 8 };
    float even[N * N], pairs[N * N] = {0};
    const mha_heads_text text = {.queries = N, .keys = N};
    for (int i = 0; i < N * N; i++) even[i] = 1.0f / N;
    for (int i = 0; i < N; i++) pairs[i * N + (i ^ 1)] = 1; /* to the next or previous token */
    mha_head_measures *m = measure(text, even);
    assert_int_equal(mha_head_measures_details(m, 0, 0).diagonal_offset, 0);
    mha_head_measures_destroy(m);
    m = measure(text, pairs);
    for (int offset = -1; offset <= 1; offset += 2) {
        const mha_head_offset at = mha_head_measures_offset(m, 0, 0, offset);
        assert_true(at.mass.rows == N - 1 && at.mass.value == 4. / 7 && at.largest.value == 4. / 7);
    }
    assert_int_equal(mha_head_measures_details(m, 0, 0).diagonal_offset, -1);
    assert_int_equal(mha_head_measures_details(m, 0, 0).positional_offset, -1);
    mha_head_measures_destroy(m);
    /* Of equal weights in a row, the first counts as the largest. */
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) pairs[i * N + j] = abs(i - j) == 1 ? 0.5f : 0;
    m = measure(text, pairs);
    assert_true(mha_head_measures_offset(m, 0, 0, -1).largest.value == 1);
    assert_true(mha_head_measures_offset(m, 0, 0, 1).largest.value == 1. / 7);
    mha_head_measures_destroy(m);
}

static void test_full_segments(void)
{
    const int64_t segments[] = {0, 0, 1, 1};
    mha_head_measures *m =
        measure((mha_heads_text){.queries = 4, .keys = 4, .segments = segments}, full);
    expect(m, MHA_MEASURE_NEXT, (.5 + .25 + .5) / 3, .25, 3);
    expect(m, MHA_MEASURE_SEGMENT, (1 + .75 + 1 + .75) / 4, .5, 4);
    /* evenness inside: 1; 2/3 and 1/3: log 3 - 2/3 log 2 over log 2; 1; 1/3 and 2/3 */
    const double uneven = (log(3) - 2. / 3 * log(2)) / log(2);
    expect(m, MHA_MEASURE_BLOCK, (1 + .75 * uneven + 1 + .75 * uneven) / 4, .5, 4);
    expect(m, MHA_MEASURE_CUT, 0, 0, 0); /* a part has at least four tokens */
    mha_head_measures_destroy(m);
}

static void test_full_links(void)
{
    /* words: a b | c | d; the link c -> (a b) */
    const int64_t words[] = {0, 0, 1, 2};
    const mha_heads_link links[] = {{1, 0, 0}};
    mha_head_measures *m = measure(
        (mha_heads_text){.queries = 4, .keys = 4, .words = words, .links = links, .links_count = 1},
        full);
    /* Forward, row iii: (a b) 0, d 1/2: wrong. Backward, rows i and ii, weights averaged: c 1/8,
     * d 0: right. Two candidates each, three words seen. */
    mha_head_relation r = mha_head_measures_relation(m, 0, 0, 0, MHA_LINK_FORWARD);
    assert_int_equal(r.accuracy.rows, 1);
    assert_true(r.accuracy.value == 0 && r.accuracy.chance == .5 && r.mass.value == 0);
    assert_true(fabs(r.mass.chance - 1. / 3) < 1e-12);
    assert_true(r.baseline == 1 && r.baseline_offset == -1);
    r = mha_head_measures_relation(m, 0, 0, 0, MHA_LINK_BACKWARD);
    assert_true(r.accuracy.value == 1 && fabs(r.mass.value - .125) < 1e-12);
    assert_true(r.baseline == 1 && r.baseline_offset == 1);
    mha_head_measures_destroy(m);
}

/* A layer sees three keys besides the sink. Its links and their baseline use only visible keys. */
static void test_links_of_a_window(void)
{
    enum { N = 6 };
    static const char *const names[] = {"far", "near"};
    static const mha_heads_link links[] = {{4, 1, 0}, {5, 1, 0}, {5, 4, 0}, {3, 0, 1}};
    const mha_heads_text text = {
        .struct_size = sizeof text, .queries = N, .keys = N, .links = links, .links_count = 4};
    const mha_attention_desc window = {.struct_size = sizeof window,
                                       .flags = MHA_ATTENTION_WINDOW | MHA_ATTENTION_CAUSAL,
                                       .left_keys = 2,
                                       .sink_keys = 1};
    const mha_head_measures_desc desc = {.struct_size = sizeof desc,
                                         .layers = 2,
                                         .heads = (int64_t[]){1, 1},
                                         .names = names,
                                         .relations = 2};
    mha_head_measures *m = NULL;
    float map[N * N] = {0};
    for (int i = 0; i < N; i++) map[i * N + (i > 0 ? i - 1 : 0)] = 1;
    const mha_tensor p = mha_tensor_contiguous(map, MHA_F32, 3, (int64_t[]){1, N, N});
    expect_ok(mha_head_measures_create(context, &desc, &m));
    expect_ok(mha_head_measures_begin(m, &text));
    expect_ok(mha_head_measures_window(m, 1, &window));
    for (int l = 0; l < 2; l++) expect_ok(mha_head_measures_rows(m, l, 0, &p));
    expect_ok(mha_head_measures_end(m));
    for (int l = 0; l < 2; l++) {
        const mha_head_relation far = mha_head_measures_relation(m, l, 0, 0, MHA_LINK_FORWARD),
                                near = mha_head_measures_relation(m, l, 0, 1, MHA_LINK_FORWARD);
        assert_int_equal(far.accuracy.rows, l ? 1 : 3);
        assert_true(far.accuracy.value == (l ? 1 : 1. / 3) && far.baseline_offset == -1);
        assert_true(far.baseline == (l ? 1 : 1. / 3));
        assert_true(near.accuracy.rows == 1 && near.baseline_offset == -3 && near.baseline == 1);
        /* previous: row i sees i + 1 keys, or keys i-2 .. i and the sink; row 0 does not count */
        const mha_head_score s = mha_head_measures_score(m, l, 0, MHA_MEASURE_PREVIOUS);
        const double chance = l ? (1. / 2 + 1. / 3 + 3 * 1. / 4) / 5 : 1. / 6;
        assert_true(s.rows == 5 && s.value == 1 && fabs(s.chance - chance) < 1e-15);
    }
    mha_head_measures_destroy(m);
}

/* Details come from the text with the strongest pattern. The second text is split at key 4, and all
 * rows of the third attend to key 7. */
static void test_strongest_texts(void)
{
    enum { N = 10 };
    float map[N * N];
    mha_head_measures *m = make(1);
    for (int k = 0; k < 4; k++) {
        const mha_heads_text text = {.struct_size = sizeof text, .queries = N, .keys = N};
        const mha_tensor p = mha_tensor_contiguous(map, MHA_F32, 3, (int64_t[]){1, N, N});
        for (int at = 0; at < N * N; at++) {
            const int i = at / N, j = at % N;
            map[at] = k == 1   ? (i < 4) != (j < 4) ? 0
                                 : i < 4            ? 0.25f
                                                    : 1.0f / 6
                      : k == 2 ? j == 7
                               : 1.0f / N;
        }
        expect_ok(mha_head_measures_begin(m, &text));
        expect_ok(mha_head_measures_rows(m, 0, 0, &p));
        expect_ok(mha_head_measures_end(m));
    }
    const mha_head_details d = mha_head_measures_details(m, 0, 0);
    assert_true(d.cut_text == 1 && d.cut == 4);
    assert_true(d.column_text == 2 && d.columns == 1 && d.column[0] == 7);
    mha_head_measures_destroy(m);
}

/* Each token attends to the one two or three before it, along links of the second relation, or
 * against them. Row i sees i other tokens, and more than one from i = 2 on: chance (1/2 + ... +
 * 1/11) / 10. */
static void test_link_roles(void)
{
    enum { N = 12 };
    static const char *const names[] = {"other", "pair"};
    static const char *const evidence[] = {
        "pair 1.00, best offset -2 0.50, chance 0.20, 10 links",
        "pair (reverse) 1.00, best offset -2 0.50, chance 0.20, 10 links"};
    for (int back = 0; back < 2; back++) {
        float map[N * N] = {0};
        mha_heads_link links[N];
        mha_head_role roles[MHA_ROLES];
        mha_head_measures *m = NULL;
        for (int i = 0; i < N; i++) {
            const int to = i < 2 ? 0 : i - 2 - i % 2;
            map[i * N + to] = 1;
            links[i] = back ? (mha_heads_link){to, i, 1} : (mha_heads_link){i, to, 1};
        }
        const mha_tensor p = mha_tensor_contiguous(map, MHA_F32, 3, (int64_t[]){1, N, N});
        const mha_heads_text text = {.struct_size = sizeof text,
                                     .flags = MHA_HEADS_CAUSAL,
                                     .queries = N,
                                     .keys = N,
                                     .links = links + 2,
                                     .links_count = N - 2};
        const mha_head_measures_desc desc = {.struct_size = sizeof desc,
                                             .layers = 1,
                                             .heads = (int64_t[]){1},
                                             .names = names,
                                             .relations = 2};
        expect_ok(mha_head_measures_create(context, &desc, &m));
        expect_ok(mha_head_measures_begin(m, &text));
        expect_ok(mha_head_measures_rows(m, 0, 0, &p));
        expect_ok(mha_head_measures_end(m));
        const int64_t count = mha_head_measures_roles(m, 0, 0, roles, MHA_ROLES);
        int found = 0;
        for (int64_t i = 0; i < count; i++) {
            if (roles[i].role != MHA_ROLE_LINKS) continue;
            assert_true(roles[i].relation == 1 && roles[i].direction == back && found++ == 0);
            assert_true(roles[i].score.value == 1 && roles[i].score.rows == 10);
            assert_string_equal(roles[i].evidence, evidence[back]);
        }
        assert_int_equal(found, 1);
        mha_head_measures_destroy(m);
    }
}

/* Each token attends to the one four before it: chance (1/5 + ... + 1/12) / 8. */
static void test_offset_roles(void)
{
    enum { N = 8 + 4 };
    float map[N * N] = {0};
    mha_head_role roles[MHA_ROLES];
    for (int i = 0; i < N; i++) map[i * N + (i < 4 ? 0 : i - 4)] = 1;
    mha_head_measures *m = make(1);
    const mha_tensor p = mha_tensor_contiguous(map, MHA_F32, 3, (int64_t[]){1, N, N});
    const mha_heads_text text = {
        .struct_size = sizeof text, .flags = MHA_HEADS_CAUSAL, .queries = N, .keys = N};
    expect_ok(mha_head_measures_begin(m, &text));
    expect_ok(mha_head_measures_rows(m, 0, 0, &p));
    expect_ok(mha_head_measures_end(m));
    assert_int_equal(mha_head_measures_roles(m, 0, 0, roles, MHA_ROLES), 3);
    assert_int_equal(roles[0].role, MHA_ROLE_SINK); /* 5 of 12 rows: 0 .. 4 */
    assert_string_equal(roles[0].evidence, "first token 0.42, chance 0.26, 12 rows");
    assert_true(roles[0].offset == 0 && roles[1].offset == -4 && roles[2].offset == -4);
    assert_string_equal(roles[1].evidence, "positional at offset -4 1.00, chance 0.13, 8 rows");
    assert_string_equal(roles[2].evidence, "diagonal at offset -4 1.00, chance 0.13, 8 rows");
    mha_head_measures_destroy(m);
}

/* ---- edges
 * --------------------------------------------------------------------------------------- */

static void expect_nothing(const mha_head_measures *m)
{
    for (int which = 0; which < MHA_MEASURES; which++)
        if (which != MHA_MEASURE_SINK) expect(m, (mha_head_measure)which, 0, 0, 0);
    assert_int_equal(mha_head_measures_roles(m, 0, 0, NULL, 0), 0);
}

static void test_tiny(void)
{
    const float one[] = {1}, two[] = {1, 0, .25f, .75f}, dead[16] = {0};
    mha_head_measures *m = measure((mha_heads_text){.queries = 0, .keys = 0}, one);
    expect_nothing(m);
    mha_head_measures_destroy(m);
    m = measure((mha_heads_text){.queries = 1, .keys = 1}, one);
    expect_nothing(m);
    expect(m, MHA_MEASURE_SINK, 1, 1, 1);
    mha_head_measures_destroy(m);
    m = measure((mha_heads_text){.queries = 4, .keys = 4}, dead); /* rows without visible keys */
    expect_nothing(m);
    mha_head_measures_destroy(m);
    m = measure((mha_heads_text){.flags = MHA_HEADS_CAUSAL, .queries = 2, .keys = 2}, two);
    expect(m, MHA_MEASURE_PREVIOUS, .25, .5, 1);
    expect(m, MHA_MEASURE_DIAGONAL, .75, .5, 1);
    expect(m, MHA_MEASURE_VERTICAL, .75, .5, 1);
    mha_head_measures_destroy(m);
}

RUN_TESTS_BETWEEN(make_context, NULL, TEST(test_causal_places), TEST(test_causal_entropy),
                  TEST(test_causal_offsets), TEST(test_causal_columns), TEST(test_causal_repeats),
                  TEST(test_causal_rare), TEST(test_equal_offsets), TEST(test_full_segments),
                  TEST(test_full_links), TEST(test_links_of_a_window), TEST(test_strongest_texts),
                  TEST(test_link_roles), TEST(test_offset_roles), TEST(test_tiny))
