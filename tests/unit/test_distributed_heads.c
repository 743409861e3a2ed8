/* Heads over ranks (threads here). Pieces of heads are bit-identical to all heads in one process:
 * in the forward pass, in the backward pass, in a module with its projections, and on a grid that
 * also divides the sequence. Tensors are gathered exactly, errors reach every rank, and a lost rank
 * ends the call on all ranks. */
#include "support/backward_call.h"
#include "support/cuts.h"
#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/kinds.h"
#include "support/module_call.h"
#include "support/rank_contexts.h"
#include "support/suite.h"

#include <multihead/backward.h>
#include <multihead/component.h>
#include <multihead/module.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mha_tensor room(int ndim, const int64_t *shape)
{
    int64_t count = 1;
    for (int i = 0; i < ndim; i++) count *= shape[i];
    float *memory = malloc((size_t)count * sizeof *memory + 1);
    assert_non_null(memory);
    memset(memory, 0xEE, (size_t)count * sizeof *memory + 1);
    return mha_tensor_contiguous(memory, MHA_F32, ndim, shape);
}

/* ---- division of heads ----------------------------------------------------------------------- */

static void each_head_is_at_one_rank(void)
{
    for (int64_t kv = 1; kv <= 9; kv++)
        for (int64_t group = 0; group <= 9; group++)
            for (int32_t size = 1; size <= 20; size++) {
                int64_t next = 0;
                for (int32_t rank = 0; rank < size; rank++) {
                    mha_head_piece p;
                    expect_ok(mha_split_heads(kv * group, kv, rank, size, &p));
                    assert_int_equal(p.begin, next);
                    next = p.end;
                    if (p.begin == p.end) continue;
                    assert_int_equal(p.kv_begin, p.begin / group);
                    assert_int_equal(p.kv_end, (p.end - 1) / group + 1);
                    assert_int_equal((p.end - p.begin) % (p.kv_end - p.kv_begin), 0);
                    if (size <= kv)
                        assert_in_range(p.kv_end - p.kv_begin, kv / size, kv / size + 1);
                    else
                        assert_int_equal(p.kv_end - p.kv_begin, 1);
                }
                assert_int_equal(next, kv * group);
            }
    mha_head_piece p;
    expect_error(mha_split_heads(4, 2, 0, 2, NULL), MHA_ERR_NULL, "piece");
    expect_error(mha_split_heads(4, 3, 0, 2, &p), MHA_ERR_ARGUMENT, "4 heads");
    expect_error(mha_split_heads(4, 0, 0, 2, &p), MHA_ERR_ARGUMENT, "multiple");
    expect_error(mha_split_heads(4, 2, 2, 2, &p), MHA_ERR_ARGUMENT, "rank 2 of 2");
}

/* ---- attention of some heads ----------------------------------------------------------------- */

/* The head axis of an input, counted from the last, or -1 if it has none. */
enum {
    AXIS_BHTS = 2,
    AXIS_BLOCKS = 2,
    AXIS_BH = 0,
    AXIS_H = 0,
    AXIS_RH = 0,
    AXIS_BT = -1,
    AXIS_BS = -1,
    AXIS_RD = -1,
    AXIS_RV = -1
};
#define COUNT(...) +1
enum { INPUT_COUNT = 0 MHA_ATTENTION_INPUTS(COUNT) };

