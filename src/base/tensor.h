/* Checks of tensor views that a public call makes before it accesses memory. */
#ifndef MHAI_TENSOR_H
#define MHAI_TENSOR_H

#include <multihead/base.h>

/* Check dtype, ndim and shape (-1 matches any length; shape NULL matches all), and that all
 * elements are inside the address space. name is the argument's name for messages. */
MHA_NODISCARD mha_status mhai_tensor_check(const char *name, const mha_tensor *tensor,
                                           mha_dtype dtype, int ndim, const int64_t *shape);

/* Check that the tensor is not NULL and has a type that attention reads and
 * writes: f32, f16 or bf16. */
MHA_NODISCARD mha_status mhai_tensor_check_real(const char *name, const mha_tensor *tensor);

/* Check that the last axis has stride 1 or length 1, or that the tensor is empty. */
MHA_NODISCARD mha_status mhai_tensor_check_last(const char *name, const mha_tensor *tensor);

/* Check that no two elements of an output share memory. A few unusual layouts without
 * overlap are also rejected. */
MHA_NODISCARD mha_status mhai_tensor_check_output(const char *name, const mha_tensor *tensor);

/* Check that output shares no memory with other, by address ranges or, if their rows have the same
 * stride, by columns (q, k, v side by side). NULL and empty tensors are disjoint. */
MHA_NODISCARD mha_status mhai_tensor_check_disjoint(const char *name, const mha_tensor *output,
                                                    const char *other_name,
                                                    const mha_tensor *other);

/* Whether both have the same elements in the same order. */
bool mhai_tensor_same(const mha_tensor *a, const mha_tensor *b);

#endif
