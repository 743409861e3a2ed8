/* A new folder that appears complete or not at all: it is filled under a temporary name beside its
 * path. */
#ifndef CLI_HEADS_FOLDER_H
#define CLI_HEADS_FOLDER_H

#include "common/exits.h"

/* Check before any work that such a folder can be created; messages name option. NULL: none. */
cli_exit heads_folder_check(const char *option, const char *path);

/* Create a temporary folder, in the arena, to be filled with files; NULL if none was created. */
cli_exit heads_folder_make(const char *path, char **folder);

/* Create a subfolder to be filled with files; at most two. */
cli_exit heads_folder_add(const char *folder, const char *name);

/* Rename the folder if result is CLI_OK, else remove it. folder may be NULL. Returns result, or the
 * error. */
cli_exit heads_folder_finish(const char *path, const char *folder, cli_exit result);

/* Print why path cannot be written, from errno. */
cli_exit heads_folder_fail(const char *path);

#endif
