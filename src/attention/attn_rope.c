/* Rotary position embedding. The angles of a token are computed once and used for all heads. */
#include "attention/attn.h"
#include "attention/attn_position.h"
#include "base/checked.h"
#include "base/context.h"
#include "base/math.h"
#include "base/need.h"
#include "base/tensor.h"

#include <multihead/component.h>

#include <math.h>

/* BLOCK_TOKENS: tokens per work item, which share the powers of the base. CHUNK: pairs of cosines
 * and sines computed at a time. */
enum { BLOCK_TOKENS = 16, CHUNK = 128 };

typedef struct rope_job {
    const mhai_kernels *kernels;
    const mha_tensor *x, *y;
    mhai_attn_places places;
    int64_t pairs, pair_step, mate; /* pair i: elements i * pair_step, i * pair_step + mate */
    bool inverse, in_place;
    double base, factor;
    const float *cosines, *sines; /* NULL: computed from base and factor */
    /* Strides of both tables: over b, over t, over pairs. If the table is indexed by position, the
     * stride over b is 0 and the stride over t is per position. */
    int64_t cos_stride[3], sin_stride[3];
    bool by_position;
} rope_job;

/* ---- the work ------------------------------------------------------------------------------- */

static void read_rotations(const rope_job *job, int64_t b, int64_t t, int64_t i0, int64_t pairs,
                           double *cosine, double *sine)
{
    const int64_t *c = job->cos_stride, *s = job->sin_stride;
    int64_t row = job->by_position ? mhai_attn_position_at(&job->places, b, t) : t;
    for (int64_t i = 0; i < pairs; i++) {
        cosine[i] = (double)job->cosines[b * c[0] + row * c[1] + (i0 + i) * c[2]];
        sine[i] = (double)job->sines[b * s[0] + row * s[1] + (i0 + i) * s[2]];
    }
}

static void compute_rotations(const rope_job *job, int64_t b, int64_t t, const double *frequency,
                              int64_t pairs, double *cosine, double *sine)
{
    double position = (double)mhai_attn_position_at(&job->places, b, t) / job->factor;
    for (int64_t i = 0; i < pairs; i++) {
        double angle = position * frequency[i];
        mhai_sin_cos(angle, &sine[i], &cosine[i]);
    }
}

/* Rotate the pairs of one head. y may equal x, because both elements of a pair are read before
 * either is written. */
static inline void rotate_pairs(const float *x, int64_t x_step, float *y, int64_t y_step,
                                int64_t pairs, int64_t pair_step, int64_t mate,
                                const double *cosine, const double *sine)
{
    for (int64_t i = 0; i < pairs; i++) {
        int64_t j = i * pair_step, k = j + mate;
        double real = (double)x[j * x_step], imaginary = (double)x[k * x_step];
        y[j * y_step] = (float)(real * cosine[i] - imaginary * sine[i]);
        y[k * y_step] = (float)(real * sine[i] + imaginary * cosine[i]);
    }
}

/* Prefetch each head of a token. A head has few cache lines, which are far from those of the next
 * head. */
enum { TOKENS_AHEAD = 4 };

static void rotate_heads(const rope_job *job, int64_t b, int64_t t, int64_t i0, int64_t pairs,
                         const double *cosine, const double *sine)
{
    const int64_t x_step = job->x->stride[3], y_step = job->y->stride[3], step = job->pair_step;
    if (x_step == 1 && y_step == 1 && step == 1) {
        const bool ahead = t + TOKENS_AHEAD < job->x->shape[2];
        for (int64_t h = 0; ahead && h < job->x->shape[1]; h++)
            __builtin_prefetch(mhai_attn_row(job->x, b, h, t + TOKENS_AHEAD) + i0);
        job->kernels->rope_halves(&(mhai_turn){.heads = job->x->shape[1],
                                               .pairs = pairs,
                                               .mate = job->mate,
                                               .x = mhai_attn_row(job->x, b, 0, t) + i0,
                                               .x_stride = job->x->stride[1],
                                               .y = mhai_attn_row(job->y, b, 0, t) + i0,
                                               .y_stride = job->y->stride[1],
                                               .cosine = cosine,
                                               .sine = sine});
        return;
    }
    for (int64_t h = 0; h < job->x->shape[1]; h++) {
        const float *x = mhai_attn_row(job->x, b, h, t) + i0 * step * x_step;
        float *y = mhai_attn_row(job->y, b, h, t) + i0 * step * y_step;
        if (x_step == 1 && y_step == 1)
            rotate_pairs(x, 1, y, 1, pairs, 2, 1, cosine, sine);
        else
            rotate_pairs(x, x_step, y, y_step, pairs, step, job->mate, cosine, sine);
    }
}

