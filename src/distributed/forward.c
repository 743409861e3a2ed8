/* mha_distributed_forward(). A rank computes the rows of its group and the heads of its part
 * (exchange.h). With one group, it makes the call of a single process for some heads. With several,
 * each piece of rows is computed as a part of all rows (mhai_attn_part), with all keys. */
#include "distributed/exchange.h"

#include "base/context.h"
#include "base/tensor.h"
#include "ranks/rank_messages.h"

#include <multihead/component.h>

#include <string.h>

/* column_sums if several groups have the same keys. Sums are passed from piece to piece
 * in the order of queries. */
typedef struct columns {
    const mhai_roles *roles;
    int64_t piece; /* index of the current piece among the pieces of all groups */
    int64_t count; /* number of sums, B heads S; 0: not requested */
    mhai_attn_columns part;
} columns;

/* The state of a call. */
typedef struct call {
    mha_context *context;
    mhai_slice_call whole, own; /* the caller's arguments, and the problem that
                                 * this rank computes */
    mhai_split split;
    mhai_masks masks;
    mhai_roles roles;
    mhai_exchange exchange;
    int at[MHAI_ROW_INPUTS + MHAI_ROW_OUTPUTS +
           5]; /* indices in the exchange: q, k, v, o, column_sums, masks, outputs */
    mha_tensor inputs[MHAI_HEAD_INPUTS];
    bool alone;         /* there is a single group */
    mhai_slice *slices; /* several groups: one slice per piece of the group's rows */
    int64_t count;
    columns columns;
} call;

enum { Q, K, V, O, COLUMNS, MASKS, OUTPUTS = MASKS + MHAI_ROW_INPUTS };

/* ---- checks ---------------------------------------------------------------------------------- */

/* Check column_sums, and that outputs do not overlap keys and values, which the check
 * of rows does not cover. */
static mha_status check_keys(const mhai_slice_call *w, bool need_data)
{
    mha_attention_outputs o = w->outputs;
    const int64_t shape[] = {w->q->shape[0], w->q->shape[1], w->k->shape[2]};
    mha_tensor to = {.data = NULL};
    MHA_TRY(
        mhai_attn_check_output("column_sums", o.column_sums, MHA_F32, 3, shape, need_data, &to));
    if (!need_data) return MHA_OK;
    const mha_tensor heads = mhai_attn_list_view(o.heads, o.heads_count),
                     rows = mhai_attn_list_view(o.rows, o.rows_count),
                     offsets = mhai_attn_list_view(o.offsets, o.offsets_count);
    const mhai_attn_named inputs[] = {{"k", w->k},       {"v", w->v},     {"q", w->q},
                                      {"heads", &heads}, {"rows", &rows}, {"offsets", &offsets}};
    for (size_t i = 0; o.column_sums && i < sizeof inputs / sizeof *inputs; i++)
        MHA_TRY(mhai_tensor_check_disjoint("column_sums", &to, inputs[i].name, inputs[i].tensor));
    for (int i = -1; i < MHAI_ROW_OUTPUTS; i++) {
        const char *name = i < 0 ? "o" : mhai_row_outputs[i].name;
        const mha_tensor *x = i < 0 ? w->o : *mhai_slice_output(&o, i);
        for (int j = 0; x && j < 2; j++)
            MHA_TRY(mhai_tensor_check_disjoint(name, x, inputs[j].name, inputs[j].tensor));
        if (x && o.column_sums) MHA_TRY(mhai_tensor_check_disjoint(name, x, "column_sums", &to));
    }
    return o.column_sums ? mhai_attn_check_apart(&w->desc, "column_sums", &to) : MHA_OK;
}

