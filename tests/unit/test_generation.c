/* Generation: its tokens equal those of a full pass at every step; end conditions; errors. */
#include "support/expect.h"
#include "support/one_context.h"
#include "support/suite.h"
#include "support/temp_files.h"
#include "unit/word_model.h"

#include <multihead/generation.h>

#include <stdlib.h>
#include <string.h>

/* The token after ids [count], from one full pass. */
static int32_t next_token(mha_model *model, const mha_sampling *how, int64_t step, int32_t *ids,
                          int64_t count)
{
    mha_tensor tokens = mha_tensor_contiguous(ids, MHA_I32, 2, (const int64_t[]){1, count});
    float *logits = calloc((size_t)count * WORDS, sizeof *logits);
    mha_tensor out = mha_tensor_contiguous(logits, MHA_F32, 3, (const int64_t[]){1, count, WORDS});
    int32_t token;
    const mha_transformer_input input = {.struct_size = sizeof input, .tokens = &tokens};
    expect_ok(mha_transformer_forward(context, mha_model_transformer(model), &input, NULL, &out,
                                      NULL, NULL));
    expect_ok(mha_sample_token(context, how, (uint64_t)step, logits + (count - 1) * WORDS, WORDS,
                               &token));
    free(logits);
    return token;
}

/* Runs to the end and returns the tokens, their number and the text. */
static mha_generation_step run_generation(mha_model *model, const mha_generation_desc *desc,
                                          int32_t *tokens, int64_t *count, char *text)
{
    mha_generation *g = NULL;
    mha_generation_step step = MHA_INIT(mha_generation_step);
    *count = 0, *text = 0;
    expect_ok(mha_generation_create(context, model, desc, &g));
    while (step.state == MHA_GENERATION_CONTINUES) {
        expect_ok(mha_generation_next(context, g, &step));
        strncat(text, step.text, step.bytes);
        if (step.state == MHA_GENERATION_CONTINUES) tokens[(*count)++] = step.token;
    }
    const mha_generation_step last = step;
    expect_ok(mha_generation_next(context, g, &step));
    assert_int_equal(step.state, last.state);
    assert_int_equal(step.bytes, 0);
    mha_generation_destroy(g);
    return last;
}

enum { POSITIONS = 24, PROMPT = 5 };

/* The words of tokens, separated by spaces; <s> has no text. */
static void join(const int32_t *tokens, int64_t count, char *text)
{
    *text = 0;
    for (int64_t i = 0; i < count; i++) {
        if (tokens[i] == 0) continue;
        if (*text) strcat(text, " ");
        strcat(text, words[tokens[i]]);
    }
}

static void a_generation_is_the_whole_sequence_again(void)
{
    mha_model *model = word_model(POSITIONS);
    for (int sampled = 0; sampled < 2; sampled++) {
        const mha_sampling how = {
            .struct_size = sizeof how, .temperature = sampled * 2.0, .seed = 5};
        int32_t ids[POSITIONS + 1] = {0, 1, 2, 3, 4}, made[POSITIONS];
        int64_t count, n = PROMPT;
        char text[256], expected[256];
        for (; n < POSITIONS + 1; n++) ids[n] = next_token(model, &how, n - PROMPT, ids, n);
        mha_generation_desc desc = {.struct_size = sizeof desc,
                                    .prompt = ids,
                                    .prompt_count = PROMPT,
                                    .max_tokens = 1000,
                                    .sampling = &how};
        /* The last token uses no position. */
        assert_int_equal(run_generation(model, &desc, made, &count, text).state,
                         MHA_GENERATION_FULL);
        assert_int_equal(count, POSITIONS + 1 - PROMPT);
        assert_memory_equal(made, ids + PROMPT, (size_t)count * sizeof *made);
        join(made, count, expected);
        assert_string_equal(text, expected);
        desc.max_tokens = count;
        assert_int_equal(run_generation(model, &desc, made, &count, text).state,
                         MHA_GENERATION_MAX_TOKENS);
        assert_int_equal(count, POSITIONS + 1 - PROMPT);
        desc.max_tokens = 0;
        assert_int_equal(run_generation(model, &desc, made, &count, text).state,
                         MHA_GENERATION_MAX_TOKENS);
        assert_int_equal(count, 0);
        desc.max_tokens = 1000, desc.prompt_count = POSITIONS;
        assert_int_equal(run_generation(model, &desc, made, &count, text).state,
                         MHA_GENERATION_FULL);
        assert_int_equal(count, 1);
        desc.prompt_count = PROMPT;
        /* The first occurrence of the last token ends it. */
        int64_t first = PROMPT;
        while (ids[first] != ids[POSITIONS]) first++;
        desc.ends = ids + POSITIONS, desc.end_count = 1;
        const mha_generation_step end = run_generation(model, &desc, made, &count, text);
        assert_int_equal(end.state, MHA_GENERATION_END_TOKEN);
        assert_int_equal(end.token, ids[POSITIONS]);
        assert_int_equal(count, first - PROMPT);
    }
    mha_model_destroy(model);
}

