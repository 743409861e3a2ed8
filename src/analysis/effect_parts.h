/* Internals of ablation: a run over texts, with scratch for the longest text. */
#ifndef MHAI_EFFECT_PARTS_H
#define MHAI_EFFECT_PARTS_H

#include "transformer/transformer_parts.h"

#include <multihead/ablation.h>
#include <multihead/component.h>

enum { MHAI_EFFECT_ROWS = 128 }; /* rows of logits per block, a good size for matrix products */

/* The data that a pass saves: [L] blocks with the run's number of rows; NULL: not saved. */
typedef struct mhai_effect_kept {
    float *stream;      /* E per row: the stream before the layer */
    float *heads;       /* the outputs of the layer's heads, side by side */
    float *qkv;         /* its queries, keys, values and the data after them (mhai_mix) */
    float *end;         /* E per row, a single block: the stream after the last layer */
    const int64_t *map; /* saved row i is row map[i] of the pass; NULL: all rows */
    int64_t count;      /* number of rows in map */
} mhai_effect_kept;

typedef struct mhai_effect_run {
    mha_context *context;
    const mha_transformer *t;
    const mha_transformer_desc *d;
    mha_ablation_desc desc;
    mha_effect_data data;
    mha_effect_text *texts;  /* [data.texts] copies, with this library's struct size */
    int64_t rows;            /* tokens of the longest text */
    int64_t heads, qkv;      /* elements per row of the widest layer */
    float *last;             /* [rows E] */
    float *in, *logits;      /* [MHAI_EFFECT_ROWS, E], [.., V] */
    int32_t *targets;        /* [MHAI_EFFECT_ROWS] */
    double *losses;          /* [MHAI_EFFECT_ROWS] */
    mha_head_patch *patches; /* [6 L H] patches of the current pass, and their values */
    mha_tensor *values;
    int64_t patch_count;
    mhai_effect_kept kept; /* data of the current pass */
    int64_t done, total;
} mhai_effect_run;

/* Check the data and allocate scratch, which the caller must release. */
MHA_NODISCARD mha_status mhai_effect_begin(mhai_effect_run *r, mha_context *context,
                                           const mha_transformer *t, const mha_effect_data *data);

/* Check the replacements of heads. */
MHA_NODISCARD mha_status mhai_effect_read_ablation(mhai_effect_run *r,
                                                   const mha_ablation_desc *desc);

/* Run a text from a layer on, with the current patches. `first` is the stream before that layer, or
 * NULL. Saves what r->kept requests, and r->last. */
MHA_NODISCARD mha_status mhai_effect_pass(mhai_effect_run *r, const mha_effect_text *text,
                                          int64_t layer, const float *first);

/* Compute the measures [M] of a text from r->last; NAN for measures that the text does not have. */
MHA_NODISCARD mha_status mhai_effect_score(mhai_effect_run *r, const mha_effect_text *text,
                                           double *values);

/* Add a patch for the next pass. Its rows are `stride` floats apart; 0: all rows are equal. */
void mhai_effect_patch(mhai_effect_run *r, const mha_effect_text *text, mha_patch_part part,
                       int64_t layer, int64_t head, const float *values, int64_t stride,
                       const uint8_t *rows);

/* Get the replacements of heads for text i: [L] blocks, or NULL for ZERO. *stride is 0 for MEAN.
 * RESAMPLE runs the other text and writes to `heads`, [L] blocks; `map` is scratch for rows. */
MHA_NODISCARD mha_status mhai_effect_replace(mhai_effect_run *r, int64_t i, float *heads,
                                             int64_t *map);

/* The place of head h of a layer in the blocks of mhai_effect_replace(). *stride is the distance
 * between rows. */
const float *mhai_effect_instead(const mhai_effect_run *r, const float *heads, int64_t layer,
                                 int64_t head, int64_t *stride);

/* Allocate floats in scratch. */
MHA_NODISCARD mha_status mhai_effect_floats(const mhai_effect_run *r, int64_t rows, int64_t width,
                                            float **to);

/* Offset of a layer's block in saved rows of `width` floats. */
static inline int64_t mhai_effect_block(const mhai_effect_run *r, int64_t layer, int64_t width)
{
    return layer * r->rows * width;
}

static inline int64_t mhai_effect_tokens(const mha_effect_text *text)
{
    return text->tokens->shape[0] * text->tokens->shape[1];
}

static inline mhai_heads mhai_effect_heads_of(const mhai_effect_run *r, int64_t layer)
{
    return mhai_transformer_heads_of(r->d, layer, false);
}

static inline mhai_mix mhai_effect_mix(const mhai_effect_run *r, int64_t layer)
{
    return mhai_transformer_mix(r->d, layer);
}

/* Number of elements of the outputs of a layer's heads. */
static inline int64_t mhai_effect_wide(const mhai_effect_run *r, int64_t layer)
{
    return mhai_effect_heads_of(r, layer).q * mhai_effect_mix(r, layer).Dv;
}

/* The number of multiplications by parameters to run a text from a layer on, with its logits.
 * Used to report progress. */
int64_t mhai_effect_pass_work(const mha_transformer *t, const mha_effect_text *text, int64_t layer);

/* The same for the gradients of all measures (effect_gradient.c). */
int64_t mhai_effect_gradient_work(const mha_transformer *t, mha_ablation kind,
                                  const mha_effect_text *text, int64_t measures);

/* Report progress. */
MHA_NODISCARD mha_status mhai_effect_step(mhai_effect_run *r, int64_t work);

#endif
