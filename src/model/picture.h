/* How a model reads images: the grid of patches, and the preprocessing of preprocessor_config.json. */
#ifndef MHAI_MODEL_PICTURE_H
#define MHAI_MODEL_PICTURE_H

#include "model/model_config.h"

#include "image/image.h"

/* The filters of a resize. */
typedef enum mhai_filter { MHAI_BILINEAR, MHAI_BICUBIC } mhai_filter;

/* The steps of an image processor, in order. */
typedef struct mhai_processor {
    int64_t height, width;           /* of the resized image; 0: not resized */
    int64_t shortest;                /* instead: of its shorter edge; 0: none */
    int64_t crop_height, crop_width; /* of the middle; 0: not cropped */
    mhai_filter filter;
    bool edges;  /* a single size is that of the shorter edge (CLIP) */
    bool crops;  /* the middle is cut out unless the file says otherwise */
    bool floats; /* resize numbers, not bytes (DINOv3) */
    double factor, mean[3], std[3];
} mhai_processor;

/* Positions for images of another size: none, or interpolated ones. */
typedef enum mhai_sizes { MHAI_FIXED, MHAI_INTERPOLATED, MHAI_ANTIALIASED } mhai_sizes;

typedef struct mhai_picture {
    int64_t patch;      /* edge of a patch; 0: the model reads no images */
    int64_t image;      /* edge of images at the size of the file's positions */
    int64_t rows, cols; /* patches of an image */
    int64_t first;      /* tokens before the patches: CLS and registers */
    int64_t registers;
    bool cls, no_key_bias;
    mhai_sizes sizes;
    mhai_processor processor;
} mhai_picture;

/* Read preprocessor_config.json, if the folder has it, over the defaults in *picture. Set rows and
 * cols. Errors MHA_ERR_MODEL, MHA_ERR_UNSUPPORTED (a step; a size that the model rejects). */
MHA_NODISCARD mha_status mhai_picture_read(const char *folder, mhai_picture *picture);

/* Resize, crop and normalise an image: *numbers is [rows patch, cols patch, 3], *seen the image before
 * normalisation. The caller frees both, even after an error. */
MHA_NODISCARD mha_status mhai_picture_process(const mhai_picture *picture, const mha_image *image,
                                              float **numbers, mha_image *seen);

/* Interpolate a table [old,old,width] to [rows,cols,width], as torch.nn.functional.interpolate()
 * with mode="bicubic". Accuracy: weights and sums in double, rounded once. */
void mhai_picture_interpolate(const float *table, int64_t old, int64_t width, int64_t rows,
                              int64_t cols, bool antialias, float *to);

#endif
