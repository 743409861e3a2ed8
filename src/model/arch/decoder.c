/* What families of decoders share: sizes, rotations, windows. */
#include "io/file.h"
#include "model/arch/family.h"

#include <multihead/component.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- description --------------------------------------------------------------------------- */

mha_status mhai_read_decoder(const mhai_config *config, const mhai_family *family, bool whole,
                             mhai_family_plan *plan)
{
    static const char *const refused[] = {"quantization_config", "is_encoder_decoder",
                                          "use_bidirectional_attention", NULL};
    mha_transformer_desc *d = &plan->desc;
    bool tied;
    d->flags = MHA_TRANSFORMER_CAUSAL;
    d->norm = MHA_NORM_RMS;
    d->positions = MHA_ENCODING_ROTARY;
    d->feed_forward = MHA_FEED_FORWARD_SWIGLU;
    MHA_TRY(mhai_config_refuse(config, refused));
    MHA_TRY(mhai_read_sizes(config, family, "intermediate_size", d));
    MHA_TRY(
        mhai_config_optional(config, "num_key_value_heads", 1, MHAI_MOST_WIDTH, 0, &d->kv_heads));
    MHA_TRY(mhai_config_optional(config, "head_dim", 1, MHAI_MOST_WIDTH, 0, &d->head_dim));
    if (whole && d->kv_heads == 0)
        return mha_fail(MHA_ERR_MODEL, "%s: 'num_key_value_heads' is missing; %s models say it",
                        mhai_show_path(config->path).text, family->model_type);
    if (d->kv_heads > 0 && d->num_heads % d->kv_heads != 0)
        return mha_fail(MHA_ERR_MODEL, "%s: '%s' is %lld, which '%s' %lld is no multiple of",
                        mhai_show_path(config->path).text,
                        mhai_config_name(config, family->keys->kv_heads).text,
                        (long long)d->kv_heads, mhai_config_name(config, family->keys->heads).text,
                        (long long)d->num_heads);
    MHA_TRY(mhai_read_heads(config, plan));
    MHA_TRY(mhai_config_real(config, "rms_norm_eps", 1e-6, 0, 1, &d->norm_epsilon));
    MHA_TRY(mhai_config_bool(config, "tie_word_embeddings", family->tied, &tied));
    if (tied) d->flags |= MHA_TRANSFORMER_TIED;
    return MHA_OK;
}

mha_status mhai_read_silu(const mhai_config *config)
{
    static const char *const acts[] = {"silu", "swish"};
    int unused;
    return mhai_config_choice(config, "hidden_act", "silu", acts, 2, &unused);
}

mha_status mhai_plan_layers(mhai_family_plan *plan)
{
    if (plan->layers) return MHA_OK;
    plan->layers = calloc((size_t)plan->desc.num_layers, sizeof *plan->layers);
    if (!plan->layers) return mha_fail(MHA_ERR_NOMEM, "model: cannot allocate its tables");
    for (int64_t i = 0; i < plan->desc.num_layers; i++)
        plan->layers[i].struct_size = sizeof *plan->layers;
    plan->desc.layers = plan->layers;
    return MHA_OK;
}

/* Tables of frequencies and masks in old files, and a copy of the embeddings that is one by
 * config.json. */
bool mhai_decoder_ignores(const mhai_family_plan *plan, const char *name)
{
    static const char *const old[] = {".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias",
                                      ".attention.bias", ".attention.masked_bias"};
    const size_t length = strlen(name);
    for (size_t i = 0; i < sizeof old / sizeof old[0]; i++) {
        const size_t tail = strlen(old[i]);
        if (length > tail && strcmp(name + length - tail, old[i]) == 0) return true;
    }
    return mhai_desc_has(&plan->desc, MHA_TRANSFORMER_TIED) &&
           (strcmp(name, "lm_head.weight") == 0 || strcmp(name, "embed_out.weight") == 0);
}

/* ---- rotations ----------------------------------------------------------------------------- */

/* A rotation as config.json says it: in an object of its own, and beside it. */
typedef struct rope_source {
    mhai_config inner, outer;
    bool partial; /* a part of each head may rotate */
    double base;  /* of a rotation that says none */
} rope_source;

