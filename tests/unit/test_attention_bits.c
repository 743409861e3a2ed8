/* The reproducibility contract of attention.h: the bits of a row do not depend on the number of
 * threads, the rest of the batch, padding, the division of queries into calls, the layout, or the
 * requested optional outputs. */
#include "support/expect.h"
#include "support/machines.h"
#include "support/problem.h"
#include "support/shared_context.h"
#include "support/suite.h"

#include <multihead/attention.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- parts of a problem --------------------------------------------------------------------- */

/* A part: some sequences, key/value heads, queries and leading keys. */
typedef struct cut {
    int64_t b, B, hk, Hk, t, T, S;
    bool drop_lengths; /* S equals key_lengths: omit it */
} cut;

static mha_tensor slice4(const mha_tensor *x, int64_t b, int64_t B, int64_t h, int64_t H, int64_t t,
                         int64_t T)
{
    mha_tensor part = guarded_slice(x, 0, b, B);
    part = guarded_slice(&part, 1, h, H);
    return guarded_slice(&part, 2, t, T);
}

/* The part of a mask that broadcasts to [B,H,T,S]. */
static mha_tensor slice_mask(const mha_tensor *mask, const int64_t from[4], const int64_t count[4])
{
    mha_tensor part = *mask;
    for (int axis = 0; axis < 4; axis++) {
        int own = axis - (4 - mask->ndim);
        if (own >= 0 && mask->shape[own] != 1)
            part = guarded_slice(&part, own, from[axis], count[axis]);
    }
    return part;
}

static int64_t row_end(const problem *p, int64_t b, int64_t t)
{
    int64_t end = p->desc.key_lengths ? p->desc.key_lengths[b] : p->shape.S;
    if (!(p->desc.flags & MHA_ATTENTION_CAUSAL)) return end;
    int64_t offset = p->desc.q_offsets ? p->desc.q_offsets[b] : p->desc.q_offset;
    if (offset >= end - t) return end;
    return offset < -t ? 0 : t + offset + 1;
}

/* A random cut that contains every key visible to its queries. */
static cut some_cut(const problem *p, rng *r)
{
    const problem_shape *n = &p->shape;
    cut c = {.B = n->B, .Hk = n->Hk, .T = n->T};
    if (rng_chance(r, 0.6)) {
        c.b = rng_between(r, 0, n->B - 1);
        c.B = 1;
    }
    if (rng_chance(r, 0.4)) {
        c.hk = rng_between(r, 0, n->Hk - 1);
        c.Hk = rng_between(r, 1, n->Hk - c.hk);
    }
    if (rng_chance(r, 0.6)) {
        c.t = rng_between(r, 0, n->T - 1);
        c.T = rng_between(r, 1, n->T - c.t);
    }
    int64_t least = 0, longest = 0;
    for (int64_t b = c.b; b < c.b + c.B; b++) {
        int64_t length = p->desc.key_lengths ? p->desc.key_lengths[b] : n->S;
        if (length > longest) longest = length;
        for (int64_t t = c.t; t < c.t + c.T; t++)
            if (row_end(p, b, t) > least) least = row_end(p, b, t);
    }
    c.S = rng_between(r, least, n->S);
    if (rng_chance(r, 0.5)) c.S = least;
    c.drop_lengths = c.B == 1 && c.S <= longest;
    return c;
}

/* The offset of the part's first query. The largest offset does not change. */
static int64_t shifted(int64_t offset, int64_t t)
{
    return offset == (int64_t)1 << 60 ? offset : offset + t;
}

typedef struct part {
    mha_attention_desc desc;
    mha_tensor q, k, v, keep, bias;
    int64_t lengths[PROBLEM_MAX_BATCH], offsets[PROBLEM_MAX_BATCH];
} part;

