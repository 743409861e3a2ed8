/* Non-finite numbers for every kind of attention, in one call and through the key/value cache.
 * Hidden ones change no bit. In a visible key or in the query, they make exactly that row NaN; in a
 * value, exactly that element. The results are the same on every path and instruction set. The
 * kinds are tested separately first, then in random combinations. test_attention.c tests single
 * elements, and rows that see only non-finite keys. */
#include "reference/kinds_reference.h"
#include "support/expect.h"
#include "support/kinds.h"
#include "support/machines.h"
#include "support/suite.h"

#include <multihead/cache.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- cases ----------------------------------------------------------------------------------- */

enum { BAD_KEY = 1, BAD_VALUE = 2, BAD_QUERY = 4 };

typedef struct spoiled {
    kinds_case c;
    uint8_t *keys, *queries; /* [batch, Hk or H, rows] sets of BAD_... bits */
    int number;
    bool cached;
} spoiled;

static void must(bool condition, const machine *m, const spoiled *x, const char *what)
{
    if (condition) return;
    fail_msg("%s, %s: %s\n  %s\n  case %d of seed %llu", m->name,
             x->cached ? "from the cache" : "forward", what, x->c.text, x->number,
             (unsigned long long)rng_run_seed());
}

/* Each kind of mask separately, and with a bias that has elements of -inf. */
static const unsigned alone[] = {KIND_CAUSAL,
                                 KIND_LENGTHS,
                                 KIND_BEGINS,
                                 KIND_KEEP,
                                 KIND_BIAS,
                                 KIND_WINDOW,
                                 KIND_WINDOW | KIND_SINK_KEYS,
                                 KIND_WINDOW | KIND_GLOBAL_KEYS,
                                 KIND_WINDOW | KIND_GLOBAL_QUERIES,
                                 KIND_DOCUMENTS,
                                 KIND_BLOCKS,
                                 KIND_CALLBACK,
                                 KIND_RAGGED};
enum { ALONE = sizeof alone / sizeof alone[0] };

static kinds_shape some_shape(rng *r, int number, bool cached)
{
    kinds_shape n = kinds_some_shape(r);
    n.plain_layout = true; /* no axis of stride 0, so that every element has its own memory */
    if (number < 3 * ALONE) {
        n.kinds = alone[number % ALONE];
        if (n.T == 0) n.T = 7;
        if (n.S == 0) n.S = 30;
    }
    if (cached) n.kinds &= ~(unsigned)KIND_RAGGED;
    return n;
}

static uint8_t *draw(rng *r, int64_t count, double often, int low, int high)
{
    uint8_t *bad = test_calloc((size_t)count + 1, 1);
    for (int64_t i = 0; i < count; i++)
        if (rng_chance(r, often)) bad[i] = (uint8_t)rng_between(r, low, high);
    return bad;
}

/* The cache's keys end with the longest sequence. Sets its length to S. */
static void lengthen(kinds_case *c, rng *r)
{
    c->lengths[rng_between(r, 0, c->shape.B - 1)] = c->shape.S;
}

static spoiled *make(rng *r, int number, bool cached)
{
    spoiled *x = test_calloc(1, sizeof *x);
    *r = rng_make(rng_run_seed(), (uint64_t)number + (cached ? 100000 : 0));
    kinds_shape n = some_shape(r, number, cached);
    kinds_make(&x->c, r, &n);
    x->number = number;
    x->cached = cached;
    if (cached) lengthen(&x->c, r);
    double often = rng_chance(r, 0.5) ? 0.03 : 0.4;
    const int64_t *k = x->c.k.view.shape, *q = x->c.q.view.shape;
    x->keys = draw(r, k[0] * k[1] * k[2], often, BAD_KEY, BAD_KEY | BAD_VALUE);
    x->queries = draw(r, q[0] * q[1] * q[2], 0.05, BAD_QUERY, BAD_QUERY);
    return x;
}

static void discard(spoiled *x)
{
    test_free(x->keys);
    test_free(x->queries);
    kinds_free(&x->c);
    test_free(x);
}

