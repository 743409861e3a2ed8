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

static void keep_part(const mha_tensor *from, int64_t first, const mha_tensor *to)
{
    const size_t size = mha_dtype_size(to->dtype);
    const size_t bytes = (size_t)(from->shape[2] * from->shape[3]) * size;
    for (int64_t b = 0; b < to->shape[0]; b++)
        for (int64_t h = 0; h < to->shape[1]; h++)
            memcpy((char *)to->data +
                       (size_t)(b * to->stride[0] + h * to->stride[1] + first * to->stride[2]) *
                           size,
                   (const char *)from->data +
                       (size_t)(b * from->stride[0] + h * from->stride[1]) * size,
                   bytes);
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
        keep_part(&keys.k, keys.first, k);
        keep_part(&keys.v, keys.first, v);
    }
}
