/* See audio_stem.h. A convolution is a linear layer over the features of three neighbouring
 * frames. */
#include "model/audio_stem.h"

#include "model/model.h"

#include <multihead/audio.h>
#include <multihead/nn.h>

#include <stdlib.h>
#include <string.h>

enum { KERNEL = 3 };

struct mhai_audio_stem {
    mha_linear *convolutions[2];
    float *positions; /* [rows,width] */
    int64_t bins, rows, width;
};

void mhai_audio_stem_destroy(mhai_audio_stem *stem)
{
    if (!stem) return;
    for (int i = 0; i < 2; i++) mha_linear_destroy(stem->convolutions[i]);
    free(stem->positions);
    free(stem);
}

/* ---- loading --------------------------------------------------------------------------------- */

/* Read a checked weight into an array that the caller frees. */
static mha_status read_weight(const mhai_weights *weights, const char *name,
                              const mha_tensor *expected, float **to)
{
    int64_t index, count;
    MHA_TRY(mhai_weights_check(weights, name, expected, &index));
    MHA_TRY(mha_tensor_count(expected, &count));
    *to = malloc((size_t)count * sizeof **to + 1);
    if (!*to) return MHA_NO_MEMORY("model");
    mhai_elements_read(mhai_weights_elements(weights, index), 0, count, *to);
    return MHA_OK;
}

static mha_status load_convolution(mha_context *context, const mhai_weights *weights,
                                   const char *name, int64_t inputs, int64_t outputs,
                                   mha_linear **made)
{
    char full[MHAI_WEIGHT_NAME];
    float *numbers[2] = {NULL, NULL};
    const mha_tensor kernel = {.ndim = 3, .shape = {outputs, inputs, KERNEL}};
    const mha_tensor vector = {.ndim = 1, .shape = {outputs}};
    mha_format(full, sizeof full, "%s.weight", name);
    mha_status status = read_weight(weights, full, &kernel, &numbers[0]);
    mha_format(full, sizeof full, "%s.bias", name);
    if (status == MHA_OK) status = read_weight(weights, full, &vector, &numbers[1]);
    if (status == MHA_OK) {
        const mha_tensor weight =
            mha_tensor_contiguous(numbers[0], MHA_F32, 2, (int64_t[]){outputs, inputs * KERNEL});
        const mha_tensor bias = mha_tensor_contiguous(numbers[1], MHA_F32, 1, &outputs);
        status = mha_linear_create(context, &weight, &bias, made);
    }
    free(numbers[0]);
    free(numbers[1]);
    return status;
}

static mha_status load(mha_context *context, const mhai_weights *weights, mhai_audio_stem *stem)
{
    const mha_tensor table = {.ndim = 2, .shape = {stem->rows, stem->width}};
    MHA_TRY(read_weight(weights, "encoder.embed_positions.weight", &table, &stem->positions));
    MHA_TRY(load_convolution(context, weights, "encoder.conv1", stem->bins, stem->width,
                             &stem->convolutions[0]));
    return load_convolution(context, weights, "encoder.conv2", stem->width, stem->width,
                            &stem->convolutions[1]);
}

mha_status mhai_audio_stem_load(mha_context *context, const mhai_weights *weights,
                                const mhai_family_plan *plan, mhai_audio_stem **stem)
{
    mhai_audio_stem *made = calloc(1, sizeof *made);
    if (!made) return MHA_NO_MEMORY("model");
    made->bins = plan->bins;
    made->rows = plan->desc.max_length;
    made->width = plan->desc.embed_dim;
    const mha_status status = load(context, weights, made);
    if (status == MHA_OK)
        *stem = made;
    else
        mhai_audio_stem_destroy(made);
    return status;
}

/* ---- forward --------------------------------------------------------------------------------- */

static mha_status stem_of(const mha_model *encoder, const mhai_audio_stem **stem)
{
    *stem = encoder->audio_stem;
    if (*stem) return MHA_OK;
    return mha_fail(MHA_ERR_UNSUPPORTED, "this %s reads tokens, not audio",
                    encoder->info.architecture);
}

mha_status mha_model_audio_input(const mha_model *encoder, mha_audio_input *audio_input)
{
    const mhai_audio_stem *stem;
    MHA_NEED("mha_model_audio_input", encoder, audio_input);
    MHA_TRY(
        mha_struct_check_size("mha_audio_input", audio_input->struct_size, sizeof *audio_input));
    MHA_TRY(stem_of(encoder, &stem));
    audio_input->bins = stem->bins;
    audio_input->frames = 2 * stem->rows;
    audio_input->rows = stem->rows;
    return MHA_OK;
}

