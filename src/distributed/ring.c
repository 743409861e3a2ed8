/* See ring.h. A parcel goes from its owner on to the next rank that needs it, until all have it. Each rank
 * takes parcels in the order of keys, so that of a pair of ranks both know what comes next, and
 * whoever waits for a parcel waits for ranks that are not further on: there is no circle of waiting.
 *
 * A parcel is one message: the rows of keys of all heads, then those of values, contiguous. */
#include "distributed/ring.h"

#include "base/checked.h"
#include "ranks/rank_messages.h"

#include <multihead/component.h>

#include <string.h>

/* ---- messages -------------------------------------------------------------------------------- */

static size_t row_bytes(const mha_tensor *x)
{
    return (size_t)x->shape[3] * mha_dtype_size(x->dtype);
}

static size_t part_bytes(const mha_tensor *x, int64_t rows)
{
    return (size_t)(x->shape[0] * x->shape[1] * rows) * row_bytes(x);
}

static size_t values_at(const mha_tensor *k, int64_t rows)
{
    return (part_bytes(k, rows) + 63) / 64 * 64;
}

static size_t message_bytes(const mha_tensor *k, const mha_tensor *v, int64_t rows)
{
    return values_at(k, rows) + part_bytes(v, rows);
}

static bool checked_bytes(const mha_tensor *x, int64_t rows, size_t *bytes)
{
    int64_t count = x->shape[0];
    for (int i = 1; i < 4; i++)
        if (!mhai_mul_i64(count, i == 2 ? rows : x->shape[i], &count)) return false;
    return mhai_mul_size((size_t)count, mha_dtype_size(x->dtype), bytes) && *bytes < SIZE_MAX / 64;
}

/* The largest message; every other size is below it. */
static mha_status most_bytes(const mha_tensor *k, const mha_tensor *v, size_t *bytes)
{
    size_t keys, values;
    if (!checked_bytes(k, MHAI_KEY_BLOCK, &keys) || !checked_bytes(v, MHAI_KEY_BLOCK, &values))
        return mha_fail(MHA_ERR_SIZE, "k, v: a block of all heads is beyond the address space");
    *bytes = values_at(k, MHAI_KEY_BLOCK) + values + 64;
    return MHA_OK;
}

/* As many as there are ranks, from the fewest to the most, and those handed out but one. */
static int32_t slots_of(const mhai_split *s)
{
    const int64_t under_way =
        mhai_min_i64(mhai_max_i64(s->t->size, MHAI_RING_FEWEST), MHAI_RING_MOST);
    return (int32_t)under_way + MHAI_RING_HELD - 1;
}

static mhai_ring_slot *slot_of(mhai_ring *ring, int64_t parcel)
{
    return &ring->slots[parcel % ring->slot_count];
}

/* A message of so many rows as tensors. */
typedef struct message {
    mha_tensor k, v;
} message;

static message message_of(const mhai_ring *ring, unsigned char *bytes, int64_t rows)
{
    const mha_tensor *k = &ring->k, *v = &ring->v;
    const int64_t keys[] = {k->shape[0], k->shape[1], rows, k->shape[3]};
    const int64_t values[] = {v->shape[0], v->shape[1], rows, v->shape[3]};
    return (message){mha_tensor_contiguous(bytes, k->dtype, 4, keys),
                     mha_tensor_contiguous(bytes + values_at(k, rows), v->dtype, 4, values)};
}

/* Bytes before a head. */
static int64_t head_at(const mha_tensor *x, int64_t batch, int64_t head)
{
    return (batch * x->stride[0] + head * x->stride[1]) * (int64_t)mha_dtype_size(x->dtype);
}

static void copy_rows(const message *to, int64_t to_row, const message *from, int64_t from_row,
                      int64_t rows)
{
    mhai_copy_rows(&to->k, to_row, &from->k, from_row, to->k.shape, rows);
    mhai_copy_rows(&to->v, to_row, &from->v, from_row, to->v.shape, rows);
}

/* ---- fragments ------------------------------------------------------------------------------- */

/* Call it for each run of rows of a parcel that one rank has. */
static int64_t next_run(const mhai_split *s, const mhai_parcel *parcel, int64_t *piece,
                        int64_t first, int64_t *rows)
{
    while (s->keys[*piece].end <= first) (*piece)++;
    *rows = mhai_min_i64(s->keys[*piece].end, parcel->first + parcel->rows) - first;
    return s->keys[*piece].local + first - s->keys[*piece].begin;
}

