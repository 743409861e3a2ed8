/* See exchange.h. */
#include "distributed/exchange.h"

#include "base/checked.h"
#include "distributed/ring.h"
#include "ranks/rank_messages.h"

#include <multihead/component.h>

#include <string.h>

/* ---- choosing -------------------------------------------------------------------------------- */

/* Tensors over queries stay where they are, and so do all outputs but o and lse. */
static bool can_exchange(const mhai_slice_call *call, const mhai_split *s)
{
    const mha_attention_desc *d = &call->desc;
    const mha_attention_outputs *o = &call->outputs;
    return call->k->shape[1] > 0 && call->q->shape[1] % call->k->shape[1] == 0 &&
           !(s->given.flags & MHA_SEQUENCE_KEEP_HEADS) && !d->keep_mask && !d->bias &&
           !d->global_queries && !d->query_documents && !o->probabilities &&
           !o->average_probabilities && !o->scores && !o->entropy && !o->largest_weight &&
           !o->largest_key && !o->first_token && !o->diagonal && !o->offset_mass && !o->top_keys &&
           !o->column_sums;
}

/* What a rank receives, in bytes, where ranks have about as many rows each: rows of other parts, and keys and
 * values that go through the ranks of the same heads. The way of a block past these counts as the bytes of all
 * blocks that are under way meanwhile, so that of two numbers of parts with about as many bytes the larger
 * is taken. */
static double cost_of(const mhai_slice_call *call, const mhai_split *s, int32_t parts,
                      double received)
{
    const int64_t *q = call->q->shape, *k = call->k->shape, *v = call->v->shape;
    const double ranks = s->t->size / parts, heads = (double)q[1] / parts;
    const double kv_heads = parts < k[1] ? (double)k[1] / parts : 1;
    const double key = (double)q[0] * ((double)k[3] * (double)mha_dtype_size(call->k->dtype) +
                                       (double)v[3] * (double)mha_dtype_size(call->v->dtype));
    const double query = (double)q[0] * (double)(q[3] + v[3]) * sizeof(float);
    const double exchanged =
        (parts - 1) *
        ((double)s->given.queries * heads * query + (double)s->given.keys * kv_heads * key) /
        s->t->size;
    const double streamed = ranks > 1 ? received * kv_heads / (double)k[1] : 0;
    const double under_way = (ranks - 1) * MHAI_RING_MOST * (double)MHAI_KEY_BLOCK * kv_heads * key;
    return exchanged + streamed + under_way;
}

/* Heads are divided evenly: into whole groups, or each group into as many parts as any other. */
static bool divides(const mhai_slice_call *call, int32_t ranks, int32_t parts)
{
    const int64_t heads = call->q->shape[1], kv_heads = call->k->shape[1];
    return ranks % parts == 0 && heads % parts == 0 &&
           (kv_heads % parts == 0 || parts % kv_heads == 0);
}

mha_status mhai_exchange_choose(const mhai_slice_call *call, const mhai_split *s, double received,
                                mhai_exchange *e)
{
    enum { REFUSES, WANTS_LSE, BYTES, Q_LARGEST, Q_SMALLEST, O_LARGEST, O_SMALLEST, NUMBERS };
    const int64_t any = -1000; /* of a rank without rows */
    const int64_t q = s->rows > 0 ? (int64_t)call->q->dtype : any;
    const int64_t o = s->rows > 0 && call->o ? (int64_t)call->o->dtype : any;
    int64_t most[NUMBERS] = {[REFUSES] = !can_exchange(call, s),
                             [WANTS_LSE] = call->outputs.lse != NULL,
                             [BYTES] = received < 0x1p62 ? (int64_t)received : INT64_MAX / 2,
                             [Q_LARGEST] = q,
                             [Q_SMALLEST] = q == any ? any : -q,
                             [O_LARGEST] = o,
                             [O_SMALLEST] = o == any ? any : -o};
    *e = (mhai_exchange){.s = s, .given = call, .parts = 1};
    MHA_TRY(mhai_ranks_most(s->t, most, NUMBERS));
    if (most[REFUSES] || most[Q_LARGEST] == any || most[Q_LARGEST] != -most[Q_SMALLEST] ||
        (most[O_LARGEST] != any && most[O_LARGEST] != -most[O_SMALLEST]))
        return MHA_OK;
    double least = cost_of(call, s, 1, (double)most[BYTES]);
    for (int32_t parts = 2; parts <= s->t->size && parts <= call->q->shape[1]; parts++) {
        if (!divides(call, s->t->size, parts)) continue;
        const double cost = cost_of(call, s, parts, (double)most[BYTES]);
        if (cost < least) least = cost, e->parts = parts;
    }
    e->wants_lse = most[WANTS_LSE];
    const mha_dtype types[MHAI_EXCHANGE_ALL] = {
        (mha_dtype)most[Q_LARGEST], call->k->dtype, call->v->dtype,
        most[O_LARGEST] == any ? MHA_F32 : (mha_dtype)most[O_LARGEST], MHA_F32};
    for (int i = 0; i < MHAI_EXCHANGE_ALL; i++) e->whole[i].dtype = types[i];
    return MHA_OK;
}

