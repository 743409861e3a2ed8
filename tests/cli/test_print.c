/* cli_print() compared with printf(), its escapes of untrusted texts, and cells of tables. */
#include "common/print.h"
#include "common/table.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static FILE *file;

static int rewind_file(void **state)
{
    (void)state;
    rewind(file);
    return ftruncate(fileno(file), 0);
}

/* The file's contents as a string. */
static const char *written(void)
{
    static char text[4096];
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    rewind(file);
    if (ftruncate(fileno(file), 0) != 0) fail_msg("cannot empty the file");
    return text;
}

/* Checks that bytes and columns equal printf's. */
#define SAME(...)                                                           \
    do {                                                                    \
        char wanted_[2048];                                                 \
        const int length_ = snprintf(wanted_, sizeof wanted_, __VA_ARGS__); \
        const int columns_ = cli_print_to(file, __VA_ARGS__);               \
        assert_string_equal(written(), wanted_);                            \
        assert_int_equal(columns_, length_);                                \
    } while (0)

static void as_printf_does(void **state)
{
    (void)state;
    static const double reals[] = {0,    -0.0, 1,     -1.5,   0.125,    1e-320,    123456.789,
                                   1e22, 1e9,  1e308, -1e308, INFINITY, -INFINITY, 5e-324};
    static const int64_t wholes[] = {0, 1, -1, 42, -12345, INT64_MAX, INT64_MIN};
    SAME("plain, 100%% of it%%");
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        const double x = reals[i];
        SAME("%f|%g|%e|%.0f|%.3g|%.9g|%.17g", x, x, x, x, x, x, x);
        SAME("%8.2f|%-12.3e|%+.2f|%+9.3g|%*.*f|%-*g", x, x, x, x, 12, 4, x, 9, x);
        SAME("%*.*e|%.*f", -14, 3, x, -1, x);
    }
    for (size_t i = 0; i < sizeof wholes / sizeof *wholes; i++) {
        const int64_t n = wholes[i];
        SAME("%" PRId64 "|%6" PRId64 "|%-9" PRId64 "|%+" PRId64 "|%+5" PRId64, n, n, n, n, n);
        SAME("%" PRIu64 "|%" PRIx64 "|%20" PRIu64, (uint64_t)n, (uint64_t)n, (uint64_t)n);
        SAME("%d|%3d|%-3d|%u|%x|%lld", (int)n, (int)n, (int)n, (unsigned)n, (unsigned)n,
             (long long)n);
    }
    SAME("%zu|%10zu|%08x|%03d|%016" PRIx64, (size_t)7, SIZE_MAX, 255U, 7, UINT64_C(99));
    SAME("%s|%10s|%-10s|%.2s|%*s|%-*s|%.*s|%c", "text", "text", "text", "text", 6, "a", 6, "b", 3,
         "abcdef", 'x');
    SAME("%s%5s%.0s", "", "", "gone");
}

static void expect(const char *wanted, int columns, const char *format, ...) MHA_PRINTF(3, 4);

static void expect(const char *wanted, int columns, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const int got = cli_print_list(file, format, arguments);
    va_end(arguments);
    assert_string_equal(written(), wanted);
    assert_int_equal(got, columns);
}

static void texts_from_anywhere(void **state)
{
    (void)state;
    expect("\x1b[1m\\x1b[2J\\x0a\n", 14, "\x1b[1m%s\n", "\x1b[2J\n"); /* the format's is kept */
    expect("\\x7f\\x9b\\u009b\\u202e\\U000e0041", 30, "%s",
           "\x7f\x9b\xC2\x9B\xE2\x80\xAE\xF3\xA0\x81\x81");
    expect("\\x07", 4, "%c", '\a');
    expect("\\x1b|", 5, "%s|", "\\x1b"); /* unchanged: idempotent */
    expect("caf\xC3\xA9  |", 7, "%-6s|", "caf\xC3\xA9");
    expect("  \xE6\x97\xA5\xE6\x9C\xAC|", 7, "%6s|", "\xE6\x97\xA5\xE6\x9C\xAC");
    expect("\\x1b |", 6, "%-5s|", "\x1b");
    /* A precision counts bytes and omits a character that it would split. */
    expect("caf|", 4, "%.4s|", "caf\xC3\xA9");
    expect("caf\xC3\xA9|", 5, "%.5s|", "caf\xC3\xA9");
    expect("|", 1, "%.3s|", "\xF0\x9F\x98\x80");
    expect("\xF0\x9F\x98\x80|", 3, "%.4s|", "\xF0\x9F\x98\x80");
    expect("\\xc3|", 5, "%.*s|", 2, "\xC3"); /* the text ends there, so no character is split */
    char *exact = malloc(4);                 /* bytes beyond the precision are not read */
    assert_non_null(exact);
    memcpy(exact, "ab\xE2\x80", 4);
    expect("ab|", 3, "%.*s|", 4, exact);
    memcpy(exact, "\x80\x80\x80\x80", 4);
    expect("\\x80\\x80\\x80\\x80", 16, "%.*s", 4, exact);
    free(exact);
}

static void long_texts(void **state)
{
    (void)state;
    char text[3000];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = 0;
    expect(text, (int)sizeof text - 1, "%s", text);
    memset(text, '\x01', 700);
    text[700] = 0;
    assert_int_equal(cli_print_to(file, "%s", text), 4 * 700);
    assert_int_equal(strlen(written()), 4 * 700);
}

/* A cell with the width of its column does not touch the previous cell. */
static void wide_cells_stay_apart(void **state)
{
    (void)state;
    static const table_column columns[] = {{"head", -7, 0, TABLE_PLAIN, {0}},
                                           {"copy", 5, 2, TABLE_PLAIN, {0}},
                                           {NULL, 9, 0, TABLE_PLAIN, {0}},
                                           {"match", 6, 2, TABLE_PLAIN, {0}}};
    table narrow = {.columns = columns}, wide = {.columns = columns};
    table_text(&narrow, "L0H1"), table_number(&narrow, 0.5), table_number(&narrow, (double)NAN);
    assert_string_equal(narrow.line, "L0H1    0.50     -");
    table_text(&wide, "L10H127"), table_number(&wide, -0.25), table_number(&wide, -100.5);
    assert_string_equal(wide.line, "L10H127 -0.25 -100.50");
}

int main(void)
{
    file = tmpfile();
    if (!file) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup(as_printf_does, rewind_file),
                                       cmocka_unit_test_setup(texts_from_anywhere, rewind_file),
                                       cmocka_unit_test_setup(long_texts, rewind_file),
                                       cmocka_unit_test(wide_cells_stay_apart)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
