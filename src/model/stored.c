/* See stored.h. */
#include "model/stored.h"

#include "io/file.h"
#include "io/gguf_blocks.h"
#include "model/picture_weights.h"

#include <multihead/component.h>
#include <multihead/position.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- where a parameter is -------------------------------------------------------------------- */

static bool is_fused(mhai_weight_form form)
{
    return form >= MHAI_FUSED && form <= MHAI_FUSED_GROUPS;
}

/* The number of blocks in a fused weight, and the rows of each part in a block. */
typedef struct fusion {
    int64_t blocks, parts[5];
} fusion;

static fusion fusion_of_recurrent(const mha_layer_desc *l, int64_t heads, int64_t kv_heads,
                                  const mha_parameter *p, mhai_weight_form form)
{
    const int64_t k = l->key_dim, v = heads / kv_heads * l->value_dim, out = heads * l->value_dim;
    if (l->mixer == MHA_MIXER_STATE_SPACE)
        return (fusion){1, {out, out, kv_heads * k, kv_heads * k, heads}};
    if (form != MHAI_FUSED_GROUPS) return (fusion){1, {kv_heads * k, kv_heads * k, out, 0}};
    if (strstr(p->name, ".a_proj.") || strstr(p->name, ".b_proj."))
        return (fusion){kv_heads, {heads / kv_heads, heads / kv_heads, 0, 0}};
    return (fusion){kv_heads, {k, k, v, v}};
}

static fusion fusion_of(const mha_transformer_desc *d, const mha_parameter *p,
                        mhai_weight_form form)
{
    const int64_t heads = mha_transformer_heads(d, p->layer);
    const int64_t kv_heads = mha_transformer_kv_heads(d, p->layer);
    const int64_t D = mha_transformer_head_dim(d, p->layer);
    if (strstr(p->name, ".mlp.")) return (fusion){1, {p->shape[0], p->shape[0], 0, 0}};
    if (d->layers && d->layers[p->layer].mixer == MHA_MIXER_SHORT_CONVOLUTION)
        return (fusion){1, {d->embed_dim, d->embed_dim, d->embed_dim, 0}};
    if (d->layers && d->layers[p->layer].mixer)
        return fusion_of_recurrent(&d->layers[p->layer], heads, kv_heads, p, form);
    if (d->layers && d->layers[p->layer].latent_dim > 0)
        return (fusion){heads, {D - d->layers[p->layer].shared_dim, d->layers[p->layer].value_dim}};
    if (form == MHAI_FUSED_GATE) return (fusion){heads, {D, D, 0, 0}};
    if (form == MHAI_FUSED_HEADS) return (fusion){kv_heads, {heads / kv_heads * D, D, D, 0}};
    return (fusion){1, {heads * D, kv_heads * D, kv_heads * D, 0}};
}

static void find_part(const mha_transformer_desc *d, const mha_parameter *p,
                      const mhai_weight_name *row, mhai_stored_parameter *stored, int64_t *total)
{
    const fusion f = fusion_of(d, p, row->form);
    stored->block = f.parts[row->part];
    for (int i = 0; i < 5; i++) {
        if (i < row->part) stored->first += f.parts[i];
        stored->step += f.parts[i];
    }
    *total = f.blocks * stored->step;
}

/* Find blocks of MXFP4 and their scales. */
static mha_status find_blocks(const mhai_weights *weights, const int64_t shape[3],
                              const mhai_weight_name *row, const char *name, mhai_elements *from)
{
    const int64_t blocks[] = {shape[0], shape[1], shape[2] / 32, 16};
    const mha_tensor table = mha_tensor_contiguous(NULL, MHA_U8, 4, blocks);
    const mha_tensor scales = mha_tensor_contiguous(NULL, MHA_U8, 3, blocks);
    char other[MHAI_WEIGHT_NAME];
    int64_t index, at;
    MHA_TRY(mhai_weights_check(weights, name, &table, &index));
    snprintf(other, sizeof other, "%s", name);
    mhai_stored_part(row, 1, other);
    MHA_TRY(mhai_weights_check(weights, other, &scales, &at));
    if (shape[2] % 32 != 0)
        return mha_fail(MHA_ERR_MODEL, "weight '%s' has blocks of 32 numbers in rows of %lld", name,
                        (long long)shape[2]);
    *from = mhai_weights_elements(weights, index);
    from->exponents = mhai_weights_elements(weights, at).data;
    return MHA_OK;
}