/* ---- whose rows and heads -------------------------------------------------------------------- */

static bool over_keys(int i)
{
    return i == MHAI_EXCHANGE_K || i == MHAI_EXCHANGE_V;
}

static const mhai_owned *pieces_of(const mhai_exchange *e, int i, int64_t *count)
{
    *count = over_keys(i) ? e->s->key_count : e->s->query_count;
    return over_keys(i) ? e->s->keys : e->s->queries;
}

static int32_t first_rank(const mhai_exchange *e)
{
    return e->s->t->rank / e->parts * e->parts;
}

static bool exchanges(const mhai_exchange *e, int32_t rank)
{
    return rank / e->parts == e->s->t->rank / e->parts;
}

/* Heads of a tensor that a part has: the first one, and how many. */
static void heads_of(const mhai_exchange *e, int i, int32_t part, int64_t *first, int64_t *count)
{
    mha_head_piece piece = {0};
    const mha_status status =
        mha_split_heads(e->here[MHAI_EXCHANGE_Q].shape[1], e->here[MHAI_EXCHANGE_K].shape[1], part,
                        e->parts, &piece);
    (void)status; /* the numbers have been checked */
    *first = over_keys(i) ? piece.kv_begin : piece.begin;
    *count = (over_keys(i) ? piece.kv_end : piece.end) - *first;
}

/* ---- messages -------------------------------------------------------------------------------- */

static char *row_at(const mha_tensor *x, int64_t b, int64_t h, int64_t t)
{
    const int64_t at = b * x->stride[0] + h * x->stride[1] + t * x->stride[2];
    return (char *)x->data + at * (int64_t)mha_dtype_size(x->dtype);
}

static void count_runs(mhai_exchange *e, bool sends, int64_t messages, size_t bytes)
{
    e->messages[!sends] += messages;
    e->bytes[!sends] += (double)messages * (double)bytes;
}

static mha_status begin(mhai_exchange *e, int32_t rank, bool sends, char *bytes, size_t count)
{
    const mha_transport *t = e->s->t;
    mha_transfer *transfer = &e->transfers[e->count];
    MHA_TRY(sends ? t->send(t->user, rank, 0, bytes, count, transfer)
                  : t->receive(t->user, rank, 0, bytes, count, transfer));
    e->count++;
    return MHA_OK;
}

/* Own rows of the heads of part `to`, from their place here; and rows of part `from`, to their place among those
 * of own heads. Or back: rows of part `to`, and heads of part `from`. A message for each piece, sequence and
 * head, in the same order at both sides. With itself a rank copies. Without transfers: count them. */
