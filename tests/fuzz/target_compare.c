/* An older measurement, which `bench --compare` reads. */
#include "fuzz.h"

FUZZ_MUTATOR("t")

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_BYTES];
    fuzz_path("before.json", path);
    fuzz_write("before.json", (fuzz_part){data, size});
    const char *const arguments[] = {"bench",      "gemm", "--rows",    "1", "--outputs", "1",
                                     "--inputs",   "1",    "--samples", "1", "--seconds", "0",
                                     "--patience", "0",    "--threads", "1", "--compare", path,
                                     NULL};
    fuzz_program(arguments);
    return 0;
}
