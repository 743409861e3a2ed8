/* The int8 kernels with tiles, over portable vectors of bytes and emulated tiles: the code of isa/int8_amx.c on
 * machines that do not have them. Vectors of bytes are those of VNNI. */
#define MHAI_ISA_SUFFIX emulated

#define GROUP PORTABLE_GROUP
#define WEIGHT_OFFSET PORTABLE_OFFSET
#define SUM_VECTORS PORTABLE_VECTORS
#define vi_dot portable_dot
#define vi_weights portable_weights
#define store_small portable_store
#include "kernels/simd/int8_portable.h"
#undef GROUP
#undef WEIGHT_OFFSET
#undef SUM_VECTORS
#undef vi_dot
#undef vi_weights
#undef store_small

enum { GROUP = 4, WEIGHT_OFFSET = 128, SUM_VECTORS = TILE_VECTORS };

static inline vi vi_weights(vi four, int part)
{
    (void)part;
    return four ^ vi_set1((int32_t)0x80808080u);
}

static inline vi vi_dot(vi sum, vi inputs, vi weights)
{
    int8_t a[16];
    uint8_t b[16];
    memcpy(a, &inputs, sizeof a);
    memcpy(b, &weights, sizeof b);
    for (int i = 0; i < 16; i++) sum[i / 4] += a[i] * b[i];
    return sum;
}

static inline void store_small(int32_t *p, vi x)
{
    const int8_t small[] = {(int8_t)x[0], (int8_t)x[1], (int8_t)x[2], (int8_t)x[3]};
    memcpy(p, small, sizeof small);
}

#include "tiles_emulated.h"

#include "kernels/tmpl/int8_linear_tmpl.c"