/* Make the part in place, because desc points into it. */
static void part_make(const problem *p, const cut *c, part *x)
{
    int64_t group = p->shape.H / p->shape.Hk;
    const int64_t from[4] = {c->b, c->hk * group, c->t, 0};
    const int64_t count[4] = {c->B, c->Hk * group, c->T, c->S};
    *x = (part){.desc = p->desc};
    x->q = slice4(&p->q.view, c->b, c->B, c->hk * group, c->Hk * group, c->t, c->T);
    x->k = slice4(&p->k.view, c->b, c->B, c->hk, c->Hk, 0, c->S);
    x->v = slice4(&p->v.view, c->b, c->B, c->hk, c->Hk, 0, c->S);
    if (p->desc.keep_mask) {
        x->keep = slice_mask(&p->keep.view, from, count);
        x->desc.keep_mask = &x->keep;
    }
    if (p->desc.bias) {
        x->bias = slice_mask(&p->bias.view, from, count);
        x->desc.bias = &x->bias;
    }
    for (int64_t b = 0; b < c->B; b++) {
        int64_t length = p->lengths[c->b + b];
        x->lengths[b] = length < c->S ? length : c->S;
        x->offsets[b] = shifted(p->offsets[c->b + b], c->t);
    }
    if (p->desc.key_lengths) x->desc.key_lengths = c->drop_lengths ? NULL : x->lengths;
    if (p->desc.q_offsets)
        x->desc.q_offsets = x->offsets;
    else if (p->desc.flags & MHA_ATTENTION_CAUSAL)
        x->desc.q_offset = shifted(p->desc.q_offset, c->t);
}

static bool all_zero(const mha_tensor *x)
{
    int64_t index[MHA_MAX_DIMS] = {0};
    if (guarded_is_empty(x)) return true;
    do {
        if (*(float *)guarded_element(x, index) != 0) return false;
    } while (guarded_next(x, index));
    return true;
}

/* The part's results must be bit-identical to those of the whole problem, where p is 0 beyond the
 * part's keys. */
static void compare_cut(const problem *p, const cut *cut_at, rng *r, const machine *m,
                        const outcome *whole)
{
    const cut c = *cut_at;
    int64_t group = p->shape.H / p->shape.Hk, S = p->shape.S;
    part x;
    part_make(p, &c, &x);
    x.desc.path = m->path;
    const problem_shape n = {c.B, c.Hk * group, c.Hk, c.T, c.S, p->shape.D, p->shape.Dv, 0, 0, 0};
    outcome got = outcome_make(r, &n, OUTCOME_ALL, guarded_random_layout(r, false));
    if (outcome_run(m->context, &x.desc, &x.q, &x.k, &x.v, &got) != MHA_OK)
        fail_msg("%s: part of %s: %s", m->name, p->text, mha_error_detail());
    mha_tensor o = slice4(&whole->o.view, c.b, c.B, c.hk * group, c.Hk * group, c.t, c.T);
    mha_tensor lse = slice4(&whole->lse.view, c.b, c.B, c.hk * group, c.Hk * group, c.t, c.T);
    mha_tensor w = slice4(&whole->p.view, c.b, c.B, c.hk * group, c.Hk * group, c.t, c.T);
    mha_tensor seen = guarded_slice(&w, 3, 0, c.S), rest = guarded_slice(&w, 3, c.S, S - c.S);
    bool same = guarded_same_bits(&got.o.view, &o, true) &&
                guarded_same_bits(&got.lse.view, &lse, true) &&
                guarded_same_bits(&got.p.view, &seen, true) && all_zero(&rest);
    if (!same)
        fail_msg("%s: %s\n  the part b%lld+%lld hk%lld+%lld t%lld+%lld S%lld differs", m->name,
                 p->text, (long long)c.b, (long long)c.B, (long long)c.hk, (long long)c.Hk,
                 (long long)c.t, (long long)c.T, (long long)c.S);
    outcome_free(&got);
}

/* ---- problems ------------------------------------------------------------------------------- */

