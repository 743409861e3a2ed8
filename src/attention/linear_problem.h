/* A checked call of linear attention, forward or backward. */
#ifndef MHAI_LINEAR_PROBLEM_H
#define MHAI_LINEAR_PROBLEM_H

#include "attention/attn.h"

#include <multihead/linear_attention.h>

typedef struct mhai_linear_problem {
    mhai_attn_problem a; /* shapes, lengths, visibility; the softmax fields are unused */
    int64_t F;
    mha_feature_map_fn map;
    void *map_user;
    mha_tensor s_before, z_before, s_after, z_after; /* ndim 0: absent */
} mhai_linear_problem;

MHA_NODISCARD mha_status mhai_linear_check(const mha_linear_attention_desc *desc,
                                           const mha_tensor *q, const mha_tensor *k,
                                           const mha_tensor *v, const mha_tensor *o,
                                           const mha_linear_attention_outputs *outputs,
                                           mhai_linear_problem *problem);

#endif
