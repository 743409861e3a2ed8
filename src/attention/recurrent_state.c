/* States of recurrent layers. */
#include "attention/recurrent.h"
#include "base/checked.h"
#include "base/context.h"
#include "base/need.h"
#include "base/tensor.h"

#include <multihead/component.h>

/* ---- a head's memory ------------------------------------------------------------------------- */

static mhai_recurrent_head carve_head(const mhai_recurrent_sizes *x, void *memory, size_t *bytes)
{
    mhai_carver c = {memory, 0};
    mhai_recurrent_head head = {.s = mhai_carve(&c, x->panels * x->D * MHAI_PANEL, sizeof(float))};
    head.u = mhai_carve(&c, x->panels * MHA_RECURRENT_CHUNK * MHAI_PANEL, sizeof(float));
    head.keys = mhai_carve(&c, MHA_RECURRENT_CHUNK * x->D, sizeof(float));
    head.before = mhai_carve(&c, 2 * x->D * MHAI_PANEL, sizeof(float));
    head.own = mhai_carve(&c, x->D * MHAI_PANEL, sizeof(float));
    head.chunk = mhai_carve(&c, x->D, sizeof(double));
    head.strip = mhai_carve(&c, x->D, sizeof(double));
    head.weight = mhai_carve(&c, MHAI_STRIP, sizeof(double));
    *bytes = c.used;
    return head;
}

mha_status mhai_recurrent_size(int64_t D, int64_t Dv, mhai_recurrent_sizes *sizes)
{
    int64_t product;
    if (D < 1)
        return mha_fail(MHA_ERR_SHAPE, "q: head_dim is %lld, expected 1 or more", (long long)D);
    *sizes = (mhai_recurrent_sizes){.D = D, .Dv = Dv, .panels = mhai_ceil_div(Dv, MHAI_PANEL)};
    if (D > INT32_MAX || Dv > INT32_MAX || !mhai_mul_i64(D + 256, Dv + 1024, &product) ||
        product > INT64_MAX / 256)
        return mha_fail(MHA_ERR_SIZE, "a state of %lld by %lld numbers is too large", (long long)D,
                        (long long)Dv);
    carve_head(sizes, NULL, &sizes->head_bytes);
    return MHA_OK;
}

mhai_recurrent_head mhai_recurrent_parts(const mhai_recurrent_sizes *sizes, void *memory)
{
    size_t bytes;
    return carve_head(sizes, memory, &bytes);
}

void mhai_recurrent_begin(const mhai_recurrent_sizes *sizes, void *memory)
{
    const mhai_recurrent_head head = mhai_recurrent_parts(sizes, memory);
    for (int64_t d = 0; d < sizes->D; d++) head.chunk[d] = head.strip[d] = 1;
}

/* ---- creation, reset, copies ----------------------------------------------------------------- */

static void *head_memory(const mha_recurrent_state *x, int64_t b, int64_t h)
{
    return x->memory + (size_t)(b * x->H + h) * x->sizes.head_bytes;
}

static mha_status make(mha_recurrent_state *x, const mha_recurrent_state_desc *d)
{
    int64_t heads;
    if (!mhai_mul_i64(d->batch, d->heads, &heads))
        return mha_fail(MHA_ERR_SIZE, "mha_recurrent_state_desc: %lld x %lld heads",
                        (long long)d->batch, (long long)d->heads);
    MHA_TRY(mhai_recurrent_size(d->head_dim, d->value_dim, &x->sizes));
    x->B = d->batch;
    x->H = d->heads;
    x->lengths = mhai_take(&x->allocator, x->B, sizeof *x->lengths);
    x->channels = mhai_take(&x->allocator, x->B, 1);
    x->memory = mhai_take(&x->allocator, heads, x->sizes.head_bytes);
    if (!x->lengths || !x->channels || !x->memory) return MHA_NO_MEMORY("mha_recurrent_state");
    mha_recurrent_state_reset(x);
    return MHA_OK;
}

mha_status mha_recurrent_state_create(mha_context *context, const mha_recurrent_state_desc *desc,
                                      mha_recurrent_state **state)
{
    mha_recurrent_state_desc d;
    MHA_NEED("mha_recurrent_state_create", context, desc, state);
    MHA_TRY(mhai_struct_copy("mha_recurrent_state_desc", &d, sizeof d, sizeof d, desc));
    MHA_TRY(mhai_check_flags("mha_recurrent_state_desc", d.flags, 0));
    if (d.value_dim == 0) d.value_dim = d.head_dim;
    MHA_TRY(mhai_check_range("mha_recurrent_state_desc: batch", d.batch, 1, INT64_MAX));
    MHA_TRY(mhai_check_range("mha_recurrent_state_desc: heads", d.heads, 1, INT64_MAX));
    MHA_TRY(mhai_check_range("mha_recurrent_state_desc: head_dim", d.head_dim, 1, INT64_MAX));
    MHA_TRY(mhai_check_range("mha_recurrent_state_desc: value_dim", d.value_dim, 1, INT64_MAX));
    const mha_allocator allocator = context->allocator;
    mha_recurrent_state *x = mhai_take(&allocator, 1, sizeof *x);
    if (!x) return MHA_NO_MEMORY("mha_recurrent_state");
    x->allocator = allocator;
    mha_status status = make(x, &d);
    if (status) {
        mha_recurrent_state_destroy(x);
        return status;
    }
    *state = x;
    return MHA_OK;
}

