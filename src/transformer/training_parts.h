/* The internal state of a trainer. */
#ifndef MHAI_TRAINING_PARTS_H
#define MHAI_TRAINING_PARTS_H

#include <multihead/training.h>

#include <pthread.h>

/* A transformer in training, or its encoder. */
typedef struct mhai_trained {
    mha_transformer *net;
    mha_transformer_desc d;
    mha_activations *kept;
    int64_t size;
    float *memory; /* holds the arrays below */
    float *m, *v;
    float *rates;    /* NULL: 1 everywhere */
    float *gradient; /* part of the trainer's gradient */
} mhai_trained;

/* The context and memory with which one worker computes a leaf. */
typedef struct mhai_desk {
    mha_context *context;
    mha_activations *kept, *encoder_kept;
    float *logits;                   /* [tokens,V] */
    float *memory, *memory_gradient; /* [source,E] */
} mhai_desk;

/* One desk per thread, for small models whose threads would wait for each other at every layer.
 * Their memory comes from the trainer's allocator, one allocation at a time. */
typedef struct mhai_helpers {
    pthread_mutex_t mutex;
    int64_t count, tokens, source; /* tokens and source: of each desk */
    mhai_desk *desks;
} mhai_helpers;

struct mha_trainer {
    mha_context *context;
    mha_allocator allocator;
    mha_trainer_desc desc;
    mha_transport transport;         /* of size 1: a single process */
    bool compared;                   /* all ranks have the same parameters and state */
    mhai_trained main, encoder;      /* encoder.net NULL: none */
    int64_t steps, size;             /* size: floats of both */
    float *gradient;                 /* [size] of both */
    float *logits;                   /* [max_tokens,V] */
    float *memory, *memory_gradient; /* [max_source,E] */
    mhai_helpers helpers;
};

#endif
