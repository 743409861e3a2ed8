/* See gguf_config.h. The keys are those of llama.cpp's converters. */
#include "model/gguf_config.h"

#include "io/file.h"
#include "model/gguf_names.h"
#include "model/gguf_reading.h"

#include <multihead/component.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- architectures ------------------------------------------------------------------------- */

static const struct architecture {
    const char *name, *model_type;
    const mhai_weight_name *names;
    int64_t largest;   /* the scale of the model with this many layers is based on
                        * E / H, not D (Gemma, 27B) */
    const char *mixer; /* the layer type of layers without key/value heads;
                        * NULL: every layer has some */
    mhai_gguf_routing routing;
    uint32_t traits;
} architectures[] = {
    {"llama", "llama", mhai_gguf_llama_names, 0, NULL, 0, 0},
    {"llama", "mixtral", mhai_gguf_llama_names, 0, NULL, MHAI_GGUF_ROUTING_SUM, 0},
    {"qwen2", "qwen2", mhai_gguf_plain_names, 0, NULL, 0, 0},
    {"qwen3", "qwen3", mhai_gguf_plain_names, 0, NULL, 0, 0},
    {"qwen2vl", "qwen2_vl", mhai_gguf_plain_names, 0, NULL, 0, 0},
    {"qwen3vl", "qwen3_vl_text", mhai_gguf_plain_names, 0, NULL, 0, 0},
    {"qwen3moe", "qwen3_moe", mhai_gguf_plain_names, 0, NULL, MHAI_GGUF_ROUTING_NORMALISED, 0},
    {"olmoe", "olmoe", mhai_gguf_plain_names, 0, NULL, MHAI_GGUF_ROUTING_PLAIN, 0},
    {"gemma", "gemma", mhai_gguf_plain_names, 0, NULL, 0, 0},
    {"gemma2", "gemma2", mhai_gguf_plain_names, 46, NULL, 0, MHAI_GGUF_WINDOWS},
    {"gemma3", "gemma3_text", mhai_gguf_plain_names, 62, NULL, 0, MHAI_GGUF_WINDOWS},
    {"phi3", "phi3", mhai_gguf_phi3_names, 0, NULL, 0, 0},
    {"gpt2", "gpt2", mhai_gguf_fused_names, 0, NULL, 0, 0},
    {"gptneox", "gpt_neox", mhai_gguf_fused_names, 0, NULL, 0, 0},
    {"lfm2", "lfm2", mhai_gguf_lfm2_names, 0, "conv", 0, 0},
    {"lfm2moe", "lfm2_moe", mhai_gguf_lfm2_names, 0, "conv", MHAI_GGUF_ROUTING_SIGMOID, 0},
    {"qwen35", "qwen3_5_text", mhai_gguf_qwen35_names, 0, NULL, 0,
     MHAI_GGUF_NETS | MHAI_GGUF_REORDERED},
    {"qwen35moe", "qwen3_5_moe_text", mhai_gguf_qwen35_names, 0, NULL, MHAI_GGUF_ROUTING_SUM,
     MHAI_GGUF_NETS | MHAI_GGUF_REORDERED},
    {"qwen3next", "qwen3_next", mhai_gguf_next_names, 0, NULL, MHAI_GGUF_ROUTING_NORMALISED,
     MHAI_GGUF_NETS},
    {"smollm3", "smollm3", mhai_gguf_llama_names, 0, NULL, 0, 0},
    {"stablelm", "stablelm", mhai_gguf_plain_names, 0, NULL, 0, 0},
    {"glm4", "glm4", mhai_gguf_glm4_names, 0, NULL, 0, 0},
    {"olmo2", "olmo2", mhai_gguf_plain_names, 0, NULL, 0, 0},
    {"olmo2", "olmo3", mhai_gguf_plain_names, 0, NULL, 0,
     MHAI_GGUF_WINDOWS}, /* of files with a window */
    {"granite", "granite", mhai_gguf_llama_names, 0, NULL, 0, MHAI_GGUF_SWITCH},
    {"granitemoe", "granitemoeshared", mhai_gguf_llama_names, 0, NULL, MHAI_GGUF_ROUTING_SUM,
     MHAI_GGUF_SWITCH},
    {"granitehybrid", "granitemoehybrid", mhai_gguf_space_names, 0, "linear_attention",
     MHAI_GGUF_ROUTING_SUM, MHAI_GGUF_SPACES},
    {"gpt-oss", "gpt_oss", mhai_gguf_gpt_oss_names, 0, NULL, MHAI_GGUF_ROUTING_SUM,
     MHAI_GGUF_WINDOWS},
    {"deepseek2", "youtu", mhai_gguf_latent_names, 0, NULL, 0, MHAI_GGUF_LATENT},
    {"deepseek2", "deepseek_v2", mhai_gguf_latent_names, 0, NULL, MHAI_GGUF_ROUTING_PLAIN,
     MHAI_GGUF_LATENT},
    {"deepseek2", "deepseek_v3", mhai_gguf_latent_names, 0, NULL, MHAI_GGUF_ROUTING_SIGMOID,
     MHAI_GGUF_LATENT},
    {"falcon", "falcon", mhai_gguf_falcon_names, 0, NULL, 0, 0},
    {"bloom", "bloom", mhai_gguf_alibi_names, 0, NULL, 0, 0},
    {"mpt", "mpt", mhai_gguf_alibi_names, 0, NULL, 0, 0},
    {"starcoder", "gpt_bigcode", mhai_gguf_fused_names, 0, NULL, 0, 0},
    {"starcoder2", "starcoder2", mhai_gguf_plain_names, 0, NULL, 0, 0},
    {"phi2", "phi", mhai_gguf_plain_names, 0, NULL, 0, 0},
    {"olmo", "olmo", mhai_gguf_olmo_names, 0, NULL, 0, 0},
    {"exaone4", "exaone4", mhai_gguf_plain_names, 0, NULL, 0, MHAI_GGUF_WINDOWS},
    {"seed_oss", "seed_oss", mhai_gguf_gpt_oss_names, 0, NULL, 0, 0},
    {"arcee", "arcee", mhai_gguf_llama_names, 0, NULL, 0, 0},
    {"nemotron", "nemotron", mhai_gguf_plain_names, 0, NULL, 0, 0},
    {"ernie4_5", "ernie4_5", mhai_gguf_plain_names, 0, NULL, 0, 0},
    {"ernie4_5-moe", "ernie4_5_moe", mhai_gguf_plain_names, 0, NULL, MHAI_GGUF_ROUTING_SUM, 0},
    {"qwen2moe", "qwen2_moe", mhai_gguf_plain_names, 0, NULL, MHAI_GGUF_ROUTING_PLAIN, 0},
    {"glm4moe", "glm4_moe", mhai_gguf_gpt_oss_names, 0, NULL, MHAI_GGUF_ROUTING_SIGMOID,
     MHAI_GGUF_PREDICTS},
    {"dots1", "dots1", mhai_gguf_plain_names, 0, NULL, MHAI_GGUF_ROUTING_SIGMOID, 0},
    {"minimax-m2", "minimax_m2", mhai_gguf_plain_names, 0, NULL, MHAI_GGUF_ROUTING_SIGMOID, 0},
    {"command-r", "cohere", mhai_gguf_plain_names, 0, NULL, 0, 0},
    {"cohere2", "cohere2", mhai_gguf_plain_names, 0, NULL, 0, MHAI_GGUF_WINDOWS},
    {"minicpm3", "minicpm3", mhai_gguf_latent_names, 0, NULL, 0, MHAI_GGUF_LATENT},
    {"bert", "bert", mhai_gguf_bert_names, 0, NULL, 0, MHAI_GGUF_ENCODER},
    {"nomic-bert", "nomic_bert", mhai_gguf_bert_names, 0, NULL, 0, MHAI_GGUF_ENCODER},
    {"modern-bert", "modernbert", mhai_gguf_phi3_names, 0, NULL, 0,
     MHAI_GGUF_ENCODER | MHAI_GGUF_WINDOWS | MHAI_GGUF_FIRST},
    {"gemma-embedding", "gemma3_text", mhai_gguf_plain_names, 62, NULL, 0,
     MHAI_GGUF_ENCODER | MHAI_GGUF_WINDOWS},
    {"t5", "t5", mhai_gguf_t5_names, 0, NULL, 0, MHAI_GGUF_TOWERS},
    {"t5encoder", "t5", mhai_gguf_t5_names, 0, NULL, 0, MHAI_GGUF_TOWERS},
    {"mamba2", "mamba2", mhai_gguf_space_names, 0, "linear_attention", 0, MHAI_GGUF_SPACES},
    {"nemotron_h", "nemotron_h", mhai_gguf_space_names, 0, "linear_attention", 0,
     MHAI_GGUF_SPACES | MHAI_GGUF_KINDS}};

