/* Parameters of a module by their PyTorch names, with one list for setting, getting and listing.
 *
 * Parameters of a projection have up to three names: a part of in_proj, the name in an
 * nn.MultiheadAttention with separate weights (q_proj_weight), and the name in a linear layer
 * (q_proj.weight). A state_dict follows PyTorch: it has in_proj_weight if the three weights have
 * the same shape, otherwise separate weights. Biases are always in one tensor. */
#include "base/convert.h"
#include "base/need.h"
#include "base/tensor.h"
#include "module/module_parts.h"

#include <multihead/component.h>

#include <string.h>

typedef enum kind { WEIGHT, BIAS, VECTOR } kind;
typedef enum listed { ALWAYS, NEVER, IF_ALIKE, UNLESS_ALIKE } listed; /* in a state_dict */

typedef struct entry {
    const char *name;
    kind kind;
    int first, count; /* the projections that it contains, in order; or the vector */
    int ndim;
    listed listed;
} entry;

/* In the order of a state_dict. */
static const entry entries[] = {
    {"in_proj_weight", WEIGHT, MHAI_Q, 3, 2, IF_ALIKE},
    {"q_proj_weight", WEIGHT, MHAI_Q, 1, 2, UNLESS_ALIKE},
    {"k_proj_weight", WEIGHT, MHAI_K, 1, 2, UNLESS_ALIKE},
    {"v_proj_weight", WEIGHT, MHAI_V, 1, 2, UNLESS_ALIKE},
    {"in_proj_bias", BIAS, MHAI_Q, 3, 1, ALWAYS},
    {"bias_k", VECTOR, MHAI_BIAS_K, 1, 3, ALWAYS},
    {"bias_v", VECTOR, MHAI_BIAS_V, 1, 3, ALWAYS},
    {"q_norm.weight", VECTOR, MHAI_Q_NORM, 1, 1, ALWAYS},
    {"k_norm.weight", VECTOR, MHAI_K_NORM, 1, 1, ALWAYS},
    {"sinks", VECTOR, MHAI_SINKS, 1, 1, ALWAYS},
    {"out_proj.weight", WEIGHT, MHAI_O, 1, 2, ALWAYS},
    {"out_proj.bias", BIAS, MHAI_O, 1, 1, ALWAYS},
    {"q_proj.weight", WEIGHT, MHAI_Q, 1, 2, NEVER},
    {"k_proj.weight", WEIGHT, MHAI_K, 1, 2, NEVER},
    {"v_proj.weight", WEIGHT, MHAI_V, 1, 2, NEVER},
    {"q_proj.bias", BIAS, MHAI_Q, 1, 1, NEVER},
    {"k_proj.bias", BIAS, MHAI_K, 1, 1, NEVER},
    {"v_proj.bias", BIAS, MHAI_V, 1, 1, NEVER},
};
enum { ENTRIES = sizeof entries / sizeof entries[0] };

/* ---- the list ------------------------------------------------------------------------------ */

/* Whether the weights of q, k and v have the same shape, so that one tensor can hold them. */
static bool alike(const mha_module *module)
{
    const mha_linear *q = module->projection[MHAI_Q];
    for (int i = MHAI_K; i <= MHAI_V; i++)
        if (module->projection[i]->inputs != q->inputs ||
            module->projection[i]->outputs != q->outputs)
            return false;
    return true;
}

static bool has(const mha_module *module, const entry *e)
{
    if (e->kind == VECTOR) return module->vector[e->first];
    return e->kind == WEIGHT || module->projection[e->first]->has_bias;
}

static void shape_of(const mha_module *module, const entry *e, int64_t shape[3])
{
    int64_t rows = 0;
    shape[0] = shape[1] = shape[2] = 1;
    if (e->kind == VECTOR) {
        shape[e->ndim - 1] = module->vector_length[e->first];
        return;
    }
    for (int i = 0; i < e->count; i++) rows += module->projection[e->first + i]->outputs;
    shape[0] = rows;
    if (e->kind == WEIGHT) shape[1] = module->projection[e->first]->inputs;
}

static bool is_listed(const mha_module *module, const entry *e)
{
    if (e->listed == NEVER || !has(module, e)) return false;
    return e->listed == ALWAYS || alike(module) == (e->listed == IF_ALIKE);
}

static const entry *listed_at(const mha_module *module, int64_t index)
{
    for (int i = 0; i < ENTRIES && index >= 0; i++)
        if (is_listed(module, &entries[i]) && index-- == 0) return &entries[i];
    return NULL;
}

bool mha_module_parameter_at(const mha_module *module, int64_t index, mha_module_parameter *found)
{
    const entry *e = module && found ? listed_at(module, index) : NULL;
    if (!e) return false;
    *found = (mha_module_parameter){.name = e->name, .ndim = e->ndim};
    int64_t shape[3];
    shape_of(module, e, shape);
    memcpy(found->shape, shape, (size_t)e->ndim * sizeof(int64_t));
    return true;
}

bool mhai_module_place_at(const mha_module *module, int64_t index, mhai_module_place *place)
{
    const entry *e = listed_at(module, index);
    if (!e) return false;
    *place = (mhai_module_place){e->kind == WEIGHT, e->kind == VECTOR, e->first, e->count};
    return true;
}

