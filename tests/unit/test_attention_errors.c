/* mha_attention_forward() apart from its results: every error, explain, allocation failures, reuse
 * of memory, forks. */
#include "support/backward_call.h"
#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/machines.h"
#include "support/problem.h"
#include "support/shared_context.h"
#include "support/suite.h"

#include <multihead/attention.h>
#include <multihead/backward.h>
#include <multihead/linear_attention.h>

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__)
#define THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define THREAD_SANITIZER 1
#endif
#endif

/* ---- errors --------------------------------------------------------------------------------- */

/* The arguments of a valid call. Each case spoils one. */
typedef struct call {
    mha_context *context;
    mha_attention_desc desc;
    mha_attention_outputs outputs;
    mha_tensor q, k, v, o, lse, p, keep, bias;
    const mha_tensor *q_at, *k_at, *v_at, *o_at;
    int64_t lengths[2], offsets[2];
} call;

enum { B = 2, H = 4, HK = 2, T = 3, S = 5, D = 8, DV = 6 };

/* Each row changes one argument. */
#define ROWS                                                                                       \
    MISUSE(MHA_ERR_NULL, "context", c->context = NULL);                                            \
    MISUSE(MHA_ERR_NULL, "q", c->q_at = NULL);                                                     \
    MISUSE(MHA_ERR_NULL, "k", c->k_at = NULL);                                                     \
    MISUSE(MHA_ERR_NULL, "v", c->v_at = NULL);                                                     \
    MISUSE_OF_DATA(MHA_ERR_NULL, "o", c->o_at = NULL);                                             \
    MISUSE_OF_DATA(MHA_ERR_NULL, "q", c->q.data = NULL);                                           \
    MISUSE_OF_DATA(MHA_ERR_NULL, "k", c->k.data = NULL);                                           \
    MISUSE_OF_DATA(MHA_ERR_NULL, "v", c->v.data = NULL);                                           \
    MISUSE_OF_DATA(MHA_ERR_NULL, "o", c->o.data = NULL);                                           \
    MISUSE_OF_DATA(MHA_ERR_NULL, "lse", c->lse.data = NULL);                                       \
    MISUSE_OF_DATA(MHA_ERR_NULL, "probabilities", c->p.data = NULL);                               \
    MISUSE_OF_DATA(MHA_ERR_NULL, "keep_mask", c->keep.data = NULL);                                \
    MISUSE_OF_DATA(MHA_ERR_NULL, "bias", c->bias.data = NULL);                                     \
    MISUSE(MHA_ERR_DTYPE, "q", c->q.dtype = MHA_F64);                                              \
    MISUSE(MHA_ERR_DTYPE, "k", c->k.dtype = MHA_I8);                                               \
    MISUSE(MHA_ERR_DTYPE, "v", c->v.dtype = MHA_I32);                                              \
    MISUSE(MHA_ERR_DTYPE, "o", c->o.dtype = MHA_I64);                                              \
    MISUSE(MHA_ERR_DTYPE, "lse", c->lse.dtype = MHA_F64);                                          \
    MISUSE(MHA_ERR_DTYPE, "probabilities", c->p.dtype = (mha_dtype)99);                            \
    MISUSE(MHA_ERR_DTYPE, "keep_mask", c->keep.dtype = MHA_F32);                                   \
    MISUSE(MHA_ERR_DTYPE, "bias", c->bias.dtype = MHA_U8);                                         \
    MISUSE(MHA_ERR_SHAPE, "q", c->q.ndim = 3);                                                     \
    MISUSE(MHA_ERR_SHAPE, "k", c->k.ndim = 1000);                                                  \
    MISUSE(MHA_ERR_SHAPE, "v", c->v.ndim = -1);                                                    \
    MISUSE(MHA_ERR_SHAPE, "o", c->o.ndim = 5);                                                     \
    MISUSE(MHA_ERR_SHAPE, "lse", c->lse.ndim = 4);                                                 \
    MISUSE(MHA_ERR_SHAPE, "probabilities", c->p.ndim = 3);                                         \
    MISUSE(MHA_ERR_SHAPE, "keep_mask", c->keep.ndim = 5);                                          \
    MISUSE(MHA_ERR_SHAPE, "bias", c->bias.ndim = -7);                                              \
    MISUSE(MHA_ERR_SHAPE, "q", c->q.shape[2] = -1);                                                \
    MISUSE(MHA_ERR_SHAPE, "k", c->k.shape[0] = 1);                                                 \
    MISUSE(MHA_ERR_SHAPE, "k", c->k.shape[3] = 7);                                                 \
    MISUSE(MHA_ERR_SHAPE, "k", c->k.shape[1] = c->v.shape[1] = 3);                                 \
    MISUSE(MHA_ERR_SHAPE, "k", c->k.shape[1] = c->v.shape[1] = 0);                                 \
    MISUSE(MHA_ERR_SHAPE, "v", c->v.shape[0] = 1);                                                 \
    MISUSE(MHA_ERR_SHAPE, "v", c->v.shape[1] = 1);                                                 \
    MISUSE(MHA_ERR_SHAPE, "v", c->v.shape[2] = 4);                                                 \
    MISUSE(MHA_ERR_SHAPE, "q", c->q.shape[3] = c->k.shape[3] = 0);                                 \
    MISUSE(MHA_ERR_SHAPE, "o", c->o.shape[2] = 2);                                                 \
    MISUSE(MHA_ERR_SHAPE, "o", c->o.shape[1] = 2);                                                 \
    MISUSE(MHA_ERR_SHAPE, "o", c->o.shape[3] = D);                                                 \
    MISUSE(MHA_ERR_SHAPE, "lse", c->lse.shape[2] = 2);                                             \
    MISUSE(MHA_ERR_SHAPE, "probabilities", c->p.shape[3] = 4);                                     \
    MISUSE(MHA_ERR_SHAPE, "keep_mask", c->keep.shape[3] = 4);                                      \
    MISUSE(MHA_ERR_SHAPE, "bias", c->bias.shape[1] = 3);                                           \
    MISUSE(MHA_ERR_STRIDE, "q", c->q.stride[3] = 2);                                               \
    MISUSE(MHA_ERR_STRIDE, "k", c->k.stride[3] = -1);                                              \
    MISUSE(MHA_ERR_STRIDE, "v", c->v.stride[3] = 0);                                               \
    MISUSE(MHA_ERR_STRIDE, "o", c->o.stride[3] = 2);                                               \
    MISUSE(MHA_ERR_STRIDE, "o", c->o.stride[1] = 0);                                               \
    MISUSE(MHA_ERR_STRIDE, "o", c->o.stride[2] = DV - 1);                                          \
    MISUSE(MHA_ERR_STRIDE, "lse", c->lse.stride[0] = 0);                                           \
    MISUSE(MHA_ERR_STRIDE, "probabilities", c->p.stride[2] = 0);                                   \
    MISUSE(MHA_ERR_STRIDE, "o", c->o.data = (char *)c->o.data + 1);                                \
    MISUSE(MHA_ERR_STRIDE, "q", c->q.data = (char *)c->q.data + 2);                                \
    MISUSE_OF_DATA(MHA_ERR_OVERLAP, "o overlaps q", c->o.data = c->q.data);                        \
    MISUSE_OF_DATA(MHA_ERR_OVERLAP, "o overlaps v", c->o.data = (float *)c->v.data + 3);           \
    MISUSE_OF_DATA(MHA_ERR_OVERLAP, "o overlaps keep_mask", c->keep.data = (char *)c->o.data + 9); \
    MISUSE_OF_DATA(MHA_ERR_OVERLAP, "o overlaps bias", c->o.data = c->bias.data);                  \
    MISUSE_OF_DATA(MHA_ERR_OVERLAP, "lse overlaps o", c->lse.data = c->o.data);                    \
    MISUSE_OF_DATA(MHA_ERR_OVERLAP, "probabilities overlaps o",                                    \
                   c->p.data = (float *)c->o.data + 8);                                            \
    MISUSE_OF_DATA(MHA_ERR_OVERLAP, "probabilities overlaps k", c->p.data = c->k.data);            \
    MISUSE(MHA_ERR_SIZE, "q", c->q.stride[0] = INT64_MAX / 2);                                     \
    MISUSE(MHA_ERR_SIZE, "k", c->k.stride[1] = INT64_MIN);                                         \
    MISUSE(MHA_ERR_SIZE, "q",                                                                      \
           c->q.shape[2] = c->o.shape[2] = c->lse.shape[2] = c->p.shape[2] = INT64_MAX);           \
    MISUSE(MHA_ERR_ARGUMENT, "path", c->desc.path = (mha_path)7);                                  \
    MISUSE(MHA_ERR_ARGUMENT, "scale", c->desc.scale = NAN);                                        \
    MISUSE(MHA_ERR_ARGUMENT, "scale", c->desc.scale = INFINITY);                                   \
    MISUSE(MHA_ERR_UNSUPPORTED, "flags", c->desc.flags |= 1u << 31);                               \
    MISUSE(MHA_ERR_ARGUMENT, "q_offset", c->desc.q_offset = 1);                                    \
    MISUSE(MHA_ERR_ARGUMENT, "q_offset", c->desc.q_offsets = c->offsets);                          \
    MISUSE(MHA_ERR_ARGUMENT, "q_offset", c->desc.flags |= MHA_ATTENTION_CAUSAL,                    \
           c->desc.q_offset = 1, c->desc.q_offsets = c->offsets);                                  \
    MISUSE(MHA_ERR_ARGUMENT, "key_lengths[1]", c->lengths[1] = -1,                                 \
           c->desc.key_lengths = c->lengths);                                                      \
    MISUSE(MHA_ERR_ARGUMENT, "key_lengths[1]", c->lengths[1] = S + 1,                              \
           c->desc.key_lengths = c->lengths);                                                      \
    MISUSE(MHA_ERR_ARGUMENT, "key_begins[1]", c->lengths[1] = -1,                                  \
           c->desc.key_begins = c->lengths);                                                       \
    MISUSE(MHA_ERR_ARGUMENT, "key_begins[1]", c->lengths[1] = S + 1,                               \
           c->desc.key_begins = c->lengths);                                                       \
    MISUSE(MHA_ERR_ARGUMENT, "struct_size", c->desc.struct_size = 0);                              \
    MISUSE(MHA_ERR_ARGUMENT, "struct_size", c->desc.struct_size = 8);                              \
    MISUSE(MHA_ERR_ARGUMENT, "struct_size", c->outputs.struct_size = 0);                           \
    MISUSE(MHA_ERR_UNSUPPORTED, "reserved", c->outputs.reserved = 1);
