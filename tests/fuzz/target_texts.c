/* Texts, and sentences with links (CoNLL-U), for the process's own model. Parts: choices, the file,
 * a word. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

FUZZ_MUTATOR("btt")

static char model[FUZZ_PATH_BYTES];

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const ways[][8] = {
        {"heads", "--random", "0", "--conllu"},
        {"heads", "--random", "0", "--details", "--conllu"},
        {"heads", "--random", "0", "--json", "--conllu"},
        {"heads", "--random", "0", "--predict", "--csv", "--conllu"},
        {"heads", "--random", "0", "--text"},
        {"heads", "--random", "0", "--whole", "--truncate", "--json", "--text"},
        {"view", "--truncate", "--text-file"},
        {"view", "--truncate", "--json", "-", "--text-file"},
        {"view", "--truncate", "--desk", "0", "--text-file"},
        {"prune", "--dry-run", "--step", "1", "--text"}};
    fuzz_part parts[3];
    char file[FUZZ_PATH_BYTES];
    if (!*model) fuzz_make_model(model);
    fuzz_cut(data, size, parts, 3);
    fuzz_path("file", file);
    fuzz_write("file", parts[1]);
    const int way = (int)fuzz_take(&parts[0], 1) % 12;
    char *word = fuzz_string(parts[2]);
    const char *arguments[24] = {NULL};
    int count = 0;
    if (way < 10) {
        while (ways[way][count]) arguments[count] = ways[way][count], count++;
        arguments[count++] = file;
        arguments[count++] = model;
    } else {
        arguments[count++] = "generate";
        arguments[count++] = "--max-tokens";
        arguments[count++] = "3";
        if (way == 11) arguments[count++] = "--ids";
        arguments[count++] = "--";
        arguments[count++] = model;
        arguments[count++] = word;
    }
    if (way == 6 && parts[2].size > 0) {
        arguments[count++] = "--from";
        arguments[count++] = word;
        arguments[count++] = "--to";
        arguments[count++] = fuzz_take(&parts[0], 1) & 1 ? word : "animal";
    }
    fuzz_program(arguments);
    free(word);
    return 0;
}
