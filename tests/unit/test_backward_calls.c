/* mha_attention_backward() apart from its results: non-finite values, padding and batches, errors,
 * plans, allocation failures. */
#include "reference/half_reference.h"
#include "reference/kinds_reference.h"
#include "support/backward_call.h"
#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/kinds.h"
#include "support/machines.h"
#include "support/shared_context.h"
#include "support/suite.h"

#include <multihead/backward.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a call in contiguous memory ------------------------------------------------------------- */

enum { QUERIES = 0, KEYS = 1, VALUES = 2, SCALE = 3, GRADIENTS = 4 };

typedef struct call {
    mha_attention_desc desc;
    mha_tensor q, k, v, o, lse, o_gradient, of[GRADIENTS];
    mha_attention_gradients gradients;
} call;

static mha_tensor tensor(int ndim, const int64_t *shape)
{
    int64_t count = 1;
    for (int i = 0; i < ndim; i++) count *= shape[i];
    float *memory = calloc((size_t)count + 1, sizeof *memory);
    assert_non_null(memory);
    return mha_tensor_contiguous(memory, MHA_F32, ndim, shape);
}

static int64_t elements_of(const mha_tensor *x)
{
    int64_t count;
    expect_ok(mha_tensor_count(x, &count));
    return count;
}

static void randomize(rng *r, const mha_tensor *x)
{
    for (int64_t i = 0; i < elements_of(x); i++) ((float *)x->data)[i] = rng_normal(r);
}

/* Set everything except the three inputs, which the caller sets. */
static void complete(call *c, rng *r)
{
    const int64_t o[4] = {c->q.shape[0], c->q.shape[1], c->q.shape[2], c->v.shape[3]};
    c->o = tensor(4, o);
    c->lse = tensor(3, o);
    c->o_gradient = tensor(4, o);
    if (r) randomize(r, &c->o_gradient);
    c->of[QUERIES] = tensor(4, c->q.shape);
    c->of[KEYS] = tensor(4, c->k.shape);
    c->of[VALUES] = tensor(4, c->v.shape);
    c->of[SCALE] = tensor(0, NULL);
    c->gradients.struct_size = sizeof c->gradients;
    c->gradients.q = &c->of[QUERIES];
    c->gradients.k = &c->of[KEYS];
    c->gradients.v = &c->of[VALUES];
    c->desc.struct_size = sizeof c->desc;
}

static void free_results(call *c)
{
    free(c->o.data);
    free(c->lse.data);
    free(c->o_gradient.data);
    for (int i = 0; i < GRADIENTS; i++) free(c->of[i].data);
}

static mha_status backward(mha_context *context, call *c)
{
    return mha_attention_backward(context, BACKWARD_CALL(&c->desc, &c->q, &c->k, &c->v, &c->o,
                                                         &c->lse, &c->o_gradient, &c->gradients));
}

static void run(mha_context *context, mha_path path, call *c)
{
    const mha_attention_outputs outputs = {.struct_size = sizeof outputs, .lse = &c->lse};
    c->desc.path = path;
    if (mha_attention_forward(context, &c->desc, &c->q, &c->k, &c->v, &c->o, &outputs) != MHA_OK ||
        backward(context, c) != MHA_OK)
        fail_msg("%s", mha_error_detail());
}

static float *row(const mha_tensor *x, int64_t b, int64_t h, int64_t t)
{
    return (float *)x->data + b * x->stride[0] + h * x->stride[1] + t * x->stride[2];
}

/* ---- non-finite values ----------------------------------------------------------------------- */

static bool finite_row(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return false;
    return true;
}

static void spoil(rng *r, const mha_tensor *x, double often)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    int64_t last = x->shape[x->ndim - 1], rows = last > 0 ? elements_of(x) / last : 0;
    for (int64_t i = 0; i < rows; i++)
        if (rng_chance(r, often))
            ((float *)x->data)[i * last + rng_between(r, 0, last - 1)] = RNG_PICK(r, bad);
}

static mha_tensor copy_of(const mha_tensor *x)
{
    mha_tensor made = tensor(x->ndim, x->shape);
    memcpy(made.data, x->data, (size_t)elements_of(x) * sizeof(float));
    return made;
}

typedef struct poisoned {
    kinds_case c;
    ref_attention a;
    call clean, bad;
    const char *machine;
} poisoned;

static bool row_is_bad(const poisoned *x, int64_t b, int64_t h, int64_t t, bool *sees)
{
    kinds_sequence at = kinds_sequence_at(&x->a, b);
    int64_t hk = h / (x->c.shape.H / x->c.shape.Hk);
    bool bad = !finite_row(row(&x->bad.q, at.batch, h, at.q0 + t), x->c.shape.D) ||
               !finite_row(row(&x->bad.o_gradient, at.batch, h, at.q0 + t), x->c.shape.Dv);
    *sees = false;
    for (int64_t s = 0; s < at.S; s++) {
        if (!kinds_sees(&x->a, b, h, t, s)) continue;
        *sees = true;
        bad |= !finite_row(row(&x->bad.k, at.batch, hk, at.k0 + s), x->c.shape.D) ||
               !finite_row(row(&x->bad.v, at.batch, hk, at.k0 + s), x->c.shape.Dv);
    }
    return bad;
}

/* Check that a row is NaN if spoiled, and otherwise bit-identical to the clean call. */
static void check_row(const poisoned *x, int which, int64_t b, int64_t h, int64_t t, bool spoiled)
{
    const float *got = row(&x->bad.of[which], b, h, t), *clean = row(&x->clean.of[which], b, h, t);
    for (int64_t d = 0; d < x->bad.of[which].shape[3]; d++)
        if (spoiled ? !isnan(got[d]) : memcmp(&got[d], &clean[d], sizeof *got) != 0)
            fail_msg("%s: gradient %d [%lld,%lld,%lld,%lld] is %g, %s%g\n  %s seed %llu",
                     x->machine, which, (long long)b, (long long)h, (long long)t, (long long)d,
                     (double)got[d], spoiled ? "expected NaN, not " : "without poison ",
                     (double)clean[d], x->c.text, (unsigned long long)rng_run_seed());
}