DEFINE_SPOIL(call *c, spoil, ROWS)

/* The memory of a call. */
typedef struct arena {
    guarded q, k, v, o, lse, p, keep, bias;
} arena;

static arena arena_make(rng *r)
{
    arena a = {
        .q = guarded_make(r, MHA_F32, 4, (int64_t[]){B, H, T, D}, LAYOUT_PAD),
        .k = guarded_make(r, MHA_F32, 4, (int64_t[]){B, HK, S, D}, LAYOUT_PAD),
        .v = guarded_make(r, MHA_F32, 4, (int64_t[]){B, HK, S, DV}, 0),
        .o = guarded_make(r, MHA_F32, 4, (int64_t[]){B, H, T, DV}, 0),
        .lse = guarded_make(r, MHA_F32, 3, (int64_t[]){B, H, T}, 0),
        .p = guarded_make(r, MHA_F32, 4, (int64_t[]){B, H, T, S}, 0),
        .keep = guarded_make(r, MHA_U8, 4, (int64_t[]){B, 1, 1, S}, 0),
        .bias = guarded_make(r, MHA_F32, 4, (int64_t[]){1, H, T, S}, 0),
    };
    guarded *inputs[] = {&a.q, &a.k, &a.v, &a.bias};
    for (int i = 0; i < 4; i++) guarded_fill(r, &inputs[i]->view, 1);
    return a;
}

