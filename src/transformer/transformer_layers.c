/* Per-layer settings of self-attention (norms, rotation, masks, score terms),
 * and position encodings. */
#include "transformer/transformer_parts.h"

#include "base/checked.h"
#include "base/math.h"
#include "base/need.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { KNOWN_FLAGS = MHA_LAYER_OUTPUT_SCALE * 2 - 1 };

/* ---- descriptions -------------------------------------------------------------------------- */

/* Reject settings that need a flag or position encoding that is not selected. */
static mha_status check_settings(const mha_transformer_desc *d, const mha_layer_desc *l)
{
    const bool rotary = d->positions == MHA_ENCODING_ROTARY;
    const char *name = NULL, *needs = NULL;
    if (!(l->flags & MHA_LAYER_WINDOW) && (l->left_keys || l->right_keys || l->sink_keys))
        name = "left_keys, right_keys and sink_keys", needs = "MHA_LAYER_WINDOW";
    if (!(l->flags & MHA_LAYER_QK_NORM) && (l->qk_norm || l->qk_norm_epsilon != 0 ||
                                            l->flags & (MHA_LAYER_QK_NORM_ROW | MHA_LAYER_V_NORM)))
        name = "qk_norm, qk_norm_epsilon, MHA_LAYER_QK_NORM_ROW and MHA_LAYER_V_NORM",
        needs = "MHA_LAYER_QK_NORM";
    if (l->t5_max_distance && !l->t5_buckets) name = "t5_max_distance", needs = "t5_buckets";
    if (!rotary && l->flags & MHA_LAYER_NO_ROPE)
        name = "MHA_LAYER_NO_ROPE", needs = "MHA_ENCODING_ROTARY";
    if ((!rotary || l->flags & MHA_LAYER_NO_ROPE) &&
        (l->flags & MHA_LAYER_ROPE_INTERLEAVED || l->rotary_dim || l->rope_base != 0 ||
         l->rope_factor != 0 || l->rope_scaling || l->rope_pairs))
        name = "rotary_dim, rope_base, rope_factor, rope_scaling, rope_pairs and "
               "MHA_LAYER_ROPE_INTERLEAVED",
        needs = "a layer with rotary positions";
    if (!l->rope_scaling && l->rope_original_length)
        name = "rope_original_length", needs = "a rope_scaling other than linear";
    if (l->rope_scaling != MHA_ROPE_SCALING_LLAMA3 && l->rope_scaling != MHA_ROPE_SCALING_YARN &&
        (l->rope_low != 0 || l->rope_high != 0))
        name = "rope_low and rope_high",
        needs = "MHA_ROPE_SCALING_LLAMA3 and MHA_ROPE_SCALING_YARN";
    if (l->rope_scaling < MHA_ROPE_SCALING_YARN && l->rope_amplitude != 0)
        name = "rope_amplitude", needs = "MHA_ROPE_SCALING_YARN and MHA_ROPE_SCALING_LONG";
    if (l->rope_scaling != MHA_ROPE_SCALING_YARN && l->flags & MHA_LAYER_ROPE_EXACT_RAMP)
        name = "MHA_LAYER_ROPE_EXACT_RAMP", needs = "MHA_ROPE_SCALING_YARN";
    if (!name) return MHA_OK;
    return mha_fail(MHA_ERR_ARGUMENT, "mha_layer_desc: %s: only with %s", name, needs);
}

static mha_status fill_long(mha_layer_desc *l)
{
    if (l->rope_amplitude == 0) l->rope_amplitude = 1;
    if (l->rope_original_length >= 1 && l->rope_amplitude > 0 && isfinite(l->rope_amplitude) &&
        l->rope_factor >= 1 && l->rope_factor <= 1)
        return MHA_OK;
    return mha_fail(MHA_ERR_ARGUMENT,
                    "mha_layer_desc: rope_original_length is %lld, rope_amplitude %g, rope_factor "
                    "%g; expected 1 or more, above 0, 1",
                    (long long)l->rope_original_length, (double)l->rope_amplitude,
                    (double)l->rope_factor);
}

/* Fill in defaults of nonlinear scaling. The default of rope_factor is set elsewhere. */
static mha_status fill_scaling(mha_layer_desc *l)
{
    const bool yarn = l->rope_scaling == MHA_ROPE_SCALING_YARN;
    MHA_TRY(mhai_check_range("mha_layer_desc: rope_scaling", l->rope_scaling, 0,
                             MHA_ROPE_SCALING_LONG));
    if (!l->rope_scaling) return MHA_OK;
    if (l->rope_scaling == MHA_ROPE_SCALING_LONG) return fill_long(l);
    if (l->rope_low == 0) l->rope_low = 1;
    if (l->rope_high == 0) l->rope_high = yarn ? 32 : 4;
    if (yarn && l->rope_amplitude == 0)
        l->rope_amplitude =
            l->rope_factor > 1 ? (float)(0.1 * mha_log((double)l->rope_factor) + 1) : 1;
    /* Llama 3 interpolates between low and high, so they must differ. YaRN rounds them outwards. */
    if (!(l->rope_low > 0) || isinf(l->rope_high) ||
        !(yarn ? l->rope_high >= l->rope_low : l->rope_high > l->rope_low) ||
        !(l->rope_factor >= 1e-6F) || isinf(l->rope_factor) || !isfinite(l->rope_amplitude) ||
        l->rope_amplitude < 0 || l->rope_original_length < 1 || !(l->rope_base > 1))
        return mha_fail(
            MHA_ERR_ARGUMENT,
            "mha_layer_desc: rope_original_length is %lld, rope_factor %g, rope_low %g, "
            "rope_high %g, rope_amplitude %g, rope_base %g; expected 1 or more, 1e-6 or "
            "more, above 0, above rope_low (YaRN: or equal), 0 or more, above 1",
            (long long)l->rope_original_length, (double)l->rope_factor, (double)l->rope_low,
            (double)l->rope_high, (double)l->rope_amplitude, (double)l->rope_base);
    return MHA_OK;
}

