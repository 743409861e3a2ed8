/* mha_distributed_backward(): the rows of each rank stay where they are; blocks of keys pass them (relay.h)
 * and take the sums of their gradients along. */
#include "distributed/relay.h"

#include "base/checked.h"
#include "base/context.h"
#include "base/struct_copy.h"
#include "base/tensor.h"

#include <multihead/component.h>

#include <stddef.h>
#include <string.h>

/* A piece of this rank's queries, with what the backward has besides. */
typedef struct back_slice {
    mha_tensor lse, o_gradient, lse_gradient, dq;
    mha_attention_gradients gradients;
} back_slice;

typedef struct back_call {
    mha_context *context;
    mhai_slice_call whole;
    mhai_slice_common common;
    const mha_tensor *lse, *o_gradient;
    mha_attention_gradients gradients;
    mhai_split split;
    mhai_slice *slices;
    back_slice *more;
    int64_t count;
    mhai_ring ring;
    mhai_relay relay;
    mhai_backward_fold *folds; /* of the slices with rows */
    int64_t fold_count;
    mhai_cells_job writing; /* of gradients of keys: a rank may have no queries */
    mhai_backward_problem problem;
} back_call;

/* ---- checks ---------------------------------------------------------------------------------- */

static mha_status check_gradients(const mha_attention_gradients *g)
{
    const struct {
        const char *name;
        const mha_tensor *given;
    } none[] = {{"bias", g->bias},
                {"alibi_slopes", g->alibi_slopes},
                {"t5_table", g->t5_table},
                {"shaw_keys", g->shaw_keys},
                {"shaw_values", g->shaw_values},
                {"sink_logits", g->sink_logits},
                {"gates", g->gates},
                {"scale", g->scale},
                {"probabilities_gradient", g->probabilities_gradient},
                {"average_probabilities_gradient", g->average_probabilities_gradient}};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        if (none[i].given)
            return mha_fail(MHA_ERR_UNSUPPORTED,
                            "gradients.%s: not over ranks, which have gradients of q, k and v",
                            none[i].name);
    if (g->flags & ~(uint32_t)MHA_GRADIENTS_ACCUMULATE)
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_attention_gradients: flags 0x%x: not over ranks",
                        (unsigned)g->flags);
    return MHA_OK;
}

/* A gradient over keys, which the checks of slices do not see. */
static mha_status check_keys(const back_call *c, const char *name, const mha_tensor *given,
                             const mha_tensor *like)
{
    const mha_tensor *inputs[] = {c->whole.q, c->whole.k, c->whole.v,
                                  c->whole.o, c->lse,     c->o_gradient};
    static const char *const names[] = {"q", "k", "v", "o", "lse", "o_gradient"};
    if (!given) return MHA_OK;
    MHA_TRY(mhai_tensor_check(name, given, MHA_F32, 4, like->shape));
    MHA_TRY(mhai_tensor_check_last(name, given));
    MHA_TRY(mhai_tensor_check_output(name, given));
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        MHA_TRY(mhai_tensor_check_disjoint(name, given, names[i], inputs[i]));
    return MHA_OK;
}

_Static_assert((int)MHA_SPLIT_ROWS == (int)MHAI_CELL_QUERIES, "sums of a chunk are one chain");

/* No chunk of a sequence's queries lies at two ranks. */
static mha_status check_cut(const back_call *c, int64_t row)
{
    const mha_attention_desc *d = &c->whole.desc;
    int64_t start = 0, end = c->split.given.queries;
    for (int64_t b = 0; d->query_starts && b < d->sequences; b++)
        if (d->query_starts[b] <= row) start = d->query_starts[b], end = d->query_starts[b + 1];
    if (row >= end || (row - start) % MHAI_CELL_QUERIES == 0) return MHA_OK;
    return mha_fail(MHA_ERR_ARGUMENT,
                    "mha_distributed_backward: query_pieces are cut at row %lld, %lld rows after a "
                    "sequence's first; expected a multiple of %d (mha_split_pieces() cuts so)",
                    (long long)row, (long long)(row - start), (int)MHAI_CELL_QUERIES);
}

