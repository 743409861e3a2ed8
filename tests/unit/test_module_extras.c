/* The module beyond projections: keys that every query sees, tensors without a batch axis or in another order,
 * parameters by name and number, and reported scratch. */
#include "reference/kinds_bounds.h"
#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/kinds.h"
#include "support/machines.h"
#include "support/module_call.h"
#include "support/suite.h"
#include "support/tally.h"

#include <multihead/module.h>
#include <multihead/nn.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Sets every parameter of the module to small random numbers, so that scores stay moderate. */
static void set_all(rng *r, mha_module *module)
{
    mha_module_parameter p;
    for (int64_t i = 0; mha_module_parameter_at(module, i, &p); i++) {
        double factor = p.ndim == 2 ? 1 / sqrt((double)p.shape[1]) : 0.7;
        unsigned layout = rng_chance(r, 0.5) ? 0 : LAYOUT_PAD | LAYOUT_LAST | LAYOUT_NEGATIVE;
        guarded value = guarded_filled(r, p.ndim, p.shape, layout, factor);
        expect_ok(mha_module_set_parameter(module, p.name, &value.view));
        guarded_free(&value);
    }
}

static guarded parameter(rng *r, const mha_module *module, const char *name, int ndim,
                         const int64_t *shape)
{
    guarded value = guarded_make(r, MHA_F32, ndim, shape, 0);
    expect_ok(mha_module_get_parameter(module, name, &value.view));
    return value;
}

/* ---- keys that every query sees ------------------------------------------------------------- */

enum { P, AVERAGE, Q, K, V, HEADS, LSE, OUT, RESULTS };

/* A descriptor of any kind, a module for its shapes, and the results. */
typedef struct trial {
    kinds_case c;
    mha_module_desc module_desc;
    mha_module *module;
    int64_t extra, columns;
    guarded query, key, value, bias_k, bias_v, own_sinks;
    mha_attention_desc desc; /* the case's, with the key of zeros among the sinks */
    float sinks[64];
    mha_tensor sink_tensor;
} trial;

typedef struct results {
    guarded each[RESULTS];
    mha_module_outputs wanted;
} results;

/* A key of score 0 and value 0 adds exp(0) to the denominator, like a sink of logit 0. */
static void make_desc(trial *x)
{
    x->desc = x->c.desc;
    if (x->module_desc.flags & MHA_MODULE_SINKS) x->desc.sink_logits = &x->own_sinks.view;
    if (!(x->module_desc.flags & MHA_MODULE_ZERO_ATTN)) return;
    const mha_tensor *given = x->desc.sink_logits;
    for (int64_t h = 0; h < x->c.shape.H; h++) {
        double sink = given ? (double)*(float *)guarded_element(given, &h) : -INFINITY;
        x->sinks[h] = (float)(fmax(sink, 0) + log1p(exp(-fabs(sink))));
    }
    x->sink_tensor = mha_tensor_contiguous(x->sinks, MHA_F32, 1, &x->c.shape.H);
    x->desc.sink_logits = &x->sink_tensor;
}

/* Masks take any offset; positions at the end of 64 bits overflow. */
static bool offsets_are_far(const kinds_case *c)
{
    const int64_t far = (int64_t)1 << 40;
    bool found = c->desc.q_offset > far || c->desc.q_offset < -far;
    for (int64_t b = 0; c->desc.q_offsets && b < c->shape.B; b++)
        found |= c->desc.q_offsets[b] > far || c->desc.q_offsets[b] < -far;
    return found;
}

static void trial_make(trial *x, rng *r, mha_context *context, uint32_t flags)
{
    *x = (trial){.extra = 0};
    kinds_shape n = kinds_some_shape(r);
    n.B = n.B < 3 ? n.B : 3, n.T = n.T < 20 ? n.T : 20, n.S = n.S < 90 ? n.S : 90;
    kinds_make(&x->c, r, &n);
    n = x->c.shape;
    x->module_desc = (mha_module_desc){.struct_size = sizeof x->module_desc,
                                       .flags = flags,
                                       .embed_dim = rng_between(r, 1, 12),
                                       .num_heads = n.H,
                                       .kv_heads = n.Hk,
                                       .head_dim = n.D,
                                       .value_head_dim = n.Dv};
    if (x->c.desc.sink_logits) x->module_desc.flags &= ~(uint32_t)MHA_MODULE_SINKS;
    if (n.D < 2 || offsets_are_far(&x->c)) x->module_desc.flags &= ~(uint32_t)MHA_MODULE_ROPE;
    if (x->module_desc.flags & MHA_MODULE_ROPE) x->module_desc.rotary_dim = n.D / 2 * 2;
    expect_ok(mha_module_create(context, &x->module_desc, &x->module));
    set_all(r, x->module);
    if (x->module_desc.flags & MHA_MODULE_SINKS)
        x->own_sinks = parameter(r, x->module, "sinks", 1, &n.H);
    const mha_tensor *q = &x->c.q.view, *k = &x->c.k.view;
    int64_t E = x->module_desc.embed_dim;
    x->query = guarded_filled(r, 3, (int64_t[]){q->shape[0], q->shape[2], E}, LAYOUT_PAD, 1);
    x->key = guarded_filled(r, 3, (int64_t[]){q->shape[0], k->shape[2], E}, 0, 1);
    x->value = guarded_filled(r, 3, (int64_t[]){q->shape[0], k->shape[2], E}, LAYOUT_NEGATIVE, 1);
    x->extra = !!(flags & MHA_MODULE_BIAS_KV) + !!(flags & MHA_MODULE_ZERO_ATTN);
    x->columns = x->c.result.S;
    if (flags & MHA_MODULE_BIAS_KV) {
        x->bias_k = parameter(r, x->module, "bias_k", 3, (int64_t[]){1, 1, n.Hk * n.D});
        x->bias_v = parameter(r, x->module, "bias_v", 3, (int64_t[]){1, 1, n.Hk * n.Dv});
    }
    make_desc(x);
}

static void trial_free(trial *x)
{
    mha_module_destroy(x->module);
    guarded_free(&x->query);
    guarded_free(&x->key);
    guarded_free(&x->value);
    if (x->module_desc.flags & MHA_MODULE_BIAS_KV) {
        guarded_free(&x->bias_k);
        guarded_free(&x->bias_v);
    }
    if (x->module_desc.flags & MHA_MODULE_SINKS) guarded_free(&x->own_sinks);
    kinds_free(&x->c);
}

