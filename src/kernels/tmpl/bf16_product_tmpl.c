/* Products of bf16 with the sums of tiles (int8.h; docs/numerics.md 15.3), in tiles or in vectors. All
 * numbers are normal or 0, so that flushing subnormals, which tiles do, changes nothing. */

/* Add the sums of a strip to `from`. */
static void bf16_add(const mhai_bf16_product *p, int64_t row, int rows, const float *sums)
{
    for (int r = 0; r < rows; r++)
        for (int64_t i = 0; i < p->cols; i += VF_LANES) {
            const vf from = vf_load_n(p->from + (row + r) * p->from_stride + i, p->cols - i);
            vf_store_n(p->out + (row + r) * p->out_stride + i, p->cols - i,
                       vf_add(from, vf_load(sums + r * MHAI_PANEL + i)));
        }
}

/* Each sum has two registers: one chain over the first number of each pair, and one over the
 * second. */
enum { PAIR_ROWS = BLOCK_ROWS / 2, PAIR_COLS = TILE_VECTORS * VF_LANES };

typedef struct pair_strip {
    _Alignas(64) float sums[PAIR_ROWS][MHAI_PANEL];
    float even[PAIR_ROWS][MHAI_TILE_PAIRS], odd[PAIR_ROWS][MHAI_TILE_PAIRS];
} pair_strip;

ALWAYS_INLINE void pair_step(int rows, pair_strip *t, int64_t first, const int32_t *w, int lane)
{
    vf even[PAIR_ROWS][TILE_VECTORS], odd[PAIR_ROWS][TILE_VECTORS];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < TILE_VECTORS; j++) even[r][j] =
        odd[r][j] = vf_zero();
    for (int64_t i = first; i < first + MHAI_TILE_STEP; i++) {
        vf w_even[TILE_VECTORS], w_odd[TILE_VECTORS];
        UNROLL for (int j = 0; j < TILE_VECTORS; j++)
        {
            const int32_t *at = w + i * MHAI_PANEL + lane + j * VF_LANES;
            const vf pairs = vf_load((const float *)(const void *)at);
            w_even[j] = vf_even_bf16(pairs);
            w_odd[j] = vf_odd_bf16(pairs);
        }
        UNROLL for (int r = 0; r < rows; r++)
        {
            const vf x_even = vf_load1(&t->even[r][i]), x_odd = vf_load1(&t->odd[r][i]);
            UNROLL for (int j = 0; j < TILE_VECTORS; j++)
            {
                even[r][j] = vf_fma(x_even, w_even[j], even[r][j]);
                odd[r][j] = vf_fma(x_odd, w_odd[j], odd[r][j]);
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < TILE_VECTORS; j++)
    {
        float *sum = t->sums[r] + lane + j * VF_LANES;
        vf_store(sum, vf_add(vf_load(sum), vf_add(even[r][j], odd[r][j])));
    }
}

ALWAYS_INLINE void pair_steps(int rows, pair_strip *t, const mhai_bf16_product *p)
{
    for (int lane = 0; lane < MHAI_PANEL; lane += PAIR_COLS)
        for (int64_t i = 0; i < p->pairs; i += MHAI_TILE_STEP) pair_step(rows, t, i, p->w, lane);
}

/* Rows that a strip lacks are 0. */
static void bf16_vector_product(const mhai_bf16_product *p)
{
    pair_strip t;
    for (int64_t row = 0, rows; row < p->rows; row += rows) {
        rows = p->rows - row < PAIR_ROWS ? p->rows - row : PAIR_ROWS;
        const int64_t all = rows == 1 ? 1 : PAIR_ROWS;
        memset(t.sums, 0, (size_t)all * sizeof *t.sums);
        memset(t.even + rows, 0, (size_t)(all - rows) * sizeof *t.even);
        memset(t.odd + rows, 0, (size_t)(all - rows) * sizeof *t.odd);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = 0; i < p->pairs; i += VF_LANES) {
                const int32_t *at = p->x + (row + r) * p->x_stride + i;
                const vf pairs = vf_load((const float *)(const void *)at);
                vf_store(&t.even[r][i], vf_even_bf16(pairs));
                vf_store(&t.odd[r][i], vf_odd_bf16(pairs));
            }
        if (all == 1)
            pair_steps(1, &t, p);
        else
            pair_steps(PAIR_ROWS, &t, p);
        bf16_add(p, row, (int)rows, t.sums[0]);
    }
}

