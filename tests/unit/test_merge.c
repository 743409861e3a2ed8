/* Partial results merged by log-sum-exp: a division of the keys anywhere gives the full result
 * within the bound of docs/numerics.md 3.11, for every kind of attention; the formula, its special
 * values, and misuse. */
#include "reference/kinds_bounds.h"
#include "support/expect.h"
#include "support/kinds.h"
#include "support/machines.h"
#include "support/shared_context.h"
#include "support/suite.h"
#include "support/tally.h"

#include <multihead/merge.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_PARTS = 6, SAMPLE = 150, ALL = 6000 };

/* ---- a case in parts ------------------------------------------------------------------------- */

typedef struct shifted {
    const kinds_case *c;
    int64_t key;
} shifted;

/* One part of a case's keys: slices of all tensors that have a key axis. */
typedef struct part {
    int64_t from, count;
    mha_attention_desc desc;
    mha_tensor k, v, keep, bias, global_keys, key_documents, blocks;
    int64_t offsets[KINDS_MOST_SEQUENCES], lengths[KINDS_MOST_SEQUENCES];
    int64_t begins[KINDS_MOST_SEQUENCES];
    shifted callback;
    ref_attention a;
    outcome got;
    kinds_row row;
    bound_row bound;
} part;

static void shifted_callback(void *user, int64_t b, int64_t h, int64_t query, int64_t queries,
                             int64_t key, int64_t keys, uint8_t *keep, int64_t keep_stride)
{
    const shifted *x = user;
    x->c->desc.keep_callback(x->c->desc.keep_callback_user, b, h, query, queries, key + x->key,
                             keys, keep, keep_stride);
}

/* The last axis of a tensor that broadcasts, in units of `unit` keys. */
static const mha_tensor *cut(const mha_tensor *x, const part *p, int64_t unit, mha_tensor *out)
{
    if (!x) return NULL;
    *out = *x;
    if (x->ndim > 0 && x->shape[x->ndim - 1] != 1)
        *out = guarded_slice(x, x->ndim - 1, p->from / unit, (p->count + unit - 1) / unit);
    return out;
}

static int64_t moved(int64_t offset, int64_t from)
{
    return offset == -((int64_t)1 << 60) ? offset : offset - from; /* the least offset */
}

static bool reads_positions(const mha_attention_desc *d)
{
    return d->flags & (MHA_ATTENTION_CAUSAL | MHA_ATTENTION_WINDOW) || d->alibi_slopes ||
           d->t5_table || d->shaw_keys || d->shaw_values;
}

/* A sink belongs to the first part only. */
static void part_make(part *p, const kinds_case *c, bool first, int64_t from, int64_t count)
{
    mha_attention_desc *d = &p->desc;
    p->from = from, p->count = count;
    *d = c->desc;
    p->k = guarded_slice(&c->k.view, 2, from, count);
    p->v = guarded_slice(&c->v.view, 2, from, count);
    d->keep_mask = cut(d->keep_mask, p, 1, &p->keep);
    d->bias = cut(d->bias, p, 1, &p->bias);
    d->global_keys = cut(d->global_keys, p, 1, &p->global_keys);
    d->key_documents = cut(d->key_documents, p, 1, &p->key_documents);
    d->keep_blocks = cut(d->keep_blocks, p, d->block_keys, &p->blocks);
    d->sink_keys = d->sink_keys > from ? d->sink_keys - from : 0;
    if (!first) d->sink_logits = NULL;
    if (reads_positions(d) && !d->q_offsets) d->q_offset = moved(d->q_offset, from);
    for (int64_t b = 0; b < c->shape.B; b++) {
        int64_t length = c->lengths[b] - from;
        p->offsets[b] = moved(c->offsets[b], from);
        p->lengths[b] = length < 0 ? 0 : length < count ? length : count;
        const int64_t begin = c->begins[b] - from;
        p->begins[b] = begin < 0 ? 0 : begin < count ? begin : count;
    }
    if (d->q_offsets) d->q_offsets = p->offsets;
    if (d->key_lengths) d->key_lengths = p->lengths;
    if (d->key_begins) d->key_begins = p->begins;
    p->callback = (shifted){c, from};
    if (d->keep_callback) {
        d->keep_callback = shifted_callback;
        d->keep_callback_user = &p->callback;
    }
    p->a = (ref_attention){.desc = d, .q = &c->q.view, .k = &p->k, .v = &p->v};
    p->row = kinds_row_make(count, c->shape.Dv);
    p->bound = bound_row_make(count, c->shape.Dv);
}

