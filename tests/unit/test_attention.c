/* Attention compared with the double-precision reference: random shapes, masks, layouts and values,
 * on every path and instruction set. Each element must be within its own derived bound
 * (docs/numerics.md).
 *
 * The default is a random sample; MHA_TEST_LONG=1 tests the full grid of lengths and head sizes. */
#include "reference/kinds_bounds.h"
#include "support/expect.h"
#include "support/machines.h"
#include "support/problem.h"
#include "support/suite.h"
#include "support/tally.h"

#include <multihead/attention.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- one problem ------------------------------------------------------------------------------
 */

static ref_attention problem_reference(const problem *p)
{
    return (ref_attention){.desc = &p->desc, .q = &p->q.view, .k = &p->k.view, .v = &p->v.view};
}

/* Ratios of errors to bounds, for each machine and kind of result. */
typedef struct score_card {
    tally o, lse, p, sum;
    tally tiny_p; /* below 2^-120, where flushing to 0 may be the whole error */
} score_card;

typedef struct place {
    int64_t b, h, t;
} place;

static float *row_of(const mha_tensor *x, place at)
{
    return (float *)x->data + at.b * x->stride[0] + at.h * x->stride[1] + at.t * x->stride[2];
}

static void fail_row(const problem *p, const machine *m, place at, const char *what, double got,
                     double exact, double bound)
{
    fail_msg("%s: %s\n  %s of row b%lld h%lld t%lld is %.9g, exact %.9g, error %.3g, bound %.3g",
             m->name, p->text, what, (long long)at.b, (long long)at.h, (long long)at.t, got, exact,
             fabs(got - exact), bound);
}

static void compare_p(const problem *p, const machine *m, const outcome *got, place at,
                      const kinds_row *row, const bound_row *bound, score_card *card)
{
    const float *line = row_of(&got->p.view, at);
    double sum = 0;
    for (int64_t s = 0; s < row->keys; s++) {
        sum += (double)line[s];
        if (row->score[s] == -INFINITY && line[s] != 0)
            fail_row(p, m, at, "p of a dropped key", (double)line[s], 0, 0);
        tally *t = row->p[s] < 0x1p-120 ? &card->tiny_p : &card->p;
        if (!tally_compare(t, (double)line[s], row->p[s], bound->p[s]))
            fail_row(p, m, at, "p", (double)line[s], row->p[s], bound->p[s]);
    }
    if (row->visible > 0 && !tally_compare(&card->sum, sum, 1, bound->sum))
        fail_row(p, m, at, "sum of p", sum, 1, bound->sum);
}

static void compare_row(const problem *p, const machine *m, const outcome *got, place at,
                        const kinds_row *row, const bound_row *bound, score_card *card)
{
    const float *o = row_of(&got->o.view, at);
    float lse = *row_of(&got->lse.view, at);
    for (int64_t d = 0; d < row->value_dim; d++)
        if (!tally_compare(&card->o, (double)o[d], row->o[d], bound->o[d]))
            fail_row(p, m, at, "o", (double)o[d], row->o[d], bound->o[d]);
    if (!tally_compare(&card->lse, (double)lse, row->lse, bound->lse))
        fail_row(p, m, at, "lse", (double)lse, row->lse, bound->lse);
    compare_p(p, m, got, at, row, bound, card);
}

/* Run on every machine, then compare up to `rows` rows, including the first and the last. */
static void check_problem(const problem *p, rng *r, const machines *all, int64_t rows,
                          score_card *cards)
{
    const problem_shape *n = &p->shape;
    outcome got[MOST_MACHINES];
    int avx2 = -1;
    for (int i = 0; i < all->count; i++) {
        const machine *m = &all->each[i];
        unsigned layout = n->plain_layout ? LAYOUT_CONTIGUOUS : guarded_random_layout(r, false);
        got[i] = outcome_make(r, n, OUTCOME_ALL, layout);
        if (problem_run(m->context, p, m->path, &got[i]) != MHA_OK)
            fail_msg("%s: %s: %s", m->name, p->text, mha_error_detail());
        if (!outcome_intact(&got[i])) fail_msg("%s: %s: wrote between elements", m->name, p->text);
        if (m->isa == MHA_ISA_AVX2) avx2 = i;
        if (m->isa == MHA_ISA_AVX512 && avx2 >= 0 && !outcome_same(&got[i], &got[avx2], false))
            fail_msg("%s: AVX2 and AVX-512 differ in bits", p->text);
    }
    int64_t total = n->B * n->H * n->T;
    ref_attention reference = problem_reference(p);
    kinds_row row = kinds_row_make(n->S, n->Dv);
    bound_row bound = bound_row_make(n->S, n->Dv);
    for (int64_t i = 0; i < rows && i < total; i++) {
        int64_t at = rows >= total || i == 0 ? i
                     : i == 1                ? total - 1
                                             : rng_between(r, 0, total - 1);
        place where = {at / n->T / n->H, at / n->T % n->H, at % n->T};
        kinds_attention_row(&reference, where.b, where.h, where.t, &row);
        for (int j = 0; j < all->count; j++) {
            const machine *m = &all->each[j];
            bound_arith arith = bound_arith_of(&reference, m->path, m->isa);
            kinds_bound_row(&reference, &arith, where.b, where.h, where.t, &row, &bound);
            compare_row(p, m, &got[j], where, &row, &bound, &cards[j]);
        }
    }
    for (int i = 0; i < all->count; i++) outcome_free(&got[i]);
    bound_row_free(&bound);
    kinds_row_free(&row);
}

