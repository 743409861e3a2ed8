/* Optional outputs (mha_attention_outputs). Entropy, scores and probabilities after dropout are compared with the
 * double-precision reference within their bounds (docs/numerics.md, 3.13). All other outputs are
 * exact functions of the probabilities, which test_attention_kinds.c checks, and must be
 * bit-identical to these functions. Results must not depend on threads or on other requested
 * outputs.
 *
 * The default is a sample; MHA_TEST_LONG=1 tests 5,000 descriptors. MHA_TEST_CASE=n (with
 * MHA_TEST_SEED) runs only the n-th. */
#include "reference/kinds_bounds.h"
#include "support/expect.h"
#include "support/extras.h"
#include "support/machines.h"
#include "support/suite.h"
#include "support/tally.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLE = 80, ALL = 5000, THREADED = 12 };

typedef struct score_card {
    tally entropy, raw, capped, biased, dropped;
} score_card;

/* One case on one machine: all outputs at once, p of all heads and rows, and p after dropout. */
typedef struct trial {
    int number;
    bool poisoned;
    kinds_case c;
    ref_attention a;
    extras_request request;
    const machine *m;
    score_card *card;
    extras got, whole, dropped;
} trial;

static void fail_trial(const trial *x, const char *what, int64_t b, int64_t h, int64_t t, int64_t s)
{
    fail_msg("%s: %s at b%lld h%lld t%lld, %lld\n  %s\n  alone: MHA_TEST_SEED=%llu "
             "MHA_TEST_CASE=%d",
             x->m->name, what, (long long)b, (long long)h, (long long)t, (long long)s, x->c.text,
             (unsigned long long)rng_run_seed(), x->number);
}

static bool same(float a, float b)
{
    return (isnan(a) && isnan(b)) || memcmp(&a, &b, sizeof a) == 0;
}

/* An element of a result by its indices. */
static float f32_at(const guarded *g, int64_t i, int64_t j, int64_t k, int64_t l)
{
    const int64_t index[] = {i, j, k, l};
    return *(const float *)guarded_element(&g->view, index);
}
static int64_t i64_at(const guarded *g, int64_t i, int64_t j, int64_t k, int64_t l)
{
    const int64_t index[] = {i, j, k, l};
    return *(const int64_t *)guarded_element(&g->view, index);
}

static int64_t chosen(const int64_t *list, int64_t count, int64_t i)
{
    return count >= 0 ? list[i] : i;
}

/* ---- exact functions of p -------------------------------------------------------------------- */

static void check_chosen(const trial *x)
{
    const extras_request *q = &x->request;
    const guarded *p = &x->got.each[EXTRA_P];
    const extras *from = q->dropped ? &x->dropped : &x->whole;
    for (int64_t b = 0; b < p->view.shape[0]; b++)
        for (int64_t i = 0; i < p->view.shape[1]; i++)
            for (int64_t j = 0; j < p->view.shape[2]; j++)
                for (int64_t s = 0; s < p->view.shape[3]; s++) {
                    int64_t h = chosen(q->heads, q->heads_count, i);
                    int64_t t = chosen(q->rows, q->rows_count, j);
                    if (!same(f32_at(p, b, i, j, s), f32_at(&from->each[EXTRA_P], b, h, t, s)))
                        fail_trial(x, "chosen p", b, h, t, s);
                }
}

static void check_average(const trial *x)
{
    const guarded *average = &x->got.each[EXTRA_AVERAGE];
    const extras *from = x->request.dropped ? &x->dropped : &x->whole;
    const guarded *p = &from->each[EXTRA_P];
    for (int64_t b = 0; b < average->view.shape[0]; b++)
        for (int64_t t = 0; t < average->view.shape[1]; t++)
            for (int64_t s = 0; s < average->view.shape[2]; s++) {
                float sum = 0;
                for (int64_t h = 0; h < p->view.shape[1]; h++) sum += f32_at(p, b, h, t, s);
                if (!same(f32_at(average, b, t, s, 0), sum / (float)p->view.shape[1]))
                    fail_trial(x, "average", b, -1, t, s);
            }
}

