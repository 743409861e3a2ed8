/* All keys and values at every rank that has queries. */
#ifndef MHAI_GATHER_H
#define MHAI_GATHER_H

#include "distributed/ring.h"

/* Room for all rows of a tensor of this rank, in scratch. */
MHA_NODISCARD mha_status mhai_gather_take(mha_context *context, const mhai_split *s,
                                          const mha_tensor *x, mha_tensor *all);

/* Let all parcels come by a ring that has begun. Rows that nobody here needs are left out: they are 0. */
MHA_NODISCARD mha_status mhai_gather_keys(mhai_ring *ring, const mha_tensor *k,
                                          const mha_tensor *v);

#endif
