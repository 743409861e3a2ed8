/* The orientation in EXIF: a TIFF file whose first directory has tag 0x112 (EXIF 2.3, 4.6.4). Anything
 * malformed counts as no orientation. */
#include "image/image.h"

#include <multihead/component.h>

#include <stdlib.h>
#include <string.h>

typedef struct tiff {
    const uint8_t *bytes;
    size_t size;
    bool big; /* endian */
} tiff;

/* The number of `count` bytes at this offset, which the file has. */
static uint32_t number(const tiff *t, size_t at, int count)
{
    uint32_t value = 0;
    for (int i = 0; i < count; i++)
        value = value << 8 | t->bytes[at + (size_t)(t->big ? i : count - 1 - i)];
    return value;
}

int mhai_exif_orientation(const uint8_t *bytes, size_t size)
{
    enum { ORIENTATION = 0x112, SHORT = 3, LONG = 4, ENTRY = 12 };
    const tiff t = {bytes, size, size > 0 && bytes[0] == 'M'};
    if (size < 8 || memcmp(bytes, t.big ? "MM\0*" : "II*\0", 4) != 0) return 1;
    const size_t first = number(&t, 4, 4);
    if (first > size - 2) return 1;
    size_t left = number(&t, first, 2);
    for (size_t at = first + 2; left > 0 && size - at >= ENTRY; at += ENTRY, left--) {
        if (number(&t, at, 2) != ORIENTATION) continue;
        const uint32_t kind = number(&t, at + 2, 2), values = number(&t, at + 4, 4);
        const uint32_t width = kind == SHORT ? 2 : 4;
        if ((kind != SHORT && kind != LONG) || values < 1 || values > 4 / width) return 1;
        const uint32_t found = number(&t, at + 8, (int)width);
        return found >= 1 && found <= 8 ? (int)found : 1;
    }
    return 1;
}

mha_status mhai_image_turn(mha_image *image, int orientation)
{
    const bool swap = orientation >= 5;                     /* rows become columns */
    const bool up = orientation == 3 || orientation == 4 || /* stored from the bottom */
                    orientation == 6 || orientation == 7;
    const bool left = orientation == 2 || orientation == 3 || /* stored from the right */
                      orientation == 7 || orientation == 8;
    const int64_t h = image->height, w = image->width;
    mha_image made;
    if (orientation == 1) return MHA_OK;
    MHA_TRY(mhai_image_make(swap ? h : w, swap ? w : h, &made));
    for (int64_t y = 0; y < made.height; y++)
        for (int64_t x = 0; x < made.width; x++) {
            const int64_t r = swap ? x : y, c = swap ? y : x;
            memcpy(made.pixels + (y * made.width + x) * 3,
                   image->pixels + ((up ? h - 1 - r : r) * w + (left ? w - 1 - c : c)) * 3, 3);
        }
    free(image->pixels);
    image->pixels = made.pixels;
    image->width = made.width;
    image->height = made.height;
    return MHA_OK;
}
