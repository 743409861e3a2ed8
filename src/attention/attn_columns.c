/* Column sums: the weight that each key receives, summed over queries in order, in double. A
 * call with all queries starts at 0 and rounds the result. A part continues the unrounded
 * sums of the earlier parts. */
#include "attention/attn.h"

#include <multihead/component.h>

#include <string.h>

/* The sums of a part. */
static double *part_sums(const mhai_attn_problem *p, const mhai_attn_sequence *seq, int64_t h,
                         int64_t key)
{
    const int64_t before = p->key_starts ? seq->s0 : seq->b * p->S;
    return p->part->columns->sums + mhai_attn_columns_at(p->H, before, seq->stored, h) + key;
}

void mhai_attn_begin_columns(const mhai_attn_problem *p, const mhai_attn_sequence *seq, int64_t h,
                             int64_t key, int64_t count, double *sums)
{
    const size_t bytes = (size_t)count * sizeof *sums;
    if (p->part)
        memcpy(sums, part_sums(p, seq, h, key), bytes);
    else
        memset(sums, 0, bytes);
}

void mhai_attn_end_columns(const mhai_attn_problem *p, const mhai_attn_sequence *seq, int64_t h,
                           int64_t key, int64_t count, const double *sums)
{
    const mha_tensor *x = &p->want.column_sums;
    if (p->part) {
        memcpy(part_sums(p, seq, h, key), sums, (size_t)count * sizeof *sums);
        return;
    }
    float *out = (float *)x->data + seq->batch * x->stride[0] + h * x->stride[1] + seq->k0 + key;
    for (int64_t s = 0; s < count; s++) out[s] = (float)sums[s];
}

mha_status mhai_attn_run_columns(mha_context *context, const mhai_attn_problem *p, int64_t items,
                                 mha_parallel_body body, void *argument)
{
    const mhai_attn_columns *columns = p->part ? p->part->columns : NULL;
    if (columns) MHA_TRY(columns->take(columns->user));
    mha_parallel_for(context, items, body, argument);
    return columns ? columns->pass(columns->user) : MHA_OK;
}
