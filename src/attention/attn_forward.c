/* The public calls: check, choose, run; and the account that explain gives of it. */
#include "attention/attn_int8.h"
#include "attention/attn_tiles.h"

#include "base/checked.h"
#include "base/context.h"

#include <multihead/component.h>

mha_status mha_attention_forward(mha_context *context, const mha_attention_desc *desc,
                                 const mha_tensor *q, const mha_tensor *k, const mha_tensor *v,
                                 const mha_tensor *o, const mha_attention_outputs *outputs)
{
    if (!context) return mha_fail(MHA_ERR_NULL, "mha_attention_forward: context is NULL");
    mhai_attn_problem problem;
    MHA_TRY(mhai_attn_check(desc, q, k, v, o, outputs, true, &problem));
    if (problem.compute == MHA_COMPUTE_INT8) return mhai_attn_int8(context, &problem);
    return problem.path == MHA_PATH_TILED ? mhai_attn_tiled(context, &problem)
                                          : mhai_attn_plain(context, &problem);
}

/* How many times the scores of all rows are computed again for outputs on request. */
static double passes(const mhai_attn_problem *p, const mhai_attn_tiling *tiling)
{
    const mhai_attn_wanted *want = &p->want;
    const bool some = want->heads || want->rows, tiled = p->path == MHA_PATH_TILED;
    const double rows = (double)p->H * (double)p->q.shape[2];
    const double chosen = (double)want->heads_count * (double)want->rows_count;
    const double part = rows > 0 ? chosen / rows : 0; /* of the rows, in a pass over chosen ones */
    bool statistics = mhai_attn_wants_statistics(want);
    bool probabilities = mhai_attn_wants(&p->probabilities);
    double count = mhai_attn_wants(&want->average) && tiling->scored_rows == 0;
    count += mhai_attn_wants(&want->column_sums);
    if (mhai_attn_wants(&want->scores)) count += part;
    if (some && probabilities) count += part;
    if (tiled) count += statistics || (probabilities && !some);
    return count;
}

static double tensor_bytes(const mha_tensor *tensor)
{
    double bytes = tensor->data ? (double)mha_dtype_size(tensor->dtype) : 0;
    for (int i = 0; i < tensor->ndim; i++) bytes *= (double)tensor->shape[i];
    return bytes;
}

/* o counts, named or not. */
static double output_bytes(const mhai_attn_problem *p)
{
    mhai_attn_named outputs[MHAI_ATTN_OUTPUTS];
    int count = mhai_attn_list_outputs(p, outputs);
    double bytes = (double)(p->q.shape[0] * p->H * p->q.shape[2]) * (double)p->Dv;
    bytes *= (double)mha_dtype_size(p->o.dtype);
    for (int i = 0; i < count; i++)
        if (outputs[i].tensor != &p->o) bytes += tensor_bytes(outputs[i].tensor);
    return bytes;
}

/* As scratch is handed out. */
static size_t rounded(size_t bytes)
{
    return bytes / 64 * 64 + 64;
}

/* What the tiled path does with keys and values, and what comes after it. */
static const char *tiled_reason(const mhai_attn_problem *p, const mhai_attn_tiling *tiling,
                                bool in_place)
{
    if (tiling->scored_rows > 0)
        return "the tiled path takes this problem; it keeps the scores of a chunk of rows until "
               "their average over heads can be taken";
    if (mhai_attn_is_one_block(p, tiling))
        return "the tiled path takes this problem; the keys are one block, so each strip of rows "
               "is finished at once";
    if (passes(p, tiling) > 0)
        return "the tiled path takes this problem; outputs on request take further passes over its "
               "scores";
    if (in_place)
        return "the tiled path takes this problem; with so few queries it reads finite keys and "
               "values where they lie, without packing them";
    return p->reason;
}

/* All items of the forward pass. */
static int64_t items_of(const mhai_attn_problem *p, const mhai_attn_tiling *tiling)
{
    const mhai_attn_walk walk = {.p = p, .tiling = *tiling};
    return tiling->scored_rows > 0 ? mhai_attn_average_items(&walk) : tiling->items;
}

