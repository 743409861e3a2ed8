/* mha_distributed_backward(): the rows of each rank stay where they are; blocks of keys pass them (relay.h)
 * and take the sums of their gradients along. Then the sums of parameters do (parameters.h). What is over
 * pairs, the bias and gradients of probabilities, has walks of its own, with all keys at every rank. */
#include "distributed/bias.h"
#include "distributed/gather.h"
#include "distributed/parameters.h"
#include "distributed/realign.h"
#include "distributed/relay.h"

#include "base/checked.h"
#include "base/context.h"
#include "base/struct_copy.h"
#include "base/tensor.h"
#include "ranks/rank_messages.h"

#include <multihead/component.h>

#include <stddef.h>
#include <string.h>

typedef struct back_call {
    mha_context *context;
    mhai_slice_call whole;
    mhai_slice_common common;
    const mha_tensor *lse, *o_gradient;
    mha_attention_gradients gradients;
    mhai_split split;
    mhai_over_queries over; /* what the caller gave of each row */
    mhai_realign realign;
    mhai_ring ring;
    mhai_relay relay;
    mhai_backward_fold *folds; /* of what this rank computes */
    int64_t fold_count;
    mhai_backward_problem problem; /* of none of the queries: keys and parameters, at any rank */
    mhai_cells_job writing;        /* of it */
    mhai_parameters parameters;
    bool gathers;    /* all keys and values: */
    mha_tensor k, v; /* these */
    bool bias_by_row;
    mhai_bias bias; /* if it is not by row */
} back_call;

/* ---- checks ---------------------------------------------------------------------------------- */

/* A gradient over keys, which the checks of slices do not see. */
static mha_status check_keys(const char *name, const mha_tensor *given, const mha_tensor *like)
{
    if (!given) return MHA_OK;
    MHA_TRY(mhai_tensor_check(name, given, MHA_F32, 4, like->shape));
    MHA_TRY(mhai_tensor_check_last(name, given));
    return mhai_tensor_check_output(name, given);
}

static mha_status check_given(back_call *c, const mha_attention_gradients *gradients)
{
    if (!c->whole.o || !c->lse || !c->o_gradient || !gradients)
        return mha_fail(MHA_ERR_NULL, "mha_distributed_backward: %s is NULL",
                        !c->whole.o      ? "o"
                        : !c->lse        ? "lse"
                        : !c->o_gradient ? "o_gradient"
                                         : "gradients");
    MHA_TRY(mhai_struct_copy("mha_attention_gradients", &c->gradients, sizeof c->gradients,
                             offsetof(mha_attention_gradients, lse_gradient), gradients));
    MHA_TRY(check_keys("gradients.k", c->gradients.k, c->whole.k));
    return check_keys("gradients.v", c->gradients.v, c->whole.v);
}

/* ---- the bias -------------------------------------------------------------------------------- */

/* Its axis of [B,H,T,S]. */
static int64_t bias_axis(const mha_tensor *bias, int axis)
{
    const int at = bias ? bias->ndim - 4 + axis : -1;
    return at >= 0 && at < MHA_MAX_DIMS ? bias->shape[at] : 1;
}

/* Whether the bias has a row for each query: where a rank has one row, this looks like one for all. */
static mha_status agree_on_bias(back_call *c)
{
    const int64_t rows = bias_axis(c->whole.desc.bias, 2);
    int64_t by_row = rows != 1;
    if (!c->gradients.bias) return MHA_OK;
    MHA_TRY(mhai_ranks_most(c->split.t, &by_row, 1));
    c->bias_by_row = by_row;
    return MHA_OK;
}

