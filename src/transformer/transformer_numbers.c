/* Access to a transformer's parameters. They are in the flat array or, with a source, in memory
 * or read from the source. */
#include "transformer/transformer_parts.h"

#include "base/checked.h"
#include "base/context.h"

#include <string.h>

mha_transformer *mhai_transformer_share(const mha_transformer *t)
{
    union {
        const mha_transformer *given;
        mha_transformer *own; /* so that it can be destroyed */
    } pointer = {t};
    if (!t->owners) return NULL;
    atomic_fetch_add(t->owners, 1);
    return pointer.own;
}

int64_t mhai_transformer_parameter_at(const mha_transformer *t, int64_t offset)
{
    int64_t low = 0, high = t->parameter_count;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (t->parameters[middle].offset <= offset)
            low = middle;
        else
            high = middle;
    }
    return low;
}

float *mhai_transformer_numbers(const mha_transformer *t, int64_t offset)
{
    if (t->data) return t->data + offset;
    const int64_t i = mhai_transformer_parameter_at(t, offset);
    return t->held + t->held_at[i] + (offset - t->parameters[i].offset);
}

void mhai_transformer_read_rows(const mha_transformer *t, int64_t offset, int64_t cols, int64_t row,
                                int64_t rows, int64_t column, int64_t columns, float *to)
{
    while (rows > 0) {
        const int64_t at = offset + row * cols, i = mhai_transformer_parameter_at(t, at);
        const mha_parameter *p = &t->parameters[i];
        const int64_t first = (at - p->offset) / cols;
        const int64_t count = mhai_min_i64(rows, p->shape[0] - first);
        if (!t->data && t->held_at[i] < 0) {
            t->source.read(t->source.user, i, first, count, column, columns, to);
        } else {
            const float *from = mhai_transformer_numbers(t, at) + column;
            for (int64_t k = 0; k < count; k++)
                memcpy(to + k * columns, from + k * cols, (size_t)columns * sizeof *to);
        }
        row += count;
        rows -= count;
        to += count * columns;
    }
}

void mhai_transformer_read_matrix(const void *user, int64_t at, int64_t row, int64_t rows,
                                  int64_t column, int64_t columns, float *to)
{
    const mha_transformer *t = user;
    const mha_parameter *p = &t->parameters[at];
    mhai_transformer_read_rows(t, p->offset, p->shape[1], row, rows, column, columns, to);
}

bool mhai_transformer_read_coded(const void *user, int64_t at, int64_t row, int64_t *rows,
                                 int64_t column, int64_t columns, mha_coded *to)
{
    const mha_transformer *t = user;
    if (t->data || !t->source.read_coded) return false;
    int64_t i = at;
    for (; row >= t->parameters[i].shape[0]; i++) row -= t->parameters[i].shape[0];
    *rows = mhai_min_i64(*rows, t->parameters[i].shape[0] - row);
    return t->held_at[i] < 0 &&
           t->source.read_coded(t->source.user, i, row, *rows, column, columns, to);
}

const void *mhai_transformer_find_rows(const void *user, int64_t at, int64_t row, int64_t rows,
                                       mha_dtype *type, int64_t *stride)
{
    const mha_transformer *t = user;
    int64_t i = at;
    if (t->data || !t->source.find_rows) return NULL;
    for (; row >= t->parameters[i].shape[0]; i++) row -= t->parameters[i].shape[0];
    if (t->held_at[i] >= 0 || row + rows > t->parameters[i].shape[0]) return NULL;
    return t->source.find_rows(t->source.user, i, row, rows, type, stride);
}

mha_status mha_transformer_read(const mha_transformer *t, const mha_parameter *parameter,
                                int64_t row, int64_t rows, float *to)
{
    MHA_NEED_AS("mha_transformer_read", "transformer, parameter, to", t, parameter,
                to || rows <= 0);
    const mha_parameter *p = &t->parameters[mhai_transformer_parameter_at(t, parameter->offset)];
    if (strcmp(p->name, parameter->name) != 0 || p->offset != parameter->offset ||
        p->shape[0] != parameter->shape[0] || p->count != parameter->count)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_transformer_read: '%.63s' is not a parameter of this transformer",
                        parameter->name);
    if (row < 0 || rows < 0 || row > p->shape[0] || rows > p->shape[0] - row)
        return mha_fail(MHA_ERR_ARGUMENT, "%s: has %lld rows, not %lld from %lld on", p->name,
                        (long long)p->shape[0], (long long)rows, (long long)row);
    const int64_t cols = p->ndim == 2 ? p->shape[1] : 1;
    mhai_transformer_read_rows(t, p->offset, cols, row, rows, 0, cols, to);
    return MHA_OK;
}

typedef struct read_job {
    const mha_transformer *t;
    int64_t offset, rows, cols;
    float *to;
} read_job;

enum { READ_ROWS = 64 };

static void read_some(void *argument, int64_t item, int worker)
{
    const read_job *job = argument;
    const int64_t row = item * READ_ROWS, rows = mhai_min_i64(READ_ROWS, job->rows - row);
    (void)worker;
    mhai_transformer_read_rows(job->t, job->offset, job->cols, row, rows, 0, job->cols,
                               job->to + row * job->cols);
}

mha_status mhai_transformer_matrix(mha_context *context, const mha_transformer *t, int64_t offset,
                                   int64_t rows, int64_t cols, mha_tensor *matrix)
{
    int64_t count;
    void *memory;
    if (t->data) {
        *matrix = mhai_transformer_rows(t->data + offset, rows, cols, cols);
        return MHA_OK;
    }
    if (!mhai_mul_i64(rows, cols, &count))
        return mha_fail(MHA_ERR_SIZE, "a matrix of the transformer does not fit in memory");
    MHA_TRY(mha_scratch_alloc(context, count, sizeof(float), &memory));
    read_job job = {t, offset, rows, cols, memory};
    mha_parallel_for(context, mhai_ceil_div(rows, READ_ROWS), read_some, &job);
    *matrix = mhai_transformer_rows(memory, rows, cols, cols);
    return MHA_OK;
}