static void a_generation_stops(void)
{
    mha_model *model = word_model(POSITIONS);
    int32_t made[POSITIONS];
    int64_t count;
    char text[256], whole[256];
    mha_generation_desc desc = {
        .struct_size = sizeof desc,
        .prompt = (const int32_t[]){0, 1},
        .prompt_count = 2,
        .max_tokens = 12,
        .sampling =
            &(mha_sampling){.struct_size = sizeof(mha_sampling), .temperature = 2, .seed = 9}};
    run_generation(model, &desc, made, &count, whole);
    const char *stop = strchr(strchr(whole, ' ') + 1, ' '); /* from the third word on */
    assert_non_null(stop);
    desc.stops = &stop, desc.stop_count = 1;
    assert_int_equal(run_generation(model, &desc, made, &count, text).state,
                     MHA_GENERATION_STOP_TEXT);
    assert_int_equal(strlen(text), stop - whole);
    assert_memory_equal(text, whole, strlen(text));
    mha_generation *g = NULL;
    mha_generation_step step = MHA_INIT(mha_generation_step);
    expect_ok(mha_generation_create(context, model, &desc, &g));
    expect_ok(mha_generation_next(context, g, &step));
    assert_int_equal(step.state, MHA_GENERATION_CONTINUES);
    assert_int_equal(mha_decoder_length(mha_generation_decoder(g)), 2);
    mha_generation_stop(g);
    expect_ok(mha_generation_next(context, g, &step));
    assert_int_equal(step.state, MHA_GENERATION_STOPPED);
    mha_generation_destroy(g);
    mha_model_destroy(model);
}

static void a_generation_refuses(void)
{
    mha_model *model = word_model(4);
    mha_generation *g = NULL;
    static const int32_t ids[] = {0, 1, 2, 3, 4, WORDS};
    const mha_generation_desc fine = {
        .struct_size = sizeof fine, .prompt = ids, .prompt_count = 2, .max_tokens = 1};
    mha_generation_desc d = fine;
    d.prompt_count = 5;
    expect_error(mha_generation_create(context, model, &d, &g), MHA_ERR_SIZE,
                 "the prompt has 5 tokens, the model takes 4");
    d = fine, d.prompt = ids + 5, d.prompt_count = 1;
    expect_error(mha_generation_create(context, model, &d, &g), MHA_ERR_ARGUMENT, "10");
    d = fine, d.prompt_count = 0;
    expect_error(mha_generation_create(context, model, &d, &g), MHA_ERR_ARGUMENT, "empty prompt");
    d = fine, d.max_tokens = -1;
    expect_error(mha_generation_create(context, model, &d, &g), MHA_ERR_ARGUMENT, "max_tokens");
    const mha_decoder_desc cache = {.struct_size = sizeof cache, .capacity = 9};
    d = fine, d.cache = &cache;
    expect_error(mha_generation_create(context, model, &d, &g), MHA_ERR_ARGUMENT, "capacity");
    d = fine, d.end_count = 1;
    expect_error(mha_generation_create(context, model, &d, &g), MHA_ERR_NULL, "ends is NULL");
    mha_generation_step step = {.struct_size = sizeof step};
    expect_error(mha_generation_next(context, g, &step), MHA_ERR_NULL, "generation is NULL");
    assert_null(g);
    mha_model_destroy(model);
}

