/* Llama with other settings: Arcee (squared ReLU), Seed-OSS, InternLM 3, Helium (neighbouring elements
 * rotate), CWM (windows). */
#include "io/file.h"
#include "model/arch/family.h"

static const mhai_rope_kind rope = {NULL, "rope_theta", "partial_rotary_factor", 1e5, 1, true};
static const mhai_rope_kind cwm_rope = {NULL, "rope_theta", "partial_rotary_factor", 1e6, 1, true};
static const char *const out_biases[] = {"attention_out_bias", NULL};

/* The output projection assumes that the heads are as wide as the model. */
static mha_status read_helium(const mhai_config *config, mhai_family_plan *plan)
{
    const mha_transformer_desc *d = &plan->desc;
    if (d->head_dim == 0 || d->head_dim * d->num_heads == d->embed_dim) return MHA_OK;
    return mhai_config_fail(MHA_ERR_MODEL, config, "head_dim",
                            "is %lld, expected hidden_size %lld divided by the %lld heads",
                            (long long)d->head_dim, (long long)d->embed_dim,
                            (long long)d->num_heads);
}

/* Fields and their other names must agree. */
static mha_status read_internlm3(const mhai_config *config, mhai_family_plan *plan)
{
    static const char *const names[] = {"qkv_bias", "attention_bias", "bias", "mlp_bias"};
    const uint32_t all =
        MHA_TRANSFORMER_QKV_BIAS | MHA_TRANSFORMER_OUT_BIAS | MHA_TRANSFORMER_FF_BIAS;
    bool first = false, biased = false;
    int seen = 0;
    for (int i = 0; i < 4; i++) {
        if (mhai_config_absent(config, names[i])) continue;
        MHA_TRY(mhai_config_bool(config, names[i], false, &biased));
        if (seen++ == 0) first = biased;
        if (biased != first)
            return mhai_config_fail(MHA_ERR_MODEL, config, names[i],
                                    "differs from another of qkv_bias, attention_bias, bias and "
                                    "mlp_bias, which transformers does not support");
    }
    if (biased) plan->desc.flags |= all;
    return MHA_OK;
}

static mha_status read_cwm(const mhai_config *config, mhai_family_plan *plan)
{
    if (mhai_config_absent(config, "layer_types"))
        return mhai_config_fail(MHA_ERR_MODEL, config, "layer_types", "is missing");
    MHA_TRY(mhai_read_windows(config, 8192, 0, 0, plan));
    return mhai_require_rope(config);
}

#define ATTENTION_BIAS .bias_key = "attention_bias", .ff_bias_key = "mlp_bias"
const mhai_family mhai_family_arcee = {.model_type = "arcee",
                                       MHAI_LLAMA_FILES(mhai_llama_names, 0),
                                       ATTENTION_BIAS,
                                       .epsilon = 1e-5,
                                       .act = "relu2"};

const mhai_family mhai_family_seed_oss = {
    .model_type = "seed_oss",
    MHAI_LLAMA_FILES(mhai_llama_names, MHA_MODEL_SHAPE_QKV_BIAS),
    ATTENTION_BIAS,
    .biases_qkv = true,
    .usual_head_dim = 128,
    .refused = out_biases,
};

const mhai_family mhai_family_internlm3 = {.model_type = "internlm3",
                                           MHAI_LLAMA_FILES(mhai_llama_names, 0),
                                           .whole = true,
                                           .usual_head_dim = 128,
                                           .bias_key = "qkv_bias",
                                           .epsilon = 1e-5,
                                           .read = read_internlm3};

const mhai_family mhai_family_helium = {.model_type = "helium",
                                        MHAI_LLAMA_FILES(mhai_llama_names, 0),
                                        ATTENTION_BIAS,
                                        .biases_qkv = true,
                                        .whole = true,
                                        .usual_head_dim = 128,
                                        .layer_flags = MHA_LAYER_ROPE_INTERLEAVED,
                                        .epsilon = 1e-8,
                                        .rope = &rope,
                                        .read = read_helium};

const mhai_family mhai_family_cwm = {.model_type = "cwm",
                                     MHAI_LLAMA_FILES(mhai_llama_names, 0),
                                     .ff_bias_key = "mlp_bias",
                                     .whole = true,
                                     .usual_head_dim = 128,
                                     .epsilon = 1e-5,
                                     .rope = &cwm_rope,
                                     .read = read_cwm};