static mha_status read_number(const rope_source *s, const char *key, double fallback, double *value)
{
    MHA_TRY(mhai_config_number(&s->outer, key, fallback, value));
    return mhai_config_number(&s->inner, key, *value, value);
}

static mha_status read_float(const rope_source *s, const char *key, double fallback, float *value)
{
    double number;
    MHA_TRY(read_number(s, key, fallback, &number));
    *value = (float)number;
    return isfinite(*value) ? MHA_OK
                            : mha_fail(MHA_ERR_MODEL, "%s: '%s' is %g, which no float holds",
                                       mhai_show_path(s->outer.path).text,
                                       mhai_config_name(&s->outer, key).text, number);
}

/* By how much YaRN multiplies cosines and sines; 0: as mha_layer_desc has it. */
static mha_status read_amplitude(const rope_source *s, mha_layer_desc *rope)
{
    double scale, all;
    MHA_TRY(mhai_config_number(&s->inner, "mscale", 0, &scale));
    MHA_TRY(mhai_config_number(&s->inner, "mscale_all_dim", 0, &all));
    if (!mhai_config_absent(&s->inner, "attention_factor"))
        return mhai_config_real(&s->inner, "attention_factor", 1, 0, 1e6, &rope->rope_amplitude);
    if (!(scale > 0) || !(all > 0)) return MHA_OK;
    const double step = rope->rope_factor > 1 ? 0.1 * mha_log((double)rope->rope_factor) : 0;
    rope->rope_amplitude = (float)((step * scale + 1) / (step * all + 1));
    return MHA_OK;
}

static mha_status read_scaled(const rope_source *s, const mha_transformer_desc *d,
                              mha_layer_desc *rope)
{
    const bool yarn = rope->rope_scaling == MHA_ROPE_SCALING_YARN;
    const char *low = yarn ? "beta_slow" : "low_freq_factor";
    const char *high = yarn ? "beta_fast" : "high_freq_factor";
    static const char original[] = "original_max_position_embeddings";
    double length;
    bool truncated;
    MHA_TRY(read_number(s, original, (double)d->max_length, &length));
    if (!(length >= 1 && length <= MHAI_MOST_POSITIONS))
        return mha_fail(MHA_ERR_MODEL, "%s: '%s' is %g, expected 1..%d",
                        mhai_show_path(s->outer.path).text,
                        mhai_config_name(&s->outer, original).text, length, MHAI_MOST_POSITIONS);
    rope->rope_original_length = (int64_t)length;
    MHA_TRY(read_float(s, low, 1, &rope->rope_low));
    MHA_TRY(read_float(s, high, yarn ? 32 : 4, &rope->rope_high));
    if (rope->rope_low > 0 && rope->rope_high > 0 &&
        !(yarn ? rope->rope_high >= rope->rope_low : rope->rope_high > rope->rope_low))
        return mha_fail(MHA_ERR_MODEL, "%s: '%s' is %g, expected %s '%s' %g",
                        mhai_show_path(s->outer.path).text, mhai_config_name(&s->outer, high).text,
                        (double)rope->rope_high, yarn ? "at least" : "more than",
                        mhai_config_name(&s->outer, low).text, (double)rope->rope_low);
    if (!yarn) return MHA_OK;
    MHA_TRY(mhai_config_bool(&s->inner, "truncate", true, &truncated));
    if (!truncated)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "%s: YaRN with 'truncate' false is not supported; known: true",
                        mhai_show_path(s->outer.path).text);
    return read_amplitude(s, rope);
}

/* Of an odd number n transformers rotates n + 1, at the frequencies base^(-2 i / n), which an even
 * rotation has of the base base^((n + 1) / n); so have the turns by which llama3 decides. */
static mha_status set_part(const rope_source *s, int64_t rotated, const char *type,
                           mha_layer_desc *rope)
{
    const double n = (double)rotated, base = (double)rope->rope_base;
    rope->rotary_dim = rotated + rotated % 2;
    if (rotated % 2 == 0) return MHA_OK;
    rope->rope_base = (float)mha_exp((n + 1) / n * mha_log(base));
    if (strcmp(type, "yarn") != 0 && isfinite(rope->rope_base)) return MHA_OK;
    return mha_fail(MHA_ERR_UNSUPPORTED,
                    "%s: '%s' rotates an odd number, %lld, of a head's numbers, which is not "
                    "supported with rope_type '%s' and rope_theta %g",
                    mhai_show_path(s->outer.path).text,
                    mhai_config_name(&s->outer, "partial_rotary_factor").text, (long long)rotated,
                    type, base);
}

