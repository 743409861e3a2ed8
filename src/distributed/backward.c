/* mha_distributed_backward(). First, a rank processes the queries of its group and the heads of its
 * part (exchange.h), which gives their dq. Second, it processes its share of the key blocks, one
 * query head of each key/value head at a time. Both passes run the same code as a single process
 * (attn_backward_share.h). A rank that shares its keys with no other rank makes the same call as a
 * single process. Finally, sums over all queries are passed from piece to piece (sums.h). */
#include "distributed/sums.h"

#include "base/checked.h"
#include "base/context.h"
#include "base/need.h"
#include "base/tensor.h"
#include "ranks/rank_messages.h"

#include <multihead/component.h>

#include <stddef.h>
#include <string.h>

/* One side of a call: the caller's arguments, or the problem that this rank computes. */
typedef struct side {
    mhai_slice_call call;
    const mha_tensor *lse, *o_gradient;
    mha_attention_gradients gradients;
} side;

/* Indices of tensors in the exchanges: tensors over queries (for dq, and for dk and dv), and over
 * keys. */
enum {
    Q,
    O,
    LSE,
    G,
    LSE_G,
    P_G,
    AVERAGE_G,
    MASKS,
    DQ = MASKS + MHAI_ROW_INPUTS,
    DELTA,
    DBIAS,
    PLACES
};
enum { K, V, DK, DV };

typedef struct back_call {
    mha_context *context;
    side given, own;
    mhai_slice_common common;
    mhai_split split;
    mhai_masks masks;
    mhai_roles roles;
    mhai_exchange rows, step, keys; /* exchanges for dq, for a step of dk and dv, and for keys */
    int rows_at[PLACES], step_at[PLACES], kv_at[2], keys_at[4];
    mha_tensor delta; /* of all heads, for this rank's rows */
    mha_tensor inputs[MHAI_HEAD_INPUTS], gradient_inputs[MHAI_HEAD_INPUTS];
    bool alone;                  /* no other rank has its keys or adds to its sums */
    bool bias_by_row;            /* the gradient of a bias with a row per query is requested */
    mhai_backward_share *shares; /* one per piece of the group */
    int64_t share_count;
    mhai_backward_problem problem; /* all heads and the caller's rows, for parameters */
    mhai_sums sums;
    float *dk, *dv; /* for this rank's keys of a head, rows padded */
    mhai_backward_block *blocks;
    int64_t block_count;
} back_call;

/* ---- checks ---------------------------------------------------------------------------------- */

/* Check a gradient over keys. The checks of slices do not cover it. */
static mha_status check_keys(const char *name, const mha_tensor *given, const mha_tensor *like)
{
    if (!given) return MHA_OK;
    MHA_TRY(mhai_tensor_check(name, given, MHA_F32, 4, like->shape));
    MHA_TRY(mhai_tensor_check_last(name, given));
    return mhai_tensor_check_output(name, given);
}

static mha_status check_given(back_call *c, const mha_attention_gradients *gradients)
{
    MHA_NEED_AS("mha_distributed_backward", "o, lse, o_gradient, gradients", c->given.call.o,
                c->given.lse, c->given.o_gradient, gradients);
    MHA_TRY(mhai_struct_copy("mha_attention_gradients", &c->given.gradients,
                             sizeof c->given.gradients,
                             offsetof(mha_attention_gradients, lse_gradient), gradients));
    MHA_TRY(check_keys("gradients.k", c->given.gradients.k, c->given.call.k));
    return check_keys("gradients.v", c->given.gradients.v, c->given.call.v);
}

/* ---- the bias -------------------------------------------------------------------------------- */

/* The length of the bias along an axis of [B,H,T,S]. */
static int64_t bias_axis(const mha_tensor *bias, int axis)
{
    const int at = bias ? bias->ndim - 4 + axis : -1;
    return at >= 0 && at < MHA_MAX_DIMS ? bias->shape[at] : 1;
}

/* Agree on whether the bias has a row per query. A rank with a single query cannot infer this from
 * the shape. */
