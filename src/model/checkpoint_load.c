/* Loading a transformer. config.json is untrusted: before any allocation based on its sizes, check
 * that the weights file has as many numbers. */
#include "io/file.h"
#include "io/json_file.h"
#include "model/audio_stem.h"
#include "model/checkpoint_parts.h"
#include "model/folder.h"
#include "model/gguf_config.h"
#include "model/stored.h"

#include <multihead/component.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const size_t most_config_bytes = 16u << 20;

/* Four times the number of angles of Llama 3.1. */
enum { MOST_ANGLES = 1 << 26 };

/* A load in progress. */
typedef struct loading {
    mha_context *context;
    const char *config; /* path of config.json, for messages */
    mha_gguf *gguf;     /* NULL: a folder */
    const mha_model_options *how;
    bool encoder; /* load the encoder of a folder with two towers */
    bool alone;   /* its config.json says that it has no decoder */
    bool array;   /* copy parameters into an array; false: read them from the file */
    const mhai_family *family, *listed; /* in family.c */
    mhai_family renamed;
    mhai_family_plan plan;
    mhai_stored *stored; /* owned by the transformer once that exists */
    bool *used;          /* [tensors of the file] */
    int64_t types;       /* from config.json */
    mha_transformer *made;
    mhai_ends ends;
    mhai_begins begins;
    mhai_audio_stem *audio_stem; /* of an audio encoder */
    mha_tokenizer **tokenizer;   /* tokenizer of a GGUF file; NULL: not requested */
} loading;

/* ---- the plan ------------------------------------------------------------------------------ */

static bool same_rotation(const mha_layer_desc *a, const mha_layer_desc *b)
{
    mha_layer_desc like_b = *a;
    mhai_set_rotation(&like_b, b);
    return memcmp(&like_b, a, sizeof like_b) == 0;
}

/* The number of different rotations. Each has its own table. */
static int64_t count_rotations(const mha_transformer_desc *d)
{
    int64_t count = 0;
    for (int64_t i = 0; d->layers && i < d->num_layers; i++) {
        int64_t k = 0;
        const mha_layer_desc *a = &d->layers[i];
        if (a->mixer) continue;
        for (const mha_layer_desc *b = d->layers; k < i; k++, b++)
            if (same_rotation(a, b)) break;
        count += k == i;
    }
    return count > 0 ? count : 1;
}

/* The number of positions appears in no weight, so the tables of angles need a separate bound. */
static mha_status check_positions(const mhai_config *config, const mhai_family_plan *plan)
{
    const mha_transformer_desc *d = &plan->desc;
    const bool sines = plan->sinusoids || d->positions == MHA_ENCODING_SINUSOIDAL;
    if (d->positions != MHA_ENCODING_ROTARY && !sines) return MHA_OK;
    int64_t width = sines ? d->embed_dim : 0;
    for (int64_t i = 0; !sines && i < d->num_layers; i++)
        if (mha_transformer_head_dim(d, i) > width) width = mha_transformer_head_dim(d, i);
    const int64_t tables = count_rotations(d);
    if (d->max_length * width <= MOST_ANGLES / tables) return MHA_OK; /* 2^20 each: no overflow */
    return mhai_path_fail(MHA_ERR_SIZE, config->path,
                          "%lld positions of %lld angles in %lld tables are more than the %d "
                          "supported",
                          (long long)d->max_length, (long long)width, (long long)tables,
                          MOST_ANGLES);
}

mha_status mhai_checkpoint_read_plan(const mhai_config *config, const mhai_family *family,
                                     mhai_family_plan *plan)
{
    static const char *const refused[] = {"per_layer_config", "is_encoder_decoder", NULL};
    plan->desc.struct_size = sizeof plan->desc;
    MHA_TRY(family->towers ? mhai_config_unset(config, refused[0])
                           : mhai_config_refuse(config, refused + family->own_layers));
    MHA_TRY(mhai_family_read(family, config, plan));
    return check_positions(config, plan);
}