static void check_poison(const poisoned *x)
{
    const kinds_shape *n = &x->c.shape;
    int64_t stored = x->bad.k.shape[2];
    bool *key = calloc((size_t)(x->bad.k.shape[0] * n->Hk * stored) + 1, sizeof *key);
    bool any = false;
    for (int64_t b = 0; b < kinds_sequences(&x->a); b++) {
        kinds_sequence at = kinds_sequence_at(&x->a, b);
        for (int64_t h = 0; h < n->H; h++)
            for (int64_t t = 0; t < at.T; t++) {
                bool sees, bad = row_is_bad(x, b, h, t, &sees);
                int64_t hk = h / (n->H / n->Hk);
                check_row(x, QUERIES, at.batch, h, at.q0 + t, bad && sees);
                any |= bad && sees;
                for (int64_t s = 0; bad && s < at.S; s++)
                    key[(at.batch * n->Hk + hk) * stored + at.k0 + s] |=
                        kinds_sees(&x->a, b, h, t, s);
            }
    }
    for (int64_t b = 0; b < x->bad.k.shape[0]; b++)
        for (int64_t h = 0; h < n->Hk; h++)
            for (int64_t s = 0; s < stored; s++)
                for (int which = KEYS; which <= VALUES; which++)
                    check_row(x, which, b, h, s, key[(b * n->Hk + h) * stored + s]);
    float scale = *(float *)x->bad.of[SCALE].data, clean = *(float *)x->clean.of[SCALE].data;
    assert_true(any ? isnan(scale) : memcmp(&scale, &clean, sizeof scale) == 0);
    free(key);
}

static void run_poisoned(poisoned *x, rng *r, const machine *m)
{
    x->clean = (call){.desc = x->c.desc, .q = x->c.q.view, .k = x->c.k.view, .v = x->c.v.view};
    complete(&x->clean, r);
    x->bad = x->clean;
    x->bad.q = copy_of(&x->clean.q);
    x->bad.k = copy_of(&x->clean.k);
    x->bad.v = copy_of(&x->clean.v);
    complete(&x->bad, NULL);
    memcpy(x->bad.o_gradient.data, x->clean.o_gradient.data,
           (size_t)elements_of(&x->clean.o) * sizeof(float));
    spoil(r, &x->bad.q, 0.03);
    spoil(r, &x->bad.k, 0.03);
    spoil(r, &x->bad.v, 0.03);
    spoil(r, &x->bad.o_gradient, 0.03);
    x->clean.gradients.scale = &x->clean.of[SCALE];
    x->bad.gradients.scale = &x->bad.of[SCALE];
    x->machine = m->name;
    run(m->context, m->path, &x->clean);
    run(m->context, m->path, &x->bad);
    check_poison(x);
    free(x->bad.q.data);
    free(x->bad.k.data);
    free(x->bad.v.data);
    free_results(&x->clean);
    free_results(&x->bad);
}

static void poison_stays(void)
{
    machines all = machines_make(2);
    int count = rng_cases(60, 3000);
    for (int i = 0; i < count; i++)
        for (int m = 0; m < all.count; m++) {
            rng r = rng_make(rng_run_seed(), 3000000 + (uint64_t)i);
            kinds_shape shape = kinds_some_shape(&r);
            shape.plain_layout = true;
            if (shape.D > 64) shape.D = 64;
            if (shape.T > 60) shape.T = 60;
            poisoned x = {0};
            kinds_make(&x.c, &r, &shape);
            x.a = kinds_reference(&x.c);
            run_poisoned(&x, &r, &all.each[m]);
            kinds_free(&x.c);
        }
}

/* A query without keys gives a sink no gradient, whatever dO is. */
static void query_without_keys(void)
{
    machines all = machines_make(1);
    for (int m = 0; m < all.count; m++) {
        rng r = rng_make(1, 2);
        uint8_t keep[2] = {0, 1};
        float sink = 0.5f, found[2];
        const mha_tensor mask = mha_tensor_contiguous(keep, MHA_U8, 2, (int64_t[]){2, 1});
        const mha_tensor sinks = mha_tensor_contiguous(&sink, MHA_F32, 1, (int64_t[]){1});
        call c = {.q = tensor(4, (int64_t[]){1, 1, 2, 3}),
                  .k = tensor(4, (int64_t[]){1, 1, 4, 3}),
                  .v = tensor(4, (int64_t[]){1, 1, 4, 2})};
        complete(&c, &r);
        randomize(&r, &c.q);
        randomize(&r, &c.k);
        randomize(&r, &c.v);
        c.desc.keep_mask = &mask;
        c.desc.sink_logits = &sinks;
        for (int spoiled = 0; spoiled < 2; spoiled++) {
            const mha_tensor out =
                mha_tensor_contiguous(&found[spoiled], MHA_F32, 1, (int64_t[]){1});
            c.gradients.sink_logits = &out;
            if (spoiled) *(float *)c.o_gradient.data = *(float *)c.q.data = NAN;
            run(all.each[m].context, all.each[m].path, &c);
        }
        assert_true(found[0] == found[1] && found[0] != 0);
        free(c.q.data);
        free(c.k.data);
        free(c.v.data);
        free_results(&c);
    }
}

/* A product with a hidden value may overflow without an effect. */
static void huge_where_hidden(void)
{
    machines all = machines_make(1);
    for (int m = 0; m < all.count; m++) {
        rng r = rng_make(1, 4);
        uint8_t keep[3] = {1, 0, 1};
        const mha_tensor mask = mha_tensor_contiguous(keep, MHA_U8, 1, (int64_t[]){3});
        call c = {.q = tensor(4, (int64_t[]){1, 1, 2, 3}),
                  .k = tensor(4, (int64_t[]){1, 1, 3, 3}),
                  .v = tensor(4, (int64_t[]){1, 1, 3, 2})};
        complete(&c, &r);
        randomize(&r, &c.q);
        randomize(&r, &c.k);
        randomize(&r, &c.v);
        c.desc.keep_mask = &mask;
        for (int i = 0; i < 4; i++) ((float *)c.o_gradient.data)[i] = 10;
        for (int i = 0; i < 2; i++) row(&c.v, 0, 0, 1)[i] = 3e38f;
        for (int i = 0; i < 3; i++) row(&c.k, 0, 0, 1)[i] = 3e38f;
        run(all.each[m].context, all.each[m].path, &c);
        for (int i = QUERIES; i <= VALUES; i++)
            assert_true(finite_row(c.of[i].data, elements_of(&c.of[i])));
        free(c.q.data);
        free(c.k.data);
        free(c.v.data);
        free_results(&c);
    }
}

