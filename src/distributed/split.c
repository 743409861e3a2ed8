/* See split.h. */
#include "distributed/split.h"

#include "base/checked.h"
#include "base/context.h"
#include "base/struct_copy.h"
#include "ranks/rank_messages.h"

#include <multihead/component.h>

#include <stdlib.h>
#include <string.h>

/* ---- cutting --------------------------------------------------------------------------------- */

/* The first row of piece i of count: whole chunks. */
static int64_t cut_at(int64_t length, int64_t i, int64_t count)
{
    const int64_t chunks = mhai_ceil_div(length, MHA_SPLIT_ROWS);
    return mhai_min_i64(length, (chunks / count * i + chunks % count * i / count) * MHA_SPLIT_ROWS);
}

mha_status mha_split_pieces(int64_t length, int32_t rank, int32_t size, int64_t folds,
                            mha_piece *pieces, int64_t *count)
{
    enum { MOST_FOLDS = 1 << 20 };
    if (!pieces || !count) return mha_fail(MHA_ERR_NULL, "mha_split_pieces: an output is NULL");
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
    if (s->given.flags & ~(uint32_t)MHA_SEQUENCE_KEEP_HEADS)
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_sequence_split: flags 0x%x are unknown",
                        (unsigned)s->given.flags);
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

/* Room for the pieces of all ranks: as many for each as the rank with the most has. */
static mha_status take_pieces(mha_context *context, const mha_transport *t, int64_t most,
                              mhai_owned **all, mhai_owned **own)
{
    void *memory;
    int64_t total;
    if (!mhai_mul_i64(most, t->size, &total))
        return mha_fail(MHA_ERR_SIZE, "mha_sequence_split: too many pieces");
    MHA_TRY(mha_scratch_alloc(context, total, sizeof **all, &memory));
    *all = memory;
    MHA_TRY(mha_scratch_alloc(context, most, sizeof **own, &memory));
    *own = memory;
    return MHA_OK;
}

/* The pieces of all ranks, at all ranks, ascending. */
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

/* All ranks see the same list, and come to the same verdict. */
static mha_status check_cover(const char *name, const mhai_owned *all, int64_t count,
                              int64_t length)
{
    int64_t next = 0;
    for (int64_t i = 0; i < count; next = all[i++].end)
        if (all[i].begin != next)
            return mha_fail(MHA_ERR_ARGUMENT,
                            "mha_sequence_split: %s: rows %lld .. %lld are %s; the pieces of all "
                            "ranks have each row once",
                            name, (long long)mhai_min_i64(next, all[i].begin),
                            (long long)mhai_max_i64(next, all[i].begin),
                            all[i].begin < next ? "those of two ranks" : "nobody's");
    if (next != length)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_sequence_split: %s: rows %lld .. %lld are nobody's; the pieces of "
                        "all ranks have each row once",
                        name, (long long)next, (long long)length);
    return MHA_OK;
}

/* ---- parcels --------------------------------------------------------------------------------- */

/* Blocks of each sequence into parcels, if there is room for them; returns their number. */
static int64_t cut_parcels(const mha_attention_desc *d, int64_t keys, mhai_parcel *parcels)
{
    const int64_t whole[] = {0, keys}, *starts = d->key_starts ? d->key_starts : whole;
    const int64_t sequences = d->key_starts ? d->sequences : 1;
    int64_t count = 0, rows = MHAI_KEY_BLOCK;
    for (int64_t b = 0; b < sequences; b++)
        for (int64_t first = starts[b]; first < starts[b + 1]; first += MHAI_KEY_BLOCK) {
            const int64_t more = mhai_min_i64(MHAI_KEY_BLOCK, starts[b + 1] - first);
            if (rows + more > MHAI_KEY_BLOCK) {
                if (parcels) parcels[count] = (mhai_parcel){.first = first};
                count++;
                rows = 0;
            }
            rows += more;
            if (parcels) parcels[count - 1].rows = rows;
        }
    return count;
}

static void find_owners(mhai_split *s)
{
    int64_t at = 0;
    for (int64_t n = 0; n < s->parcel_count; n++) {
        while (s->keys[at].end <= s->parcels[n].first) at++;
        s->parcels[n].owner = s->keys[at].rank;
    }
}

/* ---- who needs what -------------------------------------------------------------------------- */

bool mhai_split_sees(const mha_attention_desc *d, int64_t b, const mhai_owned *piece, int64_t key,
                     int64_t keys)
{
    const bool causal = d->flags & MHA_ATTENTION_CAUSAL, window = d->flags & MHA_ATTENTION_WINDOW;
    const bool bound =
        window && !d->global_keys && !d->global_queries && !d->key_begins && key >= d->sink_keys;
    const int64_t start = d->query_starts ? d->query_starts[b] : 0;
    const int64_t begin = mhai_max_i64(piece->begin, start);
    const int64_t end =
        d->query_starts ? mhai_min_i64(piece->end, d->query_starts[b + 1]) : piece->end;
    const int64_t offset = (d->q_offsets ? d->q_offsets[b] : d->q_offset) - start;
    const int64_t first = begin + offset, last = end - 1 + offset;
    if (begin >= end) return false;
    if (causal && key > last) return false;
    const int64_t open = INT64_MAX / 4; /* beyond any distance, and safe to add */
    if (bound && d->left_keys >= 0 && key + keys <= first - mhai_min_i64(d->left_keys, open))
        return false;
    return !(bound && d->right_keys >= 0 && !causal &&
             key > last + mhai_min_i64(d->right_keys, open));
}