static mha_status check_cuts(const back_call *c)
{
    for (int64_t i = 0; i < c->split.given.query_piece_count; i++) {
        const mha_piece *piece = &c->split.given.query_pieces[i];
        if (piece->begin == piece->end) continue;
        MHA_TRY(check_cut(c, piece->begin));
        MHA_TRY(check_cut(c, piece->end));
    }
    return MHA_OK;
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
    MHA_TRY(check_gradients(&c->gradients));
    MHA_TRY(check_cuts(c));
    MHA_TRY(check_keys(c, "gradients.k", c->gradients.k, c->whole.k));
    return check_keys(c, "gradients.v", c->gradients.v, c->whole.v);
}

/* ---- slices ---------------------------------------------------------------------------------- */

static mha_status make_more(back_call *c)
{
    const int64_t all = c->split.rows;
    int64_t first = 0;
    void *memory;
    MHA_TRY(mha_scratch_alloc(c->context, c->count, sizeof *c->more, &memory));
    c->more = memory;
    for (int64_t i = 0; i < c->count; i++) {
        const mha_piece *piece = &c->split.given.query_pieces[i];
        const int64_t rows = piece->end - piece->begin;
        back_slice *s = &c->more[i];
        *s = (back_slice){
            .gradients = {.struct_size = sizeof s->gradients, .flags = c->gradients.flags}};
        MHA_TRY(mhai_slice_cut("lse", c->lse, 2, all, first, rows, &s->lse));
        MHA_TRY(mhai_slice_cut("o_gradient", c->o_gradient, 2, all, first, rows, &s->o_gradient));
        if (c->gradients.lse_gradient) {
            MHA_TRY(mhai_slice_cut("lse_gradient", c->gradients.lse_gradient, 2, all, first, rows,
                                   &s->lse_gradient));
            s->gradients.lse_gradient = &s->lse_gradient;
        }
        if (c->gradients.q) {
            MHA_TRY(mhai_tensor_check_disjoint("gradients.q", c->gradients.q, "k", c->whole.k));
            MHA_TRY(mhai_tensor_check_disjoint("gradients.q", c->gradients.q, "v", c->whole.v));
            MHA_TRY(mhai_slice_cut("gradients.q", c->gradients.q, 2, all, first, rows, &s->dq));
            s->gradients.q = &s->dq;
        }
        first += rows;
    }
    return MHA_OK;
}

static mha_status plan_slice(back_call *c, int64_t i, mhai_backward_plan *plan)
{
    mhai_slice *s = &c->slices[i];
    back_slice *m = &c->more[i];
    mha_tensor k = *c->whole.k, v = *c->whole.v;
    k.shape[2] = v.shape[2] = c->split.given.keys;
    k.stride[2] = v.stride[2] = 0;
    const mhai_backward_call call = {&s->desc,       &s->q,         &k,      &v, &s->o, &m->lse,
                                     &m->o_gradient, &m->gradients, &s->part};
    *plan = (mhai_backward_plan){.threads = 0};
    MHA_TRY(mhai_backward_plan_call(c->context, &call, true, plan));
    if (mhai_backward_folds(plan)) return MHA_OK;
    return mha_fail(MHA_ERR_UNSUPPORTED,
                    plan->backend->path == MHA_PATH_PLAIN
                        ? "mha_distributed_backward: the plain path (head sizes above 256) is not "
                          "over ranks"
                        : "mha_distributed_backward: with shaw_keys there are no gradients over "
                          "ranks");
}

