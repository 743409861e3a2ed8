/* Steps of AdamW and SGD, gradient clipping and the learning rate schedule. */
#include "base/checked.h"
#include "base/context.h"
#include "base/math.h"
#include "base/need.h"

#include <multihead/component.h>
#include <multihead/optimizer.h>

#include <math.h>

/* Parameters per work item. Changing it changes the order of sums in the norm. */
enum { PIECE = 4096 };

static mha_status check_number(const char *name, double value, double least, double most)
{
    if (value >= least && value <= most) return MHA_OK;
    return mha_fail(MHA_ERR_ARGUMENT, "%s is %g, expected %.9g..%.9g", name, value, least, most);
}

static mha_status check_count(const char *function, int64_t count, const void *a, const void *b)
{
    if (count < 0)
        return mha_fail(MHA_ERR_ARGUMENT, "%s: count is %lld", function, (long long)count);
    if (count > 0 && (!a || !b)) return mha_fail(MHA_ERR_NULL, "%s: an array is NULL", function);
    return MHA_OK;
}

/* x^n by repeated squaring. */
static double power(double x, int64_t n)
{
    double result = 1;
    for (; n > 0; n /= 2, x *= x)
        if (n % 2) result *= x;
    return result;
}

/* ---- AdamW --------------------------------------------------------------------------------- */

typedef struct adamw_job {
    int64_t count;
    float *parameter, *m, *v;
    const float *gradient;
    float scale, beta1, rest1, beta2, rest2; /* rest = 1 - beta */
    float keep, rate, root, epsilon;         /* p = p keep - rate m / (sqrt(v) root + epsilon) */
    const float *rates;                      /* NULL: 1 */
} adamw_job;

static void adamw_piece(void *argument, int64_t piece, int worker)
{
    const adamw_job j = *(const adamw_job *)argument;
    (void)worker;
    const int64_t end = mhai_min_i64((piece + 1) * PIECE, j.count);
    for (int64_t i = piece * PIECE; i < end; i++) {
        float g = j.gradient[i] * j.scale;
        float m = j.m[i] * j.beta1 + g * j.rest1;
        float v = j.v[i] * j.beta2 + g * g * j.rest2;
        j.m[i] = m;
        j.v[i] = v;
        float moved = j.parameter[i] * j.keep - j.rate * m / (sqrtf(v) * j.root + j.epsilon);
        j.parameter[i] = j.rates ? j.parameter[i] + j.rates[i] * (moved - j.parameter[i]) : moved;
    }
}

static mha_status check_adamw(mha_adamw *s)
{
    MHA_TRY(mhai_check_reserved("mha_adamw", s->reserved));
    if (s->beta1 == 0 && s->beta2 == 0) s->beta1 = 0.9, s->beta2 = 0.999;
    if (s->epsilon == 0) s->epsilon = 1e-8;
    if (s->gradient_scale == 0) s->gradient_scale = 1;
    MHA_TRY(check_number("learning_rate", s->learning_rate, 0, 1e9));
    MHA_TRY(check_number("beta1", s->beta1, 0, 1 - 0x1p-24));
    MHA_TRY(check_number("beta2", s->beta2, 0, 1 - 0x1p-24));
    MHA_TRY(check_number("epsilon", s->epsilon, 0x1p-126, 1e9));
    MHA_TRY(check_number("weight_decay", s->weight_decay, 0, 1e9));
    MHA_TRY(check_number("gradient_scale", s->gradient_scale, -1e30, 1e30));
    if (s->step < 1)
        return mha_fail(MHA_ERR_ARGUMENT, "step is %lld, expected 1 or more", (long long)s->step);
    return MHA_OK;
}

mha_status mha_adamw_step(mha_context *context, const mha_adamw *settings, int64_t count,
                          float *parameter, const float *gradient, float *m, float *v)
{
    MHA_NEED("mha_adamw_step", context, settings);
    mha_adamw s;
    MHA_TRY(mhai_struct_copy("mha_adamw", &s, sizeof s, sizeof s, settings));
    MHA_TRY(check_adamw(&s));
    MHA_TRY(check_count("mha_adamw_step", count, parameter, gradient));
    MHA_TRY(check_count("mha_adamw_step", count, m, v));
    adamw_job job = {.count = count,
                     .parameter = parameter,
                     .m = m,
                     .v = v,
                     .gradient = gradient,
                     .scale = (float)s.gradient_scale,
                     .beta1 = (float)s.beta1,
                     .rest1 = (float)(1 - s.beta1),
                     .beta2 = (float)s.beta2,
                     .rest2 = (float)(1 - s.beta2),
                     .keep = (float)(1 - s.learning_rate * s.weight_decay),
                     .rate = (float)(s.learning_rate / (1 - power(s.beta1, s.step))),
                     .root = (float)(1 / sqrt(1 - power(s.beta2, s.step))),
                     .epsilon = (float)s.epsilon,
                     .rates = s.rates};
    mha_parallel_for(context, mhai_ceil_div(count, PIECE), adamw_piece, &job);
    return MHA_OK;
}

/* ---- SGD ----------------------------------------------------------------------------------- */

typedef struct sgd_job {
    int64_t count;
    float *parameter, *velocity;
    const float *gradient;
    float scale, decay, momentum, rate;
} sgd_job;

