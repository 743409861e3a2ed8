/* The state of a training, which the program resumes. Parts: a byte of choices,
 * training.safetensors. */
#include "fuzz.h"

#include <stdio.h>
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

/* A state that the program has saved, after this target's own part. */
static size_t whole_state(uint8_t *data, size_t most)
{
    static uint8_t kept[1 << 14];
    static size_t size;
    const size_t front = 1 + strlen(FUZZ_CUT);
    if (size == 0) {
        char path[FUZZ_PATH_BYTES];
        fuzz_clear(NULL);
        fuzz_path(".", path);
        fuzz_must(train(path, "2") == 0, "no training");
        fuzz_path("training.safetensors", path);
        FILE *file = fopen(path, "rb");
        fuzz_must(file != NULL, "no state of a training");
        memcpy(kept, "\0" FUZZ_CUT, front);
        size = front + fread(kept + front, 1, sizeof kept - front, file);
        fclose(file);
    }
    if (size > most) return 0;
    memcpy(data, kept, size);
    return size;
}

/* Every second mutant derives from a valid state, because most other inputs are rejected
 * immediately. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
    const size_t whole = size < 64 || seed % 2 == 0 ? whole_state(data, most) : 0;
    if (whole > 0) size = whole;
    return whole > 0 && seed % 64 == 0 ? size : fuzz_mutate(data, size, most, seed / 2, "bs");
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