/* The descriptor of heads begin .. end - 1. */
static mha_attention_desc some_heads(const mha_attention_desc *d, const mha_head_piece *p,
                                     mha_tensor inputs[INPUT_COUNT])
{
    mha_attention_desc own = *d;
    int n = 0;
    own.first_head = d->first_head + p->begin;
#define CUT(field, type, axes, stage)                                                     \
    if (own.field && AXIS_##axes >= 0 && own.field->ndim > AXIS_##axes &&                 \
        own.field->shape[own.field->ndim - 1 - AXIS_##axes] > 1) {                        \
        inputs[n] = guarded_slice(own.field, own.field->ndim - 1 - AXIS_##axes, p->begin, \
                                  p->end - p->begin);                                     \
        own.field = &inputs[n++];                                                         \
    }
    MHA_ATTENTION_INPUTS(CUT)
#undef CUT
    return own;
}

/* The context of a rank, with the instruction set of case `number`; each set has its own bits. */
static mha_context *context_of(int number, int rank)
{
    const machines all = machines_make(1);
    const int at = number % all.count;
    return rank_contexts_of(&all.each[at], at, rank);
}

typedef struct result {
    mha_tensor o, lse, dq, dk, dv;
} result;

static result result_make(const mha_tensor *q, const mha_tensor *k, const mha_tensor *v)
{
    const int64_t o[] = {q->shape[0], q->shape[1], q->shape[2], v->shape[3]};
    return (result){room(4, o), room(3, o), room(4, q->shape), room(4, k->shape),
                    room(4, v->shape)};
}

static void result_free(result *x)
{
    free(x->o.data), free(x->lse.data), free(x->dq.data), free(x->dk.data), free(x->dv.data);
}

static mha_status run(mha_context *context, const mha_attention_desc *d, const mha_tensor *q,
                      const mha_tensor *k, const mha_tensor *v, const mha_tensor *back,
                      const result *x)
{
    const mha_attention_outputs outputs = {.struct_size = sizeof outputs, .lse = &x->lse};
    const mha_attention_gradients gradients = {
        .struct_size = sizeof gradients, .q = &x->dq, .k = &x->dk, .v = &x->dv};
    MHA_TRY(mha_attention_forward(context, d, q, k, v, &x->o, &outputs));
    return back ? mha_attention_backward(
                      context, BACKWARD_CALL(d, q, k, v, &x->o, &x->lse, back, &gradients))
                : MHA_OK;
}

static void same(const char *what, const mha_tensor *whole, int64_t from, const mha_tensor *own,
                 const kinds_case *c, int number)
{
    const mha_tensor part = guarded_slice(whole, 1, from, own->shape[1]);
    if (!guarded_same_bits(&part, own, true))
        fail_msg("case %d: heads %lld .. have other bits of %s\n%s", number, (long long)from, what,
                 c->text);
}

/* Pieces of heads in separate calls. */
static void check_pieces(int number)
{
    rng r = rng_make(rng_run_seed(), (uint64_t)number + 52000);
    kinds_shape shape = kinds_some_shape(&r);
    kinds_case c;
    shape.Hk = rng_between(&r, 1, 4);
    shape.H = shape.Hk * rng_between(&r, 1, 4);
    if (shape.S > 600) shape.S = rng_between(&r, 1, 600);
    kinds_make(&c, &r, &shape);
    c.desc.first_head = rng_chance(&r, 0.5) ? 0 : rng_between(&r, 0, (INT64_C(1) << 32) - shape.H);
    const mha_tensor *q = &c.q.view, *k = &c.k.view, *v = &c.v.view;
    const int32_t size = (int32_t)rng_between(&r, 1, MOST_RANKS);
    const int64_t o[] = {q->shape[0], q->shape[1], q->shape[2], v->shape[3]};
    guarded back = guarded_filled(&r, 4, o, 0, 1);
    const bool backward = size <= shape.Hk;
    result whole = result_make(q, k, v);
    mha_context *context = context_of(number, 0);
    expect_ok(run(context, &c.desc, q, k, v, backward ? &back.view : NULL, &whole));
    for (int32_t rank = 0; rank < size; rank++) {
        mha_head_piece p;
        mha_tensor inputs[INPUT_COUNT];
        expect_ok(mha_split_heads(q->shape[1], k->shape[1], rank, size, &p));
        if (p.begin == p.end) continue;
        const int64_t count = p.end - p.begin, kv_count = p.kv_end - p.kv_begin;
        const mha_tensor own_q = guarded_slice(q, 1, p.begin, count);
        const mha_tensor own_k = guarded_slice(k, 1, p.kv_begin, kv_count);
        const mha_tensor own_v = guarded_slice(v, 1, p.kv_begin, kv_count);
        const mha_tensor own_back = guarded_slice(&back.view, 1, p.begin, count);
        const mha_attention_desc desc = some_heads(&c.desc, &p, inputs);
        result own = result_make(&own_q, &own_k, &own_v);
        expect_ok(run(context_of(number, rank), &desc, &own_q, &own_k, &own_v,
                      backward ? &own_back : NULL, &own));
        same("o", &whole.o, p.begin, &own.o, &c, number);
        same("lse", &whole.lse, p.begin, &own.lse, &c, number);
        if (backward) {
            same("dq", &whole.dq, p.begin, &own.dq, &c, number);
            same("dk", &whole.dk, p.kv_begin, &own.dk, &c, number);
            same("dv", &whole.dv, p.kv_begin, &own.dv, &c, number);
        }
        result_free(&own);
    }
    result_free(&whole);
    guarded_free(&back);
    kinds_free(&c);
}

static void pieces_have_the_bits_of_the_whole(void)
{
    int first, end;
    rng_range(150, 2000, &first, &end);
    for (; first < end; first++) check_pieces(first);
}

/* ---- gathering ------------------------------------------------------------------------------- */

typedef struct gather_job {
    int axis, ranks;
    guarded from, pieces[MOST_RANKS], wholes[MOST_RANKS];
    int64_t begin[MOST_RANKS + 1];
    mha_context *contexts[MOST_RANKS];
    mha_status status[MOST_RANKS];
    char detail[MOST_RANKS][512];
} gather_job;

static void gather_rank(void *user, const mha_transport *t)
{
    gather_job *j = user;
    j->status[t->rank] = mha_distributed_gather(j->contexts[t->rank], t, j->axis,
                                                &j->pieces[t->rank].view, &j->wholes[t->rank].view);
    snprintf(j->detail[t->rank], sizeof *j->detail, "%s",
             j->status[t->rank] ? mha_error_detail() : "");
}

static gather_job *gather_make(rng *r, int ranks)
{
    static const mha_dtype types[] = {MHA_F32, MHA_F16, MHA_BF16};
    static const unsigned layouts[] = {0, LAYOUT_PAD, LAYOUT_PAD | LAYOUT_NEGATIVE | LAYOUT_LAST};
    gather_job *j = calloc(1, sizeof *j);
    assert_non_null(j);
    int64_t shape[4];
    const int ndim = (int)rng_between(r, 1, 4);
    const mha_dtype type = RNG_PICK(r, types);
    for (int i = 0; i < ndim; i++) shape[i] = rng_chance(r, 0.05) ? 0 : rng_between(r, 1, 9);
    j->axis = (int)rng_between(r, 0, ndim - 1);
    j->ranks = ranks;
    j->from = guarded_make(r, type, ndim, shape, 0);
    memset(j->from.view.data, (int)rng_between(r, 0, 255),
           guarded_is_empty(&j->from.view) ? 0 : mha_dtype_size(type));
    for (int rank = 1; rank < ranks; rank++) {
        j->begin[rank] = rng_between(r, j->begin[rank - 1], shape[j->axis]);
        if (rng_chance(r, 0.2)) j->begin[rank] = j->begin[rank - 1];
    }
    j->begin[ranks] = shape[j->axis];
    int64_t index[4] = {0}, n = 0;
    if (!guarded_is_empty(&j->from.view)) /* bytes that every conversion would change */
        do {
            const uint64_t bits = rng_next(r) | (uint64_t)(n++ % 3 == 0 ? 0x7F807F80 : 0);
            memcpy(guarded_element(&j->from.view, index), &bits, mha_dtype_size(type));
        } while (guarded_next(&j->from.view, index));
    for (int rank = 0; rank < ranks; rank++) {
        int64_t own[4];
        memcpy(own, shape, sizeof own);
        own[j->axis] = j->begin[rank + 1] - j->begin[rank];
        j->pieces[rank] = guarded_make(r, type, ndim, own, RNG_PICK(r, layouts));
        j->wholes[rank] = guarded_make(r, type, ndim, shape, RNG_PICK(r, layouts));
        j->contexts[rank] = context_of(0, rank);
        int64_t to[4] = {0}, from[4];
        if (guarded_is_empty(&j->pieces[rank].view)) continue;
        do {
            memcpy(from, to, sizeof from);
            from[j->axis] += j->begin[rank];
            memcpy(guarded_element(&j->pieces[rank].view, to), guarded_element(&j->from.view, from),
                   mha_dtype_size(type));
        } while (guarded_next(&j->pieces[rank].view, to));
    }
    return j;
}

static void gather_free(gather_job *j)
{
    for (int rank = 0; rank < j->ranks; rank++) {
        guarded_free(&j->pieces[rank]);
        guarded_free(&j->wholes[rank]);
    }
    guarded_free(&j->from);
    free(j);
}

static void tensors_are_brought_together(void)
{
    int first, end;
    rng_range(150, 2000, &first, &end);
    for (; first < end; first++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)first + 53000);
        gather_job *j = gather_make(&r, (int)rng_between(&r, 1, MOST_RANKS));
        thread_ranks_run(j->ranks, gather_rank, j, -1, 0);
        for (int rank = 0; rank < j->ranks; rank++) {
            assert_string_equal(j->detail[rank], "");
            assert_true(guarded_same_bits(&j->from.view, &j->wholes[rank].view, false));
            assert_true(guarded_gaps_intact(&j->wholes[rank]));
        }
        gather_free(j);
    }
}

