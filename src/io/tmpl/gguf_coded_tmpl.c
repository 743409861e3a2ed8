/* The coded form of rows of GGUF blocks, one lane each. gguf_decode_tmpl.c includes it.
 *
 * Blocks are transposed in dwords: four numbers, eight nibbles or other fields of a block. Then
 * the numbers, scales and offsets of all rows are extracted side by side. */
#if defined(__AVX512F__)
enum { LANES = 16 };
#define MIX(a, b, i, j, k, l)                                                                  \
    __builtin_shufflevector(a, b, i, j, k, l, i + 4, j + 4, k + 4, l + 4, i + 8, j + 8, k + 8, \
                            l + 8, i + 12, j + 12, k + 12, l + 12)
#define QUARTERS(a, b, i, j)                                                                      \
    __builtin_shufflevector(a, b, i, i + 1, i + 2, i + 3, j, j + 1, j + 2, j + 3, i + 16, i + 17, \
                            i + 18, i + 19, j + 16, j + 17, j + 18, j + 19)
#elif defined(__AVX2__)
enum { LANES = 8 };
#define MIX(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l, i + 4, j + 4, k + 4, l + 4)
#define HALVES(a, b, i) \
    __builtin_shufflevector(a, b, i, i + 1, i + 2, i + 3, i + 8, i + 9, i + 10, i + 11)
#else
enum { LANES = 4 };
#define MIX(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#endif
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
typedef uint32_t dwords __attribute__((vector_size(4 * LANES)));
typedef int32_t wholes __attribute__((vector_size(4 * LANES)));
typedef int8_t smalls __attribute__((vector_size(4 * LANES)));
typedef float floats __attribute__((vector_size(4 * LANES)));

enum {
    ROWS = MHA_CODED_ROWS,
    PARTS = ROWS / LANES,
    MOST_DWORDS = 80 /* per row; 256 columns have at most 53, and rows are five cache lines apart */
};

ALWAYS_INLINE dwords load_lanes(const void *from)
{
    dwords x;
    memcpy(&x, from, sizeof x);
    return x;
}

ALWAYS_INLINE void store_lanes(void *to, dwords x)
{
    memcpy(to, &x, sizeof x);
}

/* Transpose LANES rows to columns. */
ALWAYS_INLINE void turn_square(dwords x[LANES])
{
    dwords y[LANES];
    UNROLL for (int i = 0; i < LANES; i += 2)
    {
        y[i] = MIX(x[i], x[i + 1], 0, LANES, 1, LANES + 1);
        y[i + 1] = MIX(x[i], x[i + 1], 2, LANES + 2, 3, LANES + 3);
    }
    UNROLL for (int i = 0; i < LANES; i += 4)
    {
        x[i] = MIX(y[i], y[i + 2], 0, 1, LANES, LANES + 1);
        x[i + 1] = MIX(y[i], y[i + 2], 2, 3, LANES + 2, LANES + 3);
        x[i + 2] = MIX(y[i + 1], y[i + 3], 0, 1, LANES, LANES + 1);
        x[i + 3] = MIX(y[i + 1], y[i + 3], 2, 3, LANES + 2, LANES + 3);
    }
    /* Part q of four of x[4 g + c] gets column 4 q + c of rows 4 g .. 4 g + 3. */
#if defined(__AVX512F__)
    UNROLL for (int c = 0; c < 4; c++)
    {
        y[c] = QUARTERS(x[c], x[4 + c], 0, 4);
        y[4 + c] = QUARTERS(x[c], x[4 + c], 8, 12);
        y[8 + c] = QUARTERS(x[8 + c], x[12 + c], 0, 4);
        y[12 + c] = QUARTERS(x[8 + c], x[12 + c], 8, 12);
    }
    UNROLL for (int c = 0; c < 4; c++)
    {
        x[c] = QUARTERS(y[c], y[8 + c], 0, 8);
        x[4 + c] = QUARTERS(y[c], y[8 + c], 4, 12);
        x[8 + c] = QUARTERS(y[4 + c], y[12 + c], 0, 8);
        x[12 + c] = QUARTERS(y[4 + c], y[12 + c], 4, 12);
    }
#elif defined(__AVX2__)
    UNROLL for (int c = 0; c < 4; c++)
    {
        y[c] = HALVES(x[c], x[4 + c], 0);
        y[4 + c] = HALVES(x[c], x[4 + c], 4);
    }
    UNROLL for (int i = 0; i < LANES; i++) x[i] = y[i];
#endif
}