/* Its gradient is wanted, and it is one for all queries: chunks that are joined have it as it is. */
static bool is_shared(const back_call *c)
{
    return c->gradients.bias && !c->bias_by_row;
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static mhai_over_queries over_queries(const back_call *c)
{
    const mha_attention_desc *d = &c->whole.desc;
    return (mhai_over_queries){{[MHAI_OVER_Q] = c->whole.q,
                                [MHAI_OVER_O] = c->whole.o,
                                [MHAI_OVER_LSE] = c->lse,
                                [MHAI_OVER_O_GRADIENT] = c->o_gradient,
                                [MHAI_OVER_LSE_GRADIENT] = c->gradients.lse_gradient,
                                [MHAI_OVER_PROBABILITIES] = c->gradients.probabilities_gradient,
                                [MHAI_OVER_AVERAGE] = c->gradients.average_probabilities_gradient,
                                [MHAI_OVER_DQ] = c->gradients.q,
                                [MHAI_OVER_DBIAS] = c->bias_by_row ? c->gradients.bias : NULL,
                                [MHAI_OVER_KEEP_MASK] = d->keep_mask,
                                [MHAI_OVER_BIAS] = is_shared(c) ? NULL : d->bias,
                                [MHAI_OVER_GLOBAL_QUERIES] = d->global_queries,
                                [MHAI_OVER_QUERY_DOCUMENTS] = d->query_documents}};
}

static mhai_slice_call call_over(const back_call *c, const mhai_over_queries *over)
{
    mhai_slice_call call = c->whole;
    call.q = over->each[MHAI_OVER_Q];
    call.o = over->each[MHAI_OVER_O];
    call.desc.keep_mask = over->each[MHAI_OVER_KEEP_MASK];
    if (!is_shared(c)) call.desc.bias = over->each[MHAI_OVER_BIAS];
    call.desc.global_queries = over->each[MHAI_OVER_GLOBAL_QUERIES];
    call.desc.query_documents = over->each[MHAI_OVER_QUERY_DOCUMENTS];
    return call;
}

/* Check and plan a piece, whose first row is row `first` of all those of over. */
static mha_status plan_piece(const back_call *c, const mhai_over_queries *over, int64_t all,
                             const mha_piece *piece, int64_t first, mhai_slice *s,
                             mhai_backward_plan *plan)
{
    enum { CUT = 6 };
    static const struct {
        const char *name;
        int over, axis;
    } cuts[CUT] = {{"lse", MHAI_OVER_LSE, 2},
                   {"o_gradient", MHAI_OVER_O_GRADIENT, 2},
                   {"lse_gradient", MHAI_OVER_LSE_GRADIENT, 2},
                   {"probabilities_gradient", MHAI_OVER_PROBABILITIES, 2},
                   {"average_probabilities_gradient", MHAI_OVER_AVERAGE, 1},
                   {"gradients.q", MHAI_OVER_DQ, 2}};
    const mhai_slice_call call = call_over(c, over);
    const int64_t rows = piece->end - piece->begin;
    mha_attention_gradients gradients = c->gradients;
    mha_tensor cut[CUT], bias, k = *c->whole.k, v = *c->whole.v;
    const mha_tensor *at[CUT] = {NULL};
    MHA_TRY(mhai_slice_piece(c->context, &call, &c->split, all, piece, first, s));
    for (int i = 0; i < CUT; i++) {
        const mha_tensor *x = over->each[cuts[i].over];
        if (!x) continue;
        MHA_TRY(mhai_slice_cut(cuts[i].name, x, cuts[i].axis, all, first, rows, &cut[i]));
        at[i] = &cut[i];
    }
    gradients.lse_gradient = at[2];
    gradients.probabilities_gradient = at[3];
    gradients.average_probabilities_gradient = at[4];
    gradients.q = at[5];
    gradients.k = gradients.v = NULL;
    if (over->each[MHAI_OVER_DBIAS]) {
        gradients.bias = over->each[MHAI_OVER_DBIAS];
        MHA_TRY(
            mhai_slice_cut_input("gradients.bias", &gradients.bias, 1, all, first, rows, &bias));
    }
    k.shape[2] = v.shape[2] = c->split.given.keys;
    k.stride[2] = v.stride[2] = 0;
    const mha_attention_backward_call planned = {.attention = &s->desc,
                                                 .q = &s->q,
                                                 .k = &k,
                                                 .v = &v,
                                                 .o = &s->o,
                                                 .lse = &cut[0],
                                                 .o_gradient = &cut[1],
                                                 .gradients = &gradients};
    *plan = (mhai_backward_plan){.threads = 0};
    MHA_TRY(mhai_backward_plan_call(c->context, &planned, &s->part, true, plan));
    if (mhai_backward_folds(plan)) return MHA_OK;
    return mha_fail(MHA_ERR_UNSUPPORTED,
                    "mha_distributed_backward: the plain path (head sizes above "
                    "256) is not over ranks");
}

/* Gradients against what the pieces' plans do not see: keys, values, each other, and rows of other
 * pieces. */
static mha_status check_apart(const back_call *c)
{
    const mha_attention_gradients *g = &c->gradients;
    const mhai_attn_named gradients[] = {{"gradients.q", g->q},
                                         {"gradients.k", g->k},
                                         {"gradients.v", g->v},
                                         {"gradients.bias", g->bias},
                                         {"gradients.alibi_slopes", g->alibi_slopes},
                                         {"gradients.t5_table", g->t5_table},
                                         {"gradients.shaw_keys", g->shaw_keys},
                                         {"gradients.shaw_values", g->shaw_values},
                                         {"gradients.sink_logits", g->sink_logits},
                                         {"gradients.gates", g->gates},
                                         {"gradients.scale", g->scale}};
    const mhai_attn_named inputs[] = {
        {"q", c->whole.q},
        {"k", c->whole.k},
        {"v", c->whole.v},
        {"o", c->whole.o},
        {"lse", c->lse},
        {"o_gradient", c->o_gradient},
        {"lse_gradient", g->lse_gradient},
        {"probabilities_gradient", g->probabilities_gradient},
        {"average_probabilities_gradient", g->average_probabilities_gradient}};
    for (size_t i = 0; i < sizeof gradients / sizeof *gradients; i++) {
        const mhai_attn_named *x = &gradients[i];
        if (!x->tensor) continue;
        MHA_TRY(mhai_attn_check_apart(&c->whole.desc, x->name, x->tensor));
        for (size_t j = 0; j < sizeof inputs / sizeof *inputs; j++)
            if (inputs[j].tensor)
                MHA_TRY(mhai_tensor_check_disjoint(x->name, x->tensor, inputs[j].name,
                                                   inputs[j].tensor));
        for (size_t j = 0; j < i; j++)
            if (gradients[j].tensor)
                MHA_TRY(mhai_tensor_check_disjoint(x->name, x->tensor, gradients[j].name,
                                                   gradients[j].tensor));
    }
    return MHA_OK;
}

/* All pieces; and none of the rows, which is what ranks without any have: keys and parameters. */
static mha_status check_pieces(back_call *c)
{
    const mha_piece none = {0, 0};
    const int64_t rows = bias_axis(c->whole.desc.bias, 2);
    mhai_backward_plan plan;
    mhai_slice s;
    int64_t first = 0;
    if (c->bias_by_row && rows == 1 && c->split.rows > 1)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "bias: is one for all queries here and has a row for each of "
                        "them at another rank; its gradient needs either at all ranks");
    for (int64_t i = 0; i < c->split.given.query_piece_count; i++) {
        const mha_piece *piece = &c->split.given.query_pieces[i];
        MHA_TRY(plan_piece(c, &c->over, c->split.rows, piece, first, &s, &plan));
        first += piece->end - piece->begin;
    }
    MHA_TRY(plan_piece(c, &c->over, c->split.rows, &none, 0, &s, &plan));
    c->problem = plan.x;
    c->problem.p.part = NULL; /* it goes with the slice */
    return check_apart(c);
}

