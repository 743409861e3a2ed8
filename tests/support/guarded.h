/* Tensors in guarded memory.
 *
 * All memory around and between the elements is 0xFF (a NaN as f32); unreadable pages precede the memory and follow the
 * last element. Reading a gap changes the numbers, guarded_gaps_intact() detects writes to one, and reading beyond the
 * end stops the test. */
#ifndef TEST_GUARDED_H
#define TEST_GUARDED_H

#include "support/rng.h"

#include <multihead/base.h>

/* The layout of the elements; flags may be combined. */
enum {
    LAYOUT_CONTIGUOUS = 0,
    LAYOUT_SWAP = 1 << 0,     /* axes 1 and 2 exchanged in memory: [B,T,H,D] */
    LAYOUT_PAD = 1 << 1,      /* odd gaps between rows, matrices, ... */
    LAYOUT_NEGATIVE = 1 << 2, /* some outer axes run backwards */
    LAYOUT_REPEAT = 1 << 3,   /* some outer axes have stride 0: inputs only */
    LAYOUT_LAST = 1 << 4,     /* the last axis may also have gaps or run backwards */
    LAYOUT_FRONT = 1 << 5     /* the lowest element directly follows the unreadable page */
};

typedef struct guarded {
    mha_tensor view;
    unsigned char *map; /* whole pages; those before and after are not readable */
    size_t bytes;
    unsigned char *copy; /* made by guarded_snapshot() */
} guarded;

/* Make a tensor whose bytes are all 0xFF. Stops the process if memory runs out. */
guarded guarded_make(rng *r, mha_dtype dtype, int ndim, const int64_t *shape, unsigned layout);
void guarded_free(guarded *g);

/* The same for rows and columns, at least one of each, with a given stride. Supports LAYOUT_FRONT
 * only. */
guarded guarded_rows(mha_dtype dtype, int64_t rows, int64_t cols, int64_t stride, unsigned layout);

/* Fill every element of a tensor of f32 with a normal number times factor. */
void guarded_fill(rng *r, const mha_tensor *view, double factor);
guarded guarded_filled(rng *r, int ndim, const int64_t *shape, unsigned layout, double factor);

/* Make the memory read-only, or writable again. */
void guarded_protect(const guarded *g, bool read_only);

/* A random layout. */
unsigned guarded_random_layout(rng *r, bool input);

/* Fill with 0xFF again. */
void guarded_clear(guarded *g);

/* Whether only elements were written since guarded_make() or guarded_clear(). */
bool guarded_gaps_intact(const guarded *g);

/* Store all bytes, and compare them later. */
void guarded_snapshot(guarded *g);
bool guarded_unchanged(const guarded *g);

/* The address of an element; index has ndim entries. */
void *guarded_element(const mha_tensor *view, const int64_t *index);

/* Step an index through a shape, last axis fastest. Returns false after the last element. Start
 * with zeros. The shape must not be empty (guarded_is_empty()). */
bool guarded_next(const mha_tensor *view, int64_t *index);
bool guarded_is_empty(const mha_tensor *view);

/* Write random choices of `odd` numbers into some elements of a tensor of f32. */
void guarded_sprinkle(rng *r, const mha_tensor *view, double chance, const float *odd, int count);

/* Whether shape and all bits are equal. All NaNs are equal if nan_alike. */
bool guarded_same_bits(const mha_tensor *a, const mha_tensor *b, bool nan_alike);

/* The part from .. from + count - 1 of one axis. */
mha_tensor guarded_slice(const mha_tensor *view, int axis, int64_t from, int64_t count);

#endif
