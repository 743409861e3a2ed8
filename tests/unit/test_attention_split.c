/* Few queries over many keys, whose blocks are divided among threads. Results must be bit-identical
 * to one thread, for all masks, score terms and non-finite values. */
#include "support/expect.h"
#include "support/machines.h"
#include "support/rng.h"
#include "support/suite.h"

#include <multihead/multihead.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct decode_case {
    int64_t B, H, Hk, T, S, D, Dv;
    float *q, *k, *v, *o, *lse, *sinks, *slopes;
    uint8_t *keep;
    int64_t lengths[2];
    mha_tensor Q, K, V, O, L, SINKS, SLOPES, KEEP;
    mha_attention_desc desc;
} decode_case;

static float *normal(rng *r, int64_t n)
{
    float *x = malloc((size_t)n * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++) x[i] = rng_normal(r);
    return x;
}

static mha_tensor four(float *data, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return mha_tensor_contiguous(data, MHA_F32, 4, (int64_t[]){a, b, c, d});
}

/* Make a key or a value not finite, rarely where it is hidden. */
static void spoil(decode_case *x, rng *r)
{
    if (rng_between(r, 0, 3) == 0)
        x->k[rng_between(r, 0, x->B * x->Hk * x->S * x->D - 1)] = (float)NAN;
    if (rng_between(r, 0, 3) == 0)
        x->v[rng_between(r, 0, x->B * x->Hk * x->S * x->Dv - 1)] = INFINITY;
}

/* A callback mask that keeps three of four pairs. */
static void keep_some(void *user, int64_t b, int64_t h, int64_t query, int64_t queries, int64_t key,
                      int64_t keys, uint8_t *keep, int64_t keep_stride)
{
    (void)user;
    for (int64_t i = 0; i < queries; i++)
        for (int64_t j = 0; j < keys; j++)
            keep[i * keep_stride + j] = (b + h + (query + i) * 7 + (key + j) * 13) % 4 != 0;
}

/* Add masks that are not intervals and are therefore composed in bytes. */
static void add_composed(decode_case *x, rng *r)
{
    mha_attention_desc *d = &x->desc;
    if (rng_between(r, 0, 2) != 0) return;
    if (rng_between(r, 0, 1) == 0) {
        d->keep_callback = keep_some;
        return;
    }
    d->flags |= MHA_ATTENTION_CAUSAL | MHA_ATTENTION_WINDOW;
    d->q_offset = x->S - x->T;
    d->left_keys = rng_between(r, 0, 3000);
    d->sink_keys = rng_between(r, 1, 700);
}

static void add_terms(decode_case *x, rng *r)
{
    mha_attention_desc *d = &x->desc;
    if (rng_between(r, 0, 2) == 0) {
        d->flags |= MHA_ATTENTION_CAUSAL;
        d->q_offset = rng_between(r, 0, x->S - 1);
    }
    for (int64_t b = 0; b < x->B; b++) x->lengths[b] = rng_between(r, 0, x->S);
    if (rng_between(r, 0, 2) == 0) d->key_lengths = x->lengths;
    if (rng_between(r, 0, 2) == 0) d->softcap = 20;
    if (rng_between(r, 0, 2) == 0) d->sink_logits = &x->SINKS;
    if (rng_between(r, 0, 2) == 0) d->alibi_slopes = &x->SLOPES;
    if (rng_between(r, 0, 2) == 0) d->keep_mask = &x->KEEP;
    for (int64_t i = 0; i < x->T * x->S; i++) x->keep[i] = rng_between(r, 0, 3) > 0;
}

/* Fill in numbers for the sizes, without score terms. */
static void fill(decode_case *x, rng *r)
{
    x->Q = four(x->q = normal(r, x->B * x->H * x->T * x->D), x->B, x->H, x->T, x->D);
    x->K = four(x->k = normal(r, x->B * x->Hk * x->S * x->D), x->B, x->Hk, x->S, x->D);
    x->V = four(x->v = normal(r, x->B * x->Hk * x->S * x->Dv), x->B, x->Hk, x->S, x->Dv);
    x->O = four(x->o = normal(r, x->B * x->H * x->T * x->Dv), x->B, x->H, x->T, x->Dv);
    x->L = mha_tensor_contiguous(x->lse = normal(r, x->B * x->H * x->T), MHA_F32, 3,
                                 (int64_t[]){x->B, x->H, x->T});
    x->SINKS = mha_tensor_contiguous(x->sinks = normal(r, x->H), MHA_F32, 1, (int64_t[]){x->H});
    x->SLOPES = mha_tensor_contiguous(x->slopes = normal(r, x->H), MHA_F32, 1, (int64_t[]){x->H});
    x->keep = malloc((size_t)(x->T * x->S));
    assert_non_null(x->keep);
    x->KEEP = mha_tensor_contiguous(x->keep, MHA_U8, 4, (int64_t[]){1, 1, x->T, x->S});
    x->desc = (mha_attention_desc){.struct_size = sizeof x->desc};
}

