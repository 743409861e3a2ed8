/* Parameters of a transformer: one flat array, a table of names, and packed matrices. */
#include "transformer/transformer_parts.h"

#include "base/checked.h"
#include "base/context.h"
#include "base/need.h"
#include "nn/linear.h"
#include "ranks/rank_messages.h"

#include <multihead/position.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- description --------------------------------------------------------------------------- */

static mha_status check_heads(mha_transformer_desc *d)
{
    if (d->head_dim == 0 && d->embed_dim % d->num_heads != 0)
        return mha_fail(MHA_ERR_SHAPE,
                        "embed_dim %lld is not a multiple of num_heads %lld; choose another number "
                        "of heads or set head_dim",
                        (long long)d->embed_dim, (long long)d->num_heads);
    if (d->head_dim == 0) d->head_dim = d->embed_dim / d->num_heads;
    if (d->kv_heads == 0) d->kv_heads = d->num_heads;
    MHA_TRY(mhai_check_range("mha_transformer_desc: head_dim", d->head_dim, 1, INT32_MAX));
    MHA_TRY(mhai_check_range("mha_transformer_desc: kv_heads", d->kv_heads, 1, INT32_MAX));
    if (d->num_heads % d->kv_heads != 0)
        return mha_fail(MHA_ERR_SHAPE, "num_heads %lld is not a multiple of kv_heads %lld",
                        (long long)d->num_heads, (long long)d->kv_heads);
    if (d->positions == MHA_ENCODING_ROTARY && d->head_dim % 2 != 0 && !d->layers)
        return mha_fail(MHA_ERR_SHAPE, "head_dim is %lld, rotary positions need an even one",
                        (long long)d->head_dim);
    return MHA_OK;
}

static mha_status check_layer(mha_transformer_desc *d, int64_t layer)
{
    const int64_t heads = d->layer_heads[layer];
    MHA_TRY(mhai_check_entry("layer_heads", layer, heads, 0, d->num_heads));
    const int64_t own = d->kv_heads == d->num_heads ? heads : heads > 0 ? d->kv_heads : 0;
    const int64_t kv = d->layer_kv_heads ? d->layer_kv_heads[layer] : own;
    if (heads == 0 ? kv == 0 : kv >= 1 && kv <= heads && heads % kv == 0) return MHA_OK;
    return mha_fail(MHA_ERR_SHAPE,
                    "layer %lld has %lld heads and %lld key/value heads; expected a divisor, set "
                    "layer_kv_heads",
                    (long long)layer, (long long)heads, (long long)kv);
}

/* Check the numbers of heads per layer. A list that only repeats num_heads or
 * kv_heads becomes NULL. */
static mha_status check_layers(mha_transformer_desc *d)
{
    bool same = true;
    if (d->layer_kv_heads && !d->layer_heads)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_transformer_desc: layer_kv_heads without "
                                          "layer_heads; set both");
    for (int64_t i = 0; d->layer_heads && i < d->num_layers; i++) {
        MHA_TRY(check_layer(d, i));
        same = same && d->layer_heads[i] == d->num_heads &&
               (!d->layer_kv_heads || d->layer_kv_heads[i] == d->kv_heads);
    }
    if (same) d->layer_heads = d->layer_kv_heads = NULL;
    return MHA_OK;
}

/* Reject combinations of block settings that exclude each other. */
static mha_status check_blocks(const mha_transformer_desc *d)
{
    const uint32_t norms = MHA_TRANSFORMER_POST_NORM | MHA_TRANSFORMER_BRANCH_NORM;
    if (d->norm == MHA_NORM_NONE && d->flags & (norms | MHA_TRANSFORMER_EMBEDDING_NORM))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_transformer_desc: post-norm, branch norms and a norm "
                        "on the embeddings need a norm: set layer or RMS");
    if ((d->flags & norms) == norms)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_transformer_desc: post-norm and branch norms exclude "
                        "each other");
    if (d->flags & MHA_TRANSFORMER_NO_INPUT_NORM && !(d->flags & MHA_TRANSFORMER_BRANCH_NORM))
        return mha_fail(MHA_ERR_ARGUMENT, "mha_transformer_desc: MHA_TRANSFORMER_NO_INPUT_NORM: "
                                          "only with MHA_TRANSFORMER_BRANCH_NORM");
    if (d->flags & MHA_TRANSFORMER_NO_NORM_BIAS && d->norm != MHA_NORM_LAYER)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_transformer_desc: MHA_TRANSFORMER_NO_NORM_BIAS: "
                                          "only with MHA_NORM_LAYER");
    if (d->flags & MHA_TRANSFORMER_ONE_NORM &&
        (!(d->flags & MHA_TRANSFORMER_PARALLEL) || d->norm == MHA_NORM_NONE))
        return mha_fail(MHA_ERR_ARGUMENT, "mha_transformer_desc: MHA_TRANSFORMER_ONE_NORM: only "
                                          "with MHA_TRANSFORMER_PARALLEL and a norm");
    if (!(d->flags & MHA_TRANSFORMER_PARALLEL)) return MHA_OK;
    if (d->flags & (norms | MHA_TRANSFORMER_CROSS) || d->ff_dim == 0)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_transformer_desc: parallel blocks have a feed-forward layer, and no "
                        "post-norm, branch norms or cross-attention");
    return MHA_OK;
}

/* MHA_TRANSFORMER_BIAS is shorthand for all bias flags. */
static void join_biases(mha_transformer_desc *d)
{
    const uint32_t single =
        MHA_TRANSFORMER_QKV_BIAS | MHA_TRANSFORMER_OUT_BIAS | MHA_TRANSFORMER_FF_BIAS;
    if ((d->flags & single) == single) d->flags |= MHA_TRANSFORMER_BIAS;
    if (d->flags & MHA_TRANSFORMER_BIAS) d->flags &= ~single;
}

static mha_status check_factors(mha_transformer_desc *d)
{
    const struct {
        const char *name;
        float *value;
    } scales[] = {{"embed_scale", &d->embed_scale},
                  {"residual_scale", &d->residual_scale},
                  {"logit_scale", &d->logit_scale},
                  {"cross_scale", &d->cross_scale}};
    for (int i = 0; i < 4; i++) {
        if (*scales[i].value == 0 && i < 3) *scales[i].value = 1;
        if (!isfinite(*scales[i].value))
            return mha_fail(MHA_ERR_ARGUMENT, "%s is %g, expected a finite number", scales[i].name,
                            (double)*scales[i].value);
    }
    if (d->logit_softcap == 0) return MHA_OK;
    if (!(d->logit_softcap >= 0x1p-126f && d->logit_softcap <= 0x1p127f))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "logit_softcap is %g, expected a number in 2^-126 .. 2^127, or 0 for none",
                        (double)d->logit_softcap);
    if (!(d->flags & MHA_TRANSFORMER_NO_OUTPUT)) return MHA_OK;
    return mha_fail(MHA_ERR_ARGUMENT, "logit_softcap: this transformer has no logits "
                                      "(MHA_TRANSFORMER_NO_OUTPUT)");
}