static void check_columns(const trial *x, int64_t b, int64_t h)
{
    const kinds_sequence at = kinds_sequence_at(&x->a, b);
    for (int64_t s = 0; s < at.S; s++) {
        double sum = 0;
        for (int64_t t = 0; t < at.T; t++)
            sum += (double)f32_at(&x->whole.each[EXTRA_P], at.batch, h, at.q0 + t, s);
        if (!same(f32_at(&x->got.each[EXTRA_COLUMNS], at.batch, h, at.k0 + s, 0), (float)sum))
            fail_trial(x, "column sum", b, h, -1, s);
    }
}

/* Key i + by, or -1 outside the range. */
static int64_t key_at(const trial *x, int64_t b, int64_t t, int64_t by)
{
    const int64_t far = INT64_MAX / 16, S = x->c.result.S;
    const mha_attention_desc *desc = &x->c.desc;
    int64_t offset = desc->q_offsets ? desc->q_offsets[b] : desc->q_offset;
    if (offset > far || offset < -far || by > far || by < -far) return -1;
    int64_t key = t + offset + by;
    return key >= 0 && key < S ? key : -1;
}

static void check_places(const trial *x, int64_t b, int64_t h, int64_t t, const float *p)
{
    const mha_attention_desc *desc = &x->c.desc;
    const kinds_sequence at = kinds_sequence_at(&x->a, b);
    const int64_t row = at.q0 + t, i = key_at(x, b, t, 0);
    const int64_t begin = desc->key_begins ? desc->key_begins[b] : 0;
    const extras *got = &x->got;
    if (!same(f32_at(&got->each[EXTRA_FIRST], at.batch, h, row, 0),
              x->c.result.S > begin ? p[begin] : 0))
        fail_trial(x, "first_token", b, h, t, 0);
    if (!same(f32_at(&got->each[EXTRA_DIAGONAL], at.batch, h, row, 0), i >= 0 ? p[i] : 0))
        fail_trial(x, "diagonal", b, h, t, i);
    for (int64_t n = 0; n < x->request.offsets_count; n++) {
        int64_t key = key_at(x, b, t, x->request.offsets[n]);
        if (!same(f32_at(&got->each[EXTRA_OFFSETS], at.batch, h, row, n), key >= 0 ? p[key] : 0))
            fail_trial(x, "offset_mass", b, h, t, n);
    }
}

/* The keys in order of decreasing weight, found by repeated search. */
static void check_top(const trial *x, int64_t b, int64_t h, int64_t t, const float *p, bool lost)
{
    const kinds_sequence at = kinds_sequence_at(&x->a, b);
    const int64_t row = at.q0 + t;
    float above = INFINITY;
    int64_t key = -1;
    for (int64_t n = 0; n < x->request.top; n++) {
        float best = 0;
        int64_t where = -1;
        for (int64_t s = 0; s < x->c.result.S && !lost; s++)
            if ((p[s] < above || (p[s] == above && s > key)) && p[s] > best) best = p[where = s];
        if (n == 0 && (i64_at(&x->got.each[EXTRA_LARGEST_KEY], at.batch, h, row, 0) != where ||
                       !same(f32_at(&x->got.each[EXTRA_LARGEST_WEIGHT], at.batch, h, row, 0),
                             lost ? NAN : best)))
            fail_trial(x, "largest", b, h, t, where);
        if (i64_at(&x->got.each[EXTRA_TOP_KEYS], at.batch, h, row, n) != where ||
            !same(f32_at(&x->got.each[EXTRA_TOP_WEIGHTS], at.batch, h, row, n), lost ? NAN : best))
            fail_trial(x, "top", b, h, t, n);
        above = best, key = where;
        if (where < 0) above = 0;
    }
}