void mhai_checkpoint_free_plan(mhai_family_plan *plan)
{
    free(plan->head_lists);
    free(plan->layers);
    free(plan->rope_factors);
}

/* ---- before allocation --------------------------------------------------------------------- */

static const char *remedy(const loading *l)
{
    return l->stored->weights.gguf
               ? "this variant of the architecture is not supported, use the model's folder"
               : "use the config.json that came with the weights";
}

static mha_status check_numbers(const loading *l)
{
    const mhai_picture *picture = &l->plan.picture;
    double described = mhai_checkpoint_numbers(&l->plan.desc, l->family->shared);
    const mhai_weights *weights = &l->stored->weights;
    if (l->plan.sinusoids)
        described -= (double)l->plan.desc.max_length * (double)l->plan.desc.embed_dim;
    mha_tensor tensor;
    double held = 0;
    if (picture->patch > 0) /* their tables are made from smaller or larger ones */
        described -= (double)(l->plan.desc.max_length + l->plan.desc.vocab_size) *
                     (double)l->plan.desc.embed_dim;
    int64_t unread = -1; /* a tensor of an unsupported type, unless ignored */
    for (int64_t i = 0; i < weights->count; i++) {
        double count = 1;
        if (mhai_weights_peek(weights, i, &tensor) != MHA_OK) {
            if (!mhai_family_ignores(l->family, &l->plan, mhai_weights_name(weights, i)))
                unread = i;
            continue;
        }
        for (int k = 0; k < tensor.ndim; k++) count *= (double)tensor.shape[k];
        if (l->family->mxfp4 && tensor.dtype == MHA_U8) count *= 2; /* in each byte */
        held += count;
    }
    if (described <= held) return MHA_OK;
    if (unread >= 0) return mhai_weights_peek(weights, unread, &tensor);
    return mhai_path_fail(MHA_ERR_MODEL, weights->path,
                          "holds %.0f numbers, %s describes at least %.0f; %s", held, weights->asks,
                          described, remedy(l));
}

static bool values_are_keys(const mhai_family_plan *plan, const char *ours)
{
    const long long layer = strtoll(ours + strlen("layers."), NULL, 10);
    return plan->keys_as_values && !mhai_slides(plan, layer);
}

/* The row of the family's names whose weight is in the file, NULL for our own name, or the first
 * row. */
static const mhai_weight_name *row_of(const loading *l, const char *ours,
                                      char name[MHAI_WEIGHT_NAME])
{
    const mhai_weights *weights = &l->stored->weights;
    const mhai_weight_name *row = mhai_family_name(l->family, ours, name), *next = row;
    if (row && row->form == MHAI_KEYS_AS_VALUES && !values_are_keys(&l->plan, ours))
        row = next = mhai_family_next_name(l->family, ours, row, name);
    while (next && mhai_weights_find(weights, name) < 0)
        next = mhai_family_next_name(l->family, ours, next, name);
    if (next || mhai_weights_find(weights, name) >= 0) return next;
    if (row) mhai_family_name(l->family, ours, name); /* used in messages */
    return row;
}

/* Check the embeddings first. They give the clearest error if config.json
 * belongs to another model. */
