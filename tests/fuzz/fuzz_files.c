/* Files of the process, and calls of the program with them. See fuzz.h. */
#define _GNU_SOURCE /* nftw() */
#include "fuzz.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[FUZZ_PATH_BYTES];

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info, (void)kind;
    if (where->level > 0) remove(path);
    return 0;
}

static void clear(const char *path)
{
    nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static void remove_folder(void)
{
    clear(folder);
    rmdir(folder);
}

const char *fuzz_folder(void)
{
    if (*folder) return folder;
    const char *given = getenv("MHA_FUZZ_FOLDER");
    const char *place = given && *given ? given : access("/dev/shm", W_OK) ? "." : "/dev/shm";
    snprintf(folder, sizeof folder, "%s/multihead-fuzz-XXXXXX", place);
    fuzz_must(mkdtemp(folder) != NULL, "no folder for files: MHA_FUZZ_FOLDER names one");
    atexit(remove_folder);
    return folder;
}

void fuzz_path(const char *name, char path[FUZZ_PATH_BYTES])
{
    const int length = snprintf(path, FUZZ_PATH_BYTES, "%s/%s", fuzz_folder(), name);
    fuzz_must(length > 0 && length < FUZZ_PATH_BYTES, "a path that is too long");
}

void fuzz_write(const char *name, fuzz_part content)
{
    char path[FUZZ_PATH_BYTES];
    fuzz_path(name, path);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    fuzz_must(fd >= 0 && write(fd, content.data, content.size) == (ssize_t)content.size &&
                  close(fd) == 0,
              "the folder for files cannot be written to");
}

void fuzz_clear(const char *below)
{
    char path[FUZZ_PATH_BYTES];
    fuzz_path(below ? below : ".", path);
    clear(path);
}

void fuzz_touch(const mha_tensor *tensor)
{
    int64_t count = 0;
    if (mha_tensor_count(tensor, &count) != MHA_OK) fuzz_must(false, "a tensor without a size");
    const volatile unsigned char *bytes = tensor->data;
    for (size_t i = 0; i < (size_t)count * mha_dtype_size(tensor->dtype); i++) (void)bytes[i];
}

/* ---- the program --------------------------------------------------------------------------- */

/* main() of cli/main.c, renamed. */
int multihead_main(int count, char **arguments);

/* Readable output has no control characters except line ends: there is no terminal, and no option requests colours. */
static void check_text(const char *text, size_t size, const char *what)
{
    if (!text) return;
    for (size_t i = 0; i < size; i++) {
        const unsigned char c = (unsigned char)text[i];
        const bool high = c == 0xC2 && i + 1 < size && (unsigned char)text[i + 1] - 0x80u < 0x20;
        if ((c >= 0x20 && c != 0x7f && !high) || c == '\n' || c == '\t') continue;
        dprintf(2, "\n%.*s\n", (int)(size < 2000 ? size : 2000), text);
        fuzz_must(false, what);
    }
}

static int remember(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info, (void)kind, (void)where;
    return strstr(path, ".part") != NULL;
}

/* In C libraries with libFuzzer, stdout and stderr are variables. */
int fuzz_program(const char *const *arguments)
{
    enum { MOST = 48 };
    char *copy[MOST + 2] = {strdup("multihead")};
    int count = 1;
    while (count <= MOST && arguments[count - 1]) {
        copy[count] = strdup(arguments[count - 1]);
        count++;
    }
    char *said[2] = {NULL, NULL};
    size_t size[2] = {0, 0};
    FILE *before[2] = {stdout, stderr};
    stdout = open_memstream(&said[0], &size[0]);
    stderr = open_memstream(&said[1], &size[1]);
    fuzz_must(stdout && stderr, "out of memory");
    const int code = multihead_main(count, copy);
    fclose(stdout), fclose(stderr);
    stdout = before[0], stderr = before[1];
    if (getenv("MHA_FUZZ_SHOW")) dprintf(2, "%d\n%s%s", code, said[0], said[1]);
    fuzz_must(code != 1 && code >= 0 && code <= 7, "the program calls it a fault of its own");
    fuzz_must(code == 0 || size[1] > 0, "the program failed without a word");
    check_text(said[0], size[0], "a control character on stdout");
    check_text(said[1], size[1], "a control character on stderr");
    fuzz_must(nftw(fuzz_folder(), remember, 8, FTW_PHYS) == 0, "a half-written file is left");
    for (int i = 0; i < count; i++) free(copy[i]);
    free(said[0]), free(said[1]);
    return code;
}

void fuzz_make_model(char model[FUZZ_PATH_BYTES])
{
    static const char line[] = "the animal did not cross the street because it was too tired .\n";
    char text[FUZZ_PATH_BYTES], *lines = calloc(20, sizeof line);
    fuzz_must(lines != NULL, "out of memory");
    for (size_t i = 0; i < 20; i++) memcpy(lines + i * (sizeof line - 1), line, sizeof line - 1);
    fuzz_write("text", (fuzz_part){(const uint8_t *)lines, 20 * (sizeof line - 1)});
    free(lines);
    fuzz_path("text", text);
    fuzz_path("model", model);
    const char *const arguments[] = {"train", "--text",    text,  "--layers",  "1", "--heads",
                                     "2",     "--embed",   "4",   "--ff",      "0", "--batch",
                                     "1",     "--every",   "1",   "--steps",   "1", "--tries",
                                     "1",     "--context", "16",  "--threads", "1", "--no-report",
                                     "-q",    "-o",        model, NULL};
    fuzz_must(fuzz_program(arguments) == 0, "no model");
}
