/* Training over ranks: parameters, state and losses are bit-identical to one process, for any
 * number of ranks, also for more ranks than slices. A gradient is the sum of the slices' gradients
 * in the order of the tree. Errors of one rank reach all ranks, differing ranks are detected, and a
 * lost rank ends the step. */
#include "support/expect.h"
#include "support/rng.h"
#include "support/suite.h"
#include "support/thread_ranks.h"

#include <multihead/component.h>
#include <multihead/training.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_B = 13, MOST_T = 7, S = 4, V = 11, E = 8, MOST_STEPS = 50, FLOATS = 8192 };

/* The argument that differs on a rank. */
enum {
    NOTHING,
    TOKEN, /* an invalid token */
    TARGET,
    WEIGHT,
    LENGTH,
    DROPOUT,
    SEED,
    ID,
    SOURCE,
    PARAMETER,
    ENCODER,
    MOMENT,
    SETTING,
    SLICES
};

/* A training. The seed determines the model and the input of each step. */
typedef struct course {
    uint64_t seed;
    int64_t B, T, steps, slices;
    bool encoded, weights, lengths, tied;
    bool alike; /* whether all sequences of a gradient are equal */
    float dropout;
    int spoiled; /* the rank that differs */
    int how;     /* NOTHING, TOKEN, ... */
} course;

/* A rank's results. */
typedef struct outcome {
    mha_status status;
    char detail[512];
    int64_t steps, size;
    double losses[MOST_STEPS];
    float numbers[3 * FLOATS]; /* parameters, m, v of both parts */
} outcome;

typedef struct all_ranks {
    course course;
    outcome *outcomes;
} all_ranks;

typedef struct batch {
    int32_t tokens[MOST_B * MOST_T], source[MOST_B * S], targets[MOST_B * MOST_T];
    float weights[MOST_B * MOST_T];
    int64_t lengths[MOST_B], source_lengths[MOST_B];
    mha_tensor views[4];
    mha_transformer_input input, encoder;
    mha_training_batch batch;
} batch;

static void draw(const course *c, int64_t step, batch *b)
{
    rng r = rng_make(c->seed, 1000 + (uint64_t)step);
    const int64_t shape[] = {c->B, c->T}, source[] = {c->B, S};
    for (int64_t i = 0; i < c->B * c->T; i++) {
        b->tokens[i] = (int32_t)rng_between(&r, 0, V - 1);
        b->targets[i] = (int32_t)rng_between(&r, -1, V - 1);
        b->weights[i] = rng_chance(&r, 0.2) ? 0 : (float)rng_uniform(&r);
    }
    for (int64_t i = 0; i < c->B * S; i++) b->source[i] = (int32_t)rng_between(&r, 0, V - 1);
    for (int64_t i = 0; i < c->B; i++) {
        b->lengths[i] = rng_between(&r, i > 0 ? 0 : 1, c->T);
        b->source_lengths[i] = rng_between(&r, 1, S);
    }
    for (int64_t i = 0; i < c->B; i++) b->targets[i * c->T] = 1; /* a target each */
    b->views[0] = mha_tensor_contiguous(b->tokens, MHA_I32, 2, shape);
    b->views[1] = mha_tensor_contiguous(b->targets, MHA_I32, 2, shape);
    b->views[2] = mha_tensor_contiguous(b->weights, MHA_F32, 2, shape);
    b->views[3] = mha_tensor_contiguous(b->source, MHA_I32, 2, source);
    b->input = (mha_transformer_input){.struct_size = sizeof b->input,
                                       .tokens = &b->views[0],
                                       .lengths = c->lengths ? b->lengths : NULL,
                                       .dropout = c->dropout,
                                       .dropout_seed = rng_next(&r)};
    b->encoder = (mha_transformer_input){.struct_size = sizeof b->encoder,
                                         .tokens = &b->views[3],
                                         .lengths = c->lengths ? b->source_lengths : NULL,
                                         .dropout = c->dropout,
                                         .dropout_seed = rng_next(&r)};
    b->batch = (mha_training_batch){.struct_size = sizeof b->batch,
                                    .input = &b->input,
                                    .source = c->encoded ? &b->encoder : NULL,
                                    .targets = &b->views[1],
                                    .weights = c->weights ? &b->views[2] : NULL};
}

static void spoil(const course *c, batch *b)
{
    switch (c->how) {
    case TOKEN: b->tokens[c->B * c->T - 1] = V; break;
    case TARGET: b->targets[0] = 2; break;
    case WEIGHT: b->weights[1] += 1; break;
    case LENGTH: b->lengths[0] = b->lengths[0] % c->T + 1; break;
    case DROPOUT: b->input.dropout = 0.25f; break;
    case SEED: b->encoder.dropout_seed++; break;
    case ID: b->tokens[0] = (b->tokens[0] + 1) % V; break;
    case SOURCE: b->source[0] = (b->source[0] + 1) % V; break;
    default: break;
    }
}

