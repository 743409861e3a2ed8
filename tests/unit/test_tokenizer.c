/* The tokenizer: Hugging Face's results (tests/golden/tokenizer), hostile folders and texts, allocation failures, and
 * properties of random texts. */
#include <multihead/tokenizer.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/rng.h"
#include "support/suite.h"
#include "support/temp_files.h"

static const char golden[] = "tests/golden/tokenizer";

static mha_tokenizer *load(const char *folder)
{
    mha_tokenizer *tokenizer = NULL;
    const mha_status status = mha_tokenizer_load(folder, NULL, &tokenizer);
    if (status != MHA_OK) fail_msg("%s: %s", folder, mha_error_detail());
    return tokenizer;
}

static mha_tokenizer *load_golden(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", golden, name);
    return load(path);
}

static mha_encoding encode(const mha_tokenizer *tokenizer, const char *text, const char *pair)
{
    mha_encoding e = {.struct_size = sizeof e};
    const mha_status status = mha_tokenizer_encode(tokenizer, NULL, text, strlen(text), pair,
                                                   pair ? strlen(pair) : 0, &e);
    if (status != MHA_OK) fail_msg("%s: %s", text, mha_error_detail());
    return e;
}

/* The tokens as one line: "[CLS] a ##b [SEP]". */
static void expect_tokens(const mha_tokenizer *tokenizer, const char *text, const char *want)
{
    char line[4096] = "";
    mha_encoding e = encode(tokenizer, text, NULL);
    for (int64_t i = 0; i < e.count; i++) {
        if (i > 0) strcat(line, " ");
        strcat(line, mha_tokenizer_token(tokenizer, e.ids[i]));
    }
    mha_encoding_free(&e);
    assert_string_equal(line, want);
}

/* ------------------------------------------------------------------------------------------------
 * Results of Hugging Face's tokenizer
 * --------------------------------------------------------------------------------------------- */

/* Decodes %XX in place and returns the number of bytes. A single '%' is the empty text. */
static size_t unescape(char *text)
{
    char *to = text;
    for (const char *from = text; *from; from++) {
        unsigned byte = 0;
        if (*from == '%' && sscanf(from + 1, "%2X", &byte) == 1) {
            *to++ = (char)byte;
            from += 2;
        } else if (*from != '%') {
            *to++ = *from;
        }
    }
    return (size_t)(to - text);
}

static char *next_field(char **line)
{
    char *field = *line, *tab = strchr(field, '\t');
    if (tab) {
        *tab = '\0';
        *line = tab + 1;
    } else {
        *line = field + strlen(field);
    }
    return field;
}

static void compare(const mha_encoding *e, const char *want, int number)
{
    for (int64_t i = 0; i < e->count; i++) {
        int id, type, special, used = 0;
        long long begin, end;
        if (sscanf(want, "%d,%d,%lld,%lld,%d%n", &id, &type, &begin, &end, &special, &used) != 5)
            fail_msg("line %d: %lld tokens, want fewer", number, (long long)e->count);
        want += used;
        while (*want == ' ') want++;
        if (e->ids[i] != id || e->type_ids[i] != type || e->begin[i] != begin || e->end[i] != end ||
            e->special[i] != special || e->sequence[i] != (special ? -1 : type))
            fail_msg("line %d, token %lld: %d,%d,%lld,%lld,%d, want %d,%d,%lld,%lld,%d", number,
                     (long long)i, e->ids[i], e->type_ids[i], (long long)e->begin[i],
                     (long long)e->end[i], e->special[i], id, type, begin, end, special);
    }
    if (*want) fail_msg("line %d: too few tokens, next: %.20s", number, want);
}

static void run_case(const mha_tokenizer *tokenizer, char *line, int number)
{
    char *text = next_field(&line), *pair = next_field(&line);
    mha_encode_options options = {.struct_size = sizeof options};
    options.max_length = atoi(next_field(&line));
    options.truncation = (mha_truncation)atoi(next_field(&line));
    const bool paired = strcmp(pair, "-") != 0;
    const size_t text_bytes = unescape(text), pair_bytes = paired ? unescape(pair) : 0;
    mha_encoding e = {.struct_size = sizeof e};
    const mha_status status = mha_tokenizer_encode(tokenizer, &options, text, text_bytes,
                                                   paired ? pair : NULL, pair_bytes, &e);
    if (strcmp(line, "error") == 0) {
        assert_int_equal(status, MHA_ERR_SIZE);
        return;
    }
    if (status != MHA_OK) fail_msg("line %d: %s", number, mha_error_detail());
    compare(&e, line, number);
    mha_encoding_free(&e);
}

static void test_golden(void)
{
    char *file = temp_read("tests/golden/tokenizer/cases.tsv", NULL), *line = file;
    mha_tokenizer *tokenizer = NULL;
    char loaded[16] = "";
    int number = 0, cases = 0;
    while (*line) {
        char *end = strchr(line, '\n');
        assert_non_null(end);
        *end = '\0';
        number++;
        if (*line != '#') {
            const char *folder = next_field(&line);
            if (strcmp(folder, loaded) != 0) {
                mha_tokenizer_destroy(tokenizer);
                tokenizer = load_golden(folder);
                snprintf(loaded, sizeof loaded, "%s", folder);
            }
            run_case(tokenizer, line, number);
            cases++;
        }
        line = end + 1;
    }
    mha_tokenizer_destroy(tokenizer);
    free(file);
    assert_int_equal(cases, 198);
}

