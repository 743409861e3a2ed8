/* The states of a decoder's layers, and copies of them to which a sequence can return. A fork shares
 * copies, which never change. */
#include "transformer/transformer_parts.h"

#include "base/checked.h"
#include "base/context.h"

#include <string.h>

/* ---- the states of one layer ----------------------------------------------------------------- */

int64_t mhai_states_layer(const mha_transformer *t)
{
    for (int64_t i = 0; i < t->desc.num_layers; i++)
        if (mhai_transformer_mix(&t->desc, i).mixer) return i;
    return -1;
}

/* Floats of the inputs that the convolution of a layer keeps. */
static int64_t input_floats(const mha_transformer *t, int64_t layer)
{
    return (t->desc.layers[layer].conv_kernel - 1) * mhai_transformer_mix(&t->desc, layer).channels;
}

static mha_status make_layer(mha_context *context, const mhai_states *s, int64_t layer,
                             mhai_delta_state *made)
{
    const mhai_mix mix = mhai_transformer_mix(&s->transformer->desc, layer);
    const mha_recurrent_state_desc size = {.struct_size = sizeof size,
                                           .batch = 1,
                                           .heads = mix.v,
                                           .head_dim = mix.D,
                                           .value_dim = mix.Dv};
    if (!mix.mixer) return MHA_OK;
    made->floats = input_floats(s->transformer, layer) + 1;
    MHA_TRY(
        mhai_take_for("decoder", &s->allocator, made->floats, sizeof *made->inputs, &made->inputs));
    return mix.v > 0 ? mha_recurrent_state_create(context, &size, &made->state) : MHA_OK;
}

static void free_layers(const mhai_states *s, mhai_delta_state *layers, int64_t count)
{
    for (int64_t i = 0; layers && i < count; i++) {
        mha_recurrent_state_destroy(layers[i].state);
        mhai_give(&s->allocator, layers[i].inputs, layers[i].floats, sizeof *layers[i].inputs);
    }
    mhai_give(&s->allocator, layers, count, sizeof *layers);
}

void mhai_delta_keep_inputs(const mhai_delta_state *from, mhai_delta_state *to)
{
    to->length = from->length;
    memcpy(to->inputs, from->inputs, (size_t)to->floats * sizeof *to->inputs);
}

static mha_status keep(const mhai_delta_state *from, mhai_delta_state *to)
{
    mhai_delta_keep_inputs(from, to);
    return to->state ? mha_recurrent_state_copy(from->state, 0, to->state, 0) : MHA_OK;
}

static void empty(mhai_delta_state *x)
{
    x->length = 0;
    if (x->state) mha_recurrent_state_reset(x->state);
    memset(x->inputs, 0, (size_t)x->floats * sizeof *x->inputs);
}

/* ---- creation, size -------------------------------------------------------------------------- */

mha_status mhai_states_make(mha_context *context, const mha_transformer *t,
                            const mha_decoder_desc *desc, mhai_states *s)
{
    const int64_t layers = t->desc.num_layers, B = desc->batch;
    *s = (mhai_states){.allocator = context->allocator,
                       .transformer = t,
                       .batch = B,
                       .interval = desc->state_interval,
                       .most = desc->state_copies};
    if (mhai_states_layer(t) < 0) return MHA_OK;
    const mha_allocator *a = &s->allocator;
    MHA_TRY(mhai_take_for("decoder", a, layers * B, sizeof *s->now, &s->now));
    MHA_TRY(mhai_take_for("decoder", a, B, sizeof *s->counts, &s->counts));
    MHA_TRY(mhai_take_for("decoder", a, mhai_times(B, s->most), sizeof *s->copies, &s->copies));
    for (int64_t i = 0; i < layers * B; i++) MHA_TRY(make_layer(context, s, i / B, &s->now[i]));
    return MHA_OK;
}

void mhai_states_free(mhai_states *s)
{
    for (int64_t b = 0; s->copies && b < s->batch; b++) mhai_states_discard(s, b, -1);
    mhai_give(&s->allocator, s->copies, mhai_times(s->batch, s->most), sizeof *s->copies);
    mhai_give(&s->allocator, s->counts, s->batch, sizeof *s->counts);
    if (s->now) free_layers(s, s->now, s->transformer->desc.num_layers * s->batch);
}

int64_t mhai_states_bytes(const mha_transformer *t, const mha_decoder_desc *d)
{
    double floats = 0;
    for (int64_t i = 0; i < t->desc.num_layers; i++) {
        const mhai_mix mix = mhai_transformer_mix(&t->desc, i);
        const double rows = (double)((mix.D + MHA_RECURRENT_CHUNK) * mhai_round_up(mix.Dv, 32));
        if (mix.mixer)
            floats +=
                (double)mix.v * (rows + 164 * (double)mix.D + 32) + (double)input_floats(t, i);
    }
    const double sets = (double)d->batch * (1 + (double)d->state_copies);
    const double bytes = sets * floats * sizeof(float);
    return bytes < 0x1p62 ? (int64_t)bytes : INT64_MAX;
}

/* ---- copies ---------------------------------------------------------------------------------- */

