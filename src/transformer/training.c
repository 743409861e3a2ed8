/* A transformer in training: gradients, the optimizer's state, and one step after the other. */
#include "base/checked.h"
#include "base/struct_copy.h"
#include "base/tensor.h"

#include <multihead/component.h>
#include <multihead/nn.h>
#include <multihead/optimizer.h>
#include <multihead/training.h>

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef struct part {
    mha_transformer *net;
    mha_transformer_desc d;
    mha_activations *kept;
    int64_t size;
    float *memory; /* what the next ones point into */
    float *gradient, *m, *v;
    float *rates; /* NULL: 1 everywhere */
} part;

struct mha_trainer {
    mha_context *context;
    mha_allocator allocator;
    mha_trainer_desc desc;
    part main, encoder; /* encoder.net NULL: none */
    int64_t steps;
    float *logits;                   /* [max_tokens,V] */
    float *memory, *memory_gradient; /* [max_source,E] */
};

/* ---- making ---------------------------------------------------------------------------------- */

/* rows * cols floats; 0 rows: none. */
static mha_status take(const mha_trainer *t, int64_t rows, int64_t cols, float **memory)
{
    int64_t count;
    size_t bytes;
    if (!mhai_mul_i64(rows, cols, &count) ||
        !mhai_mul_size((size_t)count, sizeof **memory, &bytes) || bytes > PTRDIFF_MAX)
        return mha_fail(
            MHA_ERR_SIZE,
            "mha_trainer_create: %lld x %lld floats are beyond the address space; choose "
            "smaller max_tokens and max_source",
            (long long)rows, (long long)cols);
    if (bytes > 0) *memory = t->allocator.alloc(t->allocator.user, bytes, 64);
    if (bytes > 0 && !*memory)
        return mha_fail(MHA_ERR_NOMEM,
                        "mha_trainer_create: cannot allocate %zu bytes; smaller max_tokens and "
                        "max_source need less",
                        bytes);
    return MHA_OK;
}

/* What take() gave; nothing is multiplied that it refused. */
static void give(const mha_trainer *t, float *memory, int64_t rows, int64_t cols)
{
    if (memory)
        t->allocator.release(t->allocator.user, memory, (size_t)(rows * cols) * sizeof *memory);
}

static bool is_graded(const mha_trainer *t)
{
    return t->desc.head_grade > 0 && t->desc.head_grade < 1;
}

static void part_free(const mha_trainer *t, part *p)
{
    mha_activations_destroy(p->kept);
    give(t, p->memory, is_graded(t) ? 4 : 3, p->size);
}

void mha_trainer_destroy(mha_trainer *t)
{
    if (!t) return;
    part_free(t, &t->main);
    part_free(t, &t->encoder);
    give(t, t->logits, t->desc.max_tokens, t->main.d.vocab_size);
    give(t, t->memory, t->desc.max_source, t->encoder.d.embed_dim);
    give(t, t->memory_gradient, t->desc.max_source, t->encoder.d.embed_dim);
    mha_allocator allocator = t->allocator;
    allocator.release(allocator.user, t, sizeof *t);
}

/* Head h learns at grade^h of the speed of head 0: its rows of W_V, its columns of W_O. */
static mha_status fill_rates(part *own, double grade)
{
    for (int64_t i = 0; i < own->size; i++) own->rates[i] = 1;
    for (int64_t i = 0; i < mha_transformer_parameters(own->net); i++) {
        mha_parameter p;
        MHA_TRY(mha_transformer_parameter(own->net, i, &p));
        const bool rows = strstr(p.name, ".v_proj.weight"), cols = strstr(p.name, ".o_proj.weight");
        for (int64_t k = 0; (rows || cols) && k < p.count; k++) {
            int64_t head = (rows ? k / p.shape[1] : k % p.shape[1]) / own->d.head_dim;
            for (; head > 0; head--) own->rates[p.offset + k] *= (float)grade;
        }
    }
    return MHA_OK;
}