static mha_status agree_on_bias(back_call *c)
{
    const int64_t rows = bias_axis(c->given.call.desc.bias, 2);
    int64_t by_row = rows != 1;
    if (!c->given.gradients.bias) return MHA_OK;
    MHA_TRY(mhai_ranks_most(c->split.t, &by_row, 1));
    c->bias_by_row = by_row && c->split.given.queries > 0;
    return MHA_OK;
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Check and plan a piece that begins at row `first` of the `all` rows of a side. */
static mha_status plan_piece(const back_call *c, const side *of, int64_t all,
                             const mha_piece *piece, int64_t first, mhai_slice *s,
                             mhai_backward_plan *plan)
{
    const int64_t rows = piece->end - piece->begin;
    mha_attention_gradients g = of->gradients;
    const mha_tensor *lse = of->lse, *o_gradient = of->o_gradient;
    mha_tensor cut[7], k = *of->call.k, v = *of->call.v;
    const struct {
        const char *name;
        const mha_tensor **x;
        int axis;
    } cuts[6] = {{"lse", &lse, 2},
                 {"o_gradient", &o_gradient, 2},
                 {"lse_gradient", &g.lse_gradient, 2},
                 {"probabilities_gradient", &g.probabilities_gradient, 2},
                 {"average_probabilities_gradient", &g.average_probabilities_gradient, 1},
                 {"gradients.q", &g.q, 2}};
    MHA_TRY(mhai_slice_piece(c->context, &of->call, &c->split, all, piece, first, s));
    for (int i = 0; i < 6; i++)
        MHA_TRY(mhai_slice_cut(cuts[i].name, cuts[i].x, cuts[i].axis, false, all, first, rows,
                               &cut[i]));
    g.k = g.v = NULL;
    if (c->bias_by_row)
        MHA_TRY(mhai_slice_cut("gradients.bias", &g.bias, g.bias->ndim - 2, true, all, first, rows,
                               &cut[6]));
    if (k.shape[2] != c->split.given.keys) { /* only their number matters */
        k.shape[2] = v.shape[2] = c->split.given.keys;
        k.stride[2] = v.stride[2] = 0;
    }
    s->part.H = c->common.heads;
    s->part.keys = c->split.given.keys;
    const mha_attention_backward_call planned = {.attention = &s->desc,
                                                 .q = &s->q,
                                                 .k = &k,
                                                 .v = &v,
                                                 .o = &s->o,
                                                 .lse = lse,
                                                 .o_gradient = o_gradient,
                                                 .gradients = &g};
    *plan = (mhai_backward_plan){.threads = 0};
    MHA_TRY(mhai_backward_plan_call(c->context, &planned, &s->part, true, plan));
    if (mhai_backward_shares(plan)) return MHA_OK;
    return mha_fail(MHA_ERR_UNSUPPORTED, "mha_distributed_backward: the plain path (head sizes "
                                         "above 256) is not supported over ranks");
}

/* Check the overlaps that the plan does not cover: keys, values, and their gradients. */
static mha_status check_apart(const back_call *c)
{
    const side *s = &c->given;
    const mha_attention_gradients *g = &s->gradients;
    const mhai_attn_named keys[] = {
        {"gradients.k", g->k}, {"gradients.v", g->v}, {"k", s->call.k}, {"v", s->call.v}};
    const mhai_attn_named others[] = {
        {"gradients.q", g->q},
        {"gradients.bias", g->bias},
        {"gradients.alibi_slopes", g->alibi_slopes},
        {"gradients.t5_table", g->t5_table},
        {"gradients.shaw_keys", g->shaw_keys},
        {"gradients.shaw_values", g->shaw_values},
        {"gradients.sink_logits", g->sink_logits},
        {"gradients.gates", g->gates},
        {"gradients.scale", g->scale},
        {"q", s->call.q},
        {"o", s->call.o},
        {"lse", s->lse},
        {"o_gradient", s->o_gradient},
        {"lse_gradient", g->lse_gradient},
        {"probabilities_gradient", g->probabilities_gradient},
        {"average_probabilities_gradient", g->average_probabilities_gradient}};
    enum { GRADIENTS = 9, OTHERS = 16 };
    for (int i = 0; i < 4; i++) {
        if (!keys[i].tensor) continue;
        if (i < 2) MHA_TRY(mhai_attn_check_apart(&s->call.desc, keys[i].name, keys[i].tensor));
        for (int j = 0; j < (i < 2 ? OTHERS : GRADIENTS); j++)
            if (others[j].tensor)
                MHA_TRY(mhai_tensor_check_disjoint(others[j].name, others[j].tensor, keys[i].name,
                                                   keys[i].tensor));
        for (int j = 0; j < i && j < 2; j++)
            if (keys[j].tensor)
                MHA_TRY(mhai_tensor_check_disjoint(keys[j].name, keys[j].tensor, keys[i].name,
                                                   keys[i].tensor));
    }
    return MHA_OK;
}

/* Check the caller's rows as a single piece. */
static mha_status check_rows(back_call *c)
{
    const mha_piece piece = {0, c->split.rows};
    const int64_t rows = bias_axis(c->given.call.desc.bias, 2);
    mhai_backward_plan plan;
    mhai_slice s;
    if (c->bias_by_row && rows == 1 && c->split.rows > 1)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "bias: has one row for all queries on this rank and a row per query on "
                        "another; its gradient requires the same on all ranks");
    MHA_TRY(plan_piece(c, &c->given, c->split.rows, &piece, 0, &s, &plan));
    c->problem = plan.x;
    c->problem.p.part = NULL; /* the slice owns it */
    return check_apart(c);
}

