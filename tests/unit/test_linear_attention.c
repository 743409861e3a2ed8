/* Linear attention: the reference's values within derived bounds, the same bits for every division
 * of the work, constant memory, special values, and misuse. */
#include "reference/linear_reference.h"
#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/guarded.h"
#include "support/machines.h"
#include "support/shared_context.h"
#include "support/suite.h"
#include "support/tally.h"

#include <multihead/linear_attention.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_B = 4 };

/* ---- problems ------------------------------------------------------------------------------- */

typedef struct trial {
    int64_t B, H, Hk, T, S, D, Dv, F; /* T and S are lengths of the tensors */
    mha_linear_attention_desc desc;   /* points into the trial */
    bool own_map;
    guarded q, k, v, s, z;
    int64_t lengths[MOST_B], offsets[MOST_B], query_starts[MOST_B + 1], key_starts[MOST_B + 1];
} trial;

/* max(x, 0) + 1/4 and max(-x, 0) + 1/4: two features per element, with one rounding each. */
static void relu_pair(void *user, const float *rows, int64_t count, int64_t head_dim,
                      float *features, int64_t feature_dim)
{
    (void)user;
    for (int64_t r = 0; r < count; r++)
        for (int64_t i = 0; i < feature_dim; i++) {
            float x = rows[r * head_dim + i / 2] * (i % 2 ? -1.0f : 1.0f);
            features[r * feature_dim + i] = (x > 0 ? x : 0.0f * x) + 0.25f;
        }
}

static void relu_pair_exact(const double *x, int64_t head_dim, double *features,
                            int64_t feature_dim)
{
    (void)head_dim;
    for (int64_t i = 0; i < feature_dim; i++)
        features[i] = fmax(x[i / 2] * (i % 2 ? -1 : 1), 0) + 0.25;
}

static guarded tensor_by_chance(rng *r, int64_t a, int64_t b, int64_t c, int64_t d, double size,
                                unsigned layout)
{
    guarded g = guarded_make(r, MHA_F32, 4, (int64_t[]){a, b, c, d}, layout);
    int64_t index[4] = {0};
    if (guarded_is_empty(&g.view)) return g;
    do *(float *)guarded_element(&g.view, index) = (float)(size * (double)rng_normal(r));
    while (guarded_next(&g.view, index));
    return g;
}

static void add_state(trial *x, rng *r)
{
    x->s = tensor_by_chance(r, x->B, x->Hk, x->F, x->Dv, 2, LAYOUT_PAD);
    x->z = guarded_make(r, MHA_F32, 3, (int64_t[]){x->B, x->Hk, x->F}, LAYOUT_PAD);
    int64_t index[3] = {0};
    do *(float *)guarded_element(&x->z.view, index) = 1 + fabsf(rng_normal(r));
    while (guarded_next(&x->z.view, index));
    x->desc.state_s = &x->s.view;
    x->desc.state_z = &x->z.view;
}

static void add_lengths(trial *x, rng *r)
{
    for (int64_t b = 0; b < x->B; b++) {
        int64_t most = x->desc.key_starts ? x->key_starts[b + 1] - x->key_starts[b] : x->S;
        x->lengths[b] = rng_between(r, 0, most);
    }
    x->desc.key_lengths = x->lengths;
}

/* Packed sequences of random lengths; T and S become the sums. */
static void make_ragged(trial *x, rng *r)
{
    for (int64_t b = 0; b < x->B; b++) {
        x->query_starts[b + 1] = x->query_starts[b] + rng_between(r, 0, x->T);
        x->key_starts[b + 1] = x->key_starts[b] + rng_between(r, 0, x->S);
    }
    x->T = x->query_starts[x->B];
    x->S = x->key_starts[x->B];
    x->desc.query_starts = x->query_starts;
    x->desc.key_starts = x->key_starts;
    x->desc.sequences = x->B;
}

enum { CAUSAL = 1, OFFSETS = 2, LENGTHS = 4, RAGGED = 8, STATE = 16, OWN_MAP = 32 };

