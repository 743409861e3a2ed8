/* Mistral: Llama with a window on every layer. Ministral: a window on some. Ministral 3: scaled
 * queries. Mistral 3: these with images. */
#include "io/file.h"
#include "model/arch/family.h"

static mha_status read_mistral(const mhai_config *config, mhai_family_plan *plan)
{
    return mhai_read_windows(config, 4096, 0, 0, plan);
}

/* Queries are multiplied by 1 + beta ln(1 + floor(position / original length)), which is 1 before
 * the original length; so longer texts are rejected. */
static mha_status read_ministral3(const mhai_config *config, mhai_family_plan *plan)
{
    double beta, length;
    MHA_TRY(mhai_read_windows(config, 0, 0, 0, plan));
    MHA_TRY(mhai_require_rope(config));
    MHA_TRY(mhai_rope_number(config, "llama_4_scaling_beta", 0, &beta));
    MHA_TRY(mhai_rope_number(config, "original_max_position_embeddings", 0, &length));
    if (!(beta > 0)) return MHA_OK;
    if (!(length >= 1))
        return mhai_path_fail(MHA_ERR_UNSUPPORTED, config->path,
                              "'llama_4_scaling_beta' is %g, which needs a 'rope_type' with "
                              "'original_max_position_embeddings', such as yarn",
                              beta);
    if (length < (double)plan->desc.max_length) plan->desc.max_length = (int64_t)length;
    return MHA_OK;
}

#define MISTRAL(type, whole_, epsilon_, head_dim_, reader)                                    \
    {                                                                                         \
        .model_type = (type), .text_type = (whole_), MHAI_TEXT_FILES(mhai_llama_names, 0),    \
        .whole = true, .epsilon = (epsilon_), .usual_head_dim = (head_dim_), .read = (reader) \
    }
const mhai_family mhai_family_mistral = MISTRAL("mistral", NULL, 0, 0, read_mistral);
const mhai_family mhai_family_ministral = MISTRAL("ministral", NULL, 0, 0, read_mistral);
const mhai_family mhai_family_ministral3 = MISTRAL("ministral3", NULL, 1e-5, 128, read_ministral3);
const mhai_family mhai_family_mistral3 = MISTRAL("mistral3", "mistral", 0, 0, read_mistral);
const mhai_family mhai_family_mistral3_later =
    MISTRAL("mistral3", "ministral3", 1e-5, 128, read_ministral3);