static void release(const mhai_states *s, mhai_delta_copy *copy)
{
    if (--copy->owners > 0) return;
    free_layers(s, copy->layers, s->transformer->desc.num_layers);
    mhai_give(&s->allocator, copy, 1, sizeof *copy);
}

/* The copies of sequence b in ascending order of their lengths. */
static mhai_delta_copy **list_of(const mhai_states *s, int64_t b)
{
    return s->copies + b * s->most;
}

void mhai_states_discard(mhai_states *s, int64_t b, int64_t length)
{
    mhai_delta_copy **list = list_of(s, b);
    while (s->counts[b] > 0 && list[s->counts[b] - 1]->length > length)
        release(s, list[--s->counts[b]]);
}

/* The number of copies up to this length. */
static int64_t count_until(const mhai_states *s, int64_t b, int64_t length)
{
    int64_t i = s->counts[b];
    while (i > 0 && list_of(s, b)[i - 1]->length > length) i--;
    return i;
}

const mhai_delta_copy *mhai_states_after(const mhai_states *s, int64_t b, int64_t length)
{
    const int64_t i = count_until(s, b, length);
    return i < s->counts[b] ? list_of(s, b)[i] : NULL;
}

const mhai_delta_copy *mhai_states_until(const mhai_states *s, int64_t b, int64_t length)
{
    const int64_t i = count_until(s, b, length);
    return i > 0 ? list_of(s, b)[i - 1] : NULL;
}

/* Append a copy to the list of sequence b, in place of the oldest if the list is full. */
static void append(mhai_states *s, int64_t b, mhai_delta_copy *copy)
{
    mhai_delta_copy **list = list_of(s, b);
    if (s->counts[b] == s->most) {
        release(s, list[0]);
        memmove(list, list + 1, (size_t)(--s->counts[b]) * sizeof *list);
    }
    list[s->counts[b]++] = copy;
    copy->owners++;
}

/* Append an empty copy for this length. */
static mha_status add(mha_context *context, mhai_states *s, int64_t b, int64_t length)
{
    const int64_t layers = s->transformer->desc.num_layers;
    mhai_delta_copy *made;
    MHA_TRY(mhai_take_for("decoder", &s->allocator, 1, sizeof *made, &made));
    made->length = length;
    append(s, b, made);
    MHA_TRY(mhai_take_for("decoder", &s->allocator, layers, sizeof *made->layers, &made->layers));
    for (int64_t i = 0; i < layers; i++) MHA_TRY(make_layer(context, s, i, &made->layers[i]));
    return MHA_OK;
}

mha_status mhai_states_prepare(mha_context *context, mhai_states *s, int64_t b, int64_t length,
                               int64_t count)
{
    const int64_t n = s->interval, end = length + count;
    if (!s->now || n == 0 || s->most == 0) return MHA_OK;
    const int64_t last = end / n, first = mhai_max_i64(length / n, last - s->most);
    for (int64_t i = first + 1; i <= last; i++) MHA_TRY(add(context, s, b, i * n));
    return MHA_OK;
}

mha_status mhai_states_keep(mha_context *context, mhai_states *s, int64_t b, int64_t length)
{
    const int64_t B = s->batch, layers = s->transformer->desc.num_layers;
    const mhai_delta_copy *last = mhai_states_until(s, b, length);
    if (length == 0 || (last && last->length == length)) return MHA_OK;
    const mha_status status = add(context, s, b, length);
    if (status) mhai_states_discard(s, b, length - 1);
    MHA_TRY(status);
    mhai_delta_copy *made = list_of(s, b)[s->counts[b] - 1];
    for (int64_t i = 0; i < layers; i++)
        if (made->layers[i].inputs) MHA_TRY(keep(&s->now[i * B + b], &made->layers[i]));
    return MHA_OK;
}

/* ---- going back ------------------------------------------------------------------------------ */

bool mhai_states_ahead(const mhai_states *s, int64_t b, int64_t length)
{
    for (int64_t i = 0; s->now && i < s->transformer->desc.num_layers; i++)
        if (s->now[i * s->batch + b].inputs && s->now[i * s->batch + b].length != length)
            return true;
    return false;
}

mha_status mhai_states_restore(mhai_states *s, int64_t from, int64_t to, int64_t length,
                               bool current)
{
    const int64_t B = s->batch;
    const mhai_delta_copy *copy = s->now && !current ? mhai_states_until(s, from, length) : NULL;
    for (int64_t i = 0; s->now && i < s->transformer->desc.num_layers; i++) {
        mhai_delta_state *x = &s->now[i * B + to];
        if (!x->inputs) continue;
        if (length == 0)
            empty(x);
        else if (from != to || copy)
            MHA_TRY(keep(copy ? &copy->layers[i] : &s->now[i * B + from], x));
    }
    if (!s->now) return MHA_OK;
    mhai_states_discard(s, to, from == to ? length : -1);
    for (int64_t i = 0; i < s->counts[from] && from != to; i++)
        if (list_of(s, from)[i]->length <= length) append(s, to, list_of(s, from)[i]);
    return MHA_OK;
}
