/* Typical mistakes in the whole compute library. Each has a status and an exact message with the
 * wrong numbers, and no byte of an output or a cache changes. Other errors of each call are tested
 * separately (test_attention_misuse.c, test_attention_errors.c, test_kv_cache.c,
 * test_linear_attention.c, test_position.c, ...).
 * */
#include "support/expect.h"
#include "support/guarded.h"
#include "support/module_call.h"
#include "support/shared_context.h"
#include "support/suite.h"

#include <multihead/multihead.h>
#include <multihead/patterns.h>
#include <multihead/transformer.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { B = 2, H = 4, HK = 2, T = 3, S = 5, D = 8, E = 32, ROOM = 4000, CAPACITY = 6 };

/* A valid call, which each case makes invalid. Inputs share memory; outputs have their own. */
typedef struct call {
    mha_context *context;
    mha_kv_cache *cache; /* holds S positions of CAPACITY */
    mha_tensor q, k, v, o, lse, p, mask, blocks, x, y;
    mha_attention_desc desc;
    mha_linear_attention_desc linear;
    mha_rope_desc rope;
    mha_pattern_desc pattern;
    mha_module_desc module;
    int64_t numbers[8];
} call;

typedef struct arena {
    guarded in, u8, out[3]; /* o, lse, p */
} arena;

static arena arena_make(rng *r)
{
    const int64_t room = ROOM;
    arena a = {.in = guarded_make(r, MHA_F32, 1, &room, 0),
               .u8 = guarded_make(r, MHA_U8, 1, &room, 0)};
    for (int i = 0; i < 3; i++) a.out[i] = guarded_make(r, MHA_F32, 1, &room, 0);
    for (int i = 0; i < ROOM; i++) ((float *)a.in.view.data)[i] = (float)(i % 7) / 4;
    return a;
}

static void arena_free(arena *a)
{
    guarded_free(&a->in);
    guarded_free(&a->u8);
    for (int i = 0; i < 3; i++) guarded_free(&a->out[i]);
}

static mha_tensor view(const guarded *g, int ndim, const int64_t *shape)
{
    return mha_tensor_contiguous(g->view.data, g->view.dtype, ndim, shape);
}

static void call_make(call *c, mha_context *context, mha_kv_cache *cache, const arena *a)
{
    *c = (call){.context = context, .cache = cache};
    c->q = view(&a->in, 4, (int64_t[]){B, H, T, D});
    c->k = view(&a->in, 4, (int64_t[]){B, HK, S, D});
    c->v = view(&a->in, 4, (int64_t[]){B, HK, S, D});
    c->o = view(&a->out[0], 4, (int64_t[]){B, H, T, D});
    c->lse = view(&a->out[1], 3, (int64_t[]){B, H, T});
    c->p = view(&a->out[2], 4, (int64_t[]){B, H, T, S});
    c->mask = view(&a->u8, 2, (int64_t[]){T, S});
    c->blocks = view(&a->u8, 2, (int64_t[]){4, 4});
    c->x = view(&a->in, 3, (int64_t[]){B, T, E});
    c->y = view(&a->out[0], 3, (int64_t[]){B, T, E});
    c->desc.struct_size = sizeof c->desc;
    c->linear.struct_size = sizeof c->linear;
    c->rope.struct_size = sizeof c->rope;
    c->pattern.struct_size = sizeof c->pattern;
    c->module = (mha_module_desc){.struct_size = sizeof c->module, .embed_dim = E, .num_heads = H};
}

/* ---- the calls ------------------------------------------------------------------------------- */

static mha_status attend(call *c)
{
    const mha_attention_outputs outputs = {
        .struct_size = sizeof outputs, .lse = &c->lse, .probabilities = &c->p};
    return mha_attention_forward(c->context, &c->desc, &c->q, &c->k, &c->v, &c->o, &outputs);
}

static mha_status append(call *c)
{
    return mha_kv_cache_append(c->cache, &c->k, &c->v, NULL);
}

static mha_status truncate_cache(call *c)
{
    return mha_kv_cache_truncate(c->cache, c->numbers[0], c->numbers[1]);
}

static mha_status attend_cache(call *c)
{
    return mha_kv_cache_attention(c->context, c->cache, &c->desc, &c->q, &c->o, NULL);
}

