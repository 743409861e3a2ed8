/* The importance of heads: passes over batches of data, either with gates closed one by one or with
 * the gradients of all gates. */
#include "analysis/importance_parts.h"

#include "base/hash.h"
#include "base/need.h"
#include "nn/nn_check.h"
#include "transformer/transformer_parts.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

const char *mha_importance_name(mha_importance kind)
{
    static const char *const names[] = {"gradient",        "gradient-token", "gradient-batch",
                                        "gradient-signed", "ablation",       "mean-ablation"};
    return (unsigned)kind < sizeof names / sizeof names[0] ? names[kind] : NULL;
}

int64_t mhai_importance_heads(const mhai_importance_run *r, int64_t layer)
{
    return mhai_transformer_heads_of(&r->d, layer, false).q;
}

/* ---- ranks --------------------------------------------------------------------------------- */

static void run_of(const mha_transport *t, int32_t rank, int64_t count, int64_t *begin,
                   int64_t *end)
{
    const int64_t each = count / t->size, more = count % t->size; /* the first `more` ranks have one
                                                                   * more */
    *begin = each * rank + (rank < more ? rank : more);
    *end = *begin + each + (rank < more);
}

void mhai_importance_mine(const mhai_importance_run *r, int64_t count, int64_t *begin, int64_t *end)
{
    *begin = 0, *end = count;
    if (r->ranks) run_of(r->ranks, r->ranks->rank, count, begin, end);
}

mha_status mhai_importance_share(const mhai_importance_run *r, mha_status status, double *items,
                                 int64_t count, int64_t each)
{
    if (!r->ranks) return status;
    MHA_TRY(mha_transport_agree(r->ranks, status));
    for (int32_t rank = 0; rank < r->ranks->size; rank++) {
        int64_t begin, end;
        run_of(r->ranks, rank, count, &begin, &end);
        MHA_TRY(mha_transport_broadcast(r->ranks, rank, items + begin * each,
                                        (size_t)((end - begin) * each) * sizeof *items));
    }
    return MHA_OK;
}

mha_status mhai_importance_agree(const mhai_importance_run *r, mha_status status, int64_t what,
                                 int64_t more)
{
    const int64_t all[] = {r->desc.kind, r->desc.flags, r->data.batches, r->examples, r->tokens,
                           what,         more,          (int64_t)r->mark};
    if (!r->ranks) return status;
    MHA_TRY(mha_transport_agree(r->ranks, status));
    return mha_transport_same(r->ranks, "importance to measure", all, sizeof all, MHA_OK);
}

/* ---- a run --------------------------------------------------------------------------------- */

static mha_status check_input(const mhai_importance_run *r, int64_t i, mha_transformer_input *input)
{
    const mha_transformer_input *given = r->data.inputs[i];
    MHA_TRY(mhai_transformer_check("mha_importance_data", r->t, given, input));
    if (!input->gates && !input->head_means && !(input->dropout < 0) && !(input->dropout > 0))
        return MHA_OK;
    return mha_fail(MHA_ERR_ARGUMENT,
                    "mha_importance_data: inputs[%lld] has gates, head_means or dropout, which the "
                    "measurement sets itself",
                    (long long)i);
}

/* Add an input to the hash that ranks compare. */
static uint64_t add_input(uint64_t mark, const mha_transformer_input *input)
{
    const mha_tensor *x = input->tokens;
    const int64_t *lengths = input->lengths;
    mark = mhai_hash(mark, x->shape, 2 * sizeof *x->shape);
    if (lengths) mark = mhai_hash(mark, lengths, (size_t)x->shape[0] * sizeof *lengths);
    for (int64_t b = 0; b < x->shape[0]; b++)
        for (int64_t t = 0; t < x->shape[1]; t++)
            mark = mhai_hash(mark, (const int32_t *)x->data + b * x->stride[0] + t * x->stride[1],
                             sizeof(int32_t));
    return mark;
}

static mha_status check_data(mhai_importance_run *r)
{
    MHA_NEED_AS("mha_importance_data", "inputs, loss", r->data.inputs, r->data.loss);
    for (int64_t i = 0; i < r->data.batches; i++) {
        mha_transformer_input input;
        MHA_TRY(check_input(r, i, &input));
        const int64_t *shape = input.tokens->shape;
        if (r->ranks) r->mark = add_input(r->mark, &input);
        r->examples += shape[0];
        if (shape[0] > r->batch) r->batch = shape[0];
        if (shape[1] > r->longest) r->longest = shape[1];
        if (shape[0] * shape[1] > r->tokens) r->tokens = shape[0] * shape[1];
    }
    if (r->data.batches >= 1 && r->examples >= 1 && r->tokens >= 1) return MHA_OK;
    return mha_fail(MHA_ERR_ARGUMENT,
                    "mha_importance_data: %lld batches with %lld sequences and at "
                    "most %lld tokens; give at least one of each",
                    (long long)r->data.batches, (long long)r->examples, (long long)r->tokens);
}

