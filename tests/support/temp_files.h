/* Files for tests: a temporary folder, helpers to fill and empty it, and mutations of bytes. */
#ifndef TEMP_FILES_H
#define TEMP_FILES_H

#include <multihead/base.h>

/* Make a new empty folder; ends the test program if it cannot. For RUN_TESTS_BETWEEN(), 0. */
int temp_begin(void **state);

/* Remove the folder and everything in it. For RUN_TESTS_BETWEEN(), 0. */
int temp_end(void **state);

/* The path of name within the folder. Valid until the eighth next call. */
const char *temp_path(const char *name);

/* Write a file in the folder; name may contain one subfolder, which is created. Returns its path. */
const char *temp_write(const char *name, const void *bytes, size_t size);

/* The number of entries of the folder, not recursive. */
int temp_count(void);

/* The contents of any file, with a zero byte behind; *size may be NULL. Free it with free(). */
char *temp_read(const char *path, size_t *size);

/* Change bytes in place, the same way for the same seed: bits flipped, bytes replaced (often by
 * digits and brackets), a stretch repeated, or the end cut off. *size may shrink. */
void mutate(unsigned char *bytes, size_t *size, uint32_t seed);

#endif