/* Initialises in place because `wanted` points into y. */
static void results_make(results *y, rng *r, const trial *x, unsigned layout)
{
    const kinds_shape *n = &x->c.shape;
    const int64_t B = x->query.view.shape[0], T = x->query.view.shape[1];
    const int64_t keys = x->key.view.shape[1], columns = x->columns + x->extra;
    const struct {
        int ndim;
        int64_t shape[4];
    } shapes[RESULTS] = {
        [P] = {4, {B, n->H, T, columns}},   [AVERAGE] = {3, {B, T, columns}},
        [Q] = {4, {B, n->H, T, n->D}},      [K] = {4, {B, n->Hk, keys, n->D}},
        [V] = {4, {B, n->Hk, keys, n->Dv}}, [HEADS] = {4, {B, n->H, T, n->Dv}},
        [LSE] = {3, {B, n->H, T}},          [OUT] = {3, {B, T, x->module_desc.embed_dim}},
    };
    for (int i = 0; i < RESULTS; i++)
        y->each[i] = guarded_make(r, MHA_F32, shapes[i].ndim, shapes[i].shape, layout);
    y->wanted = (mha_module_outputs){.struct_size = sizeof y->wanted,
                                     .probabilities = &y->each[P].view,
                                     .average_probabilities = &y->each[AVERAGE].view,
                                     .q = &y->each[Q].view,
                                     .k = &y->each[K].view,
                                     .v = &y->each[V].view,
                                     .heads = &y->each[HEADS].view,
                                     .lse = &y->each[LSE].view};
}

static void results_free(results *y)
{
    for (int i = 0; i < RESULTS; i++) guarded_free(&y->each[i]);
}

static void run(mha_context *context, const trial *x, mha_path path, results *y)
{
    mha_attention_desc desc = x->c.desc;
    desc.path = path;
    if (mha_module_run(context, x->module,
                       MODULE_CALL(&desc, &x->query.view, &x->key.view, &x->value.view,
                                   &y->each[OUT].view, &y->wanted)) != MHA_OK)
        fail_msg("%s: %s", x->c.text, mha_error_detail());
    for (int i = 0; i < RESULTS; i++) assert_true(guarded_gaps_intact(&y->each[i]));
}

/* The score of the learned key for a row, in double. Its error is below `error`. */
static double learned_score(const trial *x, const float *q, int64_t h, double *error)
{
    const kinds_shape *n = &x->c.shape;
    const double scale = ref_scale(&x->desc, n->D), cap = (double)x->desc.softcap;
    double score = 0, size = 0;
    for (int64_t d = 0; d < n->D; d++) {
        int64_t at[] = {0, 0, h / (n->H / n->Hk) * n->D + d};
        double term = (double)q[d] * ref_element(&x->bias_k.view, at) * scale;
        score += term;
        size += fabs(term);
    }
    *error =
        0x1p-52 * ((double)(n->D + 3) * size + 4 * fabs(score)) +
        0x1p-24 * fabs(score) *
            (x->desc.scale == 0); /* attention rounds 1/sqrt(D) to f32, and the score here may round
                                   * it too */
    return cap > 0 ? cap * tanh(score / cap) : score;
}

/* The dropout factor of the learned key, number 2^34 - 1 of its row. */
static double learned_factor(const trial *x, int64_t b, int64_t h, int64_t t)
{
    const double dropout = (double)x->desc.dropout;
    if (dropout == 0) return 1;
    const uint64_t seed = x->desc.dropout_seed;
    const uint32_t counter[4] = {UINT32_MAX, (uint32_t)t, (uint32_t)h, (uint32_t)b};
    uint32_t word[4];
    kinds_philox(counter, (uint32_t[]){(uint32_t)seed, (uint32_t)(seed >> 32)}, word);
    if ((double)word[3] < dropout * 4294967296.0) return 0;
    return 1 / (1 - dropout);
}

static double log_sum(double a, double b)
{
    return fmax(a, b) + log1p(exp(fmin(a, b) - fmax(a, b)));
}

static void compare(const trial *x, tally *t, const char *what, double got, double exact,
                    double bound)
{
    if (!tally_compare(t, got, exact, bound))
        fail_msg("%s: %s is %.9g, exact %.9g, error %.3g, bound %.3g", x->c.text, what, got, exact,
                 fabs(got - exact), bound);
}

/* Compares row (b, h, t) with softmax over its visible keys, the learned key and the key of zeros.
 * Attention's own lse has an error of at most its bound, e. Therefore, the weight of its part,
 * exp(lse - lse'), and the weight of the learned key have an error of at most the factor exp(+-e),
 * and the result is rounded once more. The sinks are rounded to f32, with a relative error of
 * 2^-24, and another 2^-24 if the logarithms of the test and of the library round differently. */
