/* Run a text through a transformer and feed its heads to measures and distances, layer by layer. */
#include "analysis/head_corpus.h"
#include "analysis/head_measures.h"
#include "base/need.h"
#include "base/tensor.h"
#include "transformer/transformer_parts.h"

#include <multihead/head_pass.h>

#include <stdio.h>
#include <string.h>

/* A pass: its inputs, and the consumers of its rows. */
typedef struct pass {
    mha_context *context;
    const mha_transformer *transformer;
    mha_head_pass to;
    mha_transformer_input input;
    mha_status (*after_layer)(void *user, const mha_activations *kept, int64_t layer);
    void *after_layer_user; /* the caller's user data, from the input */
    mha_heads_text text;
    bool causal, signs, cross; /* signs: rows are of a signed map */
    int64_t layer;
} pass;

/* Rows of a signed map for distances: its positive parts, then the absolute values of its negative
 * parts, so that heads of opposite signs have no key in common. */
static mha_status compare_signed(const pass *x, const mha_tensor *p)
{
    const int64_t rows = p->shape[0] * p->shape[1], keys = p->shape[2];
    const mha_scratch_mark mark = mha_scratch_top(x->context);
    void *memory;
    MHA_TRY(mha_scratch_alloc(x->context, rows * keys, 2 * sizeof(float), &memory));
    const mha_tensor parts = mha_tensor_contiguous(
        memory, MHA_F32, 3, (const int64_t[]){p->shape[0], p->shape[1], 2 * keys});
    for (int64_t i = 0; i < rows; i++) {
        const float *from = (const float *)p->data + i / p->shape[1] * p->stride[0] +
                            i % p->shape[1] * p->stride[1];
        float *to = (float *)memory + 2 * i * keys;
        for (int64_t j = 0; j < keys; j++) {
            to[j] = from[j] < 0 ? 0 : from[j];
            to[keys + j] = from[j] < 0 ? -from[j] : 0;
        }
    }
    return mha_scratch_end(x->context, mark,
                           mha_head_distances_rows(x->to.distances[x->layer], &parts));
}

static mha_status take_rows(void *user, int64_t b, int64_t row, const mha_tensor *p)
{
    pass *x = user;
    (void)b;
    if (x->to.progress) MHA_TRY(x->to.progress(x->to.progress_user, x->layer, row));
    if (x->to.distances && x->to.distances[x->layer])
        MHA_TRY(x->signs ? compare_signed(x, p)
                         : mha_head_distances_rows(x->to.distances[x->layer], p));
    return x->to.measures ? mha_head_measures_rows(x->to.measures, x->layer, row, p) : MHA_OK;
}

/* The batch has one sequence. */
static mha_tensor single(const mha_tensor *batch)
{
    mha_tensor x = *batch;
    x.ndim = batch->ndim - 1;
    memcpy(x.shape, batch->shape + 1, (size_t)x.ndim * sizeof *x.shape);
    memcpy(x.stride, batch->stride + 1, (size_t)x.ndim * sizeof *x.stride);
    return x;
}

/* W_O is read for the first text only: later texts use the result. */
static mha_status give_values(pass *x, int64_t layer, const mha_tensor *v)
{
    mha_head_corpus *corpus = x->to.measures->corpus;
    mha_parameter p;
    mha_tensor weight;
    if (corpus->gram[layer]) return mha_head_corpus_values(corpus, layer, v, NULL);
    MHA_TRY(mha_transformer_find(x->transformer, layer,
                                 x->cross ? "cross_attn.o_proj.weight" : "self_attn.o_proj.weight",
                                 &p));
    MHA_TRY(mhai_transformer_matrix(x->context, x->transformer, p.offset, p.shape[0], p.shape[1],
                                    &weight));
    return mha_head_corpus_values(corpus, layer, v, &weight);
}

