/* Decoding: steps of every size are bit-identical to one pass over the sequence, for every kind of
 * transformer; rejected drafts; misuse. */
#include "support/decoded.h"
#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/one_context.h"
#include "support/rng.h"
#include "support/suite.h"

#include <multihead/transformer.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 3 };

static mha_status create(mha_context *c, const mha_transformer *t, int64_t batch, int64_t capacity,
                         int64_t max_step, mha_decoder **decoder)
{
    const mha_decoder_desc desc = {
        .struct_size = sizeof desc, .batch = batch, .capacity = capacity, .max_step = max_step};
    return mha_decoder_create(c, t, &desc, decoder);
}

static int64_t width_of(const mha_transformer *t)
{
    mha_transformer_desc d;
    mha_transformer_describe(t, &d);
    return d.flags & MHA_TRANSFORMER_NO_OUTPUT ? d.embed_dim : d.vocab_size;
}

/* A view of rows from, from + 1, .. of [B,LENGTH] tokens, or of an output of any width. */
static mha_tensor part(void *data, mha_dtype dtype, int64_t from, int64_t count, int64_t width)
{
    const size_t size = dtype == MHA_I32 ? sizeof(int32_t) : sizeof(float);
    mha_tensor t =
        mha_tensor_contiguous((char *)data + (size_t)(from * width) * size, dtype,
                              dtype == MHA_I32 ? 2 : 3, (const int64_t[]){BATCH, count, width});
    t.stride[0] = LENGTH * width;
    return t;
}

static void whole(const mha_transformer *t, int32_t *ids, float *rows)
{
    mha_activations *a = NULL;
    mha_tensor tokens = part(ids, MHA_I32, 0, LENGTH, 1);
    mha_tensor out = part(rows, MHA_F32, 0, LENGTH, width_of(t));
    const mha_transformer_input input = {.struct_size = sizeof input, .tokens = &tokens};
    expect_ok(mha_activations_create(context, t, BATCH * LENGTH, 0, &a));
    expect_ok(mha_transformer_forward(context, t, &input, a, &out, NULL, NULL));
    mha_activations_destroy(a);
}

static void step(const mha_transformer *t, mha_decoder *decoder, int32_t *ids, float *rows,
                 int64_t from, int64_t count)
{
    mha_tensor tokens = part(ids, MHA_I32, from, count, 1);
    mha_tensor out = part(rows, MHA_F32, from, count, width_of(t));
    expect_ok(mha_decoder_step(context, decoder, &tokens, &out));
    assert_int_equal(mha_decoder_length(decoder), from + count);
}

/* One step with all tokens, and steps and pages of any size, give the same bits for every type. */
static void steps_in_every_type(void)
{
    static const mha_dtype types[] = {MHA_F32, MHA_F16, MHA_BF16, MHA_I8};
    rng r = rng_make(rng_run_seed(), 5);
    for (int round = 0; round < 16; round++) {
        int32_t ids[BATCH * LENGTH];
        float rows[2][BATCH * LENGTH * WIDTH] = {{0}};
        const mha_transformer_desc d = decoded_draw(&r, false);
        mha_transformer *t = decoded_make(&d, rng_next(&r));
        for (int i = 0; i < BATCH * LENGTH; i++) ids[i] = (int32_t)rng_between(&r, 0, VOCAB - 1);
        for (int i = 0; i < 2; i++) {
            const mha_decoder_desc desc = {.struct_size = sizeof desc,
                                           .batch = BATCH,
                                           .capacity = LENGTH,
                                           .cache_type = types[round % 4],
                                           .page_size = i == 0 ? 0 : rng_between(&r, 1, 20)};
            mha_decoder *decoder = NULL;
            expect_ok(mha_decoder_create(context, t, &desc, &decoder));
            for (int64_t from = 0, count; from < LENGTH; from += count) {
                count = i == 0 ? LENGTH : rng_between(&r, 1, LENGTH - from);
                step(t, decoder, ids, rows[i], from, count);
            }
            mha_decoder_destroy(decoder);
        }
        assert_memory_equal(rows[0], rows[1], sizeof rows[0]);
        mha_transformer_destroy(t);
    }
}

