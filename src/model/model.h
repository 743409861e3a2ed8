/* A loaded model. */
#ifndef MHAI_MODEL_H
#define MHAI_MODEL_H

#include "model/ends.h"
#include "model/picture.h"
#include "model/speech.h"

#include <multihead/checkpoint.h>
#include <multihead/model.h>

struct mha_model {
    mha_allocator allocator;
    mha_model_info info;
    mha_transformer *transformer;
    mha_tokenizer *tokenizer; /* at most one is set; both are NULL if loaded without a tokenizer */
    mha_vocabulary *vocabulary;
    mhai_ends ends;
    mhai_picture picture;
    mhai_begins begins;
    mhai_speech speech;                 /* with an audio encoder; otherwise 0 */
    struct mhai_audio_stem *audio_stem; /* of an audio encoder; otherwise NULL */
    bool towers;                        /* the folder also has an encoder */
    bool borrows;                       /* tokenizer and vocabulary belong to the decoder */
    mha_model *encoder;                 /* the encoder of an encoder-decoder; otherwise NULL */
};

#endif
