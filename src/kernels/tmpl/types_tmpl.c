/* Tensor elements of any type as f32, converted in registers while they are read or written. `type`
 * is a constant in all performance-critical loops. */

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* UNROLL: for loops over registers, whose count is a constant. UNROLL_INNER: for the loop over the
 * inner indices of a product, INNER_STEPS at a time. (If it is unrolled by hand, gcc schedules all
 * steps together and moves sums between registers.) */
#define PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#define UNROLL_TIMES(n) PRAGMA(clang loop unroll_count(n))
#else
#define UNROLL _Pragma("GCC unroll 16")
#define UNROLL_TIMES(n) PRAGMA(GCC unroll n)
#endif
#define UNROLL_INNER UNROLL_TIMES(INNER_STEPS)

enum { LANES16 = 16 / VF_LANES };

#ifndef HAS_TRANSPOSE_FROM
/* Load VF_LANES rows, transposed. */
ALWAYS_INLINE void transpose_from(const float *in, int64_t stride, float *out, int64_t ld)
{
    vf rows[VF_LANES];
    UNROLL for (int r = 0; r < VF_LANES; r++) rows[r] = vf_load(in + r * stride);
    transpose(rows, out, ld);
}
#endif

#ifndef HAS_FMA1
ALWAYS_INLINE vf vf_mul1(const float *a, vf b)
{
    return vf_mul(vf_load1(a), b);
}
#endif

/* Rows of a strip's next register block, if this many rows are left. */
ALWAYS_INLINE int block_rows(int left)
{
    if (left <= BLOCK_ROWS) return left;
    return left <= 2 * BLOCK_ROWS ? (left + 1) / 2 : BLOCK_ROWS; /* 4 and 3 instead of 6 and 1 */
}

/* Call function(constant, ...), so that the compiler makes one body per type. */
#define BY_TYPE(type, function, ...)                       \
    switch (type) {                                        \
    case MHA_F16: function(MHA_F16, __VA_ARGS__); break;   \
    case MHA_BF16: function(MHA_BF16, __VA_ARGS__); break; \
    default: function(MHA_F32, __VA_ARGS__);               \
    }

ALWAYS_INLINE vf load_as(mha_dtype type, const void *p, int64_t i)
{
    if (type == MHA_F32) return vf_load((const float *)p + i);
    if (type == MHA_I8) return vf_load_i8((const int8_t *)p + i);
    return type == MHA_F16 ? vf_load_f16((const uint16_t *)p + i)
                           : vf_load_bf16((const uint16_t *)p + i);
}

/* Load n <= VF_LANES elements, starting at i, padded with zeros. Does not read other elements. */
ALWAYS_INLINE vf load_n_as(mha_dtype type, const void *p, int64_t i, int64_t n)
{
    if (n == VF_LANES) return load_as(type, p, i);
    if (type == MHA_F32) return vf_load_n((const float *)p + i, n);
    if (type == MHA_I8) {
        int8_t bytes[VF_LANES] = {0};
        memcpy(bytes, (const int8_t *)p + i, (size_t)n);
        return vf_load_i8(bytes);
    }
    uint16_t part[VF_LANES] = {0};
    memcpy(part, (const uint16_t *)p + i, (size_t)n * sizeof *part);
    return load_as(type, part, 0);
}

ALWAYS_INLINE void store_n_as(mha_dtype type, void *p, int64_t i, int64_t n, vf x)
{
    uint16_t part[VF_LANES], *to = (uint16_t *)p + i;
    if (type == MHA_F32) {
        vf_store_n((float *)p + i, n, x);
        return;
    }
    if (type == MHA_F16)
        vf_store_f16(part, x);
    else
        vf_store_bf16(part, x);
    memcpy(to, part, (size_t)n * sizeof *part);
}

static inline float element_as(mha_dtype type, const void *p, int64_t i)
{
    if (type == MHA_F32) return ((const float *)p)[i];
    uint16_t half = ((const uint16_t *)p)[i];
    return type == MHA_F16 ? mhai_f16_to_f32(half) : mhai_bf16_to_f32(half);
}

/* The original element, which is 0 in the packed values. */
static inline float poison_value(const mhai_poison *x, int key, int64_t col)
{
    if (!x->value_runs) return element_as(x->value_type, x->values, key * x->value_stride + col);
    const mhai_run *run = &x->value_runs[key / MHAI_RUN];
    const int64_t i = key % MHAI_RUN * x->value_dim + col;
    if (run->type != MHA_I8) return element_as(run->type, run->at, i);
    return (float)((const int8_t *)run->at)[i] * run->scale[key % MHAI_RUN];
}
