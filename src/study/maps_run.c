/* Maps of a text: their arrays, the run that fills them, and differences of two texts. */
#include "study/routes.h"
#include "study/study.h"

#include <multihead/attribution.h>
#include <multihead/audio.h>
#include <multihead/component.h>
#include <multihead/maps.h>

#include <inttypes.h>
#include <string.h>

/* ---- arrays ---------------------------------------------------------------------------------- */

int64_t mha_maps_count(const mha_maps *maps, int64_t layer)
{
    int64_t count = maps->on ? 0 : maps->heads;
    for (int64_t h = 0; maps->on && h < maps->heads; h++)
        count += maps->on[layer * maps->heads + h] != 0;
    return count;
}

const char *mha_maps_attention(const mha_maps *maps)
{
    return maps->flags & MHA_MAPS_CROSS     ? "cross-attention"
           : maps->flags & MHA_MAPS_DECODER ? "decoder self-attention"
                                            : NULL;
}

/* The requested heads that exist. */
static mha_status choose(mha_room *room, const mha_transformer_desc *d, const uint8_t *wanted,
                         const uint8_t **on)
{
    const int64_t H = d->num_heads, all = d->num_layers * H;
    uint8_t *list;
    MHA_TRY(MHA_ROOM_ALLOC(room, all, &list));
    for (int64_t i = 0; i < all; i++)
        list[i] = (!wanted || wanted[i]) && i % H < mha_transformer_heads(d, i / H);
    *on = list;
    return MHA_OK;
}

/* The label of a block is its first token: "the...". */
static mha_status make_blocks(mha_room *room, int64_t cell, mha_maps *maps)
{
    const mha_tokens all = maps->rows;
    const int64_t blocks = all.count / cell + (all.count % cell != 0);
    const char **labels;
    MHA_TRY(MHA_ROOM_ALLOC(room, blocks, &labels));
    for (int64_t i = 0; i < blocks; i++) {
        const char *first = all.labels[i * cell];
        const size_t bytes = strlen(first) + 4;
        char *label;
        MHA_TRY(mha_room_alloc(room, (int64_t)bytes, 1, &label));
        mha_format(label, bytes, "%s\u2026", first);
        labels[i] = label;
    }
    maps->tokens = all;
    maps->rows = (mha_tokens){.struct_size = sizeof maps->rows, .count = blocks};
    maps->rows.labels = labels;
    maps->cols = maps->rows;
    maps->cell = cell;
    return MHA_OK;
}

/* Whether a layer has no output gates, so that weights times values give its heads' terms. */
static bool is_plain(const mha_transformer_desc *d, int64_t layer)
{
    return !d || !d->layers || d->layers[layer].latent_dim > 0 ||
           !mha_layer_difference(&d->layers[layer]);
}

/* Allocate the arrays of the layers: all layers if d is NULL, otherwise the plain ones. */
static mha_status take_layers(mha_room *room, const mha_maps *maps, const mha_transformer_desc *d,
                              int64_t count, float ***list)
{
    MHA_TRY(MHA_ROOM_ALLOC(room, maps->layers, list));
    for (int64_t l = 0; l < maps->layers; l++)
        if (mha_maps_count(maps, l) > 0 && is_plain(d, l))
            MHA_TRY(MHA_ROOM_ALLOC(room, maps->heads * count, &(*list)[l]));
    return MHA_OK;
}

/* Whether maps and their twins together fit into a report of 10 MB at 16 bits per cell. If not,
 * twins would reduce the precision of maps. */
static bool twins_fit(const mha_maps *maps)
{
    const int64_t most = 1500000, tokens = maps->rows.count;
    int64_t heads = 0;
    for (int64_t l = 0; l < maps->layers; l++) heads += mha_maps_count(maps, l);
    return heads > 0 && tokens > 0 && tokens <= most / heads / tokens;
}

