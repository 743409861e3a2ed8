/* Checks of a forward call: shapes, numbers, and overlaps of outputs. */
#include "transformer/transformer_call.h"

#include "base/checked.h"
#include "base/need.h"
#include "base/tensor.h"
#include "nn/nn_check.h"

#include <stdio.h>
#include <string.h>

mha_status mhai_call_read_outputs(const mha_attention_outputs *given, int64_t layer,
                                  mha_attention_outputs *own)
{
    MHA_TRY(mhai_struct_copy("mha_attention_outputs", own, sizeof *own,
                             offsetof(mha_attention_outputs, column_sums), given));
    own->struct_size = sizeof *own;
    if (!own->lse) return MHA_OK;
    return mha_fail(MHA_ERR_ARGUMENT,
                    "outputs of layer %lld: lse is set; mha_activations_layer() "
                    "has it",
                    (long long)layer);
}

static mha_status check_lengths(const char *name, const int64_t *lengths, int64_t batch,
                                int64_t most)
{
    for (int64_t b = 0; lengths && b < batch; b++)
        MHA_TRY(mhai_check_entry(name, b, lengths[b], 0, most));
    return MHA_OK;
}

mha_status mhai_transformer_check_memory(const mha_transformer *t, int64_t batch,
                                         const mha_tensor *memory, const int64_t *lengths)
{
    MHA_TRY(mhai_tensor_check("memory", memory, MHA_F32, 3,
                              (const int64_t[]){batch, -1, t->desc.memory_dim}));
    MHA_TRY(mhai_tensor_check_last("memory", memory));
    if (batch > 1 && memory->stride[0] != memory->shape[1] * memory->stride[1])
        return mha_fail(MHA_ERR_STRIDE, "memory: sequences must follow each other without gaps");
    return check_lengths("memory_lengths", lengths, batch, memory->shape[1]);
}

static mha_status check_memory(const mha_transformer *t, const mha_transformer_input *input)
{
    const mha_tensor *memory = input->memory;
    if (!mhai_transformer_has(t, MHA_TRANSFORMER_CROSS)) {
        if (memory || input->memory_lengths || input->cross_gates)
            return mha_fail(MHA_ERR_ARGUMENT, "memory, memory_lengths, cross_gates: this "
                                              "transformer has no cross-attention");
        return MHA_OK;
    }
    return mhai_transformer_check_memory(t, input->tokens->shape[0], memory, input->memory_lengths);
}

static mha_status check_features(const mha_transformer *t, const mha_transformer_input *input)
{
    const mha_tensor *x = input->features, *tokens = input->tokens;
    const int64_t width = t->desc.feature_dim;
    if (x && width == 0)
        return mha_fail(MHA_ERR_ARGUMENT, "features: expected NULL, because feature_dim is 0");
    if (!x && width > 0 && !input->stream)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "features: NULL, expected %lld numbers for each token (feature_dim); "
                        "mha_tokens_read_image() reads them from an image",
                        (long long)width);
    if (!x) return MHA_OK;
    MHA_TRY(mhai_tensor_check("features", x, MHA_F32, 3,
                              (const int64_t[]){tokens->shape[0], tokens->shape[1], width}));
    MHA_TRY(mhai_tensor_check_last("features", x));
    if (x->shape[0] > 1 && x->stride[0] != x->shape[1] * x->stride[1])
        return mha_fail(MHA_ERR_STRIDE, "features: sequences must follow each other without gaps");
    return MHA_OK;
}

