/* multihead: answer the requests of a live page about a model (libmultihead-show): JSON in; JSON, floats
 * or HTML out. The caller provides the transport: `multihead serve` uses HTTP, a worker in a browser uses
 * messages. render_live.h writes the page.
 *
 *   page            the page, HTML
 *   page.css, page.js
 *   look            maps of all heads and predictions, JSON: tokens, maps (the data of a report), map, next,
 *                   patched, seconds; training (the text of the training's snapshots, with which
 *                   maps has frames)
 *   generate        the next token, the text that it adds and the size of the cache, JSON
 *   trace           the stream at a token, and a head with one pair of tokens step by step (trace.h), JSON
 *   plane           queries and keys of a head as points in a plane (mha_trials_plane()), JSON
 *   map             one map, f32 in row-major order; keys hidden by a causal mask are the NaN 0x7FC0A5A5
 *   save            a report, HTML
 *
 * The requests of look, generate, trace, plane, map and save are JSON objects; docs/serve.md lists
 * the fields. An answer depends only on its request, except for seconds, kept and computed: cached
 * runs and cached keys and values only save time.
 *
 * Example, given mha_context *context, mha_model *model, const char *request, const mha_sink *sink:
 *
 *   mha_live_options options = MHA_INIT(mha_live_options);
 *   options.name = "all-MiniLM-L6-v2";
 *   mha_live *live = NULL;
 *   mha_status status = mha_live_create(context, model, &options, &live);
 *   const mha_live_place *look = mha_live_find("look"); // request: {"text": "The cat sat"}
 *   if (!status) status = mha_live_answer(live, look, request, strlen(request), sink);
 *   mha_live_destroy(live);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_LIVE_H
#define MULTIHEAD_LIVE_H

#include <multihead/model.h>
#include <multihead/render_live.h>
#include <multihead/sink.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mha_live_options {
    uint32_t struct_size;
    uint32_t reserved;        /* 0 */
    const char *name;         /* the model's name: the title of the page */
    int64_t max_tokens;       /* limit per text; 0: 4096, or the model's positions if fewer */
    double most_bytes;        /* limit for a kept run (trial.h); 0: 2^30 */
    const char *advise_words; /* advice for an unknown word (mha_tokens_options); NULL: none */
    /* Called often during a run; if it returns true, the call stops with MHA_ERR_CALLBACK. NULL: not
     * called */
    bool (*is_over)(void *user);
    void *user;
    /* The model's folder. If `multihead train` made it, its training.safetensors holds snapshots, which the page
     * plays back. NULL: none */
    const char *folder;
} mha_live_options;

typedef struct mha_live mha_live;

/**
 * Create a live session of a model. Requests to an encoder-decoder have a source, and a target as their
 * text.
 *
 * Memory   the caller owns *live, which borrows context, model, name, advise_words and user.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (max_tokens beyond the model's positions); MHA_ERR_UNSUPPORTED
 *          (an encoder of audio); those of mha_safetensors_open() except MHA_ERR_FILE; MHA_ERR_NOMEM.
 * Threads  one call at a time per context, also for all calls on *live.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_live_create(mha_context *context, mha_model *model,
                                                 const mha_live_options *options, mha_live **live);

/** Destroy a session and its kept runs; NULL is allowed. Memory frees all. Errors none. Threads one.
 * Since 0.1 */
MHA_API void mha_live_destroy(mha_live *live);

/* An endpoint of the page. */
typedef struct mha_live_place {
    const char *name; /* "look" */
    const char *type; /* content type of the answer: "application/json" */
    const char *file; /* the file name to save the answer under; NULL: display it */
    bool asks;        /* whether it takes a request */
} mha_live_place;

/** The endpoint with this name, or NULL. Memory static. Errors none. Threads any. Since 0.1 */
MHA_API const mha_live_place *mha_live_find(const char *name);

/**
 * Write the answer to a request.
 *
 *   place            from mha_live_find()
 *   request [bytes]  a JSON object; ignored by an endpoint that takes no request
 *
 * Memory   borrows for the call; the session keeps the last runs, of most_bytes at most.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (no such endpoint); MHA_ERR_FORMAT, MHA_ERR_UTF8,
 *          MHA_ERR_SIZE, MHA_ERR_MODEL, MHA_ERR_UNSUPPORTED (an invalid request; the detail
 *          gives the reason); MHA_ERR_CALLBACK (is_over); MHA_ERR_NOMEM; any status of the sink or of
 *          the calls used. After an error the sink may have received part of an answer.
 * Threads  one.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_live_answer(mha_live *live, const mha_live_place *place,
                                                 const char *request, size_t bytes,
                                                 const mha_sink *sink);

/**
 * Write a self-contained page: it contains the library and the session's model, and needs no server
 * (mha_render_explorer()).
 *
 *   explorer   files: those of the session's model. text NULL: the text of the training's
 *              snapshots, if there are any
 *
 * Memory   borrows for the call.   Errors  those of mha_render_explorer().   Threads  one.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_live_explorer(const mha_live *live,
                                                   const mha_explorer *explorer,
                                                   const mha_sink *sink);

/**
 * Write the snapshots of the training that the page plays back, in 8 bits, as a training.safetensors that
 * mha_live_create() reads. Without snapshots nothing is written.
 *
 * Memory   borrows for the call.   Errors  MHA_ERR_NULL, MHA_ERR_NOMEM, or the status of the sink.
 * Threads  any.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_live_training(const mha_live *live, const mha_sink *sink);

#ifdef __cplusplus
}
#endif
#endif
