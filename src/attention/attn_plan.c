/* Planning of a checked problem: the choice of the back end, and the costs of a call. */
#include "attention/attn_plan.h"

#include "attention/attn_pages.h"

#include "base/checked.h"
#include "base/context.h"
#include "base/need.h"

#include <multihead/component.h>

/* Back ends in the order in which they are tried. */
static const mhai_attn_backend backends[] = {
    {.path = MHA_PATH_TILED,
     .compute = MHA_COMPUTE_BF16,
     .refuses = mhai_bf16_refuses,
     .instead = "use compute f32, or omit it",
     .plan = mhai_bf16_plan,
     .run = mhai_bf16_run},
    {.path = MHA_PATH_TILED,
     .compute = MHA_COMPUTE_F32,
     .reason = MHAI_TILED_REASON,
     .refuses = mhai_tiled_refuses,
     .instead = "request path plain, or clear MHA_ATTENTION_STRICT",
     .plan = mhai_tiled_plan,
     .run = mhai_tiled_run,
     .plan_backward = mhai_tiled_plan_backward,
     .run_backward = mhai_tiled_run_backward},
    {.path = MHA_PATH_PLAIN,
     .compute = MHA_COMPUTE_F32,
     .plan = mhai_plain_plan,
     .run = mhai_plain_run,
     .plan_backward = mhai_plain_plan_backward,
     .run_backward = mhai_plain_run_backward},
};

mha_status mhai_attn_choose(const mha_context *context, const mhai_attn_problem *p, bool backward,
                            const mhai_attn_backend **backend, const char **reason)
{
    const char *refusal = NULL, *instead = "only compute f32 has a path plain; use path auto";
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) {
        const mhai_attn_backend *row = &backends[i];
        if (row->compute != p->compute || (p->asked == MHA_PATH_PLAIN && row->path != p->asked) ||
            (backward && !row->run_backward))
            continue;
        const char *why = row->refuses ? row->refuses(context, p) : NULL;
        if (!why) {
            *backend = row;
            *reason = p->asked == MHA_PATH_PLAIN ? "plain was requested"
                      : refusal                  ? refusal
                                                 : row->reason;
            return MHA_OK;
        }
        refusal = why;
        instead = row->instead;
        if (p->strict) break;
    }
    return mha_fail(MHA_ERR_UNSUPPORTED, "%s%s%s", refusal ? refusal : "", refusal ? "; " : "",
                    instead);
}

mha_status mhai_attn_add_scratch(size_t *total, size_t bytes, int n)
{
    if (bytes == 0) return MHA_OK;
    if (!mhai_mul_size(bytes, (size_t)n, &bytes) || bytes > SIZE_MAX - 64 ||
        __builtin_add_overflow(*total, bytes / 64 * 64 + 64, total))
        return mha_fail(MHA_ERR_SIZE, "scratch for %d threads overflows", n);
    return MHA_OK;
}

mha_status mhai_attn_plan_call(const mha_context *context, const mhai_attn_call *call,
                               bool need_data, mhai_attn_plan *plan)
{
    *plan = (mhai_attn_plan){.threads = context->num_threads,
                             .kernels = mhai_kernels_for(context->isa)};
    mha_attention_plan *account = &plan->account;
    MHA_TRY(mhai_attn_check(call->desc, call->q, call->k, call->v, call->o, call->outputs,
                            need_data, call->part, &plan->p));
    plan->p.pages = call->pages;
    MHA_TRY(mhai_attn_choose(context, &plan->p, false, &plan->backend, &account->reason));
    account->path = plan->backend->path;
    account->compute = plan->p.compute;
    return plan->backend->plan(context, plan);
}

mha_status mhai_attn_forward(mha_context *context, const mhai_attn_call *call)
{
    mhai_attn_plan plan;
    MHA_TRY(mhai_attn_plan_call(context, call, true, &plan));
    const mha_scratch_mark mark = mha_scratch_top(context);
    return mha_scratch_end(context, mark, plan.backend->run(context, &plan));
}

