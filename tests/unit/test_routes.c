/* The experts of each token: those of a forward pass, in maps, in trials, and for the shown tokens of a report. */
#include "support/expect.h"
#include "support/one_context.h"
#include "support/suite.h"
#include "support/temp_files.h"
#include "unit/word_model.h"

#include <multihead/show.h>
#include <multihead/trial.h>

#include <stdio.h>
#include <string.h>

enum { L = WORD_LAYERS, MOST_TOKENS = 16 };

#define EXPERTS(...)                                                      \
    {                                                                     \
        .struct_size = sizeof(mha_layer_desc), .experts = { __VA_ARGS__ } \
    }
static const mha_layer_desc layers[][L] = {
    {EXPERTS(.count = 5, .used = 2, .ff_dim = 6), EXPERTS(.count = 4, .used = 3, .ff_dim = 8)},
    {EXPERTS(.count = 0), EXPERTS(.count = 4, .used = 3, .ff_dim = 8)},
    {{.struct_size = sizeof(mha_layer_desc),
      .mixer = MHA_MIXER_GATED_DELTA,
      .conv_kernel = 2,
      .key_dim = 3,
      .value_dim = 7, /* wider than the heads of layer 1 */
      .experts = {.count = 4, .used = 2, .ff_dim = 6}},
     EXPERTS(.count = 5, .used = 2, .ff_dim = 8)}};

static mha_tokens read(const mha_model *model, const char *text)
{
    mha_tokens tokens = MHA_INIT(mha_tokens);
    expect_ok(mha_tokens_read(model, NULL, text, strlen(text), NULL, 0, &tokens));
    return tokens;
}

static float logits[MOST_TOKENS * WORDS]; /* of the last text */

/* The activations of a whole text, with the gates and patches of `input`. */
static mha_activations *run_text(mha_model *model, const mha_tokens *tokens,
                                 mha_transformer_input input)
{
    const mha_transformer *t = mha_model_transformer(model);
    const int64_t T = tokens->count;
    assert_true(T <= MOST_TOKENS);
    const mha_tensor ids = mha_tensor_contiguous(tokens->ids, MHA_I32, 2, (int64_t[]){1, T}),
                     all = mha_tensor_contiguous(logits, MHA_F32, 3, (int64_t[]){1, T, WORDS});
    mha_activations *a = NULL;
    input.struct_size = sizeof input, input.tokens = &ids;
    expect_ok(mha_activations_create(context, t, T, 0, &a));
    expect_ok(mha_transformer_forward(context, t, &input, a, &all, NULL, NULL));
    return a;
}

static void expect_routes(const mha_routes *routes, const mha_activations *a,
                          const mha_layer_desc *kinds, int64_t tokens)
{
    assert_int_equal(routes->layers, L);
    assert_int_equal(routes->tokens, tokens);
    for (int64_t l = 0; l < L; l++) {
        const mha_layer_routes *found = &routes->layer[l];
        const size_t count = (size_t)(tokens * found->used);
        mha_layer_view v = MHA_INIT(mha_layer_view);
        assert_int_equal(found->count, kinds[l].experts.count);
        assert_int_equal(found->used, kinds[l].experts.used);
        if (count == 0) continue;
        expect_ok(mha_activations_layer(a, l, MHA_PART_FEED_FORWARD, &v));
        assert_memory_equal(found->experts, v.experts.data, count * sizeof *found->experts);
        assert_memory_equal(found->weights, v.expert_weights.data, count * sizeof *found->weights);
    }
}

/* The report has the numbers and weights of these tokens. */
static void expect_choices(const mha_maps *maps, const mha_show_options *options,
                           const int64_t *shown, int64_t count)
{
    mha_show show;
    expect_ok(mha_show_make(maps, options, &show));
    assert_int_equal(show.figure.rows, count);
    const mha_choice *found = show.report.choices;
    for (int64_t l = 0; l < L; l++) {
        const mha_layer_routes *all = &maps->routes.layer[l];
        char name[32];
        if (all->count == 0) continue;
        snprintf(name, sizeof name, "layer %d", (int)l);
        assert_string_equal(found->name, name);
        assert_true(found->count == all->count && found->used == all->used);
        for (int64_t i = 0; i < count * all->used; i++) {
            const int64_t at = shown[i / all->used] * all->used + i % all->used;
            assert_int_equal(found->numbers[i], all->experts[at]);
            assert_true(found->weights[i] == all->weights[at]);
        }
        found++;
    }
    assert_int_equal(show.report.choice_count, found - show.report.choices);
    mha_show_free(&show);
}

static void compare_with_a_forward_pass(const mha_layer_desc *kinds)
{
    static const int64_t every[] = {0, 1, 2, 3, 4, 5, 6, 7}, some[] = {0, 2, 3, 4, 6, 7};
    const char *const hide[] = {"the"};
    const mha_show_options options = {.struct_size = sizeof options, .hide = hide, .hide_count = 1};
    mha_model *model = word_model_of(32, kinds);
    mha_tokens tokens = read(model, "the cat sat on the mat .");
    mha_activations *a = run_text(model, &tokens, (mha_transformer_input){0});
    mha_routes routes = MHA_INIT(mha_routes);
    mha_maps maps = MHA_INIT(mha_maps);
    assert_int_equal(tokens.count, 8);
    expect_ok(mha_routes_measure(context, mha_model_transformer(model), &tokens, &routes));
    expect_routes(&routes, a, kinds, tokens.count);
    mha_routes_free(&routes);
    assert_null(routes.layer);
    const mha_maps_desc desc = {.struct_size = sizeof desc, .tokens = &tokens};
    expect_ok(mha_maps_run(context, model, &desc, &maps));
    expect_routes(&maps.routes, a, kinds, tokens.count);
    expect_choices(&maps, NULL, every, 8);
    expect_choices(&maps, &options, some, 6);
    mha_maps_free(&maps);
    mha_activations_destroy(a);
    mha_tokens_free(&tokens);
    mha_model_destroy(model);
}

