/* Checks of mha_attention_outputs: shapes, lists, and overlaps with inputs and other outputs. */
#include "attention/attn.h"

#include "base/need.h"
#include "base/tensor.h"

#include <multihead/component.h>

#include <stddef.h>

bool mhai_attn_wants(const mha_tensor *output)
{
    for (int i = 0; i < output->ndim; i++)
        if (output->shape[i] == 0) return false;
    return output->data;
}

bool mhai_attn_wants_statistics(const mhai_attn_wanted *want)
{
    return want->entropy.data || want->largest_weight.data || want->largest_key.data ||
           want->first_token.data || want->diagonal.data || want->offset_mass.data ||
           want->top_keys.data;
}

/* A valid address for pointer arithmetic, never read or written. */
static double nothing;

mha_status mhai_attn_check_output(const char *name, const mha_tensor *given, mha_dtype dtype,
                                  int ndim, const int64_t *shape, bool need_data,
                                  mha_tensor *tensor)
{
    if (!given) return MHA_OK;
    *tensor = *given;
    if (!need_data && !tensor->data) tensor->data = &nothing;
    MHA_TRY(mhai_tensor_check(name, tensor, dtype, ndim, shape));
    if (!tensor->data) tensor->data = &nothing; /* no elements */
    MHA_TRY(mhai_tensor_check_last(name, tensor));
    return mhai_tensor_check_output(name, tensor);
}

/* ---- lists ---------------------------------------------------------------------------------- */

/* Check a list of indices below `most`. NULL with a count of 0 means all. */
static mha_status check_list(const char *name, const int64_t *list, int64_t count, int64_t most,
                             int64_t *chosen)
{
    if (count < 0 || (!list && count != 0))
        return mha_fail(MHA_ERR_ARGUMENT, "%s: %s with a count of %lld; NULL and 0 select all",
                        name, list ? "a list" : "NULL", (long long)count);
    *chosen = list ? count : most;
    for (int64_t i = 0; i < count; i++) MHA_TRY(mhai_check_entry(name, i, list[i], 0, most - 1));
    return MHA_OK;
}

static mha_status check_lists(const mha_attention_outputs *given, const mhai_attn_problem *p,
                              mhai_attn_wanted *want)
{
    MHA_TRY(check_list("heads", given->heads, given->heads_count, p->H, &want->heads_count));
    MHA_TRY(check_list("rows", given->rows, given->rows_count, p->q.shape[2], &want->rows_count));
    if (given->offsets_count < 0 || !given->offset_mass != !given->offsets)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "offset_mass requires offsets and a count of at least 0 (it is %lld), and "
                        "offsets require offset_mass",
                        (long long)given->offsets_count);
    if (!given->offsets && given->offsets_count != 0)
        return mha_fail(MHA_ERR_ARGUMENT, "offsets: NULL with a count of %lld",
                        (long long)given->offsets_count);
    want->heads = given->heads;
    want->rows = given->rows;
    want->offsets = given->offsets;
    want->offsets_count = given->offsets_count;
    return MHA_OK;
}

/* ---- tensors -------------------------------------------------------------------------------- */

static mha_status check_matrices(const mha_attention_outputs *given, bool need_data,
                                 mhai_attn_problem *p)
{
    mhai_attn_wanted *want = &p->want;
    const int64_t batch = p->q.shape[0], rows = p->q.shape[2];
    const int64_t chosen[] = {batch, want->heads_count, want->rows_count, p->S};
    const int64_t average[] = {batch, rows, p->S};
    const int64_t sums[] = {batch, p->H, p->k.shape[2]};
    MHA_TRY(mhai_check_range("score_stage", given->score_stage, 0, MHA_SCORES_BIASED));
    want->stage = given->score_stage;
    MHA_TRY(mhai_attn_check_output("probabilities", given->probabilities, MHA_F32, 4, chosen,
                                   need_data, &p->probabilities));
    MHA_TRY(mhai_attn_check_output("average_probabilities", given->average_probabilities, MHA_F32,
                                   3, average, need_data, &want->average));
    MHA_TRY(mhai_attn_check_output("scores", given->scores, MHA_F32, 4, chosen, need_data,
                                   &want->scores));
    if (p->part && p->part->columns) {
        double *data = p->part->columns->sums;
        want->column_sums = mha_tensor_contiguous(data ? data : &nothing, MHA_F64, 3, sums);
    }
    return mhai_attn_check_output("column_sums", given->column_sums, MHA_F32, 3, sums, need_data,
                                  &want->column_sums);
}

