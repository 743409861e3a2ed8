/* Runs a target with files and folders of files, without libFuzzer: fuzz_NAME PATH ... */
#include "fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most)
{
    (void)data;
    (void)most;
    return size;
}

static void fail(const char *path)
{
    perror(path);
    exit(2);
}

/* The memory has exactly the input's size, so that a sanitizer detects reads beyond it. */
static int run_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0) fail(path);
    const size_t size = (size_t)ftell(file);
    uint8_t *data = malloc(size > 0 ? size : 1);
    rewind(file);
    if (!data || fread(data, 1, size, file) != size) fail(path);
    fclose(file);
    fprintf(stderr, "%s\n", path);
    LLVMFuzzerTestOneInput(data, size);
    free(data);
    return 1;
}

static int run_path(const char *path)
{
    struct stat status;
    if (stat(path, &status) != 0) fail(path);
    if (!S_ISDIR(status.st_mode)) return run_file(path);
    struct dirent **names = NULL;
    const int count = scandir(path, &names, NULL, alphasort);
    int done = 0;
    if (count < 0) fail(path);
    for (int i = 0; i < count; i++) {
        char inside[4096];
        snprintf(inside, sizeof inside, "%s/%s", path, names[i]->d_name);
        if (names[i]->d_name[0] != '.') done += run_path(inside);
        free(names[i]);
    }
    free(names);
    return done;
}

int main(int argc, char **argv)
{
    int done = 0;
    for (int i = 1; i < argc; i++) done += run_path(argv[i]);
    printf("%d inputs\n", done);
    return done > 0 ? 0 : 2;
}