/* Makes one element of a bad key or query non-finite, and every element of a bad value. */
static void spoil_rows(rng *r, const mha_tensor *x, const uint8_t *bad, unsigned which, bool all)
{
    static const float garbage[] = {NAN, INFINITY, -INFINITY};
    const int64_t *n = x->shape;
    for (int64_t i = 0; i < n[0] * n[1] * n[2]; i++) {
        if (!(bad[i] & which)) continue;
        int64_t at[4] = {i / n[2] / n[1], i / n[2] % n[1], i % n[2], rng_between(r, 0, n[3] - 1)};
        for (int64_t d = 0; d < n[3]; d++) {
            if (all) at[3] = d;
            *(float *)guarded_element(x, at) = RNG_PICK(r, garbage);
        }
    }
}

static void spoil(spoiled *x, rng *r)
{
    spoil_rows(r, &x->c.k.view, x->keys, BAD_KEY, false);
    spoil_rows(r, &x->c.v.view, x->keys, BAD_VALUE, true);
    spoil_rows(r, &x->c.q.view, x->queries, BAD_QUERY, false);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static bool reads_positions(const mha_attention_desc *d)
{
    return d->flags & (MHA_ATTENTION_CAUSAL | MHA_ATTENTION_WINDOW) || d->alibi_slopes ||
           d->t5_table || d->shaw_keys || d->shaw_values;
}

/* The same call with keys and values in a cache that has garbage after its end. */
static mha_status run_cached(const machine *m, const spoiled *x, outcome *y)
{
    const kinds_case *c = &x->c;
    const kinds_shape *n = &c->shape;
    const mha_kv_cache_desc desc = {.struct_size = sizeof desc,
                                    .batch = n->B,
                                    .kv_heads = n->Hk,
                                    .capacity = n->S + 5,
                                    .head_dim = n->D,
                                    .value_head_dim = n->Dv};
    const mha_attention_outputs outputs = {
        .struct_size = sizeof outputs, .lse = &y->lse.view, .probabilities = &y->p.view};
    int64_t offsets[KINDS_MOST_SEQUENCES];
    mha_attention_desc d = c->desc;
    mha_kv_cache *cache;
    expect_ok(mha_kv_cache_create(m->context, &desc, &cache));
    rng r = rng_make(1, 1);
    guarded k = guarded_make(&r, MHA_F32, 4, (int64_t[]){n->B, n->Hk, n->S + 5, n->D}, 0);
    guarded v = guarded_make(&r, MHA_F32, 4, (int64_t[]){n->B, n->Hk, n->S + 5, n->Dv}, 0);
    expect_ok(mha_kv_cache_append(cache, &k.view, &v.view, NULL)); /* all NaN */
    mha_kv_cache_reset(cache);
    expect_ok(mha_kv_cache_append(cache, &c->k.view, &c->v.view, d.key_lengths));
    for (int64_t b = 0; b < n->B; b++)
        offsets[b] = d.q_offsets ? d.q_offsets[b] : d.q_offset; /* 0 would mean "the last" */
    if (reads_positions(&d)) d.q_offsets = offsets;
    d.q_offset = 0;
    d.key_lengths = NULL;
    d.path = m->path;
    mha_status status =
        mha_kv_cache_attention(m->context, cache, &d, &c->q.view, &y->o.view, &outputs);
    mha_kv_cache_destroy(cache);
    guarded_free(&k);
    guarded_free(&v);
    return status;
}

static outcome run(const machine *m, const spoiled *x, rng *r)
{
    outcome y = kinds_outcome(&x->c, r, LAYOUT_CONTIGUOUS);
    mha_status status =
        x->cached ? run_cached(m, x, &y) : kinds_run(m->context, &x->c, m->path, &y);
    must(status == MHA_OK, m, x, mha_error_detail());
    return y;
}

/* ---- the rules of attention.h ---------------------------------------------------------------- */

typedef struct place {
    int64_t b, h, t;
} place;

/* The bad inputs that affect the query. A bad query counts if it sees any key. */
static unsigned exposure(const spoiled *x, place at)
{
    const kinds_case *c = &x->c;
    ref_attention a = kinds_reference(c);
    kinds_sequence seq = kinds_sequence_at(&a, at.b);
    int64_t hk = at.h / (c->shape.H / c->shape.Hk), rows = c->k.view.shape[2];
    const uint8_t *keys = x->keys + (seq.batch * c->shape.Hk + hk) * rows + seq.k0;
    unsigned seen = 0, query = 0;
    for (int64_t s = 0; s < seq.S; s++)
        if (kinds_sees(&a, at.b, at.h, at.t, s)) {
            seen |= keys[s];
            query =
                x->queries[(seq.batch * c->shape.H + at.h) * c->q.view.shape[2] + seq.q0 + at.t];
        }
    return seen | query;
}

static bool same(const float *a, const float *b, int64_t count)
{
    return memcmp(a, b, (size_t)count * sizeof *a) == 0;
}

/* In a row with a bad key or query, p is NaN for visible keys and 0 for hidden ones. */
static void check_lost_p(const spoiled *x, const machine *m, place at, const float *p)
{
    ref_attention a = kinds_reference(&x->c);
    kinds_sequence seq = kinds_sequence_at(&a, at.b);
    for (int64_t s = 0; s < x->c.result.S; s++) {
        bool seen = s < seq.S && kinds_sees(&a, at.b, at.h, at.t, s);
        must(seen ? isnan(p[s]) != 0 : p[s] == 0, m, x, "p of a row with a bad key or query");
    }
}

static void check_row(const spoiled *x, const machine *m, place at, const outcome *clean,
                      const outcome *dirty)
{
    const kinds_shape *n = &x->c.shape;
    ref_attention a = kinds_reference(&x->c);
    unsigned seen = exposure(x, at);
    bool row_lost = seen & (BAD_KEY | BAD_QUERY);
    const float *o = kinds_at(&dirty->o.view, &a, at.b, at.h, at.t);
    const float *lse = kinds_at(&dirty->lse.view, &a, at.b, at.h, at.t);
    const float *p = kinds_at(&dirty->p.view, &a, at.b, at.h, at.t);
    if (!seen)
        must(same(o, kinds_at(&clean->o.view, &a, at.b, at.h, at.t), n->Dv), m, x,
             "what is not seen reaches o");
    for (int64_t d = 0; seen && d < n->Dv; d++)
        must(row_lost ? isnan(o[d]) != 0 : !isfinite(o[d]), m, x, "what is seen goes unnoticed");
    if (row_lost) {
        must(isnan(*lse) != 0, m, x, "lse is not NaN");
        check_lost_p(x, m, at, p);
    } else {
        must(same(lse, kinds_at(&clean->lse.view, &a, at.b, at.h, at.t), 1) &&
                 same(p, kinds_at(&clean->p.view, &a, at.b, at.h, at.t), x->c.result.S),
             m, x, "what is not seen reaches lse or p");
    }
}

static void check_rows(const spoiled *x, const machine *m, const outcome *clean,
                       const outcome *dirty)
{
    const kinds_shape *n = &x->c.shape;
    ref_attention a = kinds_reference(&x->c);
    for (int64_t i = 0; i < n->B * n->H * n->T; i++) {
        place at = {i / n->T / n->H, i / n->T % n->H, i % n->T};
        if (at.t < kinds_sequence_at(&a, at.b).T) check_row(x, m, at, clean, dirty);
    }
}

/* The set of finite elements does not depend on the machine; AVX2 and AVX-512 are bit-identical except for NaN
 * payloads. */
static void check_alike(const spoiled *x, const machines *all, const outcome *y)
{
    for (int m = 1; m < all->count; m++) {
        int64_t index[MHA_MAX_DIMS] = {0};
        const machine *each = &all->each[m];
        if (each->isa == MHA_ISA_AVX512 && all->each[m - 1].isa == MHA_ISA_AVX2)
            must(outcome_same(&y[m], &y[m - 1], true), each, x, "not the bits of AVX2");
        if (guarded_is_empty(&y[0].o.view)) continue;
        do {
            float a = *(float *)guarded_element(&y[0].o.view, index);
            float b = *(float *)guarded_element(&y[m].o.view, index);
            must(isfinite(a) == isfinite(b), each, x, "finite here and not there");
        } while (guarded_next(&y[0].o.view, index));
    }
}

static void check_cases(bool cached)
{
    machines all = machines_make(1);
    for (int i = 0; i < rng_cases(cached ? 90 : 110, 3000); i++) {
        rng r;
        spoiled *x = make(&r, i, cached);
        outcome clean[MOST_MACHINES], dirty[MOST_MACHINES];
        for (int m = 0; m < all.count; m++) clean[m] = run(&all.each[m], x, &r);
        spoil(x, &r);
        for (int m = 0; m < all.count; m++) {
            dirty[m] = run(&all.each[m], x, &r);
            check_rows(x, &all.each[m], &clean[m], &dirty[m]);
        }
        check_alike(x, &all, dirty);
        for (int m = 0; m < all.count; m++) {
            outcome_free(&clean[m]);
            outcome_free(&dirty[m]);
        }
        discard(x);
    }
}

static void what_is_not_finite_stays_in_its_rows(void)
{
    check_cases(false);
}

static void through_the_cache(void)
{
    check_cases(true);
}

/* ---- token by token -------------------------------------------------------------------------- */

enum { B = 2, H = 4, HK = 2, N = 530, D = 16 };

typedef struct story {
    guarded q, k, v, o, lse;
} story;

static story story_make(rng *r)
{
    story x = {.q = guarded_make(r, MHA_F32, 4, (int64_t[]){B, H, N, D}, LAYOUT_SWAP),
               .k = guarded_make(r, MHA_F32, 4, (int64_t[]){B, HK, N, D}, LAYOUT_SWAP),
               .v = guarded_make(r, MHA_F32, 4, (int64_t[]){B, HK, N, D}, LAYOUT_SWAP),
               .o = guarded_make(r, MHA_F32, 4, (int64_t[]){B, H, N, D}, LAYOUT_SWAP),
               .lse = guarded_make(r, MHA_F32, 3, (int64_t[]){B, H, N}, 0)};
    guarded *all[] = {&x.q, &x.k, &x.v};
    for (int i = 0; i < 3; i++) guarded_fill(r, &all[i]->view, 1);
    return x;
}

static void story_free(story *x)
{
    guarded *all[] = {&x->q, &x->k, &x->v, &x->o, &x->lse};
    for (int i = 0; i < 5; i++) guarded_free(all[i]);
}

/* A prefill and then one position at a time. */
static void decode(const machine *m, const mha_attention_desc *desc, const story *x)
{
    const mha_kv_cache_desc made = {
        .struct_size = sizeof made, .batch = B, .kv_heads = HK, .capacity = N, .head_dim = D};
    mha_kv_cache *cache;
    expect_ok(mha_kv_cache_create(m->context, &made, &cache));
    for (int64_t from = 0, count = 500; from < N; from += count, count = 1) {
        mha_tensor part[4];
        const guarded *all[] = {&x->q, &x->k, &x->v, &x->o};
        for (int i = 0; i < 4; i++) part[i] = guarded_slice(&all[i]->view, 2, from, count);
        mha_tensor lse = guarded_slice(&x->lse.view, 2, from, count);
        const mha_attention_outputs outputs = {.struct_size = sizeof outputs, .lse = &lse};
        expect_ok(mha_kv_cache_append(cache, &part[1], &part[2], NULL));
        expect_ok(mha_kv_cache_attention(m->context, cache, desc, &part[0], &part[3], &outputs));
    }
    mha_kv_cache_destroy(cache);
}

/* A bad key of head 1 of sequence 0 at position g affects the rows from g on within the window.
 */
static void token_by_token(void)
{
    static const int64_t places[] = {3, 499, 500, 511, 512, 529};
    enum { PLACES = 2 * sizeof places / sizeof places[0] }; /* each with and without a window */
    machines all = machines_make(2);
    for (int m = 0; m < all.count; m++)
        for (int i = 0; i < rng_cases(PLACES, PLACES); i++) {
            rng r = rng_make(rng_run_seed(), 200000 + (uint64_t)i);
            story x = story_make(&r), clean = x; /* the same inputs */
            clean.o = guarded_make(&r, MHA_F32, 4, x.o.view.shape, LAYOUT_SWAP);
            int64_t g = places[(i * 5 + 3) % PLACES / 2], left = i % 2 ? 9 : N;
            mha_attention_desc desc = {.struct_size = sizeof desc,
                                       .path = all.each[m].path,
                                       .flags = MHA_ATTENTION_CAUSAL | MHA_ATTENTION_WINDOW,
                                       .left_keys = left};
            decode(&all.each[m], &desc, &clean);
            *(float *)guarded_element(&x.k.view, (int64_t[]){0, 1, g, i % D}) = NAN;
            *(float *)guarded_element(&x.v.view, (int64_t[]){1, 0, g, 5}) = INFINITY;
            decode(&all.each[m], &desc, &x);
            for (int64_t at = 0; at < B * H * N; at++) {
                int64_t b = at / N / H, h = at / N % H, t = at % N;
                bool reads = t >= g && t - g <= left;
                for (int64_t d = 0; d < D; d++) {
                    float got = *(float *)guarded_element(&x.o.view, (int64_t[]){b, h, t, d});
                    float want = *(float *)guarded_element(&clean.o.view, (int64_t[]){b, h, t, d});
                    bool lost = reads && b == 0 && h / (H / HK) == 1;
                    bool element = reads && b == 1 && h / (H / HK) == 0 && d == 5;
                    if (lost ? !isnan(got) : element ? isfinite(got) : !same(&got, &want, 1))
                        fail_msg("%s: key %lld, row %lld,%lld,%lld: %g", all.each[m].name,
                                 (long long)g, (long long)b, (long long)h, (long long)t,
                                 (double)got);
                }
            }
            guarded_free(&clean.o);
            story_free(&x);
        }
}

/* Without its infinite element, a key's score may overflow to -inf. The library must not treat this
 * as a hidden key: the row is NaN. */
static void overflow_beside_infinity(void)
{
    enum { WIDTH = 32, PAIR = 2 };
    float q[WIDTH], k[PAIR * WIDTH] = {INFINITY, -3e38f}, v[PAIR * WIDTH], o[WIDTH];
    for (int i = 0; i < WIDTH; i++) q[i] = 2;
    for (int i = 0; i < PAIR * WIDTH; i++) v[i] = 1;
    const int64_t one[4] = {1, 1, 1, WIDTH}, two[4] = {1, 1, PAIR, WIDTH};
    const mha_tensor query = mha_tensor_contiguous(q, MHA_F32, 4, one);
    const mha_tensor key = mha_tensor_contiguous(k, MHA_F32, 4, two);
    const mha_tensor value = mha_tensor_contiguous(v, MHA_F32, 4, two);
    const mha_tensor output = mha_tensor_contiguous(o, MHA_F32, 4, one);
    machines all = machines_make(1);
    for (int m = 0; m < all.count; m++) {
        const mha_attention_desc desc = {.struct_size = sizeof desc,
                                         .path = all.each[m].path,
                                         .flags = MHA_ATTENTION_SCALE_GIVEN,
                                         .scale = 1};
        expect_ok(
            mha_attention_forward(all.each[m].context, &desc, &query, &key, &value, &output, NULL));
        if (!isnan(o[0])) fail_msg("%s: %g", all.each[m].name, (double)o[0]);
    }
}

RUN_TESTS(TEST(what_is_not_finite_stays_in_its_rows), TEST(through_the_cache), TEST(token_by_token),
          TEST(overflow_beside_infinity))
