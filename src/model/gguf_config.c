/* See gguf_config.h. The keys are those that llama.cpp's converters write. */
#include "model/gguf_config.h"

#include "io/file.h"

#include <multihead/component.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- names of weights ---------------------------------------------------------------------- */

#define COMMON                                                                              \
    MHAI_NAME("embed_tokens", "token_embd"), MHAI_NAME("embed_positions", "position_embd"), \
        MHAI_NAME("norm", "output_norm"), MHAI_NAME("lm_head", "output"),                   \
        MHAI_NAME("self_attn_norm", "attn_norm"),                                           \
        MHAI_NAME("self_attn_post_norm", "post_attention_norm"),                            \
        MHAI_NAME("mlp_norm", "ffn_norm"), MHAI_NAME("mlp_post_norm", "post_ffw_norm"),     \
        MHAI_NAME("self_attn.o_proj", "attn_output"),                                       \
        MHAI_NAME("self_attn.q_norm", "attn_q_norm"),                                       \
        MHAI_NAME("self_attn.k_norm", "attn_k_norm"), MHAI_NAME("mlp.down_proj", "ffn_down")
#define GATED MHAI_NAME("mlp.gate_proj", "ffn_gate"), MHAI_NAME("mlp.up_proj", "ffn_up")
#define FUSED                                            \
    {"self_attn.q_proj", "attn_qkv", MHAI_FUSED, 0},     \
        {"self_attn.k_proj", "attn_qkv", MHAI_FUSED, 1}, \
    {                                                    \
        "self_attn.v_proj", "attn_qkv", MHAI_FUSED, 2    \
    }
#define END MHAI_NAME(NULL, NULL)

static const mhai_weight_name plain_names[] = {COMMON,
                                               GATED,
                                               MHAI_NAME("self_attn.q_proj", "attn_q"),
                                               MHAI_NAME("self_attn.k_proj", "attn_k"),
                                               MHAI_NAME("self_attn.v_proj", "attn_v"),
                                               END};
/* Rotated pairs stand beside each other here. */
static const mhai_weight_name llama_names[] = {COMMON,
                                               GATED,
                                               {"self_attn.q_proj", "attn_q", MHAI_PAIRED_ROWS, 0},
                                               {"self_attn.k_proj", "attn_k", MHAI_PAIRED_ROWS, 0},
                                               MHAI_NAME("self_attn.v_proj", "attn_v"),
                                               END};
static const mhai_weight_name fused_names[] = {COMMON, GATED, FUSED, END};
static const mhai_weight_name phi3_names[] = {COMMON,
                                              FUSED,
                                              {"mlp.gate_proj", "ffn_up", MHAI_FUSED, 0},
                                              {"mlp.up_proj", "ffn_up", MHAI_FUSED, 1},
                                              END};

/* ---- architectures ------------------------------------------------------------------------- */

static const struct architecture {
    const char *name, *model_type;
    const mhai_weight_name *names;
    int64_t largest; /* layers of the model whose scale is E / H instead of D (Gemma, 27B) */
} architectures[] = {
    {"llama", "llama", llama_names, 0},     {"qwen2", "qwen2", plain_names, 0},
    {"qwen3", "qwen3", plain_names, 0},     {"gemma", "gemma", plain_names, 0},
    {"gemma2", "gemma2", plain_names, 46},  {"gemma3", "gemma3_text", plain_names, 62},
    {"phi3", "phi3", phi3_names, 0},        {"gpt2", "gpt2", fused_names, 0},
    {"gptneox", "gpt_neox", fused_names, 0}};

enum { ARCHITECTURES = sizeof architectures / sizeof architectures[0] };

mhai_family mhai_gguf_family(const mhai_family *family)
{
    mhai_family own = *family;
    for (int i = 0; i < ARCHITECTURES; i++)
        if (strcmp(architectures[i].model_type, family->model_type) == 0)
            own.names = architectures[i].names;
    own.layers = "blk.";
    own.prefix = "";
    return own;
}

/* ---- metadata ------------------------------------------------------------------------------ */

