/* Granite 4 without experts: Mamba-2 layers, and in some layers attention, usually without
 * positions. */
#include "io/file.h"
#include "model/arch/family.h"

static const mhai_weight_name names[] = {
    MHAI_LLAMA_NAMES,
    MHAI_STATE_SPACE_NAMES("mamba"),
    {"mlp.gate_proj", "shared_mlp.input_linear", MHAI_FUSED, 0},
    {"mlp.up_proj", "shared_mlp.input_linear", MHAI_FUSED, 1},
    MHAI_NAME("mlp.down_proj", "shared_mlp.output_linear"),
    MHAI_NAME(NULL, NULL)};

static mha_status every_layer(const mhai_config *config, int64_t layer, int *kind)
{
    (void)config;
    (void)layer;
    *kind = MHAI_MIXES;
    return MHA_OK;
}

static mha_status refuse_experts(const mhai_config *config)
{
    int64_t experts;
    MHA_TRY(mhai_config_optional(config, "num_local_experts", 0, MHAI_MOST_WIDTH, 8, &experts));
    if (experts == 0) return MHA_OK;
    return mhai_path_fail(
        MHA_ERR_UNSUPPORTED, config->path,
        "'num_local_experts' is %lld: routed experts are not supported in models of this kind",
        (long long)experts);
}

static mha_status read_hybrid(const mhai_config *config, mhai_family_plan *plan)
{
    static const char *const kinds[] = {"nope", "rope"};
    mha_transformer_desc *d = &plan->desc;
    mhai_mixing mixing = {.usual = every_layer, .list = "layers_block_type"};
    int rotates;
    MHA_TRY(refuse_experts(config));
    MHA_TRY(mhai_config_optional(config, "shared_intermediate_size", 1, MHAI_MOST_WIDTH, 1024,
                                 &d->ff_dim));
    MHA_TRY(mhai_read_attention_bias(config, plan));
    MHA_TRY(mhai_config_choice(config, "position_embedding_type", kinds[0], kinds, 2, &rotates));
    MHA_TRY(mhai_read_state_spaces(config, &mhai_mamba_keys, &mixing, plan));
    MHA_TRY(mhai_read_multipliers(config, plan));
    if (rotates) return MHA_OK;
    d->positions = MHA_ENCODING_NONE;
    return MHA_OK;
}

const mhai_family mhai_family_granitemoehybrid = {.model_type = "granitemoehybrid",
                                                  MHAI_LLAMA_FILES(names, 0),
                                                  .bias_key = "attention_bias",
                                                  .read = read_hybrid};
