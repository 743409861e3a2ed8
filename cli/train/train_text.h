/* multihead train --text FILE: the user's text becomes a task: predict the next word. */
#ifndef CLI_TRAIN_TEXT_H
#define CLI_TRAIN_TEXT_H

#include "train/train_report.h"

/* The options; 0: the default. */
typedef struct train_text_options {
    const char *path;
    bool characters;
    int64_t context; /* tokens per sequence, including the beginning-of-text token */
    int64_t words;   /* maximum vocabulary size */
} train_text_options;

typedef struct train_text {
    int32_t *tokens; /* [count] */
    int64_t count, bytes;
    int64_t held_out[2]; /* start of the held-out parts: to stop, to report */
    char **words;        /* [word_count] the vocabulary */
    int64_t word_count;
    int64_t kinds;   /* distinct words of the text, including those outside the vocabulary */
    int64_t unknown; /* tokens outside the vocabulary */
    char mark[48];   /* a fingerprint of the text */
    train_task task;
    train_recipe recipe;
} train_text;

/* Read, split and count a text. Hold out its last tenth in two equal parts, or more if the text is
 * short. */
cli_exit train_text_make(const train_text_options *options, train_text *text);

/* Print the results, and select the most important head. */
cli_exit train_text_print(train_model *model, train_finding *found);

#endif
