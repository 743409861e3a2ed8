/* Every kind of attention of the descriptor, alone and in random combinations, on every path and
 * instruction set. Results must be within their bound (docs/numerics.md, 3.10) of the
 * double-precision reference.
 *
 * The default is a sample; MHA_TEST_LONG=1 tests 20,000 descriptors. MHA_TEST_CASE=n (with
 * MHA_TEST_SEED) runs only the n-th. */
#include "reference/kinds_bounds.h"
#include "support/expect.h"
#include "support/kinds.h"
#include "support/machines.h"
#include "support/suite.h"
#include "support/tally.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLE = 250, ALL = 20000 };

/* Ratios of errors to bounds, for each machine. `rest` holds cases that would dominate the others:
 * p below 2^-120 and rows whose weight goes to the sink, where flushing to 0 may be the whole
 * error, and heads that are too wide for the tiled path. */
typedef struct score_card {
    tally o, lse, p, rest;
} score_card;

/* One case on every machine. */
typedef struct trial {
    int number;
    kinds_case c;
    ref_attention a;
    const machines *all;
    score_card *cards;
    outcome got[MOST_MACHINES];
} trial;

static void fail_trial(const trial *x, int m, const char *what)
{
    fail_msg("%s: %s\n  %s\n  alone: MHA_TEST_SEED=%llu MHA_TEST_CASE=%d", x->all->each[m].name,
             what, x->c.text, (unsigned long long)rng_run_seed(), x->number);
}

static void fail_value(const trial *x, int m, const char *name, const int64_t *at, double got,
                       double exact, double bound)
{
    char what[240];
    snprintf(what, sizeof what,
             "%s at b%lld h%lld t%lld, %lld is %.9g, exact %.9g, error %.3g, bound %.3g", name,
             (long long)at[0], (long long)at[1], (long long)at[2], (long long)at[3], got, exact,
             fabs(got - exact), bound);
    fail_trial(x, m, what);
}

static void compare_row(const trial *x, int m, int64_t b, int64_t h, int64_t t,
                        const kinds_row *row, const bound_row *bound, score_card *card)
{
    const float *o = kinds_at(&x->got[m].o.view, &x->a, b, h, t);
    const float *p = kinds_at(&x->got[m].p.view, &x->a, b, h, t);
    double lse = (double)*kinds_at(&x->got[m].lse.view, &x->a, b, h, t);
    int64_t at[4] = {b, h, t, 0};
    if (!tally_compare(&card->lse, lse, row->lse, bound->lse))
        fail_value(x, m, "lse", at, lse, row->lse, bound->lse);
    for (int64_t d = at[3] = 0; d < row->value_dim; at[3] = ++d)
        if (!tally_compare(&card->o, (double)o[d], row->o[d], bound->o[d]))
            fail_value(x, m, "o", at, (double)o[d], row->o[d], bound->o[d]);
    for (int64_t s = at[3] = 0; s < row->keys; at[3] = ++s) {
        bool hidden = row->score[s] == -INFINITY;
        tally *all = row->p[s] < 0x1p-120 ? &card->rest : &card->p;
        if (hidden ? p[s] != 0 : !tally_compare(all, (double)p[s], row->p[s], bound->p[s]))
            fail_value(x, m, "p", at, (double)p[s], row->p[s], bound->p[s]);
    }
    for (int64_t s = row->keys; s < x->c.result.S; s++)
        if (p[s] != 0) fail_trial(x, m, "p beyond the end of the sequence is not 0");
}

static void check_row(void *user, int64_t b, int64_t h, int64_t t, kinds_row *row, bound_row *bound)
{
    const trial *x = user;
    score_card other = {0};
    bool wide = x->c.shape.D > MHA_TILED_MAX_HEAD_DIM || x->c.shape.Dv > MHA_TILED_MAX_HEAD_DIM;
    kinds_attention_row(&x->a, b, h, t, row);
    bool apart = wide || (row->visible > 0 && row->sink_p > 1 - 0x1p-50);
    for (int m = 0; m < x->all->count; m++) {
        const machine *each = &x->all->each[m];
        bool again =
            m > 0 && each->isa == MHA_ISA_AVX512 && x->all->each[m - 1].isa == MHA_ISA_AVX2;
        bound_arith arith = bound_arith_of(&x->a, each->path, each->isa);
        if (!again) kinds_bound_row(&x->a, &arith, b, h, t, row, bound);
        compare_row(x, m, b, h, t, row, bound, apart ? &other : &x->cards[m]);
    }
}

