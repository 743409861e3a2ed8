/* The problems that `multihead run --example` shows: three tokens with four features, small enough
 * for pencil and paper. */
#include "run/run.h"

#include <string.h>

enum { TOKENS = 3, SIZE = 4, MEMORY_TOKENS = 2 };

/* The first query points along the second key, the second between the first two keys, the third
 * along the third key, and more strongly. Values are told apart at a glance. */
static const float queries[TOKENS * SIZE] = {0, 2, 0, 0, 1, 1, 0, 0, 0, 0, 2, 2};
static const float keys[TOKENS * SIZE] = {2, 0, 0, 0, 0, 2, 0, 0, 0, 0, 2, 2};
static const float values[TOKENS * SIZE] = {1, 0, 0, 10, 0, 1, 0, 20, 0, 0, 1, 30};

/* --module: small whole numbers. W_o adds the heads in its first rows and subtracts them in its last
 * ones, if there are two. */
static const float tokens[TOKENS * SIZE] = {1, 0, 1, 0, 0, 2, 0, 1, 1, 1, 0, 0};
static const float memory_tokens[MEMORY_TOKENS * SIZE] = {2, 0, 0, 1, 0, 1, 1, 0};
static const float weights[4][SIZE * SIZE] = {
    {1, 0, 0, 1, 0, 1, 1, 0, 1, 1, 0, 0, 0, 0, 1, -1},
    {0, 1, 0, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 0, -1, 0},
    {0, 1, 0, 0, 1, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, -1},
    {1, 0, 1, 0, 0, 1, 0, 1, 1, 0, -1, 0, 0, 1, 0, -1},
};

static cli_exit make(const float *numbers, int64_t rows, mha_tensor *array)
{
    CLI_TRY(run_array_make(MHA_F32, 2, (int64_t[]){rows, SIZE}, array));
    memcpy(array->data, numbers, (size_t)rows * SIZE * sizeof *numbers);
    return CLI_OK;
}

cli_exit run_example_arrays(mha_tensor *q, mha_tensor *k, mha_tensor *v)
{
    CLI_TRY(make(queries, TOKENS, q));
    CLI_TRY(make(keys, TOKENS, k));
    return make(values, TOKENS, v);
}

cli_exit run_example_tokens(bool memory, mha_tensor *array)
{
    return memory ? make(memory_tokens, MEMORY_TOKENS, array) : make(tokens, TOKENS, array);
}

cli_exit run_example_weight(int which, int64_t rows, mha_tensor *array)
{
    return make(weights[which], rows, array);
}