/* Every rank returns the status and the message, and nothing is written. */
static void refused(gather_job *j, mha_status status, const char *word)
{
    for (int rank = 0; rank < j->ranks; rank++) guarded_snapshot(&j->wholes[rank]);
    thread_ranks_run(j->ranks, gather_rank, j, -1, 0);
    for (int rank = 0; rank < j->ranks; rank++) {
        assert_int_equal(j->status[rank], status);
        if (!strstr(j->detail[rank], word))
            fail_msg("\"%s\" without \"%s\"", j->detail[rank], word);
        assert_true(guarded_unchanged(&j->wholes[rank]));
    }
}

static void refusals_reach_every_rank(void)
{
    for (int bad = 0; bad < 3; bad++) {
        rng r = rng_make(1, 5400);
        gather_job *j;
        for (j = gather_make(&r, 3);
             j->from.view.ndim < 2 || j->begin[2] == j->begin[1] || guarded_is_empty(&j->from.view);
             j = gather_make(&r, 3))
            gather_free(j);
        mha_tensor *piece = &j->pieces[1].view, *whole = &j->wholes[bad].view;
        const mha_tensor good_piece = *piece, good = *whole;
        piece->shape[j->axis]--;
        refused(j, MHA_ERR_SHAPE, "less than the");
        *piece = good_piece;
        piece->shape[1 - (j->axis == 1)]++;
        refused(j, MHA_ERR_SHAPE, "rank 1: piece: dim");
        *piece = good_piece;
        piece->dtype = MHA_F64;
        refused(j, MHA_ERR_DTYPE, "rank 1: piece");
        *piece = good_piece;
        whole->data = NULL;
        refused(j, MHA_ERR_NULL, "whole");
        *whole = good;
        whole->stride[0] = whole->stride[1] = 0;
        if (whole->shape[0] > 1) refused(j, MHA_ERR_STRIDE, "whole");
        *whole = good;
        j->axis = -1;
        refused(j, MHA_ERR_ARGUMENT, "axis is -1");
        gather_free(j);
    }
}

