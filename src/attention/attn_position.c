/* Positions of tokens, sinusoidal encodings, ALiBi slopes, and T5 buckets. */
#include "attention/attn_position.h"

#include "attention/attn.h"
#include "base/checked.h"
#include "base/math.h"
#include "base/need.h"
#include "base/tensor.h"

#include <multihead/component.h>

/* Rows per work item. They amortise the cost of an item, and of the powers that the sinusoidal
 * encoding computes per block of rows. */
enum { BLOCK_ROWS = 16, CHUNK = 128 };

/* ---- positions ------------------------------------------------------------------------------ */

static mha_status check_ids(const mha_tensor *ids, int64_t B, int64_t T, mhai_attn_places *places)
{
    const int64_t lengths[2] = {B, T};
    if (ids->ndim < 0 || ids->ndim > 2)
        return mha_fail(MHA_ERR_SHAPE, "positions: has %d dimensions, expected [B,T] or fewer",
                        (int)ids->ndim);
    for (int i = 0; i < ids->ndim; i++) {
        int axis = 2 - ids->ndim + i;
        if (ids->shape[i] != 1 && ids->shape[i] != lengths[axis])
            return mha_fail(MHA_ERR_SHAPE,
                            "positions: dim %d is %lld, it must be 1 or %lld to broadcast", i,
                            (long long)ids->shape[i], (long long)lengths[axis]);
        places->stride[axis] = ids->shape[i] == 1 ? 0 : ids->stride[i];
    }
    MHA_TRY(mhai_tensor_check("positions", ids, MHA_I64, ids->ndim, NULL));
    places->ids = ids->data;
    return MHA_OK;
}

static mha_status check_range(const mhai_attn_places *places, int64_t B, int64_t T, int64_t rows)
{
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++) {
            int64_t position = mhai_attn_position_at(places, b, t);
            if (position < 0 || position >= rows)
                return mha_fail(MHA_ERR_ARGUMENT,
                                "positions: token %lld of sequence %lld is at position %lld, the "
                                "table has rows for 0 to %lld",
                                (long long)t, (long long)b, (long long)position,
                                (long long)rows - 1);
        }
    return MHA_OK;
}

mha_status mhai_attn_position_check(const mha_positions *given, int64_t B, int64_t T, int64_t rows,
                                    mhai_attn_places *places)
{
    *places = (mhai_attn_places){0};
    if (given) {
        if ((given->start != 0) + (given->starts != NULL) + (given->ids != NULL) > 1)
            return mha_fail(MHA_ERR_ARGUMENT,
                            "mha_positions: set at most one of start, starts and ids");
        places->start = given->start;
        places->starts = given->starts;
        if (given->ids) MHA_TRY(check_ids(given->ids, B, T, places));
    }
    if (B == 0 || T == 0) return MHA_OK;
    for (int64_t b = 0; b < B && !places->ids; b++) {
        int64_t start = mhai_attn_position_at(places, b, 0), last;
        if (!mhai_add_i64(start, T - 1, &last))
            return mha_fail(MHA_ERR_SIZE, "positions: start %lld and %lld tokens overflow 64 bits",
                            (long long)start, (long long)T);
        if (!places->starts) break;
    }
    return rows < 0 ? MHA_OK : check_range(places, B, T, rows);
}

mha_status mhai_attn_position_check_ids(const mha_positions *given, const mha_tensor *y)
{
    if (!given || !given->ids) return MHA_OK;
    return mhai_tensor_check_disjoint("y", y, "positions", given->ids);
}

mha_status mhai_attn_position_check_pair(const mha_tensor *x, const mha_tensor *y, int ndim)
{
    MHA_TRY(mhai_tensor_check("x", x, MHA_F32, ndim, NULL));
    MHA_TRY(mhai_tensor_check("y", y, MHA_F32, ndim, x->shape));
    MHA_TRY(mhai_tensor_check_output("y", y));
    return mhai_tensor_same(x, y) ? MHA_OK : mhai_tensor_check_disjoint("y", y, "x", x);
}

/* ---- the sinusoidal encoding ---------------------------------------------------------------- */

typedef struct sinusoid_job {
    const mha_tensor *table;
    int64_t start;
} sinusoid_job;

/* Compute a block of rows, which share the frequencies. */
static void sinusoid_block(void *argument, int64_t block, int worker)
{
    const sinusoid_job *job = argument;
    (void)worker;
    const mha_tensor *table = job->table;
    const int64_t E = table->shape[1], first = block * BLOCK_ROWS;
    const int64_t end = mhai_min_i64(table->shape[0], first + BLOCK_ROWS);
    const mhai_two log_base = mhai_log_two(10000);
    double frequency[CHUNK];
    for (int64_t i0 = 0; i0 < mhai_ceil_div(E, 2); i0 += CHUNK) {
        int64_t pairs = mhai_min_i64(CHUNK, mhai_ceil_div(E, 2) - i0);
        for (int64_t i = 0; i < pairs; i++)
            frequency[i] = mhai_power(log_base, -(double)(2 * (i0 + i)) / (double)E);
        for (int64_t t = first; t < end; t++) {
            float *row = (float *)table->data + t * table->stride[0];
            for (int64_t i = 0; i < pairs; i++) {
                double sine, cosine;
                mhai_sin_cos((double)(job->start + t) * frequency[i], &sine, &cosine);
                int64_t e = 2 * (i0 + i);
                row[e * table->stride[1]] = (float)sine;
                if (e + 1 < E) row[(e + 1) * table->stride[1]] = (float)cosine;
            }
        }
    }
}

