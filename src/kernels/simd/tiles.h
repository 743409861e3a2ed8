/* AMX: eight tiles of up to 16 rows of 64 bytes. Intel's manual (volume 1, chapter 18) describes
 * them. tests/kernels/tiles_emulated.h has the same names in C.
 *
 *   tile_shape              the rows, and the bytes per row, of each tile
 *   tile_configure          gives the tiles these shapes and zeroes them. Tiles belong to a thread
 *   tile_release            must follow, so that the system need not save tiles for the thread
 *   TILE_ZERO               the tile = 0
 *   TILE_LOAD, TILE_STORE   the tile's rows, `stride` bytes apart in memory
 *   TILE_DOT_I8             sums[m][n] += sum over k, i < 4 of a[m][4 k + i] b[k][4 n + i]: signed
 *                           bytes, 32-bit sums. The shapes of the three tiles must match
 *
 *   TILE_DOT_BF16           sums[m][n] += even + odd, where even and odd are chains of FMAs from 0 over
 *                           a[m][2 k + i] b[k][2 n + i] with i = 0 or 1, rounded to nearest; results
 *                           and operands that are subnormal count as 0
 *
 * The tile is a literal number. The statements are asm, because gcc 12's intrinsics do not tell the
 * compiler which memory they read. */
#ifndef MHAI_SIMD_TILES_H
#define MHAI_SIMD_TILES_H

#include <stdint.h>

/* The operand of LDTILECFG. */
typedef struct tile_shape {
    uint8_t palette, start_row; /* 1, 0 */
    uint8_t reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} tile_shape;
_Static_assert(sizeof(tile_shape) == 64, "LDTILECFG reads 64 bytes");

static inline void tile_configure(const tile_shape *shape)
{
    __asm__ volatile("ldtilecfg %0" : : "m"(*shape) : "memory");
}
static inline void tile_release(void)
{
    __asm__ volatile("tilerelease" : : : "memory");
}
#define TILE_ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile : : : "memory")
#define TILE_LOAD(tile, at, stride)                                    \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile                \
                     :                                                 \
                     : "r"((const void *)(at)), "r"((int64_t)(stride)) \
                     : "memory")
#define TILE_STORE(tile, at, stride)                             \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)"      \
                     :                                           \
                     : "r"((void *)(at)), "r"((int64_t)(stride)) \
                     : "memory")
#define TILE_DOT_I8(sums, a, b) \
    __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #sums : : : "memory")
#define TILE_DOT_BF16(sums, a, b) \
    __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sums : : : "memory")

#endif
