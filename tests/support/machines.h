/* What the library can compute with here: each instruction set, and the plain path. */
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

/* A context of num_threads for each; instruction sets that are not here are left out. They are made
 * once and belong to the program, whose tests share them. Stops the process if one cannot be made. */
machines machines_make(int num_threads);

/* Of the tiled path only, each with one thread and with three. */
machines machines_tiled(void);

/* One of their contexts, for case number i of many: each has its turn. */
mha_context *machines_context(int num_threads, int64_t i);

/* The end of all that were made; RUN_TESTS() says it. */
void machines_finish(void);

/* Say which are left out. */
void machines_print_missing(void);

#endif