static void run_machines(trial *x, rng *r)
{
    for (int m = 0; m < x->all->count; m++) {
        const machine *each = &x->all->each[m];
        unsigned layout =
            x->c.shape.plain_layout ? LAYOUT_CONTIGUOUS : guarded_random_layout(r, false);
        x->got[m] = kinds_outcome(&x->c, r, layout);
        if (kinds_run(each->context, &x->c, each->path, &x->got[m]) != MHA_OK)
            fail_trial(x, m, mha_error_detail());
        if (!outcome_intact(&x->got[m])) fail_trial(x, m, "wrote between elements");
        if (m > 0 && each->isa == MHA_ISA_AVX512 && x->all->each[m - 1].isa == MHA_ISA_AVX2 &&
            !outcome_same(&x->got[m], &x->got[m - 1], false))
            fail_trial(x, m, "not the bits of avx2");
    }
}

static void run_trial(int number, const kinds_shape *given, const machines *all, score_card *cards)
{
    rng r = rng_make(rng_run_seed(), (uint64_t)number);
    kinds_shape shape = kinds_some_shape(&r);
    if (given) {
        shape.kinds = given->kinds;
        if (given->S) shape.S = given->S;
    }
    trial x = {.number = number, .all = all, .cards = cards};
    kinds_make(&x.c, &r, &shape);
    x.a = kinds_reference(&x.c);
    run_machines(&x, &r);
    kinds_check_rows(&x.c, &r, 1e5, check_row, &x);
    for (int m = 0; m < all->count; m++) outcome_free(&x.got[m]);
    kinds_free(&x.c);
}

static void print_cards(const machines *all, const score_card *cards)
{
    for (int i = 0; i < all->count; i++) {
        tally_judge_as(cards[i].o, all->each[i].name, "o");
        tally_judge_as(cards[i].lse, all->each[i].name, "lse");
        tally_judge_as(cards[i].p, all->each[i].name, "p");
    }
}

static void random_company(void)
{
    machines all = machines_make(1);
    score_card cards[MOST_MACHINES] = {0};
    int i, end;
    const bool whole = rng_range(SAMPLE, ALL, &i, &end);
    for (; i < end; i++) run_trial(i, NULL, &all, cards);
    if (whole) print_cards(&all, cards);
}

/* Each kind alone, and each pair of kinds, independent of the random sample. */
static void alone_and_in_pairs(void)
{
    machines all = machines_make(1);
    score_card cards[MOST_MACHINES] = {0};
    int number = 1000000;
    for (int i = 0; i < KINDS_COUNT; i++)
        for (int j = i; j < KINDS_COUNT; j++) {
            kinds_shape given = {.kinds = (1u << i) | (1u << j)};
            if (given.kinds & (KIND_SINK_KEYS | KIND_GLOBAL_KEYS | KIND_GLOBAL_QUERIES))
                given.kinds |= KIND_WINDOW;
            if (i == j) given.S = 600;
            run_trial(number++, &given, &all, cards);
        }
    print_cards(&all, cards);
}

/* ---- every input on every path --------------------------------------------------------------- */

/* Each tensor of a descriptor belongs to a kind. A new tensor without a line here does not
 * compile. */
enum {
    KIND_OF_keep_mask = KIND_KEEP,
    KIND_OF_bias = KIND_BIAS,
    KIND_OF_global_keys = KIND_GLOBAL_KEYS,
    KIND_OF_global_queries = KIND_GLOBAL_QUERIES,
    KIND_OF_query_documents = KIND_DOCUMENTS,
    KIND_OF_key_documents = KIND_DOCUMENTS,
    KIND_OF_keep_blocks = KIND_BLOCKS,
    KIND_OF_alibi_slopes = KIND_ALIBI,
    KIND_OF_t5_table = KIND_T5,
    KIND_OF_shaw_keys = KIND_SHAW_KEYS,
    KIND_OF_shaw_values = KIND_SHAW_VALUES,
    KIND_OF_sink_logits = KIND_SINK_LOGITS,
    KIND_OF_gates = KIND_GATES
};

/* Sizes that use each variant of the tiled path unless an input prevents it, with explain's report.
 * Contexts have two threads. */