static void test_describe(void)
{
    mha_tokenizer *tokenizer = load_golden("uncased");
    mha_tokenizer_info info = {.struct_size = sizeof info};
    expect_ok(mha_tokenizer_describe(tokenizer, &info));
    assert_int_equal(info.pad_id, 0);
    assert_int_equal(info.unk_id, 1);
    assert_int_equal(info.cls_id, 2);
    assert_int_equal(info.sep_id, 3);
    assert_int_equal(info.mask_id, 4);
    assert_int_equal(info.max_length, 512);
    assert_true(info.lowercase && info.strip_accents && info.clean_text);
    assert_true(info.handle_chinese_chars && info.kind == MHA_TOKENIZER_WORDPIECE);
    assert_true(info.bos_id == -1 && info.eos_id == -1);
    for (int32_t id = 0; id < info.vocab_size; id++)
        assert_int_equal(mha_tokenizer_id(tokenizer, mha_tokenizer_token(tokenizer, id)), id);
    assert_null(mha_tokenizer_token(tokenizer, -1));
    assert_null(mha_tokenizer_token(tokenizer, (int32_t)info.vocab_size));
    assert_null(mha_tokenizer_token(tokenizer, INT32_MAX));
    assert_int_equal(mha_tokenizer_id(tokenizer, "no such token"), -1);
    assert_int_equal(mha_tokenizer_id(tokenizer, ""), -1);
    assert_int_equal(mha_tokenizer_id(tokenizer, NULL), -1);
    mha_tokenizer_destroy(tokenizer);

    tokenizer = load_golden("added");
    expect_ok(mha_tokenizer_describe(tokenizer, &info));
    assert_int_equal(info.max_length, 0); /* 1e30 means unknown */
    assert_false(info.clean_text);
    assert_string_equal(mha_tokenizer_token(tokenizer, (int32_t)info.vocab_size - 1), "<ent>");
    assert_int_equal(mha_tokenizer_id(tokenizer, "<ent>"), info.vocab_size - 1);
    mha_tokenizer_destroy(tokenizer);
    mha_tokenizer_destroy(NULL);
}

static void test_words(void)
{
    mha_tokenizer *tokenizer = load_golden("uncased");
    mha_words w = {.struct_size = sizeof w};
    const char text[] = " Caf\xC3\xA9, \xE4\xBD\xA0x";
    expect_ok(mha_tokenizer_words(tokenizer, text, strlen(text), &w));
    assert_string_equal(w.text, " cafe,  \xE4\xBD\xA0 x");
    assert_int_equal(w.text_bytes, strlen(w.text));
    const int64_t want[4][4] = {{1, 5, 1, 6}, {5, 6, 6, 7}, {8, 11, 8, 11}, {12, 13, 11, 12}};
    assert_int_equal(w.count, 4);
    for (int i = 0; i < 4; i++) {
        const int64_t got[4] = {w.from[i], w.to[i], w.begin[i], w.end[i]};
        assert_memory_equal(got, want[i], sizeof got);
    }
    mha_words_free(&w);
    assert_null(w.memory);
    expect_ok(mha_tokenizer_words(tokenizer, NULL, 0, &w));
    assert_int_equal(w.count, 0);
    assert_string_equal(w.text, "");
    mha_words_free(&w);
    mha_words_free(&w);
    mha_words_free(NULL);
    mha_tokenizer_destroy(tokenizer);
}

/* ------------------------------------------------------------------------------------------------
 * Arguments
 * --------------------------------------------------------------------------------------------- */

