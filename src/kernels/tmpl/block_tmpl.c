/* The register block: the inner loop of most matrix products of the library.
 *
 *   C[rows x 32] = A[rows x inner] B[inner x 32]     A broadcast, B a panel, C in registers
 *
 * Each element of C is one chain of FMAs over i = 0 .. inner-1 that starts at 0, on every
 * instruction set and for every number of rows. The constant `finish` selects the use of the
 * result, so that the compiler generates one function per combination. */

enum {
    BLOCK_COLS = TILE_VECTORS * VF_LANES,
    PANEL_VECTORS = MHAI_PANEL / VF_LANES,
    FEW_ROWS = PANEL_VECTORS > TILE_VECTORS ? 2 : 0, /* rows whose sums can be a whole panel wide */
    HALF_PANEL = MHAI_PANEL / 2,
    HALF_VECTORS = BLOCK_COLS > HALF_PANEL ? TILE_VECTORS / 2 : TILE_VECTORS,
    LINE = 16 /* floats of a cache line */
};

typedef enum block_finish {
    FINISH_STORE,    /* c = sum */
    FINISH_FETCH,    /* c = sum; also prefetches rows that are read soon */
    FINISH_FETCH_L2, /* the same, into L2 only */
    FINISH_SCALE,    /* c = sum * scale[row] */
    FINISH_RESCALE,  /* c = fma(c, scale[row], sum) */
    FINISH_ADD,      /* c = start + sum; also prefetches data of later blocks */
    FINISH_ADD_FETCH /* c = start + sum; prefetches the data of later blocks */
} block_finish;

typedef struct block {
    int64_t inner;
    const float *a;
    int64_t a_stride;
    bool transposed; /* A is stored as [inner][rows], and C = A^T B */
    const float *b;  /* [inner][MHAI_PANEL] */
    float *c;
    int64_t c_stride;
    const float *scale; /* FINISH_SCALE, FINISH_RESCALE: [rows] */
    const float *start; /* the addend: c itself or another row; stride 0: the same for all rows */
    int64_t start_stride;
    int fetching;      /* number of register blocks that prefetch */
    const float *next; /* data to prefetch, one line per inner index. FINISH_ADD_FETCH: advances by
                        * next_step floats; FINISH_FETCH: rows of next_lines lines */
    int64_t next_step;
    int64_t next_lines, next_gap; /* next_gap: floats from the end of a row to the next row */
} block;

/* Prefetch into L2 and L1. Never faults. */
ALWAYS_INLINE void fetch(const void *p)
{
    __builtin_prefetch(p, 0, 3);
}

ALWAYS_INLINE void fetch_l2(const void *p)
{
    __builtin_prefetch(p, 0, 2);
}

ALWAYS_INLINE bool adds(block_finish finish)
{
    return finish == FINISH_ADD || finish == FINISH_ADD_FETCH;
}

ALWAYS_INLINE bool scales(block_finish finish)
{
    return finish == FINISH_SCALE || finish == FINISH_RESCALE;
}

ALWAYS_INLINE void block_store(block_finish finish, float *c, vf sum, const float *scale,
                               const float *start)
{
    if (finish == FINISH_SCALE) sum = vf_mul(sum, vf_set1(*scale));
    if (finish == FINISH_RESCALE) sum = vf_fma(vf_load(c), vf_set1(*scale), sum);
    if (adds(finish)) sum = vf_add(vf_load(start), sum);
    vf_store(c, sum);
}

ALWAYS_INLINE vf multiply_add(bool pairs, vf a, vf b, vf c)
{
#ifdef HAS_PAIRS
    if (pairs) return vf_pairs(a, b, c);
#endif
    (void)pairs;
    return vf_fma(a, b, c);
}

/* pairs: elements of A and B are pairs of bf16 (simd_portable.h). transposed: A is stored as
 * [inner][rows], and C = A^T B. stride: the stride of A if it is a constant, otherwise 0. A
 * constant saves 5 % at 14 rows, because not all strides would fit in registers. */