static mha_status check_embeddings(loading *l)
{
    char name[MHAI_WEIGHT_NAME];
    const int64_t patch = l->plan.picture.patch, E = mhai_width_of_tables(&l->plan.desc);
    const mha_tensor table = patch > 0
                                 ? (mha_tensor){.ndim = 4, .shape = {E, 3, patch, patch}}
                                 : (mha_tensor){.ndim = 2, .shape = {l->plan.desc.vocab_size, E}};
    const char *ours = patch > 0 ? "embed_features.weight" : "embed_tokens.weight";
    const struct {
        const char *inner, *outer;
    } prefixes[] = {{"model.language_model.", ""},
                    {"language_model.model.", "language_model."}, /* of transformers 4 */
                    {l->family->text_prefix, ""},
                    {l->family->prefix, ""},
                    {"", ""}};
    for (int i = l->family->text_part ? 0 : 2; i < 5; i++) {
        if (!prefixes[i].inner) continue;
        l->stored->weights.prefix = prefixes[i].inner;
        l->stored->weights.outer = prefixes[i].outer;
        row_of(l, ours, name);
        const int64_t at = mhai_weights_find(&l->stored->weights, name);
        if (at >= 0 && strcmp(mhai_weights_name(&l->stored->weights, at), name) != 0) break;
    }
    int64_t unused;
    return mhai_weights_check(&l->stored->weights, name, &table, &unused);
}

static void use(loading *l, const char *name)
{
    const int64_t index = mhai_weights_find(&l->stored->weights, name);
    if (index < 0) return; /* a part of a table that a family may lack */
    const int64_t scales = mhai_weights_scales(&l->stored->weights, index);
    l->used[index] = true;
    if (scales >= 0) l->used[scales] = true;
}

/* A decoder's file may lack the output layer: AutoModel.save_pretrained() omits it. A file with
 * tied embeddings may hold both copies. The transformer uses one. */
static mha_status check_output(loading *l)
{
    const mhai_weights *weights = &l->stored->weights;
    mha_transformer_desc *d = &l->plan.desc;
    const bool tied = d->flags & MHA_TRANSFORMER_TIED;
    char name[MHAI_WEIGHT_NAME], table[MHAI_WEIGHT_NAME];
    if (!(l->family->shape & MHA_MODEL_SHAPE_CAUSAL) ||
        (!l->family->prefix[0] && !l->family->towers))
        return MHA_OK;
    mhai_family_name(l->family, "lm_head.weight", name);
    row_of(l, "embed_tokens.weight", table);
    const int64_t at = mhai_weights_find(weights, name);
    if (at < 0 && !tied) {
        d->flags |= MHA_TRANSFORMER_NO_OUTPUT;
        d->logit_softcap = d->logit_scale = 0;
    }
    if (at < 0 || !tied) return MHA_OK;
    use(l, name);
    if (mhai_weights_equal(weights, at, mhai_weights_find(weights, table))) return MHA_OK;
    if (l->family->may_tie) {
        d->flags &= ~(uint32_t)MHA_TRANSFORMER_TIED;
        return MHA_OK;
    }
    return mhai_path_fail(
        MHA_ERR_MODEL, l->config,
        "'tie_word_embeddings' is true, but the file has a weight '%s' that differs "
        "from '%s'; set it to false",
        name, table);
}

/* ---- weights ------------------------------------------------------------------------------- */

/* The name of a parameter in the file. Old files call the weight and bias
 * of a norm gamma and beta. */
static const mhai_weight_name *name_of(const loading *l, const mha_parameter *p,
                                       char name[MHAI_WEIGHT_NAME])
{
    const mhai_weights *weights = &l->stored->weights;
    const mhai_weight_name *row = row_of(l, p->name, name);
    if (p->kind != MHA_PARAMETER_NORM || !l->family->old_norms ||
        mhai_weights_find(weights, name) >= 0)
        return row;
    char old[MHAI_WEIGHT_NAME];
    const char *tail = strrchr(name, '.');
    snprintf(old, sizeof old, "%.*s.%s", (int)(tail - name), name,
             strcmp(tail, ".weight") == 0 ? "gamma" : "beta");
    if (mhai_weights_find(weights, old) >= 0) memcpy(name, old, sizeof old);
    return row;
}

