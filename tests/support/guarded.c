#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "support/guarded.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FRONT = 64, FILL = 0xFF };

static void must(bool condition, const char *what)
{
    if (condition) return;
    fprintf(stderr, "guarded: %s\n", what);
    abort();
}

/* The order of the axes in memory, innermost first. */
static void memory_order(rng *r, int ndim, unsigned layout, int *order)
{
    for (int i = 0; i < ndim; i++) order[i] = ndim - 1 - i;
    if ((layout & LAYOUT_SWAP) && ndim == 4) {
        order[1] = 1;
        order[2] = 2;
    }
    if ((layout & LAYOUT_PAD) && !(layout & LAYOUT_SWAP))
        for (int i = ndim - 1; i > 1; i--) { /* any order of the outer axes */
            int j = (int)rng_between(r, 1, i);
            int kept = order[i];
            order[i] = order[j];
            order[j] = kept;
        }
}

/* Set the strides and return the number of elements that the view spans. */
static int64_t lay_out(rng *r, mha_tensor *view, unsigned layout)
{
    int order[MHA_MAX_DIMS];
    memory_order(r, view->ndim, layout, order);
    int64_t step = 1, span = 1;
    for (int i = 0; i < view->ndim; i++) {
        int axis = order[i];
        bool outer = axis != view->ndim - 1;
        if ((layout & LAYOUT_PAD) && (outer || (layout & LAYOUT_LAST)))
            step += rng_chance(r, 0.7) ? rng_between(r, 1, 5) : 0;
        if ((layout & LAYOUT_REPEAT) && outer && rng_chance(r, 0.4)) {
            view->stride[axis] = 0;
            continue;
        }
        int64_t length = view->shape[axis] > 0 ? view->shape[axis] : 1;
        view->stride[axis] = step;
        span += step * (length - 1);
        step = span;
    }
    return span;
}

/* Reverse some axes; returns the offset of element 0 from the lowest element. */
static int64_t turn_axes(rng *r, mha_tensor *view, unsigned layout)
{
    int64_t start = 0;
    for (int axis = 0; axis < view->ndim; axis++) {
        bool outer = axis != view->ndim - 1;
        if (!(layout & LAYOUT_NEGATIVE) || !(outer || (layout & LAYOUT_LAST))) continue;
        if (!rng_chance(r, 0.5)) continue;
        start += view->stride[axis] * (view->shape[axis] - 1);
        view->stride[axis] = -view->stride[axis];
    }
    return start;
}

/* Allocate pages for `span` elements; element 0 of the view is `start` elements from the lowest. */
static guarded place(const mha_tensor *view, int64_t span, int64_t start, unsigned layout)
{
    guarded g = {.view = *view};
    size_t size = mha_dtype_size(view->dtype), page = (size_t)sysconf(_SC_PAGESIZE);
    size_t needed = (size_t)span * size + FRONT;
    g.bytes = (needed + page - 1) / page * page;
    unsigned char *all =
        mmap(NULL, g.bytes + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(all != MAP_FAILED, "no memory");
    g.map = all + page;
    guarded_protect(&g, false);
    const size_t lowest = layout & LAYOUT_FRONT ? 0 : g.bytes - (size_t)span * size;
    g.view.data = g.map + lowest + (size_t)start * size;
    guarded_clear(&g);
    return g;
}

guarded guarded_make(rng *r, mha_dtype dtype, int ndim, const int64_t *shape, unsigned layout)
{
    mha_tensor view = {.dtype = dtype, .ndim = ndim};
    for (int i = 0; i < ndim; i++) view.shape[i] = shape[i];
    bool empty = guarded_is_empty(&view);
    int64_t span = lay_out(r, &view, layout);
    if (empty) span = 0;
    return place(&view, span, empty ? 0 : turn_axes(r, &view, layout), layout);
}

guarded guarded_rows(mha_dtype dtype, int64_t rows, int64_t cols, int64_t stride, unsigned layout)
{
    const mha_tensor view = {
        .dtype = dtype, .ndim = 2, .shape = {rows, cols}, .stride = {stride, 1}};
    return place(&view, (rows - 1) * stride + cols, 0, layout);
}

void guarded_free(guarded *g)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (g->map) munmap(g->map - page, g->bytes + 2 * page);
    free(g->copy);
    *g = (guarded){.view = {.ndim = -1}};
}

void guarded_protect(const guarded *g, bool read_only)
{
    must(mprotect(g->map, g->bytes, read_only ? PROT_READ : PROT_READ | PROT_WRITE) == 0,
         "mprotect failed");
}

