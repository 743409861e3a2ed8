/* Changes that affect only rounding: a constant added to every score of a row, and a different
 * order of the keys. Two results with the same exact value differ by at most the sum of their
 * bounds (docs/numerics.md 3), on every path and instruction set. */
#include "reference/kinds_bounds.h"
#include "support/kinds.h"
#include "support/machines.h"
#include "support/suite.h"
#include "support/tally.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- two descriptions of one result ---------------------------------------------------------- */

/* Key s of the first is key order[s] of the second, or key s if order is NULL. lse of the second is
 * larger by shift[row], or equal if shift is NULL. */
typedef struct twins {
    kinds_case *c;
    ref_attention a, b;
    const int64_t *order;
    const mha_tensor *shift; /* [B,H,T,1] */
    int number;
    tally *o, *p, *lse;
} twins;

static void fail_twins(const twins *x, const machine *m, const char *what, double got, double want,
                       double bound)
{
    fail_msg("%s: %s is %.9g and %.9g, bound %.3g\n  %s\n  case %d of seed %llu", m->name, what,
             got, want, bound, x->c->text, x->number, (unsigned long long)rng_run_seed());
}

static outcome run(const machine *m, const ref_attention *a, const problem_shape *shape, rng *r)
{
    outcome y = outcome_make(r, shape, OUTCOME_ALL, LAYOUT_CONTIGUOUS);
    mha_attention_desc d = *a->desc;
    d.path = m->path;
    if (outcome_run(m->context, &d, a->q, a->k, a->v, &y) != MHA_OK)
        fail_msg("%s", mha_error_detail());
    return y;
}

typedef struct judged {
    kinds_row row;
    bound_row bound;
} judged;

static void judge(const ref_attention *a, const bound_arith *arith, const int64_t at[3], judged *x)
{
    kinds_attention_row(a, at[0], at[1], at[2], &x->row);
    kinds_bound_row(a, arith, at[0], at[1], at[2], &x->row, &x->bound);
}

static double shift_of(const twins *x, const int64_t at[3])
{
    if (!x->shift) return 0;
    return (double)*(float *)guarded_element(x->shift, (int64_t[]){at[0], at[1], at[2], 0});
}

static void compare_row(const twins *x, const machine *m, const int64_t at[3], const outcome y[2],
                        const judged j[2])
{
    double shift = shift_of(x, at), bound = j[0].bound.lse + j[1].bound.lse;
    const float *o[2], *p[2], *lse[2];
    for (int i = 0; i < 2; i++) {
        const ref_attention *a = i ? &x->b : &x->a;
        o[i] = kinds_at(&y[i].o.view, a, at[0], at[1], at[2]);
        p[i] = kinds_at(&y[i].p.view, a, at[0], at[1], at[2]);
        lse[i] = kinds_at(&y[i].lse.view, a, at[0], at[1], at[2]);
    }
    if (!tally_compare(x->lse, (double)*lse[1] - shift, (double)*lse[0], bound))
        fail_twins(x, m, "lse", (double)*lse[1] - shift, (double)*lse[0], bound);
    for (int64_t d = 0; d < j[0].row.value_dim; d++) {
        bound = j[0].bound.o[d] + j[1].bound.o[d];
        if (!tally_compare(x->o, (double)o[1][d], (double)o[0][d], bound))
            fail_twins(x, m, "o", (double)o[1][d], (double)o[0][d], bound);
    }
    for (int64_t s = 0; s < j[0].row.keys; s++) {
        int64_t other = x->order ? x->order[s] : s;
        bound = j[0].bound.p[s] + j[1].bound.p[other];
        if (!tally_compare(x->p, (double)p[1][other], (double)p[0][s], bound))
            fail_twins(x, m, "p", (double)p[1][other], (double)p[0][s], bound);
    }
}

static void compare(const twins *x, const machines *all, rng *r)
{
    const kinds_shape *n = &x->c->shape;
    judged j[2];
    for (int i = 0; i < 2; i++)
        j[i] = (judged){kinds_row_make(n->S, n->Dv), bound_row_make(n->S, n->Dv)};
    for (int m = 0; m < all->count; m++) {
        const machine *each = &all->each[m];
        bound_arith arith = bound_arith_of(&x->a, each->path, each->isa);
        outcome y[2] = {run(each, &x->a, &x->c->result, r), run(each, &x->b, &x->c->result, r)};
        for (int i = 0; i < 8 && n->B * n->H * n->T > 0; i++) {
            const int64_t at[3] = {rng_between(r, 0, n->B - 1), rng_between(r, 0, n->H - 1),
                                   rng_between(r, 0, n->T - 1)};
            judge(&x->a, &arith, at, &j[0]);
            judge(&x->b, &arith, at, &j[1]);
            compare_row(x, each, at, y, j);
        }
        outcome_free(&y[0]);
        outcome_free(&y[1]);
    }
    for (int i = 0; i < 2; i++) {
        kinds_row_free(&j[i].row);
        bound_row_free(&j[i].bound);
    }
}

