/* Bounds of the difference between the library's gradients and backward_reference(): "Attention
 * backward" in docs/numerics.md, evaluated for each element with its own sums. */
#ifndef TEST_BACKWARD_BOUNDS_H
#define TEST_BACKWARD_BOUNDS_H

#include "reference/backward_reference.h"
#include "reference/bounds.h"

/* The bounds of every gradient, given the gradients. Assumes that the library's o and lse are from
 * its forward pass in the same arithmetic. */
void backward_bounds(const ref_attention *a, const bound_arith *arith, const backward_loss *loss,
                     const backward_arrays *exact, backward_arrays *bound);

#endif