/* Scores of 1e11 differ from their log-sum-exp by thousands because of rounding. No result may be
 * NaN, and instruction sets with fused multiply-adds must agree. */
static void huge_scores(void)
{
    const int64_t shape[4] = {1, 1, 64, 16};
    machines all = machines_make(1);
    float *first = NULL;
    for (int m = 0; m < all.count; m++) {
        if (all.each[m].path != MHA_PATH_TILED || all.each[m].isa == MHA_ISA_PORTABLE) continue;
        rng r = rng_make(1, 5);
        call c = {.q = tensor(4, shape), .k = tensor(4, shape), .v = tensor(4, shape)};
        complete(&c, &r);
        randomize(&r, &c.q);
        randomize(&r, &c.k);
        randomize(&r, &c.v);
        for (int64_t i = 0; i < elements_of(&c.q); i++) ((float *)c.q.data)[i] *= 1e12f;
        run(all.each[m].context, all.each[m].path, &c);
        float *found = c.of[QUERIES].data;
        const size_t bytes = (size_t)elements_of(&c.q) * sizeof *found;
        assert_true(finite_row(found, elements_of(&c.q)));
        if (!first) {
            first = malloc(bytes);
            assert_non_null(first);
            memcpy(first, found, bytes);
        }
        if (memcmp(first, found, bytes) != 0) fail_msg("%s: other bits", all.each[m].name);
        free(c.q.data);
        free(c.k.data);
        free(c.v.data);
        free_results(&c);
    }
    free(first);
}

/* ---- losses of lse and of weights ------------------------------------------------------------ */

enum { LOSS_T = 3, LOSS_S = 5, LOSS_D = 4 };

/* Query 0 sees keys 0, 1, 2; query 1 all; query 2 none. */
typedef struct loss_call {
    call c;
    uint8_t keep[LOSS_T * LOSS_S];
    float sink, d_sink, lse[LOSS_T], p[LOSS_T * LOSS_S];
    mha_tensor mask, sinks, d_sinks, of_lse, of_p;
} loss_call;

static void make_loss_call(loss_call *x, rng *r)
{
    const int64_t one = 1;
    memset(x, 0, sizeof *x);
    for (int i = 0; i < LOSS_T * LOSS_S; i++) {
        x->keep[i] = i / LOSS_S == 1 || i < 3;
        x->p[i] = rng_normal(r);
    }
    for (int t = 0; t < LOSS_T; t++) x->lse[t] = rng_normal(r);
    x->sink = 0.5f;
    x->mask = mha_tensor_contiguous(x->keep, MHA_U8, 2, (int64_t[]){LOSS_T, LOSS_S});
    x->sinks = mha_tensor_contiguous(&x->sink, MHA_F32, 1, &one);
    x->d_sinks = mha_tensor_contiguous(&x->d_sink, MHA_F32, 1, &one);
    x->of_lse = mha_tensor_contiguous(x->lse, MHA_F32, 3, (int64_t[]){1, 1, LOSS_T});
    x->of_p = mha_tensor_contiguous(x->p, MHA_F32, 4, (int64_t[]){1, 1, LOSS_T, LOSS_S});
    x->c.q = tensor(4, (int64_t[]){1, 1, LOSS_T, LOSS_D});
    x->c.k = tensor(4, (int64_t[]){1, 1, LOSS_S, LOSS_D});
    x->c.v = tensor(4, (int64_t[]){1, 1, LOSS_S, LOSS_D});
    complete(&x->c, r);
    randomize(r, &x->c.q);
    randomize(r, &x->c.k);
    randomize(r, &x->c.v);
    x->c.desc.keep_mask = &x->mask;
    x->c.desc.sink_logits = &x->sinks;
    x->c.gradients.lse_gradient = &x->of_lse;
    x->c.gradients.probabilities_gradient = &x->of_p;
    x->c.gradients.sink_logits = &x->d_sinks;
}

static void free_loss_call(loss_call *x)
{
    free(x->c.q.data);
    free(x->c.k.data);
    free(x->c.v.data);
    free_results(&x->c);
}

/* The gradient of a hidden weight is not read. A gradient that is not finite spoils its query and
 * the keys that the query sees. */
static void check_bad_loss(const machine *m, bool of_lse)
{
    rng r = rng_make(1, 7), again = r;
    loss_call clean, bad;
    make_loss_call(&clean, &r);
    make_loss_call(&bad, &again);
    bad.p[3] = NAN; /* query 0, hidden */
    bad.p[2 * LOSS_S] = INFINITY;
    run(m->context, m->path, &clean.c);
    run(m->context, m->path, &bad.c);
    assert_true(clean.d_sink == bad.d_sink);
    for (int i = QUERIES; i <= VALUES; i++)
        assert_memory_equal(clean.c.of[i].data, bad.c.of[i].data,
                            (size_t)elements_of(&bad.c.of[i]) * sizeof(float));
    *(of_lse ? &bad.lse[0] : &bad.p[1]) = INFINITY;
    run(m->context, m->path, &bad.c);
    for (int t = 0; t < LOSS_T; t++)
        for (int d = 0; d < LOSS_D; d++)
            assert_true(isnan(row(&bad.c.of[QUERIES], 0, 0, t)[d]) == (t == 0));
    for (int s = 0; s < LOSS_S; s++)
        for (int d = 0; d < LOSS_D; d++)
            assert_true(isnan(row(&bad.c.of[KEYS], 0, 0, s)[d]) == (s < 3) &&
                        isnan(row(&bad.c.of[VALUES], 0, 0, s)[d]) == (s < 3));
    assert_true(isnan(bad.d_sink));
    free_loss_call(&clean);
    free_loss_call(&bad);
}

