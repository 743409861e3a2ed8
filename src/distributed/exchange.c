/* See exchange.h. */
#include "distributed/exchange.h"

#include "attention/attn_backward_cells.h"
#include "base/checked.h"
#include "ranks/rank_messages.h"

#include <multihead/component.h>

#include <string.h>

_Static_assert((int)MHA_SPLIT_ROWS == (int)MHAI_CELL_QUERIES, "sums of a chunk are one chain");

/* ---- roles ----------------------------------------------------------------------------------- */

static int64_t sequences_of(const mha_attention_desc *d)
{
    return d->query_starts ? d->sequences : 1;
}

static int64_t key_start(const mhai_split *s, const mha_attention_desc *d, int64_t b)
{
    return d->key_starts ? d->key_starts[b] : b * s->given.keys;
}

static int64_t count_blocks(const mhai_split *s, const mha_attention_desc *d)
{
    int64_t count = 0;
    for (int64_t b = 0; b < sequences_of(d); b++)
        count += mhai_ceil_div(key_start(s, d, b + 1) - key_start(s, d, b), MHAI_CELL_KEYS);
    return count;
}

mha_status mhai_roles_take(mha_context *context, const mhai_split *s, const mha_attention_desc *d,
                           int64_t heads, int64_t kv_heads, bool backward, mhai_roles *r)
{
    *r = (mhai_roles){.s = s, .heads = heads, .kv_heads = kv_heads};
    const int64_t room[MHAI_EXTENTS] = {s->query_count, 1, 1, backward ? count_blocks(s, d) : 0, 1};
    for (int i = 0; i < MHAI_EXTENTS; i++) {
        MHA_TRY(mha_scratch_alloc(context, room[i], sizeof **r->rows, &r->rows[i]));
    }
    return MHA_OK;
}

static bool divides(const mhai_roles *r, int32_t parts)
{
    return parts == 1 || (r->s->t->size % parts == 0 && r->heads % parts == 0 &&
                          (r->kv_heads % parts == 0 || parts % r->kv_heads == 0));
}

/* Round a row up to the beginning of a chunk. */
static int64_t next_chunk(const mhai_split *s, const mha_attention_desc *d, int64_t row)
{
    for (int64_t b = 0; b < sequences_of(d); b++) {
        const int64_t start = d->query_starts ? d->query_starts[b] : 0;
        const int64_t end = d->query_starts ? d->query_starts[b + 1] : s->given.queries;
        if (row < end)
            return mhai_min_i64(end, start + mhai_ceil_div(row - start, MHA_SPLIT_ROWS) *
                                                 MHA_SPLIT_ROWS);
    }
    return row;
}

static int64_t rows_before(const mhai_owned *all, int64_t count, int32_t rank)
{
    for (int64_t i = count - 1; i >= 0; i--)
        if (all[i].rank == rank) return all[i].local + all[i].end - all[i].begin;
    return 0;
}

/* Append rows. Adjacent rows of the same rank extend the last piece. */
static void append(mhai_roles *r, mhai_extent extent, int64_t begin, int64_t end, int32_t rank)
{
    mhai_owned *all = r->rows[extent];
    const int64_t n = r->count[extent];
    if (begin >= end) return;
    if (n > 0 && all[n - 1].rank == rank && all[n - 1].end == begin) {
        all[n - 1].end = end;
        return;
    }
    all[n] = (mhai_owned){begin, end, rows_before(all, n, rank), rank};
    r->count[extent]++;
}

static void deal_keys(mhai_roles *r, const mha_attention_desc *d)
{
    int64_t n = 0;
    for (int64_t b = 0; b < sequences_of(d); b++) {
        const int64_t end = key_start(r->s, d, b + 1);
        for (int64_t key = key_start(r->s, d, b); key < end; key += MHAI_CELL_KEYS)
            append(r, MHAI_SHARED_KEYS, key, mhai_min_i64(end, key + MHAI_CELL_KEYS),
                   (int32_t)(n++ % r->sharers));
    }
}

static void set_parts(mhai_roles *r, const mha_attention_desc *d, bool backward, int32_t parts)
{
    const mhai_split *s = r->s;
    r->parts = parts;
    r->sharers = s->t->size / parts;
    if (r->kv_heads > 0 && parts > r->kv_heads) r->sharers *= (int32_t)(parts / r->kv_heads);
    memset(r->count, 0, sizeof r->count);
    for (int64_t i = 0; i < s->query_count; i++) {
        const mhai_owned *p = &s->queries[i];
        append(r, MHAI_GROUP_QUERIES, backward ? next_chunk(s, d, p->begin) : p->begin,
               backward ? next_chunk(s, d, p->end) : p->end, p->rank / parts);
    }
    const int64_t n = r->count[MHAI_GROUP_QUERIES];
    append(r, MHAI_EVERY_QUERY, 0, s->given.queries, -1);
    append(r, MHAI_EVERY_KEY, 0, s->given.keys, -1);
    append(r, MHAI_COLUMN_KEYS, 0, s->given.keys,
           n > 0 ? r->rows[MHAI_GROUP_QUERIES][n - 1].rank : 0);
    if (backward) deal_keys(r, d);
}

