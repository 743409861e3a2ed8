/* See gguf_config.h. The keys are those that llama.cpp's converters write. */
#include "model/gguf_config.h"

#include "io/file.h"

#include <multihead/component.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- names of weights ---------------------------------------------------------------------- */

#define COMMON                                                                              \
    MHAI_NAME("embed_tokens", "token_embd"), MHAI_NAME("embed_positions", "position_embd"), \
        MHAI_NAME("norm", "output_norm"), MHAI_NAME("lm_head", "output"),                   \
        MHAI_NAME("self_attn_norm", "attn_norm"),                                           \
        MHAI_NAME("self_attn_post_norm", "post_attention_norm"),                            \
        MHAI_NAME("mlp_norm", "ffn_norm"), MHAI_NAME("mlp_post_norm", "post_ffw_norm"),     \
        MHAI_NAME("self_attn.o_proj", "attn_output"),                                       \
        MHAI_NAME("self_attn.q_norm", "attn_q_norm"),                                       \
        MHAI_NAME("self_attn.k_norm", "attn_k_norm"), MHAI_NAME("mlp.down_proj", "ffn_down")
#define GATED MHAI_NAME("mlp.gate_proj", "ffn_gate"), MHAI_NAME("mlp.up_proj", "ffn_up")
#define FUSED                                            \
    {"self_attn.q_proj", "attn_qkv", MHAI_FUSED, 0},     \
        {"self_attn.k_proj", "attn_qkv", MHAI_FUSED, 1}, \
    {                                                    \
        "self_attn.v_proj", "attn_qkv", MHAI_FUSED, 2    \
    }
#define END MHAI_NAME(NULL, NULL)

static const mhai_weight_name plain_names[] = {COMMON,
                                               GATED,
                                               MHAI_NAME("self_attn.q_proj", "attn_q"),
                                               MHAI_NAME("self_attn.k_proj", "attn_k"),
                                               MHAI_NAME("self_attn.v_proj", "attn_v"),
                                               END};
/* Rotated pairs are neighbours in GGUF files. */
static const mhai_weight_name llama_names[] = {COMMON,
                                               GATED,
                                               {"self_attn.q_proj", "attn_q", MHAI_PAIRED_ROWS, 0},
                                               {"self_attn.k_proj", "attn_k", MHAI_PAIRED_ROWS, 0},
                                               MHAI_NAME("self_attn.v_proj", "attn_v"),
                                               END};
/* The name of the last norm is that of a norm of embeddings. */
static const mhai_weight_name lfm2_names[] = {
    MHAI_NAME("norm", "token_embd_norm"),
    COMMON,
    GATED,
    MHAI_NAME("self_attn.q_proj", "attn_q"),
    MHAI_NAME("self_attn.k_proj", "attn_k"),
    MHAI_NAME("self_attn.v_proj", "attn_v"),
    {"short_conv.b_proj", "shortconv.in_proj", MHAI_FUSED, 0},
    {"short_conv.c_proj", "shortconv.in_proj", MHAI_FUSED, 1},
    {"short_conv.x_proj", "shortconv.in_proj", MHAI_FUSED, 2},
    MHAI_NAME("short_conv.conv", "shortconv.conv"),
    MHAI_NAME("short_conv.o_proj", "shortconv.out_proj"),
    END};
static const mhai_weight_name qwen35_names[] = {MHAI_NAME("mlp_norm", "post_attention_norm"),
                                                COMMON,
                                                GATED,
                                                {"self_attn.q_proj", "attn_q", MHAI_FUSED_GATE, 0},
                                                {"self_attn.g_proj", "attn_q", MHAI_FUSED_GATE, 1},
                                                MHAI_NAME("self_attn.k_proj", "attn_k"),
                                                MHAI_NAME("self_attn.v_proj", "attn_v"),
                                                {"delta_net.q_proj", "attn_qkv", MHAI_FUSED, 0},
                                                {"delta_net.k_proj", "attn_qkv", MHAI_FUSED, 1},
                                                {"delta_net.v_proj", "attn_qkv", MHAI_FUSED, 2},
                                                MHAI_NAME("delta_net.g_proj", "attn_gate"),
                                                MHAI_NAME("delta_net.b_proj", "ssm_beta"),
                                                MHAI_NAME("delta_net.a_proj", "ssm_alpha"),
                                                MHAI_NAME("delta_net.conv", "ssm_conv1d"),
                                                MHAI_NAME("delta_net.o_norm", "ssm_norm"),
                                                MHAI_NAME("delta_net.o_proj", "ssm_out"),
                                                {"delta_net.A_log", "ssm_a", MHAI_MINUS_EXP, 0},
                                                MHAI_NAME("delta_net.dt_bias", "ssm_dt.bias"),
                                                END};
