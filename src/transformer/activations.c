/* Activations that the forward call saves for the backward call, in one block of memory. */
#include "transformer/transformer_parts.h"

#include "base/checked.h"
#include "base/context.h"
#include "base/need.h"

#include <string.h>

/* Divides a block of memory into arrays. If memory is NULL, it only counts the floats. */
typedef struct carver {
    float *memory;
    int64_t used;
    bool overflow;
} carver;

static float *carve(carver *c, int64_t rows, int64_t cols)
{
    int64_t count, next;
    if (!mhai_mul_i64(rows, cols, &count) || count > INT64_MAX - 16 ||
        !mhai_add_i64(c->used, mhai_round_up(count, 16), &next)) {
        c->overflow = true;
        return NULL;
    }
    float *part = c->memory ? c->memory + c->used : NULL;
    c->used = next;
    return part;
}

/* shares: its input is that of another step. */
static mhai_kept_step carve_step(carver *c, const mha_activations *a, const mhai_place_step *place,
                                 bool shares)
{
    const mha_transformer *t = a->transformer;
    const int64_t tokens = a->max_tokens, width = t->desc.embed_dim;
    const bool follows =
        mhai_transformer_has(t, MHA_TRANSFORMER_POST_NORM) || mhai_step_norms_branch(place);
    mhai_kept_step step = {.x = carve(c, tokens, width)};
    step.from = step.x;
    step.in = mhai_step_norms_input(t, place) && !shares ? carve(c, tokens, width) : step.x;
    if (follows && !a->passing) step.z = carve(c, tokens, width);
    return step;
}

static mhai_kept_attention carve_attention(carver *c, const mha_activations *a, int64_t layer,
                                           bool cross)
{
    const mha_transformer_desc *d = &a->transformer->desc;
    const mhai_heads heads = mhai_transformer_heads_of(d, layer, cross);
    const mhai_mix mix = mhai_transformer_mix(d, layer);
    const int64_t tokens = a->max_tokens, q = heads.q * d->head_dim;
    const bool lends = !cross && mhai_transformer_lends(d, layer);
    const mhai_place_layer *place = &a->transformer->layers[layer];
    mhai_kept_attention kept = {
        .step = carve_step(c, a, cross ? &place->cross.step : &place->self.step, false)};
    kept.qkv = lends ? a->layers[layer].self.qkv : carve(c, tokens, cross ? q : mix.width);
    if (cross) kept.memory = carve(c, a->max_memory, 2 * heads.kv * d->head_dim);
    const mha_layer_desc *latent = cross ? NULL : mhai_transformer_latent(d, layer);
    /* the heads' memory first holds the keys that W_kb expands */
    kept.heads = carve(c, tokens,
                       cross    ? q
                       : latent ? mhai_max_i64(mix.out, place->self.keys.outputs)
                                : mix.out);
    if (latent) {
        kept.down = carve(c, tokens, latent->latent_dim + latent->shared_dim);
        kept.latent = carve(c, tokens, latent->latent_dim);
        kept.query_down = carve(c, tokens, latent->query_latent_dim);
        kept.query_latent = carve(c, tokens, latent->query_latent_dim);
    }
    if (!cross && mix.rank > 0) kept.down = carve(c, tokens, 2 * mix.rank);
    if (cross || !mix.mixer) kept.lse = carve(c, tokens, heads.q);
    if (!cross && heads.q > 0 && d->layers && d->layers[layer].relative_rows > 0)
        kept.relative = carve(c, tokens, heads.q * mhai_min_i64(tokens, d->max_length));
    return kept;
}

static void carve_experts(carver *c, const mha_activations *a, int64_t index,
                          mhai_kept_layer *layer)
{
    const mha_transformer *t = a->transformer;
    const mha_experts_desc *x = mhai_transformer_experts(&t->desc, index);
    const int64_t tokens = a->max_tokens, E = t->desc.embed_dim;
    const int64_t width = mhai_max_i64(x->ff_dim, x->shared_dim);
    void *chosen = carve(c, tokens, x->used), *rows = carve(c, tokens, 2); /* 64 bits each */
    layer->experts =
        (mhai_kept_experts){.scores = carve(c, tokens, t->layers[index].router.outputs),
                            .weights = carve(c, tokens, x->used),
                            .chosen = chosen,
                            .rows = rows,
                            .in = carve(c, tokens, E),
                            .out = carve(c, tokens, E)};
    layer->up = carve(c, tokens, 2 * width);
    layer->act = carve(c, tokens, width);
}

