/* Optional outputs: every invalid request returns a status and an error and writes nothing; failing
 * allocations; scratch as reported by explain; batches and padding; old structs. */
#include "reference/kinds_reference.h"
#include "support/expect.h"
#include "support/extras.h"
#include "support/failing_alloc.h"
#include "support/machines.h"
#include "support/shared_context.h"
#include "support/suite.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { B = 2, H = 4, T = 5, S = 7, K = 3 };

/* A plain problem, a request for all outputs, and tensors to spoil. */
typedef struct call {
    kinds_case c;
    extras x;
    mha_tensor spoiled;
    int64_t list[4];
} call;

static void call_make(call *a, rng *r)
{
    const kinds_shape shape = {
        .B = B, .H = H, .Hk = 2, .T = T, .S = S, .D = 8, .Dv = 8, .plain_layout = true};
    const extras_request request = {.heads = {3, 0, 3},
                                    .heads_count = 3,
                                    .rows = {4, 1},
                                    .rows_count = 2,
                                    .offsets = {-1, 0},
                                    .offsets_count = 2,
                                    .top = K,
                                    .stage = MHA_SCORES_BIASED};
    kinds_make(&a->c, r, &shape);
    extras_make(&a->x, r, &a->c, &request, EXTRAS_ALL, LAYOUT_CONTIGUOUS);
}

static void call_free(call *a)
{
    extras_free(&a->x);
    kinds_free(&a->c);
}

/* ---- misuse ---------------------------------------------------------------------------------- */

/* A copy of an output's view replaces it. */
#define SPOILED(field) (a->spoiled = *a->x.outputs.field, a->x.outputs.field = &a->spoiled)

