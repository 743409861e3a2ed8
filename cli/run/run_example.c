/* The problems that `multihead run --example` shows: three tokens with four features, small enough
 * for pencil and paper. */
#include "run/run.h"

#include <string.h>

enum { TOKENS = 3, SIZE = 4 };

/* The first query points along the second key, the second between the first two keys, the third
 * along the third key, and more strongly. Values are told apart at a glance. Of a module all are
 * small whole numbers; W_o adds the heads in its first rows and subtracts them in its last ones, if
 * there are two. In the order of run_example. */
static const struct {
    int64_t rows;
    float numbers[SIZE * SIZE];
} arrays[] = {
    {TOKENS, {0, 2, 0, 0, 1, 1, 0, 0, 0, 0, 2, 2}},
    {TOKENS, {2, 0, 0, 0, 0, 2, 0, 0, 0, 0, 2, 2}},
    {TOKENS, {1, 0, 0, 10, 0, 1, 0, 20, 0, 0, 1, 30}},
    {TOKENS, {1, 0, 1, 0, 0, 2, 0, 1, 1, 1, 0, 0}},
    {2, {2, 0, 0, 1, 0, 1, 1, 0}},
    {SIZE, {1, 0, 0, 1, 0, 1, 1, 0, 1, 1, 0, 0, 0, 0, 1, -1}},
    {SIZE, {0, 1, 0, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 0, -1, 0}},
    {SIZE, {0, 1, 0, 0, 1, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, -1}},
    {SIZE, {1, 0, 1, 0, 0, 1, 0, 1, 1, 0, -1, 0, 0, 1, 0, -1}},
};

cli_exit run_example_make(int which, int64_t rows, mha_tensor *array)
{
    if (rows > arrays[which].rows || rows == 0) rows = arrays[which].rows;
    CLI_TRY(run_array_make(MHA_F32, 2, (int64_t[]){rows, SIZE}, array));
    memcpy(array->data, arrays[which].numbers, (size_t)rows * SIZE * sizeof(float));
    return CLI_OK;
}
