/* Features of tokens, such as pixels: the embeddings and the gradients against sums in double,
 * and rejected calls. */
#include "support/expect.h"
#include "support/machines.h"
#include "support/rng.h"
#include "support/suite.h"

#include <multihead/transformer.h>

#include <math.h>
#include <string.h>

enum { B = 2, T = 5, E = 70, V = 3, F = 9 }; /* E: more than one piece of an embedding */

typedef struct example {
    mha_transformer *t;
    int32_t ids[B * T];
    float features[B * T * F], output[B * T * E], gradient[B * T * E];
    mha_tensor tokens, rows, y, dy;
    mha_transformer_input input;
} example;

static mha_transformer_desc desc_of(uint32_t flags)
{
    return (mha_transformer_desc){.struct_size = sizeof(mha_transformer_desc),
                                  .flags = flags | MHA_TRANSFORMER_NO_OUTPUT,
                                  .vocab_size = V,
                                  .max_length = T,
                                  .embed_dim = E,
                                  .num_layers = 1,
                                  .num_heads = 2,
                                  .ff_dim = 6,
                                  .norm = MHA_NORM_LAYER,
                                  .positions = MHA_ENCODING_LEARNED,
                                  .feed_forward = MHA_FEED_FORWARD_QUICK_GELU,
                                  .feature_dim = F};
}

static void make(mha_context *context, rng *r, uint32_t flags, example *e)
{
    const mha_transformer_desc d = desc_of(flags);
    const mha_transformer_init init = {
        .struct_size = sizeof init, .seed = rng_next(r), .position_std = 1};
    memset(e, 0, sizeof *e);
    expect_ok(mha_transformer_create(context, &d, &e->t));
    expect_ok(mha_transformer_initialise(context, e->t, &init));
    for (int i = 0; i < B * T; i++) e->ids[i] = (int32_t)rng_between(r, 0, V - 1);
    for (int i = 0; i < B * T * F; i++) e->features[i] = (float)rng_normal(r);
    for (int i = 0; i < B * T * E; i++) e->gradient[i] = (float)rng_normal(r);
    e->tokens = mha_tensor_contiguous(e->ids, MHA_I32, 2, (const int64_t[]){B, T});
    e->rows = mha_tensor_contiguous(e->features, MHA_F32, 3, (const int64_t[]){B, T, F});
    e->y = mha_tensor_contiguous(e->output, MHA_F32, 3, (const int64_t[]){B, T, E});
    e->dy = mha_tensor_contiguous(e->gradient, MHA_F32, 3, (const int64_t[]){B, T, E});
    e->input = (mha_transformer_input){
        .struct_size = sizeof e->input, .tokens = &e->tokens, .features = &e->rows};
}

static const float *find(const example *e, const char *name, mha_parameter *p)
{
    expect_ok(mha_transformer_find(e->t, -1, name, p));
    return mha_transformer_data(e->t) + p->offset;
}

/* The sum of the tables and of W f, whose products have F roundings of a term. */
static void embeddings(void)
{
    mha_context *context = machines_context(1, 0);
    rng r = rng_make(rng_run_seed(), 1);
    mha_activations *a;
    example e;
    make(context, &r, 0, &e);
    expect_ok(mha_activations_create(context, e.t, B * T, 0, &a));
    expect_ok(mha_transformer_forward(context, e.t, &e.input, a, &e.y, NULL, NULL));
    mha_parameter p;
    const float *tokens = find(&e, "embed_tokens.weight", &p);
    const float *positions = find(&e, "embed_positions.weight", &p);
    const float *w = find(&e, "embed_features.weight", &p);
    assert_int_equal(p.shape[0], E);
    assert_int_equal(p.shape[1], F);
    mha_layer_view view = {.struct_size = sizeof view};
    expect_ok(mha_activations_layer(a, 0, MHA_PART_SELF_ATTENTION, &view));
    for (int64_t i = 0; i < B * T * E; i++) {
        const int64_t row = i / E, column = i % E;
        double sum =
            (double)tokens[e.ids[row] * E + column] + (double)positions[row % T * E + column];
        double bound = 0;
        for (int64_t k = 0; k < F; k++) {
            const double term = (double)w[column * F + k] * (double)e.features[row * F + k];
            sum += term;
            bound += (F + 1) * 0x1p-24 * fabs(term);
        }
        assert_true(fabs((double)((const float *)view.stream.data)[i] - sum) <=
                    bound + 0x1p-24 * fabs(sum));
    }
    mha_activations_destroy(a);
    mha_transformer_destroy(e.t);
}