static mha_status take(mha_room *room, const mha_transformer_desc *d, const mha_maps_desc *desc,
                       mha_maps *maps)
{
    const bool self = desc->cell <= 1 && !desc->source;
    if (desc->cell > 1) MHA_TRY(make_blocks(room, desc->cell, maps));
    const int64_t T = maps->rows.count, S = maps->cols.count;
    MHA_TRY(take_layers(room, maps, NULL, T * S, &maps->layer));
    if (desc->flags & MHA_MAPS_TWINS && self && twins_fit(maps))
        MHA_TRY(take_layers(room, maps, d, T * S, &maps->twin));
    if (!(desc->flags & MHA_MAPS_NEURONS) || !self) return MHA_OK;
    maps->channels = d->head_dim ? d->head_dim : d->embed_dim / d->num_heads;
    MHA_TRY(take_layers(room, maps, d, desc->tokens->count * maps->channels, &maps->queries));
    MHA_TRY(take_layers(room, maps, d, desc->tokens->count * maps->channels, &maps->keys));
    return MHA_ROOM_ALLOC(room, maps->layers, &maps->score_scales);
}

static mha_status check(mha_model *model, const mha_maps_desc *given, mha_maps_desc *desc,
                        const mha_maps *maps)
{
    const uint32_t known = MHA_MAPS_TWINS | MHA_MAPS_NEURONS | MHA_MAPS_SELF;
    MHA_NEED_AS("maps", "model, desc, maps", model, given, maps);
    MHA_TRY(mha_struct_check_size("mha_maps", maps->struct_size, sizeof *maps));
    MHA_TRY(mha_struct_read("mha_maps_desc", desc, sizeof *desc, sizeof *desc, given,
                            given->struct_size));
    if (desc->flags & ~known) return mha_fail(MHA_ERR_UNSUPPORTED, "maps: flags has unknown bits");
    if (!desc->tokens) return mha_fail(MHA_ERR_NULL, "maps: tokens is NULL");
    if (desc->source && desc->cell > 1)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "maps: cell is %" PRId64 ", expected 0 or 1 for an encoder-decoder",
                        desc->cell);
    if (desc->source && mha_model_encoder(model))
        MHA_TRY(mhai_encoder_reads_texts(mha_model_encoder(model), "maps"));
    if (!desc->source == !mha_model_encoder(model)) return MHA_OK;
    return mha_fail(MHA_ERR_UNSUPPORTED, "maps: source is %s, and the model is %s encoder-decoder",
                    desc->source ? "set" : "NULL", desc->source ? "no" : "an");
}

mha_status mha_maps_make(mha_model *model, const mha_maps_desc *given, mha_maps *maps)
{
    mha_maps_desc desc;
    mha_model_info info = {.struct_size = sizeof info};
    mha_transformer_desc d;
    char *kind = NULL;
    MHA_TRY(check(model, given, &desc, maps));
    MHA_TRY(mha_model_describe(model, &info));
    maps->memory = (mha_room){0};
    mha_transformer_describe(mha_model_transformer(model), &d);
    const bool causal = d.flags & MHA_TRANSFORMER_CAUSAL;
    const bool cross = desc.source && !(desc.flags & MHA_MAPS_SELF);
    maps->flags = cross ? MHA_MAPS_CROSS
                        : MHA_MAPS_SAME | (causal ? MHA_MAPS_CAUSAL : 0) |
                              (desc.source ? MHA_MAPS_DECODER : 0);
    maps->layers = d.num_layers;
    maps->heads = d.num_heads;
    maps->rows = *desc.tokens;
    maps->cols = cross ? *desc.source : *desc.tokens;
    mha_status status =
        mha_room_text(&maps->memory, info.architecture, strlen(info.architecture), &kind);
    if (status == MHA_OK) status = choose(&maps->memory, &d, desc.on, &maps->on);
    if (status == MHA_OK) status = take(&maps->memory, &d, &desc, maps);
    maps->kind = kind;
    if (status != MHA_OK) mha_maps_free(maps);
    return status;
}

void mha_maps_free(mha_maps *maps)
{
    if (!maps) return;
    mha_room_release(&maps->memory, 0);
    *maps = (mha_maps){.struct_size = maps->struct_size};
}

/* ---- the run --------------------------------------------------------------------------------- */

