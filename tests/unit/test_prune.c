/* Pruned transformers are bit-identical to closed gates in forward calls, backward calls and
 * decoding. Larger ones are within the bound of their sums, and exact on small integers. Further
 * tests are for grouped key/value heads, averaged key/value heads, and inconsistent
 * descriptions. */
#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/layers.h"
#include "support/machines.h"
#include "support/rng.h"
#include "support/stored.h"
#include "support/suite.h"

#include <multihead/importance.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_T = 8, MOST_B = 3, MOST_ROWS = MOST_B * MOST_T, MOST_WIDTH = 24, MOST_HEADS = 24 };

/* A transformer, its kept heads, the smaller one, and a batch for both. */
typedef struct example {
    mha_transformer *whole, *small;
    mha_transformer_desc desc, left;
    float keep_data[MOST_HEADS], memory_data[MOST_B * 4 * MOST_WIDTH];
    int32_t ids[MOST_ROWS];
    int64_t lengths[MOST_B], B, T, width;
    mha_tensor keep, tokens, memory;
} example;

static mha_layer_desc layers[3];

static mha_transformer_desc some_desc(rng *r)
{
    mha_transformer_desc d = {.struct_size = sizeof d,
                              .vocab_size = rng_between(r, 5, 20),
                              .max_length = MOST_T,
                              .num_layers = rng_between(r, 1, 3),
                              .num_heads = 2 * rng_between(r, 1, 4),
                              .ff_dim = rng_chance(r, 0.2) ? 0 : rng_between(r, 1, 20)};
    d.embed_dim = d.num_heads * 2;
    if (rng_chance(r, 0.5)) d.head_dim = 4;
    if (rng_chance(r, 0.6)) d.kv_heads = rng_chance(r, 0.5) ? d.num_heads / 2 : 2;
    if (d.kv_heads > 0 && d.num_heads % d.kv_heads != 0) d.kv_heads = 1;
    d.norm = (mha_norm)rng_between(r, 0, 2);
    d.positions = (mha_position_encoding)rng_between(r, 0, 3);
    d.feed_forward = (mha_feed_forward)rng_between(r, 0, 5);
    if (rng_chance(r, 0.5)) d.flags |= MHA_TRANSFORMER_CAUSAL;
    if (rng_chance(r, 0.2)) d.flags |= MHA_TRANSFORMER_CROSS;
    if (rng_chance(r, 0.3)) d.flags |= MHA_TRANSFORMER_TIED;
    if (rng_chance(r, 0.2)) d.flags |= MHA_TRANSFORMER_NO_OUTPUT;
    blocks_draw(r, &d);
    layers_draw(r, &d, layers);
    if (rng_chance(r, 0.6)) d.layers = layers;
    return d;
}

static void fill_weights(mha_context *context, mha_transformer *t, rng *r)
{
    const mha_transformer_init init = {
        .struct_size = sizeof init, .seed = rng_next(r), .embedding_std = 1, .position_std = 0.5};
    expect_ok(mha_transformer_initialise(context, t, &init));
    float *data = mha_transformer_data(t);
    for (int64_t i = 0; i < mha_transformer_size(t); i++) data[i] += 0.1f * rng_normal(r);
    expect_ok(mha_transformer_update(context, t));
}

