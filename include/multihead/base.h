/* multihead: version, status codes, tensor views, contexts.
 *
 * Everything else in the library is built on this header. General conventions:
 *
 *   - A function that can fail returns mha_status; outputs come last and are untouched on failure,
 *     unless a function says otherwise. mha_error_detail() then holds one line of text.
 *   - Tensors are borrowed views. The library never frees, keeps or reallocates a caller's memory.
 *   - Structs that may grow begin with struct_size, which the caller sets to their sizeof (MHA_INIT
 *     does); zero means "default" in every field. A size is at least that of the struct's first
 *     version, at most 4096 and a multiple of 8, so that it ends between two fields (else
 *     MHA_ERR_ARGUMENT); a field that the library does not know must be zero (else
 *     MHA_ERR_UNSUPPORTED).
 *   - Counts, lengths and strides are int64_t; strides are in elements.
 *   - No function prints, exits, aborts or changes process-wide state.
 *   - In the comments of functions, "Errors" lists statuses with their causes. "Threads any" allows
 *     calls from any number of threads at once; "one" allows one call at a time on an object and its
 *     context, "one call per context" one call at a time on a context.
 *
 * Example, given float *q, const int64_t shape[4]:
 *
 *   mha_context *context = NULL;
 *   mha_status status = mha_context_create(NULL, &context);
 *   int64_t count = 0;
 *   mha_tensor tensor = mha_tensor_contiguous(q, MHA_F32, 4, shape);
 *   if (!status) status = mha_tensor_count(&tensor, &count);
 *   if (status) fprintf(stderr, "%s: %s\n", mha_status_text(status), mha_error_detail());
 *   mha_context_destroy(context);
 *
 * Stability: stable from 1.0 (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_BASE_H
#define MULTIHEAD_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
#include <string.h>
#endif

#if defined(_WIN32)
#define MHA_API
#elif defined(__GNUC__)
#define MHA_API __attribute__((visibility("default")))
#else
#define MHA_API
#endif

#if defined(__GNUC__)
#define MHA_NODISCARD __attribute__((warn_unused_result))
#define MHA_PRINTF(string, first) __attribute__((format(printf, string, first)))
#else
#define MHA_NODISCARD
#define MHA_PRINTF(string, first)
#endif

/* Initialise a struct that begins with struct_size, in C and in C++, without a warning:
 *
 *   mha_attention_desc desc = MHA_INIT(mha_attention_desc);
 *   desc.flags = MHA_ATTENTION_CAUSAL;
 *
 * All other bytes are zero. In C it is an initialiser; mha_attention_desc desc = {.struct_size =
 * sizeof desc, .flags = MHA_ATTENTION_CAUSAL}; is the same. In C++ it is a value. */
#ifdef __cplusplus
template <class Struct> inline Struct mha_init()
{
    Struct made;
    memset(&made, 0, sizeof made); /* padding too */
    made.struct_size = static_cast<uint32_t>(sizeof(Struct));
    return made;
}
#define MHA_INIT(type) mha_init<type>()
#else
#define MHA_INIT(type)              \
    {                               \
        .struct_size = sizeof(type) \
    }
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Version --------------------------------------------------------------------------------- */

/**
 * The version of the library at run time, e.g. "0.1.0". MHA_VERSION_MAJOR, _MINOR and _PATCH of
 * multihead.h are those of the header that a program was compiled with.
 *
 * Memory   static text.   Errors   none.   Threads  any.   Since  0.1
 */
MHA_API const char *mha_version(void);

/** The version as a number to compare: 10000 major + 100 minor + patch. Memory none. Errors none.
 * Threads any. Since 0.1 */
MHA_API int mha_version_number(void);

/* ---- Status ---------------------------------------------------------------------------------- */

/* All status codes: name, value, text. Values never change; gaps are for growth:
 * 1-9 arguments, 10-19 shapes and types, 20-29 files and formats, 30-39 numbers, 40-49 resources,
 * 50-59 unsupported, 60-69 a caller's callback or another process failed. */
