/* Gradients of attention: every kind alone, in pairs and in random combinations, on every path and
 * instruction set. Results must be within their bounds (docs/numerics.md, "Attention backward") of
 * the double-precision reference. Also tested: bits, non-finite values, and errors.
 *
 * The default is a sample; MHA_TEST_LONG=1 tests 5,000 descriptors. MHA_TEST_CASE=n (with
 * MHA_TEST_SEED) runs only the n-th. */
#include "reference/backward_bounds.h"
#include "support/backward_call.h"
#include "support/failing_alloc.h"
#include "support/kinds.h"
#include "support/machines.h"
#include "support/suite.h"
#include "support/tally.h"

#include <multihead/backward.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLE = 100, ALL = 5000 };

/* ---- a call and its results ------------------------------------------------------------------ */

enum { OF_O, OF_LSE, OF_P, OF_MEAN, LOSSES };

/* The gradients of one call, except those that the problem does not have. */
typedef struct result {
    bool has[BACKWARD_COUNT];
    guarded of[BACKWARD_COUNT];
    mha_attention_gradients gradients;
} result;

typedef struct trial {
    int number;
    kinds_case c;
    ref_attention a;
    guarded given[LOSSES]; /* the loss's gradients of o, and of the outputs in has[] */
    bool has[LOSSES];
    backward_loss loss;
    bool accumulate;
    const machines *all;
    outcome forward[MOST_MACHINES];
    result got[MOST_MACHINES];
} trial;

static void fail_trial(const trial *x, int m, const char *what)
{
    fail_msg("%s: %s\n  %s\n  alone: MHA_TEST_SEED=%llu MHA_TEST_CASE=%d", x->all->each[m].name,
             what, x->c.text, (unsigned long long)rng_run_seed(), x->number);
}

static void point_at(result *r, unsigned wanted)
{
    const mha_tensor **to[BACKWARD_COUNT] = {&r->gradients.q,
                                             &r->gradients.k,
                                             &r->gradients.v,
                                             &r->gradients.bias,
                                             &r->gradients.alibi_slopes,
                                             &r->gradients.t5_table,
                                             &r->gradients.shaw_keys,
                                             &r->gradients.shaw_values,
                                             &r->gradients.sink_logits,
                                             &r->gradients.gates,
                                             &r->gradients.scale};
    for (int i = 0; i < BACKWARD_COUNT; i++)
        *to[i] = r->has[i] && (wanted & (1u << i)) ? &r->of[i].view : NULL;
}

/* Tensors for every gradient of the problem, in random layouts. */
static result result_make(rng *r, const ref_attention *a, bool plain_layout)
{
    result made = {.gradients = {.struct_size = sizeof made.gradients}};
    for (int i = 0; i < BACKWARD_COUNT; i++) {
        const mha_tensor *input = backward_input(a, i);
        made.has[i] = input || i == BACKWARD_SCALE;
        if (!made.has[i]) continue;
        unsigned layout = plain_layout ? LAYOUT_CONTIGUOUS : guarded_random_layout(r, false);
        if (i <= BACKWARD_V) layout &= ~(unsigned)LAYOUT_LAST;
        made.of[i] =
            guarded_make(r, MHA_F32, input ? input->ndim : 0, input ? input->shape : NULL, layout);
    }
    return made;
}

static void result_free(result *r)
{
    for (int i = 0; i < BACKWARD_COUNT; i++)
        if (r->has[i]) guarded_free(&r->of[i]);
}

static void give_loss(const trial *x, mha_attention_gradients *to)
{
    to->lse_gradient = x->loss.lse;
    to->probabilities_gradient = x->loss.probabilities;
    to->average_probabilities_gradient = x->loss.average;
    to->flags = (x->accumulate ? MHA_GRADIENTS_ACCUMULATE : 0u) |
                (x->loss.dropped ? MHA_GRADIENTS_DROPPED_PROBABILITIES : 0u);
}

