/* Queries on all ranks (threads here), with keys and values distributed over them: bit-identical to
 * one process for random descriptors, pieces and types of caches, and for each step of a growing
 * text. The messages match the plan, errors reach every rank, and a lost rank ends the call on all
 * ranks. */
#include "support/cuts.h"
#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/kinds.h"
#include "support/rank_contexts.h"
#include "support/suite.h"

#include <multihead/component.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PIECES = 64 };

/* A rank's data. */
typedef struct rank_part {
    mha_context *context;
    mha_attention_desc desc;
    mha_key_split keys;
    mha_tensor q, k, v, o, lse;
    mha_kv_cache *cache;
    mha_decode_plan plan;
    mha_status status;
    char detail[512];
} rank_part;

typedef struct job {
    kinds_case c;
    cuts cut;
    mha_key_piece pieces[MOST_PIECES];
    int64_t count;
    rank_part parts[MOST_RANKS];
} job;

static void *room(int64_t floats)
{
    float *memory = malloc((size_t)floats * sizeof *memory + 1);
    assert_non_null(memory);
    memset(memory, 0xEE, (size_t)floats * sizeof *memory + 1);
    return memory;
}

static void make_results(rank_part *p, const mha_tensor *q, int64_t values)
{
    const int64_t o[] = {q->shape[0], q->shape[1], q->shape[2], values};
    p->o = mha_tensor_contiguous(room(o[0] * o[1] * o[2] * o[3]), MHA_F32, 4, o);
    p->lse = mha_tensor_contiguous(room(o[0] * o[1] * o[2]), MHA_F32, 3, o);
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Divides blocks of keys at random, with some empty pieces, and lists their owners. */
static void cut_keys(job *j, rng *r, int64_t S, int ranks)
{
    int64_t done = 0;
    j->cut = cuts_make(r, (S + MHA_SPLIT_KEYS - 1) / MHA_SPLIT_KEYS, ranks);
    j->count = 0;
    for (int rank = 0; rank < ranks; rank++)
        for (int64_t i = 0; i < j->cut.count[rank]; i++) {
            mha_piece *p = &j->cut.pieces[rank][i];
            p->begin = p->begin * MHA_SPLIT_KEYS < S ? p->begin * MHA_SPLIT_KEYS : S;
            p->end = p->end * MHA_SPLIT_KEYS < S ? p->end * MHA_SPLIT_KEYS : S;
        }
    while (done < S)
        for (int rank = 0; rank < ranks; rank++)
            for (int64_t i = 0; i < j->cut.count[rank]; i++) {
                const mha_piece *p = &j->cut.pieces[rank][i];
                if (p->begin != done || p->end == done) continue;
                done = p->end;
                if (rng_chance(r, 0.1))
                    j->pieces[j->count++] = (mha_key_piece){p->begin, rng_between(r, 0, ranks - 1)};
                j->pieces[j->count++] = (mha_key_piece){done, rank};
            }
}

/* ---- parts ----------------------------------------------------------------------------------- */

typedef struct cache_kind {
    bool wanted;
    mha_dtype type;
    int64_t page_size;
    mha_kv_scales scales;
} cache_kind;

static cache_kind some_cache(rng *r)
{
    static const mha_dtype types[] = {MHA_F32, MHA_F16, MHA_BF16, MHA_I8};
    static const int64_t sizes[] = {0, 16, 48, 21, 512};
    cache_kind kind = {.wanted = rng_chance(r, 0.6), .type = RNG_PICK(r, types)};
    kind.page_size = RNG_PICK(r, sizes);
    if (kind.type == MHA_I8 && rng_chance(r, 0.5)) {
        kind.scales = MHA_KV_SCALES_CHANNEL;
        if (kind.page_size == 21) kind.page_size = 16;
    }
    return kind;
}

static mha_kv_cache *make_cache(mha_context *context, const cache_kind *kind, const mha_tensor *k,
                                const mha_tensor *v, int64_t capacity)
{
    mha_kv_cache *cache;
    mha_kv_cache_desc desc = {.struct_size = sizeof desc,
                              .batch = k->shape[0],
                              .kv_heads = k->shape[1],
                              .capacity = capacity,
                              .head_dim = k->shape[3],
                              .value_head_dim = v->shape[3],
                              .type = kind->type,
                              .page_size = kind->page_size,
                              .key_scales = kind->scales};
    if (desc.page_size > capacity) desc.page_size = 0;
    expect_ok(mha_kv_cache_create(context, &desc, &cache));
    return cache;
}

/* Appends rows begin .. end - 1 of all keys, up to the lengths of the sequences. */
static void append(mha_kv_cache *cache, const mha_tensor *k, const mha_tensor *v, int64_t begin,
                   int64_t end, const int64_t *lengths)
{
    int64_t counts[KINDS_MOST_SEQUENCES];
    const mha_tensor some_k = guarded_slice(k, 2, begin, end - begin);
    const mha_tensor some_v = guarded_slice(v, 2, begin, end - begin);
    for (int64_t b = 0; b < k->shape[0]; b++) {
        const int64_t last = lengths && lengths[b] < end ? lengths[b] : end;
        counts[b] = last > begin ? last - begin : 0;
    }
    expect_ok(mha_kv_cache_append(cache, &some_k, &some_v, counts));
}

static void make_part(job *j, int rank, const cache_kind *kind)
{
    rank_part *p = &j->parts[rank];
    const mha_tensor *k = &j->c.k.view, *v = &j->c.v.view;
    p->desc = j->c.desc;
    p->q = j->c.q.view;
    p->keys = (mha_key_split){
        .struct_size = sizeof p->keys, .pieces = j->pieces, .piece_count = j->count};
    if (kind->wanted) {
        const int64_t capacity = cuts_rows(&j->cut, rank);
        p->cache = make_cache(p->context, kind, k, v, capacity > 0 ? capacity : 1);
        for (int64_t i = 0; i < j->cut.count[rank]; i++)
            append(p->cache, k, v, j->cut.pieces[rank][i].begin, j->cut.pieces[rank][i].end,
                   j->c.desc.key_lengths);
        p->keys.cache = p->cache;
    } else {
        p->k = cuts_copy(&j->cut, rank, k, 2);
        p->v = cuts_copy(&j->cut, rank, v, 2);
        p->keys.k = &p->k, p->keys.v = &p->v;
    }
    make_results(p, &p->q, v->shape[3]);
}

static void free_part(rank_part *p)
{
    if (p->o.data == p->k.data) p->o.data = NULL;
    free(p->k.data), free(p->v.data), free(p->o.data), free(p->lse.data);
    mha_kv_cache_destroy(p->cache);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void explain_rank(void *user, const mha_transport *t)
{
    rank_part *p = &((job *)user)->parts[t->rank];
    const mha_attention_outputs outputs = {.struct_size = sizeof outputs, .lse = &p->lse};
    p->keys.transport = t;
    p->status =
        mha_distributed_decode_explain(p->context, &p->keys, &p->desc, &p->q, &outputs, &p->plan);
    snprintf(p->detail, sizeof p->detail, "%s", p->status ? mha_error_detail() : "");
}

static void run_rank(void *user, const mha_transport *t)
{
    rank_part *p = &((job *)user)->parts[t->rank];
    const mha_attention_outputs outputs = {.struct_size = sizeof outputs, .lse = &p->lse};
    p->keys.transport = t;
    p->status = mha_distributed_decode(p->context, &p->keys, &p->desc, &p->q, &p->o, &outputs);
    snprintf(p->detail, sizeof p->detail, "%s", p->status ? mha_error_detail() : "");
}

/* The explained messages equal the messages that the call sends. */
static void check_counts(const job *j, int ranks, const thread_ranks_counts *explaining,
                         const thread_ranks_counts *calling)
{
    int64_t hops = 0, at = -1;
    for (int64_t n = 0, end = 0; n < j->count; end = j->pieces[n++].end)
        if (j->pieces[n].end > end) {
            hops += at >= 0 && at != j->pieces[n].rank;
            at = j->pieces[n].rank;
        }
    for (int r = 0; r < ranks; r++) {
        const mha_decode_plan *p = &j->parts[r].plan;
        const thread_ranks_count *sent = &calling->sent[r], *received = &calling->received[r];
        assert_int_equal(p->messages_sent, sent->messages - explaining->sent[r].messages);
        assert_int_equal(p->messages_received,
                         received->messages - explaining->received[r].messages);
        assert_int_equal((int64_t)p->bytes_sent, sent->bytes - explaining->sent[r].bytes);
        assert_int_equal((int64_t)p->bytes_received,
                         received->bytes - explaining->received[r].bytes);
        assert_int_equal(p->hops, hops);
    }
}

/* Whether distributed.h's conditions for concurrent ranks hold. Tensors are f32 here. */
static bool works_at_once(const job *j, const cache_kind *kind)
{
    const kinds_shape *n = &j->c.shape;
    const unsigned few = KIND_SINK_KEYS | KIND_DOCUMENTS | KIND_GLOBAL_KEYS | KIND_CALLBACK,
                   none = KIND_BLOCKS | KIND_DROPOUT | KIND_SHAW_VALUES;
    const int64_t wide = n->Dv == 32 ? 29 : n->Dv == 64 ? 55 : 56;
    const int64_t most = n->S <= 512 || n->Dv % 32 != 0 || n->kinds & few ? 12 : wide;
    if (kind->wanted && n->Dv % 16 != 0) return false;
    return n->T * n->H / n->Hk <= most && !(n->kinds & none);
}

/* The same call in one process. */
static void run_whole(const job *j, mha_context *context, const cache_kind *kind, rank_part *whole)
{
    const mha_tensor *q = &j->c.q.view, *k = &j->c.k.view, *v = &j->c.v.view;
    mha_attention_desc desc = j->c.desc;
    const mha_attention_outputs outputs = {.struct_size = sizeof outputs, .lse = &whole->lse};
    make_results(whole, q, v->shape[3]);
    if (!kind->wanted) {
        expect_ok(mha_attention_forward(context, &desc, q, k, v, &whole->o, &outputs));
        return;
    }
    whole->cache = make_cache(context, kind, k, v, k->shape[2] > 0 ? k->shape[2] : 1);
    append(whole->cache, k, v, 0, k->shape[2], desc.key_lengths);
    desc.key_lengths = NULL;
    const mha_status status =
        mha_kv_cache_attention(context, whole->cache, &desc, q, &whole->o, &outputs);
    if (status != MHA_OK) fail_msg("%s\n%s", mha_error_detail(), j->c.text);
}

static void compare(const job *j, int ranks, const rank_part *whole, int number)
{
    for (int rank = 0; rank < ranks; rank++) {
        const rank_part *p = &j->parts[rank];
        if (p->status != MHA_OK)
            fail_msg("case %d, rank %d of %d: %s\n%s", number, rank, ranks, p->detail, j->c.text);
        if (!guarded_same_bits(&whole->o, &p->o, true) ||
            !guarded_same_bits(&whole->lse, &p->lse, true))
            fail_msg("case %d, rank %d of %d, %lld keys in %lld pieces%s%s: other bits\n%s", number,
                     rank, ranks, (long long)j->c.k.view.shape[2], (long long)j->count,
                     whole->cache ? ", cache" : "", p->plan.at_once ? ", at once" : "", j->c.text);
    }
}

/* Shapes and kinds of decoding. In half of the cases, ranks can work concurrently. */
static kinds_shape some_shape(rng *r)
{
    const unsigned in_turn = KIND_DROPOUT | KIND_SHAW_VALUES | KIND_DOCUMENTS | KIND_GLOBAL_KEYS |
                             KIND_GLOBAL_QUERIES | KIND_BLOCKS | KIND_CALLBACK;
    kinds_shape n = kinds_some_shape(r);
    n.kinds &= ~(unsigned)KIND_RAGGED;
    n.T = rng_between(r, 1, 20);
    if (n.D > MHA_TILED_MAX_HEAD_DIM) n.D = 64;
    if (n.Dv > MHA_TILED_MAX_HEAD_DIM) n.Dv = 64;
    if (rng_chance(r, 0.6)) n.S = rng_between(r, 1, 5200);
    if (rng_chance(r, 0.5)) {
        n.kinds &= ~in_turn;
        n.Dv = 32 * rng_between(r, 1, 3);
        if (rng_chance(r, 0.5)) n.T = rng_between(r, 1, 2);
    }
    return n;
}

static void spoil(job *j, rng *r)
{
    const float odd[] = {INFINITY, -INFINITY, (float)NAN};
    const mha_tensor *all[] = {&j->c.q.view, &j->c.k.view, &j->c.v.view};
    const mha_tensor *x = RNG_PICK(r, all);
    const double elements = (double)(x->shape[0] * x->shape[1] * x->shape[2] * x->shape[3]) + 1;
    guarded_sprinkle(r, x, 3 / elements, odd, 3);
}

/* Gives the ranks one instruction set or several that have the same bits. */
static void take_contexts(job *j, rng *r, int ranks)
{
    const machines all = machines_make(1);
    int at[MOST_MACHINES], count = 0;
    for (int i = 0; i < all.count; i++)
        if (all.each[i].path == MHA_PATH_TILED && all.each[i].isa != MHA_ISA_PORTABLE)
            at[count++] = i;
    const bool mixed = count > 0 && rng_chance(r, 0.4);
    int one = (int)rng_between(r, 0, all.count - 1);
    while (all.each[one].path != MHA_PATH_TILED) one = (one + 1) % all.count;
    for (int rank = 0; rank < ranks; rank++) {
        const int i = mixed ? at[rng_between(r, 0, count - 1)] : one;
        j->parts[rank].context = rank_contexts_of(&all.each[i], i, rank);
    }
}

static bool check_case(int number)
{
    rng r = rng_make(rng_run_seed(), (uint64_t)number + 41000);
    const int ranks = (int)rng_between(&r, 1, MOST_RANKS);
    job *j = calloc(1, sizeof *j);
    rank_part whole = {0};
    assert_non_null(j);
    const cache_kind kind = some_cache(&r);
    const kinds_shape shape = some_shape(&r);
    kinds_make(&j->c, &r, &shape);
    /* The longest sequence of a cache has all S rows. */
    if (j->c.desc.key_lengths && kind.wanted) j->c.lengths[0] = j->c.k.view.shape[2];
    const bool odd = rng_chance(&r, 0.25);
    if (odd) spoil(j, &r);
    cut_keys(j, &r, j->c.k.view.shape[2], ranks);
    take_contexts(j, &r, ranks);
    for (int rank = 0; rank < ranks; rank++) make_part(j, rank, &kind);
    run_whole(j, j->parts[0].context, &kind, &whole);
    const thread_ranks_counts explaining = thread_ranks_run(ranks, explain_rank, j, -1, 0);
    const thread_ranks_counts calling = thread_ranks_run(ranks, run_rank, j, -1, 0);
    compare(j, ranks, &whole, number);
    if (!odd) check_counts(j, ranks, &explaining, &calling);
    for (int rank = 0; rank < ranks; rank++)
        if (j->parts[rank].plan.at_once != works_at_once(j, &kind))
            fail_msg("case %d, rank %d of %d: at once %d\n%s", number, rank, ranks,
                     j->parts[rank].plan.at_once, j->c.text);
    const bool at_once = j->parts[0].plan.at_once && j->count > 1;
    for (int rank = 0; rank < ranks; rank++) free_part(&j->parts[rank]);
    free_part(&whole);
    kinds_free(&j->c);
    free(j);
    return at_once;
}

static void the_bits_of_one_process(void)
{
    int first, end, cases = 0, at_once = 0;
    const bool all = rng_range(100, 3000, &first, &end);
    for (; first < end; first++, cases++) at_once += check_case(first);
    if (all && rng_whole_sample()) assert_in_range(at_once, cases / 20, cases - cases / 20);
}

/* ---- a growing text -------------------------------------------------------------------------- */

enum { GROW_HEADS = 4, GROW_WIDTH = 32, GROW_BEGIN = 900, GROW_STEPS = 500, GROW_RUN = 512 };

typedef struct growth {
    int ranks;
    cache_kind kind;
    mha_tensor q, k, v;
    float *expected; /* [steps][B][H][Dv] */
    mha_context *contexts[MOST_RANKS];
    int64_t other[MOST_RANKS]; /* steps whose bits differ */
    char detail[MOST_RANKS][512];
} growth;

static mha_tensor of_step(const mha_tensor *x, int64_t at)
{
    return guarded_slice(x, 2, at, 1);
}

/* Appends the rank's share of positions from .. length - 1 to its cache. */
static mha_status grow(mha_kv_cache *cache, const growth *g, int rank, int64_t from, int64_t length)
{
    for (int64_t n = from, next; n < length; n = next) {
        next = (n / GROW_RUN + 1) * GROW_RUN < length ? (n / GROW_RUN + 1) * GROW_RUN : length;
        if (n / GROW_RUN % g->ranks != rank) continue;
        const mha_tensor k = guarded_slice(&g->k, 2, n, next - n);
        const mha_tensor v = guarded_slice(&g->v, 2, n, next - n);
        MHA_TRY(mha_kv_cache_append(cache, &k, &v, NULL));
    }
    return MHA_OK;
}

static void decode_text(void *user, const mha_transport *t)
{
    growth *g = user;
    mha_key_piece pieces[8];
    float o[2 * GROW_HEADS * GROW_WIDTH];
    const int64_t row[] = {2, GROW_HEADS, 1, GROW_WIDTH};
    const mha_tensor out = mha_tensor_contiguous(o, MHA_F32, 4, row);
    mha_kv_cache *cache =
        make_cache(g->contexts[t->rank], &g->kind, &g->k, &g->v, GROW_BEGIN + GROW_STEPS);
    mha_key_split keys = {
        .struct_size = sizeof keys, .transport = t, .pieces = pieces, .cache = cache};
    mha_status status = grow(cache, g, t->rank, 0, GROW_BEGIN);
    for (int64_t step = 0; step < GROW_STEPS && status == MHA_OK; step++) {
        const int64_t length = GROW_BEGIN + step + 1;
        keys.piece_count = 0;
        for (int64_t end = 0; end < length;) {
            end = end + GROW_RUN < length ? end + GROW_RUN : length;
            pieces[keys.piece_count] = (mha_key_piece){end, keys.piece_count % g->ranks};
            keys.piece_count++;
        }
        const mha_tensor q = of_step(&g->q, step);
        status = grow(cache, g, t->rank, length - 1, length);
        if (status == MHA_OK)
            status = mha_distributed_decode(g->contexts[t->rank], &keys, NULL, &q, &out, NULL);
        g->other[t->rank] +=
            memcmp(o, g->expected + step * (int64_t)(sizeof o / sizeof *o), sizeof o) != 0;
    }
    snprintf(g->detail[t->rank], sizeof *g->detail, "%s", status ? mha_error_detail() : "");
    mha_kv_cache_destroy(cache);
}

static void decode_alone(growth *g)
{
    mha_kv_cache *cache =
        make_cache(g->contexts[0], &g->kind, &g->k, &g->v, GROW_BEGIN + GROW_STEPS);
    const int64_t row[] = {2, GROW_HEADS, 1, GROW_WIDTH};
    append(cache, &g->k, &g->v, 0, GROW_BEGIN, NULL);
    for (int64_t step = 0; step < GROW_STEPS; step++) {
        const int64_t at = GROW_BEGIN + step;
        const mha_tensor q = of_step(&g->q, step);
        const mha_tensor o = mha_tensor_contiguous(g->expected + step * 2 * GROW_HEADS * GROW_WIDTH,
                                                   MHA_F32, 4, row);
        append(cache, &g->k, &g->v, at, at + 1, NULL);
        expect_ok(mha_kv_cache_attention(g->contexts[0], cache, NULL, &q, &o, NULL));
    }
    mha_kv_cache_destroy(cache);
}

static void every_step_of_a_growing_text(void)
{
    static const int sizes[] = {1, 2, 3, 5, 7};
    rng r = rng_make(rng_run_seed(), 9);
    growth g = {.kind = some_cache(&r)};
    const machines all = machines_make(1);
    guarded q = guarded_filled(&r, 4, (int64_t[]){2, GROW_HEADS, GROW_STEPS, GROW_WIDTH}, 0, 1);
    const int64_t shape[] = {2, GROW_HEADS / 2, GROW_BEGIN + GROW_STEPS, GROW_WIDTH};
    guarded k = guarded_filled(&r, 4, shape, 0, 1), v = guarded_filled(&r, 4, shape, 0, 1);
    g.q = q.view, g.k = k.view, g.v = v.view;
    g.expected = room((int64_t)GROW_STEPS * 2 * GROW_HEADS * GROW_WIDTH);
    for (int i = 0; i < MOST_RANKS; i++) g.contexts[i] = rank_contexts_of(&all.each[0], 0, i);
    decode_alone(&g);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i] != 2 && !rng_takes((int64_t)i, 1)) continue;
        g.ranks = sizes[i];
        thread_ranks_run(g.ranks, decode_text, &g, -1, 0);
        for (int rank = 0; rank < g.ranks; rank++) {
            assert_string_equal(g.detail[rank], "");
            assert_int_equal(g.other[rank], 0);
        }
    }
    free(g.expected);
    guarded_free(&q), guarded_free(&k), guarded_free(&v);
}

