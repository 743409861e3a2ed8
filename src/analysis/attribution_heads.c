/* How heads attend from some tokens of a text to others. One run gives weights and fractions. For
 * the effects, one more run per head ablates that head. Only the requested rows are computed. */
#include "analysis/attribution.h"
#include "analysis/row_source.h"

#include "base/checked.h"
#include "base/need.h"

#include <multihead/component.h>

#include <math.h>
#include <string.h>

typedef struct head_run {
    mha_context *context;
    const mha_transformer *t;
    const mha_head_attribution_desc *d;
    mha_head_attribution *found;
    mha_tensor tokens;   /* [1,T] */
    int64_t T, H, width; /* width of an output row */
    mha_activations *kept;
    float *output, *whole; /* [T,width] output of a run; rows of `from` with all heads */
    float *gates;          /* [L,H] */
    float *rows, *heads;   /* [H, rows, T] weights; [H D] of one query */
} head_run;

/* ---- runs ------------------------------------------------------------------------------------ */

static mha_status forward(head_run *f)
{
    const mha_tensor output =
        mha_tensor_contiguous(f->output, MHA_F32, 3, (const int64_t[]){1, f->T, f->width});
    const mha_tensor gates =
        mha_tensor_contiguous(f->gates, MHA_F32, 2, (const int64_t[]){f->t->desc.num_layers, f->H});
    const mha_transformer_input input = {
        .struct_size = sizeof input, .tokens = &f->tokens, .gates = &gates};
    return mha_transformer_forward(f->context, f->t, &input, f->kept, &output, NULL, NULL);
}

static const float *row_of(const head_run *f, int64_t row)
{
    return f->output + (f->d->from_first + row) * f->width;
}

/* The log softmax of a row at one token. */
static double log_probability(const float *row, int64_t count, int64_t token)
{
    double most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < count; i++) /* gcc 12 for aarch64 crashes on fmax() here */
        if ((double)row[i] > most) most = (double)row[i];
    for (int64_t i = 0; i < count; i++) sum += mha_exp((double)row[i] - most);
    return (double)row[token] - most - mha_log(sum);
}

static double cosine(const float *a, const float *b, int64_t count)
{
    double dot = 0, aa = 0, bb = 0;
    for (int64_t i = 0; i < count; i++) {
        dot += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    return dot / sqrt(aa * bb);
}

static int64_t argmax(const float *row, int64_t count)
{
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++)
        if (row[i] > row[best]) best = i;
    return best;
}

/* ---- weights and shares ---------------------------------------------------------------------- */

/* The weights of all heads of a layer, in row r of `from`. */
static mha_status weigh_row(head_run *f, const mha_layer_view *view, int64_t r)
{
    const int64_t H = view->q.shape[1], t = f->d->from_first + r;
    mha_attention_desc desc = view->attention;
    mha_tensor q = view->q, o, p, bias;
    q.data = (float *)q.data + t * q.stride[2];
    q.shape[2] = 1;
    if (mhai_reads_positions(&desc)) desc.q_offset += t;
    if (desc.bias) {
        bias = *desc.bias;
        bias.data = (float *)bias.data + t * bias.stride[2];
        bias.shape[2] = 1;
        desc.bias = &bias;
    }
    o = mha_tensor_contiguous(f->heads, MHA_F32, 4, (const int64_t[]){1, H, 1, view->v.shape[3]});
    p = mha_tensor_contiguous(f->rows + r * f->T, MHA_F32, 4, (const int64_t[]){1, H, 1, f->T});
    p.stride[1] = f->d->from_count * f->T;
    const mha_attention_outputs outputs = {.struct_size = sizeof outputs, .probabilities = &p};
    return mha_attention_forward(f->context, &desc, &q, &view->k, &view->v, &o, &outputs);
}

/* Sum over the columns of `to`, averaged over the rows of `from`. part: as a
 * fraction of each row's sum. */
