/* A call on tensors between guard pages. It must write nothing on an error, exactly its outputs on success, and the
 * same bits with one and two threads. */
#ifndef FUZZ_CALL_H
#define FUZZ_CALL_H

#include "fuzz.h"
#include "support/guarded.h"

enum { FUZZ_MOST_TENSORS = 64 };

typedef struct fuzz_call {
    rng r;
    fuzz_part *in; /* choices */
    guarded *all[FUZZ_MOST_TENSORS];
    bool output[FUZZ_MOST_TENSORS];
    mha_tensor right[FUZZ_MOST_TENSORS]; /* the original views */
    int count, own;
    guarded made[FUZZ_MOST_TENSORS];
    bool
        in_place; /* an output may equal an input's view; such calls are skipped here, where inputs are read-only */
    bool resized; /* a struct has a different size; outputs beyond its end are not requested */
    unsigned isa; /* the instruction set of the last check */
} fuzz_call;

/* Starts with a seed and choices. */
void fuzz_call_make(fuzz_call *c, fuzz_part *in);
void fuzz_call_free(fuzz_call *c);

/* Registers a tensor that the caller has created. */
void fuzz_call_add(fuzz_call *c, guarded *tensor, bool output);

/* A tensor with a random layout. Inputs have random numbers and occasional special values. */
mha_tensor *fuzz_input(fuzz_call *c, mha_dtype dtype, int ndim, const int64_t *shape);
mha_tensor *fuzz_output(fuzz_call *c, mha_dtype dtype, int ndim, const int64_t *shape);

/* A tensor that broadcasts to the shape: fewer axes, some of length 1. */
mha_tensor *fuzz_broadcast(fuzz_call *c, mha_dtype dtype, int ndim, const int64_t *shape);

/* Usually f32, otherwise f16 or bf16. */
mha_dtype fuzz_float(fuzz_call *c);

/* Makes some random tensors invalid, or lets an output overlap an input. */
void fuzz_call_spoil(fuzz_call *c);

/* False if an invalid view exceeds its memory. Only functions that do not read it may then be
 * called. */
bool fuzz_call_backed(const fuzz_call *c);

/* A copy of the struct with an older or invalid size, in memory of exactly that size. */
void *fuzz_struct(fuzz_call *c, const void *given, size_t size);

typedef mha_status fuzz_call_fn(mha_context *context, void *user);

/* Makes the call twice and returns its status. */
mha_status fuzz_call_check(fuzz_call *c, fuzz_call_fn *call, void *user);

/* After a successful check, makes another call, which must succeed and write the same bytes;
 * otherwise reports `what`. */
void fuzz_call_compare(fuzz_call *c, fuzz_call_fn *call, void *user, const char *what);

#endif