static mha_status move(mhai_exchange *e, int i, int32_t to, int32_t from, bool back)
{
    const mha_tensor *here = &e->here[i], *whole = &e->whole[i];
    const int32_t base = first_rank(e), own = e->s->t->rank;
    const int32_t heads_at = back ? from : to, rows_at = back ? to : from;
    const bool copies = to == from && base + to == own;
    const size_t row = (size_t)whole->shape[3] * mha_dtype_size(whole->dtype);
    const int64_t own_heads = whole->shape[1];
    int64_t count, first, heads, place = 0;
    const mhai_owned *pieces = pieces_of(e, i, &count);
    heads_of(e, i, heads_at, &first, &heads);
    for (int64_t n = 0; n < count; n++) {
        const mhai_owned *p = &pieces[n];
        const int64_t rows = p->end - p->begin;
        const size_t bytes = (size_t)rows * row;
        if (!exchanges(e, p->rank) || bytes == 0) continue;
        const int64_t here_runs = p->rank == own ? whole->shape[0] * heads : 0;
        const int64_t whole_runs =
            p->rank == base + rows_at && !copies ? whole->shape[0] * own_heads : 0;
        if (!e->transfers) {
            count_runs(e, !back, here_runs, bytes);
            count_runs(e, back, whole_runs, bytes);
            continue;
        }
        for (int64_t j = 0; j < here_runs; j++) {
            char *at = row_at(here, j / heads, first + j % heads, p->local);
            if (!copies) {
                MHA_TRY(begin(e, base + heads_at, !back, at, bytes));
                continue;
            }
            char *kept = row_at(whole, j / heads, j % heads, place);
            memcpy(back ? at : kept, back ? kept : at, bytes);
        }
        for (int64_t j = 0; j < whole_runs; j++)
            MHA_TRY(begin(e, base + rows_at, back,
                          row_at(whole, j / own_heads, j % own_heads, place), bytes));
        place += rows;
    }
    return MHA_OK;
}

/* A round: to the part n further on, from that n further back. */
static mha_status move_round(mhai_exchange *e, int32_t n, int first, int last, bool back)
{
    const int32_t own = e->s->t->rank % e->parts;
    const int32_t to = (own + n) % e->parts, from = (own + e->parts - n) % e->parts;
    for (int i = first; i <= last; i++) MHA_TRY(move(e, i, to, from, back));
    return MHA_OK;
}

/* A rank sends to one other at a time, so that each message has the whole link; what it keeps is copied during
 * the first round. */
static mha_status exchange(mhai_exchange *e, int first, int last, bool back)
{
    const mha_transport *t = e->s->t;
    mha_status status = MHA_OK;
    for (int32_t round = 1; status == MHA_OK && round < e->parts; round++) {
        int64_t n = e->count = 0;
        status = move_round(e, round, first, last, back);
        if (status == MHA_OK && round == 1) status = move_round(e, 0, first, last, back);
        while (status == MHA_OK && n < e->count) status = t->wait(t->user, &e->transfers[n++]);
        while (n < e->count) t->cancel(t->user, &e->transfers[n++]);
    }
    return status;
}

static mha_status count_messages(mhai_exchange *e, int first, int last, bool back)
{
    for (int32_t round = 1; round < e->parts; round++)
        MHA_TRY(move_round(e, round, first, last, back));
    return MHA_OK;
}

