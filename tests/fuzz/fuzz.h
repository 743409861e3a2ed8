/* What the fuzz targets share. An input is cut into parts at lines FUZZ_CUT; parts become choices,
 * files of a folder of the process's own, or arguments of the program. */
#ifndef FUZZ_H
#define FUZZ_H

#include "support/rng.h"

#include <multihead/base.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FUZZ_CUT "\n=8<=\n"

enum { FUZZ_PATH_BYTES = 256, FUZZ_MOST_PARTS = 8 };

/* What libFuzzer calls; each target has the first, and the second by FUZZ_MUTATOR. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);

typedef struct fuzz_part {
    const uint8_t *data;
    size_t size;
} fuzz_part;

/* A finding: says what and stops the process, so that the input is kept. */
void fuzz_must(bool condition, const char *what);

/* As fuzz_must() of a public call: a failure has a status of the list and says something. */
void fuzz_must_speak(mha_status status);

/* Cut an input: parts[0 .. most-1], those that are missing empty. */
void fuzz_cut(const uint8_t *data, size_t size, fuzz_part *parts, int most);

/* ---- choices ------------------------------------------------------------------------------- */

/* Read from the front of a part; 0 when nothing is left. */
uint64_t fuzz_take(fuzz_part *part, int bytes);
int64_t fuzz_pick(fuzz_part *part, int64_t low, int64_t high);
double fuzz_double(fuzz_part *part);           /* any bits, the odd ones often */
char *fuzz_text(fuzz_part *part, size_t most); /* a new string, or NULL; free() it */
char *fuzz_string(fuzz_part part);             /* all of it as one */

/* Write one field of a tensor's shape, strides, type or number of axes over with something else:
 * rarely sensible. */
void fuzz_spoil_tensor(fuzz_part *part, mha_tensor *tensor);

/* True if all that a view spans lies in memory of `bytes` bytes at `memory`. */
bool fuzz_backed(const mha_tensor *view, const void *memory, size_t bytes);

/* A context of the process, made once: threads is 1 or 2, isa one that is there. */
mha_context *fuzz_context(int threads, unsigned isa);

/* ---- files and the program ----------------------------------------------------------------- */

/* The folder of this process, in memory where possible; MHA_FUZZ_FOLDER says where. */
const char *fuzz_folder(void);
void fuzz_path(const char *name, char path[FUZZ_PATH_BYTES]);
void fuzz_write(const char *name, fuzz_part content);

/* Remove everything in the folder, or what lies in a folder below it. */
void fuzz_clear(const char *below);

/* Every byte of a tensor, so that the sanitizer sees where it lies. */
void fuzz_touch(const mha_tensor *tensor);

/* The program's own main() with these arguments, up to a NULL: its exit code. That it is one of
 * those that it promises for bad input, says why, prints no control characters and leaves no
 * half-written file, is checked. */
int fuzz_program(const char *const *arguments);

/* A model that the program has trained for a step, of one layer of two heads: it takes any word, and those
 * that it does not know are <unk>. */
void fuzz_make_model(char model[FUZZ_PATH_BYTES]);

/* ---- mutation ------------------------------------------------------------------------------ */

/* A letter a part: t text, s safetensors, n .npy, b bytes. Numbers in texts are replaced by others,
 * and the lengths that stand before a header follow it, so that mutants get past the first check.
 */
size_t fuzz_mutate(uint8_t *data, size_t size, size_t most, unsigned seed, const char *kinds);

#define FUZZ_MUTATOR(kinds)                                                                \
    size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed) \
    {                                                                                      \
        return fuzz_mutate(data, size, most, seed, kinds);                                 \
    }

#endif
