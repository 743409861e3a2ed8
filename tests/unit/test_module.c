/* The multi-head attention module, compared with the double-precision reference: each step on the
 * library's own intermediate results, and all steps with propagated errors. */
#include "reference/kinds_bounds.h"
#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/machines.h"
#include "support/module_call.h"
#include "support/problem.h"
#include "support/suite.h"
#include "support/tally.h"

#include <multihead/module.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* ---- a module with its inputs --------------------------------------------------------------- */

enum { Q, K, V, O, PROJECTIONS };

typedef struct setup {
    mha_module_desc desc; /* without defaults */
    int64_t B, T, S;
    problem masks; /* its desc has mask and scale; its q, k, v are not used */
    guarded weight[PROJECTIONS], bias[PROJECTIONS];
    guarded query, key, value;
} setup;

typedef struct results {
    guarded out, p, average, q, k, v, heads, lse;
    mha_module_outputs wanted;
} results;

static const mha_tensor *bias_of(const setup *s, int i)
{
    unsigned without = i == O ? MHA_MODULE_NO_OUT_BIAS : MHA_MODULE_NO_QKV_BIAS;
    return s->desc.flags & without ? NULL : &s->bias[i].view;
}

static mha_module_desc some_desc(rng *r)
{
    static const int64_t head_dims[] = {1, 4, 8, 16, 32, 33};
    static const int64_t heads[][2] = {{1, 1}, {2, 2}, {4, 2}, {6, 3}, {4, 1}, {3, 3}};
    int64_t pair = rng_between(r, 0, 5);
    mha_module_desc d = {.struct_size = sizeof d, .num_heads = heads[pair][0]};
    d.kv_heads = rng_chance(r, 0.5) ? d.num_heads : heads[pair][1];
    d.head_dim = RNG_PICK(r, head_dims);
    d.embed_dim = rng_chance(r, 0.7) ? d.num_heads * d.head_dim : rng_between(r, 1, 100);
    d.value_head_dim = rng_chance(r, 0.6) ? d.head_dim : RNG_PICK(r, head_dims);
    d.key_dim = rng_chance(r, 0.6) ? d.embed_dim : rng_between(r, 1, 300);
    d.value_dim = rng_chance(r, 0.6) ? d.embed_dim : rng_between(r, 1, 300);
    d.flags = (uint32_t)rng_between(r, 0, 3);
    return d;
}

static void setup_make(setup *s, rng *r, mha_module_desc desc, int64_t B, int64_t T, int64_t S)
{
    *s = (setup){.desc = desc, .B = B, .T = T, .S = S};
    problem_shape n = {.B = B, .H = desc.num_heads, .Hk = desc.kv_heads, .T = T, .S = S};
    n.D = desc.head_dim, n.Dv = desc.value_head_dim;
    n.masks = rng_chance(r, 0.5) ? 0 : (unsigned)rng_between(r, 0, MASK_ALL);
    problem_make(&s->masks, r, &n);
    const int64_t width[PROJECTIONS][2] = {{desc.num_heads * desc.head_dim, desc.embed_dim},
                                           {desc.kv_heads * desc.head_dim, desc.key_dim},
                                           {desc.kv_heads * desc.value_head_dim, desc.value_dim},
                                           {desc.embed_dim, desc.num_heads * desc.value_head_dim}};
    for (int i = 0; i < PROJECTIONS; i++) {
        unsigned layout = rng_chance(r, 0.5) ? 0 : LAYOUT_PAD | LAYOUT_LAST | LAYOUT_NEGATIVE;
        s->weight[i] = guarded_filled(r, 2, width[i], layout, 1 / sqrt((double)width[i][1]));
        s->bias[i] = guarded_filled(r, 1, width[i], layout, 0.5);
    }
    static const unsigned layouts[] = {0, LAYOUT_PAD, LAYOUT_PAD | LAYOUT_NEGATIVE, LAYOUT_REPEAT};
    s->query = guarded_filled(r, 3, (int64_t[]){B, T, desc.embed_dim}, RNG_PICK(r, layouts), 1);
    s->key = guarded_filled(r, 3, (int64_t[]){B, S, desc.key_dim}, RNG_PICK(r, layouts), 1);
    s->value = guarded_filled(r, 3, (int64_t[]){B, S, desc.value_dim}, RNG_PICK(r, layouts), 1);
}

static void setup_free(setup *s)
{
    problem_free(&s->masks);
    for (int i = 0; i < PROJECTIONS; i++) {
        guarded_free(&s->weight[i]);
        guarded_free(&s->bias[i]);
    }
    guarded_free(&s->query);
    guarded_free(&s->key);
    guarded_free(&s->value);
}

/* Sets every parameter by its name. */
static mha_status set_all(mha_module *module, const setup *s)
{
    static const char *const names[PROJECTIONS] = {"q_proj", "k_proj", "v_proj", "out_proj"};
    char name[32];
    for (int i = 0; i < PROJECTIONS; i++) {
        snprintf(name, sizeof name, "%s.weight", names[i]);
        mha_status status = mha_module_set_parameter(module, name, &s->weight[i].view);
        snprintf(name, sizeof name, "%s.bias", names[i]);
        if (status == MHA_OK && bias_of(s, i))
            status = mha_module_set_parameter(module, name, bias_of(s, i));
        if (status != MHA_OK) return status;
    }
    return MHA_OK;
}

static mha_module *must_make(mha_context *context, const setup *s)
{
    mha_module *module = NULL;
    if (mha_module_create(context, &s->desc, &module) != MHA_OK || set_all(module, s) != MHA_OK)
        fail_msg("%s", mha_error_detail());
    return module;
}