/* Gather the features of three neighbouring frames around each step-th one; 0 beyond the ends.
 * Feature c of frame t is at c * across + t * along. */
static void unfold(const float *from, int64_t across, int64_t along, int64_t features,
                   int64_t frames, int64_t step, float *to)
{
    for (int64_t t = 0; t < frames; t += step)
        for (int64_t c = 0; c < features; c++)
            for (int64_t k = -1; k < KERNEL - 1; k++) {
                const bool inside = t + k >= 0 && t + k < frames;
                *to++ = inside ? from[c * across + (t + k) * along] : 0;
            }
}

static mha_status convolve(mha_context *context, const mhai_audio_stem *stem, const float *features,
                           float *x)
{
    const int64_t F = 2 * stem->rows, E = stem->width, M = stem->bins;
    const int64_t widest = M > E ? M : E;
    float *parts, *first;
    MHA_TRY(mha_scratch_alloc(context, F * KERNEL * widest, sizeof *parts, &parts));
    MHA_TRY(mha_scratch_alloc(context, F * E, sizeof *first, &first));
    unfold(features, F, 1, M, F, 1, parts);
    const mha_tensor in = mha_tensor_contiguous(parts, MHA_F32, 2, (int64_t[]){F, KERNEL * M});
    const mha_tensor middle = mha_tensor_contiguous(first, MHA_F32, 2, (int64_t[]){F, E});
    MHA_TRY(mha_linear_forward(context, stem->convolutions[0], MHA_ACTIVATION_GELU, &in, &middle));
    unfold(first, 1, E, E, F, 2, parts);
    const mha_tensor half =
        mha_tensor_contiguous(parts, MHA_F32, 2, (int64_t[]){stem->rows, KERNEL * E});
    const mha_tensor out = mha_tensor_contiguous(x, MHA_F32, 2, (int64_t[]){stem->rows, E});
    MHA_TRY(mha_linear_forward(context, stem->convolutions[1], MHA_ACTIVATION_GELU, &half, &out));
    for (int64_t i = 0; i < stem->rows * E; i++) x[i] += stem->positions[i];
    return MHA_OK;
}

static mha_status encode_audio(mha_context *context, const mha_model *encoder,
                               const float *features, const mha_tensor *rows,
                               const mha_tensor *probabilities)
{
    const mhai_audio_stem *stem = encoder->audio_stem;
    const int64_t S = stem->rows;
    float *x;
    int32_t *ids;
    MHA_TRY(mha_scratch_alloc(context, S * stem->width, sizeof *x, &x));
    MHA_TRY(mha_scratch_zeros(context, S, sizeof *ids, &ids));
    MHA_TRY(convolve(context, stem, features, x));
    const mha_tensor tokens = mha_tensor_contiguous(ids, MHA_I32, 2, (int64_t[]){1, S});
    const mha_tensor stream = mha_tensor_contiguous(x, MHA_F32, 3, (int64_t[]){1, S, stem->width});
    const mha_transformer_input input = {
        .struct_size = sizeof input, .tokens = &tokens, .stream = &stream};
    return mha_transformer_forward(context, encoder->transformer, &input, NULL, rows, probabilities,
                                   NULL);
}

mha_status mha_model_encode_audio(mha_context *context, const mha_model *encoder,
                                  const mha_tensor *features, const mha_tensor *rows,
                                  const mha_tensor *probabilities)
{
    const mhai_audio_stem *stem;
    MHA_NEED("mha_model_encode_audio", context, encoder, features, rows);
    MHA_TRY(stem_of(encoder, &stem));
    if (features->dtype != MHA_F32 || features->ndim != 2 || !features->data ||
        features->shape[0] != stem->bins || features->shape[1] != 2 * stem->rows ||
        features->stride[1] != 1 || features->stride[0] != features->shape[1])
        return mha_fail(MHA_ERR_SHAPE, "features: expected contiguous f32 [%lld,%lld]",
                        (long long)stem->bins, (long long)(2 * stem->rows));
    const mha_scratch_mark mark = mha_scratch_top(context);
    return mha_scratch_end(context, mark,
                           encode_audio(context, encoder, features->data, rows, probabilities));
}
