/* A file of tests is a suite: RUN_TESTS(TEST(this_holds), TEST(that_holds)). The suites of one area
 * form a program (tests/CMakeLists.txt), which runs them by name:
 *
 *   build/tests/unit_module                    all suites of the area
 *   build/tests/unit_module --list             their names
 *   build/tests/unit_module test_nn            one of them, as in ctest
 *   build/tests/unit_module test_nn 'norms*'   its tests with matching names
 *
 * A suite prints the seed and the missing machines. */
#ifndef TEST_SUITE_H
#define TEST_SUITE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* A test: void name(void). */
/* clang-format off */
#define TEST(name) {#name, suite_call, NULL, NULL, (void (*[])(void)){name}}
/* clang-format on */
void suite_call(void **test);

enum { SUITE_SKIPPED = 77 }; /* exit status for ctest */

/* The functions return 0 for success. Any of them may be NULL. */
typedef struct test_suite {
    const char *file; /* __FILE__ of the tests */
    const struct CMUnitTest *tests;
    size_t count;
    int (*missing)(void); /* returns nonzero and prints the reason if the suite cannot run here */
    CMFixtureFunction begin, end;
    struct test_suite *next; /* of the program */
} test_suite;

void suite_add(test_suite *suite);

/* missing, begin and end as in test_suite. */
#define RUN_TESTS_IF(missing, begin, end, ...)                                            \
    static const struct CMUnitTest suite_tests[] = {__VA_ARGS__};                         \
    static test_suite suite_here =                                                        \
        {__FILE__, suite_tests, sizeof suite_tests / sizeof *suite_tests, missing, begin, \
         end,      NULL};                                                                 \
    __attribute__((constructor)) static void suite_add_here(void)                         \
    {                                                                                     \
        suite_add(&suite_here);                                                           \
    }
#define RUN_TESTS_BETWEEN(begin, end, ...) RUN_TESTS_IF(NULL, begin, end, __VA_ARGS__)
#define RUN_TESTS(...) RUN_TESTS_IF(NULL, NULL, NULL, __VA_ARGS__)

#endif
