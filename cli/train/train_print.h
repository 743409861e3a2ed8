/* Held-out sequences of a task as CoNLL-U with gold links, for 'multihead heads --conllu'. */
#ifndef CLI_TRAIN_PRINT_H
#define CLI_TRAIN_PRINT_H

#include "train/train.h"

/* Print count sequences on stdout. Each row whose prediction counts is linked to the token that a
 * head must attend to, by a relation called answer. */
cli_exit train_print(const train_task *task, int64_t count);

#endif