static bool in_bounds(int64_t value, int64_t most)
{
    return value >= 1 && value <= most;
}

/* Check the sizes of a recurrent mixer, and reject attention settings. The bounds prevent overflow
 * in the width of a row. */
static mha_status check_recurrent(const mha_transformer_desc *d, const mha_layer_desc *l,
                                  int64_t layer)
{
    const bool space = l->mixer == MHA_MIXER_STATE_SPACE;
    const mha_layer_desc sizes = {.struct_size = l->struct_size,
                                  .mixer = l->mixer,
                                  .conv_kernel = l->conv_kernel,
                                  .key_dim = l->key_dim,
                                  .value_dim = l->value_dim,
                                  .step_least = space ? l->step_least : 0,
                                  .step_most = space ? l->step_most : 0,
                                  .strength_scale = space ? 0 : l->strength_scale,
                                  .head_norm_epsilon = space ? 0 : l->head_norm_epsilon,
                                  .gate_rank = space ? 0 : l->gate_rank,
                                  .flags = l->flags & MHA_LAYER_NO_FEED_FORWARD,
                                  .experts = l->experts};
    if (memcmp(&sizes, l, sizeof sizes) != 0)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_layer_desc: a layer that %s has mixer, conv_kernel, key_dim, "
                        "value_dim, %s, experts and MHA_LAYER_NO_FEED_FORWARD; leave the other "
                        "fields 0",
                        mha_layer_difference(l),
                        space ? "step_least, step_most"
                              : "strength_scale, head_norm_epsilon, gate_rank");
    if (!(d->flags & MHA_TRANSFORMER_CAUSAL) || d->norm != MHA_NORM_RMS ||
        d->flags & (MHA_TRANSFORMER_CROSS | MHA_TRANSFORMER_PARALLEL))
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_layer_desc: a layer that %s needs MHA_TRANSFORMER_CAUSAL and "
                        "MHA_NORM_RMS, and no cross-attention or parallel blocks",
                        mha_layer_difference(l));
    if (!(l->step_least >= 0) || !(l->step_most == 0 || l->step_most >= l->step_least) ||
        isinf(l->step_least))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_layer_desc: step_least is %g, step_most %g; expected 0 or more, and "
                        "0 for none or at least step_least",
                        (double)l->step_least, (double)l->step_most);
    if (!(l->strength_scale >= 0 && l->strength_scale <= 2) || !(l->head_norm_epsilon >= 0) ||
        isinf(l->head_norm_epsilon))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_layer_desc: strength_scale is %g, expected 0..2; head_norm_epsilon is "
                        "%g, expected a finite number, 0 or more",
                        (double)l->strength_scale, (double)l->head_norm_epsilon);
    if (!in_bounds(l->conv_kernel, MHA_CONVOLUTION_MOST) || !in_bounds(l->key_dim, 1 << 20) ||
        !in_bounds(l->value_dim, 1 << 20) || l->gate_rank < 0 || l->gate_rank > 1 << 20)
        return mha_fail(
            MHA_ERR_ARGUMENT,
            "mha_layer_desc: conv_kernel is %d, key_dim %lld, value_dim %lld, gate_rank "
            "%lld; expected 1..%d, 1..%d, 1..%d, 0..%d",
            (int)l->conv_kernel, (long long)l->key_dim, (long long)l->value_dim,
            (long long)l->gate_rank, MHA_CONVOLUTION_MOST, 1 << 20, 1 << 20, 1 << 20);
    const mhai_heads heads = mhai_transformer_heads_of(d, layer, false);
    if (heads.q >= 1 && heads.q * mhai_max_i64(l->key_dim, l->value_dim) <= INT32_MAX)
        return MHA_OK;
    return mha_fail(heads.q < 1 ? MHA_ERR_ARGUMENT : MHA_ERR_SIZE,
                    "mha_layer_desc: %lld heads, key_dim %lld and value_dim %lld of a layer that "
                    "%s; expected 1 head or more and at most %d numbers",
                    (long long)heads.q, (long long)l->key_dim, (long long)l->value_dim,
                    mha_layer_difference(l), INT32_MAX);
}

static mha_status check_convolution(const mha_transformer_desc *d, const mha_layer_desc *l,
                                    int64_t layer)
{
    const mha_layer_desc sizes = {.struct_size = l->struct_size,
                                  .mixer = l->mixer,
                                  .conv_kernel = l->conv_kernel,
                                  .flags = l->flags & MHA_LAYER_NO_FEED_FORWARD,
                                  .experts = l->experts};
    const int64_t heads = mhai_transformer_heads_of(d, layer, false).q;
    if (memcmp(&sizes, l, sizeof sizes) != 0 || heads != 0)
        return mha_fail(
            MHA_ERR_ARGUMENT,
            "mha_layer_desc: a short convolution has mixer, conv_kernel, experts and "
            "MHA_LAYER_NO_FEED_FORWARD; leave the other fields 0, and its number in layer_heads, "
            "which is %lld",
            (long long)heads);
    if (!(d->flags & MHA_TRANSFORMER_CAUSAL) ||
        d->flags & (MHA_TRANSFORMER_CROSS | MHA_TRANSFORMER_PARALLEL))
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_layer_desc: a short convolution needs MHA_TRANSFORMER_CAUSAL, and no "
                        "cross-attention or parallel blocks");
    if (!in_bounds(l->conv_kernel, MHA_CONVOLUTION_MOST) || d->embed_dim > INT32_MAX)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_layer_desc: conv_kernel is %d, expected 1..%d, and embed_dim %lld, "
                        "expected at most %d",
                        (int)l->conv_kernel, MHA_CONVOLUTION_MOST, (long long)d->embed_dim,
                        INT32_MAX);
    return MHA_OK;
}

