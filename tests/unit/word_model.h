/* A causal model of whole words with random weights, saved in the folder of temp_files.h and loaded. */
#ifndef UNIT_WORD_MODEL_H
#define UNIT_WORD_MODEL_H

#include <multihead/model.h>

enum { WORD_LAYERS = 2, WORD_HEADS = 3, WORDS = 10 };

extern const char *const words[WORDS]; /* "<s>", "the", "cat" ... */

mha_model *word_model(int64_t positions);
/* With this mixer and these experts in each of its layers. */
mha_model *word_model_of(int64_t positions, const mha_layer_desc layers[WORD_LAYERS]);

#endif
