/* The program that a file of tests is: RUN_TESTS(TEST(this_holds), TEST(that_holds)).
 *
 * It prints the seed and which machines are missing. Arguments choose tests: build/tests/test_nn
 * 'norms*' runs those whose name the pattern matches. */
#ifndef TEST_SUITE_H
#define TEST_SUITE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define TEST(name) cmocka_unit_test(name)

/* begin and end, if not NULL, are called before the first and after the last test. */
#define RUN_TESTS_BETWEEN(begin, end, ...)                           \
    int main(int argc, char **argv)                                  \
    {                                                                \
        const struct CMUnitTest tests[] = {__VA_ARGS__};             \
        if (suite_begin(argc, argv) != 0) return 2;                  \
        return suite_end(cmocka_run_group_tests(tests, begin, end)); \
    }
#define RUN_TESTS(...) RUN_TESTS_BETWEEN(NULL, NULL, __VA_ARGS__)

/* 0, or another number if the arguments are wrong, which is then said. */
int suite_begin(int argc, char **argv);

/* What tests share is no more. Gives the number back. */
int suite_end(int failures);

#endif