static mha_status check_latent(const mha_transformer_desc *d, int64_t layer, mha_layer_desc *l)
{
    const mhai_heads heads = mhai_transformer_heads_of(d, layer, false);
    const int64_t D = d->head_dim, most = 1 << 20;
    const bool rotates = d->positions == MHA_ENCODING_ROTARY && !(l->flags & MHA_LAYER_NO_ROPE);
    if (l->head_norm_epsilon == 0) l->head_norm_epsilon = d->norm_epsilon;
    if (rotates && l->rotary_dim == 0) l->rotary_dim = l->shared_dim;
    if (l->flags & (MHA_LAYER_QK_NORM | MHA_LAYER_OUTPUT_GATE) || heads.kv != heads.q ||
        d->flags & MHA_TRANSFORMER_CROSS)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_layer_desc: latent attention has a key/value head for each head (here "
                        "%lld for %lld), and no norms of queries and keys, output gates or "
                        "cross-attention",
                        (long long)heads.kv, (long long)heads.q);
    if (!in_bounds(l->latent_dim, most) || !in_bounds(l->value_dim, most) ||
        l->query_latent_dim < 0 || l->query_latent_dim > most || l->shared_dim < 0 ||
        l->shared_dim >= D || D > most || heads.q * mhai_max_i64(D, l->value_dim) > INT32_MAX)
        return mha_fail(
            MHA_ERR_ARGUMENT,
            "mha_layer_desc: latent_dim is %lld, value_dim %lld, query_latent_dim %lld, "
            "shared_dim %lld, head_dim %lld; expected 1..%lld, 1..%lld, 0..%lld, less "
            "than head_dim, and at most %d numbers in all heads",
            (long long)l->latent_dim, (long long)l->value_dim, (long long)l->query_latent_dim,
            (long long)l->shared_dim, (long long)D, (long long)most, (long long)most,
            (long long)most, INT32_MAX);
    if (rotates && (l->rotary_dim > l->shared_dim || l->rotary_dim == 0))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_layer_desc: rotary_dim is %lld, expected 2..%lld (shared_dim): latent "
                        "attention rotates only shared elements; or set MHA_LAYER_NO_ROPE",
                        (long long)l->rotary_dim, (long long)l->shared_dim);
    if (l->head_norm_epsilon > 0 && !isinf(l->head_norm_epsilon)) return MHA_OK;
    return mha_fail(MHA_ERR_ARGUMENT,
                    "mha_layer_desc: head_norm_epsilon is %g, expected a finite number above 0",
                    (double)l->head_norm_epsilon);
}

/* Check the sizes of a layer, and the rotation of a part of its pairs. */
static mha_status check_own_sizes(const mha_transformer_desc *d, mha_layer_desc *l)
{
    const int64_t most = 1 << 20;
    if (l->head_dim == d->head_dim) l->head_dim = 0;
    if (l->ff_dim == d->ff_dim) l->ff_dim = 0;
    if (l->head_dim < 0 || l->head_dim > most || l->ff_dim < 0 || l->ff_dim > most ||
        l->input_dim < 0 || l->input_dim > most || l->rope_pairs < 0 || l->rope_pairs > most)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_layer_desc: head_dim is %lld, ff_dim %lld, input_dim %lld, rope_pairs "
                        "%lld; expected 0..%lld",
                        (long long)l->head_dim, (long long)l->ff_dim, (long long)l->input_dim,
                        (long long)l->rope_pairs, (long long)most);
    if (l->ff_dim > 0 &&
        (d->ff_dim == 0 || l->experts.count > 0 || l->flags & MHA_LAYER_NO_FEED_FORWARD))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_layer_desc: ff_dim is %lld, expected 0 in a layer with experts or "
                        "without a feed-forward part",
                        (long long)l->ff_dim);
    if ((l->head_dim > 0 || l->kv_back > 0 || l->flags & MHA_LAYER_V_NORM) &&
        (l->latent_dim > 0 || l->relative_rows > 0))
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_layer_desc: latent attention and relative_rows exclude head_dim, "
                        "kv_back and MHA_LAYER_V_NORM");
    return MHA_OK;
}

/* Check what a layer adds after its feed-forward part. */
static mha_status check_end(const mha_transformer_desc *d, const mha_layer_desc *l)
{
    const uint32_t others =
        MHA_TRANSFORMER_POST_NORM | MHA_TRANSFORMER_CROSS | MHA_TRANSFORMER_PARALLEL;
    if (l->input_dim == 0 && !(l->flags & MHA_LAYER_OUTPUT_SCALE)) return MHA_OK;
    if (d->norm == MHA_NORM_RMS && !(d->flags & others) && d->ff_dim > 0 &&
        !(l->flags & MHA_LAYER_NO_FEED_FORWARD) && d->feature_dim == 0 &&
        (l->input_dim == 0 || mha_feed_forward_gated(d->feed_forward)))
        return MHA_OK;
    return mha_fail(MHA_ERR_UNSUPPORTED,
                    "mha_layer_desc: input_dim and MHA_LAYER_OUTPUT_SCALE need pre-norm with "
                    "MHA_NORM_RMS and feed-forward layers, and no cross-attention, parallel blocks "
                    "or feature_dim; input_dim also a gated feed_forward");
}

