/* The internal state of a trainer. */
#ifndef MHAI_TRAINING_PARTS_H
#define MHAI_TRAINING_PARTS_H

#include <multihead/training.h>

#include <pthread.h>

/* A decoder or encoder in training. */
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

/* The context and the memory that one worker needs for a leaf. */
typedef struct mhai_desk {
    mha_context *context;
    mha_activations *kept, *encoder_kept;
    float *logits;                   /* [tokens,V] */
    float *memory, *memory_gradient; /* [source,E] */
} mhai_desk;

/* One workspace per thread. Small models need this, because their threads would otherwise wait for
 * each other at every layer. The memory comes from the trainer's allocator. */
typedef struct mhai_helpers {
    pthread_mutex_t mutex;
    int64_t count, tokens, source; /* tokens and source are sizes per workspace */
    mhai_desk *desks;
} mhai_helpers;

struct mha_trainer {
    mha_context *context;
    mha_allocator allocator;
    mha_trainer_desc desc;
    mha_transport transport;         /* size 1: a single process */
    bool compared;                   /* all ranks were found to have the same
                                      * parameters and state */
    mhai_trained main, encoder;      /* encoder.net is NULL without an encoder */
    int64_t steps, size;             /* size: floats of main and encoder together */
    float *gradient;                 /* [size] */
    float *logits;                   /* [max_tokens,V] */
    float *memory, *memory_gradient; /* [max_source,E] */
    mhai_helpers helpers;
};

#endif
