/* Shared by families with latent attention: the sizes of a head's parts, its scale and pairing. */
#include "io/file.h"
#include "model/arch/family.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* With a scaled rotation the scale of scores is multiplied by (0.1 mscale_all_dim ln factor + 1)^2. */
static mha_status read_scale(const mhai_config *config, int64_t width, float *scale)
{
    static const char *const keys[] = {"rope_scaling", "rope_parameters"};
    double factor = 1, all = 0;
    for (int i = 0; i < 2 && all <= 0; i++) {
        const mhai_config rope = {config->path, json_object_get(config->root, keys[i])};
        const char *type;
        if (!json_is_object(rope.root)) continue;
        const bool old = mhai_config_absent(&rope, "rope_type");
        MHA_TRY(mhai_config_text(&rope, old ? "type" : "rope_type", "default", &type));
        if (strcmp(type, "default") == 0) continue;
        MHA_TRY(mhai_config_number(&rope, "mscale_all_dim", 0, &all));
        if (all > 1e6) /* the scale would not be a finite float32 */
            return mhai_config_fail(MHA_ERR_MODEL, &rope, "mscale_all_dim",
                                    "is %g, expected at most 1e+06", all);
        MHA_TRY(mhai_config_number(&rope, "factor", 1, &factor));
    }
    const double m = factor > 1 ? 0.1 * all * mha_log(factor) + 1 : 1;
    *scale = (float)(m * m / sqrt((double)width));
    return MHA_OK;
}

/* transformers gives only W_qa and W_kva a bias. */
static mha_status read_biases(const mhai_config *config, const mha_layer_desc *l,
                              mhai_family_plan *plan)
{
    MHA_TRY(mhai_read_attention_bias(config, plan));
    if (l->query_latent_dim > 0 || !mhai_desc_has(&plan->desc, MHA_TRANSFORMER_QKV_BIAS))
        return MHA_OK;
    return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, "attention_bias",
                            "is true, which is supported only with a 'q_lora_rank'");
}

mha_status mhai_read_latent(const mhai_config *config, int64_t value_dim, mhai_family_plan *plan)
{
    static const char *const keys[] = {"kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"};
    const int64_t most = MHAI_MOST_WIDTH;
    mha_transformer_desc *d = &plan->desc;
    mha_layer_desc l = {.struct_size = sizeof l, .head_norm_epsilon = 1e-6F};
    int64_t n[3], heads;
    bool interleaved;
    for (int i = 0; i < 3; i++)
        MHA_TRY(mhai_config_count(config, keys[i], 1, MHAI_MOST_WIDTH, &n[i]));
    if (value_dim > 0)
        MHA_TRY(mhai_config_optional(config, "v_head_dim", 1, most, value_dim, &l.value_dim));
    else
        MHA_TRY(mhai_config_count(config, "v_head_dim", 1, most, &l.value_dim));
    if (!json_object_get(config->root, "q_lora_rank"))
        return mhai_path_fail(MHA_ERR_MODEL, config->path,
                              "'q_lora_rank' is missing; null: queries have no latent");
    MHA_TRY(mhai_config_optional(config, "q_lora_rank", 1, most, 0, &l.query_latent_dim));
    MHA_TRY(mhai_config_optional(config, "num_key_value_heads", d->num_heads, d->num_heads,
                                 d->num_heads, &heads));
    /* transformers treats null as false */
    MHA_TRY(mhai_config_bool(config, "rope_interleave",
                             !json_object_get(config->root, "rope_interleave"), &interleaved));
    MHA_TRY(read_biases(config, &l, plan));
    l.latent_dim = n[0];
    l.shared_dim = n[2];
    d->head_dim = n[1] + n[2];
    d->kv_heads = heads;
    if (interleaved) l.flags = MHA_LAYER_ROPE_INTERLEAVED;
    MHA_TRY(read_scale(config, d->head_dim, &l.scale));
    MHA_TRY(mhai_plan_layers(plan));
    for (int64_t i = 0; i < d->num_layers; i++) plan->layers[i] = l;
    return MHA_OK;
}

/* Weights of layers after the last predict further tokens. */
bool mhai_latent_ignores(const mhai_family_plan *plan, const char *name)
{
    const char *inner = strncmp(name, "model.", 6) == 0 ? name + 6 : name;
    if (strncmp(inner, "layers.", 7) == 0 && strtoll(inner + 7, NULL, 10) >= plan->desc.num_layers)
        return true;
    return mhai_decoder_ignores(plan, name);
}