static void check_row(const trial *x, const results *y, const ref_attention *a, kinds_row *row,
                      bound_row *bound, const int64_t at[3], tally *tallies)
{
    const int64_t b = at[0], h = at[1], t = at[2];
    const bool learned = x->module_desc.flags & MHA_MODULE_BIAS_KV;
    const bool zeros = x->module_desc.flags & MHA_MODULE_ZERO_ATTN;
    const double u = 0x1p-24, tiny = 0x1p-149;
    double e = zeros ? 0x1p-23 * (double)x->sinks[h] : 0, error = 0, score = -INFINITY;
    double lse = row->lse, keep = 1, weight = 0;
    if (row->lse != -INFINITY) e += bound->lse;
    if (learned) {
        score = learned_score(x, kinds_at(&y->each[Q].view, a, b, h, t), h, &error);
        e += error + 0x1p-50 * (1 + fabs(score));
        lse = row->lse == -INFINITY ? score : log_sum(row->lse, score);
        keep = exp(row->lse - lse), weight = exp(score - lse);
    }
    const double factor = expm1(2 * e);
    compare(x, &tallies[LSE], "lse", (double)*kinds_at(&y->each[LSE].view, a, b, h, t), lse,
            e + u * fabs(lse) + tiny);
    const float *o = kinds_at(&y->each[HEADS].view, a, b, h, t);
    const double value = weight * kinds_gate(a, b, h) * (learned ? learned_factor(x, b, h, t) : 0);
    for (int64_t d = 0; d < row->value_dim; d++) {
        int64_t index[] = {0, 0, h / (x->c.shape.H / x->c.shape.Hk) * row->value_dim + d};
        double v = learned ? value * ref_element(&x->bias_v.view, index) : 0;
        double exact = keep * row->o[d] + v;
        compare(x, &tallies[HEADS], "o", (double)o[d], exact,
                keep * (bound->o[d] * (1 + factor) + fabs(row->o[d]) * factor) + fabs(v) * factor +
                    u * fabs(exact) + tiny);
    }
    const float *p = kinds_at(&y->each[P].view, a, b, h, t);
    for (int64_t s = 0; s < row->keys; s++)
        compare(x, &tallies[P], "p", (double)p[s], keep * row->p[s],
                keep * (bound->p[s] * (1 + factor) + row->p[s] * factor) + u * row->p[s] + tiny);
    for (int64_t s = row->keys; s < x->columns; s++) assert_true(p[s] == 0);
    if (learned)
        compare(x, &tallies[P], "p of bias_k", (double)p[x->columns], weight,
                weight * (factor + u) + tiny);
    if (zeros)
        compare(x, &tallies[P], "p of zeros", (double)p[x->columns + learned], exp(-lse),
                exp(-lse) * (expm1(2 * e + 2 * u * fabs(row->lse)) + u) + tiny);
}

/* Checks the mean over heads of the library's own probabilities: it has H - 1 additions and a
 * division. */
static void check_average(const trial *x, const results *y, tally *t)
{
    const mha_tensor *mean = &y->each[AVERAGE].view;
    int64_t at[4] = {0};
    if (guarded_is_empty(mean)) return;
    do {
        double exact = 0;
        for (int64_t h = 0; h < x->c.shape.H; h++)
            exact += ref_element(&y->each[P].view, (int64_t[]){at[0], h, at[1], at[2]});
        exact /= (double)x->c.shape.H;
        compare(x, t, "average", ref_element(mean, at), exact,
                (double)x->c.shape.H * 0x1p-24 * exact * 1.0001 + 0x1p-149);
    } while (guarded_next(mean, at));
}

static void check_trial(const trial *x, const machine *m, const results *y, tally *tallies)
{
    const kinds_shape *n = &x->c.shape;
    ref_attention a = {&x->desc, &y->each[Q].view, &y->each[K].view, &y->each[V].view, NULL, NULL,
                       NULL};
    bound_arith arith = bound_arith_of(&a, m->path, m->isa);
    kinds_row row = kinds_row_make(x->columns, n->Dv);
    bound_row bound = bound_row_make(x->columns, n->Dv);
    for (int64_t b = 0; b < kinds_sequences(&a); b++)
        for (int64_t h = 0; h < n->H; h++)
            for (int64_t t = 0; t < kinds_sequence_at(&a, b).T; t++) {
                kinds_attention_row(&a, b, h, t, &row);
                kinds_bound_row(&a, &arith, b, h, t, &row, &bound);
                check_row(x, y, &a, &row, &bound, (int64_t[]){b, h, t}, tallies);
            }
    check_average(x, y, &tallies[AVERAGE]);
    kinds_row_free(&row);
    bound_row_free(&bound);
}

static void extra_keys(void)
{
    machines all = machines_make(2);
    tally tallies[MOST_MACHINES][RESULTS] = {0};
    for (int i = 0; i < rng_cases(120, 3000); i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)i);
        trial x;
        uint32_t flags = (uint32_t)rng_between(&r, 1, 31) * MHA_MODULE_BIAS_KV;
        trial_make(&x, &r, all.each[0].context, flags);
        for (int m = 0; m < all.count; m++) {
            results y;
            results_make(&y, &r, &x, rng_chance(&r, 0.5) ? 0 : LAYOUT_PAD | LAYOUT_NEGATIVE);
            run(all.each[m].context, &x, all.each[m].path, &y);
            check_trial(&x, &all.each[m], &y, tallies[m]);
            results_free(&y);
        }
        trial_free(&x);
    }
    const int shown[] = {LSE, HEADS, P, AVERAGE};
    const char *const names[] = {"lse", "heads", "p", "average"};
    for (int m = 0; m < all.count; m++)
        for (int i = 0; i < 4; i++)
            tally_judge_as(tallies[m][shown[i]], all.each[m].name, names[i]);
}

/* Threads and requested outputs change no bit. */
static void extra_bits(void)
{
    machines one = machines_make(1), many = machines_make(3);
    for (int i = 0; i < rng_cases(40, 600); i++) {
        rng r = rng_make(rng_run_seed(), 10000 + (uint64_t)i);
        trial x;
        trial_make(&x, &r, one.each[0].context,
                   (uint32_t)rng_between(&r, 1, 31) * MHA_MODULE_BIAS_KV);
        for (int m = 0; m < one.count; m++) {
            results y, z;
            results_make(&y, &r, &x, 0);
            results_make(&z, &r, &x, LAYOUT_PAD);
            run(one.each[m].context, &x, one.each[m].path, &y);
            run(many.each[m].context, &x, one.each[m].path, &z);
            for (int j = 0; j < RESULTS; j++)
                assert_true(guarded_same_bits(&y.each[j].view, &z.each[j].view, false));
            z.wanted = (mha_module_outputs){.struct_size = sizeof z.wanted};
            if (i % 3 == 1) z.wanted.average_probabilities = &z.each[AVERAGE].view;
            if (i % 3 == 2) z.wanted.lse = &z.each[LSE].view;
            for (int j = 0; j < RESULTS; j++) guarded_clear(&z.each[j]);
            run(one.each[m].context, &x, one.each[m].path, &z);
            assert_true(guarded_same_bits(&y.each[OUT].view, &z.each[OUT].view, false));
            if (i % 3 == 1)
                assert_true(guarded_same_bits(&y.each[AVERAGE].view, &z.each[AVERAGE].view, false));
            if (i % 3 == 2)
                assert_true(guarded_same_bits(&y.each[LSE].view, &z.each[LSE].view, false));
            results_free(&y);
            results_free(&z);
        }
        trial_free(&x);
    }
}