/* Initialises in place because `wanted` points into x. */
static void results_make(results *x, rng *r, const setup *s, unsigned layout)
{
    const mha_module_desc *d = &s->desc;
    int64_t H = d->num_heads, Hk = d->kv_heads, D = d->head_dim, Dv = d->value_head_dim;
    x->out = guarded_make(r, MHA_F32, 3, (int64_t[]){s->B, s->T, d->embed_dim}, layout);
    x->p = guarded_make(r, MHA_F32, 4, (int64_t[]){s->B, H, s->T, s->S}, layout);
    x->average = guarded_make(r, MHA_F32, 3, (int64_t[]){s->B, s->T, s->S}, layout);
    x->q = guarded_make(r, MHA_F32, 4, (int64_t[]){s->B, H, s->T, D}, layout);
    x->k = guarded_make(r, MHA_F32, 4, (int64_t[]){s->B, Hk, s->S, D}, layout);
    x->v = guarded_make(r, MHA_F32, 4, (int64_t[]){s->B, Hk, s->S, Dv}, layout);
    x->heads = guarded_make(r, MHA_F32, 4, (int64_t[]){s->B, H, s->T, Dv}, layout);
    x->lse = guarded_make(r, MHA_F32, 3, (int64_t[]){s->B, H, s->T}, layout);
    x->wanted = (mha_module_outputs){.struct_size = sizeof x->wanted,
                                     .probabilities = &x->p.view,
                                     .average_probabilities = &x->average.view,
                                     .q = &x->q.view,
                                     .k = &x->k.view,
                                     .v = &x->v.view,
                                     .heads = &x->heads.view,
                                     .lse = &x->lse.view};
}

enum { RESULTS = 8 };

static void results_list(results *x, guarded *list[RESULTS])
{
    guarded *all[RESULTS] = {&x->out, &x->p, &x->average, &x->q, &x->k, &x->v, &x->heads, &x->lse};
    memcpy(list, all, sizeof all);
}

static void results_free(results *x)
{
    guarded *all[RESULTS];
    results_list(x, all);
    for (int i = 0; i < RESULTS; i++) guarded_free(all[i]);
}

static mha_status forward(mha_context *context, const mha_module *module, const setup *s,
                          mha_path path, results *x)
{
    mha_attention_desc desc = s->masks.desc;
    desc.path = path;
    return mha_module_run(
        context, module,
        MODULE_CALL(&desc, &s->query.view, &s->key.view, &s->value.view, &x->out.view, &x->wanted));
}

static void must_forward(mha_context *context, const mha_module *module, const setup *s,
                         mha_path path, results *x)
{
    guarded *all[RESULTS];
    results_list(x, all);
    if (forward(context, module, s, path, x) != MHA_OK)
        fail_msg("%s: %s", s->masks.text, mha_error_detail());
    for (int i = 0; i < RESULTS; i++) assert_true(guarded_gaps_intact(all[i]));
}

/* ---- numbers -------------------------------------------------------------------------------- */

typedef struct score_card {
    tally projections, heads, p, lse, average, out, whole;
} score_card;

static mha_tensor sequence(const mha_tensor *x, int64_t b) /* [B,L,W] -> [L,W] */
{
    mha_tensor part = guarded_slice(x, 0, b, 1);
    part.ndim = 2;
    for (int i = 0; i < 2; i++) {
        part.shape[i] = x->shape[i + 1];
        part.stride[i] = x->stride[i + 1];
    }
    return part;
}

/* Compares the projection of x, viewed as heads, with the library's. */
static void check_projection(const setup *s, int which, const mha_tensor *x, const mha_tensor *got,
                             bool fused, tally *t)
{
    for (int64_t b = 0; b < s->B; b++) {
        mha_tensor rows = sequence(x, b);
        for (int64_t i = 0; i < rows.shape[0]; i++)
            for (int64_t n = 0; n < s->weight[which].view.shape[0]; n++) {
                int64_t dim = got->shape[3], index[] = {b, n / dim, i, n % dim};
                double exact = ref_linear(&rows, &s->weight[which].view, bias_of(s, which), i, n);
                double bound = bound_linear(&rows, NULL, &s->weight[which].view, bias_of(s, which),
                                            fused, i, n);
                double value = (double)*(float *)guarded_element(got, index);
                if (!tally_compare(t, value, exact, bound))
                    fail_msg("%s: projection %d [%lld,%lld,%lld] is %.9g, exact %.9g, bound %.3g",
                             s->masks.text, which, (long long)b, (long long)i, (long long)n, value,
                             exact, bound);
            }
    }
}

static float value4(const guarded *x, int64_t b, int64_t h, int64_t t, int64_t i)
{
    return *(float *)guarded_element(&x->view, (int64_t[]){b, h, t, i});
}

