/* Snapshots of the heads over training: the maps of the task's example sentences before the first
 * step and at looks of equal distance. At most TRAIN_MOST_FRAMES are kept, and 64 MiB of them: when
 * there is no more room every second one goes and the distance doubles. Looking changes nothing of
 * what is learned. */
#ifndef CLI_TRAIN_FRAMES_H
#define CLI_TRAIN_FRAMES_H

#include "train/train.h"

enum { TRAIN_MOST_FRAMES = 24, TRAIN_EXAMPLES = 2 };

typedef struct train_frames {
    int64_t most, count; /* most 0: none are wanted */
    int64_t spacing;     /* looks from one to the next */
    double steps[TRAIN_MOST_FRAMES];
    int examples;
    int64_t size[TRAIN_EXAMPLES]; /* of a frame: heads x rows x columns of all layers */
    float *maps[TRAIN_EXAMPLES];  /* [most, size] */
} train_frames;

cli_exit train_frames_make(train_model *model, train_frames *frames);

/* After so many looks: one more, if it is its turn. */
cli_exit train_frames_record(train_model *model, int64_t looks, train_frames *frames);

#endif
