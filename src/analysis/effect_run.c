/* A run over texts: checks, patched passes from a layer on, and the measures of predictions. Logits
 * are computed in blocks, only for rows that have terms. */
#include "analysis/effect_parts.h"

#include "base/checked.h"
#include "base/need.h"
#include "base/split_mix.h"
#include "nn/cross_entropy.h"
#include "nn/nn_check.h"

#include <math.h>
#include <string.h>

/* ---- checks of the data ---------------------------------------------------------------------- */

static mha_status check_terms(const mhai_effect_run *r, const mha_effect_text *text, int64_t i)
{
    const int64_t rows = mhai_effect_tokens(text), T = text->tokens->shape[1];
    if (text->term_count < 0 || (text->term_count > 0 && !text->terms))
        return mha_fail(MHA_ERR_ARGUMENT, "text %lld: %lld terms at %s", (long long)i,
                        (long long)text->term_count, text->terms ? "an address" : "NULL");
    for (int64_t k = 0; k < text->term_count; k++) {
        const mha_effect_term *term = &text->terms[k];
        if (term->row < 0 || term->row >= rows ||
            (text->lengths && term->row % T >= text->lengths[term->row / T]))
            return mha_fail(MHA_ERR_ARGUMENT, "text %lld, term %lld: row %lld is not in the text",
                            (long long)i, (long long)k, (long long)term->row);
        if (term->token < 0 || term->token >= r->d->vocab_size)
            return mha_fail(MHA_ERR_ARGUMENT, "text %lld, term %lld: token %d, expected 0..%lld",
                            (long long)i, (long long)k, (int)term->token,
                            (long long)r->d->vocab_size - 1);
        if (term->measure < 0 || term->measure >= r->data.measures || !isfinite(term->factor))
            return mha_fail(MHA_ERR_ARGUMENT,
                            "text %lld, term %lld: measure %d of %lld, factor %g; expected one of "
                            "them, and a finite factor",
                            (long long)i, (long long)k, (int)term->measure,
                            (long long)r->data.measures, term->factor);
    }
    return MHA_OK;
}

static mha_status read_text(mhai_effect_run *r, int64_t i)
{
    mha_effect_text *text = &r->texts[i];
    mha_transformer_input input = {.struct_size = sizeof input};
    if (!r->data.text[i])
        return mha_fail(MHA_ERR_NULL, "mha_effect_data: text[%lld] is NULL", (long long)i);
    MHA_TRY(mhai_struct_copy("mha_effect_text", text, sizeof *text, sizeof *text, r->data.text[i]));
    MHA_TRY(mhai_check_reserved("mha_effect_text", text->reserved));
    input.tokens = text->tokens;
    input.lengths = text->lengths;
    mha_transformer_input own;
    MHA_TRY(mhai_transformer_check("mha_effect_text", r->t, &input, &own));
    MHA_TRY(check_terms(r, text, i));
    r->rows = mhai_max_i64(r->rows, mhai_effect_tokens(text));
    return MHA_OK;
}

static mha_status check_data(const mhai_effect_run *r)
{
    MHA_TRY(mhai_check_reserved("mha_effect_data", r->data.reserved));
    if (r->data.texts < 1 || r->data.measures < 1 || r->data.measures > INT32_MAX)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_effect_data: %lld texts and %lld measures; give at least one of each",
                        (long long)r->data.texts, (long long)r->data.measures);
    if (!r->data.text) return mha_fail(MHA_ERR_NULL, "mha_effect_data: text is NULL");
    if (r->d->flags & (MHA_TRANSFORMER_NO_OUTPUT | MHA_TRANSFORMER_CROSS))
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "effects require a model that predicts the next token: this one has %s",
                        r->d->flags & MHA_TRANSFORMER_CROSS ? "cross-attention" : "no output");
    return MHA_OK;
}

mha_status mhai_effect_floats(const mhai_effect_run *r, int64_t rows, int64_t width, float **to)
{
    return mha_scratch_alloc(r->context, mhai_times(rows, width), sizeof **to, to);
}

