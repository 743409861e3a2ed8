/* Effects of all heads from one gradient per measure: the sum over rows of (r - z) . dM / dz. */
#include "analysis/effect_parts.h"
#include "base/need.h"

#include <math.h>
#include <string.h>

typedef struct gradient_job {
    mha_activations *a;
    float *output, *slope; /* [rows V] */
    float *instead;        /* in the layout of mhai_effect_replace() */
    float *given, *by;     /* [L] blocks of rows: z, and dM / dz as [L, B T, widest] */
    int64_t *map;
    double *estimates; /* [L H, texts, M] */
} gradient_job;

/* Each measure of a text takes a forward pass, the gradient of the loss and a backward pass, which
 * count as three passes. */
int64_t mhai_effect_gradient_work(const mha_transformer *t, mha_ablation kind,
                                  const mha_effect_text *text, int64_t measures)
{
    /* the gradient needs the logits of all rows */
    mha_effect_text all_rows = *text;
    all_rows.term_count = mhai_effect_tokens(text);
    const int64_t whole = mhai_effect_pass_work(t, &all_rows, 0);
    return 3 * measures * whole +
           (kind == MHA_ABLATION_RESAMPLE ? mhai_effect_pass_work(t, text, 0) : 0);
}

static mha_status keep_heads(void *user, const mha_activations *a, int64_t layer)
{
    const mhai_effect_run *r = user;
    const int64_t wide = mhai_effect_wide(r, layer);
    if (wide == 0) return MHA_OK;
    memcpy(r->kept.heads + mhai_effect_block(r, layer, r->heads), a->layers[layer].self.heads,
           (size_t)(a->B * a->T * wide) * sizeof(float));
    return MHA_OK;
}

/* The factors of the terms of measure m, by row. */
static void sum_factors(const mha_effect_text *text, int64_t m, double *factors, int32_t *first)
{
    for (int64_t i = 0; i < mhai_effect_tokens(text); i++) factors[i] = 0, first[i] = -1;
    for (int64_t k = 0; k < text->term_count; k++) {
        const mha_effect_term *term = &text->terms[k];
        if (term->measure != m) continue;
        factors[term->row] += term->factor;
        if (first[term->row] < 0) first[term->row] = term->token;
    }
}

/* The gradient of measure m with respect to the logits. For each row it is sum_k factor_k
 * (onehot(token_k) - softmax). A cross-entropy term is weight (softmax - onehot) of one token. */
static mha_status slope_of(const mhai_effect_run *r, const gradient_job *job,
                           const mha_effect_text *text, int64_t m)
{
    const int64_t rows = mhai_effect_tokens(text), V = r->d->vocab_size;
    double *factors;
    int32_t *first;
    float *weights;
    MHA_TRY(mha_scratch_alloc(r->context, rows, sizeof *factors, &factors));
    MHA_TRY(mha_scratch_alloc(r->context, rows, sizeof *first, &first));
    MHA_TRY(mha_scratch_alloc(r->context, rows, sizeof *weights, &weights));
    sum_factors(text, m, factors, first);
    for (int64_t i = 0; i < rows; i++) weights[i] = (float)-factors[i];
    const mha_tensor logits = mhai_transformer_rows(job->output, rows, V, V);
    const mha_tensor slope = mhai_transformer_rows(job->slope, rows, V, V);
    const mha_tensor targets = mha_tensor_contiguous(first, MHA_I32, 1, &rows);
    const mha_tensor weight = mhai_transformer_vector(weights, rows);
    MHA_TRY(mha_cross_entropy(r->context, &logits, &targets, &weight, NULL, NULL, &slope));
    for (int64_t i = 0; i < rows; i++)
        if (first[i] >= 0) job->slope[i * V + first[i]] += weights[i];
    for (int64_t k = 0; k < text->term_count; k++)
        if (text->terms[k].measure == m)
            job->slope[text->terms[k].row * V + text->terms[k].token] +=
                (float)text->terms[k].factor;
    return MHA_OK;
}

static double estimate(const mhai_effect_run *r, const gradient_job *job,
                       const mha_effect_text *text, int64_t layer, int64_t head)
{
    const int64_t D = mhai_effect_mix(r, layer).Dv, rows = mhai_effect_tokens(text);
    const int64_t wide = mhai_effect_wide(r, layer), all = mha_transformer_heads_width(r->d);
    const float *z = job->given + mhai_effect_block(r, layer, r->heads) + head * D;
    const float *by = job->by + layer * rows * all + head * D;
    int64_t stride;
    const float *instead = mhai_effect_instead(r, job->instead, layer, head, &stride);
    double sum = 0;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < D; k++)
            sum += ((double)instead[i * stride + k] - (double)z[i * wide + k]) *
                   (double)by[i * all + k];
    return sum;
}