static const mhai_weight_name granite_names[] = {
    COMMON,
    GATED,
    {"self_attn.q_proj", "attn_q", MHAI_PAIRED_ROWS, 0},
    {"self_attn.k_proj", "attn_k", MHAI_PAIRED_ROWS, 0},
    MHAI_NAME("self_attn.v_proj", "attn_v"),
    {"state_space.g_proj", "ssm_in", MHAI_FUSED, 0},
    {"state_space.v_proj", "ssm_in", MHAI_FUSED, 1},
    {"state_space.k_proj", "ssm_in", MHAI_FUSED, 2},
    {"state_space.q_proj", "ssm_in", MHAI_FUSED, 3},
    {"state_space.a_proj", "ssm_in", MHAI_FUSED, 4},
    MHAI_NAME("state_space.conv", "ssm_conv1d"),
    MHAI_NAME("state_space.o_norm", "ssm_norm"),
    MHAI_NAME("state_space.o_proj", "ssm_out"),
    {"state_space.A_log", "ssm_a", MHAI_MINUS_EXP, 0},
    MHAI_NAME("state_space.D", "ssm_d"),
    MHAI_NAME("state_space.dt_bias", "ssm_dt.bias"),
    END};
static const mhai_weight_name fused_names[] = {COMMON, GATED, FUSED, END};
static const mhai_weight_name phi3_names[] = {COMMON,
                                              FUSED,
                                              {"mlp.gate_proj", "ffn_up", MHAI_FUSED, 0},
                                              {"mlp.up_proj", "ffn_up", MHAI_FUSED, 1},
                                              END};

/* ---- architectures ------------------------------------------------------------------------- */

static const struct architecture {
    const char *name, *model_type;
    const mhai_weight_name *names;
    int64_t largest;   /* layers of the model whose scale uses E / H instead of D (Gemma, 27B) */
    const char *mixer; /* layer_types of layers without key/value heads; NULL: all have some */
} architectures[] = {{"llama", "llama", llama_names, 0, NULL},
                     {"qwen2", "qwen2", plain_names, 0, NULL},
                     {"qwen3", "qwen3", plain_names, 0, NULL},
                     {"gemma", "gemma", plain_names, 0, NULL},
                     {"gemma2", "gemma2", plain_names, 46, NULL},
                     {"gemma3", "gemma3_text", plain_names, 62, NULL},
                     {"phi3", "phi3", phi3_names, 0, NULL},
                     {"gpt2", "gpt2", fused_names, 0, NULL},
                     {"gptneox", "gpt_neox", fused_names, 0, NULL},
                     {"lfm2", "lfm2", lfm2_names, 0, "conv"},
                     {"qwen35", "qwen3_5_text", qwen35_names, 0, NULL},
                     {"granitehybrid", "granitemoehybrid", granite_names, 0, "linear_attention"}};

enum { ARCHITECTURES = sizeof architectures / sizeof architectures[0] };

/* The weights that decoders ignore, and factors that were converted to a scaling. */
static bool ignores(const mhai_family_plan *plan, const char *name)
{
    return strcmp(name, "rope_freqs.weight") == 0 || mhai_decoder_ignores(plan, name);
}

mhai_family mhai_gguf_family(const mhai_family *family)
{
    mhai_family own = *family;
    for (int i = 0; i < ARCHITECTURES; i++)
        if (strcmp(architectures[i].model_type, family->model_type) == 0)
            own.names = architectures[i].names;
    own.layers = "blk.";
    own.prefix = "";
    own.text_prefix = NULL;
    own.ignores = ignores;
    return own;
}

/* ---- metadata ------------------------------------------------------------------------------ */