/* The trial must not be copied afterwards, because desc points into it. */
static void trial_make(trial *x, rng *r, int64_t T, int64_t S, unsigned kind, unsigned layout)
{
    static const int64_t widths[] = {1, 3, 8, 16, 33, 64};
    *x = (trial){.B = rng_between(r, 1, 3), .Hk = rng_between(r, 1, 3), .T = T, .S = S};
    x->H = x->Hk * rng_between(r, 1, 3);
    x->D = RNG_PICK(r, widths);
    x->Dv = RNG_PICK(r, widths);
    if (rng_chance(r, 0.1)) x->D = 300, x->Dv = 3; /* more features than one chain sums */
    x->own_map = kind & OWN_MAP;
    x->F = x->own_map ? 2 * x->D : x->D;
    x->desc.struct_size = sizeof x->desc;
    if (kind & CAUSAL) x->desc.flags = MHA_LINEAR_ATTENTION_CAUSAL;
    if (x->own_map) x->desc.feature_map = relu_pair, x->desc.feature_dim = x->F;
    if (kind & RAGGED) make_ragged(x, r);
    if (kind & LENGTHS) add_lengths(x, r);
    for (int64_t b = 0; b < x->B; b++) x->offsets[b] = rng_between(r, -x->T - 2, x->S + 2);
    if ((kind & OFFSETS) && (kind & CAUSAL)) x->desc.q_offsets = x->offsets;
    int64_t batch = kind & RAGGED ? 1 : x->B;
    double size = rng_chance(r, 0.2) ? 8 : 1;
    x->q = tensor_by_chance(r, batch, x->H, x->T, x->D, size, layout);
    x->k = tensor_by_chance(r, batch, x->Hk, x->S, x->D, size, layout);
    x->v = tensor_by_chance(r, batch, x->Hk, x->S, x->Dv, 1, layout);
    if (kind & STATE) add_state(x, r);
}

static void trial_free(trial *x)
{
    guarded_free(&x->q);
    guarded_free(&x->k);
    guarded_free(&x->v);
    if (x->desc.state_s) guarded_free(&x->s);
    if (x->desc.state_z) guarded_free(&x->z);
}

typedef struct result {
    guarded o, s, z;
} result;

static result result_make(const trial *x, rng *r, unsigned layout)
{
    return (result){
        guarded_make(r, MHA_F32, 4, (int64_t[]){x->q.view.shape[0], x->H, x->T, x->Dv}, layout),
        guarded_make(r, MHA_F32, 4, (int64_t[]){x->B, x->Hk, x->F, x->Dv}, layout),
        guarded_make(r, MHA_F32, 3, (int64_t[]){x->B, x->Hk, x->F}, layout & LAYOUT_PAD)};
}

static void result_free(result *y)
{
    guarded_free(&y->o);
    guarded_free(&y->s);
    guarded_free(&y->z);
}

static void result_run(mha_context *context, const trial *x, result *y)
{
    const mha_linear_attention_outputs outputs = {
        .struct_size = sizeof outputs, .state_s = &y->s.view, .state_z = &y->z.view};
    mha_status status = mha_linear_attention_forward(context, &x->desc, &x->q.view, &x->k.view,
                                                     &x->v.view, &y->o.view, &outputs);
    if (status != MHA_OK) print_error("%s\n", mha_error_detail());
    expect_ok(status);
    assert_true(guarded_gaps_intact(&y->o) && guarded_gaps_intact(&y->s) &&
                guarded_gaps_intact(&y->z));
}

static bool result_same(const result *a, const result *b)
{
    return guarded_same_bits(&a->o.view, &b->o.view, false) &&
           guarded_same_bits(&a->s.view, &b->s.view, false) &&
           guarded_same_bits(&a->z.view, &b->z.view, false);
}

static float element(const guarded *g, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return *(float *)guarded_element(&g->view, (int64_t[]){a, b, c, d});
}

/* ---- accuracy ------------------------------------------------------------------------------- */

static linref reference_of(const trial *x)
{
    return (linref){.desc = &x->desc,
                    .q = &x->q.view,
                    .k = &x->k.view,
                    .v = &x->v.view,
                    .map = x->own_map ? relu_pair_exact : NULL,
                    .map_error = x->own_map ? 0x1p-24 : 2.5 * 0x1p-24,
                    .features = x->F};
}

static void compare_rows(const trial *x, const result *y, int64_t b, int64_t h, tally *rows)
{
    linref a = reference_of(x);
    bool ragged = x->desc.query_starts;
    int64_t first = ragged ? x->query_starts[b] : 0;
    int64_t count = ragged ? x->query_starts[b + 1] - first : x->T;
    double o[64], bound[64];
    for (int64_t t = 0; t < count; t++) {
        linref_row(&a, b, h, t, o, bound);
        for (int64_t d = 0; d < x->Dv; d++)
            assert_true(tally_compare(rows, (double)element(&y->o, ragged ? 0 : b, h, first + t, d),
                                      o[d], bound[d]));
    }
}

