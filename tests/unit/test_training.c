/* A trainer: a step is bit-identical to direct calls of its parts, with and without an encoder.
 * Further tests are for resumption, learning, non-finite numbers, which change nothing, and
 * misuse. */
#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/machines.h"
#include "support/rng.h"
#include "support/suite.h"

#include <multihead/nn.h>
#include <multihead/optimizer.h>
#include <multihead/training.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { B = 3, T = 5, S = 4, V = 9, E = 8, H = 2, MOST = B * T };

/* A transformer, possibly an encoder, and a batch. */
typedef struct example {
    mha_transformer *main, *encoder;
    int32_t ids[MOST], source_ids[MOST], target_ids[MOST];
    float weight_data[MOST];
    int64_t lengths[B], source_lengths[B];
    mha_tensor tokens, source_tokens, targets, weights;
    mha_transformer_input input, source;
    mha_training_batch batch;
    mha_trainer_desc desc;
} example;

static mha_transformer *make_net(mha_context *context, rng *r, uint32_t flags)
{
    const mha_transformer_desc d = {.struct_size = sizeof d,
                                    .flags = flags | MHA_TRANSFORMER_BIAS,
                                    .vocab_size = V,
                                    .max_length = T,
                                    .embed_dim = E,
                                    .num_layers = 2,
                                    .num_heads = H,
                                    .ff_dim = 6,
                                    .norm = MHA_NORM_LAYER};
    const mha_transformer_init init = {
        .struct_size = sizeof init, .seed = rng_next(r), .embedding_std = 1};
    mha_transformer *t = NULL;
    if (mha_transformer_create(context, &d, &t) != MHA_OK) return NULL;
    expect_ok(mha_transformer_initialise(context, t, &init));
    return t;
}

static void make_batch(rng *r, example *e)
{
    const int64_t shape[] = {B, T};
    for (int i = 0; i < MOST; i++) {
        e->ids[i] = (int32_t)rng_between(r, 0, V - 1);
        e->source_ids[i] = (int32_t)rng_between(r, 0, V - 1);
        e->target_ids[i] = (int32_t)rng_between(r, -1, V - 1);
        e->weight_data[i] = rng_uniform(r) < 0.2 ? 0 : (float)rng_uniform(r);
    }
    e->target_ids[0] = 0;
    for (int b = 0; b < B; b++) {
        e->lengths[b] = rng_between(r, 1, T);
        e->source_lengths[b] = rng_between(r, 1, S);
    }
    e->tokens = mha_tensor_contiguous(e->ids, MHA_I32, 2, shape);
    e->targets = mha_tensor_contiguous(e->target_ids, MHA_I32, 2, shape);
    e->weights = mha_tensor_contiguous(e->weight_data, MHA_F32, 2, shape);
    e->source_tokens = mha_tensor_contiguous(e->source_ids, MHA_I32, 2, (int64_t[]){B, S});
    e->input = (mha_transformer_input){
        .struct_size = sizeof e->input, .tokens = &e->tokens, .lengths = e->lengths};
    e->source = (mha_transformer_input){
        .struct_size = sizeof e->source, .tokens = &e->source_tokens, .lengths = e->source_lengths};
    e->batch = (mha_training_batch){
        .struct_size = sizeof e->batch, .input = &e->input, .targets = &e->targets};
}

static example *example_make(mha_context *context, rng *r, bool encoded)
{
    example *e = calloc(1, sizeof *e);
    assert_non_null(e);
    const uint32_t flags = encoded ? MHA_TRANSFORMER_CROSS : 0;
    e->main = make_net(context, r, flags | MHA_TRANSFORMER_CAUSAL);
    if (encoded) e->encoder = make_net(context, r, MHA_TRANSFORMER_NO_OUTPUT);
    make_batch(r, e);
    if (encoded) e->batch.source = &e->source;
    e->desc = (mha_trainer_desc){.struct_size = sizeof e->desc,
                                 .max_tokens = MOST,
                                 .max_source = encoded ? B * S : 0,
                                 .learning_rate = 0.01};
    return e;
}

