/* See split.h. */
#include "distributed/split.h"

#include "base/checked.h"
#include "base/need.h"
#include "ranks/rank_messages.h"

#include <multihead/component.h>

#include <stdlib.h>
#include <string.h>

/* ---- cutting --------------------------------------------------------------------------------- */

/* The first row of piece i of count. Pieces consist of whole chunks. */
static int64_t cut_at(int64_t length, int64_t i, int64_t count)
{
    const int64_t chunks = mhai_ceil_div(length, MHA_SPLIT_ROWS);
    return mhai_min_i64(length, (chunks / count * i + chunks % count * i / count) * MHA_SPLIT_ROWS);
}

mha_status mha_split_pieces(int64_t length, int32_t rank, int32_t size, int64_t folds,
                            mha_piece *pieces, int64_t *count)
{
    enum { MOST_FOLDS = 1 << 20 };
    MHA_NEED("mha_split_pieces", pieces, count);
    if (length < 0 || size < 1 || rank < 0 || rank >= size || folds < 0 || folds > MOST_FOLDS)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_split_pieces: length %lld, rank %d of %d, folds %lld: expected a "
                        "length >= 0, a rank below size, and 0 to %d folds",
                        (long long)length, (int)rank, (int)size, (long long)folds, (int)MOST_FOLDS);
    *count = folds > 0 ? 2 * folds : 1;
    for (int64_t i = 0; i < *count; i++) {
        const int64_t number = i % 2 == 0 ? i * size + rank : (i + 1) * size - 1 - rank;
        pieces[i] = (mha_piece){cut_at(length, number, *count * size),
                                cut_at(length, number + 1, *count * size)};
    }
    return MHA_OK;
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static mha_status check_pieces(const char *name, const mha_piece *pieces, int64_t count,
                               int64_t length, int64_t *rows)
{
    int64_t last = 0;
    *rows = 0;
    if (count < 0 || (count > 0 && !pieces))
        return mha_fail(MHA_ERR_ARGUMENT, "mha_sequence_split: %lld %s at %p", (long long)count,
                        name, (const void *)pieces);
    for (int64_t i = 0; i < count; i++) {
        if (pieces[i].begin < last || pieces[i].end < pieces[i].begin || pieces[i].end > length)
            return mha_fail(MHA_ERR_ARGUMENT,
                            "mha_sequence_split: %s[%lld] is %lld .. %lld; pieces ascend within "
                            "0 .. %lld",
                            name, (long long)i, (long long)pieces[i].begin,
                            (long long)pieces[i].end, (long long)length);
        last = pieces[i].end;
        *rows += pieces[i].end - pieces[i].begin;
    }
    return MHA_OK;
}

mha_status mhai_split_check(const mha_sequence_split *given, mhai_split *s)
{
    *s = (mhai_split){.t = given->transport};
    MHA_TRY(
        mhai_struct_copy("mha_sequence_split", &s->given, sizeof s->given, sizeof s->given, given));
    MHA_TRY(mhai_check_flags("mha_sequence_split", s->given.flags, 0));
    if (s->given.queries < 0 || s->given.keys < 0)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_sequence_split: %lld queries and %lld keys",
                        (long long)s->given.queries, (long long)s->given.keys);
    MHA_TRY(check_pieces("query_pieces", s->given.query_pieces, s->given.query_piece_count,
                         s->given.queries, &s->rows));
    return check_pieces("key_pieces", s->given.key_pieces, s->given.key_piece_count, s->given.keys,
                        &s->key_rows);
}

