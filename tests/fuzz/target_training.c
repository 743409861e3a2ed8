/* The state of a training: the program goes on where the file says it stood. Parts: a byte that
 * chooses, training.safetensors. */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int train(const char *folder, const char *steps)
{
    const char *const arguments[] = {"train",       "induction", "--layers", "1",         "--heads",
                                     "1",           "--embed",   "2",        "--ff",      "0",
                                     "--batch",     "1",         "--every",  "1",         "--steps",
                                     steps,         "--tries",   "1",        "--threads", "1",
                                     "--no-report", "-q",        "-o",       folder,      NULL};
    return fuzz_program(arguments);
}

/* The state that the program itself leaves, behind what this target wants before it. */
static size_t whole_state(uint8_t *data, size_t most)
{
    char path[FUZZ_PATH_BYTES];
    const size_t front = 1 + strlen(FUZZ_CUT);
    if (most < front) return 0;
    fuzz_clear(NULL);
    fuzz_path(".", path);
    fuzz_must(train(path, "2") == 0, "no training");
    fuzz_path("training.safetensors", path);
    FILE *file = fopen(path, "rb");
    fuzz_must(file != NULL, "no state of a training");
    memcpy(data, "\0" FUZZ_CUT, front);
    const size_t size = front + fread(data + front, 1, most - front, file);
    fclose(file);
    return size;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
    if (size < 64 || seed % 64 == 0) return whole_state(data, most);
    return fuzz_mutate(data, size, most, seed, "bs");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_part parts[2];
    char folder[FUZZ_PATH_BYTES];
    fuzz_cut(data, size, parts, 2);
    fuzz_clear(NULL);
    fuzz_write("training.safetensors", parts[1]);
    fuzz_path(".", folder);
    train(folder, fuzz_take(&parts[0], 1) & 1 ? "3" : "2");
    return 0;
}
