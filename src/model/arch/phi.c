/* Phi: attention and feed-forward in parallel, which read the same layer norm, rotary positions on a part
 * of each head, an output with a bias. GPT-J: likewise, without biases of attention; neighbouring
 * elements rotate. */
#include "io/file.h"
#include "model/arch/family.h"

static const mhai_weight_name phi_names[] = {MHAI_NAME("self_attn_norm", "input_layernorm"),
                                             MHAI_NAME("self_attn.o_proj", "self_attn.dense"),
                                             MHAI_NAME("mlp.up_proj", "mlp.fc1"),
                                             MHAI_NAME("mlp.down_proj", "mlp.fc2"),
                                             MHAI_NAME("norm", "final_layernorm"),
                                             MHAI_NAME(NULL, NULL)};
static const mhai_weight_name gptj_names[] = {MHAI_GPT_NAMES,
                                              MHAI_NAME("self_attn.q_proj", "attn.q_proj"),
                                              MHAI_NAME("self_attn.k_proj", "attn.k_proj"),
                                              MHAI_NAME("self_attn.v_proj", "attn.v_proj"),
                                              MHAI_NAME("self_attn.o_proj", "attn.out_proj"),
                                              MHAI_NAME("mlp.up_proj", "mlp.fc_in"),
                                              MHAI_NAME("mlp.down_proj", "mlp.fc_out"),
                                              MHAI_NAME(NULL, NULL)};

static const char *const refused[] = {"qk_layernorm", NULL};

static mha_status read_phi(const mhai_config *config, mhai_family_plan *plan)
{
    return mhai_check_head_dim(config, &plan->desc);
}

/* The base is fixed. */
static mha_status read_gptj(const mhai_config *config, mhai_family_plan *plan)
{
    const mha_transformer_desc *d = &plan->desc;
    const int64_t width = d->embed_dim / d->num_heads;
    int64_t rotated = 64;
    if (json_object_get(config->root, "rotary_dim"))
        MHA_TRY(mhai_config_count(config, "rotary_dim", 2, width, &rotated));
    if (rotated % 2 != 0 || rotated > width)
        return mhai_config_fail(MHA_ERR_MODEL, config, "rotary_dim",
                                "is %lld, expected an even number of at most %lld",
                                (long long)rotated, (long long)width);
    for (int64_t i = 0; i < d->num_layers; i++) plan->layers[i].rotary_dim = rotated;
    return MHA_OK;
}

#define ONE_NORM                                                                    \
    MHA_TRANSFORMER_PARALLEL | MHA_TRANSFORMER_ONE_NORM | MHA_TRANSFORMER_FF_BIAS | \
        MHA_TRANSFORMER_LOGIT_BIAS
const mhai_family mhai_family_phi = {
    .model_type = "phi",
    MHAI_LLAMA_FILES(phi_names, MHA_MODEL_SHAPE_QKV_BIAS | MHA_MODEL_SHAPE_OUT_BIAS),
    .act = "gelu_new",
    .norm_key = "layer_norm_eps",
    .flags = ONE_NORM,
    .refused = refused,
    .rope = &mhai_half_rope,
    .partial = true,
    .even = true,
    .read = read_phi};

const mhai_family mhai_family_gptj = {.model_type = "gptj",
                                      MHAI_GPT_FILES(&mhai_gpt_keys, gptj_names, 0, ONE_NORM),
                                      .fixed_rope = true,
                                      .inner = "n_inner",
                                      .act = "gelu_new",
                                      .layer_flags = MHA_LAYER_ROPE_INTERLEAVED,
                                      .read = read_gptj};