static void test_arguments(void)
{
    mha_tokenizer *t = load_golden("uncased"), *other = NULL;
    mha_encoding e = {.struct_size = sizeof e}, small = {.struct_size = sizeof e - 1};
    mha_words w = {.struct_size = 3};
    mha_encode_options o = {.struct_size = sizeof o};
    mha_tokenizer_info info = {0};
    expect_error(mha_tokenizer_encode(NULL, NULL, "a", 1, NULL, 0, &e), MHA_ERR_NULL,
                 "tokenizer is NULL");
    expect_error(mha_tokenizer_encode(t, NULL, NULL, 1, NULL, 0, &e), MHA_ERR_NULL, "text is NULL");
    expect_error(mha_tokenizer_encode(t, NULL, "a", 1, NULL, 1, &e), MHA_ERR_NULL, "pair is NULL");
    expect_error(mha_tokenizer_encode(t, NULL, "a", 1, NULL, 0, NULL), MHA_ERR_NULL,
                 "encoding is NULL");
    expect_error(mha_tokenizer_encode(t, NULL, "a", 1, NULL, 0, &small), MHA_ERR_ARGUMENT,
                 "sizeof(mha_encoding)");
    expect_error(mha_tokenizer_words(t, "a", 1, &w), MHA_ERR_ARGUMENT, "sizeof(mha_words)");
    expect_error(mha_tokenizer_words(t, NULL, 1, &w), MHA_ERR_NULL, "text is NULL");
    expect_error(mha_tokenizer_describe(t, &info), MHA_ERR_ARGUMENT, "mha_tokenizer_info");
    expect_error(mha_tokenizer_describe(t, NULL), MHA_ERR_NULL, "NULL");
    expect_error(mha_tokenizer_load(NULL, NULL, &other), MHA_ERR_NULL, "NULL");
    expect_error(mha_tokenizer_load(".", NULL, NULL), MHA_ERR_NULL, "NULL");
    o.flags = 4;
    expect_error(mha_tokenizer_encode(t, &o, "a", 1, NULL, 0, &e), MHA_ERR_ARGUMENT, "flags 0x4");
    o.flags = 0;
    o.max_length = -1;
    expect_error(mha_tokenizer_encode(t, &o, "a", 1, NULL, 0, &e), MHA_ERR_ARGUMENT, "-1");
    o.max_length = 2;
    expect_error(mha_tokenizer_encode(t, &o, "a", 1, "", 0, &e), MHA_ERR_ARGUMENT, "alone are 3");
    expect_error(mha_tokenizer_encode(t, &o, "a", 1, NULL, 0, &e), MHA_ERR_SIZE, "3 tokens");
    expect_error(mha_tokenizer_encode(t, &o, "a b c d e f g", 13, NULL, 0, &e), MHA_ERR_SIZE,
                 "at least 5 tokens"); /* tokens beyond the limit are not counted */
    o.truncation = (mha_truncation)4;
    expect_error(mha_tokenizer_encode(t, &o, "a", 1, NULL, 0, &e), MHA_ERR_ARGUMENT, "truncation");
    o.truncation = MHA_TRUNCATE_NEVER;
    o.reserved = 1;
    expect_error(mha_tokenizer_encode(t, &o, "a", 1, NULL, 0, &e), MHA_ERR_ARGUMENT, "reserved");
    struct {
        mha_encode_options known;
        uint64_t unknown;
    } future = {{.struct_size = sizeof future}, 0};
    expect_ok(mha_tokenizer_encode(t, &future.known, "a", 1, NULL, 0, &e));
    mha_encoding_free(&e);
    future.unknown = 1;
    expect_error(mha_tokenizer_encode(t, &future.known, "a", 1, NULL, 0, &e), MHA_ERR_UNSUPPORTED,
                 "is set");
    mha_tokenizer_options half = {.struct_size = sizeof half};
    failing_alloc allocs = failing_alloc_make();
    half.allocator = failing_alloc_interface(&allocs);
    half.allocator.release = NULL;
    expect_error(mha_tokenizer_load(golden, &half, &other), MHA_ERR_ARGUMENT, "neither");
    assert_null(other);
    assert_null(e.memory);
    mha_encoding_free(NULL);
    mha_tokenizer_destroy(t);
}

static void test_options(void)
{
    mha_tokenizer *t = load_golden("uncased");
    mha_encoding e = {.struct_size = sizeof e};
    mha_encode_options o = {.struct_size = sizeof o, .flags = MHA_ENCODE_NO_SPECIAL};
    expect_ok(mha_tokenizer_encode(t, &o, "a", 1, "b c", 3, &e));
    assert_int_equal(e.count, 3);
    assert_int_equal(e.type_ids[2], 1);
    mha_encoding_free(&e);
    expect_ok(mha_tokenizer_encode(t, &o, NULL, 0, NULL, 0, &e));
    assert_int_equal(e.count, 0);
    mha_encoding_free(&e);
    o = (mha_encode_options){.struct_size = sizeof o, .max_length = 5};
    o.truncation = MHA_TRUNCATE_LONGEST_FIRST;
    expect_ok(mha_tokenizer_encode(t, &o, "a b c d", 7, "e f g", 5, &e));
    assert_int_equal(e.count, 5);
    assert_int_equal(e.dropped[0], 3);
    assert_int_equal(e.dropped[1], 2);
    mha_encoding_free(&e);
    for (int stop = 0; stop < 2; stop++) {
        o.flags = stop ? MHA_ENCODE_STOP : 0;
        expect_ok(mha_tokenizer_encode(t, &o, "a b c d e f g h i", 17, NULL, 0, &e));
        assert_int_equal(e.count, 5);
        assert_int_equal(e.dropped[0], stop ? 3 : 6);
        mha_encoding_free(&e);
    }
    assert_int_equal(e.struct_size, sizeof e);
    expect_ok(mha_tokenizer_encode(t, NULL, NULL, 0, "", 0, &e));
    assert_int_equal(e.count, 3);
    mha_encoding_free(&e);
    mha_tokenizer_destroy(t);
}

