/* See model_weights.h. */
#include "model/model_weights.h"

#include "io/file.h"
#include "io/gguf_blocks.h"
#include "io/json_file.h"
#include "io/safetensors_data.h"
#include "model/folder.h"

#include <multihead/component.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 256, MOST_SHARDS = 4096 };
static const size_t most_index_bytes = 64u << 20;

/* ---- files --------------------------------------------------------------------------------- */

/* Open another shard. Takes ownership of path. */
static mha_status open_shard(mhai_weights *weights, char *path)
{
    mhai_shard *grown = NULL;
    if (path)
        grown = realloc(weights->shard, (size_t)(weights->shards + 1) * sizeof *weights->shard);
    if (!grown) {
        free(path);
        return mha_fail(MHA_ERR_NOMEM, "weights: cannot allocate a name");
    }
    weights->shard = grown;
    mhai_shard *shard = &grown[weights->shards];
    *shard = (mhai_shard){.path = path, .first = weights->count};
    weights->shards++;
    MHA_TRY(mha_safetensors_open(path, &shard->file));
    weights->count += mha_safetensors_count(shard->file);
    return MHA_OK;
}

static bool is_open(const mhai_weights *weights, const char *name)
{
    for (int64_t i = 0; i < weights->shards; i++) {
        const char *base = strrchr(weights->shard[i].path, '/');
        if (strcmp(base + 1, name) == 0) return true;
    }
    return false;
}

/* Open a file that the index names. It must be in the same folder as the index. */
static mha_status open_named(mhai_weights *weights, const char *folder, const json_t *value)
{
    const char *name = json_string_value(value);
    if (!name || name[0] == '\0' || name[0] == '.' || strchr(name, '/') ||
        strlen(name) != json_string_length(value))
        return mhai_path_fail(
            MHA_ERR_MODEL, weights->path,
            "weight_map names '%s', which is not the name of a file in its folder",
            name ? mhai_show_name(name).text : "");
    if (is_open(weights, name)) return MHA_OK;
    if (weights->shards == MOST_SHARDS)
        return mhai_path_fail(MHA_ERR_MODEL, weights->path, "names more than %d files",
                              MOST_SHARDS);
    if (!mhai_model_holds(folder, name))
        return mha_fail(MHA_ERR_FILE,
                        "%s/%s: no such file, but %s names it; download the model again",
                        mhai_show_path(folder).text, mhai_show_name(name).text,
                        mhai_show_path(weights->path).text);
    return open_shard(weights, mhai_model_join(folder, name));
}

/* Reject duplicate weights, since the result would depend on the order of files. */
static mha_status check_single(const mhai_weights *weights)
{
    for (int64_t i = 0; i < weights->shards; i++)
        for (int64_t k = 0; k < mha_safetensors_count(weights->shard[i].file); k++) {
            const char *name = mha_safetensors_name(weights->shard[i].file, k);
            for (int64_t j = 0; j < i; j++)
                if (mha_safetensors_find(weights->shard[j].file, name) >= 0)
                    return mha_fail(MHA_ERR_MODEL, "%s and %s: both have the weight '%s'",
                                    mhai_show_path(weights->shard[j].path).text,
                                    mhai_show_path(weights->shard[i].path).text,
                                    mhai_show_name(name).text);
        }
    return MHA_OK;
}

static mha_status open_index(mhai_weights *weights, const char *folder)
{
    json_t *root = NULL, *value;
    const char *key;
    MHA_TRY(mhai_json_read(weights->path, most_index_bytes, &root));
    json_t *map = json_object_get(root, "weight_map");
    mha_status status = MHA_OK;
    if (!json_is_object(map))
        status = mhai_path_fail(MHA_ERR_MODEL, weights->path, "'weight_map' is not an object");
    json_object_foreach(map, key, value)
    {
        if (status == MHA_OK) status = open_named(weights, folder, value);
    }
    json_decref(root);
    return status == MHA_OK ? check_single(weights) : status;
}

mha_status mhai_weights_open(const char *folder, mhai_weights *weights)
{
    const bool one = mhai_model_holds(folder, "model.safetensors");
    *weights = (mhai_weights){.prefix = "", .outer = "", .asks = "config.json"};
    weights->path =
        mhai_model_join(folder, one ? "model.safetensors" : "model.safetensors.index.json");
    if (!weights->path) return mhai_path_fail(MHA_ERR_NOMEM, folder, "cannot allocate names");
    return one ? open_shard(weights, mhai_model_join(folder, "model.safetensors"))
               : open_index(weights, folder);
}

mha_status mhai_weights_open_gguf(mha_gguf *file, const char *path, mhai_weights *weights)
{
    *weights = (mhai_weights){.prefix = "", .outer = "", .gguf = file, .asks = "its metadata"};
    weights->count = mha_gguf_count(file);
    weights->path = strdup(path);
    return weights->path ? MHA_OK : mha_fail(MHA_ERR_NOMEM, "weights: cannot allocate a name");
}

