/* multihead: the attention maps of a text (libmultihead-model): the weights of every head as a matrix,
 * whole or pooled over blocks of tokens, and the contribution of each head of a layer to the residual
 * stream.
 *
 * Letters: L layers, H heads of the largest layer, T rows (queries), S columns (keys).
 *
 * Example, given mha_context *context, mha_model *model, const mha_tokens *tokens, const mha_sink *sink:
 *
 *   mha_maps maps = MHA_INIT(mha_maps);
 *   mha_maps_desc desc = MHA_INIT(mha_maps_desc);
 *   desc.tokens = tokens;
 *   mha_status status = mha_maps_run(context, model, &desc, &maps);
 *   if (!status) status = mha_maps_write_json(&maps, sink);
 *   mha_maps_free(&maps);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_MAPS_H
#define MULTIHEAD_MAPS_H

#include <multihead/component.h>
#include <multihead/sink.h>
#include <multihead/study.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------
 * Routes: the experts of each token
 * --------------------------------------------------------------------------------------------- */

/* Of one layer, for T tokens. */
typedef struct mha_layer_routes {
    int64_t count;    /* experts of the layer; 0: it has none, and the rest is 0 */
    int64_t used;     /* of them by each token */
    int32_t *experts; /* [T,used] their numbers, ascending */
    float *weights;   /* [T,used] the factors of their outputs */
} mha_layer_routes;

typedef struct mha_routes {
    uint32_t struct_size;    /* in: sizeof(mha_routes) */
    uint32_t reserved;       /* 0 */
    int64_t layers;          /* L; 0: no layer has experts */
    int64_t tokens;          /* T */
    mha_layer_routes *layer; /* [L] */
    mha_room memory;         /* for mha_routes_free() */
} mha_routes;

/** Run a text through a transformer, and find the experts of each token (mha_experts_desc). Memory the
 * caller frees *routes with mha_routes_free(). Errors MHA_ERR_NULL; MHA_ERR_ARGUMENT (struct_size, count);
 * MHA_ERR_UNSUPPORTED (cross-attention); MHA_ERR_NOMEM; those of mha_transformer_forward(). There is then
 * nothing to free. Threads one call per context. Accuracy bit-identical to a forward call. Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_routes_measure(mha_context *context,
                                                    const mha_transformer *transformer,
                                                    const mha_tokens *tokens, mha_routes *routes);

/** Free routes and clear the struct, except for struct_size; NULL is allowed. Memory frees it. Errors
 * none. Threads any. Since 0.1 */
MHA_API void mha_routes_free(mha_routes *routes);

/* ------------------------------------------------------------------------------------------------
 * Maps
 * --------------------------------------------------------------------------------------------- */

/* mha_maps.flags */
enum {
    MHA_MAPS_CAUSAL = 1 << 0,   /* a row sees no later column */
    MHA_MAPS_SAME = 1 << 1,     /* rows and columns are the same tokens */
    MHA_MAPS_CONTRAST = 1 << 2, /* weights in the first text minus those in the second */
    /* Of an encoder-decoder: the decoder's attention to the source, or to its own text */
    MHA_MAPS_CROSS = 1 << 3,
    MHA_MAPS_DECODER = 1 << 4
};

/* Maps from a model, or from arrays of the caller. The caller sets name and text, and may set the rest
 * instead of mha_maps_run(). */
typedef struct mha_maps {
    uint32_t struct_size; /* in: sizeof(mha_maps) */
    uint32_t flags;
    const char *name;    /* the title: the model or the file */
    const char *kind;    /* the architecture; NULL: no model, cells may hold any values */
    const char *text[2]; /* [text_bytes] UTF-8; NULL: none */
    size_t text_bytes[2];
    int64_t layers, heads;    /* L and H of the model or array */
    const uint8_t *on;        /* [L,H] heads that have maps; NULL: all */
    mha_tokens rows, cols;    /* T, S; borrowed. Only count and labels are required */
    const char *const *shown; /* [T] labels for figures; NULL, or NULL elements: the label */
    int64_t cell;             /* a cell is the maximum over cell x cell tokens; 0 or 1: one token */
    mha_tokens tokens;        /* the tokens of the text, if cell > 1 */
    mha_tokens other;         /* with MHA_MAPS_CONTRAST: the second text's */
    float **layer;            /* [L] each [H,T,S]; NULL for a layer without a selected head */
    float **twin;             /* [L] each [H,T,S] or NULL: ||alpha f(x)||; NULL: none */
    float **queries, **keys;  /* [L] each [H,T,channels], [H,S,channels] or NULL; NULL: none */
    int64_t channels;
    double *score_scales; /* [L] scale of q . k before the softmax; 0: 1 / sqrt(channels) */
    mha_routes routes;    /* of the tokens of a text that mha_maps_run() ran; not in a contrast */
    mha_room memory;      /* for mha_maps_free() */
    /* [track_rows,S] of mha_maps_run_audio(): the log-mel spectrogram of the columns, the highest band
     * first, 0 to 255; NULL: the columns are not audio */
    const uint8_t *track;
    int64_t track_rows;
} mha_maps;

