/* Products in int8 arithmetic with tiles (simd/tiles.h): up to 16 rows of 32 outputs. A dword of
 * weights holds four inputs of one output, which is the layout of the right factor.
 *
 * A run of 32 inputs fills half of a tile of the left factor, so the limit is the conversion of the
 * sums. Cycles of 16 x 16 outputs with two ports for vectors, by Intel's tables (not measured):
 *
 *                              tiles: product, store of sums, conversions    VNNI
 *   run of 32, with offsets            16,     16,     32, 48               96, 112
 *   run of 16, with offsets            16,     16,     32, 48               64, 80
 *
 * The three overlap. A conversion is 4 instructions for a row of 16, or 6; VNNI adds 8 or 4. */

/* Fewer rows are left to vectors, which need not wait for a tile. */
enum { TILE_ROWS_MOST = 16, TILE_ROWS_LEAST = 8, TILE_STRIPS = 2 };

/* Tiles 0 to 3: sums of two runs and two halves of the columns; 4 and 5: inputs of the two runs;
 * 6 and 7: weights of the two halves. */
static void int8_tile_shapes(int rows, int run)
{
    tile_shape shape = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shape.rows[i] = (uint8_t)(i < 6 ? rows : run / 4);
        shape.bytes[i] = (uint16_t)(i == 4 || i == 5 ? run : 64);
    }
    tile_configure(&shape);
}

enum { TILE_STRIDE = MHAI_PANEL * 4 }; /* bytes between rows of weights and of sums */

#define TILE_RUN(low, high, inputs)                     \
    TILE_ZERO(low);                                     \
    TILE_ZERO(high);                                    \
    TILE_LOAD(inputs, x, ROW_STRIDE * sizeof *x);       \
    TILE_LOAD(6, number, TILE_STRIDE);                  \
    TILE_DOT_I8(low, inputs, 6);                        \
    TILE_LOAD(7, number + MHAI_PANEL / 2, TILE_STRIDE); \
    TILE_DOT_I8(high, inputs, 7);                       \
    TILE_STORE(low, sums, TILE_STRIDE);                 \
    TILE_STORE(high, sums + MHAI_PANEL / 2, TILE_STRIDE);

/* The sums of products of one run. Two runs alternate between tiles, so that one need not wait for
 * the other. */
ALWAYS_INLINE void int8_tile_run(const int8_strip *t, int64_t run, int32_t *sums)
{
    const int fours = t->w->run / 4;
    const int32_t *number = (const int32_t *)(const void *)t->w->number[run * fours];
    const int32_t *x = t->x + run * fours;
    if (run % 2) {
        TILE_RUN(2, 3, 5)
    } else {
        TILE_RUN(0, 1, 4)
    }
}

ALWAYS_INLINE void int8_tile_join(bool has_offsets, int rows, const int8_strip *t, int64_t run,
                                  const int32_t *sums)
{
    const int part = t->w->run == MHAI_INT8_BLOCK ? 0 : 1 + (int)(run % 2);
    const mhai_int8_block *block = t->blocks + run * t->w->run / MHAI_INT8_BLOCK;
    for (int r = 0; r < rows; r++, block += MHAI_INT8_BLOCKS)
        UNROLL for (int j = 0; j < MHAI_PANEL / VF_LANES; j++)
            int8_join(has_offsets, t, run, r, j, vi_load(sums + r * MHAI_PANEL + j * VF_LANES),
                      block->unit, block->sum[part]);
}

/* Join the sums of a run while the tiles compute the next. */
static void int8_tile_strip(int rows, const int8_strip *t)
{
    enum { SUMS = TILE_ROWS_MOST * MHAI_PANEL };
    _Alignas(64) int32_t sums[2][SUMS];
    const int64_t runs = t->inputs / t->w->run;
    int8_tile_run(t, 0, sums[0]);
    for (int64_t run = 0; run < runs; run++) {
        if (run + 1 < runs) int8_tile_run(t, run + 1, sums[(run + 1) % 2]);
        if (t->w->has_offsets)
            int8_tile_join(true, rows, t, run, sums[run % 2]);
        else
            int8_tile_join(false, rows, t, run, sums[run % 2]);
    }
}

static void int8_tile_product(const mhai_int8_product *p)
{
    const int64_t strips = (p->rows + TILE_ROWS_MOST - 1) / TILE_ROWS_MOST;
    int64_t shaped = 0;
    for (int64_t i = 0; i < strips; i++) {
        const int64_t row = i * p->rows / strips, rows = (i + 1) * p->rows / strips - row;
        if (rows != shaped) int8_tile_shapes((int)rows, p->w->run);
        shaped = rows;
        int8_strip_rows(p, row, (int)rows, int8_tile_strip, MHAI_PANEL);
    }
    tile_release();
}
