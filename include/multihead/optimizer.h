/* multihead: one step of training: clipping gradients, scheduling the learning rate, updating
 * parameters.
 *
 * Parameters, gradients and the optimizer's own state are plain arrays of the same length; call
 * once for each run of parameters that shares its settings (weight decay on matrices only). Only
 * + - * / and square roots are used, element by element: the same bits on any number of threads and
 * any instruction set.
 *
 * Example, given mha_context *context, int64_t count, float *p, const float *g, float *m, float *v,
 * int64_t step:
 *
 *   mha_adamw adamw = MHA_INIT(mha_adamw);
 *   adamw.learning_rate = 1e-3, adamw.step = step; // from 1
 *   double norm = 0;
 *   mha_status status = mha_gradient_norm(context, count, g, &norm);
 *   if (norm > 1) adamw.gradient_scale = 1 / norm;
 *   if (!status) status = mha_adamw_step(context, &adamw, count, p, g, m, v);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_OPTIMIZER_H
#define MULTIHEAD_OPTIMIZER_H

#include <multihead/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* AdamW (Loshchilov and Hutter 2019, algorithm 2, as in PyTorch). */
typedef struct mha_adamw {
    uint32_t struct_size;
    uint32_t reserved;     /* 0 */
    double learning_rate;  /* of this step */
    double beta1, beta2;   /* 0 .. 1; both 0: 0.9 and 0.999 */
    double epsilon;        /* 0: 1e-8 */
    double weight_decay;   /* 0: none */
    double gradient_scale; /* the gradient is multiplied by it first; 0: 1 */
    int64_t step;          /* from 1 */
    const float *rates;    /* [count], factors of each parameter's learning rate; NULL: 1 */
} mha_adamw;

/**
 *   g = gradient * gradient_scale
 *   m = beta1 m + (1 - beta1) g          v = beta2 v + (1 - beta2) g^2
 *   d = learning_rate / (1 - beta1^step) m / (sqrt(v / (1 - beta2^step)) + epsilon)
 *       + learning_rate weight_decay p
 *   p = p - rates d
 *
 *   gradient [count] in    parameter, m, v [count] in and out; m and v start as 0
 *
 * Memory   none.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (struct_size, count or step, a setting that is not finite
 *          or out of range); nothing is then written.
 * Threads  one call per context.
 * Accuracy each product and sum is rounded to f32; the factors of a step are computed in double.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_adamw_step(mha_context *context, const mha_adamw *settings,
                                                int64_t count, float *parameter,
                                                const float *gradient, float *m, float *v);

/* Stochastic gradient descent, as in PyTorch. */
typedef struct mha_sgd {
    uint32_t struct_size;
    uint32_t reserved;     /* 0 */
    double learning_rate;  /* of this step */
    double momentum;       /* 0: none */
    double weight_decay;   /* added to the gradient, times p */
    double gradient_scale; /* 0: 1 */
} mha_sgd;

/**
 *   g = gradient * gradient_scale + weight_decay p
 *   velocity = momentum velocity + g          p = p - learning_rate velocity
 *
 *   velocity [count] in and out, starts as 0; NULL without momentum
 *
 * Memory, Errors, Threads, Since   as mha_adamw_step(); MHA_ERR_NULL for momentum without velocity.
 */
MHA_API MHA_NODISCARD mha_status mha_sgd_step(mha_context *context, const mha_sgd *settings,
                                              int64_t count, float *parameter,
                                              const float *gradient, float *velocity);

/**
 * norm = sqrt(sum of squares), in double, in a fixed order. To clip to c, give a step the
 * gradient_scale min(1, c / norm).
 *
 * Memory   scratch from the context.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (count), MHA_ERR_NOMEM.
 * Threads  one call per context.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_gradient_norm(mha_context *context, int64_t count,
                                                   const float *gradient, double *norm);

/* A schedule of the learning rate. */
typedef struct mha_schedule {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    double peak;       /* reached after warm-up */
    double floor;      /* where the decay ends, as a fraction of peak, 0 .. 1 */
    int64_t warm_up;   /* steps from peak / warm_up up to peak, linear */
    int64_t decay;     /* steps of the cosine after warm-up; 0: constant */
} mha_schedule;

/**
 * The learning rate of step 1, 2, ...: peak * step / warm_up in warm-up, then peak, or
 * peak (floor + (1 - floor) (1 + cos(pi x)) / 2) with x = (step - warm_up) / decay up to 1.
 *
 * Memory   fills *rate.   Errors  MHA_ERR_NULL, MHA_ERR_ARGUMENT.   Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_learning_rate(const mha_schedule *schedule, int64_t step,
                                                   double *rate);

#ifdef __cplusplus
}
#endif
#endif
