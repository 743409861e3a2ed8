/* Scratch of a module's call. */
#include "module/module_parts.h"

#include "base/checked.h"

#include <multihead/component.h>

#include <string.h>

mha_status mhai_module_take(mhai_forward *f, int64_t count, size_t size, void *pointer)
{
    int64_t bytes;
    if (!f->measuring) return mha_scratch_alloc(f->context, count, size, pointer);
    memcpy(pointer, &(void *){NULL}, sizeof(void *));
    if (count > INT64_MAX - 64 || !mhai_mul_i64(count, (int64_t)size, &bytes) ||
        bytes > INT64_MAX - 64 ||
        !mhai_add_i64(f->bytes, mhai_round_up(mhai_max_i64(bytes, 1), 64), &f->bytes))
        return mha_fail(MHA_ERR_SIZE, "module: its scratch overflows 64 bits");
    return MHA_OK;
}
