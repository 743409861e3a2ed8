/* A checked call of a recurrent layer, and its states. */
#ifndef MHAI_RECURRENT_H
#define MHAI_RECURRENT_H

#include "kernels/kernels.h"

#include <multihead/recurrent.h>

enum { MHAI_STRIP = 16 };

/* The state of a head. Its chunk is divided into strips. Keys of finished strips are decayed up
 * to the end of the last finished strip. Keys of the current strip are not decayed. */
typedef struct mhai_recurrent_head {
    float *s;      /* [panels][D][32], before the chunk */
    float *u;      /* [panels][CHUNK][32] of the chunk */
    float *keys;   /* [CHUNK][D] */
    float *before; /* panels of the finished strips' keys: [2][D][32] */
    float
        *own; /* panel of the current strip's keys, [D][32]; decays per channel already included */
    double *chunk, *strip; /* [D] decay since the chunk and the strip began; per head: [0] */
    double *weight;        /* [STRIP] per head: decay since each row of the strip */
} mhai_recurrent_head;

typedef struct mhai_recurrent_sizes {
    int64_t D, Dv, panels;
    size_t head_bytes;
} mhai_recurrent_sizes;

MHA_NODISCARD mha_status mhai_recurrent_size(int64_t D, int64_t Dv, mhai_recurrent_sizes *sizes);

/* The parts of a head's memory. */
mhai_recurrent_head mhai_recurrent_parts(const mhai_recurrent_sizes *sizes, void *memory);

/* Set a head whose memory is 0 to the beginning of a chunk. */
void mhai_recurrent_begin(const mhai_recurrent_sizes *sizes, void *memory);

struct mha_recurrent_state {
    mha_allocator allocator;
    mhai_recurrent_sizes sizes;
    int64_t B, H;
    int64_t *lengths;  /* [B] */
    uint8_t *channels; /* [B] the unfinished chunk has decays per channel */
    unsigned char *memory;
};

/* A call's checked arguments; strides are 0 where an axis is broadcast. */
typedef struct mhai_recurrent {
    int64_t B, H, T;
    mhai_recurrent_sizes sizes;
    mha_tensor q, k, v, o, decay, strength, skip; /* ndim 0: absent */
    const int64_t *lengths;                       /* NULL: T */
    float scale;
    bool delta, channels;
} mhai_recurrent;

/* v and o may be NULL; `heads` is then their number of heads. o is not checked as an output. */
MHA_NODISCARD mha_status mhai_recurrent_check(const mha_recurrent_desc *desc, const mha_tensor *q,
                                              const mha_tensor *k, const mha_tensor *v,
                                              const mha_tensor *o, int64_t heads,
                                              mhai_recurrent *call);

/* Check that an output overlaps neither itself nor an input. */
MHA_NODISCARD mha_status mhai_recurrent_check_output(const char *name, const mha_tensor *output,
                                                     const mhai_recurrent *call);

static inline int64_t mhai_recurrent_length(const mhai_recurrent *call, int64_t b)
{
    return call->lengths ? call->lengths[b] : call->T;
}

/* gemm_strip for any number of rows and inputs. A chain of additions has at most `block` inputs. */
void mhai_recurrent_product(const mhai_kernels *kernels, int64_t rows, int64_t block, mhai_gemm g);

/* The row of x for head h. The H heads of the call share the heads of x. */
static inline void *mhai_recurrent_row(const mhai_recurrent *call, const mha_tensor *x, int64_t b,
                                       int64_t h, int64_t t)
{
    const int64_t head = h / (call->H / x->shape[1]);
    return (char *)x->data + (b * x->stride[0] + head * x->stride[1] + t * x->stride[2]) *
                                 (int64_t)mha_dtype_size(x->dtype);
}

/* An element of a tensor that broadcasts to [B,H,T]; `absent` if there is no tensor. */
static inline double mhai_recurrent_number(const mha_tensor *x, int64_t b, int64_t h, int64_t t,
                                           double absent)
{
    if (x->ndim == 0) return absent;
    return (double)((const float *)x->data)[b * x->stride[0] + h * x->stride[1] + t * x->stride[2]];
}

/* The decays of a token: one, or D with channels. */
void mhai_recurrent_decays(const mhai_recurrent *call, int64_t b, int64_t h, int64_t t,
                           double *decays);

/* ---- blocks ---------------------------------------------------------------------------------- */

/* MHAI_BLOCK tokens of a head, the unit of the backward pass and of the map. Rows beyond the
 * sequence are 0. With S the state before the block and the decays of rows counted from the block's
 * beginning:
 *
 *   W = V - in_k S - pairs_k U       U = diag(strength) W       o = in_q S + pairs_q U
 *   S' = diag(end) S + out^T U
 *
 * Without the delta rule W = V. In x, in and pairs, rows of queries precede rows of keys. */
enum { MHAI_BLOCK = MHAI_PANEL };

typedef struct mhai_recurrent_block {
    int64_t tokens;
    float *x;   /* [2 BLOCK][D] as given, queries times scale */
    float *in;  /* [2 BLOCK][D] decayed since the block began */
    float *out; /* [BLOCK][D] keys, decayed up to the block's end */
    /* [2 BLOCK][BLOCK] products of rows with keys, decayed from key to row; 0 for later keys, and
     * for a key with itself */
    float *pairs;
    float *panels; /* [D][32], working memory */
    double *decay; /* [BLOCK][1 or D] of each token */
    double *end;   /* [1 or D] of all tokens together */
    double *since; /* [D], working memory */
    float strength[MHAI_BLOCK];
} mhai_recurrent_block;

mhai_recurrent_block mhai_recurrent_block_parts(const mhai_recurrent *call, void *memory,
                                                size_t *bytes);

/* Load the block that begins at token t of a sequence. queries: load its queries too. */
void mhai_recurrent_block_load(const mhai_recurrent *call, const mhai_kernels *kernels, int64_t b,
                               int64_t h, int64_t t, bool queries, mhai_recurrent_block *block);

#endif
