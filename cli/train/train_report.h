/* What was learned: in numbers on stdout, and as pictures. */
#ifndef CLI_TRAIN_REPORT_H
#define CLI_TRAIN_REPORT_H

#include "train/train_save.h"

/* What was measured of the heads, and the one that was found. */
typedef struct train_finding {
    int64_t layer, head; /* looks most at what is right; in a text: matters most */
    train_scores all;    /* with every head */
    double left[TRAIN_MOST_LAYERS * TRAIN_MOST_HEADS]; /* accuracy (of a text perplexity) without */
} train_finding;

/* One line: how large the model is and what a step costs. */
void train_report_size(train_model *model);

/* Accuracy on separate data, where each head attends, and the accuracy without it. */
cli_exit train_report_print(train_model *model, bool quiet, train_finding *found);

/* Scores on the data that is reported, without the heads that are off [L,H]. */
cli_exit train_report_without(train_model *model, const uint8_t *off, train_scores *s);

/* Put a text of the task's words, or a sequence that is drawn where it is NULL, into the probe
 * batch alone. */
cli_exit train_report_set_text(train_model *model, const char *text);

/* Reports of every head on the task's examples, in the run's folder if it has one, which open on
 * the head found; that head on the terminal. */
cli_exit train_report_pictures(train_run *run, const train_finding *found, bool quiet);

#endif