/* Layers of two and one key/value heads of 8, three sequences of up to 40 tokens in pages of 16; see
 * test_sizes_by_hand() of test_kv_cache.c. A page of int8 has for each head 128 + 64 bytes of keys,
 * and as many of values. Each sequence has three pages, whose tables take 3 * (16 + 12) + 9 * 8
 * bytes, rounded up to 192. */
static void sizes_by_hand(void)
{
    enum { HEAD = 2 * (128 + 64), SCALES = 2 * 64 };
    static const int64_t heads[] = {4, 2}, kv_heads[] = {2, 1};
    for (int streams = 0; streams < 2; streams++) {
        const mha_transformer_desc d = {.struct_size = sizeof d,
                                        .flags = MHA_TRANSFORMER_CAUSAL |
                                                 (streams ? 0 : MHA_TRANSFORMER_CROSS),
                                        .vocab_size = 5,
                                        .max_length = 40,
                                        .embed_dim = 16,
                                        .num_layers = 2,
                                        .num_heads = 4,
                                        .kv_heads = 2,
                                        .head_dim = 8,
                                        .positions = MHA_ENCODING_ROTARY,
                                        .layer_heads = heads,
                                        .layer_kv_heads = kv_heads};
        mha_decoder_desc desc = {.struct_size = sizeof desc,
                                 .batch = 3,
                                 .cache_type = MHA_I8,
                                 .page_size = 16,
                                 .memory_capacity = streams ? 0 : 20};
        mha_decoder_sizes sizes = {.struct_size = sizeof sizes};
        mha_transformer *t = NULL;
        if (streams) desc.flags = MHA_DECODER_STREAMING, desc.window = 6, desc.sink_keys = 2;
        if (streams) desc.max_step = 4;
        expect_ok(mha_transformer_create(context, &d, &t));
        expect_ok(mha_decoder_count(t, &desc, &sizes));
        if (streams) {
            /* with windows: one empty page each, and floats of two sinks of three heads */
            assert_int_equal(sizes.memory_bytes, 0);
            assert_int_equal(sizes.scale_bytes, 9 * 3 * SCALES);
            assert_int_equal(sizes.table_bytes, 2 * 192);
            assert_int_equal(sizes.total_bytes, 10 * 3 * HEAD + 2 * 192 + 3 * 2 * 3 * 8 * 4);
        } else {
            /* Memories: one page for each of two runs, for two heads in both layers; 3 * (16 + 4) +
             * 3 * 8 */
            assert_int_equal(sizes.memory_bytes, 2 * (3 * 2 * 2 * HEAD + 128));
            assert_int_equal(sizes.scale_bytes, 9 * 3 * SCALES + 2 * 3 * 2 * 2 * SCALES);
            assert_int_equal(sizes.table_bytes, 2 * 192 + 2 * 128);
            assert_int_equal(sizes.total_bytes, 9 * 3 * HEAD + 2 * 192 + sizes.memory_bytes);
        }
        mha_transformer_destroy(t);
    }
}