static void compare_state(const trial *x, const result *y, int64_t b, int64_t hk, tally *states)
{
    static double s[128 * 64], s_bound[128 * 64], z[600], z_bound[600];
    linref a = reference_of(x);
    linref_state(&a, b, hk, s, s_bound, z, z_bound);
    for (int64_t i = 0; i < x->F; i++) {
        float got = *(float *)guarded_element(&y->z.view, (int64_t[]){b, hk, i});
        assert_true(tally_compare(states, (double)got, z[i], z_bound[i]));
        for (int64_t d = 0; d < x->Dv; d++)
            assert_true(tally_compare(states, (double)element(&y->s, b, hk, i, d), s[i * x->Dv + d],
                                      s_bound[i * x->Dv + d]));
    }
}

static void test_reference(void)
{
    int count = rng_long_run() ? 1500 : 60;
    machines all = machines_make(2);
    tally rows = {.name = "o"}, states = {.name = "S, z"};
    for (int i = 0; i < count; i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)i);
        trial x;
        trial_make(&x, &r, rng_between(&r, 0, 12),
                   rng_between(&r, 0, rng_chance(&r, 0.2) ? 140 : 20),
                   (unsigned)rng_between(&r, 0, 63), guarded_random_layout(&r, true));
        const machine *m = &all.each[rng_between(&r, 0, all.count - 1)];
        result y = result_make(&x, &r, guarded_random_layout(&r, false));
        result_run(m->context, &x, &y);
        for (int64_t b = 0; b < x.B; b++) {
            for (int64_t h = 0; h < x.H; h++) compare_rows(&x, &y, b, h, &rows);
            for (int64_t hk = 0; hk < x.Hk; hk++) compare_state(&x, &y, b, hk, &states);
        }
        result_free(&y);
        trial_free(&x);
    }
    tally_judge(&rows);
    tally_judge(&states);
}

/* With one key per sequence, z is phi(k). Tests every 512th float from -90 to 90. */
static void test_feature_map(void)
{
    enum { N = 4096 };
    mha_context *context = context_with(0);
    static float k[N], z[N];
    const float v = 1;
    float out;
    mha_tensor kt = mha_tensor_contiguous(k, MHA_F32, 4, (int64_t[]){1, 1, 1, N});
    mha_tensor qt = mha_tensor_contiguous(k, MHA_F32, 4, (int64_t[]){1, 1, 0, N});
    mha_tensor vt = mha_tensor_contiguous(&(float){v}, MHA_F32, 4, (int64_t[]){1, 1, 1, 1});
    mha_tensor ot = mha_tensor_contiguous(&out, MHA_F32, 4, (int64_t[]){1, 1, 0, 1});
    mha_tensor zt = mha_tensor_contiguous(z, MHA_F32, 3, (int64_t[]){1, 1, N});
    const mha_linear_attention_outputs outputs = {.struct_size = sizeof outputs, .state_z = &zt};
    tally t = {.name = "elu + 1"};
    for (uint32_t negative = 0; negative < 2; negative++) {
        for (uint32_t bits = 0; bits < 0x42B40000u; bits += N * 512) {
            for (uint32_t i = 0; i < N; i++) {
                uint32_t pattern = negative << 31 | (bits + 512 * i);
                memcpy(&k[i], &pattern, sizeof pattern);
            }
            expect_ok(mha_linear_attention_forward(context, NULL, &qt, &kt, &vt, &ot, &outputs));
            for (int i = 0; i < N; i++) {
                double x = (double)k[i], exact = x > 0 ? x + 1 : exp(fmax(x, -87));
                assert_true(tally_compare(&t, (double)z[i], exact, 2.5 * 0x1p-24 * exact));
            }
        }
    }
    tally_print(&t);
    assert_true(t.worst > 0.3);
}

/* ---- bits ----------------------------------------------------------------------------------- */

