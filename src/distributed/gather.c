/* See gather.h. */
#include "distributed/gather.h"

#include "base/checked.h"

#include <multihead/component.h>

#include <string.h>

mha_status mhai_gather_take(mha_context *context, const mhai_split *s, const mha_tensor *x,
                            mha_tensor *all)
{
    void *memory;
    int64_t shape[4], count = 1;
    memcpy(shape, x->shape, sizeof shape);
    shape[2] = s->given.keys;
    for (int i = 0; i < 4; i++)
        if (!mhai_mul_i64(count, shape[i], &count))
            return mha_fail(MHA_ERR_SIZE, "k, v: all keys together are beyond the address space");
    MHA_TRY(mha_scratch_alloc(context, count, mha_dtype_size(x->dtype), &memory));
    *all = mha_tensor_contiguous(memory, x->dtype, 4, shape);
    return MHA_OK;
}

mha_status mhai_gather_keys(mhai_ring *ring, const mha_tensor *k, const mha_tensor *v)
{
    const mha_tensor *all[] = {k, v};
    mhai_attn_keys keys;
    int64_t count;
    for (int i = 0; i < 2; i++)
        memset(all[i]->data, 0,
               (size_t)(all[i]->shape[0] * all[i]->stride[0]) * mha_dtype_size(all[i]->dtype));
    for (;;) {
        MHA_TRY(mhai_ring_next(ring, 1, &keys, &count));
        if (count == 0) return MHA_OK;
        mhai_copy_rows(k, keys.first, &keys.k, 0, k->shape, keys.end);
        mhai_copy_rows(v, keys.first, &keys.v, 0, v->shape, keys.end);
    }
}