/* Checks attention on the library's own q, k, v. */
static void check_attention(const setup *s, const machine *m, const results *x, score_card *card)
{
    ref_attention a = {.desc = &s->masks.desc, .q = &x->q.view, .k = &x->k.view, .v = &x->v.view};
    bound_arith arith = bound_arith_of(&a, m->path, m->isa);
    kinds_row row = kinds_row_make(s->S, s->desc.value_head_dim);
    bound_row bound = bound_row_make(s->S, s->desc.value_head_dim);
    for (int64_t i = 0; i < s->B * s->desc.num_heads * s->T; i++) {
        int64_t b = i / s->T / s->desc.num_heads, h = i / s->T % s->desc.num_heads, t = i % s->T;
        kinds_attention_row(&a, b, h, t, &row);
        kinds_bound_row(&a, &arith, b, h, t, &row, &bound);
        bool right = true;
        for (int64_t d = 0; d < s->desc.value_head_dim; d++)
            right &= tally_compare(&card->heads, (double)value4(&x->heads, b, h, t, d), row.o[d],
                                   bound.o[d]);
        for (int64_t k = 0; k < s->S; k++)
            right &=
                tally_compare(&card->p, (double)value4(&x->p, b, h, t, k), row.p[k], bound.p[k]);
        double lse = (double)*(float *)guarded_element(&x->lse.view, (int64_t[]){b, h, t});
        right &= tally_compare(&card->lse, lse, row.lse, bound.lse);
        if (!right) fail_msg("%s: %s: attention is beyond its bound", m->name, s->masks.text);
    }
    bound_row_free(&bound);
    kinds_row_free(&row);
}

/* Checks the mean over heads of the library's own probabilities: it has H - 1 additions and a
 * division. */
static void check_average(const setup *s, const results *x, score_card *card)
{
    int64_t H = s->desc.num_heads;
    for (int64_t i = 0; i < s->B * s->T * s->S; i++) {
        int64_t b = i / s->S / s->T, t = i / s->S % s->T, k = i % s->S;
        double mean = 0;
        for (int64_t h = 0; h < H; h++) mean += (double)value4(&x->p, b, h, t, k) / (double)H;
        double got = (double)*(float *)guarded_element(&x->average.view, (int64_t[]){b, t, k});
        double bound = (double)H * 0x1p-24 * mean * 1.0001 + 0x1p-149;
        if (!tally_compare(&card->average, got, mean, bound))
            fail_msg("%s: average %.9g, exact %.9g", s->masks.text, got, mean);
    }
}

/* The heads of sequence b in W_o's layout, [T, H Dv]. */
static guarded joined_heads(rng *r, const setup *s, const guarded *heads, int64_t b)
{
    int64_t Dv = s->desc.value_head_dim, H = s->desc.num_heads;
    guarded x = guarded_make(r, heads->view.dtype, 2, (int64_t[]){s->T, H * Dv}, 0);
    size_t size = mha_dtype_size(heads->view.dtype);
    for (int64_t t = 0; t < s->T; t++)
        for (int64_t n = 0; n < H * Dv; n++)
            memcpy(guarded_element(&x.view, (int64_t[]){t, n}),
                   guarded_element(&heads->view, (int64_t[]){b, n / Dv, t, n % Dv}), size);
    return x;
}

/* Compares out with W_o applied to heads that have the given error, or none if `error` is NULL. */
static void check_out(rng *r, const setup *s, const results *x, const guarded *heads,
                      const guarded *error, bool fused, tally *t)
{
    for (int64_t b = 0; b < s->B; b++) {
        guarded joined = joined_heads(r, s, heads, b);
        guarded wrong = joined_heads(r, s, error ? error : heads, b);
        for (int64_t i = 0; i < s->T * s->desc.embed_dim; i++) {
            int64_t row = i / s->desc.embed_dim, n = i % s->desc.embed_dim;
            const mha_tensor *w = &s->weight[O].view;
            double exact = ref_linear(&joined.view, w, bias_of(s, O), row, n);
            double bound = bound_linear(&joined.view, error ? &wrong.view : NULL, w, bias_of(s, O),
                                        fused, row, n);
            double got = (double)*(float *)guarded_element(&x->out.view, (int64_t[]){b, row, n});
            if (!tally_compare(t, got, exact, bound))
                fail_msg("%s: out[%lld,%lld,%lld] is %.9g, exact %.9g, bound %.3g", s->masks.text,
                         (long long)b, (long long)row, (long long)n, got, exact, bound);
        }
        guarded_free(&joined);
        guarded_free(&wrong);
    }
}

/* A projection in double, and the bound of the library's error, both [B,heads,L,dim] in f64. */
static void exact_projection(rng *r, const setup *s, int which, const mha_tensor *x, int64_t heads,
                             int64_t dim, bool fused, guarded *y, guarded *error)
{
    const int64_t shape[] = {s->B, heads, x->shape[1], dim};
    *y = guarded_make(r, MHA_F64, 4, shape, 0);
    *error = guarded_make(r, MHA_F64, 4, shape, 0);
    for (int64_t b = 0; b < s->B; b++) {
        mha_tensor rows = sequence(x, b);
        for (int64_t i = 0; i < rows.shape[0]; i++)
            for (int64_t n = 0; n < heads * dim; n++) {
                int64_t index[] = {b, n / dim, i, n % dim};
                *(double *)guarded_element(&y->view, index) =
                    ref_linear(&rows, &s->weight[which].view, bias_of(s, which), i, n);
                *(double *)guarded_element(&error->view, index) = bound_linear(
                    &rows, NULL, &s->weight[which].view, bias_of(s, which), fused, i, n);
            }
    }
}

