/* Every invalid descriptor returns its status and a line that names the wrong number, and writes
 * nothing. test_attention_errors.c tests the arguments of the first descriptor. */
#include "support/expect.h"
#include "support/machines.h"
#include "support/problem.h"
#include "support/shared_context.h"
#include "support/suite.h"

#include <multihead/attention.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { B = 2, H = 4, HK = 2, T = 3, S = 5, D = 8, DV = 6, TOTAL_T = B * T, TOTAL_S = B * S };

/* The arguments of a valid call, with all options or ragged. Each case spoils one. */
typedef struct call {
    mha_attention_desc desc;
    mha_attention_outputs outputs;
    mha_tensor q, k, v, o, lse, p;
    mha_tensor global_keys, global_queries, query_documents, key_documents, blocks, slopes, t5,
        shaw_keys, shaw_values, sinks, gates;
    int64_t offsets[B], lengths[B], queries[B + 1], keys[B + 1];
} call;

/* The call's memory: one guarded tensor for the inputs of each type, and one for each output. */
typedef struct arena {
    guarded f32, u8, i32, o, lse, p;
} arena;

static arena arena_make(rng *r)
{
    const int64_t room = 2000;
    arena a = {.f32 = guarded_make(r, MHA_F32, 1, &room, 0),
               .u8 = guarded_make(r, MHA_U8, 1, &room, 0),
               .i32 = guarded_make(r, MHA_I32, 1, &room, 0),
               .o = guarded_make(r, MHA_F32, 4, (int64_t[]){B, H, T, DV}, 0),
               .lse = guarded_make(r, MHA_F32, 3, (int64_t[]){B, H, T}, 0),
               .p = guarded_make(r, MHA_F32, 4, (int64_t[]){B, H, T, S}, 0)};
    for (int64_t i = 0; i < room; i++) ((float *)a.f32.view.data)[i] = 0.25f;
    memset(a.i32.view.data, 0, (size_t)room * 4);
    return a;
}

static void arena_free(arena *a)
{
    guarded *all[] = {&a->f32, &a->u8, &a->i32, &a->o, &a->lse, &a->p};
    for (int i = 0; i < 6; i++) guarded_free(all[i]);
}

static mha_tensor view(const guarded *memory, int ndim, const int64_t *shape)
{
    return mha_tensor_contiguous(memory->view.data, memory->view.dtype, ndim, shape);
}

static void set_inputs(call *c, const arena *a)
{
    c->global_keys = view(&a->u8, 2, (int64_t[]){B, S});
    c->global_queries = view(&a->u8, 2, (int64_t[]){B, T});
    c->query_documents = view(&a->i32, 2, (int64_t[]){B, T});
    c->key_documents = view(&a->i32, 2, (int64_t[]){B, S});
    c->blocks = view(&a->u8, 4, (int64_t[]){B, H, 2, 3});
    c->slopes = view(&a->f32, 1, (int64_t[]){H});
    c->t5 = view(&a->f32, 2, (int64_t[]){32, H});
    c->shaw_keys = view(&a->f32, 2, (int64_t[]){5, D});
    c->shaw_values = view(&a->f32, 2, (int64_t[]){7, DV});
    c->sinks = view(&a->f32, 1, (int64_t[]){H});
    c->gates = view(&a->f32, 2, (int64_t[]){B, H});
}