static const struct {
    kinds_shape shape;
    uint32_t flags;
} ways[] = {
    {{.B = 2, .H = 4, .Hk = 2, .T = 40, .S = 60, .D = 32, .Dv = 32}, MHA_PLAN_ONE_BLOCK},
    {{.B = 2, .H = 16, .Hk = 8, .T = 3, .S = 5, .D = 40, .Dv = 24}, MHA_PLAN_ONE_BLOCK},
    {{.B = 1, .H = 4, .Hk = 2, .T = 1, .S = 600, .D = 32, .Dv = 32}, MHA_PLAN_KEYS_IN_PLACE},
    {{.B = 1, .H = 16, .Hk = 1, .T = 2, .S = 4096, .D = 64, .Dv = 64},
     MHA_PLAN_KEYS_IN_PLACE | MHA_PLAN_KEYS_SHARED},
    {{.B = 1, .H = 2, .Hk = 2, .T = 70, .S = 600, .D = 24, .Dv = 40}, 0},
};

static void check_way(const kinds_shape *shape, uint32_t flags, const machines *all)
{
    const mha_tensor q = mha_tensor_contiguous(NULL, MHA_F32, 4,
                                               (int64_t[]){shape->B, shape->H, shape->T, shape->D}),
                     k = mha_tensor_contiguous(
                         NULL, MHA_F32, 4, (int64_t[]){shape->B, shape->Hk, shape->S, shape->D}),
                     v = mha_tensor_contiguous(
                         NULL, MHA_F32, 4, (int64_t[]){shape->B, shape->Hk, shape->S, shape->Dv});
    for (int m = 0; m < all->count; m++) {
        mha_attention_plan plan;
        if (all->each[m].path == MHA_PATH_PLAIN) continue;
        expect_ok(mha_attention_explain(all->each[m].context, NULL, &q, &k, &v, NULL, NULL, &plan));
        assert_int_equal(plan.flags, flags);
    }
}

/* A call with probabilities uses the general path, which is compared with the reference. Without
 * probabilities it uses the fast path, which must be bit-identical. This detects an input that a
 * path ignores. */
static void every_input_on_every_path(void)
{
    unsigned covered = 0;
    machines all = machines_make(2);
    score_card cards[MOST_MACHINES] = {0};
#define COVER(name, type, axes, stage) covered |= KIND_OF_##name;
    MHA_ATTENTION_INPUTS(COVER)
#undef COVER
    assert_int_equal(covered & ~(unsigned)KINDS_ALL, 0);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        check_way(&ways[i].shape, ways[i].flags, &all);
        for (int kind = 0; kind < KINDS_COUNT; kind++) {
            if (!rng_takes((int64_t)i * KINDS_COUNT + kind, 3)) continue;
            rng r = rng_make(rng_run_seed(), 2000000 + (uint64_t)kind);
            kinds_shape shape = ways[i].shape;
            shape.kinds = 1u << kind;
            if (shape.kinds & (KIND_SINK_KEYS | KIND_GLOBAL_KEYS | KIND_GLOBAL_QUERIES))
                shape.kinds |= KIND_WINDOW;
            trial x = {.number = 2000000 + kind, .all = &all, .cards = cards};
            kinds_make(&x.c, &r, &shape);
            x.a = kinds_reference(&x.c);
            run_machines(&x, &r);
            kinds_check_rows(&x.c, &r, 1e5, check_row, &x);
            for (int m = 0; m < all.count; m++) {
                outcome bare =
                    outcome_make(&r, &x.c.result, OUTCOME_LSE, guarded_random_layout(&r, false));
                if (kinds_run(all.each[m].context, &x.c, all.each[m].path, &bare) != MHA_OK)
                    fail_trial(&x, m, mha_error_detail());
                if (!outcome_same(&bare, &x.got[m], false))
                    fail_trial(&x, m, "other bits without probabilities");
                outcome_free(&bare);
                outcome_free(&x.got[m]);
            }
            kinds_free(&x.c);
        }
    }
}

/* ---- constants from the literature ----------------------------------------------------------- */

/* The test vectors of the authors' Random123 library. */
static void philox_vectors(void)
{
    static const uint32_t vectors[][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
         0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1}};
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        uint32_t out[4];
        kinds_philox(vectors[i], vectors[i] + 4, out);
        assert_memory_equal(out, vectors[i] + 6, sizeof out);
    }
}

