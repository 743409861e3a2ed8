/* See bias.h.
 *
 * An item's sums visit sequences, heads and pieces in this order, which is that of one process: a stage is a
 * sequence and a head of those that the item is over, and a piece. In step n all ranks are at stage n - w of wave
 * w, if it is theirs: so one rank has the next wave while another has this one, and whoever waits for sums
 * waits for a step that is past. */
#include "distributed/bias.h"

#include "ranks/rank_messages.h"

#include <multihead/component.h>

#include <string.h>

/* Each wave has a tag of its own, and every transport so many. */
enum { MOST_WAVES = 32768 };

mha_status mhai_bias_take(mhai_bias *x)
{
    void *memory;
    x->items = mhai_cells_bias_items(x->job);
    x->numbers = x->items > 0 && mhai_cells_bias_item(x->job, 0).by_key ? MHAI_CELL_KEYS : 1;
    x->together = mhai_max_i64(2 * x->s->threads, mhai_ceil_div(x->items, MOST_WAVES));
    x->wave_count = mhai_ceil_div(x->items, x->together);
    MHA_TRY(mha_scratch_alloc(x->context, x->items, (size_t)x->numbers * sizeof *x->sums, &memory));
    x->sums = memory;
    memset(x->sums, 0, (size_t)(x->items * x->numbers) * sizeof *x->sums);
    MHA_TRY(mha_scratch_alloc(x->context, x->wave_count, sizeof *x->waves, &memory));
    x->waves = memory;
    for (int64_t w = 0; w < x->wave_count; w++) x->waves[w] = (mhai_bias_wave){.at = -1};
    return MHA_OK;
}

static double *sums_of(const mhai_bias *x, int64_t item)
{
    return x->sums + item * x->numbers;
}

/* Of waves begin .. end - 1. */
static size_t bytes_of(const mhai_bias *x, int64_t begin, int64_t end)
{
    const int64_t last = mhai_min_i64(x->items, end * x->together);
    return (size_t)((last - begin * x->together) * x->numbers) * sizeof *x->sums;
}

/* ---- stages ---------------------------------------------------------------------------------- */

typedef struct stage {
    const mhai_bias *x;
    const mhai_backward_fold *fold;
    int64_t number, item; /* the first item of the wave */
} stage;

/* Of an item: its sequence, its head, and whether the piece may add anything. */
static bool is_seen(const mhai_bias *x, int64_t item, int64_t number, int64_t *b, int64_t *h)
{
    const mhai_bias_item of = mhai_cells_bias_item(x->job, item);
    const int64_t pieces = x->s->query_count, heads = of.h.end - of.h.begin;
    const mhai_owned *piece = &x->s->queries[number % pieces];
    *b = of.b.begin + number / pieces / heads;
    *h = of.h.begin + number / pieces % heads;
    if (!of.by_key) return mhai_split_has_rows(x->desc, *b, piece);
    return mhai_split_sees(x->desc, *b, piece, of.block.begin * MHAI_CELL_KEYS, MHAI_CELL_KEYS);
}

static void add_item(void *argument, int64_t i, int worker)
{
    const stage *at = argument;
    const int64_t item = at->item + i;
    int64_t b, h;
    if (is_seen(at->x, item, at->number, &b, &h))
        mhai_backward_fold_add_bias(at->fold, at->x->k, at->x->v, b, h, item, sums_of(at->x, item),
                                    worker);
}

static mha_status move(const mhai_bias *x, int64_t w, int32_t to)
{
    const mha_transport *t = x->s->t;
    mhai_bias_wave *wave = &x->waves[w];
    const int32_t from = wave->at;
    double *sums = sums_of(x, w * x->together);
    wave->at = to;
    if (from < 0 || from == to || (t->rank != from && t->rank != to)) return MHA_OK;
    if (t->rank == from) {
        MHA_TRY(t->send(t->user, to, (int32_t)w, sums, bytes_of(x, w, w + 1), &wave->transfer));
        wave->pending = true;
        return MHA_OK;
    }
    MHA_TRY(mhai_ranks_settle(t, true, &wave->transfer, &wave->pending)); /* of another stage */
    MHA_TRY(t->receive(t->user, from, (int32_t)w, sums, bytes_of(x, w, w + 1), &wave->transfer));
    return t->wait(t->user, &wave->transfer);
}

static mha_status visit(const mhai_bias *x, int64_t w, int64_t number)
{
    const int64_t piece = number % x->s->query_count, first = w * x->together;
    const int64_t count = mhai_min_i64(x->items - first, x->together);
    const int32_t rank = x->s->queries[piece].rank;
    stage at = {.x = x, .fold = x->folds, .number = number, .item = first};
    int64_t b, h;
    bool seen = false;
    for (int64_t i = 0; i < count && !seen; i++) seen = is_seen(x, first + i, number, &b, &h);
    if (!seen) return MHA_OK;
    MHA_TRY(move(x, w, rank));
    if (rank != x->s->t->rank) return MHA_OK;
    for (int64_t i = 0; i < piece; i++) at.fold += x->s->queries[i].rank == rank;
    mha_parallel_for(x->context, count, add_item, &at);
    return MHA_OK;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static mha_status add_up(const mhai_bias *x)
{
    if (x->items == 0) return MHA_OK;
    const mhai_bias_item any = mhai_cells_bias_item(x->job, 0);
    const int64_t stages =
        (any.b.end - any.b.begin) * (any.h.end - any.h.begin) * x->s->query_count;
    for (int64_t step = 0; step < x->wave_count + stages - 1; step++)
        for (int64_t w = mhai_max_i64(0, step - stages + 1); w < x->wave_count && w <= step; w++)
            MHA_TRY(visit(x, w, step - w));
    return MHA_OK;
}

/* Waves that end at one rank go to all together. */
static mha_status share(const mhai_bias *x)
{
    const mha_transport *t = x->s->t;
    for (int64_t w = 0; w < x->wave_count; w++)
        MHA_TRY(mhai_ranks_settle(t, true, &x->waves[w].transfer, &x->waves[w].pending));
    for (int64_t w = 0, end; w < x->wave_count; w = end) {
        for (end = w + 1; end < x->wave_count && x->waves[end].at == x->waves[w].at; end++)
            continue;
        if (x->waves[w].at >= 0)
            MHA_TRY(mha_transport_broadcast(t, x->waves[w].at, sums_of(x, w * x->together),
                                            bytes_of(x, w, end)));
    }
    return MHA_OK;
}

mha_status mhai_bias_run(mhai_bias *x)
{
    const mha_transport *t = x->s->t;
    mha_status status = add_up(x);
    if (status == MHA_OK) status = share(x);
    for (int64_t w = 0; status != MHA_OK && w < x->wave_count; w++)
        if (x->waves[w].pending) t->cancel(t->user, &x->waves[w].transfer);
    for (int64_t i = 0; status == MHA_OK && i < x->items; i++) {
        const mhai_bias_item item = mhai_cells_bias_item(x->job, i);
        mhai_cells_write_bias(x->job, &item, sums_of(x, i));
    }
    return status;
}
