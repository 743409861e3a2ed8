/* See relay.h.
 *
 * Each rank works on whatever is there: blocks that have arrived for a visit are taken in the order of
 * blocks, so that dq is summed in the order of keys; later visits go first, so that blocks leave the
 * relay. An owner starts its next block when few enough of its own are on their way. Then nobody waits
 * for ever: of all blocks that are not home the first one can always go on, since at each visit all
 * before it have passed, and its owner starts it before any other.
 *
 * A message to a visit is a box: what it is, rows of k, of v, and but for the first visit sums of dk and
 * dv. */
#include "distributed/relay.h"

#include "base/checked.h"
#include "base/context.h"
#include "ranks/rank_messages.h"

#include <multihead/component.h>

#include <string.h>

/* Key/value heads whose blocks go side by side, one for each thread of the rank with the most. */
enum { MOST_TOGETHER = 64 };

/* ---- making ---------------------------------------------------------------------------------- */

static int64_t sequences_of(const mha_attention_desc *d, int64_t batch)
{
    return d->query_starts ? d->sequences : batch;
}

static int64_t keys_of(const mhai_relay *r, int64_t b)
{
    return r->desc->key_starts ? r->desc->key_starts[b + 1] - r->desc->key_starts[b]
                               : r->s->given.keys;
}

/* Heads `together` by `together`, their blocks side by side; counts, or fills in. */
static int64_t list_blocks(const mhai_relay *r, int64_t sequences, int64_t kv_heads,
                           int64_t together, mhai_relay_block *blocks)
{
    int64_t count = 0;
    const int64_t heads = sequences * kv_heads;
    for (int64_t first = 0; first < heads; first += together) {
        const int64_t end = mhai_min_i64(first + together, heads);
        bool more = true;
        for (int64_t key = 0; more; key += MHAI_CELL_KEYS) {
            more = false;
            for (int64_t u = first; u < end; u++) {
                const int64_t b = u / kv_heads, left = keys_of(r, b) - key;
                if (left <= 0) continue;
                more = true;
                if (blocks)
                    blocks[count] = (mhai_relay_block){
                        .b = b,
                        .hk = u % kv_heads,
                        .key = key,
                        .rows = mhai_min_i64(left, MHAI_CELL_KEYS),
                        .first = (r->desc->key_starts ? r->desc->key_starts[b] : 0) + key};
                count++;
            }
        }
    }
    return count;
}

static void find_parcels(mhai_relay *r)
{
    for (int64_t n = 0; n < r->block_count; n++) {
        int64_t low = 0, high = r->s->parcel_count; /* first of low <= the block's */
        while (high - low > 1) {
            const int64_t middle = low + (high - low) / 2;
            if (r->s->parcels[middle].first <= r->blocks[n].first)
                low = middle;
            else
                high = middle;
        }
        r->blocks[n].parcel = low;
    }
}

static int64_t list_visits(const mhai_relay *r, mhai_relay_visit *visits)
{
    const int64_t pieces = r->s->query_count;
    int64_t count = 0;
    for (int64_t i = 0; i < r->group * pieces; i++) {
        const int32_t rank = r->s->queries[i % pieces].rank;
        if (i > 0 && r->s->queries[(i - 1) % pieces].rank == rank) {
            if (visits) visits[count - 1].end = i + 1;
            continue;
        }
        if (visits) visits[count] = (mhai_relay_visit){.rank = rank, .begin = i, .end = i + 1};
        count++;
    }
    return count;
}

/* Tags tell a rank's visits apart, and blocks that may be on their way at the same time. */
static mha_status number_visits(mhai_relay *r, int64_t together)
{
    int64_t most = 0;
    for (int64_t i = 0; i < r->visit_count; i++) {
        mhai_relay_visit *v = &r->visits[i];
        v->ordinal = 0;
        for (int64_t j = i - 1; j >= 0 && v->ordinal == 0; j--)
            if (r->visits[j].rank == v->rank) v->ordinal = r->visits[j].ordinal + 1;
        most = mhai_max_i64(most, v->ordinal);
    }
    r->tags = most + 3;
    const int64_t size = r->s->t->size;
    const int64_t blocks = size > 1 ? r->s->t->most_tag / r->tags / size : INT32_MAX;
    r->ahead = mhai_min_i64(32 * together, blocks);
    if (r->ahead > 0) return MHA_OK;
    return mha_fail(MHA_ERR_SIZE,
                    "mha_distributed_backward: %lld pieces and %lld heads of a group "
                    "need more tags than the transport has; use fewer pieces",
                    (long long)r->s->query_count, (long long)r->group);
}

