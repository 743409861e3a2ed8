/* Shared by vision transformers: their sizes in config.json. A patch is a row of features; CLS and
 * registers are tokens without features (all 0). Token 0 is a patch, whose embedding is the bias of
 * the projection; then come CLS and the registers. */
#include "io/file.h"
#include "model/arch/family.h"

#include <string.h>

const mhai_shape_keys mhai_vision_keys = {"hidden_size",         "num_hidden_layers",
                                          "num_attention_heads", NULL,
                                          "num_key_value_heads", "is_decoder"};

const double mhai_imagenet_mean[3] = {0.485, 0.456, 0.406};
const double mhai_imagenet_std[3] = {0.229, 0.224, 0.225};
const double mhai_clip_mean[3] = {0.48145466, 0.4578275, 0.40821073};
const double mhai_clip_std[3] = {0.26862954, 0.26130258, 0.27577711};
static const double half[3] = {0.5, 0.5, 0.5};

/* Read a size, or use its default. */
static mha_status size(const mhai_config *config, const char *key, int64_t usual, int64_t *value)
{
    return mhai_config_optional(config, key, 1, MHAI_MOST_WIDTH, usual, value);
}

static mha_status read_grid(const mhai_config *config, const mhai_vision *v, mhai_family_plan *plan)
{
    mhai_picture *p = &plan->picture;
    int64_t channels;
    MHA_TRY(size(config, "image_size", 224, &p->image));
    MHA_TRY(size(config, "patch_size", v->patch, &p->patch));
    MHA_TRY(size(config, "num_channels", 3, &channels));
    if (channels != 3)
        return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, "num_channels",
                                "is %lld, only images of 3 channels are supported",
                                (long long)channels);
    if (p->patch > p->image || p->image / p->patch > 1024 || p->patch > 1024)
        return mhai_config_fail(MHA_ERR_MODEL, config, "patch_size",
                                "is %lld, expected 1..1024 and at most 1024 patches in a row of "
                                "image_size %lld",
                                (long long)p->patch, (long long)p->image);
    if (v->registers)
        MHA_TRY(mhai_config_optional(config, "num_register_tokens", 0, 1024, v->usual_registers,
                                     &p->registers));
    p->cls = v->cls;
    p->first = v->cls + p->registers;
    p->sizes = v->sizes;
    p->rows = p->cols = p->image / p->patch;
    p->processor = (mhai_processor){.height = p->image, .width = p->image, .factor = 1.0 / 255};
    memcpy(p->processor.mean, v->mean ? v->mean : half, sizeof half);
    memcpy(p->processor.std, v->std ? v->std : half, sizeof half);
    p->processor.filter = v->filter;
    p->processor.edges = p->processor.crops = v->edges;
    return MHA_OK;
}

mha_status mhai_read_vision(const mhai_config *config, const mhai_vision *v, mhai_family_plan *plan)
{
    mha_transformer_desc *d = &plan->desc;
    bool biased;
    MHA_TRY(read_grid(config, v, plan));
    MHA_TRY(size(config, "hidden_size", 768, &d->embed_dim));
    MHA_TRY(size(config, "num_attention_heads", 12, &d->num_heads));
    MHA_TRY(
        mhai_config_optional(config, "num_hidden_layers", 1, MHAI_MOST_LAYERS, 12, &d->num_layers));
    if (!v->own_inner) MHA_TRY(size(config, "intermediate_size", 3072, &d->ff_dim));
    if (d->embed_dim % d->num_heads != 0)
        return mhai_config_fail(MHA_ERR_MODEL, config, "hidden_size",
                                "is %lld, not a multiple of num_attention_heads %lld",
                                (long long)d->embed_dim, (long long)d->num_heads);
    if (!v->own_act) MHA_TRY(mhai_read_activation(config, "hidden_act", v->act, &d->feed_forward));
    MHA_TRY(mhai_config_bool(config, "qkv_bias", true, &biased));
    MHA_TRY(mhai_config_real(config, "layer_norm_eps", v->epsilon, 0, 1, &d->norm_epsilon));
    d->norm = MHA_NORM_LAYER;
    d->positions = MHA_ENCODING_LEARNED;
    d->flags =
        (biased ? MHA_TRANSFORMER_BIAS : MHA_TRANSFORMER_OUT_BIAS | MHA_TRANSFORMER_FF_BIAS) |
        MHA_TRANSFORMER_NO_OUTPUT;
    d->vocab_size = 1 + plan->picture.first;
    d->feature_dim = 3 * plan->picture.patch * plan->picture.patch;
    d->max_length = plan->picture.first + plan->picture.rows * plan->picture.cols;
    return MHA_OK;
}