/* Find the matrix or the bias of one expert in a table of all experts. */
static mha_status find_expert(const mhai_weights *weights, const mha_transformer_desc *d,
                              const mha_parameter *p, const mhai_weight_name *row, const char *name,
                              mhai_stored_parameter *stored)
{
    static const char experts[] = ".experts.";
    const bool turned = row->form == MHAI_EXPERT_TURNED, mixed = row->form >= MHAI_EXPERT_MIXED;
    const bool pair = row->form == MHAI_EXPERT_PAIR || (mixed && strstr(name, "gate_up"));
    const int64_t expert = strtoll(strstr(p->name, experts) + sizeof experts - 1, NULL, 10);
    const int64_t parts = pair ? 2 : 1, total = parts * p->shape[0];
    const int64_t count = d->layers[p->layer].experts.count;
    const int64_t shape[] = {count, turned ? p->shape[1] : total, turned ? total : p->shape[1]};
    const mha_tensor table = mha_tensor_contiguous(NULL, MHA_F32, p->ndim + 1, shape);
    int64_t index;
    stored->transposed = turned;
    stored->total = total;
    stored->block = 1;
    stored->step = mixed ? parts : 1;
    stored->first = (expert * parts + row->part) * p->shape[0];
    if (mixed) stored->first = expert * total * (turned ? p->shape[1] : 1) + row->part;
    if (row->form == MHAI_EXPERT_MXFP4)
        return find_blocks(weights, shape, row, name, &stored->from);
    MHA_TRY(mhai_weights_check(weights, name, &table, &index));
    stored->from = mhai_weights_elements(weights, index);
    return MHA_OK;
}

/* "encoder.layer.3.mlp.fc2.bias": "encoder.layer.3.layer_scale2.lambda1". False: no layer. */
static bool name_scales(const mhai_weight_name *row, char name[MHAI_WEIGHT_NAME])
{
    char *at = strstr(name, row->theirs);
    if (!at) return false;
    snprintf(at, MHAI_WEIGHT_NAME - (size_t)(at - name), "layer_scale%d.lambda1", row->part);
    return true;
}

/* Find a matrix that the file divides by heads. */
static mha_status find_heads(const mhai_weights *weights, const mha_transformer_desc *d,
                             const mha_parameter *p, const char *name,
                             mhai_stored_parameter *stored)
{
    const int64_t heads = mha_transformer_heads(d, p->layer), each = p->shape[0] / heads;
    const bool turned = stored->form == MHAI_HEADS_TURNED;
    const int64_t shape[] = {heads, turned ? p->shape[1] : each, turned ? each : p->shape[1]};
    const mha_tensor expected = mha_tensor_contiguous(NULL, MHA_F32, 3, shape);
    int64_t index;
    MHA_TRY(mhai_weights_check(weights, name, &expected, &index));
    stored->transposed = turned;
    stored->total = each;
    stored->from = mhai_weights_elements(weights, index);
    return MHA_OK;
}

bool mhai_stored_part(const mhai_weight_name *row, int i, char name[MHAI_WEIGHT_NAME])
{
    static const char blocks[] = "blocks", scales[] = "scales";
    const mhai_weight_form form = row ? row->form : MHAI_AS_IS;
    if (i == 0) return true;
    if (form == MHAI_CONVOLUTIONS && i <= 2)
        *(strstr(name, "_conv1d") - 1) = "qkv"[i];
    else if (form == MHAI_EXPERT_MXFP4 && i == 1)
        memcpy(name + strlen(name) - strlen(blocks), scales, strlen(scales));
    else
        return form == MHAI_LAYER_SCALED && i == 1 && name_scales(row, name);
    return true;
}

static int64_t rows_of(const mhai_weights *weights, const char *name, int64_t usual)
{
    mha_tensor found = {.ndim = 0};
    const int64_t at = mhai_weights_find(weights, name);
    if (at < 0 || mhai_weights_peek(weights, at, &found) != MHA_OK || found.ndim != 3) return usual;
    return found.shape[0];
}

/* The convolutions of q, k and v, one after the other. transformers 5.23 saves the thirds of all channels,
 * rounded up, by these names. */