static double loss(mha_context *context, example *e)
{
    double sum = 0;
    expect_ok(mha_transformer_update(context, e->t));
    expect_ok(mha_transformer_forward(context, e->t, &e->input, NULL, &e->y, NULL, NULL));
    for (int i = 0; i < B * T * E; i++) sum += (double)e->output[i] * (double)e->gradient[i];
    return sum;
}

/* Central differences of W_features: with a step of 2^-6 and losses of about 30, which have an error of
 * 30 x 2^-22, the difference has one of 2^-11, and the third derivative adds less than 1 % of the
 * largest gradient. */
static void gradients(void)
{
    mha_context *context = machines_context(1, 0);
    rng r = rng_make(rng_run_seed(), 2);
    for (int n = 0; n < 2; n++) {
        static float dparameters[1 << 17];
        mha_activations *a;
        example e;
        mha_parameter p;
        make(context, &r, n ? MHA_TRANSFORMER_EMBEDDING_NORM : 0, &e);
        assert_true(mha_transformer_size(e.t) <= 1 << 17);
        memset(dparameters, 0, sizeof dparameters);
        const mha_transformer_gradients gradient = {.struct_size = sizeof gradient,
                                                    .parameters = dparameters};
        expect_ok(mha_activations_create(context, e.t, B * T, 0, &a));
        expect_ok(mha_transformer_forward(context, e.t, &e.input, a, &e.y, NULL, NULL));
        expect_ok(mha_transformer_backward(context, e.t, &e.input, a, &e.dy, &gradient));
        find(&e, "embed_features.weight", &p);
        double most = 0, worst = 0;
        for (int i = 0; i < 20; i++) {
            const int64_t at = p.offset + rng_between(&r, 0, p.count - 1);
            float *x = mha_transformer_data(e.t) + at, old = *x;
            *x = old + 0x1p-6f;
            const double up = loss(context, &e), high = (double)*x;
            *x = old - 0x1p-6f;
            const double slope = (up - loss(context, &e)) / (high - (double)*x);
            *x = old;
            most = fmax(most, fabs(slope));
            worst = fmax(worst, fabs(slope - (double)dparameters[at]));
        }
        assert_true(most > 0.1 && worst <= 0.02 * most + 0x1p-9);
        mha_activations_destroy(a);
        mha_transformer_destroy(e.t);
    }
}

static void rejected(void)
{
    mha_context *context = machines_context(1, 0);
    rng r = rng_make(rng_run_seed(), 3);
    mha_transformer *plain = NULL;
    mha_decoder *decoder = NULL;
    example e;
    make(context, &r, MHA_TRANSFORMER_CAUSAL, &e);
    mha_transformer_desc d = desc_of(0);
    d.feature_dim = 0;
    expect_ok(mha_transformer_create(context, &d, &plain));
    expect_error(mha_transformer_forward(context, plain, &e.input, NULL, &e.y, NULL, NULL),
                 MHA_ERR_ARGUMENT, "features: expected NULL");
    expect_error(mha_decoder_create(context, e.t, NULL, &decoder), MHA_ERR_UNSUPPORTED, "features");
    e.input.features = NULL;
    expect_error(mha_transformer_forward(context, e.t, &e.input, NULL, &e.y, NULL, NULL),
                 MHA_ERR_ARGUMENT, "features: NULL, expected 9 numbers");
    e.input.features = &e.rows;
    e.rows.shape[2] = F - 1;
    expect_error(mha_transformer_forward(context, e.t, &e.input, NULL, &e.y, NULL, NULL),
                 MHA_ERR_SHAPE, "features");
    e.rows.shape[2] = F;
    e.rows.stride[0]++;
    expect_error(mha_transformer_forward(context, e.t, &e.input, NULL, &e.y, NULL, NULL),
                 MHA_ERR_STRIDE, "features: sequences must follow each other without gaps");
    d.feature_dim = -1;
    expect_error(mha_transformer_create(context, &d, &plain), MHA_ERR_ARGUMENT, "feature_dim");
    mha_transformer_destroy(plain);
    mha_transformer_destroy(e.t);
}