/* Check the caller's rows as a single piece. Only the number of keys and values matters. */
static mha_status check(const call *c, bool need_data)
{
    const mha_piece piece = {0, c->split.rows};
    const mha_scratch_mark mark = mha_scratch_top(c->context);
    mhai_slice slice;
    mhai_attn_plan plan;
    MHA_TRY(mhai_slice_piece(c->context, &c->whole, &c->split, c->split.rows, &piece, 0, &slice));
    mhai_attn_call made = mhai_slice_call_of(&slice);
    mha_tensor k = *c->whole.k, v = *c->whole.v;
    k.shape[2] = v.shape[2] = c->split.given.keys;
    k.stride[2] = v.stride[2] = 0;
    made.k = &k, made.v = &v;
    const mha_status status = mhai_attn_plan_call(c->context, &made, need_data, &plan);
    mha_scratch_release(c->context, mark);
    return status == MHA_OK ? check_keys(&c->whole, need_data) : status;
}

/* ---- the exchange ---------------------------------------------------------------------------- */

/* Whether rows must stay at their owners, because outputs over pairs are requested. */
static bool keeps_rows(const call *c)
{
    const mha_attention_outputs *o = &c->whole.outputs;
    return o->probabilities || o->average_probabilities || o->scores;
}

static void add_result(call *c, int i, const mha_tensor *x, int ndim, bool last, mhai_extent extent)
{
    mhai_exchange *e = &c->exchange;
    c->at[i] = mhai_exchange_add(e, x, ndim, last, extent, MHAI_QUERY_HEADS);
    if (c->at[i] < 0) return;
    e->moved[c->at[i]].brings = false;
    e->moved[c->at[i]].returns = true;
}

/* List the tensors. With one part, rows are not moved. A single rank does not move keys either. */
static mha_status list_tensors(void *user, size_t *bytes)
{
    call *c = user;
    mhai_exchange *e = &c->exchange;
    mhai_slice_call *w = &c->whole;
    const mhai_extent rows = MHAI_GROUP_QUERIES;
    const int64_t o_shape[] = {w->q->shape[0], w->q->shape[1], w->q->shape[2], w->v->shape[3]};
    const mha_tensor o = mha_tensor_contiguous(NULL, MHA_F32, 4, o_shape);
    *e = (mhai_exchange){.roles = &c->roles, .step = -1};
    for (size_t i = 0; i < sizeof c->at / sizeof *c->at; i++) c->at[i] = -1;
    if (c->split.t->size == 1) return MHA_OK;
    c->at[K] = mhai_exchange_add(e, w->k, 4, true, MHAI_EVERY_KEY, MHAI_KEY_HEADS);
    c->at[V] = mhai_exchange_add(e, w->v, 4, true, MHAI_EVERY_KEY, MHAI_KEY_HEADS);
    add_result(c, COLUMNS, w->outputs.column_sums, 3, false, MHAI_COLUMN_KEYS);
    if (c->roles.parts > 1) {
        c->at[Q] = mhai_exchange_add(e, w->q, 4, true, rows, MHAI_QUERY_HEADS);
        add_result(c, O, w->o ? w->o : &o, 4, true, rows);
        for (int i = 0; i < MHAI_ROW_INPUTS; i++)
            c->at[MASKS + i] = mhai_exchange_add_mask(e, &w->desc, &c->masks, i, rows);
        for (int i = 0; i < MHAI_ROW_OUTPUTS; i++)
            add_result(c, OUTPUTS + i, *mhai_slice_output(&w->outputs, i), mhai_row_outputs[i].ndim,
                       mhai_row_outputs[i].columns, rows);
    }
    mhai_exchange_shape(e);
    return mhai_exchange_bytes(e, bytes);
}

static mha_status choose(call *c)
{
    const mhai_slice_call *w = &c->whole;
    const mha_status status = mhai_roles_take(c->context, &c->split, &w->desc, w->q->shape[1],
                                              w->k->shape[1], false, &c->roles);
    MHA_TRY(mha_transport_agree(c->split.t, status));
    return mhai_roles_choose(&c->roles, &w->desc, false, keeps_rows(c), list_tensors, c);
}

/* ---- the call of this rank ------------------------------------------------------------------- */

static void replace(const call *c, int i, const mha_tensor **x)
{
    if (c->at[i] >= 0) *x = mhai_exchange_at(&c->exchange, c->at[i]);
}