static void part_free(part *p)
{
    kinds_row_free(&p->row);
    bound_row_free(&p->bound);
}

/* Divides the keys at random ordered positions, or at block edges for block masks. Parts may be
 * empty. */
static int split(part *parts, const kinds_case *c, rng *r)
{
    int64_t at[MOST_PARTS + 1] = {0}, unit = c->desc.keep_blocks ? c->desc.block_keys : 1;
    int count = (int)rng_between(r, 1, MOST_PARTS);
    for (int i = 1; i < count; i++) {
        int64_t place = rng_between(r, 0, c->shape.S) / unit * unit;
        int j = i;
        for (; j > 1 && at[j - 1] > place; j--) at[j] = at[j - 1];
        at[j] = place;
    }
    at[count] = c->shape.S;
    for (int i = 0; i < count; i++) part_make(&parts[i], c, i == 0, at[i], at[i + 1] - at[i]);
    return count;
}

/* ---- the bound ------------------------------------------------------------------------------- */

typedef struct trial {
    const kinds_case *c;
    const machine *m;
    part *parts;
    int count, number;
    ref_attention a;
    kinds_row whole;
    outcome merged;
    tally *o, *lse;
} trial;

static void fail_trial(const trial *x, const char *what, double got, double exact, double bound)
{
    fail_msg("%s: merged %s is %.9g, exact %.9g, bound %.3g, of %d parts\n  %s\n"
             "  case %d of seed %llu",
             x->m->name, what, got, exact, bound, x->count, x->c->text, x->number,
             (unsigned long long)rng_run_seed());
}

/* Let P_k be the share of the weight in part k, e_k and d_k the bounds of its o and lse, and d the
 * largest d_k. The error of the merged numerator is at most sum P_k (exp(d) e_k + (exp(d_k) - 1)
 * |o_k - o|), and the denominator is at least exp(-d). One rounding follows, and 2^-43 covers the
 * arithmetic in double. */
static void check_row(const trial *x, int64_t b, int64_t h, int64_t t)
{
    double d = 0, largest = 0;
    const kinds_row *whole = &x->whole;
    for (int k = 0; k < x->count; k++) {
        const part *p = &x->parts[k];
        d = fmax(d, p->bound.lse);
        for (int64_t i = 0; i < whole->value_dim; i++) largest = fmax(largest, fabs(p->row.o[i]));
    }
    double got = (double)*kinds_at(&x->merged.lse.view, &x->a, b, h, t);
    double bound = d + 0x1p-24 * (fabs(whole->lse) + d) + 0x1p-42;
    if (!tally_compare(x->lse, got, whole->lse, bound))
        fail_trial(x, "lse", got, whole->lse, bound);
    const float *o = kinds_at(&x->merged.o.view, &x->a, b, h, t);
    for (int64_t i = 0; i < whole->value_dim; i++) {
        bound = 0;
        for (int k = 0; k < x->count; k++) {
            const part *p = &x->parts[k];
            double weight = p->row.lse == -INFINITY ? 0 : exp(p->row.lse - whole->lse);
            bound += weight * (exp(d) * p->bound.o[i] +
                               expm1(p->bound.lse) * fabs(p->row.o[i] - whole->o[i]));
        }
        bound = bound * exp(d) * (1 + 0x1p-24) + 0x1p-24 * fabs(whole->o[i]) + 0x1p-42 * largest +
                0x1p-149;
        if (!tally_compare(x->o, (double)o[i], whole->o[i], bound))
            fail_trial(x, "o", (double)o[i], whole->o[i], bound);
    }
}

