/* Products of few rows with weights stored in rows of f16 or bf16. Pairs of neighbours are
 * transposed like a single float, which halves the work, and converted to f32 in registers. */

enum {
    PAIR_ROWS = MHAI_GEMM_BLOCK / 2,
    PAIR_COLUMNS = 2 * VF_LANES,
    /* Vectors of sums of a single row: enough chains to hide the latency of the multiply-adds. */
    ROW_VECTORS = MHAI_STORED_COLUMNS / VF_LANES < 8 ? MHAI_STORED_COLUMNS / VF_LANES : 8,
    STORED_VECTORS = ROW_VECTORS > TILE_VECTORS ? ROW_VECTORS : TILE_VECTORS
};

ALWAYS_INLINE vf even_of(mha_dtype type, vf pairs)
{
    return type == MHA_F16 ? vf_even_f16(pairs) : vf_even_bf16(pairs);
}

ALWAYS_INLINE vf odd_of(mha_dtype type, vf pairs)
{
    return type == MHA_F16 ? vf_odd_f16(pairs) : vf_odd_bf16(pairs);
}

/* Load the first n <= PAIR_COLUMNS of a row as pairs, padded with zeros. */
ALWAYS_INLINE vf load_halves(const uint16_t *p, int64_t n)
{
    uint16_t part[PAIR_COLUMNS] = {0};
    if (n >= PAIR_COLUMNS) return vf_load((const float *)(const void *)p);
    memcpy(part, p, (size_t)n * sizeof *part);
    return vf_load((const float *)(const void *)part);
}

/* Transpose rows of weights to columns of pairs. Prefetches for the next call are spread evenly
 * over the loop. Rows of files are rarely aligned to cache lines: the first line of a block and the
 * line that contains the last byte of each 64 are prefetched. */
ALWAYS_INLINE void transpose_halves(const mhai_gemm_stored *s, float *panel)
{
    enum { BYTES = MHAI_GEMM_BLOCK * sizeof(uint16_t), LINE_BYTES = LINE * sizeof(float) };
    const int64_t inner = s->gemm.inner, cols = s->gemm.cols;
    const int64_t pieces = (inner + PAIR_COLUMNS - 1) / PAIR_COLUMNS;
    for (int64_t row = 0; row < cols; row += VF_LANES)
        for (int64_t piece = 0; piece < pieces; piece++) {
            const int64_t i = piece * PAIR_COLUMNS;
            const int64_t begin = BYTES * piece / pieces, end = BYTES * (piece + 1) / pieces;
            vf rows[VF_LANES];
            UNROLL for (int r = 0; r < VF_LANES; r++)
            {
                const int64_t at = (row + r) * s->stride;
                rows[r] = row + r < cols ? load_halves((const uint16_t *)s->w + at + i, inner - i)
                                         : vf_zero();
                for (int64_t line = begin; line < end; line += LINE_BYTES)
                    fetch_l2((const void *)((uintptr_t)s->next + (uintptr_t)(2 * at + line)));
            }
            transpose(rows, panel + i / 2 * MHAI_STORED_COLUMNS + row, MHAI_STORED_COLUMNS);
        }
}

typedef struct stored_block {
    const mhai_gemm *gemm;
    const float *x, *panel;
    int64_t row, column;
} stored_block;

/* Each sum is one chain over the inputs, in order. */
ALWAYS_INLINE void stored_body(int rows, int vectors, mha_dtype type, const stored_block *t)
{
    const mhai_gemm *g = t->gemm;
    const float *panel = t->panel;
    const int64_t stride = g->x_stride, inner = g->inner;
    vf sum[BLOCK_ROWS][STORED_VECTORS];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < vectors; j++) sum[r][j] =
        vf_zero();
    for (int64_t i = 0; i < inner; i += 2, panel += MHAI_STORED_COLUMNS)
        for (int odd = 0; odd < 2 && i + odd < inner; odd++) {
            vf column[STORED_VECTORS];
            UNROLL for (int j = 0; j < vectors; j++)
            {
                const vf pairs = vf_load(panel + j * VF_LANES);
                column[j] = odd ? odd_of(type, pairs) : even_of(type, pairs);
            }
            UNROLL for (int r = 0; r < rows; r++)
            {
                const vf x = vf_load1(t->x + r * stride + i + odd);
                UNROLL for (int j = 0; j < vectors; j++) sum[r][j] =
                    vf_fma(x, column[j], sum[r][j]);
            }
        }
    for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < vectors; j++)
        {
            const int64_t at = t->column + j * VF_LANES, left = g->cols - at;
            const int64_t lanes = left < VF_LANES ? left : VF_LANES;
            float *out = g->out + (t->row + r) * g->out_stride + at;
            if (left <= 0) continue;
            const vf start = !g->first ? vf_load_n(out, lanes)
                             : g->bias ? vf_load_n(g->bias + at, lanes)
                                       : vf_zero();
            vf_store_n(out, lanes, vf_add(start, sum[r][j]));
        }
}

