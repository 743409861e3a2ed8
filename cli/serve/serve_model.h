/* The model behind the page: what the last texts left in memory, and what requests make of it.
 *
 * One run of a text keeps its queries and keys, from which any map of it follows, and what the output
 * reads, from which predictions at any token follow. It stays until another text, or other heads, are
 * asked for; beside it the same text with all heads as they are, to compare with.
 */
#ifndef CLI_SERVE_MODEL_H
#define CLI_SERVE_MODEL_H

#include "common/text_model.h"
#include "serve/serve_http.h"

/* The queries and keys of a layer, and how its heads follow from them. */
typedef struct kept_layer {
    mha_attention_desc attention;
    mha_tensor q, k; /* contiguous; ndim 0: the layer has no heads, or there was no room */
} kept_layer;

typedef struct kept_run {
    char *key; /* what it is a run of; NULL: nothing */
    size_t key_bytes;
    int64_t tokens, patched; /* patched: rows that another text's heads went into */
    float *hidden;           /* [T,E] what the output reads */
    kept_layer *layers;      /* [L]; NULL: no room, and maps take another run */
    float *memory;           /* theirs */
} kept_run;

typedef struct serve_model {
    text_model model;
    int64_t most_tokens;
    double most_bytes;         /* for the queries and keys of a run, or for patches */
    bool (*reader_left)(void); /* whether the client has left; NULL: it has not */
    kept_run now, whole;       /* as asked for; the same text with all heads as they are */
} serve_model;

/* What a map is made from; q and k [1,H,T,D] and [1,Hk,T,D]. */
typedef mha_status serve_layer_fn(void *user, int64_t layer, const mha_attention_desc *attention,
                                  const mha_tensor *q, const mha_tensor *k);

/* Let the model run, unless the last run was the same; then fn for each layer that has heads. fn NULL:
 * none. Errors are printed. */
cli_exit serve_run(serve_model *serve, const serve_state *state, const text_tokens *tokens,
                   serve_layer_fn *fn, void *user);

/* The same text with all heads as they are, in serve->whole, or serve->now if no head differs. */
cli_exit serve_run_whole(serve_model *serve, const serve_state *state, const text_tokens *tokens,
                         const kept_run **whole);

/* Whether the work for this request is to end: a signal came, or its reader left. */
bool serve_is_over(const serve_model *serve);

cli_exit serve_encode(serve_model *serve, const serve_state *state, text_tokens *tokens);

/* Give back what the runs keep. */
void serve_forget(serve_model *serve);

/* user is a serve_model. */
extern const serve_work serve_model_work;

/* serve_look.c */
cli_exit serve_look(void *user, const serve_state *state, const mha_sink *sink);

/* serve_maps.c: small maps of all heads, no more than `cells` of them; one map; a report. */
cli_exit serve_write_maps(serve_model *serve, const serve_state *state, const text_tokens *tokens,
                          const mha_sink *sink);
/* The large map of state->head beside them, if it is small enough for that. */
cli_exit serve_write_map(serve_model *serve, const serve_state *state, const text_tokens *tokens,
                         const mha_sink *sink);
cli_exit serve_map(void *user, const serve_state *state, const mha_sink *sink);
cli_exit serve_save(void *user, const serve_state *state, const mha_sink *sink);
cli_exit serve_page_of(void *user, const mha_sink *sink);

/* Tokens of a cell of a large map. */
int64_t serve_map_tokens(int64_t tokens);

/* The most likely next tokens with and without the change, as a member of a JSON object. */
cli_exit serve_predict(serve_model *serve, const serve_state *state, const text_tokens *tokens,
                       const mha_sink *sink);

/* "quite (12 %), very (7 %)" for a report, in the arena; NULL: the model predicts nothing. */
cli_exit serve_predict_words(serve_model *serve, const serve_state *state,
                             const text_tokens *tokens, char **words);

#endif
