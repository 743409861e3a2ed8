/* multihead: GGUF files, versions 2 and 3, little-endian: tensors in blocks, and metadata.
 *
 *   4 bytes        "GGUF"
 *   u32            the version
 *   u64, u64       the number of tensors, the number of metadata entries
 *   metadata       key, u32 type, value; a string is u64 length and bytes, an array u32 type of its
 *                  elements, u64 length and elements
 *   tensors        name, u32 dimensions, u64 each of them, u32 type, u64 offset
 *   the rest       the data; offsets count from the next multiple of general.alignment (32 unless
 *                  the metadata says otherwise), and each is such a multiple
 *
 * As with the files of io.h, every field is checked before it is used: a malformed or hostile file
 * gives a status and one line of text that names the file, the fault and its place, never a crash.
 *
 * Example, given float *to:
 *
 *   mha_gguf *file = NULL;
 *   mha_gguf_tensor tensor;
 *   mha_status status = mha_gguf_open("model.gguf", &file);
 *   int64_t index = mha_gguf_find(file, "token_embd.weight");
 *   if (!status) status = mha_gguf_describe(file, index, &tensor);
 *   if (!status) status = mha_gguf_read(file, index, 0, tensor.count, to);
 *   mha_gguf_close(file);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_GGUF_H
#define MULTIHEAD_GGUF_H

#include <multihead/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* All element types of the format: name, number, elements per block, bytes per block.
 * mha_gguf_read() decodes those with a formula below; tensors of the others can only be listed and
 * described.
 *
 * A block decodes to x[0], x[1], ... as follows; d and m are f16, every product and sum is rounded
 * to f32 in the order of the parentheses, and a block stores its fields in the order listed:
 *
 *   F32 F16 BF16   x = the element
 *   Q8_0           d, i8 q[32]:                x[i] = d q[i]
 *   Q4_0           d, u8 q[16]:                x[i] = d (n[i] - 8)
 *   Q4_1           d, m, u8 q[16]:             x[i] = (d n[i]) + m
 *   Q5_0           d, u32 h, u8 q[16]:         x[i] = d (n[i] - 16)
 *   Q5_1           d, m, u32 h, u8 q[16]:      x[i] = (d n[i]) + m
 *                  n[i] = q[i] mod 16, n[16 + i] = q[i] div 16 for i < 16; Q5 adds 16 where bit i
 *                  of h is set
 *   Q4_K           d, m, u8 s[12], u8 q[128]:           x[32 j + i] = ((d a[j]) n) - (m b[j])
 *   Q5_K           d, m, u8 s[12], u8 h[32], u8 q[128]: the same
 *                  n = q[32 (j div 2) + i] mod 16 for even j, div 16 for odd j; Q5 adds 16 where
 *                  bit j of h[i] is set; a and b have 6 bits:
 *                  j < 4: a[j] = s[j] mod 64, b[j] = s[j + 4] mod 64
 *                  else:  a[j] = s[j + 4] mod 16 + 16 (s[j - 4] div 64),
 *                         b[j] = s[j + 4] div 16 + 16 (s[j] div 64)
 *   Q6_K           u8 l[128], u8 h[64], i8 s[16], d:
 *                  x[128 t + 32 r + i] = (d s[8 t + 2 r + i div 16]) (n - 32)
 *                  n = 4 bits of l[64 t + 32 (r mod 2) + i], the lower ones for r < 2, and above
 *                  them bits 2 r and 2 r + 1 of h[32 t + i]
 *
 *   In the following types r = 8 t + 2 j + h, with h 0 or 1, counts runs of 16 elements.
 *
 *   Q2_K           u8 s[16], u8 q[64], d, m:
 *                  x[16 r + i] = ((d (s[r] mod 16)) n) - (m (s[r] div 16))
 *                  n = bits 2 j and 2 j + 1 of q[32 t + 16 h + i]
 *   Q3_K           u8 b[32], u8 q[64], u8 s[12], d:     x[16 r + i] = (d (a[r] - 32)) (n - 4)
 *                  n as for Q2_K, plus 4 where bit r div 2 of b[16 h + i] is set
 *                  a[r] = 4 bits of s[r mod 8], the lower ones for r < 8, and above them bits
 *                  2 (r div 4) and 2 (r div 4) + 1 of s[8 + r mod 4]
 *   TQ2_0          u8 q[64], d:                         x[16 r + i] = d (n - 1), n as for Q2_K
 *   TQ1_0          u8 p[32], u8 q[16], u8 b[4], d:      x = d (n - 1)
 *                  n = 3 ((3^c byte) mod 256) div 256 of byte i in x[32 c + i] for p and c < 5, in
 *                  x[160 + 16 c + i] for q and c < 5, in x[240 + 4 c + i] for b and c < 4
 *   IQ4_NL         d, u8 q[16]:                         x[i] = d v[n[i]], n as for Q4_0
 *   IQ4_XS         d, u16 b, u8 s[4], u8 q[128]:        x[32 j + i] = (d (a[j] - 32)) v[n]
 *                  n = as for Q4_0 in q[16 j] to q[16 j + 15]; a[j] = 4 bits of s[j div 2], the
 *                  lower ones for even j, and above them bits 2 j and 2 j + 1 of b
 *                  v = -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113
 *   MXFP4          u8 e, u8 q[16]:                      x[i] = 2^(e - 128) w[n[i]], n as for Q4_0
 *   NVFP4          u8 s[4], u8 q[32]:                   x[16 r + i] = (a / 2) w[n]
 *                  n = q[8 r + i] mod 16 for i < 8, else q[8 r + i - 8] div 16; a = s[r] as E4M3
 *                  without sign, 0 for 127
 *                  w = 0 1 2 3 4 6 8 12 0 -1 -2 -3 -4 -6 -8 -12
 *
 *   The codebooks of the IQ types are in src/io/gguf_grids.c. g(n) are the 8 elements of entry n,
 *   or the 4 of entry n and the 4 of the next index; z are 8 sign bits, where a set bit negates.
 *   If 7 bits are stored, the eighth makes the number of set bits even. Every 4 bits of s, the
 *   lower ones first, are a scale s[r] of a run of 16 or s[j] of 32.
 *
 *   IQ2_XXS        d, then for each j < 8 u8 q[4], u32 m:   x = (d (1/2 + m div 2^28) / 4) z g(q)
 *                  z: 7 bits of m for each q, the lowest first
 *   IQ2_XS         d, u16 q[32], u8 s[8]:  x = (d (1/2 + s[r]) / 4) z g(q mod 512)
 *                  z: the upper 7 bits of q
 *   IQ2_S          d, u8 q[32], u8 z[32], u8 h[8], u8 s[8]:   x as for IQ2_XS, g(q + 256 (2 bits
 *                  of h for each q))
 *   IQ3_XXS        d, u8 q[64], u32 m[8]:  x = (d (1/2 + m div 2^28) / 2) z g(q), z as for IQ2_XXS
 *   IQ3_S          d, u8 q[64], u8 h[8], u8 z[32], u8 s[4]:   x = (d (1 + 2 s[j])) z g(q + 256 (a
 *                  bit of h for each q))
 *   IQ1_S          d, u8 q[32], u16 m[8]:  x = (d (1 + 2 (m div 2^12 mod 8))) (g + c)
 *                  g(q + 256 (3 bits of m for each q)); c = -1/8 if bit 15 of m is set, else 1/8
 *   IQ1_M          u8 q[32], u8 m[16], u16 s[4]:   x = (d (1 + 2 a[r])) (g + c)
 *                  g(q + 256 (the lower 3 of 4 bits of m for each q)), c by the fourth
 *                  a[r] = 3 bits of s[r div 4], the lowest first; d: the upper 4 bits of each s
 */
