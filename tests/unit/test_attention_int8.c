/* Attention in int8 arithmetic: against the reference that repeats its definition, within what f32
 * may add; against the exact result, within the bound of docs/numerics.md 13; the same bits on
 * every instruction set, thread count, batch and padding; values that are not finite; refusals.
 *
 * A sample by default; MHA_TEST_LONG=1 tries 5,000 descriptors. MHA_TEST_CASE=n (with
 * MHA_TEST_SEED) runs the n-th alone. */
#include "reference/int8_reference.h"
#include "support/kinds.h"
#include "support/machines.h"
#include "support/plain.h"
#include "support/suite.h"
#include "support/tally.h"

#include <multihead/backward.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLE = 200, ALL = 5000 };
static const unsigned left_out = KIND_SOFTCAP | KIND_DROPOUT | KIND_SHAW_KEYS | KIND_SHAW_VALUES;

typedef struct score_card {
    tally o, lse, o_exact, lse_exact;
} score_card;

typedef struct trial {
    int number;
    kinds_case c;
    outcome got[MOST_MACHINES];
} trial;

static void fail_trial(const trial *x, const char *name, const char *what)
{
    fail_msg("%s: %s\n  %s\n  alone: MHA_TEST_SEED=%llu MHA_TEST_CASE=%d", name, what, x->c.text,
             (unsigned long long)rng_run_seed(), x->number);
}

static outcome make_outcome(const kinds_case *c, rng *r, unsigned layout)
{
    return outcome_make(r, &c->result, OUTCOME_O | OUTCOME_LSE, layout);
}

static void compare(const trial *x, tally *t, const char *name, double got, double exact,
                    double bound)
{
    char what[200];
    if (tally_compare(t, got, exact, bound)) return;
    snprintf(what, sizeof what, "%.9g, not %.9g, error %.3g, bound %.3g", got, exact,
             fabs(got - exact), bound);
    fail_trial(x, name, what);
}

static void check_row(const trial *x, const ref_attention *a, int64_t b, int64_t h, int64_t t,
                      kinds_row *exact, int8_row *row, score_card *card)
{
    kinds_attention_row(a, b, h, t, exact);
    int8_reference_row(a, b, h, t, exact, row);
    const float *o = kinds_at(&x->got[0].o.view, a, b, h, t);
    const double lse = (double)*kinds_at(&x->got[0].lse.view, a, b, h, t);
    compare(x, &card->lse, "lse, reference", lse, row->lse, row->lse_bound);
    compare(x, &card->lse_exact, "lse, exact", lse, exact->lse, row->lse_error);
    for (int64_t d = 0; d < row->value_dim; d++) {
        compare(x, &card->o, "o, reference", (double)o[d], row->o[d], row->o_bound[d]);
        compare(x, &card->o_exact, "o, exact", (double)o[d], exact->o[d], row->o_error[d]);
    }
}

static void check_rows(const trial *x, rng *r, score_card *card)
{
    const kinds_shape *n = &x->c.shape;
    const ref_attention a = {
        .desc = &x->c.desc, .q = &x->c.q.view, .k = &x->c.k.view, .v = &x->c.v.view};
    const double row_work = (double)(n->S + 1) * (double)(4 * n->D + 4 * n->Dv + 20);
    const int64_t rows = n->B * n->H * n->T, affordable = 2 + (int64_t)(1e5 / row_work);
    kinds_row exact = kinds_row_make(n->S, n->Dv);
    int8_row row = int8_row_make(n->Dv);
    for (int64_t i = 0; i < affordable && i < rows; i++) {
        int64_t at = rows <= affordable ? i : i == 0 ? rows - 1 : rng_between(r, 0, rows - 1);
        int64_t b = at / n->H / n->T;
        if (at % n->T < kinds_sequence_at(&a, b).T)
            check_row(x, &a, b, at / n->T % n->H, at % n->T, &exact, &row, card);
    }
    kinds_row_free(&exact);
    int8_row_free(&row);
}