static example *example_of(mha_context *context, rng *r, const mha_transformer_desc *desc)
{
    example *e = calloc(1, sizeof *e);
    assert_non_null(e);
    expect_ok(mha_transformer_create(context, desc, &e->whole));
    mha_transformer_describe(e->whole, &e->desc);
    const mha_transformer_desc *d = &e->desc;
    fill_weights(context, e->whole, r);
    const double share = (double)rng_between(r, 0, 4) / 4;
    for (int64_t i = 0; i < d->num_layers * d->num_heads; i++)
        e->keep_data[i] = rng_chance(r, share) ? 1 : 0;
    e->keep =
        mha_tensor_contiguous(e->keep_data, MHA_F32, 2, (int64_t[]){d->num_layers, d->num_heads});
    expect_ok(mha_transformer_prune(context, e->whole, &e->keep, &e->small));
    mha_transformer_describe(e->small, &e->left);
    e->B = rng_between(r, 1, MOST_B);
    e->T = rng_between(r, 1, MOST_T);
    e->width = d->flags & MHA_TRANSFORMER_NO_OUTPUT ? d->embed_dim : d->vocab_size;
    for (int64_t i = 0; i < e->B * e->T; i++)
        e->ids[i] = (int32_t)rng_between(r, 0, d->vocab_size - 1);
    for (int64_t b = 0; b < e->B; b++) e->lengths[b] = rng_between(r, 1, e->T);
    e->tokens = mha_tensor_contiguous(e->ids, MHA_I32, 2, (int64_t[]){e->B, e->T});
    for (int64_t i = 0; i < e->B * 4 * d->memory_dim; i++) e->memory_data[i] = rng_normal(r);
    e->memory =
        mha_tensor_contiguous(e->memory_data, MHA_F32, 3, (int64_t[]){e->B, 4, d->memory_dim});
    return e;
}

static example *example_make(mha_context *context, rng *r)
{
    const mha_transformer_desc d = some_desc(r);
    return example_of(context, r, &d);
}

static void example_free(example *e)
{
    mha_transformer_destroy(e->small);
    mha_transformer_destroy(e->whole);
    free(e);
}

/* Results of one of the two transformers. The whole one runs with gates. */
typedef struct result {
    mha_activations *a;
    mha_transformer_input input;
    float *output, *probabilities, *gradient;
} result;

static void run(mha_context *context, const example *e, bool small, result *out)
{
    const mha_transformer *t = small ? e->small : e->whole;
    const mha_transformer_desc *d = small ? &e->left : &e->desc;
    const bool cross = d->flags & MHA_TRANSFORMER_CROSS;
    const int64_t maps[] = {d->num_layers, e->B, d->num_heads, e->T, e->T};
    const int64_t rows[] = {e->B, e->T, e->width};
    *out = (result){.output = calloc((size_t)(e->B * e->T * e->width), sizeof(float))};
    out->probabilities =
        calloc((size_t)(maps[0] * maps[1] * maps[2] * maps[3] * maps[4]), sizeof(float));
    assert_true(out->output && out->probabilities);
    memset(out->probabilities, 0xFF,
           (size_t)(maps[0] * maps[1] * maps[2] * maps[3] * maps[4]) * sizeof(float));
    out->input = (mha_transformer_input){.struct_size = sizeof out->input,
                                         .tokens = &e->tokens,
                                         .lengths = e->lengths,
                                         .memory = cross ? &e->memory : NULL,
                                         .gates = small ? NULL : &e->keep};
    mha_tensor output = mha_tensor_contiguous(out->output, MHA_F32, 3, rows);
    mha_tensor probabilities = mha_tensor_contiguous(out->probabilities, MHA_F32, 5, maps);
    expect_ok(mha_activations_create(context, t, MOST_ROWS, cross ? MOST_B * 4 : 0, &out->a));
    expect_ok(
        mha_transformer_forward(context, t, &out->input, out->a, &output, &probabilities, NULL));
}

static void result_free(result *r)
{
    mha_activations_destroy(r->a);
    free(r->output), free(r->probabilities), free(r->gradient);
}

/* Compares rows within lengths. Signs of zeros may differ. */
static void check_rows(const example *e, const float *a, const float *b)
{
    for (int64_t i = 0; i < e->B * e->T * e->width; i++)
        if (i / e->width % e->T < e->lengths[i / e->width / e->T])
            if (!(a[i] >= b[i] && a[i] <= b[i]))
                fail_msg("%.9g and %.9g", (double)a[i], (double)b[i]);
}

static void check_both(mha_context *context, const example *e)
{
    result whole, small;
    run(context, e, false, &whole);
    run(context, e, true, &small);
    check_rows(e, whole.output, small.output);
    result_free(&whole), result_free(&small);
}