/* Find all parameters in the file. */
static mha_status find_weights(loading *l)
{
    const int64_t count = mha_transformer_parameters(l->made);
    mha_transformer_desc d;
    mha_transformer_describe(l->made, &d);
    l->stored->count = count;
    l->stored->parameters = calloc((size_t)count, sizeof *l->stored->parameters);
    if (!l->stored->parameters)
        return mha_fail(MHA_ERR_NOMEM, "checkpoint: cannot allocate its tables");
    for (int64_t i = 0; i < count; i++) {
        char name[MHAI_WEIGHT_NAME];
        mha_parameter p;
        MHA_TRY(mha_transformer_parameter(l->made, i, &p));
        const mhai_weight_name *row = name_of(l, &p, name);
        if (l->plan.sinusoids && strcmp(p.name, "embed_positions.weight") == 0 &&
            mhai_weights_find(&l->stored->weights, name) < 0) {
            MHA_TRY(mhai_stored_sinusoids(l->context, &p, &l->stored->parameters[i]));
            continue;
        }
        MHA_TRY(mhai_stored_find(&l->stored->weights, &l->plan, &d, &p, row, name,
                                 &l->stored->parameters[i]));
        const bool stored = !row || !mhai_form_is_made(row->form);
        for (int part = 0; stored && mhai_stored_part(row, part, name); part++) use(l, name);
    }
    return MHA_OK;
}

/* Copy the parameters into the array, if there is one. */
static mha_status read_weights(loading *l)
{
    float *data = mha_transformer_data(l->made);
    for (int64_t i = 0; data && i < mha_transformer_parameters(l->made); i++) {
        mha_parameter p;
        MHA_TRY(mha_transformer_parameter(l->made, i, &p));
        mhai_stored_read(l->stored, i, 0, p.shape[0], 0, p.ndim == 2 ? p.shape[1] : 1,
                         data + p.offset);
    }
    return MHA_OK;
}

/* Whether a checked tensor of `count` numbers has only zeros. */
static bool is_zero(const loading *l, int64_t index, int64_t count)
{
    const mhai_elements numbers = mhai_weights_elements(&l->stored->weights, index);
    bool zero = true;
    for (int64_t i = 0; i < count && zero; i++) {
        float x;
        mhai_elements_read(numbers, i, 1, &x);
        zero = x >= 0 && x <= 0;
    }
    return zero;
}

/* Drop a bias of an output that is absent, or, of a family with a name for it, one that is absent or
 * 0. */
static mha_status check_bias(loading *l)
{
    mha_transformer_desc *d = &l->plan.desc;
    const mha_tensor row = {.ndim = 2, .shape = {1, d->vocab_size}};
    char name[MHAI_WEIGHT_NAME];
    int64_t index;
    if (d->flags & MHA_TRANSFORMER_NO_OUTPUT) d->flags &= ~(uint32_t)MHA_TRANSFORMER_LOGIT_BIAS;
    if (!(d->flags & MHA_TRANSFORMER_LOGIT_BIAS) || l->stored->weights.gguf ||
        !mhai_family_name(l->family, "lm_head.bias", name))
        return MHA_OK;
    const bool found = mhai_weights_find(&l->stored->weights, name) >= 0;
    if (found) MHA_TRY(mhai_weights_check(&l->stored->weights, name, &row, &index));
    if (!found || is_zero(l, index, d->vocab_size))
        d->flags &= ~(uint32_t)MHA_TRANSFORMER_LOGIT_BIAS;
    return MHA_OK;
}

/* Drop a type table of zeros. Training writes one because BERT requires it. */
static mha_status check_types(loading *l)
{
    mha_transformer_desc *d = &l->plan.desc;
    const mha_tensor table = {.ndim = 2, .shape = {d->type_count, mhai_width_of_tables(d)}};
    char name[MHAI_WEIGHT_NAME];
    int64_t index;
    l->types = d->type_count;
    if (d->type_count == 0) return MHA_OK;
    mhai_family_name(l->family, "embed_types.weight", name);
    if (l->stored->weights.gguf && mhai_weights_find(&l->stored->weights, name) < 0) {
        d->type_count = 0; /* of a file without that table, such as DistilBERT's */
        return MHA_OK;
    }
    MHA_TRY(mhai_weights_check(&l->stored->weights, name, &table, &index));
    if (!is_zero(l, index, d->type_count * table.shape[1])) return MHA_OK;
    d->type_count = 0;
    use(l, name);
    return MHA_OK;
}