static void run_parts(trial *x, rng *r)
{
    mha_attention_part parts[MOST_PARTS];
    problem_shape shape = x->c->result;
    for (int k = 0; k < x->count; k++) {
        part *p = &x->parts[k];
        shape.S = p->count;
        p->got = outcome_make(r, &shape, OUTCOME_LSE, guarded_random_layout(r, false));
        p->desc.path = x->m->path;
        if (outcome_run(x->m->context, &p->desc, &x->c->q.view, &p->k, &p->v, &p->got) != MHA_OK)
            fail_msg("%s\n  %s", mha_error_detail(), x->c->text);
        parts[k] = (mha_attention_part){&p->got.o.view, &p->got.lse.view};
    }
    x->merged = outcome_make(r, &x->c->result, OUTCOME_LSE, guarded_random_layout(r, false));
    if (mha_attention_merge(x->m->context, parts, x->count, &x->merged.o.view,
                            &x->merged.lse.view) != MHA_OK)
        fail_msg("%s", mha_error_detail());
    assert_true(outcome_intact(&x->merged));
}

static void check_rows(trial *x, rng *r)
{
    const kinds_shape *n = &x->c->shape;
    bound_arith arith = bound_arith_of(&x->a, x->m->path, x->m->isa);
    for (int i = 0; i < 6 && n->B * n->H * n->T > 0; i++) {
        int64_t b = rng_between(r, 0, n->B - 1), h = rng_between(r, 0, n->H - 1);
        int64_t t = rng_between(r, 0, n->T - 1);
        kinds_attention_row(&x->a, b, h, t, &x->whole);
        for (int k = 0; k < x->count; k++) {
            part *p = &x->parts[k];
            kinds_attention_row(&p->a, b, h, t, &p->row);
            kinds_bound_row(&p->a, &arith, b, h, t, &p->row, &p->bound);
        }
        check_row(x, b, h, t);
    }
}

static void splits_equal_the_whole(void)
{
    machines all = machines_make(1);
    tally o = {.name = "merged o"}, lse = {.name = "merged lse"};
    for (int i = 0; i < rng_cases(SAMPLE, ALL); i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)i);
        kinds_shape n = kinds_some_shape(&r);
        n.kinds &= ~(unsigned)(KIND_DROPOUT | KIND_RAGGED);
        if (n.kinds & KIND_BEGINS)
            n.kinds &= ~(unsigned)KIND_SINK_KEYS; /* sequences would be divided differently */
        kinds_case *c = test_malloc(sizeof *c);
        part *parts = test_calloc(MOST_PARTS, sizeof *parts);
        kinds_make(c, &r, &n);
        trial x = {.c = c, .parts = parts, .number = i, .o = &o, .lse = &lse};
        x.a = kinds_reference(c);
        x.whole = kinds_row_make(n.S, n.Dv);
        x.count = split(parts, c, &r);
        for (int m = 0; m < all.count; m++) {
            x.m = &all.each[m];
            run_parts(&x, &r);
            check_rows(&x, &r);
            outcome_free(&x.merged);
            for (int k = 0; k < x.count; k++) outcome_free(&parts[k].got);
        }
        for (int k = 0; k < x.count; k++) part_free(&parts[k]);
        kinds_row_free(&x.whole);
        kinds_free(c);
        test_free(c);
        test_free(parts);
    }
    tally_judge(&o);
    tally_judge(&lse);
}

/* ---- the formula ----------------------------------------------------------------------------- */

enum { B = 2, H = 3, T = 30, DV = 70, MANY = 100, ROWS = B * H * T };

/* Random parts. Some queries see no key of some parts. */
typedef struct synthetic {
    guarded o[MANY], lse[MANY];
    mha_attention_part parts[MANY];
    int count;
} synthetic;

static void synthetic_make(synthetic *x, rng *r, int count)
{
    const double spreads[] = {0.1, 3, 60, 1000};
    double spread = RNG_PICK(r, spreads);
    x->count = count;
    for (int k = 0; k < count; k++) {
        x->o[k] = guarded_make(r, MHA_F32, 4, (int64_t[]){B, H, T, DV},
                               guarded_random_layout(r, true) & ~(unsigned)LAYOUT_REPEAT);
        x->lse[k] = guarded_make(r, MHA_F32, 3, (int64_t[]){B, H, T}, LAYOUT_PAD);
        int64_t index[MHA_MAX_DIMS] = {0};
        do *(float *)guarded_element(&x->o[k].view, index) = rng_normal(r);
        while (guarded_next(&x->o[k].view, index));
        memset(index, 0, sizeof index);
        do
            *(float *)guarded_element(&x->lse[k].view, index) =
                rng_chance(r, 0.2) ? -INFINITY : (float)(spread * (double)rng_normal(r));
        while (guarded_next(&x->lse[k].view, index));
        x->parts[k] = (mha_attention_part){&x->o[k].view, &x->lse[k].view};
    }
}