typedef struct disagreement {
    int row;
    char detail[3][256];
} disagreement;

/* A third of a tensor, which rank 1 describes differently. */
static void gather_another(void *user, const mha_transport *t)
{
    static const struct {
        int axis;
        mha_dtype type;
        int64_t shape[2];
    } rows[] = {
        {1, MHA_F32, {6, 6}}, {0, MHA_F32, {6, 6}}, {1, MHA_F16, {6, 6}}, {1, MHA_F32, {5, 6}}};
    disagreement *x = user;
    const int row = t->rank == 1 ? x->row : 0, axis = rows[row].axis;
    float from[36] = {0}, to[36];
    const mha_tensor whole = mha_tensor_contiguous(to, rows[row].type, 2, rows[row].shape);
    mha_tensor piece = mha_tensor_contiguous(from, rows[row].type, 2, rows[row].shape);
    piece.shape[axis] = 2;
    const mha_status status =
        mha_distributed_gather(context_of(0, t->rank), t, axis, &piece, &whole);
    snprintf(x->detail[t->rank], sizeof *x->detail, "%s", status ? mha_error_detail() : "");
}

static void other_tensors_are_refused(void)
{
    for (int row = 0; row < 4; row++) {
        disagreement x = {.row = row};
        thread_ranks_run(3, gather_another, &x, -1, 0);
        for (int rank = 0; rank < 3; rank++)
            assert_string_equal(x.detail[rank],
                                row == 0 ? ""
                                         : "rank 1: has another tensor than rank 0; all ranks "
                                           "must agree");
    }
}

