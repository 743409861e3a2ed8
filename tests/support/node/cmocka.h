/* The functions of cmocka that test_kernels needs, for WebAssembly under node, which has no cmocka.
 * The first test that fails ends the program. */
#ifndef NODE_CMOCKA_H
#define NODE_CMOCKA_H

#include <stdio.h>
#include <stdlib.h>

typedef int (*CMFixtureFunction)(void **state);
struct CMUnitTest {
    const char *name;
    void (*test_func)(void **state);
    void *initial_state;
};

#define fail_msg(...) (fprintf(stderr, __VA_ARGS__), exit(1))
#define assert_true(holds)                                                                      \
    do                                                                                          \
        if (!(holds)) fail_msg("%s:%d: error: %s does not hold\n", __FILE__, __LINE__, #holds); \
    while (0)
#define assert_false(holds) assert_true(!(holds))

static inline int _cmocka_run_group_tests(const char *group, struct CMUnitTest *tests, size_t count,
                                          void *setup, void *teardown)
{
    (void)setup, (void)teardown;
    for (size_t i = 0; i < count; i++) tests[i].test_func(&tests[i].initial_state);
    printf("%s: %zu passed\n", group, count);
    return 0;
}

#endif
