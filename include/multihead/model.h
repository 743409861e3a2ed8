/* multihead: models from Hugging Face folders: a transformer and its tokenizer.
 *
 * A model folder holds config.json, model.safetensors (or an index and several files) and vocab.txt
 * or tokenizer.json. docs/model-folders.md lists the families, the fields and the unsupported
 * settings.
 *
 * Letters as in attention.h, and
 *   L   layers      E   width of the hidden states      T   tokens per sequence, padding included
 *
 * transformer.h has the formulas. A BERT encoder computes (Devlin et al. 2019; post-norm, as
 * published):
 *
 *   x_0 = norm(word[id] + position[t] + type[segment])
 *   a_l = norm(x_l + attention_l(x_l))                      l = 0 .. L-1
 *   x_{l+1} = norm(a_l + W2 gelu(W1 a_l + b1) + b2)
 *
 * Example, given mha_context *context, const int32_t *ids, int64_t count, mha_tensor hidden:
 *
 *   mha_model *model = NULL;
 *   mha_status status = mha_model_load(context, "all-MiniLM-L6-v2", NULL, &model);
 *   mha_batch batch = MHA_INIT(mha_batch);
 *   batch.batch = 1, batch.length = count, batch.ids = ids;
 *   mha_model_outputs outputs = MHA_INIT(mha_model_outputs);
 *   outputs.last_hidden = &hidden;
 *   if (!status) status = mha_model_forward(context, model, &batch, &outputs);
 *   mha_model_destroy(model);
 *
 * Stability: stable from 1.0 (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_MODEL_H
#define MULTIHEAD_MODEL_H

#include <multihead/base.h>
#include <multihead/checkpoint.h>
#include <multihead/module.h>
#include <multihead/tokenizer.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A loaded model. It never changes after loading, so any number of threads may use one, each with
 * its own context. Its weights stay in their files, which are mapped: do not truncate them. */
typedef struct mha_model mha_model;

/* mha_model_options.flags */
enum {
    MHA_MODEL_NO_TOKENIZER = 1 << 0, /* load no tokenizer; mha_model_tokenizer() returns NULL */
    /* Copy the weights into mha_transformer_data(), where they can be changed. Takes 8 bytes per
     * number */
    MHA_MODEL_ARRAY = 1 << 1,
    MHA_MODEL_UNDIVIDED =
        1 << 2, /* with a transport: every rank has all layers and makes its own calls */
    MHA_MODEL_IMAGES = 1 << 3 /* of a model of texts and images (CLIP), load the image tower */
};

typedef struct mha_model_options {
    uint32_t struct_size;
    uint32_t flags;
    /* MHA_COMPUTE_INT8: linear layers whose weights are stored in blocks are computed in 8 bits
     * (mha_transformer_source in transformer.h): faster, less accurate, forward only.
     * MHA_COMPUTE_BF16, MHA_COMPUTE_TILES: all linear layers are computed in bf16 arithmetic,
     * likewise */
    mha_compute compute;
    uint32_t reserved; /* 0 */
    /* Layers are spread over these ranks (mha_transformer_source in transformer.h): each reads the
     * weights of its own layers from the same files. All ranks make the loading, forward and
     * decoder calls together. It must outlive the model. NULL: one process. Loading compares
     * digests of all files, which takes the time of reading them once */
    const mha_transport *transport;
} mha_model_options;

