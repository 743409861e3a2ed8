/* See distributed.h. */
#include "distributed/distributed.h"

#include "base/checked.h"
#include "base/hash.h"
#include "base/need.h"
#include "base/tensor.h"
#include "ranks/rank_messages.h"

#include <multihead/component.h>

#include <stddef.h>
#include <string.h>

/* ---- the caller's arguments ------------------------------------------------------------------ */

mha_status mhai_slice_arguments(const char *name, const mha_context *context,
                                const mha_sequence_split *split)
{
    MHA_NEED(name, context, split);
    MHA_TRY(mha_struct_check_size("mha_sequence_split", split->struct_size, sizeof *split));
    return mhai_ranks_check(split->transport);
}

mha_status mhai_slice_take(const char *name, const mha_attention_desc *desc, const mha_tensor *q,
                           const mha_tensor *k, const mha_tensor *v, const mha_tensor *o,
                           const mha_attention_outputs *outputs, mhai_slice_call *call)
{
    *call = (mhai_slice_call){.q = q, .k = k, .v = v, .o = o};
    MHA_NEED(name, q, k, v);
    MHA_TRY(mhai_struct_copy("mha_attention_desc", &call->desc, sizeof call->desc,
                             offsetof(mha_attention_desc, left_keys), desc));
    MHA_TRY(mhai_attn_copy_outputs(outputs, &call->outputs));
    call->desc.struct_size = sizeof call->desc; /* the caller may not have set it */
    call->outputs.struct_size = sizeof call->outputs;
    return MHA_OK;
}

/* ---- tensors over queries -------------------------------------------------------------------- */

const mhai_row_output mhai_row_outputs[MHAI_ROW_OUTPUTS] = {{"lse", 3, false},
                                                            {"entropy", 3, false},
                                                            {"largest_weight", 3, false},
                                                            {"largest_key", 3, false},
                                                            {"first_token", 3, false},
                                                            {"diagonal", 3, false},
                                                            {"offset_mass", 4, true},
                                                            {"top_keys", 4, true},
                                                            {"top_weights", 4, true},
                                                            {"average_probabilities", 3, true},
                                                            {"probabilities", 4, true},
                                                            {"scores", 4, true}};

const mha_tensor **mhai_slice_output(mha_attention_outputs *o, int i)
{
    const mha_tensor **all[MHAI_ROW_OUTPUTS] = {&o->lse,
                                                &o->entropy,
                                                &o->largest_weight,
                                                &o->largest_key,
                                                &o->first_token,
                                                &o->diagonal,
                                                &o->offset_mass,
                                                &o->top_keys,
                                                &o->top_weights,
                                                &o->average_probabilities,
                                                &o->probabilities,
                                                &o->scores};
    return all[i];
}

const mha_tensor **mhai_slice_mask(mha_attention_desc *d, int i)
{
    const mha_tensor **all[MHAI_ROW_INPUTS] = {&d->keep_mask, &d->bias, &d->global_queries,
                                               &d->query_documents};
    return all[i];
}

mha_tensor mhai_slice_view(const mha_tensor *x, bool columns)
{
    const int first = 4 - !columns - x->ndim;
    mha_tensor made = {.data = x->data, .dtype = x->dtype, .ndim = 4, .shape = {1, 1, 1, 1}};
    for (int i = 0; i < x->ndim; i++) {
        made.shape[first + i] = x->shape[i];
        if (x->shape[i] != 1) made.stride[first + i] = x->stride[i];
    }
    return made;
}

/* Ranks without rows are ignored, because their tensors are not checked. If no rank has two rows, a
 * tensor with one row may differ between ranks. */