void mhai_weights_close(mhai_weights *weights)
{
    for (int64_t i = 0; i < weights->shards; i++) {
        mha_safetensors_close(weights->shard[i].file);
        free(weights->shard[i].path);
    }
    free(weights->shard);
    free(weights->path);
    mha_gguf_close(weights->gguf);
    *weights = (mhai_weights){.prefix = "", .outer = ""};
}

/* ---- tensors ------------------------------------------------------------------------------- */

static const mhai_shard *shard_of(const mhai_weights *weights, int64_t index)
{
    int64_t i = weights->shards - 1;
    while (weights->shard[i].first > index) i--;
    return &weights->shard[i];
}

const char *mhai_weights_name(const mhai_weights *weights, int64_t index)
{
    mha_gguf_tensor tensor;
    if (weights->gguf)
        return mha_gguf_describe(weights->gguf, index, &tensor) == MHA_OK ? tensor.name : "";
    const mhai_shard *shard = shard_of(weights, index);
    return mha_safetensors_name(shard->file, index - shard->first);
}

/* The type of a safetensors tensor among those of gguf_blocks.h; F32 if it has none. */
static mha_gguf_type type_of(const mhai_weights *weights, int64_t index)
{
    static const struct {
        const char *name;
        int type;
    } types[] = {{"F16", MHA_GGUF_F16},
                 {"BF16", MHA_GGUF_BF16},
                 {"F8_E4M3", MHAI_F8_E4M3},
                 {"F8_E5M2", MHAI_F8_E5M2},
                 {"F8_E8M0", MHAI_F8_E8M0}};
    const mhai_shard *shard = shard_of(weights, index);
    const char *name = mhai_safetensors_type_of(shard->file, index - shard->first)->name;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(types[i].name, name) == 0) return (mha_gguf_type)types[i].type;
    return MHA_GGUF_F32;
}

static bool is_float8(mha_gguf_type type)
{
    return (int)type >= MHAI_F8_E4M3;
}

/* GGUF tensors and 8-bit floats are read as f32. */
static mha_status peek_gguf(const mha_gguf *file, int64_t index, mha_tensor *tensor)
{
    mha_gguf_tensor found;
    int64_t shape[MHA_GGUF_MAX_DIMS];
    MHA_TRY(mha_gguf_describe(file, index, &found));
    for (int i = 0; i < found.ndim; i++) shape[i] = found.dims[found.ndim - 1 - i];
    *tensor = mha_tensor_contiguous(NULL, MHA_F32, found.ndim, shape);
    return MHA_OK;
}

mha_status mhai_weights_peek(const mhai_weights *weights, int64_t index, mha_tensor *tensor)
{
    if (weights->gguf) return peek_gguf(weights->gguf, index, tensor);
    char detail[400];
    const mhai_shard *shard = shard_of(weights, index);
    const bool small = is_float8(type_of(weights, index));
    const mha_status status =
        small ? mhai_safetensors_shape(shard->file, index - shard->first, tensor)
              : mha_safetensors_peek(shard->file, index - shard->first, tensor);
    if (small) tensor->dtype = MHA_F32;
    if (status == MHA_OK) return MHA_OK;
    snprintf(detail, sizeof detail, "%s", mha_error_detail());
    return mhai_path_fail(status, shard->path, "%s", detail);
}

static int64_t find_full(const mhai_weights *weights, const char *name)
{
    if (weights->gguf) return mha_gguf_find(weights->gguf, name);
    for (int64_t i = 0; i < weights->shards; i++) {
        const int64_t found = mha_safetensors_find(weights->shard[i].file, name);
        if (found >= 0) return weights->shard[i].first + found;
    }
    return -1;
}

static int64_t find_with(const mhai_weights *weights, const char *prefix, const char *name)
{
    char full[NAME_BYTES];
    const int length = snprintf(full, sizeof full, "%s%s", prefix, name);
    return length < (int)sizeof full ? find_full(weights, full) : -1;
}

int64_t mhai_weights_find(const mhai_weights *weights, const char *name)
{
    const int64_t found = find_with(weights, weights->prefix, name);
    return found >= 0 ? found : find_with(weights, weights->outer, name);
}

void mhai_weights_print_shape(char *text, size_t room, const mha_tensor *tensor)
{
    size_t used = (size_t)snprintf(text, room, "[");
    for (int i = 0; i < tensor->ndim && used < room; i++)
        used += (size_t)snprintf(text + used, room - used, "%s%lld", i ? ", " : "",
                                 (long long)tensor->shape[i]);
    if (used < room) snprintf(text + used, room - used, "]");
}