enum { ARCHITECTURES = sizeof architectures / sizeof architectures[0] };

/* Whether to ignore a weight that decoders do not use, or whose factors became a scaling. */
static bool ignores(const mhai_family_plan *plan, const char *name)
{
    return strcmp(name, "rope_freqs.weight") == 0 ||
           (plan->rope_factors && strncmp(name, "rope_factors_", 13) == 0) ||
           strncmp(name, "dense_", 6) == 0 || /* of sentence embeddings */
           mhai_decoder_ignores(plan, name);
}

/* Likewise weights of layers that predict further tokens. */
static bool ignores_later(const mhai_family_plan *plan, const char *name)
{
    return (strncmp(name, "blk.", 4) == 0 &&
            strtoll(name + 4, NULL, 10) >= plan->desc.num_layers) ||
           ignores(plan, name);
}

mhai_family mhai_gguf_family(const mhai_family *family)
{
    mhai_family own = *family;
    own.ignores = family->ignores && !family->towers ? ignores : NULL;
    for (int i = 0; i < ARCHITECTURES; i++) {
        if (strcmp(architectures[i].model_type, family->model_type) != 0) continue;
        own.names = architectures[i].names;
        if (architectures[i].traits & MHAI_GGUF_PREDICTS) own.ignores = ignores_later;
    }
    const bool encoder = family->towers && !family->encoder;
    if (encoder) own.names = mhai_gguf_t5_encoder_names;
    own.layers = !family->towers ? "blk." : encoder ? "enc.blk." : "dec.blk.";
    own.prefix = "";
    own.text_part = false;
    own.text_prefix = NULL;
    return own;
}