mha_status mhai_slice_masks(const mhai_slice_call *call, const mhai_split *split, mhai_masks *m)
{
    enum { AXES = 4, ROWS = MHAI_ROW_INPUTS * AXES, NUMBERS };
    mha_attention_desc desc = call->desc;
    int64_t most[NUMBERS] = {[ROWS] = split->rows};
    for (int i = 0; i < ROWS && split->rows > 0; i++) {
        const mha_tensor *given = *mhai_slice_mask(&desc, i / AXES);
        if (given)
            most[i] = mhai_slice_view(given, mhai_mask_has_columns(i / AXES)).shape[i % AXES];
    }
    MHA_TRY(mhai_ranks_most(split->t, most, NUMBERS));
    for (int i = 0; i < MHAI_ROW_INPUTS; i++) {
        memcpy(m->shape[i], most + i * AXES, sizeof m->shape[i]);
        m->by_row[i] = m->shape[i][2] > 1 || most[ROWS] == 1;
        m->shape[i][2] = 1;
    }
    return MHA_OK;
}

/* Restrict an axis to rows first .. first + rows - 1. */
static void cut(const mha_tensor *x, int axis, int64_t first, int64_t rows, mha_tensor *to)
{
    *to = *x;
    to->shape[axis] = rows;
    if (to->data)
        to->data = (char *)to->data + first * x->stride[axis] * (int64_t)mha_dtype_size(x->dtype);
}

/* ---- selected heads -------------------------------------------------------------------------- */

void mhai_slice_heads(mha_attention_desc *d, int64_t begin, int64_t end,
                      mha_tensor inputs[MHAI_HEAD_INPUTS])
{
    const struct {
        const mha_tensor **x;
        int from_last;
        bool broadcasts;
    } each[MHAI_HEAD_INPUTS] = {{&d->keep_mask, 2, true},   {&d->bias, 2, true},
                                {&d->keep_blocks, 2, true}, {&d->alibi_slopes, 0, true},
                                {&d->t5_table, 0, false},   {&d->sink_logits, 0, false},
                                {&d->gates, 0, true}};
    d->first_head += begin;
    for (int i = 0; i < MHAI_HEAD_INPUTS; i++) {
        const mha_tensor *x = *each[i].x;
        const int axis = x ? x->ndim - 1 - each[i].from_last : -1;
        if (axis < 0 || (each[i].broadcasts && x->shape[axis] == 1)) continue;
        cut(x, axis, begin, end - begin, &inputs[i]);
        *each[i].x = &inputs[i];
    }
}

/* ---- the values that all ranks agree on ------------------------------------------------------ */

static mha_status check_ragged(const mhai_slice_call *call, const mhai_split *split)
{
    const mha_attention_desc *d = &call->desc;
    if (!d->query_starts && !d->key_starts && d->sequences == 0) return MHA_OK;
    if (!d->query_starts || !d->key_starts || d->sequences < 1 || d->sequences > INT32_MAX)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "a ragged batch requires query_starts, key_starts and sequences >= 1");
    if (call->q->shape[0] != 1)
        return mha_fail(MHA_ERR_SHAPE, "q: dim 0 is %lld, expected 1 for a ragged batch",
                        (long long)call->q->shape[0]);
    int64_t longest;
    MHA_TRY(mhai_attn_check_starts("query_starts", d->query_starts, d->sequences,
                                   split->given.queries, &longest));
    return mhai_attn_check_starts("key_starts", d->key_starts, d->sequences, split->given.keys,
                                  &longest);
}

static mha_status check_rows(const char *name, const mha_tensor *x, int64_t rows)
{
    if (x->ndim != 4)
        return mha_fail(MHA_ERR_SHAPE, "%s: has %d dimensions, expected 4", name, (int)x->ndim);
    if (x->shape[2] == rows) return MHA_OK;
    return mha_fail(MHA_ERR_SHAPE, "%s: dim 2 is %lld, the pieces of this rank have %lld rows",
                    name, (long long)x->shape[2], (long long)rows);
}

static uint64_t add_list(uint64_t hash, const int64_t *list, int64_t count)
{
    const bool given = list != NULL;
    hash = mhai_hash(hash, &given, sizeof given);
    return given ? mhai_hash(hash, list, (size_t)count * sizeof *list) : hash;
}

/* One bit per given input. */
static uint64_t given_of(const mha_attention_desc *d)
{
    uint64_t bits = d->keep_callback != NULL;
#define GIVEN(name, ...) bits = bits << 1 | (d->name != NULL);
    MHA_ATTENTION_INPUTS(GIVEN)
#undef GIVEN
    return bits;
}