/**
 * Load a model folder, or a GGUF file (gguf.h) with weights of any type that mha_gguf_read()
 * decodes. If all weights are f32, they are packed once. If some have another type, matrices stay
 * in their stored type and are converted in each product (mha_transformer_create_from()),
 * with results bit-identical to converting them first. The prefix "bert." of weight names is
 * optional; weights that the encoder does not need (pooler, classifier) are ignored. FOLDER/encoder
 * is the encoder alone of an encoder-decoder. options may be
 * NULL. With a transport all ranks return the same status, that of the lowest rank that failed; the
 * detail of MHA_ERR_ARGUMENT names the rank whose configuration, weights or tokenizer differ from
 * those of rank 0.
 *
 * Memory   the caller owns *model; memory comes from the context's allocator, which must outlive
 *          the model (the context need not); the tokenizer and temporary memory for loading use
 *          malloc(). The weight files stay mapped unless MHA_MODEL_ARRAY is set; no other file
 *          stays open.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (options; a compute other than
 *          MHA_COMPUTE_F32, or a transport, with MHA_MODEL_ARRAY; ranks whose files differ);
 *          MHA_ERR_FILE (folder or file missing);
 *          MHA_ERR_FORMAT (malformed JSON or safetensors); MHA_ERR_MODEL (a field of config.json
 *          missing, of a wrong type or out of range; a weight missing or of a shape other than
 *          config.json states); MHA_ERR_UNSUPPORTED (architecture, activation, position scheme or
 *          weight type; MHA_COMPUTE_INT8 where no weight is stored in blocks); MHA_ERR_UTF8;
 *          MHA_ERR_SIZE; MHA_ERR_NOMEM.
 * Threads  as mha_context_create().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_model_load(mha_context *context, const char *folder,
                                                const mha_model_options *options,
                                                mha_model **model);

/** Destroy a model and its tokenizer; NULL: a no-op. Memory frees all. Errors none. Threads no
 * other thread may be using it. Since 0.1 */
MHA_API void mha_model_destroy(mha_model *model);

/* The description of a model. */
typedef struct mha_model_info {
    uint32_t struct_size; /* in: sizeof(mha_model_info) */
    uint32_t reserved;
    /* config.json's model_type, e.g. "bert", or "encoder-decoder"; lives as long as the model */
    const char *architecture;
    int64_t layers;            /* L */
    int64_t heads;             /* H */
    int64_t kv_heads;          /* Hk; H in BERT */
    int64_t hidden_size;       /* E */
    int64_t head_dim;          /* D */
    int64_t intermediate_size; /* width between the two feed-forward layers */
    int64_t max_positions;     /* maximum number of tokens per sequence */
    int64_t vocab_size;        /* ids are 0 .. vocab_size - 1 */
    int64_t type_vocab_size;   /* segments are 0 .. type_vocab_size - 1 */
    int64_t parameters;        /* of the encoder, without pooler and classifier */
    /* Of a vision model: rows and columns of patches, a patch's edge in pixels, and the number of
     * tokens before the patches (CLS and registers). 0: a text model */
    int64_t patch_rows, patch_cols, patch_size, patch_first;
} mha_model_info;

/**
 * Describe a model.
 *
 * Memory   fills *info, up to info->struct_size bytes.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (struct_size).   Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_model_describe(const mha_model *model, mha_model_info *info);

/** The model's tokenizer; NULL if it was loaded without one. Memory lives as long as the model.
 * Errors none. Threads any. Since 0.1 */
MHA_API const mha_tokenizer *mha_model_tokenizer(const mha_model *model);

/** The vocabulary of a model that mha_checkpoint_save() wrote (checkpoint.h), which has no
 * tokenizer; NULL otherwise. Memory lives as long as the model. Errors none. Threads any. Since
 * 0.1 */
MHA_API const mha_vocabulary *mha_model_vocabulary(const mha_model *model);

/**
 * The tokens that end a text, each once. Returns their number. They come from the model's files. For a
 * folder: eos_token_id of config.json and of generation_config.json, a number or a list, and the
 * tokenizer's eos_token. For a GGUF file: tokenizer.ggml.eos_token_id, eot_token_id and eom_token_id, and
 * the tokens that llama.cpp recognizes by their text, such as "<|eot_id|>", "<|im_end|>" and
 * "<end_of_turn>". Ids outside the vocabulary are skipped. Without a tokenizer only the
 * configuration files count.
 *
 *   *ids   [the number returned]; ids may be NULL
 *
 * Memory   lives as long as the model.   Errors  none.   Threads  any.   Since  0.1
 */
MHA_API int64_t mha_model_end_tokens(const mha_model *model, const int32_t **ids);

