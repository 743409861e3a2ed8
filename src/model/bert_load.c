/* Loading a BERT encoder: config.json's fields, then the weights by their Hugging Face names. */
#include "io/file.h"
#include "model/bert.h"

#include <multihead/component.h>

#include <stdio.h>
#include <string.h>

/* Far beyond every published model, and small enough that no product of two overflows. */
enum { MOST_LAYERS = 4096, MOST_WIDTH = 1 << 20, MOST_ENTRIES = INT32_MAX };

/* Names of weights: of a layer, of a part of it, of a weight of that part. */
enum { LAYER_BYTES = 64, PART_BYTES = 96, NAME_BYTES = 128 };

/* One name of config.json for each activation that mha_activation has. */
static const struct {
    const char *name;
    mha_activation activation;
} activations[] = {{"gelu", MHA_ACTIVATION_GELU}, {"relu", MHA_ACTIVATION_RELU}};

enum { ACTIVATIONS = sizeof activations / sizeof activations[0] };

/* What would change the results and is not built: set in a config, it is refused, never ignored. */
static const char *const not_built[] = {"is_decoder", "add_cross_attention", "is_encoder_decoder",
                                        "pruned_heads", "quantization_config"};

/* ---- configuration ------------------------------------------------------------------------- */

static mha_status read_sizes(const mhai_config *config, mha_model_info *info)
{
    MHA_TRY(mhai_config_count(config, "hidden_size", 1, MOST_WIDTH, &info->hidden_size));
    MHA_TRY(mhai_config_count(config, "num_hidden_layers", 1, MOST_LAYERS, &info->layers));
    MHA_TRY(mhai_config_count(config, "num_attention_heads", 1, MOST_WIDTH, &info->heads));
    MHA_TRY(
        mhai_config_count(config, "intermediate_size", 1, MOST_WIDTH, &info->intermediate_size));
    MHA_TRY(mhai_config_count(config, "vocab_size", 1, MOST_ENTRIES, &info->vocab_size));
    MHA_TRY(mhai_config_count(config, "max_position_embeddings", 1, MOST_ENTRIES,
                              &info->max_positions));
    MHA_TRY(mhai_config_count(config, "type_vocab_size", 1, MOST_ENTRIES, &info->type_vocab_size));
    if (info->hidden_size % info->heads != 0)
        return mha_fail(MHA_ERR_MODEL,
                        "%s: hidden_size %lld is not a multiple of num_attention_heads %lld",
                        mhai_show_path(config->path).text, (long long)info->hidden_size,
                        (long long)info->heads);
    info->kv_heads = info->heads;
    info->head_dim = info->hidden_size / info->heads;
    return MHA_OK;
}

static mha_status read_choices(const mhai_config *config, mhai_bert *bert)
{
    const char *act = NULL, *position = NULL;
    double epsilon = 0;
    for (size_t i = 0; i < sizeof not_built / sizeof not_built[0]; i++)
        MHA_TRY(mhai_config_unset(config, not_built[i]));
    MHA_TRY(mhai_config_number(config, "layer_norm_eps", 1e-12, &epsilon));
    bert->epsilon = epsilon <= 1 ? (float)epsilon : 1;
    if (epsilon > 1)
        return mha_fail(MHA_ERR_MODEL, "%s: layer_norm_eps is %g, expected 0..1",
                        mhai_show_path(config->path).text, epsilon);
    MHA_TRY(mhai_config_text(config, "position_embedding_type", "absolute", &position));
    if (strcmp(position, "absolute") != 0)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "%s: position_embedding_type '%s' is not supported; known: absolute",
                        mhai_show_path(config->path).text, mhai_show_name(position).text);
    MHA_TRY(mhai_config_text(config, "hidden_act", "gelu", &act));
    for (int i = 0; i < ACTIVATIONS; i++)
        if (strcmp(act, activations[i].name) == 0) {
            bert->activation = activations[i].activation;
            return MHA_OK;
        }
    return mha_fail(MHA_ERR_UNSUPPORTED, "%s: hidden_act '%s' is not supported; known: gelu, relu",
                    mhai_show_path(config->path).text, mhai_show_name(act).text);
}

/* ---- memory -------------------------------------------------------------------------------- */

static mha_status allocate(const mha_allocator *allocator, int64_t count, size_t size,
                           void **memory)
{
    size_t bytes = (size_t)count * size; /* bounded by a tensor of the file, or by MOST_LAYERS */
    *memory = allocator->alloc(allocator->user, bytes, 64);
    if (!*memory) return mha_fail(MHA_ERR_NOMEM, "model: cannot allocate %zu bytes", bytes);
    memset(*memory, 0, bytes);
    return MHA_OK;
}