static mha_status measure_layer(void *user, const mha_activations *kept, int64_t layer)
{
    pass *x = user;
    if (x->after_layer) MHA_TRY(x->after_layer(x->after_layer_user, kept, layer));
    mha_layer_view view = {.struct_size = sizeof view};
    x->layer = layer;
    if (mhai_transformer_heads_of(&x->transformer->desc, layer, x->cross).q == 0) return MHA_OK;
    MHA_TRY(mha_activations_layer(
        kept, layer, x->cross ? MHA_PART_CROSS_ATTENTION : MHA_PART_SELF_ATTENTION, &view));
    const mhai_mix mix =
        x->cross ? (mhai_mix){0} : mhai_transformer_mix(&x->transformer->desc, layer);
    const mha_tensor input = single(&view.input), heads = single(&view.heads);
    x->signs = mix.mixer;
    if (x->to.measures) {
        if (!x->cross) MHA_TRY(mha_head_measures_inputs(x->to.measures, layer, &input));
        MHA_TRY(mix.mixer ? mha_head_measures_signed(x->to.measures, layer)
                          : mha_head_measures_window(x->to.measures, layer, &view.attention));
    }
    /* with an output gate, W_o v is not the vector that a weight adds */
    if (x->to.measures && x->to.measures->corpus && !mix.gated) {
        const mha_tensor v = single(&view.v);
        const mha_scratch_mark mark = mha_scratch_top(x->context);
        const mha_status status = give_values(x, layer, &v);
        mha_scratch_release(x->context, mark);
        MHA_TRY(status);
    }
    if (x->to.distances && x->to.distances[layer])
        MHA_TRY(mha_head_distances_outputs(x->to.distances[layer], &heads));
    return mha_layer_visit_rows(x->context, &view, 0, take_rows, x);
}

static mha_status check_input(pass *x, const mha_transformer_input *input)
{
    MHA_TRY(mhai_transformer_check("mha_head_pass_run", x->transformer, input, &x->input));
    const int64_t *shape = x->input.tokens->shape;
    if (shape[0] != 1 || (x->input.lengths && x->input.lengths[0] != shape[1]))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_head_pass_run: tokens [%lld,%lld]; expected one sequence without "
                        "padding",
                        (long long)shape[0], (long long)shape[1]);
    const int64_t *lengths = x->input.memory_lengths;
    if (x->cross && lengths && lengths[0] != x->input.memory->shape[1])
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_head_pass_run: memory_lengths[0] is %lld, expected "
                        "%lld rows without padding",
                        (long long)lengths[0], (long long)x->input.memory->shape[1]);
    return MHA_OK;
}

/* Fill in missing fields of the text from the input. */
static mha_status complete_text(pass *x, const mha_heads_text *text)
{
    const mha_tensor *tokens = x->input.tokens;
    const int64_t T = tokens->shape[1], S = x->cross ? x->input.memory->shape[1] : T;
    if (text)
        MHA_TRY(mhai_struct_copy("mha_heads_text", &x->text, sizeof x->text, sizeof x->text, text));
    x->text.struct_size = sizeof x->text;
    if (x->text.queries == 0) x->text.queries = T;
    if (x->text.keys == 0) x->text.keys = S;
    if (x->text.queries != T || x->text.keys != S)
        return mha_fail(
            MHA_ERR_ARGUMENT, "mha_heads_text: %lld queries and %lld keys, expected %lld and %lld",
            (long long)x->text.queries, (long long)x->text.keys, (long long)T, (long long)S);
    if (x->text.q_offset != 0)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_heads_text: q_offset is %lld, expected 0",
                        (long long)x->text.q_offset);
    x->text.flags &= ~(uint32_t)(MHA_HEADS_CAUSAL | MHA_HEADS_CROSS);
    if (x->cross) x->text.flags |= MHA_HEADS_CROSS;
    if (x->causal && !x->cross) x->text.flags |= MHA_HEADS_CAUSAL;
    if (x->text.ids || x->cross) return MHA_OK;
    int64_t *ids;
    MHA_TRY(mha_scratch_alloc(x->context, T, sizeof(int64_t), &ids));
    for (int64_t i = 0; i < T; i++) ids[i] = ((const int32_t *)tokens->data)[i * tokens->stride[1]];
    x->text.ids = ids;
    return MHA_OK;
}

static mha_status begin(pass *x, const mha_transformer_input *input, const mha_heads_text *text,
                        bool *open)
{
    MHA_TRY(check_input(x, input));
    MHA_TRY(complete_text(x, text));
    x->input.struct_size = sizeof x->input;
    x->after_layer = x->input.after_layer;
    x->after_layer_user = x->input.after_layer_user;
    x->input.after_layer = measure_layer;
    x->input.after_layer_user = x;
    if (x->to.flags & MHA_HEAD_PASS_OWN_LAYERS) x->input.flags |= MHA_INPUT_OWN_LAYERS;
    if (x->to.measures) MHA_TRY(mha_head_measures_begin(x->to.measures, &x->text));
    *open = x->to.measures;
    return MHA_OK;
}