static mha_status check_desc(const mhai_importance_run *r)
{
    const mha_importance_desc *desc = &r->desc;
    if (desc->reserved || r->data.reserved || desc->flags & ~(uint32_t)MHA_IMPORTANCE_NORMALISE)
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_importance_desc: flags 0x%x or reserved",
                        (unsigned)desc->flags);
    if (!mha_importance_name(desc->kind))
        return mha_fail(MHA_ERR_ARGUMENT, "mha_importance_desc: kind %d is unknown",
                        (int)desc->kind);
    if (desc->gates) MHA_TRY(mhai_nn_matrix("gates", desc->gates, r->d.num_layers, r->d.num_heads));
    if (desc->means)
        MHA_TRY(
            mhai_nn_matrix("means", desc->means, r->d.num_layers, r->d.num_heads * r->d.head_dim));
    return MHA_OK;
}

static mha_status take(const mhai_importance_run *r, int64_t count, size_t size, void *pointer)
{
    return mha_scratch_zeros(r->context, count, size, pointer);
}

static mha_status take_scratch(mhai_importance_run *r)
{
    const int64_t heads = r->d.num_layers * r->d.num_heads;
    const bool slopes = r->desc.kind < MHA_IMPORTANCE_ABLATION;
    const int64_t parts = slopes ? r->data.batches * (heads + r->batch) : heads;
    MHA_TRY(take(r, r->tokens * r->width, sizeof(float), &r->output));
    if (slopes) MHA_TRY(take(r, r->tokens * r->width, sizeof(float), &r->slope));
    if (slopes) MHA_TRY(take(r, heads * r->tokens, sizeof(float), &r->shares));
    MHA_TRY(take(r, heads, sizeof(float), &r->gates));
    MHA_TRY(take(r, heads * r->d.head_dim, sizeof(float), &r->means));
    MHA_TRY(take(r, r->batch, sizeof(double), &r->losses));
    MHA_TRY(take(r, heads, sizeof(double), &r->scores));
    MHA_TRY(take(r, parts, sizeof(double), &r->parts));
    for (int64_t i = 0; i < heads; i++)
        r->gates[i] = r->desc.gates
                          ? mhai_nn_row(r->desc.gates, i / r->d.num_heads)[i % r->d.num_heads]
                          : 1.0f;
    return MHA_OK;
}

mha_status mhai_importance_begin(mhai_importance_run *r, mha_context *context,
                                 const mha_transformer *t, const mha_importance_desc *desc,
                                 const mha_importance_data *data)
{
    *r = (mhai_importance_run){.context = context, .t = t};
    MHA_NEED_AS("importance", "context, transformer, data", context, t, data);
    MHA_TRY(mhai_transformer_plain_mixers("importance", t));
    mha_transformer_describe(t, &r->d);
    r->width = r->d.flags & MHA_TRANSFORMER_NO_OUTPUT ? r->d.embed_dim : r->d.vocab_size;
    MHA_TRY(mhai_struct_copy("mha_importance_data", &r->data, sizeof r->data,
                             offsetof(mha_importance_data, transport), data));
    r->ranks = r->data.transport;
    if (desc)
        MHA_TRY(mhai_struct_copy("mha_importance_desc", &r->desc, sizeof r->desc, sizeof r->desc,
                                 desc));
    MHA_TRY(check_data(r));
    MHA_TRY(check_desc(r));
    MHA_TRY(take_scratch(r));
    int64_t rows = 0;
    for (int64_t i = 0; i < r->data.batches; i++) {
        const mha_tensor *memory = r->data.inputs[i]->memory;
        if (memory && memory->shape[0] * memory->shape[1] > rows)
            rows = memory->shape[0] * memory->shape[1];
    }
    return mha_activations_create(context, t, r->tokens, rows, &r->a);
}

void mhai_importance_end(mhai_importance_run *r)
{
    mha_activations_destroy(r->a);
}

/* ---- a pass over the data ------------------------------------------------------------------ */