/* The lse of a query without keys is its sink, so the gradient of lse is 1. Also tests that callers
 * with an older struct are supported. */
static void check_lone_sink(const machine *m)
{
    rng r = rng_make(1, 8);
    loss_call x;
    make_loss_call(&x, &r);
    memset(x.c.o_gradient.data, 0, (size_t)elements_of(&x.c.o_gradient) * sizeof(float));
    memset(x.p, 0, sizeof x.p);
    x.lse[0] = x.lse[1] = 0, x.lse[2] = 1;
    run(m->context, m->path, &x.c);
    assert_true(x.d_sink == 1);
    x.c.gradients.struct_size = offsetof(mha_attention_gradients, lse_gradient);
    run(m->context, m->path, &x.c);
    assert_true(x.d_sink == 0);
    free_loss_call(&x);
}

static void losses_of_lse_and_weights(void)
{
    machines all = machines_make(1);
    for (int m = 0; m < all.count; m++) {
        check_bad_loss(&all.each[m], false);
        check_bad_loss(&all.each[m], true);
        check_lone_sink(&all.each[m]);
    }
}

/* ---- padding and batches --------------------------------------------------------------------- */

static void put(const mha_tensor *from, const mha_tensor *to)
{
    for (int64_t h = 0; h < from->shape[1]; h++)
        for (int64_t t = 0; t < from->shape[2]; t++)
            memcpy(row(to, 0, h, t), row(from, 0, h, t), (size_t)from->shape[3] * sizeof(float));
}

static void same_rows(const machine *m, const mha_tensor *alone, const mha_tensor *padded)
{
    for (int64_t h = 0; h < alone->shape[1]; h++)
        for (int64_t t = 0; t < alone->shape[2]; t++)
            if (memcmp(row(alone, 0, h, t), row(padded, 0, h, t),
                       (size_t)alone->shape[3] * sizeof(float)) != 0)
                fail_msg("%s: row %lld of head %lld has other bits beside padding", m->name,
                         (long long)t, (long long)h);
}

/* One sequence computed separately, and as the first of two longer ones with padding: keys are
 * hidden by length, queries by a dO of 0. */
static void check_padding(rng *r, const machine *m)
{
    const int64_t T = rng_between(r, 1, 260), S = rng_between(r, 1, 600), D = rng_between(r, 1, 40);
    const int64_t more_T = T + rng_between(r, 0, 130), more_S = S + rng_between(r, 0, 300);
    const int64_t q[4] = {1, 2, T, D}, k[4] = {1, 1, S, D};
    const int64_t more_q[4] = {2, 2, more_T, D}, more_k[4] = {2, 1, more_S, D};
    int64_t lengths[2] = {S, rng_between(r, 0, more_S)}, offsets[2] = {S - T, 0};
    call alone = {.q = tensor(4, q), .k = tensor(4, k), .v = tensor(4, k)};
    call padded = {.q = tensor(4, more_q), .k = tensor(4, more_k), .v = tensor(4, more_k)};
    mha_tensor *from[] = {&alone.q, &alone.k, &alone.v}, *to[] = {&padded.q, &padded.k, &padded.v};
    complete(&alone, r);
    complete(&padded, r);
    for (int i = 0; i < 3; i++) {
        randomize(r, from[i]);
        randomize(r, to[i]);
        put(from[i], to[i]);
    }
    for (int64_t h = 0; h < 2; h++)
        for (int64_t t = T; t < more_T; t++)
            memset(row(&padded.o_gradient, 0, h, t), 0, (size_t)D * sizeof(float));
    put(&alone.o_gradient, &padded.o_gradient);
    alone.desc.flags = padded.desc.flags = MHA_ATTENTION_CAUSAL;
    alone.desc.q_offsets = padded.desc.q_offsets = offsets;
    padded.desc.key_lengths = lengths;
    run(m->context, m->path, &alone);
    run(m->context, m->path, &padded);
    for (int i = QUERIES; i <= VALUES; i++) same_rows(m, &alone.of[i], &padded.of[i]);
    for (int64_t s = S; s < more_S; s++)
        for (int64_t d = 0; d < D; d++)
            assert_true(row(&padded.of[KEYS], 0, 0, s)[d] == 0 &&
                        row(&padded.of[VALUES], 0, 0, s)[d] == 0);
    call *both[] = {&alone, &padded};
    for (int i = 0; i < 2; i++) {
        free(both[i]->q.data);
        free(both[i]->k.data);
        free(both[i]->v.data);
        free_results(both[i]);
    }
}

static void padding_and_batches(void)
{
    machines all = machines_make(2);
    int count = rng_cases(8, 300);
    for (int i = 0; i < count; i++)
        for (int m = 0; m < all.count; m++) {
            rng r = rng_make(rng_run_seed(), 4000000 + (uint64_t)i);
            check_padding(&r, &all.each[m]);
        }
}

/* ---- causal and lengths, which have a separate path ------------------------------------------ */

