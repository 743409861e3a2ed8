/* Ablation of sets of heads, text by text. One full pass saves the stream before every layer. Each
 * set then restarts at the first layer that it changes. */
#include "analysis/effect_parts.h"

#include "base/checked.h"
#include "base/need.h"
#include "nn/nn_check.h"

#include <string.h>

/* ---- means ----------------------------------------------------------------------------------- */

/* Add the outputs of a layer's heads for the current text to sums. */
static void add_heads(const mhai_effect_run *r, const mha_effect_text *text, const float *heads,
                      int64_t layer, double *sums)
{
    const int64_t B = text->tokens->shape[0], T = text->tokens->shape[1];
    const int64_t wide = mhai_effect_wide(r, layer);
    const float *block = heads + mhai_effect_block(r, layer, r->heads);
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < (text->lengths ? text->lengths[b] : T); t++)
            for (int64_t k = 0; k < wide; k++) sums[k] += (double)block[(b * T + t) * wide + k];
}

static mha_status sum_heads(mhai_effect_run *r, double *sums, int64_t *tokens)
{
    const int64_t L = r->d->num_layers, wide = mha_transformer_heads_width(r->d);
    float *heads;
    MHA_TRY(mhai_effect_floats(r, L * r->rows, r->heads, &heads));
    for (int64_t i = 0; i < r->data.texts; i++)
        r->total += mhai_effect_pass_work(r->t, &r->texts[i], 0);
    for (int64_t i = 0; i < r->data.texts; i++) {
        const mha_effect_text *text = &r->texts[i];
        r->kept = (mhai_effect_kept){.heads = heads};
        MHA_TRY(mhai_effect_pass(r, text, 0, NULL));
        for (int64_t l = 0; l < L; l++) add_heads(r, text, heads, l, sums + l * wide);
        for (int64_t b = 0; b < text->tokens->shape[0]; b++)
            *tokens += text->lengths ? text->lengths[b] : text->tokens->shape[1];
        MHA_TRY(mhai_effect_step(r, mhai_effect_pass_work(r->t, text, 0)));
    }
    return MHA_OK;
}

static mha_status take_means(mhai_effect_run *r, const mha_tensor *means)
{
    const int64_t L = r->d->num_layers, wide = mha_transformer_heads_width(r->d);
    int64_t tokens = 0;
    double *sums;
    MHA_TRY(mhai_nn_out_matrix("means", means, L, wide));
    MHA_TRY(mha_scratch_zeros(r->context, L * wide, sizeof *sums, &sums));
    MHA_TRY(sum_heads(r, sums, &tokens));
    for (int64_t k = 0; k < L * wide; k++)
        mhai_nn_row(means, k / wide)[k % wide] = tokens > 0 ? (float)(sums[k] / (double)tokens) : 0;
    return MHA_OK;
}

mha_status mha_effect_means(mha_context *context, const mha_transformer *transformer,
                            const mha_effect_data *data, const mha_tensor *means)
{
    MHA_NEED("mha_effect_means", context, transformer, means);
    const mha_scratch_mark mark = mha_scratch_top(context);
    mhai_effect_run r;
    mha_status status = mhai_effect_begin(&r, context, transformer, data);
    if (status == MHA_OK) status = take_means(&r, means);
    return mha_scratch_end(context, mark, status);
}

/* ---- sets ------------------------------------------------------------------------------------ */

