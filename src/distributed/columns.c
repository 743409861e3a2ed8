/* See columns.h. A turn of a piece waits for the same turn of the piece before it alone: the ranks of pieces
 * that follow each other work at once, each a turn behind the one before. */
#include "distributed/columns.h"

#include "base/checked.h"
#include "base/tensor.h"
#include "ranks/rank_messages.h"

#include <multihead/component.h>

#include <string.h>

/* Turns for each rank, if there are as many heads: with four, the last of N ranks waits for N - 1 turns of
 * 5 N - 1. */
enum { TURNS_A_RANK = 4 };

/* ---- where sums lie -------------------------------------------------------------------------- */

/* Keys of the sequences before sequence b, and its own. */
static int64_t keys_before(const mhai_columns *c, int64_t b)
{
    return c->key_starts ? c->key_starts[b] : b * c->s->given.keys;
}

static int64_t keys_of(const mhai_columns *c, int64_t b)
{
    return c->key_starts ? c->key_starts[b + 1] - c->key_starts[b] : c->s->given.keys;
}

static int64_t sums_at(const mhai_columns *c, int64_t b, int64_t h)
{
    return mhai_attn_columns_at(c->heads, keys_before(c, b), keys_of(c, b), h);
}

/* The first sum of a turn; of the one after the last: their number. */
static int64_t turn_at(const mhai_columns *c, int64_t turn)
{
    const int64_t kv_heads = c->heads / c->group, head = turn * c->part.heads;
    if (head >= c->sequences * kv_heads) return c->total;
    return sums_at(c, head / kv_heads, head % kv_heads * c->group);
}

static int64_t rows_of(const mhai_columns *c, int32_t rank)
{
    int64_t rows = 0;
    for (int64_t i = 0; i < c->s->key_count; i++)
        if (c->s->keys[i].rank == rank) rows += c->s->keys[i].end - c->s->keys[i].begin;
    return rows;
}

/* ---- the message of a rank's keys ------------------------------------------------------------ */

static size_t message_bytes(const mhai_columns *c, int64_t rows)
{
    return (size_t)(c->batch * c->heads * rows) * sizeof(float);
}

/* Rounded sums of the keys of one piece, among `rows` of its rank. */
static void pack_piece(const mhai_columns *c, const mhai_owned *piece, int64_t rows)
{
    const bool ragged = c->key_starts;
    for (int64_t b = 0; b < c->sequences; b++) {
        const int64_t start = ragged ? keys_before(c, b) : 0, batch = ragged ? 0 : b;
        const int64_t begin = mhai_max_i64(piece->begin, start);
        const int64_t end = mhai_min_i64(piece->end, start + keys_of(c, b));
        for (int64_t h = 0; h < c->heads && begin < end; h++) {
            const double *from = c->part.sums + sums_at(c, b, h) + begin - start;
            float *to =
                c->message + (batch * c->heads + h) * rows + piece->local + begin - piece->begin;
            for (int64_t i = 0; i < end - begin; i++) to[i] = (float)from[i];
        }
    }
}

static void pack(const mhai_columns *c, int32_t rank, int64_t rows)
{
    for (int64_t i = 0; i < c->s->key_count; i++)
        if (c->s->keys[i].rank == rank) pack_piece(c, &c->s->keys[i], rows);
}

static void write_output(const mhai_columns *c)
{
    const int64_t rows = c->to.shape[2];
    for (int64_t b = 0; b < c->batch && rows > 0; b++)
        for (int64_t h = 0; h < c->heads; h++)
            memcpy((float *)c->to.data + b * c->to.stride[0] + h * c->to.stride[1],
                   c->message + (b * c->heads + h) * rows, (size_t)rows * sizeof(float));
}

/* ---- turns ----------------------------------------------------------------------------------- */

static mha_status settle(mhai_columns *c, int64_t turn, bool wait)
{
    return mhai_ranks_settle(c->s->t, wait, &c->sends[turn], &c->sending[turn]);
}

/* What is here of an earlier piece has been sent; then have what the piece before left. */
static mha_status take_turn(void *user, int64_t turn)
{
    mhai_columns *c = user;
    const mha_transport *t = c->s->t;
    const mhai_owned *piece = &c->s->queries[c->piece];
    double *sums = c->part.sums + turn_at(c, turn);
    const size_t bytes = (size_t)(turn_at(c, turn + 1) - turn_at(c, turn)) * sizeof *sums;
    MHA_TRY(settle(c, turn, true));
    if (turn > 0) MHA_TRY(settle(c, turn - 1, false)); /* let it proceed */
    if (c->piece == 0)
        memset(sums, 0, bytes);
    else if (piece[-1].rank != t->rank)
        return mha_transport_receive(t, piece[-1].rank, sums, bytes);
    return MHA_OK;
}