static mha_status scratch_bytes(const mha_context *context, const mhai_attn_problem *p,
                                mha_attention_plan *plan, mhai_attn_tiling *tiling)
{
    size_t worker = 0, shared = 0;
    if (p->path == MHA_PATH_TILED) {
        const int tile_rows = mhai_kernels_for(context->isa)->tile_rows;
        MHA_TRY(mhai_attn_tile(p, context->num_threads, tile_rows, tiling));
        const int64_t items = items_of(p, tiling);
        const int64_t scored = tiling->scored_rows;
        const int64_t queries = mhai_min_i64(tiling->average_queries, p->T);
        const int64_t chunk =
            scored ? mhai_min_i64(scored, p->group * queries) : tiling->chunk_rows;
        const bool one_block = mhai_attn_is_one_block(p, tiling);
        const bool in_place = items > 0 && p->S > 0 && !scored && !one_block &&
                              mhai_attn_by_rows(p, chunk, tile_rows);
        plan->work_items = mhai_attn_alone(context, p) ? items > 0 : items;
        plan->row_block = mhai_attn_strip_rows(p, chunk, tile_rows);
        plan->reason = tiled_reason(p, tiling, in_place);
        if (in_place) plan->flags |= MHA_PLAN_KEYS_IN_PLACE;
        if (one_block) plan->flags |= MHA_PLAN_ONE_BLOCK;
        worker = tiling->worker_bytes;
        if (tiling->kept_rows > 0) shared += rounded((size_t)tiling->kept_rows * 2 * sizeof(float));
        if (tiling->split_blocks > 0) {
            plan->work_items = tiling->items * tiling->split_blocks;
            plan->flags |= MHA_PLAN_KEYS_SHARED;
            shared += rounded((size_t)tiling->split_floats * sizeof(float));
        }
        if (p->compute == MHA_COMPUTE_INT8) {
            const mhai_int8_kernels *kernels = mhai_int8_kernels_for(context->isa);
            plan->reason = kernels->reason;
            shared +=
                rounded(mhai_attn_int8_bytes(p, tiling, kernels) * (size_t)context->num_threads);
        }
        if (p->query_starts) shared += rounded((size_t)(p->B + 1) * sizeof(int64_t));
    } else {
        MHA_TRY(mhai_attn_plain_bytes(p, &worker));
        plan->work_items = p->q.shape[0] * p->H * p->q.shape[2]; /* ragged too */
    }
    if (!mhai_mul_size(worker, (size_t)context->num_threads, &plan->scratch_bytes) ||
        __builtin_add_overflow(rounded(plan->scratch_bytes), shared, &plan->scratch_bytes))
        return mha_fail(MHA_ERR_SIZE, "scratch for %d threads overflows", context->num_threads);
    return MHA_OK;
}

mha_status mha_attention_explain(const mha_context *context, const mha_attention_desc *desc,
                                 const mha_tensor *q, const mha_tensor *k, const mha_tensor *v,
                                 const mha_tensor *o, const mha_attention_outputs *outputs,
                                 mha_attention_plan *plan)
{
    if (!context || !plan)
        return mha_fail(MHA_ERR_NULL, "mha_attention_explain: %s is NULL",
                        context ? "plan" : "context");
    mhai_attn_problem p;
    MHA_TRY(mhai_attn_check(desc, q, k, v, o, outputs, false, &p));
    bool tiled = p.path == MHA_PATH_TILED;
    mha_attention_plan made = {.path = p.path, .reason = p.reason, .compute = p.compute};
    made.isa = tiled ? context->isa : MHA_ISA_PORTABLE;
    made.key_block = tiled ? MHAI_KEY_BLOCK : p.S;
    made.row_block = 1;
    mhai_attn_tiling tiling = {0};
    MHA_TRY(scratch_bytes(context, &p, &made, &tiling));
    made.visible_pairs = mhai_attn_visible_pairs(&p);
    made.flops = 2.0 * (double)(p.D + p.Dv) * (double)made.visible_pairs;
    made.flops += 2.0 * (double)p.D * (double)made.visible_pairs * passes(&p, &tiling);
    made.bytes = tensor_bytes(&p.q) + tensor_bytes(&p.k) + tensor_bytes(&p.v) + output_bytes(&p);
    *plan = made;
    return MHA_OK;
}
