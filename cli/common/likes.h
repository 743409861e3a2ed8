/* Sizes of the attention of well-known models, each with the publication that states them. */
#ifndef CLI_LIKES_H
#define CLI_LIKES_H

#include <stdbool.h>
#include <stdint.h>

typedef struct like_model {
    const char *name;
    int64_t layers; /* attention modules */
    int64_t cached; /* layers that cache keys and values in decoding; 0: an encoder */
    int64_t embed, heads, kv_heads, head_dim;
    int64_t length; /* tokens of the training context */
    int64_t window; /* keys that a token sees, including itself; 0: all */
    bool causal, qkv_bias, out_bias;
    double published; /* parameters of the whole model as published */
    const char *source;
    const char *note; /* a note for the reader, or NULL */
} like_model;

/* NULL if the index is beyond the last. */
const like_model *likes_at(int i);

/* NULL if no model has that name. */
const like_model *likes_find(const char *name);

/* The nearest name, or NULL. */
const char *likes_nearest(const char *name);

#endif
