/* Decoders whose sinks remain adjacent to the window (StreamingLLM). With one layer, keys and
 * values depend only on their tokens, so a row must equal that of the text without the discarded
 * part. In any transformer, steps of any size and batches give the same bits. */
#include "support/decoded.h"
#include "support/expect.h"
#include "support/one_context.h"
#include "support/suite.h"
#include "support/tally.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT = 150, STEP = 13 };

/* A text decoded by one sequence, and its outputs. */
typedef struct story {
    int32_t ids[TEXT];
    float rows[TEXT][WIDTH];
} story;

static mha_transformer_desc draw(rng *r)
{
    mha_transformer_desc d = decoded_draw(r, false);
    d.positions = MHA_ENCODING_ROTARY;
    d.layers = NULL;
    return d;
}

static int64_t outputs_of(const mha_transformer_desc *d)
{
    return d->flags & MHA_TRANSFORMER_NO_OUTPUT ? d->embed_dim : d->vocab_size;
}

static void decode(rng *r, const mha_transformer *t, const mha_decoder_desc *desc, int64_t width,
                   int64_t most, story *s)
{
    mha_decoder *decoder;
    expect_ok(mha_decoder_create(context, t, desc, &decoder));
    for (int64_t at = 0, n; at < TEXT; at += n) {
        n = rng_between(r, 1, most);
        if (n > TEXT - at) n = TEXT - at;
        float rows[STEP * WIDTH];
        const mha_tensor tokens =
            mha_tensor_contiguous(s->ids + at, MHA_I32, 2, (const int64_t[]){1, n});
        const mha_tensor out =
            mha_tensor_contiguous(rows, MHA_F32, 3, (const int64_t[]){1, n, width});
        expect_ok(mha_decoder_step(context, decoder, &tokens, &out));
        for (int64_t i = 0; i < n; i++)
            memcpy(s->rows[at + i], rows + i * width, (size_t)width * sizeof *rows);
        if (rng_chance(r, 0.1) && n < most) { /* a rejected draft */
            expect_ok(mha_decoder_truncate(decoder, at));
            n = 0;
        }
    }
    mha_decoder_destroy(decoder);
}

static tally tally_rows = {.name = "rows"};

/* Row i is the last one of the sinks and of the window.
 *
 * Both compute the same values except for the positions of the rotations. In each of them, a
 * rotated number has an error of 2^-24 of the pair's size: a product has four such errors, and with
 * sum |q_d k_d| scale <= 2^3 for normal weights, scores differ by at most 4 2^-24 2^3 = 2^-19, and
 * weights by the same relative error. The following norms and linear layers of normal numbers
 * amplify it less than four times. */
static void check_row(const mha_transformer *t, const mha_decoder_desc *desc, const story *s,
                      int64_t i, int64_t width)
{
    const int64_t sinks = desc->sink_keys, most = sinks + desc->window;
    const int64_t n = i + 1 < most ? i + 1 : most;
    int32_t ids[LENGTH];
    float rows[LENGTH * WIDTH], size = 1;
    for (int64_t j = 0; j < n; j++) ids[j] = s->ids[j < sinks ? j : i - (n - 1) + j];
    const mha_tensor tokens = mha_tensor_contiguous(ids, MHA_I32, 2, (const int64_t[]){1, n});
    const mha_tensor out = mha_tensor_contiguous(rows, MHA_F32, 3, (const int64_t[]){1, n, width});
    const mha_transformer_input input = {.struct_size = sizeof input, .tokens = &tokens};
    expect_ok(mha_transformer_forward(context, t, &input, NULL, &out, NULL, NULL));
    for (int64_t k = 0; k < width; k++) size = fmaxf(size, fabsf(rows[(n - 1) * width + k]));
    for (int64_t k = 0; k < width; k++)
        if (!tally_compare(&tally_rows, (double)s->rows[i][k], (double)rows[(n - 1) * width + k],
                           ldexp((double)size, -17)))
            fail_msg("row %d, output %d is %g, not %g", (int)i, (int)k, (double)s->rows[i][k],
                     (double)rows[(n - 1) * width + k]);
}

static mha_decoder_desc some_decoder(rng *r)
{
    return (mha_decoder_desc){.struct_size = sizeof(mha_decoder_desc),
                              .flags = MHA_DECODER_STREAMING,
                              .capacity = TEXT,
                              .max_step = STEP,
                              .page_size = rng_between(r, 0, 20),
                              .window = rng_between(r, 1, 25),
                              .sink_keys = rng_between(r, 0, 5)};
}

static void one_layer(void)
{
    const int cases = rng_cases(30, 500);
    story *s = calloc(1, sizeof *s);
    assert_non_null(s);
    for (int i = 0; i < cases; i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)i);
        mha_transformer_desc d = draw(&r);
        d.num_layers = 1;
        d.layer_heads = NULL;
        mha_transformer *t = decoded_make(&d, (uint64_t)i);
        const mha_decoder_desc desc = some_decoder(&r);
        for (int k = 0; k < TEXT; k++) s->ids[k] = (int32_t)rng_between(&r, 0, VOCAB - 1);
        decode(&r, t, &desc, outputs_of(&d), STEP, s);
        for (int64_t k = 0; k < TEXT; k++) check_row(t, &desc, s, k, outputs_of(&d));
        mha_transformer_destroy(t);
    }
    free(s);
    tally_judge(&tally_rows);
}