static void a_lost_rank_ends_the_call(void)
{
    for (int lost = 0; lost < 4; lost++)
        for (int64_t after = 0; after < 12; after++) {
            rng r = rng_make(1, 5500);
            gather_job *j = gather_make(&r, 4);
            thread_ranks_run(4, gather_rank, j, lost, after);
            for (int rank = 0; rank < 4; rank++)
                if (j->status[rank] != MHA_OK) assert_int_equal(j->status[rank], MHA_ERR_RANK);
            gather_free(j);
        }
}

/* ---- a module on a grid of ranks ------------------------------------------------------------- */

enum { Q, K, V, O, PROJECTIONS };

typedef struct grid {
    mha_module_desc desc;
    mha_attention_desc attention;
    int rows, columns; /* ranks of the sequence, and of heads */
    int64_t B, T;
    guarded weight[PROJECTIONS], bias[PROJECTIONS], norms[2], sinks, x;
    mha_tensor outs[MOST_RANKS];
    mha_context *contexts[MOST_RANKS];
    char detail[MOST_RANKS][512];
} grid;

static const char *const names[] = {"q_proj", "k_proj", "v_proj", "out_proj"};

static mha_status set(mha_module *module, const char *name, const char *kind, const mha_tensor *x)
{
    char full[40];
    snprintf(full, sizeof full, "%s.%s", name, kind);
    return mha_module_set_parameter(module, full, x);
}

/* Creates the module of some heads, without W_o. The caller adds W_o if these are all heads. */
static mha_status module_of(mha_context *context, const grid *g, const mha_head_piece *p,
                            mha_module **module)
{
    mha_module_desc d = g->desc;
    d.num_heads = p->end - p->begin, d.kv_heads = p->kv_end - p->kv_begin;
    const int64_t begin[] = {p->begin * d.head_dim, p->kv_begin * d.head_dim,
                             p->kv_begin * d.value_head_dim};
    const int64_t count[] = {d.num_heads * d.head_dim, d.kv_heads * d.head_dim,
                             d.kv_heads * d.value_head_dim};
    MHA_TRY(mha_module_create(context, &d, module));
    for (int i = Q; i <= V; i++) {
        const mha_tensor w = guarded_slice(&g->weight[i].view, 0, begin[i], count[i]);
        const mha_tensor b = guarded_slice(&g->bias[i].view, 0, begin[i], count[i]);
        MHA_TRY(set(*module, names[i], "weight", &w));
        if (!(d.flags & MHA_MODULE_NO_QKV_BIAS)) MHA_TRY(set(*module, names[i], "bias", &b));
    }
    if (d.flags & MHA_MODULE_QK_NORM) {
        MHA_TRY(set(*module, "q_norm", "weight", &g->norms[0].view));
        MHA_TRY(set(*module, "k_norm", "weight", &g->norms[1].view));
    }
    const mha_tensor sinks = guarded_slice(&g->sinks.view, 0, p->begin, d.num_heads);
    return d.flags & MHA_MODULE_SINKS ? mha_module_set_parameter(*module, "sinks", &sinks) : MHA_OK;
}

