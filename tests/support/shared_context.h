/* Contexts that the tests of a file share: as many threads, 0: what a host gets that asks for
 * nothing. They belong to the program. */
#ifndef TEST_SHARED_CONTEXT_H
#define TEST_SHARED_CONTEXT_H

#include <multihead/base.h>

mha_context *context_with(int num_threads);
void context_finish(void); /* RUN_TESTS() says it */

#endif
