/* MiniMax M2: Llama with experts whose scores are sigmoids, and norms that span the queries, or the keys,
 * of all heads. */
#include "io/file.h"
#include "model/arch/family.h"

static const mhai_weight_name names[] = {
    MHAI_LLAMA_NAMES,
    MHAI_NAME("mlp.router", "block_sparse_moe.gate"),
    MHAI_NAME("mlp.score_bias", "block_sparse_moe.e_score_correction_bias"),
    MHAI_NAME("mlp.experts.*.gate_proj", "block_sparse_moe.experts.*.w1"),
    MHAI_NAME("mlp.experts.*.up_proj", "block_sparse_moe.experts.*.w3"),
    MHAI_NAME("mlp.experts.*.down_proj", "block_sparse_moe.experts.*.w2"),
    MHAI_NAME("mlp.score_bias", "mlp.e_score_correction_bias"),
    MHAI_EXPERT_NAMES,
    MHAI_NAME(NULL, NULL)};

static const mhai_rope_kind rope = {NULL, "rope_theta", "partial_rotary_factor", 5e6, 1, true};

/* Published files say how much of a head rotates as rotary_dim, which transformers reads if
 * partial_rotary_factor is absent. */
static mha_status read_rotated(const mhai_config *config, mhai_family_plan *plan)
{
    const mha_transformer_desc *d = &plan->desc;
    const int64_t width = d->head_dim ? d->head_dim : d->embed_dim / d->num_heads;
    int64_t rotated;
    double part;
    MHA_TRY(mhai_config_optional(config, "rotary_dim", 2, width, 0, &rotated));
    MHA_TRY(mhai_config_number(config, "partial_rotary_factor", 0, &part));
    MHA_TRY(mhai_rope_number(config, "partial_rotary_factor", part, &part));
    MHA_TRY(mhai_read_rope(config, plan));
    if (rotated == 0) return MHA_OK;
    if (json_is_null(json_object_get(config->root, "partial_rotary_factor")))
        return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, "partial_rotary_factor",
                                "is null; remove it");
    if (rotated % 2 || (part > 0 && rotated != (int64_t)((double)width * part)))
        return mhai_config_fail(MHA_ERR_MODEL, config, "rotary_dim",
                                "is %lld, expected an even number that agrees with "
                                "'partial_rotary_factor'",
                                (long long)rotated);
    for (int64_t i = 0; i < d->num_layers; i++) plan->layers[i].rotary_dim = rotated;
    return MHA_OK;
}

static mha_status read_minimax_m2(const mhai_config *config, mhai_family_plan *plan)
{
    static const mhai_experts_kind kind = {.count = "num_local_experts",
                                           .alias = "num_experts",
                                           .inner = "intermediate_size",
                                           .usual = true,
                                           .flags = MHA_EXPERTS_SIGMOID | MHA_EXPERTS_SCORE_BIAS};
    MHA_TRY(mhai_read_experts(config, &kind, plan));
    return read_rotated(config, plan);
}

const mhai_family mhai_family_minimax_m2 = {.model_type = "minimax_m2",
                                            MHAI_LLAMA_FILES(names, 0),
                                            .whole = true,
                                            .usual_head_dim = 128,
                                            .layer_flags =
                                                MHA_LAYER_QK_NORM | MHA_LAYER_QK_NORM_ROW,
                                            .fixed_rope = true,
                                            .rope = &rope,
                                            .partial = true,
                                            .read = read_minimax_m2};