static mha_status run(pass *x, const mha_transformer_input *input, const mha_heads_text *text)
{
    bool open = false;
    mha_status status = begin(x, input, text, &open);
    status = mhai_spread_agree(x->transformer, status);
    if (status == MHA_OK)
        status =
            mha_transformer_forward(x->context, x->transformer, &x->input, NULL, NULL, NULL, NULL);
    if (!open) return status;
    if (status == MHA_OK) return mha_head_measures_end(x->to.measures);
    mhai_head_text_close(x->to.measures);
    return status;
}

mha_status mha_head_pass_run(mha_context *context, const mha_transformer *transformer,
                             const mha_transformer_input *input, const mha_heads_text *text,
                             const mha_head_pass *to)
{
    MHA_NEED_AS("mha_head_pass_run", "context, transformer, pass", context, transformer, to);
    pass x = {.context = context,
              .transformer = transformer,
              .causal = transformer->desc.flags & MHA_TRANSFORMER_CAUSAL};
    MHA_TRY(mhai_struct_copy("mha_head_pass", &x.to, sizeof x.to, sizeof x.to, to));
    MHA_TRY(mhai_check_flags("mha_head_pass", x.to.flags,
                             MHA_HEAD_PASS_OWN_LAYERS | MHA_HEAD_PASS_CROSS));
    x.cross = x.to.flags & MHA_HEAD_PASS_CROSS;
    if (x.cross && (x.to.distances || !mhai_transformer_has(transformer, MHA_TRANSFORMER_CROSS)))
        return mha_fail(MHA_ERR_ARGUMENT, "mha_head_pass: MHA_HEAD_PASS_CROSS %s",
                        x.to.distances ? "measures no distances; clear them"
                                       : "requires a transformer with cross-attention");
    const mha_scratch_mark mark = mha_scratch_top(context);
    return mha_scratch_end(context, mark, run(&x, input, text));
}

mha_status mha_head_pass_distances(mha_context *context, const mha_transformer *transformer,
                                   int64_t layer, mha_head_distances **distances)
{
    MHA_NEED("mha_head_pass_distances", context, transformer, distances);
    const mha_transformer_desc *d = &transformer->desc;
    if (layer < 0 || layer >= d->num_layers)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_head_pass_distances: layer %lld, expected 0..%lld",
                        (long long)layer, (long long)d->num_layers - 1);
    const mhai_mix mix = mhai_transformer_mix(d, layer);
    const int64_t H = mhai_transformer_heads_of(d, layer, false).q, D = mix.Dv;
    mha_head_distances *made = NULL;
    mha_status status = MHA_OK;
    if (H > 0) {
        mha_parameter p;
        char name[32];
        snprintf(name, sizeof name, "%s.o_proj.weight", mhai_mixer_name(mix.mixer));
        MHA_TRY(mha_transformer_find(transformer, layer, name, &p));
        const mha_scratch_mark mark = mha_scratch_top(context);
        mha_tensor matrix;
        MHA_TRY(mhai_transformer_matrix(context, transformer, p.offset, p.shape[0], p.shape[1],
                                        &matrix));
        mha_tensor weight =
            mha_tensor_contiguous(matrix.data, MHA_F32, 3, (const int64_t[]){H, D, p.shape[0]});
        weight.stride[0] = D; /* strides of a matrix [E, H D] */
        weight.stride[1] = 1;
        weight.stride[2] = p.shape[1];
        status = mha_head_distances_create(context, H, D, &weight, &made);
        mha_scratch_release(context, mark);
    }
    if (status == MHA_OK) *distances = made;
    return status;
}

mha_status mha_layer_visit_rows(mha_context *context, const mha_layer_view *view,
                                int64_t block_rows, mha_rows_fn fn, void *user)
{
    MHA_NEED("mha_layer_visit_rows", context, view);
    if (view->struct_size != sizeof *view)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_layer_view: struct_size is %u, expected %zu",
                        (unsigned)view->struct_size, sizeof *view);
    if (!view->mixer)
        return mha_attention_visit_rows(context, &view->attention, &view->q, &view->k, block_rows,
                                        fn, user);
    const mha_recurrent_desc desc = mhai_recurrent_of(view);
    return mha_recurrent_visit_rows(context, &desc, &view->q, &view->k, view->heads.shape[1],
                                    block_rows, fn, user);
}