/* Those that this rank sends or is sent; into room, if given. */
static int64_t list_fragments(const mhai_split *s, mhai_ring_fragment *room)
{
    int64_t count = 0, piece = 0, rows;
    for (int64_t n = 0; n < s->parcel_count; n++) {
        const mhai_parcel *p = &s->parcels[n];
        for (int64_t first = p->first; first < p->first + p->rows; first += rows) {
            (void)next_run(s, p, &piece, first, &rows);
            const int32_t rank = s->keys[piece].rank;
            if (rank == p->owner || (rank != s->t->rank && p->owner != s->t->rank)) continue;
            if (room)
                room[count] =
                    (mhai_ring_fragment){.parcel = n, .first = first, .rows = rows, .rank = rank};
            count++;
        }
    }
    return count;
}

static size_t fragment_bytes(const mhai_ring *ring, const mhai_ring_fragment *f)
{
    return (message_bytes(&ring->k, &ring->v, f->rows) + 63) / 64 * 64;
}

/* ---- what a ring takes ----------------------------------------------------------------------- */

void mhai_ring_count(const mhai_split *s, const mha_tensor *k, const mha_tensor *v,
                     int64_t messages[2], double bytes[2])
{
    const int32_t rank = s->t->rank;
    int64_t piece = 0, rows;
    memset(messages, 0, 2 * sizeof *messages);
    memset(bytes, 0, 2 * sizeof *bytes);
    for (int64_t n = 0; n < s->parcel_count; n++) {
        const mhai_parcel *p = &s->parcels[n];
        const double size = (double)message_bytes(k, v, p->rows);
        const bool takes = p->owner != rank && mhai_split_needs(s, n, rank);
        const bool gives = (takes || p->owner == rank) && s->ways[n].after >= 0;
        messages[0] += gives, bytes[0] += gives ? size : 0;
        messages[1] += takes, bytes[1] += takes ? size : 0;
        for (int64_t first = p->first; first < p->first + p->rows; first += rows) {
            (void)next_run(s, p, &piece, first, &rows);
            const int32_t from = s->keys[piece].rank;
            if (from == p->owner || (from != rank && p->owner != rank)) continue;
            messages[from != rank]++;
            bytes[from != rank] += (double)message_bytes(k, v, rows);
        }
    }
}

mha_status mhai_ring_bytes(const mhai_split *s, const mha_tensor *k, const mha_tensor *v,
                           size_t *bytes)
{
    size_t slot, all;
    MHA_TRY(most_bytes(k, v, &slot));
    /* Fragments: whole messages at most. */
    if (!mhai_mul_size(slot + sizeof(mhai_ring_fragment),
                       (size_t)(slots_of(s) + list_fragments(s, NULL)), &all))
        return mha_fail(MHA_ERR_SIZE, "k, v: the blocks on their way are beyond the address space");
    *bytes = all;
    return MHA_OK;
}

mha_status mhai_ring_take(mha_context *context, const mhai_split *s, const mha_tensor *k,
                          const mha_tensor *v, mhai_ring *ring)
{
    void *memory;
    *ring = (mhai_ring){.s = s, .k = *k, .v = *v};
    ring->fragment_count = list_fragments(s, NULL);
    MHA_TRY(mha_scratch_alloc(context, ring->fragment_count, sizeof *ring->fragments, &memory));
    ring->fragments = memory;
    list_fragments(s, ring->fragments);
    for (int64_t i = 0; i < ring->fragment_count; i++) {
        mhai_ring_fragment *f = &ring->fragments[i];
        MHA_TRY(mha_scratch_alloc(context, 1, fragment_bytes(ring, f), &memory));
        f->bytes = memory;
    }
    return MHA_OK;
}

mha_status mhai_ring_take_slots(mha_context *context, mhai_ring *ring)
{
    size_t bytes;
    MHA_TRY(most_bytes(&ring->k, &ring->v, &bytes));
    const int32_t count = slots_of(ring->s);
    for (int32_t i = 0; i < count; i++) {
        void *memory;
        MHA_TRY(mha_scratch_alloc(context, 1, bytes, &memory));
        ring->slots[i] = (mhai_ring_slot){.parcel = -1, .bytes = memory};
    }
    ring->slot_count = count;
    return MHA_OK;
}

/* The row of this rank that is row `first` of the whole. */
static int64_t local_row(const mhai_split *s, int64_t first)
{
    int64_t i = 0;
    while (s->keys[i].end <= first) i++;
    return s->keys[i].local + first - s->keys[i].begin;
}

