/* What a training leaves behind: its state after every look, so that it can go on after any end;
 * the model as a folder; the curve; reports of its heads. */
#ifndef CLI_TRAIN_SAVE_H
#define CLI_TRAIN_SAVE_H

#include "train/train_frames.h"

/* What the curve knows of a look. */
enum {
    TRAIN_CURVE_STEP,
    TRAIN_CURVE_LOSS,
    TRAIN_CURVE_RIGHT,
    TRAIN_CURVE_KIND,
    TRAIN_CURVE_BEST = TRAIN_CURVE_KIND + TRAIN_KINDS, /* weight of the best head, its worst kind */
    TRAIN_CURVE_HELD_OUT,                              /* loss */
    TRAIN_CURVE_COLUMNS
};

typedef struct train_run {
    train_model model;
    const char *folder; /* NULL: nothing is kept */
    uint64_t seed;
    int64_t attempt; /* tries before this one */
    double seconds;  /* of training, all tries */
    bool done;       /* the goal was reached */
    double *curve;   /* [looks][TRAIN_CURVE_COLUMNS] of this try */
    int64_t looks, room;
    float *best; /* the parameters of the lowest held-out loss; NULL: the recipe has no patience */
    int64_t best_step;
    double best_loss;
    bool stopped;  /* by a signal; of several ranks, to one of them */
    bool pictures; /* snapshots are wanted */
    train_frames frames;
    size_t mark; /* of the arena: what came after it ends with a try */
} train_run;

/* A new model, or the state of the folder's training. run->model knows context, task and recipe. */
cli_exit train_save_begin(bool fresh, train_run *run);

/* All ranks: the last look's point of the curve, what it decided and how long training took, as rank
 * 0 has them. */
cli_exit train_save_share(train_run *run, train_verdict *verdict);

/* Try run->attempt begins: model, curve and snapshots are new, and those of the last try end. */
cli_exit train_save_try(train_run *run);

/* The step of the last look, 0 before the first. The next one is counted from it and not from the
 * current step, so that a run stopped between a step and its look does not miss it. */
int64_t train_save_looked(const train_run *run);

/* Whether training has gone on long enough without getting better. */
bool train_save_out_of_patience(const train_run *run);

/* After a look: a point of the curve, and the state of training. */
cli_exit train_save_point(train_run *run, const train_scores *scores);

/* The model's folder, the state and the curve. */
cli_exit train_save_folder(train_run *run);

#endif