/* The same pairs, hidden by bytes of complete rectangles. The fast path skips only zeros. */
static void check_bytes(rng *r, const machine *m)
{
    static const int64_t sizes[] = {1, 7, 16, 24, 32, 48, 64, 80};
    const int64_t T = rng_between(r, 1, rng_chance(r, 0.5) ? 40 : 260);
    const int64_t S = rng_chance(r, 0.5) ? T : rng_between(r, 1, 600);
    const int64_t D = RNG_PICK(r, sizes), Dv = RNG_PICK(r, sizes);
    const int64_t q[4] = {2, 2, T, D}, k[4] = {2, 1, S, D}, v[4] = {2, 1, S, Dv};
    int64_t lengths[2] = {rng_between(r, 0, S), S}, offsets[2] = {S - T, rng_between(r, -T, S)};
    const bool causal = rng_chance(r, 0.7), cut = rng_chance(r, 0.5);
    const bool moved = causal && rng_chance(r, 0.5);
    uint8_t *keep = calloc((size_t)(2 * T * S), 1);
    assert_non_null(keep);
    for (int64_t b = 0; b < 2; b++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t s = 0; s < S; s++)
                keep[(b * T + t) * S + s] =
                    (!cut || s < lengths[b]) && (!causal || s <= t + (moved ? offsets[b] : 0));
    const mha_tensor mask = mha_tensor_contiguous(keep, MHA_U8, 4, (int64_t[]){2, 1, T, S});
    call ranges = {.q = tensor(4, q), .k = tensor(4, k), .v = tensor(4, v)};
    mha_tensor *inputs[] = {&ranges.q, &ranges.k, &ranges.v};
    for (int i = 0; i < 3; i++) randomize(r, inputs[i]);
    call bytes = ranges;
    complete(&ranges, r);
    complete(&bytes, NULL);
    memcpy(bytes.o_gradient.data, ranges.o_gradient.data,
           (size_t)elements_of(&ranges.o) * sizeof(float));
    ranges.desc.flags = causal ? MHA_ATTENTION_CAUSAL : 0;
    ranges.desc.key_lengths = cut ? lengths : NULL;
    ranges.desc.q_offsets = moved ? offsets : NULL;
    bytes.desc.keep_mask = &mask;
    run(m->context, m->path, &ranges);
    run(m->context, m->path, &bytes);
    for (int i = QUERIES; i <= VALUES; i++)
        if (memcmp(ranges.of[i].data, bytes.of[i].data,
                   (size_t)elements_of(&ranges.of[i]) * sizeof(float)) != 0)
            fail_msg("%s: gradient %d of %lld x %lld x %lld, %lld has other bits than by a mask",
                     m->name, i, (long long)T, (long long)S, (long long)D, (long long)Dv);
    for (int i = 0; i < 3; i++) free(inputs[i]->data);
    free(keep);
    free_results(&ranges);
    free_results(&bytes);
}

static void hidden_by_ranges_or_bytes(void)
{
    machines all = machines_make(1);
    int count = rng_cases(40, 2000);
    for (int i = 0; i < count; i++)
        for (int m = 0; m < all.count; m++) {
            rng r = rng_make(rng_run_seed(), 6000000 + (uint64_t)i);
            check_bytes(&r, &all.each[m]);
        }
}

/* ---- f16 and bf16 ---------------------------------------------------------------------------- */

/* The same numbers in memory of a random type, and in f32. */
typedef struct twin {
    mha_tensor narrow, wide;
} twin;

static twin twin_of(rng *r, const mha_tensor *from)
{
    static const mha_dtype types[] = {MHA_F16, MHA_BF16, MHA_F32};
    twin x = {.wide = tensor(from->ndim, from->shape)};
    x.narrow = tensor(from->ndim, from->shape);
    x.narrow.dtype = RNG_PICK(r, types);
    for (int64_t i = 0; i < elements_of(from); i++) {
        double value = (double)((const float *)from->data)[i];
        float *wide = (float *)x.wide.data + i;
        if (x.narrow.dtype == MHA_F32) {
            ((float *)x.narrow.data)[i] = *wide = (float)value;
            continue;
        }
        uint16_t half = half_nearest(x.narrow.dtype, value);
        ((uint16_t *)x.narrow.data)[i] = half;
        *wide = (float)half_value(x.narrow.dtype, half);
    }
    return x;
}

static void free_twin(const twin *x)
{
    free(x->narrow.data);
    free(x->wide.data);
}

/* Both calls get the o and lse of the same forward call. */
static void check_halves(rng *r, const machine *m, const kinds_case *c)
{
    call wide = {.desc = c->desc, .q = c->q.view, .k = c->k.view, .v = c->v.view};
    complete(&wide, r);
    run(m->context, m->path, &wide);
    twin q = twin_of(r, &wide.q), k = twin_of(r, &wide.k), v = twin_of(r, &wide.v);
    twin o = twin_of(r, &wide.o), g = twin_of(r, &wide.o_gradient), bias = {.wide = {.ndim = 0}};
    if (c->desc.bias) bias = twin_of(r, c->desc.bias);
    call narrow = wide;
    wide.q = q.wide, wide.k = k.wide, wide.v = v.wide;
    complete(&narrow, NULL);
    free(narrow.o.data);
    free(narrow.o_gradient.data);
    memcpy(narrow.lse.data, wide.lse.data, (size_t)elements_of(&wide.lse) * sizeof(float));
    narrow.q = q.narrow, narrow.k = k.narrow, narrow.v = v.narrow;
    narrow.o = o.narrow, narrow.o_gradient = g.narrow;
    free(wide.o.data);
    free(wide.o_gradient.data);
    wide.o = o.wide, wide.o_gradient = g.wide;
    if (c->desc.bias) wide.desc.bias = &bias.wide, narrow.desc.bias = &bias.narrow;
    wide.gradients.scale = &wide.of[SCALE];
    narrow.gradients.scale = &narrow.of[SCALE];
    if (backward(m->context, &wide) != MHA_OK || backward(m->context, &narrow) != MHA_OK)
        fail_msg("%s", mha_error_detail());
    for (int i = 0; i < GRADIENTS; i++)
        if (!guarded_same_bits(&wide.of[i], &narrow.of[i], true))
            fail_msg("%s: gradient %d has other bits from half precision\n  %s", m->name, i,
                     c->text);
    wide.o.data = wide.o_gradient.data = narrow.o.data = narrow.o_gradient.data = NULL;
    free_results(&wide);
    free_results(&narrow);
    const twin *all[] = {&q, &k, &v, &o, &g, &bias};
    for (int i = 0; i < 6; i++) free_twin(all[i]);
}

static void halves_are_widened(void)
{
    machines all = machines_make(2);
    int count = rng_cases(40, 2000);
    for (int i = 0; i < count; i++) {
        rng r = rng_make(rng_run_seed(), 6000000 + (uint64_t)i);
        kinds_shape shape = kinds_some_shape(&r);
        shape.plain_layout = true;
        if (shape.D > 64) shape.D = 64;
        if (shape.T > 60) shape.T = 60;
        kinds_case c;
        kinds_make(&c, &r, &shape);
        for (int m = 0; m < all.count; m++) check_halves(&r, &all.each[m], &c);
        kinds_free(&c);
    }
}

