/* A forward call, or a step of a decoder, while it runs. */
#ifndef MHAI_TRANSFORMER_CALL_H
#define MHAI_TRANSFORMER_CALL_H

#include "transformer/transformer_parts.h"

typedef struct mhai_call {
    mha_context *context;
    const mha_transformer *t;
    mha_transformer_input input;
    mha_activations *a;
    const mha_tensor *probabilities, *cross_probabilities;
    const mhai_step *step; /* NULL: whole sequences */
} mhai_call;

/* transformer_delta.c: a gated delta net between its projections: what its recurrence reads, in place of
 * what they gave; its heads. Check what else is wanted of it. */
MHA_NODISCARD mha_status mhai_delta_position(const mhai_call *c, int64_t layer);
MHA_NODISCARD mha_status mhai_delta_run(const mhai_call *c, int64_t layer);
MHA_NODISCARD mha_status mhai_delta_check_outputs(const mhai_call *c, int64_t layer);

/* Multiply the outputs of heads by the gates of their layer; of a gated delta net, norm them first. */
void mhai_gate_heads(const mhai_call *c, int64_t layer);

static inline int64_t mhai_tokens(const mha_activations *a)
{
    return a->B * a->T;
}

/* Check a whole call; the outputs that are wanted of c->input, whose batch goes to c->a. */
MHA_NODISCARD mha_status mhai_call_check(mhai_call *c, const mha_transformer_input *input,
                                         const mha_tensor *output);
MHA_NODISCARD mha_status mhai_call_check_outputs(mhai_call *c, const mha_tensor *output);

/* Agree that all ranks make this call. */
MHA_NODISCARD mha_status mhai_call_begin(const mhai_call *c, const mha_tensor *output,
                                         mha_status status);

/* A layer is done where it is computed: give the stream to whoever goes on, and to all what the call
 * shows of the layer. Errors are the transport's alone: a rank that failed sends what it has, so that
 * nobody waits, until all agree at the end. */
MHA_NODISCARD mha_status mhai_call_hand_on(const mhai_call *c, int64_t layer);

/* Whether what a layer shows is seen here. */
bool mhai_call_sees(const mhai_call *c, int64_t layer);

/* Whether the stream after the last layer is here. */
bool mhai_call_has_end(const mhai_call *c);

/* A layer's [B,H,T,S] of what is wanted of all layers. */
mha_tensor mhai_call_layer_part(const mha_tensor *wanted, int64_t layer);

/* The tensors of a layer's outputs, NULL where one is not wanted. */
enum { MHAI_CALL_OUTPUTS = 12 };
void mhai_call_list_outputs(const mha_attention_outputs *outputs,
                            const mha_tensor *list[MHAI_CALL_OUTPUTS]);

/* What else of a layer's attention is wanted; lse is the call's own. */
MHA_NODISCARD mha_status mhai_call_read_outputs(const mha_attention_outputs *given, int64_t layer,
                                                mha_attention_outputs *own);

#endif