/* A NaN in bias_v makes its column of every row NaN, a NaN in bias_k makes all outputs NaN, and a
 * NaN in a hidden key changes no bit. */
static void extra_not_finite(void)
{
    rng r = rng_make(rng_run_seed(), 20000);
    machines all = machines_make(2);
    enum { E = 4, T = 5, S = 6 };
    for (int m = 0; m < all.count; m++) {
        mha_context *context = all.each[m].context;
        mha_module_desc d = {.struct_size = sizeof d, .embed_dim = E, .num_heads = 2};
        d.flags = MHA_MODULE_BIAS_KV | MHA_MODULE_ZERO_ATTN;
        mha_module *module;
        expect_ok(mha_module_create(context, &d, &module));
        set_all(&r, module);
        guarded x = guarded_filled(&r, 3, (int64_t[]){1, T, E}, 0, 1);
        guarded y = guarded_filled(&r, 3, (int64_t[]){1, S, E}, 0, 1);
        guarded out = guarded_make(&r, MHA_F32, 3, (int64_t[]){1, T, E}, 0);
        guarded heads = guarded_make(&r, MHA_F32, 4, (int64_t[]){1, 2, T, 2}, 0);
        guarded again = guarded_make(&r, MHA_F32, 3, (int64_t[]){1, T, E}, 0);
        guarded p = guarded_make(&r, MHA_F32, 4, (int64_t[]){1, 2, T, S + 2}, 0);
        const int64_t length = S - 1;
        mha_attention_desc desc = {
            .struct_size = sizeof desc, .path = all.each[m].path, .key_lengths = &length};
        mha_module_outputs wanted = {
            .struct_size = sizeof wanted, .probabilities = &p.view, .heads = &heads.view};
#define FORWARD(o)                            \
    expect_ok(mha_module_run(context, module, \
                             MODULE_CALL(&desc, &x.view, &y.view, &y.view, &(o)->view, &wanted)))
        FORWARD(&out);
        for (int64_t e = 0; e < E; e++)
            *(float *)guarded_element(&y.view, (int64_t[]){0, S - 1, e}) = NAN;
        FORWARD(&again);
        assert_true(guarded_same_bits(&out.view, &again.view, false));
        guarded v = parameter(&r, module, "bias_v", 3, (int64_t[]){1, 1, E});
        *(float *)guarded_element(&v.view, (int64_t[]){0, 0, 2}) = INFINITY; /* head 1, element 0 */
        expect_ok(mha_module_set_parameter(module, "bias_v", &v.view));
        FORWARD(&out);
        for (int64_t i = 0; i < 2 * T * 2; i++) {
            int64_t at[] = {0, i / 2 / T, i / 2 % T, i % 2};
            assert_true(isfinite(*(float *)guarded_element(&heads.view, at)) ==
                        !(at[1] == 1 && at[3] == 0));
        }
        guarded k = parameter(&r, module, "bias_k", 3, (int64_t[]){1, 1, E});
        *(float *)guarded_element(&k.view, (int64_t[]){0, 0, 1}) = NAN; /* head 0 */
        expect_ok(mha_module_set_parameter(module, "bias_k", &k.view));
        FORWARD(&out);
        for (int64_t i = 0; i < 2 * T * (S + 2); i++) {
            int64_t at[] = {0, i / (S + 2) / T, i / (S + 2) % T, i % (S + 2)};
            float value = *(float *)guarded_element(&p.view, at);
            if (at[3] == S - 1)
                assert_true(value == 0); /* hidden keys are 0 even in a row of NaNs */
            else
                assert_true(isnan(value) == (at[1] == 0));
        }
#undef FORWARD
        guarded *all_guarded[] = {&x, &y, &out, &heads, &again, &p, &v, &k};
        for (int i = 0; i < 8; i++) guarded_free(all_guarded[i]);
        mha_module_destroy(module);
    }
}

/* ---- shapes --------------------------------------------------------------------------------- */

/* Tensors without the axis B, and tensors in the memory order [T,B,E]. */
static void other_shapes(void)
{
    enum { B = 3, T = 5, S = 7, E = 12, H = 3, Ek = 10, Ev = 9 };
    rng r = rng_make(rng_run_seed(), 30000);
    machines all = machines_make(2);
    mha_context *context = all.each[all.count - 1].context;
    mha_module_desc d = {.struct_size = sizeof d, .embed_dim = E, .num_heads = H};
    d.key_dim = Ek, d.value_dim = Ev, d.flags = MHA_MODULE_BIAS_KV;
    mha_module *module;
    expect_ok(mha_module_create(context, &d, &module));
    set_all(&r, module);
    float x[T * B * E], y[S * B * Ek], z[S * B * Ev], out[T * B * E], whole[B * T * E];
    for (int i = 0; i < T * B * E; i++) x[i] = rng_normal(&r);
    for (int i = 0; i < S * B * Ek; i++) y[i] = rng_normal(&r);
    for (int i = 0; i < S * B * Ev; i++) z[i] = rng_normal(&r);
    const mha_tensor query = mha_tensor_tbe(x, T, B, E), key = mha_tensor_tbe(y, S, B, Ek);
    const mha_tensor value = mha_tensor_tbe(z, S, B, Ev), mixed = mha_tensor_tbe(out, T, B, E);
    const mha_tensor plain = mha_tensor_contiguous(whole, MHA_F32, 3, (int64_t[]){B, T, E});
    assert_int_equal(query.shape[0], B);
    assert_int_equal(query.stride[0], E);
    assert_int_equal(query.stride[1], B * E);
    guarded p = guarded_make(&r, MHA_F32, 4, (int64_t[]){B, H, T, S + 1}, 0);
    guarded lse = guarded_make(&r, MHA_F32, 3, (int64_t[]){B, H, T}, 0);
    mha_module_outputs wanted = {
        .struct_size = sizeof wanted, .probabilities = &p.view, .lse = &lse.view};
    expect_ok(
        mha_module_run(context, module, MODULE_CALL(NULL, &query, &key, &value, &mixed, &wanted)));
    expect_ok(
        mha_module_run(context, module, MODULE_CALL(NULL, &query, &key, &value, &plain, NULL)));
    for (int b = 0; b < B; b++)
        for (int t = 0; t < T; t++)
            assert_memory_equal(out + (t * B + b) * E, whole + (b * T + t) * E, E * sizeof(float));
    for (int64_t b = 0; b < B; b++) { /* the same without the batch axis */
        float o[T * E], maps[H * T * (S + 1)], logs[H * T];
        mha_tensor part[3] = {query, key, value};
        for (int i = 0; i < 3; i++) {
            part[i].data = (float *)part[i].data + b * part[i].stride[0];
            part[i].ndim = 2;
            for (int j = 0; j < 2; j++) {
                part[i].shape[j] = part[i].shape[j + 1];
                part[i].stride[j] = part[i].stride[j + 1];
            }
        }
        const mha_tensor ob = mha_tensor_contiguous(o, MHA_F32, 2, (int64_t[]){T, E});
        const mha_tensor pb = mha_tensor_contiguous(maps, MHA_F32, 3, (int64_t[]){H, T, S + 1});
        const mha_tensor lb = mha_tensor_contiguous(logs, MHA_F32, 2, (int64_t[]){H, T});
        mha_module_outputs each = {.struct_size = sizeof each, .probabilities = &pb, .lse = &lb};
        expect_ok(mha_module_run(context, module,
                                 MODULE_CALL(NULL, &part[0], &part[1], &part[2], &ob, &each)));
        assert_memory_equal(o, whole + b * T * E, sizeof o);
        assert_memory_equal(maps, guarded_element(&p.view, (int64_t[]){b, 0, 0, 0}), sizeof maps);
        assert_memory_equal(logs, guarded_element(&lse.view, (int64_t[]){b, 0, 0}), sizeof logs);
    }
    mha_module_destroy(module);
    guarded_free(&p);
    guarded_free(&lse);
}

