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
        return mha_fail(MHA_ERR_SIZE, "mha_trainer: %lld x %lld numbers do not fit in memory",
                        (long long)rows, (long long)cols);
    if (bytes > 0) *memory = t->allocator.alloc(t->allocator.user, bytes, 64);
    if (bytes > 0 && !*memory)
        return mha_fail(MHA_ERR_NOMEM, "mha_trainer: cannot allocate %zu bytes", bytes);
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

static mha_status check_desc(const mha_trainer_desc *d, bool encoded)
{
    const mha_schedule schedule = {.struct_size = sizeof schedule,
                                   .peak = d->learning_rate,
                                   .floor = d->floor,
                                   .warm_up = d->warm_up,
                                   .decay = d->decay};
    double rate;
    if (d->reserved)
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_trainer_desc: reserved is %u, expected 0",
                        (unsigned)d->reserved);
    if (d->max_tokens < 1 || d->max_source < 0 || (d->max_source > 0) != encoded)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_trainer_desc: max_tokens is %lld, expected 1 or more; max_source is "
                        "%lld, expected %s",
                        (long long)d->max_tokens, (long long)d->max_source,
                        encoded ? "1 or more" : "0 without an encoder");
    if (!(d->clip >= 0) || !(d->head_grade >= 0 && d->head_grade <= 1))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_trainer_desc: clip is %g, expected 0 or more; head_grade is %g, "
                        "expected 0 .. 1",
                        d->clip, d->head_grade);
    return mha_learning_rate(&schedule, 1, &rate);
}

/* That mha_adamw_step() will take them, before any step. */
static mha_status check_optimizer(const mha_trainer *t)
{
    float none[4] = {0};
    mha_adamw settings = {.struct_size = sizeof settings,
                          .learning_rate = t->desc.learning_rate,
                          .beta1 = t->desc.beta1,
                          .beta2 = t->desc.beta2,
                          .epsilon = t->desc.epsilon,
                          .weight_decay = t->desc.weight_decay,
                          .step = 1};
    return mha_adamw_step(t->context, &settings, 0, none, none + 1, none + 2, none + 3);
}

static mha_status check_nets(const mha_transformer *transformer, const mha_transformer *encoder)
{
    mha_transformer_desc d, e;
    mha_transformer_describe(transformer, &d);
    if (d.flags & MHA_TRANSFORMER_NO_OUTPUT)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_trainer_create: the transformer has no output to compare with "
                        "targets (MHA_TRANSFORMER_NO_OUTPUT)");
    if (!encoder == !!(d.flags & MHA_TRANSFORMER_CROSS))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_trainer_create: a transformer with%s cross-attention needs %s encoder",
                        encoder ? "out" : "", encoder ? "no" : "an");
    if (!encoder) return MHA_OK;
    mha_transformer_describe(encoder, &e);
    if (transformer == encoder || !(e.flags & MHA_TRANSFORMER_NO_OUTPUT) ||
        e.flags & MHA_TRANSFORMER_CROSS || e.embed_dim != d.memory_dim)
        return mha_fail(
            MHA_ERR_ARGUMENT,
            "mha_trainer_create: the encoder has embed_dim %lld, memory_dim is %lld; it must "
            "be another transformer, of that width, with MHA_TRANSFORMER_NO_OUTPUT and "
            "without cross-attention",
            (long long)e.embed_dim, (long long)d.memory_dim);
    return MHA_OK;
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
    MHA_TRY(check_desc(&d, encoder));
    MHA_TRY(check_nets(transformer, encoder));
    const mha_allocator a = mha_context_allocator(context);
    mha_trainer *t = a.alloc(a.user, sizeof *t, _Alignof(mha_trainer));
    if (!t) return mha_fail(MHA_ERR_NOMEM, "mha_trainer: out of memory");
    *t = (mha_trainer){.context = context, .allocator = a, .desc = d};
    MHA_TRY_GOTO(check_optimizer(t), fail);
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
    return mha_fail(MHA_ERR_SIZE, "%s: %lld x %lld tokens, the trainer was made for %lld", name,
                    (long long)shape[0], (long long)shape[1], (long long)most);
}

/* [B,T] as [B T]. */
static mha_status flatten(const char *name, const mha_tensor *given, mha_dtype dtype,
                          const int64_t *shape, mha_tensor *flat)
{
    MHA_TRY(mhai_tensor_check(name, given, dtype, 2, shape));
    if (shape[0] > 1 && shape[1] > 0 && given->stride[0] != shape[1] * given->stride[1])
        return mha_fail(MHA_ERR_STRIDE, "%s: expected rows one behind the other", name);
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
                        !encoded          ? "there is a source, but no encoder"
                        : v->batch.source ? "memory is set, which the encoder gives"
                                          : "the encoder needs a source");
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

static mha_status loss_of(mha_trainer *t, views *v, double *loss, bool gradient)
{
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
    if (!isfinite(loss) || !isfinite(squares))
        return mha_fail(MHA_ERR_NUMERIC,
                        "mha_trainer_step: the loss %g or its gradient is not finite after %lld "
                        "steps; choose a smaller learning rate",
                        loss, (long long)t->steps);
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
