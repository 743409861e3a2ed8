/* multihead: the audio input of encoders (Whisper, Radford et al. 2022): wav files, log-mel features, and
 * the encoder's rows (libmultihead-model).
 *
 * Letters: N samples at 16 kHz, F frames, M mel bins, S rows and E width of the encoder; F = 2 S.
 *
 * Example, given mha_context *context, mha_model *model, const char *path:
 *
 *   const mha_model *encoder = mha_model_encoder(model);
 *   mha_audio_input audio_input = MHA_INIT(mha_audio_input);
 *   mha_audio audio = MHA_INIT(mha_audio);
 *   mha_status status = mha_model_audio_input(encoder, &audio_input);
 *   if (!status) status = mha_audio_read(path, &audio);
 *   float *mel = calloc((size_t)(audio_input.bins * audio_input.frames), sizeof *mel);
 *   mha_tensor features =
 *       mha_tensor_contiguous(mel, MHA_F32, 2, (int64_t[]){audio_input.bins, audio_input.frames});
 *   if (!status) status = mha_log_mel(context, audio.samples, audio.count, &features);
 *   mha_audio_free(&audio);
 *   free(mel);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_AUDIO_H
#define MULTIHEAD_AUDIO_H

#include <multihead/component.h>
#include <multihead/model.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MHA_AUDIO_RATE = 16000, MHA_AUDIO_HOP = 160 }; /* samples per second, and per frame */

/* The samples of a wav file, from -1 to 1. */
typedef struct mha_audio {
    uint32_t struct_size; /* in: sizeof(mha_audio) */
    uint32_t reserved;    /* 0 */
    int64_t count;        /* N */
    float *samples;       /* [N] */
    mha_room memory;      /* for mha_audio_free() */
} mha_audio;

/**
 * Read a wav file: RIFF, mono, 16 kHz, PCM of 16, 24 or 32 bits or f32.
 *
 * Memory   the caller frees *audio with mha_audio_free().
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (struct_size), MHA_ERR_FILE, MHA_ERR_FORMAT (not a wav file, or a
 *          damaged one), MHA_ERR_UNSUPPORTED (channels, rate or encoding), MHA_ERR_SIZE (above 1 GiB),
 *          MHA_ERR_NOMEM. There is then nothing to free.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_audio_read(const char *path, mha_audio *audio);

/** Free audio and clear the struct, except for struct_size; NULL is allowed. Memory frees it. Errors
 * none. Threads any. Since 0.1 */
MHA_API void mha_audio_free(mha_audio *audio);

/**
 * Log-mel features of samples, padded with silence to F frames, as WhisperFeatureExtractor computes
 * them:
 *
 *   power[f,k] = |sum_n hann(n) x[160 f + n - 200] exp(-2 pi i n k / 400)|^2     k = 0 .. 200
 *   mel[m,f]   = log10(max(1e-10, sum_k w[m,k] power[f,k]))      w: Slaney's filters, 0 to 8 kHz
 *   features   = (max(mel, max mel - 8) + 4) / 4
 *
 * with n = 0 .. 399 and x reflected at both ends.
 *
 *   samples [count] in, 0 <= count <= 160 F    features f32 [M,F] out, contiguous; M 1 .. 256, F >= 2
 *
 * Memory   scratch from the context: 8 M (F + 201) bytes.
 * Errors   MHA_ERR_NULL, MHA_ERR_DTYPE, MHA_ERR_SHAPE, MHA_ERR_STRIDE; MHA_ERR_SIZE (more samples than
 *          160 F); MHA_ERR_NUMERIC (a sample is not finite); MHA_ERR_NOMEM.
 * Threads  one call per context.   Accuracy  in double, rounded once.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_log_mel(mha_context *context, const float *samples,
                                             int64_t count, const mha_tensor *features);

/* The audio input of an encoder: features [M,F], which become S rows. */
typedef struct mha_audio_input {
    uint32_t struct_size; /* in: sizeof(mha_audio_input) */
    uint32_t reserved;    /* 0 */
    int64_t bins, frames; /* M, F */
    int64_t rows;         /* S */
} mha_audio_input;

/** Describe the audio input of an encoder. Memory fills *audio_input. Errors MHA_ERR_NULL, MHA_ERR_ARGUMENT
 * (struct_size), MHA_ERR_UNSUPPORTED (the model reads tokens). Threads any. Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_model_audio_input(const mha_model *encoder,
                                                       mha_audio_input *audio_input);

/**
 * Run an audio encoder: x = gelu(conv(gelu(conv(features)))) + positions, then its layers.
 *
 *   features f32 [M,F] in, contiguous    rows f32 [1,S,E] out, contiguous
 *   probabilities [L,1,H,S,S] out, as in mha_transformer_forward(); NULL: not requested
 *
 * Memory   scratch from the context: at most 4 F (3 max(M, E) + 2 E) bytes, and that of
 *          mha_linear_forward() and of the layers.
 * Errors   those of mha_model_audio_input(), mha_linear_forward() and mha_transformer_forward();
 *          MHA_ERR_SHAPE (features or rows).
 * Threads  one call per context.   Accuracy  as mha_model_forward().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_model_encode_audio(mha_context *context,
                                                        const mha_model *encoder,
                                                        const mha_tensor *features,
                                                        const mha_tensor *rows,
                                                        const mha_tensor *probabilities);

#ifdef __cplusplus
}
#endif
#endif
