/* mha_distributed_forward(): each piece of this rank's queries is a call of its own, a part of the whole
 * (mhai_attn_part), and all keys come to it: block after block (attn_fold.c), or gathered. Before that, ranks
 * may exchange rows for heads, so that fewer of them share a head; a rank that has all rows of its heads
 * is alone, and makes the call of one process. */
#include "distributed/columns.h"
#include "distributed/exchange.h"
#include "distributed/gather.h"

#include "base/context.h"
#include "ranks/rank_messages.h"

#include <multihead/component.h>

#include <string.h>

/* How keys and values come to a rank's rows. */
typedef enum way {
    STREAMED, /* block after block */
    GATHERED, /* all of them, before */
    ALONE     /* they are here */
} way;

/* Everything that a call has, from its arguments on. */
typedef struct call {
    mha_context *context;
    mhai_slice_call whole;
    mhai_split split;
    mhai_slice *slices; /* [query_piece_count] */
    int64_t count;
    mhai_ring ring;
    way way;
    const char *reason;
    mhai_attn_fold *folds; /* [count] */
    mha_tensor k, v;       /* gathered */
    mhai_columns columns;
} call;

/* ---- planning -------------------------------------------------------------------------------- */

static mha_status plan_slice(const call *c, int64_t i, bool need_data, mhai_attn_plan *plan)
{
    mhai_attn_call made = mhai_slice_call_of(&c->slices[i]);
    mha_tensor k = *c->whole.k, v = *c->whole.v;
    /* Rows of keys and values are those of the whole: only their number counts here. */
    k.shape[2] = v.shape[2] = c->split.given.keys;
    k.stride[2] = v.stride[2] = 0;
    made.k = &k, made.v = &v;
    return mhai_attn_plan_call(c->context, &made, need_data, plan);
}

static void choose_mode(call *c, const mhai_attn_plan *plan)
{
    if (mhai_attn_folds(&plan->p, plan->backend)) return;
    c->way = GATHERED;
    c->reason = plan->backend->path == MHA_PATH_PLAIN
                    ? "the plain path takes rows one by one, so all keys are gathered first"
                : plan->p.compute != MHA_COMPUTE_F32
                    ? "bf16 arithmetic takes all keys at once, so they are gathered first"
                    : "outputs of the probabilities read the keys twice, so all are gathered first";
}