static void example_free(example *e)
{
    mha_transformer_destroy(e->main);
    mha_transformer_destroy(e->encoder);
    free(e);
}

static mha_trainer *trainer_make(mha_context *context, const example *e)
{
    mha_trainer *t = NULL;
    expect_ok(mha_trainer_create(context, e->main, e->encoder, &e->desc, &t));
    return t;
}

/* ---- a step by hand -------------------------------------------------------------------------- */

typedef struct hand {
    mha_transformer *net;
    mha_activations *kept;
    int64_t size;
    float *gradient, *m, *v, *rates;
} hand;

static hand hand_make(mha_context *context, mha_transformer *net, int64_t memory, double grade)
{
    hand x = {.net = net, .size = mha_transformer_size(net)};
    expect_ok(mha_activations_create(context, net, MOST, memory, &x.kept));
    x.gradient = calloc(4 * (size_t)x.size, sizeof *x.gradient);
    assert_non_null(x.gradient);
    x.m = x.gradient + x.size, x.v = x.m + x.size, x.rates = x.v + x.size;
    for (int64_t i = 0; i < x.size; i++) x.rates[i] = 1;
    for (int64_t i = 0; i < mha_transformer_parameters(net); i++) {
        mha_parameter p;
        expect_ok(mha_transformer_parameter(net, i, &p));
        const bool v = strstr(p.name, "v_proj.weight"), o = strstr(p.name, "o_proj.weight");
        for (int64_t k = 0; grade > 0 && (v || o) && k < p.count; k++) /* the second of two heads */
            if ((v ? k / E : k % E) >= E / H) x.rates[p.offset + k] = (float)grade;
    }
    return x;
}

static void hand_free(hand *x)
{
    mha_activations_destroy(x->kept);
    free(x->gradient);
}

static void hand_move(mha_context *context, const mha_trainer_desc *d, double rate, double scale,
                      int64_t step, hand *x)
{
    float *data = mha_transformer_data(x->net);
    for (int64_t i = 0; i < mha_transformer_parameters(x->net); i++) {
        mha_parameter p;
        expect_ok(mha_transformer_parameter(x->net, i, &p));
        const int64_t at = p.offset;
        const mha_adamw s = {.struct_size = sizeof s,
                             .learning_rate = rate,
                             .beta1 = d->beta1,
                             .beta2 = d->beta2,
                             .epsilon = d->epsilon,
                             .weight_decay = p.kind == MHA_PARAMETER_MATRIX ? d->weight_decay : 0,
                             .gradient_scale = scale,
                             .step = step,
                             .rates = d->head_grade > 0 ? x->rates + at : NULL};
        expect_ok(mha_adamw_step(context, &s, p.count, data + at, x->gradient + at, x->m + at,
                                 x->v + at));
    }
    expect_ok(mha_transformer_update(context, x->net));
}