/* ---- errors ---------------------------------------------------------------------------------- */

enum { B = 2, H = 4, HK = 2, T = 3, S = 5, D = 8, DV = 6 };

typedef struct misuse {
    call c;
    mha_context *context;
    mha_tensor bias, d_bias, gates, d_gates, of_lse, of_p, of_mean;
    const mha_tensor *o_at, *lse_at, *g_at;
    const mha_attention_gradients *gradients_at;
} misuse;

#define ROWS                                                                                      \
    MISUSE(MHA_ERR_NULL, "context", x->context = NULL);                                           \
    MISUSE_OF_DATA(MHA_ERR_NULL, "o", x->o_at = NULL);                                            \
    MISUSE_OF_DATA(MHA_ERR_NULL, "lse", x->lse_at = NULL);                                        \
    MISUSE_OF_DATA(MHA_ERR_NULL, "o_gradient", x->g_at = NULL);                                   \
    MISUSE(MHA_ERR_NULL, "gradients", x->gradients_at = NULL);                                    \
    MISUSE(MHA_ERR_ARGUMENT, "mha_attention_gradients", x->c.gradients.struct_size = 0);          \
    MISUSE(MHA_ERR_UNSUPPORTED, "flags", x->c.gradients.flags = 4);                               \
    MISUSE(MHA_ERR_SHAPE, "gradients.q", x->c.of[QUERIES].shape[2] = T - 1);                      \
    MISUSE(MHA_ERR_SHAPE, "lse_gradient", x->of_lse.ndim = 2);                                    \
    MISUSE(MHA_ERR_DTYPE, "lse_gradient", x->of_lse.dtype = MHA_BF16);                            \
    MISUSE(MHA_ERR_SHAPE, "probabilities_gradient", x->of_p.shape[3] = S + 1);                    \
    MISUSE(MHA_ERR_SHAPE, "average_probabilities_gradient", x->of_mean.shape[1] = S);             \
    MISUSE_OF_DATA(MHA_ERR_NULL, "probabilities_gradient", x->of_p.data = NULL);                  \
    MISUSE_OF_DATA(MHA_ERR_OVERLAP, "gradients.k", x->c.of[KEYS].data = x->of_p.data);            \
    MISUSE_OF_DATA(MHA_ERR_OVERLAP, "gradients.gates", x->d_gates.data = x->of_lse.data);         \
    MISUSE_OF_DATA(MHA_ERR_OVERLAP, "gradients.gates", x->d_gates.data = x->of_mean.data);        \
    MISUSE(MHA_ERR_SHAPE, "gradients.k", x->c.of[KEYS].shape[1] = H);                             \
    MISUSE(MHA_ERR_DTYPE, "gradients.v", x->c.of[VALUES].dtype = MHA_F64);                        \
    MISUSE(MHA_ERR_STRIDE, "gradients.q", x->c.of[QUERIES].stride[3] = 2);                        \
    MISUSE(MHA_ERR_STRIDE, "gradients.v", x->c.of[VALUES].stride[1] = 0);                         \
    MISUSE_OF_DATA(MHA_ERR_NULL, "gradients.k", x->c.of[KEYS].data = NULL);                       \
    MISUSE(MHA_ERR_SHAPE, "o_gradient", x->c.o_gradient.shape[3] = D);                            \
    MISUSE(MHA_ERR_DTYPE, "o_gradient", x->c.o_gradient.dtype = MHA_I32);                         \
    MISUSE(MHA_ERR_STRIDE, "o_gradient", x->c.o_gradient.stride[3] = -1);                         \
    MISUSE(MHA_ERR_SHAPE, "lse", x->c.lse.shape[2] = T + 1);                                      \
    MISUSE(MHA_ERR_ARGUMENT, "bias", x->c.desc.bias = NULL);                                      \
    MISUSE(MHA_ERR_ARGUMENT, "t5_table", x->c.gradients.t5_table = &x->d_gates);                  \
    MISUSE(MHA_ERR_ARGUMENT, "alibi_slopes", x->c.gradients.alibi_slopes = &x->d_gates);          \
    MISUSE(MHA_ERR_ARGUMENT, "shaw_keys", x->c.gradients.shaw_keys = &x->d_gates);                \
    MISUSE(MHA_ERR_ARGUMENT, "shaw_values", x->c.gradients.shaw_values = &x->d_gates);            \
    MISUSE(MHA_ERR_ARGUMENT, "sink_logits", x->c.gradients.sink_logits = &x->d_gates);            \
    MISUSE(MHA_ERR_SHAPE, "gradients.bias", x->d_bias.shape[0] = T + 1);                          \
    MISUSE(MHA_ERR_SHAPE, "gradients.bias", x->d_bias.ndim = 1);                                  \
    MISUSE(MHA_ERR_SHAPE, "gradients.gates", x->d_gates.shape[0] = 1);                            \
    MISUSE(MHA_ERR_SHAPE, "gradients.scale", x->c.of[SCALE].ndim = 1,                             \
           x->c.of[SCALE].shape[0] = 2);                                                          \
    MISUSE(MHA_ERR_SHAPE, "gradients.scale", x->c.of[SCALE].ndim = 99);                           \
    MISUSE_OF_DATA(MHA_ERR_OVERLAP, "gradients.v", x->c.of[VALUES].data = x->c.of[KEYS].data)     \
    /* the smaller tensor */;                                                                     \
    MISUSE_OF_DATA(MHA_ERR_OVERLAP, "gradients.q", x->c.of[QUERIES].data = x->c.q.data);          \
    MISUSE_OF_DATA(MHA_ERR_OVERLAP, "gradients.q", x->c.of[QUERIES].data = x->c.o.data);          \
    MISUSE_OF_DATA(MHA_ERR_OVERLAP, "gradients.q", x->c.of[QUERIES].data = x->c.o_gradient.data); \
    MISUSE_OF_DATA(MHA_ERR_OVERLAP, "gradients.gates", x->d_gates.data = x->bias.data);           \
    MISUSE(MHA_ERR_ARGUMENT, "path", x->c.desc.path = (mha_path)9);