static mha_status linear_of(mha_context *context, const grid *g, int column, mha_linear **linear)
{
    const int64_t E = g->desc.embed_dim, begin = E * column / g->columns;
    const int64_t count = E * (column + 1) / g->columns - begin;
    const mha_tensor w = guarded_slice(&g->weight[O].view, 0, begin, count);
    const mha_tensor b = guarded_slice(&g->bias[O].view, 0, begin, count);
    return mha_linear_create(context, &w, g->desc.flags & MHA_MODULE_NO_OUT_BIAS ? NULL : &b,
                             linear);
}

/* Computes the rank's heads for the rank's rows. In a grid with one row, the module does; in a grid
 * with several rows, the module projects and mha_distributed computes attention over ranks. */
static mha_status own_heads(mha_context *context, const grid *g, const mha_transport *ranks,
                            const mha_head_piece *p, const mha_piece *rows, mha_tensor *heads)
{
    mha_module *module = NULL;
    const mha_tensor x = guarded_slice(&g->x.view, 1, rows->begin, rows->end - rows->begin);
    const int64_t T = x.shape[1], n = p->end - p->begin, kv = p->kv_end - p->kv_begin;
    mha_tensor q = room(4, (int64_t[]){g->B, n, T, g->desc.head_dim});
    mha_tensor k = room(4, (int64_t[]){g->B, kv, T, g->desc.head_dim});
    mha_tensor v = room(4, (int64_t[]){g->B, kv, T, g->desc.value_head_dim});
    mha_attention_desc attention = g->attention;
    const mha_positions positions = {.start = rows->begin};
    mha_module_outputs outputs = {
        .struct_size = sizeof outputs, .q = &q, .k = &k, .v = &v, .heads = heads};
    mha_module_call call = {.struct_size = sizeof call,
                            .attention = &attention,
                            .query = &x,
                            .key = &x,
                            .value = &x,
                            .outputs = &outputs};
    attention.first_head = p->begin;
    if (g->desc.flags & MHA_MODULE_ROPE) call.query_positions = call.key_positions = &positions;
    mha_status status = module_of(context, g, p, &module);
    if (status == MHA_OK) status = mha_module_run(context, module, &call);
    if (status == MHA_OK && g->rows > 1) {
        const mha_tensor sinks = guarded_slice(&g->sinks.view, 0, p->begin, n);
        const mha_sequence_split split = {.struct_size = sizeof split,
                                          .transport = ranks,
                                          .queries = g->T,
                                          .keys = g->T,
                                          .query_pieces = rows,
                                          .key_pieces = rows,
                                          .query_piece_count = 1,
                                          .key_piece_count = 1};
        if (g->desc.flags & MHA_MODULE_SINKS) attention.sink_logits = &sinks;
        status = mha_distributed_forward(context, &split, &attention, &q, &k, &v, heads, NULL);
    }
    mha_module_destroy(module);
    free(q.data), free(k.data), free(v.data);
    return status;
}

static void grid_rank(void *user, const mha_transport *t)
{
    grid *g = user;
    const int row = t->rank / g->columns, column = t->rank % g->columns;
    int32_t same_heads[MOST_RANKS], same_rows[MOST_RANKS];
    mha_transport_part sequence, heads;
    mha_linear *w_o = NULL;
    mha_head_piece p;
    mha_context *context = g->contexts[t->rank];
    for (int i = 0; i < g->rows; i++) same_heads[i] = i * g->columns + column;
    for (int i = 0; i < g->columns; i++) same_rows[i] = row * g->columns + i;
    const mha_piece rows = {g->T * row / g->rows, g->T * (row + 1) / g->rows};
    mha_status status = mha_transport_part_make(t, same_heads, g->rows, &sequence);
    if (status == MHA_OK) status = mha_transport_part_make(t, same_rows, g->columns, &heads);
    if (status == MHA_OK)
        status = mha_split_heads(g->desc.num_heads, g->desc.kv_heads, column, g->columns, &p);
    mha_tensor own =
        room(4, (int64_t[]){g->B, p.end - p.begin, rows.end - rows.begin, g->desc.value_head_dim});
    if (status == MHA_OK && p.end > p.begin)
        status = own_heads(context, g, &sequence.transport, &p, &rows, &own);
    if (status == MHA_OK) status = linear_of(context, g, column, &w_o);
    status = mha_transport_agree(t, status);
    if (status == MHA_OK)
        status = mha_distributed_mix(context, &heads.transport, &own, w_o, &g->outs[t->rank]);
    snprintf(g->detail[t->rank], sizeof *g->detail, "%s", status ? mha_error_detail() : "");
    mha_linear_destroy(w_o);
    free(own.data);
}