static void check_maps(const example *e, const float *whole, const float *small)
{
    const int64_t H = e->desc.num_heads, left = e->left.num_heads, map = e->T * e->T;
    for (int64_t l = 0; l < e->desc.num_layers; l++)
        for (int64_t b = 0; b < e->B; b++) {
            int64_t at = 0;
            for (int64_t h = 0; h < H; h++)
                if (e->keep_data[l * H + h] > 0)
                    assert_memory_equal(whole + ((l * e->B + b) * H + h) * map,
                                        small + ((l * e->B + b) * left + at++) * map,
                                        (size_t)map * sizeof(float));
            for (int64_t k = at * map; k < left * map; k++) {
                const float x = small[(l * e->B + b) * left * map + k];
                assert_true(x >= 0 && x <= 0);
            }
        }
}

static void masked_is_removed(void)
{
    int empty = 0, uneven = 0;
    for (int i = 0; i < rng_cases(60, 1000); i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)i);
        mha_context *context = machines_context(2, i);
        example *e = example_make(context, &r);
        result whole, small;
        run(context, e, false, &whole);
        run(context, e, true, &small);
        check_rows(e, whole.output, small.output);
        check_maps(e, whole.probabilities, small.probabilities);
        for (int64_t l = 0; e->left.layer_heads && l < e->desc.num_layers; l++) {
            empty += e->left.layer_heads[l] == 0;
            uneven += e->left.layer_kv_heads[l] > e->desc.kv_heads;
        }
        result_free(&whole), result_free(&small);
        example_free(e);
    }
    printf("  %d layers without heads, %d with repeated key/value heads\n", empty, uneven);
    if (rng_whole_sample()) assert_true(empty > 0 && uneven > 0);
}

/* Parameters that are removed with a head: D rows of W_q and D columns of W_o, and D rows of W_k
 * and W_v with the last head that reads them. */
static void sizes_count_what_goes_with_heads(void)
{
    machines all = machines_make(1);
    mha_context *context = all.each[0].context;
    const mha_transformer_desc d = {.struct_size = sizeof d,
                                    .flags = MHA_TRANSFORMER_CAUSAL,
                                    .vocab_size = 9,
                                    .max_length = 8,
                                    .embed_dim = 24,
                                    .num_layers = 2,
                                    .num_heads = 6,
                                    .kv_heads = 2,
                                    .head_dim = 5,
                                    .norm = MHA_NORM_RMS};
    mha_transformer *t, *p;
    mha_transformer_desc left;
    float keep[12] = {1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1};
    mha_tensor view = mha_tensor_contiguous(keep, MHA_F32, 2, (int64_t[]){2, 6});
    expect_ok(mha_transformer_create(context, &d, &t));
    expect_ok(mha_transformer_prune(context, t, &view, &p));
    mha_transformer_describe(p, &left);
    assert_int_equal(left.num_heads, 6);
    assert_int_equal(left.layer_heads[0], 1);
    assert_int_equal(left.layer_kv_heads[0], 1);
    assert_int_equal(left.layer_heads[1], 6);
    assert_int_equal(left.layer_kv_heads[1], 2);
    /* five heads of W_q and W_o, and one of W_k and W_v, are removed */
    assert_int_equal(mha_transformer_size(t) - mha_transformer_size(p), (5 + 1) * 2 * 24 * 5);
    mha_transformer_destroy(p);
    for (int i = 0; i < 12; i++) keep[i] = i % 6 < 2; /* equal layers: no per-layer description */
    expect_ok(mha_transformer_prune(context, t, &view, &p));
    mha_transformer_describe(p, &left);
    assert_true(!left.layer_heads && left.num_heads == 2 && left.kv_heads == 1);
    mha_transformer_destroy(p);
    for (int i = 0; i < 12; i++) keep[i] = 0;
    expect_ok(mha_transformer_prune(context, t, &view, &p));
    assert_int_equal(mha_transformer_size(p), 2 * 9 * 24 + 24); /* words, output, last norm */
    mha_transformer_destroy(p);
    mha_transformer_destroy(t);
}