static void arena_free(arena *a)
{
    guarded *all[] = {&a->q, &a->k, &a->v, &a->o, &a->lse, &a->p, &a->keep, &a->bias};
    for (int i = 0; i < 8; i++) guarded_free(all[i]);
}

/* Make the call in place, because it points into itself. */
static void call_make(call *c, mha_context *context, const arena *a)
{
    *c = (call){.context = context, .q = a->q.view, .k = a->k.view, .v = a->v.view};
    c->o = a->o.view, c->lse = a->lse.view, c->p = a->p.view;
    c->keep = a->keep.view, c->bias = a->bias.view;
    c->q_at = &c->q, c->k_at = &c->k, c->v_at = &c->v, c->o_at = &c->o;
    c->desc = (mha_attention_desc){
        .struct_size = sizeof c->desc, .keep_mask = &c->keep, .bias = &c->bias};
    c->outputs = (mha_attention_outputs){
        .struct_size = sizeof c->outputs, .lse = &c->lse, .probabilities = &c->p};
}

static mha_status call_forward(call *c)
{
    return mha_attention_forward(c->context, &c->desc, c->q_at, c->k_at, c->v_at, c->o_at,
                                 &c->outputs);
}

static mha_status call_explain(call *c, mha_attention_plan *plan)
{
    return mha_attention_explain(c->context, &c->desc, c->q_at, c->k_at, c->v_at, c->o_at,
                                 &c->outputs, plan);
}

