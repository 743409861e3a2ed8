/* Contexts shared by the tests of a file, with this number of threads; 0: the default. The program owns them. */
#ifndef TEST_SHARED_CONTEXT_H
#define TEST_SHARED_CONTEXT_H

#include <multihead/base.h>

mha_context *context_with(int num_threads);
void context_finish(void); /* called by RUN_TESTS() */

#endif