static void make(decode_case *x, rng *r)
{
    static const int64_t groups[] = {1, 1, 4, 8, 20, 32}, widths[] = {32, 64, 72, 128};
    *x = (decode_case){.B = rng_between(r, 1, 2), .Hk = rng_between(r, 1, 2)};
    x->H = x->Hk * RNG_PICK(r, groups);
    x->T = rng_between(r, 1, x->H == x->Hk ? 12 : 2);
    x->S = rng_between(r, 3000, 5000);
    x->D = RNG_PICK(r, widths);
    x->Dv = rng_chance(r, 0.5) ? rng_between(r, 1, 4) * 32 : rng_between(r, 1, 128);
    fill(x, r);
    add_terms(x, r);
    add_composed(x, r);
    spoil(x, r);
}

static void discard(decode_case *x)
{
    float *all[] = {x->q, x->k, x->v, x->o, x->lse, x->sinks, x->slopes};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
    free(x->keep);
}

/* Compute o and lse. Returns whether key blocks were shared. */
static bool compute(decode_case *x, const machine *m)
{
    mha_attention_plan plan;
    const mha_attention_outputs outputs = {.struct_size = sizeof outputs, .lse = &x->L};
    x->desc.path = m->path;
    expect_ok(
        mha_attention_explain(m->context, &x->desc, &x->Q, &x->K, &x->V, &x->O, &outputs, &plan));
    expect_ok(mha_attention_forward(m->context, &x->desc, &x->Q, &x->K, &x->V, &x->O, &outputs));
    return plan.work_items > x->B * x->Hk;
}

/* NaNs may differ in sign and payload. */
static bool same_bits(const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0 && !(isnan(a[i]) && isnan(b[i]))) return false;
    return true;
}

static void threads_share_keys(void)
{
    enum { COUNTS = 3 };
    static const int threads[COUNTS] = {2, 3, 8};
    machines one = machines_make(1), several[COUNTS];
    int shared = 0;
    for (int i = 0; i < COUNTS; i++) several[i] = machines_make(threads[i]);
    for (int i = 0; i < rng_cases(30, 200); i++) {
        rng r = rng_make(rng_run_seed(), 4000 + (uint64_t)i);
        decode_case x;
        make(&x, &r);
        const int64_t rows = x.B * x.H * x.T, n = rows * x.Dv;
        float *o = normal(&r, n), *lse = normal(&r, rows);
        for (int m = 0; m < one.count; m++) {
            if (one.each[m].path == MHA_PATH_PLAIN) continue;
            compute(&x, &one.each[m]);
            memcpy(o, x.o, (size_t)n * sizeof *o);
            memcpy(lse, x.lse, (size_t)rows * sizeof *lse);
            for (int j = 0; j < COUNTS; j++) {
                shared += compute(&x, &several[j].each[m]);
                if (!same_bits(o, x.o, n) || !same_bits(lse, x.lse, rows))
                    fail_msg("case %d, %s: %d threads change the bits", i, one.each[m].name,
                             threads[j]);
            }
        }
        free(o);
        free(lse);
        discard(&x);
    }
    if (rng_whole_sample()) assert_true(shared > 0);
}