static void run_machines(trial *x, rng *r, const machines *all)
{
    for (int m = 0; m < all->count; m++) {
        const machine *each = &all->each[m];
        x->got[m] = make_outcome(&x->c, r,
                                 x->c.shape.plain_layout ? LAYOUT_CONTIGUOUS
                                                         : guarded_random_layout(r, false));
        if (kinds_run(each->context, &x->c, each->path, &x->got[m]) != MHA_OK)
            fail_trial(x, each->name, mha_error_detail());
        if (!outcome_intact(&x->got[m])) fail_trial(x, each->name, "wrote between elements");
        if (m > 0 && !outcome_same(&x->got[m], &x->got[0], false))
            fail_trial(x, each->name, "not the same bits");
    }
}

static kinds_shape some_shape(rng *r)
{
    kinds_shape shape = kinds_some_shape(r);
    shape.kinds &= ~left_out;
    if (shape.D > MHA_TILED_MAX_HEAD_DIM) shape.D = MHA_TILED_MAX_HEAD_DIM;
    if (shape.Dv > MHA_TILED_MAX_HEAD_DIM) shape.Dv = MHA_TILED_MAX_HEAD_DIM;
    return shape;
}

static void against_references(void **state)
{
    (void)state;
    machines all = machines_tiled();
    score_card card = {.o = {.name = "o, reference"},
                       .lse = {.name = "lse, reference"},
                       .o_exact = {.name = "o, exact"},
                       .lse_exact = {.name = "lse, exact"}};
    int i, end;
    const bool whole = rng_range(SAMPLE, ALL, &i, &end);
    for (; i < end; i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)i);
        trial x = {.number = i};
        const kinds_shape shape = some_shape(&r);
        kinds_make(&x.c, &r, &shape);
        x.c.desc.compute = MHA_COMPUTE_INT8;
        run_machines(&x, &r, &all);
        check_rows(&x, &r, &card);
        for (int m = 0; m < all.count; m++) outcome_free(&x.got[m]);
        kinds_free(&x.c);
    }
    const tally *tallies[] = {&card.o, &card.lse, &card.o_exact, &card.lse_exact};
    for (int k = 0; k < 4; k++) tally_print(tallies[k]);
    for (int k = 0; k < 4 && whole; k++) assert_true(tally_is_sharp(tallies[k]));
}

/* ---- what is not finite -----------------------------------------------------------------------
 */

static bool fits(const mha_tensor *x, const kinds_sequence *at, int64_t h, int64_t row)
{
    bool finite = true;
    for (int64_t d = 0; d < x->shape[3]; d++)
        finite &= isfinite(*(const float *)guarded_element(x, (int64_t[]){at->batch, h, row, d}));
    return finite;
}

static void replace_odd(const mha_tensor *x)
{
    int64_t index[MHA_MAX_DIMS] = {0};
    if (guarded_is_empty(x)) return;
    do {
        float *at = guarded_element(x, index);
        if (!isfinite(*at)) *at = 0;
    } while (guarded_next(x, index));
}

/* What makes of a row: NaN all over, and where a value that is not finite enters. */
static void check_poisoned(const trial *x, const ref_attention *a, const outcome *clean, int64_t b,
                           int64_t h, int64_t t)
{
    const kinds_sequence at = kinds_sequence_at(a, b);
    const int64_t hk = h / (a->q->shape[1] / a->k->shape[1]), Dv = a->v->shape[3];
    const float *o = kinds_at(&x->got[0].o.view, a, b, h, t);
    const float lse = *kinds_at(&x->got[0].lse.view, a, b, h, t);
    bool sees = false, bad = !fits(a->q, &at, h, at.q0 + t), values[MHA_TILED_MAX_HEAD_DIM] = {0};
    bool bad_key = false;
    for (int64_t s = 0; s < at.S; s++) {
        if (!kinds_sees(a, b, h, t, s)) continue;
        sees = true;
        bad_key |= !fits(a->k, &at, hk, at.k0 + s);
        for (int64_t d = 0; d < Dv; d++)
            values[d] |= !isfinite(
                *(const float *)guarded_element(a->v, (int64_t[]){at.batch, hk, at.k0 + s, d}));
    }
    bad = sees && (bad || bad_key);
    if (bad != isnan(lse)) fail_trial(x, "lse", bad ? "is a number" : "is not a number");
    for (int64_t d = 0; d < Dv; d++) {
        if (bad ? !isnan(o[d]) : values[d] == isfinite(o[d]))
            fail_trial(x, "o", "is finite where it should not be, or the reverse");
        if (bad || values[d]) continue;
        if (memcmp(&o[d], kinds_at(&clean->o.view, a, b, h, t) + d, sizeof *o) != 0)
            fail_trial(x, "o", "changed by what it does not see");
    }
}