static void synthetic_free(synthetic *x)
{
    for (int k = 0; k < x->count; k++) {
        guarded_free(&x->o[k]);
        guarded_free(&x->lse[k]);
    }
}

static float *at(const mha_tensor *x, int row, int d)
{
    int64_t index[4] = {row / T / H, row / T % H, row % T, d};
    return guarded_element(x, index);
}

/* The formulas in long double. */
static long double exact_row(const synthetic *x, int row, long double *o)
{
    long double m = -INFINITY, sum = 0;
    for (int k = 0; k < x->count; k++) m = fmaxl(m, (long double)*at(x->parts[k].lse, row, 0));
    for (int d = 0; d < DV; d++) o[d] = 0;
    if (m == -INFINITY) return m;
    for (int k = 0; k < x->count; k++) {
        long double w = expl((long double)*at(x->parts[k].lse, row, 0) - m);
        for (int d = 0; w > 0 && d < DV; d++) o[d] += w * (long double)*at(x->parts[k].o, row, d);
        sum += w;
    }
    for (int d = 0; d < DV; d++) o[d] /= sum;
    return m + logl(sum);
}

/* Within the header's bound; |o| of the parts is below 8. */
static void check_exact(const synthetic *x, const mha_tensor *o, const mha_tensor *lse)
{
    for (int row = 0; row < ROWS; row++) {
        long double want[DV], log_sum = exact_row(x, row, want);
        double got = (double)*at(lse, row, 0), u = 0x1p-24;
        bool empty = log_sum == -INFINITY;
        if (empty) assert_true(got == -INFINITY);
        if (!empty) assert_true(fabs(got - (double)log_sum) <= u * fabs((double)log_sum) + 0x1p-43);
        for (int d = 0; d < DV; d++) {
            double error = fabs((double)(want[d] - (long double)*at(o, row, d)));
            double bound = u * fabs((double)want[d]) + 0x1p-43 * 8 + 0x1p-150;
            assert_true(error <= (empty ? 0 : bound));
        }
    }
}

/* The same for halves that were merged before. Their lse has a relative error of u, and is at least
 * the largest of the parts and at most log 5 above it. Their o has an error of u max |o|. So
 * (section 3.11) the weights of the halves have an error of exp(2 d) - 1 with d = u (max |lse_k| +
 * 1.61), the weighted means differ by at most 16, and the result is rounded once more. */
static void check_grouped(const synthetic *x, const mha_tensor *o, const mha_tensor *lse)
{
    const double u = 0x1p-24;
    for (int row = 0; row < ROWS; row++) {
        long double want[DV], log_sum = exact_row(x, row, want);
        double largest = 0, got = (double)*at(lse, row, 0);
        for (int k = 0; k < x->count; k++) {
            double each = fabs((double)*at(x->parts[k].lse, row, 0));
            largest = fmax(largest, each == INFINITY ? 0 : each);
        }
        double d = u * (largest + 1.61) + 0x1p-43;
        if (log_sum == -INFINITY)
            assert_true(got == -INFINITY);
        else
            assert_true(fabs(got - (double)log_sum) <= d + u * (fabs((double)log_sum) + d));
        for (int i = 0; i < DV; i++) {
            double error = fabs((double)(want[i] - (long double)*at(o, row, i)));
            assert_true(error <= 16.1 * u + 16 * expm1(2 * d));
        }
    }
}