static void check_rows(const trial *x, int64_t b, int64_t h)
{
    const kinds_sequence at = kinds_sequence_at(&x->a, b);
    for (int64_t t = 0; t < at.T; t++) {
        const float *p = kinds_at(&x->whole.each[EXTRA_P].view, &x->a, b, h, t);
        bool lost = false;
        for (int64_t s = 0; s < x->c.result.S; s++) lost |= isnan(p[s]);
        check_places(x, b, h, t, p);
        check_top(x, b, h, t, p, lost);
        if (lost != !!isnan(f32_at(&x->got.each[EXTRA_ENTROPY], at.batch, h, at.q0 + t, 0)))
            fail_trial(x, "entropy is NaN or not", b, h, t, 0);
    }
}

/* ---- comparison with the reference ----------------------------------------------------------- */

static bool pair_finite(const trial *x, int64_t b, int64_t h, int64_t t, int64_t s)
{
    const kinds_sequence at = kinds_sequence_at(&x->a, b);
    int64_t hk = h / (x->c.result.H / x->c.k.view.shape[1]);
    for (int64_t d = 0; d < x->c.q.view.shape[3]; d++)
        if (!isfinite(f32_at(&x->c.q, at.batch, h, at.q0 + t, d)) ||
            !isfinite(f32_at(&x->c.k, at.batch, hk, at.k0 + s, d)))
            return false;
    return true;
}

/* One score: -inf, NaN, or within its bound. */
static void check_score(const trial *x, const bound_arith *arith, int64_t b, int64_t h, int64_t t,
                        int64_t s, float got)
{
    const mha_score_stage stage = x->request.stage;
    bool there = s < kinds_sequence_at(&x->a, b).S;
    if (there && stage == MHA_SCORES_BIASED) there = kinds_sees(&x->a, b, h, t, s);
    if (!there) {
        if (got != -INFINITY) fail_trial(x, "a score that is not there", b, h, t, s);
        return;
    }
    if (!pair_finite(x, b, h, t, s)) {
        if (!isnan(got)) fail_trial(x, "a score that should be NaN", b, h, t, s);
        return;
    }
    kinds_score exact = kinds_score_at(&x->a, b, h, t, s);
    double bound = kinds_bound_score(&x->a, arith, b, h, t, s, stage, &exact);
    double value = stage == MHA_SCORES_RAW      ? exact.before_cap
                   : stage == MHA_SCORES_CAPPED ? exact.capped
                                                : exact.sum;
    tally *all = stage == MHA_SCORES_RAW      ? &x->card->raw
                 : stage == MHA_SCORES_CAPPED ? &x->card->capped
                                              : &x->card->biased;
    if (!tally_compare(all, (double)got, value, bound)) fail_trial(x, "score", b, h, t, s);
}

/* The sequence and query of a row of the tensors' batch entry. */
static int64_t sequence_of(const trial *x, int64_t batch, int64_t row, int64_t *t)
{
    int64_t b = batch;
    *t = row;
    if (!x->c.desc.query_starts) return b;
    for (b = 0; row >= x->c.desc.query_starts[b + 1];) b++;
    *t = row - x->c.desc.query_starts[b];
    return b;
}

static void check_scores(const trial *x, rng *r)
{
    const extras_request *q = &x->request;
    const guarded *scores = &x->got.each[EXTRA_SCORES];
    const bound_arith arith = bound_arith_of(&x->a, x->m->path, x->m->isa);
    if (guarded_is_empty(&scores->view)) return;
    for (int count = 0; count < 300; count++) {
        int64_t index[4], t;
        for (int i = 0; i < 4; i++) index[i] = rng_between(r, 0, scores->view.shape[i] - 1);
        int64_t h = chosen(q->heads, q->heads_count, index[1]);
        int64_t b = sequence_of(x, index[0], chosen(q->rows, q->rows_count, index[2]), &t);
        check_score(x, &arith, b, h, t, index[3],
                    f32_at(scores, index[0], index[1], index[2], index[3]));
    }
}