#define MHA_STATUS_LIST(X)                                                     \
    X(MHA_OK, 0, "success")                                                    \
    X(MHA_ERR_NULL, 1, "a required pointer is NULL")                           \
    X(MHA_ERR_ARGUMENT, 2, "an argument has an invalid value")                 \
    X(MHA_ERR_OVERLAP, 3, "an output overlaps an input or another output")     \
    X(MHA_ERR_SHAPE, 10, "shapes do not fit together")                         \
    X(MHA_ERR_DTYPE, 11, "an element type is not the expected one")            \
    X(MHA_ERR_STRIDE, 12, "a stride is not usable here")                       \
    X(MHA_ERR_FILE, 20, "a file cannot be opened or read")                     \
    X(MHA_ERR_FORMAT, 21, "a file's content is malformed")                     \
    X(MHA_ERR_WRITE, 22, "a file cannot be written")                           \
    X(MHA_ERR_UTF8, 23, "text is not valid UTF-8")                             \
    X(MHA_ERR_MODEL, 24, "a model folder is incomplete or contradicts itself") \
    X(MHA_ERR_NUMERIC, 30, "a number is not finite or out of range")           \
    X(MHA_ERR_NOMEM, 40, "out of memory")                                      \
    X(MHA_ERR_SIZE, 41, "a size overflows or exceeds a limit")                 \
    X(MHA_ERR_UNSUPPORTED, 50, "not supported")                                \
    X(MHA_ERR_CALLBACK, 60, "a callback reported failure")                     \
    X(MHA_ERR_RANK, 61, "another process failed or cannot be reached")

typedef enum mha_status {
#define MHA_STATUS_ENUM(name, value, text) name = value,
    MHA_STATUS_LIST(MHA_STATUS_ENUM)
#undef MHA_STATUS_ENUM
} mha_status;

/**
 * The fixed text of a status code, e.g. "shapes do not fit together". Never NULL.
 *
 * Memory   static text.   Errors   none; an unknown code gives "unknown status".
 * Threads  any.           Since    0.1
 */
MHA_API const char *mha_status_text(mha_status status);

/**
 * The detail of the last failed call of this thread, one line: "k: dim 3 is 63, expected 64". Empty
 * if nothing has failed yet. A successful call does not change it.
 *
 * Memory   thread-local storage, valid until the next failing call of this thread. Never allocated.
 * Errors   none.   Threads  any; each sees its own.   Since  0.1
 */
MHA_API const char *mha_error_detail(void);

/* ---- Tensor views ---------------------------------------------------------------------------- */

typedef enum mha_dtype {
    MHA_F32 = 0,
    MHA_F64 = 1,
    MHA_F16 = 2,
    MHA_BF16 = 3,
    MHA_I8 = 4,
    MHA_U8 = 5, /* also masks: 0 is false, everything else true */
    MHA_I32 = 6,
    MHA_I64 = 7
} mha_dtype;

/** Bytes of one element; 0 for an unknown dtype. Memory none. Errors none. Threads any. Since 0.1
 */
MHA_API size_t mha_dtype_size(mha_dtype dtype);

/** "f32", "f64", ...; "?" for an unknown one. Memory static. Errors none. Threads any. Since 0.1 */
MHA_API const char *mha_dtype_name(mha_dtype dtype);

enum { MHA_MAX_DIMS = 6 };

/* A borrowed, strided view. Element [i0, i1, ...] lies at data + sum(i_k * stride[k]) elements.
 * Layouts are strides: the library's logical order for attention is [B, H, T, D], whatever the
 * memory order. A stride of 0 broadcasts and is allowed for inputs only. data may be NULL if the
 * tensor has no elements. Elements lie within 2^58 elements of data, else MHA_ERR_SIZE; strides
 * without effect, of an axis of length 1 or of an empty tensor, are not used, but the same limit
 * applies. */
typedef struct mha_tensor {
    void *data;
    mha_dtype dtype;
    int32_t ndim; /* 0 .. MHA_MAX_DIMS */
    int64_t shape[MHA_MAX_DIMS];
    int64_t stride[MHA_MAX_DIMS]; /* in elements */
} mha_tensor;

/**
 * A view of contiguous memory, last axis fastest.
 *
 *   ndim 0 .. MHA_MAX_DIMS; any other ndim gives a tensor of ndim -1, which every call rejects.
 *
 * Memory   borrows data.   Errors   none here; the call that uses the view checks it.
 * Threads  any.            Since    0.1
 */
MHA_API mha_tensor mha_tensor_contiguous(void *data, mha_dtype dtype, int ndim,
                                         const int64_t *shape);

/* MHA_CODED_ROWS rows of up to MHA_CODED_COLUMNS numbers, in 8 bits each: element i of row r is
 *
 *   number[i / 4][r][i % 4] * scale[i / run][r] + offset[i / run][r]
 *
 * where the product is exact: it is a multiple of 2^-149 with at most 24 significant bits. An
 * offset of -0 changes nothing. */
