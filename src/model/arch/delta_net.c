/* Shared by Qwen3-Next and Qwen 3.5: gated delta nets. Every fourth layer is attention with output
 * gates, norms of queries and keys, and a rotation of a quarter of each head. */
#include "io/file.h"
#include "model/arch/family.h"

const mhai_rope_kind mhai_delta_rope = {.base = "rope_theta",
                                        .part = "partial_rotary_factor",
                                        .usual_base = 1e4,
                                        .usual_part = 0.25,
                                        .scales = true};

static mha_status find_kind(const mhai_config *config, int64_t layer, int *kind)
{
    int64_t period;
    MHA_TRY(
        mhai_config_optional(config, "full_attention_interval", 1, MHAI_MOST_LAYERS, 4, &period));
    *kind = (layer + 1) % period != 0 ? MHAI_MIXES : MHAI_ATTENDS;
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
    const mhai_mixing mixing = {.types = {{"full_attention"}, {"linear_attention"}},
                                .usual = find_kind,
                                .mixer = net,
                                .attention = attention,
                                .heads = n[0],
                                .kv_heads = n[1]};
    return mhai_read_mixing(config, &mixing, plan);
}

mha_status mhai_read_delta(const mhai_config *config, mhai_family_plan *plan)
{
    return read_nets(config, plan);
}
