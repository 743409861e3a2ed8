/* Checks of a recurrent layer's call. */
#include "attention/recurrent.h"
#include "base/checked.h"
#include "base/need.h"
#include "base/tensor.h"

#include <multihead/component.h>

#include <math.h>

/* Check a tensor [B,heads,T,width]; heads must divide H. */
static mha_status check_heads(const char *name, const mha_tensor *x, const mhai_recurrent *call,
                              int64_t width)
{
    MHA_TRY(mhai_tensor_check_real(name, x));
    MHA_TRY(mhai_tensor_check(name, x, x->dtype, 4, (int64_t[]){call->B, -1, call->T, width}));
    MHA_TRY(mhai_tensor_check_last(name, x));
    if (x->shape[1] < 1 || call->H % x->shape[1] != 0)
        return mha_fail(MHA_ERR_SHAPE, "%s: %lld heads, expected a divisor of the %lld heads of o",
                        name, (long long)x->shape[1], (long long)call->H);
    return MHA_OK;
}

/* Check a broadcast tensor. Axes of length 1 get the stride 0. */
static mha_status check_broadcast(const char *name, const mha_tensor *given, int ndim,
                                  const mhai_recurrent *call, mha_tensor *own)
{
    const int64_t shape[4] = {call->B, call->H, call->T, call->sizes.D};
    if (!given) return MHA_OK;
    MHA_TRY(mhai_tensor_check(name, given, MHA_F32, ndim, NULL));
    *own = *given;
    for (int i = 0; i < ndim; i++) {
        if (given->shape[i] != 1 && given->shape[i] != shape[i])
            return mha_fail(MHA_ERR_SHAPE, "%s: axis %d has length %lld, expected 1 or %lld", name,
                            i, (long long)given->shape[i], (long long)shape[i]);
        if (given->shape[i] == 1) own->stride[i] = 0;
    }
    return MHA_OK;
}

static mha_status check_lengths(const mha_recurrent_desc *d, mhai_recurrent *call)
{
    call->lengths = d->lengths;
    for (int64_t b = 0; d->lengths && b < call->B; b++)
        MHA_TRY(mhai_check_entry("lengths", b, d->lengths[b], 0, call->T));
    return MHA_OK;
}

static mha_status check_desc(const mha_recurrent_desc *d, mhai_recurrent *call)
{
    const uint32_t known = MHA_RECURRENT_DELTA | MHA_RECURRENT_SCALE_GIVEN;
    MHA_TRY(mhai_check_flags("mha_recurrent_desc", d->flags, known));
    MHA_TRY(mhai_check_reserved("mha_recurrent_desc", d->reserved));
    if (!isfinite(d->scale))
        return mha_fail(MHA_ERR_ARGUMENT, "mha_recurrent_desc: scale is not finite");
    call->delta = d->flags & MHA_RECURRENT_DELTA;
    call->scale = d->scale != 0 || d->flags & MHA_RECURRENT_SCALE_GIVEN
                      ? d->scale
                      : (float)(1 / sqrt((double)call->sizes.D));
    call->channels = d->log_decay && d->log_decay->ndim == 4;
    MHA_TRY(check_broadcast("log_decay", d->log_decay, call->channels ? 4 : 3, call, &call->decay));
    MHA_TRY(check_broadcast("strength", d->strength, 3, call, &call->strength));
    MHA_TRY(check_broadcast("skip", d->skip, 3, call, &call->skip));
    return check_lengths(d, call);
}

static mha_status check_values(const mha_tensor *v, const mha_tensor *o, mhai_recurrent *call)
{
    MHA_TRY(check_heads("v", v, call, -1));
    call->v = *v;
    MHA_TRY(mhai_tensor_check("o", o, o->dtype, 4,
                              (int64_t[]){call->B, call->H, call->T, v->shape[3]}));
    MHA_TRY(mhai_tensor_check_last("o", o));
    call->o = *o;
    return MHA_OK;
}

mha_status mhai_recurrent_check_output(const char *name, const mha_tensor *output,
                                       const mhai_recurrent *call)
{
    const mha_tensor *inputs[] = {&call->q,     &call->k,        &call->v,
                                  &call->decay, &call->strength, &call->skip};
    static const char *const names[] = {"q", "k", "v", "log_decay", "strength", "skip"};
    MHA_TRY(mhai_tensor_check_output(name, output));
    for (int i = 0; i < 6; i++)
        MHA_TRY(mhai_tensor_check_disjoint(name, output, names[i], inputs[i]));
    return MHA_OK;
}

mha_status mhai_recurrent_check(const mha_recurrent_desc *desc, const mha_tensor *q,
                                const mha_tensor *k, const mha_tensor *v, const mha_tensor *o,
                                int64_t heads, mhai_recurrent *call)
{
    mha_recurrent_desc d;
    MHA_TRY(mhai_struct_copy("mha_recurrent_desc", &d, sizeof d, offsetof(mha_recurrent_desc, skip),
                             desc));
    MHA_TRY(mhai_tensor_check_real("q", q));
    MHA_TRY(mhai_tensor_check("q", q, q->dtype, 4, NULL));
    if (o) {
        MHA_TRY(mhai_tensor_check_real("v", v));
        MHA_TRY(mhai_tensor_check_real("o", o));
        MHA_TRY(mhai_tensor_check("v", v, v->dtype, 4, NULL));
        MHA_TRY(mhai_tensor_check("o", o, o->dtype, 4, NULL));
        heads = o->shape[1];
    }
    *call = (mhai_recurrent){.B = q->shape[0], .H = heads, .T = q->shape[2]};
    MHA_TRY(mhai_recurrent_size(q->shape[3], v ? v->shape[3] : 1, &call->sizes));
    MHA_TRY(check_heads("q", q, call, q->shape[3]));
    MHA_TRY(check_heads("k", k, call, q->shape[3]));
    call->q = *q;
    call->k = *k;
    MHA_TRY(check_desc(&d, call));
    return o ? check_values(v, o, call) : MHA_OK;
}

void mhai_recurrent_decays(const mhai_recurrent *call, int64_t b, int64_t h, int64_t t,
                           double *decays)
{
    const mha_tensor *x = &call->decay;
    decays[0] = 1;
    if (x->ndim == 0) return;
    const float *at =
        (const float *)x->data + b * x->stride[0] + h * x->stride[1] + t * x->stride[2];
    for (int64_t d = 0; d < (call->channels ? call->sizes.D : 1); d++)
        decays[d] = mha_exp((double)at[call->channels ? d * x->stride[3] : 0]);
}