/* Initial values for an accumulating call. */
static float before(int which)
{
    return (float)which * 0.75f - 2;
}

static void put_before(result *r)
{
    for (int i = 0; i < BACKWARD_COUNT; i++) {
        int64_t index[MHA_MAX_DIMS] = {0};
        if (!r->has[i] || guarded_is_empty(&r->of[i].view)) continue;
        do *(float *)guarded_element(&r->of[i].view, index) = before(i);
        while (guarded_next(&r->of[i].view, index));
    }
}

static mha_status run_backward(mha_context *context, const mha_attention_desc *given, mha_path path,
                               const ref_attention *a, const outcome *forward,
                               const mha_tensor *o_gradient,
                               const mha_attention_gradients *gradients)
{
    mha_attention_desc desc = *given;
    desc.path = path;
    return mha_attention_backward(context,
                                  BACKWARD_CALL(&desc, a->q, a->k, a->v, &forward->o.view,
                                                &forward->lse.view, o_gradient, gradients));
}

/* The loss depends on o, and on each of the others in a third of all trials. */
static void make_loss(trial *x, rng *r)
{
    const ref_attention *a = &x->a;
    const int64_t batch = a->q->shape[0], H = a->q->shape[1], rows = a->q->shape[2];
    int64_t longest = 0;
    for (int64_t b = 0; b < kinds_sequences(a); b++)
        if (kinds_sequence_at(a, b).S > longest) longest = kinds_sequence_at(a, b).S;
    const int64_t shapes[LOSSES][4] = {{batch, H, rows, a->v->shape[3]},
                                       {batch, H, rows},
                                       {batch, H, rows, longest},
                                       {batch, rows, longest}};
    const int dims[LOSSES] = {4, 3, 4, 3};
    const mha_tensor **to[LOSSES] = {&x->loss.o, &x->loss.lse, &x->loss.probabilities,
                                     &x->loss.average};
    for (int i = 0; i < LOSSES; i++) {
        x->has[i] = i == OF_O || rng_chance(r, 0.33);
        if (!x->has[i]) continue;
        unsigned layout = guarded_random_layout(r, true);
        if (i == OF_O) layout &= ~(unsigned)LAYOUT_LAST;
        x->given[i] = guarded_make(r, MHA_F32, dims[i], shapes[i], layout);
        guarded_fill(r, &x->given[i].view, 1);
        *to[i] = &x->given[i].view;
    }
    x->loss.dropped = rng_chance(r, 0.5);
}

static void make_trial(trial *x, rng *r, const kinds_shape *shape)
{
    kinds_make(&x->c, r, shape);
    x->a = kinds_reference(&x->c);
    make_loss(x, r);
    x->accumulate = rng_chance(r, 0.3);
}

static bool same_results(const result *a, const result *b, unsigned which, int *different)
{
    for (int i = 0; i < BACKWARD_COUNT; i++) {
        if (!a->has[i] || !(which & (1u << i))) continue;
        *different = i;
        if (!guarded_same_bits(&a->of[i].view, &b->of[i].view, false)) return false;
    }
    return true;
}

static void run_machines(trial *x, rng *r)
{
    for (int m = 0; m < x->all->count; m++) {
        const machine *each = &x->all->each[m];
        result *got = &x->got[m];
        x->forward[m] = kinds_outcome(&x->c, r, LAYOUT_CONTIGUOUS);
        if (kinds_run(each->context, &x->c, each->path, &x->forward[m]) != MHA_OK)
            fail_trial(x, m, mha_error_detail());
        *got = result_make(r, &x->a, x->c.shape.plain_layout);
        point_at(got, ~0u);
        give_loss(x, &got->gradients);
        if (x->accumulate) put_before(got);
        if (run_backward(each->context, &x->c.desc, each->path, &x->a, &x->forward[m], x->loss.o,
                         &got->gradients) != MHA_OK)
            fail_trial(x, m, mha_error_detail());
        for (int i = 0; i < BACKWARD_COUNT; i++)
            if (got->has[i] && !guarded_gaps_intact(&got->of[i]))
                fail_trial(x, m, "wrote between elements");
        int different;
        if (m > 0 && each->isa == MHA_ISA_AVX512 && x->all->each[m - 1].isa == MHA_ISA_AVX2 &&
            !same_results(got, &x->got[m - 1], ~0u, &different))
            fail_trial(x, m, "not the bits of avx2");
    }
}