/* Copy elements that are not rotated. */
static void copy_rest(const rope_job *job, int64_t b, int64_t t)
{
    const int64_t x_step = job->x->stride[3], y_step = job->y->stride[3];
    for (int64_t h = 0; h < job->x->shape[1]; h++) {
        const float *x = mhai_attn_row(job->x, b, h, t);
        float *y = mhai_attn_row(job->y, b, h, t);
        for (int64_t d = 2 * job->pairs; d < job->x->shape[3]; d++) y[d * y_step] = x[d * x_step];
    }
}

static void rope_block(void *argument, int64_t block, int worker)
{
    const rope_job *job = argument;
    (void)worker;
    const int64_t T = job->x->shape[2], first = block * BLOCK_TOKENS;
    const int64_t end = mhai_min_i64(job->x->shape[0] * T, first + BLOCK_TOKENS);
    const mhai_two log_base = mhai_log_two(job->base);
    double frequency[CHUNK], cosine[CHUNK], sine[CHUNK];
    for (int64_t i0 = 0; i0 < job->pairs; i0 += CHUNK) {
        int64_t pairs = mhai_min_i64(CHUNK, job->pairs - i0);
        for (int64_t i = 0; i < pairs && !job->cosines; i++)
            frequency[i] = mhai_power(log_base, -(double)(i0 + i) / (double)job->pairs);
        for (int64_t token = first; token < end; token++) {
            int64_t b = token / T, t = token % T;
            if (job->cosines)
                read_rotations(job, b, t, i0, pairs, cosine, sine);
            else
                compute_rotations(job, b, t, frequency, pairs, cosine, sine);
            for (int64_t i = 0; i < pairs && job->inverse; i++) sine[i] = -sine[i];
            rotate_heads(job, b, t, i0, pairs, cosine, sine);
        }
    }
    for (int64_t token = first; token < end && !job->in_place; token++)
        copy_rest(job, token / T, token % T);
}

/* ---- checks --------------------------------------------------------------------------------- */

static mha_status check_numbers(const mha_rope_desc *desc, int64_t D, rope_job *job)
{
    MHA_TRY(mhai_check_flags("mha_rope_desc", desc->flags, MHA_ROPE_INVERSE));
    MHA_TRY(mhai_check_reserved("mha_rope_desc", desc->reserved));
    MHA_TRY(mhai_check_range("mha_rope_desc: pairing", desc->pairing, 0, MHA_ROPE_HALVES));
    int64_t rotary = desc->rotary_dim ? desc->rotary_dim : D;
    if (rotary < 0 || rotary > D || rotary % 2 != 0)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_rope_desc: rotary_dim is %lld%s, expected an even number of at most "
                        "the head size %lld",
                        (long long)rotary, desc->rotary_dim ? "" : " (the head size)",
                        (long long)D);
    job->base = desc->base != 0 ? desc->base : 10000;
    job->factor = desc->factor != 0 ? desc->factor : 1;
    if (!(job->base >= 1) || isinf(job->base))
        return mha_fail(MHA_ERR_ARGUMENT, "mha_rope_desc: base is %g, expected at least 1",
                        job->base);
    if (!(job->factor >= 0x1p-64) || isinf(job->factor))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_rope_desc: factor is %g, expected a positive number (2 stretches "
                        "positions to twice the length)",
                        job->factor);
    job->inverse = desc->flags & MHA_ROPE_INVERSE;
    job->pairs = rotary / 2;
    job->pair_step = desc->pairing == MHA_ROPE_HALVES ? 1 : 2;
    job->mate = desc->pairing == MHA_ROPE_HALVES ? job->pairs : 1;
    return MHA_OK;
}

