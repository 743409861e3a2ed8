/* Trials (trial.h): runs with disabled or patched heads are bit-identical to gates and patches,
 * with or without a cache, and stop on request. The maps of show.h, and errors of a live page
 * (live.h). */
#include "support/expect.h"
#include "support/one_context.h"
#include "support/small_model.h"
#include "support/suite.h"

#include <multihead/live.h>
#include <multihead/show.h>
#include <multihead/trace.h>
#include <multihead/trial.h>

#include <math.h>
#include <stdlib.h>

enum { MOST = SMALL_LAYERS * SMALL_HEADS * SMALL_T * SMALL_T };

/* All rows of a run, [L,H,T,T], and the number of stop requests checked. */
typedef struct seen {
    float maps[MOST];
    int64_t heads, tokens;
    int questions, over_at;
} seen;

static mha_status see(void *user, int64_t layer, int64_t row, const mha_tensor *p)
{
    seen *s = user;
    for (int64_t h = 0; h < p->shape[0]; h++)
        for (int64_t r = 0; r < p->shape[1]; r++)
            memcpy(s->maps + ((layer * s->heads + h) * s->tokens + row + r) * s->tokens,
                   (const float *)p->data + h * p->stride[0] + r * p->stride[1],
                   (size_t)s->tokens * sizeof(float));
    return MHA_OK;
}

static bool is_over(void *user)
{
    seen *s = user;
    return ++s->questions == s->over_at;
}

static mha_trials *trials_of(const small_model *m, double most_bytes, seen *s)
{
    mha_trials *trials = NULL;
    const mha_trials_options options = {
        .struct_size = sizeof options, .most_bytes = most_bytes, .is_over = is_over, .user = s};
    *s = (seen){.heads = m->desc.num_heads, .tokens = m->T};
    expect_ok(mha_trials_create(context, m->t, &options, &trials));
    return trials;
}

static small_model *make_model(uint64_t seed)
{
    rng r = rng_make(seed, 1);
    small_model *m = small_model_make(context, &r, MHA_TRANSFORMER_CAUSAL);
    m->T = SMALL_T;
    for (int32_t t = 0; t < SMALL_T; t++) m->ids[t] = t % 8; /* ids that every vocabulary has */
    return m;
}

/* Computes probabilities and logits of the first text without a head, with gates. */
static void forward_without(const small_model *m, mha_trial_head off, float *maps, float *logits)
{
    const mha_transformer_desc *d = &m->desc;
    float gates[SMALL_LAYERS * SMALL_HEADS];
    mha_tensor each[SMALL_LAYERS];
    mha_attention_outputs outputs[SMALL_LAYERS];
    const mha_attention_outputs *list[SMALL_LAYERS];
    const int64_t heads = d->num_heads, text[] = {1, m->T};
    for (int64_t i = 0; i < d->num_layers * heads; i++) gates[i] = 1;
    gates[off.layer * heads + off.head] = 0;
    for (int64_t l = 0; l < d->num_layers; l++) {
        each[l] = mha_tensor_contiguous(maps + l * heads * m->T * m->T, MHA_F32, 4,
                                        (int64_t[]){1, heads, m->T, m->T});
        outputs[l] =
            (mha_attention_outputs){.struct_size = sizeof *outputs, .probabilities = &each[l]};
        list[l] = &outputs[l];
    }
    const mha_tensor ids = mha_tensor_contiguous(m->tokens.data, MHA_I32, 2, text);
    const mha_tensor gate =
        mha_tensor_contiguous(gates, MHA_F32, 2, (int64_t[]){d->num_layers, heads});
    const mha_tensor out =
        mha_tensor_contiguous(logits, MHA_F32, 3, (int64_t[]){1, m->T, d->vocab_size});
    const mha_transformer_input input = {
        .struct_size = sizeof input, .tokens = &ids, .gates = &gate, .outputs = list};
    expect_ok(mha_transformer_forward(context, m->t, &input, NULL, &out, NULL, NULL));
}

