/* Shared by the fuzz targets. Lines FUZZ_CUT split an input into parts, which become choices, files in the process's
 * own folder, or arguments of the program. */
#ifndef FUZZ_H
#define FUZZ_H

#include "support/rng.h"

#include <multihead/base.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FUZZ_CUT "\n=8<=\n"

enum { FUZZ_PATH_BYTES = 256, FUZZ_MOST_PARTS = 8 };

/* libFuzzer calls both. Each target defines the first, and FUZZ_MUTATOR defines the second. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);

typedef struct fuzz_part {
    const uint8_t *data;
    size_t size;
} fuzz_part;

/* Reports a finding and stops the process, so that libFuzzer keeps the input. */
void fuzz_must(bool condition, const char *what);

/* fuzz_must() for a public call: a failure must have a documented status and a message. */
void fuzz_must_speak(mha_status status);

/* Splits an input into parts[0 .. most-1]. Missing parts are empty. */
void fuzz_cut(const uint8_t *data, size_t size, fuzz_part *parts, int most);

/* ---- choices ------------------------------------------------------------------------------- */

/* Read from the beginning of a part, or return 0 at its end. */
uint64_t fuzz_take(fuzz_part *part, int bytes);
int64_t fuzz_pick(fuzz_part *part, int64_t low, int64_t high);
double fuzz_double(fuzz_part *part);           /* any bits, often special values */
char *fuzz_text(fuzz_part *part, size_t most); /* a new string, or NULL; free() it */
char *fuzz_string(fuzz_part part);             /* the whole part as a string */

/* Overwrites one field of a tensor's shape, strides, type or number of axes, usually with an
 * invalid value. */
void fuzz_spoil_tensor(fuzz_part *part, mha_tensor *tensor);

/* Whether a view is within `bytes` bytes at `memory`. */
bool fuzz_backed(const mha_tensor *view, const void *memory, size_t bytes);

/* A shared context of the process; threads is 1 or 2, and isa is an available instruction set. */
mha_context *fuzz_context(int threads, unsigned isa);

/* ---- files and the program ----------------------------------------------------------------- */

/* The folder of this process, in memory if possible; MHA_FUZZ_FOLDER sets its parent. */
const char *fuzz_folder(void);
void fuzz_path(const char *name, char path[FUZZ_PATH_BYTES]);
void fuzz_write(const char *name, fuzz_part content);

/* Removes everything in the folder, or in a subfolder. */
void fuzz_clear(const char *below);

/* Reads every byte of a tensor, so that the sanitizer checks its bounds. */
void fuzz_touch(const mha_tensor *tensor);

/* Calls the program's main() with these arguments, up to a NULL, and returns its exit code. Checks
 * that the code is documented for bad input, that the program prints a reason, and that there are
 * no control characters and no partly written files. */
int fuzz_program(const char *const *arguments);

/* A model that the program trains for one step, with one layer of two heads. Unknown words become
 * <unk>. */
void fuzz_make_model(char model[FUZZ_PATH_BYTES]);

/* ---- mutation ------------------------------------------------------------------------------ */

/* One letter for each part: t text, s safetensors, n .npy, b bytes. A mutation replaces numbers in
 * texts and updates the lengths before headers, so that mutants pass the first checks.
 */
size_t fuzz_mutate(uint8_t *data, size_t size, size_t most, unsigned seed, const char *kinds);

#define FUZZ_MUTATOR(kinds)                                                                \
    size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed) \
    {                                                                                      \
        return fuzz_mutate(data, size, most, seed, kinds);                                 \
    }

#endif