/* Keys after "llama.", and the fields of config.json with the same meaning in some family. */
static const struct {
    const char *key;
    bool required, real;
    const char *fields[3];
} rows[] = {
    {"block_count", true, false, {"num_hidden_layers", "n_layer", NULL}},
    {"context_length", true, false, {"max_position_embeddings", "n_positions", NULL}},
    {"embedding_length", true, false, {"hidden_size", "n_embd", NULL}},
    {"feed_forward_length",
     true,
     false,
     {"intermediate_size", "n_inner", "shared_intermediate_size"}},
    {"attention.key_length", false, false, {"head_dim", NULL, NULL}},
    {"attention.sliding_window", false, false, {"sliding_window", NULL, NULL}},
    {"attention.layer_norm_rms_epsilon", false, true, {"rms_norm_eps", "norm_eps", NULL}},
    {"attention.layer_norm_epsilon", false, true, {"layer_norm_eps", "layer_norm_epsilon", NULL}},
    {"shortconv.l_cache", false, false, {"conv_L_cache", NULL, NULL}},
    {"full_attention_interval", false, false, {"full_attention_interval", NULL, NULL}},
    {"ssm.conv_kernel", false, false, {"linear_conv_kernel_dim", "mamba_d_conv", NULL}},
    {"ssm.state_size", false, false, {"linear_key_head_dim", "mamba_d_state", NULL}},
    {"ssm.group_count", false, false, {"linear_num_key_heads", "mamba_n_groups", NULL}},
    {"ssm.time_step_rank", false, false, {"linear_num_value_heads", "mamba_n_heads", NULL}},
    {"expert_shared_feed_forward_length", false, false, {"shared_intermediate_size", NULL, NULL}},
    {"embedding_scale", false, true, {"embedding_multiplier", NULL, NULL}},
    {"residual_scale", false, true, {"residual_multiplier", NULL, NULL}},
    {"attention.scale", false, true, {"attention_multiplier", NULL, NULL}},
    {"logit_scale", false, true, {"logits_scaling", NULL, NULL}},
    {"rope.freq_base", false, true, {"rope_theta", "rotary_emb_base", NULL}},
    {"rope.freq_base_swa", false, true, {"rope_local_base_freq", NULL, NULL}},
    {"attn_logit_softcapping", false, true, {"attn_logit_softcapping", NULL, NULL}},
    {"final_logit_softcapping", false, true, {"final_logit_softcapping", NULL, NULL}}};

typedef struct reading {
    const mha_gguf *file;
    const char *path;
    const struct architecture *of;
    json_t *root, *names; /* names: root's, of fields */
} reading;

static int64_t count_of(const reading *r, const char *field)
{
    return (int64_t)json_integer_value(json_object_get(r->root, field));
}

/* The value of "llama.KEY"; false: there is none. */
static bool find(const reading *r, const char *key, mha_gguf_value *value)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%s", r->of->name, key);
    return mha_gguf_key_find(r->file, full) >= 0 &&
           mha_gguf_value_of(r->file, full, value) == MHA_OK;
}

static mha_status refuse(const reading *r, const mha_gguf_value *value, const char *why)
{
    return mhai_path_fail(MHA_ERR_UNSUPPORTED, r->path, "'%s' %s; take the model's folder",
                          mhai_show_name(value->key).text, why);
}

static const char differs[] = "differs from layer to layer, which is not supported";

/* An array must have an element for each layer. */
static mha_status check_array(const reading *r, const mha_gguf_value *value)
{
    const int64_t layers = count_of(r, "num_hidden_layers");
    if (!value->array || value->count == layers) return MHA_OK;
    return mhai_path_fail(
        MHA_ERR_MODEL, r->path, "'%s' has %lld elements, expected %lld, one for each layer",
        mhai_show_name(value->key).text, (long long)value->count, (long long)layers);
}

/* A number, or an array of equal numbers. */
static mha_status read_value(const reading *r, const mha_gguf_value *value, bool real,
                             json_t **number)
{
    double x = 0, first_x = 0;
    int64_t n = 0, first_n = 0;
    MHA_TRY(check_array(r, value));
    for (int64_t i = 0; i < value->count; i++) {
        if (real)
            MHA_TRY(mha_gguf_real(value, i, &x));
        else
            MHA_TRY(mha_gguf_integer(value, i, 0, INT64_MAX, &n));
        if (i == 0) first_x = x, first_n = n;
        if (n != first_n || x < first_x || x > first_x) return refuse(r, value, differs);
    }
    *number = real ? json_real(x) : json_integer((json_int_t)n);
    if (*number) return MHA_OK;
    return isfinite(x) ? MHA_NO_MEMORY("model")
                       : mhai_path_fail(MHA_ERR_MODEL, r->path, "'%s' is not a finite number",
                                        mhai_show_name(value->key).text);
}

/* Copy a value into a field of object; messages name the key. */
static mha_status take(const reading *r, const mha_gguf_value *value, bool real, json_t *object,
                       const char *field)
{
    json_t *number;
    MHA_TRY(read_value(r, value, real, &number));
    return mhai_put(object, field, number) && mhai_put_text(r->names, field, value->key)
               ? MHA_OK
               : MHA_NO_MEMORY("model");
}

static mha_status missing(const reading *r, const char *key)
{
    return mhai_path_fail(MHA_ERR_MODEL, r->path, "key '%s.%s' is missing", r->of->name, key);
}

