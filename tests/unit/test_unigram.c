/* Unigram tokenizers: ties, unknown characters, charsmaps, hostile folders, allocation failures, and
 * random models compared with every way to write a text. */
#include <multihead/tokenizer.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/rng.h"
#include "support/suite.h"
#include "support/temp_files.h"

static const char steps[] =
    "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKD\"},{\"type\":\"Lowercase\"},"
    "{\"type\":\"StripAccents\"},{\"type\":\"Strip\",\"strip_left\":false,\"strip_right\":true}]}";
static const char words[] =
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"WhitespaceSplit\"},"
    "{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\",\"prepend_scheme\":\"always\","
    "\"split\":true}]}";

/* Write tokenizer.json and return its folder. "null" is no step. */
static const char *folder_of(const char *model, const char *normalizer, const char *pre)
{
    char json[16384];
    const int size =
        snprintf(json, sizeof json,
                 "{\"added_tokens\":[],\"normalizer\":%s,\"pre_tokenizer\":%s,\"model\":{"
                 "\"type\":\"Unigram\",%s}}",
                 normalizer, pre, model);
    assert_true(size > 0 && size < (int)sizeof json);
    temp_write("tokenizer.json", json, (size_t)size);
    return temp_path(".");
}

static mha_tokenizer *load(const char *model, const char *normalizer, const char *pre)
{
    mha_tokenizer *tokenizer = NULL;
    const mha_status status =
        mha_tokenizer_load(folder_of(model, normalizer, pre), NULL, &tokenizer);
    if (status != MHA_OK) fail_msg("%s: %s", model, mha_error_detail());
    return tokenizer;
}

/* The tokens as one line, with their places: "a:0-1 b:1-2". */
static void expect_tokens(const mha_tokenizer *t, const char *text, const char *want)
{
    char line[1024] = "";
    mha_encoding e = {.struct_size = sizeof e};
    expect_ok(mha_tokenizer_encode(t, NULL, text, strlen(text), NULL, 0, &e));
    for (int64_t i = 0; i < e.count; i++) {
        const size_t used = strlen(line);
        snprintf(line + used, sizeof line - used, "%s%s:%d-%d", i ? " " : "",
                 mha_tokenizer_token(t, e.ids[i]), (int)e.begin[i], (int)e.end[i]);
    }
    mha_encoding_free(&e);
    assert_string_equal(line, want);
}

#define SMALL \
    "\"unk_id\":0,\"vocab\":[[\"?\",0],[\"a\",-1],[\"b\",-1],[\"ab\",-2],[\"aa\",-2],[\"xx\",-9]]"

/* Of equal sums, that whose last piece begins first wins. */
static void test_ties(void)
{
    mha_tokenizer *t = load(SMALL, "null", "null");
    mha_tokenizer_info info = {.struct_size = sizeof info};
    expect_ok(mha_tokenizer_describe(t, &info));
    assert_int_equal(info.kind, MHA_TOKENIZER_UNIGRAM);
    expect_tokens(t, "ab", "ab:0-2");
    expect_tokens(t, "aab", "a:0-1 ab:1-3");
    expect_tokens(t, "aaa", "a:0-1 aa:1-3");
    expect_tokens(t, "", "");
    mha_tokenizer_destroy(t);
    t = load("\"unk_id\":0,\"vocab\":[[\"?\",0],[\"a\",-1],[\"b\",-1],[\"ab\",-2.5]]", "null",
             "null");
    expect_tokens(t, "ab", "a:0-1 b:1-2");
    mha_tokenizer_destroy(t);
}

/* Unknown characters fuse, and fused ones may spell a piece. */
static void test_unknown(void)
{
    mha_tokenizer *t = load(SMALL, "null", "null");
    expect_tokens(t, "y", "?:0-1");
    expect_tokens(t,
                  "\xC3\xA9y\xF0\x9F\x91\x8D"
                  "a",
                  "?:0-7 a:7-8");
    expect_tokens(t, "xx", "xx:0-2");
    expect_tokens(t, "xxx", "?:0-1 xx:1-3");
    expect_tokens(t, "?", "?:0-1");
    mha_tokenizer_destroy(t);
    /* 'x' costs 11 with its piece and 22 without: two of them fuse into "xx". */
    t = load("\"unk_id\":0,\"vocab\":[[\"?\",0],[\"xx\",-60]]", "null", "null");
    expect_tokens(t, "xx", "xx:0-2");
    mha_tokenizer_destroy(t);
    t = load("\"unk_id\":0,\"byte_fallback\":true,\"vocab\":[[\"?\",0],[\"a\",-1],[\"<0xC3>\",-1],"
             "[\"<0xA9>\",-1]]",
             "null", "null");
    expect_tokens(t, "a\xC3\xA9", "a:0-1 <0xC3>:1-3 <0xA9>:1-3");
    expect_tokens(t, "a\xC3\xA9y", "a:0-1 ?:1-4"); /* there is no <0x79> */
    mha_tokenizer_destroy(t);
}