/* Of what this rank computes: pieces of its rows, and chunks that were joined. */
static mha_status take_folds(back_call *c)
{
    const mhai_split *s = &c->split;
    int64_t joined = 0;
    void *memory;
    MHA_TRY(mha_scratch_alloc(c->context, s->query_count, sizeof *c->folds, &memory));
    c->folds = memory;
    for (int64_t i = 0; i < s->query_count; i++) {
        const mhai_owned *p = &s->queries[i];
        const mha_piece piece = {p->begin, p->end};
        mhai_backward_plan plan;
        mhai_slice slice;
        if (p->rank != s->t->rank) continue;
        MHA_TRY(p->local < 0 ? plan_piece(c, &c->realign.joined[joined++].over, p->end - p->begin,
                                          &piece, 0, &slice, &plan)
                             : plan_piece(c, &c->over, s->rows, &piece, p->local, &slice, &plan));
        MHA_TRY(mhai_backward_fold_begin(c->context, &plan, c->gradients.k || c->gradients.v,
                                         &c->folds[c->fold_count++]));
    }
    return MHA_OK;
}

/* ---- results --------------------------------------------------------------------------------- */

static void come_home(void *user, const mhai_relay_block *block, int64_t local, int64_t rows,
                      const float *dk, const float *dv)
{
    back_call *c = user;
    const int64_t batch = c->whole.desc.key_starts ? 0 : block->b;
    if (c->gradients.k)
        mhai_cells_write_rows(&c->writing, c->gradients.k, batch, block->hk, local, rows, dk,
                              c->problem.p.scale);
    if (c->gradients.v)
        mhai_cells_write_rows(&c->writing, c->gradients.v, batch, block->hk, local, rows, dv, 1);
}