static mha_status find_convolutions(const mhai_weights *weights, const mha_transformer_desc *d,
                                    const mha_parameter *p, const mhai_weight_name *row,
                                    const char *name, mhai_stored_parameter *stored)
{
    const int64_t q = mha_transformer_kv_heads(d, p->layer) * d->layers[p->layer].key_dim;
    const int64_t third = (p->shape[0] + 2) / 3;
    mhai_elements *to[] = {&stored->from, &stored->further[0], &stored->further[1]};
    char part[MHAI_WEIGHT_NAME];
    snprintf(part, sizeof part, "%s", name);
    stored->block = rows_of(weights, name, q) == third ? third : q;
    stored->step = 2 * stored->block;
    for (int i = 0; mhai_stored_part(row, i, part); i++) {
        const int64_t rows = i < 2 ? stored->block : p->shape[0] - stored->step;
        const mha_tensor expected = {.ndim = 3, .shape = {rows, 1, p->shape[1]}};
        int64_t index;
        MHA_TRY(mhai_weights_check(weights, part, &expected, &index));
        *to[i] = mhai_weights_elements(weights, index);
    }
    return MHA_OK;
}

/* Make a vector that is in no file. */
static mha_status make_vector(const mha_transformer_desc *d, const mha_parameter *p,
                              const mhai_weight_name *row, mhai_stored_parameter *stored)
{
    const bool slopes = row && row->form == MHAI_SLOPES;
    const float one = row && row->form == MHAI_ONES ? 1 : 0;
    const double divisor = slopes && row->part ? sqrt((double)d->head_dim) : 1;
    float *made = stored->made = malloc((size_t)p->count * sizeof *made);
    if (!made) return MHA_NO_MEMORY("checkpoint");
    if (slopes) MHA_TRY(mha_alibi_slopes(p->count, made));
    for (int64_t i = 0; i < p->count; i++)
        made[i] = slopes ? (float)((double)made[i] / divisor) : one;
    stored->form = MHAI_AS_IS;
    stored->from = (mhai_elements){.type = MHA_GGUF_F32, .data = (unsigned char *)made};
    return MHA_OK;
}

mha_status mhai_stored_find(const mhai_weights *weights, const mhai_family_plan *plan,
                            const mha_transformer_desc *d, const mha_parameter *p,
                            const mhai_weight_name *row, const char *name,
                            mhai_stored_parameter *stored)
{
    const mhai_weight_form form = row ? row->form : MHAI_AS_IS;
    int64_t index, total = p->shape[0];
    *stored = (mhai_stored_parameter){
        .form = form,
        .transposed = p->ndim == 2 && (form == MHAI_TRANSPOSED || form == MHAI_FUSED_TRANSPOSED),
        .columns = p->ndim == 2 ? p->shape[1] : 1,
        .head_dim = p->layer < 0 ? 0 : mha_transformer_head_dim(d, p->layer)};
    if (mhai_form_is_made(form)) return make_vector(d, p, row, stored);
    if (form == MHAI_LAST_FIRST) stored->last = d->layers[p->layer].shared_dim;
    if (is_fused(form)) find_part(d, p, row, stored, &total);
    if (form == MHAI_HEADS || form == MHAI_HEADS_TURNED)
        return find_heads(weights, d, p, name, stored);
    if (form >= MHAI_EXPERT) return find_expert(weights, d, p, row, name, stored);
    if (form == MHAI_CONVOLUTIONS) return find_convolutions(weights, d, p, row, name, stored);
    if (form == MHAI_KEY_BIAS && plan->picture.no_key_bias) {
        return mhai_weights_find(weights, name) < 0
                   ? make_vector(d, p, NULL, stored)
                   : mhai_path_fail(MHA_ERR_MODEL, weights->path,
                                    "has weight '%s', but 'key_bias' of config.json is false",
                                    name);
    }
    if (form == MHAI_SPECIAL_ROWS || form == MHAI_POSITION_ROWS) {
        MHA_TRY(mhai_picture_table(weights, plan, p, form, name, &stored->made));
        stored->from = (mhai_elements){.type = MHA_GGUF_F32, .data = (unsigned char *)stored->made};
        return MHA_OK;
    }
    if (form == MHAI_LAST_ROWS) {
        stored->first = plan->first_position;
        total += plan->first_position;
    }
    if (form == MHAI_LAYER_ROWS) {
        stored->first = p->layer * p->shape[0];
        total *= d->num_layers;
    }
    if (form == MHAI_LAYER_COLUMNS) {
        stored->column = p->layer * p->shape[1];
        stored->columns *= d->num_layers;
    }
    stored->total = total;
    mha_tensor expected = {.ndim = p->ndim, .shape = {total, stored->columns}};
    if (form == MHAI_ONE_ROW) expected = (mha_tensor){.ndim = 2, .shape = {1, total}};
    if (form == MHAI_FOUR_AXES) expected = (mha_tensor){.ndim = 4, .shape = {1, 1, total, 1}};
    if (form == MHAI_CONVOLUTION)
        expected = (mha_tensor){.ndim = 3, .shape = {total, 1, stored->columns}};
    if (form == MHAI_PATCHES)
        expected =
            (mha_tensor){.ndim = 4, .shape = {total, 3, plan->picture.patch, plan->picture.patch}};
    if (form == MHAI_LAYER_SCALED) {
        const mha_tensor scales = {.ndim = 1, .shape = {total}};
        char other[MHAI_WEIGHT_NAME];
        snprintf(other, sizeof other, "%s", name);
        name_scales(row, other);
        MHA_TRY(mhai_weights_check(weights, other, &scales, &index));
        stored->further[0] = mhai_weights_elements(weights, index);
    }
    if (stored->transposed) {
        expected.shape[0] = stored->columns;
        expected.shape[1] = total;
    }
    MHA_TRY(mhai_weights_check(weights, name, &expected, &index));
    stored->from = mhai_weights_elements(weights, index);
    return MHA_OK;
}

