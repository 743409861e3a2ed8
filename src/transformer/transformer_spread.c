/* A transformer whose layers are divided among ranks. Each rank has consecutive layers, and only
 * that rank reads their weights. The stream passes from rank to rank. Nothing is summed across
 * ranks, so the result is bit-identical to that of one process.
 *
 * Every rank makes every call and returns the same outputs as a single process. The requested
 * outputs of a layer (attention, activations) are broadcast; otherwise only the stream is sent. */
#include "transformer/transformer_call.h"

#include "base/checked.h"
#include "base/hash.h"
#include "ranks/rank_messages.h"

/* ---- assignment of layers -------------------------------------------------------------------- */

/* Number of elements of a layer's matrices; layer L is the output. */
static int64_t weight_of(const mha_transformer *t, int64_t layer)
{
    int64_t count = 0;
    if (layer == t->desc.num_layers)
        return mhai_transformer_has(t, MHA_TRANSFORMER_NO_OUTPUT)
                   ? 0
                   : t->output.outputs * t->output.inputs;
    for (int64_t i = 0; i < t->parameter_count; i++)
        if (t->parameters[i].layer == layer) count += t->parameters[i].count;
    return count;
}

/* Divide the parameters into equal shares, in order. A layer belongs to the rank whose
 * share contains its middle. */
mha_status mhai_spread_make(mha_transformer *t)
{
    const mha_transport *ranks = t->source.transport;
    const int64_t layers = t->desc.num_layers;
    int64_t total = 0, before = 0;
    if (!ranks || ranks->size == 1) return MHA_OK;
    t->ranks = t->allocator.alloc(t->allocator.user, (size_t)(layers + 1) * sizeof *t->ranks, 64);
    if (!t->ranks) return mha_fail(MHA_ERR_NOMEM, "transformer: cannot allocate a list of ranks");
    for (int64_t i = 0; i <= layers; i++) total += weight_of(t, i);
    const int64_t share = mhai_ceil_div(total, ranks->size);
    for (int64_t i = 0; i <= layers; i++) {
        const int64_t weight = weight_of(t, i), middle = before + weight / 2;
        t->ranks[i] = (int32_t)mhai_min_i64(middle / mhai_max_i64(share, 1), ranks->size - 1);
        before += weight;
    }
    return MHA_OK;
}

/* Hash shapes, settings, and the parameters on every rank: norms, biases, positions. */
void mhai_spread_hash(mha_transformer *t)
{
    mha_transformer_desc d = t->desc;
    d.layer_heads = d.layer_kv_heads = NULL; /* covered by the hash of the shapes */
    d.layers = NULL;
    d.rope_factors = NULL;
    t->hash = mhai_hash(MHAI_HASH_START, &d, sizeof d);
    if (t->rope_factors)
        t->hash = mhai_hash(t->hash, t->rope_factors, (size_t)t->pairs * 2 * sizeof(float));
    if (t->desc.layers)
        t->hash =
            mhai_hash(t->hash, t->desc.layers, (size_t)t->desc.num_layers * sizeof *t->desc.layers);
    for (int64_t i = 0; i < t->parameter_count; i++)
        t->hash = mhai_hash(t->hash, t->parameters[i].shape, sizeof t->parameters[i].shape);
    t->hash = mhai_hash(t->hash, t->held, (size_t)t->held_count * sizeof *t->held);
}

/* ---- agreeing -------------------------------------------------------------------------------- */

mha_status mhai_spread_agree(const mha_transformer *t, mha_status status)
{
    return t->ranks ? mha_transport_agree(t->source.transport, status) : status;
}

mha_status mhai_spread_same(const mha_transformer *t, const char *what, const void *bytes,
                            size_t count, mha_status status)
{
    if (!t->ranks) return status;
    const uint64_t hash = mhai_hash(t->hash, bytes, count);
    MHA_TRY(mhai_spread_agree(t, status));
    return mha_transport_same(t->source.transport, what, &hash, sizeof hash, MHA_OK);
}

/* Whether the call requests outputs of its layers. */
static bool shows(const mhai_call *c)
{
    const bool seen = c->input.after_layer || c->input.outputs;
    return (seen && !(c->input.flags & MHA_INPUT_OWN_LAYERS)) || c->probabilities ||
           c->cross_probabilities || !c->a->passing;
}

bool mhai_call_sees(const mhai_call *c, int64_t layer)
{
    return mhai_spread_mine(c->t, layer) || !(c->input.flags & MHA_INPUT_OWN_LAYERS);
}