static double mass(const head_run *f, int64_t head, bool part)
{
    const mha_head_attribution_desc *d = f->d;
    double mean = 0;
    for (int64_t r = 0; r < d->from_count; r++) {
        const float *row = f->rows + (head * d->from_count + r) * f->T;
        double sum = 0, all = 0;
        for (int64_t s = 0; s < f->T; s++) all += (double)row[s];
        for (int64_t s = 0; s < d->to_count; s++) sum += (double)row[d->to_first + s];
        mean += (!part ? sum : all > 0 ? sum / all : 0) / (double)d->from_count;
    }
    return mean;
}

static bool wanted(const head_run *f, int64_t layer, int64_t head)
{
    return !f->d->heads || f->d->heads[layer * f->H + head];
}

static void note(const head_run *f, int64_t layer, int64_t heads, bool part, double *to)
{
    for (int64_t h = 0; to && h < heads; h++)
        if (wanted(f, layer, h)) to[layer * f->H + h] = mass(f, h, part);
}

static mha_status measure_layer(head_run *f, int64_t layer)
{
    mha_layer_view view = {.struct_size = sizeof view};
    MHA_TRY(mha_activations_layer(f->kept, layer, MHA_PART_SELF_ATTENTION, &view));
    const int64_t H = view.q.shape[1];
    bool any = false;
    for (int64_t h = 0; h < H; h++) any |= wanted(f, layer, h);
    if (!any) return MHA_OK;
    for (int64_t r = 0; r < f->d->from_count; r++) MHA_TRY(weigh_row(f, &view, r));
    note(f, layer, H, false, f->found->weights);
    const mha_tensor p =
        mha_tensor_contiguous(f->rows, MHA_F32, 4, (const int64_t[]){1, H, f->d->from_count, f->T});
    const mha_norm_maps maps = {.struct_size = sizeof maps, .probabilities = &p, .heads = &p};
    MHA_TRY(mha_layer_norm_maps(f->context, f->t, f->kept, layer, MHA_PART_SELF_ATTENTION, &maps));
    note(f, layer, H, true, f->found->shares);
    return MHA_OK;
}

/* ---- effects --------------------------------------------------------------------------------- */

static double change(const head_run *f)
{
    const int64_t rows = f->d->from_count;
    double sum = 0;
    if (f->found->predicted >= 0)
        return mha_log(f->found->probability) -
               log_probability(row_of(f, rows - 1), f->width, f->found->predicted);
    for (int64_t r = 0; r < rows; r++)
        sum += 1 - cosine(f->whole + r * f->width, row_of(f, r), f->width);
    return sum / (double)rows;
}

/* Measure the effect of each head, layer by layer. */
static mha_status measure_effects(head_run *f)
{
    const int64_t layers = f->t->desc.num_layers;
    int64_t done = 0, total = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = 0; i < layers * f->H; i++) {
            if (i % f->H >= mhai_transformer_heads_of(&f->t->desc, i / f->H, false).q ||
                !wanted(f, i / f->H, i % f->H))
                continue;
            total += pass == 0;
            if (pass == 0) continue;
            if (f->d->progress) MHA_TRY(f->d->progress(done++, total, f->d->progress_user));
            f->gates[i] = 0;
            MHA_TRY(forward(f));
            f->gates[i] = 1;
            f->found->effects[i] = change(f);
        }
    return MHA_OK;
}

static void note_prediction(head_run *f)
{
    const float *last = f->whole + (f->d->from_count - 1) * f->width;
    f->found->predicted = -1;
    f->found->probability = 0;
    if (f->t->desc.flags & MHA_TRANSFORMER_NO_OUTPUT) return;
    f->found->predicted = (int32_t)argmax(last, f->width);
    f->found->probability = mha_exp(log_probability(last, f->width, f->found->predicted));
}

static mha_status measure(head_run *f)
{
    MHA_TRY(forward(f));
    memcpy(f->whole, row_of(f, 0), (size_t)(f->d->from_count * f->width) * sizeof *f->whole);
    note_prediction(f);
    for (int64_t l = 0; l < f->t->desc.num_layers; l++) MHA_TRY(measure_layer(f, l));
    return f->found->effects ? measure_effects(f) : MHA_OK;
}