/* The same problem in pieces, each continuing in place from the previous state. */
static void run_pieces(mha_context *context, const trial *x, result *y, rng *r, int64_t longest)
{
    bool causal = x->desc.flags & MHA_LINEAR_ATTENTION_CAUSAL;
    mha_linear_attention_desc d = x->desc;
    const mha_linear_attention_outputs outputs = {
        .struct_size = sizeof outputs, .state_s = &y->s.view, .state_z = &y->z.view};
    int64_t lengths[MOST_B];
    for (int64_t from = 0, count; from < x->S; from += count) {
        count = rng_between(r, 1, longest);
        if (count > x->S - from) count = x->S - from;
        bool last = from + count == x->S;
        for (int64_t b = 0; b < x->B; b++) {
            int64_t left = (x->desc.key_lengths ? x->lengths[b] : x->S) - from;
            lengths[b] = left < 0 ? 0 : left < count ? left : count;
        }
        d.key_lengths = lengths;
        mha_tensor k = guarded_slice(&x->k.view, 2, from, count);
        mha_tensor v = guarded_slice(&x->v.view, 2, from, count);
        /* A causal call has the queries of these positions. Another call has all queries, after
         * every key is included. */
        int64_t t = causal ? from : 0, rows = causal ? count : last ? x->T : 0;
        mha_tensor q = guarded_slice(&x->q.view, 2, t, rows);
        mha_tensor o = guarded_slice(&y->o.view, 2, t, rows);
        expect_ok(mha_linear_attention_forward(context, &d, &q, &k, &v, &o, &outputs));
        d.state_s = &y->s.view;
        d.state_z = &y->z.view;
    }
}

static void test_pieces(void)
{
    static const int64_t longest[] = {1, 3, 64, 100};
    int count = rng_long_run() ? 400 : 40;
    machines all = machines_make(2);
    for (int i = 0; i < count; i++) {
        rng r = rng_make(rng_run_seed(), 1000 + (uint64_t)i);
        trial x;
        int64_t S = rng_between(&r, 1, 150);
        unsigned kind = (unsigned)rng_between(&r, 0, 63) & ~(unsigned)(OFFSETS | RAGGED);
        trial_make(&x, &r, S, S, kind, guarded_random_layout(&r, true));
        const machine *m = &all.each[rng_between(&r, 0, all.count - 1)];
        result whole = result_make(&x, &r, LAYOUT_CONTIGUOUS);
        result pieces = result_make(&x, &r, guarded_random_layout(&r, false));
        result_run(m->context, &x, &whole);
        run_pieces(m->context, &x, &pieces, &r, longest[i % 4]);
        assert_true(result_same(&whole, &pieces));
        assert_true(guarded_gaps_intact(&pieces.o) && guarded_gaps_intact(&pieces.s));
        result_free(&whole);
        result_free(&pieces);
        trial_free(&x);
    }
}

/* Only head h of sequence b, by non-contiguous views of the trial with one sequence and one
 * head. */
static void run_alone(mha_context *context, const trial *x, int64_t b, int64_t h, result *y)
{
    int64_t hk = h / (x->H / x->Hk);
    bool ragged = x->desc.query_starts;
    mha_linear_attention_desc d = x->desc;
    mha_tensor q = x->q.view, k = x->k.view, v = x->v.view, o = y->o.view, s, z;
    d.query_starts = d.key_starts = NULL;
    d.sequences = 0;
    mha_tensor *views[] = {&q, &o, &k, &v};
    for (int i = 0; i < 4; i++) {
        const int64_t *starts = i < 2 ? x->query_starts : x->key_starts;
        *views[i] = guarded_slice(views[i], 0, ragged ? 0 : b, 1);
        *views[i] = guarded_slice(views[i], 1, i < 2 ? h : hk, 1);
        if (ragged) *views[i] = guarded_slice(views[i], 2, starts[b], starts[b + 1] - starts[b]);
    }
    if (d.state_s) {
        s = guarded_slice(&x->s.view, 0, b, 1), s = guarded_slice(&s, 1, hk, 1);
        z = guarded_slice(&x->z.view, 0, b, 1), z = guarded_slice(&z, 1, hk, 1);
        d.state_s = &s, d.state_z = &z;
    }
    if (d.key_lengths) d.key_lengths += b;
    if (d.q_offsets) d.q_offsets += b;
    mha_tensor s_out = guarded_slice(&y->s.view, 0, b, 1),
               z_out = guarded_slice(&y->z.view, 0, b, 1);
    s_out = guarded_slice(&s_out, 1, hk, 1), z_out = guarded_slice(&z_out, 1, hk, 1);
    const mha_linear_attention_outputs outputs = {
        .struct_size = sizeof outputs, .state_s = &s_out, .state_z = &z_out};
    expect_ok(mha_linear_attention_forward(context, &d, &q, &k, &v, &o, &outputs));
}