/* The number of reads of a source for all rows of a parameter. */
static int64_t reads_of(const mha_transformer *t, const char *name, _Atomic int64_t *reads)
{
    float to[24 * 30];
    mha_parameter p;
    expect_ok(mha_transformer_find(t, 0, name, &p));
    assert_true(p.count <= 24 * 30);
    *reads = 0;
    expect_ok(mha_transformer_read(t, &p, 0, p.shape[0], to));
    return *reads;
}

/* Rows of adjacent heads are read together. All rows of adjacent columns are read together too. */
static void heads_are_read_in_runs(void)
{
    enum { E = 24 };
    machines all = machines_make(1);
    mha_context *context = all.each[0].context;
    const mha_transformer_desc d = {.struct_size = sizeof d,
                                    .flags = MHA_TRANSFORMER_CAUSAL,
                                    .vocab_size = 9,
                                    .max_length = 8,
                                    .embed_dim = E,
                                    .num_layers = 1,
                                    .num_heads = 6,
                                    .head_dim = 5,
                                    .norm = MHA_NORM_RMS};
    const struct {
        float keep[6];
        int64_t q, o; /* reads */
    } cases[] = {{{1, 1, 0, 1, 1, 1}, 2, 2 * E},
                 {{0, 1, 1, 1, 0, 0}, 1, 1},
                 {{1, 0, 1, 0, 1, 0}, 3, 3 * E},
                 {{1, 1, 1, 1, 1, 1}, 1, 1}};
    mha_transformer *t, *other, *p;
    expect_ok(mha_transformer_create(context, &d, &t));
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
        _Atomic int64_t reads;
        stored s;
        float keep[6];
        memcpy(keep, cases[n].keep, sizeof keep);
        const mha_tensor view = mha_tensor_contiguous(keep, MHA_F32, 2, (int64_t[]){1, 6});
        other = stored_transformer(context, t, 0, &s);
        s.reads = &reads;
        expect_ok(mha_transformer_prune(context, other, &view, &p));
        assert_int_equal(reads_of(p, "self_attn.q_proj.weight", &reads), cases[n].q);
        assert_int_equal(reads_of(p, "self_attn.v_proj.weight", &reads), cases[n].q);
        assert_int_equal(reads_of(p, "self_attn.o_proj.weight", &reads), cases[n].o);
        mha_transformer_destroy(p);
        mha_transformer_destroy(other);
    }
    mha_transformer_destroy(t);
}

/* ---- backward ------------------------------------------------------------------------------ */

static void backward(mha_context *context, const example *e, bool small, result *out)
{
    mha_transformer *t = small ? e->small : e->whole;
    float *slope = calloc((size_t)(e->B * e->T * e->width), sizeof *slope);
    out->gradient = calloc((size_t)mha_transformer_size(t), sizeof(float));
    assert_true(slope && out->gradient);
    for (int64_t i = 0; i < e->B * e->T * e->width; i++)
        if (i / e->width % e->T < e->lengths[i / e->width / e->T])
            slope[i] = (float)((i * 7 % 11) - 5) / 5;
    mha_tensor view = mha_tensor_contiguous(slope, MHA_F32, 3, (int64_t[]){e->B, e->T, e->width});
    const mha_transformer_gradients wanted = {.struct_size = sizeof wanted,
                                              .parameters = out->gradient};
    expect_ok(mha_transformer_backward(context, t, &out->input, out->a, &view, &wanted));
    free(slope);
}

/* Parameters outside self-attention have the same gradients. Their sums have different numbers of
 * terms, so they are compared within 1e-4 of the largest. This covers roundings of 6e-8, sums of a
 * few hundred terms, and three layers with norms. */