unsigned guarded_random_layout(rng *r, bool input)
{
    static const unsigned layouts[] = {LAYOUT_CONTIGUOUS,
                                       LAYOUT_SWAP,
                                       LAYOUT_PAD,
                                       LAYOUT_SWAP | LAYOUT_PAD,
                                       LAYOUT_PAD | LAYOUT_NEGATIVE,
                                       LAYOUT_SWAP | LAYOUT_NEGATIVE};
    unsigned layout = RNG_PICK(r, layouts);
    if (input && rng_chance(r, 0.15)) layout |= LAYOUT_REPEAT;
    return layout;
}

void guarded_clear(guarded *g)
{
    memset(g->map, FILL, g->bytes);
}

bool guarded_gaps_intact(const guarded *g)
{
    size_t size = mha_dtype_size(g->view.dtype);
    unsigned char *mark = calloc(g->bytes, 1);
    must(mark != NULL, "no memory");
    if (!guarded_is_empty(&g->view)) {
        int64_t index[MHA_MAX_DIMS] = {0};
        do {
            const unsigned char *element = guarded_element(&g->view, index);
            memset(mark + (element - g->map), 1, size);
        } while (guarded_next(&g->view, index));
    }
    bool intact = true;
    for (size_t i = 0; i < g->bytes && intact; i++) intact = mark[i] || g->map[i] == FILL;
    free(mark);
    return intact;
}

void guarded_snapshot(guarded *g)
{
    free(g->copy);
    g->copy = malloc(g->bytes);
    must(g->copy != NULL, "no memory");
    memcpy(g->copy, g->map, g->bytes);
}

bool guarded_unchanged(const guarded *g)
{
    return memcmp(g->copy, g->map, g->bytes) == 0;
}

void *guarded_element(const mha_tensor *view, const int64_t *index)
{
    int64_t offset = 0;
    for (int i = 0; i < view->ndim; i++) offset += index[i] * view->stride[i];
    return (unsigned char *)view->data + offset * (int64_t)mha_dtype_size(view->dtype);
}

bool guarded_next(const mha_tensor *view, int64_t *index)
{
    for (int i = view->ndim - 1; i >= 0; i--) {
        if (++index[i] < view->shape[i]) return true;
        index[i] = 0;
    }
    return false;
}

bool guarded_is_empty(const mha_tensor *view)
{
    for (int i = 0; i < view->ndim; i++)
        if (view->shape[i] == 0) return true;
    return false;
}

static bool both_nan(const void *a, const void *b)
{
    float x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x != x && y != y;
}

void guarded_fill(rng *r, const mha_tensor *view, double factor)
{
    int64_t index[MHA_MAX_DIMS] = {0};
    if (guarded_is_empty(view)) return;
    do *(float *)guarded_element(view, index) = (float)((double)rng_normal(r) * factor);
    while (guarded_next(view, index));
}

guarded guarded_filled(rng *r, int ndim, const int64_t *shape, unsigned layout, double factor)
{
    guarded g = guarded_make(r, MHA_F32, ndim, shape, layout);
    guarded_fill(r, &g.view, factor);
    return g;
}

bool guarded_same_bits(const mha_tensor *a, const mha_tensor *b, bool nan_alike)
{
    size_t size = mha_dtype_size(a->dtype);
    if (a->ndim != b->ndim || a->dtype != b->dtype) return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->shape[i] != b->shape[i]) return false;
    if (guarded_is_empty(a)) return true;
    int64_t index[MHA_MAX_DIMS] = {0};
    do {
        const void *x = guarded_element(a, index), *y = guarded_element(b, index);
        if (memcmp(x, y, size) == 0) continue;
        if (!(nan_alike && a->dtype == MHA_F32 && both_nan(x, y))) return false;
    } while (guarded_next(a, index));
    return true;
}

mha_tensor guarded_slice(const mha_tensor *view, int axis, int64_t from, int64_t count)
{
    mha_tensor part = *view;
    int64_t size = (int64_t)mha_dtype_size(view->dtype);
    part.shape[axis] = count;
    if (!guarded_is_empty(view))
        part.data = (unsigned char *)view->data + from * view->stride[axis] * size;
    return part;
}

void guarded_sprinkle(rng *r, const mha_tensor *x, double chance, const float *odd, int count)
{
    int64_t index[MHA_MAX_DIMS] = {0};
    if (guarded_is_empty(x)) return;
    do
        if (rng_chance(r, chance))
            *(float *)guarded_element(x, index) = odd[rng_between(r, 0, count - 1)];
    while (guarded_next(x, index));
}