#ifdef MHAI_SIMD_TILES_H
/* Tiles 0 and 1: sums of the first 16 rows; 2 and 3: of the others, if any; 4 and 5: inputs of these
 * rows; 6 and 7: weights of the two halves of the columns. */
static void bf16_tile_shapes(int rows)
{
    const int low = rows < TILE_ROWS_MOST ? rows : TILE_ROWS_MOST;
    tile_shape shape = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        const bool is_high = i == 2 || i == 3 || i == 5;
        shape.rows[i] = (uint8_t)(i > 5 ? MHAI_TILE_STEP : is_high ? rows - low : low);
        shape.bytes[i] = shape.rows[i] > 0 ? 64 : 0;
    }
    tile_configure(&shape);
}

static void bf16_tile_strip(const mhai_bf16_product *p, int64_t row, bool has_high)
{
    enum { BYTES = MHAI_PANEL * 4, HALF = MHAI_PANEL / 2 };
    _Alignas(64) float sums[TILE_STRIPS * TILE_ROWS_MOST * MHAI_PANEL];
    float *high = sums + TILE_ROWS_MOST * MHAI_PANEL;
    const int64_t stride = p->x_stride * (int64_t)sizeof *p->x;
    const int32_t *x = p->x + row * p->x_stride;
    TILE_ZERO(0);
    TILE_ZERO(1);
    if (has_high) {
        TILE_ZERO(2);
        TILE_ZERO(3);
    }
    for (int64_t i = 0; i < p->pairs; i += MHAI_TILE_STEP) {
        TILE_LOAD(4, x + i, stride);
        TILE_LOAD(6, p->w + i * MHAI_PANEL, BYTES);
        TILE_DOT_BF16(0, 4, 6);
        TILE_LOAD(7, p->w + i * MHAI_PANEL + HALF, BYTES);
        TILE_DOT_BF16(1, 4, 7);
        if (!has_high) continue;
        TILE_LOAD(5, x + TILE_ROWS_MOST * p->x_stride + i, stride);
        TILE_DOT_BF16(2, 5, 6);
        TILE_DOT_BF16(3, 5, 7);
    }
    TILE_STORE(0, sums, BYTES);
    TILE_STORE(1, sums + HALF, BYTES);
    if (has_high) {
        TILE_STORE(2, high, BYTES);
        TILE_STORE(3, high + HALF, BYTES);
    }
    const int64_t left = p->rows - row, most = TILE_STRIPS * TILE_ROWS_MOST;
    bf16_add(p, row, (int)(left < most ? left : most), sums);
}

static void bf16_tile_product(const mhai_bf16_product *p)
{
    enum { MOST = TILE_STRIPS * TILE_ROWS_MOST };
    int shaped = 0;
    for (int64_t row = 0; row < p->rows; row += MOST) {
        const int rows = p->rows - row < MOST ? (int)(p->rows - row) : MOST;
        if (rows != shaped) bf16_tile_shapes(rows);
        shaped = rows;
        bf16_tile_strip(p, row, rows > TILE_ROWS_MOST);
    }
    tile_release();
}
#endif

/* One row is left to vectors, which need no shapes. */
static void bf16_product(const mhai_bf16_product *p)
{
#ifdef MHAI_SIMD_TILES_H
    if (p->rows > 1) {
        bf16_tile_product(p);
        return;
    }
#endif
    bf16_vector_product(p);
}
