/* multihead: read and write safetensors, .npy and whole files.
 *
 * Every field of a file is checked before it is used: a malformed or hostile file gives a status
 * and one line of text that names the file, the tensor and the remedy, never a crash. Files are
 * written atomically; mha_file_create() (sink.h) describes this and the treatment of links, devices
 * and pipes.
 *
 * Memory here comes from the C library; no function needs a context.
 *
 * Example, given float *weights, int64_t count, mha_tensor view:
 *
 *   mha_safetensors *file = NULL;
 *   mha_status status = mha_safetensors_open("model.safetensors", &file);
 *   int64_t index = mha_safetensors_find(file, "embed_tokens.weight");
 *   if (!status) status = mha_safetensors_read(file, index, MHA_F32, count, weights);
 *   if (!status) status = mha_npy_write("embeddings.npy", &view); // of weights
 *   mha_safetensors_close(file);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_IO_H
#define MULTIHEAD_IO_H

#include <multihead/sink.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Whole files ----------------------------------------------------------------------------- */

/**
 * Read a regular file of at most limit bytes. A zero byte follows the contents, not counted in
 * *size; the contents may hold zero bytes themselves.
 *
 * Memory   the caller frees *bytes with mha_file_free().
 * Errors   MHA_ERR_NULL; MHA_ERR_FILE (missing, a directory, a FIFO, unreadable); MHA_ERR_SIZE
 *          (longer than limit); MHA_ERR_NOMEM.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_file_read(const char *path, size_t limit, char **bytes,
                                               size_t *size);

/** Free the bytes of mha_file_read(); NULL: a no-op. Memory frees them. Errors none. Threads any.
 * Since 0.1 */
MHA_API void mha_file_free(char *bytes);

/**
 * Write a file atomically.
 *
 * Memory   none.   Errors  MHA_ERR_NULL; MHA_ERR_WRITE (no such folder, not allowed, disk full);
 *                          an older file of that name is then unchanged.
 * Threads  any.    Since   0.1
 */
MHA_API MHA_NODISCARD mha_status mha_file_write(const char *path, const void *bytes, size_t size);

/* ---- UTF-8 ----------------------------------------------------------------------------------- */

/**
 * Find the complete UTF-8 characters at the start of bytes that arrive in pieces, such as those of
 * tokens (mha_tokenizer_token_bytes()). Returns their length in bytes.
 *
 *   broken   out, may be NULL: the number of following bytes that cannot belong to a character;
 *            decode them as one U+FFFD and continue after them. 0: no bytes are left, or the rest
 *            may still become a character; at the end of the text that rest is also one U+FFFD
 *
 * Surrogates, over-long forms and values above U+10FFFF belong to no character. The longest beginning
 * of a character counts as one U+FFFD, as the Unicode standard recommends (chapter 3, "U+FFFD
 * Substitution of Maximal Subparts"), and as tokenizers of Hugging Face do.
 *
 * Memory   none.   Errors  none.   Threads  any.   Since  0.1
 */
MHA_API size_t mha_utf8_span(const char *bytes, size_t count, size_t *broken);

/** The name among names [count] that a mistyped word probably means: one or two edits away, a prefix
 * of it or the reverse, or its last word after a "-"; NULL if there is none. Memory none. Errors none.
 * Threads any. Since 0.1 */
MHA_API const char *mha_nearest_name(const char *word, const char *const *names, size_t count);

/* ---- safetensors ----------------------------------------------------------------------------- */
/*   8 bytes        n, the header's length, little-endian
 *   n bytes        JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...,
 *                  "__metadata__": {"key": "text", ...}}
 *   the rest       the data; offsets count from here, and tensors cover it without gap or overlap
 */

/* An open file: a read-only mapping and its validated table of tensors. Do not truncate a mapped
 * file: reading it then raises SIGBUS, as with every mapping. */
typedef struct mha_safetensors mha_safetensors;

/**
 * Open a safetensors file and check its whole header. No data is read: only the header takes
 * memory.
 *
 * Memory   the caller owns *file and calls mha_safetensors_close().
 * Errors   MHA_ERR_NULL; MHA_ERR_FILE (missing, a directory, a FIFO, unreadable); MHA_ERR_FORMAT
 *          (header longer than the file or 100 MB, not JSON, not UTF-8, duplicate names, unknown
 *          dtype, bad shape, offsets outside the data, inconsistent with the shape, overlapping, or
 *          leaving a gap); MHA_ERR_SIZE (more elements than 63 bits can count); MHA_ERR_NOMEM.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_safetensors_open(const char *path, mha_safetensors **file);

/** Close a file; NULL: a no-op. Memory every tensor and name obtained from it becomes invalid.
 * Errors none. Threads no other thread may be using it. Since 0.1 */
MHA_API void mha_safetensors_close(mha_safetensors *file);

/** The number of tensors. Memory none. Errors none. Threads any. Since 0.1 */
MHA_API int64_t mha_safetensors_count(const mha_safetensors *file);

/** The name of tensor index, in the order of the header; NULL if index is out of range.
 * Memory lives as long as file. Errors none. Threads any. Since 0.1 */
MHA_API const char *mha_safetensors_name(const mha_safetensors *file, int64_t index);

/** The index of the tensor called name; -1 if there is none. Memory none. Errors none. Threads any.
 * Since 0.1 */
MHA_API int64_t mha_safetensors_find(const mha_safetensors *file, const char *name);

