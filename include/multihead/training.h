/* multihead: training a transformer, with or without an encoder, step by step. A step is
 *
 *   forward        the encoder's output is the transformer's memory
 *   loss           cross-entropy of the logits against targets (nn.h)
 *   backward       through both
 *   clip           gradients of both together to a norm
 *   update         AdamW (optimizer.h), learning rate by schedule, weight decay on matrices only
 *
 * The caller provides the data and decides when to stop.
 *
 * Letters: B sequences of T tokens, S of a source; V words; E width.
 *
 * Example, given mha_context *context, mha_transformer *transformer, mha_training_batch batch:
 *
 *   mha_trainer_desc desc = MHA_INIT(mha_trainer_desc);
 *   desc.max_tokens = 1024, desc.learning_rate = 1e-3;
 *   mha_trainer *trainer = NULL;
 *   double loss = 0;
 *   mha_status status = mha_trainer_create(context, transformer, NULL, &desc, &trainer);
 *   for (int step = 0; !status && step < 100; step++) status = mha_trainer_step(trainer, &batch, &loss);
 *   mha_trainer_destroy(trainer);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_TRAINING_H
#define MULTIHEAD_TRAINING_H

#include <multihead/transformer.h>
#include <multihead/transport.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mha_trainer mha_trainer;

typedef struct mha_trainer_desc {
    uint32_t struct_size;
    uint32_t reserved;    /* 0 */
    int64_t max_tokens;   /* maximum B T of a batch */
    int64_t max_source;   /* maximum B S; with an encoder */
    double learning_rate; /* the peak of the schedule (optimizer.h) */
    double floor;         /* the rate at the end of its decay, as a fraction of the peak */
    int64_t warm_up, decay;
    double beta1, beta2, epsilon; /* of mha_adamw, with its defaults */
    double weight_decay;          /* of matrices; 0: none */
    double clip;                  /* upper limit of the norm of all gradients; 0: none */
    /* Head h's rows of W_V and columns of W_O have the learning rate times head_grade^h, as
     * mha_transformer_init.head_grade scales their initial values: heads that start alike diverge;
     * 0: 1 */
    double head_grade;
    /* Ranks of data-parallel training (transport.h); NULL: this process alone. Copied; the object
     * at `user` must outlive the trainer. All ranks create the trainer with the same parameters and
     * make the same steps with the same batches. Each computes the gradient of some sequences; the
     * parameters are bit-identical to those of one process */
    const mha_transport *transport;
    /* Number of slices of whole sequences that a batch is divided into; their gradients are added
     * in a fixed tree. The bits depend on it, but not on the number of ranks. Ranks beyond the
     * number of slices are idle. At most 1024; a slice has at least one sequence. 0: up to 8 slices
     * of at least 64 tokens, or of 512 in models of 2^20 parameters and more, which costs one
     * process at most 2 % */
    int64_t slices;
} mha_trainer_desc;

/* A batch to train on or to evaluate. Everything is borrowed for the call. */
typedef struct mha_training_batch {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    /* tokens [B,T]; memory stays NULL with an encoder. Steps take dropout, evaluations gates */
    const mha_transformer_input *input;
    const mha_transformer_input *source; /* of the encoder, tokens [B,S]; else NULL */
    /* i32 [B,T], contiguous; -1: the row is ignored, as rows beyond a length must be. A step needs
     * at least one row that is not ignored */
    const mha_tensor *targets;
    /* f32 [B,T], contiguous, weights of the rows' losses, finite for rows that are not ignored;
     * NULL: the mean */
    const mha_tensor *weights;
} mha_training_batch;

