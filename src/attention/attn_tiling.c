/* How the tiled path divides a problem, and the resulting plan. */
#include "attention/attn_split.h"

#include "base/checked.h"
#include "base/context.h"

#include <multihead/component.h>

/* Each chunk packs its key blocks again, so chunks should be long: packing 512 keys costs about as
 * much as 15 query rows against them. However, q and o of a chunk should fit in a 1 MiB L2 cache
 * together with the packed block. Each row of a list has its own table of distances, which takes 2
 * KiB. */
enum {
    LONGEST_CHUNK = 768,
    SHORTEST_CHUNK = 256,
    LEAST_QUERIES = 64,
    MOST_SPLIT_FLOATS = 1 << 26, /* 256 MiB: 32 rows against a million keys */
    LONGEST_LIST = 128
};

/* Upper bound on the runs of consecutive queries of one head in a chunk. */
static int64_t runs_of(const mhai_attn_problem *p, const mhai_attn_tiling *t)
{
    const int64_t rows = t->chunk_rows;
    bool narrow = p->query_starts || p->want.average.data; /* a run may have a single query */
    int64_t runs = mhai_min_i64(rows, p->group);
    if (!narrow && p->T > 0) runs = mhai_min_i64(runs, rows / p->T + 2);
    return p->want.rows ? mhai_max_i64(runs, t->chosen_rows) : runs;
}

/* Queries per item of the average over heads. An item has the rows of all heads. */
static int64_t average_queries(const mhai_attn_problem *p, int threads, int64_t chunk_rows)
{
    int64_t queries = p->group > 0 ? chunk_rows / p->group : 0;
    if (threads > 1)
        queries = mhai_min_i64(queries, mhai_ceil_div(p->B * p->T, 4 * (int64_t)threads));
    return mhai_max_i64(queries, LEAST_QUERIES);
}

/* The number of rows whose scores against all keys are stored for the average over heads until
 * their maximum and sum are known. The limit of 2 MiB leaves room for other data in the last-level
 * cache. With many keys, few rows fit, and packing keys for so few rows costs more than a second
 * pass. */
static int64_t scored_rows(const mhai_attn_problem *p, int64_t chunk_rows, int tile_rows)
{
    const mhai_attn_wanted *want = &p->want;
    const int64_t most = 1 << 19, least = 128;
    const bool others = mhai_attn_wants_statistics(want) || mhai_attn_wants(&want->column_sums) ||
                        mhai_attn_wants(&p->probabilities);
    if (!mhai_attn_wants(&want->average) || others || p->dropout > 0 || p->S == 0) return 0;
    const int64_t rows = mhai_min_i64(chunk_rows, most / mhai_round_up(p->S, MHAI_KEY_BLOCK));
    if (mhai_attn_by_rows(p, rows, tile_rows) || rows < mhai_min_i64(least, chunk_rows)) return 0;
    return rows;
}

/* A lower bound on the nanoseconds of a forward pass: 100 operations, or 10 bytes of keys and
 * values, per nanosecond. */
static double least_time(const mhai_attn_problem *p)
{
    const double keys = (double)p->B * (double)p->S * (double)(p->D + p->Dv);
    const double operations = 2.0 * (double)p->H * (double)p->T * keys;
    const mha_dtype type = p->pages ? p->pages->type : p->k.dtype;
    const double bytes = (double)p->Hk * keys * (double)mha_dtype_size(type);
    return operations / 100 + bytes / 10;
}

/* Whether masks may need bytes per pair. These are composed for one strip at a time, so chunks of
 * several strips need packed keys. Block patterns may cut strips at any row. */
static bool composes_masks(const mhai_attn_problem *p, int64_t rows, int tile_rows)
{
    const int intervals = MHAI_USES(causal) | MHAI_USES(key_lengths) | MHAI_USES(key_begins) |
                          MHAI_USES(window) | MHAI_USES(global_queries),
              dense = MHAI_USES(keep_mask);
    if (p->uses & MHAI_USES(keep_blocks)) return true;
    return rows > tile_rows && (p->uses & MHAI_MASKS & ~(intervals | dense));
}

bool mhai_attn_takes_apart(const mhai_attn_problem *p, int64_t rows, int tile_rows)
{
    const int takes = MHAI_MASKS | MHAI_BIASES | MHAI_USES(softcap) | MHAI_USES(shaw_keys) |
                      MHAI_USES(sink_logits) | MHAI_USES(gates);
    return !(p->uses & ~takes) && !composes_masks(p, rows, tile_rows) &&
           mhai_attn_by_rows(p, rows, tile_rows);
}

/* One past the last key that causal and lengths allow for any row. */
static int64_t last_key(const mhai_attn_problem *p)
{
    int64_t end = 0;
    for (int64_t b = 0; b < p->B && p->T > 0; b++) {
        const mhai_attn_sequence seq = mhai_attn_sequence_of(p, b);
        end = mhai_max_i64(end, mhai_attn_limit(p, &seq, p->T - 1).end);
    }
    return end;
}

/* An upper bound on the number of these keys that at least one row of a sequence sees. */
static int64_t keys_in_reach(const mhai_attn_problem *p, int64_t keys)
{
    if (!p->window || p->global_keys.data || p->global_queries.data) return keys;
    const int64_t left = mhai_min_i64(p->left_keys, keys),
                  right = p->causal ? 0 : mhai_min_i64(p->right_keys, keys);
    return mhai_min_i64(keys, left + p->T + right + mhai_min_i64(p->sink_keys, keys));
}