static void print_cards(const machines *all, const score_card *cards)
{
    for (int i = 0; i < all->count; i++) {
        tally_judge_as(cards[i].o, all->each[i].name, "o");
        tally_judge_as(cards[i].lse, all->each[i].name, "lse");
        tally_judge_as(cards[i].p, all->each[i].name, "p");
        tally_judge_as(cards[i].sum, all->each[i].name, "sum of p");
    }
}

/* ---- random shapes -------------------------------------------------------------------------- */

static const int64_t lengths[] = {0,  1,   2,   3,   15,  16,  17,  63,   64,
                                  65, 127, 128, 129, 511, 512, 513, 1000, 1025};
static const int64_t head_sizes[] = {1, 7, 32, 40, 64, 80, 96, 128, 160, 256};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };
enum { HEAD_SIZES = sizeof head_sizes / sizeof head_sizes[0] };

static int64_t some_divisor(rng *r, int64_t n)
{
    for (;;) {
        int64_t divisor = rng_between(r, 1, n);
        if (n % divisor == 0) return divisor;
    }
}

static problem_shape some_shape(rng *r, int64_t T, int64_t S, int64_t D)
{
    problem_shape n = {.B = rng_between(r, 1, 3), .T = T, .S = S, .D = D};
    n.H = rng_between(r, 1, 6);
    n.Hk = some_divisor(r, n.H);
    n.Dv = rng_chance(r, 0.5) ? D : RNG_PICK(r, head_sizes);
    n.values = (problem_values)rng_between(r, 0, VALUES_KINDS - 1);
    if (rng_chance(r, 0.3)) n.values = VALUES_NORMAL;
    n.masks = (unsigned)rng_between(r, 0, MASK_ALL) & (unsigned)rng_between(r, 0, MASK_ALL);
    if (rng_chance(r, 0.1)) n.masks = MASK_ALL;
    n.plain_layout = rng_chance(r, 0.3);
    return n;
}

/* The number of rows to compare, which bounds the reference's share of the time. */
static int64_t affordable_rows(const problem_shape *n, double work)
{
    double row = (double)(n->S + 1) * (double)(n->D + n->Dv);
    return 2 + (int64_t)fmin(400, work / row);
}

/* Use smaller batches if the product of sizes is large. */
static void limit_shape(problem_shape *n, double most)
{
    while ((double)(n->B * n->H * n->T) * (double)n->S * (double)(n->D + n->Dv) > most &&
           (n->B > 1 || n->H > 1)) {
        if (n->B > 1)
            n->B--;
        else
            n->H = n->Hk = 1;
    }
}

static void random_case(uint64_t stream, const int64_t *size, const machines *all,
                        score_card *cards)
{
    bool full = rng_long_run();
    rng r = rng_make(rng_run_seed(), stream);
    problem_shape n = some_shape(&r, size ? size[0] : RNG_PICK(&r, lengths),
                                 size ? size[1] : RNG_PICK(&r, lengths),
                                 size ? size[2] : RNG_PICK(&r, head_sizes));
    limit_shape(&n, full ? 2e8 : 1.5e7);
    if (!full && n.T > 200 && n.S > 200) n.T = RNG_PICK(&r, lengths) % 130;
    problem p;
    problem_make(&p, &r, &n);
    check_problem(&p, &r, all, affordable_rows(&n, full ? 2e6 : 2.5e5), cards);
    problem_free(&p);
}