/* Replace the caller's tensors with the tensors of the exchange, and select heads of shared
 * inputs. */
static void make_own(call *c)
{
    const mha_head_piece piece = mhai_roles_heads(&c->roles, c->split.t->rank);
    c->own = c->whole;
    if (c->roles.parts > 1) mhai_slice_heads(&c->own.desc, piece.begin, piece.end, c->inputs);
    replace(c, Q, &c->own.q);
    replace(c, K, &c->own.k);
    replace(c, V, &c->own.v);
    if (c->whole.o) replace(c, O, &c->own.o);
    replace(c, COLUMNS, &c->own.outputs.column_sums);
    for (int i = 0; i < MHAI_ROW_INPUTS; i++)
        replace(c, MASKS + i, mhai_slice_mask(&c->own.desc, i));
    for (int i = 0; i < MHAI_ROW_OUTPUTS; i++)
        replace(c, OUTPUTS + i, mhai_slice_output(&c->own.outputs, i));
}

/* Make the slices of the group's pieces. */
static mha_status make_slices(call *c)
{
    const mhai_roles *r = &c->roles;
    const int64_t all = r->count[MHAI_GROUP_QUERIES];
    mha_piece *pieces;
    MHA_TRY(mha_scratch_alloc(c->context, all, sizeof(mha_piece), &pieces));
    for (int64_t i = 0; i < all; i++) {
        const mhai_owned *p = &r->rows[MHAI_GROUP_QUERIES][i];
        if (p->rank == mhai_roles_group(r)) pieces[c->count++] = (mha_piece){p->begin, p->end};
    }
    return mhai_slice_make(c->context, &c->own, &c->split, pieces, c->count, &c->slices);
}

static mhai_attn_call call_of(call *c, int64_t i)
{
    const mhai_slice_call *w = &c->own;
    if (c->alone)
        return (mhai_attn_call){
            .desc = &w->desc, .q = w->q, .k = w->k, .v = w->v, .o = w->o, .outputs = &w->outputs};
    mhai_attn_call made = mhai_slice_call_of(&c->slices[i]);
    c->slices[i].part.keys = c->split.given.keys;
    made.k = w->k, made.v = w->v;
    return made;
}

/* Find the largest scratch of any slice, and the visible pairs of all slices. */
static mha_status count_scratch(call *c, bool need_data, size_t *most, double *pairs)
{
    *most = 0, *pairs = 0;
    for (int64_t i = 0; i < c->count; i++) {
        const mhai_attn_call made = call_of(c, i);
        mhai_attn_plan plan;
        size_t bytes;
        MHA_TRY(mhai_attn_plan_call(c->context, &made, need_data, &plan));
        MHA_TRY(mhai_attn_scratch_bytes(&plan, &bytes));
        if (bytes > *most) *most = bytes;
        *pairs += (double)mhai_attn_visible_pairs(&plan.p);
    }
    return MHA_OK;
}

/* ---- column sums ----------------------------------------------------------------------------- */

static int32_t rank_of_piece(const columns *c, int64_t piece)
{
    const mhai_roles *r = c->roles;
    return r->rows[MHAI_GROUP_QUERIES][piece].rank * r->parts + r->s->t->rank % r->parts;
}

/* Receive the sums of the previous pieces. */
static mha_status take_sums(void *user)
{
    const columns *c = user;
    const size_t bytes = (size_t)c->count * sizeof(double);
    if (c->piece > 0)
        return mha_transport_receive(c->roles->s->t, rank_of_piece(c, c->piece - 1), c->part.sums,
                                     bytes);
    memset(c->part.sums, 0, bytes);
    return MHA_OK;
}

static mha_status pass_sums(void *user)
{
    const columns *c = user;
    if (c->piece + 1 == c->roles->count[MHAI_GROUP_QUERIES]) return MHA_OK;
    return mha_transport_send(c->roles->s->t, rank_of_piece(c, c->piece + 1), c->part.sums,
                              (size_t)c->count * sizeof(double));
}