/* Prefetch part `part` of `parts` of the blocks that are `ahead` bytes ahead into L2. Never faults.
 * Prefetching all at once would need more cache misses in flight than a core supports. */
ALWAYS_INLINE void fetch(const unsigned char *const rows[ROWS], int64_t size, int64_t ahead,
                         int64_t part, int64_t parts)
{
    for (int64_t r = ROWS * part / parts; r < ROWS * (part + 1) / parts; r++)
        for (int64_t i = 0; i < size; i += 64)
            __builtin_prefetch((const void *)((uintptr_t)rows[r] + (uintptr_t)(ahead + i)), 0, 2);
}

static void turn(const unsigned char *const rows[ROWS], int64_t count,
                 const unsigned char *const next[ROWS], int64_t size, int64_t ahead,
                 uint32_t (*to)[ROWS])
{
    for (int64_t c = 0; c < count; c += LANES) {
        const int64_t at = c + LANES <= count ? c : count - LANES;
        const int64_t squares = (count + LANES - 1) / LANES * PARTS;
        for (int r = 0; r < ROWS; r += LANES) {
            dwords x[LANES];
            fetch(next, size, ahead, c / LANES * PARTS + r / LANES, squares);
            UNROLL for (int i = 0; i < LANES; i++) x[i] = load_lanes(rows[r + i] + 4 * at);
            turn_square(x);
            UNROLL for (int i = 0; i < LANES; i++) store_lanes(to[at + i] + r, x[i]);
        }
    }
}

ALWAYS_INLINE floats half_lanes(dwords x)
{
#if defined(__AVX512F__)
    return (floats)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)x));
#else
    const dwords sign = (x & 0x8000u) << 16, size = x & 0x7FFFu;
    const dwords large = (dwords)(size >= 0x7C00u), tiny = (dwords)(size < 0x400u);
    const dwords normal = (size << 13) + (112u << 23);
    const dwords subnormal = (dwords)(__builtin_convertvector((wholes)size, floats) * 0x1p-24f);
    const dwords quiet = (dwords)(size > 0x7C00u) & 0x400000u; /* NaN */
    return (floats)(sign | quiet | (normal & ~large & ~tiny) | (subnormal & tiny) |
                    ((0x7F800000u | (size & 0x3FFu) << 13) & large));
#endif
}

/* Store results for row r and the following rows: the numbers of columns `at` to `at` + 3, or the
 * scale and offset of a run. */
ALWAYS_INLINE void put_numbers(mha_coded *to, int64_t at, int r, dwords x, int minus)
{
    store_lanes(to->number[at / 4][r], (dwords)((smalls)x - (int8_t)minus));
}

ALWAYS_INLINE void put_run(mha_coded *to, int64_t run, int r, floats scale, floats offset)
{
    store_lanes(to->scale[run] + r, (dwords)scale);
    store_lanes(to->offset[run] + r, (dwords)offset);
}

#define LANES_ARGUMENTS const uint32_t(*x)[ROWS], int r, int64_t at, mha_coded *to
ALWAYS_INLINE floats no_offset(void)
{
    return (floats)((dwords){0} + 0x80000000u);
}

/* Expand four bits to bit 4 of four bytes. */
ALWAYS_INLINE dwords spread_lanes(dwords bits)
{
    return ((bits & 15) * 0x204081u & 0x1010101u) << 4;
}

/* The low nibbles of four dwords, then the high ones, with fifth bits from the
 * previous dword, if any. */