static void runs_have_the_bits_of_gates(void)
{
    small_model *m = make_model(71);
    const mha_trial_head off = {m->desc.num_layers - 1, 0};
    const mha_trial trial = {
        .struct_size = sizeof trial, .tokens = m->ids, .count = m->T, .off = &off, .off_count = 1};
    float *maps = calloc(MOST, sizeof *maps);
    float *logits = calloc((size_t)(m->T * m->desc.vocab_size), sizeof *logits);
    float *last = calloc((size_t)m->desc.vocab_size, sizeof *last);
    forward_without(m, off, maps, logits);
    for (int kept = 0; kept < 2; kept++) {
        seen s;
        mha_trial_next next;
        mha_trials *trials = trials_of(m, kept ? 1e9 : 0, &s);
        for (int again = 0; again < 2; again++) {
            memset(s.maps, 0, sizeof s.maps);
            expect_ok(mha_trials_run(trials, &trial, -1, see, &s, NULL));
            assert_memory_equal(s.maps, maps, sizeof s.maps);
        }
        expect_ok(mha_trials_predict(trials, &trial, m->T - 2, &next));
        assert_true(next.changed && next.count > 0 && next.divergence > 0);
        for (int64_t i = 0; i < next.count; i++)
            assert_true(next.tokens[i].logit ==
                        logits[(m->T - 2) * m->desc.vocab_size + next.tokens[i].id]);
        expect_ok(mha_trials_logits(trials, &trial, last));
        assert_memory_equal(last, logits + (m->T - 1) * m->desc.vocab_size,
                            (size_t)m->desc.vocab_size * sizeof *last);
        mha_trials_destroy(trials);
    }
    free(maps);
    free(logits);
    free(last);
    small_model_free(m);
}

/* A patch from the same text changes nothing; a patch from another text changes the result. */
static void heads_are_patched(void)
{
    seen s;
    int64_t patched;
    mha_trial_next next;
    small_model *m = make_model(72);
    const mha_trial_head head = {0, 0};
    int32_t other[SMALL_T];
    for (int64_t t = 0; t < m->T; t++) other[t] = m->ids[m->T - 1 - t];
    mha_trials *trials = trials_of(m, 1e9, &s);
    mha_trial trial = {.struct_size = sizeof trial,
                       .tokens = m->ids,
                       .count = m->T,
                       .patched = &head,
                       .patched_count = 1,
                       .other = m->ids,
                       .other_count = m->T};
    expect_ok(mha_trials_predict(trials, &trial, -1, &next));
    for (int64_t i = 0; i < next.count; i++)
        assert_true(next.tokens[i].logit == next.tokens[i].logit_whole);
    trial.other = other;
    trial.other_count = m->T - 1;
    expect_ok(mha_trials_predict(trials, &trial, 1, &next));
    assert_true(next.divergence > 0);
    expect_ok(mha_trials_run(trials, &trial, -1, NULL, NULL, &patched));
    assert_int_equal(patched, m->T - 1);
    trial.flags = MHA_TRIAL_AT_LAST;
    expect_ok(mha_trials_run(trials, &trial, -1, NULL, NULL, &patched));
    assert_int_equal(patched, 1);
    mha_trials_destroy(trials);
    trials = trials_of(m, 1, &s);
    expect_error(mha_trials_run(trials, &trial, -1, NULL, NULL, NULL), MHA_ERR_MODEL, "need more");
    mha_trials_destroy(trials);
    small_model_free(m);
}

/* Draws of the top_k tokens sum to 1, in the order of the logits. Noise affects only readers of the
 * head. */
static void draws_and_noise(void)
{
    seen s;
    mha_trial_next next, noisy;
    small_model *m = make_model(75);
    mha_trials *trials = trials_of(m, 1e9, &s);
    mha_trial run = {
        .struct_size = sizeof run, .tokens = m->ids, .count = m->T, .temperature = 0.5, .top_k = 3};
    expect_ok(mha_trials_predict(trials, &run, -1, &next));
    double sum = 0;
    for (int64_t i = 0; i < next.count; i++) sum += next.tokens[i].p_drawn;
    assert_true(fabs(sum - 1) < 1e-12 && next.tokens[3].p_drawn <= 0);
    const double ratio = next.tokens[1].p_drawn / next.tokens[0].p_drawn;
    assert_true(fabs(ratio - exp(2 * (double)(next.tokens[1].logit - next.tokens[0].logit))) <
                1e-6);
    run.noise = 1;
    expect_ok(mha_trials_predict(trials, &run, -1, &noisy));
    assert_true(noisy.changed && noisy.divergence > 0);
    for (int64_t i = 0; i < noisy.count; i++)
        if (noisy.tokens[i].id == next.tokens[0].id)
            assert_true(noisy.tokens[i].logit_whole == next.tokens[0].logit);
    expect_spoiled(run, mha_trials_predict(trials, &run, -1, &next), MHA_ERR_MODEL, "top_k",
                   run.top_k = 11);
    mha_trials_destroy(trials);
    small_model_free(m);
}