/* Inputs that sharing does not support are not ignored; the keys are then not shared. */
static void every_input_is_kept(void)
{
    enum { H = 20, T = 2, S = 4096, D = 64, REACH = 7, TERMS = 11 };
    const machines one = machines_make(1), two = machines_make(2);
    rng r = rng_make(rng_run_seed(), 9000);
    decode_case x = {.B = 1, .H = H, .Hk = 1, .T = T, .S = S, .D = D, .Dv = D};
    fill(&x, &r);
    float *table = normal(&r, REACH * D), *bias = normal(&r, S), plain[H * T * D], o[H * T * D];
    int32_t *documents = malloc(S * sizeof *documents);
    uint8_t *bytes = malloc(S);
    assert_true(documents && bytes);
    for (int i = 0; i < S; i++) documents[i] = bytes[i] = i % 3 == 0;
    const mha_tensor shaw = mha_tensor_contiguous(table, MHA_F32, 2, (int64_t[]){REACH, D}),
                     buckets = mha_tensor_contiguous(table, MHA_F32, 2, (int64_t[]){16, H}),
                     gates = mha_tensor_contiguous(table, MHA_F32, 2, (int64_t[]){1, H}),
                     biases = mha_tensor_contiguous(bias, MHA_F32, 1, (int64_t[]){S}),
                     of_queries = mha_tensor_contiguous(documents, MHA_I32, 1, (int64_t[]){T}),
                     of_keys = mha_tensor_contiguous(documents, MHA_I32, 1, (int64_t[]){S}),
                     kept = mha_tensor_contiguous(bytes, MHA_U8, 1, (int64_t[]){S});
    const mha_attention_desc terms[TERMS] = {
        {.struct_size = sizeof *terms},
        {.struct_size = sizeof *terms, .shaw_values = &shaw},
        {.struct_size = sizeof *terms, .shaw_keys = &shaw},
        {.struct_size = sizeof *terms, .softcap = 2},
        {.struct_size = sizeof *terms, .dropout = 0.25f},
        {.struct_size = sizeof *terms, .sink_logits = &x.SINKS},
        {.struct_size = sizeof *terms, .gates = &gates},
        {.struct_size = sizeof *terms, .bias = &biases},
        {.struct_size = sizeof *terms, .keep_mask = &kept},
        {.struct_size = sizeof *terms, .t5_table = &buckets},
        {.struct_size = sizeof *terms, .query_documents = &of_queries, .key_documents = &of_keys}};
    for (int m = 0; m < one.count; m++) {
        if (one.each[m].path == MHA_PATH_PLAIN) continue;
        for (int i = 0; i < TERMS; i++) {
            x.desc = terms[i];
            compute(&x, &one.each[m]);
            memcpy(o, x.o, sizeof o);
            const bool shared = compute(&x, &two.each[m]);
            if (memcmp(o, x.o, sizeof o) != 0)
                fail_msg("term %d, %s: two threads change the bits", i, one.each[m].name);
            if (i == 0) assert_true(shared);
            if (i == 0) memcpy(plain, o, sizeof o);
            if (i > 0) assert_memory_not_equal(plain, o, sizeof o);
        }
    }
    free(table), free(bias), free(documents), free(bytes);
    discard(&x);
}

/* Sharing takes memory for the scores of all keys, within a limit. Tested with a plan for a million
 * keys, which are not read because explain uses only sizes. */
static void memory_is_bounded(void)
{
    enum { THREADS = 8, T = 4, H = 248, Hk = 31, S = 1 << 20, D = 128 };
    float number = 0;
    mha_context *context;
    const mha_context_desc made = {.struct_size = sizeof made, .num_threads = THREADS};
    expect_ok(mha_context_create(&made, &context));
    const mha_tensor q = mha_tensor_contiguous(&number, MHA_F32, 4, (int64_t[]){1, H, T, D}),
                     k = mha_tensor_contiguous(&number, MHA_F32, 4, (int64_t[]){1, Hk, S, D});
    mha_attention_plan plan;
    expect_ok(mha_attention_explain(context, NULL, &q, &k, &k, &q, NULL, &plan));
    assert_false(plan.flags & MHA_PLAN_KEYS_SHARED);
    assert_true(plan.scratch_bytes < ((size_t)256 << 20) + THREADS * ((size_t)16 << 20));
    mha_context_destroy(context);
}

/* Keys are not shared if a window is much shorter than the keys, because two threads would take
 * four times as long as one. Keys after the last query cause no work. */
static void hidden_keys_are_not_shared(void)
{
    enum { THREADS = 2, H = 8, S = 1 << 18, D = 128, WINDOW = 8192 };
    float number = 0;
    mha_context *context;
    const mha_context_desc made = {.struct_size = sizeof made, .num_threads = THREADS};
    expect_ok(mha_context_create(&made, &context));
    const mha_tensor q = mha_tensor_contiguous(&number, MHA_F32, 4, (int64_t[]){1, H, 1, D});
    for (int64_t keys = WINDOW; keys <= S; keys *= 2)
        for (int64_t sinks = 0; sinks <= 4; sinks += 4) {
            const mha_tensor k =
                mha_tensor_contiguous(&number, MHA_F32, 4, (int64_t[]){1, 1, keys, D});
            const mha_attention_desc desc = {.struct_size = sizeof desc,
                                             .flags = MHA_ATTENTION_CAUSAL | MHA_ATTENTION_WINDOW,
                                             .q_offset = keys - 1,
                                             .left_keys = WINDOW - 1,
                                             .sink_keys = sinks};
            mha_attention_plan plan;
            expect_ok(mha_attention_explain(context, &desc, &q, &k, &k, &q, NULL, &plan));
            assert_int_equal((plan.flags & MHA_PLAN_KEYS_SHARED) != 0, keys <= 8 * WINDOW);
            const mha_attention_desc few = {
                .struct_size = sizeof few, .flags = MHA_ATTENTION_CAUSAL, .q_offset = WINDOW - 1};
            expect_ok(mha_attention_explain(context, &few, &q, &k, &k, &q, NULL, &plan));
            assert_int_equal(plan.work_items, WINDOW / 512);
        }
    mha_context_destroy(context);
}

RUN_TESTS(TEST(threads_share_keys), TEST(every_input_is_kept), TEST(memory_is_bounded),
          TEST(hidden_keys_are_not_shared))