static void misuse_is_refused(void)
{
    rng r = rng_make(rng_run_seed(), 1);
    arena a = arena_make(&r);
    guarded *memory[] = {&a.q, &a.k, &a.v, &a.o, &a.lse, &a.p, &a.keep, &a.bias};
    mha_context *context = context_with(0);
    call c;
    mha_attention_plan plan;
    call_make(&c, context, &a);
    expect_ok(call_forward(&c));
    for (int j = 0; j < 8; j++) guarded_snapshot(memory[j]);
    for (size_t i = 0, rows = spoil(NULL, SIZE_MAX).rows; i < rows; i++) {
        call_make(&c, context, &a);
        const expected_refusal wrong = spoil(&c, i);
        expect_row(i, call_forward(&c), wrong.status, wrong.part);
        for (int j = 0; j < 8; j++)
            if (!guarded_unchanged(memory[j])) fail_msg("case %zu changed memory %d", i, j);
        memset(&plan, 0x5A, sizeof plan);
        mha_attention_plan before = plan;
        mha_status status = call_explain(&c, &plan);
        if (status != (wrong.data_only ? MHA_OK : wrong.status))
            fail_msg("case %zu (%s): explain gives %d", i, wrong.part, (int)status);
        if (status != MHA_OK) assert_memory_equal(&plan, &before, sizeof plan);
    }
    arena_free(&a);
}

/* Lengths whose product overflows, together with a length of 0 or a broadcast axis. */
static void huge_shapes(void)
{
    mha_context *context = context_with(0);
    const int64_t big = (int64_t)1 << 40;
    const int64_t shapes[][5] = {/* B, H, Hk, T, S */
                                 {0, big, 1, big, 3},
                                 {big, big, big, 0, 3},
                                 {1, big, 1, 0, big},
                                 {1, big, big, big, 0},
                                 {0, 1, 1, big, big}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const int64_t *n = shapes[i];
        float x = 1;
        mha_tensor q = mha_tensor_contiguous(&x, MHA_F32, 4, (int64_t[]){n[0], n[1], n[3], 1});
        mha_tensor k = mha_tensor_contiguous(&x, MHA_F32, 4, (int64_t[]){n[0], n[2], n[4], 1});
        mha_tensor v = mha_tensor_contiguous(&x, MHA_F32, 4, (int64_t[]){n[0], n[2], n[4], 0});
        mha_tensor o = mha_tensor_contiguous(NULL, MHA_F32, 4, (int64_t[]){n[0], n[1], n[3], 0});
        for (int axis = 0; axis < 3; axis++) q.stride[axis] = k.stride[axis] = 0;
        mha_attention_plan plan;
        expect_row(i, mha_attention_explain(context, NULL, &q, &k, &v, &o, NULL, &plan),
                   MHA_ERR_SIZE, "");
        expect_row(i, mha_attention_forward(context, NULL, &q, &k, &v, &o, NULL), MHA_ERR_SIZE, "");
    }
}

/* Strides of axes of length 1 and of empty tensors are ignored: NumPy uses any value, including 0. */
static void unused_strides(void)
{
    mha_context *context = context_with(0);
    static const int64_t strides[] = {0, -7, (int64_t)1 << 58, INT64_MAX / 3, INT64_MIN};
    for (int i = 0; i < 5; i++)
        for (int empty = 0; empty < 2; empty++) {
            float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[8];
            const int64_t shape[] = {1, 1, 2, empty ? 0 : 4};
            const mha_tensor q = mha_tensor_contiguous(x, MHA_F32, 4, (int64_t[]){1, 1, 2, 4});
            mha_tensor v = mha_tensor_contiguous(x, MHA_F32, 4, shape), o = v;
            o.data = y;
            for (int axis = 0; axis < (empty ? 4 : 2); axis++)
                v.stride[axis] = o.stride[axis] = strides[i];
            const int64_t most = (int64_t)1 << 58;
            const bool fits = strides[i] > -most && strides[i] < most;
            mha_status status = mha_attention_forward(context, NULL, &q, &q, &v, &o, NULL);
            assert_int_equal(status, fits ? MHA_OK : MHA_ERR_SIZE);
            if (!fits) expect_row((size_t)i, status, MHA_ERR_SIZE, "beyond the address space");
            mha_linear_attention_desc desc = {.struct_size = sizeof desc,
                                              .flags = MHA_LINEAR_ATTENTION_CAUSAL};
            status = mha_linear_attention_forward(context, &desc, &q, &q, &v, &o, NULL);
            assert_int_equal(status, fits ? MHA_OK : MHA_ERR_SIZE);
        }
    float x[8] = {0};
    const mha_tensor k = mha_tensor_contiguous(x, MHA_F32, 4, (int64_t[]){1, 1, 2, 4});
    const mha_tensor none = {.dtype = MHA_F32, .ndim = 4, .shape = {1, 1, 0, 4}}; /* NumPy's */
    expect_ok(mha_attention_forward(context, NULL, &none, &k, &k, &none, NULL));
}