static void same_gradients(void)
{
    double worst = 0;
    for (int i = 0; i < rng_cases(30, 500); i++) {
        rng r = rng_make(rng_run_seed(), 1000 + (uint64_t)i);
        mha_context *context = machines_context(2, i);
        example *e = example_make(context, &r);
        result whole, small;
        float largest = 1e-6f;
        run(context, e, false, &whole);
        run(context, e, true, &small);
        backward(context, e, false, &whole);
        backward(context, e, true, &small);
        for (int64_t k = 0; k < mha_transformer_size(e->whole); k++)
            if (fabsf(whole.gradient[k]) > largest) largest = fabsf(whole.gradient[k]);
        for (int64_t k = 0; k < mha_transformer_parameters(e->small); k++) {
            mha_parameter p, old;
            expect_ok(mha_transformer_parameter(e->small, k, &p));
            expect_ok(mha_transformer_find(e->whole, -1, p.name, &old));
            if (p.count != old.count) continue;
            if (strstr(p.name, "self_attn.") && !strstr(p.name, "o_proj.bias")) continue;
            for (int64_t j = 0; j < p.count; j++) {
                const double apart = fabs((double)small.gradient[p.offset + j] -
                                          (double)whole.gradient[old.offset + j]) /
                                     (double)largest;
                if (!(apart <= worst)) worst = apart; /* NaN too */
            }
        }
        result_free(&whole), result_free(&small);
        example_free(e);
    }
    printf("  largest difference / largest gradient: %.2g\n", worst);
    assert_true(worst < 1e-4);
}

/* Kept heads have the same importance as with closed heads. */
static void same_importance(void)
{
    for (int i = 0; i < 10; i++) {
        rng r = rng_make(rng_run_seed(), 2000 + (uint64_t)i);
        mha_context *context = machines_context(1, i);
        mha_transformer_desc d = some_desc(&r);
        d.flags &= ~(uint32_t)(MHA_TRANSFORMER_CROSS | MHA_TRANSFORMER_NO_OUTPUT);
        example *e = example_of(context, &r, &d);
        const mha_transformer_input input = {
            .struct_size = sizeof input, .tokens = &e->tokens, .lengths = e->lengths};
        const mha_transformer_input *const inputs[] = {&input};
        const mha_tensor *targets[] = {&e->tokens};
        const mha_importance_data data = {.struct_size = sizeof data,
                                          .batches = 1,
                                          .inputs = inputs,
                                          .loss = mha_loss_targets,
                                          .user = targets};
        mha_importance_desc desc = {.struct_size = sizeof desc, .kind = MHA_IMPORTANCE_ABLATION};
        double whole[MOST_HEADS], small[MOST_HEADS], loss[2];
        expect_ok(mha_head_importance(context, e->small, &desc, &data, small, &loss[1]));
        desc.gates = &e->keep;
        expect_ok(mha_head_importance(context, e->whole, &desc, &data, whole, &loss[0]));
        assert_true(loss[0] >= loss[1] && loss[0] <= loss[1]);
        for (int64_t l = 0; l < d.num_layers; l++) {
            int64_t at = 0;
            for (int64_t h = 0; h < d.num_heads; h++)
                if (e->keep_data[l * d.num_heads + h] > 0) {
                    const double a = whole[l * d.num_heads + h];
                    const double b = small[l * e->left.num_heads + at++];
                    assert_true(a >= b && a <= b);
                }
        }
        example_free(e);
    }
}

/* ---- token by token ------------------------------------------------------------------------ */

