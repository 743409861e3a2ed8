/* Shared by all answers: the model, a request as a trial, parts of the JSON. */
#ifndef MHAI_SHOW_LIVE_H
#define MHAI_SHOW_LIVE_H

#include "show/live_request.h"

#include <multihead/json.h>
#include <multihead/live.h>
#include <multihead/maps.h>

/* A cache of keys and values, which later requests continue. */
typedef struct mhai_live_decoding {
    mha_decoder *decoder; /* NULL: none */
    const mha_transformer *of;
    int type;     /* index of mhai_live_caches */
    int32_t *ids; /* [room] the cached tokens */
    int64_t room;
} mhai_live_decoding;

/* Snapshots of a training: maps of one text. */
typedef struct mhai_live_training {
    int64_t frames, cells,
        tokens;     /* cells: of all maps of a frame. No frames: nothing is recorded */
    double *steps;  /* [frames] */
    uint8_t *codes; /* [frames, cells] */
    int32_t *ids;   /* [tokens] of the recorded text; only requests with these tokens have frames */
    char *text;
    mha_room room; /* owns them */
} mhai_live_training;

struct mha_live {
    mha_context *context;
    mha_model *model;
    mha_live_options options;
    mha_model_info info;
    mha_transformer_desc desc;
    mha_model *encoder; /* of an encoder-decoder; NULL: none */
    mha_trials *trials;
    mhai_live_vary vary; /* of the varied model; set by the last request that varies it */
    mha_transformer *varied;
    mha_transformer_desc varied_desc;
    mha_trials *varied_trials;
    mhai_live_decoding decoding;
    mhai_live_training training;
};

/* The request being answered. */
typedef struct mhai_live_asked {
    mha_live *live;
    mha_room room;
    mhai_live_request request;
    mha_tokens tokens, other, source;
    bool cross; /* maps are of cross-attention: columns are those of source */
    mha_trial trial;
    mha_trials *trials; /* trials of the loaded or the varied model */
    const mha_transformer *transformer;
    const mha_transformer_desc *desc;
    mha_maps maps; /* maps of the answer */
    const mha_sink *sink;
} mhai_live_asked;

/* live.c: the most likely next tokens, as a member. */
MHA_NODISCARD mha_status mhai_live_next(mhai_live_asked *a, mha_json *json);
MHA_NODISCARD mha_status mhai_live_label(mhai_live_asked *a, int32_t id, mha_json *json);
double mhai_live_seconds(void);

/* Whether a model predicts the next token, if it has a source. */
bool mhai_live_predicts(const mha_transformer_desc *d);

/* live_generate.c: generate the next token and the text that it appends; write the bytes of a cache
 * of `tokens` tokens as a member; free the decoder. */
MHA_NODISCARD mha_status mhai_live_generate(mhai_live_asked *a);
MHA_NODISCARD mha_status mhai_live_cache(mhai_live_asked *a, int64_t tokens, mha_json *json);
void mhai_live_forget_decoder(mha_live *live);
/* The heads of a layer, or its key/value heads, whose keys can be cached. */
int64_t mhai_live_heads_of(const mha_transformer_desc *d, int64_t layer, bool kv);

/* live_vary.c: choose the trials of the request; write the description of the loaded model, and the
 * amount of weight that moved, as members; free the varied model. */
MHA_NODISCARD mha_status mhai_live_choose(mhai_live_asked *a);
void mhai_live_model(const mhai_live_asked *a, mha_json *json);
/* "no causal mask, window of 4 tokens"; NULL: unchanged. */
MHA_NODISCARD mha_status mhai_live_name_vary(mhai_live_asked *a, char **words);
MHA_NODISCARD mha_status mhai_live_changes(mhai_live_asked *a, mha_json *json);
void mhai_live_forget(mha_live *live);

/* live_trace.c: write the stream at the row of the cell, and the selected head with its pair of
 * tokens. */
MHA_NODISCARD mha_status mhai_live_trace(mhai_live_asked *a);
/* Write the head's queries and keys as points. */
MHA_NODISCARD mha_status mhai_live_plane(mhai_live_asked *a);

/* live_training.c: read the snapshots in the model's folder, if any; add them to the maps of their text. */
MHA_NODISCARD mha_status mhai_live_training_read(mha_live *live);
MHA_NODISCARD mha_status mhai_live_frames(mhai_live_asked *a, const mha_figure *figure,
                                          mha_report *report);

/* live_maps.c: write small maps of all heads; the map of the selected head as floats, and as JSON
 * if it is small enough to be sent with the small maps; a report. */
MHA_NODISCARD mha_status mhai_live_maps(mhai_live_asked *a);
MHA_NODISCARD mha_status mhai_live_map(mhai_live_asked *a);
MHA_NODISCARD mha_status mhai_live_map_beside(mhai_live_asked *a, mha_json *json);
typedef struct mhai_live_rows {
    mha_context *context;
    const mha_maps *maps;
} mhai_live_rows;
/* For mha_trials_run(): add rows to maps; user is mhai_live_rows. */
MHA_NODISCARD mha_status mhai_live_add_rows(void *user, int64_t layer, int64_t row,
                                            const mha_tensor *p);
MHA_NODISCARD mha_status mhai_live_save(mhai_live_asked *a);

#endif