/* ---- structs that grow ---------------------------------------------------------------------- */

/* Struct sizes that end inside a field, or were never set, are rejected. */
static void cut_structs(void)
{
    rng r = rng_make(rng_run_seed(), 9);
    arena a = arena_make(&r);
    mha_context *context = context_with(0);
    call c;
    call_make(&c, context, &a);
    mha_attention_desc desc = {.flags = MHA_ATTENTION_WINDOW, .left_keys = S, .right_keys = S};
    mha_tensor global = mha_tensor_contiguous(NULL, MHA_U8, 2, (int64_t[]){0, 0});
    desc.global_keys = &global; /* rejected by its shape if it is read completely */
    for (uint32_t size = 0; size <= sizeof desc; size++) {
        desc.struct_size = size;
        mha_status status = mha_attention_forward(context, &desc, &c.q, &c.k, &c.v, &c.o, NULL);
        if (size % 8 != 0 || size < offsetof(mha_attention_desc, left_keys))
            assert_int_equal(status, MHA_ERR_ARGUMENT);
        else
            assert_int_equal(
                status, size <= offsetof(mha_attention_desc, global_keys) ? MHA_OK : MHA_ERR_SHAPE);
    }
    desc.struct_size = 4104;
    assert_int_equal(mha_attention_forward(context, &desc, &c.q, &c.k, &c.v, &c.o, NULL),
                     MHA_ERR_ARGUMENT);
    assert_non_null(strstr(mha_error_detail(), "struct_size is 4104"));
    arena_free(&a);
}

static void newer_structs(void)
{
    rng r = rng_make(rng_run_seed(), 2);
    arena a = arena_make(&r);
    mha_context *context = context_with(0);
    call c;
    call_make(&c, context, &a);
    struct {
        mha_attention_desc desc;
        unsigned char more[24];
    } desc;
    struct {
        mha_attention_outputs outputs;
        unsigned char more[24];
    } outputs;
    memset(&desc, 0, sizeof desc);
    memset(&outputs, 0, sizeof outputs);
    desc.desc.struct_size = sizeof desc;
    outputs.outputs.struct_size = sizeof outputs;
#define NEWER mha_attention_forward(context, &desc.desc, &c.q, &c.k, &c.v, &c.o, &outputs.outputs)
    expect_ok(NEWER);
    desc.more[23] = 1;
    assert_int_equal(NEWER, MHA_ERR_UNSUPPORTED);
    assert_non_null(strstr(mha_error_detail(), "mha_attention_desc"));
    desc.more[23] = 0;
    outputs.more[0] = 1;
    assert_int_equal(NEWER, MHA_ERR_UNSUPPORTED);
    assert_non_null(strstr(mha_error_detail(), "mha_attention_outputs"));
#undef NEWER
    expect_ok(mha_attention_forward(context, NULL, &c.q, &c.k, &c.v, &c.o, NULL));
    arena_free(&a);
}

/* ---- paths and plans ------------------------------------------------------------------------ */