#define ROWS                                                                                     \
    MISUSE(MHA_ERR_UNSUPPORTED, "flags", a->x.outputs.flags = 4);                                \
    MISUSE(MHA_ERR_UNSUPPORTED, "reserved", a->x.outputs.reserved = 1);                          \
    MISUSE(MHA_ERR_ARGUMENT, "score_stage", a->x.outputs.score_stage = (mha_score_stage)3);      \
    MISUSE(MHA_ERR_ARGUMENT, "heads[1]", a->x.request.heads[1] = H);                             \
    MISUSE(MHA_ERR_ARGUMENT, "heads[2]", a->x.request.heads[2] = -1);                            \
    MISUSE(MHA_ERR_ARGUMENT, "heads", a->x.outputs.heads_count = -1);                            \
    MISUSE(MHA_ERR_ARGUMENT, "heads", a->x.outputs.heads = NULL);                                \
    MISUSE(MHA_ERR_ARGUMENT, "rows[0]", a->x.request.rows[0] = T);                               \
    MISUSE(MHA_ERR_ARGUMENT, "rows[0]", a->x.request.rows[0] = INT64_MIN);                       \
    MISUSE(MHA_ERR_ARGUMENT, "rows", a->x.outputs.rows = NULL);                                  \
    MISUSE(MHA_ERR_ARGUMENT, "rows", a->x.outputs.rows_count = INT64_MIN);                       \
    MISUSE(MHA_ERR_SHAPE, "probabilities", a->x.outputs.rows_count = 1);                         \
    MISUSE(MHA_ERR_ARGUMENT, "offsets", a->x.outputs.offsets = NULL);                            \
    MISUSE(MHA_ERR_ARGUMENT, "offset_mass", a->x.outputs.offset_mass = NULL);                    \
    MISUSE(MHA_ERR_ARGUMENT, "offset", a->x.outputs.offsets_count = -2);                         \
    MISUSE(MHA_ERR_SHAPE, "offset_mass", a->x.outputs.offsets_count = 3);                        \
    MISUSE(MHA_ERR_ARGUMENT, "top_weights", a->x.outputs.top_weights = NULL);                    \
    MISUSE(MHA_ERR_ARGUMENT, "top_keys", a->x.outputs.top_keys = NULL);                          \
    MISUSE(MHA_ERR_SHAPE, "top_keys", SPOILED(top_keys), a->spoiled.shape[3] = 0);               \
    MISUSE(MHA_ERR_SHAPE, "top_weights", SPOILED(top_weights), a->spoiled.shape[3] = K - 1);     \
    MISUSE(MHA_ERR_DTYPE, "largest_key", SPOILED(largest_key), a->spoiled.dtype = MHA_F32);      \
    MISUSE(MHA_ERR_DTYPE, "top_keys", SPOILED(top_keys), a->spoiled.dtype = MHA_I32);            \
    MISUSE(MHA_ERR_DTYPE, "entropy", SPOILED(entropy), a->spoiled.dtype = MHA_F64);              \
    MISUSE(MHA_ERR_SHAPE, "entropy", SPOILED(entropy), a->spoiled.shape[1] = H + 1);             \
    MISUSE(MHA_ERR_SHAPE, "entropy", SPOILED(entropy), a->spoiled.ndim = 2);                     \
    MISUSE(MHA_ERR_STRIDE, "largest_weight", SPOILED(largest_weight), a->spoiled.stride[2] = 0); \
    MISUSE(MHA_ERR_NULL, "first_token", SPOILED(first_token), a->spoiled.data = NULL);           \
    MISUSE(MHA_ERR_SHAPE, "average_probabilities", SPOILED(average_probabilities),               \
           a->spoiled.shape[1] = 2);                                                             \
    MISUSE(MHA_ERR_SHAPE, "scores", SPOILED(scores), a->spoiled.shape[3] = S - 1);               \
    MISUSE(MHA_ERR_SHAPE, "probabilities", SPOILED(probabilities), a->spoiled.shape[1] = H);     \
    MISUSE(MHA_ERR_SHAPE, "column_sums", SPOILED(column_sums), a->spoiled.shape[2] = T);         \
    MISUSE(MHA_ERR_STRIDE, "column_sums", SPOILED(column_sums), a->spoiled.stride[2] = 2);       \
    MISUSE(MHA_ERR_OVERLAP, "entropy", SPOILED(entropy), a->spoiled.data = a->x.o.view.data);    \
    MISUSE(MHA_ERR_OVERLAP, "diagonal", SPOILED(diagonal), a->spoiled.data = a->c.q.view.data);  \
    MISUSE(MHA_ERR_OVERLAP, "column_sums", SPOILED(column_sums),                                 \
           a->spoiled.data = a->c.v.view.data);                                                  \
    MISUSE(MHA_ERR_OVERLAP, "first_token", SPOILED(first_token),                                 \
           a->spoiled.data = a->x.outputs.diagonal->data);                                       \
    MISUSE(MHA_ERR_OVERLAP, "top_weights", SPOILED(top_weights),                                 \
           a->spoiled.data = a->x.outputs.top_keys->data);                                       \
    MISUSE(MHA_ERR_OVERLAP, "scores", SPOILED(scores),                                           \
           a->spoiled.data = a->x.outputs.probabilities->data);                                  \
    MISUSE(MHA_ERR_OVERLAP, "average_probabilities", SPOILED(average_probabilities),             \
           a->spoiled.data = a->x.outputs.column_sums->data);                                    \
    MISUSE(MHA_ERR_OVERLAP, "heads", a->x.outputs.heads = a->x.outputs.largest_key->data,        \
           memset(a->x.outputs.largest_key->data, 0, 32));                                       \
    MISUSE(MHA_ERR_OVERLAP, "rows", a->x.outputs.rows = a->x.outputs.top_keys->data,             \
           memset(a->x.outputs.top_keys->data, 0, 32));                                          \
    MISUSE(MHA_ERR_OVERLAP, "offsets", a->x.outputs.offsets = a->x.outputs.top_keys->data);
DEFINE_SPOIL(call *a, spoil, ROWS)

static void snapshot(extras *x)
{
    guarded_snapshot(&x->o);
    for (int i = 0; i < EXTRAS_COUNT; i++) guarded_snapshot(&x->each[i]);
}

static bool unchanged(const extras *x)
{
    bool all = guarded_unchanged(&x->o);
    for (int i = 0; i < EXTRAS_COUNT; i++) all = all && guarded_unchanged(&x->each[i]);
    return all;
}