/* Batches, ragged or padded, grouped heads and threads change no bit. */
static void test_one_by_one(void)
{
    int count = rng_long_run() ? 400 : 40;
    machines one = machines_make(1), many = machines_make(3);
    for (int i = 0; i < count; i++) {
        rng r = rng_make(rng_run_seed(), 2000 + (uint64_t)i);
        trial x;
        trial_make(&x, &r, rng_between(&r, 0, 90), rng_between(&r, 0, 90),
                   (unsigned)rng_between(&r, 0, 63), guarded_random_layout(&r, true));
        int m = (int)rng_between(&r, 0, one.count - 1);
        result whole = result_make(&x, &r, LAYOUT_CONTIGUOUS);
        result threads = result_make(&x, &r, LAYOUT_PAD);
        result alone = result_make(&x, &r, guarded_random_layout(&r, false));
        result_run(one.each[m].context, &x, &whole);
        result_run(many.each[m].context, &x, &threads);
        for (int64_t b = 0; b < x.B; b++)
            for (int64_t h = 0; h < x.H; h++) run_alone(many.each[m].context, &x, b, h, &alone);
        assert_true(result_same(&whole, &threads));
        assert_true(result_same(&whole, &alone));
        result_free(&whole);
        result_free(&threads);
        result_free(&alone);
        trial_free(&x);
    }
}

/* The last causal row sees the same keys as a row that is not causal. */
static void test_causal_last_row(void)
{
    machines all = machines_make(2);
    rng r = rng_make(rng_run_seed(), 3000);
    trial x;
    trial_make(&x, &r, 130, 130, CAUSAL, LAYOUT_SWAP);
    for (int m = 0; m < all.count; m++) {
        result causal = result_make(&x, &r, LAYOUT_SWAP), open = result_make(&x, &r, LAYOUT_SWAP);
        x.desc.flags = MHA_LINEAR_ATTENTION_CAUSAL;
        result_run(all.each[m].context, &x, &causal);
        x.desc.flags = 0;
        result_run(all.each[m].context, &x, &open);
        mha_tensor a = guarded_slice(&causal.o.view, 2, 129, 1);
        mha_tensor b = guarded_slice(&open.o.view, 2, 129, 1);
        assert_true(guarded_same_bits(&a, &b, false));
        assert_true(guarded_same_bits(&causal.s.view, &open.s.view, false));
        result_free(&causal);
        result_free(&open);
    }
    trial_free(&x);
}

/* ---- special values ---------------------------------------------------------------------------
 */

/* Key 5 has a NaN or infinity: rows that do not see it keep their bits, and the others become NaN.
 * A NaN or infinity in a value affects only its column. */
static void poison_key(mha_context *context, rng *r, float poison, bool in_value)
{
    trial x;
    trial_make(&x, r, 9, 9, CAUSAL, LAYOUT_PAD);
    result before = result_make(&x, r, LAYOUT_CONTIGUOUS), after = result_make(&x, r, LAYOUT_SWAP);
    result_run(context, &x, &before);
    int64_t column = in_value ? x.Dv / 2 : x.D / 2;
    guarded *where = in_value ? &x.v : &x.k;
    *(float *)guarded_element(&where->view, (int64_t[]){0, 0, 5, column}) = poison;
    result_run(context, &x, &after);
    for (int64_t h = 0; h < x.H; h++)
        for (int64_t t = 0; t < 9; t++)
            for (int64_t d = 0; d < x.Dv; d++) {
                float was = element(&before.o, 0, h, t, d), is = element(&after.o, 0, h, t, d);
                bool hit = t >= 5 && h < x.H / x.Hk && (!in_value || d == column);
                assert_true(hit ? (in_value ? !isfinite(is) : isnan(is))
                                : memcmp(&was, &is, sizeof is) == 0);
            }
    result_free(&before);
    result_free(&after);
    trial_free(&x);
}

/* Keys beyond key_lengths are arbitrary. A NaN in a query makes its row NaN, unless the query sees
 * no key. */