mha_status mhai_relay_make(mha_context *context, const mhai_split *s,
                           const mhai_slice_common *common, const mha_attention_desc *desc,
                           mhai_relay *r)
{
    const int64_t together = mhai_min_i64(s->threads, MOST_TOGETHER);
    const int64_t sequences = sequences_of(desc, common->batch);
    int64_t cells;
    void *memory;
    *r = (mhai_relay){.context = context, .s = s, .desc = desc};
    r->D = mhai_cells_padded(common->head_dim), r->Dv = mhai_cells_padded(common->value_dim);
    r->group = common->kv_heads ? common->heads / common->kv_heads : 0;
    r->k_bytes = (size_t)common->head_dim * mha_dtype_size((mha_dtype)common->k_type);
    r->v_bytes = (size_t)common->value_dim * mha_dtype_size((mha_dtype)common->v_type);
    r->block_count = list_blocks(r, sequences, common->kv_heads, together, NULL);
    MHA_TRY(mha_scratch_alloc(context, r->block_count, sizeof *r->blocks, &memory));
    r->blocks = memory;
    list_blocks(r, sequences, common->kv_heads, together, r->blocks);
    find_parcels(r);
    r->visit_count = list_visits(r, NULL);
    MHA_TRY(mha_scratch_alloc(context, r->visit_count, sizeof *r->visits, &memory));
    r->visits = memory;
    list_visits(r, r->visits);
    MHA_TRY(number_visits(r, together));
    if (!mhai_mul_i64(r->block_count, s->query_count, &cells))
        return mha_fail(MHA_ERR_SIZE, "k: too many blocks for so many pieces of queries");
    MHA_TRY(mha_scratch_alloc(context, cells, 1, &memory));
    r->seen = memory;
    for (int64_t n = 0; n < r->block_count; n++)
        for (int64_t i = 0; i < s->query_count; i++)
            r->seen[n * s->query_count + i] = mhai_split_sees(desc, r->blocks[n].b, &s->queries[i],
                                                              r->blocks[n].key, r->blocks[n].rows);
    return MHA_OK;
}

/* ---- paths ----------------------------------------------------------------------------------- */

static bool is_visited(const mhai_relay *r, int64_t n, int64_t visit)
{
    const mhai_relay_visit *v = &r->visits[visit];
    for (int64_t i = v->begin; i < v->end; i++)
        if (r->seen[n * r->s->query_count + i % r->s->query_count]) return true;
    return false;
}

/* The next visit of a block from `visit` on, or -1; the one before `visit`, or -1. */
static int64_t visit_from(const mhai_relay *r, int64_t n, int64_t visit)
{
    while (visit < r->visit_count && !is_visited(r, n, visit)) visit++;
    return visit < r->visit_count ? visit : -1;
}

static int64_t visit_before(const mhai_relay *r, int64_t n, int64_t visit)
{
    while (--visit >= 0 && !is_visited(r, n, visit)) continue;
    return visit;
}

static int32_t owner_of(const mhai_relay *r, int64_t n)
{
    return r->s->parcels[r->blocks[n].parcel].owner;
}

/* ---- boxes ----------------------------------------------------------------------------------- */

typedef struct box {
    struct box *next;
    int64_t n, visit; /* visit -1: on its way home */
    bool pending;     /* it is received, or sent */
    bool started;     /* without sums: they begin with 0 */
    mha_transfer transfer;
    size_t bytes;
    int64_t *head; /* of the message: n, visit */
    unsigned char *k, *v;
    float *dk, *dv;
} box;