ALWAYS_INLINE void nibble_lanes(bool fifth, bool has_offset, int minus, LANES_ARGUMENTS)
{
    const dwords d = load_lanes(x[0] + r), bits = load_lanes(x[1] + r);
    put_run(to, at / 32, r, half_lanes(d), has_offset ? half_lanes(d >> 16) : no_offset());
    UNROLL for (int k = 0; k < 4; k++)
    {
        const dwords q = load_lanes(x[1 + fifth + k] + r);
        dwords low = q & 0x0F0F0F0Fu, high = q >> 4 & 0x0F0F0F0Fu;
        if (fifth) low |= spread_lanes(bits >> 4 * k), high |= spread_lanes(bits >> (16 + 4 * k));
        put_numbers(to, at + 4 * k, r, low, minus);
        put_numbers(to, at + 4 * k + 16, r, high, minus);
    }
}

ALWAYS_INLINE void q4_0_lanes(LANES_ARGUMENTS)
{
    nibble_lanes(false, false, 8, x, r, at, to);
}
ALWAYS_INLINE void q4_1_lanes(LANES_ARGUMENTS)
{
    nibble_lanes(false, true, 0, x, r, at, to);
}
ALWAYS_INLINE void q5_0_lanes(LANES_ARGUMENTS)
{
    nibble_lanes(true, false, 16, x, r, at, to);
}
ALWAYS_INLINE void q5_1_lanes(LANES_ARGUMENTS)
{
    nibble_lanes(true, true, 0, x, r, at, to);
}

ALWAYS_INLINE floats whole_lanes(dwords x)
{
    return __builtin_convertvector((wholes)x, floats);
}

/* Q4_K or, with h, Q5_K. */
ALWAYS_INLINE void k_lanes(const uint32_t (*h)[ROWS], const uint32_t (*q)[ROWS], LANES_ARGUMENTS)
{
    const dwords d = load_lanes(x[0] + r), s0 = load_lanes(x[1] + r), s1 = load_lanes(x[2] + r),
                 s2 = load_lanes(x[3] + r);
    const floats scale = half_lanes(d), least = half_lanes(d >> 16);
    for (int j = 0; j < 8; j++) {
        const int by = j % 4 * 8;
        const dwords a = j < 4 ? s0 >> by & 63 : (s2 >> by & 15) | (s0 >> (by + 6) & 3) << 4;
        const dwords b = j < 4 ? s1 >> by & 63 : (s2 >> (by + 4) & 15) | (s1 >> (by + 6) & 3) << 4;
        put_run(to, at / 32 + j, r, scale * whole_lanes(a), -(least * whole_lanes(b)));
        UNROLL for (int k = 0; k < 8; k++)
        {
            dwords n = load_lanes(q[j / 2 * 8 + k] + r) >> j % 2 * 4 & 0x0F0F0F0Fu;
            if (h) n |= (load_lanes(h[k] + r) >> j & 0x01010101u) << 4;
            put_numbers(to, at + 32 * j + 4 * k, r, n, 0);
        }
    }
}

ALWAYS_INLINE void q4_k_lanes(LANES_ARGUMENTS)
{
    k_lanes(NULL, x + 4, x, r, at, to);
}
ALWAYS_INLINE void q5_k_lanes(LANES_ARGUMENTS)
{
    k_lanes(x + 4, x + 12, x, r, at, to);
}

ALWAYS_INLINE void q6_k_lanes(LANES_ARGUMENTS)
{
    const floats d = half_lanes(load_lanes(x[52] + r));
    for (int run = 0; run < 16; run++) {
        const int t = run / 8, part = run / 2 % 4, half = run % 2 * 4;
        const dwords s = load_lanes(x[48 + run / 4] + r) << (24 - run % 4 * 8);
        put_run(to, at / 16 + run, r, d * whole_lanes((dwords)((wholes)s >> 24)), no_offset());
        UNROLL for (int k = 0; k < 4; k++)
        {
            const dwords low = load_lanes(x[16 * t + 8 * (part % 2) + half + k] + r);
            const dwords high = load_lanes(x[32 + 8 * t + half + k] + r);
            const dwords n = (low >> part / 2 * 4 & 0x0F0F0F0Fu) | (high >> 2 * part & 0x03030303u)
                                                                       << 4;
            put_numbers(to, at + 16 * run + 4 * k, r, n, 32);
        }
    }
}