/* Points and shares of a head have the same bits whether queries and keys are kept or not. */
static void planes_do_not_depend_on_what_is_kept(void)
{
    seen s;
    float points[2][4 * SMALL_T];
    double shares[2][2];
    small_model *m = make_model(77);
    const mha_trial run = {.struct_size = sizeof run, .tokens = m->ids, .count = m->T};
    const mha_trial_head head = {m->desc.num_layers - 1, m->desc.num_heads - 1}, none = {-1, 0};
    for (int kept = 0; kept < 2; kept++) {
        mha_trials *trials = trials_of(m, kept ? 1e9 : 0, &s);
        expect_ok(mha_trials_plane(trials, &run, head, points[kept], shares[kept]));
        expect_error(mha_trials_plane(trials, &run, none, points[kept], shares[1]), MHA_ERR_MODEL,
                     "no head L-1H0");
        expect_error(mha_trials_plane(trials, &run, head, NULL, shares[1]), MHA_ERR_NULL, "points");
        mha_trials_destroy(trials);
    }
    assert_memory_equal(points[0], points[1], sizeof points[0]);
    assert_memory_equal(shares[0], shares[1], sizeof shares[0]);
    assert_true(shares[0][0] >= shares[0][1] && shares[0][1] > 0 &&
                shares[0][0] + shares[0][1] <= 1 + 1e-12);
    small_model_free(m);
}

/* The same description gives the same bits. A different mask gives the bits of a transformer with
 * that mask. */
static void descriptions_vary(void)
{
    seen s, same;
    mha_trial_next next;
    small_model *m = make_model(76);
    mha_transformer_desc d = {.struct_size = sizeof d};
    mha_transformer *varied = NULL;
    mha_transformer_describe(m->t, &d);
    expect_ok(mha_transformer_vary(context, m->t, &d, &varied));
    mha_trials *trials = trials_of(m, 1e9, &s), *others = NULL;
    const mha_trials_options how = {
        .struct_size = sizeof how, .most_bytes = 1e9, .baseline = trials};
    const mha_trial run = {.struct_size = sizeof run, .tokens = m->ids, .count = m->T};
    same = (seen){.heads = s.heads, .tokens = s.tokens};
    expect_ok(mha_trials_create(context, varied, &how, &others));
    expect_ok(mha_trials_run(trials, &run, -1, see, &s, NULL));
    expect_ok(mha_trials_run(others, &run, -1, see, &same, NULL));
    assert_memory_equal(s.maps, same.maps, sizeof s.maps);
    expect_ok(mha_trials_predict(others, &run, -1, &next));
    assert_true(next.changed && fabs(next.divergence) < 1e-12);
    mha_trials_destroy(others);
    mha_transformer_destroy(varied);
    d.flags &= ~(uint32_t)MHA_TRANSFORMER_CAUSAL;
    expect_ok(mha_transformer_vary(context, m->t, &d, &varied));
    expect_ok(mha_trials_create(context, varied, &how, &others));
    expect_ok(mha_trials_run(others, &run, -1, see, &same, NULL));
    assert_memory_not_equal(s.maps, same.maps, sizeof s.maps);
    d.kv_heads++;
    expect_error(mha_transformer_vary(context, m->t, &d, &varied), MHA_ERR_SHAPE, "heads");
    d.kv_heads--;
    d.num_layers++;
    expect_error(mha_transformer_vary(context, m->t, &d, &varied), MHA_ERR_SHAPE, "layers");
    mha_trials_destroy(others);
    mha_transformer_destroy(varied);
    mha_trials_destroy(trials);
    small_model_free(m);
}

static void runs_end_when_they_are_to(void)
{
    seen s;
    small_model *m = make_model(73);
    mha_trials *trials = trials_of(m, 1e9, &s);
    const mha_trial trial = {.struct_size = sizeof trial, .tokens = m->ids, .count = m->T};
    mha_status status = MHA_ERR_CALLBACK;
    for (int at = 1; status != MHA_OK; at++) {
        s.questions = 0, s.over_at = at;
        status = mha_trials_run(trials, &trial, -1, see, &s, NULL);
        if (status != MHA_OK) expect_error(status, MHA_ERR_CALLBACK, "interrupted");
        assert_true(at < 100);
    }
    mha_trials_destroy(trials);
    small_model_free(m);
}