static mha_status part_make(mha_trainer *t, mha_transformer *net, int64_t tokens,
                            int64_t memory_rows, part *p)
{
    const int64_t size = mha_transformer_size(net);
    if (!mha_transformer_data(net))
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_trainer_create: the transformer's numbers come "
                                             "from a source, which is only read");
    *p = (part){.net = net};
    mha_transformer_describe(net, &p->d);
    MHA_TRY(mha_activations_create(t->context, net, tokens, memory_rows, &p->kept));
    MHA_TRY(take(t, is_graded(t) ? 4 : 3, size, &p->memory));
    p->size = size;
    memset(p->memory, 0, 3 * (size_t)size * sizeof *p->memory);
    p->gradient = p->memory;
    p->m = p->gradient + size;
    p->v = p->m + size;
    if (!is_graded(t)) return MHA_OK;
    p->rates = p->v + size;
    return fill_rates(p, t->desc.head_grade);
}

/* A setting that is passed on is wrong in the description. */
static mha_status of_desc(mha_status status)
{
    char detail[256];
    if (status == MHA_OK) return MHA_OK;
    snprintf(detail, sizeof detail, "%s", mha_error_detail());
    return mha_fail(status, "mha_trainer_desc: %s", detail);
}

/* That mha_adamw_step() and mha_learning_rate() will take them, before any step. */
static mha_status check_optimizer(mha_context *context, const mha_trainer_desc *d)
{
    float none[4] = {0};
    double rate;
    const mha_adamw settings = {.struct_size = sizeof settings,
                                .learning_rate = d->learning_rate,
                                .beta1 = d->beta1,
                                .beta2 = d->beta2,
                                .epsilon = d->epsilon,
                                .weight_decay = d->weight_decay,
                                .step = 1};
    const mha_schedule schedule = {.struct_size = sizeof schedule,
                                   .peak = d->learning_rate,
                                   .floor = d->floor,
                                   .warm_up = d->warm_up,
                                   .decay = d->decay};
    MHA_TRY(of_desc(mha_adamw_step(context, &settings, 0, none, none + 1, none + 2, none + 3)));
    return of_desc(mha_learning_rate(&schedule, 1, &rate));
}

static mha_status check_desc(mha_context *context, const mha_trainer_desc *d, bool encoded)
{
    if (d->reserved)
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_trainer_desc: reserved is %u, expected 0",
                        (unsigned)d->reserved);
    if (d->max_tokens < 1)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_trainer_desc: max_tokens is %lld, expected 1 or more",
                        (long long)d->max_tokens);
    if (encoded ? d->max_source < 1 : d->max_source != 0)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_trainer_desc: max_source is %lld, expected %s",
                        (long long)d->max_source,
                        encoded ? "1 or more" : "0, since there is no encoder");
    if (!(d->clip >= 0))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_trainer_desc: clip is %g, expected a norm, or 0 for none", d->clip);
    if (!(d->head_grade >= 0 && d->head_grade <= 1))
        return mha_fail(MHA_ERR_ARGUMENT, "mha_trainer_desc: head_grade is %g, expected 0 .. 1",
                        d->head_grade);
    return check_optimizer(context, d);
}

static mha_status check_nets(const mha_transformer *transformer, const mha_transformer *encoder)
{
    mha_transformer_desc d, e;
    mha_transformer_describe(transformer, &d);
    if (d.flags & MHA_TRANSFORMER_NO_OUTPUT)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_trainer_create: the transformer has no logits to compare with "
                        "targets; create it without MHA_TRANSFORMER_NO_OUTPUT");
    if (!encoder == !!(d.flags & MHA_TRANSFORMER_CROSS))
        return mha_fail(MHA_ERR_ARGUMENT,
                        encoder ? "mha_trainer_create: the transformer has no cross-attention to "
                                  "read an encoder with; pass NULL as the encoder"
                                : "mha_trainer_create: the transformer has cross-attention and "
                                  "needs an encoder; pass the one whose output it reads");
    if (!encoder) return MHA_OK;
    mha_transformer_describe(encoder, &e);
    const char *wrong = transformer == encoder ? "is the transformer itself; pass another"
                        : !(e.flags & MHA_TRANSFORMER_NO_OUTPUT)
                            ? "has logits; create it with MHA_TRANSFORMER_NO_OUTPUT"
                        : e.flags & MHA_TRANSFORMER_CROSS
                            ? "has cross-attention; create it without MHA_TRANSFORMER_CROSS"
                            : NULL;
    if (wrong) return mha_fail(MHA_ERR_ARGUMENT, "mha_trainer_create: the encoder %s", wrong);
    if (e.embed_dim == d.memory_dim) return MHA_OK;
    return mha_fail(MHA_ERR_ARGUMENT,
                    "mha_trainer_create: the encoder's embed_dim is %lld, the transformer's "
                    "memory_dim %lld; make them equal",
                    (long long)e.embed_dim, (long long)d.memory_dim);
}

