/* A new folder that appears complete or not at all. It is filled under a temporary name beside its
 * final path. */
#ifndef CLI_HEADS_FOLDER_H
#define CLI_HEADS_FOLDER_H

#include "common/exits.h"

/* Check before any work that the folder can be created. Messages name option. path NULL: none. */
cli_exit heads_folder_check(const char *option, const char *path);

/* Write the folder: fill(of) writes the files into *folder, a temporary one. Signals are held. */
cli_exit heads_folder_write(const char *path, char **folder, cli_exit (*fill)(void *of), void *of);

/* Create a subfolder to be filled with files; at most two. */
cli_exit heads_folder_add(const char *folder, const char *name);

#endif
