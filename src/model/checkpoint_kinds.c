/* The kinds of folders that transformers are saved as: which transformer is which kind, the fields
 * of its config.json both ways, and the names of its weights. */
#include "io/file.h"
#include "model/checkpoint_parts.h"

#include <multihead/component.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Far beyond every published model. Positions have a bound of their own, since no weight of the
 * file vouches for them when they are rotary. */
enum {
    MOST_LAYERS = 4096,
    MOST_WIDTH = 1 << 20,
    MOST_ENTRIES = INT32_MAX,
    MOST_POSITIONS = 1 << 20
};

static bool has(const mha_transformer_desc *d, uint32_t flag)
{
    return (d->flags & flag) != 0;
}

/* ---- fields -------------------------------------------------------------------------------- */

bool mhai_checkpoint_put(json_t *object, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value) == 0;
}

json_t *mhai_checkpoint_real(float value)
{
    char text[40];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (!(strtof(text, NULL) < value) && !(strtof(text, NULL) > value)) break;
    }
    return json_real(strtod(text, NULL));
}

static bool put_count(json_t *root, const char *key, int64_t value)
{
    return mhai_checkpoint_put(root, key, json_integer(value));
}

static bool put_bool(json_t *root, const char *key, bool value)
{
    return mhai_checkpoint_put(root, key, json_boolean(value));
}

static bool put_text(json_t *root, const char *key, const char *value)
{
    return mhai_checkpoint_put(root, key, json_string(value));
}

static bool put_list_of_one(json_t *root, const char *key, const char *value)
{
    json_t *list = json_array();
    if (list && json_array_append_new(list, json_string(value)) == 0)
        return mhai_checkpoint_put(root, key, list);
    json_decref(list);
    return false;
}

static bool absent(const mhai_config *config, const char *key)
{
    const json_t *value = json_object_get(config->root, key);
    return !value || json_is_null(value);
}

static mha_status read_count(const mhai_config *config, const char *key, int64_t low, int64_t high,
                             int64_t fallback, int64_t *value)
{
    *value = fallback;
    return absent(config, key) ? MHA_OK : mhai_config_count(config, key, low, high, value);
}

static mha_status read_bool(const mhai_config *config, const char *key, bool fallback, bool *value)
{
    const json_t *found = json_object_get(config->root, key);
    *value = absent(config, key) ? fallback : json_is_true(found);
    if (absent(config, key) || json_is_boolean(found)) return MHA_OK;
    return mha_fail(MHA_ERR_MODEL, "%s: '%s' is neither true nor false",
                    mhai_show_path(config->path).text, key);
}

/* A number that becomes a float, from low to high and not 0. */
static mha_status read_real(const mhai_config *config, const char *key, double fallback, double low,
                            double high, float *value)
{
    double number = 0;
    MHA_TRY(mhai_config_number(config, key, fallback, &number));
    *value = number <= high ? (float)number : 0;
    if (*value > 0 && number >= low && number <= high) return MHA_OK;
    return mha_fail(MHA_ERR_MODEL, "%s: '%s' is %g, expected more than %g, at most %g",
                    mhai_show_path(config->path).text, key, number, low, high);
}

/* The place of a text field among count known ones. */
static mha_status read_choice(const mhai_config *config, const char *key, const char *fallback,
                              const char *const *known, int count, int *choice)
{
    const char *text = NULL;
    char list[128] = "";
    MHA_TRY(mhai_config_text(config, key, fallback, &text));
    for (int i = 0; i < count; i++) {
        *choice = i;
        if (strcmp(text, known[i]) == 0) return MHA_OK;
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", known[i]);
    }
    return mha_fail(MHA_ERR_UNSUPPORTED, "%s: %s '%s' is not supported; known: %s",
                    mhai_show_path(config->path).text, key, mhai_show_name(text).text, list);
}

/* The fields that llama and bert call alike. */
static bool write_sizes(const mha_transformer_desc *d, json_t *root)
{
    return put_count(root, "vocab_size", d->vocab_size) &&
           put_count(root, "hidden_size", d->embed_dim) &&
           put_count(root, "intermediate_size", d->ff_dim) &&
           put_count(root, "num_hidden_layers", d->num_layers) &&
           put_count(root, "num_attention_heads", d->num_heads) &&
           put_count(root, "max_position_embeddings", d->max_length) &&
           put_text(root, "dtype", "float32") && put_text(root, "torch_dtype", "float32");
}