/* Check that a layer can use the keys and values of an earlier one. */
static mha_status check_lender(const mha_transformer_desc *d, int64_t layer,
                               const mha_layer_desc *own)
{
    const mha_layer_desc *l = &own[layer], *from = l - l->kv_back;
    const uint32_t kinds = MHA_LAYER_WINDOW;
    if (l->kv_back == 0) return MHA_OK;
    if (l->kv_back < 0 || l->kv_back > layer)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_layer_desc: kv_back is %lld, expected 0..%lld",
                        (long long)l->kv_back, (long long)layer);
    const mhai_heads heads = mhai_transformer_heads_of(d, layer, false);
    const mhai_heads theirs = mhai_transformer_heads_of(d, layer - l->kv_back, false);
    if (!from->mixer && from->kv_back == 0 && from->latent_dim == 0 && heads.q > 0 &&
        heads.kv == theirs.kv && l->head_dim == from->head_dim &&
        (l->flags & kinds) == (from->flags & kinds) && l->left_keys == from->left_keys &&
        l->right_keys == from->right_keys && l->sink_keys == from->sink_keys &&
        !(l->flags & MHA_LAYER_QK_NORM_ROW) && !(d->flags & MHA_TRANSFORMER_CROSS))
        return MHA_OK;
    return mha_fail(MHA_ERR_UNSUPPORTED,
                    "mha_layer_desc: kv_back is %lld, but layer %lld does not attend with keys of "
                    "its own, and the same number of key/value heads (%lld, here %lld), head_dim "
                    "and window; or the transformer has cross-attention or norms across heads",
                    (long long)l->kv_back, (long long)(layer - l->kv_back), (long long)theirs.kv,
                    (long long)heads.kv);
}

static mha_status fill_defaults(const mha_transformer_desc *d, int64_t layer, mha_layer_desc *l)
{
    const uint32_t other_blocks = MHA_TRANSFORMER_POST_NORM | MHA_TRANSFORMER_BRANCH_NORM |
                                  MHA_TRANSFORMER_CROSS | MHA_TRANSFORMER_PARALLEL;
    MHA_TRY(mhai_experts_check(d, &l->experts));
    if (l->flags & MHA_LAYER_NO_FEED_FORWARD &&
        (d->ff_dim == 0 || l->experts.count > 0 || d->flags & MHA_TRANSFORMER_PARALLEL))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_layer_desc: MHA_LAYER_NO_FEED_FORWARD: only with an ff_dim, and "
                        "without experts and parallel blocks");
    MHA_TRY(mhai_check_range("mha_layer_desc: mixer", l->mixer, 0, MHA_MIXER_STATE_SPACE));
    const bool latent = l->latent_dim != 0 || l->query_latent_dim != 0 || l->shared_dim != 0;
    if (l->mixer == MHA_MIXER_SHORT_CONVOLUTION) return check_convolution(d, l, layer);
    if (l->mixer) {
        const bool delta = l->mixer == MHA_MIXER_GATED_DELTA;
        MHA_TRY(check_recurrent(d, l, layer));
        if (delta && l->strength_scale == 0) l->strength_scale = 1;
        if (delta && l->head_norm_epsilon == 0) l->head_norm_epsilon = d->norm_epsilon;
        return MHA_OK;
    }
    if (l->conv_kernel || l->key_dim || l->step_least != 0 || l->step_most != 0 ||
        l->strength_scale != 0 || l->gate_rank ||
        (!latent && (l->value_dim || l->head_norm_epsilon != 0)))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_layer_desc: conv_kernel, key_dim, value_dim, step_least, step_most, "
                        "strength_scale, head_norm_epsilon and gate_rank: only with a mixer; "
                        "value_dim and head_norm_epsilon also with latent_dim");
    MHA_TRY(mhai_check_flags("mha_layer_desc", l->flags, KNOWN_FLAGS));
    const uint32_t norms = MHA_LAYER_BRANCH_NORM | MHA_LAYER_NO_ATTENTION_NORM;
    if (latent) MHA_TRY(check_latent(d, layer, l));
    if (l->flags & norms &&
        (d->norm == MHA_NORM_NONE || d->flags & other_blocks || (l->flags & norms) == norms))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_layer_desc: MHA_LAYER_%s: only in a transformer with "
                        "pre-norm, without branch norms, cross-attention and parallel blocks",
                        l->flags & MHA_LAYER_BRANCH_NORM ? "BRANCH_NORM" : "NO_ATTENTION_NORM");
    MHA_TRY(check_own_sizes(d, l));
    MHA_TRY(check_end(d, l));
    MHA_TRY(check_settings(d, l));
    MHA_TRY(mhai_relative_check(d, layer, l));
    MHA_TRY(mhai_check_range("mha_layer_desc: t5_buckets", l->t5_buckets, 0, INT32_MAX));
    if (l->flags & MHA_LAYER_QK_NORM && l->qk_norm_epsilon == 0)
        l->qk_norm_epsilon = l->qk_norm == MHA_QK_NORM_L2 ? 1e-12f : 1e-6f;
    if (d->positions == MHA_ENCODING_ROTARY && !(l->flags & MHA_LAYER_NO_ROPE)) {
        if (l->rotary_dim == 0) l->rotary_dim = l->head_dim > 0 ? l->head_dim : d->head_dim;
        if (l->rope_base == 0) l->rope_base = d->rope_base;
        if (l->rope_factor == 0) l->rope_factor = 1;
        if (l->rope_pairs > l->rotary_dim / 2 || (l->rope_pairs > 0 && d->grid_rows > 0))
            return mha_fail(
                MHA_ERR_ARGUMENT,
                "mha_layer_desc: rope_pairs is %lld, expected 0..%lld (rotary_dim / 2), "
                "and 0 with grid_rows",
                (long long)l->rope_pairs, (long long)l->rotary_dim / 2);
        return fill_scaling(l);
    }
    return MHA_OK;
}

