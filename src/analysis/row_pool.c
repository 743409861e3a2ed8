/* Maps with fewer cells than tokens. A cell has the weight of largest magnitude in its block. Rows
 * are added one at a time. */
#include "base/checked.h"
#include "base/tensor.h"

#include <multihead/component.h>
#include <multihead/heads.h>

#include <math.h>

typedef struct pool_job {
    const mha_tensor *p, *maps;
    const uint8_t *heads;
    int64_t row, cell;
    int64_t first, count; /* rows of the maps that this call changes */
} pool_job;

/* NaN counts as larger than any number. */
static float larger(float a, float b)
{
    return fabsf(a) < fabsf(b) || isnan(b) ? b : a;
}

static void pool_row(const float *from, int64_t stride, int64_t keys, int64_t cell, float *to)
{
    for (int64_t s = 0; s < keys; to++)
        for (const int64_t end = s + mhai_min_i64(cell, keys - s); s < end; s++)
            *to = larger(*to, from[s * stride]);
}

/* An item is all rows that pool into one row of a map, so that a single thread writes that row. */
static void pool_block(void *argument, int64_t item, int worker)
{
    const pool_job *x = argument;
    const int64_t h = item / x->count, i = x->first + item % x->count;
    (void)worker;
    if (x->heads && !x->heads[h]) return;
    float *to = (float *)x->maps->data + h * x->maps->stride[0] + i * x->maps->stride[1];
    for (int64_t r = 0; r < x->p->shape[1]; r++)
        if ((x->row + r) / x->cell == i)
            pool_row((const float *)x->p->data + h * x->p->stride[0] + r * x->p->stride[1],
                     x->p->stride[2], x->p->shape[2], x->cell, to);
}

static mha_status check(const mha_tensor *p, int64_t row, int64_t cell, const mha_tensor *maps)
{
    MHA_TRY(mhai_tensor_check("p", p, MHA_F32, 3, NULL));
    MHA_TRY(mhai_tensor_check("maps", maps, MHA_F32, 3, (int64_t[]){p->shape[0], -1, -1}));
    MHA_TRY(mhai_tensor_check_last("maps", maps));
    MHA_TRY(mhai_tensor_check_output("maps", maps));
    MHA_TRY(mhai_tensor_check_disjoint("maps", maps, "p", p));
    const int64_t rows = p->shape[1], keys = p->shape[2];
    if (cell < 1 || row < 0 || row > INT64_MAX - rows)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_attention_pool_rows: row %lld, cell %lld",
                        (long long)row, (long long)cell);
    if ((rows > 0 && (row + rows - 1) / cell >= maps->shape[1]) ||
        (keys > 0 && (keys - 1) / cell >= maps->shape[2]))
        return mha_fail(MHA_ERR_SHAPE,
                        "maps: %lld x %lld cells of %lld tokens, too few for rows to %lld of %lld "
                        "keys",
                        (long long)maps->shape[1], (long long)maps->shape[2], (long long)cell,
                        (long long)(row + rows - 1), (long long)keys);
    return MHA_OK;
}

mha_status mha_attention_pool_rows(mha_context *context, const mha_tensor *p, int64_t row,
                                   int64_t cell, const uint8_t *heads, const mha_tensor *maps)
{
    if (!context) return mha_fail(MHA_ERR_NULL, "mha_attention_pool_rows: context is NULL");
    MHA_TRY(check(p, row, cell, maps));
    if (p->shape[1] == 0 || p->shape[2] == 0) return MHA_OK;
    pool_job job = {p, maps, heads, row, cell, .first = row / cell};
    job.count = (row + p->shape[1] - 1) / cell - job.first + 1;
    mha_parallel_for(context, p->shape[0] * job.count, pool_block, &job);
    return MHA_OK;
}