static void misuse_of_trials(void)
{
    seen s;
    small_model *m = make_model(74);
    mha_trial_next next;
    mha_trials *trials = trials_of(m, 1e9, &s);
    const mha_trial_head twice[] = {{0, 0}, {0, 0}}, none = {99, 0};
    mha_trial t = {.struct_size = sizeof t, .tokens = m->ids, .count = m->T};
#define RUN mha_trials_run(trials, &t, -1, see, &s, NULL)
    expect_spoiled(t, RUN, MHA_ERR_ARGUMENT, "struct_size", t.struct_size = 7);
    expect_spoiled(t, RUN, MHA_ERR_ARGUMENT, "flags", t.flags = 6);
    expect_spoiled(t, RUN, MHA_ERR_ARGUMENT, "no token", t.count = 0);
    expect_spoiled(t, RUN, MHA_ERR_NULL, "missing", t.tokens = NULL);
    expect_spoiled(t, RUN, MHA_ERR_NULL, "missing", t.patched = twice, t.patched_count = 1);
    expect_spoiled(t, RUN, MHA_ERR_MODEL, "twice", t.off = twice, t.off_count = 2);
    expect_spoiled(t, RUN, MHA_ERR_MODEL, "no head L99H0", t.off = &none, t.off_count = 1);
#undef RUN
    expect_error(mha_trials_predict(trials, &t, m->T, &next), MHA_ERR_MODEL, "row");
    expect_error(mha_trials_logits(trials, &t, NULL), MHA_ERR_NULL, "logits");
    expect_error(mha_trials_run(NULL, &t, -1, NULL, NULL, NULL), MHA_ERR_NULL, "trials is NULL");
    expect_error(mha_trials_run(trials, NULL, -1, NULL, NULL, NULL), MHA_ERR_NULL, "run is NULL");
    mha_trials_destroy(trials);
    mha_trials_destroy(NULL);
    small_model_free(m);
}

/* ---- visible cells --------------------------------------------------------------------------- */

static float cells[] = {1, 0, 0, 0.5F, 0.5F, 0, 0.25F, 0.25F, 0.5F};

static mha_maps three_tokens(float **layer)
{
    static const char *labels[] = {"<s>", "the", "cat"};
    static uint8_t special[] = {1, 0, 0};
    *layer = cells;
    const mha_tokens axis = {.count = 3, .labels = labels, .special = special};
    return (mha_maps){.struct_size = sizeof(mha_maps),
                      .flags = MHA_MAPS_CAUSAL | MHA_MAPS_SAME,
                      .name = "tiny",
                      .kind = "llama",
                      .layers = 1,
                      .heads = 1,
                      .rows = axis,
                      .cols = axis,
                      .layer = layer};
}

static void hidden_tokens_are_counted(void)
{
    float *layer;
    mha_show show;
    size_t bytes;
    const char *const hide[] = {"special,dog"}, *const all[] = {"special,the,cat"};
    const mha_maps maps = three_tokens(&layer);
    mha_show_options options = {.struct_size = sizeof options,
                                .flags = MHA_SHOW_RENORMALISE,
                                .hide = hide,
                                .hide_count = 1};
    expect_ok(mha_show_make(&maps, NULL, &show));
    assert_int_equal(show.figure.rows, 3);
    assert_ptr_equal(show.figure.panels[0].values, cells);
    assert_true(show.figure.panels[0].masked[1] && !show.figure.panels[0].masked[3]);
    assert_int_equal(show.report.special_count, 1);
    assert_string_equal(show.report.facts[1].value, "llama");
    mha_show_free(&show);
    expect_ok(mha_show_make(&maps, &options, &show));
    assert_int_equal(show.figure.rows, 2);
    assert_true(show.figure.panels[0].values[0] == 1 && show.figure.panels[0].values[1] == 0);
    assert_string_equal(show.figure.panels[0].note, "hidden: 38 %");
    assert_non_null(strstr(show.figure.footnote, "hidden: <s>; hidden keys hold 37.5 %"));
    mha_show_free(&show);
    const char *idle = mha_show_idle(&maps, hide[0], &bytes);
    assert_true(bytes == 3 && !strncmp(idle, "dog", 3));
    assert_null(mha_show_idle(&maps, idle + bytes, &bytes));
    options.hide = all;
    expect_error(mha_show_make(&maps, &options, &show), MHA_ERR_ARGUMENT, "all 3 tokens");
    mha_show_free(&show);
    options.hide_count = 0;
    for (int64_t panel = -1; panel < 2; panel += 2) {
        options.first_panel = panel, options.flags = MHA_SHOW_FIRST_PANEL | MHA_SHOW_FIRST_CELL;
        expect_error(mha_show_make(&maps, &options, &show), MHA_ERR_ARGUMENT, "expected 0..0");
    }
    options.flags = 1U << 9;
    expect_error(mha_show_make(&maps, &options, &show), MHA_ERR_UNSUPPORTED, "unknown bits");
}