/* Input and output of batch i in a pass. input points to the tensors in this struct. */
typedef struct turn {
    mha_transformer_input input;
    mha_tensor gates, means, output, slope;
} turn;

static mha_status forward(mhai_importance_run *r, int64_t i, bool means, turn *now)
{
    const int64_t L = r->d.num_layers, H = r->d.num_heads;
    MHA_TRY(check_input(r, i, &now->input));
    now->input.struct_size = sizeof now->input;
    const int64_t *tokens = now->input.tokens->shape;
    const int64_t shape[] = {tokens[0], tokens[1], r->width};
    now->gates = mhai_transformer_rows(r->gates, L, H, H);
    now->means = mhai_transformer_rows(r->means, L, H * r->d.head_dim, H * r->d.head_dim);
    now->input.gates = &now->gates;
    now->input.head_means = means ? &now->means : NULL;
    now->output = mha_tensor_contiguous(r->output, MHA_F32, 3, shape);
    now->slope = mha_tensor_contiguous(r->slope, MHA_F32, 3, shape);
    return mha_transformer_forward(r->context, r->t, &now->input, r->a, &now->output, NULL, NULL);
}

static mha_status step(mhai_importance_run *r)
{
    r->done++;
    return r->data.progress ? r->data.progress(r->done, r->passes, r->data.progress_user) : MHA_OK;
}

/* Compute the mean loss with the current gates. */
static mha_status measure(mhai_importance_run *r, bool means, double *loss)
{
    double sum = 0;
    for (int64_t i = 0; i < r->data.batches; i++) {
        turn now;
        MHA_TRY(forward(r, i, means, &now));
        MHA_TRY(
            r->data.loss(r->context, i, &now.input, &now.output, NULL, r->losses, r->data.user));
        for (int64_t b = 0; b < now.output.shape[0]; b++) sum += r->losses[b];
    }
    *loss = sum / (double)r->examples;
    return step(r);
}

mha_status mhai_importance_loss(mhai_importance_run *r, double *loss)
{
    return measure(r, false, loss);
}

/* ---- gradients ----------------------------------------------------------------------------- */

static double fold(mha_importance kind, const float *shares, int64_t B, int64_t T, int64_t apart)
{
    double all = 0, sizes = 0;
    for (int64_t b = 0; b < B; b++) {
        double sum = 0;
        for (int64_t i = 0; i < T; i++) {
            const double share = (double)shares[b * apart + i];
            sum += kind == MHA_IMPORTANCE_GRADIENT_TOKEN ? fabs(share) : share;
        }
        all += sum;
        sizes += fabs(sum);
    }
    if (kind == MHA_IMPORTANCE_GRADIENT_SIGNED) return all;
    return kind == MHA_IMPORTANCE_GRADIENT_BATCH ? fabs(all) : sizes;
}

/* Compute the contributions of batch i to each head, then the loss of each sequence. */
static mha_status gradient_of(mhai_importance_run *r, int64_t i, double *part)
{
    const int64_t L = r->d.num_layers, H = r->d.num_heads;
    turn now;
    MHA_TRY(forward(r, i, false, &now));
    const int64_t B = now.output.shape[0], T = now.output.shape[1];
    memset(r->slope, 0, (size_t)(B * T * r->width) * sizeof *r->slope);
    memset(r->shares, 0, (size_t)(L * H * B * T) * sizeof *r->shares);
    MHA_TRY(
        r->data.loss(r->context, i, &now.input, &now.output, &now.slope, r->losses, r->data.user));
    mha_tensor shares = mha_tensor_contiguous(r->shares, MHA_F32, 4, (const int64_t[]){L, B, H, T});
    const mha_transformer_gradients wanted = {.struct_size = sizeof wanted, .heads = &shares};
    MHA_TRY(mha_transformer_backward(r->context, r->t, &now.input, r->a, &now.slope, &wanted));
    for (int64_t k = 0; k < L * H; k++)
        part[k] = fold(r->desc.kind, r->shares + (k / H * B * H + k % H) * T, B, T, H * T);
    memcpy(part + L * H, r->losses, (size_t)B * sizeof *part);
    return MHA_OK;
}