static void release_tensor(const mha_allocator *allocator, const mha_tensor *tensor, int64_t rows)
{
    if (tensor->data)
        allocator->release(allocator->user, tensor->data,
                           (size_t)(rows * tensor->shape[tensor->ndim - 1]) * sizeof(float));
}

static void release_norm(const mha_allocator *allocator, const mhai_bert_norm *norm)
{
    release_tensor(allocator, &norm->weight, 2); /* bias lies behind weight */
}

static void destroy(void *body)
{
    mhai_bert *bert = body;
    if (!bert) return;
    mha_allocator a = bert->allocator;
    for (int64_t i = 0; bert->layer && i < bert->layers; i++) {
        mha_module_destroy(bert->layer[i].attention);
        mha_linear_destroy(bert->layer[i].up);
        mha_linear_destroy(bert->layer[i].down);
        release_norm(&a, &bert->layer[i].attention_norm);
        release_norm(&a, &bert->layer[i].output_norm);
    }
    if (bert->layer) a.release(a.user, bert->layer, (size_t)bert->layers * sizeof *bert->layer);
    release_norm(&a, &bert->embedding_norm);
    release_tensor(&a, &bert->word, bert->word.shape[0]);
    release_tensor(&a, &bert->position, bert->position.shape[0]);
    release_tensor(&a, &bert->type, bert->type.shape[0]);
    a.release(a.user, bert, sizeof *bert);
}

/* ---- weights ------------------------------------------------------------------------------- */

static mha_status load_table(mhai_weights *weights, const mhai_bert *bert, const char *name,
                             int64_t rows, mha_tensor *table)
{
    mha_tensor to = mha_tensor_contiguous(NULL, MHA_F32, 2, (int64_t[]){rows, bert->width});
    MHA_TRY(mhai_weights_read(weights, name, &to)); /* the file vouches for what is allocated */
    MHA_TRY(allocate(&bert->allocator, rows * bert->width, sizeof(float), &to.data));
    *table = to;
    return mhai_weights_read(weights, name, table);
}

/* base + ".weight" and base + ".bias"; old checkpoints call a norm's gamma and beta. */
static mha_status load_norm(mhai_weights *weights, const mhai_bert *bert, const char *base,
                            mhai_bert_norm *norm)
{
    char name[2][NAME_BYTES];
    void *memory = NULL;
    snprintf(name[0], NAME_BYTES, "%s.gamma", base);
    bool old = mhai_weights_have(weights, name[0]);
    snprintf(name[0], NAME_BYTES, "%s.%s", base, old ? "gamma" : "weight");
    snprintf(name[1], NAME_BYTES, "%s.%s", base, old ? "beta" : "bias");
    MHA_TRY(allocate(&bert->allocator, 2 * bert->width, sizeof(float), &memory));
    norm->weight = mha_tensor_contiguous(memory, MHA_F32, 1, &bert->width);
    norm->bias = mha_tensor_contiguous((float *)memory + bert->width, MHA_F32, 1, &bert->width);
    MHA_TRY(mhai_weights_read(weights, name[0], &norm->weight));
    return mhai_weights_read(weights, name[1], &norm->bias);
}

static mha_status load_linear(mha_context *context, mhai_weights *weights, const char *base,
                              int64_t outputs, int64_t inputs, mha_linear **linear)
{
    char name[NAME_BYTES];
    mha_tensor weight, bias;
    snprintf(name, sizeof name, "%s.weight", base);
    MHA_TRY(mhai_weights_matrix(weights, name, outputs, inputs, &weight));
    snprintf(name, sizeof name, "%s.bias", base);
    MHA_TRY(mhai_weights_vector(weights, name, outputs, &bias));
    return mha_linear_create(context, &weight, &bias, linear);
}

