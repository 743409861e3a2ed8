/* Distances between heads: sums over pairs. Each pair has one owner thread.
 *
 * The outputs of heads are never computed. With z the rows of a head before W_O, and W its part of
 * W_O, out_g . out_h = z_g (W_g W_h') z_h'. With X = Z_g W_g and Y = Z_h W_h (columns centred),
 * ||X'Y||^2 = tr(W_g W_g' C W_h W_h' C') for C = Z_g' Z_h - sum_g sum_h' / rows. So each pair only
 * needs matrices of width x width. Sums are doubles, added in row order. */
#include "base/checked.h"
#include "base/math.h"
#include "base/need.h"
#include "base/tensor.h"

#include <multihead/component.h>
#include <multihead/head_distances.h>

#include <math.h>
#include <string.h>

static const double log_2 = 0.6931471805599453;

enum { MOST_HEADS = 4096, MOST_WIDTH = 16384 };

typedef struct pair_rows {
    int64_t map, output;
} pair_rows;

struct mha_head_distances {
    mha_context *context;
    mha_allocator allocator;
    int64_t heads, width, count; /* count: number of pairs g <= h */
    int64_t rows;                /* number of rows of outputs */
    pair_rows *pairs;
    double *gram; /* [count,width,width] W_g W_h', or NULL: the identity */
    /* Sums over the rows: maps [count], cosine [count], z_g' z_h [count,width,width], z
     * [heads,width] */
    double *sums;
};

/* Offsets in the sums. */
static int64_t cosine_at(const mha_head_distances *d, int64_t pair)
{
    return d->count + pair;
}

static int64_t cross_at(const mha_head_distances *d, int64_t pair)
{
    return 2 * d->count + pair * d->width * d->width;
}

static int64_t z_at(const mha_head_distances *d, int64_t head)
{
    return cross_at(d, d->count) + head * d->width;
}

static int64_t all_sums(const mha_head_distances *d)
{
    return z_at(d, d->heads);
}

/* Pairs (0,0) (0,1) .. (0,H-1) (1,1) ... */
static int64_t pair_at(const mha_head_distances *d, int64_t g, int64_t h)
{
    return g * d->heads - g * (g - 1) / 2 + (h - g);
}

static void heads_of_pair(const mha_head_distances *d, int64_t n, int64_t *g, int64_t *h)
{
    *g = 0;
    while (n >= d->heads - *g) n -= d->heads - *g, ++*g;
    *h = *g + n;
}

/* ---- creation and destruction ---------------------------------------------------------------- */

static const double *gram_of(const mha_head_distances *d, int64_t pair)
{
    return d->gram ? d->gram + pair * d->width * d->width : NULL;
}

void mha_head_distances_destroy(mha_head_distances *d)
{
    if (!d) return;
    mhai_give(&d->allocator, d->pairs, d->count, sizeof *d->pairs);
    mhai_give(&d->allocator, d->gram, d->count * d->width * d->width, sizeof *d->gram);
    mhai_give(&d->allocator, d->sums, all_sums(d), sizeof *d->sums);
    mha_allocator allocator = d->allocator;
    allocator.release(allocator.user, d, sizeof *d);
}

static mha_status take_sums(mha_head_distances *d, bool weighted)
{
    int64_t floats;
    if (!mhai_mul_i64(d->count * 2, d->width * d->width, &floats))
        return mha_fail(MHA_ERR_SIZE, "mha_head_distances: %lld heads of width %lld do not fit",
                        (long long)d->heads, (long long)d->width);
    d->pairs = mhai_take(&d->allocator, d->count, sizeof *d->pairs);
    d->sums = mhai_take(&d->allocator, all_sums(d), sizeof *d->sums);
    if (weighted)
        d->gram = mhai_take(&d->allocator, d->count * d->width * d->width, sizeof *d->gram);
    if (!d->pairs || !d->sums || (weighted && !d->gram)) return MHA_NO_MEMORY("mha_head_distances");
    return MHA_OK;
}

static double element(const mha_tensor *x, int64_t i, int64_t j, int64_t k)
{
    return (double)((const float *)x->data)[i * x->stride[0] + j * x->stride[1] + k * x->stride[2]];
}

typedef struct gram_job {
    mha_head_distances *d;
    const mha_tensor *weight;
} gram_job;