/* A mixture of tensors with and without the batch axis, and options that extra keys exclude, are
 * rejected. */
static void shape_errors(void)
{
    enum { T = 2, S = 3, E = 4 };
    mha_context *context = machines_context(1, 0);
    mha_module_desc d = {.struct_size = sizeof d, .embed_dim = E, .num_heads = 2};
    d.flags = MHA_MODULE_BIAS_KV | MHA_MODULE_ZERO_ATTN;
    mha_module *module;
    expect_ok(mha_module_create(context, &d, &module));
    float x[T * E] = {0}, y[S * E] = {0}, o[T * E], maps[2 * T * (S + 2)];
    const mha_tensor query = mha_tensor_contiguous(x, MHA_F32, 2, (int64_t[]){T, E});
    const mha_tensor key = mha_tensor_contiguous(y, MHA_F32, 2, (int64_t[]){S, E});
    const mha_tensor out = mha_tensor_contiguous(o, MHA_F32, 2, (int64_t[]){T, E});
    const mha_tensor key3 = mha_tensor_contiguous(y, MHA_F32, 3, (int64_t[]){1, S, E});
    const mha_tensor query3 = mha_tensor_contiguous(x, MHA_F32, 3, (int64_t[]){1, T, E});
    const mha_tensor out3 = mha_tensor_contiguous(o, MHA_F32, 3, (int64_t[]){1, T, E});
    const mha_tensor p = mha_tensor_contiguous(maps, MHA_F32, 4, (int64_t[]){1, 2, T, S + 2});
    const mha_tensor lse = mha_tensor_contiguous(maps, MHA_F32, 3, (int64_t[]){1, 2, T});
    struct {
        mha_module_outputs wanted;
        mha_attention_outputs inner;
        mha_tensor key, p;
        int64_t head;
    } c = {{.struct_size = sizeof c.wanted}, {.struct_size = sizeof c.inner}, key, p, 1};
#define FORWARD(q, k, o) mha_module_run(context, module, MODULE_CALL(NULL, q, k, k, o, &c.wanted))
#define FLAT(...) expect_spoiled(c, FORWARD(&query, &c.key, &out), __VA_ARGS__)
#define ROW(...) expect_spoiled(c, FORWARD(&query3, &key3, &out3), __VA_ARGS__)
    expect_ok(FORWARD(&query, &key, &out));
    expect_error(FORWARD(&query, &key3, &out), MHA_ERR_SHAPE, "key: has 3 dimensions, but query");
    expect_error(FORWARD(&query3, &key, &out3), MHA_ERR_SHAPE, "key: has 2 dimensions");
    expect_error(FORWARD(&query, &key, &out3), MHA_ERR_SHAPE, "out: has 3 dimensions");
    FLAT(MHA_ERR_SHAPE, "probabilities: has 4", c.wanted.probabilities = &c.p);
    FLAT(MHA_ERR_SHAPE, "key: dim 1 is 3, expected 4", c.key.shape[1] = 3);
    ROW(MHA_ERR_SHAPE, "dim 3 is 3, expected 5", c.wanted.probabilities = &c.p, c.p.shape[3] = S);
    ROW(MHA_ERR_UNSUPPORTED, "bias_k", c.wanted.attention = &c.inner);
    c.wanted.probabilities = &c.p;
    expect_ok(FORWARD(&query3, &key3, &out3));
    mha_module_destroy(module);
    d.flags = 0;
    expect_ok(mha_module_create(context, &d, &module));
    c.wanted.probabilities = NULL, c.wanted.attention = &c.inner, c.p.shape[3] = S;
    expect_ok(FORWARD(&query3, &key3, &out3));
    ROW(MHA_ERR_ARGUMENT, "lse is requested twice", c.inner.lse = c.wanted.lse = &lse);
    ROW(MHA_ERR_OVERLAP, "lse overlaps out", c.inner.lse = &out3);
    ROW(MHA_ERR_OVERLAP, "entropy overlaps out", c.inner.entropy = &out3);
    ROW(MHA_ERR_ARGUMENT, "to select some", c.inner.heads = &c.head, c.inner.heads_count = 1,
        c.wanted.probabilities = &c.p);
    ROW(MHA_ERR_ARGUMENT, "mha_attention_outputs", c.inner.struct_size = 2);
    c.inner.lse = &lse;
    expect_ok(FORWARD(&query3, &key3, &out3));
    c.wanted.attention = NULL;
    c.wanted.struct_size = offsetof(mha_module_outputs, attention); /* the struct's first version */
    expect_ok(FORWARD(&query3, &key3, &out3));
#undef ROW
#undef FLAT
#undef FORWARD
    mha_module_call call = {.struct_size = sizeof call, .reserved = 1};
    expect_error(mha_module_run(context, module, &call), MHA_ERR_UNSUPPORTED, "reserved");
    expect_error(mha_module_run(context, module, NULL), MHA_ERR_NULL, "call");
    call.struct_size = 0;
    expect_error(mha_module_run(context, module, &call), MHA_ERR_ARGUMENT, "mha_module_call");
    mha_module_destroy(module);
}

