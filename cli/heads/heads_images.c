/* The images of 'multihead heads --image': files, and all PNG and JPEG files of folders. */
#include "common/arena.h"
#include "heads/heads.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

static cli_exit add(heads_sources *sources, const char *path)
{
    return heads_sources_add(sources, (heads_source){.file = path, .image = true});
}

static bool is_image(const char *name)
{
    static const char *const ends[] = {".png", ".jpg", ".jpeg"};
    const char *end = strrchr(name, '.');
    bool is = false;
    for (int i = 0; i < 3; i++) is = is || (end && end != name && !strcasecmp(end, ends[i]));
    return is;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const heads_source *)a)->file, ((const heads_source *)b)->file);
}

static cli_exit add_entries(heads_sources *sources, const char *path, DIR *folder)
{
    const int64_t first = sources->count;
    for (struct dirent *e; (e = readdir(folder));) {
        const char *name;
        if (!is_image(e->d_name)) continue;
        CLI_TRY(arena_print(&name, "%s/%s", path, e->d_name));
        CLI_TRY(add(sources, name));
    }
    if (sources->count == first)
        return cli_fail(CLI_NO_INPUT, "--image %s: the folder has no .png, .jpg or .jpeg file",
                        path);
    qsort(sources->items + first, (size_t)(sources->count - first), sizeof *sources->items,
          by_name);
    return CLI_OK;
}

static cli_exit add_folder(heads_sources *sources, const char *path)
{
    DIR *folder = opendir(path);
    if (!folder) return cli_fail(CLI_NO_INPUT, "--image %s: %s", path, strerror(errno));
    const cli_exit result = add_entries(sources, path, folder);
    closedir(folder);
    return result;
}

cli_exit heads_images_read(const heads_options *options, heads_sources *sources)
{
    struct stat status;
    *sources = (heads_sources){0};
    for (int i = 0; i < options->images.count; i++) {
        const char *path = options->images.items[i];
        const bool folder = stat(path, &status) == 0 && S_ISDIR(status.st_mode);
        CLI_TRY(folder ? add_folder(sources, path) : add(sources, path));
    }
    return CLI_OK;
}