mha_status mha_trainer_create(mha_context *context, mha_transformer *transformer,
                              mha_transformer *encoder, const mha_trainer_desc *desc,
                              mha_trainer **trainer)
{
    mha_trainer_desc d;
    mha_status status;
    if (!context || !transformer || !desc || !trainer)
        return mha_fail(MHA_ERR_NULL, "mha_trainer_create: %s is NULL",
                        !context       ? "context"
                        : !transformer ? "transformer"
                        : !desc        ? "desc"
                                       : "trainer");
    MHA_TRY(mhai_struct_copy("mha_trainer_desc", &d, sizeof d, sizeof d, desc));
    MHA_TRY(check_desc(context, &d, encoder));
    MHA_TRY(check_nets(transformer, encoder));
    const mha_allocator a = mha_context_allocator(context);
    mha_trainer *t = a.alloc(a.user, sizeof *t, _Alignof(mha_trainer));
    if (!t)
        return mha_fail(MHA_ERR_NOMEM, "mha_trainer_create: cannot allocate %zu bytes", sizeof *t);
    *t = (mha_trainer){.context = context, .allocator = a, .desc = d};
    MHA_TRY_GOTO(part_make(t, transformer, d.max_tokens, d.max_source, &t->main), fail);
    if (encoder) MHA_TRY_GOTO(part_make(t, encoder, d.max_source, 0, &t->encoder), fail);
    MHA_TRY_GOTO(take(t, d.max_tokens, t->main.d.vocab_size, &t->logits), fail);
    MHA_TRY_GOTO(take(t, d.max_source, t->encoder.d.embed_dim, &t->memory), fail);
    MHA_TRY_GOTO(take(t, d.max_source, t->encoder.d.embed_dim, &t->memory_gradient), fail);
    *trainer = t;
    return MHA_OK;
fail:
    mha_trainer_destroy(t);
    return status;
}

/* ---- a batch --------------------------------------------------------------------------------- */

/* A batch as tensors. */
typedef struct views {
    mha_training_batch batch;
    mha_transformer_input input, source;
    mha_tensor memory, memory_gradient, logits;
    mha_tensor rows, targets, weights; /* [B T,V], [B T] */
} views;

static mha_status copy_input(const char *name, const mha_transformer_input *given, int64_t most,
                             mha_transformer_input *input)
{
    MHA_TRY(mhai_struct_copy("mha_transformer_input", input, sizeof *input,
                             offsetof(mha_transformer_input, token_types), given));
    input->struct_size = sizeof *input;
    MHA_TRY(mhai_tensor_check("tokens", input->tokens, MHA_I32, 2, NULL));
    const int64_t *shape = input->tokens->shape;
    if (shape[0] <= 0 || shape[1] <= most / shape[0]) return MHA_OK;
    return mha_fail(MHA_ERR_SIZE,
                    "mha_training_batch: %s has %lld x %lld tokens, the trainer was made for %lld; "
                    "pass fewer, or create it with a larger max_%s",
                    name, (long long)shape[0], (long long)shape[1], (long long)most,
                    strcmp(name, "input") == 0 ? "tokens" : name);
}