static void poison_padding(mha_context *context, rng *r, bool causal)
{
    trial x;
    trial_make(&x, r, 70, 70, causal ? CAUSAL : 0, LAYOUT_CONTIGUOUS);
    result before = result_make(&x, r, LAYOUT_CONTIGUOUS), after = result_make(&x, r, LAYOUT_SWAP);
    for (int64_t b = 0; b < x.B; b++) x.lengths[b] = b == 0 ? 0 : 66;
    x.desc.key_lengths = x.lengths;
    result_run(context, &x, &before);
    for (int64_t b = 0; b < x.B; b++)
        for (int64_t t = 66; t < 70; t++) {
            *(float *)guarded_element(&x.k.view, (int64_t[]){b, 0, t, 0}) = NAN;
            *(float *)guarded_element(&x.v.view, (int64_t[]){b, 0, t, 0}) = INFINITY;
        }
    *(float *)guarded_element(&x.q.view, (int64_t[]){0, 0, 3, 0}) = NAN;
    result_run(context, &x, &after);
    assert_true(result_same(&before, &after));
    for (int64_t t = 0; t < 70; t++) assert_true(element(&after.o, 0, 0, t, 0) == 0);
    if (x.B > 1) {
        *(float *)guarded_element(&x.q.view, (int64_t[]){1, 0, 3, 0}) = INFINITY;
        result_run(context, &x, &after);
        assert_true(isnan(element(&after.o, 1, 0, 3, 0)));
        assert_true(isfinite(element(&after.o, 1, 0, 2, 0)));
        assert_true(isfinite(element(&after.o, 1, 0, 4, 0)));
    }
    result_free(&before);
    result_free(&after);
    trial_free(&x);
}

static void test_special_values(void)
{
    static const float poisons[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 60; i++) {
        rng r = rng_make(rng_run_seed(), 4000 + (uint64_t)i);
        mha_context *context = machines_context(2, i);
        poison_key(context, &r, poisons[i % 3], i % 2);
        poison_padding(context, &r, i % 2);
    }
}

/* ---- memory --------------------------------------------------------------------------------- */

/* After a short call, a call of a thousand times the length allocates no memory. */
static void test_memory_is_constant(void)
{
    enum { LONG = 20000, D = 16 };
    failing_alloc counter = failing_alloc_make();
    mha_context *context;
    expect_ok(failing_context(&counter, 1, MHA_ISA_AUTO, &context));
    float *x = calloc(LONG * D, sizeof *x), *y = malloc(LONG * D * sizeof *y);
    assert_true(x && y);
    for (uint32_t flags = 0; flags <= MHA_LINEAR_ATTENTION_CAUSAL; flags++) {
        const mha_linear_attention_desc d = {.struct_size = sizeof d, .flags = flags};
        int64_t calls = 0;
        for (int64_t n = 20; n <= LONG; n *= 1000) {
            mha_tensor in = mha_tensor_contiguous(x, MHA_F32, 4, (int64_t[]){1, 1, n, D});
            mha_tensor out = mha_tensor_contiguous(y, MHA_F32, 4, (int64_t[]){1, 1, n, D});
            expect_ok(mha_linear_attention_forward(context, &d, &in, &in, &in, &out, NULL));
            assert_true(n == 20 || counter.calls == calls);
            calls = counter.calls;
        }
    }
    mha_context_destroy(context);
    assert_int_equal(counter.live, 0);
    assert_int_equal(counter.mistakes, 0);
    free(x);
    free(y);
}

static void failed_allocations_are_reported(void)
{
    rng r = rng_make(rng_run_seed(), 5000);
    trial x;
    trial_make(&x, &r, 9, 9, CAUSAL | STATE | OWN_MAP, LAYOUT_PAD);
    for (uint32_t flags = 0; flags <= 1; flags++) {
        bool done = false;
        x.desc.flags = flags;
        for (int64_t n = 0; !done; n++) {
            failing_alloc broken = failing_alloc_make();
            mha_context *context;
            expect_ok(failing_context(&broken, 1, MHA_ISA_AUTO, &context));
            result y = result_make(&x, &r, LAYOUT_PAD);
            const mha_linear_attention_outputs outputs = {
                .struct_size = sizeof outputs, .state_s = &y.s.view, .state_z = &y.z.view};
            guarded_snapshot(&y.o);
            guarded_snapshot(&y.s);
            broken.fail_at = broken.calls + n;
            broken.fail_after = true;
            mha_status status = mha_linear_attention_forward(context, &x.desc, &x.q.view, &x.k.view,
                                                             &x.v.view, &y.o.view, &outputs);
            done = status == MHA_OK;
            assert_true(done || status == MHA_ERR_NOMEM);
            assert_true(done || (guarded_unchanged(&y.o) && guarded_unchanged(&y.s)));
            mha_context_destroy(context);
            assert_true(broken.live == 0 && broken.mistakes == 0);
            result_free(&y);
        }
    }
    trial_free(&x);
}

