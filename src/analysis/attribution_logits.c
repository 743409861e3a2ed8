/* Direct logit attribution, computed backwards from the output to the embeddings. u is the
 * direction in the stream that raises the logit; a part that wrote x contributes u . x. Crossing a
 * norm, with frozen mean and deviation, transforms u by its derivative:
 *
 * y = g (x - mean) r + b, u . y = u' . x + u . b, u' = r (g u - mean of g u), without the means
 * for RMS norms.
 *
 * A frozen norm is linear, so all terms sum to the logit. */
#include "analysis/attribution.h"

#include "base/need.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct logit_job {
    mha_context *context;
    const mha_transformer *t;
    const mha_activations *a;
    int64_t row; /* row number b T + t */
    int64_t E;
    double *u; /* [E] */
    double *p; /* [max(H D, F)] W^T u for a part */
    mha_attribution out;
    double bias; /* of the logits */
    double sum;  /* sum of the terms computed so far */
} logit_job;

static const float *row_of(const logit_job *job, const mha_tensor *x)
{
    return (const float *)x->data + job->row * x->shape[2];
}

static double dot(const double *u, const float *x, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += u[i] * (double)x[i];
    return sum;
}

/* p = W^T u, for W [E, columns]. */
static void pull_back(const logit_job *job, const mha_tensor *weight)
{
    const int64_t columns = weight->shape[1];
    for (int64_t i = 0; i < columns; i++) job->p[i] = 0;
    for (int64_t e = 0; e < job->E; e++) {
        const float *row = (const float *)weight->data + e * weight->stride[0];
        for (int64_t i = 0; i < columns; i++) job->p[i] += job->u[e] * (double)row[i];
    }
}

static double add_term(logit_job *job, double term)
{
    job->sum += term;
    return term;
}

/* Propagate u backwards through a norm with input x. */
static mha_status through_norm(logit_job *job, int64_t layer, const char *prefix, const float *x)
{
    const mha_transformer_desc *d = &job->t->desc;
    const bool centred = d->norm == MHA_NORM_LAYER;
    const double count = (double)job->E;
    double mean = 0, squares = 0, shift = 0;
    mha_tensor weight, bias;
    char name[48];
    snprintf(name, sizeof name, "%s.weight", prefix);
    MHA_TRY(mhai_attribution_weight(job->context, job->t, layer, name, false, &weight));
    snprintf(name, sizeof name, "%s.bias", prefix);
    MHA_TRY(mhai_attribution_weight(job->context, job->t, layer, name, true, &bias));
    if (bias.ndim) job->out.norms += add_term(job, dot(job->u, bias.data, job->E));
    for (int64_t e = 0; centred && e < job->E; e++) mean += (double)x[e] / count;
    for (int64_t e = 0; e < job->E; e++) {
        const double centre = (double)x[e] - mean;
        squares += centre * centre;
        job->u[e] *= (double)((const float *)weight.data)[e];
        shift += centred ? job->u[e] / count : 0;
    }
    const double scale = 1 / sqrt(squares / count + (double)d->norm_epsilon);
    for (int64_t e = 0; e < job->E; e++) job->u[e] = (job->u[e] - shift) * scale;
    return MHA_OK;
}

/* Add the bias of a part's last linear layer, if it has one. */
static mha_status add_bias(logit_job *job, int64_t layer, const char *name, double *term)
{
    mha_tensor bias;
    MHA_TRY(mhai_attribution_last(job->context, job->t, layer, name, true, &bias));
    *term = bias.ndim ? add_term(job, dot(job->u, bias.data, job->E)) : 0;
    return MHA_OK;
}

static mha_status add_attention(logit_job *job, int64_t layer, bool cross,
                                const mha_layer_view *view)
{
    const int64_t H = view->heads.shape[1], D = view->heads.shape[3];
    double *heads = cross ? job->out.cross_heads : job->out.heads, bias;
    double *biases = cross ? job->out.cross_biases : job->out.biases;
    const float *z = row_of(job, &view->concatenated);
    mha_tensor weight;
    MHA_TRY(mhai_attribution_last(job->context, job->t, layer,
                                  cross ? "cross_attn.o_proj.weight" : "self_attn.o_proj.weight",
                                  H == 0, &weight));
    MHA_TRY(
        add_bias(job, layer, cross ? "cross_attn.o_proj.bias" : "self_attn.o_proj.bias", &bias));
    if (biases) biases[layer] = bias;
    if (H > 0) pull_back(job, &weight);
    for (int64_t h = 0; h < H; h++) {
        const double term = add_term(job, dot(job->p + h * D, z + h * D, D));
        if (heads) heads[layer * job->t->desc.num_heads + h] = term;
    }
    return MHA_OK;
}

