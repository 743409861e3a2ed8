/* What was learned: in numbers on stdout, and as pictures. */
#ifndef CLI_TRAIN_REPORT_H
#define CLI_TRAIN_REPORT_H

#include "train.h"

/* Accuracy on data of its own, where each head looks, and what is left without it. found: layer and
 * number of the head that looks most at what is right. */
cli_exit train_report_print(train_model *model, int64_t found[2]);

/* Every head on a text of the task's words (NULL: a sequence that is drawn): as a report in one
 * file (path NULL: none) that opens on the head found, and that head in the terminal. */
cli_exit train_report_picture(train_model *model, const char *text, const char *path,
                              const int64_t found[2], bool print, bool quiet);

#endif
