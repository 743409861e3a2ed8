/* Norms and rotation of queries and keys, and positions of tokens. */
#include "base/checked.h"
#include "base/need.h"
#include "module/module_parts.h"

#include <multihead/component.h>

static mhai_attend attend_of(const mha_module_desc *d, const float *q_norm, const float *k_norm)
{
    return (mhai_attend){.qk_norm = d->qk_norm,
                         .qk_norm_epsilon = d->qk_norm_epsilon,
                         .q_norm = q_norm,
                         .k_norm = k_norm,
                         .rotates = d->flags & MHA_MODULE_ROPE,
                         .rope = {.struct_size = sizeof(mha_rope_desc),
                                  .pairing = d->rope_pairing,
                                  .rotary_dim = d->rotary_dim,
                                  .base = d->rope_base,
                                  .factor = d->rope_factor}};
}

mhai_attend mhai_module_attend(const mha_module *module)
{
    return attend_of(&module->desc, module->vector[MHAI_Q_NORM], module->vector[MHAI_K_NORM]);
}

/* Fill in defaults, and reject settings whose flag is missing. */
mha_status mhai_module_position_check(mha_context *context, mha_module_desc *d)
{
    static const float weight = 1; /* stands in for the weights */
    const bool norms = d->flags & MHA_MODULE_QK_NORM, rotates = d->flags & MHA_MODULE_ROPE;
    MHA_TRY(mhai_check_reserved("mha_module_desc", d->reserved));
    if (!rotates &&
        (d->rotary_dim != 0 || d->rope_base != 0 || d->rope_factor != 0 || d->rope_pairing != 0))
        return mha_fail(MHA_ERR_ARGUMENT, "mha_module_desc: rope_pairing, rotary_dim, rope_base "
                                          "and rope_factor require the flag MHA_MODULE_ROPE");
    if (!norms && (d->qk_norm != 0 || d->qk_norm_epsilon != 0))
        return mha_fail(
            MHA_ERR_ARGUMENT,
            "mha_module_desc: qk_norm and qk_norm_epsilon require the flag MHA_MODULE_QK_NORM");
    if (rotates && d->rotary_dim == 0) d->rotary_dim = d->head_dim;
    if (rotates && d->rope_base == 0) d->rope_base = 10000;
    if (rotates && d->rope_factor == 0) d->rope_factor = 1;
    if (norms && d->qk_norm_epsilon == 0)
        d->qk_norm_epsilon = d->qk_norm == MHA_QK_NORM_L2 ? 1e-12f : 1e-6f;
    const mhai_attend attend = attend_of(d, norms ? &weight : NULL, norms ? &weight : NULL);
    return mhai_attend_check(context, &attend, d->head_dim);
}

/* ---- positions of tokens ------------------------------------------------------------------- */

/* Positions in each sequence of a ragged batch, starting at its `first`. */
static mha_status take_ids(mhai_forward *f, const int64_t *starts, int64_t rows, bool query,
                           mha_tensor *ids, mha_positions *positions)
{
    const mha_attention_desc *d = &f->at.desc;
    int64_t *id;
    MHA_TRY(mhai_module_take(f, rows, sizeof(int64_t), &id));
    *ids = mha_tensor_contiguous(id, MHA_I64, 2, (int64_t[]){1, rows});
    *positions = (mha_positions){.ids = ids};
    for (int64_t i = 0; id && i < rows; i++) id[i] = 0;
    for (int64_t b = 0; id && b < d->sequences; b++) {
        int64_t first = query ? d->q_offsets ? d->q_offsets[b] : d->q_offset : 0;
        if (starts[b] < 0) continue; /* attention will reject it */
        for (int64_t i = starts[b]; i < starts[b + 1] && i < rows; i++)
            if (!mhai_add_i64(first, i - starts[b], &id[i]))
                return mha_fail(MHA_ERR_SIZE, "q_offset: position %lld of sequence %lld overflows",
                                (long long)(i - starts[b]), (long long)b);
    }
    return MHA_OK;
}

/* Use the caller's positions, or defaults. By default, keys start at 0 or at the cache's length,
 * and queries have the positions that masks use. */
static mha_status resolve(mhai_forward *f, const mha_positions *given, bool query,
                          mha_positions *positions)
{
    const mha_attention_desc *d = &f->at.desc;
    const int64_t *starts = query ? d->query_starts : d->key_starts;
    *positions = (mha_positions){.start = 0};
    if (given && !(f->module->desc.flags & MHA_MODULE_ROPE))
        return mha_fail(MHA_ERR_ARGUMENT, "mha_module_call: %s requires the flag MHA_MODULE_ROPE",
                        query ? "query_positions" : "key_positions");
    if (given)
        *positions = *given;
    else if (f->at.cache)
        positions->starts = query ? f->query_starts : f->lengths;
    else if (starts && d->sequences > 0)
        return take_ids(f, starts, query ? f->T : f->S, query, query ? &f->query_ids : &f->key_ids,
                        positions);
    else if (query && d->q_offsets)
        positions->starts = d->q_offsets;
    else if (query)
        positions->start = d->q_offset;
    return MHA_OK;
}

mha_status mhai_module_position_prepare(mhai_forward *f, const mha_module_call *call)
{
    bool turns = f->module->desc.flags & MHA_MODULE_ROPE;
    if (turns || call->query_positions)
        MHA_TRY(resolve(f, call->query_positions, true, &f->at.query_positions));
    if (turns || call->key_positions)
        MHA_TRY(resolve(f, call->key_positions, false, &f->at.key_positions));
    return MHA_OK;
}
