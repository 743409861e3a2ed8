/* Loading a transformer. config.json is not believed: before anything of its sizes is allocated,
 * the file of weights must hold as many numbers as it describes. */
#include "io/file.h"
#include "io/json_file.h"
#include "model/checkpoint_parts.h"
#include "model/folder.h"
#include "model/gguf_config.h"
#include "model/model_weights.h"

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
    const char *config; /* the path of config.json, for messages */
    const mha_gguf *gguf;
    const mhai_family *family, *listed; /* listed: as family.c has it */
    mhai_family renamed;
    mhai_family_plan plan;
    mhai_weights weights;
    bool *used;    /* [tensors of the file] */
    int64_t types; /* as config.json says */
    mha_transformer *made;
} loading;

/* ---- the plan ------------------------------------------------------------------------------ */

static bool same_rotation(const mha_layer_desc *a, const mha_layer_desc *b)
{
    const float of_a[] = {a->rope_base, a->rope_factor, a->rope_low, a->rope_high,
                          a->rope_amplitude};
    const float of_b[] = {b->rope_base, b->rope_factor, b->rope_low, b->rope_high,
                          b->rope_amplitude};
    return a->rotary_dim == b->rotary_dim && a->rope_scaling == b->rope_scaling &&
           a->rope_original_length == b->rope_original_length &&
           memcmp(of_a, of_b, sizeof of_a) == 0;
}

/* Layers that rotate in different ways, each with a table. */
static int64_t count_rotations(const mha_transformer_desc *d)
{
    int64_t count = 0;
    for (int64_t i = 0; d->layers && i < d->num_layers; i++) {
        int64_t k = 0;
        const mha_layer_desc *a = &d->layers[i];
        for (const mha_layer_desc *b = d->layers; k < i; k++, b++)
            if (same_rotation(a, b)) break;
        count += k == i;
    }
    return count > 0 ? count : 1;
}

/* Positions that no weight vouches for: tables of angles, for which there is room at least. */
static mha_status check_positions(const mhai_config *config, const mha_transformer_desc *d)
{
    if (d->positions != MHA_ENCODING_ROTARY && d->positions != MHA_ENCODING_SINUSOIDAL)
        return MHA_OK;
    const int64_t width = d->positions == MHA_ENCODING_SINUSOIDAL ? d->embed_dim
                          : d->head_dim                           ? d->head_dim
                                                                  : d->embed_dim / d->num_heads;
    const int64_t tables = count_rotations(d);
    if (d->max_length * width <= MOST_ANGLES / tables) return MHA_OK; /* 2^20 each: no overflow */
    return mha_fail(MHA_ERR_SIZE,
                    "%s: %lld positions of %lld angles in %lld tables are more than the %d "
                    "supported",
                    mhai_show_path(config->path).text, (long long)d->max_length, (long long)width,
                    (long long)tables, MOST_ANGLES);
}

mha_status mhai_checkpoint_read_plan(const mhai_config *config, const mhai_family *family,
                                     mhai_family_plan *plan)
{
    plan->desc.struct_size = sizeof plan->desc;
    MHA_TRY(family->read(config, plan));
    return check_positions(config, &plan->desc);
}

void mhai_checkpoint_free_plan(mhai_family_plan *plan)
{
    free(plan->head_lists);
    free(plan->layers);
}

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
    for (int64_t i = 0; d->layers && i < d->num_layers; i++)
        layers += (double)d->layers[i].t5_buckets *
                  (double)(d->layer_heads ? d->layer_heads[i] : d->num_heads);
    if (d->flags & MHA_TRANSFORMER_CROSS) layer += q + 2 * memory * kv * D;
    const bool gated = d->feed_forward == MHA_FEED_FORWARD_SWIGLU ||
                       d->feed_forward == MHA_FEED_FORWARD_GEGLU ||
                       d->feed_forward == MHA_FEED_FORWARD_GEGLU_TANH;
    layer += (gated ? 3.0 : 2.0) * E * (double)d->ff_dim;
    double all = layers + (double)d->num_layers * layer + (double)d->vocab_size * E;
    if (d->positions == MHA_ENCODING_LEARNED) all += (double)d->max_length * E;
    all += (double)d->type_count * E;
    if (!(d->flags & (MHA_TRANSFORMER_TIED | MHA_TRANSFORMER_NO_OUTPUT)))
        all += (double)d->vocab_size * E;
    return all;
}

