/* A BERT encoder in memory (model.h has its formula). */
#ifndef MHAI_BERT_H
#define MHAI_BERT_H

#include "model/arch.h"

#include <multihead/nn.h>

typedef struct mhai_bert_norm {
    mha_tensor weight, bias; /* [E] each, in one piece of memory */
} mhai_bert_norm;

typedef struct mhai_bert_layer {
    mha_module *attention;
    mhai_bert_norm attention_norm;
    mha_linear *up, *down; /* W1 [I,E] and W2 [E,I] */
    mhai_bert_norm output_norm;
} mhai_bert_layer;

typedef struct mhai_bert {
    mha_allocator allocator;
    int64_t layers, heads, width, inner; /* L, H, E and I, the width between up and down */
    float epsilon;
    mha_activation activation;
    mha_tensor word, position, type; /* [vocab,E], [positions,E], [segments,E] */
    mhai_bert_norm embedding_norm;
    mhai_bert_layer *layer; /* [layers] */
} mhai_bert;

MHA_NODISCARD mha_status mhai_bert_forward(const mha_model *model, const mhai_pass *pass);

#endif