static void random_shapes(void)
{
    machines all = machines_make(1);
    score_card cards[MOST_MACHINES] = {0};
    uint64_t stream = 0;
    if (rng_long_run()) {
        for (int t = 0; t < LENGTHS; t++)
            for (int s = 0; s < LENGTHS; s++)
                for (int d = 0; d < HEAD_SIZES; d++, stream++)
                    random_case(stream, (int64_t[]){lengths[t], lengths[s], head_sizes[d]}, &all,
                                cards);
    } else {
        for (uint64_t most = (uint64_t)rng_cases(150, 0); stream < most; stream++)
            random_case(stream, NULL, &all, cards);
    }
    printf("  %llu problems\n", (unsigned long long)stream);
    print_cards(&all, cards);
}

/* Every kind of values with every kind of mask, at sizes that cross a key block. */
static void every_mask_and_value(void)
{
    static const unsigned masks[] = {
        0,         MASK_CAUSAL, MASK_OFFSETS,          MASK_LENGTHS,
        MASK_KEEP, MASK_BIAS,   MASK_KEEP | MASK_BIAS, MASK_CAUSAL | MASK_LENGTHS,
        MASK_ALL};
    machines all = machines_make(1);
    score_card cards[MOST_MACHINES] = {0};
    uint64_t stream = 1000000;
    for (size_t i = 0; i < sizeof masks / sizeof masks[0]; i++)
        for (int kind = 0; kind < VALUES_KINDS; kind++) {
            rng r = rng_make(rng_run_seed(), stream++);
            problem_shape n = some_shape(&r, rng_between(&r, 1, 20), 513, 40);
            n.values = (problem_values)kind;
            n.masks = masks[i];
            problem p;
            problem_make(&p, &r, &n);
            check_problem(&p, &r, &all, rng_long_run() ? 200 : 4, cards);
            problem_free(&p);
        }
    print_cards(&all, cards);
}

/* A length of 0 in every dimension. */
static void empty_shapes(void)
{
    machines all = machines_make(1);
    score_card cards[MOST_MACHINES] = {0};
    for (int zero = 0; zero < 5; zero++)
        for (unsigned masks = 0; masks <= (unsigned)MASK_ALL; masks++) {
            rng r = rng_make(rng_run_seed(), 2000000u + masks);
            problem_shape n = {.B = 2, .H = 4, .Hk = 2, .T = 3, .S = 5, .D = 8, .Dv = 8};
            n.masks = masks;
            int64_t *sizes[] = {&n.B, &n.T, &n.S, &n.Dv, &n.H};
            *sizes[zero] = 0;
            if (n.H == 0) n.Hk = 0;
            problem p;
            problem_make(&p, &r, &n);
            check_problem(&p, &r, &all, 1000, cards);
            problem_free(&p);
        }
}

/* ---- exact properties ----------------------------------------------------------------------- */

/* A query that sees one key gets exactly its value. */
static void one_visible_key(void)
{
    machines all = machines_make(1);
    rng r = rng_make(rng_run_seed(), 3000000);
    const problem_shape n = {.B = 1, .H = 2, .Hk = 1, .T = 5, .S = 700, .D = 40, .Dv = 33};
    for (int i = 0; i < all.count; i++) {
        problem p;
        problem_make(&p, &r, &n);
        int64_t key = rng_between(&r, 0, n.S - 1);
        guarded keep = guarded_make(&r, MHA_U8, 1, (int64_t[]){n.S}, LAYOUT_CONTIGUOUS);
        memset(keep.view.data, 0, (size_t)n.S);
        ((uint8_t *)keep.view.data)[key] = 1;
        p.desc.keep_mask = &keep.view;
        outcome x = outcome_make(&r, &n, OUTCOME_ALL, LAYOUT_CONTIGUOUS);
        expect_ok(problem_run(all.each[i].context, &p, all.each[i].path, &x));
        for (int64_t t = 0; t < n.T; t++)
            for (int64_t d = 0; d < n.Dv; d++)
                assert_true(row_of(&x.o.view, (place){0, 1, t})[d] ==
                            row_of(&p.v.view, (place){0, 0, key})[d]);
        assert_true(row_of(&x.p.view, (place){0, 0, 0})[key] == 1.0f);
        outcome_free(&x);
        guarded_free(&keep);
        problem_free(&p);
    }
}

/* Scale 0 given explicitly: equal weights over the visible keys. */
static void scale_zero(void)
{
    machines all = machines_make(1);
    rng r = rng_make(rng_run_seed(), 3000001);
    const problem_shape n = {.B = 1, .H = 1, .Hk = 1, .T = 2, .S = 64, .D = 16, .Dv = 16};
    problem p;
    problem_make(&p, &r, &n);
    p.desc.scale = 0;
    p.desc.flags |= MHA_ATTENTION_SCALE_GIVEN;
    for (int i = 0; i < all.count; i++) {
        outcome x = outcome_make(&r, &n, OUTCOME_ALL, LAYOUT_CONTIGUOUS);
        expect_ok(problem_run(all.each[i].context, &p, all.each[i].path, &x));
        for (int64_t s = 0; s < n.S; s++)
            assert_true(row_of(&x.p.view, (place){0, 0, 1})[s] == 1.0f / 64);
        outcome_free(&x);
    }
    problem_free(&p);
}