#define MHA_GGUF_TYPE_LIST(X) \
    X(F32, 0, 1, 4)           \
    X(F16, 1, 1, 2)           \
    X(Q4_0, 2, 32, 18)        \
    X(Q4_1, 3, 32, 20)        \
    X(Q5_0, 6, 32, 22)        \
    X(Q5_1, 7, 32, 24)        \
    X(Q8_0, 8, 32, 34)        \
    X(Q8_1, 9, 32, 40)        \
    X(Q2_K, 10, 256, 84)      \
    X(Q3_K, 11, 256, 110)     \
    X(Q4_K, 12, 256, 144)     \
    X(Q5_K, 13, 256, 176)     \
    X(Q6_K, 14, 256, 210)     \
    X(Q8_K, 15, 256, 292)     \
    X(IQ2_XXS, 16, 256, 66)   \
    X(IQ2_XS, 17, 256, 74)    \
    X(IQ3_XXS, 18, 256, 98)   \
    X(IQ1_S, 19, 256, 50)     \
    X(IQ4_NL, 20, 32, 18)     \
    X(IQ3_S, 21, 256, 110)    \
    X(IQ2_S, 22, 256, 82)     \
    X(IQ4_XS, 23, 256, 136)   \
    X(I8, 24, 1, 1)           \
    X(I16, 25, 1, 2)          \
    X(I32, 26, 1, 4)          \
    X(I64, 27, 1, 8)          \
    X(F64, 28, 1, 8)          \
    X(IQ1_M, 29, 256, 56)     \
    X(BF16, 30, 1, 2)         \
    X(TQ1_0, 34, 256, 54)     \
    X(TQ2_0, 35, 256, 66)     \
    X(MXFP4, 39, 32, 17)      \
    X(NVFP4, 40, 64, 36)      \
    X(Q1_0, 41, 128, 18)