mha_status mha_maps_add_rows(mha_context *context, const mha_maps *maps, int64_t layer, int64_t row,
                             const mha_tensor *p)
{
    if (!maps || !p || !maps->layer) return mha_fail(MHA_ERR_NULL, "maps: a map or p is NULL");
    if (layer < 0 || layer >= maps->layers)
        return mha_fail(MHA_ERR_ARGUMENT, "maps: layer is %" PRId64 ", expected 0 to %" PRId64,
                        layer, maps->layers - 1);
    if (!maps->layer[layer]) return MHA_OK;
    if (p->ndim > 0 && p->shape[0] > maps->heads)
        return mha_fail(MHA_ERR_SHAPE, "maps: p has %" PRId64 " heads, expected at most %" PRId64,
                        p->shape[0], maps->heads);
    const int64_t shape[] = {p->shape[0], maps->rows.count, maps->cols.count};
    const mha_tensor to = mha_tensor_contiguous(maps->layer[layer], MHA_F32, 3, shape);
    return mha_attention_pool_rows(context, p, row, maps->cell > 1 ? maps->cell : 1,
                                   maps->on ? maps->on + layer * maps->heads : NULL, &to);
}

/* A run in progress. */
typedef struct maps_run {
    mha_context *context;
    mha_transformer *net;
    const mha_maps_desc *desc;
    mha_maps *maps;
    int64_t layer;
} maps_run;

static void show_progress(const maps_run *run, int64_t row)
{
    if (run->desc->progress) run->desc->progress(run->desc->progress_user, run->layer, row);
}

static mha_status take_rows(void *user, int64_t b, int64_t row, const mha_tensor *p)
{
    const maps_run *run = user;
    (void)b;
    show_progress(run, row);
    return mha_maps_add_rows(run->context, run->maps, run->layer, row, p);
}

static mha_status pool_layer(maps_run *run, const mha_layer_view *view)
{
    return run->maps->layer[run->layer]
               ? mha_layer_visit_rows(run->context, view, 0, take_rows, run)
               : MHA_OK;
}

static mha_status make_twin(const maps_run *run, const mha_layer_view *view,
                            const mha_activations *kept)
{
    const int64_t T = view->q.shape[2], shape[] = {1, view->q.shape[1], T, T}, l = run->layer;
    if (!run->maps->twin || !run->maps->twin[l]) return MHA_OK;
    const mha_tensor from = mha_tensor_contiguous(run->maps->layer[l], MHA_F32, 4, shape);
    const mha_tensor to = mha_tensor_contiguous(run->maps->twin[l], MHA_F32, 4, shape);
    const mha_norm_maps made = {.struct_size = sizeof made, .probabilities = &from, .heads = &to};
    return mha_layer_norm_maps(run->context, run->net, kept, l, MHA_PART_SELF_ATTENTION, &made);
}

/* One head of [1,H,T,D], with any strides. */
static void copy_head(const mha_tensor *from, int64_t head, float *to)
{
    const float *data = (const float *)from->data + head * from->stride[1];
    const int64_t T = from->shape[2], D = from->shape[3];
    for (int64_t t = 0; t < T; t++)
        for (int64_t d = 0; d < D; d++)
            to[t * D + d] = data[t * from->stride[2] + d * from->stride[3]];
}

static mha_status take_neurons(const maps_run *run, const mha_layer_view *view)
{
    const mha_maps *maps = run->maps;
    const int64_t H = view->q.shape[1], T = view->q.shape[2], D = view->q.shape[3], l = run->layer;
    const int64_t group = H / view->k.shape[1]; /* heads that share a key */
    if (!maps->queries || !maps->queries[l]) return MHA_OK;
    if (D != maps->channels || T != run->desc->tokens->count)
        return mha_fail(MHA_ERR_SHAPE, "queries of layer %" PRId64 " have an unexpected size", l);
    for (int64_t h = 0; h < H; h++) {
        copy_head(&view->q, h, maps->queries[l] + h * T * D);
        copy_head(&view->k, h / group, maps->keys[l] + h * T * D);
    }
    maps->score_scales[l] = (double)view->attention.scale;
    return MHA_OK;
}

static mha_status after_layer(void *user, const mha_activations *kept, int64_t layer)
{
    maps_run *run = user;
    mha_layer_view view = {.struct_size = sizeof view};
    run->layer = layer;
    if (run->maps->cell <= 1) show_progress(run, 0);
    MHA_TRY(mhai_routes_take(&run->maps->routes, kept, layer));
    MHA_TRY(mha_activations_layer(kept, layer, MHA_PART_SELF_ATTENTION, &view));
    if (view.q.ndim == 0) return MHA_OK; /* a layer without heads */
    if (run->maps->cell > 1) MHA_TRY(pool_layer(run, &view));
    MHA_TRY(take_neurons(run, &view));
    return make_twin(run, &view, kept);
}