static mha_status check_top(const mha_attention_outputs *given, bool need_data,
                            mhai_attn_problem *p)
{
    mhai_attn_wanted *want = &p->want;
    if (!given->top_keys != !given->top_weights)
        return mha_fail(MHA_ERR_ARGUMENT, "set both top_keys and top_weights, or neither");
    if (!given->top_keys) return MHA_OK;
    int64_t shape[] = {p->q.shape[0], p->H, p->q.shape[2], -1};
    MHA_TRY(mhai_attn_check_output("top_keys", given->top_keys, MHA_I64, 4, shape, need_data,
                                   &want->top_keys));
    shape[3] = want->top_keys.shape[3];
    if (shape[3] < 1)
        return mha_fail(MHA_ERR_SHAPE, "top_keys: dim 3 is 0, expected at least 1 key");
    return mhai_attn_check_output("top_weights", given->top_weights, MHA_F32, 4, shape, need_data,
                                  &want->top_weights);
}

static mha_status check_rows(const mha_attention_outputs *given, bool need_data,
                             mhai_attn_problem *p)
{
    mhai_attn_wanted *want = &p->want;
    const int64_t shape[] = {p->q.shape[0], p->H, p->q.shape[2], given->offsets_count};
    MHA_TRY(mhai_attn_check_output("lse", given->lse, MHA_F32, 3, shape, need_data, &p->lse));
    MHA_TRY(mhai_attn_check_output("entropy", given->entropy, MHA_F32, 3, shape, need_data,
                                   &want->entropy));
    MHA_TRY(mhai_attn_check_output("largest_weight", given->largest_weight, MHA_F32, 3, shape,
                                   need_data, &want->largest_weight));
    MHA_TRY(mhai_attn_check_output("largest_key", given->largest_key, MHA_I64, 3, shape, need_data,
                                   &want->largest_key));
    MHA_TRY(mhai_attn_check_output("first_token", given->first_token, MHA_F32, 3, shape, need_data,
                                   &want->first_token));
    MHA_TRY(mhai_attn_check_output("diagonal", given->diagonal, MHA_F32, 3, shape, need_data,
                                   &want->diagonal));
    MHA_TRY(mhai_attn_check_output("offset_mass", given->offset_mass, MHA_F32, 4, shape, need_data,
                                   &want->offset_mass));
    return check_top(given, need_data, p);
}

/* ---- the call ------------------------------------------------------------------------------- */

mha_status mhai_attn_copy_outputs(const mha_attention_outputs *outputs, mha_attention_outputs *own)
{
    MHA_TRY(mhai_struct_copy("mha_attention_outputs", own, sizeof *own,
                             offsetof(mha_attention_outputs, average_probabilities), outputs));
    MHA_TRY(
        mhai_check_flags("mha_attention_outputs", own->flags, MHA_OUTPUT_DROPPED_PROBABILITIES));
    return mhai_check_reserved("mha_attention_outputs", own->reserved);
}

mha_status mhai_attn_check_outputs(const mha_attention_outputs *given, bool need_data,
                                   mhai_attn_problem *p)
{
    p->want.dropped = given->flags & MHA_OUTPUT_DROPPED_PROBABILITIES && p->dropout > 0;
    MHA_TRY(check_lists(given, p, &p->want));
    MHA_TRY(check_matrices(given, need_data, p));
    return check_rows(given, need_data, p);
}

int mhai_attn_list_outputs(const mhai_attn_problem *p, mhai_attn_named list[MHAI_ATTN_OUTPUTS])
{
    const mhai_attn_wanted *want = &p->want;
    const mhai_attn_named all[MHAI_ATTN_OUTPUTS] = {{"o", &p->o},
                                                    {"lse", &p->lse},
                                                    {"probabilities", &p->probabilities},
                                                    {"average_probabilities", &want->average},
                                                    {"scores", &want->scores},
                                                    {"entropy", &want->entropy},
                                                    {"largest_weight", &want->largest_weight},
                                                    {"largest_key", &want->largest_key},
                                                    {"first_token", &want->first_token},
                                                    {"diagonal", &want->diagonal},
                                                    {"offset_mass", &want->offset_mass},
                                                    {"top_keys", &want->top_keys},
                                                    {"top_weights", &want->top_weights},
                                                    {"column_sums", &want->column_sums}};
    int count = 0;
    for (int i = 0; i < MHAI_ATTN_OUTPUTS; i++)
        if (all[i].tensor->data) list[count++] = all[i];
    return count;
}

double mhai_attn_passes(const mhai_attn_problem *p, bool tiled, bool scored)
{
    const mhai_attn_wanted *want = &p->want;
    const bool some = want->heads || want->rows;
    const double rows = (double)p->H * (double)p->q.shape[2];
    const double chosen = (double)want->heads_count * (double)want->rows_count;
    const double part = rows > 0 ? chosen / rows : 0; /* fraction of rows that are chosen */
    const bool statistics = mhai_attn_wants_statistics(want);
    const bool probabilities = mhai_attn_wants(&p->probabilities);
    double count = mhai_attn_wants(&want->average) && !scored;
    count += mhai_attn_wants(&want->column_sums);
    if (mhai_attn_wants(&want->scores)) count += part;
    if (some && probabilities) count += part;
    if (tiled) count += statistics || (probabilities && !some);
    return count;
}
