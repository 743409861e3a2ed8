/* The results of training: numbers on stdout, and pictures. */
#ifndef CLI_TRAIN_REPORT_H
#define CLI_TRAIN_REPORT_H

#include "train/train_save.h"

/* The measurements of the heads, and the selected head. */
typedef struct train_finding {
    int64_t layer, head; /* attends most to right columns; for a text: the most important */
    train_scores all;    /* with every head */
    double left[TRAIN_MOST_LAYERS * TRAIN_MOST_HEADS]; /* accuracy without it, or perplexity for a
                                                          text */
} train_finding;

/* Print the size of the model and the cost of a step in one line. */
void train_report_size(train_model *model);

/* Print the accuracy on separate data, where each head attends, and the accuracy without it. */
cli_exit train_report_print(train_model *model, bool quiet, train_finding *found);

/* Compute scores on the reported data with the heads off [L,H] ablated. */
cli_exit train_report_without(train_model *model, const uint8_t *off, train_scores *s);

/* Put a text of the task's words, or a random sequence if it is NULL, into the probe batch as its
 * only sequence. */
cli_exit train_report_set_text(train_model *model, const char *text);

/* Write reports of every head on the task's examples into the run's folder, if any, opened on the
 * selected head; draw that head on the terminal. */
cli_exit train_report_pictures(train_run *run, const train_finding *found, bool quiet);

#endif