/* Every slice's plan, and how its keys come. To other ranks it is the same: what travels is. */
static mha_status plan_call(call *c, bool need_data)
{
    c->way = STREAMED;
    c->reason = "keys pass through, block after block in their order";
    if (c->split.t->size == 1) {
        c->way = ALONE;
        c->reason = "one rank has all rows";
        return MHA_OK;
    }
    for (int64_t i = 0; i < c->count; i++) {
        mhai_attn_plan plan;
        MHA_TRY(plan_slice(c, i, need_data, &plan));
        choose_mode(c, &plan);
    }
    return MHA_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static mha_status take_folds(call *c)
{
    void *memory;
    MHA_TRY(mha_scratch_alloc(c->context, c->count, sizeof *c->folds, &memory));
    c->folds = memory;
    for (int64_t i = 0; i < c->count; i++) {
        mhai_attn_plan plan;
        MHA_TRY(plan_slice(c, i, true, &plan));
        MHA_TRY(mhai_attn_fold_begin(c->context, &plan, &c->folds[i]));
    }
    return MHA_OK;
}

/* A slice's call with all keys. */
static mhai_attn_call gathered_call(call *c, int64_t i)
{
    mhai_attn_call made = mhai_slice_call_of(&c->slices[i]);
    c->slices[i].part.first_key = 0;
    c->slices[i].part.keys = c->split.given.keys;
    made.k = &c->k, made.v = &c->v;
    return made;
}

/* To be there when the call begins: others rely on what it sends. */
static mha_status reserve(call *c, size_t bytes)
{
    void *memory;
    const mha_scratch_mark mark = mha_scratch_top(c->context);
    MHA_TRY(mha_scratch_alloc(c->context, 1, bytes, &memory));
    mha_scratch_release(c->context, mark);
    return MHA_OK;
}

/* What the call of any slice takes. */
static mha_status reserve_gathered(call *c)
{
    size_t most = 0, bytes;
    for (int64_t i = 0; i < c->count; i++) {
        mhai_attn_plan plan;
        const mhai_attn_call made = gathered_call(c, i);
        MHA_TRY(mhai_attn_plan_call(c->context, &made, true, &plan));
        MHA_TRY(mhai_attn_scratch_bytes(&plan, &bytes));
        if (bytes > most) most = bytes;
    }
    return reserve(c, most);
}

/* The pieces of the only rank are all rows, in their order. */
static mhai_attn_call only_call(const call *c)
{
    const mhai_slice_call *w = &c->whole;
    return (mhai_attn_call){
        .desc = &w->desc, .q = w->q, .k = w->k, .v = w->v, .o = w->o, .outputs = &w->outputs};
}

static mha_status plan_only(const call *c, bool need_data, size_t *bytes, double *pairs)
{
    mhai_attn_plan plan;
    const mhai_attn_call only = only_call(c);
    MHA_TRY(mhai_attn_plan_call(c->context, &only, need_data, &plan));
    *pairs = (double)mhai_attn_visible_pairs(&plan.p);
    return mhai_attn_scratch_bytes(&plan, bytes);
}

static mha_status take_memory(call *c)
{
    size_t bytes;
    double pairs;
    if (c->way == ALONE) {
        MHA_TRY(plan_only(c, true, &bytes, &pairs));
        return reserve(c, bytes);
    }
    MHA_TRY(mhai_ring_take(c->context, &c->split, c->whole.k, c->whole.v, &c->ring));
    MHA_TRY(mhai_ring_take_slots(c->context, &c->ring));
    if (c->way == STREAMED) return take_folds(c);
    MHA_TRY(mhai_gather_take(c->context, &c->split, c->whole.k, &c->k));
    MHA_TRY(mhai_gather_take(c->context, &c->split, c->whole.v, &c->v));
    return reserve_gathered(c);
}

/* ---- the two ways ---------------------------------------------------------------------------- */

/* Each slice's rows take all keys at hand, in as many turns as there are parcels of them: between two turns
 * messages proceed. */
static mha_status stream(call *c)
{
    mhai_attn_keys keys[MHAI_RING_HELD];
    int64_t count;
    for (;;) {
        MHA_TRY(mhai_ring_next(&c->ring, MHAI_RING_HELD, keys, &count));
        if (count == 0) break;
        for (int64_t i = 0; i < c->count; i++)
            for (int64_t turn = 0; turn < count; turn++) {
                mhai_attn_fold_keys(c->context, &c->folds[i], keys, count, turn, count);
                MHA_TRY(mhai_ring_poll(&c->ring));
            }
    }
    for (int64_t i = 0; i < c->count; i++) mhai_attn_fold_finish(c->context, &c->folds[i]);
    return MHA_OK;
}

static mha_status gather(call *c)
{
    MHA_TRY(mhai_gather_keys(&c->ring, &c->k, &c->v));
    for (int64_t i = 0; i < c->count; i++) {
        const mhai_attn_call made = gathered_call(c, i);
        mhai_columns_next(&c->columns, &c->slices[i]);
        MHA_TRY(mhai_attn_forward(c->context, &made));
    }
    return MHA_OK;
}

static mha_status run(call *c)
{
    mha_status status;
    if (c->way == ALONE) {
        const mhai_attn_call only = only_call(c);
        return mhai_attn_forward(c->context, &only);
    }
    status = mhai_ring_begin(&c->ring);
    if (status == MHA_OK) status = c->way == STREAMED ? stream(c) : gather(c);
    if (status == MHA_OK) status = mhai_columns_finish(&c->columns);
    if (status != MHA_OK) {
        mhai_ring_abandon(&c->ring);
        mhai_columns_abandon(&c->columns);
    }
    return status;
}

/* ---- the call -------------------------------------------------------------------------------- */

/* Own checks, then everybody's; *c is ready to run, or to be explained. */
static mha_status begin(call *c, const mha_sequence_split *given, bool need_data)
{
    mhai_slice_common common;
    mha_status status = c->whole.status;
    if (status == MHA_OK) status = mhai_split_check(given, &c->split);
    c->whole.status = status;
    status = mhai_slice_check(&c->whole, &c->split, &common);
    MHA_TRY(mha_transport_same(given->transport, "description", &common, sizeof common, status));
    MHA_TRY(mhai_split_make(c->context, &c->whole.desc, common.batch, common.scores, &c->split));
    status = mhai_slice_make(c->context, &c->whole, &c->split, &c->slices, &c->count);
    if (status == MHA_OK)
        status = mhai_columns_make(c->context, &c->whole, &c->split, c->slices, c->count, need_data,
                                   &c->columns);
    if (status == MHA_OK) status = plan_call(c, need_data);
    return mha_transport_agree(given->transport, status);
}

/* If heads are exchanged, *own is the call of those of this rank. */
static mha_status begin_exchange(call *c, bool need_data, mhai_exchange *exchange, call *own)
{
    int64_t messages[2];
    double bytes[2];
    mhai_ring_count(&c->split, c->whole.k, c->whole.v, messages, bytes);
    MHA_TRY(mhai_exchange_choose(&c->whole, &c->split, bytes[1], exchange));
    if (exchange->parts == 1) return MHA_OK;
    mha_status status = mhai_exchange_make(c->context, need_data, exchange);
    MHA_TRY(mha_transport_agree(c->split.t, status));
    *own = (call){.context = c->context, .whole = exchange->call};
    status = begin(own, &exchange->split, need_data);
    if (status == MHA_ERR_RANK) return status; /* there is nobody to agree with */
    return mha_transport_agree(c->split.t, status);
}

mha_status mha_distributed_forward(mha_context *context, const mha_sequence_split *split,
                                   const mha_attention_desc *desc, const mha_tensor *q,
                                   const mha_tensor *k, const mha_tensor *v, const mha_tensor *o,
                                   const mha_attention_outputs *outputs)
{
    call all = {.context = context}, own;
    mhai_exchange exchange;
    MHA_TRY(mhai_slice_arguments("mha_distributed_forward", context, split));
    const mha_scratch_mark mark = mha_scratch_top(context);
    all.whole.status =
        mhai_slice_take("mha_distributed_forward", desc, q, k, v, o, outputs, &all.whole);
    mha_status status = begin(&all, split, true);
    if (status == MHA_OK) status = begin_exchange(&all, true, &exchange, &own);
    if (status == MHA_OK) {
        const bool exchanged = exchange.parts > 1;
        status = mha_transport_agree(split->transport, take_memory(exchanged ? &own : &all));
        if (status == MHA_OK && exchanged) status = mhai_exchange_rows(&exchange);
        if (status == MHA_OK) status = run(exchanged ? &own : &all);
        if (status == MHA_OK && exchanged) status = mhai_exchange_return(&exchange);
    }
    mha_scratch_release(context, mark);
    return status;
}

static mha_status count_scratch(const call *c, size_t *bytes)
{
    size_t more;
    MHA_TRY(mhai_ring_bytes(&c->split, c->whole.k, c->whole.v, bytes));
    if (c->way == STREAMED) {
        for (int64_t i = 0; i < c->count; i++) {
            mhai_attn_plan plan;
            MHA_TRY(plan_slice(c, i, false, &plan));
            MHA_TRY(mhai_attn_fold_bytes(&plan, &more));
            MHA_TRY(mhai_attn_add_scratch(bytes, more, 1));
            MHA_TRY(mhai_attn_add_scratch(bytes, plan.scratch.worker, plan.threads));
        }
        return MHA_OK;
    }
    size_t most = 0;
    for (int64_t i = 0; i < c->count; i++) {
        mhai_attn_plan plan;
        MHA_TRY(plan_slice(c, i, false, &plan));
        MHA_TRY(mhai_attn_scratch_bytes(&plan, &more));
        if (more > most) most = more;
    }
    MHA_TRY(mhai_attn_add_scratch(bytes, most, 1));
    const mha_tensor *all[] = {c->whole.k, c->whole.v};
    for (int i = 0; i < 2; i++) {
        const double each = (double)all[i]->shape[0] * (double)all[i]->shape[1] *
                            (double)c->split.given.keys * (double)all[i]->shape[3] *
                            (double)mha_dtype_size(all[i]->dtype);
        if (each > (double)(SIZE_MAX / 4))
            return mha_fail(MHA_ERR_SIZE, "k, v: all keys together are beyond the address space");
        MHA_TRY(mhai_attn_add_scratch(bytes, (size_t)each, 1));
    }
    return MHA_OK;
}

/* What a call does once heads have been exchanged, if they are. */
static mha_status explain(const call *c, mha_distributed_plan *plan)
{
    *plan = (mha_distributed_plan){.streamed = c->way == STREAMED, .reason = c->reason};
    if (c->way == ALONE) return plan_only(c, false, &plan->scratch_bytes, &plan->pairs);
    int64_t messages[2];
    double bytes[2];
    mhai_ring_count(&c->split, c->whole.k, c->whole.v, messages, bytes);
    mhai_columns_count(&c->columns, messages, bytes);
    plan->parcels = c->split.parcel_count;
    plan->messages_sent = messages[0], plan->messages_received = messages[1];
    plan->bytes_sent = bytes[0], plan->bytes_received = bytes[1];
    for (int64_t i = 0; i < c->count; i++) {
        mhai_attn_plan of_slice;
        MHA_TRY(plan_slice(c, i, false, &of_slice));
        plan->pairs += (double)mhai_attn_visible_pairs(&of_slice.p);
    }
    MHA_TRY(count_scratch(c, &plan->scratch_bytes));
    return mhai_columns_bytes(&c->columns, &plan->scratch_bytes);
}

static mha_status explain_exchange(const mhai_exchange *e, const call *own,
                                   mha_distributed_plan *plan)
{
    plan->head_parts = e->parts;
    if (e->parts == 1) return MHA_OK;
    plan->reason = own->way == ALONE
                       ? "heads are exchanged for rows: each rank has some heads, and all rows"
                       : "heads are exchanged for rows, and their keys pass through";
    plan->messages_sent += e->messages[0], plan->messages_received += e->messages[1];
    plan->bytes_sent += e->bytes[0], plan->bytes_received += e->bytes[1];
    return mhai_exchange_bytes(e, &plan->scratch_bytes);
}

mha_status mha_distributed_explain(mha_context *context, const mha_sequence_split *split,
                                   const mha_attention_desc *desc, const mha_tensor *q,
                                   const mha_tensor *k, const mha_tensor *v,
                                   const mha_attention_outputs *outputs, mha_distributed_plan *plan)
{
    call all = {.context = context}, own;
    mhai_exchange exchange;
    mha_distributed_plan made;
    MHA_TRY(mhai_slice_arguments("mha_distributed_explain", context, split));
    const mha_scratch_mark mark = mha_scratch_top(context);
    all.whole.status =
        mhai_slice_take("mha_distributed_explain", desc, q, k, v, NULL, outputs, &all.whole);
    if (all.whole.status == MHA_OK && !plan)
        all.whole.status = mha_fail(MHA_ERR_NULL, "mha_distributed_explain: plan is NULL");
    mha_status status = begin(&all, split, false);
    if (status == MHA_OK) status = begin_exchange(&all, false, &exchange, &own);
    if (status == MHA_OK) status = explain(exchange.parts > 1 ? &own : &all, &made);
    if (status == MHA_OK) status = explain_exchange(&exchange, &own, &made);
    if (status == MHA_OK) *plan = made;
    mha_scratch_release(context, mark);
    return status;
}