static mha_status read_rows(const reading *r)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        mha_gguf_value value;
        if (!find(r, rows[i].key, &value)) {
            if (rows[i].required) return missing(r, rows[i].key);
            continue;
        }
        for (int k = 0; k < 3 && rows[i].fields[k]; k++)
            MHA_TRY(take(r, &value, rows[i].real, r->root, rows[i].fields[k]));
    }
    return MHA_OK;
}

static mha_status add_to(json_t *list, const mha_gguf_value *value, int64_t layer, int64_t *number)
{
    MHA_TRY(mha_gguf_integer(value, value->array ? layer : 0, 0, INT64_MAX, number));
    return json_array_append_new(list, json_integer((json_int_t)*number)) == 0
               ? MHA_OK
               : MHA_NO_MEMORY("model");
}

/* Report valid but unsupported metadata before any missing key. */
static mha_status refuse_unsupported(const reading *r)
{
    mha_gguf_value value;
    int64_t experts = 0;
    if (find(r, "expert_count", &value))
        MHA_TRY(mha_gguf_integer(&value, 0, 0, INT64_MAX, &experts));
    if (experts == 0) return MHA_OK;
    return mhai_path_fail(MHA_ERR_UNSUPPORTED, r->path, "'%s' is %lld: experts are not supported",
                          value.key, (long long)experts);
}

/* Numbers of heads over the layers. */
typedef struct head_counts {
    json_t *lists[2], *types;
    int64_t most, kv_heads; /* of the layer with most heads */
    bool same, seen;
} head_counts;

/* A layer without key/value heads has the other mixer of its architecture, if there is one. */
static mha_status add_layer(const reading *r, const mha_gguf_value *heads, const mha_gguf_value *kv,
                            int64_t layer, head_counts *n)
{
    int64_t h, k;
    MHA_TRY(add_to(n->lists[0], heads, layer, &h));
    MHA_TRY(add_to(n->lists[1], kv, layer, &k));
    const char *type = k == 0 && r->of->mixer ? r->of->mixer : "full_attention";
    if (r->of->mixer && json_array_append_new(n->types, json_string(type)) != 0)
        return MHA_NO_MEMORY("model");
    if (k == 0 && r->of->mixer) return MHA_OK;
    n->same = n->same && (!n->seen || (h == n->most && k == n->kv_heads));
    if (!n->seen || h > n->most) n->most = h, n->kv_heads = k;
    n->seen = true;
    return MHA_OK;
}

/* Heads: the largest number of any layer, and a list if layers differ. Without a key for key/value
 * heads, their number is the number of heads. */
static mha_status read_heads(const reading *r)
{
    const int64_t layers = count_of(r, "num_hidden_layers");
    mha_gguf_value heads, kv;
    head_counts n = {.lists = {json_array(), json_array()}, .types = json_array(), .same = true};
    /* each call takes its list, also if it fails */
    const bool first = mhai_put(r->root, "layer_heads", n.lists[0]);
    const bool second = mhai_put(r->root, "layer_kv_heads", n.lists[1]);
    if (!mhai_put(r->root, "layer_types", n.types) || !first || !second)
        return MHA_NO_MEMORY("model");
    if (!find(r, "attention.head_count", &heads)) return missing(r, "attention.head_count");
    if (!find(r, "attention.head_count_kv", &kv)) kv = heads;
    MHA_TRY(check_array(r, &heads));
    MHA_TRY(check_array(r, &kv));
    for (int64_t i = 0; i < layers && layers <= MHAI_MOST_LAYERS; i++)
        MHA_TRY(add_layer(r, &heads, &kv, i, &n));
    if (!n.same && r->of->names != llama_names && r->of->names != plain_names)
        return refuse(r, kv.array ? &kv : &heads, differs);
    if (n.same) {
        json_object_del(r->root, "layer_heads");
        json_object_del(r->root, "layer_kv_heads");
    }
    if (!r->of->mixer) json_object_del(r->root, "layer_types");
    return mhai_put_count(r->root, "num_attention_heads", n.most) &&
                   mhai_put_count(r->root, "n_head", n.most) &&
                   mhai_put_count(r->root, "num_key_value_heads", n.kv_heads) &&
                   mhai_put_text(r->names, "num_attention_heads", heads.key) &&
                   mhai_put_text(r->names, "n_head", heads.key) &&
                   mhai_put_text(r->names, "layer_heads", heads.key) &&
                   mhai_put_text(r->names, "num_key_value_heads", kv.key) &&
                   mhai_put_text(r->names, "layer_kv_heads", kv.key)
               ? MHA_OK
               : MHA_NO_MEMORY("model");
}