/* ---- errors and lost ranks ------------------------------------------------------------------- */

enum { PLAIN_RANKS = 3 };

static job *make_plain(bool cached, unsigned kinds)
{
    rng r = rng_make(1, 1);
    job *j = calloc(1, sizeof *j);
    const machines all = machines_make(1);
    const kinds_shape shape = {
        .B = 1, .H = 2, .Hk = 1, .T = 2, .S = 2400, .D = 32, .Dv = 32, .kinds = kinds};
    const cache_kind kind = {.wanted = cached, .type = MHA_F32, .page_size = 16};
    assert_non_null(j);
    kinds_make(&j->c, &r, &shape);
    static const mha_key_piece pieces[] = {{1024, 2}, {1536, 0}, {2048, 1}, {2400, 2}};
    memcpy(j->pieces, pieces, sizeof pieces);
    j->count = 4;
    j->cut = (cuts){.ranks = PLAIN_RANKS, .count = {1, 1, 2}};
    j->cut.pieces[0][0] = (mha_piece){1024, 1536};
    j->cut.pieces[1][0] = (mha_piece){1536, 2048};
    j->cut.pieces[2][0] = (mha_piece){0, 1024};
    j->cut.pieces[2][1] = (mha_piece){2048, 2400};
    for (int rank = 0; rank < PLAIN_RANKS; rank++) {
        j->parts[rank].context = rank_contexts_of(&all.each[0], 0, rank);
        make_part(j, rank, &kind);
    }
    return j;
}

