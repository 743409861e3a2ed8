/* The number of parameters of a description (checkpoint_parts.h). */
#include "model/checkpoint_parts.h"

#include <math.h>

/* The number of parameters of experts, minus those of the dense layers that they replace. */
static double experts_described(const mha_transformer_desc *d)
{
    const double E = (double)d->embed_dim;
    double all = 0;
    for (int64_t i = 0; d->layers && i < d->num_layers; i++) {
        const mha_experts_desc *x = &d->layers[i].experts;
        if (x->count > 0)
            all += E * ((double)x->count * (3 * (double)x->ff_dim + 1) +
                        3 * (double)(x->shared_dim - d->ff_dim));
    }
    return all;
}

/* The number of parameters of latent attention. */
static double latent_described(const mha_layer_desc *l, double E, double D, double heads)
{
    const double r = (double)l->latent_dim, rq = (double)l->query_latent_dim,
                 s = (double)l->shared_dim, Dv = (double)l->value_dim;
    return (rq > 0 ? rq * (E + heads * D) : E * heads * D) + E * (r + s) +
           heads * (r * (D - s + Dv) + E * Dv);
}

static double delta_described(const mha_layer_desc *l, double E, double groups, double heads)
{
    const double k = (double)l->key_dim, v = (double)l->value_dim, r = (double)l->gate_rank;
    if (r > 0) return 2 * E * (groups * k + heads * v + r) + r * heads * (k + v);
    return E * (2 * groups * k + 3 * heads * v);
}

/* A lower bound for the parameters of a layer that attends: keys may also be values. */
static double attention_described(const mha_layer_desc *l, double E, double D, double heads,
                                  double groups)
{
    if (!l) return 2 * E * D * (heads + groups);
    const double P = (double)l->input_dim;
    const double shared = l->kv_back > 0 ? 0 : l->flags & MHA_LAYER_V_NORM ? 1 : 2;
    return E * (D * (2 * heads + shared * groups) + 3 * P);
}

double mhai_checkpoint_numbers(const mha_transformer_desc *d, bool shared)
{
    const double W = (double)mhai_width_of_tables(d);
    const double E = (double)d->embed_dim, kv = (double)(d->kv_heads ? d->kv_heads : d->num_heads);
    const double memory = (double)(d->memory_dim ? d->memory_dim : d->embed_dim);
    double layers = 0, layer = 0, bias = 0, relative = 0;
    for (int64_t i = 0; i < d->num_layers; i++) {
        const mha_layer_desc *l = d->layers ? &d->layers[i] : NULL;
        const double heads = (double)mha_transformer_heads(d, i);
        const double D = (double)mha_transformer_head_dim(d, i);
        const double groups = d->layer_heads ? (double)d->layer_kv_heads[i] : kv;
        layers += l && l->latent_dim > 0 ? latent_described(l, E, D, heads)
                  : !l || !l->mixer      ? attention_described(l, E, D, heads, groups)
                  : l->mixer == MHA_MIXER_SHORT_CONVOLUTION ? 4 * E * E
                                                            : delta_described(l, E, groups, heads);
        if (l) layers += (double)l->input_dim * (double)d->vocab_size;
        if (l) bias = fmax(bias, (double)l->t5_buckets * heads);
        if (l && l->relative_rows > 0)
            relative = l->flags & MHA_LAYER_RELATIVE_TABLE ? (double)l->relative_rows * D
                                                           : (double)l->relative_rows * E;
    }
    if (d->flags & MHA_TRANSFORMER_CROSS)
        layer += 2 * ((double)d->num_heads * E + memory * kv) *
                 (double)(d->head_dim ? d->head_dim : d->embed_dim / d->num_heads);
    layers += experts_described(d);
    const bool gated = mha_feed_forward_gated(d->feed_forward);
    for (int64_t i = 0; i < d->num_layers; i++)
        if (mha_transformer_feeds(d, i))
            layers += (gated ? 3.0 : 2.0) * E *
                      (double)(d->layers && d->layers[i].ff_dim ? d->layers[i].ff_dim : d->ff_dim);
    layers += (double)d->num_layers * layer;
    double all =
        layers / (shared ? (double)d->num_layers : 1) + bias + relative + (double)d->vocab_size * W;
    if (d->positions == MHA_ENCODING_LEARNED) all += (double)d->max_length * W;
    all += (double)d->type_count * W;
    if (mhai_width_of_tables(d) != d->embed_dim) all += W * E;
    if (!(d->flags & (MHA_TRANSFORMER_TIED | MHA_TRANSFORMER_NO_OUTPUT)))
        all += (double)d->vocab_size * E;
    return all;
}
