/* simd/tiles.h in C, by the operation sections of Intel's manual (volume 2: LDTILECFG, TILELOADD, TILESTORED,
 * TILEZERO, TDPBSSD, TDPBF16PS). What the processor answers by an exception ends the test. */
#ifndef MHAI_SIMD_TILES_H
#define MHAI_SIMD_TILES_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct tile_shape {
    uint8_t palette, start_row;
    uint8_t reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} tile_shape;

enum { TILES = 8, TILE_ROW_BYTES = 64, TILE_ROWS_OF = 16 };

/* Tiles of the only thread. */
static struct {
    bool configured;
    tile_shape shape;
    uint8_t tile[TILES][TILE_ROWS_OF][TILE_ROW_BYTES];
} tiles;

static void tile_expect(bool holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "tiles: the processor would raise an exception: %s\n", what);
    abort();
}

static void tile_configure(const tile_shape *shape)
{
    tile_expect(shape->palette == 1 && shape->start_row == 0, "palette");
    for (int i = 0; i < 14; i++) tile_expect(shape->reserved[i] == 0, "reserved bytes");
    for (int i = 0; i < 16; i++) {
        const int rows = shape->rows[i], bytes = shape->bytes[i];
        tile_expect(i < TILES ? rows <= TILE_ROWS_OF && bytes <= TILE_ROW_BYTES
                              : rows == 0 && bytes == 0,
                    "shape");
        tile_expect((rows == 0) == (bytes == 0), "rows without bytes");
    }
    memset(&tiles, 0, sizeof tiles);
    tiles.configured = true;
    tiles.shape = *shape;
}

static void tile_release(void)
{
    memset(&tiles, 0, sizeof tiles);
}

static void tile_expect_shape(int tile)
{
    tile_expect(tiles.configured, "no shapes");
    tile_expect(tiles.shape.rows[tile] > 0, "a tile without a shape");
}

static void tile_zero(int tile)
{
    tile_expect_shape(tile);
    memset(tiles.tile[tile], 0, sizeof tiles.tile[tile]);
}

/* Rows and bytes beyond the shape become 0. */
static void tile_load(int tile, const void *at, int64_t stride)
{
    tile_zero(tile);
    for (int64_t i = 0; i < tiles.shape.rows[tile]; i++)
        memcpy(tiles.tile[tile][i], (const char *)at + i * stride, tiles.shape.bytes[tile]);
}

static void tile_store(int tile, void *at, int64_t stride)
{
    tile_expect_shape(tile);
    for (int64_t i = 0; i < tiles.shape.rows[tile]; i++)
        memcpy((char *)at + i * stride, tiles.tile[tile][i], tiles.shape.bytes[tile]);
}

/* The shapes that a product accepts. */
static void tile_expect_product(int sums, int a, int b)
{
    const tile_shape *s = &tiles.shape;
    tile_expect_shape(sums);
    tile_expect_shape(a);
    tile_expect_shape(b);
    tile_expect(sums != a && sums != b && a != b, "a tile used twice");
    tile_expect(s->rows[sums] == s->rows[a] && s->bytes[sums] == s->bytes[b], "shape of the sums");
    tile_expect(s->bytes[a] % 4 == 0 && s->bytes[b] % 4 == 0, "a part of a dword");
    tile_expect(s->bytes[a] / 4 == s->rows[b], "inner size");
}

static void tile_dot_i8(int sums, int a, int b)
{
    tile_expect_product(sums, a, b);
    for (int m = 0; m < tiles.shape.rows[sums]; m++)
        for (int n = 0; n < tiles.shape.bytes[sums] / 4; n++) {
            uint32_t sum; /* wraps */
            memcpy(&sum, &tiles.tile[sums][m][4 * n], 4);
            for (int k = 0; k < tiles.shape.rows[b]; k++)
                for (int i = 0; i < 4; i++)
                    sum += (uint32_t)((int8_t)tiles.tile[a][m][4 * k + i] *
                                      (int8_t)tiles.tile[b][k][4 * n + i]);
            memcpy(&tiles.tile[sums][m][4 * n], &sum, 4);
        }
}

/* Subnormal numbers count as 0. */
static float tile_flush(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}

static float tile_bf16(const uint8_t *at)
{
    const uint32_t bits = (uint32_t)at[0] << 16 | (uint32_t)at[1] << 24;
    float x;
    memcpy(&x, &bits, sizeof x);
    return tile_flush(x);
}

static void tile_dot_bf16(int sums, int a, int b)
{
    tile_expect_product(sums, a, b);
    for (int m = 0; m < tiles.shape.rows[sums]; m++)
        for (int n = 0; n < tiles.shape.bytes[sums] / 4; n++) {
            float half[2] = {0, 0}, sum;
            for (int k = 0; k < tiles.shape.rows[b]; k++)
                for (int i = 0; i < 2; i++)
                    half[i] =
                        tile_flush(fmaf(tile_bf16(&tiles.tile[a][m][4 * k + 2 * i]),
                                        tile_bf16(&tiles.tile[b][k][4 * n + 2 * i]), half[i]));
            memcpy(&sum, &tiles.tile[sums][m][4 * n], sizeof sum);
            sum = tile_flush(tile_flush(sum) + tile_flush(half[0] + half[1]));
            memcpy(&tiles.tile[sums][m][4 * n], &sum, sizeof sum);
        }
}

#define TILE_DOT_BF16(sums, a, b) tile_dot_bf16(sums, a, b)
#define TILE_ZERO(tile) tile_zero(tile)
#define TILE_LOAD(tile, at, stride) tile_load(tile, at, (int64_t)(stride))
#define TILE_STORE(tile, at, stride) tile_store(tile, at, (int64_t)(stride))
#define TILE_DOT_I8(sums, a, b) tile_dot_i8(sums, a, b)

#endif
