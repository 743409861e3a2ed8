/* Attention of contiguous float arrays: builds the tensors and the descriptor for the caller. */
#include "base/need.h"

#include <multihead/attention.h>
#include <multihead/component.h>

static mha_tensor array(const float *data, int64_t batch, int64_t heads, int64_t length,
                        int64_t width)
{
    return mha_tensor_contiguous((void *)(uintptr_t)data, MHA_F32, 4,
                                 (int64_t[]){batch, heads, length, width});
}

mha_status mha_attention_floats(mha_context *context, const mha_attention_sizes *sizes,
                                const float *q, const float *k, const float *v, float *o)
{
    mha_attention_sizes n;
    if (!sizes) return mha_fail(MHA_ERR_NULL, "mha_attention_floats: sizes is NULL");
    MHA_TRY(mhai_struct_copy("mha_attention_sizes", &n, sizeof n, sizeof n, sizes));
    if (n.flags & ~(uint32_t)MHA_ATTENTION_CAUSAL)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_attention_floats: flags is %#x, expected MHA_ATTENTION_CAUSAL or 0; "
                        "mha_attention_forward() takes others",
                        (unsigned)n.flags);
    if (n.batch == 0) n.batch = 1;
    if (n.heads == 0) n.heads = 1;
    if (n.kv_heads == 0) n.kv_heads = n.heads;
    if (n.keys == 0) n.keys = n.queries;
    if (n.value_dim == 0) n.value_dim = n.head_dim;
    const mha_tensor Q = array(q, n.batch, n.heads, n.queries, n.head_dim);
    const mha_tensor K = array(k, n.batch, n.kv_heads, n.keys, n.head_dim);
    const mha_tensor V = array(v, n.batch, n.kv_heads, n.keys, n.value_dim);
    const mha_tensor O = array(o, n.batch, n.heads, n.queries, n.value_dim);
    const int64_t after = (int64_t)((uint64_t)n.keys - (uint64_t)n.queries); /* wraps on overflow */
    const mha_attention_desc desc = {.struct_size = sizeof desc,
                                     .flags = n.flags,
                                     .q_offset = n.flags & MHA_ATTENTION_CAUSAL ? after : 0};
    return mha_attention_forward(context, &desc, &Q, &K, &V, &O, NULL);
}
