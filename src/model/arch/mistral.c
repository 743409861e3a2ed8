/* Mistral: Llama with a window on every layer. Ministral: a window on some. Ministral 3: scaled
 * queries. Mistral 3: these with images. */
#include "io/file.h"
#include "model/arch/family.h"

#include <multihead/component.h>

static const mhai_weight_name names[] = {MHAI_LLAMA_NAMES, MHAI_NAME(NULL, NULL)};

extern const mhai_family mhai_family_mistral, mhai_family_ministral, mhai_family_ministral3,
    mhai_family_mistral3, mhai_family_mistral3_later;

static mha_status read_mistral(const mhai_config *config, mhai_family_plan *plan)
{
    MHA_TRY(mhai_read_decoder(config, &mhai_family_mistral, true, plan));
    MHA_TRY(mhai_read_silu(config));
    MHA_TRY(mhai_read_windows(config, 4096, 0, 0, plan));
    return mhai_read_rope(config, plan);
}

/* Queries are multiplied by 1 + beta ln(1 + floor(position / original length)), which is 1 before
 * the original length; so longer texts are rejected. */
static mha_status read_query_scale(const mhai_config *config, mhai_family_plan *plan)
{
    static const char *const places[] = {"rope_scaling", "rope_parameters"};
    double beta = 0;
    for (int i = 0; i < 2; i++) {
        const mhai_config rope = {config->path, json_object_get(config->root, places[i])};
        MHA_TRY(mhai_config_number(&rope, "llama_4_scaling_beta", beta, &beta));
    }
    if (!(beta > 0)) return MHA_OK;
    const int64_t length = plan->layers ? plan->layers[0].rope_original_length : 0;
    if (length == 0)
        return mhai_path_fail(MHA_ERR_UNSUPPORTED, config->path,
                              "'llama_4_scaling_beta' is %g, which needs a 'rope_type' with "
                              "'original_max_position_embeddings', such as yarn",
                              beta);
    if (length < plan->desc.max_length) plan->desc.max_length = length;
    return MHA_OK;
}

static mha_status read_ministral3(const mhai_config *config, mhai_family_plan *plan)
{
    MHA_TRY(mhai_read_decoder(config, &mhai_family_ministral3, true, plan));
    MHA_TRY(mhai_read_silu(config));
    MHA_TRY(mhai_config_real(config, "rms_norm_eps", 1e-5, 0, 1, &plan->desc.norm_epsilon));
    if (plan->desc.head_dim == 0) plan->desc.head_dim = 128;
    MHA_TRY(mhai_read_windows(config, 0, 0, 0, plan));
    MHA_TRY(mhai_require_rope(config));
    MHA_TRY(mhai_read_rope(config, plan));
    return read_query_scale(config, plan);
}

#define MISTRAL(type, whole, reader)                                        \
    {                                                                       \
        .model_type = (type), .text_type = (whole), MHAI_TEXT_FILES(names), \
        .shape = MHA_MODEL_SHAPE_CAUSAL, .read = (reader)                   \
    }
const mhai_family mhai_family_mistral = MISTRAL("mistral", NULL, read_mistral);
const mhai_family mhai_family_ministral = MISTRAL("ministral", NULL, read_mistral);
const mhai_family mhai_family_ministral3 = MISTRAL("ministral3", NULL, read_ministral3);
const mhai_family mhai_family_mistral3 = MISTRAL("mistral3", "mistral", read_mistral);
const mhai_family mhai_family_mistral3_later = MISTRAL("mistral3", "ministral3", read_ministral3);
