/* Products of rows of weights with values stored in rows, for a part of the keys at a time. Each
 * call continues the chains of the previous one, so results do not depend on the division of
 * keys. */

enum {
    VALUE_KEYS = 16, /* values read at a time, so that all groups of columns find them in L1 */
    VALUE_WIDE = 4,  /* vectors of columns per group, which leaves registers for values */
    VALUE_FULL = 8,
    FULL_ROWS = BLOCK_ROWS * TILE_VECTORS / VALUE_FULL,
    FAR = 2048 /* distance in floats (two pages) from a touched line to the
                * line prefetched into L2 */
};

/* Load data that is needed soon in memory order, regardless of the order of use. Otherwise, squares
 * and columns are read at a third of the speed of a stream that hardware detects. Not every
 * processor detects streams of prefetches, so this is a load. Touching many lines at once is half
 * as fast as touching a few at a time. */
ALWAYS_INLINE void touch(const float *p)
{
    (void)*(const volatile char *)p;
}

/* Prefetch into L2. Addresses outside the tensor are not dereferenced. */
ALWAYS_INLINE void fetch_far(const float *p, int64_t elements)
{
    fetch_l2((const void *)((uintptr_t)p + (uintptr_t)elements * sizeof(float)));
}

/* Touch a line that is needed soon, and prefetch a line that is needed later. A touch stalls,
 * because a processor tracks few outstanding loads. A prefetch into L2, two pages ahead, does not.
 * (Zen 4, 4 rows: 84 to 90 % of the speed of a read-only loop, instead of 76 %, or 68 % if rows are
 * not aligned to lines. Prefetching into L1 is slower than not prefetching. Prefetching into L2 is
 * slower without the touch.) */
ALWAYS_INLINE void touch_and_fetch(const float *p, int64_t far)
{
    touch(p);
    fetch_far(p, far);
}

typedef struct value_rows {
    int64_t keys;
    const float *p; /* [rows][p_stride] */
    int64_t p_stride;
    const float *v;
    int64_t v_stride;
    float *o;
    int64_t o_stride;
    const float *next; /* data to touch: the same number of columns per key, next_stride apart */
    int64_t next_stride;
    int64_t far; /* distance in floats from a touched line to the line prefetched into L2 */
} value_rows;

/* o += P V over `vectors` registers of columns, continuing the chains. */
ALWAYS_INLINE void value_body(int rows, int vectors, bool ahead, const value_rows *x)
{
    vf sum[BLOCK_ROWS][VALUE_FULL];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < vectors; j++) sum[r][j] =
        vf_load(x->o + r * x->o_stride + j * VF_LANES);
    const int group =
        vectors < (int)TILE_VECTORS ? vectors : TILE_VECTORS; /* limited by registers */
    const float *v = x->v, *next = x->next;
    for (int64_t i = 0; i < x->keys; i++, v += x->v_stride) {
        vf value[VALUE_FULL];
        if (ahead)
            UNROLL for (int j = 0; j < vectors * VF_LANES; j += LINE)
                touch_and_fetch(next + j, x->far);
        UNROLL for (int j0 = 0; j0 < vectors; j0 += group)
        {
            UNROLL for (int j = j0; j < j0 + group; j++) value[j] = vf_load(v + j * VF_LANES);
            UNROLL for (int r = 0; r < rows; r++)
            {
                const vf weight = vf_load1(x->p + r * x->p_stride + i);
                UNROLL for (int j = j0; j < j0 + group; j++) sum[r][j] =
                    vf_fma(weight, value[j], sum[r][j]);
            }
        }
        if (ahead) next += x->next_stride;
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < vectors; j++)
        vf_store(x->o + r * x->o_stride + j * VF_LANES, sum[r][j]);
}

/* One function per number of rows, so that every register count is a constant. */
#define VALUE_CASE(n, most)                                                  \
    case n:                                                                  \
        if (n <= (most)) value_body(n <= (most) ? n : 1, vectors, ahead, x); \
        return;
/* clang-format off */
#define DEFINE_VALUES(name, width, most, is_ahead)                                  \
    static __attribute__((noinline)) void name(int rows, const value_rows *x)       \
    {                                                                               \
        const int vectors = width;                                                  \
        const bool ahead = is_ahead;                                                \
        switch (rows) {                                                             \
            VALUE_CASE(1, most) VALUE_CASE(2, most) VALUE_CASE(3, most)             \
            VALUE_CASE(4, most) VALUE_CASE(5, most) VALUE_CASE(6, most)             \
            VALUE_CASE(7, most) VALUE_CASE(8, most) VALUE_CASE(9, most)             \
            VALUE_CASE(10, most) VALUE_CASE(11, most) VALUE_CASE(12, most)          \
            VALUE_CASE(13, most) VALUE_CASE(14, most)                               \
        }                                                                           \
    }
/* clang-format on */
DEFINE_VALUES(value_full, VALUE_FULL, FULL_ROWS, true)
DEFINE_VALUES(value_wide, VALUE_WIDE, FULL_ROWS, true)
DEFINE_VALUES(value_ahead, TILE_VECTORS, BLOCK_ROWS, true)
DEFINE_VALUES(value_packed, TILE_VECTORS, BLOCK_ROWS, false) /* for data in L1 */
DEFINE_VALUES(value_half, TILE_VECTORS / 2, BLOCK_ROWS, false)

typedef void (*value_function)(int rows, const value_rows *x);

/* All rows of a strip, by functions for register blocks. */
ALWAYS_INLINE void value_strip(value_function first, value_function others, int rows, value_rows *x)
{
    if (BLOCK_ROWS == TILE_ROWS) {
        first(rows, x);
        return;
    }
    for (int row = 0, some; row < rows; row += some) {
        some = block_rows(rows - row);
        (row == 0 ? first : others)(some, x);
        x->p += some * x->p_stride;
        x->o += some * x->o_stride;
    }
    x->p -= rows * x->p_stride;
    x->o -= rows * x->o_stride;
}

/* Add the block's sums to the output: o = fma(o, alpha, sums). */
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