/* The loss before the step, and the norm of all gradients. */
static double hand_step(mha_context *context, example *e, int64_t step, hand *main, hand *encoder,
                        double *norm)
{
    static float logits[MOST * V], memory[B * S * E], memory_gradient[B * S * E];
    const int64_t rows = MOST;
    const mha_tensor out = mha_tensor_contiguous(logits, MHA_F32, 3, (int64_t[]){B, T, V}),
                     flat = mha_tensor_contiguous(logits, MHA_F32, 2, (int64_t[]){MOST, V}),
                     wanted = mha_tensor_contiguous(e->target_ids, MHA_I32, 1, &rows),
                     weights = mha_tensor_contiguous(e->weight_data, MHA_F32, 1, &rows),
                     x = mha_tensor_contiguous(memory, MHA_F32, 3, (int64_t[]){B, S, E}),
                     dx = mha_tensor_contiguous(memory_gradient, MHA_F32, 3, (int64_t[]){B, S, E});
    mha_transformer_input input = e->input;
    double loss, rate, norms[2] = {0};
    memset(memory_gradient, 0, sizeof memory_gradient);
    if (e->encoder) {
        input.memory = &x;
        input.memory_lengths = e->source_lengths;
        expect_ok(mha_transformer_forward(context, encoder->net, &e->source, encoder->kept, &x,
                                          NULL, NULL));
    }
    expect_ok(mha_transformer_forward(context, main->net, &input, main->kept, &out, NULL, NULL));
    expect_ok(mha_cross_entropy(context, &flat, &wanted, e->batch.weights ? &weights : NULL, &loss,
                                NULL, &flat));
    mha_transformer_gradients to = {
        .struct_size = sizeof to, .parameters = main->gradient, .memory = e->encoder ? &dx : NULL};
    memset(main->gradient, 0, (size_t)main->size * sizeof *main->gradient);
    expect_ok(mha_transformer_backward(context, main->net, &input, main->kept, &out, &to));
    expect_ok(mha_gradient_norm(context, main->size, main->gradient, &norms[0]));
    if (e->encoder) {
        to = (mha_transformer_gradients){.struct_size = sizeof to, .parameters = encoder->gradient};
        memset(encoder->gradient, 0, (size_t)encoder->size * sizeof *encoder->gradient);
        expect_ok(
            mha_transformer_backward(context, encoder->net, &e->source, encoder->kept, &dx, &to));
        expect_ok(mha_gradient_norm(context, encoder->size, encoder->gradient, &norms[1]));
    }
    *norm = sqrt(norms[0] * norms[0] + norms[1] * norms[1]);
    const mha_trainer_desc *d = &e->desc;
    const mha_schedule s = {.struct_size = sizeof s,
                            .peak = d->learning_rate,
                            .floor = d->floor,
                            .warm_up = d->warm_up,
                            .decay = d->decay};
    expect_ok(mha_learning_rate(&s, step, &rate));
    const double scale = d->clip > 0 && *norm > d->clip ? d->clip / *norm : 1;
    hand_move(context, d, rate, scale, step, main);
    if (e->encoder) hand_move(context, d, rate, scale, step, encoder);
    return loss;
}

static void draw_settings(rng *r, example *e)
{
    mha_trainer_desc *d = &e->desc;
    if (rng_chance(r, 0.5)) d->warm_up = 3, d->decay = 4, d->floor = 0.1;
    if (rng_chance(r, 0.5)) d->beta1 = 0.8, d->beta2 = 0.95, d->epsilon = 1e-6;
    if (rng_chance(r, 0.5)) d->weight_decay = 0.1;
    if (rng_chance(r, 0.7)) d->clip = rng_chance(r, 0.5) ? 0.2 : 100;
    if (rng_chance(r, 0.5)) d->head_grade = 0.5;
    if (rng_chance(r, 0.5)) e->batch.weights = &e->weights;
    if (rng_chance(r, 0.3)) e->input.dropout = e->source.dropout = 0.3f;
}

static void expect_same(const mha_trainer_state *got, const hand *wanted)
{
    const size_t bytes = (size_t)wanted->size * sizeof(float);
    assert_int_equal(got->count, wanted->size);
    assert_memory_equal(got->gradient, wanted->gradient, bytes);
    assert_memory_equal(got->m, wanted->m, bytes);
    assert_memory_equal(got->v, wanted->v, bytes);
    assert_memory_equal(mha_transformer_data(got->transformer), mha_transformer_data(wanted->net),
                        bytes);
}