static void carve_feed_forward(carver *c, const mha_activations *a, int64_t index,
                               mhai_kept_layer *layer)
{
    const mha_transformer *t = a->transformer;
    const mha_transformer_desc *d = &t->desc;
    const bool shares = d->flags & MHA_TRANSFORMER_ONE_NORM && mha_transformer_heads(d, index) > 0;
    layer->ff = carve_step(c, a, &t->layers[index].ff, shares);
    if (d->flags & MHA_TRANSFORMER_PARALLEL) {
        layer->ff.from = layer->self.step.x;
        if (!mhai_step_norms_input(t, &t->layers[index].ff)) layer->ff.in = layer->ff.from;
        if (shares) layer->ff.in = layer->self.step.in;
    }
    if (mhai_transformer_experts(d, index)) {
        carve_experts(c, a, index, layer);
        return;
    }
    if (!a->passing || mhai_transformer_gated(t))
        layer->up = carve(c, a->max_tokens, mhai_transformer_up(t, index));
    layer->act = carve(c, a->max_tokens, mhai_transformer_ff(d, index));
}

static void carve_layer(carver *c, const mha_activations *a, int64_t index, mhai_kept_layer *layer)
{
    const mha_transformer_desc *d = &a->transformer->desc;
    const int64_t tokens = a->max_tokens;
    layer->self = carve_attention(c, a, index, false);
    if (d->flags & MHA_TRANSFORMER_CROSS) layer->cross = carve_attention(c, a, index, true);
    if (mha_transformer_feeds(d, index)) carve_feed_forward(c, a, index, layer);
    if (!mhai_transformer_has_input(d, index)) return;
    const int64_t P = d->layers[index].input_dim;
    layer->input = (mhai_kept_input){
        .step = carve_step(c, a, &a->transformer->layers[index].input.step, false),
        .projected = carve(c, tokens, P),
        .up = carve(c, tokens, 2 * P),
        .act = carve(c, tokens, P)};
}

float *mhai_activations_piece(const mha_activations *a, int64_t layer, int64_t *floats)
{
    carver counter = {0};
    mhai_kept_layer unused = {0};
    carve_layer(&counter, a, layer, &unused);
    *floats = counter.used;
    return a->layers[layer].self.step.x;
}

/* Layers alternate between two buffers, since each layer writes the input of the next one. */
static void carve_turns(carver *c, const mha_activations *a)
{
    const int64_t begin = c->used, layers = a->transformer->desc.num_layers;
    int64_t size = 0, most = 0;
    for (int64_t i = 0; i < layers; i++) {
        carver counter = {0};
        carve_layer(&counter, a, i, &a->layers[i]);
        size = mhai_max_i64(size, counter.used);
        c->overflow |= counter.overflow;
    }
    if (size > (INT64_MAX - begin) / 2) c->overflow = true;
    for (int64_t i = 0; i < layers && !c->overflow; i++) {
        carver turn = {.memory = c->memory, .used = begin + i % 2 * size};
        carve_layer(&turn, a, i, &a->layers[i]);
        most = mhai_max_i64(most, turn.used);
    }
    c->used = mhai_max_i64(begin, most);
}

static void carve_all(carver *c, mha_activations *a)
{
    const mha_transformer *t = a->transformer;
    const mha_transformer_desc *d = &t->desc;
    const bool norms = d->flags & MHA_TRANSFORMER_EMBEDDING_NORM, projects = t->project.outputs > 0;
    if (norms || projects) a->embedded = carve(c, a->max_tokens, d->token_dim);
    if (norms && projects) a->narrow = carve(c, a->max_tokens, d->token_dim);
    if (mhai_transformer_has_input(d, -1)) a->base = carve(c, a->max_tokens, d->embed_dim);
    for (int64_t i = 0; i < d->num_layers; i++)
        if (mhai_transformer_lends(d, i))
            a->layers[i].self.qkv = carve(c, a->max_tokens, mhai_transformer_mix(d, i).width);
    if (a->passing) carve_turns(c, a);
    for (int64_t i = 0; i < d->num_layers && !a->passing; i++) carve_layer(c, a, i, &a->layers[i]);
    a->x = carve(c, a->max_tokens, d->embed_dim);
    a->last = mhai_transformer_pre_norm(t) ? carve(c, a->max_tokens, d->embed_dim) : a->x;
    if (!a->passing) a->gradient = carve(c, a->max_tokens, d->embed_dim);
    void *starts = t->pairs > 0 ? carve(c, a->max_tokens, 2) : NULL; /* 64 bits each */
    a->starts = starts;
}

