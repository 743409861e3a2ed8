/* The problems of `multihead run --example`: three tokens with four features, small enough for
 * pencil and paper. */
#include "run/run.h"

#include <string.h>

enum { TOKENS = 3, SIZE = 4 };

/* The first query is parallel to the second key, the second lies between the first two keys, and
 * the third is parallel to the third key and longer. Values are easy to distinguish. For modules
 * all numbers are small integers; with two heads, the first rows of W_o add them and the last rows
 * subtract them. The order is that of run_example. */
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