/* Attention's outputs through the module: bit-identical to attention on the module's q, k, v.
 */
static void attention_outputs(void)
{
    enum { B = 2, T = 7, S = 9, H = 4, Hk = 2, D = 5, E = 12, TOP = 3 };
    rng r = rng_make(rng_run_seed(), 35000);
    machines all = machines_make(2);
    static const int64_t heads[] = {3, 1}, rows[] = {6, 0, 0};
    mha_module_desc d = {.struct_size = sizeof d, .embed_dim = E, .num_heads = H, .kv_heads = Hk};
    d.head_dim = D, d.flags = MHA_MODULE_SINKS;
    for (int m = 0; m < all.count; m++) {
        mha_context *context = all.each[m].context;
        mha_module *module;
        expect_ok(mha_module_create(context, &d, &module));
        set_all(&r, module);
        guarded sinks = parameter(&r, module, "sinks", 1, (int64_t[]){H});
        guarded x = guarded_filled(&r, 3, (int64_t[]){B, T, E}, 0, 1);
        guarded y = guarded_filled(&r, 3, (int64_t[]){B, S, E}, 0, 1);
        guarded out = guarded_make(&r, MHA_F32, 3, (int64_t[]){B, T, E}, 0);
        guarded q = guarded_make(&r, MHA_F32, 4, (int64_t[]){B, H, T, D}, 0);
        guarded k = guarded_make(&r, MHA_F32, 4, (int64_t[]){B, Hk, S, D}, 0);
        guarded v = guarded_make(&r, MHA_F32, 4, (int64_t[]){B, Hk, S, D}, 0);
        guarded o = guarded_make(&r, MHA_F32, 4, (int64_t[]){B, H, T, D}, 0);
        guarded some[2][6];
        for (int i = 0; i < 2; i++) {
            some[i][0] = guarded_make(&r, MHA_F32, 4, (int64_t[]){B, 2, 3, S}, 0);
            some[i][1] = guarded_make(&r, MHA_F32, 3, (int64_t[]){B, H, T}, 0);
            some[i][2] = guarded_make(&r, MHA_I64, 4, (int64_t[]){B, H, T, TOP}, 0);
            some[i][3] = guarded_make(&r, MHA_F32, 4, (int64_t[]){B, H, T, TOP}, 0);
            some[i][4] = guarded_make(&r, MHA_F32, 3, (int64_t[]){B, H, S}, 0);
            some[i][5] = guarded_make(&r, MHA_F32, 3, (int64_t[]){B, T, S}, 0);
            mha_attention_outputs inner = {.struct_size = sizeof inner,
                                           .probabilities = &some[i][0].view,
                                           .entropy = &some[i][1].view,
                                           .top_keys = &some[i][2].view,
                                           .top_weights = &some[i][3].view,
                                           .column_sums = &some[i][4].view,
                                           .heads = heads,
                                           .rows = rows,
                                           .heads_count = 2,
                                           .rows_count = 3};
            const mha_module_outputs wanted = {.struct_size = sizeof wanted,
                                               .average_probabilities = &some[0][5].view,
                                               .q = &q.view,
                                               .k = &k.view,
                                               .v = &v.view,
                                               .attention = &inner};
            mha_attention_desc desc = {.struct_size = sizeof desc, .path = all.each[m].path};
            if (i == 0)
                expect_ok(mha_module_run(
                    context, module,
                    MODULE_CALL(&desc, &x.view, &y.view, &y.view, &out.view, &wanted)));
            desc.sink_logits = &sinks.view;
            inner.average_probabilities = &some[i][5].view;
            if (i == 1)
                expect_ok(mha_attention_forward(context, &desc, &q.view, &k.view, &v.view, &o.view,
                                                &inner));
        }
        for (int n = 0; n < 6; n++) {
            assert_true(guarded_same_bits(&some[0][n].view, &some[1][n].view, false));
            guarded_free(&some[0][n]);
            guarded_free(&some[1][n]);
        }
        guarded *tensors[] = {&sinks, &x, &y, &out, &q, &k, &v, &o};
        for (int n = 0; n < 8; n++) guarded_free(tensors[n]);
        mha_module_destroy(module);
    }
}

/* ---- parameters ----------------------------------------------------------------------------- */

/* Names, shapes and counts of a module's parameters, as one string. */
static const char *list_of(const mha_module *module)
{
    static char text[1024];
    size_t used = 0;
    mha_module_parameter p;
    text[0] = '\0';
    for (int64_t i = 0; mha_module_parameter_at(module, i, &p); i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i ? " " : "", p.name);
        for (int d = 0; d < p.ndim; d++)
            used += (size_t)snprintf(text + used, sizeof text - used, "%c%lld", d ? 'x' : ':',
                                     (long long)p.shape[d]);
    }
    return text;
}