/* Whether a row of a piece may see a key of a parcel: of any sequence of a batch. */
static bool may_see(const mha_attention_desc *d, int64_t batch, const mhai_owned *piece,
                    const mhai_parcel *parcel)
{
    for (int64_t b = 0; b < (d->q_offsets ? batch : 1); b++)
        if (mhai_split_sees(d, b, piece, parcel->first, parcel->rows)) return true;
    return false;
}

/* Of a ragged batch: a sequence has rows in both. */
static bool share_sequence(const mha_attention_desc *d, const mhai_owned *piece,
                           const mhai_parcel *parcel)
{
    for (int64_t b = 0; b < d->sequences; b++) {
        const bool keys =
            d->key_starts[b] < parcel->first + parcel->rows && d->key_starts[b + 1] > parcel->first;
        const bool queries =
            d->query_starts[b] < piece->end && d->query_starts[b + 1] > piece->begin;
        if (keys && queries) return true;
    }
    return false;
}

static void find_needs(const mha_attention_desc *d, int64_t batch, bool all, mhai_split *s)
{
    memset(s->needed, 0, (size_t)(s->parcel_count * s->t->size));
    for (int64_t n = 0; n < s->parcel_count; n++)
        for (int64_t i = 0; i < s->query_count; i++) {
            const mhai_owned *piece = &s->queries[i];
            uint8_t *needed = &s->needed[n * s->t->size + piece->rank];
            if (!*needed)
                *needed = all               ? true
                          : d->query_starts ? share_sequence(d, piece, &s->parcels[n])
                                            : may_see(d, batch, piece, &s->parcels[n]);
        }
}

/* ---- the way of a parcel --------------------------------------------------------------------- */

/* From its owner to the ranks that need it, in the order in which they own one themselves: whoever
 * sends the next parcels has this one first, and those that own none any more come last, by number. So the
 * stream never waits for a parcel to go round. turns [ranks]: room for each one's next parcel. */
static void find_ways(mhai_split *s, int64_t *turns)
{
    const int32_t size = s->t->size, rank = s->t->rank;
    for (int32_t r = 0; r < size; r++) turns[r] = s->parcel_count + r;
    for (int64_t n = s->parcel_count - 1; n >= 0; n--) {
        mhai_way *way = &s->ways[n];
        *way = (mhai_way){-1, -1};
        turns[s->parcels[n].owner] = n;
        for (int32_t r = 0; r < size; r++) {
            if (r != s->parcels[n].owner && !mhai_split_needs(s, n, r)) continue;
            if (turns[r] < turns[rank] && (way->before < 0 || turns[r] > turns[way->before]))
                way->before = r;
            if (turns[r] > turns[rank] && (way->after < 0 || turns[r] < turns[way->after]))
                way->after = r;
        }
    }
}

/* ---- all of it ------------------------------------------------------------------------------- */

static mha_status make_parcels(mha_context *context, const mha_attention_desc *d, mhai_split *s,
                               int64_t **turns)
{
    void *memory;
    int64_t cells;
    s->parcel_count = cut_parcels(d, s->given.keys, NULL);
    if (!mhai_mul_i64(s->parcel_count, s->t->size, &cells))
        return mha_fail(MHA_ERR_SIZE, "k: too many blocks for so many ranks");
    MHA_TRY(mha_scratch_alloc(context, s->parcel_count, sizeof *s->parcels, &memory));
    s->parcels = memory;
    cut_parcels(d, s->given.keys, s->parcels);
    MHA_TRY(mha_scratch_alloc(context, s->parcel_count, sizeof *s->ways, &memory));
    s->ways = memory;
    MHA_TRY(mha_scratch_alloc(context, cells, 1, &memory));
    s->needed = memory;
    MHA_TRY(mha_scratch_alloc(context, s->t->size, sizeof **turns, &memory));
    *turns = memory;
    return MHA_OK;
}

mha_status mhai_split_make(mha_context *context, const mha_attention_desc *desc, int64_t batch,
                           bool all, mhai_split *s)
{
    const mha_transport *t = s->t;
    int64_t *turns = NULL;
    mha_status status = make_parcels(context, desc, s, &turns);
    MHA_TRY(mha_transport_agree(t, status));
    int64_t most[] = {s->given.query_piece_count, s->given.key_piece_count, context->num_threads};
    MHA_TRY(mhai_ranks_most(t, most, 3));
    s->threads = most[2];
    mhai_owned *own[2] = {NULL, NULL};
    status = take_pieces(context, t, most[0], &s->queries, &own[0]);
    if (status == MHA_OK) status = take_pieces(context, t, most[1], &s->keys, &own[1]);
    MHA_TRY(mha_transport_agree(t, status));
    MHA_TRY(share_pieces(t, s->given.query_pieces, s->given.query_piece_count, most[0], own[0],
                         s->queries, &s->query_count));
    MHA_TRY(share_pieces(t, s->given.key_pieces, s->given.key_piece_count, most[1], own[1], s->keys,
                         &s->key_count));
    MHA_TRY(check_cover("query_pieces", s->queries, s->query_count, s->given.queries));
    MHA_TRY(check_cover("key_pieces", s->keys, s->key_count, s->given.keys));
    find_owners(s);
    find_needs(desc, batch, all, s);
    find_ways(s, turns);
    return MHA_OK;
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
