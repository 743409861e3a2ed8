/* Rows of weights times values that lie in rows, a piece of the keys at a time: the chains of a
 * block go on where the piece before left them, so that values may be read in any pieces, in order.
 */

enum {
    VALUE_KEYS = 16, /* values read at a time: their rows are in L1 for all groups of columns */
    VALUE_WIDE = 4,  /* vectors of columns, while their sums leave registers for values */
    VALUE_FULL = 8,
    FULL_ROWS = BLOCK_ROWS * TILE_VECTORS / VALUE_FULL,
    FAR = 2048 /* floats from the touched line to the one prefetched into L2: two pages */
};

/* Data needed soon is loaded line by line in memory order, whatever the order of its use. Squares
 * and columns of memory that was not touched before arrive at a third of the speed of a detected
 * stream; not every processor detects prefetches, and many lines at once are half as fast as a few
 * now and then. */
ALWAYS_INLINE void touch(const float *p)
{
    (void)*(const volatile char *)p;
}

/* Into L2. Addresses ahead may lie outside of the tensor: they are never read. */
ALWAYS_INLINE void fetch_far(const float *p, int64_t elements)
{
    fetch_l2((const void *)((uintptr_t)p + (uintptr_t)elements * sizeof(float)));
}

/* A line that is needed soon, and one that is needed later: touched lines are waited for, with no
 * more outstanding loads than a processor can track. A line prefetched into L2 two pages ahead
 * costs no such wait. (Zen 4, 4 rows: 84 to 90 % of a read-only loop, instead of 76 %, and 68 % if
 * rows did not begin at a line. Prefetching into L1 is worse than none, and without the touch not
 * as good.) */
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
    const float *next; /* for what is ahead: as wide a piece for each key, next_stride apart */
    int64_t next_stride;
    int64_t far; /* floats from the touched line to the one prefetched into L2 */
} value_rows;

/* o += P V over `vectors` registers of columns; the chains go on where they were. */
ALWAYS_INLINE void value_body(int rows, int vectors, bool ahead, const value_rows *x)
{
    vf sum[BLOCK_ROWS][VALUE_FULL];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < vectors; j++) sum[r][j] =
        vf_load(x->o + r * x->o_stride + j * VF_LANES);
    const int group =
        vectors < (int)TILE_VECTORS ? vectors : TILE_VECTORS; /* that registers hold */
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
DEFINE_VALUES(value_packed, TILE_VECTORS, BLOCK_ROWS, false) /* of what is in L1 */
DEFINE_VALUES(value_half, TILE_VECTORS / 2, BLOCK_ROWS, false)

typedef void (*value_function)(int rows, const value_rows *x);

/* All rows of a strip, by functions for those of a register block. */
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