/* Computes all steps in double, from query to out, with propagated errors. */
static void check_whole(rng *r, const setup *s, const machine *m, const results *x,
                        score_card *card)
{
    const mha_module_desc *d = &s->desc;
    const int64_t H = d->num_heads, Hk = d->kv_heads, Dv = d->value_head_dim;
    bool fused = m->isa != MHA_ISA_PORTABLE;
    guarded y[3], error[3];
    exact_projection(r, s, Q, &s->query.view, H, d->head_dim, fused, &y[Q], &error[Q]);
    exact_projection(r, s, K, &s->key.view, Hk, d->head_dim, fused, &y[K], &error[K]);
    exact_projection(r, s, V, &s->value.view, Hk, Dv, fused, &y[V], &error[V]);
    ref_attention a = {&s->masks.desc, &y[Q].view,     &y[K].view,    &y[V].view,
                       &error[Q].view, &error[K].view, &error[V].view};
    bound_arith arith = bound_arith_of(&a, m->path, m->isa);
    kinds_row row = kinds_row_make(s->S, Dv);
    bound_row bound = bound_row_make(s->S, Dv);
    guarded heads = guarded_make(r, MHA_F64, 4, (int64_t[]){s->B, H, s->T, Dv}, 0);
    guarded wrong = guarded_make(r, MHA_F64, 4, (int64_t[]){s->B, H, s->T, Dv}, 0);
    for (int64_t i = 0; i < s->B * H * s->T; i++) {
        int64_t index[] = {i / s->T / H, i / s->T % H, i % s->T, 0};
        kinds_attention_row(&a, index[0], index[1], index[2], &row);
        kinds_bound_row(&a, &arith, index[0], index[1], index[2], &row, &bound);
        for (index[3] = 0; index[3] < Dv; index[3]++) {
            *(double *)guarded_element(&heads.view, index) = row.o[index[3]];
            *(double *)guarded_element(&wrong.view, index) = bound.o[index[3]];
        }
    }
    check_out(r, s, x, &heads, &wrong, fused, &card->whole);
    for (int i = 0; i < 3; i++) {
        guarded_free(&y[i]);
        guarded_free(&error[i]);
    }
    guarded_free(&heads);
    guarded_free(&wrong);
    bound_row_free(&bound);
    kinds_row_free(&row);
}

static void print_card(const score_card *card, const char *machine_name)
{
    tally_judge_as(card->projections, machine_name, "projections");
    tally_judge_as(card->heads, machine_name, "heads");
    tally_judge_as(card->p, machine_name, "p");
    tally_judge_as(card->lse, machine_name, "lse");
    tally_judge_as(card->average, machine_name, "average p");
    tally_judge_as(card->out, machine_name, "out of own heads");
    tally_judge_as(card->whole, machine_name, "the whole way");
}

static void results_are_within_their_bounds(void)
{
    static const int64_t lengths[] = {0, 1, 2, 3, 7, 16, 33, 50};
    machines all = machines_make(2);
    score_card cards[MOST_MACHINES] = {0};
    for (int i = 0; i < rng_cases(60, 1500); i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)i);
        setup s;
        setup_make(&s, &r, some_desc(&r), rng_between(&r, 0, 3), RNG_PICK(&r, lengths),
                   RNG_PICK(&r, lengths));
        for (int m = 0; m < all.count; m++) {
            const machine *here = &all.each[m];
            bool fused = here->isa != MHA_ISA_PORTABLE;
            mha_module *module = must_make(here->context, &s);
            results x;
            results_make(&x, &r, &s, rng_chance(&r, 0.5) ? 0 : LAYOUT_PAD | LAYOUT_NEGATIVE);
            must_forward(here->context, module, &s, here->path, &x);
            check_projection(&s, Q, &s.query.view, &x.q.view, fused, &cards[m].projections);
            check_projection(&s, K, &s.key.view, &x.k.view, fused, &cards[m].projections);
            check_projection(&s, V, &s.value.view, &x.v.view, fused, &cards[m].projections);
            check_attention(&s, here, &x, &cards[m]);
            check_average(&s, &x, &cards[m]);
            check_out(&r, &s, &x, &x.heads, NULL, fused, &cards[m].out);
            check_whole(&r, &s, here, &x, &cards[m]);
            mha_module_destroy(module);
            results_free(&x);
        }
        setup_free(&s);
    }
    for (int m = 0; m < all.count; m++) print_card(&cards[m], all.each[m].name);
}

/* ---- bits ----------------------------------------------------------------------------------- */

static void same_results(results *a, results *b, const char *what)
{
    guarded *x[RESULTS], *y[RESULTS];
    results_list(a, x);
    results_list(b, y);
    for (int i = 0; i < RESULTS; i++)
        if (!guarded_same_bits(&x[i]->view, &y[i]->view, false))
            fail_msg("%s: result %d differs", what, i);
}

/* The bits are the same for each output requested separately, for any number of threads, for one
 * separate sequence, and for self-attention with one tensor. */
static void threads_and_wishes_change_no_bit(void)
{
    machines one = machines_make(1), many = machines_make(3);
    for (int i = 0; i < rng_cases(25, 400); i++) {
        rng r = rng_make(rng_run_seed(), 10000 + (uint64_t)i);
        setup s;
        setup_make(&s, &r, some_desc(&r), rng_between(&r, 1, 3), rng_between(&r, 1, 40),
                   rng_between(&r, 1, 40));
        for (int m = 0; m < one.count; m++) {
            mha_module *module = must_make(one.each[m].context, &s);
            results x, y;
            results_make(&x, &r, &s, 0);
            results_make(&y, &r, &s, LAYOUT_PAD);
            must_forward(one.each[m].context, module, &s, one.each[m].path, &x);
            must_forward(many.each[m].context, module, &s, one.each[m].path, &y);
            same_results(&x, &y, "3 threads");
            mha_module_outputs wanted = y.wanted;
            for (int only = 0; only < RESULTS; only++) {
                const mha_tensor *keep[] = {NULL,
                                            wanted.probabilities,
                                            wanted.average_probabilities,
                                            wanted.q,
                                            wanted.k,
                                            wanted.v,
                                            wanted.heads,
                                            wanted.lse};
                y.wanted = (mha_module_outputs){.struct_size = sizeof y.wanted};
                if (only == 1) y.wanted.probabilities = keep[1];
                if (only == 2) y.wanted.average_probabilities = keep[2];
                if (only == 3) y.wanted.q = keep[3];
                if (only == 4) y.wanted.k = keep[4];
                if (only == 5) y.wanted.v = keep[5];
                if (only == 6) y.wanted.heads = keep[6];
                if (only == 7) y.wanted.lse = keep[7];
                guarded *all[RESULTS], *other[RESULTS];
                results_list(&y, all);
                results_list(&x, other);
                for (int j = 0; j < RESULTS; j++) guarded_clear(all[j]);
                must_forward(one.each[m].context, module, &s, one.each[m].path, &y);
                assert_true(guarded_same_bits(&x.out.view, &y.out.view, false));
                assert_true(guarded_same_bits(&other[only]->view, &all[only]->view, false));
            }
            mha_module_destroy(module);
            results_free(&x);
            results_free(&y);
        }
        setup_free(&s);
    }
}