static void call_make(call *c, const arena *a)
{
    memset(c, 0, sizeof *c);
    c->q = view(&a->f32, 4, (int64_t[]){B, H, T, D});
    c->k = view(&a->f32, 4, (int64_t[]){B, HK, S, D});
    c->v = view(&a->f32, 4, (int64_t[]){B, HK, S, DV});
    c->o = a->o.view, c->lse = a->lse.view, c->p = a->p.view;
    set_inputs(c, a);
    c->desc = (mha_attention_desc){.struct_size = sizeof c->desc,
                                   .flags = MHA_ATTENTION_WINDOW,
                                   .left_keys = 3,
                                   .right_keys = 1,
                                   .sink_keys = 1,
                                   .global_keys = &c->global_keys,
                                   .global_queries = &c->global_queries,
                                   .query_documents = &c->query_documents,
                                   .key_documents = &c->key_documents,
                                   .keep_blocks = &c->blocks,
                                   .block_queries = 2,
                                   .block_keys = 2,
                                   .softcap = 5,
                                   .dropout = 0.5f,
                                   .alibi_slopes = &c->slopes,
                                   .t5_table = &c->t5,
                                   .shaw_keys = &c->shaw_keys,
                                   .shaw_values = &c->shaw_values,
                                   .sink_logits = &c->sinks,
                                   .gates = &c->gates};
    c->outputs = (mha_attention_outputs){
        .struct_size = sizeof c->outputs, .lse = &c->lse, .probabilities = &c->p};
}

/* The same memory as a ragged batch. */
static void make_ragged(call *c)
{
    const mha_tensor *f32 = &c->q;
    c->desc = (mha_attention_desc){.struct_size = sizeof c->desc,
                                   .query_starts = c->queries,
                                   .key_starts = c->keys,
                                   .sequences = B};
    for (int i = 0; i <= B; i++) c->queries[i] = i * T, c->keys[i] = i * S;
    c->q = mha_tensor_contiguous(f32->data, MHA_F32, 4, (int64_t[]){1, H, TOTAL_T, D});
    c->k = mha_tensor_contiguous(f32->data, MHA_F32, 4, (int64_t[]){1, HK, TOTAL_S, D});
    c->v = mha_tensor_contiguous(f32->data, MHA_F32, 4, (int64_t[]){1, HK, TOTAL_S, DV});
    c->o = mha_tensor_contiguous(c->o.data, MHA_F32, 4, (int64_t[]){1, H, TOTAL_T, DV});
    c->lse = mha_tensor_contiguous(c->lse.data, MHA_F32, 3, (int64_t[]){1, H, TOTAL_T});
    c->p = mha_tensor_contiguous(c->p.data, MHA_F32, 4, (int64_t[]){1, H, TOTAL_T, S});
}

/* ---- invalid arguments ------------------------------------------------------------------------ */

