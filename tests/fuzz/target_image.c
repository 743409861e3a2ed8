/* A PNG or JPEG file. An accepted image is within its bounds, and all its pixels are readable. */
#include "fuzz.h"

#include <multihead/image.h>

FUZZ_MUTATOR("b")

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mha_image image = {.struct_size = sizeof image};
    const mha_status status = mha_image_read(data, size, &image);
    fuzz_must_speak(status);
    if (status != MHA_OK) {
        fuzz_must(!image.pixels, "an image after an error");
        return 0;
    }
    fuzz_must(image.width >= 1 && image.height >= 1 && image.width <= MHA_IMAGE_MOST_EDGE &&
                  image.height <= MHA_IMAGE_MOST_EDGE &&
                  image.width * image.height <= MHA_IMAGE_MOST_PIXELS,
              "an image beyond its bounds");
    const int64_t shape[] = {image.height, image.width, 3};
    const mha_tensor pixels = mha_tensor_contiguous(image.pixels, MHA_U8, 3, shape);
    fuzz_touch(&pixels);
    mha_image_free(&image);
    return 0;
}
