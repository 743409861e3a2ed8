/* A sequence divided at random into pieces for ranks, and tensors of the rows of some pieces. */
#ifndef TEST_CUTS_H
#define TEST_CUTS_H

#include "support/rng.h"
#include "support/thread_ranks.h"

#include <multihead/distributed.h>

enum { CUTS_MOST_PIECES = 6 };

/* The pieces of each rank. Each row occurs once; pieces may be empty. */
typedef struct cuts {
    int ranks;
    mha_piece pieces[MOST_THREAD_RANKS][CUTS_MOST_PIECES];
    int64_t count[MOST_THREAD_RANKS];
} cuts;

/* Divide by one of several patterns: even, zigzag, random, striped, all on one rank. */
cuts cuts_make(rng *r, int64_t length, int ranks);

int64_t cuts_rows(const cuts *c, int rank);

/* A contiguous copy, from malloc(), of the rows of a rank's pieces on an axis of x. axis -1: of all
 * x. */
mha_tensor cuts_copy(const cuts *c, int rank, const mha_tensor *x, int axis);

/* Whether part equals a rank's rows of whole byte by byte. All NaNs are equal. */
bool cuts_same(const cuts *c, int rank, const mha_tensor *whole, const mha_tensor *part, int axis);

#endif