static mha_status make_net(mha_context *context, const course *c, uint32_t flags, uint64_t stream,
                           mha_transformer **net)
{
    rng r = rng_make(c->seed, stream);
    const mha_transformer_desc d = {.struct_size = sizeof d,
                                    .flags = flags,
                                    .vocab_size = V,
                                    .max_length = MOST_T,
                                    .embed_dim = E,
                                    .num_layers = 2,
                                    .num_heads = 2,
                                    .ff_dim = 6,
                                    .norm = c->tied ? MHA_NORM_RMS : MHA_NORM_LAYER,
                                    .positions =
                                        c->tied ? MHA_ENCODING_ROTARY : MHA_ENCODING_LEARNED};
    const mha_transformer_init init = {
        .struct_size = sizeof init, .seed = rng_next(&r), .embedding_std = 1};
    MHA_TRY(mha_transformer_create(context, &d, net));
    return mha_transformer_initialise(context, *net, &init);
}

static mha_status make_trainer(mha_context *context, const course *c, const mha_transport *t,
                               mha_transformer *nets[2], mha_trainer **trainer)
{
    const uint32_t flags = MHA_TRANSFORMER_CAUSAL |
                           (uint32_t)(c->encoded ? MHA_TRANSFORMER_CROSS : 0) |
                           (uint32_t)(c->tied ? MHA_TRANSFORMER_TIED : MHA_TRANSFORMER_BIAS);
    const bool other = t && t->rank == c->spoiled;
    const mha_trainer_desc d = {.struct_size = sizeof d,
                                .max_tokens = MOST_B * MOST_T,
                                .max_source = c->encoded ? MOST_B * S : 0,
                                .learning_rate = other && c->how == SETTING ? 0.02 : 0.01,
                                .warm_up = 5,
                                .weight_decay = 0.1,
                                .clip = 0.5,
                                .head_grade = c->encoded ? 0.9 : 0,
                                .transport = t,
                                .slices = other && c->how == SLICES ? -1 : c->slices};
    MHA_TRY(make_net(context, c, flags, 1, &nets[0]));
    if (c->encoded) MHA_TRY(make_net(context, c, MHA_TRANSFORMER_NO_OUTPUT, 2, &nets[1]));
    return mha_trainer_create(context, nets[0], nets[1], &d, trainer);
}

/* Parameters and state, concatenated. */
static void keep(mha_trainer *trainer, outcome *o)
{
    float *at = o->numbers;
    for (int i = 0; i < 2; i++) {
        const mha_trainer_state s = mha_trainer_state_of(trainer, i);
        if (!s.transformer || at + 3 * s.count > o->numbers + 3 * FLOATS) continue;
        const float *from[] = {mha_transformer_data(s.transformer), s.m, s.v};
        for (int k = 0; k < 3; k++, at += s.count)
            memcpy(at, from[k], (size_t)s.count * sizeof *at);
    }
    o->size = at - o->numbers;
    o->steps = mha_trainer_steps(trainer);
}

static mha_status train(mha_context *context, const course *c, const mha_transport *t,
                        mha_transformer *nets[2], mha_trainer **trainer, outcome *o)
{
    batch b;
    const bool other = t && t->rank == c->spoiled;
    MHA_TRY(make_trainer(context, c, t, nets, trainer));
    if (other && c->how == PARAMETER) mha_transformer_data(nets[0])[7] += 1;
    if (other && c->how == ENCODER) mha_transformer_data(nets[1])[7] += 1;
    if (other && c->how == MOMENT) mha_trainer_state_of(*trainer, 0).v[3] += 1;
    for (int64_t i = 0; i < c->steps; i++) {
        draw(c, i, &b);
        if (other) spoil(c, &b);
        MHA_TRY(mha_trainer_step(*trainer, &b.batch, &o->losses[i]));
    }
    return MHA_OK;
}

static void run(void *user, const mha_transport *t)
{
    all_ranks *all = user;
    outcome *o = &all->outcomes[t ? t->rank : 0];
    mha_context *context = NULL;
    mha_transformer *nets[2] = {NULL, NULL};
    mha_trainer *trainer = NULL;
    const mha_context_desc d = {.struct_size = sizeof d, .num_threads = t ? 1 + t->rank % 2 : 1};
    *o = (outcome){.status = mha_context_create(&d, &context)};
    if (o->status == MHA_OK) o->status = train(context, &all->course, t, nets, &trainer, o);
    if (o->status != MHA_OK) snprintf(o->detail, sizeof o->detail, "%s", mha_error_detail());
    if (trainer) keep(trainer, o);
    mha_trainer_destroy(trainer);
    for (int i = 0; i < 2; i++) mha_transformer_destroy(nets[i]);
    mha_context_destroy(context);
}