/* ---- metadata ------------------------------------------------------------------------------ */

/* Keys after "llama.", and the equivalent fields of config.json. */
static const struct {
    const char *key;
    bool required, real;
    const char *fields[4];
} rows[] = {
    {"block_count", true, false, {"num_hidden_layers", "n_layer", NULL}},
    {"context_length", true, false, {"max_position_embeddings", "n_positions", NULL}},
    {"embedding_length", true, false, {"hidden_size", "n_embd", NULL}},
    {"feed_forward_length", /* of Nemotron-H: mhai_gguf_kinds() */
     false,
     false,
     {"intermediate_size", "n_inner", "shared_intermediate_size"}},
    {"attention.key_length", false, false, {"head_dim", NULL, NULL}},
    {"attention.sliding_window", false, false, {"sliding_window", NULL, NULL}},
    {"attention.layer_norm_rms_epsilon",
     false,
     true,
     {"rms_norm_eps", "norm_eps", "layer_norm_epsilon"}},
    {"attention.layer_norm_epsilon",
     false,
     true,
     {"layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon"}},
    {"shortconv.l_cache", false, false, {"conv_L_cache", NULL, NULL}},
    {"full_attention_interval", false, false, {"full_attention_interval", NULL, NULL}},
    {"ssm.conv_kernel", false, false, {"linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel"}},
    {"ssm.state_size",
     false,
     false,
     {"linear_key_head_dim", "mamba_d_state", "state_size", "ssm_state_size"}},
    {"ssm.group_count", false, false, {"linear_num_key_heads", "mamba_n_groups", "n_groups"}},
    {"ssm.time_step_rank",
     false,
     false,
     {"linear_num_value_heads", "mamba_n_heads", "num_heads", "mamba_num_heads"}},
    {"attention.q_lora_rank", false, false, {"q_lora_rank", NULL, NULL}},
    {"attention.kv_lora_rank", false, false, {"kv_lora_rank", NULL, NULL}},
    {"expert_group_count", false, false, {"n_group", NULL, NULL}},
    {"expert_group_used_count", false, false, {"topk_group", NULL, NULL}},
    {"expert_shared_count", false, false, {"n_shared_experts", "moe_num_shared_experts", NULL}},
    {"expert_count",
     false,
     false,
     {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"}},
    {"expert_used_count", false, false, {"num_experts_per_tok", "moe_k", NULL}},
    {"expert_feed_forward_length", false, false, {"moe_intermediate_size", NULL, NULL}},
    {"expert_shared_feed_forward_length",
     false,
     false,
     {"shared_expert_intermediate_size", "shared_intermediate_size", NULL}},
    {"expert_weights_scale", false, true, {"routed_scaling_factor", NULL, NULL}},
    {"leading_dense_block_count",
     false,
     false,
     {"num_dense_layers", "first_k_dense_replace", "moe_layer_start_index"}},
    {"embedding_scale", false, true, {"embedding_multiplier", NULL, NULL}},
    {"residual_scale", false, true, {"residual_multiplier", NULL, NULL}},
    {"attention.scale", false, true, {"attention_multiplier", NULL, NULL}},
    {"logit_scale", false, true, {"logits_scaling", "logit_scale", NULL}},
    {"rope.freq_base", false, true, {"rope_theta", "rotary_emb_base", NULL}},
    {"rope.freq_base_swa", false, true, {"rope_local_base_freq", NULL, NULL}},
    {"attn_logit_softcapping", false, true, {"attn_logit_softcapping", NULL, NULL}},
    {"final_logit_softcapping", false, true, {"final_logit_softcapping", NULL, NULL}}};

int64_t mhai_gguf_count(const mhai_gguf_reading *r, const char *field)
{
    return (int64_t)json_integer_value(json_object_get(r->root, field));
}

bool mhai_gguf_key(const mhai_gguf_reading *r, const char *key, mha_gguf_value *value)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%s", r->name, key);
    return mha_gguf_key_find(r->file, full) >= 0 &&
           mha_gguf_value_of(r->file, full, value) == MHA_OK;
}

const char mhai_gguf_differs[] = "differs from layer to layer, which is not supported";

mha_status mhai_gguf_refuse(const mhai_gguf_reading *r, const mha_gguf_value *value,
                            const char *why)
{
    return mhai_path_fail(MHA_ERR_UNSUPPORTED, r->path, "'%s' %s; use the model's folder",
                          mhai_show_name(value->key).text, why);
}

mha_status mhai_gguf_check_array(const mhai_gguf_reading *r, const mha_gguf_value *value)
{
    const int64_t layers = mhai_gguf_count(r, "num_hidden_layers");
    if (!value->array || value->count == layers) return MHA_OK;
    return mhai_path_fail(
        MHA_ERR_MODEL, r->path, "'%s' has %lld elements, expected %lld, one for each layer",
        mhai_show_name(value->key).text, (long long)value->count, (long long)layers);
}

mha_status mhai_gguf_number(const mhai_gguf_reading *r, const mha_gguf_value *value, bool real,
                            json_t **number)
{
    double x = 0, first_x = 0;
    int64_t n = 0, first_n = 0;
    MHA_TRY(mhai_gguf_check_array(r, value));
    for (int64_t i = 0; i < value->count; i++) {
        if (real)
            MHA_TRY(mha_gguf_real(value, i, &x));
        else
            MHA_TRY(mha_gguf_integer(value, i, 0, INT64_MAX, &n));
        if (i == 0) first_x = x, first_n = n;
        if (n != first_n || x < first_x || x > first_x)
            return mhai_gguf_refuse(r, value, mhai_gguf_differs);
    }
    *number = real ? json_real(x) : json_integer((json_int_t)n);
    if (*number) return MHA_OK;
    return isfinite(x) ? MHA_NO_MEMORY("model")
                       : mhai_path_fail(MHA_ERR_MODEL, r->path, "'%s' is not a finite number",
                                        mhai_show_name(value->key).text);
}

mha_status mhai_gguf_take(const mhai_gguf_reading *r, const mha_gguf_value *value, bool real,
                          json_t *object, const char *field)
{
    json_t *number;
    MHA_TRY(mhai_gguf_number(r, value, real, &number));
    return mhai_put(object, field, number) && mhai_put_text(r->names, field, value->key)
               ? MHA_OK
               : MHA_NO_MEMORY("model");
}

mha_status mhai_gguf_missing(const mhai_gguf_reading *r, const char *key)
{
    return mhai_path_fail(MHA_ERR_MODEL, r->path, "key '%s.%s' is missing", r->name, key);
}

static mha_status read_rows(const mhai_gguf_reading *r)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        mha_gguf_value value;
        if (!mhai_gguf_key(r, rows[i].key, &value)) {
            if (rows[i].required) return mhai_gguf_missing(r, rows[i].key);
            continue;
        }
        if ((r->traits & MHAI_GGUF_KINDS) && strcmp(rows[i].key, "feed_forward_length") == 0)
            continue;
        for (int k = 0; k < 4 && rows[i].fields[k]; k++)
            MHA_TRY(mhai_gguf_take(r, &value, rows[i].real, r->root, rows[i].fields[k]));
    }
    return MHA_OK;
}