static void merging_is_its_formula(void)
{
    machines all = machines_make(1);
    for (int i = 0; i < rng_cases(60, 1000); i++) {
        rng r = rng_make(rng_run_seed(), 100000 + (uint64_t)i);
        static synthetic x;
        synthetic_make(&x, &r, i % 10 ? (int)rng_between(&r, 0, 9) : MANY);
        guarded o = guarded_make(&r, MHA_F32, 4, (int64_t[]){B, H, T, DV}, LAYOUT_SWAP);
        guarded lse = guarded_make(&r, MHA_F32, 3, (int64_t[]){B, H, T}, LAYOUT_PAD);
        mha_context *context = all.each[0].context;
        expect_ok(mha_attention_merge(context, x.parts, x.count, &o.view, &lse.view));
        check_exact(&x, &o.view, &lse.view);
        assert_true(guarded_gaps_intact(&o) && guarded_gaps_intact(&lse));
        guarded_free(&o);
        guarded_free(&lse);
        synthetic_free(&x);
    }
}

/* Any grouping is permitted: the only error is the rounding of intermediate results to f32. */
static void grouping(void)
{
    mha_context *context = context_with(0);
    for (int i = 0; i < rng_cases(40, 1000); i++) {
        rng r = rng_make(rng_run_seed(), 200000 + (uint64_t)i);
        static synthetic x;
        synthetic_make(&x, &r, 5);
        guarded o[3], lse[3];
        for (int j = 0; j < 3; j++) {
            o[j] = guarded_make(&r, MHA_F32, 4, (int64_t[]){B, H, T, DV}, 0);
            lse[j] = guarded_make(&r, MHA_F32, 3, (int64_t[]){B, H, T}, 0);
        }
        const mha_attention_part halves[2] = {{&o[0].view, &lse[0].view},
                                              {&o[1].view, &lse[1].view}};
        int64_t cut_at = rng_between(&r, 0, 5);
        expect_ok(mha_attention_merge(context, x.parts, cut_at, &o[0].view, &lse[0].view));
        expect_ok(
            mha_attention_merge(context, x.parts + cut_at, 5 - cut_at, &o[1].view, &lse[1].view));
        expect_ok(mha_attention_merge(context, halves, 2, &o[2].view, &lse[2].view));
        check_grouped(&x, &o[2].view, &lse[2].view);
        /* Like a ring, each part is merged into the first part's memory. */
        for (int k = 1; k < 5; k++) {
            const mha_attention_part pair[2] = {x.parts[0], x.parts[k]};
            mha_attention_part fresh = {&o[2].view, &lse[2].view};
            expect_ok(mha_attention_merge(context, pair, 2, fresh.o, fresh.lse));
            expect_ok(mha_attention_merge(context, pair, 2, x.parts[0].o, x.parts[0].lse));
            assert_true(guarded_same_bits(fresh.o, x.parts[0].o, false));
            assert_true(guarded_same_bits(fresh.lse, x.parts[0].lse, false));
        }
        for (int j = 0; j < 3; j++) {
            guarded_free(&o[j]);
            guarded_free(&lse[j]);
        }
        synthetic_free(&x);
    }
}

/* A single part, also among empty ones, keeps its bits for any number of threads. */
static void one_part_keeps_its_bits(void)
{
    rng r = rng_make(rng_run_seed(), 300000);
    static synthetic x;
    synthetic_make(&x, &r, 4);
    guarded o[3], lse[3];
    for (int j = 0; j < 3; j++) {
        o[j] = guarded_make(&r, MHA_F32, 4, (int64_t[]){B, H, T, DV}, 0);
        lse[j] = guarded_make(&r, MHA_F32, 3, (int64_t[]){B, H, T}, 0);
    }
    for (int j = 0; j < 3; j++) {
        const mha_context_desc desc = {.struct_size = sizeof desc, .num_threads = 1 + 2 * j};
        mha_context *context;
        expect_ok(mha_context_create(&desc, &context));
        expect_ok(mha_attention_merge(context, x.parts, 4, &o[j].view, &lse[j].view));
        assert_true(guarded_same_bits(&o[0].view, &o[j].view, false));
        assert_true(guarded_same_bits(&lse[0].view, &lse[j].view, false));
        mha_context_destroy(context);
    }
    mha_context *context;
    expect_ok(mha_context_create(NULL, &context));
    for (int row = 0; row < ROWS; row++)
        for (int k = 1; k < 4; k++) {
            *at(&x.lse[k].view, row, 0) = -INFINITY;
            *at(&x.o[k].view, row, 3) = k == 1 ? NAN : INFINITY; /* not read */
        }
    for (int row = 0; row < ROWS; row++)
        if (*at(&x.lse[0].view, row, 0) == -INFINITY)
            for (int d = 0; d < DV; d++) *at(&x.o[0].view, row, d) = 0;
    for (int count = 1; count <= 4; count += 3) {
        expect_ok(mha_attention_merge(context, x.parts, count, &o[1].view, &lse[1].view));
        assert_true(guarded_same_bits(&o[1].view, &x.o[0].view, false));
        assert_true(guarded_same_bits(&lse[1].view, &x.lse[0].view, false));
    }
    expect_ok(mha_attention_merge(context, NULL, 0, &o[1].view, &lse[1].view));
    for (int row = 0; row < ROWS; row++) {
        assert_true(*at(&lse[1].view, row, 0) == -INFINITY);
        for (int d = 0; d < DV; d++)
            assert_true(*at(&o[1].view, row, d) == 0 && !signbit(*at(&o[1].view, row, d)));
    }
    expect_ok(mha_attention_merge(context, x.parts, 4, &o[2].view, NULL));
    mha_context_destroy(context);
    for (int j = 0; j < 3; j++) {
        guarded_free(&o[j]);
        guarded_free(&lse[j]);
    }
    synthetic_free(&x);
}