/* Dynamic scaling (NTK) changes the base for texts beyond max_position_embeddings alone, and no
 * longer ones are taken. */
static mha_status read_rotation(const rope_source *s, const mha_transformer_desc *d,
                                mha_layer_desc *rope)
{
    static const char *const types[] = {"default", "dynamic", "linear", "llama3", "yarn"};
    const bool old = mhai_config_absent(&s->inner, "rope_type"); /* transformers before 4.43 */
    const double width = (double)(d->head_dim > 0 ? d->head_dim : d->embed_dim / d->num_heads);
    double partial;
    int type;
    *rope = (mha_layer_desc){.struct_size = sizeof *rope};
    MHA_TRY(mhai_config_choice(&s->inner, old ? "type" : "rope_type", types[0], types, 5, &type));
    MHA_TRY(read_float(s, "rope_theta", s->base, &rope->rope_base));
    if (!(rope->rope_base >= 1))
        return mha_fail(MHA_ERR_MODEL, "%s: '%s' is %g, expected 1 or more",
                        mhai_show_path(s->outer.path).text,
                        mhai_config_name(&s->outer, "rope_theta").text, (double)rope->rope_base);
    MHA_TRY(mhai_config_number(&s->outer, "rotary_pct", 1, &partial)); /* GPT-NeoX, before 5 */
    MHA_TRY(read_number(s, "partial_rotary_factor", partial, &partial));
    const int64_t rotated = (int64_t)(width * fmin(partial, 1));
    if (((partial < 1 || partial > 1) && !s->partial) || partial > 1 || rotated < 1)
        return mha_fail(partial <= 1 && !s->partial ? MHA_ERR_UNSUPPORTED : MHA_ERR_MODEL,
                        "%s: '%s' rotates %g of a head's %g numbers; this kind of model rotates %s",
                        mhai_show_path(s->outer.path).text,
                        mhai_config_name(&s->outer, "partial_rotary_factor").text,
                        floor(width * partial), width, s->partial ? "1 or more" : "whole heads");
    if (rotated % 2 && !(partial < 1))
        return mha_fail(MHA_ERR_MODEL,
                        "%s: heads have %lld numbers, an odd one, which cannot rotate in pairs",
                        mhai_show_path(s->outer.path).text, (long long)rotated);
    if (partial < 1) MHA_TRY(set_part(s, rotated, types[type], rope));
    if (type < 2) return MHA_OK;
    rope->rope_scaling = (mha_rope_scaling)(type - 2);
    if (mhai_config_absent(&s->inner, "factor"))
        return mha_fail(MHA_ERR_MODEL, "%s: 'factor' is missing beside rope_type '%s'",
                        mhai_show_path(s->outer.path).text, types[type]);
    MHA_TRY(mhai_config_real(&s->inner, "factor", 1, 1e-6, 1e6, &rope->rope_factor));
    return type == 2 ? MHA_OK : read_scaled(s, d, rope);
}

void mhai_set_rotation(mha_layer_desc *layer, const mha_layer_desc *rope)
{
    layer->rotary_dim = rope->rotary_dim;
    layer->rope_base = rope->rope_base;
    layer->rope_factor = rope->rope_factor;
    layer->rope_scaling = rope->rope_scaling;
    layer->rope_low = rope->rope_low;
    layer->rope_high = rope->rope_high;
    layer->rope_amplitude = rope->rope_amplitude;
    layer->rope_original_length = rope->rope_original_length;
}

/* rope_parameters since transformers 5, else rope_scaling. */
static mha_status find_rope(const mhai_config *config, rope_source *s)
{
    const mhai_family *family;
    MHA_TRY(mhai_family_find(config, &family));
    const bool nested = !mhai_config_absent(config, "rope_parameters");
    const char *key = nested ? "rope_parameters" : "rope_scaling";
    *s = (rope_source){
        {config->path, json_object_get(config->root, key)}, *config, family->partial, 1e4};
    if (mhai_config_absent(config, key) || json_is_object(s->inner.root)) return MHA_OK;
    return mha_fail(MHA_ERR_MODEL, "%s: '%s' is not a JSON object",
                    mhai_show_path(config->path).text, key);
}