static mha_status make_columns(call *c, bool need_data)
{
    const mha_tensor *x = c->own.outputs.column_sums;
    columns *s = &c->columns;
    if (!x || c->alone) return MHA_OK;
    s->count = c->own.q->shape[0] * c->own.q->shape[1] * c->split.given.keys;
    s->roles = &c->roles;
    s->piece = -1;
    s->part = (mhai_attn_columns){.take = take_sums, .pass = pass_sums, .user = s};
    if (need_data) {
        MHA_TRY(mha_scratch_alloc(c->context, s->count, sizeof(double), &s->part.sums));
    }
    for (int64_t i = 0; s->count > 0 && i < c->count; i++) c->slices[i].part.columns = &s->part;
    return MHA_OK;
}

/* Round the sums, which are complete at the group of the last piece. */
static void round_columns(const call *c)
{
    const mha_tensor *x = c->own.outputs.column_sums;
    const mha_attention_desc *d = &c->own.desc;
    if (c->columns.count == 0 || x->shape[2] == 0) return;
    const int64_t H = x->shape[1], S = x->shape[2],
                  sequences = d->key_starts ? d->sequences : x->shape[0];
    float *out = x->data;
    for (int64_t b = 0; b < sequences; b++) {
        const int64_t first = d->key_starts ? d->key_starts[b] : 0;
        const int64_t keys = d->key_starts ? d->key_starts[b + 1] - first : S;
        for (int64_t h = 0; h < H; h++)
            for (int64_t s = 0; s < keys; s++) {
                const int64_t at =
                    mhai_attn_columns_at(H, d->key_starts ? first : b * S, keys, h) + s;
                out[((d->key_starts ? 0 : b) * H + h) * S + first + s] =
                    c->count > 0 ? (float)c->columns.part.sums[at] : 0;
            }
    }
}

/* Count the messages that pass sums from piece to piece. */
static void count_columns(const call *c, mha_distributed_plan *plan)
{
    const mhai_roles *r = &c->roles;
    const double bytes = (double)c->columns.count * sizeof(double);
    for (int64_t i = 0; bytes > 0 && i + 1 < r->count[MHAI_GROUP_QUERIES]; i++) {
        const mhai_owned *p = &r->rows[MHAI_GROUP_QUERIES][i];
        const bool sends = p->rank == mhai_roles_group(r),
                   receives = p[1].rank == mhai_roles_group(r);
        plan->messages_sent += sends, plan->bytes_sent += sends ? bytes : 0;
        plan->messages_received += receives, plan->bytes_received += receives ? bytes : 0;
    }
}

/* ---- the call -------------------------------------------------------------------------------- */

/* Reserve memory before the exchange, because other ranks rely on this rank's messages. */
static mha_status reserve(call *c)
{
    size_t bytes;
    double pairs;
    MHA_TRY(count_scratch(c, true, &bytes, &pairs));
    return mhai_scratch_ensure(c->context, 1, bytes);
}

static mha_status make(call *c, bool need_data)
{
    if (need_data) MHA_TRY(mhai_exchange_take(c->context, &c->exchange));
    make_own(c);
    c->alone = c->roles.parts == c->split.t->size;
    c->count = c->alone;
    if (!c->alone) MHA_TRY(make_slices(c));
    MHA_TRY(make_columns(c, need_data));
    return need_data ? reserve(c) : MHA_OK;
}

/* Check this rank's arguments, then agree with all ranks. Afterwards, *c
 * can be run or explained. */
static mha_status begin(call *c, const mha_sequence_split *given, bool need_data)
{
    mhai_slice_common common;
    mha_status status = c->whole.status;
    if (status == MHA_OK) status = mhai_split_check(given, &c->split);
    c->whole.status = status;
    status = mhai_slice_check(&c->whole, &c->split, &common);
    MHA_TRY(mha_transport_same(given->transport, "description", &common, sizeof common, status));
    MHA_TRY(mhai_split_make(c->context, &c->split));
    MHA_TRY(mha_transport_agree(given->transport, check(c, need_data)));
    MHA_TRY(mhai_slice_masks(&c->whole, &c->split, &c->masks));
    status = choose(c);
    if (status == MHA_OK) status = make(c, need_data);
    return status == MHA_ERR_RANK ? status : mha_transport_agree(given->transport, status);
}

