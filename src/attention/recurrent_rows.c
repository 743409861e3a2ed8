/* Rows of the map of a recurrent layer, each from its query backward. */
#include "attention/recurrent.h"
#include "base/checked.h"
#include "base/context.h"
#include "base/convert.h"
#include "base/need.h"

#include <multihead/component.h>

enum { BLOCK_FLOATS = 1 << 20 };

typedef struct visit {
    const mhai_recurrent *call;
    int64_t b, row, rows, keys; /* rows of a block; keys of the sequence */
    float *p;                   /* [H,rows,keys] */
    unsigned char *memory;
    size_t worker_bytes;
} visit;

/* A worker's memory. */
typedef struct workspace {
    double *r, *decays; /* [D] */
    float *given;       /* [D] */
} workspace;

static workspace carve(const visit *x, void *memory, size_t *bytes)
{
    const int64_t D = x->call->sizes.D;
    mhai_carver c = {memory, 0};
    workspace w = {.r = mhai_carve(&c, D, sizeof(double))};
    w.decays = mhai_carve(&c, D, sizeof(double));
    w.given = mhai_carve(&c, D, sizeof(float));
    *bytes = c.used;
    return w;
}

static void run_row(void *argument, int64_t item, int worker)
{
    const visit *x = argument;
    const mhai_recurrent *call = x->call;
    const int64_t D = call->sizes.D, h = item / x->rows, t = x->row + item % x->rows;
    size_t bytes;
    const workspace w = carve(x, x->memory + (size_t)worker * x->worker_bytes, &bytes);
    float *p = x->p + item * x->keys;
    mhai_widen(call->q.dtype, mhai_recurrent_row(call, &call->q, x->b, h, t), D, w.given);
    for (int64_t d = 0; d < D; d++) w.r[d] = (double)call->scale * (double)w.given[d];
    memset(p, 0, (size_t)x->keys * sizeof *p);
    for (int64_t j = t; j >= 0; j--) {
        const double b = mhai_recurrent_strength(call, x->b, h, j);
        double sum = 0;
        mhai_widen(call->k.dtype, mhai_recurrent_row(call, &call->k, x->b, h, j), D, w.given);
        for (int64_t d = 0; d < D; d++) sum += w.r[d] * (double)w.given[d];
        p[j] = (float)(b * sum);
        mhai_recurrent_decays(call, x->b, h, j, w.decays);
        const double erased = call->delta ? b * sum : 0;
        for (int64_t d = 0; d < D; d++)
            w.r[d] = (w.r[d] - erased * (double)w.given[d]) * w.decays[call->channels ? d : 0];
    }
}

static mha_status visit_block(mha_context *context, visit *x, mha_rows_fn fn, void *user)
{
    const mhai_recurrent *call = x->call;
    const mha_tensor p =
        mha_tensor_contiguous(x->p, MHA_F32, 3, (int64_t[]){call->H, x->rows, x->keys});
    mha_parallel_for(context, call->H * x->rows, run_row, x);
    return fn(user, x->b, x->row, &p);
}

static mha_status visit_all(mha_context *context, visit *x, int64_t block, mha_rows_fn fn,
                            void *user)
{
    const mhai_recurrent *call = x->call;
    void *memory;
    int64_t cells;
    if (!mhai_mul_i64(call->H, call->T, &cells) || !mhai_mul_i64(cells, block, &cells))
        return mha_fail(MHA_ERR_SIZE, "%lld rows of %lld heads are too many", (long long)block,
                        (long long)call->H);
    MHA_TRY(mha_scratch_alloc(context, cells, sizeof(float), &memory));
    x->p = memory;
    carve(x, NULL, &x->worker_bytes);
    MHA_TRY(mha_scratch_alloc(context, context->num_threads, x->worker_bytes, &memory));
    x->memory = memory;
    for (x->b = 0; x->b < call->B; x->b++) {
        x->keys = mhai_recurrent_length(call, x->b);
        for (x->row = 0; x->row < x->keys; x->row += x->rows) {
            x->rows = mhai_min_i64(block, x->keys - x->row);
            MHA_TRY(visit_block(context, x, fn, user));
        }
    }
    return MHA_OK;
}

mha_status mha_recurrent_visit_rows(mha_context *context, const mha_recurrent_desc *desc,
                                    const mha_tensor *q, const mha_tensor *k, int64_t heads,
                                    int64_t block_rows, mha_rows_fn fn, void *user)
{
    mhai_recurrent call;
    visit x = {.call = &call};
    MHAI_NEED("mha_recurrent_visit_rows", context, q, k);
    if (!fn) return mha_fail(MHA_ERR_NULL, "mha_recurrent_visit_rows: fn is NULL");
    if (block_rows < 0)
        return mha_fail(MHA_ERR_ARGUMENT, "block_rows is %lld, expected at least 0",
                        (long long)block_rows);
    if (heads < 1)
        return mha_fail(MHA_ERR_ARGUMENT, "heads is %lld, expected at least 1", (long long)heads);
    MHA_TRY(mhai_recurrent_check(desc, q, k, NULL, NULL, heads, &call));
    if (call.T == 0 || call.B == 0) return MHA_OK;
    int64_t block = block_rows;
    if (block == 0) block = mhai_max_i64(1, BLOCK_FLOATS / call.T / heads);
    const mha_scratch_mark mark = mha_scratch_top(context);
    const mha_status status = visit_all(context, &x, mhai_min_i64(block, call.T), fn, user);
    mha_scratch_release(context, mark);
    return status;
}
