/* Contents of a training report besides its maps: curves, snapshots, and each head's scores. */
#ifndef CLI_TRAIN_EVIDENCE_H
#define CLI_TRAIN_EVIDENCE_H

#include "train/train_report.h"
#include "train/train_save.h"
#include "view/view.h"

enum { EVIDENCE_CURVES = 2, EVIDENCE_SERIES = 8, EVIDENCE_COLUMNS = 2 * TRAIN_KINDS + 3 };

typedef struct train_evidence {
    view_extra extra;
    mha_curve curves[EVIDENCE_CURVES];
    mha_series series[EVIDENCE_SERIES];
    mha_column columns[EVIDENCE_COLUMNS];
    mha_frame frames[TRAIN_MOST_FRAMES + 1];
    char names[2 * TRAIN_KINDS][64], labels[TRAIN_MOST_FRAMES + 1][32];
    double *numbers;      /* numbers of curves and columns */
    const float **panels; /* panels of frames */
    int64_t used, series_used;
} train_evidence;

/* Fill the report of an example, whose maps are in model->probabilities. The report points into
 * run. */
cli_exit train_evidence_make(const train_run *run, const train_finding *found, int example,
                             train_evidence *evidence);

#endif