static mha_status attend_linear(call *c)
{
    return mha_linear_attention_forward(c->context, &c->linear, &c->q, &c->k, &c->v, &c->o, NULL);
}

static mha_status rotate(call *c)
{
    return mha_rope_apply(c->context, &c->rope, &c->q, &c->o);
}

static mha_status merge(call *c)
{
    const mha_attention_part parts[] = {{&c->q, &c->k}, {&c->q, &c->k}};
    return mha_attention_merge(c->context, parts, c->numbers[0], &c->o, &c->lse);
}

static mha_status draw_pattern(call *c)
{
    return mha_pattern_fill(&c->pattern, &c->blocks, NULL);
}

static mha_status make_module(call *c)
{
    mha_module *module = NULL;
    mha_status status = mha_module_create(c->context, &c->module, &module);
    mha_module_destroy(module);
    return status;
}

/* The query is x [B,T,E]; key and value are k and v, with the case's change. */
static mha_status run_module(call *c)
{
    mha_module *module = NULL;
    mha_status status = mha_module_create(c->context, &c->module, &module);
    expect_ok(status);
    status =
        mha_module_run(c->context, module, MODULE_CALL(&c->desc, &c->x, &c->k, &c->v, &c->y, NULL));
    mha_module_destroy(module);
    return status;
}

/* ---- the mistakes ---------------------------------------------------------------------------- */

#define SPOIL(name, ...) SPOILER(call *c, name, __VA_ARGS__)
SPOIL(values_short, c->v.shape[2] = S - 1)
SPOIL(heads_not_whole, c->k.shape[1] = c->v.shape[1] = 3)
SPOIL(head_sizes, c->k.shape[3] = 7)
SPOIL(batches, (c->k.shape[0] = c->v.shape[0] = 1))
SPOIL(mask_shape, (c->mask.shape[1] = 4, c->desc.keep_mask = &c->mask))
SPOIL(mask_axes, (c->mask.ndim = 5, c->desc.keep_mask = &c->mask))
SPOIL(mask_type, (c->mask = c->q, c->desc.keep_mask = &c->mask))
SPOIL(length_negative, (c->numbers[1] = -3, c->desc.key_lengths = c->numbers))
SPOIL(length_beyond, (c->numbers[0] = 6, c->desc.key_lengths = c->numbers))
SPOIL(o_is_input, c->o.data = c->q.data)
SPOIL(lse_in_o, c->lse.data = (float *)c->o.data + 7)
SPOIL(o_too_wide, c->o.shape[3] = 9)
SPOIL(type_of_q, c->q.dtype = MHA_F64)
SPOIL(window_unset, c->desc.left_keys = 4)
SPOIL(window_side,
      (c->desc.flags = MHA_ATTENTION_WINDOW, c->desc.left_keys = -2, c->desc.right_keys = 1))
SPOIL(window_causal, (c->desc.flags = MHA_ATTENTION_WINDOW | MHA_ATTENTION_CAUSAL,
                      c->desc.left_keys = 4, c->desc.right_keys = 2))
SPOIL(offset_unread, c->desc.q_offset = 2)
SPOIL(offset_twice,
      (c->desc.flags = MHA_ATTENTION_CAUSAL, c->desc.q_offset = 2, c->desc.q_offsets = c->numbers))
SPOIL(scale_nan, c->desc.scale = INFINITY)
SPOIL(dropout_rate, c->desc.dropout = 1.5f)
SPOIL(softcap_negative, c->desc.softcap = -50)
SPOIL(strict_wide, (c->q.shape[3] = c->k.shape[3] = 300, c->q.shape[0] = c->k.shape[0] = 1,
                    c->v.shape[0] = c->o.shape[0] = c->lse.shape[0] = c->p.shape[0] = 1,
                    c->desc.flags = MHA_ATTENTION_STRICT))
SPOIL(too_many_pairs,
      (c->q.shape[2] = c->o.shape[2] = c->lse.shape[2] = c->p.shape[2] = INT64_C(1) << 60,
       c->q.stride[2] = 0, c->q.stride[1] = 0, c->q.stride[0] = 0))