static mha_status check_kinds(const mha_transformer_desc *d)
{
    const uint32_t known = MHA_TRANSFORMER_RELATIVE_NORM * 2 - 1;
    const bool padding = d->flags & MHA_TRANSFORMER_PADDING;
    if (d->flags & ~known || (d->padding_token && !padding))
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_transformer_desc: flags 0x%x or padding_token %d",
                        (unsigned)d->flags, (int)d->padding_token);
    if (padding && (d->positions != MHA_ENCODING_LEARNED || d->flags & MHA_TRANSFORMER_CAUSAL ||
                    d->padding_token < 0 || d->padding_token >= d->vocab_size))
        return mha_fail(
            MHA_ERR_ARGUMENT,
            "mha_transformer_desc: padding_token is %d, expected a token of 0..%lld, with "
            "learned positions and not causal",
            (int)d->padding_token, (long long)d->vocab_size - 1);
    if ((unsigned)d->norm > MHA_NORM_RMS || (unsigned)d->positions > MHA_ENCODING_ROTARY ||
        (unsigned)d->feed_forward > MHA_FEED_FORWARD_QUICK_GELU)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_transformer_desc: norm %d, positions %d, feed_forward %d: one of them "
                        "is unknown",
                        (int)d->norm, (int)d->positions, (int)d->feed_forward);
    if ((d->memory_dim != 0 || !(d->cross_scale >= 0 && d->cross_scale <= 0)) &&
        !(d->flags & MHA_TRANSFORMER_CROSS))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "memory_dim is %lld, cross_scale is %g, without MHA_TRANSFORMER_CROSS",
                        (long long)d->memory_dim, (double)d->cross_scale);
    if (d->flags & MHA_TRANSFORMER_LOGIT_BIAS && d->flags & MHA_TRANSFORMER_NO_OUTPUT)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_transformer_desc: MHA_TRANSFORMER_LOGIT_BIAS: this "
                                          "transformer has no logits");
    return check_blocks(d);
}

static mha_status check_grid(const mha_transformer_desc *d)
{
    if (!d->grid_rows && !d->grid_cols && !d->grid_first) return MHA_OK;
    MHA_TRY(mhai_check_range("mha_transformer_desc: grid_rows", d->grid_rows, 1, INT32_MAX));
    MHA_TRY(mhai_check_range("mha_transformer_desc: grid_cols", d->grid_cols, 1, INT32_MAX));
    MHA_TRY(mhai_check_range("mha_transformer_desc: grid_first", d->grid_first, 0, INT32_MAX));
    if (d->positions == MHA_ENCODING_ROTARY &&
        d->grid_rows * d->grid_cols == d->max_length - d->grid_first)
        return MHA_OK;
    return mha_fail(
        MHA_ERR_ARGUMENT,
        "mha_transformer_desc: grid_rows is %lld, grid_cols %lld, grid_first %lld: expected rotary "
        "positions, and grid_first + grid_rows grid_cols equal to max_length, %lld",
        (long long)d->grid_rows, (long long)d->grid_cols, (long long)d->grid_first,
        (long long)d->max_length);
}

/* The upper bounds prevent overflow when two of these numbers are multiplied. */
static mha_status fill_defaults(mha_transformer_desc *d)
{
    MHA_TRY(mhai_check_range("mha_transformer_desc: vocab_size", d->vocab_size, 1, INT32_MAX));
    MHA_TRY(mhai_check_range("mha_transformer_desc: max_length", d->max_length, 1, INT32_MAX));
    MHA_TRY(mhai_check_range("mha_transformer_desc: embed_dim", d->embed_dim, 1, INT32_MAX));
    MHA_TRY(mhai_check_range("mha_transformer_desc: num_layers", d->num_layers, 1, INT32_MAX));
    MHA_TRY(mhai_check_range("mha_transformer_desc: num_heads", d->num_heads, 1, INT32_MAX));
    MHA_TRY(check_kinds(d));
    MHA_TRY(check_heads(d));
    MHA_TRY(check_layers(d));
    MHA_TRY(mhai_check_range("mha_transformer_desc: ff_dim", d->ff_dim, 0, INT32_MAX));
    MHA_TRY(mhai_check_range("mha_transformer_desc: memory_dim", d->memory_dim, 0, INT32_MAX));
    MHA_TRY(mhai_check_range("mha_transformer_desc: type_count", d->type_count, 0, INT32_MAX));
    MHA_TRY(mhai_check_range("mha_transformer_desc: feature_dim", d->feature_dim, 0, INT32_MAX));
    MHA_TRY(mhai_check_range("mha_transformer_desc: token_dim", d->token_dim, 0, INT32_MAX));
    if (d->token_dim == 0) d->token_dim = d->embed_dim;
    if (d->token_dim != d->embed_dim &&
        (d->flags & MHA_TRANSFORMER_TIED || d->positions == MHA_ENCODING_SINUSOIDAL))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_transformer_desc: token_dim is %lld, expected embed_dim %lld with "
                        "MHA_TRANSFORMER_TIED or sinusoidal positions",
                        (long long)d->token_dim, (long long)d->embed_dim);
    MHA_TRY(check_grid(d));
    if (d->memory_dim == 0 && d->flags & MHA_TRANSFORMER_CROSS) d->memory_dim = d->embed_dim;
    if (d->norm_epsilon == 0) d->norm_epsilon = 1e-5f;
    if (d->rope_base == 0) d->rope_base = 10000;
    join_biases(d);
    MHA_TRY(check_factors(d));
    if (!(d->norm_epsilon > 0) || isinf(d->norm_epsilon) || !(d->rope_base >= 1) ||
        isinf(d->rope_base))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "norm_epsilon is %g, expected > 0; rope_base is %g, expected >= 1",
                        (double)d->norm_epsilon, (double)d->rope_base);
    return MHA_OK;
}

/* ---- layout -------------------------------------------------------------------------------- */

/* A parameter table under construction. If table is NULL, parameters and
 * floats are only counted. */
typedef struct layout {
    mha_transformer *t;
    int64_t layer;
    const char *prefix; /* "self_attn", ... */
    bool overflow;
} layout;

static int64_t add(layout *l, const char *name, mha_parameter_kind kind, int64_t rows, int64_t cols)
{
    mha_transformer *t = l->t;
    int64_t offset = t->size, count;
    mha_parameter p = {.kind = kind, .layer = l->layer, .offset = offset, .ndim = cols ? 2 : 1};
    p.shape[0] = rows;
    p.shape[1] = cols;
    if (!mhai_mul_i64(rows, cols ? cols : 1, &count) || !mhai_add_i64(offset, count, &t->size)) {
        l->overflow = true;
        t->size = 0;
        return MHAI_NOWHERE;
    }
    p.count = count;
    if (l->layer >= 0)
        snprintf(p.name, sizeof p.name, "layers.%lld.%s%s", (long long)l->layer, l->prefix, name);
    else
        snprintf(p.name, sizeof p.name, "%s%s", l->prefix, name);
    if (t->parameters) t->parameters[t->parameter_count] = p;
    t->parameter_count++;
    return offset;
}