static mha_status read_sizes(const mhai_config *config, mha_transformer_desc *d)
{
    MHA_TRY(mhai_config_count(config, "vocab_size", 1, MOST_ENTRIES, &d->vocab_size));
    MHA_TRY(mhai_config_count(config, "hidden_size", 1, MOST_WIDTH, &d->embed_dim));
    MHA_TRY(mhai_config_count(config, "intermediate_size", 1, MOST_WIDTH, &d->ff_dim));
    MHA_TRY(mhai_config_count(config, "num_hidden_layers", 1, MOST_LAYERS, &d->num_layers));
    MHA_TRY(mhai_config_count(config, "num_attention_heads", 1, MOST_WIDTH, &d->num_heads));
    return mhai_config_count(config, "max_position_embeddings", 1, MOST_POSITIONS, &d->max_length);
}

static mha_status refuse(const mhai_config *config, const char *const *keys)
{
    for (; *keys; keys++) MHA_TRY(mhai_config_unset(config, *keys));
    return MHA_OK;
}

/* ---- llama --------------------------------------------------------------------------------- */

static const char *const llama_names[][2] = {{"embed_tokens", "model.embed_tokens"},
                                             {"self_attn_norm", "input_layernorm"},
                                             {"mlp_norm", "post_attention_layernorm"},
                                             {"norm", "model.norm"},
                                             {NULL, NULL}};

static bool fits_llama(const mha_transformer_desc *d)
{
    const uint32_t others = MHA_TRANSFORMER_POST_NORM | MHA_TRANSFORMER_EMBEDDING_NORM |
                            MHA_TRANSFORMER_CROSS | MHA_TRANSFORMER_NO_OUTPUT;
    return has(d, MHA_TRANSFORMER_CAUSAL) && !has(d, others) && !d->layer_heads &&
           d->norm == MHA_NORM_RMS && d->positions == MHA_ENCODING_ROTARY && d->ff_dim > 0 &&
           d->feed_forward == MHA_FEED_FORWARD_SWIGLU;
}

/* transformers 4 wants rope_theta, transformers 5 rope_parameters. */
static bool write_rope(const mha_transformer_desc *d, json_t *root)
{
    json_t *rope = json_object();
    if (!rope || !mhai_checkpoint_put(rope, "rope_theta", mhai_checkpoint_real(d->rope_base)) ||
        !put_text(rope, "rope_type", "default")) {
        json_decref(rope);
        return false;
    }
    return mhai_checkpoint_put(root, "rope_theta", mhai_checkpoint_real(d->rope_base)) &&
           mhai_checkpoint_put(root, "rope_parameters", rope);
}

static bool write_llama(const mha_transformer_desc *d, json_t *root)
{
    return put_list_of_one(root, "architectures", "LlamaForCausalLM") && write_sizes(d, root) &&
           put_count(root, "num_key_value_heads", d->kv_heads) &&
           put_count(root, "head_dim", d->head_dim) && put_text(root, "hidden_act", "silu") &&
           mhai_checkpoint_put(root, "rms_norm_eps", mhai_checkpoint_real(d->norm_epsilon)) &&
           put_bool(root, "attention_bias", has(d, MHA_TRANSFORMER_BIAS)) &&
           put_bool(root, "mlp_bias", has(d, MHA_TRANSFORMER_BIAS)) &&
           put_bool(root, "tie_word_embeddings", has(d, MHA_TRANSFORMER_TIED)) &&
           write_rope(d, root);
}

static mha_status read_rope(const mhai_config *config, mha_transformer_desc *d)
{
    static const char *const types[] = {"default"};
    static const char *const old[] = {"rope_scaling", NULL};
    const mhai_config inner = {config->path, json_object_get(config->root, "rope_parameters")};
    const bool nested = !absent(config, "rope_parameters");
    double base = 1e4, partial = 1;
    int unused;
    if (nested && !json_is_object(inner.root))
        return mha_fail(MHA_ERR_MODEL, "%s: 'rope_parameters' is no JSON object",
                        mhai_show_path(config->path).text);
    if (nested) MHA_TRY(read_choice(&inner, "rope_type", types[0], types, 1, &unused));
    if (!nested) MHA_TRY(refuse(config, old));
    MHA_TRY(mhai_config_number(config, "partial_rotary_factor", 1, &partial));
    if (nested) MHA_TRY(mhai_config_number(&inner, "partial_rotary_factor", partial, &partial));
    if (partial < 1 || partial > 1)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "%s: 'partial_rotary_factor' is %g; only whole heads are turned (1)",
                        mhai_show_path(config->path).text, partial);
    MHA_TRY(mhai_config_number(config, "rope_theta", base, &base));
    return read_real(nested ? &inner : config, "rope_theta", base, 1, 3e38, &d->rope_base);
}

