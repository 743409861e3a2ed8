/* The files of a training run: its state after every evaluation, from which an interrupted run
 * continues; the model as a folder; the curve; reports of its heads. */
#ifndef CLI_TRAIN_SAVE_H
#define CLI_TRAIN_SAVE_H

#include "train/train_frames.h"

/* The columns of the curve: one evaluation. */
enum {
    TRAIN_CURVE_STEP,
    TRAIN_CURVE_LOSS,
    TRAIN_CURVE_RIGHT,
    TRAIN_CURVE_KIND,
    TRAIN_CURVE_BEST = TRAIN_CURVE_KIND + TRAIN_KINDS, /* weight of the best head on its worst
                                                        * kind */
    TRAIN_CURVE_HELD_OUT,                              /* loss */
    TRAIN_CURVE_COLUMNS
};

typedef struct train_run {
    train_model model;
    const char *folder; /* NULL: nothing is saved */
    uint64_t seed;
    int64_t attempt; /* attempts before this one */
    double seconds;  /* time of training in all attempts */
    bool done;       /* the goal was reached */
    double *curve;   /* [evaluations][TRAIN_CURVE_COLUMNS] of this attempt */
    int64_t looks, room;
    float *best; /* the parameters of the lowest held-out loss; NULL: the recipe has no patience */
    int64_t best_step;
    double best_loss;
    bool stopped;  /* by a signal to this process or to any rank */
    bool pictures; /* whether to take snapshots */
    train_frames frames;
    size_t mark; /* mark of the arena: later allocations are freed at the end of an attempt */
} train_run;

/* Create a model, or load the state of the folder's training. context, task and recipe of
 * run->model must be set. */
cli_exit train_save_begin(bool fresh, train_run *run);

/* Collective: broadcast the last evaluation's point of the curve, its decision and the time of
 * training from rank 0. */
cli_exit train_save_share(train_run *run, train_verdict *verdict);

/* Begin attempt run->attempt: create a model, curve and snapshots, and free those of the last
 * attempt. */
cli_exit train_save_try(train_run *run);

/* The step of the last evaluation, 0 before the first. The next evaluation is counted from it and
 * not from the current step, so that a run that stopped between a step and its evaluation does not
 * skip the evaluation. */
int64_t train_save_looked(const train_run *run);

/* After an evaluation: save a point of the curve, and the state of training. */
cli_exit train_save_point(train_run *run, const train_scores *scores);

/* Save the model's folder, the state and the curve. */
cli_exit train_save_folder(train_run *run);

#endif