static void steps_have_the_bits_of_the_whole(void)
{
    for (int i = 0; i < rng_cases(16, 200); i++) {
        rng r = rng_make(rng_run_seed(), 3000 + (uint64_t)i);
        mha_context *context = machines_context(2, i);
        mha_transformer_desc d = some_desc(&r);
        d.flags = (d.flags | MHA_TRANSFORMER_CAUSAL) & ~(uint32_t)MHA_TRANSFORMER_CROSS;
        layers_draw(&r, &d, layers);
        example *e = example_of(context, &r, &d);
        for (int64_t b = 0; b < e->B; b++) e->lengths[b] = e->T;
        result small;
        run(context, e, true, &small);
        mha_decoder *decoder;
        const mha_decoder_desc desc = {.struct_size = sizeof desc, .batch = e->B};
        float *row = malloc((size_t)(e->B * e->width) * sizeof *row);
        assert_non_null(row);
        expect_ok(mha_decoder_create(context, e->small, &desc, &decoder));
        for (int64_t at = 0; at < e->T; at++) {
            mha_tensor now = e->tokens;
            now.data = e->ids + at;
            now.shape[1] = 1;
            mha_tensor out = mha_tensor_contiguous(row, MHA_F32, 3, (int64_t[]){e->B, 1, e->width});
            expect_ok(mha_decoder_step(context, decoder, &now, &out));
            for (int64_t b = 0; b < e->B; b++)
                assert_memory_equal(row + b * e->width, small.output + (b * e->T + at) * e->width,
                                    (size_t)e->width * sizeof *row);
            if (at == e->T / 2) { /* repeat the steps from here */
                expect_ok(mha_decoder_truncate(decoder, at));
                expect_ok(mha_decoder_step(context, decoder, &now, &out));
            }
        }
        mha_decoder_destroy(decoder);
        free(row);
        result_free(&small);
        example_free(e);
    }
}

/* ---- wide layers --------------------------------------------------------------------------- */

/* H D = 320 inputs of W_o are summed in blocks of 128. The boundaries of blocks move if some inputs
 * are removed.
 */
static mha_transformer_desc wide_desc(void)
{
    return (mha_transformer_desc){.struct_size = sizeof(mha_transformer_desc),
                                  .flags = MHA_TRANSFORMER_NO_OUTPUT,
                                  .vocab_size = 20,
                                  .max_length = MOST_T,
                                  .embed_dim = 20,
                                  .num_layers = 1,
                                  .num_heads = 8,
                                  .head_dim = 40};
}

/* Small integers: W_q is 0, so that every key has the weight 1 / T, and T is a power of two. Heads
 * are then sums of integers / T, and every later sum is exact in any order. */
static void small_integers(void)
{
    for (int i = 0; i < 12; i++) {
        rng r = rng_make(rng_run_seed(), 4000 + (uint64_t)i);
        mha_context *context = machines_context(2, i);
        mha_transformer_desc d = wide_desc();
        d.num_layers = 2;
        example *e = example_of(context, &r, &d);
        mha_transformer_destroy(e->small);
        e->T = (int64_t)1 << rng_between(&r, 0, 3);
        e->tokens = mha_tensor_contiguous(e->ids, MHA_I32, 2, (int64_t[]){e->B, e->T});
        for (int64_t b = 0; b < e->B; b++) e->lengths[b] = e->T;
        for (int64_t k = 0; k < mha_transformer_parameters(e->whole); k++) {
            mha_parameter p;
            expect_ok(mha_transformer_parameter(e->whole, k, &p));
            float *x = mha_transformer_data(e->whole) + p.offset;
            const bool first = p.layer <= 0, query = strstr(p.name, "q_proj");
            for (int64_t j = 0; j < p.count;
                 j++) /* sparse after the first layer, so that sums stay small */
                x[j] = query || (!first && j % 7) ? 0 : (float)rng_between(&r, -1, 1);
        }
        expect_ok(mha_transformer_update(context, e->whole));
        expect_ok(mha_transformer_prune(context, e->whole, &e->keep, &e->small));
        mha_transformer_describe(e->small, &e->left);
        check_both(context, e);
        example_free(e);
    }
}

/* One layer without norms computes x + W_o z. Both transformers sum the same n = H D products in
 * different orders, each within (n + 1) u sum |w z| of the true sum, and both round the last
 * addition. */
