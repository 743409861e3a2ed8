/* The contexts of ranks (threads), by instruction set, created once. */
#ifndef TEST_RANK_CONTEXTS_H
#define TEST_RANK_CONTEXTS_H

#include "support/machines.h"

enum { MOST_RANKS = 8 };

/* The context of a rank on machine `at`; odd ranks have two threads. */
mha_context *rank_contexts_of(const machine *m, int at, int rank);

/* Call it at the end of a group of tests. */
int rank_contexts_destroy(void **state);

#endif