static void steps_have_the_bits_of_the_whole(void)
{
    rng r = rng_make(rng_run_seed(), 1);
    for (int round = 0; round < 30; round++) {
        int32_t ids[BATCH * LENGTH], drafts[BATCH * LENGTH];
        float at_once[BATCH * LENGTH * WIDTH] = {0}, stepped[BATCH * LENGTH * WIDTH] = {0};
        const mha_transformer_desc d = decoded_draw(&r, false);
        mha_transformer *t = decoded_make(&d, rng_next(&r));
        mha_decoder *decoder = NULL;
        const int64_t most = round % 3 == 0 ? 1 : rng_between(&r, 1, LENGTH);
        for (int i = 0; i < BATCH * LENGTH; i++) ids[i] = (int32_t)rng_between(&r, 0, VOCAB - 1);
        for (int i = 0; i < BATCH * LENGTH; i++) drafts[i] = (int32_t)rng_between(&r, 0, VOCAB - 1);
        whole(t, ids, at_once);
        expect_ok(create(context, t, BATCH, 0, most, &decoder));
        for (int64_t at = 0, count; at < LENGTH; at += count) {
            count = rng_between(&r, 1, most < LENGTH - at ? most : LENGTH - at);
            if (rng_chance(&r, 0.3)) { /* a rejected draft */
                step(t, decoder, drafts, stepped, at, count);
                expect_ok(mha_decoder_truncate(decoder, at));
            }
            step(t, decoder, ids, stepped, at, count);
        }
        assert_memory_equal(at_once, stepped, sizeof at_once);
        mha_decoder_destroy(decoder);
        mha_transformer_destroy(t);
    }
}

static void misuse_is_refused(void)
{
    rng r = rng_make(rng_run_seed(), 2);
    int32_t ids[BATCH * LENGTH] = {0};
    float rows[BATCH * LENGTH * WIDTH];
    mha_transformer_desc d = decoded_draw(&r, false);
    d.flags = MHA_TRANSFORMER_CAUSAL;
    mha_transformer *t = decoded_make(&d, 1), *other = NULL;
    mha_decoder *decoder = NULL;
    expect_error(create(NULL, t, 1, 1, 1, &decoder), MHA_ERR_NULL, "context");
    expect_error(create(context, NULL, 1, 1, 1, &decoder), MHA_ERR_NULL, "transformer");
    expect_error(create(context, t, 1, 1, 1, NULL), MHA_ERR_NULL, "decoder");
    expect_error(create(context, t, -1, 0, 1, &decoder), MHA_ERR_ARGUMENT, "batch is -1");
    expect_error(create(context, t, 1, 0, LENGTH + 1, &decoder), MHA_ERR_ARGUMENT,
                 "max_step is 41");
    expect_error(create(context, t, 1, LENGTH + 1, 1, &decoder), MHA_ERR_ARGUMENT,
                 "capacity is 41");
    expect_error(create(context, t, INT64_MAX, 0, 2, &decoder), MHA_ERR_ARGUMENT, "batch");
    d.flags = 0;
    d.layers = NULL; /* the layers were drawn for a causal transformer */
    other = decoded_make(&d, 1);
    expect_error(create(context, other, 1, 1, 1, &decoder), MHA_ERR_UNSUPPORTED, "causal");
    assert_null(decoder);
    mha_transformer_destroy(other);
    expect_ok(create(context, t, BATCH, 0, LENGTH / 2 + 1, &decoder));
    mha_tensor tokens = part(ids, MHA_I32, 0, LENGTH / 2 + 1, 1);
    mha_tensor out = part(rows, MHA_F32, 0, LENGTH / 2 + 1, VOCAB);
    expect_ok(mha_decoder_step(context, decoder, &tokens, &out));
    expect_error(mha_decoder_step(context, decoder, &tokens, &out), MHA_ERR_SIZE, "capacity, 40");
    expect_ok(mha_decoder_truncate(decoder, 10));
    expect_error(mha_decoder_step(context, NULL, &tokens, &out), MHA_ERR_NULL, "decoder");
    expect_error(mha_decoder_step(NULL, decoder, &tokens, &out), MHA_ERR_NULL, "context");
    expect_error(mha_decoder_step(context, decoder, NULL, &out), MHA_ERR_NULL, "tokens");
    expect_ok(mha_decoder_step(context, decoder, &tokens, NULL)); /* outputs are optional */
    assert_int_equal(mha_decoder_length(decoder), 10 + LENGTH / 2 + 1);
    expect_ok(mha_decoder_truncate(decoder, 10));
    tokens.shape[1] = out.shape[1] = LENGTH / 2 + 2;
    expect_error(mha_decoder_step(context, decoder, &tokens, &out), MHA_ERR_SIZE, "1..21");
    tokens.shape[1] = out.shape[1] = 2;
    ids[1] = VOCAB;
    expect_error(mha_decoder_step(context, decoder, &tokens, &out), MHA_ERR_ARGUMENT, "tokens");
    assert_int_equal(mha_decoder_length(decoder), 10);
    expect_error(mha_decoder_truncate(decoder, 11), MHA_ERR_ARGUMENT, "0..10");
    expect_error(mha_decoder_truncate(NULL, 0), MHA_ERR_NULL, "decoder");
    mha_decoder_destroy(decoder);
    expect_ok(create(context, t, BATCH, 3, 0, &decoder));
    tokens.shape[1] = out.shape[1] = 4;
    expect_error(mha_decoder_step(context, decoder, &tokens, &out), MHA_ERR_SIZE, "1..3");
    mha_decoder_destroy(decoder);
    expect_ok(mha_decoder_create(context, t, NULL, &decoder)); /* one sequence of maximum length */
    tokens.shape[0] = out.shape[0] = 1;
    tokens.shape[1] = out.shape[1] = LENGTH;
    ids[1] = 0;
    expect_ok(mha_decoder_step(context, decoder, &tokens, &out));
    mha_decoder_destroy(decoder);
    mha_decoder_destroy(NULL);
    mha_transformer_destroy(t);
}