static outcome *make_outcomes(void)
{
    outcome *o = calloc(MOST_THREAD_RANKS, sizeof *o);
    assert_non_null(o);
    return o;
}

/* ---- the same bits --------------------------------------------------------------------------- */

static course draw_course(uint64_t number)
{
    rng r = rng_make(rng_run_seed(), number);
    return (course){.seed = rng_next(&r),
                    .B = rng_between(&r, 1, MOST_B),
                    .T = rng_between(&r, 1, MOST_T),
                    .steps = number == 0 ? MOST_STEPS : rng_between(&r, 1, 4),
                    .slices = rng_chance(&r, 0.3) ? 0 : rng_between(&r, 1, 16),
                    .encoded = number == 0 || rng_chance(&r, 0.4),
                    .weights = rng_chance(&r, 0.5),
                    .lengths = number == 0 || rng_chance(&r, 0.5),
                    .tied = rng_chance(&r, 0.5),
                    .dropout = number == 0 || rng_chance(&r, 0.5) ? 0.3f : 0,
                    .spoiled = -1};
}

static void check_same(const outcome *one, const outcome *o, const course *c, int size, int rank)
{
    if (o->status != MHA_OK)
        fail_msg("rank %d of %d: status %d, %s", rank, size, (int)o->status, o->detail);
    assert_int_equal(o->steps, c->steps);
    assert_int_equal(o->size, one->size);
    if (memcmp(o->numbers, one->numbers, (size_t)one->size * sizeof(float)) != 0 ||
        memcmp(o->losses, one->losses, sizeof one->losses) != 0)
        fail_msg("rank %d of %d: other bits; B %d, T %d, slices %d, dropout %g", rank, size,
                 (int)c->B, (int)c->T, (int)c->slices, (double)c->dropout);
}

static void any_number_of_ranks_gives_the_same_bits(void)
{
    static const int sizes[] = {1, 2, 3, 5, 8, 16};
    outcome *one = make_outcomes(), *many = make_outcomes();
    const int cases = rng_cases(12, 200);
    for (int i = 0; i < cases; i++) {
        all_ranks alone = {draw_course((uint64_t)i), one}, all = {alone.course, many};
        if (i == 0) all.course.B = alone.course.B = MOST_B, all.course.slices = 0;
        alone.course.slices = all.course.slices;
        run(&alone, NULL);
        expect_ok(one->status);
        assert_true(one->size > 0);
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            thread_ranks_run(sizes[k], run, &all, -1, 0);
            for (int r = 0; r < sizes[k]; r++) check_same(one, &many[r], &all.course, sizes[k], r);
        }
    }
    free(one);
    free(many);
}

/* ---- the tree -------------------------------------------------------------------------------- */

/* The gradient of only sequences begin .. end - 1, in a trainer that does not divide them. */
static void gradient_of(const course *c, int64_t begin, int64_t end, int64_t slices,
                        float gradient[FLOATS], double *loss)
{
    batch b;
    mha_context *context = NULL;
    mha_transformer *nets[2] = {NULL, NULL};
    mha_trainer *trainer = NULL;
    course part = *c;
    const mha_context_desc d = {.struct_size = sizeof d, .num_threads = 1};
    part.slices = slices;
    expect_ok(mha_context_create(&d, &context));
    expect_ok(make_trainer(context, &part, NULL, nets, &trainer));
    draw(c, 0, &b);
    for (int64_t i = 0; c->alike && i < c->B * c->T; i++) {
        b.tokens[i] = b.tokens[i % c->T];
        b.targets[i] = b.targets[i % c->T];
        b.weights[i] = 1;
    }
    for (int i = 0; i < 3; i++) {
        b.views[i].shape[0] = end - begin;
        b.views[i].data = (char *)b.views[i].data + 4 * begin * c->T;
    }
    expect_ok(mha_trainer_step(trainer, &b.batch, loss));
    const mha_trainer_state s = mha_trainer_state_of(trainer, false);
    assert_true(s.count <= FLOATS);
    memset(gradient, 0, FLOATS * sizeof *gradient);
    memcpy(gradient, s.gradient, (size_t)s.count * sizeof *gradient);
    mha_trainer_destroy(trainer);
    mha_transformer_destroy(nets[0]);
    mha_context_destroy(context);
}