/* Copy a block whose size is not a multiple of 4 to dwords. Its scale of two bytes becomes a dword
 * at the beginning or the end. */
ALWAYS_INLINE void scale_first(const unsigned char *from, int size, uint32_t *to)
{
    uint16_t scale;
    memcpy(&scale, from, 2);
    *to = scale;
    memcpy(to + 1, from + 2, (size_t)size - 2);
}
ALWAYS_INLINE void scale_last(const unsigned char *from, int size, uint32_t *to)
{
    uint16_t scale;
    memcpy(to, from, (size_t)size - 2);
    memcpy(&scale, from + size - 2, 2);
    to[size / 4] = scale;
}
ALWAYS_INLINE void as_it_is(const unsigned char *from, int size, uint32_t *to)
{
    memcpy(to, from, (size_t)size);
}

/* Blocks of whole dwords are transposed directly from the file, if rows are long enough. */
#define CODE(name, elements, size, of_run, of_offsets, gather)                                    \
    static void name##_code(const unsigned char *const rows[ROWS], int64_t blocks, int64_t ahead, \
                            mha_coded *to)                                                        \
    {                                                                                             \
        enum { EACH_HAS = (size + 3) / 4 };                                                       \
        _Static_assert(MHA_CODED_COLUMNS / elements * EACH_HAS <= MOST_DWORDS, "there is room");  \
        _Alignas(64) uint32_t turned[MOST_DWORDS][ROWS], copied[ROWS][MOST_DWORDS];               \
        const unsigned char *copies[ROWS];                                                        \
        const int64_t count = blocks * EACH_HAS;                                                  \
        const bool copy = size % 4 != 0 || count < LANES;                                         \
        to->run = of_run;                                                                         \
        to->has_offsets = of_offsets;                                                             \
        for (int r = 0; copy && r < ROWS; r++) {                                                  \
            copies[r] = (const unsigned char *)copied[r];                                         \
            for (int64_t i = 0; i < blocks; i++)                                                  \
                gather(rows[r] + i * size, size, copied[r] + i * EACH_HAS);                       \
        }                                                                                         \
        turn(copy ? copies : rows, count < LANES ? LANES : count, rows, blocks * size, ahead,     \
             turned);                                                                             \
        for (int64_t i = 0; i < blocks * PARTS; i++) {                                            \
            name##_lanes((const uint32_t(*)[ROWS])turned + i / PARTS * EACH_HAS,                  \
                         (int)(i % PARTS * LANES), i / PARTS * elements, to);                     \
        }                                                                                         \
    }
CODE(q4_0, 32, 18, 32, 0, scale_first)
CODE(q4_1, 32, 20, 32, 1, as_it_is)
CODE(q5_0, 32, 22, 32, 0, scale_first)
CODE(q5_1, 32, 24, 32, 1, as_it_is)
CODE(q4_k, 256, 144, 32, 1, as_it_is)
CODE(q5_k, 256, 176, 32, 1, as_it_is)
CODE(q6_k, 256, 210, 16, 0, scale_last)

/* Load LANES dwords of a Q8_0 row from number 4 `at` on, skipping the scales. */
ALWAYS_INLINE dwords q8_0_part(const unsigned char *row, int64_t at)
{
    const unsigned char *from = row + at / 8 * 34 + 2 + at % 8 * 4;
#if defined(__AVX512F__)
    __m256i half[2];
    memcpy(&half[0], from, 32);
    memcpy(&half[1], from + 34, 32);
    return (dwords)_mm512_inserti64x4(_mm512_castsi256_si512(half[0]), half[1], 1);
#else
    return load_lanes(from);
#endif
}