static void test_invalid_utf8(void)
{
    static const struct {
        const char *text, *offset;
    } cases[] = {{"\x80", "byte 0 "},         {"abc\xFF", "byte 3 "},
                 {"\xC3", "byte 0 "},         {"\xC3\x28", "byte 0 "},
                 {"\xC0\x80", "byte 0 "},     {"a\xED\xA0\x80", "byte 1 "},
                 {"\xE0\x80\x80", "byte 0 "}, {"\xF4\x90\x80\x80", "byte 0 "},
                 {"\xE4\xBD", "byte 0 "},     {"\xF0\x9F\x98\x80\xF0\x9F\x98", "byte 4 "}};
    mha_tokenizer *t = load_golden("uncased");
    mha_encoding e = {.struct_size = sizeof e};
    mha_words w = {.struct_size = sizeof w};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *text = cases[i].text;
        const size_t n = strlen(text);
        expect_error(mha_tokenizer_encode(t, NULL, text, n, NULL, 0, &e), MHA_ERR_UTF8,
                     cases[i].offset);
        expect_error(mha_tokenizer_encode(t, NULL, "a", 1, text, n, &e), MHA_ERR_UTF8, "second");
        expect_error(mha_tokenizer_words(t, text, n, &w), MHA_ERR_UTF8, cases[i].offset);
    }
    assert_null(e.memory);
    mha_tokenizer_destroy(t);
}

/* ------------------------------------------------------------------------------------------------
 * Hostile folders
 * --------------------------------------------------------------------------------------------- */

#define FIVE "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"
#define NORMALIZER "\"normalizer\":{\"type\":\"BertNormalizer\"},"
#define SPLITTER "\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},"
#define VOCAB "\"[PAD]\":0,\"[UNK]\":1,\"[CLS]\":2,\"[SEP]\":3,\"a\":4"
#define MODEL(vocab) \
    "\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"[UNK]\",\"vocab\":{" vocab "}}"
#define JSON(before, vocab) "{" NORMALIZER SPLITTER before MODEL(vocab) "}"

static const char *folder_of(const char *vocab, const char *json, const char *config)
{
    static const char *const names[] = {"vocab.txt", "tokenizer.json", "tokenizer_config.json"};
    const char *contents[] = {vocab, json, config};
    for (int i = 0; i < 3; i++)
        if (contents[i])
            temp_write(names[i], contents[i], strlen(contents[i]));
        else
            remove(temp_path(names[i]));
    return temp_path(".");
}

static void refuse(const char *vocab, const char *json, const char *config, mha_status status,
                   const char *part)
{
    mha_tokenizer *tokenizer = NULL;
    expect_error(mha_tokenizer_load(folder_of(vocab, json, config), NULL, &tokenizer), status,
                 part);
    assert_null(tokenizer);
}

static void test_refuses_vocabularies(void)
{
    refuse(NULL, NULL, NULL, MHA_ERR_FILE, "neither vocab.txt nor tokenizer.json");
    refuse("", NULL, NULL, MHA_ERR_FORMAT, "empty");
    refuse(FIVE "a\nb\na\n", NULL, NULL, MHA_ERR_FORMAT, "'a' occurs twice, with ids");
    refuse("[PAD]\n[CLS]\n[SEP]\na\n", NULL, NULL, MHA_ERR_MODEL, "no '[UNK]'");
    refuse("[PAD]\n[UNK]\n[SEP]\na\n", NULL, NULL, MHA_ERR_MODEL, "no '[CLS]'");
    refuse("[UNK]\n[CLS]\n", NULL, NULL, MHA_ERR_MODEL, "no '[SEP]'");
    refuse("\n\n\n", NULL, NULL, MHA_ERR_MODEL, "no '[UNK]'");
    refuse(FIVE "a\xFF\n", NULL, NULL, MHA_ERR_UTF8, "vocab.txt: byte 32");
    temp_write("vocab.txt", FIVE "a\0b\n", sizeof FIVE + 3);
    mha_tokenizer *tokenizer = NULL;
    expect_error(mha_tokenizer_load(temp_path("."), NULL, &tokenizer), MHA_ERR_FORMAT,
                 "byte 32 is a zero byte");
    expect_error(mha_tokenizer_load(temp_path("nowhere"), NULL, &tokenizer), MHA_ERR_FILE,
                 "neither");
    expect_error(mha_tokenizer_load(temp_path("vocab.txt"), NULL, &tokenizer), MHA_ERR_FILE,
                 "neither");
    remove(temp_path("vocab.txt"));
    temp_write("vocab.txt/x", "x", 1); /* vocab.txt is a folder */
    expect_error(mha_tokenizer_load(temp_path("."), NULL, &tokenizer), MHA_ERR_FILE, "a folder");
    remove(temp_path("vocab.txt/x"));
    remove(temp_path("vocab.txt"));
}