static void parameter_list(void)
{
    machines all = machines_make(1);
    mha_context *context = all.each[0].context;
    const uint32_t none = MHA_MODULE_NO_QKV_BIAS | MHA_MODULE_NO_OUT_BIAS;
    const struct {
        mha_module_desc desc;
        int64_t count;
        const char *list;
    } cases[] = {
        {{.embed_dim = 12, .num_heads = 3},
         4 * (144 + 12),
         "in_proj_weight:36x12 in_proj_bias:36 out_proj.weight:12x12 out_proj.bias:12"},
        {{.embed_dim = 12, .num_heads = 3, .flags = none | MHA_MODULE_BIAS_KV},
         4 * 144 + 24,
         "in_proj_weight:36x12 bias_k:1x1x12 bias_v:1x1x12 out_proj.weight:12x12"},
        {{.embed_dim = 12, .num_heads = 3, .key_dim = 5, .flags = MHA_MODULE_NO_OUT_BIAS},
         144 + 60 + 144 + 36 + 144,
         "q_proj_weight:12x12 k_proj_weight:12x5 v_proj_weight:12x12 in_proj_bias:36 "
         "out_proj.weight:12x12"},
        {{.embed_dim = 12, .num_heads = 6, .kv_heads = 2, .value_head_dim = 3},
         144 + 48 + 72 + 12 + 4 + 6 + 18 * 12 + 12,
         "q_proj_weight:12x12 k_proj_weight:4x12 v_proj_weight:6x12 in_proj_bias:22 "
         "out_proj.weight:12x18 out_proj.bias:12"},
        /* published models: Vaswani et al.; GPT-2 small; GQA with Llama's shape */
        {{.embed_dim = 512, .num_heads = 8, .flags = none}, 1048576, NULL},
        {{.embed_dim = 768, .num_heads = 12, .flags = none}, 2359296, NULL},
        {{.embed_dim = 4096, .num_heads = 32, .kv_heads = 8, .flags = none}, 41943040, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mha_module_desc d = cases[i].desc;
        d.struct_size = sizeof d;
        mha_module *module;
        expect_ok(mha_module_create(context, &d, &module));
        assert_int_equal(mha_module_parameter_count(module), cases[i].count);
        if (cases[i].list) assert_string_equal(list_of(module), cases[i].list);
        mha_module_parameter p = {.name = "x"};
        assert_false(mha_module_parameter_at(module, -1, &p));
        assert_false(mha_module_parameter_at(module, 99, &p));
        assert_false(mha_module_parameter_at(module, 0, NULL));
        assert_false(mha_module_parameter_at(NULL, 0, &p));
        assert_string_equal(p.name, "x");
        mha_module_destroy(module);
    }
}

/* Parameters are returned exactly as set, including NaNs, under every name and with any strides. */
static void parameters_come_back(void)
{
    for (int i = 0; i < rng_cases(40, 400); i++) {
        rng r = rng_make(rng_run_seed(), 40000 + (uint64_t)i);
        mha_module_desc d = {.struct_size = sizeof d, .num_heads = rng_between(&r, 1, 2) * 2};
        d.kv_heads = rng_chance(&r, 0.5) ? 0 : 2;
        d.head_dim = rng_between(&r, 1, 40);
        d.embed_dim = rng_between(&r, 1, 70);
        d.key_dim = rng_chance(&r, 0.5) ? 0 : rng_between(&r, 1, 70);
        d.flags = MHA_MODULE_BIAS_KV;
        mha_module *module;
        expect_ok(mha_module_create(machines_context(1, 0), &d, &module));
        mha_module_parameter p;
        for (int64_t n = 0; mha_module_parameter_at(module, n, &p); n++) {
            guarded in = guarded_filled(&r, p.ndim, p.shape, LAYOUT_PAD | LAYOUT_LAST, 1);
            guarded out = guarded_make(&r, MHA_F32, p.ndim, p.shape,
                                       LAYOUT_PAD | LAYOUT_LAST | LAYOUT_NEGATIVE);
            *(uint32_t *)guarded_element(&in.view, (int64_t[]){0, 0, 0}) = 0x7FC12345;
            expect_ok(mha_module_set_parameter(module, p.name, &in.view));
            expect_ok(mha_module_get_parameter(module, p.name, &out.view));
            assert_true(guarded_same_bits(&in.view, &out.view, false));
            assert_true(guarded_gaps_intact(&out));
            guarded_free(&in);
            guarded_free(&out);
        }
        mha_module_describe(module, &d);
        /* in_proj_bias is the concatenation of the biases of q, k and v, for any sizes */
        int64_t size[] = {d.num_heads * d.head_dim, d.kv_heads * d.head_dim,
                          d.kv_heads * d.value_head_dim};
        int64_t sum = size[0] + size[1] + size[2], at = 0;
        guarded joined = parameter(&r, module, "in_proj_bias", 1, &sum);
        static const char *const names[] = {"q_proj.bias", "k_proj.bias", "v_proj.bias"};
        for (int j = 0; j < 3; j++) {
            guarded part = parameter(&r, module, names[j], 1, &size[j]);
            mha_tensor slice = guarded_slice(&joined.view, 0, at, size[j]);
            assert_true(guarded_same_bits(&part.view, &slice, false));
            guarded_free(&part);
            at += size[j];
        }
        guarded_free(&joined);
        mha_module_destroy(module);
    }
}

static void parameter_errors(void)
{
    mha_module_desc d = {.struct_size = sizeof d, .embed_dim = 4, .num_heads = 2, .kv_heads = 1};
    d.flags = MHA_MODULE_NO_QKV_BIAS;
    mha_module *module;
    expect_ok(mha_module_create(machines_context(1, 0), &d, &module));
    float memory[48];
    memset(memory, 0x7E, sizeof memory);
    mha_tensor w = mha_tensor_contiguous(memory, MHA_F32, 2, (int64_t[]){4, 4});
    const mha_tensor bias = mha_tensor_contiguous(memory, MHA_F32, 1, (int64_t[]){8});
    const mha_tensor key = mha_tensor_contiguous(memory, MHA_F32, 3, (int64_t[]){1, 1, 2});
#define GET(name, to) mha_module_get_parameter(module, name, to)
    expect_error(mha_module_get_parameter(NULL, "q_proj.weight", &w), MHA_ERR_NULL, "module");
    expect_error(GET(NULL, &w), MHA_ERR_NULL, "name");
    expect_error(GET("q_proj.weight", NULL), MHA_ERR_NULL, "q_proj.weight");
    expect_error(GET("weight", &w), MHA_ERR_ARGUMENT, "'weight' is unknown");
    expect_error(GET("in_proj_bias", &bias), MHA_ERR_ARGUMENT, "without that bias");
    expect_error(GET("bias_k", &key), MHA_ERR_ARGUMENT, "without that parameter");
    expect_error(mha_module_set_parameter(module, "bias_v", &key), MHA_ERR_ARGUMENT, "bias_v");
    expect_error(GET("k_proj_weight", &w), MHA_ERR_SHAPE, "dim 0 is 4, expected 2");
    expect_error(GET("in_proj_weight", &w), MHA_ERR_SHAPE, "one shape");
    w.stride[0] = 0;
    expect_error(GET("q_proj_weight", &w), MHA_ERR_STRIDE, "share memory");
    w.dtype = MHA_F16;
    expect_error(GET("q_proj_weight", &w), MHA_ERR_DTYPE, "f16");
#undef GET
    for (size_t i = 0; i < sizeof memory; i++) assert_int_equal(((char *)memory)[i], 0x7E);
    mha_module_destroy(module);
}

/* Grouped heads equal a module with each key/value head repeated for every query head. */
static void grouped_is_repeated(void)
{
    enum { B = 2, T = 9, H = 6, Hk = 2, D = 5, E = 14 };
    rng r = rng_make(rng_run_seed(), 50000);
    machines all = machines_make(2);
    mha_context *context = all.each[all.count - 1].context;
    mha_module_desc d = {.struct_size = sizeof d, .embed_dim = E, .num_heads = H, .kv_heads = Hk};
    d.head_dim = D, d.flags = MHA_MODULE_BIAS_KV | MHA_MODULE_ZERO_ATTN;
    mha_module *grouped, *repeated;
    expect_ok(mha_module_create(context, &d, &grouped));
    d.kv_heads = H;
    expect_ok(mha_module_create(context, &d, &repeated));
    set_all(&r, grouped);
    const struct {
        const char *name;
        int ndim;
        int64_t shape[3]; /* shape in the grouped module; `axis` is the head axis */
        int axis;
    } names[] = {{"q_proj.weight", 2, {H * D, E}, -1},   {"q_proj.bias", 1, {H * D}, -1},
                 {"out_proj.weight", 2, {E, H * D}, -1}, {"out_proj.bias", 1, {E}, -1},
                 {"k_proj.weight", 2, {Hk * D, E}, 0},   {"k_proj.bias", 1, {Hk * D}, 0},
                 {"v_proj.weight", 2, {Hk * D, E}, 0},   {"v_proj.bias", 1, {Hk * D}, 0},
                 {"bias_k", 3, {1, 1, Hk * D}, 2},       {"bias_v", 3, {1, 1, Hk * D}, 2}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        guarded from = parameter(&r, grouped, names[i].name, names[i].ndim, names[i].shape);
        int64_t shape[3], at[3] = {0};
        memcpy(shape, names[i].shape, sizeof shape);
        if (names[i].axis >= 0) shape[names[i].axis] = H * D;
        guarded to = guarded_make(&r, MHA_F32, names[i].ndim, shape, 0);
        do {
            int64_t source[3];
            memcpy(source, at, sizeof source);
            int axis = names[i].axis;
            if (axis >= 0) source[axis] = at[axis] / D / (H / Hk) * D + at[axis] % D;
            *(float *)guarded_element(&to.view, at) = *(float *)guarded_element(&from.view, source);
        } while (guarded_next(&to.view, at));
        expect_ok(mha_module_set_parameter(repeated, names[i].name, &to.view));
        guarded_free(&from);
        guarded_free(&to);
    }
    guarded x = guarded_filled(&r, 3, (int64_t[]){B, T, E}, 0, 1);
    guarded a = guarded_make(&r, MHA_F32, 3, (int64_t[]){B, T, E}, 0);
    guarded b = guarded_make(&r, MHA_F32, 3, (int64_t[]){B, T, E}, 0);
    expect_ok(mha_module_run(context, grouped,
                             MODULE_CALL(NULL, &x.view, &x.view, &x.view, &a.view, NULL)));
    expect_ok(mha_module_run(context, repeated,
                             MODULE_CALL(NULL, &x.view, &x.view, &x.view, &b.view, NULL)));
    assert_true(guarded_same_bits(&a.view, &b.view, false));
    guarded_free(&x);
    guarded_free(&a);
    guarded_free(&b);
    mha_module_destroy(grouped);
    mha_module_destroy(repeated);
}

/* ---- scratch -------------------------------------------------------------------------------- */

/* After mha_context_reserve() of the bytes of mha_module_scratch(), the call allocates nothing. */
static void scratch_account(void)
{
    for (int i = 0; i < rng_cases(30, 300); i++) {
        rng r = rng_make(rng_run_seed(), 60000 + (uint64_t)i);
        failing_alloc memory = failing_alloc_make();
        mha_context *context;
        expect_ok(failing_context(&memory, 2, MHA_ISA_AUTO, &context));
        trial x;
        results y;
        trial_make(&x, &r, context, (uint32_t)rng_between(&r, 0, 31) * MHA_MODULE_BIAS_KV);
        results_make(&y, &r, &x, 0);
        if (rng_chance(&r, 0.5)) y.wanted.probabilities = NULL;
        if (rng_chance(&r, 0.5)) y.wanted.lse = NULL;
        mha_tensor empty[3] = {x.query.view, x.key.view, x.value.view};
        for (int j = 0; j < 3; j++) empty[j].data = NULL;
        const mha_module_call call = {.struct_size = sizeof call,
                                      .attention = &x.c.desc,
                                      .query = &empty[0],
                                      .key = &empty[1],
                                      .value = &empty[2],
                                      .outputs = &y.wanted};
        size_t bytes = 0;
        expect_ok(mha_module_scratch(context, x.module, &call, &bytes));
        expect_ok(mha_context_reserve(context, bytes));
        int64_t calls = memory.calls;
        run(context, &x, MHA_PATH_AUTO, &y);
        assert_int_equal(memory.calls, calls);
        results_free(&y);
        trial_free(&x);
        mha_context_destroy(context);
        assert_int_equal(memory.live, 0);
    }
    size_t bytes = 0;
    mha_module_desc d = {.struct_size = sizeof d, .embed_dim = 4, .num_heads = 2};
    mha_module *module;
    expect_ok(mha_module_create(machines_context(1, 0), &d, &module));
    mha_module_call call = {.struct_size = sizeof call};
    expect_error(mha_module_scratch(machines_context(1, 0), module, &call, NULL), MHA_ERR_NULL,
                 "bytes");
    expect_error(mha_module_scratch(machines_context(1, 0), module, &call, &bytes), MHA_ERR_NULL,
                 "query");
    mha_module_destroy(module);
}

RUN_TESTS(TEST(extra_keys), TEST(extra_bits), TEST(extra_not_finite), TEST(other_shapes),
          TEST(shape_errors), TEST(attention_outputs), TEST(parameter_list),
          TEST(parameters_come_back), TEST(parameter_errors), TEST(grouped_is_repeated),
          TEST(scratch_account))