/* ---- misuse --------------------------------------------------------------------------------- */

typedef struct call {
    mha_linear_attention_desc desc;
    mha_linear_attention_outputs outputs;
    mha_tensor q, k, v, o, s, z, s_out, z_out;
    int64_t lengths[2], starts[3];
} call;

#define SPOIL(name, ...) SPOILER(call *c, name, __VA_ARGS__)
SPOIL(q_dtype, c->q.dtype = MHA_I8)
SPOIL(k_dtype, c->k.dtype = MHA_U8)
SPOIL(o_dtype, c->o.dtype = MHA_F64)
SPOIL(heads, c->k.shape[1] = c->v.shape[1] = 3)
SPOIL(lengths_differ, c->v.shape[2] = 4)
SPOIL(head_size, c->k.shape[3] = 7)
SPOIL(o_shape, c->o.shape[2] = 1)
SPOIL(o_stride, c->o.stride[3] = 2)
SPOIL(o_is_q, c->o.data = c->q.data)
SPOIL(flags, c->desc.flags = 2)
SPOIL(size_missing, c->desc.struct_size = 0)
SPOIL(outputs_size, c->outputs.struct_size = 1)
SPOIL(reserved, c->outputs.reserved = 1)
SPOIL(offset, c->desc.q_offset = 1; c->desc.flags = 0)
SPOIL(two_offsets, c->desc.q_offset = 1; c->desc.q_offsets = c->lengths)
SPOIL(length_negative, c->lengths[1] = -1; c->desc.key_lengths = c->lengths)
SPOIL(length_too_long, c->lengths[1] = 6; c->desc.key_lengths = c->lengths)
SPOIL(starts_alone, c->desc.query_starts = c->starts; c->desc.sequences = 2)
SPOIL(feature_dim, c->desc.feature_dim = -1)
SPOIL(feature_dim_huge, c->desc.feature_dim = INT64_MAX)
SPOIL(feature_dim_alone, c->desc.feature_map = NULL)
SPOIL(one_state, c->desc.state_z = NULL)
SPOIL(state_shape, c->s.shape[2] = 8)
SPOIL(state_dims, c->z.ndim = 4)
SPOIL(state_out_shape, c->z_out.shape[1] = 1)
SPOIL(state_stride, c->s_out.stride[3] = 0)
SPOIL(state_out_shared, c->s_out.stride[0] = 0)
SPOIL(state_out_is_v, c->z_out.data = c->v.data)
SPOIL(state_out_is_o, c->z_out.data = c->o.data)
SPOIL(state_out_crosses, c->s_out.data = (float *)c->s.data + 1)
SPOIL(state_outs_alike, c->z_out.data = c->s_out.data)
SPOIL(state_out_is_z, c->s_out.data = c->z.data)
SPOIL(state_in_is_o, c->s.data = c->o.data)

/* The expected error of each case. */
static const struct {
    const char *name;
    void (*spoil)(call *);
    mha_status status;
} misuses[] = {
#define CASE(name, status)  \
    {                       \
#name, name, status \
    }
    CASE(q_dtype, MHA_ERR_DTYPE),
    CASE(k_dtype, MHA_ERR_DTYPE),
    CASE(o_dtype, MHA_ERR_DTYPE),
    CASE(heads, MHA_ERR_SHAPE),
    CASE(lengths_differ, MHA_ERR_SHAPE),
    CASE(head_size, MHA_ERR_SHAPE),
    CASE(o_shape, MHA_ERR_SHAPE),
    CASE(o_stride, MHA_ERR_STRIDE),
    CASE(o_is_q, MHA_ERR_OVERLAP),
    CASE(flags, MHA_ERR_UNSUPPORTED),
    CASE(size_missing, MHA_ERR_ARGUMENT),
    CASE(outputs_size, MHA_ERR_ARGUMENT),
    CASE(reserved, MHA_ERR_UNSUPPORTED),
    CASE(offset, MHA_ERR_ARGUMENT),
    CASE(two_offsets, MHA_ERR_ARGUMENT),
    CASE(length_negative, MHA_ERR_ARGUMENT),
    CASE(length_too_long, MHA_ERR_ARGUMENT),
    CASE(starts_alone, MHA_ERR_ARGUMENT),
    CASE(feature_dim, MHA_ERR_ARGUMENT),
    CASE(feature_dim_huge, MHA_ERR_ARGUMENT),
    CASE(feature_dim_alone, MHA_ERR_ARGUMENT),
    CASE(one_state, MHA_ERR_ARGUMENT),
    CASE(state_shape, MHA_ERR_SHAPE),
    CASE(state_dims, MHA_ERR_SHAPE),
    CASE(state_out_shape, MHA_ERR_SHAPE),
    CASE(state_stride, MHA_ERR_STRIDE),
    CASE(state_out_shared, MHA_ERR_STRIDE),
    CASE(state_out_is_v, MHA_ERR_OVERLAP),
    CASE(state_out_is_o, MHA_ERR_OVERLAP),
    CASE(state_out_crosses, MHA_ERR_OVERLAP),
    CASE(state_outs_alike, MHA_ERR_OVERLAP),
    CASE(state_out_is_z, MHA_ERR_OVERLAP),
    CASE(state_in_is_o, MHA_ERR_OVERLAP),
#undef CASE
};