/* Single steps, steps of any size, and padded sequences of a batch give the same bits for every
 * type. */
static void any_steps(void)
{
    static const mha_dtype types[] = {MHA_F32, MHA_F16, MHA_BF16, MHA_I8};
    const int cases = rng_cases(20, 300);
    story *s = calloc(3, sizeof *s);
    assert_non_null(s);
    for (int i = 0; i < cases; i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)(1000 + i));
        const mha_transformer_desc d = draw(&r);
        mha_transformer *t = decoded_make(&d, (uint64_t)i);
        mha_decoder_desc desc = some_decoder(&r);
        const int64_t width = outputs_of(&d);
        desc.cache_type = types[i % 4];
        for (int k = 0; k < TEXT; k++)
            s[0].ids[k] = s[1].ids[k] = (int32_t)rng_between(&r, 0, VOCAB - 1);
        for (int k = 0; k < TEXT; k++) s[2].ids[k] = (int32_t)rng_between(&r, 0, VOCAB - 1);
        decode(&r, t, &desc, width, 1, &s[0]);
        decode(&r, t, &desc, width, STEP, &s[1]);
        decode(&r, t, &desc, width, STEP, &s[2]);
        assert_memory_equal(s[0].rows, s[1].rows, sizeof s[0].rows);
        mha_decoder *both;
        desc.batch = 2;
        expect_ok(mha_decoder_create(context, t, &desc, &both));
        int64_t at[2] = {0};
        while (at[0] < TEXT || at[1] < TEXT) {
            const int64_t n = rng_between(&r, 1, STEP);
            int32_t ids[2 * STEP] = {0};
            float rows[2 * STEP * WIDTH];
            int64_t firsts[2], counts[2];
            for (int b = 0; b < 2; b++) {
                const int64_t left = TEXT - at[b];
                counts[b] = rng_between(&r, 0, left < n ? left : n);
                firsts[b] = rng_between(&r, 0, n - counts[b]);
                memcpy(ids + b * n + firsts[b], s[2 * b].ids + at[b],
                       (size_t)counts[b] * sizeof *ids);
            }
            const mha_tensor tokens =
                mha_tensor_contiguous(ids, MHA_I32, 2, (const int64_t[]){2, n});
            const mha_tensor out =
                mha_tensor_contiguous(rows, MHA_F32, 3, (const int64_t[]){2, n, width});
            expect_ok(mha_decoder_step_rows(context, both, &tokens, firsts, counts, &out));
            for (int b = 0; b < 2; b++, at[b - 1] += counts[b - 1])
                for (int64_t j = 0; j < counts[b]; j++)
                    assert_memory_equal(rows + (b * n + firsts[b] + j) * width,
                                        s[2 * b].rows[at[b] + j], (size_t)width * sizeof *rows);
        }
        mha_decoder_destroy(both);
        mha_transformer_destroy(t);
    }
    free(s);
}

static void what_is_refused(void)
{
    rng r = rng_make(1, 1);
    mha_transformer_desc d = draw(&r);
    mha_transformer *t = decoded_make(&d, 1), *learned;
    d.positions = MHA_ENCODING_LEARNED;
    learned = decoded_make(&d, 1);
    mha_decoder_desc x = some_decoder(&r);
    mha_decoder *decoder;
    x.batch = 2;
    expect_spoiled(x, mha_decoder_create(context, t, &x, &decoder), MHA_ERR_ARGUMENT,
                   "STREAMING needs a window", x.window = x.sink_keys = 0);
    expect_spoiled(x, mha_decoder_create(context, t, &x, &decoder), MHA_ERR_ARGUMENT,
                   "must be 40 (max_length) together", x.window = 38, x.sink_keys = 3);
    expect_error(mha_decoder_create(context, learned, &x, &decoder), MHA_ERR_UNSUPPORTED,
                 "rotary positions");
    x.sink_keys = 2;
    expect_ok(mha_decoder_create(context, t, &x, &decoder));
    mha_decoder_sizes sizes = {.struct_size = sizeof sizes};
    expect_ok(mha_decoder_count(t, &x, &sizes));
    assert_int_equal(sizes.total_bytes, mha_decoder_cache_bytes(decoder));
    expect_error(mha_decoder_fork(decoder, 0, 1, 0), MHA_ERR_UNSUPPORTED, "cannot be shared");
    mha_decoder_destroy(decoder);
    mha_transformer_destroy(t);
    mha_transformer_destroy(learned);
}

RUN_TESTS_BETWEEN(context_begin, NULL, TEST(one_layer), TEST(any_steps), TEST(what_is_refused))
