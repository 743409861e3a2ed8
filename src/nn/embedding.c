/* Embeddings: rows of a table by index, and the gradient of the table. */
#include "nn/nn_check.h"

#include "base/checked.h"
#include "base/need.h"

/* Columns of the table per work item. One thread owns them and adds all rows in order. */
enum { OWNED_COLUMNS = 16 };

typedef struct embedding_job {
    const mha_tensor *table, *ids, *y; /* backward: y is dy */
    bool add;
} embedding_job;

static mha_status check(const char *table_name, const mha_tensor *table, const mha_tensor *ids,
                        const char *name, const mha_tensor *y)
{
    MHA_TRY(mhai_nn_matrix(table_name, table, -1, -1));
    MHA_TRY(mhai_tensor_check("ids", ids, MHA_I32, 1, NULL));
    for (int64_t i = 0; i < ids->shape[0]; i++)
        MHA_TRY(mhai_check_entry("ids", i, mhai_nn_id(ids, i), 0, table->shape[0] - 1));
    return mhai_nn_matrix(name, y, ids->shape[0], table->shape[1]);
}

static void gather_row(void *argument, int64_t row, int worker)
{
    const embedding_job *job = argument;
    (void)worker;
    const float *from = mhai_nn_row(job->table, mhai_nn_id(job->ids, row));
    float *y = mhai_nn_row(job->y, row);
    for (int64_t i = 0; i < job->y->shape[1]; i++) y[i] = job->add ? y[i] + from[i] : from[i];
}

mha_status mha_embedding(mha_context *context, const mha_tensor *table, const mha_tensor *ids,
                         uint32_t flags, const mha_tensor *y)
{
    if (!context) return mha_fail(MHA_ERR_NULL, "mha_embedding: context is NULL");
    MHA_TRY(mhai_check_flags("mha_embedding", flags, MHA_GRADIENT_ADD));
    MHA_TRY(check("table", table, ids, "y", y));
    MHA_TRY(mhai_tensor_check_output("y", y));
    MHA_TRY(mhai_tensor_check_disjoint("y", y, "table", table));
    MHA_TRY(mhai_tensor_check_disjoint("y", y, "ids", ids));
    embedding_job job = {table, ids, y, (flags & MHA_GRADIENT_ADD) != 0};
    mha_parallel_for(context, y->shape[0], gather_row, &job);
    return MHA_OK;
}

static void scatter_columns(void *argument, int64_t item, int worker)
{
    const embedding_job *job = argument;
    (void)worker;
    const int64_t begin = item * OWNED_COLUMNS;
    const int64_t end = mhai_min_i64(begin + OWNED_COLUMNS, job->y->shape[1]);
    for (int64_t row = 0; row < job->y->shape[0]; row++) {
        const float *dy = mhai_nn_row(job->y, row);
        float *to = mhai_nn_row(job->table, mhai_nn_id(job->ids, row));
        for (int64_t i = begin; i < end; i++) to[i] += dy[i];
    }
}

mha_status mha_embedding_backward(mha_context *context, const mha_tensor *ids, const mha_tensor *dy,
                                  const mha_tensor *dtable)
{
    if (!context) return mha_fail(MHA_ERR_NULL, "mha_embedding_backward: context is NULL");
    MHA_TRY(check("dtable", dtable, ids, "dy", dy));
    MHA_TRY(mhai_tensor_check_output("dtable", dtable));
    MHA_TRY(mhai_tensor_check_disjoint("dtable", dtable, "dy", dy));
    MHA_TRY(mhai_tensor_check_disjoint("dtable", dtable, "ids", ids));
    embedding_job job = {dtable, ids, dy, true};
    mha_parallel_for(context, mhai_ceil_div(dy->shape[1], OWNED_COLUMNS), scatter_columns, &job);
    return MHA_OK;
}
