/* Files for tests: a temporary folder, helpers to fill and empty it, and mutations of bytes. */
#ifndef TEMP_FILES_H
#define TEMP_FILES_H

#include <multihead/base.h>

/* Make a new empty folder. Ends the test program on failure. For RUN_TESTS_BETWEEN(); returns 0. */
int temp_begin(void **state);

/* Remove the folder and everything in it. For RUN_TESTS_BETWEEN(); returns 0. */
int temp_end(void **state);

/* The path of name within the folder, valid until the eighth next call. */
const char *temp_path(const char *name);

/* Write a file in the folder. name may contain one subfolder, which is created. Returns the
 * path. */
const char *temp_write(const char *name, const void *bytes, size_t size);

/* The number of entries of the folder, not recursive. */
int temp_count(void);

/* Read any file. The contents are followed by a zero byte; *size may be NULL. Free the result with
 * free(). */
char *temp_read(const char *path, size_t *size);

/* Change bytes in place, reproducibly for a seed: flip bits, replace bytes (often by digits and
 * brackets), repeat a range, or truncate the end. *size may decrease. */
void mutate(unsigned char *bytes, size_t *size, uint32_t seed);

#endif