/* ---- non-finite values ----------------------------------------------------------------------- */

/* A problem twice: with zeros at chosen elements of q, k and v, and with NaN or infinity there. */
typedef struct poisoned {
    problem_shape shape;
    bool *bad_q, *bad_k; /* [B,H,T] and [B,Hk,S] */
    bool *bad_v;         /* [B,Hk,S,Dv] */
} poisoned;

static bool *flags(int64_t count)
{
    bool *memory = test_calloc((size_t)count + 1, sizeof *memory);
    assert_non_null(memory);
    return memory;
}

static float some_bad(rng *r)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    return RNG_PICK(r, bad);
}

/* Choose the places and set them to zero. */
static poisoned poison_choose(problem *p, rng *r)
{
    const problem_shape *n = &p->shape;
    poisoned x = {.shape = *n,
                  .bad_q = flags(n->B * n->H * n->T),
                  .bad_k = flags(n->B * n->Hk * n->S),
                  .bad_v = flags(n->B * n->Hk * n->S * n->Dv)};
    double often = rng_chance(r, 0.5) ? 0.01 : 0.2;
    for (int64_t i = 0; i < n->B * n->H * n->T; i++) x.bad_q[i] = rng_chance(r, often / 4);
    for (int64_t i = 0; i < n->B * n->Hk * n->S; i++) {
        x.bad_k[i] = rng_chance(r, often);
        for (int64_t d = 0; d < n->Dv; d++)
            x.bad_v[i * n->Dv + d] = rng_chance(r, often) && rng_chance(r, 0.2);
    }
    return x;
}

static void poison_free(poisoned *x)
{
    test_free(x->bad_q);
    test_free(x->bad_k);
    test_free(x->bad_v);
}

/* Write zeros or bad numbers at the chosen places. A bad key or query is bad in one random
 * element. */
static void poison_write(problem *p, const poisoned *x, rng *r, bool bad)
{
    const problem_shape *n = &p->shape;
    for (int64_t i = 0; i < n->B * n->H * n->T; i++)
        if (x->bad_q[i]) {
            place at = {i / n->T / n->H, i / n->T % n->H, i % n->T};
            int64_t d = i % n->D;
            row_of(&p->q.view, at)[d] = bad ? some_bad(r) : 0;
        }
    for (int64_t i = 0; i < n->B * n->Hk * n->S; i++) {
        place at = {i / n->S / n->Hk, i / n->S % n->Hk, i % n->S};
        if (x->bad_k[i]) row_of(&p->k.view, at)[i % n->D] = bad ? some_bad(r) : 0;
        for (int64_t d = 0; d < n->Dv; d++)
            if (x->bad_v[i * n->Dv + d]) row_of(&p->v.view, at)[d] = bad ? some_bad(r) : 0;
    }
}