static mha_status pass_turn(void *user, int64_t turn)
{
    mhai_columns *c = user;
    const mha_transport *t = c->s->t;
    const mhai_owned *piece = &c->s->queries[c->piece];
    const double *sums = c->part.sums + turn_at(c, turn);
    const size_t bytes = (size_t)(turn_at(c, turn + 1) - turn_at(c, turn)) * sizeof *sums;
    if (c->piece + 1 == c->s->query_count || piece[1].rank == t->rank) return MHA_OK;
    MHA_TRY(t->send(t->user, piece[1].rank, 0, sums, bytes, &c->sends[turn]));
    c->sending[turn] = true;
    return MHA_OK;
}

/* Heads enough that every thread of a rank has a block of keys; the same at all ranks. */
static void divide(mhai_columns *c)
{
    const int64_t heads = c->sequences * (c->heads / c->group), size = c->s->t->size;
    int64_t longest = 0;
    for (int64_t b = 0; b < c->sequences; b++) longest = mhai_max_i64(longest, keys_of(c, b));
    c->part.heads =
        size > 1
            ? mhai_max_i64(mhai_ceil_div(heads, TURNS_A_RANK * size),
                           mhai_ceil_div(c->s->threads, mhai_ceil_div(longest, MHAI_KEY_BLOCK)))
            : heads;
    c->turns = mhai_ceil_div(heads, c->part.heads);
}

/* ---- making ---------------------------------------------------------------------------------- */

/* As mha_attention_forward() checks it. What is over queries is compared with it slice by slice. */
static mha_status check(const mhai_slice_call *call, bool need_data, mha_tensor *to)
{
    const mha_attention_outputs *o = &call->outputs;
    const int64_t shape[] = {call->q->shape[0], call->q->shape[1], call->k->shape[2]};
    MHA_TRY(
        mhai_attn_check_output("column_sums", o->column_sums, MHA_F32, 3, shape, need_data, to));
    if (!need_data) return MHA_OK;
    const mha_tensor heads = mhai_attn_list_view(o->heads, o->heads_count),
                     rows = mhai_attn_list_view(o->rows, o->rows_count),
                     offsets = mhai_attn_list_view(o->offsets, o->offsets_count);
    const mhai_attn_named inputs[] = {{"heads", &heads}, {"rows", &rows}, {"offsets", &offsets},
                                      {"q", call->q},    {"k", call->k},  {"v", call->v}};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        MHA_TRY(mhai_tensor_check_disjoint("column_sums", to, inputs[i].name, inputs[i].tensor));
    return mhai_attn_check_apart(&call->desc, "column_sums", to);
}

/* Rows of the longest message that this rank sends, receives, or writes. */
static int64_t most_rows(const mhai_columns *c)
{
    const mhai_split *s = c->s;
    const bool last = s->query_count > 0 && s->queries[s->query_count - 1].rank == s->t->rank;
    int64_t most = c->to.shape[2];
    for (int32_t r = 0; last && r < s->t->size; r++) most = mhai_max_i64(most, rows_of(c, r));
    return most;
}

/* Ranks without queries have no sums of others' keys. */
static int64_t own_sums(const mhai_columns *c)
{
    return c->s->rows > 0 ? c->total : 0;
}

static mha_status take_memory(mha_context *context, mhai_columns *c)
{
    void *memory;
    MHA_TRY(mha_scratch_alloc(context, own_sums(c), sizeof(double), &memory));
    c->part.sums = memory;
    MHA_TRY(mha_scratch_alloc(context, c->batch * c->heads * most_rows(c), sizeof(float), &memory));
    c->message = memory;
    MHA_TRY(mha_scratch_alloc(context, c->turns, sizeof *c->sends, &memory));
    c->sends = memory;
    MHA_TRY(mha_scratch_alloc(context, c->turns, sizeof *c->sending, &memory));
    c->sending = memory;
    memset(c->sending, 0, (size_t)c->turns * sizeof *c->sending);
    return MHA_OK;
}

