/* The contexts of ranks that are threads, by instruction set: made once. */
#ifndef TEST_RANK_CONTEXTS_H
#define TEST_RANK_CONTEXTS_H

#include "support/machines.h"

enum { MOST_RANKS = 8 };

/* That of a rank on machine number `at`; odd ranks have two threads. */
mha_context *rank_contexts_of(const machine *m, int at, int rank);

/* Of a group of tests, at its end. */
int rank_contexts_destroy(void **state);

#endif
