/* Qwen3-Next and Qwen 3.5 (its text part): gated delta nets, and in every fourth layer attention with
 * output gates, norms of queries and keys, and a rotation of a quarter of each head. */
#include "io/file.h"
#include "model/arch/family.h"

#include <multihead/component.h>

#include <stdlib.h>
#include <string.h>

#define SHARED_NAMES                                                                             \
    {"norm", "norm", MHAI_PLUS_ONE, 0}, {"self_attn_norm", "input_layernorm", MHAI_PLUS_ONE, 0}, \
        {"mlp_norm", "post_attention_layernorm", MHAI_PLUS_ONE, 0},                              \
        {"self_attn.q_norm", "self_attn.q_norm", MHAI_PLUS_ONE, 0},                              \
        {"self_attn.k_norm", "self_attn.k_norm", MHAI_PLUS_ONE, 0},                              \
        {"self_attn.q_proj", "self_attn.q_proj", MHAI_FUSED_GATE, 0},                            \
        {"self_attn.g_proj", "self_attn.q_proj", MHAI_FUSED_GATE, 1},                            \
        {"delta_net.conv", "linear_attn.conv1d", MHAI_CONVOLUTION, 0},                           \
        MHAI_NAME("delta_net.o_norm", "linear_attn.norm"),                                       \
        MHAI_NAME("delta_net.o_proj", "linear_attn.out_proj"),                                   \
        MHAI_NAME("delta_net", "linear_attn") /* A_log and dt_bias */

static const mhai_weight_name next_names[] = {
    SHARED_NAMES,
    {"delta_net.q_proj", "linear_attn.in_proj_qkvz", MHAI_FUSED_GROUPS, 0},
    {"delta_net.k_proj", "linear_attn.in_proj_qkvz", MHAI_FUSED_GROUPS, 1},
    {"delta_net.v_proj", "linear_attn.in_proj_qkvz", MHAI_FUSED_GROUPS, 2},
    {"delta_net.g_proj", "linear_attn.in_proj_qkvz", MHAI_FUSED_GROUPS, 3},
    {"delta_net.b_proj", "linear_attn.in_proj_ba", MHAI_FUSED_GROUPS, 0},
    {"delta_net.a_proj", "linear_attn.in_proj_ba", MHAI_FUSED_GROUPS, 1},
    MHAI_NAME(NULL, NULL)};

static const mhai_weight_name later_names[] = {
    SHARED_NAMES,
    {"delta_net.q_proj", "linear_attn.in_proj_qkv", MHAI_FUSED, 0},
    {"delta_net.k_proj", "linear_attn.in_proj_qkv", MHAI_FUSED, 1},
    {"delta_net.v_proj", "linear_attn.in_proj_qkv", MHAI_FUSED, 2},
    MHAI_NAME("delta_net.g_proj", "linear_attn.in_proj_z"),
    MHAI_NAME("delta_net.b_proj", "linear_attn.in_proj_b"),
    MHAI_NAME("delta_net.a_proj", "linear_attn.in_proj_a"),
    MHAI_NAME(NULL, NULL)};

static const mhai_rope_kind rope = {.base = "rope_theta",
                                    .part = "partial_rotary_factor",
                                    .usual_base = 1e4,
                                    .usual_part = 0.25,
                                    .scales = true};

extern const mhai_family mhai_family_qwen3_next, mhai_family_qwen3_5;

/* ---- layers -------------------------------------------------------------------------------------- */

static mha_status find_delta(const mhai_config *config, const json_t *list, int64_t layer,
                             int64_t period, bool *delta)
{
    *delta = (layer + 1) % period != 0;
    if (!list) return MHA_OK;
    const char *type = json_string_value(json_array_get(list, (size_t)layer));
    *delta = type && strcmp(type, "linear_attention") == 0;
    if (*delta || (type && strcmp(type, "full_attention") == 0)) return MHA_OK;
    return mhai_path_fail(MHA_ERR_UNSUPPORTED, config->path,
                          "'layer_types' of layer %lld is '%s'; known: full_attention, "
                          "linear_attention",
                          (long long)layer, type ? mhai_show_name(type).text : "");
}

/* Read which layers are gated delta nets, and their sizes. */
static mha_status read_kinds(const mhai_config *config, const mha_layer_desc *net,
                             mhai_family_plan *plan)
{
    const mha_transformer_desc *d = &plan->desc;
    const bool listed = !mhai_config_absent(config, "layer_types");
    const json_t *list = listed ? json_object_get(config->root, "layer_types") : NULL;
    int64_t period;
    MHA_TRY(
        mhai_config_optional(config, "full_attention_interval", 1, MHAI_MOST_LAYERS, 4, &period));
    if (listed && (!json_is_array(list) || (int64_t)json_array_size(list) != d->num_layers))
        return mhai_path_fail(MHA_ERR_MODEL, config->path,
                              "'layer_types' is not a list of %lld, one for each layer",
                              (long long)d->num_layers);
    MHA_TRY(mhai_plan_layers(plan));
    for (int64_t i = 0; i < d->num_layers; i++) {
        bool delta;
        MHA_TRY(find_delta(config, list, i, period, &delta));
        if (delta) {
            plan->layers[i] = *net;
            continue;
        }
        plan->layers[i].flags = MHA_LAYER_QK_NORM | MHA_LAYER_OUTPUT_GATE;
        plan->layers[i].qk_norm_epsilon = d->norm_epsilon;
    }
    return MHA_OK;
}

