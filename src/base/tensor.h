/* Checks of tensor views that a public call makes before it touches memory. */
#ifndef MHAI_TENSOR_H
#define MHAI_TENSOR_H

#include <multihead/base.h>

/* Check dtype, ndim and shape (an entry of -1 matches any; shape NULL matches all), and that every
 * element lies inside the address space. name is the argument's name, for the error text. */
MHA_NODISCARD mha_status mhai_tensor_check(const char *name, const mha_tensor *tensor,
                                           mha_dtype dtype, int ndim, const int64_t *shape);

/* The tensor is not NULL and is f32, f16 or bf16, the types that attention reads and writes. */
MHA_NODISCARD mha_status mhai_tensor_check_real(const char *name, const mha_tensor *tensor);

/* The last axis has stride 1, or the tensor is empty or the axis has one element. */
MHA_NODISCARD mha_status mhai_tensor_check_last(const char *name, const mha_tensor *tensor);

/* No two elements of an output share memory. Also rejects a few unusual layouts whose elements do
 * not overlap. */
MHA_NODISCARD mha_status mhai_tensor_check_output(const char *name, const mha_tensor *tensor);

/* output shares no byte with other: compares their address ranges, or their columns if both have
 * rows of the same stride (q, k, v side by side). NULL and empty tensors are disjoint. */
MHA_NODISCARD mha_status mhai_tensor_check_disjoint(const char *name, const mha_tensor *output,
                                                    const char *other_name,
                                                    const mha_tensor *other);

/* True if both have the same elements in the same order. */
bool mhai_tensor_same(const mha_tensor *a, const mha_tensor *b);

/* The address range of a tensor's elements; false if it has none, or an impossible ndim. */
bool mhai_tensor_bytes(const mha_tensor *tensor, uintptr_t *begin, uintptr_t *end);

/* The same view with two axes exchanged. */
mha_tensor mhai_tensor_swap(const mha_tensor *tensor, int a, int b);

#endif