/* One bit per requested output, and bits for selected heads or rows. */
static int32_t outputs_of(const mha_attention_outputs *given)
{
    mha_attention_outputs o = *given;
    int32_t bits = (o.column_sums != NULL) << 2 | (o.heads != NULL) << 1 | (o.rows != NULL);
    for (int i = 0; i < MHAI_ROW_OUTPUTS; i++)
        bits = bits << 1 | (*mhai_slice_output(&o, i) != NULL);
    return bits;
}

static void fill_common(const mhai_slice_call *call, const mhai_split *split, mhai_slice_common *c)
{
    const mha_attention_desc *d = &call->desc;
    const mha_tensor *q = call->q, *k = call->k, *v = call->v;
    const mha_attention_outputs *o = &call->outputs;
    const int64_t batch = d->sequences ? d->sequences : q->shape[0];
    c->batch = q->shape[0], c->heads = q->shape[1], c->head_dim = q->shape[3];
    c->kv_heads = k->shape[1], c->value_dim = v->shape[3];
    c->queries = split->given.queries, c->keys = split->given.keys;
    c->q_offset = d->q_offset, c->left_keys = d->left_keys, c->right_keys = d->right_keys;
    c->sink_keys = d->sink_keys, c->block_queries = d->block_queries;
    c->block_keys = d->block_keys, c->t5_max_distance = d->t5_max_distance;
    c->first_head = d->first_head;
    c->sequences = d->sequences, c->dropout_seed = d->dropout_seed;
    c->lists = add_list(MHAI_HASH_START, d->q_offsets, batch);
    c->lists = add_list(c->lists, d->key_lengths, batch);
    c->lists = add_list(c->lists, d->key_begins, batch);
    c->lists = add_list(c->lists, d->query_starts, batch + 1);
    c->lists = add_list(c->lists, d->key_starts, batch + 1);
    c->lists = add_list(c->lists, o->offsets, o->offsets_count);
    c->given = given_of(d);
    c->k_type = (int32_t)k->dtype, c->v_type = (int32_t)v->dtype;
    c->compute = (int32_t)d->compute, c->path = (int32_t)d->path;
    c->outputs = outputs_of(o);
    c->top_keys = o->top_keys && o->top_keys->ndim == 4 ? o->top_keys->shape[3] : 0;
    c->stage = (int32_t)o->score_stage;
    c->q_types = (int32_t)q->dtype | (call->o ? (int32_t)call->o->dtype << 8 : 0) |
                 (d->bias ? (int32_t)d->bias->dtype << 16 : 0);
    c->flags = d->flags, c->output_flags = o->flags;
    c->scale = d->scale, c->softcap = d->softcap, c->dropout = d->dropout;
}

mha_status mhai_slice_check(const mhai_slice_call *call, const mhai_split *split,
                            mhai_slice_common *common)
{
    memset(common, 0, sizeof *common); /* clears padding too, because the struct is compared as
                                        * bytes */
    common->version = mha_version_number();
    if (call->status != MHA_OK) return call->status;
    MHA_TRY(mhai_tensor_check_real("q", call->q));
    MHA_TRY(check_rows("q", call->q, split->rows));
    MHA_TRY(check_rows("k", call->k, split->key_rows));
    MHA_TRY(check_rows("v", call->v, split->key_rows));
    MHA_TRY(check_ragged(call, split));
    if (call->outputs.rows && split->given.query_piece_count > 1)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "rows: a list of rows takes one piece of queries, this rank has %lld",
                        (long long)split->given.query_piece_count);
    fill_common(call, split, common);
    return MHA_OK;
}

/* ---- slices ---------------------------------------------------------------------------------- */

mha_status mhai_slice_cut(const char *name, const mha_tensor **x, int axis, bool broadcasts,
                          int64_t all, int64_t first, int64_t rows, mha_tensor *to)
{
    if (!*x || (broadcasts && (axis < 0 || axis >= MHA_MAX_DIMS || (*x)->shape[axis] == 1)))
        return MHA_OK;
    if (axis >= (*x)->ndim || (*x)->shape[axis] != all)
        return mha_fail(MHA_ERR_SHAPE, "%s: expected the %lld rows here as dim %d%s", name,
                        (long long)all, axis, broadcasts ? ", or 1" : "");
    cut(*x, axis, first, rows, to);
    *x = to;
    return MHA_OK;
}

