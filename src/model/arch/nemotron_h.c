/* Nemotron-H: layers of Mamba-2, attention without positions, or feed-forward layers. */
#include "model/arch/family.h"

#include <string.h>

static const mhai_weight_name names[] = {MHAI_STATE_SPACE_NAMES("mixer"),
                                         MHAI_NAME("embed_tokens", "embeddings"),
                                         MHAI_NAME("norm", "norm_f"),
                                         MHAI_NAME("self_attn_norm", "norm"),
                                         MHAI_NAME("mlp_norm", "norm"),
                                         MHAI_NAME("self_attn.q_proj", "mixer.q_proj"),
                                         MHAI_NAME("mlp.up_proj", "mixer.up_proj"),
                                         MHAI_NAME("self_attn.k_proj", "mixer.k_proj"),
                                         MHAI_NAME("mlp.down_proj", "mixer.down_proj"),
                                         MHAI_NAME("self_attn.v_proj", "mixer.v_proj"),
                                         MHAI_NAME("self_attn.o_proj", "mixer.o_proj"),
                                         MHAI_NAME(NULL, NULL)};

static const mhai_space_keys spaces = {.heads = "mamba_num_heads",
                                       .groups = "n_groups",
                                       .state = "ssm_state_size",
                                       .kernel = "conv_kernel",
                                       .size = "mamba_head_dim",
                                       .conv_bias = "use_conv_bias",
                                       .proj_bias = "use_bias",
                                       .usual_groups = 8,
                                       .usual_state = 128,
                                       .usual_size = 64};

/* The letters of files older than transformers 5. */
static mha_status find_kind(const mhai_config *config, int64_t layer, int *kind)
{
    static const char key[] = "hybrid_override_pattern", letters[] = "*M-";
    const char *text = json_string_value(json_object_get(config->root, key));
    const char *at = text && text[layer] ? strchr(letters, text[layer]) : NULL;
    *kind = at ? (int)(at - letters) : 0;
    if (at) return MHA_OK;
    return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, text ? key : "layers_block_type",
                            text ? "has a letter other than M, * and -" : "is missing");
}

static mha_status read_nemotron(const mhai_config *config, mhai_family_plan *plan)
{
    static const char *const acts[] = {"relu2"}, *const gates[] = {"silu", "swish"};
    mha_transformer_desc *d = &plan->desc;
    mhai_mixing mixing = {.types[MHAI_FEEDS] = {"mlp"},
                          .usual = find_kind,
                          .mixer.flags = MHA_LAYER_NO_FEED_FORWARD,
                          .attention.flags = MHA_LAYER_NO_FEED_FORWARD,
                          .list = "layers_block_type"};
    double least;
    int unused;
    d->positions = MHA_ENCODING_NONE;
    d->feed_forward = MHA_FEED_FORWARD_RELU2;
    d->flags &= ~(uint32_t)MHA_TRANSFORMER_TIED; /* transformers ignores the setting */
    MHA_TRY(mhai_config_real(config, "layer_norm_epsilon", 1e-5, 0, 1, &d->norm_epsilon));
    MHA_TRY(mhai_config_choice(config, "mlp_hidden_act", acts[0], acts, 1, &unused));
    MHA_TRY(mhai_config_choice(config, "mamba_hidden_act", gates[0], gates, 2, &unused));
    MHA_TRY(mhai_config_unset(config, "mamba_dt_min"));
    MHA_TRY(mhai_config_number(config, "time_step_min", 1e-3, &least)); /* not time_step_limit */
    if (least > 1e9)
        return mhai_config_fail(MHA_ERR_MODEL, config, "time_step_min",
                                "is %g, expected at most 1e+09", least);
    mixing.mixer.step_least = (float)least;
    return mhai_read_state_spaces(config, &spaces, &mixing, plan);
}

const mhai_family mhai_family_nemotron_h = {.model_type = "nemotron_h",
                                            MHAI_LLAMA_FILES(names, 0),
                                            .whole = true,
                                            .own_act = true,
                                            .usual_head_dim = 128,
                                            .ff_bias_key = "mlp_bias",
                                            .text_prefix = "backbone.",
                                            .kinds = "layers_block_type",
                                            .pattern = "hybrid_override_pattern",
                                            .read = read_nemotron};
