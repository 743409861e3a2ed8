/* Input arrays of `run` and `explain`. Parts: choices, a list, q.npy, k.npy, v.npy and another array, x.safetensors. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

FUZZ_MUTATOR("btnnnns")

/* The options whose argument is the other array or the list. */
static const char *const uses[] = {
    "--keep-mask",      "--bias",          "--lengths",      "--offsets",         "--global-keys",
    "--global-queries", "--documents",     "--keep-blocks",  "--query-starts",    "--alibi-slopes",
    "--t5-table",       "--shaw-keys",     "--shaw-values",  "--sink-logits",     "--gates",
    "--positions",      "--key-positions", "--mass-offsets", "--query-documents", "--key-documents",
    "--key-starts",     "--pick-heads"};
enum { USES = sizeof uses / sizeof *uses };
static const char *const flags[] = {"--causal", "--linear", "--rope",          "--alibi",
                                    "--strict", "--trace",  "--after-dropout", "--t5-one-sided"};
static const char *const values[][2] = {
    {"--window", "1,1"},     {"--softcap", "2"},     {"--dropout", "0.5"},  {"--qk-norm", "rms"},
    {"--block-size", "2x2"}, {"--heads", "2"},       {"--kv-heads", "1"},   {"--layout", "bthd"},
    {"--dtype", "bf16"},     {"--path", "plain"},    {"--compute", "bf16"}, {"--sink-keys", "1"},
    {"--pick-rows", "0"},    {"--trace-limit", "3"}, {"--scale", "0.5"},    {"--offset", "1"}};
static const char *const outputs[] = {
    "--out",     "--lse",         "--probabilities", "--average",  "--scores",
    "--entropy", "--largest-key", "--offset-mass",   "--top-keys", "--column-sums"};

typedef struct line {
    const char *words[48];
    int count;
} line;

static void add(line *l, const char *a, const char *b)
{
    l->words[l->count++] = a;
    if (b) l->words[l->count++] = b;
}

static void add_choices(line *l, fuzz_part *choices, const char *other, const char *list)
{
    static char out[3][FUZZ_PATH_BYTES];
    const uint64_t how = fuzz_take(choices, 1);
    if (how & 1) add(l, uses[fuzz_take(choices, 1) % USES], other);
    if (how & 2) add(l, uses[fuzz_take(choices, 1) % USES], list);
    for (int i = 0; i < (int)(how >> 2 & 3); i++) add(l, flags[fuzz_take(choices, 1) % 8], NULL);
    for (int i = 0; i < (int)(how >> 4 & 3); i++) {
        const char *const *pair = values[fuzz_take(choices, 1) % 16];
        add(l, pair[0], pair[1]);
    }
    for (int i = 0; i < (int)(how >> 6 & 3); i++) {
        const char name[] = {'o', (char)('0' + i), 0};
        fuzz_path(name, out[i]);
        add(l, outputs[fuzz_take(choices, 1) % 10], out[i]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"q.npy", "k.npy", "v.npy", "a.npy", "x.safetensors"};
    fuzz_part parts[7];
    char path[5][FUZZ_PATH_BYTES + 2];
    line l = {.count = 0};
    fuzz_cut(data, size, parts, 7);
    fuzz_clear(NULL);
    for (int i = 0; i < 5; i++) {
        fuzz_path(names[i], path[i]);
        fuzz_write(names[i], parts[i + 2]);
    }
    char *list = fuzz_string(parts[1]);
    const int way = (int)fuzz_take(&parts[0], 1) % 8;
    if (way == 0) {
        add(&l, "explain", "--q"), add(&l, path[0], NULL);
    } else if (way < 3) {
        add(&l, "run", "--x"), add(&l, way == 1 ? path[0] : strcat(path[4], ":x"), NULL);
    } else {
        add(&l, "run", "--q"), add(&l, path[0], "--k");
        add(&l, path[1], "--v"), add(&l, path[2], NULL);
    }
    add(&l, "--threads", "1");
    if (way > 0) add_choices(&l, &parts[0], path[3], list);
    fuzz_program(l.words);
    free(list);
    return 0;
}
