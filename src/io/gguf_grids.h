/* Codebooks of the IQ types. An entry packs 8 elements in 2 bits each or, for IQ3, 4 elements in 3
 * bits each, the first one in the lowest bits. */
#ifndef MHAI_GGUF_GRIDS_H
#define MHAI_GGUF_GRIDS_H

#include <stdint.h>

extern const uint16_t mhai_gguf_grid_iq1[2048], mhai_gguf_grid_iq2_xxs[256],
    mhai_gguf_grid_iq2_xs[512], mhai_gguf_grid_iq2_s[1024], mhai_gguf_grid_iq3_xxs[256],
    mhai_gguf_grid_iq3_s[512];

#endif