/* Read one layer of the caller's array. Every layer has the struct_size of the first. */
static mha_status read_layer(const void *given, uint32_t size, mha_layer_desc *own)
{
    uint32_t said;
    memcpy(&said, given, sizeof said);
    if (said != size)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_layer_desc: struct_size is %u and that of layer 0 %u; set one for all",
                        (unsigned)said, (unsigned)size);
    MHA_TRY(mhai_struct_copy("mha_layer_desc", own, sizeof *own, sizeof *own, given));
    own->struct_size = sizeof *own;
    return MHA_OK;
}

/* Add the layer's number to its error. */
static mha_status fail_layer(mha_status status, int64_t layer)
{
    char detail[240];
    snprintf(detail, sizeof detail, "%s", mha_error_detail());
    return mha_fail(status, "layer %lld: %s", (long long)layer, detail);
}

mha_status mhai_transformer_read_layers(const mha_transformer_desc *d, mha_layer_desc *own,
                                        bool *plain)
{
    const mha_layer_desc none = {.struct_size = sizeof none};
    const unsigned char *given = (const unsigned char *)d->layers;
    *plain = true;
    for (int64_t i = 0; i < d->num_layers; i++, given += d->layers->struct_size) {
        mha_status status = read_layer(given, d->layers->struct_size, &own[i]);
        if (memcmp(&own[i], &none, sizeof none) != 0) *plain = false;
        if (status == MHA_OK) status = fill_defaults(d, i, &own[i]);
        if (status == MHA_OK) status = check_lender(d, i, own);
        if (status != MHA_OK) return fail_layer(status, i);
    }
    return MHA_OK;
}

/* The layers whose rotation depends on the length share it. */
static mha_status find_pairs(mha_transformer *t)
{
    for (int64_t i = 0; i < t->desc.num_layers; i++) {
        const mha_layer_desc *l = &t->desc.layers[i];
        if (l->rope_scaling != MHA_ROPE_SCALING_LONG) continue;
        if (t->pairs > 0 && (2 * t->pairs != l->rotary_dim || t->border != l->rope_original_length))
            return mha_fail(MHA_ERR_ARGUMENT,
                            "mha_layer_desc: rotary_dim is %lld, rope_original_length %lld; "
                            "earlier layers with MHA_ROPE_SCALING_LONG have %lld and %lld",
                            (long long)l->rotary_dim, (long long)l->rope_original_length,
                            2 * (long long)t->pairs, (long long)t->border);
        t->pairs = l->rotary_dim / 2;
        t->border = l->rope_original_length;
    }
    return MHA_OK;
}

mha_status mhai_transformer_copy_factors(mha_transformer *t)
{
    const float *given = t->desc.rope_factors;
    t->desc.rope_factors = NULL;
    if (t->desc.layers) MHA_TRY(find_pairs(t));
    if (t->pairs == 0) return MHA_OK;
    if (!given)
        return mha_fail(MHA_ERR_NULL, "mha_transformer_desc: rope_factors is NULL, which "
                                      "MHA_ROPE_SCALING_LONG needs");
    MHA_TRY(mhai_take_for("transformer", &t->allocator, 2 * t->pairs, sizeof *t->rope_factors,
                          &t->rope_factors));
    for (int64_t i = 0; i < 2 * t->pairs; i++) {
        if (!(given[i] > 0) || isinf(given[i]))
            return mha_fail(MHA_ERR_ARGUMENT,
                            "mha_transformer_desc: rope_factors[%lld] is %g, expected a finite "
                            "number above 0",
                            (long long)i, (double)given[i]);
        t->rope_factors[i] = given[i];
    }
    t->desc.rope_factors = t->rope_factors;
    return MHA_OK;
}

/* ---- encodings ----------------------------------------------------------------------------- */

/* The settings of a layer that determine its rotation. */
static mha_layer_desc rotation_of(const mha_layer_desc *l)
{
    return (mha_layer_desc){.flags = l->flags & MHA_LAYER_ROPE_EXACT_RAMP,
                            .rotary_dim = l->rotary_dim,
                            .rope_pairs = l->rope_pairs,
                            .rope_base = l->rope_base,
                            .rope_factor = l->rope_factor,
                            .rope_scaling = l->rope_scaling,
                            .rope_low = l->rope_low,
                            .rope_high = l->rope_high,
                            .rope_amplitude = l->rope_amplitude,
                            .rope_original_length = l->rope_original_length};
}

/* Find or create the table of a rotation. It has room for all positions;
 * untouched pages cost no memory. */