static problem_shape some_shape(rng *r)
{
    static const int64_t lengths[] = {1, 2, 5, 16, 17, 31, 64, 65, 100, 300, 513, 1100};
    static const int64_t sizes[] = {1, 7, 32, 40, 64, 96};
    static const int64_t heads[][2] = {{1, 1}, {2, 1}, {4, 2}, {6, 3}, {3, 3}, {4, 1}};
    int64_t pair = rng_between(r, 0, 5);
    problem_shape n = {.B = rng_between(r, 1, 3),
                       .H = heads[pair][0],
                       .Hk = heads[pair][1],
                       .T = RNG_PICK(r, lengths),
                       .S = RNG_PICK(r, lengths),
                       .D = RNG_PICK(r, sizes),
                       .Dv = RNG_PICK(r, sizes)};
    n.values = (problem_values)rng_between(r, 0, VALUES_KINDS - 1);
    n.masks = (unsigned)rng_between(r, 0, MASK_ALL) & (unsigned)rng_between(r, 0, MASK_ALL);
    while (n.B * n.H * n.T * n.S * (n.D + n.Dv) > 8000000 && n.T > 1) n.T /= 2;
    return n;
}

/* Some problems contain values that are not finite, which the contract covers. */
static void sprinkle(problem *p, rng *r)
{
    const mha_tensor *all[] = {&p->q.view, &p->k.view, &p->v.view};
    if (!rng_chance(r, 0.25)) return;
    for (int i = 0; i < 3; i++) {
        int64_t index[MHA_MAX_DIMS] = {0};
        if (guarded_is_empty(all[i])) continue;
        do {
            if (rng_chance(r, 0.0005))
                *(float *)guarded_element(all[i], index) = rng_chance(r, 0.5) ? NAN : INFINITY;
        } while (guarded_next(all[i], index));
    }
}

static outcome run(const problem *p, rng *r, const machine *m, unsigned wanted)
{
    outcome x = outcome_make(r, &p->shape, wanted, guarded_random_layout(r, false));
    if (problem_run(m->context, p, m->path, &x) != MHA_OK)
        fail_msg("%s: %s: %s", m->name, p->text, mha_error_detail());
    return x;
}

/* Batch, heads, chunks of queries, padding. */
static void parts_equal_the_whole(void)
{
    machines all = machines_make(2);
    for (int i = 0; i < rng_cases(40, 2000); i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)i);
        problem_shape n = some_shape(&r);
        problem p;
        problem_make(&p, &r, &n);
        sprinkle(&p, &r);
        for (int m = 0; m < all.count; m++) {
            outcome whole = run(&p, &r, &all.each[m], OUTCOME_ALL);
            for (int j = 0; j < 4; j++) {
                cut c = some_cut(&p, &r);
                compare_cut(&p, &c, &r, &all.each[m], &whole);
            }
            outcome_free(&whole);
        }
        problem_free(&p);
    }
}

/* A call for each single query, over several key blocks whose maxima rise. */
static void one_query_at_a_time(void)
{
    machines all = machines_make(1);
    for (int i = 0; i < rng_cases(6, 60); i++) {
        rng r = rng_make(rng_run_seed(), 50000 + (uint64_t)i);
        problem_shape n = {.B = 1, .H = 2, .Hk = rng_between(&r, 1, 2), .T = 19, .S = 1300};
        n.D = rng_between(&r, 1, 50), n.Dv = rng_between(&r, 1, 50);
        n.values = i % 2 ? VALUES_RISING : VALUES_NORMAL;
        n.masks = i % 3 ? 0 : MASK_CAUSAL | MASK_BIAS;
        problem p;
        problem_make(&p, &r, &n);
        for (int m = 0; m < all.count; m++) {
            outcome whole = run(&p, &r, &all.each[m], OUTCOME_ALL);
            for (int64_t t = 0; t < n.T; t++)
                for (int64_t hk = 0; hk < n.Hk; hk++) {
                    cut c = {.B = 1, .hk = hk, .Hk = 1, .t = t, .T = 1, .S = n.S};
                    compare_cut(&p, &c, &r, &all.each[m], &whole);
                }
            outcome_free(&whole);
        }
        problem_free(&p);
    }
}