#define ROWS                                                                                      \
    MISUSE(MHA_ERR_ARGUMENT, "MHA_ATTENTION_WINDOW", c->desc.flags = 0);                          \
    MISUSE(MHA_ERR_ARGUMENT, "MHA_ATTENTION_WINDOW",                                              \
           c->desc = (mha_attention_desc){.struct_size = sizeof c->desc, .left_keys = 2});        \
    MISUSE(MHA_ERR_ARGUMENT, "MHA_ATTENTION_WINDOW",                                              \
           c->desc = (mha_attention_desc){.struct_size = sizeof c->desc, .right_keys = 2});       \
    MISUSE(MHA_ERR_ARGUMENT, "MHA_ATTENTION_WINDOW",                                              \
           c->desc = (mha_attention_desc){.struct_size = sizeof c->desc, .sink_keys = 2});        \
    MISUSE(MHA_ERR_ARGUMENT, "left_keys -2", c->desc.left_keys = -2);                             \
    MISUSE(MHA_ERR_ARGUMENT, "-9223372036854775808", c->desc.left_keys = INT64_MIN);              \
    MISUSE(MHA_ERR_ARGUMENT, "right_keys -7", c->desc.right_keys = -7);                           \
    MISUSE(MHA_ERR_ARGUMENT, "sink_keys -1", c->desc.sink_keys = -1);                             \
    MISUSE(MHA_ERR_ARGUMENT, "right_keys is 1", c->desc.flags |= MHA_ATTENTION_CAUSAL);           \
    MISUSE(MHA_ERR_SHAPE, "global_keys: dim 1 is 4", c->global_keys.shape[1] = S - 1);            \
    MISUSE(MHA_ERR_DTYPE, "global_keys", c->global_keys.dtype = MHA_I32);                         \
    MISUSE_OF_DATA(MHA_ERR_NULL, "global_keys", c->global_keys.data = NULL);                      \
    MISUSE(MHA_ERR_SHAPE, "global_queries: dim 0 is 3", c->global_queries.shape[0] = 3);          \
    MISUSE(MHA_ERR_SHAPE, "global_queries: has 3", c->global_queries.ndim = 3);                   \
    MISUSE(MHA_ERR_ARGUMENT, "key_documents", c->desc.key_documents = NULL);                      \
    MISUSE(MHA_ERR_ARGUMENT, "query_documents", c->desc.query_documents = NULL);                  \
    MISUSE(MHA_ERR_DTYPE, "key_documents", c->key_documents.dtype = MHA_I64);                     \
    MISUSE(MHA_ERR_SHAPE, "query_documents: dim 1 is 4", c->query_documents.shape[1] = T + 1);    \
    MISUSE_OF_DATA(MHA_ERR_NULL, "query_documents", c->query_documents.data = NULL);              \
    MISUSE(MHA_ERR_SHAPE, "keep_blocks: dim 2 is 3", c->blocks.shape[2] = 3);                     \
    MISUSE(MHA_ERR_SHAPE, "keep_blocks: dim 3 is 2", c->blocks.shape[3] = 2);                     \
    MISUSE(MHA_ERR_SHAPE, "keep_blocks: dim 1 is 2", c->blocks.shape[1] = HK);                    \
    MISUSE(MHA_ERR_DTYPE, "keep_blocks", c->blocks.dtype = MHA_F32);                              \
    MISUSE(MHA_ERR_SHAPE, "keep_blocks", c->blocks.ndim = 5);                                     \
    MISUSE_OF_DATA(MHA_ERR_NULL, "keep_blocks", c->blocks.data = NULL);                           \
    MISUSE(MHA_ERR_ARGUMENT, "require keep_blocks", c->desc.keep_blocks = NULL);                  \
    MISUSE(MHA_ERR_ARGUMENT, "require t5_table", c->desc.t5_table = NULL,                         \
           c->desc.t5_max_distance = 8);                                                          \
    MISUSE(MHA_ERR_ARGUMENT, "require t5_table", c->desc.t5_table = NULL,                         \
           c->desc.t5_max_distance = 0, c->desc.flags |= MHA_ATTENTION_T5_ONE_SIDED);             \
    MISUSE(MHA_ERR_ARGUMENT, "is 1152921504606846977, expected -2^60 .. 2^60",                    \
           c->desc.q_offset = ((int64_t)1 << 60) + 1);                                            \
    MISUSE(MHA_ERR_ARGUMENT, "expected -2^60 .. 2^60", c->desc.q_offset = INT64_MIN);             \
    MISUSE(MHA_ERR_ARGUMENT, "block_queries 0", c->desc.block_queries = 0);                       \
    MISUSE(MHA_ERR_ARGUMENT, "block_keys 0", c->desc.block_keys = 0);                             \
    MISUSE(MHA_ERR_ARGUMENT, "block_keys -4", c->desc.block_keys = -4);                           \
    MISUSE(MHA_ERR_ARGUMENT, "softcap is -1", c->desc.softcap = -1);                              \
    MISUSE(MHA_ERR_ARGUMENT, "softcap is 1e-39", c->desc.softcap = 1e-39f);                       \
    MISUSE(MHA_ERR_ARGUMENT, "softcap is 3e+38", c->desc.softcap = 3e38f);                        \
    MISUSE(MHA_ERR_ARGUMENT, "softcap", c->desc.softcap = NAN);                                   \
    MISUSE(MHA_ERR_ARGUMENT, "softcap is inf", c->desc.softcap = INFINITY);                       \
    MISUSE(MHA_ERR_ARGUMENT, "dropout is 1.5", c->desc.dropout = 1.5f);                           \
    MISUSE(MHA_ERR_ARGUMENT, "dropout is -0.1", c->desc.dropout = -0.1f);                         \
    MISUSE(MHA_ERR_ARGUMENT, "dropout", c->desc.dropout = NAN);                                   \
    MISUSE(MHA_ERR_SHAPE, "alibi_slopes: dim 0 is 5", c->slopes.shape[0] = H + 1);                \
    MISUSE(MHA_ERR_DTYPE, "alibi_slopes", c->slopes.dtype = MHA_F64);                             \
    MISUSE(MHA_ERR_SHAPE, "alibi_slopes", c->slopes.ndim = 3);                                    \
    MISUSE(MHA_ERR_SHAPE, "gates: dim 1 is 2", c->gates.shape[1] = HK);                           \
    MISUSE_OF_DATA(MHA_ERR_NULL, "gates", c->gates.data = NULL);                                  \
    MISUSE(MHA_ERR_SHAPE, "31 buckets", c->t5.shape[0] = 31);                                     \
    MISUSE(MHA_ERR_SHAPE, "2 buckets", c->t5.shape[0] = 2);                                       \
    MISUSE(MHA_ERR_SHAPE, "0 buckets", c->t5.shape[0] = 0);                                       \
    MISUSE(MHA_ERR_SHAPE, "1 buckets", c->t5.shape[0] = 1,                                        \
           c->desc.flags |= MHA_ATTENTION_T5_ONE_SIDED);                                          \
    MISUSE(MHA_ERR_SHAPE, "t5_table", c->t5.shape[1] = H - 1);                                    \
    MISUSE(MHA_ERR_SHAPE, "t5_table", c->t5.ndim = 1);                                            \
    MISUSE(MHA_ERR_DTYPE, "t5_table", c->t5.dtype = MHA_BF16);                                    \
    MISUSE(MHA_ERR_ARGUMENT, "t5_max_distance is 8", c->desc.t5_max_distance = 8);                \
    MISUSE(MHA_ERR_ARGUMENT, "t5_max_distance is -128", c->desc.t5_max_distance = -128);          \
    MISUSE(MHA_ERR_SHAPE, "shaw_keys: dim 0 is 4", c->shaw_keys.shape[0] = 4);                    \
    MISUSE(MHA_ERR_SIZE, "shaw_keys: dim 0 is 1152921504606846977",                               \
           c->shaw_keys.shape[0] = (INT64_C(1) << 60) + 1, c->shaw_keys.stride[0] = 0);           \
    MISUSE(MHA_ERR_SHAPE, "shaw_keys: dim 0 is 0", c->shaw_keys.shape[0] = 0);                    \
    MISUSE(MHA_ERR_SHAPE, "shaw_keys: dim 1 is 7", c->shaw_keys.shape[1] = D - 1);                \
    MISUSE(MHA_ERR_SHAPE, "shaw_values: dim 0 is 6", c->shaw_values.shape[0] = 6);                \
    MISUSE(MHA_ERR_SHAPE, "shaw_values: dim 1 is 8", c->shaw_values.shape[1] = D);                \
    MISUSE(MHA_ERR_STRIDE, "shaw_values", c->shaw_values.stride[1] = 2);                          \
    MISUSE(MHA_ERR_DTYPE, "shaw_keys", c->shaw_keys.dtype = MHA_U8);                              \
    MISUSE(MHA_ERR_SHAPE, "sink_logits: dim 0 is 2", c->sinks.shape[0] = HK);                     \
    MISUSE(MHA_ERR_SHAPE, "sink_logits", c->sinks.ndim = 0);                                      \
    MISUSE(MHA_ERR_DTYPE, "sink_logits", c->sinks.dtype = MHA_I32);                               \
    MISUSE_OF_DATA(MHA_ERR_OVERLAP, "o overlaps gates", c->gates.data = c->o.data);               \
    MISUSE_OF_DATA(MHA_ERR_OVERLAP, "o overlaps sink_logits",                                     \
                   c->sinks.data = (float *)c->o.data + 2);                                       \
    MISUSE_OF_DATA(MHA_ERR_OVERLAP, "probabilities overlaps keep_blocks",                         \
                   c->blocks.data = (char *)c->p.data + 5);                                       \
    MISUSE_OF_DATA(MHA_ERR_OVERLAP, "lse overlaps t5_table", c->t5.data = c->lse.data);           \
    MISUSE_OF_DATA(MHA_ERR_OVERLAP, "probabilities overlaps alibi_slopes",                        \
                   c->slopes.data = c->p.data);                                                   \
    MISUSE_OF_DATA(MHA_ERR_OVERLAP, "o overlaps shaw_values", c->shaw_values.data = c->o.data);   \
    MISUSE_OF_DATA(MHA_ERR_OVERLAP, "o overlaps key_documents",                                   \
                   c->key_documents.data = c->o.data);                                            \
    MISUSE_OF_DATA(MHA_ERR_OVERLAP, "o overlaps global_keys", c->global_keys.data = c->o.data);   \
    MISUSE(MHA_ERR_ARGUMENT, "q_offset",                                                          \
           c->desc = (mha_attention_desc){.struct_size = sizeof c->desc,                          \
                                          .q_offset = 1,                                          \
                                          .softcap = 2,                                           \
                                          .sink_logits = &c->sinks});                             \
    MISUSE(MHA_ERR_ARGUMENT, "q_offset",                                                          \
           c->desc = (mha_attention_desc){.struct_size = sizeof c->desc,                          \
                                          .q_offsets = c->offsets,                                \
                                          .query_documents = &c->query_documents,                 \
                                          .key_documents = &c->key_documents});                   \
    MISUSE(MHA_ERR_ARGUMENT, "key_starts", make_ragged(c), c->desc.key_starts = NULL);            \
    MISUSE(MHA_ERR_ARGUMENT, "query_starts", make_ragged(c), c->desc.query_starts = NULL);        \
    MISUSE(MHA_ERR_ARGUMENT, "sequences", make_ragged(c), c->desc.sequences = 0);                 \
    MISUSE(MHA_ERR_ARGUMENT, "sequences", make_ragged(c), c->desc.sequences = -1);                \
    MISUSE(MHA_ERR_ARGUMENT, "query_starts: runs from 1", make_ragged(c), c->queries[0] = 1);     \
    MISUSE(MHA_ERR_ARGUMENT, "key_starts: entry 1 is 11", make_ragged(c),                         \
           c->keys[1] = TOTAL_S + 1);                                                             \
    MISUSE(MHA_ERR_ARGUMENT, "query_starts: entry 1 is -1", make_ragged(c), c->queries[1] = -1);  \
    MISUSE(MHA_ERR_ARGUMENT, "to 9", make_ragged(c), c->keys[B] = TOTAL_S - 1);                   \
    MISUSE(MHA_ERR_ARGUMENT, "to 7", make_ragged(c), c->queries[B] = TOTAL_T + 1);                \
    MISUSE(MHA_ERR_UNSUPPORTED, "keep_blocks", make_ragged(c), c->desc.keep_blocks = &c->blocks,  \
           c->desc.block_queries = c->desc.block_keys = 2);                                       \
    MISUSE(MHA_ERR_ARGUMENT, "key_lengths[1] is 6", make_ragged(c), c->lengths[1] = S + 1,        \
           c->desc.key_lengths = c->lengths);                                                     \
    MISUSE(MHA_ERR_SHAPE, "probabilities: dim 3 is 10", make_ragged(c), c->p.shape[3] = TOTAL_S); \
    MISUSE(MHA_ERR_SHAPE, "gates: dim 0 is 3", make_ragged(c), c->desc.gates = &c->gates,         \
           c->gates.shape[0] = B + 1);                                                            \
    MISUSE(MHA_ERR_SHAPE, "dim 0 is 2",                                                           \
           c->desc = (mha_attention_desc){.struct_size = sizeof c->desc,                          \
                                          .query_starts = c->queries,                             \
                                          .key_starts = c->keys,                                  \
                                          .sequences = B});