static mha_status gradients(mhai_importance_run *r, double *loss)
{
    const int64_t heads = r->d.num_layers * r->d.num_heads;
    const int64_t batches = r->data.batches, each = heads + r->batch;
    mha_status status = MHA_OK;
    int64_t begin, end;
    mhai_importance_mine(r, batches, &begin, &end);
    for (int64_t i = begin; i < end && status == MHA_OK; i++)
        status = gradient_of(r, i, r->parts + i * each);
    if (status == MHA_OK) status = step(r);
    MHA_TRY(mhai_importance_share(r, status, r->parts, batches, each));
    *loss = 0;
    for (int64_t i = 0; i < batches; i++) {
        const double *part = r->parts + i * each;
        for (int64_t k = 0; k < heads; k++) r->scores[k] += part[k];
        for (int64_t b = 0; b < r->data.inputs[i]->tokens->shape[0]; b++) *loss += part[heads + b];
    }
    *loss /= (double)r->examples;
    for (int64_t k = 0; k < heads; k++) r->scores[k] /= (double)r->examples;
    return MHA_OK;
}

/* ---- ablation ------------------------------------------------------------------------------ */

static bool is_open(float gate)
{
    return gate < 0 || gate > 0;
}

/* Whether the layer has this head and its gate is open. */
static bool is_there(const mhai_importance_run *r, int64_t k)
{
    return k % r->d.num_heads < mhai_importance_heads(r, k / r->d.num_heads) &&
           is_open(r->gates[k]);
}

static mha_status ablations(mhai_importance_run *r, double *loss)
{
    const int64_t H = r->d.num_heads, heads = r->d.num_layers * H;
    const bool means = r->desc.kind == MHA_IMPORTANCE_MEAN_ABLATION;
    int64_t open = 0, begin, end, at = 0;
    for (int64_t k = 0; k < heads; k++) open += is_there(r, k);
    mha_status status = measure(r, means, loss);
    const int64_t done = r->done;
    mhai_importance_mine(r, open, &begin, &end);
    r->done += begin;
    for (int64_t k = 0; k < heads && at < end && status == MHA_OK; k++) {
        const float gate = r->gates[k];
        if (!is_there(r, k) || at++ < begin) continue;
        r->gates[k] = 0;
        status = measure(r, means, &r->parts[at - 1]);
        r->gates[k] = gate;
    }
    MHA_TRY(mhai_importance_share(r, status, r->parts, open, 1));
    r->done = done + open;
    at = 0;
    for (int64_t k = 0; k < heads; k++)
        if (is_there(r, k)) r->scores[k] = r->parts[at++] - *loss;
    return MHA_OK;
}

/* Sum the outputs of a layer's heads [B,T,H D] over tokens. */
static void add_heads(const mhai_importance_run *r, const mha_transformer_input *input,
                      int64_t layer, double *sums)
{
    const float *heads = r->a->layers[layer].self.heads;
    const int64_t B = r->a->B, T = r->a->T, wide = mhai_importance_heads(r, layer) * r->d.head_dim;
    for (int64_t b = 0; b < B; b++)
        for (int64_t i = 0; i < (input->lengths ? input->lengths[b] : T); i++)
            for (int64_t k = 0; k < wide; k++) sums[k] += (double)heads[(b * T + i) * wide + k];
}

/* Measure r->means with all gates open. */
static mha_status measure_means(mhai_importance_run *r)
{
    const int64_t L = r->d.num_layers, H = r->d.num_heads, wide = H * r->d.head_dim;
    int64_t tokens = 0;
    double *sums;
    MHA_TRY(take(r, L * wide, sizeof(double), &sums));
    for (int64_t k = 0; k < L * H; k++) r->gates[k] = 1;
    for (int64_t i = 0; i < r->data.batches; i++) {
        turn now;
        MHA_TRY(forward(r, i, false, &now));
        for (int64_t b = 0; b < r->a->B; b++)
            tokens += now.input.lengths ? now.input.lengths[b] : r->a->T;
        for (int64_t l = 0; l < L; l++) add_heads(r, &now.input, l, sums + l * wide);
    }
    for (int64_t k = 0; k < L * wide && tokens > 0; k++)
        r->means[k] = (float)(sums[k] / (double)tokens);
    return step(r);
}

mha_status mhai_importance_prepare(mhai_importance_run *r)
{
    const int64_t L = r->d.num_layers, H = r->d.num_heads, D = r->d.head_dim;
    r->passes = mhai_importance_passes(r);
    if (r->desc.kind != MHA_IMPORTANCE_MEAN_ABLATION) return MHA_OK;
    r->passes += !r->desc.means;
    if (r->desc.means) {
        for (int64_t l = 0; l < L; l++)
            memcpy(r->means + l * H * D, mhai_nn_row(r->desc.means, l),
                   (size_t)(H * D) * sizeof(float));
    } else {
        MHA_TRY(measure_means(r));
    }
    for (int64_t k = 0; k < L * H; k++) {
        r->gates[k] = r->desc.gates ? mhai_nn_row(r->desc.gates, k / H)[k % H] : 1.0f;
        if (!is_open(r->gates[k])) memset(r->means + k * D, 0, (size_t)D * sizeof(float));
    }
    return MHA_OK;
}