/* in_proj_weight and in_proj_bias are the three projections, concatenated. */
static void joined_parameters(void)
{
    rng r = rng_make(rng_run_seed(), 20000);
    mha_context *context = machines_context(1, 0);
    enum { E = 24 };
    mha_module_desc desc = {.struct_size = sizeof desc, .embed_dim = E, .num_heads = 3};
    desc.kv_heads = 3, desc.head_dim = desc.value_head_dim = 8, desc.key_dim = desc.value_dim = E;
    setup s;
    setup_make(&s, &r, desc, 2, 5, 6);
    guarded weight = guarded_make(&r, MHA_F32, 2, (int64_t[]){3 * E, E}, LAYOUT_PAD);
    guarded bias = guarded_make(&r, MHA_F32, 1, (int64_t[]){3 * E}, LAYOUT_PAD | LAYOUT_LAST);
    for (int64_t n = 0; n < 3 * E; n++) {
        int64_t row = n % E;
        *(float *)guarded_element(&bias.view, &n) =
            *(float *)guarded_element(&s.bias[n / E].view, &row);
        for (int64_t k = 0; k < E; k++)
            *(float *)guarded_element(&weight.view, (int64_t[]){n, k}) =
                *(float *)guarded_element(&s.weight[n / E].view, (int64_t[]){row, k});
    }
    mha_module *apart = must_make(context, &s), *joined = must_make(context, &s);
    mha_module *underscores = must_make(context, &s);
    guarded_fill(&r, &s.query.view, 1);
    expect_ok(mha_module_set_parameter(joined, "in_proj_weight", &weight.view));
    expect_ok(mha_module_set_parameter(joined, "in_proj_bias", &bias.view));
    static const char *const names[] = {"q_proj_weight", "k_proj_weight", "v_proj_weight"};
    for (int i = 0; i < 3; i++)
        expect_ok(mha_module_set_parameter(underscores, names[i], &s.weight[i].view));
    results x, y, z;
    results_make(&x, &r, &s, 0);
    results_make(&y, &r, &s, 0);
    results_make(&z, &r, &s, 0);
    must_forward(context, apart, &s, MHA_PATH_AUTO, &x);
    must_forward(context, joined, &s, MHA_PATH_AUTO, &y);
    must_forward(context, underscores, &s, MHA_PATH_AUTO, &z);
    same_results(&x, &y, "in_proj");
    same_results(&x, &z, "q_proj_weight");
    results_free(&x);
    results_free(&y);
    results_free(&z);
    mha_module_destroy(apart);
    mha_module_destroy(joined);
    mha_module_destroy(underscores);
    guarded_free(&weight);
    guarded_free(&bias);
    setup_free(&s);
}

/* ---- errors --------------------------------------------------------------------------------- */

static void create_errors(void)
{
    mha_context *context = machines_context(1, 0);
    mha_module_desc d = {.struct_size = sizeof d, .embed_dim = 12, .num_heads = 3};
    mha_module *module = NULL;
#define ROW(...) expect_spoiled(d, mha_module_create(context, &d, &module), __VA_ARGS__)
    expect_error(mha_module_create(NULL, &d, &module), MHA_ERR_NULL, "context");
    expect_error(mha_module_create(context, NULL, &module), MHA_ERR_NULL, "desc");
    expect_error(mha_module_create(context, &d, NULL), MHA_ERR_NULL, "module");
    ROW(MHA_ERR_ARGUMENT, "struct_size", d.struct_size = 0);
    ROW(MHA_ERR_UNSUPPORTED, "flags", d.flags = 1 << 30);
    ROW(MHA_ERR_ARGUMENT, "embed_dim", d.embed_dim = 0);
    ROW(MHA_ERR_ARGUMENT, "num_heads", d.num_heads = -1);
    ROW(MHA_ERR_SHAPE, "embed_dim 13", d.embed_dim = 13);
    ROW(MHA_ERR_SHAPE, "kv_heads", d.kv_heads = 2);
    ROW(MHA_ERR_ARGUMENT, "kv_heads", d.kv_heads = -3);
    ROW(MHA_ERR_ARGUMENT, "head_dim", d.head_dim = -1);
    ROW(MHA_ERR_ARGUMENT, "value_head_dim", d.value_head_dim = INT64_MAX);
    ROW(MHA_ERR_ARGUMENT, "key_dim", d.key_dim = -2);
    ROW(MHA_ERR_ARGUMENT, "value_dim", d.value_dim = (int64_t)1 << 40);
    struct {
        mha_module_desc desc;
        unsigned char more[8];
    } newer = {.desc = d};
    newer.desc.struct_size = sizeof newer;
    newer.more[7] = 1;
    expect_error(mha_module_create(context, &newer.desc, &module), MHA_ERR_UNSUPPORTED,
                 "mha_module_desc");
    assert_null(module);
    newer.more[7] = 0;
    expect_ok(mha_module_create(context, &newer.desc, &module));
    mha_module_describe(module, &d);
    assert_int_equal(d.struct_size, sizeof d);
    assert_int_equal(d.head_dim, 4);
    assert_int_equal(d.value_head_dim, 4);
    assert_int_equal(d.kv_heads, 3);
    assert_int_equal(d.key_dim, 12);
    assert_int_equal(d.value_dim, 12);
#undef ROW
    mha_module_destroy(module);
    mha_module_destroy(NULL);
}

