/* Token files for an array of weights. Parts: choices, the file. */
#include "fuzz.h"

#include <multihead/io.h>

FUZZ_MUTATOR("bt")

enum { TOKENS = 3 };

static void write_maps(const char *path)
{
    float weights[TOKENS * TOKENS];
    for (int i = 0; i < TOKENS * TOKENS; i++) weights[i] = (float)i / 9;
    const mha_tensor maps = mha_tensor_contiguous(weights, MHA_F32, 2, (int64_t[]){TOKENS, TOKENS});
    fuzz_must(mha_npy_write(path, &maps) == MHA_OK, "the array cannot be written");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const outputs[] = {"--terminal", "--json", "--svg", "-o"};
    static const char *const hidden[] = {"special", "a", "b,c"};
    fuzz_part parts[2];
    char maps[FUZZ_PATH_BYTES], tokens[FUZZ_PATH_BYTES], out[FUZZ_PATH_BYTES];
    fuzz_cut(data, size, parts, 2);
    const char *file = fuzz_take(&parts[0], 1) & 1 ? "tokens.json" : "tokens.txt";
    const int output = (int)fuzz_take(&parts[0], 1) & 3;
    fuzz_path("maps.npy", maps);
    fuzz_path(file, tokens);
    fuzz_path("out.html", out);
    fuzz_write(file, parts[1]);
    write_maps(maps);
    const char *arguments[24] = {"view", "--attention", maps, "--tokens", tokens};
    int count = 5;
    arguments[count++] = outputs[output];
    if (output == 1) arguments[count++] = "-";
    if (output > 1) arguments[count++] = out;
    if (fuzz_take(&parts[0], 1) & 1) arguments[count++] = "--ascii";
    if (fuzz_take(&parts[0], 1) & 1) {
        arguments[count++] = "--hide";
        arguments[count++] = hidden[fuzz_take(&parts[0], 1) % 3];
    }
    fuzz_program(arguments);
    return 0;
}