static void misuse_is_refused(void)
{
    machines all = machines_make(2);
    for (size_t i = 0, rows = spoil(NULL, SIZE_MAX).rows; i < rows; i++)
        for (int m = 0; m < all.count; m++) {
            rng r = rng_make(rng_run_seed(), i);
            call a;
            call_make(&a, &r);
            const expected_refusal wrong = spoil(&a, i);
            snapshot(&a.x);
            expect_row(i, extras_run(all.each[m].context, &a.c, all.each[m].path, &a.x),
                       wrong.status, wrong.part);
            if (!unchanged(&a.x)) fail_msg("case %zu: something was written", i);
            call_free(&a);
        }
}

/* ---- old structs, and valid edge cases ------------------------------------------------------- */

/* A struct of the first release ends with probabilities; memory after it is not read. */
static void old_struct(void)
{
    rng r = rng_make(rng_run_seed(), 1);
    call a;
    call_make(&a, &r);
    mha_tensor p = a.x.each[EXTRA_P].view;
    guarded whole = guarded_make(&r, MHA_F32, 4, (int64_t[]){B, H, T, S}, 0);
    p = whole.view;
    memset(&a.x.outputs, 0x5a, sizeof a.x.outputs);
    a.x.outputs.struct_size = 24;
    a.x.outputs.flags = 0;
    a.x.outputs.lse = NULL;
    a.x.outputs.probabilities = &p;
    expect_ok(extras_run(machines_context(1, 0), &a.c, MHA_PATH_AUTO, &a.x));
    guarded_free(&whole);
    call_free(&a);
}

/* Empty lists, empty axes, strict, and an offset that only `diagonal` reads. */
static void allowed(void)
{
    machines all = machines_make(1);
    static const int64_t shapes[][3] = {{0, 4, 3}, {2, 0, 3}, {2, 4, 0}, {2, 4, 3}, {1, 1, 600}};
    for (int m = 0; m < all.count; m++)
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            rng r = rng_make(rng_run_seed(), 2);
            const kinds_shape shape = {.B = shapes[i][0],
                                       .H = 4,
                                       .Hk = 2,
                                       .T = shapes[i][1],
                                       .S = shapes[i][2],
                                       .D = 8,
                                       .Dv = 8,
                                       .plain_layout = true};
            const extras_request request = {.rows_count = -1, .top = 2}; /* no head, no offset */
            kinds_case c;
            extras x;
            kinds_make(&c, &r, &shape);
            c.desc.flags |= MHA_ATTENTION_STRICT;
            c.desc.q_offset = 1;
            extras_make(&x, &r, &c, &request, EXTRAS_ALL, 0);
            mha_status status = extras_run(all.each[m].context, &c, all.each[m].path, &x);
            if (status != MHA_OK) fail_msg("%s: %s", all.each[m].name, mha_error_detail());
            extras_free(&x);
            kinds_free(&c);
        }
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Whether the call succeeds while allocation n fails, and later ones if and_later. */
static bool survives(call *a, const machine *m, int64_t n, bool and_later)
{
    failing_alloc memory = failing_alloc_make();
    memory.fail_at = n;
    memory.fail_after = and_later;
    mha_context *context = NULL;
    mha_status status = failing_context(&memory, 3, m->isa, &context);
    snapshot(&a->x);
    if (status == MHA_OK) status = extras_run(context, &a->c, m->path, &a->x);
    if (status != MHA_OK) {
        assert_int_equal(status, MHA_ERR_NOMEM);
        assert_true(unchanged(&a->x));
    }
    mha_context_destroy(context);
    assert_int_equal(memory.live, 0);
    assert_int_equal(memory.mistakes, 0);
    return status == MHA_OK && memory.calls <= n;
}

static void failed_allocations_are_reported(void)
{
    machines all = machines_make(1);
    for (int m = 0; m < all.count; m++)
        for (int later = 0; later < 2; later++) {
            rng r = rng_make(rng_run_seed(), 3);
            call a;
            call_make(&a, &r);
            int64_t n = 0;
            while (!survives(&a, &all.each[m], n, later)) n++;
            assert_true(n > 2);
            call_free(&a);
        }
}

