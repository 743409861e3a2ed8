/* Latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): its latents expanded to the queries,
 * keys and values of ordinary heads. */
#include "transformer/transformer_call.h"

#include <string.h>

/* y = rms_norm(x) of `width` leading elements of rows. */
static mha_status norm(const mhai_call *c, int64_t layer, int64_t weight, const float *x,
                       int64_t width, int64_t stride, float *y)
{
    const int64_t rows = mhai_tokens(c->a);
    const mha_tensor in = mhai_transformer_rows(x, rows, width, stride);
    const mha_tensor out = mhai_transformer_rows(y, rows, width, width);
    const mha_tensor by = mhai_transformer_vector(mhai_transformer_numbers(c->t, weight), width);
    return mha_rms_norm(c->context, &in, NULL, &by, c->t->desc.layers[layer].head_norm_epsilon,
                        &out);
}

static mha_status project_queries(const mhai_call *c, const mhai_place_attention *place,
                                  const mhai_kept_attention *kept, int64_t layer)
{
    const mhai_mix mix = mhai_transformer_mix(&c->t->desc, layer);
    const int64_t rows = mhai_tokens(c->a), wide = place->in.outputs;
    float *q = kept->qkv + mix.at_q;
    if (!place->queries.packed)
        return mhai_call_project_to(c, &place->in, MHA_ACTIVATION_NONE, kept->step.in, rows,
                                    mix.width, q);
    MHA_TRY(mhai_call_project(c, &place->in, MHA_ACTIVATION_NONE, kept->step.in, rows,
                              kept->query_down));
    MHA_TRY(norm(c, layer, place->query_norm, kept->query_down, wide, wide, kept->query_latent));
    return mhai_call_project_to(c, &place->queries, MHA_ACTIVATION_NONE, kept->query_latent, rows,
                                mix.width, q);
}

typedef struct key_job {
    const mhai_kept_attention *kept;
    mhai_mix mix;
    int64_t r, s;
} key_job;

/* Each head's key: what all heads share, and what W_kb expands. */
static void join_keys(void *argument, int64_t row, int worker)
{
    const key_job *job = argument;
    const int64_t D = job->mix.D, s = job->s, own = D - s;
    const float *shared = job->kept->down + row * (job->r + s) + job->r;
    const float *from = job->kept->heads + row * job->mix.k * own;
    float *to = job->kept->qkv + row * job->mix.width + job->mix.at_k;
    (void)worker;
    for (int64_t h = 0; h < job->mix.k; h++) {
        memcpy(to + h * D, shared, (size_t)s * sizeof *to);
        memcpy(to + h * D + s, from + h * own, (size_t)own * sizeof *to);
    }
}

mha_status mhai_latent_project(const mhai_call *c, int64_t layer)
{
    const mha_layer_desc *l = &c->t->desc.layers[layer];
    const mhai_place_attention *place = &c->t->layers[layer].self;
    const mhai_kept_attention *kept = &c->a->layers[layer].self;
    const int64_t rows = mhai_tokens(c->a), r = l->latent_dim;
    key_job job = {kept, mhai_transformer_mix(&c->t->desc, layer), r, l->shared_dim};
    MHA_TRY(project_queries(c, place, kept, layer));
    MHA_TRY(
        mhai_call_project(c, &place->down, MHA_ACTIVATION_NONE, kept->step.in, rows, kept->down));
    MHA_TRY(norm(c, layer, place->latent_norm, kept->down, r, r + job.s, kept->latent));
    MHA_TRY(
        mhai_call_project(c, &place->keys, MHA_ACTIVATION_NONE, kept->latent, rows, kept->heads));
    MHA_TRY(mhai_call_project_to(c, &place->values, MHA_ACTIVATION_NONE, kept->latent, rows,
                                 job.mix.width, kept->qkv + job.mix.at_v));
    mha_parallel_for(c->context, rows, join_keys, &job);
    return MHA_OK;
}