/* Subtract the layers that predict further tokens, which are last. */
static mha_status skip_later(const mhai_gguf_reading *r)
{
    const int64_t layers = mhai_gguf_count(r, "num_hidden_layers");
    mha_gguf_value value;
    int64_t later;
    if (!(r->traits & MHAI_GGUF_PREDICTS) || !mhai_gguf_key(r, "nextn_predict_layers", &value))
        return MHA_OK;
    MHA_TRY(mha_gguf_integer(&value, 0, 0, layers > 0 ? layers - 1 : 0, &later));
    return mhai_put_count(r->root, "num_hidden_layers", layers - later) ? MHA_OK
                                                                        : MHA_NO_MEMORY("model");
}

static mha_status add_to(json_t *list, const mha_gguf_value *value, int64_t layer, int64_t *number)
{
    MHA_TRY(mha_gguf_integer(value, value->array ? layer : 0, 0, INT64_MAX, number));
    return json_array_append_new(list, json_integer((json_int_t)*number)) == 0
               ? MHA_OK
               : MHA_NO_MEMORY("model");
}

/* Report unsupported metadata before missing keys. */
static mha_status refuse_unsupported(const mhai_gguf_reading *r)
{
    const int64_t experts = mhai_gguf_expert_count(r);
    if (experts == 0 || r->of->routing) return MHA_OK;
    return mhai_path_fail(MHA_ERR_UNSUPPORTED, r->path,
                          "'%s.expert_count' is %lld: experts are not supported in it", r->name,
                          (long long)experts);
}