/* Rows that see nothing of it have the bits that zeros in its place give. */
static void not_finite(void **state)
{
    (void)state;
    static const float odd[] = {INFINITY, -INFINITY, NAN};
    machines all = machines_tiled();
    for (int i = 0; i < rng_cases(100, 2000); i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)(100000 + i));
        trial x = {.number = i};
        kinds_shape shape = some_shape(&r);
        shape.kinds &= ~(unsigned)(KIND_GATES | KIND_BIAS);
        if (shape.T > 60) shape.T = 60;
        kinds_make(&x.c, &r, &shape);
        x.c.desc.compute = MHA_COMPUTE_INT8;
        guarded_sprinkle(&r, &x.c.q.view, 0.002, odd, 3);
        guarded_sprinkle(&r, &x.c.k.view, rng_chance(&r, 0.5) ? 0.0005 : 0, odd, 3);
        guarded_sprinkle(&r, &x.c.v.view, rng_chance(&r, 0.5) ? 0.002 : 0, odd, 3);
        for (int m = 0; m < all.count; m++) {
            x.got[m] = make_outcome(&x.c, &r, LAYOUT_CONTIGUOUS);
            assert_int_equal(kinds_run(all.each[m].context, &x.c, MHA_PATH_TILED, &x.got[m]),
                             MHA_OK);
            if (!outcome_same(&x.got[m], &x.got[0], true))
                fail_trial(&x, all.each[m].name, "not the same bits");
        }
        kinds_case *c = &x.c;
        guarded k = guarded_make(&r, MHA_F32, 4, c->k.view.shape, LAYOUT_CONTIGUOUS);
        guarded q = guarded_make(&r, MHA_F32, 4, c->q.view.shape, LAYOUT_CONTIGUOUS);
        guarded v = guarded_make(&r, MHA_F32, 4, c->v.view.shape, LAYOUT_CONTIGUOUS);
        const guarded *from[] = {&c->q, &c->k, &c->v}, *to[] = {&q, &k, &v};
        for (int j = 0; j < 3; j++) {
            int64_t index[MHA_MAX_DIMS] = {0};
            if (guarded_is_empty(&from[j]->view)) continue;
            do
                *(float *)guarded_element(&to[j]->view, index) =
                    *(const float *)guarded_element(&from[j]->view, index);
            while (guarded_next(&from[j]->view, index));
            replace_odd(&to[j]->view);
        }
        outcome clean = make_outcome(c, &r, LAYOUT_CONTIGUOUS);
        assert_int_equal(
            outcome_run(all.each[0].context, &c->desc, &q.view, &k.view, &v.view, &clean), MHA_OK);
        const ref_attention a = {
            .desc = &c->desc, .q = &c->q.view, .k = &c->k.view, .v = &c->v.view};
        for (int64_t b = 0; b < kinds_sequences(&a); b++)
            for (int64_t h = 0; h < c->shape.H; h++)
                for (int64_t t = 0; t < kinds_sequence_at(&a, b).T; t++)
                    check_poisoned(&x, &a, &clean, b, h, t);
        outcome_free(&clean);
        guarded_free(&q), guarded_free(&k), guarded_free(&v);
        for (int m = 0; m < all.count; m++) outcome_free(&x.got[m]);
        kinds_free(c);
    }
}

