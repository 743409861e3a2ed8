/* Creating a trainer; saving and restoring its state. */
#include "transformer/training_leaves.h"

#include "base/checked.h"
#include "base/need.h"
#include "ranks/rank_messages.h"
#include "transformer/transformer_parts.h"

#include <multihead/component.h>
#include <multihead/optimizer.h>

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* ---- creation -------------------------------------------------------------------------------- */

/* Allocate rows * cols floats; nothing if rows is 0. */
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

static void give(const mha_trainer *t, float *memory, int64_t rows, int64_t cols)
{
    if (memory)
        t->allocator.release(t->allocator.user, memory, (size_t)(rows * cols) * sizeof *memory);
}

static bool is_graded(const mha_trainer *t)
{
    return t->desc.head_grade > 0 && t->desc.head_grade < 1;
}

static void part_free(const mha_trainer *t, mhai_trained *p)
{
    mha_activations_destroy(p->kept);
    give(t, p->memory, is_graded(t) ? 3 : 2, p->size);
}

void mha_trainer_destroy(mha_trainer *t)
{
    if (!t) return;
    mhai_helpers_free(t);
    part_free(t, &t->main);
    part_free(t, &t->encoder);
    give(t, t->gradient, 1, t->size);
    give(t, t->logits, t->desc.max_tokens, t->main.d.vocab_size);
    give(t, t->memory, t->desc.max_source, t->encoder.d.embed_dim);
    give(t, t->memory_gradient, t->desc.max_source, t->encoder.d.embed_dim);
    mha_allocator allocator = t->allocator;
    allocator.release(allocator.user, t, sizeof *t);
}

/* Head h learns at grade^h times the rate of head 0, in its rows of W_V and its columns of W_O. */
static mha_status fill_rates(mhai_trained *own, double grade)
{
    for (int64_t i = 0; i < own->size; i++) own->rates[i] = 1;
    for (int64_t i = 0; i < mha_transformer_parameters(own->net); i++) {
        mha_parameter p;
        MHA_TRY(mha_transformer_parameter(own->net, i, &p));
        for (int64_t k = 0; p.kind == MHA_PARAMETER_MATRIX && k < p.count; k++)
            for (int64_t h = mhai_transformer_head_of(&own->d, &p, k); h > 0; h--)
                own->rates[p.offset + k] *= (float)grade;
    }
    return MHA_OK;
}

static mha_status part_make(mha_trainer *t, mha_transformer *net, int64_t tokens,
                            int64_t memory_rows, mhai_trained *p)
{
    const int64_t size = mha_transformer_size(net);
    if (!mha_transformer_data(net))
        return mha_fail(
            MHA_ERR_UNSUPPORTED,
            "mha_trainer_create: the transformer's parameters are in a source, which is read-only");
    *p = (mhai_trained){.net = net};
    mha_transformer_describe(net, &p->d);
    MHA_TRY(mha_activations_create(t->context, net, tokens, memory_rows, &p->kept));
    MHA_TRY(take(t, is_graded(t) ? 3 : 2, size, &p->memory));
    p->size = size;
    memset(p->memory, 0, 2 * (size_t)size * sizeof *p->memory);
    p->m = p->memory;
    p->v = p->m + size;
    if (!is_graded(t)) return MHA_OK;
    p->rates = p->v + size;
    return fill_rates(p, t->desc.head_grade);
}

/* Report an invalid setting as an error of the description. */
static mha_status of_desc(mha_status status)
{
    char detail[256];
    if (status == MHA_OK) return MHA_OK;
    snprintf(detail, sizeof detail, "%s", mha_error_detail());
    return mha_fail(status, "mha_trainer_desc: %s", detail);
}

/* Check the optimizer's settings before the first step. */
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
    MHA_TRY(mhai_check_reserved("mha_trainer_desc", d->reserved));
    MHA_TRY(mhai_check_range("mha_trainer_desc: max_tokens", d->max_tokens, 1, INT64_MAX));
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
    MHA_TRY(mhai_check_range("mha_trainer_desc: slices", d->slices, 0, MHAI_MOST_LEAVES));
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
                        encoder ? "mha_trainer_create: the transformer has no cross-attention, "
                                  "which an encoder requires; pass NULL as the encoder"
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