/* Threads share key blocks if chunks do not divide evenly among them, and if the work justifies
 * waking threads twice (measured as for runs_single_threaded(), with a factor of three). The scores
 * of all keys are stored, so their size is limited. */
static void share_keys(const mhai_attn_problem *p, int threads, int tile_rows, mhai_attn_tiling *t)
{
    enum { BLOCKS_PER_VISIBLE = 8 }; /* in a group of 8, the hidden blocks take 1.5 of 27 us */
    int64_t floats;
    if (threads < 2 || t->items % threads == 0 || t->items >= 4 * (int64_t)threads) return;
    if (!mhai_attn_takes_apart(p, t->chunk_rows, tile_rows)) return;
    const int64_t keys = last_key(p), blocks = mhai_ceil_div(keys, MHAI_KEY_BLOCK);
    const int64_t reach = keys_in_reach(p, keys);
    if (blocks <= 2) return;
    if (reach < keys / BLOCKS_PER_VISIBLE || least_time(p) * (double)reach / (double)p->S < 200e3)
        return;
    if (!mhai_mul_i64(t->items, blocks, &floats)) return;
    if (!mhai_mul_i64(floats, mhai_attn_split_part(p, t), &floats) || floats > MOST_SPLIT_FLOATS)
        return;
    t->split_blocks = blocks;
    t->split_floats = floats;
}

/* Waking a thread and waiting for it takes about ten microseconds. (Measured with empty items: 3.5
 * on an idle machine, much more on a busy one.) A second thread therefore pays off above about 30
 * microseconds of work. A host's parallel-for makes its own decision. */
static bool runs_single_threaded(const mha_context *context, const mhai_attn_problem *p)
{
    return !context->host_parallel_for && least_time(p) < 30e3;
}

/* Count the chunks of all key/value heads of all sequences. */
static mha_status count_chunks(const mhai_attn_problem *p, int64_t chunk_rows, int64_t *chunks)
{
    *chunks = 0;
    for (int64_t b = 0; b < (p->query_starts ? p->B : p->B > 0); b++) {
        const int64_t each = mhai_attn_chunks_of(p, mhai_attn_sequence_of(p, b).T, chunk_rows);
        int64_t count;
        if (!mhai_mul_i64(p->query_starts ? p->Hk : p->B * p->Hk, each, &count) ||
            !mhai_add_i64(*chunks, count, chunks))
            return mha_fail(MHA_ERR_SIZE, "q: the number of pieces of work overflows 64 bits");
    }
    return MHA_OK;
}

static int64_t rows_of_chunk(const mhai_attn_problem *p, int threads, int tile_rows)
{
    const int64_t rows = p->group * p->T, heads = p->B * p->Hk;
    int64_t chunks = mhai_ceil_div(rows, LONGEST_CHUNK);
    /* Make chunks shorter if there are too few for the threads. */
    if (heads > 0 && heads * chunks < 4 * (int64_t)threads && threads > 1) {
        int64_t wanted = mhai_ceil_div(4 * (int64_t)threads, heads);
        int64_t most = mhai_max_i64(1, rows / SHORTEST_CHUNK);
        chunks = mhai_max_i64(chunks, mhai_min_i64(wanted, most));
    }
    return rows > 0 ? mhai_min_i64(rows, mhai_round_up(mhai_ceil_div(rows, chunks), tile_rows)) : 0;
}

mha_status mhai_attn_divide(const mha_context *context, mhai_attn_plan *plan)
{
    const mhai_attn_problem *p = &plan->p;
    const int threads = plan->threads;
    mhai_attn_tiling t = {0};
    const int tile_rows = plan->kernels->tile_rows;
    t.chunk_rows = rows_of_chunk(p, threads, tile_rows);
    MHA_TRY(count_chunks(p, t.chunk_rows, &t.items));
    t.scored_rows = scored_rows(p, t.chunk_rows, tile_rows);
    t.average_queries =
        average_queries(p, threads, t.scored_rows > 0 ? t.scored_rows : t.chunk_rows);
    if (t.scored_rows == 0) share_keys(p, threads, tile_rows, &t);
    t.forward_items = t.scored_rows > 0 ? mhai_attn_average_items(p, &t) : t.items;
    t.chosen_rows = p->want.rows ? mhai_min_i64(t.chunk_rows, LONGEST_LIST) : t.chunk_rows;
    t.runs = runs_of(p, &t);
    const bool kept = mhai_attn_needs_kept(p) && t.scored_rows == 0;
    t.kept_rows = kept ? p->q.shape[0] * p->H * p->q.shape[2] : 0;
    t.lanes = mhai_attn_in_lanes(p, &t);
    t.one_block = !t.lanes && mhai_attn_is_one_block(p, &t);
    if (t.lanes) t.forward_items = mhai_attn_lane_items(p);
    t.alone = runs_single_threaded(context, p);
    plan->tiling = t;
    plan->scratch.worker = mhai_attn_lay_out(p, &t, tile_rows, NULL).bytes;
    plan->scratch.kept = (size_t)t.kept_rows * 2 * sizeof(float);
    plan->scratch.split = (size_t)t.split_floats * sizeof(float);
    plan->scratch.index = p->query_starts ? (size_t)(p->B + 1) * sizeof(int64_t) : 0;
    plan->account.isa = context->isa;
    plan->account.key_block = MHAI_KEY_BLOCK;
    plan->account.work_items = t.alone ? t.forward_items > 0 : t.forward_items;
    return MHA_OK;
}