enum { B = 2, H = 4, HK = 2, T = 3, S = 5, D = 8, DV = 6, F = 16 };

/* Memory of a call: inputs, and adjacent outputs, so that one comparison detects writes. */
typedef struct call_memory {
    float q[B * H * T * D], k[B * HK * S * D], v[B * HK * S * DV], s[B * HK * F * DV + 1];
    float z[B * HK * F];
    struct {
        float o[B * H * T * DV], s[B * HK * F * DV], z[B * HK * F];
    } out;
} call_memory;

/* Initialises in place because the descriptors point into the call. */
static void call_make(call *c, call_memory *m)
{
    *c = (call){.desc = {.struct_size = sizeof c->desc,
                         .flags = MHA_LINEAR_ATTENTION_CAUSAL,
                         .feature_map = relu_pair,
                         .feature_dim = F},
                .outputs = {.struct_size = sizeof c->outputs},
                .q = mha_tensor_contiguous(m->q, MHA_F32, 4, (int64_t[]){B, H, T, D}),
                .k = mha_tensor_contiguous(m->k, MHA_F32, 4, (int64_t[]){B, HK, S, D}),
                .v = mha_tensor_contiguous(m->v, MHA_F32, 4, (int64_t[]){B, HK, S, DV}),
                .o = mha_tensor_contiguous(m->out.o, MHA_F32, 4, (int64_t[]){B, H, T, DV}),
                .s = mha_tensor_contiguous(m->s, MHA_F32, 4, (int64_t[]){B, HK, F, DV}),
                .z = mha_tensor_contiguous(m->z, MHA_F32, 3, (int64_t[]){B, HK, F}),
                .s_out = mha_tensor_contiguous(m->out.s, MHA_F32, 4, (int64_t[]){B, HK, F, DV}),
                .z_out = mha_tensor_contiguous(m->out.z, MHA_F32, 3, (int64_t[]){B, HK, F})};
    c->desc.state_s = &c->s;
    c->desc.state_z = &c->z;
    c->outputs.state_s = &c->s_out;
    c->outputs.state_z = &c->z_out;
    memset(&m->out, 0x5A, sizeof m->out);
}

static mha_status call_run(mha_context *context, const call *c)
{
    return mha_linear_attention_forward(context, &c->desc, &c->q, &c->k, &c->v, &c->o, &c->outputs);
}

static void misuse_is_refused(void)
{
    static call_memory memory;
    call c;
    mha_context *context = context_with(0);
    for (size_t i = 0; i < sizeof misuses / sizeof misuses[0]; i++) {
        call_make(&c, &memory);
        misuses[i].spoil(&c);
        printf("%s:", misuses[i].name);
        expect_row(i, call_run(context, &c), misuses[i].status, "");
        for (size_t j = 0; j < sizeof memory.out; j++)
            assert_true(((unsigned char *)&memory.out)[j] == 0x5A);
    }
    call_make(&c, &memory);
    expect_ok(call_run(context, &c)); /* succeeds without a case's change */
    assert_int_equal(call_run(NULL, &c), MHA_ERR_NULL);
    assert_int_equal(mha_linear_attention_forward(context, NULL, NULL, &c.k, &c.v, &c.o, NULL),
                     MHA_ERR_NULL);
}

RUN_TESTS(TEST(test_reference), TEST(test_feature_map), TEST(test_pieces), TEST(test_one_by_one),
          TEST(test_causal_last_row), TEST(test_special_values), TEST(test_memory_is_constant),
          TEST(failed_allocations_are_reported), TEST(misuse_is_refused))