/* The numbers of heads of all layers. */
typedef struct head_counts {
    json_t *lists[2], *types;
    int64_t most, kv_heads; /* numbers of the layer with the most heads */
    bool same, seen;
} head_counts;

/* Add a layer. If the architecture has a second mixer, layers without key/value heads use it. */
static mha_status add_layer(const mhai_gguf_reading *r, const mha_gguf_value *heads,
                            const mha_gguf_value *kv, int64_t layer, head_counts *n)
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

/* Read the largest number of heads of any layer, and a list if layers differ. If the key for
 * key/value heads is absent, their number is that of query heads. */
static mha_status read_heads(const mhai_gguf_reading *r)
{
    const int64_t layers = mhai_gguf_count(r, "num_hidden_layers");
    mha_gguf_value heads, kv;
    head_counts n = {.lists = {json_array(), json_array()}, .types = json_array(), .same = true};
    /* mhai_put() consumes its list even if it fails, so call it for all */
    const bool first = mhai_put(r->root, "layer_heads", n.lists[0]);
    const bool second = mhai_put(r->root, "layer_kv_heads", n.lists[1]);
    if (!mhai_put(r->root, "layer_types", n.types) || !first || !second)
        return MHA_NO_MEMORY("model");
    if (!mhai_gguf_key(r, "attention.head_count", &heads))
        return mhai_gguf_missing(r, "attention.head_count");
    if (!mhai_gguf_key(r, "attention.head_count_kv", &kv)) kv = heads;
    MHA_TRY(mhai_gguf_check_array(r, &heads));
    MHA_TRY(mhai_gguf_check_array(r, &kv));
    for (int64_t i = 0; i < layers && layers <= MHAI_MOST_LAYERS; i++)
        MHA_TRY(add_layer(r, &heads, &kv, i, &n));
    if (!n.same && r->of->names != mhai_gguf_llama_names && r->of->names != mhai_gguf_plain_names)
        return mhai_gguf_refuse(r, kv.array ? &kv : &heads, mhai_gguf_differs);
    if (n.same) {
        json_object_del(r->root, "layer_heads");
        json_object_del(r->root, "layer_kv_heads");
    }
    MHA_TRY(mhai_gguf_kinds(r, n.types));
    if (!r->of->mixer) json_object_del(r->root, "layer_types");
    if (!n.seen) return MHA_OK;
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

/* Read which layers have a window: from an array of flags, or from the period of layers without a
 * window. */
static mha_status read_windows(const mhai_gguf_reading *r)
{
    const int64_t layers = mhai_gguf_count(r, "num_hidden_layers");
    const bool first = r->traits & MHAI_GGUF_FIRST;
    int64_t period = 0;
    bool slides;
    mha_gguf_value value;
    if (!mhai_gguf_key(r, "attention.sliding_window_pattern", &value) || layers > MHAI_MOST_LAYERS)
        return MHA_OK;
    if (!(r->traits & MHAI_GGUF_WINDOWS))
        return mhai_gguf_refuse(r, &value, "is not supported in this architecture");
    MHA_TRY(mhai_gguf_check_array(r, &value));
    if (!value.array) MHA_TRY(mha_gguf_integer(&value, 0, 0, MHAI_MOST_LAYERS, &period));
    json_t *types = json_array();
    if (!mhai_put(r->root, "layer_types", types)) return MHA_NO_MEMORY("model");
    for (int64_t i = 0; i < layers; i++) {
        slides = period == 0 || (i + !first) % period != 0;
        if (value.array) MHA_TRY(mha_gguf_bool(&value, i, &slides));
        if (json_array_append_new(
                types, json_string(slides ? "sliding_attention" : "full_attention")) != 0)
            return MHA_NO_MEMORY("model");
    }
    return MHA_OK;
}

/* ---- settings derived from weights --------------------------------------------------------- */

/* Derive settings from the weights: tied output, biases, size of the vocabulary. */
static mha_status read_weights(const mhai_gguf_reading *r)
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
        !mhai_put_bool(r->root, "use_qkv_bias", biased) ||
        !mhai_put_bool(r->root, "qkv_bias", biased) || !mhai_put_bool(r->root, "bias", biased) ||
        !mhai_put_bool(r->root, "use_bias", biased) ||
        !mhai_put_bool(r->root, "use_qk_norm",
                       mha_gguf_find(r->file, "blk.0.attn_q_norm.weight") >= 0) ||
        !mhai_put_bool(r->root, "mlp_bias", mha_gguf_find(r->file, "blk.0.ffn_up.bias") >= 0))
        return MHA_NO_MEMORY("model");
    return MHA_OK;
}

