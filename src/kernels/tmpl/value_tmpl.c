/* Rows of weights times values that lie in rows, a piece of the keys at a time: the chains of a
 * block go on where the piece before left them, so that values may be read in any pieces, in order.
 */

enum {
    VALUE_KEYS = 32,   /* values read at a time: their rows are in L1 for all groups of columns */
    VALUE_VECTORS = 4, /* of columns, while their sums leave registers for values and a weight */
    WIDE_ROWS = TILE_ROWS * TILE_VECTORS / VALUE_VECTORS - 1
};

/* Addresses ahead may lie outside of the tensor: they are never read. */
ALWAYS_INLINE void fetch_ahead(const float *p, int64_t elements)
{
    __builtin_prefetch((const void *)((uintptr_t)p + (uintptr_t)elements * sizeof(float)));
}

typedef struct value_rows {
    int64_t keys;
    const float *p; /* [rows][p_stride] */
    int64_t p_stride;
    const float *v;
    int64_t v_stride;
    float *o;
    int64_t o_stride;
} value_rows;

/* o += P V over `vectors` registers of columns; the chains go on where they were. */
ALWAYS_INLINE void value_body(int rows, int vectors, const value_rows *x)
{
    vf sum[TILE_ROWS][VALUE_VECTORS];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < vectors; j++) sum[r][j] =
        vf_load(x->o + r * x->o_stride + j * VF_LANES);
    const float *v = x->v;
    for (int64_t i = 0; i < x->keys; i++, v += x->v_stride) {
        vf value[VALUE_VECTORS];
        UNROLL for (int j = 0; j < vectors; j++)
        {
            fetch_ahead(v + j * VF_LANES, VALUE_KEYS * x->v_stride);
            value[j] = vf_load(v + j * VF_LANES);
        }
        UNROLL for (int r = 0; r < rows; r++)
        {
            vf weight = vf_set1(x->p[r * x->p_stride + i]);
            UNROLL for (int j = 0; j < vectors; j++) sum[r][j] =
                vf_fma(weight, value[j], sum[r][j]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < vectors; j++)
        vf_store(x->o + r * x->o_stride + j * VF_LANES, sum[r][j]);
}

/* One function per number of rows, so that every register count is a constant. */
#define VALUE_CASE(n, most)                                           \
    case n:                                                           \
        if (n <= (most)) value_body(n <= (most) ? n : 1, vectors, x); \
        return;
/* clang-format off */
#define DEFINE_VALUES(name, width, most)                                            \
    static __attribute__((noinline)) void name(int rows, const value_rows *x)       \
    {                                                                               \
        const int vectors = width;                                                  \
        switch (rows) {                                                             \
            VALUE_CASE(1, most) VALUE_CASE(2, most) VALUE_CASE(3, most)             \
            VALUE_CASE(4, most) VALUE_CASE(5, most) VALUE_CASE(6, most)             \
            VALUE_CASE(7, most) VALUE_CASE(8, most) VALUE_CASE(9, most)             \
            VALUE_CASE(10, most) VALUE_CASE(11, most) VALUE_CASE(12, most)          \
            VALUE_CASE(13, most) VALUE_CASE(14, most)                               \
        }                                                                           \
    }
/* clang-format on */
DEFINE_VALUES(value_wide, VALUE_VECTORS, WIDE_ROWS)
DEFINE_VALUES(value_narrow, TILE_VECTORS, TILE_ROWS)
DEFINE_VALUES(value_half, TILE_VECTORS / 2, TILE_ROWS)

/* o = fma(o, alpha, sums): the block's sums join the output. */
static void join_rows(int rows, int64_t cols, const float *sums, int64_t sums_stride,
                      const float *alpha, float *o, int64_t o_stride)
{
    for (int r = 0; r < rows; r++)
        for (int64_t i = 0; i < cols; i += VF_LANES) {
            float *at = o + r * o_stride + i;
            vf_store(at,
                     vf_fma(vf_load(at), vf_set1(alpha[r]), vf_load(sums + r * sums_stride + i)));
        }
}