static void routes_are_those_of_a_forward_pass(void)
{
    compare_with_a_forward_pass(layers[0]);
    compare_with_a_forward_pass(layers[1]);
}

static void expect_trial(mha_trials *trials, const mha_trial *trial, const mha_activations *a)
{
    static float last[WORDS];
    const mha_routes *routes = NULL;
    for (int again = 0; again < 2; again++) {
        expect_ok(mha_trials_routes(trials, trial, &routes));
        expect_routes(routes, a, layers[2], trial->count);
    }
    expect_ok(mha_trials_logits(trials, trial, last));
    assert_memory_equal(last, logits + (trial->count - 1) * WORDS, sizeof last);
}

/* Without a head, and with heads of two widths from another text. */
static void trials_have_the_routes_of_their_run(void)
{
    static const mha_trial_head heads[] = {{0, 1}, {1, 0}};
    mha_model *model = word_model_of(32, layers[2]);
    mha_tokens tokens = read(model, "the cat sat on the mat ."),
               other = read(model, "a dog ran on a mat .");
    const mha_trials_options options = {.struct_size = sizeof options, .most_bytes = 1e6};
    mha_trials *trials = NULL;
    expect_ok(mha_trials_create(context, mha_model_transformer(model), &options, &trials));
    mha_trial trial = {
        .struct_size = sizeof trial, .tokens = tokens.ids, .count = tokens.count, .off = heads};
    float on[L * WORD_HEADS];
    for (int i = 0; i < L * WORD_HEADS; i++) on[i] = 1;
    const mha_tensor gates = mha_tensor_contiguous(on, MHA_F32, 2, (int64_t[]){L, WORD_HEADS});
    mha_activations *a = run_text(model, &tokens, (mha_transformer_input){0});
    expect_trial(trials, &trial, a);
    mha_activations_destroy(a);
    trial.off_count = 1, on[1] = 0;
    a = run_text(model, &tokens, (mha_transformer_input){.gates = &gates});
    expect_trial(trials, &trial, a);
    mha_activations_destroy(a);
    mha_activations *from = run_text(model, &other, (mha_transformer_input){0});
    mha_tensor values[2];
    mha_head_patch patches[2];
    for (int i = 0; i < 2; i++) {
        mha_layer_view v = MHA_INIT(mha_layer_view);
        expect_ok(mha_activations_layer(from, heads[i].layer, MHA_PART_SELF_ATTENTION, &v));
        values[i] =
            mha_tensor_contiguous((float *)v.heads.data + heads[i].head * v.heads.stride[1],
                                  MHA_F32, 3, (int64_t[]){1, trial.count, v.heads.shape[3]});
        values[i].stride[1] = v.heads.stride[2];
        patches[i] = (mha_head_patch){.struct_size = sizeof patches[i],
                                      .part = MHA_PATCH_OUTPUT,
                                      .layer = heads[i].layer,
                                      .head = heads[i].head,
                                      .values = &values[i]};
    }
    trial.off_count = 0, trial.patched = heads, trial.patched_count = 2;
    trial.other = other.ids, trial.other_count = other.count;
    a = run_text(model, &tokens, (mha_transformer_input){.patches = patches, .patch_count = 2});
    expect_trial(trials, &trial, a);
    mha_activations_destroy(a);
    mha_activations_destroy(from);
    mha_trials_destroy(trials);
    mha_tokens_free(&tokens);
    mha_tokens_free(&other);
    mha_model_destroy(model);
}

static void no_routes(void)
{
    mha_model *model = word_model(32);
    const mha_transformer *t = mha_model_transformer(model);
    mha_tokens tokens = read(model, "the cat");
    mha_routes routes = MHA_INIT(mha_routes), zeros = {0};
    expect_ok(mha_routes_measure(context, t, &tokens, &routes));
    assert_int_equal(routes.layers, 0);
    expect_error(mha_routes_measure(context, t, NULL, &routes), MHA_ERR_NULL, "tokens is NULL");
    expect_error(mha_routes_measure(context, t, &tokens, &zeros), MHA_ERR_ARGUMENT, "struct_size");
    mha_tokens none = tokens;
    none.count = 0;
    expect_error(mha_routes_measure(context, t, &none, &routes), MHA_ERR_ARGUMENT, "count is 0");
    mha_routes_free(&routes);
    mha_routes_free(NULL);
    mha_tokens_free(&tokens);
    mha_model_destroy(model);
}

RUN_TESTS_BETWEEN(context_and_folder_begin, context_and_folder_end,
                  TEST(routes_are_those_of_a_forward_pass),
                  TEST(trials_have_the_routes_of_their_run), TEST(no_routes))
