/* The list of families, and their shared functions. */
#include "model/arch/family.h"

#include "io/file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define FAMILY(name) &mhai_family_##name,
static const mhai_family *const families[] = {MHAI_FAMILY_LIST(FAMILY)};

enum { FAMILIES = sizeof families / sizeof families[0] };

const mhai_shape_keys mhai_usual_keys = {"hidden_size",         "num_hidden_layers",
                                         "num_attention_heads", "max_position_embeddings",
                                         "num_key_value_heads", "is_decoder"};

static const char *part_of(const mhai_family *family)
{
    return family->images ? "vision_config" : "text_config";
}

/* Of models of several parts there is a row for each kind of text part, and one for images. */
static bool has_text_type(const mhai_config *config, const mhai_family *family)
{
    const json_t *text = json_object_get(config->root, part_of(family));
    const char *type = json_string_value(json_object_get(text, "model_type"));
    return family->text_type && type && strcmp(family->text_type, type) == 0;
}

/* Of a family with old names of its sizes there is a row for each. */
static bool has_sizes_of(const mhai_config *config, const mhai_family *f, const mhai_family *other)
{
    return !f->text_type && !other->text_type && mhai_config_absent(config, other->keys->embed) &&
           !mhai_config_absent(config, f->keys->embed);
}

mha_status mhai_family_find(const mhai_config *config, bool images, const mhai_family **family)
{
    const char *type = NULL;
    const char *types[FAMILIES];
    if (!json_is_object(config->root))
        return mhai_path_fail(MHA_ERR_MODEL, config->path, "is not a JSON object");
    MHA_TRY(mhai_config_text(config, "model_type", NULL, &type));
    *family = NULL;
    for (int i = 0; i < FAMILIES; i++) {
        const mhai_family *f = families[i];
        const bool better = !*family || ((*family)->images && !images) ||
                            (has_text_type(config, f) && (!images || f->images)) ||
                            has_sizes_of(config, f, *family);
        if (strcmp(f->model_type, type) == 0 && better) *family = f;
        types[i] = f->model_type;
    }
    if (*family) return MHA_OK;
    const char *near = mha_nearest_name(type, types, FAMILIES);
    return mhai_path_fail(MHA_ERR_UNSUPPORTED, config->path,
                          "model_type '%s' is not known%s%s%s; docs/model-folders.md lists all",
                          mhai_show_name(type).text, near ? "; did you mean '" : "",
                          near ? near : "", near ? "'?" : "");
}

/* Whether a field of CLIP is absent or has its default in transformers. */
static bool is_usual(const char *key, const json_t *value, bool images)
{
    if (!value) return true;
    if (json_is_string(value)) return strcmp(json_string_value(value), "quick_gelu") == 0;
    return strcmp(key, "layer_norm_eps") == 0 ? fabs(json_number_value(value) - 1e-5) < 1e-12
                                              : json_integer_value(value) == (images ? 12 : 8);
}

/* transformers prefers CLIP's second copy of a part. Shapes of weights contradict wrong values of
 * all fields but these. */
static mha_status compare_copies(const mhai_config *whole, const char *name, bool images)
{
    static const char *const keys[] = {"num_attention_heads", "hidden_act", "layer_norm_eps"};
    char copy[32];
    snprintf(copy, sizeof copy, "%s_dict", name);
    const json_t *parts[] = {json_object_get(whole->root, name),
                             json_object_get(whole->root, copy)};
    for (int i = 0; json_is_object(parts[1]) && i < 3; i++) {
        const json_t *own = json_object_get(parts[0], keys[i]);
        const json_t *other = json_object_get(parts[1], keys[i]);
        if (json_equal(own, other) || (!own && is_usual(keys[i], other, images)) ||
            (!other && is_usual(keys[i], own, images)))
            continue;
        return mhai_path_fail(MHA_ERR_MODEL, whole->path,
                              "'%s' differs in '%s' and '%s'; keep only the object that the model "
                              "was trained with",
                              keys[i], name, copy);
    }
    return MHA_OK;
}

