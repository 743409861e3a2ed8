/* The contents of a loaded model. */
#ifndef MHAI_MODEL_H
#define MHAI_MODEL_H

#include "model/ends.h"

#include <multihead/checkpoint.h>
#include <multihead/model.h>

struct mha_model {
    mha_allocator allocator;
    mha_model_info info;
    mha_transformer *transformer;
    mha_tokenizer *tokenizer; /* at most one is set; both NULL: loaded without a tokenizer */
    mha_vocabulary *vocabulary;
    mhai_ends ends;
    mha_model *encoder; /* the encoder, if this model is a decoder of an encoder-decoder; or NULL */
};

#endif