/* [B,T] as [B T]. */
static mha_status flatten(const char *name, const mha_tensor *given, mha_dtype dtype,
                          const int64_t *shape, mha_tensor *flat)
{
    MHA_TRY(mhai_tensor_check(name, given, dtype, 2, shape));
    if (shape[0] > 1 && shape[1] > 0 && given->stride[0] != shape[1] * given->stride[1])
        return mha_fail(
            MHA_ERR_STRIDE,
            "%s: rows are %lld elements apart, expected %lld: each row must begin where "
            "the last one ends",
            name, (long long)given->stride[0], (long long)(shape[1] * given->stride[1]));
    *flat = *given;
    flat->ndim = 1;
    flat->shape[0] = shape[0] * shape[1];
    flat->stride[0] = given->stride[1];
    return MHA_OK;
}

static mha_status see_source(mha_trainer *t, views *v)
{
    const bool encoded = t->encoder.net;
    if (encoded != !!v->batch.source || (encoded && v->input.memory))
        return mha_fail(MHA_ERR_ARGUMENT, "mha_training_batch: %s",
                        !encoded          ? "source is set, but there is no encoder; leave it NULL"
                        : v->batch.source ? "input->memory is set, but it is the encoder's output; "
                                            "leave it NULL"
                                          : "source is NULL, but there is an encoder to read it");
    if (!encoded) return MHA_OK;
    MHA_TRY(copy_input("source", v->batch.source, t->desc.max_source, &v->source));
    const int64_t *s = v->source.tokens->shape;
    v->memory = mha_tensor_contiguous(t->memory, MHA_F32, 3,
                                      (int64_t[]){s[0], s[1], t->encoder.d.embed_dim});
    v->memory_gradient = v->memory;
    v->memory_gradient.data = t->memory_gradient;
    v->input.memory = &v->memory;
    v->input.memory_lengths = v->source.lengths;
    return MHA_OK;
}

static mha_status see(mha_trainer *t, const mha_training_batch *batch, bool targets, views *v)
{
    const int64_t V = t->main.d.vocab_size;
    MHA_TRY(
        mhai_struct_copy("mha_training_batch", &v->batch, sizeof v->batch, sizeof v->batch, batch));
    if (v->batch.reserved)
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_training_batch: reserved is %u, expected 0",
                        (unsigned)v->batch.reserved);
    if (!v->batch.input) return mha_fail(MHA_ERR_NULL, "mha_training_batch: input is NULL");
    MHA_TRY(copy_input("input", v->batch.input, t->desc.max_tokens, &v->input));
    const int64_t *shape = v->input.tokens->shape;
    v->logits = mha_tensor_contiguous(t->logits, MHA_F32, 3, (int64_t[]){shape[0], shape[1], V});
    v->rows = mha_tensor_contiguous(t->logits, MHA_F32, 2, (int64_t[]){shape[0] * shape[1], V});
    if (targets) MHA_TRY(flatten("targets", v->batch.targets, MHA_I32, shape, &v->targets));
    if (v->batch.weights)
        MHA_TRY(flatten("weights", v->batch.weights, MHA_F32, shape, &v->weights));
    return see_source(t, v);
}

static mha_status forward(mha_trainer *t, views *v, const mha_tensor *probabilities,
                          const mha_tensor *cross_probabilities)
{
    if (t->encoder.net)
        MHA_TRY(mha_transformer_forward(t->context, t->encoder.net, &v->source, t->encoder.kept,
                                        &v->memory, NULL, NULL));
    return mha_transformer_forward(t->context, t->main.net, &v->input, t->main.kept, &v->logits,
                                   probabilities, cross_probabilities);
}