/* mha_maps_desc.flags */
enum {
    /* Also make norm-based maps (attribution.h), unless all maps together exceed 1.5 million
     * cells */
    MHA_MAPS_TWINS = 1 << 0,
    /* Also make queries and keys, if cell is 0 or 1 and source is NULL */
    MHA_MAPS_NEURONS = 1 << 1,
    MHA_MAPS_SELF = 1 << 2 /* with source: make maps of the decoder's self-attention */
};

typedef struct mha_maps_desc {
    uint32_t struct_size;
    uint32_t flags;
    const mha_tokens *tokens; /* the text: rows, and columns unless source is set */
    const mha_tokens *source; /* columns: the encoder's text of an encoder-decoder; else NULL */
    const uint8_t *on;        /* [L,H] heads to make maps of; NULL: all */
    int64_t cell; /* tokens per cell; 0 or 1: single weights. Above 1 without norm-based maps, and
                     not for an encoder-decoder */
    /* A study to measure in the same run, and its number of sequences of random tokens; NULL: none.
     * If attention weights are not finite, the study has no results and *measured is false */
    mha_study *study;
    int64_t sequences;
    bool *measured; /* out; may be NULL */
    /* Called after each layer, or after the rows before `row` of a layer with cell > 1; NULL: none */
    void (*progress)(void *user, int64_t layer, int64_t row);
    void *progress_user;
} mha_maps_desc;

/**
 * Prepare maps for a text: kind, layers, heads, on, rows and columns, blocks of cell tokens, and
 * zeroed arrays for the heads that are on. mha_maps_add_rows() fills them; mha_maps_run() does
 * both.
 *
 * Memory   borrows the tokens and the model; the caller frees *maps with mha_maps_free(). name and text
 *          are not changed.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (struct_size); MHA_ERR_UNSUPPORTED (flags; source for a model
 *          that is not an encoder-decoder, or none for an encoder-decoder; cell with source);
 *          MHA_ERR_NOMEM.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_maps_make(mha_model *model, const mha_maps_desc *desc,
                                               mha_maps *maps);

/** Add the attention probabilities p [H,R,S] of a layer's queries row .. row+R-1, as mha_attention_visit_rows()
 * and mha_trials_run() pass them. Memory borrowed for the call. Errors MHA_ERR_NULL; MHA_ERR_ARGUMENT (layer);
 * those of mha_attention_pool_rows().
 * Threads one call per context. Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_maps_add_rows(mha_context *context, const mha_maps *maps,
                                                   int64_t layer, int64_t row, const mha_tensor *p);

/**
 * Run a text through a model and make its maps of self-attention, or of cross-attention for an
 * encoder-decoder (without MHA_MAPS_SELF).
 *
 * Memory   as mha_maps_make(); scratch from the context.
 * Errors   as mha_maps_make(); those of mha_transformer_forward() and mha_study_measure(). After an error
 *          there is nothing to free.
 * Threads  one call per context.
 * Accuracy bit-identical to the probabilities of mha_transformer_forward().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_maps_run(mha_context *context, mha_model *model,
                                              const mha_maps_desc *desc, mha_maps *maps);

typedef struct mha_audio_maps_desc {
    uint32_t struct_size;
    uint32_t flags;       /* 0, or MHA_MAPS_SELF: of the decoder's self-attention */
    const float *samples; /* [count] at 16 kHz, at most one window of the encoder */
    int64_t count;
    const int32_t *ids; /* [id_count] the decoder's text; NULL: the encoder's self-attention */
    int64_t id_count;
    const uint8_t *on; /* [L,H] heads to make maps of; NULL: all */
    int64_t cell;      /* rows of 0.02 s in a cell; 0: as few as give at most 200 cells */
} mha_audio_maps_desc;

/**
 * Run audio through an encoder, and the ids through its decoder, and make maps of self-attention or of
 * cross-attention. A cell of time is the sum over its columns and the mean over its rows, so rows sum to
 * 1. Labels are the seconds at which cells begin; a last cell, "silence", is the window after the audio.
 *
 *   model   Whisper; without ids also its encoder alone
 *
 * Memory   the caller frees *maps with mha_maps_free(); it borrows nothing. 4 L H S S bytes of S rows of
 *          the encoder for its self-attention, 4 L H T S for T ids during the call.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (struct_size, counts, cell); MHA_ERR_UNSUPPORTED (flags; a model
 *          that does not read audio; ids without a decoder); MHA_ERR_NOMEM; those of mha_log_mel(),
 *          mha_model_encode_audio() and mha_transformer_forward(). There is then nothing to free.
 * Threads  one call per context.   Accuracy  sums of cells in double.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_maps_run_audio(mha_context *context, mha_model *model,
                                                    const mha_audio_maps_desc *desc,
                                                    mha_maps *maps);

/** Free what mha_maps_make() allocated and clear the struct, except for struct_size; NULL is allowed. Memory
 * frees it. Errors none. Threads any. Since 0.1 */