static mha_status take_encoding(mha_transformer *t, int64_t width, const mha_layer_desc *layer,
                                mhai_encoding **taken)
{
    size_t bytes;
    const mha_layer_desc rotation = rotation_of(layer);
    for (mhai_encoding *e = t->encodings; e; e = e->next)
        if (e->width == width && memcmp(&e->rotation, &rotation, sizeof rotation) == 0) {
            *taken = e;
            return MHA_OK;
        }
    const int64_t parts = t->pairs > 0 ? 2 : 1;
    if (!mhai_mul_size((size_t)(parts * t->desc.max_length * width), sizeof(float), &bytes) ||
        bytes > PTRDIFF_MAX - sizeof **taken)
        return mha_fail(MHA_ERR_SIZE, "transformer: %lld positions do not fit in memory",
                        (long long)t->desc.max_length);
    bytes += sizeof **taken;
    mhai_encoding *made = t->allocator.alloc(t->allocator.user, bytes, 64);
    if (!made) return mha_fail(MHA_ERR_NOMEM, "transformer: cannot allocate %zu bytes", bytes);
    *made =
        (mhai_encoding){.next = t->encodings, .bytes = bytes, .width = width, .rotation = rotation};
    if (rotation.rope_scaling == MHA_ROPE_SCALING_LONG) made->factors = t->rope_factors;
    if (pthread_mutex_init(&made->growing, NULL) != 0) {
        t->allocator.release(t->allocator.user, made, bytes);
        return mha_fail(MHA_ERR_NOMEM, "transformer: cannot create a mutex");
    }
    *taken = t->encodings = made;
    return MHA_OK;
}

void mhai_transformer_free_encodings(mha_transformer *t)
{
    while (t->encodings) {
        mhai_encoding *e = t->encodings;
        t->encodings = e->next;
        pthread_mutex_destroy(&e->growing);
        t->allocator.release(t->allocator.user, e, e->bytes);
    }
}

static double clamp(double x, double most)
{
    return x < 0 ? 0 : x > most ? most : x;
}

/* The (fractional) pair that makes this number of turns over the original length. */
static double pair_of_turns(const mha_layer_desc *r, double turns)
{
    const double length = (double)r->rope_original_length, pi = 3.14159265358979323846;
    return (double)r->rotary_dim * mha_log(length / (turns * 2 * pi)) /
           (2 * mha_log((double)r->rope_base));
}

/* The divisor of the frequency of pair i. factors: with MHA_ROPE_SCALING_LONG. */
static double divisor_of(const mha_layer_desc *r, const float *factors, int64_t i, double frequency)
{
    const double factor = (double)r->rope_factor, low = (double)r->rope_low,
                 high = (double)r->rope_high;
    double slow; /* 1: divide by factor, 0: unchanged */
    if (r->rope_scaling == MHA_ROPE_SCALING_LONG) return (double)factors[i];
    if (!r->rope_scaling) return factor;
    if (r->rope_scaling == MHA_ROPE_SCALING_LLAMA3) {
        const double turns = (double)r->rope_original_length * frequency / 6.28318530717958647693;
        slow = clamp((high - turns) / (high - low), 1);
    } else {
        const double last = (double)(r->rotary_dim - 1);
        const double begin = pair_of_turns(r, high), end = pair_of_turns(r, low);
        const bool exact = r->flags & MHA_LAYER_ROPE_EXACT_RAMP;
        const double from = clamp(exact ? begin : floor(begin), last);
        const double to = clamp(exact ? end : ceil(end), last);
        slow = clamp(((double)i - from) / (to > from ? to - from : 1e-3), 1);
    }
    return 1 / (slow / factor + (1 - slow));
}

static double frequency_of(const mha_layer_desc *r, int64_t i)
{
    return mha_exp(-2 * (double)i / (double)r->rotary_dim * mha_log((double)r->rope_base));
}

/* Rotating (1, 0) gives the cosine and the sine. */
mha_status mhai_transformer_turns(mha_context *context, const mhai_encoding *e, bool longer,
                                  int64_t begin, int64_t rows, float *first)
{
    const mha_layer_desc *r = &e->rotation;
    const int64_t width = e->width, half = width / 2;
    const float *factors = e->factors && longer ? e->factors + half : e->factors;
    mha_rope_desc rope = {.struct_size = sizeof rope,
                          .pairing = MHA_ROPE_HALVES,
                          .base = (double)r->rope_base,
                          .factor = (double)r->rope_factor,
                          .positions = {.start = begin}};
    const int64_t pairs = r->rope_pairs > 0 ? r->rope_pairs : half;
    for (int64_t i = 0; i < rows * width; i++) first[i] = i % width < half ? 1 : 0;
    if (!r->rope_scaling && pairs == half) {
        mha_tensor x = mha_tensor_bthd(first, 1, rows, 1, width);
        return mha_rope_apply(context, &rope, &x, &x);
    }
    for (int64_t i = 0; i < pairs; i++) { /* one pair at a time, at its own frequency */
        const double frequency = frequency_of(r, i);
        mha_tensor x = mha_tensor_bthd(first + i, 1, rows, 1, 2);
        x.stride[2] = width;
        x.stride[3] = half;
        rope.factor = divisor_of(r, factors, i, frequency) / frequency;
        MHA_TRY(mha_rope_apply(context, &rope, &x, &x));
    }
    for (int64_t i = 0; r->rope_scaling >= MHA_ROPE_SCALING_YARN && i < rows * width; i++)
        first[i] *= r->rope_amplitude;
    return MHA_OK;
}

/* Cosines and sines by the rows and columns of patches. */
static void fill_grid(const mha_transformer_desc *d, const mhai_encoding *e, int64_t begin,
                      int64_t rows, float *to)
{
    const int64_t half = e->width / 2, quarter = half / 2;
    for (int64_t t = begin; t < begin + rows; t++, to += e->width)
        for (int64_t i = 0; i < half; i++) {
            const int64_t at = t - d->grid_first, down = at / d->grid_cols;
            const double y = (double)(2 * down + 1) / (double)d->grid_rows - 1;
            const double x = (double)(2 * (at % d->grid_cols) + 1) / (double)d->grid_cols - 1;
            const double turn = 6.28318530717958647693 * (i < quarter ? y : x) *
                                frequency_of(&e->rotation, 2 * (i % quarter));
            double sine, cosine;
            mhai_sin_cos(at < 0 ? 0 : turn, &sine, &cosine);
            to[i] = (float)cosine;
            to[half + i] = (float)sine;
        }
}