/* ---- comparison with the reference ----------------------------------------------------------- */

typedef struct score_card {
    tally of[BACKWARD_COUNT];
} score_card;

static void compare_array(const trial *x, int m, int which, const double *exact,
                          const double *bound, tally *card)
{
    const mha_tensor *got = &x->got[m].of[which].view;
    int64_t index[MHA_MAX_DIMS] = {0};
    if (guarded_is_empty(got)) return;
    do {
        double value = (double)*(float *)guarded_element(got, index), wanted = *exact++;
        double limit = *bound++;
        if (x->accumulate) {
            wanted += (double)before(which);
            limit += 0x1p-23 * (fabs(wanted) + limit);
        }
        if (tally_compare(card, value, wanted, limit)) continue;
        char what[200];
        snprintf(what, sizeof what, "d%s[%lld,%lld,%lld,%lld] is %.9g, exact %.9g, bound %.3g",
                 backward_name(which), (long long)index[0], (long long)index[1],
                 (long long)index[2], (long long)index[3], value, wanted, limit);
        fail_trial(x, m, what);
    } while (guarded_next(got, index));
}

static void check_trial(const trial *x, score_card *cards)
{
    backward_arrays exact = backward_arrays_make(&x->a), bound = {0};
    backward_reference(&x->a, &x->loss, &exact);
    for (int m = 0; m < x->all->count; m++) {
        const machine *each = &x->all->each[m];
        bool again =
            m > 0 && each->isa == MHA_ISA_AVX512 && x->all->each[m - 1].isa == MHA_ISA_AVX2;
        bound_arith arith = bound_arith_of(&x->a, each->path, each->isa);
        if (!again) {
            backward_arrays_free(&bound);
            bound = backward_arrays_make(&x->a);
            backward_bounds(&x->a, &arith, &x->loss, &exact, &bound);
        }
        for (int i = 0; i < BACKWARD_COUNT; i++)
            if (exact.of[i]) compare_array(x, m, i, exact.of[i], bound.of[i], &cards[m].of[i]);
    }
    backward_arrays_free(&bound);
    backward_arrays_free(&exact);
}

static void free_trial(trial *x)
{
    for (int m = 0; m < x->all->count; m++) {
        outcome_free(&x->forward[m]);
        result_free(&x->got[m]);
    }
    for (int i = 0; i < LOSSES; i++)
        if (x->has[i]) guarded_free(&x->given[i]);
    kinds_free(&x->c);
}

/* Limit the reference's work to a few milliseconds without shortening long sequences. */
static void shrink(kinds_shape *n)
{
    const double most = 4e5;
    while ((double)(n->B * n->H * n->T * n->S * (n->D + n->Dv + 20)) > most) {
        if (n->D > 16)
            n->D /= 2;
        else if (n->Dv > 16)
            n->Dv /= 2;
        else if (n->B > 1)
            n->B--;
        else if (n->H > n->Hk)
            n->H -= n->Hk;
        else
            *(n->T < n->S ? &n->T : &n->S) /= 2;
    }
}

