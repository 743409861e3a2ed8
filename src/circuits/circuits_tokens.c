/* The tokens with the largest and the smallest products with given directions. The map from table
 * rows to tokens is applied to the directions, so that stored rows are multiplied directly. */
#include "circuits/circuits_weights.h"

#include <math.h>
#include <string.h>

enum { STRIP = 256, BLOCK = 16 }; /* tokens per step; directions per item, a cache line */

typedef struct ends_job {
    mha_context *context;
    const mha_transformer *t;
    mha_direction_desc desc;
    mhai_tokens tokens;
    int64_t M, N, E;
    int32_t *ids;
    float *values, *products; /* [M,2,N]; [STRIP,M] */
    int64_t *listed;          /* [M] number of tokens so far, up to N */
    const double *weights;    /* [STRIP] */
    int64_t first, rows;      /* rows of the strip */
} ends_job;

/* Insert a token after others with the same value, whose ids are smaller.
 * sign -1: smallest first. */
static void insert(const ends_job *job, int64_t m, int end, int64_t listed, int32_t id, float value)
{
    int32_t *ids = job->ids + (m * 2 + end) * job->N;
    float *values = job->values + (m * 2 + end) * job->N;
    const float sign = end ? -1 : 1;
    int64_t at = listed < job->N ? listed : job->N - 1;
    if (listed == job->N && !(sign * value > sign * values[at])) return;
    for (; at > 0 && sign * value > sign * values[at - 1]; at--) {
        ids[at] = ids[at - 1];
        values[at] = values[at - 1];
    }
    ids[at] = id;
    values[at] = value;
}

/* An item is BLOCK directions, with all tokens of the strip. */
static void list_tokens(void *argument, int64_t item, int worker)
{
    const ends_job *job = argument;
    const int64_t end = (item + 1) * BLOCK < job->M ? (item + 1) * BLOCK : job->M;
    (void)worker;
    for (int64_t s = 0; s < job->rows; s++) {
        if (job->desc.tokens && !job->desc.tokens[job->first + s]) continue;
        for (int64_t m = item * BLOCK; m < end; m++) {
            const double product = (double)job->products[s * job->M + m] * job->weights[s];
            const int64_t listed = job->listed[m];
            insert(job, m, 0, listed, (int32_t)(job->first + s), (float)product);
            insert(job, m, 1, listed, (int32_t)(job->first + s), (float)product);
            if (listed < job->N) job->listed[m]++;
        }
    }
}

/* Transform the directions to the basis of table rows. */
static mha_status pull_directions(const ends_job *job, const float *directions, float *to)
{
    double *own;
    MHA_TRY(mhai_circuits_take(job->context, 1, job->E, sizeof(double), &own));
    for (int64_t m = 0; m < job->M; m++) {
        for (int64_t e = 0; e < job->E; e++) own[e] = (double)directions[m * job->E + e];
        mhai_tokens_pull(&job->tokens, own);
        for (int64_t e = 0; e < job->E; e++) to[m * job->E + e] = (float)own[e];
    }
    return MHA_OK;
}

static mha_tensor rows_of(float *data, int64_t rows, int64_t columns)
{
    return mha_tensor_contiguous(data, MHA_F32, 2, (const int64_t[]){rows, columns});
}

