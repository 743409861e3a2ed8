/* Direct logit attribution of each head over texts. Each term has a direction u in the stream after
 * the last layer. The contribution of head h is u . W_O[h] z_h = (W_O[h]^T u) . z_h, so one product
 * of u and W_O serves all heads of a layer. */
#include "analysis/attribution.h"
#include "analysis/effect_parts.h"

#include "base/checked.h"
#include "base/need.h"

#include <math.h>
#include <string.h>

typedef struct direct_job {
    const mhai_effect_run *r;
    const mha_effect_text *text;
    float *heads, *end; /* arrays for the current text */
    double *mean;       /* [E] the mean row of W_out */
    mha_tensor scale;   /* the final norm's weight; ndim 0: no norm */
    double *u;          /* [terms E] */
    double *p;          /* [workers, elements of all heads] */
    double *shares;     /* [terms, H] for a layer, not yet multiplied by the factors of terms */
    mha_tensor weight;  /* W_O of the current layer */
    int64_t layer;
} direct_job;

/* ---- directions ------------------------------------------------------------------------------ */

static mha_status mean_output(const mhai_effect_run *r, double *mean)
{
    const int64_t E = r->d->embed_dim, V = r->d->vocab_size;
    for (int64_t e = 0; e < E; e++) mean[e] = 0;
    for (int64_t v = 0; v < V; v += MHAI_EFFECT_ROWS) {
        const int64_t rows = mhai_min_i64(MHAI_EFFECT_ROWS, V - v);
        mhai_transformer_read_rows(r->t, r->t->output.weight, E, v, rows, 0, E, r->in);
        for (int64_t i = 0; i < rows * E; i++) mean[i % E] += (double)r->in[i];
    }
    for (int64_t e = 0; e < E; e++) mean[e] /= (double)V;
    return MHA_OK;
}

/* Propagate u of a token backwards through the final norm, y = g (x - mean x) r + b. */
static void aim(const direct_job *job, const mha_effect_term *term, float *row, double *u)
{
    const mha_transformer_desc *d = job->r->d;
    const int64_t E = d->embed_dim;
    const float *x = job->end + term->row * E;
    const bool centred = d->norm == MHA_NORM_LAYER;
    double mean = 0, squares = 0, shift = 0;
    mhai_transformer_read_rows(job->r->t, job->r->t->output.weight, E, term->token, 1, 0, E, row);
    for (int64_t e = 0; e < E; e++) u[e] = (double)d->logit_scale * ((double)row[e] - job->mean[e]);
    if (job->scale.ndim == 0) return;
    for (int64_t e = 0; centred && e < E; e++) mean += (double)x[e] / (double)E;
    for (int64_t e = 0; e < E; e++) {
        const double centre = (double)x[e] - mean;
        squares += centre * centre;
        u[e] *= (double)((const float *)job->scale.data)[e];
        shift += centred ? u[e] / (double)E : 0;
    }
    const double over = 1 / sqrt(squares / (double)E + (double)d->norm_epsilon);
    for (int64_t e = 0; e < E; e++) u[e] = (u[e] - shift) * over;
}

/* ---- heads ----------------------------------------------------------------------------------- */

/* Compute (W_O[h]^T u) . z_h of one term, for the heads of a layer. */
static void share_of_term(void *argument, int64_t k, int worker)
{
    const direct_job *job = argument;
    const mhai_effect_run *r = job->r;
    const int64_t E = r->d->embed_dim, D = mhai_effect_mix(r, job->layer).Dv, H = r->d->num_heads;
    const int64_t count = mhai_effect_heads_of(r, job->layer).q, wide = count * D;
    const float *z =
        job->heads + mhai_effect_block(r, job->layer, r->heads) + job->text->terms[k].row * wide;
    const double *u = job->u + k * E;
    double *p = job->p + worker * r->heads;
    for (int64_t i = 0; i < wide; i++) p[i] = 0;
    for (int64_t e = 0; e < E; e++) {
        const float *row = (const float *)job->weight.data + e * job->weight.stride[0];
        for (int64_t i = 0; i < wide; i++) p[i] += u[e] * (double)row[i];
    }
    for (int64_t h = 0; h < count; h++) {
        double sum = 0;
        for (int64_t i = h * D; i < (h + 1) * D; i++) sum += p[i] * (double)z[i];
        job->shares[k * H + h] = (double)r->d->residual_scale * sum;
    }
}