/* ---- the call -------------------------------------------------------------------------------- */

static void fill_common(back_call *c)
{
    const mha_attention_desc *d = &c->whole.desc;
    const mha_attention_gradients *g = &c->gradients;
    const mha_tensor *bias = d->bias;
    const mha_tensor *wanted[] = {g->q,
                                  g->k,
                                  g->v,
                                  g->lse_gradient,
                                  g->sink_logits,
                                  g->gates,
                                  g->scale,
                                  g->alibi_slopes,
                                  g->t5_table,
                                  g->shaw_values,
                                  g->shaw_keys,
                                  g->bias,
                                  g->probabilities_gradient,
                                  g->average_probabilities_gradient};
    const mha_tensor *tables[] = {d->t5_table, d->shaw_values, d->shaw_keys};
    c->common.gradients = (int32_t)(g->flags & 3); /* others are refused */
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        c->common.gradients = c->common.gradients << 1 | (wanted[i] != NULL);
    for (int i = 0; i < 3; i++)
        if (tables[i]) c->common.table_rows[i] = tables[i]->shape[0];
    for (int i = 0; i < 3 && g->bias; i++) c->common.bias_axes[i] = bias_axis(bias, i < 2 ? i : 3);
    c->gathers = g->bias || g->probabilities_gradient || g->average_probabilities_gradient;
    c->common.q_types = (int32_t)c->whole.q->dtype | (int32_t)c->whole.o->dtype << 8 |
                        (int32_t)c->o_gradient->dtype << 16 |
                        (bias ? (int32_t)bias->dtype << 24 : 0);
}

/* Pieces of whole chunks, of which this rank has all rows. */
static mha_status align(back_call *c, mha_status status)
{
    const bool accumulate = c->gradients.flags & MHA_GRADIENTS_ACCUMULATE;
    MHA_TRY(mhai_realign_make(c->context, &c->whole.desc, &c->over, accumulate, status, &c->split,
                              &c->realign));
    return mhai_realign_join(&c->realign);
}

/* Sums of the parameters, and gradients of keys, at ranks with queries or without. */
static mha_status take_whole(back_call *c)
{
    mhai_parameters *p = &c->parameters;
    *p = (mhai_parameters){
        .s = &c->split, .desc = &c->whole.desc, .folds = c->folds, .x = &c->problem};
    c->writing = mhai_cells_job_of(c->context, &c->problem);
    MHA_TRY(mhai_backward_take_sums(c->context, &c->problem, &p->sums, &p->count));
    MHA_TRY(mhai_ring_take(c->context, &c->split, c->whole.k, c->whole.v, &c->ring));
    if (!c->gathers) return MHA_OK;
    MHA_TRY(mhai_ring_take_slots(c->context, &c->ring));
    MHA_TRY(mhai_gather_take(c->context, &c->split, c->whole.k, &c->k));
    MHA_TRY(mhai_gather_take(c->context, &c->split, c->whole.v, &c->v));
    if (!is_shared(c)) return MHA_OK;
    c->bias = (mhai_bias){.context = c->context,
                          .s = &c->split,
                          .desc = &c->whole.desc,
                          .job = &c->writing,
                          .folds = c->folds,
                          .k = &c->k,
                          .v = &c->v};
    return mhai_bias_take(&c->bias);
}