/**
 * The tokens with which the text of a decoder begins, in a folder with an encoder (BART, T5, Marian):
 * decoder_start_token_id and then forced_bos_token_id, from generation_config.json or config.json.
 * Returns their number, 0 to 2.
 *
 *   *ids   [the number returned]; ids may be NULL
 *
 * Memory   lives as long as the model.   Errors  none.   Threads  any.   Since  0.1
 */
MHA_API int64_t mha_model_start_tokens(const mha_model *model, const int32_t **ids);

/** The tokens that a generated text of such a decoder never contains: suppress_tokens and the single
 * tokens of bad_words_ids. first: those that it does not begin with, begin_suppress_tokens. Returns and
 * Memory as mha_model_start_tokens(). Errors none. Threads any. Since 0.1 */
MHA_API int64_t mha_model_suppressed_tokens(const mha_model *model, bool first,
                                            const int32_t **ids);

/** The model's transformer. Changing it (MHA_MODEL_ARRAY) changes the model. Memory lives as long
 * as the model. Errors none. Threads any. Since 0.1 */
MHA_API mha_transformer *mha_model_transformer(mha_model *model);

/** The encoder of an encoder-decoder (a folder that contains the folders encoder and decoder, or BART,
 * T5 and Marian), whose decoder is the model itself; NULL for other models. It has no tokens of its
 * own: mha_model_tokenizer() of both is the same. Memory lives as long as the model. Errors none.
 * Threads any. Since 0.1 */
MHA_API mha_model *mha_model_encoder(mha_model *model);

/* Digests of the bytes of a model's files. For a GGUF file, the configuration is its header, which
 * includes the tokenizer. */
typedef struct mha_model_digests {
    uint64_t configuration, weights, tokenizer;
} mha_model_digests;

/**
 * Compute the digests of a model's files. Different models have equal digests with probability 2^-64.
 * Not collision-resistant.
 *
 *   flags   0, or MHA_MODEL_NO_TOKENIZER: skip the tokenizer's files
 *
 * Memory   fills *digests; scratch of 256 KiB per thread.
 * Errors   MHA_ERR_NULL; MHA_ERR_UNSUPPORTED (flags); MHA_ERR_FILE, MHA_ERR_FORMAT, MHA_ERR_NOMEM.
 * Threads  one call at a time per context.   Cost  reads the files once.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_model_digest(mha_context *context, const char *folder,
                                                  uint32_t flags, mha_model_digests *digests);

/**
 * Call each(user, name, path) for every file that mha_model_load() reads from a folder, with its
 * name in the folder; for a GGUF file, call it once with name NULL; for a split one, once for each
 * part with its name. Other files, such as training state, are left out. The parts of an
 * encoder-decoder are folders of their own.
 *
 * Memory   the strings are valid during the call.
 * Errors   MHA_ERR_NULL; MHA_ERR_FILE, MHA_ERR_FORMAT, MHA_ERR_MODEL (weights), MHA_ERR_NOMEM; a
 *          status that each() returned, after which it is not called again.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_model_files(const char *folder,
                                                 mha_status (*each)(void *user, const char *name,
                                                                    const char *path),
                                                 void *user);

/* Tokens of one or several sequences, padded on the right to a common length. */
typedef struct mha_batch {
    uint32_t struct_size;
    uint32_t reserved;       /* 0 */
    int64_t batch;           /* B */
    int64_t length;          /* T, at most max_positions */
    const int32_t *ids;      /* [B,T]; padding must also be ids of the vocabulary, e.g. [PAD] */
    const int32_t *type_ids; /* [B,T] segments; NULL: all 0 */
    const int64_t *lengths;  /* [B], 0 .. T, tokens that are not padding; NULL: T for all */
    /* [B,T,3 P P] of a vision model, P its patch_size: the normalised pixels of each token's patch, in
     * the order channel, row, column; 0 for CLS and registers. ids are 0 for patches, and 1, 2, ... for
     * the tokens before them */
    const float *features;
} mha_batch;

/* The requested outputs of a forward pass; NULL: not requested. All tensors f32, any strides with a
 * contiguous last axis. */