SPOIL(endless_stride, c->k.stride[1] = INT64_C(1) << 62)
SPOIL(misaligned, c->q.data = (char *)c->q.data + 2)
SPOIL(repeated_output, c->o.stride[1] = 0)
SPOIL(old_struct, c->desc.struct_size = 0)
SPOIL(overflow, (c->k.shape[2] = c->v.shape[2] = 2))
SPOIL(cache_heads, (c->k.shape[1] = c->v.shape[1] = 1))
SPOIL(cut_beyond, (c->numbers[0] = 1, c->numbers[1] = S + 1))
SPOIL(cut_nobody, (c->numbers[0] = B, c->numbers[1] = 0))
SPOIL(cache_lengths, c->desc.key_lengths = c->numbers)
SPOIL(cache_query, c->q.shape[3] = 4)
SPOIL(linear_offset, c->linear.q_offset = 3)
SPOIL(linear_features, c->linear.feature_dim = 16)
SPOIL(rotary_odd, c->rope.rotary_dim = 5)
SPOIL(rotary_wide, c->rope.rotary_dim = 10)
SPOIL(rotary_head_odd, (c->q.shape[3] = c->o.shape[3] = 7))
SPOIL(rotary_base, c->rope.base = 0.5)
SPOIL(parts_negative, c->numbers[0] = -1)
SPOIL(parts_shape, (c->numbers[0] = 2, c->q.shape[1] = 3))
SPOIL(pattern_local, c->pattern.left_blocks = 2)
SPOIL(pattern_fixed, (c->pattern.fixed = 4, c->pattern.fixed_summary = 6))
SPOIL(pattern_axes, c->blocks.ndim = 1)
SPOIL(module_heads, c->module.num_heads = 5)
SPOIL(module_groups, c->module.kv_heads = 3)
SPOIL(module_lengths, (c->k = c->v = c->x, c->k.shape[1] = 2))