mha_status mhai_read_rope(const mhai_config *config, mhai_family_plan *plan)
{
    mha_layer_desc rope;
    rope_source source;
    MHA_TRY(find_rope(config, &source));
    MHA_TRY(read_rotation(&source, &plan->desc, &rope));
    plan->desc.rope_base = rope.rope_base;
    if (!rope.rotary_dim && rope.rope_factor == 0 && !plan->layers) return MHA_OK;
    MHA_TRY(mhai_plan_layers(plan));
    for (int64_t i = 0; i < plan->desc.num_layers; i++) mhai_set_rotation(&plan->layers[i], &rope);
    return MHA_OK;
}

mha_status mhai_read_ropes(const mhai_config *config, mhai_family_plan *plan)
{
    static const char *const types[] = {"full_attention", "sliding_attention"};
    rope_source source;
    MHA_TRY(find_rope(config, &source));
    MHA_TRY(mhai_plan_layers(plan));
    for (int kind = 0; kind < 2; kind++) {
        mha_layer_desc rope;
        rope_source of = source;
        of.base = kind == 0 ? 1e6 : 1e4;
        const json_t *own = json_object_get(source.inner.root, types[kind]);
        if (json_is_object(own))
            of.inner.root = own;
        else if (kind == 1) /* before transformers 5: not scaled, and a base of its own */
            of = (rope_source){{config->path, NULL}, {config->path, NULL}, false, 1e4};
        MHA_TRY(read_rotation(&of, &plan->desc, &rope));
        if (kind == 1 && !json_is_object(own))
            MHA_TRY(
                mhai_config_real(config, "rope_local_base_freq", 1e4, 1, 3e38, &rope.rope_base));
        for (int64_t i = 0; i < plan->desc.num_layers; i++)
            if (((plan->layers[i].flags & MHA_LAYER_WINDOW) != 0) == kind)
                mhai_set_rotation(&plan->layers[i], &rope);
    }
    return MHA_OK;
}

/* ---- windows ------------------------------------------------------------------------------- */

/* Whether a layer has the window. */
static mha_status read_type(const mhai_config *config, const json_t *list, int64_t layer,
                            bool *slides)
{
    const char *type = json_string_value(json_array_get(list, (size_t)layer));
    *slides = type && strcmp(type, "sliding_attention") == 0;
    if (*slides || (type && strcmp(type, "full_attention") == 0)) return MHA_OK;
    return mha_fail(MHA_ERR_UNSUPPORTED,
                    "%s: 'layer_types' of layer %lld is '%s'; known: full_attention, "
                    "sliding_attention",
                    mhai_show_path(config->path).text, (long long)layer,
                    type ? mhai_show_name(type).text : "");
}

mha_status mhai_read_windows(const mhai_config *config, int64_t usual, int64_t first,
                             int64_t period, mhai_family_plan *plan)
{
    const json_t *list = json_object_get(config->root, "layer_types");
    const bool listed = !mhai_config_absent(config, "layer_types");
    int64_t window;
    if (!json_is_null(json_object_get(config->root, "sliding_window")))
        MHA_TRY(mhai_config_optional(config, "sliding_window", 1, INT64_MAX, usual, &window));
    else
        window = 0;
    if (listed && (!json_is_array(list) || (int64_t)json_array_size(list) != plan->desc.num_layers))
        return mha_fail(MHA_ERR_MODEL,
                        "%s: 'layer_types' is not a list of %lld, one for each layer",
                        mhai_show_path(config->path).text, (long long)plan->desc.num_layers);
    for (int64_t i = 0; i < plan->desc.num_layers; i++) {
        bool slides = i >= first && (period == 0 || (i + 1) % period != 0);
        if (listed) MHA_TRY(read_type(config, list, i, &slides));
        if (!slides || window == 0) continue;
        MHA_TRY(mhai_plan_layers(plan));
        plan->layers[i].flags |= MHA_LAYER_WINDOW;
        plan->layers[i].left_keys = window - 1;
    }
    return MHA_OK;
}