static mha_status grow(mha_context *context, const mha_transformer *t, mhai_encoding *e,
                       int64_t count)
{
    const int64_t width = e->width, begin = e->rows;
    if (count > t->desc.max_length) count = t->desc.max_length;
    if (count <= begin) return MHA_OK;
    float *first = e->values + begin * width;
    if (t->desc.positions == MHA_ENCODING_SINUSOIDAL) {
        mha_tensor table = mhai_transformer_rows(first, count - begin, width, width);
        MHA_TRY(mha_sinusoidal_encoding(context, begin, &table));
    } else if (t->desc.grid_rows > 0) {
        fill_grid(&t->desc, e, begin, count - begin, first);
    } else {
        MHA_TRY(mhai_transformer_turns(context, e, false, begin, count - begin, first));
        if (t->pairs > 0)
            MHA_TRY(mhai_transformer_turns(context, e, true, begin, count - begin,
                                           first + t->desc.max_length * width));
    }
    e->rows = count;
    return MHA_OK;
}

mha_status mhai_transformer_encode(mha_context *context, const mha_transformer *t, int64_t count)
{
    mha_status status = MHA_OK;
    for (mhai_encoding *e = t->encodings; e && status == MHA_OK; e = e->next) {
        pthread_mutex_lock(&e->growing);
        status = grow(context, t, e, count);
        pthread_mutex_unlock(&e->growing);
    }
    return status;
}

/* The default settings of a layer. */
static mha_layer_desc usual_layer(const mha_transformer_desc *d)
{
    return (mha_layer_desc){.rotary_dim = d->head_dim, .rope_base = d->rope_base, .rope_factor = 1};
}

mha_status mha_transformer_rotation(const mha_transformer *t, int64_t layer,
                                    mha_layer_rotation *rotation)
{
    MHA_NEED_AS("mha_transformer_rotation", "transformer, rotation", t, rotation);
    if (t->desc.grid_rows > 0)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_transformer_rotation: the rotations depend on the "
                        "rows and columns of patches, not on positions");
    if (rotation->struct_size != sizeof *rotation)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_layer_rotation: struct_size is %u, set it to "
                        "sizeof(mha_layer_rotation)",
                        (unsigned)rotation->struct_size);
    if (layer < 0 || layer >= t->desc.num_layers)
        return mha_fail(MHA_ERR_ARGUMENT, "there is no layer %lld, the last is %lld",
                        (long long)layer, (long long)t->desc.num_layers - 1);
    const mha_layer_desc usual = usual_layer(&t->desc);
    const mha_layer_desc *l = t->desc.layers ? &t->desc.layers[layer] : &usual;
    double *frequencies = rotation->frequencies;
    *rotation = (mha_layer_rotation){
        .struct_size = sizeof *rotation, .amplitude = 1, .frequencies = frequencies};
    rotation->pairing =
        l->flags & MHA_LAYER_ROPE_INTERLEAVED ? MHA_ROPE_INTERLEAVED : MHA_ROPE_HALVES;
    if (t->desc.positions != MHA_ENCODING_ROTARY || l->flags & MHA_LAYER_NO_ROPE) return MHA_OK;
    rotation->rotary_dim = l->rotary_dim;
    if (l->rope_scaling >= MHA_ROPE_SCALING_YARN) rotation->amplitude = (double)l->rope_amplitude;
    for (int64_t i = 0; frequencies && i < l->rotary_dim / 2; i++) {
        const double frequency = frequency_of(l, i);
        frequencies[i] = frequency / divisor_of(l, t->rope_factors, i, frequency);
        if (l->rope_pairs > 0 && i >= l->rope_pairs) frequencies[i] = 0;
    }
    return MHA_OK;
}

/* ---- a layer's attention --------------------------------------------------------------------- */

static mha_status rotate(mha_context *context, mha_transformer *t, const mha_layer_desc *l,
                         const mhai_mix *mix, mhai_place_attention *place)
{
    mhai_attend *a = &place->attend;
    mhai_encoding *table;
    a->rotates = true;
    a->rope = (mha_rope_desc){
        .struct_size = sizeof a->rope,
        .pairing = l->flags & MHA_LAYER_ROPE_INTERLEAVED ? MHA_ROPE_INTERLEAVED : MHA_ROPE_HALVES,
        .rotary_dim = l->rotary_dim,
        .base = (double)l->rope_base,
        .factor = (double)l->rope_factor};
    MHA_TRY(mhai_attend_check(context, a, mix->D));
    if (t->desc.grid_rows > 0 && (l->rotary_dim % 4 != 0 || l->rope_scaling))
        return mha_fail(
            MHA_ERR_UNSUPPORTED,
            "grid_rows: %lld elements of a head rotate, expected a multiple of 4 without "
            "rope_scaling",
            (long long)l->rotary_dim);
    if (mix->q == 0) return MHA_OK;
    MHA_TRY(take_encoding(t, l->rotary_dim, l, &table));
    const int64_t half = l->rotary_dim / 2, rows = (t->pairs > 0 ? 2 : 1) * t->desc.max_length;
    place->cosines = mhai_transformer_rows(table->values, rows, half, l->rotary_dim);
    place->sines = mhai_transformer_rows(table->values + half, rows, half, l->rotary_dim);
    a->rope.base = a->rope.factor = 0;
    a->rope.cos_table = &place->cosines;
    a->rope.sin_table = &place->sines;
    return MHA_OK;
}