static mhai_place_norm add_wide_norm(layout *l, const char *prefix, int64_t width)
{
    mhai_place_norm place = {MHAI_NOWHERE, MHAI_NOWHERE, width};
    const mha_transformer_desc *d = &l->t->desc;
    l->prefix = prefix;
    if (d->norm == MHA_NORM_NONE) return place;
    place.weight = add(l, ".weight", MHA_PARAMETER_NORM, width, 0);
    if (d->norm == MHA_NORM_LAYER && !(d->flags & MHA_TRANSFORMER_NO_NORM_BIAS))
        place.bias = add(l, ".bias", MHA_PARAMETER_NORM, width, 0);
    return place;
}

static mhai_place_norm add_norm(layout *l, const char *prefix)
{
    return add_wide_norm(l, prefix, l->t->desc.embed_dim);
}

/* Whether a layer has a norm before its feed-forward layer but none before its attention. */
static bool is_bare(const mha_transformer_desc *d, int64_t layer)
{
    return d->layers && d->layers[layer].flags & MHA_LAYER_NO_ATTENTION_NORM;
}

static mhai_place_step add_step(layout *l, const char *prefix, const char *post)
{
    const mhai_place_norm none = {MHAI_NOWHERE, MHAI_NOWHERE, 0};
    mhai_place_step step = {none, none};
    const mha_transformer_desc *d = &l->t->desc;
    const bool self = strcmp(prefix, "self_attn_norm") == 0;
    if (mhai_transformer_has(l->t, MHA_TRANSFORMER_POST_NORM) ||
        mha_transformer_norms_input(d, l->layer) || (!self && is_bare(d, l->layer)))
        step.norm = add_norm(l, prefix);
    if (mha_transformer_norms_branch(d, l->layer)) step.post = add_norm(l, post);
    return step;
}

/* Add linear layers with a shared input, contiguous in memory. A NULL name ends the list early.
 * bias: the flag that enables their biases; 0: they have none. */
static mhai_place_linear add_linear(layout *l, uint32_t bias, int64_t inputs,
                                    const char *const *names, const int64_t *outputs)
{
    mhai_place_linear place = {MHAI_NOWHERE, MHAI_NOWHERE, inputs, 0, NULL};
    char name[32];
    for (int i = 0; names[i]; i++) {
        snprintf(name, sizeof name, ".%s.weight", names[i]);
        int64_t at = add(l, name, MHA_PARAMETER_MATRIX, outputs[i], inputs);
        if (i == 0) place.weight = at;
        place.outputs += outputs[i];
    }
    const bool biased = bias && mhai_transformer_has(l->t, MHA_TRANSFORMER_BIAS | bias);
    for (int i = 0; names[i] && biased; i++) {
        snprintf(name, sizeof name, ".%s.bias", names[i]);
        int64_t at = add(l, name, MHA_PARAMETER_BIAS, outputs[i], 0);
        if (i == 0) place.bias = at;
    }
    return place;
}

/* Add the parameters of a layer that are not projections. */
static void add_extras(layout *l, const mha_layer_desc *of, mhai_heads heads,
                       mhai_place_attention *place)
{
    const int64_t D = mhai_transformer_mix(&l->t->desc, l->layer).D;
    if (of->flags & MHA_LAYER_QK_NORM) {
        const bool row = of->flags & MHA_LAYER_QK_NORM_ROW;
        place->q_norm = add(l, ".q_norm.weight", MHA_PARAMETER_NORM, row ? heads.q * D : D, 0);
        if (of->kv_back == 0)
            place->k_norm = add(l, ".k_norm.weight", MHA_PARAMETER_NORM, row ? heads.kv * D : D, 0);
    }
    if (of->flags & MHA_LAYER_SINKS)
        place->sinks = add(l, ".sinks", MHA_PARAMETER_BIAS, heads.q, 0);
    if (of->flags & MHA_LAYER_ALIBI)
        place->slopes = add(l, ".alibi_slopes", MHA_PARAMETER_CONSTANT, heads.q, 0);
    if (of->t5_buckets > 0)
        place->t5 =
            add(l, ".relative_attention_bias.weight", MHA_PARAMETER_BIAS, of->t5_buckets, heads.q);
    if (of->flags & MHA_LAYER_RELATIVE_TABLE)
        place->distances =
            add(l, ".distance_embedding.weight", MHA_PARAMETER_EMBEDDING, of->relative_rows, D);
}

/* W_pk and W_pq, if the layer has its own. */
static mhai_place_linear add_positions(layout *l, const mha_layer_desc *of, mhai_heads heads)
{
    const bool content = of->flags & MHA_LAYER_CONTENT_TO_POSITION;
    const char *const names[] = {
        content ? "position_k_proj" : "position_q_proj",
        of->flags & MHA_LAYER_POSITION_TO_CONTENT && content ? "position_q_proj" : NULL, NULL};
    const int64_t wide = heads.q * l->t->desc.head_dim;
    if (of->relative_rows == 0 ||
        of->flags & (MHA_LAYER_RELATIVE_SHARED | MHA_LAYER_RELATIVE_TABLE))
        return (mhai_place_linear){MHAI_NOWHERE, MHAI_NOWHERE, 0, 0, NULL};
    return add_linear(l, MHA_TRANSFORMER_QKV_BIAS, l->t->desc.embed_dim, names,
                      (const int64_t[]){wide, wide});
}

static const char *const o_name[] = {"o_proj", NULL};

/* The gates of Kimi delta attention. */
static void add_gates(layout *l, const mhai_mix *mix, mhai_place_attention *place)
{
    static const char *const down[] = {"g_a_proj", "f_a_proj", NULL},
                             *const gates[] = {"g_b_proj", NULL},
                             *const decays[] = {"f_b_proj", NULL};
    const int64_t r = mix->rank;
    place->down = add_linear(l, 0, l->t->desc.embed_dim, down, (const int64_t[]){r, r});
    place->gates = add_linear(l, 0, r, gates, &mix->out);
    place->decays = add_linear(l, 0, r, decays, (const int64_t[]){mix->v * mix->each});
}