/* The field that is false although the file has a bias; NULL: another weight. */
static const char *field_of(const loading *l, const char *name)
{
    const char *tail = strrchr(name, '.');
    const bool attends = strstr(name, "att"), feeds = strstr(name, "mlp") || strstr(name, "feed");
    if (l->stored->weights.gguf || !tail || strcmp(tail, ".bias") != 0 || strstr(name, "norm"))
        return NULL;
    if (attends && !(l->plan.desc.flags & MHA_TRANSFORMER_QKV_BIAS)) return l->family->bias_key;
    return feeds && !(l->plan.desc.flags & MHA_TRANSFORMER_FF_BIAS) ? l->family->ff_bias_key : NULL;
}

static mha_status check_all_used(const loading *l)
{
    for (int64_t i = 0; i < l->stored->weights.count; i++) {
        const char *name = mhai_weights_name(&l->stored->weights, i);
        if (l->alone && (!strncmp(name, "decoder.", 8) || !strncmp(name, "model.decoder.", 14)))
            return mhai_path_fail(MHA_ERR_MODEL, l->config,
                                  "'is_encoder_decoder' is false, but the weights have a decoder, "
                                  "'%s'; remove the field, or open FOLDER/encoder",
                                  mhai_show_name(name).text);
        if (l->used[i] || mhai_family_ignores(l->family, &l->plan, name)) continue;
        const char *field = field_of(l, name);
        if (field)
            return mhai_path_fail(MHA_ERR_MODEL, l->config,
                                  "'%s' is not true, but the weights have '%s'; set it to true",
                                  field, mhai_show_name(name).text);
        return mhai_path_fail(MHA_ERR_MODEL, l->stored->weights.path,
                              "has weight '%s', which %s does not imply; %s",
                              mhai_show_name(name).text, l->stored->weights.asks, remedy(l));
    }
    return MHA_OK;
}

/* ---- the folder ---------------------------------------------------------------------------- */

/* Pack f32 weights once. Other types are converted in every product to save memory; so are f32
 * weights if products round them. */
static mha_status create_from(loading *l)
{
    const mha_compute compute = l->how->compute;
    const bool spreads = !(l->how->flags & MHA_MODEL_UNDIVIDED);
    const bool packs = compute == MHA_COMPUTE_F32 && mhai_weights_are_f32(&l->stored->weights);
    const mha_transformer_source source = {.struct_size = sizeof source,
                                           .flags = packs ? MHA_SOURCE_PACK : 0,
                                           .read = mhai_stored_read,
                                           .read_coded = mhai_stored_read_coded,
                                           .find_rows = mhai_stored_find_rows,
                                           .release = mhai_stored_release,
                                           .user = l->stored,
                                           .compute = compute,
                                           .transport = spreads ? l->how->transport : NULL};
    return l->array ? mha_transformer_create(l->context, &l->plan.desc, &l->made)
                    : mha_transformer_create_from(l->context, &l->plan.desc, &source, &l->made);
}

/* Check that int8 arithmetic has quantised rows to work on. */
static mha_status check_compute(const loading *l)
{
    if (l->how->compute != MHA_COMPUTE_INT8 || mhai_weights_have_blocks(&l->stored->weights))
        return MHA_OK;
    return mhai_path_fail(
        MHA_ERR_UNSUPPORTED, l->stored->weights.path,
        "no weight is stored in blocks of 8 bits or fewer, which int8 arithmetic multiplies; use a "
        "quantised GGUF file (Q4_0, Q8_0, Q4_K ...), or f32 arithmetic");
}