static void wide_sums(void)
{
    double worst = 0;
    for (int i = 0; i < 12; i++) {
        rng r = rng_make(rng_run_seed(), 5000 + (uint64_t)i);
        mha_context *context = machines_context(2, i);
        const mha_transformer_desc d = wide_desc();
        example *e = example_of(context, &r, &d);
        const int64_t n = d.num_heads * d.head_dim;
        result whole, small;
        mha_layer_view view = {.struct_size = sizeof view};
        mha_parameter p;
        run(context, e, false, &whole);
        run(context, e, true, &small);
        expect_ok(mha_activations_layer(whole.a, 0, MHA_PART_SELF_ATTENTION, &view));
        expect_ok(mha_transformer_find(e->whole, 0, "self_attn.o_proj.weight", &p));
        const float *w = mha_transformer_data(e->whole) + p.offset;
        for (int64_t k = 0; k < e->B * e->T * e->width; k++) {
            if (k / e->width % e->T >= e->lengths[k / e->width / e->T]) continue;
            const float *z = (const float *)view.concatenated.data + k / e->width * n;
            double size = 0;
            for (int64_t j = 0; j < n; j++)
                size += fabs((double)w[k % e->width * n + j] * (double)z[j]);
            const double bound =
                0x1p-24 * (2 * ((double)n + 1) * size + 2 * fabs((double)whole.output[k]));
            const double error = fabs((double)whole.output[k] - (double)small.output[k]);
            if (bound > 0) worst = fmax(worst, error / bound);
            assert_true(error <= bound);
        }
        result_free(&whole), result_free(&small);
        example_free(e);
    }
    printf("  largest difference / bound %.4f\n", worst);
    if (rng_whole_sample()) assert_true(worst > 0);
}

/* ---- key/value heads ----------------------------------------------------------------------- */

static void shared_kv(void)
{
    mha_context *context = machines_context(1, 0);
    rng r = rng_make(rng_run_seed(), 6000);
    const mha_transformer_desc d = {.struct_size = sizeof d,
                                    .flags = MHA_TRANSFORMER_BIAS | MHA_TRANSFORMER_CAUSAL,
                                    .vocab_size = 9,
                                    .max_length = MOST_T,
                                    .embed_dim = 12,
                                    .num_layers = 2,
                                    .num_heads = 4,
                                    .positions = MHA_ENCODING_ROTARY,
                                    .head_dim = 2};
    example *e = example_of(context, &r, &d);
    mha_transformer_destroy(e->small);
    e->small = NULL;
    expect_error(mha_transformer_share_kv(context, e->whole, 3, &e->small), MHA_ERR_SHAPE,
                 "choose a divisor");
    expect_error(mha_transformer_share_kv(context, e->whole, 0, &e->small), MHA_ERR_SHAPE, "0");
    expect_ok(mha_transformer_share_kv(context, e->whole, 2, &e->small));
    mha_transformer_describe(e->small, &e->left);
    assert_true(!e->left.layer_heads && e->left.num_heads == 4 && e->left.kv_heads == 2);
    static const char *const names[] = {"self_attn.k_proj.weight", "self_attn.v_proj.weight",
                                        "self_attn.k_proj.bias", "self_attn.v_proj.bias"};
    for (int64_t i = 0; i < 8; i++) {
        mha_parameter p, old;
        expect_ok(mha_transformer_find(e->small, i / 4, names[i % 4], &p));
        expect_ok(mha_transformer_find(e->whole, i / 4, names[i % 4], &old));
        const float *to = mha_transformer_data(e->small) + p.offset;
        float *from = mha_transformer_data(e->whole) + old.offset;
        const int64_t block = p.ndim == 2 ? 2 * 12 : 2;
        assert_int_equal(p.count, 2 * block);
        for (int64_t k = 0; k < p.count; k++) {
            float *a = &from[k / block * 2 * block + k % block], *b = a + block;
            assert_true(to[k] == (float)(((double)*a + (double)*b) / 2));
            *b = *a; /* so that the heads of a group become equal */
        }
    }
    /* If the heads of a group are equal, no bit changes. */
    mha_transformer_destroy(e->small);
    expect_ok(mha_transformer_update(context, e->whole));
    expect_ok(mha_transformer_share_kv(context, e->whole, 2, &e->small));
    for (int i = 0; i < 8; i++) e->keep_data[i] = 1;
    check_both(context, e);
    example_free(e);
}

/* ---- misuse -------------------------------------------------------------------------------- */