/* Check a table and set its strides. */
static mha_status check_table(const char *name, const mha_tensor *table, const rope_job *job,
                              int64_t stride[3])
{
    const mha_tensor *y = job->y;
    if (table->ndim == 2) {
        MHA_TRY(mhai_tensor_check(name, table, MHA_F32, 2, (int64_t[]){-1, job->pairs}));
        stride[0] = 0;
        stride[1] = table->stride[0];
        stride[2] = table->stride[1];
    } else {
        const int64_t lengths[2] = {y->shape[0], y->shape[2]};
        MHA_TRY(mhai_tensor_check(name, table, MHA_F32, 3, (int64_t[]){-1, -1, job->pairs}));
        for (int i = 0; i < 2; i++) {
            if (table->shape[i] != 1 && table->shape[i] != lengths[i])
                return mha_fail(MHA_ERR_SHAPE, "%s: dim %d is %lld, it must be 1 or %lld", name, i,
                                (long long)table->shape[i], (long long)lengths[i]);
            stride[i] = table->shape[i] == 1 ? 0 : table->stride[i];
        }
        stride[2] = table->stride[2];
    }
    return mhai_tensor_check_disjoint("y", y, name, table);
}

/* Check the tables, if given. *rows is their number of positions; -1: unlimited. */
static mha_status check_tables(const mha_rope_desc *desc, rope_job *job, int64_t *rows)
{
    const mha_tensor *cosines = desc->cos_table, *sines = desc->sin_table;
    *rows = -1;
    if (!cosines && !sines) return MHA_OK;
    MHA_NEED_AS("mha_rope_desc", "cos_table, sin_table", cosines, sines);
    if (desc->base != 0 || desc->factor != 0)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_rope_desc: tables replace base and factor; set both to 0");
    MHA_TRY(check_table("cos_table", cosines, job, job->cos_stride));
    MHA_TRY(check_table("sin_table", sines, job, job->sin_stride));
    if (cosines->ndim != sines->ndim)
        return mha_fail(MHA_ERR_SHAPE, "mha_rope_desc: cos_table has %d dimensions, sin_table %d",
                        (int)cosines->ndim, (int)sines->ndim);
    job->by_position = cosines->ndim == 2;
    if (job->by_position) {
        if (cosines->shape[0] != sines->shape[0])
            return mha_fail(MHA_ERR_SHAPE, "mha_rope_desc: cos_table has %lld rows, sin_table %lld",
                            (long long)cosines->shape[0], (long long)sines->shape[0]);
        *rows = cosines->shape[0];
    } else if (desc->positions.start != 0 || desc->positions.starts || desc->positions.ids) {
        return mha_fail(MHA_ERR_ARGUMENT, "mha_rope_desc: tables of 3 dimensions have a row for "
                                          "each token; leave positions zero");
    }
    job->cosines = cosines->data;
    job->sines = sines->data;
    return MHA_OK;
}

mha_status mha_rope_apply(mha_context *context, const mha_rope_desc *desc, const mha_tensor *x,
                          const mha_tensor *y)
{
    mha_rope_desc own;
    int64_t rows;
    rope_job job = {.x = x, .y = y};
    if (!context) return mha_fail(MHA_ERR_NULL, "mha_rope_apply: context is NULL");
    job.kernels = mhai_kernels_for(context->isa);
    MHA_TRY(mhai_struct_copy("mha_rope_desc", &own, sizeof own, sizeof own, desc));
    MHA_TRY(mhai_attn_position_check_pair(x, y, 4));
    const int64_t *n = x->shape;
    MHA_TRY(check_numbers(&own, n[3], &job));
    MHA_TRY(check_tables(&own, &job, &rows));
    MHA_TRY(mhai_attn_position_check(&own.positions, n[0], n[2], rows, &job.places));
    MHA_TRY(mhai_attn_position_check_ids(&own.positions, y));
    if (n[0] == 0 || n[1] == 0 || n[2] == 0 || n[3] == 0) return MHA_OK;
    job.in_place = x->data == y->data;
    mha_parallel_for(context, mhai_ceil_div(n[0] * n[2], BLOCK_TOKENS), rope_block, &job);
    return MHA_OK;
}