mha_status mhai_family_enter(const mhai_family *family, mhai_config *config)
{
    static const char *const refused[] = {"is_encoder_decoder", NULL};
    static const char tie[] = "tie_word_embeddings";
    const mhai_config whole = *config;
    const char *type;
    bool outer, inner;
    if (!family->text_type) return MHA_OK;
    if (family->flat && mhai_config_absent(&whole, "text_config")) return MHA_OK;
    config->root = json_object_get(whole.root, part_of(family));
    if (!json_is_object(config->root))
        return mhai_path_fail(MHA_ERR_MODEL, config->path, "'%s' is not a JSON object",
                              part_of(family));
    MHA_TRY(compare_copies(&whole, part_of(family), family->images));
    MHA_TRY(mhai_config_refuse(&whole, refused));
    MHA_TRY(mhai_config_text(config, "model_type", NULL, &type));
    if (strcmp(type, family->text_type) != 0)
        return mhai_path_fail(MHA_ERR_UNSUPPORTED, config->path,
                              "'model_type' of %s is '%s', expected '%s'", part_of(family),
                              mhai_show_name(type).text, family->text_type);
    MHA_TRY(mhai_config_bool(config, tie, family->tied, &inner));
    MHA_TRY(mhai_config_bool(&whole, tie, inner, &outer));
    if (inner == outer) return MHA_OK;
    return mhai_path_fail(
        MHA_ERR_MODEL, config->path,
        "'%s' is %s and in text_config %s; keep only the value that the model was "
        "trained with",
        tie, outer ? "true" : "false", inner ? "true" : "false");
}

const mhai_family *mhai_family_of(const mha_transformer_desc *desc)
{
    int i = 0;
    while (!families[i]->fits || !families[i]->fits(desc)) i++;
    return families[i];
}

/* Whether a weight reads images, or predicts further tokens. */
static bool is_other_part(const char *name)
{
    static const char *const parts[] = {
        "mtp.",         "visual.",       "vision_tower.",         "audio_tower.",
        "embed_audio.", "embed_vision.", "multi_modal_projector."};
    const char *inner = strncmp(name, "model.", 6) == 0 ? name + 6 : name;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (strncmp(inner, parts[i], strlen(parts[i])) == 0) return true;
    return false;
}

bool mhai_family_ignores(const mhai_family *family, const mhai_family_plan *plan, const char *name)
{
    if (family->text_part && is_other_part(name)) return true;
    if (family->ignores) return family->ignores(plan, name);
    const size_t prefix = strlen(family->prefix);
    if (strncmp(name, family->prefix, prefix) == 0) name += prefix;
    return strncmp(name, family->layers, strlen(family->layers)) != 0;
}

/* The offset of an expert's number in a name, and its length; 0: the name has no number. */
static int find_expert(const char *name, const char **number)
{
    static const char experts[] = ".experts.";
    const char *at = strstr(name, experts);
    *number = at ? at + sizeof experts - 1 : name;
    return at ? (int)strcspn(*number, ".") : 0;
}

const mhai_weight_name *mhai_family_next_name(const mhai_family *family, const char *ours,
                                              const mhai_weight_name *last,
                                              char theirs[MHAI_WEIGHT_NAME])
{
    char key[MHAI_WEIGHT_NAME];
    int used = 0;
    if (strncmp(ours, "layers.", 7) == 0) {
        const int number = (int)strcspn(ours + 7, ".");
        used = snprintf(theirs, MHAI_WEIGHT_NAME, "%s%.*s%s", family->layers,
                        family->shared ? 0 : number, ours + 7, family->shared ? "" : ".");
        ours += 7 + number + 1;
    }
    const char *expert, *tail = strrchr(ours, '.'); /* ".weight", ".bias" */
    const int digits = find_expert(ours, &expert);
    snprintf(key, sizeof key, "%.*s%s%s", (int)(expert - ours), ours, digits ? "*" : "",
             expert + digits);
    const size_t length = strlen(key) - strlen(tail), room = (size_t)(MHAI_WEIGHT_NAME - used);
    for (const mhai_weight_name *name = last ? last + 1 : family->names; name->ours; name++) {
        const bool whole = strcmp(name->ours, key) == 0;
        if (!whole && (strlen(name->ours) != length || strncmp(name->ours, key, length) != 0))
            continue;
        const int begin = (int)strcspn(name->theirs, "*");
        const bool counts = name->theirs[begin] == '*';
        const bool outside = name->theirs[0] == '/';
        snprintf(theirs + (outside ? 0 : used), room, "%.*s%.*s%s%s", begin - outside,
                 name->theirs + outside, counts ? digits : 0, expert, name->theirs + begin + counts,
                 whole ? "" : tail);
        return name;
    }
    snprintf(theirs + used, room, "%s", ours);
    return NULL;
}