#define STORED_CASE(n)                                                                    \
    case n:                                                                               \
        if (n <= BLOCK_ROWS) stored_body(n <= BLOCK_ROWS ? n : 1, TILE_VECTORS, type, t); \
        return;
/* clang-format off */
#define DEFINE_STORED(name, of_type)                                                            \
    static __attribute__((noinline)) void name(int rows, const stored_block *t)                 \
    {                                                                                           \
        const mha_dtype type = of_type;                                                         \
        switch (rows) {                                                                         \
            case 1: stored_body(1, ROW_VECTORS, type, t); return;                               \
            STORED_CASE(2) STORED_CASE(3) STORED_CASE(4) STORED_CASE(5)          \
            STORED_CASE(6) STORED_CASE(7) STORED_CASE(8) STORED_CASE(9) STORED_CASE(10)         \
            STORED_CASE(11) STORED_CASE(12) STORED_CASE(13) STORED_CASE(14)                     \
        }                                                                                       \
    }
/* clang-format on */
DEFINE_STORED(stored_f16, MHA_F16)
DEFINE_STORED(stored_bf16, MHA_BF16)

static void gemm_stored(const mhai_gemm_stored *s)
{
    _Alignas(64) float panel[PAIR_ROWS * MHAI_STORED_COLUMNS];
    transpose_halves(s, panel);
    for (int row = 0, some; row < s->gemm.rows; row += some) {
        some = block_rows(s->gemm.rows - row);
        const int step = (some == 1 ? ROW_VECTORS : TILE_VECTORS) * VF_LANES;
        for (int column = 0; column < s->gemm.cols; column += step)
            (s->type == MHA_F16 ? stored_f16 : stored_bf16)(
                some, &(stored_block){.gemm = &s->gemm,
                                      .x = s->gemm.x + row * s->gemm.x_stride,
                                      .panel = panel + column,
                                      .row = row,
                                      .column = column});
    }
}

/* ---- one row and coded weights --------------------------------------------------------------- */

enum { CODED_VECTORS = 4 };

/* Each weight is decoded as in pack_coded, and multiplied at once. */
ALWAYS_INLINE void coded_run(int run, const float *x, const mha_coded *const *rows, int64_t column,
                             int64_t lane, vf sum[CODED_VECTORS])
{
    const float *fours[CODED_VECTORS];
    vf scale[CODED_VECTORS], offset[CODED_VECTORS];
    UNROLL for (int j = 0; j < CODED_VECTORS; j++)
    {
        const mha_coded *w = rows[(lane + j * VF_LANES) / MHAI_PANEL];
        const int64_t at = (lane + j * VF_LANES) % MHAI_PANEL;
        fours[j] = (const float *)(const void *)w->number[column / 4][at];
        scale[j] = vf_mul(vf_load(w->scale[column / run] + at), vf_set1(0x1p-24f));
        offset[j] = vf_load(w->offset[column / run] + at);
    }
    for (int i = 0; i < run; i += 4) {
        vf four[CODED_VECTORS];
        UNROLL for (int j = 0; j < CODED_VECTORS; j++) four[j] =
            vf_load(fours[j] + i / 4 * MHA_CODED_ROWS);
        UNROLL for (int k = 0; k < 4; k++) UNROLL for (int j = 0; j < CODED_VECTORS; j++) sum[j] =
            vf_fma(vf_load1(x + i + k), vf_fma(vf_byte(four[j], k), scale[j], offset[j]), sum[j]);
    }
}

ALWAYS_INLINE void coded_lanes(int run, const mhai_gemm *g, const mha_coded *const *rows,
                               int64_t column, int64_t lane)
{
    vf sum[CODED_VECTORS];
    UNROLL for (int j = 0; j < CODED_VECTORS; j++) sum[j] = vf_zero();
    for (int64_t i = 0; i < g->inner; i += run)
        coded_run(run, g->x + i, rows, column + i, lane, sum);
    UNROLL for (int j = 0; j < CODED_VECTORS; j++)
    {
        const int64_t at = lane + j * VF_LANES;
        const vf start = !g->first ? vf_load(g->out + at)
                         : g->bias ? vf_load(g->bias + at)
                                   : vf_zero();
        vf_store(g->out + at, vf_add(start, sum[j]));
    }
}

static void gemm_coded(const mhai_gemm *g, const mha_coded *const *rows, int64_t column)
{
    for (int64_t lane = 0; lane < g->cols; lane += CODED_VECTORS * VF_LANES)
        if (rows[0]->run == 16)
            coded_lanes(16, g, rows, column, lane);
        else
            coded_lanes(32, g, rows, column, lane);
}