/* The scratch reported by explain suffices for any selection of outputs. */
static void plans_come_true(void)
{
    for (int i = 0; i < rng_cases(150, 1500); i++) {
        rng r = rng_make(rng_run_seed(), 1000 + (uint64_t)i);
        kinds_shape shape = kinds_some_shape(&r);
        kinds_case c;
        extras x;
        kinds_make(&c, &r, &shape);
        extras_request request = extras_some(&r, &c);
        const unsigned top = 1 << EXTRA_TOP_KEYS | 1 << EXTRA_TOP_WEIGHTS;
        unsigned which = (unsigned)rng_next(&r) & EXTRAS_ALL;
        extras_make(&x, &r, &c, &request, which & top ? which | top : which, 0);
        failing_alloc memory = failing_alloc_make();
        mha_context *context;
        mha_attention_plan plan;
        const int32_t threads = (int32_t)rng_between(&r, 1, 4);
        expect_ok(failing_context(&memory, threads, MHA_ISA_AUTO, &context));
        expect_ok(mha_attention_explain(context, &c.desc, &c.q.view, &c.k.view, &c.v.view,
                                        &x.o.view, &x.outputs, &plan));
        expect_ok(mha_context_reserve(context, plan.scratch_bytes));
        int64_t calls = memory.calls;
        expect_ok(extras_run(context, &c, MHA_PATH_AUTO, &x));
        if (memory.calls != calls)
            fail_msg("%s: %zu bytes were promised to be enough", c.text, plan.scratch_bytes);
        mha_context_destroy(context);
        extras_free(&x);
        kinds_free(&c);
    }
}

/* explain counts the pairs that are known without reading tensors. */
static void pairs_are_counted(void)
{
    const unsigned counted = KIND_CAUSAL | KIND_OFFSETS | KIND_LENGTHS | KIND_BEGINS | KIND_WINDOW |
                             KIND_SINK_KEYS | KIND_RAGGED;
    mha_context *context = context_with(0);
    for (int i = 0; i < rng_cases(200, 2000); i++) {
        rng r = rng_make(rng_run_seed(), 7000 + (uint64_t)i);
        kinds_shape shape = kinds_some_shape(&r);
        kinds_case c;
        mha_attention_plan plan;
        int64_t pairs = 0;
        shape.kinds = (unsigned)rng_next(&r) & counted;
        kinds_make(&c, &r, &shape);
        const ref_attention a = kinds_reference(&c);
        for (int64_t b = 0; b < kinds_sequences(&a); b++)
            for (int64_t t = 0; t < kinds_sequence_at(&a, b).T; t++)
                for (int64_t s = 0; s < kinds_sequence_at(&a, b).S; s++)
                    pairs += c.result.H * kinds_sees(&a, b, 0, t, s);
        expect_ok(mha_attention_explain(context, &c.desc, &c.q.view, &c.k.view, &c.v.view, NULL,
                                        NULL, &plan));
        if (plan.visible_pairs != pairs)
            fail_msg("%lld pairs, not %lld: %s", (long long)plan.visible_pairs, (long long)pairs,
                     c.text);
        kinds_free(&c);
    }
}

/* Statistics of all rows need 8 bytes per row and head, and no T x S array. */
static void linear_memory(void)
{
    const int64_t heads = 8, length = 1000000;
    mha_context *context;
    const mha_context_desc desc = {.struct_size = sizeof desc, .num_threads = 2};
    expect_ok(mha_context_create(&desc, &context));
    const mha_tensor x = mha_tensor_contiguous(NULL, MHA_F32, 4, (int64_t[]){1, heads, length, 64});
    const mha_tensor row = mha_tensor_contiguous(NULL, MHA_F32, 3, x.shape);
    const mha_tensor key = mha_tensor_contiguous(NULL, MHA_I64, 3, x.shape);
    const mha_attention_outputs outputs = {.struct_size = sizeof outputs,
                                           .entropy = &row,
                                           .largest_weight = &row,
                                           .largest_key = &key,
                                           .first_token = &row,
                                           .diagonal = &row,
                                           .column_sums = &row};
    mha_attention_plan bare, full;
    expect_ok(mha_attention_explain(context, NULL, &x, &x, &x, NULL, NULL, &bare));
    expect_ok(mha_attention_explain(context, NULL, &x, &x, &x, NULL, &outputs, &full));
    assert_int_equal(full.path, MHA_PATH_TILED);
    assert_true(full.scratch_bytes <
                bare.scratch_bytes + (size_t)(8 * heads * length) + 64 * 1024 * 2);
    mha_context_destroy(context);
}

