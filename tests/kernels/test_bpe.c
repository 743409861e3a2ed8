/* Internal tests of BPE: vocabularies in memory like in GGUF files, patterns, and merges compared
 * with the definition. */
#include "tokenizer/bpe.h"
#include "tokenizer/pattern.h"

#include <multihead/tokenizer.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/rng.h"
#include "support/suite.h"

/* ---- Vocabularies ---------------------------------------------------------------------------- */

enum { MOST = 400 };

typedef struct vocabulary {
    mhai_vocabulary_desc desc;
    mhai_text tokens[MOST], merges[MOST];
    int32_t types[MOST];
    float scores[MOST];
    char memory[MOST][24];
} vocabulary;

static int32_t add(vocabulary *v, const char *text, int32_t type, float score)
{
    const int32_t id = (int32_t)v->desc.count++;
    assert_true(id < MOST);
    snprintf(v->memory[id], sizeof v->memory[id], "%s", text);
    v->tokens[id] = (mhai_text){v->memory[id], strlen(v->memory[id])};
    v->types[id] = type;
    v->scores[id] = score;
    return id;
}

static void add_merge(vocabulary *v, const char *merge)
{
    v->merges[v->desc.merge_count++] = (mhai_text){merge, strlen(merge)};
}

static void begin(vocabulary *v, const char *model)
{
    memset(v, 0, sizeof *v);
    v->desc = (mhai_vocabulary_desc){.where = "a file", .model = model, .splitter = "gpt-2"};
    v->desc.tokens = v->tokens;
    v->desc.types = v->types;
    v->desc.scores = v->scores;
    v->desc.merges = v->merges;
    v->desc.bos_id = v->desc.eos_id = v->desc.unk_id = v->desc.pad_id = -1;
}

/* The letters of all bytes as tokens 0 to 255. */
static void begin_letters(vocabulary *v)
{
    begin(v, "gpt2");
    for (int byte = 0; byte < 256; byte++) {
        const int32_t letter = mhai_bpe_letter(byte);
        const char text[3] = {(char)(letter < 0x80 ? letter : 0xC0 | letter >> 6),
                              (char)(letter < 0x80 ? 0 : 0x80 | (letter & 0x3F)), 0};
        assert_int_equal(mhai_bpe_byte(letter), byte);
        assert_int_equal(add(v, text, MHAI_TOKEN_NORMAL, 0), byte);
    }
}

/* Adds results of merges of lower-case letters, and two tokens that no merge produces. */
static void begin_bytes(vocabulary *v)
{
    begin_letters(v);
    const char *const merges[] = {"t h", "th e", "\xC4\xA0 the", "1 2", "a a", "aa aa", "i n"};
    const char *const made[] = {"th", "the", "\xC4\xA0the", "12", "aa", "aaaa", "in"};
    for (int i = 0; i < 7; i++) {
        add(v, made[i], MHAI_TOKEN_NORMAL, 0);
        add_merge(v, merges[i]);
    }
    v->desc.bos_id = add(v, "<|bos|>", MHAI_TOKEN_CONTROL, 0);
    add(v, "user", MHAI_TOKEN_USER_DEFINED, 0);
    add(v, "xyz", MHAI_TOKEN_NORMAL, 0); /* no merge produces this */
}

static void begin_pieces(vocabulary *v)
{
    begin(v, "llama");
    v->desc.unk_id = add(v, "<unk>", MHAI_TOKEN_UNKNOWN, 0);
    v->desc.bos_id = add(v, "<s>", MHAI_TOKEN_CONTROL, 0);
    v->desc.eos_id = add(v, "</s>", MHAI_TOKEN_CONTROL, 0);
    for (int byte = 0; byte < 256; byte++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)byte);
        add(v, text, MHAI_TOKEN_BYTE, 0);
    }
    const char *const pieces[] = {"\xE2\x96\x81t",
                                  "he",
                                  "\xE2\x96\x81the",
                                  "in",
                                  "er",
                                  "\xE2\x96\x81",
                                  "t",
                                  "h",
                                  "e",
                                  "i",
                                  "n",
                                  "r",
                                  "ab",
                                  "bc",
                                  "a",
                                  "b",
                                  "c"};
    for (int i = 0; i < 17; i++) add(v, pieces[i], MHAI_TOKEN_NORMAL, (float)-i);
}