static void grid_make(grid *g, rng *r, int number)
{
    static const int64_t sizes[] = {1, 4, 8, 16, 33, 64};
    const int64_t kv = rng_between(r, 1, 4), group = rng_between(r, 1, 4);
    *g = (grid){.rows = (int)rng_between(r, 1, 2),
                .columns = (int)rng_between(r, 1, MOST_RANKS / 2),
                .B = rng_between(r, 1, 2),
                .T = rng_between(r, 1, 40),
                .attention = {.struct_size = sizeof g->attention,
                              .flags = rng_chance(r, 0.5) ? MHA_ATTENTION_CAUSAL : 0,
                              .dropout = rng_chance(r, 0.3) ? 0.2f : 0,
                              .dropout_seed = 77}};
    g->desc = (mha_module_desc){.struct_size = sizeof g->desc,
                                .num_heads = kv * group,
                                .kv_heads = kv,
                                .head_dim = RNG_PICK(r, sizes),
                                .value_head_dim = RNG_PICK(r, sizes),
                                .embed_dim = rng_between(r, 1, 90),
                                .flags = (uint32_t)rng_between(r, 0, 3)};
    if (rng_chance(r, 0.3)) g->desc.flags |= MHA_MODULE_SINKS;
    if (rng_chance(r, 0.3)) g->desc.flags |= MHA_MODULE_QK_NORM;
    if (rng_chance(r, 0.4) && g->desc.head_dim % 2 == 0) g->desc.flags |= MHA_MODULE_ROPE;
    g->desc.key_dim = g->desc.value_dim = g->desc.embed_dim;
    const mha_module_desc *d = &g->desc;
    const int64_t E = d->embed_dim;
    const int64_t shapes[PROJECTIONS][2] = {{d->num_heads * d->head_dim, E},
                                            {kv * d->head_dim, E},
                                            {kv * d->value_head_dim, E},
                                            {E, d->num_heads * d->value_head_dim}};
    for (int i = 0; i < PROJECTIONS; i++) {
        g->weight[i] = guarded_filled(r, 2, shapes[i], 0, 1 / sqrt((double)shapes[i][1]));
        g->bias[i] = guarded_filled(r, 1, shapes[i], 0, 0.5);
    }
    for (int i = 0; i < 2; i++) g->norms[i] = guarded_filled(r, 1, &d->head_dim, 0, 1);
    g->sinks = guarded_filled(r, 1, &d->num_heads, 0, 1);
    g->x = guarded_filled(r, 3, (int64_t[]){g->B, g->T, E}, 0, 1);
    for (int rank = 0; rank < g->rows * g->columns; rank++) {
        const int64_t row = rank / g->columns;
        const int64_t T = g->T * (row + 1) / g->rows - g->T * row / g->rows;
        g->outs[rank] = room(3, (int64_t[]){g->B, T, E});
        g->contexts[rank] = context_of(number, rank);
    }
}

static void grid_free(grid *g)
{
    for (int i = 0; i < PROJECTIONS; i++) guarded_free(&g->weight[i]), guarded_free(&g->bias[i]);
    for (int i = 0; i < 2; i++) guarded_free(&g->norms[i]);
    guarded_free(&g->sinks), guarded_free(&g->x);
    for (int rank = 0; rank < g->rows * g->columns; rank++) free(g->outs[rank].data);
}