/* Few rows of large groups over several key blocks, so that keys and values are read in place: one
 * strip, and several strips that share each panel of keys. */
static void few_queries_of_groups(void)
{
    static const int64_t groups[] = {1, 3, 4, 5, 7, 16, 32}, sizes[] = {32, 64, 96, 128, 40};
    static const int64_t lengths[] = {513, 700, 1056, 1500};
    machines all = machines_make(2);
    for (int i = 0; i < rng_cases(8, 400); i++) {
        rng r = rng_make(rng_run_seed(), 70000 + (uint64_t)i);
        problem_shape n = {.B = 1, .Hk = rng_between(&r, 1, 2), .T = 17};
        n.H = n.Hk * RNG_PICK(&r, groups), n.S = RNG_PICK(&r, lengths);
        n.D = RNG_PICK(&r, sizes), n.Dv = RNG_PICK(&r, sizes);
        n.values = (problem_values)rng_between(&r, 0, VALUES_KINDS - 1);
        n.masks = (unsigned)rng_between(&r, 0, MASK_ALL) & (unsigned)rng_between(&r, 0, MASK_ALL);
        problem p;
        problem_make(&p, &r, &n);
        sprinkle(&p, &r);
        for (int m = 0; m < all.count; m++) {
            outcome whole = run(&p, &r, &all.each[m], OUTCOME_ALL);
            for (int j = 0; j < 4; j++) {
                cut c = {.B = 1, .Hk = n.Hk, .T = rng_between(&r, 1, 3), .S = n.S};
                c.t = rng_between(&r, 0, n.T - c.T);
                compare_cut(&p, &c, &r, &all.each[m], &whole);
            }
            outcome_free(&whole);
        }
        problem_free(&p);
    }
}

/* One block of keys with causal, lengths, a dense mask and a bias. With probabilities the outputs
 * are computed tile by tile, without them by one call per chunk or, with few queries and keys, by one
 * call for up to 16 heads. Lengths are around the ends of half panels, panels and strips. */
static void one_block_equals_tiles(void)
{
    static const int64_t sizes[] = {1, 9, 16, 32, 37, 64, 96, 128, 240},
                         values[] = {1, 7, 16, 32, 41, 48, 64, 75, 96, 112, 256};
    static const int64_t lengths[] = {1,  10, 15, 16,  17,  31,  32, 33,
                                      48, 49, 64, 100, 128, 500, 512};
    static const int64_t heads[][2] = {{1, 1}, {4, 2}, {3, 3}, {5, 1}, {24, 8}, {20, 20}};
    machines all = machines_make(2);
    for (int i = 0; i < rng_cases(40, 2000); i++) {
        rng r = rng_make(rng_run_seed(), 500000 + (uint64_t)i);
        const int64_t *pair = RNG_PICK(&r, heads);
        problem_shape n = {.B = rng_between(&r, 1, 2), .H = pair[0], .Hk = pair[1]};
        n.T = rng_between(&r, 1, 45), n.S = RNG_PICK(&r, lengths);
        if (i % 2 > 0) n.T = rng_between(&r, 1, 40), n.S = rng_between(&r, 1, 16);
        n.D = RNG_PICK(&r, sizes), n.Dv = RNG_PICK(&r, values);
        n.values = (problem_values)rng_between(&r, 0, VALUES_KINDS - 1);
        n.masks = (unsigned)rng_between(&r, 0, MASK_ALL) & (unsigned)rng_between(&r, 0, MASK_ALL);
        if (i % 2 > 0) n.masks &= MASK_CAUSAL | MASK_OFFSETS | MASK_LENGTHS;
        problem p;
        problem_make(&p, &r, &n);
        sprinkle(&p, &r);
        for (int m = 0; m < all.count; m++) {
            outcome tiles = run(&p, &r, &all.each[m], OUTCOME_ALL);
            for (unsigned wanted = OUTCOME_O; wanted <= OUTCOME_LSE; wanted++) {
                outcome one = run(&p, &r, &all.each[m], wanted);
                if (!outcome_same(&tiles, &one, false))
                    fail_msg("%s: %s: one block differs from tiles", all.each[m].name, p.text);
                outcome_free(&one);
            }
            outcome_free(&tiles);
        }
        problem_free(&p);
    }
}