static mha_status check_sets(const mha_transformer_desc *d, const mha_head_sets *given,
                             mha_head_sets *sets)
{
    const int64_t H = d->num_heads;
    MHA_TRY(mhai_struct_copy("mha_head_sets", sets, sizeof *sets, sizeof *sets, given));
    MHA_TRY(mhai_check_reserved("mha_head_sets", sets->reserved));
    if (sets->count < 0 || (sets->count > 0 && !sets->first))
        return mha_fail(MHA_ERR_ARGUMENT, "mha_head_sets: %lld sets, first is %s",
                        (long long)sets->count, sets->first ? "given" : "NULL");
    for (int64_t s = 0; s < sets->count; s++)
        if (sets->first[0] != 0 || sets->first[s + 1] < sets->first[s])
            return mha_fail(MHA_ERR_ARGUMENT,
                            "mha_head_sets: first must ascend from 0, set %lld "
                            "does not",
                            (long long)s);
    const int64_t heads = sets->count > 0 ? sets->first[sets->count] : 0;
    if (heads > 0 && !sets->heads) return mha_fail(MHA_ERR_NULL, "mha_head_sets: heads is NULL");
    for (int64_t k = 0; k < heads; k++) {
        const int64_t head = sets->heads[k];
        if (head < 0 || head >= d->num_layers * H ||
            head % H >= mhai_transformer_heads_of(d, head / H, false).q)
            return mha_fail(MHA_ERR_ARGUMENT,
                            "mha_head_sets: heads[%lld] is %lld, expected layer * %lld + head of a "
                            "head that the transformer has",
                            (long long)k, (long long)head, (long long)H);
    }
    return MHA_OK;
}

/* The first layer that a set changes; the number of layers if it is empty. */
static int64_t first_layer(const mha_transformer_desc *d, const mha_head_sets *sets, int64_t s)
{
    int64_t layer = d->num_layers;
    for (int64_t k = sets->first[s]; k < sets->first[s + 1]; k++)
        layer = mhai_min_i64(layer, sets->heads[k] / d->num_heads);
    return layer < d->num_layers ? mhai_transformer_start_layer(d, layer) : layer;
}

/* The cost of a text: the unchanged pass, a pass over the other text when
 * resampling, and one pass per set. */
static int64_t text_work(const mha_transformer *t, mha_ablation kind, const mha_effect_text *text,
                         const mha_head_sets *sets)
{
    const int64_t whole = mhai_effect_pass_work(t, text, 0);
    int64_t work = kind == MHA_ABLATION_RESAMPLE ? 2 * whole : whole;
    for (int64_t s = 0; s < sets->count; s++) {
        const int64_t layer = first_layer(&t->desc, sets, s);
        if (layer < t->desc.num_layers) work += mhai_effect_pass_work(t, text, layer);
    }
    return work;
}

typedef struct sets_job {
    mha_head_sets sets;
    float *stream, *heads;
    int64_t *map;
    double *whole, *without; /* [texts, M], [count, texts, M] */
} sets_job;

/* Whether a head already has a patch; duplicates count once. */
static bool is_patched(const mhai_effect_run *r, int64_t head)
{
    for (int64_t k = 0; k < r->patch_count; k++)
        if (r->patches[k].layer * r->d->num_heads + r->patches[k].head == head) return true;
    return false;
}

/* Run a text without the heads of a set, from the first layer that the set changes. For an empty
 * set, this gives the measures of the unchanged pass. */
static mha_status run_set(mhai_effect_run *r, const sets_job *job, int64_t i, int64_t s,
                          double *values)
{
    const mha_effect_text *text = &r->texts[i];
    const int64_t layer = first_layer(r->d, &job->sets, s), H = r->d->num_heads;
    r->patch_count = 0;
    if (layer == r->d->num_layers) {
        memcpy(values, job->whole + i * r->data.measures,
               (size_t)r->data.measures * sizeof *values);
        return MHA_OK;
    }
    for (int64_t k = job->sets.first[s]; k < job->sets.first[s + 1]; k++) {
        const int64_t head = job->sets.heads[k];
        int64_t stride;
        const float *instead = mhai_effect_instead(r, job->heads, head / H, head % H, &stride);
        if (!is_patched(r, head))
            mhai_effect_patch(r, text, MHA_PATCH_OUTPUT, head / H, head % H, instead, stride, NULL);
    }
    MHA_TRY(mhai_effect_pass(r, text, layer,
                             job->stream + mhai_effect_block(r, layer, r->d->embed_dim)));
    MHA_TRY(mhai_effect_score(r, text, values));
    return mhai_effect_step(r, mhai_effect_pass_work(r->t, text, layer));
}