static mha_status take_scratch(mhai_effect_run *r)
{
    const int64_t E = r->d->embed_dim, V = r->d->vocab_size, L = r->d->num_layers;
    const int64_t most = 6 * L * r->d->num_heads;
    MHA_TRY(mhai_effect_floats(r, r->rows, E, &r->last));
    MHA_TRY(mhai_effect_floats(r, MHAI_EFFECT_ROWS, E, &r->in));
    MHA_TRY(mhai_effect_floats(r, MHAI_EFFECT_ROWS, V, &r->logits));
    MHA_TRY(mha_scratch_alloc(r->context, MHAI_EFFECT_ROWS, sizeof *r->targets, &r->targets));
    MHA_TRY(mha_scratch_alloc(r->context, MHAI_EFFECT_ROWS, sizeof *r->losses, &r->losses));
    MHA_TRY(mha_scratch_alloc(r->context, most, sizeof *r->patches, &r->patches));
    MHA_TRY(mha_scratch_alloc(r->context, most, sizeof *r->values, &r->values));
    return MHA_OK;
}

mha_status mhai_effect_begin(mhai_effect_run *r, mha_context *context, const mha_transformer *t,
                             const mha_effect_data *data)
{
    *r = (mhai_effect_run){.context = context, .t = t, .d = &t->desc};
    MHA_TRY(mhai_struct_copy("mha_effect_data", &r->data, sizeof r->data, sizeof r->data, data));
    MHA_TRY(check_data(r));
    MHA_TRY(mha_scratch_alloc(context, r->data.texts, sizeof *r->texts, &r->texts));
    for (int64_t i = 0; i < r->data.texts; i++) MHA_TRY(read_text(r, i));
    for (int64_t l = 0; l < r->d->num_layers; l++) {
        r->heads = mhai_max_i64(r->heads, mhai_effect_wide(r, l));
        r->qkv = mhai_max_i64(r->qkv, mhai_effect_mix(r, l).width);
    }
    return take_scratch(r);
}

/* ---- a pass ---------------------------------------------------------------------------------- */

/* Copy the rows in the map. */
static void keep_rows(const mhai_effect_kept *k, float *to, const float *from, int64_t rows,
                      int64_t width)
{
    const size_t bytes = (size_t)width * sizeof *to;
    if (!k->map)
        memcpy(to, from, (size_t)rows * bytes);
    else
        for (int64_t i = 0; i < k->count; i++)
            memcpy(to + i * width, from + k->map[i] * width, bytes);
}

static mha_status keep(void *user, const mha_activations *a, int64_t layer)
{
    const mhai_effect_run *r = user;
    const mhai_effect_kept *k = &r->kept;
    const mhai_kept_attention *self = &a->layers[layer].self;
    const int64_t rows = a->B * a->T, E = r->d->embed_dim, wide = mhai_effect_wide(r, layer);
    if (k->stream) keep_rows(k, k->stream + mhai_effect_block(r, layer, E), self->step.x, rows, E);
    if (k->heads && wide)
        keep_rows(k, k->heads + mhai_effect_block(r, layer, r->heads), self->heads, rows, wide);
    if (k->qkv && wide)
        keep_rows(k, k->qkv + mhai_effect_block(r, layer, r->qkv), self->qkv, rows,
                  mhai_effect_mix(r, layer).width);
    if (k->end && layer == r->d->num_layers - 1)
        keep_rows(k, k->end, mhai_transformer_next(a, layer, MHAI_LAYER_END), rows, E);
    return MHA_OK;
}

mha_status mhai_effect_pass(mhai_effect_run *r, const mha_effect_text *text, int64_t layer,
                            const float *first)
{
    const int64_t shape[] = {text->tokens->shape[0], text->tokens->shape[1], r->d->embed_dim};
    const mha_tensor last = mha_tensor_contiguous(r->last, MHA_F32, 3, shape);
    mha_tensor stream = mhai_transformer_rows(first, shape[0] * shape[1], shape[2], shape[2]);
    stream = mha_tensor_contiguous(stream.data, MHA_F32, 3, shape);
    const mha_transformer_input input = {.struct_size = sizeof input,
                                         .tokens = text->tokens,
                                         .lengths = text->lengths,
                                         .last_hidden = &last,
                                         .after_layer = keep,
                                         .after_layer_user = r,
                                         .patches = r->patches,
                                         .patch_count = r->patch_count,
                                         .first_layer = layer,
                                         .stream = first ? &stream : NULL};
    return mha_transformer_forward(r->context, r->t, &input, NULL, NULL, NULL, NULL);
}

