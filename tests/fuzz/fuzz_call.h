/* A call on tensors between guard pages: it writes nothing on an error, all of its outputs and
 * nothing else on success, never an input, and the same bits with one and with two threads. */
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
    mha_tensor right[FUZZ_MOST_TENSORS]; /* the views before anything was spoiled */
    int count, own;
    guarded made[FUZZ_MOST_TENSORS];
    bool in_place; /* an output may be the very view of an input: then it is not called here, where
                      inputs cannot be written */
    bool resized;  /* a struct has another size: outputs past its end are not requested */
    unsigned isa;  /* of the last check */
} fuzz_call;

/* Begin with a seed and choices. */
void fuzz_call_make(fuzz_call *c, fuzz_part *in);
void fuzz_call_free(fuzz_call *c);

/* Let the call know a tensor that others made. */
void fuzz_call_add(fuzz_call *c, guarded *tensor, bool output);

/* A tensor of some layout. Inputs hold random numbers, now and then odd ones. */
mha_tensor *fuzz_input(fuzz_call *c, mha_dtype dtype, int ndim, const int64_t *shape);
mha_tensor *fuzz_output(fuzz_call *c, mha_dtype dtype, int ndim, const int64_t *shape);

/* One that broadcasts to the shape: fewer axes, some of length 1. */
mha_tensor *fuzz_broadcast(fuzz_call *c, mha_dtype dtype, int ndim, const int64_t *shape);

/* f32 mostly, else f16 or bf16. */
mha_dtype fuzz_float(fuzz_call *c);

/* Perhaps spoil some tensors, or let an output lie on an input. */
void fuzz_call_spoil(fuzz_call *c);

/* False where a spoiled view claims memory that is not there: then only what does not read it may
 * be called. */
bool fuzz_call_backed(const fuzz_call *c);

/* The same numbers at sizes that the struct had once, or never: in memory of exactly that size. */
void *fuzz_struct(fuzz_call *c, const void *given, size_t size);

typedef mha_status fuzz_call_fn(mha_context *context, void *user);

/* The call itself, twice. Hands back its status. */
mha_status fuzz_call_check(fuzz_call *c, fuzz_call_fn *call, void *user);

/* After a check that succeeded: another call must succeed too, and write the same; `what` says what it
 * means if not. */
void fuzz_call_compare(fuzz_call *c, fuzz_call_fn *call, void *user, const char *what);

#endif
