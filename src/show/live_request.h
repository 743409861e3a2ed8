/* The state of the page: a text, ablated and patched heads, and the selection. */
#ifndef MHAI_SHOW_LIVE_REQUEST_H
#define MHAI_SHOW_LIVE_REQUEST_H

#include <multihead/component.h>

#include <multihead/trial.h>

typedef struct mhai_live_heads {
    mha_trial_head *items;
    int64_t count;
} mhai_live_heads;

/* Differences of a request's model from the loaded one. */
typedef struct mhai_live_vary {
    int causal;       /* -1: as the model */
    int positions;    /* mha_position_encoding; -1: as the model */
    bool unscaled;    /* scores are not divided by sqrt(D) */
    int64_t window;   /* keys to each side, including the query's own; 0: as the model */
    int64_t kv_heads; /* key/value heads of each layer, merged by their means; 0: as the model */
    double rope_base; /* 0: as the model */
} mhai_live_vary;

typedef struct mhai_live_request {
    const char *text, *other; /* other: the source of patches; NULL: none */
    size_t text_bytes, other_bytes;
    const char *source; /* of an encoder-decoder; NULL: none */
    size_t source_bytes;
    bool self; /* of an encoder-decoder: the decoder's self-attention */
    mhai_live_heads off, patched;
    bool at_last;               /* patch the last token only */
    int64_t row;                /* position whose next token is predicted; -1: the last */
    bool no_maps;               /* predictions only */
    mha_trial_head head;        /* selected; layer -1: none */
    int64_t cell_row, cell_col; /* opens a report; -1: chosen automatically */
    mhai_live_vary vary;
    mha_trial_head noisy;      /* layer -1: none */
    double noise, temperature; /* as mha_trial */
    int64_t top_k;
    int cache;    /* type of a generation's cache, an index of mhai_live_caches */
    bool draws;   /* sample by temperature and top_k; otherwise take the most likely token */
    int64_t seed; /* seed of the sampling */
    int view, cmap, scale; /* a report's mha_view, mha_cmap, mha_scale; scale -1: automatic */
    bool dark;
} mhai_live_request;

/* live_vary.c: names of mha_position_encoding. */
extern const char *const mhai_live_positions[];
/* live_generate.c: names of cache types. */
extern const char *const mhai_live_caches[];

/* A JSON object with text, other, source, attention "cross" or "self", off ["L0H1"], patched, at "all" or
 * "last", row, maps, head, cell [row, column], view, cmap, scale, dark; causal, positions, scaled,
 * window, kv_heads, rope_base; noisy, noise; temperature, top_k; cache, draws, seed. All except text are
 * optional; other members are rejected. */
MHA_NODISCARD mha_status mhai_live_read(const char *json, size_t bytes, mha_room *room,
                                        mhai_live_request *request);

#endif