/* Add settings that llama.cpp hard-codes. */
static mha_status add_known(const mhai_gguf_reading *r)
{
    const int64_t heads = mhai_gguf_count(r, "num_attention_heads"),
                  width = mhai_gguf_count(r, "hidden_size");
    const int64_t each = heads > 0 ? width / heads : 0;
    mha_gguf_value value;
    bool parallel = true, causal = true, rotates = true;
    if (mhai_gguf_key(r, "attention.causal", &value)) MHA_TRY(mha_gguf_bool(&value, 0, &causal));
    if (!causal && !(r->traits & (MHAI_GGUF_ENCODER | MHAI_GGUF_TOWERS)))
        return mhai_gguf_refuse(r, &value, "is false, which is not supported");
    /* a remark in other architectures */
    if ((r->traits & MHAI_GGUF_SWITCH) && mhai_gguf_key(r, "rope.scaling.finetuned", &value))
        MHA_TRY(mha_gguf_bool(&value, 0, &rotates));
    if (!rotates) return mhai_gguf_refuse(r, &value, "is false, which is not supported");
    if (mhai_gguf_key(r, "use_parallel_residual", &value))
        MHA_TRY(mha_gguf_bool(&value, 0, &parallel));
    /* converters write this key for every StableLM model */
    if (strcmp(r->name, "stablelm") == 0)
        parallel = mha_gguf_find(r->file, "blk.0.ffn_norm.weight") < 0;
    bool good = mhai_put_bool(r->root, "use_parallel_residual", parallel) &&
                mhai_put_bool(r->root, "block_auto_adjust_ff_dim", false);
    if (!json_object_get(r->root, "rope_theta"))
        good = good && mhai_put(r->root, "rope_theta", json_real(1e4));
    /* 0: no window (Phi 4) */
    if (!(r->traits & MHAI_GGUF_WINDOWS) && mhai_gguf_count(r, "sliding_window") == 0)
        json_object_del(r->root, "sliding_window");
    if (!mhai_gguf_key(r, "attention.key_length", &value) && each > 0 && width % heads == 0)
        good = good && mhai_put_count(r->root, "head_dim", each);
    static const char *const windowless[] = {"gemma3", "exaone4", "dots1"};
    for (int i = 0; i < 3 && !mhai_gguf_key(r, "attention.sliding_window", &value); i++)
        if (strcmp(r->name, windowless[i]) == 0)
            good = good && mhai_put(r->root, "sliding_window", json_null());
    if (r->of->largest > 0) {
        const bool by_width = mhai_gguf_count(r, "num_hidden_layers") == r->of->largest;
        good = good && mhai_put_count(r->root, "query_pre_attn_scalar",
                                      by_width ? each : mhai_gguf_count(r, "head_dim"));
    }
    return good ? MHA_OK : MHA_NO_MEMORY("model");
}

