/* mha_distributed_decode(). Every rank has all queries, which are few. Keys and values are not
 * moved. There are two methods:
 *
 *   at once     scores of all pieces; broadcast maxima; values of all pieces; join, piece by piece
 *   serial      fold, piece by piece
 *
 * Both end with a chain: the sums of rows are passed from piece to piece in the order of keys, and
 * the last rank broadcasts them. Joining adds sums of blocks that are already computed
 * (attn_split.c). Folding also computes them (attn_fold.c). The chain preserves the order with the
 * least traffic. Gathering the sums of all blocks at one rank would avoid the chain's latency, but
 * traffic would grow with the number of blocks.
 *
 * If a value is not finite, an exchanged maximum or sum is NaN. All ranks then restart with the
 * serial method, which supports non-finite values. */
#include "distributed/distributed.h"

#include "attention/attn_fold.h"
#include "base/checked.h"
#include "base/hash.h"
#include "base/need.h"
#include "base/tensor.h"
#include "cache/kv_cache.h"
#include "ranks/rank_messages.h"

#include <multihead/component.h>

#include <math.h>
#include <stddef.h>
#include <string.h>

_Static_assert((int)MHA_SPLIT_KEYS == (int)MHAI_KEY_BLOCK, "cuts are where blocks begin");

/* The state of a call. */
typedef struct call {
    mha_context *context;
    const mha_transport *t;
    mha_key_split given;
    mhai_slice_call whole;
    mha_tensor k, v;         /* of this rank */
    mha_tensor all_k, all_v; /* shapes over all ranks */
    int64_t keys, own_keys;  /* S, and the number of keys of this rank */
    mhai_attn_part part;
    mhai_attn_plan plan;
    mhai_attn_fold fold;
    int64_t rows; /* B H T */
    size_t sums;  /* bytes of their sums */
    bool at_once;
    float *maxima;   /* [pieces][rows] maximum of each piece, later of all pieces before it */
    float *received; /* same shape */
    float *parts;    /* results of this rank's blocks */
    bool unfinite;   /* some value of this rank is not finite */
} call;

/* ---- pieces ---------------------------------------------------------------------------------- */

/* A piece with keys. On its own rank, it begins at row `local`. */
typedef struct piece {
    int64_t number, begin, end, local;
    int32_t rank;
    bool own;
} piece;

static const piece before_all = {.number = -1};

/* Advance to the next piece with keys. Returns false if there is none. */
static bool next_piece(const call *c, piece *p)
{
    if (p->own) p->local += p->end - p->begin;
    while (++p->number < c->given.piece_count) {
        const mha_key_piece *given = &c->given.pieces[p->number];
        p->begin = p->end, p->end = given->end;
        p->rank = (int32_t)given->rank;
        p->own = p->rank == c->t->rank;
        if (p->begin < p->end) return true;
        p->own = false;
    }
    return false;
}

static bool next_own(const call *c, piece *p)
{
    while (next_piece(c, p))
        if (p->own) return true;
    return false;
}

static mha_status check_pieces(call *c)
{
    const mha_key_split *g = &c->given;
    if (g->piece_count < 0 || (g->piece_count > 0 && !g->pieces))
        return mha_fail(MHA_ERR_ARGUMENT, "mha_key_split: %lld pieces at %p",
                        (long long)g->piece_count, (const void *)g->pieces);
    c->keys = g->piece_count > 0 ? g->pieces[g->piece_count - 1].end : 0;
    int64_t begin = 0;
    for (int64_t i = 0; i < g->piece_count; begin = g->pieces[i++].end) {
        const mha_key_piece *p = &g->pieces[i];
        if (p->rank < 0 || p->rank >= c->t->size)
            return mha_fail(MHA_ERR_ARGUMENT, "mha_key_split: pieces[%lld] is of rank %lld of %d",
                            (long long)i, (long long)p->rank, (int)c->t->size);
        if (p->end < begin || (p->end % MHA_SPLIT_KEYS != 0 && p->end != c->keys))
            return mha_fail(MHA_ERR_ARGUMENT,
                            "mha_key_split: pieces[%lld] ends at key %lld; ends ascend, at "
                            "multiples of %d but for the last",
                            (long long)i, (long long)p->end, (int)MHA_SPLIT_KEYS);
        if (p->rank == c->t->rank) c->own_keys += p->end - begin;
    }
    return MHA_OK;
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* Number of positions that this rank has of a sequence of this length. */
static int64_t own_positions(const call *c, int64_t length)
{
    int64_t count = 0;
    for (piece p = before_all; next_own(c, &p);)
        count += mhai_max_i64(0, mhai_min_i64(p.end, length) - p.begin);
    return count;
}

static mha_status take_cache(call *c)
{
    const mha_kv_cache *cache = c->given.cache;
    const mha_kv_cache_desc *d = &cache->desc;
    if (c->given.k || c->given.v)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_key_split: cache and k or v are set; set only one");
    if (d->window > 0)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_key_split: a cache with a window discards by its own positions; over "
                        "ranks use a cache without a window, and MHA_ATTENTION_WINDOW");
    c->k = c->all_k = mhai_kv_cache_shape(cache, c->keys, d->head_dim);
    c->v = c->all_v = mhai_kv_cache_shape(cache, c->keys, d->value_head_dim);
    return MHA_OK;
}