static void make_gram(void *argument, int64_t n, int worker)
{
    const gram_job *job = argument;
    const mha_tensor *w = job->weight;
    const int64_t width = job->d->width;
    double *gram = job->d->gram + n * width * width;
    int64_t g, h;
    (void)worker;
    heads_of_pair(job->d, n, &g, &h);
    for (int64_t a = 0; a < width; a++)
        for (int64_t b = 0; b < width; b++) {
            double sum = 0;
            for (int64_t e = 0; e < w->shape[2]; e++)
                sum += element(w, g, a, e) * element(w, h, b, e);
            gram[a * width + b] = sum;
        }
}

static mha_status check_finite(const char *name, const mha_tensor *x, bool positive)
{
    for (int64_t i = 0; i < x->shape[0]; i++)
        for (int64_t j = 0; j < x->shape[1]; j++)
            for (int64_t k = 0; k < x->shape[2]; k++) {
                const double value = element(x, i, j, k);
                if (!isfinite(value) || (positive && value < 0))
                    return mha_fail(MHA_ERR_NUMERIC,
                                    "%s[%lld,%lld,%lld] is %g, expected a %s number", name,
                                    (long long)i, (long long)j, (long long)k, value,
                                    positive ? "finite and not negative" : "finite");
            }
    return MHA_OK;
}

mha_status mha_head_distances_create(mha_context *context, int64_t heads, int64_t width,
                                     const mha_tensor *weight, mha_head_distances **distances)
{
    mha_status status;
    MHA_NEED("mha_head_distances_create", context, distances);
    if (heads < 1 || heads > MOST_HEADS || width < 0 || width > MOST_WIDTH ||
        (weight && width == 0))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_head_distances_create: %lld heads of width %lld; expected 1..%d and "
                        "0..%d, and a width with a weight",
                        (long long)heads, (long long)width, (int)MOST_HEADS, (int)MOST_WIDTH);
    if (weight) {
        MHA_TRY(mhai_tensor_check("weight", weight, MHA_F32, 3, (int64_t[]){heads, width, -1}));
        MHA_TRY(check_finite("weight", weight, false));
    }
    const mha_allocator a = mha_context_allocator(context);
    mha_head_distances *d = a.alloc(a.user, sizeof *d, _Alignof(mha_head_distances));
    if (!d) return MHA_NO_MEMORY("mha_head_distances");
    *d = (mha_head_distances){.context = context,
                              .allocator = a,
                              .heads = heads,
                              .width = width,
                              .count = heads * (heads + 1) / 2};
    MHA_TRY_GOTO(take_sums(d, weight), fail);
    if (weight) mha_parallel_for(context, d->count, make_gram, &(gram_job){d, weight});
    *distances = d;
    return MHA_OK;
fail:
    mha_head_distances_destroy(d);
    return status;
}

/* ---- maps ------------------------------------------------------------------------------------ */

typedef struct map_job {
    mha_head_distances *d;
    const mha_tensor *p;
    double *sums; /* [heads,R] */
    double *logs; /* [heads,R] sum of a log a over the row, normalised */
} map_job;

/* a log a; 0 for subnormal numbers */
static double log_mass(double a)
{
    return a > 1e-300 ? a * mhai_log(a) : 0;
}

static void sum_rows(void *argument, int64_t h, int worker)
{
    const map_job *job = argument;
    const int64_t rows = job->p->shape[1];
    (void)worker;
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0, logs = 0;
        for (int64_t j = 0; j < job->p->shape[2]; j++) sum += element(job->p, h, r, j);
        for (int64_t j = 0; sum > 0 && j < job->p->shape[2]; j++)
            logs += log_mass(element(job->p, h, r, j) / sum);
        job->sums[h * rows + r] = sum;
        job->logs[h * rows + r] = logs;
    }
}

/* 2 JS = sum a log a + sum b log b - 2 sum m log m with m = (a + b) / 2. Exactly 0 if a = b. */
static double divergence(const map_job *job, int64_t g, int64_t h, int64_t r)
{
    const mha_tensor *p = job->p;
    const int64_t row_g = g * p->shape[1] + r, row_h = h * p->shape[1] + r;
    double mixed = 0;
    for (int64_t j = 0; j < p->shape[2]; j++) {
        const double x = element(p, g, r, j), y = element(p, h, r, j);
        if (x == 0 && y == 0) continue; /* half of the cells of causal maps */
        const double a = x / job->sums[row_g], b = y / job->sums[row_h];
        mixed += 2 * log_mass((a + b) / 2);
    }
    return job->logs[row_g] + job->logs[row_h] - mixed;
}