static mha_status run_text(mhai_effect_run *r, const sets_job *job, int64_t i)
{
    const int64_t M = r->data.measures;
    MHA_TRY(mhai_effect_replace(r, i, job->heads, job->map));
    r->patch_count = 0;
    r->kept = (mhai_effect_kept){.stream = job->stream};
    MHA_TRY(mhai_effect_pass(r, &r->texts[i], 0, NULL));
    r->kept = (mhai_effect_kept){0};
    MHA_TRY(mhai_effect_score(r, &r->texts[i], job->whole + i * M));
    MHA_TRY(mhai_effect_step(r, mhai_effect_pass_work(r->t, &r->texts[i], 0)));
    for (int64_t s = 0; s < job->sets.count; s++)
        MHA_TRY(run_set(r, job, i, s, job->without + (s * r->data.texts + i) * M));
    return MHA_OK;
}

static mha_status run_sets(mhai_effect_run *r, sets_job *job)
{
    const int64_t L = r->d->num_layers;
    const bool rows = r->desc.kind == MHA_ABLATION_RESAMPLE;
    MHA_TRY(mhai_effect_floats(r, L * r->rows, r->d->embed_dim, &job->stream));
    MHA_TRY(mhai_effect_floats(r, rows ? L * r->rows : 1, r->heads, &job->heads));
    memset(job->heads, 0, (size_t)r->heads * sizeof *job->heads); /* for ZERO */
    MHA_TRY(mha_scratch_alloc(r->context, r->rows, sizeof *job->map, &job->map));
    if (!job->whole) {
        MHA_TRY(mha_scratch_alloc(r->context, r->data.texts * r->data.measures, sizeof *job->whole,
                                  &job->whole));
    }
    for (int64_t i = 0; i < r->data.texts; i++)
        r->total += text_work(r->t, r->desc.kind, &r->texts[i], &job->sets);
    for (int64_t i = 0; i < r->data.texts; i++) MHA_TRY(run_text(r, job, i));
    return MHA_OK;
}

mha_status mha_effect_sets(mha_context *context, const mha_transformer *transformer,
                           const mha_ablation_desc *desc, const mha_effect_data *data,
                           const mha_head_sets *sets, double *whole, double *without)
{
    MHA_NEED("mha_effect_sets", context, transformer, sets);
    const mha_scratch_mark mark = mha_scratch_top(context);
    sets_job job = {.whole = whole, .without = without};
    mhai_effect_run r;
    mha_status status = mhai_effect_begin(&r, context, transformer, data);
    if (status == MHA_OK) status = mhai_effect_read_ablation(&r, desc);
    if (status == MHA_OK) status = check_sets(r.d, sets, &job.sets);
    if (status == MHA_OK && job.sets.count > 0 && !without)
        status = mha_fail(MHA_ERR_NULL, "mha_effect_sets: without is NULL");
    if (status == MHA_OK) status = run_sets(&r, &job);
    return mha_scratch_end(context, mark, status);
}

/* ---- work ------------------------------------------------------------------------------------ */

mha_status mha_effect_work(const mha_transformer *transformer, const mha_ablation_desc *desc,
                           const mha_effect_data *data, const mha_head_sets *sets, int64_t *work)
{
    mha_effect_data own;
    mha_ablation_desc how;
    mha_head_sets checked = {0};
    int64_t all = 0;
    MHA_NEED("mha_effect_work", transformer, work);
    const mha_transformer_desc *d = &transformer->desc;
    MHA_TRY(mhai_struct_copy("mha_effect_data", &own, sizeof own, sizeof own, data));
    MHA_TRY(mhai_struct_copy("mha_ablation_desc", &how, sizeof how, sizeof how, desc));
    if (sets) MHA_TRY(check_sets(d, sets, &checked));
    if (own.texts > 0 && !own.text) return mha_fail(MHA_ERR_NULL, "mha_effect_data: text is NULL");
    for (int64_t i = 0; i < own.texts; i++) {
        mha_effect_text text;
        MHA_TRY(mhai_struct_copy("mha_effect_text", &text, sizeof text, sizeof text, own.text[i]));
        MHA_TRY(mhai_tensor_check("tokens", text.tokens, MHA_I32, 2, NULL));
        all += sets ? text_work(transformer, how.kind, &text, &checked)
                    : mhai_effect_gradient_work(transformer, how.kind, &text, own.measures);
    }
    *work = all;
    return MHA_OK;
}