/* Non-finite numbers affect only the queries and elements whose parts contain them. */
static void not_finite(void)
{
    rng r = rng_make(rng_run_seed(), 400000);
    static synthetic x;
    mha_context *context = context_with(0);
    synthetic_make(&x, &r, 3);
    for (int row = 0; row < ROWS; row++) *at(&x.lse[1].view, row, 0) = 1;
    guarded o[2], lse[2];
    for (int j = 0; j < 2; j++) {
        o[j] = guarded_make(&r, MHA_F32, 4, (int64_t[]){B, H, T, DV}, 0);
        lse[j] = guarded_make(&r, MHA_F32, 3, (int64_t[]){B, H, T}, 0);
        expect_ok(mha_attention_merge(context, x.parts, 3, &o[j].view, &lse[j].view));
        if (j == 1) break;
        *at(&x.lse[0].view, 7, 0) = NAN;
        *at(&x.lse[2].view, 9, 0) = INFINITY;
        *at(&x.o[1].view, 11, 66) = -INFINITY;
        *at(&x.lse[1].view, 13, 0) = -2000; /* without weight, but still seen */
        *at(&x.lse[2].view, 13, 0) = 1;
        *at(&x.o[1].view, 13, 2) = NAN;
        *at(&x.lse[0].view, 15, 0) = NAN; /* makes this row NaN only */
        *at(&x.lse[1].view, 15, 0) = *at(&x.lse[2].view, 15, 0) = -INFINITY;
    }
    for (int row = 0; row < ROWS; row++) {
        bool all = row == 7 || row == 9 || row == 15;
        float was = *at(&lse[0].view, row, 0), is = *at(&lse[1].view, row, 0);
        assert_true(all ? isnan(is) : row == 13 || was == is);
        for (int d = 0; d < DV; d++) {
            bool one = (row == 11 && d == 66) || (row == 13 && d == 2);
            float value = *at(&o[1].view, row, d);
            if (all) assert_true(isnan(value));
            if (one) assert_true(!isfinite(value));
            if (!all && !one) assert_true(isfinite(value));
            if (!all && !one && row != 13) assert_true(value == *at(&o[0].view, row, d));
        }
    }
    for (int j = 0; j < 2; j++) {
        guarded_free(&o[j]);
        guarded_free(&lse[j]);
    }
    synthetic_free(&x);
}

/* ---- misuse ---------------------------------------------------------------------------------- */

typedef struct call {
    mha_tensor o, lse, part_o[2], part_lse[2];
    mha_attention_part parts[2];
    int64_t count;
} call;

static void expect(mha_context *context, const call *c, mha_status status, const char *text)
{
    expect_error(mha_attention_merge(context, c->parts, c->count, &c->o, &c->lse), status, text);
}

