/* Tensors in memory that notices what should not happen to it.
 *
 * All memory around and between the elements holds 0xFF (a NaN as f32); after the last element
 * lies a page that must not be read, and another one before the memory. So reading a gap shows in
 * the numbers, writing one is found by guarded_gaps_intact(), and reading beyond the end stops the
 * test. */
#ifndef TEST_GUARDED_H
#define TEST_GUARDED_H

#include "support/rng.h"

#include <multihead/base.h>

/* How the elements lie; flags may be combined. */
enum {
    LAYOUT_CONTIGUOUS = 0,
    LAYOUT_SWAP = 1 << 0,     /* axes 1 and 2 exchanged in memory: [B,T,H,D] */
    LAYOUT_PAD = 1 << 1,      /* odd gaps between rows, matrices, ... */
    LAYOUT_NEGATIVE = 1 << 2, /* some outer axes run backwards */
    LAYOUT_REPEAT = 1 << 3,   /* some outer axes have stride 0: inputs only */
    LAYOUT_LAST = 1 << 4,     /* the last axis may have a gap or run backwards too */
    LAYOUT_FRONT = 1 << 5     /* the lowest element stands right behind the page in front */
};

typedef struct guarded {
    mha_tensor view;
    unsigned char *map; /* whole pages; those before and behind are not readable */
    size_t bytes;
    unsigned char *copy; /* guarded_snapshot() */
} guarded;

/* All bytes 0xFF. Stops the process where memory is short: there is nothing to test then. */
guarded guarded_make(rng *r, mha_dtype dtype, int ndim, const int64_t *shape, unsigned layout);
void guarded_free(guarded *g);

/* The same of rows and columns, at least one of each, with a stride of one's own; of the layouts
 * only LAYOUT_FRONT. */
guarded guarded_rows(mha_dtype dtype, int64_t rows, int64_t cols, int64_t stride, unsigned layout);

/* Normal numbers times a factor in every element of a tensor of f32. */
void guarded_fill(rng *r, const mha_tensor *view, double factor);
guarded guarded_filled(rng *r, int ndim, const int64_t *shape, unsigned layout, double factor);

/* Memory that may be read only, or again written too. */
void guarded_protect(const guarded *g, bool read_only);

/* A random layout. */
unsigned guarded_random_layout(rng *r, bool input);

/* Put 0xFF everywhere again. */
void guarded_clear(guarded *g);

/* Nothing but elements was written since guarded_make() or guarded_clear(). */
bool guarded_gaps_intact(const guarded *g);

/* Remember every byte; later: are they all the same? */
void guarded_snapshot(guarded *g);
bool guarded_unchanged(const guarded *g);

/* Address of an element; index has ndim entries. */
void *guarded_element(const mha_tensor *view, const int64_t *index);

/* Step an index through a shape, last axis fastest; false after the last element. Start from
 * zeros; an empty shape must not be started (guarded_is_empty). */
bool guarded_next(const mha_tensor *view, int64_t *index);
bool guarded_is_empty(const mha_tensor *view);

/* One of some numbers into some elements of a tensor of f32. */
void guarded_sprinkle(rng *r, const mha_tensor *view, double chance, const float *odd, int count);

/* Same shape and the same bits in every element; all NaNs count as the same if nan_alike. */
bool guarded_same_bits(const mha_tensor *a, const mha_tensor *b, bool nan_alike);

/* The part from .. from+count-1 of one axis. */
mha_tensor guarded_slice(const mha_tensor *view, int axis, int64_t from, int64_t count);

#endif
