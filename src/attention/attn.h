/* Inside the attention layer: a problem, checked and with every default filled in. */
#ifndef MHAI_ATTN_H
#define MHAI_ATTN_H

#include "kernels/kernels.h"

#include <multihead/attention.h>

/* An input that broadcasts to [B,H,T,S]: data NULL means absent. */
typedef struct mhai_attn_broadcast {
    const void *data;
    int64_t stride[4];
} mhai_attn_broadcast;

typedef struct mhai_attn_problem {
    int64_t B, H, Hk, T, S, D, Dv;
    int64_t group; /* H / Hk, query heads per key/value head */
    mha_tensor q, k, v, o;
    mha_tensor lse, probabilities; /* data NULL: not wanted */
    float scale;
    bool causal, strict;
    int64_t q_offset;
    const int64_t *q_offsets, *key_lengths;
    mhai_attn_broadcast keep, bias;
    mha_path path; /* tiled or plain */
    const char *reason;
} mhai_attn_problem;

/* Check a call's arguments and fill in the problem. need_data false: tensors' data may be NULL. */
MHA_NODISCARD mha_status mhai_attn_check(const mha_attention_desc *desc, const mha_tensor *q,
                                         const mha_tensor *k, const mha_tensor *v,
                                         const mha_tensor *o, const mha_attention_outputs *outputs,
                                         bool need_data, mhai_attn_problem *problem);

/* The keys 0 .. end-1 that causal and key_lengths let query t of sequence b see. */
int64_t mhai_attn_row_end(const mhai_attn_problem *problem, int64_t b, int64_t t);

/* How the tiled path divides a problem. A chunk is a run of query rows of one key/value head; the
 * rows of its query heads follow each other: row r is query r % T of head r / T of the group. */
typedef struct mhai_attn_tiling {
    int64_t rows;       /* per key/value head: group * T */
    int64_t chunk_rows; /* rows of a chunk, the last may have fewer */
    int64_t chunks;     /* per key/value head */
    int64_t items;      /* B * Hk * chunks */
    size_t worker_bytes;
} mhai_attn_tiling;

MHA_NODISCARD mha_status mhai_attn_tile(const mhai_attn_problem *problem, int threads,
                                        int tile_rows, mhai_attn_tiling *tiling);

MHA_NODISCARD mha_status mhai_attn_tiled(mha_context *context, const mhai_attn_problem *problem);
MHA_NODISCARD mha_status mhai_attn_plain(mha_context *context, const mhai_attn_problem *problem);

/* Scratch of the plain path for each worker. */
MHA_NODISCARD mha_status mhai_attn_plain_bytes(const mhai_attn_problem *problem, size_t *bytes);

/* Pointer to row [b, h, t] of a four-dimensional f32 tensor. */
static inline float *mhai_attn_row(const mha_tensor *x, int64_t b, int64_t h, int64_t t)
{
    return (float *)x->data + b * x->stride[0] + h * x->stride[1] + t * x->stride[2];
}

/* Offset of [b, h, t, 0] in a broadcast input. */
static inline int64_t mhai_attn_offset(const mhai_attn_broadcast *x, int64_t b, int64_t h,
                                       int64_t t)
{
    return b * x->stride[0] + h * x->stride[1] + t * x->stride[2];
}

#endif