static void misuse_is_refused(void)
{
    mha_context *context = machines_context(1, 0);
    const mha_transformer_desc plain = {.struct_size = sizeof plain,
                                        .vocab_size = 9,
                                        .max_length = 8,
                                        .embed_dim = 8,
                                        .num_layers = 2,
                                        .num_heads = 4};
    struct {
        mha_transformer_desc d;
        int64_t heads[2], kv[2];
        float keep[8];
        mha_tensor view;
    } c = {.d = plain, .heads = {4, 4}, .kv = {4, 1}, .keep = {1, 1, 1, 1, 1, 1, 1, 1}};
    mha_transformer *t = NULL, *none = NULL;
#define ROW(...) expect_spoiled(c, mha_transformer_create(context, &c.d, &none), __VA_ARGS__)
    ROW(MHA_ERR_ARGUMENT, "layer_heads[1] is 5", c.d.layer_heads = c.heads, c.heads[1] = 5);
    ROW(MHA_ERR_ARGUMENT, "layer_heads[1] is -1", c.d.layer_heads = c.heads, c.heads[1] = -1);
    ROW(MHA_ERR_SHAPE, "set layer_kv_heads", c.d.kv_heads = 2, c.d.layer_heads = c.heads,
        c.heads[1] = 3); /* 3 heads for 2 key/value heads */
    ROW(MHA_ERR_ARGUMENT, "set both", c.d.layer_kv_heads = c.kv);
    c.d.layer_heads = c.heads, c.d.layer_kv_heads = c.kv;
    ROW(MHA_ERR_SHAPE, "layer 1 has 4 heads", c.kv[1] = 3);
    ROW(MHA_ERR_SHAPE, "layer 1 has 4 heads", c.kv[1] = INT64_MIN);
    ROW(MHA_ERR_SHAPE, "layer 1 has 0 heads", c.heads[1] = 0);
#undef ROW
    expect_ok(mha_transformer_create(context, &plain, &t));
    c.view = mha_tensor_contiguous(c.keep, MHA_F32, 2, (int64_t[]){2, 4});
#define ROW(...) expect_spoiled(c, mha_transformer_prune(context, t, &c.view, &none), __VA_ARGS__)
    ROW(MHA_ERR_ARGUMENT, "keep[1,3]", c.keep[7] = 0.5f);
    ROW(MHA_ERR_ARGUMENT, "keep[1,3]", c.keep[7] = NAN);
    ROW(MHA_ERR_SHAPE, "keep", c.view.shape[0] = 1);
#undef ROW
    expect_error(mha_transformer_prune(context, t, &c.view, NULL), MHA_ERR_NULL, "pruned");
    assert_null(none);
    mha_transformer_destroy(t);
}

static mha_status pruned(mha_context *context, failing_alloc *memory, void *user)
{
    const mha_transformer_desc d = {.struct_size = sizeof d,
                                    .vocab_size = 9,
                                    .max_length = 8,
                                    .embed_dim = 8,
                                    .num_layers = 2,
                                    .num_heads = 4};
    float keep[8] = {1, 0, 0, 0, 1, 1, 0, 1};
    mha_tensor view = mha_tensor_contiguous(keep, MHA_F32, 2, (int64_t[]){2, 4});
    mha_transformer *t, *less = NULL;
    (void)user;
    expect_ok(mha_transformer_create(context, &d, &t));
    failing_from_here(memory);
    const mha_status status = mha_transformer_prune(context, t, &view, &less);
    assert_true(!less == (status != MHA_OK));
    mha_transformer_destroy(less);
    mha_transformer_destroy(t);
    return status;
}

static void failed_allocations_are_reported(void)
{
    assert_true(failing_each(pruned, NULL) > 5);
}

RUN_TESTS(TEST(masked_is_removed), TEST(sizes_count_what_goes_with_heads),
          TEST(heads_are_read_in_runs), TEST(same_gradients), TEST(same_importance),
          TEST(steps_have_the_bits_of_the_whole), TEST(small_integers), TEST(wide_sums),
          TEST(shared_kv), TEST(misuse_is_refused), TEST(failed_allocations_are_reported))