/* ---- batches and padding --------------------------------------------------------------------- */

/* Entry b of an output, limited to S columns if its last axis is keys. */
static mha_tensor part(const extras *x, int i, int64_t b, int64_t keys)
{
    mha_tensor view = guarded_slice(&x->each[i].view, 0, b, 1);
    bool columns = i == EXTRA_P || i == EXTRA_AVERAGE || i == EXTRA_SCORES || i == EXTRA_COLUMNS;
    if (columns) view = guarded_slice(&view, view.ndim - 1, 0, keys);
    return view;
}

/* Sequence b computed separately, without the padding of the batch, gives the same bits. */
static void alone(const machine *m, const kinds_case *c, const extras *together, rng *r, int64_t b)
{
    const int64_t keys = c->lengths[b];
    kinds_case one = *c;
    one.q.view = guarded_slice(&c->q.view, 0, b, 1);
    one.k.view = guarded_slice(&c->k.view, 0, b, 1);
    one.v.view = guarded_slice(&c->v.view, 0, b, 1);
    one.k.view = guarded_slice(&one.k.view, 2, 0, keys);
    one.v.view = guarded_slice(&one.v.view, 2, 0, keys);
    one.desc.key_lengths = NULL;
    one.result.B = 1, one.result.S = keys;
    extras x;
    extras_make(&x, r, &one, &together->request, EXTRAS_ALL, 0);
    expect_ok(extras_run(m->context, &one, m->path, &x));
    for (int i = 0; i < EXTRAS_COUNT; i++) {
        mha_tensor expected = part(together, i, b, keys);
        if (!guarded_same_bits(&x.each[i].view, &expected, false))
            fail_msg("%s: %s of sequence %lld changes with its batch", m->name, extras_name(i),
                     (long long)b);
    }
    extras_free(&x);
}

static void batch_and_padding(void)
{
    machines all = machines_make(2);
    for (int n = 0; n < rng_cases(10, 100); n++) {
        rng r = rng_make(rng_run_seed(), 4000 + (uint64_t)n);
        const kinds_shape shape = {.B = 3,
                                   .H = 4,
                                   .Hk = 2,
                                   .T = rng_between(&r, 1, 70),
                                   .S = rng_between(&r, 1, 1100),
                                   .D = rng_between(&r, 1, 40),
                                   .Dv = 8,
                                   .kinds = KIND_CAUSAL | KIND_LENGTHS | KIND_SOFTCAP,
                                   .plain_layout = true};
        kinds_case c;
        extras x;
        kinds_make(&c, &r, &shape);
        extras_request request = extras_some(&r, &c);
        request.stage = MHA_SCORES_BIASED; /* other stages also contain padded keys */
        for (int m = 0; m < all.count; m++) {
            extras_make(&x, &r, &c, &request, EXTRAS_ALL, 0);
            expect_ok(extras_run(all.each[m].context, &c, all.each[m].path, &x));
            for (int64_t b = 0; b < 3; b++) alone(&all.each[m], &c, &x, &r, b);
            extras_free(&x);
        }
        kinds_free(&c);
    }
}

RUN_TESTS(TEST(misuse_is_refused), TEST(old_struct), TEST(allowed),
          TEST(failed_allocations_are_reported), TEST(plans_come_true), TEST(pairs_are_counted),
          TEST(linear_memory), TEST(batch_and_padding))