static mha_status measure(const maps_run *run, mha_transformer_input *input)
{
    const mha_maps_desc *desc = run->desc;
    const mha_study_visit also = {.struct_size = sizeof also, .run = input};
    const mha_study_visit *visits[] = {&also};
    const mha_status status =
        mha_study_measure(desc->study, desc->tokens, 1, visits, desc->sequences);
    if (desc->measured) *desc->measured = status == MHA_OK;
    return status;
}

/* Whole maps are outputs of the run, written to their final place. */
static mha_status run_self(maps_run *run, mha_room *room)
{
    mha_maps *maps = run->maps;
    const mha_attention_outputs **wanted;
    mha_attention_outputs *outputs;
    mha_tensor *tensors;
    mha_transformer_desc d;
    mhai_sequence s;
    mha_transformer_describe(run->net, &d);
    MHA_TRY(MHA_ROOM_ALLOC(room, maps->layers, &wanted));
    MHA_TRY(MHA_ROOM_ALLOC(room, maps->layers, &outputs));
    MHA_TRY(MHA_ROOM_ALLOC(room, maps->layers, &tensors));
    for (int64_t l = 0; l < maps->layers; l++) {
        const int64_t T = maps->rows.count;
        const int64_t shape[] = {1, mha_transformer_heads(&d, l), T, T};
        if (!maps->layer[l]) continue;
        tensors[l] = mha_tensor_contiguous(maps->layer[l], MHA_F32, 4, shape);
        outputs[l] =
            (mha_attention_outputs){.struct_size = sizeof *outputs, .probabilities = &tensors[l]};
        wanted[l] = &outputs[l];
    }
    MHA_TRY(mhai_routes_make(&d, run->desc->tokens->count, &maps->memory, &maps->routes));
    mhai_sequence_make(run->desc->tokens, &d, &s);
    s.input.outputs = maps->cell > 1 ? NULL : wanted;
    s.input.after_layer = after_layer;
    s.input.after_layer_user = run;
    if (run->desc->study) {
        const mha_status status = measure(run, &s.input);
        if (status != MHA_ERR_NUMERIC) return status;
        mhai_sequence_make(run->desc->tokens, &d, &s);
        s.input.outputs = maps->cell > 1 ? NULL : wanted;
        s.input.after_layer = after_layer;
        s.input.after_layer_user = run;
    }
    return mha_transformer_forward(run->context, run->net, &s.input, NULL, NULL, NULL, NULL);
}

/* Compute the decoder's attention of all layers at once, to the source or to itself; the maps keep
 * the selected layers. */
static mha_status run_cross(maps_run *run, mha_model *encoder, mha_room *room)
{
    mha_maps *maps = run->maps;
    const int64_t T = maps->rows.count, S = maps->cols.count, H = maps->heads, L = maps->layers;
    const bool self = maps->flags & MHA_MAPS_SAME;
    mha_transformer_desc writes;
    mhai_sequence target;
    mha_tensor stream;
    int64_t count;
    void *memory;
    mha_transformer_describe(run->net, &writes);
    mha_tensor all = mha_tensor_contiguous(NULL, MHA_F32, 5, (int64_t[]){L, 1, H, T, S});
    MHA_TRY(mha_tensor_count(&all, &count));
    MHA_TRY(mha_room_alloc(room, count, sizeof(float), &memory));
    all.data = memory;
    MHA_TRY(mhai_encode(run->context, mha_model_transformer(encoder), run->desc->source, room,
                        &stream));
    mhai_sequence_make(run->desc->tokens, &writes, &target);
    target.input.memory = &stream;
    MHA_TRY(mha_transformer_forward(run->context, run->net, &target.input, NULL, NULL,
                                    self ? &all : NULL, self ? NULL : &all));
    for (int64_t l = 0; l < L; l++)
        if (maps->layer[l])
            memcpy(maps->layer[l], (float *)memory + l * H * T * S,
                   (size_t)(H * T * S) * sizeof(float));
    return MHA_OK;
}

