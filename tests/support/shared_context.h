/* A context that all tests of a file use, with the settings that a host gets if it asks for nothing:
 * RUN_TESTS_BETWEEN(context_begin, context_end, ...). */
#ifndef TEST_SHARED_CONTEXT_H
#define TEST_SHARED_CONTEXT_H

#include <multihead/base.h>

extern mha_context *context;

int context_begin(void **state);
int context_end(void **state);

/* The same, and a folder for files (temp_files.h). */
int context_and_folder_begin(void **state);
int context_and_folder_end(void **state);

#endif