bool mhai_desc_is_usual(const mha_transformer_desc *d)
{
    const uint32_t others = MHA_TRANSFORMER_BRANCH_NORM | MHA_TRANSFORMER_PARALLEL |
                            MHA_TRANSFORMER_PADDING | MHA_TRANSFORMER_NO_NORM_BIAS |
                            MHA_TRANSFORMER_LOGIT_BIAS;
    const float scales[] = {d->embed_scale, d->residual_scale, d->logit_scale};
    bool scaled = false;
    for (int i = 0; i < 3; i++) scaled = scaled || scales[i] < 1 || scales[i] > 1;
    return !d->layer_heads && !d->layers && !mhai_desc_has(d, others) && !scaled &&
           !(d->logit_softcap > 0) && d->token_dim == d->embed_dim && d->feature_dim == 0 &&
           d->grid_rows == 0;
}

mha_status mhai_read_activation(const mhai_config *config, const char *key, const char *usual,
                                mha_feed_forward *kind)
{
    static const char *const acts[] = {"gelu",       "relu",  "gelu_new", "gelu_pytorch_tanh",
                                       "quick_gelu", "relu2", "silu",     "swish"};
    static const mha_feed_forward kinds[] = {
        MHA_FEED_FORWARD_GELU,      MHA_FEED_FORWARD_RELU,       MHA_FEED_FORWARD_GELU_TANH,
        MHA_FEED_FORWARD_GELU_TANH, MHA_FEED_FORWARD_QUICK_GELU, MHA_FEED_FORWARD_RELU2,
        MHA_FEED_FORWARD_SILU,      MHA_FEED_FORWARD_SILU};
    int act;
    MHA_TRY(mhai_config_choice(config, key, usual, acts, 8, &act));
    *kind = kinds[act];
    return MHA_OK;
}

bool mhai_write_sizes(const mha_transformer_desc *d, json_t *root)
{
    return mhai_put_count(root, "vocab_size", d->vocab_size) &&
           mhai_put_count(root, "hidden_size", d->embed_dim) &&
           mhai_put_count(root, "intermediate_size", d->ff_dim) &&
           mhai_put_count(root, "num_hidden_layers", d->num_layers) &&
           mhai_put_count(root, "num_attention_heads", d->num_heads) &&
           mhai_put_count(root, "max_position_embeddings", d->max_length) &&
           mhai_put_text(root, "dtype", "float32") && mhai_put_text(root, "torch_dtype", "float32");
}

const char *mhai_size_key(const mhai_config *config, const char *own, const char *usual)
{
    return mhai_config_absent(config, own) && !mhai_config_absent(config, usual) ? usual : own;
}