/* Layers of Mamba-2. Attention rotates if rope.scaling.finetuned is true. */
static mha_status read_spaces(const reading *r, const mha_gguf_value *inner, int64_t width,
                              int64_t heads)
{
    const int64_t size = count_of(r, "hidden_size");
    mha_gguf_value value;
    bool rotates = false;
    if (size < 1 || width % size != 0)
        return refuse(r, inner, "is not a multiple of embedding_length, which is not supported");
    if (find(r, "rope.scaling.finetuned", &value)) MHA_TRY(mha_gguf_bool(&value, 0, &rotates));
    return mhai_put_count(r->root, "mamba_d_head", width / heads) &&
                   mhai_put_count(r->root, "mamba_expand", width / size) &&
                   mhai_put_count(r->root, "num_local_experts", 0) &&
                   mhai_put_text(r->root, "position_embedding_type", rotates ? "rope" : "nope")
               ? MHA_OK
               : MHA_NO_MEMORY("model");
}

/* The converter reorders value heads that share a key head, and adds layers that predict further
 * tokens. Neither is supported. */
static mha_status read_nets(const reading *r)
{
    const int64_t keys = count_of(r, "linear_num_key_heads");
    const int64_t heads = count_of(r, "linear_num_value_heads");
    mha_gguf_value value;
    int64_t width = 0, further = 0;
    if (r->of->names != qwen35_names && r->of->names != granite_names) return MHA_OK;
    if (!find(r, "ssm.inner_size", &value)) return missing(r, "ssm.inner_size");
    MHA_TRY(mha_gguf_integer(&value, 0, 1, INT32_MAX, &width));
    if (heads < 1 || width % heads != 0)
        return mhai_path_fail(MHA_ERR_MODEL, r->path,
                              "'%s' is %lld, which %s.ssm.time_step_rank %lld does not divide",
                              value.key, (long long)width, r->of->name, (long long)heads);
    if (r->of->names == granite_names) return read_spaces(r, &value, width, heads);
    if (find(r, "nextn_predict_layers", &value))
        MHA_TRY(mha_gguf_integer(&value, 0, 0, INT32_MAX, &further));
    if (further > 0) return refuse(r, &value, "counts layers that are not supported");
    if (heads != keys && find(r, "ssm.group_count", &value))
        return refuse(r, &value, "differs from ssm.time_step_rank, which is not supported");
    return mhai_put_count(r->root, "linear_value_head_dim", width / heads) ? MHA_OK
                                                                           : MHA_NO_MEMORY("model");
}

/* Layers with a window: an array of flags, or the period of the layers without one. */
static mha_status read_windows(const reading *r)
{
    const int64_t layers = count_of(r, "num_hidden_layers");
    int64_t period = 0;
    bool slides;
    mha_gguf_value value;
    if (!find(r, "attention.sliding_window_pattern", &value) || layers > MHAI_MOST_LAYERS)
        return MHA_OK;
    if (r->of->largest == 0) return refuse(r, &value, "is supported of Gemma 2 and 3 alone");
    MHA_TRY(check_array(r, &value));
    if (!value.array) MHA_TRY(mha_gguf_integer(&value, 0, 0, MHAI_MOST_LAYERS, &period));
    json_t *types = json_array();
    if (!mhai_put(r->root, "layer_types", types)) return MHA_NO_MEMORY("model");
    for (int64_t i = 0; i < layers; i++) {
        slides = period == 0 || (i + 1) % period != 0;
        if (value.array) MHA_TRY(mha_gguf_bool(&value, i, &slides));
        if (json_array_append_new(
                types, json_string(slides ? "sliding_attention" : "full_attention")) != 0)
            return MHA_NO_MEMORY("model");
    }
    return MHA_OK;
}

/* ---- rotations ----------------------------------------------------------------------------- */

/* How many elements of a head rotate. */
static mha_status read_width(const reading *r, int64_t *rotated)
{
    const int64_t heads = count_of(r, "num_attention_heads");
    const int64_t width = count_of(r, "head_dim") ? count_of(r, "head_dim")
                          : heads > 0             ? count_of(r, "hidden_size") / heads
                                                  : 0;
    mha_gguf_value value;
    json_t *number;
    double part = 1;
    *rotated = width;
    if (find(r, "rope.dimension_count", &value)) {
        MHA_TRY(read_value(r, &value, false, &number));
        *rotated = (int64_t)json_integer_value(number);
        json_decref(number);
        if (*rotated < 1 || (width > 0 && *rotated > width))
            return mhai_path_fail(MHA_ERR_MODEL, r->path,
                                  "'%s' is %lld, expected 1..%lld, a head's numbers", value.key,
                                  (long long)*rotated, (long long)width);
        /* use the half times the width: the rounded quotient may be less than the count */
        if (*rotated < width) part = ((double)*rotated + 0.5) / (double)width;
        if (!mhai_put_text(r->names, "partial_rotary_factor", value.key))
            return MHA_NO_MEMORY("model");
    }
    return mhai_put(r->root, "partial_rotary_factor", json_real(part)) &&
                   mhai_put(r->root, "rotary_pct", json_real(part))
               ? MHA_OK
               : MHA_NO_MEMORY("model");
}