static mha_status run(call *c)
{
    MHA_TRY(mhai_exchange_move(&c->exchange, false));
    for (int64_t i = 0; i < c->count; i++) {
        const mhai_attn_call made = call_of(c, i);
        if (c->columns.count > 0) do {
                c->columns.piece++;
            } while (c->roles.rows[MHAI_GROUP_QUERIES][c->columns.piece].rank !=
                     mhai_roles_group(&c->roles));
        MHA_TRY(mhai_attn_forward(c->context, &made));
    }
    round_columns(c);
    return mhai_exchange_move(&c->exchange, true);
}

mha_status mha_distributed_forward(mha_context *context, const mha_sequence_split *split,
                                   const mha_attention_desc *desc, const mha_tensor *q,
                                   const mha_tensor *k, const mha_tensor *v, const mha_tensor *o,
                                   const mha_attention_outputs *outputs)
{
    call c = {.context = context};
    MHA_TRY(mhai_slice_arguments("mha_distributed_forward", context, split));
    const mha_scratch_mark mark = mha_scratch_top(context);
    c.whole.status =
        mhai_slice_take("mha_distributed_forward", desc, q, k, v, o, outputs, &c.whole);
    mha_status status = begin(&c, split, true);
    if (status == MHA_OK) status = run(&c);
    return mha_scratch_end(context, mark, status);
}

static const char *reason_of(const call *c)
{
    if (c->split.t->size == 1) return "one rank has all rows";
    if (c->alone) return "each rank has some heads, and all their rows";
    return c->roles.parts > 1 ? "ranks share heads: each has some of them, some rows, and all keys"
           : keeps_rows(c)    ? "outputs over pairs stay with their rows: each rank has all keys"
                              : "each rank has its rows of all heads, and all keys";
}

static mha_status explain(call *c, mha_distributed_plan *plan)
{
    size_t bytes;
    *plan = (mha_distributed_plan){.reason = reason_of(c), .head_parts = c->roles.parts};
    mhai_exchange_count(&c->exchange, false);
    mhai_exchange_count(&c->exchange, true);
    plan->messages_sent = c->exchange.messages[0], plan->bytes_sent = c->exchange.bytes[0];
    plan->messages_received = c->exchange.messages[1], plan->bytes_received = c->exchange.bytes[1];
    count_columns(c, plan);
    MHA_TRY(count_scratch(c, false, &bytes, &plan->pairs));
    MHA_TRY(mhai_attn_add_scratch(&plan->scratch_bytes, bytes, 1));
    MHA_TRY(
        mhai_attn_add_scratch(&plan->scratch_bytes, (size_t)c->columns.count * sizeof(double), 1));
    return mhai_exchange_bytes(&c->exchange, &plan->scratch_bytes);
}

mha_status mha_distributed_explain(mha_context *context, const mha_sequence_split *split,
                                   const mha_attention_desc *desc, const mha_tensor *q,
                                   const mha_tensor *k, const mha_tensor *v,
                                   const mha_attention_outputs *outputs, mha_distributed_plan *plan)
{
    call c = {.context = context};
    mha_distributed_plan made;
    MHA_TRY(mhai_slice_arguments("mha_distributed_explain", context, split));
    const mha_scratch_mark mark = mha_scratch_top(context);
    c.whole.status =
        mhai_slice_take("mha_distributed_explain", desc, q, k, v, NULL, outputs, &c.whole);
    if (c.whole.status == MHA_OK && !plan)
        c.whole.status = mha_fail(MHA_ERR_NULL, "mha_distributed_explain: plan is NULL");
    mha_status status = begin(&c, split, false);
    if (status == MHA_OK) status = explain(&c, &made);
    if (status == MHA_OK) *plan = made;
    return mha_scratch_end(context, mark, status);
}