/* Transpose into the destination. The last dwords may be written twice. */
ALWAYS_INLINE void q8_0_numbers(const unsigned char *const rows[ROWS], int64_t count, int64_t ahead,
                                mha_coded *to)
{
    for (int64_t c = 0; c < count; c += LANES) {
        const int64_t at = c + LANES <= count ? c : count - LANES,
                      squares = (count + LANES - 1) / LANES;
        for (int r = 0; r < ROWS; r += LANES) {
            dwords x[LANES];
            fetch(rows, count / 8 * 34, ahead, c / LANES * PARTS + r / LANES, squares * PARTS);
            UNROLL for (int i = 0; i < LANES; i++) x[i] = q8_0_part(rows[r + i], at);
            turn_square(x);
            UNROLL for (int i = 0; i < LANES; i++) store_lanes(to->number[at + i][r], x[i]);
        }
    }
}

static void q8_0_code(const unsigned char *const rows[ROWS], int64_t blocks, int64_t ahead,
                      mha_coded *to)
{
    uint32_t scale[ROWS];
    to->run = 32;
    to->has_offsets = 0;
    for (int64_t i = 0; i < blocks; i++) {
        for (int r = 0; r < ROWS; r++) {
            uint16_t half;
            memcpy(&half, rows[r] + i * 34, 2);
            scale[r] = half;
        }
        for (int r = 0; r < ROWS; r += LANES)
            put_run(to, i, r, half_lanes(load_lanes(scale + r)), no_offset());
    }
    if (8 * blocks >= LANES) {
        q8_0_numbers(rows, 8 * blocks, ahead, to);
        return;
    }
    for (int r = 0; r < ROWS; r++) /* one block */
        for (int k = 0; k < 8; k++) memcpy(to->number[k][r], rows[r] + 2 + 4 * k, 4);
}

/* ---- other blocks: decoded row by row, then transposed --------------------------------------- */

typedef struct decoded_rows {
    _Alignas(64) int8_t number[ROWS][MHA_CODED_COLUMNS];
    float scale[ROWS][MHA_CODED_COLUMNS / 16], offset[ROWS][MHA_CODED_COLUMNS / 16];
} decoded_rows;

/* Transpose the first dwords of each row. `to` has room for LANES columns. */
static void turn_rows(const void *first, size_t stride, int64_t count,
                      const unsigned char *const next[ROWS], int64_t size, int64_t ahead, void *to)
{
    const unsigned char *rows[ROWS];
    for (size_t r = 0; r < ROWS; r++) rows[r] = (const unsigned char *)first + r * stride;
    turn(rows, count < LANES ? LANES : count, next, size, ahead, to);
}

static void turn_decoded(const decoded_rows *x, int64_t columns,
                         const unsigned char *const next[ROWS], int64_t size, int64_t ahead,
                         mha_coded *to)
{
    const int64_t runs = columns / to->run;
    turn_rows(x->number, sizeof x->number[0], columns / 4, next, size, ahead, to->number);
    turn_rows(x->scale, sizeof x->scale[0], runs, next, 0, 0, to->scale);
    turn_rows(x->offset, sizeof x->offset[0], runs, next, 0, 0, to->offset);
}

#define CODE_DECODED(name, elements, size, of_run, of_offsets)                                    \
    static void name##_code(const unsigned char *const rows[ROWS], int64_t blocks, int64_t ahead, \
                            mha_coded *to)                                                        \
    {                                                                                             \
        decoded_rows x;                                                                           \
        to->run = of_run;                                                                         \
        to->has_offsets = of_offsets;                                                             \
        for (int64_t i = 0; i < ROWS * blocks; i++) {                                             \
            const int64_t r = i / blocks, b = i % blocks, run = b * (elements / of_run);          \
            name##_block(rows[r] + b * size, x.number[r] + b * elements, x.scale[r] + run,        \
                         x.offset[r] + run);                                                      \
        }                                                                                         \
        turn_decoded(&x, (blocks) * (elements), rows, (blocks) * (size), ahead, to);              \
    }
#define CODE_LOW(type, name, run, offsets) \
    CODE_DECODED(name, type##_ELEMENTS, type##_BYTES, run, offsets)
LOW_BITS(CODE_LOW)
