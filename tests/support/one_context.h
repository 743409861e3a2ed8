/* One context for all tests of a file: RUN_TESTS_BETWEEN(context_begin, NULL, ...). */
#ifndef TEST_ONE_CONTEXT_H
#define TEST_ONE_CONTEXT_H

#include "support/shared_context.h"

extern mha_context *context;
int context_begin(void **state);

/* The same, with a folder for files (temp_files.h). */
int context_and_folder_begin(void **state);
int context_and_folder_end(void **state);

#endif
