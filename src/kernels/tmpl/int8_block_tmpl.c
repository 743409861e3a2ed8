/* The register block of int8 arithmetic: sums of products of small numbers, and how they become
 * f32. The sums are exact, so only that matters for the bits. */

enum {
    BLOCK_COLS = SUM_VECTORS * VF_LANES,
    /* Dwords between query rows: a constant, so that 14 rows need no registers for their strides,
     * and no power of two, so that they do not share sets of a cache. */
    ROW_STRIDE = 256 / GROUP + 16
};

typedef struct int8_block {
    int64_t inner; /* dwords */
    const int32_t *a, *b;
    float *c;
    int64_t c_stride;
    const float *unit;         /* of columns */
    const int32_t *start;      /* scores: [rows] */
    const float *alpha, *beta; /* values: [rows] */
} int8_block;

ALWAYS_INLINE vi vi_row(const int32_t *p)
{
    int32_t x;
    memcpy(&x, p, sizeof x); /* weights lie where scores lay */
    return vi_set1(x);
}

/* Scores: c = sum unit. Values: c = c alpha + (sum unit) beta, each operation rounded; a power of
 * two is taken from the unit and given to beta, since the sum is up to 2^17 times what comes of it.
 */
ALWAYS_INLINE void int8_finish(bool values, const int8_block *t, int row, int column, vi sum)
{
    float *c = t->c + row * t->c_stride + column;
    vf x = vf_mul(vi_float(sum), vf_load(t->unit + column));
    if (values)
        x = vf_add(vf_mul(vf_load(c), vf_set1(t->alpha[row])),
                   vf_mul(x, vf_set1(t->beta[row] * 0x1p8f)));
    vf_store(c, x);
}

ALWAYS_INLINE void int8_body(int rows, bool values, const int8_block *t)
{
    vi_sums sum[BLOCK_ROWS][SUM_VECTORS];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < SUM_VECTORS; j++) sum[r][j] =
        vi_sums_set1(!values && KEY_OFFSET != 0 ? t->start[r] : 0);
    const int32_t *a = t->a, *b = t->b;
    const int64_t inner = t->inner, stride = values ? (int)MHAI_SCORE_STRIDE : (int)ROW_STRIDE;
    for (int64_t i = 0; i < inner; i++) {
        vi column[SUM_VECTORS];
        UNROLL for (int j = 0; j < SUM_VECTORS; j++) column[j] =
            vi_load(b + i * MHAI_PANEL + j * VF_LANES);
        UNROLL for (int r = 0; r < rows; r++)
        {
            vi row = vi_row(a + r * stride + i);
            UNROLL for (int j = 0; j < SUM_VECTORS; j++) sum[r][j] =
                values ? vi_dot_values(sum[r][j], row, column[j])
                       : vi_dot_keys(sum[r][j], row, column[j]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < SUM_VECTORS; j++)
        int8_finish(values, t, r, j * VF_LANES, vi_sums_total(sum[r][j]));
}

/* One function per number of rows, as in block_tmpl.c. */
#define INT8_CASE(n)                                                        \
    case n:                                                                 \
        if (n <= BLOCK_ROWS) int8_body(n <= BLOCK_ROWS ? n : 1, values, t); \
        return;
/* clang-format would move one more case to a line of its own each time it runs. */
/* clang-format off */
#define DEFINE_INT8_BLOCK(name, are_values)                                                     \
    static __attribute__((noinline)) void name(int rows, const int8_block *t)                   \
    {                                                                                           \
        const bool values = are_values;                                                         \
        switch (rows) {                                                                         \
            INT8_CASE(1) INT8_CASE(2) INT8_CASE(3) INT8_CASE(4) INT8_CASE(5)                    \
            INT8_CASE(6) INT8_CASE(7) INT8_CASE(8) INT8_CASE(9) INT8_CASE(10)                   \
            INT8_CASE(11) INT8_CASE(12) INT8_CASE(13) INT8_CASE(14)                             \
        }                                                                                       \
    }
/* clang-format on */
DEFINE_INT8_BLOCK(int8_scores, false)
DEFINE_INT8_BLOCK(int8_weighted, true)
_Static_assert(BLOCK_ROWS <= 14, "add cases above");