/* ---- exchanges ------------------------------------------------------------------------------- */

static bool wants_keys(const back_call *c)
{
    return c->given.gradients.k || c->given.gradients.v;
}

static int add_result(mhai_exchange *e, const mha_tensor *x, int ndim, bool columns,
                      mhai_extent extent, mhai_heads heads, bool adds)
{
    const int at = mhai_exchange_add(e, x, ndim, columns, extent, heads);
    if (at < 0) return at;
    e->moved[at].brings = adds;
    e->moved[at].returns = true;
    return at;
}

/* List the inputs over queries of both passes. */
static void list_rows(back_call *c, mhai_exchange *e, mhai_extent extent, int *at)
{
    side *g = &c->given;
    const mha_attention_gradients *of = &g->gradients;
    for (int i = 0; i < PLACES; i++) at[i] = -1;
    at[Q] = mhai_exchange_add(e, g->call.q, 4, true, extent, MHAI_QUERY_HEADS);
    at[G] = mhai_exchange_add(e, g->o_gradient, 4, true, extent, MHAI_QUERY_HEADS);
    at[LSE] = mhai_exchange_add(e, g->lse, 3, false, extent, MHAI_QUERY_HEADS);
    at[P_G] = mhai_exchange_add(e, of->probabilities_gradient, 4, true, extent, MHAI_QUERY_HEADS);
    at[AVERAGE_G] =
        mhai_exchange_add(e, of->average_probabilities_gradient, 3, true, extent, MHAI_NO_HEADS);
    for (int i = 0; i < MHAI_ROW_INPUTS; i++)
        at[MASKS + i] = mhai_exchange_add_mask(e, &g->call.desc, &c->masks, i, extent);
}