static bool same_float(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

/* The rules of attention.h for one row, given that row of the problem with zeros. */
static void check_special_row(const problem *p, const poisoned *x, place at, const outcome *bad,
                              const outcome *zero)
{
    const problem_shape *n = &p->shape;
    ref_attention a = problem_reference(p);
    int64_t hk = at.h / (n->H / n->Hk), visible = 0;
    bool poisoned_row = false;
    bool *column = flags(n->Dv);
    for (int64_t s = 0; s < n->S; s++) {
        if (!kinds_sees(&a, at.b, at.h, at.t, s)) continue;
        visible++;
        int64_t key = (at.b * n->Hk + hk) * n->S + s;
        poisoned_row |= x->bad_k[key];
        for (int64_t d = 0; d < n->Dv; d++) column[d] |= x->bad_v[key * n->Dv + d];
    }
    poisoned_row |= visible > 0 && x->bad_q[(at.b * n->H + at.h) * n->T + at.t];
    const float *o = row_of(&bad->o.view, at), *o_zero = row_of(&zero->o.view, at);
    const float *w = row_of(&bad->p.view, at), *w_zero = row_of(&zero->p.view, at);
    float lse = *row_of(&bad->lse.view, at), lse_zero = *row_of(&zero->lse.view, at);
    for (int64_t d = 0; d < n->Dv; d++) {
        if (poisoned_row)
            assert_true(isnan(o[d]));
        else if (column[d])
            assert_true(!isfinite(o[d]));
        else
            assert_true(same_float(o[d], o_zero[d]));
    }
    assert_true(poisoned_row ? isnan(lse) : same_float(lse, lse_zero));
    for (int64_t s = 0; s < n->S; s++) {
        if (!kinds_sees(&a, at.b, at.h, at.t, s))
            assert_true(w[s] == 0);
        else
            assert_true(poisoned_row ? isnan(w[s]) : same_float(w[s], w_zero[s]));
    }
    test_free(column);
}

static void special_case(uint64_t stream, const machines *all)
{
    rng r = rng_make(rng_run_seed(), stream);
    problem_shape n = some_shape(&r, RNG_PICK(&r, lengths) % 130, RNG_PICK(&r, lengths), 7);
    n.values = VALUES_NORMAL;
    n.D = RNG_PICK(&r, head_sizes) % 100;
    n.Dv = RNG_PICK(&r, head_sizes) % 70;
    if (n.D == 0) n.D = 64;
    n.plain_layout = true; /* no axis of stride 0, so that every element has one place */
    limit_shape(&n, 2e6);
    problem p;
    problem_make(&p, &r, &n);
    poisoned x = poison_choose(&p, &r);
    for (int i = 0; i < all->count; i++) {
        const machine *m = &all->each[i];
        outcome zero = outcome_make(&r, &n, OUTCOME_ALL, LAYOUT_CONTIGUOUS);
        outcome bad = outcome_make(&r, &n, OUTCOME_ALL, guarded_random_layout(&r, false));
        poison_write(&p, &x, &r, false);
        expect_ok(problem_run(m->context, &p, m->path, &zero));
        poison_write(&p, &x, &r, true);
        expect_ok(problem_run(m->context, &p, m->path, &bad));
        if (!outcome_intact(&bad)) fail_msg("%s: %s: wrote between elements", m->name, p.text);
        int64_t total = n.B * n.H * n.T;
        for (int64_t row = 0; row < total; row++)
            check_special_row(&p, &x, (place){row / n.T / n.H, row / n.T % n.H, row % n.T}, &bad,
                              &zero);
        outcome_free(&zero);
        outcome_free(&bad);
    }
    poison_free(&x);
    problem_free(&p);
}

static void special_values(void)
{
    machines all = machines_make(1);
    uint64_t cases = (uint64_t)rng_cases(60, 1500);
    for (uint64_t i = 0; i < cases; i++) special_case(4000000 + i, &all);
}

/* NaN, infinity and garbage in padding change no bit. */
static void garbage_in_padding(void)
{
    machines all = machines_make(1);
    for (int i = 0; i < all.count; i++) {
        rng r = rng_make(rng_run_seed(), 5000000);
        problem_shape n = {.B = 3, .H = 4, .Hk = 2, .T = 9, .S = 600, .D = 32, .Dv = 40};
        n.masks = MASK_LENGTHS | MASK_CAUSAL;
        n.plain_layout = true;
        problem p;
        problem_make(&p, &r, &n);
        p.lengths[0] = 0, p.lengths[1] = 77, p.lengths[2] = 530;
        outcome clean = outcome_make(&r, &n, OUTCOME_ALL, LAYOUT_CONTIGUOUS);
        outcome dirty = outcome_make(&r, &n, OUTCOME_ALL, LAYOUT_CONTIGUOUS);
        const machine *m = &all.each[i];
        for (int pass = 0; pass < 2; pass++) {
            for (int64_t b = 0; b < n.B; b++)
                for (int64_t hk = 0; hk < n.Hk; hk++)
                    for (int64_t s = p.lengths[b]; s < n.S; s++) {
                        for (int64_t d = 0; d < n.D; d++)
                            row_of(&p.k.view, (place){b, hk, s})[d] = pass ? some_bad(&r) : 0;
                        for (int64_t d = 0; d < n.Dv; d++)
                            row_of(&p.v.view, (place){b, hk, s})[d] = pass ? some_bad(&r) : 0;
                    }
            expect_ok(problem_run(m->context, &p, m->path, pass ? &dirty : &clean));
        }
        assert_true(outcome_same(&clean, &dirty, false));
        outcome_free(&clean);
        outcome_free(&dirty);
        problem_free(&p);
    }
}

RUN_TESTS(TEST(random_shapes), TEST(every_mask_and_value), TEST(empty_shapes),
          TEST(one_visible_key), TEST(scale_zero), TEST(special_values), TEST(garbage_in_padding))
