/* multihead: what a live page asks of a model, and the answers (libmultihead-show): JSON in, JSON, numbers
 * or HTML out. What carries them is the caller's: `multihead serve` does it by HTTP, a worker in a browser
 * by messages. The page itself is render_live.h's.
 *
 *   mha_live_create(context, model, &options, &live);
 *   mha_status status = mha_live_answer(live, "look", "{\"text\": \"The cat sat\"}", 23, &sink);
 *   if (status) { ... mha_error_detail() is for the reader }
 *
 *   page            the page, HTML
 *   page.css, page.js
 *   look            maps of all heads and predictions, JSON: tokens, maps (the data of a report), map, next,
 *                   patched, seconds
 *   map             one map, f32 row by row; what a causal model cannot see is the NaN 0x7FC0A5A5
 *   save            a report, HTML
 *
 * look, map and save ask with a JSON object; docs/serve.md has its fields. The answer depends on it alone:
 * that the last runs of the model are kept is seen in the time.
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_LIVE_H
#define MULTIHEAD_LIVE_H

#include <multihead/model.h>
#include <multihead/sink.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mha_live_options {
    uint32_t struct_size;
    uint32_t reserved;        /* 0 */
    const char *name;         /* of the model, the page's title */
    int64_t max_tokens;       /* of a text; 0: 4096, or the model's positions if they are fewer */
    double most_bytes;        /* of what a run keeps (trial.h); 0: 2^30 */
    const char *advise_words; /* ends the error of an unknown word (study.h); NULL */
    /* Asked often while a run goes on: whether it is to end, with MHA_ERR_CALLBACK. NULL: it is not */
    bool (*is_over)(void *user);
    void *user;
} mha_live_options;

typedef struct mha_live mha_live;

/**
 * Create what answers for a model. An encoder-decoder has none: take its mha_model_encoder().
 *
 * Memory   the caller owns *live; it borrows context, model, name and user.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (max_tokens beyond the model's positions); MHA_ERR_UNSUPPORTED
 *          (an encoder-decoder); MHA_ERR_NOMEM.
 * Threads  one call per context, as for all calls of it.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_live_create(mha_context *context, mha_model *model,
                                                 const mha_live_options *options, mha_live **live);

/** Destroy it and the runs that it keeps; NULL is fine. Memory frees all. Errors none. Threads one.
 * Since 0.1 */
MHA_API void mha_live_destroy(mha_live *live);

typedef struct mha_live_place {
    const char *name; /* "look" */
    const char *type; /* of the answer: "application/json" */
    const char *file; /* under which it is saved; NULL: it is shown */
    bool asks;        /* with a request; else there is none */
} mha_live_place;

/** What is at a name, or NULL. Memory static. Errors none. Threads any. Since 0.1 */
MHA_API const mha_live_place *mha_live_find(const char *name);

/**
 * Write the answer to a request.
 *
 *   place            of mha_live_find()
 *   request [bytes]  a JSON object; ignored where there is none
 *
 * Memory   borrowed for the call; runs stay until other ones take their place, of most_bytes at most.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (no such place); MHA_ERR_FORMAT, MHA_ERR_UTF8,
 *          MHA_ERR_SIZE, MHA_ERR_MODEL, MHA_ERR_UNSUPPORTED (what is asked cannot be computed; the
 *          detail says why); MHA_ERR_CALLBACK (is_over); MHA_ERR_NOMEM; what the sink returned, and
 *          of other calls. The sink may have a part of an answer.
 * Threads  one.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_live_answer(mha_live *live, const mha_live_place *place,
                                                 const char *request, size_t bytes,
                                                 const mha_sink *sink);

#ifdef __cplusplus
}
#endif
#endif
