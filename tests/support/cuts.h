/* A sequence cut into pieces that ranks have, at random, and tensors of the rows of some pieces. */
#ifndef TEST_CUTS_H
#define TEST_CUTS_H

#include "support/rng.h"
#include "support/thread_ranks.h"

#include <multihead/distributed.h>

enum { CUTS_MOST_PIECES = 6 };

/* The pieces of each rank; together each row once, some of them empty. */
typedef struct cuts {
    int ranks;
    mha_piece pieces[MOST_THREAD_RANKS][CUTS_MOST_PIECES];
    int64_t count[MOST_THREAD_RANKS];
} cuts;

/* In one of several manners: even, zigzag, anywhere, in stripes, all at one rank. */
cuts cuts_make(rng *r, int64_t length, int ranks);

int64_t cuts_rows(const cuts *c, int rank);

/* Contiguous copy of the rows of a rank's pieces on an axis of x, in malloc()'s memory; axis
 * -1: of all. */
mha_tensor cuts_copy(const cuts *c, int rank, const mha_tensor *x, int axis);

/* Whether part holds, byte for byte, a rank's rows of whole; all NaNs are alike. */
bool cuts_same(const cuts *c, int rank, const mha_tensor *whole, const mha_tensor *part, int axis);

#endif