mha_status mhai_transformer_check(const char *function, const mha_transformer *t,
                                  const mha_transformer_input *given, mha_transformer_input *input)
{
    if (!given) return mha_fail(MHA_ERR_NULL, "%s: input is NULL", function);
    MHA_TRY(mhai_struct_copy("mha_transformer_input", input, sizeof *input,
                             offsetof(mha_transformer_input, token_types), given));
    const int64_t gates[] = {t->desc.num_layers, t->desc.num_heads};
    MHA_TRY(mhai_check_flags("mha_transformer_input", input->flags, MHA_INPUT_OWN_LAYERS));
    MHA_TRY(mhai_tensor_check("tokens", input->tokens, MHA_I32, 2, NULL));
    const int64_t batch = input->tokens->shape[0], length = input->tokens->shape[1];
    if (length > t->desc.max_length)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "tokens: %lld in a sequence, this transformer takes at most %lld",
                        (long long)length, (long long)t->desc.max_length);
    MHA_TRY(check_lengths("lengths", input->lengths, batch, length));
    if (input->token_types && t->desc.type_count == 0)
        return mha_fail(MHA_ERR_ARGUMENT, "token_types: this transformer has no types of tokens");
    if (input->token_types)
        MHA_TRY(mhai_tensor_check("token_types", input->token_types, MHA_I32, 2,
                                  (const int64_t[]){batch, length}));
    if (input->gates) MHA_TRY(mhai_nn_matrix("gates", input->gates, gates[0], gates[1]));
    if (input->cross_gates)
        MHA_TRY(mhai_nn_matrix("cross_gates", input->cross_gates, gates[0], gates[1]));
    if (input->head_means && !input->gates)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "head_means replace the outputs of closed heads; set gates");
    if (input->head_means)
        MHA_TRY(mhai_nn_matrix("head_means", input->head_means, gates[0],
                               mha_transformer_heads_width(&t->desc)));
    MHA_TRY(mhai_transformer_check_patches(t, input));
    MHA_TRY(check_features(t, input));
    return check_memory(t, input);
}

static mha_status check_room(const mha_transformer_input *input, const mha_activations *a)
{
    const int64_t batch = input->tokens->shape[0], length = input->tokens->shape[1];
    const int64_t memory = input->memory ? input->memory->shape[1] : 0;
    int64_t tokens, rows;
    if (!mhai_mul_i64(batch, length, &tokens) || !mhai_mul_i64(batch, memory, &rows) ||
        tokens > a->max_tokens || rows > a->max_memory)
        return mha_fail(MHA_ERR_SIZE,
                        "activations: %lld sequences of %lld tokens and %lld rows of memory, "
                        "created for %lld tokens and %lld rows",
                        (long long)batch, (long long)length, (long long)memory,
                        (long long)a->max_tokens, (long long)a->max_memory);
    return MHA_OK;
}

static mha_status check_probabilities(const mhai_call *c, const char *name,
                                      const mha_tensor *tensor, int64_t keys)
{
    const int64_t shape[] = {c->t->desc.num_layers, c->a->B, c->t->desc.num_heads, c->a->T, keys};
    if (!tensor) return MHA_OK;
    MHA_TRY(mhai_tensor_check(name, tensor, MHA_F32, 5, shape));
    return mhai_tensor_check_output(name, tensor);
}

/* View the caller's numbers as a tensor, to check overlaps. */
static mha_tensor view_counts(const int64_t *counts, int64_t batch)
{
    union {
        const int64_t *in;
        void *out;
    } pointer = {counts};
    return mha_tensor_contiguous(pointer.out, MHA_I64, 1, &batch);
}

/* Check that an output overlaps no input, and no output whose index is at least `first`. */
static mha_status check_apart(const mhai_call *c, const mha_tensor *output, const char *name,
                              const mha_tensor *written, size_t first)
{
    const mha_tensor lengths = view_counts(c->input.lengths, c->a->B);
    const mha_tensor memory_lengths = view_counts(c->input.memory_lengths, c->a->B);
    const struct {
        const char *name;
        const mha_tensor *tensor;
    } all[] = {{"output", output},
               {"last_hidden", c->input.last_hidden},
               {"probabilities", c->probabilities},
               {"cross_probabilities", c->cross_probabilities},
               {"tokens", c->input.tokens},
               {"token_types", c->input.token_types},
               {"memory", c->input.memory},
               {"gates", c->input.gates},
               {"cross_gates", c->input.cross_gates},
               {"head_means", c->input.head_means},
               {"stream", c->input.stream},
               {"features", c->input.features},
               {"lengths", c->input.lengths ? &lengths : NULL},
               {"memory_lengths", c->input.memory_lengths ? &memory_lengths : NULL}};
    for (size_t i = first; written && i < sizeof all / sizeof all[0]; i++)
        if (all[i].tensor)
            MHA_TRY(mhai_tensor_check_disjoint(name, written, all[i].name, all[i].tensor));
    return written ? mhai_transformer_patches_apart(&c->input, name, written) : MHA_OK;
}

