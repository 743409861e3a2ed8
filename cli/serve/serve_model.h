/* The model behind the page, and what requests make of it. */
#ifndef CLI_SERVE_MODEL_H
#define CLI_SERVE_MODEL_H

#include "common/text_model.h"
#include "serve/serve_http.h"

#include <multihead/trial.h>

typedef struct serve_model {
    text_model model;
    mha_trials *trials;
    int64_t most_tokens;
    bool (*reader_left)(void); /* whether the client has left; NULL: it has not */
} serve_model;

/* The trials of an open model, of so many bytes at most; they live in the arena. */
cli_exit serve_begin(serve_model *serve, double most_bytes);

/* What is asked of it, and its text's tokens. Memory is the arena's. */
typedef struct serve_run {
    mha_trial run;
    text_tokens tokens, other;
} serve_run;

cli_exit serve_make_run(serve_model *serve, const serve_state *state, serve_run *run);

/* user is a serve_model. */
extern const serve_work serve_model_work;

/* serve_look.c */
cli_exit serve_look(void *user, const serve_state *state, const mha_sink *sink);

/* serve_maps.c: small maps of all heads, no more than `cells` of them; one map; a report. */
cli_exit serve_write_maps(serve_model *serve, const serve_state *state, const serve_run *run,
                          const mha_sink *sink);
/* The large map of state->head beside them, if it is small enough for that. */
cli_exit serve_write_map(serve_model *serve, const serve_state *state, const serve_run *run,
                         const mha_sink *sink);
cli_exit serve_map(void *user, const serve_state *state, const mha_sink *sink);
cli_exit serve_save(void *user, const serve_state *state, const mha_sink *sink);
cli_exit serve_page_of(void *user, const mha_sink *sink);

/* Tokens of a cell of a large map. */
int64_t serve_map_tokens(int64_t tokens);

/* The most likely next tokens with and without the change, as a member of a JSON object. */
cli_exit serve_predict(serve_model *serve, const serve_state *state, const serve_run *run,
                       const mha_sink *sink);

/* "quite (12 %), very (7 %)" for a report, in the arena; NULL: the model predicts nothing. */
cli_exit serve_predict_words(serve_model *serve, const serve_state *state, const serve_run *run,
                             char **words);

#endif