static mha_tokenizer *make(const vocabulary *v)
{
    mha_tokenizer *t = NULL;
    if (mhai_tokenizer_make(&v->desc, NULL, &t) != MHA_OK) fail_msg("%s", mha_error_detail());
    return t;
}

/* The tokens as one line, with their texts. */
static void print_tokens(const mha_tokenizer *t, const char *text, char line[1024])
{
    line[0] = '\0';
    mha_encoding e = {.struct_size = sizeof e};
    if (mha_tokenizer_encode(t, NULL, text, strlen(text), NULL, 0, &e) != MHA_OK)
        fail_msg("%s: %s", text, mha_error_detail());
    for (int64_t i = 0; i < e.count; i++) {
        if (i > 0) strcat(line, " ");
        strcat(line, mha_tokenizer_token(t, e.ids[i]));
    }
    mha_encoding_free(&e);
}

static void expect_tokens(const mha_tokenizer *t, const char *text, const char *want)
{
    char line[1024];
    print_tokens(t, text, line);
    assert_string_equal(line, want);
}

static void expect_bytes(const mha_tokenizer *t, const char *token, const char *want, size_t count,
                         int special)
{
    const char *bytes = NULL;
    size_t got = 0;
    int is_special = -1;
    assert_int_equal(
        mha_tokenizer_token_bytes(t, mha_tokenizer_id(t, token), &bytes, &got, &is_special),
        MHA_OK);
    assert_int_equal(got, count);
    assert_memory_equal(bytes, want, count);
    assert_int_equal(is_special, special);
}

static void test_byte_level(void)
{
    vocabulary v;
    begin_bytes(&v);
    mha_tokenizer *t = make(&v);
    mha_tokenizer_info info = {.struct_size = sizeof info};
    assert_int_equal(mha_tokenizer_describe(t, &info), MHA_OK);
    assert_int_equal(info.kind, MHA_TOKENIZER_BYTE_BPE);
    assert_int_equal(info.bos_id, v.desc.bos_id);
    assert_int_equal(info.unk_id, -1);
    assert_int_equal(info.vocab_size, v.desc.count);
    expect_tokens(t, "in the", "in \xC4\xA0the");
    expect_tokens(t, "aaaaa a", "aaaa a \xC4\xA0 a");
    expect_tokens(t, "xyz", "x y z");
    expect_tokens(t, "123<|bos|>users", "12 3 <|bos|> user s");
    expect_tokens(t, "\xC3\xA9\n", "\xC3\x83 \xC2\xA9 \xC4\x8A");
    expect_bytes(t, "\xC4\xA0the", " the", 4, 0);
    expect_bytes(t, "\xC3\x83", "\xC3", 1, 0);
    expect_bytes(t, "<|bos|>", "<|bos|>", 7, 1);
    expect_bytes(t, "user", "user", 4, 0);
    mha_tokenizer_destroy(t);

    v.desc.splitter = "smollm";
    v.desc.add_bos = true;
    t = make(&v);
    expect_tokens(t, "123 12", "<|bos|> 1 2 3 \xC4\xA0 1 2");
    mha_tokenizer_destroy(t);
    v.desc.splitter = "qwen2";
    t = make(&v);
    expect_tokens(t, "e\xCC\x81 the", "<|bos|> \xC3\x83 \xC2\xA9 \xC4\xA0the");
    mha_tokenizer_destroy(t);
    v.desc.splitter = "llama-bpe";
    t = make(&v);
    expect_tokens(t, "1212 the", "<|bos|> 12 1 2 \xC4\xA0the");
    expect_tokens(t, "xyz xyz", "<|bos|> xyz \xC4\xA0 x y z");
    mha_tokenizer_destroy(t);
}

static void refuse(const vocabulary *v, mha_status status, const char *part)
{
    mha_tokenizer *t = NULL;
    expect_error(mhai_tokenizer_make(&v->desc, NULL, &t), status, part);
    assert_null(t);
}