static void parameter_errors(void)
{
    rng r = rng_make(rng_run_seed(), 30000);
    mha_module_desc d = {.struct_size = sizeof d, .embed_dim = 12, .num_heads = 3, .kv_heads = 1};
    d.flags = MHA_MODULE_NO_QKV_BIAS;
    mha_module *module;
    expect_ok(mha_module_create(machines_context(1, 0), &d, &module));
    guarded w = guarded_filled(&r, 2, (int64_t[]){12, 12}, 0, 1),
            b = guarded_filled(&r, 1, (int64_t[]){12}, 0, 1);
    mha_tensor x = w.view;
#define SET(name, tensor) mha_module_set_parameter(module, name, tensor)
#define ROW(...) expect_spoiled(x, SET("q_proj.weight", &x), __VA_ARGS__)
    expect_error(mha_module_set_parameter(NULL, "q_proj.weight", &x), MHA_ERR_NULL, "module");
    expect_error(SET(NULL, &x), MHA_ERR_NULL, "name");
    expect_error(SET("q_proj.weight", NULL), MHA_ERR_NULL, "q_proj.weight");
    expect_error(SET("q_proj.wait", &x), MHA_ERR_ARGUMENT, "q_proj.wait");
    expect_error(SET("q_proj.bias", &b.view), MHA_ERR_ARGUMENT, "q_proj.bias");
    expect_error(SET("in_proj_weight", &x), MHA_ERR_SHAPE, "in_proj_weight");
    expect_error(SET("k_proj.weight", &x), MHA_ERR_SHAPE, "k_proj.weight");
    expect_error(SET("out_proj.weight", &b.view), MHA_ERR_SHAPE, "out_proj.weight");
    ROW(MHA_ERR_DTYPE, "q_proj.weight", x.dtype = MHA_F64);
    ROW(MHA_ERR_NULL, "q_proj.weight", x.data = NULL);
    ROW(MHA_ERR_SIZE, "q_proj.weight", x.stride[0] = INT64_MAX / 3);
#undef ROW
#undef SET
    mha_module_destroy(module);
    guarded_free(&w);
    guarded_free(&b);
}

/* The arguments of a forward call; each case makes one invalid. */
typedef struct call {
    mha_context *context;
    const mha_module *module;
    mha_attention_desc desc;
    mha_tensor query, key, value, out, keep, bias;
    const mha_tensor *query_at, *key_at, *value_at, *out_at;
    mha_tensor each[RESULTS];
    mha_module_outputs wanted;
    int64_t lengths[2];
} call;

enum { OUT, PROB, AVERAGE, Q_OUT, K_OUT, V_OUT, HEADS, LSE };