static void check_reference(void *user, int64_t b, int64_t h, int64_t t, kinds_row *row,
                            bound_row *bound)
{
    const trial *x = user;
    const bound_arith arith = bound_arith_of(&x->a, x->m->path, x->m->isa);
    const kinds_sequence at = kinds_sequence_at(&x->a, b);
    double got = (double)f32_at(&x->got.each[EXTRA_ENTROPY], at.batch, h, at.q0 + t, 0), exact = 0;
    kinds_attention_row(&x->a, b, h, t, row);
    kinds_bound_row(&x->a, &arith, b, h, t, row, bound);
    for (int64_t s = 0; s < row->keys; s++)
        if (row->p[s] > 0) exact -= row->p[s] * log(row->p[s]);
    double most = kinds_bound_entropy(row, bound);
    bool empty = row->visible == 0;
    bool right = empty ? got == 0 : isinf(most) ? got >= 0 : true;
    if (!empty && !isinf(most))
        right = tally_compare(exact > 1e-30 ? &x->card->entropy : &(tally){0}, got, exact, most);
    if (!right) fail_trial(x, "entropy", b, h, t, 0);
    const float *p = kinds_at(&x->dropped.each[EXTRA_P].view, &x->a, b, h, t);
    for (int64_t s = 0; s < row->keys; s++) {
        double factor = row->factor[s], value = row->p[s] * factor;
        double wrong = bound->p[s] * factor + 2.001 * 0x1p-24 * (value + bound->p[s] * factor);
        bool counts = factor > 0 && row->p[s] > 0x1p-120 && row->sink_p < 1 - 0x1p-50;
        if (row->score[s] == -INFINITY || factor == 0
                ? p[s] != 0
                : !tally_compare(counts ? &x->card->dropped : &(tally){0}, (double)p[s], value,
                                 wrong + 0x1p-149))
            fail_trial(x, "p after dropout", b, h, t, s);
    }
}

/* ---- trials ---------------------------------------------------------------------------------- */

static void run(const trial *x, mha_context *context, extras *out)
{
    if (extras_run(context, &x->c, x->m->path, out) != MHA_OK)
        fail_msg("%s: %s\n  %s", x->m->name, mha_error_detail(), x->c.text);
    if (!extras_intact(out)) fail_trial(x, "wrote between elements", -1, -1, -1, -1);
}

static unsigned some_layout(const trial *x, rng *r)
{
    return x->c.shape.plain_layout ? LAYOUT_CONTIGUOUS : guarded_random_layout(r, false);
}

/* Random NaNs and infinities. */
static void poison(guarded *g, rng *r)
{
    int64_t index[4];
    if (guarded_is_empty(&g->view) || rng_chance(r, 0.3)) return;
    for (int n = 0; n < 2; n++) {
        for (int i = 0; i < 4; i++) index[i] = rng_between(r, 0, g->view.shape[i] - 1);
        *(float *)guarded_element(&g->view, index) = rng_chance(r, 0.5) ? NAN : INFINITY;
    }
}

static void make_trial(trial *x, rng *r, int number)
{
    *x = (trial){.number = number};
    kinds_shape shape = kinds_some_shape(r);
    if (rng_chance(r, 0.3)) shape.kinds |= KIND_DROPOUT;
    kinds_make(&x->c, r, &shape);
    x->poisoned = rng_chance(r, 0.15);
    if (x->poisoned) poison(&x->c.q, r), poison(&x->c.k, r), poison(&x->c.v, r);
    x->a = kinds_reference(&x->c);
    x->request = extras_some(r, &x->c);
}

static void make_results(trial *x, rng *r)
{
    const extras_request whole = {.heads_count = -1, .rows_count = -1};
    extras_request dropped = whole;
    dropped.dropped = true;
    extras_make(&x->got, r, &x->c, &x->request, EXTRAS_ALL, some_layout(x, r));
    extras_make(&x->whole, r, &x->c, &whole, 1 << EXTRA_LSE | 1 << EXTRA_P, some_layout(x, r));
    extras_make(&x->dropped, r, &x->c, &dropped, 1 << EXTRA_P, some_layout(x, r));
    run(x, x->m->context, &x->got);
    run(x, x->m->context, &x->whole);
    run(x, x->m->context, &x->dropped);
}

static void free_results(trial *x)
{
    extras_free(&x->got);
    extras_free(&x->whole);
    extras_free(&x->dropped);
}

/* Only the average is computed in the forward pass. */
static const unsigned average_alone = 1 << EXTRA_AVERAGE | 1 << EXTRA_LSE;