/* What cross-entropy does not check: that there is a row to learn from, and finite weights. */
static mha_status check_rows(const views *v, bool learns)
{
    const int64_t T = v->input.tokens->shape[1];
    bool any = false;
    for (int64_t i = 0; i < v->targets.shape[0]; i++) {
        if (((const int32_t *)v->targets.data)[i * v->targets.stride[0]] == -1) continue;
        any = any || !v->input.lengths || i % T < v->input.lengths[i / T];
        if (!v->batch.weights) continue;
        const float weight = ((const float *)v->weights.data)[i * v->weights.stride[0]];
        if (!isfinite(weight))
            return mha_fail(
                MHA_ERR_NUMERIC,
                "mha_training_batch: weights[%lld,%lld] is %g, expected a finite number",
                (long long)(i / T), (long long)(i % T), (double)weight);
    }
    if (any || !learns) return MHA_OK;
    return mha_fail(
        MHA_ERR_ARGUMENT,
        "mha_training_batch: there is nothing to learn from: each target is -1 or beyond "
        "the length of its sequence; leave the batch out");
}

static mha_status loss_of(mha_trainer *t, views *v, double *loss, bool gradient)
{
    MHA_TRY(check_rows(v, gradient));
    return mha_cross_entropy(t->context, &v->rows, &v->targets,
                             v->batch.weights ? &v->weights : NULL, loss, NULL,
                             gradient ? &v->rows : NULL);
}

static mha_status backward(mha_trainer *t, views *v)
{
    const bool encoded = t->encoder.net;
    mha_transformer_gradients out = {.struct_size = sizeof out,
                                     .parameters = t->main.gradient,
                                     .memory = encoded ? &v->memory_gradient : NULL};
    memset(t->main.gradient, 0, (size_t)t->main.size * sizeof(float));
    if (encoded) {
        const int64_t *s = v->memory.shape;
        memset(t->encoder.gradient, 0, (size_t)t->encoder.size * sizeof(float));
        memset(t->memory_gradient, 0, (size_t)(s[0] * s[1] * s[2]) * sizeof(float));
    }
    MHA_TRY(mha_transformer_backward(t->context, t->main.net, &v->input, t->main.kept, &v->logits,
                                     &out));
    if (!encoded) return MHA_OK;
    out = (mha_transformer_gradients){.struct_size = sizeof out, .parameters = t->encoder.gradient};
    return mha_transformer_backward(t->context, t->encoder.net, &v->source, t->encoder.kept,
                                    &v->memory_gradient, &out);
}

/* ---- moving ---------------------------------------------------------------------------------- */

static mha_status move_part(mha_trainer *t, part *own, mha_adamw settings)
{
    const int64_t parameters = mha_transformer_parameters(own->net);
    float *data = mha_transformer_data(own->net);
    for (int64_t i = 0; i < parameters; i++) {
        mha_parameter p;
        MHA_TRY(mha_transformer_parameter(own->net, i, &p));
        settings.weight_decay = p.kind == MHA_PARAMETER_MATRIX ? t->desc.weight_decay : 0;
        settings.rates = own->rates ? own->rates + p.offset : NULL;
        MHA_TRY(mha_adamw_step(t->context, &settings, p.count, data + p.offset,
                               own->gradient + p.offset, own->m + p.offset, own->v + p.offset));
    }
    return mha_transformer_update(t->context, own->net);
}

/* Whose fault it is: parameters that were given so, or what steps made of them. */
static mha_status not_finite(const mha_trainer *t, double loss)
{
    const part *parts[] = {&t->main, &t->encoder};
    for (int i = 0; i < 2; i++) {
        const float *data = parts[i]->net ? mha_transformer_data(parts[i]->net) : NULL;
        for (int64_t k = 0; data && k < mha_transformer_parameters(parts[i]->net); k++) {
            mha_parameter p;
            MHA_TRY(mha_transformer_parameter(parts[i]->net, k, &p));
            for (int64_t n = 0; n < p.count; n++)
                if (!isfinite(data[p.offset + n]))
                    return mha_fail(MHA_ERR_NUMERIC,
                                    "mha_trainer_step: %s%s[%lld] is %g after %lld steps; %s",
                                    i ? "the encoder's " : "", p.name, (long long)n,
                                    (double)data[p.offset + n], (long long)t->steps,
                                    t->steps ? "go back to finite parameters, and choose a smaller "
                                               "learning rate if it was not set so"
                                             : "initialise or load finite parameters");
        }
    }
    return mha_fail(
        MHA_ERR_NUMERIC,
        "mha_trainer_step: the loss %g or its gradient is not finite after %lld steps; %s", loss,
        (long long)t->steps,
        t->steps ? "choose a smaller learning rate" : "begin with smaller parameters");
}