/* ---- scores -------------------------------------------------------------------------------- */

int64_t mhai_importance_passes(const mhai_importance_run *r)
{
    int64_t open = 0;
    if (r->desc.kind < MHA_IMPORTANCE_ABLATION) return 1;
    for (int64_t k = 0; k < r->d.num_layers * r->d.num_heads; k++) open += is_open(r->gates[k]);
    return 1 + open;
}

mha_status mhai_importance_score(mhai_importance_run *r, double *loss)
{
    const int64_t L = r->d.num_layers, H = r->d.num_heads;
    memset(r->scores, 0, (size_t)(L * H) * sizeof *r->scores);
    MHA_TRY(r->desc.kind < MHA_IMPORTANCE_ABLATION ? gradients(r, loss) : ablations(r, loss));
    for (int64_t l = 0; r->desc.flags & MHA_IMPORTANCE_NORMALISE && l < L; l++) {
        double square = 0;
        for (int64_t h = 0; h < H; h++) square += r->scores[l * H + h] * r->scores[l * H + h];
        for (int64_t h = 0; square > 0 && h < H; h++) r->scores[l * H + h] /= sqrt(square);
    }
    return MHA_OK;
}

/* ---- public -------------------------------------------------------------------------------- */

mha_status mha_gated_loss(mha_context *context, const mha_transformer *transformer,
                          const mha_importance_data *data, const mha_tensor *gates, double *loss)
{
    MHA_NEED("mha_gated_loss", context, loss);
    const mha_importance_desc desc = {
        .struct_size = sizeof desc, .kind = MHA_IMPORTANCE_ABLATION, .gates = gates};
    mha_scratch_mark mark = mha_scratch_top(context);
    mhai_importance_run r;
    double found = 0;
    mha_status status = mhai_importance_begin(&r, context, transformer, &desc, data);
    r.passes = 1;
    if (status == MHA_OK) status = mhai_importance_loss(&r, &found);
    mhai_importance_end(&r);
    mha_scratch_release(context, mark);
    if (status == MHA_OK) *loss = found;
    return status;
}

mha_status mha_head_means(mha_context *context, const mha_transformer *transformer,
                          const mha_importance_data *data, const mha_tensor *means)
{
    MHA_NEED("mha_head_means", context, means);
    const mha_importance_desc desc = {.struct_size = sizeof desc,
                                      .kind = MHA_IMPORTANCE_MEAN_ABLATION};
    mha_scratch_mark mark = mha_scratch_top(context);
    mhai_importance_run r;
    mha_status status = mhai_importance_begin(&r, context, transformer, &desc, data);
    const int64_t wide = r.d.num_heads * r.d.head_dim;
    r.passes = 1;
    if (status == MHA_OK) status = mhai_nn_out_matrix("means", means, r.d.num_layers, wide);
    if (status == MHA_OK) status = measure_means(&r);
    for (int64_t l = 0; status == MHA_OK && l < r.d.num_layers; l++)
        memcpy(mhai_nn_row(means, l), r.means + l * wide, (size_t)wide * sizeof(float));
    mhai_importance_end(&r);
    return mha_scratch_end(context, mark, status);
}

mha_status mha_head_importance(mha_context *context, const mha_transformer *transformer,
                               const mha_importance_desc *desc, const mha_importance_data *data,
                               double *scores, double *loss)
{
    MHA_NEED("mha_head_importance", context, scores);
    mha_scratch_mark mark = mha_scratch_top(context);
    mhai_importance_run r;
    double found = 0;
    mha_status status = mhai_importance_begin(&r, context, transformer, desc, data);
    if (status == MHA_OK) status = mhai_importance_prepare(&r);
    status = mhai_importance_agree(&r, status, 0, 0);
    if (status == MHA_OK) status = mhai_importance_score(&r, &found);
    if (status == MHA_OK) {
        memcpy(scores, r.scores, (size_t)(r.d.num_layers * r.d.num_heads) * sizeof *scores);
        if (loss) *loss = found;
    }
    mhai_importance_end(&r);
    return mha_scratch_end(context, mark, status);
}