DEFINE_SPOIL(call *c, spoil, ROWS)

/* ---- the tests ------------------------------------------------------------------------------- */

static mha_status forward(mha_context *context, const call *c)
{
    return mha_attention_forward(context, &c->desc, &c->q, &c->k, &c->v, &c->o, &c->outputs);
}

static void check_case(mha_context *context, const arena *a, size_t i)
{
    const guarded *outputs[] = {&a->o, &a->lse, &a->p, &a->f32, &a->u8, &a->i32};
    call c;
    mha_attention_plan plan;
    call_make(&c, a);
    const expected_refusal wrong = spoil(&c, i);
    expect_row(i, forward(context, &c), wrong.status, wrong.part);
    for (int j = 0; j < 6; j++)
        if (!guarded_unchanged(outputs[j])) fail_msg("case %zu (%s) wrote", i, wrong.part);
    const mha_status status =
        mha_attention_explain(context, &c.desc, &c.q, &c.k, &c.v, &c.o, &c.outputs, &plan);
    if (status != (wrong.data_only ? MHA_OK : wrong.status))
        fail_msg("case %zu (%s): explain gives %d", i, wrong.part, (int)status);
}

static void misuse_is_refused(void)
{
    rng r = rng_make(rng_run_seed(), 1);
    arena a = arena_make(&r);
    guarded *memory[] = {&a.o, &a.lse, &a.p, &a.f32, &a.u8, &a.i32};
    mha_context *context = context_with(0);
    call c;
    call_make(&c, &a);
    if (forward(context, &c) != MHA_OK) fail_msg("%s", mha_error_detail());
    make_ragged(&c);
    if (forward(context, &c) != MHA_OK) fail_msg("%s", mha_error_detail());
    for (int j = 0; j < 6; j++) guarded_snapshot(memory[j]);
    for (size_t i = 0, rows = spoil(NULL, SIZE_MAX).rows; i < rows; i++) check_case(context, &a, i);
    arena_free(&a);
}