static void compare_maps(void *argument, int64_t n, int worker)
{
    const map_job *job = argument;
    const int64_t rows = job->p->shape[1];
    int64_t g, h;
    (void)worker;
    heads_of_pair(job->d, n, &g, &h);
    for (int64_t r = 0; r < rows; r++) {
        const double sum_g = job->sums[g * rows + r], sum_h = job->sums[h * rows + r];
        if (!(sum_g > 1e-30) || !(sum_h > 1e-30)) continue;
        if (g != h) job->d->sums[n] += divergence(job, g, h, r) / 2 / log_2;
        job->d->pairs[n].map++;
    }
}

mha_status mha_head_distances_rows(mha_head_distances *d, const mha_tensor *p)
{
    double *sums;
    MHA_NEED_AS("mha_head_distances_rows", "distances, p", d, p);
    MHA_TRY(mhai_tensor_check("p", p, MHA_F32, 3, (int64_t[]){d->heads, -1, -1}));
    MHA_TRY(check_finite("p", p, true));
    const int64_t count = mhai_times(d->heads, p->shape[1]);
    const mha_scratch_mark mark = mha_scratch_top(d->context);
    MHA_TRY(mha_scratch_alloc(d->context, count, 2 * sizeof(double), &sums));
    map_job job = {d, p, sums, sums + count};
    mha_parallel_for(d->context, d->heads, sum_rows, &job);
    mha_parallel_for(d->context, d->count, compare_maps, &job);
    mha_scratch_release(d->context, mark);
    return MHA_OK;
}

/* ---- outputs --------------------------------------------------------------------------------- */

typedef struct output_job {
    mha_head_distances *d;
    const mha_tensor *z;
    double *norms;  /* [heads,R] norms of out */
    double *copies; /* [workers][2][width] */
} output_job;

static const double *copy_row(const mha_tensor *z, int64_t h, int64_t r, double *row)
{
    for (int64_t c = 0; c < z->shape[2]; c++) row[c] = element(z, h, r, c);
    return row;
}

/* a gram b' */
static double product(const double *gram, const double *a, const double *b, int64_t width)
{
    double sum = 0;
    for (int64_t i = 0; i < width; i++) {
        double part = 0;
        if (!gram)
            part = b[i];
        else
            for (int64_t j = 0; j < width; j++) part += gram[i * width + j] * b[j];
        sum += a[i] * part;
    }
    return sum;
}

static void measure_rows(void *argument, int64_t h, int worker)
{
    const output_job *job = argument;
    mha_head_distances *d = job->d;
    const int64_t rows = job->z->shape[1];
    const double *gram = gram_of(d, pair_at(d, h, h));
    double *row = job->copies + (int64_t)worker * 2 * d->width;
    for (int64_t r = 0; r < rows; r++) {
        copy_row(job->z, h, r, row);
        const double square = product(gram, row, row, d->width);
        job->norms[h * rows + r] = square > 0 ? sqrt(square) : 0;
        for (int64_t c = 0; c < d->width; c++) d->sums[z_at(d, h) + c] += row[c];
    }
}

static void compare_outputs(void *argument, int64_t n, int worker)
{
    const output_job *job = argument;
    mha_head_distances *d = job->d;
    const int64_t rows = job->z->shape[1], width = d->width;
    double *cross = d->sums + cross_at(d, n);
    double *a = job->copies + (int64_t)worker * 2 * width, *b = a + width;
    int64_t g, h;
    heads_of_pair(d, n, &g, &h);
    for (int64_t r = 0; r < rows; r++) {
        const double lengths = job->norms[g * rows + r] * job->norms[h * rows + r];
        copy_row(job->z, g, r, a);
        copy_row(job->z, h, r, b);
        if (lengths > 0) {
            d->sums[cosine_at(d, n)] += product(gram_of(d, n), a, b, width) / lengths;
            d->pairs[n].output++;
        }
        for (int64_t i = 0; i < width; i++)
            for (int64_t j = 0; j < width; j++) cross[i * width + j] += a[i] * b[j];
    }
}