static void test_steps(void)
{
    mha_tokenizer *t = load("\"unk_id\":0,\"vocab\":[[\"?\",0],[\"\xE2\x96\x81\",-1],[\"a\",-1],"
                            "[\"f\",-1],[\"i\",-1],[\"\xE2\x96\x81"
                            "fi\",-1]]",
                            steps, words);
    expect_tokens(t, "\xEF\xAC\x81  \xC3\x84 ",
                  "\xE2\x96\x81"
                  "fi:0-3 \xE2\x96\x81:5-7 a:5-7");
    expect_tokens(t,
                  "i\xCC\x81\xCC\xA3"
                  "a",
                  "\xE2\x96\x81:0-1 i:0-1 a:5-6");
    const char *bytes = NULL;
    size_t count = 0;
    expect_ok(mha_tokenizer_token_bytes(t, 5, &bytes, &count, NULL));
    assert_true(count == 3 && memcmp(bytes, " fi", 3) == 0);
    mha_encoding e = {.struct_size = sizeof e};
    expect_error(mha_tokenizer_encode(t, NULL, "a\xC3", 2, NULL, 0, &e), MHA_ERR_UTF8, "byte 1");
    mha_tokenizer_destroy(t);
}

/* ---- Hostile folders ------------------------------------------------------------------------- */

static void refuse(const char *model, const char *normalizer, mha_status status, const char *text)
{
    mha_tokenizer *t = NULL;
    expect_error(mha_tokenizer_load(folder_of(model, normalizer, "null"), NULL, &t), status, text);
}

static void test_hostile(void)
{
    refuse("\"vocab\":[[\"a\",0]]", "null", MHA_ERR_UNSUPPORTED, "without unk_id");
    refuse("\"unk_id\":1,\"vocab\":[[\"a\",0]]", "null", MHA_ERR_MODEL, "unk_id is 1");
    refuse("\"unk_id\":0,\"vocab\":[[\"a\",1e999]]", "null", MHA_ERR_FORMAT, "json");
    refuse("\"unk_id\":0,\"vocab\":[[\"a\",null]]", "null", MHA_ERR_FORMAT, "entry 0");
    refuse("\"unk_id\":0,\"vocab\":[[\"a\"]]", "null", MHA_ERR_FORMAT, "entry 0");
    refuse("\"unk_id\":0,\"vocab\":[[0,0]]", "null", MHA_ERR_FORMAT, "entry 0");
    refuse("\"unk_id\":0,\"vocab\":[]", "null", MHA_ERR_FORMAT, "empty");
    refuse("\"unk_id\":0,\"vocab\":{}", "null", MHA_ERR_FORMAT, "list");
    refuse("\"unk_id\":0,\"vocab\":[[\"a\",0],[\"a\",0]]", "null", MHA_ERR_FORMAT, "twice");
    static const char *const maps[] = {"A",        "AAA=",     "====", "AAAA",
                                       "AAAAAA==", "BAAAAAAA", "!!!!", "AAAAA==="};
    for (size_t i = 0; i < sizeof maps / sizeof maps[0]; i++) {
        char map[128];
        snprintf(map, sizeof map, "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"%s\"}",
                 maps[i]);
        refuse(SMALL, map, MHA_ERR_FORMAT, "precompiled_charsmap");
    }
    /* Empty pieces only take up ids. */
    mha_tokenizer *t =
        load("\"unk_id\":0,\"vocab\":[[\"?\",0],[\"\",5],[\"a\",-1]]", "null", "null");
    expect_tokens(t, "aa", "a:0-1 a:1-2");
    mha_tokenizer_destroy(t);
    /* The map of one unit whose children are outside it. */
    t = load(SMALL, "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"BAAAAAD8AAA=\"}", "null");
    expect_tokens(t, "ab\xCC\x81", "ab:0-2 ?:2-4");
    mha_tokenizer_destroy(t);
}

/* ---- Random models --------------------------------------------------------------------------- */

enum { PIECES = 12, LETTERS = 9 };

typedef struct random_model {
    char pieces[PIECES][6];
    int scores[PIECES]; /* small integers, so sums are exact */
    int count, unknown; /* score of an unknown character */
    char json[1024];
} random_model;

static void fill(rng *r, char *text, int64_t size, int64_t letters)
{
    for (int64_t i = 0; i < size; i++) text[i] = (char)('a' + rng_between(r, 0, letters - 1));
    text[size] = '\0';
}