mha_status mha_attention_forward(mha_context *context, const mha_attention_desc *desc,
                                 const mha_tensor *q, const mha_tensor *k, const mha_tensor *v,
                                 const mha_tensor *o, const mha_attention_outputs *outputs)
{
    if (!context) return mha_fail(MHA_ERR_NULL, "mha_attention_forward: context is NULL");
    return mhai_attn_forward(context, &(mhai_attn_call){desc, q, k, v, o, outputs, NULL, NULL});
}

/* ---- explaining ------------------------------------------------------------------------------ */

double mhai_attn_tensor_bytes(const mha_tensor *tensor)
{
    double bytes = tensor->data ? (double)mha_dtype_size(tensor->dtype) : 0;
    for (int i = 0; i < tensor->ndim; i++) bytes *= (double)tensor->shape[i];
    return bytes;
}

/* Bytes of the outputs. o is counted even if explain is called without it. */
static double output_bytes(const mhai_attn_problem *p)
{
    mhai_attn_named outputs[MHAI_ATTN_OUTPUTS];
    int count = mhai_attn_list_outputs(p, outputs);
    double bytes = (double)(p->q.shape[0] * p->H * p->q.shape[2]) * (double)p->Dv;
    bytes *= (double)mha_dtype_size(p->o.dtype);
    for (int i = 0; i < count; i++)
        if (outputs[i].tensor != &p->o) bytes += mhai_attn_tensor_bytes(outputs[i].tensor);
    return bytes;
}

mha_status mhai_attn_scratch_bytes(const mhai_attn_plan *plan, size_t *bytes)
{
    const mhai_attn_scratch *s = &plan->scratch;
    *bytes = 0;
    MHA_TRY(mhai_attn_add_scratch(bytes, s->worker, plan->threads));
    MHA_TRY(mhai_attn_add_scratch(bytes, s->index, 1));
    MHA_TRY(mhai_attn_add_scratch(bytes, s->kept, 1));
    return mhai_attn_add_scratch(bytes, s->split, 1);
}

/* Bytes of keys and values that the call reads. */
static double past_bytes(const mhai_attn_problem *p)
{
    const double runs = (double)(p->B * p->Hk) * (double)p->S / MHAI_RUN;
    if (!p->pages) return mhai_attn_tensor_bytes(&p->k) + mhai_attn_tensor_bytes(&p->v);
    return runs * (double)(p->pages->key_bytes + p->pages->value_bytes);
}

mha_status mhai_attn_explain(const mha_context *context, const mhai_attn_call *call,
                             mha_attention_plan *plan)
{
    mhai_attn_plan made;
    const mhai_attn_problem *p = &made.p;
    mha_attention_plan *account = &made.account;
    MHA_TRY(mhai_attn_plan_call(context, call, false, &made));
    MHA_TRY(mhai_attn_scratch_bytes(&made, &account->scratch_bytes));
    account->visible_pairs = mhai_attn_visible_pairs(p);
    account->flops = 2.0 * (double)(p->D + p->Dv) * (double)account->visible_pairs;
    account->flops +=
        2.0 * (double)p->D * (double)account->visible_pairs *
        mhai_attn_passes(p, account->path == MHA_PATH_TILED, made.tiling.scored_rows > 0);
    account->bytes = mhai_attn_tensor_bytes(&p->q) + past_bytes(p) + output_bytes(p);
    *plan = *account;
    return MHA_OK;
}

mha_status mha_attention_explain(const mha_context *context, const mha_attention_desc *desc,
                                 const mha_tensor *q, const mha_tensor *k, const mha_tensor *v,
                                 const mha_tensor *o, const mha_attention_outputs *outputs,
                                 mha_attention_plan *plan)
{
    MHA_NEED("mha_attention_explain", context, plan);
    return mhai_attn_explain(context, &(mhai_attn_call){desc, q, k, v, o, outputs, NULL, NULL},
                             plan);
}
