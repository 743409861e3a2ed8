/* ERNIE 4.5: Llama with a rotation of neighbouring elements; with experts, a softmax over them. */
#include "io/file.h"
#include "model/arch/family.h"

static const mhai_weight_name names[] = {
    MHAI_LLAMA_NAMES,
    MHAI_SHARED_EXPERT_NAMES,
    {"mlp.score_bias", "mlp.moe_statics.e_score_correction_bias", MHAI_ONE_ROW, 0},
    {"mlp.score_bias", "mlp.gate.moe_statics.e_score_correction_bias", MHAI_ONE_ROW, 0},
    MHAI_NAME(NULL, NULL)};
static const mhai_rope_kind rope = {NULL, "rope_theta", "partial_rotary_factor", 5e5, 1, true};
static const char *const refused[] = {"use_bias", NULL};

/* The sum of the chosen probabilities is at least their number divided by that of all experts, which
 * moe_norm_min must not exceed. */
static mha_status read_ernie(const mhai_config *config, mhai_family_plan *plan)
{
    static const mhai_experts_kind kind = {.count = "moe_num_experts",
                                           .alias = "num_experts",
                                           .used = "moe_k",
                                           .inner = "moe_intermediate_size",
                                           .shared_count = "moe_num_shared_experts",
                                           .usual = true,
                                           .first = "moe_layer_start_index",
                                           .usual_first = 1,
                                           .flags = MHA_EXPERTS_SCORE_BIAS};
    const int64_t last = plan->desc.num_layers - 1;
    int64_t end, step, used;
    double least;
    MHA_TRY(mhai_config_count(config, "moe_k", 1, MHA_EXPERTS_MOST, &used));
    MHA_TRY(mhai_config_optional(config, "num_experts_per_tok", used, used, used, &used));
    MHA_TRY(mhai_config_optional(config, "moe_layer_interval", 1, MHAI_MOST_LAYERS, 1, &step));
    MHA_TRY(mhai_config_optional(config, "moe_layer_end_index", -1, MHAI_MOST_LAYERS, -1, &end));
    MHA_TRY(mhai_config_number(config, "moe_norm_min", 1e-12, &least));
    if (least > 1.0 / MHA_EXPERTS_MOST)
        return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, "moe_norm_min",
                                "is %g, expected at most %g", least, 1.0 / MHA_EXPERTS_MOST);
    MHA_TRY(mhai_read_experts(config, &kind, plan));
    for (int64_t i = 0; i <= last; i++)
        if ((i + 1) % step != 0 || (end >= 0 && i > end))
            plan->layers[i].experts = (mha_experts_desc){.count = 0};
    return MHA_OK;
}

const mhai_family mhai_family_ernie4_5 = {.model_type = "ernie4_5",
                                          MHAI_LLAMA_FILES(mhai_llama_names, 0),
                                          .bias_key = "use_bias",
                                          .ff_bias_key = "use_bias",
                                          .whole = true,
                                          .usual_head_dim = 128,
                                          .layer_flags = MHA_LAYER_ROPE_INTERLEAVED,
                                          .epsilon = 1e-5,
                                          .rope = &rope,
                                          .tied = true};

const mhai_family mhai_family_ernie4_5_moe = {.model_type = "ernie4_5_moe",
                                              MHAI_LLAMA_FILES(names, 0),
                                              .whole = true,
                                              .refused = refused,
                                              .layer_flags = MHA_LAYER_ROPE_INTERLEAVED,
                                              .epsilon = 1e-5,
                                              .rope = &rope,
                                              .tied = true,
                                              .read = read_ernie};