static mha_status read_llama_kinds(const mhai_config *config, mhai_checkpoint_plan *plan)
{
    static const char *const refused[] = {"quantization_config", "is_encoder_decoder", NULL};
    static const char *const acts[] = {"silu", "swish"};
    mha_transformer_desc *d = &plan->desc;
    bool attention, mlp, tied;
    int unused;
    MHA_TRY(refuse(config, refused));
    MHA_TRY(read_choice(config, "hidden_act", "silu", acts, 2, &unused));
    MHA_TRY(read_bool(config, "attention_bias", false, &attention));
    MHA_TRY(read_bool(config, "mlp_bias", false, &mlp));
    MHA_TRY(read_bool(config, "tie_word_embeddings", false, &tied));
    d->flags = MHA_TRANSFORMER_CAUSAL;
    if (attention || mlp) d->flags |= MHA_TRANSFORMER_BIAS;
    if (tied) d->flags |= MHA_TRANSFORMER_TIED;
    plan->no_attention_bias = !attention;
    plan->no_mlp_bias = !mlp;
    return MHA_OK;
}

static mha_status read_llama(const mhai_config *config, mhai_checkpoint_plan *plan)
{
    mha_transformer_desc *d = &plan->desc;
    d->norm = MHA_NORM_RMS;
    d->positions = MHA_ENCODING_ROTARY;
    d->feed_forward = MHA_FEED_FORWARD_SWIGLU;
    MHA_TRY(read_sizes(config, d));
    MHA_TRY(read_count(config, "num_key_value_heads", 1, MOST_WIDTH, 0, &d->kv_heads));
    MHA_TRY(read_count(config, "head_dim", 1, MOST_WIDTH, 0, &d->head_dim));
    MHA_TRY(read_real(config, "rms_norm_eps", 1e-6, 0, 1, &d->norm_epsilon));
    MHA_TRY(read_rope(config, d));
    return read_llama_kinds(config, plan);
}

/* Tables of frequencies in old files, and a copy of the embeddings that is one by config.json. */
static bool llama_ignores(const mhai_checkpoint_plan *plan, const char *name)
{
    static const char old[] = ".rotary_emb.inv_freq";
    const size_t length = strlen(name), tail = sizeof old - 1;
    if (length > tail && strcmp(name + length - tail, old) == 0) return true;
    return has(&plan->desc, MHA_TRANSFORMER_TIED) && strcmp(name, "lm_head.weight") == 0;
}

/* ---- bert ---------------------------------------------------------------------------------- */

static const char *const bert_names[][2] = {{"embed_tokens", "embeddings.word_embeddings"},
                                            {"embed_positions", "embeddings.position_embeddings"},
                                            {"embed_norm", "embeddings.LayerNorm"},
                                            {"self_attn.q_proj", "attention.self.query"},
                                            {"self_attn.k_proj", "attention.self.key"},
                                            {"self_attn.v_proj", "attention.self.value"},
                                            {"self_attn.o_proj", "attention.output.dense"},
                                            {"self_attn_norm", "attention.output.LayerNorm"},
                                            {"mlp.up_proj", "intermediate.dense"},
                                            {"mlp.down_proj", "output.dense"},
                                            {"mlp_norm", "output.LayerNorm"},
                                            {NULL, NULL}};

/* Of a field of our own, multihead_output. */
static const char *const outputs[] = {"none", "tied", "own"};

static bool fits_bert(const mha_transformer_desc *d)
{
    const uint32_t wanted =
        MHA_TRANSFORMER_POST_NORM | MHA_TRANSFORMER_EMBEDDING_NORM | MHA_TRANSFORMER_BIAS;
    return (d->flags & wanted) == wanted && !d->layer_heads &&
           !has(d, MHA_TRANSFORMER_CAUSAL | MHA_TRANSFORMER_CROSS) && d->norm == MHA_NORM_LAYER &&
           d->positions == MHA_ENCODING_LEARNED && d->ff_dim > 0 &&
           d->feed_forward != MHA_FEED_FORWARD_SWIGLU && d->kv_heads == d->num_heads &&
           d->head_dim * d->num_heads == d->embed_dim;
}