/* Check k or v of this rank, and set up its shape in the problem of all keys. */
static mha_status take_tensor(call *c, const char *name, const mha_tensor *x, mha_tensor *own,
                              mha_tensor *all)
{
    if (!x) return mha_fail(MHA_ERR_NULL, "mha_key_split: %s is NULL, as is the cache", name);
    MHA_TRY(mhai_tensor_check_real(name, x));
    MHA_TRY(mhai_tensor_check(name, x, x->dtype, 4, (const int64_t[]){-1, -1, c->own_keys, -1}));
    *own = *all = *x;
    all->shape[2] = c->keys;
    all->stride[2] = 0;
    /* A tensor without rows may have no memory. */
    if (!all->data && c->own_keys == 0 && c->whole.q) all->data = c->whole.q->data;
    return MHA_OK;
}

static mha_status take_keys(call *c)
{
    if (c->given.cache) return take_cache(c);
    MHA_TRY(take_tensor(c, "k", c->given.k, &c->k, &c->all_k));
    return take_tensor(c, "v", c->given.v, &c->v, &c->all_v);
}

/* Set the positions of queries, because a cache has only this rank's part of each sequence. */
static mha_status take_lengths(call *c)
{
    const mha_kv_cache *cache = c->given.cache;
    const int64_t B = c->whole.q->shape[0], T = c->whole.q->shape[2];
    mha_attention_desc *d = &c->whole.desc;
    void *memory;
    if (!cache) return MHA_OK;
    if (B != cache->desc.batch)
        return mha_fail(MHA_ERR_SHAPE, "q: dim 0 is %lld, the cache has %lld sequences",
                        (long long)B, (long long)cache->desc.batch);
    MHA_TRY(mha_scratch_alloc(c->context, 2 * B, sizeof(int64_t), &memory));
    int64_t *lengths = memory, *offsets = lengths + B;
    for (int64_t b = 0; b < B; b++) {
        lengths[b] = d->key_lengths ? d->key_lengths[b] : c->keys;
        const int64_t expected = own_positions(c, lengths[b]);
        if (cache->lengths[b] != expected)
            return mha_fail(MHA_ERR_ARGUMENT,
                            "cache: sequence %lld holds %lld positions; of its %lld the pieces of "
                            "this rank have %lld",
                            (long long)b, (long long)cache->lengths[b], (long long)lengths[b],
                            (long long)expected);
    }
    d->key_lengths = lengths;
    mhai_kv_cache_place_queries(d, &c->whole.outputs, lengths, B, T, offsets);
    return MHA_OK;
}

/* Check overlaps with keys and values. The checks of a part do not cover them. */
static mha_status check_apart(const call *c)
{
    const mha_tensor *results[] = {c->whole.o, c->whole.outputs.lse};
    const char *const names[] = {"o", "lse"};
    for (int i = 0; i < 2 && !c->given.cache; i++) {
        MHA_TRY(mhai_tensor_check_disjoint(names[i], results[i], "k", &c->k));
        MHA_TRY(mhai_tensor_check_disjoint(names[i], results[i], "v", &c->v));
    }
    return MHA_OK;
}

