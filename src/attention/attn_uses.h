/* The features that a problem uses, derived from the list of a descriptor's tensors
 * (MHA_ATTENTION_INPUTS) and the options below.
 *
 * A problem has one bit per feature in use. A path declares the bits that it supports and rejects
 * all others, so it cannot silently ignore a mask that is added later. */
#ifndef MHAI_ATTN_USES_H
#define MHAI_ATTN_USES_H

#include <multihead/attention.h>

#define MHAI_ATTN_OPTIONS(X) \
    X(causal)                \
    X(key_lengths)           \
    X(key_begins)            \
    X(ragged)                \
    X(window)                \
    X(sink_keys)             \
    X(keep_callback)         \
    X(softcap)               \
    X(dropout)

#define MHAI_USE_OPTION(name) MHAI_USE_##name,
#define MHAI_USE_INPUT(name, type, axes, stage) MHAI_USE_##name,
enum { MHAI_ATTN_OPTIONS(MHAI_USE_OPTION) MHA_ATTENTION_INPUTS(MHAI_USE_INPUT) MHAI_USE_COUNT };
_Static_assert(MHAI_USE_COUNT <= 30, "a bit of an int for each");
#define MHAI_USES(name) (1 << MHAI_USE_##name)

/* The part of the formula that reads a tensor. */
enum {
    MHAI_STAGE_PRODUCT,
    MHAI_STAGE_BIAS,
    MHAI_STAGE_DISTANCE,
    MHAI_STAGE_MASK,
    MHAI_STAGE_RESULT
};

/* The bits of all inputs of a stage. */
#define MHAI_MASK_BIT(name, type, axes, stage) \
    | (MHAI_STAGE_##stage == MHAI_STAGE_MASK ? MHAI_USES(name) : 0)
#define MHAI_BIAS_BIT(name, type, axes, stage) \
    | (MHAI_STAGE_##stage == MHAI_STAGE_BIAS ? MHAI_USES(name) : 0)
#define MHAI_DISTANCE_BIT(name, type, axes, stage) \
    | (MHAI_STAGE_##stage == MHAI_STAGE_DISTANCE ? MHAI_USES(name) : 0)
enum { MHAI_DISTANCES = 0 MHA_ATTENTION_INPUTS(MHAI_DISTANCE_BIT) };

/* Three sets of features: those that hide keys, those that are added to capped scores, and those
 * that depend on the positions of queries. */
enum {
    MHAI_MASKS = MHAI_USES(causal) | MHAI_USES(key_lengths) | MHAI_USES(key_begins) |
                 MHAI_USES(window) | MHAI_USES(sink_keys) |
                 MHAI_USES(keep_callback) MHA_ATTENTION_INPUTS(MHAI_MASK_BIT),
    MHAI_BIASES = MHAI_DISTANCES MHA_ATTENTION_INPUTS(MHAI_BIAS_BIT),
    MHAI_POSITIONS = MHAI_USES(causal) | MHAI_USES(window) | MHAI_USES(shaw_keys) |
                     MHAI_USES(shaw_values) | MHAI_DISTANCES
};

/* An input that broadcasts to up to four axes. data NULL: absent. */
typedef struct mhai_attn_broadcast {
    const void *data;
    int64_t stride[4];
    mha_dtype dtype;
} mhai_attn_broadcast;

/* How a problem stores a tensor, by its kind of axes: strides of four axes; strides of two axes,
 * stored as axes 2 and 3; or unchanged. */
typedef mhai_attn_broadcast mhai_form_BHTS, mhai_form_BLOCKS;
typedef mhai_attn_broadcast mhai_form_BT, mhai_form_BS, mhai_form_BH;
typedef mha_tensor mhai_form_H, mhai_form_RH, mhai_form_RD, mhai_form_RV;

#endif
