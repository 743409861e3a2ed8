#include "support/suite.h"

#include "support/machines.h"
#include "support/rng.h"
#include "support/shared_context.h"

#include <stdio.h>
#include <string.h>

static test_suite *suites;

/* Suites are sorted by name, because the linker determines the order of constructors. */
void suite_add(test_suite *suite)
{
    test_suite **at = &suites;
    while (*at && strcmp((*at)->file, suite->file) < 0) at = &(*at)->next;
    suite->next = *at;
    *at = suite;
}

/* Return "test_nn.c" of ".../test_nn.c". */
static const char *file_of(const test_suite *suite)
{
    const char *slash = strrchr(suite->file, '/');
    return slash ? slash + 1 : suite->file;
}

static bool is_named(const test_suite *suite, const char *name)
{
    const char *file = file_of(suite);
    const size_t length = strcspn(file, ".");
    return strlen(name) == length && memcmp(file, name, length) == 0;
}

static int run(const test_suite *suite)
{
    if (suite->missing && suite->missing()) return SUITE_SKIPPED;
    (void)rng_run_seed();
    machines_print_missing();
    const int failures = _cmocka_run_group_tests(file_of(suite), suite->tests, suite->count,
                                                 suite->begin, suite->end);
    machines_finish();
    context_finish();
    return failures > 0;
}

void suite_call(void **test)
{
    void (*const *const call)(void) = *test;
    (*call)();
}

/* The combined status: a failure overrides a skip, which overrides a success. */
static int both(int a, int b)
{
    return a == 1 || b == 1 ? 1 : a > b ? a : b;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : NULL;
    const bool list = name && strcmp(name, "--list") == 0;
    int status = 0, found = 0;
    if (argc == 3) cmocka_set_test_filter(argv[2]);
    for (const test_suite *suite = suites; suite && argc <= 3; suite = suite->next) {
        if (name && !list && !is_named(suite, name)) continue;
        found++;
        if (list)
            printf("%.*s\n", (int)strcspn(file_of(suite), "."), file_of(suite));
        else
            status = both(status, run(suite));
    }
    if (found > 0) return status;
    fprintf(
        stderr,
        "usage: %s [--list | SUITE [PATTERN]]; runs the tests of SUITE whose names match PATTERN\n",
        argv[0]);
    return 2;
}
