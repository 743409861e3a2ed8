/* GPT-2: causal, pre-norm with layer norms, learned positions, tanh GELU. Linear layers are stored
 * transposed; q, k and v are fused. GPT-BigCode (StarCoder): all heads share a key and a value;
 * nothing is transposed. */
#include "model/arch/family.h"

#define QKV(form)                                       \
    {"self_attn.q_proj", "attn.c_attn", (form), 0},     \
        {"self_attn.k_proj", "attn.c_attn", (form), 1}, \
    {                                                   \
        "self_attn.v_proj", "attn.c_attn", (form), 2    \
    }
static const mhai_weight_name names[] = {MHAI_GPT_NAMES, QKV(MHAI_FUSED_TRANSPOSED),
                                         MHAI_GPT_LINEAR("attn.c_proj", MHAI_TRANSPOSED),
                                         MHAI_NAME(NULL, NULL)};
static const mhai_weight_name code_names[] = {MHAI_GPT_NAMES, QKV(MHAI_FUSED_HEADS),
                                              MHAI_GPT_LINEAR("attn.c_proj", MHAI_AS_IS),
                                              MHAI_NAME(NULL, NULL)};
const mhai_shape_keys mhai_gpt_keys = {
    "n_embd", "n_layer", "n_head", "n_positions", "num_key_value_heads", "is_decoder"};
static const char *const refused[] = {"add_cross_attention", "scale_attn_by_inverse_layer_idx",
                                      NULL};

static mha_status read_gpt2(const mhai_config *config, mhai_family_plan *plan)
{
    bool scaled;
    plan->desc.positions = MHA_ENCODING_LEARNED;
    MHA_TRY(mhai_config_bool(config, "scale_attn_weights", true, &scaled));
    return scaled ? MHA_OK : mhai_leave_unscaled(plan);
}

static mha_status read_kv(const mhai_config *config, int64_t heads, int64_t *kv_heads)
{
    bool one;
    MHA_TRY(mhai_config_bool(config, "multi_query", true, &one));
    *kv_heads = one ? 1 : heads;
    return MHA_OK;
}

#define GPT(type, names_, act_, kv_)                                                           \
    {                                                                                          \
        .model_type = (type),                                                                  \
        MHAI_GPT_FILES(&mhai_gpt_keys, names_,                                                 \
                       MHA_MODEL_SHAPE_QKV_BIAS | MHA_MODEL_SHAPE_OUT_BIAS, 0),                \
        .inner = "n_inner", .act = (act_), .refused = refused, .tied = true, .read_kv = (kv_), \
        .read = read_gpt2                                                                      \
    }
const mhai_family mhai_family_gpt2 = GPT("gpt2", names, "gelu_new", NULL);
const mhai_family mhai_family_gpt_bigcode =
    GPT("gpt_bigcode", code_names, "gelu_pytorch_tanh", read_kv);
