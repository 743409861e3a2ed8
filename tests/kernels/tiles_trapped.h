/* Runs the machine code of tiles on processors that do not have them: each of their instructions traps, and
 * a handler decodes and emulates it. */
#ifndef TILES_TRAPPED_H
#define TILES_TRAPPED_H

#include <stdbool.h>

/* Installs the handler of SIGILL, which cmocka replaces in each test. Returns false, and does nothing, where
 * the machine has tiles, or lacks what else their kernels need, or is not Linux on x86-64. */
bool tiles_trapped(void);

#endif
