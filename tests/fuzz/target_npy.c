/* A .npy file. An accepted array must have the size of its shape, and writing and reading must
 * preserve it. */
#include "fuzz.h"

#include <multihead/io.h>

#include <string.h>

FUZZ_MUTATOR("n")

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_BYTES];
    mha_npy *array, *again;
    int64_t count = 0;
    fuzz_write("in.npy", (fuzz_part){data, size});
    fuzz_path("in.npy", path);
    const mha_status status = mha_npy_read(path, &array);
    fuzz_must_speak(status);
    if (status != MHA_OK) return 0;
    const mha_tensor tensor = mha_npy_tensor(array);
    fuzz_touch(&tensor);
    fuzz_path("again.npy", path);
    fuzz_must(mha_npy_write(path, &tensor) == MHA_OK, "what was read cannot be written");
    fuzz_must(mha_npy_read(path, &again) == MHA_OK, "what was written cannot be read");
    const mha_tensor copy = mha_npy_tensor(again);
    fuzz_must(mha_tensor_count(&tensor, &count) == MHA_OK && copy.dtype == tensor.dtype &&
                  copy.ndim == tensor.ndim &&
                  memcmp(copy.shape, tensor.shape, (size_t)copy.ndim * sizeof *copy.shape) == 0,
              "another array");
    fuzz_must(count == 0 ||
                  memcmp(copy.data, tensor.data, (size_t)count * mha_dtype_size(tensor.dtype)) == 0,
              "other elements");
    mha_npy_destroy(again);
    mha_npy_destroy(array);
    return 0;
}