static void a_step_is_its_parts(void)
{
    int clipped = 0;
    for (int i = 0; i < rng_cases(40, 600); i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)i), twin = r;
        mha_context *context = machines_context(2, i);
        example *e = example_make(context, &r, i % 2), *copy = example_make(context, &twin, i % 2);
        draw_settings(&r, e);
        mha_trainer *t = trainer_make(context, e);
        hand main = hand_make(context, copy->main, i % 2 ? B * S : 0, e->desc.head_grade), encoder;
        if (i % 2) encoder = hand_make(context, copy->encoder, 0, e->desc.head_grade);
        for (int64_t step = 1; step <= 3; step++) {
            double loss = 0, norm;
            e->input.dropout_seed = rng_next(&r);
            e->source.dropout_seed = rng_next(&r);
            expect_ok(mha_trainer_step(t, &e->batch, &loss));
            assert_true(loss == hand_step(context, e, step, &main, &encoder, &norm));
            assert_int_equal(mha_trainer_steps(t), step);
            clipped += e->desc.clip > 0 && norm > e->desc.clip;
            mha_trainer_state got = mha_trainer_state_of(t, false);
            expect_same(&got, &main);
            got = mha_trainer_state_of(t, true);
            assert_true(!got.transformer == !(i % 2));
            if (i % 2) expect_same(&got, &encoder);
        }
        hand_free(&main);
        if (i % 2) hand_free(&encoder);
        mha_trainer_destroy(t);
        example_free(e);
        example_free(copy);
    }
    if (rng_whole_sample()) assert_true(clipped > 5);
}

/* ---- learning and states --------------------------------------------------------------------- */

static void it_goes_on(void)
{
    for (int encoded = 0; encoded < 2; encoded++) {
        rng r = rng_make(5, (uint64_t)encoded), twin = r;
        mha_context *context = machines_context(1, 0);
        example *e = example_make(context, &r, encoded),
                *copy = example_make(context, &twin, encoded);
        e->desc.warm_up = copy->desc.warm_up = 4;
        mha_trainer *whole = trainer_make(context, e), *first = trainer_make(context, copy);
        double loss, other;
        for (int i = 0; i < 6; i++) expect_ok(mha_trainer_step(whole, &e->batch, &loss));
        for (int i = 0; i < 3; i++) expect_ok(mha_trainer_step(first, &copy->batch, NULL));
        mha_trainer *second = trainer_make(context, copy);
        expect_ok(mha_trainer_resume(second, mha_trainer_steps(first)));
        for (int part = 0; part < 1 + encoded; part++) {
            const mha_trainer_state from = mha_trainer_state_of(first, part),
                                    to = mha_trainer_state_of(second, part);
            memcpy(to.m, from.m, (size_t)from.count * sizeof *to.m);
            memcpy(to.v, from.v, (size_t)from.count * sizeof *to.v);
        }
        for (int i = 0; i < 3; i++) expect_ok(mha_trainer_step(second, &copy->batch, &other));
        assert_true(loss == other && mha_trainer_steps(second) == 6);
        assert_memory_equal(mha_transformer_data(e->main), mha_transformer_data(copy->main),
                            (size_t)mha_transformer_size(e->main) * sizeof(float));
        mha_trainer_destroy(whole);
        mha_trainer_destroy(first);
        mha_trainer_destroy(second);
        example_free(e);
        example_free(copy);
    }
}

/* The trainer memorises a batch. Its evaluation changes nothing and gives the loss of the next
 * step. */