static mha_status take_folds(back_call *c)
{
    const bool keys = c->gradients.k || c->gradients.v;
    void *memory;
    MHA_TRY(mha_scratch_alloc(c->context, c->count, sizeof *c->folds, &memory));
    c->folds = memory;
    for (int64_t i = 0; i < c->count; i++) {
        mhai_backward_plan plan;
        MHA_TRY(plan_slice(c, i, &plan));
        if (c->slices[i].q.shape[2] == 0) continue;
        MHA_TRY(mhai_backward_fold_begin(c->context, &plan, keys, &c->folds[c->fold_count++]));
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

/* What writing needs, at a rank that may have no queries. */
static void prepare_writing(back_call *c)
{
    const float given = c->whole.desc.scale;
    const bool chosen = given == 0 && !(c->whole.desc.flags & MHA_ATTENTION_SCALE_GIVEN);
    c->problem.accumulate = c->gradients.flags & MHA_GRADIENTS_ACCUMULATE;
    c->problem.p.scale = chosen ? mhai_attn_default_scale(c->common.head_dim) : given;
    c->writing = (mhai_cells_job){
        .x = &c->problem, .p = &c->problem.p, .kernels = mhai_kernels_for(c->context->isa)};
}

/* ---- the call -------------------------------------------------------------------------------- */

static mha_status begin(back_call *c, const mha_sequence_split *given,
                        const mha_attention_gradients *gradients)
{
    const mha_transport *t = given->transport;
    if (c->whole.status == MHA_OK) c->whole.status = mhai_split_check(given, &c->split);
    mha_status status = mhai_slice_check(&c->whole, &c->split, &c->common);
    if (status == MHA_OK) status = check_given(c, gradients);
    c->common.gradients =
        (c->gradients.q != NULL) | (c->gradients.k != NULL) << 1 | (c->gradients.v != NULL) << 2;
    MHA_TRY(mha_transport_same(t, "description", &c->common, sizeof c->common, status));
    MHA_TRY(mhai_split_make(c->context, &c->whole.desc, c->common.batch, false, &c->split));
    status = mhai_slice_make(c->context, &c->whole, &c->split, &c->slices, &c->count);
    if (status == MHA_OK) status = make_more(c);
    if (status == MHA_OK) status = take_folds(c);
    if (status == MHA_OK)
        status = mhai_ring_take(c->context, &c->split, c->whole.k, c->whole.v, &c->ring);
    if (status == MHA_OK)
        status = mhai_relay_make(c->context, &c->split, &c->common, &c->whole.desc, &c->relay);
    return mha_transport_agree(t, status);
}

static mha_status run(back_call *c)
{
    prepare_writing(c);
    c->relay.ring = &c->ring;
    c->relay.folds = c->folds;
    c->relay.home = come_home;
    c->relay.user = c;
    mha_status status = mhai_ring_begin(&c->ring);
    if (status == MHA_OK) status = mhai_relay_run(&c->relay);
    if (status != MHA_OK) {
        mhai_ring_abandon(&c->ring);
        return status;
    }
    for (int64_t i = 0; i < c->fold_count; i++) mhai_backward_fold_finish(&c->folds[i]);
    return MHA_OK;
}

mha_status mha_distributed_backward(mha_context *context, const mha_sequence_split *split,
                                    const mha_attention_desc *desc, const mha_tensor *q,
                                    const mha_tensor *k, const mha_tensor *v, const mha_tensor *o,
                                    const mha_tensor *lse, const mha_tensor *o_gradient,
                                    const mha_attention_gradients *gradients)
{
    static const char name[] = "mha_distributed_backward";
    back_call c = {.context = context, .lse = lse, .o_gradient = o_gradient};
    MHA_TRY(mhai_slice_arguments(name, context, split));
    const mha_scratch_mark mark = mha_scratch_top(context);
    c.whole.status = mhai_slice_take(name, desc, q, k, v, o, NULL, &c.whole);
    mha_status status = begin(&c, split, gradients);
    if (status == MHA_OK) status = run(&c);
    mha_scratch_release(context, mark);
    return status;
}
