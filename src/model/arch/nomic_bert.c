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

static mha_status read_nomic(const mhai_config *config, mhai_family_plan *plan)
{
    mha_transformer_desc *d = &plan->desc;
    MHA_TRY(mhai_read_sizes(config, &mhai_family_nomic_bert, "intermediate_size", d));
    MHA_TRY(mhai_config_optional(config, "head_dim", 1, MHAI_MOST_WIDTH, 0, &d->head_dim));
    MHA_TRY(
        mhai_config_optional(config, "type_vocab_size", 1, MHAI_MOST_ENTRIES, 2, &d->type_count));
    MHA_TRY(mhai_config_real(config, "layer_norm_eps", 1e-12, 0, 1, &d->norm_epsilon));
    MHA_TRY(mhai_read_silu(config));
    mhai_bert_describe(MHA_FEED_FORWARD_SWIGLU, d);
    d->positions = MHA_ENCODING_ROTARY;
    d->flags ^= MHA_TRANSFORMER_BIAS | MHA_TRANSFORMER_NO_OUTPUT;
    return mhai_read_rope(config, plan);
}

const mhai_family mhai_family_nomic_bert = {.model_type = "nomic_bert",
                                            .keys = &mhai_usual_keys,
                                            .grouped = true,
                                            .layers = "encoder.layers.",
                                            .prefix = "nomic_bert.",
                                            .names = names,
                                            .rope = &rope,
                                            .read = read_nomic};