static const struct {
    mha_status (*run)(call *c);
    void (*spoil)(call *c);
    mha_status status;
    const char *sentence;
} cases[] = {
    {attend, values_short, MHA_ERR_SHAPE, "v: dim 2 is 4, expected 5"},
    {attend, heads_not_whole, MHA_ERR_SHAPE,
     "q has 4 heads, k has 3: the first must be a multiple of the second"},
    {attend, head_sizes, MHA_ERR_SHAPE, "k: dim 3 is 7, expected 8"},
    {attend, batches, MHA_ERR_SHAPE, "k: dim 0 is 1, expected 2"},
    {attend, mask_shape, MHA_ERR_SHAPE, "keep_mask: dim 1 is 4, it must be 1 or 5 to broadcast"},
    {attend, mask_axes, MHA_ERR_SHAPE, "keep_mask: has 5 dimensions, expected 0..4"},
    {attend, mask_type, MHA_ERR_SHAPE, "keep_mask: dim 3 is 8, it must be 1 or 5 to broadcast"},
    {attend, length_negative, MHA_ERR_ARGUMENT, "key_lengths[1] is -3, expected 0..5"},
    {attend, length_beyond, MHA_ERR_ARGUMENT, "key_lengths[0] is 6, expected 0..5"},
    {attend, o_is_input, MHA_ERR_OVERLAP, "o overlaps q: use separate memory"},
    {attend, lse_in_o, MHA_ERR_OVERLAP, "lse overlaps o: use separate memory"},
    {attend, o_too_wide, MHA_ERR_SHAPE, "o: dim 3 is 9, expected 8"},
    {attend, type_of_q, MHA_ERR_DTYPE, "q: dtype is f64, expected f32, f16 or bf16"},
    {attend, window_unset, MHA_ERR_ARGUMENT,
     "left_keys, right_keys, sink_keys, global_keys and global_queries require the flag "
     "MHA_ATTENTION_WINDOW"},
    {attend, window_side, MHA_ERR_ARGUMENT,
     "window: left_keys -2, right_keys 1, sink_keys 0; expected numbers of keys >= 0, or -1 for "
     "no limit"},
    {attend, window_causal, MHA_ERR_ARGUMENT,
     "window: right_keys is 2, but a causal query sees no later key; set 0"},
    {attend, offset_unread, MHA_ERR_ARGUMENT, "q_offset requires causal"},
    {attend, offset_twice, MHA_ERR_ARGUMENT, "set q_offset or q_offsets, not both"},
    {attend, scale_nan, MHA_ERR_ARGUMENT, "scale is inf, expected a finite number"},
    {attend, dropout_rate, MHA_ERR_ARGUMENT, "dropout is 1.5, expected 0..1"},
    {attend, softcap_negative, MHA_ERR_ARGUMENT,
     "softcap is -50, expected a number in 2^-126 .. 2^127, or 0 for none"},
    {attend, strict_wide, MHA_ERR_UNSUPPORTED,
     "a head size above 256 is beyond the tiled path; request path plain, or clear "
     "MHA_ATTENTION_STRICT"},
    {attend, too_many_pairs, MHA_ERR_SIZE,
     "q, k: B H T S = 2 x 4 x 1152921504606846976 x 5 overflows 64 bits"},
    {attend, endless_stride, MHA_ERR_SIZE,
     "k: dim 1, 2 at a stride of 4611686018427387904, reaches beyond the address space"},
    {attend, misaligned, MHA_ERR_STRIDE, "q: data is not aligned to its elements of 4 bytes"},
    {attend, repeated_output, MHA_ERR_STRIDE,
     "o: output elements share memory (a stride of 0 within 1 elements)"},
    {attend, old_struct, MHA_ERR_ARGUMENT,
     "mha_attention_desc: struct_size is 0, set it to sizeof(mha_attention_desc)"},
    {append, overflow, MHA_ERR_SIZE,
     "cache: sequence 0 holds 5 of 6 positions, 2 more do not fit; truncate or reset it, or make a "
     "larger cache"},
    {append, cache_heads, MHA_ERR_SHAPE, "k: dim 1 is 1, expected 2"},
    {append, values_short, MHA_ERR_SHAPE, "v: dim 2 is 4, expected 5"},
    {truncate_cache, cut_beyond, MHA_ERR_ARGUMENT,
     "cache: sequence 1 holds 5 positions, it cannot be truncated to 6"},
    {truncate_cache, cut_nobody, MHA_ERR_ARGUMENT, "cache: there is no sequence 2, expected 0..1"},
    {attend_cache, cache_lengths, MHA_ERR_ARGUMENT,
     "mha_kv_cache_attention: key_lengths are the cache's own; leave them NULL"},
    {attend_cache, cache_query, MHA_ERR_SHAPE, "q: dim 3 is 4, expected 8"},
    {attend_cache, window_causal, MHA_ERR_ARGUMENT, "right_keys is 2"},
    {attend_cache, o_too_wide, MHA_ERR_SHAPE, "o: dim 3 is 9, expected 8"},
    {attend_linear, values_short, MHA_ERR_SHAPE, "v: dim 2 is 4, expected 5"},
    {attend_linear, heads_not_whole, MHA_ERR_SHAPE, "q has 4 heads, k has 3"},
    {attend_linear, linear_offset, MHA_ERR_ARGUMENT,
     "q_offset requires causal; set the flag MHA_LINEAR_ATTENTION_CAUSAL"},
    {attend_linear, linear_features, MHA_ERR_ARGUMENT,
     "feature_dim and feature_map_user require a feature_map"},
    {rotate, rotary_odd, MHA_ERR_ARGUMENT,
     "mha_rope_desc: rotary_dim is 5, expected an even number of at most the head size 8"},
    {rotate, rotary_wide, MHA_ERR_ARGUMENT,
     "mha_rope_desc: rotary_dim is 10, expected an even number of at most the head size 8"},
    {rotate, rotary_head_odd, MHA_ERR_ARGUMENT,
     "mha_rope_desc: rotary_dim is 7 (the head size), expected an even number of at most the head "
     "size 7"},
    {rotate, rotary_base, MHA_ERR_ARGUMENT, "mha_rope_desc: base is 0.5, expected at least 1"},
    {merge, parts_negative, MHA_ERR_ARGUMENT, "count is -1, expected 0 or more parts"},
    {merge, parts_shape, MHA_ERR_SHAPE, "parts[0].o: dim 1 is 3, expected 4"},
    {draw_pattern, pattern_local, MHA_ERR_ARGUMENT,
     "left_blocks 2 and right_blocks 0 require the flag MHA_PATTERN_LOCAL"},
    {draw_pattern, pattern_fixed, MHA_ERR_ARGUMENT, "fixed_summary is 6, expected 0..4"},
    {draw_pattern, pattern_axes, MHA_ERR_SHAPE, "keep_blocks: has 1 dimensions, expected 2 or 3"},
    {make_module, module_heads, MHA_ERR_SHAPE,
     "embed_dim 32 is not a multiple of num_heads 5; choose another number of heads or set "
     "head_dim"},
    {make_module, module_groups, MHA_ERR_SHAPE, "num_heads 4 is not a multiple of kv_heads 3"},
    {run_module, module_lengths, MHA_ERR_SHAPE,
     "key has length 2, value has length 3: they must be equal"},
};