int64_t mha_module_parameter_count(const mha_module *module)
{
    mha_module_parameter p;
    int64_t sum = 0;
    for (int64_t i = 0; mha_module_parameter_at(module, i, &p); i++) {
        int64_t count = 1; /* cannot overflow, because the tensor is in memory */
        for (int d = 0; d < p.ndim; d++) count *= p.shape[d];
        sum += count;
    }
    return sum;
}

/* ---- by name ------------------------------------------------------------------------------- */

/* Find the entry of a name, and check it against a tensor. */
static mha_status find(const mha_module *module, const char *name, const mha_tensor *value,
                       const entry **found)
{
    const entry *e = entries;
    while (e < entries + ENTRIES && strcmp(name, e->name) != 0) e++;
    if (e == entries + ENTRIES)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "parameter '%.80s' is unknown, expected a PyTorch name such as "
                        "in_proj_weight, q_proj.weight or out_proj.bias",
                        name);
    if (!has(module, e))
        return mha_fail(MHA_ERR_ARGUMENT, "%s: this module was created without that %s", name,
                        e->kind == BIAS ? "bias" : "parameter");
    if (e->kind == WEIGHT && e->count > 1 && !alike(module))
        return mha_fail(MHA_ERR_SHAPE,
                        "%s requires q, k and v projections of one shape; use q_proj_weight, "
                        "k_proj_weight and v_proj_weight instead",
                        name);
    int64_t shape[3];
    shape_of(module, e, shape);
    *found = e;
    return mhai_tensor_check(name, value, value ? value->dtype : MHA_F32, e->ndim, shape);
}

/* Address of element i of a vector in a tensor whose other axes have length 1. */
static void *vector_element(const mha_tensor *tensor, int64_t i)
{
    const int64_t at = i * tensor->stride[tensor->ndim - 1];
    return (char *)tensor->data + at * (int64_t)mha_dtype_size(tensor->dtype);
}

/* Allocate panels for all weights of an entry, or for none of them. */
static mha_status take_panels(mha_module *module, const entry *e)
{
    mha_status status = MHA_OK;
    for (int i = 0; e->kind == WEIGHT && i < e->count && status == MHA_OK; i++)
        status = mhai_linear_take_panels(module->projection[e->first + i]);
    for (int i = 0; status != MHA_OK && i < e->count; i++)
        if (module->projection[e->first + i]->lent.data)
            mhai_linear_drop_panels(module->projection[e->first + i]);
    return status;
}

mha_status mha_module_set_parameter(mha_module *module, const char *name, const mha_tensor *value)
{
    MHA_NEED("mha_module_set_parameter", module, name);
    const entry *e;
    MHA_TRY(find(module, name, value, &e));
    MHA_TRY(mhai_tensor_check_real(name, value));
    MHA_TRY(take_panels(module, e));
    for (int64_t i = 0; e->kind == VECTOR && i < module->vector_length[e->first]; i++)
        mhai_widen(value->dtype, vector_element(value, i), 1, &module->vector[e->first][i]);
    int64_t row = 0;
    for (int i = 0; e->kind != VECTOR && i < e->count; i++) {
        mha_linear *layer = module->projection[e->first + i];
        if (e->kind == BIAS)
            mhai_linear_set_bias(layer, value, row);
        else
            mhai_linear_set_weight(layer, value, row);
        row += layer->outputs;
    }
    return MHA_OK;
}

mha_status mha_module_borrow_parameter(mha_module *module, const char *name,
                                       const mha_tensor *value)
{
    MHA_NEED("mha_module_borrow_parameter", module, name);
    const entry *e;
    MHA_TRY(find(module, name, value, &e));
    MHA_TRY(mhai_tensor_check_real(name, value));
    if (e->kind != WEIGHT)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "%s: only weights can be borrowed; set it with mha_module_set_parameter()",
                        name);
    MHA_TRY(mhai_tensor_check_last(name, value));
    int64_t row = 0;
    for (int i = 0; i < e->count; i++) {
        mha_linear *layer = module->projection[e->first + i];
        mhai_linear_borrow(layer, value, row);
        row += layer->outputs;
    }
    return MHA_OK;
}

mha_status mha_module_get_parameter(const mha_module *module, const char *name,
                                    const mha_tensor *value)
{
    MHA_NEED("mha_module_get_parameter", module, name);
    const entry *e;
    MHA_TRY(find(module, name, value, &e));
    MHA_TRY(mhai_tensor_check(name, value, MHA_F32, value->ndim, NULL));
    MHA_TRY(mhai_tensor_check_output(name, value));
    for (int64_t i = 0; e->kind == VECTOR && i < module->vector_length[e->first]; i++)
        *(float *)vector_element(value, i) = module->vector[e->first][i];
    int64_t row = 0;
    for (int i = 0; e->kind != VECTOR && i < e->count; i++) {
        const mha_linear *layer = module->projection[e->first + i];
        if (e->kind == BIAS)
            mhai_linear_get_bias(layer, value, row);
        else
            mhai_linear_get_weight(layer, value, row);
        row += layer->outputs;
    }
    return MHA_OK;
}