static void it_learns(void)
{
    for (int encoded = 0; encoded < 2; encoded++) {
        rng r = rng_make(6, (uint64_t)encoded);
        mha_context *context = machines_context(1, 0);
        example *e = example_make(context, &r, encoded);
        float maps[2 * B * H * T * T];
        const mha_tensor probabilities =
            mha_tensor_contiguous(maps, MHA_F32, 5, (int64_t[]){2, B, H, T, encoded ? S : T});
        mha_tensor logits;
        for (int i = 0; i < MOST; i++) {
            e->ids[i] = i % V;
            e->target_ids[i] = i % T < e->lengths[i / T] ? i % V : -1;
        }
        mha_trainer *t = trainer_make(context, e);
        double first, loss = 0, seen;
        expect_ok(mha_trainer_step(t, &e->batch, &first));
        for (int i = 0; i < 150; i++) expect_ok(mha_trainer_step(t, &e->batch, &loss));
        assert_true(first > 1 && loss < 0.1 * first);
        expect_ok(mha_trainer_evaluate(t, &e->batch, encoded ? NULL : &probabilities,
                                       encoded ? &probabilities : NULL, &logits, &seen));
        for (int i = 0; i < MOST; i++) { /* each target has the largest logit */
            const float *row = (const float *)logits.data + i * V;
            for (int k = 0; k < V && e->target_ids[i] >= 0; k++)
                assert_true(row[k] <= row[e->target_ids[i]]);
        }
        double sum = 0;
        for (int j = 0; j < (encoded ? S : T); j++) sum += (double)maps[j];
        assert_true(fabs(sum - 1) < 1e-5);
        assert_int_equal(mha_trainer_steps(t), 151);
        expect_ok(mha_trainer_step(t, &e->batch, &loss));
        assert_true(loss == seen);
        e->batch.targets = NULL;
        expect_ok(mha_trainer_evaluate(t, &e->batch, NULL, NULL, NULL, NULL));
        mha_trainer_destroy(t);
        example_free(e);
    }
}

/* A non-finite parameter, or numbers that become non-finite; the message names it. */
static void moves_nothing(mha_context *context, float spoiled, int64_t steps, const char *part)
{
    rng r = rng_make(7, 0);
    example *e = example_make(context, &r, false);
    mha_trainer *t = trainer_make(context, e);
    const mha_trainer_state s = mha_trainer_state_of(t, false);
    for (int64_t i = 0; i < steps; i++) expect_ok(mha_trainer_step(t, &e->batch, NULL));
    float *data = mha_transformer_data(e->main),
          *before = malloc(3 * (size_t)s.count * sizeof *before);
    assert_non_null(before);
    for (int64_t i = 0; i < (isnan(spoiled) ? 1 : s.count); i++) data[i] = spoiled;
    e->ids[0] = 0;
    expect_ok(mha_transformer_update(context, e->main));
    const size_t bytes = (size_t)s.count * sizeof *before;
    memcpy(before, data, bytes);
    memcpy(before + s.count, s.m, bytes);
    memcpy(before + 2 * s.count, s.v, bytes);
    double loss = 7;
    expect_error(mha_trainer_step(t, &e->batch, &loss), MHA_ERR_NUMERIC, part);
    assert_true(loss == 7 && mha_trainer_steps(t) == steps);
    assert_memory_equal(before, data, bytes);
    assert_memory_equal(before + s.count, s.m, bytes);
    assert_memory_equal(before + 2 * s.count, s.v, bytes);
    free(before);
    mha_trainer_destroy(t);
    example_free(e);
}

static void what_is_not_finite_moves_nothing(void)
{
    mha_context *context = machines_context(1, 0);
    moves_nothing(context, NAN, 0,
                  "embed_tokens.weight[0] is nan after 0 steps; initialise or load finite");
    moves_nothing(context, NAN, 1, "embed_tokens.weight[0] is nan after 1 steps; restore finite");
    moves_nothing(context, 1e30f, 0, "is not finite after 0 steps; begin with smaller parameters");
    moves_nothing(context, 1e30f, 1, "is not finite after 1 steps; choose a smaller learning rate");
}

/* ---- misuse ---------------------------------------------------------------------------------- */