/* Patches in a grid of 2 x 3 after one token: pair 0 turns by row, pair 1 by column, with the frequency 1. All tokens
 * are equal before the rotation, and the first one does not turn. */
static void grid(void)
{
    mha_context *context = machines_context(1, 0);
    mha_transformer *t;
    mha_transformer_desc d = {.struct_size = sizeof d,
                              .flags = MHA_TRANSFORMER_NO_OUTPUT,
                              .vocab_size = 1,
                              .max_length = 7,
                              .embed_dim = 4,
                              .num_layers = 1,
                              .num_heads = 1,
                              .positions = MHA_ENCODING_ROTARY,
                              .grid_rows = 2,
                              .grid_cols = 3,
                              .grid_first = 1};
    int32_t ids[7] = {0};
    const mha_tensor tokens = mha_tensor_contiguous(ids, MHA_I32, 2, (const int64_t[]){1, 7});
    const mha_transformer_input input = {.struct_size = sizeof input, .tokens = &tokens};
    const mha_transformer_init init = {.struct_size = sizeof init, .seed = 3};
    mha_layer_view view = {.struct_size = sizeof view};
    mha_layer_rotation rotation = {.struct_size = sizeof rotation};
    mha_activations *a;
    expect_ok(mha_transformer_create(context, &d, &t));
    expect_ok(mha_transformer_initialise(context, t, &init));
    expect_ok(mha_activations_create(context, t, 7, 0, &a));
    expect_ok(mha_transformer_forward(context, t, &input, a, NULL, NULL, NULL));
    expect_ok(mha_activations_layer(a, 0, MHA_PART_SELF_ATTENTION, &view));
    const float *q = view.q.data;
    for (int64_t p = 0; p < 6; p++)
        for (int i = 0; i < 2; i++) {
            const double place = i ? (double)(p % 3 - 1) / 1.5 : (double)(p / 3) - 0.5;
            const double angle = 2 * 3.141592653589793 * place, x = (double)q[i],
                         y = (double)q[i + 2];
            const float *turned = q + (1 + p) * view.q.stride[2] + i;
            const double bound = 0x1p-20 * (fabs(x) + fabs(y));
            assert_true(fabs(x) > 1e-3 && fabs(y) > 1e-3);
            assert_true(fabs((double)turned[0] - (x * cos(angle) - y * sin(angle))) <= bound);
            assert_true(fabs((double)turned[2] - (x * sin(angle) + y * cos(angle))) <= bound);
        }
    expect_error(mha_transformer_rotation(t, 0, &rotation), MHA_ERR_UNSUPPORTED,
                 "rows and columns of patches");
    mha_activations_destroy(a);
    mha_transformer_destroy(t);
#define CREATE mha_transformer_create(context, &d, &t)
    expect_spoiled(d, CREATE, MHA_ERR_ARGUMENT, "max_length, 8", d.max_length = 8);
    expect_spoiled(d, CREATE, MHA_ERR_ARGUMENT, "grid_rows", d.grid_rows = -1);
    expect_spoiled(d, CREATE, MHA_ERR_ARGUMENT, "grid_first", d.grid_first = -1);
    expect_spoiled(d, CREATE, MHA_ERR_ARGUMENT, "rotary", d.positions = MHA_ENCODING_NONE);
    expect_spoiled(d, CREATE, MHA_ERR_UNSUPPORTED, "multiple of 4", d.head_dim = 2);
}

RUN_TESTS(TEST(grid), TEST(embeddings), TEST(gradients), TEST(rejected))