typedef struct run {
    mhai_relay *r;
    const mha_transport *t;
    mha_allocator allocator;
    box **arriving;         /* [visits] of this rank: lists in the order of blocks */
    int64_t *next, *posted; /* [visits] the next block to be computed; to be received */
    box *home, *sending;
    int64_t launched, out; /* own blocks: next to look at; on their way */
    int64_t chosen_count;
    box *chosen[MOST_TOGETHER];
} run;

static size_t rounded(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static size_t sums_at(const mhai_relay *r, int64_t rows)
{
    return rounded((size_t)rows * r->k_bytes) + rounded((size_t)rows * r->v_bytes);
}

static size_t sums_bytes(const mhai_relay *r, int64_t rows)
{
    return (size_t)(rows * (r->D + r->Dv)) * sizeof(float);
}

enum { HEAD_BYTES = 64 };

static mha_status make_box(run *x, int64_t n, int64_t visit, box **made)
{
    const mhai_relay *r = x->r;
    const int64_t rows = r->blocks[n].rows;
    const size_t head = rounded(sizeof(box)) + HEAD_BYTES;
    const size_t bytes = head + sums_at(r, rows) + sums_bytes(r, rows);
    unsigned char *memory = x->allocator.alloc(x->allocator.user, bytes, 64);
    if (!memory)
        return mha_fail(MHA_ERR_NOMEM,
                        "mha_distributed_backward: cannot allocate %zu bytes for a block", bytes);
    box *b = *made = (box *)(void *)memory;
    *b = (box){.n = n, .visit = visit, .bytes = bytes, .k = memory + head};
    b->head = (int64_t *)(void *)(b->k - HEAD_BYTES);
    memset(b->head, 0, HEAD_BYTES);
    b->v = b->k + rounded((size_t)rows * r->k_bytes);
    b->dk = (float *)(void *)(b->k + sums_at(r, rows));
    b->dv = b->dk + rows * r->D;
    return MHA_OK;
}

static void free_box(run *x, box *b)
{
    x->allocator.release(x->allocator.user, b, b->bytes);
}

static void insert(box **list, box *b)
{
    while (*list && (*list)->n < b->n) list = &(*list)->next;
    b->next = *list;
    *list = b;
}

enum { TO_HOME = 0, TO_KEEPER = 1, TO_VISIT = 2 };

/* kind: TO_HOME, TO_KEEPER, or TO_VISIT and the visit's ordinal. */
static int32_t tag_of(const run *x, int64_t n, int64_t kind)
{
    const int64_t blocks = x->t->most_tag / x->r->tags;
    return (int32_t)(blocks > 0 ? n % blocks * x->r->tags + kind : 0);
}

static mha_status send_box(run *x, int32_t to, int64_t kind, box *b, const void *bytes,
                           size_t count)
{
    b->next = x->sending;
    x->sending = b;
    MHA_TRY(x->t->send(x->t->user, to, tag_of(x, b->n, kind), bytes, count, &b->transfer));
    b->pending = true;
    return MHA_OK;
}

/* ---- home ------------------------------------------------------------------------------------ */

/* Runs of a block's rows that one rank has: returns its rank and the row there. */
static int32_t keeper_of(const mhai_split *s, int64_t first, int64_t end, int64_t *local,
                         int64_t *rows)
{
    int64_t i = 0;
    while (s->keys[i].end <= first) i++;
    *local = s->keys[i].local + first - s->keys[i].begin;
    *rows = mhai_min_i64(end, s->keys[i].end) - first;
    return s->keys[i].rank;
}

/* The owner has the sums: its own rows are done, others go to those who have the keys. */
static mha_status hand_out(run *x, const box *b)
{
    mhai_relay *r = x->r;
    const mhai_relay_block *k = &r->blocks[b->n];
    int64_t local, rows;
    for (int64_t at = 0; at < k->rows; at += rows) {
        const int32_t rank = keeper_of(r->s, k->first + at, k->first + k->rows, &local, &rows);
        if (rank == x->t->rank) {
            r->home(r->user, k, local, rows, b->dk + at * r->D, b->dv + at * r->Dv);
            continue;
        }
        box *part;
        MHA_TRY(make_box(x, b->n, -1, &part));
        memcpy(part->dk, b->dk + at * r->D, (size_t)(rows * r->D) * sizeof(float));
        memcpy(part->dk + rows * r->D, b->dv + at * r->Dv, (size_t)(rows * r->Dv) * sizeof(float));
        MHA_TRY(send_box(x, rank, TO_KEEPER, part, part->dk, sums_bytes(r, rows)));
    }
    return MHA_OK;
}

/* Takes the box, which is in no list, even if it fails. */
static mha_status deliver(run *x, box *b)
{
    const mha_status status = hand_out(x, b);
    x->out--;
    free_box(x, b);
    return status;
}

/* Rows of this rank in blocks of others. */
static mha_status receive_kept(run *x)
{
    mhai_relay *r = x->r;
    for (int64_t n = 0; n < r->block_count; n++) {
        const mhai_relay_block *k = &r->blocks[n];
        int64_t local, rows;
        if (owner_of(r, n) == x->t->rank) continue;
        for (int64_t at = 0; at < k->rows; at += rows) {
            box *part;
            if (keeper_of(r->s, k->first + at, k->first + k->rows, &local, &rows) != x->t->rank)
                continue;
            MHA_TRY(make_box(x, n, -1, &part));
            mha_status status = x->t->receive(x->t->user, owner_of(r, n), tag_of(x, n, TO_KEEPER),
                                              part->dk, sums_bytes(r, rows), &part->transfer);
            if (status == MHA_OK) status = x->t->wait(x->t->user, &part->transfer);
            if (status == MHA_OK)
                r->home(r->user, k, local, rows, part->dk, part->dk + rows * r->D);
            free_box(x, part);
            MHA_TRY(status);
        }
    }
    return MHA_OK;
}

/* ---- on the way ------------------------------------------------------------------------------ */

static size_t visit_bytes(const mhai_relay *r, int64_t rows, bool started)
{
    return HEAD_BYTES + sums_at(r, rows) + (started ? 0 : sums_bytes(r, rows));
}

/* A box goes to its next visit, or home. */
static mha_status pass_on(run *x, box *b, int64_t from)
{
    mhai_relay *r = x->r;
    const int64_t visit = visit_from(r, b->n, from), rows = r->blocks[b->n].rows;
    const int32_t rank = visit >= 0 ? r->visits[visit].rank : owner_of(r, b->n);
    b->visit = visit;
    if (rank == x->t->rank) {
        if (visit < 0) return deliver(x, b);
        b->head[0] = b->n, b->head[1] = visit;
        insert(&x->arriving[visit], b);
        return MHA_OK;
    }
    if (visit < 0) return send_box(x, rank, TO_HOME, b, b->dk, sums_bytes(r, rows));
    b->head[0] = b->n, b->head[1] = visit;
    return send_box(x, rank, TO_VISIT + r->visits[visit].ordinal, b, b->head,
                    visit_bytes(r, rows, b->started));
}

/* A block comes home from its last visit, unless that is here. */
static mha_status expect_home(run *x, int64_t n)
{
    const mhai_relay *r = x->r;
    const int64_t last = visit_before(r, n, r->visit_count);
    box *b;
    if (last < 0 || r->visits[last].rank == x->t->rank) return MHA_OK;
    MHA_TRY(make_box(x, n, -1, &b));
    insert(&x->home, b);
    MHA_TRY(x->t->receive(x->t->user, r->visits[last].rank, tag_of(x, n, TO_HOME), b->dk,
                          sums_bytes(r, r->blocks[n].rows), &b->transfer));
    b->pending = true;
    return MHA_OK;
}

static mha_status launch(run *x)
{
    mhai_relay *r = x->r;
    for (; x->launched < r->block_count && x->out < r->ahead; x->launched++) {
        const int64_t n = x->launched;
        const mhai_relay_block *k = &r->blocks[n];
        box *b;
        if (owner_of(r, n) != x->t->rank) continue;
        MHA_TRY(expect_home(x, n));
        MHA_TRY(make_box(x, n, -1, &b));
        memset(b->dk, 0, sums_bytes(r, k->rows));
        const int64_t batch = r->desc->key_starts ? 0 : k->b;
        mhai_ring_rows(r->ring, k->parcel, batch, k->hk, k->first, k->rows, b->k, b->v);
        b->started = true;
        x->out++;
        MHA_TRY(pass_on(x, b, 0));
    }
    return MHA_OK;
}

/* Receive the next blocks of a visit, as far as they come from other ranks: a few at a time. */
static mha_status post(run *x, int64_t visit)
{
    enum { POSTED = 4 };
    mhai_relay *r = x->r;
    int64_t waiting = 0;
    for (const box *b = x->arriving[visit]; b; b = b->next) waiting += b->pending;
    for (; x->posted[visit] < r->block_count && waiting < POSTED * (1 + r->ahead / 32);
         x->posted[visit]++) {
        const int64_t n = x->posted[visit], rows = r->blocks[n].rows;
        box *b;
        if (!is_visited(r, n, visit)) continue;
        const int64_t before = visit_before(r, n, visit);
        const int32_t from = before >= 0 ? r->visits[before].rank : owner_of(r, n);
        if (from == x->t->rank) continue;
        MHA_TRY(make_box(x, n, visit, &b));
        b->started = before < 0;
        if (b->started) memset(b->dk, 0, sums_bytes(r, rows));
        insert(&x->arriving[visit], b);
        MHA_TRY(x->t->receive(x->t->user, from, tag_of(x, n, TO_VISIT + r->visits[visit].ordinal),
                              b->head, visit_bytes(r, rows, b->started), &b->transfer));
        b->pending = true;
        waiting++;
    }
    return MHA_OK;
}

/* ---- work ------------------------------------------------------------------------------------ */

/* A box that came by a message says what it is. */
static mha_status check_head(const box *b)
{
    if (b->head[0] == b->n && b->head[1] == b->visit) return MHA_OK;
    return mha_fail(MHA_ERR_RANK,
                    "a block arrived as %lld for visit %lld, expected %lld and %lld: "
                    "messages of one tag have changed places",
                    (long long)b->head[0], (long long)b->head[1], (long long)b->n,
                    (long long)b->visit);
}

/* Boxes that can be computed now, of different heads at each visit. */
static mha_status choose(run *x)
{
    mhai_relay *r = x->r;
    const int64_t most = mhai_min_i64(r->context->num_threads, MOST_TOGETHER);
    x->chosen_count = 0;
    for (int64_t visit = r->visit_count - 1; visit >= 0 && x->chosen_count < most; visit--) {
        if (r->visits[visit].rank != x->t->rank) continue;
        const int64_t before = x->chosen_count;
        for (box *b = x->arriving[visit]; b && x->chosen_count < most; b = b->next) {
            while (x->next[visit] < r->block_count && !is_visited(r, x->next[visit], visit))
                x->next[visit]++;
            if (b->n != x->next[visit]) break;
            MHA_TRY(mhai_ranks_settle(x->t, false, &b->transfer, &b->pending));
            if (b->pending) break;
            MHA_TRY(check_head(b));
            bool other = true;
            for (int64_t i = before; i < x->chosen_count; i++)
                other &= r->blocks[x->chosen[i]->n].b != r->blocks[b->n].b ||
                         r->blocks[x->chosen[i]->n].hk != r->blocks[b->n].hk;
            if (!other) break;
            x->chosen[x->chosen_count++] = b;
            x->next[visit]++;
        }
    }
    return MHA_OK;
}

/* All stages of a visit that see the block. */
static void compute(void *argument, int64_t i, int worker)
{
    const run *x = argument;
    const mhai_relay *r = x->r;
    const box *b = x->chosen[i];
    const mhai_relay_block *k = &r->blocks[b->n];
    const mhai_relay_visit *v = &r->visits[b->visit];
    const int64_t pieces = r->s->query_count;
    for (int64_t stage = v->begin; stage < v->end; stage++) {
        const mhai_owned *piece = &r->s->queries[stage % pieces];
        const int64_t head = k->hk * r->group + stage / pieces;
        if (!r->seen[b->n * pieces + stage % pieces]) continue;
        int64_t own = 0; /* which of this rank's pieces it is: by their order */
        for (int64_t j = 0; j < stage % pieces; j++) own += r->s->queries[j].rank == piece->rank;
        const mhai_backward_block block = {.b = k->b,
                                           .hk = k->hk,
                                           .key = k->key,
                                           .rows = k->rows,
                                           .first = k->first,
                                           .k = b->k,
                                           .v = b->v,
                                           .dk = b->dk,
                                           .dv = b->dv,
                                           .head_begin = head,
                                           .head_end = head + 1};
        mhai_backward_fold_block(&r->folds[own], &block, worker);
    }
}

static mha_status work(run *x)
{
    mha_parallel_for(x->r->context, x->chosen_count, compute, x);
    for (int64_t i = 0; i < x->chosen_count; i++) {
        box *b = x->chosen[i], **at = &x->arriving[b->visit];
        while (*at != b) at = &(*at)->next;
        *at = b->next;
        b->started = false;
        MHA_TRY(pass_on(x, b, b->visit + 1)); /* which puts it into another list, or frees it */
    }
    return MHA_OK;
}

/* Sends that are done are freed; blocks that came home are delivered. */
static mha_status tidy(run *x, bool wait)
{
    for (box **at = &x->sending; *at;) {
        box *b = *at;
        MHA_TRY(mhai_ranks_settle(x->t, wait, &b->transfer, &b->pending));
        if (b->pending) {
            at = &b->next;
            continue;
        }
        *at = b->next;
        free_box(x, b);
    }
    for (box **at = &x->home; *at;) {
        box *b = *at;
        MHA_TRY(mhai_ranks_settle(x->t, false, &b->transfer, &b->pending));
        if (b->pending) {
            at = &b->next;
            continue;
        }
        *at = b->next;
        MHA_TRY(deliver(x, b));
    }
    return MHA_OK;
}

/* Wait for what comes first: of the first block that is expected here its first visit, or else that it
 * comes home. That needs nothing more from this rank. */
static mha_status wait_for_one(run *x, bool *any)
{
    box *first = NULL;
    for (int64_t visit = 0; visit < x->r->visit_count; visit++)
        for (box *b = x->arriving[visit]; b; b = b->next)
            if (b->pending && (!first || b->n < first->n)) first = b;
    for (box *b = x->home; b; b = b->next)
        if (b->pending && (!first || b->n < first->n)) first = b;
    *any = first != NULL;
    return first ? mhai_ranks_settle(x->t, true, &first->transfer, &first->pending) : MHA_OK;
}

static mha_status go(run *x)
{
    for (bool any = true; any;) {
        MHA_TRY(launch(x));
        for (int64_t visit = 0; visit < x->r->visit_count; visit++)
            if (x->r->visits[visit].rank == x->t->rank) MHA_TRY(post(x, visit));
        MHA_TRY(tidy(x, false));
        MHA_TRY(choose(x));
        if (x->chosen_count > 0)
            MHA_TRY(work(x));
        else
            MHA_TRY(wait_for_one(x, &any));
        any |= x->launched < x->r->block_count;
    }
    MHA_TRY(receive_kept(x));
    return tidy(x, true);
}

/* What a failure leaves; sends that are not complete keep their memory. */
static void abandon(run *x, box *list, bool sent_list)
{
    while (list) {
        box *b = list;
        list = b->next;
        const bool sent = sent_list &&
                          mhai_ranks_settle(x->t, false, &b->transfer, &b->pending) == MHA_OK &&
                          b->pending;
        if (b->pending) x->t->cancel(x->t->user, &b->transfer);
        if (!sent) free_box(x, b);
    }
}

mha_status mhai_relay_run(mhai_relay *r)
{
    run x = {.r = r, .t = r->s->t, .allocator = mha_context_allocator(r->context)};
    void *memory;
    MHA_TRY(mha_scratch_alloc(r->context, r->visit_count,
                              sizeof *x.arriving + sizeof *x.next + sizeof *x.posted, &memory));
    memset(memory, 0, (size_t)r->visit_count * (sizeof *x.arriving + 2 * sizeof *x.next));
    x.next = memory;
    x.posted = x.next + r->visit_count;
    x.arriving = (box **)(void *)(x.posted + r->visit_count);
    const mha_status status = go(&x);
    abandon(&x, x.home, false);
    abandon(&x, x.sending, true);
    for (int64_t visit = 0; visit < r->visit_count; visit++) abandon(&x, x.arriving[visit], false);
    return status;
}