int64_t mhai_weights_scales(const mhai_weights *weights, int64_t index)
{
    char name[NAME_BYTES];
    const char *suffix = weights->quantization.suffix;
    if (weights->gguf || !suffix || !is_float8(type_of(weights, index))) return -1;
    const int length =
        snprintf(name, sizeof name, "%s%s", mhai_weights_name(weights, index), suffix);
    return length < (int)sizeof name ? find_full(weights, name) : -1;
}

/* The number of blocks of this size in `count` rows or columns. */
static int64_t blocks_in(int64_t count, int64_t size)
{
    return count > size ? count / size + (count % size != 0) : 1;
}

static bool is_real(const mha_tensor *tensor)
{
    return tensor->dtype == MHA_F32 || tensor->dtype == MHA_F16 || tensor->dtype == MHA_BF16;
}

/* Check the scales of a float8 weight, which is a matrix: one for each block of
 * quantization_config. */
static mha_status check_scales(const mhai_weights *weights, const char *path, const char *name,
                               int64_t index, const mha_tensor *tensor)
{
    const mhai_quantization *q = &weights->quantization;
    const int64_t at = mhai_weights_scales(weights, index);
    mha_tensor scales;
    char has[160];
    if (at < 0)
        return mhai_path_fail(
            MHA_ERR_MODEL, path,
            "weight '%s' has no scales '%s%s', which quantization_config of config.json requires",
            name, name, q->suffix);
    mhai_weights_print_shape(has, sizeof has, tensor);
    if (tensor->ndim != 2)
        return mhai_path_fail(MHA_ERR_UNSUPPORTED, path,
                              "weight '%s' has scales and the shape %s, expected a matrix; save it "
                              "as float32, float16 or bfloat16",
                              name, has);
    MHA_TRY(mhai_weights_peek(weights, at, &scales));
    const int64_t rows = blocks_in(tensor->shape[0], q->rows);
    const int64_t columns = blocks_in(tensor->shape[1], q->columns);
    int64_t count = 1;
    MHA_TRY(mha_tensor_count(&scales, &count));
    const bool shaped = scales.ndim == 2 ? scales.shape[0] == rows && scales.shape[1] == columns
                                         : scales.ndim < 2 && columns == 1 && count == rows;
    mhai_weights_print_shape(has, sizeof has, &scales);
    if (is_real(&scales) && shaped) return MHA_OK;
    return mhai_path_fail(MHA_ERR_MODEL, path,
                          "scales of weight '%s' are %s %s, expected floats of shape [%lld, %lld]",
                          name, mha_dtype_name(scales.dtype), has, (long long)rows,
                          (long long)columns);
}

mha_status mhai_weights_check(const mhai_weights *weights, const char *name,
                              const mha_tensor *expected, int64_t *index)
{
    mha_tensor found, *tensor = &found;
    *index = mhai_weights_find(weights, name);
    if (*index < 0)
        return mhai_path_fail(MHA_ERR_MODEL, weights->path,
                              "weight '%s%s' is missing; %s requires it", weights->prefix, name,
                              weights->asks);
    MHA_TRY(mhai_weights_peek(weights, *index, tensor));
    name = mhai_weights_name(weights, *index);
    const char *path = weights->gguf ? weights->path : shard_of(weights, *index)->path;
    /* converters to GGUF write a matrix of one row as a vector */
    const int lost = weights->gguf && tensor->ndim == 1 && expected->shape[0] == 1 ? 1 : 0;
    bool same = tensor->ndim + lost == expected->ndim;
    for (int i = lost; same && i < expected->ndim; i++)
        same = tensor->shape[i - lost] == expected->shape[i];
    if (weights->gguf && expected->ndim == 1 && tensor->ndim == 2) /* a vector as rows (Mamba) */
        same = tensor->shape[0] > 0 && expected->shape[0] % tensor->shape[0] == 0 &&
               expected->shape[0] / tensor->shape[0] == tensor->shape[1];
    if (!same) {
        char has[160], wants[160];
        mhai_weights_print_shape(has, sizeof has, tensor);
        mhai_weights_print_shape(wants, sizeof wants, expected);
        return mhai_path_fail(MHA_ERR_MODEL, path, "weight '%s' has shape %s, %s requires %s", name,
                              has, weights->asks, wants);
    }
    /* reads nothing; checks the type */
    if (weights->gguf) return mha_gguf_read(weights->gguf, *index, 0, 0, NULL);
    if (weights->quantization.suffix && is_float8(type_of(weights, *index)))
        return check_scales(weights, path, name, *index, tensor);
    if (expected->dtype == MHA_U8 ? tensor->dtype == MHA_U8 : is_real(tensor)) return MHA_OK;
    if (expected->dtype == MHA_U8)
        return mhai_path_fail(MHA_ERR_UNSUPPORTED, path, "weight '%s' is %s, expected u8", name,
                              mha_dtype_name(tensor->dtype));
    return mhai_path_fail(MHA_ERR_UNSUPPORTED, path,
                          "weight '%s' is %s; save the model as float32, float16 or bfloat16", name,
                          mha_dtype_name(tensor->dtype));
}

