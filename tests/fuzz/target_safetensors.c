/* A safetensors file. An accepted file must be completely readable, and writing and reading must
 * preserve it. */
#include "fuzz.h"

#include <multihead/io.h>

#include <string.h>

FUZZ_MUTATOR("s")

static void look_at(const mha_safetensors *file)
{
    const int64_t count = mha_safetensors_count(file);
    fuzz_must(count >= 0, "a negative count");
    fuzz_must(!mha_safetensors_name(file, -1) && !mha_safetensors_name(file, count),
              "a name beyond the last");
    fuzz_must(mha_safetensors_find(file, "\x01") < 0, "a name that no file has");
    for (int64_t i = 0; i < count; i++) {
        mha_tensor tensor;
        const char *name = mha_safetensors_name(file, i);
        fuzz_must(name && mha_safetensors_find(file, name) == i, "a name that is not found");
        const mha_status status = mha_safetensors_tensor(file, i, &tensor);
        fuzz_must_speak(status);
        if (status != MHA_OK) continue;
        int64_t elements = 0;
        fuzz_must(mha_tensor_count(&tensor, &elements) == MHA_OK, "a tensor without a size");
        fuzz_must(elements == 0 || (uintptr_t)tensor.data % mha_dtype_size(tensor.dtype) == 0,
                  "not aligned");
        fuzz_touch(&tensor);
    }
    mha_safetensors_metadata(file, "format");
    mha_safetensors_metadata(file, "");
}

/* Writes all tensors with their names to a new file. */
static void copy(const mha_safetensors *file)
{
    enum { MOST = 16 };
    const char *names[MOST];
    mha_tensor tensors[MOST];
    char path[FUZZ_PATH_BYTES];
    int64_t count = 0;
    for (int64_t i = 0; i < mha_safetensors_count(file) && count < MOST; i++)
        if (mha_safetensors_tensor(file, i, &tensors[count]) == MHA_OK &&
            *(names[count] = mha_safetensors_name(file, i)))
            count++;
    mha_safetensors *again;
    fuzz_path("again.safetensors", path);
    fuzz_must(mha_safetensors_write(path, names, tensors, count, NULL) == MHA_OK,
              "what was read cannot be written");
    fuzz_must(mha_safetensors_open(path, &again) == MHA_OK, "what was written cannot be read");
    fuzz_must(mha_safetensors_count(again) == count, "another number of tensors");
    for (int64_t i = 0; i < count; i++) {
        mha_tensor tensor;
        int64_t elements = 0;
        const int64_t found = mha_safetensors_find(again, names[i]);
        fuzz_must(found >= 0 && mha_safetensors_tensor(again, found, &tensor) == MHA_OK,
                  "a tensor is lost");
        fuzz_must(mha_tensor_count(&tensor, &elements) == MHA_OK &&
                      tensor.dtype == tensors[i].dtype && tensor.ndim == tensors[i].ndim,
                  "another tensor");
        fuzz_must(elements == 0 || memcmp(tensor.data, tensors[i].data,
                                          (size_t)elements * mha_dtype_size(tensor.dtype)) == 0,
                  "other bytes");
    }
    mha_safetensors_close(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_BYTES];
    mha_safetensors *file;
    fuzz_write("in.safetensors", (fuzz_part){data, size});
    fuzz_path("in.safetensors", path);
    const mha_status status = mha_safetensors_open(path, &file);
    fuzz_must_speak(status);
    if (status != MHA_OK) return 0;
    look_at(file);
    copy(file);
    mha_safetensors_close(file);
    return 0;
}
