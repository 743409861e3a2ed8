/* Count the floating point operations of a training step. */
#include "train/train.h"

#include <string.h>

/* Count the pairs of tokens of a batch by lengths, without padding. */
static double pairs_of(const int64_t *rows, const int64_t *cols, int64_t count, bool causal)
{
    double pairs = 0;
    for (int64_t b = 0; b < count; b++)
        pairs += causal ? 0.5 * (double)rows[b] * (double)(rows[b] + 1)
                        : (double)rows[b] * (double)cols[b];
    return pairs;
}

/* Products of matrices and rows. rows: tokens of this part of the model; memory: rows of the memory
 * that its cross-attention reads. */
static double matrices(const mha_transformer *net, double rows, double memory)
{
    mha_transformer_desc d;
    double flops = 0;
    mha_transformer_describe(net, &d);
    for (int64_t i = 0; i < mha_transformer_parameters(net); i++) {
        mha_parameter p;
        if (mha_transformer_parameter(net, i, &p) != MHA_OK) continue;
        const bool output = !strcmp(p.name, "lm_head.weight");
        const bool of_memory =
            strstr(p.name, "cross_attn.k_proj") || strstr(p.name, "cross_attn.v_proj");
        if (p.kind == MHA_PARAMETER_MATRIX || output)
            flops += 6 * (double)p.count * (of_memory ? memory : rows);
    }
    if (d.flags & MHA_TRANSFORMER_TIED)
        flops += 6 * (double)d.vocab_size * (double)d.embed_dim * rows;
    return flops;
}

/* Products of pairs of tokens, or of each of `rows` tokens with a state (recurrent.h has the cost). */
static double attention(const mha_transformer *net, double pairs, double rows)
{
    mha_transformer_desc d;
    double flops = 0;
    mha_transformer_describe(net, &d);
    for (int64_t i = 0; i < d.num_layers; i++) {
        const mha_layer_desc *l = d.layers ? &d.layers[i] : NULL;
        const double D = l ? (double)l->key_dim : 0, Dv = l ? (double)l->value_dim : 0;
        flops +=
            l && l->mixer ? (26 * D * Dv + 512 * (D + Dv)) * rows : 12 * (double)d.head_dim * pairs;
    }
    return (double)d.num_heads * flops;
}

double train_model_flops(train_model *model)
{
    const train_batch *b = &model->batch;
    random_source r = random_make(model->seed, 0);
    const train_ask ask = {model->task, &r, TRAIN_SPLIT_TRAIN, 0, model->recipe.batch};
    const mha_transformer *decoder = model->decoder, *encoder = model->encoder;
    const bool causal = model->recipe.model.flags & MHA_TRANSFORMER_CAUSAL;
    model->task->draw(&ask, &model->batch);
    const double rows = (double)(b->B * b->T), memory = (double)(b->B * b->S);
    double flops = matrices(decoder, rows, memory) +
                   attention(decoder, pairs_of(b->lengths, b->lengths, b->B, causal), rows);
    if (encoder)
        flops +=
            attention(decoder, pairs_of(b->lengths, b->source_lengths, b->B, false), rows) +
            matrices(encoder, memory, 0) +
            attention(encoder, pairs_of(b->source_lengths, b->source_lengths, b->B, false), memory);
    return flops;
}