static mha_status run_measure(mhai_effect_run *r, const gradient_job *job, int64_t i, int64_t m)
{
    const mha_effect_text *text = &r->texts[i];
    const int64_t *tokens = text->tokens->shape, L = r->d->num_layers, H = r->d->num_heads;
    const int64_t shape[] = {tokens[0], tokens[1], r->d->vocab_size};
    const int64_t wide[] = {L, tokens[0], tokens[1], mha_transformer_heads_width(r->d)};
    const mha_tensor output = mha_tensor_contiguous(job->output, MHA_F32, 3, shape);
    const mha_tensor slope = mha_tensor_contiguous(job->slope, MHA_F32, 3, shape);
    const mha_tensor by = mha_tensor_contiguous(job->by, MHA_F32, 4, wide);
    const mha_transformer_gradients wanted = {.struct_size = sizeof wanted, .head_outputs = &by};
    mha_transformer_input input = {.struct_size = sizeof input,
                                   .tokens = text->tokens,
                                   .lengths = text->lengths,
                                   .after_layer = keep_heads,
                                   .after_layer_user = r};
    memset(job->by, 0, (size_t)(L * tokens[0] * tokens[1] * wide[3]) * sizeof *job->by);
    r->kept.heads = job->given;
    MHA_TRY(mha_transformer_forward(r->context, r->t, &input, job->a, &output, NULL, NULL));
    const mha_scratch_mark mark = mha_scratch_top(r->context);
    MHA_TRY(slope_of(r, job, text, m));
    mha_scratch_release(r->context, mark);
    MHA_TRY(mha_transformer_backward(r->context, r->t, &input, job->a, &slope, &wanted));
    for (int64_t k = 0; k < L * H; k++)
        job->estimates[(k * r->data.texts + i) * r->data.measures + m] =
            k % H < mhai_effect_heads_of(r, k / H).q ? estimate(r, job, text, k / H, k % H) : 0;
    return MHA_OK;
}

static bool has_measure(const mha_effect_text *text, int64_t m)
{
    for (int64_t k = 0; k < text->term_count; k++)
        if (text->terms[k].measure == m) return true;
    return false;
}

static mha_status run_text(mhai_effect_run *r, const gradient_job *job, int64_t i)
{
    const int64_t heads = r->d->num_layers * r->d->num_heads, M = r->data.measures;
    const int64_t work = mhai_effect_gradient_work(r->t, MHA_ABLATION_ZERO, &r->texts[i], 1);
    MHA_TRY(mhai_effect_replace(r, i, job->instead, job->map));
    for (int64_t m = 0; m < M; m++) {
        if (has_measure(&r->texts[i], m))
            MHA_TRY(run_measure(r, job, i, m));
        else
            for (int64_t k = 0; k < heads; k++)
                job->estimates[(k * r->data.texts + i) * M + m] = NAN;
        MHA_TRY(mhai_effect_step(r, work));
    }
    return MHA_OK;
}

static mha_status take_scratch(mhai_effect_run *r, gradient_job *job)
{
    const int64_t L = r->d->num_layers, V = r->d->vocab_size;
    const bool rows = r->desc.kind == MHA_ABLATION_RESAMPLE;
    MHA_TRY(mhai_effect_floats(r, r->rows, V, &job->output));
    MHA_TRY(mhai_effect_floats(r, r->rows, V, &job->slope));
    MHA_TRY(mhai_effect_floats(r, rows ? L * r->rows : 1, r->heads, &job->instead));
    memset(job->instead, 0, (size_t)r->heads * sizeof *job->instead); /* for ZERO */
    MHA_TRY(mhai_effect_floats(r, L * r->rows, r->heads, &job->given));
    MHA_TRY(mhai_effect_floats(r, L * r->rows, mha_transformer_heads_width(r->d), &job->by));
    MHA_TRY(mha_scratch_alloc(r->context, r->rows, sizeof *job->map, &job->map));
    for (int64_t i = 0; i < r->data.texts; i++)
        r->total += mhai_effect_gradient_work(r->t, r->desc.kind, &r->texts[i], r->data.measures);
    return mha_activations_create(r->context, r->t, r->rows, 0, &job->a);
}

mha_status mha_effect_gradients(mha_context *context, const mha_transformer *transformer,
                                const mha_ablation_desc *desc, const mha_effect_data *data,
                                double *estimates)
{
    MHA_NEED("mha_effect_gradients", context, transformer, estimates);
    const mha_scratch_mark mark = mha_scratch_top(context);
    gradient_job job = {.estimates = estimates};
    mhai_effect_run r;
    mha_status status = mhai_effect_begin(&r, context, transformer, data);
    if (status == MHA_OK) status = mhai_effect_read_ablation(&r, desc);
    if (status == MHA_OK && transformer->source.compute != MHA_COMPUTE_F32)
        status = mha_fail(MHA_ERR_UNSUPPORTED,
                          "mha_effect_gradients: compute %s is forward only; load the model with "
                          "MHA_COMPUTE_F32, or measure every head with mha_effect_sets()",
                          mha_compute_name(transformer->source.compute));
    if (status == MHA_OK) status = take_scratch(&r, &job);
    for (int64_t i = 0; status == MHA_OK && i < r.data.texts; i++) status = run_text(&r, &job, i);
    mha_activations_destroy(job.a);
    return mha_scratch_end(context, mark, status);
}
