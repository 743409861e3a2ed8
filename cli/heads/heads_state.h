/* The file of 'multihead heads --state FILE': the state of a study (study.h, docs/heads-corpus.md). */
#ifndef CLI_HEADS_STATE_H
#define CLI_HEADS_STATE_H

#include "heads/heads.h"

typedef struct heads_state {
    const char *path;       /* NULL: no file, and every function is a no-op */
    const mha_study *study; /* the study to save; set by the caller */
    double due;             /* seconds; when to save next */
    int64_t kept;           /* texts and random sequences in the file; -1: no file */
    mha_study_state of;     /* for mha_study_create() */
} heads_state;

/* Read the file, if there is one; only rank 0 has it. */
cli_exit heads_state_begin(const heads_options *options, const text_model *model,
                           heads_state *state);

/* Save if a save is due. A failure only warns, because the next save may succeed. */
void heads_state_save_if_due(heads_state *state);

/* Save at the end: a failure is an error. */
cli_exit heads_state_end(heads_state *state);

#endif