static mhai_place_attention add_recurrent(layout *l)
{
    static const char *const delta_names[] = {"q_proj", "k_proj", "v_proj", "g_proj",
                                              "b_proj", "a_proj", NULL};
    static const char *const kimi_names[] = {"q_proj", "k_proj", "v_proj", "b_proj", NULL};
    static const char *const space_names[] = {"v_proj", "k_proj", "q_proj",
                                              "g_proj", "a_proj", NULL};
    const mha_transformer_desc *d = &l->t->desc;
    const mhai_mix mix = mhai_transformer_mix(d, l->layer);
    const bool space = mix.mixer == MHA_MIXER_STATE_SPACE, kimi = mix.rank > 0;
    const int64_t kernel = d->layers[l->layer].conv_kernel, k = mix.k * mix.D, out = mix.out;
    mhai_place_attention place = {.step = add_step(l, "self_attn_norm", "self_attn_post_norm")};
    l->prefix = mhai_mixer_name(mix.mixer);
    place.in =
        space
            ? add_linear(l, 0, d->embed_dim, space_names, (const int64_t[]){out, k, k, out, mix.v})
        : kimi ? add_linear(l, 0, d->embed_dim, kimi_names, (const int64_t[]){k, k, out, mix.v})
               : add_linear(l, 0, d->embed_dim, delta_names,
                            (const int64_t[]){k, k, out, out, mix.v, mix.v});
    if (kimi) add_gates(l, &mix, &place);
    place.conv = add(l, ".conv.weight", MHA_PARAMETER_BIAS, mix.channels, kernel);
    if (space) place.conv_bias = add(l, ".conv.bias", MHA_PARAMETER_BIAS, mix.channels, 0);
    place.decay = add(l, ".A_log", MHA_PARAMETER_BIAS, mix.v, 0);
    place.shift = add(l, ".dt_bias", MHA_PARAMETER_BIAS, mix.v * mix.each, 0);
    if (space) place.skip = add(l, ".D", MHA_PARAMETER_BIAS, mix.v, 0);
    place.o_norm = add(l, ".o_norm.weight", MHA_PARAMETER_NORM, space ? out : mix.Dv, 0);
    place.out = add_linear(l, 0, mix.out, o_name, &d->embed_dim);
    return place;
}

static mhai_place_attention add_convolution(layout *l)
{
    static const char *const names[] = {"b_proj", "c_proj", "x_proj", NULL};
    const mha_transformer_desc *d = &l->t->desc;
    const int64_t E = d->embed_dim, kernel = d->layers[l->layer].conv_kernel;
    mhai_place_attention place = {.step = add_step(l, "self_attn_norm", "self_attn_post_norm")};
    l->prefix = mhai_mixer_name(MHA_MIXER_SHORT_CONVOLUTION);
    place.in = add_linear(l, 0, E, names, (const int64_t[]){E, E, E});
    place.conv = add(l, ".conv.weight", MHA_PARAMETER_BIAS, E, kernel);
    place.out = add_linear(l, 0, E, o_name, &E);
    return place;
}

static void add_latent(layout *l, const mha_layer_desc *of, mhai_heads heads,
                       mhai_place_attention *place)
{
    static const char *const q[] = {"q_proj", NULL}, *const q_a[] = {"q_a_proj", NULL},
                             *const q_b[] = {"q_b_proj", NULL}, *const kv_a[] = {"kv_a_proj", NULL},
                             *const k_b[] = {"k_b_proj", NULL}, *const v_b[] = {"v_b_proj", NULL};
    const mha_transformer_desc *d = &l->t->desc;
    const int64_t E = d->embed_dim, r = of->latent_dim, rq = of->query_latent_dim;
    const int64_t wide = heads.q * d->head_dim, s = of->shared_dim;
    const uint32_t bias = MHA_TRANSFORMER_QKV_BIAS;
    if (rq > 0) {
        place->in = add_linear(l, bias, E, q_a, &rq);
        place->query_norm = add(l, ".q_a_norm.weight", MHA_PARAMETER_NORM, rq, 0);
        place->queries = add_linear(l, 0, rq, q_b, &wide);
    } else {
        place->in = add_linear(l, bias, E, q, &wide);
    }
    place->down = add_linear(l, bias, E, kv_a, (const int64_t[]){r + s});
    place->latent_norm = add(l, ".kv_a_norm.weight", MHA_PARAMETER_NORM, r, 0);
    place->keys = add_linear(l, 0, r, k_b, (const int64_t[]){wide - heads.q * s});
    place->values = add_linear(l, 0, r, v_b, (const int64_t[]){heads.q * of->value_dim});
}

static mhai_place_attention add_attention(layout *l, bool cross)
{
    static const char *const qkv_names[] = {"q_proj", "k_proj", "v_proj", NULL};
    static const char *const gated_names[] = {"q_proj", "k_proj", "v_proj", "g_proj", NULL};
    static const char *const q_name[] = {"q_proj", NULL}, *const q_names[] = {"q_proj", "g_proj",
                                                                              NULL};
    static const char *const kv_names[] = {"k_proj", "v_proj", NULL};
    const uint32_t qkv_bias = MHA_TRANSFORMER_QKV_BIAS;
    const mha_transformer_desc *d = &l->t->desc;
    const mhai_heads heads = mhai_transformer_heads_of(d, l->layer, cross);
    const mhai_mix mix = mhai_transformer_mix(d, l->layer);
    const int64_t D = cross ? d->head_dim : mix.D, q = heads.q * D, kv = heads.kv * D;
    const uint32_t always = MHA_TRANSFORMER_POST_NORM | MHA_TRANSFORMER_ONE_NORM;
    const mhai_place_norm none = {MHAI_NOWHERE, MHAI_NOWHERE, 0};
    mhai_place_attention place = {.step = {none, none}};
    const bool gated = !cross && mix.gated;
    if (!cross && mix.mixer == MHA_MIXER_SHORT_CONVOLUTION) return add_convolution(l);
    if (!cross && mix.mixer) return add_recurrent(l);
    if (heads.q > 0 || mhai_transformer_has(l->t, always) ||
        mha_transformer_norms_branch(d, l->layer))
        place.step = add_step(l, cross ? "cross_attn_norm" : "self_attn_norm",
                              cross ? "cross_attn_post_norm" : "self_attn_post_norm");
    l->prefix = cross ? "cross_attn" : "self_attn";
    if (heads.q == 0) {
        place.out.bias = MHAI_NOWHERE;
        if (mhai_transformer_has(l->t, MHA_TRANSFORMER_BIAS | MHA_TRANSFORMER_OUT_BIAS))
            place.out.bias = add(l, ".o_proj.bias", MHA_PARAMETER_BIAS, d->embed_dim, 0);
        return place;
    }
    if (cross) {
        place.in = add_linear(l, qkv_bias, d->embed_dim, q_name, &q);
        place.memory = add_linear(l, qkv_bias, d->memory_dim, kv_names, (const int64_t[]){kv, kv});
    } else if (mhai_transformer_latent(d, l->layer)) {
        add_latent(l, &d->layers[l->layer], heads, &place);
    } else if (mix.borrows) {
        place.in = add_linear(l, qkv_bias, d->embed_dim, gated ? q_names : q_name,
                              (const int64_t[]){q, q});
    } else {
        place.in = add_linear(l, qkv_bias, d->embed_dim, gated ? gated_names : qkv_names,
                              (const int64_t[]){q, kv, kv, q});
    }
    place.out = add_linear(l, MHA_TRANSFORMER_OUT_BIAS, cross ? q : mix.out, o_name, &d->embed_dim);
    if (!d->layers || cross) return place;
    add_extras(l, &d->layers[l->layer], heads, &place);
    place.positions = add_positions(l, &d->layers[l->layer], heads);
    return place;
}