static void a_trainer_is_refused(void)
{
    rng r = rng_make(8, 0);
    mha_context *context = machines_context(1, 0);
    example *e = example_make(context, &r, true);
    mha_transformer *plain = make_net(context, &r, 0),
                    *both =
                        make_net(context, &r, MHA_TRANSFORMER_NO_OUTPUT | MHA_TRANSFORMER_CROSS);
    mha_trainer *t = NULL;
#define REFUSE(status, part, ...)                                                              \
    expect_spoiled(*e, mha_trainer_create(context, e->main, e->encoder, &e->desc, &t), status, \
                   part, __VA_ARGS__)
    REFUSE(MHA_ERR_NULL, "transformer", e->main = NULL);
    REFUSE(MHA_ERR_UNSUPPORTED, "reserved", e->desc.reserved = 1);
    REFUSE(MHA_ERR_ARGUMENT, "mha_trainer_desc: max_tokens is 0", e->desc.max_tokens = 0);
    REFUSE(MHA_ERR_ARGUMENT, "max_tokens is 9", e->desc.max_tokens = INT64_MAX);
    REFUSE(MHA_ERR_ARGUMENT, "max_source is 0, expected 1", e->desc.max_source = 0);
    REFUSE(MHA_ERR_ARGUMENT, "max_source is 12, expected 0", e->encoder = NULL);
    REFUSE(MHA_ERR_ARGUMENT, "mha_trainer_desc: clip is -1", e->desc.clip = -1);
    REFUSE(MHA_ERR_ARGUMENT, "mha_trainer_desc: head_grade is 2", e->desc.head_grade = 2);
    REFUSE(MHA_ERR_ARGUMENT, "mha_trainer_desc: learning_rate is -1", e->desc.learning_rate = -1);
    REFUSE(MHA_ERR_ARGUMENT, "mha_trainer_desc: beta1 is 2", e->desc.beta1 = 2);
    REFUSE(MHA_ERR_ARGUMENT, "mha_trainer_desc: floor is 2", e->desc.floor = 2);
    REFUSE(MHA_ERR_ARGUMENT, "warm_up is -1", e->desc.warm_up = -1);
    REFUSE(MHA_ERR_ARGUMENT, "decay is -2", e->desc.decay = -2);
    REFUSE(MHA_ERR_ARGUMENT, "no logits", e->main = e->encoder);
    REFUSE(MHA_ERR_ARGUMENT, "needs an encoder", e->encoder = NULL, e->desc.max_source = 0);
    REFUSE(MHA_ERR_ARGUMENT, "no cross-attention", e->main = plain);
    REFUSE(MHA_ERR_ARGUMENT, "the encoder is the transformer itself", e->encoder = e->main);
    REFUSE(MHA_ERR_ARGUMENT, "the encoder has logits", e->encoder = plain);
    REFUSE(MHA_ERR_ARGUMENT, "the encoder has cross-attention", e->encoder = both);
#undef REFUSE
    assert_null(t);
    mha_trainer_destroy(NULL);
    assert_true(mha_trainer_steps(NULL) == 0 && !mha_trainer_state_of(NULL, false).transformer);
    mha_transformer_destroy(plain);
    mha_transformer_destroy(both);
    example_free(e);
}