/* ---- reading ------------------------------------------------------------------------------- */

/* The row in the file of row i. Files with rotated pairs next to each other store rows
 * 0, D/2, 1, D/2 + 1, ... */
static int64_t row_at(const mhai_stored_parameter *p, int64_t i)
{
    const int64_t D = p->head_dim;
    switch (p->form) {
    case MHAI_FUSED_HEADS:
    case MHAI_FUSED_GATE:
    case MHAI_FUSED_GROUPS:
    case MHAI_EXPERT_MIXED:
    case MHAI_EXPERT_MXFP4: return i / p->block * p->step + p->first + i % p->block;
    case MHAI_LAST_FIRST: return i - i % D + (i % D + D - p->last) % D;
    case MHAI_PAIRED_ROWS: return i - i % D + i % D % (D / 2) * 2 + i % D / (D / 2);
    default: return p->first + i;
    }
}

/* Read rows that are columns in the file. */
static void read_turned(const mhai_stored_parameter *p, int64_t row, int64_t rows, int64_t column,
                        int64_t columns, float *to)
{
    enum { PIECE = 64 };
    float piece[2 * PIECE];
    const int64_t step = p->form == MHAI_EXPERT_TURNED ? p->step : 1;
    for (int64_t i = 0; i < rows; i += PIECE) {
        const int64_t count = rows - i < PIECE ? rows - i : PIECE;
        for (int64_t k = 0; k < columns; k++) {
            mhai_elements_read(p->from, (column + k) * p->total + p->first + (row + i) * step,
                               (count - 1) * step + 1, piece);
            for (int64_t j = 0; j < count; j++) to[(i + j) * columns + k] = piece[j * step];
        }
    }
}

/* Read rows of heads that are turned separately. */
static void read_heads(const mhai_stored_parameter *p, int64_t row, int64_t rows, int64_t column,
                       int64_t columns, float *to)
{
    for (int64_t i = 0, n; i < rows; i += n) {
        const int64_t head = (row + i) / p->total, at = (row + i) % p->total;
        mhai_stored_parameter one = *p;
        n = rows - i < p->total - at ? rows - i : p->total - at;
        one.first = head * p->columns * p->total;
        read_turned(&one, at, n, column, columns, to + i * columns);
    }
}

/* Whether row i of the parameter has the numbers of row row_at(i) of the file. */
static bool has_rows(const mhai_stored_parameter *p)
{
    return !p->transposed && p->form != MHAI_PLUS_ONE && p->form != MHAI_MINUS_EXP &&
           p->form != MHAI_CONVOLUTIONS && p->form != MHAI_LAYER_COLUMNS &&
           p->form != MHAI_LAYER_SCALED && !p->from.exponents;
}

/* Read rows. Those that are adjacent in the file are read together. */
static void read_rows(const mhai_stored_parameter *p, int64_t row, int64_t rows, int64_t column,
                      int64_t columns, float *to)
{
    for (int64_t i = 0, n; i < rows; i += n) {
        const int64_t at = row_at(p, row + i);
        for (n = 1; columns == p->columns && i + n < rows && row_at(p, row + i + n) == at + n;) n++;
        mhai_elements_read(p->from, at * p->columns + p->column + column, n * columns,
                           to + i * columns);
    }
}

