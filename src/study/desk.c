/* The effect of W_O: the term that each head of a layer adds to every feature of the stream, at
 * every token. A desk also has the concatenated heads before W_O and their sum after it. */
#include "study/study.h"

#include <multihead/attribution.h>
#include <multihead/component.h>
#include <multihead/maps.h>

#include <inttypes.h>
#include <string.h>

static mha_status take_memory(mha_desk *d)
{
    const int64_t H = d->heads, T = d->tokens, row = d->features;
    float **const arrays[] = {&d->before, &d->after,   &d->terms,       &d->norms,
                              &d->shares, &d->cosines, &d->weight_norms};
    const int64_t sizes[][2] = {
        {T, H * d->head_dim}, {T, row}, {H * T, row}, {H, T}, {H, T}, {H, H}, {H, row}};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        MHA_TRY(mha_room_alloc(&d->memory, sizes[i][0], (size_t)sizes[i][1] * sizeof(float),
                               arrays[i]));
    return MHA_OK;
}

static mha_status measure_weights(const mha_transformer *t, mha_desk *d, mha_room *room)
{
    mha_parameter p;
    float *out;
    if (mha_transformer_find(t, d->layer, "self_attn.o_proj.weight", &p) != MHA_OK)
        MHA_TRY(mha_transformer_find(t, d->layer, "delta_net.o_proj.weight", &p));
    MHA_TRY(MHA_ROOM_ALLOC(room, p.count, &out));
    MHA_TRY(mha_transformer_read(t, &p, 0, p.shape[0], out));
    const mha_tensor weight = mha_tensor_contiguous(out, MHA_F32, 2, p.shape);
    const mha_tensor map =
        mha_tensor_contiguous(d->weight_norms, MHA_F32, 2, (int64_t[]){d->heads, d->features});
    return mha_head_weight_norms(&weight, &map);
}

static mha_status measure(mha_context *context, const mha_transformer *t,
                          const mha_activations *kept, int64_t layer, mha_desk *d, mha_room *room)
{
    mha_layer_view view = {.struct_size = sizeof view};
    MHA_TRY(mha_activations_layer(kept, layer, MHA_PART_SELF_ATTENTION, &view));
    if (view.heads.ndim == 0)
        return mha_fail(MHA_ERR_MODEL, "layer %" PRId64 " has no remaining heads", layer);
    d->layer = layer;
    d->heads = view.heads.shape[1];
    d->tokens = view.heads.shape[2];
    d->head_dim = view.heads.shape[3];
    d->features = view.stream.shape[2];
    MHA_TRY(take_memory(d));
    const int64_t H = d->heads, T = d->tokens, E = d->features;
    memcpy(d->before, view.concatenated.data, (size_t)(T * H * d->head_dim) * sizeof(float));
    const mha_tensor terms = mha_tensor_contiguous(d->terms, MHA_F32, 4, (int64_t[]){1, H, T, E});
    const mha_tensor norms = mha_tensor_contiguous(d->norms, MHA_F32, 3, (int64_t[]){1, H, T});
    const mha_tensor shares = mha_tensor_contiguous(d->shares, MHA_F32, 3, (int64_t[]){1, H, T});
    const mha_tensor cosines = mha_tensor_contiguous(d->cosines, MHA_F32, 2, (int64_t[]){H, H});
    const mha_tensor after = mha_tensor_contiguous(d->after, MHA_F32, 3, (int64_t[]){1, T, E});
    const mha_head_writing out = {.struct_size = sizeof out,
                                  .written = &terms,
                                  .norms = &norms,
                                  .shares = &shares,
                                  .cosines = &cosines,
                                  .output = &after};
    MHA_TRY(mha_layer_write(context, t, kept, layer, MHA_PART_SELF_ATTENTION, NULL, &out));
    return measure_weights(t, d, room);
}

static mha_status run(mha_context *context, const mha_transformer *t, const mha_tokens *tokens,
                      mha_activations *kept)
{
    mha_transformer_desc d;
    mhai_sequence s;
    mha_transformer_describe(t, &d);
    mhai_sequence_make(tokens, &d, &s);
    return mha_transformer_forward(context, t, &s.input, kept, NULL, NULL, NULL);
}

mha_status mha_desk_measure(mha_context *context, const mha_transformer *transformer,
                            const mha_tokens *tokens, int64_t layer, mha_desk *desk)
{
    mha_activations *kept = NULL;
    mha_room room = {0};
    MHA_NEED("mha_desk_measure", context, transformer, tokens, desk);
    MHA_TRY(mha_struct_check_size("mha_desk", desk->struct_size, sizeof *desk));
    *desk = (mha_desk){.struct_size = desk->struct_size};
    mha_status status = mha_activations_create(context, transformer, tokens->count, 0, &kept);
    if (status == MHA_OK) status = run(context, transformer, tokens, kept);
    if (status == MHA_OK) status = measure(context, transformer, kept, layer, desk, &room);
    mha_room_release(&room, 0);
    mha_activations_destroy(kept);
    if (status != MHA_OK) mha_desk_free(desk);
    return status;
}

void mha_desk_free(mha_desk *desk)
{
    if (!desk) return;
    mha_room_release(&desk->memory, 0);
    *desk = (mha_desk){.struct_size = desk->struct_size};
}

double mha_desk_share(const mha_desk *d, int64_t head)
{
    double sum = 0;
    for (int64_t t = 0; t < d->tokens; t++) sum += (double)d->shares[head * d->tokens + t];
    return sum / (double)d->tokens;
}