static bool write_bert(const mha_transformer_desc *d, json_t *root)
{
    const char *output = has(d, MHA_TRANSFORMER_NO_OUTPUT) ? outputs[0]
                         : has(d, MHA_TRANSFORMER_TIED)    ? outputs[1]
                                                           : outputs[2];
    return put_list_of_one(root, "architectures", "BertModel") && write_sizes(d, root) &&
           put_text(root, "hidden_act",
                    d->feed_forward == MHA_FEED_FORWARD_GELU ? "gelu" : "relu") &&
           mhai_checkpoint_put(root, "layer_norm_eps", mhai_checkpoint_real(d->norm_epsilon)) &&
           put_count(root, "type_vocab_size", 2) &&
           put_text(root, "position_embedding_type", "absolute") &&
           put_text(root, "multihead_output", output);
}

static mha_status read_bert(const mhai_config *config, mhai_checkpoint_plan *plan)
{
    static const char *const refused[] = {"is_decoder",          "add_cross_attention",
                                          "is_encoder_decoder",  "pruned_heads",
                                          "quantization_config", NULL};
    static const char *const acts[] = {"gelu", "relu"}, *const absolute[] = {"absolute"};
    mha_transformer_desc *d = &plan->desc;
    int act, output, unused;
    MHA_TRY(refuse(config, refused));
    MHA_TRY(read_sizes(config, d));
    MHA_TRY(read_real(config, "layer_norm_eps", 1e-12, 0, 1, &d->norm_epsilon));
    MHA_TRY(read_choice(config, "position_embedding_type", absolute[0], absolute, 1, &unused));
    MHA_TRY(read_choice(config, "hidden_act", acts[0], acts, 2, &act));
    MHA_TRY(read_choice(config, "multihead_output", outputs[0], outputs, 3, &output));
    d->norm = MHA_NORM_LAYER;
    d->positions = MHA_ENCODING_LEARNED;
    d->feed_forward = act == 0 ? MHA_FEED_FORWARD_GELU : MHA_FEED_FORWARD_RELU;
    d->flags = MHA_TRANSFORMER_POST_NORM | MHA_TRANSFORMER_EMBEDDING_NORM | MHA_TRANSFORMER_BIAS;
    if (output == 0) d->flags |= MHA_TRANSFORMER_NO_OUTPUT;
    if (output == 1) d->flags |= MHA_TRANSFORMER_TIED;
    return MHA_OK;
}

/* Poolers, classifiers, positions; but no layer beyond the last. */
static bool bert_ignores(const mhai_checkpoint_plan *plan, const char *name)
{
    (void)plan;
    const char *layer = strstr(name, "encoder.layer.");
    return layer != name && !(layer == name + 5 && strncmp(name, "bert.", 5) == 0);
}

/* ---- multihead ----------------------------------------------------------------------------- */

static const char *const own_names[][2] = {{NULL, NULL}};
static const char *const norms[] = {"none", "layer", "rms"};
static const char *const positions[] = {"none", "learned", "sinusoidal", "rotary"};
static const char *const feed_forwards[] = {"gelu", "relu", "swiglu"};

static const struct {
    const char *name;
    uint32_t flag;
} flags[] = {{"causal", MHA_TRANSFORMER_CAUSAL},
             {"post_norm", MHA_TRANSFORMER_POST_NORM},
             {"embedding_norm", MHA_TRANSFORMER_EMBEDDING_NORM},
             {"bias", MHA_TRANSFORMER_BIAS},
             {"cross_attention", MHA_TRANSFORMER_CROSS},
             {"tied", MHA_TRANSFORMER_TIED},
             {"no_output", MHA_TRANSFORMER_NO_OUTPUT}};

enum { FLAGS = sizeof flags / sizeof flags[0] };

static bool fits_own(const mha_transformer_desc *d)
{
    (void)d;
    return true;
}