/* Requesting some outputs gives the same bits as requesting all. */
static void check_fewer(const trial *x, rng *r)
{
    for (int i = 0; i < 4; i++) {
        unsigned which = (unsigned)rng_next(r) & (unsigned)rng_next(r) & EXTRAS_ALL;
        if (i == 0) which = average_alone;
        bool both = which & (1 << EXTRA_TOP_KEYS | 1 << EXTRA_TOP_WEIGHTS);
        if (both) which |= 1 << EXTRA_TOP_KEYS | 1 << EXTRA_TOP_WEIGHTS;
        extras some;
        extras_make(&some, r, &x->c, &x->request, which, some_layout(x, r));
        run(x, x->m->context, &some);
        int differs = extras_differ(&some, &x->got, true);
        if (differs >= 0) fail_trial(x, extras_name(differs), -1, -1, -1, -1);
        extras_free(&some);
    }
}

static void check_trial(trial *x, rng *r)
{
    extras o_lse = x->got;
    o_lse.has = 1 << EXTRA_LSE;
    if (extras_differ(&o_lse, &x->whole, true) >= 0)
        fail_trial(x, "o or lse changes with the outputs", -1, -1, -1, -1);
    check_chosen(x);
    check_average(x);
    for (int64_t b = 0; b < kinds_sequences(&x->a); b++)
        for (int64_t h = 0; h < x->c.result.H; h++) {
            check_rows(x, b, h);
            check_columns(x, b, h);
        }
    check_scores(x, r);
    if (!x->poisoned) kinds_check_rows(&x->c, r, 4e4, check_reference, x);
    check_fewer(x, r);
}

static void run_trial(int number, const machines *all, score_card *cards)
{
    rng r = rng_make(rng_run_seed(), (uint64_t)number);
    trial x;
    extras last = {.o.view.ndim = -1};
    make_trial(&x, &r, number);
    for (int m = 0; m < all->count; m++) {
        x.m = &all->each[m], x.card = &cards[m];
        make_results(&x, &r);
        check_trial(&x, &r);
        if (last.has && x.m->isa == MHA_ISA_AVX512 && extras_differ(&x.got, &last, true) >= 0)
            fail_trial(&x, "not the bits of avx2", -1, -1, -1, -1);
        if (last.has) extras_free(&last);
        last = (extras){0};
        if (x.m->isa == MHA_ISA_AVX2) {
            last = x.got;
            x.got = (extras){0};
        }
        free_results(&x);
    }
    if (last.has) extras_free(&last);
    kinds_free(&x.c);
}

static void print_cards(const machines *all, const score_card *cards)
{
    for (int i = 0; i < all->count; i++) {
        tally_judge_as(cards[i].entropy, all->each[i].name, "entropy");
        tally_judge_as(cards[i].raw, all->each[i].name, "raw");
        tally_judge_as(cards[i].capped, all->each[i].name, "capped");
        tally_judge_as(cards[i].biased, all->each[i].name, "biased");
        tally_judge_as(cards[i].dropped, all->each[i].name, "dropped p");
    }
}

static void random_company(void)
{
    machines all = machines_make(1);
    score_card cards[MOST_MACHINES] = {0};
    int i, end;
    const bool whole = rng_range(SAMPLE, ALL, &i, &end);
    for (; i < end; i++) run_trial(i, &all, cards);
    if (whole) print_cards(&all, cards);
}

/* ---- windows that end at a key block ----------------------------------------------------------
 */