/* The number of heads of each layer; a net has as many as v. */
static mha_status list_heads(const mhai_config *config, int64_t heads, int64_t kv_heads,
                             mhai_family_plan *plan)
{
    mha_transformer_desc *d = &plan->desc;
    const int64_t L = d->num_layers, most = heads > d->num_heads ? heads : d->num_heads;
    if (heads % kv_heads != 0)
        return mhai_path_fail(
            MHA_ERR_MODEL, config->path,
            "'linear_num_value_heads' is %lld, expected a multiple of 'linear_num_key_heads', %lld",
            (long long)heads, (long long)kv_heads);
    plan->head_lists = calloc((size_t)(2 * L), sizeof *plan->head_lists);
    if (!plan->head_lists) return MHA_NO_MEMORY("model");
    for (int64_t i = 0; i < L; i++) {
        const bool delta = plan->layers[i].mixer;
        plan->head_lists[i] = delta ? heads : d->num_heads;
        plan->head_lists[L + i] = delta ? kv_heads : d->kv_heads;
    }
    d->layer_heads = plan->head_lists;
    d->layer_kv_heads = plan->head_lists + L;
    if (most % d->kv_heads != 0) d->kv_heads = most; /* layers have their own */
    d->num_heads = most;
    return MHA_OK;
}

static mha_status read_nets(const mhai_config *config, mhai_family_plan *plan)
{
    const struct {
        const char *key;
        int64_t most, usual;
    } sizes[] = {{"linear_num_value_heads", MHAI_MOST_WIDTH, 32},
                 {"linear_num_key_heads", MHAI_MOST_WIDTH, 16},
                 {"linear_key_head_dim", MHAI_MOST_WIDTH, 128},
                 {"linear_value_head_dim", MHAI_MOST_WIDTH, 128},
                 {"linear_conv_kernel_dim", MHA_CONVOLUTION_MOST, 4}};
    int64_t n[5];
    for (int i = 0; i < 5; i++)
        MHA_TRY(
            mhai_config_optional(config, sizes[i].key, 1, sizes[i].most, sizes[i].usual, &n[i]));
    const mha_layer_desc net = {.struct_size = sizeof net,
                                .mixer = MHA_MIXER_GATED_DELTA,
                                .key_dim = n[2],
                                .value_dim = n[3],
                                .conv_kernel = (int32_t)n[4]};
    MHA_TRY(read_kinds(config, &net, plan));
    return list_heads(config, n[0], n[1], plan);
}

/* ---- models -------------------------------------------------------------------------------------- */

/* Reject layers whose feed-forward layer is a mixture of experts. */
static mha_status refuse_experts(const mhai_config *config, int64_t layers)
{
    const json_t *dense = json_object_get(config->root, "mlp_only_layers");
    int64_t experts, step;
    MHA_TRY(mhai_config_optional(config, "num_experts", 0, MHAI_MOST_WIDTH, 512, &experts));
    MHA_TRY(mhai_config_optional(config, "decoder_sparse_step", 1, MHAI_MOST_LAYERS, 1, &step));
    for (int64_t i = 0; experts > 0 && i < layers; i++) {
        bool routed = (i + 1) % step == 0;
        for (size_t k = 0; k < json_array_size(dense); k++)
            if (json_integer_value(json_array_get(dense, k)) == i) routed = false;
        if (routed)
            return mhai_path_fail(MHA_ERR_UNSUPPORTED, config->path,
                                  "'num_experts' is %lld and layer %lld routes tokens to experts, "
                                  "which is not supported; dense models of this kind are",
                                  (long long)experts, (long long)i);
    }
    return MHA_OK;
}

static mha_status read_hybrid(const mhai_config *config, const mhai_family *family,
                              mhai_family_plan *plan)
{
    bool biased;
    MHA_TRY(mhai_read_decoder(config, family, true, plan));
    MHA_TRY(mhai_read_silu(config));
    MHA_TRY(mhai_config_bool(config, "attention_bias", false, &biased));
    if (biased) plan->desc.flags |= MHA_TRANSFORMER_QKV_BIAS | MHA_TRANSFORMER_OUT_BIAS;
    if (plan->desc.head_dim == 0) plan->desc.head_dim = 256;
    if (plan->head_lists)
        return mhai_path_fail(MHA_ERR_UNSUPPORTED, config->path,
                              "heads by layer are not supported in a model of this kind");
    MHA_TRY(read_nets(config, plan));
    return mhai_read_rope(config, plan);
}

static mha_status read_next(const mhai_config *config, mhai_family_plan *plan)
{
    MHA_TRY(read_hybrid(config, &mhai_family_qwen3_next, plan));
    return refuse_experts(config, plan->desc.num_layers);
}

static mha_status read_later(const mhai_config *config, mhai_family_plan *plan)
{
    return read_hybrid(config, &mhai_family_qwen3_5, plan);
}

/* Layers that predict further tokens are not part of the model. */
static bool ignores(const mhai_family_plan *plan, const char *name)
{
    return strncmp(name, "mtp.", 4) == 0 || mhai_decoder_ignores(plan, name);
}

#define HYBRID(names_)                                                                  \
    .keys = &mhai_usual_keys, .grouped = true, .layers = "layers.", .prefix = "model.", \
    .names = (names_), .ignores = ignores, .shape = MHA_MODEL_SHAPE_CAUSAL,             \
    .bias_key = "attention_bias", .rope = &rope, .partial = true

const mhai_family mhai_family_qwen3_next = {
    .model_type = "qwen3_next", HYBRID(next_names), .read = read_next};

const mhai_family mhai_family_qwen3_5 = {
    .model_type = "qwen3_5_text", HYBRID(later_names), .read = read_later};