/* transformers reads both names of a size as one field. */
static mha_status check_aliases(const mhai_config *config, const mhai_shape_keys *keys,
                                const mha_transformer_desc *d)
{
    const struct {
        const char *own, *usual;
        int64_t value;
    } sizes[] = {{keys->embed, mhai_usual_keys.embed, d->embed_dim},
                 {keys->layers, mhai_usual_keys.layers, d->num_layers},
                 {keys->heads, mhai_usual_keys.heads, d->num_heads},
                 {keys->positions, mhai_usual_keys.positions, d->max_length}};
    for (int i = 0; i < 4 && sizes[i].own; i++) {
        int64_t value;
        MHA_TRY(mhai_config_optional(config, sizes[i].usual, INT64_MIN, INT64_MAX, sizes[i].value,
                                     &value));
        if (value != sizes[i].value)
            return mhai_config_fail(MHA_ERR_MODEL, config, sizes[i].usual,
                                    "is %lld, '%s' is %lld; remove the one that does not match the "
                                    "weights",
                                    (long long)value, mhai_config_name(config, sizes[i].own).text,
                                    (long long)sizes[i].value);
    }
    return MHA_OK;
}

mha_status mhai_read_layer_count(const mhai_config *config, const mhai_family *family,
                                 int64_t *count)
{
    const char *keys[] = {"layer_types", family->kinds, family->pattern};
    int at = family->kinds ? 0 : 3;
    while (at < 3 && mhai_config_absent(config, keys[at])) at++;
    if (at == 3)
        return mhai_config_count(
            config, mhai_size_key(config, family->keys->layers, mhai_usual_keys.layers), 1,
            MHAI_MOST_LAYERS, count);
    const json_t *value = json_object_get(config->root, keys[at]);
    int64_t said;
    *count = (int64_t)(at < 2 ? json_array_size(value) : json_string_length(value));
    if (*count < 1 || *count > MHAI_MOST_LAYERS)
        return mhai_config_fail(MHA_ERR_MODEL, config, keys[at], "is not a %s of 1..%d layers",
                                at < 2 ? "list" : "text", MHAI_MOST_LAYERS);
    MHA_TRY(
        mhai_config_optional(config, family->keys->layers, INT64_MIN, INT64_MAX, *count, &said));
    if (said == *count) return MHA_OK;
    return mhai_config_fail(MHA_ERR_MODEL, config, keys[at],
                            "has %lld layers, '%s' is %lld; remove the one that does not match the "
                            "weights",
                            (long long)*count, mhai_config_name(config, family->keys->layers).text,
                            (long long)said);
}

mha_status mhai_read_sizes(const mhai_config *config, const mhai_family *family, const char *inner,
                           mha_transformer_desc *d)
{
    const mhai_shape_keys *keys = family->keys;
    const bool given = family->latent || family->head_dim ||
                       (family->grouped && !mhai_config_absent(config, "head_dim"));
    MHA_TRY(mhai_config_count(config, "vocab_size", 1, MHAI_MOST_ENTRIES, &d->vocab_size));
    MHA_TRY(mhai_config_count(config, mhai_size_key(config, keys->embed, mhai_usual_keys.embed), 1,
                              MHAI_MOST_WIDTH, &d->embed_dim));
    if (inner) MHA_TRY(mhai_config_count(config, inner, 1, MHAI_MOST_WIDTH, &d->ff_dim));
    MHA_TRY(mhai_read_layer_count(config, family, &d->num_layers));
    MHA_TRY(mhai_config_count(config, mhai_size_key(config, keys->heads, mhai_usual_keys.heads), 1,
                              MHAI_MOST_WIDTH, &d->num_heads));
    if (family->head_dim)
        MHA_TRY(mhai_config_count(config, family->head_dim, 1, MHAI_MOST_WIDTH, &d->head_dim));
    if (!given && d->embed_dim % d->num_heads != 0)
        return mhai_path_fail(MHA_ERR_MODEL, config->path, "%s %lld is not a multiple of %s %lld",
                              mhai_config_name(config, keys->embed).text, (long long)d->embed_dim,
                              mhai_config_name(config, keys->heads).text, (long long)d->num_heads);
    d->max_length = MHAI_MOST_POSITIONS;
    if (keys->positions)
        MHA_TRY(mhai_config_count(config,
                                  mhai_size_key(config, keys->positions, mhai_usual_keys.positions),
                                  1, MHAI_MOST_POSITIONS, &d->max_length));
    return check_aliases(config, keys, d);
}