ALWAYS_INLINE void block_body(int rows, int vectors, block_finish finish, bool pairs,
                              bool transposed, int64_t stride, const block *t)
{
    vf sum[BLOCK_ROWS][PANEL_VECTORS];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < vectors; j++) sum[r][j] =
        vf_zero();
    const float *a = t->a, *b = t->b;
    const int64_t inner = t->inner, a_stride = stride ? stride : t->a_stride;
    /* With two pointers, the strides of 14 rows fit in registers. */
    const int split = transposed || stride ? rows : (rows + 1) / 2;
    const float *lower = a + split * a_stride;
    if (split < rows) __asm__("" : "+r"(lower));
    const float *next = t->next;
    const int64_t step = t->next_step;
    int64_t lines = t->next_lines;
    if (adds(finish)) /* prefetch the addend during the sums, because it may be uncached */
        for (int r = 0; r < rows; r++)
            for (int j = 0; j < vectors * VF_LANES; j += LINE) fetch(t->c + r * t->c_stride + j);
    UNROLL_INNER for (int64_t i = 0; i < inner; i++)
    {
        vf column[PANEL_VECTORS];
        if (finish == FINISH_ADD_FETCH) {
            fetch_l2(next);
            next += step;
        }
        if (finish == FINISH_FETCH) fetch(next);
        if (finish == FINISH_FETCH_L2) fetch_l2(next);
        if (finish == FINISH_FETCH || finish == FINISH_FETCH_L2) {
            next += LINE;
            if (--lines == 0) {
                lines = t->next_lines;
                next += t->next_gap;
            }
        }
        UNROLL for (int j = 0; j < vectors; j++) column[j] =
            vf_load(b + i * MHAI_PANEL + j * VF_LANES);
        UNROLL for (int r = 0; r < rows; r++)
        {
            const float *at = r < split ? a + r * a_stride : lower + (r - split) * a_stride;
            vf row = vf_load1(transposed ? a + i * a_stride + r : at + i);
            UNROLL for (int j = 0; j < vectors; j++) sum[r][j] =
                multiply_add(pairs, row, column[j], sum[r][j]);
        }
    }
    float *c = t->c;
    const float *start = t->start, *scale = t->scale;
    const int64_t c_stride = t->c_stride, start_stride = t->start_stride;
    UNROLL for (int r = 0; r < rows; r++)
    {
        UNROLL for (int j = 0; j < vectors; j++)
            block_store(finish, c + j * VF_LANES, sum[r][j], scales(finish) ? scale + r : NULL,
                        adds(finish) ? start + j * VF_LANES : NULL);
        c += c_stride;
        if (adds(finish)) start += start_stride;
    }
}

/* One function per number of rows, so that every register count is a constant. */
#define BLOCK_CASE(n)                                                                     \
    case n:                                                                               \
        if (n <= most)                                                                    \
            block_body(n <= most ? n : 1, vectors, finish, pairs, transposed, stride, t); \
        return;
/* clang-format would move another case to its own line on every run. */
/* clang-format off */
#define DEFINE_BLOCK_OF(name, most_rows, width, finish_kind, of_pairs, is_transposed,           \
                        constant_stride)                                                        \
    static __attribute__((noinline)) void name(int rows, const block *t)                        \
    {                                                                                           \
        const int vectors = width, most = most_rows;                                            \
        const block_finish finish = finish_kind;                                                \
        const bool pairs = of_pairs, transposed = is_transposed;                                \
        const int64_t stride = constant_stride;                                                 \
        switch (rows) {                                                                         \
            BLOCK_CASE(1) BLOCK_CASE(2) BLOCK_CASE(3) BLOCK_CASE(4) BLOCK_CASE(5)               \
            BLOCK_CASE(6) BLOCK_CASE(7) BLOCK_CASE(8) BLOCK_CASE(9) BLOCK_CASE(10)              \
            BLOCK_CASE(11) BLOCK_CASE(12) BLOCK_CASE(13) BLOCK_CASE(14)                         \
        }                                                                                       \
    }
#define DEFINE_BLOCK(name, finish_kind, is_transposed, constant_stride) \
    DEFINE_BLOCK_OF(name, BLOCK_ROWS, TILE_VECTORS, finish_kind, false, is_transposed,          \
                    constant_stride)
/* clang-format on */
DEFINE_BLOCK(block_store_rows, FINISH_STORE, false, 0)
DEFINE_BLOCK(block_fetch_rows, FINISH_FETCH, false, 0)
DEFINE_BLOCK(block_fetch_l2_rows, FINISH_FETCH_L2, false, 0)
DEFINE_BLOCK(block_scale_rows, FINISH_SCALE, false, 0)
DEFINE_BLOCK(block_rescale_rows, FINISH_RESCALE, false, MHAI_SCORE_STRIDE)
DEFINE_BLOCK(block_add_rows, FINISH_ADD, false, 0)
DEFINE_BLOCK(block_add_score_rows, FINISH_ADD, false, MHAI_SCORE_STRIDE)
DEFINE_BLOCK(block_add_columns, FINISH_ADD, true, 0)
DEFINE_BLOCK(block_add_score_columns, FINISH_ADD, true, MHAI_SCORE_STRIDE)
DEFINE_BLOCK(block_add_packed_columns, FINISH_ADD, true, MHAI_MAX_ROWS)
DEFINE_BLOCK(fetch_add_rows, FINISH_ADD_FETCH, false, 0)
DEFINE_BLOCK(fetch_add_score_rows, FINISH_ADD_FETCH, false, MHAI_SCORE_STRIDE)
DEFINE_BLOCK_OF(half_store_rows, BLOCK_ROWS, HALF_VECTORS, FINISH_STORE, false, false, 0)
DEFINE_BLOCK_OF(half_rescale_rows, BLOCK_ROWS, HALF_VECTORS, FINISH_RESCALE, false, false,
                MHAI_SCORE_STRIDE)