static const char *remedy(const loading *l)
{
    return l->gguf ? "fetch the file again" : "take the config.json that came with the weights";
}

static mha_status check_numbers(const loading *l)
{
    const double described = numbers_described(&l->plan.desc);
    double held = 0;
    for (int64_t i = 0; i < l->weights.count; i++) {
        mha_tensor tensor;
        double count = 1;
        if (mhai_weights_peek(&l->weights, i, &tensor) != MHA_OK) continue; /* not asked for */
        for (int k = 0; k < tensor.ndim; k++) count *= (double)tensor.shape[k];
        held += count;
    }
    if (described <= held) return MHA_OK;
    return mha_fail(MHA_ERR_MODEL, "%s: holds %.0f numbers, %s describes at least %.0f; %s",
                    mhai_show_path(l->weights.path).text, held, l->weights.asks, described,
                    remedy(l));
}

/* The embeddings first: the error that tells most where the wrong config.json lies beside. */
static mha_status check_embeddings(loading *l)
{
    char name[MHAI_WEIGHT_NAME];
    const int64_t shape[2] = {l->plan.desc.vocab_size, l->plan.desc.embed_dim};
    const mha_tensor table = mha_tensor_contiguous(NULL, MHA_F32, 2, shape);
    mhai_family_name(l->family, "embed_tokens.weight", name);
    l->weights.prefix = l->family->prefix;
    const int64_t at = mhai_weights_find(&l->weights, name);
    if (at < 0 || strcmp(mhai_weights_name(&l->weights, at), name) == 0) l->weights.prefix = "";
    return mhai_weights_read(&l->weights, name, &table);
}

/* ---- weights ------------------------------------------------------------------------------- */

static void use(loading *l, const char *name)
{
    l->used[mhai_weights_find(&l->weights, name)] = true;
}

/* A parameter's name in the file. Old ones call a norm's weight and bias gamma and beta. */
static const mhai_weight_name *name_of(const loading *l, const mha_parameter *p,
                                       char name[MHAI_WEIGHT_NAME])
{
    const mhai_weight_name *row = mhai_family_name(l->family, p->name, name);
    if (p->kind != MHA_PARAMETER_NORM || !l->family->old_norms ||
        mhai_weights_find(&l->weights, name) >= 0)
        return row;
    char old[MHAI_WEIGHT_NAME];
    const char *tail = strrchr(name, '.');
    snprintf(old, sizeof old, "%.*s.%s", (int)(tail - name), name,
             strcmp(tail, ".weight") == 0 ? "gamma" : "beta");
    if (mhai_weights_find(&l->weights, old) >= 0) memcpy(name, old, sizeof old);
    return row;
}

/* Rows that fused weights have together: of q, k and v, or of gate and up. */
static int64_t fused_rows(const mha_transformer_desc *d, const mha_parameter *p)
{
    return strstr(p->name, ".mlp.") ? 2 * d->ff_dim
                                    : (d->num_heads + 2 * d->kv_heads) * d->head_dim;
}

/* Where row i of ours is among the rows of a fused weight. */
static int64_t fused_row(const mha_transformer_desc *d, const mha_parameter *p,
                         const mhai_weight_name *row, int64_t total, int64_t i)
{
    const int parts = strstr(p->name, ".mlp.") ? 2 : 3;
    if (row->form == MHAI_FUSED_HEADS)
        return (i / d->head_dim * parts + row->part) * d->head_dim + i % d->head_dim;
    return row->part == 0 ? i : total - (parts - row->part) * p->shape[0] + i;
}