static void add_experts(layout *l, const mha_experts_desc *x, mhai_place_layer *layer)
{
    static const char *const router[] = {"router", "shared_expert_gate", NULL};
    static const char *const shared[] = {"shared_expert.gate_proj", "shared_expert.up_proj", NULL};
    static const char *const down[] = {"shared_expert.down_proj", NULL};
    static const char *const own[] = {"gate_proj", "up_proj", "down_proj"};
    const int64_t E = l->t->desc.embed_dim;
    const char *const plain[] = {router[0], x->flags & MHA_EXPERTS_SHARED_GATE ? router[1] : NULL,
                                 NULL};
    layer->router = add_linear(l, 0, E, plain, (const int64_t[]){x->count, 1});
    if (x->flags & MHA_EXPERTS_SCORE_BIAS)
        layer->score_bias = add(l, ".score_bias", MHA_PARAMETER_BIAS, x->count, 0);
    if (x->shared_dim > 0) {
        layer->up = add_linear(l, 0, E, shared, (const int64_t[]){x->shared_dim, x->shared_dim});
        layer->down = add_linear(l, 0, x->shared_dim, down, &E);
    }
    layer->experts = l->t->parameter_count;
    for (int64_t i = 0; i < 3 * x->count && !l->overflow; i++) {
        char name[48];
        const bool last = i % 3 == 2;
        snprintf(name, sizeof name, ".experts.%lld.%s.weight", (long long)i / 3, own[i % 3]);
        add(l, name, MHA_PARAMETER_MATRIX, last ? E : x->ff_dim, last ? x->ff_dim : E);
    }
    if (!(x->flags & MHA_EXPERTS_BIAS)) return;
    layer->router.bias = add(l, ".router.bias", MHA_PARAMETER_BIAS, x->count, 0);
    for (int64_t i = 0; i < 3 * x->count && !l->overflow; i++) {
        char name[48];
        snprintf(name, sizeof name, ".experts.%lld.%s.bias", (long long)i / 3, own[i % 3]);
        const int64_t at = add(l, name, MHA_PARAMETER_BIAS, i % 3 == 2 ? E : x->ff_dim, 0);
        if (i == 0) layer->expert_biases = at;
    }
}

static void add_feed_forward(layout *l, mhai_place_layer *layer)
{
    static const char *const gated[] = {"gate_proj", "up_proj", NULL};
    static const char *const up[] = {"up_proj", NULL}, *const down[] = {"down_proj", NULL};
    const mha_transformer_desc *d = &l->t->desc;
    if (!mha_transformer_feeds(d, l->layer)) return;
    const uint32_t bias = MHA_TRANSFORMER_FF_BIAS;
    layer->ff = d->flags & MHA_TRANSFORMER_ONE_NORM ? layer->self.step
                                                    : add_step(l, "mlp_norm", "mlp_post_norm");
    l->prefix = "mlp";
    const mha_experts_desc *experts = mhai_transformer_experts(d, l->layer);
    if (experts) {
        add_experts(l, experts, layer);
        return;
    }
    const int64_t F = mhai_transformer_ff(d, l->layer);
    layer->up = add_linear(l, bias, d->embed_dim, mhai_transformer_gated(l->t) ? gated : up,
                           (const int64_t[]){F, F});
    layer->down = add_linear(l, bias, F, down, &d->embed_dim);
}

static mhai_place_input add_input(layout *l, int64_t P)
{
    static const char *const project[] = {"proj", NULL}, *const gate[] = {"gate_proj", NULL};
    const int64_t E = l->t->desc.embed_dim;
    const mhai_place_norm none = {MHAI_NOWHERE, MHAI_NOWHERE, 0};
    mhai_place_input place = {.step = {none, none}};
    l->prefix = "input.table";
    place.table = add(l, ".weight", MHA_PARAMETER_EMBEDDING, l->t->desc.vocab_size, P);
    l->prefix = "input";
    place.project = add_linear(l, 0, E, project, &P);
    place.norm = add_wide_norm(l, "input.norm", P);
    l->prefix = "input";
    place.gate = add_linear(l, 0, E, gate, &P);
    place.out = add_linear(l, 0, P, o_name, &E);
    place.step.post = add_norm(l, "input_post_norm");
    return place;
}

/* Add what follows the feed-forward layer. */
static void add_end(layout *l, mhai_place_layer *layer)
{
    const mha_layer_desc *of = l->t->desc.layers ? &l->t->desc.layers[l->layer] : NULL;
    layer->scale = MHAI_NOWHERE;
    if (of && of->input_dim > 0) layer->input = add_input(l, of->input_dim);
    l->prefix = "output";
    if (of && of->flags & MHA_LAYER_OUTPUT_SCALE)
        layer->scale = add(l, ".scale", MHA_PARAMETER_CONSTANT, 1, 0);
}

/* Embeddings of distances, and their norm. */
static void add_relative(layout *l, int64_t rows)
{
    const mhai_place_norm none = {MHAI_NOWHERE, MHAI_NOWHERE, 0};
    mha_transformer *t = l->t;
    t->relative = MHAI_NOWHERE;
    t->relative_norm = none;
    if (rows == 0) return;
    l->prefix = "embed_relative";
    t->relative = add(l, ".weight", MHA_PARAMETER_EMBEDDING, rows, t->desc.embed_dim);
    if (t->desc.flags & MHA_TRANSFORMER_RELATIVE_NORM)
        t->relative_norm = add_norm(l, "relative_norm");
}