static mha_status begin(back_call *c, const mha_sequence_split *given,
                        const mha_attention_gradients *gradients)
{
    const mha_transport *t = given->transport;
    if (c->whole.status == MHA_OK) c->whole.status = mhai_split_check(given, &c->split);
    mha_status status = mhai_slice_check(&c->whole, &c->split, &c->common);
    if (status == MHA_OK) status = check_given(c, gradients);
    if (status == MHA_OK) fill_common(c);
    MHA_TRY(mha_transport_same(t, "description", &c->common, sizeof c->common, status));
    MHA_TRY(mhai_split_make(c->context, &c->whole.desc, c->common.batch, c->gathers, &c->split));
    MHA_TRY(agree_on_bias(c));
    c->over = over_queries(c);
    status = check_pieces(c);
    if (mhai_realign_needed(&c->whole.desc, &c->split)) MHA_TRY(align(c, status));
    if (status == MHA_OK) status = take_folds(c);
    if (status == MHA_OK) status = take_whole(c);
    if (status == MHA_OK)
        status = mhai_relay_make(c->context, &c->split, &c->common, &c->whole.desc, &c->relay);
    return mha_transport_agree(t, status);
}

/* Past all queries, all keys: with what must be there before, and what comes of it. */
static mha_status pass_keys(back_call *c)
{
    MHA_TRY(mhai_ring_begin(&c->ring));
    if (c->gathers) MHA_TRY(mhai_gather_keys(&c->ring, &c->k, &c->v));
    for (int64_t i = 0; mhai_backward_has_weights(&c->problem) && i < c->fold_count; i++)
        mhai_backward_fold_weights(c->context, &c->folds[i], &c->k, &c->v);
    return mhai_relay_run(&c->relay);
}

static mha_status run_bias(back_call *c)
{
    if (is_shared(c)) return mhai_bias_run(&c->bias);
    for (int64_t i = 0; c->bias_by_row && i < c->fold_count; i++)
        mhai_backward_fold_bias(c->context, &c->folds[i], &c->k, &c->v);
    return MHA_OK;
}

static mha_status run(back_call *c)
{
    c->relay.ring = &c->ring;
    c->relay.folds = c->folds;
    c->relay.home = come_home;
    c->relay.user = c;
    const mha_status status = pass_keys(c);
    if (status != MHA_OK) {
        mhai_ring_abandon(&c->ring);
        return status;
    }
    for (int64_t i = 0; i < c->fold_count; i++) mhai_backward_fold_finish(c->context, &c->folds[i]);
    MHA_TRY(mhai_parameters_sum(&c->parameters));
    mhai_backward_write_parameters(&c->problem);
    MHA_TRY(run_bias(c));
    return mhai_realign_return(&c->realign);
}

mha_status mha_distributed_backward(mha_context *context, const mha_sequence_split *split,
                                    const mha_attention_backward_call *call)
{
    static const char name[] = "mha_distributed_backward";
    mha_attention_backward_call a = {.struct_size = 0};
    MHA_TRY(mhai_slice_arguments(name, context, split));
    mha_status status = mhai_backward_copy_call(name, call, &a);
    back_call c = {.context = context, .lse = a.lse, .o_gradient = a.o_gradient};
    const mha_scratch_mark mark = mha_scratch_top(context);
    c.whole.status =
        status ? status : mhai_slice_take(name, a.attention, a.q, a.k, a.v, a.o, NULL, &c.whole);
    status = begin(&c, split, a.gradients);
    if (status == MHA_OK) status = run(&c);
    mha_scratch_release(context, mark);
    return status;
}