mha_status mhai_columns_make(mha_context *context, const mhai_slice_call *call,
                             const mhai_split *split, mhai_slice *slices, int64_t slice_count,
                             bool need_data, mhai_columns *c)
{
    const mha_attention_desc *d = &call->desc;
    *c = (mhai_columns){.s = split, .piece = -1};
    if (!call->outputs.column_sums) return MHA_OK;
    MHA_TRY(check(call, need_data, &c->to));
    c->batch = call->q->shape[0], c->heads = call->q->shape[1];
    c->sequences = d->key_starts ? d->sequences : c->batch;
    c->key_starts = d->key_starts;
    int64_t total = 0;
    size_t bytes;
    if (!mhai_mul_i64(c->batch, c->heads, &total) ||
        !mhai_mul_i64(total, split->given.keys, &total) ||
        !mhai_mul_size((size_t)total, sizeof(double), &bytes))
        return mha_fail(MHA_ERR_SIZE,
                        "column_sums: those of all keys are beyond the address space");
    const int64_t kv_heads = call->k->shape[1];
    if (total == 0 || kv_heads == 0 || c->heads % kv_heads != 0) return MHA_OK;
    c->total = total;
    c->group = c->heads / kv_heads;
    c->part = (mhai_attn_columns){.take = take_turn, .pass = pass_turn, .user = c};
    divide(c);
    if (need_data) MHA_TRY(take_memory(context, c));
    for (int64_t i = 0; i < slice_count; i++)
        if (slices[i].q.shape[2] > 0) slices[i].part.columns = &c->part;
    return MHA_OK;
}

/* ---- what a call takes ----------------------------------------------------------------------- */

/* From a rank to another. */
static void count(const mhai_columns *c, int32_t from, int32_t to, int64_t messages, double bytes,
                  int64_t of_messages[2], double of_bytes[2])
{
    const int32_t rank = c->s->t->rank;
    if (from == to || (from != rank && to != rank)) return;
    of_messages[from != rank] += messages;
    of_bytes[from != rank] += bytes;
}

void mhai_columns_count(const mhai_columns *c, int64_t messages[2], double bytes[2])
{
    const mhai_split *s = c->s;
    const mhai_owned *last = s->queries + s->query_count - 1;
    if (c->total == 0 || s->query_count == 0) return;
    for (const mhai_owned *piece = s->queries; piece < last; piece++)
        count(c, piece->rank, piece[1].rank, c->turns, (double)c->total * sizeof(double), messages,
              bytes);
    for (int32_t r = 0; r < s->t->size; r++) {
        const int64_t rows = rows_of(c, r);
        if (rows > 0) count(c, last->rank, r, 1, (double)message_bytes(c, rows), messages, bytes);
    }
}

mha_status mhai_columns_bytes(const mhai_columns *c, size_t *bytes)
{
    if (c->total == 0) return MHA_OK;
    MHA_TRY(mhai_attn_add_scratch(bytes, (size_t)own_sums(c) * sizeof(double), 1));
    MHA_TRY(mhai_attn_add_scratch(bytes, message_bytes(c, most_rows(c)), 1));
    return mhai_attn_add_scratch(bytes, (size_t)c->turns * (sizeof *c->sends + sizeof *c->sending),
                                 1);
}

/* ---- the call -------------------------------------------------------------------------------- */

void mhai_columns_next(mhai_columns *c, const mhai_slice *slice)
{
    if (!slice->part.columns) return;
    do {
        c->piece++;
    } while (c->s->queries[c->piece].rank != c->s->t->rank);
}

/* From the rank of the last piece, which has the sums, to those of the keys. */
static mha_status hand_out(const mhai_columns *c)
{
    const mha_transport *t = c->s->t;
    const int64_t own = c->to.shape[2];
    const int32_t last = c->s->queries[c->s->query_count - 1].rank;
    for (int32_t r = 0; last == t->rank && r < t->size; r++) {
        const int64_t rows = rows_of(c, r);
        if (r == t->rank || rows == 0) continue;
        pack(c, r, rows);
        MHA_TRY(mha_transport_send(t, r, c->message, message_bytes(c, rows)));
    }
    if (last == t->rank)
        pack(c, last, own);
    else if (own > 0)
        return mha_transport_receive(t, last, c->message, message_bytes(c, own));
    return MHA_OK;
}

mha_status mhai_columns_finish(mhai_columns *c)
{
    if (c->total == 0) return MHA_OK;
    for (int64_t i = 0; i < c->turns; i++) MHA_TRY(settle(c, i, true));
    if (c->s->query_count > 0)
        MHA_TRY(hand_out(c));
    else
        memset(c->message, 0, message_bytes(c, c->to.shape[2]));
    write_output(c);
    return MHA_OK;
}

void mhai_columns_abandon(mhai_columns *c)
{
    for (int64_t i = 0; c->total > 0 && i < c->turns; i++)
        if (c->sending[i]) c->s->t->cancel(c->s->t->user, &c->sends[i]);
}