mha_status mhai_roles_choose(mhai_roles *r, const mha_attention_desc *d, bool backward,
                             bool keeps_heads, mhai_cost_fn *cost, void *user)
{
    const int64_t most = keeps_heads ? 1 : mhai_min_i64(r->s->t->size, r->heads);
    int64_t least = INT64_MAX;
    int32_t best = 1;
    size_t bytes = 0;
    for (int32_t parts = 1; parts <= most; parts++) {
        if (!divides(r, parts)) continue;
        bytes = 0;
        set_parts(r, d, backward, parts);
        int64_t most_bytes = cost(user, &bytes) == MHA_OK ? (int64_t)bytes : INT64_MAX;
        MHA_TRY(mhai_ranks_most(r->s->t, &most_bytes, 1));
        if (most_bytes <= least) least = most_bytes, best = parts;
    }
    set_parts(r, d, backward, best);
    return cost(user, &bytes);
}

mha_head_piece mhai_roles_heads(const mhai_roles *r, int32_t rank)
{
    mha_head_piece piece = {0, r->heads, 0, r->kv_heads};
    if (r->parts > 1 && mha_split_heads(r->heads, r->kv_heads, rank % r->parts, r->parts, &piece))
        piece = (mha_head_piece){0}; /* the caller has checked the divisibility */
    return piece;
}

int32_t mhai_roles_sharer(const mhai_roles *r, int32_t rank)
{
    const int32_t of_head = r->sharers / (r->s->t->size / r->parts);
    return rank / r->parts * of_head + rank % r->parts % of_head;
}

/* The index of the group, or of the sharer, from which a rank needs the rows of an extent. */
static int32_t share_of(const mhai_roles *r, mhai_extent extent, int32_t rank)
{
    return extent == MHAI_SHARED_KEYS ? mhai_roles_sharer(r, rank) : rank / r->parts;
}

int64_t mhai_roles_rows(const mhai_roles *r, mhai_extent extent)
{
    const int32_t share = share_of(r, extent, r->s->t->rank);
    int64_t rows = 0;
    for (int64_t i = 0; i < r->count[extent]; i++) {
        const mhai_owned *p = &r->rows[extent][i];
        if (p->rank < 0 || p->rank == share) rows += p->end - p->begin;
    }
    return rows;
}

/* ---- tensors --------------------------------------------------------------------------------- */

int mhai_exchange_add(mhai_exchange *e, const mha_tensor *x, int ndim, bool columns,
                      mhai_extent extent, mhai_heads heads)
{
    if (!x) return -1;
    mhai_moved *m = &e->moved[e->count];
    *m = (mhai_moved){.ndim = ndim, .columns = columns, .extent = extent, .heads = heads};
    m->owned = mhai_slice_view(x, columns);
    m->brings = true;
    memcpy(m->shape, m->owned.shape, sizeof m->shape);
    return e->count++;
}

int mhai_exchange_add_mask(mhai_exchange *e, mha_attention_desc *d, const mhai_masks *masks, int i,
                           mhai_extent extent)
{
    static const mha_tensor nothing = {.ndim = 0};
    const bool columns = mhai_mask_has_columns(i);
    const mha_tensor *x = *mhai_slice_mask(d, i);
    if (!x || !masks->by_row[i]) return -1;
    const int at = mhai_exchange_add(e, e->roles->s->rows > 0 ? x : &nothing, columns ? 4 : 2,
                                     columns, extent, columns ? MHAI_QUERY_HEADS : MHAI_NO_HEADS);
    e->moved[at].owned.dtype = x->dtype;
    memcpy(e->moved[at].shape, masks->shape[i], sizeof e->moved[at].shape);
    return at;
}

const mha_tensor *mhai_exchange_at(const mhai_exchange *e, int index)
{
    return index < 0 ? NULL : &e->moved[index].local;
}

static bool over_keys(const mhai_moved *m)
{
    return m->extent > MHAI_EVERY_QUERY;
}

/* Number of heads of a tensor that a rank computes. *first: index of the first of them at the
 * owner. */
