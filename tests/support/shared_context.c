#include "support/one_context.h"

#include "support/temp_files.h"

#include <stdio.h>
#include <stdlib.h>

enum { MOST_THREADS = 64 };
static mha_context *made[MOST_THREADS + 1];
mha_context *context;

mha_context *context_with(int num_threads)
{
    const mha_context_desc desc = {.struct_size = sizeof desc, .num_threads = num_threads};
    if (num_threads < 0 || num_threads > MOST_THREADS) abort();
    if (made[num_threads] || mha_context_create(&desc, &made[num_threads]) == MHA_OK)
        return made[num_threads];
    fprintf(stderr, "a context of %d threads: %s\n", num_threads, mha_error_detail());
    abort();
}

void context_finish(void)
{
    for (int n = 0; n <= MOST_THREADS; n++) {
        mha_context_destroy(made[n]);
        made[n] = NULL;
    }
}

int context_begin(void **state)
{
    (void)state;
    context = context_with(0);
    return 0;
}

int context_and_folder_begin(void **state)
{
    return temp_begin(state) || context_begin(state);
}

int context_and_folder_end(void **state)
{
    return temp_end(state);
}