void mha_recurrent_state_destroy(mha_recurrent_state *x)
{
    if (!x) return;
    const mha_allocator allocator = x->allocator;
    mhai_give(&allocator, x->memory, x->B * x->H, x->sizes.head_bytes);
    mhai_give(&allocator, x->channels, x->B, 1);
    mhai_give(&allocator, x->lengths, x->B, sizeof *x->lengths);
    mhai_give(&allocator, x, 1, sizeof *x);
}

size_t mha_recurrent_state_bytes(const mha_recurrent_state *state)
{
    return state ? (size_t)(state->B * state->H) * state->sizes.head_bytes : 0;
}

const int64_t *mha_recurrent_state_lengths(const mha_recurrent_state *state)
{
    return state ? state->lengths : NULL;
}

void mha_recurrent_state_reset(mha_recurrent_state *x)
{
    if (!x) return;
    memset(x->memory, 0, mha_recurrent_state_bytes(x));
    memset(x->lengths, 0, (size_t)x->B * sizeof *x->lengths);
    for (int64_t i = 0; i < x->B * x->H; i++) mhai_recurrent_begin(&x->sizes, head_memory(x, 0, i));
}

mha_status mha_recurrent_state_copy(const mha_recurrent_state *from, int64_t from_b,
                                    mha_recurrent_state *to, int64_t to_b)
{
    MHA_NEED("mha_recurrent_state_copy", from, to);
    if (from_b < 0 || from_b >= from->B || to_b < 0 || to_b >= to->B)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_recurrent_state_copy: sequence %lld of %lld to %lld of %lld",
                        (long long)from_b, (long long)from->B, (long long)to_b, (long long)to->B);
    if (from->H != to->H || from->sizes.D != to->sizes.D || from->sizes.Dv != to->sizes.Dv)
        return mha_fail(MHA_ERR_SHAPE,
                        "mha_recurrent_state_copy: [%lld,%lld,%lld], expected [%lld,%lld,%lld]",
                        (long long)from->H, (long long)from->sizes.D, (long long)from->sizes.Dv,
                        (long long)to->H, (long long)to->sizes.D, (long long)to->sizes.Dv);
    memmove(head_memory(to, to_b, 0), head_memory(from, from_b, 0),
            (size_t)to->H * to->sizes.head_bytes);
    to->lengths[to_b] = from->lengths[from_b];
    to->channels[to_b] = from->channels[from_b];
    return MHA_OK;
}

/* ---- S --------------------------------------------------------------------------------------- */

static mha_status check_s(const mha_recurrent_state *x, const mha_tensor *s)
{
    return mhai_tensor_check("s", s, MHA_F32, 4, (int64_t[]){x->B, x->H, x->sizes.D, x->sizes.Dv});
}

static float *element(const mha_tensor *s, int64_t b, int64_t h, int64_t d, int64_t c)
{
    return (float *)s->data + b * s->stride[0] + h * s->stride[1] + d * s->stride[2] +
           c * s->stride[3];
}

/* An element of S, including the rows of the unfinished chunk. */
static double number(const mha_recurrent_state *x, const mhai_recurrent_head *head, int64_t rows,
                     bool channels, int64_t d, int64_t c)
{
    const int64_t D = x->sizes.D, panel = c / MHAI_PANEL, at = c % MHAI_PANEL, e = channels ? d : 0;
    const float *u = head->u + panel * MHA_RECURRENT_CHUNK * MHAI_PANEL + at;
    double sum = (double)head->s[(panel * D + d) * MHAI_PANEL + at] * head->chunk[e];
    for (int64_t j = 0; j < rows; j++) {
        const int64_t own = j - rows / MHAI_STRIP * MHAI_STRIP;
        const double decayed = own < 0    ? (double)head->keys[j * D + d] * head->strip[e]
                               : channels ? (double)head->own[d * MHAI_PANEL + own]
                                          : (double)head->keys[j * D + d] * head->weight[own];
        sum += decayed * (double)u[j * MHAI_PANEL];
    }
    return sum;
}

mha_status mha_recurrent_state_read(const mha_recurrent_state *x, const mha_tensor *s)
{
    MHA_NEED_AS("mha_recurrent_state_read", "state, s", x, s);
    MHA_TRY(check_s(x, s));
    MHA_TRY(mhai_tensor_check_output("s", s));
    for (int64_t i = 0; i < x->B * x->H; i++) {
        const int64_t b = i / x->H, h = i % x->H, rows = x->lengths[b] % MHA_RECURRENT_CHUNK;
        const mhai_recurrent_head head = mhai_recurrent_parts(&x->sizes, head_memory(x, b, h));
        for (int64_t d = 0; d < x->sizes.D; d++)
            for (int64_t c = 0; c < x->sizes.Dv; c++)
                *element(s, b, h, d, c) = (float)number(x, &head, rows, x->channels[b], d, c);
    }
    return MHA_OK;
}

mha_status mha_recurrent_state_write(mha_recurrent_state *x, const mha_tensor *s)
{
    MHA_NEED_AS("mha_recurrent_state_write", "state, s", x, s);
    MHA_TRY(check_s(x, s));
    mha_recurrent_state_reset(x);
    for (int64_t i = 0; i < x->B * x->H; i++) {
        const int64_t b = i / x->H, h = i % x->H;
        const mhai_recurrent_head head = mhai_recurrent_parts(&x->sizes, head_memory(x, b, h));
        for (int64_t d = 0; d < x->sizes.D; d++)
            for (int64_t c = 0; c < x->sizes.Dv; c++)
                head.s[(c / MHAI_PANEL * x->sizes.D + d) * MHAI_PANEL + c % MHAI_PANEL] =
                    *element(s, b, h, d, c);
    }
    return MHA_OK;
}