/* The output of the functions below, and the names in messages. */
static mha_status begin_scaling(const reading *r, const char *type, json_t **scaling)
{
    *scaling = json_object();
    return mhai_put(r->root, "rope_scaling", *scaling) &&
                   mhai_put_text(*scaling, "rope_type", type) &&
                   json_object_set_nocheck(*scaling, MHAI_CONFIG_NAMES, r->names) == 0
               ? MHA_OK
               : MHA_NO_MEMORY("model");
}

/* Recover Llama 3's scaling from the factors of pairs that llama.cpp's converters write in its
 * place, always with low 1, high 4 and 8192 positions.
 *
 * They compute in float32. The turns of a pair in these positions have an error of at most 20 u: 16
 * u of base^(2 i / R), with an exponent of up to 13, and 4 u of four more operations. The factor f
 * of slow pairs has a slope of up to f / 3 in the turns; the quotient adds 4 u. */
static mha_status read_factors(const reading *r, int64_t rotated, bool *found)
{
    static const double low = 1, high = 4, length = 8192, pi = 3.14159265358979323846;
    const json_t *given = json_object_get(r->root, "rope_theta");
    const double base = given ? json_number_value(given) : 1e4;
    const int64_t at = mha_gguf_find(r->file, "rope_freqs.weight");
    mha_gguf_tensor factors;
    float last, factor;
    json_t *scaling;
    *found = at >= 0;
    if (!*found) return MHA_OK;
    MHA_TRY(mha_gguf_describe(r->file, at, &factors));
    bool same = strcmp(r->of->name, "llama") == 0 && factors.type == MHA_GGUF_F32 &&
                factors.count == rotated / 2 && base > 1;
    if (same) MHA_TRY(mha_gguf_read(r->file, at, factors.count - 1, 1, &last));
    same = same && last >= 1 && last <= 1e6F;
    for (int64_t i = 0; same && i < factors.count; i++) {
        const double turns =
            length / (2 * pi) * mha_exp(-2 * (double)i / (double)rotated * mha_log(base));
        const double fast = fmin(fmax((turns - low) / (high - low), 0), 1);
        const double exact = 1 / ((1 - fast) / (double)last + fast);
        MHA_TRY(mha_gguf_read(r->file, at, i, 1, &factor));
        same = fabs((double)factor / exact - 1) <= (20 * (double)last / 3 + 4) * 0x1p-24;
    }
    if (!same)
        return mhai_path_fail(
            MHA_ERR_UNSUPPORTED, r->path,
            "the factors of 'rope_freqs.weight' are not those of Llama 3.1 (low 1, "
            "high 4, 8192 positions); take the model's folder");
    MHA_TRY(begin_scaling(r, "llama3", &scaling));
    return mhai_put(scaling, "factor", json_real((double)last)) &&
                   mhai_put_text(r->names, "factor", factors.name) &&
                   mhai_put(scaling, "low_freq_factor", json_real(low)) &&
                   mhai_put(scaling, "high_freq_factor", json_real(high)) &&
                   mhai_put_count(scaling, "original_max_position_embeddings", (int64_t)length)
               ? MHA_OK
               : MHA_NO_MEMORY("model");
}

/* Reject other factors of a rotation in llama.cpp, unless they are 1. */
static mha_status refuse_others(const reading *r, bool yarn)
{
    const struct {
        const char *key;
        double same;
    } others[] = {{"rope.scaling.alpha", 0},
                  {"rope.scaling.yarn_log_multiplier", 0},
                  {"rope.scaling.yarn_ext_factor", yarn ? 1 : 0},
                  /* transformers stores the amplitude, llama.cpp nothing or a factor of it */
                  {"rope.scaling.yarn_attn_factor", NAN},
                  {"rope.scaling.attn_factor", 1}}; /* YaRN has it */
    for (int i = 0; i < (yarn ? 4 : 5); i++) {
        mha_gguf_value value;
        double x;
        if (!find(r, others[i].key, &value)) continue;
        MHA_TRY(mha_gguf_real(&value, 0, &x));
        if (!(x >= others[i].same) || x > others[i].same)
            return refuse(r, &value, "is not supported");
    }
    return MHA_OK;
}

/* Read YaRN's numbers. Missing ones have the same defaults in this library. attn_factor is a factor
 * of the amplitude. */