/* Numbers from everywhere in the range: no crash, the same bits, and no NaN that nothing makes. */
static void hostile_numbers(void **state)
{
    (void)state;
    static const float odd[] = {INFINITY, NAN,      1e38f,    -1e38f,   3.4e38f,  -3.4e38f, 1e30f,
                                1e20f,    0x1p126f, 0x1p125f, 0x1p93f,  0x1p92f,  -0.0f,    0.0f,
                                1e-45f,   1e-40f,   1e-30f,   0x1p-80f, 0x1p-81f, 0x1p-126f};
    machines all = machines_tiled();
    for (int i = 0; i < rng_cases(100, 2000); i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)(200000 + i));
        trial x = {.number = i};
        const kinds_shape shape = some_shape(&r);
        kinds_make(&x.c, &r, &shape);
        x.c.desc.compute = MHA_COMPUTE_INT8;
        const double chance = rng_chance(&r, 0.3) ? 1 : 0.01;
        const int first = rng_chance(&r, 0.5) ? 2 : 12; /* without what is not finite; small ones */
        const int count = (int)(sizeof odd / sizeof odd[0]) - first;
        guarded_sprinkle(&r, &x.c.q.view, chance, odd + first, count);
        guarded_sprinkle(&r, &x.c.k.view, chance, odd + first, count);
        guarded_sprinkle(&r, &x.c.v.view, chance, odd + first, count);
        for (int m = 0; m < all.count; m++) {
            x.got[m] = make_outcome(&x.c, &r, LAYOUT_CONTIGUOUS);
            assert_int_equal(kinds_run(all.each[m].context, &x.c, MHA_PATH_TILED, &x.got[m]),
                             MHA_OK);
            if (!outcome_same(&x.got[m], &x.got[0], true))
                fail_trial(&x, all.each[m].name, "not the same bits");
        }
        int64_t index[MHA_MAX_DIMS] = {0};
        if (first == 12 && !guarded_is_empty(&x.got[0].o.view)) do
                if (!isfinite(*(const float *)guarded_element(&x.got[0].o.view, index)))
                    fail_trial(&x, "o", "small numbers made something that is not finite");
            while (guarded_next(&x.got[0].o.view, index));
        for (int m = 0; m < all.count; m++) outcome_free(&x.got[m]);
        kinds_free(&x.c);
    }
}

/* ---- plain calls -------------------------------------------------------------------------------
 */

static mha_context *make_context(int threads)
{
    mha_context *context;
    const mha_context_desc desc = {.struct_size = sizeof desc, .num_threads = threads};
    assert_int_equal(mha_context_create(&desc, &context), MHA_OK);
    return context;
}

/* Each sequence alone, rows in two calls, keys beyond the length changed and cut off: always the
 * bits of the whole. */