void mhai_effect_patch(mhai_effect_run *r, const mha_effect_text *text, mha_patch_part part,
                       int64_t layer, int64_t head, const float *values, int64_t stride,
                       const uint8_t *rows)
{
    const mhai_mix mix = mhai_effect_mix(r, layer);
    const bool by_value = part == MHA_PATCH_OUTPUT || part == MHA_PATCH_VALUE;
    const int64_t D = by_value ? mix.Dv : mix.D;
    const int64_t shape[] = {text->tokens->shape[0], text->tokens->shape[1], D};
    const mha_tensor data = mhai_transformer_vector(values, D);
    mha_tensor *tensor = &r->values[r->patch_count];
    *tensor = mha_tensor_contiguous(data.data, MHA_F32, 3, shape);
    tensor->stride[0] = shape[1] * stride;
    tensor->stride[1] = stride;
    r->patches[r->patch_count++] = (mha_head_patch){.struct_size = sizeof *r->patches,
                                                    .part = part,
                                                    .layer = layer,
                                                    .head = head,
                                                    .values = tensor,
                                                    .rows = rows};
}

/* ---- measures -------------------------------------------------------------------------------- */

/* Evaluate the terms first .. first + count - 1. */
static mha_status score_block(mhai_effect_run *r, const mha_effect_term *terms, int64_t count,
                              double *values)
{
    const int64_t E = r->d->embed_dim, V = r->d->vocab_size;
    for (int64_t k = 0; k < count; k++) {
        memcpy(r->in + k * E, r->last + terms[k].row * E, (size_t)E * sizeof *r->in);
        r->targets[k] = terms[k].token;
    }
    const mha_tensor in = mhai_transformer_rows(r->in, count, E, E);
    const mha_tensor logits = mhai_transformer_rows(r->logits, count, V, V);
    const mha_tensor targets = mha_tensor_contiguous(r->targets, MHA_I32, 1, &count);
    MHA_TRY(mha_transformer_logits(r->context, r->t, &in, &logits));
    MHA_TRY(mhai_cross_entropy_rows(r->context, &logits, &targets, r->losses));
    for (int64_t k = 0; k < count; k++) values[terms[k].measure] -= terms[k].factor * r->losses[k];
    return MHA_OK;
}

mha_status mhai_effect_score(mhai_effect_run *r, const mha_effect_text *text, double *values)
{
    for (int64_t m = 0; m < r->data.measures; m++) values[m] = NAN;
    for (int64_t k = 0; k < text->term_count; k++) values[text->terms[k].measure] = 0;
    for (int64_t k = 0; k < text->term_count; k += MHAI_EFFECT_ROWS)
        MHA_TRY(score_block(r, text->terms + k,
                            mhai_min_i64(MHAI_EFFECT_ROWS, text->term_count - k), values));
    return MHA_OK;
}

mha_status mha_effect_loss(const int32_t *tokens, int64_t first, int64_t end, double factor,
                           int32_t measure, mha_effect_term *terms)
{
    MHA_NEED("mha_effect_loss", tokens, terms);
    if (first < 1 || end <= first || !isfinite(factor))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_effect_loss: tokens %lld..%lld and factor %g; expected at least one "
                        "token after the first, and a finite factor",
                        (long long)first, (long long)end - 1, factor);
    for (int64_t i = first; i < end; i++)
        terms[i - first] = (mha_effect_term){.factor = -factor / (double)(end - first),
                                             .row = i - 1,
                                             .token = tokens[i],
                                             .measure = measure};
    return MHA_OK;
}

/* ---- replacements of heads ------------------------------------------------------------------- */

const char *mha_ablation_name(mha_ablation kind)
{
    static const char *const names[] = {"zero", "mean", "resample"};
    return (unsigned)kind < sizeof names / sizeof names[0] ? names[kind] : NULL;
}