static void strict_and_plain(void)
{
    rng r = rng_make(rng_run_seed(), 3);
    const problem_shape wide[] = {
        {.B = 1, .H = 2, .Hk = 1, .T = 3, .S = 9, .D = 300, .Dv = 16},
        {.B = 1, .H = 2, .Hk = 1, .T = 3, .S = 9, .D = 16, .Dv = 257},
    };
    machines all = machines_make(1);
    for (int i = 0; i < 2; i++)
        for (int m = 0; m < all.count; m++) {
            problem p;
            problem_make(&p, &r, &wide[i]);
            outcome tiled = outcome_make(&r, &wide[i], OUTCOME_ALL, 0);
            outcome plain = outcome_make(&r, &wide[i], OUTCOME_ALL, 0);
            mha_context *context = all.each[m].context;
            mha_attention_plan plan;
            for (int path = MHA_PATH_AUTO; path <= MHA_PATH_TILED; path++) {
                p.desc.path = (mha_path)path;
                p.desc.flags |= MHA_ATTENTION_STRICT;
                guarded_snapshot(&tiled.o);
                assert_int_equal(problem_run(context, &p, p.desc.path, &tiled),
                                 MHA_ERR_UNSUPPORTED);
                assert_true(guarded_unchanged(&tiled.o));
                p.desc.flags &= ~(uint32_t)MHA_ATTENTION_STRICT;
                expect_ok(mha_attention_explain(context, &p.desc, &p.q.view, &p.k.view, &p.v.view,
                                                NULL, NULL, &plan));
                assert_int_equal(plan.path, MHA_PATH_PLAIN);
                assert_non_null(strstr(plan.reason, "256"));
                expect_ok(problem_run(context, &p, p.desc.path, &tiled));
                expect_ok(problem_run(context, &p, MHA_PATH_PLAIN, &plain));
                assert_true(outcome_same(&tiled, &plain, false));
            }
            p.desc.flags |= MHA_ATTENTION_STRICT; /* plain was requested: no fallback */
            expect_ok(problem_run(context, &p, MHA_PATH_PLAIN, &plain));
            outcome_free(&tiled);
            outcome_free(&plain);
            problem_free(&p);
        }
}

static int64_t count_pairs(const problem *p)
{
    int64_t pairs = 0;
    for (int64_t b = 0; b < p->shape.B; b++)
        for (int64_t t = 0; t < p->shape.T; t++)
            for (int64_t s = 0; s < p->shape.S; s++) {
                int64_t offset = p->desc.q_offsets ? p->offsets[b] : p->desc.q_offset;
                bool seen = !(p->desc.flags & MHA_ATTENTION_CAUSAL) || s - t <= offset;
                if (p->desc.key_lengths) seen = seen && s < p->lengths[b];
                pairs += seen;
            }
    return pairs * p->shape.H;
}

/* explain is correct, and reserving the scratch that it reports suffices. */
static void plans_come_true(void)
{
    for (int i = 0; i < rng_cases(100, 1000); i++) {
        rng r = rng_make(rng_run_seed(), 1000 + (uint64_t)i);
        problem_shape n = {.B = rng_between(&r, 1, 3), .Hk = rng_between(&r, 1, 2)};
        n.H = n.Hk * rng_between(&r, 1, 3);
        n.T = rng_between(&r, 0, 40), n.S = rng_between(&r, 0, 600);
        n.D = rng_between(&r, 1, 80), n.Dv = rng_between(&r, 1, 80);
        n.masks = (unsigned)rng_between(&r, 0, MASK_ALL);
        problem p;
        problem_make(&p, &r, &n);
        p.desc.path = (mha_path)rng_between(&r, 0, 2);
        failing_alloc memory = failing_alloc_make();
        mha_context *context;
        mha_attention_plan plan;
        const int32_t threads = (int32_t)rng_between(&r, 1, 4);
        expect_ok(failing_context(&memory, threads, MHA_ISA_AUTO, &context));
        outcome x = outcome_make(&r, &n, OUTCOME_ALL, 0);
        const mha_attention_outputs outputs = {
            .struct_size = sizeof outputs, .lse = &x.lse.view, .probabilities = &x.p.view};
        expect_ok(mha_attention_explain(context, &p.desc, &p.q.view, &p.k.view, &p.v.view,
                                        &x.o.view, &outputs, &plan));
        assert_int_equal(plan.path,
                         p.desc.path == MHA_PATH_PLAIN ? MHA_PATH_PLAIN : MHA_PATH_TILED);
        assert_true(plan.path == MHA_PATH_PLAIN || plan.isa == mha_context_isa(context));
        assert_true(plan.path == MHA_PATH_PLAIN || plan.key_block == 512);
        assert_true(plan.reason && *plan.reason);
        assert_int_equal(plan.visible_pairs, count_pairs(&p));
        bool again = plan.path == MHA_PATH_TILED && n.T > 0 && n.S > 0; /* for probabilities */
        assert_true(plan.flops ==
                    2.0 * (double)(n.D + n.Dv + (again ? n.D : 0)) * (double)plan.visible_pairs);
        expect_ok(mha_context_reserve(context, plan.scratch_bytes));
        int64_t calls = memory.calls;
        expect_ok(problem_run(context, &p, p.desc.path, &x));
        if (memory.calls != calls)
            fail_msg("%s: %zu bytes were promised to be enough", p.text, plan.scratch_bytes);
        outcome_free(&x);
        mha_context_destroy(context);
        assert_int_equal(memory.live, 0);
        assert_int_equal(memory.mistakes, 0);
        problem_free(&p);
    }
}

