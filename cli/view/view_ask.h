/* The parts of `view --from A --to B`: words -> tokens, heads -> three measures -> table, JSON. */
#ifndef CLI_VIEW_ASK_H
#define CLI_VIEW_ASK_H

#include "view/view.h"

/* A word of the command line and the tokens that it is. */
typedef struct ask_word {
    const char *given;
    int64_t first, count;
} ask_word;

/* What heads are ranked by, in the order of --sort. */
typedef enum ask_measure {
    ASK_WEIGHT = 0, /* mean over the rows of `from` of the sum over the columns of `to` */
    ASK_SHARE = 1,  /* the same of ||alpha f(x)||, as a part of each row's sum */
    ASK_EFFECT = 2  /* what changes without the head */
} ask_measure;

enum { ASK_MEASURES = 3 };

typedef struct ask_head {
    int64_t layer, head;
    double value[ASK_MEASURES];
    int64_t rank[ASK_MEASURES]; /* from 1 */
} ask_head;

struct view_ask {
    attention_maps source; /* name, text, tokens; no maps */
    ask_word from, to;
    double chance;   /* the weight that a row which looks at all it sees alike would have */
    ask_head *heads; /* [count], by layer and head */
    int64_t count;
    bool predicts;      /* the model has an output: effects are of log-probabilities */
    char *predicted;    /* the token that the last row of `from` predicts; else NULL */
    double probability; /* of it */
};

/* Find a word, "it" or "it:2" for its second place, among the tokens of a text. option is what
 * messages call it. */
cli_exit view_find_word(const char *option, const char *given, const attention_maps *source,
                        ask_word *word);

/* Measure every head chosen. Opens the model; the caller closes it. */
cli_exit view_ask_measure(const view_options *options, text_model *model, view_ask *ask);

/* Positions in ask->heads, the best by a measure first. */
cli_exit view_ask_order(const view_ask *ask, ask_measure by, int64_t **order);

/* Columns of a report's table for the heads that are on. */
cli_exit view_ask_columns(const view_ask *ask, const maps_picks *picks,
                          mha_column columns[ASK_MEASURES]);

/* The table on stdout, and the JSON. */
cli_exit view_ask_print(const view_options *options, const view_ask *ask);
mha_status view_ask_write_json(const view_ask *ask, const mha_sink *sink);

#endif