static void a_batch_is_refused(void)
{
    rng r = rng_make(9, 0);
    mha_context *context = machines_context(1, 0);
    example *e = example_make(context, &r, true);
    mha_trainer *t = trainer_make(context, e);
    const mha_tensor memory = {0};
    e->batch.weights = &e->weights;
    e->lengths[1] = T - 1;
    e->target_ids[2 * T - 1] = -1; /* beyond a length, where weights have no effect */
    e->weight_data[2 * T - 1] = NAN;
#define REFUSE(status, part, ...) \
    expect_spoiled(*e, mha_trainer_step(t, &e->batch, NULL), status, part, __VA_ARGS__)
    expect_error(mha_trainer_step(NULL, &e->batch, NULL), MHA_ERR_NULL, "trainer");
    expect_error(mha_trainer_step(t, NULL, NULL), MHA_ERR_NULL, "batch");
    REFUSE(MHA_ERR_NULL, "input", e->batch.input = NULL);
    REFUSE(MHA_ERR_UNSUPPORTED, "reserved", e->batch.reserved = 1);
    REFUSE(MHA_ERR_ARGUMENT, "source is NULL", e->batch.source = NULL);
    REFUSE(MHA_ERR_NULL, "targets", e->batch.targets = NULL);
    REFUSE(MHA_ERR_ARGUMENT, "memory is set", e->input.memory = &memory);
    REFUSE(MHA_ERR_SIZE, "input has 3 x 6 tokens, the trainer was created for 15",
           e->tokens.shape[1] = T + 1);
    REFUSE(MHA_ERR_SIZE, "source has 4 x 4 tokens, the trainer was created for 12",
           e->source_tokens.shape[0] = B + 1);
    REFUSE(MHA_ERR_STRIDE, "targets: rows are 6 elements apart, expected 5",
           e->targets.stride[0] = T + 1);
    REFUSE(MHA_ERR_SHAPE, "targets", e->targets.shape[0] = B - 1);
    REFUSE(MHA_ERR_ARGUMENT, "targets[0] is -2", e->target_ids[0] = -2);
    REFUSE(MHA_ERR_NUMERIC, "weights[0,0] is nan, expected a finite number",
           e->weight_data[0] = NAN);
    REFUSE(MHA_ERR_NUMERIC, "weights[2,1] is -inf", e->weight_data[2 * T + 1] = -INFINITY,
           e->target_ids[2 * T + 1] = 3);
    REFUSE(MHA_ERR_ARGUMENT, "no row counts", memset(e->lengths, 0, sizeof e->lengths));
    REFUSE(MHA_ERR_ARGUMENT, "no row counts", memset(e->target_ids, -1, sizeof e->target_ids));
    REFUSE(MHA_ERR_ARGUMENT, "no row counts",
           e->tokens.shape[0] = e->targets.shape[0] = e->weights.shape[0] =
               e->source_tokens.shape[0] = 0);
    REFUSE(MHA_ERR_ARGUMENT, "lengths[1] is -1", e->lengths[1] = -1);
#undef REFUSE
    double loss = 7;
    assert_int_equal(mha_trainer_steps(t), 0);
    expect_error(mha_trainer_resume(t, -1), MHA_ERR_ARGUMENT, "steps is -1");
    expect_error(mha_trainer_resume(t, INT64_MAX), MHA_ERR_ARGUMENT, "expected 0..");
    expect_error(mha_trainer_resume(NULL, 1), MHA_ERR_NULL, "trainer");
    expect_ok(mha_trainer_step(t, &e->batch, NULL));
    memset(e->target_ids, -1, sizeof e->target_ids); /* no targets */
    expect_ok(mha_trainer_evaluate(t, &e->batch, NULL, NULL, NULL, &loss));
    assert_true(loss == 0);
    mha_trainer_destroy(t);
    example_free(e);
}

static mha_status made_and_stepped(mha_context *context, failing_alloc *memory, void *user)
{
    rng r = rng_make(11, 0);
    example *e = example_make(context, &r, true);
    mha_trainer *t = NULL;
    (void)user;
    failing_from_here(memory);
    mha_status status = mha_trainer_create(context, e->main, e->encoder, &e->desc, &t);
    if (status == MHA_OK) status = mha_trainer_step(t, &e->batch, NULL);
    mha_trainer_destroy(t);
    example_free(e);
    return status;
}

static void failed_allocations_are_reported(void)
{
    assert_true(failing_each(made_and_stepped, NULL) > 5);
}

RUN_TESTS(TEST(a_step_is_its_parts), TEST(it_goes_on), TEST(it_learns),
          TEST(what_is_not_finite_moves_nothing), TEST(a_trainer_is_refused),
          TEST(a_batch_is_refused), TEST(failed_allocations_are_reported))
