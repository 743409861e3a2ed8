/* The multi-head attention module: description, creation, destruction. See module_forward.c for its
 * calls and module_parameters.c for its parameters by name. */
#include "base/checked.h"
#include "base/context.h"
#include "base/need.h"
#include "module/module_parts.h"

#include <multihead/component.h>

enum {
    KNOWN_FLAGS = MHA_MODULE_NO_QKV_BIAS | MHA_MODULE_NO_OUT_BIAS | MHA_MODULE_BIAS_KV |
                  MHA_MODULE_ZERO_ATTN | MHA_MODULE_SINKS | MHA_MODULE_ROPE | MHA_MODULE_QK_NORM
};

/* ---- description --------------------------------------------------------------------------- */

/* The upper bounds prevent overflow when two of these numbers are multiplied. */
static mha_status fill_defaults(mha_module_desc *d)
{
    MHA_TRY(mhai_check_flags("mha_module_desc", d->flags, KNOWN_FLAGS));
    MHA_TRY(mhai_check_range("mha_module_desc: embed_dim", d->embed_dim, 1, INT32_MAX));
    MHA_TRY(mhai_check_range("mha_module_desc: num_heads", d->num_heads, 1, INT32_MAX));
    if (d->head_dim == 0 && d->embed_dim % d->num_heads != 0)
        return mha_fail(MHA_ERR_SHAPE,
                        "embed_dim %lld is not a multiple of num_heads %lld; choose another number "
                        "of heads or set head_dim",
                        (long long)d->embed_dim, (long long)d->num_heads);
    if (d->kv_heads == 0) d->kv_heads = d->num_heads;
    if (d->head_dim == 0) d->head_dim = d->embed_dim / d->num_heads;
    if (d->value_head_dim == 0) d->value_head_dim = d->head_dim;
    if (d->key_dim == 0) d->key_dim = d->embed_dim;
    if (d->value_dim == 0) d->value_dim = d->embed_dim;
    MHA_TRY(mhai_check_range("mha_module_desc: kv_heads", d->kv_heads, 1, INT32_MAX));
    MHA_TRY(mhai_check_range("mha_module_desc: head_dim", d->head_dim, 1, INT32_MAX));
    MHA_TRY(mhai_check_range("mha_module_desc: value_head_dim", d->value_head_dim, 1, INT32_MAX));
    MHA_TRY(mhai_check_range("mha_module_desc: key_dim", d->key_dim, 1, INT32_MAX));
    MHA_TRY(mhai_check_range("mha_module_desc: value_dim", d->value_dim, 1, INT32_MAX));
    if (d->num_heads % d->kv_heads != 0)
        return mha_fail(MHA_ERR_SHAPE, "num_heads %lld is not a multiple of kv_heads %lld",
                        (long long)d->num_heads, (long long)d->kv_heads);
    return MHA_OK;
}

/* ---- creation and destruction -------------------------------------------------------------- */

static mha_status create_projections(mha_context *context, mha_module *module)
{
    const mha_module_desc *d = &module->desc;
    const int64_t width[MHAI_PROJECTIONS][2] = {
        [MHAI_Q] = {d->embed_dim, d->num_heads * d->head_dim},
        [MHAI_K] = {d->key_dim, d->kv_heads * d->head_dim},
        [MHAI_V] = {d->value_dim, d->kv_heads * d->value_head_dim},
        [MHAI_O] = {d->num_heads * d->value_head_dim, d->embed_dim},
    };
    for (int i = 0; i < MHAI_PROJECTIONS; i++) {
        uint32_t without = i == MHAI_O ? MHA_MODULE_NO_OUT_BIAS : MHA_MODULE_NO_QKV_BIAS;
        MHA_TRY(mhai_linear_create(context, width[i][0], width[i][1], !(d->flags & without),
                                   &module->projection[i]));
    }
    return MHA_OK;
}

/* Create the vectors that the flags request: ones for the weights of norms, otherwise zeros. */
static mha_status create_vectors(mha_module *module)
{
    const mha_module_desc *d = &module->desc;
    const mha_allocator *a = &module->allocator;
    const struct {
        uint32_t flag;
        int64_t length;
    } vectors[MHAI_VECTORS] = {
        [MHAI_BIAS_K] = {MHA_MODULE_BIAS_KV, d->kv_heads * d->head_dim},
        [MHAI_BIAS_V] = {MHA_MODULE_BIAS_KV, d->kv_heads * d->value_head_dim},
        [MHAI_Q_NORM] = {MHA_MODULE_QK_NORM, d->head_dim},
        [MHAI_K_NORM] = {MHA_MODULE_QK_NORM, d->head_dim},
        [MHAI_SINKS] = {MHA_MODULE_SINKS, d->num_heads},
    };
    for (int i = 0; i < MHAI_VECTORS; i++) {
        if (!(d->flags & vectors[i].flag)) continue;
        size_t bytes;
        if (!mhai_mul_size((size_t)vectors[i].length, sizeof(float), &bytes) || bytes > PTRDIFF_MAX)
            return mha_fail(MHA_ERR_SIZE, "module: %lld elements do not fit in memory",
                            (long long)vectors[i].length);
        module->vector[i] = a->alloc(a->user, bytes, 64);
        if (!module->vector[i])
            return mha_fail(MHA_ERR_NOMEM, "module: cannot allocate %zu bytes", bytes);
        module->vector_length[i] = vectors[i].length;
        bool norm = i == MHAI_Q_NORM || i == MHAI_K_NORM;
        for (int64_t n = 0; n < vectors[i].length; n++) module->vector[i][n] = norm;
    }
    return MHA_OK;
}

mha_status mha_module_create(mha_context *context, const mha_module_desc *desc, mha_module **module)
{
    MHA_NEED("mha_module_create", context, desc, module);
    mha_module_desc d;
    MHA_TRY(mhai_struct_copy("mha_module_desc", &d, sizeof d,
                             offsetof(mha_module_desc, rope_pairing), desc));
    MHA_TRY(fill_defaults(&d));
    MHA_TRY(mhai_module_position_check(context, &d));
    const mha_allocator *a = &context->allocator;
    mha_module *made = a->alloc(a->user, sizeof *made, _Alignof(mha_module));
    if (!made) return mha_fail(MHA_ERR_NOMEM, "module: cannot allocate %zu bytes", sizeof *made);
    *made = (mha_module){.allocator = *a, .desc = d};
    mha_status status = create_projections(context, made);
    if (status == MHA_OK) status = create_vectors(made);
    if (status == MHA_OK)
        *module = made;
    else
        mha_module_destroy(made);
    return status;
}

void mha_module_destroy(mha_module *module)
{
    if (!module) return;
    mha_allocator a = module->allocator;
    for (int i = 0; i < MHAI_PROJECTIONS; i++) mha_linear_destroy(module->projection[i]);
    for (int i = 0; i < MHAI_VECTORS; i++)
        if (module->vector[i])
            a.release(a.user, module->vector[i], (size_t)module->vector_length[i] * sizeof(float));
    a.release(a.user, module, sizeof *module);
}

void mha_module_describe(const mha_module *module, mha_module_desc *desc)
{
    *desc = module->desc;
    desc->struct_size = sizeof *desc;
}