/* ---- memory --------------------------------------------------------------------------------- */

/* Create a context and run one call while allocation n fails. Returns whether no allocation
 * failed. */
static bool survives(const problem *p, rng *r, const machine *m, int64_t n, bool and_later)
{
    failing_alloc memory = failing_alloc_make();
    memory.fail_at = n;
    memory.fail_after = and_later;
    mha_context *context = NULL;
    outcome x = outcome_make(r, &p->shape, OUTCOME_ALL, LAYOUT_PAD);
    guarded_snapshot(&x.o);
    guarded_snapshot(&x.lse);
    guarded_snapshot(&x.p);
    mha_status status = failing_context(&memory, 3, m->isa, &context);
    if (status != MHA_OK)
        assert_null(context);
    else
        status = problem_run(context, p, m->path, &x);
    if (status != MHA_OK) {
        assert_int_equal(status, MHA_ERR_NOMEM);
        assert_true(*mha_error_detail() != '\0');
        assert_true(guarded_unchanged(&x.o) && guarded_unchanged(&x.lse) &&
                    guarded_unchanged(&x.p));
    } else {
        assert_true(!guarded_unchanged(&x.o));
    }
    bool failed = memory.calls > n;
    mha_context_destroy(context);
    assert_int_equal(memory.live, 0);
    assert_int_equal(memory.mistakes, 0);
    outcome_free(&x);
    return !failed && status == MHA_OK;
}

static void failed_allocations_are_reported(void)
{
    machines all = machines_make(1);
    rng r = rng_make(rng_run_seed(), 5);
    problem_shape n = {.B = 2, .H = 4, .Hk = 2, .T = 20, .S = 600, .D = 40, .Dv = 24};
    n.masks = MASK_ALL;
    problem p;
    problem_make(&p, &r, &n);
    for (int m = 0; m < all.count; m++)
        for (int later = 0; later < 2; later++) {
            int64_t fail_at = 0;
            while (!survives(&p, &r, &all.each[m], fail_at, later)) fail_at++;
            printf("  %s: %lld allocations, each one refused%s\n", all.each[m].name,
                   (long long)fail_at, later ? " with all later ones" : "");
            assert_true(fail_at >= 3); /* context, pool, scratch */
        }
    problem_free(&p);
}

static void steady_state(void)
{
    machines all = machines_make(1);
    rng r = rng_make(rng_run_seed(), 6);
    problem_shape n = {.B = 2, .H = 4, .Hk = 2, .T = 50, .S = 700, .D = 64, .Dv = 64};
    n.masks = MASK_ALL;
    for (int m = 0; m < all.count; m++) {
        problem p;
        problem_make(&p, &r, &n);
        failing_alloc memory = failing_alloc_make();
        mha_context *context;
        expect_ok(failing_context(&memory, 2, all.each[m].isa, &context));
        outcome x = outcome_make(&r, &n, OUTCOME_ALL, 0);
        expect_ok(problem_run(context, &p, all.each[m].path, &x));
        int64_t calls = memory.calls;
        for (int i = 0; i < 3; i++) expect_ok(problem_run(context, &p, all.each[m].path, &x));
        assert_int_equal(memory.calls, calls);
        mha_context_destroy(context);
        outcome_free(&x);
        problem_free(&p);
    }
}

/* Both directions count the same pairs, here with a window of 3 previous keys and the 2 first
 * keys. */
static void directions_count_alike(void)
{
    enum { HEADS = 2, TOKENS = 10, PAIRS = 1 + 2 + 3 + 4 + 5 + 5 * 6 };
    mha_context *context = context_with(0);
    const mha_tensor x = mha_tensor_contiguous(NULL, MHA_F32, 4, (int64_t[]){1, HEADS, TOKENS, 16});
    const mha_attention_desc desc = {.struct_size = sizeof desc,
                                     .flags = MHA_ATTENTION_CAUSAL | MHA_ATTENTION_WINDOW,
                                     .left_keys = 3,
                                     .sink_keys = 2};
    const mha_attention_gradients wanted = {.struct_size = sizeof wanted, .q = &x};
    mha_attention_plan forward, backward;
    expect_ok(mha_attention_explain(context, &desc, &x, &x, &x, NULL, NULL, &forward));
    expect_ok(mha_attention_backward_explain(
        context, BACKWARD_CALL(&desc, &x, &x, &x, NULL, NULL, NULL, &wanted), &backward));
    assert_int_equal(forward.visible_pairs, HEADS * PAIRS);
    assert_int_equal(backward.visible_pairs, HEADS * PAIRS);
}