static void sink_value(call *c, float value)
{
    ((float *)c->sinks.data)[0] = value;
}

/* A sink logit must be a number or -inf. */
static void sinks_that_are_no_numbers(void)
{
    static const float values[] = {NAN, INFINITY, 2e38f};
    rng r = rng_make(rng_run_seed(), 2);
    arena a = arena_make(&r);
    mha_context *context = context_with(0);
    call c;
    call_make(&c, &a);
    float own[H] = {0};
    c.sinks.data = own;
    guarded_snapshot(&a.o);
    for (int i = 0; i < 3; i++) {
        sink_value(&c, values[i]);
        expect_row((size_t)i, forward(context, &c), MHA_ERR_NUMERIC, "sink_logits[0]");
        assert_true(guarded_unchanged(&a.o));
    }
    sink_value(&c, -INFINITY);
    expect_ok(forward(context, &c));
    arena_free(&a);
}

/* The cost of a ragged batch is computed from its own rows. */
static void ragged_plan(void)
{
    rng r = rng_make(rng_run_seed(), 3);
    arena a = arena_make(&r);
    mha_context *context = context_with(0);
    mha_attention_plan plan;
    call c;
    call_make(&c, &a);
    make_ragged(&c);
    c.queries[1] = 0; /* 0 and 6 queries; 2 and 8 keys */
    c.keys[1] = 2;
    c.p.shape[3] = 8;
    c.outputs.probabilities = NULL;
    for (int path = MHA_PATH_TILED; path <= MHA_PATH_PLAIN; path++) {
        c.desc.path = (mha_path)path;
        expect_ok(
            mha_attention_explain(context, &c.desc, &c.q, &c.k, &c.v, &c.o, &c.outputs, &plan));
        assert_int_equal(plan.visible_pairs, H * 6 * 8);
        int64_t elements = H * 6 * (D + DV + 1) + HK * TOTAL_S * (D + DV);
        assert_true(plan.bytes == 4.0 * (double)elements);
        if (path == MHA_PATH_PLAIN) assert_int_equal(plan.work_items, H * 6);
    }
    arena_free(&a);
}

RUN_TESTS(TEST(misuse_is_refused), TEST(sinks_that_are_no_numbers), TEST(ragged_plan))