static void add_embeddings(layout *l, int64_t relative_rows)
{
    mha_transformer *t = l->t;
    const mha_transformer_desc *d = &t->desc;
    const int64_t width = d->token_dim;
    l->prefix = "embed_tokens";
    t->tokens = add(l, ".weight", MHA_PARAMETER_EMBEDDING, d->vocab_size, width);
    l->prefix = "embed_positions";
    t->positions = MHAI_NOWHERE;
    if (d->positions == MHA_ENCODING_LEARNED)
        t->positions = add(l, ".weight", MHA_PARAMETER_EMBEDDING, mhai_position_rows(d), width);
    l->prefix = "embed_types";
    t->types = MHAI_NOWHERE;
    if (d->type_count > 0)
        t->types = add(l, ".weight", MHA_PARAMETER_EMBEDDING, d->type_count, width);
    l->prefix = "embed_features";
    t->features =
        (mhai_place_linear){MHAI_NOWHERE, MHAI_NOWHERE, d->feature_dim, 0, t->features.packed};
    if (d->feature_dim > 0) {
        t->features.outputs = width;
        t->features.weight = add(l, ".weight", MHA_PARAMETER_MATRIX, width, d->feature_dim);
    }
    add_relative(l, relative_rows);
    t->embed_norm = (mhai_place_norm){MHAI_NOWHERE, MHAI_NOWHERE, 0};
    if (d->flags & MHA_TRANSFORMER_EMBEDDING_NORM)
        t->embed_norm = add_wide_norm(l, "embed_norm", width);
    t->project = (mhai_place_linear){MHAI_NOWHERE, MHAI_NOWHERE, width, 0, t->project.packed};
    if (width == d->embed_dim) return;
    l->prefix = "embed_proj";
    t->project.outputs = d->embed_dim;
    t->project.weight = add(l, ".weight", MHA_PARAMETER_MATRIX, d->embed_dim, width);
    if (d->flags & MHA_TRANSFORMER_BIAS)
        t->project.bias = add(l, ".bias", MHA_PARAMETER_BIAS, d->embed_dim, 0);
}

/* Add all parameters to the table. */
static mha_status lay_out(mha_transformer *t)
{
    const mha_transformer_desc *d = &t->desc;
    layout l = {.t = t, .layer = -1};
    int64_t relative_rows;
    MHA_TRY(mhai_relative_rows(d, &relative_rows));
    t->size = t->parameter_count = 0;
    add_embeddings(&l, relative_rows);
    mhai_place_layer unused = {0};
    for (int64_t i = 0; i < d->num_layers && !l.overflow; i++) {
        mhai_place_layer *layer = t->layers ? &t->layers[i] : &unused;
        l.layer = i;
        layer->self = add_attention(&l, false);
        if (d->flags & MHA_TRANSFORMER_CROSS) layer->cross = add_attention(&l, true);
        add_feed_forward(&l, layer);
        add_end(&l, layer);
    }
    l.layer = -1;
    t->norm = (mhai_place_norm){MHAI_NOWHERE, MHAI_NOWHERE, 0};
    if (mhai_transformer_pre_norm(t)) t->norm = add_norm(&l, "norm");
    t->output = (mhai_place_linear){t->tokens, MHAI_NOWHERE, d->embed_dim, d->vocab_size, NULL};
    l.prefix = "lm_head";
    if (!(d->flags & (MHA_TRANSFORMER_TIED | MHA_TRANSFORMER_NO_OUTPUT)))
        t->output.weight = add(&l, ".weight", MHA_PARAMETER_MATRIX, d->vocab_size, d->embed_dim);
    if (d->flags & MHA_TRANSFORMER_LOGIT_BIAS)
        t->output.bias = add(&l, ".bias", MHA_PARAMETER_BIAS, d->vocab_size, 0);
    if (l.overflow || t->size > INT64_MAX / 64) /* with a source, the parameters need not fit in
                                                   memory */
        return mha_fail(MHA_ERR_SIZE, "transformer: its parameters do not fit in memory");
    return MHA_OK;
}

/* ---- creation ------------------------------------------------------------------------------ */

static mha_status allocate(const mha_transformer *t, int64_t count, size_t size, void *pointer)
{
    return mhai_take_for("transformer", &t->allocator, count, size, pointer);
}

/* Pack the matrix, or make a layer that reads it from a source. */
static mha_status make_linear(mha_context *context, const mha_transformer *t,
                              mhai_place_linear *place)
{
    const mhai_rows rows = {.read = mhai_transformer_read_matrix,
                            .read_coded = mhai_transformer_read_coded,
                            .stored = mhai_transformer_find_rows,
                            .user = t,
                            .at = mhai_transformer_parameter_at(t, place->weight),
                            .compute = t->source.compute};
    const bool from = t->source.read, packed = !from || t->source.flags & MHA_SOURCE_PACK;
    return mhai_linear_create_from(context, place->inputs, place->outputs, place->bias >= 0,
                                   from ? &rows : NULL, packed, &place->packed);
}

static mha_status pack(mha_context *context, const mha_transformer *t,
                       const mhai_place_linear *place)
{
    mha_tensor bias = {0};
    if (place->bias >= 0)
        bias = mhai_transformer_vector(mhai_transformer_numbers(t, place->bias), place->outputs);
    if (!t->source.read) {
        const mha_tensor weight = mhai_transformer_rows(t->data + place->weight, place->outputs,
                                                        place->inputs, place->inputs);
        return mha_linear_update(place->packed, &weight, bias.ndim ? &bias : NULL);
    }
    if (bias.ndim) mhai_linear_set_bias(place->packed, &bias, 0);
    return mhai_linear_pack(context, place->packed);
}

enum { LINEARS = 18 }; /* of a layer */

/* Linear layers: those of layers, the output, and two of embeddings. */
static int64_t linear_count(const mha_transformer *t)
{
    return LINEARS * t->desc.num_layers + 3;
}

/* Linear layer i. NULL if the transformer or this rank does not have it. */
static mhai_place_linear *linear_of(mha_transformer *t, int64_t i)
{
    const int64_t output = LINEARS * t->desc.num_layers;
    mhai_place_linear *place = &t->output;
    if (i > output) { /* the first rank embeds */
        place = i == output + 1 ? &t->project : &t->features;
        return place->outputs > 0 && mhai_spread_mine(t, 0) ? place : NULL;
    }
    if (i < output) {
        mhai_place_layer *layer = &t->layers[i / LINEARS];
        mhai_place_linear *all[LINEARS] = {
            &layer->self.in,    &layer->self.out,     &layer->cross.in,       &layer->cross.memory,
            &layer->cross.out,  &layer->up,           &layer->down,           &layer->router,
            &layer->self.down,  &layer->self.queries, &layer->self.keys,      &layer->self.values,
            &layer->self.gates, &layer->self.decays,  &layer->self.positions, &layer->input.project,
            &layer->input.gate, &layer->input.out};
        place = all[i % LINEARS];
    } else if (mhai_transformer_has(t, MHA_TRANSFORMER_NO_OUTPUT)) {
        return NULL;
    }
    return place->outputs > 0 && mhai_spread_mine(t, i / LINEARS) ? place : NULL;
}

static mha_status make_linears(mha_context *context, mha_transformer *t)
{
    for (int64_t i = 0; i < linear_count(t); i++) {
        mhai_place_linear *place = linear_of(t, i);
        if (!place) continue;
        MHA_TRY(make_linear(context, t, place));
        if (!place->packed->weight && place->inputs > t->most_inputs)
            t->most_inputs = place->inputs;
    }
    for (int64_t i = 0; i < t->desc.num_layers; i++) {
        const mha_experts_desc *x = mhai_transformer_experts(&t->desc, i);
        if (!x || !mhai_spread_mine(t, i)) continue;
        t->most_inputs = mhai_max_i64(t->most_inputs, mhai_max_i64(t->desc.embed_dim, x->ff_dim));
    }
    return MHA_OK;
}