static void company_does_not_matter(void **state)
{
    (void)state;
    mha_context *one = make_context(1), *three = make_context(3);
    for (int i = 0; i < rng_cases(8, 60); i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)(300000 + i));
        plain x = plain_make(&r, 2, 2, rng_between(&r, 2, 90), rng_between(&r, 520, 1200),
                             rng_between(&r, 1, 70));
        const int64_t length = rng_between(&r, 1, x.S - 1), lengths[] = {length, length};
        const int64_t rows = x.B * x.H * x.T;
        mha_attention_desc desc = {.struct_size = sizeof desc,
                                   .compute = MHA_COMPUTE_INT8,
                                   .flags = MHA_ATTENTION_CAUSAL,
                                   .q_offset = rng_between(&r, 0, x.S),
                                   .key_lengths = lengths};
        float *whole = malloc((size_t)(rows * (x.D + 1)) * sizeof *whole);
        if (!whole) abort();
        plain_run(one, &desc, &x);
        memcpy(whole, x.o, (size_t)(rows * (x.D + 1)) * sizeof *whole);
        for (int64_t j = 0; j < x.B * x.H; j++) /* what must not be read */
            for (int64_t at = (j * x.S + length) * x.D; at < (j + 1) * x.S * x.D; at++)
                x.k[at] = x.v[at] = NAN;
        plain_run(three, &desc, &x);
        assert_memory_equal(whole, x.o, (size_t)(rows * (x.D + 1)) * sizeof *whole);
        const int64_t first = rng_between(&r, 1, x.T - 1);
        for (int64_t b = 0; b < x.B; b++)
            for (int part = 0; part < 2; part++) {
                plain y = x;
                const mha_tensor *from[] = {&x.Q, &x.K, &x.V, &x.O, &x.L};
                mha_tensor *to[] = {&y.Q, &y.K, &y.V, &y.O, &y.L};
                for (int j = 0; j < 5; j++) *to[j] = guarded_slice(from[j], 0, b, 1);
                for (int j = 0; j < 5; j++)
                    if (j == 0 || j > 2)
                        *to[j] =
                            guarded_slice(to[j], 2, part ? first : 0, part ? x.T - first : first);
                y.K = guarded_slice(&y.K, 2, 0, length);
                y.V = guarded_slice(&y.V, 2, 0, length);
                mha_attention_desc some = desc;
                some.key_lengths = NULL;
                some.q_offset = desc.q_offset + (part ? first : 0);
                plain_run(one, &some, &y);
            }
        assert_memory_equal(whole, x.o, (size_t)(rows * (x.D + 1)) * sizeof *whole);
        free(whole);
        free(x.q);
    }
    mha_context_destroy(one);
    mha_context_destroy(three);
}

/* Values up to what f32 can sum over the keys, 3.4e38 / 512; also in a block that weighs nothing
 * beside the next one. Equal values are one step each, which is exact but for f32's rounding. */
static void large_values(void **state)
{
    (void)state;
    enum { SIZE = 20, KEYS = 1024, BLOCK = 512 };
    mha_context *context = make_context(1);
    const mha_attention_desc desc = {.struct_size = sizeof desc, .compute = MHA_COMPUTE_INT8};
    for (int first = 0; first < 2; first++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)(450000 + first));
        plain x = plain_make(&r, 1, 1, 1, KEYS, SIZE);
        for (int d = 0; d < SIZE; d++) x.q[d] = 1;
        for (int i = 0; i < KEYS * SIZE; i++) {
            const bool light = (i / SIZE < BLOCK) == (first == 0);
            x.k[i] = light ? 0.0f : 100.0f;
            x.v[i] = light ? 5e35f : 1.0f;
        }
        plain_run(context, &desc, &x);
        for (int d = 0; d < SIZE; d++) assert_float_equal(x.o[d], 1.0f, 1e-5f);
        for (int i = 0; i < KEYS * SIZE; i++) x.k[i] = 0, x.v[i] = 3e35f;
        plain_run(context, &desc, &x);
        for (int d = 0; d < SIZE; d++) assert_float_equal(x.o[d] / 3e35f, 1.0f, 1e-5f);
        free(x.q);
    }
    mha_context_destroy(context);
}