#define ROWS                                                                            \
    MISUSE(MHA_ERR_NULL, "context", c->context = NULL);                                 \
    MISUSE(MHA_ERR_NULL, "module", c->module = NULL);                                   \
    MISUSE(MHA_ERR_NULL, "query", c->query_at = NULL);                                  \
    MISUSE(MHA_ERR_NULL, "key", c->key_at = NULL);                                      \
    MISUSE(MHA_ERR_NULL, "value", c->value_at = NULL);                                  \
    MISUSE(MHA_ERR_NULL, "out", c->out_at = c->wanted.heads = NULL);                    \
    MISUSE(MHA_ERR_SHAPE, "query", c->query.shape[2]++);                                \
    MISUSE(MHA_ERR_SHAPE, "key", c->key.shape[2]--);                                    \
    MISUSE(MHA_ERR_SHAPE, "value", c->value.shape[2]--);                                \
    MISUSE(MHA_ERR_SHAPE, "key", c->key.shape[0] = 1);                                  \
    MISUSE(MHA_ERR_SHAPE, "value", c->value.shape[0] = 1);                              \
    MISUSE(MHA_ERR_SHAPE, "key has length 6, value has length 5", c->value.shape[1]--); \
    MISUSE(MHA_ERR_DTYPE, "query", c->query.dtype = MHA_I8);                            \
    MISUSE(MHA_ERR_SHAPE, "key", c->key.ndim = 2);                                      \
    MISUSE(MHA_ERR_STRIDE, "query", c->query.stride[2] = 2);                            \
    MISUSE(MHA_ERR_SHAPE, "out", c->out.shape[1]--);                                    \
    MISUSE(MHA_ERR_STRIDE, "out", c->out.stride[0] = 0);                                \
    MISUSE(MHA_ERR_OVERLAP, "out overlaps query", c->out.data = c->query.data);         \
    MISUSE(MHA_ERR_SHAPE, "probabilities", c->each[PROB].shape[3]++);                   \
    MISUSE(MHA_ERR_SHAPE, "average_probabilities", c->each[AVERAGE].ndim = 4);          \
    MISUSE(MHA_ERR_DTYPE, "q", c->each[Q_OUT].dtype = MHA_F16);                         \
    MISUSE(MHA_ERR_SHAPE, "k", c->each[K_OUT].shape[1] = 4);                            \
    MISUSE(MHA_ERR_NULL, "v", c->each[V_OUT].data = NULL);                              \
    MISUSE(MHA_ERR_STRIDE, "heads", c->each[HEADS].stride[3] = 3);                      \
    MISUSE(MHA_ERR_STRIDE, "lse", c->each[LSE].stride[1] = 0);                          \
    MISUSE(MHA_ERR_OVERLAP, "heads overlaps out", c->each[HEADS].data = c->out.data);   \
    MISUSE(MHA_ERR_OVERLAP, "lse overlaps key", c->each[LSE].data = c->key.data);       \
    MISUSE(MHA_ERR_OVERLAP, "bias", c->bias.data = c->out.data);                        \
    MISUSE(MHA_ERR_OVERLAP, "keep_mask", c->keep.data = c->each[PROB].data);            \
    MISUSE(MHA_ERR_SHAPE, "keep_mask", c->keep.ndim = 100000);                          \
    MISUSE(MHA_ERR_SHAPE, "bias", c->bias.ndim = -3);                                   \
    MISUSE(MHA_ERR_SHAPE, "bias", c->bias.shape[3]--);                                  \
    MISUSE(MHA_ERR_ARGUMENT, "key_lengths[1]", c->lengths[1] = 99);                     \
    MISUSE(MHA_ERR_ARGUMENT, "mha_attention_desc", c->desc.struct_size = 0);            \
    MISUSE(MHA_ERR_ARGUMENT, "path", c->desc.path = (mha_path)-1);                      \
    MISUSE(MHA_ERR_ARGUMENT, "mha_module_outputs", c->wanted.struct_size = 3);          \
    MISUSE(MHA_ERR_UNSUPPORTED, "reserved", c->wanted.reserved = 5);
DEFINE_SPOIL(call *c, spoil, ROWS)

static void call_make(call *c, mha_context *context, const mha_module *module, setup *s, results *x,
                      const guarded *keep, const guarded *bias)
{
    *c = (call){.context = context, .module = module, .query = s->query.view};
    c->key = s->key.view, c->value = s->value.view, c->out = x->out.view;
    c->query_at = &c->query, c->key_at = &c->key, c->value_at = &c->value, c->out_at = &c->out;
    c->keep = keep->view, c->bias = bias->view;
    c->lengths[0] = c->lengths[1] = s->S;
    c->desc = (mha_attention_desc){.struct_size = sizeof c->desc,
                                   .key_lengths = c->lengths,
                                   .keep_mask = &c->keep,
                                   .bias = &c->bias};
    guarded *all[RESULTS];
    results_list(x, all);
    for (int i = 0; i < RESULTS; i++) c->each[i] = all[i]->view;
    c->wanted = (mha_module_outputs){.struct_size = sizeof c->wanted,
                                     .probabilities = &c->each[PROB],
                                     .average_probabilities = &c->each[AVERAGE],
                                     .q = &c->each[Q_OUT],
                                     .k = &c->each[K_OUT],
                                     .v = &c->each[V_OUT],
                                     .heads = &c->each[HEADS],
                                     .lse = &c->each[LSE]};
}

static mha_status call_run(const call *c)
{
    return mha_module_run(
        c->context, c->module,
        MODULE_CALL(&c->desc, c->query_at, c->key_at, c->value_at, c->out_at, &c->wanted));
}

static void forward_errors(void)
{
    rng r = rng_make(rng_run_seed(), 40000);
    mha_context *context = machines_context(1, 0);
    mha_module_desc d = {.struct_size = sizeof d, .embed_dim = 12, .num_heads = 4, .kv_heads = 2};
    d.head_dim = d.value_head_dim = 3, d.key_dim = 10, d.value_dim = 9;
    setup s;
    setup_make(&s, &r, d, 2, 5, 6);
    guarded keep = guarded_make(&r, MHA_U8, 4, (int64_t[]){2, 4, 5, 6}, 0);
    guarded bias = guarded_filled(&r, 4, (int64_t[]){2, 4, 5, 6}, 0, 1);
    mha_module *module = must_make(context, &s);
    results x;
    call c;
    guarded *outputs[RESULTS];
    results_make(&x, &r, &s, LAYOUT_PAD);
    results_list(&x, outputs);
    call_make(&c, context, module, &s, &x, &keep, &bias);
    expect_ok(call_run(&c));
    for (int j = 0; j < RESULTS; j++) guarded_snapshot(outputs[j]);
    for (size_t i = 0, rows = spoil(NULL, SIZE_MAX).rows; i < rows; i++) {
        call_make(&c, context, module, &s, &x, &keep, &bias);
        const expected_refusal wrong = spoil(&c, i);
        expect_row(i, call_run(&c), wrong.status, wrong.part);
        for (int j = 0; j < RESULTS; j++)
            if (!guarded_unchanged(outputs[j])) fail_msg("case %zu changed output %d", i, j);
    }
    mha_module_destroy(module);
    results_free(&x);
    guarded_free(&keep);
    guarded_free(&bias);
    setup_free(&s);
}