/* Sums by key skip exactly the blocks that no window of a chunk overlaps. */
static void block_edges(void)
{
    machines all = machines_make(1);
    const kinds_shape shape = {.B = 1,
                               .H = 2,
                               .Hk = 1,
                               .T = 5,
                               .S = 1100,
                               .D = 4,
                               .Dv = 4,
                               .kinds = KIND_WINDOW,
                               .plain_layout = true};
    for (int64_t reach = 0; reach < 3; reach++)
        for (int64_t offset = 500; offset < 520; offset++) {
            rng r = rng_make(rng_run_seed(), 900000);
            trial x = {.number = -1, .request = {.heads_count = -1, .rows_count = -1, .top = 1}};
            kinds_make(&x.c, &r, &shape);
            x.c.desc.left_keys = x.c.desc.right_keys = reach;
            x.c.desc.q_offset = offset;
            x.a = kinds_reference(&x.c);
            for (int m = 0; m < all.count; m++) {
                x.m = &all.each[m];
                make_results(&x, &r);
                check_average(&x);
                for (int64_t h = 0; h < 2; h++) check_columns(&x, 0, h);
                free_results(&x);
            }
            kinds_free(&x.c);
        }
}

/* ---- threads --------------------------------------------------------------------------------- */

static void any_number_of_threads(void)
{
    static const int numbers[] = {1, 2, 3, 8};
    machines all[4];
    for (int i = 0; i < 4; i++) all[i] = machines_make(numbers[i]);
    for (int n = 0; n < rng_cases(THREADED, 40 * THREADED); n++) {
        rng r = rng_make(rng_run_seed(), 500000 + (uint64_t)n);
        trial x;
        make_trial(&x, &r, 500000 + n);
        for (int m = 0; m < all[0].count; m++) {
            extras one, more;
            x.m = &all[0].each[m];
            extras_make(&one, &r, &x.c, &x.request, EXTRAS_ALL, 0);
            run(&x, x.m->context, &one);
            for (int i = 1; i < 4; i++) {
                extras_make(&more, &r, &x.c, &x.request, i == 2 ? average_alone : EXTRAS_ALL,
                            some_layout(&x, &r));
                run(&x, all[i].each[m].context, &more);
                int differs = extras_differ(&one, &more, true);
                if (differs >= 0) fail_trial(&x, extras_name(differs), -1, -1, -1, numbers[i]);
                extras_free(&more);
            }
            extras_free(&one);
        }
        kinds_free(&x.c);
    }
}

/* Queries of zeros give equal weights, so the first visible keys come first, in all blocks of 512
 * and after the begin of a window. */
static void equal_weights(void)
{
    enum { T = 3, S = 1100, D = 4, K = 2 };
    const machines all = machines_make(1);
    float zero[S * D] = {0}, o[T * D], weights[T * K];
    int64_t largest[T], top[T * K];
    const mha_tensor q = mha_tensor_contiguous(zero, MHA_F32, 4, (int64_t[]){1, 1, T, D});
    const mha_tensor k = mha_tensor_contiguous(zero, MHA_F32, 4, (int64_t[]){1, 1, S, D});
    const mha_tensor out = mha_tensor_contiguous(o, MHA_F32, 4, q.shape);
    const mha_tensor key = mha_tensor_contiguous(largest, MHA_I64, 3, q.shape);
    const mha_tensor keys = mha_tensor_contiguous(top, MHA_I64, 4, (int64_t[]){1, 1, T, K});
    const mha_tensor p = mha_tensor_contiguous(weights, MHA_F32, 4, keys.shape);
    const mha_attention_outputs outputs = {
        .struct_size = sizeof outputs, .largest_key = &key, .top_keys = &keys, .top_weights = &p};
    for (int m = 0; m < all.count; m++)
        for (int window = 0; window < 2; window++) {
            const mha_attention_desc desc = {.struct_size = sizeof desc,
                                             .path = all.each[m].path,
                                             .flags = window ? MHA_ATTENTION_WINDOW : 0,
                                             .left_keys = window ? 600 : 0,
                                             .right_keys = window ? -1 : 0,
                                             .q_offset = window ? 700 : 0};
            expect_ok(
                mha_attention_forward(all.each[m].context, &desc, &q, &k, &k, &out, &outputs));
            for (int t = 0; t < T; t++) {
                const int64_t first = window ? 100 + t : 0;
                assert_int_equal(largest[t], first);
                for (int n = 0; n < K; n++) assert_int_equal(top[t * K + n], first + n);
            }
        }
}

RUN_TESTS(TEST(random_company), TEST(block_edges), TEST(any_number_of_threads), TEST(equal_weights))