mha_status mha_sinusoidal_encoding(mha_context *context, int64_t start, const mha_tensor *table)
{
    if (!context) return mha_fail(MHA_ERR_NULL, "mha_sinusoidal_encoding: context is NULL");
    MHA_TRY(mhai_tensor_check("table", table, MHA_F32, 2, NULL));
    MHA_TRY(mhai_tensor_check_output("table", table));
    const int64_t T = table->shape[0];
    int64_t last;
    if (T == 0 || table->shape[1] == 0) return MHA_OK;
    if (!mhai_add_i64(start, T - 1, &last))
        return mha_fail(MHA_ERR_SIZE, "start: %lld and %lld rows overflow 64 bits",
                        (long long)start, (long long)T);
    sinusoid_job job = {table, start};
    mha_parallel_for(context, mhai_ceil_div(T, BLOCK_ROWS), sinusoid_block, &job);
    return MHA_OK;
}

/* ---- adding an encoding --------------------------------------------------------------------- */

typedef struct add_job {
    const mha_tensor *x, *table, *y;
    mhai_attn_places places;
} add_job;

static void add_block(void *argument, int64_t block, int worker)
{
    const add_job *job = argument;
    (void)worker;
    const mha_tensor *x = job->x, *table = job->table, *y = job->y;
    const int64_t T = y->shape[1], E = y->shape[2];
    const int64_t end = mhai_min_i64(y->shape[0] * T, (block + 1) * BLOCK_ROWS);
    for (int64_t row = block * BLOCK_ROWS; row < end; row++) {
        int64_t b = row / T, t = row % T;
        const float *from = (const float *)x->data + b * x->stride[0] + t * x->stride[1];
        const float *code = (const float *)table->data +
                            mhai_attn_position_at(&job->places, b, t) * table->stride[0];
        float *to = (float *)y->data + b * y->stride[0] + t * y->stride[1];
        for (int64_t e = 0; e < E; e++)
            to[e * y->stride[2]] = from[e * x->stride[2]] + code[e * table->stride[1]];
    }
}

mha_status mha_add_positions(mha_context *context, const mha_positions *positions,
                             const mha_tensor *x, const mha_tensor *table, const mha_tensor *y)
{
    if (!context) return mha_fail(MHA_ERR_NULL, "mha_add_positions: context is NULL");
    MHA_TRY(mhai_attn_position_check_pair(x, y, 3));
    const int64_t B = x->shape[0], T = x->shape[1], E = x->shape[2];
    MHA_TRY(mhai_tensor_check("table", table, MHA_F32, 2, (int64_t[]){-1, E}));
    MHA_TRY(mhai_tensor_check_disjoint("y", y, "table", table));
    add_job job = {.x = x, .table = table, .y = y};
    MHA_TRY(mhai_attn_position_check(positions, B, T, table->shape[0], &job.places));
    MHA_TRY(mhai_attn_position_check_ids(positions, y));
    if (B == 0 || T == 0 || E == 0) return MHA_OK;
    mha_parallel_for(context, mhai_ceil_div(B * T, BLOCK_ROWS), add_block, &job);
    return MHA_OK;
}

/* ---- terms of scores ----------------------------------------------------------------------- */

mha_status mha_alibi_slopes(int64_t num_heads, float *slopes)
{
    if (!slopes) return mha_fail(MHA_ERR_NULL, "slopes: is NULL");
    MHA_TRY(mhai_check_range("num_heads", num_heads, 1, INT64_MAX));
    int64_t n = 1;
    while (n <= num_heads / 2) n *= 2;
    for (int64_t h = 0; h < num_heads; h++) {
        double exponent = h < n ? 8 * (double)(h + 1) : 4 * (double)(2 * (h - n) + 1);
        slopes[h] = (float)mhai_exp2(-exponent / (double)n);
    }
    return MHA_OK;
}

mha_status mha_t5_bucket(int64_t relative, int64_t buckets, int64_t max_distance, bool one_sided,
                         int64_t *bucket)
{
    if (!bucket) return mha_fail(MHA_ERR_NULL, "bucket: is NULL");
    if (max_distance == 0) max_distance = 128;
    const int64_t exact = buckets / (one_sided ? 2 : 4);
    if (exact < 1 || (!one_sided && buckets % 2 != 0))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "buckets is %lld; expected an even number of at least 4 if two-sided, at "
                        "least 2 if one-sided",
                        (long long)buckets);
    if (max_distance <= exact)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "max_distance is %lld, it must exceed the %lld exact distances",
                        (long long)max_distance, (long long)exact);
    relative = mhai_max_i64(relative, -INT64_MAX); /* so that it can be negated */
    *bucket = mhai_attn_t5_bucket(relative, buckets, max_distance, one_sided);
    return MHA_OK;
}