static void layers_have_their_own_heads(void)
{
    static const int64_t heads[] = {4, 2}, kv_heads[] = {2, 1};
    mha_transformer_desc d = {.num_layers = 2, .num_heads = 4, .kv_heads = 2};
    assert_int_equal(mha_transformer_heads(&d, 1), 4);
    assert_int_equal(mha_transformer_kv_heads(&d, 1), 2);
    d.layer_heads = heads, d.layer_kv_heads = kv_heads;
    assert_int_equal(mha_transformer_heads(&d, 1), 2);
    assert_int_equal(mha_transformer_kv_heads(&d, 1), 1);
}

static void only_some_models_predict(void)
{
    static const struct {
        uint32_t flags;
        bool predicts;
    } models[] = {{MHA_TRANSFORMER_CAUSAL, true},
                  {MHA_TRANSFORMER_CAUSAL | MHA_TRANSFORMER_TIED, true},
                  {0, false},
                  {MHA_TRANSFORMER_CAUSAL | MHA_TRANSFORMER_NO_OUTPUT, false},
                  {MHA_TRANSFORMER_CAUSAL | MHA_TRANSFORMER_CROSS, false}};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        assert_int_equal(
            mha_transformer_predicts(&(mha_transformer_desc){.flags = models[i].flags}),
            models[i].predicts);
    mha_model *encoder = NULL;
    mha_generation *g = NULL;
    const mha_generation_desc desc = {
        .struct_size = sizeof desc, .prompt = (const int32_t[]){1}, .prompt_count = 1};
    expect_ok(mha_model_load(context, "tests/golden/tiny-bert", NULL, &encoder));
    expect_error(mha_generation_create(context, encoder, &desc, &g), MHA_ERR_UNSUPPORTED,
                 "does not predict the next token");
    mha_model_destroy(encoder);
}

/* A window and a prompt in pieces equal steps of single tokens. */
static void a_long_prompt_goes_in_pieces(void)
{
    enum { LONG = 1100 };
    mha_model *model = word_model(32);
    const mha_decoder_desc cache = {
        .struct_size = sizeof cache, .flags = MHA_DECODER_STREAMING, .window = 20, .sink_keys = 2};
    int32_t ids[LONG], made[1], expected;
    float logits[WORDS];
    int64_t count;
    char text[64];
    mha_decoder_desc plain = cache;
    mha_decoder *decoder = NULL;
    plain.capacity = LONG, plain.max_step = 1, plain.flags |= MHA_DECODER_WINDOWS;
    expect_ok(mha_decoder_create(context, mha_model_transformer(model), &plain, &decoder));
    for (int i = 0; i < LONG; i++) {
        ids[i] = (i * 7 + i / 9) % WORDS;
        mha_tensor token = mha_tensor_contiguous(ids + i, MHA_I32, 2, (const int64_t[]){1, 1});
        mha_tensor out = mha_tensor_contiguous(logits, MHA_F32, 3, (const int64_t[]){1, 1, WORDS});
        expect_ok(mha_decoder_step(context, decoder, &token, &out));
    }
    expect_ok(mha_sample_token(context, NULL, 0, logits, WORDS, &expected));
    const mha_generation_desc desc = {.struct_size = sizeof desc,
                                      .prompt = ids,
                                      .prompt_count = LONG,
                                      .max_tokens = 1,
                                      .cache = &cache};
    run_generation(model, &desc, made, &count, text);
    assert_int_equal(count, 1);
    assert_int_equal(made[0], expected);
    mha_decoder_destroy(decoder);
    mha_model_destroy(model);
}

RUN_TESTS_BETWEEN(context_and_folder_begin, context_and_folder_end,
                  TEST(a_generation_is_the_whole_sequence_again), TEST(a_generation_stops),
                  TEST(a_generation_refuses), TEST(only_some_models_predict),
                  TEST(layers_have_their_own_heads), TEST(a_long_prompt_goes_in_pieces))