static mha_status load_attention(mha_context *context, mhai_weights *weights, const mhai_bert *bert,
                                 int64_t layer, mha_module **module)
{
    static const char *const names[][2] = {{"self.query", "q_proj"},
                                           {"self.key", "k_proj"},
                                           {"self.value", "v_proj"},
                                           {"output.dense", "out_proj"}};
    const mha_module_desc desc = {
        .struct_size = sizeof desc, .embed_dim = bert->width, .num_heads = bert->heads};
    for (int i = 0; i < 4; i++) {
        char name[NAME_BYTES], parameter[32];
        mha_tensor weight, bias;
        snprintf(name, sizeof name, "encoder.layer.%lld.attention.%s.weight", (long long)layer,
                 names[i][0]);
        MHA_TRY(mhai_weights_matrix(weights, name, bert->width, bert->width, &weight));
        snprintf(name, sizeof name, "encoder.layer.%lld.attention.%s.bias", (long long)layer,
                 names[i][0]);
        MHA_TRY(mhai_weights_vector(weights, name, bert->width, &bias));
        if (i == 0) MHA_TRY(mha_module_create(context, &desc, module));
        snprintf(parameter, sizeof parameter, "%s.weight", names[i][1]);
        MHA_TRY(mha_module_set_parameter(*module, parameter, &weight));
        snprintf(parameter, sizeof parameter, "%s.bias", names[i][1]);
        MHA_TRY(mha_module_set_parameter(*module, parameter, &bias));
    }
    return MHA_OK;
}

static mha_status load_layer(mha_context *context, mhai_weights *weights, const mhai_bert *bert,
                             int64_t index)
{
    mhai_bert_layer *layer = &bert->layer[index];
    char base[LAYER_BYTES], name[PART_BYTES];
    snprintf(base, sizeof base, "encoder.layer.%lld", (long long)index);
    MHA_TRY(load_attention(context, weights, bert, index, &layer->attention));
    snprintf(name, sizeof name, "%s.attention.output.LayerNorm", base);
    MHA_TRY(load_norm(weights, bert, name, &layer->attention_norm));
    snprintf(name, sizeof name, "%s.intermediate.dense", base);
    MHA_TRY(load_linear(context, weights, name, bert->inner, bert->width, &layer->up));
    snprintf(name, sizeof name, "%s.output.dense", base);
    MHA_TRY(load_linear(context, weights, name, bert->width, bert->inner, &layer->down));
    snprintf(name, sizeof name, "%s.output.LayerNorm", base);
    return load_norm(weights, bert, name, &layer->output_norm);
}

static mha_status load_embeddings(mhai_weights *weights, const mha_model_info *info,
                                  mhai_bert *bert)
{
    MHA_TRY(load_table(weights, bert, "embeddings.word_embeddings.weight", info->vocab_size,
                       &bert->word));
    MHA_TRY(load_table(weights, bert, "embeddings.position_embeddings.weight", info->max_positions,
                       &bert->position));
    MHA_TRY(load_table(weights, bert, "embeddings.token_type_embeddings.weight",
                       info->type_vocab_size, &bert->type));
    return load_norm(weights, bert, "embeddings.LayerNorm", &bert->embedding_norm);
}

static mha_status check_depth(const mhai_weights *weights, int64_t layers)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "encoder.layer.%lld.attention.self.query.weight",
             (long long)layers);
    if (!mhai_weights_have(weights, name)) return MHA_OK;
    return mha_fail(MHA_ERR_MODEL,
                    "%s: has weight '%s%s', but config.json's num_hidden_layers is %lld; take the "
                    "config.json that came with the weights",
                    mhai_show_path(weights->path).text, weights->prefix, name, (long long)layers);
}

static mha_status load(mha_context *context, const mhai_config *config, mhai_weights *weights,
                       mha_model *model)
{
    mha_model_info *info = &model->info;
    void *memory = NULL;
    MHA_TRY(allocate(&model->allocator, 1, sizeof(mhai_bert), &memory));
    mhai_bert *bert = model->body = memory;
    bert->allocator = model->allocator;
    MHA_TRY(read_sizes(config, info));
    MHA_TRY(read_choices(config, bert));
    bert->heads = info->heads;
    bert->width = info->hidden_size;
    bert->inner = info->intermediate_size;
    /* BertModel saves bare names, models with a head on it put "bert." in front. */
    weights->prefix = "bert.";
    if (!mhai_weights_have(weights, "embeddings.word_embeddings.weight")) weights->prefix = "";
    MHA_TRY(check_depth(weights, info->layers));
    MHA_TRY(load_embeddings(weights, info, bert));
    MHA_TRY(allocate(&bert->allocator, info->layers, sizeof(mhai_bert_layer), &memory));
    bert->layer = memory;
    bert->layers = info->layers;
    for (int64_t i = 0; i < bert->layers; i++) MHA_TRY(load_layer(context, weights, bert, i));
    return MHA_OK;
}

const mhai_arch mhai_arch_bert = {"bert", load, mhai_bert_forward, destroy};
