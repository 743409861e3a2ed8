/* The problem that `multihead run --example` shows: three tokens with four features, small enough
 * for pencil and paper. */
#include "run/run.h"

#include <string.h>

enum { TOKENS = 3, SIZE = 4 };

/* The first query points along the second key, the second between the first two keys, the third
 * along the third key, and more strongly. Values are told apart at a glance. */
static const float queries[TOKENS * SIZE] = {0, 2, 0, 0, 1, 1, 0, 0, 0, 0, 2, 2};
static const float keys[TOKENS * SIZE] = {2, 0, 0, 0, 0, 2, 0, 0, 0, 0, 2, 2};
static const float values[TOKENS * SIZE] = {1, 0, 0, 10, 0, 1, 0, 20, 0, 0, 1, 30};

static cli_exit make(const float *numbers, mha_tensor *array)
{
    CLI_TRY(run_array_make(MHA_F32, 2, (int64_t[]){TOKENS, SIZE}, array));
    memcpy(array->data, numbers, TOKENS * SIZE * sizeof *numbers);
    return CLI_OK;
}

cli_exit run_example_arrays(mha_tensor *q, mha_tensor *k, mha_tensor *v)
{
    CLI_TRY(make(queries, q));
    CLI_TRY(make(keys, k));
    return make(values, v);
}