/* Keys after "llama.", and the fields of config.json that say the same in some family. */
static const struct {
    const char *key;
    bool required, real;
    const char *fields[3];
} rows[] = {
    {"block_count", true, false, {"num_hidden_layers", "n_layer", NULL}},
    {"context_length", true, false, {"max_position_embeddings", "n_positions", NULL}},
    {"embedding_length", true, false, {"hidden_size", "n_embd", NULL}},
    {"feed_forward_length", true, false, {"intermediate_size", "n_inner", NULL}},
    {"attention.head_count", true, false, {"num_attention_heads", "n_head", NULL}},
    {"attention.head_count_kv", false, false, {"num_key_value_heads", NULL, NULL}},
    {"attention.key_length", false, false, {"head_dim", NULL, NULL}},
    {"attention.sliding_window", false, false, {"sliding_window", NULL, NULL}},
    {"attention.layer_norm_rms_epsilon", false, true, {"rms_norm_eps", NULL, NULL}},
    {"attention.layer_norm_epsilon", false, true, {"layer_norm_eps", "layer_norm_epsilon", NULL}},
    {"rope.freq_base", false, true, {"rope_theta", NULL, NULL}},
    {"attn_logit_softcapping", false, true, {"attn_logit_softcapping", NULL, NULL}},
    {"final_logit_softcapping", false, true, {"final_logit_softcapping", NULL, NULL}}};

typedef struct reading {
    const mha_gguf *file;
    const char *path;
    const struct architecture *of;
    json_t *root;
} reading;

static mha_status no_memory(void)
{
    return mha_fail(MHA_ERR_NOMEM, "model: cannot allocate its tables");
}

/* The value of "llama.KEY"; false: there is none. */
static bool find(const reading *r, const char *key, mha_gguf_value *value)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%s", r->of->name, key);
    return mha_gguf_key_find(r->file, full) >= 0 &&
           mha_gguf_value_of(r->file, full, value) == MHA_OK;
}

/* One number for all layers. */
static mha_status read_value(const reading *r, const mha_gguf_value *value, bool real,
                             json_t **number)
{
    double x = 0;
    int64_t n = 0;
    if (value->array)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "%s: '%s' differs from layer to layer, which is not supported",
                        mhai_show_path(r->path).text, mhai_show_name(value->key).text);
    if (real)
        MHA_TRY(mha_gguf_real(value, 0, &x));
    else
        MHA_TRY(mha_gguf_integer(value, 0, 0, INT64_MAX, &n));
    *number = real ? json_real(x) : json_integer((json_int_t)n);
    if (*number) return MHA_OK;
    return isfinite(x) ? no_memory()
                       : mha_fail(MHA_ERR_MODEL, "%s: '%s' is not a finite number",
                                  mhai_show_path(r->path).text, mhai_show_name(value->key).text);
}

static mha_status read_rows(const reading *r)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        mha_gguf_value value;
        if (!find(r, rows[i].key, &value)) {
            if (rows[i].required)
                return mha_fail(MHA_ERR_MODEL, "%s: key '%s.%s' is missing",
                                mhai_show_path(r->path).text, r->of->name, rows[i].key);
            continue;
        }
        for (int k = 0; rows[i].fields[k]; k++) {
            json_t *number;
            MHA_TRY(read_value(r, &value, rows[i].real, &number));
            if (!mhai_put(r->root, rows[i].fields[k], number)) return no_memory();
        }
    }
    return MHA_OK;
}

static int64_t count_of(const reading *r, const char *field)
{
    return (int64_t)json_integer_value(json_object_get(r->root, field));
}

/* How many of a head's numbers rotate, and how far. */
static mha_status read_rotation(const reading *r)
{
    const int64_t heads = count_of(r, "num_attention_heads");
    const int64_t width = count_of(r, "head_dim") ? count_of(r, "head_dim")
                          : heads > 0             ? count_of(r, "hidden_size") / heads
                                                  : 0;
    const char *type = "linear"; /* as llama.cpp has it */
    size_t size = 6;
    mha_gguf_value value, scale;
    int64_t rotated;
    json_t *factor;
    if (find(r, "rope.dimension_count", &value)) {
        MHA_TRY(mha_gguf_integer(&value, 0, 1, MHAI_MOST_WIDTH, &rotated));
        if (width > 0 && rotated > width)
            return mha_fail(
                MHA_ERR_MODEL, "%s: '%s.rope.dimension_count' is %lld, but a head has %lld numbers",
                mhai_show_path(r->path).text, r->of->name, (long long)rotated, (long long)width);
        /* the half: times the width, the quotient alone may be less than the count */
        if (rotated < width && !mhai_put(r->root, "partial_rotary_factor",
                                         json_real(((double)rotated + 0.5) / (double)width)))
            return no_memory();
    }
    if (mha_gguf_find(r->file, "rope_freqs.weight") >= 0 ||
        mha_gguf_find(r->file, "rope_factors_long.weight") >= 0)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "%s: a rotation with factors of its own for each pair (rope_freqs, "
                        "rope_factors_long) is not supported; take the model's folder",
                        mhai_show_path(r->path).text);
    const bool typed = find(r, "rope.scaling.type", &value);
    const bool scaled = find(r, "rope.scaling.factor", &scale) ||
                        find(r, "rope.scale_linear", &scale); /* files before scaling.type */
    if (typed) MHA_TRY(mha_gguf_string(&value, 0, &type, &size));
    if ((!typed && !scaled) || (size == 4 && memcmp(type, "none", 4) == 0)) return MHA_OK;
    if (size != 6 || memcmp(type, "linear", 6) != 0 || !scaled)
        return mha_fail(
            MHA_ERR_UNSUPPORTED,
            "%s: '%s.rope.scaling.type' is not supported here; known: none, linear (with "
            "a factor); take the model's folder",
            mhai_show_path(r->path).text, r->of->name);
    MHA_TRY(read_value(r, &scale, true, &factor));
    json_t *scaling = json_object();
    const bool good =
        mhai_put(scaling, "factor", factor) && mhai_put_text(scaling, "rope_type", "linear");
    return good && mhai_put(r->root, "rope_scaling", scaling) ? MHA_OK : no_memory();
}