static int compare_owned(const void *a, const void *b)
{
    const mhai_owned *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* Allocate memory for the pieces of all ranks, `most` per rank. */
static mha_status take_pieces(mha_context *context, const mha_transport *t, int64_t most,
                              mhai_owned **all, mhai_owned **own)
{
    int64_t total;
    if (!mhai_mul_i64(most, t->size, &total))
        return mha_fail(MHA_ERR_SIZE, "mha_sequence_split: too many pieces");
    MHA_TRY(mha_scratch_alloc(context, total, sizeof **all, all));
    MHA_TRY(mha_scratch_alloc(context, most, sizeof **own, own));
    return MHA_OK;
}

/* Gather the pieces of all ranks on every rank, and sort them. */
static mha_status share_pieces(const mha_transport *t, const mha_piece *pieces, int64_t count,
                               int64_t most, mhai_owned *own, mhai_owned *all, int64_t *all_count)
{
    int64_t local = 0;
    for (int64_t i = 0; i < most; i++) {
        own[i] = (mhai_owned){.rank = t->rank, .local = local};
        if (i >= count) continue;
        own[i].begin = pieces[i].begin, own[i].end = pieces[i].end;
        local += pieces[i].end - pieces[i].begin;
    }
    const size_t bytes = (size_t)most * sizeof *own;
    MHA_TRY(mha_transport_gather(t, 0, own, bytes, t->rank == 0 ? all : NULL));
    MHA_TRY(mha_transport_broadcast(t, 0, all, (size_t)t->size * bytes));
    *all_count = 0;
    for (int64_t i = 0; i < most * t->size; i++)
        if (all[i].begin < all[i].end) all[(*all_count)++] = all[i];
    if (*all_count > 0) qsort(all, (size_t)*all_count, sizeof *all, compare_owned);
    return MHA_OK;
}

/* Validate the list of pieces. Both the list and the result are the same on all ranks. */
static mha_status check_cover(const char *name, const mhai_owned *all, int64_t count,
                              int64_t length)
{
    int64_t next = 0;
    for (int64_t i = 0; i < count; next = all[i++].end)
        if (all[i].begin != next)
            return mha_fail(MHA_ERR_ARGUMENT,
                            "mha_sequence_split: %s: rows %lld .. %lld belong to %s; the pieces "
                            "of all ranks must contain each row once",
                            name, (long long)mhai_min_i64(next, all[i].begin),
                            (long long)mhai_max_i64(next, all[i].begin),
                            all[i].begin < next ? "two ranks" : "no rank");
    if (next != length)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_sequence_split: %s: rows %lld .. %lld belong to no rank; the pieces "
                        "of all ranks must contain each row once",
                        name, (long long)next, (long long)length);
    return MHA_OK;
}

/* ---- the split ------------------------------------------------------------------------------- */

mha_status mhai_split_make(mha_context *context, mhai_split *s)
{
    const mha_transport *t = s->t;
    int64_t most[] = {s->given.query_piece_count, s->given.key_piece_count};
    mhai_owned *own[2] = {NULL, NULL};
    MHA_TRY(mhai_ranks_most(t, most, 2));
    mha_status status = take_pieces(context, t, most[0], &s->queries, &own[0]);
    if (status == MHA_OK) status = take_pieces(context, t, most[1], &s->keys, &own[1]);
    MHA_TRY(mha_transport_agree(t, status));
    MHA_TRY(share_pieces(t, s->given.query_pieces, s->given.query_piece_count, most[0], own[0],
                         s->queries, &s->query_count));
    MHA_TRY(share_pieces(t, s->given.key_pieces, s->given.key_piece_count, most[1], own[1], s->keys,
                         &s->key_count));
    MHA_TRY(check_cover("query_pieces", s->queries, s->query_count, s->given.queries));
    return check_cover("key_pieces", s->keys, s->key_count, s->given.keys);
}

void mhai_copy_rows(const mha_tensor *to, int64_t to_row, const mha_tensor *from, int64_t from_row,
                    const int64_t *shape, int64_t rows)
{
    const int64_t size = (int64_t)mha_dtype_size(to->dtype), cols = shape[3];
    const bool whole = to->stride[3] == 1 && from->stride[3] == 1,
               together = whole && to->stride[2] == cols && from->stride[2] == cols;
    const int64_t turns = together && rows > 0 ? 1 : rows, run = whole ? cols : 1;
    const size_t bytes = (size_t)((together ? rows : 1) * run * size);
    for (int64_t i = 0; i < shape[0] * shape[1] * turns; i++) {
        const int64_t b = i / turns / shape[1], h = i / turns % shape[1], t = i % turns;
        const char *in =
            (const char *)from->data +
            size * (b * from->stride[0] + h * from->stride[1] + (from_row + t) * from->stride[2]);
        char *out = (char *)to->data +
                    size * (b * to->stride[0] + h * to->stride[1] + (to_row + t) * to->stride[2]);
        for (int64_t j = 0; j < cols; j += run)
            memcpy(out + j * to->stride[3] * size, in + j * from->stride[3] * size, bytes);
    }
}