/* Alternative names of a splitter give the same tokens. */
static void test_names_of_splitters(void)
{
    static const char *const pairs[][2] = {
        {"phi-2", "gpt-2"},        {"mpt", "gpt-2"},      {"olmo", "gpt-2"},
        {"starcoder", "smollm"},   {"exaone", "smollm"},  {"llama3", "llama-bpe"},
        {"llama-v3", "llama-bpe"}, {"lfm2", "llama-bpe"}, {"deepseek-r1-qwen", "qwen2"},
        {"megrez", "qwen2"}};
    static const char *const texts[] = {"in the  the\n\n xyz 12345 aaaa",
                                        "IN'S don't\r\n 1212 ,.! caf\xC3\xA9\t the"};
    static const char *const none[] = {"", " ", "gpt", "gpt-2 phi-2", "gpt-22", "-2"};
    vocabulary v;
    begin_bytes(&v);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        v.desc.splitter = pairs[i][0];
        mha_tokenizer *other = make(&v);
        v.desc.splitter = pairs[i][1];
        mha_tokenizer *known = make(&v);
        for (int k = 0; k < 2; k++) {
            char line[1024];
            print_tokens(known, texts[k], line);
            expect_tokens(other, texts[k], line);
        }
        mha_tokenizer_destroy(other);
        mha_tokenizer_destroy(known);
        assert_int_equal(mhai_splitter_adds_bos(pairs[i][0]), mhai_splitter_adds_bos(pairs[i][1]));
    }
    assert_true(mhai_splitter_adds_bos("llama3") && !mhai_splitter_adds_bos("olmo"));
    /* tokenizer.json composes characters in GPT-NeoX (also in MPT and OLMo), in Qwen 2, and in
     * DeepSeek-R1's distilled Qwen 2 models. The files of GPT-2 and Llama 3 do not. */
    static const char *const composing[] = {"mpt",   "olmo",     "qwen2", "deepseek-r1-qwen",
                                            "gpt-2", "llama-bpe"};
    for (size_t i = 0; i < sizeof composing / sizeof composing[0]; i++) {
        v.desc.splitter = composing[i];
        mha_tokenizer *t = make(&v);
        expect_tokens(t, "e\xCC\x81", i < 4 ? "\xC3\x83 \xC2\xA9" : "e \xC3\x8C \xC4\xA3");
        mha_tokenizer_destroy(t);
    }
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        v.desc.splitter = none[i];
        refuse(&v, MHA_ERR_UNSUPPORTED, "is not supported; gpt-2, mpt");
    }
}

static void test_pieces(void)
{
    vocabulary v;
    begin_pieces(&v);
    v.desc.add_bos = v.desc.add_space_prefix = true;
    mha_tokenizer *t = make(&v);
    expect_tokens(t, "the  in", "<s> \xE2\x96\x81the \xE2\x96\x81 \xE2\x96\x81 in");
    expect_tokens(t, "in</s>abc", "<s> \xE2\x96\x81 in </s> \xE2\x96\x81 ab c");
    expect_tokens(t, "\xC3\xA9\n", "<s> \xE2\x96\x81 <0xC3> <0xA9> <0x0A>");
    expect_bytes(t, "\xE2\x96\x81the", " the", 4, 0);
    expect_bytes(t, "<0x0A>", "\n", 1, 0);
    expect_bytes(t, "<s>", "<s>", 3, 1);
    const char *bytes = NULL;
    size_t count = 0;
    expect_error(mha_tokenizer_token_bytes(t, -1, &bytes, &count, NULL), MHA_ERR_ARGUMENT, "id -1");
    expect_error(mha_tokenizer_token_bytes(t, 276, &bytes, &count, NULL), MHA_ERR_ARGUMENT,
                 "0 to 275");
    expect_error(mha_tokenizer_token_bytes(t, 0, NULL, &count, NULL), MHA_ERR_NULL, "NULL");
    const int32_t above = mha_tokenizer_id(t, "bc");
    mha_tokenizer_destroy(t);
    v.scores[above] = 1; /* better than "ab" */
    v.desc.add_bos = v.desc.add_space_prefix = false;
    v.desc.add_eos = true;
    t = make(&v);
    expect_tokens(t, "abc", "a bc </s>");
    mha_tokenizer_destroy(t);
}