static void add(float *to, const float *from)
{
    for (int i = 0; i < FLOATS; i++) to[i] += from[i];
}

/* Seven sequences in five slices of 1, 1, 2, 1, 2: ((0 + 1) + (2 + 3)) + 4. */
static void slices_are_added_in_a_tree(void)
{
    static const int64_t begin[] = {0, 1, 2, 4, 5, 7};
    static float parts[5][FLOATS], whole[FLOATS];
    double losses[5], loss;
    const course c = {.seed = rng_run_seed(),
                      .B = 7,
                      .T = MOST_T,
                      .steps = 1,
                      .weights = true,
                      .tied = true,
                      .spoiled = -1};
    for (int i = 0; i < 5; i++) gradient_of(&c, begin[i], begin[i + 1], 1, parts[i], &losses[i]);
    gradient_of(&c, 0, 7, 5, whole, &loss);
    add(parts[0], parts[1]);
    add(parts[2], parts[3]);
    add(parts[0], parts[2]);
    add(parts[0], parts[4]);
    assert_memory_equal(parts[0], whole, sizeof whole);
    assert_true(((losses[0] + losses[1]) + (losses[2] + losses[3])) + losses[4] >= loss &&
                ((losses[0] + losses[1]) + (losses[2] + losses[3])) + losses[4] <= loss);
    gradient_of(&c, 0, 7, 1, parts[1], &loss); /* a different order gives different bits */
    assert_memory_not_equal(parts[0], parts[1], sizeof whole);
}

/* Two equal sequences in two slices have twice the gradient of one without dropout, and different
 * gradients with dropout. */
static void slices_drop_other_weights(void)
{
    static float one[FLOATS], two[FLOATS];
    for (int drops = 0; drops < 2; drops++) {
        double loss;
        const course c = {.seed = rng_run_seed(),
                          .B = 2,
                          .T = MOST_T,
                          .steps = 1,
                          .weights = true,
                          .alike = true,
                          .dropout = drops ? 0.5f : 0,
                          .spoiled = -1};
        gradient_of(&c, 0, 1, 1, one, &loss);
        gradient_of(&c, 0, 2, 2, two, &loss);
        for (int i = 0; i < FLOATS; i++) one[i] *= 2;
        if (drops)
            assert_memory_not_equal(one, two, sizeof one);
        else
            assert_memory_equal(one, two, sizeof one);
    }
}

/* ---- errors and lost ranks ------------------------------------------------------------------- */

static void one_rank_refuses_for_all(void)
{
    outcome *many = make_outcomes();
    for (int how = TOKEN; how <= SLICES; how++) {
        const char *part =
            how == TOKEN      ? "rank 2: "
            : how < PARAMETER ? "rank 2: has another batch than rank 0"
            : how < SETTING   ? "rank 2: has another model or state of training than rank 0"
            : how == SETTING
                ? "rank 2: has another description of the trainer, or size of the model than rank 0"
                : "rank 2: mha_trainer_desc: slices is -1";
        all_ranks all = {draw_course(0), many};
        all.course.B = 4, all.course.T = MOST_T;
        all.course.slices = 4;
        all.course.weights = true;
        all.course.spoiled = 2;
        all.course.how = how;
        thread_ranks_run(4, run, &all, -1, 0);
        for (int r = 0; r < 4; r++) {
            assert_int_equal(many[r].status, MHA_ERR_ARGUMENT);
            if (!strstr(many[r].detail, part))
                fail_msg("way %d, rank %d: '%s', expected '%s'", how, r, many[r].detail, part);
            assert_int_equal(many[r].steps, 0);
        }
    }
    free(many);
}

static void a_lost_rank_ends_the_step(void)
{
    outcome *many = make_outcomes();
    int lost = 0;
    for (int64_t after = 0; after < 60; after += rng_long_run() ? 1 : 3) {
        all_ranks all = {draw_course(9), many};
        all.course.B = 6;
        all.course.slices = 6;
        all.course.steps = 3;
        thread_ranks_run(3, run, &all, 1, after);
        for (int r = 0; r < 3; r++) lost += many[r].status == MHA_ERR_RANK;
        if (many[1].status != MHA_ERR_RANK) break; /* the step ended before the loss */
        assert_true(many[0].status == MHA_ERR_RANK || many[0].steps == 3);
        assert_true(many[2].status == MHA_ERR_RANK || many[2].steps == 3);
    }
    assert_true(lost > 10);
    free(many);
}

RUN_TESTS(TEST(any_number_of_ranks_gives_the_same_bits), TEST(slices_are_added_in_a_tree),
          TEST(slices_drop_other_weights), TEST(one_rank_refuses_for_all),
          TEST(a_lost_rank_ends_the_step))
