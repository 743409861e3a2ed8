/* Snapshots of the heads during training: maps of the task's example sentences before the first
 * step and at evenly spaced evaluations. At most TRAIN_MOST_FRAMES snapshots and 64 MiB are kept.
 * At this limit, every second snapshot is dropped and the spacing doubles. Taking a snapshot does
 * not change training. */
#ifndef CLI_TRAIN_FRAMES_H
#define CLI_TRAIN_FRAMES_H

#include "train/train.h"

enum { TRAIN_MOST_FRAMES = 24, TRAIN_EXAMPLES = 2 };

typedef struct train_frames {
    int64_t most, count; /* most 0: no snapshots */
    int64_t spacing;     /* evaluations between two snapshots */
    double steps[TRAIN_MOST_FRAMES];
    int examples;
    int32_t *ids; /* [tokens] of the first example */
    int64_t tokens;
    int64_t size[TRAIN_EXAMPLES]; /* size of a frame: heads x rows x columns of all layers */
    float *maps[TRAIN_EXAMPLES];  /* [most, size] */
} train_frames;

cli_exit train_frames_make(train_model *model, train_frames *frames);

/* Take a snapshot after this number of evaluations, if one is due. */
cli_exit train_frames_record(train_model *model, int64_t looks, train_frames *frames);

#endif