static void test_refuses_json(void)
{
    const mha_status bad = MHA_ERR_FORMAT, other = MHA_ERR_UNSUPPORTED, model = MHA_ERR_MODEL;
    refuse(NULL, "{", NULL, bad, "malformed JSON at byte");
    refuse(NULL, "[]", NULL, bad, "a list, expected a JSON object");
    refuse(NULL, "{\"a\":1,\"a\":2}", NULL, bad, "duplicate");
    refuse(NULL, "{}", NULL, other, "model is 'nothing'");
    refuse(NULL, "{\"model\":{\"type\":\"WordLevel\"}}", NULL, other, "model is 'WordLevel'");
    refuse(NULL, "{\"model\":{\"type\":7}}", NULL, other, "only WordPiece, BPE");
    refuse(NULL, "{\"model\":[]}", NULL, other, "model is 'a list'");
    refuse(NULL, "{" MODEL(VOCAB) "}", NULL, other, "normalizer is 'nothing'");
    refuse(NULL, "{\"normalizer\":{\"type\":\"Sequence\"}," MODEL(VOCAB) "}", NULL, other,
           "normalizer is 'Sequence'");
    refuse(NULL, "{\"normalizer\":{\"type\":\"BertNormalizer\",\"lowercase\":3}," MODEL(VOCAB) "}",
           NULL, bad, "lowercase must be true, false or null");
    refuse(NULL, "{" NORMALIZER "\"pre_tokenizer\":{\"type\":\"ByteLevel\"}," MODEL(VOCAB) "}",
           NULL, other, "pre_tokenizer is 'ByteLevel'");
    refuse(NULL, JSON("\"post_processor\":{\"type\":\"Roberta\"},", VOCAB), NULL, other,
           "post_processor is 'Roberta'");
    refuse(NULL, JSON("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[]},", VOCAB),
           NULL, other, "another template");
    refuse(NULL,
           JSON("\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"[CLS]\",1],"
                "\"sep\":[\"[SEP]\",3]},",
                VOCAB),
           NULL, model, "'[CLS]' the id 1, in the vocabulary it has 2");
    refuse(NULL, JSON("\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"x\",1]},", VOCAB),
           NULL, model, "no '[CLS]' as its cls");
    refuse(NULL, JSON("", ""), NULL, bad, "empty");
    refuse(NULL, JSON("", VOCAB ",\"b\":6"), NULL, model, "'b' has id 6");
    refuse(NULL, JSON("", VOCAB ",\"b\":4"), NULL, model, "both have id 4");
    refuse(NULL, JSON("", VOCAB ",\"b\":-1"), NULL, bad, "integer from 0");
    refuse(NULL, JSON("", VOCAB ",\"b\":4.5"), NULL, bad, "integer from 0");
    refuse(NULL, JSON("", VOCAB ",\"b\":99999999999999999999999"), NULL, bad, "integer from 0");
    refuse(NULL, JSON("", VOCAB ",\"b\":\"5\""), NULL, bad, "integer from 0");
    refuse(NULL, JSON("", VOCAB ",\"b\\u0000\":5"), NULL, bad, "malformed JSON");
    refuse(NULL, JSON("", VOCAB ",\"b\xFF\":5"), NULL, bad, "malformed JSON");
    refuse(NULL, JSON("", "\"[CLS]\":0,\"[SEP]\":1"), NULL, model, "no '[UNK]'");
    refuse(NULL, JSON("", VOCAB), "{\"do_lower_case\":false}", model, "lowercase contradicts");
    refuse(NULL, JSON("", VOCAB), "{\"strip_accents\":false}", model, "strip_accents contradicts");
    refuse(NULL, JSON("", VOCAB), "{\"unk_token\":\"<unk>\"}", model, "unk_token is '[UNK]'");
    refuse(FIVE, JSON("", VOCAB), NULL, model, "line 5 is '[MASK]', but tokenizer.json has 'a'");
    refuse("[PAD]\n", JSON("", VOCAB), NULL, model, "1 tokens, but tokenizer.json has 5");
}

