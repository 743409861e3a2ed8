#include "unit/word_model.h"

#include "support/expect.h"
#include "support/one_context.h"
#include "support/rng.h"
#include "support/temp_files.h"

const char *const words[WORDS] = {"<s>", "the", "cat", "sat", ".", "on", "mat", "a", "dog", "ran"};

mha_model *word_model_of(int64_t positions, const mha_layer_desc layers[WORD_LAYERS])
{
    const mha_transformer_desc d = {.struct_size = sizeof d,
                                    .flags = MHA_TRANSFORMER_CAUSAL,
                                    .vocab_size = WORDS,
                                    .max_length = positions,
                                    .embed_dim = 12,
                                    .num_layers = WORD_LAYERS,
                                    .num_heads = WORD_HEADS,
                                    .kv_heads = WORD_HEADS,
                                    .head_dim = 4,
                                    .ff_dim = 10,
                                    .norm = MHA_NORM_RMS,
                                    .positions = MHA_ENCODING_ROTARY,
                                    .feed_forward = MHA_FEED_FORWARD_SWIGLU,
                                    .layers = layers};
    const mha_checkpoint_settings s = {
        .struct_size = sizeof s, .words = words, .word_count = WORDS, .bos_word = "<s>"};
    mha_transformer *t = NULL;
    mha_model *model = NULL;
    rng r = rng_make(7, 1);
    expect_ok(mha_transformer_create(context, &d, &t));
    for (int64_t i = 0; i < mha_transformer_size(t); i++)
        mha_transformer_data(t)[i] = rng_normal(&r);
    expect_ok(mha_transformer_update(context, t));
    expect_ok(mha_checkpoint_save(temp_path("words"), t, &s));
    mha_transformer_destroy(t);
    expect_ok(mha_model_load(context, temp_path("words"), NULL, &model));
    return model;
}

mha_model *word_model(int64_t positions)
{
    return word_model_of(positions, NULL);
}