static void make_random(rng *r, random_model *m)
{
    *m = (random_model){.pieces = {"?"}, .scores = {-3}, .count = 1, .unknown = -13};
    snprintf(m->json, sizeof m->json, "\"unk_id\":0,\"vocab\":[[\"?\",-3]");
    for (int i = 1; i < PIECES; i++) {
        char *piece = m->pieces[m->count];
        bool twice = false;
        fill(r, piece, rng_between(r, 1, 4), 3);
        for (int k = 0; k < m->count; k++) twice |= strcmp(m->pieces[k], piece) == 0;
        if (twice) continue;
        const int score = (int)rng_between(r, -9, -1), least = score - 10;
        const size_t used = strlen(m->json);
        m->scores[m->count++] = score;
        if (least < m->unknown) m->unknown = least;
        snprintf(m->json + used, sizeof m->json - used, ",[\"%s\",%d]", piece, score);
    }
    strcat(m->json, "]");
}

/* The largest sum of any way to write the rest of a text, by trying all. */
static int best(const random_model *m, const char *text)
{
    int most = INT_MIN;
    bool alone = false;
    if (!*text) return 0;
    for (int i = 1; i < m->count; i++) {
        const size_t size = strlen(m->pieces[i]);
        if (strncmp(text, m->pieces[i], size) != 0) continue;
        const int sum = m->scores[i] + best(m, text + size);
        alone |= size == 1;
        if (sum > most) most = sum;
    }
    const int sum = alone ? most : m->unknown + best(m, text + 1);
    return sum > most ? sum : most;
}

/* The sum of an encoding. No fused unknown characters spell a piece here: a piece of such characters
 * would have been better. */
static int sum_of(const random_model *m, const mha_encoding *e)
{
    int sum = 0;
    for (int64_t i = 0; i < e->count; i++) {
        const int unknown = (int)(e->end[i] - e->begin[i]) * m->unknown;
        sum += e->ids[i] > 0 ? m->scores[e->ids[i]] : unknown;
    }
    return sum;
}

static void test_largest_sums(void)
{
    rng r = rng_make(rng_run_seed(), 1);
    for (int turn = rng_cases(150, 3000); turn > 0; turn--) {
        random_model m;
        char text[LETTERS + 1] = "";
        make_random(&r, &m);
        fill(&r, text, rng_between(&r, 0, LETTERS), 4);
        mha_tokenizer *t = load(m.json, "null", "null");
        mha_encoding e = {.struct_size = sizeof e};
        expect_ok(mha_tokenizer_encode(t, NULL, text, strlen(text), NULL, 0, &e));
        const int sum = sum_of(&m, &e), want = best(&m, text);
        if (sum != want) fail_msg("'%s' of %s: %d, the best is %d", text, m.json, sum, want);
        mha_encoding_free(&e);
        mha_tokenizer_destroy(t);
    }
}

/* ---- Allocation failures --------------------------------------------------------------------- */

static void test_out_of_memory(void)
{
    failing_alloc allocs = failing_alloc_make();
    mha_tokenizer_options options = {.struct_size = sizeof options,
                                     .allocator = failing_alloc_interface(&allocs)};
    static const char map[] =
        "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKD\"},"
        "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"BAAAAAAAAABhAA==\"}]}";
    const char *folder = folder_of(SMALL, map, words);
    mha_tokenizer *t = NULL;
    int64_t failures = 0;
    for (allocs.fail_at = 0;; allocs.fail_at++, failures++) {
        allocs.calls = 0;
        const mha_status status = mha_tokenizer_load(folder, &options, &t);
        if (status == MHA_OK) break;
        assert_int_equal(status, MHA_ERR_NOMEM);
        assert_int_equal(allocs.live, 0);
    }
    assert_true(failures > 8);
    mha_encoding e = {.struct_size = sizeof e};
    for (allocs.fail_at = 0, failures = 0;; allocs.fail_at++, failures++) {
        const int64_t live = allocs.live;
        static const char text[] = "ab \xC3\xA9 aab xx b";
        allocs.calls = 0;
        const mha_status status = mha_tokenizer_encode(t, NULL, text, strlen(text), NULL, 0, &e);
        if (status == MHA_OK) break;
        assert_int_equal(status, MHA_ERR_NOMEM);
        assert_int_equal(allocs.live, live);
    }
    assert_true(failures > 8);
    mha_encoding_free(&e);
    mha_tokenizer_destroy(t);
    assert_true(allocs.live == 0 && allocs.mistakes == 0);
}

RUN_TESTS_BETWEEN(temp_begin, temp_end, TEST(test_ties), TEST(test_unknown), TEST(test_steps),
                  TEST(test_hostile), TEST(test_largest_sums), TEST(test_out_of_memory))