static void read_convolutions(const mhai_stored_parameter *p, int64_t row, int64_t rows,
                              int64_t column, int64_t columns, float *to)
{
    for (int64_t i = 0; i < rows; i++) {
        const int64_t part = row + i < p->step ? (row + i) / p->block : 2;
        const int64_t at = row + i - part * p->block;
        mhai_elements_read(part > 0 ? p->further[part - 1] : p->from, at * p->columns + column,
                           columns, to + i * columns);
    }
}

void mhai_stored_read(const void *stored, int64_t parameter, int64_t row, int64_t rows,
                      int64_t column, int64_t columns, float *to)
{
    const mhai_stored_parameter *p = &((const mhai_stored *)stored)->parameters[parameter];
    if (p->form == MHAI_CONVOLUTIONS)
        read_convolutions(p, row, rows, column, columns, to);
    else if (p->form == MHAI_HEADS_TURNED)
        read_heads(p, row, rows, column, columns, to);
    else if (p->transposed)
        read_turned(p, row, rows, column, columns, to);
    else
        read_rows(p, row, rows, column, columns, to);
    for (int64_t i = 0; p->form == MHAI_LAYER_SCALED && i < rows; i++) {
        float scale;
        mhai_elements_read(p->further[0], row + i, 1, &scale);
        for (int64_t k = 0; k < columns; k++) to[i * columns + k] *= scale;
    }
    for (int64_t i = 0; p->form == MHAI_PLUS_ONE && i < rows * columns; i++) to[i] += 1;
    for (int64_t i = 0; p->form == MHAI_MINUS_EXP && i < rows * columns; i++)
        to[i] = (float)mha_log(-(double)to[i]);
}

bool mhai_stored_read_coded(const void *stored, int64_t parameter, int64_t row, int64_t rows,
                            int64_t column, int64_t columns, mha_coded *to)
{
    const mhai_stored_parameter *p = &((const mhai_stored *)stored)->parameters[parameter];
    int64_t at[MHA_CODED_ROWS];
    if (!has_rows(p)) return false;
    for (int i = 0; i < MHA_CODED_ROWS; i++) at[i] = row_at(p, row + (i < rows ? i : rows - 1));
    return mhai_gguf_code(p->from.type, p->from.data, p->columns, at, column, columns, to);
}

const void *mhai_stored_find_rows(const void *stored, int64_t parameter, int64_t row, int64_t rows,
                                  mha_dtype *type, int64_t *stride)
{
    const mhai_stored_parameter *p = &((const mhai_stored *)stored)->parameters[parameter];
    const mha_gguf_type from = p->from.type;
    const int64_t at = row_at(p, row);
    if (!has_rows(p) || (from != MHA_GGUF_F16 && from != MHA_GGUF_BF16)) return NULL;
    for (int64_t i = 1; i < rows; i++)
        if (row_at(p, row + i) != at + i) return NULL;
    *type = from == MHA_GGUF_F16 ? MHA_F16 : MHA_BF16;
    *stride = p->columns;
    return p->from.data + at * p->columns * (int64_t)sizeof(uint16_t);
}

mha_status mhai_stored_sinusoids(mha_context *context, const mha_parameter *p,
                                 mhai_stored_parameter *to)
{
    const int64_t rows = p->shape[0], E = p->shape[1];
    mha_tensor table = mha_tensor_contiguous(NULL, MHA_F32, 2, p->shape);
    float *turns = malloc((size_t)p->count * sizeof *turns);
    float *made = malloc((size_t)p->count * sizeof *made);
    table.data = turns;
    const mha_status status =
        turns && made ? mha_sinusoidal_encoding(context, 0, &table) : MHA_NO_MEMORY("checkpoint");
    for (int64_t i = 0; i < rows * E && status == MHA_OK; i++) {
        const int64_t e = i % E;
        made[i - e + e / 2 + e % 2 * ((E + 1) / 2)] = turns[i];
    }
    free(turns);
    *to = (mhai_stored_parameter){.columns = E, .total = rows, .made = made};
    to->from = (mhai_elements){.type = MHA_GGUF_F32, .data = (unsigned char *)made};
    return status;
}

void mhai_stored_release(void *stored)
{
    mhai_stored *own = stored;
    mhai_weights_close(&own->weights);
    for (int64_t i = 0; i < own->count && own->parameters; i++) free(own->parameters[i].made);
    free(own->parameters);
    free(own);
}