/* Let attention validate every field of the descriptor. */
static mha_status explain(mha_context *context, const mhai_attend *a, mhai_heads heads, int64_t D,
                          int64_t Dv)
{
    const mha_tensor q = mha_tensor_contiguous(NULL, MHA_F32, 4, (int64_t[]){1, heads.q, 1, D});
    const mha_tensor k = mha_tensor_contiguous(NULL, MHA_F32, 4, (int64_t[]){1, heads.kv, 1, D});
    const mha_tensor v = mha_tensor_contiguous(NULL, MHA_F32, 4, (int64_t[]){1, heads.kv, 1, Dv});
    const mha_tensor o = mha_tensor_contiguous(NULL, MHA_F32, 4, (int64_t[]){1, heads.q, 1, Dv});
    mha_attention_plan plan;
    return mha_attention_explain(context, &a->desc, &q, &k, &v, &o, NULL, &plan);
}

/* Set up views of the parameters that attention reads directly. */
static mha_status view_parameters(mha_transformer *t, const mha_layer_desc *l, mhai_heads heads,
                                  mhai_place_attention *place)
{
    mha_attention_desc *desc = &place->attend.desc;
    if (l->flags & MHA_LAYER_SINKS) {
        place->sink_logits =
            mhai_transformer_vector(mhai_transformer_numbers(t, place->sinks), heads.q);
        desc->sink_logits = &place->sink_logits;
    }
    if (l->flags & MHA_LAYER_ALIBI) {
        MHA_TRY(mha_alibi_slopes(heads.q, mhai_transformer_numbers(t, place->slopes)));
        place->alibi_slopes =
            mhai_transformer_vector(mhai_transformer_numbers(t, place->slopes), heads.q);
        desc->alibi_slopes = &place->alibi_slopes;
    }
    if (l->t5_buckets > 0) {
        desc->t5_max_distance = l->t5_max_distance;
        if (desc->flags & MHA_ATTENTION_CAUSAL) desc->flags |= MHA_ATTENTION_T5_ONE_SIDED;
        place->t5_table = mhai_transformer_rows(mhai_transformer_numbers(t, place->t5),
                                                l->t5_buckets, heads.q, heads.q);
        desc->t5_table = &place->t5_table;
    }
    return MHA_OK;
}

/* A layer without heads has no parameters. Its description is checked nevertheless. */
static mha_status make_layer(mha_context *context, mha_transformer *t, int64_t layer)
{
    const mha_transformer_desc *d = &t->desc;
    const mhai_heads heads = mhai_transformer_heads_of(d, layer, false);
    const mha_layer_desc usual = usual_layer(d);
    const mha_layer_desc *l = d->layers ? &d->layers[layer] : &usual;
    const bool causal = mhai_transformer_has(t, MHA_TRANSFORMER_CAUSAL);
    mhai_place_attention *place = &t->layers[layer].self;
    const mhai_mix mix = mhai_transformer_mix(d, layer);
    mhai_attend *a = &place->attend;
    int64_t bucket;
    if (l->mixer || (heads.q == 0 && !d->layers)) return MHA_OK;
    *a = (mhai_attend){.desc = {.struct_size = sizeof a->desc,
                                .flags = causal ? MHA_ATTENTION_CAUSAL : 0,
                                .scale = l->scale,
                                .softcap = l->softcap,
                                .left_keys = l->left_keys,
                                .right_keys = l->right_keys,
                                .sink_keys = l->sink_keys},
                       .qk_norm = l->qk_norm,
                       .norms_row = l->flags & MHA_LAYER_QK_NORM_ROW,
                       .norms_values = l->flags & MHA_LAYER_V_NORM,
                       .qk_norm_epsilon = l->qk_norm_epsilon};
    if (l->flags & MHA_LAYER_SCALE_GIVEN) a->desc.flags |= MHA_ATTENTION_SCALE_GIVEN;
    if (l->flags & MHA_LAYER_WINDOW) a->desc.flags |= MHA_ATTENTION_WINDOW;
    if (l->flags & MHA_LAYER_QK_NORM) {
        a->q_norm = mhai_transformer_numbers(t, place->q_norm);
        if (!mix.borrows) a->k_norm = mhai_transformer_numbers(t, place->k_norm);
        MHA_TRY(mhai_attend_check(context, a, mix.D));
    }
    if (heads.q > 0)
        MHA_TRY(view_parameters(t, l, heads, place));
    else if (l->t5_buckets > 0)
        MHA_TRY(mha_t5_bucket(0, l->t5_buckets, l->t5_max_distance, causal, &bucket));
    MHA_TRY(explain(context, a, heads.q > 0 ? heads : (mhai_heads){1, 1}, mix.D, mix.Dv));
    if (d->positions != MHA_ENCODING_ROTARY || l->flags & MHA_LAYER_NO_ROPE) return MHA_OK;
    return rotate(context, t, l, &mix, place);
}

mha_status mhai_transformer_make_layers(mha_context *context, mha_transformer *t)
{
    mhai_encoding *table;
    static const mha_layer_desc none;
    if (t->desc.positions == MHA_ENCODING_SINUSOIDAL)
        MHA_TRY(take_encoding(t, t->desc.embed_dim, &none, &table));
    for (int64_t i = 0; i < t->desc.num_layers; i++) {
        t->layers[i].cross.attend.desc = (mha_attention_desc){
            .struct_size = sizeof(mha_attention_desc), .scale = t->desc.cross_scale};
        const mha_status status = make_layer(context, t, i);
        if (status != MHA_OK) return t->desc.layers ? fail_layer(status, i) : status;
    }
    return MHA_OK;
}
