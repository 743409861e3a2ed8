/* Training steps and evaluation: checks of the batch, gradients, and the update. */
#include "transformer/training_leaves.h"

#include "base/checked.h"
#include "base/hash.h"
#include "base/need.h"
#include "base/tensor.h"

#include <multihead/component.h>
#include <multihead/nn.h>
#include <multihead/optimizer.h>

#include <math.h>
#include <stddef.h>
#include <string.h>

/* ---- a batch --------------------------------------------------------------------------------- */

static mha_status copy_input(const char *name, const mha_transformer_input *given, int64_t most,
                             mha_transformer_input *input)
{
    MHA_TRY(mhai_struct_copy("mha_transformer_input", input, sizeof *input,
                             offsetof(mha_transformer_input, token_types), given));
    input->struct_size = sizeof *input;
    MHA_TRY(mhai_tensor_check("tokens", input->tokens, MHA_I32, 2, NULL));
    const int64_t *shape = input->tokens->shape;
    if (input->token_types)
        MHA_TRY(mhai_tensor_check("token_types", input->token_types, MHA_I32, 2, shape));
    if (shape[0] <= 0 || shape[1] <= most / shape[0]) return MHA_OK;
    return mha_fail(MHA_ERR_SIZE,
                    "mha_training_batch: %s has %lld x %lld tokens, the trainer was created for "
                    "%lld; pass fewer, or create it with a larger max_%s",
                    name, (long long)shape[0], (long long)shape[1], (long long)most,
                    strcmp(name, "input") == 0 ? "tokens" : name);
}

/* View [B,T] as [B T]. */
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

static mha_status see_source(mha_trainer *t, mhai_views *v)
{
    const bool encoded = t->encoder.net;
    if (encoded != !!v->batch.source || (encoded && v->input.memory))
        return mha_fail(MHA_ERR_ARGUMENT, "mha_training_batch: %s",
                        !encoded          ? "source is set, but there is no encoder; leave it NULL"
                        : v->batch.source ? "input->memory is set, but it is the encoder's output; "
                                            "leave it NULL"
                                          : "source is NULL, but the encoder reads it");
    if (!encoded) return MHA_OK;
    MHA_TRY(copy_input("source", v->batch.source, t->desc.max_source, &v->source));
    const int64_t *s = v->source.tokens->shape;
    MHA_TRY(mhai_tensor_check("source tokens", v->source.tokens, MHA_I32, 2,
                              (int64_t[]){v->input.tokens->shape[0], -1}));
    v->memory = mha_tensor_contiguous(t->memory, MHA_F32, 3,
                                      (int64_t[]){s[0], s[1], t->encoder.d.embed_dim});
    v->memory_gradient = v->memory;
    v->memory_gradient.data = t->memory_gradient;
    v->input.memory = &v->memory;
    v->input.memory_lengths = v->source.lengths;
    return MHA_OK;
}