static void free_plain(job *j)
{
    for (int rank = 0; rank < PLAIN_RANKS; rank++) free_part(&j->parts[rank]);
    kinds_free(&j->c);
    free(j);
}

static bool is_untouched(const rank_part *p)
{
    const unsigned char mark[] = {0xEE, 0xEE, 0xEE, 0xEE};
    return memcmp(p->o.data, mark, sizeof mark) == 0 && memcmp(p->lse.data, mark, sizeof mark) == 0;
}

/* Like the test in test_distributed.c, with concurrent ranks and with ranks in sequence. */
static void scratch_is_what_plans_say(void)
{
    enum { LISTS = 8192 };
    for (int i = 0; i < 4; i++) {
        job *j = make_plain(false, i / 2 ? KIND_DROPOUT : 0);
        failing_alloc memory[PLAIN_RANKS];
        for (int rank = 0; rank < PLAIN_RANKS; rank++) {
            memory[rank] = failing_alloc_make();
            expect_ok(failing_context(&memory[rank], 1 + rank % 2, MHA_ISA_AUTO,
                                      &j->parts[rank].context));
        }
        thread_ranks_run(PLAIN_RANKS, explain_rank, j, -1, 0);
        for (int rank = 0; rank < PLAIN_RANKS; rank++) {
            const size_t bytes = j->parts[rank].plan.scratch_bytes;
            assert_int_equal(j->parts[rank].plan.at_once, i < 2);
            expect_ok(mha_context_reserve(j->parts[rank].context,
                                          i % 2 ? bytes + LISTS : bytes - bytes / 4));
            memory[rank].number = memory[rank].calls;
        }
        thread_ranks_run(PLAIN_RANKS, run_rank, j, -1, 0);
        for (int rank = 0; rank < PLAIN_RANKS; rank++) {
            expect_ok(j->parts[rank].status);
            assert_int_equal(memory[rank].calls == memory[rank].number, i % 2);
            mha_context_destroy(j->parts[rank].context);
        }
        free_plain(j);
    }
}

