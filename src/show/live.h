/* Shared by all answers: the model, a request as a trial, parts of the JSON. */
#ifndef MHAI_SHOW_LIVE_H
#define MHAI_SHOW_LIVE_H

#include "show/live_request.h"

#include <multihead/json.h>
#include <multihead/live.h>
#include <multihead/maps.h>

struct mha_live {
    mha_context *context;
    mha_model *model;
    mha_live_options options;
    mha_model_info info;
    mha_transformer_desc desc;
    mha_trials *trials;
};

/* The request being answered. */
typedef struct mhai_live_asked {
    mha_live *live;
    mha_room room;
    mhai_live_request request;
    mha_tokens tokens, other;
    mha_trial trial;
    mha_maps maps; /* of the answer */
    const mha_sink *sink;
} mhai_live_asked;

/* live.c: the most likely next tokens, as a member. */
MHA_NODISCARD mha_status mhai_live_next(mhai_live_asked *a, mha_json *json);

/* live_trace.c: the stream at the row of the cell, and the selected head with its pair. */
MHA_NODISCARD mha_status mhai_live_trace(mhai_live_asked *a);

/* live_maps.c: small maps of all heads; the map of the selected head as floats, and in JSON if it is small
 * enough to send with the others; a report. */
MHA_NODISCARD mha_status mhai_live_maps(mhai_live_asked *a);
MHA_NODISCARD mha_status mhai_live_map(mhai_live_asked *a);
MHA_NODISCARD mha_status mhai_live_map_beside(mhai_live_asked *a, mha_json *json);
MHA_NODISCARD mha_status mhai_live_save(mhai_live_asked *a);

#endif
