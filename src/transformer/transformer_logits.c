/* The last step of a forward call: logits = x W_out^T, then scale, then softcap: c tanh(logits /
 * c). */
#include "base/math.h"
#include "nn/nn_check.h"
#include "transformer/transformer_parts.h"

#include <multihead/component.h>

typedef struct cap_job {
    const mha_tensor *logits;
    double scale, cap;
} cap_job;

static void cap_row(void *argument, int64_t row, int worker)
{
    const cap_job *job = argument;
    (void)worker;
    float *x = mhai_nn_row(job->logits, row);
    for (int64_t i = 0; i < job->logits->shape[1]; i++)
        x[i] = (float)(job->cap > 0 ? job->cap * mhai_tanh(job->scale * (double)x[i] / job->cap)
                                    : job->scale * (double)x[i]);
}

mha_status mhai_transformer_logits(mha_context *context, const mha_transformer *t,
                                   const mha_tensor *hidden, const mha_tensor *logits)
{
    cap_job job = {logits, (double)t->desc.logit_scale, (double)t->desc.logit_softcap};
    if (!mhai_spread_mine(t, t->desc.num_layers))
        return mha_fail(MHA_ERR_UNSUPPORTED, "transformer: its output is on another rank");
    MHA_TRY(mha_linear_forward(context, t->output.packed, MHA_ACTIVATION_NONE, hidden, logits));
    if (job.cap > 0 || job.scale < 1 || job.scale > 1)
        mha_parallel_for(context, logits->shape[0], cap_row, &job);
    return MHA_OK;
}

static mha_status check_rows(const char *name, const mha_tensor *x, int64_t rows, int64_t width)
{
    if (x->ndim == 2 && x->shape[0] == rows && x->shape[1] == width) return MHA_OK;
    return mha_fail(MHA_ERR_SHAPE, "%s: expected [%lld,%lld]", name, (long long)rows,
                    (long long)width);
}

static mha_status check_call(const mha_transformer *t, const mha_tensor *hidden,
                             const mha_tensor *logits)
{
    MHA_NEED("mha_transformer_logits", hidden, logits);
    if (mhai_transformer_has(t, MHA_TRANSFORMER_NO_OUTPUT))
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_transformer_logits: this transformer has no "
                                             "logits (MHA_TRANSFORMER_NO_OUTPUT)");
    const int64_t rows = hidden->ndim == 2 ? hidden->shape[0] : 0;
    MHA_TRY(check_rows("hidden", hidden, rows, t->desc.embed_dim));
    return check_rows("logits", logits, rows, t->desc.vocab_size);
}

mha_status mha_transformer_logits(mha_context *context, const mha_transformer *transformer,
                                  const mha_tensor *hidden, const mha_tensor *logits)
{
    MHA_NEED("mha_transformer_logits", context, transformer);
    mha_status status = check_call(transformer, hidden, logits);
    const int64_t end = transformer->desc.num_layers;
    if (status == MHA_OK && mhai_spread_mine(transformer, end))
        status = mhai_transformer_logits(context, transformer, hidden, logits);
    if (!transformer->ranks) return status;
    MHA_TRY(mhai_spread_agree(transformer, status));
    return mhai_spread_tensor(transformer, transformer->ranks[end], logits);
}