static int last_result(const mhai_exchange *e)
{
    return e->wants_lse ? MHAI_EXCHANGE_LSE : MHAI_EXCHANGE_O;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static bool rows_lie_together(const mha_tensor *x)
{
    return x->shape[2] <= 1 || x->stride[2] == x->shape[3];
}

static bool count_bytes(const mha_tensor *x, size_t *bytes)
{
    int64_t count = 1;
    for (int i = 0; i < 4; i++)
        if (!mhai_mul_i64(count, x->shape[i], &count)) return false;
    return mhai_mul_size((size_t)count, mha_dtype_size(x->dtype), bytes);
}

static mha_status take(mha_context *context, mha_tensor *x)
{
    size_t bytes;
    void *memory;
    if (!count_bytes(x, &bytes))
        return mha_fail(MHA_ERR_SIZE, "q, k, v: the rows of ranks that exchange heads are beyond "
                                      "the address space");
    MHA_TRY(mha_scratch_alloc(context, 1, bytes, &memory));
    *x = mha_tensor_contiguous(memory, x->dtype, 4, x->shape);
    return MHA_OK;
}

/* What the caller has of a tensor; of lse, which may be wanted elsewhere alone. */
static const mha_tensor *given_of(const mhai_exchange *e, int i)
{
    const mhai_slice_call *call = e->given;
    const mha_tensor *all[] = {call->q, call->k, call->v, call->o,
                               call->outputs.lse ? &e->lse_here : NULL};
    return all[i];
}

static void shape_here(mhai_exchange *e, int i)
{
    const mhai_slice_call *call = e->given;
    const int64_t *q = call->q->shape, *k = call->k->shape, *v = call->v->shape;
    const int64_t last[] = {q[3], k[3], v[3], v[3], 1};
    const int64_t rows = over_keys(i) ? e->s->key_rows : e->s->rows;
    mha_tensor *here = &e->here[i], *whole = &e->whole[i];
    const int64_t shape[] = {q[0], over_keys(i) ? k[1] : q[1], rows, last[i]};
    *here = mha_tensor_contiguous(NULL, whole->dtype, 4, shape);
    const mha_tensor *given = given_of(e, i);
    e->apart[i] = rows > 0 && !(given && rows_lie_together(given));
    if (rows > 0 && given && !e->apart[i]) *here = *given;
}

/* Rows of all parts. */
static void shape_whole(mhai_exchange *e, int i)
{
    mha_tensor *whole = &e->whole[i];
    int64_t count, first, heads, rows = 0;
    const mhai_owned *pieces = pieces_of(e, i, &count);
    for (int64_t n = 0; n < count; n++)
        if (exchanges(e, pieces[n].rank)) rows += pieces[n].end - pieces[n].begin;
    heads_of(e, i, e->s->t->rank - first_rank(e), &first, &heads);
    const int64_t shape[] = {e->here[i].shape[0], heads, rows, e->here[i].shape[3]};
    *whole = mha_tensor_contiguous(NULL, whole->dtype, 4, shape);
}

/* ---- the call of own heads ------------------------------------------------------------------- */

static mha_status cut_heads(const char *name, const mha_head_piece *own, int64_t heads,
                            const mha_tensor **x, int from_last, bool broadcasts, mha_tensor *to)
{
    const int axis = *x ? (*x)->ndim - 1 - from_last : -1;
    if (axis < 0 || axis >= MHA_MAX_DIMS || (broadcasts && (*x)->shape[axis] == 1)) return MHA_OK;
    if ((*x)->shape[axis] != heads)
        return mha_fail(MHA_ERR_SHAPE, "%s: dim %d is %lld, expected %lld heads", name, axis,
                        (long long)(*x)->shape[axis], (long long)heads);
    *to = **x;
    to->shape[axis] = own->end - own->begin;
    if (to->data)
        to->data =
            (char *)to->data + own->begin * to->stride[axis] * (int64_t)mha_dtype_size(to->dtype);
    *x = to;
    return MHA_OK;
}

static mha_status make_description(mhai_exchange *e)
{
    const int64_t heads = e->given->q->shape[1];
    mha_attention_desc *d = &e->call.desc;
    *d = e->given->desc;
    d->first_head += e->own.begin;
    const struct {
        const char *name;
        const mha_tensor **x;
        int from_last;
        bool broadcasts;
    } each[] = {{"keep_blocks", &d->keep_blocks, 2, true},
                {"alibi_slopes", &d->alibi_slopes, 0, true},
                {"t5_table", &d->t5_table, 0, false},
                {"sink_logits", &d->sink_logits, 0, false},
                {"gates", &d->gates, 0, true}};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++)
        MHA_TRY(cut_heads(each[i].name, &e->own, heads, each[i].x, each[i].from_last,
                          each[i].broadcasts, &e->inputs[i]));
    return MHA_OK;
}

/* The pieces of all parts; those that follow each other are one. */
static mha_status join_pieces(mha_context *context, const mhai_exchange *e, int i,
                              const mha_piece **pieces, int64_t *joined)
{
    int64_t count;
    void *memory;
    const mhai_owned *all = pieces_of(e, i, &count);
    MHA_TRY(mha_scratch_alloc(context, count, sizeof **pieces, &memory));
    mha_piece *to = memory;
    *joined = 0;
    for (int64_t n = 0; n < count; n++) {
        if (!exchanges(e, all[n].rank)) continue;
        if (*joined > 0 && to[*joined - 1].end == all[n].begin)
            to[*joined - 1].end = all[n].end;
        else
            to[(*joined)++] = (mha_piece){all[n].begin, all[n].end};
    }
    *pieces = to;
    return MHA_OK;
}

static mha_status make_split(mha_context *context, mhai_exchange *e)
{
    const mha_transport *t = e->s->t;
    const int32_t ranks = t->size / e->parts;
    void *memory;
    MHA_TRY(mha_scratch_alloc(context, ranks, sizeof(int32_t), &memory));
    int32_t *list = memory;
    for (int32_t r = 0; r < ranks; r++) list[r] = r * e->parts + t->rank % e->parts;
    MHA_TRY(mha_transport_part_make(t, list, ranks, &e->same_heads));
    e->split = e->s->given;
    e->split.transport = &e->same_heads.transport;
    MHA_TRY(join_pieces(context, e, MHAI_EXCHANGE_Q, &e->split.query_pieces,
                        &e->split.query_piece_count));
    return join_pieces(context, e, MHAI_EXCHANGE_K, &e->split.key_pieces,
                       &e->split.key_piece_count);
}