static mha_status add_feed_forward(logit_job *job, int64_t layer, const mha_layer_view *view)
{
    mha_tensor weight;
    double bias, term = 0;
    if (view->hidden.ndim == 0) { /* with experts: the vectors that they add to the stream */
        const float *x = row_of(job, &view->stream), *sum = row_of(job, &view->sum);
        for (int64_t e = 0; e < job->E; e++) term += job->u[e] * ((double)sum[e] - (double)x[e]);
        term = add_term(job, term);
        if (job->out.feed_forward) job->out.feed_forward[layer] = term;
        return MHA_OK;
    }
    MHA_TRY(
        mhai_attribution_last(job->context, job->t, layer, "mlp.down_proj.weight", false, &weight));
    MHA_TRY(add_bias(job, layer, "mlp.down_proj.bias", &bias));
    pull_back(job, &weight);
    term = add_term(job, dot(job->p, row_of(job, &view->hidden), weight.shape[1]));
    if (job->out.feed_forward) job->out.feed_forward[layer] = term + bias;
    return MHA_OK;
}

/* Propagate u backwards through a part of a layer. */
static mha_status walk_part(logit_job *job, int64_t layer, mha_layer_part part)
{
    static const char *const norms[] = {"self_attn_norm", "cross_attn_norm", "mlp_norm"};
    mha_layer_view view = {.struct_size = sizeof view};
    const mha_scratch_mark mark = mha_scratch_top(job->context); /* matrices from a source use
                                                                  * scratch */
    MHA_TRY(mha_activations_layer(job->a, layer, part, &view));
    if (mhai_transformer_has(job->t, MHA_TRANSFORMER_POST_NORM))
        MHA_TRY(through_norm(job, layer, norms[part], row_of(job, &view.sum)));
    if (part == MHA_PART_FEED_FORWARD)
        MHA_TRY(add_feed_forward(job, layer, &view));
    else
        MHA_TRY(add_attention(job, layer, part == MHA_PART_CROSS_ATTENTION, &view));
    mha_scratch_release(job->context, mark);
    return MHA_OK;
}

static mha_status walk(logit_job *job)
{
    const mha_transformer_desc *d = &job->t->desc;
    mha_stream_view ends = {.struct_size = sizeof ends};
    MHA_TRY(mha_activations_stream(job->a, &ends));
    if (ends.embedded.ndim == 0)
        return mha_fail(MHA_ERR_ARGUMENT, "activations: the forward call began with input.stream, "
                                          "not with the embeddings of its tokens");
    job->out.total = dot(job->u, row_of(job, &ends.normed), job->E) + job->bias;
    job->out.norms += add_term(job, job->bias);
    if (mhai_transformer_pre_norm(job->t))
        MHA_TRY(through_norm(job, -1, "norm", row_of(job, &ends.last)));
    for (int64_t i = d->num_layers - 1; i >= 0; i--) {
        if (mha_transformer_feeds(d, i)) MHA_TRY(walk_part(job, i, MHA_PART_FEED_FORWARD));
        if (d->flags & MHA_TRANSFORMER_CROSS) MHA_TRY(walk_part(job, i, MHA_PART_CROSS_ATTENTION));
        MHA_TRY(walk_part(job, i, MHA_PART_SELF_ATTENTION));
    }
    if (d->flags & MHA_TRANSFORMER_EMBEDDING_NORM && d->token_dim == d->embed_dim)
        MHA_TRY(through_norm(job, -1, "embed_norm", row_of(job, &ends.embedded)));
    job->out.embedding = add_term(job, dot(job->u, row_of(job, &ends.embedded), job->E));
    job->out.remainder = job->out.total - job->sum;
    return MHA_OK;
}

static mha_status check_target(const mha_transformer *t, const mha_activations *a,
                               const mha_attribution_target *target)
{
    const mha_transformer_desc *d = &t->desc;
    MHA_TRY(mhai_check_reserved("mha_attribution_target", target->reserved));
    if (target->batch < 0 || target->batch >= a->B || target->position < 0 ||
        target->position >= a->T)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "target: token %lld of sequence %lld, the activations hold %lld sequences "
                        "of %lld",
                        (long long)target->position, (long long)target->batch, (long long)a->B,
                        (long long)a->T);
    if (mhai_transformer_norms_branches(d))
        return mha_fail(
            MHA_ERR_UNSUPPORTED,
            "logit attribution does not support branch norms (MHA_TRANSFORMER_BRANCH_NORM)");
    if (target->direction) return MHA_OK;
    if (d->flags & MHA_TRANSFORMER_NO_OUTPUT)
        return mha_fail(MHA_ERR_ARGUMENT, "target: this transformer has no output; set direction");
    if (target->token < 0 || target->token >= d->vocab_size || target->against < -1 ||
        target->against >= d->vocab_size)
        return mha_fail(
            MHA_ERR_ARGUMENT,
            "target: token is %lld, against is %lld; expected 0..%lld, and -1 or another token",
            (long long)target->token, (long long)target->against, (long long)d->vocab_size - 1);
    return MHA_OK;
}

