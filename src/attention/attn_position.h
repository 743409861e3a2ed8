/* Positions of tokens, checked: shared by rotary embedding and encodings that are added. */
#ifndef MHAI_ATTN_POSITION_H
#define MHAI_ATTN_POSITION_H

#include <multihead/position.h>

typedef struct mhai_attn_places {
    int64_t start;
    const int64_t *starts, *ids; /* at most one is set */
    int64_t stride[2];           /* of ids over b, t; 0 where they broadcast */
} mhai_attn_places;

static inline int64_t mhai_attn_position_at(const mhai_attn_places *places, int64_t b, int64_t t)
{
    if (places->ids) return places->ids[b * places->stride[0] + t * places->stride[1]];
    return (places->starts ? places->starts[b] : places->start) + t;
}

/* Check the positions of [B,T] tokens; with rows >= 0 each must be in 0 .. rows-1. given NULL:
 * all defaults. B and T may be 0. */
MHA_NODISCARD mha_status mhai_attn_position_check(const mha_positions *given, int64_t B, int64_t T,
                                                  int64_t rows, mhai_attn_places *places);

/* Check a call that may work in place: y, an f32 tensor of ndim axes, has the shape of x, and
 * either is the same view or shares no memory with it. */
MHA_NODISCARD mha_status mhai_attn_position_check_pair(const mha_tensor *x, const mha_tensor *y,
                                                       int ndim);

/* Get the memory of ids, which an output must not overlap. Accepts NULL and unchecked ids. */
MHA_NODISCARD mha_status mhai_attn_position_check_ids(const mha_positions *given,
                                                      const mha_tensor *y);

#endif