MHA_API void mha_maps_free(mha_maps *maps);

/** The heads of a layer that have maps. Memory none. Errors none. Threads any. Since 0.1 */
MHA_API int64_t mha_maps_count(const mha_maps *maps, int64_t layer);

/** Which attention of an encoder-decoder the maps show: "cross-attention", "decoder self-attention";
 * NULL: the model has one kind. Memory static text. Errors none. Threads any. Since 0.1 */
MHA_API const char *mha_maps_attention(const mha_maps *maps);

/**
 * Subtract another text's maps, cell by cell. maps becomes a contrast: its shown labels are
 * "tired/wide" where the tokens differ, and text[1] and other describe the other text.
 *
 *   *same out   whether both texts have the same tokens; may be NULL
 *
 * Memory   maps borrows the other's text and tokens.
 * Errors   MHA_ERR_NULL; MHA_ERR_SIZE (different numbers of tokens; the detail has the first
 *          difference); MHA_ERR_ARGUMENT (different numbers of heads; a layer without maps in
 *          other); MHA_ERR_UNSUPPORTED (cross-attention; maps of blocks); MHA_ERR_NOMEM. Values are
 *          then unchanged.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_maps_subtract(mha_maps *maps, const mha_maps *other,
                                                   bool *same);

/**
 * How well rows of weights move forward through their columns, such as cross-attention from a text to its
 * source or to sound: heads that align the two score high, heads that stay at one place score 0.
 *
 *   score = max over j_0 <= j_1 <= ... of sum_t w(t, j_t) / T  -  max over j of sum_t w(t, j) / T
 *   w(t, j) = sum of p[t, j - reach .. j + reach]
 *
 *   p f32 [T,S], any strides    columns [T] out, the path j; NULL: not requested
 *
 * Memory   8 bytes per number of p, until it returns.
 * Errors   MHA_ERR_NULL, MHA_ERR_SHAPE, MHA_ERR_ARGUMENT (reach), MHA_ERR_SIZE, MHA_ERR_NOMEM.
 * Threads  any.   Cost  T S (2 reach + 2) additions.   Accuracy  in double.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_align_rows(const mha_tensor *p, int64_t reach, double *score,
                                                int64_t *columns);

/** Write maps as JSON (docs/program.md describes the object). Numbers have nine digits, which round-trip
 * every float; NaN and infinity are null. Fields of tokens without an array are null, and special is
 * false. Memory none. Errors those of the sink. Threads any. Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_maps_write_json(const mha_maps *maps, const mha_sink *sink);

/* ------------------------------------------------------------------------------------------------
 * The desk: the outputs of the heads of a layer
 * --------------------------------------------------------------------------------------------- */

/* H heads of the layer, T tokens, E features, D of each head. */
typedef struct mha_desk {
    uint32_t struct_size; /* in: sizeof(mha_desk) */
    uint32_t reserved;    /* 0 */
    int64_t layer, heads, tokens, features, head_dim;
    float *before;       /* [T,H D] the heads side by side, the input of W_O */
    float *after;        /* [T,E] the sum of all terms and the bias of W_O */
    float *terms;        /* [H,T,E] the term of each head */
    float *norms;        /* [H,T] the length of each term */
    float *shares;       /* [H,T] share in the sum of the terms' lengths */
    float *cosines;      /* [H,H] mean cosine of the terms of two heads */
    float *weight_norms; /* [H,E] the norm of each row of W_O, head by head */
    mha_room memory;     /* for mha_desk_free() */
} mha_desk;

/**
 * Run a text through a transformer without cross-attention, and compute the terms of a layer's heads.
 *
 * Memory   the caller frees *desk with mha_desk_free(). Activations of all layers during the call.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (struct_size; a layer that the transformer does not have);
 *          MHA_ERR_MODEL (a layer without heads); MHA_ERR_NOMEM; those of mha_transformer_forward() and
 *          mha_layer_write(). There is then nothing to free.
 * Threads  one call per context.   Accuracy  as mha_layer_write().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_desk_measure(mha_context *context,
                                                  const mha_transformer *transformer,
                                                  const mha_tokens *tokens, int64_t layer,
                                                  mha_desk *desk);

/** Free a desk and clear the struct, except for struct_size; NULL is allowed. Memory frees it. Errors none.
 * Threads any. Since 0.1 */
MHA_API void mha_desk_free(mha_desk *desk);

/** The mean share of a head over tokens. Memory none. Errors none. Threads any. Since 0.1 */
MHA_API double mha_desk_share(const mha_desk *desk, int64_t head);

/** Write a desk as JSON (docs/program.md describes the object). Only name and the row labels of the source
 * are written. Memory none. Errors MHA_ERR_SHAPE (other numbers of rows and tokens); those of the sink.
 * Threads any. Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_desk_write_json(const mha_desk *desk, const mha_maps *source,
                                                     const mha_sink *sink);

#ifdef __cplusplus
}
#endif
#endif
