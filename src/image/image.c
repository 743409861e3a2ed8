/* Image files: recognise the format, and bound the memory before anything is allocated. */
#include "image/image.h"

#include "io/file.h"

#include <multihead/component.h>
#include <multihead/io.h>

#include <stdlib.h>
#include <string.h>

mha_status mhai_image_make(int64_t width, int64_t height, mha_image *image)
{
    if (width < 1 || height < 1 || width > MHA_IMAGE_MOST_EDGE || height > MHA_IMAGE_MOST_EDGE ||
        width * height > MHA_IMAGE_MOST_PIXELS)
        return mha_fail(MHA_ERR_SIZE,
                        "the image has %lld x %lld pixels, expected 1..%d in each direction and at "
                        "most %lld in all",
                        (long long)width, (long long)height, MHA_IMAGE_MOST_EDGE,
                        (long long)MHA_IMAGE_MOST_PIXELS);
    uint8_t *pixels = calloc((size_t)(width * height), 3);
    if (!pixels) return MHA_NO_MEMORY("image");
    *image = (mha_image){sizeof *image, 0, width, height, pixels};
    return MHA_OK;
}

void mha_image_free(mha_image *image)
{
    if (!image) return;
    free(image->pixels);
    *image = (mha_image){.struct_size = image->struct_size};
}

mha_status mha_image_read(const void *bytes, size_t size, mha_image *image)
{
    static const uint8_t png[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    static const uint8_t jpeg[] = {0xff, 0xd8, 0xff};
    MHA_NEED("mha_image_read", bytes, image);
    MHA_TRY(mha_struct_check_size("mha_image", image->struct_size, sizeof *image));
    if (size > (size_t)MHA_IMAGE_MOST_BYTES)
        return mha_fail(MHA_ERR_SIZE, "the image file has %zu bytes, at most %lld are supported",
                        size, (long long)MHA_IMAGE_MOST_BYTES);
    if (size >= sizeof png && memcmp(bytes, png, sizeof png) == 0)
        return mhai_png_read(bytes, size, image);
    if (size >= sizeof jpeg && memcmp(bytes, jpeg, sizeof jpeg) == 0)
        return mhai_jpeg_read(bytes, size, image);
    return mha_fail(MHA_ERR_FORMAT, "neither a PNG nor a JPEG file; convert the image to PNG");
}

mha_status mha_image_load(const char *path, mha_image *image)
{
    MHA_NEED("mha_image_load", path, image);
    char *bytes;
    size_t size;
    MHA_TRY(mha_file_read(path, (size_t)MHA_IMAGE_MOST_BYTES, &bytes, &size));
    mha_status status = mha_image_read(bytes, size, image);
    mha_file_free(bytes);
    return status == MHA_OK ? MHA_OK : mhai_path_fail(status, path, "%s", mha_error_detail());
}
