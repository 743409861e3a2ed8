/* Sizes of the attention of well-known models, each with the publication that states them. */
#ifndef CLI_LIKES_H
#define CLI_LIKES_H

#include <stdbool.h>
#include <stdint.h>

typedef struct like_model {
    const char *name;
    int64_t layers; /* attention modules */
    int64_t cached; /* those that keep keys and values while decoding; 0: an encoder */
    int64_t embed, heads, kv_heads, head_dim;
    int64_t length; /* tokens of its training */
    int64_t window; /* keys that a token sees, itself included; 0: all */
    bool causal, qkv_bias, out_bias;
    double published; /* parameters of the whole model as published */
    const char *source;
    const char *note; /* what a reader should know, or NULL */
} like_model;

/* NULL at an index beyond the last. */
const like_model *likes_at(int i);

/* NULL if no model has that name. */
const like_model *likes_find(const char *name);

/* The name that may have been meant, or NULL. */
const char *likes_nearest(const char *name);

#endif