static kinds_case *make(rng *r, uint64_t stream, unsigned kinds)
{
    kinds_case *c = test_malloc(sizeof *c);
    *r = rng_make(rng_run_seed(), stream);
    kinds_shape n = kinds_some_shape(r);
    n.kinds &= kinds;
    kinds_make(c, r, &n);
    return c;
}

static void finish(tally *tallies)
{
    for (int i = 0; i < 3; i++) tally_judge(&tallies[i]);
}

/* ---- a constant ------------------------------------------------------------------------------ */

/* A bias adds a different constant to each row. A sink's score would not shift with it. */
static void constant_added(void)
{
    machines all = machines_make(1);
    tally tallies[3] = {
        {.name = "constant, o"}, {.name = "constant, p"}, {.name = "constant, lse"}};
    for (int i = 0; i < rng_cases(60, 1500); i++) {
        rng r;
        kinds_case *c = make(&r, (uint64_t)i,
                             KINDS_ALL & ~(unsigned)(KIND_BIAS | KIND_SINK_LOGITS | KIND_RAGGED));
        const kinds_shape *n = &c->shape;
        guarded shift =
            guarded_make(&r, MHA_F32, 4, (int64_t[]){n->B, n->H, n->T, 1}, LAYOUT_CONTIGUOUS);
        int64_t index[MHA_MAX_DIMS] = {0};
        double size = i % 3 ? 4 : 100;
        if (!guarded_is_empty(&shift.view)) do
                *(float *)guarded_element(&shift.view, index) =
                    (float)(size * (double)rng_normal(&r));
            while (guarded_next(&shift.view, index));
        mha_attention_desc moved = c->desc;
        moved.bias = &shift.view;
        twins x = {.c = c,
                   .a = kinds_reference(c),
                   .b = kinds_reference(c),
                   .shift = &shift.view,
                   .number = i};
        x.b.desc = &moved;
        x.o = &tallies[0], x.p = &tallies[1], x.lse = &tallies[2];
        compare(&x, &all, &r);
        guarded_free(&shift);
        kinds_free(c);
        test_free(c);
    }
    finish(tallies);
}

/* ---- another order --------------------------------------------------------------------------- */

/* x with its key axis permuted, or unchanged if x broadcasts over keys. */
static guarded reordered(const mha_tensor *x, int axis, const int64_t *order, rng *r)
{
    guarded y = guarded_make(r, x->dtype, x->ndim, x->shape, LAYOUT_CONTIGUOUS);
    int64_t index[MHA_MAX_DIMS] = {0}, to[MHA_MAX_DIMS];
    if (guarded_is_empty(x)) return y;
    do {
        memcpy(to, index, sizeof to);
        if (axis >= 0 && axis < x->ndim && x->shape[axis] > 1) to[axis] = order[index[axis]];
        memcpy(guarded_element(&y.view, to), guarded_element(x, index), mha_dtype_size(x->dtype));
    } while (guarded_next(x, index));
    return y;
}

/* Keys are permuted for every kind that reads no positions. */
static void keys_permuted(void)
{
    const unsigned kinds =
        KIND_KEEP | KIND_BIAS | KIND_DOCUMENTS | KIND_SOFTCAP | KIND_SINK_LOGITS | KIND_GATES;
    machines all = machines_make(1);
    tally tallies[3] = {{.name = "order, o"}, {.name = "order, p"}, {.name = "order, lse"}};
    for (int i = 0; i < rng_cases(60, 1500); i++) {
        rng r;
        kinds_case *c = make(&r, 100000 + (uint64_t)i, kinds);
        int64_t *order = test_malloc((size_t)(c->shape.S + 1) * sizeof *order);
        for (int64_t s = 0; s < c->shape.S; s++) { /* Fisher and Yates */
            int64_t other = rng_between(&r, 0, s);
            order[s] = order[other];
            order[other] = s;
        }
        mha_attention_desc moved = c->desc;
        const mha_tensor **key_axis_last[] = {&moved.keep_mask, &moved.bias, &moved.key_documents};
        guarded own[5] = {reordered(&c->k.view, 2, order, &r), reordered(&c->v.view, 2, order, &r)};
        int used = 2;
        for (int j = 0; j < 3; j++) {
            const mha_tensor *from = *key_axis_last[j];
            if (!from) continue;
            own[used] = reordered(from, from->ndim - 1, order, &r);
            *key_axis_last[j] = &own[used++].view;
        }
        twins x = {.c = c, .a = kinds_reference(c), .order = order, .number = i};
        x.b = (ref_attention){&moved, &c->q.view, &own[0].view, &own[1].view, NULL, NULL, NULL};
        x.o = &tallies[0], x.p = &tallies[1], x.lse = &tallies[2];
        compare(&x, &all, &r);
        for (int j = 0; j < used; j++) guarded_free(&own[j]);
        test_free(order);
        kinds_free(c);
        test_free(c);
    }
    finish(tallies);
}

RUN_TESTS(TEST(constant_added), TEST(keys_permuted))