static float *element(const mha_tensor *x, int64_t row, int64_t i)
{
    return guarded_element(x, (int64_t[]){0, 0, row, i});
}

/* Whether a query row is infinite. Rows may share memory. */
static bool infinite(const mha_tensor *q, int64_t row)
{
    return isinf(*element(q, row, 0));
}

/* Infinite elements whose products are all -inf, like the score of a hidden key. Results that must
 * be NaN would be 0, or the sum over the other keys, if the library treated these keys as
 * hidden. */
static void one_block_is_not_fooled_by_infinity(void)
{
    machines all = machines_make(1);
    for (int bad_key = 0; bad_key < 2; bad_key++) {
        rng r = rng_make(rng_run_seed(), 600000);
        const problem_shape n = {.B = 1, .H = 1, .Hk = 1, .T = 3, .S = 5, .D = 16, .Dv = 32};
        problem p;
        problem_make(&p, &r, &n);
        for (int64_t t = 0; t < n.T; t++) *element(&p.q.view, t, 0) = 1;
        for (int64_t s = 0; s < n.S; s++) *element(&p.k.view, s, 0) = -1;
        *(bad_key ? element(&p.k.view, 0, 0) : element(&p.q.view, 0, 0)) =
            bad_key ? -INFINITY : INFINITY;
        for (int m = 0; m < all.count; m++) {
            outcome one = run(&p, &r, &all.each[m], OUTCOME_O);
            for (int64_t t = 0; t < n.T; t++)
                if (!isnan(*element(&one.o.view, t, 0)) != (!infinite(&p.q.view, t) && !bad_key))
                    fail_msg("%s: row %d is %g, of an infinite %s", all.each[m].name, (int)t,
                             (double)*element(&one.o.view, t, 0), bad_key ? "key" : "query");
            outcome_free(&one);
        }
        problem_free(&p);
    }
}

/* A host's parallel-for that runs items in reverse order in the caller's thread. */
static void run_backwards(void *user, int64_t items, mha_parallel_body body, void *argument)
{
    (void)user;
    for (int64_t item = items - 1; item >= 0; item--) body(argument, item, (int)(item % 5));
}

/* 1, 2, 3 and 8 threads, and a host that runs items in another order. */
static void any_number_of_threads(void)
{
    static const int counts[] = {1, 2, 3, 8};
    machines with[4];
    for (int i = 0; i < 4; i++) with[i] = machines_make(counts[i]);
    for (int i = 0; i < rng_cases(20, 1000); i++) {
        rng r = rng_make(rng_run_seed(), 100000 + (uint64_t)i);
        problem_shape n = some_shape(&r);
        problem p;
        problem_make(&p, &r, &n);
        sprinkle(&p, &r);
        for (int m = 0; m < with[0].count; m++) {
            outcome one = run(&p, &r, &with[0].each[m], OUTCOME_ALL);
            for (int t = 1; t < 4; t++) {
                outcome many = run(&p, &r, &with[t].each[m], OUTCOME_ALL);
                if (!outcome_same(&one, &many, false))
                    fail_msg("%s: %s: %d threads differ from 1", with[0].each[m].name, p.text,
                             counts[t]);
                outcome_free(&many);
            }
            const mha_context_desc desc = {.struct_size = sizeof desc,
                                           .num_threads = 5,
                                           .isa = with[0].each[m].isa,
                                           .parallel_for = run_backwards};
            machine host = with[0].each[m];
            expect_ok(mha_context_create(&desc, &host.context));
            outcome other = run(&p, &r, &host, OUTCOME_ALL);
            assert_true(outcome_same(&one, &other, false));
            mha_context_destroy(host.context);
            outcome_free(&other);
            outcome_free(&one);
        }
        problem_free(&p);
    }
}