/* All ranks return the same error, which names the rank and the cause, and write nothing. */
static void expect_refusal(job *j, mha_status status, const char *words)
{
    thread_rank_fn *const calls[] = {explain_rank, run_rank};
    for (int i = 0; i < 2; i++) {
        if (i == 0 && status == MHA_ERR_OVERLAP) continue; /* the call that explains takes no o */
        thread_ranks_run(PLAIN_RANKS, calls[i], j, -1, 0);
        for (int rank = 0; rank < PLAIN_RANKS; rank++) {
            rank_part *p = &j->parts[rank];
            if (p->status != status || !strstr(p->detail, words))
                fail_msg("rank %d: %d '%s', expected %d '%s'", rank, (int)p->status, p->detail,
                         (int)status, words);
            assert_true(is_untouched(p));
        }
    }
    free_plain(j);
}

#define REFUSED(status, words, cached, ...) \
    do {                                    \
        job *j = make_plain(cached, 0);     \
        rank_part *p = &j->parts[1];        \
        (void)p;                            \
        __VA_ARGS__;                        \
        expect_refusal(j, status, words);   \
    } while (0)

static void refusals_reach_every_rank(void)
{
    static mha_key_piece other[] = {{512, 2}, {1024, 0}, {1536, 1}, {2400, 2}};
    static const int64_t starts[] = {0, 1};
    REFUSED(MHA_ERR_ARGUMENT, "rank 1: has another q or description", false, p->desc.scale = 3);
    REFUSED(MHA_ERR_ARGUMENT, "rank 1: has another q or description", true,
            p->desc.flags = MHA_ATTENTION_CAUSAL);
    REFUSED(MHA_ERR_ARGUMENT, "rank 1: has another q or description", false,
            p->keys.pieces = other);
    REFUSED(MHA_ERR_ARGUMENT, "rank 1: mha_key_split: pieces[0] ends at key 1000", false,
            p->keys.pieces = (mha_key_piece[]){{1000, 1}, {2400, 1}}, p->keys.piece_count = 2);
    REFUSED(MHA_ERR_ARGUMENT, "rank 1: mha_key_split: pieces[1] ends at key 512", false,
            p->keys.pieces = (mha_key_piece[]){{1024, 1}, {512, 1}, {2400, 1}},
            p->keys.piece_count = 3);
    REFUSED(MHA_ERR_ARGUMENT, "rank 0: mha_key_split: pieces[1] is of rank 3 of 3", false,
            j->pieces[1].rank = 3);
    REFUSED(MHA_ERR_ARGUMENT, "rank 0: mha_key_split: pieces[1] is of rank -1", false,
            j->pieces[1].rank = -1);
    REFUSED(MHA_ERR_ARGUMENT, "rank 1: mha_key_split: -1 pieces", false, p->keys.piece_count = -1);
    REFUSED(MHA_ERR_ARGUMENT, "rank 1: mha_key_split: 4 pieces at", false, p->keys.pieces = NULL);
    REFUSED(MHA_ERR_UNSUPPORTED, "rank 1: mha_key_split: flags 0x4", false, p->keys.flags = 4);
    REFUSED(MHA_ERR_NULL, "rank 1: mha_key_split: k is NULL", true, p->keys.cache = NULL);
    REFUSED(MHA_ERR_ARGUMENT, "rank 1: mha_key_split: cache and k or v are set", true,
            p->keys.v = &p->q);
    REFUSED(MHA_ERR_SHAPE, "rank 1: v: dim 2", false, p->v.shape[2]--);
    REFUSED(MHA_ERR_SHAPE, "rank 1: k: dim 3", false, p->k.shape[3]--);
    REFUSED(MHA_ERR_DTYPE, "rank 1: q", false, p->q.dtype = MHA_I32);
    REFUSED(MHA_ERR_SHAPE, "rank 1: q", true, p->q.ndim = 3);
    REFUSED(MHA_ERR_ARGUMENT, "rank 1: cache: sequence 0 holds 511 positions", true,
            expect_ok(mha_kv_cache_truncate(p->cache, 0, 511)));
    REFUSED(MHA_ERR_UNSUPPORTED, "rank 1: mha_distributed_decode: ragged batches", false,
            p->desc.query_starts = p->desc.key_starts = starts, p->desc.sequences = 1);
    REFUSED(MHA_ERR_UNSUPPORTED, "bf16 arithmetic", false, p->desc.compute = MHA_COMPUTE_BF16);
    REFUSED(MHA_ERR_UNSUPPORTED, "rank 1: mha_distributed_decode: the plain path is not", false,
            p->desc.path = MHA_PATH_PLAIN);
    REFUSED(MHA_ERR_OVERLAP, "rank 1: o overlaps k", false, free(p->o.data), p->o.data = p->k.data,
            memset(p->o.data, 0xEE, sizeof(float)));
}

