/* Held-out sequences of a task as CoNLL-U with gold links, for 'multihead heads --conllu'. */
#ifndef CLI_TRAIN_PRINT_H
#define CLI_TRAIN_PRINT_H

#include "train/train.h"

/* count sequences on stdout. Each row whose prediction counts is linked to what a head would look
 * at to get it right, by a relation called answer. */
cli_exit train_print(const train_task *task, int64_t count);

#endif