static void optional_outputs(void)
{
    machines all = machines_make(1);
    for (int i = 0; i < rng_cases(16, 500); i++) {
        rng r = rng_make(rng_run_seed(), 200000 + (uint64_t)i);
        problem_shape n = some_shape(&r);
        problem p;
        problem_make(&p, &r, &n);
        sprinkle(&p, &r);
        for (int m = 0; m < all.count; m++) {
            outcome full = run(&p, &r, &all.each[m], OUTCOME_ALL);
            for (unsigned wanted = 0; wanted < (unsigned)OUTCOME_ALL; wanted++) {
                outcome some = run(&p, &r, &all.each[m], wanted);
                if (!outcome_same(&full, &some, false))
                    fail_msg("%s: %s: outputs %u change the bits", all.each[m].name, p.text,
                             wanted);
                outcome_free(&some);
            }
            outcome_free(&full);
        }
        problem_free(&p);
    }
}

/* The same elements, contiguous. */
static guarded packed_copy(rng *r, const mha_tensor *x)
{
    guarded copy = guarded_make(r, x->dtype, x->ndim, x->shape, LAYOUT_CONTIGUOUS);
    int64_t index[MHA_MAX_DIMS] = {0};
    if (guarded_is_empty(x)) return copy;
    do
        memcpy(guarded_element(&copy.view, index), guarded_element(x, index),
               mha_dtype_size(x->dtype));
    while (guarded_next(x, index));
    return copy;
}

static void any_layout(void)
{
    machines all = machines_make(1);
    for (int i = 0; i < rng_cases(20, 1000); i++) {
        rng r = rng_make(rng_run_seed(), 300000 + (uint64_t)i);
        problem_shape n = some_shape(&r);
        problem p;
        problem_make(&p, &r, &n);
        guarded q = packed_copy(&r, &p.q.view), k = packed_copy(&r, &p.k.view);
        guarded v = packed_copy(&r, &p.v.view);
        for (int m = 0; m < all.count; m++) {
            mha_attention_desc desc = p.desc;
            desc.path = all.each[m].path;
            outcome strided = run(&p, &r, &all.each[m], OUTCOME_ALL);
            outcome packed = outcome_make(&r, &n, OUTCOME_ALL, LAYOUT_CONTIGUOUS);
            expect_ok(outcome_run(all.each[m].context, &desc, &q.view, &k.view, &v.view, &packed));
            if (!outcome_same(&strided, &packed, false))
                fail_msg("%s: %s: the layout changes the bits", all.each[m].name, p.text);
            outcome_free(&strided);
            outcome_free(&packed);
        }
        guarded_free(&q);
        guarded_free(&k);
        guarded_free(&v);
        problem_free(&p);
    }
}

/* Earlier computations in a context have no effect. */
static void any_history(void)
{
    machines fresh = machines_make(2), used = machines_make(2);
    for (int i = 0; i < rng_cases(16, 500); i++) {
        rng r = rng_make(rng_run_seed(), 400000 + (uint64_t)i);
        problem_shape n = some_shape(&r);
        problem p;
        problem_make(&p, &r, &n);
        sprinkle(&p, &r);
        fresh = machines_make(2);
        for (int m = 0; m < used.count; m++) {
            outcome first = run(&p, &r, &fresh.each[m], OUTCOME_ALL);
            outcome later = run(&p, &r, &used.each[m], OUTCOME_ALL);
            if (!outcome_same(&first, &later, false))
                fail_msg("%s: %s: a used context gives other bits", used.each[m].name, p.text);
            outcome_free(&first);
            outcome_free(&later);
        }
        problem_free(&p);
    }
}

