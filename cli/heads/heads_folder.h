/* A new folder that appears with everything in it, or not at all: it is filled beside its place. */
#ifndef CLI_HEADS_FOLDER_H
#define CLI_HEADS_FOLDER_H

#include "common/exits.h"

/* Whether such a folder can be made, before any work; option names it in messages. NULL: none. */
cli_exit heads_folder_check(const char *option, const char *path);

/* *folder, in the arena, to be filled with files; NULL if none was made. */
cli_exit heads_folder_make(const char *path, char **folder);

/* Make a folder in it, to be filled with files; at most two. */
cli_exit heads_folder_add(const char *folder, const char *name);

/* It gets its name if result is CLI_OK, else it is removed. folder NULL: there is none. Gives result,
 * or what went wrong. */
cli_exit heads_folder_finish(const char *path, const char *folder, cli_exit result);

/* Print why path cannot be written, from errno. */
cli_exit heads_folder_fail(const char *path);

#endif