static mha_status list_tensors(void *user, size_t *bytes)
{
    back_call *c = user;
    const mhai_slice_call *w = &c->given.call;
    const mha_attention_gradients *g = &c->given.gradients;
    const bool adds = g->flags & MHA_GRADIENTS_ACCUMULATE;
    const mhai_extent rows = MHAI_GROUP_QUERIES;
    c->rows = c->step = c->keys = (mhai_exchange){.roles = &c->roles, .step = -1};
    list_rows(c, &c->rows, rows, c->rows_at);
    c->rows_at[O] = mhai_exchange_add(&c->rows, w->o, 4, true, rows, MHAI_QUERY_HEADS);
    c->rows_at[LSE_G] =
        mhai_exchange_add(&c->rows, g->lse_gradient, 3, false, rows, MHAI_QUERY_HEADS);
    c->kv_at[K] = mhai_exchange_add(&c->rows, w->k, 4, true, MHAI_EVERY_KEY, MHAI_KEY_HEADS);
    c->kv_at[V] = mhai_exchange_add(&c->rows, w->v, 4, true, MHAI_EVERY_KEY, MHAI_KEY_HEADS);
    c->rows_at[DQ] = add_result(&c->rows, g->q, 4, true, rows, MHAI_QUERY_HEADS, adds);
    c->rows_at[DBIAS] =
        add_result(&c->rows, c->bias_by_row ? g->bias : NULL, 4, true, rows, MHAI_NO_HEADS, adds);
    c->keys_at[DK] = add_result(&c->keys, g->k, 4, true, MHAI_SHARED_KEYS, MHAI_KEY_HEADS, adds);
    c->keys_at[DV] = add_result(&c->keys, g->v, 4, true, MHAI_SHARED_KEYS, MHAI_KEY_HEADS, adds);
    c->alone = c->roles.sharers == 1 && !g->bias && !g->average_probabilities_gradient &&
               !c->problem.scale.data && !c->problem.sinks.data &&
               !mhai_backward_has_sums(&c->problem);
    if (!c->alone && wants_keys(c)) {
        c->rows_at[DELTA] =
            add_result(&c->rows, &c->delta, 3, false, rows, MHAI_QUERY_HEADS, false);
        c->step.step = 0;
        list_rows(c, &c->step, MHAI_EVERY_QUERY, c->step_at);
        c->step_at[DELTA] =
            mhai_exchange_add(&c->step, &c->delta, 3, false, MHAI_EVERY_QUERY, MHAI_QUERY_HEADS);
    }
    mhai_exchange *const all[] = {&c->rows, &c->step, &c->keys};
    for (int i = 0; i < 3; i++) {
        mhai_exchange_shape(all[i]);
        MHA_TRY(mhai_exchange_bytes(all[i], bytes));
    }
    return MHA_OK;
}

/* Choose the roles. If a bias gradient is summed over heads, one rank must have all heads. */
static mha_status choose(back_call *c)
{
    const mha_attention_desc *d = &c->given.call.desc;
    const mha_status status = mhai_roles_take(c->context, &c->split, d, c->common.heads,
                                              c->common.kv_heads, true, &c->roles);
    MHA_TRY(mha_transport_agree(c->split.t, status));
    return mhai_roles_choose(&c->roles, d, true, c->given.gradients.bias, list_tensors, c);
}

/* ---- the call of this rank ------------------------------------------------------------------- */

static void replace_masks(const mhai_exchange *e, const int *at, mha_attention_desc *d)
{
    for (int i = 0; i < MHAI_ROW_INPUTS; i++)
        if (at[MASKS + i] >= 0) *mhai_slice_mask(d, i) = mhai_exchange_at(e, at[MASKS + i]);
}

/* Select heads of those gradients that have a head axis. */
static void cut_heads(back_call *c, mha_attention_gradients *g)
{
    const mha_head_piece piece = mhai_roles_heads(&c->roles, c->split.t->rank);
    mha_attention_desc by_head = {.alibi_slopes = g->alibi_slopes,
                                  .t5_table = g->t5_table,
                                  .sink_logits = g->sink_logits,
                                  .gates = g->gates};
    mhai_slice_heads(&by_head, piece.begin, piece.end, c->gradient_inputs);
    g->alibi_slopes = by_head.alibi_slopes, g->t5_table = by_head.t5_table;
    g->sink_logits = by_head.sink_logits, g->gates = by_head.gates;
    mhai_slice_heads(&c->own.call.desc, piece.begin, piece.end, c->inputs);
}

