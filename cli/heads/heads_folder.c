/* See heads_folder.h. */
#define _XOPEN_SOURCE 700 /* mkdtemp */
#include "heads/heads_folder.h"

#include "common/arena.h"
#include "common/files.h"
#include "common/signals.h"
#include "heads/heads.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, MOST_FOLDERS = 2 };

static cli_exit fail(const char *path)
{
    return cli_fail(errno == ENOMEM ? CLI_NO_MEMORY : CLI_NO_OUTPUT, "%s: cannot write: %s", path,
                    strerror(errno));
}

cli_exit heads_folder_check(const char *option, const char *path)
{
    struct stat status;
    if (!path) return CLI_OK;
    if (!*path || lstat(path, &status) == 0)
        return cli_fail(CLI_USAGE, "%s %s: exists; name a new folder", option, path);
    return cli_check(files_check_folder(path));
}

/* The folder and its subfolders, opened at the start, so that removing them needs no memory. */
static struct {
    DIR *open[1 + MOST_FOLDERS];
    int count;
} made;

static cli_exit keep_open(const char *folder)
{
    made.open[made.count] = opendir(folder);
    if (made.open[made.count++]) return CLI_OK;
    made.count--;
    const cli_exit code = fail(folder);
    rmdir(folder);
    return code;
}

static cli_exit make_folder(const char *path, char **folder)
{
    const size_t bytes = strlen(path) + 16;
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--; /* create it beside path, not in it */
    *folder = NULL;
    char *name;
    CLI_TRY(ARENA_ALLOC((int64_t)bytes, &name));
    snprintf(name, bytes, "%.*s.part-XXXXXX", (int)end, path);
    if (!mkdtemp(name)) return fail(path);
    CLI_TRY(keep_open(name));
    *folder = name;
    const mode_t mask = umask(0); /* mkdtemp() grants access to the owner only */
    umask(mask);
    return chmod(name, 0777 & ~mask) == 0 ? CLI_OK : fail(path);
}

cli_exit heads_folder_add(const char *folder, const char *name)
{
    char path[PATH_BYTES];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return cli_fail(CLI_NO_OUTPUT, "%s: its path is too long", name);
    return mkdir(path, 0777) == 0 ? keep_open(path) : fail(path);
}

/* The folder holds only files of this run, and subfolders, which finish() empties first. */
static void remove_files(DIR *folder)
{
    rewinddir(folder);
    for (struct dirent *e; (e = readdir(folder));)
        if (unlinkat(dirfd(folder), e->d_name, 0) != 0)
            unlinkat(dirfd(folder), e->d_name, AT_REMOVEDIR);
}

/* Rename the folder if result is CLI_OK, else remove it. Return result, or the error. */
static cli_exit finish(const char *path, const char *folder, cli_exit result)
{
    if (result == CLI_OK && rename(folder, path) != 0) result = fail(path);
    while (made.count > 0) {
        DIR *last = made.open[--made.count];
        if (result != CLI_OK) remove_files(last);
        closedir(last);
    }
    if (result != CLI_OK && folder) rmdir(folder);
    return result;
}

cli_exit heads_folder_write(const char *path, char **folder, cli_exit (*fill)(void *of), void *of)
{
    signals_hold(); /* fill() checks for signals after each text */
    cli_exit result = make_folder(path, folder);
    if (result == CLI_OK) result = fill(of);
    result = finish(path, *folder, result);
    signals_release();
    return result;
}
