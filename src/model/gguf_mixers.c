/* Mixers other than attention in a GGUF file: gated delta nets and layers of Mamba-2. */
#include "io/file.h"
#include "model/gguf_reading.h"

#include <multihead/component.h>

#include <string.h>

static const char feed_forward[] = "feed_forward_length";

mha_status mhai_gguf_kinds(const mhai_gguf_reading *r, json_t *types)
{
    mha_gguf_value value;
    int64_t width = 0;
    if (!(r->traits & MHAI_GGUF_KINDS)) return MHA_OK;
    if (!mhai_gguf_key(r, feed_forward, &value)) return mhai_gguf_missing(r, feed_forward);
    MHA_TRY(mhai_gguf_check_array(r, &value));
    for (int64_t i = 0; i < (int64_t)json_array_size(types); i++) {
        int64_t own;
        MHA_TRY(mha_gguf_integer(&value, value.array ? i : 0, 0, INT32_MAX, &own));
        const bool mixes =
            strcmp(json_string_value(json_array_get(types, (size_t)i)), "linear_attention") == 0;
        if (own == 0) continue;
        if (!mixes || (width > 0 && own != width))
            return mhai_gguf_refuse(r, &value, mhai_gguf_differs);
        if (json_array_set_new(types, (size_t)i, json_string("mlp")) != 0)
            return MHA_NO_MEMORY("model");
        width = own;
    }
    return mhai_put_count(r->root, "intermediate_size", width) &&
                   mhai_put_text(r->names, "intermediate_size", value.key)
               ? MHA_OK
               : MHA_NO_MEMORY("model");
}

/* Layers of Mamba-2. Attention rotates if rope.scaling.finetuned is true. llama.cpp does not limit
 * steps. */
static mha_status read_spaces(const mhai_gguf_reading *r, const mha_gguf_value *inner,
                              int64_t width, int64_t heads)
{
    const int64_t size = mhai_gguf_count(r, "hidden_size");
    mha_gguf_value value;
    const bool kinds = r->traits & MHAI_GGUF_KINDS, pure = strcmp(r->name, "mamba2") == 0;
    bool rotates = false;
    if (!kinds && (size < 1 || width % size != 0))
        return mhai_gguf_refuse(r, inner,
                                "is not a multiple of embedding_length, which is not supported");
    if (mhai_gguf_key(r, "rope.scaling.finetuned", &value))
        MHA_TRY(mha_gguf_bool(&value, 0, &rotates));
    return (!pure || mhai_put_count(r->root, "head_dim", width / heads)) &&
                   mhai_put_count(r->root, "mamba_d_head", width / heads) &&
                   mhai_put_count(r->root, "mamba_head_dim", width / heads) &&
                   mhai_put_count(r->root, "time_step_min", 0) &&
                   (kinds || (mhai_put_count(r->root, "mamba_expand", width / size) &&
                              mhai_put_count(r->root, "expand", width / size))) &&
                   mhai_put_text(r->root, "position_embedding_type", rotates ? "rope" : "nope")
               ? MHA_OK
               : MHA_NO_MEMORY("model");
}

/* Reject two changes that converters make: reordered value heads that share a key head, and extra
 * layers for multi-token prediction. */
mha_status mhai_gguf_mixers(const mhai_gguf_reading *r)
{
    const int64_t keys = mhai_gguf_count(r, "linear_num_key_heads");
    const int64_t heads = mhai_gguf_count(r, "linear_num_value_heads");
    mha_gguf_value value;
    int64_t width = 0, further = 0;
    if (!(r->traits & (MHAI_GGUF_NETS | MHAI_GGUF_SPACES))) return MHA_OK;
    if (!mhai_gguf_key(r, "ssm.inner_size", &value)) return mhai_gguf_missing(r, "ssm.inner_size");
    MHA_TRY(mha_gguf_integer(&value, 0, 1, INT32_MAX, &width));
    if (heads < 1 || width % heads != 0)
        return mhai_path_fail(MHA_ERR_MODEL, r->path,
                              "'%s' is %lld, which %s.ssm.time_step_rank %lld does not divide",
                              value.key, (long long)width, r->name, (long long)heads);
    if (r->traits & MHAI_GGUF_SPACES) return read_spaces(r, &value, width, heads);
    if (mhai_gguf_key(r, "nextn_predict_layers", &value))
        MHA_TRY(mha_gguf_integer(&value, 0, 0, INT32_MAX, &further));
    if (further > 0) return mhai_gguf_refuse(r, &value, "counts layers that are not supported");
    if (heads != keys && (r->traits & MHAI_GGUF_REORDERED) &&
        mhai_gguf_key(r, "ssm.group_count", &value))
        return mhai_gguf_refuse(r, &value,
                                "differs from ssm.time_step_rank, which is not supported");
    return mhai_put_count(r->root, "linear_value_head_dim", width / heads) ? MHA_OK
                                                                           : MHA_NO_MEMORY("model");
}