static mha_status read_yarn(const reading *r, json_t *scaling)
{
    static const struct {
        const char *key, *field;
    } numbers[] = {{"rope.scaling.original_context_length", "original_max_position_embeddings"},
                   {"rope.scaling.yarn_beta_fast", "beta_fast"},
                   {"rope.scaling.yarn_beta_slow", "beta_slow"},
                   {"rope.scaling.attn_factor", "attention_factor"}};
    mha_gguf_value value;
    for (int i = 0; i < 4; i++)
        if (find(r, numbers[i].key, &value))
            MHA_TRY(take(r, &value, i > 0, scaling, numbers[i].field));
    const json_t *times = json_object_get(scaling, "attention_factor");
    const double factor = json_real_value(json_object_get(scaling, "factor"));
    const double usual = factor > 1 ? 0.1 * mha_log(factor) + 1 : 1;
    return !times ||
                   mhai_put(scaling, "attention_factor", json_real(json_real_value(times) * usual))
               ? MHA_OK
               : MHA_NO_MEMORY("model");
}

/* The type defaults to linear, as in llama.cpp. */
static mha_status read_scaling(const reading *r, bool factors)
{
    const char *text = "linear";
    size_t size = 6;
    char type[8] = "";
    mha_gguf_value value, scale;
    json_t *scaling;
    const bool typed = find(r, "rope.scaling.type", &value);
    const bool scaled = find(r, "rope.scaling.factor", &scale) ||
                        find(r, "rope.scale_linear", &scale); /* files older than scaling.type */
    if (typed) MHA_TRY(mha_gguf_string(&value, 0, &text, &size));
    memcpy(type, text, size < sizeof type ? size : 0);
    const bool yarn = strcmp(type, "yarn") == 0;
    MHA_TRY(refuse_others(r, yarn));
    if ((!typed && !scaled) || strcmp(type, "none") == 0) return MHA_OK;
    if (factors || !scaled || (!yarn && strcmp(type, "linear") != 0))
        return mhai_path_fail(
            MHA_ERR_UNSUPPORTED, r->path,
            "'%s.rope.scaling.type' is not supported here; known: none, linear and "
            "yarn with a factor and without rope_freqs.weight; take the model's folder",
            r->of->name);
    MHA_TRY(begin_scaling(r, type, &scaling));
    MHA_TRY(take(r, &scale, true, scaling, "factor"));
    return yarn ? read_yarn(r, scaling) : MHA_OK;
}

static mha_status read_rotation(const reading *r)
{
    int64_t rotated;
    bool factors;
    MHA_TRY(read_width(r, &rotated));
    if (mha_gguf_find(r->file, "rope_factors_long.weight") >= 0)
        return mhai_path_fail(
            MHA_ERR_UNSUPPORTED, r->path,
            "'rope_factors_long.weight', factors of a rotation by the length of the "
            "text, is not supported; take the model's folder");
    MHA_TRY(read_factors(r, rotated, &factors));
    return read_scaling(r, factors);
}

/* Settings derived from the weights: the output, biases, the vocabulary. */
static mha_status read_weights(const reading *r)
{
    mha_gguf_tensor table;
    const int64_t at = mha_gguf_find(r->file, "token_embd.weight");
    if (at < 0)
        return mhai_path_fail(MHA_ERR_MODEL, r->path, "weight 'token_embd.weight' is missing");
    MHA_TRY(mha_gguf_describe(r->file, at, &table));
    const bool tied = mha_gguf_find(r->file, "output.weight") < 0;
    const bool biased = mha_gguf_find(r->file, "blk.0.attn_q.bias") >= 0 ||
                        mha_gguf_find(r->file, "blk.0.attn_qkv.bias") >= 0;
    if (!mhai_put_count(r->root, "vocab_size", table.dims[1]) ||
        !mhai_put_bool(r->root, "tie_word_embeddings", tied) ||
        !mhai_put_bool(r->root, "attention_bias", biased) ||
        !mhai_put_bool(r->root, "mlp_bias", mha_gguf_find(r->file, "blk.0.ffn_up.bias") >= 0))
        return MHA_NO_MEMORY("model");
    return MHA_OK;
}