static void sgd_piece(void *argument, int64_t piece, int worker)
{
    const sgd_job j = *(const sgd_job *)argument;
    (void)worker;
    const int64_t end = mhai_min_i64((piece + 1) * PIECE, j.count);
    for (int64_t i = piece * PIECE; i < end; i++) {
        float g = j.gradient[i] * j.scale + j.decay * j.parameter[i];
        if (j.velocity) j.velocity[i] = g = j.momentum * j.velocity[i] + g;
        j.parameter[i] -= j.rate * g;
    }
}

mha_status mha_sgd_step(mha_context *context, const mha_sgd *settings, int64_t count,
                        float *parameter, const float *gradient, float *velocity)
{
    MHA_NEED("mha_sgd_step", context, settings);
    mha_sgd s;
    MHA_TRY(mhai_struct_copy("mha_sgd", &s, sizeof s, sizeof s, settings));
    MHA_TRY(mhai_check_reserved("mha_sgd", s.reserved));
    if (s.gradient_scale == 0) s.gradient_scale = 1;
    MHA_TRY(check_number("learning_rate", s.learning_rate, 0, 1e9));
    MHA_TRY(check_number("momentum", s.momentum, 0, 1e9));
    MHA_TRY(check_number("weight_decay", s.weight_decay, 0, 1e9));
    MHA_TRY(check_number("gradient_scale", s.gradient_scale, -1e30, 1e30));
    MHA_TRY(check_count("mha_sgd_step", count, parameter, gradient));
    if (s.momentum > 0 && !velocity)
        return mha_fail(MHA_ERR_NULL, "mha_sgd_step: velocity is NULL; momentum requires it");
    sgd_job job = {count,
                   parameter,
                   s.momentum > 0 ? velocity : NULL,
                   gradient,
                   (float)s.gradient_scale,
                   (float)s.weight_decay,
                   (float)s.momentum,
                   (float)s.learning_rate};
    mha_parallel_for(context, mhai_ceil_div(count, PIECE), sgd_piece, &job);
    return MHA_OK;
}

/* ---- norm, schedule ------------------------------------------------------------------------ */

typedef struct norm_job {
    int64_t count;
    const float *gradient;
    double *sums; /* one sum per piece */
} norm_job;

/* Pieces per work item. Each has a chain of additions; the chains run in parallel lanes. */
enum { ABREAST = 4 };

static void norm_pieces(void *argument, int64_t item, int worker)
{
    const norm_job *job = argument;
    (void)worker;
    const int64_t first = item * ABREAST, begin = first * PIECE;
    const int64_t count = mhai_min_i64(ABREAST * PIECE, job->count - begin);
    double sum[ABREAST] = {0};
    if (count == ABREAST * PIECE)
        for (int64_t i = 0; i < PIECE; i++)
            for (int k = 0; k < ABREAST; k++) {
                const double x = (double)job->gradient[begin + k * PIECE + i];
                sum[k] += x * x;
            }
    else
        for (int64_t i = 0; i < count; i++) {
            const double x = (double)job->gradient[begin + i];
            sum[i / PIECE] += x * x;
        }
    for (int64_t k = 0; k * PIECE < count; k++) job->sums[first + k] = sum[k];
}

mha_status mha_gradient_norm(mha_context *context, int64_t count, const float *gradient,
                             double *norm)
{
    MHA_NEED("mha_gradient_norm", context, norm);
    MHA_TRY(check_count("mha_gradient_norm", count, gradient, gradient));
    const int64_t pieces = mhai_ceil_div(count, PIECE);
    void *memory;
    mha_scratch_mark mark = mha_scratch_top(context);
    MHA_TRY(mha_scratch_alloc(context, pieces, sizeof(double), &memory));
    norm_job job = {count, gradient, memory};
    mha_parallel_for(context, mhai_ceil_div(pieces, ABREAST), norm_pieces, &job);
    double sum = 0;
    for (int64_t i = 0; i < pieces; i++) sum += job.sums[i];
    *norm = sqrt(sum);
    mha_scratch_release(context, mark);
    return MHA_OK;
}

mha_status mha_learning_rate(const mha_schedule *schedule, int64_t step, double *rate)
{
    MHA_NEED("mha_learning_rate", schedule, rate);
    mha_schedule s;
    MHA_TRY(mhai_struct_copy("mha_schedule", &s, sizeof s, sizeof s, schedule));
    MHA_TRY(mhai_check_reserved("mha_schedule", s.reserved));
    MHA_TRY(check_number("peak", s.peak, 0, 1e9));
    MHA_TRY(check_number("floor", s.floor, 0, 1));
    MHA_TRY(mhai_check_range("step", step, 1, INT64_MAX));
    MHA_TRY(mhai_check_range("warm_up", s.warm_up, 0, INT64_MAX));
    MHA_TRY(mhai_check_range("decay", s.decay, 0, INT64_MAX));
    double part = 1;
    if (step <= s.warm_up) {
        part = (double)step / (double)s.warm_up;
    } else if (s.decay > 0) {
        double x = (double)mhai_min_i64(step - s.warm_up, s.decay) / (double)s.decay;
        part = s.floor + (1 - s.floor) * (1 + mhai_cos_turns(x / 2)) / 2;
    }
    *rate = s.peak * part;
    return MHA_OK;
}
