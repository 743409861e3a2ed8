/* multihead ablate: the effects of ablating heads, measured on texts, repeated random tokens and the
 * prompts of a task. Options are in cmd_ablate.c, the measurement in ablate_measure.c, task files
 * in ablate_task.c, printing in ablate_out.c. */
#ifndef CLI_ABLATE_H
#define CLI_ABLATE_H

#include "heads/heads.h"

#include <multihead/ablation.h>

typedef struct ablate_options {
    heads_options heads;                  /* must be first: texts, outputs */
    int kind;                             /* mha_ablation */
    const char *task, *paths;             /* FILE of prompts; receivers */
    args_texts named;                     /* heads to measure exactly, in place of head_count */
    int64_t head_count, pairs, max_texts; /* head_count -1: not given */
} ablate_options;

/* In-context learning is the mean loss of the tokens around the 50th minus that of the tokens around
 * the 500th, as in bench/ablation.py. */
enum {
    EFFECT_EARLY = 41,
    EFFECT_EARLY_END = 62,
    EFFECT_LATE = 451,
    EFFECT_LATE_END = 552,
    EFFECT_SETS = 3,
    EFFECT_MEASURES = 4
};

/* A set of texts with the same measures: the given texts, repeated random tokens, or prompts. */
typedef struct effect_set {
    mha_effect_data data;
    mha_effect_text *texts; /* [data.texts] */
    const mha_effect_text **list;
    int64_t tokens;                   /* total */
    mha_tensor means;                 /* for mean ablation */
    double *estimates, *direct;       /* [L H, texts, measures]; direct NULL: no direct effects */
    double *whole, *single, *without; /* [texts, m], [chosen, ..], [pairs, ..] */
} effect_set;

/* A prompt of a task; its corrupted form has the same number of tokens. */
typedef struct effect_prompt {
    mha_tensor corrupted; /* ndim 0: none */
    double clean, other;  /* the measure on the prompt and on the corrupted prompt */
} effect_prompt;

typedef struct effect_measure {
    const char *name, *label, *text; /* in files; on pages; its definition */
    int set, index;
} effect_measure;

typedef struct ablate_effects {
    const ablate_options *options;
    text_model *model;
    heads_found *found; /* the model's heads, and their scores if measured */
    mha_ablation kind;
    effect_set sets[EFFECT_SETS];
    effect_measure measures[EFFECT_MEASURES];
    int measure_count;
    bool estimated; /* estimates exist */
    int64_t *chosen,
        chosen_count;           /* heads measured exactly, layer * H + head, named or best first */
    int64_t *pairs, pair_count; /* [pair_count, 2] indices into chosen */
    effect_prompt *prompts;     /* the task's prompts */
    double *patched,
        *paths; /* [L H, prompts] restored share; change by paths. NULL: not requested */
    const char *paths_to;
    mha_path_receiver *receivers; /* receivers of path patching; none: the logits */
    int64_t receiver_count;
    double *row;        /* space for one number per text of a set */
    mha_status *failed; /* the first failure while effects are written */
} ablate_effects;

/* Prepare the texts and validate the options, before any work. */
cli_exit ablate_begin(ablate_effects *effects, const heads_sources *sources);

/* Measure all effects. */
cli_exit ablate_measure(ablate_effects *effects);

/* Read the prompts of --task: their terms and their corrupted forms, if any. */
cli_exit ablate_read_task(ablate_effects *effects);

/* Parse the receivers of --paths; none: the logits. */
cli_exit ablate_read_paths(ablate_effects *effects);

/* Allocate a text of B sequences of T tokens with `terms` terms; the caller fills ids [B T] and
 * lengths [B]. */
cli_exit ablate_text(int64_t B, int64_t T, int64_t terms, mha_effect_text *text, int32_t **ids,
                     int64_t **lengths, mha_effect_term **list);

/* Return CLI_NO_MEMORY if memory ran out while effects were written. */
cli_exit ablate_told(const ablate_effects *effects);

cli_exit ablate_print(const ablate_effects *effects);
cli_exit ablate_write_json(const ablate_effects *effects);

/* Columns and cards for the page and arrays. Each measure has the gradient estimates of all heads,
 * if they exist, and the exact effects of the measured heads. A head's card lists its pairs,
 * largest interaction first. */
cli_exit ablate_beside(const ablate_effects *effects, heads_beside *beside);

#endif
