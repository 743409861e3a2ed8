/* Qwen3-Next and Qwen 3.5 (its text part): gated delta nets. Every fourth layer is attention with
 * output gates, norms of queries and keys, and a rotation of a quarter of each head. */
#include "io/file.h"
#include "model/arch/family.h"

#include <multihead/component.h>

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

extern const mhai_family mhai_family_qwen3_next, mhai_family_qwen3_5, mhai_family_qwen3_5_whole;

/* ---- layers ---------------------------------------------------------------------------------- */

static mha_status is_net(const mhai_config *config, int64_t layer, bool *net)
{
    int64_t period;
    MHA_TRY(
        mhai_config_optional(config, "full_attention_interval", 1, MHAI_MOST_LAYERS, 4, &period));
    *net = (layer + 1) % period != 0;
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
    const mha_layer_desc attention = {.flags = MHA_LAYER_QK_NORM | MHA_LAYER_OUTPUT_GATE};
    if (n[0] % n[1] != 0)
        return mhai_path_fail(
            MHA_ERR_MODEL, config->path,
            "'linear_num_value_heads' is %lld, expected a multiple of 'linear_num_key_heads', %lld",
            (long long)n[0], (long long)n[1]);
    const mhai_mixing mixing = {"linear_attention", is_net, net, attention, n[0], n[1], NULL};
    return mhai_read_mixing(config, &mixing, plan);
}

/* ---- models ---------------------------------------------------------------------------------- */

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

/* Layers that predict further tokens, and those of images, are not part of the model. */
static bool ignores(const mhai_family_plan *plan, const char *name)
{
    return strncmp(name, "mtp.", 4) == 0 || strncmp(name, "model.visual.", 13) == 0 ||
           mhai_decoder_ignores(plan, name);
}

static const char text_prefix[] = "model.language_model.";

#define HYBRID(names_)                                                                  \
    .keys = &mhai_usual_keys, .grouped = true, .layers = "layers.", .prefix = "model.", \
    .names = (names_), .ignores = ignores, .shape = MHA_MODEL_SHAPE_CAUSAL,             \
    .bias_key = "attention_bias", .rope = &rope, .partial = true

const mhai_family mhai_family_qwen3_next = {
    .model_type = "qwen3_next", HYBRID(next_names), .read = read_next};

const mhai_family mhai_family_qwen3_5 = {.model_type = "qwen3_5_text",
                                         HYBRID(later_names),
                                         .text_prefix = text_prefix,
                                         .read = read_later};

/* Models with images; the image part is omitted. */
const mhai_family mhai_family_qwen3_5_whole = {.model_type = "qwen3_5",
                                               .text_type = "qwen3_5_text",
                                               HYBRID(later_names),
                                               .text_prefix = text_prefix,
                                               .read = read_later};
