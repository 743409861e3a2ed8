/* See heads_folder.h. */
#define _XOPEN_SOURCE 700 /* mkdtemp */
#include "heads/heads_folder.h"

#include "common/arena.h"
#include "common/files.h"
#include "heads/heads.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, DEEPEST = 3 };

cli_exit heads_folder_fail(const char *path)
{
    return cli_fail(CLI_NO_OUTPUT, HEADS, "%s: cannot write: %s", path, strerror(errno));
}

cli_exit heads_folder_check(const char *option, const char *path)
{
    struct stat status;
    if (!path) return CLI_OK;
    if (!*path || lstat(path, &status) == 0)
        return cli_fail(CLI_USAGE, HEADS, "%s %s: exists; name a new folder", option, path);
    return cli_check(HEADS, files_check_folder(path));
}

cli_exit heads_folder_make(const char *path, char **folder)
{
    const size_t bytes = strlen(path) + 16;
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--; /* beside it, not in it */
    *folder = NULL;
    char *made;
    CLI_TRY(ARENA_ALLOC(HEADS, (int64_t)bytes, &made));
    snprintf(made, bytes, "%.*s.part-XXXXXX", (int)end, path);
    if (!mkdtemp(made)) return heads_folder_fail(path);
    *folder = made;
    const mode_t mask = umask(0); /* mkdtemp() is for its owner alone */
    umask(mask);
    return chmod(made, 0777 & ~mask) == 0 ? CLI_OK : heads_folder_fail(path);
}

/* Only what was written here is in it; links are not followed. */
static void remove_all(const char *folder, int depth)
{
    char path[PATH_BYTES];
    DIR *open = opendir(folder);
    for (struct dirent *e; open && (e = readdir(open));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        if (snprintf(path, sizeof path, "%s/%s", folder, e->d_name) >= (int)sizeof path) continue;
        if (unlink(path) != 0 && depth < DEEPEST) remove_all(path, depth + 1);
    }
    if (open) closedir(open);
    rmdir(folder);
}

cli_exit heads_folder_finish(const char *path, const char *folder, cli_exit result)
{
    if (result == CLI_OK && rename(folder, path) != 0) result = heads_folder_fail(path);
    if (result != CLI_OK && folder) remove_all(folder, 0);
    return result;
}
