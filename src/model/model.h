/* What a loaded model holds. */
#ifndef MHAI_MODEL_H
#define MHAI_MODEL_H

#include "model/ends.h"

#include <multihead/checkpoint.h>
#include <multihead/model.h>

struct mha_model {
    mha_allocator allocator;
    mha_model_info info;
    mha_transformer *transformer;
    mha_tokenizer *tokenizer; /* one of them; both NULL: loaded without */
    mha_vocabulary *vocabulary;
    mhai_ends ends;
    mha_model *encoder; /* of an encoder-decoder, whose decoder this is; else NULL */
};

#endif