static void test_refuses_vocabularies(void)
{
    vocabulary v;
    begin_bytes(&v);
    v.desc.model = "rwkv";
    refuse(&v, MHA_ERR_UNSUPPORTED, "tokenizer 'rwkv' is not supported, gpt2, llama, t5 and");
    v.desc.model = NULL;
    refuse(&v, MHA_ERR_UNSUPPORTED, "tokenizer 'none'");
    begin_bytes(&v);
    v.desc.splitter = "viking";
    refuse(&v, MHA_ERR_UNSUPPORTED, "pre-tokenizer 'viking' is not supported; gpt-2, mpt, smollm,");
    refuse(&v, MHA_ERR_UNSUPPORTED, ", gpt-4o, tekken and their other names are");
    begin_bytes(&v);
    add_merge(&v, "x y");
    refuse(&v, MHA_ERR_MODEL, "merge 8: 'xy' is not in the vocabulary");
    begin_bytes(&v);
    add_merge(&v, "nothing");
    refuse(&v, MHA_ERR_FORMAT, "merge 8 must be two tokens");
    begin_bytes(&v);
    v.desc.eos_id = 5000;
    refuse(&v, MHA_ERR_MODEL, "eos_id is 5000");
    begin_bytes(&v);
    v.desc.add_eos = true;
    refuse(&v, MHA_ERR_MODEL, "not named");
    begin_bytes(&v);
    v.types[3] = 7;
    refuse(&v, MHA_ERR_UNSUPPORTED, "token 3 is of type 7");
    begin_bytes(&v);
    v.tokens[40] = (mhai_text){"a\0b", 3};
    refuse(&v, MHA_ERR_FORMAT, "token 40 holds a zero byte");
    v.tokens[40] = (mhai_text){"\xFF", 1};
    refuse(&v, MHA_ERR_UTF8, "token 40: byte 0");
    v.tokens[40] = v.tokens[41];
    refuse(&v, MHA_ERR_FORMAT, "occurs twice, with ids");
    v.desc.count = 0;
    refuse(&v, MHA_ERR_MODEL, "0 tokens");
    begin_pieces(&v);
    v.desc.scores = NULL;
    refuse(&v, MHA_ERR_MODEL, "without scores");
    begin_pieces(&v);
    v.scores[270] = NAN;
    refuse(&v, MHA_ERR_MODEL, "score of token 270");
    begin_pieces(&v);
    v.tokens[10] = (mhai_text){"zz", 2};
    refuse(&v, MHA_ERR_MODEL, "there is no '<0x07>'");
}

/* ---- Merges and the definition --------------------------------------------------------------- */

/* Repeatedly merges the best pair, or the leftmost of equal pairs. */
static int64_t merge_plainly(const vocabulary *v, int32_t *ids, int64_t count)
{
    for (;;) {
        int64_t best = -1, place = -1;
        for (int64_t i = 0; i + 1 < count; i++)
            for (int64_t m = 0; m < v->desc.merge_count && (best < 0 || m < best); m++) {
                char pair[64];
                snprintf(pair, sizeof pair, "%s %s", v->memory[ids[i]], v->memory[ids[i + 1]]);
                if (strcmp(pair, v->merges[m].text) != 0) continue;
                best = m;
                place = i;
            }
        if (place < 0) return count;
        ids[place] = 256 + (int32_t)best;
        memmove(&ids[place + 1], &ids[place + 2], sizeof *ids * (size_t)(count - place - 2));
        count--;
    }
}

static void test_merging(void)
{
    const uint64_t cases = (uint64_t)rng_cases(300, 3000);
    for (uint64_t stream = 0; stream < cases; stream++) {
        rng r = rng_make(rng_run_seed(), stream);
        vocabulary v;
        static char merges[MOST][24];
        begin_letters(&v);
        for (int tries = 0; tries < 40 && v.desc.merge_count < 20; tries++) {
            /* merges of a, b, c and earlier results */
            int32_t part[2];
            char made[24];
            for (int i = 0; i < 2; i++) {
                const int64_t pick = rng_between(&r, 0, 2 + v.desc.merge_count);
                part[i] = (int32_t)(pick < 3 ? 'a' + pick : 256 + pick - 3);
            }
            if (strlen(v.memory[part[0]]) + strlen(v.memory[part[1]]) > 10) continue;
            snprintf(made, sizeof made, "%.10s%.10s", v.memory[part[0]], v.memory[part[1]]);
            bool there = false;
            for (int64_t i = 0; i < v.desc.count; i++) there |= strcmp(v.memory[i], made) == 0;
            if (there) continue;
            char *merge = merges[v.desc.merge_count];
            snprintf(merge, sizeof merges[0], "%.10s %.10s", v.memory[part[0]], v.memory[part[1]]);
            add(&v, made, MHAI_TOKEN_NORMAL, 0);
            add_merge(&v, merge);
        }
        mha_tokenizer *t = make(&v);
        for (int texts = 0; texts < 20; texts++) {
            char text[60];
            int32_t want[60];
            const int64_t size = rng_between(&r, 1, 60);
            for (int64_t i = 0; i < size; i++) want[i] = text[i] = (char)rng_between(&r, 'a', 'c');
            const int64_t count = merge_plainly(&v, want, size);
            mha_encoding e = {.struct_size = sizeof e};
            assert_int_equal(mha_tokenizer_encode(t, NULL, text, (size_t)size, NULL, 0, &e),
                             MHA_OK);
            assert_int_equal(e.count, count);
            assert_memory_equal(e.ids, want, sizeof *want * (size_t)count);
            for (int64_t i = 0; i < count; i++) {
                assert_int_equal(e.begin[i], i > 0 ? e.end[i - 1] : 0);
                assert_int_equal(e.end[i] - e.begin[i], strlen(v.memory[want[i]]));
            }
            mha_encoding_free(&e);
        }
        mha_tokenizer_destroy(t);
    }
}