/* Report an invalid description as an error in config.json. */
static mha_status create(loading *l)
{
    char detail[400];
    const mha_status status = create_from(l);
    if (status != MHA_ERR_ARGUMENT && status != MHA_ERR_SHAPE && status != MHA_ERR_UNSUPPORTED)
        return status;
    snprintf(detail, sizeof detail, "%s", mha_error_detail());
    return mhai_path_fail(MHA_ERR_MODEL, l->config, "%s", detail);
}

static mha_status load_body(loading *l)
{
    MHA_TRY(check_compute(l));
    MHA_TRY(check_embeddings(l));
    l->used = calloc((size_t)l->stored->weights.count + 1, sizeof *l->used);
    if (!l->used) return mha_fail(MHA_ERR_NOMEM, "checkpoint: cannot allocate its tables");
    MHA_TRY(check_output(l));
    MHA_TRY(check_bias(l));
    MHA_TRY(check_numbers(l));
    MHA_TRY(check_types(l));
    MHA_TRY(create(l));
    MHA_TRY(find_weights(l));
    MHA_TRY(check_all_used(l));
    MHA_TRY(read_weights(l));
    if (l->plan.bins > 0)
        MHA_TRY(mhai_audio_stem_load(l->context, &l->stored->weights, &l->plan, &l->audio_stem));
    return mha_transformer_update(l->context, l->made);
}

static mha_status find_ends(loading *l, const mha_gguf *gguf, const char *path)
{
    mhai_begins *begins = l->listed->encoder ? &l->begins : NULL;
    const int64_t count = l->plan.desc.vocab_size;
    return gguf ? mhai_gguf_status(mhai_ends_of_gguf(gguf, path, count, &l->ends, begins))
                : mhai_ends_of_folder(path, count, &l->ends, begins);
}

static mha_status load_files(loading *l, const char *folder)
{
    l->stored = calloc(1, sizeof *l->stored);
    if (!l->stored) return mha_fail(MHA_ERR_NOMEM, "checkpoint: cannot allocate its tables");
    mha_gguf *gguf = l->gguf;
    l->gguf = NULL; /* now owned by the weights */
    mha_status status = gguf ? mhai_weights_open_gguf(gguf, folder, &l->stored->weights)
                             : mhai_weights_open(folder, &l->stored->weights);
    l->stored->weights.quantization = l->plan.quantization;
    if (status == MHA_OK) status = load_body(l);
    if (status == MHA_OK) status = find_ends(l, gguf, folder);
    if (status == MHA_OK && gguf && l->tokenizer)
        status = mhai_gguf_tokenizer(gguf, folder, l->tokenizer);
    free(l->used);
    if (l->array || !l->made) mhai_stored_release(l->stored);
    return status;
}

/* MXFP4 blocks are found by the names of weights. The field of text_config applies if config.json
 * itself has none. */
static mha_status read_quantization(const mhai_config *config, const mhai_config *text,
                                    const mhai_family *family, mhai_quantization *q)
{
    static const char key[] = "quantization_config";
    const mhai_config *from = mhai_config_absent(config, key) ? text : config;
    const json_t *given = json_object_get(from->root, key);
    const char *method = json_string_value(json_object_get(given, "quant_method"));
    if (family->mxfp4 && method && strcmp(method, "mxfp4") == 0) return MHA_OK;
    return mhai_quantization_read(from, q);
}

/* The size of images determines the number of tokens. */
static mha_status read_picture(loading *l, const char *folder)
{
    mhai_picture *p = &l->plan.picture;
    MHA_TRY(mhai_picture_read(folder, p));
    l->plan.desc.max_length = p->first + p->rows * p->cols;
    if (l->plan.desc.grid_rows == 0) return MHA_OK;
    l->plan.desc.grid_rows = p->rows;
    l->plan.desc.grid_cols = p->cols;
    return MHA_OK;
}