/* A report says why it shows no experts. */
static void hidden_experts_are_a_fact(void)
{
    static int32_t experts[3];
    static float weights[3], *layer;
    mha_layer_routes routes = {.count = 1, .used = 1, .experts = experts, .weights = weights};
    mha_maps maps = three_tokens(&layer);
    mha_show show;
    maps.routes = (mha_routes){.layers = 1, .tokens = 3, .layer = &routes};
    expect_ok(mha_show_make(&maps, NULL, &show));
    assert_true(show.report.choice_count == 1 && show.report.fact_count == 4);
    mha_show_free(&show);
    routes.used = routes.count = 66667; /* 200,001 numbers */
    expect_ok(mha_show_make(&maps, NULL, &show));
    assert_true(show.report.choice_count == 0 && show.report.fact_count == 5);
    assert_string_equal(show.report.facts[4].name, "experts");
    assert_non_null(strstr(show.report.facts[4].value, "more than 200000"));
    mha_show_free(&show);
    routes.used = routes.count = 1;
    maps.cell = 2;
    expect_ok(mha_show_make(&maps, NULL, &show));
    assert_true(show.report.choice_count == 0 && show.report.fact_count == 5);
    assert_non_null(strstr(show.report.facts[4].value, "blocks of tokens"));
    mha_show_free(&show);
}

/* Texts use at most the available bytes. */
static void texts_fit(void)
{
    float *layer;
    mha_maps maps = three_tokens(&layer);
    maps.text[0] = maps.text[1] = "the cat", maps.text_bytes[0] = maps.text_bytes[1] = 7;
    for (size_t size = 1; size < 40; size++) {
        char text[41];
        memset(text, '#', sizeof text);
        assert_true(mha_show_texts(&maps, 20, text, size) && strlen(text) < size);
        assert_int_equal(text[size], '#');
    }
    char whole[80];
    assert_true(mha_show_texts(&maps, 20, whole, sizeof whole));
    assert_string_equal(whole, "the cat | the cat");
}

/* ---- places ---------------------------------------------------------------------------------- */

static void places_are_known(void)
{
    mha_live *live;
    const mha_live_options options = {.struct_size = sizeof options};
    const mha_sink sink = {0};
    assert_string_equal(mha_live_find("save")->file, "heads.html");
    assert_true(mha_live_find("look")->asks && !mha_live_find("page")->asks);
    assert_null(mha_live_find("quit"));
    expect_error(mha_live_create(context, NULL, &options, &live), MHA_ERR_NULL, "model is NULL");
    expect_error(mha_live_answer(NULL, mha_live_find("page"), NULL, 0, &sink), MHA_ERR_NULL,
                 "required");
    mha_live_destroy(NULL);
    assert_int_equal(mha_show_cell(1, 8000), 1);
    assert_true(mha_show_cell(1, 8001) > 1);
    assert_int_equal(mha_show_cell(8000000, 100),
                     100); /* however many heads: a cell of all tokens */
}

RUN_TESTS_BETWEEN(context_begin, NULL, TEST(runs_have_the_bits_of_gates), TEST(heads_are_patched),
                  TEST(draws_and_noise), TEST(planes_do_not_depend_on_what_is_kept),
                  TEST(descriptions_vary), TEST(runs_end_when_they_are_to), TEST(misuse_of_trials),
                  TEST(hidden_tokens_are_counted), TEST(hidden_experts_are_a_fact), TEST(texts_fit),
                  TEST(places_are_known))
