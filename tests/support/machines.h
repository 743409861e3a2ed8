/* The available variants of the library: each instruction set, and the plain path. */
#ifndef TEST_MACHINES_H
#define TEST_MACHINES_H

#include <multihead/attention.h>

typedef struct machine {
    mha_context *context;
    mha_path path;
    mha_isa isa;
    const char *name;
} machine;

enum { MOST_MACHINES = 8 };

typedef struct machines {
    machine each[MOST_MACHINES];
    int count;
} machines;

/* A context of num_threads for each available instruction set. Contexts are created once and shared
 * by the program's tests. Stops the process if one cannot be created. */
machines machines_make(int num_threads);

/* Contexts for the tiled path only, each with one thread and with three. */
machines machines_tiled(void);

/* One of the contexts for case i, in rotation. */
mha_context *machines_context(int num_threads, int64_t i);

/* Destroy all contexts; called by RUN_TESTS(). */
void machines_finish(void);

/* Print the variants that are not available. */
void machines_print_missing(void);

#endif
