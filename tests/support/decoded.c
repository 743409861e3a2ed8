#include "support/decoded.h"

#include "support/expect.h"
#include "support/layers.h"
#include "support/one_context.h"

/* Experts in some layers, if feed-forward layers are gated and without biases. */
static bool experts_draw(rng *r, const mha_transformer_desc *d, mha_layer_desc *layers)
{
    const bool gated =
        d->feed_forward == MHA_FEED_FORWARD_SWIGLU || d->feed_forward >= MHA_FEED_FORWARD_GEGLU;
    bool some = false;
    if (!gated || d->ff_dim == 0 || d->flags & (MHA_TRANSFORMER_BIAS | MHA_TRANSFORMER_FF_BIAS) ||
        !rng_chance(r, 0.5))
        return false;
    for (int64_t i = 0; i < d->num_layers; i++) {
        mha_experts_desc *x = &layers[i].experts;
        if (rng_chance(r, 0.5)) continue;
        some = true;
        x->count = rng_between(r, 1, 5);
        x->used = rng_between(r, 1, x->count);
        x->ff_dim = rng_between(r, 1, 12);
        x->shared_dim = rng_between(r, 0, 9);
        x->flags = (uint32_t)rng_between(r, 0, 2 * MHA_EXPERTS_SHARED_GATE - 1);
    }
    return some;
}

mha_transformer_desc decoded_draw(rng *r, bool cross)
{
    static mha_layer_desc layers[LAYERS];
    static int64_t heads[LAYERS];
    mha_transformer_desc d = {.struct_size = sizeof d,
                              .flags = MHA_TRANSFORMER_CAUSAL,
                              .vocab_size = VOCAB,
                              .max_length = LENGTH,
                              .embed_dim = WIDTH,
                              .num_layers = rng_between(r, 1, LAYERS),
                              .num_heads = 4,
                              .kv_heads = rng_chance(r, 0.5) ? 2 : 4,
                              .ff_dim = rng_chance(r, 0.2) ? 0 : 20};
    if (rng_chance(r, 0.3)) d.head_dim = 10;
    if (cross) d.flags |= MHA_TRANSFORMER_CROSS;
    d.norm = (mha_norm)rng_between(r, 0, 2);
    d.positions = (mha_position_encoding)rng_between(r, 0, 3);
    d.feed_forward = (mha_feed_forward)rng_between(r, 0, 5);
    if (rng_chance(r, 0.3)) d.flags |= MHA_TRANSFORMER_TIED;
    if (rng_chance(r, 0.2)) d.flags |= MHA_TRANSFORMER_NO_OUTPUT;
    blocks_draw(r, &d);
    if (d.norm && rng_chance(r, 0.3)) d.flags |= MHA_TRANSFORMER_EMBEDDING_NORM;
    for (int i = 0; i < LAYERS; i++) heads[i] = 2 * rng_between(r, 0, 2);
    if (rng_chance(r, 0.2)) d.layer_heads = heads;
    layers_draw(r, &d, layers);
    const bool routed = experts_draw(r, &d, layers);
    if (routed || rng_chance(r, 0.6)) d.layers = layers;
    return d;
}

mha_transformer *decoded_make(const mha_transformer_desc *d, uint64_t seed)
{
    mha_transformer *t = NULL;
    expect_ok(mha_transformer_create(context, d, &t));
    const mha_transformer_init init = {
        .struct_size = sizeof init, .seed = seed, .embedding_std = 1, .position_std = 0.5};
    expect_ok(mha_transformer_initialise(context, t, &init));
    return t;
}
