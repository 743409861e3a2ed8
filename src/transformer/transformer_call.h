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

static inline int64_t mhai_tokens(const mha_activations *a)
{
    return a->B * a->T;
}

/* Check a whole call; the outputs that are wanted of c->input, whose batch goes to c->a. */
MHA_NODISCARD mha_status mhai_call_check(mhai_call *c, const mha_transformer_input *input,
                                         const mha_tensor *output);
MHA_NODISCARD mha_status mhai_call_check_outputs(mhai_call *c, const mha_tensor *output);

/* What else of a layer's attention is wanted; lse is the call's own. */
MHA_NODISCARD mha_status mhai_call_read_outputs(const mha_attention_outputs *given, int64_t layer,
                                                mha_attention_outputs *own);

#endif