/* ---- nothing is written ---------------------------------------------------------------------- */

static mha_kv_cache *fill_cache(mha_context *context, const call *c)
{
    const mha_kv_cache_desc desc = {.struct_size = sizeof desc,
                                    .batch = B,
                                    .kv_heads = HK,
                                    .capacity = CAPACITY,
                                    .head_dim = D};
    mha_kv_cache *cache;
    expect_ok(mha_kv_cache_create(context, &desc, &cache));
    expect_ok(mha_kv_cache_append(cache, &c->k, &c->v, NULL));
    return cache;
}

/* The cache's contents, for comparison. */
static void ask(mha_context *context, const mha_kv_cache *cache, const call *c, float *answer)
{
    mha_tensor o = mha_tensor_contiguous(answer, MHA_F32, 4, c->o.shape);
    expect_ok(mha_kv_cache_attention(context, cache, NULL, &c->q, &o, NULL));
}

static void misuse_is_refused(void)
{
    rng r = rng_make(rng_run_seed(), 1);
    arena a = arena_make(&r);
    guarded *memory[] = {&a.in, &a.u8, &a.out[0], &a.out[1], &a.out[2]};
    float before[B * H * T * D], after[B * H * T * D];
    mha_context *context = context_with(0);
    call c;
    call_make(&c, context, NULL, &a);
    mha_kv_cache *cache = fill_cache(context, &c);
    ask(context, cache, &c, before);
    for (int i = 0; i < 5; i++) guarded_snapshot(memory[i]);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        call_make(&c, context, cache, &a);
        cases[i].spoil(&c);
        expect_row(i, cases[i].run(&c), cases[i].status, cases[i].sentence);
        for (int j = 0; j < 5; j++)
            if (!guarded_unchanged(memory[j])) fail_msg("case %zu: memory %d changed", i, j);
        assert_int_equal(mha_kv_cache_lengths(cache)[0], S);
        assert_int_equal(mha_kv_cache_lengths(cache)[1], S);
        call_make(&c, context, cache, &a);
        ask(context, cache, &c, after);
        assert_memory_equal(before, after, sizeof before);
    }
    mha_kv_cache_destroy(cache);
    arena_free(&a);
}

/* Without the mistake, every call succeeds. */
static void calls_are_right_unspoiled(void)
{
    rng r = rng_make(rng_run_seed(), 2);
    arena a = arena_make(&r);
    mha_context *context = context_with(0);
    call c;
    call_make(&c, context, NULL, &a);
    mha_kv_cache *cache = fill_cache(context, &c);
    mha_status (*const each[])(call *) = {attend,       attend_cache, attend_linear, rotate,
                                          draw_pattern, make_module,  truncate_cache};
    for (size_t i = 0; i < sizeof each / sizeof each[0]; i++) {
        call_make(&c, context, cache, &a);
        c.numbers[1] = 4;
        if (each[i](&c) != MHA_OK) fail_msg("call %zu: %s", i, mha_error_detail());
    }
    call_make(&c, context, cache, &a);
    c.k.shape[2] = c.v.shape[2] = 1;
    expect_ok(append(&c));
    call_make(&c, context, cache, &a);
    c.k = c.v = c.x;
    expect_ok(run_module(&c));
    call_make(&c, context, cache, &a);
    c.k.ndim = 3, c.k.shape[1] = H, c.k.shape[2] = T, c.numbers[0] = 2;
    expect_ok(merge(&c));
    mha_kv_cache_destroy(cache);
    arena_free(&a);
}

RUN_TESTS(TEST(calls_are_right_unspoiled), TEST(misuse_is_refused))