mha_status mha_transformer_update(mha_context *context, mha_transformer *t)
{
    MHA_NEED_AS("mha_transformer_update", "context, transformer", context, t);
    for (int64_t i = 0; t->source.read && i < t->parameter_count; i++) {
        const mha_parameter *p = &t->parameters[i];
        if (t->held_at[i] >= 0)
            t->source.read(t->source.user, i, 0, p->shape[0], 0, p->ndim == 2 ? p->shape[1] : 1,
                           t->held + t->held_at[i]);
    }
    for (int64_t i = 0; i < linear_count(t); i++) {
        const mhai_place_linear *place = linear_of(t, i);
        if (place) MHA_TRY(pack(context, t, place));
    }
    if (t->ranks) mhai_spread_hash(t);
    return MHA_OK;
}

/* Copy the lists of heads, so that the caller may free them. */
static mha_status copy_lists(mha_transformer *t)
{
    mha_transformer_desc *d = &t->desc;
    if (!d->layer_heads) return MHA_OK;
    MHA_TRY(allocate(t, 2 * d->num_layers, sizeof *t->head_lists, &t->head_lists));
    for (int64_t i = 0; i < d->num_layers; i++) {
        const int64_t heads = d->layer_heads[i];
        t->head_lists[i] = heads;
        t->head_lists[d->num_layers + i] = d->layer_kv_heads             ? d->layer_kv_heads[i]
                                           : d->kv_heads == d->num_heads ? heads
                                           : heads > 0                   ? d->kv_heads
                                                                         : 0;
    }
    d->layer_heads = t->head_lists;
    d->layer_kv_heads = t->head_lists + d->num_layers;
    return MHA_OK;
}

static mha_status copy_layers(mha_transformer *t)
{
    mha_transformer_desc *d = &t->desc;
    bool plain;
    if (!d->layers) return MHA_OK;
    MHA_TRY(allocate(t, d->num_layers, sizeof *t->layer_descs, &t->layer_descs));
    MHA_TRY(mhai_transformer_read_layers(d, t->layer_descs, &plain));
    d->layers = plain ? NULL : t->layer_descs;
    return t->source.transport && t->source.transport->size > 1
               ? mhai_transformer_plain_mixers("layers over ranks", t)
               : MHA_OK;
}

static mha_status make_data(mha_transformer *t)
{
    MHA_TRY(allocate(t, t->size, sizeof *t->data, &t->data));
    for (int64_t i = 0; i < t->parameter_count; i++) {
        const mha_parameter *p = &t->parameters[i];
        const char *dot = strrchr(p->name, '.');
        const bool ones =
            p->kind == MHA_PARAMETER_CONSTANT || (p->kind == MHA_PARAMETER_NORM && dot[1] == 'w');
        for (int64_t k = 0; ones && k < p->count; k++) t->data[p->offset + k] = 1;
    }
    return MHA_OK;
}

/* Allocate memory for the parameters that do not stay in the source. */
static mha_status make_held(mha_transformer *t)
{
    MHA_TRY(allocate(t, t->parameter_count, sizeof *t->held_at, &t->held_at));
    for (int64_t i = 0; i < t->parameter_count; i++) {
        const mha_parameter *p = &t->parameters[i];
        const bool stays = p->kind == MHA_PARAMETER_MATRIX || p->offset == t->tokens ||
                           (p->kind == MHA_PARAMETER_EMBEDDING && p->layer >= 0);
        t->held_at[i] = stays ? MHAI_NOWHERE : t->held_count;
        if (!stays) t->held_count += p->count;
    }
    MHA_TRY(allocate(t, t->held_count, sizeof *t->held, &t->held));
    MHA_TRY(allocate(t, 1, sizeof *t->owners, &t->owners));
    atomic_init(t->owners, 1);
    return MHA_OK;
}

static mha_status make_parts(mha_context *context, mha_transformer *t)
{
    MHA_TRY(copy_lists(t));
    MHA_TRY(copy_layers(t));
    MHA_TRY(mhai_transformer_copy_factors(t));
    MHA_TRY(lay_out(t)); /* counts the parameters */
    MHA_TRY(allocate(t, t->parameter_count, sizeof *t->parameters, &t->parameters));
    MHA_TRY(allocate(t, t->desc.num_layers, sizeof *t->layers, &t->layers));
    MHA_TRY(lay_out(t));
    MHA_TRY(t->source.read ? make_held(t) : make_data(t));
    MHA_TRY(mhai_spread_make(t));
    MHA_TRY(mhai_transformer_make_layers(context, t));
    MHA_TRY(make_linears(context, t));
    return t->source.read ? MHA_OK : mha_transformer_update(context, t);
}

static mha_status make(mha_context *context, const mha_transformer_desc *desc,
                       const mha_transformer_source *source, mha_transformer **transformer)
{
    mha_transformer_desc own;
    MHA_TRY(mhai_struct_copy("mha_transformer_desc", &own, sizeof own,
                             offsetof(mha_transformer_desc, type_count), desc));
    MHA_TRY(fill_defaults(&own));
    const mha_allocator *a = &context->allocator;
    mha_transformer *made = a->alloc(a->user, sizeof *made, _Alignof(mha_transformer));
    if (!made)
        return mha_fail(MHA_ERR_NOMEM, "transformer: cannot allocate %zu bytes", sizeof *made);
    *made = (mha_transformer){.allocator = *a, .desc = own};
    if (source) made->source = *source;
    mha_status status = make_parts(context, made);
    if (status == MHA_OK) {
        *transformer = made;
        return MHA_OK;
    }
    made->source.release = NULL; /* the caller still owns it */
    mha_transformer_destroy(made);
    return status;
}

mha_status mha_transformer_create(mha_context *context, const mha_transformer_desc *desc,
                                  mha_transformer **transformer)
{
    MHA_NEED("mha_transformer_create", context, desc, transformer);
    return make(context, desc, NULL, transformer);
}

