/* multihead: read PNG and JPEG images, and turn them into the patches of a vision transformer.
 *
 * An image becomes patches as the model's image processor makes them (preprocessor_config.json):
 *
 *   resize to a size, or until the shorter edge has one, bilinearly or bicubically with antialiasing
 *   cut out the middle; beyond the edges it is black
 *   x = (factor byte - mean) / std           for each channel, red, green, blue
 *
 * Example, given mha_model *model, the handle of a ViT:
 *
 *   mha_image image = MHA_INIT(mha_image);
 *   mha_picture picture = MHA_INIT(mha_picture);
 *   mha_status status = mha_image_load("photo.jpg", &image);
 *   if (!status) status = mha_model_read_image(model, &image, &picture);
 *   mha_picture_free(&picture);
 *   mha_image_free(&image);
 *
 * mha_tokens_read_image() (study.h) makes tokens of it.
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_IMAGE_H
#define MULTIHEAD_IMAGE_H

#include <multihead/model.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bounds of an image file: 256 MiB, 64 million pixels, 32768 pixels in a row or column. */
#define MHA_IMAGE_MOST_BYTES (INT64_C(1) << 28)
#define MHA_IMAGE_MOST_PIXELS (INT64_C(1) << 26)
enum { MHA_IMAGE_MOST_EDGE = 1 << 15 };

/* Pixels of 8 bits. The caller may fill it instead of reading a file. */
typedef struct mha_image {
    uint32_t struct_size; /* in: sizeof(mha_image) */
    uint32_t reserved;    /* 0 */
    int64_t width, height;
    uint8_t *pixels; /* [height,width,3] red, green, blue */
} mha_image;

/**
 * Read the bytes of a PNG or JPEG file. Grey becomes red = green = blue; of 16 bits the upper 8 count;
 * transparency and colour profiles are ignored. Pixels are turned by the orientation in EXIF (segment APP1,
 * chunk eXIf). CMYK is converted without a profile, as Pillow does. Animated PNG: the default image.
 *
 * Memory   the caller frees *image with mha_image_free(); allocated with malloc(): 3 bytes per pixel,
 *          twice as many to turn them, and as many as the decoder needs (for a progressive JPEG 6 more per
 *          pixel).
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (struct_size); MHA_ERR_FORMAT (neither PNG nor JPEG,
 *          truncated, damaged, a wrong checksum); MHA_ERR_SIZE (the bounds above);
 *          MHA_ERR_UNSUPPORTED (a JPEG of 2 channels; built without libpng or libjpeg);
 *          MHA_ERR_NOMEM. *image is then unchanged.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_image_read(const void *bytes, size_t size, mha_image *image);

/** mha_image_read() of a file. Memory, Errors as there, with the path; MHA_ERR_FILE. Threads any. Since
 * 0.1 */
MHA_API MHA_NODISCARD mha_status mha_image_load(const char *path, mha_image *image);

/** Free the pixels and clear the struct, except for struct_size; NULL is allowed. Memory frees them.
 * Errors none. Threads any. Since 0.1 */
MHA_API void mha_image_free(mha_image *image);

/* The patches of an image as a model reads them, after the tokens of CLS and registers. T = first +
 * rows cols; token t >= first is the patch in row (t - first) / cols, column (t - first) % cols. */
typedef struct mha_picture {
    uint32_t struct_size; /* in: sizeof(mha_picture) */
    uint32_t reserved;    /* 0 */
    int64_t rows, cols;   /* patches */
    int64_t first;        /* tokens before the patches */
    int64_t registers;    /* of them; CLS, if there is one, precedes the registers */
    int64_t patch;        /* pixels of a patch's edge */
    int64_t feature_dim;  /* 3 patch^2 */
    float *features;      /* [T,feature_dim] for mha_transformer_input.features */
    uint8_t *pixels; /* [rows patch, cols patch, 3] what the model sees, before normalisation */
} mha_picture;

/**
 * Resize, crop and normalise an image as a model's processor does, and divide it into patches.
 *
 * Memory   borrows the image for the call; the caller frees *picture with mha_picture_free().
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (struct_size; an image without pixels);
 *          MHA_ERR_UNSUPPORTED (the model reads texts); MHA_ERR_SIZE (an image beyond the bounds, or so
 *          long that its resized form is); MHA_ERR_NOMEM. *picture is then unchanged.
 * Threads  any.
 * Accuracy numbers are bit-identical to those of transformers' image processors with Pillow, which
 *          resizes rows and then columns. Pillow 13 takes columns first for some sizes, which changes some
 *          bytes by 1. For DINOv3, whose processor resizes floats: within 1e-6.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_model_read_image(const mha_model *model,
                                                      const mha_image *image, mha_picture *picture);

/** Free the arrays and clear the struct, except for struct_size; NULL is allowed. Memory frees them.
 * Errors none. Threads any. Since 0.1 */
MHA_API void mha_picture_free(mha_picture *picture);

#ifdef __cplusplus
}
#endif
#endif