/* Settings of Falcon and StarCoder that other decoders lack, and limits that have no family. */
static mha_status add_others(const mhai_gguf_reading *r)
{
    static const struct {
        const char *key;
        double only;
    } limits[] = {{"attention.clamp_kqv", 0}, {"attention.max_alibi_bias", 8}};
    const int64_t kv_heads = mhai_gguf_count(r, "num_key_value_heads");
    const bool two = mha_gguf_find(r->file, "blk.0.attn_norm_2.weight") >= 0;
    /* converters leave q, k and v of such models head by head */
    if (strcmp(r->name, "starcoder") == 0 && kv_heads != 1)
        return mhai_path_fail(MHA_ERR_UNSUPPORTED, r->path,
                              "'starcoder.attention.head_count_kv' is %lld, expected 1; use the "
                              "model's folder",
                              (long long)kv_heads);
    for (int i = 0; i < 2; i++) {
        mha_gguf_value value;
        double x;
        if (!mhai_gguf_key(r, limits[i].key, &value)) continue;
        MHA_TRY(mha_gguf_real(&value, 0, &x));
        if (!(x >= limits[i].only && x <= limits[i].only))
            return mhai_gguf_refuse(r, &value, "has a value that is not supported");
    }
    return mhai_put_bool(r->root, "new_decoder_architecture", true) &&
                   mhai_put_count(r->root, "num_kv_heads", kv_heads) &&
                   mhai_put_count(r->root, "num_ln_in_parallel_attn", two ? 2 : 1) &&
                   mhai_put_bool(r->root, "multi_query", kv_heads == 1)
               ? MHA_OK
               : MHA_NO_MEMORY("model");
}