/* A rank's cache has another type, or the rank has tensors instead. test_distributed.c tests the
 * other comparisons.
 * */
static void other_caches_are_refused(void)
{
    static const cache_kind kinds[] = {
        {.wanted = true, .type = MHA_I8, .page_size = 16},
        {.wanted = true, .type = MHA_I8, .page_size = 16, .scales = MHA_KV_SCALES_CHANNEL},
        {.wanted = true, .type = MHA_BF16, .page_size = 16},
        {.wanted = false}};
    enum { KINDS = sizeof kinds / sizeof *kinds };
    for (int i = 1; i < KINDS; i++) {
        job *j = make_plain(false, 0);
        for (int rank = 0; rank < PLAIN_RANKS; rank++) {
            free_part(&j->parts[rank]);
            j->parts[rank] = (rank_part){.context = j->parts[rank].context};
            make_part(j, rank, &kinds[rank == 1 ? i : 0]);
        }
        expect_refusal(j, MHA_ERR_ARGUMENT, "rank 1: has another q or description than rank 0");
    }
}

static void expect_refused(mha_status status, const char *words)
{
    assert_int_equal(status, MHA_ERR_UNSUPPORTED);
    assert_non_null(strstr(mha_error_detail(), words));
}

/* A rank with different tokens. */
static void other_queries_are_refused(void)
{
    job *j = make_plain(true, 0);
    rank_part *p = &j->parts[1];
    const mha_tensor q = cuts_copy(&j->cut, 1, &p->q, -1);
    p->q = q;
    ((float *)q.data)[77] += 1;
    thread_ranks_run(PLAIN_RANKS, run_rank, j, -1, 0);
    for (int rank = 0; rank < PLAIN_RANKS; rank++) {
        assert_int_equal(j->parts[rank].status, MHA_ERR_ARGUMENT);
        assert_non_null(strstr(j->parts[rank].detail, "rank 1: has another q or description"));
        assert_true(is_untouched(&j->parts[rank]));
    }
    free(q.data);
    free_plain(j);
}