/* Keys that repeat one row 2^62 times take no memory, but their projections would. */
static void huge_broadcast(void)
{
    mha_context *context = machines_context(1, 0);
    mha_module_desc d = {.struct_size = sizeof d, .embed_dim = 4, .num_heads = 2};
    mha_module *module;
    float x[4] = {1, 2, 3, 4}, y[16];
    expect_ok(mha_module_create(context, &d, &module));
    mha_tensor query = mha_tensor_contiguous(x, MHA_F32, 3, (int64_t[]){4, 1, 4}), key = query;
    query.stride[0] = key.stride[0] = key.stride[1] = 0;
    mha_tensor out = mha_tensor_contiguous(y, MHA_F32, 3, (int64_t[]){4, 1, 4});
    for (int bits = 58; bits <= 62; bits++) {
        key.shape[1] = (int64_t)1 << bits;
        expect_error(
            mha_module_run(context, module, MODULE_CALL(NULL, &query, &key, &key, &out, NULL)),
            MHA_ERR_SIZE, "");
    }
    mha_module_destroy(module);
}

/* ---- memory and threads --------------------------------------------------------------------- */

/* Makes all calls from context to forward while allocation n fails. Returns whether no call
 * failed. */
static bool survives(rng *r, const setup *s, mha_path path, int64_t n, bool and_later)
{
    failing_alloc memory = failing_alloc_make();
    memory.fail_at = n;
    memory.fail_after = and_later;
    mha_context *context = NULL;
    mha_module *module = NULL;
    results x;
    guarded *all[RESULTS];
    results_make(&x, r, s, LAYOUT_PAD);
    results_list(&x, all);
    x.wanted.probabilities = NULL; /* so that the average needs scratch */
    for (int i = 0; i < RESULTS; i++) guarded_snapshot(all[i]);
    mha_status status = failing_context(&memory, 2, MHA_ISA_AUTO, &context);
    if (status == MHA_OK) status = mha_module_create(context, &s->desc, &module);
    if (status == MHA_OK) status = set_all(module, s);
    if (status == MHA_OK) status = forward(context, module, s, path, &x);
    if (status != MHA_OK) {
        assert_int_equal(status, MHA_ERR_NOMEM);
        assert_true(*mha_error_detail() != '\0');
        for (int i = 0; i < RESULTS; i++) assert_true(guarded_unchanged(all[i]));
    }
    bool failed = memory.calls > n;
    if (!failed) { /* the second call allocates nothing */
        int64_t calls = memory.calls;
        expect_ok(forward(context, module, s, path, &x));
        expect_ok(forward(context, module, s, path, &x));
        assert_int_equal(memory.calls, calls);
    }
    mha_module_destroy(module);
    mha_context_destroy(context);
    assert_int_equal(memory.live, 0);
    assert_int_equal(memory.mistakes, 0);
    results_free(&x);
    return !failed && status == MHA_OK;
}

static void failed_allocations_are_reported(void)
{
    rng r = rng_make(rng_run_seed(), 50000);
    mha_module_desc d = {.struct_size = sizeof d, .embed_dim = 64, .num_heads = 8, .kv_heads = 4};
    d.head_dim = d.value_head_dim = 8, d.key_dim = d.value_dim = 64;
    setup s;
    setup_make(&s, &r, d, 2, 40, 50);
    for (int path = MHA_PATH_TILED; path <= MHA_PATH_PLAIN; path++)
        for (int later = 0; later < 2; later++) {
            int64_t n = 0;
            while (!survives(&r, &s, (mha_path)path, n, later)) n++;
            printf("  path %d: %lld allocations, each one refused%s\n", path, (long long)n,
                   later ? " with all later ones" : "");
            assert_true(n >= 12); /* context, pool, module, 4 x (layer, weight, bias), scratch */
        }
    setup_free(&s);
}

typedef struct host {
    const mha_module *module;
    const setup *s;
    results x;
    mha_status status;
} host;

static void *host_thread(void *argument)
{
    host *h = argument;
    const mha_context_desc desc = {.struct_size = sizeof desc, .num_threads = 2};
    mha_context *context;
    h->status = mha_context_create(&desc, &context);
    for (int i = 0; i < 5 && h->status == MHA_OK; i++)
        h->status = forward(context, h->module, h->s, MHA_PATH_AUTO, &h->x);
    if (h->status == MHA_OK) mha_context_destroy(context);
    return NULL;
}

/* One module in several threads, each with its own context. */
static void shared_module(void)
{
    enum { HOSTS = 3 };
    rng r = rng_make(rng_run_seed(), 60000);
    setup s;
    setup_make(&s, &r, some_desc(&r), 2, 30, 30);
    mha_module *module = must_make(machines_context(1, 0), &s);
    host hosts[HOSTS];
    pthread_t threads[HOSTS];
    for (int i = 0; i < HOSTS; i++) {
        hosts[i] = (host){.module = module, .s = &s};
        results_make(&hosts[i].x, &r, &s, 0);
        assert_int_equal(pthread_create(&threads[i], NULL, host_thread, &hosts[i]), 0);
    }
    for (int i = 0; i < HOSTS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < HOSTS; i++) {
        expect_ok(hosts[i].status);
        same_results(&hosts[0].x, &hosts[i].x, "a thread of its own");
    }
    for (int i = 0; i < HOSTS; i++) results_free(&hosts[i].x);
    mha_module_destroy(module);
    setup_free(&s);
}

RUN_TESTS(TEST(results_are_within_their_bounds), TEST(threads_and_wishes_change_no_bit),
          TEST(joined_parameters), TEST(create_errors), TEST(parameter_errors),
          TEST(forward_errors), TEST(huge_broadcast), TEST(failed_allocations_are_reported),
          TEST(shared_module))