mha_status mha_transformer_create_from(mha_context *context, const mha_transformer_desc *desc,
                                       const mha_transformer_source *source,
                                       mha_transformer **transformer)
{
    MHA_NEED("mha_transformer_create_from", context, desc, source, transformer);
    mha_transformer_source own;
    MHA_TRY(mhai_struct_copy("mha_transformer_source", &own, sizeof own,
                             offsetof(mha_transformer_source, compute), source));
    MHA_TRY(mhai_check_flags("mha_transformer_source", own.flags, MHA_SOURCE_PACK));
    MHA_TRY(mhai_check_reserved("mha_transformer_source", own.reserved));
    if ((unsigned)own.compute > MHA_COMPUTE_TILES)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_transformer_source: compute is %d, expected one of mha_compute",
                        (int)own.compute);
    if (own.compute == MHA_COMPUTE_INT8 && !own.read_coded)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_transformer_source: MHA_COMPUTE_INT8 multiplies rows as read_coded "
                        "gives them, and read_coded is NULL");
    if (own.compute != MHA_COMPUTE_F32 && own.flags & MHA_SOURCE_PACK)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_transformer_source: MHA_SOURCE_PACK is for MHA_COMPUTE_F32, not %s",
                        mha_compute_name(own.compute));
    if (!own.read) return mha_fail(MHA_ERR_NULL, "mha_transformer_source: read is NULL");
    if (own.transport) MHA_TRY(mhai_ranks_check(own.transport));
    return make(context, desc, &own, transformer);
}

void mha_transformer_destroy(mha_transformer *t)
{
    if (!t || (t->owners && atomic_fetch_sub(t->owners, 1) > 1)) return;
    const mha_allocator a = t->allocator;
    for (int64_t i = 0; t->layers && i < linear_count(t); i++) {
        const mhai_place_linear *place = linear_of(t, i);
        if (place) mha_linear_destroy(place->packed);
    }
    mhai_give(&a, t->layers, t->desc.num_layers, sizeof *t->layers);
    mhai_give(&a, t->parameters, t->parameter_count, sizeof *t->parameters);
    mhai_give(&a, t->head_lists, 2 * t->desc.num_layers, sizeof *t->head_lists);
    mhai_give(&a, t->data, t->size, sizeof *t->data);
    mhai_give(&a, t->held, t->held_count, sizeof *t->held);
    mhai_give(&a, t->owners, 1, sizeof *t->owners);
    mhai_give(&a, t->held_at, t->parameter_count, sizeof *t->held_at);
    mhai_give(&a, t->layer_descs, t->desc.num_layers, sizeof *t->layer_descs);
    mhai_give(&a, t->rope_factors, 2 * t->pairs, sizeof *t->rope_factors);
    mhai_give(&a, t->ranks, t->desc.num_layers + 1, sizeof *t->ranks);
    mhai_transformer_free_encodings(t);
    if (t->source.release) t->source.release(t->source.user);
    mhai_give(&a, t, 1, sizeof *t);
}

/* ---- queries ------------------------------------------------------------------------------- */

bool mha_feed_forward_gated(mha_feed_forward kind)
{
    return kind == MHA_FEED_FORWARD_SWIGLU || kind == MHA_FEED_FORWARD_GEGLU ||
           kind == MHA_FEED_FORWARD_GEGLU_TANH || kind == MHA_FEED_FORWARD_SWIGLU_CLAMPED;
}

bool mha_transformer_feeds(const mha_transformer_desc *desc, int64_t layer)
{
    return desc->ff_dim > 0 &&
           !(desc->layers && desc->layers[layer].flags & MHA_LAYER_NO_FEED_FORWARD);
}

int64_t mha_transformer_heads(const mha_transformer_desc *desc, int64_t layer)
{
    return mhai_transformer_heads_of(desc, layer, false).q;
}

int64_t mha_transformer_kv_heads(const mha_transformer_desc *desc, int64_t layer)
{
    return mhai_transformer_heads_of(desc, layer, false).kv;
}

int64_t mha_transformer_head_dim(const mha_transformer_desc *desc, int64_t layer)
{
    const int64_t own = desc->layers ? desc->layers[layer].head_dim : 0;
    return own > 0 ? own : desc->head_dim > 0 ? desc->head_dim : desc->embed_dim / desc->num_heads;
}

bool mha_transformer_predicts(const mha_transformer_desc *desc)
{
    const uint32_t others = MHA_TRANSFORMER_NO_OUTPUT | MHA_TRANSFORMER_CROSS;
    return desc->flags & MHA_TRANSFORMER_CAUSAL && !(desc->flags & others);
}

bool mha_transformer_norms_follow(const mha_transformer_desc *d)
{
    bool follow = d->flags & MHA_TRANSFORMER_POST_NORM;
    for (int64_t i = 0; i < d->num_layers; i++)
        follow = follow || mha_transformer_norms_branch(d, i);
    return follow;
}

static bool has_own_branch_norm(const mha_transformer_desc *d, int64_t layer)
{
    return d->layers && d->layers[layer].flags & MHA_LAYER_BRANCH_NORM;
}

bool mha_transformer_norms_input(const mha_transformer_desc *d, int64_t layer)
{
    const uint32_t others = MHA_TRANSFORMER_POST_NORM | MHA_TRANSFORMER_NO_INPUT_NORM;
    return d->norm != MHA_NORM_NONE && !(d->flags & others) && !has_own_branch_norm(d, layer) &&
           !is_bare(d, layer);
}

bool mha_transformer_norms_branch(const mha_transformer_desc *d, int64_t layer)
{
    return d->flags & MHA_TRANSFORMER_BRANCH_NORM || has_own_branch_norm(d, layer);
}

int64_t mha_transformer_heads_width(const mha_transformer_desc *d)
{
    int64_t width = d->num_heads * d->head_dim;
    for (int64_t i = 0; i < d->num_layers; i++) {
        const mhai_mix mix = mhai_transformer_mix(d, i);
        if (mix.v > 0 && mix.out > width) width = mix.out;
    }
    return width;
}

void mha_transformer_describe(const mha_transformer *t, mha_transformer_desc *desc)
{
    *desc = t->desc;
    desc->struct_size = sizeof *desc;
}

int64_t mha_transformer_parameters(const mha_transformer *t)
{
    return t->parameter_count;
}

int64_t mha_transformer_size(const mha_transformer *t)
{
    return t->size;
}

mha_status mha_transformer_parameter(const mha_transformer *t, int64_t index,
                                     mha_parameter *parameter)
{
    MHA_NEED_AS("mha_transformer_parameter", "transformer, parameter", t, parameter);
    if (index < 0 || index >= t->parameter_count)
        return mha_fail(MHA_ERR_ARGUMENT, "there is no parameter %lld, the last is %lld",
                        (long long)index, (long long)t->parameter_count - 1);
    *parameter = t->parameters[index];
    return MHA_OK;
}

float *mha_transformer_data(mha_transformer *t)
{
    return t->data;
}

mha_tensor mhai_transformer_rows(const float *data, int64_t rows, int64_t cols, int64_t stride)
{
    union {
        const float *in;
        void *out; /* a view is writable; read-only callers get it as const */
    } pointer = {data};
    mha_tensor tensor =
        mha_tensor_contiguous(pointer.out, MHA_F32, 2, (const int64_t[]){rows, cols});
    tensor.stride[0] = stride;
    return tensor;
}

mha_tensor mhai_transformer_vector(const float *data, int64_t count)
{
    mha_tensor tensor = mhai_transformer_rows(data, count, 1, 1);
    tensor.ndim = 1;
    return tensor;
}