/* Allocation fails on rank 1: the call fails on all ranks, and only the error has been sent. */
static mha_status run_short_of_memory(mha_context *context, failing_alloc *memory, void *user)
{
    job *j = user;
    mha_status status = MHA_OK;
    for (int rank = 0; rank < PLAIN_RANKS; rank++) {
        memset(j->parts[rank].o.data, 0xEE, 4);
        memset(j->parts[rank].lse.data, 0xEE, 4);
    }
    mha_context *own = j->parts[1].context;
    j->parts[1].context = context;
    failing_from_here(memory);
    thread_ranks_run(PLAIN_RANKS, run_rank, j, -1, 0);
    j->parts[1].context = own;
    for (int rank = 0; rank < PLAIN_RANKS; rank++) {
        status = j->parts[rank].status;
        assert_int_equal(status, j->parts[1].status);
        if (status != MHA_OK) assert_true(is_untouched(&j->parts[rank]));
    }
    return status;
}

static void short_of_memory(void)
{
    for (int way = 0; way < 4; way++) {
        job *j = make_plain(way & 1, way & 2 ? KIND_DROPOUT : 0);
        assert_true(failing_each(run_short_of_memory, j) > 0);
        free_plain(j);
    }
}

/* Errors that cannot reach other ranks, or that need no message. */
static void refusals_of_one(void)
{
    job *j = make_plain(false, 0);
    rank_part *p = &j->parts[0];
    const mha_transport alone = {.struct_size = sizeof alone, .size = 1};
    mha_key_piece all = {512, 0};
    p->keys.transport = &alone, p->keys.pieces = &all, p->keys.piece_count = 1;
    const mha_attention_outputs outputs = {.struct_size = sizeof outputs, .entropy = &p->lse};
    expect_refused(mha_distributed_decode(p->context, &p->keys, &p->desc, &p->q, &p->o, &outputs),
                   "lse is the only output besides o");
    assert_int_equal(mha_distributed_decode(p->context, &p->keys, &p->desc, &p->q, NULL, NULL),
                     MHA_ERR_NULL);
    assert_int_equal(mha_distributed_decode(p->context, NULL, &p->desc, &p->q, &p->o, NULL),
                     MHA_ERR_NULL);
    assert_int_equal(
        mha_distributed_decode_explain(p->context, &p->keys, &p->desc, &p->q, NULL, NULL),
        MHA_ERR_NULL);
    const mha_kv_cache_desc desc = {.struct_size = sizeof desc,
                                    .batch = 1,
                                    .kv_heads = 1,
                                    .capacity = 64,
                                    .head_dim = 32,
                                    .window = 16};
    mha_kv_cache *cache;
    expect_ok(mha_kv_cache_create(p->context, &desc, &cache));
    p->keys.cache = cache, p->keys.k = p->keys.v = NULL;
    expect_refused(mha_distributed_decode(p->context, &p->keys, &p->desc, &p->q, &p->o, NULL),
                   "a cache with a window");
    mha_kv_cache_destroy(cache);
    assert_true(is_untouched(p));
    free_plain(j);
}

