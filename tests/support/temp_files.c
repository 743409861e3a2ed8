#define _XOPEN_SOURCE 700 /* nftw */
#include "support/temp_files.h"

#include <dirent.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[512];

int temp_begin(void **state)
{
    (void)state;
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/multihead-test-XXXXXX", base && *base ? base : "/tmp");
    if (mkdtemp(folder)) return 0;
    perror(folder);
    exit(1);
}

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *walk)
{
    (void)status;
    (void)kind;
    (void)walk;
    return remove(path);
}

int temp_end(void **state)
{
    (void)state;
    nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    return 0;
}

const char *temp_path(const char *name)
{
    static _Thread_local char paths[8][1024]; /* ranks are threads */
    static _Thread_local int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

const char *temp_write(const char *name, const void *bytes, size_t size)
{
    const char *path = temp_path(name);
    const char *slash = strchr(name, '/');
    if (slash) {
        char parent[1024];
        snprintf(parent, sizeof parent, "%s/%.*s", folder, (int)(slash - name), name);
        mkdir(parent, 0777);
    }
    remove(path); /* some file systems flush at once when old contents are replaced */
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    if (size > 0) assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
    return path;
}

int temp_count(void)
{
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    int count = -2; /* . and .. */
    while (readdir(dir)) count++;
    closedir(dir);
    return count;
}

char *temp_read(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    size_t length = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(length + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, length, file), length);
    bytes[length] = '\0';
    fclose(file);
    if (size) *size = length;
    return bytes;
}

static uint32_t draw(uint32_t *state) /* xorshift (Marsaglia 2003) */
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

void mutate(unsigned char *bytes, size_t *size, uint32_t seed)
{
    static const char likely[] = "0123456789-{}[]()\",:'.eE\\ \n\xff\x80";
    uint32_t state = seed * 2654435761u + 1;
    for (uint32_t changes = 1 + draw(&state) % 3; changes > 0 && *size > 0; changes--) {
        /* Half of the changes are at the beginning, which has the lengths and headers. */
        size_t reach = draw(&state) % 2 && *size > 64 ? 64 : *size;
        size_t at = draw(&state) % reach, from = draw(&state) % *size;
        size_t most = *size - (at > from ? at : from), length = draw(&state) % 16;
        switch (draw(&state) % 8) {
        case 0:
        case 1: bytes[at] ^= (unsigned char)(1u << draw(&state) % 8); break;
        case 2:
        case 3:
        case 4: bytes[at] = (unsigned char)likely[draw(&state) % (sizeof likely - 1)]; break;
        case 5: bytes[at] = (unsigned char)draw(&state); break;
        case 6: memmove(bytes + at, bytes + from, length < most ? length : most); break;
        default: *size = at; break;
        }
    }
}