/* The scratch of the tiled path does not grow with the length, here by a factor of a hundred: full,
 * causal, with a window and with a block pattern. The work of a window is linear in the length. */
static void linear_memory(void)
{
    enum { WINDOW = 512, BLOCK = 128, FULL = 0, CAUSAL, BAND, PATTERN, KINDS };
    mha_context *context;
    const mha_context_desc two = {.struct_size = sizeof two, .num_threads = 2};
    expect_ok(mha_context_create(&two, &context));
    for (int kind = 0; kind < KINDS; kind++) {
        size_t bytes[2];
        for (int i = 0; i < 2; i++) {
            const int64_t n = i ? 1000000 : 10000, blocks = (n + BLOCK - 1) / BLOCK;
            mha_tensor x = mha_tensor_contiguous(NULL, MHA_F32, 4, (int64_t[]){1, 8, n, 64});
            mha_tensor keep = mha_tensor_contiguous(NULL, MHA_U8, 2, (int64_t[]){blocks, blocks});
            mha_attention_desc desc = {.struct_size = sizeof desc};
            mha_attention_plan plan;
            if (kind == CAUSAL || kind == BAND) desc.flags |= MHA_ATTENTION_CAUSAL;
            if (kind == BAND) desc.flags |= MHA_ATTENTION_WINDOW, desc.left_keys = WINDOW - 1;
            if (kind == PATTERN)
                desc.keep_blocks = &keep, desc.block_queries = desc.block_keys = BLOCK;
            expect_ok(mha_attention_explain(context, &desc, &x, &x, &x, NULL, NULL, &plan));
            bytes[i] = plan.scratch_bytes;
            int64_t band = (int64_t)WINDOW * n - (int64_t)WINDOW * (WINDOW - 1) / 2;
            if (kind == FULL) assert_int_equal(plan.visible_pairs, 8 * n * n);
            if (kind == CAUSAL) assert_int_equal(plan.visible_pairs, 8 * (n * (n + 1) / 2));
            if (kind == BAND) assert_int_equal(plan.visible_pairs, 8 * band);
        }
        /* Chunks of rows are divided slightly differently. */
        assert_true(bytes[1] < bytes[0] + bytes[0] / 4);
    }
    mha_context_destroy(context);
}

/* ---- forks ---------------------------------------------------------------------------------- */

static void after_a_fork(void)
{
#ifdef THREAD_SANITIZER
    printf("  skipped: the thread sanitizer does not follow threads over a fork\n");
    skip();
#else
    rng r = rng_make(rng_run_seed(), 8);
    const problem_shape n = {.B = 2, .H = 6, .Hk = 3, .T = 300, .S = 300, .D = 32, .Dv = 32};
    const mha_context_desc desc = {.struct_size = sizeof desc, .num_threads = 4};
    mha_context *context;
    problem p;
    problem_make(&p, &r, &n);
    expect_ok(mha_context_create(&desc, &context));
    outcome parent = outcome_make(&r, &n, OUTCOME_ALL, 0);
    outcome child = outcome_make(&r, &n, OUTCOME_ALL, 0);
    expect_ok(problem_run(context, &p, MHA_PATH_AUTO, &parent));
    fflush(stdout);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(120); /* a lock that is never released must not hang the test */
        bool right = problem_run(context, &p, MHA_PATH_AUTO, &child) == MHA_OK &&
                     outcome_same(&parent, &child, false);
        mha_context_destroy(context);
        _exit(right ? 0 : 1);
    }
    int result = 0;
    assert_int_equal(waitpid(pid, &result, 0), pid);
    assert_true(WIFEXITED(result) && WEXITSTATUS(result) == 0);
    expect_ok(problem_run(context, &p, MHA_PATH_AUTO, &child));
    assert_true(outcome_same(&parent, &child, false));
    mha_context_destroy(context);
    outcome_free(&parent);
    outcome_free(&child);
    problem_free(&p);
#endif
}

RUN_TESTS(TEST(misuse_is_refused), TEST(huge_shapes), TEST(unused_strides), TEST(cut_structs),
          TEST(newer_structs), TEST(strict_and_plain), TEST(plans_come_true),
          TEST(failed_allocations_are_reported), TEST(steady_state), TEST(directions_count_alike),
          TEST(linear_memory), TEST(after_a_fork))