DEFINE_BLOCK_OF(half_add_score_rows, BLOCK_ROWS, HALF_VECTORS, FINISH_ADD, false, false,
                MHAI_SCORE_STRIDE)
DEFINE_BLOCK_OF(half_add_rows, BLOCK_ROWS, HALF_VECTORS, FINISH_ADD, false, false, 0)
DEFINE_BLOCK_OF(half_add_score_columns, BLOCK_ROWS, HALF_VECTORS, FINISH_ADD, false, true,
                MHAI_SCORE_STRIDE)
DEFINE_BLOCK_OF(few_add_rows, FEW_ROWS, PANEL_VECTORS, FINISH_ADD, false, false, 0)
#ifdef HAS_PAIRS
DEFINE_BLOCK_OF(pair_scale_rows, BLOCK_ROWS, TILE_VECTORS, FINISH_SCALE, true, false, 0)
DEFINE_BLOCK_OF(pair_rescale_rows, BLOCK_ROWS, TILE_VECTORS, FINISH_RESCALE, true, false,
                MHAI_SCORE_STRIDE)
DEFINE_BLOCK_OF(half_pair_rescale_rows, BLOCK_ROWS, HALF_VECTORS, FINISH_RESCALE, true, false,
                MHAI_SCORE_STRIDE)
DEFINE_BLOCK_OF(pair_add_score_rows, BLOCK_ROWS, TILE_VECTORS, FINISH_ADD, true, false,
                MHAI_SCORE_STRIDE)
#define FOR_PAIRS(pairs, of_pairs, of_floats) ((pairs) ? (of_pairs) : (of_floats))
#else
#define FOR_PAIRS(pairs, of_pairs, of_floats) (of_floats)
#endif
_Static_assert(BLOCK_ROWS <= 14, "add cases above");

typedef void (*block_function)(int rows, const block *t);

/* The function for c += a b with this stride of a. */
static block_function adding_rows(int64_t a_stride)
{
    return a_stride == MHAI_SCORE_STRIDE ? block_add_score_rows : block_add_rows;
}

static block_function fetching_rows(int64_t a_stride)
{
    return a_stride == MHAI_SCORE_STRIDE ? fetch_add_score_rows : fetch_add_rows;
}

static block_function adding_columns(int64_t a_stride)
{
    return a_stride == MHAI_SCORE_STRIDE ? block_add_score_columns
           : a_stride == MHAI_MAX_ROWS   ? block_add_packed_columns
                                         : block_add_columns;
}

/* One register block. Uses the function that prefetches while t->fetching is positive. */
ALWAYS_INLINE void block_call(block_function fetching, block_function others, int rows, block *t)
{
    if (t->fetching <= 0) {
        others(rows, t);
        return;
    }
    fetching(rows, t);
    t->next += t->inner * t->next_step;
    t->fetching--;
}

/* All rows of a strip, in one or several register blocks. */
ALWAYS_INLINE void strip_product(block_function fetching, block_function others, int rows, block *t)
{
    if (BLOCK_ROWS == TILE_ROWS) {
        block_call(fetching, others, rows, t);
        return;
    }
    const int64_t a_row = t->transposed ? 1 : t->a_stride;
    for (int row = 0, some; row < rows; row += some) {
        some = block_rows(rows - row);
        block_call(fetching, others, some, t);
        t->a += some * a_row;
        t->c += some * t->c_stride;
        if (t->scale) t->scale += some;
        if (t->start) t->start += some * t->start_stride;
    }
    t->a -= rows * a_row;
    t->c -= rows * t->c_stride;
    if (t->scale) t->scale -= rows;
    if (t->start) t->start -= rows * t->start_stride;
}

/* A whole panel, in one or several register blocks. Modifies t instead of a copy, because a copy
 * written in parts cannot be forwarded: loads from it would wait for all earlier stores. */
ALWAYS_INLINE void panel_product(block_function fetching, block_function others, int rows, block *t)
{
    for (int column = 0; column < MHAI_PANEL; column += BLOCK_COLS) {
        strip_product(fetching, others, rows, t);
        t->b += BLOCK_COLS;
        t->c += BLOCK_COLS;
        if (t->start) t->start += BLOCK_COLS; /* NULL: nothing is added */
    }
}

/* The first half of a panel, by a function for HALF_VECTORS. */
ALWAYS_INLINE void half_product(block_function blocks, int rows, block *t)
{
    for (int column = 0; column < HALF_PANEL; column += HALF_VECTORS * VF_LANES) {
        strip_product(blocks, blocks, rows, t);
        t->b += HALF_VECTORS * VF_LANES;
        t->c += HALF_VECTORS * VF_LANES;
        if (t->start) t->start += HALF_VECTORS * VF_LANES;
    }
}