/**
 * Type and shape of tensor index, and a view of its data if that is aligned: the format allows data
 * that is not aligned to its element type, for which tensor->data is NULL. BOOL becomes u8. No data
 * is read.
 *
 * Memory   a view that lives as long as file; read-only: writing through data is a fault.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (index); MHA_ERR_UNSUPPORTED (an element type that
 *          mha_dtype lacks, e.g. I16 or F8_E4M3, or more than MHA_MAX_DIMS dimensions).
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_safetensors_peek(const mha_safetensors *file, int64_t index,
                                                      mha_tensor *tensor);

/**
 * Tensor index as a view, contiguous and aligned. BOOL becomes u8. It is read-only: writing
 * through data is a fault.
 *
 * Memory   a view that lives as long as file. Unaligned data is copied at the first call for
 *          this tensor, and the copy kept until file is closed; mha_safetensors_read() avoids it.
 * Errors   as mha_safetensors_peek(); MHA_ERR_NOMEM.
 * Threads  any, even for the same tensor: all get the same copy.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_safetensors_tensor(const mha_safetensors *file, int64_t index,
                                                        mha_tensor *tensor);

/**
 * Read tensor index into the caller's memory, as elements of dtype in row order: f32, f64, f16 and
 * bf16 are converted as by mha_tensor_convert(), other types must match. Unaligned data is read in
 * place.
 *
 *   to [count]: count is the tensor's number of elements; to is aligned to dtype, or NULL for none
 *
 * Memory   nothing is allocated.
 * Errors   as mha_safetensors_peek(); MHA_ERR_SHAPE (another number of elements); MHA_ERR_DTYPE (no
 *          such conversion); MHA_ERR_STRIDE (to is not aligned). The contents of `to` are then
 *          undefined.
 * Threads  any, each with its own memory.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_safetensors_read(const mha_safetensors *file, int64_t index,
                                                      mha_dtype dtype, int64_t count, void *to);

/** The text of key in __metadata__; NULL if there is none. Memory lives as long as file. Errors
 * none.
 * Threads any. Since 0.1 */
MHA_API const char *mha_safetensors_metadata(const mha_safetensors *file, const char *key);

/**
 * Write a safetensors file atomically. Tensors are stored by decreasing element size, otherwise in
 * the order given, so that each is aligned. Elements are in row order.
 *
 *   names [count], tensors [count]: any strides, any dtype (u8 is written as U8)
 *   metadata: pairs key, text, key, text, ..., NULL; or NULL for none
 *
 * Memory   borrowed for the call.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (a duplicate or empty name, "__metadata__"; a duplicate
 *          key; count negative); MHA_ERR_UTF8; MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_SIZE (a
 *          tensor); MHA_ERR_WRITE (an older file of that name is then unchanged); MHA_ERR_NOMEM.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_safetensors_write(const char *path, const char *const *names,
                                                       const mha_tensor *tensors, int64_t count,
                                                       const char *const *metadata);

/** mha_safetensors_write() into a sink. Memory borrowed for the call. Errors as
 * mha_safetensors_write(), and the sink's. Threads one per sink. Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_safetensors_write_to(const mha_sink *sink,
                                                          const char *const *names,
                                                          const mha_tensor *tensors, int64_t count,
                                                          const char *const *metadata);

/* ---- NumPy's .npy, versions 1 to 3 ----------------------------------------------------------- */

/* An array that was read: it owns its memory. */
typedef struct mha_npy mha_npy;

/**
 * Read an array. Little-endian f2, f4, f8, i1, i4, i8, u1 and bool (as u8) are supported, in C or
 * Fortran order; the array in memory is contiguous in C order either way. numpy.save() writes such
 * files; arrays of Python objects are rejected.
 *
 * Memory   the caller owns *array and calls mha_npy_destroy().
 * Errors   MHA_ERR_NULL; MHA_ERR_FILE (missing, a directory, a FIFO, unreadable); MHA_ERR_FORMAT
 *          (not .npy, header malformed, data shorter or longer than the shape requires);
 *          MHA_ERR_UNSUPPORTED (element type, byte order, version, more than MHA_MAX_DIMS
 *          dimensions); MHA_ERR_SIZE, MHA_ERR_NOMEM.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_npy_read(const char *path, mha_npy **array);

/**
 * Type and shape of an array, from its file's header: makes the checks of mha_npy_read(), but
 * reads no element and allocates nothing.
 *
 *   tensor: as mha_npy_tensor() would give it, with data NULL
 *
 * Memory   none.   Errors  as mha_npy_read(); MHA_ERR_NOMEM only where the file cannot be mapped.
 * Threads  any.    Since   0.1
 */
MHA_API MHA_NODISCARD mha_status mha_npy_peek(const char *path, mha_tensor *tensor);

/** The array as a writable view. Memory lives as long as array. Errors none. Threads any.
 * Since 0.1 */
MHA_API mha_tensor mha_npy_tensor(const mha_npy *array);

/** Free an array; NULL: a no-op. Memory frees all. Errors none. Threads no other thread may be
 * using it. Since 0.1 */
MHA_API void mha_npy_destroy(mha_npy *array);

/**
 * Write an array atomically; version 1, C order.
 *
 *   tensor: any strides; f16, f32, f64, i8, i32, i64, u8 (as u1)
 *
 * Memory   borrowed for the call.
 * Errors   MHA_ERR_NULL; MHA_ERR_SHAPE, MHA_ERR_SIZE; MHA_ERR_UNSUPPORTED (bf16, which NumPy
 *          lacks); MHA_ERR_WRITE (an older file of that name is then unchanged); MHA_ERR_NOMEM.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_npy_write(const char *path, const mha_tensor *tensor);

/** mha_npy_write() into a sink. Memory borrowed for the call. Errors as mha_npy_write(), and the
 * sink's. Threads one per sink. Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_npy_write_to(const mha_sink *sink, const mha_tensor *tensor);

#ifdef __cplusplus
}
#endif
#endif