/* ---- Patterns -------------------------------------------------------------------------------- */

static void test_patterns(void)
{
    static const char *const refused[] = {
        "\\w+", "a\\b", "^a", "a$", "\\p{Han}", "\\p{L&}", "\\pL", "\\p{", "[a&&b]", "[]a]",
        "(?>a)", "(?i)a", "(*ANY)a", "a{,3}", "a{2}+", "\\h", "a|b*", "\\x41", "\\1", "a\\",
        "(?P<n>a)",
        /* patterns that Oniguruma interprets differently: no or two repetitions, "\u00DF" for "ss",
         * classes of other cases */
        "a{2}?", "a**", "a+{2}", "a{1001}", "a{99999999999}", "(?i:ss)", "(?i:a(?:Fi))",
        "(?i:[\xC3\x9F])", "(?i:\xC3\xA9)", "(?i:\\p{Lu})"};
    const mha_allocator allocator = mhai_vector_allocator((mha_allocator){0});
    mhai_pattern *pattern = NULL;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        expect_error(
            mhai_pattern_make(&allocator, "here", refused[i], strlen(refused[i]), false, &pattern),
            MHA_ERR_UNSUPPORTED, "is not supported");
    expect_error(mhai_pattern_make(&allocator, "here", "(a", 2, false, &pattern), MHA_ERR_FORMAT,
                 "here: pattern '(a': at byte 2");
    assert_null(pattern);
    assert_int_equal(mhai_pattern_make(&allocator, "here", mhai_gpt2_pattern,
                                       strlen(mhai_gpt2_pattern), false, &pattern),
                     MHA_OK);
    mhai_pattern_free(pattern);
    mhai_pattern_free(NULL);
    static const char *const taken[] = {"(?:(?i:s)|a)ss", "(?i:'s|'t|'ll)+?x{2,}?",
                                        "[(?C)*]++\\)\\+"};
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++) {
        assert_int_equal(
            mhai_pattern_make(&allocator, "here", taken[i], strlen(taken[i]), false, &pattern),
            MHA_OK);
        mhai_pattern_free(pattern);
    }
}

/* All matches in a text; *steps is the number of steps. */
static mha_status match_all(const char *pattern, const char *unit, size_t count, uint64_t *steps)
{
    const mha_allocator allocator = mhai_vector_allocator((mha_allocator){0});
    mhai_pattern *made = NULL;
    mhai_matcher m;
    const size_t size = strlen(unit), bytes = size * count;
    char *text = malloc(bytes);
    assert_non_null(text);
    for (size_t i = 0; i < count; i++) memcpy(text + i * size, unit, size);
    if (mhai_pattern_make(&allocator, "here", pattern, strlen(pattern), false, &made) != MHA_OK)
        fail_msg("%s", mha_error_detail());
    assert_int_equal(mhai_matcher_make(&allocator, &m), MHA_OK);
    mha_status status = mhai_matcher_text(&m, text, 0, bytes);
    for (size_t at = 0, from = 0; status == MHA_OK && at < bytes;)
        status = mhai_matcher_next(&m, made, 0, at, bytes, &from, &at);
    *steps = m.steps;
    mhai_matcher_free(&m);
    mhai_pattern_free(made);
    free(text);
    return status;
}

#define QWEN                                                                  \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|" \
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* For the patterns of models, steps grow linearly with the text. Other patterns fail with an
 * error. */