/* f16 and bf16 tensors: the bits of widening them. */
static void types(void **state)
{
    (void)state;
    mha_context *context = make_context(1);
    for (int i = 0; i < rng_cases(20, 200); i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)(400000 + i));
        static const mha_dtype types[] = {MHA_F32, MHA_F16, MHA_BF16};
        plain x = plain_make(&r, 1, 2, rng_between(&r, 1, 40), rng_between(&r, 1, 600),
                             rng_between(&r, 1, 70));
        const mha_attention_desc desc = {.struct_size = sizeof desc, .compute = MHA_COMPUTE_INT8};
        mha_tensor *wide[] = {&x.Q, &x.K, &x.V}, narrow[3];
        guarded store[3];
        for (int j = 0; j < 3; j++) {
            store[j] = guarded_make(&r, RNG_PICK(&r, types), 4, wide[j]->shape,
                                    guarded_random_layout(&r, true) & ~(unsigned)LAYOUT_LAST &
                                        ~(unsigned)LAYOUT_REPEAT);
            narrow[j] = store[j].view;
            assert_int_equal(mha_tensor_convert(wide[j], &narrow[j]), MHA_OK);
            assert_int_equal(mha_tensor_convert(&narrow[j], wide[j]), MHA_OK);
        }
        plain_run(context, &desc, &x);
        const size_t bytes = (size_t)(x.H * x.T * x.D) * sizeof(float);
        float *whole = malloc(bytes);
        if (!whole) abort();
        memcpy(whole, x.o, bytes);
        plain y = x;
        y.Q = narrow[0], y.K = narrow[1], y.V = narrow[2];
        plain_run(context, &desc, &y);
        assert_memory_equal(whole, x.o, bytes);
        free(whole);
        for (int j = 0; j < 3; j++) guarded_free(&store[j]);
        free(x.q);
    }
    mha_context_destroy(context);
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Against the plain path: over all rows, and the median row. */
static void measure(mha_context *context, plain *x, double *relative, double *median)
{
    enum { MOST_ROWS = 1024 };
    const int64_t rows = x->B * x->H * x->T;
    const mha_attention_desc exact = {.struct_size = sizeof exact, .path = MHA_PATH_PLAIN},
                             fast = {.struct_size = sizeof fast, .compute = MHA_COMPUTE_INT8};
    double size = 0, apart = 0, row[MOST_ROWS];
    float *o = malloc((size_t)(rows * x->D) * sizeof *o);
    if (!o || rows > MOST_ROWS) abort();
    plain_run(context, &exact, x);
    memcpy(o, x->o, (size_t)(rows * x->D) * sizeof *o);
    plain_run(context, &fast, x);
    for (int64_t i = 0; i < rows; i++) {
        double own_size = 0, own_apart = 0;
        for (int64_t d = i * x->D; d < (i + 1) * x->D; d++) {
            own_size += (double)o[d] * (double)o[d];
            own_apart += ((double)x->o[d] - (double)o[d]) * ((double)x->o[d] - (double)o[d]);
        }
        row[i] = sqrt(own_apart / own_size);
        size += own_size, apart += own_apart;
    }
    free(o);
    qsort(row, (size_t)rows, sizeof *row, compare_doubles);
    *relative = sqrt(apart / size);
    *median = row[rows / 2];
}

/* The figures of docs/numerics.md 13. A relative error of 0.02 is a cosine of 0.9998. One row in
 * some ten thousand has a key so large that it pushes its block's other weights below half a unit;
 * it may change the figure over all rows, so the median row is judged. */
static void accuracy(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        float q, shift, factor; /* of q; of three channels of k */
        double bound;
    } kinds[] = {{"normal", 1, 0, 1, 0.02},
                 {"three channels of k shifted by 10", 1, 10, 1, 0.02},
                 {"the same, q twice as large", 2, 10, 1, 0.05},
                 {"three channels of k ten times as large", 1, 0, 10, 0.10}};
    mha_context *context = make_context(1);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)(500000 + i));
        plain x = plain_make(&r, 1, 1, 256, 2048, 64);
        double relative, median;
        for (int64_t j = 0; j < x.T * x.D; j++) x.q[j] *= kinds[i].q;
        for (int64_t j = 0; j < x.S * x.D; j++)
            if (j % x.D % 21 == 3) x.k[j] = x.k[j] * kinds[i].factor + kinds[i].shift;
        measure(context, &x, &relative, &median);
        printf("  %-40s relative error %.2e, median row %.2e\n", kinds[i].name, relative, median);
        assert_true(median <= kinds[i].bound);
        free(x.q);
    }
    mha_context_destroy(context);
}

/* ---- refusals ----------------------------------------------------------------------------------
 */