typedef struct mha_model_outputs {
    uint32_t struct_size;
    uint32_t reserved;             /* 0 */
    const mha_tensor *last_hidden; /* [B,T,E], x_L, after the final norm if there is one */
    /* [L+1] pointers, each NULL or [B,T,E]: x_0 .. x_L, before a final norm. hidden[0] is written
     * at the same time as the outputs of layer 0 */
    const mha_tensor *const *hidden;
    /* [L] pointers, each NULL or the requested outputs of that layer's attention: probabilities
     * [B,H,T,T], their mean over heads, q, k, v, the heads before W_o, lse (module.h), with as many
     * heads as that layer has; for a layer without heads nothing is written */
    const mha_module_outputs *const *attention;
    /* Called when a layer's outputs (attention and hidden[layer + 1]) are complete. Outputs of
     * different layers may share memory, so that a long text needs memory for only one layer's
     * maps. A status other than MHA_OK ends the pass and is returned. The callback must not use the
     * context. */
    mha_status (*after_layer)(void *user, int64_t layer);
    void *after_layer_user;
} mha_model_outputs;

/**
 * Run the model.
 *
 * Keys beyond a sequence's length are invisible to all its queries. Rows beyond it are computed
 * from the ids of the padding and are meaningless; columns of probabilities beyond it are 0.
 *
 * Memory   borrowed for the call. Scratch from the context, allocated before the first output is
 *          written: O(B T (E + intermediate_size)), and O(B H T T) if averages over heads are
 *          requested without the probabilities of each head. In a steady state nothing is
 *          allocated.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (struct_size, negative sizes, ids outside the vocabulary,
 *          segments or lengths out of range); MHA_ERR_SIZE (more tokens than max_positions);
 *          MHA_ERR_UNSUPPORTED (a reserved field is set); MHA_ERR_SHAPE, MHA_ERR_DTYPE,
 *          MHA_ERR_STRIDE, MHA_ERR_OVERLAP (an output); MHA_ERR_NOMEM. No output byte is then
 *          written, unless after_layer failed.
 * Threads  one call at a time per context.
 * Accuracy attention weights and hidden states within twice the error of torch in float32
 *          (docs/numerics.md). Each sequence of a padded batch is bit-identical to the
 *          sequence alone.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_model_forward(mha_context *context, const mha_model *model,
                                                   const mha_batch *batch,
                                                   const mha_model_outputs *outputs);

/* ------------------------------------------------------------------------------------------------
 * The shape of a model's attention, from config.json alone
 * --------------------------------------------------------------------------------------------- */

/* mha_model_shape.flags */
enum {
    MHA_MODEL_SHAPE_CAUSAL = 1 << 0,   /* a decoder: a token sees itself and earlier tokens */
    MHA_MODEL_SHAPE_QKV_BIAS = 1 << 1, /* W_q, W_k and W_v have biases */
    MHA_MODEL_SHAPE_OUT_BIAS = 1 << 2  /* W_o has a bias */
};

typedef struct mha_model_shape {
    uint32_t struct_size;  /* in: sizeof(mha_model_shape) */
    uint32_t flags;        /* out */
    char architecture[32]; /* config.json's model_type */
    int64_t layers;        /* L */
    int64_t heads;         /* H */
    int64_t kv_heads;      /* Hk */
    int64_t embed_dim;     /* E */
    int64_t head_dim;      /* D */
    int64_t max_positions; /* 0: not stated */
    int64_t window;        /* keys that a token sees, its own included; 0: all */
} mha_model_shape;

/**
 * Read the shape of a model's attention from FOLDER/config.json (no weights are needed) or from the
 * metadata of a GGUF file; of an encoder-decoder that of the encoder.
 *
 * Memory   fills *shape, up to shape->struct_size bytes.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (struct_size); MHA_ERR_FILE (no config.json);
 *          MHA_ERR_FORMAT; MHA_ERR_MODEL (a field missing, of a wrong type or out of range);
 *          MHA_ERR_UNSUPPORTED (architecture); MHA_ERR_SIZE; MHA_ERR_NOMEM. *shape is then
 *          unchanged.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_model_read_shape(const char *folder, mha_model_shape *shape);

#ifdef __cplusplus
}
#endif
#endif