DEFINE_SPOIL(misuse *x, spoil_row, ROWS)

static void make_misuse(misuse *x, mha_context *context)
{
    rng r = rng_make(1, 1);
    memset(x, 0, sizeof *x);
    x->context = context;
    x->c.q = tensor(4, (const int64_t[]){B, H, T, D});
    x->c.k = tensor(4, (const int64_t[]){B, HK, S, D});
    x->c.v = tensor(4, (const int64_t[]){B, HK, S, DV});
    complete(&x->c, &r);
    x->bias = tensor(2, (const int64_t[]){T, S});
    x->d_bias = tensor(2, (const int64_t[]){T, S});
    x->gates = tensor(2, (const int64_t[]){B, H});
    x->d_gates = tensor(2, (const int64_t[]){B, H});
    x->c.desc.bias = &x->bias;
    x->c.desc.gates = &x->gates;
    x->c.gradients.bias = &x->d_bias;
    x->c.gradients.gates = &x->d_gates;
    x->c.gradients.scale = &x->c.of[SCALE];
    x->of_lse = tensor(3, (const int64_t[]){B, H, T});
    x->of_p = tensor(4, (const int64_t[]){B, H, T, S});
    x->of_mean = tensor(3, (const int64_t[]){B, T, S});
    x->c.gradients.lse_gradient = &x->of_lse;
    x->c.gradients.probabilities_gradient = &x->of_p;
    x->c.gradients.average_probabilities_gradient = &x->of_mean;
    x->o_at = &x->c.o;
    x->lse_at = &x->c.lse;
    x->g_at = &x->c.o_gradient;
    x->gradients_at = &x->c.gradients;
}

static void free_misuse(const misuse *x)
{
    call c = x->c;
    free(c.q.data);
    free(c.k.data);
    free(c.v.data);
    free(x->bias.data);
    free(x->d_bias.data);
    free(x->gates.data);
    free(x->d_gates.data);
    free(x->of_lse.data);
    free(x->of_p.data);
    free(x->of_mean.data);
    free_results(&c);
}

static void misuse_is_refused(void)
{
    mha_context *context = context_with(0);
    for (size_t i = 0, rows = spoil_row(NULL, SIZE_MAX).rows; i < rows; i++) {
        misuse x, kept;
        mha_attention_plan plan;
        make_misuse(&x, context);
        kept = x;
        const expected_refusal wrong = spoil_row(&x, i);
        const mha_attention_backward_call *spoiled = BACKWARD_CALL(
            &x.c.desc, &x.c.q, &x.c.k, &x.c.v, x.o_at, x.lse_at, x.g_at, x.gradients_at);
        expect_row(i, mha_attention_backward(x.context, spoiled), wrong.status, wrong.part);
        mha_status said = mha_attention_backward_explain(x.context, spoiled, &plan);
        if (said != (wrong.data_only ? MHA_OK : wrong.status))
            fail_msg("explain of error %zu: status %d, \"%s\"", i, (int)said, mha_error_detail());
        free_misuse(&kept);
    }
    const mha_attention_backward_call newer = {.struct_size = sizeof newer, .reserved = 1};
    expect_error(mha_attention_backward(context, NULL), MHA_ERR_NULL, "call is NULL");
    expect_error(mha_attention_backward(context, &newer), MHA_ERR_UNSUPPORTED, "reserved is 1");
}

/* ---- plans ----------------------------------------------------------------------------------- */

static mha_attention_plan plan_of(const mha_context *context, int64_t n, int64_t head_dim,
                                  mha_path path, uint32_t flags, mha_status *status)
{
    const int64_t shape[4] = {1, 8, n, head_dim};
    const mha_tensor x = mha_tensor_contiguous(NULL, MHA_F32, 4, shape);
    const mha_tensor t5 = mha_tensor_contiguous(NULL, MHA_F32, 2, (int64_t[]){32, 8});
    const mha_attention_desc desc = {
        .struct_size = sizeof desc, .path = path, .flags = flags, .t5_table = &t5, .dropout = 0.1f};
    const mha_attention_gradients wanted = {
        .struct_size = sizeof wanted, .q = &x, .k = &x, .v = &x, .t5_table = &t5};
    mha_attention_plan plan = {.path = MHA_PATH_AUTO};
    *status = mha_attention_backward_explain(
        context, BACKWARD_CALL(&desc, &x, &x, &x, NULL, NULL, NULL, &wanted), &plan);
    return plan;
}

/* Eight sequences, the first with all 2^40 queries and 2^20 keys: 2^63 pairs overflow. */
static void check_huge(const mha_context *context)
{
    const int64_t rows = (int64_t)1 << 40, cols = 1 << 20;
    const int64_t queries[9] = {0, rows, rows, rows, rows, rows, rows, rows, rows},
                  keys[9] = {0, cols, cols, cols, cols, cols, cols, cols, cols};
    mha_tensor q = mha_tensor_contiguous(NULL, MHA_F32, 4, (int64_t[]){1, 1, rows, 1});
    mha_tensor k = mha_tensor_contiguous(NULL, MHA_F32, 4, (int64_t[]){1, 1, cols, 1});
    const mha_attention_desc desc = {
        .struct_size = sizeof desc, .query_starts = queries, .key_starts = keys, .sequences = 8};
    const mha_attention_gradients wanted = {.struct_size = sizeof wanted, .q = &q};
    mha_attention_plan plan;
    assert_int_equal(
        mha_attention_backward_explain(
            context, BACKWARD_CALL(&desc, &q, &k, &k, NULL, NULL, NULL, &wanted), &plan),
        MHA_ERR_SIZE);
}

