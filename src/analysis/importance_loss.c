/* Losses of whole sequences and their gradients: cross-entropy, and the direction of
 * a sequence's mean row. */
#include "base/need.h"
#include "base/tensor.h"

#include <multihead/component.h>
#include <multihead/importance.h>

#include <math.h>
#include <string.h>

static mha_status check(const char *function, const mha_tensor *output, const double *losses,
                        const void *user)
{
    if (output && losses && user) return MHA_OK;
    return mha_fail(MHA_ERR_NULL, "%s: %s is NULL", function,
                    !output   ? "output"
                    : !losses ? "losses"
                              : "user");
}

static float *row_of(const mha_tensor *x, int64_t b, int64_t i)
{
    return (float *)x->data + b * x->stride[0] + i * x->stride[1];
}

static int64_t length_of(const int64_t *lengths, const mha_tensor *output, int64_t b)
{
    return lengths ? lengths[b] : output->shape[1];
}

/* ---- cross-entropy ------------------------------------------------------------------------- */

/* One sequence: rows of logits, and targets from its tokens. */
static mha_status sequence(mha_context *context, int64_t b, int64_t length,
                           const mha_tensor *output, const mha_tensor *gradient,
                           const mha_tensor *targets, double *loss)
{
    const int64_t shape[] = {length, output->shape[2]};
    const int64_t stride[] = {output->stride[1], 1};
    mha_tensor logits = *output, rows = *targets, slope;
    logits.data = row_of(output, b, 0);
    logits.ndim = 2;
    memcpy(logits.shape, shape, sizeof shape);
    memcpy(logits.stride, stride, sizeof stride);
    rows.data = (int32_t *)targets->data + b * targets->stride[0];
    rows.ndim = 1;
    rows.shape[0] = length;
    rows.stride[0] = targets->stride[1];
    slope = logits;
    if (gradient) {
        slope.data = row_of(gradient, b, 0);
        slope.stride[0] = gradient->stride[1];
    }
    return mha_cross_entropy(context, &logits, &rows, NULL, loss, NULL, gradient ? &slope : NULL);
}

mha_status mha_loss_targets(mha_context *context, int64_t batch, const mha_transformer_input *input,
                            const mha_tensor *output, const mha_tensor *output_gradient,
                            double *losses, void *user)
{
    MHA_TRY(check("mha_loss_targets", output, losses, user));
    const mha_tensor *targets = ((const mha_tensor *const *)user)[batch];
    MHA_TRY(mhai_tensor_check("targets", targets, MHA_I32, 2, output->shape));
    for (int64_t b = 0; b < output->shape[0]; b++) {
        losses[b] = 0;
        const int64_t length = length_of(input->lengths, output, b);
        if (length > 0)
            MHA_TRY(sequence(context, b, length, output, output_gradient, targets, &losses[b]));
    }
    return MHA_OK;
}

/* ---- embeddings ---------------------------------------------------------------------------- */

static double mean_at(const mha_tensor *output, int64_t b, int64_t length, int64_t k)
{
    double sum = 0;
    for (int64_t i = 0; i < length; i++) sum += (double)row_of(output, b, i)[k];
    return length > 0 ? sum / (double)length : 0;
}

mha_status mha_mean_embedding(const mha_tensor *output, const int64_t *lengths,
                              const mha_tensor *embeddings)
{
    MHA_TRY(mhai_tensor_check("output", output, MHA_F32, 3, NULL));
    MHA_TRY(mhai_tensor_check_last("output", output));
    const int64_t shape[] = {output->shape[0], output->shape[2]};
    MHA_TRY(mhai_tensor_check("embeddings", embeddings, MHA_F32, 2, shape));
    MHA_TRY(mhai_tensor_check_last("embeddings", embeddings));
    MHA_TRY(mhai_tensor_check_output("embeddings", embeddings));
    for (int64_t b = 0; lengths && b < shape[0]; b++)
        MHA_TRY(mhai_check_entry("lengths", b, lengths[b], 0, output->shape[1]));
    for (int64_t b = 0; b < shape[0]; b++)
        for (int64_t k = 0; k < shape[1]; k++)
            ((float *)embeddings->data)[b * embeddings->stride[0] + k] =
                (float)mean_at(output, b, length_of(lengths, output, b), k);
    return MHA_OK;
}

/* f = u.m / |m| for the mean m of a sequence's rows and u = wanted->data. The gradient with respect
 * to a row is factor * (u - (u.m / |m|^2) m) / (|m| length). */
typedef struct along {
    double value;      /* u.m / |m|; 0 if m is 0 */
    double over, back; /* 1 / |m|, u.m / |m|^3 */
} along;

static along measure(const mha_tensor *output, int64_t b, int64_t length, const float *u)
{
    double dot = 0, square = 0;
    for (int64_t k = 0; k < output->shape[2]; k++) {
        const double m = mean_at(output, b, length, k);
        dot += m * (double)u[k];
        square += m * m;
    }
    const double norm = sqrt(square);
    if (!(norm > 0)) return (along){0, 0, 0};
    return (along){dot / norm, 1 / norm, dot / (square * norm)};
}

static void slope(const mha_tensor *output, int64_t b, int64_t length, const float *u, along a,
                  double factor, const mha_tensor *gradient)
{
    for (int64_t k = 0; k < output->shape[2]; k++) {
        const double m = mean_at(output, b, length, k);
        const double by_mean = a.over * (double)u[k] - a.back * m;
        for (int64_t i = 0; i < length; i++)
            row_of(gradient, b, i)[k] = (float)(factor * by_mean / (double)length);
    }
}

/* offset + factor * (u.m / |m|). On request, u is divided by its norm. */
static mha_status embedding_loss(const char *function, int64_t batch,
                                 const mha_transformer_input *input, const mha_tensor *output,
                                 const mha_tensor *gradient, bool cosine, double *losses,
                                 const void *user)
{
    MHA_TRY(check(function, output, losses, user));
    const mha_tensor *wanted = ((const mha_tensor *const *)user)[batch];
    const int64_t shape[] = {output->shape[0], output->shape[2]};
    MHA_TRY(mhai_tensor_check("embeddings", wanted, MHA_F32, 2, shape));
    MHA_TRY(mhai_tensor_check_last("embeddings", wanted));
    for (int64_t b = 0; b < shape[0]; b++) {
        const float *u = (const float *)wanted->data + b * wanted->stride[0];
        const int64_t length = length_of(input->lengths, output, b);
        const along a = measure(output, b, length, u);
        double square = 0;
        for (int64_t k = 0; k < shape[1]; k++) square += (double)u[k] * (double)u[k];
        double factor = cosine ? (square > 0 ? -1 / sqrt(square) : 0) : 1;
        losses[b] = (cosine ? 1 : 0) + factor * a.value;
        if (gradient) slope(output, b, length, u, a, factor, gradient);
    }
    return MHA_OK;
}

mha_status mha_loss_cosine(mha_context *context, int64_t batch, const mha_transformer_input *input,
                           const mha_tensor *output, const mha_tensor *output_gradient,
                           double *losses, void *user)
{
    (void)context;
    return embedding_loss("mha_loss_cosine", batch, input, output, output_gradient, true, losses,
                          user);
}

mha_status mha_loss_direction(mha_context *context, int64_t batch,
                              const mha_transformer_input *input, const mha_tensor *output,
                              const mha_tensor *output_gradient, double *losses, void *user)
{
    (void)context;
    return embedding_loss("mha_loss_direction", batch, input, output, output_gradient, false,
                          losses, user);
}