/* List the requested outputs of a layer. Attention itself compares them with its inputs. */
void mhai_call_list_outputs(const mha_attention_outputs *x,
                            const mha_tensor *list[MHAI_CALL_OUTPUTS])
{
    const mha_tensor *all[MHAI_CALL_OUTPUTS] = {x->probabilities,  x->average_probabilities,
                                                x->scores,         x->entropy,
                                                x->largest_weight, x->largest_key,
                                                x->first_token,    x->diagonal,
                                                x->offset_mass,    x->top_keys,
                                                x->top_weights,    x->column_sums};
    memcpy(list, all, sizeof all);
}

static mha_status check_layer_apart(const mhai_call *c, const mha_tensor *output, int64_t layer)
{
    mha_attention_outputs x;
    const mha_tensor *all[MHAI_CALL_OUTPUTS];
    char name[48];
    snprintf(name, sizeof name, "an output of layer %lld", (long long)layer);
    MHA_TRY(mhai_call_read_outputs(c->input.outputs[layer], layer, &x));
    mhai_call_list_outputs(&x, all);
    for (int i = 0; i < MHAI_CALL_OUTPUTS; i++) MHA_TRY(check_apart(c, output, name, all[i], 0));
    return MHA_OK;
}

static mha_status check_overlap(const mhai_call *c, const mha_tensor *output)
{
    MHA_TRY(check_apart(c, output, "output", output, 1));
    MHA_TRY(check_apart(c, output, "last_hidden", c->input.last_hidden, 2));
    MHA_TRY(check_apart(c, output, "probabilities", c->probabilities, 3));
    MHA_TRY(check_apart(c, output, "cross_probabilities", c->cross_probabilities, 4));
    for (int64_t i = 0; c->input.outputs && i < c->t->desc.num_layers; i++)
        MHA_TRY(check_layer_apart(c, output, i));
    return MHA_OK;
}

static mha_status check_rows(const char *name, const mha_tensor *x, const int64_t *shape)
{
    MHA_TRY(mhai_tensor_check(name, x, MHA_F32, 3, shape));
    MHA_TRY(mhai_tensor_check_last(name, x));
    return mhai_tensor_check_output(name, x);
}

mha_status mhai_call_check_outputs(mhai_call *c, const mha_tensor *output)
{
    const mha_transformer_desc *d = &c->t->desc;
    c->a->B = c->input.tokens->shape[0];
    c->a->T = c->input.tokens->shape[1];
    c->a->S = c->input.memory ? c->input.memory->shape[1] : 0;
    const int64_t shape[] = {c->a->B, c->a->T,
                             d->flags & MHA_TRANSFORMER_NO_OUTPUT ? d->embed_dim : d->vocab_size};
    const int64_t rows[] = {c->a->B, c->a->T, d->embed_dim};
    if (output) MHA_TRY(check_rows("output", output, shape));
    if (c->input.last_hidden) MHA_TRY(check_rows("last_hidden", c->input.last_hidden, rows));
    MHA_TRY(check_probabilities(c, "probabilities", c->probabilities, c->a->T));
    if (c->cross_probabilities && !(d->flags & MHA_TRANSFORMER_CROSS))
        return mha_fail(MHA_ERR_ARGUMENT, "cross_probabilities: this transformer has no "
                                          "cross-attention");
    MHA_TRY(check_probabilities(c, "cross_probabilities", c->cross_probabilities, c->a->S));
    return check_overlap(c, output);
}

mha_status mhai_call_check(mhai_call *c, const mha_transformer_input *input,
                           const mha_tensor *output)
{
    if (c->a->transformer != c->t)
        return mha_fail(MHA_ERR_ARGUMENT, "activations: created for another transformer");
    MHA_TRY(mhai_transformer_check("mha_transformer_forward", c->t, input, &c->input));
    MHA_TRY(check_room(&c->input, c->a));
    return mhai_call_check_outputs(c, output);
}
