/* See shared_context.h. */
#include "support/shared_context.h"

#include "support/temp_files.h"

mha_context *context;

int context_begin(void **state)
{
    (void)state;
    return mha_context_create(NULL, &context) != MHA_OK;
}

int context_end(void **state)
{
    (void)state;
    mha_context_destroy(context);
    return 0;
}

int context_and_folder_begin(void **state)
{
    return temp_begin(state) || context_begin(state);
}

int context_and_folder_end(void **state)
{
    return context_end(state) || temp_end(state);
}
