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

/* A context of num_threads for each; instruction sets that are not here are left out. Stops the
 * process if a context cannot be made. */
machines machines_make(int num_threads);
void machines_free(machines *all);

/* Say which are left out. */
void machines_print_missing(void);

#endif