static mha_status run_layer(mhai_effect_run *r, direct_job *job, int64_t i, int64_t layer,
                            double *direct)
{
    const int64_t H = r->d->num_heads, M = r->data.measures,
                  count = mhai_effect_heads_of(r, layer).q;
    const mha_scratch_mark mark = mha_scratch_top(r->context); /* matrices from a source
                                                                * use scratch */
    if (count == 0) return MHA_OK;
    const mhai_place_linear *out = &r->t->layers[layer].self.out;
    MHA_TRY(mhai_transformer_matrix(r->context, r->t, out->weight, out->outputs, out->inputs,
                                    &job->weight));
    job->layer = layer;
    mha_parallel_for(r->context, job->text->term_count, share_of_term, job);
    mha_scratch_release(r->context, mark);
    for (int64_t k = 0; k < job->text->term_count; k++) {
        const mha_effect_term *term = &job->text->terms[k];
        for (int64_t h = 0; h < count; h++)
            direct[((layer * H + h) * r->data.texts + i) * M + term->measure] -=
                term->factor * job->shares[k * H + h];
    }
    return MHA_OK;
}

static mha_status run_text(mhai_effect_run *r, direct_job *job, int64_t i, double *direct)
{
    const mha_effect_text *text = job->text = &r->texts[i];
    const int64_t M = r->data.measures, all = r->d->num_layers * r->d->num_heads;
    r->kept = (mhai_effect_kept){.heads = job->heads, .end = job->end};
    MHA_TRY(mhai_effect_pass(r, text, 0, NULL));
    MHA_TRY(
        mha_scratch_alloc(r->context, text->term_count * r->d->embed_dim, sizeof(double), &job->u));
    MHA_TRY(mha_scratch_alloc(r->context, text->term_count * r->d->num_heads, sizeof(double),
                              &job->shares));
    for (int64_t k = 0; k < all * M; k++) direct[(k / M * r->data.texts + i) * M + k % M] = NAN;
    for (int64_t k = 0; k < text->term_count; k++) {
        aim(job, &text->terms[k], r->in, job->u + k * r->d->embed_dim);
        for (int64_t h = 0; h < all; h++)
            direct[(h * r->data.texts + i) * M + text->terms[k].measure] = 0;
    }
    for (int64_t l = 0; l < r->d->num_layers; l++) MHA_TRY(run_layer(r, job, i, l, direct));
    return mhai_effect_step(r, mhai_effect_pass_work(r->t, text, 0));
}

static mha_status run(mhai_effect_run *r, double *direct)
{
    direct_job job = {.r = r};
    if (mha_transformer_norms_follow(r->d))
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_effect_direct: norms follow the blocks of this model, so no head "
                        "writes directly to its final stream");
    MHA_TRY(mhai_effect_floats(r, r->d->num_layers * r->rows, r->heads, &job.heads));
    MHA_TRY(mhai_effect_floats(r, r->rows, r->d->embed_dim, &job.end));
    MHA_TRY(mha_scratch_alloc(r->context, r->d->embed_dim, sizeof(double), &job.mean));
    MHA_TRY(mha_scratch_alloc(r->context, mha_context_threads(r->context) * r->heads,
                              sizeof(double), &job.p));
    if (mhai_transformer_pre_norm(r->t))
        MHA_TRY(mhai_attribution_weight(r->context, r->t, -1, "norm.weight", false, &job.scale));
    MHA_TRY(mean_output(r, job.mean));
    for (int64_t i = 0; i < r->data.texts; i++)
        r->total += mhai_effect_pass_work(r->t, &r->texts[i], 0);
    for (int64_t i = 0; i < r->data.texts; i++) {
        const mha_scratch_mark mark = mha_scratch_top(r->context);
        MHA_TRY(run_text(r, &job, i, direct));
        mha_scratch_release(r->context, mark);
    }
    return MHA_OK;
}

mha_status mha_effect_direct(mha_context *context, const mha_transformer *transformer,
                             const mha_effect_data *data, double *direct)
{
    MHA_NEED("mha_effect_direct", context, transformer, direct);
    const mha_scratch_mark mark = mha_scratch_top(context);
    mhai_effect_run r;
    mha_status status = mhai_effect_begin(&r, context, transformer, data);
    if (status == MHA_OK) status = run(&r, direct);
    return mha_scratch_end(context, mark, status);
}
