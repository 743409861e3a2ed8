/* The parts of `view --from A --to B`: a question, and its answer as a table or JSON. */
#ifndef CLI_VIEW_ASK_H
#define CLI_VIEW_ASK_H

#include "view/view.h"

#include <multihead/question.h>

/* A word of the command line and its tokens. */
typedef struct ask_word {
    const char *given;
    mha_token_span at;
} ask_word;

struct view_ask {
    mha_maps source; /* name, text, tokens; no maps */
    ask_word from, to;
    mha_answer *answer;
    char *predicted; /* the token that the last row of `from` predicts; NULL: none */
};

/* Measure every chosen head. Opens the model, which the caller closes. */
cli_exit view_ask_measure(const view_options *options, text_model *model, view_ask *ask);

/* Columns of a report's table for the selected heads. */
cli_exit view_ask_columns(const view_ask *ask, const mha_maps *maps,
                          mha_column columns[MHA_ANSWER_MEASURES]);

/* Print the table on stdout, and write the JSON. */
cli_exit view_ask_print(const view_options *options, const view_ask *ask);
mha_status view_ask_write_json(const view_ask *ask, const mha_sink *sink);

#endif