mha_status mha_head_distances_outputs(mha_head_distances *d, const mha_tensor *z)
{
    output_job job = {.d = d, .z = z};
    mha_status status;
    MHA_NEED_AS("mha_head_distances_outputs", "distances, z", d, z);
    if (d->width == 0)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_head_distances_outputs: made with width 0, for maps");
    MHA_TRY(mhai_tensor_check("z", z, MHA_F32, 3, (int64_t[]){d->heads, -1, d->width}));
    MHA_TRY(check_finite("z", z, false));
    const mha_scratch_mark mark = mha_scratch_top(d->context);
    const int64_t workers = mha_context_threads(d->context);
    const int64_t count = mhai_times(d->heads, z->shape[1]);
    MHA_TRY_GOTO(mha_scratch_alloc(d->context, count, sizeof(double), &job.norms), done);
    MHA_TRY_GOTO(mha_scratch_alloc(d->context, workers * 2 * d->width, sizeof(double), &job.copies),
                 done);
    mha_parallel_for(d->context, d->heads, measure_rows, &job);
    mha_parallel_for(d->context, d->count, compare_outputs, &job);
    d->rows += z->shape[1];
done:
    return mha_scratch_end(d->context, mark, status);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Element (i, j) of the centred C of a pair. */
static double centred(const mha_head_distances *d, int64_t g, int64_t h, int64_t i, int64_t j)
{
    const double z_g = d->sums[z_at(d, g) + i], z_h = d->sums[z_at(d, h) + j];
    return d->sums[cross_at(d, pair_at(d, g, h)) + i * d->width + j] - z_g * z_h / (double)d->rows;
}

static double gram_at(const mha_head_distances *d, int64_t h, int64_t i, int64_t j)
{
    const double *gram = gram_of(d, pair_at(d, h, h));
    return gram ? gram[i * d->width + j] : i == j;
}

/* (gram_g C)[i,j] */
static double left(const mha_head_distances *d, int64_t g, int64_t h, int64_t i, int64_t j)
{
    double sum = 0;
    if (!d->gram) return centred(d, g, h, i, j);
    for (int64_t k = 0; k < d->width; k++) sum += gram_at(d, g, i, k) * centred(d, g, h, k, j);
    return sum;
}

/* (C gram_h)[i,j] */
static double right(const mha_head_distances *d, int64_t g, int64_t h, int64_t i, int64_t j)
{
    double sum = 0;
    if (!d->gram) return centred(d, g, h, i, j);
    for (int64_t k = 0; k < d->width; k++) sum += centred(d, g, h, i, k) * gram_at(d, h, k, j);
    return sum;
}

/* ||X'Y||^2 = sum over i, j of (gram_g C)[i,j] (C gram_h)[i,j] */
static double alignment(const mha_head_distances *d, int64_t g, int64_t h)
{
    double sum = 0;
    for (int64_t i = 0; i < d->width; i++)
        for (int64_t j = 0; j < d->width; j++) sum += left(d, g, h, i, j) * right(d, g, h, i, j);
    return sum;
}

mha_head_pair mha_head_distances_pair(const mha_head_distances *d, int64_t g, int64_t h)
{
    mha_head_pair result = {0};
    if (!d || g < 0 || h < 0 || g >= d->heads || h >= d->heads) return result;
    const int64_t first = mhai_min_i64(g, h), second = mhai_max_i64(g, h);
    const int64_t pair = pair_at(d, first, second);
    const pair_rows rows = d->pairs[pair];
    result.map_rows = rows.map;
    result.output_rows = rows.output;
    if (rows.map > 0) result.maps = fmax(0, d->sums[pair] / (double)rows.map);
    if (rows.output > 0) result.cosine = d->sums[cosine_at(d, pair)] / (double)rows.output;
    if (d->rows > 1) {
        const double x = alignment(d, first, first), y = alignment(d, second, second);
        if (x > 0 && y > 0) result.cka = alignment(d, first, second) / sqrt(x * y);
    }
    return result;
}

bool mha_head_pair_is_redundant(const mha_head_pair *pair, double farthest, double nearest)
{
    return pair && pair->map_rows > 0 && pair->output_rows > 0 && pair->maps <= farthest &&
           fabs(pair->cosine) >= nearest;
}