enum { MHA_CODED_ROWS = 32, MHA_CODED_COLUMNS = 256 };
typedef struct mha_coded {
    int8_t number[MHA_CODED_COLUMNS / 4][MHA_CODED_ROWS][4];
    float scale[MHA_CODED_COLUMNS / 16][MHA_CODED_ROWS];
    float offset[MHA_CODED_COLUMNS / 16][MHA_CODED_ROWS];
    int32_t run;         /* 16 or 32 */
    int32_t has_offsets; /* 0: all offsets are -0 */
} mha_coded;

/**
 * The view [B, H, T, D] of f32 memory laid out as [B, T, H, D], which is how projections write
 * [B, T, H * D]. Memory borrows data. Errors none. Threads any. Since 0.1
 */
MHA_API mha_tensor mha_tensor_bthd(float *data, int64_t batch, int64_t length, int64_t heads,
                                   int64_t head_dim);

/** mha_tensor_bthd() of memory of any type. Memory borrows data. Errors none. Threads any. Since 0.1 */
MHA_API mha_tensor mha_tensor_bthd_of(void *data, mha_dtype dtype, int64_t batch, int64_t length,
                                      int64_t heads, int64_t head_dim);

/**
 * The view [B, T, E] of f32 memory laid out as [T, B, E], PyTorch's order without batch_first.
 * Memory borrows data. Errors none. Threads any. Since 0.1
 */
MHA_API mha_tensor mha_tensor_tbe(float *data, int64_t length, int64_t batch, int64_t width);

/**
 * Number of elements, checked.
 *
 * Memory   none.   Errors  MHA_ERR_NULL; MHA_ERR_SHAPE (ndim or a dimension is negative);
 *                          MHA_ERR_SIZE (the product overflows int64_t).
 * Threads  any.    Since   0.1
 */
MHA_API MHA_NODISCARD mha_status mha_tensor_count(const mha_tensor *tensor, int64_t *count);

/**
 * Copy a tensor of f32, f64, f16 or bf16 into one of the same shape and any of these types.
 *
 *   in, out   the same shape, any strides
 *
 * Widening is exact. Narrowing rounds once to the nearest, ties to even; subnormals are kept,
 * values too large become infinite (from 65520 on in f16), a NaN stays NaN.
 *
 * Memory   borrows both, which must not overlap. Nothing is allocated.
 * Errors   MHA_ERR_NULL, MHA_ERR_DTYPE, MHA_ERR_SHAPE, MHA_ERR_STRIDE (elements of out share
 *          memory), MHA_ERR_OVERLAP, MHA_ERR_SIZE. On error no byte of out is written.
 * Threads  any; runs in the calling one.
 * Accuracy half an ulp of out's type: of the value, 2^-11 in f16, 2^-8 in bf16, 2^-24 in f32; where
 *          it is subnormal in that type, 2^-25 (f16, below 2^-14), 2^-134 (bf16), 2^-150 (f32).
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_tensor_convert(const mha_tensor *in, const mha_tensor *out);

/* ---- Context: threads, scratch memory, instruction set, allocator ---------------------------- */

/* Instruction sets, best last. MHA_ISA_AUTO selects the best one available. amx is avx512 with tiles
 * for int8 linear layers, with the same bits everywhere. Linux grants tiles to a process on request:
 * the first call that asks for amx, or for the best one, makes it, and from then on signal stacks
 * (sigaltstack) need about 11 KiB. MHA_ISA=avx512 prevents the request. */
#define MHA_ISA_LIST(X)                \
    X(MHA_ISA_AUTO, 0, "auto")         \
    X(MHA_ISA_PORTABLE, 1, "portable") \
    X(MHA_ISA_NEON, 2, "neon")         \
    X(MHA_ISA_AVX2, 3, "avx2")         \
    X(MHA_ISA_AVX512, 4, "avx512")     \
    X(MHA_ISA_AMX, 5, "amx")

typedef enum mha_isa {
#define MHA_ISA_ENUM(name, value, text) name = value,
    MHA_ISA_LIST(MHA_ISA_ENUM)
#undef MHA_ISA_ENUM
} mha_isa;

/* The arithmetic of products. Anything but f32 is used only on request. attention.h defines bf16
 * attention; transformer.h defines int8 linear layers, nn.h those in bf16 and tiles. */
typedef enum mha_compute {
    MHA_COMPUTE_F32 = 0,
    MHA_COMPUTE_INT8 = 1,
    MHA_COMPUTE_BF16 = 2,
    MHA_COMPUTE_TILES = 3 /* bf16 with the sums of AMX's tiles; linear layers only */
} mha_compute;

/** "f32", "int8", "bf16", "tiles"; "?" for an unknown one. Memory static. Errors none. Threads any.
 * Since 0.1 */