static bool put_list(json_t *root, const char *key, const int64_t *numbers, int64_t count)
{
    json_t *list = json_array();
    for (int64_t i = 0; list && i < count; i++)
        if (json_array_append_new(list, json_integer(numbers[i])) != 0) {
            json_decref(list);
            return false;
        }
    return mhai_checkpoint_put(root, key, list);
}

static bool write_own(const mha_transformer_desc *d, json_t *root)
{
    bool good =
        (!d->layer_heads || (put_list(root, "layer_heads", d->layer_heads, d->num_layers) &&
                             put_list(root, "layer_kv_heads", d->layer_kv_heads, d->num_layers))) &&
        put_list_of_one(root, "architectures", "MultiheadTransformer") &&
        put_count(root, "vocab_size", d->vocab_size) &&
        put_count(root, "max_length", d->max_length) &&
        put_count(root, "embed_dim", d->embed_dim) &&
        put_count(root, "num_layers", d->num_layers) &&
        put_count(root, "num_heads", d->num_heads) && put_count(root, "kv_heads", d->kv_heads) &&
        put_count(root, "head_dim", d->head_dim) && put_count(root, "ff_dim", d->ff_dim) &&
        put_count(root, "memory_dim", d->memory_dim) && put_text(root, "norm", norms[d->norm]) &&
        put_text(root, "positions", positions[d->positions]) &&
        put_text(root, "feed_forward", feed_forwards[d->feed_forward]) &&
        mhai_checkpoint_put(root, "norm_epsilon", mhai_checkpoint_real(d->norm_epsilon)) &&
        mhai_checkpoint_put(root, "rope_base", mhai_checkpoint_real(d->rope_base));
    for (int i = 0; i < FLAGS; i++)
        good = good && put_bool(root, flags[i].name, has(d, flags[i].flag));
    return good;
}

static mha_status read_own_kinds(const mhai_config *config, mha_transformer_desc *d)
{
    int norm, position, feed_forward;
    MHA_TRY(read_choice(config, "norm", NULL, norms, 3, &norm));
    MHA_TRY(read_choice(config, "positions", NULL, positions, 4, &position));
    MHA_TRY(read_choice(config, "feed_forward", feed_forwards[0], feed_forwards, 3, &feed_forward));
    d->norm = (mha_norm)norm;
    d->positions = (mha_position_encoding)position;
    d->feed_forward = (mha_feed_forward)feed_forward;
    MHA_TRY(read_real(config, "norm_epsilon", 1e-5, 0, 1, &d->norm_epsilon));
    MHA_TRY(read_real(config, "rope_base", 1e4, 1, 3e38, &d->rope_base));
    for (int i = 0; i < FLAGS; i++) {
        bool set;
        MHA_TRY(read_bool(config, flags[i].name, false, &set));
        if (set) d->flags |= flags[i].flag;
    }
    return MHA_OK;
}

/* num_layers whole numbers from 0 to most. */
static mha_status read_list(const mhai_config *config, const char *key, int64_t count, int64_t most,
                            int64_t *numbers)
{
    const json_t *list = json_object_get(config->root, key);
    if (!json_is_array(list) || (int64_t)json_array_size(list) != count)
        return mha_fail(MHA_ERR_MODEL, "%s: '%s' is no list of %lld numbers, one for each layer",
                        mhai_show_path(config->path).text, key, (long long)count);
    for (int64_t i = 0; i < count; i++) {
        const json_t *value = json_array_get(list, (size_t)i);
        numbers[i] = (int64_t)json_integer_value(value);
        if (!json_is_integer(value) || numbers[i] < 0 || numbers[i] > most)
            return mha_fail(MHA_ERR_MODEL, "%s: '%s' number %lld is no whole number from 0 to %lld",
                            mhai_show_path(config->path).text, key, (long long)i, (long long)most);
    }
    return MHA_OK;
}