static mha_status load_plan(loading *l, const mhai_config *config, const char *folder)
{
    mhai_config text = *config;
    MHA_TRY(mhai_family_find(config, l->how->flags & MHA_MODEL_IMAGES, &l->listed));
    if (l->encoder && !l->listed->encoder)
        return mhai_path_fail(MHA_ERR_FILE, folder,
                              "has no folder 'encoder', and a %s has no encoder of its own",
                              l->listed->model_type);
    if (l->listed->encoder && !l->encoder) {
        bool both;
        MHA_TRY(mhai_config_bool(config, "is_encoder_decoder", true, &both));
        l->encoder = l->alone = !both; /* a saved T5EncoderModel */
    }
    if (l->encoder) l->listed = l->listed->encoder;
    l->config = config->path;
    MHA_TRY(mhai_family_enter(l->listed, &text));
    l->renamed = mhai_gguf_family(l->listed);
    l->family = l->gguf ? &l->renamed : l->listed;
    MHA_TRY(read_quantization(config, &text, l->listed, &l->plan.quantization));
    mha_status status = mhai_checkpoint_read_plan(&text, l->listed, &l->plan);
    if (status == MHA_OK && l->plan.picture.patch > 0) status = read_picture(l, folder);
    if (status == MHA_OK) status = load_files(l, folder);
    mhai_checkpoint_free_plan(&l->plan);
    return status;
}

static mha_status load(loading *l, const char *folder)
{
    MHA_TRY(mhai_model_check_folder(folder));
    json_t *root = NULL;
    char *path = mhai_model_join(folder, "config.json");
    if (!path) return mhai_path_fail(MHA_ERR_NOMEM, folder, "cannot allocate names");
    mha_status status = mhai_json_read(path, most_config_bytes, &root);
    if (status == MHA_OK) status = load_plan(l, &(mhai_config){path, root}, folder);
    json_decref(root);
    free(path);
    return status;
}

static mha_status load_gguf(loading *l, const char *path)
{
    json_t *root = NULL;
    MHA_TRY(mha_gguf_open(path, &l->gguf));
    mha_status status = mhai_gguf_config(l->gguf, path, &root);
    if (status == MHA_OK) status = load_plan(l, &(mhai_config){path, root}, path);
    json_decref(root);
    return status;
}

/* Free everything but the transformer. */
static void release_rest(mhai_loaded *loaded)
{
    free(loaded->ends.ids);
    free(loaded->begins.suppressed.ids);
    free(loaded->begins.first.ids);
    mhai_audio_stem_destroy(loaded->audio_stem);
}

mha_status mhai_model_load_part(mha_context *context, const char *path,
                                const mha_model_options *how, bool encoder,
                                mha_tokenizer **tokenizer, mhai_loaded *loaded)
{
    loading l = {.context = context,
                 .how = how,
                 .encoder = encoder,
                 .array = how->flags & MHA_MODEL_ARRAY,
                 .tokenizer = tokenizer};
    mha_status status = mhai_model_is_gguf(path) ? load_gguf(&l, path) : load(&l, path);
    mha_gguf_close(l.gguf);
    *loaded =
        (mhai_loaded){l.made, l.listed, l.types, l.ends, l.begins, l.audio_stem, l.plan.picture};
    if (status == MHA_OK) return MHA_OK;
    mha_transformer_destroy(l.made);
    release_rest(loaded);
    return status;
}

mha_status mha_checkpoint_load(mha_context *context, const char *folder,
                               mha_transformer **transformer)
{
    MHA_NEED("mha_checkpoint_load", context, folder, transformer);
    static const mha_model_options how = {.flags = MHA_MODEL_ARRAY};
    mhai_loaded loaded;
    MHA_TRY(mhai_model_load_part(context, folder, &how, false, NULL, &loaded));
    *transformer = loaded.transformer;
    release_rest(&loaded);
    return MHA_OK;
}