static mha_status move(mha_trainer *t, double loss)
{
    const mha_trainer_desc *d = &t->desc;
    part *parts[] = {&t->main, &t->encoder};
    const int count = t->encoder.net ? 2 : 1;
    double squares = 0, rate;
    for (int i = 0; i < count; i++) {
        double norm = 0;
        MHA_TRY(mha_gradient_norm(t->context, parts[i]->size, parts[i]->gradient, &norm));
        squares += norm * norm;
    }
    if (!isfinite(loss) || !isfinite(squares)) return not_finite(t, loss);
    const mha_schedule schedule = {.struct_size = sizeof schedule,
                                   .peak = d->learning_rate,
                                   .floor = d->floor,
                                   .warm_up = d->warm_up,
                                   .decay = d->decay};
    MHA_TRY(mha_learning_rate(&schedule, t->steps + 1, &rate));
    const double norm = sqrt(squares);
    const mha_adamw settings = {.struct_size = sizeof settings,
                                .learning_rate = rate,
                                .beta1 = d->beta1,
                                .beta2 = d->beta2,
                                .epsilon = d->epsilon,
                                .gradient_scale =
                                    d->clip > 0 && norm > d->clip ? d->clip / norm : 1,
                                .step = t->steps + 1};
    for (int i = 0; i < count; i++) MHA_TRY(move_part(t, parts[i], settings));
    return MHA_OK;
}

/* ---- public ---------------------------------------------------------------------------------- */

mha_status mha_trainer_step(mha_trainer *t, const mha_training_batch *batch, double *loss)
{
    views v;
    double found = 0;
    if (!t || !batch)
        return mha_fail(MHA_ERR_NULL, "mha_trainer_step: %s is NULL", t ? "batch" : "trainer");
    MHA_TRY(see(t, batch, true, &v));
    MHA_TRY(forward(t, &v, NULL, NULL));
    MHA_TRY(loss_of(t, &v, &found, true));
    MHA_TRY(backward(t, &v));
    MHA_TRY(move(t, found));
    t->steps++;
    if (loss) *loss = found;
    return MHA_OK;
}

mha_status mha_trainer_evaluate(mha_trainer *t, const mha_training_batch *batch,
                                const mha_tensor *probabilities,
                                const mha_tensor *cross_probabilities, mha_tensor *logits,
                                double *loss)
{
    views v;
    if (!t || !batch)
        return mha_fail(MHA_ERR_NULL, "mha_trainer_evaluate: %s is NULL", t ? "batch" : "trainer");
    MHA_TRY(see(t, batch, loss, &v));
    MHA_TRY(forward(t, &v, probabilities, cross_probabilities));
    if (loss) MHA_TRY(loss_of(t, &v, loss, false));
    if (logits) *logits = v.logits;
    return MHA_OK;
}

int64_t mha_trainer_steps(const mha_trainer *t)
{
    return t ? t->steps : 0;
}

mha_trainer_state mha_trainer_state_of(mha_trainer *t, bool encoder)
{
    const mha_trainer_state none = {0};
    if (!t) return none;
    const part *p = encoder ? &t->encoder : &t->main;
    return (mha_trainer_state){
        .transformer = p->net, .count = p->size, .m = p->m, .v = p->v, .gradient = p->gradient};
}

mha_status mha_trainer_resume(mha_trainer *t, int64_t steps)
{
    const int64_t most = (int64_t)1 << 62; /* steps are counted on from there */
    if (!t) return mha_fail(MHA_ERR_NULL, "mha_trainer_resume: trainer is NULL");
    if (steps < 0 || steps > most)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_trainer_resume: steps is %lld, expected 0..%lld",
                        (long long)steps, (long long)most);
    t->steps = steps;
    return MHA_OK;
}