static void test_steps(void)
{
    static const char *const known[] = {
        mhai_gpt2_pattern, QWEN,
        "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*"
        "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
        "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+"
        "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|" QWEN};
    static const char *const units[] = {"a",          "A",    "Aa",          " ",
                                        "\n",         "\r\n", " \n",         "1",
                                        "'",          "'s",   "a ",          "\xF0\x9F\x91\x8D",
                                        "\t",         " a",   "\xCC\x81",    "\xC3\xA9",
                                        "A\xCC\x81 ", "! \n", "\xE4\xB8\x80"};
    static const char *const hostile[][2] = {
        {"(?:a|b)+[cd]", "a"},
        {"\\p{L}++\\d", "a"},
        {"(?=\\p{L}+)\\d|x", "a"},
        {"\\s+\\S\\d", " "},
        {"(?:a+)+[bc]", "a"},
        {"(?<=a)(?:a|aa|aaa)+[bc]", "a"},
        {"(?:a+?b?)+[cd]", "a"},
        {"(?!\\p{L}+\\d).\\d", "a"},
        {"a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?[bc]", "a"},
        {"(?:a|a){16}[bc]", "aaaaaaaaaaaaaaac"},
        {"(?:b|(?:a|a){16})[cd]", "aaaaaaaaaaaaaaae"},
        {"(?:a(?:a|a)){2,}[bc]", "aa"},
        {"(?:a|a)(?:a|a)(?:a|a)(?:a|a)(?:a|a)(?:a|a)(?:a|a)(?:a|a)[bc]", "a"}};
    const size_t count = rng_whole_sample() ? 20000 : 4000;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        for (size_t k = 0; k < 3; k++) {
            uint64_t steps = 0;
            assert_int_equal(match_all(known[k], units[i], count, &steps), MHA_OK);
            if (steps > 850 * count * strlen(units[i]))
                fail_msg("pattern %zu, '%s': %llu steps", k, units[i], (unsigned long long)steps);
        }
    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++) {
        const uint64_t times = 7000 / strlen(hostile[i][1]), bytes = times * strlen(hostile[i][1]);
        uint64_t steps = 0;
        expect_error(match_all(hostile[i][0], hostile[i][1], times, &steps), MHA_ERR_SIZE,
                     "here: the pattern '");
        assert_true(steps <= 100000 + 3000 * bytes + bytes + 50); /* plus one callout */
    }
}

/* ---- Allocation failures
 * ---------------------------------------------------------------------- */

static void test_out_of_memory(void)
{
    static const char text[] =
        "in the user 123 e\xCC\x81 aaaaaaaaaaaaaaaaaaaaaaaaaaaaa <|bos|> the";
    for (int which = 0; which < 2; which++) {
        vocabulary v;
        failing_alloc allocs = failing_alloc_make();
        mha_tokenizer_options options = {.struct_size = sizeof options};
        options.allocator = failing_alloc_interface(&allocs);
        mha_tokenizer *t = NULL;
        mha_encoding e = {.struct_size = sizeof e};
        which ? begin_pieces(&v) : begin_bytes(&v);
        v.desc.splitter = "qwen2";
        mha_status status = MHA_ERR_NOMEM;
        for (allocs.fail_at = 0; status != MHA_OK; allocs.fail_at++) {
            allocs.calls = 0;
            status = mhai_tokenizer_make(&v.desc, &options, &t);
            assert_true(status == MHA_OK || status == MHA_ERR_NOMEM);
            assert_true(status == MHA_OK || allocs.live == 0);
        }
        assert_true(allocs.fail_at > 10);
        const int64_t live = allocs.live;
        status = MHA_ERR_NOMEM;
        for (allocs.fail_at = 0; status != MHA_OK; allocs.fail_at++) {
            allocs.calls = 0;
            status = mha_tokenizer_encode(t, NULL, text, sizeof text - 1, NULL, 0, &e);
            assert_true(status == MHA_OK || (status == MHA_ERR_NOMEM && allocs.live == live));
        }
        assert_true(allocs.fail_at > 10 && e.count > 10);
        mha_encoding_free(&e);
        mha_tokenizer_destroy(t);
        assert_int_equal(allocs.live, 0);
        assert_int_equal(allocs.mistakes, 0);
    }
}

RUN_TESTS(TEST(test_byte_level), TEST(test_names_of_splitters), TEST(test_pieces),
          TEST(test_refuses_vocabularies), TEST(test_merging), TEST(test_patterns),
          TEST(test_steps), TEST(test_out_of_memory))