MHA_API const char *mha_compute_name(mha_compute compute);

/** "avx512", "avx2", ...; "?" if unknown. Memory static. Errors none. Threads any. Since 0.1 */
MHA_API const char *mha_isa_name(mha_isa isa);

/** True if this build has kernels for isa and this machine can run them. MHA_ISA_AUTO is always
 * true. Memory none. Errors none. Threads any. Since 0.1 */
MHA_API bool mha_isa_available(mha_isa isa);

/* An allocator. alloc returns `bytes` bytes aligned to alignment (a power of two), or NULL; release
 * receives what alloc returned, with the same byte count. */
typedef struct mha_allocator {
    void *(*alloc)(void *user, size_t bytes, size_t alignment);
    void (*release)(void *user, void *memory, size_t bytes);
    void *user;
} mha_allocator;

/* A loop body: called for item = 0 .. items-1, in any order, from any thread. */
typedef void (*mha_parallel_body)(void *argument, int64_t item, int worker);

/* The host's parallel-for: it must run body(argument, i, w) exactly once for each i < items, with w
 * < num_threads of the context and no two bodies at the same time with the same w, and return when
 * all have finished. */
typedef void (*mha_parallel_for_fn)(void *user, int64_t items, mha_parallel_body body,
                                    void *argument);

typedef struct mha_context_desc {
    uint32_t struct_size;
    int32_t num_threads;     /* 0: as many as the process may run on (its affinity mask) */
    mha_isa isa;             /* 0: the best available; the environment's MHA_ISA restricts it */
    mha_allocator allocator; /* alloc NULL: the C library's */
    mha_parallel_for_fn parallel_for; /* NULL: the context's own pool */
    void *parallel_for_user;
} mha_context_desc;

/* Maximum stack of a library call on the calling thread, in bytes, callbacks excluded. Builds
 * without optimisation or with a sanitizer need more. */
enum { MHA_STACK_BYTES = 64 << 10 };

typedef struct mha_context mha_context;

/**
 * Create a context. desc NULL means all defaults.
 *
 * The environment variable MHA_ISA=portable|neon|avx2|avx512|amx limits the instruction set that a
 * context chooses by default; MHA_THREADS=n is the default of num_threads. desc takes precedence.
 * MHA_L2_KIB=n replaces the size of a core's L2 cache, which determines how work is divided; bits
 * do not depend on it.
 * A pool works with fewer threads if some cannot be created; the results are bit-identical.
 *
 * On Linux a pool of up to 16 threads, if there are as many CPUs, wakes them on CPUs other than the
 * caller's: it narrows their affinity, within what the host allows, until they are awake. The
 * caller's affinity is never changed.
 *
 * Memory   the caller owns *context and calls mha_context_destroy().
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (struct_size, thread count, an allocator with one
 *          function only, malformed MHA_ISA, MHA_THREADS or MHA_L2_KIB), MHA_ERR_UNSUPPORTED (isa
 *          not available here), MHA_ERR_NOMEM.
 * Threads  a context serves one host thread at a time; different contexts are independent. After a
 *          fork the child may use and destroy the context, which starts new pool threads there.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_context_create(const mha_context_desc *desc,
                                                    mha_context **context);

/** Destroy a context, or do nothing for NULL. Memory frees all of it. Errors none. Threads no call
 * on the context may be running. Since 0.1 */
MHA_API void mha_context_destroy(mha_context *context);

/** The instruction set in use, never MHA_ISA_AUTO. Memory none. Errors none. Threads any.
 * Since 0.1 */
MHA_API mha_isa mha_context_isa(const mha_context *context);

/** The number of threads in use, at least 1. Memory none. Errors none. Threads any. Since 0.1 */
MHA_API int mha_context_threads(const mha_context *context);

/** The size of a core's L2 cache in bytes, which determines how work is divided. Memory none.
 * Errors none. Threads any. Since 0.1 */
MHA_API int64_t mha_context_l2(const mha_context *context);

/** The allocator in use, with both functions set. Memory none. Errors none. Threads any.
 * Since 0.1 */
MHA_API mha_allocator mha_context_allocator(const mha_context *context);

/**
 * Reserve bytes of scratch, so that no later call that needs at most that much allocates.
 * mha_attention_explain() reports how much a call needs.
 *
 * Memory   kept by the context until it is destroyed.
 * Errors   MHA_ERR_NULL, MHA_ERR_NOMEM; MHA_ERR_ARGUMENT (mha_scratch_alloc() memory is in use).
 * Threads  as mha_context_create().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_context_reserve(mha_context *context, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