/* What weights tell: the output, biases, the vocabulary. */
static mha_status read_weights(const reading *r)
{
    mha_gguf_tensor table;
    const int64_t at = mha_gguf_find(r->file, "token_embd.weight");
    if (at < 0)
        return mha_fail(MHA_ERR_MODEL, "%s: weight 'token_embd.weight' is missing",
                        mhai_show_path(r->path).text);
    MHA_TRY(mha_gguf_describe(r->file, at, &table));
    const bool tied = mha_gguf_find(r->file, "output.weight") < 0;
    const bool biased = mha_gguf_find(r->file, "blk.0.attn_q.bias") >= 0 ||
                        mha_gguf_find(r->file, "blk.0.attn_qkv.bias") >= 0;
    if (!mhai_put_count(r->root, "vocab_size", table.dims[1]) ||
        !mhai_put_bool(r->root, "tie_word_embeddings", tied) ||
        !mhai_put_bool(r->root, "attention_bias", biased))
        return no_memory();
    return MHA_OK;
}

/* What llama.cpp knows without being told. */
static mha_status add_known(const reading *r)
{
    const int64_t heads = count_of(r, "num_attention_heads"), width = count_of(r, "hidden_size");
    mha_gguf_value value;
    bool parallel = true;
    if (find(r, "use_parallel_residual", &value)) MHA_TRY(mha_gguf_bool(&value, 0, &parallel));
    if (!mhai_put_bool(r->root, "use_parallel_residual", parallel)) return no_memory();
    if (r->of->largest == 0 || heads == 0) return MHA_OK;
    const bool by_width = count_of(r, "num_hidden_layers") == r->of->largest;
    const int64_t dim = count_of(r, "head_dim");
    return mhai_put_count(r->root, "query_pre_attn_scalar",
                          by_width || dim == 0 ? width / heads : dim)
               ? MHA_OK
               : no_memory();
}

static mha_status find_architecture(reading *r)
{
    mha_gguf_value value;
    const char *name;
    size_t size;
    char known[160] = "", found[48];
    MHA_TRY(mha_gguf_value_of(r->file, "general.architecture", &value));
    MHA_TRY(mha_gguf_string(&value, 0, &name, &size));
    for (int i = 0; i < ARCHITECTURES; i++) {
        const char *own = architectures[i].name;
        if (strlen(own) == size && memcmp(own, name, size) == 0) r->of = &architectures[i];
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", own);
    }
    if (r->of) return MHA_OK;
    snprintf(found, sizeof found, "%.*s", (int)(size < 40 ? size : 40), name);
    return mha_fail(MHA_ERR_UNSUPPORTED,
                    "%s: general.architecture '%s' is not supported; known: %s",
                    mhai_show_path(r->path).text, mhai_show_name(found).text, known);
}

mha_status mhai_gguf_status(mha_status status)
{
    const bool value =
        status == MHA_ERR_ARGUMENT || status == MHA_ERR_DTYPE || status == MHA_ERR_NUMERIC;
    return value ? MHA_ERR_MODEL : status;
}

mha_status mhai_gguf_config(const mha_gguf *file, const char *path, json_t **root)
{
    reading r = {.file = file, .path = path};
    mha_status status = find_architecture(&r);
    r.root = status == MHA_OK ? json_object() : NULL;
    if (status == MHA_OK && !mhai_put_text(r.root, "model_type", r.of->model_type))
        status = no_memory();
    if (status == MHA_OK) status = read_rows(&r);
    if (status == MHA_OK) status = read_rotation(&r);
    if (status == MHA_OK) status = read_weights(&r);
    if (status == MHA_OK) status = add_known(&r);
    if (status == MHA_OK)
        *root = r.root;
    else
        json_decref(r.root);
    return mhai_gguf_status(status);
}