static void make_own(back_call *c)
{
    const mhai_exchange *e = &c->rows;
    const int *at = c->rows_at;
    mha_attention_gradients *g = &c->own.gradients;
    c->own = c->given;
    if (c->roles.parts > 1) cut_heads(c, g);
    c->own.call.q = mhai_exchange_at(e, at[Q]);
    c->own.call.o = mhai_exchange_at(e, at[O]);
    c->own.call.k = mhai_exchange_at(e, c->kv_at[K]);
    c->own.call.v = mhai_exchange_at(e, c->kv_at[V]);
    c->own.lse = mhai_exchange_at(e, at[LSE]);
    c->own.o_gradient = mhai_exchange_at(e, at[G]);
    g->lse_gradient = mhai_exchange_at(e, at[LSE_G]);
    g->probabilities_gradient = mhai_exchange_at(e, at[P_G]);
    g->average_probabilities_gradient = mhai_exchange_at(e, at[AVERAGE_G]);
    g->q = mhai_exchange_at(e, at[DQ]);
    g->k = mhai_exchange_at(&c->keys, c->keys_at[DK]);
    g->v = mhai_exchange_at(&c->keys, c->keys_at[DV]);
    if (c->bias_by_row) g->bias = mhai_exchange_at(e, at[DBIAS]);
    replace_masks(e, at, &c->own.call.desc);
}

static mha_attention_backward_call own_call(const back_call *c)
{
    const side *s = &c->own;
    return (mha_attention_backward_call){.struct_size = sizeof(mha_attention_backward_call),
                                         .attention = &s->call.desc,
                                         .q = s->call.q,
                                         .k = s->call.k,
                                         .v = s->call.v,
                                         .o = s->call.o,
                                         .lse = s->lse,
                                         .o_gradient = s->o_gradient,
                                         .gradients = &s->gradients};
}

static mha_status reserve(const back_call *c, size_t bytes)
{
    return mhai_scratch_ensure(c->context, 1, bytes);
}

static mha_status reserve_alone(const back_call *c)
{
    const mha_attention_backward_call call = own_call(c);
    mha_attention_plan plan;
    MHA_TRY(mha_attention_backward_explain(c->context, &call, &plan));
    return reserve(c, plan.scratch_bytes);
}