/* Settings that llama.cpp assumes without a key. */
static mha_status add_known(const reading *r)
{
    const int64_t heads = count_of(r, "num_attention_heads"), width = count_of(r, "hidden_size");
    const int64_t each = heads > 0 ? width / heads : 0;
    mha_gguf_value value;
    bool parallel = true, causal = true;
    if (find(r, "attention.causal", &value)) MHA_TRY(mha_gguf_bool(&value, 0, &causal));
    if (!causal) return refuse(r, &value, "is false, which is not supported");
    if (find(r, "use_parallel_residual", &value)) MHA_TRY(mha_gguf_bool(&value, 0, &parallel));
    bool good = mhai_put_bool(r->root, "use_parallel_residual", parallel) &&
                mhai_put_bool(r->root, "block_auto_adjust_ff_dim", false);
    if (!json_object_get(r->root, "rope_theta"))
        good = good && mhai_put(r->root, "rope_theta", json_real(1e4));
    /* 0 means none (Phi 4) */
    if (r->of->largest == 0 && count_of(r, "sliding_window") == 0)
        json_object_del(r->root, "sliding_window");
    if (!find(r, "attention.key_length", &value) && each > 0 && width % heads == 0)
        good = good && mhai_put_count(r->root, "head_dim", each);
    if (!find(r, "attention.sliding_window", &value) && strcmp(r->of->name, "gemma3") == 0)
        good = good && mhai_put(r->root, "sliding_window", json_null());
    if (r->of->largest > 0) {
        const bool by_width = count_of(r, "num_hidden_layers") == r->of->largest;
        good = good && mhai_put_count(r->root, "query_pre_attn_scalar",
                                      by_width ? each : count_of(r, "head_dim"));
    }
    return good ? MHA_OK : MHA_NO_MEMORY("model");
}

/* In a split file only the first part has the metadata. */
static mha_status refuse_part(const reading *r)
{
    static const char number[] = "split.no", count[] = "split.count";
    mha_gguf_value value;
    int64_t part = 0, parts = 1;
    if (mha_gguf_key_find(r->file, count) < 0) return MHA_OK;
    MHA_TRY(mha_gguf_value_of(r->file, count, &value));
    MHA_TRY(mha_gguf_integer(&value, 0, 0, INT64_MAX, &parts));
    if (mha_gguf_key_find(r->file, number) >= 0) {
        MHA_TRY(mha_gguf_value_of(r->file, number, &value));
        MHA_TRY(mha_gguf_integer(&value, 0, 0, INT64_MAX - 1, &part));
    }
    if (parts <= 1) return MHA_OK;
    return mhai_path_fail(MHA_ERR_UNSUPPORTED, r->path,
                          "is part %lld of %lld of a model; merge them with llama.cpp's "
                          "llama-gguf-split --merge FIRST-PART WHOLE.gguf",
                          (long long)part + 1, (long long)parts);
}

static mha_status find_architecture(reading *r)
{
    mha_gguf_value value;
    const char *name;
    size_t size;
    char known[192] = "", found[48];
    MHA_TRY(mha_gguf_value_of(r->file, "general.architecture", &value));
    MHA_TRY(mha_gguf_string(&value, 0, &name, &size));
    for (int i = 0; i < ARCHITECTURES; i++) {
        const char *own = architectures[i].name;
        if (strlen(own) == size && memcmp(own, name, size) == 0) r->of = &architectures[i];
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", own);
    }
    if (r->of) return MHA_OK;
    snprintf(found, sizeof found, "%.*s", (int)(size < 40 ? size : 40), name);
    return mhai_path_fail(MHA_ERR_UNSUPPORTED, r->path,
                          "general.architecture '%s' is not supported; known: %s",
                          mhai_show_name(found).text, known);
}

mha_status mhai_gguf_status(mha_status status)
{
    const bool value =
        status == MHA_ERR_ARGUMENT || status == MHA_ERR_DTYPE || status == MHA_ERR_NUMERIC;
    return value ? MHA_ERR_MODEL : status;
}

mha_status mhai_gguf_config(const mha_gguf *file, const char *path, json_t **root)
{
    reading r = {.file = file, .path = path};
    mha_status status = refuse_part(&r);
    if (status == MHA_OK) status = find_architecture(&r);
    r.root = status == MHA_OK ? json_object() : NULL;
    r.names = status == MHA_OK ? json_object() : NULL;
    if (status == MHA_OK && (json_object_set_new_nocheck(r.root, MHAI_CONFIG_NAMES, r.names) != 0 ||
                             !mhai_put_text(r.root, "model_type", r.of->model_type)))
        status = MHA_NO_MEMORY("model");
    if (status == MHA_OK) status = refuse_unsupported(&r);
    if (status == MHA_OK) status = read_rows(&r);
    if (status == MHA_OK) status = read_heads(&r);
    if (status == MHA_OK) status = read_nets(&r);
    if (status == MHA_OK) status = read_windows(&r);
    if (status == MHA_OK) status = read_rotation(&r);
    if (status == MHA_OK) status = read_weights(&r);
    if (status == MHA_OK) status = add_known(&r);
    if (status == MHA_OK)
        *root = r.root;
    else
        json_decref(r.root);
    return mhai_gguf_status(status);
}