/**
 * Create a trainer.
 *
 *   transformer   with logits; with MHA_TRANSFORMER_CROSS if and only if there is an encoder
 *   encoder       with MHA_TRANSFORMER_NO_OUTPUT, its E the transformer's memory_dim; NULL: none
 *
 * The caller owns and initialises both; each step updates them. After any other change to them,
 * call mha_transformer_update().
 *
 * With a transport all its ranks make the call.
 *
 * Memory   the caller owns *trainer; context and transformers must outlive it. Three floats for
 *          each parameter (four with head_grade), activations for max_tokens and max_source, the
 *          logits [max_tokens,V] and twice [max_source,E].
 * Errors   MHA_ERR_NULL, MHA_ERR_UNSUPPORTED (reserved, a transformer with a source, whose
 *          mha_transformer_copy() can be trained); MHA_ERR_ARGUMENT (a setting out of range, no
 *          logits, an encoder of another width); MHA_ERR_SIZE, MHA_ERR_NOMEM.
 * Threads  one call at a time per context.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_trainer_create(mha_context *context,
                                                    mha_transformer *transformer,
                                                    mha_transformer *encoder,
                                                    const mha_trainer_desc *desc,
                                                    mha_trainer **trainer);

/** Destroy a trainer, not its transformers; NULL: a no-op. Memory frees all. Errors none. Threads
 * no other thread may be using it. Since 0.1 */
MHA_API void mha_trainer_destroy(mha_trainer *trainer);

/**
 * One step.
 *
 *   loss out   of the batch before the step; NULL: not requested
 *
 * With a transport all its ranks make the call, with the same batch. If a rank fails, all return
 * its error, with the detail preceded by "rank 3:".
 *
 * Memory   scratch from the context; for n slices 1 + log2 n floats for each parameter, and with
 *          ranks up to twice that.
 * Errors   MHA_ERR_NULL, MHA_ERR_STRIDE, MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_NOMEM;
 *          MHA_ERR_ARGUMENT (also if all rows are ignored); MHA_ERR_SIZE (more tokens than the
 *          trainer was created for); MHA_ERR_NUMERIC (a weight of the batch is not finite; or the
 *          loss or gradient is not, because a parameter is not finite or the learning rate is too
 *          large: see the detail); MHA_ERR_UNSUPPORTED (last_hidden, outputs, after_layer); those of the
 *          transformer's calls and of the transport. Parameters, state and count of steps are then
 *          unchanged, except after MHA_ERR_RANK of a lost rank: some ranks may then have made the
 *          step.
 * Threads  one call at a time per context.
 * Accuracy the same bits for any number of threads and of ranks.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_trainer_step(mha_trainer *trainer,
                                                  const mha_training_batch *batch, double *loss);

/**
 * Evaluate a batch: the forward pass only. If all rows are ignored, the loss is 0.
 *
 *   probabilities, cross_probabilities   as for mha_transformer_forward(); NULL: not requested
 *   logits out   a view [B,T,V] of the trainer's memory until its next call; NULL: not requested
 *   loss out     NULL: not requested, and batch->targets may be NULL
 *
 * Memory, Threads  as mha_trainer_step().   Errors  as mha_trainer_step(), MHA_ERR_NUMERIC for
 * weights only.
 * Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_trainer_evaluate(mha_trainer *trainer,
                                                      const mha_training_batch *batch,
                                                      const mha_tensor *probabilities,
                                                      const mha_tensor *cross_probabilities,
                                                      mha_tensor *logits, double *loss);

/** The number of steps done. Memory none. Errors none. Threads as the trainer. Since 0.1 */
MHA_API int64_t mha_trainer_steps(const mha_trainer *trainer);

/* State to save for resuming training, besides the parameters and the number of steps. */
typedef struct mha_trainer_state {
    mha_transformer *transformer; /* NULL: there is no encoder */
    int64_t count;                /* mha_transformer_size() */
    float *m, *v;                 /* [count] of mha_adamw_step(), to be saved, or filled */
    const float *gradient; /* [count] of the last step, before clipping; unspecified if it failed */
} mha_trainer_state;

/** The state of the transformer, or of its encoder. Memory owned by the trainer. Errors none.
 * Threads as the trainer. Since 0.1 */
MHA_API mha_trainer_state mha_trainer_state_of(mha_trainer *trainer, bool encoder);

/** Continue after `steps` steps, with the m, v and parameters of that step. Memory none. Errors
 * MHA_ERR_NULL, MHA_ERR_ARGUMENT (steps below 0 or above 2^62). Threads as the trainer. Since
 * 0.1 */
MHA_API MHA_NODISCARD mha_status mha_trainer_resume(mha_trainer *trainer, int64_t steps);

#ifdef __cplusplus
}
#endif
#endif