typedef enum mha_gguf_type {
#define MHA_GGUF_TYPE_ENUM(name, value, elements, bytes) MHA_GGUF_##name = value,
    MHA_GGUF_TYPE_LIST(MHA_GGUF_TYPE_ENUM)
#undef MHA_GGUF_TYPE_ENUM
} mha_gguf_type;

/* An open file: a read-only mapping and its validated tables of tensors and metadata. Do not
 * truncate a mapped file: reading it then raises SIGBUS, as with every mapping. */
typedef struct mha_gguf mha_gguf;

/**
 * Open a GGUF file and check its whole header. No tensor's data and no element of an array of
 * numbers is read.
 *
 * A file whose split.count is above 1 is a part of a split model. Its name must end like
 * -00001-of-00003.gguf, with split.no + 1 and split.count, and the other parts must be in the same
 * folder. They are opened as one file with the metadata of the first part and the tensors of all,
 * part after part. Any part may be named.
 *
 * Memory   the caller owns *file and calls mha_gguf_close(). It takes at most twenty times the
 *          header's bytes, not counting arrays of numbers in it.
 * Errors   MHA_ERR_NULL; MHA_ERR_FILE (missing, a directory, a FIFO, unreadable); MHA_ERR_FORMAT
 *          (not a GGUF file, truncated anywhere, a name that occurs twice, is not UTF-8, is
 *          empty or longer than 65,535 bytes, more than 4 dimensions, a dimension of 0, rows that are not
 *          whole blocks, an unknown type of metadata, an alignment that is not a power of two,
 *          offsets that are not aligned, outside the file, or of tensors that overlap);
 *          MHA_ERR_MODEL (a part whose name, split.no, split.count or split.tensors.count does not
 *          fit the others'); MHA_ERR_ARGUMENT, MHA_ERR_DTYPE, MHA_ERR_NUMERIC (a split key that
 *          holds no number, or more than 4096 parts);
 *          MHA_ERR_SIZE (more elements or bytes than 63 bits can count, more than 2^31 - 1 tensors
 *          or keys); MHA_ERR_UNSUPPORTED (another version, big-endian, an unknown element type, an
 *          array of arrays);
 *          MHA_ERR_NOMEM.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_gguf_open(const char *path, mha_gguf **file);

/** Close a file, or do nothing for NULL. Memory everything obtained from it becomes invalid. Errors
 * none. Threads no other thread may be using it. Since 0.1 */
MHA_API void mha_gguf_close(mha_gguf *file);

/* ---- Tensors --------------------------------------------------------------------------------- */

enum { MHA_GGUF_MAX_DIMS = 4 };

/* Memory of all pointers: as long as the file is open. */
typedef struct mha_gguf_tensor {
    const char *name;
    const char *type_name; /* "Q4_1" */
    mha_gguf_type type;
    int32_t ndim; /* 0 .. 4 */
    /* In the file's order: dims[0] is the length of a row, whose elements are adjacent. The shape
     * in row order, as NumPy or mha_tensor would have it, is dims[ndim - 1], ..., dims[0]: a matrix
     * [rows, columns] has dims {columns, rows}. 1 beyond ndim. */
    int64_t dims[MHA_GGUF_MAX_DIMS];
    int64_t count;    /* elements */
    int64_t offset;   /* of the data, from the beginning of its file */
    int64_t bytes;    /* of the data */
    const void *data; /* the blocks, in the mapping; read-only, aligned as offset is */
} mha_gguf_tensor;

/** The number of tensors. Memory none. Errors none. Threads any. Since 0.1 */
MHA_API int64_t mha_gguf_count(const mha_gguf *file);

/** The index of the tensor called name; -1 if there is none. Memory none. Errors none. Threads any.
 * Since 0.1 */
MHA_API int64_t mha_gguf_find(const mha_gguf *file, const char *name);