mha_status mha_maps_run(mha_context *context, mha_model *model, const mha_maps_desc *given,
                        mha_maps *maps)
{
    mha_maps_desc desc;
    mha_room room = {0};
    if (!context) return mha_fail(MHA_ERR_NULL, "maps: context is NULL");
    MHA_TRY(mha_maps_make(model, given, maps));
    mha_status status = mha_struct_read("mha_maps_desc", &desc, sizeof desc, sizeof desc, given,
                                        given->struct_size);
    maps_run run = {context, mha_model_transformer(model), &desc, maps, 0};
    mha_model *encoder = mha_model_encoder(model);
    if (status == MHA_OK)
        status = encoder ? run_cross(&run, encoder, &room) : run_self(&run, &room);
    mha_room_release(&room, 0);
    if (status != MHA_OK) mha_maps_free(maps);
    return status;
}

/* ---- two texts ------------------------------------------------------------------------------- */

/* Where the tokens first differ; -1: nowhere. */
static int64_t first_difference(const mha_tokens *a, const mha_tokens *b)
{
    const int64_t most = a->count < b->count ? a->count : b->count;
    for (int64_t i = 0; i < most; i++)
        if (strcmp(a->labels[i], b->labels[i]) != 0) return i;
    return -1;
}

static mha_status check_lengths(const mha_tokens *a, const mha_tokens *b, int64_t at)
{
    if (a->count == b->count) return MHA_OK;
    if (at < 0)
        return mha_fail(
            MHA_ERR_SIZE,
            "the text has %" PRId64 " tokens, the other %" PRId64
            ", and the shorter one is a prefix of the longer: both must have the same number",
            a->count, b->count);
    return mha_fail(MHA_ERR_SIZE,
                    "the text has %" PRId64 " tokens, the other %" PRId64
                    ": both must have the same number; they first differ at token %" PRId64
                    ", '%.40s' against '%.40s'",
                    a->count, b->count, at, a->labels[at], b->labels[at]);
}

/* "tired/wide" where the texts differ. */
static mha_status label(mha_room *room, const mha_tokens *a, const mha_tokens *b,
                        const char *const **shown)
{
    const char **labels;
    MHA_TRY(MHA_ROOM_ALLOC(room, a->count, &labels));
    for (int64_t i = 0; i < a->count; i++) {
        const size_t bytes = strlen(a->labels[i]) + strlen(b->labels[i]) + 2;
        if (!strcmp(a->labels[i], b->labels[i])) continue;
        char *both;
        MHA_TRY(mha_room_alloc(room, (int64_t)bytes, 1, &both));
        mha_format(both, bytes, "%s/%s", a->labels[i], b->labels[i]);
        labels[i] = both;
    }
    *shown = labels;
    return MHA_OK;
}

/* Check that the other maps have every layer of these maps. */
static mha_status check_layers(const mha_maps *maps, const mha_maps *other)
{
    if (maps->layers != other->layers || maps->heads != other->heads)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "the maps are of %" PRId64 " x %" PRId64 " heads, the others of %" PRId64
                        " x %" PRId64 ": both must be of one model",
                        maps->layers, maps->heads, other->layers, other->heads);
    for (int64_t l = 0; l < maps->layers; l++)
        if (maps->layer[l] && !other->layer[l])
            return mha_fail(
                MHA_ERR_ARGUMENT,
                "the other maps have none of layer %" PRId64 ": both must be of the same heads", l);
    return MHA_OK;
}

mha_status mha_maps_subtract(mha_maps *maps, const mha_maps *other, bool *same)
{
    MHA_NEED("mha_maps_subtract", maps, other);
    const mha_tokens *a = &maps->rows, *b = &other->rows;
    if (!(maps->flags & other->flags & MHA_MAPS_SAME))
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "only self-attention can be compared; give an encoder-decoder's encoder");
    if (maps->cell > 1 || other->cell > 1)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "maps of this many heads and tokens are in blocks of tokens, which cannot "
                        "be compared; choose fewer heads");
    const int64_t at = first_difference(a, b), count = maps->heads * a->count * a->count;
    MHA_TRY(check_lengths(a, b, at));
    MHA_TRY(check_layers(maps, other));
    MHA_TRY(label(&maps->memory, a, b, &maps->shown));
    for (int64_t l = 0; l < maps->layers; l++)
        for (int64_t i = 0; maps->layer[l] && i < count; i++)
            maps->layer[l][i] -= other->layer[l][i];
    maps->flags |= MHA_MAPS_CONTRAST;
    maps->text[1] = other->text[0];
    maps->text_bytes[1] = other->text_bytes[0];
    maps->other = *b;
    maps->routes = (mha_routes){0};
    if (same) *same = at < 0;
    return MHA_OK;
}