static mha_status visit_strips(ends_job *job, const mha_linear *linear)
{
    float *rows;
    double *weights, *room;
    MHA_TRY(mhai_circuits_take(job->context, STRIP, job->E, sizeof(float), &rows));
    MHA_TRY(mhai_circuits_take(job->context, STRIP, job->M, sizeof(float), &job->products));
    MHA_TRY(mhai_circuits_take(job->context, STRIP, 1, sizeof(double), &weights));
    MHA_TRY(mhai_circuits_take(job->context, 1, job->E, sizeof(double), &room));
    job->weights = weights;
    for (job->first = 0; job->first < job->tokens.V; job->first += STRIP) {
        const int64_t left = job->tokens.V - job->first;
        job->rows = left < STRIP ? left : STRIP;
        if (job->desc.progress)
            MHA_TRY(job->desc.progress(job->first, job->tokens.V, job->desc.progress_user));
        MHA_TRY(mhai_tokens_read(job->t, &job->tokens, job->first, job->rows, rows));
        for (int64_t s = 0; s < job->rows; s++)
            weights[s] = mhai_tokens_weight(&job->tokens, rows + s * job->E, room);
        mha_tensor in = rows_of(rows, job->rows, job->E);
        mha_tensor out = rows_of(job->products, job->rows, job->M);
        MHA_TRY(mha_linear_forward(job->context, linear, MHA_ACTIVATION_NONE, &in, &out));
        mha_parallel_for(job->context, (job->M + BLOCK - 1) / BLOCK, list_tokens, job);
    }
    return MHA_OK;
}

static mha_status run(ends_job *job, const float *directions)
{
    mha_linear *linear = NULL;
    float *pulled;
    MHA_TRY(
        mhai_circuits_tokens(job->context, job->t, job->desc.side, job->desc.flags, &job->tokens));
    MHA_TRY(mhai_circuits_take(job->context, job->M, job->E, sizeof(float), &pulled));
    MHA_TRY(mhai_circuits_take(job->context, job->M, 1, sizeof *job->listed, &job->listed));
    memset(job->listed, 0, (size_t)job->M * sizeof *job->listed);
    if (!job->values)
        MHA_TRY(mhai_circuits_take(job->context, job->M, 2 * job->N, sizeof(float), &job->values));
    MHA_TRY(pull_directions(job, directions, pulled));
    mha_tensor weight = rows_of(pulled, job->M, job->E);
    MHA_TRY(mha_linear_create(job->context, &weight, NULL, &linear));
    mha_status status = visit_strips(job, linear);
    mha_linear_destroy(linear);
    return status;
}

static mha_status check(const ends_job *job, int64_t vocab_size)
{
    const mha_direction_desc *d = &job->desc;
    int64_t tokens = d->tokens ? 0 : vocab_size;
    for (int64_t i = 0; d->tokens && i < vocab_size; i++) tokens += d->tokens[i] != 0;
    if (d->flags & ~(uint32_t)MHA_CIRCUITS_NORMED_TOKENS || d->reserved)
        return mha_fail(
            MHA_ERR_UNSUPPORTED,
            "mha_direction_desc: flags 0x%x and reserved %u, expected known flags and 0",
            (unsigned)d->flags, (unsigned)d->reserved);
    if ((unsigned)d->side > MHA_SIDE_UNEMBEDDING)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_direction_desc: side is %d, expected 0 or 1",
                        (int)d->side);
    if (d->count < 0 || d->count > INT64_C(1) << 40 || d->most < 1 || d->most > tokens)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_direction_desc: count is %lld and most %lld, expected 0 or more and "
                        "1..%lld tokens",
                        (long long)d->count, (long long)d->most, (long long)tokens);
    return MHA_OK;
}

mha_status mha_direction_tokens(mha_context *context, const mha_transformer *transformer,
                                const mha_direction_desc *desc, const float *directions,
                                int32_t *ids, float *values)
{
    MHA_NEED("mha_direction_tokens", context, transformer, desc, directions, ids);
    mha_transformer_desc d = {.struct_size = sizeof d};
    mha_transformer_describe(transformer, &d);
    ends_job job = {.context = context, .t = transformer, .ids = ids, .values = values};
    MHA_TRY(mha_struct_read("mha_direction_desc", &job.desc, sizeof job.desc, sizeof job.desc, desc,
                            desc->struct_size));
    MHA_TRY(check(&job, d.vocab_size));
    job.M = job.desc.count, job.N = job.desc.most, job.E = d.embed_dim;
    if (job.M == 0) return MHA_OK;
    mha_scratch_mark mark = mha_scratch_top(context);
    return mha_scratch_end(context, mark, run(&job, directions));
}