/* Row i of ours where pairs of a rotation stand beside each other. */
static int64_t paired_row(const mha_transformer_desc *d, int64_t i)
{
    const int64_t k = i % d->head_dim, half = d->head_dim / 2;
    return i - k + k % half * 2 + k / half;
}

/* A weight of another form: its numbers one by one. A bias is a matrix of one column. */
static mha_status read_formed(loading *l, const mha_parameter *p, const mhai_weight_name *row,
                              const char *name, float *data)
{
    mha_transformer_desc d;
    mha_transformer_describe(l->made, &d);
    const mhai_weight_form form = row->form;
    const bool fused = form >= MHAI_FUSED && form <= MHAI_FUSED_HEADS;
    const bool transposed =
        p->ndim == 2 && (form == MHAI_TRANSPOSED || form == MHAI_FUSED_TRANSPOSED);
    const int64_t rows = p->shape[0], columns = p->ndim == 2 ? p->shape[1] : 1;
    const int64_t skipped = form == MHAI_LAST_ROWS ? l->plan.first_position : 0;
    const int64_t total = fused ? fused_rows(&d, p) : rows + skipped;
    mha_tensor from = {.ndim = p->ndim};
    from.shape[0] = transposed ? columns : total;
    from.shape[1] = transposed ? total : columns;
    MHA_TRY(mhai_weights_view(&l->weights, name, &from));
    const float *numbers = from.data;
    for (int64_t i = 0; i < rows; i++) {
        const int64_t at = fused                      ? fused_row(&d, p, row, total, i)
                           : form == MHAI_PAIRED_ROWS ? paired_row(&d, i)
                                                      : i + skipped;
        for (int64_t k = 0; k < columns; k++) {
            const float number = numbers[transposed ? k * total + at : at * columns + k];
            data[i * columns + k] = form == MHAI_PLUS_ONE ? 1 + number : number;
        }
    }
    return MHA_OK;
}

static mha_status load_weights(loading *l)
{
    float *data = mha_transformer_data(l->made);
    for (int64_t i = 0; i < mha_transformer_parameters(l->made); i++) {
        char name[MHAI_WEIGHT_NAME];
        mha_parameter p;
        MHA_TRY(mha_transformer_parameter(l->made, i, &p));
        const mhai_weight_name *row = name_of(l, &p, name);
        const mha_tensor to = mha_tensor_contiguous(data + p.offset, MHA_F32, p.ndim, p.shape);
        if (row && row->form != MHAI_AS_IS)
            MHA_TRY(read_formed(l, &p, row, name, data + p.offset));
        else
            MHA_TRY(mhai_weights_read(&l->weights, name, &to));
        use(l, name);
    }
    return MHA_OK;
}

/* A table of types that are all 0 is none: training saves such, since BERT asks for one. */
static mha_status check_types(loading *l)
{
    mha_transformer_desc *d = &l->plan.desc;
    char name[MHAI_WEIGHT_NAME];
    bool zero = true;
    l->types = d->type_count;
    if (d->type_count == 0) return MHA_OK;
    mhai_family_name(l->family, "embed_types.weight", name);
    mha_tensor table = {.ndim = 2, .shape = {d->type_count, d->embed_dim}};
    MHA_TRY(mhai_weights_view(&l->weights, name, &table));
    for (int64_t i = 0; i < d->type_count * d->embed_dim && zero; i++) {
        const float x = ((const float *)table.data)[i];
        zero = x >= 0 && x <= 0;
    }
    if (!zero) return MHA_OK;
    d->type_count = 0;
    use(l, name);
    return MHA_OK;
}