static void test_refuses_settings(void)
{
    const mha_status bad = MHA_ERR_FORMAT, other = MHA_ERR_UNSUPPORTED, model = MHA_ERR_MODEL;
    refuse(FIVE, NULL, "{\"tokenizer_class\":\"GPT2Tokenizer\"}", other, "'GPT2Tokenizer'");
    refuse(FIVE, NULL, "{\"tokenizer_class\":7}", other, "a number");
    refuse(FIVE, NULL, "{\"tokenizer_class\":\"PreTrainedTokenizerFast\"}", model, "needs token");
    refuse(FIVE, NULL, "{\"do_lower_case\":\"yes\"}", bad, "do_lower_case must be");
    refuse(FIVE, NULL, "{\"model_max_length\":\"long\"}", bad, "model_max_length");
    refuse(FIVE, NULL, "{\"model_max_length\":0}", bad, "model_max_length");
    refuse(FIVE, NULL, "{\"split_special_tokens\":true}", other, "split_special_tokens");
    refuse(FIVE, NULL, "{\"sep_token\":[]}", bad, "sep_token must be a text");
    refuse(FIVE, NULL, "{\"sep_token\":\"\"}", bad, "not empty");
    refuse(FIVE, NULL, "{\"sep_token\":\"<sep>\"}", model, "no '<sep>'");
    refuse(FIVE, NULL, "{\"mask_token\":{\"content\":\"[MASK]\",\"lstrip\":1}}", bad,
           "lstrip must be true, false or null");
    refuse(FIVE, NULL, "{\"additional_special_tokens\":[\"<x>\"]}", model,
           "'<x>' is not in the vocabulary");
    refuse(FIVE, NULL, "{\"extra_special_tokens\":{\"x\":\"<x>\"}}", model, "'<x>' is not in");
    refuse(FIVE, NULL, "{\"added_tokens_decoder\":{\"x\":{\"content\":\"y\"}}}", bad, "not an id");
    refuse(FIVE, NULL, "{\"added_tokens_decoder\":{\"5\":{}}}", bad, "must be a text");
    refuse(FIVE, NULL, "{\"added_tokens_decoder\":{\"5\":\"y\"}}", bad, "must be an object");
    refuse(FIVE, NULL, "{\"added_tokens_decoder\":{\"6\":{\"content\":\"y\"}}}", model, "has id 6");
    refuse(FIVE, NULL, "{\"added_tokens_decoder\":{\"0\":{\"content\":\"[UNK]\"}}}", model,
           "id 0, in the vocabulary it has 1");
    refuse(FIVE, NULL,
           "{\"added_tokens_decoder\":{\"5\":{\"content\":\"y\"},\"6\":{\"content\":\"Y\"}}}",
           other, "the same once they are normalized");
    refuse(FIVE, NULL, "{\"added_tokens_decoder\":{\"5\":{\"content\":\"\\u0301\"}}}", other,
           "0 bytes");
    temp_write("special_tokens_map.json", "{\"sep_token\":\"x\"}", 17);
    refuse(FIVE, NULL, "{\"sep_token\":\"[SEP]\"}", model, "sep_token is 'x', but '[SEP]'");
    remove(temp_path("special_tokens_map.json"));
    temp_write("added_tokens.json", "{\"x\":5}", 7);
    refuse(FIVE, NULL, NULL, other, "added_tokens.json is not supported");
    remove(temp_path("added_tokens.json"));
    mha_tokenizer *t = load(folder_of(FIVE, NULL, NULL)); /* the unchanged vocabulary */
    mha_tokenizer_destroy(t);
    t = load(folder_of(NULL, JSON("", VOCAB), NULL));
    mha_tokenizer_destroy(t);
}

/* Line ends, spaces, a missing mask token, and tokens that can never match. */
static void test_odd_vocabularies(void)
{
    mha_tokenizer *t =
        load(folder_of("[UNK]\r\n[CLS] \t\r\n[SEP]\xC2\xA0\r\n\r\nab\r\n\n##c", NULL, NULL));
    mha_tokenizer_info info = {.struct_size = sizeof info};
    expect_ok(mha_tokenizer_describe(t, &info));
    assert_int_equal(info.vocab_size, 7);
    assert_int_equal(info.mask_id, -1);
    assert_int_equal(info.pad_id, -1);
    assert_string_equal(mha_tokenizer_token(t, 3), "");
    expect_tokens(t, "abc ab abd ABCC", "[CLS] ab ##c ab [UNK] ab ##c ##c [SEP]");
    expect_tokens(t, "[MASK]", "[CLS] [UNK] [UNK] [UNK] [SEP]");
    mha_tokenizer_destroy(t);
}

/* A line of 10 MB, and tokens with long common prefixes. */
static void test_long_lines(void)
{
    const size_t long_line = (size_t)10 << 20, size = sizeof FIVE - 1 + long_line + 6;
    char *vocab = malloc(size + 1);
    assert_non_null(vocab);
    strcpy(vocab, FIVE);
    memset(vocab + sizeof FIVE - 1, 'a', long_line);
    strcpy(vocab + sizeof FIVE - 1 + long_line, "\na\naa\n");
    remove(temp_path("tokenizer_config.json"));
    temp_write("vocab.txt", vocab, size);
    free(vocab);
    mha_tokenizer *t = load(temp_path("."));
    expect_tokens(t, "a aa aaa", "[CLS] a aa [UNK] [SEP]");
    assert_int_equal(strlen(mha_tokenizer_token(t, 5)), long_line);
    mha_tokenizer_destroy(t);
}

/* ------------------------------------------------------------------------------------------------
 * Texts of any kind
 * --------------------------------------------------------------------------------------------- */

/* Invariants for every text. */
static void check_encoding(const mha_tokenizer *t, const mha_encoding *e, size_t bytes)
{
    int64_t last = 0;
    assert_true(e->count >= 2 && e->ids[0] == 2 && e->ids[e->count - 1] == 3);
    for (int64_t i = 1; i + 1 < e->count; i++) {
        assert_non_null(mha_tokenizer_token(t, e->ids[i]));
        assert_true(e->begin[i] >= 0 && e->begin[i] < e->end[i] && e->end[i] <= (int64_t)bytes);
        assert_true(e->begin[i] >= last); /* tokens are in the order of the text */
        assert_true(e->sequence[i] == 0 && e->special[i] == 0 && e->type_ids[i] == 0);
        last = e->begin[i];
    }
}