static int64_t heads_of(const mhai_exchange *e, const mhai_moved *m, int32_t rank, int64_t *first)
{
    const mha_head_piece p = mhai_roles_heads(e->roles, rank);
    *first = 0;
    if (m->heads == MHAI_NO_HEADS || (m->heads == MHAI_QUERY_HEADS && m->shape[1] == 1))
        return m->shape[1];
    *first = m->heads == MHAI_KEY_HEADS ? p.kv_begin : p.begin;
    if (m->heads == MHAI_KEY_HEADS) return p.kv_end - p.kv_begin;
    if (e->step < 0) return p.end - p.begin;
    const int64_t group = e->roles->heads / e->roles->kv_heads;
    *first = p.kv_begin * group + e->step;
    return 1;
}

void mhai_exchange_shape(mhai_exchange *e)
{
    for (int i = 0; i < e->count; i++) {
        mhai_moved *m = &e->moved[i];
        int64_t first;
        const int64_t shape[] = {m->shape[0], heads_of(e, m, e->roles->s->t->rank, &first),
                                 mhai_roles_rows(e->roles, m->extent), m->shape[3]};
        m->local =
            mha_tensor_contiguous(NULL, m->owned.dtype, m->ndim, shape + 4 - !m->columns - m->ndim);
    }
}

/* ---- messages -------------------------------------------------------------------------------- */

/* A run of an owner's rows that a rank computes. */
typedef struct run {
    int64_t owned, local, rows; /* first row at the owner and at the rank; number of rows */
    int64_t i, j;               /* where to continue the search */
} run;

static bool next_run(const mhai_exchange *e, const mhai_moved *m, int32_t owner, int32_t rank,
                     run *r)
{
    const mhai_split *s = e->roles->s;
    const mhai_owned *all = over_keys(m) ? s->keys : s->queries;
    const int64_t count = over_keys(m) ? s->key_count : s->query_count;
    const int32_t share = share_of(e->roles, m->extent, rank);
    while (r->i < count && r->j < e->roles->count[m->extent]) {
        const mhai_owned *o = &all[r->i], *c = &e->roles->rows[m->extent][r->j];
        const int64_t begin = mhai_max_i64(o->begin, c->begin);
        r->rows = mhai_min_i64(o->end, c->end) - begin;
        r->owned = o->local + begin - o->begin;
        r->local = c->local + begin - c->begin;
        *(o->end <= c->end ? &r->i : &r->j) += 1;
        if (r->rows > 0 && o->rank == owner && (c->rank < 0 || c->rank == share)) return true;
    }
    return false;
}

static bool travels(const mhai_moved *m, bool back)
{
    return back ? m->returns : m->brings;
}

/* Bytes of the message between an owner and a rank. */
static size_t message_bytes(const mhai_exchange *e, int32_t owner, int32_t rank, bool back)
{
    size_t bytes = 0;
    for (int i = 0; i < e->count; i++) {
        const mhai_moved *m = &e->moved[i];
        int64_t first, rows = 0;
        if (!travels(m, back)) continue;
        for (run r = {0}; next_run(e, m, owner, rank, &r);) rows += r.rows;
        bytes += (size_t)(m->shape[0] * heads_of(e, m, rank, &first) * rows * m->shape[3]) *
                 mha_dtype_size(m->owned.dtype);
    }
    return bytes;
}

/* Layouts of rows: at their owner, at the rank that computes them, and in a message. */
typedef enum place { OWNED, LOCAL, MESSAGE } place;

static mha_tensor tensor_at(const mhai_exchange *e, const mhai_moved *m, int32_t rank, place at)
{
    mha_tensor x = at == OWNED ? m->owned : mhai_slice_view(&m->local, m->columns);
    int64_t first;
    heads_of(e, m, rank, &first);
    if (at == OWNED && x.data)
        x.data = (char *)x.data + first * x.stride[1] * (int64_t)mha_dtype_size(x.dtype);
    return x;
}

/* Copy the rows of all tensors that a rank computes for an owner between two layouts. */
static void copy(const mhai_exchange *e, int32_t owner, int32_t rank, bool back, place from,
                 place to, unsigned char *message)
{
    for (int i = 0; i < e->count; i++) {
        const mhai_moved *m = &e->moved[i];
        int64_t first;
        const int64_t heads = heads_of(e, m, rank, &first);
        mha_tensor in = tensor_at(e, m, rank, from), out = tensor_at(e, m, rank, to);
        if (!travels(m, back)) continue;
        for (run r = {0}; next_run(e, m, owner, rank, &r);) {
            const int64_t shape[] = {m->shape[0], heads, r.rows, m->shape[3]};
            const int64_t rows[] = {[OWNED] = r.owned, [LOCAL] = r.local, [MESSAGE] = 0};
            const mha_tensor packed = mha_tensor_contiguous(message, m->owned.dtype, 4, shape);
            if (from == MESSAGE) in = packed;
            if (to == MESSAGE) out = packed;
            mhai_copy_rows(&out, rows[to], &in, rows[from], shape, r.rows);
            if (message)
                message += shape[0] * heads * r.rows * shape[3] * (int64_t)mha_dtype_size(in.dtype);
        }
    }
}

