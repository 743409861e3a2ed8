#include "support/layers.h"

static void draw_masks(rng *r, const mha_transformer_desc *d, mha_layer_desc *l)
{
    if (!rng_chance(r, 0.4)) return;
    l->flags |= MHA_LAYER_WINDOW;
    l->left_keys = rng_between(r, -1, 6);
    l->right_keys = d->flags & MHA_TRANSFORMER_CAUSAL ? 0 : rng_between(r, -1, 3);
    l->sink_keys = rng_chance(r, 0.5) ? rng_between(r, 1, 3) : 0;
}

static void draw_terms(rng *r, const mha_transformer_desc *d, mha_layer_desc *l)
{
    const bool causal = d->flags & MHA_TRANSFORMER_CAUSAL;
    if (rng_chance(r, 0.3)) l->softcap = (float)(2 + 8 * rng_uniform(r));
    if (rng_chance(r, 0.3)) l->flags |= MHA_LAYER_ALIBI;
    if (rng_chance(r, 0.3)) l->flags |= MHA_LAYER_SINKS;
    if (rng_chance(r, 0.3)) l->scale = (float)(0.1 + 0.5 * rng_uniform(r));
    if (rng_chance(r, 0.1)) l->flags |= MHA_LAYER_SCALE_GIVEN;
    if (!rng_chance(r, 0.3)) return;
    l->t5_buckets = causal ? rng_between(r, 2, 9) : 2 * rng_between(r, 2, 5);
    if (rng_chance(r, 0.5)) l->t5_max_distance = rng_between(r, 10, 40);
}

static void draw_rotation(rng *r, const mha_transformer_desc *d, mha_layer_desc *l)
{
    if (d->positions != MHA_ENCODING_ROTARY) return;
    if (rng_chance(r, 0.2)) {
        l->flags |= MHA_LAYER_NO_ROPE;
        return;
    }
    if (rng_chance(r, 0.3)) l->flags |= MHA_LAYER_ROPE_INTERLEAVED;
    if (rng_chance(r, 0.4)) l->rope_base = (float)(10 + 1000 * rng_uniform(r));
    if (rng_chance(r, 0.3)) l->rope_factor = (float)(0.5 + 3 * rng_uniform(r));
    if (d->rope_factors && rng_chance(r, 0.6)) {
        l->rope_scaling = MHA_ROPE_SCALING_LONG;
        l->rope_original_length = LAYERS_BORDER;
        l->rope_factor = 1;
        if (rng_chance(r, 0.5)) l->rope_amplitude = 1.2f;
        return;
    }
    if (rng_chance(r, 0.4)) {
        l->rope_scaling = rng_chance(r, 0.5) ? MHA_ROPE_SCALING_LLAMA3 : MHA_ROPE_SCALING_YARN;
        l->rope_original_length = rng_between(r, 1, 16);
        l->rope_factor = (float)(0.5 + 5 * rng_uniform(r));
        if (rng_chance(r, 0.5)) l->rope_low = 0.2f, l->rope_high = (float)(0.3 + rng_uniform(r));
        if (l->rope_scaling == MHA_ROPE_SCALING_YARN && rng_chance(r, 0.5))
            l->rope_amplitude = 1.2f;
        if (l->rope_scaling == MHA_ROPE_SCALING_YARN && rng_chance(r, 0.2))
            l->rope_low = l->rope_high = (float)(0.1 + rng_uniform(r));
        if (l->rope_scaling == MHA_ROPE_SCALING_YARN && rng_chance(r, 0.3))
            l->flags |= MHA_LAYER_ROPE_EXACT_RAMP;
    }
    const int64_t D = d->head_dim ? d->head_dim : d->embed_dim / d->num_heads;
    if (D > 2 && rng_chance(r, 0.3)) l->rotary_dim = 2 * rng_between(r, 1, D / 2);
}

void factors_draw(rng *r, float factors[2 * LAYERS_PAIRS])
{
    for (int i = 0; i < 2 * LAYERS_PAIRS; i++) factors[i] = (float)(0.5 + 4 * rng_uniform(r));
}

void layers_draw(rng *r, const mha_transformer_desc *d, mha_layer_desc *layers)
{
    const uint32_t other_blocks = MHA_TRANSFORMER_POST_NORM | MHA_TRANSFORMER_BRANCH_NORM |
                                  MHA_TRANSFORMER_CROSS | MHA_TRANSFORMER_PARALLEL;
    for (int64_t i = 0; i < d->num_layers; i++) {
        mha_layer_desc *l = &layers[i];
        *l = (mha_layer_desc){.struct_size = sizeof *l};
        if (rng_chance(r, 0.15)) continue;
        draw_masks(r, d, l);
        draw_terms(r, d, l);
        draw_rotation(r, d, l);
        if (d->norm != MHA_NORM_NONE && !(d->flags & other_blocks) && rng_chance(r, 0.3))
            l->flags |= rng_chance(r, 0.7) ? MHA_LAYER_BRANCH_NORM : MHA_LAYER_NO_ATTENTION_NORM;
        if (!rng_chance(r, 0.3)) continue;
        l->flags |= MHA_LAYER_QK_NORM;
        if (rng_chance(r, 0.5)) l->qk_norm_epsilon = 1e-3f;
    }
}

void blocks_draw(rng *r, mha_transformer_desc *d)
{
    static const uint32_t biases[] = {0, MHA_TRANSFORMER_BIAS, MHA_TRANSFORMER_BIAS,
                                      MHA_TRANSFORMER_QKV_BIAS,
                                      MHA_TRANSFORMER_OUT_BIAS | MHA_TRANSFORMER_FF_BIAS};
    d->flags |= biases[rng_between(r, 0, 4)];
    if (rng_chance(r, 0.5)) d->norm_epsilon = 0.25f; /* large enough to affect results */
    if (d->norm == MHA_NORM_LAYER && rng_chance(r, 0.3)) d->flags |= MHA_TRANSFORMER_NO_NORM_BIAS;
    const double kind = rng_uniform(r);
    if (kind < 0.25 && d->ff_dim > 0 && !(d->flags & MHA_TRANSFORMER_CROSS))
        d->flags |= MHA_TRANSFORMER_PARALLEL |
                    (d->norm && rng_chance(r, 0.4) ? MHA_TRANSFORMER_ONE_NORM : 0);
    else if (kind < 0.5 && d->norm != MHA_NORM_NONE)
        d->flags |=
            MHA_TRANSFORMER_BRANCH_NORM | (rng_chance(r, 0.3) ? MHA_TRANSFORMER_NO_INPUT_NORM : 0);
    else if (kind < 0.75 && d->norm != MHA_NORM_NONE)
        d->flags |= MHA_TRANSFORMER_POST_NORM;
}