/* At any message where a rank is lost, the others return, and a failing rank has written nothing.
 * The cases are sequential, concurrent, and concurrent with values that are not finite. */
static void a_lost_rank_ends_the_call(void)
{
    for (int way = 0; way < 3; way++)
        for (int lost = 0; lost < PLAIN_RANKS; lost++)
            for (int64_t after = 0, failed = 1; failed > 0; after++) {
                job *j = make_plain(false, way == 0 ? KIND_DROPOUT : 0);
                if (way == 2) ((float *)j->parts[1].v.data)[5] = INFINITY;
                thread_ranks_run(PLAIN_RANKS, run_rank, j, lost, after);
                failed = 0;
                for (int rank = 0; rank < PLAIN_RANKS; rank++) {
                    const rank_part *p = &j->parts[rank];
                    assert_true(p->status == MHA_OK || p->status == MHA_ERR_RANK);
                    failed += p->status != MHA_OK;
                    if (p->status != MHA_OK) assert_true(is_untouched(p));
                }
                free_plain(j);
            }
}

/* Message sizes do not depend on the number of keys. */
static void bytes_do_not_grow_with_the_keys(void)
{
    thread_ranks_counts sent[2];
    for (int i = 0; i < 2; i++) {
        job *j = make_plain(false, 0);
        const int64_t more = i * 4 * MHA_SPLIT_KEYS;
        for (int64_t n = 2; n < j->count; n++) j->pieces[n].end += more;
        rank_part *p = &j->parts[1];
        const int64_t shape[] = {1, 1, MHA_SPLIT_KEYS + more, 32};
        free(p->k.data), free(p->v.data);
        p->k = mha_tensor_contiguous(calloc((size_t)shape[2], 128), MHA_F32, 4, shape);
        p->v = mha_tensor_contiguous(calloc((size_t)shape[2], 128), MHA_F32, 4, shape);
        sent[i] = thread_ranks_run(PLAIN_RANKS, run_rank, j, -1, 0);
        for (int rank = 0; rank < PLAIN_RANKS; rank++) expect_ok(j->parts[rank].status);
        free_plain(j);
    }
    assert_int_equal(sent[0].messages, sent[1].messages);
    assert_int_equal(sent[0].bytes, sent[1].bytes);
}

RUN_TESTS_BETWEEN(NULL, rank_contexts_destroy, TEST(the_bits_of_one_process),
                  TEST(every_step_of_a_growing_text), TEST(refusals_reach_every_rank),
                  TEST(other_queries_are_refused), TEST(other_caches_are_refused),
                  TEST(short_of_memory), TEST(scratch_is_what_plans_say), TEST(refusals_of_one),
                  TEST(a_lost_rank_ends_the_call), TEST(bytes_do_not_grow_with_the_keys))