static mha_status take_tensors(mha_context *context, mhai_exchange *e)
{
    void *memory;
    MHA_TRY(mha_scratch_alloc(context, e->room, sizeof *e->transfers, &memory));
    for (int i = 0; i <= last_result(e); i++) {
        MHA_TRY(take(context, &e->whole[i]));
        if (e->apart[i]) MHA_TRY(take(context, &e->here[i]));
        if (e->apart[i] && i <= MHAI_EXCHANGE_V)
            MHA_TRY(mha_tensor_convert(given_of(e, i), &e->here[i]));
    }
    e->transfers = memory;
    return MHA_OK;
}

mha_status mhai_exchange_make(mha_context *context, bool need_data, mhai_exchange *e)
{
    const mhai_slice_call *call = e->given;
    const mha_tensor *lse = call->outputs.lse;
    if (lse)
        e->lse_here = (mha_tensor){.data = lse->data,
                                   .dtype = lse->dtype,
                                   .ndim = 4,
                                   .shape = {lse->shape[0], lse->shape[1], lse->shape[2], 1},
                                   .stride = {lse->stride[0], lse->stride[1], lse->stride[2], 1}};
    for (int i = 0; i < MHAI_EXCHANGE_ALL; i++) shape_here(e, i);
    for (int i = 0; i < MHAI_EXCHANGE_ALL; i++) shape_whole(e, i);
    MHA_TRY(mha_split_heads(call->q->shape[1], call->k->shape[1], e->s->t->rank % e->parts,
                            e->parts, &e->own));
    e->call = (mhai_slice_call){.q = &e->whole[MHAI_EXCHANGE_Q],
                                .k = &e->whole[MHAI_EXCHANGE_K],
                                .v = &e->whole[MHAI_EXCHANGE_V],
                                .o = call->o ? &e->whole[MHAI_EXCHANGE_O] : NULL,
                                .outputs = call->outputs};
    MHA_TRY(make_description(e));
    MHA_TRY(make_split(context, e));
    MHA_TRY(count_messages(e, MHAI_EXCHANGE_Q, MHAI_EXCHANGE_V, false));
    const int64_t of_rows = e->messages[0] + e->messages[1];
    MHA_TRY(count_messages(e, MHAI_EXCHANGE_O, last_result(e), true));
    e->room = 1 + mhai_max_i64(of_rows, e->messages[0] + e->messages[1] - of_rows);
    if (need_data) MHA_TRY(take_tensors(context, e));
    e->lse = e->whole[MHAI_EXCHANGE_LSE];
    e->lse.ndim = 3;
    e->call.outputs.lse = e->wants_lse ? &e->lse : NULL;
    return MHA_OK;
}

mha_status mhai_exchange_bytes(const mhai_exchange *e, size_t *bytes)
{
    size_t each;
    for (int i = 0; i <= last_result(e); i++)
        for (int n = 0; n < 1 + e->apart[i]; n++) {
            if (!count_bytes(n ? &e->here[i] : &e->whole[i], &each))
                return mha_fail(MHA_ERR_SIZE, "q, k, v: the rows of ranks that exchange heads are "
                                              "beyond the address space");
            MHA_TRY(mhai_attn_add_scratch(bytes, each, 1));
        }
    return mhai_attn_add_scratch(bytes, (size_t)e->room * sizeof *e->transfers, 1);
}

mha_status mhai_exchange_rows(mhai_exchange *e)
{
    return exchange(e, MHAI_EXCHANGE_Q, MHAI_EXCHANGE_V, false);
}

mha_status mhai_exchange_return(mhai_exchange *e)
{
    MHA_TRY(exchange(e, MHAI_EXCHANGE_O, last_result(e), true));
    for (int i = MHAI_EXCHANGE_O; i <= last_result(e); i++)
        if (e->apart[i] && given_of(e, i)) MHA_TRY(mha_tensor_convert(&e->here[i], given_of(e, i)));
    return MHA_OK;
}