static void refusals(void **state)
{
    (void)state;
    rng r = rng_make(1, 0);
    mha_context *context = make_context(1);
    plain x = plain_make(&r, 1, 1, 3, 5, 8), wide = plain_make(&r, 1, 1, 3, 5, 260);
    float table[3 * 8] = {0}, p[15];
    const mha_tensor shaw = mha_tensor_contiguous(table, MHA_F32, 2, (int64_t[]){3, 8});
    const mha_tensor P = mha_tensor_contiguous(p, MHA_F32, 4, (int64_t[]){1, 1, 3, 5});
    const mha_attention_outputs weights = {.struct_size = sizeof weights, .probabilities = &P};
    const mha_attention_outputs scores = {.struct_size = sizeof scores, .scores = &P};
    const mha_attention_desc base = {.struct_size = sizeof base, .compute = MHA_COMPUTE_INT8};
    mha_attention_desc cap = base, drop = base, keys = base, values = base, path = base;
    mha_attention_desc other = base, reserved = base;
    cap.softcap = 1, drop.dropout = 0.5f, path.path = MHA_PATH_PLAIN;
    keys.shaw_keys = &shaw, values.shaw_values = &shaw;
    other.compute = (mha_compute)3, reserved.reserved = 1;
    const struct {
        const mha_attention_desc *desc;
        const mha_attention_outputs *outputs;
        const plain *x;
        mha_status status;
        const char *words;
    } cases[] = {{&cap, NULL, &x, MHA_ERR_UNSUPPORTED, "softcap"},
                 {&drop, NULL, &x, MHA_ERR_UNSUPPORTED, "dropout"},
                 {&keys, NULL, &x, MHA_ERR_UNSUPPORTED, "Shaw"},
                 {&values, NULL, &x, MHA_ERR_UNSUPPORTED, "Shaw"},
                 {&base, &weights, &x, MHA_ERR_UNSUPPORTED, "outputs"},
                 {&base, &scores, &x, MHA_ERR_UNSUPPORTED, "outputs"},
                 {&path, NULL, &x, MHA_ERR_UNSUPPORTED, "path"},
                 {&base, NULL, &wide, MHA_ERR_UNSUPPORTED, "256"},
                 {&other, NULL, &x, MHA_ERR_ARGUMENT, "compute is 3"},
                 {&reserved, NULL, &x, MHA_ERR_UNSUPPORTED, "reserved"}};
    mha_attention_plan plan;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const plain *at = cases[i].x;
        assert_int_equal(mha_attention_forward(context, cases[i].desc, &at->Q, &at->K, &at->V,
                                               &at->O, cases[i].outputs),
                         cases[i].status);
        assert_non_null(strstr(mha_error_detail(), cases[i].words));
        assert_int_equal(mha_attention_explain(context, cases[i].desc, &at->Q, &at->K, &at->V, NULL,
                                               cases[i].outputs, &plan),
                         cases[i].status);
    }
    const mha_attention_gradients gradients = {.struct_size = sizeof gradients, .q = &x.Q};
    plain_run(context, &base, &x);
    assert_int_equal(
        mha_attention_backward(context, &base, &x.Q, &x.K, &x.V, &x.O, &x.L, &x.O, &gradients),
        MHA_ERR_UNSUPPORTED);
    assert_int_equal(mha_attention_explain(context, &base, &x.Q, &x.K, &x.V, NULL, NULL, &plan),
                     MHA_OK);
    assert_int_equal(plan.compute, MHA_COMPUTE_INT8);
    assert_int_equal(plan.path, MHA_PATH_TILED);
    assert_non_null(strstr(plan.reason, "int8"));
    free(x.q);
    free(wide.q);
    mha_context_destroy(context);
}

RUN_TESTS(TEST(against_references), TEST(not_finite), TEST(hostile_numbers), TEST(large_values),
          TEST(company_does_not_matter), TEST(types), TEST(accuracy), TEST(refusals))
