/* A forward call, or a decoder step, in progress. */
#ifndef MHAI_TRANSFORMER_CALL_H
#define MHAI_TRANSFORMER_CALL_H

#include "base/math.h"
#include "transformer/transformer_parts.h"

typedef struct mhai_call {
    mha_context *context;
    const mha_transformer *t;
    mha_transformer_input input;
    mha_activations *a;
    const mha_tensor *probabilities, *cross_probabilities;
    const mhai_step *step; /* NULL: whole sequences */
} mhai_call;

/* transformer_delta.c: a recurrent mixer between its projections. mhai_delta_position() turns the
 * projected rows into the inputs of the recurrence. mhai_delta_run() computes the heads.
 * mhai_delta_check_outputs() checks the requested outputs. */
MHA_NODISCARD mha_status mhai_delta_position(const mhai_call *c, int64_t layer);
MHA_NODISCARD mha_status mhai_delta_run(const mhai_call *c, int64_t layer);
MHA_NODISCARD mha_status mhai_delta_check_outputs(const mhai_call *c, int64_t layer);

/* Expand the gates of Kimi delta attention, or its decays, into rows of mhai_mix.width, from kept->down. */
MHA_NODISCARD mha_status mhai_delta_expand(const mhai_call *c, int64_t layer, bool gates,
                                           float *rows);

/* The step of a recurrent mixer, clip(log(1 + exp(x))), and its derivative by x (NULL: not
 * requested). */
double mhai_delta_step(const mha_layer_desc *layer, double x, double *slope);

/* transformer_latent.c: the queries, keys and values of latent attention, from kept->step.in. */
MHA_NODISCARD mha_status mhai_latent_project(const mhai_call *c, int64_t layer);

/* Attend in a decoder's step whose cache holds latents, as the values of one head: append those of the
 * step, and expand all of a sequence. */
MHA_NODISCARD mha_status mhai_latent_attend(const mhai_call *c, int64_t layer,
                                            const mhai_attend *x);

/* transformer_relative.c: compute the content-position terms of a layer from its queries and keys, after
 * they are patched. mhai_relative_bytes() is the scratch that this takes. */
MHA_NODISCARD mha_status mhai_relative_run(const mhai_call *c, int64_t layer);
size_t mhai_relative_bytes(const mhai_call *c, int64_t layer);

/* Backpropagate from the bias, dbias [B,H,T,T], which is overwritten: add to the gradients of queries and
 * keys in drows [tokens, mhai_mix.width] and, unless `parameters` is NULL, of a table there. *to becomes
 * the gradient of projected rows, in scratch. */
typedef struct mhai_relative_gradient {
    int64_t first, count;    /* the rows of embed_relative that were projected */
    const float *embeddings; /* [count,E] after their norm */
    float *projected;        /* NULL: not requested, or none */
} mhai_relative_gradient;
MHA_NODISCARD mha_status mhai_relative_backward(const mhai_call *c, int64_t layer, float *dbias,
                                                float *drows, float *parameters,
                                                mhai_relative_gradient *to);

/* y = norm(x) of `rows` rows, or norm(x + residual). */
MHA_NODISCARD mha_status mhai_call_norm(const mhai_call *c, const mhai_place_norm *place,
                                        const float *x, const float *residual, int64_t rows,
                                        float *y);

/* A short convolution: write the input of W_o to kept->heads. */
MHA_NODISCARD mha_status mhai_convolution_run(const mhai_call *c, int64_t layer);

/* y = activation(x W^T + b) for `rows` rows. */
MHA_NODISCARD mha_status mhai_call_project(const mhai_call *c, const mhai_place_linear *place,
                                           mha_activation activation, const float *x, int64_t rows,
                                           float *y);
/* Rows of y are `stride` apart. */
MHA_NODISCARD mha_status mhai_call_project_to(const mhai_call *c, const mhai_place_linear *place,
                                              mha_activation activation, const float *x,
                                              int64_t rows, int64_t stride, float *y);

/* The gated hidden units act [rows, F] of up [rows, 2 F], gate and up. */
MHA_NODISCARD mha_status mhai_call_gated(const mhai_call *c, int64_t rows, int64_t F, float *up,
                                         float *act);

/* The output y [tokens, E] of a layer of experts, from kept->ff.in. */
MHA_NODISCARD mha_status mhai_experts_run(const mhai_call *c, int64_t layer, float *y);

/* Multiply the heads' outputs by the gates of their layer. A gated delta net normalises them first,
 * a state space afterwards. */
void mhai_gate_heads(const mhai_call *c, int64_t layer);

/* The backward pass of a layer between its projections, except attention itself. The saved heads
 * are replaced by the heads before their gates. */
typedef struct mhai_mixer_back {
    mhai_call call;
    int64_t layer;
    float *parameters; /* accumulates the gradients of all parameters; NULL: not requested */
    float *dheads;     /* [tokens, mhai_mix.out] in: the gradient of W_o's input; out: the gradient
                        * before the gates */
    /* [tokens, mhai_mix.width] out: the gradient of projected rows; for attention, only of gates */
    float *drows;
    float *dgates; /* [H] accumulates the gradient of the input's gates of a recurrent mixer; NULL:
                    * not requested */
} mhai_mixer_back;
MHA_NODISCARD mha_status mhai_mixer_backward(const mhai_mixer_back *m);

static inline int64_t mhai_tokens(const mha_activations *a)
{
    return a->B * a->T;
}

/* Check the call and the outputs that c->input requests, and store the batch in c->a. */
MHA_NODISCARD mha_status mhai_call_check(mhai_call *c, const mha_transformer_input *input,
                                         const mha_tensor *output);
MHA_NODISCARD mha_status mhai_call_check_outputs(mhai_call *c, const mha_tensor *output);

/* Agree with all ranks that each of them makes this call. */
MHA_NODISCARD mha_status mhai_call_begin(const mhai_call *c, const mha_tensor *output,
                                         mha_status status);

/* Called after each layer by its rank: send the stream to the next rank, and the requested outputs
 * to all. A rank that failed still sends, so that this cannot deadlock. The error is exchanged at
 * the end. Returns only errors of the transport. */
MHA_NODISCARD mha_status mhai_call_hand_on(const mhai_call *c, int64_t layer);

/* Whether this rank receives a layer's outputs. */
bool mhai_call_sees(const mhai_call *c, int64_t layer);

/* Whether this rank has the stream after the last layer. */
bool mhai_call_has_end(const mhai_call *c);

/* The part [B,H,T,S] of one layer in an output for all layers. */
mha_tensor mhai_call_layer_part(const mha_tensor *wanted, int64_t layer);

/* List the tensors of a layer's outputs; NULL: not requested. */
enum { MHAI_CALL_OUTPUTS = 12 };
void mhai_call_list_outputs(const mha_attention_outputs *outputs,
                            const mha_tensor *list[MHAI_CALL_OUTPUTS]);

/* Read the requested outputs of a layer's attention, except lse. */
MHA_NODISCARD mha_status mhai_call_read_outputs(const mha_attention_outputs *given, int64_t layer,
                                                mha_attention_outputs *own);

#endif
