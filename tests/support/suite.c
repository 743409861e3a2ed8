/* See suite.h. */
#include "support/suite.h"

#include "support/machines.h"
#include "support/rng.h"
#include "support/shared_context.h"

#include <stdio.h>

int suite_begin(int argc, char **argv)
{
    if (argc > 2) {
        fprintf(stderr, "usage: %s [PATTERN]; runs the tests whose name matches it\n", argv[0]);
        return 2;
    }
    if (argc == 2) cmocka_set_test_filter(argv[1]);
    (void)rng_run_seed();
    machines_print_missing();
    return 0;
}

int suite_end(int failures)
{
    machines_finish();
    context_finish();
    return failures;
}
