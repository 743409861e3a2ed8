/* NomicBERT: a BERT with rotary positions, SwiGLU and no biases in linear layers. */
#include "io/file.h"
#include "model/arch/family.h"

static const mhai_weight_name names[] = {
    MHAI_NAME("embed_tokens", "embeddings.word_embeddings"),
    MHAI_NAME("embed_types", "embeddings.token_type_embeddings"),
    MHAI_NAME("embed_norm", "emb_ln"),
    {"self_attn.q_proj", "attn.Wqkv", MHAI_FUSED, 0},
    {"self_attn.k_proj", "attn.Wqkv", MHAI_FUSED, 1},
    {"self_attn.v_proj", "attn.Wqkv", MHAI_FUSED, 2},
    MHAI_NAME("self_attn.o_proj", "attn.out_proj"),
    MHAI_NAME("self_attn_norm", "norm1"),
    MHAI_NAME("mlp.up_proj", "mlp.fc11"),
    MHAI_NAME("mlp.gate_proj", "mlp.fc12"),
    MHAI_NAME("mlp.down_proj", "mlp.fc2"),
    MHAI_NAME("mlp_norm", "norm2"),
    MHAI_NAME(NULL, NULL)};

static const mhai_rope_kind rope = {NULL, "rope_theta", "partial_rotary_factor", 1e3, 1, true};

static mha_status describe(const mhai_config *config, mhai_family_plan *plan)
{
    mha_transformer_desc *d = &plan->desc;
    MHA_TRY(
        mhai_config_optional(config, "type_vocab_size", 1, MHAI_MOST_ENTRIES, 2, &d->type_count));
    mhai_bert_describe(MHA_FEED_FORWARD_SWIGLU, d);
    d->positions = MHA_ENCODING_ROTARY;
    d->flags ^= MHA_TRANSFORMER_BIAS | MHA_TRANSFORMER_NO_OUTPUT;
    return mhai_read_rope(config, plan);
}

static mha_status read_nomic(const mhai_config *config, mhai_family_plan *plan)
{
    mha_transformer_desc *d = &plan->desc;
    MHA_TRY(mhai_read_sizes(config, &mhai_family_nomic_bert, "intermediate_size", d));
    MHA_TRY(mhai_config_optional(config, "head_dim", 1, MHAI_MOST_WIDTH, 0, &d->head_dim));
    MHA_TRY(mhai_config_real(config, "layer_norm_eps", 1e-12, 0, 1, &d->norm_epsilon));
    MHA_TRY(mhai_read_silu(config));
    return describe(config, plan);
}

/* The names of published files, which the code beside them reads. */
static const mhai_shape_keys old_keys = {
    "n_embd", "n_layer", "n_head", "n_positions", "num_key_value_heads", "causal"};
static const char part[] = "rotary_emb_fraction", scale[] = "scale_attn_weights";
static const mhai_rope_kind old_rope = {NULL, "rotary_emb_base", part, 1e4, 1, true};
/* clang-format off */
static const char *const refused[] = {
    "causal", "prenorm", "parallel_block", "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias",
    "use_rms_norm", "rotary_emb_interleaved", "rotary_emb_scale_base", "rotary_scaling_factor",
    "scale_attn_by_inverse_layer_idx", NULL};
/* clang-format on */

static mha_status read_old(const mhai_config *config, mhai_family_plan *plan)
{
    static const char *const acts[] = {"swiglu"};
    mha_transformer_desc *d = &plan->desc;
    double fraction;
    bool scaled;
    int act;
    MHA_TRY(mhai_config_number(config, part, 0, &fraction));
    MHA_TRY(mhai_config_bool(config, scale, true, &scaled));
    MHA_TRY(mhai_config_refuse(config, refused));
    if (fraction < 1 || fraction > 1 || !scaled)
        return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, scaled ? part : scale,
                                "is %s, which is not supported", scaled ? "not 1" : "false");
    MHA_TRY(mhai_read_sizes(config, &mhai_family_nomic_bert_old, "n_inner", d));
    MHA_TRY(mhai_config_real(config, "layer_norm_epsilon", 1e-5, 0, 1, &d->norm_epsilon));
    MHA_TRY(mhai_config_choice(config, "activation_function", NULL, acts, 1, &act));
    return describe(config, plan);
}

#define NOMIC(keys_, grouped_, rope_, read_)                                                   \
    {                                                                                          \
        .model_type = "nomic_bert", .keys = (keys_), .grouped = (grouped_), .rope = (rope_),   \
        .layers = "encoder.layers.", .prefix = "nomic_bert.", .names = names, .read = (read_), \
    }
const mhai_family mhai_family_nomic_bert = NOMIC(&mhai_usual_keys, true, &rope, read_nomic);
const mhai_family mhai_family_nomic_bert_old = NOMIC(&old_keys, false, &old_rope, read_old);