/* The partners in round n: rank + n to send to, rank - n to receive from. */
typedef struct exchange_round {
    int32_t to, from;
    size_t sent, received;
} exchange_round;

static exchange_round round_of(const mhai_exchange *e, int32_t n, bool back)
{
    const int32_t size = e->roles->s->t->size, own = e->roles->s->t->rank;
    exchange_round t = {.to = (own + n) % size, .from = (own + size - n) % size};
    t.sent = message_bytes(e, back ? t.to : own, back ? own : t.to, back);
    t.received = message_bytes(e, back ? own : t.from, back ? t.from : own, back);
    return t;
}

void mhai_exchange_count(mhai_exchange *e, bool back)
{
    for (int32_t n = 1; n < e->roles->s->t->size; n++) {
        const exchange_round t = round_of(e, n, back);
        e->messages[0] += t.sent > 0, e->messages[1] += t.received > 0;
        e->bytes[0] += (double)t.sent, e->bytes[1] += (double)t.received;
    }
}

static mha_status move_round(mhai_exchange *e, int32_t n, bool back)
{
    const mha_transport *t = e->roles->s->t;
    const exchange_round at = round_of(e, n, back);
    mha_transfer in, out;
    mha_status status = MHA_OK;
    if (at.received > 0) MHA_TRY(t->receive(t->user, at.from, 0, e->room[1], at.received, &in));
    if (at.sent > 0) {
        copy(e, back ? at.to : t->rank, back ? t->rank : at.to, back, back ? LOCAL : OWNED, MESSAGE,
             e->room[0]);
        status = t->send(t->user, at.to, 0, e->room[0], at.sent, &out);
        if (status == MHA_OK) status = t->wait(t->user, &out);
    }
    if (at.received == 0) return status;
    if (status != MHA_OK) {
        t->cancel(t->user, &in);
        return status;
    }
    MHA_TRY(t->wait(t->user, &in));
    copy(e, back ? t->rank : at.from, back ? at.from : t->rank, back, MESSAGE, back ? OWNED : LOCAL,
         e->room[1]);
    return MHA_OK;
}

/* A rank sends to one rank at a time, so that each message gets the full bandwidth. */
mha_status mhai_exchange_move(mhai_exchange *e, bool back)
{
    const int32_t own = e->roles->s->t->rank;
    copy(e, own, own, back, back ? LOCAL : OWNED, back ? OWNED : LOCAL, NULL);
    for (int32_t n = 1; n < e->roles->s->t->size; n++) MHA_TRY(move_round(e, n, back));
    return MHA_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static mha_status local_bytes(const mhai_moved *m, size_t *bytes)
{
    int64_t count = 1;
    for (int i = 0; i < m->ndim; i++)
        if (!mhai_mul_i64(count, m->local.shape[i], &count)) count = -1;
    if (count >= 0 && mhai_mul_size((size_t)count, mha_dtype_size(m->local.dtype), bytes) &&
        *bytes < SIZE_MAX / 64)
        return MHA_OK;
    return mha_fail(MHA_ERR_SIZE,
                    "q, k, v: the rows of a rank's heads are beyond the address space");
}

/* Bytes of the longest messages. */
static void room_bytes(const mhai_exchange *e, size_t room[2])
{
    room[0] = room[1] = 0;
    for (int32_t n = 1; n < e->roles->s->t->size; n++)
        for (int back = 0; back < 2; back++) {
            const exchange_round t = round_of(e, n, back);
            if (t.sent > room[0]) room[0] = t.sent;
            if (t.received > room[1]) room[1] = t.received;
        }
}

mha_status mhai_exchange_bytes(const mhai_exchange *e, size_t *bytes)
{
    size_t room[2], each = 0;
    for (int i = 0; i < e->count; i++) { /* this loop is first, because messages consist of parts of
                                          * these tensors */
        MHA_TRY(local_bytes(&e->moved[i], &each));
        MHA_TRY(mhai_attn_add_scratch(bytes, each, 1));
    }
    room_bytes(e, room);
    for (int i = 0; i < 2; i++) MHA_TRY(mhai_attn_add_scratch(bytes, room[i], 1));
    return MHA_OK;
}

mha_status mhai_exchange_take(mha_context *context, mhai_exchange *e)
{
    size_t room[2], each = 0;
    room_bytes(e, room);
    for (int i = 0; i < 2; i++) {
        MHA_TRY(mha_scratch_alloc(context, 1, room[i], &e->room[i]));
    }
    for (int i = 0; i < e->count; i++) {
        MHA_TRY(local_bytes(&e->moved[i], &each));
        MHA_TRY(mha_scratch_alloc(context, 1, each, &e->moved[i].local.data));
    }
    return MHA_OK;
}