/* A decoder makes many steps, so their tokens are not compared. */
mha_status mhai_call_begin(const mhai_call *c, const mha_tensor *output, mha_status status)
{
    const mha_transformer_input *x = &c->input;
    if (!c->t->ranks || c->step || status != MHA_OK) return mhai_spread_agree(c->t, status);
    const int64_t tokens = mhai_tokens(c->a), *lengths[] = {x->lengths, x->memory_lengths};
    uint64_t hash = mhai_hash(MHAI_HASH_START, c->a->ids, (size_t)tokens * sizeof *c->a->ids);
    hash = mhai_hash(hash, c->a->types, (size_t)tokens * sizeof *c->a->types);
    for (int64_t i = 0; x->features && i < tokens; i++)
        hash = mhai_hash(hash, (const float *)x->features->data + i * x->features->stride[1],
                         (size_t)x->features->shape[2] * sizeof(float));
    hash = mhai_hash(hash, &x->dropout, sizeof x->dropout);
    for (int i = 0; i < 2; i++)
        if (lengths[i]) hash = mhai_hash(hash, lengths[i], (size_t)c->a->B * sizeof *lengths[i]);
    const uint64_t call[] = {hash,
                             (uint64_t)c->a->B,
                             (uint64_t)c->a->S,
                             (uint64_t)x->first_layer,
                             x->dropout > 0 ? x->dropout_seed : 0,
                             shows(c),
                             output != NULL,
                             x->last_hidden != NULL,
                             c->probabilities != NULL,
                             c->cross_probabilities != NULL};
    return mhai_spread_same(c->t, "transformer or batch", call, sizeof call, MHA_OK);
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Broadcast a tensor axis by axis, down to contiguous parts. */
static mha_status give_axes(const mha_transport *ranks, int32_t root, const mha_tensor *x, int axis,
                            char *data)
{
    const int64_t size = (int64_t)mha_dtype_size(x->dtype);
    int64_t count = 1;
    bool whole = true;
    for (int i = x->ndim - 1; i >= axis; count *= x->shape[i--])
        whole = whole && (x->shape[i] == 1 || x->stride[i] == count);
    if (count == 0) return MHA_OK;
    if (whole) return mha_transport_broadcast(ranks, root, data, (size_t)(count * size));
    for (int64_t i = 0; i < x->shape[axis]; i++)
        MHA_TRY(give_axes(ranks, root, x, axis + 1, data + i * x->stride[axis] * size));
    return MHA_OK;
}

mha_status mhai_spread_tensor(const mha_transformer *t, int32_t root, const mha_tensor *tensor)
{
    return give_axes(t->source.transport, root, tensor, 0, tensor->data);
}

/* Broadcast the requested outputs of a layer's attention. */
static mha_status give_outputs(const mhai_call *c, int64_t layer)
{
    const int32_t root = c->t->ranks[layer];
    mha_attention_outputs x = {.struct_size = 0};
    const mha_tensor *all[MHAI_CALL_OUTPUTS];
    if (c->probabilities) {
        const mha_tensor part = mhai_call_layer_part(c->probabilities, layer);
        MHA_TRY(mhai_spread_tensor(c->t, root, &part));
    }
    if (c->cross_probabilities) {
        const mha_tensor part = mhai_call_layer_part(c->cross_probabilities, layer);
        MHA_TRY(mhai_spread_tensor(c->t, root, &part));
    }
    if (!c->input.outputs || c->input.flags & MHA_INPUT_OWN_LAYERS ||
        mhai_transformer_heads_of(&c->t->desc, layer, false).q == 0)
        return MHA_OK;
    MHA_TRY(mhai_call_read_outputs(c->input.outputs[layer], layer, &x));
    mhai_call_list_outputs(&x, all);
    for (int i = 0; i < MHAI_CALL_OUTPUTS; i++)
        if (all[i]) MHA_TRY(mhai_spread_tensor(c->t, root, all[i]));
    return MHA_OK;
}

/* Broadcast the activations of a layer, and the stream after it. */
static mha_status give_layer(const mhai_call *c, int64_t layer, float *next, size_t bytes)
{
    const mha_transport *ranks = c->t->source.transport;
    const int32_t root = c->t->ranks[layer];
    int64_t floats;
    float *piece = mhai_activations_piece(c->a, layer, &floats);
    MHA_TRY(mha_transport_broadcast(ranks, root, piece, (size_t)floats * sizeof *piece));
    MHA_TRY(mha_transport_broadcast(ranks, root, next, bytes));
    return give_outputs(c, layer);
}

/* Whether all ranks need the last stream, not only the rank of the output. */
static bool all_end(const mhai_call *c)
{
    return shows(c) || c->input.last_hidden ||
           mhai_transformer_has(c->t, MHA_TRANSFORMER_NO_OUTPUT);
}

bool mhai_call_has_end(const mhai_call *c)
{
    return all_end(c) || mhai_spread_mine(c->t, c->t->desc.num_layers);
}

mha_status mhai_call_hand_on(const mhai_call *c, int64_t layer)
{
    const mha_transformer *t = c->t;
    const mha_transport *ranks = t->source.transport;
    if (!t->ranks) return MHA_OK;
    const int32_t from = t->ranks[layer], to = t->ranks[layer + 1];
    const size_t bytes = (size_t)(mhai_tokens(c->a) * t->desc.embed_dim) * sizeof(float);
    float *next = mhai_transformer_next(c->a, layer, MHA_PART_FEED_FORWARD);
    if (shows(c)) return give_layer(c, layer, next, bytes);
    if (layer + 1 == t->desc.num_layers && all_end(c))
        return mha_transport_broadcast(ranks, from, next, bytes);
    if (from == to) return MHA_OK;
    if (ranks->rank == from) return mha_transport_send(ranks, to, next, bytes);
    return ranks->rank == to ? mha_transport_receive(ranks, from, next, bytes) : MHA_OK;
}
