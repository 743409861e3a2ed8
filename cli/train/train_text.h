/* multihead train --text FILE: the user's text becomes a task, to predict its next word. */
#ifndef CLI_TRAIN_TEXT_H
#define CLI_TRAIN_TEXT_H

#include "train/train_report.h"

/* What the command line says of it; 0: the default. */
typedef struct train_text_options {
    const char *path;
    bool characters;
    int64_t context; /* tokens of a sequence, the one that begins it included */
    int64_t words;   /* of the vocabulary, at most */
} train_text_options;

typedef struct train_text {
    int32_t *tokens; /* [count] */
    int64_t count, bytes;
    int64_t held_out[2]; /* where the parts that are held out begin: to stop, to report */
    char **words;        /* [word_count] the vocabulary */
    int64_t word_count;
    int64_t kinds;   /* different words of the text, in the vocabulary or not */
    int64_t unknown; /* tokens that are not words of the vocabulary */
    char mark[48];   /* tells one text from another */
    train_task task;
    train_recipe recipe;
} train_text;

/* Read, split, count; the last two twentieths are held out, or more of a short text. */
cli_exit train_text_make(const train_text_options *options, train_text *text);

/* What was learned, in numbers, and the head that matters most. */
cli_exit train_text_print(train_model *model, train_finding *found);

#endif
