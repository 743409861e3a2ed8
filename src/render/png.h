/* PNG files from pixels. */
#ifndef MHAI_RENDER_PNG_H
#define MHAI_RENDER_PNG_H

#include <multihead/render.h>

/* rgb: 3 bytes per pixel, rows from the top, no padding. The file has no time stamp or other chunk
 * that would differ between runs. */
mha_status mhai_png_write(const uint8_t *rgb, int64_t width, int64_t height, const mha_sink *sink);

#endif