static mha_status start_fragment(mhai_ring *ring, mhai_ring_fragment *f)
{
    const mha_transport *t = ring->s->t;
    const size_t bytes = message_bytes(&ring->k, &ring->v, f->rows);
    if (f->rank != t->rank) return t->receive(t->user, f->rank, 0, f->bytes, bytes, &f->transfer);
    const message to = message_of(ring, f->bytes, f->rows), own = {ring->k, ring->v};
    copy_rows(&to, 0, &own, local_row(ring->s, f->first), f->rows);
    return t->send(t->user, ring->s->parcels[f->parcel].owner, 0, f->bytes, bytes, &f->transfer);
}

mha_status mhai_ring_begin(mhai_ring *ring)
{
    const mha_transport *t = ring->s->t;
    for (int64_t i = 0; i < ring->fragment_count; i++) {
        MHA_TRY(start_fragment(ring, &ring->fragments[i]));
        ring->fragments[i].pending = true;
    }
    for (int64_t i = 0; i < ring->fragment_count; i++) {
        ring->fragments[i].pending = false;
        MHA_TRY(t->wait(t->user, &ring->fragments[i].transfer));
    }
    return MHA_OK;
}

/* ---- parcels --------------------------------------------------------------------------------- */

/* Rows first .. end - 1 of a parcel of this rank's, from its own rows and the fragments that others sent. */
static void copy_parcel(const mhai_ring *ring, int64_t n, int64_t first, int64_t end,
                        const message *to, int64_t batch, int64_t head)
{
    const mhai_split *s = ring->s;
    const mhai_parcel *p = &s->parcels[n];
    int64_t piece = 0, run, f = 0;
    for (int64_t at = p->first; at < end; at += run) {
        const int64_t local = next_run(s, p, &piece, at, &run), skip = mhai_max_i64(0, first - at);
        const int64_t count = mhai_min_i64(at + run, end) - at - skip;
        const bool own = s->keys[piece].rank == p->owner;
        while (!own && ring->fragments[f].first != at) f++;
        if (count <= 0) continue;
        message from =
            own ? (message){ring->k, ring->v} : message_of(ring, ring->fragments[f].bytes, run);
        from.k.data = (char *)from.k.data + head_at(&from.k, batch, head);
        from.v.data = (char *)from.v.data + head_at(&from.v, batch, head);
        copy_rows(to, at + skip - first, &from, own ? local + skip : skip, count);
    }
}

void mhai_ring_rows(const mhai_ring *ring, int64_t parcel, int64_t batch, int64_t head,
                    int64_t first, int64_t rows, void *k, void *v)
{
    const int64_t keys[] = {1, 1, rows, ring->k.shape[3]},
                  values[] = {1, 1, rows, ring->v.shape[3]};
    const message to = {mha_tensor_contiguous(k, ring->k.dtype, 4, keys),
                        mha_tensor_contiguous(v, ring->v.dtype, 4, values)};
    copy_parcel(ring, parcel, first, first + rows, &to, batch, head);
}

/* What is in a slot is complete: send it on. */
static mha_status send_on(mhai_ring *ring, mhai_ring_slot *slot)
{
    const mha_transport *t = ring->s->t;
    const int32_t to = ring->s->ways[slot->parcel].after;
    if (to < 0) return MHA_OK;
    const size_t bytes = message_bytes(&ring->k, &ring->v, ring->s->parcels[slot->parcel].rows);
    MHA_TRY(t->send(t->user, to, 0, slot->bytes, bytes, &slot->out));
    slot->sending = true;
    return MHA_OK;
}

/* Begin with parcel n, whose slot is free: pack it, or receive it. */
static mha_status start_parcel(mhai_ring *ring, int64_t n)
{
    const mha_transport *t = ring->s->t;
    mhai_ring_slot *slot = slot_of(ring, n);
    *slot = (mhai_ring_slot){.parcel = n, .bytes = slot->bytes};
    if (ring->s->parcels[n].owner == t->rank) {
        const mhai_parcel *p = &ring->s->parcels[n];
        const message all = message_of(ring, slot->bytes, p->rows);
        copy_parcel(ring, n, p->first, p->first + p->rows, &all, 0, 0);
        return MHA_OK;
    }
    const size_t bytes = message_bytes(&ring->k, &ring->v, ring->s->parcels[n].rows);
    MHA_TRY(t->receive(t->user, ring->s->ways[n].before, 0, slot->bytes, bytes, &slot->in));
    slot->receiving = true;
    return MHA_OK;
}