static mha_status check_all_used(const loading *l)
{
    for (int64_t i = 0; i < l->weights.count; i++) {
        const char *name = mhai_weights_name(&l->weights, i);
        if (!l->used[i] && !mhai_family_ignores(l->family, &l->plan, name))
            return mha_fail(MHA_ERR_MODEL, "%s: has weight '%s', which %s does not ask for; %s",
                            mhai_show_path(l->weights.path).text, mhai_show_name(name).text,
                            l->weights.asks, remedy(l));
    }
    return MHA_OK;
}

/* ---- the folder ---------------------------------------------------------------------------- */

/* What is wrong with the description is wrong in config.json. */
static mha_status create(loading *l)
{
    char detail[400];
    const mha_status status = mha_transformer_create(l->context, &l->plan.desc, &l->made);
    if (status != MHA_ERR_ARGUMENT && status != MHA_ERR_SHAPE && status != MHA_ERR_UNSUPPORTED)
        return status;
    snprintf(detail, sizeof detail, "%s", mha_error_detail());
    return mha_fail(MHA_ERR_MODEL, "%s: %s", mhai_show_path(l->config).text, detail);
}

static mha_status load_body(loading *l)
{
    MHA_TRY(check_embeddings(l));
    MHA_TRY(check_numbers(l));
    l->used = calloc((size_t)l->weights.count + 1, sizeof *l->used);
    if (!l->used) return mha_fail(MHA_ERR_NOMEM, "checkpoint: cannot allocate its tables");
    MHA_TRY(check_types(l));
    MHA_TRY(create(l));
    MHA_TRY(load_weights(l));
    MHA_TRY(check_all_used(l));
    return mha_transformer_update(l->context, l->made);
}

static mha_status load_files(loading *l, const char *folder)
{
    mha_status status = l->gguf ? mhai_weights_open_gguf(l->gguf, folder, &l->weights)
                                : mhai_weights_open(folder, &l->weights);
    if (status == MHA_OK) status = load_body(l);
    free(l->used);
    mhai_weights_close(&l->weights);
    return status;
}

static mha_status load_plan(loading *l, const mhai_config *config, const char *folder)
{
    MHA_TRY(mhai_family_find(config, &l->listed));
    l->config = config->path;
    MHA_TRY(mhai_family_check_loads(config, l->listed));
    l->renamed = mhai_gguf_family(l->listed);
    l->family = l->gguf ? &l->renamed : l->listed;
    mha_status status = mhai_checkpoint_read_plan(config, l->listed, &l->plan);
    if (status == MHA_OK) status = load_files(l, folder);
    mhai_checkpoint_free_plan(&l->plan);
    return status;
}

static mha_status load(loading *l, const char *folder)
{
    MHA_TRY(mhai_model_check_folder(folder));
    json_t *root = NULL;
    char *path = mhai_model_join(folder, "config.json");
    if (!path)
        return mha_fail(MHA_ERR_NOMEM, "%s: cannot allocate names", mhai_show_path(folder).text);
    mha_status status = mhai_json_read(path, most_config_bytes, &root);
    if (status == MHA_OK) status = load_plan(l, &(mhai_config){path, root}, folder);
    json_decref(root);
    free(path);
    return status;
}

static mha_status load_gguf(loading *l, const char *path)
{
    json_t *root = NULL;
    mha_status status = mhai_gguf_config(l->gguf, path, &root);
    if (status == MHA_OK) status = load_plan(l, &(mhai_config){path, root}, path);
    json_decref(root);
    return status;
}

mha_status mhai_model_load_part(mha_context *context, const char *path, const mha_gguf *gguf,
                                mhai_loaded *loaded)
{
    loading l = {.context = context, .gguf = gguf};
    mha_status status = gguf ? load_gguf(&l, path) : load(&l, path);
    if (status == MHA_OK)
        *loaded = (mhai_loaded){l.made, l.listed, l.types};
    else
        mha_transformer_destroy(l.made);
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
    mhai_loaded loaded;
    MHA_TRY(mhai_model_load_part(context, folder, NULL, &loaded));
    *transformer = loaded.transformer;
    return MHA_OK;
}
