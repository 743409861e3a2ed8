/* Checked positions of tokens, for rotary embedding and for additive encodings. */
#ifndef MHAI_ATTN_POSITION_H
#define MHAI_ATTN_POSITION_H

#include <multihead/position.h>

typedef struct mhai_attn_places {
    int64_t start;
    const int64_t *starts, *ids; /* at most one is set */
    int64_t stride[2];           /* of ids over b and t; 0 where ids are broadcast */
} mhai_attn_places;

static inline int64_t mhai_attn_position_at(const mhai_attn_places *places, int64_t b, int64_t t)
{
    if (places->ids) return places->ids[b * places->stride[0] + t * places->stride[1]];
    return (places->starts ? places->starts[b] : places->start) + t;
}

/* Check the positions of [B,T] tokens. If rows >= 0, each position must be below it. given NULL:
 * default positions. B and T may be 0. */
MHA_NODISCARD mha_status mhai_attn_position_check(const mha_positions *given, int64_t B, int64_t T,
                                                  int64_t rows, mhai_attn_places *places);

/* Check a call that may work in place. y is an f32 tensor with ndim axes and the shape of x. It
 * must be the same view as x, or share no memory with it. */
MHA_NODISCARD mha_status mhai_attn_position_check_pair(const mha_tensor *x, const mha_tensor *y,
                                                       int ndim);

/* Get the memory of ids, to check that an output does not overlap it. ids
 * may be NULL or unchecked. */
MHA_NODISCARD mha_status mhai_attn_position_check_ids(const mha_positions *given,
                                                      const mha_tensor *y);

#endif
