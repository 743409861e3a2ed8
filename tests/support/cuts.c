#include "support/cuts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void add(cuts *c, int rank, int64_t begin, int64_t end)
{
    mha_piece *last = c->count[rank] ? &c->pieces[rank][c->count[rank] - 1] : NULL;
    if (last && (last->end == begin || c->count[rank] == CUTS_MOST_PIECES)) {
        if (last->end == begin) last->end = end;
        return;
    }
    c->pieces[rank][c->count[rank]++] = (mha_piece){begin, end};
}

/* Whether there is room for another piece that does not follow the last one. */
static bool has_room(const cuts *c, int rank, int64_t begin)
{
    return c->count[rank] < CUTS_MOST_PIECES || c->pieces[rank][c->count[rank] - 1].end == begin;
}

static void cut_by(cuts *c, rng *r, int64_t length, int64_t most)
{
    for (int64_t begin = 0, end; begin < length; begin = end) {
        int rank = (int)rng_between(r, 0, c->ranks - 1);
        end = begin + rng_between(r, 1, most);
        if (end > length) end = length;
        for (int i = 0; i < c->ranks && !has_room(c, rank, begin); i++)
            rank = (rank + 1) % c->ranks;
        if (!has_room(c, rank, begin)) { /* all are full: extend the last piece */
            for (rank = 0; c->pieces[rank][c->count[rank] - 1].end != begin; rank++) continue;
            end = length;
        }
        add(c, rank, begin, end);
    }
}

cuts cuts_make(rng *r, int64_t length, int ranks)
{
    cuts c = {.ranks = ranks};
    const int64_t manner = rng_between(r, 0, 4), alone = rng_between(r, 0, ranks - 1);
    const int64_t folds = rng_between(r, 1, CUTS_MOST_PIECES / 2);
    if (manner == 0) cut_by(&c, r, length, length / (2 * ranks) + 1);
    if (manner == 1) cut_by(&c, r, length, length + 1);
    if (manner == 2) add(&c, (int)alone, 0, length);
    for (int rank = 0; manner > 2 && rank < ranks; rank++)
        if (mha_split_pieces(length, rank, ranks, manner == 3 ? 0 : folds, c.pieces[rank],
                             &c.count[rank]) != MHA_OK)
            abort();
    return c;
}

int64_t cuts_rows(const cuts *c, int rank)
{
    int64_t rows = 0;
    for (int64_t i = 0; i < c->count[rank]; i++)
        rows += c->pieces[rank][i].end - c->pieces[rank][i].begin;
    return rows;
}

/* The element of x at a linear index into `shape`, with the axis counted from `first`. */
static char *element(const mha_tensor *x, const int64_t *shape, int64_t position, int axis,
                     int64_t first)
{
    int64_t at = 0;
    for (int i = x->ndim - 1; i >= 0; i--) {
        at += (position % shape[i] + (i == axis ? first : 0)) * x->stride[i];
        position /= shape[i];
    }
    return (char *)x->data + at * (int64_t)mha_dtype_size(x->dtype);
}

/* Called for each contiguous run of a rank's elements, with its address in the whole tensor and in
 * the part. */
typedef bool visit_fn(const char *whole, char *part, size_t count, mha_dtype type);

static bool visit(const cuts *c, int rank, const mha_tensor *whole, const mha_tensor *part,
                  int axis, visit_fn *fn)
{
    const mha_piece all = {0, axis >= 0 ? whole->shape[axis] : 0};
    const bool broadcast = axis < 0;
    const mha_piece *pieces = broadcast ? &all : c->pieces[rank];
    const int last = whole->ndim - 1;
    const bool side_by_side = last >= 0 && whole->stride[last] == 1 && part->stride[last] == 1;
    int64_t local = 0;
    for (int64_t i = 0; i < (broadcast ? 1 : c->count[rank]); i++) {
        int64_t shape[MHA_MAX_DIMS], count = 1;
        const int64_t first = axis >= 0 ? pieces[i].begin : 0;
        memcpy(shape, whole->shape, sizeof shape);
        if (axis >= 0) shape[axis] = pieces[i].end - pieces[i].begin;
        for (int d = 0; d < whole->ndim; d++) count *= shape[d];
        const int64_t run = side_by_side ? shape[last] : 1;
        for (int64_t e = 0; e < count; e += run)
            if (!fn(element(whole, shape, e, axis, first), element(part, shape, e, axis, local),
                    (size_t)run, whole->dtype))
                return false;
        if (axis >= 0) local += shape[axis];
    }
    return true;
}

static bool copy(const char *whole, char *part, size_t count, mha_dtype type)
{
    memcpy(part, whole, count * mha_dtype_size(type));
    return true;
}

static bool same(const char *whole, char *part, size_t count, mha_dtype type)
{
    if (memcmp(whole, part, count * mha_dtype_size(type)) == 0) return true;
    if (type != MHA_F32) return false;
    for (size_t i = 0; i < count; i++) {
        float a, b;
        memcpy(&a, whole + i * sizeof a, sizeof a);
        memcpy(&b, part + i * sizeof b, sizeof b);
        if (memcmp(&a, &b, sizeof a) != 0 && !(isnan(a) && isnan(b))) return false;
    }
    return true;
}

mha_tensor cuts_copy(const cuts *c, int rank, const mha_tensor *x, int axis)
{
    int64_t shape[MHA_MAX_DIMS], count = 1;
    memcpy(shape, x->shape, sizeof shape);
    if (axis >= 0) shape[axis] = cuts_rows(c, rank);
    for (int i = 0; i < x->ndim; i++) count *= shape[i];
    void *memory = malloc((size_t)count * mha_dtype_size(x->dtype) + 1);
    if (!memory) abort();
    const mha_tensor made = mha_tensor_contiguous(memory, x->dtype, x->ndim, shape);
    visit(c, rank, x, &made, axis, copy);
    return made;
}

bool cuts_same(const cuts *c, int rank, const mha_tensor *whole, const mha_tensor *part, int axis)
{
    return visit(c, rank, whole, part, axis, same);
}
