/* Loading a transformer. config.json is not believed: before anything of its sizes is allocated,
 * the file of weights must hold as many numbers as it describes. */
#include "io/file.h"
#include "io/json_file.h"
#include "model/arch.h"
#include "model/checkpoint_parts.h"

#include <multihead/component.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const size_t most_config_bytes = 16u << 20;

/* Four times what Llama 3.1 has. */
enum { MOST_ANGLES = 1 << 26 };

/* A load under way. */
typedef struct loading {
    mha_context *context;
    const mhai_checkpoint_kind *kind;
    mhai_checkpoint_plan plan;
    mhai_weights weights;
    bool *used; /* [tensors of the file] */
    mha_transformer *made;
} loading;

/* ---- before allocation --------------------------------------------------------------------- */

/* Fewer than the transformer has: norms and biases do not count. In double, which cannot overflow.
 */
static double numbers_described(const mha_transformer_desc *d)
{
    const double E = (double)d->embed_dim, kv = (double)(d->kv_heads ? d->kv_heads : d->num_heads);
    const double D = (double)(d->head_dim ? d->head_dim : d->embed_dim / d->num_heads);
    const double memory = (double)(d->memory_dim ? d->memory_dim : d->embed_dim);
    const double q = 2 * E * (double)d->num_heads * D;
    double layers = (double)d->num_layers * (q + 2 * E * kv * D), layer = 0;
    if (d->layer_heads) layers = 0;
    for (int64_t i = 0; d->layer_heads && i < d->num_layers; i++)
        layers += 2 * E * D * (double)(d->layer_heads[i] + d->layer_kv_heads[i]);
    if (d->flags & MHA_TRANSFORMER_CROSS) layer += q + 2 * memory * kv * D;
    layer += (d->feed_forward == MHA_FEED_FORWARD_SWIGLU ? 3.0 : 2.0) * E * (double)d->ff_dim;
    double all = layers + (double)d->num_layers * layer + (double)d->vocab_size * E;
    if (d->positions == MHA_ENCODING_LEARNED) all += (double)d->max_length * E;
    if (!(d->flags & (MHA_TRANSFORMER_TIED | MHA_TRANSFORMER_NO_OUTPUT)))
        all += (double)d->vocab_size * E;
    return all;
}

/* Positions that no weight vouches for: tables of angles, for which there is room at least. */
static mha_status check_positions(const loading *l)
{
    const mha_transformer_desc *d = &l->plan.desc;
    if (d->positions != MHA_ENCODING_ROTARY && d->positions != MHA_ENCODING_SINUSOIDAL)
        return MHA_OK;
    const int64_t width = d->positions == MHA_ENCODING_SINUSOIDAL ? d->embed_dim
                          : d->head_dim                           ? d->head_dim
                                                                  : d->embed_dim / d->num_heads;
    if (d->max_length * width <= MOST_ANGLES) return MHA_OK; /* at most 2^20 each: no overflow */
    return mha_fail(MHA_ERR_SIZE, "%lld positions of %lld angles are more than the %d supported",
                    (long long)d->max_length, (long long)width, MOST_ANGLES);
}

static mha_status check_numbers(const loading *l)
{
    const double described = numbers_described(&l->plan.desc);
    double held = 0;
    for (int64_t i = 0; i < mha_safetensors_count(l->weights.file); i++) {
        mha_tensor tensor;
        double count = 1;
        if (mha_safetensors_peek(l->weights.file, i, &tensor) != MHA_OK)
            continue; /* not asked for */
        for (int k = 0; k < tensor.ndim; k++) count *= (double)tensor.shape[k];
        held += count;
    }
    if (described <= held) return MHA_OK;
    return mha_fail(MHA_ERR_MODEL,
                    "%s: holds %.0f numbers, config.json describes at least %.0f; take the "
                    "config.json that came with the weights",
                    mhai_show_path(l->weights.path).text, held, described);
}

/* The embeddings first: the error that tells most where the wrong config.json lies beside. */
static mha_status check_embeddings(loading *l)
{
    char name[MHAI_CHECKPOINT_NAME];
    const int64_t shape[2] = {l->plan.desc.vocab_size, l->plan.desc.embed_dim};
    const mha_tensor table = mha_tensor_contiguous(NULL, MHA_F32, 2, shape);
    mhai_checkpoint_name(l->kind, "embed_tokens.weight", name);
    l->weights.prefix = l->kind->prefix;
    if (!mhai_weights_have(&l->weights, name)) l->weights.prefix = "";
    return mhai_weights_read(&l->weights, name, &table);
}

/* ---- weights ------------------------------------------------------------------------------- */

static void use(loading *l, const char *name)
{
    char full[2 * MHAI_CHECKPOINT_NAME];
    snprintf(full, sizeof full, "%s%s", l->weights.prefix, name);
    l->used[mha_safetensors_find(l->weights.file, full)] = true;
}

static bool left_out(const loading *l, const mha_parameter *p)
{
    if (p->kind != MHA_PARAMETER_BIAS) return false;
    return strstr(p->name, ".mlp.") ? l->plan.no_mlp_bias : l->plan.no_attention_bias;
}

static mha_status load_weights(loading *l)
{
    float *data = mha_transformer_data(l->made);
    for (int64_t i = 0; i < mha_transformer_parameters(l->made); i++) {
        char name[MHAI_CHECKPOINT_NAME];
        mha_parameter p;
        MHA_TRY(mha_transformer_parameter(l->made, i, &p));
        if (left_out(l, &p)) continue;
        mhai_checkpoint_name(l->kind, p.name, name);
        const mha_tensor to = mha_tensor_contiguous(data + p.offset, MHA_F32, p.ndim, p.shape);
        MHA_TRY(mhai_weights_read(&l->weights, name, &to));
        use(l, name);
    }
    return MHA_OK;
}