static mha_status check_takes(const call *c)
{
    const mhai_attn_plan *plan = &c->plan;
    if (mhai_attn_folds(&plan->p, plan->backend)) return MHA_OK;
    return mha_fail(
        MHA_ERR_UNSUPPORTED, "mha_distributed_decode: %s",
        plan->backend->path == MHA_PATH_PLAIN
            ? "the plain path is not supported: it needs all keys of a row"
        : plan->p.compute != MHA_COMPUTE_F32
            ? "bf16 arithmetic is not supported: it needs all keys at once; leave compute 0"
            : "lse is the only output besides o; mha_distributed_forward() has others");
}

/* Plan the problem of all keys, although this rank has only some of them. */
static mha_status plan_call(call *c, bool need_data)
{
    const mhai_slice_call *w = &c->whole;
    const int64_t B = w->q->shape[0];
    int64_t *before;
    if (w->desc.query_starts || w->desc.key_starts || w->desc.sequences)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_distributed_decode: ragged batches are not supported");
    MHA_TRY(take_lengths(c));
    MHA_TRY(mha_scratch_zeros(c->context, B, sizeof(int64_t), &before));
    c->part = (mhai_attn_part){.queries_before = before, .T = w->q->shape[2]};
    const mhai_attn_call made = {.desc = &w->desc,
                                 .q = w->q,
                                 .k = &c->all_k,
                                 .v = &c->all_v,
                                 .o = w->o,
                                 .outputs = &w->outputs,
                                 .pages = c->given.cache ? &c->given.cache->pages : NULL,
                                 .part = &c->part};
    MHA_TRY(mhai_attn_plan_call(c->context, &made, need_data, &c->plan));
    MHA_TRY(check_takes(c));
    MHA_TRY(check_apart(c));
    const mhai_attn_problem *p = &c->plan.p;
    c->rows = p->B * p->H * p->T;
    /* The choice must not depend on the instruction set, so that ranks agree. */
    c->at_once = mhai_attn_takes_apart(p, p->group * p->T, MHAI_LEAST_ROWS);
    return mhai_attn_fold_bytes(&c->plan, &c->sums);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* The sizes in floats of the maxima, and of the results of this rank's blocks. */
static mha_status count_floats(const call *c, int64_t *maxima, int64_t *parts)
{
    const mhai_attn_tiling *tiling = &c->plan.tiling;
    const int64_t blocks = mhai_ceil_div(c->own_keys, MHAI_KEY_BLOCK);
    *maxima = *parts = 0;
    if (!c->at_once) return MHA_OK;
    if (!mhai_mul_i64(c->given.piece_count, c->rows, maxima) ||
        !mhai_mul_i64(tiling->items, blocks, parts) ||
        !mhai_mul_i64(*parts, mhai_attn_split_part(&c->plan.p, tiling), parts))
        return mha_fail(MHA_ERR_SIZE, "k: the scores of its keys are beyond the address space");
    return MHA_OK;
}

static mha_status take_floats(const call *c, int64_t count, float **floats)
{
    MHA_TRY(mha_scratch_alloc(c->context, count, sizeof **floats, floats));
    return MHA_OK;
}

static mha_status take_memory(call *c)
{
    int64_t maxima, parts;
    MHA_TRY(count_floats(c, &maxima, &parts));
    MHA_TRY(take_floats(c, maxima, &c->maxima));
    MHA_TRY(take_floats(c, maxima, &c->received));
    MHA_TRY(take_floats(c, parts, &c->parts));
    return mhai_attn_fold_begin(c->context, &c->plan, &c->fold);
}

/* ---- pieces of this rank --------------------------------------------------------------------- */

static mhai_attn_keys keys_of(const call *c, const piece *p)
{
    return (mhai_attn_keys){.k = c->k,
                            .v = c->v,
                            .first = p->begin - p->local,
                            .begin = p->local,
                            .end = p->local + p->end - p->begin};
}

/* Set the keys of a piece, and the memory for the results of its blocks. */
static mhai_attn_stretch place(call *c, const piece *p)
{
    const mhai_attn_keys keys = keys_of(c, p);
    const mhai_attn_tiling *tiling = &c->plan.tiling;
    const int64_t blocks_before = p->local / MHAI_KEY_BLOCK;
    mhai_attn_fold_place(&c->fold, &keys);
    return (mhai_attn_stretch){
        .walk = &c->fold.walk,
        .parts = c->at_once ? c->parts + blocks_before * tiling->items *
                                             mhai_attn_split_part(&c->plan.p, tiling)
                            : NULL,
        .first = p->begin / MHAI_KEY_BLOCK,
        .blocks = mhai_ceil_div(p->end - p->begin, MHAI_KEY_BLOCK),
        .before = c->at_once ? c->maxima + p->number * c->rows : NULL};
}

static void score_pieces(call *c)
{
    const int64_t all = c->given.piece_count * c->rows;
    for (int64_t i = 0; i < all; i++) c->maxima[i] = -INFINITY;
    for (piece p = before_all; next_own(c, &p);) {
        const mhai_attn_stretch stretch = place(c, &p);
        float *maxima = c->maxima + p.number * c->rows;
        if (mhai_attn_stretch_scores(c->context, &stretch))
            mhai_attn_stretch_maxima(&stretch, maxima);
        else
            for (int64_t r = 0; r < c->rows; r++) maxima[r] = NAN;
    }
}

static void weigh_pieces(call *c)
{
    for (piece p = before_all; next_own(c, &p);) {
        const mhai_attn_stretch stretch = place(c, &p);
        c->unfinite |= !mhai_attn_stretch_values(c->context, &stretch);
    }
}

static void join_piece(call *c, const piece *p)
{
    const mhai_attn_stretch stretch = place(c, p);
    mhai_attn_fold_stretch(c->context, &c->fold, &stretch);
    for (int64_t r = 0; c->unfinite && r < c->rows; r++) c->fold.l[r] = NAN;
}

static void fold_piece(call *c, const piece *p)
{
    const mhai_attn_keys keys = keys_of(c, p);
    mhai_attn_fold_keys(c->context, &c->fold, &keys);
}

/* ---- messages -------------------------------------------------------------------------------- */

static bool any_nan(const float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (isnan(x[i])) return true;
    return false;
}

/* Reduce the maximum of each piece and row to rank 0 in a tree, then
 * broadcast it. NaN propagates. */
static mha_status share_maxima(call *c)
{
    const mha_transport *t = c->t;
    const int64_t count = c->given.piece_count * c->rows;
    const size_t bytes = (size_t)count * sizeof(float);
    for (int64_t bit = 1; bit < t->size; bit <<= 1) {
        if (t->rank & bit) {
            MHA_TRY(mha_transport_send(t, (int32_t)(t->rank - bit), c->maxima, bytes));
            break;
        }
        if (t->rank + bit >= t->size) continue;
        MHA_TRY(mha_transport_receive(t, (int32_t)(t->rank + bit), c->received, bytes));
        for (int64_t i = 0; i < count; i++)
            if (!(c->received[i] <= c->maxima[i])) c->maxima[i] = c->received[i];
    }
    return mha_transport_broadcast(t, 0, c->maxima, bytes);
}

/* Replace the maximum of each piece with the maximum of all pieces before it. */
static void accumulate_maxima(call *c)
{
    for (int64_t r = 0; r < c->rows; r++) {
        float most = -INFINITY;
        for (int64_t i = r; i < c->given.piece_count * c->rows; i += c->rows) {
            const float of_piece = c->maxima[i];
            c->maxima[i] = most;
            most = of_piece > most ? of_piece : most;
        }
    }
}

/* Pass the sums of rows from piece to piece. The last rank broadcasts them. */
static mha_status chain(call *c, void (*add)(call *c, const piece *p))
{
    const mha_transport *t = c->t;
    int32_t at = -1;
    c->fold.begun = false;
    for (piece p = before_all; next_piece(c, &p); at = p.rank) {
        if (at == t->rank && !p.own) MHA_TRY(mha_transport_send(t, p.rank, c->fold.o, c->sums));
        if (!p.own) continue;
        if (at >= 0 && at != t->rank) {
            MHA_TRY(mha_transport_receive(t, at, c->fold.o, c->sums));
            c->fold.begun = true;
        }
        add(c, &p);
    }
    if (at < 0) return MHA_OK; /* no keys: the sums remain empty */
    c->fold.begun = true;
    return mha_transport_broadcast(t, at, c->fold.o, c->sums);
}

/* Sets *done unless some value is not finite. */
static mha_status run_at_once(call *c, bool *done)
{
    *done = false;
    score_pieces(c);
    MHA_TRY(share_maxima(c));
    if (any_nan(c->maxima, c->given.piece_count * c->rows)) return MHA_OK;
    accumulate_maxima(c);
    weigh_pieces(c);
    MHA_TRY(chain(c, join_piece));
    *done = c->keys == 0 || !any_nan(c->fold.l, c->rows);
    return MHA_OK;
}

static mha_status run(call *c)
{
    bool done = false;
    if (c->at_once) MHA_TRY(run_at_once(c, &done));
    if (!done) MHA_TRY(chain(c, fold_piece));
    mhai_attn_fold_finish(c->context, &c->fold);
    return MHA_OK;
}

/* ---- the calls ------------------------------------------------------------------------------- */

/* Values on which all ranks must agree, besides shapes and descriptor. */
typedef struct decode_common {
    mhai_slice_common of_call;
    uint64_t pieces, queries; /* hashes */
    int64_t cached, type, key_scales;
} decode_common;

/* Hash the queries. Ranks whose tokens differ, for example after sampling, would add sums of
 * different rows. */
static uint64_t hash_queries(const mha_tensor *q)
{
    uint64_t hash = MHAI_HASH_START;
    for (int64_t b = 0; b < q->shape[0]; b++)
        for (int64_t h = 0; h < q->shape[1]; h++)
            for (int64_t t = 0; t < q->shape[2]; t++)
                hash = mhai_hash(hash, mhai_attn_data(q, b, h, t),
                                 (size_t)q->shape[3] * mha_dtype_size(q->dtype));
    return hash;
}

/* Check the arguments without which ranks cannot communicate, not even to agree on an error. */
static mha_status check_arguments(const char *name, const mha_context *context,
                                  const mha_key_split *keys)
{
    MHA_NEED(name, context, keys);
    MHA_TRY(mha_struct_check_size("mha_key_split", keys->struct_size, sizeof *keys));
    return mhai_ranks_check(keys->transport);
}

static mha_status take_call(const char *name, const mha_key_split *keys,
                            const mha_attention_desc *desc, const mha_tensor *q,
                            const mha_tensor *o, const mha_attention_outputs *outputs, call *c)
{
    MHA_TRY(mhai_struct_copy("mha_key_split", &c->given, sizeof c->given, sizeof c->given, keys));
    MHA_TRY(mhai_check_flags("mha_key_split", c->given.flags, 0));
    MHA_TRY(check_pieces(c));
    c->whole.q = q;
    MHA_TRY(take_keys(c));
    MHA_TRY(mhai_slice_take(name, desc, q, &c->all_k, &c->all_v, o, outputs, &c->whole));
    MHA_TRY(mhai_tensor_check_real("q", q));
    return mhai_tensor_check("q", q, q->dtype, 4, (const int64_t[]){-1, -1, -1, -1});
}

static mha_status make_common(const call *c, bool need_data, decode_common *common)
{
    const mhai_split shapes = {
        .given = {.queries = c->whole.q->shape[2], .keys = c->keys, .query_piece_count = 1},
        .rows = c->whole.q->shape[2],
        .key_rows = c->keys};
    const mha_kv_cache *cache = c->given.cache;
    MHA_TRY(mhai_slice_check(&c->whole, &shapes, &common->of_call));
    common->pieces = mhai_hash(MHAI_HASH_START, c->given.pieces,
                               (size_t)c->given.piece_count * sizeof *c->given.pieces);
    if (need_data) common->queries = hash_queries(c->whole.q);
    common->cached = cache != NULL;
    if (!cache) return MHA_OK;
    common->type = (int64_t)cache->desc.type;
    common->key_scales = (int64_t)cache->desc.key_scales;
    return MHA_OK;
}

/* Check this rank's arguments and memory, then agree with all ranks. Afterwards, *c
 * can be run or explained. */
static mha_status agree(call *c, bool need_data, mha_status status)
{
    decode_common common;
    memset(&common, 0, sizeof common); /* clears padding too, because the struct is compared as
                                        * bytes */
    if (status == MHA_OK) status = plan_call(c, need_data);
    if (status == MHA_OK) status = make_common(c, need_data, &common);
    if (status == MHA_OK && need_data) status = take_memory(c);
    return mha_transport_same(c->t, "q or description", &common, sizeof common, status);
}

mha_status mha_distributed_decode(mha_context *context, const mha_key_split *keys,
                                  const mha_attention_desc *desc, const mha_tensor *q,
                                  const mha_tensor *o, const mha_attention_outputs *outputs)
{
    call c = {.context = context};
    MHA_TRY(check_arguments("mha_distributed_decode", context, keys));
    c.t = keys->transport;
    const mha_scratch_mark mark = mha_scratch_top(context);
    mha_status status = take_call("mha_distributed_decode", keys, desc, q, o, outputs, &c);
    if (status == MHA_OK && !o)
        status = mha_fail(MHA_ERR_NULL, "mha_distributed_decode: o is NULL");
    status = agree(&c, true, status);
    if (status == MHA_OK) status = run(&c);
    return mha_scratch_end(context, mark, status);
}

/* ---- the plan of a call ---------------------------------------------------------------------- */

/* The number of this rank's children in the broadcast tree from root. */
static int64_t children_of(const mha_transport *t, int32_t root)
{
    const int64_t place = ((int64_t)t->rank - root + t->size) % t->size;
    int64_t count = 0;
    for (int64_t bit = 1; bit < t->size && !(place & bit); bit <<= 1)
        count += place + bit < t->size;
    return count;
}

static void count_messages(int64_t sent, int64_t received, size_t bytes, mha_decode_plan *plan)
{
    plan->messages_sent += sent, plan->messages_received += received;
    plan->bytes_sent += (double)sent * (double)bytes;
    plan->bytes_received += (double)received * (double)bytes;
}

static void count_all(const call *c, mha_decode_plan *plan)
{
    const mha_transport *t = c->t;
    const size_t maxima = (size_t)(c->given.piece_count * c->rows) * sizeof(float);
    int32_t at = -1;
    if (c->at_once) {
        const int64_t children = children_of(t, 0), parents = t->rank > 0;
        count_messages(children + parents, children + parents, maxima, plan);
    }
    for (piece p = before_all; next_piece(c, &p); at = p.rank) {
        if (at < 0 || at == p.rank) continue;
        plan->hops++;
        count_messages(at == t->rank, p.own, c->sums, plan);
    }
    if (at >= 0) count_messages(children_of(t, at), at != t->rank, c->sums, plan);
}

static mha_status explain(const call *c, mha_decode_plan *plan)
{
    int64_t maxima, parts;
    mha_decode_plan made = {
        .at_once = c->at_once,
        .reason = c->at_once ? "all ranks process their keys at the same time, and merge the rows' "
                               "sums in the order of keys"
                             : "ranks add their keys to the rows' sums one after the other: blocks "
                               "of this call cannot be computed separately"};
    MHA_TRY(count_floats(c, &maxima, &parts));
    count_all(c, &made);
    size_t *bytes = &made.scratch_bytes;
    MHA_TRY(mhai_attn_add_scratch(bytes, (size_t)maxima * sizeof(float), 2));
    MHA_TRY(mhai_attn_add_scratch(bytes, (size_t)parts * sizeof(float), 1));
    MHA_TRY(mhai_attn_add_scratch(bytes, c->sums, 1));
    MHA_TRY(mhai_attn_add_scratch(bytes, c->plan.scratch.worker, c->plan.threads));
    *plan = made;
    return MHA_OK;
}

mha_status mha_distributed_decode_explain(mha_context *context, const mha_key_split *keys,
                                          const mha_attention_desc *desc, const mha_tensor *q,
                                          const mha_attention_outputs *outputs,
                                          mha_decode_plan *plan)
{
    static const char name[] = "mha_distributed_decode_explain";
    call c = {.context = context};
    MHA_TRY(check_arguments(name, context, keys));
    c.t = keys->transport;
    const mha_scratch_mark mark = mha_scratch_top(context);
    mha_status status = take_call(name, keys, desc, q, NULL, outputs, &c);
    if (status == MHA_OK && !plan) status = mha_fail(MHA_ERR_NULL, "%s: plan is NULL", name);
    status = agree(&c, false, status);
    if (status == MHA_OK) status = explain(&c, plan);
    return mha_scratch_end(context, mark, status);
}
