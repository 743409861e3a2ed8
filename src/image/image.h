/* Images: decoders of each format, and resizing. */
#ifndef MHAI_IMAGE_H
#define MHAI_IMAGE_H

#include <multihead/image.h>

/* Decode a file whose signature matches. Errors without the name of a file. */
MHA_NODISCARD mha_status mhai_png_read(const uint8_t *bytes, size_t size, mha_image *image);
MHA_NODISCARD mha_status mhai_jpeg_read(const uint8_t *bytes, size_t size, mha_image *image);

/* The orientation in the bytes of EXIF without "Exif\0\0", 1 .. 8; 1, the usual one, if they have none.
 * Any bytes are allowed. */
int mhai_exif_orientation(const uint8_t *bytes, size_t size);

/* Turn an image that is stored in this orientation. After an error it is unchanged. */
MHA_NODISCARD mha_status mhai_image_turn(mha_image *image, int orientation);

/* Check the bounds and allocate the pixels, black. */
MHA_NODISCARD mha_status mhai_image_make(int64_t width, int64_t height, mha_image *image);

/* Resize with a triangle or a cubic (a = -0.5) that is widened by the ratio of the sizes if the image
 * shrinks, first along rows and then along columns, as Pillow does: weights have 22 bits, and each
 * pass is rounded to bytes. *to becomes a new image. */
MHA_NODISCARD mha_status mhai_image_resize(const mha_image *from, int64_t width, int64_t height,
                                           bool cubic, mha_image *to);

/* The same in floats, [height,width,3] of numbers 0 .. 1 from `factor` times bytes, rounded once per
 * pass. The caller frees *to. */
MHA_NODISCARD mha_status mhai_image_resize_floats(const mha_image *from, double factor,
                                                  int64_t width, int64_t height, bool cubic,
                                                  float **to);

#endif
