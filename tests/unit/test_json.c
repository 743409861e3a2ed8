/* The JSON writer: separators, escapes and errors. */
#include "support/expect.h"
#include "support/suite.h"

#include <multihead/component.h>
#include <multihead/json.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mha_buffer out;
static mha_sink sink;
static mha_json json;

static int empty(void **state)
{
    (void)state;
    mha_buffer_free(&out);
    sink = mha_buffer_sink(&out);
    json = (mha_json){.sink = &sink};
    return 0;
}

static void expect_text(const char *text)
{
    expect_ok(mha_json_finish(&json));
    assert_string_equal(out.data, text);
    empty(NULL);
}

/* ---- Between values -------------------------------------------------------------------------- */

static void commas_and_lines(void **state)
{
    (void)state;
    mha_json_object(&json, NULL);
    mha_json_lines(&json, 2);
    mha_json_text(&json, "a", "x");
    mha_json_array(&json, "b");
    mha_json_integer(&json, NULL, 1);
    mha_json_object(&json, NULL);
    mha_json_end(&json);
    mha_json_line(&json, 70);
    mha_json_bool(&json, NULL, true);
    mha_json_end(&json);
    mha_json_array(&json, "c");
    mha_json_lines(&json, 4);
    mha_json_null(&json, NULL);
    mha_json_null(&json, NULL);
    mha_json_end(&json);
    mha_json_object(&json, "d");
    mha_json_bool(&json, "e", false);
    mha_json_line(&json, 0);
    mha_json_end(&json);
    mha_json_end(&json);
    char want[200];
    snprintf(want, sizeof want,
             "{\n  \"a\": \"x\",\n  \"b\": [1, {},\n%70strue],\n  \"c\": [\n    null,\n    null\n  "
             "],\n  \"d\": {\"e\": false\n}\n}\n",
             "");
    expect_text(want);
}

static void compact_form(void **state)
{
    (void)state;
    json.compact = true;
    mha_json_object(&json, NULL);
    mha_json_object(&json, "in");
    mha_json_null(&json, "x");
    mha_json_null(&json, "y");
    mha_json_end(&json);
    mha_json_integers(&json, "a", (int64_t[]){1, 2}, 2);
    mha_json_line(&json, 8);
    mha_json_array(&json, "b");
    for (int i = 0; i < 2; i++) {
        mha_json_object(&json, NULL);
        mha_json_text(&json, "</script>", "a&b");
        mha_json_end(&json);
    }
    mha_json_end(&json);
    mha_json_end(&json);
    expect_text("{\"in\":{\"x\":null,\"y\":null},\n\"a\":[1,2],\n\"b\":[{\"\\u003c/"
                "script\\u003e\":\"a\\u0026b\"},\n"
                "{\"\\u003c/script\\u003e\":\"a\\u0026b\"}]}\n");
}

/* ---- Values ---------------------------------------------------------------------------------- */