/* For each sequence, set the number of its queries before the piece, and their start in the
 * piece. */
static mha_status place_sequences(mha_context *context, const mhai_slice_call *call,
                                  const mha_piece *piece, mhai_slice *s)
{
    const mha_attention_desc *d = &call->desc;
    const int64_t sequences = d->query_starts ? d->sequences : call->q->shape[0];
    MHA_TRY(mha_scratch_alloc(context, sequences, sizeof(int64_t), &s->before));
    for (int64_t b = 0; b < sequences; b++) s->before[b] = piece->begin;
    s->part.queries_before = s->before;
    if (!d->query_starts) return MHA_OK;
    MHA_TRY(mha_scratch_alloc(context, sequences + 1, sizeof(int64_t), &s->starts));
    for (int64_t b = 0; b <= sequences; b++)
        s->starts[b] =
            mhai_max_i64(piece->begin, mhai_min_i64(d->query_starts[b], piece->end)) - piece->begin;
    for (int64_t b = 0; b < sequences; b++)
        s->before[b] = mhai_max_i64(0, mhai_min_i64(piece->begin, d->query_starts[b + 1]) -
                                           d->query_starts[b]);
    s->desc.query_starts = s->starts;
    return MHA_OK;
}

mha_status mhai_slice_piece(mha_context *context, const mhai_slice_call *call,
                            const mhai_split *split, int64_t all, const mha_piece *piece,
                            int64_t first, mhai_slice *s)
{
    const int64_t rows = piece->end - piece->begin;
    static const char *const names[MHAI_ROW_INPUTS] = {"keep_mask", "bias", "global_queries",
                                                       "query_documents"};
    *s = (mhai_slice){.desc = call->desc, .outputs = call->outputs, .has_o = call->o};
    const mha_tensor *o = call->o;
    s->outputs.column_sums = NULL;
    s->part.T = split->given.queries;
    cut(call->q, 2, first, rows, &s->q);
    MHA_TRY(mhai_slice_cut("o", &o, 2, false, all, first, rows, &s->o));
    for (int i = 0; i < MHAI_ROW_INPUTS; i++) {
        const mha_tensor **x = mhai_slice_mask(&s->desc, i);
        const int axis = *x ? (*x)->ndim - 1 - mhai_mask_has_columns(i) : 0;
        MHA_TRY(mhai_slice_cut(names[i], x, axis, true, all, first, rows, &s->inputs[i]));
    }
    for (int i = 0; i < MHAI_ROW_OUTPUTS; i++) {
        const mhai_row_output *of = &mhai_row_outputs[i];
        if (s->outputs.rows && i > MHAI_FIRST_PAIRS) continue; /* these have only selected rows */
        MHA_TRY(mhai_slice_cut(of->name, mhai_slice_output(&s->outputs, i),
                               of->ndim - 1 - of->columns, false, all, first, rows,
                               &s->results[i]));
    }
    return place_sequences(context, call, piece, s);
}

mha_status mhai_slice_make(mha_context *context, const mhai_slice_call *call,
                           const mhai_split *split, const mha_piece *pieces, int64_t count,
                           mhai_slice **slices)
{
    int64_t first = 0, all = 0;
    MHA_TRY(mha_scratch_alloc(context, count, sizeof **slices, slices));
    for (int64_t i = 0; i < count; i++) all += pieces[i].end - pieces[i].begin;
    for (int64_t i = 0; i < count; i++) {
        MHA_TRY(mhai_slice_piece(context, call, split, all, &pieces[i], first, &(*slices)[i]));
        first += pieces[i].end - pieces[i].begin;
    }
    return MHA_OK;
}

mhai_attn_call mhai_slice_call_of(const mhai_slice *s)
{
    return (mhai_attn_call){.desc = &s->desc,
                            .q = &s->q,
                            .o = s->has_o ? &s->o : NULL,
                            .outputs = &s->outputs,
                            .part = &s->part};
}