static void misuse_is_refused(void)
{
    enum { N = 2 * 3 * 4 * 5, L = 2 * 3 * 4 };
    static float memory[3 * N + 3 * L];
    mha_context *context = context_with(0);
    for (int i = 0; i < 3 * N + 3 * L; i++) memory[i] = 3;
    call good = {.count = 2};
    const int64_t o_shape[] = {2, 3, 4, 5};
    good.o = mha_tensor_contiguous(memory, MHA_F32, 4, o_shape);
    good.lse = mha_tensor_contiguous(memory + 3 * N, MHA_F32, 3, o_shape);
    for (int k = 0; k < 2; k++) {
        good.part_o[k] = mha_tensor_contiguous(memory + (k + 1) * N, MHA_F32, 4, o_shape);
        good.part_lse[k] = mha_tensor_contiguous(memory + 3 * N + (k + 1) * L, MHA_F32, 3, o_shape);
    }
#define CASE(change, status, text)                                           \
    do {                                                                     \
        call c = good;                                                       \
        for (int k = 0; k < 2; k++)                                          \
            c.parts[k] = (mha_attention_part){&c.part_o[k], &c.part_lse[k]}; \
        change;                                                              \
        expect(context, &c, status, text);                                   \
        for (int i = 0; i < 3 * N + 3 * L; i++) assert_true(memory[i] == 3); \
    } while (0)
    CASE(c.count = -2, MHA_ERR_ARGUMENT, "count is -2");
    CASE(c.parts[1].o = NULL, MHA_ERR_NULL, "parts[1].o: is NULL");
    CASE(c.parts[0].lse = NULL, MHA_ERR_NULL, "parts[0].lse: is NULL");
    CASE(c.part_o[1].data = NULL, MHA_ERR_NULL, "parts[1].o: data is NULL");
    CASE(c.part_o[1].shape[2] = 3, MHA_ERR_SHAPE, "parts[1].o: dim 2 is 3, expected 4");
    CASE(c.part_lse[1].shape[0] = 1, MHA_ERR_SHAPE, "parts[1].lse: dim 0 is 1, expected 2");
    CASE(c.part_lse[0].ndim = 4, MHA_ERR_SHAPE, "parts[0].lse: has 4 dimensions");
    CASE(c.part_o[0].dtype = MHA_F64, MHA_ERR_DTYPE, "parts[0].o");
    CASE(c.part_o[0].stride[3] = 2, MHA_ERR_STRIDE, "parts[0].o");
    CASE(c.o.ndim = 3, MHA_ERR_SHAPE, "o: has 3 dimensions");
    CASE(c.o.stride[1] = 0, MHA_ERR_STRIDE, "o: output elements share memory");
    CASE(c.lse.shape[1] = 4, MHA_ERR_SHAPE, "lse: dim 1 is 4, expected 3");
    CASE(c.lse.dtype = MHA_F16, MHA_ERR_DTYPE, "lse");
    CASE(c.lse.data = c.o.data, MHA_ERR_OVERLAP, "lse overlaps o");
    CASE(c.o.data = memory + N + 5, MHA_ERR_OVERLAP, "o overlaps a part's o");
    CASE(c.o.data = memory + 3 * N + L - 1, MHA_ERR_OVERLAP, "overlaps");
    CASE(c.lse.data = memory + 3 * N + 2 * L + 1, MHA_ERR_OVERLAP, "lse overlaps a part's lse");
    CASE(c.part_lse[1].data = memory, MHA_ERR_OVERLAP, "o overlaps a part's lse");
    CASE((c.o.shape[0] = c.part_o[0].shape[0] = c.part_o[1].shape[0] = -1), MHA_ERR_SHAPE,
         "dim 0 is -1");
#undef CASE
    assert_int_equal(mha_attention_merge(NULL, NULL, 0, &good.o, NULL), MHA_ERR_NULL);
    assert_int_equal(mha_attention_merge(context, NULL, 1, &good.o, NULL), MHA_ERR_NULL);
    mha_tensor wide = good.o; /* broadcast rows without columns */
    wide.shape[0] = wide.shape[1] = wide.shape[2] = INT64_C(1) << 40, wide.shape[3] = 0;
    expect_ok(mha_attention_merge(context, NULL, 0, &wide, NULL));
}

RUN_TESTS(TEST(splits_equal_the_whole), TEST(merging_is_its_formula), TEST(grouping),
          TEST(one_part_keeps_its_bits), TEST(not_finite), TEST(misuse_is_refused))