static mha_status see(mha_trainer *t, const mha_training_batch *batch, bool targets, mhai_views *v)
{
    const int64_t V = t->main.d.vocab_size;
    MHA_TRY(
        mhai_struct_copy("mha_training_batch", &v->batch, sizeof v->batch, sizeof v->batch, batch));
    MHA_TRY(mhai_check_reserved("mha_training_batch", v->batch.reserved));
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

/* Check that the batch has a target and that its weights are finite.
 * Cross-entropy checks the rest. */
static mha_status check_rows(mhai_views *v, bool learns)
{
    const int64_t T = v->input.tokens->shape[1];
    bool any = false;
    v->counted = 0;
    for (int64_t i = 0; i < v->targets.shape[0]; i++) {
        if (((const int32_t *)v->targets.data)[i * v->targets.stride[0]] == -1) continue;
        v->counted++;
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
    return mha_fail(MHA_ERR_ARGUMENT, "mha_training_batch: no row counts: each target is -1 or "
                                      "beyond the length of its sequence; skip the batch");
}

static mha_status forward(mha_trainer *t, const mha_transformer_input *input,
                          const mha_transformer_input *source, const mha_tensor *memory,
                          const mha_tensor *logits, const mha_tensor *probabilities,
                          const mha_tensor *cross_probabilities)
{
    if (t->encoder.net)
        MHA_TRY(mha_transformer_forward(t->context, t->encoder.net, source, t->encoder.kept, memory,
                                        NULL, NULL));
    return mha_transformer_forward(t->context, t->main.net, input, t->main.kept, logits,
                                   probabilities, cross_probabilities);
}

static mha_status loss_of(mha_trainer *t, mhai_views *v, double *loss)
{
    MHA_TRY(check_rows(v, false));
    return mha_cross_entropy(t->context, &v->rows, &v->targets,
                             v->batch.weights ? &v->weights : NULL, loss, NULL, NULL);
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* Reject outputs, because a step computes one leaf at a time. */
static mha_status check_outputs(const mha_transformer_input *input)
{
    if (!input->last_hidden && !input->outputs && !input->after_layer) return MHA_OK;
    return mha_fail(MHA_ERR_UNSUPPORTED,
                    "mha_trainer_step: last_hidden, outputs and after_layer are for forward calls; "
                    "mha_trainer_evaluate() has them");
}

/* Compute the gradient of the whole batch, on every rank. */
static mha_status learn(mha_trainer *t, const mhai_views *v, double *loss)
{
    const int64_t *shape = v->input.tokens->shape;
    mhai_nodes own = {.leaves = mhai_tree_leaves(shape[0], shape[1], t->size, t->desc.slices)};
    const mha_scratch_mark mark = mha_scratch_top(t->context);
    mha_status status = mha_transport_agree(&t->transport, mhai_leaves_learn(t, v, &own));
    if (status == MHA_OK && t->transport.size > 1)
        status = mhai_tree_reduce(t->context, &t->transport, &own, t->size, t->gradient, loss);
    else if (status == MHA_OK)
        *loss = own.nodes[0].loss;
    return mha_scratch_end(t->context, mark, status);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static void mix(uint64_t *hash, uint64_t number)
{
    *hash = mhai_hash(*hash, &number, sizeof number);
}

static void mix_tensor(uint64_t *hash, const mha_tensor *x)
{
    const size_t size = mha_dtype_size(x->dtype); /* x is i32 or f32 */
    for (int64_t i = 0; i < x->shape[0]; i++)
        for (int64_t j = 0; j < (x->ndim > 1 ? x->shape[1] : 1); j++) {
            const int64_t at = i * x->stride[0] + (x->ndim > 1 ? j * x->stride[1] : 0);
            *hash = mhai_hash(*hash, (const char *)x->data + (size_t)at * size, size);
        }
}

static void mix_input(uint64_t *hash, const mha_transformer_input *input)
{
    uint32_t dropout;
    const int64_t *shape = input->tokens->shape;
    memcpy(&dropout, &input->dropout, sizeof dropout);
    mix(hash, dropout);
    mix(hash, input->dropout_seed);
    mix(hash, (uint64_t)shape[0]);
    mix(hash, (uint64_t)shape[1]);
    mix_tensor(hash, input->tokens);
    if (input->token_types) mix_tensor(hash, input->token_types);
    for (int64_t b = 0; input->lengths && b < shape[0]; b++) mix(hash, (uint64_t)input->lengths[b]);
}

static uint64_t hash_of_batch(const mhai_views *v)
{
    uint64_t hash = MHAI_HASH_START;
    mix_input(&hash, &v->input);
    if (v->batch.source) mix_input(&hash, &v->source);
    mix_tensor(&hash, &v->targets);
    if (v->batch.weights) mix_tensor(&hash, &v->weights);
    return hash;
}

static uint64_t hash_of_state(const mha_trainer *t)
{
    const mhai_trained *parts[] = {&t->main, &t->encoder};
    uint64_t hash = (uint64_t)t->steps;
    for (int i = 0; i < 2 && parts[i]->net; i++) {
        const float *arrays[] = {mha_transformer_data(parts[i]->net), parts[i]->m, parts[i]->v};
        for (int k = 0; k < 3; k++) {
            const mha_tensor all =
                mha_tensor_contiguous((void *)(uintptr_t)arrays[k], MHA_F32, 1, &parts[i]->size);
            mix_tensor(&hash, &all);
        }
    }
    return hash;
}

/* Check that all ranks received the same batch. Before the first step, also
 * compare their parameters. */
static mha_status compare(mha_trainer *t, const mhai_views *v, mha_status status)
{
    uint64_t batch = 0, state = 0;
    if (t->transport.size == 1) return status;
    MHA_TRY(mha_transport_agree(&t->transport, status));
    batch = hash_of_batch(v);
    MHA_TRY(mha_transport_same(&t->transport, "batch", &batch, sizeof batch, MHA_OK));
    if (t->compared) return MHA_OK;
    state = hash_of_state(t);
    MHA_TRY(mha_transport_same(&t->transport, "model or state of training", &state, sizeof state,
                               MHA_OK));
    t->compared = true;
    return MHA_OK;
}

/* ---- update ---------------------------------------------------------------------------------- */

static mha_status move_part(mha_trainer *t, mhai_trained *own, mha_adamw settings)
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

/* Report whether the initial parameters or the training steps made the loss non-finite. */
static mha_status not_finite(const mha_trainer *t, double loss)
{
    const mhai_trained *parts[] = {&t->main, &t->encoder};
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
                                    t->steps ? "restore finite parameters; if training made them "
                                               "infinite, choose a smaller learning rate"
                                             : "initialise or load finite parameters");
        }
    }
    return mha_fail(
        MHA_ERR_NUMERIC,
        "mha_trainer_step: the loss %g or its gradient is not finite after %lld steps; %s", loss,
        (long long)t->steps,
        t->steps ? "choose a smaller learning rate" : "begin with smaller parameters");
}

/* Finish everything that can fail before any parameter changes. */
static mha_status prepare_move(mha_trainer *t, double loss, double *rate, double *norm)
{
    const mhai_trained *parts[] = {&t->main, &t->encoder};
    double squares = 0;
    for (int i = 0; i < 2 && parts[i]->net; i++) {
        double of_part = 0;
        MHA_TRY(mha_gradient_norm(t->context, parts[i]->size, parts[i]->gradient, &of_part));
        squares += of_part * of_part;
    }
    if (!isfinite(loss) || !isfinite(squares)) return not_finite(t, loss);
    const mha_schedule schedule = {.struct_size = sizeof schedule,
                                   .peak = t->desc.learning_rate,
                                   .floor = t->desc.floor,
                                   .warm_up = t->desc.warm_up,
                                   .decay = t->desc.decay};
    *norm = sqrt(squares);
    return mha_learning_rate(&schedule, t->steps + 1, rate);
}

static mha_status move(mha_trainer *t, double rate, double norm)
{
    const mha_trainer_desc *d = &t->desc;
    const mha_adamw settings = {.struct_size = sizeof settings,
                                .learning_rate = rate,
                                .beta1 = d->beta1,
                                .beta2 = d->beta2,
                                .epsilon = d->epsilon,
                                .gradient_scale =
                                    d->clip > 0 && norm > d->clip ? d->clip / norm : 1,
                                .step = t->steps + 1};
    MHA_TRY(move_part(t, &t->main, settings));
    return t->encoder.net ? move_part(t, &t->encoder, settings) : MHA_OK;
}

/* ---- public ---------------------------------------------------------------------------------- */

mha_status mha_trainer_step(mha_trainer *t, const mha_training_batch *batch, double *loss)
{
    mhai_views v;
    double found = 0, rate = 0, norm = 0;
    MHA_NEED_AS("mha_trainer_step", "trainer, batch", t, batch);
    mha_status status = see(t, batch, true, &v);
    if (status == MHA_OK) status = check_outputs(&v.input);
    if (status == MHA_OK && v.batch.source) status = check_outputs(&v.source);
    if (status == MHA_OK) status = check_rows(&v, true);
    MHA_TRY(compare(t, &v, status));
    MHA_TRY(learn(t, &v, &found));
    MHA_TRY(mha_transport_agree(&t->transport, prepare_move(t, found, &rate, &norm)));
    MHA_TRY(move(t, rate, norm));
    t->steps++;
    if (loss) *loss = found;
    return MHA_OK;
}

mha_status mha_trainer_evaluate(mha_trainer *t, const mha_training_batch *batch,
                                const mha_tensor *probabilities,
                                const mha_tensor *cross_probabilities, mha_tensor *logits,
                                double *loss)
{
    mhai_views v;
    MHA_NEED_AS("mha_trainer_evaluate", "trainer, batch", t, batch);
    MHA_TRY(see(t, batch, loss, &v));
    MHA_TRY(
        forward(t, &v.input, &v.source, &v.memory, &v.logits, probabilities, cross_probabilities));
    if (loss) MHA_TRY(loss_of(t, &v, loss));
    if (logits) *logits = v.logits;
    return MHA_OK;
}