/* BERT's embedding of segment 0 stands with every token: it becomes part of the positions. */
static mha_status fold_segments(loading *l, const mhai_config *config)
{
    static const char name[] = "embeddings.token_type_embeddings.weight";
    int64_t types = 0;
    mha_parameter p = {.ndim = 0};
    mha_tensor table;
    MHA_TRY(mhai_config_count(config, "type_vocab_size", 1, INT32_MAX, &types));
    MHA_TRY(mhai_weights_matrix(&l->weights, name, types, l->plan.desc.embed_dim, &table));
    use(l, name);
    for (int64_t i = 0; strcmp(p.name, "embed_positions.weight") != 0; i++)
        MHA_TRY(mha_transformer_parameter(l->made, i, &p));
    const float *segment = table.data;
    float *row = mha_transformer_data(l->made) + p.offset;
    for (int64_t i = 0; i < p.count; i++) {
        const float add = segment[i % p.shape[1]];
        if (!(add >= 0 && add <= 0)) row[i] += add; /* 0 would turn -0 to 0 */
    }
    return MHA_OK;
}

static mha_status check_all_used(const loading *l)
{
    for (int64_t i = 0; i < mha_safetensors_count(l->weights.file); i++) {
        const char *name = mha_safetensors_name(l->weights.file, i);
        if (!l->used[i] && !l->kind->ignores(&l->plan, name))
            return mha_fail(MHA_ERR_MODEL,
                            "%s: has weight '%s', which config.json does not ask for; take the "
                            "config.json that came with the weights",
                            mhai_show_path(l->weights.path).text, mhai_show_name(name).text);
    }
    return MHA_OK;
}

/* ---- the folder ---------------------------------------------------------------------------- */

static mha_status choose_kind(const mhai_config *config, loading *l)
{
    const char *type = NULL;
    if (!json_is_object(config->root))
        return mha_fail(MHA_ERR_MODEL, "%s: is no JSON object", mhai_show_path(config->path).text);
    MHA_TRY(mhai_config_text(config, "model_type", NULL, &type));
    l->kind = mhai_checkpoint_kind_named(type);
    if (l->kind) return MHA_OK;
    return mha_fail(MHA_ERR_UNSUPPORTED,
                    "%s: model_type '%s' is not supported; known: llama, bert, multihead",
                    mhai_show_path(config->path).text, mhai_show_name(type).text);
}

static mha_status load_body(loading *l, const mhai_config *config)
{
    MHA_TRY(check_embeddings(l));
    MHA_TRY(check_numbers(l));
    MHA_TRY(check_positions(l));
    MHA_TRY(mha_transformer_create(l->context, &l->plan.desc, &l->made));
    l->used = calloc((size_t)mha_safetensors_count(l->weights.file), sizeof *l->used);
    if (!l->used) return mha_fail(MHA_ERR_NOMEM, "checkpoint: cannot allocate its tables");
    MHA_TRY(load_weights(l));
    if (strcmp(l->kind->model_type, "bert") == 0) MHA_TRY(fold_segments(l, config));
    MHA_TRY(check_all_used(l));
    return mha_transformer_update(l->context, l->made);
}

static mha_status load_files(loading *l, const mhai_config *config, const char *weights_path)
{
    mha_safetensors *file = NULL;
    MHA_TRY(mha_safetensors_open(weights_path, &file));
    l->weights = (mhai_weights){.path = weights_path, .file = file, .prefix = ""};
    mha_status status = load_body(l, config);
    free(l->used);
    mhai_weights_close(&l->weights);
    mha_safetensors_close(file);
    return status;
}

static mha_status load_plan(loading *l, const mhai_config *config, const char *weights_path)
{
    MHA_TRY(choose_kind(config, l));
    l->plan.desc.struct_size = sizeof l->plan.desc;
    mha_status status = l->kind->read(config, &l->plan);
    if (status == MHA_OK) status = load_files(l, config, weights_path);
    free(l->plan.head_lists);
    return status;
}

static mha_status load(loading *l, const char *folder)
{
    MHA_TRY(mhai_model_check_folder(folder));
    json_t *root = NULL;
    char *config_path = mhai_model_join(folder, "config.json");
    char *weights_path = mhai_model_join(folder, "model.safetensors");
    mha_status status = MHA_OK;
    if (!config_path || !weights_path) {
        status = mha_fail(MHA_ERR_NOMEM, "%s: cannot allocate names", mhai_show_path(folder).text);
        goto done;
    }
    MHA_TRY_GOTO(mhai_json_read(config_path, most_config_bytes, &root), done);
    const mhai_config config = {config_path, root};
    status = load_plan(l, &config, weights_path);
done:
    json_decref(root);
    free(weights_path);
    free(config_path);
    return status;
}

mha_status mha_checkpoint_load(mha_context *context, const char *folder,
                               mha_transformer **transformer)
{
    if (!context || !folder || !transformer)
        return mha_fail(MHA_ERR_NULL, "mha_checkpoint_load: %s is NULL",
                        !context  ? "context"
                        : !folder ? "folder"
                                  : "transformer");
    loading l = {.context = context};
    mha_status status = load(&l, folder);
    if (status == MHA_OK)
        *transformer = l.made;
    else
        mha_transformer_destroy(l.made);
    return status;
}