static mha_status take_shares(back_call *c)
{
    const mhai_roles *r = &c->roles;
    const int64_t all = mhai_roles_rows(r, MHAI_GROUP_QUERIES);
    MHA_TRY(
        mha_scratch_alloc(c->context, r->count[MHAI_GROUP_QUERIES], sizeof *c->shares, &c->shares));
    for (int64_t i = 0; i < r->count[MHAI_GROUP_QUERIES]; i++) {
        const mhai_owned *p = &r->rows[MHAI_GROUP_QUERIES][i];
        const mha_piece piece = {p->begin, p->end};
        mhai_backward_plan plan;
        mhai_slice slice;
        if (p->rank != mhai_roles_group(r)) continue;
        MHA_TRY(plan_piece(c, &c->own, all, &piece, p->local, &slice, &plan));
        MHA_TRY(mhai_backward_share_begin(c->context, &plan, &c->shares[c->share_count++]));
    }
    return MHA_OK;
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* List this rank's share of the key blocks of all sequences. */
static int64_t list_blocks(const back_call *c, mhai_backward_block *blocks)
{
    const mha_attention_desc *d = &c->given.call.desc;
    const mhai_roles *r = &c->roles;
    const bool ragged = d->key_starts;
    const int64_t rows = mhai_roles_rows(r, MHAI_SHARED_KEYS),
                  own = mhai_roles_sharer(r, c->split.t->rank);
    const int64_t D = mhai_cells_padded(c->common.head_dim),
                  Dv = mhai_cells_padded(c->common.value_dim);
    int64_t count = 0, n = 0, local = 0;
    for (int64_t b = 0; b < (ragged ? d->sequences : 1); b++) {
        const int64_t keys = ragged ? d->key_starts[b + 1] - d->key_starts[b] : c->split.given.keys;
        for (int64_t key = 0; key < keys; key += MHAI_CELL_KEYS) {
            if (n++ % r->sharers != own) continue;
            for (int64_t i = 0; i < (ragged ? 1 : c->common.batch); i++, count++)
                if (blocks)
                    blocks[count] = (mhai_backward_block){.b = ragged ? b : i,
                                                          .key = key,
                                                          .dk = c->dk + (i * rows + local) * D,
                                                          .dv = c->dv + (i * rows + local) * Dv};
            local += mhai_min_i64(keys - key, MHAI_CELL_KEYS);
        }
    }
    return count;
}

static mha_status take_keys(back_call *c)
{
    const int64_t rows = mhai_roles_rows(&c->roles, MHAI_SHARED_KEYS);
    const int64_t columns[] = {mhai_cells_padded(c->common.head_dim),
                               mhai_cells_padded(c->common.value_dim)};
    float **to[] = {&c->dk, &c->dv};
    for (int i = 0; i < 2; i++) {
        MHA_TRY(mha_scratch_alloc(c->context, c->common.batch * rows,
                                  (size_t)columns[i] * sizeof(float), &*to[i]));
    }
    c->block_count = list_blocks(c, NULL);
    MHA_TRY(mha_scratch_alloc(c->context, c->block_count, sizeof *c->blocks, &c->blocks));
    list_blocks(c, c->blocks);
    return MHA_OK;
}

static mha_tensor one_head(const mha_tensor *x, int64_t h)
{
    mha_tensor head = *x;
    head.shape[1] = 1;
    head.data = (char *)head.data + h * x->stride[1] * (int64_t)mha_dtype_size(x->dtype);
    return head;
}

/* Begin the step of query head `step` of each of this rank's key/value heads, with all rows and
 * keys. delta already includes the terms of o. */
static mha_status begin_step(back_call *c, int64_t step, mhai_backward_share *share)
{
    const mhai_exchange *e = &c->step;
    const int *at = c->step_at;
    const int64_t group = c->common.heads / c->common.kv_heads;
    const int64_t h = mhai_roles_heads(&c->roles, c->split.t->rank).kv_begin * group + step;
    const mha_tensor k = one_head(c->own.call.k, step / group),
                     v = one_head(c->own.call.v, step / group);
    const mha_attention_gradients gradients = {
        .struct_size = sizeof gradients,
        .flags = c->given.gradients.flags,
        .probabilities_gradient = mhai_exchange_at(e, at[P_G]),
        .average_probabilities_gradient = mhai_exchange_at(e, at[AVERAGE_G])};
    mha_attention_desc desc = c->given.call.desc;
    mha_tensor inputs[MHAI_HEAD_INPUTS];
    mhai_backward_plan plan = {.threads = 0};
    int64_t *before;
    mhai_slice_heads(&desc, h, h + 1, inputs);
    replace_masks(e, at, &desc);
    const int64_t sequences = desc.query_starts ? desc.sequences : c->common.batch;
    MHA_TRY(mha_scratch_zeros(c->context, sequences, sizeof(int64_t), &before));
    const mhai_attn_part part = {.queries_before = before,
                                 .T = c->split.given.queries,
                                 .H = c->common.heads,
                                 .keys = c->split.given.keys};
    const mha_attention_backward_call call = {.attention = &desc,
                                              .q = mhai_exchange_at(e, at[Q]),
                                              .k = &k,
                                              .v = &v,
                                              .o = mhai_exchange_at(e, at[G]),
                                              .lse = mhai_exchange_at(e, at[LSE]),
                                              .o_gradient = mhai_exchange_at(e, at[G]),
                                              .gradients = &gradients};
    MHA_TRY(mhai_backward_plan_call(c->context, &call, &part, true, &plan));
    MHA_TRY(mhai_backward_share_begin(c->context, &plan, share));
    share->plan.x.delta = mhai_exchange_at(e, at[DELTA])->data;
    return MHA_OK;
}

/* Run a step. Masks that all heads share are received only in the first step. */
static mha_status run_step(back_call *c, int64_t step)
{
    mhai_backward_share share;
    const mha_scratch_mark mark = mha_scratch_top(c->context);
    c->step.step = step;
    for (int i = 0; step > 0 && i < c->step.count; i++)
        c->step.moved[i].brings &= c->step.moved[i].heads != MHAI_NO_HEADS &&
                                   (c->step.moved[i].shape[1] > 1 || c->common.heads == 1);
    mha_status status = mhai_exchange_move(&c->step, false);
    if (status == MHA_OK) status = begin_step(c, step, &share);
    if (status == MHA_OK) mhai_backward_share_keys(c->context, &share, c->blocks, c->block_count);
    return mha_scratch_end(c->context, mark, status);
}

static void clear(float *sums, int64_t rows, int64_t columns)
{
    memset(sums, 0, (size_t)(rows * mhai_cells_padded(columns)) * sizeof *sums);
}

static void write_keys(const back_call *c, const mhai_cells_job *job, const mha_tensor *to,
                       int64_t hk, const float *sums, float factor)
{
    const int64_t rows = mhai_roles_rows(&c->roles, MHAI_SHARED_KEYS);
    for (int64_t b = 0; to && b < c->common.batch; b++)
        mhai_cells_write_rows(job, to, b, hk, 0, rows,
                              sums + b * rows * mhai_cells_padded(to->shape[3]), factor);
}

/* Process the query heads of each key/value head in order, which is the order of the sums. */
static mha_status run_keys(back_call *c)
{
    const mha_head_piece own = mhai_roles_heads(&c->roles, c->split.t->rank);
    const int64_t group = c->common.kv_heads ? c->common.heads / c->common.kv_heads : 0;
    const int64_t rows = c->common.batch * mhai_roles_rows(&c->roles, MHAI_SHARED_KEYS);
    const mhai_cells_job job = mhai_cells_job_of(c->context, &c->problem);
    for (int64_t hk = 0; hk < own.kv_end - own.kv_begin; hk++) {
        clear(c->dk, rows, c->common.head_dim);
        clear(c->dv, rows, c->common.value_dim);
        for (int64_t i = 0; i < group; i++) MHA_TRY(run_step(c, hk * group + i));
        write_keys(c, &job, c->own.gradients.k, hk, c->dk, c->problem.p.scale);
        write_keys(c, &job, c->own.gradients.v, hk, c->dv, 1);
    }
    return MHA_OK;
}

/* ---- the call -------------------------------------------------------------------------------- */

static void fill_common(back_call *c)
{
    const mha_attention_desc *d = &c->given.call.desc;
    const mha_attention_gradients *g = &c->given.gradients;
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
    c->common.gradients = (int32_t)(g->flags & 3); /* all other flags are rejected */
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        c->common.gradients = c->common.gradients << 1 | (wanted[i] != NULL);
    for (int i = 0; i < 3; i++)
        if (tables[i]) c->common.table_rows[i] = tables[i]->shape[0];
    for (int i = 0; i < 3 && g->bias; i++) c->common.bias_axes[i] = bias_axis(bias, i < 2 ? i : 3);
    c->common.q_types |= (int32_t)c->given.o_gradient->dtype << 24;
}

/* Allocate delta for all heads and this rank's rows. */
static mha_status take_delta(back_call *c)
{
    const int64_t shape[] = {c->common.batch, c->common.heads, c->split.rows};
    int64_t count = 1;
    void *memory;
    for (int i = 0; i < 3; i++)
        if (!mhai_mul_i64(count, shape[i], &count))
            return mha_fail(MHA_ERR_SIZE, "q: a number for each row overflows 64 bits");
    MHA_TRY(mha_scratch_alloc(c->context, count, sizeof(double), &memory));
    c->delta = mha_tensor_contiguous(memory, MHA_F64, 3, shape);
    return MHA_OK;
}

static mha_status make(back_call *c)
{
    mhai_exchange *const all[] = {&c->rows, &c->step, &c->keys};
    mhai_backward_share rehearsed;
    for (int i = 0; i < 3; i++) MHA_TRY(mhai_exchange_take(c->context, all[i]));
    make_own(c);
    if (c->alone) return reserve_alone(c);
    MHA_TRY(take_shares(c));
    c->sums = (mhai_sums){.context = c->context,
                          .roles = &c->roles,
                          .desc = &c->given.call.desc,
                          .x = &c->problem,
                          .shares = c->shares,
                          .shares_bias = c->given.gradients.bias && !c->bias_by_row};
    MHA_TRY(mhai_sums_take(&c->sums));
    if (!wants_keys(c)) return MHA_OK;
    MHA_TRY(take_keys(c));
    /* Reserve memory before the exchange, because other ranks rely on this rank's messages. */
    const mha_scratch_mark mark = mha_scratch_top(c->context);
    if (c->common.heads > 0) MHA_TRY(begin_step(c, 0, &rehearsed));
    mha_scratch_release(c->context, mark);
    return MHA_OK;
}

static mha_status begin(back_call *c, const mha_sequence_split *given,
                        const mha_attention_gradients *gradients)
{
    const mha_transport *t = given->transport;
    mhai_slice_call *w = &c->given.call;
    if (w->status == MHA_OK) w->status = mhai_split_check(given, &c->split);
    mha_status status = mhai_slice_check(w, &c->split, &c->common);
    if (status == MHA_OK) status = check_given(c, gradients);
    if (status == MHA_OK) fill_common(c);
    MHA_TRY(mha_transport_same(t, "description", &c->common, sizeof c->common, status));
    MHA_TRY(mhai_split_make(c->context, &c->split));
    MHA_TRY(agree_on_bias(c));
    status = check_rows(c);
    if (status == MHA_OK) status = take_delta(c);
    MHA_TRY(mha_transport_agree(t, status));
    MHA_TRY(mhai_slice_masks(w, &c->split, &c->masks));
    if (c->given.gradients.bias) c->masks.by_row[MHAI_ROW_BIAS] = c->bias_by_row;
    status = choose(c);
    if (status == MHA_OK) status = make(c);
    return status == MHA_ERR_RANK ? status : mha_transport_agree(t, status);
}

/* Copy the rows of a piece into the group's delta. */
static void keep_delta(const back_call *c, const mhai_backward_share *share, int64_t local)
{
    const mha_tensor *to = mhai_exchange_at(&c->rows, c->rows_at[DELTA]);
    const mhai_attn_problem *p = &share->plan.x.p;
    const int64_t rows = p->q.shape[2];
    for (int64_t i = 0; to && i < p->q.shape[0] * p->H; i++)
        memcpy((double *)to->data + i * to->shape[2] + local, share->plan.x.delta + i * rows,
               (size_t)rows * sizeof(double));
}

static void run_queries(back_call *c)
{
    int64_t local = 0;
    for (int64_t i = 0; i < c->share_count; i++) {
        mhai_backward_share *share = &c->shares[i];
        mhai_backward_share_queries(c->context, share);
        if (c->bias_by_row) mhai_backward_share_bias(c->context, share);
        keep_delta(c, share, local);
        local += share->plan.x.p.q.shape[2];
    }
}

static mha_status run(back_call *c)
{
    const mha_attention_backward_call call = own_call(c);
    MHA_TRY(mhai_exchange_move(&c->rows, false));
    MHA_TRY(mhai_exchange_move(&c->keys, false));
    if (c->alone)
        MHA_TRY(mha_attention_backward(c->context, &call));
    else
        run_queries(c);
    MHA_TRY(mhai_exchange_move(&c->rows, true));
    if (!c->alone && wants_keys(c)) MHA_TRY(run_keys(c));
    MHA_TRY(mhai_exchange_move(&c->keys, true));
    return c->alone ? MHA_OK : mhai_sums_run(&c->sums);
}

mha_status mha_distributed_backward(mha_context *context, const mha_sequence_split *split,
                                    const mha_attention_backward_call *call)
{
    static const char name[] = "mha_distributed_backward";
    mha_attention_backward_call a = {.struct_size = 0};
    MHA_TRY(mhai_slice_arguments(name, context, split));
    mha_status status = mhai_backward_copy_call(name, call, &a);
    back_call c = {.context = context, .given = {.lse = a.lse, .o_gradient = a.o_gradient}};
    const mha_scratch_mark mark = mha_scratch_top(context);
    c.given.call.status =
        status ? status
               : mhai_slice_take(name, a.attention, a.q, a.k, a.v, a.o, NULL, &c.given.call);
    status = begin(&c, split, a.gradients);
    if (status == MHA_OK) status = run(&c);
    return mha_scratch_end(context, mark, status);
}