mhai_elements mhai_weights_elements(const mhai_weights *weights, int64_t index)
{
    mha_gguf_tensor found;
    mha_tensor tensor;
    mhai_elements elements = {.type = MHA_GGUF_F32};
    if (weights->gguf) {
        if (mha_gguf_describe(weights->gguf, index, &found) != MHA_OK) return elements;
        return (mhai_elements){.type = found.type, .data = found.data};
    }
    if (mhai_weights_peek(weights, index, &tensor) != MHA_OK) return elements;
    const mhai_shard *shard = shard_of(weights, index);
    elements.type = type_of(weights, index);
    elements.data = mhai_safetensors_data(shard->file, index - shard->first);
    const int64_t at = mhai_weights_scales(weights, index);
    if (at < 0) return elements;
    shard = shard_of(weights, at);
    elements.scales = mhai_safetensors_data(shard->file, at - shard->first);
    elements.scale_type = type_of(weights, at);
    elements.columns = tensor.shape[1];
    elements.block_rows = weights->quantization.rows;
    elements.block_columns = weights->quantization.columns;
    elements.scale_columns = blocks_in(tensor.shape[1], elements.block_columns);
    return elements;
}

bool mhai_weights_equal(const mhai_weights *weights, int64_t a, int64_t b)
{
    mha_tensor x = {.ndim = 0}, y = {.ndim = 0};
    int64_t count = 0;
    if (mhai_weights_peek(weights, a, &x) != MHA_OK || mhai_weights_peek(weights, b, &y) != MHA_OK)
        return false;
    const mhai_elements left = mhai_weights_elements(weights, a),
                        right = mhai_weights_elements(weights, b);
    bool same = left.type == right.type && !left.scales && !right.scales && x.dtype == y.dtype &&
                x.ndim == y.ndim && mha_tensor_count(&x, &count) == MHA_OK;
    for (int i = 0; same && i < x.ndim; i++) same = x.shape[i] == y.shape[i];
    return same && memcmp(left.data, right.data, (size_t)mhai_gguf_bytes(left.type, count)) == 0;
}

/* Multiply elements first .. first + count - 1 by the scales of their blocks. */
static void apply_scales(const mhai_elements *from, int64_t first, int64_t count, float *x)
{
    for (int64_t i = 0, n; i < count; i += n) {
        const int64_t row = (first + i) / from->columns, column = (first + i) % from->columns;
        const int64_t part = column / from->block_columns;
        float scale;
        mhai_gguf_decode(from->scale_type, from->scales,
                         row / from->block_rows * from->scale_columns + part, 1, &scale);
        n = from->columns - column < count - i ? from->columns - column : count - i;
        if (from->block_columns - column % from->block_columns < n)
            n = from->block_columns - column % from->block_columns;
        for (int64_t k = i; k < i + n; k++) x[k] *= scale;
    }
}

/* Decode a block whose numbers are in order, as a block of GGUF, where numbers 0 and 16, 1 and 17,
 * ... share bytes. */
static void read_block(mhai_elements from, int64_t block, float to[32])
{
    unsigned char made[17] = {from.exponents[block]};
    const unsigned char *given = from.data + 16 * block;
    for (int i = 0; i < 16; i++) {
        const int shift = i % 2 * 4;
        made[1 + i] =
            (unsigned char)((given[i / 2] >> shift & 15) | (given[8 + i / 2] >> shift & 15) << 4);
    }
    mhai_gguf_decode(MHA_GGUF_MXFP4, made, 0, 32, to);
}

void mhai_elements_read(mhai_elements from, int64_t first, int64_t count, float *to)
{
    for (int64_t i = 0, n; i < count && from.exponents; i += n) {
        float block[32];
        const int64_t at = (first + i) % 32;
        n = count - i < 32 - at ? count - i : 32 - at;
        read_block(from, (first + i) / 32, block);
        memcpy(to + i, block + at, (size_t)n * sizeof *to);
    }
    if (from.exponents) return;
    mhai_gguf_decode(from.type, from.data, first, count, to);
    if (from.scales) apply_scales(&from, first, count, to);
}

bool mhai_weights_are_f32(const mhai_weights *weights)
{
    for (int64_t i = 0; i < weights->count; i++)
        if (mhai_weights_elements(weights, i).type != MHA_GGUF_F32) return false;
    return true;
}

bool mhai_weights_have_blocks(const mhai_weights *weights)
{
    for (int64_t i = 0; i < weights->count; i++)
        if (mhai_gguf_codes(mhai_weights_elements(weights, i).type)) return true;
    return false;
}