static void texts_are_whole_and_valid(void **state)
{
    (void)state;
    static const struct {
        const char *text, *json;
    } cases[] = {{"", "\"\""},
                 {NULL, "null"},
                 {"a \"b\" \\ <&>", "\"a \\\"b\\\" \\\\ <&>\""},
                 {"\x1b[2J\n\x7f", "\"\\u001b[2J\\u000a\\u007f\""},
                 {"\xC3\xA9\xE2\x82\xAC", "\"\xC3\xA9\xE2\x82\xAC\""},
                 {"a\xFF\x62\xE2\x82", "\"a\xEF\xBF\xBD\x62\xEF\xBF\xBD\xEF\xBF\xBD\""},
                 {"\xEF\xBF\xBD", "\"\xEF\xBF\xBD\""},
                 {"\xE2\x80\xAE", "\"\\u202e\""},
                 {"\xF3\xA0\x81\x81", "\"\\udb40\\udc41\""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mha_json_text(&json, NULL, cases[i].text);
        expect_text(cases[i].json);
    }
    mha_json_bytes(&json, NULL, "a\0b", 3);
    expect_text("\"a\\u0000b\"");
    char large[10000], want[sizeof large + 2];
    memset(large, 'x', sizeof large - 1);
    large[sizeof large - 1] = '\0';
    snprintf(want, sizeof want, "\"%s\"", large);
    mha_json_text(&json, NULL, large);
    expect_text(want);
    mha_json_format(&json, NULL, "%s", large);
    expect_text(want);
}

static void numbers(void **state)
{
    (void)state;
    const double values[] = {0, -0.25, 1.0 / 3, 1e-7, 1e300, NAN, -INFINITY, 16777217};
    const float floats[] = {0.1F, 3.4028234e38F};
    mha_json_array(&json, NULL);
    mha_json_numbers(&json, NULL, values, 8);
    mha_json_floats(&json, NULL, floats, 2);
    mha_json_integers(&json, NULL, (int64_t[]){INT64_MIN, INT64_MAX}, 2);
    mha_json_numbers(&json, NULL, NULL, 0);
    mha_json_texts(&json, NULL, NULL, 2);
    mha_json_decimals(&json, NULL, 1e22, 0);
    mha_json_decimals(&json, NULL, -2.0 / 3, 4);
    mha_json_decimals(&json, NULL, NAN, 4);
    mha_json_end(&json);
    expect_text("[[0, -0.25, 0.333333333, 1e-07, 1e+300, null, null, 16777217], "
                "[0.100000001, 3.40282347e+38], "
                "[-9223372036854775808, 9223372036854775807], [], null, 10000000000000000000000, "
                "-0.6667, null]\n");
}

static double double_of(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Checks one number of JSON's grammar, of at most 9 digits, that equals `value` to half a unit of
 * the ninth digit, or null for a value that is not finite. Returns the position after it. */
static const char *check_number(const char *at, double value)
{
    if (!isfinite(value)) {
        assert_memory_equal(at, "null", 4);
        return at + 4;
    }
    const char *from = at;
    int digits = 0;
    at += *at == '-';
    if (*at == '0') assert_true(at[1] < '0' || at[1] > '9');
    for (; (*at >= '0' && *at <= '9') || (*at == '.' && at > from); at++)
        digits += *at != '.' && (digits || *at != '0');
    assert_true(at > from && at[-1] != '.' && digits <= 9);
    if (*at == 'e') at += 1 + (at[1] == '-' || at[1] == '+');
    assert_true(*at == ',' || *at == ']' || (*at >= '0' && *at <= '9'));
    at += strspn(at, "0123456789");
    char text[32], unit[16];
    snprintf(text, sizeof text, "%.8e", value);
    snprintf(unit, sizeof unit, "1%s", strchr(text, 'e'));
    const double half = 0.5e-8 * strtod(unit, NULL);
    const double read = strtod(from, NULL);
    /* 2^-51 of the value: reading the text rounds, and so do the difference and the unit. */
    const double room = half + ldexp(fabs(value), -51) + 5e-324;
    if (!(fabs(read - value) <= room)) fail_msg("%a became %.24s", value, from);
    return at;
}

/* Any finite double is written as a JSON number: the least and the greatest, subnormal ones,
 * neighbours of each power of ten and of two, and many random ones. */
static void every_number_is_json(void **state)
{
    (void)state;
    enum { COUNT = 50000 };
    static double y[COUNT];
    const double odd[] = {0,
                          -0.0,
                          5e-324,
                          -5e-324,
                          2.2250738585072009e-308,
                          2.2250738585072014e-308,
                          1.7976931348623157e308,
                          NAN,
                          INFINITY,
                          -INFINITY,
                          0.012345678912,
                          0.000123456789123,
                          999999.9999999,
                          999999999.9,
                          0.00009999999999};
    uint64_t seed = 1;
    for (int i = 0; i < COUNT; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const uint64_t mixed = seed ^ seed >> 29;
        if (i < (int)(sizeof odd / sizeof *odd))
            y[i] = odd[i];
        else if (i < 3000)
            y[i] = nextafter(pow(10, i / 3 % 633 - 324),
                             i % 3 ? i % 3 == 1 ? 0 : 1e300 : pow(10, i / 3 % 633 - 324));
        else if (i < 8000)
            y[i] = nextafter(ldexp(1, i % 2098 - 1074), i % 2 ? 0 : 1e308);
        else if (i < 20000)
            y[i] = (double)(int64_t)mixed * ldexp(1, -60 - i % 30); /* the range of measures */
        else
            y[i] = double_of(mixed);
    }
    json.compact = true;
    mha_json_numbers(&json, NULL, y, COUNT);
    expect_ok(mha_json_finish(&json));
    const char *at = out.data;
    for (int i = 0; i < COUNT; i++) at = check_number(at + 1, y[i]);
    assert_int_equal(*at, ']');
}

static void base64(void **state)
{
    (void)state;
    static const char *const want[] = {"\"\"", "\"Zg==\"", "\"Zm8=\"", "\"Zm9v\"",
                                       "\"Zm9vYg==\""}; /* RFC 4648, section 10 */
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        mha_json_base64(&json, NULL, "foobar", i);
        expect_text(want[i]);
    }
    static const unsigned char zeros[2000];
    mha_json_base64(&json, NULL, zeros, sizeof zeros);
    expect_ok(mha_json_finish(&json));
    assert_int_equal(out.size, 2668 + 2);
    assert_string_equal(out.data + 2661, "AAAAAAA=\"");
}

static void structs_by_their_fields(void **state)
{
    (void)state;
    typedef struct everything {
        const char *text;
        char chars[8];
        int64_t integer, none, some;
        int small;
        double number, whole, unknown;
        float single;
        bool flag;
    } everything;
    const everything one = {"a", "b", -5, -1, 2, 7, 0.5, 3e9, -1, 0.25F, true};
#define FIELD(type, member) MHA_JSON_FIELD(type, everything, member)
    static const mha_json_field fields[] = {
        FIELD(TEXT, text),       FIELD(CHARS, chars),
        FIELD(INTEGER, integer), MHA_JSON_BEGINS("in"),
        FIELD(COUNT, none),      FIELD(GIVEN, none),
        FIELD(GIVEN, some),      MHA_JSON_ENDS,
        MHA_JSON_BREAK(4),       MHA_JSON_NAMED("int", INT, everything, small),
        FIELD(NUMBER, number),   FIELD(WHOLE, whole),
        FIELD(KNOWN, unknown),   FIELD(FLOAT, single),
        FIELD(BOOL, flag),       {0}};
#undef FIELD
    mha_json_struct(&json, NULL, fields, &one);
    expect_text(
        "{\"text\": \"a\", \"chars\": \"b\", \"integer\": -5, \"in\": {\"none\": null, \"some\": "
        "2},\n    "
        "\"int\": 7, \"number\": 0.5, \"whole\": 3000000000, \"unknown\": null, \"single\": "
        "0.25, \"flag\": true}\n");
}

static void arrays_of_structs(void **state)
{
    (void)state;
    static const struct {
        int a;
        bool b;
    } rows[] = {{1, true}, {2, false}};
    static const mha_json_field fields[] = {{"a", MHA_JSON_INT, 0}, {0}};
    mha_json_structs(&json, NULL, fields, rows, sizeof *rows, 2);
    expect_text("[{\"a\": 1}, {\"a\": 2}]\n");
}

/* ---- Errors ---------------------------------------------------------------------------------- */

static void misuse_is_kept(void **state)
{
    (void)state;
    const mha_json_field unknown[] = {{"x", (mha_json_type)99, 0}, {0}};
#define REFUSED(part, ...)                                            \
    do {                                                              \
        __VA_ARGS__;                                                  \
        expect_error(mha_json_finish(&json), MHA_ERR_ARGUMENT, part); \
        const size_t size = out.size;                                 \
        mha_json_null(&json, NULL);                                   \
        assert_int_equal(out.size, size);                             \
        empty(NULL);                                                  \
    } while (0)
    REFUSED("not begun", mha_json_end(&json));
    REFUSED("not ended", mha_json_array(&json, NULL));
    REFUSED("x: only members", mha_json_null(&json, "x"));
    REFUSED("x: only members", mha_json_array(&json, NULL); mha_json_null(&json, "x"));
    REFUSED("needs a name", mha_json_object(&json, NULL); mha_json_null(&json, NULL));
    REFUSED("follows the root", mha_json_null(&json, NULL); mha_json_null(&json, NULL));
    REFUSED("unknown type", mha_json_object(&json, NULL); mha_json_fields(&json, unknown, unknown));
    REFUSED("too deeply", for (int i = 0; i <= MHA_JSON_DEPTH; i++) mha_json_array(&json, NULL));
#undef REFUSED
    for (int i = 0; i < MHA_JSON_DEPTH; i++) mha_json_array(&json, NULL);
    for (int i = 0; i < MHA_JSON_DEPTH; i++) mha_json_end(&json);
    expect_ok(mha_json_finish(&json));
}

static int writes_left;

static mha_status fail_later(void *user, const void *bytes, size_t count)
{
    (void)user, (void)bytes, (void)count;
    return writes_left-- > 0 ? MHA_OK : mha_fail(MHA_ERR_WRITE, "no write is left");
}

static void the_first_failure_is_kept(void **state)
{
    (void)state;
    const mha_sink failing = {.write = fail_later};
    for (int count = 0; count < 12; count++) {
        json = (mha_json){.sink = &failing};
        writes_left = count;
        mha_json_array(&json, NULL);
        mha_json_text(&json, NULL, "a\nb");
        mha_json_base64(&json, NULL, "a", 1);
        mha_json_end(&json);
        expect_error(mha_json_finish(&json), MHA_ERR_WRITE, "no write is left");
        assert_int_equal(writes_left, -1); /* no write after the failure */
    }
}

/* ---- Code points ----------------------------------------------------------------------------- */

/* Exactly the characters that control a terminal or are invisible, whatever follows in memory. */
static void hidden_code_points(void)
{
    static const struct {
        const char *text;
        int bytes; /* the passed length of the text */
        uint32_t code;
        bool hidden;
    } cases[] = {
        {"a", 1, 'a', false},
        {"~", 1, '~', false},
        {" ", 1, ' ', false},
        {"", 1, 0, true},
        {"\x1b[2J", 4, 0x1B, true},
        {"\n", 1, '\n', true},
        {"\x7f", 1, 0x7F, true},
        {"\xC2\x80", 2, 0x80, true},
        {"\xC2\x9B", 2, 0x9B, true},
        {"\xC2\xA0", 2, 0xA0, false},
        {"\xC2\xAD", 2, 0xAD, true},
        {"\x9B", 1, 0xFFFD, true},         /* CSI for terminals with single-byte encodings */
        {"\xC2\x9B", 1, 0xFFFD, true},     /* truncated */
        {"\xC0\x9B", 2, 0xFFFD, true},     /* overlong form */
        {"\xED\xA0\x80", 3, 0xFFFD, true}, /* unpaired surrogate */
        {"\xF4\x90\x80\x80", 4, 0xFFFD, true},
        {"\xEF\xBF\xBD", 3, 0xFFFD, false}, /* the character itself */
        {"\xEF\xBF\xBE", 3, 0xFFFE, true},
        {"\xD8\x9C", 2, 0x61C, true},
        {"\xD7\x90", 2, 0x5D0, false},      /* a Hebrew letter is not a direction mark */
        {"\xE2\x80\x8D", 3, 0x200D, false}, /* zero-width joiner */
        {"\xE2\x80\x8B", 3, 0x200B, true},
        {"\xE2\x80\x8E", 3, 0x200E, true},
        {"\xE2\x80\xA8", 3, 0x2028, true},
        {"\xE2\x80\xAA", 3, 0x202A, true},
        {"\xE2\x80\xAE", 3, 0x202E, true},
        {"\xE2\x81\xA6", 3, 0x2066, true},
        {"\xE2\x81\xA9", 3, 0x2069, true},
        {"\xEF\xBB\xBF", 3, 0xFEFF, true},
        {"\xE2\x82\xAC", 3, 0x20AC, false},
        {"\xF0\x9F\x98\x80", 4, 0x1F600, false},
        {"\xF3\xA0\x81\x81", 4, 0xE0041, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *at = cases[i].text;
        bool hidden;
        const uint32_t code = mha_text_next(&at, at + cases[i].bytes, &hidden);
        const int moved = (int)(at - cases[i].text);
        const int length = code == 0xFFFD && cases[i].hidden ? 1
                           : code == 0x1B                    ? 1
                                                             : cases[i].bytes;
        if (code != cases[i].code || hidden != cases[i].hidden || moved != length)
            fail_msg("case %zu: U+%04X, hidden %d, %d bytes", i, (unsigned)code, hidden, moved);
    }
}

#define FRESH(name) cmocka_unit_test_setup_teardown(name, empty, empty)
RUN_TESTS(FRESH(commas_and_lines), FRESH(compact_form), FRESH(texts_are_whole_and_valid),
          FRESH(numbers), FRESH(every_number_is_json), FRESH(base64),
          FRESH(structs_by_their_fields), FRESH(arrays_of_structs), FRESH(misuse_is_kept),
          FRESH(the_first_failure_is_kept), TEST(hidden_code_points))