mha_status mhai_effect_read_ablation(mhai_effect_run *r, const mha_ablation_desc *desc)
{
    MHA_TRY(mhai_struct_copy("mha_ablation_desc", &r->desc, sizeof r->desc, sizeof r->desc, desc));
    if (!mha_ablation_name(r->desc.kind))
        return mha_fail(MHA_ERR_ARGUMENT, "mha_ablation_desc: kind %d is unknown",
                        (int)r->desc.kind);
    if (r->desc.kind == MHA_ABLATION_RESAMPLE && r->data.texts < 2)
        return mha_fail(
            MHA_ERR_ARGUMENT,
            "mha_ablation_desc: resample takes outputs from another text, but there is only one");
    if (r->desc.kind != MHA_ABLATION_MEAN) return MHA_OK;
    if (!r->desc.means)
        return mha_fail(
            MHA_ERR_NULL,
            "mha_ablation_desc: mean ablation requires means; mha_effect_means() computes them");
    return mhai_nn_matrix("means", r->desc.means, r->d->num_layers,
                          mha_transformer_heads_width(r->d));
}

static int64_t other_text(const mhai_effect_run *r, int64_t i)
{
    uint64_t state = r->desc.seed + UINT64_C(0xD1342543DE82EF95) * (uint64_t)i;
    const uint64_t others = (uint64_t)r->data.texts - 1;
    return (i + 1 + (int64_t)(mhai_split_mix(&state) % others)) % r->data.texts;
}

mha_status mhai_effect_replace(mhai_effect_run *r, int64_t i, float *heads, int64_t *map)
{
    if (r->desc.kind != MHA_ABLATION_RESAMPLE) return MHA_OK;
    const mha_effect_text *text = &r->texts[i], *other = &r->texts[other_text(r, i)];
    const int64_t T = text->tokens->shape[1], rows = mhai_effect_tokens(text);
    const int64_t *from = other->tokens->shape;
    for (int64_t k = 0; k < rows; k++) {
        const int64_t b = k / T % from[0], length = other->lengths ? other->lengths[b] : from[1];
        map[k] = b * from[1] + (length > 0 ? k % T % length : 0);
    }
    r->patch_count = 0;
    r->kept = (mhai_effect_kept){.heads = heads, .map = map, .count = rows};
    MHA_TRY(mhai_effect_pass(r, other, 0, NULL));
    r->kept = (mhai_effect_kept){0};
    return mhai_effect_step(r,
                            mhai_effect_pass_work(r->t, text, 0)); /* matches mha_effect_work() */
}

const float *mhai_effect_instead(const mhai_effect_run *r, const float *heads, int64_t layer,
                                 int64_t head, int64_t *stride)
{
    const int64_t D = mhai_effect_mix(r, layer).Dv;
    *stride = 0;
    if (r->desc.kind == MHA_ABLATION_ZERO) return heads;
    if (r->desc.kind == MHA_ABLATION_MEAN) return mhai_nn_row(r->desc.means, layer) + head * D;
    *stride = mhai_effect_wide(r, layer);
    return heads + mhai_effect_block(r, layer, r->heads) + head * D;
}

/* ---- work ------------------------------------------------------------------------------------ */

int64_t mhai_effect_pass_work(const mha_transformer *t, const mha_effect_text *text, int64_t layer)
{
    const mha_transformer_desc *d = &t->desc;
    int64_t numbers = 0;
    for (int64_t l = layer; l < d->num_layers; l++) {
        const mhai_mix mix = mhai_transformer_mix(d, l);
        const mha_experts_desc *x = mhai_transformer_experts(d, l);
        numbers += mix.width + mix.out +
                   (mhai_transformer_gated(t) ? 3 : 2) *
                       (x ? x->used * x->ff_dim + x->shared_dim : mhai_transformer_ff(d, l));
    }
    return (mhai_effect_tokens(text) * numbers + text->term_count * d->vocab_size) * d->embed_dim;
}

mha_status mhai_effect_step(mhai_effect_run *r, int64_t work)
{
    r->done += work;
    return r->data.progress ? r->data.progress(r->done, r->total, r->data.progress_user) : MHA_OK;
}