/**
 * Describe tensor number index, in the order of the file.
 *
 * Memory   views that live as long as file.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (index).
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_gguf_describe(const mha_gguf *file, int64_t index,
                                                   mha_gguf_tensor *tensor);

/**
 * Elements [first, first + count) of tensor index as f32, in the order of memory: rows
 * [r, r + n) are first = r dims[0], count = n dims[0]. Any range is allowed; one that begins and
 * ends at rows or blocks is fastest.
 *
 *   to [count]: may be NULL for none
 *
 * Memory   nothing is allocated.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (index); MHA_ERR_SHAPE (a range outside the tensor);
 *          MHA_ERR_UNSUPPORTED (a type without a formula above; the detail names it). On error
 *          nothing is written.
 * Threads  any, each with its own memory.
 * Accuracy F32, F16 and BF16 are exact; the others have the bits of their formula, as in the Python
 *          package gguf. NaN stays NaN.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_gguf_read(const mha_gguf *file, int64_t index, int64_t first,
                                               int64_t count, float *to);

/* ---- Metadata -------------------------------------------------------------------------------- */

/* All types of values: name, number, bytes (0: variable). */
#define MHA_GGUF_VALUE_LIST(X) \
    X(U8, 0, 1)                \
    X(I8, 1, 1)                \
    X(U16, 2, 2)               \
    X(I16, 3, 2)               \
    X(U32, 4, 4)               \
    X(I32, 5, 4)               \
    X(F32, 6, 4)               \
    X(BOOL, 7, 1)              \
    X(STRING, 8, 0)            \
    X(ARRAY, 9, 0)             \
    X(U64, 10, 8)              \
    X(I64, 11, 8)              \
    X(F64, 12, 8)

typedef enum mha_gguf_value_type {
#define MHA_GGUF_VALUE_ENUM(name, value, bytes) MHA_GGUF_VALUE_##name = value,
    MHA_GGUF_VALUE_LIST(MHA_GGUF_VALUE_ENUM)
#undef MHA_GGUF_VALUE_ENUM
} mha_gguf_value_type;

/* A value: a borrowed view, valid as long as the file is open. */
typedef struct mha_gguf_value {
    const char *key;
    mha_gguf_value_type type; /* of an array: of its elements */
    bool array;
    int64_t count; /* elements; 1 unless it is an array */
    /* The input of the functions below. */
    const mha_gguf *file;
    const unsigned char *data; /* numbers as stored in the file, not aligned */
    const uint64_t *starts;    /* [count + 1] of strings, in the file, each after its u64 length */
} mha_gguf_value;

/** The number of keys. Memory none. Errors none. Threads any. Since 0.1 */
MHA_API int64_t mha_gguf_key_count(const mha_gguf *file);

/** The index of a key; -1 if there is none. Memory none. Errors none. Threads any.
 * Since 0.1 */
MHA_API int64_t mha_gguf_key_find(const mha_gguf *file, const char *key);

/** The value of key number index, in the order of the file. Memory a view that lives as long as
 * file. Errors MHA_ERR_NULL, MHA_ERR_ARGUMENT (index). Threads any. Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_gguf_value_at(const mha_gguf *file, int64_t index,
                                                   mha_gguf_value *value);

/** The value of a required key. Memory a view that lives as long as file. Errors MHA_ERR_NULL;
 * MHA_ERR_MODEL (no such key). Threads any. Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_gguf_value_of(const mha_gguf *file, const char *key,
                                                   mha_gguf_value *value);

/**
 * Element number `element` of a value of any integer type (U8 .. I64), which must be in low ..
 * high. A value that is not an array has one element, number 0. This and the functions below take
 * constant time.
 *
 * Memory   none.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (element); MHA_ERR_DTYPE (not an integer type);
 *          MHA_ERR_NUMERIC (outside low .. high).
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_gguf_integer(const mha_gguf_value *value, int64_t element,
                                                  int64_t low, int64_t high, int64_t *integer);

/**
 * Likewise for a value of any numeric type (also F32 and F64), exactly. Infinities and NaN are
 * returned unchanged.
 *
 * Memory   none.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (element); MHA_ERR_DTYPE (not a numeric type);
 *          MHA_ERR_NUMERIC (an integer beyond 2^53).
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_gguf_real(const mha_gguf_value *value, int64_t element,
                                               double *real);

/** Likewise for a BOOL. Memory none. Errors MHA_ERR_NULL; MHA_ERR_ARGUMENT (element); MHA_ERR_DTYPE
 * (not a BOOL); MHA_ERR_FORMAT (neither 0 nor 1). Threads any. Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_gguf_bool(const mha_gguf_value *value, int64_t element,
                                               bool *boolean);

/**
 * Likewise for a STRING: *size bytes without a terminating zero byte, unchanged; they need not be
 * UTF-8.
 *
 * Memory   a view that lives as long as the file is open.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (element); MHA_ERR_DTYPE (not a STRING).
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_gguf_string(const mha_gguf_value *value, int64_t element,
                                                 const char **text, size_t *size);

#ifdef __cplusplus
}
#endif
#endif