/* Each size, explicit and by default, with a causal mask that ends at the last key. */
static void floats_are_tensors(void)
{
    enum { B = 2, H = 4, HK = 2, T = 3, S = 5, D = 8, DV = 6 };
    static float x[B * H * S * D], o[B * H * T * DV], wanted[B * H * T * DV];
    rng r = rng_make(rng_run_seed(), 1);
    for (int i = 0; i < B * H * S * D; i++) x[i] = rng_normal(&r);
    mha_context *context = context_with(1);
    mha_attention_sizes sizes = {.struct_size = sizeof sizes,
                                 .flags = MHA_ATTENTION_CAUSAL,
                                 .batch = B,
                                 .heads = H,
                                 .kv_heads = HK,
                                 .queries = T,
                                 .keys = S,
                                 .head_dim = D,
                                 .value_dim = DV};
    const mha_attention_desc desc = {
        .struct_size = sizeof desc, .flags = MHA_ATTENTION_CAUSAL, .q_offset = S - T};
    const mha_tensor q = mha_tensor_contiguous(x, MHA_F32, 4, (int64_t[]){B, H, T, D});
    const mha_tensor k = mha_tensor_contiguous(x, MHA_F32, 4, (int64_t[]){B, HK, S, D});
    const mha_tensor v = mha_tensor_contiguous(x, MHA_F32, 4, (int64_t[]){B, HK, S, DV});
    const mha_tensor to = mha_tensor_contiguous(wanted, MHA_F32, 4, (int64_t[]){B, H, T, DV});
    expect_ok(mha_attention_floats(context, &sizes, x, x, x, o));
    expect_ok(mha_attention_forward(context, &desc, &q, &k, &v, &to, NULL));
    assert_memory_equal(o, wanted, sizeof o);

    const mha_tensor one = mha_tensor_contiguous(x, MHA_F32, 4, (int64_t[]){1, 1, T, D});
    const mha_tensor to_one = mha_tensor_contiguous(wanted, MHA_F32, 4, (int64_t[]){1, 1, T, D});
    mha_attention_sizes small = {.struct_size = sizeof small, .queries = T, .head_dim = D};
    expect_ok(mha_attention_floats(context, &small, x, x, x, o));
    expect_ok(mha_attention_forward(context, NULL, &one, &one, &one, &to_one, NULL));
    assert_memory_equal(o, wanted, T * D * sizeof *o);

    expect_error(mha_attention_floats(context, NULL, x, x, x, o), MHA_ERR_NULL, "sizes is NULL");
    expect_error(mha_attention_floats(context, &small, x, NULL, x, o), MHA_ERR_NULL, "k");
    small.flags = MHA_ATTENTION_WINDOW;
    expect_error(mha_attention_floats(context, &small, x, x, x, o), MHA_ERR_UNSUPPORTED, "0x8");
    small.flags = 0, small.kv_heads = -1;
    expect_error(mha_attention_floats(context, &small, x, x, x, o), MHA_ERR_SHAPE,
                 "k: dim 1 is -1");
    small = (mha_attention_sizes){.struct_size = sizeof small,
                                  .flags = MHA_ATTENTION_CAUSAL,
                                  .queries = T,
                                  .keys = INT64_MIN,
                                  .head_dim = D};
    expect_error(mha_attention_floats(context, &small, x, x, x, o), MHA_ERR_SHAPE, "dim 2 is -");
}

RUN_TESTS(TEST(floats_are_tensors), TEST(parts_equal_the_whole), TEST(one_query_at_a_time),
          TEST(few_queries_of_groups), TEST(one_block_equals_tiles),
          TEST(one_block_is_not_fooled_by_infinity), TEST(any_number_of_threads),
          TEST(optional_outputs), TEST(any_layout), TEST(any_history))