/* Read a token's row of W_out. */
static void read_row(const logit_job *job, int64_t token, float *row)
{
    mhai_transformer_read_rows(job->t, job->t->output.weight, job->E, token, 1, 0, job->E, row);
}

static mha_status read_bias(logit_job *job, const mha_attribution_target *target, double scale)
{
    mha_tensor bias;
    MHA_TRY(mhai_attribution_weight(job->context, job->t, -1, "lm_head.bias", true, &bias));
    if (bias.ndim == 0) return MHA_OK;
    const float *x = bias.data;
    job->bias = scale * (double)x[target->token];
    if (target->against >= 0) job->bias -= scale * (double)x[target->against];
    return MHA_OK;
}

static mha_status aim(logit_job *job, const mha_attribution_target *target)
{
    const double scale = (double)job->t->desc.logit_scale;
    float *row;
    if (target->direction) {
        for (int64_t e = 0; e < job->E; e++) job->u[e] = (double)target->direction[e];
        return MHA_OK;
    }
    MHA_TRY(mha_scratch_alloc(job->context, job->E, sizeof *row, &row));
    read_row(job, target->token, row);
    for (int64_t e = 0; e < job->E; e++) job->u[e] = scale * (double)row[e];
    MHA_TRY(read_bias(job, target, scale));
    if (target->against < 0) return MHA_OK;
    read_row(job, target->against, row);
    for (int64_t e = 0; e < job->E; e++) job->u[e] -= scale * (double)row[e];
    return MHA_OK;
}

static void clear(const logit_job *job)
{
    const size_t L = (size_t)job->t->desc.num_layers, H = (size_t)job->t->desc.num_heads;
    const mha_attribution *out = &job->out;
    double *const arrays[] = {out->heads, out->cross_heads, out->biases, out->cross_biases,
                              out->feed_forward};
    for (int i = 0; i < 5; i++)
        if (arrays[i]) memset(arrays[i], 0, (i < 2 ? L * H : L) * sizeof(double));
}

static mha_status run(mha_context *context, logit_job *job, const mha_attribution_target *target)
{
    const mha_transformer_desc *d = &job->t->desc;
    const int64_t q = mha_transformer_heads_width(d);
    MHA_TRY(mha_scratch_alloc(context, job->E, sizeof(double), &job->u));
    MHA_TRY(mha_scratch_alloc(context, q > d->ff_dim ? q : d->ff_dim, sizeof(double), &job->p));
    MHA_TRY(aim(job, target));
    clear(job);
    return walk(job);
}

mha_status mha_logit_attribution(mha_context *context, const mha_transformer *transformer,
                                 const mha_activations *activations,
                                 const mha_attribution_target *target, mha_attribution *out)
{
    mha_attribution_target own;
    MHA_NEED("mha_logit_attribution", context, target, out);
    MHA_TRY(mhai_attribution_check(transformer, activations, MHA_PART_SELF_ATTENTION));
    MHA_TRY(mhai_transformer_weighs_values("mha_logit_attribution", transformer));
    MHA_TRY(mhai_struct_copy("mha_attribution_target", &own, sizeof own, sizeof own, target));
    logit_job job = {
        .context = context, .t = transformer, .a = activations, .E = transformer->desc.embed_dim};
    MHA_TRY(mhai_struct_copy("mha_attribution", &job.out, sizeof job.out, sizeof job.out, out));
    MHA_TRY(mhai_check_reserved("mha_attribution", job.out.reserved));
    if (activations->T < 0)
        return mha_fail(MHA_ERR_ARGUMENT, "activations: they hold no batch, call "
                                          "mha_transformer_forward() first");
    MHA_TRY(check_target(transformer, activations, &own));
    job.row = own.batch * activations->T + own.position;
    job.out.embedding = job.out.norms = 0;
    mha_scratch_mark mark = mha_scratch_top(context);
    mha_status status = run(context, &job, &own);
    mha_scratch_release(context, mark);
    if (status != MHA_OK) return status;
    out->total = job.out.total;
    out->embedding = job.out.embedding;
    out->norms = job.out.norms;
    out->remainder = job.out.remainder;
    return MHA_OK;
}