static bool concerns(const mhai_ring *ring, int64_t n)
{
    return ring->s->parcels[n].owner == ring->s->t->rank ||
           mhai_split_needs(ring->s, n, ring->s->t->rank);
}

/* Start parcels up to n, and as many more as there are slots for; those whose slots are still being
 * sent are waited for up to n only. Parcels at hand keep theirs. */
static mha_status start_ahead(mhai_ring *ring, int64_t n)
{
    for (; ring->ahead < ring->s->parcel_count && ring->ahead < ring->done + ring->slot_count;
         ring->ahead++) {
        mhai_ring_slot *slot = slot_of(ring, ring->ahead);
        if (!concerns(ring, ring->ahead)) continue;
        MHA_TRY(mhai_ranks_settle(ring->s->t, ring->ahead <= n, &slot->out, &slot->sending));
        if (slot->sending) return MHA_OK;
        MHA_TRY(start_parcel(ring, ring->ahead));
    }
    return MHA_OK;
}

/* Whether a parcel is leaving. */
static mha_status is_sending(mhai_ring *ring, bool *sending)
{
    *sending = false;
    for (int32_t i = 0; i < ring->slot_count; i++) {
        mhai_ring_slot *slot = &ring->slots[i];
        MHA_TRY(mhai_ranks_settle(ring->s->t, false, &slot->out, &slot->sending));
        *sending |= slot->sending;
    }
    return MHA_OK;
}

/* Send on what is here, in the order of parcels: those up to n are waited for. Others leave one after the
 * other: together they would share the link, and the first arrive as late as the last. */
static mha_status pass_on(mhai_ring *ring, int64_t n)
{
    bool sending = false;
    for (; ring->passed < ring->ahead; ring->passed++) {
        mhai_ring_slot *slot = slot_of(ring, ring->passed);
        if (!concerns(ring, ring->passed)) continue;
        MHA_TRY(mhai_ranks_settle(ring->s->t, ring->passed <= n, &slot->in, &slot->receiving));
        if (ring->passed > n) MHA_TRY(is_sending(ring, &sending));
        if (slot->receiving || sending) return MHA_OK;
        MHA_TRY(send_on(ring, slot));
    }
    return MHA_OK;
}

/* Have parcel n, and let others proceed; n -1: only these. */
static mha_status bring(mhai_ring *ring, int64_t n)
{
    MHA_TRY(start_ahead(ring, n));
    return pass_on(ring, n);
}

mha_status mhai_ring_poll(mhai_ring *ring)
{
    return bring(ring, -1);
}

/* Wait for the sends of all slots. */
static mha_status finish(mhai_ring *ring)
{
    for (int32_t i = 0; i < ring->slot_count; i++)
        MHA_TRY(mhai_ranks_settle(ring->s->t, true, &ring->slots[i].out, &ring->slots[i].sending));
    return MHA_OK;
}

void mhai_ring_abandon(mhai_ring *ring)
{
    const mha_transport *t = ring->s->t;
    for (int64_t i = 0; i < ring->fragment_count; i++)
        if (ring->fragments[i].pending) t->cancel(t->user, &ring->fragments[i].transfer);
    for (int32_t i = 0; i < ring->slot_count; i++) {
        if (ring->slots[i].receiving) t->cancel(t->user, &ring->slots[i].in);
        if (ring->slots[i].sending) t->cancel(t->user, &ring->slots[i].out);
    }
}

static mhai_attn_keys keys_of(const mhai_ring *ring, int64_t n)
{
    const mhai_parcel *p = &ring->s->parcels[n];
    const message here = message_of(ring, ring->slots[n % ring->slot_count].bytes, p->rows);
    return (mhai_attn_keys){.first = p->first, .end = p->rows, .k = here.k, .v = here.v};
}

mha_status mhai_ring_next(mhai_ring *ring, int64_t most, mhai_attn_keys *keys, int64_t *count)
{
    const mhai_split *s = ring->s;
    ring->done = ring->next;
    for (*count = 0; ring->next < s->parcel_count && *count < most; ring->next++) {
        const int64_t n = ring->next;
        if (!concerns(ring, n)) continue;
        if (*count == 0) {
            ring->done = n;
            MHA_TRY(bring(ring, n));
        }
        if (n >= ring->passed) break;
        if (mhai_split_needs(s, n, s->t->rank)) keys[(*count)++] = keys_of(ring, n);
    }
    return *count == 0 ? finish(ring) : mhai_ring_poll(ring);
}