/* If any allocation fails, the decoder is unchanged, and the step can be repeated. */
static void failed_allocations_are_reported(void)
{
    rng r = rng_make(rng_run_seed(), 3);
    int32_t ids[BATCH * LENGTH] = {0};
    float wanted[BATCH * LENGTH * WIDTH] = {0}, got[BATCH * LENGTH * WIDTH] = {0};
    mha_transformer_desc d = decoded_draw(&r, false);
    mha_transformer *t = decoded_make(&d, 5);
    whole(t, ids, wanted);
    failing_alloc alloc = failing_alloc_make();
    const mha_context_desc desc = {.struct_size = sizeof desc,
                                   .num_threads = 8, /* makes the scratch of attention larger */
                                   .allocator = failing_alloc_interface(&alloc)};
    mha_status status = MHA_ERR_NOMEM;
    int failures = 0;
    for (; status == MHA_ERR_NOMEM && failures < 300; failures++) {
        mha_context *own = NULL;
        mha_decoder *decoder = NULL;
        alloc.fail_at = -1;
        alloc.fail_after = false;
        expect_ok(mha_context_create(&desc, &own));
        alloc.fail_at = alloc.calls + failures;
        alloc.fail_after = true; /* otherwise scratch would retry with a smaller block */
        status = create(own, t, BATCH, LENGTH, 0, &decoder);
        mha_tensor tokens = part(ids, MHA_I32, 0, LENGTH, 1);
        mha_tensor out = part(got, MHA_F32, 0, LENGTH, width_of(t));
        if (decoder && (status = mha_decoder_step(own, decoder, &tokens, &out)) != MHA_OK) {
            assert_int_equal(mha_decoder_length(decoder), 0);
            alloc.fail_at = -1;
            alloc.fail_after = false;
            expect_ok(mha_decoder_step(own, decoder, &tokens, &out));
        }
        if (decoder) assert_memory_equal(wanted, got, sizeof wanted);
        mha_decoder_destroy(decoder);
        mha_context_destroy(own);
    }
    expect_ok(status);
    assert_true(failures > 4);
    assert_int_equal(alloc.live, 0);
    assert_int_equal(alloc.mistakes, 0);
    mha_transformer_destroy(t);
}

RUN_TESTS_BETWEEN(context_begin, NULL, TEST(steps_have_the_bits_of_the_whole), TEST(sizes_by_hand),
                  TEST(steps_in_every_type), TEST(misuse_is_refused),
                  TEST(failed_allocations_are_reported))