static mha_status find_architecture(mhai_gguf_reading *r)
{
    mha_gguf_value value;
    const char *name;
    size_t size;
    char known[640] = "", found[48];
    MHA_TRY(mha_gguf_value_of(r->file, "general.architecture", &value));
    MHA_TRY(mha_gguf_string(&value, 0, &name, &size));
    for (int i = 0; i < ARCHITECTURES; i++) {
        const char *own = architectures[i].name;
        const bool same = strlen(own) == size && memcmp(own, name, size) == 0;
        if (same) r->name = own;
        const bool sums = (architectures[i].traits & MHAI_GGUF_LATENT) &&
                          architectures[i].routing == MHAI_GGUF_ROUTING_SIGMOID;
        const bool later =
            same && (architectures[i].routing
                         ? mhai_gguf_expert_count(r) > 0 && (!sums || mhai_gguf_sigmoid(r))
                         : mhai_gguf_key(r, "attention.sliding_window", &value));
        if (same && (!r->of || later)) r->of = &architectures[i];
        if (i > 0 && strcmp(own, architectures[i - 1].name) == 0)
            continue; /* with experts or a window */
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", own);
    }
    if (r->of) r->traits = r->of->traits;
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
    mhai_gguf_reading r = {.file = file, .path = path};
    mha_status status = find_architecture(&r);
    r.root = status == MHA_OK ? json_object() : NULL;
    r.names = status == MHA_OK ? json_object() : NULL;
    if (status == MHA_OK && (json_object_set_new_nocheck(r.root, MHAI_CONFIG_NAMES, r.names) != 0 ||
                             !mhai_put_text(r.root, "model_type", r.of->model_type)))
        status = MHA_NO_MEMORY("model");
    if (status == MHA_OK) status = refuse_unsupported(&r);
    if (status == MHA_OK) status = read_rows(&r);
    if (status == MHA_OK) status = skip_later(&r);
    if (status == MHA_OK && r.of->routing) status = mhai_gguf_experts(&r, r.of->routing);
    if (status == MHA_OK) status = read_heads(&r);
    if (status == MHA_OK && !json_object_get(r.root, "intermediate_size"))
        status = mhai_gguf_missing(&r, "feed_forward_length");
    if (status == MHA_OK) status = mhai_gguf_mixers(&r);
    if (status == MHA_OK && (r.traits & MHAI_GGUF_LATENT)) status = mhai_gguf_latent(&r);
    if (status == MHA_OK) status = read_windows(&r);
    if (status == MHA_OK) status = mhai_gguf_rotation(&r);
    if (status == MHA_OK) status = read_weights(&r);
    if (status == MHA_OK) status = add_known(&r);
    if (status == MHA_OK) status = add_others(&r);
    if (status == MHA_OK && (r.traits & MHAI_GGUF_ENCODER)) status = mhai_gguf_encoder(&r);
    if (status == MHA_OK && (r.traits & MHAI_GGUF_TOWERS)) status = mhai_gguf_towers(&r);
    if (status == MHA_OK)
        *root = r.root;
    else
        json_decref(r.root);
    return mhai_gguf_status(status);
}
