/* The study layer: tokens of whole words and of WordPiece computed by hand, and growing texts.
 * Scores equal those of direct calls with complete maps. Further tests are for roles of maps with
 * known roles, and for sequences of random tokens. */
#include "support/expect.h"
#include "support/one_context.h"
#include "support/rng.h"
#include "support/suite.h"
#include "support/temp_files.h"
#include "support/thread_ranks.h"
#include "unit/word_model.h"

#include <multihead/generation.h>
#include <multihead/show.h>
#include <multihead/trial.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define TINY "tests/golden/tiny-bert"

enum { L = WORD_LAYERS, H = WORD_HEADS };

static mha_tokens read(const mha_model *model, const char *text)
{
    mha_tokens tokens = MHA_INIT(mha_tokens);
    expect_ok(mha_tokens_read(model, NULL, text, strlen(text), NULL, 0, &tokens));
    return tokens;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static void words_have_places_and_sentences(void)
{
    static const char *const labels[] = {"<s>", "the", "cat", "sat", ".", "a", "dog"};
    static const int32_t ids[] = {0, 1, 2, 3, 4, 7, 8};
    static const int64_t begin[] = {-1, 0, 4, 8, 11, 13, 15}, end[] = {-1, 3, 7, 11, 12, 14, 18},
                         sentences[] = {0, 0, 0, 0, 0, 1, 1};
    static const uint8_t special[] = {1, 0, 0, 0, 0, 0, 0}, ends[] = {0, 0, 0, 0, 1, 0, 0};
    mha_model *model = word_model(32);
    mha_tokens t = read(model, "The cat sat. a dog");
    assert_int_equal(t.count, 7);
    for (int i = 0; i < 7; i++) assert_string_equal(t.labels[i], labels[i]);
    assert_memory_equal(t.ids, ids, sizeof ids);
    assert_memory_equal(t.begin, begin, sizeof begin);
    assert_memory_equal(t.end, end, sizeof end);
    assert_memory_equal(t.sentences, sentences, sizeof sentences);
    assert_memory_equal(t.special, special, sizeof special);
    assert_memory_equal(t.separators, ends, sizeof ends);
    assert_int_equal(t.types[3] + t.sequence[3], 0);
    assert_int_equal(t.sequence[0], -1);
    mha_tokens_free(&t);
    assert_null(t.memory);
    mha_tokens_free(&t);
    assert_int_equal(mha_token_count(model), WORDS);
    mha_model_destroy(model);
}

static void limits_hold(void)
{
    static const char text[] = "the cat sat on the mat";
    mha_model *model = word_model(32);
    mha_tokens_options how = {.struct_size = sizeof how, .max_tokens = 4};
    mha_tokens t = MHA_INIT(mha_tokens);
    const char *second = "a";
#define READ(text, pair) mha_tokens_read(model, &how, text, strlen(text), pair, pair ? 1 : 0, &t)
    expect_error(READ(text, NULL), MHA_ERR_SIZE, "limit is 4; shorten it");
    how.advise_long = "or cut";
    expect_error(READ(text, NULL), MHA_ERR_SIZE, "shorten it, or cut");
    assert_null(t.memory);
    how.flags = MHA_TOKENS_TRUNCATE | MHA_TOKENS_PLAIN;
    expect_ok(READ(text, NULL));
    assert_int_equal(t.count, 4);
    assert_int_equal(t.dropped[0], 3);
    assert_null(t.labels);
    mha_tokens_free(&t);
    how.flags = 0;
    how.max_tokens = -1;
    expect_error(READ("the cta sat", NULL), MHA_ERR_FORMAT,
                 "'cta' is not one of the model's 10 words; did you mean 'cat'?");
    how.advise_words = "ask me";
    expect_error(READ("zebra", NULL), MHA_ERR_FORMAT, "10 words; ask me");
    expect_error(READ(text, second), MHA_ERR_UNSUPPORTED, "no second text; give one");
    expect_error(READ("\xFF", NULL), MHA_ERR_UTF8, "byte 0");
    how.max_tokens = -2;
    expect_error(READ(text, NULL), MHA_ERR_ARGUMENT, "max_tokens is -2");
    how.max_tokens = 0, how.flags = 64;
    expect_error(READ(text, NULL), MHA_ERR_UNSUPPORTED, "flags");
    how.flags = MHA_TOKENS_PROMPT;
    expect_ok(READ("", NULL)); /* only the beginning token */
    assert_int_equal(t.count, 1);
    mha_tokens_free(&t);
    expect_error(mha_tokens_read(NULL, NULL, text, 1, NULL, 0, &t), MHA_ERR_NULL, "NULL");
#undef READ
    mha_model_destroy(model);
}

static void pieces_of_a_pair(void)
{
    mha_model *model = NULL;
    mha_tokens t = MHA_INIT(mha_tokens);
    expect_ok(mha_model_load(context, TINY, NULL, &model));
    expect_ok(mha_tokens_read(model, NULL, "the bank.", 9, "the", 3, &t));
    /* [CLS] the bank . [SEP] the [SEP] */
    assert_int_equal(t.count, 7);
    assert_string_equal(t.labels[0], "[CLS]");
    assert_string_equal(t.labels[6], "[SEP]");
    static const int8_t sequence[] = {-1, 0, 0, 0, -1, 1, -1};
    static const int32_t types[] = {0, 0, 0, 0, 0, 1, 1};
    static const uint8_t ends[] = {0, 0, 0, 1, 1, 0, 1};
    static const int64_t sentences[] = {0, 0, 0, 0, 1, 2, 2};
    assert_memory_equal(t.sequence, sequence, sizeof sequence);
    assert_memory_equal(t.types, types, sizeof types);
    assert_memory_equal(t.separators, ends, sizeof ends);
    assert_memory_equal(t.sentences, sentences, sizeof sentences);
    assert_int_equal(t.end[2], 8);
    char label[4];
    assert_int_equal(mha_token_label(model, t.ids[2], label, sizeof label), 4);
    assert_string_equal(label, "ban");
    assert_int_equal(mha_token_label(model, -1, NULL, 0), 1);
    assert_true(mha_token_is_special(model, t.ids[0]));
    assert_false(mha_token_is_special(model, t.ids[2]));
    mha_tokens_free(&t);
    mha_model_destroy(model);
}

static void a_text_grows(void)
{
    static const char *const stops[] = {"", "on the"};
    mha_model *model = word_model(32);
    mha_text_writer *w = NULL;
    const char *text;
    size_t bytes;
    bool stopped;
    char all[64] = "";
    expect_ok(mha_text_writer_create(model, stops, 2, &w));
    static const int32_t ids[] = {0, 2, 3, 5, 6, 5, 1};
    static const char *const added[] = {"", "cat", " sat", " ", "on mat", " ", ""};
    for (int i = 0; i < 7; i++) {
        expect_ok(mha_text_writer_add(w, ids[i], &text, &bytes, &stopped));
        strncat(all, text, bytes);
        assert_int_equal(bytes, strlen(added[i]));
        assert_memory_equal(text, added[i], bytes);
        assert_int_equal(stopped, i == 6);
    }
    expect_ok(mha_text_writer_end(w, &text, &bytes));
    assert_int_equal(bytes, 0);
    assert_string_equal(all, "cat sat on mat ");
    expect_error(mha_text_writer_add(w, WORDS, &text, &bytes, &stopped), MHA_ERR_ARGUMENT,
                 "token 10 is not");
    mha_text_writer_destroy(w);
    mha_model_destroy(model);
}

/* ---- scores ---------------------------------------------------------------------------------- */

static const char first_text[] = "the cat sat on the mat . a dog ran on the mat",
                  second_text[] = "a dog sat . the dog ran";

/* Passes complete maps of the model to the measures. Ranks follow the counts in both texts: the and
 * dog 3 times, then sat, ., on, mat, a and ran twice each, and cat once, in the order of ids. */
static void feed(mha_model *model, const mha_tokens *t, mha_head_measures *measures)
{
    static const int64_t rank_of[WORDS] = {0, 0, 8, 2, 3, 4, 5, 6, 1, 7};
    const int64_t T = t->count, shape[] = {1, T}, of[] = {1, H, T, T};
    float *maps = calloc((size_t)(L * H * T * T), sizeof *maps);
    int64_t ids[32], ranks[32];
    mha_tensor p[L];
    mha_attention_outputs out[L];
    const mha_attention_outputs *outs[L];
    for (int l = 0; l < L; l++) {
        p[l] = mha_tensor_contiguous(maps + l * H * T * T, MHA_F32, 4, of);
        out[l] = (mha_attention_outputs){.struct_size = sizeof *out, .probabilities = &p[l]};
        outs[l] = &out[l];
    }
    for (int64_t i = 0; i < T; i++) ids[i] = t->ids[i], ranks[i] = rank_of[t->ids[i]];
    const mha_tensor tokens = mha_tensor_contiguous(t->ids, MHA_I32, 2, shape);
    const mha_transformer_input input = {
        .struct_size = sizeof input, .tokens = &tokens, .outputs = outs};
    expect_ok(mha_transformer_forward(context, mha_model_transformer(model), &input, NULL, NULL,
                                      NULL, NULL));
    const mha_heads_text text = {.struct_size = sizeof text,
                                 .flags = MHA_HEADS_CAUSAL,
                                 .queries = T,
                                 .keys = T,
                                 .ids = ids,
                                 .separators = t->separators,
                                 .special = t->special,
                                 .segments = t->sentences,
                                 .ranks = ranks};
    expect_ok(mha_head_measures_begin(measures, &text));
    for (int l = 0; l < L; l++) {
        mha_tensor rows = mha_tensor_contiguous(p[l].data, MHA_F32, 3, of + 1);
        expect_ok(mha_head_measures_rows(measures, l, 0, &rows));
    }
    expect_ok(mha_head_measures_end(measures));
    free(maps);
}

static void scores_are_those_of_maps_by_hand(void)
{
    mha_model *model = word_model(32);
    mha_tokens texts[2] = {read(model, first_text), read(model, second_text)};
    mha_study *study = NULL;
    mha_head_measures *by_hand = NULL;
    const int64_t heads[L] = {H, H};
    const mha_head_measures_desc desc = {
        .struct_size = sizeof desc, .layers = L, .heads = heads, .rare_rank = 4}; /* 9 kinds */
    expect_ok(mha_head_measures_create(context, &desc, &by_hand));
    for (int i = 0; i < 2; i++) feed(model, &texts[i], by_hand);
    expect_ok(mha_study_create(context, model, NULL, &study));
    expect_ok(mha_study_measure(study, texts, 2, NULL, 0));
    const mha_study_found *found = mha_study_results(study);
    assert_int_equal(found->text_count, 2);
    assert_int_equal(found->token_count, texts[0].count + texts[1].count);
    assert_null(found->random);
    for (int64_t i = 0; i < L * H; i++)
        for (int n = 0; n < MHA_MEASURES; n++) {
            if (n == MHA_MEASURE_COSINE) continue; /* needs inputs, which these maps lack */
            const mha_head_score a = mha_study_score(found, i / H, i % H, n),
                                 b = mha_head_measures_score(by_hand, i / H, i % H,
                                                             (mha_head_measure)n);
            assert_true(a.value == b.value && a.chance == b.chance && a.rows == b.rows);
        }
    assert_int_equal(found->kinds, 9);
    assert_int_equal(found->vocab_size, WORDS);
    assert_int_equal(found->counts[8], 3);
    assert_int_equal(found->counts[0], 0);
    assert_int_equal(found->ranks[2], 8);
    assert_int_equal(found->id_of[0], 1);
    mha_head_measures_destroy(by_hand);
    mha_study_destroy(study);
    for (int i = 0; i < 2; i++) mha_tokens_free(&texts[i]);
    mha_model_destroy(model);
}

/* Steps and a restarted study are bit-identical to the single call. */
static void steps_are_the_whole(void)
{
    mha_model *model = word_model(32);
    mha_tokens texts[2] = {read(model, first_text), read(model, second_text)};
    mha_study *whole = NULL, *steps = NULL;
    expect_ok(mha_study_create(context, model, NULL, &whole));
    expect_ok(mha_study_create(context, model, NULL, &steps));
    expect_ok(mha_study_measure(whole, texts, 2, NULL, 2));
    for (int i = 0; i < 2; i++) expect_ok(mha_study_count(steps, &texts[i], NULL));
    expect_ok(mha_study_begin(steps));
    expect_ok(mha_study_text(steps, &texts[1], NULL));
    expect_ok(mha_study_begin(steps));
    for (int i = 1; i >= 0; i--) expect_ok(mha_study_text(steps, &texts[i], NULL));
    expect_ok(mha_study_begin_random(steps));
    for (int i = 0; i < 2; i++) expect_ok(mha_study_draw(steps));
    const mha_study_found *a = mha_study_results(whole), *b = mha_study_results(steps);
    for (int64_t i = 0; i < L * H; i++)
        for (int64_t n = 0; n < mha_study_score_count(a); n++) {
            const mha_head_score x = mha_study_score(a, i / H, i % H, n),
                                 y = mha_study_score(b, i / H, i % H, n);
            assert_true(x.value == y.value && x.rows == y.rows);
        }
    assert_int_equal(b->random_count, 2);
    expect_error(mha_study_count(steps, &texts[0], NULL), MHA_ERR_ARGUMENT, "begin");
    texts[0].ids[1] = WORDS;
    expect_error(mha_study_text(steps, &texts[0], NULL), MHA_ERR_ARGUMENT, "the model has 0..9");
    mha_study_destroy(whole);
    mha_study_destroy(steps);
    for (int i = 0; i < 2; i++) mha_tokens_free(&texts[i]);
    mha_model_destroy(model);
}

/* ---- a state, and ranks ---------------------------------------------------------------------- */

enum { TEXTS = 5, SEQUENCES = 3, SAVES = TEXTS + SEQUENCES };

static const char *const lines[TEXTS] = {first_text, second_text, "the cat",
                                         "a mat . a cat on a mat .", "the dog sat on the dog"};

typedef struct saving {
    mha_buffer saved[SAVES + 1]; /* after each text and sequence; on ranks, after each round */
    int count;
    mha_status status;
    mha_study *study;
} saving;

static void keep(void *user)
{
    saving *s = user;
    mha_sink sink;
    if (s->count > SAVES) return;
    sink = mha_buffer_sink(&s->saved[s->count++]);
    if (mha_study_write(s->study, &sink) != MHA_OK) s->status = MHA_ERR_WRITE;
}

static void forget(saving *s)
{
    for (int i = 0; i <= SAVES; i++) mha_buffer_free(&s->saved[i]);
    *s = (saving){0};
}

/* Measures the first `count` of `texts`, after the texts of `from`. */
static mha_status study_lines(mha_context *c, mha_model *model, const char *const *texts, int count,
                              const mha_buffer *from, const mha_transport *ranks, saving *to)
{
    mha_tokens tokens[TEXTS];
    mha_study_state state = {.struct_size = sizeof state,
                             .bytes = from ? from->data : NULL,
                             .size = from ? from->size : 0,
                             .name = "a.state",
                             .model = {1, 2, 3},
                             .save = keep,
                             .save_user = to};
    const mha_study_desc desc = {.struct_size = sizeof desc,
                                 .flags = MHA_STUDY_CORPUS,
                                 .sequences = SEQUENCES,
                                 .ranks = ranks,
                                 .state = &state};
    mha_status status = MHA_OK;
    for (int i = 0; i < TEXTS; i++) tokens[i] = (mha_tokens)MHA_INIT(mha_tokens);
    for (int i = 0; i < count && status == MHA_OK; i++)
        status = mha_tokens_read(model, NULL, texts[i], strlen(texts[i]), NULL, 0, &tokens[i]);
    if (status == MHA_OK) status = mha_study_create(c, model, &desc, &to->study);
    if (status == MHA_OK) status = mha_study_measure(to->study, tokens, count, NULL, SEQUENCES);
    mha_study_destroy(to->study);
    to->study = NULL;
    for (int i = 0; i < TEXTS; i++) mha_tokens_free(&tokens[i]);
    return status;
}

static void same_state(const mha_buffer *a, const mha_buffer *b)
{
    assert_int_equal(a->size, b->size);
    assert_memory_equal(a->data, b->data, a->size);
}

static void a_state_continues(void)
{
    saving whole = {0}, again = {0};
    mha_model *model = word_model(64);
    expect_ok(study_lines(context, model, lines, TEXTS, NULL, NULL, &whole));
    assert_int_equal(whole.count, SAVES);
    expect_ok(whole.status);
    for (int i = 0; i < SAVES; i++) {
        expect_ok(study_lines(context, model, lines, TEXTS, &whole.saved[i], NULL, &again));
        assert_int_equal(again.count, SAVES - 1 - i);
        if (again.count > 0) same_state(&again.saved[again.count - 1], &whole.saved[SAVES - 1]);
        forget(&again);
    }
    const char *other[TEXTS] = {first_text, "a dog ran . the dog sat", lines[2], lines[3],
                                lines[4]};
    mha_buffer *two = &whole.saved[1];
#define STUDY(texts, count) study_lines(context, model, texts, count, two, NULL, &again)
    expect_error(STUDY(other, TEXTS), MHA_ERR_ARGUMENT,
                 "a.state: was measured on other texts: text 2");
    expect_error(STUDY(lines, 1), MHA_ERR_ARGUMENT, "has 2 texts, but 1 are given");
    expect_error(STUDY(lines, 4), MHA_ERR_ARGUMENT, "ranks of tokens by frequency");
    ((uint8_t *)two->data)[two->size / 2] ^= 1;
    expect_error(STUDY(lines, TEXTS), MHA_ERR_FORMAT, "or is damaged");
#undef STUDY
    forget(&whole);
    mha_model_destroy(model);
}

/* A rank has its own context and model. */
typedef struct rank_studies {
    saving of[MOST_THREAD_RANKS];
    mha_status status[MOST_THREAD_RANKS];
} rank_studies;

static void study_as_rank(void *user, const mha_transport *t)
{
    rank_studies *all = user;
    mha_context *own = NULL;
    mha_model *model = NULL;
    mha_status status = mha_context_create(NULL, &own);
    if (status == MHA_OK) status = mha_model_load(own, temp_path("words"), NULL, &model);
    if (status == MHA_OK)
        status = study_lines(own, model, lines, TEXTS, NULL, t, &all->of[t->rank]);
    all->status[t->rank] = status;
    mha_model_destroy(model);
    mha_context_destroy(own);
}

static void ranks_have_the_state_of_one_process(void)
{
    saving one = {0};
    mha_model *model = word_model(64);
    expect_ok(study_lines(context, model, lines, TEXTS, NULL, NULL, &one));
    for (int size = 2; size <= 7; size += 5) {
        static rank_studies all;
        thread_ranks_run(size, study_as_rank, &all, -1, 0);
        for (int r = 0; r < size; r++) {
            expect_ok(all.status[r]);
            assert_true(r == 0 ? all.of[r].count > 1 : all.of[r].count == 0);
        }
        const saving *first = &all.of[0];
        same_state(&first->saved[first->count - 1], &one.saved[SAVES - 1]);
        for (int r = 0; r < size; r++) forget(&all.of[r]);
    }
    forget(&one);
    mha_model_destroy(model);
}

/* Gold links: lost ones, and links affected by random tokens and gates. */
static mha_status stop_in_layer_1(void *user, const mha_study_progress *at)
{
    ++*(int *)user;
    assert_int_equal(at->layers, L);
    return at->layer == 1 ? MHA_ERR_CALLBACK : MHA_OK;
}

static void links_and_stops(void)
{
    static const char *const names[] = {"det"};
    static const int64_t begin[] = {0, 4, 30}, end[] = {3, 7, 33};
    static const mha_heads_link links[] = {{0, 1, 0}, {2, 1, 0}, {1, 9, 0}};
    mha_study_links gold = {.begin = begin, .end = end, .words = 3, .links = links, .count = 2};
    const mha_study_visit visit = {.struct_size = sizeof visit, .links = &gold};
    int calls = 0;
    mha_study_desc desc = {.struct_size = sizeof desc,
                           .relations = names,
                           .relation_count = 1,
                           .progress_user = &calls};
    mha_model *model = word_model(32);
    mha_tokens text = read(model, "the cat sat");
    for (int64_t i = 0; i < text.count; i++)
        if (text.begin[i] == 4) text.begin[i] = 3; /* like a GGUF file: " cat" */
    mha_study *study = NULL;
    expect_ok(mha_study_create(context, model, &desc, &study));
    const mha_study_visit *visits[] = {&visit};
    expect_ok(mha_study_measure(study, &text, 1, visits, 0));
    const mha_study_found *found = mha_study_results(study);
    assert_int_equal(found->lost_links, 1);
    assert_string_equal(found->relations[0], "det");
    char name[MHA_STUDY_NAME_BYTES];
    mha_study_score_name(found, MHA_MEASURES + 4, name);
    assert_string_equal(name, "det-back");
    assert_int_equal(mha_study_score_find(found, "det-back", false), MHA_MEASURES + 4);
    gold.count = 3;
    expect_error(mha_study_text(study, &text, &visit), MHA_ERR_ARGUMENT, "link 2");
    assert_int_equal(found->lost_links, 1);
    mha_study_destroy(study);
    desc.progress = stop_in_layer_1;
    expect_ok(mha_study_create(context, model, &desc, &study));
    assert_int_equal(mha_study_measure(study, &text, 1, NULL, 0), MHA_ERR_CALLBACK);
    assert_int_equal(mha_study_results(study)->text_count, 0);
    assert_int_equal(calls, 2);
    mha_study_destroy(study);
    mha_tokens_free(&text);
    mha_model_destroy(model);
}

/* ---- roles ----------------------------------------------------------------------------------- */

/* A map of one head over tokens 0 1 2 3 0 1 2 3 ...: each row attends to one key, either the token
 * after the earlier occurrence or the previous token. */
static mha_head_measures *measured(bool induction)
{
    enum { T = 16 };
    static float map[T * T];
    int64_t ids[T];
    const int64_t heads = 1, shape[] = {1, T, T};
    mha_head_measures *m = NULL;
    memset(map, 0, sizeof map);
    for (int i = 0; i < T; i++) {
        ids[i] = i % 4;
        const int before = i > 0 ? i - 1 : 0;
        map[i * T + (induction && i >= 4 ? i - 3 : before)] = 1;
    }
    const mha_head_measures_desc desc = {.struct_size = sizeof desc, .layers = 1, .heads = &heads};
    const mha_heads_text text = {
        .struct_size = sizeof text, .flags = MHA_HEADS_CAUSAL, .queries = T, .keys = T, .ids = ids};
    const mha_tensor p = mha_tensor_contiguous(map, MHA_F32, 3, shape);
    expect_ok(mha_head_measures_create(context, &desc, &m));
    expect_ok(mha_head_measures_begin(m, &text));
    expect_ok(mha_head_measures_rows(m, 0, 0, &p));
    expect_ok(mha_head_measures_end(m));
    return m;
}

static bool has_role(const mha_study_found *found, mha_role role)
{
    mha_head_role roles[MHA_STUDY_MOST_ROLES];
    const int64_t count = mha_study_roles(found, 0, 0, roles);
    bool has = false;
    for (int64_t i = 0; i < count; i++) {
        has |= roles[i].role == role;
        if (i == 0) continue;
        const bool rests = mha_study_role_rests(roles[i].role),
                   rested = mha_study_role_rests(roles[i - 1].role);
        assert_true(rests == rested ? roles[i].role > roles[i - 1].role : rests);
    }
    return has;
}

static void random_tokens_tell_induction(void)
{
    mha_head_measures *before = measured(false), *follows = measured(true);
    mha_study_found found = {.struct_size = sizeof found, .texts = follows};
    assert_true(has_role(&found, MHA_ROLE_INDUCTION));
    assert_false(has_role(&found, MHA_ROLE_PREVIOUS));
    assert_int_equal(mha_study_score_find(&found, "induction", true), MHA_MEASURE_INDUCTION);
    found.random = before; /* random texts lack the role */
    assert_false(has_role(&found, MHA_ROLE_INDUCTION));
    assert_false(has_role(&found, MHA_ROLE_PREVIOUS));
    found.texts = before, found.random = follows;
    assert_true(has_role(&found, MHA_ROLE_INDUCTION));
    assert_true(has_role(&found, MHA_ROLE_PREVIOUS));
    const int64_t on_random = mha_study_score_find(&found, "induction", true);
    assert_int_equal(on_random, MHA_MEASURES + 1);
    assert_int_equal(mha_study_score_find(&found, "random_induction", false), on_random);
    assert_string_equal(mha_study_score_text(on_random),
                        mha_study_score_text(MHA_MEASURE_INDUCTION));
    assert_true(mha_study_score(&found, 0, 0, on_random).value == 1);
    assert_true(mha_study_score(&found, 0, 0, MHA_MEASURE_PREVIOUS).value == 1);
    assert_int_equal(mha_study_score(&found, 0, 0, MHA_MEASURES + 9).rows, 0);
    found.texts = NULL;
    assert_false(has_role(&found, MHA_ROLE_PREVIOUS));
    assert_true(has_role(&found, MHA_ROLE_INDUCTION));
    assert_int_equal(mha_study_score(&found, 0, 0, MHA_MEASURE_PREVIOUS).rows, 0);
    mha_head_measures_destroy(before);
    mha_head_measures_destroy(follows);
}

static void random_tokens_fit_the_model(void)
{
    mha_random_tokens plan = {.struct_size = sizeof plan};
    mha_tokens t = MHA_INIT(mha_tokens);
    mha_study *study = NULL;
    mha_model *model = word_model(32);
    expect_ok(mha_random_tokens_plan(model, &plan));
    assert_int_equal(plan.pool_count, WORDS - 1); /* all but <s> */
    assert_int_equal(plan.how.block, 9);
    assert_int_equal(plan.how.repeats, 3); /* 36 + 2 are more than 32 */
    assert_int_equal(plan.how.first, 0);
    assert_int_equal(plan.how.last, -1);
    expect_ok(mha_random_tokens_draw(&plan, &t));
    assert_int_equal(t.count, 28);
    for (int i = 1; i < 19; i++) assert_int_equal(t.ids[i], t.ids[i + 9]);
    assert_true(t.special[0] && !t.special[1] && !t.separators[0] && t.begin[5] == -1);
    mha_tokens_free(&t);
    assert_int_equal(plan.how.sequence, 1);
    plan.how.block = 1,
    plan.how.repeats = INT64_C(428994048225803524); /* 43 times it is 2^64 + 2 */
    expect_error(mha_random_tokens_draw(&plan, &t), MHA_ERR_NOMEM, "tokens");
    plan.how.block = 2, plan.how.repeats = INT64_MAX;
    expect_error(mha_random_tokens_draw(&plan, &t), MHA_ERR_SIZE, "too many");
    mha_random_tokens_free(&plan);
    mha_model_destroy(model);
    model = word_model(9); /* 3 words, twice */
    expect_ok(mha_study_create(context, model, NULL, &study));
    expect_ok(mha_study_begin_random(study));
    assert_null(mha_study_results(study)->random);
    assert_true(mha_study_results(study)->plan->how.block < MHA_RANDOM_LEAST_BLOCK);
    expect_error(mha_study_draw(study), MHA_ERR_ARGUMENT, "begin_random");
    mha_study_destroy(study);
    mha_model_destroy(model);
}

/* ---- maps ------------------------------------------------------------------------------------- */

static mha_maps maps_of(mha_model *model, mha_maps_desc *desc)
{
    mha_maps maps = MHA_INIT(mha_maps);
    desc->struct_size = sizeof *desc;
    expect_ok(mha_maps_run(context, model, desc, &maps));
    return maps;
}

/* Maps of blocks have the largest weights of complete maps, and a study in the same run does not
 * change them. */
static void maps_are_of_every_kind(void)
{
    mha_model *model = word_model(32);
    mha_tokens tokens = read(model, "the cat sat on the mat . a dog ran");
    const int64_t T = tokens.count, side = (T + 2) / 3;
    uint8_t on[L * H] = {[1] = 1};
    mha_study *study = NULL;
    bool measured = false;
    expect_ok(mha_study_create(context, model, NULL, &study));
    mha_maps whole = maps_of(model, &(mha_maps_desc){.tokens = &tokens, .flags = MHA_MAPS_TWINS}),
             also = maps_of(model, &(mha_maps_desc){.tokens = &tokens,
                                                    .flags = MHA_MAPS_NEURONS,
                                                    .study = study,
                                                    .measured = &measured,
                                                    .on = on}),
             blocks = maps_of(model, &(mha_maps_desc){.tokens = &tokens, .cell = 3}),
             one = maps_of(model, &(mha_maps_desc){.tokens = &tokens, .cell = INT64_MAX});
    assert_int_equal(one.rows.count, 1);
    assert_true(measured && whole.twin && also.queries && !also.twin);
    assert_int_equal(whole.flags, MHA_MAPS_SAME | MHA_MAPS_CAUSAL);
    assert_int_equal(mha_maps_count(&whole, 0), H);
    assert_int_equal(mha_maps_count(&also, 0), 1);
    assert_memory_equal(whole.layer[0] + T * T, also.layer[0] + T * T,
                        (size_t)(T * T) * sizeof(float));
    assert_int_equal(blocks.rows.count, side);
    assert_int_equal(blocks.tokens.count, T);
    assert_string_equal(blocks.rows.labels[1], "sat\u2026");
    for (int64_t i = 0; i < H * side * side; i++) {
        float most = 0;
        const int64_t h = i / side / side, r = i / side % side, c = i % side;
        for (int64_t t = 3 * r; t < T && t < 3 * r + 3; t++)
            for (int64_t k = 3 * c; k < T && k < 3 * c + 3; k++)
                if (whole.layer[1][(h * T + t) * T + k] > most)
                    most = whole.layer[1][(h * T + t) * T + k];
        assert_true(blocks.layer[1][i] == most);
    }
    /* Blocks have labels only. */
    assert_null(blocks.rows.ids);
    mha_buffer json = {0};
    const mha_sink sink = mha_buffer_sink(&json);
    expect_ok(mha_maps_write_json(&blocks, &sink));
    mha_buffer_free(&json);
    mha_study_destroy(study);
    mha_maps_free(&whole), mha_maps_free(&also), mha_maps_free(&blocks);
    mha_maps_free(&one);
    mha_maps_free(NULL);
    mha_tokens_free(&tokens);
    mha_model_destroy(model);
}

static void texts_are_subtracted(void)
{
    mha_model *model = word_model(32);
    mha_tokens text[] = {read(model, "the cat sat"), read(model, "the dog sat"),
                         read(model, "the cat")};
    mha_maps a = maps_of(model, &(mha_maps_desc){.tokens = &text[0]}),
             b = maps_of(model, &(mha_maps_desc){.tokens = &text[1]}),
             c = maps_of(model, &(mha_maps_desc){.tokens = &text[2]}),
             d = maps_of(model, &(mha_maps_desc){.tokens = &text[0], .cell = 2}),
             e = maps_of(model, &(mha_maps_desc){.tokens = &text[1], .on = (uint8_t[L * H]){1}});
    const float before = a.layer[1][5];
    mha_maps fewer = b;
    fewer.layers--;
    bool same = true;
    expect_error(mha_maps_subtract(&a, &c, NULL), MHA_ERR_SIZE, "the shorter one is a prefix");
    expect_error(mha_maps_subtract(&b, &c, NULL), MHA_ERR_SIZE, "first differ at token 2");
    expect_error(mha_maps_subtract(&a, &d, NULL), MHA_ERR_UNSUPPORTED, "blocks");
    expect_error(mha_maps_subtract(&a, &e, NULL), MHA_ERR_ARGUMENT, "none of layer 1");
    expect_error(mha_maps_subtract(&a, &fewer, NULL), MHA_ERR_ARGUMENT, "of one model");
    assert_true(a.layer[1][5] == before && !(a.flags & MHA_MAPS_CONTRAST));
    expect_ok(mha_maps_subtract(&a, &b, &same));
    assert_true(!same && a.flags & MHA_MAPS_CONTRAST);
    assert_true(a.layer[1][5] == before - b.layer[1][5]);
    assert_null(a.shown[1]);
    assert_string_equal(a.shown[2], "cat/dog");
    mha_maps_free(&a), mha_maps_free(&b), mha_maps_free(&c), mha_maps_free(&d);
    mha_maps_free(&e);
    for (int i = 0; i < 3; i++) mha_tokens_free(&text[i]);
    mha_model_destroy(model);
}

static void save_half(const char *folder, mha_transformer_desc d, uint64_t seed)
{
    const mha_checkpoint_settings s = {
        .struct_size = sizeof s, .words = words, .word_count = WORDS, .bos_word = "<s>"};
    const mha_transformer_init init = {.struct_size = sizeof init, .seed = seed};
    mha_transformer *t = NULL;
    d.struct_size = sizeof d;
    d.vocab_size = WORDS, d.max_length = 8, d.embed_dim = 12, d.num_layers = L, d.num_heads = H;
    d.ff_dim = 20;
    expect_ok(mha_transformer_create(context, &d, &t));
    expect_ok(mha_transformer_initialise(context, t, &init));
    expect_ok(mha_checkpoint_save(temp_path(folder), t, &s));
    mha_transformer_destroy(t);
}

/* A generation after a source equals steps of a decoder with the encoder's rows. */
static void generate_from(mha_model *model, const mha_tokens *source, const mha_tensor *memory,
                          const mha_tokens *target)
{
    mha_generation_desc desc = {.struct_size = sizeof desc,
                                .prompt = target->ids,
                                .prompt_count = target->count,
                                .max_tokens = 3,
                                .source = source->ids,
                                .source_count = source->count};
    const mha_decoder_desc how = {.struct_size = sizeof how, .memory_capacity = source->count};
    mha_generation *made = NULL;
    mha_decoder *decoder = NULL;
    mha_transformer_desc d;
    float logits[64 * 4];
    int32_t next = 0;
    mha_transformer_describe(mha_model_transformer(model), &d);
    expect_ok(mha_decoder_create(context, mha_model_transformer(model), &how, &decoder));
    expect_ok(mha_decoder_set_memory(context, decoder, memory, NULL));
    expect_ok(mha_generation_create(context, model, &desc, &made));
    for (int i = 0; i < 3; i++) {
        const int64_t n = i == 0 ? target->count : 1;
        mha_generation_step step = {.struct_size = sizeof step};
        const mha_tensor ids =
            mha_tensor_contiguous(i == 0 ? target->ids : &next, MHA_I32, 2, (int64_t[]){1, n});
        const mha_tensor out =
            mha_tensor_contiguous(logits, MHA_F32, 3, (int64_t[]){1, n, d.vocab_size});
        assert_true(n * d.vocab_size <= 64 * 4);
        expect_ok(mha_decoder_step(context, decoder, &ids, &out));
        expect_ok(mha_sample_token(context, NULL, 0, logits + (n - 1) * d.vocab_size, d.vocab_size,
                                   &next));
        expect_ok(mha_generation_next(context, made, &step));
        if (step.state != MHA_GENERATION_CONTINUES) break;
        assert_int_equal(step.token, next);
    }
    mha_decoder_destroy(decoder);
    mha_generation_destroy(made);
#define CREATE() mha_generation_create(context, model, &desc, &made)
    expect_spoiled(desc, CREATE(), MHA_ERR_ARGUMENT, "no source", desc.source_count = 0);
    expect_spoiled(desc, CREATE(), MHA_ERR_NULL, "source", desc.source = NULL);
    expect_spoiled(desc, CREATE(), MHA_ERR_ARGUMENT, "empty prompt", desc.prompt_count = 0);
#undef CREATE
    const mha_model *encoder = mha_model_encoder(model);
    assert_int_equal(mha_model_start_tokens(model, NULL), 0);
    assert_int_equal(mha_model_suppressed_tokens(encoder, true, NULL), 0);
}

/* The scores of an encoder-decoder are those of its maps [L,H,T,keys]. */
static void scores_of_towers(mha_model *model, const mha_tokens *target, const mha_tokens *source,
                             float *maps, uint32_t flags)
{
    const bool cross = flags & MHA_STUDY_CROSS;
    const mha_tokens *keys = cross ? source : target;
    const int64_t heads[L] = {H, H}, size = H * target->count * keys->count;
    int64_t ids[8], ranks[8];
    const mha_study_desc how = {.struct_size = sizeof how, .flags = flags};
    const mha_study_visit visit = {.struct_size = sizeof visit, .source = source};
    const mha_study_visit *visits[] = {&visit};
    mha_study *study = NULL;
    mha_head_measures *by_hand = NULL;
    expect_ok(mha_study_create(context, model, &how, &study));
    expect_ok(mha_study_measure(study, target, 1, visits, 3));
    const mha_study_found *found = mha_study_results(study);
    assert_null(found->random);
    assert_int_equal(found->token_count, keys->count);
    for (int64_t i = 0; i < keys->count; i++)
        ids[i] = keys->ids[i], ranks[i] = found->ranks[keys->ids[i]];
    const mha_head_measures_desc desc = {
        .struct_size = sizeof desc, .layers = L, .heads = heads, .rare_rank = 1};
    const mha_heads_text text = {.struct_size = sizeof text,
                                 .flags = cross ? MHA_HEADS_CROSS : MHA_HEADS_CAUSAL,
                                 .queries = target->count,
                                 .keys = keys->count,
                                 .ids = ids,
                                 .ranks = ranks,
                                 .separators = keys->separators,
                                 .special = keys->special,
                                 .segments = keys->sentences};
    expect_ok(mha_head_measures_create(context, &desc, &by_hand));
    expect_ok(mha_head_measures_begin(by_hand, &text));
    for (int64_t l = 0; l < L; l++) {
        const mha_tensor p = mha_tensor_contiguous(maps + l * size, MHA_F32, 3,
                                                   (int64_t[]){H, target->count, keys->count});
        expect_ok(mha_head_measures_rows(by_hand, l, 0, &p));
    }
    expect_ok(mha_head_measures_end(by_hand));
    for (int64_t i = 0; i < L * H; i++)
        for (int n = 0; n < MHA_MEASURES; n++) {
            const mha_head_score a = mha_study_score(found, i / H, i % H, n),
                                 b = mha_head_measures_score(by_hand, i / H, i % H,
                                                             (mha_head_measure)n);
            if (n == MHA_MEASURE_COSINE && !cross) continue; /* needs inputs, which maps lack */
            assert_true(a.value == b.value && a.chance == b.chance && a.rows == b.rows);
        }
    assert_int_equal(mha_study_score(found, 0, 0, MHA_MEASURE_LAST).rows > 0, cross);
    mha_head_measures_destroy(by_hand);
    mha_study_destroy(study);
}

static void study_misuse(mha_model *model, const mha_tokens *target, const mha_tokens *source)
{
    mha_study *study = NULL;
    const char *name = "a";
    const mha_study_state state = {.struct_size = sizeof state, .name = "x"};
    const mha_study_visit none = {.struct_size = sizeof none},
                          with = {.struct_size = sizeof with, .source = source};
    const mha_study_visit *visits[] = {&none};
    mha_study_desc how = {.struct_size = sizeof how, .flags = MHA_STUDY_CROSS};
#define CREATE(of) mha_study_create(context, of, &how, &study)
    expect_error(CREATE(mha_model_encoder(model)), MHA_ERR_UNSUPPORTED, "an encoder-decoder");
    expect_spoiled(how, CREATE(model), MHA_ERR_UNSUPPORTED, "no distances",
                   how.flags |= MHA_STUDY_DISTANCES);
    expect_spoiled(how, CREATE(model), MHA_ERR_UNSUPPORTED, "no gold links", how.relations = &name,
                   how.relation_count = 1);
    expect_spoiled(how, CREATE(model), MHA_ERR_UNSUPPORTED, "without a state", how.state = &state);
    expect_spoiled(how, CREATE(model), MHA_ERR_UNSUPPORTED, "with all layers",
                   how.flags = MHA_STUDY_OWN_LAYERS);
    expect_ok(CREATE(model));
    expect_error(mha_study_measure(study, target, 1, NULL, 0), MHA_ERR_ARGUMENT, "the source of");
    expect_error(mha_study_measure(study, target, 1, visits, 0), MHA_ERR_ARGUMENT, "the source of");
    mha_study_destroy(study);
    how.flags = 0;
    expect_ok(CREATE(mha_model_encoder(model)));
    visits[0] = &with;
    expect_error(mha_study_measure(study, source, 1, visits, 0), MHA_ERR_ARGUMENT,
                 "without an encoder");
    mha_study_destroy(study);
#undef CREATE
}

/* Compare rows of a trial with maps [L,H,T,keys]. */
static mha_status rows_are(void *user, int64_t layer, int64_t row, const mha_tensor *p)
{
    const float *map = (const float *)user + layer * p->shape[0] * p->shape[1] * p->shape[2];
    assert_int_equal(row, 0); /* one block */
    for (int64_t i = 0; i < p->shape[0] * p->shape[1]; i++)
        for (int64_t j = 0; j < p->shape[2]; j++) {
            const float *from = p->data;
            from += i / p->shape[1] * p->stride[0] + i % p->shape[1] * p->stride[1];
            assert_true(from[j * p->stride[2]] == map[i * p->shape[2] + j]);
        }
    return MHA_OK;
}

static void trials_of_towers(mha_model *model, const mha_tokens *target, const mha_tokens *source,
                             float *cross, float *self)
{
    const mha_transformer *net = mha_model_transformer(model),
                          *encoder = mha_model_transformer(mha_model_encoder(model));
    const mha_trial_head off = {0, 1};
    mha_trials *trials = NULL;
    mha_trial_next next;
    mha_trials_options how = {.struct_size = sizeof how, .most_bytes = 1e6};
    expect_error(mha_trials_create(context, net, &how, &trials), MHA_ERR_ARGUMENT,
                 "without an encoder");
    how.encoder = encoder;
    expect_error(mha_trials_create(context, encoder, &how, &trials), MHA_ERR_ARGUMENT,
                 "without cross-attention");
    for (int kept = 0; kept < 2; kept++) { /* rows of the run itself, and of kept queries */
        how.most_bytes = kept ? 1e6 : 0;
        expect_ok(mha_trials_create(context, net, &how, &trials));
        mha_trial run = {.struct_size = sizeof run,
                         .flags = MHA_TRIAL_CROSS,
                         .tokens = target->ids,
                         .count = target->count,
                         .source = source->ids,
                         .source_count = source->count};
        expect_ok(mha_trials_run(trials, &run, -1, rows_are, cross, NULL));
        run.flags = 0;
        expect_ok(mha_trials_run(trials, &run, -1, rows_are, self, NULL));
        for (int flags = 0; flags <= MHA_TRIAL_CROSS; flags += MHA_TRIAL_CROSS) {
            run.flags = (uint32_t)flags;
            run.off = &off, run.off_count = 1;
            expect_ok(mha_trials_predict(trials, &run, -1, &next));
            assert_true(next.changed && next.divergence > 0);
        }
        run.patched = &off, run.patched_count = 1, run.other = target->ids, run.other_count = 1;
        expect_error(mha_trials_run(trials, &run, -1, NULL, NULL, NULL), MHA_ERR_MODEL,
                     "but not patched");
        run.source = NULL;
        expect_error(mha_trials_run(trials, &run, -1, NULL, NULL, NULL), MHA_ERR_ARGUMENT,
                     "needs a source");
        mha_trials_destroy(trials);
    }
}

/* The cross-attention of an encoder-decoder's active heads equals two direct runs. */
static void maps_of_an_encoder_decoder(void)
{
    enum { T = 4, S = 3, E = 12 };
    static const uint8_t on[L * H] = {[1] = 1};
    static float stream[S * E], all[L * H * T * S];
    mha_model *model = NULL;
    assert_int_equal(mkdir(temp_path("two"), 0700), 0);
    save_half("two/encoder", (mha_transformer_desc){.flags = MHA_TRANSFORMER_NO_OUTPUT}, 1);
    save_half("two/decoder",
              (mha_transformer_desc){.flags = MHA_TRANSFORMER_CAUSAL | MHA_TRANSFORMER_CROSS}, 2);
    expect_ok(mha_model_load(context, temp_path("two"), NULL, &model));
    mha_tokens target = read(model, "the cat sat"),
               source = read(mha_model_encoder(model), "a dog");
    assert_int_equal(target.count, T);
    assert_int_equal(source.count, S);
    mha_maps_desc desc = {.tokens = &target, .source = &source, .on = on};
    mha_maps maps = maps_of(model, &desc);
    const mha_tensor ids[] = {mha_tensor_contiguous(target.ids, MHA_I32, 2, (int64_t[]){1, T}),
                              mha_tensor_contiguous(source.ids, MHA_I32, 2, (int64_t[]){1, S})};
    mha_tensor memory = mha_tensor_contiguous(stream, MHA_F32, 3, (int64_t[]){1, S, E}),
               cross = mha_tensor_contiguous(all, MHA_F32, 5, (int64_t[]){L, 1, H, T, S});
    const mha_transformer_input reads = {.struct_size = sizeof reads, .tokens = &ids[1]},
                                writes = {
                                    .struct_size = sizeof writes, .tokens = ids, .memory = &memory};
    expect_ok(mha_transformer_forward(context, mha_model_transformer(mha_model_encoder(model)),
                                      &reads, NULL, &memory, NULL, NULL));
    expect_ok(mha_transformer_forward(context, mha_model_transformer(model), &writes, NULL, NULL,
                                      NULL, &cross));
    assert_memory_equal(maps.layer[0] + T * S, all + T * S, T * S * sizeof *all);
    assert_null(maps.layer[1]);
    assert_int_equal(maps.cols.count, S);
    assert_int_equal(maps.flags, MHA_MAPS_CROSS);
    assert_string_equal(mha_maps_attention(&maps), "cross-attention");
    mha_maps_free(&maps);
    static float own[L * H * T * T];
    const mha_tensor self = mha_tensor_contiguous(own, MHA_F32, 5, (int64_t[]){L, 1, H, T, T});
    expect_ok(mha_transformer_forward(context, mha_model_transformer(model), &writes, NULL, NULL,
                                      &self, NULL));
    desc.flags = MHA_MAPS_SELF;
    maps = maps_of(model, &desc);
    assert_memory_equal(maps.layer[0] + T * T, own + T * T, T * T * sizeof *own);
    assert_int_equal(maps.cols.count, T);
    assert_int_equal(maps.flags, MHA_MAPS_SAME | MHA_MAPS_CAUSAL | MHA_MAPS_DECODER);
    assert_string_equal(mha_maps_attention(&maps), "decoder self-attention");
    mha_maps_free(&maps);
    scores_of_towers(model, &target, &source, all, MHA_STUDY_CROSS);
    scores_of_towers(model, &target, &source, own, 0);
    study_misuse(model, &target, &source);
    trials_of_towers(model, &target, &source, all, own);
    generate_from(model, &source, &memory, &target);
    desc.source = NULL;
    expect_error(mha_maps_run(context, model, &desc, &maps), MHA_ERR_UNSUPPORTED, "source");
    mha_tokens_free(&target), mha_tokens_free(&source);
    mha_model_destroy(model);
}

static void misuse_of_maps(void)
{
    mha_model *model = word_model(32);
    mha_tokens tokens = read(model, "the cat");
    mha_maps maps = MHA_INIT(mha_maps), none = {0};
    mha_desk desk = MHA_INIT(mha_desk);
    mha_maps_desc desc = {.struct_size = sizeof desc, .tokens = &tokens};
#define RUN() mha_maps_run(context, model, &desc, &maps)
    expect_error(mha_maps_run(context, model, &desc, &none), MHA_ERR_ARGUMENT, "struct_size");
    expect_spoiled(desc, RUN(), MHA_ERR_UNSUPPORTED, "unknown bits", desc.flags = 8);
    expect_spoiled(desc, RUN(), MHA_ERR_UNSUPPORTED, "no encoder-decoder", desc.source = &tokens);
    expect_spoiled(desc, RUN(), MHA_ERR_NULL, "tokens", desc.tokens = NULL);
    expect_error(mha_maps_subtract(&maps, NULL, NULL), MHA_ERR_NULL, "NULL");
    expect_error(mha_desk_measure(context, mha_model_transformer(model), &tokens, L, &desk),
                 MHA_ERR_ARGUMENT, "layer");
    expect_error(mha_desk_measure(context, NULL, &tokens, 0, &desk), MHA_ERR_NULL, "NULL");
    assert_null(desk.terms);
#undef RUN
    expect_ok(mha_maps_make(model, &desc, &maps));
    float zeros[H + 1] = {0};
    const mha_tensor p = mha_tensor_contiguous(zeros, MHA_F32, 3, (int64_t[]){H + 1, 1, 1});
    expect_error(mha_maps_add_rows(context, &maps, L, 0, &p), MHA_ERR_ARGUMENT, "layer is");
    expect_error(mha_maps_add_rows(context, &maps, -1, 0, &p), MHA_ERR_ARGUMENT, "layer is -1");
    expect_error(mha_maps_add_rows(context, &maps, 0, 0, &p), MHA_ERR_SHAPE, "heads, expected");
    maps.rows.count--;
    mha_show show;
    mha_buffer json = {0};
    const mha_sink sink = mha_buffer_sink(&json);
    expect_ok(mha_desk_measure(context, mha_model_transformer(model), &tokens, 0, &desk));
    expect_error(mha_desk_write_json(&desk, &maps, &sink), MHA_ERR_SHAPE, "rows, expected");
    expect_error(mha_show_desk(&desk, &maps, NULL, &show), MHA_ERR_SHAPE, "rows, expected");
    mha_buffer_free(&json);
    mha_maps_free(&maps);
    mha_desk_free(&desk);
    mha_tokens_free(&tokens);
    mha_model_destroy(model);
}

/* Terms sum to the next stream because this W_O has no bias, and every head has a card. */
static void heads_write_and_have_cards(void)
{
    mha_model *model = word_model(32);
    mha_tokens tokens = read(model, "the cat sat on the mat . a dog ran");
    mha_desk desk = MHA_INIT(mha_desk);
    mha_study *study = NULL;
    mha_cards cards;
    expect_ok(mha_desk_measure(context, mha_model_transformer(model), &tokens, 1, &desk));
    assert_int_equal(desk.heads, H);
    assert_int_equal(desk.tokens, tokens.count);
    for (int64_t i = 0; i < desk.tokens * desk.features; i++) {
        double sum = 0, size = 0;
        for (int64_t h = 0; h < H; h++) {
            const double term = (double)desk.terms[h * desk.tokens * desk.features + i];
            sum += term, size += fabs(term);
        }
        assert_true(fabs(sum - (double)desk.after[i]) <= 1e-6 * (1 + size));
    }
    double shares = 0;
    for (int64_t h = 0; h < H; h++) shares += mha_desk_share(&desk, h);
    assert_true(fabs(shares - 1) < 1e-6);
    expect_ok(mha_study_create(context, model, NULL, &study));
    expect_ok(mha_study_measure(study, &tokens, 1, NULL, 1));
    expect_ok(mha_cards_make(mha_study_results(study), &cards));
    assert_int_equal(cards.layers * cards.heads, L * H);
    for (int64_t i = 0; i < L * H; i++) {
        assert_int_equal(cards.roles[i].measure_count, MHA_CARD_MEASURES);
        assert_true(!cards.roles[i].badge || *cards.roles[i].badge);
        assert_non_null(cards.roles[i].does);
    }
    mha_cards_free(&cards), mha_cards_free(NULL);
    mha_study_destroy(study);
    mha_desk_free(&desk);
    mha_tokens_free(&tokens);
    mha_model_destroy(model);
}

RUN_TESTS_BETWEEN(context_and_folder_begin, context_and_folder_end,
                  TEST(words_have_places_and_sentences), TEST(limits_hold), TEST(pieces_of_a_pair),
                  TEST(a_text_grows), TEST(scores_are_those_of_maps_by_hand),
                  TEST(steps_are_the_whole), TEST(a_state_continues),
                  TEST(ranks_have_the_state_of_one_process), TEST(links_and_stops),
                  TEST(random_tokens_tell_induction), TEST(random_tokens_fit_the_model),
                  TEST(maps_are_of_every_kind), TEST(texts_are_subtracted),
                  TEST(maps_of_an_encoder_decoder), TEST(misuse_of_maps),
                  TEST(heads_write_and_have_cards))