static void run_trial(int number, const kinds_shape *given, const machines *all, score_card *cards)
{
    rng r = rng_make(rng_run_seed(), (uint64_t)number);
    kinds_shape shape = kinds_some_shape(&r);
    if (given) {
        shape.kinds = given->kinds;
        if (given->S) shape.S = given->S;
        if (given->T) shape.T = given->T;
    }
    shrink(&shape);
    trial x = {.number = number, .all = all};
    make_trial(&x, &r, &shape);
    run_machines(&x, &r);
    check_trial(&x, cards);
    free_trial(&x);
}

/* whole: the sample is large enough that each bound must be approached. */
static void print_cards(const machines *all, score_card *cards, bool whole)
{
    for (int i = 0; i < all->count; i++)
        for (int j = 0; j < BACKWARD_COUNT; j++) {
            char name[64];
            snprintf(name, sizeof name, "%s, %s", all->each[i].name, backward_name(j));
            cards[i].of[j].name = name;
            tally_print(&cards[i].of[j]);
            if (whole) assert_true(tally_is_sharp(&cards[i].of[j]));
        }
}

static void random_company(void)
{
    machines all = machines_make(1);
    score_card cards[MOST_MACHINES] = {0};
    int i, end;
    const bool whole = rng_range(SAMPLE, ALL, &i, &end);
    for (; i < end; i++) run_trial(i, NULL, &all, cards);
    if (whole) print_cards(&all, cards, end >= SAMPLE);
}

/* Each kind alone, across boundaries of key blocks and query chunks, and each pair of kinds. */
static void alone_and_in_pairs(void)
{
    machines all = machines_make(1);
    score_card cards[MOST_MACHINES] = {0};
    int number = 1000000;
    for (int i = 0; i < KINDS_COUNT; i++)
        for (int j = i; j < KINDS_COUNT; j++, number++) {
            kinds_shape given = {.kinds = (1u << i) | (1u << j)};
            if (i != j && !rng_takes(number, 3)) continue;
            if (given.kinds & (KIND_SINK_KEYS | KIND_GLOBAL_KEYS | KIND_GLOBAL_QUERIES))
                given.kinds |= KIND_WINDOW;
            if (i == j) given.S = 300, given.T = 120;
            run_trial(number, &given, &all, cards);
        }
    print_cards(&all, cards, rng_whole_sample());
}

/* ---- bits ------------------------------------------------------------------------------------ */

/* Gradients with 1, 2 and 5 threads, and requested one by one, are bit-identical. */
static void bits_of_threads_and_wishes(void)
{
    machines one = machines_make(1), two = machines_make(2), five = machines_make(5);
    const machines *others[] = {&two, &five};
    int count = rng_cases(30, 2000);
    for (int i = 0; i < count; i++) {
        rng r = rng_make(rng_run_seed(), 2000000 + (uint64_t)i);
        kinds_shape shape = kinds_some_shape(&r);
        if (rng_chance(&r, 0.3)) shape.T = rng_between(&r, 100, 600), shape.B = 1;
        shrink(&shape);
        trial x = {.number = 2000000 + i, .all = &one};
        make_trial(&x, &r, &shape);
        run_machines(&x, &r);
        for (int m = 0; m < one.count; m++) {
            unsigned wanted = i % 2 ? 1u << rng_between(&r, 0, BACKWARD_COUNT - 1) : ~0u;
            const machine *each = &others[i % 3 == 0]->each[m];
            result again = result_make(&r, &x.a, false);
            point_at(&again, wanted);
            give_loss(&x, &again.gradients);
            if (x.accumulate) put_before(&again);
            if (run_backward(each->context, &x.c.desc, each->path, &x.a, &x.forward[m], x.loss.o,
                             &again.gradients) != MHA_OK)
                fail_trial(&x, m, mha_error_detail());
            int different;
            if (!same_results(&x.got[m], &again, wanted, &different))
                fail_trial(&x, m, backward_name(different));
            result_free(&again);
        }
        free_trial(&x);
    }
}

RUN_TESTS(TEST(alone_and_in_pairs), TEST(random_company), TEST(bits_of_threads_and_wishes))