static void test_random_bytes(void)
{
    static const char *const names[] = {"uncased", "cased", "added"};
    int valid = 0, invalid = 0;
    for (int which = 0; which < 3; which++) {
        mha_tokenizer *t = load_golden(names[which]);
        for (uint64_t stream = 0; stream < 4000; stream++) {
            rng r = rng_make(20, stream);
            char text[64];
            const size_t bytes = (size_t)rng_between(&r, 0, sizeof text);
            const int top = rng_chance(&r, 0.5) ? 0x7F : 0xFF;
            for (size_t i = 0; i < bytes; i++) text[i] = (char)rng_between(&r, 0, top);
            mha_encoding e = {.struct_size = sizeof e};
            const mha_status status = mha_tokenizer_encode(t, NULL, text, bytes, NULL, 0, &e);
            assert_true(status == MHA_OK || status == MHA_ERR_UTF8);
            if (status == MHA_OK) check_encoding(t, &e, bytes);
            *(status == MHA_OK ? &valid : &invalid) += 1;
            mha_encoding_free(&e);
        }
        mha_tokenizer_destroy(t);
    }
    assert_true(valid > 4000 && invalid > 3000);
}

/* Characters of all ranges, with unsorted combining marks in runs of any length. */
static size_t random_text(rng *r, char *text, size_t room)
{
    static const int32_t firsts[] = {0x20,   0x61,   0xC0,    0x300,   0x590,
                                     0xE00,  0x1100, 0x2000,  0x3040,  0x4E00,
                                     0xAC00, 0xF900, 0x1D150, 0x1F600, 0x2F800};
    size_t bytes = 0;
    while (bytes + 4 <= room) {
        const int32_t c = RNG_PICK(r, firsts) + (int32_t)rng_between(r, 0, 63);
        if (c < 0x80) {
            text[bytes++] = (char)c;
        } else if (c < 0x800) {
            text[bytes++] = (char)(0xC0 | c >> 6);
            text[bytes++] = (char)(0x80 | (c & 0x3F));
        } else {
            if (c < 0x10000) {
                text[bytes++] = (char)(0xE0 | c >> 12);
            } else {
                text[bytes++] = (char)(0xF0 | c >> 18);
                text[bytes++] = (char)(0x80 | (c >> 12 & 0x3F));
            }
            text[bytes++] = (char)(0x80 | (c >> 6 & 0x3F));
            text[bytes++] = (char)(0x80 | (c & 0x3F));
        }
    }
    return bytes;
}

static void test_properties(void)
{
    mha_tokenizer *t = load_golden("uncased");
    for (uint64_t stream = 0; stream < 500; stream++) {
        rng r = rng_make(rng_run_seed(), stream);
        char text[256], twice[2 * sizeof text + 1];
        const size_t bytes = random_text(&r, text, (size_t)rng_between(&r, 0, sizeof text));
        mha_encoding one = {.struct_size = sizeof one}, two = one;
        expect_ok(mha_tokenizer_encode(t, NULL, text, bytes, NULL, 0, &one));
        check_encoding(t, &one, bytes);
        /* A space ends every word: a repeated text gives its tokens twice. */
        memcpy(twice, text, bytes);
        twice[bytes] = '\n';
        memcpy(twice + bytes + 1, text, bytes);
        expect_ok(mha_tokenizer_encode(t, NULL, twice, 2 * bytes + 1, NULL, 0, &two));
        assert_int_equal(two.count, 2 * one.count - 2);
        for (int64_t i = 1; i + 1 < one.count; i++) {
            assert_int_equal(two.ids[i], one.ids[i]);
            assert_int_equal(two.ids[i + one.count - 2], one.ids[i]);
            assert_int_equal(two.begin[i + one.count - 2], one.begin[i] + (int64_t)bytes + 1);
        }
        mha_encoding_free(&two);
        mha_encoding_free(&one);
    }
    mha_tokenizer_destroy(t);
}

/* A megabyte of each potentially slow case: one word, marks, and words that fail at their last
 * letter. */
static void test_large_texts(void)
{
    static const char *const parts[] = {"a",     "\xCC\x81",   "\xF0\x9D\x85\xA5\xCC\x81",
                                        "[",     "!",          " ",
                                        "[MASK", "foobafooba", "\xE4\xBD\xA0"};
    const size_t size = (size_t)1 << (rng_whole_sample() ? 20 : 17);
    char *text = malloc(size);
    assert_non_null(text);
    mha_tokenizer *t = load_golden("added"), *u = load_golden("uncased");
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        const size_t length = strlen(parts[i]), bytes = size / length * length;
        for (size_t at = 0; at < bytes; at += length) memcpy(text + at, parts[i], length);
        for (int which = 0; which < 2; which++) {
            mha_encoding e = {.struct_size = sizeof e};
            expect_ok(mha_tokenizer_encode(which ? u : t, NULL, text, bytes, NULL, 0, &e));
            check_encoding(t, &e, bytes);
            mha_encoding_free(&e);
        }
    }
    free(text);
    mha_tokenizer_destroy(t);
    mha_tokenizer_destroy(u);
}

