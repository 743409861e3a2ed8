/* What the presets share: checks with the peer's names, masks prepared for attention, and calls
 * that cannot fail once something has been written. */
#ifndef MHAI_PRESET_H
#define MHAI_PRESET_H

#include <multihead/attention.h>

/* A tensor of numbers that attention takes: f32, f16 or bf16, or exactly `type` if that is not
 * negative; every element in memory that is there; last axis contiguous. */
MHA_NODISCARD mha_status mhai_preset_check_input(const char *name, const mha_tensor *x, int type);

/* An output of that type and shape: likewise, and no two elements share memory. */
MHA_NODISCARD mha_status mhai_preset_check_output(const char *name, const mha_tensor *x,
                                                  mha_dtype type, int ndim, const int64_t *shape);

/* Is this a type that a mask may have beside inputs of the given type? */
MHA_NODISCARD mha_status mhai_preset_check_mask(const char *name, const mha_tensor *mask,
                                                mha_dtype type);

/* A mask as the descriptor takes it: at most one of the two, `view` or the caller's own tensor. */
typedef struct mhai_preset_mask {
    const mha_tensor *keep, *bias;
    mha_tensor view;
    bool moved; /* low values were moved: mhai_preset_restore() */
} mhai_preset_mask;

/* keep is true where the mask is not 0 (u8), or the mask is added (float). The last axis is
 * extended to `width` by what masks; width < 0: left as it is. Copies into scratch only where it
 * must; the copy is contiguous and holds a broadcast axis once. mask NULL gives neither. Not to be
 * moved. */
MHA_NODISCARD mha_status mhai_preset_mask_make(mha_context *context, const mha_tensor *mask,
                                               int64_t width, mhai_preset_mask *made);

/* The float mask's finite values below -1e38 are moved to where scores stay finite, in order. */
float mhai_preset_move(float x);
float mhai_preset_restore(float x);

/* Has it no elements? */
bool mhai_preset_is_empty(const mha_tensor *x);

/* Element of an f32, f16 or bf16 tensor at an offset. */
float mhai_preset_load(const mha_tensor *x, int64_t offset);

/* The next index of the first `axes` axes, the last one fastest; false after the last. */
bool mhai_preset_next(const mha_tensor *x, int axes, int64_t *index);
int64_t mhai_preset_offset(const mha_tensor *x, int axes, const int64_t *index);

/* Check the arguments of mha_attention_forward() and see to its scratch, so that the call itself,
 * made any number of times before the caller's mark is released, cannot fail. */
MHA_NODISCARD mha_status mhai_preset_prepare(mha_context *context, const mha_attention_desc *desc,
                                             const mha_tensor *q, const mha_tensor *k,
                                             const mha_tensor *v, const mha_tensor *o,
                                             const mha_attention_outputs *outputs);

#endif