static void plans(void)
{
    mha_context *context = context_with(0);
    mha_status status;
    mha_attention_plan small = plan_of(context, 1024, 64, MHA_PATH_AUTO, 0, &status);
    expect_ok(status);
    assert_int_equal(small.path, MHA_PATH_TILED);
    assert_true(small.isa == mha_context_isa(context) && small.visible_pairs == 8 * 1024 * 1024);
    /* dq is separate from dk and dv because a table's gradient is requested: 14 D per pair */
    assert_true(small.flops == 14.0 * 64 * 8 * 1024 * 1024);
    /* q, k, v and their gradients, o and its gradient; lse */
    assert_true(small.bytes == 4.0 * 8 * 1024 * (8 * 64 + 1));
    assert_true(small.compute == MHA_COMPUTE_F32 && small.reason && *small.reason);
    /* Linear in the length: one number per query, plus a constant. */
    mha_attention_plan large = plan_of(context, 32768, 64, MHA_PATH_AUTO, 0, &status);
    assert_true(large.scratch_bytes - small.scratch_bytes == 8 * (32768 - 1024) * sizeof(double));
    mha_attention_plan wide = plan_of(context, 64, 300, MHA_PATH_AUTO, 0, &status);
    assert_int_equal(wide.path, MHA_PATH_PLAIN);
    assert_non_null(strstr(wide.reason, "256"));
    plan_of(context, 64, 300, MHA_PATH_AUTO, MHA_ATTENTION_STRICT, &status);
    assert_int_equal(status, MHA_ERR_UNSUPPORTED);
    plan_of(context, 64, 300, MHA_PATH_PLAIN, MHA_ATTENTION_STRICT, &status);
    expect_ok(status);
    check_huge(context);
    /* A loss of weights computes p once for its sum, and once in each of the two walks. */
    const mha_tensor x = mha_tensor_contiguous(NULL, MHA_F32, 4, (int64_t[]){1, 2, 64, 32});
    const mha_tensor p = mha_tensor_contiguous(NULL, MHA_F32, 4, (int64_t[]){1, 2, 64, 64});
    const mha_attention_gradients wanted = {
        .struct_size = sizeof wanted, .q = &x, .k = &x, .probabilities_gradient = &p};
    mha_attention_plan of_weights;
    expect_ok(mha_attention_backward_explain(
        context_with(3), BACKWARD_CALL(NULL, &x, &x, &x, NULL, NULL, NULL, &wanted), &of_weights));
    assert_int_equal(of_weights.path, MHA_PATH_TILED);
    assert_true(of_weights.flops == (2 * (4 + 2) + 3 * 2) * 32.0 * 2 * 64 * 64);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* With the scratch reported by explain, nothing is allocated. */
static void check_reserve(call *x)
{
    mha_context *context;
    mha_attention_plan plan;
    failing_alloc alloc = failing_alloc_make();
    expect_ok(failing_context(&alloc, 1, MHA_ISA_AUTO, &context));
    expect_ok(mha_attention_backward_explain(
        context,
        BACKWARD_CALL(&x->desc, &x->q, &x->k, &x->v, &x->o, &x->lse, &x->o_gradient, &x->gradients),
        &plan));
    expect_ok(mha_context_reserve(context, plan.scratch_bytes));
    alloc.fail_at = alloc.calls;
    alloc.fail_after = true;
    expect_ok(backward(context, x));
    mha_context_destroy(context);
}

/* A descriptor with all inputs, so that every allocation occurs. */
static void failed_allocations_are_reported(void)
{
    rng r = rng_make(rng_run_seed(), 5000000);
    kinds_shape shape = {.B = 2, .H = 4, .Hk = 2, .T = 9, .S = 20, .D = 8, .Dv = 5};
    shape.kinds = KIND_T5 | KIND_SHAW_KEYS | KIND_SHAW_VALUES | KIND_DROPOUT | KIND_SOFTCAP;
    shape.plain_layout = true;
    for (int path = MHA_PATH_TILED; path <= MHA_PATH_PLAIN; path++) {
        kinds_case c;
        kinds_make(&c, &r, &shape);
        call x = {.desc = c.desc, .q = c.q.view, .k = c.k.view, .v = c.v.view};
        complete(&x, &r);
        mha_tensor t5 = tensor(2, c.desc.t5_table->shape);
        mha_tensor keys = tensor(2, c.desc.shaw_keys->shape);
        mha_tensor p = tensor(4, (int64_t[]){shape.B, shape.H, shape.T, shape.S});
        x.gradients.t5_table = &t5;
        x.gradients.shaw_keys = &keys;
        x.gradients.probabilities_gradient = &p;
        x.gradients.scale = &x.of[SCALE];
        x.desc.path = (mha_path)path;
        check_reserve(&x);
        failing_alloc alloc = failing_alloc_make();
        for (int64_t at = 0; at < 1000; at++) {
            mha_context *context;
            alloc = failing_alloc_make();
            expect_ok(failing_context(&alloc, 1, MHA_ISA_AUTO, &context));
            memset(x.of[QUERIES].data, 0x55, (size_t)elements_of(&x.of[QUERIES]) * sizeof(float));
            alloc.fail_at = alloc.calls + at;
            alloc.fail_after = true;
            mha_status status = backward(context, &x);
            uint32_t first;
            memcpy(&first, x.of[QUERIES].data, sizeof first);
            if (status == MHA_OK) {
                alloc.fail_at = -1; /* lets scratch merge its blocks */
                alloc.fail_after = false;
                expect_ok(backward(context, &x));
                alloc.fail_at = alloc.calls; /* from then on nothing is allocated */
                expect_ok(backward(context, &x));
            } else {
                assert_int_equal(status, MHA_ERR_NOMEM);
                assert_true(first == 0x55555555);
            }
            mha_context_destroy(context);
            assert_true(alloc.live == 0 && alloc.mistakes == 0);
            if (status == MHA_OK) break;
            assert_true(at < 999);
        }
        free(t5.data);
        free(keys.data);
        free(p.data);
        free_results(&x);
        kinds_free(&c);
    }
}

RUN_TESTS(TEST(poison_stays), TEST(query_without_keys), TEST(huge_where_hidden), TEST(huge_scores),
          TEST(losses_of_lse_and_weights), TEST(padding_and_batches),
          TEST(hidden_by_ranges_or_bytes), TEST(halves_are_widened), TEST(misuse_is_refused),
          TEST(plans), TEST(failed_allocations_are_reported))