static void a_module_on_a_grid(void)
{
    int first, end;
    rng_range(60, 1000, &first, &end);
    for (; first < end; first++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)first + 56000);
        grid g;
        mha_module *module;
        grid_make(&g, &r, first);
        const mha_head_piece all = {0, g.desc.num_heads, 0, g.desc.kv_heads};
        mha_context *context = g.contexts[0];
        mha_tensor out = room(3, g.x.view.shape);
        expect_ok(module_of(context, &g, &all, &module));
        expect_ok(set(module, "out_proj", "weight", &g.weight[O].view));
        if (!(g.desc.flags & MHA_MODULE_NO_OUT_BIAS))
            expect_ok(set(module, "out_proj", "bias", &g.bias[O].view));
        expect_ok(
            mha_module_run(context, module,
                           MODULE_CALL(&g.attention, &g.x.view, &g.x.view, &g.x.view, &out, NULL)));
        thread_ranks_run(g.rows * g.columns, grid_rank, &g, -1, 0);
        for (int rank = 0; rank < g.rows * g.columns; rank++) {
            const mha_tensor rows =
                guarded_slice(&out, 1, g.T * (rank / g.columns) / g.rows, g.outs[rank].shape[1]);
            assert_string_equal(g.detail[rank], "");
            if (!guarded_same_bits(&rows, &g.outs[rank], true))
                fail_msg("case %d: rank %d of %d x %d: other bits", first, rank, g.rows, g.columns);
        }
        mha_module_destroy(module);
        free(out.data);
        grid_free(&g);
    }
}

static mha_status short_of_memory(mha_context *context, failing_alloc *memory, void *user)
{
    mha_linear *w_o;
    const int64_t shape[] = {2, 3, 5, 8}, out_shape[] = {2, 5, 7};
    const mha_transport alone = {.struct_size = sizeof alone, .size = 1};
    (void)user;
    mha_tensor heads = room(4, shape), out = room(3, out_shape);
    mha_tensor w = room(2, (int64_t[]){7, 24});
    MHA_TRY(mha_linear_create(context, &w, NULL, &w_o));
    failing_from_here(memory);
    const mha_status status = mha_distributed_mix(context, &alone, &heads, w_o, &out);
    mha_linear_destroy(w_o);
    free(heads.data), free(out.data), free(w.data);
    return status;
}

static void without_memory(void)
{
    assert_true(failing_each(short_of_memory, NULL) > 0);
}

static void wrong_lists_of_ranks(void)
{
    mha_transport_part part;
    mha_transport whole = {.struct_size = sizeof whole, .size = 1};
    expect_ok(mha_transport_part_make(&whole, (int32_t[]){0}, 1, &part));
    assert_int_equal(part.transport.size, 1);
    expect_error(mha_transport_part_make(&whole, NULL, 1, &part), MHA_ERR_NULL, "ranks");
    expect_error(mha_transport_part_make(NULL, (int32_t[]){0}, 1, &part), MHA_ERR_NULL,
                 "transport");
    expect_error(mha_transport_part_make(&whole, (int32_t[]){0, 0}, 2, &part), MHA_ERR_ARGUMENT,
                 "once");
    expect_error(mha_transport_part_make(&whole, (int32_t[]){1}, 1, &part), MHA_ERR_ARGUMENT,
                 "rank 0");
    expect_error(mha_transport_part_make(&whole, (int32_t[]){0}, 0, &part), MHA_ERR_ARGUMENT,
                 "rank 0");
    expect_error(mha_transport_part_make(&whole, (int32_t[]){0}, 1, NULL), MHA_ERR_NULL, "part");
}

RUN_TESTS_BETWEEN(NULL, rank_contexts_destroy, TEST(each_head_is_at_one_rank),
                  TEST(pieces_have_the_bits_of_the_whole), TEST(tensors_are_brought_together),
                  TEST(refusals_reach_every_rank), TEST(other_tensors_are_refused),
                  TEST(a_lost_rank_ends_the_call), TEST(a_module_on_a_grid), TEST(without_memory),
                  TEST(wrong_lists_of_ranks))