/* Randomly changed files give an error with a message of one line, or a tokenizer that works. */
static void test_mutated_files(void)
{
    static const char *const names[] = {"uncased/vocab.txt", "added/tokenizer.json",
                                        "added/tokenizer_config.json"};
    static const char *const as[] = {"vocab.txt", "tokenizer.json", "tokenizer_config.json"};
    char *good[3];
    size_t sizes[3];
    int loaded = 0, refused = 0;
    for (int i = 0; i < 3; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", golden, names[i]);
        good[i] = temp_read(path, &sizes[i]);
    }
    for (uint32_t seed = 0; seed < 600; seed++) {
        const int which = (int)(seed % 3);
        for (int i = 0; i < 3; i++) {
            size_t size = sizes[i];
            char *bytes = malloc(size);
            assert_non_null(bytes);
            memcpy(bytes, good[i], size);
            if (i == which) mutate((unsigned char *)bytes, &size, seed);
            remove(temp_path(as[i]));
            /* only vocab.txt, or the other two files: all three would only be compared with each
             * other */
            if ((i == 0) == (which == 0)) temp_write(as[i], bytes, size);
            free(bytes);
        }
        mha_tokenizer *t = NULL;
        if (mha_tokenizer_load(temp_path("."), NULL, &t) == MHA_OK) {
            mha_encoding e = encode(t, "Foo unaffable [SEP] caf\xC3\xA9", "foobar");
            mha_encoding_free(&e);
            loaded++;
        } else {
            assert_null(t);
            assert_true(strlen(mha_error_detail()) > 0);
            refused++;
        }
        mha_tokenizer_destroy(t);
    }
    for (int i = 0; i < 3; i++) free(good[i]);
    for (int i = 0; i < 3; i++) remove(temp_path(as[i]));
    print_message("%d mutants loaded, %d refused\n", loaded, refused);
    assert_true(loaded > 20 && refused > 200);
}

/* ------------------------------------------------------------------------------------------------
 * Memory
 * --------------------------------------------------------------------------------------------- */

static mha_status load_with(failing_alloc *allocs, mha_tokenizer **tokenizer)
{
    mha_tokenizer_options options = {.struct_size = sizeof options};
    options.allocator = failing_alloc_interface(allocs);
    return mha_tokenizer_load("tests/golden/tokenizer/added", &options, tokenizer);
}

static void test_load_out_of_memory(void)
{
    failing_alloc allocs = failing_alloc_make();
    mha_tokenizer *t = NULL;
    int64_t failures = 0;
    for (allocs.fail_at = 0; load_with(&allocs, &t) != MHA_OK; failures++) {
        assert_int_equal(allocs.live, 0);
        assert_null(t);
        allocs.calls = 0;
        allocs.fail_at++;
        assert_true(failures < 1000);
    }
    assert_true(failures > 5);
    mha_tokenizer_destroy(t);
    assert_int_equal(allocs.live, 0);
    assert_int_equal(allocs.mistakes, 0);
}

static void test_encode_out_of_memory(void)
{
    static const char text[] =
        "Foo a b c d e q\xCC\x81\xCC\xA3 [SEP] g h foobar i j k l m n o p q r";
    failing_alloc allocs = failing_alloc_make();
    mha_tokenizer *t = NULL;
    expect_ok(load_with(&allocs, &t));
    mha_encoding e = {.struct_size = sizeof e};
    mha_words w = {.struct_size = sizeof w};
    int64_t failures[2] = {0, 0};
    for (int which = 0; which < 2; which++)
        for (allocs.fail_at = 0;; allocs.fail_at++) {
            const int64_t live = allocs.live;
            allocs.calls = 0;
            const mha_status status =
                which ? mha_tokenizer_words(t, text, strlen(text), &w)
                      : mha_tokenizer_encode(t, NULL, text, strlen(text), text, strlen(text), &e);
            if (status == MHA_OK) break;
            assert_int_equal(status, MHA_ERR_NOMEM);
            assert_int_equal(allocs.live, live);
            assert_true(!w.memory && (which == 1 || !e.memory));
            failures[which]++;
        }
    assert_true(failures[0] > 5 && failures[1] > 3);
    mha_tokenizer_destroy(t); /* encodings outlive their tokenizer */
    assert_true(e.count > 20 && w.count > 20 && e.ids[0] == 2);
    mha_encoding_free(&e);
    mha_words_free(&w);
    assert_int_equal(allocs.live, 0);
    assert_int_equal(allocs.mistakes, 0);
}

RUN_TESTS_BETWEEN(temp_begin, temp_end, TEST(test_golden), TEST(test_describe), TEST(test_words),
                  TEST(test_arguments), TEST(test_options), TEST(test_invalid_utf8),
                  TEST(test_refuses_vocabularies), TEST(test_refuses_json),
                  TEST(test_refuses_settings), TEST(test_odd_vocabularies), TEST(test_long_lines),
                  TEST(test_random_bytes), TEST(test_properties), TEST(test_large_texts),
                  TEST(test_mutated_files), TEST(test_load_out_of_memory),
                  TEST(test_encode_out_of_memory))
