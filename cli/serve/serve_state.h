/* What a reader of the page has chosen: a text, heads that are off or patched, and what to look at. It
 * comes as a JSON object, and is all that a reply depends on. */
#ifndef CLI_SERVE_STATE_H
#define CLI_SERVE_STATE_H

#include "common/exits.h"

#include <multihead/trial.h>

#include <stddef.h>
#include <stdint.h>

#define SERVE "serve" /* the name in messages */

typedef struct serve_heads {
    mha_trial_head *items;
    int64_t count;
} serve_heads;

typedef struct serve_state {
    const char *text, *other; /* other: what patches come from; NULL: none */
    size_t text_bytes, other_bytes;
    serve_heads off, patched;
    bool at_last;               /* patched at the last token, not at all of them */
    int64_t row;                /* whose next token is predicted; -1: the last */
    bool no_maps;               /* predictions only */
    mha_trial_head head;        /* looked at; layer -1: none */
    int64_t cell_row, cell_col; /* of a report; -1: where it likes */
    int view, cmap, scale; /* of a report: mha_view, mha_cmap, mha_scale; scale -1: automatic */
    bool dark;
} serve_state;

/* A JSON object with text, other, off ["L0H1"], patched, at "all" or "last", row, maps, head, cell
 * [row, column], view, cmap, scale, dark: all but text may be missing, and nothing else be there. Memory
 * is the arena's. Errors are printed. */
cli_exit serve_read_state(const char *json, size_t bytes, serve_state *state);

#endif
