/* The backward pass of a recurrent layer. recurrent_backward.c handles calls and heads,
 * recurrent_backward_block.c handles blocks. */
#ifndef MHAI_RECURRENT_BACKWARD_H
#define MHAI_RECURRENT_BACKWARD_H

#include "attention/recurrent.h"

enum { MHAI_BACK_PAIR = 2 * MHAI_BLOCK, MHAI_BACK_MADE = 7 };

/* A requested gradient. It is computed for each head and token, then summed over the heads that
 * share the input. */
typedef struct mhai_back_sink {
    const mha_tensor *wanted; /* NULL: not requested */
    mha_tensor each;          /* [B,H,T,W] */
    bool shared;
} mhai_back_sink;

enum {
    MHAI_BACK_Q,
    MHAI_BACK_K,
    MHAI_BACK_V,
    MHAI_BACK_DECAY,
    MHAI_BACK_STRENGTH,
    MHAI_BACK_SKIP,
    MHAI_BACK_STATE
};

typedef struct mhai_back {
    mhai_recurrent call; /* its o is the gradient of o */
    const mhai_kernels *kernels;
    const mha_tensor *initial, *state_gradient; /* NULL: 0 */
    mhai_back_sink to[MHAI_BACK_MADE];
    bool add;
    int64_t blocks, stage; /* number of blocks of the longest sequence, and of a stage */
    unsigned char *memory;
    size_t worker_bytes;
} mhai_back;

typedef struct mhai_back_work {
    mhai_recurrent_block x;
    float *states, *stage; /* states before all stages, and before each block of one stage */
    float *g;              /* G in the layout of states: [panels][D][32] */
    float *y;              /* [panels][2 BLOCK][32] */
    float *u;              /* [panels][BLOCK][32] */
    float *w, *du;         /* [BLOCK][wide] */
    float *turned;         /* S^T or G^T: [panels][deep / 32][32][32]; U^T: [wide][32] */
    float *din, *dout;     /* [2 BLOCK][deep], [BLOCK][deep] */
    float *dpairs;         /* [2 BLOCK][BLOCK] */
    float *keyed;          /* x in panels: [deep / 32][2 BLOCK][32] */
    float *row;            /* [max(wide, deep)] */
    double *slope, *far;   /* [D] */
    double *decays;        /* [BLOCK][D] with decays per channel: their gradients */
} mhai_back_work;

static inline int64_t mhai_back_state_floats(const mhai_back *x)
{
    return x->call.sizes.panels * x->call.sizes.D * MHAI_PANEL;
}
/* A head's block at token t. */
typedef struct mhai_back_place {
    const mhai_back *x;
    mhai_back_work *w;
    int64_t b, h, t;
} mhai_back_place;

static inline float *mhai_back_row(const mhai_back_sink *to, const mhai_back_place *at, int64_t i)
{
    const mha_tensor *x = &to->each;
    return (float *)x->data + at->b * x->stride[0] + at->h * x->stride[1] +
           (at->t + i) * x->stride[2];
}

static inline void mhai_back_write(const mhai_back *x, const mhai_back_sink *to, float *out,
                                   double value)
{
    *out = (float)(x->add && !to->shared ? (double)*out + value : value) + 0.0f;
}

/* Compute S before the next block from S before this block. */
void mhai_back_advance(const mhai_back_place *at, const float *s, float *next);

/* Write the gradients of a block, given S before it, and move G from the block's end to its
 * beginning. */
void mhai_back_block(const mhai_back_place *at, const float *s);

#endif