/* ---- the call -------------------------------------------------------------------------------- */

static mha_status check_tokens(const char *name, int64_t first, int64_t count, int64_t tokens)
{
    if (first >= 0 && count >= 1 && first < tokens && count <= tokens - first) return MHA_OK;
    return mha_fail(MHA_ERR_ARGUMENT,
                    "mha_head_attribution_desc: %s: %lld tokens from %lld on, expected at least "
                    "one, among the %lld of the text",
                    name, (long long)count, (long long)first, (long long)tokens);
}

static mha_status check(const head_run *f)
{
    MHA_TRY(mhai_check_reserved("mha_head_attribution_desc", f->d->reserved));
    if (f->t->desc.flags & MHA_TRANSFORMER_CROSS)
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_transformer_head_attribution: a transformer with "
                                             "cross-attention needs its memory");
    MHA_TRY(check_tokens("from", f->d->from_first, f->d->from_count, f->T));
    return check_tokens("to", f->d->to_first, f->d->to_count, f->T);
}

static mha_status allocate(const head_run *f, int64_t rows, int64_t columns, float **memory)
{
    return mha_scratch_alloc(f->context, mhai_times(rows, columns), sizeof(float), memory);
}

static mha_status run(head_run *f)
{
    const mha_transformer_desc *d = &f->t->desc;
    const int64_t heads = d->num_layers * f->H;
    MHA_TRY(check(f));
    MHA_TRY(allocate(f, f->T, f->width, &f->output));
    MHA_TRY(allocate(f, f->d->from_count, f->width, &f->whole));
    MHA_TRY(allocate(f, heads, 1, &f->gates));
    MHA_TRY(allocate(f, f->H * f->d->from_count, f->T, &f->rows));
    MHA_TRY(allocate(f, mha_transformer_heads_width(d), 1, &f->heads));
    for (int64_t i = 0; i < heads; i++) f->gates[i] = 1;
    MHA_TRY(mha_activations_create(f->context, f->t, f->T, 0, &f->kept));
    return measure(f);
}

mha_status mha_transformer_head_attribution(mha_context *context,
                                            const mha_transformer *transformer,
                                            const mha_tensor *tokens,
                                            const mha_head_attribution_desc *desc,
                                            mha_head_attribution *found)
{
    MHA_NEED("mha_transformer_head_attribution", context, transformer, desc, found);
    MHA_TRY(mhai_transformer_weighs_values("mha_transformer_head_attribution", transformer));
    mha_head_attribution_desc own;
    mha_head_attribution out;
    MHA_TRY(mhai_struct_copy("mha_head_attribution_desc", &own, sizeof own, sizeof own, desc));
    MHA_TRY(mhai_struct_copy("mha_head_attribution", &out, sizeof out, sizeof out, found));
    MHA_TRY(mhai_tensor_check("tokens", tokens, MHA_I32, 1, NULL));
    MHA_TRY(mhai_tensor_check_last("tokens", tokens));
    const mha_transformer_desc *d = &transformer->desc;
    head_run f = {.context = context,
                  .t = transformer,
                  .d = &own,
                  .found = &out,
                  .tokens = mha_tensor_contiguous(tokens->data, MHA_I32, 2,
                                                  (const int64_t[]){1, tokens->shape[0]}),
                  .T = tokens->shape[0],
                  .H = d->num_heads,
                  .width = d->flags & MHA_TRANSFORMER_NO_OUTPUT ? d->embed_dim : d->vocab_size};
    const mha_scratch_mark mark = mha_scratch_top(context);
    const mha_status status = run(&f);
    mha_activations_destroy(f.kept);
    mha_scratch_release(context, mark);
    if (status != MHA_OK) return status;
    found->predicted = out.predicted;
    found->probability = out.probability;
    return MHA_OK;
}