/* Heads by layer. No weight would vouch for a num_heads that no layer has. */
static mha_status read_layers(const mhai_config *config, mhai_checkpoint_plan *plan)
{
    mha_transformer_desc *d = &plan->desc;
    int64_t most = 1;
    if (absent(config, "layer_heads") && absent(config, "layer_kv_heads")) return MHA_OK;
    plan->head_lists = calloc((size_t)d->num_layers, 2 * sizeof *plan->head_lists);
    if (!plan->head_lists) return mha_fail(MHA_ERR_NOMEM, "checkpoint: cannot allocate its tables");
    int64_t *heads = plan->head_lists, *kv = heads + d->num_layers;
    MHA_TRY(read_list(config, "layer_heads", d->num_layers, d->num_heads, heads));
    MHA_TRY(read_list(config, "layer_kv_heads", d->num_layers, d->num_heads, kv));
    for (int64_t i = 0; i < d->num_layers; i++)
        if (heads[i] > most) most = heads[i];
    d->layer_heads = heads;
    d->layer_kv_heads = kv;
    if (most == d->num_heads || has(d, MHA_TRANSFORMER_CROSS)) return MHA_OK;
    return mha_fail(MHA_ERR_MODEL, "%s: 'num_heads' is %lld, but no layer has more than %lld",
                    mhai_show_path(config->path).text, (long long)d->num_heads, (long long)most);
}

static mha_status read_own(const mhai_config *config, mhai_checkpoint_plan *plan)
{
    mha_transformer_desc *d = &plan->desc;
    MHA_TRY(mhai_config_count(config, "vocab_size", 1, MOST_ENTRIES, &d->vocab_size));
    MHA_TRY(mhai_config_count(config, "max_length", 1, MOST_POSITIONS, &d->max_length));
    MHA_TRY(mhai_config_count(config, "embed_dim", 1, MOST_WIDTH, &d->embed_dim));
    MHA_TRY(mhai_config_count(config, "num_layers", 1, MOST_LAYERS, &d->num_layers));
    MHA_TRY(mhai_config_count(config, "num_heads", 1, MOST_WIDTH, &d->num_heads));
    MHA_TRY(read_count(config, "kv_heads", 1, MOST_WIDTH, 0, &d->kv_heads));
    MHA_TRY(read_count(config, "head_dim", 1, MOST_WIDTH, 0, &d->head_dim));
    MHA_TRY(read_count(config, "ff_dim", 0, MOST_WIDTH, 0, &d->ff_dim));
    MHA_TRY(read_count(config, "memory_dim", 0, MOST_WIDTH, 0, &d->memory_dim));
    MHA_TRY(read_own_kinds(config, d));
    return read_layers(config, plan);
}

static bool ignores_none(const mhai_checkpoint_plan *plan, const char *name)
{
    (void)plan;
    (void)name;
    return false;
}

/* ---- the table ----------------------------------------------------------------------------- */

static const mhai_checkpoint_kind kinds[] = {
    {"llama", "model.layers.", "", llama_names, fits_llama, write_llama, read_llama, llama_ignores},
    {"bert", "encoder.layer.", "bert.", bert_names, fits_bert, write_bert, read_bert, bert_ignores},
    {"multihead", "layers.", "", own_names, fits_own, write_own, read_own, ignores_none}};

enum { KINDS = sizeof kinds / sizeof kinds[0] };

const mhai_checkpoint_kind *mhai_checkpoint_kind_of(const mha_transformer_desc *desc)
{
    int i = 0;
    while (i < KINDS - 1 && !kinds[i].fits(desc)) i++;
    return &kinds[i];
}

const mhai_checkpoint_kind *mhai_checkpoint_kind_named(const char *model_type)
{
    for (int i = 0; i < KINDS; i++)
        if (strcmp(kinds[i].model_type, model_type) == 0) return &kinds[i];
    return NULL;
}

void mhai_checkpoint_name(const mhai_checkpoint_kind *kind, const char *ours,
                          char theirs[MHAI_CHECKPOINT_NAME])
{
    int used = 0;
    if (strncmp(ours, "layers.", 7) == 0) {
        const int number = (int)strcspn(ours + 7, ".");
        used = snprintf(theirs, MHAI_CHECKPOINT_NAME, "%s%.*s.", kind->layers, number, ours + 7);
        ours += 7 + number + 1;
    }
    const char *tail = strrchr(ours, '.'); /* ".weight", ".bias" */
    const size_t length = (size_t)(tail - ours);
    for (int i = 0; kind->names[i][0]; i++)
        if (strlen(kind->names[i][0]) == length && strncmp(kind->names[i][0], ours, length) == 0) {
            snprintf(theirs + used, (size_t)(MHAI_CHECKPOINT_NAME - used), "%s%s",
                     kind->names[i][1], tail);
            return;
        }
    snprintf(theirs + used, (size_t)(MHAI_CHECKPOINT_NAME - used), "%s", ours);
}