/* Both parts share one array of gradients, so that ranks exchange and add it in one step. */
static mha_status take_gradient(mha_trainer *t)
{
    int64_t size;
    if (!mhai_add_i64(t->main.size, t->encoder.size, &size))
        return mha_fail(MHA_ERR_SIZE, "mha_trainer_create: the parameters overflow 64 bits");
    t->size = size;
    MHA_TRY(take(t, 1, size, &t->gradient));
    memset(t->gradient, 0, (size_t)size * sizeof *t->gradient);
    t->main.gradient = t->gradient;
    t->encoder.gradient = t->gradient + t->main.size;
    return MHA_OK;
}

static mha_status make(mha_trainer *t, mha_transformer *transformer, mha_transformer *encoder)
{
    const mha_trainer_desc *d = &t->desc;
    MHA_TRY(check_desc(t->context, d, encoder));
    MHA_TRY(check_nets(transformer, encoder));
    MHA_TRY(part_make(t, transformer, d->max_tokens, d->max_source, &t->main));
    if (encoder) MHA_TRY(part_make(t, encoder, d->max_source, 0, &t->encoder));
    MHA_TRY(take_gradient(t));
    MHA_TRY(take(t, d->max_tokens, t->main.d.vocab_size, &t->logits));
    MHA_TRY(take(t, d->max_source, t->encoder.d.embed_dim, &t->memory));
    return take(t, d->max_source, t->encoder.d.embed_dim, &t->memory_gradient);
}

/* Check that all ranks have the same description and number of parameters. */
static mha_status compare(const mha_trainer *t, mha_status status)
{
    struct {
        mha_trainer_desc desc;
        int64_t sizes[2];
    } all = {t->desc, {t->main.size, t->encoder.size}};
    all.desc.transport = NULL;
    MHA_TRY(mha_transport_agree(&t->transport, status));
    return mha_transport_same(&t->transport, "description of the trainer, or size of the model",
                              &all, sizeof all, MHA_OK);
}

static const mha_transport alone = {.struct_size = sizeof alone, .size = 1};

mha_status mha_trainer_create(mha_context *context, mha_transformer *transformer,
                              mha_transformer *encoder, const mha_trainer_desc *desc,
                              mha_trainer **trainer)
{
    mha_trainer_desc d;
    MHA_NEED("mha_trainer_create", context, transformer, desc, trainer);
    MHA_TRY(mhai_struct_copy("mha_trainer_desc", &d, sizeof d,
                             offsetof(mha_trainer_desc, transport), desc));
    MHA_TRY(mhai_transformer_trains("mha_trainer_create", transformer));
    if (d.transport) MHA_TRY(mhai_ranks_check(d.transport));
    d.struct_size = sizeof d;
    const mha_allocator a = mha_context_allocator(context);
    mha_trainer *t = a.alloc(a.user, sizeof *t, _Alignof(mha_trainer));
    if (!t)
        return mha_fail(MHA_ERR_NOMEM, "mha_trainer_create: cannot allocate %zu bytes", sizeof *t);
    *t = (mha_trainer){.context = context,
                       .allocator = a,
                       .desc = d,
                       .transport = d.transport ? *d.transport : alone};
    const mha_status status = compare(t, make(t, transformer, encoder));
    if (status == MHA_OK)
        *trainer = t;
    else
        mha_trainer_destroy(t);
    return status;
}

/* ---- state ----------------------------------------------------------------------------------- */

int64_t mha_trainer_steps(const mha_trainer *t)
{
    return t ? t->steps : 0;
}

mha_trainer_state mha_trainer_state_of(mha_trainer *t, bool encoder)
{
    const mha_trainer_state none = {0};
    if (!t) return none;
    const mhai_trained *p = encoder ? &t->encoder : &t->main;
    return (mha_trainer_state){
        .transformer = p->net, .count = p->size, .m = p->m, .v = p->v, .gradient = p->gradient};
}

mha_status mha_trainer_resume(mha_trainer *t, int64_t steps)
{
    const int64_t most = (int64_t)1 << 62; /* leaves room to count further steps */
    if (!t) return mha_fail(MHA_ERR_NULL, "mha_trainer_resume: trainer is NULL");
    MHA_TRY(mhai_check_range("mha_trainer_resume: steps", steps, 0, most));
    t->steps = steps;
    t->compared = false;
    return MHA_OK;
}