static mha_status allocate(const mha_activations *a, int64_t count, size_t size, void *pointer)
{
    return mhai_take_for("activations", &a->allocator, count, size, pointer);
}

/* Set the integer arrays, and count the floats. */
static mha_status measure(mha_activations *a, int32_t *numbers, int64_t *floats)
{
    carver counter = {0};
    a->ids = numbers;
    a->positions = a->ids + a->max_tokens;
    a->types = a->positions + a->max_tokens;
    carve_all(&counter, a);
    *floats = counter.used;
    if (counter.overflow || counter.used > PTRDIFF_MAX / (int64_t)sizeof(float))
        return mha_fail(MHA_ERR_SIZE, "activations: they do not fit in memory");
    a->bytes = (size_t)counter.used * sizeof(float);
    return MHA_OK;
}

static mha_status make_parts(mha_activations *a)
{
    int32_t *numbers;
    int64_t floats;
    MHA_TRY(allocate(a, a->transformer->desc.num_layers, sizeof *a->layers, &a->layers));
    MHA_TRY(allocate(a, a->max_tokens, 3 * sizeof *a->ids, &numbers));
    MHA_TRY(measure(a, numbers, &floats));
    MHA_TRY(allocate(a, floats, sizeof(float), &a->memory));
    carve_all(&(carver){.memory = a->memory}, a);
    return MHA_OK;
}

mha_status mhai_activations_pass(mha_context *context, const mha_transformer *t, int64_t tokens,
                                 int64_t memory_rows, mha_activations *a)
{
    int32_t *numbers;
    int64_t floats;
    *a = (mha_activations){.transformer = t,
                           .max_tokens = tokens,
                           .max_memory = memory_rows,
                           .T = -1,
                           .passing = true};
    MHA_TRY(mhai_transformer_encode(context, t, tokens));
    MHA_TRY(mha_scratch_zeros(context, t->desc.num_layers, sizeof *a->layers, &a->layers));
    MHA_TRY(mha_scratch_alloc(context, tokens, 3 * sizeof *a->ids, &numbers));
    MHA_TRY(measure(a, numbers, &floats));
    MHA_TRY(mha_scratch_alloc(context, floats, sizeof(float), &a->memory));
    carve_all(&(carver){.memory = a->memory}, a);
    return MHA_OK;
}

mha_status mhai_activations_create(mha_context *context, const mha_transformer *t,
                                   int64_t max_tokens, int64_t max_memory, bool passing,
                                   mha_activations **activations)
{
    MHA_TRY(mhai_transformer_encode(context, t, max_tokens));
    const mha_allocator *allocator = &context->allocator;
    mha_activations *made;
    MHA_TRY(mhai_take_for("activations", allocator, 1, sizeof *made, &made));
    *made = (mha_activations){.allocator = *allocator,
                              .transformer = t,
                              .max_tokens = max_tokens,
                              .max_memory = max_memory,
                              .T = -1,
                              .passing = passing};
    mha_status status = make_parts(made);
    if (status == MHA_OK)
        *activations = made;
    else
        mha_activations_destroy(made);
    return status;
}

mha_status mha_activations_create(mha_context *context, const mha_transformer *transformer,
                                  int64_t max_tokens, int64_t max_memory,
                                  mha_activations **activations)
{
    MHA_NEED("mha_activations_create", context, transformer, activations);
    const bool cross = mhai_transformer_has(transformer, MHA_TRANSFORMER_CROSS);
    if (max_tokens < 1 || max_tokens > INT32_MAX || max_memory < 0 || max_memory > INT32_MAX ||
        (max_memory > 0 && !cross))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_activations_create: max_tokens is %lld, expected 1..%d; max_memory is "
                        "%lld, expected 0%s",
                        (long long)max_tokens, INT32_MAX, (long long)max_memory,
                        cross ? " or more" : ", there is no cross-attention");
    return mhai_activations_create(context, transformer, max_tokens, max_memory, false,
                                   activations);
}

void mha_activations_destroy(mha_activations *a)
{
    if (!a) return;
    const mha_allocator allocator = a->allocator;
    mhai_give(&allocator, a->layers, a->transformer->desc.num_layers, sizeof *a->layers);
    mhai_give(&allocator, a->ids, a->max_tokens, 3 * sizeof *a->ids);
    mhai_give(&allocator, a->memory, (int64_t)a->bytes, 1);
    mhai_give(&allocator, a, 1, sizeof *a);
}