/* The first distances of T5's buckets (32 buckets, 128), computed from its publication. */
static const int64_t two_sided[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91};
static const int64_t one_sided[] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                                    11, 12, 13, 14, 15, 16, 19, 21, 24, 27, 31,
                                    35, 40, 46, 52, 59, 67, 77, 87, 99, 113};

static int64_t bucket_of(const int64_t *first, int64_t count, int64_t distance)
{
    int64_t bucket = 0;
    while (bucket + 1 < count && first[bucket + 1] <= distance) bucket++;
    return bucket;
}

static int64_t published_bucket(int64_t rel, bool one)
{
    if (one) return bucket_of(one_sided, 32, rel < 0 ? -rel : 0);
    return rel > 0 ? 16 + bucket_of(two_sided, 16, rel) : bucket_of(two_sided, 16, -rel);
}

/* The library's bucket, from lse with one key and a table that contains row numbers. */
static int64_t library_bucket(const machine *m, int64_t rel, int64_t buckets, int64_t most,
                              bool one)
{
    enum { MOST_BUCKETS = 64 };
    float zero[1] = {0}, table[MOST_BUCKETS], o[1], lse[1];
    for (int i = 0; i < MOST_BUCKETS; i++) table[i] = (float)i;
    const int64_t single[] = {1, 1, 1, 1};
    const mha_tensor x = mha_tensor_contiguous(zero, MHA_F32, 4, single);
    const mha_tensor out = mha_tensor_contiguous(o, MHA_F32, 4, single);
    const mha_tensor log_sum = mha_tensor_contiguous(lse, MHA_F32, 3, single);
    const mha_tensor t5 = mha_tensor_contiguous(table, MHA_F32, 2, (int64_t[]){buckets, 1});
    const mha_attention_outputs outputs = {.struct_size = sizeof outputs, .lse = &log_sum};
    const mha_attention_desc desc = {.struct_size = sizeof desc,
                                     .path = m->path,
                                     .flags = one ? MHA_ATTENTION_T5_ONE_SIDED : 0,
                                     .q_offset = -rel,
                                     .t5_max_distance = most,
                                     .t5_table = &t5};
    assert_in_range(buckets, 1, MOST_BUCKETS);
    expect_ok(mha_attention_forward(m->context, &desc, &x, &x, &x, &out, &outputs));
    return llround((double)lse[0]);
}

static void t5_boundaries(void)
{
    machines all = machines_make(1);
    for (int m = 0; m < all.count; m++)
        for (int64_t rel = -300; rel <= 300; rel++)
            for (int sided = 0; sided < 2; sided++) {
                const int64_t bucket = published_bucket(rel, sided);
                const int64_t found = library_bucket(&all.each[m], rel, 32, 128, sided);
                assert_int_equal(kinds_t5_bucket(rel, 32, 128, sided), bucket);
                if (found != bucket)
                    fail_msg("%s: distance %lld is in bucket %lld, not %lld", all.each[m].name,
                             (long long)rel, (long long)found, (long long)bucket);
            }
}

/* A bucket begins where (distance / exact)^(buckets - exact) is an integer power of max_distance /
 * exact; a rounded logarithm may be below it. */
static void t5_whole_powers(void)
{
    machines all = machines_make(1);
    int checked = 0;
    for (int64_t buckets = 3; buckets <= 48; buckets++)
        for (int64_t b = 1; b <= 12; b++)
            for (int64_t a = 0; a < b; a++) {
                const int64_t exact = buckets / 2, larger = buckets - exact;
                const int64_t distance = exact << a, bucket = exact + a * larger / b;
                if (a * larger % b != 0) continue;
                for (int64_t short_by = 0; short_by < 2; short_by++) {
                    const int64_t found = library_bucket(&all.each[0], short_by - distance, buckets,
                                                         exact << b, true);
                    if (short_by ? found >= bucket : found != bucket)
                        fail_msg("%lld buckets up to %lld: distance %lld is in bucket %lld, %lld "
                                 "begins at %lld",
                                 (long long)buckets, (long long)(exact << b),
                                 (long long)(distance - short_by), (long long)found,
                                 (long long)bucket, (long long)distance);
                    checked++;
                }
            }
    assert_in_range(checked, 1000, 10000);
}

RUN_TESTS(TEST(philox_vectors), TEST(t5_boundaries), TEST(t5_whole_powers),
          TEST(alone_and_in_pairs), TEST(every_input_on_every_path), TEST(random_company))
